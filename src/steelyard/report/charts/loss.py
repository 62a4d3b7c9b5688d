"""Chart of the device time per sample, split into parts, as stacked bars over devices.

The efficiency factors multiply, so they cannot be stacked. Times can: waiting for input, communication, waiting for
slower devices and computation add up to the device time per sample. The part of a bar above the line of the base is
the lost efficiency.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from steelyard.report.charts.scaling import about, rates_chart
from steelyard.report.charts.style import (
    BEAM,
    DASHED,
    INK,
    QUIET,
    Axes,
    Sign,
    bars_up,
    counted,
    in_time,
    interval_of,
    key,
    layer,
    name_axis,
    number_axis,
    shown_by,
    spec,
    texts,
)
from steelyard.report.page import Cell, Chart, Column, Table
from steelyard.terminal.text import number

if TYPE_CHECKING:
    from steelyard.analysis.scaling import Point, Scaling
    from steelyard.report.charts.style import Runs

# From bottom to top. In this order their grey values are far apart: 46, 72, 89, 12 and 100 of 100.
PARTS = {
    "computation": ("computation", "#0072b2"),
    "communication": ("exposed communication", "#e69f00"),
    "balance": ("waiting for slower devices", "#f0e442"),
    "together": ("exposed communication and waiting for slower devices", "#e69f00"),
    "input": ("waiting for input", "#222222"),
    "rest": ("not split", "#ffffff"),
}
# A part below this share of its bar is not visible.
LEAST = 1e-4


@dataclass(frozen=True)
class _Bar:
    point: Point
    total_s: float
    low_s: float | None
    high_s: float | None
    parts_s: dict[str, float]


def loss_chart(curve: Scaling, name: str = "scaling-loss", *, runs: Runs | None = None) -> Chart:
    """Draw one bar per device count, as high as the device time per sample; only the rates if there are errors."""
    if curve.blocked:
        return rates_chart(curve, name, runs=runs)
    bars = [_bar(curve, point) for point in curve.points]
    factor, unit = in_time(max(bar.total_s for bar in bars))
    used = [part for part in PARTS if any(_seen(bar, part) for bar in bars)]
    notes = ["Above each bar: parallel efficiency. Time above the dashed line is lost, compared with the base."]
    if any(point.from_crosscheck for point in curve.points):
        notes.append("The split comes from the cross-check, which covers a few steps of each job.")
    if all(bar.low_s is None for bar in bars):
        notes.append("No CI: too few jobs.")
    if "rest" in used:
        reasons = dict.fromkeys(f.reason for point in curve.points for f in point.split.factors if f.reason)
        notes.append(f"Not split: {'; '.join(filter(None, reasons))}.")
    return Chart(
        name=name,
        title=f"Device time per sample{about(curve)}",
        spec=_spec(bars, used, factor, unit),
        table=_table(curve, name, bars, used, (factor, unit), runs or {}),
        alt=_words(curve, bars),
        notes=tuple(notes),
    )


def _seen(bar: _Bar, part: str) -> bool:
    return bar.parts_s.get(part, 0.0) > LEAST * bar.total_s


def _bar(curve: Scaling, point: Point) -> _Bar:
    rate = point.throughput.value or 0.0
    low, high = interval_of(point.throughput)
    total_s = point.devices / rate
    return _Bar(
        point,
        total_s,
        None if high is None else point.devices / high,
        None if not low else point.devices / low,
        _parts_s(curve, point, total_s),
    )


def _parts_s(curve: Scaling, point: Point, total_s: float) -> dict[str, float]:
    """Return the seconds of each known part; they add up to the total."""
    own = {factor.name: factor.own for factor in point.split.factors}
    fed, arrived, balanced = own["input"], own["communication"], own["balance"]
    if fed is None:
        return {"rest": total_s}
    parts = {"input": total_s * (1 - fed)}
    if arrived is not None and balanced is not None:
        parts["communication"] = total_s * fed * (1 - arrived)
        parts["balance"] = total_s * fed * arrived * (1 - balanced)
        parts["computation"] = total_s * fed * arrived * balanced
        return parts
    computed_s = _from_base(curve, point)
    if computed_s is None or computed_s > total_s * fed:
        return parts | {"rest": total_s * fed}
    return parts | {"computation": computed_s, "together": total_s * fed - computed_s}


def _from_base(curve: Scaling, point: Point) -> float | None:
    """Return the computation time relative to the base, if both are known."""
    base = curve.base
    own = [factor.own for factor in base.split.factors if factor.name != "computation"]
    changes = [factor.change for factor in point.split.factors if factor.name == "computation"]
    change = changes[0] if changes else None
    if change is None or not base.throughput.value:
        return None
    share = 1.0
    for value in own:
        if value is None:
            return None
        share *= value
    return base.devices / base.throughput.value * share / change.value


def _spec(bars: list[_Bar], used: list[str], factor: float, unit: str) -> dict[str, Any]:
    names = [f"{bar.point.devices:,}" for bar in bars]
    top = 1.12 * max(max(bar.total_s, bar.high_s or 0.0) for bar in bars) / factor
    axes = Axes(
        name_axis("devices", names, labelAngle=0)
        | {"scale": {"domain": names, "paddingInner": 0.35, "paddingOuter": 0.2}},
        number_axis(f"device time per sample, {unit}", 0, top),
    )
    layers = []
    for part in used:
        segments = layer(
            _segments(bars, part, (factor, unit)),
            "bar",
            {**axes.at(y="from"), "y2": {"field": "to"}},
            color=PARTS[part][1],
            stroke=INK,
            strokeWidth=0.8,
            opacity=1,
        )
        layers += shown_by(PARTS[part][0], [segments])
    totals = [
        {
            "x": f"{bar.point.devices:,}",
            "y": bar.total_s / factor,
            "low": None if bar.low_s is None else bar.low_s / factor,
            "high": None if bar.high_s is None else bar.high_s / factor,
            "above": max(bar.total_s, bar.high_s or 0.0) / factor,
            "text": f"{100 * bar.point.split.total.value:.0f} %",
        }
        for bar in bars
    ]
    base = layer(
        [{"y": totals[0]["y"]}],
        "rule",
        {"y": {"field": "y", **axes.y}},
        color=QUIET,
        strokeDash=DASHED,
        strokeWidth=1.8,
    )
    signs = [Sign(PARTS[part][0], INK, area=PARTS[part][1]) for part in used]
    signs.append(Sign("base", QUIET, line=True, dash=DASHED))
    signs += [Sign("95 % CI of the total", INK, BEAM)] if any(bar.low_s for bar in bars) else []
    labels = texts(totals, axes.at(y="above"), align="center", baseline="bottom", dx=0, dy=-5)
    return spec([*layers, base, *bars_up(totals, axes, INK), *labels, *key(signs)])


def _segments(bars: list[_Bar], part: str, unit: tuple[float, str]) -> list[dict[str, Any]]:
    factor, word = unit
    values = []
    for bar in bars:
        if _seen(bar, part):
            below = sum(bar.parts_s.get(other, 0.0) for other in list(PARTS)[: list(PARTS).index(part)])
            values.append(
                {
                    "x": f"{bar.point.devices:,}",
                    "from": below / factor,
                    "to": (below + bar.parts_s[part]) / factor,
                    "tip": [
                        counted(bar.point.devices, "device"),
                        f"{PARTS[part][0]}: {number(bar.parts_s[part] / factor, 3)} {word} per sample",
                        f"{100 * bar.parts_s[part] / bar.total_s:.1f} % of the total",
                    ],
                }
            )
    return values


# -- texts and table


def _words(curve: Scaling, bars: list[_Bar]) -> str:
    last = bars[-1]
    shares = [
        f"{100 * seconds / last.total_s:.1f} % {PARTS[part][0]}"
        for part in PARTS
        if (seconds := last.parts_s.get(part, 0.0)) > LEAST * last.total_s
    ]
    total = last.point.split.total.scaled(100)
    return (
        f"At {counted(last.point.devices, 'device')}, the device time per sample is {', '.join(shares)}. It is "
        f"{number(last.total_s / bars[0].total_s, 3)} times the time at {counted(curve.base.devices, 'device')}: a "
        f"parallel efficiency of {number(total.value, 3)} %."
    )


def _table(curve: Scaling, name: str, bars: list[_Bar], used: list[str], unit: tuple[float, str], runs: Runs) -> Table:
    factor, word = unit
    columns = (
        Column("devices"),
        Column("jobs"),
        Column("device time per sample", word),
        *(Column(PARTS[part][0], word) for part in used),
        Column("parallel efficiency", "%"),
    )
    rows = []
    for bar in bars:
        ids = runs.get(bar.point.configuration, ())
        total = bar.point.split.total.scaled(100)
        cells = [Cell(f"{bar.point.devices}", bar.point.devices), Cell(f"{bar.point.jobs}", bar.point.jobs)]
        cells.append(_time(bar.total_s, factor, ids, bar.low_s, bar.high_s))
        cells += [_time(bar.parts_s[part], factor, ids) if part in bar.parts_s else Cell("-") for part in used]
        cells.append(Cell(f"{total.value:.1f}", total.value, total.low, total.high, ids))
        rows.append(tuple(cells))
    return Table(f"{name}-data", f"Device time per sample{about(curve)}", columns, tuple(rows))


def _time(
    seconds: float, factor: float, runs: tuple[str, ...], low: float | None = None, high: float | None = None
) -> Cell:
    low, high = (None if end is None else end / factor for end in (low, high))
    return Cell(number(seconds / factor, 4), seconds / factor, low, high, runs)
