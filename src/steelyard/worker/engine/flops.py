"""What a model takes: its parameters and the floating-point operations of a sample, counted without computing any.

Knows torch's counter and the meta device, on which tensors have shapes and no values. Knows no model, no time and no
device that computes.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

import torch

from steelyard.contracts.observe import ModelFacts
from steelyard.worker.workloads.recipe import call, each_tensor

if TYPE_CHECKING:
    from collections.abc import Callable

    from steelyard.worker.workloads.recipe import Recipe

SAMPLES = 2
"""Batch normalisation refuses a single one where an image has shrunk to one pixel."""
REASON_CHARACTERS = 300


def count(make: Callable[[], Recipe], *, train: bool) -> ModelFacts:
    """The facts of the model that `make` builds, for a training step or for inference.

    Counted are matrix products, convolutions and attention, a multiply-add as two. They are counted on the meta
    device because the counter knows operators, not mathematics: on a CPU it misses the fused attention there (13 % of
    GPT-2 small at 1024 tokens, 23 % at 2048), while on meta attention falls apart into the products it is made of, and
    so does its backward pass. Normalising, activations and the optimizer's arithmetic are not counted; what a model
    computes again to save memory is counted as often as it is computed.

    A training step is 3 times a forward pass only where every product's both factors need a gradient. A network's
    first layer needs none for its inputs: images are not trained. ResNet-50 is therefore 1 % below 3 times.

    Whatever fails leaves the number unknown, with the reason in `method`; nothing is raised.
    """
    parameters = 0
    # What is built here must not move the random numbers of what is built next.
    with torch.random.fork_rng(devices=[]):
        try:
            recipe = _built(make)
            parameters = sum(parameter.numel() for parameter in recipe.module.parameters())
            flops = _counted(recipe, train=train) / SAMPLES
        except Exception as error:  # noqa: BLE001 -- a model of anybody's making; not knowing must not end the run
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:REASON_CHARACTERS]
            return ModelFacts(parameters=parameters, flops_per_sample=None, method=f"unknown: {reason}")
    if flops == 0:
        method = "unknown: torch's counter knows none of the operators this model uses"
        return ModelFacts(parameters=parameters, flops_per_sample=None, method=method)
    passes = "forward, loss and backward" if train else "forward"
    method = f"torch.utils.flop_counter of torch {torch.__version__} on the meta device: {passes} of {SAMPLES} samples"
    return ModelFacts(parameters=parameters, flops_per_sample=flops, method=method)


def _built(make: Callable[[], Recipe]) -> Recipe:
    try:
        with torch.device("meta"):
            return make()
    except Exception:  # noqa: BLE001 -- a model that reads a value while it is built can only be built for real
        return make()


def _counted(recipe: Recipe, *, train: bool) -> float:
    mode = importlib.import_module("torch.utils.flop_counter").FlopCounterMode
    inputs, target = recipe.batch(SAMPLES, torch.Generator().manual_seed(0))
    inputs, target = each_tensor((inputs, target), lambda tensor: tensor.to("meta"))
    module = recipe.module.to("meta").train(train)
    with torch.set_grad_enabled(train), mode(display=False) as counter:
        output = call(module, inputs)
        if train:
            recipe.loss(output, target).backward()  # type: ignore[no-untyped-call, unused-ignore]
    return float(counter.get_total_flops())
