"""Chart of throughput over the batch size, with the knee and the batches that ran out of memory."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from steelyard.report.charts.style import (
    BLUE,
    DASHED,
    DIAGONAL,
    DOTTED,
    INK,
    PALE,
    QUIET,
    RED,
    Axes,
    Sign,
    bars_up,
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
    shown_by,
    spec,
)
from steelyard.report.page import Cell, Chart, Column, Table
from steelyard.terminal.batch import rests_on
from steelyard.terminal.text import number, sentence

if TYPE_CHECKING:
    from collections.abc import Sequence

    from steelyard.analysis.batch import BatchCell, BatchCurve
    from steelyard.report.charts.style import Layer
    from steelyard.stats.knee import Knee

# Beyond this ratio of largest to smallest batch, a linear axis would crowd the small ones.
WIDE_SWEEP = 8
MAX_TICKS = 12
DRAWN = 80
WITH_CI, WITHOUT_CI, FITTED, KNEE_CI = (
    "measured, with 95 % CI",
    "measured, no CI",
    "fitted curve",
    "95 % CI of the knee",
)
NO_MEMORY, NO_RESULT = "out of memory", "no result"
ROOM = 1.25
FAR = 3.0
GIB = 1 << 30


def batch_chart(curve: BatchCurve, name: str = "batch-throughput") -> Chart:
    """Draw throughput with intervals, the knee with its interval as a band, and crosses where memory ran out.

    If the configurations differ in more than the batch, draw only points: no line, no knee, no asymptote.
    """
    measured = [entry for entry in curve.cells if entry.throughput.value is not None]
    largest = max([entry.throughput.value or 0.0 for entry in measured] + [_drawn_asymptote(curve) or 0.0])
    factor, unit = in_unit(largest, measured[0].throughput.unit if measured else "samples/s")
    values: list[dict[str, Any]] = []
    for entry in measured:
        low, high = interval_of(entry.throughput)
        ends = {"low": None if low is None else low / factor, "high": None if high is None else high / factor}
        values.append({"x": entry.batch, "y": (entry.throughput.value or 0.0) / factor, **ends})
    top = (
        1.08 * max([(_drawn_asymptote(curve) or 0.0) / factor, *(max(v["y"], v["high"] or 0.0) for v in values)]) or 1.0
    )
    batches = sorted({entry.batch for entry in curve.cells})
    ticks = batches if len(batches) <= MAX_TICKS else None
    if _logarithmic(curve):
        title = "batch per device, samples (logarithmic axis)"
        along = number_axis(title, *_ends(curve), logarithmic=True, values=ticks, format=",d")
    else:
        along = number_axis("batch per device, samples", *_ends(curve), format=",d", tickMinStep=1)
    axes = Axes(along, number_axis(f"throughput of the job, {unit}", 0, top))
    # The fitted curve if there is one, else lines between the points. Points with errors are not joined.
    layers = _knee(curve, axes, factor)
    if not curve.blocked:
        line = layer(_form(curve, factor) or values, "line", axes.at(), color=BLUE, strokeWidth=1.6)
        layers += shown_by(FITTED if _form(curve, factor) else WITH_CI, [line])
    known = points([value for value in values if value["low"] is not None], axes.at())
    layers += shown_by(WITH_CI, [*bars_up(values, axes), known])
    layers += shown_by(WITHOUT_CI, [hollow([value for value in values if value["low"] is None], axes.at())])
    memory = [_lost(entry, NO_MEMORY) for entry in curve.cells if entry.out_of_memory]
    others = [_lost(entry, NO_RESULT) for entry in curve.cells if _failed(entry)]
    layers += shown_by(NO_MEMORY, [crosses(memory, axes.at())]) if memory else []
    layers += shown_by(NO_RESULT, [hollow(others, axes.at(), INK, "square")]) if others else []
    return Chart(
        name=name,
        title="Throughput over the batch size" if not curve.blocked else "Throughput at each batch size",
        spec=spec([*layers, *key(_signs(curve, values))]),
        table=_table(curve, name),
        alt=_words(curve),
        notes=_notes(curve),
    )


def _lost(entry: BatchCell, ended: str) -> dict[str, Any]:
    return {"x": entry.batch, "y": 0, "tip": [f"batch per device: {entry.batch:,}", ended]}


def _logarithmic(curve: BatchCurve) -> bool:
    batches = [entry.batch for entry in curve.cells]
    return max(batches) > WIDE_SWEEP * min(batches)


def _ends(curve: BatchCurve) -> tuple[float, float]:
    batches = [entry.batch for entry in curve.cells]
    if _logarithmic(curve):
        return min(batches) / ROOM, max(batches) * ROOM
    return 0.0, 1.06 * max(batches)


def _knee(curve: BatchCurve, axes: Axes, factor: float) -> list[Layer]:
    knee, (first, last) = curve.knee, _ends(curve)
    if knee is None:
        return []
    out: list[Layer] = []
    if knee.low is not None and knee.high is not None and knee.low < last:
        band = {"x": max(first, knee.low), "x2": min(last, knee.high)}
        encoding = {"x": {"field": "x", **axes.x}, "x2": {"field": "x2"}}
        out += shown_by(KNEE_CI, [layer([band], "rect", encoding, color=PALE, opacity=1)])
    if knee.value is not None and first <= knee.value <= last:
        line = {"x": {"field": "x", **axes.x}}
        rule = layer([{"x": knee.value}], "rule", line, color=RED, strokeWidth=2, strokeDash=DASHED)
        out += shown_by(_knee_sign(knee), [rule])
    asymptote = _drawn_asymptote(curve)
    if asymptote is not None:
        line = {"y": {"field": "y", **axes.y}}
        value = [{"y": asymptote / factor}]
        rule = layer(value, "rule", line, color=QUIET, strokeWidth=1.6, strokeDash=DOTTED)
        out += shown_by(_most(knee), [rule])
    return out


def _drawn_asymptote(curve: BatchCurve) -> float | None:
    """Return the asymptote, or None if it is too far above the points to share an axis with them."""
    most = max((entry.throughput.value or 0.0 for entry in curve.cells), default=0.0)
    return curve.asymptote if curve.asymptote is not None and curve.asymptote <= FAR * most else None


def _form(curve: BatchCurve, factor: float) -> list[dict[str, Any]]:
    knee = curve.knee
    if knee is None or knee.fixed_s is None or knee.sample_s is None or knee.method != "fixed and per-sample time":
        return []
    swept = [entry.batch for entry in curve.cells if entry.throughput.value is not None]
    start, stop = max(knee.from_batch or 0.0, min(swept)), max(swept)
    spec_of = curve.cells[0].cell.records[0].spec
    whole = spec_of.step_samples / spec_of.batch / factor
    batches = [start * (stop / start) ** (n / (DRAWN - 1)) for n in range(DRAWN)] if stop > start else []
    return [{"x": b, "y": whole * b / (knee.fixed_s + knee.sample_s * b)} for b in batches]


def _failed(entry: BatchCell) -> bool:
    return entry.throughput.value is None and not entry.out_of_memory


def _signs(curve: BatchCurve, values: Sequence[dict[str, Any]]) -> list[Sign]:
    line = bool(_form(curve, 1.0)) or not curve.blocked
    signs = []
    if any(value["low"] is not None for value in values):
        signs.append(Sign(WITH_CI, BLUE, "circle"))
    if any(value["low"] is None for value in values):
        signs.append(Sign(WITHOUT_CI, BLUE, "circle", filled=False))
    if line and _form(curve, 1.0):
        signs.append(Sign(FITTED, BLUE, line=True))
    knee = curve.knee
    if knee is not None and knee.value is not None and _ends(curve)[0] <= knee.value <= _ends(curve)[1]:
        signs.append(Sign(_knee_sign(knee), RED, line=True, dash=DASHED))
    if knee is not None and knee.low is not None and knee.high is not None and knee.low < _ends(curve)[1]:
        signs.append(Sign(KNEE_CI, QUIET, area=PALE))
    if knee is not None and _drawn_asymptote(curve) is not None:
        signs.append(Sign(_most(knee), QUIET, line=True, dash=DOTTED))
    if any(entry.out_of_memory for entry in curve.cells):
        signs.append(Sign(NO_MEMORY, INK, DIAGONAL))
    if any(_failed(entry) for entry in curve.cells):
        signs.append(Sign(NO_RESULT, INK, "square", filled=False))
    return signs


# -- texts and table


def _share(knee: Knee) -> str:
    return f"{100 * knee.share:g} %"


def _knee_sign(knee: Knee) -> str:
    return f"knee: {_share(knee)} of the maximum"


def _most(knee: Knee) -> str:
    return "best swept batch" if knee.of_best else "asymptote"


def _words(curve: BatchCurve) -> str:
    measured = [entry for entry in curve.cells if entry.throughput.value is not None]
    parts = []
    if curve.blocked:
        parts.append(_refusal(curve))
    if measured:
        first, last = measured[0], measured[-1]
        parts.append(
            f"{_rate(first)} at batch {first.batch:,}, {_rate(last)} {last.throughput.unit} at batch {last.batch:,}."
        )
    parts += [_knee_words(curve), sentence(rests_on(curve))]
    lost = [f"{entry.batch:,}" for entry in curve.cells if entry.out_of_memory]
    parts.append(f"Out of memory at batch {', '.join(lost)}." if lost else "No batch ran out of memory.")
    return " ".join(filter(None, parts))


def _refusal(curve: BatchCurve) -> str:
    codes = ", ".join(error_codes(curve.findings))
    return f"No knee: the configurations differ in more than the batch{f' ({codes})' if codes else ''}."


def _rate(entry: BatchCell) -> str:
    return named(entry.throughput.value or 0.0, *interval_of(entry.throughput))


def _knee_words(curve: BatchCurve) -> str:
    knee = curve.knee
    if knee is None:
        return ""
    if knee.value is None and knee.answer in ("beyond the sweep", "below the sweep"):
        return f"The knee is {knee.answer}: {knee.reason}."
    if knee.value is None:
        return f"Knee unknown: {knee.reason}."
    ends = ""
    if knee.low is not None and knee.high is not None:
        high = number(knee.high, 3) if math.isfinite(knee.high) else "no upper bound"
        ends = f" (95 % CI {number(knee.low, 3)} to {high})"
    most = "" if curve.asymptote is None else f", {number(curve.asymptote, 4)} samples/s"
    where = {"beyond the sweep": ", beyond the sweep", "below the sweep": ", below the sweep"}.get(knee.answer, "")
    return f"Knee at batch {number(knee.value, 3)}{ends}{where}: {_share(knee)} of the {_most(knee)}{most}."


def _notes(curve: BatchCurve) -> tuple[str, ...]:
    notes = [_refusal(curve)] if curve.blocked else [f"{_knee_words(curve)} {sentence(rests_on(curve))}".strip()]
    spec_of = curve.cells[0].cell.records[0].spec
    if spec_of.step_samples != spec_of.batch:
        count = spec_of.step_samples // spec_of.batch
        notes.append(f"Batch: one micro-batch on one device; a step of the job has {count:,} of them.")
    if all(entry.throughput.interval is None for entry in curve.cells):
        notes.append("No CI: needs several jobs, or one job with more steps.")
    return tuple(notes)


def _table(curve: BatchCurve, name: str) -> Table:
    columns = (
        Column("batch per device", "samples"),
        Column("jobs", align="left"),
        Column("throughput of the job", "samples/s"),
        Column("share of the maximum", "%"),
        Column("peak memory", "GiB"),
    )
    rows = []
    for entry in curve.cells:
        ids = tuple(record.run_id for record in entry.cell.records)
        codes = error_codes(entry.cell.findings)
        share = None if entry.of_asymptote is None else 100 * entry.of_asymptote
        memory = None if entry.memory_bytes is None else entry.memory_bytes / GIB
        throughput = Cell("none", runs=ids)
        if entry.throughput.value is not None:
            throughput = marked(figure_cell(entry.throughput, ids, codes), entry.cell.unreliable)
        statuses = ", ".join(f"{count} {code.replace('_', ' ')}" for code, count in sorted(entry.cell.statuses.items()))
        rows.append(
            (
                Cell(f"{entry.batch:,}", entry.batch),
                Cell(statuses, statuses),
                throughput,
                Cell("-" if share is None else f"{share:.1f}", share, runs=ids),
                Cell("unknown" if memory is None else number(memory, 3), memory, runs=ids),
            )
        )
    return Table(f"{name}-data", "Throughput over the batch size", columns, tuple(rows), _notes(curve))
