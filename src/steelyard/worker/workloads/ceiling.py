"""What a ceiling's `build` function returns: work without a model, and how its result is checked. Knows no ceiling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch


class Work(Protocol):
    """A ceiling on one rank's device."""

    def step(self) -> None:
        """Enqueue one step."""

    def fault(self) -> str | None:
        """What is wrong with the last step's result; None: it is right. Waits for the device."""


@dataclass(frozen=True)
class Ceiling:
    """Work whose size is known, to see what the device, its memory or its links reach."""

    make: Callable[[torch.device, torch.dtype], Work]
    """Prepares the work on a device in a number format; collectives use the default group."""
    flops: float | None = None
    """Of one step on one rank; None: not arithmetic."""
    moved_bytes: float | None = None
    """Bytes that one step on one rank moves; of a collective, its message; None: nothing of interest."""
    bus_factor: Callable[[int], float] | None = None
    """Of a collective: from the number of ranks to the bytes on the busiest link for each byte of the message."""
