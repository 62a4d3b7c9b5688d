"""The sections of an allocation pack: hours, scaling, performance, use, energy, machine, audit. Knows words."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from steelyard.analysis.rows import row_of
from steelyard.analysis.summary import MEASURED
from steelyard.report.charts.loss import loss_chart
from steelyard.report.charts.scaling import efficiency_chart, throughput_chart
from steelyard.report.charts.style import counted, figure_cell, run_ids
from steelyard.report.page import Cell, Column, Prose, Section, Table
from steelyard.stats.scaling_fit import CurveFit
from steelyard.terminal.claims import claim_tally
from steelyard.terminal.findings import tally
from steelyard.terminal.scaling import KINDS
from steelyard.terminal.scaling import answer as scaling_answer
from steelyard.terminal.text import capital, number, seconds, with_interval

if TYPE_CHECKING:
    from collections.abc import Sequence

    from steelyard.analysis.request import Basis, Request, Term
    from steelyard.analysis.summary import CellSummary
    from steelyard.contracts.record import Finding, RunRecord
    from steelyard.report.pack.model import Pack
    from steelyard.rules.table.row import Amount

BLOCKED = "No efficiency is given before the findings that block are mended."
SHARES = (
    ("compute_share", "computation"), ("input_wait_share", "waiting for input"),
    ("exposed_comm_share", "communication, not hidden"), ("model_flops_utilisation", "model FLOPs utilisation"),
)  # fmt: skip
SETTINGS = {
    "model": "model", "model_options": "options of the model", "phase": "phase", "dataset": "data",
    "precision": "arithmetic", "parameter_precision": "parameters kept as", "batch_per_device": "batch of a device",
    "global_batch": "batch of the job", "optimizer": "optimizer", "parallelism": "parallelism",
    "backend": "communication by", "compile": "compilation", "channels_last": "channels last",
    "workers_per_device": "loader processes a device", "framework": "framework", "build": "build",
    "container": "container", "accelerator": "accelerator", "driver": "driver", "device_clock": "device clock",
    "power_limit": "power limit", "host_cpu": "host CPU", "cpus": "CPUs", "architecture": "architecture",
    "kernel": "kernel", "filesystem": "file system of the data", "timing": "steps are timed by", "node": "nodes",
}  # fmt: skip
MAX_FACT = 300
SCOPES = {
    "die": "one die of a card; a card has {dies} of them and each counts as a device",
    "device": "one accelerator card or package",
    "module": "one module, host part included",
}


# -- device-hours


def request_section(pack: Pack) -> Section:
    """What is asked for, term by term."""
    found = pack.request
    blocks: tuple[Any, ...] = (derivation_table(found), Prose(tuple(_about_hours(pack))))
    codes = ("SY315", "SY510")
    own = (entry for entry in pack.own_audit.findings if entry.code in codes)
    # What must be known of the runs that the rate comes from. The spread between jobs is judged by here, which is the
    # fix for a job's own interval.
    beside = ("SY203", "SY4") if found.measured_jobs > 1 else ("SY4",)
    on_rate = [entry for entry in _telling(found.basis.cell.findings) if not entry.code.startswith(beside)]
    findings = (*on_rate, *own, *pack.projected)
    return Section(
        "device-hours", "Resources asked for", "What does the plan take, and how does that follow?",
        hours_answer(found), blocks, findings,
    )  # fmt: skip


def hours_answer(found: Request) -> str:
    """The hours in a sentence or two."""
    plan, asked, charge = found.plan, found.asked.amount, found.charge
    runs = counted(plan.trainings, "training")
    verb = "takes" if plan.trainings == 1 else "take"
    text = f"{runs} on {counted(plan.devices, 'device')} {verb} {_words(found.worked_out, found.measured_jobs)}"
    text += "" if found.basis.kind == "measured" else " (not measured at this size)"
    failed, buffer = found.term("f"), found.plan.buffer_percent
    parts = [f"failed runs of {number(100 * failed.amount.value, 2)} %"] if failed and failed.amount.value else []
    parts += [f"a buffer of {buffer:g} %"] if buffer else []
    on_top = f", with {' and '.join(parts)}" if parts else ", without any buffer"
    text += f". To ask for: {number(asked.value, 4)} device-hours{on_top}"
    if charge is not None and charge.unit != "device-hour":
        text += f", which is {number(charge.amount.value, 4)} {charge.unit}{'s' * charge.unit.endswith('hour')}"
    return f"{text}.{unusable(found)}"


def unusable(found: Request) -> str:
    """A sentence where findings forbid the use of the rate; it stands beside every figure that rests on it."""
    codes = found.blocked_by
    verb = "forbids" if len(codes) == 1 else "forbid"
    return f" Not to be used before it is mended: {', '.join(codes)} {verb} the rate it rests on." if codes else ""


def _words(term: Term, jobs: int) -> str:
    amount = term.amount
    text = f"{number(amount.value, 4)} {term.unit}"
    if amount.low is None or amount.high is None:
        return f"{text}, without an interval"
    # Of one job the steps alone tell an interval: it says nothing of the next job.
    of_one = " of the one job measured," if jobs == 1 else ""
    return f"{text} (95 % interval{of_one} {number(amount.low, 4)} to {number(amount.high, 4)})"


RESTING = ("r", "T1", "T", "H", "F", "A", "C", "e", "W")
"""Terms that are no better than the measured rate."""
COLUMNS = (
    Column("", align="left"), Column("what", align="left"), Column("how", align="left"), Column("value"),
)  # fmt: skip


def derivation_table(found: Request) -> Table:
    """Every number with its formula, in symbols and in figures."""
    rows = tuple(_derived(term, found.terms, found.blocked_by) for term in found.terms)
    return Table("derivation", "Device-hours, term by term", COLUMNS, rows, tuple(_interval_notes(found)))


def _derived(term: Term, terms: Sequence[Term], blocked: tuple[str, ...]) -> tuple[Cell, ...]:
    how = term.origin
    # As a file of its own the table has no sentence beside it.
    codes = blocked if term.symbol in RESTING else ()
    if term.formula:
        names = {other.symbol: other.symbol for other in terms}
        figures = {other.symbol: _figure(other.amount.value, other.digits) for other in terms}
        how = f"{term.formula.format(**names)} = {term.formula.format(**figures)}"
    amount = term.amount
    text = _figure(amount.value, term.digits)
    if amount.low is not None and amount.high is not None and amount.low != amount.high:
        text += f" [{number(amount.low, term.digits)}, {number(amount.high, term.digits)}]"
    return (
        Cell(term.symbol, term.symbol),
        # For machines the unit stands beside the name, because the value is a number there.
        Cell(term.what, f"{term.what}, {term.unit}" if term.unit else term.what),
        Cell(how, how),
        Cell(
            f"{text} {term.unit}".rstrip(),
            amount.value,
            amount.low,
            amount.high,
            term.runs,
            codes,
        ),
    )


def _figure(value: float, digits: int) -> str:
    """Whole numbers and short ones as they are."""
    if value == int(value) and abs(value) < 1e12:
        return f"{value:,.0f}"
    return f"{value:g}" if float(f"{value:g}") == value else number(value, digits)


def _interval_notes(found: Request) -> list[str]:
    jobs = found.plan.trainings * found.jobs_a_training
    notes = [*found.approximate]
    if found.worked_out.amount.low is not None and found.measured_jobs > 1:
        notes.insert(
            0,
            f"[]: 95 % intervals. Of r, T1, t and T: of the mean, Student's t over {found.measured_jobs} jobs. "
            f"From H on: of what {counted(jobs, 'job')} to come will take, which adds the spread between jobs.",
        )
    elif found.worked_out.amount.low is not None:
        notes.insert(0, "[]: 95 % interval of the steps of one job: it speaks for that job only.")
    return [f"{note[0].upper()}{note[1:].rstrip('.')}." for note in notes]


def _about_hours(pack: Pack) -> list[str]:
    """What the figures rest on, what is on top and what is not in them."""
    found = pack.request
    said = [basis_words(found.basis, found.plan.devices) + _error_words(pack), _failed_words(found)]
    said.append(_buffer_words(found))
    said.append(f"Not counted: {'; '.join(found.uncounted)}.")
    if found.tariff is not None:
        assert found.tariff is not None
        held = "each node, used whole or in part" if found.tariff.per_node_hour else "the devices that a job asks for"
        if found.tariff.whole_nodes:
            held = "whole nodes, used or not"
        said.append(f"Charged by {found.tariff.source}, for {held}. {_limit_words(found)}")
    else:
        said.append(f"No conversion to a site's unit: none was given. {_limit_words(found)}")
    return [text for text in said if text]


def basis_words(basis: Basis, devices: int) -> str:
    """Which jobs the rate comes from."""
    jobs = counted(sum(record.status.code in MEASURED for record in basis.cell.records), "job")
    if basis.kind == "measured":
        return f"The rate is that of {jobs} measured on {counted(basis.devices, 'device')}."
    start = f"Nothing was measured on {counted(devices, 'device')}; the largest job measured has {basis.largest}."
    if basis.projection is not None:
        model = basis.projection.model
        return f"{start} The rate is a projection by the model '{model}', and has no interval."
    if basis.kind == "largest":
        return (
            f"{start} The rate is that of {basis.devices} devices times {devices / basis.devices:g}, as if no more "
            "were lost: the hours are the least that the plan can take."
        )
    return (
        f"{start} The rate is by the device that of {basis.devices} devices, the next larger count measured: fewer "
        "devices commonly lose less."
    )


def _error_words(pack: Pack) -> str:
    """How wrong the model of a projection is where it can be held against a measurement."""
    used = pack.request.basis.projection
    for fit in pack.curve.fits if pack.curve is not None and used is not None else ():
        if isinstance(fit, CurveFit) and used is not None and fit.name == used.model:
            return f" Of points that it had not seen, it missed one by {number(fit.error_percent, 2)} % at most."
    return ""


def _failed_words(found: Request) -> str:
    lost, runs = found.lost_runs, found.counted_runs
    if found.plan.failed_percent is not None:
        return f"Failed runs: {found.plan.failed_percent:g} % as given; in the study {lost} of {runs} failed."
    return (
        f"Failed runs: {lost} of {runs} of the study; with 95 % certainty at most {number(100 * found.most_lost, 2)} % "
        "fail. Each is counted as a training made again."
    )


def _buffer_words(found: Request) -> str:
    with_failed = found.term("F")
    if with_failed is None or with_failed.amount.high is None:
        return ""
    if not found.plan.buffer_percent:
        return f"No buffer is in the request; the interval reaches {number(with_failed.amount.high, 4)} device-hours."
    covers = found.asked.amount.value >= with_failed.amount.high
    word = "covers" if covers else "does not cover"
    return f"The buffer {word} the upper end of the interval, {number(with_failed.amount.high, 4)} device-hours."


def _limit_words(found: Request) -> str:
    time = found.term("T")
    assert time is not None
    longest_s = (time.amount.high or time.amount.value) / found.jobs_a_training
    return (
        f"Where a site charges the time that a job asks for and not what it uses, jobs that ask for more than their "
        f"{number(longest_s / 3600, 3)} h cost more than this."
    )


# -- scaling


def scaling_section(pack: Pack) -> Section:
    """Table and linear plots up to the largest job, with the base."""
    question = "How does the job scale, up to the largest one asked for?"
    curve = pack.curve
    if curve is None:
        unit = pack.cells[0].throughput.unit
        rows = tuple(
            (
                Cell(str(cell.records[0].spec.ranks), cell.records[0].spec.ranks),
                figure_cell(cell.throughput, tuple(record.run_id for record in cell.records)),
            )
            for cell in pack.cells
        )
        rates_table = Table("scaling-table", "Throughput", (Column("devices"), Column("throughput", unit)), rows)
        return Section("scaling", "Scaling", question, f"Not shown: {pack.no_curve}.", (rates_table,))
    runs = run_ids(pack.cells)
    chart = throughput_chart(curve, runs=runs)
    table = dataclasses.replace(chart.table, name="scaling-table")
    blocks: list[Any] = [table, chart]
    if not curve.blocked:
        blocks.append(efficiency_chart(curve, runs=runs))
    answer = BLOCKED if curve.blocked else scaling_answer(curve)
    text = KINDS[pack.curve.kind] if pack.curve is not None else ""
    kind = f"{capital(text)}." if text else ""
    return Section("scaling", "Scaling", question, f"{kind} {answer}", tuple(blocks), _telling(curve.findings))


def _telling(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    return tuple(found for found in findings if found.severity != "note")


# -- absolute performance


def performance_section(pack: Pack) -> Section:
    """Base performance in absolute terms, and what one device is."""
    cell = base_cell(pack)
    spec = cell.records[0].spec
    rate = cell.throughput
    facts = [
        ("base", counted(spec.ranks, "device")),
        (
            "throughput of the base",
            f"{with_interval(rate)} {rate.unit}" if rate.value is not None else str(rate.reason),
        ),
    ]
    if rate.value is not None:
        facts.append(("a device", f"{number(rate.value / spec.ranks)} {rate.unit}"))
    row = row_of(cell)
    for name, what in (("step_time_mean", "time of a step"), ("step_time_p99", "99 of 100 steps take at most")):
        if name in row.figures:
            facts.append((what, seconds(row.figures[name].value)))
    if "memory_peak" in row.figures:
        facts.append(("memory of a device at most", f"{number(row.figures['memory_peak'].value / 2**30, 3)} GiB"))
    facts.append(("samples of a step", f"{spec.step_samples:,}"))
    facts.append(("one device is", device_words(cell.records)))
    facts.append(("jobs", f"{row.get('jobs')}, window: {rate.window}"))
    answer = f"{counted(spec.ranks, 'device')}: {with_interval(rate)} {rate.unit}." if rate.value else str(rate.reason)
    codes = dict.fromkeys(one.code for one in cell.findings if one.severity == "error" and one.code[:3] != "SY4")
    answer += f" Not to be used before it is mended: {', '.join(codes)}." if codes else ""
    question = "What does the base of the scaling do in absolute terms, and what is one device?"
    table = _facts_table("base-performance", "Performance of the base", facts)
    return Section("performance", "Base performance", question, answer, (table,))


def _facts_table(name: str, title: str, facts: Sequence[tuple[str, str]]) -> Table:
    rows = tuple((Cell(what, what), Cell(value, value)) for what, value in facts)
    return Table(name, title, (Column("what", align="left"), Column("is", align="left")), rows)


def base_cell(pack: Pack) -> CellSummary:
    """Of the curve; without one, the smallest that has a figure."""
    if pack.curve is not None:
        return next(cell for cell in pack.cells if cell.cell == pack.curve.base.cell)
    return next((cell for cell in pack.cells if cell.throughput.value is not None), pack.cells[0])


def device_words(records: Sequence[RunRecord]) -> str:
    """What the job counts as one device."""
    record = records[0]
    device = record.device
    if record.spec.device_family == "sim":
        return "one simulated device, one process each"
    if device is None:
        return "not known: the record says nothing of the device"
    said = SCOPES.get(device.scope, device.scope).format(dies=device.dies or "several")
    name = device.model or device.name
    return (
        f"{said} ({name})" if device.model else f"what the job sees as one device ({name}; not in the table of facts)"
    )


# -- how well devices are used


def use_section(pack: Pack) -> Section:
    """Where the devices' time goes, and their share of what they can do at most."""
    rows, known = [], [(name, what) for name, what in SHARES if any(_share(cell, name) for cell in pack.cells)]
    for cell in pack.cells:
        ids = tuple(record.run_id for record in cell.records)
        cells = [Cell(str(cell.records[0].spec.ranks), cell.records[0].spec.ranks)]
        rows.append((*cells, *(_share_cell(_share(cell, name), ids) for name, _ in known)))
    columns = (Column("devices"), *(Column(what, "%") for _, what in known))
    mfu_note = "Model FLOPs utilisation: operations of the model over the peak of the device for this arithmetic."
    if utilisation(pack) is None:
        told = [record.quantities.get("model_flops_utilisation") for record in pack.request.basis.cell.records]
        reasons = [quantity.reason for quantity in told if quantity is not None and quantity.reason]
        why = reasons[0] if reasons else "the operations of the model are not"
        mfu_note = f"Model FLOPs utilisation is not known: {why}."
    table = Table("device-use", "Where the time of the devices goes", columns, tuple(rows), (mfu_note,))
    blocks: list[Any] = [table] if known else []
    if pack.curve is not None and not pack.curve.blocked:
        blocks.append(loss_chart(pack.curve, "device-loss", runs=run_ids(pack.cells)))
    question = "How well are the devices used?"
    compute, mfu = _share(pack.request.basis.cell, "compute_share"), utilisation(pack)
    devices = counted(pack.request.basis.devices, "device")
    parts = [f"{number(100 * compute.value, 3)} % of the time is computation"] if compute else []
    parts += [f"model FLOPs utilisation is {number(100 * mfu.value, 3)} %"] if mfu else []
    answer = f"On {devices}: {'; '.join(parts)}." if parts else "The records do not tell where the time goes."
    return Section("use", "Use of the devices", question, answer, tuple(blocks))


