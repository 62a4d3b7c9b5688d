"""Device-hours of a plan from the measurements of a study, every term with its formula and uncertainty.

Each measured job gives one estimate of a whole training, rate and set-up together; the plan rests on their mean. Two
things are uncertain: the mean is known only from a few jobs, and future jobs will vary as these did. With n measured
and m future jobs, Student's interval of the mean widens by sqrt(1 + n / m): the prediction interval of the mean of m
further jobs.

Failures are counted per device-hour, not per run: a rate from runs of minutes says little about jobs of days. A failed
job repeats its work since the last checkpoint, or all of it; jobs that ended before stay done.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from steelyard.contracts.observe import MEASURED
from steelyard.errors import InputError, Problem
from steelyard.stats.failures import most_rate, time_with_failures
from steelyard.stats.jobs import across_jobs
from steelyard.stats.quotient import Estimate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from steelyard.analysis.energy import CellEnergy
    from steelyard.analysis.scaling import Projection, Scaling
    from steelyard.analysis.summary import CellSummary
    from steelyard.contracts.record import Quantity, RunRecord
    from steelyard.inputs.site import Place

HOUR_S = 3600.0
JOULES_PER_KWH = 3.6e6
# Statuses of runs that used their hours without a result. A run that does not fit or was refused would not be planned.
LOST = ("failed", "hung", "killed", "node_failure", "preempted", "lost", "time_limit")
SETUP = ("setup", "data", "compile")
MAX_SAMPLES, MAX_TRAININGS, MAX_DEVICES = 1e18, 10**7, 10**7
MAX_PERCENT = 1000.0
# A whole number can be larger than any that can be shown with an exponent.
MOST_SHOWN = 10**300
MAX_FAILURES = 1e6
# The training of Llama 3 (arXiv 2407.21783): 419 unexpected interruptions in 54 days on 16,384 GPUs are 1.97e-5 per
# device-hour.
ASSUMED_RATE = 2e-5
# A study tells about failures if it ran for at least this share of the planned hours. Without a failure it then bounds
# them to 30 in the whole plan.
TELLING_SHARE = 0.1
TOLD = {"given": "given", "counted": "counted: failures of the study", "assumed": "assumed: see below"}
# Beyond this exponent a job needs e^3 = 20 times its own time.
MAX_EXPONENT = 3.0


@dataclass(frozen=True)
class WorkPlan:
    """The planned work."""

    samples: float
    """Samples of one training."""
    trainings: int
    devices: int
    """Devices of the largest job."""
    epochs: float | None = None
    epoch_samples: float | None = None
    """Both are set if the samples are their product."""
    buffer_percent: float = 0.0
    failures: float | None = None
    """Failures per 1,000 device-hours; None: as in the study, or assumed if it ran too short a time."""
    checkpoint_s: float | None = None
    """Work between two checkpoints; 0: none within a job. None: not said, none is assumed."""
    job_limit_s: float | None = None
    """The time limit of the site; None: a training is one job."""

    def __post_init__(self) -> None:
        problems = [
            Problem(name, f"{value:g} is out of range" if abs(value) < MOST_SHOWN else "out of range", valid)
            for name, value, valid, holds in (
                ("samples", self.samples, "above 0", 0 < self.samples <= MAX_SAMPLES),
                ("--epochs", self.epochs or 0.0, "above 0", (self.epochs or 0.0) >= 0),
                ("--runs", self.trainings, "1 or more", 1 <= self.trainings <= MAX_TRAININGS),
                ("--devices", self.devices, "1 or more", 1 <= self.devices <= MAX_DEVICES),
                ("--buffer", self.buffer_percent, "0 to 1000 %", 0 <= self.buffer_percent <= MAX_PERCENT),
                ("--failures", self.failures or 0.0, "0 or more", 0 <= (self.failures or 0.0) <= MAX_FAILURES),
                ("--checkpoint", self.checkpoint_s or 0.0, "0 or more", 0 <= (self.checkpoint_s or 0.0) <= 1e9),
                ("--job-hours", self.job_limit_s or 1.0, "above 0", 0 < (self.job_limit_s or 1.0) <= 1e9),
            )
            if not holds
        ]
        if problems:
            raise InputError("the plan is not valid", problems=tuple(problems))


@dataclass(frozen=True)
class Tariff:
    """How a site charges."""

    unit: str
    per_device_hour: float
    per_node_hour: float
    devices_per_node: int | None
    """None: unknown; then nothing can be charged per node."""
    whole_nodes: bool
    """All devices of a node are charged, even unused ones."""
    source: str

    def hourly(self, devices: int) -> float:
        """Return the charge of one hour of a job on this many devices."""
        each = self.devices_per_node
        nodes = math.ceil(devices / each) if each else 0
        held = nodes * each if self.whole_nodes and each else devices
        return held * self.per_device_hour + nodes * self.per_node_hour


def tariff_of(place: Place) -> Tariff:
    """Return how a site charges for a pool."""
    charge, pool = place.site.charge, place.pool
    source = f"site {place.site.name}, pool {place.pool_name}"
    return Tariff(
        charge.unit, charge.per_device_hour, charge.per_node_hour, pool.devices_per_node, pool.exclusive, source
    )


@dataclass(frozen=True)
class Term:
    """One line of the derivation."""

    symbol: str
    what: str
    formula: str
    """Uses other symbols in braces: `{S} / {r}`; empty: given, or measured."""
    amount: Estimate
    unit: str
    origin: str
    """Where it comes from: given, measured, counted, or calculated."""
    runs: tuple[str, ...] = ()
    digits: int = 4


BasisKind = Literal["measured", "larger", "smaller", "projected", "largest"]
"""The source of the rate at the requested number of devices: that number itself; per device, the next larger or the
smallest count measured; a fitted curve; or, per device, the largest count, as if efficiency did not drop further."""


@dataclass(frozen=True)
class Basis:
    """The measured jobs on which a plan rests, and how they are used."""

    kind: BasisKind
    devices: int
    """The number of devices of these jobs."""
    cell: CellSummary
    largest: int
    """The largest number of devices measured."""
    projection: Projection | None = None
    """The projection that gives the rate, if any."""


@dataclass(frozen=True)
class JobParts:
    """One job of a training: set-up, then work up to each checkpoint and to its end, in seconds."""

    setup_s: float
    checkpoints: int
    between_s: float
    last_s: float

    @property
    def longest_s(self) -> float:
        """The most that one failure loses."""
        return self.setup_s + max(self.last_s, self.between_s if self.checkpoints else 0.0)

    def time_s(self, rate: float) -> float:
        """Return the expected time until the job is complete, at this many failures per second."""
        return time_with_failures(rate, self.setup_s, self.checkpoints, self.between_s, self.last_s)


@dataclass(frozen=True)
class Failures:
    """The failures that the study saw, and the rate that the plan uses."""

    lost_runs: int
    counted_runs: int
    device_hours: float
    """Observed: of all counted runs."""
    rate: float
    """Per device-hour, as used for the plan."""
    origin: Literal["given", "counted", "assumed"]
    most_hours: float | None = None
    """Device-hours of the plan with as many failures as the study does not exclude; None if it ran too short a time."""

    @property
    def most(self) -> float:
        """Return the failures per device-hour that the study does not exclude, at 95 % confidence."""
        return most_rate(self.lost_runs, self.device_hours)


@dataclass(frozen=True)
class Request:
    """The resources for a plan."""

    plan: WorkPlan
    basis: Basis
    terms: tuple[Term, ...]
    jobs_a_training: int
    failures: Failures
    measured_jobs: int
    approximate: tuple[str, ...]
    """Why the interval is only approximate, or missing."""
    tariff: Tariff | None
    uncounted: tuple[str, ...]
    """What a real plan also needs but is not known from the measurements."""
    energy: tuple[Term, ...]
    """Per sample and for the plan; empty if there is no reliable energy."""
    energy_reason: str

    def term(self, symbol: str) -> Term | None:
        """Return a term by its symbol."""
        return next((term for term in self.terms if term.symbol == symbol), None)

    @property
    def worked_out(self) -> Term:
        """Device-hours of the plan before failures and buffer."""
        return self._known("H")

    @property
    def asked(self) -> Term:
        """Device-hours to request."""
        return self._known("A")

    @property
    def blocked_by(self) -> tuple[str, ...]:
        """Codes of errors that make the underlying rate invalid."""
        findings = self.basis.cell.findings
        return tuple(dict.fromkeys(one.code for one in findings if one.severity == "error" and one.code[:3] != "SY4"))

    @property
    def charge(self) -> Term | None:
        """The charge in the site's unit."""
        return self.term("C")

    def _known(self, symbol: str) -> Term:
        term = self.term(symbol)
        assert term is not None
        return term


