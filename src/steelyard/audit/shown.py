"""A table as its readers know it, with the wrong figures marked: as printed, or its rows with one column per figure."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from steelyard import numbers
from steelyard.rules.rule import SEVERITIES
from steelyard.rules.table.settings import SETTINGS, shown
from steelyard.rules.table.units import unit_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from steelyard.contracts.finding import Finding, Severity
    from steelyard.rules.table.row import Grid, Row, RowTable

MAX_CELL = 200
MAX_FIGURES = 24
"""Metrics with their own columns, if a table was not read as printed: those that most rows have."""
ARROW = " -> "
MARKS: dict[str, str] = {"error": " !", "warning": " ?", "note": ""}


@dataclass(frozen=True)
class ShownCell:
    """A cell as printed and, if a finding doubts it, what the other figures give."""

    text: str
    recomputed: str = ""
    severity: Severity | None = None
    """That of the most severe finding on the cell; None: no finding."""
    codes: tuple[str, ...] = ()
    """Codes of the findings on the cell."""

    @property
    def marked(self) -> str:
        """The cell as plain text: `5.26 -> 5.885 !` for an error, with a question mark for a warning."""
        if self.severity is None:
            return self.text
        value = f"{self.text}{ARROW}{self.recomputed}" if self.recomputed else self.text
        return value + MARKS[self.severity]


@dataclass(frozen=True)
class ShownTable:
    """A table with marked cells. Columns that say what a line is about come first."""

    title: str
    headings: tuple[str, ...]
    lines: tuple[tuple[ShownCell, ...], ...]
    keys: int
    """How many columns say what a line is about."""
    places: tuple[tuple[str, ...], ...]
    """The rows that each line holds, by their places."""

    @property
    def wrong(self) -> tuple[tuple[ShownCell, ...], ...]:
        """The lines with a marked cell."""
        return tuple(line for line in self.lines if any(cell.severity is not None for cell in line))


Doubts = dict[tuple[str, str], ShownCell]
"""What is wrong with a figure, by the place of its row and its metric or setting. The text is not used."""


def shown_tables(table: RowTable, findings: Iterable[Finding]) -> list[ShownTable]:
    """Return the tables that were read, or one with all rows; the figures that findings doubt are marked."""
    doubts = _doubts(findings)
    if not table.grids:
        return [_of_rows(table, doubts)]
    return [_as_printed(table, number, grid, doubts) for number, grid in enumerate(table.grids)]


def _doubts(findings: Iterable[Finding]) -> Doubts:
    """Collect the wrong figures of all findings above a note, the most severe first."""
    doubts: Doubts = {}
    above = [finding for finding in findings if finding.severity != "note"]
    for finding in sorted(above, key=lambda entry: list(SEVERITIES).index(entry.severity)):
        for wrong in finding.wrong:
            at = (wrong.place, wrong.name)
            known = doubts.get(at, ShownCell("", severity=finding.severity))
            codes = tuple(dict.fromkeys((*known.codes, finding.code)))
            doubts[at] = ShownCell("", known.recomputed or wrong.recomputed, known.severity, codes)
    return doubts


def _mark(text: str, doubt: ShownCell | None) -> ShownCell:
    text = text if len(text) <= MAX_CELL else f"{text[:MAX_CELL]} ..."
    return ShownCell(text) if doubt is None else ShownCell(text, doubt.recomputed, doubt.severity, doubt.codes)


# -- as printed


def _as_printed(table: RowTable, number: int, grid: Grid, doubts: Doubts) -> ShownTable:
    doubted: dict[tuple[int, int], ShownCell] = {}
    places: defaultdict[int, list[str]] = defaultdict(list)
    settings: defaultdict[int, Counter[int]] = defaultdict(Counter)
    for row in table.rows:
        own = {name: (line, column) for name, (at, line, column) in row.cells.items() if at == number}
        for line in {line for line, _ in own.values()}:
            places[line].append(row.place)
        for name, (line, column) in own.items():
            if name in row.settings:
                settings[column][line] += 1
            if (row.place, name) in doubts:
                doubted.setdefault((line, column), doubts[row.place, name])
    width = max((len(line) for line in (*grid.headings, *grid.cells)), default=0)
    # A line may hold several rows, such as one per precision. Settings of only some of them stay beside their figures.
    keys = [
        column
        for column in range(width)
        if column in settings and all(count == len(places[line]) for line, count in settings[column].items())
    ]
    order = [*keys, *(column for column in range(width) if column not in keys)]
    lines = tuple(
        tuple(_mark(line[column] if column < len(line) else "", doubted.get((place, column))) for column in order)
        for place, line in enumerate(grid.cells)
    )
    headings = tuple(_heading(grid.headings, column) for column in order)
    rows = tuple(tuple(places[line]) for line in range(len(lines)))
    title = grid.caption or (f"{table.name}, table {number + 1}" if len(table.grids) > 1 else table.name)
    return ShownTable(title, headings, lines, len(keys), rows)


def _heading(lines: Sequence[Sequence[str]], column: int) -> str:
    """Return the heading of a column: all its lines, each text once."""
    texts = (line[column].strip() for line in lines if column < len(line))
    return " / ".join(dict.fromkeys(filter(None, texts)))


# -- rows with one column per figure


def _of_rows(table: RowTable, doubts: Doubts) -> ShownTable:
    rows = table.rows
    keys = [key for key in SETTINGS if len({str(row.get(key)) for row in rows}) > 1]
    keys += [key for _, key in doubts if key in SETTINGS and key not in keys]
    counts = Counter(metric for row in rows for metric in row.figures)
    # Those with a wrong figure are always shown.
    marked = {name for _, name in doubts}
    metrics = sorted(counts, key=lambda name: (name not in marked, -counts[name]))[:MAX_FIGURES]
    metrics.sort(key=list(counts).index)
    units = {name: {row.figures[name].unit for row in rows if name in row.figures} for name in metrics}
    one_unit = {name: next(iter(stated)) if len(stated) == 1 else "" for name, stated in units.items()}
    headings = ["row", *(key.replace("_", " ") for key in keys)]
    headings += [
        f"{name.replace('_', ' ')}{f', {unit}' if unit not in ('', '1') else ''}" for name, unit in one_unit.items()
    ]
    lines = []
    for row in rows:
        cells = [ShownCell(row.place)]
        cells += [
            _mark("-" if row.get(key) is None else shown(row.get(key)), doubts.get((row.place, key))) for key in keys
        ]
        cells += [
            _mark(_figure(row, name, with_unit=not one_unit[name]), doubts.get((row.place, name))) for name in metrics
        ]
        lines.append(tuple(cells))
    return ShownTable(table.name, tuple(headings), tuple(lines), 1 + len(keys), tuple((row.place,) for row in rows))


def _figure(row: Row, metric: str, *, with_unit: bool) -> str:
    amount = row.figures.get(metric)
    if amount is None:
        return "-" if row.status == "completed" else row.status.replace("_", " ")
    # Values are stored in base units and shown in their own unit: as printed, or with their interval.
    factor = (unit_of(amount.unit) or ("", 1.0))[1]
    text = amount.text or numbers.number(amount.value / factor, 5, plain_below=9)
    if not amount.text and amount.low < amount.high:
        low, high = (numbers.number(end / factor, 4, plain_below=9) for end in (amount.low, amount.high))
        text += f" [{low}, {high}]"
    return f"{text} {amount.unit}" if with_unit and amount.unit not in ("", "1") else text
