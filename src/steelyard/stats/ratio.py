"""Ratio of the mean times of two groups of jobs, with its CI and verdict."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from steelyard.estimate.student import student_t

if TYPE_CHECKING:
    from collections.abc import Sequence

MIN_JOBS = 3

Verdict = Literal["faster", "slower", "no difference shown", "too few jobs"]


@dataclass(frozen=True)
class TimeRatio:
    """Mean time of `b` divided by the mean time of the base `a`; below 1, `b` is faster."""

    value: float
    low: float | None
    high: float | None
    level: float
    df: float | None
    verdict: Verdict
    """The verdict on `b` compared with `a`."""
    jobs_a: int
    jobs_b: int

    @property
    def percent_faster(self) -> float:
        """Return by how many percent `b` is faster than `a`: it does that much more work in the same time.

        This is the only meaning of "x % faster" in this package. The base is always `a`; negative means slower. Half
        the time is 100 % faster; twice the time is -50 %.
        """
        return 100 * (1 / self.value - 1)


def compare_means(a: Sequence[float], b: Sequence[float], level: float = 0.95) -> TimeRatio:
    """Return the ratio of the mean times of jobs `b` and `a` (the base), with Welch's CI of its logarithm.

    Times are averaged arithmetically, because the time of many jobs is their sum. The variance of log(mean) is that of
    the mean divided by its square (delta method); degrees of freedom after B. Welch, Biometrika 34, 1947. On the log
    scale the verdict does not depend on which side is the base.
    """
    if bad := [
        f"{name} {value!r}" for name, side in (("a", a), ("b", b)) for value in side if not 0 < value < math.inf
    ]:
        raise ValueError(f"times must be positive and finite, got {', '.join(bad)}")
    if not a or not b:
        raise ValueError(f"{len(a)} jobs in a and {len(b)} in b: need at least one on each side")
    mean_a, mean_b = math.fsum(a) / len(a), math.fsum(b) / len(b)
    value = mean_b / mean_a
    if min(len(a), len(b)) < MIN_JOBS:
        return TimeRatio(value, None, None, level, None, "too few jobs", len(a), len(b))
    share_a, share_b = _log_variance(a, mean_a), _log_variance(b, mean_b)
    variance = share_a + share_b
    if variance == 0.0:
        df, half_width = float(len(a) + len(b) - 2), 0.0
    else:
        df = variance**2 / (share_a**2 / (len(a) - 1) + share_b**2 / (len(b) - 1))
        half_width = student_t(level, df) * math.sqrt(variance)
    low, high = value * math.exp(-half_width), value * math.exp(half_width)
    verdict: Verdict = "no difference shown"
    if high < 1:
        verdict = "faster"
    elif low > 1:
        verdict = "slower"
    return TimeRatio(value, low, high, level, df, verdict, len(a), len(b))


def _log_variance(times: Sequence[float], mean: float) -> float:
    """Return the variance of the logarithm of the mean."""
    n = len(times)
    return math.fsum((time / mean - 1) ** 2 for time in times) / (n - 1) / n
