"""Figures and configurations as plain data, the same in every document that `--json` prints."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from steelyard.analysis.energy import FIGURES, energy_cells
from steelyard.analysis.ratios import LEVEL
from steelyard.analysis.rows import chosen_names, row_of, settings_in_effect
from steelyard.analysis.summary import CellSummary, labels, rated
from steelyard.contracts.base import to_json_object
from steelyard.contracts.observe import MEASURED
from steelyard.numbers import natural_order
from steelyard.terminal.findings import findings_object

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from steelyard.contracts.record import Interval, Quantity
    from steelyard.rules.table.row import Amount, Row
    from steelyard.stats.quotient import Estimate
    from steelyard.terminal.shapes.common import ConfigurationData, FigureData, ShownConfigurationData


def figure_object(quantity: Quantity, jobs: int) -> FigureData:
    """Return a quantity with its interval; `jobs`: how many are behind it."""
    interval: Interval | None = quantity.interval
    return {
        "value": quantity.value,
        "low": interval.low if interval is not None else None,
        "high": interval.high if interval is not None else None,
        "level": interval.level if interval is not None else None,
        "unit": quantity.unit,
        "jobs": jobs,
        "reason": quantity.reason,
        "approximate": list(interval.approximate) if interval is not None else [],
        "method": interval.method if interval is not None else None,
        "scope": quantity.scope,
        "window": quantity.window,
        "validity": to_json_object(quantity.validity),
    }


def estimate_object(estimate: Estimate, jobs: int, unit: str = "1") -> FigureData:
    """Return a ratio, or another value that was calculated from figures."""
    return number_object(estimate.value, estimate.low, estimate.high, estimate.level, unit=unit, jobs=jobs)


def number_object(
    value: float | None, low: float | None, high: float | None, level: float | None, *, unit: str, jobs: int
) -> FigureData:
    """Return a number that was calculated from figures, with its interval; an infinite end is none."""
    low, high = (None if end is None or math.isinf(end) else end for end in (low, high))
    return {
        "value": value,
        "low": low,
        "high": high,
        "level": None if low is None and high is None else level,
        "unit": unit,
        "jobs": jobs,
        "reason": None,
        "approximate": None,
        "method": None,
        "scope": None,
        "window": None,
        "validity": None,
    }


def configuration_object(
    cell: CellSummary, name: str, chosen: Collection[str], row: Row | None = None
) -> ConfigurationData:
    """Return a configuration under the name that distinguishes it from the others shown.

    `chosen`: names of settings that one of those shown does not leave at its default; `row`: if it is known.
    """
    return {
        "study": cell.study,
        "configuration": name,
        "selection": selection_of(cell),
        "settings": settings_in_effect(row or row_of(cell), chosen),
        "statuses": cell.statuses,
        "jobs": sum(record.status.code in MEASURED for record in cell.records),
        "nodes": list(cell.nodes),
        "throughput": throughput_object(cell),
        "unreliable": list(cell.unreliable),
        "findings": findings_object(cell.findings),
    }


def selection_of(cell: CellSummary) -> str:
    """Return the word that selects a configuration on the command line."""
    return f"{cell.study}/{cell.name}"


def throughput_object(cell: CellSummary) -> FigureData:
    """Return the throughput of a configuration, over the jobs that have one."""
    return figure_object(cell.throughput, rated(cell.records))


def amount_object(amount: Amount) -> FigureData:
    """Return a figure of a row: as all verbs show it if it is of our own jobs, else with the bounds of its digits."""
    jobs = len(amount.jobs)
    if amount.quantity is not None:
        return figure_object(amount.quantity, jobs)
    low, high = (None, None) if amount.low == amount.high else (amount.low, amount.high)
    return number_object(amount.value, low, high, LEVEL if jobs else None, unit=amount.unit, jobs=jobs)


def shown_configurations(cells: Sequence[CellSummary]) -> list[ShownConfigurationData]:
    """Return configurations with all their figures, in the order of the tables."""
    names, chosen = labels(cells), chosen_names(cell.spec for cell in cells)
    shown: list[ShownConfigurationData] = []
    for cell in sorted(cells, key=lambda cell: natural_order(names[cell.name])):
        row = row_of(cell)
        shown.append(
            {
                **configuration_object(cell, names[cell.name], chosen, row),
                "figures": _figures(cell, row),
                "shorter_runs": cell.shorter,
                "runs": [record.run_id for record in cell.records],
            }
        )
    return shown


def _figures(cell: CellSummary, row: Row) -> dict[str, FigureData]:
    """Return the figures of a configuration: those that all measured jobs have, and energies of the jobs that count."""
    figures = {"throughput": throughput_object(cell)}
    figures |= {name: amount_object(amount) for name, amount in row.figures.items() if name not in figures}
    if cell.time_to_quality is not None:
        figures["time_to_quality"] = figure_object(cell.time_to_quality, len(cell.records))
    if any(quantity.validity is not None for record in cell.records for quantity in record.quantities.values()):
        # Energies are over the jobs that count, and are unknown if jobs do not measure the same.
        (energy,) = energy_cells([cell], {})
        figures = {name: figure for name, figure in figures.items() if name not in FIGURES}
        figures |= {name: figure_object(quantity, energy.counts[name]) for name, quantity in energy.figures.items()}
    return figures
