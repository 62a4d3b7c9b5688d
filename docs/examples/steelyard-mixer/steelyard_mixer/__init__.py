"""A small MLP-Mixer as a workload of another package: what steelyard needs of it is the function alone."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional


class Mixer(nn.Module):
    """Mixes patches with each other, then channels."""

    def __init__(self, patches: int, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.tokens = nn.Sequential(nn.Linear(patches, 2 * patches), nn.GELU(), nn.Linear(2 * patches, patches))
        self.channels = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """One layer's output."""
        hidden = hidden + self.tokens(self.norm1(hidden).transpose(1, 2)).transpose(1, 2)
        result: torch.Tensor = hidden + self.channels(self.norm2(hidden))
        return result


class Classifier(nn.Module):
    """Patches of 4 x 4, the layers, and a linear head on their mean."""

    def __init__(self, layers: int, width: int, classes: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, stride=4)
        self.layers = nn.Sequential(*(Mixer(64, width) for _ in range(layers)))
        self.head = nn.Linear(width, classes)

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        """The scores of each class."""
        hidden = self.patches(pictures).flatten(2).transpose(1, 2)
        scores: torch.Tensor = self.head(self.layers(hidden).mean(dim=1))
        return scores


def build(layers: int = 4, width: int = 64, classes: int = 10) -> tuple[Any, ...]:
    """Module, loss, optimizer and batch maker, in this order."""

    def batch(samples: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        pictures = torch.randn(samples, 3, 32, 32, generator=generator, device="cpu")
        return pictures, torch.randint(classes, (samples,), generator=generator, device="cpu")

    module = Classifier(layers, width, classes)
    return module, functional.cross_entropy, lambda parameters: torch.optim.AdamW(parameters, lr=1e-4), batch
