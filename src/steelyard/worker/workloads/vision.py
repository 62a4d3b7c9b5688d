"""Image classifiers of torchvision, without weights: nothing is downloaded. Knows no device and no timing."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from steelyard.errors import InputError, Problem
from steelyard.worker.workloads.recipe import Recipe

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import nn


def resnet50(classes: int = 1000, resolution: int = 224) -> Recipe:
    """ResNet-50 as torchvision defines it (stride in the 3 x 3 convolution, also called version 1.5).

    25.6 million parameters with 1000 classes. The work of a step does not depend on the learning rate, which is small
    because the labels are random: with 8 samples the loss stays near that of chance. With 1 or 2 samples it grows, and
    with 2 samples of 32 pixels, where the last batch normalisations have one pixel an image, a larger rate gave NaN.
    """
    given = {"classes": classes, "resolution": resolution}
    problems = tuple(Problem(name, f"is {value}", "at least 1") for name, value in given.items() if value < 1)
    if problems:
        raise InputError("ResNet-50 cannot be built so", problems=problems)
    make = _models().resnet50

    def batch(samples: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        images = torch.randn(samples, 3, resolution, resolution, generator=generator, device="cpu")
        return images, torch.randint(classes, (samples,), generator=generator, device="cpu")

    return Recipe(make(weights=None, num_classes=classes), functional.cross_entropy, _optimizer, batch)


def _models() -> Any:
    try:
        return importlib.import_module("torchvision.models")
    except (ImportError, RuntimeError) as error:  # RuntimeError: one that belongs to another torch
        raise InputError(
            "the workload resnet50 needs torchvision, which cannot be imported here",
            problems=(Problem("torchvision", str(error)[:200], "the version that belongs to this torch"),),
            next_step="pip install torchvision",
        ) from None


def _optimizer(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.001, momentum=0.9, weight_decay=1e-4)
