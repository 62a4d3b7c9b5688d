"""The interface that the engine needs from a workload."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from steelyard.worker.workloads.batches import Batch


# Enough to average a clock that changes from step to step.
PROFILED_STEPS = 8


class StepMaker(Protocol):
    """One rank's work. The engine builds it with the spec and the rank's device."""

    communicates: bool
    """Whether its steps wait for other ranks; if not, everything except input is computation."""

    learnable: bool
    """Whether the loss can fall: not with random labels that are new in each step."""

    block_steps: int | None
    """Maximum number of steps per block; None: no limit."""

    events_per_step: int
    """Events that a measured step records; two unless the step itself records more."""

    profiled_steps: int
    """Maximum number of steps to profile, which keeps every kernel in memory; usually PROFILED_STEPS."""

    def compile(self) -> None:
        """Compile the model if the workload does so; measured as a separate phase."""

    def take(self) -> Batch:
        """Return the next batch; blocks the host until it has arrived."""

    def run(self, batch: Batch) -> Any | tuple[Any, Any] | None:
        """Enqueue one step.

        Returns the two events between which communication was exposed; or only the first, if it lasts to the end of
        the step; or None, if it is not observed or unknown.
        """

    def watch_communication(self) -> None:
        """From now on separate computation from communication, at a cost that the measured steps must not have."""

    def after_block(self, table: NDArray[np.float64], raw: Path) -> None:
        """Called after each block with its samples in `table`: check results, write additional files to `raw`."""

    def last_loss(self) -> float | None:
        """Return the loss of the last step, once the device is done; None: there is no loss."""

    def close(self) -> None:
        """Stop producing batches."""
