"""The interface that the engine needs from a device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from steelyard.contracts.observe import MemoryPeak


@dataclass(frozen=True)
class EventCost:
    """Seconds that one event takes."""

    device_s: float
    """On a device that has work."""
    host_s: float


@dataclass(frozen=True)
class Profile:
    """What a device did while some steps ran; None: unknown."""

    compute_s: float | None = None
    """Time in which a kernel ran, without communication and copies from the host."""
    synchronisations: int | None = None
    """Calls in which the host waited for the device."""
    reason: str = ""
    """Why `compute_s` is unknown."""


class Device(Protocol):
    """One device, driven by one rank.

    Work is enqueued and runs later; an event marks a place in the queue. Its time is known only after a
    synchronisation, so nothing on the measured path waits for the device.
    """

    rank: int
    timing: str
    """How events are timed; kept in the record."""
    queued: bool
    """Whether work runs after it was enqueued, so that the host can be ahead of the device, or behind."""

    def now(self) -> float:
        """Return seconds on the host's monotonic clock since the start of the run."""

    def record(self) -> Any:
        """Enqueue an event and return it."""

    def synchronize(self) -> None:
        """Wait until everything enqueued has run."""

    def seconds(self, events: Sequence[Any]) -> NDArray[np.float64]:
        """Return when the device reached each event, on the clock of `now`; the events may be reused after that."""

    def ask(self, event: Any) -> Any:
        """Note whether the device has yet to reach an event; `told` gives the answer. Only if `queued`."""

    def told(self, asked: Sequence[Any]) -> Sequence[bool]:
        """Return the answers, after a synchronisation: whether the device had yet to reach each event when asked."""

    def event_cost(self) -> EventCost | None:
        """Measure what an event costs; None: unknown. Called before the first step."""

    def profile(self, run: Callable[[], None]) -> Profile:
        """Run steps and return what the device did meanwhile. This changes their times."""

    def memory(self) -> MemoryPeak:
        """Return the memory of the job on this device until now."""

    def pause(self, seconds: float) -> None:
        """Called once per block with its duration, outside the measured steps."""