def _share(cell: CellSummary, name: str) -> Amount | None:
    return row_of(cell).figures.get(name)


def _share_cell(found: Amount | None, ids: tuple[str, ...]) -> Cell:
    if found is None:
        return Cell("not known")
    text = number(100 * found.value, 3)
    if found.low < found.high:
        text += f" [{number(100 * found.low, 3)}, {number(100 * found.high, 3)}]"
    return Cell(text, 100 * found.value, 100 * found.low, 100 * found.high, ids)


def utilisation(pack: Pack) -> Amount | None:
    """Model FLOPs utilisation of the jobs that the plan rests on."""
    return _share(pack.request.basis.cell, "model_flops_utilisation")


# -- energy


def energy_section(pack: Pack) -> Section:
    """Of a sample and of the plan; only what can be believed."""
    found = pack.request
    question = "What does the plan cost in energy?"
    if not found.energy:
        return Section("energy", "Energy", question, f"Not given: {found.energy_reason}.")
    terms = (*found.terms, *found.energy)
    rows = tuple(_derived(term, terms, found.blocked_by) for term in found.energy)
    entry = next(one for one in pack.energies if one.cell.cell == found.basis.cell.cell)
    notes = ["Of the steps only: set-up, compilation, failed runs and the buffer are not in it."]
    if found.energy[-1].amount.low is not None:
        notes.append("[]: 95 % intervals of the mean of the jobs measured, not of the jobs to come.")
    validity = entry.main.validity
    if validity is not None and validity.reasons and not entry.findings:
        notes.append(f"{validity.verdict.capitalize()}: {validity.reasons[0]}.")
    table = Table("plan-energy", "Energy of the plan", COLUMNS, rows, tuple(notes))
    said = _words(found.energy[-1], found.measured_jobs)
    answer = f"{said} for the steps of the plan (counted: {entry.scope}; {entry.verdict}).{unusable(found)}"
    return Section("energy", "Energy", question, answer, (table,), _telling(entry.findings))


