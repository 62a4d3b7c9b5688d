"""The checks of an accelerator for the terminal: the answer, then a line per check."""

from __future__ import annotations

from typing import TYPE_CHECKING

from steelyard.terminal.text import wrapped

if TYPE_CHECKING:
    from collections.abc import Iterator

    from steelyard.contracts.accelerator import AcceleratorReport


def accelerator_lines(report: AcceleratorReport) -> Iterator[str]:
    """Yield whether the device is as assumed, and every check."""
    counts, total = report.counts(), len(report.checks)
    wrong = [check.name for check in report.checks if check.outcome == "not as assumed"]
    if wrong:
        answer = f"not as steelyard assumes in {len(wrong)} of {total} checks: {', '.join(wrong)}"
    else:
        answer = f"as steelyard assumes in {counts.get('ok', 0)} of {total} checks"
    if unchecked := counts.get("could not check", 0):
        answer += f"; {unchecked} could not be checked"
    yield from wrapped(f"{report.device}: {answer}")
    yield ""
    for check in report.checks:
        yield from wrapped(f"{check.outcome:<15} {check.name}: {check.text}", deeper=18 * " ")
