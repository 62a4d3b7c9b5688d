"""Findings as lines for a terminal, in the manner of a linter: place, code, what is wrong, evidence, what to do."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from steelyard.rules.rule import SEVERITIES, find_rule
from steelyard.terminal.text import many, wrapped

if TYPE_CHECKING:
    from collections.abc import Sequence

    from steelyard.contracts.record import Finding


def finding_lines(findings: Sequence[Finding], *, fixes: bool = True) -> list[str]:
    """Each finding in a few lines, in the order given."""
    lines = []
    for found in findings:
        place = f"{found.place}: " if found.place else ""
        lines += wrapped(f"{place}{found.code} {rule_name(found.code)} ({found.severity}): {found.message}", "", "    ")
        if found.evidence:
            lines += wrapped(f"evidence: {found.evidence}", "    ")
        if fixes:
            lines += wrapped(f"fix: {found.fix}", "    ")
    return lines


def tally(findings: Sequence[Finding]) -> str:
    """How many findings of each severity there are, and how to learn more, in one line."""
    if not findings:
        return "no findings"
    counts = Counter(found.severity for found in findings)
    parts = [many(counts[each], each) for each in SEVERITIES if counts[each]]
    example = min(found.code for found in findings)
    return f"{', '.join(parts)}; steelyard explain {example} says what a code means"


def rule_name(code: str) -> str:
    """The name of a code's rule; the code of a rule that is not installed here has none."""
    found = find_rule(code)
    return found.name if found is not None else "(not a rule of this version)"
