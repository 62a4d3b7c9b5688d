"""Reads a run's step files as streams and reduces them. Knows the samples' layout, not what they mean.

Memory does not grow with steps; with ranks it grows by a few numbers each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from steelyard.contracts import observe
from steelyard.errors import DamagedDataError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

MAX_BINS = 4096


@dataclass(frozen=True)
class Trace:
    """The job's step times over its steps, in bins of equal step count.

    A step of the job is the mean over its ranks: in synchronous training all ranks have the same; independent
    replicas have no common step, and the mean is their common pace.
    """

    times: NDArray[np.float64]
    """Seconds in each bin."""
    work: NDArray[np.float64]
    """Samples of all ranks in each bin."""
    steps_per_bin: int


@dataclass(frozen=True)
class WindowSums:
    """Totals over a window of steps, one entry a rank."""

    columns: NDArray[np.float64]
    """A row a rank, a column for each of `observe.COLUMNS`; sums."""
    start_s: float
    """When the first rank entered the window."""
    end_s: float

    def column(self, name: str) -> NDArray[np.float64]:
        """One column's sums over the ranks."""
        column: NDArray[np.float64] = self.columns[:, observe.COLUMNS.index(name)]
        return column


class StepSamples:
    """All step samples of one run; or, by another pattern of file names, its tokens'."""

    def __init__(self, raw: Path, ranks: int, pattern: str = observe.STEPS_PATTERN) -> None:
        self._files = [path for path in sorted(raw.glob(pattern)) if path.is_file()]
        steps: dict[int, int] = {}
        for path in self._files:
            for place in observe.chunk_places(path):
                if place.rank >= ranks or place.first_step != steps.get(place.rank, 0):
                    raise DamagedDataError(
                        f"{path.name}: step {place.first_step} of rank {place.rank} does not follow what is there"
                    )
                steps[place.rank] = place.first_step + place.steps
        self.ranks = tuple(sorted(steps))
        self.steps = min(steps.values(), default=0)
        """Steps that every rank has finished."""

    def windowed(self, start: int, stop: int, *, check: bool = False) -> Iterator[observe.StepChunk]:
        """The samples of steps `start` to `stop`, chunk by chunk, ranks in whatever order they were written."""
        for path in self._files:
            for chunk in observe.read_chunks(path, start, stop, check=check):
                first, last = max(start, chunk.first_step), min(stop, chunk.first_step + chunk.steps)
                if last - first == chunk.steps:
                    yield chunk
                    continue
                table = chunk.table[:, first - chunk.first_step : last - chunk.first_step]
                yield observe.StepChunk(chunk.rank, first, table)

    def step_times(self, start: int, stop: int) -> Iterator[NDArray[np.float64]]:
        """Step times alone, of every rank."""
        for chunk in self.windowed(start, stop):
            yield chunk.column("step_s")

    def trace(self) -> Trace:
        """The whole run in at most MAX_BINS bins; steps that fill no bin at the end are left out.

        This is the first pass over the samples, and the one that checks them.
        """
        per_bin = max(1, -(-self.steps // MAX_BINS))
        bins = self.steps // per_bin
        times, work = np.zeros(bins + 1), np.zeros(bins + 1)  # the last for what fills no bin
        for chunk in self.windowed(0, self.steps, check=True):
            first = chunk.first_step // per_bin
            at = (chunk.first_step + np.arange(chunk.steps)) // per_bin - first
            length = int(at[-1]) + 1
            times[first : first + length] += np.bincount(at, chunk.column("step_s"))
            work[first : first + length] += np.bincount(at, chunk.column("samples"))
        return Trace(times[:bins] / max(1, len(self.ranks)), work[:bins], per_bin)

    def sums(self, start: int, stop: int) -> WindowSums:
        """Totals of a window."""
        row = {rank: i for i, rank in enumerate(self.ranks)}
        columns = np.zeros((len(self.ranks), len(observe.COLUMNS)))
        begin_s, end_s = np.inf, -np.inf
        for chunk in self.windowed(start, stop):
            columns[row[chunk.rank]] += chunk.table.sum(axis=1)
            starts, times = chunk.column("start_s"), chunk.column("step_s")
            begin_s = min(begin_s, float(starts[0]))
            end_s = max(end_s, float(starts[-1] + times[-1]))
        return WindowSums(columns, begin_s, end_s)
