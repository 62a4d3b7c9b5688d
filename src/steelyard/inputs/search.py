"""The search for the largest batch that fits: the candidates, and which one to try next.

Memory grows with the batch. The batch is doubled until it does not fit, then the gap is halved: about log2 tries
instead of one for every candidate.
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
"""failed: the run ended for another reason than memory."""


@dataclass(frozen=True, kw_only=True)
class Search(Contract):
    """Search for the largest batch that fits, for each combination of the sweep."""

    first: Batch = 1
    """Smallest batch to try."""
    last: Batch = 65_536
    """Largest batch to try."""
    per_octave: Annotated[int, Bound(ge=1, le=64)] = 8
    """Candidates from one batch to its double; all batches below this number are candidates."""

    def __post_init__(self) -> None:
        if self.first > self.last:
            raise ValueError(f"first: {self.first} is above last, {self.last}; valid: at most {self.last}")

    @property
    def batches(self) -> tuple[int, ...]:
        """The candidates in rising order: first, last, and the grid between them."""
        grid = set(range(1, self.per_octave))
        step = 1
        while step * self.per_octave <= self.last:
            grid.update(step * steps for steps in range(self.per_octave, 2 * self.per_octave))
            step *= 2
        return tuple(sorted({self.first, self.last} | {batch for batch in grid if self.first < batch < self.last}))


@dataclass(frozen=True)
class SearchGroup:
    """The candidates of one search: runs that differ only in the batch, in rising order."""

    runs: tuple[RunSpec, ...]

    @property
    def most_tries(self) -> int:
        """Largest number of runs: doublings, then halvings of the last gap."""
        batches = [spec.batch for spec in self.runs]
        doublings = math.ceil(math.log2(batches[-1] / batches[0])) + 1
        gaps = (_doubled(batches, index) - index for index in range(len(batches)))
        return doublings + math.ceil(math.log2(max(1, *gaps)))


@dataclass(frozen=True)
class SearchState:
    """The state of a search, as indices of candidates."""

    low: int
    """The largest candidate known to fit; -1: none."""
    high: int
    """The smallest one above it known not to fit; the number of candidates: none."""
    failed: int | None = None
    """A candidate that failed for another reason; it ends the search."""

    @property
    def over(self) -> bool:
        """Whether the search has ended."""
        return self.failed is not None or self.high - self.low <= 1


def search_state(group: SearchGroup, verdict_of: Callable[[RunSpec], Verdict | None]) -> SearchState:
    """Return the state from the finished runs; a verdict of None: not run yet."""
    verdicts = [verdict_of(spec) for spec in group.runs]
    low = max((index for index, verdict in enumerate(verdicts) if verdict == "fits"), default=-1)
    above = [index for index, verdict in enumerate(verdicts) if verdict == "out of memory" and index > low]
    # A failure matters only between the two.
    high = min(above, default=len(verdicts))
    open_failures = (index for index in range(low + 1, high) if verdicts[index] == "failed")
    return SearchState(low, high, next(open_failures, None))


def next_try(batches: Sequence[int], known: SearchState) -> int | None:
    """Return the candidate to try next; None: the search has ended."""
    if known.over:
        return None
    if known.high < len(batches):
        return (known.low + known.high) // 2
    return 0 if known.low < 0 else _doubled(batches, known.low)


def remaining(group: SearchGroup, known: SearchState) -> tuple[RunSpec, ...]:
    """Return the candidates that are still open, with which an interrupted search continues."""
    return () if known.over else group.runs[known.low + 1 : known.high]


def _doubled(batches: Sequence[int], index: int) -> int:
    """Return the first candidate with at least twice the batch, or the last one."""
    wanted = 2 * batches[index]
    return next((later for later in range(index, len(batches)) if batches[later] >= wanted), len(batches) - 1)
