"""Read a table in any form: long CSV and TOML as in docs/tables.md, or as printed. Write the long form."""

from __future__ import annotations

import csv
import io
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from steelyard.audit.printed.read import TableReading, read_printed
from steelyard.audit.table import MAX_TABLE_BYTES, MAX_TOML_BYTES, decoded, is_long, parse_table
from steelyard.errors import InputError
from steelyard.inputs.validate import read_bounded
from steelyard.rules.table.settings import SETTINGS, shown

if TYPE_CHECKING:
    from collections.abc import Iterable

    from steelyard.rules.table.row import Platform, Row, RowTable

STANDARD_INPUT = "-"


def read_table(path: Path, platforms: tuple[Platform, ...] = ()) -> RowTable:
    """Read a table from a file in any form."""
    return read_any(str(path), platforms).table


def read_any(name: str, platforms: tuple[Platform, ...] = (), maps: Iterable[str] = ()) -> TableReading:
    """Read a table from a file, or from standard input for `-`, and say what was understood."""
    if name == STANDARD_INPUT:
        content = sys.stdin.buffer.read(MAX_TABLE_BYTES + 1)
        if len(content) > MAX_TABLE_BYTES:
            raise InputError(f"standard input is larger than {MAX_TABLE_BYTES:,} bytes")
        return parse_any(decoded(content, "standard input"), "standard input", platforms, maps)
    path = Path(name)
    content = read_bounded(path, MAX_TOML_BYTES if path.suffix == ".toml" else MAX_TABLE_BYTES)
    return parse_any(decoded(content, path.name), path.name, platforms, maps)


def parse_any(text: str, name: str, platforms: tuple[Platform, ...] = (), maps: Iterable[str] = ()) -> TableReading:
    """Parse a table in any form; a long form needs no headings explained."""
    maps = tuple(maps)
    if not name.endswith(".toml") and not is_long(text):
        return read_printed(text, name, maps, platforms)
    if maps:
        raise InputError(
            f"--map does not apply to {name}: its columns already have steelyard's names",
            next_step="see docs/tables.md",
        )
    return TableReading(parse_table(text, name, platforms))


def long_form(tables: Iterable[RowTable]) -> str:
    """Return rows as CSV with one line per figure, the form that docs/tables.md describes."""
    rows = [row for table in tables for row in table.rows]
    keys = [key for key in SETTINGS if any(key in row.settings for row in rows)]
    extra = [key for key in ("source", "table", "note") if any(getattr(row, key) for row in rows)]
    bases = ["base"] if any(row.bases for row in rows) else []
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*extra, *keys, "metric", "value", "unit", *bases])
    for row in rows:
        head = [*(getattr(row, key) for key in extra), *(_plain(row, key) for key in keys)]
        for metric, amount in row.figures.items():
            writer.writerow([*head, metric, amount.text, amount.unit, *(row.bases.get(metric, "") for _ in bases)])
        if not row.figures:
            status = "OOM" if row.status == "out_of_memory" else ""
            writer.writerow([*head, "throughput", status, "items/s", *("" for _ in bases)])
    return out.getvalue()


def _plain(row: Row, key: str) -> str:
    value = row.get(key)
    return "" if value is None else {True: "true", False: "false"}[value] if isinstance(value, bool) else shown(value)
