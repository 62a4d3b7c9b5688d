"""Chart of one metric over time, with its changes."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from steelyard.analysis.verify import UPGRADED, constant_facts, is_rate
from steelyard.contracts.observe import MEASURED
from steelyard.errors import InputError, Problem
from steelyard.report.charts.style import (
    BLUE,
    DASHED,
    DOTTED,
    GREEN,
    INK,
    MINT,
    PALE,
    PURPLE,
    QUIET,
    RED,
    Axes,
    Sign,
    bars_up,
    counted,
    cut_title,
    hollow,
    in_unit,
    key,
    layer,
    named,
    number_axis,
    points,
    short,
    shown_by,
    spec,
    texts,
)
from steelyard.report.page import Cell, Chart, Column, Table
from steelyard.stats.drift import changes
from steelyard.stats.jobs import across_jobs
from steelyard.terminal.text import capital, number, shortened

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from steelyard.analysis.verify import History
    from steelyard.contracts.record import RunRecord
    from steelyard.report.charts.style import Layer
    from steelyard.stats.band import Band
    from steelyard.stats.drift import Change

    Figure = tuple[float, float | None, float | None]
    """Value and ends of the interval, if any."""
    Upgrade = tuple[int, dict[str, tuple[str, str]]]
    """Index of the first occasion after it, and the facts that changed, each before and after."""

DAY_MS = 86_400_000
SHORT_MS = 6 * DAY_MS
MAX_OCCASIONS = 2000
# If all values are within this share of the middle, the axis does not start at 0, to make changes visible.
CALM = 0.25
MEAN, NO_CI, LEVEL, CHANGE, DAYS, ACCEPTED, UPGRADE = (
    "mean of the jobs, with 95 % CI",
    "no CI",
    "level",
    "change",
    "possible days of the change",
    "accepted",
    "upgrade",
)
SHOWN_UPGRADES = 4
LONGEST_FACT = 30
SHORT_FACTS = {"system.kernel": "kernel", "torch.version": "torch", "gpu0.driver": "driver", "torch.cuda": "CUDA"}


@dataclass(frozen=True)
class HistoryPoint:
    """One occasion on which the metric was measured."""

    day: str
    """UTC, YYYY-MM-DD; with HH:MM:SS if a day has several."""
    values: tuple[float, ...]
    """One value per job."""
    runs: tuple[str, ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict)
    """Facts of the environment that all its jobs share."""

    @property
    def at_ms(self) -> float:
        """Start in milliseconds, the time unit of Vega-Lite."""
        return datetime.fromisoformat(self.day).replace(tzinfo=UTC).timestamp() * 1000

    def figure(self, *, rate: bool) -> Figure:
        """Mean over the jobs, with an interval if there are enough jobs. Rates are averaged as times."""
        across = across_jobs([1 / value for value in self.values] if rate else self.values)
        if not rate:
            return across.value, across.low, across.high
        if across.low is None or across.high is None or across.low <= 0:
            return 1 / across.value, None, None
        return 1 / across.value, 1 / across.high, 1 / across.low


def occasions(records: Iterable[RunRecord], quantity: str = "throughput") -> list[HistoryPoint]:
    """Group the jobs by day, oldest first. Runs without a result or a known start are left out."""
    days: dict[str, list[tuple[float, RunRecord]]] = {}
    for record in records:
        figure = record.quantities.get(quantity)
        if record.status.code in MEASURED and record.launch is not None and figure is not None and figure.value:
            day = record.launch.started_at[:10]
            if _is_day(day):
                days.setdefault(day, []).append((figure.value, record))
    return [
        HistoryPoint(
            day,
            tuple(value for value, _ in jobs),
            tuple(record.run_id for _, record in jobs),
            constant_facts([record for _, record in jobs]),
        )
        for day, jobs in sorted(days.items())
    ]


def _is_day(text: str) -> bool:
    """Whether the text is a date. Result folders are untrusted input."""
    try:
        date.fromisoformat(text)
    except ValueError:
        return False
    return True


def verified_chart(entry: History, name: str) -> Chart:
    """Draw the history of a recipe's metric, with its changes."""
    measured = [occasion for occasion in entry.occasions if occasion.values]
    days = [occasion.started_at[:10] for occasion in measured]
    until = 10 if len(set(days)) == len(days) else 19
    points = [
        HistoryPoint(
            occasion.started_at[:until].replace("T", " "),
            occasion.values,
            tuple(record.run_id for record in occasion.outcome.records),
            constant_facts(occasion.outcome.records),
        )
        for occasion in measured
    ]
    level_changes = [step.change for step in entry.steps]
    band = next(occasion.outcome.band for occasion in measured)
    return history_chart(
        points, name, metric=metric_words(entry), unit=entry.unit, level_changes=level_changes, band=band
    )


