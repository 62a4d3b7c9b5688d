"""Audit a table, a claims file, a built-in document, or steelyard's own results."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from steelyard.analysis.rows import row_of
from steelyard.analysis.summary import summarise
from steelyard.audit import documents
from steelyard.audit.check import check_table
from steelyard.audit.claims import made_claims, parse_claims
from steelyard.audit.judge import judge
from steelyard.audit.printed.read import TableReading
from steelyard.audit.reading import STANDARD_INPUT, read_any
from steelyard.audit.sentences.read import judge_sentences
from steelyard.audit.table import parse_table
from steelyard.errors import InputError, Problem, nearest
from steelyard.inputs.validate import MAX_SPEC_BYTES, parse_toml, read_bounded
from steelyard.results.store import RECORD_FILE, ResultFolder, read_record
from steelyard.rules.rule import check
from steelyard.rules.table.row import RowTable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from steelyard.audit.judge import Judgement
    from steelyard.contracts.finding import Finding
    from steelyard.contracts.record import RunRecord
    from steelyard.rules.table.row import Platform


MAX_ENTRIES = 1000
"""Maximum number of files searched for a hint."""
MAX_CHECKED = 2000
"""Rows of a table that the rules check: they compare rows with each other, so more would take minutes."""

Verdict = Literal["consistent", "warnings", "contradictory"]
UNSETTLED = ("not shown", "superlinear", "outlier")
"""Verdicts on claims that the rows neither confirm nor contradict."""


@dataclass(frozen=True)
class Audit:
    """The findings and judgements of one audited subject."""

    name: str
    about: str
    """A description in one line."""
    findings: tuple[Finding, ...]
    judgements: tuple[Judgement, ...] = ()
    tables: tuple[RowTable, ...] = ()
    """The rows that were checked: published rows, or the configurations of studies."""
    reading: TableReading | None = None
    """What was understood of a table as printed; None for other subjects."""
    unchecked: int = 0
    """Rows that no rule has seen, because the table has more than `MAX_CHECKED`."""

    @property
    def verdict(self) -> Verdict:
        """Return whether the figures and claims are consistent; notes do not count."""
        severities = {finding.severity for finding in self.findings}
        verdicts = {entry.verdict for entry in self.judgements} - {"holds"}
        if "error" in severities or verdicts - {*UNSETTLED}:
            return "contradictory"
        return "warnings" if "warning" in severities or verdicts else "consistent"

    def findings_on(self, table: RowTable) -> tuple[Finding, ...]:
        """Return the findings on one of the tables; with several, their places begin with its name."""
        several = len(self.tables) > 1
        return tuple(finding for finding in self.findings if not several or finding.place.startswith(f"{table.name}, "))


def audit(name: str, folder: ResultFolder, platforms: tuple[Platform, ...] = (), maps: tuple[str, ...] = ()) -> Audit:
    """Audit a file, standard input (`-`), a result folder, a built-in document, a study or a run.

    `maps` are meanings of headings, such as `Speed=throughput[images/s]`, for a table as printed.
    """
    if name == STANDARD_INPUT:
        return _audit_table(read_any(name, platforms, maps), "standard input")
    path = Path(name)
    if path.is_dir():
        return _audit_folder(path)
    if path.exists():
        return _audit_file(path, platforms, maps)
    if name in documents.names():
        return audit_reference(name)
    if name in folder.studies():
        return _audit_records(name, folder.records(name))
    runs = folder.find(name)
    if runs:
        return _audit_records(name, [folder.read(run) for run in runs])
    known = [*documents.names(), *folder.studies()]
    near = nearest(name, known)
    raise InputError(
        f"{name} is not a file, a result folder, a study or run in {folder.path}, or a built-in document; "
        f"built in: {', '.join(documents.names())}",
        next_step=f"steelyard audit {near}" if near else "steelyard audit --reference",
    )


def with_sentences(entry: Audit, sentences: Sequence[str]) -> Audit:
    """Add claims that are written as sentences about the audited table."""
    if len(entry.tables) != 1:
        names = ", ".join(table.name for table in entry.tables) or "none"
        problem = Problem("--claim", f"{entry.name} has {len(entry.tables)} tables", f"one of them: {names}")
        raise InputError("a claim needs one table", problems=(problem,))
    return replace(entry, judgements=(*entry.judgements, *judge_sentences(sentences, entry.tables[0])))


def audit_reference(name: str) -> Audit:
    """Audit the rows and the claims of a document in the built-in catalogue."""
    table = documents.load(name)
    claims = parse_claims(documents.claims_text(), "the built-in claims")
    about = f"{len(table.rows)} rows; {documents.provenance(name).cited()}"
    return Audit(name, about, check_table(table), tuple(judge(claims, name)), (table,))


def _audit_file(path: Path, platforms: tuple[Platform, ...], maps: tuple[str, ...]) -> Audit:
    if path.suffix == ".json":
        return _audit_records(str(path), [read_record(path.resolve())])
    if path.suffix != ".toml":
        return _audit_table(read_any(str(path), platforms, maps), str(path))
    text = read_bounded(path, MAX_SPEC_BYTES)
    data = parse_toml(text, str(path))
    if "claim" not in data:
        return _audit_table(TableReading(parse_table(text.decode("utf-8"), path.name, platforms)), str(path))
    claims = made_claims(data, str(path), path.parent)
    tables = {name: replace(table, platforms=(*platforms, *table.platforms)) for name, table in claims.tables.items()}
    claims = replace(claims, tables=tables)
    findings: list[Finding] = []
    for name, table in tables.items():
        own = check_table(replace(table, rows=table.rows[:MAX_CHECKED]))
        several = len(claims.tables) > 1
        findings += [replace(entry, place=f"{name}, {entry.place}" if several else entry.place) for entry in own]
    rows = sum(len(table.rows) for table in claims.tables.values())
    about = f"{rows} rows in {', '.join(claims.tables)}" + (f"; {claims.title}" if claims.title else "")
    unchecked = sum(max(0, len(table.rows) - MAX_CHECKED) for table in tables.values())
    about += f"; the rules did not check {unchecked:,} rows after the first {MAX_CHECKED:,}" if unchecked else ""
    return Audit(str(path), about, tuple(findings), tuple(judge(claims)), tuple(tables.values()), unchecked=unchecked)


def _audit_table(reading: TableReading, name: str) -> Audit:
    table = reading.table
    unchecked = max(0, len(table.rows) - MAX_CHECKED)
    about = f"{len(table.rows):,} rows" + (f"; only the first {MAX_CHECKED:,} were checked" if unchecked else "")
    findings = check_table(replace(table, rows=table.rows[:MAX_CHECKED]))
    known = reading if reading.meanings else None
    return Audit(name, about, findings, tables=(table,), reading=known, unchecked=unchecked)


def _audit_folder(path: Path) -> Audit:
    if (path / RECORD_FILE).is_file():
        return _audit_records(str(path), [read_record(path.resolve() / RECORD_FILE)])
    results = ResultFolder(path)
    if not results.studies():
        files = sorted(
            entry
            for entry in islice(path.iterdir(), MAX_ENTRIES)
            if entry.suffix in (".csv", ".toml", ".md", ".tsv", ".tex", ".html")
        )
        step = f"steelyard audit {files[0]}" if files else "steelyard show"
        raise InputError(f"{path} contains no steelyard results", next_step=step)
    return _audit_records(str(path), results.records())


def _audit_records(name: str, records: Iterable[RunRecord]) -> Audit:
    """Check the runs with the run rules, then their configurations with the table rules."""
    by_text: dict[tuple[str, str, str], tuple[Finding, list[str]]] = {}
    every = list(records)
    for record in every:
        for finding in check("run", record):
            key = (record.spec.study, finding.code, finding.message)
            by_text.setdefault(key, (finding, []))[1].append(f"{record.spec.study}/{record.run_id}")
    # Report a finding that several runs share once, at the first run.
    findings = [
        replace(finding, place=runs[0] if len(runs) == 1 else f"{runs[0]} and {len(runs) - 1} more")
        for finding, runs in by_text.values()
    ]
    by_study: dict[str, list[RunRecord]] = {}
    for record in every:
        by_study.setdefault(record.spec.study, []).append(record)
    tables = [RowTable(study, tuple(row_of(cell) for cell in summarise(its))) for study, its in by_study.items()]
    findings += [finding for table in tables for finding in check_table(table)]
    runs, studies = len(every), len(by_study)
    about = f"{runs} run{'s' * (runs != 1)} of {studies} {'study' if studies == 1 else 'studies'}"
    return Audit(name, about, tuple(findings), tables=tuple(tables))
