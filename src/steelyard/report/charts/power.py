"""Drawing of the power of one run over time, with its table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from steelyard.report.charts.power_svg import power_svg, shown_lines
from steelyard.report.page import Cell, Column, Drawing, Table
from steelyard.terminal.energy import summary_of
from steelyard.terminal.text import number

if TYPE_CHECKING:
    from steelyard.analysis.energy import CellEnergy
    from steelyard.analysis.power_trace import PowerLine, PowerTrace

ROWS = 100


def power_drawing(entry: CellEnergy, trace: PowerTrace, name: str = "power") -> Drawing:
    """Draw the power of a run of this cell; `analysis.energy.plotted` returns both arguments."""
    title = f"Power of run {trace.run_id}"
    summary = summary_of(entry, trace)
    # A page may have several drawings, so ids get unique names. Untrusted texts are escaped and cannot contain them.
    svg = power_svg(trace, title, summary)
    svg = svg.replace('aria-labelledby="title desc"', f'aria-labelledby="{name}-title {name}-desc"', 1)
    for tag in ("title", "desc"):
        svg = svg.replace(f'id="{tag}"', f'id="{name}-{tag}"', 1)
    rows = [row for line in shown_lines(trace.lines) for row in _rows(line, trace.run_id)]
    columns = (
        Column("domain", align="left"),
        Column("time", "s"),
        Column("smallest", "W"),
        Column("mean", "W"),
        Column("largest", "W"),
    )
    notes = ("Time on the clock of the run. Energy comes from all readings, not from these points.", *trace.notes[:20])
    table = Table(f"{name}-data", f"Power of run {trace.run_id}", columns, tuple(rows), notes)
    lines = shown_lines(trace.lines)
    each = [
        f"{line.name} from {number(float(line.low_w.min()), 3)} to {number(float(line.high_w.max()), 3)} W"
        for line in lines
    ]
    phases = ", ".join(dict.fromkeys(phase.name for phase in trace.phases))
    seconds = trace.end_s - trace.start_s
    text = f"{summary[:1].upper()}{summary[1:]}"
    words = f"Power over {number(seconds, 3)} s ({phases or 'no phases'}): {'; '.join(each)}. {text}."
    return Drawing(name, title, svg, words, table)


def _rows(line: PowerLine, run_id: str) -> list[tuple[Cell, ...]]:
    starts = np.unique(np.linspace(0, line.time_s.size, min(ROWS, line.time_s.size), endpoint=False).astype(np.intp))
    counts = np.diff(starts, append=line.time_s.size)
    time_s, mean_w = (np.add.reduceat(column, starts) / counts for column in (line.time_s, line.mean_w))
    low_w, high_w = np.minimum.reduceat(line.low_w, starts), np.maximum.reduceat(line.high_w, starts)
    place = f"{line.node} {line.name}".strip()
    rows = []
    for at, figures in zip(time_s.tolist(), zip(low_w, mean_w, high_w, strict=True), strict=True):
        watts = (Cell(number(float(value), 4), float(value), runs=(run_id,)) for value in figures)
        rows.append((Cell(place, place), Cell(number(at, 4), at), *watts))
    return rows
