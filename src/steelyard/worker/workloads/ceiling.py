"""What a ceiling's `build` function returns: an operation without a model, and how its result is checked."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from steelyard.errors import InputError, Problem

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

MEGABYTE = 1_000_000


class WrongResultError(RuntimeError):
    """A ceiling produced a wrong result, so its speed is meaningless."""


class Work:
    """A ceiling's operation on one rank's device. Its correct result is known in advance."""

    flops: float | None = None
    """Per repeat and rank; None: not arithmetic."""
    moved_bytes: float | None = None
    """Bytes moved per repeat and rank; for a collective, its message size; None: not relevant."""
    bus_factor: float | None = None
    """For a collective: bytes on the busiest link per byte of the message."""
    step: Callable[[], object]
    """Enqueues one repeat."""
    kept_results: int | None = None
    """Number of repeats whose results are all kept until `fault` checks them; more must not run in between. None: only
    the last result is kept."""

    def fault(self) -> str | None:
        """Return what is wrong with the kept results, or None. The device is idle.

        Afterwards the results are overwritten, so that a repeat that does nothing fails the next check.
        """
        raise NotImplementedError

    def effective(self) -> dict[str, str]:
        """Return the settings in effect: the number format, and what else affects the speed."""
        raise NotImplementedError


@dataclass(frozen=True)
class Ceiling:
    """An operation of known size that shows what the device, its memory or its links achieve."""

    make: Callable[[torch.device, torch.dtype, int], Work]
    """Prepares the operation on a device, in a number format and for this many repeats per step; collectives use the
    default process group."""
    formats: tuple[str, ...] = field(default=("fp32",))
    """Values of `--precision` that it supports."""


def elements_of(size_mb: float, itemsize: int, multiple: int = 1) -> int:
    """Return the number of elements for a size in megabytes (1,000,000 bytes): a multiple, at least one."""
    if not 0 < size_mb <= MEGABYTE:
        problem = Problem("model.size_mb", f"is {size_mb}", f"above 0, at most {MEGABYTE}")
        raise InputError("invalid size of a ceiling", problems=(problem,))
    return max(1, int(size_mb * MEGABYTE / (itemsize * multiple))) * multiple


def one_of(name: str, value: str, valid: tuple[str, ...]) -> None:
    """Reject an option that is not one of the valid values."""
    if value not in valid:
        raise InputError(
            "invalid option of a ceiling", problems=(Problem(f"model.{name}", f"is {value}", ", ".join(valid)),)
        )
