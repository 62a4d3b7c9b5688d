"""The built-in documents as a page: their main tables and figures made again from the catalogue, with our verdicts.

Knows which rows of which document belong in one picture; every figure, ratio and verdict is asked for elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

from steelyard.audit import documents
from steelyard.audit.claims import Efficiency, Faster, Linear, Monotone, PowerClaim, SameWork
from steelyard.report.audit.claims import claims_table
from steelyard.report.audit.published import NO_REPEATS, JudgedDocument, claim_tables, printed_cell, setting_cell
from steelyard.report.audit.reference_curves import Rows, batch_section, scaling_section
from steelyard.report.audit.reference_energy import energy_section
from steelyard.report.audit.reference_times import times_section
from steelyard.report.audit.reference_tuning import SettingStep, tuning_section
from steelyard.report.page import Cell, Column, Page, Prose, Section, Table
from steelyard.report.study.subject import merged
from steelyard.terminal.claims import claim_tally
from steelyard.terminal.findings import tally
from steelyard.terminal.text import capital
from steelyard.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from steelyard.audit.claims import Claim
    from steelyard.audit.judge import Judgement
    from steelyard.rules.table.row import Row

    Make = Callable[[JudgedDocument, Sequence[Judgement]], Section]


@dataclass(frozen=True)
class DocumentSection:
    """One section of a document, with the tables and the kinds of claims that it is about."""

    make: Make
    tables: tuple[str, ...]
    kinds: tuple[type[Claim], ...] = ()
    """Empty: every kind."""

    def takes(self, judgement: Judgement) -> bool:
        """Whether a claim belongs beside its figures."""
        known = claim_tables(judgement)
        return bool(known) and known <= set(self.tables) and (not self.kinds or isinstance(judgement.claim, self.kinds))


def reference_page(names: Sequence[str] = (), *, title: str = "", made_at: str = "") -> Page:
    """A page on some documents of the catalogue, or on all of them; InputError for a name that it does not have."""
    for name in names:
        documents.provenance(name)
    chosen = list(dict.fromkeys(names)) or documents.names()
    chosen_documents = [JudgedDocument(name) for name in chosen]
    held = sum(entry.verdict == "holds" for each in chosen_documents for entry in each.audit.judgements)
    claims = sum(len(each.audit.judgements) for each in chosen_documents)
    return Page(
        title=title or f"Published tables, made again: {', '.join(chosen)}",
        subtitle=f"{held} of {claims} claims hold. Figures are as printed; every ratio comes with its verdict.",
        sections=tuple(section for each in chosen_documents for section in _sections(each)),
        made_at=made_at or datetime.now(UTC).isoformat(timespec="seconds"),
        made_by=f"steelyard {VERSION}",
    )


def _sections(document: JudgedDocument) -> list[Section]:
    parts = PARTS.get(document.name, ())
    left = list(document.audit.judgements)
    made = []
    for part in parts:
        own = [entry for entry in left if part.takes(entry)]
        left = [entry for entry in left if entry not in own]
        made.append(part.make(document, own))
    return [_document_section(document, left), *made]


# -- what a document is, and what it leaves open


def _document_section(document: JudgedDocument, left: Sequence[Judgement]) -> Section:
    """Where the rows come from, what is unknown of them, and the claims that no figure below is about."""
    source = document.provenance
    facts = (
        ("document", source.title), ("authors", ", ".join(source.authors)),
        ("published", source.published), ("year", str(source.year or "unknown")),
        ("address", source.address or "unknown"), ("measured", source.measured), ("typed in", source.typed_in),
        ("rows", f"{len(document.table.rows)}; steelyard audit {document.name} judges them in a terminal"),
    )  # fmt: skip
    open_ = (("unknown", text) for text in (*source.unknown, *_without_energy(document)))
    blocks: list[Prose | Table] = [Prose(facts=(*facts, *open_))]
    blocks += [claims_table(left, f"{document.name}-claims")] if left else []
    return Section(
        f"{document.name}-document",
        f"{document.name}: where it comes from, and what it leaves open",
        f"Do the figures of {document.name} hold?",
        f"{capital(claim_tally(document.audit.judgements))}. Findings on its rows: "
        f"{tally(document.audit.findings).partition(';')[0]}.",
        tuple(blocks),
    )


def _without_energy(document: JudgedDocument) -> list[str]:
    """A power limit is no measurement: without a printed energy there is none."""
    if any("energy" in metric or "power" in metric for row in document.table.rows for metric in row.figures):
        return []
    return ["energy: no row prints any, and none is made out of a power limit"]


# -- rows that nothing else is made of


def plain_section(document: JudgedDocument, judgements: Sequence[Judgement], asked: Sequence[str], of: str) -> Section:
    """Rows as printed, each by itself."""
    name = f"{document.name}-others"
    rows = [row for wanted in asked for row in document.select(wanted)]
    metrics = list(dict.fromkeys(metric for row in rows for metric in row.figures))
    columns = (
        Column("model", align="left"), Column("accelerator", align="left"), Column("devices"),
        *(Column(metric.replace("_", " "), align="right") for metric in metrics),
        Column("set-up", align="left"), Column("table", align="left"),
    )  # fmt: skip
    made = tuple(
        (
            *(setting_cell(row, key) for key in ("model", "accelerator", "devices")),
            *(_with_unit(row, metric) for metric in metrics),
            setting_cell(row, "parallelism"), Cell(row.table, row.table),
        )
        for row in rows
    )  # fmt: skip
    table = Table(f"{name}-rows", "As printed", columns, made, (NO_REPEATS, "-: not printed."))
    blocks = [table, *([claims_table(judgements, f"{name}-claims")] if judgements else [])]
    return Section(
        name,
        f"{document.name}: {of}",
        "What else was measured?",
        f"{len(rows)} rows, each of another model, machine or size: none is held against another here.",
        tuple(blocks),
        merged(document.findings_on(rows)),
    )


def _with_unit(row: Row, metric: str) -> Cell:
    """Rows of several works count several things."""
    cell = printed_cell(row, metric)
    return cell if cell.value is None else Cell(f"{cell.text} {row.figures[metric].unit}", cell.value)


# -- which rows make which picture

_IPU_SCALING = (
    Rows("table 1, epoch 2", "table=1,phase=epoch 2", "table 1"),
    Rows("table 1, epoch 1 (compiles)", "table=1,phase=epoch 1 (includes graph compilation)", "table 1"),
    Rows("table 3, batch 20 an IPU", "table=3,batch_per_device=20"),
    Rows("table 4, batch 10 an IPU", "table=4,accelerator=GC200 IPU"),
)
_IPU_BATCH = (
    Rows("ResNet50 on 1 IPU, table 3", "table=3,devices=1"),
    Rows("autoencoder on 2 A100, table 4", "table=4,accelerator=A100-40GB,devices=2"),
)
_IPU_OTHERS = ("table=2", "table=text 3.2", "table=4,accelerator=A100-40GB,devices=1")
_CARAML = (
    Rows("GPT 117M on 4 IPUs", "table=NLP IPU-M2000"),
    Rows("ResNet50 on 1 IPU", "table=CV IPU-M2000"),
)
_WORKERS = "table=tests 8-12,workers_per_device={},precision={}"
_TUNING = (
    SettingStep("devices", "table=test 2", "table=test 3"),
    SettingStep("workers_per_device", _WORKERS.format(8, "bf16"), _WORKERS.format(4, "bf16")),
    SettingStep("workers_per_device", _WORKERS.format(8, "bf16"), _WORKERS.format(16, "bf16")),
    SettingStep("workers_per_device", "table=test 6,workers_per_device=16", "table=test 6,workers_per_device=48"),
    SettingStep("precision", _WORKERS.format(8, "bf16"), _WORKERS.format(8, "fp16")),
    SettingStep("precision", _WORKERS.format(8, "bf16"), _WORKERS.format(8, "fp32")),
    SettingStep("precision", "table=test 2", _WORKERS.format(8, "fp16")),
)
PARTS: dict[str, tuple[DocumentSection, ...]] = {
    "nrp-gh200": (
        DocumentSection(partial(times_section, table="I", of="training times of classifiers"), ("I",)),
        DocumentSection(partial(times_section, table="II", of="training times of detectors and segmentation"), ("II",)),
    ),
    "aces-ipu": (
        DocumentSection(
            partial(scaling_section, asked=_IPU_SCALING, device="IPUs"),
            ("1", "3", "4"),
            (Linear, Efficiency, SameWork),
        ),
        DocumentSection(
            partial(batch_section, asked=_IPU_BATCH, key="batch_per_device"), ("3", "4"), (Faster, Monotone)
        ),
        DocumentSection(partial(plain_section, asked=_IPU_OTHERS, of="other models and machines"), ("2", "text 3.2")),
    ),
    "olivia-gh200": (
        DocumentSection(
            partial(tuning_section, base="table=test 1", steps=_TUNING, device="GPUs"),
            ("test 1", "test 2", "test 3", "test 4", "test 5", "test 6", "test 7", "tests 8-12", "test 13"),
        ),
    ),
    "caraml": (
        DocumentSection(
            partial(batch_section, asked=_CARAML, key="global_batch"), ("NLP IPU-M2000", "CV IPU-M2000"), (Monotone,)
        ),
        DocumentSection(partial(energy_section, asked=_CARAML), ("NLP IPU-M2000", "CV IPU-M2000"), (PowerClaim,)),
    ),
}
"""By document, in the order of the page. A document without an entry has its claims, findings and provenance."""
