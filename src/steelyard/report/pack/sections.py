"""The sections of an allocation pack: device-hours, scaling, performance, utilisation, energy, machine, audit."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from steelyard.analysis.rows import row_of
from steelyard.contracts.observe import MEASURED
from steelyard.inputs.command import public_words
from steelyard.report.charts.loss import loss_chart
from steelyard.report.charts.scaling import efficiency_chart, throughput_chart
from steelyard.report.charts.style import counted, figure_cell, marked, run_ids
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
    from steelyard.contracts.finding import Finding
    from steelyard.contracts.record import RunRecord
    from steelyard.report.pack.model import Pack
    from steelyard.rules.table.row import Amount

BLOCKED = "Parallel efficiency not reported until the errors are fixed."
SHARES = (
    ("compute_share", "computation"),
    ("host_wait_share", "waiting for the host"),
    ("input_wait_share", "waiting for input"),
    ("exposed_comm_share", "exposed communication"),
    ("model_flops_utilisation", "model FLOPs utilisation"),
)
SETTINGS = {
    "model": "model",
    "model_options": "model options",
    "mode": "mode",
    "serving": "generation",
    "dataset": "data",
    "precision": "precision",
    "parameter_precision": "parameter precision",
    "autocast": "autocast",
    "batch": "batch per device",
    "global_batch": "global batch",
    "optimizer": "optimizer",
    "parallel": "parallel",
    "preset": "preset",
    "optimizer_kernel": "optimizer implementation",
    "attention": "attention kernel",
    "cudnn_benchmark": "cuDNN benchmark",
    "numa": "bound to NUMA nodes",
    "backend": "communication backend",
    "compile": "compilation",
    "channels_last": "channels last",
    "loader.workers": "loader processes per device",
    "framework": "framework",
    "build": "build",
    "container": "container",
    "accelerator": "accelerator",
    "driver": "driver",
    "device_clock": "device clock",
    "power_limit": "power limit",
    "host_cpu": "host CPU",
    "cpus": "CPUs",
    "architecture": "architecture",
    "kernel": "kernel",
    "filesystem": "file system of the data",
    "timing": "step timer",
    "node": "nodes",
}
MAX_FACT = 300
NOTABLE_PERCENT = 0.05
"""Below it, what failures add is no news to the reader of a request."""
PUBLISHED_FAILURES = "the training of Llama 3 (419 in 54 days on 16,384 GPUs, arXiv 2407.21783)"
SCOPES = {
    "die": "one die of a card; each of the {dies} dies counts as a device",
    "device": "one accelerator card or package",
    "module": "one module, including its host part",
}


# -- device-hours


def request_section(pack: Pack) -> Section:
    """Requested resources, derived term by term."""
    request = pack.request
    blocks: tuple[Any, ...] = (derivation_table(request), Prose(tuple(_about_hours(pack))))
    codes = ("SY315", "SY510")
    own = (entry for entry in pack.own_audit.findings if entry.code in codes)
    # Findings on the runs behind the throughput. With several jobs the spread between jobs is used, so a finding on the
    # interval of a single job (SY203) does not apply.
    beside = ("SY203", "SY4") if request.measured_jobs > 1 else ("SY4",)
    on_rate = [entry for entry in _telling(request.basis.cell.findings) if not entry.code.startswith(beside)]
    findings = (*on_rate, *own, *pack.projected)
    return Section(
        name="device-hours",
        title="Requested resources",
        question="How many device-hours does the plan need, and why?",
        answer=hours_answer(request),
        blocks=blocks,
        findings=findings,
    )


def hours_answer(request: Request) -> str:
    """State the requested device-hours in two sentences."""
    plan, asked, charge = request.plan, request.asked.amount, request.charge
    runs = counted(plan.trainings, "training")
    verb = "needs" if plan.trainings == 1 else "need"
    text = f"{runs} on {counted(plan.devices, 'device')} {verb} {_words(request.worked_out, request.measured_jobs)}"
    text += "" if request.basis.kind == "measured" else " (not measured at this size)"
    failed, buffer = request.term("f"), request.plan.buffer_percent
    assumed = " at an assumed rate" if request.failures.origin == "assumed" else ""
    share = number(failed.amount.value, 2) if failed and failed.amount.value >= NOTABLE_PERCENT else ""
    parts = [f"{share} % for failures{assumed}"] if share else []
    parts += [f"a buffer of {buffer:g} %"] if buffer else []
    on_top = f", including {' and '.join(parts)}" if parts else ", without a buffer"
    charged = ""
    if charge is not None and charge.unit != "device-hour":
        charged = f" ({number(charge.amount.value, 4)} {charge.unit}{'s' * charge.unit.endswith('hour')})"
    text += f". Request: {number(asked.value, 4)} device-hours{charged}{on_top}"
    return f"{text}.{unusable(request)}"


def unusable(request: Request) -> str:
    """Return a warning sentence if the throughput has errors; it goes with every number derived from it."""
    codes = request.blocked_by
    return f" Do not use: the throughput has errors ({', '.join(codes)})." if codes else ""


def _words(term: Term, jobs: int) -> str:
    amount = term.amount
    text = f"{number(amount.value, 4)} {term.unit}"
    if amount.low is None or amount.high is None:
        return f"{text} (no CI)"
    # The interval of a single job comes from its steps and does not cover other jobs.
    of_one = " of the only job measured," if jobs == 1 else ""
    return f"{text} (95 % CI{of_one} {number(amount.low, 4)} to {number(amount.high, 4)})"


RESTING = ("r", "T1", "T", "H", "u", "X", "F", "f", "A", "C", "e", "W")
"""Terms that depend on the measured throughput."""
COLUMNS = (
    Column("", align="left"),
    Column("quantity", align="left"),
    Column("derivation", align="left"),
    Column("value"),
)


def derivation_table(request: Request) -> Table:
    """List every term with its formula, in symbols and in numbers."""
    rows = tuple(_derived(term, request.terms, request.blocked_by) for term in request.terms)
    return Table("derivation", "Derivation of the device-hours", COLUMNS, rows, tuple(_interval_notes(request)))


def _derived(term: Term, terms: Sequence[Term], blocked: tuple[str, ...]) -> tuple[Cell, ...]:
    how = term.origin
    # The exported table must show the codes by itself.
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
        # For machines the unit is part of the name, because the value is a number.
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
    """Format a number; whole and short numbers in full."""
    if value == int(value) and abs(value) < 1e12:
        return f"{value:,.0f}"
    return f"{value:g}" if float(f"{value:g}") == value else number(value, digits)


def _interval_notes(request: Request) -> list[str]:
    jobs = request.plan.trainings * request.jobs_a_training
    notes = [*request.approximate]
    if request.worked_out.amount.low is not None and request.measured_jobs > 1:
        notes.insert(
            0,
            f"[ ] = 95 % CI. For r, T1, t and T: of the mean, Student's t over {request.measured_jobs} jobs. "
            f"From H on: of {counted(jobs, 'future job')}, including the spread between jobs, "
            "with failures at their expected number.",
        )
    elif request.worked_out.amount.low is not None:
        notes.insert(0, "[ ] = 95 % CI from the steps of one job; other jobs may differ.")
    return [f"{note[0].upper()}{note[1:].rstrip('.')}." for note in notes]


def _about_hours(pack: Pack) -> list[str]:
    """Explain the basis of the hours, what is added and what is not counted."""
    request = pack.request
    paragraphs = [basis_words(request.basis, request.plan.devices) + _error_words(pack)]
    paragraphs += [_failure_words(request), _repeat_words(request)]
    paragraphs.append(_buffer_words(request))
    paragraphs.append(f"Not counted: {'; '.join(request.uncounted)}.")
    if request.tariff is not None:
        assert request.tariff is not None
        charged = "every allocated node" if request.tariff.per_node_hour else "the requested devices"
        if request.tariff.whole_nodes:
            charged = "whole nodes, even if partly used"
        paragraphs.append(f"Charged by {request.tariff.source}, for {charged}. {_limit_words(request)}")
    else:
        paragraphs.append(f"Not converted to the unit of a site: no rate was given. {_limit_words(request)}")
    return [text for text in paragraphs if text]


def basis_words(basis: Basis, devices: int) -> str:
    """Say which jobs the throughput comes from."""
    jobs = counted(sum(record.status.code in MEASURED for record in basis.cell.records), "job")
    if basis.kind == "measured":
        return f"Throughput measured in {jobs} on {counted(basis.devices, 'device')}."
    start = f"{counted(devices, 'device')} not measured; the largest measured job has {basis.largest}."
    if basis.projection is not None:
        model = basis.projection.model
        return f"{start} The throughput is a projection by the model '{model}', without a CI."
    if basis.kind == "largest":
        return (
            f"{start} The throughput is that of {basis.devices} devices times {devices / basis.devices:g}, without "
            "further loss of efficiency: the hours are a lower limit."
        )
    return (
        f"{start} The throughput per device is that of {basis.devices} devices, the next larger number measured: fewer "
        "devices are usually more efficient."
    )


def _error_words(pack: Pack) -> str:
    """State the error of the projection's model on measurements that were left out of the fit."""
    used = pack.request.basis.projection
    for fit in pack.curve.fits if pack.curve is not None and used is not None else ():
        if isinstance(fit, CurveFit) and used is not None and fit.name == used.model:
            return f" Its largest error at a left-out measurement is {number(fit.error_percent, 2)} %."
    return ""


