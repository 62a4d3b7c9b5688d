"""Estimates of the time left for a study."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections import Counter


@dataclass
class Pace:
    """The durations of runs that follow each other, by configuration."""

    took_s: dict[str, list[float]] = field(default_factory=dict)

    def add(self, cell: str, time_s: float) -> None:
        """Add the duration of a run."""
        self.took_s.setdefault(cell, []).append(time_s)

    @property
    def runs(self) -> int:
        """The number of runs that an estimate is based on."""
        return sum(map(len, self.took_s.values()))

    def left_s(self, queued: Counter[str], running: str | None = None, spent_s: float = 0.0) -> float | None:
        """Estimate the time left for the queued runs and the running one; None before a run has ended.

        A run takes the mean time of its configuration, or of all runs if none of its configuration has ended.
        """
        if not self.took_s:
            return None
        means = {cell: fmean(times) for cell, times in self.took_s.items()}
        usual_s = fmean(time_s for times in self.took_s.values() for time_s in times)
        left_s = sum(count * means.get(cell, usual_s) for cell, count in queued.items())
        return left_s + (0.0 if running is None else max(0.0, means.get(running, usual_s) - spent_s))


def parallel_left_s(ended: int, watched_s: float, left: int) -> float | None:
    """Estimate the time left for parallel runs from the number that ended in `watched_s`; None if none did."""
    return watched_s * left / ended if ended else None
