"""A small classifier for tests, which trains in a fraction of a millisecond on a CPU."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn
from torch.nn import functional

from steelyard.worker.workloads import tasks
from steelyard.worker.workloads.about import About, about
from steelyard.worker.workloads.bundle import ModelBundle
from steelyard.worker.workloads.options import at_least

CLASSES = 10


@about(
    About(
        family="test",
        title="small perceptron, 0.3 ms per step on a CPU",
        data=("mnist", "cifar10"),
        metric="top-1",
        parameters=2 * 65 * 64 + 65 * CLASSES,
        source="our own design, counted by hand",
    )
)
def build(width: int = 64, depth: int = 2) -> ModelBundle:
    """A perceptron of `depth` hidden layers; its inputs are as wide as a layer."""
    at_least(1, "the tiny model", width=width, depth=depth)
    layers: list[nn.Module] = []
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.ReLU()]

    def batch(samples: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        inputs = torch.randn(samples, width, generator=generator, device="cpu")
        return inputs, torch.randint(CLASSES, (samples,), generator=generator, device="cpu")

    module = nn.Sequential(*layers, nn.Linear(width, CLASSES))
    return ModelBundle(
        module,
        functional.cross_entropy,
        partial(torch.optim.SGD, lr=0.01, momentum=0.9),
        batch,
        tasks.vectors(width, CLASSES),
    )