def request(
    plan: WorkPlan,
    cells: Sequence[CellSummary],
    curve: Scaling | None,
    tariff: Tariff | None = None,
    energies: Sequence[CellEnergy] = (),
) -> Request:
    """Return the resources for a plan; `curve` gives projections beyond the measured numbers of devices."""
    basis = basis_of(plan, cells, curve)
    records = [record for record in basis.cell.records if record.status.code in MEASURED and _rate(record)]
    jobs = _jobs_a_training(plan, basis, records)
    terms, approximate = _terms(plan, basis, records, jobs)
    hours, parts = terms[-1].amount, _job_parts(plan, terms)
    failures = count_failures(plan, cells, hours.value, parts)
    terms += _overhead(plan, hours, parts, failures.rate, TOLD[failures.origin])
    if tariff is not None:
        terms += _charged(plan, tariff, terms[-1].amount)
    energy, reason = _energy(plan, basis, energies)
    return Request(
        plan=plan,
        basis=basis,
        terms=tuple(terms),
        jobs_a_training=jobs,
        failures=failures,
        measured_jobs=len(records),
        approximate=approximate,
        tariff=tariff,
        uncounted=_uncounted(plan, records),
        energy=energy,
        energy_reason=reason,
    )


# -- the measured jobs


def basis_of(plan: WorkPlan, cells: Sequence[CellSummary], curve: Scaling | None) -> Basis:
    """Return the jobs at the requested number of devices, or else the nearest on the safe side."""
    by_count = {cell.records[0].spec.devices: cell for cell in cells if cell.throughput.value}
    if not by_count:
        raise InputError(
            "no run of the selection has a throughput: hours cannot be calculated",
            next_step="see how its runs ended: steelyard show STUDY",
        )
    largest = max(by_count)
    if plan.devices in by_count:
        return Basis("measured", plan.devices, by_count[plan.devices], largest)
    if plan.devices < largest:
        larger = min(count for count in by_count if count > plan.devices)
        kind: BasisKind = "larger" if plan.devices > min(by_count) else "smaller"
        return Basis(kind, larger, by_count[larger], largest)
    projections = curve.projections if curve is not None and not curve.blocked else ()
    projected = [entry for entry in projections if entry.devices == plan.devices]
    if projected:
        # If there are several projections, the lowest is the safe one.
        least = min(projected, key=lambda entry: entry.throughput)
        return Basis("projected", largest, by_count[largest], largest, least)
    return Basis("largest", largest, by_count[largest], largest)


