"""What the engine asks of a workload. Knows the protocol, no model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from steelyard.worker.workloads.batches import Batch


class Workload(Protocol):
    """One rank's work. The engine builds it with the spec and the rank's device."""

    def compile(self) -> None:
        """Prepare the model explicitly, where the workload has such a step; measured as a phase of its own."""

    def take(self) -> Batch:
        """The next batch; blocks the host until it is there."""

    def run(self, batch: Batch) -> Any | None:
        """Enqueue one step. Returns the event between computation and exposed communication, or None."""
