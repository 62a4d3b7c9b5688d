"""Exact quantiles of a stream that is too large for memory, by repeated narrowing."""

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
# Values closer than this count as equal: far below the resolution of any clock, far above floating-point error.
RESOLUTION = 1e-10


@dataclass(frozen=True)
class _Bracket:
    """The quantile is the `rank`-th of the `inside` values in [low, high]."""

    low: float
    high: float
    rank: int
    inside: int

    @property
    def settled(self) -> bool:
        narrow = self.high - self.low <= RESOLUTION * max(abs(self.low), abs(self.high))
        return self.inside <= HELD_VALUES or narrow


def stream_quantiles(stream: Stream, levels: Sequence[float]) -> list[float]:
    """Return the nearest-rank quantiles: the smallest value with at least the share `level` at or below it.

    `stream` is read several times and must give the same values each time, in chunks of any size.
    """
    count, low, high = 0, math.inf, -math.inf
    for values in _batches(stream):
        count += values.size
        low, high = min(low, float(values.min())), max(high, float(values.max()))
    if not count:
        raise ValueError("no values")
    # Round before the ceiling: floating-point error could make the rank one too high.
    ranks = [max(1, math.ceil(round(level * count, 6))) for level in levels]
    brackets = [_Bracket(low, high, rank, count) for rank in ranks]
    while not all(bracket.settled for bracket in brackets):
        brackets = _narrow(stream, brackets)
    return _pick(stream, brackets)


def _batches(stream: Stream) -> Iterator[Floats]:
    """Yield the stream in larger chunks, because many ranks write many small ones."""
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
    """Read the stream once, and narrow each bracket to one of its BINS parts."""
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
        # A part includes its left edge, and not its right one, except for the last part.
        right = edges[at + 1] if at == BINS - 1 else np.nextafter(edges[at + 1], -math.inf)
        high = float(max(edges[at], right))
        narrowed.append(_Bracket(float(edges[at]), high, bracket.rank - before, int(reached[at]) - before))
    return narrowed


def _pick(stream: Stream, brackets: list[_Bracket]) -> list[float]:
    """Select from the few values of each bracket; a bracket that still has many values contains only equal ones."""
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
