"""The report of a suite: the document's tables as printed, with our figures beside them."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from steelyard.audit import documents
from steelyard.audit.recompute import digits
from steelyard.errors import InputError
from steelyard.inputs.suite import SIZES, applies, study_name
from steelyard.report.audit.claims import claims_table
from steelyard.report.audit.published import VERDICTS, codes_of
from steelyard.report.charts.heat import heat_chart
from steelyard.report.page import Cell, Column, Page, Prose, Section, Table, with_note
from steelyard.report.study.back import environment_section
from steelyard.report.study.compare import factor_sections
from steelyard.report.study.curves import batch_section, scaling_section
from steelyard.report.study.subject import subject
from steelyard.report.suite.beside import COMPARED, SuiteResults
from steelyard.report.suite.figures import our_figure
from steelyard.report.suite.speedup import speedup_tables
from steelyard.rules.table.settings import shown
from steelyard.rules.table.units import unit_of
from steelyard.terminal.claims import claim_tally
from steelyard.terminal.findings import rule_name
from steelyard.terminal.ratios import bounded
from steelyard.terminal.text import SIMULATED, capital, many, number, tuned_note
from steelyard.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Sequence

    from steelyard.analysis.ratios import Ratio
    from steelyard.analysis.summary import CellSummary
    from steelyard.contracts.record import RunRecord
    from steelyard.inputs.suite import Deviation, Part, Planned, PrintedTable, SettingSource, Size, SuiteFolder
    from steelyard.report.suite.beside import Beside
    from steelyard.results.store import ResultFolder
    from steelyard.rules.table.row import Amount, Row

HERE = "here"
NUMBERED = {"devices", "batch", "global_batch", "loader.workers", "loader.prefetch", "nodes"}
"""Settings whose values say nothing without their names."""
NOT_MEASURED = "not measured"
MACHINE = {
    "CPU": "cpu.model",
    "CPUs": "cpu.usable",
    "driver": "gpu0.driver",
    "torch": "torch.version",
    "kernel": "system.kernel",
}
"""Facts of an environment for the first screen."""
SCALED = ("FLOP/s", "B/s", "B")
PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
FACTORS = "factors"
CHARTS = {"batch": batch_section, "scaling": scaling_section}
ABOUT_SIZES = {
    "full": "Runs are as long as in the document.",
    "small": "Runs are shorter than in the document; times of whole trainings follow from the measured throughput.",
    "tiny": "Models are reduced and data is generated: these figures show that the suite runs, and are not compared.",
}


def measured_sizes(folder: ResultFolder, suite_folder: SuiteFolder) -> list[Size]:
    """Return the sizes of which there are runs."""
    there = set(folder.studies())
    return [
        size
        for size in SIZES
        if any(study_name(suite_folder.suite, part, size) in there for part in suite_folder.suite.part)
    ]


def suite_page(folder: ResultFolder, suite_folder: SuiteFolder, size: Size) -> Page:
    """Return the report of a suite at one size; InputError if nothing was measured."""
    results = SuiteResults(folder, suite_folder, size)
    suite = suite_folder.suite
    measured = [part for part in suite.part if results.cells(part)]
    if not measured:
        raise InputError(
            f"there are no results of {suite.name} with the size {size} in {folder.path}",
            next_step=f"steelyard suite run {suite_folder.asked} --size {size}",
        )
    beside = [results.beside(table) for table in suite.table]
    every = [entry for entries in beside for entry in entries]
    tables = []
    for place, table in enumerate(suite.table):
        tables.append(_table_section(results, table, beside[place], f"table-{place}"))
        cells = results.cells(suite_folder.part(table.part))
        if table.chart == FACTORS and cells:
            tables += factor_sections(subject(table.part, cells), f"table-{place}-factor", f" ({table.part})")
    sections = [
        _overview(results, every, [block for part in tables for block in part.blocks if isinstance(block, Table)]),
        *tables,
        *_document_section(results, every),
        _settings_section(results),
        environment_section([subject(part.name, results.cells(part)) for part in measured]),
    ]
    return Page(
        title=f"{suite.title}: {suite.name}, size {size}",
        subtitle=suite.question,
        sections=with_note(sections, tuned_note(cell.spec for part in measured for cell in results.cells(part))),
        made_at=datetime.now(UTC).isoformat(timespec="seconds"),
        made_by=f"steelyard {VERSION}",
    )


def _overview(results: SuiteResults, every: Sequence[Beside], tables: Sequence[Table]) -> Section:
    suite = results.suite
    records = [record for part in suite.part for cell in results.cells(part) for record in cell.records]
    devices = {record.device.name if record.device is not None else record.spec.device_family for record in records}
    nodes = {record.environment.node for record in records if record.environment is not None}
    done = sum(record.status.code == "completed" for record in records)
    cells = [cell for part in suite.part for cell in results.cells(part)]
    unreliable = sum(bool(cell.unreliable) for cell in cells)
    facts = [
        ("size", f"{results.size}. {ABOUT_SIZES[results.size]}"),
        ("runs", f"{len(records)}, {done} completed"),
        ("reliable", f"{len(cells) - unreliable} of {many(len(cells), 'configuration')}"),
        ("device", ", ".join(sorted(devices)) or "unknown"),
        ("nodes", ", ".join(sorted(nodes)) or "unknown"),
        ("preset", ", ".join(sorted({record.spec.preset for record in records}))),
        *_machine_facts(records),
        *([("document", _cited(results))] if suite.document else []),
        *((f"different here{_in_parts(entry)}", entry.text) for entry in suite.deviation),
    ]
    blocks: list[Any] = [Prose(facts=tuple(facts))]
    if not suite.document:
        blocks.append(_summary_table(tables))
    answer = _answer(results, every)
    if any(record.spec.device_family == "sim" for record in records):
        answer += f" {SIMULATED}"
    return Section("overview", "Overview", suite.question, answer, tuple(blocks))


def _machine_facts(records: Sequence[RunRecord]) -> list[tuple[str, str]]:
    """Return what the records say about the host and the software."""
    known = [record.environment.facts for record in records if record.environment is not None]
    return [
        (name, ", ".join(sorted(values)))
        for name, key in MACHINE.items()
        if (values := {facts[key] for facts in known if facts.get(key)})
    ]


def _in_parts(entry: Deviation) -> str:
    return f" ({', '.join(entry.parts)})" if entry.parts else ""


def _summary_table(tables: Sequence[Table]) -> Table:
    """Return every figure of a suite without a document in one table."""
    rows = []
    for table in tables:
        for line in table.rows:
            said = [cell.text for column, cell in zip(table.columns, line, strict=True) if column.align == "left"]
            figures = [
                f"{_word(column.name)} {cell.text} {column.unit}".strip()
                for column, cell in zip(table.columns, line, strict=True)
                if column.align == "right" and cell.value is not None
            ]
            if figures:
                told = ", ".join(text for text in said if text != "-")
                rows.append((Cell(table.title), Cell(told), Cell("; ".join(figures))))
    columns = tuple(Column(name, align="left") for name in ("what", "configuration", "this machine"))
    return Table("this-machine", "What this machine reaches", columns, tuple(rows))


def _cited(results: SuiteResults) -> str:
    name = results.suite.document
    return documents.provenance(name).cited() if name in documents.names() else results.suite.cite or "none"


def _answer(results: SuiteResults, every: Sequence[Beside]) -> str:
    parts = [part for part in results.suite.part if _is_measured(results, part)]
    text = f"{len(parts)} of {many(len(results.suite.part), 'part')} measured."
    if not every:
        return text
    ours = [entry for entry in every if entry.ours is not None]
    marked = [entry for entry in every if entry.marks]
    text += f" {len(ours)} of {many(len(every), 'printed figure')} have one of ours beside them"
    if results.size in COMPARED:
        allowed = [entry for entry in ours if entry.comparison is not None and entry.comparison.ratios]
        text += f"; {len(allowed)} of these can be compared"
    else:
        text += f", but the size {results.size} is never compared"
    rows = len({entry.published.place for entry in marked})
    return f"{text}. The audit has findings on {many(rows, 'printed row')}." if marked else f"{text}."


def _is_measured(results: SuiteResults, part: Part) -> bool:
    return any("completed" in cell.statuses for cell in results.cells(part))


# -- one table


def _table_section(results: SuiteResults, table: PrintedTable, entries: Sequence[Beside], name: str) -> Section:
    if entries:
        made = [_printed(entries, split, f"{name}-{place}") for place, split in enumerate(_splits(table, entries))]
        blocks: list[Any] = [*made]
        measured = [entry for entry in entries if entry.cell is not None]
        if results.size in COMPARED and measured:
            blocks.append(_pairs_table(measured, f"{name}-pairs"))
            blocks += speedup_tables(entries, f"{name}-speedup")
    else:
        blocks = [_own_table(results, table, name)]
    blocks += _chart_blocks(results, table, f"{name}-{table.chart}")
    answer = _table_answer(results, results.suite_folder.part(table.part), entries)
    return Section(name, table.title, "", answer, tuple(blocks))


def _chart_blocks(results: SuiteResults, table: PrintedTable, name: str) -> tuple[Any, ...]:
    cells = results.cells(results.suite_folder.part(table.part))
    if table.chart == "heat":
        # The axes are those of the table, such as a global batch, which is no setting of a run.
        shown = [
            cell
            for planned in results.plan(results.suite_folder.part(table.part))
            if (cell := results.cell_of(planned)) is not None
        ]
        x, y = (*table.rows, *table.columns)[:2]
        with suppress(InputError):
            return (heat_chart(shown, x, y, name),) if len(shown) > 1 else ()
    elif table.chart in CHARTS and cells:
        drawn = CHARTS[table.chart](subject(table.part, cells), name)
        return drawn.blocks if drawn is not None else ()
    return ()


def _table_answer(results: SuiteResults, part: Part, entries: Sequence[Beside]) -> str:
    if not _is_measured(results, part):
        return (
            f"Not measured: steelyard suite run {results.suite_folder.asked} --size {results.size} --part {part.name}"
        )
    if not entries:
        return "The document prints no numbers for this; these are ours." if results.suite.document else ""
    ours = sum(entry.ours is not None for entry in entries)
    ratios = [_ratio(entry) for entry in entries]
    values = sorted(ratio.value for ratio in ratios if ratio is not None)
    if not values:
        why = f"the size {results.size} is never compared" if results.size not in COMPARED else _most_frequent(entries)
        return f"{ours} of {many(len(entries), 'figure')} measured; no ratio: {why}."
    spans = [f"{_word(name)} {_span(entries, name)}" for name in entries[0].table.figures if _span(entries, name)]
    told = _span(entries, entries[0].table.figures[0]) if len(entries[0].table.figures) == 1 else "; ".join(spans)
    return f"{ours} of {many(len(entries), 'figure')} measured; ours divided by the printed ones: {told}."


def _span(entries: Sequence[Beside], metric: str) -> str:
    """Return the smallest and the largest ratio of a figure; empty if there is none."""
    ratios = [ratio for entry in entries if entry.metric == metric and (ratio := _ratio(entry)) is not None]
    values = [ratio.value if ratio.bound is None else ratio.bound for ratio in ratios]
    ends = [number(end, 3) for end in dict.fromkeys((min(values), max(values)))] if values else []
    return " to ".join(dict.fromkeys(ends))


def _most_frequent(entries: Sequence[Beside]) -> str:
    codes = [code for entry in entries if entry.comparison is not None for code in codes_of(entry.comparison)]
    most = max(dict.fromkeys(codes), key=codes.count, default="")
    return f"most often {most} ({rule_name(most)})" if most else "nothing to compare"


def _splits(table: PrintedTable, entries: Sequence[Beside]) -> list[str]:
    """Return the values that divide a table into (a), (b) and so on; one empty value if it is not divided."""
    if not table.split:
        return [""]
    return list(dict.fromkeys(_said(entry.published, table.split) for entry in entries))


def _printed(entries: Sequence[Beside], split: str, name: str) -> Table:
    """Return a table as printed, and to the right of it our figures."""
    table = entries[0].table
    inside = [entry for entry in entries if not split or _said(entry.published, table.split) == split]
    columns = list(dict.fromkeys(_column(entry) for entry in inside))
    rows = list(dict.fromkeys(_row_key(entry) for entry in inside))
    at = {(_row_key(entry), _column(entry)): entry for entry in inside}
    ours = list(dict.fromkeys(_our_column(entry) for entry in inside if entry.there is not None))
    beside = {(_row_key(entry), _our_column(entry)): entry for entry in inside if entry.cell is not None}
    lines = []
    for row in rows:
        line = [Cell(text, text) for text in row]
        line += [_printed_cell(at.get((row, column))) for column in columns]
        line += [_our_cell(beside.get((row, column))) for column in ours]
        lines.append(tuple(line))
    heads = [Column(_word(key), align="left") for key in table.rows]
    heads += [Column(column[0], column[1]) for column in [*columns, *ours]]
    notes = [f"{HERE} = figures of this machine; the others as printed.", *_interval_note(lines)]
    if any(_instead(entry) for entry in inside):
        notes.append("at = a setting that this size has instead.")
    if any(entry.marks for entry in inside):
        notes.append("Codes at a printed figure: what the audit finds wrong with its row (steelyard explain CODE).")
    return Table(name, f"{table.title}: {split}" if split else table.title, tuple(heads), tuple(lines), tuple(notes))


def _row_key(entry: Beside) -> tuple[str, ...]:
    return tuple(_said(entry.published, key) for key in entry.table.rows)


def _column(entry: Beside) -> tuple[str, str]:
    """Return the printed column of a figure: its settings or its metric, and the unit."""
    table = entry.table
    named = " x ".join(_said(entry.published, key) for key in table.columns) if table.columns else _word(entry.metric)
    if table.columns and len(table.figures) > 1:
        named = f"{named}, {_word(entry.metric)}"
    return named, entry.printed.unit


def _our_column(entry: Beside) -> tuple[str, str]:
    """Return the column of our figure: all columns of the document that have the same runs beside them share it."""
    table = entry.table
    said = [_said(entry.published, key) for key in table.columns if key not in ("accelerator", "system", "devices")]
    if "devices" in table.columns:
        said.append(many((entry.there or entry.planned).get("devices"), "device"))
    if len(table.figures) > 1 or not table.columns:
        # Two printed figures may stand for one of ours: what was measured, and what was expected.
        said.append(_word(entry.figure.removesuffix("_job")))
    return ", ".join([HERE, *said]), entry.printed.unit


def _said(row: Row, key: str) -> str:
    value = row.table if key == "table" else row.note if key == "note" else row.get(key)
    return "not stated" if value in (None, "") else shown(value)


def _word(key: str) -> str:
    return key.replace("_", " ")


def _printed_cell(entry: Beside | None) -> Cell:
    if entry is None:
        return Cell("-")
    codes = tuple(dict.fromkeys(mark.code for mark in entry.marks))
    return Cell(digits(entry.printed), entry.printed.value / _factor(entry.printed.unit), codes=codes)


def _our_cell(entry: Beside | None) -> Cell:
    if entry is None:
        return Cell(NOT_MEASURED)
    assert entry.cell is not None
    if entry.ours is None:
        statuses = [status.replace("_", " ") for status in entry.cell.statuses if status != "completed"]
        return Cell(", ".join(statuses) or "unknown")
    codes = tuple(
        dict.fromkeys(code for finding in entry.cell.findings for code in [finding.code] if finding.severity == "error")
    )
    runs = tuple(record.run_id for record in entry.cell.records)
    cell = _amount_cell(entry.ours, _factor(entry.ours.unit), runs, codes)
    return replace(cell, text=f"{cell.text}{_instead(entry)}")


def _instead(entry: Beside) -> str:
    """Return the settings of our runs that a smaller size has instead of those of the printed row."""
    if entry.there is None:
        return ""
    whole = "global_batch" in entry.there.settings
    names = ("devices", "global_batch" if whole else "batch", "precision", "loader.workers")
    changed = [name for name in names if entry.there.get(name) != entry.planned.get(name)]
    said = [f"{_word(name.rpartition('.')[2])} {entry.there.get(name)}" for name in changed]
    return f" at {', '.join(said)}" if said else ""


def _interval_note(lines: Sequence[Sequence[Cell]]) -> list[str]:
    if any(cell.low is not None for line in lines for cell in line):
        return ["[ ] = 95 % CI over jobs."]
    return ["One job each: no interval."] if any(cell.runs for line in lines for cell in line) else []


def _amount_cell(amount: Amount, factor: float, runs: tuple[str, ...] = (), codes: tuple[str, ...] = ()) -> Cell:
    value, low, high = (end / factor for end in (amount.value, amount.low, amount.high))
    several = len(amount.jobs) > 1
    text = f"{number(value, 4)} [{number(low, 4)}, {number(high, 4)}]" if several else number(value, 4)
    return Cell(text, value, low if several else None, high if several else None, runs, codes)


def _factor(unit: str) -> float:
    known = unit_of(unit)
    return known[1] if known is not None else 1.0


# -- pairs


def _ratio(entry: Beside) -> Ratio | None:
    made = entry.comparison.ratios if entry.comparison is not None else ()
    return next((ratio for ratio in made if ratio.scope == "job" and ratio.answer != "none"), None)


def _pairs_table(entries: Sequence[Beside], name: str) -> Table:
    """Return a table with the verdict on each pair of a printed figure and ours."""
    columns = (
        Column("printed", align="left"),
        Column("figure", align="left"),
        Column("published"),
        Column(HERE),
        Column("comparable", align="left"),
        Column(f"{HERE} / published"),
        Column("different here", align="left"),
    )
    rows = []
    letters = {text: _letter(place) for place, text in enumerate(_deviations(entries))}
    for entry in entries:
        what, figure = _what(entry), f"{_word(entry.metric)}, {entry.printed.unit}"
        different = ", ".join(sorted(letters[text] for text in entry.deviations))
        verdict = Cell(NOT_MEASURED)
        if entry.comparison is not None:
            verdict = Cell(
                VERDICTS.get(entry.comparison.verdict, entry.comparison.verdict),
                entry.comparison.verdict,
                codes=codes_of(entry.comparison),
            )
        rows.append(
            (
                Cell(what, what),
                Cell(figure, entry.metric),
                _printed_cell(entry),
                _our_cell_only(entry),
                verdict,
                _ratio_cell(_ratio(entry)),
                Cell(different or "-"),
            )
        )
    notes = ["A ratio is given only where no rule finds an error. Base: the printed figure."]
    notes += [f"({letter}) {text}" for text, letter in letters.items()]
    notes += _reasons(entries)
    return Table(name, "Each printed figure and ours", columns, tuple(rows), tuple(notes))


def _deviations(entries: Sequence[Beside]) -> list[str]:
    return list(dict.fromkeys(text for entry in entries for text in entry.deviations))


def _letter(place: int) -> str:
    return chr(ord("a") + place) if place < 26 else str(place + 1)


def _what(entry: Beside) -> str:
    """Return the settings that name a printed figure, in one line."""
    table = entry.table
    said = {key: _said(entry.published, key) for key in (*table.rows, table.split, *table.columns) if key}
    if {"devices", "accelerator"} <= set(said):
        said["accelerator"] = f"{said.pop('devices')} x {said['accelerator']}"
    for key in set(said) & NUMBERED:
        said[key] = f"{_word(key)} {said[key]}"
    return ", ".join(said.values())


def _our_cell_only(entry: Beside) -> Cell:
    """Return our figure without its run ids, which are in the table as printed."""
    return replace(_our_cell(entry), runs=())


def _ratio_cell(ratio: Ratio | None) -> Cell:
    if ratio is None:
        return Cell("-")
    if ratio.bound is not None:
        return Cell(bounded(ratio.bound), ratio.bound)
    if ratio.low is None or ratio.high is None:
        return Cell(number(ratio.value, 4), ratio.value)
    text = f"{number(ratio.value, 4)} [{number(ratio.low, 4)}, {number(ratio.high, 4)}]"
    return Cell(text, ratio.value, ratio.low, ratio.high)


def _reasons(entries: Sequence[Beside]) -> list[str]:
    """Return each reason against a ratio once, with one example."""
    by_code: dict[str, list[str]] = {}
    for entry in entries:
        for finding in entry.comparison.findings if entry.comparison is not None else ():
            if finding.severity == "error":
                by_code.setdefault(finding.code, []).append(finding.message)
    return [f"{code} ({rule_name(code)}), {many(len(texts), 'pair')}: {texts[0]}" for code, texts in by_code.items()]


# -- a table without printed rows


def _own_table(results: SuiteResults, table: PrintedTable, name: str) -> Table:
    """Return the figures of all configurations of a part, with the units that their sizes ask for."""
    plan = results.plan(results.suite_folder.part(table.part))
    keys = [*table.rows, *table.columns]
    ours = [results.ours(planned) for planned in plan]
    words = {key: _word(key.removeprefix("model.")) for key in keys}
    columns = [Column(words[key], align="left") for key in keys]
    lines = [[_setting_cell(planned, key) for key in keys] for planned in plan]
    for figure in table.figures:
        amounts = [our_figure(entry[1], figure) if entry is not None else None for entry in ours]
        known = [amount for amount in amounts if amount is not None]
        factor, unit = _scale(max((amount.value for amount in known), default=0.0), known[0].unit if known else "")
        columns.append(Column(_word(figure), unit))
        for line, entry, amount in zip(lines, ours, amounts, strict=True):
            line.append(_own_cell(entry[0] if entry is not None else None, amount, factor))
    return Table(name, table.title, tuple(columns), tuple(map(tuple, lines)), tuple(_interval_note(lines)))


def _own_cell(cell: CellSummary | None, amount: Amount | None, factor: float) -> Cell:
    if cell is None:
        return Cell(NOT_MEASURED)
    if amount is None:
        lost = [status.replace("_", " ") for status in cell.statuses if status != "completed"]
        return Cell(", ".join(lost) or "-")
    return _amount_cell(amount, factor, tuple(record.run_id for record in cell.records))


def _scale(largest: float, unit: str) -> tuple[float, str]:
    """Return a divisor and a unit with its prefix, for units that no document prints."""
    if unit not in SCALED:
        return _factor(unit), unit
    return next(((factor, prefix + unit) for factor, prefix in PREFIXES if largest >= factor), (1.0, unit))


def _setting_cell(planned: Planned, key: str) -> Cell:
    value = planned.get(key)
    return Cell("-" if value is None else str(value), value if isinstance(value, str | int | float) else None)


# -- the document and the settings


def _document_section(results: SuiteResults, every: Sequence[Beside]) -> list[Section]:
    """Return what the audit finds in the document's own figures and claims, if there is something."""
    marks = tuple(dict.fromkeys(mark for entry in every for mark in entry.marks))
    wrong = [entry for entry in results.judgements if entry.verdict != "holds"]
    if not wrong and not marks:
        return []
    answer = f"{capital(claim_tally(results.judgements))}. " if results.judgements else ""
    answer += f"{many(len(marks), 'finding')} on its printed rows."
    blocks = (claims_table(wrong, "claims", "Claims of the document that do not hold"),) if wrong else ()
    question = "Are the document's figures and claims correct?"
    return [Section("document", "The document's own figures and claims", question, answer, blocks, marks)]