def metric_words(entry: History) -> str:
    """Return the name of a documented figure as words."""
    metric = entry.expect.metric
    if metric == "throughput":
        return "throughput of the job"
    return (
        metric.replace("_job", " of the job")
        .replace("_per_device", " per device")
        .replace("_device", " per device")
        .replace("_", " ")
    )


def history_chart(
    measured: Sequence[HistoryPoint],
    name: str = "history",
    *,
    metric: str = "throughput of the job",
    unit: str = "samples/s",
    level_changes: Sequence[Change] | None = None,
    band: Band | None = None,
) -> Chart:
    """Draw the value of each day with its interval, the level between changes, and each change with its possible days.

    `level_changes` are the changes (`stats.drift.changes`) by index of the occasion; None: find them here. `band` is
    the accepted range. Upgrades are marked on the first day after them.
    """
    if not 2 <= len(measured) <= MAX_OCCASIONS:
        problem = Problem("days", f"{len(measured)} given", f"2 to {MAX_OCCASIONS}")
        raise InputError("no history can be drawn", problems=(problem,))
    try:
        times = [entry.at_ms for entry in measured]
    except ValueError as error:
        problem = Problem("days", str(error)[:200], "times such as 2026-03-01T06:00")
        raise InputError("no history can be drawn", problems=(problem,)) from None
    level_changes = changes([entry.values for entry in measured]) if level_changes is None else level_changes
    figures = [entry.figure(rate=is_rate(unit)) for entry in measured]
    factor, words = in_unit(max(figure[0] for figure in figures), unit)
    values: list[dict[str, Any]] = []
    for x, entry, (value, low, high) in zip(times, measured, figures, strict=True):
        ends = {"low": None if low is None else low / factor, "high": None if high is None else high / factor}
        figure = f"{metric}: {named(value, low, high)} {unit}"
        tip = [entry.day, figure, counted(len(entry.values), "job")]
        values.append({"x": x, "y": value / factor, **ends, "tip": tip})
    edges = [edge / factor for edge in (band.low, band.high) if edge is not None] if band else []
    axes = _axes(values, f"{metric}, {words}", edges)
    steps = upgrades(measured)
    levels = []
    for start, stop in pairwise([0, *(step.index for step in level_changes), len(measured)]):
        level = sum(value["y"] for value in values[start:stop]) / (stop - start)
        levels.append({"x": times[start], "x2": times[stop - 1], "y": level})
    layers = [
        *_bands(times, level_changes, axes),
        *(_accepted(band, factor, axes) if band is not None else []),
        *_upgrade_marks(times, steps, axes),
        *shown_by(LEVEL, [layer(levels, "rule", {**axes.at(), "x2": {"field": "x2"}}, color=INK, strokeWidth=1.6)]),
        *shown_by(MEAN, [*bars_up(values, axes), points([v for v in values if v["low"] is not None], axes.at())]),
        *shown_by(NO_CI, [hollow([v for v in values if v["low"] is None], axes.at())]),
    ]
    title = capital(f"{metric} over time")
    said = [_describe_change(measured, step) for step in level_changes]
    span = f"{len(measured)} occasions from {measured[0].day} to {measured[-1].day}"
    return Chart(
        name=name,
        title=short(title, 120),
        spec=spec(
            [*layers, *key(_signs(values, level_changes, band=band is not None, upgraded=bool(steps)))], zoom=axes
        ),
        table=_table(measured, figures, level_changes, steps, name, title, unit),
        alt=f"{span}: {named(*figures[0])} {unit} on the first, {named(*figures[-1])} on the last. "
        f"{capital('; '.join(said) or 'no change found')}.",
        notes=_notes(said, values, [(measured[index].day, changed) for index, changed in steps]),
    )


