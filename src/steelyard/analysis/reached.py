"""The figure that tells what a configuration reached, and the units of people's tables: TFLOP/s, GB/s, images/s."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from steelyard.analysis.rows import row_of
from steelyard.inputs.catalogue import load as catalogue

if TYPE_CHECKING:
    from steelyard.analysis.summary import CellSummary
    from steelyard.rules.table.row import Amount

TABLE_UNITS = {"FLOP/s": "TFLOP/s", "B/s": "GB/s", "bytes": "GB", "1": "%"}
"""Units of our own figures, and those that tables print."""
CEILINGS = ("bus_bandwidth", "bandwidth_device", "model_flops_device")
IMAGES = ("classification", "detection", "segmentation")
"""Families of workloads whose samples are images."""


def reached(cell: CellSummary) -> Amount | None:
    """Return what a configuration reached: FLOP/s or bytes per second of a ceiling, else a rate."""
    row = row_of(cell)
    names = CEILINGS if cell.spec.mode == "ceiling" else rates_of(cell.spec.workload)
    known = (row.figures[name] for name in names if name in row.figures)
    amount = next(known, None)
    return None if amount is None else in_table_unit(amount, cell.spec.workload)


def rates_of(workload: str) -> tuple[str, ...]:
    """Return the names of the throughput of a workload, the usual one first: language models have one in tokens."""
    return ("throughput",) if _family(workload) in IMAGES else ("token_throughput", "throughput")


def in_table_unit(amount: Amount, workload: str) -> Amount:
    """Return a figure with the unit that a table prints it in; its value stays in the base unit."""
    if amount.unit == "samples/s" and _family(workload) in IMAGES:
        return replace(amount, unit="images/s")
    return replace(amount, unit=TABLE_UNITS.get(amount.unit, amount.unit))


def _family(workload: str) -> str:
    return str(catalogue()["workloads"].get(workload, {}).get("family", ""))
