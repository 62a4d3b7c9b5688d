"""Judged claims as lines for a terminal. Knows columns and widths, no verdict."""

from __future__ import annotations

import textwrap
from collections import Counter
from typing import TYPE_CHECKING, Any

from steelyard.contracts.base import to_json_object
from steelyard.errors import printable
from steelyard.report.findings import WIDTH, rule_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from steelyard.audit.judge import Judgement
    from steelyard.contracts.record import Finding

HEADER = ("id", "asserted", "published", "verdict", "recomputed")
NO_FIGURE = "-"
INDENT = "     "


def claim_lines(judgements: Sequence[Judgement], *, all_claims: bool = True) -> list[str]:
    """A table of claims. What does not fit into its last column stands in the lines below."""
    shown = [entry for entry in judgements if all_claims or entry.verdict != "holds"]
    rows = [[printable(cell) for cell in _cells(entry)] for entry in shown]
    widths = [max(len(row[i]) for row in (HEADER[:4], *rows)) for i in range(4)]
    lines = [_columns(HEADER, widths), "  ".join("-" * width for width in (*widths, 10))] if rows else []
    for row, entry in zip(rows, shown, strict=True):
        inline = _columns(row, widths)
        fits = len(inline) <= WIDTH
        lines.append(inline if fits else _columns((*row[:4], ""), widths))
        below = [f"says: {entry.claim.text}"] if entry.claim.text else []
        below += [] if fits else [row[4]]
        below += [_rule(finding, entry.recomputed) for finding in entry.findings]
        below += [f"note: {note}" for note in entry.notes]
        for text in below:
            lines += textwrap.wrap(printable(text), WIDTH, initial_indent=INDENT, subsequent_indent=INDENT + "  ")
    return lines


def claim_tally(judgements: Sequence[Judgement]) -> str:
    """How many claims have which verdict, in one line."""
    counts = Counter(entry.verdict for entry in judgements)
    held, total = counts.pop("holds", 0), len(judgements)
    others = "".join(f"; {verdict}: {count}" for verdict, count in counts.most_common())
    return f"{held} of {total} claim{'s' * (total != 1)} hold{'s' * (held == 1)}{others}"


def claim_json(entry: Judgement) -> dict[str, Any]:
    """A judged claim for machines."""
    return {
        "id": entry.claim.id,
        "document": entry.claim.document,
        "kind": entry.claim.kind,
        "text": entry.claim.text,
        "place": entry.claim.place,
        "asserted": entry.asserted,
        "published": entry.claim.published or None,
        "recomputed": entry.recomputed,
        "verdict": entry.verdict,
        "assertions": [
            {
                "asserts": part.asserts,
                "verdict": part.verdict,
                "recomputed": part.recomputed,
                "findings": to_json_object(part.findings),
            }
            for part in entry.parts
        ],
        "notes": list(entry.notes),
    }


def _rule(finding: Finding, recomputed: str) -> str:
    """The rule behind a verdict, with its message unless that has been said already."""
    name = f"{finding.code} {rule_name(finding.code)}"
    return name if finding.message in recomputed else f"{name}: {finding.message}"


def _cells(entry: Judgement) -> tuple[str, ...]:
    return (entry.claim.id, entry.asserted, entry.claim.published or NO_FIGURE, entry.verdict, entry.recomputed)


def _columns(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = [cell.ljust(width) for cell, width in zip(cells[:4], widths, strict=True)]
    return "  ".join([*padded, cells[4]]).rstrip()
