"""Tables of an HTML page: every table element, with cells over several rows and columns repeated in each of them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from html.parser import HTMLParser

from steelyard.audit.printed.grid import (
    MAX_CAPTION,
    MAX_CELL,
    MAX_CELLS,
    MAX_COLUMNS,
    MAX_LINES,
    MAX_TABLES,
    Found,
    shape,
)
from steelyard.errors import InputError
from steelyard.rules.table.row import Grid

BLOCKS = frozenset({"p", "div", "h1", "h2", "h3", "h4", "h5", "h6", "li", "figcaption", "section", "br"})
SILENT = frozenset({"script", "style", "template", "head", "math"})
MAX_DEPTH = 20
_SPACE = re.compile(r"\s+")


@dataclass
class _Cell:
    text: str
    heading: bool
    across: int
    down: int


@dataclass
class _HtmlTable:
    caption: str
    rows: list[list[_Cell]] = field(default_factory=list)
    in_head: list[bool] = field(default_factory=list)


class _TablesOfPage(HTMLParser):
    """Collect the tables of a page. A table inside a cell is a table of its own."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.done: list[_HtmlTable] = []
        self._open: list[_HtmlTable] = []
        self._cells: list[_Cell | None] = []
        self._before: list[str] = [""]
        self._silent = 0
        self._caption = False
        self._head = False
        self._count = 0
        self._rows = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Open a table, a row or a cell."""
        if tag in SILENT:
            self._silent += 1
        if tag == "table":
            self._begin_table()
        elif not self._open:
            if tag in BLOCKS:
                self._end_block()
        else:
            self._begin_part(tag, dict(attrs))

    def _begin_table(self) -> None:
        if len(self._open) >= MAX_DEPTH or len(self.done) + len(self._open) > MAX_TABLES:
            raise InputError(
                f"the page has more than {MAX_TABLES} tables or nests them more than {MAX_DEPTH} deep",
                next_step="save only the part with the tables",
            )
        above = self._before[-1] if self._before[-1].strip() or len(self._before) < 2 else self._before[-2]
        self._open.append(_HtmlTable(" ".join(above.split())[-MAX_CAPTION:]))
        self._cells.append(None)

    def _begin_part(self, tag: str, attrs: dict[str, str | None]) -> None:
        """Open a part of the table that is open."""
        if tag == "caption":
            self._caption, self._open[-1].caption = True, ""
        elif tag == "thead":
            self._head = True
        elif tag == "tr":
            self._begin_row()
            self._cells[-1] = None
        elif tag in ("td", "th"):
            self._begin_cell(tag, attrs)
        elif tag == "sup":
            self.handle_data("^{")
        elif tag in BLOCKS:
            self.handle_data(" ")

    def handle_endtag(self, tag: str) -> None:
        """Close a table, a row or a cell."""
        if tag in SILENT:
            self._silent = max(0, self._silent - 1)
        if tag == "table" and self._open:
            self.done.append(self._open.pop())
            self._cells.pop()
            self._before, self._head, self._caption = [""], False, False
        elif not self._open:
            if tag in BLOCKS:
                self._end_block()
        elif tag == "caption":
            self._caption = False
        elif tag == "thead":
            self._head = False
        elif tag in ("td", "th", "tr"):
            self._cells[-1] = None
        elif tag == "sup":
            self.handle_data("}")

    def handle_data(self, data: str) -> None:
        """Add text to the open cell, to the caption, or to what is above the next table."""
        if self._silent:
            return
        if not self._open:
            self._before[-1] = (self._before[-1] + data)[-2 * MAX_CAPTION :]
        elif self._caption:
            self._open[-1].caption = (self._open[-1].caption + data)[:MAX_CAPTION]
        elif (cell := self._cells[-1]) is not None and len(cell.text) <= MAX_CELL:
            cell.text += data

    def close(self) -> None:
        """Take tables that were not closed, too."""
        super().close()
        while self._open:
            self.done.append(self._open.pop())

    def _begin_row(self) -> None:
        self._rows += 1
        if self._rows > MAX_LINES:
            # They need no lines of their own in the file, and a cell above may reach over thousands of them.
            raise InputError(f"the page has more than {MAX_LINES:,} rows", next_step="save only the part you need")
        self._open[-1].rows.append([])
        self._open[-1].in_head.append(self._head)

    def _begin_cell(self, tag: str, attrs: dict[str, str | None]) -> None:
        if not self._open[-1].rows:
            self._begin_row()
        across, down = (_span(attrs.get(key)) for key in ("colspan", "rowspan"))
        self._count += across
        if self._count > MAX_CELLS:
            raise InputError(f"the page has more than {MAX_CELLS:,} cells", next_step="save only the part you need")
        cell = _Cell("", tag == "th", across, down)
        self._open[-1].rows[-1].append(cell)
        self._cells[-1] = cell

    def _end_block(self) -> None:
        if self._before[-1].strip():
            self._before = [*self._before[-1:], ""]


def _span(text: str | None) -> int:
    number = (text or "1").strip()
    return min(max(int(number), 1), MAX_COLUMNS + 1) if number.isascii() and number.isdigit() and len(number) < 5 else 1


def html_grids(text: str) -> list[Found]:
    """Return the tables of a page with more than one row."""
    reader = _TablesOfPage()
    reader.feed(text)
    reader.close()
    return [Found(_make_grid(table), ()) for table in reader.done if len(table.rows) > 1]


def _make_grid(table: _HtmlTable) -> Grid:
    """Lay out the cells; the heading lines are those of thead, or the first ones with heading cells only."""
    rows: list[list[str]] = []
    waiting: dict[int, tuple[int, str]] = {}
    for cells in table.rows:
        row: list[str] = []
        left = iter(cells)
        while len(row) <= MAX_COLUMNS:
            if len(row) in waiting:
                rest, words = waiting.pop(len(row))
                if rest > 1:
                    waiting[len(row)] = (rest - 1, words)
                row.append(words)
                continue
            cell = next(left, None)
            if cell is None:
                if not any(column > len(row) for column in waiting):
                    break
                row.append("")
                continue
            words = _SPACE.sub(" ", cell.text).strip().replace("^{}", "")
            for _ in range(min(cell.across, MAX_COLUMNS + 1 - len(row))):
                if cell.down > 1:
                    waiting[len(row)] = (cell.down - 1, words)
                row.append(words)
        rows.append(row)
    heads = 0
    while heads < len(rows) - 1 and (
        table.in_head[heads] or (table.rows[heads] and all(cell.heading for cell in table.rows[heads]))
    ):
        heads += 1
    shaped = shape(rows)
    heads = max(1, heads)
    return Grid(_SPACE.sub(" ", table.caption).strip(), tuple(shaped[:heads]), tuple(shaped[heads:]))
