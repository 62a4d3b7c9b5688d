"""What the engine asks of a workload. Knows the protocol, no model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from steelyard.worker.workloads.batches import Batch


class StepMaker(Protocol):
    """One rank's work. The engine builds it with the spec and the rank's device."""

    communicates: bool
    """Whether its steps wait for other ranks: what is not input is all computation where they do not."""

    learnable: bool
    """Whether the loss can fall: not where labels are random, and new each step."""

    block_steps: int | None
    """Steps a block may have at most; None: as many as the engine likes."""

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

    def after_block(self, table: NDArray[np.float64], raw: Path) -> None:
        """A block is done, and its samples are in `table`: look at results, write what else is known into `raw`."""

    def last_loss(self) -> float | None:
        """Of the last step, once the device has done it; None: it has none."""

    def close(self) -> None:
        """No more batches: end what makes them."""
