"""Exact quantiles of a stream too large to hold, by repeated narrowing. Pure; knows numbers only."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Stream = Callable[[], Iterable[Floats]]

HELD_VALUES = 100_000
BATCH_VALUES = 1 << 16
BINS = 1 << 14
# Values closer than this are one value: far below any clock, far enough above the rounding of a double to be cut up.
RESOLUTION = 1e-10


@dataclass(frozen=True)
class _Bracket:
    """The wanted value is the `rank`-th of the `inside` values that lie in [low, high]."""

    low: float
    high: float
    rank: int
    inside: int

    @property
    def settled(self) -> bool:
        narrow = self.high - self.low <= RESOLUTION * max(abs(self.low), abs(self.high))
        return self.inside <= HELD_VALUES or narrow


def stream_quantiles(stream: Stream, levels: Sequence[float]) -> list[float]:
    """The smallest value with at least the share `level` of all values at or below it (nearest rank).

    `stream` is read several times; each time it must give the same values, in chunks of any size.
    """
    count, low, high = 0, math.inf, -math.inf
    for values in _batches(stream):
        count += values.size
        low, high = min(low, float(values.min())), max(high, float(values.max()))
    if not count:
        raise ValueError("no values")
    # Rounded first: 0.95 * 100 is 95.00000000000001 for some levels, and its ceiling one too many.
    ranks = [max(1, math.ceil(round(level * count, 6))) for level in levels]
    brackets = [_Bracket(low, high, rank, count) for rank in ranks]
    while not all(bracket.settled for bracket in brackets):
        brackets = _narrow(stream, brackets)
    return _pick(stream, brackets)


def _batches(stream: Stream) -> Iterator[Floats]:
    """The stream in larger pieces: many ranks write many small chunks."""
    held: list[Floats] = []
    size = 0
    for values in stream():
        held.append(values)
        size += values.size
        if size >= BATCH_VALUES:
            yield np.concatenate(held)
            held, size = [], 0
    if size:
        yield np.concatenate(held)


def _narrow(stream: Stream, brackets: list[_Bracket]) -> list[_Bracket]:
    """One pass over the stream; each bracket becomes one of its BINS parts."""
    counts = {(b.low, b.high): np.zeros(BINS, dtype=np.int64) for b in brackets if not b.settled}
    for values in _batches(stream):
        for (low, high), total in counts.items():
            total += np.histogram(values, bins=BINS, range=(low, high))[0]
    narrowed = []
    for bracket in brackets:
        if bracket.settled:
            narrowed.append(bracket)
            continue
        edges = np.linspace(bracket.low, bracket.high, BINS + 1)
        reached = np.cumsum(counts[bracket.low, bracket.high])
        at = int(np.searchsorted(reached, bracket.rank))
        before = int(reached[at - 1]) if at else 0
        # A part holds its left edge and not its right one, except the last.
        right = edges[at + 1] if at == BINS - 1 else np.nextafter(edges[at + 1], -math.inf)
        high = float(max(edges[at], right))
        narrowed.append(_Bracket(float(edges[at]), high, bracket.rank - before, int(reached[at]) - before))
    return narrowed


def _pick(stream: Stream, brackets: list[_Bracket]) -> list[float]:
    """Hold the few values of each bracket and select; a bracket with many values is one value wide by now."""
    held: list[list[Floats]] = [[] for _ in brackets]
    for values in _batches(stream):
        for bracket, kept in zip(brackets, held, strict=True):
            if bracket.inside <= HELD_VALUES:
                kept.append(values[(values >= bracket.low) & (values <= bracket.high)])
    picked = []
    for bracket, kept in zip(brackets, held, strict=True):
        if kept:
            picked.append(float(np.partition(np.concatenate(kept), bracket.rank - 1)[bracket.rank - 1]))
        else:
            picked.append(bracket.high)
    return picked
