"""Energy of an epoch as a document prints it, beside what its other figures give. Knows columns; asks the relations."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from steelyard.audit.energy import device_power, power_sum
from steelyard.audit.recompute import unit_factor
from steelyard.report.audit.claims import claims_table
from steelyard.report.audit.published import NO_REPEATS, metric_unit, printed_cell, setting_cell, verdict_words
from steelyard.report.charts.published import ChartText, Series, Spot, over_batch_chart
from steelyard.report.page import Cell, Column, Section, Table
from steelyard.report.study.subject import merged
from steelyard.rules.claim import Span
from steelyard.rules.table.relations import observed, solve, variable
from steelyard.terminal.text import capital, number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from steelyard.audit.judge import Judgement
    from steelyard.report.audit.published import JudgedDocument
    from steelyard.report.audit.reference_curves import Rows
    from steelyard.report.page import Chart
    from steelyard.rules.table.relations import Bounds
    from steelyard.rules.table.row import Amount, Row

PER_ENERGY = "items_per_energy"
KEY = "global_batch"


def energy_section(document: JudgedDocument, judgements: Sequence[Judgement], asked: Sequence[Rows]) -> Section:
    """Energy of an epoch over the batch, work per energy worked out again, and the power that the figures come to."""
    name = f"{document.name}-energy"
    groups = {entry.label: document.select(entry.wanted) for entry in asked}
    every = [row for rows in groups.values() for row in rows]
    blocks: tuple[Chart | Table, ...] = (
        *(_energy_chart(document, label, rows, f"{name}-{n}") for n, (label, rows) in enumerate(groups.items(), 1)),
        _power_chart(document, groups, f"{name}-power"),
        *(_table(document, label, rows, f"{name}-{n}-rows") for n, (label, rows) in enumerate(groups.items(), 1)),
        claims_table(judgements, f"{name}-claims"),
    )
    answers = " ".join(_words(document, label, rows) for label, rows in groups.items())
    return Section(
        name,
        f"{document.name}: energy of an epoch",
        "What does an epoch cost in energy, and can that be?",
        f"{answers} {verdict_words(judgements)}.",
        blocks,
        merged(document.findings_on(every)),
    )


def energy_metric(row: Row) -> str:
    """The energy of an epoch that a row prints, of the job or of a device; empty where it prints none."""
    return next((metric for metric in row.figures if metric.startswith("energy_per_epoch")), "")


def per_energy_metric(row: Row) -> str:
    """The work per energy that a row prints; empty where it prints none."""
    return next((metric for metric in row.figures if variable(row, metric) == PER_ENERGY), "")


def worked_out(row: Row) -> Bounds | None:
    """Work per energy from the other figures of a row; None where they do not give it."""
    given = {name: bounds for name, bounds in observed(row).items() if name != PER_ENERGY}
    return solve(given).known.get(PER_ENERGY)


def follows(row: Row) -> bool | None:
    """Whether the printed work per energy may be what the other figures give; None where they give none."""
    metric, reached = per_energy_metric(row), worked_out(row)
    if not metric or reached is None:
        return None
    amount = row.figures[metric]
    return Span(math.exp(reached.low), math.exp(reached.high)).meets(Span(amount.low, amount.high))


def power_w(row: Row) -> float | None:
    """Power of one device that the figures of a row come to."""
    found = device_power(row)
    return None if found is None else found.middle


def _limit_w(document: JudgedDocument, rows: Sequence[Row]) -> float | None:
    limits = {platform.power_limit_w for row in rows if (platform := document.table.platform(row)) is not None}
    return limits.pop() if len(limits) == 1 else None


def _words(document: JudgedDocument, label: str, rows: Sequence[Row]) -> str:
    metric = energy_metric(rows[0])
    energies = [row.figures[metric] for row in rows]
    powers = [power for row in rows if (power := power_w(row)) is not None]
    codes = dict.fromkeys(found.code for row in rows for found in document.blocking(row))
    limit = _limit_w(document, rows)
    of = " of a device" if metric.endswith("_per_device") else ""
    said = f"{label}: {_range(energies)} {energies[0].unit}{of} an epoch"
    if powers:
        bound = f", where {number(limit, 3)} W is the limit" if limit else ""
        said += f", which comes to {number(min(powers), 3)} to {number(max(powers), 3)} W a device{bound}"
    blocked = f" (blocked: {', '.join(codes)})" if codes else ""
    return f"{said}{blocked}."


def _range(amounts: Sequence[Amount]) -> str:
    low, high = (end(amounts, key=lambda amount: amount.value) for end in (min, max))
    return low.text if low.text == high.text else f"{low.text} to {high.text}"


# -- pictures and tables


def _energy_chart(document: JudgedDocument, label: str, rows: Sequence[Row], name: str) -> Chart:
    metric = energy_metric(rows[0])
    unit = rows[0].figures[metric].unit
    whose = "of a device " if metric.endswith("_per_device") else ""
    spots = tuple(
        Spot(row.number(KEY) or 0.0, row.figures[metric].value / unit_factor(row.figures[metric]),
             bool(document.blocking(row)))
        for row in rows
    )  # fmt: skip
    told = ChartText(
        name,
        f"Energy {whose}in an epoch: {label}",
        f"{_words(document, label, rows)} From batch {spots[0].x:,g} to {spots[-1].x:,g}.",
        (NO_REPEATS, "Which part of a run the energy is of, the document does not say."),
    )
    return over_batch_chart(told, f"energy {whose}in an epoch", unit, [Series(label, spots)])


def _power_chart(document: JudgedDocument, groups: dict[str, list[Row]], name: str) -> Chart:
    every = [row for rows in groups.values() for row in rows]
    series = []
    for label, rows in groups.items():
        known = [(row, power) for row in rows if (power := power_w(row)) is not None]
        spots = (Spot(row.number(KEY) or 0.0, power, bool(document.blocking(row))) for row, power in known)
        series.append(Series(label, tuple(spots)))
    limit = _limit_w(document, every)
    sums = [f"{label}: {power_sum(rows[0])} at batch {rows[0].number(KEY):,g}" for label, rows in groups.items()]
    told = ChartText(
        name,
        "Power of a device that the figures come to",
        " ".join(_words(document, label, rows) for label, rows in groups.items()),
        (f"Not measured, but worked out: {'; '.join(sums)}.", "Crosses: a finding blocks, power above the limit."),
    )
    return over_batch_chart(told, "power of a device", "W", series, limit=limit, logarithmic=True)


def _table(document: JudgedDocument, label: str, rows: Sequence[Row], name: str) -> Table:
    metric, per_energy = energy_metric(rows[0]), per_energy_metric(rows[0])
    told = any(follows(row) is not None for row in rows)
    columns = (
        Column("batch", "samples"), Column("throughput", metric_unit(rows, "throughput")),
        Column(metric.replace("_", " "), metric_unit(rows, metric)),
        Column(f"{per_energy.replace('_', ' ')}, printed", metric_unit(rows, per_energy)),
        *((Column("worked out", metric_unit(rows, per_energy)), Column("follows", align="left")) if told else ()),
        Column("power of a device, worked out", "W"),
    )  # fmt: skip
    made = []
    for row in rows:
        power = power_w(row)
        made.append(
            (
                setting_cell(row, KEY), printed_cell(row, "throughput"), printed_cell(row, metric),
                printed_cell(row, per_energy), *(_worked_cells(row, per_energy) if told else ()),
                Cell("not known") if power is None else Cell(number(power, 4), power, codes=document.codes_on(row)),
            )
        )  # fmt: skip
    unlike = f"{per_energy.replace('_', ' ')} do not follow from an epoch, which is stated in samples."
    notes = (NO_REPEATS,) if told else (NO_REPEATS, capital(unlike))
    return Table(name, f"Energy, {label}: as printed and worked out", columns, tuple(made), notes)


def _worked_cells(row: Row, per_energy: str) -> tuple[Cell, Cell]:
    """Work per energy from the other figures, and whether what is printed may be it."""
    found, fits = worked_out(row), follows(row)
    if found is None or fits is None:
        return Cell("cannot be told"), Cell("-")
    value = found.middle / unit_factor(row.figures[per_energy])
    said = "yes, within the digits" if fits else "no"
    return Cell(number(value, 6), value), Cell(said, said)
