"""Measured cells and published rows under one roof: what one side of a comparison means. Knows both kinds, no rule."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from steelyard.analysis.rows import row_of
from steelyard.analysis.select import narrow, select
from steelyard.audit.documents import load
from steelyard.audit.table import read_table

if TYPE_CHECKING:
    from steelyard.results.store import ResultFolder
    from steelyard.rules.table.row import Row, RowTable

REFERENCE = "reference"
SCOPES = ("die", "device", "module")


def rows_beside(folder: ResultFolder, text: str) -> list[Row]:
    """The rows that a text means, at least one.

    `STUDY`, `STUDY/CELL`, `STUDY:key=value` or a run id of our own; `reference:NAME:key=value` of the built-in
    catalogue; `FILE.csv:key=value` of a published table.
    """
    name, _, rest = text.partition(":")
    if name == REFERENCE:
        source, _, wanted = rest.partition(":")
        return _select_published(load(source), wanted)
    if Path(name).suffix.lower() == ".csv":
        return _select_published(read_table(Path(name)), rest)
    return [row_of(cell) for cell in select(folder, text)]


def _select_published(table: RowTable, wanted: str) -> list[Row]:
    rows = [_describe(table, row) for row in table.rows]
    if not wanted:
        return rows
    return narrow([(row, {**row.settings, "table": row.table}) for row in rows], table.name, wanted)


def _describe(table: RowTable, row: Row) -> Row:
    """With its source, and with what its machine's description says of one device."""
    platform = table.platform(row)
    scope = platform.power_scope.split(" ")[0] if platform else ""
    settings = dict(row.settings)
    devices, nodes = row.number("devices"), row.number("nodes") or 1.0
    most = platform.devices_per_node if platform else None
    # A job that counts more devices than the machine has counts parts of them, such as dies.
    parts = most is not None and devices is not None and devices > most * nodes
    if scope in SCOPES and not parts:
        settings.setdefault("device_scope", scope)
    source = row.source or table.name
    return replace(row, settings=settings, source=source, place=f"{source}, {row.place}")