def _rate(record: RunRecord) -> float:
    throughput = record.quantities.get("throughput")
    return throughput.value or 0.0 if throughput is not None else 0.0


def _rates(plan: WorkPlan, basis: Basis, records: Sequence[RunRecord]) -> list[float]:
    """Return the rates at the requested number of devices, one per measured job."""
    grown = plan.devices / basis.devices
    if basis.projection is not None:
        grown = basis.projection.throughput / (basis.cell.throughput.value or math.nan)
    return [_rate(record) * grown for record in records]


# -- time of a training


def setup_s(record: RunRecord) -> float:
    """Return the time of a job before its steady pace: set-up, data, compilation and slow first steps.

    The idle baseline for the sensors is part of the measurement only. A program has no phases of ours before its steps.
    """
    lengths = {
        name: math.fsum(phase.end_s - phase.start_s for phase in record.phases if phase.name == name)
        for name in (*SETUP, "warmup")
    }
    idle = math.fsum(
        max(0.0, min(idle.end_s, phase.end_s) - max(idle.start_s, phase.start_s))
        for idle in record.phases
        if idle.name == "idle"
        for phase in record.phases
        if phase.name in SETUP
    )
    slow = 0.0
    if record.steady is not None and lengths["warmup"] and _rate(record):
        slow = max(0.0, lengths["warmup"] - record.steady.start_step * record.spec.step_samples / _rate(record))
    if record.wrapped is not None and record.wrapped.end is not None and record.phases:
        return max(0.0, min(phase.start_s for phase in record.phases) - record.wrapped.end.start_s) + slow
    return max(0.0, math.fsum(lengths[name] for name in SETUP) - idle) + slow


