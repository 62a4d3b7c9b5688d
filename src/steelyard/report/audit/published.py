"""Rows of a built-in document with their findings, as table cells.

Values are shown as printed. A ratio of two rows is shown with its verdict, unless the pair or one of its rows has an
error.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

from steelyard.analysis.compare import compare
from steelyard.audit import documents
from steelyard.audit.beside import REFERENCE, rows_beside
from steelyard.audit.check import check_table, rows_meant
from steelyard.audit.claims import PairClaim
from steelyard.audit.energy import device_power
from steelyard.audit.recompute import digits, unit_factor
from steelyard.audit.selecting import pairs_of
from steelyard.audit.subject import audit_reference
from steelyard.report.charts.style import error_codes
from steelyard.report.page import Cell
from steelyard.results.store import ResultFolder
from steelyard.rules.claim import Span
from steelyard.rules.table.relations import observed, solve, variable
from steelyard.rules.table.row import RowTable
from steelyard.rules.table.settings import SETTINGS
from steelyard.terminal.text import number

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from steelyard.analysis.compare import Compared, Comparison
    from steelyard.audit.judge import Judgement
    from steelyard.audit.subject import Audit
    from steelyard.contracts.finding import Finding
    from steelyard.rules.table.row import Row

BLOCKED: Final = "not comparable"
BETWEEN = "SY3"
"""Prefix of the rules on scaling. They are about a row and its base, and do not apply to other pairs of the row."""
VERDICTS = {"comparable": "yes", "comparable with warnings": "warning", BLOCKED: "no"}
"""Short forms of the verdicts; the codes of the warnings and errors are next to them."""
WORKED_UNITS = {"efficiency": "%", "power per device": "W"}
PER_ENERGY = "items_per_energy"


@dataclass(frozen=True)
class RowGroup:
    """Rows that belong together, each compared with the first of them."""

    label: str
    rows: tuple[Row, ...]
    compared: dict[str, Comparison]
    """Comparisons by place, without the base; empty if the rows are not compared."""


class JudgedDocument:
    """One document of the catalogue, judged."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.table = documents.load(name)
        self.provenance = documents.provenance(name)

    @cached_property
    def audit(self) -> Audit:
        """Findings on its rows, and its judged claims."""
        return audit_reference(self.name)

    def select(self, wanted: str) -> list[Row]:
        """Select rows by their settings, as in `steelyard compare`; built-in rows need no result folder."""
        return rows_beside(ResultFolder(Path()), selection(self.name, wanted))

    def findings_on(self, rows: Iterable[Row]) -> tuple[Finding, ...]:
        """Return the distinct findings on these rows."""
        return tuple(dict.fromkeys(finding for row in rows for finding in self._by_row.get(row.place, ())))

    def codes_on(self, row: Row) -> tuple[str, ...]:
        """Return the codes of the errors and warnings on a row."""
        return tuple(dict.fromkeys(entry.code for entry in self.findings_on([row]) if entry.severity != "note"))

    def blocking(self, row: Row) -> tuple[Finding, ...]:
        """Return the errors that rule out every ratio with this row."""
        findings = self.findings_on([row])
        return tuple(entry for entry in findings if entry.severity == "error" and not entry.code.startswith(BETWEEN))

    def compare(self, a: Sequence[Row], b: Sequence[Row], factor: str, metric: str) -> Compared:
        """Compare B with its base A, by the rules on pairs and the findings on the rows."""
        made = compare(a, b, factor=factor, metric=metric)
        return replace(made, comparisons=tuple(map(self._with_own_findings, made.comparisons)))

    def _with_own_findings(self, entry: Comparison) -> Comparison:
        both = check_table(RowTable(self.table.name, (entry.a, entry.b), self.table.platforms))
        between = (finding for finding in both if finding.code.startswith(BETWEEN))
        every = (*self.blocking(entry.a), *self.blocking(entry.b), *between, *entry.findings)
        findings = tuple(replace(each, place=each.place.removeprefix(f"{self.name}, ")) for each in every)
        if error_codes(findings):
            return replace(entry, verdict=BLOCKED, findings=findings, ratios=())
        return replace(entry, findings=findings)

    def judged(self, row: Row, other: Row) -> list[Judgement]:
        """Return the claims about exactly these two rows, in either order."""
        return self._by_pair.get(frozenset((row.place, other.place)), [])

    def power_limit_w(self, rows: Iterable[Row]) -> float | None:
        """Return the power limit of one device, if all machines of the rows have the same."""
        limits = {platform.power_limit_w for row in rows if (platform := self.table.platform(row)) is not None}
        return limits.pop() if len(limits) == 1 else None

    @cached_property
    def _by_row(self) -> dict[str, list[Finding]]:
        """Findings by place of a row, as in a selection."""
        by_place: dict[str, list[Finding]] = {}
        for entry in self.audit.findings:
            for place in rows_meant(entry, self.table):
                by_place.setdefault(f"{self.name}, {place}", []).append(entry)
        return by_place

    @cached_property
    def _by_pair(self) -> dict[frozenset[str], list[Judgement]]:
        by_pair: dict[frozenset[str], list[Judgement]] = {}
        for entry in self.audit.judgements:
            if isinstance(entry.claim, PairClaim) and not entry.claim.over:
                ((a, b),), _ = pairs_of(entry.claim, self.table)
                by_pair.setdefault(frozenset(f"{self.name}, {row.place}" for row in (a, b)), []).append(entry)
        return by_pair


