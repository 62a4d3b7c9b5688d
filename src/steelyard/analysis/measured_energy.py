"""Energy of configurations with what their runs' sensor files tell: what was measured, and the power over time."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from steelyard.analysis.energy import MAIN, CellEnergy, energy_cells, why_not
from steelyard.analysis.power_trace import counted_scopes, power_trace
from steelyard.derive.observations import Observations
from steelyard.errors import SteelyardError
from steelyard.results.store import RAW

if TYPE_CHECKING:
    from collections.abc import Sequence

    from steelyard.analysis.power_trace import PowerTrace
    from steelyard.analysis.summary import CellSummary
    from steelyard.contracts.energy import DomainScope
    from steelyard.derive.observations import NodeSensors
    from steelyard.results.store import ResultFolder

# The most runs that are tried to find one to draw.
MAX_TRIED = 20


def cells_with_energy(folder: ResultFolder, cells: Sequence[CellSummary]) -> list[CellEnergy]:
    """Return the energy of each configuration; what was measured is read from the runs' sensor files."""
    scopes: dict[str, tuple[DomainScope, ...]] = {}
    for cell in cells:
        for record in cell.records:
            main = record.quantities.get(MAIN)
            if main is not None and main.value is not None and main.validity is not None:
                nodes: list[NodeSensors] = []
                # Without complete raw files the record itself has to do.
                with contextlib.suppress(SteelyardError, OSError):
                    nodes = Observations(folder.run_path(record.spec) / RAW).nodes
                scopes[record.run_id] = counted_scopes(nodes, main.validity.domains)
    return energy_cells(cells, scopes)


def plotted(folder: ResultFolder, cells: Sequence[CellEnergy]) -> tuple[CellEnergy, PowerTrace] | None:
    """Return the power trace of the first run with a valid energy, or else of the first that was watched."""
    runs = [(entry, record) for entry in cells for record in entry.cell.records]
    for entry, record in sorted(runs, key=lambda pair: why_not(pair[1]) is not None)[:MAX_TRIED]:
        with contextlib.suppress(SteelyardError, OSError):
            trace = power_trace(record, folder.run_path(record.spec) / RAW)
            if trace.lines:
                return entry, trace
    return None
