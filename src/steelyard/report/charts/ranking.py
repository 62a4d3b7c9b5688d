"""Chart of a ranking: each configuration with its figure and interval, best first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from steelyard.analysis.best import less_is_better
from steelyard.report.charts.style import (
    BLUE,
    INK,
    QUIET,
    Axes,
    Sign,
    bars_along,
    figure_cell,
    hollow,
    in_unit,
    interval_of,
    key,
    layer,
    marked,
    name_axis,
    number_axis,
    points,
    short,
    shown_by,
    spec,
    text_width,
)
from steelyard.report.page import Cell, Chart, Column, Table
from steelyard.terminal.best import HEADINGS, headline
from steelyard.terminal.text import capital, number, sentence

if TYPE_CHECKING:
    from collections.abc import Sequence

    from steelyard.analysis.best import Ranked, Ranking
    from steelyard.report.charts.style import Runs

WIDTH, LINE = 320, 30
DRAWN = 12
MAX_NAME = 34


def ranking_chart(ranking: Ranking, name: str = "ranking", *, runs: Runs | None = None) -> Chart:
    """Draw the figures of a ranking from zero, hollow where they are unreliable."""
    measured = [entry for entry in ranking.entries if entry.figure.value is not None]
    drawn = measured[:DRAWN]
    factor, unit = in_unit(
        max(entry.figure.value or 0.0 for entry in drawn), drawn[0].figure.unit
    )  # one unit for all lines
    names = _distinct(drawn)
    values = [_value(entry, label, factor) for entry, label in zip(drawn, names, strict=True)]
    top = 1.05 * max(value["high"] or value["x"] for value in values) or 1.0
    what = HEADINGS[ranking.by]
    axes = Axes(number_axis(f"{what}, {unit}", 0, top), name_axis("", names, labelPadding=8))
    reliable = [value for value, entry in zip(values, drawn, strict=True) if entry.reliable]
    others = [value for value, entry in zip(values, drawn, strict=True) if not entry.reliable]
    words: Any = {"x": {"value": WIDTH + 12}, "y": {"field": "y", **axes.y}, "text": {"field": "text"}}
    layers = [
        *(shown_by("reliable", [*bars_along(reliable, axes, BLUE), points(reliable, axes.at(), BLUE)])),
        *(shown_by("unreliable", [*bars_along(others, axes, QUIET), hollow(others, axes.at(), QUIET)])),
        layer(values, "text", words, align="left", baseline="middle", fontSize=13, color=INK),
    ]
    signs = [Sign("reliable", BLUE, "circle")] * bool(reliable)
    signs += [Sign("unreliable", QUIET, "circle", filled=False)] * bool(others)
    beside = 40 + round(max(map(text_width, names)) + max(text_width(value["text"]) for value in values))
    notes = ["Bars: 95 % CI."] if any(value["low"] is not None for value in values) else []
    left = len(measured) - len(drawn)
    notes += [f"{left:,} more configurations are in the table."] if left else []
    notes += ["Less is better."] if less_is_better(ranking.by) else []
    return Chart(
        name=name,
        title=f"{capital(what)} of the configurations, best first",
        spec=spec([*layers, *key(signs, WIDTH + 180)], WIDTH, max(2, len(drawn)) * LINE, beside),
        table=_table(ranking.entries, f"{name}-data", what, drawn[0].figure.unit, runs or {}),
        alt=sentence(headline(ranking)),
        notes=tuple(notes),
    )


def _value(entry: Ranked, label: str, factor: float) -> dict[str, Any]:
    low, high = interval_of(entry.figure)
    amount = entry.figure.value or 0.0
    return {
        "x": amount / factor,
        "y": label,
        "low": None if low is None else low / factor,
        "high": None if high is None else high / factor,
        "text": number(amount / factor, 4),
    }


def _distinct(entries: Sequence[Ranked]) -> list[str]:
    """Return short names, each only once, as an axis needs."""
    seen: dict[str, int] = {}
    names = []
    for entry in entries:
        text = short(entry.name, MAX_NAME)
        seen[text] = seen.get(text, 0) + 1
        names.append(text if seen[text] == 1 else f"{text} ({seen[text]})")
    return names


def _table(entries: Sequence[Ranked], name: str, what: str, unit: str, runs: Runs) -> Table:
    rows = [
        (Cell(entry.name, entry.name), marked(figure_cell(entry.figure, runs.get(entry.cell.name, ())), entry.reasons))
        for entry in entries
    ]
    return Table(name, "The ranking", (Column("configuration", align="left"), Column(what, unit)), tuple(rows))
