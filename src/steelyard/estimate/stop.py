"""When a job has measured enough. Knows a budget in plain numbers and the running series."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from steelyard.estimate.mean import CLOCK_RESOLUTION, RatioEstimate, ratio_estimate

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from steelyard.estimate.fold import Fold

    Floats = NDArray[np.float64]

LOOK_FACTOR = 2
WARMUP_BATCHES = 32
WARMUP_SIGMAS = 6.0


def warmup_bins(times: Floats, work: Floats) -> int:
    """How many leading bins to leave out of a running decision, at most half of them.

    MSER (K. White, Simulation 69, 1997) on the medians of 32 batches, taken only where the head stands
    clearly apart. Medians, because one long step at the start is no warm-up; the test, because plain MSER cuts
    a random piece off most flat series and so would ask for more steps than are needed.
    """
    per_batch = len(times) // WARMUP_BATCHES
    if per_batch < 4:
        return 0
    used = per_batch * WARMUP_BATCHES
    rates = times[-used:] / np.maximum(work[-used:], np.finfo(np.float64).tiny)
    batches = np.median(rates.reshape(WARMUP_BATCHES, per_batch), axis=1)
    half = WARMUP_BATCHES // 2
    scores = [float(np.var(batches[cut:])) / (WARMUP_BATCHES - cut) for cut in range(half + 1)]
    cut = int(np.argmin(scores))
    if cut == 0:
        return 0
    head, tail = batches[:cut], batches[cut:]
    error = float(np.std(tail, ddof=1)) * math.sqrt(1 / len(head) + 1 / len(tail))
    dust = CLOCK_RESOLUTION * float(np.mean(tail))
    if abs(float(np.mean(head) - np.mean(tail))) <= WARMUP_SIGMAS * error + dust:
        return 0
    return len(times) - used + cut * per_batch


class StopRule:
    """When a job has measured enough: steps, seconds and a narrow interval, or a cap.

    The width is looked at only when the number of steps after warm-up has doubled. Every look is a chance to
    stop on an interval that is narrow by luck: with a look every 50 steps a nominal 95 % interval covers down
    to 79 %, with doubling the loss is under 1 %.
    """

    def __init__(
        self,
        *,
        min_steps: int,
        min_seconds: float,
        rel_half_width: float,
        max_steps: int,
        max_seconds: float,
        level: float = 0.95,
    ) -> None:
        self.min_steps = min_steps
        self.min_seconds = min_seconds
        self.rel_half_width = rel_half_width
        self.max_steps = max_steps
        self.max_seconds = max_seconds
        self.level = level
        self.estimate: RatioEstimate | None = None
        self._next_look = max(1, min_steps)

    def decide(self, fold: Fold, seconds: float) -> str | None:
        """Why to stop now ("interval", "max_steps" or "max_seconds"), or None to go on.

        `seconds` is the time measured so far in the steps of `fold`.
        """
        if fold.steps >= min(self._next_look, self.max_steps) and self._look(fold, seconds):
            return "interval"
        if fold.steps >= self.max_steps:
            return "max_steps"
        if seconds >= self.max_seconds:
            return "max_seconds"
        return None

    def steps_to_next_look(self, steps: int) -> int:
        """How many more steps lead exactly to the next look or to the cap; at least one."""
        return max(1, min(self._next_look, self.max_steps) - steps)

    def _look(self, fold: Fold, seconds: float) -> bool:
        times, work = fold.bins()
        if not len(times):
            return False
        first = warmup_bins(times, work)
        warmup = first * fold.steps_per_bin
        counted = fold.steps - warmup
        self.estimate = ratio_estimate(times[first:], work[first:], steps_per_bin=fold.steps_per_bin, level=self.level)
        if counted < self.min_steps:
            self._next_look = warmup + self.min_steps
            return False
        self._next_look = warmup + LOOK_FACTOR * counted
        return seconds >= self.min_seconds and self.estimate.rel_half_width <= self.rel_half_width