def evaluation_s(records: Sequence[RunRecord]) -> float | None:
    """Return the mean length of one evaluation; None if the runs have none."""
    lengths_s = [p.end_s - p.start_s for r in records for p in r.phases if p.name == "evaluation" and p.complete]
    return math.fsum(lengths_s) / len(lengths_s) if lengths_s else None


def _jobs_a_training(plan: WorkPlan, basis: Basis, records: Sequence[RunRecord]) -> int:
    if plan.job_limit_s is None:
        return 1
    setup = _mean([setup_s(record) for record in records])
    room_s = plan.job_limit_s - setup
    if room_s <= 0:
        problem = Problem("--job-hours", f"set-up alone takes {setup:.0f} s", "a longer time")
        raise InputError("no step fits into a job of this length", problems=(problem,))
    steps_s = plan.samples * _mean([1 / rate for rate in _rates(plan, basis, records)])
    return max(1, math.ceil((steps_s + _evaluations_s(plan, records)) / room_s))


def _evaluations_s(plan: WorkPlan, records: Sequence[RunRecord]) -> float:
    """Return the time of one training's evaluations; 0 if unknown, which is then listed as not counted."""
    each = evaluation_s(records)
    return plan.epochs * each if plan.epochs is not None and each is not None else 0.0


def _terms(plan: WorkPlan, basis: Basis, records: Sequence[RunRecord], jobs: int) -> tuple[list[Term], tuple[str, ...]]:
    """Return the terms from samples to device-hours of all trainings."""
    runs = tuple(record.run_id for record in records)
    rates = _rates(plan, basis, records)
    setups, each = [setup_s(record) for record in records], evaluation_s(records)
    evaluations = _evaluations_s(plan, records)
    steps = [plan.samples / rate for rate in rates]
    whole = [step + jobs * setup + evaluations for step, setup in zip(steps, setups, strict=True)]
    measured = basis.kind == "measured"
    doubts = across_jobs(whole).approximate
    if not measured:
        doubts = ("nothing was measured at this number of devices: there is no interval",)
    single = basis.cell.throughput if measured and len(records) == 1 else None
    # The rate from the time per sample.
    each_s = _over(rates, turned=True, measured=measured, single=single)
    rate = Estimate(1 / each_s.value)
    if each_s.low and each_s.high is not None:
        rate = Estimate(rate.value, 1 / each_s.high, 1 / each_s.low)
    terms = _list_given(plan)
    origin = "measured" if measured else "not measured: see below"
    terms.append(Term("r", "rate of the job at N devices", "", rate, basis.cell.throughput.unit, origin, runs))
    steps_s = _over(steps, measured=measured, single=single, scale=plan.samples)
    terms.append(Term("T1", "time of the steps of one training", "{S} / {r}", steps_s, "s", "calculated", runs))
    terms.append(Term("t", "set-up of one job", "", _over(setups, measured=measured), "s", "measured", runs))
    why_jobs = "given: one job" if plan.job_limit_s is None else "counted: from the time limit of a job"
    terms.append(Term("J", "jobs of one training", "", Estimate(float(jobs)), "", why_jobs, digits=3))
    formula = "{T1} + {J} x {t}"
    if evaluations and each is not None and plan.epochs is not None:
        terms.append(Term("v", "one evaluation, after each epoch", "", Estimate(each), "s", "measured", runs))
        formula += " + {E} x {v}"
    training = _over(whole, measured=measured, single=single, scale=plan.samples, shift=_mean(whole) - _mean(steps))
    terms.append(Term("T", "time of one training", formula, training, "s", "calculated", runs))
    expected = predicted(whole, plan.trainings * jobs) if measured and len(whole) > 1 else training
    hours = expected.scaled(plan.trainings * plan.devices / HOUR_S)
    terms.append(
        Term("H", "device-hours of the plan", "{K} x {T} x {N} / 3600", hours, "device-hours", "calculated", runs)
    )
    return terms, doubts


