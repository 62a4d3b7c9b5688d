"""What a machine reaches, where no document prints a figure: a line for each thing measured, beside the data sheet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from steelyard.inputs.catalogue import load as catalogue
from steelyard.numbers import number, short
from steelyard.report.page import Cell, Column, KeyFigure, Table
from steelyard.report.suite.cells import amount_cell, factor_of, interval_note, word
from steelyard.report.suite.figures import our_figure
from steelyard.terminal.text import many

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from steelyard.analysis.summary import CellSummary
    from steelyard.contracts.observe import DeviceFacts
    from steelyard.contracts.record import RunRecord
    from steelyard.inputs.suite import Planned, PrintedTable
    from steelyard.report.suite.beside import SuiteResults
    from steelyard.rules.table.row import Amount, Row

NAME = "this-machine"
"""Of the table."""
MODES = {"train": "training", "infer": "inference", "generate": "generation", "load": "loading"}
NAMED = ("bus_bandwidth", "power_job")
"""Figures that their unit does not tell from another figure of the same runs."""
OF_PEAK = ("model_flops_device", "throughput")
"""Figures beside the peak of the device."""
MEMORY = "memory-bandwidth"
TERA, GIGA = 1e12, 1e9


@dataclass(frozen=True)
class Reached:
    """A figure of a configuration, and what the data sheet of its device has for it."""

    what: str
    amount: Amount
    cell: CellSummary
    sheet: str
    """The value of the data sheet with its unit; empty: unknown."""
    share: float | None
    """The measured part of it; of a model: of its FLOP/s."""


def _reached_in(results: SuiteResults, table: PrintedTable) -> list[Reached]:
    """Return the first known figure of each configuration of a table; of a row over columns, that of the last one."""
    plan = results.plan(results.suite_folder.part(table.part))
    found: dict[tuple[str, ...], Reached] = {}
    for planned in plan:
        measured = results.ours(planned)
        if measured is None:
            continue
        cell, run = measured
        for name in table.figures:
            amount = our_figure(run, name)
            if amount is not None:
                what = _named(planned, plan, table)
                told = f"{what}: {word(name.removesuffix('_job'))}" if name in NAMED else what
                place = tuple(str(planned.get(key)) for key in table.rows) if table.columns else (told,)
                found[place] = Reached(told, amount, cell, *_sheet(name, amount, cell, run.row))
                break
    return [*found.values()]


def reached_lines(results: SuiteResults) -> list[Reached]:
    """Return what a machine reaches, in the order of the tables."""
    lines: dict[str, Reached] = {}
    for table in results.suite.table:
        for one in _reached_in(results, table):
            # With one device, the last table repeats what an earlier one has.
            lines.setdefault(one.what, one)
    return [*lines.values()]


def key_figures(lines: Sequence[Reached]) -> list[KeyFigure]:
    """Return the first figure of each unit."""
    first: dict[str, Reached] = {}
    for one in lines:
        first.setdefault(one.amount.unit, one)
    return [
        KeyFigure(
            one.what,
            number(one.amount.value / factor_of(unit), 3),
            unit,
            f"{number(100 * one.share, 3)} % of {one.sheet}" if one.share is not None else "",
        )
        for unit, one in first.items()
    ]


def reached_table(lines: Sequence[Reached]) -> Table:
    """Return what a machine reaches in one table, with the data sheet of its device beside it."""
    columns = (
        Column("what", align="left"),
        Column("here"),
        Column("unit", align="left"),
        Column("data sheet"),
        Column("of it", "%"),
    )
    rows = [
        (
            Cell(one.what),
            amount_cell(one.amount, factor_of(one.amount.unit)),
            Cell(one.amount.unit),
            Cell(one.sheet or "-"),
            Cell("-") if one.share is None else Cell(number(100 * one.share, 3), 100 * one.share),
        )
        for one in lines
    ]
    notes = (*interval_note(rows), *_notes(lines))
    return Table(NAME, "What this machine reaches", columns, tuple(rows), notes)


def _named(planned: Planned, plan: Sequence[Planned], table: PrintedTable) -> str:
    """Return the settings that tell a configuration from others: for a ceiling only those that vary."""
    workload = planned.get("workload")
    if planned.get("mode") == "ceiling":
        alike = [one for one in plan if one.get("workload") == workload]
        keys = [key for key in table.rows if key not in ("workload", "devices")]
        varying = [key for key in keys if len({one.get(key) for one in alike}) > 1]
        told = [catalogue()["workloads"][workload]["title"], *(str(planned.get(key)) for key in varying)]
    else:
        mode = planned.get("mode")
        told = [workload, MODES.get(mode, mode), planned.get("precision"), f"batch {planned.get('batch')}"]
    devices = planned.get("devices")
    return ", ".join([*told, *([many(devices, "device")] if devices > 1 else [])])


def _sheet(name: str, amount: Amount, cell: CellSummary, row: Row) -> tuple[str, float | None]:
    """Return the data sheet's value for a figure, and the measured part of it."""
    device, flops = _device_of(cell), row.figures.get("model_flops_device")
    if cell.spec.workload == MEMORY and device is not None and device.memory_bytes_per_s:
        return f"{short(device.memory_bytes_per_s / GIGA)} GB/s", amount.value / device.memory_bytes_per_s
    if name in OF_PEAK and device is not None and flops is not None and (peak := _peak(cell.records[0])):
        return f"{short(peak / TERA)} TFLOP/s", flops.value / peak
    # The limit of a card or module with other parts says nothing about the part that was measured.
    alone = device is not None and device.scope == "device" and device.dies == 1 and cell.spec.devices == 1
    if name == "power_job" and device is not None and alone and device.power_limit_w:
        return f"{short(device.power_limit_w)} W", amount.value / device.power_limit_w
    return "", None


def _peak(record: RunRecord) -> float | None:
    """Return the peak that a job's share was calculated with, in FLOP/s; None: unknown."""
    flops, share = (record.quantities.get(name) for name in ("model_flops_device", "model_flops_utilisation"))
    if flops is None or share is None or not flops.value or not share.value:
        return None
    return flops.value / share.value


def _device_of(cell: CellSummary) -> DeviceFacts | None:
    """Return the device of a configuration, if all its jobs ran on the same model."""
    models = {record.device.model if record.device is not None else None for record in cell.records}
    return cell.records[0].device if len(models) == 1 else None


def _notes(lines: Sequence[Reached]) -> Iterator[str]:
    """Yield where the values of the data sheet come from, and why some are missing."""
    records = [record for one in lines for record in one.cell.records]
    devices = {
        record.device.name if record.device is not None else record.spec.device_family: record.device
        for record in records
    }
    for name, facts in sorted(devices.items()):
        if facts is None or facts.model is None:
            yield f"{name}: not in steelyard's table of devices, so that no value of its data sheet is known."
        else:
            yield f"Data sheet of {name}: {'; '.join(facts.sources)}."
    if any(one.share is not None for one in lines):
        yield "Peaks are dense, in the precision of the line; of a model, its FLOP/s are compared with the peak."
        yield "-: not in steelyard's table of devices, which has no bandwidths of links."
