"""Judged claims as lines for a terminal. Knows columns and widths, no verdict."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from steelyard.contracts.base import to_json_object
from steelyard.terminal.findings import rule_name
from steelyard.terminal.text import wrapped

if TYPE_CHECKING:
    from collections.abc import Sequence

    from steelyard.audit.judge import Judgement
    from steelyard.contracts.record import Finding

INDENT = "    "


def claim_lines(judgements: Sequence[Judgement], *, all_claims: bool = True) -> list[str]:
    """Each claim in a few lines: its verdict, what it says, what it prints, what its rows give, and why."""
    shown = [entry for entry in judgements if all_claims or entry.verdict != "holds"]
    width = max((len(entry.claim.id) for entry in shown), default=0)
    lines = []
    for entry in shown:
        lines.append(f"{entry.claim.id.ljust(width)}  {entry.verdict} ({entry.asserted})")
        for text in _below(entry):
            lines += wrapped(text, INDENT)
    return lines


def _below(entry: Judgement) -> list[str]:
    """The lines below the verdict of a claim."""
    claim = entry.claim
    place = f" ({claim.place})" if claim.place else ""
    below = [f"says: {claim.text}{place}"] if claim.text else []
    given = entry.recomputed if entry.verdict == "holds" else entry.sums
    below += [f"prints: {claim.published}"] if claim.published else []
    below += [f"rows: {given}"] if given else []
    for part in entry.parts:
        # A claim may fall by several assertions; what it does not fall by first is told with its verdict.
        other = "" if part.verdict == entry.verdict else f"{part.asserts}, {part.verdict}: "
        below += [f"{other}{_rule(finding)}" for finding in part.findings]
    return [*below, *(f"note: {note}" for note in entry.notes)]


def claim_tally(judgements: Sequence[Judgement]) -> str:
    """How many claims have which verdict, in one line."""
    counts = Counter(entry.verdict for entry in judgements)
    held, total = counts.pop("holds", 0), len(judgements)
    others = "".join(f"; {verdict}: {count}" for verdict, count in counts.most_common())
    return f"{held} of {total} claim{'s' * (total != 1 or not held)} hold{'s' * (held == 1)}{others}"


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


def _rule(finding: Finding) -> str:
    """The rule behind a verdict, and what it says."""
    return f"{finding.code} {rule_name(finding.code)}: {finding.message}"
