"""Configurations, runs and studies as tables."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from steelyard.analysis.bound import leading
from steelyard.analysis.summary import CellSummary, generation, labels
from steelyard.contracts.finding import Finding
from steelyard.contracts.observe import MEASURED
from steelyard.contracts.record import RunRecord
from steelyard.numbers import natural_order
from steelyard.terminal.best import unreliable_notes
from steelyard.terminal.conditions import mhz, state_lines
from steelyard.terminal.findings import finding_lines, merged, tally_lines, with_one_remedy
from steelyard.terminal.programs import program_fact, program_lines
from steelyard.terminal.text import (
    WITHOUT_GAIN,
    count_statuses,
    interval_notes,
    many,
    number,
    seconds,
    shortened,
    table,
    with_interval,
    without_gain,
    wrapped,
)

SHORT_S = 0.01
LONG_REASON = 40
"""Characters; longer reasons are printed below a table."""


def cells_lines(cells: list[CellSummary], *, detail: bool = False) -> list[str]:
    """Format one row per configuration, then what the brackets are, details of a single one, and the findings."""
    names = labels(cells)
    cells = sorted(cells, key=lambda cell: natural_order(names[cell.name]))
    rows = [[names[cell.name], count_statuses(cell.statuses), with_interval(cell.throughput)] for cell in cells]
    lines = [table(["configuration", "jobs", "throughput, samples/s"], rows)]
    lines += interval_notes(
        (cell.throughput.interval, [record for record in cell.records if record.status.code in MEASURED])
        for cell in cells
    )
    lines += unreliable_notes(cells, names) if len(cells) > 1 else []
    shorter: dict[int, list[str]] = {}
    for cell in cells:
        shorter.setdefault(cell.shorter, []).append(names[cell.name])
    for count, which in shorter.items():
        if count:
            place = f"all {len(which)} configurations" if len(which) == len(cells) > 1 else shortened(which)
            lines += wrapped(f"{place}: {many(count, 'shorter job')} not counted")
    lines += generation_lines(cells, names)
    lines += program_lines(cells, names)
    for cell in cells:
        if cell.time_to_quality is not None:
            lines += wrapped(_format_time_to_quality(cell, names[cell.name]))
    if detail and len(cells) == 1:
        lines += _detail_lines(cells[0])
    findings = [
        dataclasses.replace(finding, place=names[cell.name] if len(cells) > 1 else "")
        for cell in cells
        for finding in cell.findings
    ]
    return lines + _finding_block(merged(findings, of=len(cells)))


def generation_lines(cells: Sequence[CellSummary], names: Mapping[str, str]) -> list[str]:
    """Say what kind of generation the figures are of, with one line for configurations of the same kind."""
    kinds: dict[str, list[str]] = {}
    for cell in cells:
        if (kind := generation(cell.records[0])) is not None:
            kinds.setdefault(kind, []).append(names[cell.name])
    lines = []
    for kind, which in kinds.items():
        place = "Generation" if len(which) == len(cells) else shortened(which)
        lines += wrapped(f"{place}: {kind}")
    return lines


def not_measured_as(statuses: Mapping[str, int]) -> str:
    """Name how runs ended that have no figures, such as out of memory; empty: all have some."""
    return ", ".join(code.replace("_", " ") for code in sorted(statuses) if code not in MEASURED)


def record_lines(record: RunRecord) -> list[str]:
    """Format everything about one run."""
    reason = f": {record.status.reason}" if record.status.reason else ""
    lines = wrapped(f"{record.run_id} ({record.spec.study}): {record.status.code}{reason}")
    if record.environment:
        place = record.environment
        where = f"node: {place.node}; allocation: {place.allocation or 'none'}"
        lines += wrapped(f"{where}; device: {place.device}; timing: {place.timing}")
    if (kind := generation(record)) is not None:
        lines += wrapped(f"generation: {kind}")
    if record.steady:
        window = f"steps {record.steady.start_step:,} to {record.steady.stop_step:,}"
        lines += wrapped(f"{record.steady.answer} ({window}): {record.steady.reason}")
    lines += [line for fact in _list_facts(record) for line in wrapped(fact)]
    rows, reasons = [], []
    for name, quantity in record.quantities.items():
        text = seconds(quantity.value) if quantity.unit == "s" and quantity.value is not None else None
        if quantity.value is None and quantity.unit == "J" and _has_no_sensor(quantity.reason or ""):
            text = "unknown: no sensor"
        elif quantity.value is None and len(quantity.reason or "") > LONG_REASON:
            text = "unknown"
            reasons += wrapped(f"{name}: {quantity.reason}")
        elif quantity.value is not None and quantity.unit == "errors":
            text = f"{quantity.value:,.0f}"
        # A time is formatted with its unit, and a share has none.
        unit = "" if quantity.unit in ("s", "1") else quantity.unit
        value = text or with_interval(quantity)
        rows.append([name, value, unit, quantity.scope, quantity.window, without_gain(quantity)])
    head = ["quantity", "value", "unit", "scope", "window", "without gain"]
    gained = any(row[-1] for row in rows)
    lines += ["", table(head if gained else head[:-1], rows if gained else [row[:-1] for row in rows]), *reasons]
    lines += wrapped(WITHOUT_GAIN) if gained else []
    lines += state_lines([record], always=False)
    return lines + _energy_lines([record]) + _finding_block(record.findings)


def studies_table(studies: list[dict[str, Any]]) -> str:
    """Format one row per study."""
    return table(
        ["study", "configurations", "runs", "completed"], [[str(item) for item in row.values()] for row in studies]
    )


def _list_facts(record: RunRecord) -> list[str]:
    """List what ran, on which device, and with which settings."""
    lines = program_fact(record)
    if record.status.evidence:
        lines.append("evidence: " + "; ".join(f"{key}: {value}" for key, value in record.status.evidence.items()))
    if record.model:
        flops = record.model.flops_per_sample
        work = "FLOP per sample unknown" if flops is None else f"{number(flops, 4)} FLOP per sample"
        lines.append(f"model: {record.model.parameters:,} parameters, {work} ({record.model.method})")
    if record.device:
        known = record.device.model or "unknown model: its peak is not known"
        lines.append(f"device: {record.device.name} ({known})")
    if record.settings:
        lines.append("settings: " + ", ".join(f"{key} {value}" for key, value in record.settings.values.items()))
    if record.environment:
        lines.append(f"environment: {len(record.environment.facts)} facts (listed by --json)")
    if record.redacted:
        lines.append(f"redacted: {record.redacted} texts that looked like secrets")
    return lines


PARTS = (
    ("input_wait_share", "input"),
    ("host_wait_share", "host"),
    ("compute_share", "compute"),
    ("exposed_comm_share", "comm"),
)


SHOWN_WAIT = 0.01


def _bound_text(record: RunRecord) -> str:
    """Say what takes most of the time, and how long the device waits; empty if it waits for nothing."""
    waits = [
        f"for {what} {_percent(share.value)}"
        for name, what in (("input_wait_share", "data"), ("host_wait_share", "the host"))
        if (share := record.quantities.get(name)) is not None and share.value is not None and share.value >= SHOWN_WAIT
    ]
    if record.spec.mode == "load" or not waits:
        return ""
    # Waiting may matter although computation is the largest part: then only the waiting is said.
    bound = leading(record)
    named = "" if bound in ("compute-bound", "cannot tell") else f" is {bound}"
    return f"Job {record.spec.repeat}{named}: the device waits {' and '.join(waits)} of the time."


def _detail_lines(cell: CellSummary) -> list[str]:
    """Format the step times of every job of a configuration; if none was measured, how each ended."""
    done = [record for record in cell.records if record.status.code in MEASURED]
    if not done:
        ends = (f"{record.run_id}: {record.status.code}: {record.status.reason}" for record in cell.records)
        return [line for end in ends for line in wrapped(end)]
    parts = [(name, short) for name, short in PARTS if any(name in record.quantities for record in done)]
    rows = []
    for record in done:
        q = {name: quantity.value for name, quantity in record.quantities.items()}
        times = [q.get(name) for name in ("step_time_mean", "step_time_p50", "step_time_p99")]
        shares = [q.get(name) for name, _ in parts]
        rows.append(
            [
                str(record.spec.repeat),
                *("-" if value is None else seconds(value) for value in times),
                *("-" if share is None else _percent(share) for share in shares),
                record.steady.answer if record.steady else "-",
                _stopped_by(record),
            ]
        )
    header = ["job", "step mean", "p50", "p99", *(short for _, short in parts), "state", "stopped by"]
    stepped = any("step_time_mean" in record.quantities for record in done) or not done[0].wrapped
    lines = [*(["", table(header, rows)] if stepped else []), *_more_lines(done), *_energy_lines(done)]
    for record in done:
        lines += wrapped(text) if (text := _bound_text(record)) else ()
    communication = [record.quantities.get("exposed_comm_share") for record in done]
    if any(share is not None and share.window == "crosscheck" for share in communication):
        lines += wrapped(
            f"comm = communication, measured in the {'second' if done[0].wrapped else 'cross-check'} pass; "
            "host = waiting for the host; compute = the rest"
        )
    return lines


def _stopped_by(record: RunRecord) -> str:
    end = record.wrapped.end if record.wrapped is not None else None
    return record.stop.reason if record.stop else end.ended_by if end is not None else "-"


def _giga(value: float) -> str:
    return number(value / 1e9)


# Columns that some runs have besides their step times: heading, quantity, format.
MORE: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("compile", "compile_time", seconds),
    ("first epoch", "first_epoch_time", seconds),
    ("later epochs", "later_epochs_time", seconds),
    ("quality", "quality", number),
    ("to quality", "time_to_quality", seconds),
    ("epochs", "epochs_to_quality", "{:.0f}".format),
    ("first token p50", "ttft_p50", seconds),
    ("p99", "ttft_p99", seconds),
    ("token p50", "time_per_token_p50", seconds),
    ("p99", "time_per_token_p99", seconds),
    ("tokens/s", "token_throughput", number),
    ("label tokens/s", "label_token_throughput", number),
    ("padding", "padding_share", lambda share: f"{100 * share:.1f} %"),
    ("whole program", "program_time", seconds),
    ("CPU time", "program_cpu_time", seconds),
    ("GB largest process", "program_memory_peak", _giga),
    ("GFLOP/s per device", "model_flops_device", _giga),
    ("of peak", "model_flops_utilisation", lambda share: f"{100 * share:.1f} %"),
    ("mean clock", "clock_device", mhz),
    ("GB/s", "bandwidth_device", _giga),
    ("GB/s algorithm", "algorithm_bandwidth", _giga),
    ("GB/s bus", "bus_bandwidth", _giga),
    ("J/sample", "energy_per_sample", number),
    ("J/token", "energy_per_token", number),
    ("W", "power_job", number),
    ("samples/Wh", "samples_per_wh", number),
)


def _more_lines(done: list[RunRecord]) -> list[str]:
    """Format a second table with the columns that at least one job has."""
    shown = []
    for heading, name, write in MORE:
        quantities = [record.quantities.get(name) for record in done]
        # An invalid energy is not shown.
        values = [
            None if one is None or (one.validity is not None and one.validity.verdict == "invalid") else one.value
            for one in quantities
        ]
        if any(value is not None and (name != "compile_time" or value > SHORT_S) for value in values):
            if name == "quality":
                # Its unit is the name of the metric.
                heading = next(one.unit for one in quantities if one is not None)
            shown.append((heading, ["-" if value is None else write(value) for value in values]))
    if not shown:
        return []
    rows = [[str(record.spec.repeat), *(column[i] for _, column in shown)] for i, record in enumerate(done)]
    return ["", table(["job", *(heading for heading, _ in shown)], rows)]


def _energy_lines(done: list[RunRecord]) -> list[str]:
    """List why jobs have no energy although there are sensors, and why an energy is doubtful, one line per reason."""
    said: dict[str, list[int]] = {}
    for record in done:
        if (line := _explain_energy(record)) is not None:
            said.setdefault(line, []).append(record.spec.repeat)
    lines = []
    for line, repeats in said.items():
        which = "" if len(repeats) == len(done) else f"Job {', '.join(map(str, repeats))}: "
        lines += wrapped(which + line)
    return lines


def _explain_energy(record: RunRecord) -> str | None:
    energy = record.quantities.get("energy_job")
    # A finding says more, and how to fix it.
    if energy is None or any(finding.code.startswith("SY4") for finding in record.findings):
        return None
    if energy.value is None:
        return None if _has_no_sensor(energy.reason or "") else f"No energy: {energy.reason}"
    if energy.validity is None or energy.validity.verdict == "valid":
        return None
    word = "Invalid energy" if energy.validity.verdict == "invalid" else "Doubtful energy"
    return f"{word}: {'; '.join(energy.validity.reasons[:2])}. Details: steelyard energy {record.run_id}"


def _has_no_sensor(reason: str) -> bool:
    """Whether the machine has no sensor at all, which is not worth a line for every run."""
    said = reason.partition("can be read here: ")[2].split("; ")
    return all(": there is no /" in part or part.startswith("and ") for part in said)


def _format_time_to_quality(cell: CellSummary, name: str) -> str:
    time, spec = cell.time_to_quality, cell.records[0].spec
    assert time is not None
    assert spec.quality is not None
    metric = next((e.metric for record in cell.records for e in record.evaluations), "the metric")
    jobs = f"{len(cell.records)} jobs with different seeds" if len(cell.records) > 1 else "1 job"
    unit = "" if time.value is None else " s"
    return f"{name}: time to {metric} {spec.quality.target:g}: {with_interval(time)}{unit} ({jobs})"


def _percent(share: float) -> str:
    return f"{number(100 * share, 3)} %"


def _finding_block(findings: tuple[Finding, ...]) -> list[str]:
    told = with_one_remedy(findings)
    return ["", *finding_lines(told), "", *tally_lines(told)] if told else []
