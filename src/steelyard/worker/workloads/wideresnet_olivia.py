"""The WideResNet of the guide "PyTorch on Olivia", for images of 3 x 32 x 32, as in CIFAR-100.

Rebuilt from the guide's description at documentation.sigma2.no/code_development/guides/pytorch_olivia.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional

from steelyard.worker.workloads import tasks
from steelyard.worker.workloads.about import About, about
from steelyard.worker.workloads.bundle import ModelBundle
from steelyard.worker.workloads.options import at_least

if TYPE_CHECKING:
    import numpy as np

    from steelyard.worker.workloads.bundle import Task

SIDE = 32
FIRST = 16
WIDEN = 10
DROPPED = 0.01
MEAN = (0.5071, 0.4867, 0.4408)
DEVIATION = (0.2675, 0.2565, 0.2761)


@about(
    About(
        family="classification",
        title='WideResNet of the guide "PyTorch on Olivia", CIFAR-100 shapes',
        data=("cifar100", "cifar10"),
        metric="top-1",
        reduced={"widen": 1},
        parameters=464 + 256_800 + 461_440 + 1_435_200 + 1_844_480 + 5_737_600 + 7_375_360 + 64_100,
        source="counted layer by layer from its description: 464 before the six blocks, 64,100 after them",
        note="the notes olivia-gh200, which train this network, say about 25M parameters",
    )
)
def build(classes: int = 100, widen: int = WIDEN, momentum: float = 0.0, weight_decay: float = 0.0) -> ModelBundle:
    """A residual network with 17,175,444 parameters, which differs from the published WideResNets.

    It has two blocks per width, pools between the widths instead of using strides, normalises after each convolution
    and has nothing after the sum of a block. The guide trains it with SGD: on one device at 0.01 without momentum or
    decay, as here by default; on several at 0.04 with momentum 0.9 and decay 0.0005.
    """
    at_least(1, "WideResNet", classes=classes, widen=widen)
    at_least(0, "WideResNet", momentum=momentum, weight_decay=weight_decay)

    def batch(samples: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        images = torch.randn(samples, 3, SIDE, SIDE, generator=generator, device="cpu")
        return images, torch.randint(classes, (samples,), generator=generator, device="cpu")

    optimizer = partial(torch.optim.SGD, lr=0.01, momentum=momentum, weight_decay=weight_decay)
    return ModelBundle(_network(classes, widen), functional.cross_entropy, optimizer, batch, _task(classes))


def _task(classes: int) -> Task:
    """Crop and mirror every picture: the guide does so for validation too."""
    plain = tasks.classification(SIDE, classes, padded=True, mean=MEAN, deviation=DEVIATION)

    def prepare(example: Any, train: bool, source: np.random.Generator) -> Any:  # noqa: ARG001 -- a task's form
        return plain.prepare(example, True, source)

    return replace(plain, prepare=prepare)


class OliviaBlock(nn.Module):
    """Convolve, normalise, activate; twice. The input is added, through a 1 x 1 convolution if the width changes."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.path = nn.Sequential(*_layers(inputs, outputs), nn.Dropout(DROPPED), *_layers(outputs, outputs))
        self.shortcut = nn.Identity() if inputs == outputs else nn.Conv2d(inputs, outputs, 1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the block's output."""
        result: torch.Tensor = self.path(images) + self.shortcut(images)
        return result


def _layers(inputs: int, outputs: int) -> list[nn.Module]:
    return [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]


def _network(classes: int, widen: int) -> nn.Module:
    """Six blocks at 32, 16 and 8 pixels, and a linear layer on the mean of 7 x 7 of the last 8 x 8."""
    first, second, third = (FIRST * widen * factor for factor in (1, 2, 4))
    return nn.Sequential(
        *_layers(3, FIRST),
        *(OliviaBlock(FIRST, first), OliviaBlock(first, first), nn.MaxPool2d(2)),
        *(OliviaBlock(first, second), OliviaBlock(second, second), nn.MaxPool2d(2)),
        *(OliviaBlock(second, third), OliviaBlock(third, third), nn.AvgPool2d(7)),
        nn.Flatten(),
        nn.Linear(third, classes),
    )
