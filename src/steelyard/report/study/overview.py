"""Overview of a study, its configurations, and the runs that did not complete."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from steelyard.analysis.summary import generation, settings_of
from steelyard.analysis.sweep import written
from steelyard.contracts.observe import MEASURED
from steelyard.inputs.command import public_words
from steelyard.report.charts.style import counted, error_codes, figure_cell, in_time
from steelyard.report.page import Cell, Column, Prose, Section, Table
from steelyard.report.study.subject import brief, counted_statuses, default, statuses
from steelyard.terminal.findings import OTHER_NUMBERS, merged
from steelyard.terminal.text import SIMULATED, capital, number, sentence, shortened, with_interval

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from steelyard.analysis.energy import CellEnergy
    from steelyard.analysis.summary import CellSummary
    from steelyard.contracts.finding import Finding
    from steelyard.contracts.record import RunRecord
    from steelyard.report.study.subject import Subject

MAX_SWEPT_COLUMNS = 5
SHOWN_VALUES = 12
SHOWN_NODES = 6
SHOWN_NOTES = 6
LONGEST_CAUSE = 600
LONGEST_EVIDENCE = 300
# Settings that are not listed as settings of the study.
HIDDEN = ("sim.", "run_id", "study", "configuration", "program.command", "program.parameters")


# -- overview


def overview(
    subjects: Sequence[Subject], energies: dict[str, list[CellEnergy]], planned: Mapping[str, Sequence[str]]
) -> Section:
    """How the runs ended, the settings, and every run that did not complete with its cause.

    What several selections share is said once. `planned`: the ids of the runs that each study should have.
    """
    facts = [_facts(entry, energies.get(entry.text, [])) for entry in subjects]
    shared = [fact for fact in facts[0] if all(fact in each for each in facts)]
    blocks: list[Any] = [Prose(facts=tuple(shared))] if shared else []
    if len(subjects) > 1:
        blocks += [
            Prose(facts=(("Selection", entry.text), *(fact for fact in each if fact not in shared)))
            for entry, each in zip(subjects, facts, strict=True)
        ]
    rows = [row for entry in subjects for row in _not_completed(entry, planned, several=len(subjects) > 1)]
    if rows:
        columns = (
            Column("configuration", align="left"),
            Column("status", align="left"),
            Column("count"),
            Column("cause", align="left"),
            Column("evidence", align="left"),
        )
        blocks.append(Table("not-completed", "Runs that did not complete, and why", columns, tuple(rows)))
    about_device = [SIMULATED] if any(simulated(entry) for entry in subjects) else []
    return Section(
        name="overview",
        title="Overview",
        question="What was measured, and how did the runs end?",
        answer=" ".join([*(_ended(entry, named=len(subjects) > 1) for entry in subjects), *about_device]),
        blocks=tuple(blocks),
    )


def _ended(entry: Subject, *, named: bool) -> str:
    runs, counts = len(entry.records), counted_statuses(entry.cells)
    ended = "all completed" if set(counts) == {"completed"} else statuses(counts)
    if runs == 1:
        ended = statuses(counts).removeprefix("1 ")
    return f"{entry.text + ': ' if named else ''}{counted(runs, 'run')}: {ended}."


def simulated(entry: Subject) -> bool:
    """Whether any of its runs used the simulated device."""
    return any(cell.records[0].spec.device_family == "sim" for cell in entry.cells)


def _facts(entry: Subject, energies: Sequence[CellEnergy]) -> list[tuple[str, str]]:
    """Settings of the runs, and where and when they ran."""
    records = entry.records
    spec = records[0].spec
    names = dict.fromkeys(f"{record.spec.workload} ({record.spec.mode})" for record in records)
    facts = [("Workload", shortened(list(names)))]
    if spec.program is not None:
        commands = (" ".join(public_words(one.spec.program.command)) for one in records if one.spec.program is not None)
        facts[0] = ("Program", shortened(list(dict.fromkeys(commands))))
    for key, values in entry.swept.items():
        more = f" and {len(values) - SHOWN_VALUES} more" if len(values) > SHOWN_VALUES else ""
        facts.append((f"Varied: {key}", ", ".join(map(_shown, values[:SHOWN_VALUES])) + more))
    # Settings that all configurations share and that are not defaults.
    chosen = settings_of(entry.cells[0].spec)
    kept = {key: value for key, value in chosen.items() if key not in entry.swept and not key.startswith(HIDDEN)}
    for key in ("precision", "devices", "batch", "preset"):
        if key not in entry.swept:
            kept.setdefault(key, default(key) if key not in chosen else chosen[key])
    same = ", ".join(f"{key} {_shown(value)}" for key, value in sorted(kept.items()) if key != "workload")
    facts.append(("Fixed", same or "defaults only"))
    devices = dict.fromkeys(_device(record) for record in records)
    counts = sorted({len(cell.records) for cell in entry.cells})
    jobs = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    facts += [("Device", shortened(list(devices))), ("Jobs per configuration", jobs)]
    nodes = sorted({node for cell in entry.cells for node in cell.nodes})
    facts.append(("Nodes", shortened(nodes, SHOWN_NODES) if nodes else "not recorded"))
    times = sorted(record.launch.started_at for record in records if record.launch)
    if times:
        facts.append(("Started", times[0] if times[0] == times[-1] else f"{times[0]} to {times[-1]}"))
    known = [entry for entry in energies if entry.main.value is not None]
    if known:
        energy = f"measured in {len(known)} of {counted(len(energies), 'configuration')}"
    else:
        reasons = list(dict.fromkeys(entry.main.reason or "" for entry in energies))
        others = f" (other configurations: {counted(len(reasons) - 1, 'other reason')})" if len(reasons) > 1 else ""
        energy = f"not reported: {reasons[0]}{others}" if energies else "not reported"
    facts.append(("Energy", energy))
    if spec.mode != "train":
        facts.insert(1, ("Mode", spec.mode))
    kinds = dict.fromkeys(kind for record in records if (kind := generation(record)) is not None)
    if kinds:
        facts.insert(2, ("Generation", "; ".join(kinds)))
    return facts


def _shown(value: Any) -> str:
    """Write a setting for people who may have another home: without the folders of a path."""
    return public_words([written(value)])[0]


def _device(record: RunRecord) -> str:
    if record.spec.device_family == "sim":
        return "simulated"
    if record.device is not None:
        return record.device.model or record.device.name
    if record.wrapped is not None and record.environment is not None:
        return record.environment.device
    return f"{record.spec.device} (requested; not recorded by the run)"


def _not_completed(entry: Subject, planned: Mapping[str, Sequence[str]], *, several: bool) -> list[tuple[Cell, ...]]:
    """One row per configuration and cause of failure, and one for planned runs without a record."""
    rows: list[tuple[Cell, ...]] = []
    for cell in entry.cells:
        name = f"{cell.study}, {entry.name(cell)}" if several else entry.name(cell)
        causes: dict[tuple[str, str], list[RunRecord]] = {}
        for record in cell.records:
            if record.status.code != "completed":
                causes.setdefault((record.status.code, record.status.reason), []).append(record)
        for (code, reason), records in causes.items():
            ids = tuple(record.run_id for record in records)
            status = code.replace("_", " ")
            rows.append(
                (
                    Cell(name, name, runs=ids),
                    Cell(status, code),
                    Cell(str(len(ids)), len(ids)),
                    Cell(reason[:LONGEST_CAUSE] or "not recorded"),
                    Cell(_evidence(records[0])),
                )
            )
        there = {record.run_id for record in cell.records}
        wanted = [run for run in planned.get(cell.study, ()) if run.rpartition("-r")[0] == cell.name]
        if missing := len(set(wanted) - there):
            rows.append(_missing(cell.study, name, missing))
    # A selection of some configurations says nothing about those that have no record yet.
    if entry.text in planned:
        begun = {cell.name for cell in entry.cells}
        left = [run for run in planned[entry.text] if run.rpartition("-r")[0] not in begun]
        if left:
            others = len({run.rpartition("-r")[0] for run in left})
            rows.append(_missing(entry.text, counted(others, "configuration") + " without any run", len(left)))
    return rows


def _missing(study: str, name: str, count: int) -> tuple[Cell, ...]:
    cause = f"planned, and no record yet: repeat the steelyard study command, or steelyard status {study} if submitted"
    return Cell(name, name), Cell("missing"), Cell(str(count), count), Cell(cause), Cell("-")


def _evidence(record: RunRecord) -> str:
    """Evidence of the status, without the log, which is in the record."""
    evidence = {key: value for key, value in (record.status.evidence or {}).items() if key != "log_tail"}
    parts = []
    for key, value in evidence.items():
        if not isinstance(value, str):
            value = f"{value:,.0f}" if float(value).is_integer() else number(value)
        parts.append(f"{key} {value}")
    text = "; ".join(parts)
    return text[:LONGEST_EVIDENCE] + ("..." if len(text) > LONGEST_EVIDENCE else "") or "-"


# -- configurations


def cells_section(
    entry: Subject,
    energies: Sequence[CellEnergy],
    name: str = "configurations",
    title: str = "Configurations",
    *,
    told: bool = False,
) -> Section:
    """One row per configuration, with or without a result, and all findings on their runs.

    `told`: the first screen has the throughput.
    """
    return Section(
        name=name,
        title=title,
        question="What is the throughput of each configuration?",
        answer="" if told else _reached(entry),
        blocks=(_cell_table(entry, energies, name),),
        findings=cell_findings(entry),
    )


def cell_findings(entry: Subject) -> tuple[Finding, ...]:
    """Findings on the runs, each once, with the configurations it applies to."""
    measured = [cell for cell in entry.cells if cell.throughput.value is not None]
    places: dict[tuple[str, str], int] = Counter((one.code, one.severity) for cell in measured for one in cell.findings)
    findings = merged(
        replace(one, place="" if len(entry.cells) == 1 else entry.name(cell))
        for cell in entry.cells
        for one in cell.findings
    )
    alone = Counter(one.code for one in findings)
    return tuple(
        replace(
            one,
            place="every configuration with a result"
            + (f", such as {one.place.rpartition(', and ')[0]}" if one.place.endswith(OTHER_NUMBERS) else ""),
        )
        if 1 < len(measured) == places[one.code, one.severity] and alone[one.code] == 1
        else one
        for one in findings
    )


def _reached(entry: Subject) -> str:
    known = [cell for cell in entry.cells if cell.throughput.value is not None]
    unreliable = [cell for cell in known if cell.unreliable]
    reliable = [cell for cell in known if not cell.unreliable]
    parts = []
    if reliable:
        word = "reliable configuration" if unreliable else "configuration"
        parts.append(f"{counted(len(reliable), word)}: {_span(reliable)}" if len(known) > 1 else _span(reliable))
    if unreliable:
        parts.append(f"{counted(len(unreliable), 'unreliable configuration')}: {_span(unreliable)}")
    none = len(entry.cells) - len(known)
    if none:
        verb = "has" if none == 1 else "have"
        parts.append(f"{counted(none, 'configuration')} {verb} no result")
    return sentence("; ".join(parts))


def _span(cells: Sequence[CellSummary]) -> str:
    """Format the lowest and highest throughput."""
    ends = sorted(cells, key=lambda cell: cell.throughput.value or 0.0)
    texts = [with_interval(cell.throughput) for cell in (ends[0], ends[-1])]
    return f"{' to '.join(dict.fromkeys(texts))} {ends[0].throughput.unit}"


def _cell_table(entry: Subject, energies: Sequence[CellEnergy], name: str) -> Table:
    keys = list(entry.swept) if 0 < len(entry.swept) <= MAX_SWEPT_COLUMNS else []
    costs = {one.cell.name: one for one in energies if one.main.value is not None}
    times = [row.figures["step_time_mean"].value for row in entry.rows.values() if "step_time_mean" in row.figures]
    factor, unit = in_time(sorted(times)[len(times) // 2]) if times else (1.0, "s")
    columns = [] if keys else [Column("configuration", align="left")]
    for key in keys:
        numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in entry.swept[key])
        columns.append(Column(key, align="right" if numbers else "left", filtered=True))
    failed = set(counted_statuses(entry.cells)) != {"completed"}
    spread = any(len(cell.nodes) > 1 for cell in entry.cells)
    rate_unit = next((cell.throughput.unit for cell in entry.cells if cell.throughput.value is not None), "samples/s")
    columns += [Column("throughput of the job", rate_unit), Column("step time", unit)]
    columns += [Column("energy per sample", "J")] if costs else []
    columns += [Column("reliability", align="left", filtered=len(entry.cells) > 1)]
    columns += [*([Column("jobs", align="left")] if failed else []), *([Column("nodes")] if spread else [])]
    # Codes that every result has are listed next to the table; they would only fill its rows.
    measured = [cell for cell in entry.cells if cell.throughput.value is not None]
    codes = [{finding.code for finding in cell.findings} - set(error_codes(cell.findings)) for cell in measured]
    shared = set.intersection(*codes) if len(codes) > 1 else set()
    rows = []
    for cell in entry.cells:
        ids = tuple(record.run_id for record in cell.records)
        row = [_setting_cell(entry.value(cell, key)) for key in keys] or [Cell(entry.name(cell), entry.name(cell))]
        row += [_throughput(cell, ids, shared), _step(entry, cell, factor, ids)]
        row += [_cost(costs.get(cell.name), ids)] if costs else []
        word = "no result" if cell.throughput.value is None else "unreliable" if cell.unreliable else "reliable"
        row.append(Cell(word, word, unreliable=word == "unreliable"))
        row += [Cell(statuses(counted_statuses([cell])))] if failed else []
        row += [Cell(str(len(cell.nodes)), len(cell.nodes))] if spread else []
        rows.append(tuple(row))
    return Table(f"{name}-table", "All configurations", tuple(columns), tuple(rows), tuple(_notes(entry)))


def _setting_cell(value: Any) -> Cell:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return Cell(f"{value:,}" if isinstance(value, int) else f"{value:,g}", value)
    return Cell(written(value), written(value))


def _throughput(cell: CellSummary, ids: tuple[str, ...], shared: set[str]) -> Cell:
    codes = tuple(dict.fromkeys(one.code for one in cell.findings if one.severity != "note" and one.code not in shared))
    if cell.throughput.value is None:
        # How its runs ended is in a column of its own.
        lost = any(code not in MEASURED for code in cell.statuses)
        return Cell("none" if lost else f"none: {cell.throughput.reason}", runs=ids, codes=codes)
    return replace(brief(cell.throughput, ids, codes), unreliable=bool(cell.unreliable))


def _step(entry: Subject, cell: CellSummary, factor: float, ids: tuple[str, ...]) -> Cell:
    step = entry.rows[cell.name].figures.get("step_time_mean")
    if step is None:
        return Cell("-")
    value, low, high = step.value / factor, step.low / factor, step.high / factor
    made = Cell(number(value, 4), value, runs=ids, unreliable=bool(cell.unreliable))
    if not low < high:
        return made
    return replace(made, text=f"{made.text} [{number(low, 4)}, {number(high, 4)}]", low=low, high=high)


def _cost(entry: CellEnergy | None, ids: tuple[str, ...]) -> Cell:
    energy = entry.figures.get("energy_per_sample") if entry is not None else None
    if entry is None or energy is None or energy.value is None:
        return Cell("-")
    cell = brief(energy, ids, tuple(dict.fromkeys(one.code for one in entry.findings)))
    text = cell.text if entry.verdict == "valid" else f"{cell.text}, {entry.verdict}"
    return replace(cell, text=text, unreliable=bool(entry.cell.unreliable) or entry.verdict != "valid")


def _notes(entry: Subject) -> list[str]:
    """Explain the brackets: the interval, what it covers and its method."""
    notes: dict[str, None] = {}
    for cell in entry.cells:
        interval = cell.throughput.interval
        if interval is not None:
            notes[f"[ ] = {100 * interval.level:g} % CI over {interval.covers}; {interval.method}."] = None
            if interval.approximate:
                notes[f"~: approximate, {'; '.join(interval.approximate)}."] = None
    bare = [
        entry.name(cell) for cell in entry.cells if cell.throughput.value is not None and not cell.throughput.interval
    ]
    doubts: dict[str, list[str]] = {}
    for cell in entry.cells:
        if cell.unreliable and cell.throughput.value is not None:
            doubts.setdefault("; ".join(cell.unreliable), []).append(entry.name(cell))
    for reason, names in doubts.items():
        notes[f"Unreliable: {reason}: {shortened(names)}." if len(entry.cells) > 1 else f"Unreliable: {reason}."] = None
    listed = list(notes)[:SHOWN_NOTES]
    listed += [f"{len(notes) - SHOWN_NOTES:,} more notes are in the records."] if len(notes) > SHOWN_NOTES else []
    shorter = [f"{entry.name(cell)} ({cell.shorter})" for cell in entry.cells if cell.shorter]
    listed += [f"Shorter jobs, which are not counted: {shortened(shorter)}."] if shorter else []
    return listed + ([f"No interval: {shortened(bare)}."] if bare else [])


def quality_section(entry: Subject, name: str = "quality", title: str = "Time to quality") -> Section | None:
    """Training time until the target quality; None if no target was set."""
    known = [cell for cell in entry.cells if cell.time_to_quality is not None]
    if not known:
        return None
    rows, answers = [], []
    for cell in known:
        time, spec = cell.time_to_quality, cell.records[0].spec
        assert time is not None
        target = spec.quality.target if spec.quality is not None else None
        metric = next((one.metric for record in cell.records for one in record.evaluations), "the metric")
        ids = tuple(record.run_id for record in cell.records)
        goal = f"{metric} {target:g}" if target is not None else metric
        rows.append(
            (
                Cell(entry.name(cell), entry.name(cell)),
                Cell(goal, goal),
                Cell(str(len(ids)), len(ids)),
                figure_cell(time, ids),
            )
        )
        unit = "" if time.value is None else " s"
        answers.append(f"{entry.name(cell)}: {goal} after {with_interval(time)}{unit}")
    columns = (
        Column("configuration", align="left"),
        Column("target", align="left"),
        Column("jobs"),
        Column("time", "s"),
    )
    notes = ("Each job has its own seed. No mean is reported if a job did not reach the target.",)
    table = Table(f"{name}-table", "Time to quality", columns, tuple(rows), notes)
    return Section(
        name, title, "How long until the model is good enough?", sentence(capital(shortened(answers, 3))), (table,)
    )
