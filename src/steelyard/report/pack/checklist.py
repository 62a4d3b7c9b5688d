"""Check which demands of a scheme a pack answers and where, and what to do about the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from steelyard.report.pack.sections import utilisation
from steelyard.report.page import Cell, Column, Prose, Section, Table

if TYPE_CHECKING:
    from collections.abc import Callable

    from steelyard.inputs.scheme import Demand, Need, SchemeFile
    from steelyard.report.pack.model import Pack

TITLES = {
    "device-hours": "Requested resources",
    "scaling": "Scaling",
    "performance": "Base performance",
    "use": "Device utilisation",
    "energy": "Energy",
    "machine": "Hardware and software",
}


@dataclass(frozen=True)
class Answer:
    """Answer to one need."""

    section: str
    """The section for the answer."""
    todo: str = ""
    """What to do; empty if the need is met."""


def _met(section: str, holds: object, todo: str) -> Answer:
    return Answer(section, "" if holds else todo)


def _scaling(pack: Pack) -> Answer:
    if pack.curve is None:
        return Answer("scaling", "measure at least two numbers of devices: [sweep] devices = [1, 2, 4, 8]")
    codes = sorted({finding.code for finding in pack.curve.findings if finding.severity == "error"})
    if pack.curve.blocked:
        return Answer("scaling", f"fix the errors of the scaling: {', '.join(codes)}")
    unreliable = [cell.records[0].spec.devices for cell in pack.curve.aside] or [p.devices for p in pack.curve.points]
    reasons = [*pack.curve.doubts, *(reason for cell in pack.curve.aside for reason in cell.unreliable)]
    todo = f"repeat {', '.join(map(str, unreliable))} devices: {'; '.join(dict.fromkeys(reasons))}"
    return _met("scaling", not reasons, todo)


def _kind(pack: Pack, kind: str) -> Answer:
    has = pack.curve.kind if pack.curve is not None and not pack.curve.blocked else "none"
    return _met("scaling", has == kind, f"measure {kind} scaling too (this study: {has})")


def _one_and_two(pack: Pack) -> Answer:
    if pack.curve is not None and pack.curve.blocked:
        return _scaling(pack)
    points = () if pack.curve is None else pack.curve.points
    counts = {point.devices for point in points}
    missing = " and ".join(str(count) for count in (1, 2) if count not in counts)
    return _met("scaling", not missing, f"measure {missing} device(s) with the same settings")


def _largest(pack: Pack) -> Answer:
    asked, largest = pack.request.plan.devices, pack.request.basis.largest
    todo = f"measure {asked} devices, or request at most {largest}, the largest number measured"
    doubts = [cell.unreliable for cell in pack.cells if cell.records[0].spec.devices == asked and cell.throughput.value]
    if asked <= largest and any(doubts):
        return Answer("scaling", f"repeat {asked} devices: {'; '.join(doubts[0])}")
    return _met("scaling", asked <= largest, todo)


def _uncertainty(pack: Pack) -> Answer:
    if pack.request.blocked_by:
        return _hours(pack)
    known = pack.request.worked_out.amount.low is not None and pack.request.measured_jobs > 1
    todo = f"run the job on {pack.request.plan.devices} devices at least three times: --repeats 3"
    return _met("device-hours", known, todo)


def _buffer(pack: Pack, file: SchemeFile) -> Answer:
    wanted, has = file.scheme.buffer, pack.request.plan.buffer_percent
    if wanted is None:
        return _met("device-hours", has, "add a buffer: --buffer PERCENT")
    todo = f"set --buffer to {wanted.low_percent:g} to {wanted.high_percent:g}; this pack has {has:g} %"
    return _met("device-hours", wanted.low_percent <= has <= wanted.high_percent, todo)


def _production(pack: Pack) -> Answer:
    records = [record for record in pack.request.basis.cell.records if record.status.code == "completed"]
    read = bool(records) and all(record.data is not None and record.spec.loader.place == "host" for record in records)
    return _met("machine", read, "measure with real data from its file system: [run.data] and loader workers")


def _energy(pack: Pack) -> Answer:
    return _met("energy", pack.request.energy, f"measure energy: {pack.request.energy_reason}; see steelyard doctor")


def _use(pack: Pack) -> Answer:
    known = any(
        (quantity := record.quantities.get("compute_share")) is not None and quantity.value is not None
        for record in pack.request.basis.cell.records
    )
    return _met(
        "use", known or utilisation(pack) is not None, "run with crosscheck_steps = 50 to measure the parts of a step"
    )


def _hours(pack: Pack) -> Answer:
    codes = pack.request.blocked_by
    return _met("device-hours", not codes, f"fix the errors of the throughput: {', '.join(codes)}")


def _measured(pack: Pack) -> Answer:
    known = [cell for cell in pack.cells if cell.throughput.value]
    valid = [cell for cell in known if not any(finding.severity == "error" for finding in cell.findings)]
    return _met("performance", valid, "fix the errors of the runs" if known else "complete at least one run")


CHECKS: dict[Need, Callable[[Pack, SchemeFile], Answer]] = {
    "pilot": lambda pack, _: _measured(pack),
    "timings": lambda pack, _: Answer("scaling", _measured(pack).todo),
    "base": lambda pack, _: _measured(pack),
    "scaling": lambda pack, _: _scaling(pack),
    "strong": lambda pack, _: _kind(pack, "strong"),
    "weak": lambda pack, _: _kind(pack, "weak"),
    "efficiency": lambda pack, _: _scaling(pack),
    "one-and-two": lambda pack, _: _one_and_two(pack),
    "largest-job": lambda pack, _: _largest(pack),
    "linear-plot": lambda pack, _: _scaling(pack),
    "device": lambda _, __: Answer("performance"),
    "device-hours": lambda pack, _: _hours(pack),
    "uncertainty": lambda pack, _: _uncertainty(pack),
    "overhead": lambda _, __: Answer("device-hours"),
    "buffer": _buffer,
    "charge": lambda pack, _: _met(
        "device-hours", pack.request.charge, "set the rate of the site: --site SITE, or --charge '1.5 SU/device-hour'"
    ),
    "utilisation": lambda pack, _: _met(
        "use", utilisation(pack), "use a workload with known FLOPs and a device with known peak: steelyard workloads"
    ),
    "device-use": lambda pack, _: _use(pack),
    "energy": lambda pack, _: _energy(pack),
    "software": lambda _, __: Answer("machine"),
    "hardware": lambda _, __: Answer("machine"),
    "production-input": lambda pack, _: _production(pack),
    "yours": lambda _, __: Answer("", "not measurable: write it yourself"),
}


@dataclass(frozen=True)
class DemandLine:
    """One demand of a scheme, with the sections that answer it and what is left to do."""

    demand: Demand
    sections: tuple[str, ...]
    todo: tuple[str, ...]


def lines(pack: Pack, file: SchemeFile) -> list[DemandLine]:
    """Check every demand of a scheme."""
    made = []
    for demand in file.scheme.demand:
        answers = [CHECKS[need](pack, file) for need in demand.needs]
        todo = [answer.todo for answer in answers if answer.todo]
        todo += [demand.advice] if demand.advice and todo else []
        sections = dict.fromkeys(answer.section for answer in answers if answer.section and not answer.todo)
        made.append(DemandLine(demand, tuple(sections), tuple(dict.fromkeys(todo))))
    return made


def fits(pack: Pack, file: SchemeFile) -> bool:
    """Whether the section to submit keeps the page limit; True if the pages were not counted."""
    limit = file.scheme.page_limit
    return limit is None or pack.pages is None or pack.pages <= limit


def checklist_section(pack: Pack, file: SchemeFile) -> Section:
    """List the demands of one scheme with the answers or what to do, and the page limit."""
    scheme, made = file.scheme, lines(pack, file)
    rows: list[tuple[Cell, ...]] = []
    for line in made:
        where = ", ".join(TITLES[name] for name in line.sections)
        word = "NOT answered" if line.todo and not line.sections else "in part" if line.todo else "yes"
        rows.append(
            (
                Cell(line.demand.demand, line.demand.id),
                Cell(word, word),
                Cell(where or "-", where or None),
                Cell("; ".join(line.todo) or "-", "; ".join(line.todo) or None),
            )
        )
    rows += [_pages_row(pack, scheme.page_limit)] if scheme.page_limit is not None else []
    columns = (
        Column("demand", align="left"),
        Column("answered", align="left"),
        Column("where", align="left"),
        Column("what to do", align="left"),
    )
    address = f", {scheme.address}" if scheme.address else ""
    notes = [f"Source: {scheme.source}{address}; seen {scheme.seen}. Check the current form."]
    notes += ["This scheme has ended."] if scheme.state == "historic" else []
    notes += ["All scaling plots have linear axes, as this scheme requires."] if scheme.axes == "linear" else []
    answered = sum(not line.todo for line in made)
    name = f"checklist-{file.name.lower()}"
    table = Table(name, f"Demands of {scheme.title}", columns, tuple(rows), tuple(notes))
    missing = ", ".join(line.demand.id for line in made if line.todo)
    answer = f"{answered} of {len(made)} demands answered" + (f"; open: {missing}." if missing else ".")
    return Section(
        name=name,
        title=f"Checklist: {scheme.title}",
        question=f"Does the pack answer the demands of {scheme.title}?",
        answer=answer,
        blocks=(table, *((Prose((scheme.about,)),) if scheme.about else ())),
    )


def _pages_row(pack: Pack, limit: float) -> tuple[Cell, ...]:
    demand = Cell(f"At most {limit:g} pages.", "pages")
    if pack.pages is None:
        return demand, Cell("not counted", "not counted"), Cell("-"), Cell("create the PDF: --pdf")
    if pack.pages <= limit:
        rest = "the rest is in appendix.tex" if pack.appendix else "-"
        return demand, Cell("yes", "yes"), Cell(f"{pack.pages:g} pages", pack.pages), Cell(rest, rest)
    todo = f"shorten section.tex ({pack.pages:g} pages): leave out what the form does not ask for"
    return demand, Cell("NOT answered", "NOT answered"), Cell(f"{pack.pages:g} pages", pack.pages), Cell(todo, todo)
