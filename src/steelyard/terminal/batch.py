"""A batch-size curve as lines for a terminal and as plain data. Knows words and widths, computes nothing."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from steelyard.contracts.base import to_json_object
from steelyard.terminal.findings import finding_lines, tally
from steelyard.terminal.text import count_statuses, number, table, with_interval, wrapped

if TYPE_CHECKING:
    from steelyard.analysis.batch import BatchCurve

GIB = 1 << 30
NOTHING = "no batch could be run"


def curve_lines(curve: BatchCurve) -> list[str]:
    """The answer first; then every cell, how the knee was found, and the findings."""
    lines: list[str] = []
    for text in (knee_answer(curve), what_fits(curve)):
        lines += wrapped(text, deeper="")
    top = "of best" if curve.knee is not None and curve.knee.method == "swept batches alone" else "of asymptote"
    heading = ["batch", "runs", "samples/s of the job", top, "memory"]
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
    # What the brackets of the cells are, each note once.
    intervals = [entry.throughput.interval for entry in curve.cells if entry.throughput.interval is not None]
    notes = [f"[]: {100 * found.level:g} % interval for {found.covers}; {found.method}" for found in intervals]
    notes += ["~: approximate, " + "; ".join(found.approximate) for found in intervals if found.approximate]
    for text in (*dict.fromkeys(notes), *knee_notes(curve)):
        lines += wrapped(text)
    if curve.findings:
        lines += ["", *finding_lines(curve.findings), tally(curve.findings)]
    return lines


def knee_answer(curve: BatchCurve) -> str:
    """The knee, in a sentence."""
    found = curve.knee
    if found is None:
        return "no knee is given: the cells do not differ in the batch alone (see the findings below)"
    share = f"{found.share:.0%}".replace("%", " %")
    if found.answer == "found" and found.value is not None:
        what = (
            "the best swept batch"
            if found.method == "swept batches alone"
            else "its asymptote, the most that any batch could give"
        )
        most = "" if curve.asymptote is None else f", {number(curve.asymptote, 4)} samples/s"
        swept = "" if curve.smallest_reaching is None else f"; {curve.smallest_reaching:,} is the first swept one there"
        bounds = " (no interval)"
        if found.low is not None and found.high is not None:
            high = _format_batch(found.high) if math.isfinite(found.high) else "unbounded"
            bounds = f" [{_format_batch(found.low)}, {high}]"
        knee = f"the knee is at batch {_format_batch(found.value)}{bounds}"
        return f"{knee}: there throughput reaches {share} of {what}{most}{swept}"
    if found.answer == "beyond the sweep":
        guess = "" if found.value is None else f", near {_format_batch(found.value)} if the curve goes on as it does"
        last = max(entry.batch for entry in curve.cells if entry.throughput.value is not None)
        return f"the knee is beyond batch {_format_batch(last)}{guess}: {found.reason}"
    if found.answer == "below the sweep":
        return f"the knee is at or below the smallest batch, {_format_batch(curve.cells[0].batch)}: {found.reason}"
    return f"cannot tell where the knee is: {found.reason}"


def _format_batch(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def what_fits(curve: BatchCurve) -> str:
    """The largest batch that fits, in a sentence."""
    if curve.largest_fitting is None:
        return "no batch fits in every job" if any(entry.throughput.value for entry in curve.cells) else NOTHING
    too_large = curve.smallest_out_of_memory
    if too_large is None:
        return f"largest batch that was run: {curve.largest_fitting:,}; none ran out of memory, larger ones may fit"
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
    """How the knee was found and how well that describes the curve."""
    found = curve.knee
    if found is None or found.method == "none":
        return []
    level = f"{found.level:.0%}".replace("%", " %")
    if found.fixed_s is None or found.sample_s is None:
        lines = [f"knee: {found.reason}"]
        if found.low is not None and found.method == "swept batches alone":
            lines.append(f"[] of the knee: the last batch clearly short of it and the first clearly there, at {level}")
        return lines
    misfit = f"{100 * (found.misfit or 0.0):.2g} %"
    form = (
        f"knee: a step takes {found.fixed_s * 1e3:.4g} ms and {found.sample_s * 1e6:.4g} us more for each sample of "
        f"the batch; the measured times scatter by {misfit} around that; [] of the knee: {level} interval"
    )
    spec = curve.cells[0].cell.records[0].spec
    if spec.step_samples == spec.batch:
        return [form]
    count = spec.step_samples // spec.batch
    which = f"batch: samples of one micro-batch on one device; a step of the job has {count:,} such micro-batches"
    return [form, which]


def curve_object(curve: BatchCurve) -> dict[str, Any]:
    """The same for machines."""
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
