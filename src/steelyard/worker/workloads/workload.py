"""What the engine asks of a workload. Knows the protocol, no model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from steelyard.worker.workloads.batches import Batch


class Workload(Protocol):
    """One rank's work. The engine builds it with the spec and the rank's device."""

    communicates: bool
    """Whether its steps wait for other ranks: what is not input is all computation where they do not."""

    def compile(self) -> None:
        """Prepare the model explicitly, where the workload has such a step; measured as a phase of its own."""

    def take(self) -> Batch:
        """The next batch; blocks the host until it is there."""

    def run(self, batch: Batch) -> Any | tuple[Any, Any] | None:
        """Enqueue one step.

        Returns the events between which communication was exposed; or the first alone, when it lasts to the step's
        end; or None, when nobody looks or nobody can tell.
        """

    def watch_communication(self) -> None:
        """From now on tell computation from communication, at a cost that the measured steps must not bear."""

    def close(self) -> None:
        """No more batches: end what makes them."""
