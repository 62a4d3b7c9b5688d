"""Step times, phases and all results of one or a few runs."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from steelyard.analysis.best import fastest_first
from steelyard.contracts.observe import MEASURED
from steelyard.errors import SteelyardError
from steelyard.report.charts.style import error_codes, figure_cell
from steelyard.report.charts.trace import trace_chart
from steelyard.report.page import Cell, Column, Prose, Section, Table
from steelyard.results.store import RAW
from steelyard.terminal.text import number, seconds, sentence

if TYPE_CHECKING:
    from collections.abc import Sequence

    from steelyard.analysis.summary import CellSummary
    from steelyard.contracts.record import Quantity, RunRecord
    from steelyard.report.study.subject import Subject
    from steelyard.results.store import ResultFolder

FEW = 3
"""Up to this many runs are shown one by one."""
TRACES = 3
WORDS = {"warmup": "warm-up", "crosscheck": "cross-check"}
MAX_EVALUATIONS = 200


# -- step times


def trace_section(
    folder: ResultFolder, entry: Subject, name: str = "steps", title: str = "Step times"
) -> Section | None:
    """Step times of a few representative runs; None if no run made a step."""
    answers = Counter(record.steady.answer for record in entry.records if record.steady is not None)
    if not answers:
        return None
    chosen = representative(entry) if len(entry.records) > FEW else [("", record) for record in entry.records]
    blocks: list[Any] = []
    lost = []
    for place, (why, record) in enumerate(chosen, 1):
        try:
            chart = trace_chart(folder.run_path(record.spec) / RAW, record, f"{name}-{place}")
            blocks.append(replace(chart, notes=(why, *chart.notes)) if why else chart)
        except (SteelyardError, OSError) as error:
            lost.append(f"{record.run_id}: {getattr(error, 'what', None) or error}")
    blocks += (
        [Prose((f"No step times for {'; '.join(lost)}. The raw files may still be on the machine of the runs.",))]
        if lost
        else []
    )
    return Section(name, title, "Are the step times steady?", _steady(answers), tuple(blocks))


def _steady(answers: Counter[Any]) -> str:
    total = sum(answers.values())
    if total == 1:
        return sentence(next(iter(answers)))
    if set(answers) == {"steady"}:
        return f"Yes, in all {total:,} runs."
    return sentence(
        f"of {total:,} runs: " + ", ".join(f"{count:,} {answer}" for answer, count in answers.most_common())
    )


def representative(entry: Subject) -> list[tuple[str, RunRecord]]:
    """Choose the median jobs of the fastest and slowest configurations and one job that is not steady, with reasons."""
    measured = fastest_first(entry.cells)
    kind = "" if len(measured) == sum(cell.throughput.value is not None for cell in entry.cells) else " reliable"
    chosen: dict[str, tuple[str, RunRecord]] = {}
    for word, cell in ((f"highest{kind}", measured[:1]), (f"lowest{kind}", measured[-1:])):
        for one in cell:
            record = median_job(one)
            chosen.setdefault(
                record.run_id,
                (f"The median job of the configuration with the {word} throughput, {entry.name(one)}.", record),
            )
    for record in entry.records:
        if record.steady is not None and record.steady.answer != "steady" and record.run_id not in chosen:
            chosen[record.run_id] = (
                f"A job of {entry.names[record.spec.configuration]}, {record.steady.answer}.",
                record,
            )
            break
    return list(chosen.values())[:TRACES]


def median_job(cell: CellSummary) -> RunRecord:
    """The measured job with the median throughput."""
    done = [record for record in cell.records if record.status.code in MEASURED] or list(cell.records)
    return sorted(done, key=_rate)[(len(done) - 1) // 2]


def _rate(record: RunRecord) -> float:
    throughput = record.quantities.get("throughput")
    return throughput.value or 0.0 if throughput is not None else 0.0


# -- single runs


def run_sections(entry: Subject) -> list[Section]:
    """Phases, results and evaluations of each run."""
    sections = [phases_section(entry.records), figures_section(entry.records), _evaluations(entry.records)]
    return [section for section in sections if section is not None]


def phases_section(records: Sequence[RunRecord]) -> Section | None:
    """Duration of each phase of the runs. Warm-up and steady state are parts of the steps."""
    rows = [row for record in records for row in _phase_rows(record)]
    if not rows:
        return None
    columns = (
        Column("run", align="left"),
        Column("phase", align="left"),
        Column("count"),
        Column("start", "s"),
        Column("total duration", "s"),
        Column("share of the run", "%"),
    )
    notes = (
        "On the worker's clock, which starts at 0. Warm-up and steady are parts of steps; idle can be part of setup.",
    )
    longest = max(rows, key=lambda row: row[4].value if row[1].value not in ("warmup", "steady") else 0.0)  # type: ignore[arg-type,return-value]
    text = "The run was too short for its clock."
    if longest[5].value is not None:
        text = f"Mostly {longest[1].text}: {longest[4].text} s, {longest[5].text} % of the run."
    table = Table("phases", "Phases", columns, tuple(rows), notes)
    return Section("phases", "Phases", "Where did the time of the run go?", text, (table,))


def _phase_rows(record: RunRecord) -> list[tuple[Cell, ...]]:
    parts: dict[str, list[tuple[float, float]]] = {}
    for phase in record.phases:
        parts.setdefault(phase.name, []).append((phase.start_s, phase.end_s))
    if not parts:
        return []
    begin = min(start for spans in parts.values() for start, _ in spans)
    whole = max(end for spans in parts.values() for _, end in spans) - begin
    rows: list[tuple[Cell, ...]] = []
    for name, spans in sorted(parts.items(), key=lambda part: part[1][0]):
        length = sum(end - start for start, end in spans)
        share = 100 * length / whole if whole > 0 else None
        rows.append(
            (
                Cell(record.run_id, record.run_id, runs=(record.run_id,)),
                Cell(WORDS.get(name, name), name),
                Cell(f"{len(spans):,}", len(spans)),
                Cell(number(spans[0][0], 4), spans[0][0]),
                Cell(number(length, 4), length),
                Cell("-" if share is None else f"{share:.1f}", share),
            )
        )
    return rows


def _figure(quantity: Quantity, runs: tuple[str, ...]) -> Cell:
    return figure_cell(quantity, runs) if quantity.value is not None else Cell(f"unknown: {quantity.reason}", runs=runs)


def figures_section(records: Sequence[RunRecord]) -> Section | None:
    """All quantities of the records with unit, scope and window."""
    tables = []
    for place, record in enumerate(records, 1):
        rows = [
            (
                Cell(name, name),
                _figure(quantity, (record.run_id,)),
                Cell("share" if quantity.unit == "1" else quantity.unit, quantity.unit),
                Cell(quantity.scope, quantity.scope),
                Cell(quantity.window, quantity.window),
                Cell(quantity.aggregation, quantity.aggregation),
            )
            for name, quantity in record.quantities.items()
        ]
        columns = (
            Column("quantity", align="left"),
            Column("value"),
            Column("unit", align="left"),
            Column("scope", align="left"),
            Column("window", align="left"),
            Column("aggregation", align="left"),
        )
        if rows:
            tables.append(Table(f"figures-{place}", f"Results of run {record.run_id}", columns, tuple(rows)))
    if not tables:
        return None
    text = "; ".join(_headline(record) for record in records)
    return Section("figures", "Results", "What was measured?", sentence(text), tuple(tables))


def _headline(record: RunRecord) -> str:
    step, throughput = record.quantities.get("step_time_mean"), record.quantities.get("throughput")
    if throughput is None or throughput.value is None:
        return f"run {record.run_id} has no throughput"
    each = f", mean step time {seconds(step.value)}" if step is not None and step.value is not None else ""
    codes = error_codes(record.findings)
    unreliable = f" (not reliable: {', '.join(codes)})" if codes else ""
    return f"run {record.run_id}: {number(throughput.value)} {throughput.unit}{each}{unreliable}"


def _evaluations(records: Sequence[RunRecord]) -> Section | None:
    """Quality of the model during training."""
    rows = [
        (
            Cell(record.run_id, record.run_id, runs=(record.run_id,)),
            Cell(f"{one.epoch:,}", one.epoch),
            Cell(f"{one.steps:,}", one.steps),
            Cell(number(one.at_s, 4), one.at_s),
            Cell("not finite" if one.value is None else number(one.value, 4), one.value),
            Cell(one.metric, one.metric),
        )
        for record in records
        for one in record.evaluations[-MAX_EVALUATIONS:]
    ]
    if not rows:
        return None
    columns = (
        Column("run", align="left"),
        Column("epoch"),
        Column("steps"),
        Column("after", "s"),
        Column("value"),
        Column("metric", align="left"),
    )
    last = rows[-1]
    text = f"{last[5].text} {last[4].text} after epoch {last[1].text} and {last[3].text} s."
    notes = (f"At most the last {MAX_EVALUATIONS} of each run.",)
    table = Table("evaluations", "Evaluations", columns, tuple(rows), notes)
    return Section("evaluations", "Quality", "How good was the model, and when?", sentence(text), (table,))
