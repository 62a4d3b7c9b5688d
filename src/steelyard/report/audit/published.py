"""Rows of a built-in document with what was found about them, as cells. Knows whom to ask; judges nothing.

A figure is shown as it was printed. A ratio of two rows is shown with its verdict, and not at all where a finding on
the pair or on one of its rows blocks.
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
from steelyard.report.charts.style import blocking_codes
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
    from steelyard.contracts.record import Finding
    from steelyard.rules.table.row import Row

BLOCKED: Final = "not comparable"
BETWEEN = "SY3"
"""How codes of rules on scaling begin. They are about a row and its base, and say nothing of it beside other rows."""
VERDICTS = {"comparable": "yes", "comparable with disclosures": "warning", BLOCKED: "no"}
"""A column has little room; what is to be disclosed, or blocks, are the codes beside it."""
WORKED_UNITS = {"efficiency": "%", "power of a device": "W"}
PER_ENERGY = "items_per_energy"


@dataclass(frozen=True)
class RowGroup:
    """Rows that belong together, each compared with the first of them."""

    label: str
    rows: tuple[Row, ...]
    compared: dict[str, Comparison]
    """By place; the base is not in it, and nothing is where the rows are not compared."""


class JudgedDocument:
    """One document of the catalogue, judged."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.table = documents.load(name)
        self.provenance = documents.provenance(name)

    @cached_property
    def audit(self) -> Audit:
        """Findings on its rows, and its claims judged."""
        return audit_reference(self.name)

    def select(self, wanted: str) -> list[Row]:
        """Rows by their settings, in the words of `steelyard compare`; the built-in rows need no result folder."""
        return rows_beside(ResultFolder(Path()), selection(self.name, wanted))

    def findings_on(self, rows: Iterable[Row]) -> tuple[Finding, ...]:
        """Every finding that is about one of these rows, each once."""
        return tuple(dict.fromkeys(found for row in rows for found in self._by_row.get(row.place, ())))

    def codes_on(self, row: Row) -> tuple[str, ...]:
        """Codes of the findings on a row that are more than notes."""
        return tuple(dict.fromkeys(entry.code for entry in self.findings_on([row]) if entry.severity != "note"))

    def blocking(self, row: Row) -> tuple[Finding, ...]:
        """Findings that forbid every ratio with this row, whatever it is compared with."""
        found = self.findings_on([row])
        return tuple(entry for entry in found if entry.severity == "error" and not entry.code.startswith(BETWEEN))

    def compare(self, a: Sequence[Row], b: Sequence[Row], factor: str, metric: str) -> Compared:
        """B against its base A, by the rules on pairs and by what was found on the rows."""
        made = compare(a, b, factor=factor, metric=metric)
        return replace(made, comparisons=tuple(map(self._with_own_findings, made.comparisons)))

    def _with_own_findings(self, entry: Comparison) -> Comparison:
        both = check_table(RowTable(self.table.name, (entry.a, entry.b), self.table.platforms))
        between = (found for found in both if found.code.startswith(BETWEEN))
        every = (*self.blocking(entry.a), *self.blocking(entry.b), *between, *entry.findings)
        found = tuple(replace(each, place=each.place.removeprefix(f"{self.name}, ")) for each in every)
        if blocking_codes(found):
            return replace(entry, verdict=BLOCKED, findings=found, ratios=())
        return replace(entry, findings=found)

    def judged(self, row: Row, other: Row) -> list[Judgement]:
        """Claims on exactly these two rows, whichever comes first."""
        return self._by_pair.get(frozenset((row.place, other.place)), [])

    def power_limit_w(self, rows: Iterable[Row]) -> float | None:
        """Of one device of their machines, where these have one limit."""
        limits = {platform.power_limit_w for row in rows if (platform := self.table.platform(row)) is not None}
        return limits.pop() if len(limits) == 1 else None

    @cached_property
    def _by_row(self) -> dict[str, list[Finding]]:
        """Findings by the place of a row as a selection has it."""
        found: dict[str, list[Finding]] = {}
        for entry in self.audit.findings:
            for place in rows_meant(entry, self.table):
                found.setdefault(f"{self.name}, {place}", []).append(entry)
        return found

    @cached_property
    def _by_pair(self) -> dict[frozenset[str], list[Judgement]]:
        found: dict[frozenset[str], list[Judgement]] = {}
        for entry in self.audit.judgements:
            if isinstance(entry.claim, PairClaim) and not entry.claim.over:
                ((a, b),), _ = pairs_of(entry.claim, self.table)
                found.setdefault(frozenset(f"{self.name}, {row.place}" for row in (a, b)), []).append(entry)
        return found


def selection(name: str, wanted: str) -> str:
    """Rows of a document as the verbs take them."""
    return f"{REFERENCE}:{name}:{wanted}" if wanted else f"{REFERENCE}:{name}"


# -- cells


def row_cell(document: JudgedDocument, group: RowGroup, row: Row, column: str, figure: str) -> Cell:
    """What a row has in a column: a setting, a printed figure or what is worked out. Codes stand beside `figure`."""
    entry = group.compared.get(row.place)
    match column:
        case "comparable":
            return verdict_cell(entry)
        case "times the base":
            return ratio_cell(entry, "job")
        case "efficiency":
            return ratio_cell(entry, "device", percent=True)
        case "work per energy" | "follows":
            return _per_energy_cell(row, column)
        case "power of a device":
            power = device_power(row)
            codes = document.codes_on(row)
            return Cell("not known") if power is None else Cell(number(power.middle, 4), power.middle, codes=codes)
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
    """Work per energy from the other figures of a row, or whether the printed one may be that."""
    metric = next((name for name in row.figures if variable(row, name) == PER_ENERGY), "")
    others = {name: bounds for name, bounds in observed(row).items() if name != PER_ENERGY}
    reached = solve(others).known.get(PER_ENERGY)
    if not metric or reached is None:
        return Cell("cannot be told: an epoch is stated in samples")
    amount = row.figures[metric]
    if column == "work per energy":
        value = reached.middle / unit_factor(amount)
        return Cell(number(value, 6), value)
    fits = Span(math.exp(reached.low), math.exp(reached.high)).meets(Span(amount.low, amount.high))
    said = "yes, within the digits" if fits else "no"
    return Cell(said, said)


def codes_of(entry: Comparison) -> tuple[str, ...]:
    """Codes of what forbids a ratio; where nothing does, of what must be said with it."""
    told = dict.fromkeys(found.code for found in entry.findings if found.severity != "note")
    return blocking_codes(entry.findings) or tuple(told)


def verdict_cell(entry: Comparison | None) -> Cell:
    """Whether a row may be divided by its base, with the codes that say so; None: it is the base."""
    if entry is None:
        return Cell("the base", "the base")
    return Cell(VERDICTS[entry.verdict], entry.verdict, codes=codes_of(entry))


def ratio_cell(entry: Comparison | None, scope: str, *, percent: bool = False) -> Cell:
    """A ratio of one scope to the base; the verdict beside it says why there is none."""
    value = 1.0 if entry is None else next((ratio.value for ratio in entry.ratios if ratio.scope == scope), None)
    if value is None:
        return Cell("none: blocked" if entry is not None and entry.verdict == BLOCKED else "not known")
    return Cell(f"{100 * value:.1f}", 100 * value) if percent else Cell(number(value, 3), value)
