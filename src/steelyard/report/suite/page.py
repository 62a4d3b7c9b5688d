"""The report of a suite."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from steelyard.report.page import Page
from steelyard.version import VERSION

if TYPE_CHECKING:
    from steelyard.inputs.suite import Size, SuiteFolder
    from steelyard.results.store import ResultFolder


def suite_page(
    folder: ResultFolder,  # noqa: ARG001
    found: SuiteFolder,
    size: Size,
) -> Page:
    """Return the report of a suite at one size."""
    return Page(
        title=f"{found.suite.title}, size {size}",
        subtitle=found.suite.question,
        sections=(),
        made_at=datetime.now(UTC).isoformat(timespec="seconds"),
        made_by=f"steelyard {VERSION}",
    )
