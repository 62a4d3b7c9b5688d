"""The first screen of a suite's report: for each table our figures, and what the printed ones say about them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from steelyard.analysis.probe import run_s
from steelyard.audit import documents
from steelyard.report.page import Cell, Column, FirstScreen, KeyFigure, Prose, Section, Table
from steelyard.report.study.first import trust_of
from steelyard.report.suite.answers import Answers, change_of, machine_of, pair_key, spans_of, told
from steelyard.report.suite.beside import COMPARED, EXPECTED
from steelyard.report.suite.cells import factor_of, word
from steelyard.report.suite.figures import our_figure
from steelyard.report.suite.reached import key_figures, reached_lines, reached_table
from steelyard.report.suite.tiny import figures_run
from steelyard.terminal.text import SIMULATED, many, number, sentence

if TYPE_CHECKING:
    from collections.abc import Sequence

    from steelyard.contracts.record import RunRecord
    from steelyard.inputs.suite import PrintedTable
    from steelyard.report.suite.beside import SuiteResults
    from steelyard.report.suite.inside import Relation

MACHINE = {
    "CPU": "cpu.model",
    "CPUs": "cpu.usable",
    "driver": "gpu0.driver",
    "torch": "torch.version",
    "kernel": "system.kernel",
}
"""Facts of an environment for the first screen."""
ABOUT_SIZES = {
    "full": "Runs are as long as in the document.",
    "small": "Runs are shorter than in the document; times of whole trainings follow from the measured throughput.",
    "tiny": "Models are reduced and data is generated: the report shows what runs here, and no figures of it.",
}


SHOWN = 1
"""Relations of a table on the first screen."""
HOUR_S = 3600


def first_screen(results: SuiteResults, answers: Sequence[Answers]) -> FirstScreen:
    """Return what a reader sees first."""
    cells = [cell for part in results.suite.part for cell in results.cells(part)]
    records = [record for cell in cells for record in cell.records]
    table: Table | None = None
    kinds: tuple[KeyFigure, ...] = ()
    if results.size in COMPARED and any(found.entries for found in answers):
        table, kinds = _short_table(results, answers), _kinds(answers)
    elif results.size in COMPARED:
        lines = reached_lines(results)
        table, kinds = reached_table(lines), tuple(key_figures(lines))
    trust, words = trust_of(cells)
    verdict = _verdict(results, answers)
    measured = sum(bool(results.cells(part)) for part in results.suite.part)
    if measured < len(results.suite.part):
        verdict += f" {measured} of {many(len(results.suite.part), 'part')} measured."
    if any(record.spec.device_family == "sim" for record in records):
        verdict += f" {SIMULATED}"
    figures = (*kinds, _cost(records))
    return FirstScreen(verdict, figures, trust, words, table=table)


def _verdict(results: SuiteResults, answers: Sequence[Answers]) -> str:
    entries = [entry for found in answers for entry in found.entries]
    if results.size not in COMPARED:
        count = figures_run([entry.cell for entry in entries]) if entries else "These are no results"
        return f"{count}; the size {results.size} is never compared."
    if entries:
        return sentence(told(answers))
    measured = sum(len(results.cells(part)) for part in results.suite.part)
    return f"What this machine reaches, in {many(measured, 'configuration')}."


def _kinds(answers: Sequence[Answers]) -> tuple[KeyFigure, ...]:
    """Count the printed figures by their answers."""
    entries = [entry for found in answers for entry in found.entries]
    ours = sum(entry.ours is not None for entry in entries)
    count = {kind: sum(len(getattr(found, kind)) for found in answers) for kind in ("same_work", "inside", "even")}
    silent = sum(len(found.silent) for found in answers)
    first = next((place for place, found in enumerate(answers) if found.even), None)
    at = "" if first is None else f"table-{first}-if"
    return (
        KeyFigure(
            "Printed figures", f"{ours} of {len(entries)}", "measured", f"{silent} without an answer" if silent else ""
        ),
        KeyFigure("Same work", str(count["same_work"]), "with a ratio"),
        KeyFigure("Inside", str(count["inside"]), "in relations", "what one setting changes"),
        KeyFigure("If", str(count["even"]), "with a length", "of training at which both are as fast", at=at),
    )


def _cost(records: Sequence[RunRecord]) -> KeyFigure:
    done = sum(record.status.code == "completed" for record in records)
    hours = sum(run_s(record) * record.spec.devices for record in records) / HOUR_S
    return KeyFigure("Cost", number(hours, 2), "device-hours", f"{done} of {many(len(records), 'run')} completed")


def overview(results: SuiteResults) -> Section:
    """Return what was measured, on what, beside which document."""
    cells = [cell for part in results.suite.part for cell in results.cells(part)]
    records = [record for cell in cells for record in cell.records]
    devices = {record.device.name if record.device is not None else record.spec.device_family for record in records}
    nodes = {record.environment.node for record in records if record.environment is not None}
    facts = [
        ("device", ", ".join(sorted(devices)) or "unknown"),
        ("nodes", ", ".join(sorted(nodes)) or "unknown"),
        ("size", f"{results.size}. {ABOUT_SIZES[results.size]}"),
        ("preset", ", ".join(sorted({record.spec.preset for record in records}))),
        *_machine_facts(records),
        *([("document", _cited(results))] if results.suite.document else []),
    ]
    return Section("measured", "What was measured", blocks=(Prose(facts=tuple(facts)),), folded=True)


def _short_table(results: SuiteResults, answers: Sequence[Answers]) -> Table:
    """Return what each table of the document says, in a line."""
    columns = (
        Column("table", align="left"),
        Column("here", align="left"),
        Column("same work: here / published", align="left"),
        Column("inside: what one setting changes", align="left"),
    )
    rows = tuple(
        (
            Cell(found.entries[0].table.title),
            Cell(_our_spans(found)),
            Cell(_ratio_spans(found)),
            Cell(_changes(found)),
        )
        for found in answers
        if any(entry.ours is not None for entry in found.entries)
    )
    rows += tuple(
        (Cell(found.table.title), Cell(spans), Cell("-"), Cell("the document prints no numbers"))
        for found in answers
        if found.table is not None and not found.entries and (spans := _own_spans(results, found.table))
    )
    notes = ("Smallest to largest, on as many devices. Every figure is in its section, with interval and conditions.",)
    return Table("in-short", "What the tables of the document say about this machine", columns, rows, notes)


def _own_spans(results: SuiteResults, table: PrintedTable) -> str:
    """Return our smallest and largest value of the first figure of a table without printed numbers."""
    plan = results.plan(results.suite_folder.part(table.part))
    ours = [entry for planned in plan if (entry := results.ours(planned)) is not None]
    for name in table.figures:
        if known := [amount for _, run in ours if (amount := our_figure(run, name)) is not None]:
            values = sorted(amount.value / factor_of(amount.unit) for amount in known)
            ends = dict.fromkeys(number(end, 3) for end in (values[0], values[-1]))
            return f"{word(name)} {' to '.join(ends)} {known[0].unit}"
    return ""


def _our_spans(found: Answers) -> str:
    """Return our smallest and largest value of each figure."""
    told = []
    for metric, unit in dict.fromkeys((entry.metric, entry.printed.unit) for entry in found.entries):
        alike = [entry for entry in found.entries if (entry.metric, entry.printed.unit) == (metric, unit)]
        ours = [entry.ours for entry in alike if entry.ours is not None and not entry.metric.startswith(EXPECTED)]
        if ours:
            values = sorted({amount.value / factor_of(amount.unit) for amount in ours})
            ends = dict.fromkeys(number(end, 3) for end in (values[0], values[-1]))
            told.append(f"{word(metric)} {' to '.join(ends)} {ours[0].unit}")
    return "; ".join(told)


def _ratio_spans(found: Answers) -> str:
    """Return the smallest and largest ratio of each figure to each kind of device of the document."""
    told = []
    for metric in dict.fromkeys(entry.metric for entry in found.same_work):
        spans = spans_of([entry for entry in found.same_work if entry.metric == metric])
        told.append(f"{word(metric)} {', '.join(spans)}")
    return "; ".join(told) or "-"


def _changes(found: Answers) -> str:
    """Return the first relations in the order of the document, each with the machines that printed it."""
    rows: dict[tuple[str, ...], list[Relation]] = {}
    for one in found.relations:
        rows.setdefault((*pair_key(one), one.entry.metric), []).append(one)
    parts = []
    for (_, kept, *_), group in [*rows.items()][:SHOWN]:
        one = group[0]
        printed = ", ".join(
            f"x {number(each.printed.value, 3)} on {machine_of(each.entry, without=each.factor)}" for each in group
        )
        where = f" ({kept})" if kept != "-" else ""
        parts.append(f"{change_of(one)}{where}: {word(one.entry.metric)} x {number(one.ours.value, 3)} here, {printed}")
    more = len(rows) - len(parts)
    return "; ".join([*parts, *([f"{more} more"] if more else [])]) or "-"


def _machine_facts(records: Sequence[RunRecord]) -> list[tuple[str, str]]:
    """Return what the records say about the host and the software."""
    known = [record.environment.facts for record in records if record.environment is not None]
    return [
        (name, ", ".join(sorted(values)))
        for name, key in MACHINE.items()
        if (values := {facts[key] for facts in known if facts.get(key)})
    ]


def _cited(results: SuiteResults) -> str:
    name = results.suite.document
    return documents.provenance(name).cited() if name in documents.names() else results.suite.cite or "none"
