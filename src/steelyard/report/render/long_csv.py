"""Configurations as CSV with one line per figure: a column for each setting, then metric, value, low, high and unit."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING

from steelyard.report.render.csv_table import inert
from steelyard.terminal.plain import selection_of, shown_configurations
from steelyard.terminal.text import count_statuses

if TYPE_CHECKING:
    from collections.abc import Sequence

    from steelyard.analysis.summary import CellSummary

WHO = ("study", "configuration", "selection")
WHAT = ("runs", "findings", "jobs", "metric", "value", "low", "high", "unit")


def long_csv(cells: Sequence[CellSummary]) -> str:
    """Return every figure of every configuration; a configuration without a figure has a throughput without a value."""
    configurations = shown_configurations(cells)
    by_selection = {selection_of(cell): cell for cell in cells}
    keys = list(dict.fromkeys(key for each in configurations for key in each["settings"]))
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    # A parameter of a program may have any name.
    writer.writerow([*WHO, *(f"settings.{key}" if key in WHO + WHAT else inert(key) for key in keys), *WHAT])
    for each in configurations:
        head = [each["study"], inert(each["configuration"]), each["selection"]]
        head += [_cell(each["settings"].get(key)) for key in keys]
        codes = " ".join(finding.code for finding in by_selection[each["selection"]].findings)
        for metric, figure in each["figures"].items():
            numbers = [_cell(figure[end]) for end in ("value", "low", "high")]
            about = [count_statuses(each["statuses"]), codes, str(figure["jobs"]), inert(metric)]
            writer.writerow([*head, *about, *numbers, inert(figure["unit"])])
    return out.getvalue()


def _cell(value: bool | float | str | None) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return inert(value)
    return str(value).lower() if isinstance(value, bool) else repr(value)
