"""Printed figures and ours as entries of tables."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from steelyard.audit.recompute import digits
from steelyard.report.page import Cell
from steelyard.report.suite.conditions import NAMES
from steelyard.report.suite.tiny import RUNS, runs_cell
from steelyard.rules.table.settings import shown
from steelyard.rules.table.units import unit_of
from steelyard.terminal.text import number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from steelyard.inputs.suite import PrintedTable
    from steelyard.report.suite.beside import Beside
    from steelyard.rules.table.row import Amount, Row

NUMBERED = {"devices", "batch", "global_batch", "loader.workers", "loader.prefetch", "nodes"}
"""Settings whose values say nothing without their names."""
OTHER_NETWORK = "another network"
NOT_MEASURED = "not measured"
HERE = "here"


def printed_setting(row: Row, key: str) -> str:
    """Return a setting of a printed row."""
    value = row.table if key == "table" else row.note if key == "note" else row.get(key)
    return "not stated" if value in (None, "") else shown(value)


def word(key: str) -> str:
    """Return the name of a setting or a figure as words."""
    return key.replace("_", " ")


def named(row: Row, keys: Sequence[str]) -> str:
    """Return these settings of a printed row in one line."""
    told = {key: printed_setting(row, key) for key in keys if key}
    if {"devices", "accelerator"} <= set(told):
        told["accelerator"] = f"{told.pop('devices')} x {told['accelerator']}"
    for key in set(told) & NUMBERED:
        told[key] = f"{NAMES[key] if key.startswith('loader.') else word(key)} {told[key]}"
    return ", ".join(told.values())


def told_apart(row: Row, named_alike: Sequence[Row], table: PrintedTable) -> str:
    """Return what a printed row has different from others of its name: settings, else its place in the order."""
    if len(named_alike) < 2:
        return ""
    settings = dict.fromkeys(key for one in named_alike for key in one.settings)
    keys = [
        key
        for key in settings
        if key not in table.columns and len({printed_setting(one, key) for one in named_alike}) > 1
    ]
    return named(row, keys) if keys else f"{named_alike.index(row) + 1} of {len(named_alike)} as printed"


def what(entry: Beside) -> str:
    """Return the settings that name a printed figure, in one line."""
    return named(entry.published, (*entry.table.rows, entry.table.split, *entry.table.columns))


def printed_cell(entry: Beside | None) -> Cell:
    """Return a figure as printed, with what the audit finds wrong with it."""
    if entry is None:
        return Cell("-")
    codes = tuple(dict.fromkeys(mark.code for mark in entry.marks))
    return Cell(digits(entry.printed), entry.printed.value / factor_of(entry.printed.unit), codes=codes)


def our_cell(entry: Beside | None) -> Cell:
    """Return our figure, or why there is none."""
    if entry is None:
        return Cell(NOT_MEASURED)
    assert entry.cell is not None
    if entry.figure == RUNS:
        return runs_cell(entry.cell)
    if entry.ours is None:
        statuses = [status.replace("_", " ") for status in entry.cell.statuses if status != "completed"]
        return Cell(", ".join(statuses) or "unknown")
    codes = tuple(
        dict.fromkeys(code for finding in entry.cell.findings for code in [finding.code] if finding.severity == "error")
    )
    runs = tuple(record.run_id for record in entry.cell.records)
    cell = amount_cell(entry.ours, factor_of(entry.ours.unit), runs, codes)
    other = f" ({OTHER_NETWORK})" if entry.other_work else ""
    return replace(cell, text=f"{cell.text}{instead(entry)}{other}")


def instead(entry: Beside) -> str:
    """Return the settings of our runs that a smaller size has instead of those of the printed row."""
    if entry.there is None or entry.figure == RUNS:
        return ""
    whole = "global_batch" in entry.there.settings
    names = ("devices", "global_batch" if whole else "batch", "precision", "loader.workers")
    changed = [name for name in names if entry.there.get(name) != entry.planned.get(name)]
    told = [f"{word(name.rpartition('.')[2])} {entry.there.get(name)}" for name in changed]
    return f" at {', '.join(told)}" if told else ""


def interval_note(lines: Sequence[Sequence[Cell]]) -> list[str]:
    """Return what the brackets mean, if there are some."""
    if any(cell.low is not None for line in lines for cell in line):
        return ["[ ] = 95 % CI over jobs."]
    return ["One job each: no interval."] if any(cell.runs for line in lines for cell in line) else []


def amount_cell(amount: Amount, factor: float, runs: tuple[str, ...] = (), codes: tuple[str, ...] = ()) -> Cell:
    """Return a figure of ours in a unit with this factor."""
    value, low, high = (end / factor for end in (amount.value, amount.low, amount.high))
    several = len(amount.jobs) > 1
    return replace(interval_cell(value, low if several else None, high if several else None, 4), runs=runs, codes=codes)


def interval_cell(value: float, low: float | None, high: float | None, figures: int = 3) -> Cell:
    """Return a number with its interval, if it has one."""
    text = number(value, figures)
    if low is not None and high is not None:
        text += f" [{number(low, figures)}, {number(high, figures)}]"
    return Cell(text, value, low, high)


def factor_of(unit: str) -> float:
    """Return how many of its base unit a unit has."""
    known = unit_of(unit)
    return known[1] if known is not None else 1.0
