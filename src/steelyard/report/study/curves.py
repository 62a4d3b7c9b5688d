"""Curves of a study: over devices, over the batch size, and a map of two settings."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any, TypeVar

from steelyard.analysis.batch import batch_curve
from steelyard.analysis.best import fastest_first, rank
from steelyard.analysis.scaling import scaling
from steelyard.analysis.sweep import written
from steelyard.errors import SteelyardError
from steelyard.report.charts.batch import batch_chart
from steelyard.report.charts.heat import heat_chart
from steelyard.report.charts.loss import loss_chart
from steelyard.report.charts.scaling import efficiency_chart, throughput_chart
from steelyard.report.charts.style import error_codes
from steelyard.report.page import Cell, Column, KeyFigure, Prose, Section, Table
from steelyard.report.study.subject import brief, key_figure
from steelyard.terminal.batch import knee_answer, knee_notes, knee_short, what_fits
from steelyard.terminal.best import answers
from steelyard.terminal.findings import merged
from steelyard.terminal.scaling import answer, models, where_to_stop
from steelyard.terminal.text import number, sentence

if TYPE_CHECKING:
    from collections.abc import Sequence

    from steelyard.analysis.batch import BatchCurve
    from steelyard.analysis.scaling import Scaling
    from steelyard.analysis.summary import CellSummary
    from steelyard.report.study.subject import Subject
    from steelyard.stats.quotient import Estimate

T = TypeVar("T")
DRAWN = 2
"""Up to this many curves of one kind are all drawn. With more, only the fastest is; a table lists the others."""
ANALYSED = 12
"""Limit of analysed curves of one kind: a sweep over four settings has hundreds."""
BLOCKED = "Speed-up not reported until the errors are fixed."


def drawn(curves: Sequence[T]) -> Sequence[T]:
    """Return the curves that get charts."""
    return curves if len(curves) <= DRAWN else curves[:1]


def left_out(entry: Subject, groups: int, key: str) -> list[str]:
    """Say which curves are not drawn and which are not analysed."""
    if groups <= DRAWN:
        return []
    others = ",".join(f"{name}=VALUE" for name in entry.swept if name != key)
    more = groups - ANALYSED
    unseen = f" {more:,} more curves are not analysed." if more > 0 else ""
    another = f"To draw another: steelyard report {entry.cells[0].study}:{others}"
    first = next(iter(fastest_first(entry.cells)), None)
    which = "first curve" if first is None or first.unreliable else "curve with the highest reliable throughput"
    return [f"Only the {which} is drawn.{unseen} {another}"]


def _which(label: str, groups: Sequence[tuple[str, list[CellSummary]]]) -> str:
    """Name the curve that is described first, and whether it has the highest reliable throughput."""
    reliable = bool(groups) and label == groups[0][0] and any(not cell.unreliable for cell in groups[0][1])
    return f"Of these, the one with the highest reliable throughput ({label})" if reliable else f"The first ({label})"


# -- over devices


def scaling_section(entry: Subject, name: str = "scaling", title: str = "Scaling over devices") -> Section | None:
    """Throughput, efficiency and losses over devices; None if only one number of devices was run."""
    if "devices" not in entry.swept:
        return None
    groups = entry.groups("devices")
    question = "How well does it scale over devices, and where is efficiency lost?"
    try:
        curves = _scalings(entry, groups)
    except SteelyardError as error:
        step = (f"Next: {error.next_step}",) if error.next_step else ()
        problems = Prose(tuple(sentence(str(problem)) for problem in error.problems[:5]) + step)
        return Section(name, title, question, f"Scaling not reported: {error.what}.", (problems,))
    blocks: list[Any] = [_curve_table(curves, entry, name)] if len(curves) > 1 else []
    for place, curve in enumerate(drawn(curves), 1):
        blocks += _drawn(curve, entry, name if place == 1 else f"{name}-{place}")
    texts = left_out(entry, len(groups), "devices")
    blocks += [Prose(tuple(texts))] if texts else []
    findings = merged(
        dataclasses.replace(finding, place=": ".join(filter(None, (curve.label, finding.place))))
        for curve in curves
        for finding in curve.findings
    )
    first = curves[0]
    text = BLOCKED if first.blocked else answer(first)
    if len(curves) > 1:
        text = f"{_curves(len(curves), len(groups))} {_which(first.label, groups)}: {text}"
    return Section(name, title, question, text, tuple(blocks), findings, figures=_speedup(first))


def _speedup(curve: Scaling) -> tuple[KeyFigure, ...]:
    """Return what the largest number of devices gains."""
    last = curve.points[-1]
    if curve.blocked or last.devices == curve.base.devices:
        return ()
    over, whole = last.speedup, last.split.total.scaled(100)
    devices = f"{last.devices} devices"
    doubt = bool(curve.doubts)
    return (
        key_figure(f"Speed-up on {devices}", over.value, over.low, over.high, "times", unreliable=doubt),
        key_figure(f"Efficiency on {devices}", whole.value, whole.low, whole.high, "%", unreliable=doubt),
    )


def _scalings(entry: Subject, groups: Sequence[tuple[str, list[CellSummary]]]) -> list[Scaling]:
    """Analyse each curve. Without groups that differ only in devices, the batch may have changed with the devices."""
    if not groups:
        return scaling(entry.cells)
    curves, refused = [], []
    for label, cells in groups[:ANALYSED]:
        try:
            curves += [dataclasses.replace(curve, label=label) for curve in scaling(cells)]
        except SteelyardError as error:
            refused.append(error)
    if not curves:
        raise refused[0]
    return curves


def _curves(seen: int, groups: int) -> str:
    return f"{groups:,} curves, {seen} of them analysed." if groups > seen else f"{seen} curves."


def _drawn(curve: Scaling, entry: Subject, name: str) -> list[Any]:
    blocks: list[Any] = [throughput_chart(curve, f"{name}-throughput", runs=entry.runs)]
    if curve.blocked:
        return blocks
    blocks.append(efficiency_chart(curve, f"{name}-efficiency", runs=entry.runs))
    blocks.append(loss_chart(curve, f"{name}-loss", runs=entry.runs))
    notes = [where_to_stop(curve), *([models(curve)] if curve.fits else [])]
    return [*blocks, *(Prose((f"{part[0]}:", *map(sentence, part[1:]))) for part in notes)]


def _curve_table(curves: Sequence[Scaling], entry: Subject, name: str) -> Table:
    columns = (
        Column("curve", align="left"),
        Column("base", "devices"),
        Column("largest", "devices"),
        Column("throughput", curves[0].base.throughput.unit),
        Column("speed-up"),
        Column("parallel efficiency", "%"),
    )
    rows = []
    for curve in curves:
        last = curve.points[-1]
        ids = entry.runs.get(last.configuration, ())
        codes = error_codes(curve.findings)
        ratios = (Cell("not reported", codes=codes),) * 2
        if not curve.blocked:
            ratios = (_estimate(last.speedup, ids), _estimate(last.split.total.scaled(100), ids))
        rows.append(
            (
                Cell(curve.label, curve.label),
                Cell(str(curve.base.devices), curve.base.devices),
                Cell(str(last.devices), last.devices),
                brief(last.throughput, ids),
                *ratios,
            )
        )
    return Table(f"{name}-curves", "Each curve at its largest number of devices", columns, tuple(rows))


def _estimate(estimate: Estimate, ids: tuple[str, ...]) -> Cell:
    text = number(estimate.value, 4)
    if estimate.low is not None and estimate.high is not None:
        text += f" [{number(estimate.low, 4)}, {number(estimate.high, 4)}]"
    return Cell(text, estimate.value, estimate.low, estimate.high, ids)


# -- over the batch size


def batch_section(entry: Subject, name: str = "batch", title: str = "Batch size") -> Section | None:
    """Throughput over the batch size, its knee and the largest batch that fits; None if only one batch was run."""
    if "batch" not in entry.swept:
        return None
    groups = entry.groups("batch")
    question = "Which batch size is enough, and which is the largest that fits?"
    curves: list[tuple[str, BatchCurve]] = []
    refused: list[SteelyardError] = []
    for label, cells in groups[:ANALYSED]:
        try:
            curves.append((label, batch_curve(cells, label=label)))
        except SteelyardError as error:
            refused.append(error)
    if not curves:
        message = refused[0].what if refused else "no two configurations differ only in the batch"
        return Section(name, title, question, f"Curve not reported: {message}.")
    blocks: list[Any] = [_knee_table(curves, name)] if len(curves) > 1 else []
    for place, (label, curve) in enumerate(drawn(curves), 1):
        own = name if place == 1 else f"{name}-{place}"
        chart = batch_chart(curve, f"{own}-throughput")
        blocks.append(dataclasses.replace(chart, title=f"{chart.title} ({label})") if label else chart)
        # How the knee was found; the notes of the chart explain the brackets.
        how = [text.partition("; [ ] of the knee")[0] for text in knee_notes(curve) if not text.startswith("[")]
        blocks += [Prose(tuple(map(sentence, how)))] if how else []
    texts = left_out(entry, len(groups), "batch")
    blocks += [Prose(tuple(texts))] if texts else []
    findings = merged(
        dataclasses.replace(finding, place=": ".join(filter(None, (label, finding.place))))
        for label, curve in curves
        for finding in curve.findings
    )
    first, first_curve = curves[0]
    answer = knee_words(first_curve)
    if len(curves) > 1:
        answer = f"{_curves(len(curves), len(groups))} {_which(first, groups)}: {answer[:1].lower()}{answer[1:]}"
    return Section(name, title, question, answer, tuple(blocks), findings, figures=_enough(first_curve))


def _enough(curve: BatchCurve) -> tuple[KeyFigure, ...]:
    """Return the batch that is enough, and the largest that fits."""
    figures = []
    knee = curve.knee
    if knee is not None and knee.answer == "found" and knee.value is not None:
        high = knee.high if knee.high is not None and math.isfinite(knee.high) else None
        figures.append(key_figure("Batch that is enough", knee.value, knee.low, high, "samples"))
    if curve.largest_fitting is not None and curve.smallest_out_of_memory is not None:
        beyond = f"{curve.smallest_out_of_memory:,} runs out of memory"
        figures.append(KeyFigure("Largest that fits", f"{curve.largest_fitting:,}", "samples", beyond))
    return tuple(figures)


def knee_words(curve: BatchCurve) -> str:
    """Knee and largest batch, as `steelyard batch` reports them."""
    return f"{sentence(knee_answer(curve))} {sentence(what_fits(curve))}"


def _knee_table(curves: Sequence[tuple[str, BatchCurve]], name: str) -> Table:
    columns = (
        Column("curve", align="left"),
        Column("knee", "samples"),
        Column("largest that fits", "samples"),
        Column("smallest out of memory", "samples"),
    )
    rows = []
    for label, curve in curves:
        ids = tuple(record.run_id for cell in curve.cells for record in cell.cell.records)
        sizes = [
            Cell("none" if size is None else f"{size:,}", size, runs=ids)
            for size in (curve.largest_fitting, curve.smallest_out_of_memory)
        ]
        rows.append((Cell(label, label), _knee(curve, ids), *sizes))
    notes = ("Knee: the smallest batch that gives most of the throughput of a very large batch.",)
    return Table(f"{name}-curves", "Each curve", columns, tuple(rows), notes)


def _knee(curve: BatchCurve, ids: tuple[str, ...]) -> Cell:
    knee = curve.knee
    if knee is None:
        return Cell("not reported", codes=error_codes(curve.findings))
    if knee.answer == "found" and knee.value is not None:
        return Cell(number(knee.value, 3), knee.value, knee.low, knee.high, ids)
    return Cell(knee_short(curve))


# -- two settings as a map


def heat_section(entry: Subject, name: str = "heat", title: str = "Map of two settings") -> Section | None:
    """Throughput by the two settings with the most values; None if fewer were swept or no map is possible."""
    if len(entry.swept) < 2:
        return None
    x, y = sorted(entry.swept, key=lambda key: -len(entry.swept[key]))[:2]
    if {"batch", "devices"} <= set(entry.swept):
        x, y = "batch", "devices"
    others = [key for key in entry.swept if key not in (x, y)]
    best = next(iter(fastest_first(entry.cells)), entry.cells[0])
    cells = [
        cell
        for cell in entry.cells
        if all(repr(entry.value(cell, key)) == repr(entry.value(best, key)) for key in others)
    ]
    if (
        len({repr(entry.value(cell, x)) for cell in cells}) < 2
        or len({repr(entry.value(cell, y)) for cell in cells}) < 2
    ):
        return None
    try:
        chart = heat_chart(cells, x, y, f"{name}-map")
    except SteelyardError:
        return None
    at = ", ".join(f"{key}={written(entry.value(best, key))}" for key in others)
    if at:
        chart = dataclasses.replace(chart, title=f"{chart.title} ({at})", notes=(*chart.notes, f"All at {at}."))
    lost = sum(cell.throughput.value is None for cell in cells)
    text = f"{lost} of {len(cells)} configurations have no result" if lost else ""
    answer = f"{answers(rank(cells, rows=entry.rows))} {sentence(text)}"
    return Section(name, title, f"Which {x} and {y} are fastest?", answer, (chart,))