def _list_given(plan: WorkPlan) -> list[Term]:
    terms = []
    if plan.epochs is not None and plan.epoch_samples is not None:
        terms.append(Term("E", "epochs of one training", "", Estimate(plan.epochs), "", "given"))
        terms.append(Term("D", "samples of one epoch", "", Estimate(plan.epoch_samples), "samples", "given", digits=9))
    formula = "{E} x {D}" if terms else ""
    origin = "calculated" if terms else "given"
    terms.append(Term("S", "samples of one training", formula, Estimate(plan.samples), "samples", origin, digits=9))
    terms.append(Term("K", "trainings", "", Estimate(float(plan.trainings)), "", "given", digits=9))
    terms.append(Term("N", "devices of the job", "", Estimate(float(plan.devices)), "devices", "given", digits=9))
    return terms


def _over(
    values: Sequence[float],
    *,
    measured: bool,
    turned: bool = False,
    single: Quantity | None = None,
    scale: float = 1.0,
    shift: float = 0.0,
) -> Estimate:
    """Return the mean over jobs with its interval; for one job the interval of its own rate.

    `turned`: of the inverse values. `scale` and `shift` convert the time per sample to the time of a job.
    """
    mean = across_jobs([1 / value for value in values] if turned else values)
    if not measured:
        return Estimate(mean.value)
    if single is not None and single.interval is not None:
        ends = (1 / single.interval.top, 1 / single.interval.low) if single.interval.low > 0 else (None, None)
        if ends[0] is not None and ends[1] is not None:
            return Estimate(mean.value, ends[0] * scale + shift, ends[1] * scale + shift)
    if mean.low is None or mean.high is None:
        return Estimate(mean.value)
    return Estimate(mean.value, max(0.0, mean.low), mean.high)


def predicted(values: Sequence[float], further: int) -> Estimate:
    """Return the mean of `further` future jobs with its prediction interval."""
    mean = across_jobs(values)
    if mean.high is None:
        return Estimate(mean.value)
    half = (mean.high - mean.value) * math.sqrt(1 + len(values) / further)
    return Estimate(mean.value, max(0.0, mean.value - half), mean.value + half)


# -- failures, buffer and charge


def count_failures(plan: WorkPlan, cells: Sequence[CellSummary], planned_h: float, parts: JobParts) -> Failures:
    """Return the rate of failures for a plan: the given one, that of the study if it ran long enough, or assumed.

    A study without a failure does not show that there are none: the rate is then the assumed one, or the study's upper
    limit if that is lower.
    """
    runs = [record for cell in cells for record in cell.records if record.status.code in (*LOST, *MEASURED)]
    lost = sum(record.status.code in LOST for record in runs)
    hours = math.fsum(_held_s(record) * record.spec.devices for record in runs) / HOUR_S
    failures = Failures(lost, len(runs), hours, ASSUMED_RATE, "assumed")
    telling = hours >= TELLING_SHARE * planned_h
    most = failures.most * plan.devices / HOUR_S
    if telling and most * parts.longest_s <= MAX_EXPONENT:
        failures = replace(failures, most_hours=planned_h * parts.time_s(most) / parts.time_s(0))
    if plan.failures is not None:
        return replace(failures, rate=plan.failures / 1000, origin="given")
    if lost and telling:
        return replace(failures, rate=lost / hours, origin="counted")
    if not lost and failures.most < ASSUMED_RATE:
        return replace(failures, rate=failures.most, origin="counted")
    return failures


