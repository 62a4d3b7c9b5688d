"""Work over time with its interval, for samples and for tokens."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from steelyard.contracts.record import Interval, Quantity
from steelyard.stats.intervals import TAIL_QUANTILE, hill_tail_index, within_job

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from steelyard.contracts.record import Scope, Window
    from steelyard.derive.observations import StepSamples, Trace, WindowSums
    from steelyard.stats.intervals import JobInterval

LEVELS = (TAIL_QUANTILE, 0.5)
"""Quantiles of the step times that an interval needs."""


def job_interval(samples: StepSamples, trace: Trace, start: int, stop: int, quantiles: Sequence[float]) -> JobInterval:
    """Return the mean time per unit of work in the steps `start` to `stop`; `quantiles`: those of LEVELS."""
    bins = slice(start // trace.steps_per_bin, stop // trace.steps_per_bin)
    return within_job(
        trace.times[bins],
        trace.work[bins],
        steps_per_bin=trace.steps_per_bin,
        tail_index=hill_tail_index(samples.step_times(start, stop), *quantiles),
    )


def rank_seconds(sums: WindowSums, *, together: bool) -> NDArray[np.float64]:
    """Return the time of each rank in a window.

    Ranks that wait for each other have one pace. One that ends a block of steps early has not been faster.
    """
    whole_s = sums.column("step_s")
    return np.full_like(whole_s, whole_s.max()) if together else whole_s


def rate_quantity(rate: float, unit: str, scope: Scope, window: Window, job: JobInterval) -> Quantity:
    """Return work per second. The interval is that of the time per unit of work, inverted."""
    interval = None
    if job.low > 0 and math.isfinite(job.high):
        interval = interval_of(rate * job.value / job.high, rate * job.value / job.low, job)
    return Quantity(value=rate, unit=unit, scope=scope, window=window, aggregation="work over time", interval=interval)


def interval_of(low: float, high: float, job: JobInterval) -> Interval:
    """Return an interval with the method and the doubts of the steps of one job."""
    return Interval(
        low=low, high=high, level=job.level, method=job.method, covers="this job", approximate=job.approximate
    )
