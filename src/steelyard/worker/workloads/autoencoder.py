"""A residual convolutional autoencoder for images of 1 x 28 x 28, as in MNIST."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn
from torch.nn import functional

from steelyard.worker.workloads import tasks
from steelyard.worker.workloads.about import About, about
from steelyard.worker.workloads.bundle import ModelBundle
from steelyard.worker.workloads.options import at_least

SIDE = 28
GROUPS = 8
LATENT = 64
"""Size of the latent vector; an image has 784 pixels."""


def closed_parameters(width: int, depth: int) -> int:
    """Return the number of parameters by formula: 3 x 3 convolutions with bias, norms, and two linear layers."""
    stages, blocks = (width, 2 * width), 0
    for channels in stages:
        blocks += 2 * depth * (2 * (9 * channels**2 + channels) + 2 * 2 * channels)
    first_and_last = (9 * width + width) + (9 * width + 1)
    # Halving the side on the way down and doubling it on the way up also takes a convolution each.
    halving = (9 * width * 2 * width + 2 * width) + (9 * (2 * width) ** 2 + 2 * width)
    doubling = (9 * (2 * width) ** 2 + 2 * width) + (9 * 2 * width * width + width)
    inner = 2 * width * (SIDE // 4) ** 2
    return blocks + first_and_last + halving + doubling + (inner * LATENT + LATENT) + (LATENT * inner + inner)


@about(
    About(
        family="reconstruction",
        title="residual convolutional autoencoder, MNIST shapes",
        data=("mnist",),
        metric="mse",
        reduced={"width": 8, "depth": 1},
        parameters=closed_parameters(64, 2),
        source="our own design; formula in autoencoder.closed_parameters",
    )
)
def build(width: int = 64, depth: int = 2) -> ModelBundle:
    """Down to 14 and 7 pixels, to 64 numbers, and back, with `depth` residual blocks at each size.

    The loss is the mean squared error to the image itself. It falls on real images; noise has no pattern to learn.
    """
    at_least(1, "the autoencoder", width=width, depth=depth)

    def batch(samples: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        images = torch.rand(samples, 1, SIDE, SIDE, generator=generator, device="cpu")
        return images, images

    return ModelBundle(
        Autoencoder(width, depth),
        functional.mse_loss,
        partial(torch.optim.AdamW, lr=3e-4, weight_decay=1e-4),
        batch,
        tasks.reconstruction(SIDE),
    )


class ResidualBlock(nn.Module):
    """Normalise, activate, convolve; twice, with a residual connection."""

    def __init__(self, width: int) -> None:
        super().__init__()
        groups = GROUPS if width % GROUPS == 0 else 1
        self.norm1 = nn.GroupNorm(groups, width)
        self.convolution1 = nn.Conv2d(width, width, 3, padding=1)
        self.norm2 = nn.GroupNorm(groups, width)
        self.convolution2 = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the block's output."""
        hidden = self.convolution1(functional.silu(self.norm1(images)))
        result: torch.Tensor = images + self.convolution2(functional.silu(self.norm2(hidden)))
        return result


class Autoencoder(nn.Module):
    """Encodes an image to a short vector and decodes it."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        wide = 2 * width
        self.down = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1),
            *(ResidualBlock(width) for _ in range(depth)),
            nn.Conv2d(width, wide, 3, stride=2, padding=1),
            *(ResidualBlock(wide) for _ in range(depth)),
            nn.Conv2d(wide, wide, 3, stride=2, padding=1),
            nn.Flatten(),
            nn.Linear(wide * (SIDE // 4) ** 2, LATENT),
        )
        self.up = nn.Sequential(
            nn.Linear(LATENT, wide * (SIDE // 4) ** 2),
            nn.Unflatten(1, (wide, SIDE // 4, SIDE // 4)),
            nn.Upsample(scale_factor=2),
            nn.Conv2d(wide, wide, 3, padding=1),
            *(ResidualBlock(wide) for _ in range(depth)),
            nn.Upsample(scale_factor=2),
            nn.Conv2d(wide, width, 3, padding=1),
            *(ResidualBlock(width) for _ in range(depth)),
            nn.Conv2d(width, 1, 3, padding=1),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the reconstructed images."""
        result: torch.Tensor = self.up(self.down(images))
        return result
