"""Device-hours of a plan from the measurements of a study, every term with its formula and uncertainty.

Each measured job gives one estimate of a whole training, rate and set-up together; the plan rests on their mean. Two
things are uncertain: the mean is known only from a few jobs, and future jobs will vary as these did. With n measured
and m future jobs, Student's interval of the mean widens by sqrt(1 + n / m): the prediction interval of the mean of m
further jobs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from steelyard.analysis.summary import MEASURED
from steelyard.errors import InputError, Problem
from steelyard.stats.intervals import across_jobs
from steelyard.stats.quotient import Estimate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from steelyard.analysis.energy import CellEnergy
    from steelyard.analysis.scaling import Projection, Scaling
    from steelyard.analysis.summary import CellSummary
    from steelyard.contracts.record import Quantity, RunRecord

HOUR_S = 3600.0
JOULES_PER_KWH = 3.6e6
# Statuses of runs that used their hours without a result. A run that does not fit or was refused would not be planned.
LOST = ("failed", "hung", "killed", "node_failure", "preempted", "time_limit")
SETUP = ("setup", "data", "compile")
MAX_SAMPLES, MAX_TRAININGS, MAX_DEVICES = 1e18, 10**7, 10**7
MAX_PERCENT = 1000.0
CERTAIN = 0.95


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
    failed_percent: float | None = None
    """None: as many as failed in the study."""
    job_limit_s: float | None = None
    """The time limit of the site; None: a training is one job."""

    def __post_init__(self) -> None:
        problems = [
            Problem(name, f"{value:g} is out of range", valid)
            for name, value, valid, holds in (
                ("samples", self.samples, "above 0", 0 < self.samples <= MAX_SAMPLES),
                ("--epochs", self.epochs or 0.0, "above 0", (self.epochs or 0.0) >= 0),
                ("--runs", self.trainings, "1 or more", 1 <= self.trainings <= MAX_TRAININGS),
                ("--devices", self.devices, "1 or more", 1 <= self.devices <= MAX_DEVICES),
                ("--buffer", self.buffer_percent, "0 to 1000 %", 0 <= self.buffer_percent <= MAX_PERCENT),
                ("--failed", self.failed_percent or 0.0, "0 to 90 %", 0 <= (self.failed_percent or 0.0) <= 90),
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
class Request:
    """The resources for a plan."""

    plan: WorkPlan
    basis: Basis
    terms: tuple[Term, ...]
    jobs_a_training: int
    lost_runs: int
    counted_runs: int
    most_lost: float
    """The share of runs that may fail, at 95 % confidence, given the runs counted."""
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
        found = self.basis.cell.findings
        return tuple(dict.fromkeys(one.code for one in found if one.severity == "error" and one.code[:3] != "SY4"))

    @property
    def charge(self) -> Term | None:
        """The charge in the site's unit."""
        return self.term("C")

    def _known(self, symbol: str) -> Term:
        found = self.term(symbol)
        assert found is not None
        return found


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
    codes = [record.status.code for cell in cells for record in cell.records]
    lost = sum(code in LOST for code in codes)
    counted = lost + sum(code in MEASURED for code in codes)
    failed = plan.failed_percent / 100 if plan.failed_percent is not None else (lost / counted if counted else 0.0)
    terms += _overhead(plan, terms[-1].amount, failed)
    if tariff is not None:
        terms += _charged(plan, tariff, terms[-1].amount)
    energy, reason = _energy(plan, basis, energies)
    return Request(
        plan=plan,
        basis=basis,
        terms=tuple(terms),
        jobs_a_training=jobs,
        lost_runs=lost,
        counted_runs=counted,
        most_lost=most_lost(lost, counted),
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
    by_count = {cell.records[0].spec.ranks: cell for cell in cells if cell.throughput.value}
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
    found = record.quantities.get("throughput_job")
    return found.value or 0.0 if found is not None else 0.0


def _rates(plan: WorkPlan, basis: Basis, records: Sequence[RunRecord]) -> list[float]:
    """Return the rates at the requested number of devices, one per measured job."""
    grown = plan.devices / basis.devices
    if basis.projection is not None:
        grown = basis.projection.throughput / (basis.cell.throughput.value or math.nan)
    return [_rate(record) * grown for record in records]


# -- time of a training


def setup_s(record: RunRecord) -> float:
    """Return the time of a job before its steady pace: set-up, data, compilation and slow first steps.

    The idle baseline for the sensors is part of the measurement only.
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
    return max(0.0, math.fsum(lengths[name] for name in SETUP) - idle) + slow


def evaluation_s(records: Sequence[RunRecord]) -> float | None:
    """Return the mean length of one evaluation; None if the runs have none."""
    found = [p.end_s - p.start_s for r in records for p in r.phases if p.name == "evaluation" and p.complete]
    return math.fsum(found) / len(found) if found else None


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
    found = across_jobs([1 / value for value in values] if turned else values)
    if not measured:
        return Estimate(found.value)
    if single is not None and single.interval is not None:
        ends = (1 / single.interval.top, 1 / single.interval.low) if single.interval.low > 0 else (None, None)
        if ends[0] is not None and ends[1] is not None:
            return Estimate(found.value, ends[0] * scale + shift, ends[1] * scale + shift)
    if found.low is None or found.high is None:
        return Estimate(found.value)
    return Estimate(found.value, max(0.0, found.low), found.high)


def predicted(values: Sequence[float], further: int) -> Estimate:
    """Return the mean of `further` future jobs with its prediction interval."""
    found = across_jobs(values)
    if found.high is None:
        return Estimate(found.value)
    half = (found.high - found.value) * math.sqrt(1 + len(values) / further)
    return Estimate(found.value, max(0.0, found.value - half), found.value + half)


# -- failures, buffer and charge


def _overhead(plan: WorkPlan, hours: Estimate, failed: float) -> list[Term]:
    """Return failed runs and buffer. A failed training is repeated from its start: the highest cost."""
    with_failed = hours.scaled(1 / (1 - failed))
    asked = with_failed.scaled(1 + plan.buffer_percent / 100)
    told = "given" if plan.failed_percent is not None else "counted: runs of the study that failed"
    return [
        Term("f", "share of runs that fail", "", Estimate(failed), "", told, digits=3),
        Term(
            "F",
            "device-hours with failed runs repeated",
            "{H} / (1 - {f})",
            with_failed,
            "device-hours",
            "calculated",
        ),
        Term("b", "buffer", "", Estimate(plan.buffer_percent), "%", "given", digits=3),
        Term("A", "device-hours to request", "{F} x (1 + {b} / 100)", asked, "device-hours", "calculated"),
    ]


def most_lost(lost: int, counted: int) -> float:
    """Return the upper 95 % confidence limit of the share of failures (Clopper and Pearson)."""
    if counted == 0 or lost >= counted:
        return 1.0
    low, high = lost / counted, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if _at_most(lost, counted, middle) > 1 - CERTAIN:
            low = middle
        else:
            high = middle
    return high


def _at_most(lost: int, counted: int, share: float) -> float:
    if not 0 < share < 1:
        return 1.0 if share <= 0 else float(lost >= counted)
    whole = math.lgamma(counted + 1)
    # With logarithms: the binomial coefficients of thousands of runs exceed the range of a float.
    return math.fsum(
        math.exp(
            whole
            - math.lgamma(k + 1)
            - math.lgamma(counted - k + 1)
            + k * math.log(share)
            + (counted - k) * math.log1p(-share)
        )
        for k in range(lost + 1)
    )


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
    rate = held * tariff.per_device_hour + nodes * tariff.per_node_hour
    charge = hours.scaled(rate / plan.devices)
    return [*terms, Term("C", "charge", " + ".join(parts) or "0", charge, tariff.unit, "calculated")]


def _energy(plan: WorkPlan, basis: Basis, energies: Sequence[CellEnergy]) -> tuple[tuple[Term, ...], str]:
    """Return the energy of the steps of all trainings; none, with the reason, if it is unknown or invalid."""
    if basis.kind != "measured":
        return (), f"nothing was measured at {plan.devices} devices"
    found = next((entry for entry in energies if entry.cell.cell == basis.cell.cell), None)
    if found is None or "energy_per_sample" not in found.figures:
        return (), found.main.reason or "no energy was measured" if found else "no energy was measured"
    each = found.figures["energy_per_sample"]
    if each.value is None or found.verdict == "invalid":
        return (), each.reason or "the energy is invalid"
    low, high = (each.interval.low, each.interval.top) if each.interval else (None, None)
    sample = Estimate(each.value, low, high)
    runs = tuple(record.run_id for record in basis.cell.records)
    whole = sample.scaled(plan.samples * plan.trainings / JOULES_PER_KWH)
    terms = (
        Term("e", f"energy per sample ({found.scope}; {found.verdict})", "", sample, "J", "measured", runs),
        Term("W", "energy of the steps of the plan", "{e} x {S} x {K} / 3600000", whole, "kWh", "calculated", runs),
    )
    return terms, ""


def _uncounted(plan: WorkPlan, records: Sequence[RunRecord]) -> tuple[str, ...]:
    """Return what is not included in the hours, because it was not measured."""
    found = ["time in the queue, and the start of the job and the program before the first phase"]
    if evaluation_s(records) is None:
        found.append("evaluation: these runs had none")
    elif plan.epochs is None:
        found.append("evaluation: the runs had some, but the plan gives samples, not epochs")
    found.append("checkpoints, unless the measured steps wrote them")
    if all(record.data is None for record in records):
        found.append("reading of real data: these runs generated their samples")
    return tuple(found)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
