"""Live progress of a study at a site."""

from __future__ import annotations

import textwrap
import time
from typing import TYPE_CHECKING, Self

from steelyard.terminal.drawing import duration, grid, rounded
from steelyard.terminal.live.foot import Foot
from steelyard.terminal.live.pace import parallel_left_s
from steelyard.terminal.live.progress import FOOT_ROWS, ROWS_ABOVE, Loudness
from steelyard.terminal.status import grid_cells, progress_line, short_lines, waiting_lines
from steelyard.terminal.text import many

if TYPE_CHECKING:
    from steelyard.launch.follow import StudyStatus


class Following:
    """Shows a study at a site as a grid of its runs on a terminal, or as one line per change elsewhere."""

    def __init__(self, loud: Loudness = "normal") -> None:
        self._loud = loud
        self._foot = Foot(live=loud != "quiet")
        self._said = ""
        self._warned = False
        self._detail: list[str] = []
        self._first: tuple[float, int] | None = None

    def __enter__(self) -> Self:
        self._foot.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the grid, and print the last line for good."""
        self._foot.__exit__()
        if self._foot.room and self._said:
            self._foot.above(self._said)

    def tell(self, status: StudyStatus) -> None:
        """Show a new status."""
        line = progress_line(status)
        if self._loud != "quiet" and not self._warned and (lines := short_lines(status)):
            self._warned = True
            self._foot.above("\n".join(lines))
        if self._loud == "verbose" and (lines := waiting_lines(status)) != self._detail:
            self._detail = lines
            self._foot.above("\n".join(lines)) if lines else None
        if self._foot.room:
            columns, rows = self._foot.room
            lines = textwrap.wrap(f"{line}; {self._left(status)}", columns - 1)
            height = min(FOOT_ROWS, rows - ROWS_ABOVE) - len(lines)
            self._foot.show([*lines, *grid(grid_cells(status), columns, height)])
        elif line != self._said and self._loud != "quiet":
            self._foot.above(line)
        self._said = line

    def _left(self, status: StudyStatus) -> str:
        """Estimate the time left from the runs that have ended since the first look."""
        now_s, ended = time.monotonic(), len(status.runs)
        begun_s, before = self._first = self._first or (now_s, ended)
        left_s = parallel_left_s(ended - before, now_s - begun_s, len(status.waiting))
        if left_s is None:
            return "time left: known after the next run"
        return f"about {rounded(left_s)} left ({many(ended - before, 'run')} in {duration(now_s - begun_s, parts=1)})"
