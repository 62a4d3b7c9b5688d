"""Work between blocks of steps, outside the timed steps: record the loss and evaluate quality on every rank."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from steelyard.contracts.observe import LossTrace

if TYPE_CHECKING:
    from collections.abc import Callable

    from steelyard.worker.engine.evaluate import Judge
    from steelyard.worker.measure.writer import EventLog
    from steelyard.worker.workloads.step_maker import StepMaker

# More than a plotted curve needs. When the limit is reached, every second value is dropped.
MAX_LOSSES = 512


class Between:
    """Called after every block with the number of completed steps."""

    def __init__(
        self,
        step_maker: StepMaker,
        judge: Judge | None,
        *,
        log: EventLog | None,
        now: Callable[[], float],
        beat: Callable[[], None],
    ) -> None:
        self._step_maker = step_maker
        self._judge = judge
        self._log = log
        self._now = now
        self._beat = beat
        self._began_s: float | None = None
        self._losses: list[tuple[int, float]] = []
        self._judged = 0

    def begin(self) -> None:
        """Note the time at which the first step starts."""
        self._began_s = self._now()

    def __call__(self, steps: int, *, last: bool) -> bool:
        """Record the loss and evaluate if it is time to; return whether the quality target is reached."""
        loss = self._step_maker.last_loss() if self._log is not None else None
        if loss is not None:
            if len(self._losses) == MAX_LOSSES:
                del self._losses[1::2]
            self._losses.append((steps, loss))
        judge = self._judge
        if judge is None or steps == self._judged or not (last or steps % judge.every_steps == 0):
            return False
        self._judged = steps
        assert self._began_s is not None
        start_s = self._now()
        evaluation, reached = judge(steps, self._now, self._began_s, self._beat)
        if self._log is not None:
            self._log.write("evaluation", evaluation)
            self._log.write_phase("evaluation", start_s, self._now())
        return reached

    def room(self, steps: int) -> int | None:
        """Return the number of steps until the next evaluation, or None if there is none."""
        return None if self._judge is None else self._judge.every_steps - steps % self._judge.every_steps

    def finish(self) -> None:
        """Write the recorded losses to the event log."""
        if self._log is None or not self._losses:
            return
        steps, values = zip(*self._losses, strict=True)
        finite = tuple(value if math.isfinite(value) else None for value in values)
        self._log.write("loss", LossTrace(steps=steps, values=finite, learnable=self._step_maker.learnable))
