"""Findings as lines for a terminal, like those of a linter: place, code, message, evidence, fix."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from steelyard.rules.rule import SEVERITIES, find_rule
from steelyard.terminal.text import capital, many, wrapped

if TYPE_CHECKING:
    from collections.abc import Sequence

    from steelyard.contracts.record import Finding


def finding_lines(findings: Sequence[Finding], *, fixes: bool = True) -> list[str]:
    """Format findings in the order given, a few lines each."""
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
    """Count the findings by severity: 2 errors, 1 warning."""
    counts = Counter(found.severity for found in findings)
    return ", ".join(many(counts[each], each) for each in SEVERITIES if counts[each]) or "no findings"


def tally_lines(findings: Sequence[Finding]) -> list[str]:
    """Count the findings, and name the command that explains the first code."""
    explain = f" Explain a code: steelyard explain {min(found.code for found in findings)}" if findings else ""
    return wrapped(f"{capital(tally(findings))}.{explain}")


def rule_name(code: str) -> str:
    """Return the name of a code's rule."""
    found = find_rule(code)
    return found.name if found is not None else "(unknown rule)"
