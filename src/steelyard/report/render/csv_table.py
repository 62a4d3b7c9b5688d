"""Tables for machines: CSV without active formulas, and plain objects for JSON."""

from __future__ import annotations

import csv
import io
import math
import re
from typing import TYPE_CHECKING, Any

from steelyard.report.render.plain import one_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from steelyard.report.page import Cell, Column, Table

# Characters that start a formula in a spreadsheet, also in full-width form (OWASP, "CSV Injection"). If the reader's
# locale uses semicolons as separators, a cell can also start inside one of our texts.
_ACTIVE = "=+\\-@\uff1d\uff0b\uff0d\uff20"
_FORMULA = re.compile(rf"(^|[;,|])([\s'\"]*)(?=[{_ACTIVE}])")
# Texts that mean "no value" in a table for people.
NOTHING = ("", "-", "\u2013", "\u2014")
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")


def csv_table(table: Table) -> str:
    """Return the table as CSV: values in full precision with the ends of their intervals, run ids, findings, remarks.

    An entry without a value is empty; its text is in the remarks.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    plans = [_Plan(column, [row[i] for row in table.rows]) for i, column in enumerate(table.columns)]
    with_runs = any(cell.runs for row in table.rows for cell in row)
    with_codes = any(cell.codes for row in table.rows for cell in row)
    parts = [[plan.remark(cell) for plan, cell in zip(plans, row, strict=True)] for row in table.rows]
    remarks = ["; ".join(filter(None, texts)) for texts in parts]
    header = [name for plan in plans for name in plan.header]
    header += ["runs"] * with_runs + ["findings"] * with_codes + ["remarks"] * any(remarks)
    writer.writerow(inert(name) for name in header)
    for row, remark in zip(table.rows, remarks, strict=True):
        entries = [entry for plan, cell in zip(plans, row, strict=True) for entry in plan.entries(cell)]
        entries += [inert(" ".join(union(cell.runs for cell in row)))] * with_runs
        entries += [inert(" ".join(union(cell.codes for cell in row)))] * with_codes
        entries += [inert(remark)] * any(remarks)
        writer.writerow(entries)
    return out.getvalue()


def inert(text: str) -> str:
    """Escape a text so that spreadsheets do not run it as a formula; numbers stay as they are."""
    text = one_line(text)
    return text if _NUMBER.fullmatch(text) else _FORMULA.sub(r"\1\2'", text)


def union(parts: Any) -> tuple[str, ...]:
    """Return the distinct items of all parts, in order of first appearance."""
    return tuple(dict.fromkeys(entry for part in parts for entry in part))


def table_object(table: Table) -> dict[str, Any]:
    """Return a table as plain data for JSON: every entry with text, value, interval, run ids and codes."""
    return {
        "name": table.name,
        "title": table.title,
        "columns": [{"name": column.name, "unit": column.unit} for column in table.columns],
        "rows": [[_cell_object(cell) for cell in row] for row in table.rows],
        "notes": list(table.notes),
    }


class _Plan:
    """How one column of the table maps to columns of the file."""

    def __init__(self, column: Column, cells: Sequence[Cell]) -> None:
        self.name = f"{column.name} ({column.unit})" if column.unit else column.name
        self.numbers = any(is_number(cell.value) for cell in cells)
        self.interval = any(cell.low is not None or cell.high is not None for cell in cells)

    @property
    def header(self) -> list[str]:
        return [self.name, f"{self.name} low", f"{self.name} high"] if self.interval else [self.name]

    def entries(self, cell: Cell) -> list[str]:
        ends = [_number(cell.low), _number(cell.high)] if self.interval else []
        return [self._value(cell), *ends]

    def _value(self, cell: Cell) -> str:
        if isinstance(cell.value, str):
            return inert(cell.value)
        if cell.value is not None:
            return _number(cell.value)
        return "" if self.numbers or cell.text in NOTHING else inert(cell.text)

    def remark(self, cell: Cell) -> str:
        """Return the text of a cell without a number, for the remarks."""
        missing = self.numbers and not is_number(cell.value) and cell.text not in NOTHING
        return f"{self.name}: {cell.text}" if missing else ""


def is_number(value: object) -> bool:
    """Whether an entry can be calculated with."""
    return isinstance(value, int | float) and math.isfinite(value)


def _number(value: float | None) -> str:
    if value is None or not math.isfinite(value):
        return ""
    # The repr of a numpy float includes its type.
    return repr(float(value)) if isinstance(value, float) else str(value)


def _cell_object(cell: Cell) -> dict[str, Any]:
    data: dict[str, Any] = {"text": cell.text}
    if cell.value is not None and (isinstance(cell.value, str) or math.isfinite(cell.value)):
        data["value"] = cell.value
    data |= {
        key: end for key, end in (("low", cell.low), ("high", cell.high)) if end is not None and math.isfinite(end)
    }
    if cell.runs:
        data["runs"] = list(cell.runs)
    return data | ({"codes": list(cell.codes)} if cell.codes else {})
