"""Knows whether and where a figure measured again and again has changed; must not know dates, records or machines."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

import numpy as np

from steelyard.estimate.student import student_t

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

# Every new occasion is another look at the whole history: at 1 % a look, a flat history of 20 occasions raises an alarm
# at some time in one case of eight.
ALPHA = 0.01
# From so many occasions on their own scatter judges; with fewer, that of the jobs must.
MIN_OCCASIONS = 8
MIN_VALUES = 6
MAX_VALUES = 10_000
MAX_CHANGES = 10
# Less is rounding, whatever its significance.
MIN_CHANGE = 1e-4
DRAWS = 4999
LEAST_P = 1 / (1 + DRAWS)
# Above this length the chance of a large t hardly depends on it: lengths share the draws of the next one on a grid.
EXACT_LENGTH = 60
LENGTH_STEP = 1.05
# A figure that leaves its level and comes back has the same mean before and after: it is looked for apart, with a
# part of what may be risked, and where it can be told from a step.
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
    """The step lies between these: elsewhere it would fit the history much worse."""
    latest: int
    before: float
    """Geometric mean over the occasions since the last change, and after it until the next."""
    after: float
    p_value: float
    unit: Unit
    """What was taken for independent. Jobs: as if days differed no more than the jobs of one day."""

    @property
    def ratio(self) -> float:
        """After over before."""
        return self.after / self.before


def changes(occasions: Sequence[Sequence[float]]) -> list[Change]:
    """Steps in a history, in order; none is an answer. One sequence of job values (all above 0) an occasion.

    The largest t between what lies before and after a boundary, over all boundaries, is held against the same largest
    t of normal noise without a step, by simulation: that pays for having looked at every boundary. Where no step is
    found, a stretch that differs from what lies around it is looked for in the same way. What is found
    divides the history, and both parts are searched; so a history without any step is wrongly called changed with
    probability ALPHA. Values enter by their logarithms: a step is a factor.
    """
    if bad := [value for jobs in occasions for value in jobs if not 0 < value < math.inf]:
        raise ValueError(f"values must be positive and finite, but there is {bad[0]!r}")
    logs = [np.log(np.asarray(jobs, dtype=np.float64)) for jobs in occasions if len(jobs)]
    unit: Unit = "occasions" if len(logs) >= MIN_OCCASIONS else "jobs"
    if unit == "occasions" or sum(entry.size for entry in logs) > MAX_VALUES:
        logs, unit = [np.array([entry.mean()]) for entry in logs], "occasions"
    found = sorted(_search(logs, 0, MAX_CHANGES), key=lambda entry: entry[0])
    bounds = [0, *(entry[0] for entry in found), len(logs)]
    levels = [math.exp(float(np.concatenate(logs[a:b]).mean())) for a, b in pairwise(bounds)] if found else []
    return [
        Change(index, earliest, latest, levels[number], levels[number + 1], p_value, unit)
        for number, (index, earliest, latest, p_value) in enumerate(found)
    ]


_Found = tuple[int, int, int, float]


def _search(logs: Sequence[Floats], start: int, most: int) -> list[_Found]:
    """Boundaries by binary segmentation, as index, earliest, latest and p-value."""
    if len(logs) < 2 or sum(entry.size for entry in logs) < MIN_VALUES or most < 1:
        return []
    dips = MIN_DIP_OCCASIONS <= len(logs) <= MAX_DIP_OCCASIONS
    found = _step(logs, ALPHA * (1 - DIP_SHARE) if dips else ALPHA)
    if not found and dips:
        found = _dip(logs, ALPHA * DIP_SHARE)
    if not found:
        return []
    bounds = [0, *(entry[0] for entry in found), len(logs)]
    parts = [_search(logs[a:b], start + a, (most - len(found)) // 2) for a, b in pairwise(bounds)]
    here = [(start + index, start + first, start + last, p) for index, first, last, p in found]
    return [*here, *(entry for part in parts for entry in part)]


def _step(logs: Sequence[Floats], alpha: float) -> list[_Found]:
    """The boundary with the largest t, where that is no chance."""
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


def _dip(logs: Sequence[Floats], alpha: float) -> list[_Found]:
    """Two boundaries between which the figure was another, and after which it was back (Olshen and others, 2004)."""
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
    """How often noise has so large a t in any of its looks; drawn only where the bounds leave it open.

    At least as often as in one look, and at most so many times as often as there are looks.
    """
    free = float(count - 2)
    if t < student_t(1 - alpha, free):
        return 1.0
    if t > student_t(1 - LEAST_P / looks, free):
        return LEAST_P
    return (1 + int(np.sum(null() >= t))) / (1 + DRAWS)


def _shared(count: int, cuts: NDArray[np.int64]) -> tuple[int, tuple[int, ...]]:
    """The length and cuts to draw for: of long histories of single values, the next length on a grid."""
    if count <= EXACT_LENGTH or len(cuts) != count - 1:
        return count, tuple(cuts.tolist())
    steps = math.ceil(math.log(count / EXACT_LENGTH) / math.log(LENGTH_STEP) - 1e-9)
    longer = math.ceil(EXACT_LENGTH * LENGTH_STEP**steps)
    return longer, tuple(range(1, longer))


def _inside(rows: Floats, begins: NDArray[np.int64], ends: NDArray[np.int64]) -> Floats:
    """|t| between what lies inside and outside of each stretch, for each row of values."""
    count = rows.shape[1]
    centred = rows - rows.mean(axis=1, keepdims=True)
    sums = np.cumsum(centred, axis=1)
    width = ends - begins
    between = (sums[:, ends - 1] - sums[:, begins - 1]) ** 2 * count / (width * (count - width))
    return _as_t(between, np.sum(centred**2, axis=1, keepdims=True), count)


def _largest(rows: Floats, cuts: NDArray[np.int64]) -> Floats:
    """|t| between the two sides of each cut, for each row of values."""
    count = rows.shape[1]
    centred = rows - rows.mean(axis=1, keepdims=True)
    sums = np.cumsum(centred, axis=1)[:, cuts - 1]
    total = np.sum(centred**2, axis=1, keepdims=True)
    return _as_t(sums**2 * count / (cuts * (count - cuts)), total, count)


def _as_t(between: Floats, total: Floats, count: int) -> Floats:
    # Rounding may leave a little of nothing.
    within = np.where(total - between < 1e-12 * total, 1e-300, total - between)
    found: Floats = np.sqrt(between * (count - 2) / np.maximum(within, 1e-300))
    return found


@lru_cache(maxsize=512)
def _null(count: int, cuts: tuple[int, ...], *, dips: bool) -> Floats:
    """The largest |t| of normal noise over all boundaries, drawn often enough for a p-value; the same every time.

    `dips`: over all stretches between two boundaries.
    """
    where = begins = np.array(cuts)
    if dips:
        begins, ends = (where[side] for side in np.triu_indices(len(cuts), 1))
    looks = len(begins)
    rng = np.random.default_rng([count, looks])
    # In portions: a long history would need much memory at once.
    size = max(1, 400_000 // max(count, looks))
    parts = []
    for done in range(0, DRAWS, size):
        rows = rng.standard_normal((min(size, DRAWS - done), count))
        t = _inside(rows, begins, ends) if dips else _largest(rows, where)
        parts.append(t.max(axis=1))
    return np.concatenate(parts)


def _log_likelihood(t: Floats, count: int) -> Floats:
    """Of normal noise around one step, up to a constant; t grows with it."""
    found: Floats = 0.5 * count * np.log1p(np.minimum(t, 1e100) ** 2 / (count - 2))
    return found