def _held_s(record: RunRecord) -> float:
    """Return how long a run held its devices; the clock of a simulated device is that of its phases."""
    if record.launch is not None and record.spec.device_family != "sim":
        return record.launch.wall_s
    return max((phase.end_s for phase in record.phases), default=0.0)


def _job_parts(plan: WorkPlan, terms: Sequence[Term]) -> JobParts:
    known = {term.symbol: term.amount.value for term in terms}
    work_s = known["T"] / known["J"] - known["t"]
    between_s = plan.checkpoint_s or 0.0
    checkpoints = max(0, math.ceil(work_s / between_s) - 1) if between_s else 0
    return JobParts(known["t"], checkpoints, between_s, work_s - checkpoints * between_s)


def _overhead(plan: WorkPlan, hours: Estimate, parts: JobParts, per_device_hour: float, origin: str) -> list[Term]:
    """Return the terms for failures and buffer."""
    rate = per_device_hour * plan.devices / HOUR_S
    longest_s = parts.longest_s
    if rate * longest_s > MAX_EXPONENT:
        problem = Problem(
            "--checkpoint",
            f"a failure loses up to {longest_s / HOUR_S:.3g} h, and there is one every {1 / rate / HOUR_S:.3g} h",
            "checkpoints closer together, or shorter jobs (--job-hours)",
        )
        raise InputError("at this rate of failures the plan would hardly ever finish", problems=(problem,))
    job_s = parts.time_s(rate)
    with_failures = hours.scaled(job_s / parts.time_s(0))
    lost = Estimate(100 * (1 - hours.value / with_failures.value))
    asked = with_failures.scaled(1 + plan.buffer_percent / 100)
    return [
        Term("l", "failures per 1,000 device-hours", "", Estimate(1000 * per_device_hour), "", origin),
        Term("g", "failures per hour of the job", "{l} x {N} / 1000", Estimate(rate * HOUR_S), "", "calculated"),
        *_part_terms(parts, job_s, failing=rate > 0),
        Term(
            "F",
            "device-hours with lost work repeated",
            "{K} x {J} x {X} x {N} / 3600",
            with_failures,
            "device-hours",
            "calculated",
        ),
        Term("f", "share of F lost to failures", "(1 - {H} / {F}) x 100", lost, "%", "calculated", digits=3),
        Term("b", "buffer", "", Estimate(plan.buffer_percent), "%", "given", digits=3),
        Term("A", "device-hours to request", "{F} x (1 + {b} / 100)", asked, "device-hours", "calculated"),
    ]


def _part_terms(parts: JobParts, job_s: float, *, failing: bool) -> list[Term]:
    """Return the parts of a job between checkpoints, and its time with failures."""
    made, left, end = [], "{T} / {J} - {t}", "work of one job"
    formula = "(exp({g} x ({t} + {u}) / 3600) - 1) x 3600 / {g}" if failing else "{t} + {u}"
    if parts.checkpoints:
        count = Estimate(float(parts.checkpoints))
        made.append(Term("c", "work between two checkpoints", "", Estimate(parts.between_s), "s", "given"))
        made.append(Term("n", "checkpoints within one job", "", count, "", "counted", digits=9))
        left, end = "{T} / {J} - {t} - {n} x {c}", "work of one job after its last checkpoint"
        whole = "{n} x (exp({g} x {c} / 3600) - 1) + exp({g} x {u} / 3600)"
        formula = f"(exp({{g}} x {{t}} / 3600) x ({whole}) - 1) x 3600 / {{g}}" if failing else "{t} + {n} x {c} + {u}"
    made.append(Term("u", end, left, Estimate(parts.last_s), "s", "calculated"))
    made.append(Term("X", "time of one job, lost work repeated", formula, Estimate(job_s), "s", "calculated"))
    return made