def _failure_words(request: Request) -> str:
    """Say where the rate of failures comes from, and what the study can tell about it."""
    failures = request.failures
    origin = {"given": "as given", "counted": "as in the study", "assumed": f"assumed as in {PUBLISHED_FAILURES}"}
    text = f"Failures: {_per_thousand(failures.rate)} per 1,000 device-hours, {origin[failures.origin]}."
    text += f" In the study {failures.lost_runs} of {counted(failures.counted_runs, 'run')} failed"
    if not failures.device_hours:
        return f"{text}; how long they ran is not known."
    text += (
        f" in {number(failures.device_hours, 2)} device-hours: at most {_per_thousand(failures.most)} per 1,000 (95 % "
        "confidence)"
    )
    if failures.most_hours is not None:
        return f"{text}, with which the plan needs {number(failures.most_hours, 4)} device-hours."
    text += f", which tells nothing about a plan of {number(request.worked_out.amount.value, 3)} device-hours."
    unexplained = failures.lost_runs and failures.origin == "assumed"
    return text + (" Find out why they failed: the assumed rate does not explain it." if unexplained else "")


def _per_thousand(rate: float) -> str:
    return number(1000 * rate, 2)


def _repeat_words(request: Request) -> str:
    """Say what a failure costs: the work since the last checkpoint, or the whole job."""
    every_s = request.plan.checkpoint_s
    chained = " Each job of a training continues from the end of the one before." if request.jobs_a_training > 1 else ""
    if every_s:
        start = f"Checkpoints: every {number(every_s / 60, 3)} min of work, as given. A failed job repeats"
        return f"{start} its set-up and the work since its last checkpoint.{chained}"
    told = "none is assumed" if every_s is None else "none, as given"
    return f"Checkpoints within a job: {told}. A failed job is repeated from its start.{chained}"


