"""Page of the built-in documents: their main tables and charts from the catalogue, with verdicts.

pages.toml (`layout`) defines which rows make which table, curve or comparison.
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
    """Return a page on some documents of the catalogue, or on all; InputError for an unknown name."""
    for name in names:
        documents.provenance(name)
    chosen = [JudgedDocument(name) for name in dict.fromkeys(names or documents.names())]
    held = sum(entry.verdict == "holds" for document in chosen for entry in document.audit.judgements)
    claims = sum(len(document.audit.judgements) for document in chosen)
    return Page(
        title=title or f"Published tables, checked: {', '.join(document.name for document in chosen)}",
        subtitle=f"{held} of {claims} claims hold. Values are as printed; every ratio has a verdict.",
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
    """Whether a claim is only about the tables of a section, and of one of its kinds."""
    claim = judgement.claim
    sides = (claim.rows, claim.a, claim.b) if isinstance(claim, PairClaim) else (claim.rows,)
    tables = {str(side["table"]) for side in sides if "table" in side}
    return bool(tables) and tables <= set(layout.tables) and (not layout.kinds or claim.kind in layout.kinds)


def _document_section(document: JudgedDocument, left: Sequence[Judgement]) -> Section:
    """Source of the rows, what is unknown about them, and the claims that belong to no other section."""
    source = document.provenance
    facts = [
        ("document", source.title),
        ("authors", ", ".join(source.authors)),
        ("published", source.published),
        ("year", str(source.year or "unknown")),
        ("address", source.address or "unknown"),
        ("measured", source.measured),
        ("transcribed", source.typed_in),
        ("rows", f"{len(document.table.rows)}; in a terminal: steelyard audit {document.name}"),
        *(("unknown", text) for text in source.unknown),
    ]
    # A power limit is not a measurement, so no energy is derived from it.
    if not any("energy" in metric or "power" in metric for row in document.table.rows for metric in row.figures):
        facts.append(("unknown", "energy: no row states it, and it is not derived from a power limit"))
    blocks: list[Prose | Table] = [Prose(facts=tuple(facts))]
    blocks += [claims_table(left, f"{document.name}-claims")] if left else []
    return Section(
        f"{document.name}-document",
        f"{document.name}: source and open points",
        f"Are the numbers of {document.name} correct?",
        f"{capital(claim_tally(document.audit.judgements))}. Findings: "
        f"{tally(document.audit.findings).partition(';')[0]}.",
        tuple(blocks),
    )
