"""Where a device's time for a sample goes, as stacked bars over devices. Knows parts of steps; judges none of them.

A factor is a share, and shares of shares do not stack. Their times do: waiting for input, the transfer, waiting for
slower devices and computation add up to the time that a device spends on a sample. What stands above the line of the
base is what the efficiency lost.
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
    spec,
    texts,
)
from steelyard.report.page import Cell, Chart, Column, Table
from steelyard.terminal.text import number

if TYPE_CHECKING:
    from steelyard.analysis.scaling import Point, Scaling
    from steelyard.report.charts.style import Runs

# From the ground up. Their greys are far apart in this order: 46, 72, 89, 12 and 100 of 100.
PARTS = {
    "computation": ("computation", "#0072b2"),
    "communication": ("communication, not hidden", "#e69f00"),
    "balance": ("waiting for slower devices", "#f0e442"),
    "together": ("communication and waiting for slower devices", "#e69f00"),
    "input": ("waiting for input", "#222222"),
    "rest": ("not told apart", "#ffffff"),
}
# A part below this share of its bar cannot be seen.
LEAST = 1e-4


@dataclass(frozen=True)
class _Bar:
    point: Point
    total_s: float
    low_s: float | None
    high_s: float | None
    parts_s: dict[str, float]


def loss_chart(found: Scaling, name: str = "scaling-loss", *, runs: Runs | None = None) -> Chart:
    """A bar a device count, as high as a device's time for a sample; a blocked analysis gives the plain rates."""
    if found.blocked:
        return rates_chart(found, name, runs=runs)
    bars = [_bar(found, point) for point in found.points]
    factor, unit = in_time(max(bar.total_s for bar in bars))
    used = [part for part in PARTS if any(_seen(bar, part) for bar in bars)]
    notes = ["Above each bar: its efficiency. What stands above the dashed line is lost against the base."]
    if any(point.from_crosscheck for point in found.points):
        notes.append("The parts were seen in the cross-check pass alone, for a few steps of each job.")
    if all(bar.low_s is None for bar in bars):
        notes.append("No intervals: too few jobs.")
    if "rest" in used:
        reasons = dict.fromkeys(f.reason for point in found.points for f in point.split.factors if f.reason)
        notes.append(f"Not told apart: {'; '.join(filter(None, reasons))}.")
    return Chart(
        name=name,
        title=f"Where the time of a device goes{about(found)}",
        spec=_spec(bars, used, factor, unit),
        table=_table(found, name, bars, used, (factor, unit), runs or {}),
        alt=_words(found, bars),
        notes=tuple(notes),
    )


def _seen(bar: _Bar, part: str) -> bool:
    return bar.parts_s.get(part, 0.0) > LEAST * bar.total_s


def _bar(found: Scaling, point: Point) -> _Bar:
    rate = point.throughput.value or 0.0
    low, high = interval_of(point.throughput)
    total_s = point.devices / rate
    return _Bar(
        point,
        total_s,
        None if high is None else point.devices / high,
        None if not low else point.devices / low,
        _parts_s(found, point, total_s),
    )


def _parts_s(found: Scaling, point: Point, total_s: float) -> dict[str, float]:
    """Seconds of each part that is known; they add up to the total."""
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
    computed_s = _from_base(found, point)
    if computed_s is None or computed_s > total_s * fed:
        return parts | {"rest": total_s * fed}
    return parts | {"computation": computed_s, "together": total_s * fed - computed_s}


def _from_base(found: Scaling, point: Point) -> float | None:
    """Computation by that of the base, where the base tells its own and both are held against each other."""
    base = found.base
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
        number_axis(f"device time for a sample, {unit}", 0, top),
    )
    layers = [
        layer(_segments(bars, part, factor), "bar", {**axes.at(y="from"), "y2": {"field": "to"}},
              color=PARTS[part][1], stroke=INK, strokeWidth=0.8, opacity=1)
        for part in used
    ]  # fmt: skip
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
    base = layer([{"y": totals[0]["y"]}], "rule", {"y": {"field": "y", **axes.y}}, color=QUIET, strokeDash=DASHED,
                 strokeWidth=1.8)  # fmt: skip
    signs = [Sign(PARTS[part][0], INK, area=PARTS[part][1]) for part in used]
    signs.append(Sign("total of the base", QUIET, line=True, dash=DASHED))
    signs += [Sign("95 % interval of the total", INK, BEAM)] if any(bar.low_s for bar in bars) else []
    labels = texts(totals, axes.at(y="above"), align="center", baseline="bottom", dx=0, dy=-5)
    return spec([*layers, base, *bars_up(totals, axes, INK), *labels, *key(signs)])


def _segments(bars: list[_Bar], part: str, factor: float) -> list[dict[str, Any]]:
    values = []
    for bar in bars:
        if _seen(bar, part):
            below = sum(bar.parts_s.get(other, 0.0) for other in list(PARTS)[: list(PARTS).index(part)])
            values.append(
                {
                    "x": f"{bar.point.devices:,}",
                    "from": below / factor,
                    "to": (below + bar.parts_s[part]) / factor,
                }
            )
    return values


# -- words and figures


def _words(found: Scaling, bars: list[_Bar]) -> str:
    last = bars[-1]
    shares = [
        f"{100 * seconds / last.total_s:.1f} % {PARTS[part][0]}"
        for part in PARTS
        if (seconds := last.parts_s.get(part, 0.0)) > LEAST * last.total_s
    ]
    total = last.point.split.total.scaled(100)
    return (
        f"At {counted(last.point.devices, 'device')} the time of a device for a sample is {', '.join(shares)}; it is "
        f"{number(last.total_s / bars[0].total_s, 3)} times that at {counted(found.base.devices, 'device')}, an "
        f"efficiency of {number(total.value, 3)} %."
    )


def _table(found: Scaling, name: str, bars: list[_Bar], used: list[str], unit: tuple[float, str], runs: Runs) -> Table:
    factor, word = unit
    columns = (
        Column("devices"), Column("jobs"), Column("device time for a sample", word),
        *(Column(PARTS[part][0], word) for part in used), Column("efficiency", "%"),
    )  # fmt: skip
    rows = []
    for bar in bars:
        ids = runs.get(bar.point.cell, ())
        total = bar.point.split.total.scaled(100)
        cells = [Cell(f"{bar.point.devices}", bar.point.devices), Cell(f"{bar.point.jobs}", bar.point.jobs)]
        cells.append(_time(bar.total_s, factor, ids, bar.low_s, bar.high_s))
        cells += [_time(bar.parts_s[part], factor, ids) if part in bar.parts_s else Cell("-") for part in used]
        cells.append(Cell(f"{total.value:.1f}", total.value, total.low, total.high, ids))
        rows.append(tuple(cells))
    return Table(f"{name}-data", f"Where the time of a device goes{about(found)}", columns, tuple(rows))


def _time(
    seconds: float, factor: float, runs: tuple[str, ...], low: float | None = None, high: float | None = None
) -> Cell:
    low, high = (None if end is None else end / factor for end in (low, high))
    return Cell(number(seconds / factor, 4), seconds / factor, low, high, runs)
