"""The report of a suite: the document's tables as printed, with our figures beside them."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from steelyard.errors import InputError
from steelyard.inputs.suite import SIZES, applies, data_formats, study_name
from steelyard.report.audit.claims import claims_table
from steelyard.report.charts.heat import heat_chart
from steelyard.report.page import Cell, Column, Page, Prose, Section, Table, with_note
from steelyard.report.study.back import environment_section
from steelyard.report.study.compare import factor_sections
from steelyard.report.study.curves import batch_section, scaling_section
from steelyard.report.study.subject import subject
from steelyard.report.suite.against import against_section
from steelyard.report.suite.answers import (
    CONDITIONS,
    SAME_WORK,
    Answers,
    answer_blocks,
    conditions_beside,
    conditions_of_every,
    ratio_cell,
    span_of,
)
from steelyard.report.suite.beside import COMPARED, SuiteResults
from steelyard.report.suite.cells import (
    HERE,
    NOT_MEASURED,
    amount_cell,
    factor_of,
    instead,
    interval_note,
    our_cell,
    printed_cell,
    printed_setting,
    told_apart,
    word,
)
from steelyard.report.suite.chart import alone, together
from steelyard.report.suite.conditions import NAMES, Letters, listed
from steelyard.report.suite.figures import our_figure
from steelyard.report.suite.inside import relations
from steelyard.report.suite.overview import first_screen, overview
from steelyard.report.suite.tiny import NOTE, RUNS, figures_run, runs_answer, runs_cell
from steelyard.rules.table.settings import shown
from steelyard.terminal.claims import claim_tally
from steelyard.terminal.text import capital, many, tuned_note
from steelyard.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Sequence

    from steelyard.analysis.summary import CellSummary
    from steelyard.inputs.suite import Part, Planned, PrintedTable, SettingSource, Size, SuiteFolder
    from steelyard.report.study.subject import Subject
    from steelyard.report.suite.beside import Beside
    from steelyard.results.store import ResultFolder
    from steelyard.rules.table.row import Amount

FACTORS = "factors"
SHOWN_ROWS = 12
"""Configurations without a printed figure that stay in sight."""
CHARTS = {"batch": batch_section, "scaling": scaling_section}
ALONG = {"batch": "batch", "scaling": "devices"}


def measured_sizes(folder: ResultFolder, suite_folder: SuiteFolder) -> list[Size]:
    """Return the sizes of which there are runs."""
    there = set(folder.studies())
    return [
        size
        for size in SIZES
        if any(study_name(suite_folder.suite, part, size) in there for part in suite_folder.suite.part)
    ]


def suite_page(
    folder: ResultFolder, suite_folder: SuiteFolder, size: Size, against: ResultFolder | None = None
) -> Page:
    """Return the report of a suite at one size; InputError if nothing was measured.

    `against`: the results of another machine, for the ratios of two machines that the document states.
    """
    results = SuiteResults(folder, suite_folder, size)
    suite = suite_folder.suite
    measured = [part for part in suite.part if results.cells(part)]
    if not measured:
        raise InputError(
            f"there are no results of {suite.name} with the size {size} in {folder.path}",
            next_step=f"steelyard suite show {suite_folder.asked} --size {size}",
        )
    answers = [_answers(results, table) for table in suite.table]
    every = conditions_of_every(answers)
    tables = []
    for place, table in enumerate(suite.table):
        tables.append(_table_section(results, table, answers[place], f"table-{place}", Letters(every)))
        cells = results.cells(suite_folder.part(table.part))
        if table.chart == FACTORS and cells and size in COMPARED:
            tables += _factor_sections(subject(table.part, cells), table, f"table-{place}-factor")
    if against is not None:
        tables.append(against_section(results, SuiteResults(against, suite_folder, size)))
    if size in COMPARED:
        tables += [*_conditions_section(every), *_rest_sections(results, answers)]
    sections = [
        *tables,
        overview(results),
        *_document_section(results, [entry for one in answers for entry in one.entries]),
        _settings_section(results),
        environment_section([subject(part.name, results.cells(part)) for part in measured]),
    ]
    return Page(
        title=f"{suite.title}: {suite.name}, size {size}",
        subtitle=suite.question,
        sections=with_note(sections, tuned_note(cell.spec for part in measured for cell in results.cells(part))),
        made_at=datetime.now(UTC).isoformat(timespec="seconds"),
        made_by=f"steelyard {VERSION}",
        first=first_screen(results, answers),
        compact=True,
    )


def _answers(results: SuiteResults, table: PrintedTable) -> Answers:
    """Return what the printed figures of a table say about ours."""
    entries = results.beside(table)
    return Answers(table, tuple(entries), tuple(relations(entries) if results.size in COMPARED else ()))


def _is_measured(results: SuiteResults, part: Part) -> bool:
    return any("completed" in cell.statuses for cell in results.cells(part))


# -- one table


def _table_section(results: SuiteResults, table: PrintedTable, found: Answers, name: str, letters: Letters) -> Section:
    if found.entries:
        blocks: list[Any] = [
            _printed(found.entries, split, f"{name}-{place}", letters)
            for place, split in enumerate(_splits(table, found.entries))
        ]
        blocks += _chart_blocks(results, table, found, f"{name}-{table.chart}")
        if results.size in COMPARED:
            blocks += answer_blocks(found, name, letters)
    else:
        plan = results.plan(results.suite_folder.part(table.part))
        charts = _chart_blocks(results, table, found, f"{name}-{table.chart}")
        own = _own_table(results, plan, [*table.rows, *table.columns], table, name)
        if results.suite.document and (charts or len(own.rows) > SHOWN_ROWS):
            # It answers no printed figure.
            own = replace(own, title=f"{own.title}: {many(len(own.rows), 'configuration')}", folded=True)
        blocks = [*charts, own]
    answer = _table_answer(results, results.suite_folder.part(table.part), found)
    of_table = [entry.cell for entry in found.entries] or [*results.cells(results.suite_folder.part(table.part))]
    folded = not any(of_table)
    return Section(name, table.title, "", answer, tuple(blocks), folded=folded)


def _factor_sections(entry: Subject, table: PrintedTable, name: str) -> list[Section]:
    """Return what each varied setting of a part changes."""
    return [
        replace(section, title=f"{table.title}: {listed([section.title[0].lower() + section.title[1:]])}", folded=True)
        for section in factor_sections(entry, name)
    ]


def _chart_blocks(results: SuiteResults, table: PrintedTable, found: Answers, name: str) -> tuple[Any, ...]:
    cells = results.cells(results.suite_folder.part(table.part))
    if results.size not in COMPARED:
        return ()
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
    elif found.entries:
        drawn_together = together(found.entries, name) if table.chart in CHARTS else None
        return (drawn_together,) if drawn_together is not None else ()
    elif table.chart in CHARTS and results.suite.document:
        ours = [
            (planned, amount)
            for planned in results.plan(results.suite_folder.part(table.part))
            if (entry := results.ours(planned)) and (amount := our_figure(entry[1], table.figures[0]))
        ]
        curves = alone(ours, table, ALONG[table.chart], name)
        return (curves,) if curves is not None else ()
    elif table.chart in CHARTS and cells:
        drawn = CHARTS[table.chart](subject(table.part, cells), name)
        return drawn.blocks if drawn is not None else ()
    return ()


def _table_answer(results: SuiteResults, part: Part, found: Answers) -> str:
    if results.size not in COMPARED and results.cells(part):
        if found.entries:
            return f"{figures_run([entry.cell for entry in found.entries])}."
        cells = [results.cell_of(planned) for planned in results.plan(part)]
        return f"{runs_answer(cells, 'configurations')}."
    if not _is_measured(results, part):
        asked = f"steelyard suite run {results.suite_folder.asked} --size {results.size} --part {part.name}"
        return f"Not measured: {asked}{' --data DIR' if data_formats(results.suite, part) else ''}"
    if not found.entries:
        return "The document prints no numbers for this; these are ours." if results.suite.document else ""
    ours = sum(entry.ours is not None for entry in found.entries)
    text = f"{ours} of {many(len(found.entries), 'figure')} measured"
    text += f": {found.counted()}." if ours else "."
    metrics = dict.fromkeys(entry.metric for entry in found.same_work)
    spans = [f"{word(name)} {span_of([one for one in found.same_work if one.metric == name])}" for name in metrics]
    return f"{text} Here / printed: {'; '.join(spans)}." if spans else text


def _splits(table: PrintedTable, entries: Sequence[Beside]) -> list[str]:
    """Return the values that divide a table into (a), (b) and so on; one empty value if it is not divided."""
    if not table.split:
        return [""]
    return list(dict.fromkeys(printed_setting(entry.published, table.split) for entry in entries))


def _printed(entries: Sequence[Beside], split: str, name: str, letters: Letters) -> Table:
    """Return a table as printed, and to the right of it our figures and their ratios to the printed ones."""
    table = entries[0].table
    inside = [entry for entry in entries if not split or printed_setting(entry.published, table.split) == split]
    columns = list(dict.fromkeys(_column(entry) for entry in inside))
    lines = _printed_lines(inside)
    ours = list(dict.fromkeys(_our_column(entry) for entry in inside if entry.there is not None))
    ratios = list(dict.fromkeys(_column(entry)[0] for entry in inside if entry.same_work is not None))
    rows = []
    for names, line in lines:
        at = {_column(entry): entry for entry in line}
        beside = {_our_column(entry): entry for entry in line if entry.cell is not None}
        row = [Cell(text, text) for text in names]
        row += [printed_cell(at.get(column)) for column in columns]
        row += [our_cell(beside.get(column)) for column in ours]
        same_work = {_column(entry)[0]: entry.same_work for entry in line if entry.same_work is not None}
        row += [ratio_cell(same_work.get(column), 3) for column in ratios]
        rows.append((*row, letters.cell(one for entry in line if entry.same_work for one in conditions_beside(entry))))
    conditions = letters.of_rows([row[-1] for row in rows])
    heads = [Column(_head(key), align="left") for key in table.rows]
    heads += [Column(column[0], column[1]) for column in [*columns, *ours]]
    several = len({column for column, _ in columns}) > 1
    heads += [Column(f"{SAME_WORK}: {column}" if several else SAME_WORK) for column in ratios]
    heads.append(replace(CONDITIONS, aside=True))
    notes = [NOTE if inside[0].figure == RUNS else f"{HERE} = this machine; the others as printed."]
    notes += [f"{capital(SAME_WORK)} = here / printed."] if ratios else []
    notes += interval_note(rows)
    notes += [f"Conditions of the ratios: {conditions}."] if conditions else []
    if any(instead(entry) for entry in inside):
        notes.append("at = a setting that this size has instead.")
    if any(entry.marks for entry in inside):
        notes.append("Codes at a printed figure: what the audit finds wrong with its row (steelyard explain CODE).")
    if not ratios:
        heads, rows = heads[:-1], [row[:-1] for row in rows]
    title = f"{table.title}: {split}" if split else table.title
    return Table(name, title, tuple(heads), tuple(rows), (" ".join(notes),))


def _printed_lines(entries: Sequence[Beside]) -> list[tuple[tuple[str, ...], list[Beside]]]:
    """Return the figures of each line as printed, with the names of the line.

    Rows of one name have a line each where they print the same column, with the settings that tell them apart.
    """
    lines: dict[tuple[tuple[str, ...], int], list[Beside]] = {}
    for entry in entries:
        key, place = _row_key(entry), 0
        while any(_column(other) == _column(entry) for other in lines.get((key, place), ())):
            place += 1
        lines.setdefault((key, place), []).append(entry)
    made = []
    for (key, _), line in lines.items():
        named_alike = [other[0].published for (names, _), other in lines.items() if names == key]
        apart = told_apart(line[0].published, named_alike, line[0].table)
        made.append(((f"{key[0]} ({apart})" if apart else key[0], *key[1:]), line))
    return made


def _row_key(entry: Beside) -> tuple[str, ...]:
    return tuple(printed_setting(entry.published, key) for key in entry.table.rows)


def _column(entry: Beside) -> tuple[str, str]:
    """Return the printed column of a figure: its settings or its metric, and the unit."""
    table = entry.table
    named = (
        " x ".join(printed_setting(entry.published, key) for key in table.columns)
        if table.columns
        else word(entry.metric)
    )
    if table.columns and len(table.figures) > 1:
        named = f"{named}, {word(entry.metric)}"
    return named, entry.printed.unit


def _our_column(entry: Beside) -> tuple[str, str]:
    """Return the column of our figure: all columns of the document that have the same runs beside them share it."""
    table = entry.table
    said = [
        printed_setting(entry.published, key)
        for key in table.columns
        if key not in ("accelerator", "system", "devices")
    ]
    if "devices" in table.columns:
        said.append(many((entry.there or entry.planned).get("devices"), "device"))
    if len(table.figures) > 1 or not table.columns:
        # Two printed figures may stand for one of ours: what was measured, and what was expected.
        said.append(word(entry.figure.removesuffix("_job")))
    return ", ".join([HERE, *said]), "" if entry.figure == RUNS else entry.printed.unit


# -- a table without printed rows


def _rest_sections(results: SuiteResults, answers: Sequence[Answers]) -> list[Section]:
    """Return the measured configurations that no table of the document has."""
    shown = {entry.cell.name for found in answers for entry in found.entries if entry.cell is not None}
    whole = {found.table.part for found in answers if found.table is not None and not found.entries}
    blocks = []
    for part in results.suite.part:
        table = next((one for one in results.suite.table if one.part == part.name), None)
        rest = [
            planned
            for planned in results.plan(part)
            if (cell := results.cell_of(planned)) is not None and cell.name not in shown
        ]
        if table is None or part.name in whole or not rest:
            continue
        plan = results.plan(part)
        keys = [key for key in rest[0].settings if key != "devices" and len({str(one.get(key)) for one in plan}) > 1]
        blocks.append(
            _own_table(results, rest, ["devices", *keys], replace(table, title=part.title), f"rest-{part.name}")
        )
    if not blocks:
        return []
    count = many(sum(len(block.rows) for block in blocks), "configuration")
    title = f"Also measured: {count}"
    return [Section("rest", title, "", "The document prints no figure for them.", tuple(blocks), folded=True)]


def _conditions_section(every: Sequence[str]) -> list[Section]:
    """Return the unstated settings that are conditions of every answer, so that tables need not repeat them."""
    if not every:
        return []
    told = (
        "The document does not state these settings. A ratio (same work) or a length of training (if) holds if they "
        "were the same there as here, a relation (inside) if they were the same in both of its printed rows: "
        f"{listed(every)}."
    )
    return [Section("conditions", "Conditions of every answer", blocks=(Prose((told,)),))]


def _own_table(
    results: SuiteResults, plan: Sequence[Planned], keys: Sequence[str], table: PrintedTable, name: str
) -> Table:
    """Return the figures of configurations, a column for each unit."""
    ours = [results.ours(planned) for planned in plan]
    columns = [Column(_head(key), align="left") for key in keys]
    lines = [[_setting_cell(planned, key) for key in keys] for planned in plan]
    if results.size not in COMPARED:
        columns.append(Column(HERE, align="left"))
        cells = [runs_cell(entry[0]) if entry is not None else Cell(NOT_MEASURED) for entry in ours]
        lines = [[*line, cell] for line, cell in zip(lines, cells, strict=True)]
    figures = {
        figure: [our_figure(entry[1], figure) if entry is not None else None for entry in ours]
        for figure in (table.figures if results.size in COMPARED else ())
    }
    for figure, amounts in figures.items():
        units = dict.fromkeys(amount.unit for amount in amounts if amount is not None)
        if not units and any(amount for others in figures.values() for amount in others):
            continue
        # The rates of images and of tokens are columns of their own.
        for unit in units or ("",):
            columns.append(Column(word(figure), unit))
            for line, entry, amount in zip(lines, ours, amounts, strict=True):
                if amount is not None and amount.unit != unit:
                    line.append(Cell("-"))
                else:
                    line.append(_own_cell(entry[0] if entry is not None else None, amount))
    return Table(name, table.title, tuple(columns), tuple(map(tuple, lines)), tuple(interval_note(lines)))


def _head(key: str) -> str:
    """Return the name of a setting above its column."""
    return word(NAMES.get(key, key) if key.startswith("loader.") else key.removeprefix("model."))


def _own_cell(cell: CellSummary | None, amount: Amount | None) -> Cell:
    if cell is None:
        return Cell(NOT_MEASURED)
    if amount is None:
        lost = [status.replace("_", " ") for status in cell.statuses if status != "completed"]
        return Cell(", ".join(lost) or "-")
    return amount_cell(amount, factor_of(amount.unit), tuple(record.run_id for record in cell.records))


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
    title = "The document's own figures and claims"
    return [Section("document", title, question, answer, blocks, marks, folded=True)]


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
    blocks = [Table("settings", "Settings and where they come from", columns, rows)]
    if known := results.suite.deviation:
        heads = tuple(Column(name, align="left") for name in ("parts", "about", "what differs"))
        lines = tuple((Cell(", ".join(entry.parts) or "all"), Cell(entry.about), Cell(entry.text)) for entry in known)
        blocks.append(Table("differences", "Different from the document", heads, lines))
    question = "Where do the settings come from, and what differs from the document?"
    return Section("settings", "Settings", question, answer, tuple(blocks), folded=True)


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
