"""How much faster more devices are, as printed and here: comparable even if the length of the training is not known."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

from steelyard.analysis.compare import compare
from steelyard.analysis.ratios import sense
from steelyard.analysis.rows import row_of
from steelyard.report.page import Cell, Column, Table
from steelyard.rules.table.settings import shown
from steelyard.terminal.text import number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from steelyard.analysis.summary import CellSummary
    from steelyard.report.suite.beside import Beside
    from steelyard.rules.table.row import Amount, Row

# What changes with the number of devices.
FOLLOW = ("devices", "nodes", "parallel", "global_batch")


def speedup_tables(entries: Sequence[Beside], name: str) -> list[Table]:
    """Return the table of speed-ups over the fewest devices, if a machine of the document has several numbers."""
    groups: defaultdict[tuple[str, ...], list[Beside]] = defaultdict(list)
    for entry in entries:
        if sense(entry.printed.unit) in ("rate", "time") and entry.published.number("devices") is not None:
            kept = (f"{key}={shown(value)}" for key, value in entry.published.settings.items() if key not in FOLLOW)
            groups[entry.metric, *kept].append(entry)
    rows = []
    for group in groups.values():
        base, *more = sorted(group, key=lambda entry: entry.published.number("devices") or 0)
        fewest = base.published.number("devices")
        rows += [_row(base, entry) for entry in more if entry.published.number("devices") != fewest]
    if not rows or not any(row[-1].value is not None for row in rows):
        return []
    columns = (
        Column("printed", align="left"),
        Column("accelerator", align="left"),
        Column("devices"),
        Column("speed-up, published"),
        Column("speed-up here"),
    )
    notes = ("Speed-up over the fewest devices of the same machine. [ ] = 95 % CI over jobs.",)
    return [Table(name, "Speed-up over the number of devices", columns, tuple(rows), notes)]


def _row(base: Beside, entry: Beside) -> tuple[Cell, ...]:
    printed = entry.printed.value / base.printed.value
    printed = 1 / printed if sense(entry.printed.unit) == "time" else printed
    named = (*entry.table.rows, entry.table.split, *entry.table.columns)
    keys = [key for key in named if key and key not in (*FOLLOW, "accelerator")]
    what = ", ".join(shown(value) for key in keys if (value := entry.published.get(key)) is not None)
    devices = f"{shown(base.published.get('devices') or 0)} to {shown(entry.published.get('devices') or 0)}"
    accelerator = shown(entry.published.get("accelerator") or "not stated")
    texts = (what or "-", accelerator, devices)
    return (*(Cell(text, text) for text in texts), Cell(number(printed, 3), printed), _ours(base, entry))


def _ours(base: Beside, entry: Beside) -> Cell:
    """Return our own speed-up, if the rules allow the ratio of the two configurations."""
    if base.cell is None or entry.cell is None or base.ours is None or entry.ours is None:
        return Cell("not measured")
    rows = [_with_figure(base.cell, entry.metric, base.ours), _with_figure(entry.cell, entry.metric, entry.ours)]
    made = compare(rows[:1], rows[1:], factor="devices", metric=entry.metric).comparisons[0]
    speedup = next((ratio for ratio in made.ratios if ratio.scope == "job" and ratio.answer == "ratio"), None)
    if speedup is None:
        codes = tuple(dict.fromkeys(finding.code for finding in made.findings if finding.severity == "error"))
        return Cell("no ratio", codes=codes)
    value, low, high = speedup.value, speedup.low, speedup.high
    if sense(entry.printed.unit) == "time":
        value = 1 / value
        low, high = (1 / high if high else None), (1 / low if low else None)
    text = number(value, 3)
    if low is not None and high is not None:
        text += f" [{number(low, 3)}, {number(high, 3)}]"
    return Cell(text, value, low, high)


def _with_figure(cell: CellSummary, metric: str, amount: Amount) -> Row:
    row = row_of(cell)
    return replace(row, figures={**row.figures, metric: amount})
