"""Charts of throughput and parallel efficiency over the number of devices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from steelyard.contracts.observe import MEASURED
from steelyard.report.charts.style import (
    BLUE,
    DASHED,
    DIAGONAL,
    DOTTED,
    INK,
    QUIET,
    Axes,
    Sign,
    bars_up,
    counted,
    crosses,
    error_codes,
    figure_cell,
    hollow,
    in_unit,
    interval_of,
    key,
    layer,
    marked,
    named,
    number_axis,
    points,
    short,
    shown_by,
    spec,
)
from steelyard.report.page import Cell, Chart, Column, Table
from steelyard.stats.ratio import MIN_JOBS
from steelyard.terminal.text import number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from steelyard.analysis.scaling import Point, Scaling
    from steelyard.report.charts.style import Layer, Runs
    from steelyard.stats.quotient import Estimate

ROOM = 1.06
FEW = 9
WITH_CI, WITHOUT_CI, NO_RESULT = "measured, with 95 % CI", "measured, no CI", "no result"
KINDS = {"strong": "strong scaling", "weak": "weak scaling"}


def throughput_chart(curve: Scaling, name: str = "scaling-throughput", *, runs: Runs | None = None) -> Chart:
    """Draw throughput with intervals on linear axes, and the line of ideal scaling.

    With errors, draw only the points. `runs` are run ids by cell (`style.run_ids`).
    """
    if curve.blocked:
        return rates_chart(curve, name, runs=runs)
    factor, unit, values = _values(curve)
    each = (curve.base.throughput.value or 0.0) / factor / curve.base.devices
    last = curve.points[-1].devices
    axes = _axes(curve, unit, ROOM * max([each * last, *(_top(value) for value in values)]))
    ideal = [{"x": curve.base.devices, "y": each * curve.base.devices}, {"x": last, "y": each * last}]
    best = f"ideal scaling from {counted(curve.base.devices, 'device')}"
    layers = [
        *shown_by(best, [layer(ideal, "line", axes.at(), color=QUIET, strokeDash=DASHED, strokeWidth=1.8)]),
        *_joined(values, axes),
        *_marks(curve, values, axes),
    ]
    signs = [*_signs(curve, values, line=True), Sign(best, QUIET, line=True, dash=DASHED)]
    return Chart(
        name=name,
        title=f"Throughput over devices{about(curve)}",
        spec=spec([*layers, *key(signs)]),
        table=_table(curve, name, runs or {}),
        alt=_throughput_words(curve),
        notes=_notes(curve),
    )


def rates_chart(curve: Scaling, name: str = "scaling-rates", *, runs: Runs | None = None) -> Chart:
    """Draw only the throughputs, without lines, because errors rule out any ratio."""
    _, unit, values = _values(curve)
    axes = _axes(curve, unit, ROOM * max(_top(value) for value in values))
    codes = ", ".join(error_codes(curve.findings))
    text = f"Throughput only; for ratios, fix {codes} first." if codes else "Throughput only."
    rates = "; ".join(f"{counted(point.devices, 'device')}: {_rate(point)}" for point in curve.points)
    return Chart(
        name=name,
        title=f"Throughput at each number of devices{about(curve)}",
        spec=spec([*_marks(curve, values, axes), *key(_signs(curve, values, line=False))]),
        table=_table(curve, name, runs or {}, ratios=False),
        alt=f"{text} {rates} {curve.base.throughput.unit}.",
        notes=(text, *_interval_notes(curve)),
    )


def efficiency_chart(curve: Scaling, name: str = "scaling-efficiency", *, runs: Runs | None = None) -> Chart:
    """Draw parallel efficiency with intervals; with errors, only the throughputs."""
    if curve.blocked:
        return rates_chart(curve, name, runs=runs)
    totals = [(point.devices, point.split.total.scaled(100)) for point in curve.points]
    values = [{"x": count, "y": total.value, "low": total.low, "high": total.high} for count, total in totals]
    bar = 100 * curve.threshold
    top = max([100.0, bar, *(_top(value) for value in values)])
    axes = Axes(_devices_axis(curve), number_axis("parallel efficiency, %", 0, ROOM * top))
    ends = [0, ROOM * max(_counts(curve))]
    levels = {"100 %: ideal": (100.0, DASHED), f"{number(bar, 2)} %: threshold": (bar, DOTTED)}
    layers: list[Layer] = []
    for text, (y, dash) in levels.items():
        along = [{"x": x, "y": y} for x in ends]
        line = layer(along, "line", axes.at(), color=QUIET, strokeDash=dash, strokeWidth=1.6)
        layers += shown_by(text, [line])
    layers += [*_joined(values, axes), *_marks(curve, values, axes)]
    signs = [
        # The base is 100 % by definition.
        *_signs(curve, values[1:], line=True),
        *(Sign(text, QUIET, line=True, dash=dash) for text, (_, dash) in levels.items()),
    ]
    return Chart(
        name=name,
        title=f"Parallel efficiency over devices{about(curve)}",
        spec=spec([*layers, *key(signs)]),
        table=_table(curve, name, runs or {}),
        alt=_efficiency_words(curve),
        notes=_notes(curve),
    )


# -- parts of the charts


def _values(curve: Scaling) -> tuple[float, str, list[dict[str, Any]]]:
    largest = max(point.throughput.value or 0.0 for point in curve.points)
    factor, unit = in_unit(largest, curve.base.throughput.unit)
    values = []
    for point in curve.points:
        low, high = interval_of(point.throughput)
        values.append(
            {
                "x": point.devices,
                "y": (point.throughput.value or 0.0) / factor,
                "low": None if low is None else low / factor,
                "high": None if high is None else high / factor,
            }
        )
    return factor, unit, values


def _axes(curve: Scaling, unit: str, top: float) -> Axes:
    return Axes(_devices_axis(curve), number_axis(f"throughput of the job, {unit}", 0, top))


def _devices_axis(curve: Scaling) -> dict[str, Any]:
    most = max(_counts(curve))
    # Vega ignores the least step between ticks in so short an axis.
    values = list(range(1, most + 1)) if most <= FEW else None
    return number_axis("devices", 0, ROOM * most, values=values, tickMinStep=1, format=",d", tickCount=9)


def _counts(curve: Scaling) -> list[int]:
    return [*(point.devices for point in curve.points), *(count for count, _ in curve.missing)]


def _top(value: dict[str, Any]) -> float:
    return float(max(value["y"], value["high"] or 0.0))


def _joined(values: list[dict[str, Any]], axes: Axes) -> list[Layer]:
    line = layer(values, "line", axes.at(), color=BLUE, strokeWidth=1.8)
    return shown_by(WITH_CI if any(value["low"] is not None for value in values[1:]) else WITHOUT_CI, [line])


def _marks(curve: Scaling, values: list[dict[str, Any]], axes: Axes) -> list[Layer]:
    known = points([value for value in values if value["low"] is not None], axes.at())
    missing = [
        {"x": count, "y": 0, "tip": [f"devices: {count:,}", f"no result: {_ended(ended)}"]}
        for count, ended in curve.missing
    ]
    return [
        *shown_by(WITH_CI, [*bars_up(values, axes), known]),
        *shown_by(WITHOUT_CI, [hollow([value for value in values if value["low"] is None], axes.at())]),
        *(shown_by(NO_RESULT, [crosses(missing, axes.at())]) if missing else []),
    ]


def _signs(curve: Scaling, values: Sequence[dict[str, Any]], *, line: bool) -> list[Sign]:
    signs = []
    if any(value["low"] is not None for value in values):
        signs.append(Sign(WITH_CI, BLUE, "circle", line=line))
    if any(value["low"] is None for value in values):
        signs.append(Sign(WITHOUT_CI, BLUE, "circle", line=line, filled=False))
    return [*signs, *([Sign(NO_RESULT, INK, DIAGONAL)] if curve.missing else [])]


# -- texts and table


def about(curve: Scaling) -> str:
    """Return the kind of scaling and the label of the curve, in brackets."""
    words = [KINDS[curve.kind]] if curve.kind in KINDS else []
    words += [short(curve.label, 80)] if curve.label else []
    return f" ({'; '.join(words)})" if words else ""


def _rate(point: Point, digits: int = 4) -> str:
    return named(point.throughput.value or 0.0, *interval_of(point.throughput), digits)


def _throughput_words(curve: Scaling) -> str:
    last, unit = curve.points[-1], curve.base.throughput.unit
    speedup = named(last.speedup.value, last.speedup.low, last.speedup.high, 3)
    return (
        f"From {counted(curve.base.devices, 'device')} at {_rate(curve.base)} {unit} to "
        f"{counted(last.devices, 'device')} at {_rate(last)} {unit}: a speed-up of {speedup}; ideal: "
        f"{number(last.devices / curve.base.devices, 3)}.{_lost(curve)}"
    )


def _efficiency_words(curve: Scaling) -> str:
    each = []
    for point in curve.points[1:]:
        total = point.split.total.scaled(100)
        each.append(f"{number(total.value, 3)} % at {counted(point.devices, 'device')}")
    least = f"{number(100 * curve.threshold, 2)} %"
    enough = f"No number of devices reaches {least}."
    if curve.enough is not None:
        enough = f"{counted(curve.enough.devices, 'device')}: the largest number that reaches {least}."
    return (
        f"Parallel efficiency relative to {counted(curve.base.devices, 'device')}: {', '.join(each)}. "
        f"{enough}{_lost(curve)}"
    )


def _ended(text: str) -> str:
    return short(text.replace("_", " "), 80)


def _lost(curve: Scaling) -> str:
    lost = [f"{counted(count, 'device')}: {_ended(ended)}" for count, ended in curve.missing]
    unused = [
        f"{counted(cell.records[0].spec.devices, 'device')}: {'; '.join(cell.unreliable)}" for cell in curve.aside
    ]
    text = f" Unreliable and not used: {', '.join(unused)}." if unused else ""
    return f"{text} No result at {'; '.join(lost)}." if lost else text


def _notes(curve: Scaling) -> tuple[str, ...]:
    base = f"Base: {counted(curve.base.devices, 'device')}, {counted(curve.base.jobs, 'job')}."
    return (base + _lost(curve), *_interval_notes(curve))


def _interval_notes(curve: Scaling) -> tuple[str, ...]:
    few = [str(point.devices) for point in curve.points if point.jobs < MIN_JOBS]
    if not few:
        return ("Intervals: 95 % CI over jobs.",)
    listed = ", ".join(few[:8]) + (", ..." if len(few) > 8 else "")
    text = f"No CI of speed-up and efficiency at {listed} devices: fewer than {MIN_JOBS} jobs"
    alone = any(point.jobs == 1 for point in curve.points)
    return (f"{text}. The CI of a single job's throughput applies to that job only." if alone else f"{text}.",)


def _table(curve: Scaling, name: str, runs: Runs, *, ratios: bool = True) -> Table:
    unit = curve.base.throughput.unit
    columns = [Column("devices"), Column("jobs"), Column("throughput", unit)]
    columns += [Column("speed-up"), Column("parallel efficiency", "%")] if ratios else []
    codes = tuple(dict.fromkeys(entry.code for entry in curve.findings if entry.severity != "note"))
    rows: list[tuple[Cell, ...]] = []
    for point in curve.points:
        # The runs of the base are in its own row.
        ids = runs.get(point.configuration, ())
        cells = [Cell(str(point.devices), point.devices), Cell(str(point.jobs), point.jobs)]
        cells.append(figure_cell(point.throughput, ids, codes))
        if ratios:
            cells += [_estimate(point.speedup, ids, codes), _estimate(point.split.total.scaled(100), ids, codes)]
        rows.append(tuple(cells))
    for cell in curve.aside:
        ids = tuple(record.run_id for record in cell.records)
        jobs = sum(record.status.code in MEASURED for record in cell.records)
        figure = marked(figure_cell(cell.throughput, ids, error_codes(cell.findings)), cell.unreliable)
        count = cell.records[0].spec.devices
        rows.append(
            (Cell(str(count), count), Cell(str(jobs), jobs), figure, *(Cell("unreliable") for _ in columns[3:]))
        )
    for count, ended in curve.missing:
        rows.append((Cell(str(count), count), Cell("0", 0), *(Cell(f"none: {_ended(ended)}") for _ in columns[2:])))
    return Table(
        name=f"{name}-data",
        title=f"Throughput over devices{about(curve)}",
        columns=tuple(columns),
        rows=tuple(rows),
        notes=_notes(curve) if ratios else _interval_notes(curve),
    )


def _estimate(estimate: Estimate, runs: tuple[str, ...], codes: tuple[str, ...]) -> Cell:
    text = number(estimate.value, 4)
    if estimate.low is not None and estimate.high is not None and estimate.low < estimate.high:
        text += f" [{number(estimate.low, 4)}, {number(estimate.high, 4)}]"
    return Cell(text, estimate.value, estimate.low, estimate.high, runs, codes)
