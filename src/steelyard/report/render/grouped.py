"""Group findings by code: a large study has thousands with the same code."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from steelyard.terminal.findings import rule_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from steelyard.contracts.record import Finding


@dataclass(frozen=True)
class Group:
    """Findings with one code, one severity and one fix."""

    code: str
    rule: str
    severity: str
    fix: str
    findings: tuple[Finding, ...]


def by_code(findings: Sequence[Finding]) -> list[Group]:
    """Return groups in the order of their first finding, without duplicates."""
    groups: dict[tuple[str, str, str], dict[Finding, None]] = defaultdict(dict)
    for found in findings:
        groups[found.code, found.severity, found.fix][found] = None
    return [Group(code, _rule_name(code), severity, fix, tuple(same)) for (code, severity, fix), same in groups.items()]


@cache
def _rule_name(code: str) -> str:
    # Cached: every lookup in the registry scans the installed packages.
    return rule_name(code)
