"""A small model that logs every loss exactly, and when the first was computed; only for the figures."""

import os
import time
from pathlib import Path

import torch
from torch import nn


class Net(nn.Module):
    """With dropout, so that disturbed randomness shows."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Linear(width, 64)
        self.norm = nn.BatchNorm1d(64)
        self.drop = nn.Dropout(0.1)
        self.last = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Of a batch of vectors."""
        hidden = torch.relu(self.norm(self.first(x)))
        return self.last(self.drop(hidden))  # type: ignore[no-any-return]


def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Cross entropy that logs its exact value and the time."""
    value = nn.functional.cross_entropy(output, target)
    log = Path(os.environ["LOSSES"]) / os.environ.get("RANK", "0")
    with log.open("a", encoding="ascii") as file:
        file.write(f"{value.item().hex()} {time.monotonic()}\n")
    return value


def batch(samples: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Random vectors and classes."""
    return torch.randn(samples, 32, generator=generator), torch.randint(10, (samples,), generator=generator)


def optimizer(parameters):  # type: ignore[no-untyped-def]
    """With a state of its own."""
    return torch.optim.AdamW(parameters, lr=1e-2)


def build(width: int = 32):  # type: ignore[no-untyped-def]
    """Entry point for steelyard."""
    return Net(width), loss, optimizer, batch
