"""Confidence interval of a mean within one job, and reasons to doubt it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from steelyard.estimate.enough import STEPS_OF_COVERAGE
from steelyard.estimate.mean import Fit, correlation_in_steps, fit_ratio
from steelyard.stats.jobs import HEAVY_TAIL, LEVEL, RARE_STEPS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

METHOD_WITHIN = "whitened cosine weights"
METHOD_WITHIN_PERIODIC = "whitened cosine weights, whole periods of recurring long steps"

# AR(1) 0.8, the strongest autocorrelation that was verified, has 9 steps, and 0.95 has 39. The estimate is within
# a factor of two at 1,000 steps, so a limit between them on a log scale separates them.
CORRELATION_LIMIT_STEPS = 17.0
# If one bin is longer than the correlation, the remaining correlation is estimation noise.
CORRELATION_LIMIT_BINS = 1.5


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
    if steps < STEPS_OF_COVERAGE:
        doubts.append(f"{steps} steady steps; coverage is verified from {STEPS_OF_COVERAGE} steps")
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
