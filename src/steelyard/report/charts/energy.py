"""Chart of throughput against energy per sample."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from steelyard.analysis.summary import labels
from steelyard.errors import InputError
from steelyard.report.charts.style import (
    COLOURS,
    HEIGHT,
    SHAPES,
    WIDTH,
    Axes,
    Sign,
    bars_along,
    bars_up,
    counted,
    figure_cell,
    hollow,
    in_unit,
    interval_of,
    key,
    named,
    number_axis,
    placed_texts,
    points,
    short,
    shown_by,
    spec,
)
from steelyard.report.page import Cell, Chart, Column, Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from steelyard.analysis.energy import CellEnergy
    from steelyard.contracts.record import Quantity
    from steelyard.report.charts.style import Layer

COST = "energy_per_sample"
MAX_LABELS = 14
ROOM = 1.08


@dataclass(frozen=True)
class _Dot:
    entry: CellEnergy
    label: str
    cost: Quantity
    rate: Quantity

    @property
    def ends(self) -> tuple[float, float]:
        """Upper ends of both values, for the axes."""
        return max(self.cost.value or 0.0, interval_of(self.cost)[1] or 0.0), max(
            self.rate.value or 0.0, interval_of(self.rate)[1] or 0.0
        )


def energy_chart(cells: Sequence[CellEnergy], name: str = "throughput-energy") -> Chart:
    """Draw one dot per configuration. Each measured scope has its own colour and shape."""
    dots, left_out = _dots(cells)
    if not dots:
        raise InputError(
            "no configuration has an energy per sample",
            next_step="steelyard doctor shows which sensors work here and how to get access",
        )
    factor, unit = in_unit(max(dot.ends[1] for dot in dots), dots[0].rate.unit)
    right, top = ROOM * max(dot.ends[0] for dot in dots), ROOM * max(dot.ends[1] for dot in dots) / factor
    axes = Axes(number_axis("energy per sample, J", 0, right), number_axis(f"throughput of the job, {unit}", 0, top))
    scopes = list(dict.fromkeys(dot.entry.scope for dot in dots))
    layers = [part for dot in dots for part in _marks(dot, axes, factor, scopes)]
    if len(dots) <= MAX_LABELS:
        names = placed_texts([_label(dot, factor) for dot in dots], axes, (right, top), (WIDTH, HEIGHT))
        # A label is two layers: its outline and its text.
        layers += [part for n, dot in enumerate(dots) for part in shown_by(_sign(dot), names[2 * n : 2 * n + 2])]
    signs = []
    for place, scope in enumerate(scopes):
        colour, shape = COLOURS[place % len(COLOURS)], SHAPES[place % len(SHAPES)]
        for filled in (True, False):
            alike = [dot for dot in dots if dot.entry.scope == scope and (dot.entry.verdict == "valid") == filled]
            signs += [Sign(_sign(alike[0]), colour, shape, filled=filled)] if alike else []
    return Chart(
        name=name,
        title="Throughput and energy per sample",
        spec=spec([*layers, *key(signs)]),
        table=_table(cells, name),
        alt=_words(dots, left_out),
        notes=_notes(dots, scopes, left_out),
    )


def _dots(cells: Sequence[CellEnergy]) -> tuple[list[_Dot], list[str]]:
    names = labels([entry.cell for entry in cells])
    dots, left_out = [], []
    for entry in cells:
        cost, rate = entry.figures.get(COST), entry.cell.throughput
        label = names[entry.cell.name]
        if cost is None or cost.value is None or rate.value is None:
            reason = (cost.reason if cost is not None else entry.main.reason) or rate.reason or "no energy per sample"
            left_out.append(f"{short(label)}: {short(reason.replace('_', ' '), 80)}")
        else:
            dots.append(_Dot(entry, label, cost, rate))
    return dots, left_out


def _marks(dot: _Dot, axes: Axes, factor: float, scopes: list[str]) -> list[Layer]:
    place = scopes.index(dot.entry.scope) % len(COLOURS)
    colour, shape = COLOURS[place], SHAPES[place]
    lines = [
        dot.label,
        f"throughput of the job: {named(dot.rate.value or 0.0, *interval_of(dot.rate))} {dot.rate.unit}",
        f"energy per sample: {named(dot.cost.value or 0.0, *interval_of(dot.cost))} {dot.cost.unit}",
    ]
    value = {"x": dot.cost.value, "y": (dot.rate.value or 0.0) / factor, "tip": lines}
    low, high = interval_of(dot.rate)
    upright = {**value, "low": None if low is None else low / factor, "high": None if high is None else high / factor}
    along = {**value, **dict(zip(("low", "high"), interval_of(dot.cost), strict=True))}
    make = points if dot.entry.verdict == "valid" else hollow
    parts = [*bars_up([upright], axes, colour), *bars_along([along], axes, colour)]
    return shown_by(_sign(dot), [*parts, make([value], axes.at(), colour, shape)])


def _sign(dot: _Dot) -> str:
    return f"{short(dot.entry.scope)}, {'valid' if dot.entry.verdict == 'valid' else 'doubtful'}"


def _label(dot: _Dot, factor: float) -> dict[str, Any]:
    (left, right), (low, high) = interval_of(dot.cost), interval_of(dot.rate)
    return {
        "x": dot.cost.value,
        "y": (dot.rate.value or 0.0) / factor,
        "text": short(dot.label, 30).replace("=", " "),
        "left": left,
        "right": right,
        "low": None if low is None else low / factor,
        "high": None if high is None else high / factor,
    }


# -- texts and table


def _words(dots: Sequence[_Dot], left_out: Sequence[str]) -> str:
    """Say what is drawn where. Which one is best, and how surely, is the answer of the section."""
    text = f"{counted(len(dots), 'configuration')}."
    if len(dots) > 1:
        text += f" Highest throughput: {max(dots, key=lambda dot: dot.rate.value or 0.0).label}."
    if len(dots) > 1 and len({dot.entry.scope for dot in dots}) == 1:
        text += f" Lowest energy per sample: {min(dots, key=lambda dot: dot.cost.value or 0.0).label}."
    return text + (f" {len(left_out)} without energy." if left_out else "")


def _notes(dots: Sequence[_Dot], scopes: list[str], left_out: Sequence[str]) -> tuple[str, ...]:
    notes = ["Bars: 95 % CI. Hollow: doubtful energy."]
    if len(scopes) > 1:
        notes.append("Do not compare the energy of configurations that include different parts of the machine.")
    bare = [short(dot.label) for dot in dots if dot.cost.interval is None or dot.rate.interval is None]
    if bare:
        notes.append(f"CI missing: {', '.join(bare[:4])}{' ...' if len(bare) > 4 else ''}.")
    if len(dots) > MAX_LABELS:
        notes.append("Names are in the table.")
    if left_out:
        notes.append(f"Not drawn: {'; '.join(left_out[:3])}{' ...' if len(left_out) > 3 else ''}.")
    return tuple(notes)


def _table(cells: Sequence[CellEnergy], name: str) -> Table:
    names = labels([entry.cell for entry in cells])
    columns = (
        Column("configuration", align="left"),
        Column("jobs"),
        Column("energy per sample", "J"),
        Column("throughput of the job", "samples/s"),
        Column("includes", align="left"),
        Column("verdict", align="left"),
    )
    rows = []
    for entry in cells:
        label = names[entry.cell.name]
        ids = tuple(record.run_id for record in entry.cell.records)
        codes = tuple(dict.fromkeys(finding.code for finding in entry.findings))
        cost = entry.figures.get(COST)
        energy = Cell("none", runs=ids, codes=codes) if cost is None else figure_cell(cost, ids, codes)
        judged = (Cell(entry.scope, entry.scope), Cell(entry.verdict, entry.verdict, codes=codes))
        if entry.main.value is None:
            judged = (Cell("-"), Cell("-", codes=codes))
        jobs, rate = Cell(str(entry.jobs), entry.jobs), figure_cell(entry.cell.throughput, ids)
        rows.append((Cell(label, label), jobs, energy, rate, *judged))
    return Table(f"{name}-data", "Throughput and energy per sample", columns, tuple(rows))
