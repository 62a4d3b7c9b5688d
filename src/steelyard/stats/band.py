"""Knows when few noisy jobs show that a documented figure still holds; must not know recipes, records or units.

The rule, for jobs with the mean m and its interval [l, h], and a band around the documented figure d:

- pass: the whole interval lies inside the band. A machine whose true figure lies on an edge of the band passes with
  a probability of (1 - level) / 2 at most: 2.5 % at the usual level of 95 %.
- fail: m lies outside the band, and d outside the interval. A machine that does as documented fails with a
  probability of (1 - level) / 2 at most on each side, however narrow the band is.
- cannot tell: anything else. More jobs narrow the interval, and `more_jobs` says how many would.

A band without a documented figure (only edges) has its nearest edge for d: then the whole interval must lie outside.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from steelyard.estimate.student import student_t
from steelyard.stats.intervals import across_jobs

if TYPE_CHECKING:
    from collections.abc import Sequence

MIN_JOBS = 3
MAX_MORE_JOBS = 1000
# The spread of few jobs is itself uncertain, and the mean will move: with the jobs that would do on average, one in
# two would be no wiser. So the interval is asked to end at this share of the way.
ENOUGH = 0.75

Verdict = Literal["pass", "fail", "cannot tell"]


@dataclass(frozen=True)
class Band:
    """What is still as documented. None: that side has no edge."""

    low: float | None
    high: float | None
    documented: float | None = None

    def __post_init__(self) -> None:
        if self.low is None and self.high is None:
            raise ValueError("a band needs an edge: low, high or both")
        if self.low is not None and self.high is not None and not self.low < self.high:
            raise ValueError(f"low {self.low:g} is not below high {self.high:g}")

    def holds(self, value: float) -> bool:
        """Whether a value lies inside."""
        return (self.low is None or value >= self.low) and (self.high is None or value <= self.high)

    def target(self, value: float) -> float:
        """For a value outside: the figure that must be ruled out before it is called a failure."""
        if self.documented is not None:
            return self.documented
        edge = self.low if self.low is not None and value < self.low else self.high
        assert edge is not None
        return edge

    def room(self, value: float) -> float:
        """For a value inside: how far the nearest edge is."""
        edges = [edge for edge in (self.low, self.high) if edge is not None]
        return min(abs(value - edge) for edge in edges)


@dataclass(frozen=True)
class BandJudgement:
    """Few jobs held against a band."""

    verdict: Verdict
    value: float
    low: float | None
    """None: fewer than two jobs have no interval."""
    high: float | None
    level: float
    spread: float | None
    """Standard deviation from job to job, as a share of the value."""
    jobs: int
    more_jobs: int | None
    """Jobs to add before it can be told; None: told already, or more than would help."""


def judge(values: Sequence[float], band: Band, *, rate: bool, level: float = 0.95) -> BandJudgement:
    """Hold the figures of jobs, one each, against a band. Of rates the times are averaged, not the rates."""
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
    more = None
    if verdict == "cannot tell":
        more = _more_jobs(value, across.spread, len(values), band, level)
    return BandJudgement(verdict, value, low, high, level, across.spread, len(values), more)


def _more_jobs(value: float, spread: float | None, jobs: int, band: Band, level: float) -> int | None:
    """The fewest jobs to add until an interval of this spread would end well before what it must not hold."""
    if jobs < MIN_JOBS:
        return MIN_JOBS - jobs
    if spread is None:
        return None
    room = band.room(value) if band.holds(value) else abs(value - band.target(value))

    def short(count: int) -> bool:
        return student_t(level, float(count - 1)) * spread * abs(value) / math.sqrt(count) > ENOUGH * room

    # The interval narrows with every job: the fewest are found by halving.
    low, high = jobs, jobs + MAX_MORE_JOBS
    if short(high):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if short(middle) else (low, middle)
    return high - jobs
