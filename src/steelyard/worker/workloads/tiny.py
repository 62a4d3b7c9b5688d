"""A small classifier that trains in a fraction of a millisecond on a CPU: for tests. Knows no device and no timing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional

from steelyard.errors import InputError, Problem
from steelyard.worker.workloads.recipe import Recipe

if TYPE_CHECKING:
    from collections.abc import Iterable

CLASSES = 10


def build(width: int = 64, depth: int = 2) -> Recipe:
    """A perceptron of `depth` hidden layers; its inputs have as many numbers as a layer."""
    given = {"width": width, "depth": depth}
    problems = tuple(Problem(name, f"is {value}", "at least 1") for name, value in given.items() if value < 1)
    if problems:
        raise InputError("the tiny model cannot be built so", problems=problems)
    layers: list[nn.Module] = []
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.ReLU()]

    def batch(samples: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        inputs = torch.randn(samples, width, generator=generator, device="cpu")
        return inputs, torch.randint(CLASSES, (samples,), generator=generator, device="cpu")

    return Recipe(nn.Sequential(*layers, nn.Linear(width, CLASSES)), functional.cross_entropy, _optimizer, batch)


def _optimizer(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9)
