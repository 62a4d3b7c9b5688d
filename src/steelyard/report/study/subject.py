"""The configurations of one selection, in order and with readable names."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from steelyard.analysis.best import fastest_first
from steelyard.analysis.rows import row_of
from steelyard.analysis.summary import labels
from steelyard.analysis.sweep import grouped, in_order, swept_settings
from steelyard.contracts.spec import RunSpec
from steelyard.inputs.study import setting
from steelyard.report.charts.style import run_ids
from steelyard.report.page import Cell, KeyFigure
from steelyard.terminal.text import brackets, number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from steelyard.analysis.summary import CellSummary
    from steelyard.contracts.record import Quantity, RunRecord
    from steelyard.rules.table.row import Row

DIGITS = 4


@dataclass(frozen=True)
class Subject:
    """One selection."""

    text: str
    """The selection as the user wrote it."""
    cells: tuple[CellSummary, ...]
    """Sorted by the swept settings."""
    swept: dict[str, tuple[Any, ...]]
    """Settings in which the cells differ, by dotted name, each with its values in order."""
    names: dict[str, str]
    """Readable names of the cells, by cell id."""

    @property
    def records(self) -> list[RunRecord]:
        """All runs."""
        return [record for cell in self.cells for record in cell.records]

    @cached_property
    def rows(self) -> dict[str, Row]:
        """The cells as the rules see them."""
        return {cell.name: row_of(cell) for cell in self.cells}

    @cached_property
    def runs(self) -> dict[str, tuple[str, ...]]:
        """Run ids by cell and by the place of its row."""
        return run_ids(self.cells)

    def name(self, cell: CellSummary) -> str:
        """Return the readable name of a cell."""
        return self.names[cell.name]

    def value(self, cell: CellSummary, key: str) -> Any:
        """Return the value of a setting in a cell."""
        return setting(cell.spec, key)

    def groups(self, key: str) -> list[tuple[str, list[CellSummary]]]:
        """Group the cells that differ only in `key`, with a label of the settings they share; fastest reliable first.

        The label is empty if no other setting was swept.
        """
        return sorted(grouped(self.cells, key), key=lambda entry: _order(entry[1]))


def _order(cells: Sequence[CellSummary]) -> tuple[bool, float]:
    """Sort key of a group: those with a reliable configuration first, by their highest throughput."""
    first = next(iter(fastest_first(cells)), None)
    return first is None or bool(first.unreliable), -(first.throughput.value or 0.0) if first is not None else 0.0


def subject(text: str, cells: Sequence[CellSummary]) -> Subject:
    """Make a Subject from the cells of a selection: find the swept settings and sort by them."""
    swept = swept_settings(cells)
    ordered = in_order(cells, swept)
    return Subject(text, tuple(ordered), swept, labels(ordered))


def default(key: str) -> Any:
    """Return the default of a setting."""
    return setting(RunSpec(run_id="x", configuration="x"), key)


def counted_statuses(cells: Sequence[CellSummary]) -> dict[str, int]:
    """Count runs by status; completed first."""
    counts: dict[str, int] = {}
    for cell in cells:
        for code, count in cell.statuses.items():
            counts[code] = counts.get(code, 0) + count
    return dict(sorted(counts.items(), key=lambda entry: (entry[0] != "completed", -entry[1], entry[0])))


def statuses(counts: dict[str, int]) -> str:
    """`24 completed, 3 out of memory`."""
    return ", ".join(f"{count:,} {code.replace('_', ' ')}" for code, count in counts.items())


def key_figure(
    label: str, value: float, low: float | None, high: float | None, unit: str = "", *, unreliable: bool = False
) -> KeyFigure:
    """Return a large figure with its 95 % CI; the upper end may be missing."""
    detail = "no interval: too few jobs or steps"
    if low is not None:
        ends = f"{number(low, DIGITS)} to {number(high, DIGITS)}" if high is not None else f"from {number(low, DIGITS)}"
        detail = f"95 % CI {ends}"
    return KeyFigure(label, number(value, DIGITS), unit, detail, unreliable)


def brief(quantity: Quantity, runs: tuple[str, ...] = (), codes: tuple[str, ...] = ()) -> Cell:
    """Format a quantity for a wide table: few digits in the text, all of them in the value."""
    if quantity.value is None:
        return Cell(f"none: {quantity.reason}", runs=runs, codes=codes)
    interval, text = quantity.interval, number(quantity.value, DIGITS)
    if interval is None:
        return Cell(text, quantity.value, runs=runs, codes=codes)
    text += f" {brackets(interval, DIGITS)}"
    return Cell(text, quantity.value, interval.low, interval.high, runs, codes)
