"""Knows the ratio of two groups of jobs and if it shows a difference; must not know records or what jobs ran."""

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
    """Mean time of `b` over mean time of its base `a`: under 1, `b` is faster."""

    value: float
    low: float | None
    high: float | None
    level: float
    df: float | None
    verdict: Verdict
    """What `b` is against `a`."""
    jobs_a: int
    jobs_b: int

    @property
    def percent_faster(self) -> float:
        """`b` is x % faster than `a` when it does x % more work in the same time.

        This is the only meaning of "x % faster" in this package, the base is always `a`, and negative means
        slower. Half the time is 100 % faster; twice the time is -50 %.
        """
        return 100 * (1 / self.value - 1)


def compare_means(a: Sequence[float], b: Sequence[float], level: float = 0.95) -> TimeRatio:
    """Ratio of the mean times of jobs `b` to jobs `a`, the base, with Welch's interval of its logarithm.

    Arithmetic means of times, because the time of many jobs is their sum. The variance of log(mean) is that of
    the mean over its square (delta method); degrees of freedom after B. Welch, Biometrika 34, 1947. On the log
    scale the verdict is the same whichever side is the base.
    """
    if bad := [
        f"{name} {value!r}" for name, side in (("a", a), ("b", b)) for value in side if not 0 < value < math.inf
    ]:
        raise ValueError(f"times must be positive and finite, but there is {', '.join(bad)}")
    if not a or not b:
        raise ValueError(f"{len(a)} jobs in a and {len(b)} in b: give at least one on each side")
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
    """Variance of the logarithm of the mean."""
    n = len(times)
    return math.fsum((time / mean - 1) ** 2 for time in times) / (n - 1) / n