def _axes(values: Sequence[dict[str, Any]], title: str, edges: Sequence[float] = ()) -> Axes:
    first, last = values[0]["x"], values[-1]["x"]
    room = 0.03 * (last - first) or DAY_MS
    # All ticks of a short history would show the same day.
    title_x, form = ("day (UTC)", "%Y-%m-%d") if last - first >= SHORT_MS else ("time (UTC)", "%m-%d %H:%M:%S")
    time = {
        "type": "temporal",
        "scale": {"type": "utc", "domain": [first - room, last + room], "nice": False},
        "axis": {
            "title": title_x,
            "format": form,
            "tickCount": 5,
            "grid": False,
            "labelFlush": False,
            "labelOverlap": True,
            "labelSeparation": 12,
        },
    }
    low = min(*edges, *(min(value["y"], value["low"] or value["y"]) for value in values))
    high = max(*edges, *(max(value["y"], value["high"] or value["y"]) for value in values))
    middle = (low + high) / 2
    if low < (1 - CALM) * middle:
        return Axes(time, number_axis(title, 0, 1.06 * high))
    pad = max(0.12 * (high - low), 1e-3 * middle)
    return Axes(time, number_axis(cut_title(title, cut=True), low - pad, high + pad))


def _bands(times: Sequence[float], level_changes: Sequence[Change], axes: Axes) -> list[Layer]:
    """Draw the possible days of each change: from the last day before it to the first day after it."""
    bands = [{"x": times[max(0, step.earliest - 1)], "x2": times[step.latest]} for step in level_changes]
    lines = [{"x": (times[step.index - 1] + times[step.index]) / 2} for step in level_changes]
    if not bands:
        return []
    line = {"x": {"field": "x", **axes.x}}
    return [
        *shown_by(DAYS, [layer(bands, "rect", {**line, "x2": {"field": "x2"}}, color=PALE, opacity=1)]),
        *shown_by(CHANGE, [layer(lines, "rule", line, color=RED, strokeWidth=2, strokeDash=DASHED)]),
    ]


def _accepted(band: Band, factor: float, axes: Axes) -> list[Layer]:
    """Draw the accepted range; a side without a limit reaches the end of the axis."""
    bottom, top = axes.y["scale"]["domain"]
    low, high = (edge / factor if edge is not None else end for edge, end in ((band.low, bottom), (band.high, top)))
    x = axes.x["scale"]["domain"]
    area = {"x": x[0], "x2": x[1], "y": low, "y2": high}
    wide: Layer = {**axes.at(), "x2": {"field": "x2"}, "y2": {"field": "y2"}}
    lines = [{"y": edge} for edge in (low, high) if edge not in (bottom, top)]
    made = [
        layer([area], "rect", wide, color=GREEN, opacity=0.12),
        layer(lines, "rule", {"y": {"field": "y", **axes.y}}, color=GREEN, strokeWidth=1.2),
    ]
    return shown_by(ACCEPTED, made)


def _upgrade_marks(times: Sequence[float], steps: Sequence[Upgrade], axes: Axes) -> list[Layer]:
    """Draw a line with a number at each upgrade; the notes say what it was."""
    if not steps:
        return []
    lines = [{"x": times[index], "text": str(n)} for n, (index, _) in enumerate(steps, 1)]
    x = {"x": {"field": "x", **axes.x}}
    made = [
        layer(lines, "rule", x, color=PURPLE, strokeWidth=1.4, strokeDash=DOTTED),
        *texts(lines, {**x, "y": {"value": 8}}, color=PURPLE, dx=4, fontWeight="bold"),
    ]
    return shown_by(UPGRADE, made)


