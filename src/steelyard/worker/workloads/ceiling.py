"""What a ceiling's `build` function returns: work without a model, and how its result is checked. Knows no ceiling."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from steelyard.errors import InputError, Problem

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

MEGABYTE = 1_000_000


class WrongResultError(RuntimeError):
    """A ceiling computed or moved something wrong: its speed is not worth a word."""


class Work:
    """A ceiling on one rank's device. Its result is known beforehand."""

    flops: float | None = None
    """Of one repeat on one rank; None: not arithmetic."""
    moved_bytes: float | None = None
    """Bytes that one repeat on one rank moves; of a collective, its message; None: nothing of interest."""
    bus_factor: float | None = None
    """Of a collective: bytes on the busiest link for each byte of the message."""
    step: Callable[[], object]
    """Enqueues one repeat."""
    kept_results: int | None = None
    """Repeats whose results all stay until `fault` looks at them; no more may follow each other. None: only the last
    one's stays."""

    def fault(self) -> str | None:
        """What is wrong with the results it keeps; None: they are right. The device is idle.

        Afterwards the results are spoilt, so that a repeat that does nothing cannot pass the next time.
        """
        raise NotImplementedError

    def effective(self) -> dict[str, str]:
        """Settings in effect: the number format, and what else decides the speed."""
        raise NotImplementedError


@dataclass(frozen=True)
class Ceiling:
    """Work whose size is known, to see what the device, its memory or its links reach."""

    make: Callable[[torch.device, torch.dtype, int], Work]
    """Prepares the work on a device in a number format, for a step of so many repeats; collectives use the default
    group."""
    formats: tuple[str, ...] = field(default=("fp32",))
    """Of `--precision`, those that the work can be done in."""


def elements_of(size_mb: float, itemsize: int, multiple: int = 1) -> int:
    """How many numbers make a size in megabytes (of 1,000,000 bytes): a multiple, at least one."""
    if not 0 < size_mb <= MEGABYTE:
        problem = Problem("model.size_mb", f"is {size_mb}", f"above 0, at most {MEGABYTE}")
        raise InputError("a ceiling of this size cannot be made", problems=(problem,))
    return max(1, int(size_mb * MEGABYTE / (itemsize * multiple))) * multiple


def one_of(name: str, value: str, valid: tuple[str, ...]) -> None:
    """Refuse an option that is none of those."""
    if value not in valid:
        raise InputError(
            "the ceiling cannot be made so", problems=(Problem(f"model.{name}", f"is {value!r}", ", ".join(valid)),)
        )
