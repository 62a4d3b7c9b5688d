"""What a report says at the size tiny: which configurations run. Figures of reduced models are no results."""

from __future__ import annotations

from typing import TYPE_CHECKING

from steelyard.report.page import Cell
from steelyard.terminal.tables import not_measured_as

if TYPE_CHECKING:
    from collections.abc import Sequence

    from steelyard.analysis.summary import CellSummary

RUNS = "runs"
"""Name of the only figure of the size tiny."""
NOTE = f"{RUNS} = it does on this machine, with a reduced model and generated data."


def runs_cell(cell: CellSummary) -> Cell:
    """Return whether a configuration runs, or how its runs ended."""
    text = not_measured_as(cell.statuses) or RUNS
    return Cell(text, text)


def runs_answer(cells: Sequence[CellSummary | None], what: str) -> str:
    """Count the configurations that run; None: not measured."""
    count = sum(cell is not None and not not_measured_as(cell.statuses) for cell in cells)
    return f"{count} of {len(cells)} {what} run"


def figures_run(cells: Sequence[CellSummary | None]) -> str:
    """Count the printed figures whose configuration runs."""
    return runs_answer(cells, "figures' configurations")
