"""Find changes in a figure that was measured on several occasions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

import numpy as np

from steelyard.estimate.enough import MIN_OCCASIONS
from steelyard.estimate.student import student_t

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

# The whole history is tested again at every new occasion. At 1 % per test, a constant history of 20 occasions gives a
# false alarm at some time in one of eight cases.
ALPHA = 0.01
MIN_VALUES = 6
MAX_VALUES = 10_000
MAX_CHANGES = 10
# Smaller changes are rounding.
MIN_CHANGE = 1e-4
DRAWS = 4999
LEAST_P = 1 / (1 + DRAWS)
# For longer histories the null distribution hardly depends on the length, so lengths share draws on a grid.
EXACT_LENGTH = 60
LENGTH_STEP = 1.05
# A temporary change (dip) has the same level before and after, so it is tested separately, with a part of ALPHA and
# only in histories where it can be distinguished from a step.
DIP_SHARE = 0.25
MIN_DIP_OCCASIONS = 5
MAX_DIP_OCCASIONS = 100

Unit = Literal["occasions", "jobs"]


@dataclass(frozen=True)
class Change:
    """A step in a history."""

    index: int
    """The first occasion after the step."""
    earliest: int
    """`earliest` to `latest` is the confidence range of the index."""
    latest: int
    before: float
    """`before` and `after` are geometric means, back to the previous change and up to the next."""
    after: float
    p_value: float
    unit: Unit
    """The independent unit. `jobs` assumes that days differ no more than the jobs of one day."""

    @property
    def ratio(self) -> float:
        """Return `after` divided by `before`."""
        return self.after / self.before


def changes(occasions: Sequence[Sequence[float]]) -> list[Change]:
    """Return the changes in a history, in order. Each occasion is a sequence of job values, all above 0.

    For every boundary, t is computed between the values before and after it. The largest t is compared with the
    largest t of simulated normal noise, which corrects for testing every boundary. If no step is found, a temporary
    change (dip) is searched for in the same way. The changes divide the history, and each part is searched again. A
    history without a change gives a false alarm with probability ALPHA. Logarithms are used, so a step is a factor.
    """
    if bad := [value for jobs in occasions for value in jobs if not 0 < value < math.inf]:
        raise ValueError(f"values must be positive and finite, got {bad[0]}")
    logs = [np.log(np.asarray(jobs, dtype=np.float64)) for jobs in occasions if len(jobs)]
    unit: Unit = "occasions" if len(logs) >= MIN_OCCASIONS else "jobs"
    if unit == "occasions" or sum(entry.size for entry in logs) > MAX_VALUES:
        logs, unit = [np.array([entry.mean()]) for entry in logs], "occasions"
    boundaries = sorted(_search(logs, 0, MAX_CHANGES), key=lambda entry: entry[0])
    bounds = [0, *(entry[0] for entry in boundaries), len(logs)]
    levels = [math.exp(float(np.concatenate(logs[a:b]).mean())) for a, b in pairwise(bounds)] if boundaries else []
    return [
        Change(index, earliest, latest, levels[number], levels[number + 1], p_value, unit)
        for number, (index, earliest, latest, p_value) in enumerate(boundaries)
    ]


_Boundary = tuple[int, int, int, float]


def _search(logs: Sequence[Floats], start: int, most: int) -> list[_Boundary]:
    """Find boundaries by binary segmentation; return index, earliest, latest and p-value of each."""
    if len(logs) < 2 or sum(entry.size for entry in logs) < MIN_VALUES or most < 1:
        return []
    dips = MIN_DIP_OCCASIONS <= len(logs) <= MAX_DIP_OCCASIONS
    boundaries = _step(logs, ALPHA * (1 - DIP_SHARE) if dips else ALPHA)
    if not boundaries and dips:
        boundaries = _dip(logs, ALPHA * DIP_SHARE)
    if not boundaries:
        return []
    bounds = [0, *(entry[0] for entry in boundaries), len(logs)]
    parts = [_search(logs[a:b], start + a, (most - len(boundaries)) // 2) for a, b in pairwise(bounds)]
    here = [(start + index, start + first, start + last, p) for index, first, last, p in boundaries]
    return [*here, *(entry for part in parts for entry in part)]


def _step(logs: Sequence[Floats], alpha: float) -> list[_Boundary]:
    """Return the boundary with the largest t if it is significant."""
    cuts, values = np.cumsum([entry.size for entry in logs])[:-1], np.concatenate(logs)
    t = _largest(values[None, :], cuts)[0]
    at = int(np.argmax(t))
    if abs(float(values[cuts[at] :].mean() - values[: cuts[at]].mean())) < MIN_CHANGE:
        return []
    p_value = _p_value(
        float(t[at]), len(values), len(cuts), alpha, lambda: _null(*_shared(len(values), cuts), dips=False)
    )
    if p_value > alpha:
        return []
    near = np.flatnonzero(_log_likelihood(t, len(values)) >= _log_likelihood(t[at], len(values)) - 1.92)
    return [(at + 1, int(near[0]) + 1, int(near[-1]) + 1, p_value)]


def _dip(logs: Sequence[Floats], alpha: float) -> list[_Boundary]:
    """Return the two boundaries of a temporary change if it is significant (Olshen and others, 2004)."""
    cuts, values = np.cumsum([entry.size for entry in logs])[:-1], np.concatenate(logs)
    begins, ends = np.triu_indices(len(cuts), 1)
    t = _inside(values[None, :], cuts[begins], cuts[ends])[0]
    at = int(np.argmax(t))
    first, last = int(begins[at]), int(ends[at])
    inside = np.zeros(len(values), dtype=bool)
    inside[cuts[first] : cuts[last]] = True
    if abs(float(values[inside].mean() - values[~inside].mean())) < MIN_CHANGE:
        return []
    p_value = _p_value(
        float(t[at]), len(values), len(begins), alpha, lambda: _null(*_shared(len(values), cuts), dips=True)
    )
    if p_value > alpha:
        return []
    return [(first + 1, first + 1, first + 1, p_value), (last + 1, last + 1, last + 1, p_value)]


def _p_value(t: float, count: int, looks: int, alpha: float, null: Callable[[], Floats]) -> float:
    """Return the probability of such a large t in any of `looks` boundaries under noise alone.

    It is at least that of one look, and at most `looks` times that (Bonferroni). Simulate only if these bounds do not
    decide.
    """
    free = float(count - 2)
    if t < student_t(1 - alpha, free):
        return 1.0
    if t > student_t(1 - LEAST_P / looks, free):
        return LEAST_P
    return (1 + int(np.sum(null() >= t))) / (1 + DRAWS)


def _shared(count: int, cuts: NDArray[np.int64]) -> tuple[int, tuple[int, ...]]:
    """Return the length and cuts to simulate; long histories of single values use the next length on a grid."""
    if count <= EXACT_LENGTH or len(cuts) != count - 1:
        return count, tuple(cuts.tolist())
    steps = math.ceil(math.log(count / EXACT_LENGTH) / math.log(LENGTH_STEP) - 1e-9)
    longer = math.ceil(EXACT_LENGTH * LENGTH_STEP**steps)
    return longer, tuple(range(1, longer))


def _inside(rows: Floats, begins: NDArray[np.int64], ends: NDArray[np.int64]) -> Floats:
    """Return |t| between the values inside and outside of each stretch, for each row."""
    count = rows.shape[1]
    centred = rows - rows.mean(axis=1, keepdims=True)
    sums = np.cumsum(centred, axis=1)
    width = ends - begins
    between = (sums[:, ends - 1] - sums[:, begins - 1]) ** 2 * count / (width * (count - width))
    return _as_t(between, np.sum(centred**2, axis=1, keepdims=True), count)


def _largest(rows: Floats, cuts: NDArray[np.int64]) -> Floats:
    """Return |t| between the two sides of each cut, for each row."""
    count = rows.shape[1]
    centred = rows - rows.mean(axis=1, keepdims=True)
    sums = np.cumsum(centred, axis=1)[:, cuts - 1]
    total = np.sum(centred**2, axis=1, keepdims=True)
    return _as_t(sums**2 * count / (cuts * (count - cuts)), total, count)


def _as_t(between: Floats, total: Floats, count: int) -> Floats:
    # Rounding may leave a tiny value instead of zero.
    within = np.where(total - between < 1e-12 * total, 1e-300, total - between)
    t: Floats = np.sqrt(between * (count - 2) / np.maximum(within, 1e-300))
    return t


@lru_cache(maxsize=512)
def _null(count: int, cuts: tuple[int, ...], *, dips: bool) -> Floats:
    """Simulate the largest |t| of normal noise over all boundaries, with a fixed seed.

    With `dips`, the largest over all stretches between two boundaries.
    """
    where = begins = np.array(cuts)
    if dips:
        begins, ends = (where[side] for side in np.triu_indices(len(cuts), 1))
    looks = len(begins)
    rng = np.random.default_rng([count, looks])
    # In batches, to limit memory for long histories.
    size = max(1, 400_000 // max(count, looks))
    parts = []
    for done in range(0, DRAWS, size):
        rows = rng.standard_normal((min(size, DRAWS - done), count))
        t = _inside(rows, begins, ends) if dips else _largest(rows, where)
        parts.append(t.max(axis=1))
    return np.concatenate(parts)


def _log_likelihood(t: Floats, count: int) -> Floats:
    """Return the log-likelihood of a step with this t under normal noise, up to a constant."""
    likelihood: Floats = 0.5 * count * np.log1p(np.minimum(t, 1e100) ** 2 / (count - 2))
    return likelihood