# -- machine


def machine_section(pack: Pack) -> Section:
    """Hardware and software in effect, of the jobs that the plan rests on."""
    cell = pack.request.basis.cell
    row = row_of(cell)
    record = cell.records[0]
    facts = _device_facts(record) if record.device is not None else []
    for key, words in SETTINGS.items():
        # What is unknown or off is left out; zero is a number.
        value = row.get(key)
        if value is not None and value is not False and value != "none":
            text = str(value)
            facts.append((words, text if len(text) <= MAX_FACT else f"{text[:MAX_FACT]} ..."))
    answer = f"{row.get('accelerator')}, {row.get('framework') or 'framework not recorded'}."
    if pack.simulated:
        answer = "On a simulated device: no hardware and no framework."
    study = f"Every run of '{cell.study}' has its whole environment in its record: steelyard show RUN_ID --json."
    return Section(
        "machine", "Hardware and software", "On what was it measured?", answer,
        (_facts_table("machine-facts", "Hardware and software in effect", facts), Prose((study,))),
    )  # fmt: skip


def _device_facts(record: RunRecord) -> list[tuple[str, str]]:
    device = record.device
    assert device is not None
    facts = [("device", f"{device.name}{f' ({device.model})' if device.model else ''}")]
    if device.memory_bytes:
        facts.append(("memory of a device", f"{number(device.memory_bytes / 2**30, 4)} GiB"))
    if device.power_limit_w:
        facts.append(("power limit of a device, by its maker", f"{number(device.power_limit_w, 4)} W"))
    return facts


