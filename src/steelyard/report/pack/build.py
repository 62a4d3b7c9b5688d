"""Build an allocation pack from a study and a plan: the performance section of a proposal, and an audit of it.

This module runs the analyses and orders the sections; `sections` writes them, and `checklist` maps them to demands.
"""

from __future__ import annotations

import shlex
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from steelyard.analysis.measured_energy import cells_with_energy
from steelyard.analysis.request import basis_of, request
from steelyard.analysis.scaling import scaling
from steelyard.analysis.select import select
from steelyard.analysis.sweep import selecting
from steelyard.audit.subject import audit
from steelyard.errors import InputError, Problem
from steelyard.report.pack.checklist import checklist_section
from steelyard.report.pack.claims import own_audit, own_claims, own_table
from steelyard.report.pack.model import Pack
from steelyard.report.pack.sections import (
    audit_section,
    energy_section,
    machine_section,
    performance_section,
    request_section,
    scaling_section,
    use_section,
)
from steelyard.report.page import Chart, Page, Prose, with_note
from steelyard.terminal.text import tuned_note
from steelyard.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Sequence

    from steelyard.analysis.request import Tariff, WorkPlan
    from steelyard.analysis.scaling import Declared, Scaling
    from steelyard.analysis.summary import CellSummary
    from steelyard.inputs.scheme import SchemeFile
    from steelyard.report.page import Section
    from steelyard.results.store import ResultFolder

PROJECTED = "SY310"
NOT_MEASURED = "requested, not measured"
MAX_CURVES_NAMED = 6
HANDED_IN = "scaling-throughput"
"""The one chart that forms ask for; the others are only in the pack."""


def gather(
    folder: ResultFolder,
    selection: str,
    plan: WorkPlan,
    *,
    schemes: Sequence[SchemeFile],
    tariff: Tariff | None = None,
    declared: Declared | None = None,
) -> Pack:
    """Run all analyses of a pack; InputError if the selection is not one curve or has no result."""
    cells, curve, no_curve = _one_curve(select(folder, selection), plan, declared, selection)
    energies = tuple(cells_with_energy(folder, cells))
    resources = request(plan, cells, curve, tariff, energies)
    table = own_table(cells, curve, resources)
    claims = own_claims(curve)
    # Findings on energy and on the projection are in other sections; errors stay.
    if curve is not None:
        elsewhere = ("SY4", PROJECTED)
        kept = [
            finding
            for finding in curve.findings
            if finding.severity == "error" or not finding.code.startswith(elsewhere)
        ]
        curve = replace(curve, findings=tuple(kept))
        # A requested job size that was not measured is drawn as missing.
        measured = {*(point.devices for point in curve.points), *(cell.records[0].spec.devices for cell in curve.aside)}
        if plan.devices not in {*measured, *(count for count, _ in curve.missing)}:
            curve = replace(curve, missing=(*curve.missing, (plan.devices, NOT_MEASURED)))
    return Pack(
        selection=selection,
        cells=tuple(cells),
        curve=curve,
        no_curve=no_curve,
        request=resources,
        projected=tuple(entry for entry in curve.findings if entry.code == PROJECTED) if curve else (),
        energies=energies,
        schemes=tuple(schemes),
        study_audit=audit(cells[0].study, folder),
        own_audit=own_audit(table, claims),
        table_csv=table,
        claims_toml=claims,
    )


def _one_curve(
    cells: Sequence[CellSummary], plan: WorkPlan, declared: Declared | None, selection: str
) -> tuple[list[CellSummary], Scaling | None, str]:
    """Return the cells of the selected curve by number of devices, the curve, and why there is none."""
    counts = [cell.records[0].spec.devices for cell in cells]
    if len(set(counts)) == 1:
        if len(cells) > 1:
            raise _several([cell.name for cell in cells], selecting(cells, cells[:1], selection))
        basis_of(plan, cells, None)
        return list(cells), None, f"only one number of devices was measured: {counts[0]}"
    largest = max((count for cell, count in zip(cells, counts, strict=True) if cell.throughput.value), default=0)
    curves = scaling(cells, declared, at=plan.devices if plan.devices > largest else None)
    if len(curves) > 1:
        one = {cell.name for cell in (*curves[0].cells, *curves[0].aside)}
        wanted = [cell for cell in cells if cell.name in one]
        raise _several([curve.label for curve in curves], selecting(cells, wanted, selection))
    on_curve = {cell.name for cell in (*curves[0].cells, *curves[0].aside)}
    lost = {count for count, _ in curves[0].missing}
    kept = [cell for cell in cells if cell.name in on_curve or cell.records[0].spec.devices in lost]
    return sorted(kept, key=lambda cell: cell.records[0].spec.devices), curves[0], ""


def _several(names: Sequence[str], one: str) -> InputError:
    """Return the error for several curves or configurations; `one`: the selection of one of them."""
    listed = "; ".join(names[:MAX_CURVES_NAMED])
    problem = Problem("STUDY", f"{len(names)} selected: {listed}", "one curve over devices, or one configuration")
    step = f"select one, such as: steelyard pack {shlex.quote(one)}"
    return InputError("a pack covers one configuration", problems=(problem,), next_step=step)


# -- pages


def pack_page(pack: Pack) -> Page:
    """Return the whole pack: the section to submit with all charts, its audit, and the checklists."""
    sections = (*_sections(pack), audit_section(pack), *(checklist_section(pack, file) for file in pack.schemes))
    downloads = {"table.csv": pack.table_csv.encode(), "claims.toml": pack.claims_toml.encode()}
    return replace(_page(pack, "Allocation pack"), sections=sections, downloads=downloads)


def hand_in_sections(pack: Pack) -> list[Section]:
    """Return the sections for the proposal: one chart, and no questions."""
    return [_short(section) for section in _sections(pack)]


def hand_in_page(pack: Pack, sections: Sequence[Section]) -> Page:
    """Return the part to submit, without a summary."""
    # The answer is a paragraph like the others.
    shown = [
        replace(part, answer="", blocks=(*((Prose((part.answer,)),) if part.answer else ()), *part.blocks))
        for part in sections
    ]
    return replace(_page(pack, "Performance and resources"), sections=tuple(shown))


def appendix_page(pack: Pack, sections: Sequence[Section]) -> Page:
    """Return what the part to submit has no room for."""
    return replace(
        _page(pack, "Appendix: performance and resources"),
        sections=tuple(replace(part, answer="") for part in sections),
    )


def _sections(pack: Pack) -> tuple[Section, ...]:
    made = (
        request_section(pack),
        scaling_section(pack),
        performance_section(pack),
        use_section(pack),
        energy_section(pack),
        machine_section(pack),
    )
    return with_note(made, tuned_note(cell.spec for cell in pack.cells))


def _short(section: Section) -> Section:
    charts = [block for block in section.blocks if isinstance(block, Chart)]
    kept = [block for block in section.blocks if block not in charts or block.name == HANDED_IN]
    return replace(section, question="", blocks=tuple(kept))


def _page(pack: Pack, title: str) -> Page:
    subtitle = "; ".join(file.scheme.title for file in pack.schemes) or "No scheme selected"
    if pack.simulated:
        subtitle += ". Simulated device: the results do not apply to any hardware"
    return Page(
        title=f"{title}: {pack.selection}",
        subtitle=subtitle,
        sections=(),
        made_at=datetime.now(UTC).isoformat(timespec="seconds"),
        made_by=f"steelyard {VERSION}",
    )
