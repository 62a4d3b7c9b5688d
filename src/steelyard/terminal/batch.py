"""A batch-size curve as lines and as plain data."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from steelyard.analysis.best import remedy
from steelyard.analysis.rows import chosen_names
from steelyard.analysis.summary import labels
from steelyard.contracts.base import to_json_object
from steelyard.contracts.observe import MEASURED
from steelyard.inputs.command import join, run_again
from steelyard.numbers import change, short
from steelyard.stats.knee import MIN_POINTS
from steelyard.stats.ratio import MIN_JOBS
from steelyard.terminal.best import above_words, unreliable_notes
from steelyard.terminal.findings import command_line, finding_lines, findings_object, next_line, tally_lines
from steelyard.terminal.plain import configuration_object, selection_of
from steelyard.terminal.tables import generation_lines
from steelyard.terminal.text import count_statuses, interval_notes, number, sentence, table, with_interval, wrapped

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from steelyard.analysis.batch import BatchCell, BatchCurve
    from steelyard.stats.knee import Knee
    from steelyard.terminal.shapes.results import BatchCurveData

GIB = 1 << 30
SAME_PERCENT = 0.005
"""Shares that are equal in whole percent."""
NOTHING = "no batch completed"


def curves_lines(curves: Sequence[BatchCurve], wider: str | None = None) -> list[str]:
    """Format a table of the curves with their answers, if there are several, then each curve.

    `wider`: the command for a selection with more batches, for a curve with too few.
    """
    lines: list[str] = []
    if len(curves) > 1:
        lines += wrapped(f"{len(curves)} curves over the batch, one for each combination of the other settings.")
        heading = ["curve", "knee at batch", "largest that fits", "smallest out of memory"]
        rows = [
            [curve.label, knee_short(curve), _size(curve.largest_fitting), _size(curve.smallest_out_of_memory)]
            for curve in curves
        ]
        lines += table(heading, rows).splitlines()
    for curve in curves:
        lines += ["", *wrapped(f"{curve.label}:")] if len(curves) > 1 else []
        lines += curve_lines(curve, wider)
    if curves[-1].alone:
        lines += ["", *wrapped(f"On no curve, no other batch with these settings: {'; '.join(curves[-1].alone)}.")]
    return lines


def _size(batch: int | None) -> str:
    return "-" if batch is None else f"{batch:,}"


def curve_lines(curve: BatchCurve, wider: str | None = None) -> list[str]:
    """Format the answer, then every batch, how the knee was found, and the findings."""
    lines: list[str] = []
    for text in (knee_answer(curve), what_fits(curve)):
        lines += wrapped(sentence(text), deeper="")
    if (step := next_step(curve, wider)) is not None:
        lines.append(next_line(step))
    top = "of best" if curve.knee is not None and curve.knee.of_best else "of asymptote"
    marked = any(entry.cell.unreliable and entry.throughput.value is not None for entry in curve.cells)
    heading = ["batch", "jobs", "throughput, samples/s", top, "memory", *(["remarks"] if marked else [])]
    rows = [
        [
            f"{entry.batch:,}",
            count_statuses(entry.cell.statuses),
            "-" if entry.throughput.value is None else with_interval(entry.throughput),
            "-" if entry.of_asymptote is None else f"{100 * entry.of_asymptote:.1f} %",
            "-" if entry.memory_bytes is None else f"{number(entry.memory_bytes / GIB, 3)} GiB",
            *([_remark(entry)] if marked else []),
        ]
        for entry in curve.cells
    ]
    lines += ["", *table(heading, rows).splitlines()]
    names = {entry.cell.name: f"batch {entry.batch:,}" for entry in curve.cells}
    lines += generation_lines([entry.cell for entry in curve.cells], names)
    lines += unreliable_notes([entry.cell for entry in curve.cells], names)
    lines += interval_notes(
        (entry.throughput.interval, [record for record in entry.cell.records if record.status.code in MEASURED])
        for entry in curve.cells
    )
    for text in knee_notes(curve):
        lines += wrapped(text)
    if curve.findings:
        places = {selection_of(entry.cell): f"batch {entry.batch:,}" for entry in curve.cells}
        findings = [replace(finding, place=_by_batch(finding.place, places)) for finding in curve.findings]
        lines += ["", *finding_lines(findings), "", *tally_lines(findings)]
    return lines


def _by_batch(place: str, places: Mapping[str, str]) -> str:
    first, more, rest = place.partition(" and ")
    return f"{places.get(first, first)}{more}{rest}"


def _remark(entry: BatchCell) -> str:
    return "unreliable" if entry.throughput.value is not None and entry.cell.unreliable else ""


def has_enough(curve: BatchCurve) -> bool:
    """Return whether there are enough batches for a knee."""
    return len({entry.batch for entry in curve.cells if entry.throughput.value is not None}) >= MIN_POINTS


def next_step(curve: BatchCurve, wider: str | None = None) -> str | None:
    """Return the command that would give a reliable knee; None if it is reliable, or more jobs would not help."""
    measured = [entry for entry in curve.cells if entry.throughput.value is not None]
    if curve.knee is None:
        # Its findings have the command.
        return None
    if measured and not has_enough(curve):
        if wider:
            return wider
        # More jobs of the same batches would lead back here.
        further = _further_batches(curve, [entry.batch for entry in measured])
        spec = measured[0].cell.spec
        if spec.study_arguments:
            sizes = ", ".join(map(str, sorted([*(entry.batch for entry in measured), *further])))
            return f"write [sweep] {_swept_as(measured)} = [{sizes}] into the study, and run it again"
        return join(*(run_again(spec, {"batch": batch}, repeats=MIN_JOBS) for batch in further)) or None
    lacking = [entry.cell for entry in curve.cells if entry.throughput.value is not None and entry.cell.unreliable]
    if not (curve.provisional or curve.above) or not lacking:
        return None
    return remedy(curve.above if curve.above is not None else lacking[0])


def _swept_as(measured: Sequence[BatchCell]) -> str:
    """Return the name of the batch in the study of a program, whose author may call it otherwise."""
    given = [entry.cell.spec.program.parameters if entry.cell.spec.program is not None else {} for entry in measured]
    batches = [entry.batch for entry in measured]
    return next((name for name in given[0] if [values.get(name) for values in given] == batches), "batch")


def _further_batches(curve: BatchCurve, measured: Sequence[int]) -> list[int]:
    """Return the batches to measure for a knee: four times the largest each, below one that ran out of memory."""
    limit, largest, smallest = curve.smallest_out_of_memory or math.inf, max(measured), min(measured)
    larger = [largest * 4**power for power in range(1, MIN_POINTS) if largest * 4**power < limit]
    smaller = [smallest // 4**power for power in range(1, MIN_POINTS) if smallest // 4**power >= 1]
    return (larger + smaller)[: MIN_POINTS - len(measured)]


def knee_short(curve: BatchCurve) -> str:
    """Say where the knee is, in a few words."""
    knee = curve.knee
    if knee is None:
        return "not reported"
    used = [entry.batch for entry in curve.cells if entry.used]
    if knee.answer == "found" and knee.value is not None:
        return f"{_format_batch(knee.value)}{_bounds(knee)}{', provisional' if curve.provisional else ''}"
    if knee.answer == "cannot tell" or not used:
        return "cannot tell"
    return f"beyond {max(used):,}" if knee.answer == "beyond the sweep" else f"at or below {min(used):,}"


def _bounds(knee: Knee) -> str:
    if knee.low is None or knee.high is None:
        return ""
    high = _format_batch(knee.high) if math.isfinite(knee.high) else "unbounded"
    return f" [{_format_batch(knee.low)}, {high}]"


def knee_answer(curve: BatchCurve) -> str:
    """Say where the knee is, in a sentence, and which configurations it does not rest on."""
    beside = f"with the batch differs {', '.join(curve.beside)}" if curve.beside else ""
    return "; ".join(filter(None, (_knee_words(curve), rests_on(curve), beside)))


def rests_on(curve: BatchCurve) -> str:
    """Say which configurations the knee rests on, if not on all, and what it therefore leaves open."""
    parts = []
    if curve.provisional:
        few = f"fewer than {MIN_POINTS} batches are reliable"
        parts.append(f"provisional, because {few}: {'; '.join(curve.provisional)}")
    used = [entry.cell for entry in curve.cells if entry.used]
    unused = sum(entry.throughput.value is not None and not entry.used for entry in curve.cells)
    if used and unused:
        parts.append(f"from {len(used)} of {len(used) + unused} batches with a result")
    if (above := curve.above) is not None:
        parts.append(above_words(f"batch {above.records[0].spec.batch:,}", above, used))
    return "; ".join(parts)


def _knee_words(curve: BatchCurve) -> str:
    knee = curve.knee
    if knee is None:
        return "knee not reported: the configurations differ in more than the batch (see the findings)"
    used = [entry.batch for entry in curve.cells if entry.used]
    share = f"{knee.share:.0%}".replace("%", " %")
    if knee.answer == "found" and knee.value is not None:
        what = "the best swept batch" if knee.of_best else "its asymptote, the limit for large batches"
        most = "" if curve.asymptote is None else f", {number(curve.asymptote, 4)} samples/s"
        swept = _swept_at(curve, knee.share)
        where = f"the knee is at batch {_format_batch(knee.value)}{_bounds(knee) or ' (no CI)'}"
        return f"{where}: throughput reaches {share} of {what}{most}{swept}"
    if knee.answer == "beyond the sweep":
        guess = "" if knee.value is None else f", near {_format_batch(knee.value)} if the curve continues"
        return f"the knee is beyond batch {_format_batch(max(used))}{guess}: {knee.reason}"
    if knee.answer == "below the sweep":
        return f"the knee is at or below the smallest batch, {_format_batch(min(used))}: {knee.reason}"
    return f"cannot tell where the knee is: {knee.reason}"


def _swept_at(curve: BatchCurve, share: float) -> str:
    """Name the smallest swept batch at the knee, and what was measured there if that is less than the model gives."""
    entry = next((entry for entry in curve.cells if entry.batch == curve.smallest_reaching), None)
    if entry is None:
        return ""
    if entry.of_asymptote is not None and entry.of_asymptote < share - SAME_PERCENT:
        return f"; the next swept batch is {entry.batch:,}, where {100 * entry.of_asymptote:.1f} % were measured"
    return f"; the smallest swept batch that reaches it is {entry.batch:,}"


def _format_batch(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else short(value, 2)


def what_fits(curve: BatchCurve) -> str:
    """Say which batch is the largest that fits, in a sentence."""
    if curve.largest_fitting is None:
        return "no batch fits in every job" if any(entry.throughput.value for entry in curve.cells) else NOTHING
    too_large = curve.smallest_out_of_memory
    if too_large is None:
        return f"largest batch run: {curve.largest_fitting:,}; none ran out of memory, so larger ones may fit"
    jobs = [entry.cell.statuses for entry in curve.cells if entry.batch == too_large]
    lost, ran = sum(counts.get("out_of_memory", 0) for counts in jobs), sum(sum(counts.values()) for counts in jobs)
    some = "" if lost == ran else f" in {lost} of {ran} jobs"
    if too_large < curve.largest_fitting:
        return (
            f"largest batch that fits: {curve.largest_fitting:,}, though {too_large:,} ran out of memory{some}: "
            "memory depends on more than the batch"
        )
    return f"largest batch that fits: {curve.largest_fitting:,}; {too_large:,} ran out of memory{some}"


def knee_notes(curve: BatchCurve) -> list[str]:
    """Say how the knee was found and how well the model describes the curve."""
    knee = curve.knee
    if knee is None or knee.method == "none":
        return []
    level = f"{knee.level:.0%}".replace("%", " %")
    if knee.fixed_s is None or knee.sample_s is None:
        lines = [f"knee: {knee.reason}"]
        if knee.low is not None and knee.of_best:
            lines.append(f"[ ] of the knee = the last batch clearly below it and the first clearly above, at {level}")
        return lines
    misfit = change(knee.misfit or 0.0)
    form = (
        f"knee: model of the step time = {short(knee.fixed_s * 1e3)} ms + {short(knee.sample_s * 1e6)} us per "
        f"sample; measured times deviate by {misfit}; [ ] of the knee = {level} CI"
    )
    spec = curve.cells[0].cell.records[0].spec
    if spec.step_samples == spec.batch:
        return [form]
    count = spec.step_samples // spec.batch
    which = f"batch = samples per micro-batch on one device; a step of the job has {count:,} micro-batches"
    return [form, which]


def curve_object(curve: BatchCurve, wider: str | None = None) -> BatchCurveData:
    """Return the curve as plain data; `wider` as for `curves_lines`."""
    knee = curve.knee
    open_ended = knee is not None and knee.high is not None and math.isinf(knee.high)
    shown = [entry.cell for entry in curve.cells]
    names, chosen = labels(shown), chosen_names(cell.spec for cell in shown)
    return {
        "label": curve.label,
        "answer": knee_answer(curve),
        "next": command_line(step) if (step := next_step(curve, wider)) is not None else None,
        "alone": list(curve.alone),
        "knee": None if knee is None else to_json_object(knee) | {"unbounded": open_ended},
        "asymptote_samples_per_s": curve.asymptote,
        "smallest_reaching": curve.smallest_reaching,
        "largest_fitting": curve.largest_fitting,
        "smallest_out_of_memory": curve.smallest_out_of_memory,
        "configurations": [
            {
                **configuration_object(entry.cell, names[entry.cell.name], chosen),
                "batch": entry.batch,
                "of_asymptote": entry.of_asymptote,
                "used": entry.used,
                "memory_peak_bytes": entry.memory_bytes,
            }
            for entry in curve.cells
        ],
        "findings": findings_object(curve.findings),
    }
