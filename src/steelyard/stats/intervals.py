"""Confidence intervals of a mean within one job and across jobs, and reasons to doubt them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from steelyard.estimate.mean import Fit, correlation_in_steps, fit_ratio
from steelyard.estimate.student import student_t

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

LEVEL = 0.95
METHOD_WITHIN = "whitened cosine weights"
METHOD_WITHIN_PERIODIC = "whitened cosine weights, whole periods of recurring long steps"
METHOD_ACROSS = "Student t on job means"

# Coverage was verified from this many steps: 93.4 to 95.8 % at 900, over 2,000 jobs of each kind of noise. A run
# measures 1,000, so that a few slow first steps may be cut off. With fewer steps, AR(1) 0.8 has too little information.
MIN_STEPS = 900
# AR(1) 0.8, the strongest autocorrelation that was verified, has 9 steps, and 0.95 has 39. The estimate is within
# a factor of two at 1,000 steps, so a limit between them on a log scale separates them.
CORRELATION_LIMIT_STEPS = 17.0
# If one bin is longer than the correlation, the remaining correlation is estimation noise.
CORRELATION_LIMIT_BINS = 1.5

HEAVY_TAIL = "step times have a heavy tail"
RARE_STEPS = "rare long steps dominate the variance"

LEAST_GAP = 0.03
GAP_FACTOR = 20.0
MIN_EXCEEDANCES = 10
TAIL_QUANTILE = 0.97
"""Quantile to use as the threshold of `hill_tail_index`."""
# Measured from the median above the 97th percentile, lognormal sigma 1 has an index of 2.3 and Pareto 2.1 has 1.7; the
# limit misclassifies 2 % of either at 6,000 steps. Calm series (coefficient of variation below 0.5) have 3 or more.
TAIL_LIMIT = 2.0
TAIL_LIMIT_CALM = 2.6
CALM_CV = 0.5
# A tail counts as heavy only in a skewed series: small recurring long steps change the Hill estimate too, but have a
# skewness of at most 3 before they are detected as recurring.
TAIL_SKEWNESS = 4.0
# Detects a few isolated long steps, which a tail index misses. Lognormal sigma 1 stays below this skewness in 98 % of
# series of 20,000 steps, Pareto 2.1 exceeds it in 95 %.
SKEWNESS_LIMIT = 10.5


@dataclass(frozen=True)
class JobInterval:
    """Mean time per unit of work in one job, with its CI, which applies to this job only."""

    value: float
    low: float
    high: float
    level: float
    method: str
    df: float
    correlation_steps: float
    """Number of correlated steps that carry as much information as one independent step."""
    approximate: tuple[str, ...]
    """Why the coverage may be below its level; empty if it was verified."""


@dataclass(frozen=True)
class JobsInterval:
    """Mean over jobs, with the CI of the mean over all possible jobs."""

    value: float
    low: float | None
    high: float | None
    level: float
    method: str
    df: float | None
    jobs: int
    spread: float | None
    """Standard deviation between jobs, as a share of the value."""
    approximate: tuple[str, ...]
    """Why there is no CI, or why its coverage may be below its level."""
    at_most: float | None = None
    """Upper bound of the mean on its own, at the level: the answer if the CI reaches zero."""


def within_job(times: Floats, work: Floats, *, steps_per_bin: int = 1, tail_index: float | None = None) -> JobInterval:
    """Return the CI of the mean time per unit of work from the steady steps of one job.

    `times` and `work` are sums over bins of `steps_per_bin` steps each, in order; the value is total time over
    total work. The CI is that of the long-run mean, in which recurring long steps have their long-run frequency
    (`estimate.mean.fit_ratio`); it is extended to include the value if the window has one more or one fewer.
    `tail_index` is the result of `hill_tail_index` for single steps, if available.
    """
    fit = fit_ratio(times, work, steps_per_bin)
    half_width = fit.half_width(LEVEL)
    value = float(np.sum(times)) / fit.total_work
    return JobInterval(
        value=value,
        low=min(fit.value - half_width, value),
        high=max(fit.value + half_width, value),
        level=LEVEL,
        method=METHOD_WITHIN_PERIODIC if fit.periods_bins else METHOD_WITHIN,
        df=fit.noise.df,
        correlation_steps=correlation_in_steps(fit.noise.correlation, steps_per_bin),
        approximate=_doubts(fit, steps_per_bin, float(np.mean(times)), tail_index),
    )


def concerns_tail(reason: str) -> bool:
    """Return whether a doubt about one job concerns the tail of its step times, which also affects its mean."""
    return reason.startswith((HEAVY_TAIL, RARE_STEPS))


def across_jobs(means: Sequence[float], level: float = LEVEL) -> JobsInterval:
    """Return the CI of the mean over jobs from the mean of each (Student t).

    One job has no CI, because it does not show the spread between jobs. With two jobs the CI has one degree of freedom,
    is seven times as wide as with five, and relies on a normal distribution that cannot be checked.
    """
    n = len(means)
    if n == 0:
        raise ValueError("no jobs: give the mean of at least one")
    value = math.fsum(means) / n
    if n == 1:
        reason = "one job: the spread between jobs is unknown; run at least three"
        return JobsInterval(value, None, None, level, METHOD_ACROSS, None, 1, None, (reason,))
    deviation = math.sqrt(math.fsum((mean - value) ** 2 for mean in means) / (n - 1))
    half_width = student_t(level, float(n - 1)) * deviation / math.sqrt(n)
    doubts = ("two jobs: the CI has one degree of freedom; run at least three",)
    return JobsInterval(
        value=value,
        low=value - half_width,
        high=value + half_width,
        level=level,
        method=METHOD_ACROSS,
        df=float(n - 1),
        jobs=n,
        spread=deviation / abs(value) if value else None,
        approximate=doubts if n == 2 else (),
        at_most=value + student_t(2 * level - 1, float(n - 1)) * deviation / math.sqrt(n),
    )


def two_groups(values: Sequence[float]) -> int | None:
    """Return how many of the smallest values are a group of their own; None if the values do not form two groups.

    The gap between the groups must be far larger than either group; the fewer values, the larger, because two of three
    values are often close by chance. Normal values form groups in about 5 % of cases.
    """
    logs = sorted(math.log(value) for value in values)
    if len(logs) < 3:
        return None
    gaps = [high - low for low, high in pairwise(logs)]
    at = gaps.index(max(gaps)) + 1
    within = max(logs[at - 1] - logs[0], logs[-1] - logs[at])
    return at if gaps[at - 1] > max(LEAST_GAP, GAP_FACTOR * within / (len(logs) - 2)) else None


def hill_tail_index(times: Iterable[Floats], threshold: float, center: float = 0.0) -> float | None:
    """Return Hill's estimate of the tail index from the step times above `threshold`; None if there are too few.

    P(step - center > x) falls like x to the power of minus the index. At 2 or below the variance is infinite, and a CI
    of the mean has no meaning. Use the median as `center` and the `TAIL_QUANTILE` quantile as `threshold`: measured
    from zero, a heavy tail on top of a constant looks light (B. Hill, Ann. Stat. 3, 1975).
    """
    if threshold <= center:
        return None
    count, logs = 0, 0.0
    for chunk in times:
        above = chunk[chunk > threshold]
        count += above.size
        logs += float(np.sum(np.log((above - center) / (threshold - center))))
    return count / logs if count >= MIN_EXCEEDANCES and logs > 0 else None


def _doubts(fit: Fit, steps_per_bin: int, mean_bin_time: float, tail_index: float | None) -> tuple[str, ...]:
    doubts = []
    steps = len(fit.residuals) * steps_per_bin
    if steps < MIN_STEPS:
        doubts.append(f"{steps} steady steps; coverage is verified from {MIN_STEPS} steps")
    correlation_steps = correlation_in_steps(fit.noise.correlation, steps_per_bin)
    if correlation_steps > CORRELATION_LIMIT_STEPS and fit.noise.correlation > CORRELATION_LIMIT_BINS:
        doubts.append(
            f"autocorrelation over about {correlation_steps:.0f} steps; coverage is verified for up to 9 steps"
        )
    if fit.periods_bins:
        tail_index = None  # it includes the recurring steps
    if (tail := _heavy_tail(fit.residuals, steps_per_bin, mean_bin_time, tail_index)) is not None:
        doubts.append(tail)
    return tuple(doubts)


def _heavy_tail(residuals: Floats, steps_per_bin: int, mean_bin_time: float, tail_index: float | None) -> str | None:
    square = float(np.mean(residuals**2))
    if square == 0.0:
        return None
    # Cumulants add over the steps of a bin, which gives the values of single steps.
    skewness = float(np.mean(residuals**3)) / square**1.5 * math.sqrt(steps_per_bin)
    cv = math.sqrt(steps_per_bin * square) / abs(mean_bin_time) if mean_bin_time else math.inf
    limit = TAIL_LIMIT_CALM if cv < CALM_CV else TAIL_LIMIT
    if tail_index is not None and tail_index < limit and skewness > TAIL_SKEWNESS:
        return f"{HEAVY_TAIL} (index {tail_index:.1f}): their variance may be infinite"
    if skewness > SKEWNESS_LIMIT:
        return f"{RARE_STEPS} (skewness {skewness:.0f}): too few to estimate their frequency"
    return None