def selection(name: str, wanted: str) -> str:
    """Return the selection of rows of a document for the command line."""
    return f"{REFERENCE}:{name}:{wanted}" if wanted else f"{REFERENCE}:{name}"


# -- cells


def row_cell(document: JudgedDocument, group: RowGroup, row: Row, column: str, figure: str) -> Cell:
    """Return the cell of a row: a setting, a printed value or a derived one. Only `figure` has codes."""
    entry = group.compared.get(row.place)
    match column:
        case "comparable":
            return verdict_cell(entry)
        case "ratio to base":
            return ratio_cell(entry, "job")
        case "efficiency":
            return ratio_cell(entry, "device", percent=True)
        case "work per energy" | "matches":
            return _per_energy_cell(row, column)
        case "power per device":
            power = device_power(row)
            codes = document.codes_on(row)
            return Cell("unknown") if power is None else Cell(number(power.middle, 4), power.middle, codes=codes)
        case "table":
            return Cell(row.table, row.table)
    if column in SETTINGS:
        value = row.get(column)
        whole = isinstance(value, int) and not isinstance(value, bool)
        return Cell("not stated") if value is None else Cell(f"{value:,}" if whole else str(value), value)
    if column not in row.figures:
        return Cell("-")
    amount = row.figures[column]
    codes = document.codes_on(row) if column == figure else ()
    return Cell(digits(amount), amount.value / unit_factor(amount), codes=codes)


def _per_energy_cell(row: Row, column: str) -> Cell:
    """Return the work per energy that follows from the other values of a row, or whether the printed value matches."""
    metric = next((name for name in row.figures if variable(row, name) == PER_ENERGY), "")
    others = {name: bounds for name, bounds in observed(row).items() if name != PER_ENERGY}
    reached = solve(others).known.get(PER_ENERGY)
    if not metric or reached is None:
        return Cell("unknown: samples of an epoch not stated")
    amount = row.figures[metric]
    if column == "work per energy":
        value = reached.middle / unit_factor(amount)
        return Cell(number(value, 6), value)
    fits = Span(math.exp(reached.low), math.exp(reached.high)).meets(Span(amount.low, amount.high))
    text = "yes, within rounding" if fits else "no"
    return Cell(text, text)


def codes_of(entry: Comparison) -> tuple[str, ...]:
    """Return the codes of the errors of a comparison; without errors, those of the warnings."""
    codes = dict.fromkeys(finding.code for finding in entry.findings if finding.severity != "note")
    return error_codes(entry.findings) or tuple(codes)


def verdict_cell(entry: Comparison | None) -> Cell:
    """Return the verdict of a comparison with its codes; None: the row is the base."""
    if entry is None:
        return Cell("base", "base")
    return Cell(VERDICTS[entry.verdict], entry.verdict, codes=codes_of(entry))


def ratio_cell(entry: Comparison | None, scope: str, *, percent: bool = False) -> Cell:
    """Return the ratio to the base for one scope; the verdict next to it gives the reason if there is none."""
    value = 1.0 if entry is None else next((ratio.value for ratio in entry.ratios if ratio.scope == scope), None)
    if value is None:
        return Cell("not reported" if entry is not None and entry.verdict == BLOCKED else "unknown")
    return Cell(f"{100 * value:.1f}", 100 * value) if percent else Cell(number(value, 3), value)
