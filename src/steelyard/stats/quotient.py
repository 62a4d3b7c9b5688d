"""Quotients of means over the same jobs, and their change between two groups of jobs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from steelyard.estimate.student import student_t
from steelyard.stats.ratio import MIN_JOBS

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class Estimate:
    """A value with its CI; no CI if there are too few jobs."""

    value: float
    low: float | None = None
    high: float | None = None
    level: float = 0.95

    def scaled(self, factor: float, shift: float = 0.0) -> Estimate:
        """Return value and CI times a positive factor, plus a shift."""
        low = None if self.low is None else self.low * factor + shift
        high = None if self.high is None else self.high * factor + shift
        return Estimate(self.value * factor + shift, low, high, self.level)


@dataclass(frozen=True)
class Quotient:
    """A quotient of products of means over the same jobs."""

    over: tuple[tuple[float, ...], ...]
    """Numerators: series of positive values, one per job."""
    under: tuple[tuple[float, ...], ...]
    """Denominators: series of positive values, one per job."""

    @property
    def jobs(self) -> int:
        """Return the number of jobs."""
        return len((self.over + self.under)[0])

    @property
    def value(self) -> float:
        """Return the quotient of the means."""
        return math.prod(map(_mean, self.over)) / math.prod(map(_mean, self.under))

    def without(self, factor: Quotient) -> Quotient:
        """Return this quotient divided by another."""
        return Quotient(self.over + factor.under, self.under + factor.over)

    def log_variance(self) -> float:
        """Return the variance of the logarithm by the delta method; the values of one job are correlated."""
        spread = [0.0] * self.jobs
        for sign, series in [(1.0, s) for s in self.over] + [(-1.0, s) for s in self.under]:
            mean = _mean(series)
            spread = [so_far + sign * (value / mean - 1) for so_far, value in zip(spread, series, strict=True)]
        return math.fsum(value**2 for value in spread) / (self.jobs - 1) / self.jobs


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def change(base: Quotient, other: Quotient, level: float = 0.95, *, trends: float = 0.0) -> Estimate:
    """Return `other` divided by `base`, with Welch's CI of the logarithm.

    For single means this equals `ratio.compare_means`. With fewer than three jobs on a side there is no CI. The CI is
    wider by `trends`, the sum of the trends during the jobs of both sides.
    """
    value = other.value / base.value
    jobs_a, jobs_b = base.jobs, other.jobs
    if min(jobs_a, jobs_b) < MIN_JOBS:
        return Estimate(value, level=level)
    share_a, share_b = base.log_variance(), other.log_variance()
    variance = share_a + share_b
    half_width = trends
    if variance > 0.0:
        df = variance**2 / (share_a**2 / (jobs_a - 1) + share_b**2 / (jobs_b - 1))
        half_width += student_t(level, df) * math.sqrt(variance)
    return Estimate(value, value * math.exp(-half_width), value * math.exp(half_width), level)
