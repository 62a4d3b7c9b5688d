"""The list of suites as lines and as plain data."""

from __future__ import annotations

from typing import TYPE_CHECKING

from steelyard.terminal.text import table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from steelyard.inputs.suites import ListedSuite
    from steelyard.terminal.shapes.measure import ListedSuiteData, SuiteListData


def suites_lines(listed: Sequence[ListedSuite]) -> list[str]:
    """List the suites."""
    rows = [[entry.name, entry.title, str(len(entry.parts))] for entry in listed]
    return [table(["suite", "what it measures", "parts"], rows), "", "next: steelyard suite show NAME"]


def suites_object(listed: Sequence[ListedSuite]) -> SuiteListData:
    """Return the suites as plain data."""
    suites: list[ListedSuiteData] = [
        {"suite": entry.name, "title": entry.title, "document": entry.document, "parts": list(entry.parts)}
        for entry in listed
    ]
    return {"shape": "suite-list/1", "suites": suites}
