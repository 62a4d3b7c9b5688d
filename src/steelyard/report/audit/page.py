"""Page for a reviewer with the audit of tables, claims and results, row by row and claim by claim."""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from steelyard.audit.check import rows_meant
from steelyard.report.audit.claims import claims_table
from steelyard.report.page import Cell, Column, Page, Prose, Section, Table
from steelyard.rules.rule import SEVERITIES
from steelyard.rules.table.settings import SETTINGS
from steelyard.rules.table.units import unit_of
from steelyard.terminal.claims import claim_tally
from steelyard.terminal.findings import rule_name, tally
from steelyard.terminal.text import many, number
from steelyard.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Sequence

    from steelyard.audit.subject import Audit
    from steelyard.contracts.record import Finding
    from steelyard.rules.table.row import Row
    from steelyard.rules.table.row import RowTable as Rows

MAX_ROWS = 2000
"""Rows of one table on a page. Findings on all rows are listed."""
MAX_FIGURES = 8
"""Metrics with their own columns: those that most rows have."""
MAX_CELL, MAX_NOTE = 200, 1000
FEW_ROWS = 10
NOTHING_FOUND = "No findings."
UNJUDGED = ("not shown",)
"""Verdicts for claims that cannot be checked, as opposed to wrong ones."""
STATED = ("batch_per_device", "global_batch", "precision", "jobs", "dataset", "framework", "phase")
"""Settings that most comparisons need."""


def audit_page(audits: Sequence[Audit]) -> Page:
    """Return one page for all audits."""
    several = len(audits) > 1
    sections: list[Section] = []
    for place, entry in enumerate(audits, 1):
        sections += _sections(entry, f"a{place}-" if several else "", several=several)
    passed = sum(entry.passes for entry in audits)
    names = ", ".join(entry.name for entry in audits[:5]) + (", ..." if len(audits) > 5 else "")
    subtitle = f"{passed} of {len(audits)} pass." if several else _verdict(audits[0])
    return Page(
        title=f"Audit: {names}",
        subtitle=subtitle,
        sections=tuple(sections),
        made_at=datetime.now(UTC).isoformat(timespec="seconds"),
        made_by=f"steelyard {VERSION}",
    )


# -- sections


def _sections(entry: Audit, prefix: str, *, several: bool) -> list[Section]:
    tables = entry.tables
    about = f": {entry.name}" if several else ""
    # Findings that are not about a row: on runs or whole tables.
    elsewhere = tuple(found for found in entry.findings if not any(rows_meant(found, table) for table in tables))
    made = [
        Section(
            f"{prefix}verdict", f"Verdict{about}", f"Does {entry.name} pass the audit?", _verdict(entry),
            (Prose((entry.about,)),), elsewhere,
        )
    ]  # fmt: skip
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
    """State the verdict in one or two sentences, errors first."""
    errors = sorted({found.code for found in entry.findings if found.severity == "error"})
    wrong = [one for one in entry.judgements if one.verdict != "holds" and one.verdict not in UNJUDGED]
    open_ = sum(one.verdict in UNJUDGED for one in entry.judgements)
    if entry.passes:
        claims = f" {claim_tally(entry.judgements)}." if entry.judgements else ""
        return f"Yes: no errors.{claims} {_counts(entry.findings)}"
    problems = []
    if errors:
        problems.append(f"error{'s' * (len(errors) > 1)} {', '.join(errors)}")
    if wrong:
        verb = "does" if len(wrong) == 1 else "do"
        problems.append(f"{len(wrong)} of {many(len(entry.judgements), 'claim')} {verb} not hold")
    if open_:
        problems.append(f"{many(open_, 'claim')} cannot be checked with the rows")
    start = "No" if errors or wrong else "Unclear"
    return f"{start}: {'; '.join(problems)}. {_counts(entry.findings)}"


def _counts(findings: Sequence[Finding]) -> str:
    return f"Findings: {tally(findings).partition(';')[0]}." if findings else "No findings."


