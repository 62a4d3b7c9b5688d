"""Rows of a built-in document with what was found about them, as cells and tables. Knows whom to ask; judges nothing.

A figure stands as it was printed. A ratio of two rows is shown with its verdict, and not at all where a finding on the
pair or on one of its rows blocks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from steelyard.analysis.compare import compare
from steelyard.audit import documents
from steelyard.audit.beside import REFERENCE, rows_beside
from steelyard.audit.check import check_table, rows_meant
from steelyard.audit.claims import PairClaim
from steelyard.audit.recompute import digits, unit_factor
from steelyard.audit.selecting import pairs_of
from steelyard.audit.subject import audit_reference
from steelyard.report.charts.style import blocking_codes
from steelyard.report.page import Cell
from steelyard.results.store import ResultFolder
from steelyard.rules.table.row import RowTable as Rows
from steelyard.terminal.text import number

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from steelyard.analysis.ratios import Ratio
    from steelyard.audit.judge import Judgement
    from steelyard.audit.subject import Audit
    from steelyard.contracts.record import Finding
    from steelyard.rules.table.row import Row

BLOCKED = "not comparable"
BETWEEN = "SY3"
"""How codes of rules on scaling begin. They are about a row and its base, and say nothing of it beside other rows."""
VERDICTS = {"comparable": "yes", "comparable with disclosures": "disclose", BLOCKED: "no"}
"""A column has little room; what is to be disclosed, or blocks, are the codes beside it."""
NO_REPEATS = "One figure a row, as printed: no repeats are told of, so that there is no interval."


@dataclass(frozen=True)
class Held:
    """One row held against another: the verdict, and ratios where there may be any."""

    a: Row
    """The base."""
    b: Row
    verdict: str
    findings: tuple[Finding, ...]
    ratios: dict[str, Ratio]
    """By scope, `job` or `device`; none where a finding blocks."""

    @property
    def blocked(self) -> bool:
        """Whether nothing may be divided."""
        return self.verdict == BLOCKED

    @property
    def codes(self) -> tuple[str, ...]:
        """Of what forbids a ratio; where nothing does, of what must be said with it."""
        told = dict.fromkeys(found.code for found in self.findings if found.severity != "note")
        return blocking_codes(self.findings) or tuple(told)


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

    def select(self, wanted: str = "") -> list[Row]:
        """Rows by their settings, in the words of `steelyard compare`; the built-in rows need no result folder."""
        return rows_beside(ResultFolder(Path()), selection(self.name, wanted))

    def findings_on(self, rows: Iterable[Row]) -> tuple[Finding, ...]:
        """Every finding that is about one of these rows, each once."""
        return tuple(dict.fromkeys(found for row in rows for found in self._by_row.get(row.place, ())))

    def codes_on(self, row: Row) -> tuple[str, ...]:
        """Codes of the findings on a row that are more than notes."""
        found = self._by_row.get(row.place, ())
        return tuple(dict.fromkeys(entry.code for entry in found if entry.severity != "note"))

    def blocking(self, row: Row) -> tuple[Finding, ...]:
        """Findings that forbid every ratio with this row, whatever it is held against."""
        found = self._by_row.get(row.place, ())
        return tuple(entry for entry in found if entry.severity == "blocks" and not entry.code.startswith(BETWEEN))

    def hold(self, a: Row, b: Row, factor: str, metric: str) -> Held:
        """B against its base A, by the rules on pairs and by what was found on the two rows."""
        (made,) = compare([a], [b], factor=factor, metric=metric).comparisons
        both = check_table(Rows(self.table.name, (a, b), self.table.platforms))
        own = [*self.blocking(a), *self.blocking(b), *(found for found in both if found.code.startswith(BETWEEN))]
        found = tuple(
            replace(entry, place=entry.place.removeprefix(f"{self.name}, ")) for entry in (*own, *made.findings)
        )
        blocked = any(entry.severity == "blocks" for entry in found)
        ratios = {} if blocked else {ratio.scope: ratio for ratio in made.ratios}
        return Held(a, b, BLOCKED if blocked else made.verdict, found, ratios)

    def judged(self, row: Row, other: Row) -> list[Judgement]:
        """Claims on exactly these two rows, whichever comes first."""
        return self._by_pair.get(frozenset((row.place, other.place)), [])

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


def selection(name: str, wanted: str = "") -> str:
    """Rows of a document as the verbs take them."""
    return f"{REFERENCE}:{name}:{wanted}" if wanted else f"{REFERENCE}:{name}"


# -- cells


def printed_cell(row: Row, metric: str, codes: Sequence[str] = ()) -> Cell:
    """A figure as it was printed, and its value in the printed unit."""
    amount = row.figures.get(metric)
    if amount is None:
        return Cell("-")
    return Cell(digits(amount), amount.value / unit_factor(amount), codes=tuple(codes))


def setting_cell(row: Row, key: str) -> Cell:
    """A setting, or that the document does not state it."""
    value = row.get(key)
    if value is None:
        return Cell("not stated")
    whole = isinstance(value, int) and not isinstance(value, bool)
    return Cell(f"{value:,}" if whole else str(value), value)


def verdict_cell(held: Held | None) -> Cell:
    """Whether a row may be divided by its base, with the codes that say so; None: it is the base."""
    if held is None:
        return Cell("the base", "the base")
    return Cell(VERDICTS.get(held.verdict, held.verdict), held.verdict, codes=held.codes)


def ratio_cell(held: Held | None, scope: str, *, percent: bool = False) -> Cell:
    """A ratio of one scope to the base; it stands beside the verdict, which says why there is none."""
    found = held.ratios.get(scope) if held is not None else None
    if held is not None and found is None:
        return Cell("none: blocked" if held.blocked else "not known")
    value = found.value if found is not None else 1.0
    return Cell(f"{100 * value:.1f}", 100 * value) if percent else Cell(number(value, 3), value)


def metric_unit(rows: Sequence[Row], metric: str) -> str:
    """The unit that a metric is printed in."""
    return next((row.figures[metric].unit for row in rows if metric in row.figures), "")


# -- claims


def claim_tables(judgement: Judgement) -> set[str]:
    """Tables of the document that a claim speaks of."""
    claim = judgement.claim
    sides = (claim.rows, claim.a, claim.b) if isinstance(claim, PairClaim) else (claim.rows,)
    return {str(side["table"]) for side in sides if "table" in side}


def verdict_words(judgements: Sequence[Judgement]) -> str:
    """`N10 base differs, N11 does not follow`; of claims that hold, how many."""
    held = [entry for entry in judgements if entry.verdict == "holds"]
    others = [f"{entry.claim.id} {entry.verdict}" for entry in judgements if entry.verdict != "holds"]
    parts = [
        f"{len(held)} of {len(judgements)} claim{'s' * (len(judgements) != 1)} hold{'s' * (len(held) == 1)}",
        *others,
    ]
    return "; ".join(parts)
