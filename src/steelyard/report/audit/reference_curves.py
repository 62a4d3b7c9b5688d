"""Curves of built-in documents: rates over devices and over the batch. Knows which rows make one; divides nothing."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from steelyard.audit.recompute import digits
from steelyard.report.audit.claims import claims_table
from steelyard.report.audit.published import (
    BLOCKED,
    NO_REPEATS,
    VERDICTS,
    metric_unit,
    printed_cell,
    ratio_cell,
    selection,
    setting_cell,
    verdict_cell,
    verdict_words,
)
from steelyard.report.charts.published import ChartText, Series, Spot, batch_chart, devices_chart, efficiency_chart
from steelyard.report.page import Cell, Column, Prose, Section, Table
from steelyard.report.study.subject import merged
from steelyard.stats.knee import BatchTimes, knee
from steelyard.terminal.text import capital, number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from steelyard.audit.judge import Judgement
    from steelyard.contracts.record import Finding
    from steelyard.report.audit.published import Held, JudgedDocument
    from steelyard.report.page import Chart
    from steelyard.rules.table.row import Row
    from steelyard.stats.knee import Knee

RATE = "throughput"


@dataclass(frozen=True)
class Rows:
    """Rows that one curve is made of, as a selection of a document."""

    label: str
    wanted: str
    picture: str = ""
    """Curves with the same word share a picture and a table."""


@dataclass(frozen=True)
class Curve:
    """The same with its rows, each held against the first."""

    label: str
    picture: str
    rows: tuple[Row, ...]
    held: dict[str, Held]
    """By place; the base is not in it."""

    @property
    def largest(self) -> Row:
        """The fastest row of the largest size."""
        return max(self.rows, key=lambda row: (row.number("devices") or 0.0, row.figures[RATE].value))

    @property
    def blocked(self) -> tuple[str, ...]:
        """Codes of what forbids a ratio anywhere on it."""
        return tuple(dict.fromkeys(code for entry in self.held.values() if entry.blocked for code in entry.codes))

    @property
    def verdicts(self) -> str:
        """All verdicts on it, with their codes."""
        found = {entry.verdict: None for entry in self.held.values()}
        codes = dict.fromkeys(code for entry in self.held.values() for code in entry.codes)
        return f"{' and '.join(found)} ({', '.join(codes)})"


def _curve(document: JudgedDocument, asked: Rows, factor: str) -> Curve:
    rows = sorted(document.select(asked.wanted), key=lambda row: row.number(factor) or 0.0)
    held = {row.place: document.hold(rows[0], row, factor, RATE) for row in rows[1:]}
    return Curve(asked.label, asked.picture or asked.label, tuple(rows), held)


def _findings(document: JudgedDocument, curves: Sequence[Curve]) -> tuple[Finding, ...]:
    rows = [row for curve in curves for row in curve.rows]
    held = [found for curve in curves for entry in curve.held.values() for found in entry.findings]
    return merged((*document.findings_on(rows), *held))


# -- over devices


def scaling_section(
    document: JudgedDocument, judgements: Sequence[Judgement], asked: Sequence[Rows], device: str = "devices"
) -> Section:
    """Rates over devices on linear axes with the ideal line, and efficiencies where nothing blocks."""
    name = f"{document.name}-scaling"
    curves = [_curve(document, entry, "devices") for entry in asked]
    groups: dict[str, list[Curve]] = {}
    for curve in curves:
        groups.setdefault(curve.picture, []).append(curve)
    pictures = [_rates_chart(document, own, f"{name}-{place}", device) for place, own in enumerate(groups.values(), 1)]
    tables = [_scaling_table(document, own, f"{name}-{place}-rows") for place, own in enumerate(groups.values(), 1)]
    commands = [_scaling_command(document.name, entry, curve) for entry, curve in zip(asked, curves, strict=True)]
    return Section(
        name,
        f"{document.name}: scaling over {device}",
        f"How far does the work scale over {device}?",
        f"{_efficiency_words(curves, device)} {verdict_words(judgements)}.",
        (
            *pictures,
            _efficiency_chart(curves, f"{name}-efficiency", device),
            *tables,
            claims_table(judgements, f"{name}-claims"),
            Prose(("The same in a terminal, for the last row of each curve:",), code="\n".join(commands)),
        ),
        _findings(document, curves),
    )


def _rates_chart(document: JudgedDocument, curves: Sequence[Curve], name: str, device: str) -> Chart:
    series = [
        Series(
            curve.label,
            tuple(
                Spot(row.number("devices") or 0.0, row.figures[RATE].value, bool(document.blocking(row)))
                for row in curve.rows
            ),
            ideal=True,
        )
        for curve in curves
    ]
    lost = [f"{row.number('devices'):g} {device}: {', '.join(document.codes_on(row))}"
            for curve in curves for row in curve.rows if document.blocking(row)]  # fmt: skip
    notes = [f"Verdict on ratios to the base: {'; '.join(f'{c.label}: {c.verdicts}' for c in curves)}."]
    notes += [f"A cross, and no ideal line to it, where a finding blocks: {'; '.join(lost)}."] if lost else []
    notes.append(NO_REPEATS)
    unit = metric_unit(curves[0].rows, RATE)
    alt = "; ".join(
        f"{curve.label}: {digits(curve.rows[0].figures[RATE])} {unit} on {_count(curve.rows[0], device)}, "
        f"{digits(curve.largest.figures[RATE])} on {_count(curve.largest, device)}"
        for curve in curves
    )
    told = ChartText(name, f"Throughput over {device}: {curves[0].picture}", f"{alt}.", tuple(notes))
    return devices_chart(told, "throughput of the job", unit, series, device=device)


def _count(row: Row, device: str) -> str:
    count = row.number("devices") or 0.0
    return f"{count:g} {device.removesuffix('s') if count == 1 else device}"


def _efficiency_chart(curves: Sequence[Curve], name: str, device: str) -> Chart:
    series = []
    for curve in curves:
        base = Spot(curve.rows[0].number("devices") or 0.0, 100.0)
        reached = [
            Spot(entry.b.number("devices") or 0.0, 100 * entry.ratios["device"].value)
            for entry in curve.held.values()
            if "device" in entry.ratios
        ]
        series.append(Series(curve.label, (base, *reached)))
    blocked = [f"{curve.label}: {', '.join(curve.blocked)}" for curve in curves if curve.blocked]
    fair = [entry for curve in curves for entry in curve.held.values() if not entry.blocked]
    verdicts = " and ".join(dict.fromkeys(entry.verdict for entry in fair))
    codes = ", ".join(dict.fromkeys(code for entry in fair for code in entry.codes))
    notes = [f"{capital(verdicts)} ({codes}). Of the first row of each curve."]
    notes += [f"Rows that a finding blocks have none: {'; '.join(blocked)}."] if blocked else []
    notes.append("Of several set-ups of one size the line goes through the best; no repeats, so no intervals.")
    told = ChartText(name, f"Efficiency over {device}", _efficiency_words(curves, device), tuple(notes))
    return efficiency_chart(told, series, device=device)


def _efficiency_words(curves: Sequence[Curve], device: str) -> str:
    """The best efficiency at the largest count that has one; the verdict comes before it."""
    known = [entry for curve in curves for entry in curve.held.values() if "device" in entry.ratios]
    parts = []
    for curve in curves:
        shares = [
            (entry.b.number("devices") or 0.0, entry.ratios["device"].value)
            for entry in curve.held.values()
            if "device" in entry.ratios
        ]
        none = f"none beyond ({', '.join(curve.blocked)})" if curve.blocked else ""
        reached = f"{100 * max(shares)[1]:.1f} % at {max(shares)[0]:g}" if shares else ""
        parts.append(f"{curve.label}: {', '.join(filter(None, (reached, none)))}")
    verdicts = " and ".join(dict.fromkeys(entry.verdict for entry in known))
    return f"{capital(verdicts)}. Efficiency at the most {device}: {'; '.join(parts)}."


def _scaling_table(document: JudgedDocument, curves: Sequence[Curve], name: str) -> Table:
    rows = [row for curve in curves for row in curve.rows]
    metrics = list(dict.fromkeys(metric for row in rows for metric in row.figures))
    setup = any(row.get("parallelism") is not None for row in rows)
    columns = [
        Column("devices"), *(Column(metric.replace("_", " "), metric_unit(rows, metric)) for metric in metrics),
        Column("comparable", align="left"), Column("speed-up"), Column("efficiency", "%"),
        *([Column("set-up", align="left")] if setup else []),
        *([Column("figures of", align="left")] if len(curves) > 1 else []),
    ]  # fmt: skip
    made: list[tuple[Cell, ...]] = []
    for curve in curves:
        for row in curve.rows:
            held = curve.held.get(row.place)
            cells = [setting_cell(row, "devices")]
            cells += [printed_cell(row, metric, document.codes_on(row)) for metric in metrics]
            cells += [verdict_cell(held), ratio_cell(held, "job"), ratio_cell(held, "device", percent=True)]
            cells += [setting_cell(row, "parallelism")] if setup else []
            cells += [Cell(curve.label, curve.label)] if len(curves) > 1 else []
            made.append(tuple(cells))
    return Table(name, f"Scaling, {curves[0].picture}: as printed and worked out", tuple(columns), tuple(made),
                 (NO_REPEATS,))  # fmt: skip


def _scaling_command(name: str, asked: Rows, curve: Curve) -> str:
    first, last = (f"{asked.wanted},devices={row.get('devices')}" for row in (curve.rows[0], curve.largest))
    return f"steelyard compare '{selection(name, first)}' '{selection(name, last)}' --factor devices"


# -- over the batch


def batch_section(
    document: JudgedDocument, judgements: Sequence[Judgement], asked: Sequence[Rows], key: str
) -> Section:
    """Rates over the batch size, and where a curve stops paying: found as for our own runs, where nothing blocks."""
    name = f"{document.name}-batch"
    curves = [_curve(document, entry, key) for entry in asked]
    knees = [_knee(curve, key) for curve in curves]
    told = list(zip(curves, knees, strict=True))
    return Section(
        name,
        f"{document.name}: throughput over the batch size",
        "From which batch on does a larger one pay little?",
        f"{' '.join(_knee_words(curve, found) for curve, found in told)} {verdict_words(judgements)}.",
        (
            *(_batch_chart(document, curve, found, key, f"{name}-{n}") for n, (curve, found) in enumerate(told, 1)),
            _knee_table(told, name),
            *(_batch_table(curve, key, f"{name}-{n}-rows") for n, curve in enumerate(curves, 1)),
            claims_table(judgements, f"{name}-claims"),
        ),
        _findings(document, curves),
    )


def _knee(curve: Curve, key: str) -> Knee | None:
    """None where a finding forbids to hold the rates against each other."""
    if curve.blocked:
        return None
    points = []
    for row in curve.rows:
        batch = row.number(key) or math.nan
        points.append(BatchTimes(batch, (batch / row.figures[RATE].value,)))
    return knee(points)


def _knee_words(curve: Curve, found: Knee | None) -> str:
    if found is None:
        return f"{capital(curve.label)}: plain rates only, no knee ({', '.join(curve.blocked)})."
    ends = _knee_ends(found)
    where = f"batch {number(found.value, 3)}{ends}" if found.value is not None else f"{found.answer}{ends}"
    return f"{capital(curve.label)}: {curve.verdicts}; knee {where}: {found.reason}."


def _knee_ends(found: Knee) -> str:
    if found.low is None or found.high is None:
        return ""
    if not math.isfinite(found.high):
        return f" (above {number(found.low, 3)})"
    return f" (95 % interval {number(found.low, 3)} to {number(found.high, 3)})"


def _batch_chart(document: JudgedDocument, curve: Curve, found: Knee | None, key: str, name: str) -> Chart:
    spots = tuple(
        Spot(row.number(key) or 0.0, row.figures[RATE].value, bool(document.blocking(row))) for row in curve.rows
    )
    unit = metric_unit(curve.rows, RATE)
    first, last = curve.rows[0], curve.rows[-1]
    alt = (
        f"{digits(first.figures[RATE])} {unit} at batch {first.number(key):,g}, {digits(last.figures[RATE])} at "
        f"{last.number(key):,g}. {_knee_words(curve, found)}"
    )
    told = ChartText(name, f"Throughput over the batch size: {curve.label}", alt, (NO_REPEATS,))
    return batch_chart(told, "throughput of the job", unit, Series(curve.label, spots), found)


def _knee_table(told: Sequence[tuple[Curve, Knee | None]], name: str) -> Table:
    columns = (
        Column("curve", align="left"), Column("comparable", align="left"), Column("knee", "samples", align="left"),
        Column("from"), Column("to"), Column("how it was found, or why not", align="left"),
    )  # fmt: skip
    notes = (
        "The knee: the smallest batch with 90 % of the throughput that no batch passes. 95 % intervals of the fit.",
    )
    return Table(f"{name}-knees", "Knees", columns, tuple(_knee_row(*entry) for entry in told), notes)


def _knee_row(curve: Curve, found: Knee | None) -> tuple[Cell, ...]:
    if found is None:
        why = f"blocked: {', '.join(curve.blocked)}"
        verdict = Cell(VERDICTS[BLOCKED], BLOCKED, codes=curve.blocked)
        return Cell(curve.label, curve.label), verdict, Cell("none"), Cell("-"), Cell("-"), Cell(why, why)
    first = next(iter(curve.held.values()))
    value = Cell(found.answer if found.value is None else number(found.value, 3), found.value)
    ends = [
        Cell("-") if end is None else Cell(number(end, 3), end) if math.isfinite(end) else Cell("no bound")
        for end in (found.low, found.high)
    ]
    how = f"{found.method}: {found.reason}"
    return Cell(curve.label, curve.label), verdict_cell(first), value, *ends, Cell(how, how)


def _batch_table(curve: Curve, key: str, name: str) -> Table:
    """Energies are elsewhere."""
    rows = curve.rows
    metrics = [metric for metric in dict.fromkeys(m for row in rows for m in row.figures) if "energy" not in metric]
    columns = (
        Column(key.replace("_", " "), "samples"),
        *(Column(metric.replace("_", " "), metric_unit(rows, metric)) for metric in metrics),
        Column("comparable", align="left"),
    )  # fmt: skip
    made = tuple(
        (
            setting_cell(row, key),
            *(printed_cell(row, metric) for metric in metrics),
            verdict_cell(curve.held.get(row.place)),
        )
        for row in rows
    )
    return Table(name, f"{capital(curve.label)}, as printed", columns, made, (NO_REPEATS,))
