"""Run all table rules on a table, and drop findings that another finding explains."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

from steelyard.rules.rule import check
from steelyard.rules.table.row import RowTable

if TYPE_CHECKING:
    from steelyard.contracts.finding import Finding

MAX_TEXT = 1000
_OTHERS = re.compile(r"\d+ other rows")
MAX_OF_A_RULE = 20
"""Maximum number of findings per rule and table; the last one says how many more there are."""

CUT = ("message", "evidence", "place")
# A wrong unit, scope, device count or base also makes its row look fast, slow or power-hungry. Report only the cause.
_SLIPS = ("SY505", "SY506", "SY507", "SY508", "SY512")
EXPLAINS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(_SLIPS, ("SY301", "SY401", "SY503", "SY504", "SY509", "SY703", "SY704")),
    "SY507": ("SY301", "SY303", "SY312", "SY401", "SY503", "SY504", "SY509", "SY703", "SY704"),
    "SY503": ("SY301", "SY703"),
    "SY504": ("SY301", "SY703"),
    "SY303": ("SY301",),
}


def check_table(table: RowTable) -> tuple[Finding, ...]:
    """Return the findings on a table, without those that another finding explains; errors first."""
    findings = check("table", table)
    codes: defaultdict[str, set[str]] = defaultdict(set)
    for finding in findings:
        if finding.severity != "note":
            codes[finding.place].add(finding.code)
        # A finding on several rows explains what follows from it in each of them.
        for wrong in finding.wrong:
            if finding.severity != "note":
                codes[wrong.place].add(finding.code)
    explained = {
        place: {lesser for code in there for lesser in EXPLAINS.get(code, ())} for place, there in codes.items()
    }
    return _limit_findings([finding for finding in findings if finding.code not in explained.get(finding.place, ())])


def rows_meant(finding: Finding, table: RowTable) -> list[str]:
    """Return the places of the rows that a finding is about; empty if it is not about rows of this table.

    With several tables, the place of a finding begins with the name of the table.
    """
    places = [row.place for row in table.rows]
    doubted = {wrong.place for wrong in finding.wrong}
    if doubted and doubted <= set(places):
        return [place for place in places if place in doubted]
    for place in (finding.place, finding.place.removeprefix(f"{table.name}, ")):
        parts = [place] if place in places else place.split(" and ")
        if all(part in places for part in parts):
            return parts
        if parts[0] in places and _OTHERS.fullmatch(parts[-1]):
            # The other rows are not named: find those that the same rule reports on their own.
            alone = (RowTable(table.name, (row,), table.platforms) for row in table.rows)
            return [
                place
                for place, one in zip(places, alone, strict=True)
                if any(other.code == finding.code for other in check("table", one))
            ]
    return []


def _limit_findings(findings: list[Finding]) -> tuple[Finding, ...]:
    total = Counter(finding.code for finding in findings)
    seen: Counter[str] = Counter()
    kept = []
    for finding in findings:
        seen[finding.code] += 1
        short = finding
        if max(len(finding.message), len(finding.evidence)) > MAX_TEXT:
            # Names in a table may be long, and a finding may list many of them.
            texts = {name: getattr(finding, name) for name in CUT}
            cut = {name: text[:MAX_TEXT] + "..." for name, text in texts.items() if len(text) > MAX_TEXT}
            short = replace(finding, **cut)
        if seen[finding.code] < MAX_OF_A_RULE or total[finding.code] <= MAX_OF_A_RULE:
            kept.append(short)
        elif seen[finding.code] == MAX_OF_A_RULE:
            more = total[finding.code] - MAX_OF_A_RULE
            kept.append(replace(short, message=f"{short.message} (and {more} more findings like this one)"))
    return tuple(kept)
