"""The built-in documents as a page: their main tables and figures made again from the catalogue, with our verdicts.

Knows no document: which rows make which table, curve or comparison is said in pages.toml (`layout`).
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from steelyard.audit import documents
from steelyard.audit.claims import PairClaim
from steelyard.report.audit.blocks import SectionBlocks
from steelyard.report.audit.claims import claims_table
from steelyard.report.audit.layout import layouts
from steelyard.report.audit.published import JudgedDocument
from steelyard.report.page import Page, Prose, Section, Table
from steelyard.terminal.claims import claim_tally
from steelyard.terminal.findings import tally
from steelyard.terminal.text import capital
from steelyard.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Sequence

    from steelyard.audit.judge import Judgement
    from steelyard.report.audit.layout import SectionLayout


def reference_page(names: Sequence[str] = (), *, title: str = "", made_at: str = "") -> Page:
    """A page on some documents of the catalogue, or on all of them; InputError for a name that it does not have."""
    for name in names:
        documents.provenance(name)
    chosen = [JudgedDocument(name) for name in dict.fromkeys(names or documents.names())]
    held = sum(entry.verdict == "holds" for document in chosen for entry in document.audit.judgements)
    claims = sum(len(document.audit.judgements) for document in chosen)
    return Page(
        title=title or f"Published tables, made again: {', '.join(document.name for document in chosen)}",
        subtitle=f"{held} of {claims} claims hold. Figures are as printed; every ratio comes with its verdict.",
        sections=tuple(section for document in chosen for section in _sections(document)),
        made_at=made_at or datetime.now(UTC).isoformat(timespec="seconds"),
        made_by=f"steelyard {VERSION}",
    )


def _sections(document: JudgedDocument) -> list[Section]:
    left = list(document.audit.judgements)
    made = []
    for layout in layouts(document.name):
        own = [entry for entry in left if _belongs(entry, layout)]
        left = [entry for entry in left if entry not in own]
        made.append(SectionBlocks(document, layout).section(own))
    return [_document_section(document, left), *made]


def _belongs(judgement: Judgement, layout: SectionLayout) -> bool:
    """Whether a claim speaks of the tables of a section alone, and is of its kinds."""
    claim = judgement.claim
    sides = (claim.rows, claim.a, claim.b) if isinstance(claim, PairClaim) else (claim.rows,)
    tables = {str(side["table"]) for side in sides if "table" in side}
    return bool(tables) and tables <= set(layout.tables) and (not layout.kinds or claim.kind in layout.kinds)


def _document_section(document: JudgedDocument, left: Sequence[Judgement]) -> Section:
    """Where the rows come from, what is unknown of them, and the claims that no section is about."""
    source = document.provenance
    facts = [
        ("document", source.title), ("authors", ", ".join(source.authors)),
        ("published", source.published), ("year", str(source.year or "unknown")),
        ("address", source.address or "unknown"), ("measured", source.measured), ("typed in", source.typed_in),
        ("rows", f"{len(document.table.rows)}; steelyard audit {document.name} judges them in a terminal"),
        *(("unknown", text) for text in source.unknown),
    ]  # fmt: skip
    # A power limit is no measurement: without a printed energy there is none.
    if not any("energy" in metric or "power" in metric for row in document.table.rows for metric in row.figures):
        facts.append(("unknown", "energy: no row prints any, and none is made out of a power limit"))
    blocks: list[Prose | Table] = [Prose(facts=tuple(facts))]
    blocks += [claims_table(left, f"{document.name}-claims")] if left else []
    return Section(
        f"{document.name}-document",
        f"{document.name}: where it comes from, and what it leaves open",
        f"Do the figures of {document.name} hold?",
        f"{capital(claim_tally(document.audit.judgements))}. Findings on its rows: "
        f"{tally(document.audit.findings).partition(';')[0]}.",
        tuple(blocks),
    )
