"""Table of judged claims."""

from __future__ import annotations

from typing import TYPE_CHECKING

from steelyard.report.page import Cell, Column, Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from steelyard.audit.judge import Judgement


def claims_table(judgements: Sequence[Judgement], name: str, title: str = "Claims of the document") -> Table:
    """Return a table of claims: what is printed, what the rows give, and the verdict."""
    columns = (
        Column("claim", align="left"),
        Column("verdict", align="left"),
        Column("printed", align="left"),
        Column("text", align="left"),
        Column("recomputed from the rows", align="left"),
    )
    return Table(name, title, columns, tuple(map(_claim_row, judgements)))


def _claim_row(entry: Judgement) -> tuple[Cell, ...]:
    claim = entry.claim
    codes = tuple(dict.fromkeys(finding.code for finding in entry.findings))
    given = entry.recomputed if entry.verdict == "holds" else entry.sums
    why = [given, *(finding.message for finding in entry.findings), *entry.notes]
    words = f"{entry.asserted}: {'; '.join(dict.fromkeys(filter(None, why)))}"
    text = f"{claim.text} ({claim.place})" if claim.place else claim.text
    return (
        Cell(claim.id, claim.id),
        Cell(entry.verdict, entry.verdict, codes=codes),
        Cell(claim.published or "no number", claim.published or None),
        Cell(text, text),
        Cell(words, words),
    )
