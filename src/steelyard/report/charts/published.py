"""Charts of published values over a setting, such as devices or batch.

A published value has no interval, so its mark is hollow; one of ours has. A row with an error has a cross, and no line
leads to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from steelyard.report.charts.style import (
    COLOURS,
    DASHED,
    DIAGONAL,
    HEIGHT,
    INK,
    QUIET,
    SHAPES,
    WIDTH,
    Axes,
    Sign,
    bars_up,
    crosses,
    hollow,
    key,
    layer,
    number_axis,
    points,
    short,
    shown_by,
    spec,
    texts,
    told,
)
from steelyard.report.page import Cell, Chart, Column, Table
from steelyard.terminal.text import number

if TYPE_CHECKING:
    from steelyard.report.charts.style import Layer

ROOM = 1.06
LOG_ROOM = 1.25
# Beyond this ratio of largest to smallest value, a linear axis would crowd the small ones.
WIDE_RANGE = 8
NEAR = 0.035
# With few lines, each has its name at its end, if the names do not overlap.
FEW_LINES, LABEL_HIGH, LABEL_LONG = 3, 18, 24
# The reader's font may be wider than the font that widths are measured with.
KEY = round(WIDTH / 1.2)


@dataclass(frozen=True)
class Spot:
    """One value; `lost`: its row has an error, so nothing can be compared with it."""

    x: float
    y: float
    lost: bool = False
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class PublishedCurves:
    """Data and texts of one chart."""

    name: str
    title: str
    alt: str
    notes: tuple[str, ...]
    along: str
    up: str
    unit: str
    series: dict[str, tuple[Spot, ...]]
    """Points by name of the series, in the order of `x`."""
    ideal: bool = False
    """Whether to draw the ideal line: the first value of each series times the count."""
    level: float | None = None
    """A reference value, such as a limit."""
    logarithmic: bool = False
    """Logarithmic vertical axis; its title says so."""


def curve_chart(curves: PublishedCurves) -> Chart:
    """Draw curves of hollow points, with crosses for rows with errors. The axis of devices is always linear."""
    axes = _axes(curves)
    ideals: list[Layer] = []
    layers: list[Layer] = []
    signs: list[Sign] = []
    ends: dict[str, dict[str, Any]] = {}
    for (name, spots), colour, shape in zip(curves.series.items(), COLOURS, SHAPES, strict=False):
        values: list[dict[str, Any]] = [
            {"x": spot.x, "y": spot.y, "low": spot.low, "high": spot.high} for spot in spots if not spot.lost
        ]
        # With several values at one place, the line goes through the highest.
        highest = {value["x"]: value for value in sorted(values, key=lambda value: value["y"])}
        line = [highest[x] for x in sorted(highest)]
        if line:
            base = {"x": line[0]["x"], "y": line[0]["y"]}
            last = {"x": line[-1]["x"], "y": base["y"] * line[-1]["x"] / base["x"]}
            ideals.append(layer([base, last], "line", axes.at(), color=QUIET, strokeDash=DASHED, strokeWidth=1.6))
            named = [{**value, "tip": [name, *value["tip"]]} for value in told(values, axes.at())]
            ends[name] = line[-1]
            curve = layer(line, "line", axes.at(), color=colour, strokeWidth=1.6)
            known = any(value["low"] is not None for value in values)
            marks = [points(named, axes.at(), colour, shape)] if known else [hollow(named, axes.at(), colour, shape)]
            layers += shown_by(name, [curve, *bars_up(values, axes, colour), *marks])
            signs.append(Sign(name, colour, shape, filled=known))
        layers.append(crosses([{"x": spot.x, "y": spot.y} for spot in spots if spot.lost], axes.at()))
    layers += _labels(ends, axes)
    if any(spot.lost for spots in curves.series.values() for spot in spots):
        names = [name for name, spots in curves.series.items() if all(spot.lost for spot in spots)]
        signs.append(Sign(": ".join([*names, "not reliable"]), INK, DIAGONAL))
    if curves.ideal:
        layers = [*ideals, *layers]
        signs.append(Sign("ideal scaling", QUIET, line=True, dash=DASHED))
    if curves.level is not None:
        rule = {"y": {"field": "y", **axes.y}}
        layers.append(layer([{"y": curves.level}], "rule", rule, color=QUIET, strokeDash=DASHED, strokeWidth=1.8))
        signs.append(Sign(f"{number(curves.level, 3)} {curves.unit}", QUIET, line=True, dash=DASHED))
    return Chart(curves.name, curves.title, spec([*layers, *key(signs, KEY)]), _table(curves), curves.alt, curves.notes)


def _labels(ends: dict[str, dict[str, Any]], axes: Axes) -> list[Layer]:
    """Return the names of lines that end at the same place, apart from each other."""
    heights = sorted(end["y"] for end in ends.values())
    least = LABEL_HIGH / HEIGHT * axes.y["scale"]["domain"][1]
    apart = all(above - below >= least for below, above in pairwise(heights))
    linear, together = axes.y["scale"].get("type") != "log", len({end["x"] for end in ends.values()}) == 1
    if not (2 <= len(ends) <= FEW_LINES and apart and linear and together):
        return []
    return [
        part
        for name, end in ends.items()
        for part in shown_by(name, texts([{**end, "name": short(name, LABEL_LONG)}], axes.at(), "name", dx=12))
    ]


def _axes(curves: PublishedCurves) -> Axes:
    places = sorted({spot.x for spots in curves.series.values() for spot in spots})
    values = [spot.high or spot.y for spots in curves.series.values() for spot in spots]
    values += [curves.level] if curves.level is not None else []
    if curves.ideal:
        for base, *others in curves.series.values():
            values += [base.y * spot.x / base.x for spot in others if not spot.lost]
    title = f"{curves.up}, {curves.unit}"
    up = number_axis(title, 0, ROOM * max(values))
    if curves.logarithmic:
        ends = (min(values) / LOG_ROOM, max(values) * LOG_ROOM)
        up = number_axis([title, "(logarithmic axis)"], *ends, logarithmic=True)
    if curves.along != "devices" and places[-1] > WIDE_RANGE * places[0]:
        title, ends = f"{curves.along} (logarithmic axis)", (places[0] / LOG_ROOM, places[-1] * LOG_ROOM)
        return Axes(number_axis(title, *ends, logarithmic=True, values=places, format=",d"), up)
    # Ticks closer than this share of the axis would have overlapping labels.
    apart: list[float] = []
    for place in reversed(places):
        if not apart or apart[-1] - place >= NEAR * places[-1]:
            apart.append(place)
    return Axes(number_axis(curves.along, 0, ROOM * places[-1], values=sorted(apart), format=",d"), up)


def _table(curves: PublishedCurves) -> Table:
    columns = (
        Column("series", align="left"),
        Column(curves.along),
        Column(curves.up, curves.unit),
        Column("drawn as", align="left"),
    )
    rows = tuple(
        (
            Cell(name, name),
            Cell(f"{spot.x:,g}", spot.x),
            Cell(number(spot.y), spot.y),
            Cell(text := "cross: not reliable" if spot.lost else "point", text),
        )
        for name, spots in curves.series.items()
        for spot in spots
    )
    return Table(f"{curves.name}-data", curves.title, columns, rows, curves.notes)
