"""The lines and columns of a grid: heading lines found, and figures in lines turned into columns."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from steelyard.audit.printed.headings import Heading, machine_of, precision_of, understand
from steelyard.audit.printed.values import is_number, unit_spelled
from steelyard.rules.table.row import Grid

if TYPE_CHECKING:
    from collections.abc import Mapping

    from steelyard.audit.printed.grid import Found

MAX_TURNED = 60
"""Maximum number of lines of a table that has its headings in the first column."""


@dataclass(frozen=True)
class TableLayout:
    """A table with its heading lines found, and where its cells are in the printed grid."""

    grid: Grid
    """As printed, with its heading lines."""
    headings: tuple[str, ...]
    """One text per column."""
    cells: tuple[tuple[str, ...], ...]
    places: tuple[str, ...]
    turned: bool = False

    def position(self, line: int, column: int) -> tuple[int, int] | None:
        """Return line and column in the printed grid; None if the cell is a heading there."""
        if not self.turned:
            return line, column
        return (column - 1, line + 1) if column else None


def lay_out(entry: Found, chosen: Mapping[str, Heading]) -> TableLayout:
    """Find the heading lines of a grid, also where figures are in lines instead of columns."""
    grid = entry.grid
    headings, cells, taken = [list(row) for row in grid.headings], list(grid.cells), 0
    while cells and len(cells) > 1 and taken < 3 and _is_heading_line(cells[0], cells[1]):
        if taken == 0:
            # Formats without cells over several columns leave the others empty.
            for row in headings:
                for column in range(1, len(row)):
                    if not row[column] and column < len(cells[0]) and cells[0][column]:
                        row[column] = row[column - 1]
        headings.append(list(cells.pop(0)))
        taken += 1
    made = Grid(grid.caption, tuple(map(tuple, headings)), tuple(cells))
    texts = join_headings(made.headings)
    lines = entry.lines[taken:] if entry.lines else ()
    prefix = f"table {entry.number + 1}, " if entry.number else ""
    if _is_turned(texts, cells, chosen):
        turned = ["", *(row[0] for row in cells)]
        body = tuple((texts[column], *(row[column] for row in cells)) for column in range(1, len(texts)))
        places = tuple(f"{prefix}column {column + 1}" for column in range(1, len(texts)))
        return TableLayout(made, tuple(turned), body, places, turned=True)
    places = tuple(f"{prefix}line {line}" for line in lines) or tuple(
        f"{prefix}row {number}" for number in range(1, len(cells) + 1)
    )
    return TableLayout(made, tuple(texts), tuple(cells), places)


def _is_heading_line(row: tuple[str, ...], below: tuple[str, ...]) -> bool:
    """Return whether a line of cells is a second line of headings: words or units over figures."""
    stated = [cell for cell in row if cell]
    if len(stated) < 2 or any(is_number(cell) for cell in stated):
        return False
    over = [above for above, cell in zip(row, below, strict=False) if above and is_number(cell)]
    if len(over) < 2:
        return False
    return all(precision_of(text) or machine_of(text) or unit_spelled(text) or understand(text).known for text in over)


def _is_turned(texts: list[str], cells: list[tuple[str, ...]], chosen: Mapping[str, Heading]) -> bool:
    """Return whether the first column holds the headings: metrics there, and none above."""
    if len(texts) < 2 or not 2 <= len(cells) <= 60:
        return False
    if any(understand(text).metric or folded(text) in chosen for text in texts if text):
        return False
    first = [understand(row[0]) for row in cells]
    return sum(bool(heading.metric) for heading in first) >= 2 and sum(heading.known for heading in first) * 2 >= len(
        cells
    )


def join_headings(headings: tuple[tuple[str, ...], ...]) -> list[str]:
    """Join the lines of each heading; a text that spans several lines stands once."""
    joined = []
    for parts in zip(*headings, strict=True):
        kept: list[str] = []
        for part in parts:
            if part and part not in kept:
                kept.append(part)
        joined.append(" - ".join(kept))
    return joined


def folded(text: str) -> str:
    """Return a heading as it is compared: one space between words, no capitals."""
    return re.sub(r"\s+", " ", text).strip().casefold()
