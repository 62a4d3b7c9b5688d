"""The audit of tables, claims and results as a page for a reviewer: does it hold, row by row and claim by claim.

Knows words and columns; judges nothing.
"""

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
"""Rows of one table on a page; findings on all of them are told anyway."""
MAX_FIGURES = 8
"""Figures of a row that have columns of their own; those that most rows have."""
MAX_CELL, MAX_NOTE = 200, 1000
FEW_ROWS = 10
NOTHING_FOUND = "No row has a finding."
UNJUDGED = ("not shown",)
"""Verdicts that say that something cannot be told, and not that it is wrong."""
STATED = ("batch_per_device", "global_batch", "precision", "jobs", "dataset", "framework", "phase")
"""Settings without which most comparisons cannot be judged."""


def audit_page(audits: Sequence[Audit]) -> Page:
    """One page for everything that was judged."""
    several = len(audits) > 1
    sections: list[Section] = []
    for place, entry in enumerate(audits, 1):
        sections += _sections(entry, f"a{place}-" if several else "", several=several)
    held = sum(entry.passes for entry in audits)
    names = ", ".join(entry.name for entry in audits[:5]) + (", ..." if len(audits) > 5 else "")
    subtitle = f"{held} of {len(audits)} hold." if several else _verdict(audits[0])
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
    # Findings on no row that is shown: of runs, of whole tables.
    elsewhere = tuple(found for found in entry.findings if not any(rows_meant(found, table) for table in tables))
    made = [
        Section(
            f"{prefix}verdict", f"Does it hold{about}?", f"Does {entry.name} hold?", _verdict(entry),
            (Prose((entry.about,)),), elsewhere,
        )
    ]  # fmt: skip
    for place, table in enumerate(tables, 1):
        made.append(_table_section(entry, table, f"{prefix}table{f'-{place}' if len(tables) > 1 else ''}", about))
    if entry.judgements:
        name = f"{prefix}claims"
        claims = claims_table(entry.judgements, f"{name}-table", "Claims, each worked out again")
        made.append(
            Section(name, f"Claims{about}", "Which claims hold?", f"{claim_tally(entry.judgements)}.", (claims,))
        )
    made.append(_open_section(entry, tables, f"{prefix}open", about))
    return made


def _verdict(entry: Audit) -> str:
    """In one or two sentences, the gravest first."""
    blocking = sorted({found.code for found in entry.findings if found.severity == "error"})
    wrong = [one for one in entry.judgements if one.verdict != "holds" and one.verdict not in UNJUDGED]
    open_ = sum(one.verdict in UNJUDGED for one in entry.judgements)
    if entry.passes:
        told = f" {claim_tally(entry.judgements)}." if entry.judgements else ""
        return f"Yes, as far as its figures tell: nothing blocks.{told} {_counts(entry.findings)}"
    said = []
    if blocking:
        said.append(f"{', '.join(blocking)} block{'s' * (len(blocking) == 1)}")
    if wrong:
        said.append(f"{many(len(wrong), 'claim')} of {len(entry.judgements)} do{'es' * (len(wrong) == 1)} not hold")
    if open_:
        said.append(f"{many(open_, 'claim')} cannot be shown by the rows")
    start = "No" if blocking or wrong else "Not shown"
    return f"{start}: {'; '.join(said)}. {_counts(entry.findings)}"


def _counts(findings: Sequence[Finding]) -> str:
    return f"Findings on rows: {tally(findings).partition(';')[0]}."


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
        # Those that a reader looks for; in the long table they are hard to see.
        shown.insert(0, _rows_table(concerned, by_row, f"{name}-concerned", "Rows with findings"))
    return Section(name, f"As published: {table.name}{about}", "What do its rows say?", answer, tuple(shown), findings)


def _rows_table(every: Sequence[Row], by_row: dict[str, list[Finding]], name: str, title: str) -> Table:
    rows = every[:MAX_ROWS]
    keys = [key for key in SETTINGS if len({str(row.get(key)) for row in rows}) > 1]
    counts: dict[str, int] = defaultdict(int)
    for row in rows:
        for metric in row.figures:
            counts[metric] += 1
    metrics = sorted(counts, key=lambda metric: (-counts[metric], list(counts).index(metric)))[:MAX_FIGURES]
    columns = [Column("row", align="left"), Column("what was found", align="left")]
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
    # As printed; a measured figure has its interval.
    unit = f" {found.unit}" if found.unit not in ("", "1") else ""
    # Figures are kept in base units, and shown in the one that they name.
    factor = (unit_of(found.unit) or ("", 1.0))[1]
    text = found.text or number(found.value / factor)
    if not found.text and found.low < found.high:
        text += f" [{number(found.low / factor, 4)}, {number(found.high / factor, 4)}]"
    return Cell(f"{text}{unit}", found.value, found.low, found.high)


def _notes(rows: Sequence[Row], total: int, keys: Sequence[str], counts: dict[str, int]) -> tuple[str, ...]:
    notes = []
    shared = {key: rows[0].get(key) for key in SETTINGS if key not in keys} if rows else {}
    told = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in shared.items() if value is not None)
    if told:
        notes.append(f"All rows: {told[:MAX_NOTE]}.")
    if len(counts) > MAX_FIGURES:
        notes.append(f"{len(counts) - MAX_FIGURES} more kinds of figures are in the table's file.")
    if total > len(rows):
        notes.append(f"{total - len(rows):,} more rows are not shown.")
    return tuple(notes)


# -- what could not be judged


def _open_section(entry: Audit, tables: Sequence[Rows], name: str, about: str) -> Section:
    """What the rows leave open: settings that are not stated, rows without repeats, claims that nothing shows."""
    said = [line for table in tables for line in _unstated(table, named=len(tables) > 1)]
    for one in entry.judgements:
        if one.verdict in UNJUDGED:
            said.append(f"Claim {one.claim.id}: {one.recomputed or 'nothing in the rows tells'}.")
        said += [f"Claim {one.claim.id}: {note}." for note in one.notes]
    answer = (
        "What is not stated is unknown, and never taken for equal." if said else "Nothing was left open by the rows."
    )
    blocks: tuple[Any, ...] = (Prose(tuple(dict.fromkeys(said))),) if said else ()
    return Section(name, f"What could not be judged{about}", "What do the figures leave open?", answer, blocks)


def _unstated(table: Rows, *, named: bool) -> list[str]:
    rows = table.rows
    start = f"{table.name}: " if named else ""
    said = []
    for key in STATED:
        missing = sum(row.get(key) is None for row in rows)
        if missing and not (key == "global_batch" and all(row.get("batch_per_device") is not None for row in rows)):
            words = "No row states" if missing == len(rows) else f"{missing} of {len(rows)} rows do not state"
            said.append(f"{start}{words} {key.replace('_', ' ')}.")
    alone = [row for row in rows if row.figures and not any(len(amount.jobs) > 1 for amount in row.figures.values())]
    if alone and all(row.get("jobs") is None for row in alone):
        said.append(
            f"{start}{len(alone)} of {len(rows)} rows have one figure and no repeats: nothing tells their spread."
        )
    return said
