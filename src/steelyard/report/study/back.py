"""The last sections of a report: findings, method, environment, provenance and raw data."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Any

from steelyard.analysis.sweep import written
from steelyard.report.page import Cell, Column, Prose, Section, Table
from steelyard.report.study.subject import brief
from steelyard.results.store import read_record_text
from steelyard.rules.rule import SEVERITIES, find_rule
from steelyard.terminal.findings import rule_name
from steelyard.terminal.text import shortened

if TYPE_CHECKING:
    from collections.abc import Sequence

    from steelyard.contracts.record import RunRecord
    from steelyard.report.study.subject import Subject
    from steelyard.results.store import ResultFolder

MAX_RAW_BYTES = 24_000_000
"""Limit for the records embedded in a page, before compression (to about a tenth)."""
SHOWN_FACTS = 80
SHOWN_VALUES = 4
MAX_DIFFERING = 60
RECORDS_FILE = "records.jsonl"
# Facts that differ between any two runs.
OF_A_RUN = ("env.SLURM_", "time.", "process.")
SOFTWARE = ("torch.", "python.", "triton.", "container.", "steelyard.", "numpy.", "gpu0.driver", "system.")

METHOD = (
    (
        "The job is the sampling unit: every run is a fresh launch. The throughput of a configuration is the total "
        "work of its jobs divided by their total time; rates are not averaged."
    ),
    (
        "Steady state: the step times of each run are tested for changes of level and for trends. Results come from "
        "the steady part at the end; no fixed number of steps is skipped. If a run never becomes steady, all its steps "
        "count, and a finding reports it."
    ),
    (
        "Intervals are 95 % CI. With several jobs: Student's t on the mean times of the jobs. With one job: from its "
        "steps, corrected for their correlation; such an interval applies to this job only. If all jobs ran on one "
        "node, other nodes may differ."
    ),
    (
        "Ratios: two configurations are first checked for comparability; the ratio has Welch's interval. With fewer "
        "than three jobs on one side, nothing is ranked. With an error, no ratio is reported, in charts either."
    ),
)
METHOD_ENERGY = (
    "Energy: counters are preferred to gauges, each part of the machine is counted once, and readings are interpolated "
    "at the edges of the window. The interval includes the error of the sensors and the spread between jobs. Net "
    "energy is gross energy minus the idle energy of the same hardware. Unreliable readings are excluded from means."
)


# -- codes


def codes_section(sections: Sequence[Section]) -> Section:
    """List every code on the page: why it matters, how it is found, and in which sections."""
    findings = [one for section in sections for one in section.findings]
    question = "Which problems affect these results?"
    if not findings:
        return Section("findings", "Findings", question, "No findings.")
    places: dict[tuple[str, str], list[str]] = {}
    for section in sections:
        for one in section.findings:
            places.setdefault((one.code, one.severity), []).append(section.title)
    rows = []
    for (code, severity), titles in sorted(places.items(), key=_worst_first):
        made = find_rule(code)
        why, how = (made.why, made.detected) if made is not None else ("", "")
        named = Cell(rule_name(code), code, codes=(code,))
        rows.append((named, Cell(severity), Cell(why or "-"), Cell(how or "-"), Cell(shortened(titles))))
    columns = (
        Column("rule", align="left"),
        Column("severity", align="left"),
        Column("why it matters", align="left"),
        Column("how it is found", align="left"),
        Column("found in", align="left"),
    )
    notes = tuple(f"{severity}: {meaning}." for severity, meaning in SEVERITIES.items())
    notes += ("Details are in the sections above. For examples: steelyard explain CODE.",)
    table = Table("codes", "What the codes mean", columns, tuple(rows), notes)
    worst = [one for one in findings if one.severity == "error"]
    codes = ", ".join(dict.fromkeys(one.code for one in worst))
    # The findings themselves are on the first screen and in the sections; an error is never folded away.
    answer = f"Do not use results with {codes}." if worst else ""
    return Section("findings", "Findings", question, answer, (table,), folded=not worst)


def _worst_first(entry: tuple[tuple[str, str], list[str]]) -> tuple[int, str]:
    (code, severity), _ = entry
    return list(SEVERITIES).index(severity), code  # type: ignore[arg-type]


# -- method


def method_section(subjects: Sequence[Subject], *, energy: bool) -> Section:
    """Describe briefly how the results were made."""
    records = [record for entry in subjects for record in entry.records]
    answers: Counter[str] = Counter(record.steady.answer for record in records if record.steady is not None)
    stops = Counter(record.stop.reason.replace("_", " ") for record in records if record.stop is not None)
    timing = dict.fromkeys(record.environment.timing for record in records if record.environment)
    paragraphs = list(METHOD)
    if energy:
        paragraphs.append(METHOD_ENERGY)
    facts = [("Step timer", shortened(list(timing)) or "not recorded")]
    facts += [("Steady state", _counts(answers))] if answers else []
    facts += [("Stopped by", _counts(stops))] if stops else []
    methods = dict.fromkeys(
        cell.throughput.interval.method for entry in subjects for cell in entry.cells if cell.throughput.interval
    )
    facts += [("Throughput interval", shortened(list(methods)))] if methods else []
    return Section(
        "method", "Method", "How were the results made?", "", (Prose(tuple(paragraphs), tuple(facts)),), folded=True
    )


def _counts(counts: Counter[str]) -> str:
    return ", ".join(f"{count:,} {word}" for word, count in counts.most_common())


# -- environment


def environment_section(subjects: Sequence[Subject]) -> Section:
    """List software, hardware and effective settings: what all runs share, then what differs."""
    records = [record for entry in subjects for record in entry.records]
    facts = _shared_and_not([dict(record.environment.facts) for record in records if record.environment])
    settings = _shared_and_not([dict(record.settings.values) for record in records if record.settings])
    blocks: list[Any] = []
    same = [(key, values[0]) for key, values in facts.items() if len(values) == 1]
    soft = [(key, value) for key, value in same if key.startswith(SOFTWARE)]
    hard = [(key, value) for key, value in same if not key.startswith(SOFTWARE)]
    blocks.append(_fact_table("software", "Software, the same in all runs", soft))
    blocks.append(_fact_table("hardware", "Hardware and environment, the same in all runs", hard))
    in_effect = [(key, values[0]) for key, values in settings.items() if len(values) == 1]
    blocks.append(_fact_table("in-effect", "Settings in effect, the same in all runs", in_effect))
    differing = {key: values for part in (facts, settings) for key, values in part.items() if len(values) > 1}
    blocks.append(_differing(differing))
    summary = (
        f"{len(differing):,} facts or settings differ between runs." if differing else "Nothing differs between runs."
    )
    if not facts:
        summary = "The records contain no environment."
    return Section(
        name="environment",
        title="Environment",
        question="Where did it run, and what differs between runs?",
        answer="",
        blocks=(Prose((summary,)), *(block for block in blocks if block is not None)),
        folded=True,
    )


def _shared_and_not(each: Sequence[dict[str, str]]) -> dict[str, list[str]]:
    """Return the values of each fact, most frequent first. Runs that do not record a fact are ignored."""
    counts: dict[str, Counter[str]] = {}
    for facts in each:
        for key, value in facts.items():
            if not key.startswith(OF_A_RUN):
                counts.setdefault(key, Counter())[value] += 1
    return {key: [value for value, _ in count.most_common()] for key, count in sorted(counts.items())}


def _fact_table(name: str, title: str, facts: Sequence[tuple[str, str]]) -> Table | None:
    if not facts:
        return None
    rows = tuple((Cell(key, key), Cell(written_fact(value), value)) for key, value in facts[:SHOWN_FACTS])
    left = len(facts) - SHOWN_FACTS
    notes = (f"{left:,} more are in the records.",) if left > 0 else ()
    return Table(name, title, (Column("fact", align="left"), Column("value", align="left")), rows, notes)


def written_fact(value: str) -> str:
    """Shorten a fact to a bounded length; the record has it in full."""
    return value if len(value) <= 200 else f"{value[:197]}..."


def _differing(differing: dict[str, list[str]]) -> Table | None:
    if not differing:
        return None
    rows = [
        (
            Cell(key, key),
            Cell(f"{len(values):,}", len(values)),
            Cell(shortened([written(v) for v in values], SHOWN_VALUES)),
        )
        for key, values in list(differing.items())[:MAX_DIFFERING]
    ]
    left = len(differing) - MAX_DIFFERING
    notes = (f"{left:,} more are in the records.",) if left > 0 else ()
    columns = (
        Column("fact or setting", align="left"),
        Column("values"),
        Column("most frequent first", align="left"),
    )
    return Table("differing", "What differs between runs", columns, tuple(rows), notes)


# -- provenance


def provenance_section(subjects: Sequence[Subject], downloads: Sequence[str]) -> Section:
    """List every run with its id, status and node, and the commands that reproduce the report."""
    columns = (
        Column("run", align="left"),
        Column("configuration", align="left"),
        Column("status", align="left"),
        Column("node", align="left"),
        Column("started", align="left"),
        Column("steps"),
        Column("throughput", "samples/s"),
    )
    rows = [_run_row(entry.name(cell), record) for entry in subjects for cell in entry.cells for record in cell.records]
    files = sum(len(entry.raw) for subject in subjects for entry in subject.records)
    size = sum(file.bytes for subject in subjects for entry in subject.records for file in entry.raw)
    raw = f"{files:,} raw files ({size / 1e6:,.1f} MB)"
    programs = dict.fromkeys(record.derived_by for entry in subjects for record in entry.records)
    made = f"{len(rows):,} records, derived by {shortened(list(programs))} from {raw}."
    where = "The raw files are in the result folder, under runs/STUDY/RUN_ID/raw; the records have their SHA-256."
    paragraphs = [f"{made} {where}", *downloads]
    commands = [f"steelyard report {entry.text}" for entry in subjects]
    commands += [f"steelyard show {rows[0][0].text}", f"steelyard show {rows[0][0].text} --derive"]
    table = Table("runs", "All runs", columns, tuple(rows))
    return Section(
        name="provenance",
        title="Provenance",
        question="Which runs are behind this report?",
        answer="",
        blocks=(Prose(tuple(paragraphs), code="\n".join(commands[:20])), table),
        folded=True,
    )


def _run_row(name: str, record: RunRecord) -> tuple[Cell, ...]:
    ids = (record.run_id,)
    throughput = record.quantities.get("throughput")
    node = record.environment.node if record.environment else "not recorded"
    started = record.launch.started_at if record.launch else "not recorded"
    return (
        Cell(record.run_id, record.run_id, runs=ids),
        Cell(name, name),
        Cell(record.status.code.replace("_", " "), record.status.code),
        Cell(node, node),
        Cell(started, started),
        Cell(f"{record.steps_seen:,}", record.steps_seen),
        Cell("-") if throughput is None else brief(throughput, ids),
    )


def raw_download(folder: ResultFolder, subjects: Sequence[Subject]) -> tuple[dict[str, bytes], list[str]]:
    """Return the records as JSON lines, up to the size limit of a page, and sentences that describe the download.

    If not all records fit, the first job of every configuration comes before the second of any.
    """
    records = [record for entry in subjects for record in entry.records]
    in_turn = sorted(records, key=lambda record: record.spec.repeat)
    lines: list[bytes] = []
    size = 0
    for record in in_turn:
        # JSON has newlines only between its parts, never inside strings.
        line = re.sub(rb"\n *", b"", folder.of_run(folder.run_path(record.spec), read_record_text))
        if size + len(line) + 1 > MAX_RAW_BYTES:
            break
        lines.append(line)
        size += len(line) + 1
    left = len(records) - len(lines)
    whole = "all records" if not left else f"{len(lines):,} of {len(records):,} records, low repeats first"
    about = [f"{RECORDS_FILE} in the HTML page has {whole}, one per line ({size / 1e6:,.1f} MB), without raw files."]
    if left:
        about.append(f"{left:,} records are left out: a page holds at most {MAX_RAW_BYTES / 1e6:g} MB of records.")
    return {RECORDS_FILE: b"\n".join(lines) + b"\n"}, about
