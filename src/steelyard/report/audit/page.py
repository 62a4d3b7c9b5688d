"""Page for a reviewer with the audit of tables, claims and results, row by row and claim by claim."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from steelyard.audit.check import rows_meant
from steelyard.audit.shown import shown_tables
from steelyard.report.audit.claims import claims_table
from steelyard.report.page import Cell, Column, Doubt, FirstScreen, KeyFigure, Page, Prose, Section, Table
from steelyard.rules.rule import SEVERITIES
from steelyard.rules.table.settings import SETTINGS
from steelyard.terminal.claims import claim_tally, verdict_line
from steelyard.terminal.text import many
from steelyard.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Sequence

    from steelyard.audit.printed.read import TableReading
    from steelyard.audit.shown import ShownCell, ShownTable
    from steelyard.audit.subject import Audit
    from steelyard.contracts.finding import Finding
    from steelyard.report.page import Trust
    from steelyard.rules.table.row import RowTable as Rows

MAX_ROWS = 2000
"""Rows of one table on a page. Findings on all rows are listed."""
MAX_NOTE = 1000
FEW_ROWS = 10
NOTHING_FOUND = "No findings."
UNJUDGED = ("not shown",)
"""Verdicts for claims that the rows cannot decide."""
MEANING = {
    "consistent": "The figures agree with each other, as far as they can be checked. This does not prove them right.",
    "warnings": "There is something to correct or to explain before the figures are used.",
    "contradictory": "At least one figure or claim cannot be right.",
}
STATED = ("batch", "global_batch", "precision", "jobs", "dataset", "framework", "mode")
"""Settings that most comparisons need."""


def audit_page(audits: Sequence[Audit]) -> Page:
    """Return one page for all audits."""
    several = len(audits) > 1
    sections: list[Section] = []
    for place, entry in enumerate(audits, 1):
        sections += _sections(entry, f"a{place}-" if several else "", several=several)
    names = ", ".join(entry.name for entry in audits[:5]) + (", ..." if len(audits) > 5 else "")
    counts: Counter[str] = Counter(entry.verdict for entry in audits)
    each = ", ".join(f"{counts[verdict]} {verdict}" for verdict in reversed(MEANING) if counts[verdict])
    return Page(
        title=f"Audit: {names}",
        subtitle=f"{each}." if several else audits[0].about,
        sections=tuple(sections),
        made_at=datetime.now(UTC).isoformat(timespec="seconds"),
        made_by=f"steelyard {VERSION}",
        first=None if several else _first(audits[0]),
    )


def _first(entry: Audit) -> FirstScreen:
    """Return the verdict, and what it is made of."""
    counts = Counter(finding.severity for finding in entry.findings)
    figures = [KeyFigure(f"{each}s", str(counts[each]), unreliable=counts[each] > 0) for each in ("error", "warning")]
    if entry.judgements:
        held = sum(one.verdict == "holds" for one in entry.judgements)
        total = len(entry.judgements)
        figures.append(KeyFigure("claims that hold", f"{held} of {total}", unreliable=held < total))
    trust: Trust = entry.verdict
    return FirstScreen(_verdict(entry), tuple(figures), trust, (MEANING[entry.verdict],))


# -- sections


def _sections(entry: Audit, prefix: str, *, several: bool) -> list[Section]:
    tables = entry.tables
    about = f": {entry.name}" if several else ""
    # Findings that are not about a row: on runs or whole tables.
    elsewhere = tuple(finding for finding in entry.findings if not any(rows_meant(finding, table) for table in tables))
    made = []
    if several or elsewhere:
        made = [
            Section(
                f"{prefix}verdict",
                f"Verdict{about}",
                f"Is {entry.name} consistent?",
                _verdict(entry),
                (Prose((entry.about,)),),
                elsewhere,
            )
        ]
    for place, table in enumerate(tables, 1):
        made.append(_table_section(entry, table, f"{prefix}table{f'-{place}' if len(tables) > 1 else ''}", about))
    if entry.judgements:
        name = f"{prefix}claims"
        claims = claims_table(entry.judgements, f"{name}-table", "Claims, recomputed")
        made.append(
            Section(name, f"Claims{about}", "Which claims hold?", f"{claim_tally(entry.judgements)}.", (claims,))
        )
    made.append(_open_section(entry, tables, f"{prefix}open", about))
    return made


def _verdict(entry: Audit) -> str:
    """State the verdict in one sentence."""
    head, _, rest = verdict_line(entry).partition(":")
    return f"{head.capitalize()}:{rest}."


def _table_section(entry: Audit, table: Rows, name: str, about: str) -> Section:
    by_row: dict[str, list[Finding]] = defaultdict(list)
    for finding in entry.findings:
        for place in rows_meant(finding, table):
            by_row[place].append(finding)
    concerned = tuple(row for row in table.rows if row.place in by_row)
    answer = f"{len(concerned)} of {many(len(table.rows), 'row')} have findings." if concerned else NOTHING_FOUND
    listed = dict.fromkeys(finding for row in concerned for finding in by_row[row.place])
    findings = tuple(sorted(listed, key=lambda finding: list(SEVERITIES).index(finding.severity)))
    printed = shown_tables(table, entry.findings_on(table))
    blocks = []
    for number, one in enumerate(printed, 1):
        ending = f"-{number}" if len(printed) > 1 else ""
        whole = range(len(one.lines))
        if len(one.lines) > FEW_ROWS:
            # First, because they are hard to find in the long table.
            marked = [n for n in whole if any(at in by_row for at in one.places[n]) or _is_marked(one.lines[n])]
            if 0 < len(marked) <= len(one.lines) / 2:
                first = _shown_table(one, marked, by_row, f"{name}-concerned{ending}", "Rows with findings")
                blocks.append(first)
        title = one.title if table.grids else f"Rows of {one.title}"
        made = _shown_table(one, whole, by_row, f"{name}-rows{ending}", title)
        blocks.append(replace(made, notes=(*made.notes, *_notes(table))))
    if entry.reading is not None:
        blocks.append(_reading_table(entry.reading, f"{name}-headings"))
    title = f"As published: {table.name}{about}"
    return Section(name, title, "What was found in its rows?", answer, tuple(blocks), findings)


def _reading_table(reading: TableReading, name: str) -> Table:
    """Show what each heading was taken for, and what was left out."""
    several = any(each.table for each in reading.meanings)
    rows = []
    for each in reading.meanings:
        words = f"{each.meaning} ({each.note})" if each.note else each.meaning
        start = (Cell(str(each.table), each.table),) if several else ()
        rows.append((*start, Cell(each.heading, each.heading), Cell(words, words)))
    names = ("table", "heading", "read as") if several else ("heading", "read as")
    columns = tuple(Column(name, align="left") for name in names)
    more = (f"{reading.more_refused:,} more cells were not read.",) if reading.more_refused else ()
    refused = tuple(f"Not read: {problem.field}: {problem.problem}." for problem in reading.refused)
    return Table(name, "How the headings were read", columns, tuple(rows), (*refused, *more))


def _is_marked(line: Sequence[ShownCell]) -> bool:
    return any(cell.severity is not None for cell in line)


def _shown_table(
    one: ShownTable, lines: Sequence[int], by_row: dict[str, list[Finding]], name: str, title: str
) -> Table:
    """Return some lines of a table, the wrong figures marked; beside each, the codes of its findings."""
    chosen = lines[:MAX_ROWS]
    texts = [[one.lines[n][column].text for n in chosen] for column in range(len(one.headings))]
    columns = [
        Column(heading, align="right" if column and _is_numeric(texts[column]) else "left")
        for column, heading in enumerate(one.headings)
    ]
    columns.append(Column("findings", align="left"))
    made = []
    for n in chosen:
        codes = dict.fromkeys(entry.code for place in one.places[n] for entry in by_row.get(place, ()))
        beside = Cell("" if codes else "-", " ".join(codes) or None, codes=tuple(codes))
        made.append((*map(_cell, one.lines[n]), beside))
    notes = []
    if any(_is_marked(one.lines[n]) for n in chosen):
        notes.append("\u25a0 = error, \u25b2 = warning; \u2192 = what the other figures give.")
    if len(lines) > MAX_ROWS:
        notes.append(f"{len(lines) - MAX_ROWS:,} more rows are not shown.")
    return Table(name, title, tuple(columns), tuple(made), tuple(notes))


def _cell(cell: ShownCell) -> Cell:
    doubt = Doubt(cell.text, cell.recomputed, cell.severity) if cell.severity is not None else None
    return Cell(cell.marked, cell.text, doubt=doubt)


def _is_numeric(texts: Sequence[str]) -> bool:
    """Whether a column is of numbers, as printed: with units, signs and marks."""
    return all(re.match(r"[^A-Za-z]{0,3}\d|\W*$", text) for text in texts)


def _notes(table: Rows) -> tuple[str, ...]:
    """State the settings that all rows share, which a table of rows has no columns for."""
    rows = table.rows
    if table.grids or not rows:
        return ()
    same = {key: rows[0].get(key) for key in SETTINGS if len({str(row.get(key)) for row in rows}) == 1}
    text = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in same.items() if value is not None)
    return (f"All rows: {text[:MAX_NOTE]}.",) if text else ()


# -- what could not be checked


def _open_section(entry: Audit, tables: Sequence[Rows], name: str, about: str) -> Section:
    """List what could not be checked: missing settings, rows without repeats, claims without data."""
    points = [line for table in tables for line in _unstated(table, named=len(tables) > 1)]
    for one in entry.judgements:
        if one.verdict in UNJUDGED:
            points.append(f"Claim {one.claim.id}: {one.recomputed or 'no data in the rows'}.")
        points += [f"Claim {one.claim.id}: {note}." for note in one.notes]
    points = list(dict.fromkeys(points))
    listed = f"{many(len(points), 'point')}. Missing settings count as unknown, not as equal."
    answer = listed if points else "Everything was checked."
    blocks: tuple[Any, ...] = (Prose(tuple(points)),) if points else ()
    return Section(name, f"Not checked{about}", "What could not be checked?", answer, blocks)


def _unstated(table: Rows, *, named: bool) -> list[str]:
    rows = table.rows
    start = f"{table.name}: " if named else ""
    points = []
    for key in STATED:
        missing = sum(row.get(key) is None for row in rows)
        if missing and not (key == "global_batch" and all(row.get("batch") is not None for row in rows)):
            words = "No row states" if missing == len(rows) else f"{missing} of {len(rows)} rows do not state"
            points.append(f"{start}{words} {key.replace('_', ' ')}.")
    alone = [row for row in rows if row.figures and not any(len(amount.jobs) > 1 for amount in row.figures.values())]
    if alone and all(row.get("jobs") is None for row in alone):
        points.append(f"{start}{len(alone)} of {len(rows)} rows have no repeats: their spread is unknown.")
    return points
