"""The configurations of one selection, in order and with readable names."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from steelyard.analysis.rows import row_of
from steelyard.analysis.summary import labels
from steelyard.contracts.spec import RunSpec
from steelyard.inputs.study import chosen_settings
from steelyard.report.charts.style import error_codes, run_ids
from steelyard.report.page import Cell
from steelyard.rules.rule import SEVERITIES
from steelyard.terminal.text import brackets, number

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from steelyard.analysis.summary import CellSummary
    from steelyard.contracts.record import Finding, Quantity, RunRecord
    from steelyard.rules.table.row import Row

LONGEST_VALUE = 60
SHOWN_PLACES = 4
LONG_PLACE = 30
DIGITS = 4
OTHER_NUMBERS = "more with other numbers"
_DIGITS = re.compile(r"\d[\d.,]*")


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
        return {cell.cell: row_of(cell) for cell in self.cells}

    @cached_property
    def runs(self) -> dict[str, tuple[str, ...]]:
        """Run ids by cell and by the place of its row."""
        return run_ids(self.cells)

    def name(self, cell: CellSummary) -> str:
        """Return the readable name of a cell."""
        return self.names[cell.cell]

    def value(self, cell: CellSummary, key: str) -> Any:
        """Return the value of a setting in a cell."""
        return setting(cell.spec, key)

    def groups(self, key: str) -> list[tuple[str, list[CellSummary]]]:
        """Group the cells that differ only in `key`, with a label of the settings they share; the fastest group first.

        The label is empty if no other setting was swept.
        """
        others = [name for name in self.swept if name != key]
        found: dict[tuple[str, ...], list[CellSummary]] = {}
        for cell in self.cells:
            found.setdefault(tuple(repr(self.value(cell, name)) for name in others), []).append(cell)
        named = [
            (", ".join(f"{name}={written(self.value(group[0], name))}" for name in others), group)
            for group in found.values()
            if len({repr(self.value(cell, key)) for cell in group}) > 1
        ]
        return sorted(named, key=lambda entry: -max(rate(cell) for cell in entry[1]))


def subject(text: str, cells: Sequence[CellSummary]) -> Subject:
    """Make a Subject from the cells of a selection: find the swept settings and sort by them."""
    chosen = [_spread(chosen_settings(cell.spec)) for cell in cells]
    keys = dict.fromkeys(key for settings in chosen for key in settings)
    differing = [key for key in keys if len({repr(setting(cell.spec, key)) for cell in cells}) > 1]
    swept = {key: ordered([setting(cell.spec, key) for cell in cells]) for key in sorted(differing)}
    places = {key: {repr(value): place for place, value in enumerate(values)} for key, values in swept.items()}
    in_order = sorted(cells, key=lambda cell: [places[key][repr(setting(cell.spec, key))] for key in swept])
    return Subject(text, tuple(in_order), swept, labels(in_order))


def setting(spec: RunSpec, key: str) -> Any:
    """Return a setting of a spec by its dotted name, or None."""
    value: Any = spec
    for name in key.split("."):
        value = value.get(name) if isinstance(value, dict) else getattr(value, name, None)
    return value


def default(key: str) -> Any:
    """Return the default of a setting."""
    return setting(RunSpec(run_id="x", configuration="x"), key)


def ordered(values: Iterable[Any]) -> tuple[Any, ...]:
    """Return the distinct values: numbers in order, then the others alphabetically."""
    different = {repr(value): value for value in values}
    return tuple(sorted(different.values(), key=_order))


def _order(value: Any) -> tuple[bool, float, str]:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return not number, float(value) if number else 0.0, "" if number else str(value)


def written(value: Any) -> str:
    """Format a value as a selection takes it, with bounded length."""
    text = "none" if value is None else str(value)
    return text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 3]}..."


def _spread(settings: dict[str, Any]) -> dict[str, Any]:
    """Turn model options into separate settings, `model.NAME`."""
    model = settings.get("model")
    apart = {f"model.{name}": value for name, value in model.items()} if isinstance(model, dict) else {}
    return {key: value for key, value in settings.items() if key != "model"} | apart


def rate(cell: CellSummary) -> float:
    """Return the throughput for sorting; 0 if there is none or it has errors."""
    return 0.0 if error_codes(cell.findings) else cell.throughput.value or 0.0


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


def brief(quantity: Quantity, runs: tuple[str, ...] = (), codes: tuple[str, ...] = ()) -> Cell:
    """Format a quantity for a wide table: few digits in the text, all of them in the value."""
    if quantity.value is None:
        return Cell(f"none: {quantity.reason}", runs=runs, codes=codes)
    interval, text = quantity.interval, number(quantity.value, DIGITS)
    if interval is None:
        return Cell(text, quantity.value, runs=runs, codes=codes)
    text += f" {brackets(interval, DIGITS)}"
    return Cell(text, quantity.value, interval.low, interval.high, runs, codes)


def shortened(names: Sequence[str], shown: int = SHOWN_PLACES) -> str:
    """List the first names and count the others."""
    listed = list(dict.fromkeys(name for name in names if name))
    more = f" and {len(listed) - shown:,} more" if len(listed) > shown else ""
    return "; ".join(listed[:shown]) + more


def merged(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Merge findings of several places into one, with the text of the first; errors first.

    Findings that differ only in numbers are merged: hundreds of cells each have their own number of steps.
    """
    same: dict[tuple[str, str, str], list[Finding]] = {}
    for found in findings:
        same.setdefault((found.code, found.severity, _DIGITS.sub("0", found.message)), []).append(found)
    once = [dataclasses.replace(group[0], place=_places(group)) for group in same.values()]
    return tuple(sorted(once, key=lambda found: (list(SEVERITIES).index(found.severity), found.code)))


def _places(group: Sequence[Finding]) -> str:
    places = list(dict.fromkeys(found.place for found in group if found.place))
    if len({found.message for found in group}) == 1 or len(places) < 2:
        return shortened(places, SHOWN_PLACES if max(map(len, places), default=0) <= LONG_PLACE else 1)
    return f"{places[0]}, and {len(places) - 1:,} {OTHER_NUMBERS}"