def _table_section(entry: Audit, table: Rows, name: str, about: str) -> Section:
    by_row: dict[str, list[Finding]] = defaultdict(list)
    for found in entry.findings:
        for place in rows_meant(found, table):
            by_row[place].append(found)
    concerned = tuple(row for row in table.rows if row.place in by_row)
    answer = f"{len(concerned)} of {many(len(table.rows), 'row')} have findings." if concerned else NOTHING_FOUND
    listed = dict.fromkeys(found for row in concerned for found in by_row[row.place])
    findings = tuple(sorted(listed, key=lambda found: list(SEVERITIES).index(found.severity)))
    shown = [_rows_table(table.rows, by_row, f"{name}-rows", f"Rows of {table.name}")]
    if concerned and len(table.rows) > FEW_ROWS:
        # First, because they are hard to find in the long table.
        shown.insert(0, _rows_table(concerned, by_row, f"{name}-concerned", "Rows with findings"))
    title = f"As published: {table.name}{about}"
    return Section(name, title, "What was found in its rows?", answer, tuple(shown), findings)


def _rows_table(every: Sequence[Row], by_row: dict[str, list[Finding]], name: str, title: str) -> Table:
    rows = every[:MAX_ROWS]
    keys = [key for key in SETTINGS if len({str(row.get(key)) for row in rows}) > 1]
    counts: dict[str, int] = defaultdict(int)
    for row in rows:
        for metric in row.figures:
            counts[metric] += 1
    metrics = sorted(counts, key=lambda metric: (-counts[metric], list(counts).index(metric)))[:MAX_FIGURES]
    columns = [Column("row", align="left"), Column("findings", align="left")]
    columns += [Column(metric.replace("_", " ")) for metric in metrics]
    columns += [Column(key.replace("_", " "), align="left") for key in keys]
    made = []
    for row in rows:
        codes = tuple(dict.fromkeys(entry.code for entry in by_row.get(row.place, [])))
        words = "; ".join(rule_name(code) for code in codes) or "-"
        beside = [Cell(row.place, row.place), Cell(words, words if codes else None, codes=codes)]
        made.append((*beside, *(_figure(row, metric) for metric in metrics), *(_setting(row.get(key)) for key in keys)))
    return Table(name, title, tuple(columns), tuple(made), _notes(rows, len(every), keys, counts))


def _setting(value: object) -> Cell:
    if value is None:
        return Cell("not stated")
    text = str(value)
    return Cell(
        text if len(text) <= MAX_CELL else f"{text[:MAX_CELL]} ...", value if isinstance(value, int | float) else text
    )


def _figure(row: Row, metric: str) -> Cell:
    found = row.figures.get(metric)
    if found is None:
        return Cell("-" if row.status == "completed" else row.status.replace("_", " "))
    # As printed; measured values have an interval.
    unit = f" {found.unit}" if found.unit not in ("", "1") else ""
    # Values are stored in base units and shown in their own unit.
    factor = (unit_of(found.unit) or ("", 1.0))[1]
    text = found.text or number(found.value / factor)
    if not found.text and found.low < found.high:
        text += f" [{number(found.low / factor, 4)}, {number(found.high / factor, 4)}]"
    return Cell(f"{text}{unit}", found.value, found.low, found.high)


def _notes(rows: Sequence[Row], total: int, keys: Sequence[str], counts: dict[str, int]) -> tuple[str, ...]:
    notes = []
    shared = {key: rows[0].get(key) for key in SETTINGS if key not in keys} if rows else {}
    text = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in shared.items() if value is not None)
    if text:
        notes.append(f"All rows: {text[:MAX_NOTE]}.")
    if len(counts) > MAX_FIGURES:
        notes.append(f"{len(counts) - MAX_FIGURES} more metrics are in the file of the table.")
    if total > len(rows):
        notes.append(f"{total - len(rows):,} more rows are not shown.")
    return tuple(notes)


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
        if missing and not (key == "global_batch" and all(row.get("batch_per_device") is not None for row in rows)):
            words = "No row states" if missing == len(rows) else f"{missing} of {len(rows)} rows do not state"
            points.append(f"{start}{words} {key.replace('_', ' ')}.")
    alone = [row for row in rows if row.figures and not any(len(amount.jobs) > 1 for amount in row.figures.values())]
    if alone and all(row.get("jobs") is None for row in alone):
        points.append(f"{start}{len(alone)} of {len(rows)} rows have no repeats: their spread is unknown.")
    return points
