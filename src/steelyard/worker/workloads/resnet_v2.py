"""ResNet-50 version 2, as tf_cnn_benchmarks trains it under the name resnet50_v2."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional

from steelyard.worker.workloads.about import About, about
from steelyard.worker.workloads.options import at_least
from steelyard.worker.workloads.vision import DATA, classifier, momentum
from steelyard.worker.workloads.wideresnet import convolution

if TYPE_CHECKING:
    from steelyard.worker.workloads.bundle import ModelBundle

GROUPS = ((3, 64, 1), (4, 128, 2), (6, 256, 2), (3, 512, 2))
"""Blocks, inner width and first stride of each group."""
EXPANSION = 4


@about(
    About(
        family="classification",
        title="ResNet-50 version 2, ImageNet shapes",
        data=DATA,
        metric="top-1",
        reduced={"classes": 10, "resolution": 64},
        parameters=25_549_352 + 2 * 64,
        source="timm, results-imagenet.csv, resnetv2_50: 25.55 M; and the normalisation after the first convolution",
    )
)
def build(classes: int = 1000, resolution: int = 224) -> ModelBundle:
    """ResNet-50 with pre-activation (arXiv 1603.05027): blocks normalise and activate before each convolution.

    As in tf_cnn_benchmarks, the first convolution of a block has the stride and not the second, so that a forward pass
    is 6 % fewer operations than that of the ResNet-50 of torchvision, and the very first convolution is normalised too.
    """
    at_least(1, "ResNet-50 version 2", classes=classes, resolution=resolution)
    return classifier(ResNetV2(classes), classes, resolution, momentum)


class Bottleneck(nn.Module):
    """Three convolutions, each after normalisation and activation, with a residual connection."""

    def __init__(self, inputs: int, inner: int, stride: int) -> None:
        super().__init__()
        outputs = EXPANSION * inner
        self.norm1 = nn.BatchNorm2d(inputs)
        self.narrow = convolution(inputs, inner, 1, stride)
        self.norm2 = nn.BatchNorm2d(inner)
        self.middle = convolution(inner, inner, 3)
        self.norm3 = nn.BatchNorm2d(inner)
        self.widen = convolution(inner, outputs, 1)
        self.shortcut = None if inputs == outputs else convolution(inputs, outputs, 1, stride)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the block's output."""
        active = functional.relu(self.norm1(images))
        kept = images if self.shortcut is None else self.shortcut(active)
        hidden = self.middle(functional.relu(self.norm2(self.narrow(active))))
        result: torch.Tensor = self.widen(functional.relu(self.norm3(hidden))) + kept
        return result


class ResNetV2(nn.Module):
    """A first convolution and a maximum at a quarter of the side, four groups of blocks, and a head on the mean."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        width = GROUPS[0][1]
        self.first = convolution(3, width, 7, 2)
        self.first_norm = nn.BatchNorm2d(width)
        layers = []
        for blocks, inner, stride in GROUPS:
            for number in range(blocks):
                layers.append(Bottleneck(width, inner, 1 if number else stride))
                width = EXPANSION * inner
        self.blocks = nn.Sequential(*layers)
        self.norm = nn.BatchNorm2d(width)
        self.head = nn.Linear(width, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the scores of each class."""
        hidden = functional.relu(self.first_norm(self.first(images)))
        hidden = self.blocks(functional.max_pool2d(hidden, 3, stride=2, padding=1))
        scores: torch.Tensor = self.head(functional.relu(self.norm(hidden)).mean(dim=(2, 3)))
        return scores
