"""Decide when a job has measured enough."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from steelyard.estimate.enough import STEPS_TO_JUDGE
from steelyard.estimate.mean import CLOCK_RESOLUTION, RatioEstimate, ratio_estimate

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from steelyard.estimate.fold import Fold

    Floats = NDArray[np.float64]

LOOK_FACTOR = 2
WARMUP_BATCHES = 32
WARMUP_SIGMAS = 6.0
KNOWN_STEPS = 4
"""After this many steps the time of a step is known; after two, if they took half of the time."""


def warmup_bins(times: Floats, work: Floats) -> int:
    """Return how many leading bins to exclude as warm-up, at most half of them.

    MSER (K. White, Simulation 69, 1997) on the medians of 32 batches, applied only if the head differs clearly.
    Medians, because one long step at the start is not a warm-up. The test, because plain MSER cuts a random part off
    most constant series, which would need more steps than necessary.
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
    """Stop a job when it has enough steps, enough seconds and a narrow CI, or at a limit.

    The width is checked only when the number of steps after warm-up has doubled. Every check is a chance to stop on a
    CI that is narrow by luck: with a check every 50 steps, the coverage of a 95 % CI falls to as low as 79 %; with
    doubling, the loss is below 1 %.
    """

    def __init__(
        self,
        *,
        min_steps: int,
        min_seconds: float,
        rel_half_width: float,
        max_steps: int,
        max_seconds: float,
        max_extension: float = 1.0,
        level: float = 0.95,
    ) -> None:
        self.min_steps = min_steps
        self.min_seconds = min_seconds
        self.rel_half_width = rel_half_width
        self.max_steps = max_steps
        self.max_seconds = max_seconds
        self.max_extension = max_extension
        self.limit_s = max_seconds
        """Limit in seconds: `max_seconds`, or more if this allows the steady state to be judged."""
        self.needed_s: float | None = None
        """Estimated time of the steps that the steady state needs, if it is longer than `max_seconds`."""
        self.level = level
        self.estimate: RatioEstimate | None = None
        self._next_look = max(1, min_steps)

    def decide(self, fold: Fold, seconds: float) -> str | None:
        """Return why to stop now ("interval", "max_steps" or "max_seconds"), or None to continue.

        `seconds` is the measured time of the steps in `fold`.
        """
        if fold.steps >= min(self._next_look, self.max_steps) and self._look(fold, seconds):
            return "interval"
        if fold.steps >= self.max_steps:
            return "max_steps"
        self._look_ahead(fold, seconds)
        if seconds >= self.limit_s:
            return "max_seconds"
        return None

    def _look_ahead(self, fold: Fold, seconds: float) -> None:
        """Set the limit in seconds from the time that the steps so far have taken."""
        left = min(STEPS_TO_JUDGE, self.max_steps) - fold.steps
        known = KNOWN_STEPS if seconds < self.max_seconds / 2 else 2
        if left > 0 and fold.steps < known and seconds < self.max_seconds:
            return
        self.limit_s, self.needed_s = self.max_seconds, None
        if left <= 0:
            return
        times, _ = fold.bins()
        # The first step is often slow.
        needed_s = seconds + left * float(np.median(times[1:] if len(times) > 1 else times))
        if needed_s > self.max_seconds:
            self.needed_s = needed_s
            if needed_s <= self.max_seconds * self.max_extension:
                self.limit_s = needed_s

    def steps_to_next_look(self, steps: int) -> int:
        """Return the number of steps to the next check or to the step limit; at least one."""
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
