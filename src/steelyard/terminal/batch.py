"""A batch-size curve as lines and as plain data."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from steelyard.analysis.summary import MEASURED
from steelyard.contracts.base import to_json_object
from steelyard.numbers import change, short
from steelyard.terminal.findings import finding_lines, tally_lines
from steelyard.terminal.text import count_statuses, interval_notes, number, sentence, table, with_interval, wrapped

if TYPE_CHECKING:
    from steelyard.analysis.batch import BatchCurve

GIB = 1 << 30
NOTHING = "no batch completed"


def curve_lines(curve: BatchCurve) -> list[str]:
    """Format the answer, then every batch, how the knee was found, and the findings."""
    lines: list[str] = []
    for text in (knee_answer(curve), what_fits(curve)):
        lines += wrapped(sentence(text), deeper="")
    top = "of best" if curve.knee is not None and curve.knee.method == "swept batches alone" else "of asymptote"
    heading = ["batch", "runs", "throughput, samples/s", top, "memory"]
    rows = [
        [
            f"{entry.batch:,}",
            count_statuses(entry.cell.statuses),
            "-" if entry.throughput.value is None else with_interval(entry.throughput),
            "-" if entry.of_asymptote is None else f"{100 * entry.of_asymptote:.1f} %",
            "-" if entry.memory_bytes is None else f"{number(entry.memory_bytes / GIB, 3)} GiB",
        ]
        for entry in curve.cells
    ]
    lines += ["", *table(heading, rows).splitlines()]
    lines += interval_notes(
        (entry.throughput.interval, [record for record in entry.cell.records if record.status.code in MEASURED])
        for entry in curve.cells
    )
    for text in knee_notes(curve):
        lines += wrapped(text)
    if curve.findings:
        lines += ["", *finding_lines(curve.findings), "", *tally_lines(curve.findings)]
    return lines


def knee_answer(curve: BatchCurve) -> str:
    """Say where the knee is, in a sentence."""
    found = curve.knee
    if found is None:
        return "knee not reported: the configurations differ in more than the batch (see the findings)"
    share = f"{found.share:.0%}".replace("%", " %")
    if found.answer == "found" and found.value is not None:
        what = (
            "the best swept batch"
            if found.method == "swept batches alone"
            else "its asymptote, the limit for large batches"
        )
        most = "" if curve.asymptote is None else f", {number(curve.asymptote, 4)} samples/s"
        swept = (
            ""
            if curve.smallest_reaching is None
            else f"; the smallest swept batch that reaches it is {curve.smallest_reaching:,}"
        )
        bounds = " (no CI)"
        if found.low is not None and found.high is not None:
            high = _format_batch(found.high) if math.isfinite(found.high) else "unbounded"
            bounds = f" [{_format_batch(found.low)}, {high}]"
        knee = f"the knee is at batch {_format_batch(found.value)}{bounds}"
        return f"{knee}: throughput reaches {share} of {what}{most}{swept}"
    if found.answer == "beyond the sweep":
        guess = "" if found.value is None else f", near {_format_batch(found.value)} if the curve continues"
        last = max(entry.batch for entry in curve.cells if entry.throughput.value is not None)
        return f"the knee is beyond batch {_format_batch(last)}{guess}: {found.reason}"
    if found.answer == "below the sweep":
        return f"the knee is at or below the smallest batch, {_format_batch(curve.cells[0].batch)}: {found.reason}"
    return f"cannot tell where the knee is: {found.reason}"


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
    lost, ran = sum(found.get("out_of_memory", 0) for found in jobs), sum(sum(found.values()) for found in jobs)
    some = "" if lost == ran else f" in {lost} of {ran} jobs"
    if too_large < curve.largest_fitting:
        return (
            f"largest batch that fits: {curve.largest_fitting:,}, though {too_large:,} ran out of memory{some}: "
            "memory depends on more than the batch"
        )
    return f"largest batch that fits: {curve.largest_fitting:,}; {too_large:,} ran out of memory{some}"


def knee_notes(curve: BatchCurve) -> list[str]:
    """Say how the knee was found and how well the model describes the curve."""
    found = curve.knee
    if found is None or found.method == "none":
        return []
    level = f"{found.level:.0%}".replace("%", " %")
    if found.fixed_s is None or found.sample_s is None:
        lines = [f"knee: {found.reason}"]
        if found.low is not None and found.method == "swept batches alone":
            lines.append(f"[ ] of the knee = the last batch clearly below it and the first clearly above, at {level}")
        return lines
    misfit = change(found.misfit or 0.0)
    form = (
        f"knee: model of the step time = {short(found.fixed_s * 1e3)} ms + {short(found.sample_s * 1e6)} us per "
        f"sample; measured times deviate by {misfit}; [ ] of the knee = {level} CI"
    )
    spec = curve.cells[0].cell.records[0].spec
    if spec.step_samples == spec.batch:
        return [form]
    count = spec.step_samples // spec.batch
    which = f"batch = samples per micro-batch on one device; a step of the job has {count:,} micro-batches"
    return [form, which]


def curve_object(curve: BatchCurve) -> dict[str, Any]:
    """Return the curve as plain data."""
    found = curve.knee
    if found is not None and found.high is not None and math.isinf(found.high):
        knee = to_json_object(found) | {"high": None, "unbounded": True}
    else:
        knee = None if found is None else to_json_object(found) | {"unbounded": False}
    return {
        "knee": knee,
        "asymptote_samples_per_s": curve.asymptote,
        "smallest_reaching": curve.smallest_reaching,
        "largest_fitting": curve.largest_fitting,
        "smallest_out_of_memory": curve.smallest_out_of_memory,
        "configurations": [
            {
                "batch": entry.batch,
                "configuration": entry.cell.cell,
                "statuses": entry.cell.statuses,
                "throughput_job": to_json_object(entry.throughput),
                "of_asymptote": entry.of_asymptote,
                "memory_peak_bytes": entry.memory_bytes,
            }
            for entry in curve.cells
        ],
        "findings": to_json_object(curve.findings),
    }
