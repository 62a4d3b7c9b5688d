"""Find the rows of one side of a comparison, measured or published."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from steelyard.analysis.rows import row_of
from steelyard.analysis.select import narrow, select

if TYPE_CHECKING:
    from steelyard.results.store import ResultFolder
    from steelyard.rules.table.row import Row, RowTable

REFERENCE = "reference"
SCOPES = ("die", "device", "module")


def rows_beside(folder: ResultFolder, text: str) -> list[Row]:
    """Return the rows that a text selects, at least one.

    Measured: `STUDY`, `STUDY/CONFIGURATION`, `STUDY:key=value` or a run id. Built-in catalogue:
    `reference:NAME:key=value`. Published table: `FILE.csv:key=value`.
    """
    name, _, rest = text.partition(":")
    if name == REFERENCE:
        # What reads published tables is imported only for them.
        from steelyard.audit.documents import load

        source, _, wanted = rest.partition(":")
        return _select_published(load(source), wanted)
    if Path(name).suffix.lower() == ".csv":
        from steelyard.audit.reading import read_table

        return _select_published(read_table(Path(name)), rest)
    return [row_of(cell) for cell in select(folder, text)]


def _select_published(table: RowTable, wanted: str) -> list[Row]:
    rows = [_describe(table, row) for row in table.rows]
    if not wanted:
        return rows
    return narrow([(row, {**row.settings, "table": row.table}) for row in rows], table.name, wanted)


def _describe(table: RowTable, row: Row) -> Row:
    """Add the source to a row, and what one device is according to its machine's description."""
    platform = table.platform(row)
    scope = platform.power_scope.split(" ")[0] if platform else ""
    settings = dict(row.settings)
    devices, nodes = row.number("devices"), row.number("nodes") or 1.0
    most = platform.devices_per_node if platform else None
    # If a job has more devices than the machine, it counts parts of devices, such as dies.
    parts = most is not None and devices is not None and devices > most * nodes
    if scope in SCOPES and not parts:
        settings.setdefault("device_scope", scope)
    source = row.source or table.name
    return replace(row, settings=settings, source=source, place=f"{source}, {row.place}")
