"""Ratio of the mean times of two groups of jobs, with its CI, and what noise the CI cannot show.

The CI comes from the spread between jobs, so noise within a job is in it. Three things are not, and widen it:

- Trend: all jobs of a side get slower (or faster) during each run, so the mean depends on where the run was stopped.
- Order: the jobs of one side ran before those of the other on the same node, which may have changed in between.
- Nodes: jobs on one node share what is peculiar to the node. With two nodes or more on each side the node is the unit.

benchmarks/figures/usable.py and order.py show the coverage.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from steelyard.estimate.student import student_t

if TYPE_CHECKING:
    from collections.abc import Sequence

ROUNDING = 1e-9
"""Times that differ by less than this share are equal: sums in floating point differ as much."""
MIN_JOBS = 3
MIN_NODES = 2
"""Least number of nodes on each side for the node to be the unit."""
DRIFT = 0.05
"""Default change of a node between two groups of jobs that ran one after the other."""
TREND_LEVEL = 0.99
POOLED_LEVEL = 0.998
"""Level of a second test of a trend, with the variance of both sides: three jobs show a step of 3 % in 99.8 % of cases
with it, in 98.4 % without. It is strict, because the sides may differ in noise."""
TREND_LIMIT = 0.015
"""A shown trend above this gives no ratio: widening the CI by it would hide that the figure depends on the length of
the job. Drift of 2 % over a job (1.3 % between its thirds) is below, a step of 3 % above."""
MIN_TREND = 0.002
"""A smaller trend does not matter: repeats of a job differ by more."""

Verdict = Literal["faster", "slower", "equal within margin", "no difference shown", "too few jobs"]
Answer = Literal["ratio", "bound", "none"]
"""ratio: a value with its CI; bound: only the end of the CI that is nearer to 1 counts; none: not even that."""
Unit = Literal["job", "node", "node, paired"]


@dataclass(frozen=True)
class JobTime:
    """The mean time of one job, and where and when it ran."""

    time: float
    node: str = ""
    start_s: float | None = None
    end_s: float | None = None
    trend: float | None = None
    """Change of the log step time from the first third of the job to the last."""


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
    answer: Answer = "ratio"
    unit: Unit = "job"
    trends: tuple[float | None, float | None] = (None, None)
    """Shown trends of a and b; the CI is wider by them. None: no trend shown."""
    drift: float | None = None
    """Change of the node that the CI allows for, because the sides ran one after the other. None: they did not."""

    @property
    def percent_faster(self) -> float:
        """Return by how many percent `b` is faster than `a`: it does that much more work in the same time.

        This is the only meaning of "x % faster" in this package. The base is always `a`; negative means slower. Half
        the time is 100 % faster; twice the time is -50 %.
        """
        return 100 * (1 / self.value - 1)


def compare_means(a: Sequence[float], b: Sequence[float], level: float = 0.95) -> TimeRatio:
    """Compare jobs of which only the mean times are known; see `compare_jobs`."""
    return compare_jobs([JobTime(time) for time in a], [JobTime(time) for time in b], level)


def compare_jobs(
    a: Sequence[JobTime],
    b: Sequence[JobTime],
    level: float = 0.95,
    *,
    margin: float | None = None,
    drift: float = DRIFT,
    common: float = 0.0,
) -> TimeRatio:
    """Return the ratio of the mean times of jobs `b` and `a` (the base), with the CI of its logarithm.

    Times are averaged arithmetically, because the time of many jobs is their sum. The variance of log(mean) is that of
    the mean divided by its square (delta method); degrees of freedom after B. Welch, Biometrika 34, 1947. On the log
    scale the verdict does not depend on which side is the base. With a `margin` (0.03: 3 %) the sides are equal if two
    one-sided tests at the level show that the ratio is between 1 / (1 + margin) and 1 + margin. `common` is a
    share by which all jobs may be wrong, such as the error of a sensor.
    """
    _require_times(a, b)
    by_node = _unit(a, b)
    times_a, times_b = (_node_means(side) if by_node != "job" else [job.time for job in side] for side in (a, b))
    paired = by_node == "node, paired"
    logs = [math.log(y / x) for x, y in zip(times_a, times_b, strict=True)] if paired else []
    # On the same nodes each node counts once, as in the standard error.
    value = math.exp(_mean(logs)) if paired else _mean(times_b) / _mean(times_a)
    if min(len(a), len(b)) < MIN_JOBS:
        return TimeRatio(value, None, None, level, None, "too few jobs", len(a), len(b))
    error, df = _paired(logs) if paired else _welch(times_a, times_b)
    trends = shown_trend(a, b), shown_trend(b, a)
    allowed = drift if one_after_the_other(a, b) else None
    extra = (
        math.fsum(abs(trend) for trend in trends if trend is not None) + math.log1p(allowed or 0.0) + math.log1p(common)
    )
    half_width = student_t(level, df) * error + extra
    low, high = value * math.exp(-half_width), value * math.exp(half_width)
    verdict: Verdict = "no difference shown"
    if high < 1 - ROUNDING:
        verdict = "faster"
    elif low > 1 + ROUNDING:
        verdict = "slower"
    answer: Answer = "ratio"
    if any(map(too_large, trends)):
        answer = "none" if verdict == "no difference shown" else "bound"
    elif allowed and verdict != "no difference shown":
        answer = "bound"
    if margin is not None and answer == "ratio":
        # Two one-sided tests: the CI that leaves 1 - level on each side must be inside the margin.
        reach = abs(math.log(value)) + student_t(2 * level - 1, df) * error + extra
        verdict = "equal within margin" if reach <= math.log1p(margin) else verdict
    return TimeRatio(value, low, high, level, df, verdict, len(a), len(b), answer, by_node, trends, allowed)


def shown_trend(jobs: Sequence[JobTime], others: Sequence[JobTime] = ()) -> float | None:
    """Return the mean trend of the jobs if Student's t over jobs shows one, at the 1 % level.

    With `others`, the jobs of another side, a second test uses the variance of both sides.
    """
    trends = _trends(jobs)
    if len(trends) < MIN_JOBS:
        return None
    mean, squares = _mean(trends), _squares(trends)
    tests = [(TREND_LEVEL, squares, len(trends) - 1.0)]
    if len(there := _trends(others)) >= MIN_JOBS:
        tests.append((POOLED_LEVEL, squares + _squares(there), len(trends) + len(there) - 2.0))
    # The variance is that of one job, whatever the number of jobs on each side.
    shown = any(abs(mean) > student_t(level, df) * math.sqrt(total / df / len(trends)) for level, total, df in tests)
    return mean if shown and abs(mean) > MIN_TREND else None


def too_large(trend: float | None) -> bool:
    """Return whether a shown trend leaves no ratio, only a bound."""
    return trend is not None and abs(trend) > TREND_LIMIT


def _trends(jobs: Sequence[JobTime]) -> list[float]:
    return [job.trend for job in jobs if job.trend is not None]


def _squares(values: Sequence[float]) -> float:
    """Return the sum of squared deviations from the mean."""
    mean = _mean(values)
    return math.fsum((value - mean) ** 2 for value in values)


def one_after_the_other(a: Sequence[JobTime], b: Sequence[JobTime]) -> bool:
    """Return whether the sides share nodes, and on each of them one side had ended before the other began."""
    shared = {job.node for job in a} & {job.node for job in b} - {""}
    return bool(shared) and all(
        apart([job for job in a if job.node == node], [job for job in b if job.node == node]) for node in shared
    )


def apart(a: Sequence[JobTime], b: Sequence[JobTime]) -> bool:
    """Return whether all jobs of one side ended before the first of the other began; False if that is unknown."""
    spans = [[(job.start_s, job.end_s) for job in side] for side in (a, b)]
    if any(start is None or end is None for side in spans for start, end in side):
        return False
    (first_a, last_a), (first_b, last_b) = (
        (min(start or 0.0 for start, _ in side), max(end or 0.0 for _, end in side)) for side in spans
    )
    return last_a <= first_b or last_b <= first_a


def _require_times(a: Sequence[JobTime], b: Sequence[JobTime]) -> None:
    bad = [f"{name} {job.time}" for name, side in (("a", a), ("b", b)) for job in side if not 0 < job.time < math.inf]
    if bad:
        raise ValueError(f"times must be positive and finite, got {', '.join(bad)}")
    if not a or not b:
        raise ValueError(f"{len(a)} jobs in a and {len(b)} in b: need at least one on each side")


def _unit(a: Sequence[JobTime], b: Sequence[JobTime]) -> Unit:
    """Return what varies independently: nodes if both sides have several, paired if they are the same ones."""
    nodes_a, nodes_b = ({job.node for job in side} for side in (a, b))
    if "" in nodes_a | nodes_b or min(len(nodes_a), len(nodes_b)) < MIN_NODES:
        return "job"
    return "node, paired" if nodes_a == nodes_b else "node"


def _node_means(jobs: Sequence[JobTime]) -> list[float]:
    """Return the mean time on each node, in the order of the nodes' names."""
    return [_mean([job.time for job in jobs if job.node == node]) for node in sorted({job.node for job in jobs})]


def _paired(logs: Sequence[float]) -> tuple[float, float]:
    """Return the standard error of the mean log ratio over nodes, and its degrees of freedom."""
    df = len(logs) - 1.0
    return math.sqrt(_squares(logs) / df / len(logs)), df


def _welch(a: Sequence[float], b: Sequence[float]) -> tuple[float, float]:
    """Return the standard error of the logarithm of the ratio, and its degrees of freedom."""
    share_a, share_b = _log_variance(a), _log_variance(b)
    variance = share_a + share_b
    if variance == 0.0:
        return 0.0, float(len(a) + len(b) - 2)
    return math.sqrt(variance), variance**2 / (share_a**2 / (len(a) - 1) + share_b**2 / (len(b) - 1))


def _log_variance(times: Sequence[float]) -> float:
    """Return the variance of the logarithm of the mean."""
    n, mean = len(times), _mean(times)
    return math.fsum((time / mean - 1) ** 2 for time in times) / (n - 1) / n


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
