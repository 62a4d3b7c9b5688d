"""Figures of published tables: over devices, over the batch, beside each other. Knows points; divides nothing.

A published figure is one run with no interval: its mark is hollow. A row that a finding blocks has a cross, and no line
leads to it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from steelyard.report.charts.style import (
    COLOURS,
    DASHED,
    DIAGONAL,
    DOTTED,
    INK,
    PALE,
    QUIET,
    RED,
    SHAPES,
    Axes,
    Sign,
    crosses,
    hollow,
    in_unit,
    key,
    layer,
    name_axis,
    number_axis,
    short,
    spec,
    text_width,
)
from steelyard.report.charts.style import WIDTH as PLOT
from steelyard.report.page import Cell, Chart, Column, Table
from steelyard.terminal.text import number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from steelyard.report.charts.style import Layer
    from steelyard.stats.knee import Knee

ROOM = 1.06
LOG_ROOM = 1.25
# A range that grows more than this many times would press its small values together on a linear axis.
WIDE_RANGE = 8
DOTS_WIDTH, LINE = 340, 27
MAX_NAME = 38
NEAR = 0.035
"""Two marks of an axis nearer than this share of it would have their numbers run together."""
WIDER = 0.2
"""A reader without the font that widths are measured by may have one that is so much wider."""
KEY = round(PLOT / (1 + WIDER))


@dataclass(frozen=True)
class Spot:
    """One figure; `lost`: a finding on its row blocks, so that nothing may be held against it."""

    x: float
    y: float
    lost: bool = False


@dataclass(frozen=True)
class Series:
    """Figures that belong together, by `x`."""

    name: str
    spots: tuple[Spot, ...]
    ideal: bool = False
    """Whether the first one, times the count, may be drawn beside the others."""

    @property
    def sound(self) -> list[Spot]:
        """Those that nothing blocks."""
        return [spot for spot in self.spots if not spot.lost]

    @property
    def best(self) -> list[Spot]:
        """Of several at one place, the highest: the line goes through it."""
        highest: dict[float, Spot] = {}
        for spot in self.sound:
            if spot.x not in highest or spot.y > highest[spot.x].y:
                highest[spot.x] = spot
        return list(highest.values())


@dataclass(frozen=True)
class ChartText:
    """What a chart is called, what it shows in words, and what must be said below it."""

    name: str
    title: str
    alt: str
    notes: tuple[str, ...] = ()


def devices_chart(told: ChartText, axis: str, unit: str, series: Sequence[Series], *, device: str = "devices") -> Chart:
    """Figures over the number of devices on linear axes, with the line of each base where nothing would be lost."""
    factor, word = in_unit(max(spot.y for each in series for spot in each.spots), unit)
    drawn = [Series(e.name, tuple(Spot(s.x, s.y / factor, s.lost) for s in e.spots), e.ideal) for e in series]
    ideals = [_ideal(each) for each in drawn if each.ideal]
    last = max(spot.x for each in drawn for spot in each.spots)
    top = max([spot.y for each in drawn for spot in each.spots] + [value["y"] for line in ideals for value in line])
    axes = Axes(_counts_axis(drawn, last, device), number_axis(f"{axis}, {word}", 0, ROOM * top))
    layers = [layer(line, "line", axes.at(), color=QUIET, strokeDash=DASHED, strokeWidth=1.6) for line in ideals]
    layers += [part for place, each in enumerate(drawn) for part in _marks(each, place, axes)]
    signs = _signs(drawn)
    if ideals:
        signs.append(Sign("ideal: the base times the count", QUIET, line=True, dash=DASHED))
    table = _table(told, (device, axis), unit, series)
    return Chart(told.name, told.title, spec([*layers, *key(signs, KEY)]), table, told.alt, told.notes)


def efficiency_chart(told: ChartText, series: Sequence[Series], *, device: str = "devices") -> Chart:
    """Shares of a base in per cent over the number of devices."""
    last = max(spot.x for each in series for spot in each.spots)
    top = max([100.0] + [spot.y for each in series for spot in each.spots])
    axes = Axes(_counts_axis(series, last, device), number_axis("efficiency, % of the base's", 0, ROOM * top))
    whole = [{"x": x, "y": 100.0} for x in (0, ROOM * last)]
    layers = [layer(whole, "line", axes.at(), color=QUIET, strokeDash=DASHED, strokeWidth=1.6)]
    layers += [part for place, each in enumerate(series) for part in _marks(each, place, axes)]
    signs = [*_signs(series), Sign("100 %: nothing lost", QUIET, line=True, dash=DASHED)]
    table = _table(told, (device, "efficiency"), "%", series)
    return Chart(told.name, told.title, spec([*layers, *key(signs, KEY)]), table, told.alt, told.notes)


def batch_chart(told: ChartText, axis: str, unit: str, series: Series, found: Knee | None) -> Chart:
    """A rate over the batch with its knee; `found` is None where a finding forbids one, and then nothing is joined."""
    batches = sorted({spot.x for spot in series.spots})
    most = found.asymptote if found is not None else None
    top = ROOM * max([spot.y for spot in series.spots] + [most or 0.0])
    axes = Axes(batch_axis(batches), number_axis(f"{axis}, {unit}", 0, top))
    first, last = _ends(batches)
    layers: list[Layer] = []
    signs = _signs([series])
    if found is not None:
        layers += _knee_layers(found, axes, (first, last))
        layers.append(layer(_values(series.best), "line", axes.at(), color=COLOURS[0], strokeWidth=1.6))
        signs += _knee_signs(found, (first, last))
    layers += _points(series, 0, axes)
    table = _table(told, ("batch", axis), unit, [series])
    return Chart(told.name, told.title, spec([*layers, *key(signs, KEY)]), table, told.alt, told.notes)


def over_batch_chart(
    told: ChartText,
    axis: str,
    unit: str,
    series: Sequence[Series],
    *,
    limit: float | None = None,
    logarithmic: bool = False,
) -> Chart:
    """Several figures over the batch, with a limit as a line where there is one. A logarithmic axis says that it is."""
    values = [spot.y for each in series for spot in each.spots] + ([limit] if limit else [])
    ends = (min(values) / LOG_ROOM, max(values) * LOG_ROOM) if logarithmic else (0.0, ROOM * max(values))
    title = [f"{axis}, {unit}", "(logarithmic axis)"] if logarithmic else f"{axis}, {unit}"
    along = batch_axis(sorted({spot.x for each in series for spot in each.spots}))
    axes = Axes(along, number_axis(title, *ends, logarithmic=logarithmic))
    layers: list[Layer] = []
    signs = _signs(series)
    if limit is not None:
        line = {"y": {"field": "y", **axes.y}}
        layers.append(layer([{"y": limit}], "rule", line, color=QUIET, strokeDash=DASHED, strokeWidth=1.8))
        signs.append(Sign(f"limit: {number(limit, 3)} {unit}", QUIET, line=True, dash=DASHED))
    layers += [part for place, each in enumerate(series) for part in _marks(each, place, axes)]
    table = _table(told, ("batch", axis), unit, series)
    return Chart(told.name, told.title, spec([*layers, *key(signs, KEY)]), table, told.alt, told.notes)


@dataclass(frozen=True)
class Dot:
    """A figure on a line of its own name; of several kinds of figures, of one kind."""

    line: str
    kind: str
    value: float
    lost: bool = False


def dots_chart(
    told: ChartText, axis: str, unit: str, dots: Sequence[Dot], marks: Sequence[tuple[float, str]] = ()
) -> Chart:
    """Figures beside their names. `marks`: values that are held against, with their words."""
    names = {dot.line: short(dot.line, MAX_NAME) for dot in dots}
    kinds = list(dict.fromkeys(dot.kind for dot in dots))
    top = ROOM * max([dot.value for dot in dots] + [value for value, _ in marks])
    title = f"{axis}, {unit}" if unit else axis
    axes = Axes(number_axis(title, 0, top), name_axis("", list(names.values()), grid=True, labelPadding=8))
    layers, signs = [], []
    for place, (value, words) in enumerate(marks):
        dash = (DASHED, DOTTED)[place % 2]
        line = {"x": {"field": "x", **axes.x}}
        layers.append(layer([{"x": value}], "rule", line, color=QUIET, strokeDash=dash, strokeWidth=1.8))
        signs.append(Sign(words, QUIET, line=True, dash=dash))
    for place, kind in enumerate(kinds):
        own = [dot for dot in dots if dot.kind == kind]
        values = [{"x": dot.value, "y": names[dot.line]} for dot in own if not dot.lost]
        layers.append(hollow(values, axes.at(), COLOURS[place], SHAPES[place]))
        layers.append(crosses([{"x": dot.value, "y": names[dot.line]} for dot in own if dot.lost], axes.at()))
    signs = [*(Sign(kind, COLOURS[n], SHAPES[n], filled=False) for n, kind in enumerate(kinds)), *signs]
    signs += [Sign("a finding blocks", INK, DIAGONAL)] if any(dot.lost for dot in dots) else []
    wide = max(text_width(name) for name in names.values())
    drawn = spec([*layers, *key(signs, DOTS_WIDTH)], DOTS_WIDTH, max(2, len(names)) * LINE, 40 + round(wide))
    drawn["padding"] = {"left": 8 + round(WIDER * wide), "top": 8, "right": 8 + round(WIDER * DOTS_WIDTH), "bottom": 8}
    return Chart(told.name, told.title, drawn, _dots_table(told, axis, unit, dots, kinds), told.alt, told.notes)


# -- parts of the pictures


def _values(spots: Sequence[Spot]) -> list[dict[str, Any]]:
    return [{"x": spot.x, "y": spot.y} for spot in spots]


def _ideal(series: Series) -> list[dict[str, Any]]:
    """From the base to the last count that nothing blocks."""
    base, last = series.sound[0], series.sound[-1]
    return [{"x": base.x, "y": base.y}, {"x": last.x, "y": base.y * last.x / base.x}]


def _counts_axis(series: Sequence[Series], last: float, device: str) -> dict[str, Any]:
    counts = sorted({spot.x for each in series for spot in each.spots}, reverse=True)
    shown: list[float] = []
    for count in counts:
        if not shown or shown[-1] - count >= NEAR * last:
            shown.append(count)
    return number_axis(device, 0, ROOM * last, values=sorted(shown), format=",d")


def _marks(series: Series, place: int, axes: Axes) -> list[Layer]:
    line = layer(_values(series.best), "line", axes.at(), color=COLOURS[place], strokeWidth=1.6)
    return [line, *_points(series, place, axes)]


def _points(series: Series, place: int, axes: Axes) -> list[Layer]:
    lost = _values([spot for spot in series.spots if spot.lost])
    sound = hollow(_values(series.sound), axes.at(), COLOURS[place], SHAPES[place])
    return [sound, *([crosses(lost, axes.at())] if lost else [])]


def _signs(series: Sequence[Series]) -> list[Sign]:
    signs = [
        Sign(each.name, COLOURS[place], SHAPES[place], filled=False) for place, each in enumerate(series) if each.sound
    ]
    names = [each.name for each in series if not each.sound]
    if any(spot.lost for each in series for spot in each.spots):
        whose = f"{', '.join(names)}: " if names else ""
        signs.append(Sign(f"{whose}a finding blocks", INK, DIAGONAL))
    return signs


def batch_axis(batches: Sequence[float]) -> dict[str, Any]:
    """Over batches: logarithmic where they grow many times, and then the axis says so."""
    if _logarithmic(batches):
        title = "samples in the batch (logarithmic axis)"
        return number_axis(title, *_ends(batches), logarithmic=True, values=batches, format=",d")
    return number_axis("samples in the batch", *_ends(batches), values=batches, format=",d")


def _logarithmic(batches: Sequence[float]) -> bool:
    return batches[-1] > WIDE_RANGE * batches[0]


def _ends(batches: Sequence[float]) -> tuple[float, float]:
    if _logarithmic(batches):
        return batches[0] / LOG_ROOM, batches[-1] * LOG_ROOM
    return 0.0, ROOM * batches[-1]


def _inside(found: Knee, ends: tuple[float, float]) -> bool:
    return found.value is not None and ends[0] <= found.value <= ends[1]


def _knee_layers(found: Knee, axes: Axes, ends: tuple[float, float]) -> list[Layer]:
    out: list[Layer] = []
    if _inside(found, ends):
        if found.low is not None and found.high is not None and math.isfinite(found.high):
            band = {"x": max(ends[0], found.low), "x2": min(ends[1], found.high)}
            along = {"x": {"field": "x", **axes.x}, "x2": {"field": "x2"}}
            out.append(layer([band], "rect", along, color=PALE, opacity=1))
        line = {"x": {"field": "x", **axes.x}}
        out.append(layer([{"x": found.value}], "rule", line, color=RED, strokeWidth=2, strokeDash=DASHED))
    if found.asymptote is not None:
        line = {"y": {"field": "y", **axes.y}}
        out.append(layer([{"y": found.asymptote}], "rule", line, color=QUIET, strokeWidth=1.6, strokeDash=DOTTED))
    return out


def _knee_signs(found: Knee, ends: tuple[float, float]) -> list[Sign]:
    signs = []
    if _inside(found, ends):
        signs.append(Sign(f"knee: {100 * found.share:g} % of the most", RED, line=True, dash=DASHED))
    if found.asymptote is not None:
        signs.append(Sign("asymptote", QUIET, line=True, dash=DOTTED))
    return signs


# -- their figures


def _table(told: ChartText, axes: tuple[str, str], unit: str, series: Sequence[Series]) -> Table:
    along, up = axes
    columns = (Column("figures of", align="left"), Column(along), Column(up, unit), Column("drawn as", align="left"))
    rows = tuple(
        (
            Cell(each.name, each.name), Cell(f"{spot.x:,g}", spot.x), Cell(number(spot.y), spot.y),
            Cell(said := "cross: a finding blocks" if spot.lost else "point", said),
        )
        for each in series
        for spot in each.spots
    )  # fmt: skip
    return Table(f"{told.name}-data", told.title, columns, rows, told.notes)


def _dots_table(told: ChartText, axis: str, unit: str, dots: Sequence[Dot], kinds: Sequence[str]) -> Table:
    by_line: dict[str, dict[str, Dot]] = {}
    for dot in dots:
        by_line.setdefault(dot.line, {})[dot.kind] = dot
    columns = (Column("row", align="left"), *(Column(f"{axis}: {kind}", unit) for kind in kinds))
    rows = []
    for line, found in by_line.items():
        cells = [found.get(kind) for kind in kinds]
        rows.append((Cell(line, line), *(Cell("-") if c is None else Cell(number(c.value, 4), c.value) for c in cells)))
    return Table(f"{told.name}-data", told.title, columns, tuple(rows), told.notes)
