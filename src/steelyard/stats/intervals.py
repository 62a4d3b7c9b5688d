"""Knows intervals of a mean inside one job and across jobs, and when to doubt them; must not know records or files."""

from __future__ import annotations

import math
from dataclasses import dataclass
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

# Coverage was checked from this many steps on: 93.4 to 95.8 % at 900, over 2,000 jobs of each kind of noise. A run
# measures 1,000, so that a few slow first steps may be cut off. Below, AR(1) 0.8 leaves too little information.
MIN_STEPS = 900
# AR(1) 0.8, the most correlated noise that was checked, has 9 steps, and 0.95 has 39. The estimate is within
# a factor of two at 1,000 steps, so a limit between them on a log scale tells them apart.
CORRELATION_LIMIT_STEPS = 17.0
# In a series folded so far that one bin outlasts the correlation, the rest is noise of the estimate.
CORRELATION_LIMIT_BINS = 1.5

HEAVY_TAIL = "step times have a heavy tail"
RARE_STEPS = "rare long steps carry the variance"

MIN_EXCEEDANCES = 10
TAIL_QUANTILE = 0.97
"""Share of the step times below the threshold that `hill_tail_index` wants."""
# Measured from the median over the 97th percentile, lognormal sigma 1 has 2.3 and Pareto 2.1 has 1.7; the limit
# takes 2 % of either for the other at 6,000 steps. Calm series (coefficient of variation under a half) have 3 and more.
TAIL_LIMIT = 2.0
TAIL_LIMIT_CALM = 2.6
CALM_CV = 0.5
# A tail is called heavy only in a skewed series: small recurring long steps bend the Hill estimate as well, but
# give a skewness of 3 at most before they are found as recurring.
TAIL_SKEWNESS = 4.0
# For a few isolated long steps, which a tail index does not see, and where there is no index. Lognormal sigma 1
# stays under this skewness in 98 % of series of 20,000 steps, Pareto 2.1 above it in 95 %.
SKEWNESS_LIMIT = 10.5


@dataclass(frozen=True)
class JobInterval:
    """Mean time per unit of work in one job, with its interval: it speaks for this job only."""

    value: float
    low: float
    high: float
    level: float
    method: str
    df: float
    correlation_steps: float
    """How many correlated steps tell as much as one independent step."""
    approximate: tuple[str, ...]
    """Why the interval may not cover at its level; empty where that was checked."""


@dataclass(frozen=True)
class JobsInterval:
    """Mean over jobs, with the interval of the mean of all jobs that could have been launched."""

    value: float
    low: float | None
    high: float | None
    level: float
    method: str
    df: float | None
    jobs: int
    spread: float | None
    """Standard deviation from job to job, as a share of the value."""
    approximate: tuple[str, ...]
    """Why there is no interval, or why it may not cover at its level."""


def within_job(times: Floats, work: Floats, *, steps_per_bin: int = 1, tail_index: float | None = None) -> JobInterval:
    """Interval of the mean time per unit of work from the steady steps of one job.

    `times` and `work` are sums over bins of `steps_per_bin` steps each, in order; the value is total time over
    total work. The interval is that of the long run, in which long steps that recur count as often as they recur
    (`estimate.mean.fit_ratio`); it is stretched to the value where the window caught one more or one fewer.
    `tail_index` is what `hill_tail_index` says of the single steps, where they are at hand.
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
    """Whether a doubt about one job is one about the tail of its step times, which reaches its mean as well."""
    return reason.startswith((HEAVY_TAIL, RARE_STEPS))


def across_jobs(means: Sequence[float], level: float = LEVEL) -> JobsInterval:
    """Interval of the mean over jobs from the mean of each: Student t, because jobs are few.

    One job shows no spread between jobs, so it has no interval. Two have one, right if jobs vary normally, but
    with one degree of freedom it is seven times as wide as from five, and nothing can check the assumption.
    """
    n = len(means)
    if n == 0:
        raise ValueError("no jobs: give the mean of at least one")
    value = math.fsum(means) / n
    if n == 1:
        reason = "one job: the spread from job to job is unknown, launch it at least three times"
        return JobsInterval(value, None, None, level, METHOD_ACROSS, None, 1, None, (reason,))
    deviation = math.sqrt(math.fsum((mean - value) ** 2 for mean in means) / (n - 1))
    half_width = student_t(level, float(n - 1)) * deviation / math.sqrt(n)
    doubts = ("two jobs: the interval has one degree of freedom and rests on jobs varying normally",)
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
    )


def hill_tail_index(times: Iterable[Floats], threshold: float, center: float = 0.0) -> float | None:
    """Hill's estimate of the tail index from the step times above `threshold`, or None where there are too few.

    P(step - center > x) falls like x to the minus index: at 2 and below the variance, and with it every
    interval of a mean, has no meaning. Give the median as `center` and the `TAIL_QUANTILE` quantile as
    `threshold`: measured from zero, a heavy tail on top of a constant looks light (B. Hill, Ann. Stat. 3, 1975).
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
        doubts.append(f"{steps} steady steps: intervals are checked from {MIN_STEPS} on")
    correlation_steps = correlation_in_steps(fit.noise.correlation, steps_per_bin)
    if correlation_steps > CORRELATION_LIMIT_STEPS and fit.noise.correlation > CORRELATION_LIMIT_BINS:
        doubts.append(f"steps stay correlated over about {correlation_steps:.0f} steps: intervals are checked up to 9")
    if fit.periods_bins:
        tail_index = None  # the recurring steps were in it
    if (tail := _heavy_tail(fit.residuals, steps_per_bin, mean_bin_time, tail_index)) is not None:
        doubts.append(tail)
    return tuple(doubts)


def _heavy_tail(residuals: Floats, steps_per_bin: int, mean_bin_time: float, tail_index: float | None) -> str | None:
    square = float(np.mean(residuals**2))
    if square == 0.0:
        return None
    # Second and third cumulants add over the steps of a bin: that gives the values of single steps.
    skewness = float(np.mean(residuals**3)) / square**1.5 * math.sqrt(steps_per_bin)
    cv = math.sqrt(steps_per_bin * square) / abs(mean_bin_time) if mean_bin_time else math.inf
    limit = TAIL_LIMIT_CALM if cv < CALM_CV else TAIL_LIMIT
    if tail_index is not None and tail_index < limit and skewness > TAIL_SKEWNESS:
        return f"{HEAVY_TAIL} (index {tail_index:.1f}): their variance may not exist"
    if skewness > SKEWNESS_LIMIT:
        return f"{RARE_STEPS} (skewness {skewness:.0f}): too few to tell how many there are"
    return None
