"""The interface that the engine needs from a device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray


class Device(Protocol):
    """One device, driven by one rank.

    Work is enqueued and runs later; an event marks a place in the queue. Its time is known only after a
    synchronisation, so nothing on the measured path waits for the device.
    """

    rank: int
    timing: str
    """How events are timed; kept in the record."""
    memory_method: str
    """How peak memory is measured; kept in the record."""

    def now(self) -> float:
        """Return seconds on the host's monotonic clock since the start of the run."""

    def record(self) -> Any:
        """Enqueue an event and return it."""

    def synchronize(self) -> None:
        """Wait until everything enqueued has run."""

    def seconds(self, events: Sequence[Any]) -> NDArray[np.float64]:
        """Return when the device reached each event, on the clock of `now`; the events may be reused after that."""

    def memory_peak_bytes(self) -> float | None:
        """Return the peak memory of the job on this device, or None if unknown."""

    def pause(self, seconds: float) -> None:
        """Called once per block with its duration, outside the measured steps."""
