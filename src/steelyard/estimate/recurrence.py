"""Detect long steps that recur periodically, such as checkpoints."""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

# False alarm rate: one in a thousand series of independent steps.
PERIOD_ERROR = 1e-3
# A phase of a known period counts as long above this many standard deviations.
PHASE_SIGMAS = 4.0
MIN_RECURRENCES = 4
MAX_PERIODS = 3
# The cost of the search is quadratic; one full fold is enough to detect a period.
PERIOD_SEARCH_BINS = 4096
PERIODS_TESTED = 16
SHORT_PERIODS = range(2, 9)
LONG_SHARE = 0.04


def recurrence(residuals: Floats) -> int | None:
    """Return the period of recurring long steps in bins, or None.

    The most likely periods are tested by summing the bins that are one period apart (epoch folding). Normal scores are
    used instead of times, so that a single very long step does not look like a period.
    """
    scores = _normal_scores(residuals[:PERIOD_SEARCH_BINS])
    if scores is None or (longest := len(scores) // MIN_RECURRENCES) < 2:
        return None
    phases_searched = longest * longest / 2
    clearest, period = -NormalDist().inv_cdf(PERIOD_ERROR / phases_searched), None
    for candidate in _likely_periods(scores, longest):
        rounds = len(scores) // candidate
        sums = scores[: rounds * candidate].reshape(rounds, candidate).sum(axis=0)
        sigmas = float(sums.max()) / math.sqrt(rounds)
        if sigmas > clearest:
            clearest, period = sigmas, candidate
    return period


def _likely_periods(scores: Floats, longest: int) -> list[int]:
    """Return the periods in which one phase has the most of the longest bins, relative to chance."""
    limit = float(np.quantile(scores, 1 - LONG_SHARE))
    marked = np.flatnonzero(scores > limit)
    if len(marked) < MIN_RECURRENCES:  # ties at the top
        marked = np.flatnonzero(scores >= limit)
    periods = np.arange(2, longest + 1)
    starts = np.cumsum(periods) - periods
    hits = np.bincount((starts[:, None] + marked % periods[:, None]).ravel(), minlength=int(np.sum(periods)))
    most = np.maximum.reduceat(hits, starts)
    expected = len(marked) / periods
    clearness = (most - expected) / np.sqrt(expected)
    likely: list[int] = periods[np.argsort(-clearness, kind="stable")[:PERIODS_TESTED]].tolist()
    # Short periods cannot be ranked, because chance gives many hits, so they are always tested.
    return [period for period in SHORT_PERIODS if period <= longest] + likely


def recurring_part(residuals: Floats, period: int) -> Floats:
    """Return the mean excess of the long phases for each bin; zero in all other bins."""
    phases = np.arange(len(residuals)) % period
    scores = _normal_scores(residuals[:PERIOD_SEARCH_BINS])
    if scores is None:
        return np.zeros_like(residuals)
    searched = phases[: len(scores)]
    long_phase = np.bincount(searched, scores) > PHASE_SIGMAS * np.sqrt(np.bincount(searched))
    # Scores sum to zero, so not all phases are long. Use the median: long steps of another period may remain.
    base = np.median(residuals[~long_phase[phases]])
    excess = np.where(long_phase, np.bincount(phases, residuals) / np.bincount(phases) - base, 0.0)
    part: Floats = excess[phases]
    return part


def _normal_scores(values: Floats) -> Floats | None:
    """Replace values by the normal quantiles of their ranks, with variance one; None if all are equal."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    if len(counts) < 2:
        return None
    ends = np.cumsum(counts)
    totals = np.concatenate(([0.0], np.cumsum(_normal_quantiles(len(values)))))
    scores: Floats = ((totals[ends] - totals[ends - counts]) / counts)[place]
    scores /= float(np.std(scores))
    return scores


@lru_cache(maxsize=8)
def _normal_quantiles(count: int) -> Floats:
    normal = NormalDist()
    quantiles = np.array([normal.inv_cdf((rank + 0.5) / count) for rank in range(count)])
    quantiles.flags.writeable = False  # callers share it
    return quantiles
