"""Mean over jobs with its confidence interval, and whether jobs form two groups. It needs only the standard library."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from steelyard.estimate.student import student_t

if TYPE_CHECKING:
    from collections.abc import Sequence

LEVEL = 0.95
METHOD_ACROSS = "Student t on job means"
HEAVY_TAIL = "step times have a heavy tail"
RARE_STEPS = "rare long steps dominate the variance"
LEAST_GAP = 0.03
GAP_FACTOR = 20.0


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
