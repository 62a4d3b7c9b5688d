"""Chart of the step times of one run, with warm-up, steady window and change points.

Long runs are reduced to some hundred points, each with minimum, mean and maximum of neighbouring steps. The raw file is
read in chunks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from steelyard.derive.observations import StepSamples
from steelyard.errors import InputError, Problem
from steelyard.report.charts.style import (
    BLUE,
    DASHED,
    PALE,
    QUIET,
    RED,
    Axes,
    Sign,
    counted,
    cut_title,
    in_time,
    key,
    layer,
    number_axis,
    points,
    shown_by,
    spec,
)
from steelyard.report.page import Cell, Chart, Column, Table
from steelyard.terminal.text import number

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from steelyard.contracts.record import RunRecord
    from steelyard.report.charts.style import Layer

    Floats = NDArray[np.float64]

POINTS = 300
MAX_CHANGES = 40
# If all steps are within this share of the median, the axis does not start at 0, to make a drift visible.
CALM = 0.25
# Steps longer than this many medians would flatten all others; they are marked at the top instead.
FAR = 5.0
RANGE, OUTSIDE, CHANGE, BEYOND = (
    "minimum to maximum",
    "outside the steady window",
    "change of level",
    "beyond the axis",
)


@dataclass(frozen=True)
class StepBins:
    """Step times of a run, reduced to points of equally many steps."""

    first_step: NDArray[np.int64]
    steps_per_point: int
    steps: int
    low_s: Floats
    mean_s: Floats
    high_s: Floats

    def middle(self) -> Floats:
        """The step in the middle of each point."""
        last = np.minimum(self.first_step + self.steps_per_point, self.steps) - 1
        middle: Floats = (self.first_step + last) / 2
        return middle


def step_band(raw: Path, ranks: int, most: int = POINTS) -> StepBins:
    """Read the step times of all ranks and reduce them, in one pass over the files."""
    samples = StepSamples(raw, ranks)
    if samples.steps == 0:
        problem = Problem(raw.name, "step samples of a rank are missing", "the raw folder of a run that made steps")
        raise InputError("no step times to draw", problems=(problem,))
    each = -(-samples.steps // most)
    bins = -(-samples.steps // each)
    total, count = np.zeros(bins), np.zeros(bins)
    low, high = np.full(bins, np.inf), np.full(bins, -np.inf)
    for chunk in samples.windowed(0, samples.steps, check=True):
        times = chunk.column("step_s")
        # Positions in this chunk where the next points begin.
        inner = np.arange(each - chunk.first_step % each, chunk.steps, each)
        starts = np.concatenate(([0], inner)).astype(np.intp)
        at = slice(chunk.first_step // each, chunk.first_step // each + starts.size)
        total[at] += np.add.reduceat(times, starts)
        count[at] += np.diff(starts, append=chunk.steps)
        low[at] = np.minimum(low[at], np.minimum.reduceat(times, starts))
        high[at] = np.maximum(high[at], np.maximum.reduceat(times, starts))
    return StepBins(np.arange(bins, dtype=np.int64) * each, each, samples.steps, low, total / count, high)


def trace_chart(raw: Path, record: RunRecord, name: str = "step-times") -> Chart:
    """Draw the step times of one run; `raw` is the folder of its raw files."""
    band = step_band(raw, record.spec.devices)
    factor, unit = in_time(float(np.median(band.mean_s)))
    bottom, top = _range(band)
    axes = Axes(
        number_axis("step", 0, band.steps, tickMinStep=1, format=",d", tickCount=7),
        number_axis(cut_title(f"step time, {unit}", cut=bottom > 0), bottom / factor, top / factor),
    )
    # Shade the steps before and after the steady window.
    values = [{"x": start, "x2": stop} for start, stop in _outside(record, band) if stop > start]
    encoding = {"x": {"field": "x", **axes.x}, "x2": {"field": "x2"}}
    phases = shown_by(OUTSIDE, [layer(values, "rect", encoding, color=PALE, opacity=1)]) if values else []
    steps = record.steady.change_steps[:MAX_CHANGES] if record.steady is not None else ()
    layers = [*phases, *_drawn(band, axes, (factor, unit), (bottom, top))]
    if steps:
        line = {"x": {"field": "x", **axes.x}}
        changes = [{"x": step} for step in steps]
        rules = layer(changes, "rule", line, color=RED, strokeWidth=1.8, strokeDash=DASHED)
        layers += shown_by(CHANGE, [rules])
    return Chart(
        name=name,
        title=f"Step time of run {record.run_id}",
        spec=spec([*layers, *key(_signs(record, band, top))], zoom=axes),
        table=_table(record, band, name, (factor, unit)),
        alt=_words(record, band),
        notes=_notes(record, band, top),
    )


def _range(band: StepBins) -> tuple[float, float]:
    low, high, usual = float(band.low_s.min()), float(band.high_s.max()), float(np.median(band.mean_s))
    if low >= (1 - CALM) * usual and high <= (1 + CALM) * usual:
        room = max(0.1 * (high - low), 1e-3 * usual)
        return low - room, high + room
    if high <= FAR * usual:
        return 0.0, 1.05 * high
    common = float(np.quantile(band.high_s, 0.98))
    return 0.0, max(1.5 * usual, 1.15 * min(common, FAR * usual))


def _drawn(band: StepBins, axes: Axes, unit: tuple[float, str], ends: tuple[float, float]) -> list[Layer]:
    (bottom, top), (factor, _) = ends, unit
    values = [
        {"x": float(x), "y": min(mean, top) / factor, "low": max(low, bottom) / factor, "high": min(high, top) / factor}
        for x, low, mean, high in zip(
            band.middle().tolist(), band.low_s.tolist(), band.mean_s.tolist(), band.high_s.tolist(), strict=True
        )
    ]
    out: list[Layer] = []
    if band.steps_per_point > 1 or _spread(band):
        area = {**axes.at(y="low"), "y2": {"field": "high"}}
        out += shown_by(RANGE, [layer(values, "area", area, color=BLUE, opacity=0.4, line=False)])
    tips = zip(values, _tips(band, unit), strict=True)
    means = [{"x": value["x"], "y": value["y"], "tip": tip} for value, tip in tips]
    out += shown_by(_mean(band), [layer(means, "line", axes.at(), color=BLUE, strokeWidth=1.5)])
    beyond = [{"x": value["x"], "y": value["high"]} for value in values if value["high"] >= top / factor]
    if beyond:
        out += shown_by(BEYOND, [points(beyond, axes.at(), RED, "triangle-up", size=70, yOffset=6)])
    return out


def _tips(band: StepBins, unit: tuple[float, str]) -> list[list[str]]:
    factor, word = unit
    tips = []
    for place, first in enumerate(band.first_step.tolist()):
        last = min(first + band.steps_per_point, band.steps) - 1
        low, mean, high = (number(float(one[place]) / factor, 4) for one in (band.low_s, band.mean_s, band.high_s))
        steps = f"step {first:,}" if last == first else f"steps {first:,} to {last:,}"
        ends = f", from {low} to {high}" if low != high else ""
        tips.append([steps, f"{mean} {word}{ends}"])
    return tips


def _mean(band: StepBins) -> str:
    return "each step" if band.steps_per_point == 1 else f"mean of {band.steps_per_point:,} steps"


def _spread(band: StepBins) -> bool:
    """Whether ranks differ within one step."""
    return bool((band.high_s > band.low_s * (1 + 1e-9)).any())


def _outside(record: RunRecord, band: StepBins) -> list[tuple[int, int]]:
    steady = record.steady
    if steady is None or steady.answer != "steady":
        return []
    return [(0, min(steady.start_step, band.steps)), (min(steady.stop_step, band.steps), band.steps)]


def _signs(record: RunRecord, band: StepBins, top: float) -> list[Sign]:
    signs = [Sign(_mean(band), BLUE, line=True)]
    if band.steps_per_point > 1 or _spread(band):
        signs.append(Sign(RANGE, BLUE, area="#99c7e0"))
    if any(stop > start for start, stop in _outside(record, band)):
        signs.append(Sign(OUTSIDE, QUIET, area=PALE))
    if record.steady is not None and record.steady.change_steps:
        signs.append(Sign(CHANGE, RED, line=True, dash=DASHED))
    if bool((band.high_s > top).any()):
        signs.append(Sign(BEYOND, RED, "triangle-up"))
    return signs


# -- texts and table


def _words(record: RunRecord, band: StepBins) -> str:
    weights = np.diff(np.append(band.first_step, band.steps)).astype(np.float64)
    mean_s = float(np.average(band.mean_s, weights=weights))
    slowest = int(np.argmax(band.high_s))
    ends = f"from {_brief(float(band.low_s.min()))} to {_brief(float(band.high_s.max()))}"
    near = f"the slowest near step {int(band.first_step[slowest]):,}"
    parts = [f"{counted(band.steps, 'step')}, mean {_brief(mean_s)}, {ends} ({near})."]
    steady = record.steady
    if steady is not None:
        window = f" from step {steady.start_step:,} to {steady.stop_step:,}" if steady.answer == "steady" else ""
        parts.append(f"{steady.answer.capitalize()}{window} ({steady.reason}).")
        if steady.change_steps:
            listed = ", ".join(f"{step:,}" for step in steady.change_steps[:8])
            more = f" and {len(steady.change_steps) - 8} more" if len(steady.change_steps) > 8 else ""
            parts.append(f"The level changes at step {listed}{more}.")
    return " ".join(parts)


def _brief(length_s: float) -> str:
    factor, unit = in_time(length_s)
    return f"{number(length_s / factor, 3)} {unit}"


def _notes(record: RunRecord, band: StepBins, top: float) -> tuple[str, ...]:
    notes = []
    steady = record.steady
    if steady is not None:
        window = f"steps {steady.start_step:,} to {steady.stop_step:,}" if steady.answer == "steady" else steady.reason
        notes.append(f"{steady.answer.capitalize()} ({window}).")
    lengths: dict[str, float] = {}
    for phase in record.phases:
        if phase.name not in ("steps", "warmup", "steady"):
            lengths[phase.name] = lengths.get(phase.name, 0.0) + phase.end_s - phase.start_s
    if lengths:
        beside = ", ".join(f"{name} {_brief(length)}" for name, length in lengths.items() if length)
        notes += [f"Other phases: {beside}."] if beside else []
    beyond = int((band.high_s > top).sum())
    if beyond:
        notes.append(f"{counted(beyond, 'point')} beyond the axis, up to {_brief(float(band.high_s.max()))}.")
    if band.steps_per_point > 1 or _spread(band):
        notes.append("The band is the range of the steps, not a confidence interval.")
    else:
        notes.append("Every step is drawn.")
    return tuple(notes)


def _table(record: RunRecord, band: StepBins, name: str, unit: tuple[float, str]) -> Table:
    factor, word = unit
    runs = (record.run_id,)
    rows = []
    for place, first in enumerate(band.first_step.tolist()):
        last = min(first + band.steps_per_point, band.steps) - 1
        figures = [float(column[place]) / factor for column in (band.low_s, band.mean_s, band.high_s)]
        rows.append(
            (Cell(f"{first:,}", first), Cell(f"{last:,}", last), *(Cell(number(v, 5), v, runs=runs) for v in figures))
        )
    columns = (
        Column("first step"),
        Column("last step"),
        Column("minimum", word),
        Column("mean", word),
        Column("maximum", word),
    )
    return Table(f"{name}-data", f"Step time of run {record.run_id}", columns, tuple(rows))
