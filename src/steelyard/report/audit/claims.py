"""Judged claims as a table for a page. Knows columns, no verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING

from steelyard.report.page import Cell, Column, Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from steelyard.audit.judge import Judgement


def claims_table(
    judgements: Sequence[Judgement], name: str, title: str = "What the document says of it, judged"
) -> Table:
    """Claims with what is printed, what the rows give and the verdict, for a page."""
    columns = (
        Column("claim", align="left"), Column("verdict", align="left"), Column("printed", align="left"),
        Column("what it says", align="left"), Column("what its rows give, and why", align="left"),
    )  # fmt: skip
    return Table(name, title, columns, tuple(map(_claim_row, judgements)))


def _claim_row(entry: Judgement) -> tuple[Cell, ...]:
    claim = entry.claim
    codes = tuple(dict.fromkeys(found.code for found in entry.findings))
    given = entry.recomputed if entry.verdict == "holds" else entry.sums
    why = [given, *(found.message for found in entry.findings), *entry.notes]
    words = f"{entry.asserted}: {'; '.join(dict.fromkeys(filter(None, why)))}"
    said = f"{claim.text} ({claim.place})" if claim.place else claim.text
    return (
        Cell(claim.id, claim.id),
        Cell(entry.verdict, entry.verdict, codes=codes),
        Cell(claim.published or "no figure", claim.published or None),
        Cell(said, said),
        Cell(words, words),
    )