def _charged(plan: WorkPlan, tariff: Tariff, hours: Estimate) -> list[Term]:
    """Return the terms that convert hours to the site's unit."""
    each = tariff.devices_per_node
    if tariff.per_node_hour and each is None:
        problem = Problem("--node-devices", "not given, but nodes are charged", "devices per node")
        raise InputError("the number of nodes is not known", problems=(problem,))
    nodes = math.ceil(plan.devices / each) if each else 0
    held = nodes * each if tariff.whole_nodes and each else plan.devices
    terms, parts = [], []
    if each:
        terms.append(
            Term(
                "M",
                "nodes of the job",
                "",
                Estimate(float(nodes)),
                "nodes",
                f"counted: {each} devices per node",
                digits=9,
            )
        )
    if tariff.per_device_hour:
        terms.append(
            Term("p", f"{tariff.unit} per device-hour", "", Estimate(tariff.per_device_hour), "", tariff.source)
        )
        if held != plan.devices:
            terms.append(
                Term("Q", "devices charged: whole nodes", "", Estimate(float(held)), "devices", "counted", digits=9)
            )
        parts.append("{A} x {p}" if held == plan.devices else "{A} / {N} x {Q} x {p}")
    if tariff.per_node_hour:
        terms.append(Term("q", f"{tariff.unit} per node-hour", "", Estimate(tariff.per_node_hour), "", tariff.source))
        parts.append("{A} / {N} x {M} x {q}")
    charge = hours.scaled(tariff.hourly(plan.devices) / plan.devices)
    return [*terms, Term("C", "charge", " + ".join(parts) or "0", charge, tariff.unit, "calculated")]


def _energy(plan: WorkPlan, basis: Basis, energies: Sequence[CellEnergy]) -> tuple[tuple[Term, ...], str]:
    """Return the energy of the steps of all trainings; none, with the reason, if it is unknown or invalid."""
    if basis.kind != "measured":
        return (), f"nothing was measured at {plan.devices} devices"
    energy = next((entry for entry in energies if entry.cell.name == basis.cell.name), None)
    if energy is None or "energy_per_sample" not in energy.figures:
        return (), energy.main.reason or "no energy was measured" if energy else "no energy was measured"
    each = energy.figures["energy_per_sample"]
    if each.value is None or energy.verdict == "invalid":
        return (), each.reason or "the energy is invalid"
    low, high = (each.interval.low, each.interval.top) if each.interval else (None, None)
    sample = Estimate(each.value, low, high)
    runs = tuple(record.run_id for record in basis.cell.records)
    whole = sample.scaled(plan.samples * plan.trainings / JOULES_PER_KWH)
    terms = (
        Term("e", f"energy per sample ({energy.scope}; {energy.verdict})", "", sample, "J", "measured", runs),
        Term("W", "energy of the steps of the plan", "{e} x {S} x {K} / 3600000", whole, "kWh", "calculated", runs),
    )
    return terms, ""


def _uncounted(plan: WorkPlan, records: Sequence[RunRecord]) -> tuple[str, ...]:
    """Return what is not included in the hours, because it was not measured."""
    wrapped = any(record.wrapped is not None for record in records)
    start = "the start of the job" if wrapped else "the start of the job and the program before the first phase"
    uncounted = [f"time in the queue, and {start}"]
    if evaluation_s(records) is None:
        uncounted.append("evaluation: these runs had none")
    elif plan.epochs is None:
        uncounted.append("evaluation: the runs had some, but the plan gives samples, not epochs")
    uncounted.append("writing of checkpoints, unless the measured steps wrote them")
    uncounted.append("devices that a job holds while it hangs")
    if all(record.data is None for record in records) and not wrapped:
        uncounted.append("reading of real data: these runs generated their samples")
    return tuple(uncounted)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
