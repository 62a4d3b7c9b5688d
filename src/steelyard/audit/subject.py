"""What an audit can be asked of, and everything found there: tables, claims, built-in documents, our own results.

Knows how to tell these apart and which rules each goes through; shows nothing.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from steelyard.analysis.rows import row_of
from steelyard.analysis.summary import summarise
from steelyard.audit import documents
from steelyard.audit.check import check_table
from steelyard.audit.claims import made_claims, parse_claims
from steelyard.audit.judge import judge
from steelyard.audit.table import parse_table, read_table
from steelyard.errors import InputError
from steelyard.inputs.validate import MAX_SPEC_BYTES, parse_toml, read_bounded
from steelyard.results.store import RECORD_FILE, ResultFolder, read_record
from steelyard.rules.rule import check
from steelyard.rules.table.row import RowTable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from steelyard.audit.judge import Judgement
    from steelyard.contracts.record import Finding, RunRecord
    from steelyard.rules.table.row import Platform


MAX_ENTRIES = 1000
"""Files of a folder that are looked at for a hint."""


@dataclass(frozen=True)
class Audit:
    """What was found in one thing."""

    name: str
    about: str
    """What it is, in a line."""
    findings: tuple[Finding, ...]
    judgements: tuple[Judgement, ...] = ()
    tables: tuple[RowTable, ...] = ()
    """The rows that were judged: as published, or the cells of studies."""

    @property
    def passes(self) -> bool:
        """Whether nothing blocks and every claim holds."""
        blocked = any(finding.severity == "error" for finding in self.findings)
        return not blocked and all(entry.verdict == "holds" for entry in self.judgements)


def audit(word: str, folder: ResultFolder, platforms: tuple[Platform, ...] = ()) -> Audit:
    """Whatever a word means: a file, a folder of results, a built-in document, a study or a run."""
    path = Path(word)
    if path.is_dir():
        return _audit_folder(path)
    if path.exists():
        return _audit_file(path, platforms)
    if word in documents.names():
        return audit_reference(word)
    if word in folder.studies():
        return _audit_records(word, folder.records(word))
    runs = folder.find(word)
    if runs:
        return _audit_records(word, [folder.read(run) for run in runs])
    known = [*documents.names(), *folder.studies()]
    near = difflib.get_close_matches(word, known, n=1)
    raise InputError(
        f"{word!r} is no file, no result folder, no study in {folder.path} and no built-in document; "
        f"built in: {', '.join(documents.names())}",
        next_step=f"steelyard audit {near[0]}" if near else "steelyard audit --reference",
    )


def audit_reference(name: str) -> Audit:
    """A document of the built-in catalogue: its rows, then its claims."""
    table = documents.load(name)
    claims = parse_claims(documents.claims_text(), "the built-in claims")
    about = f"{len(table.rows)} rows; {documents.provenance(name).cited()}"
    return Audit(name, about, check_table(table), tuple(judge(claims, name)), (table,))


def _audit_file(path: Path, platforms: tuple[Platform, ...]) -> Audit:
    if path.suffix == ".json":
        return _audit_records(str(path), [read_record(path)])
    if path.suffix != ".toml":
        return _audit_table(read_table(path, platforms), path)
    text = read_bounded(path, MAX_SPEC_BYTES)
    data = parse_toml(text, str(path))
    if "claim" not in data:
        return _audit_table(parse_table(text.decode("utf-8"), path.name, platforms), path)
    claims = made_claims(data, str(path), path.parent)
    tables = {name: replace(table, platforms=(*platforms, *table.platforms)) for name, table in claims.tables.items()}
    claims = replace(claims, tables=tables)
    findings: list[Finding] = []
    for name, table in tables.items():
        found = check_table(table)
        several = len(claims.tables) > 1
        findings += [replace(entry, place=f"{name}, {entry.place}" if several else entry.place) for entry in found]
    rows = sum(len(table.rows) for table in claims.tables.values())
    about = f"{rows} rows in {', '.join(claims.tables)}" + (f"; {claims.title}" if claims.title else "")
    return Audit(str(path), about, tuple(findings), tuple(judge(claims)), tuple(tables.values()))


def _audit_table(table: RowTable, path: Path) -> Audit:
    return Audit(str(path), f"{len(table.rows)} rows", check_table(table), tables=(table,))


def _audit_folder(path: Path) -> Audit:
    if (path / RECORD_FILE).is_file():
        return _audit_records(str(path), [read_record(path / RECORD_FILE)])
    results = ResultFolder(path)
    if not results.studies():
        files = sorted(entry for entry in islice(path.iterdir(), MAX_ENTRIES) if entry.suffix in (".csv", ".toml"))
        step = f"steelyard audit {files[0]}" if files else "steelyard show"
        raise InputError(f"{path} holds no results of our own", next_step=step)
    return _audit_records(str(path), results.records())


def _audit_records(name: str, records: Iterable[RunRecord]) -> Audit:
    """The findings of the runs, then those of the rules on tables on the cells that they make up."""
    found: dict[tuple[str, str, str], tuple[Finding, list[str]]] = {}
    every = list(records)
    for record in every:
        for finding in check("run", record):
            key = (record.spec.study, finding.code, finding.message)
            found.setdefault(key, (finding, []))[1].append(f"{record.spec.study}/{record.run_id}")
    # A finding that several runs share is told once, at the first of them.
    findings = [
        replace(finding, place=runs[0] if len(runs) == 1 else f"{runs[0]} and {len(runs) - 1} more")
        for finding, runs in found.values()
    ]
    by_study: dict[str, list[RunRecord]] = {}
    for record in every:
        by_study.setdefault(record.spec.study, []).append(record)
    tables = [RowTable(study, tuple(row_of(cell) for cell in summarise(its))) for study, its in by_study.items()]
    findings += [found for table in tables for found in check_table(table)]
    runs, studies = len(every), len(by_study)
    about = f"{runs} run{'s' * (runs != 1)} of {studies} {'study' if studies == 1 else 'studies'}"
    return Audit(name, about, tuple(findings), tables=tuple(tables))