def _settings_section(results: SuiteResults) -> Section:
    """Return every setting: stated by the document, or chosen, with the reason."""
    specs = {part.name: [cell.spec for cell in results.cells(part)] for part in results.suite.part}
    sources = [entry for entry in results.suite_folder.setting_sources() if applies(entry, results.size, specs)]
    stated = sum(bool(entry.stated) for entry in sources)
    columns = tuple(Column(name, align="left") for name in ("setting", "value", "parts", "source", "words or reason"))
    rows = tuple(_source_row(entry) for entry in sources)
    answer = f"{stated} entries are stated by the document, {len(sources) - stated} were chosen."
    if not results.suite.document:
        answer = f"All {len(sources)} entries were chosen, with the reason."
    table = Table("settings", "Settings and where they come from", columns, rows)
    question = "Where do the settings come from?"
    return Section("settings", "Settings", question, answer, (table,), folded=True)


def _source_row(entry: SettingSource) -> tuple[Cell, ...]:
    values = entry.value if isinstance(entry.value, tuple) else () if entry.value is None else (entry.value,)
    said = f'"{entry.words}"' if entry.stated else entry.why
    texts = (
        entry.name,
        ", ".join(map(shown, values)) or "any",
        ", ".join(entry.parts) or "all",
        entry.stated or "chosen here",
        said,
    )
    return tuple(Cell(text, text) for text in texts)
