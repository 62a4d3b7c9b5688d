"""What the engine asks of a device. Knows the protocol, no vendor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray


class Device(Protocol):
    """One device that one rank drives.

    Work is enqueued and runs later; an event marks a place in the queue. Its time is known only after a
    synchronisation, so nothing on the measured path waits for the device.
    """

    rank: int
    timing: str
    """How its events are timed, for the record."""
    memory_method: str
    """What is asked for the memory peak, for the record."""

    def now(self) -> float:
        """Seconds on the host's monotonic clock, from the start of the run."""

    def record(self) -> Any:
        """Put an event into the queue."""

    def synchronize(self) -> None:
        """Wait until everything enqueued has run."""

    def seconds(self, events: Sequence[Any]) -> NDArray[np.float64]:
        """When the device passed each event, on the clock of `now`; the events are forgotten after that."""

    def memory_peak_bytes(self) -> float | None:
        """The most memory the job has held on this device; None where the device cannot tell."""

    def pause(self, seconds: float) -> None:
        """Called once a block with its duration, outside every measured step."""
