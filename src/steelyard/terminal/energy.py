"""Energy of configurations as lines and as plain data."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from steelyard.analysis.best import rank
from steelyard.analysis.energy import MAIN
from steelyard.analysis.power_trace import total
from steelyard.analysis.rows import chosen_names
from steelyard.analysis.summary import labels
from steelyard.errors import printable
from steelyard.numbers import natural_order
from steelyard.terminal.best import answers as rankings
from steelyard.terminal.conditions import state_lines
from steelyard.terminal.findings import finding_lines
from steelyard.terminal.plain import configuration_object, figure_object
from steelyard.terminal.text import (
    LEAST_WIDTH,
    OUTPUT_COLUMNS,
    WIDTH,
    WITHOUT_GAIN,
    interval_notes,
    number,
    seconds,
    sentence,
    spec_notes,
    table,
    with_interval,
    without_gain,
    wrapped,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from steelyard.analysis.energy import CellEnergy
    from steelyard.analysis.meters import MeterAgreement
    from steelyard.analysis.power_trace import PowerTrace
    from steelyard.contracts.record import Quantity
    from steelyard.terminal.shapes.results import EnergyData, ShownTraceData

DIGITS = 4
SHOWN_JOBS = 8
SHOWN_REASONS = 6
CHART_ROWS = 5
CHART_COLUMNS = 66

PER_WORK = (
    ("energy_per_sample", "J/sample"),
    ("energy_per_sample_net", "J/sample, net"),
    ("samples_per_wh", "samples/Wh"),
    ("energy_per_token", "J/token"),
    ("tokens_per_wh", "tokens/Wh"),
    ("energy_first_epoch", "J, first epoch"),
    ("energy_later_epochs", "J, later epochs"),
    ("power_job", "W, mean"),
    ("idle_power_job", "W, idle"),
    ("energy_device", "J per device"),
)
"""Quantities of a job, with their headings."""
PHASES = (
    ("energy_compile", "compile"),
    ("energy_warmup", "warm-up"),
    (MAIN, "steady"),
    ("energy_all_steps", "all steps"),
    ("energy_run", "run"),
)
PHASE_MARKS = {
    "setup": "s",
    "data": "d",
    "compile": "c",
    "steps": "=",
    "warmup": "w",
    "steady": "=",
    "evaluation": "e",
    "crosscheck": "x",
}
MARK_WORDS = {"warmup": "warm-up", "crosscheck": "cross-check"}


def energy_lines(cells: Sequence[CellEnergy], trace: PowerTrace | None) -> list[str]:
    """Format the answer, then the figures of each configuration, its phases, the power over time, and doubts."""
    names = _names(cells)
    cells = sorted(cells, key=lambda entry: natural_order(names[entry.cell.name]))
    lines = wrapped(sentence(answers(cells)))
    shown = [entry for entry in cells if entry.main.value is not None]
    if shown:
        if len(cells) > 1:
            lines += ["", *_compare_cells(shown, names)]
        else:
            entry = shown[0]
            lines += ["", *_list_work(entry)]
        lines += ["", *_list_phases(shown, names)]
        lines += _explain_columns(shown, brackets=any("[" in line for line in lines))
    if trace is not None and trace.lines:
        lines += ["", *power_chart(trace)]
        lines += [line for held in trace.held[:SHOWN_JOBS] for line in wrapped(held)]
    lines += state_lines(cells[0].cell.records[:SHOWN_JOBS] if len(cells) == 1 else ())
    lost = [entry for entry in cells if entry.main.value is None]
    if len(cells) > 1 and lost:
        reasons: dict[str, list[str]] = {}
        for entry in lost:
            reasons.setdefault(answer(entry), []).append(names[entry.cell.name])
        lines.append("")
        for reason, named in list(reasons.items())[:SHOWN_REASONS]:
            lines += wrapped(f"{'; '.join(named)}: {reason}")
        if len(reasons) > SHOWN_REASONS:
            lines.append(f"and {len(reasons) - SHOWN_REASONS} more reasons (listed by --json)")
    for entry in cells:
        lines += _list_doubts(entry, "" if len(cells) == 1 else f"{names[entry.cell.name]}: ")
    if not shown:
        lines += ["", "next: steelyard doctor"]
    return lines


def answers(cells: Sequence[CellEnergy]) -> str:
    """Say what a sample costs, or which configuration needs the least, and which errors make that invalid."""
    text = answer(cells[0]) if len(cells) == 1 else _name_least(cells)
    # Errors of a run make its energy invalid too, even if its sensors are fine.
    known = [entry for entry in cells if entry.main.value is not None]
    codes = [{one.code for one in entry.cell.findings if one.severity == "error"} for entry in known]
    errors = sorted(set().union(*codes))
    if not errors:
        return text
    whose = "" if len(cells) == 1 else f" for {sum(map(bool, codes))} of {len(known)} configurations"
    what = "it" if len(cells) == 1 else "these energies"
    return f"{text.rstrip('.')}. Do not use {what}{whose}: fix {', '.join(errors)} first"


def _names(cells: Sequence[CellEnergy]) -> dict[str, str]:
    """Name configurations by the settings in which they differ."""
    return labels([entry.cell for entry in cells])


def _name_least(cells: Sequence[CellEnergy]) -> str:
    """Say which of several configurations needs the least energy, if their energies have the same scope."""
    known = [entry for entry in cells if entry.main.value is not None]
    if not known:
        return "No energy was measured"
    text = f"Energy was measured for {len(known)} of {len(cells)} configurations"
    scopes = sorted({entry.scope for entry in known})
    if len(scopes) > 1:
        return f"{text}; their scopes differ and cannot be compared: {'; '.join(scopes)}"
    if sum(_known(entry, "energy_per_sample") for entry in known) < 2:
        return text
    return f"{text}. {rankings(rank([entry.cell for entry in cells], 'energy', energies=cells))}"


def answer(entry: CellEnergy) -> str:
    """Say what a sample costs, in a sentence."""
    if entry.main.value is None:
        return f"no energy: {entry.main.reason}"
    key = next((name for name in ("energy_per_sample", "energy_per_token", MAIN) if _known(entry, name)), MAIN)
    unit = {"energy_per_sample": "J/sample", "energy_per_token": "J/token"}.get(key, "J")
    rate = "tokens_per_wh" if key == "energy_per_token" else "samples_per_wh"
    text = f"{with_interval(entry.figures[key])} {unit}"
    if _known(entry, rate):
        text += f", {_value(entry, rate)} {entry.figures[rate].unit}"
    if _known(entry, "power_job"):
        text += f", at {_value(entry, 'power_job')} W"
    jobs = "1 job" if entry.jobs == 1 else f"{entry.jobs} jobs"
    left = f", {len(entry.left_out)} excluded" if entry.left_out else ""
    return f"{text} ({entry.scope}; {entry.verdict}; {jobs}{left})"


def _list_work(entry: CellEnergy) -> list[str]:
    """Format the figures of one configuration with their intervals, and these without gain."""
    known = [(heading, entry.figures[name]) for name, heading in PER_WORK if _known(entry, name)]
    window = entry.main.window if entry.main.window == "all steps" else f"{entry.main.window} window"
    head = ["", f"{entry.scope}, {window}"]
    rows = [[heading, with_interval(figure)] for heading, figure in known]
    if _has_gain([entry]):
        head.append("without gain")
        rows = [[*row, without_gain(figure)] for row, (_, figure) in zip(rows, known, strict=True)]
    return table(head, rows).splitlines() if rows else []


def _has_gain(cells: Sequence[CellEnergy]) -> bool:
    return any(without_gain(figure) for entry in cells for figure in entry.figures.values())


def _compare_cells(cells: Sequence[CellEnergy], names: dict[str, str]) -> list[str]:
    """Format one row per configuration, without intervals."""
    wanted = ("energy_per_sample", "energy_per_sample_net", "samples_per_wh", "energy_per_token", "power_job")
    columns = [(name, heading) for name, heading in PER_WORK if name in wanted and any(_known(e, name) for e in cells)]
    rows = [
        [
            names[entry.cell.name],
            str(entry.jobs),
            *("-" if not _known(entry, name) else _value(entry, name) for name, _ in columns),
            entry.verdict,
        ]
        for entry in cells
    ]
    short = {"J/sample, net": "net", "W, mean": "W"}
    return table(
        ["configuration", "jobs", *(short.get(heading, heading) for _, heading in columns), ""], rows
    ).splitlines()


def _list_phases(cells: Sequence[CellEnergy], names: dict[str, str]) -> list[str]:
    """Format the energy of each phase, and of the host."""
    # If a run was never steady, its window is all its steps, which have a column of their own.
    columns = [
        (name, heading)
        for name, heading in PHASES
        if any(_known(entry, name) and _in_column(entry, name) for entry in cells)
    ]
    hosts = any(_known(entry, "energy_host") for entry in cells)
    columns += [("energy_host", "host, in addition")] if hosts else []
    rows = []
    for entry in cells:
        figures = [
            _value(entry, name) if _known(entry, name) and _in_column(entry, name) else "-" for name, _ in columns
        ]
        rows.append([*([] if len(cells) == 1 else [names[entry.cell.name]]), *figures])
    if len(cells) == 1:
        rows = [["job", *row] for row in rows]
    head = ["energy, J"]
    return table([*head, *(heading for _, heading in columns)], rows).splitlines()


def _in_column(entry: CellEnergy, name: str) -> bool:
    return name != MAIN or entry.main.window == "steady" or not _known(entry, "energy_all_steps")


def _explain_columns(cells: Sequence[CellEnergy], *, brackets: bool) -> list[str]:
    """Explain the brackets, if there are any, and the column net."""
    intervals = []
    for entry in cells:
        left_out = {left.run_id for left in entry.left_out}
        jobs = [record for record in entry.cell.records if record.run_id not in left_out]
        names = [name for name in ("energy_per_sample", "energy_per_token", MAIN) if name in entry.figures]
        own = [each for name in names if (each := entry.figures[name].interval) is not None]
        intervals += [(interval, jobs) for interval in own[:1]]
    net = any(_known(entry, "energy_per_sample_net") for entry in cells)
    gain = wrapped(WITHOUT_GAIN) if len(cells) == 1 and _has_gain(cells) else []
    idle = wrapped("net = without the idle power of the same hardware") if net else []
    specs = (record.spec for entry in cells for record in entry.cell.records)
    return (interval_notes(intervals) if brackets else spec_notes(specs)) + gain + idle


def _list_doubts(entry: CellEnergy, place: str) -> list[str]:
    """List the doubts about an energy: reasons, excluded jobs, findings."""
    lines: list[str] = []
    validity = entry.main.validity
    if validity is not None and entry.main.value is not None and validity.reasons:
        lines += ["", *wrapped(f"{place}{validity.verdict} because:")]
        lines += [line for reason in validity.reasons[:SHOWN_REASONS] for line in wrapped(f"- {reason}")]
        if len(validity.reasons) > SHOWN_REASONS:
            lines.append(f"- and {len(validity.reasons) - SHOWN_REASONS} more (listed by --json)")
    # If all jobs are excluded for one reason, the answer has given it.
    if entry.left_out and (entry.jobs or len({left.reason for left in entry.left_out}) > 1):
        lines += ["", *wrapped(f"{place}excluded from the mean:")]
        lines += [line for left in entry.left_out[:SHOWN_JOBS] for line in wrapped(f"- {left.run_id}: {left.reason}")]
        if len(entry.left_out) > SHOWN_JOBS:
            lines.append(f"- and {len(entry.left_out) - SHOWN_JOBS} more jobs (listed by --json)")
    if entry.findings:
        lines += ["", *finding_lines(entry.findings)]
    return lines


def summary_of(entry: CellEnergy, trace: PowerTrace) -> str:
    """Describe the chart in a line; its figures are means over all jobs of the configuration."""
    steady = [phase for phase in trace.phases if phase.name in ("steady", "steps")]
    parts = [f"job: {_value(entry, 'power_job')} W"] if _known(entry, "power_job") else []
    parts += [f"{_value(entry, 'energy_per_sample')} J/sample"] if _known(entry, "energy_per_sample") else []
    parts += [f"{entry.scope}, {entry.verdict}"]
    parts += [f"mean of {entry.jobs} jobs"] if entry.jobs > 1 else []
    parts += [f"over {seconds(steady[0].end_s - steady[0].start_s)}"] if steady else []
    return "; ".join(parts)


# -- power over time, in text


def power_chart(trace: PowerTrace) -> list[str]:
    """Draw the total power over time, and the phases below it."""
    counted = [line for line in trace.lines if line.counted]
    lines = counted or [line for line in trace.lines if line.scope == trace.lines[0].scope]
    # The scale takes the first eleven columns.
    wide = min(CHART_COLUMNS, max(LEAST_WIDTH, OUTPUT_COLUMNS.get() or WIDTH) - 12)
    times, power = total(lines, 4 * wide)
    known = [part[np.isfinite(part)] for part in np.array_split(power, wide)]
    columns = [float(part.mean()) if part.size else None for part in known]
    top = max((value for value in columns if value is not None), default=0.0) or 1.0
    what = "counted" if counted else f"of scope {lines[0].scope}"
    word = "domain" if len(lines) == 1 else "domains"
    out = [f"Power of the {len(lines)} {word} {what}, run {trace.run_id}:"]
    for row in range(CHART_ROWS, 0, -1):
        mark = f"{number(top, 3)} W" if row == CHART_ROWS else "0 W" if row == 1 else ""
        drawn = ""
        for value in columns:
            # Full, half or empty; a column without readings stays empty.
            filled = 0.0 if value is None else CHART_ROWS * value / top - (row - 1)
            drawn += (
                "#" if filled >= 0.75 else ":" if filled >= 0.25 else "." if row == 1 and value is not None else " "
            )
        out.append(f"{mark:>9} |{drawn}".rstrip())
    marks = ""
    for part in np.array_split(times, wide):
        inside = [phase.name for phase in trace.phases if phase.start_s <= float(part.mean()) < phase.end_s]
        marks += PHASE_MARKS.get(inside[-1], "?") if inside else " "
    out.append(f"{'phase':>9} |{marks}".rstrip())
    ends = f"{seconds(float(times[0]))} to {seconds(float(times[-1]))}"
    seen = list(dict.fromkeys(phase.name for phase in trace.phases if phase.end_s > phase.start_s))
    words = ", ".join(f"{PHASE_MARKS.get(name, '?')} {MARK_WORDS.get(name, name)}" for name in seen)
    return [printable(line) for line in out] + wrapped(f"{ends} of the run; {words}")


def held_lines(checks: Mapping[str, MeterAgreement]) -> list[str]:
    """Format the comparison of a run with other meters."""
    lines = []
    for name, check in checks.items():
        lines += ["", *wrapped(f"{name}: {check.answer}")]
        lines += [line for reason in check.reasons for line in wrapped(f"- {reason}")]
        if check.difference_w is not None:
            lines += wrapped(f"- it reads {number(check.difference_w, 4)} W more on average")
    return lines


def _trace_object(trace: PowerTrace) -> ShownTraceData:
    return {
        "run_id": trace.run_id,
        "domains": [line.name for line in trace.lines],
        "notes": list(trace.notes),
        "held": list(trace.held),
    }


def energy_object(
    cells: Sequence[CellEnergy], trace: PowerTrace | None, checks: Mapping[str, MeterAgreement]
) -> EnergyData:
    """Return the energies as plain data."""
    shown = [entry.cell for entry in cells]
    names, chosen = labels(shown), chosen_names(cell.spec for cell in shown)
    return {
        "shape": "energy/1",
        "configurations": [
            {
                **configuration_object(entry.cell, names[entry.cell.name], chosen),
                "verdict": entry.verdict,
                "scope": entry.scope,
                "energy_jobs": entry.jobs,
                "left_out": [{"run_id": left.run_id, "reason": left.reason} for left in entry.left_out],
                "figures": {name: figure_object(figure, entry.counts[name]) for name, figure in entry.figures.items()},
            }
            for entry in cells
        ],
        "trace": None if trace is None else _trace_object(trace),
        "meters": {
            name: {
                "answer": check.answer,
                "reasons": list(check.reasons),
                "ratio": check.ratio,
                "difference_w": check.difference_w,
            }
            for name, check in checks.items()
        },
    }


def _known(entry: CellEnergy, name: str) -> bool:
    return name in entry.figures and entry.figures[name].value is not None


def _value(entry: CellEnergy, name: str) -> str:
    quantity: Quantity = entry.figures[name]
    return "-" if quantity.value is None else number(quantity.value, DIGITS)
