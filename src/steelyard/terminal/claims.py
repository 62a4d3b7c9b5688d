"""Audits and judged claims as lines and as plain data."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from steelyard.audit.shown import shown_tables
from steelyard.audit.subject import UNSETTLED
from steelyard.contracts.base import to_json_object
from steelyard.terminal.findings import finding_lines, rule_name, tally, tally_lines
from steelyard.terminal.reading import headings_object, not_read_object
from steelyard.terminal.text import OUTPUT_COLUMNS, WIDTH, many, table, wrapped

if TYPE_CHECKING:
    from collections.abc import Sequence

    from steelyard.audit.judge import Judgement
    from steelyard.audit.shown import ShownCell, ShownTable
    from steelyard.audit.subject import Audit
    from steelyard.contracts.finding import Finding
    from steelyard.rules.table.row import RowTable
    from steelyard.terminal.shapes.checks import AuditedData, JudgedClaimData

INDENT = "    "
LONG = 40
"""Lines of a table in a terminal. Of a longer one, only lines with a wrong figure are printed."""
KEPT = "\u2423"
"""A space at which no line breaks, while a table is laid out."""
LEGEND = {"error": "! = error", "warning": "? = warning"}


def verdict_line(entry: Audit) -> str:
    """Return the verdict in one sentence: consistent, how many warnings, or contradictory and by what."""
    above = [finding for finding in entry.findings if finding.severity != "note"]
    wrong = len({(each.place, each.name) for finding in above for each in finding.wrong})
    contradicted = sum(one.verdict not in ("holds", *UNSETTLED) for one in entry.judgements)
    unsettled = sum(one.verdict in UNSETTLED for one in entry.judgements)
    parts = [f"{many(wrong, 'figure')} {'does' if wrong == 1 else 'do'} not fit the others"] if wrong else []
    parts += [f"{many(contradicted, 'claim')} contradicted by the rows"] if contradicted else []
    parts += [f"{many(unsettled, 'claim')} not shown by the rows"] if unsettled else []
    if entry.verdict == "consistent":
        # A figure that is wrong in its last digits is only a note, but it is not right.
        slips = len({(each.place, each.name) for finding in entry.findings for each in finding.wrong})
        but = f", but for {many(slips, 'small slip')}" if slips else ""
        claims = f"; {claim_tally(entry.judgements)}" if entry.judgements else ""
        return f"CONSISTENT: nothing contradicts the figures{but}{claims}"
    if entry.verdict == "warnings":
        head = many(len(above), "warning").upper() if above else "NOT SHOWN"
        return f"{head}: {', '.join(parts) or 'to be explained before the figures are used'}"
    measured = any(row.spec is not None for table in entry.tables for row in table.rows)
    counts = [tally(above)] if above else []
    return f"{'ERRORS' if measured else 'CONTRADICTORY'}: {', '.join([*counts, *parts])}"


def audit_lines(audits: Sequence[Audit], *, brief: bool) -> list[str]:
    """Format each audit, the verdict first, then a table of all of them if there are several."""
    lines, rows = [], []
    for entry in audits:
        lines += [*wrapped(verdict_line(entry)), *wrapped(f"{entry.name}: {entry.about}")]
        if not brief:
            lines += [line for table in entry.tables for line in _table_lines(table, entry.findings_on(table))]
        if entry.findings:
            lines += ["", *finding_lines(entry.findings, fixes=not brief)]
        lines += ["", *tally_lines(entry.findings)] if entry.findings else []
        claims = ["-", "-"]
        if entry.judgements:
            lines += ["", *_claim_lines(entry.judgements, all_claims=not brief)]
            lines += ["", *wrapped(claim_tally(entry.judgements) + ".")]
            held = sum(judgement.verdict == "holds" for judgement in entry.judgements)
            claims = [str(len(entry.judgements)), str(held)]
        lines.append("")
        counts = Counter(finding.severity for finding in entry.findings)
        rows.append([entry.name, entry.verdict, str(counts["error"]), str(counts["warning"]), *claims])
    if len(audits) > 1:
        lines.append(table(["audited", "verdict", "errors", "warnings", "claims", "hold"], rows))
    return lines


def _table_lines(rows: RowTable, findings: Sequence[Finding]) -> list[str]:
    """Format the tables that have a wrong figure, with the figure marked; of a long one only the lines with a mark."""
    lines = []
    for one in shown_tables(rows, findings):
        wrong = one.wrong
        if not wrong:
            continue
        shown = one.lines if len(one.lines) <= LONG else wrong[:LONG]
        columns = _columns_shown(one)
        cells = [_aligned([line[column] for line in shown]) for column in columns]
        lines += ["", *wrapped(one.title)]
        lines.append(_narrow([one.headings[column] for column in columns], [*zip(*cells, strict=True)]))
        legend = [words for severity, words in LEGEND.items() if any(severity == c.severity for w in wrong for c in w)]
        legend += (
            ["-> = what the other figures give"] if any(cell.recomputed for line in wrong for cell in line) else []
        )
        hidden = len(one.headings) - len(columns)
        legend += [f"{many(hidden, 'column')} without a wrong figure not shown"] if hidden else []
        legend += [f"{len(one.lines) - len(shown):,} more lines are not shown"] if len(shown) < len(one.lines) else []
        lines += wrapped("; ".join(legend))
    return lines


def _columns_shown(one: ShownTable) -> list[int]:
    """Return the columns that fit: those that say what a line is about and those with a mark, then the others."""
    room = OUTPUT_COLUMNS.get() or WIDTH
    every = range(len(one.headings))
    widths = [
        2 + max(len(text) for text in [*one.headings[n].split(), *(line[n].marked for line in one.lines), ""])
        for n in every
    ]
    chosen = {n for n in every if any(line[n].severity is not None for line in one.lines)}
    # A column with one value says nothing about a line.
    chosen |= {n for n in every[: one.keys] if len({line[n].text for line in one.lines}) > 1}
    for n in every:
        if sum(widths[each] for each in chosen | {n}) <= room:
            chosen.add(n)
    return sorted(chosen)


def _aligned(cells: Sequence[ShownCell]) -> list[str]:
    """Return a column as text, with the printed figures below each other; marks stay beside their figures."""
    if all(cell.severity is None for cell in cells):
        return [cell.marked for cell in cells]
    width = max(len(cell.text) for cell in cells)
    return [(cell.text.rjust(width) + cell.marked.removeprefix(cell.text)).replace(" ", KEPT) for cell in cells]


def _narrow(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Format a table with wrapped headings, also in a file: headings of printed tables are long."""
    token = OUTPUT_COLUMNS.set(OUTPUT_COLUMNS.get() or WIDTH)
    try:
        return table(header, rows).replace(KEPT, " ")
    finally:
        OUTPUT_COLUMNS.reset(token)


def audit_object(entry: Audit) -> AuditedData:
    """Return an audit as plain data."""
    return {
        "name": entry.name,
        "about": entry.about,
        "verdict": entry.verdict,
        "findings": to_json_object(entry.findings),
        "claims": [claim_object(judgement) for judgement in entry.judgements],
        "read_as": headings_object(entry),
        "not_read": not_read_object(entry),
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
        below += [f"{other}{finding.code} {rule_name(finding.code)}: {finding.message}" for finding in part.findings]
    return [*below, *(f"note: {note}" for note in entry.notes)]


def claim_tally(judgements: Sequence[Judgement]) -> str:
    """Count the claims by verdict, in one line."""
    counts = Counter(entry.verdict for entry in judgements)
    held, total = counts.pop("holds", 0), len(judgements)
    others = "".join(f"; {verdict}: {count}" for verdict, count in counts.most_common())
    return f"{held} of {total} claim{'s' * (total != 1 or not held)} hold{'s' * (held == 1)}{others}"


def claim_object(entry: Judgement) -> JudgedClaimData:
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
