"""The back of a report: what codes mean, method, environment, provenance and raw data. Knows records; judges none."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Any

from steelyard.inputs.validate import MAX_RECORD_BYTES, read_bounded
from steelyard.report.page import Cell, Column, Prose, Section, Table
from steelyard.report.study.subject import brief, shortened, written
from steelyard.results.store import RECORD_FILE
from steelyard.rules.rule import SEVERITIES, find_rule
from steelyard.terminal.findings import rule_name, tally
from steelyard.terminal.text import sentence

if TYPE_CHECKING:
    from collections.abc import Sequence

    from steelyard.contracts.record import RunRecord
    from steelyard.report.study.subject import Subject
    from steelyard.results.store import ResultFolder

MAX_RAW_BYTES = 24_000_000
"""Of records inside the page, before they are compressed (to about a tenth)."""
SHOWN_FACTS = 80
SHOWN_VALUES = 4
MAX_DIFFERING = 60
RECORDS_FILE = "records.jsonl"
# What makes one run another by its nature; nobody asks whether it differs.
OF_A_RUN = ("env.SLURM_", "time.", "process.")
SOFTWARE = ("torch.", "python.", "triton.", "container.", "steelyard.", "numpy.", "gpu0.driver", "system.")

METHOD = (
    (
        "The job is the sampling unit: every run is a fresh launch. All work of a cell's jobs over all their time is "
        "its throughput; rates are not averaged."
    ),
    (
        "Steady state: the step times of a run are searched for changes of level and for trends, and its figures come "
        "from the steady part at the end. No fixed number of steps is skipped. A run that never gets steady keeps all "
        "its steps, and a finding says so."
    ),
    (
        "Intervals are at 95 %. Over jobs: Student's t on the jobs' mean times. Of one job: from its own steps, whose "
        "correlation is allowed for; that speaks for this job alone. Jobs on one node speak for that node."
    ),
    (
        "Ratios: first the verdict whether two cells may be compared, then the ratio with Welch's interval. With fewer "
        "than three jobs on a side nothing is ranked. Where a finding blocks there is no ratio, in pictures either."
    ),
)
METHOD_ENERGY = (
    "Energy: counters go before gauges, each part of the machine is counted once, and readings are interpolated at the "
    "edges of the window. The interval holds the sensors' own error beside the spread of the jobs. Net is gross less "
    "what the same hardware draws when idle. What cannot be believed is in no mean."
)


# -- codes


def codes_section(sections: Sequence[Section]) -> Section:
    """Every code of the page: how often, where, why it matters and what to do."""
    found = [one for section in sections for one in section.findings]
    question = "What must a reader know before using these figures?"
    if not found:
        return Section("findings", "Findings", question, "No rule has found anything to tell.")
    places: dict[tuple[str, str], list[str]] = {}
    for section in sections:
        for one in section.findings:
            places.setdefault((one.code, one.severity), []).append(section.title)
    rows = []
    for (code, severity), titles in sorted(places.items(), key=_gravest):
        made = find_rule(code)
        why, how = (made.why, made.detected) if made is not None else ("", "")
        named = Cell(rule_name(code), code, codes=(code,))
        rows.append((named, Cell(severity), Cell(why or "-"), Cell(how or "-"), Cell(shortened(titles))))
    columns = (
        Column("rule", align="left"), Column("severity", align="left"), Column("why it matters", align="left"),
        Column("how it is found", align="left"), Column("found in", align="left"),
    )  # fmt: skip
    notes = tuple(f"{severity}: {words}." for severity, words in SEVERITIES.items())
    notes += ("The findings stand in the sections they concern. steelyard explain CODE has examples too.",)
    table = Table("codes", "What the codes mean", columns, tuple(rows), notes)
    worst = [one for one in found if one.severity == "error"]
    text = sentence(tally(list(found)).partition(";")[0])
    codes = ", ".join(dict.fromkeys(one.code for one in worst))
    verb = "forbid" if "," in codes else "forbids"
    answer = f"{text} {codes} {verb} the use of a figure or ratio." if worst else f"{text} Nothing forbids a figure."
    return Section("findings", "Findings", question, answer, (table,))


def _gravest(entry: tuple[tuple[str, str], list[str]]) -> tuple[int, str]:
    (code, severity), _ = entry
    return list(SEVERITIES).index(severity), code  # type: ignore[arg-type]


# -- method


def method_section(subjects: Sequence[Subject], *, energy: bool) -> Section:
    """How the figures came about: short, for who looks for it."""
    records = [record for entry in subjects for record in entry.records]
    answers: Counter[str] = Counter(record.steady.answer for record in records if record.steady is not None)
    stops = Counter(record.stop.reason.replace("_", " ") for record in records if record.stop is not None)
    timing = dict.fromkeys(record.environment.timing for record in records if record.environment)
    told = list(METHOD)
    if energy:
        told.append(METHOD_ENERGY)
    facts = [("Steps are timed by", shortened(list(timing)) or "not told by the records")]
    facts += [("Steady state of runs", _counts(answers))] if answers else []
    facts += [("Runs stopped by", _counts(stops))] if stops else []
    methods = dict.fromkeys(
        cell.throughput.interval.method for entry in subjects for cell in entry.cells if cell.throughput.interval
    )
    facts += [("Interval of a throughput", shortened(list(methods)))] if methods else []
    return Section(
        "method", "Method", "How were the figures made?", "", (Prose(tuple(told), tuple(facts)),), folded=True
    )


def _counts(counts: Counter[str]) -> str:
    return ", ".join(f"{count:,} {word}" for word, count in counts.most_common())


# -- environment


def environment_section(subjects: Sequence[Subject]) -> Section:
    """Software, hardware and settings in effect: what all runs share, and what differs between them."""
    records = [record for entry in subjects for record in entry.records]
    facts = _shared_and_not([dict(record.environment.facts) for record in records if record.environment])
    settings = _shared_and_not([dict(record.settings.values) for record in records if record.settings])
    blocks: list[Any] = []
    same = [(key, values[0]) for key, values in facts.items() if len(values) == 1]
    soft = [(key, value) for key, value in same if key.startswith(SOFTWARE)]
    hard = [(key, value) for key, value in same if not key.startswith(SOFTWARE)]
    blocks.append(_fact_table("software", "Software, the same in all runs", soft))
    blocks.append(_fact_table("hardware", "Hardware and surroundings, the same in all runs", hard))
    in_effect = [(key, values[0]) for key, values in settings.items() if len(values) == 1]
    blocks.append(_fact_table("in-effect", "Settings in effect, the same in all runs", in_effect))
    differing = {key: values for part in (facts, settings) for key, values in part.items() if len(values) > 1}
    blocks.append(_differing(differing))
    words = (
        f"{len(differing):,} facts or settings differ between the runs." if differing else "The runs share all of it."
    )
    if not facts:
        words = "The records tell nothing of where they ran."
    return Section(
        "environment", "Environment", "Where did it run, and what differs between runs?", "",
        (Prose((words,)), *(block for block in blocks if block is not None)), folded=True,
    )  # fmt: skip


def _shared_and_not(each: Sequence[dict[str, str]]) -> dict[str, list[str]]:
    """Values of each fact, the most frequent first; a run that does not tell it counts as one that differs not."""
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
    """A fact of bounded length; the record has it all."""
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
        Column("the most frequent first", align="left"),
    )
    return Table("differing", "What differs between runs", columns, tuple(rows), notes)


# -- provenance


def provenance_section(subjects: Sequence[Subject], downloads: Sequence[str]) -> Section:
    """Every run with its id, how it ended and where; and how to come to the same figures again."""
    columns = (
        Column("run", align="left"), Column("configuration", align="left"), Column("ended as", align="left"),
        Column("node", align="left"), Column("started", align="left"), Column("steps"),
        Column("throughput", "samples/s"),
    )  # fmt: skip
    rows = [_run_row(entry.name(cell), record) for entry in subjects for cell in entry.cells for record in cell.records]
    files = sum(len(entry.raw) for subject in subjects for entry in subject.records)
    size = sum(file.bytes for subject in subjects for entry in subject.records for file in entry.raw)
    raw = f"{files:,} raw files of {size / 1e6:,.1f} MB in all"
    programs = dict.fromkeys(record.derived_by for entry in subjects for record in entry.records)
    made = f"{len(rows):,} records, derived by {shortened(list(programs))} from {raw}"
    where = "each with its SHA-256 in the record. They are in the result folder, under runs/STUDY/RUN_ID/raw."
    told = [f"{made}, {where}", *downloads]
    commands = [f"steelyard report {entry.text}" for entry in subjects]
    commands += [f"steelyard show {rows[0][0].text}", f"steelyard show {rows[0][0].text} --derive"]
    table = Table("runs", "Every run", columns, tuple(rows))
    return Section(
        "provenance", "Provenance", "Which runs is this made of?", "",
        (Prose(tuple(told), code="\n".join(commands[:20])), table), folded=True,
    )  # fmt: skip


def _run_row(name: str, record: RunRecord) -> tuple[Cell, ...]:
    ids = (record.run_id,)
    found = record.quantities.get("throughput_job")
    node = record.environment.node if record.environment else "not told"
    started = record.launch.started_at if record.launch else "not told"
    return (
        Cell(record.run_id, record.run_id, runs=ids), Cell(name, name),
        Cell(record.status.code.replace("_", " "), record.status.code), Cell(node, node), Cell(started, started),
        Cell(f"{record.steps_seen:,}", record.steps_seen), Cell("-") if found is None else brief(found, ids),
    )  # fmt: skip


def raw_download(folder: ResultFolder, subjects: Sequence[Subject]) -> tuple[dict[str, bytes], list[str]]:
    """The records as they lie in the folder, one a line, as many as may be inside a page; and what is said of them.

    Where not all fit, the first job of every cell goes before the second of any.
    """
    records = [record for entry in subjects for record in entry.records]
    in_turn = sorted(records, key=lambda record: record.spec.repeat)
    lines: list[bytes] = []
    size = 0
    for record in in_turn:
        # Newlines in JSON stand between its parts only: without them a record is one line.
        line = re.sub(rb"\n *", b"", read_bounded(folder.run_path(record.spec) / RECORD_FILE, MAX_RECORD_BYTES))
        if size + len(line) + 1 > MAX_RAW_BYTES:
            break
        lines.append(line)
        size += len(line) + 1
    left = len(records) - len(lines)
    whole = "all records" if not left else f"{len(lines):,} of {len(records):,} records, those of low repeats first"
    told = [
        f"{RECORDS_FILE} inside the HTML page has {whole}, one a line, {size / 1e6:,.1f} MB. Raw files are not in it."
    ]
    if left:
        told.append(
            f"Left out of it: {left:,} records; the page would have more than {MAX_RAW_BYTES / 1e6:g} MB of them."
        )
    return {RECORDS_FILE: b"\n".join(lines) + b"\n"}, told
