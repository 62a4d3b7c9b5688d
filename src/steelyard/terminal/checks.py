"""Checks of a node or a site as lines for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from steelyard.terminal.text import many, wrapped

if TYPE_CHECKING:
    from collections.abc import Sequence

    from steelyard.doctor.node import Check

VERDICT = 6


def check_lines(check: Check, name_columns: int) -> list[str]:
    """Format one check: verdict, name and result, then the fix."""
    indent = " " * (VERDICT + name_columns)
    lines = wrapped(f"{check.verdict:<{VERDICT}}{check.name:<{name_columns}}{check.found}", deeper=indent)
    return lines + (wrapped(f"fix: {check.fix}", indent) if check.fix else [])


def checks_summary(checks: Sequence[Check]) -> str:
    """Count the problems, as the last line."""
    wrong = sum(check.verdict == "wrong" for check in checks)
    return f"\n{many(wrong, 'problem')}" if wrong else "\nNo problems found."
