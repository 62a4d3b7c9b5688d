"""WideResNet-28-10 for images of 3 x 32 x 32, as in CIFAR-100."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn
from torch.nn import functional

from steelyard.errors import InputError, Problem
from steelyard.worker.workloads import tasks
from steelyard.worker.workloads.about import About, about
from steelyard.worker.workloads.bundle import ModelBundle
from steelyard.worker.workloads.options import at_least

DEPTH = 28
WIDEN = 10
SIDE = 32


@about(
    About(
        family="classification",
        title="WideResNet-28-10, CIFAR-100 shapes",
        data=("cifar100", "cifar10"),
        metric="top-1",
        reduced={"depth": 10, "widen": 1},
        parameters=36.5e6,
        source="Zagoruyko and Komodakis, arXiv 1605.07146, table 4: 36.5M",
    )
)
def build(classes: int = 100, depth: int = DEPTH, widen: int = WIDEN) -> ModelBundle:
    """WideResNet-28-10 of Zagoruyko and Komodakis (arXiv 1605.07146), without dropout.

    It has 36.5 million parameters with 100 classes, as in the paper. The learning rate is small because the labels are
    random; it does not affect the work of a step.
    """
    at_least(1, "WideResNet", classes=classes, widen=widen)
    if depth < 10 or (depth - 4) % 6:
        problem = Problem("depth", f"is {depth}", "10, 16, 22, 28 and so on, in steps of 6")
        raise InputError("invalid option of WideResNet", problems=(problem,))

    def batch(samples: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        images = torch.randn(samples, 3, SIDE, SIDE, generator=generator, device="cpu")
        return images, torch.randint(classes, (samples,), generator=generator, device="cpu")

    task = tasks.classification(SIDE, classes, padded=True)
    return ModelBundle(
        WideResNet(classes, depth, widen),
        functional.cross_entropy,
        partial(torch.optim.SGD, lr=0.001, momentum=0.9, nesterov=True, weight_decay=5e-4),
        batch,
        task,
    )


def convolution(inputs: int, outputs: int, side: int, stride: int = 1) -> nn.Conv2d:
    """Return a convolution without bias, initialised for an activation after it."""
    made = nn.Conv2d(inputs, outputs, side, stride=stride, padding=side // 2, bias=False)
    nn.init.kaiming_normal_(made.weight, mode="fan_out", nonlinearity="relu")
    return made


class Block(nn.Module):
    """Normalise, activate, convolve; twice, with a residual connection. A change of width uses a 1 x 1 convolution."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(inputs)
        self.convolution1 = convolution(inputs, outputs, 3, stride)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.convolution2 = convolution(outputs, outputs, 3)
        self.shortcut = None if inputs == outputs else convolution(inputs, outputs, 1, stride)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the block's output."""
        active = functional.relu(self.norm1(images))
        kept = images if self.shortcut is None else self.shortcut(active)
        hidden = functional.relu(self.norm2(self.convolution1(active)))
        result: torch.Tensor = self.convolution2(hidden) + kept
        return result


class WideResNet(nn.Module):
    """A first convolution, three groups of blocks at 32, 16 and 8 pixels, and a linear head on the mean."""

    def __init__(self, classes: int, depth: int, widen: int) -> None:
        super().__init__()
        widths = [16, 16 * widen, 32 * widen, 64 * widen]
        blocks = (depth - 4) // 6
        self.first = convolution(3, widths[0], 3)
        layers = []
        for group in range(3):
            layers.append(Block(widths[group], widths[group + 1], stride=1 if group == 0 else 2))
            layers += [Block(widths[group + 1], widths[group + 1], stride=1) for _ in range(blocks - 1)]
        self.blocks = nn.Sequential(*layers)
        self.norm = nn.BatchNorm2d(widths[3])
        self.head = nn.Linear(widths[3], classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the scores of each class."""
        hidden = functional.relu(self.norm(self.blocks(self.first(images))))
        scores: torch.Tensor = self.head(hidden.mean(dim=(2, 3)))
        return scores
