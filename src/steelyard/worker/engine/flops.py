"""What a model takes: its parameters and the floating-point operations of a sample, counted without computing any.

Knows torch's counter and the meta device, on which tensors have shapes and no values. Knows no model, no time and no
device that computes.
"""

from __future__ import annotations

import importlib
import math
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from steelyard.contracts.observe import ModelFacts
from steelyard.worker.workloads.bundle import call, each_tensor

if TYPE_CHECKING:
    from collections.abc import Callable

    from steelyard.worker.workloads.bundle import ModelBundle

SAMPLES = 2
"""Batch normalisation refuses a single one where an image has shrunk to one pixel."""
REASON_CHARACTERS = 300
READ = "aten._local_scalar_dense.default"
"""The operator behind `if tensor:` and `tensor.item()`."""


def count(make: Callable[[], ModelBundle], *, train: bool) -> ModelFacts:
    """The facts of the model that `make` builds, for a training step or for inference.

    Counted are matrix products, convolutions and attention, a multiply-add as two. They are counted on the meta
    device because the counter knows operators, not mathematics: on a CPU it misses the fused attention there (13 % of
    GPT-2 small at 1024 tokens, 23 % at 2048), while on meta attention falls apart into the products it is made of, and
    so does its backward pass. Normalising, activations and the optimizer's arithmetic are not counted; what a model
    computes again to save memory is counted as often as it is computed.

    A training step is 3 times a forward pass only where every product's both factors need a gradient. A network's
    first layer needs none for its inputs: images are not trained. ResNet-50 is therefore 1 % below 3 times.

    Tensors without values cannot say whether a condition holds. Models ask such things of all values at once (is
    nothing padded, is nothing infinite) and are told yes; `method` says so. What else they ask cannot be answered.

    Whatever fails leaves the number unknown, with the reason in `method`; nothing is raised.
    """
    parameters = 0
    assumed = Agreeing()
    # What is built here must not move the random numbers of what is built next.
    with torch.random.fork_rng(devices=[]):
        try:
            bundle = built_on_meta(make)
            parameters = sum(parameter.numel() for parameter in bundle.module.parameters())
            with assumed:
                flops = _counted(bundle, train=train) / SAMPLES
        except Exception as error:  # noqa: BLE001 -- a model of anybody's making; not knowing must not end the run
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:REASON_CHARACTERS]
            return ModelFacts(parameters=parameters, flops_per_sample=None, method=f"unknown: {reason}")
    if flops == 0:
        method = "unknown: torch's counter knows none of the operators this model uses"
        return ModelFacts(parameters=parameters, flops_per_sample=None, method=method)
    passes = "forward, loss and backward" if train else "forward"
    method = f"torch.utils.flop_counter of torch {torch.__version__} on the meta device: {passes} of {SAMPLES} samples"
    if assumed.times:
        method += "; what the model asks of all its values is taken to be so"
    return ModelFacts(parameters=parameters, flops_per_sample=flops, method=method)


class Agreeing(TorchDispatchMode):  # type: ignore[no-untyped-call, unused-ignore]
    """Says yes to every question on tensors that have no values."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call, unused-ignore]
        self.times = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """One operator."""
        if str(func) == READ and args[0].is_meta and args[0].dtype == torch.bool:
            self.times += 1
            return True
        return func(*args, **(kwargs or {}))


def built_on_meta(make: Callable[[], ModelBundle]) -> ModelBundle:
    """The bundle with a model that has shapes and no values, where that can be."""
    try:
        with torch.device("meta"):
            return make()
    except Exception:  # noqa: BLE001 -- a model that reads a value while it is built can only be built for real
        return make()


def on_meta(bundle: ModelBundle, *, train: bool) -> tuple[Any, Any, Any]:
    """The module, inputs and target of SAMPLES samples, without values."""
    inputs, target = bundle.batch(SAMPLES, torch.Generator().manual_seed(0))
    inputs, target = each_tensor((inputs, target), lambda tensor: tensor.to("meta"))
    return bundle.module.to("meta").train(train), inputs, target


def _counted(bundle: ModelBundle, *, train: bool) -> float:
    mode = importlib.import_module("torch.utils.flop_counter").FlopCounterMode
    module, inputs, target = on_meta(bundle, train=train)
    if not train:
        # The counter follows gradients to tell modules apart, and stumbles where there are to be none.
        module.requires_grad_(requires_grad=False)
    own = {torch.ops.aten.convolution_backward: _convolution_backward}
    with torch.set_grad_enabled(train), mode(display=False, custom_mapping=own) as counter:
        output = call(module, inputs)
        if train:
            bundle.loss(output, target).backward()  # type: ignore[no-untyped-call, unused-ignore]
    return float(counter.get_total_flops())


def _convolution_backward(*args: Any, **_more: Any) -> int:
    """Each gradient takes what the forward pass takes. torch's own formula takes no account of groups.

    For a convolution of every channel by itself, as in EfficientNet or SegFormer, it counts channels times too much.
    """
    gradient, inputs, weight = (getattr(given, "shape", given) for given in args[:3])
    transposed, wanted = args[7], args[10]
    places = (inputs if transposed else gradient)[2:]
    forward: int = 2 * int(inputs[0]) * math.prod(places) * math.prod(weight)
    return forward * (int(wanted[0]) + int(wanted[1]))