# -- the pack, audited


def audit_section(pack: Pack) -> Section:
    """Findings on the runs of the study, on its curve, and on what the pack prints."""
    own = pack.own_audit
    # Each rule once, with its first place: `steelyard audit STUDY` has them all.
    groups: dict[tuple[str, str], list[Finding]] = {}
    for found in pack.findings:
        groups.setdefault((found.code, found.severity), []).append(found)
    findings = tuple(
        dataclasses.replace(same[0], place=f"{same[0].place}; {len(same) - 1} more like it")
        if len(same) > 1
        else same[0]
        for same in groups.values()
    )
    columns = (
        Column("claim", align="left"), Column("printed"), Column("worked out again", align="left"),
        Column("verdict", align="left"),
    )  # fmt: skip
    rows = tuple(
        (
            Cell(entry.claim.text, entry.claim.text),
            Cell(entry.claim.published, entry.claim.published),
            Cell(entry.recomputed, entry.recomputed),
            Cell(entry.verdict, entry.verdict, codes=tuple(dict.fromkeys(found.code for found in entry.findings))),
        )
        for entry in own.judgements
    )
    blocks = (Table("own-claims", "What this pack claims, worked out from what it prints", columns, rows),)
    held = f" {claim_tally(own.judgements)}." if own.judgements else ""
    of_study = pack.findings[: len(pack.findings) - len(own.findings)]
    counts = [tally(found).partition(";")[0] for found in (of_study, own.findings)]
    answer = f"The study and its curve: {counts[0]}. What is printed here: {counts[1]}.{held}"
    return Section(
        "audit", "Audit of this pack", "Does it hold what it says?", answer, blocks if rows else (), findings
    )
