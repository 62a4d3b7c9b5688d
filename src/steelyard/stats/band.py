"""Decide from a few noisy jobs whether a documented figure still holds.

For jobs with mean m and CI [l, h], and a band around the documented figure d:

- pass: the whole CI is inside the band. A machine whose true figure is on an edge of the band passes with a
  probability of at most (1 - level) / 2: 2.5 % at the usual level of 95 %.
- fail: m is outside the band, and d is outside the CI. A machine that performs as documented fails with a probability
  of at most (1 - level) / 2 on each side, however narrow the band is.
- cannot tell: anything else. More jobs narrow the CI; `needed` says how many would decide, and `more_jobs` how many to
  add next. That ends at `MOST_JOBS`, or earlier if that does not decide even a figure in mid-band.

If a band has no documented figure, its nearest edge is used as d: the whole CI must then be outside the band.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from steelyard.estimate.student import student_t
from steelyard.stats.jobs import across_jobs

if TYPE_CHECKING:
    from collections.abc import Sequence

MIN_JOBS = 3
# The most jobs of one occasion that are suggested. Four times as many would only halve their CI.
MOST_JOBS = 100
MAX_NEEDED = 1_000_000
# The mean will move and the spread of few jobs is uncertain: a number of jobs that is enough on average would be too
# small in every second case. So the predicted half-width must be at most this share of the distance.
ENOUGH = 0.75

Verdict = Literal["pass", "fail", "cannot tell"]


@dataclass(frozen=True)
class Band:
    """The accepted range around a documented figure. None means no limit on that side."""

    low: float | None
    high: float | None
    documented: float | None = None

    def __post_init__(self) -> None:
        if self.low is None and self.high is None:
            raise ValueError("a band needs low, high or both")
        if self.low is not None and self.high is not None and not self.low < self.high:
            raise ValueError(f"low {self.low:g} is not below high {self.high:g}")

    def holds(self, value: float) -> bool:
        """Return whether a value is inside the band."""
        return (self.low is None or value >= self.low) and (self.high is None or value <= self.high)

    def target(self, value: float) -> float:
        """Return the figure that the CI must exclude for a failure; the value is outside the band."""
        if self.documented is not None:
            return self.documented
        edge = self.low if self.low is not None and value < self.low else self.high
        assert edge is not None
        return edge

    def distance(self, value: float) -> float:
        """Return how far the CI may reach from a value: inside the band to the nearest edge, outside to the target."""
        if not self.holds(value):
            return abs(value - self.target(value))
        return min(abs(value - edge) for edge in (self.low, self.high) if edge is not None)

    @property
    def half_width(self) -> float:
        """How far the CI may reach from the middle of the band, or from the documented figure."""
        if self.documented is not None:
            return self.distance(self.documented)
        return (self.high - self.low) / 2 if self.low is not None and self.high is not None else math.inf


@dataclass(frozen=True)
class BandJudgement:
    """The result of comparing jobs with a band."""

    verdict: Verdict
    value: float
    low: float | None
    """None if there are fewer than two jobs."""
    high: float | None
    level: float
    spread: float | None
    """Standard deviation between jobs, as a share of the value."""
    jobs: int
    needed: int | None
    """Further jobs for a verdict if the figure and the spread stay; None: there is one, or more than MAX_NEEDED."""
    more_jobs: int | None
    """Jobs to add next; None if there is a verdict, or if jobs vary too much for this band."""


def judge(values: Sequence[float], band: Band, *, rate: bool, level: float = 0.95) -> BandJudgement:
    """Compare one figure per job with a band. Rates are averaged as times."""
    across = across_jobs([1 / value for value in values] if rate else list(values), level)
    value = 1 / across.value if rate else across.value
    low, high = across.low, across.high
    if low is not None and high is not None and rate:
        low, high = 1 / high, (1 / low if low > 0 else math.inf)
    verdict: Verdict = "cannot tell"
    if low is not None and high is not None and len(values) >= MIN_JOBS:
        if band.holds(low) and band.holds(high):
            verdict = "pass"
        elif not band.holds(value) and not low <= band.target(value) <= high:
            verdict = "fail"
    needed = more = None
    if verdict == "cannot tell":
        deviation = abs(value) * (across.spread or 0.0)
        needed = _needed(deviation, band.distance(value), len(values), level)
        more = _more_jobs(needed, _needed(deviation, band.half_width, len(values), level), len(values))
    return BandJudgement(verdict, value, low, high, level, across.spread, len(values), needed, more)


def _needed(deviation: float, room: float, jobs: int, level: float) -> int | None:
    """Return the fewest jobs to add so that the CI reaches no further than `room`; None: more than MAX_NEEDED."""
    if jobs < MIN_JOBS:
        return MIN_JOBS - jobs

    def short(count: int) -> bool:
        return student_t(level, float(count - 1)) * deviation / math.sqrt(count) > ENOUGH * room

    # The CI narrows with every job, so bisection finds the fewest.
    low, high = jobs, jobs + MAX_NEEDED
    if short(high):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if short(middle) else (low, middle)
    return high - jobs


def _more_jobs(needed: int | None, centred: int | None, jobs: int) -> int | None:
    """Return the jobs to add next, up to MOST_JOBS in all. `centred`: jobs needed if the figure were in mid-band.

    At least half as many as there are, because each look is a chance of an error. If too many are needed only because
    the figure is close to an edge, as many as there are: with more jobs it may turn out to be elsewhere.
    """
    left = MOST_JOBS - jobs
    if jobs < MIN_JOBS:
        return needed
    if needed is not None and needed <= left:
        return min(max(needed, math.ceil(jobs / 2)), left)
    return min(max(centred, jobs), left) or None if centred is not None and centred <= left else None
