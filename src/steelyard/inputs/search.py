"""The search for the largest batch that fits: which batches are tried, and which of them next. Runs nothing.

Memory grows with the batch, so what fits lies below what does not. The batch is doubled until it does not fit, then
the gap is halved: some log2 tries instead of one for every candidate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from steelyard.contracts.base import Bound, Contract

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from steelyard.contracts.spec import RunSpec

Batch = Annotated[int, Bound(ge=1, le=10**9)]
Verdict = Literal["fits", "out of memory", "failed"]
"""Failed: it ended for another reason than memory, which says nothing of what fits."""


@dataclass(frozen=True, kw_only=True)
class Search(Contract):
    """The table [search] of a study: the largest batch that fits is sought, for each combination of the sweep."""

    first: Batch = 1
    last: Batch = 65_536
    """No larger batch is tried."""
    per_octave: Annotated[int, Bound(ge=1, le=64)] = 8
    """Candidates from one batch to its double; below this number every batch is one."""

    def __post_init__(self) -> None:
        if self.first > self.last:
            raise ValueError(f"first: {self.first} is above last, {self.last}; valid: at most {self.last}")

    @property
    def batches(self) -> tuple[int, ...]:
        """The candidates, rising: first and last, and what lies on the grid between them."""
        grid = set(range(1, self.per_octave))
        step = 1
        while step * self.per_octave <= self.last:
            grid.update(step * steps for steps in range(self.per_octave, 2 * self.per_octave))
            step *= 2
        return tuple(sorted({self.first, self.last} | {batch for batch in grid if self.first < batch < self.last}))


@dataclass(frozen=True)
class SearchGroup:
    """The candidates of one search: runs that differ in the batch alone, which rises."""

    runs: tuple[RunSpec, ...]

    @property
    def most_tries(self) -> int:
        """How many of them are made at most: doublings, and halvings of the last gap."""
        batches = [spec.batch for spec in self.runs]
        doublings = math.ceil(math.log2(batches[-1] / batches[0])) + 1
        gaps = (_doubled(batches, index) - index for index in range(len(batches)))
        return doublings + math.ceil(math.log2(max(1, *gaps)))


@dataclass(frozen=True)
class SearchState:
    """How far a search is. Indices of candidates."""

    low: int
    """The largest that is known to fit; -1: none."""
    high: int
    """The smallest above it that is known not to fit; the number of candidates: none."""
    failed: int | None = None
    """One that ended for another reason, which ends the search."""

    @property
    def over(self) -> bool:
        """Whether there is nothing more to try."""
        return self.failed is not None or self.high - self.low <= 1


def standing(group: SearchGroup, verdict_of: Callable[[RunSpec], Verdict | None]) -> SearchState:
    """What is known, from the runs that were made; None: this one was not."""
    verdicts = [verdict_of(spec) for spec in group.runs]
    low = max((index for index, verdict in enumerate(verdicts) if verdict == "fits"), default=-1)
    above = [index for index, verdict in enumerate(verdicts) if verdict == "out of memory" and index > low]
    # A failure matters only where the answer is still open.
    high = min(above, default=len(verdicts))
    open_failures = (index for index in range(low + 1, high) if verdicts[index] == "failed")
    return SearchState(low, high, next(open_failures, None))


def next_try(batches: Sequence[int], known: SearchState) -> int | None:
    """The candidate to try next; None: the search is over."""
    if known.over:
        return None
    if known.high < len(batches):
        return (known.low + known.high) // 2
    return 0 if known.low < 0 else _doubled(batches, known.low)


def remaining(group: SearchGroup, known: SearchState) -> tuple[RunSpec, ...]:
    """The candidates among which the answer still lies: what a search that was broken off goes on with."""
    return () if known.over else group.runs[known.low + 1 : known.high]


def _doubled(batches: Sequence[int], index: int) -> int:
    """The first candidate of at least twice the batch, or the last one."""
    wanted = 2 * batches[index]
    return next((later for later in range(index, len(batches)) if batches[later] >= wanted), len(batches) - 1)
