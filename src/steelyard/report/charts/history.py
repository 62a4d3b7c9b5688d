"""One figure over time, with the days on which it changed. Knows days and levels; not what counts as a change."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from steelyard.analysis.summary import MEASURED
from steelyard.errors import InputError, Problem
from steelyard.report.charts.style import (
    BLUE,
    DASHED,
    INK,
    PALE,
    QUIET,
    RED,
    Axes,
    Sign,
    bars_up,
    cut_title,
    hollow,
    in_unit,
    key,
    layer,
    named,
    number_axis,
    points,
    short,
    spec,
)
from steelyard.report.page import Cell, Chart, Column, Table
from steelyard.stats.drift import changes
from steelyard.stats.intervals import across_jobs
from steelyard.terminal.text import number

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from steelyard.contracts.record import RunRecord
    from steelyard.report.charts.style import Layer
    from steelyard.stats.drift import Change

DAY_MS = 86_400_000
RATES = ("/s", "/J", "/Wh")
MAX_OCCASIONS = 2000
# Within this share of the middle the axis is cut, or nothing would be seen of a change.
CALM = 0.25


@dataclass(frozen=True)
class HistoryPoint:
    """A day on which the figure was measured."""

    day: str
    """UTC, YYYY-MM-DD."""
    values: tuple[float, ...]
    """One a job, all above 0."""
    runs: tuple[str, ...] = ()

    @property
    def at_ms(self) -> float:
        """Its begin in milliseconds, as pictures count time."""
        return datetime.fromisoformat(self.day).replace(tzinfo=UTC).timestamp() * 1000

    def figure(self, *, rate: bool) -> tuple[float, float | None, float | None]:
        """Mean over its jobs with interval, where there are enough jobs for one; of rates, that of the times."""
        across = across_jobs([1 / value for value in self.values] if rate else self.values)
        if not rate:
            return across.value, across.low, across.high
        if across.low is None or across.high is None or across.low <= 0:
            return 1 / across.value, None, None
        return 1 / across.value, 1 / across.high, 1 / across.low


def occasions(records: Iterable[RunRecord], quantity: str = "throughput_job") -> list[HistoryPoint]:
    """The jobs of each day, oldest first. Runs without a figure or without a known start are left out."""
    days: dict[str, list[tuple[float, str]]] = {}
    for record in records:
        found = record.quantities.get(quantity)
        if record.status.code in MEASURED and record.launch is not None and found is not None and found.value:
            days.setdefault(record.launch.started_at[:10], []).append((found.value, record.run_id))
    return [
        HistoryPoint(day, tuple(value for value, _ in jobs), tuple(run_id for _, run_id in jobs))
        for day, jobs in sorted(days.items())
    ]


def history_chart(
    measured: Sequence[HistoryPoint],
    name: str = "history",
    *,
    metric: str = "throughput of the job",
    unit: str = "samples/s",
    found: Sequence[Change] | None = None,
) -> Chart:
    """The figure of each day with its interval, the level between changes, and each change with the days it may be on.

    `found` are the changes (`stats.drift.changes`), each index that of an occasion; None: they are looked for.
    """
    if not 2 <= len(measured) <= MAX_OCCASIONS:
        problem = Problem("days", f"there are {len(measured)}", f"2 to {MAX_OCCASIONS}")
        raise InputError("no history can be drawn", problems=(problem,))
    found = changes([entry.values for entry in measured]) if found is None else found
    figures = [entry.figure(rate=unit.endswith(RATES)) for entry in measured]
    factor, words = in_unit(max(figure[0] for figure in figures), unit)
    values = [_value(entry, figure, factor) for entry, figure in zip(measured, figures, strict=True)]
    axes = _axes(measured, values, f"{metric}, {words}")
    layers = [*_bands(measured, found, axes), *_levels(measured, found, figures, axes, factor), *bars_up(values, axes)]
    layers.append(points([value for value in values if value["low"] is not None], axes.at()))
    layers.append(hollow([value for value in values if value["low"] is None], axes.at()))
    title = f"{metric[:1].upper()}{metric[1:]} over time"
    return Chart(
        name=name,
        title=short(title, 120),
        spec=spec([*layers, *key(_signs(values, found))]),
        table=_table(measured, figures, found, name, title, unit),
        alt=_words(measured, figures, found, unit),
        notes=_notes(measured, found, values),
    )


def _value(
    entry: HistoryPoint, figure: tuple[float, float | None, float | None], factor: float
) -> dict[str, float | None]:
    low, high = (None if end is None else end / factor for end in figure[1:])
    return {"x": entry.at_ms, "y": figure[0] / factor, "low": low, "high": high}


def _axes(measured: Sequence[HistoryPoint], values: Sequence[dict[str, Any]], title: str) -> Axes:
    first, last = measured[0].at_ms, measured[-1].at_ms
    room = 0.03 * (last - first) or DAY_MS
    time = {
        "type": "temporal",
        "scale": {"type": "utc", "domain": [first - room, last + room], "nice": False},
        "axis": {"title": "day (UTC)", "format": "%Y-%m-%d", "tickCount": 6, "grid": False, "labelFlush": False},
    }
    low = min(min(value["y"], value["low"] or value["y"]) for value in values)
    high = max(max(value["y"], value["high"] or value["y"]) for value in values)
    middle = (low + high) / 2
    if low < (1 - CALM) * middle:
        return Axes(time, number_axis(title, 0, 1.06 * high))
    pad = max(0.12 * (high - low), 1e-3 * middle)
    return Axes(time, number_axis(cut_title(title, cut=True), low - pad, high + pad))


def _bands(measured: Sequence[HistoryPoint], found: Sequence[Change], axes: Axes) -> list[Layer]:
    """Where each change may be: after the last day before it, up to the first day with it."""
    bands, lines = [], []
    for step in found:
        begin, end = measured[max(0, step.earliest - 1)].at_ms, measured[step.latest].at_ms
        bands.append({"x": begin, "x2": end})
        lines.append({"x": (measured[step.index - 1].at_ms + measured[step.index].at_ms) / 2})
    if not bands:
        return []
    area = {"x": {"field": "x", **axes.x}, "x2": {"field": "x2"}}
    line = {"x": {"field": "x", **axes.x}}
    return [
        layer(bands, "rect", area, color=PALE, opacity=1),
        layer(lines, "rule", line, color=RED, strokeWidth=2, strokeDash=DASHED),
    ]


def _levels(
    measured: Sequence[HistoryPoint],
    found: Sequence[Change],
    figures: Sequence[tuple[float, float | None, float | None]],
    axes: Axes,
    factor: float,
) -> list[Layer]:
    values = []
    for start, stop in _segments(measured, found):
        level = sum(figure[0] for figure in figures[start:stop]) / (stop - start) / factor
        values.append({"x": measured[start].at_ms, "x2": measured[stop - 1].at_ms, "y": level})
    encoding = {**axes.at(), "x2": {"field": "x2"}}
    return [layer(values, "rule", encoding, color=INK, strokeWidth=1.6)]


def _segments(measured: Sequence[HistoryPoint], found: Sequence[Change]) -> list[tuple[int, int]]:
    return list(pairwise([0, *(step.index for step in found), len(measured)]))


def _signs(values: Sequence[dict[str, Any]], found: Sequence[Change]) -> list[Sign]:
    signs = []
    if any(value["low"] is not None for value in values):
        signs.append(Sign("mean of a day's jobs, with 95 % interval", BLUE, "circle"))
    if any(value["low"] is None for value in values):
        signs.append(Sign("no interval", BLUE, "circle", filled=False))
    signs.append(Sign("level", INK, line=True))
    if found:
        signs.append(Sign("change", RED, line=True, dash=DASHED))
        signs.append(Sign("days it may be on", QUIET, area=PALE))
    return signs


# -- words and figures


def _change(measured: Sequence[HistoryPoint], step: Change) -> str:
    percent = 100 * (step.ratio - 1)
    between = ""
    if step.earliest != step.latest:
        between = f" (between {measured[step.earliest].day} and {measured[step.latest].day})"
    word = "higher" if percent > 0 else "lower"
    chance = f"chance alone does this in at most {100 * step.p_value:.2g} % of histories"
    return f"{abs(percent):.1f} % {word} since {measured[step.index].day}{between}; {chance}"


def _words(
    measured: Sequence[HistoryPoint],
    figures: Sequence[tuple[float, float | None, float | None]],
    found: Sequence[Change],
    unit: str,
) -> str:
    span = f"{len(measured)} days from {measured[0].day} to {measured[-1].day}"
    ends = f"{named(*figures[0])} {unit} at first, {named(*figures[-1])} at last"
    told = "; ".join(_change(measured, step) for step in found) or "no change is shown"
    return f"{span}: {ends}. {told[:1].upper()}{told[1:]}."


def _notes(
    measured: Sequence[HistoryPoint], found: Sequence[Change], values: Sequence[dict[str, Any]]
) -> tuple[str, ...]:
    notes = [f"{_change(measured, step)}." for step in found[:3]] or ["No change is shown."]
    notes += [f"And {len(found) - 3} more changes."] if len(found) > 3 else []
    if any(value["low"] is None for value in values):
        notes.append("Hollow: a day with too few jobs for an interval.")
    return tuple(note[:1].upper() + note[1:] for note in notes)


def _table(
    measured: Sequence[HistoryPoint],
    figures: Sequence[tuple[float, float | None, float | None]],
    found: Sequence[Change],
    name: str,
    title: str,
    unit: str,
) -> Table:
    columns = (Column("day", align="left"), Column("jobs"), Column("mean", unit), Column("change", align="left"))
    steps = {step.index: step for step in found}
    rows = []
    for place, (entry, (value, low, high)) in enumerate(zip(measured, figures, strict=True)):
        ends = "" if low is None or high is None else f" [{number(low)}, {number(high)}]"
        said = f"{100 * (steps[place].ratio - 1):+.1f} %" if place in steps else ""
        rows.append(
            (
                Cell(entry.day, entry.day), Cell(str(len(entry.values)), len(entry.values)),
                Cell(number(value) + ends, value, low, high, entry.runs), Cell(said, said or None),
            )
        )  # fmt: skip
    return Table(f"{name}-data", title, columns, tuple(rows))