def _signs(
    values: Sequence[dict[str, Any]], level_changes: Sequence[Change], *, band: bool = False, upgraded: bool = False
) -> list[Sign]:
    signs = []
    if any(value["low"] is not None for value in values):
        signs.append(Sign(MEAN, BLUE, "circle"))
    if any(value["low"] is None for value in values):
        signs.append(Sign(NO_CI, BLUE, "circle", filled=False))
    signs.append(Sign(LEVEL, INK, line=True))
    if level_changes:
        signs.append(Sign(CHANGE, RED, line=True, dash=DASHED))
        signs.append(Sign(DAYS, QUIET, area=PALE))
    signs += [Sign(ACCEPTED, GREEN, area=MINT)] if band else []
    signs += [Sign(UPGRADE, PURPLE, line=True, dash=DOTTED)] if upgraded else []
    return signs


def upgrades(measured: Sequence[HistoryPoint]) -> list[Upgrade]:
    """Return what was upgraded (driver, torch, kernel and the like), by index of the first occasion after it."""
    upgraded = []
    last: dict[str, str] = {}
    for place, entry in enumerate(measured):
        told = {key: value for key, value in entry.facts.items() if any(word in key for word in UPGRADED)}
        changed = {key: (last[key], value) for key, value in told.items() if last.get(key, value) != value}
        if changed:
            upgraded.append((place, changed))
        last |= told
    return upgraded


# -- texts and table


def _describe_change(measured: Sequence[HistoryPoint], step: Change) -> str:
    percent = 100 * (step.ratio - 1)
    between = ""
    if step.earliest != step.latest:
        between = f" (between {measured[step.earliest].day} and {measured[step.latest].day})"
    direction = "higher" if percent > 0 else "lower"
    return f"{abs(percent):.1f} % {direction} since {measured[step.index].day}{between}; p <= {step.p_value:.2g}"


def upgrade_words(changed: Mapping[str, tuple[str, str]]) -> str:
    """`torch 2.13 to 2.14; kernel 6.1 to 6.2`, shortened."""
    parts = [
        f"{SHORT_FACTS.get(key, key)} {short(was, LONGEST_FACT)} to {short(now, LONGEST_FACT)}"
        for key, (was, now) in changed.items()
    ]
    return shortened(parts, 3)


def _notes(
    texts: Sequence[str], values: Sequence[dict[str, Any]], steps: Sequence[tuple[str, Mapping[str, tuple[str, str]]]]
) -> tuple[str, ...]:
    notes = [f"{capital(text)}." for text in texts[:3]] or ["No change found."]
    notes += [f"And {len(texts) - 3} more changes."] if len(texts) > 3 else []
    if any(value["low"] is None for value in values):
        notes.append("Hollow: too few jobs for a CI.")
    told = enumerate(steps[:SHOWN_UPGRADES], 1)
    notes += [f"Upgrade {n}, {day}: {upgrade_words(changed)}." for n, (day, changed) in told]
    more = len(steps) - SHOWN_UPGRADES
    notes += [f"{more} more upgrades are in the table."] if more > 0 else []
    return tuple(notes)


def _table(
    measured: Sequence[HistoryPoint],
    figures: Sequence[Figure],
    level_changes: Sequence[Change],
    upgraded: Sequence[Upgrade],
    name: str,
    title: str,
    unit: str,
) -> Table:
    columns = (
        Column("day", align="left"),
        Column("jobs"),
        Column("mean", unit),
        Column("change", align="left"),
        *((Column("upgrade", align="left"),) if upgraded else ()),
    )
    steps = {step.index: step for step in level_changes}
    new = {index: upgrade_words(changed) for index, changed in upgraded}
    rows = []
    for place, (entry, (value, low, high)) in enumerate(zip(measured, figures, strict=True)):
        ends = "" if low is None or high is None else f" [{number(low)}, {number(high)}]"
        text = f"{100 * (steps[place].ratio - 1):+.1f} %" if place in steps else ""
        rows.append(
            (
                Cell(entry.day, entry.day),
                Cell(str(len(entry.values)), len(entry.values)),
                Cell(number(value) + ends, value, low, high, entry.runs),
                Cell(text, text or None),
                *((Cell(new.get(place, ""), new.get(place)),) if upgraded else ()),
            )
        )
    return Table(f"{name}-data", title, columns, tuple(rows))
