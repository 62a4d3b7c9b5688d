"""Audits and judged claims as lines and as plain data."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from steelyard.contracts.base import to_json_object
from steelyard.terminal.findings import finding_lines, rule_name, tally_lines
from steelyard.terminal.text import table, wrapped

if TYPE_CHECKING:
    from collections.abc import Sequence

    from steelyard.audit.judge import Judgement
    from steelyard.audit.subject import Audit

INDENT = "    "


def audit_lines(audits: Sequence[Audit], *, brief: bool) -> list[str]:
    """Format the findings and claims of each audit, then a table of all of them if there are several."""
    lines, rows = [], []
    for entry in audits:
        lines += wrapped(f"{entry.name}: {entry.about}")
        if entry.findings:
            lines += ["", *finding_lines(entry.findings, fixes=not brief)]
        lines += ["", *tally_lines(entry.findings)]
        claims = ["-", "-"]
        if entry.judgements:
            lines += ["", *_claim_lines(entry.judgements, all_claims=not brief)]
            lines += ["", *wrapped(claim_tally(entry.judgements) + ".")]
            held = sum(judgement.verdict == "holds" for judgement in entry.judgements)
            claims = [str(len(entry.judgements)), str(held)]
        lines.append("")
        errors = sum(finding.severity == "error" for finding in entry.findings)
        rows.append([entry.name, str(len(entry.findings)), str(errors), *claims])
    if len(audits) > 1:
        lines.append(table(["audited", "findings", "errors", "claims", "hold"], rows))
    return lines


def audit_object(entry: Audit) -> dict[str, Any]:
    """Return an audit as plain data."""
    return {
        "name": entry.name,
        "about": entry.about,
        "passes": entry.passes,
        "findings": to_json_object(entry.findings),
        "claims": [claim_object(judgement) for judgement in entry.judgements],
    }


def _claim_lines(judgements: Sequence[Judgement], *, all_claims: bool) -> list[str]:
    """Format each claim: its verdict, its text, the published and the recomputed figure, and why."""
    shown = [entry for entry in judgements if all_claims or entry.verdict != "holds"]
    width = max((len(entry.claim.id) for entry in shown), default=0)
    lines = []
    for entry in shown:
        lines.append(f"{entry.claim.id.ljust(width)}  {entry.verdict} ({entry.asserted})")
        for text in _explain_claim(entry):
            lines += wrapped(text, INDENT)
    return lines


def _explain_claim(entry: Judgement) -> list[str]:
    """List what belongs below the verdict of a claim."""
    claim = entry.claim
    place = f" ({claim.place})" if claim.place else ""
    below = [f"claim: {claim.text}{place}"] if claim.text else []
    given = entry.recomputed if entry.verdict == "holds" else entry.sums
    below += [f"published: {claim.published}"] if claim.published else []
    below += [f"recomputed: {given}"] if given else []
    for part in entry.parts:
        # A claim may fail by several assertions; those with another verdict than the claim are named.
        other = "" if part.verdict == entry.verdict else f"{part.asserts}, {part.verdict}: "
        below += [f"{other}{found.code} {rule_name(found.code)}: {found.message}" for found in part.findings]
    return [*below, *(f"note: {note}" for note in entry.notes)]


def claim_tally(judgements: Sequence[Judgement]) -> str:
    """Count the claims by verdict, in one line."""
    counts = Counter(entry.verdict for entry in judgements)
    held, total = counts.pop("holds", 0), len(judgements)
    others = "".join(f"; {verdict}: {count}" for verdict, count in counts.most_common())
    return f"{held} of {total} claim{'s' * (total != 1 or not held)} hold{'s' * (held == 1)}{others}"


def claim_object(entry: Judgement) -> dict[str, Any]:
    """Return a judged claim as plain data."""
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
