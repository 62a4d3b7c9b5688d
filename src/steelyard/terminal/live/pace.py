"""How long what is left of a study takes, by what of it has ended. Knows lengths of runs and not what they do."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections import Counter


@dataclass
class Pace:
    """Runs that are made one after the other: how long each took, by cell."""

    took_s: dict[str, list[float]] = field(default_factory=dict)

    def add(self, cell: str, time_s: float) -> None:
        """A run has ended."""
        self.took_s.setdefault(cell, []).append(time_s)

    @property
    def runs(self) -> int:
        """On how many runs an estimate rests."""
        return sum(map(len, self.took_s.values()))

    def left_s(self, queued: Counter[str], running: str | None = None, spent_s: float = 0.0) -> float | None:
        """Time left for so many queued runs of each cell and the running one; None before any run has ended.

        A cell's own runs say most about it; one without any is taken to be as long as all runs are on average.
        """
        if not self.took_s:
            return None
        means = {cell: fmean(times) for cell, times in self.took_s.items()}
        usual_s = fmean(time_s for times in self.took_s.values() for time_s in times)
        left_s = sum(count * means.get(cell, usual_s) for cell, count in queued.items())
        return left_s + (0.0 if running is None else max(0.0, means.get(running, usual_s) - spent_s))


def parallel_left_s(ended: int, watched_s: float, left: int) -> float | None:
    """Time left where runs go on side by side: at the pace at which so many ended while we watched. None before one."""
    return watched_s * left / ended if ended else None