def _buffer_words(request: Request) -> str:
    with_failed = request.term("F")
    if with_failed is None or with_failed.amount.high is None:
        return ""
    if not request.plan.buffer_percent:
        return f"No buffer is included; the CI ends at {number(with_failed.amount.high, 4)} device-hours."
    covers = request.asked.amount.value >= with_failed.amount.high
    verb = "covers" if covers else "does not cover"
    return f"The buffer {verb} the upper end of the CI, {number(with_failed.amount.high, 4)} device-hours."


def _limit_words(request: Request) -> str:
    time = request.term("T")
    assert time is not None
    longest_s = (time.amount.high or time.amount.value) / request.jobs_a_training
    return (
        "If the site charges requested time instead of used time, a job limit above "
        f"{number(longest_s / 3600, 3)} h costs more."
    )


# -- scaling


def scaling_section(pack: Pack) -> Section:
    """Table and linear plots up to the largest job, with the base."""
    question = "How does the job scale, up to the largest requested size?"
    curve = pack.curve
    if curve is None:
        unit = pack.cells[0].throughput.unit
        rows = tuple(
            (
                Cell(str(cell.records[0].spec.devices), cell.records[0].spec.devices),
                marked(figure_cell(cell.throughput, tuple(record.run_id for record in cell.records)), cell.unreliable),
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
    return tuple(finding for finding in findings if finding.severity != "note")


# -- absolute performance


def performance_section(pack: Pack) -> Section:
    """Absolute performance of the base, and what counts as one device."""
    cell = base_cell(pack)
    spec = cell.records[0].spec
    rate = cell.throughput
    facts = [
        ("base", counted(spec.devices, "device")),
        (
            "throughput",
            f"{with_interval(rate)} {rate.unit}" if rate.value is not None else str(rate.reason),
        ),
    ]
    if rate.value is not None:
        facts.append(("throughput per device", f"{number(rate.value / spec.devices)} {rate.unit}"))
    row = row_of(cell)
    for name, what in (("step_time_mean", "mean step time"), ("step_time_p99", "99th percentile of step times")):
        if name in row.figures:
            facts.append((what, seconds(row.figures[name].value)))
    if "memory_peak" in row.figures:
        facts.append(("peak memory per device", f"{number(row.figures['memory_peak'].value / 2**30, 3)} GiB"))
    facts.append(("samples per step", f"{spec.step_samples:,}"))
    facts.append(("one device", device_words(cell.records)))
    facts.append(("jobs", f"{row.get('jobs')}, window: {rate.window}"))
    answer = (
        f"{counted(spec.devices, 'device')}: {with_interval(rate)} {rate.unit}." if rate.value else str(rate.reason)
    )
    codes = dict.fromkeys(one.code for one in cell.findings if one.severity == "error" and one.code[:3] != "SY4")
    answer += f" Do not use until fixed: {', '.join(codes)}." if codes else ""
    answer += f" Unreliable: {'; '.join(cell.unreliable)}." if cell.unreliable and rate.value and not codes else ""
    question = "What is the absolute performance of the base, and what counts as one device?"
    table = _facts_table("base-performance", "Performance of the base", facts)
    return Section("performance", "Base performance", question, answer, (table,))


def _facts_table(name: str, title: str, facts: Sequence[tuple[str, str]]) -> Table:
    rows = tuple((Cell(what, what), Cell(value, value)) for what, value in facts)
    return Table(name, title, (Column("quantity", align="left"), Column("value", align="left")), rows)


def base_cell(pack: Pack) -> CellSummary:
    """Return the base of the curve; without a curve, the smallest cell with a result."""
    if pack.curve is not None:
        return next(cell for cell in pack.cells if cell.name == pack.curve.base.configuration)
    return next((cell for cell in pack.cells if cell.throughput.value is not None), pack.cells[0])


def device_words(records: Sequence[RunRecord]) -> str:
    """Say what the job counts as one device."""
    record = records[0]
    device = record.device
    if record.spec.device_family == "sim":
        return "one simulated device, one process each"
    if device is None:
        return "unknown: not in the record"
    text = SCOPES.get(device.scope, device.scope).format(dies=device.dies or "several")
    name = device.model or device.name
    return f"{text} ({name})" if device.model else f"what the job sees as one device ({name}, not in the device table)"


# -- utilisation


def use_section(pack: Pack) -> Section:
    """Split of the device time, and model FLOPs utilisation."""
    rows, known = [], [(name, what) for name, what in SHARES if any(_share(cell, name) for cell in pack.cells)]
    clocks = any(_share(cell, "clock_device") for cell in pack.cells)
    for cell in pack.cells:
        ids = tuple(record.run_id for record in cell.records)
        cells = [Cell(str(cell.records[0].spec.devices), cell.records[0].spec.devices)]
        mean = _share(cell, "clock_device")
        clock = Cell("unknown") if mean is None else Cell(f"{mean.value:,.0f}", mean.value, runs=ids)
        rows.append(
            (*cells, *(_share_cell(_share(cell, name), ids) for name, _ in known), *([clock] if clocks else ()))
        )
    columns = (
        Column("devices"),
        *(Column(what, "%") for _, what in known),
        *([Column("mean clock", "MHz")] if clocks else ()),
    )
    mfu_note = "Model FLOPs utilisation: FLOP/s of the model divided by the peak of the device at this precision."
    if utilisation(pack) is None:
        known_mfu = [record.quantities.get("model_flops_utilisation") for record in pack.request.basis.cell.records]
        reasons = [quantity.reason for quantity in known_mfu if quantity is not None and quantity.reason]
        why = reasons[0] if reasons else "the FLOPs of the model are unknown"
        mfu_note = f"Model FLOPs utilisation unknown: {why}."
    table = Table("device-use", "Shares of the device time", columns, tuple(rows), (mfu_note,))
    blocks: list[Any] = [table] if known else []
    if pack.curve is not None and not pack.curve.blocked:
        blocks.append(loss_chart(pack.curve, "device-loss", runs=run_ids(pack.cells)))
    question = "How efficiently are the devices used?"
    compute, mfu = _share(pack.request.basis.cell, "compute_share"), utilisation(pack)
    devices = counted(pack.request.basis.devices, "device")
    parts = [f"{number(100 * compute.value, 3)} % of the time is computation"] if compute else []
    parts += [f"model FLOPs utilisation is {number(100 * mfu.value, 3)} %"] if mfu else []
    answer = f"On {devices}: {'; '.join(parts)}." if parts else "Not measured."
    return Section("use", "Device utilisation", question, answer, tuple(blocks))


def _share(cell: CellSummary, name: str) -> Amount | None:
    return row_of(cell).figures.get(name)


def _share_cell(amount: Amount | None, ids: tuple[str, ...]) -> Cell:
    if amount is None:
        return Cell("unknown")
    text = number(100 * amount.value, 3)
    if amount.low < amount.high:
        text += f" [{number(100 * amount.low, 3)}, {number(100 * amount.high, 3)}]"
    return Cell(text, 100 * amount.value, 100 * amount.low, 100 * amount.high, ids)


def utilisation(pack: Pack) -> Amount | None:
    """Return the model FLOPs utilisation of the jobs behind the plan."""
    return _share(pack.request.basis.cell, "model_flops_utilisation")


# -- energy


def energy_section(pack: Pack) -> Section:
    """Energy per sample and of the plan; only reliable values."""
    request = pack.request
    question = "How much energy does the plan need?"
    if not request.energy:
        return Section("energy", "Energy", question, f"Not reported: {request.energy_reason}.")
    terms = (*request.terms, *request.energy)
    rows = tuple(_derived(term, terms, request.blocked_by) for term in request.energy)
    entry = next(one for one in pack.energies if one.cell.name == request.basis.cell.name)
    notes = ["Energy of the steps only, without set-up, compilation, failures and buffer."]
    if request.energy[-1].amount.low is not None:
        notes.append("[ ] = 95 % CI of the mean of the measured jobs, not of future jobs.")
    validity = entry.main.validity
    if validity is not None and validity.reasons and not entry.findings:
        notes.append(f"{validity.verdict.capitalize()}: {validity.reasons[0]}.")
    table = Table("plan-energy", "Energy of the plan", COLUMNS, rows, tuple(notes))
    text = _words(request.energy[-1], request.measured_jobs)
    answer = f"{text} for the steps of the plan (includes: {entry.scope}; {entry.verdict}).{unusable(request)}"
    return Section("energy", "Energy", question, answer, (table,), _telling(entry.findings))


# -- machine


def machine_section(pack: Pack) -> Section:
    """Hardware and software of the jobs behind the plan."""
    cell = pack.request.basis.cell
    row = row_of(cell)
    record = cell.records[0]
    facts = _device_facts(record) if record.device is not None else []
    if (program := record.spec.program) is not None:
        facts.append(("command", " ".join(public_words(program.command))))
        facts.append(("values in it", ", ".join(f"{name}={value}" for name, value in program.parameters.items())))
    for key, words in SETTINGS.items():
        # Leave out what is unknown or off; keep zero.
        value = row.get(key)
        if value is not None and value is not False and value != "none":
            text = str(value) if program is None else " ".join(public_words(str(value).split(" ")))
            facts.append((words, text if len(text) <= MAX_FACT else f"{text[:MAX_FACT]} ..."))
    answer = f"{row.get('accelerator')}, {row.get('framework') or 'framework not recorded'}."
    if pack.simulated:
        answer = "Simulated device: no hardware, no framework."
    study = f"The record of every run of '{cell.study}' has the full environment: steelyard show RUN_ID --json"
    facts = [(words, text) for words, text in facts if text]
    return Section(
        name="machine",
        title="Hardware and software",
        question="On which hardware and software was it measured?",
        answer=answer,
        blocks=(_facts_table("machine-facts", "Hardware and software", facts), Prose((study,))),
    )


def _device_facts(record: RunRecord) -> list[tuple[str, str]]:
    device = record.device
    assert device is not None
    facts = [("device", f"{device.name}{f' ({device.model})' if device.model else ''}")]
    if device.memory_bytes:
        facts.append(("memory per device", f"{number(device.memory_bytes / 2**30, 4)} GiB"))
    if device.power_limit_w:
        facts.append(("power limit per device (vendor)", f"{number(device.power_limit_w, 4)} W"))
    return facts


# -- the pack, audited


def audit_section(pack: Pack) -> Section:
    """Findings on the runs of the study, on its curve, and on the numbers in the pack."""
    own = pack.own_audit
    # Each rule once, with its first place; `steelyard audit STUDY` lists all.
    groups: dict[tuple[str, str], list[Finding]] = {}
    for finding in pack.findings:
        groups.setdefault((finding.code, finding.severity), []).append(finding)
    findings = tuple(
        dataclasses.replace(same[0], place=f"{same[0].place}; {len(same) - 1} more") if len(same) > 1 else same[0]
        for same in groups.values()
    )
    columns = (
        Column("claim", align="left"),
        Column("stated"),
        Column("recomputed", align="left"),
        Column("verdict", align="left"),
    )
    rows = tuple(
        (
            Cell(entry.claim.text, entry.claim.text),
            Cell(entry.claim.published, entry.claim.published),
            Cell(entry.recomputed, entry.recomputed),
            Cell(entry.verdict, entry.verdict, codes=tuple(dict.fromkeys(finding.code for finding in entry.findings))),
        )
        for entry in own.judgements
    )
    blocks = (Table("own-claims", "Claims of this pack, recomputed from its table", columns, rows),)
    claims = f" {claim_tally(own.judgements)}." if own.judgements else ""
    of_study = pack.findings[: len(pack.findings) - len(own.findings)]
    counts = [tally(part).partition(";")[0] for part in (of_study, own.findings)]
    answer = f"Study and scaling: {counts[0]}. This pack: {counts[1]}.{claims}"
    return Section(
        "audit", "Audit of this pack", "Are the numbers of this pack correct?", answer, blocks if rows else (), findings
    )
