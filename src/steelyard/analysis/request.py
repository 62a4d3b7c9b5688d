"""Device-hours of a plan from what a study measured, every term with its formula and its uncertainty.

Knows arithmetic of plans and statistics of jobs; no form, no site and no words for people. Each measured job gives one
estimate of what a whole training takes, rate and set-up together; their mean is what the plan rests on. What the plan
will take differs from it in two ways: the mean is known only from a few jobs, and the jobs to come vary as these did.
With n measured jobs and m to come Student's interval of the mean widens by sqrt(1 + n / m), which is the prediction
interval of the mean of m further jobs.
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
# Ends by which a run took its hours and gave nothing. A run that does not fit or was refused would not be planned.
LOST = ("failed", "hung", "killed", "node_failure", "preempted", "time_limit")
SETUP = ("setup", "data", "compile")
MAX_SAMPLES, MAX_TRAININGS, MAX_DEVICES = 1e18, 10**7, 10**7
MAX_PERCENT = 1000.0
CERTAIN = 0.95


@dataclass(frozen=True)
class WorkPlan:
    """What somebody wants to do."""

    samples: float
    """Of one training."""
    trainings: int
    devices: int
    """Of the largest job."""
    epochs: float | None = None
    epoch_samples: float | None = None
    """Both where the samples are their product."""
    buffer_percent: float = 0.0
    failed_percent: float | None = None
    """None: as many as failed in the study."""
    job_limit_s: float | None = None
    """The longest job that the site allows; None: a training is one job."""

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
    """None: not known; then nothing can be charged by the node."""
    whole_nodes: bool
    """All devices of a node are charged, whatever a job uses of them."""
    source: str


@dataclass(frozen=True)
class Term:
    """One line of the derivation."""

    symbol: str
    what: str
    formula: str
    """Of other symbols, in braces: `{S} / {r}`; empty: given, or measured."""
    amount: Estimate
    unit: str
    origin: str
    """Where it comes from: given, measured, counted, or worked out."""
    runs: tuple[str, ...] = ()
    digits: int = 4


BasisKind = Literal["measured", "larger", "smaller", "projected", "largest"]
"""What stands for the rate at the number of devices asked for: that number itself; per device the next larger or the
smallest count measured; a fitted curve; or per device the largest count, as if no more were lost."""


@dataclass(frozen=True)
class Basis:
    """The measured jobs that a plan rests on, and in which way."""

    kind: BasisKind
    devices: int
    """Whose jobs are used."""
    cell: CellSummary
    largest: int
    """The largest number of devices measured."""
    projection: Projection | None = None
    """Of a fitted curve, where that stands for the rate."""


@dataclass(frozen=True)
class Request:
    """What a plan takes."""

    plan: WorkPlan
    basis: Basis
    terms: tuple[Term, ...]
    jobs_a_training: int
    lost_runs: int
    counted_runs: int
    most_lost: float
    """Share that may fail with 95 % certainty, by the runs counted."""
    measured_jobs: int
    approximate: tuple[str, ...]
    """What speaks against the interval, or why there is none."""
    tariff: Tariff | None
    uncounted: tuple[str, ...]
    """What a real plan also takes and nothing here tells."""
    energy: tuple[Term, ...]
    """Of a sample and of the plan; empty: none that can be believed."""
    energy_reason: str

    def term(self, symbol: str) -> Term | None:
        """A line by its symbol."""
        return next((term for term in self.terms if term.symbol == symbol), None)

    @property
    def worked_out(self) -> Term:
        """Device-hours of the plan before failures and buffer."""
        return self._known("H")

    @property
    def asked(self) -> Term:
        """Device-hours to ask for."""
        return self._known("A")

    @property
    def blocked_by(self) -> tuple[str, ...]:
        """Codes of what forbids the use of the rate that all of it rests on."""
        found = self.basis.cell.findings
        return tuple(dict.fromkeys(one.code for one in found if one.severity == "error" and one.code[:3] != "SY4"))

    @property
    def charge(self) -> Term | None:
        """The same in the site's unit."""
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
    """What a plan takes; `curve` foretells a number of devices beyond the measured ones where its fit allows it."""
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


# -- which jobs stand for the plan


def basis_of(plan: WorkPlan, cells: Sequence[CellSummary], curve: Scaling | None) -> Basis:
    """The jobs at the number of devices asked for; where none are, what comes nearest to the safe side."""
    by_count = {cell.records[0].spec.ranks: cell for cell in cells if cell.throughput.value}
    if not by_count:
        raise InputError(
            "no run of the selection has a throughput, so that no hours follow from it",
            next_step="steelyard show STUDY tells how its runs ended",
        )
    largest = max(by_count)
    if plan.devices in by_count:
        return Basis("measured", plan.devices, by_count[plan.devices], largest)
    if plan.devices < largest:
        larger = min(count for count in by_count if count > plan.devices)
        kind: BasisKind = "larger" if plan.devices > min(by_count) else "smaller"
        return Basis(kind, larger, by_count[larger], largest)
    projections = curve.projections if curve is not None and not curve.blocked else ()
    foretold = [entry for entry in projections if entry.devices == plan.devices]
    if foretold:
        # Where several models foretell, the one that promises least is the safe one.
        least = min(foretold, key=lambda entry: entry.throughput)
        return Basis("projected", largest, by_count[largest], largest, least)
    return Basis("largest", largest, by_count[largest], largest)


def _rate(record: RunRecord) -> float:
    found = record.quantities.get("throughput_job")
    return found.value or 0.0 if found is not None else 0.0


def _rates(plan: WorkPlan, basis: Basis, records: Sequence[RunRecord]) -> list[float]:
    """At the number of devices asked for, one a measured job."""
    grown = plan.devices / basis.devices
    if basis.projection is not None:
        grown = basis.projection.throughput / (basis.cell.throughput.value or math.nan)
    return [_rate(record) * grown for record in records]


# -- time of a training


def setup_s(record: RunRecord) -> float:
    """What a job takes before its steps go at their steady pace: set-up, data, compilation and slow first steps.

    The idle baseline that sensors are read in belongs to the measurement alone.
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
    """Mean length of one evaluation; None where the runs have none."""
    found = [p.end_s - p.start_s for r in records for p in r.phases if p.name == "evaluation" and p.complete]
    return math.fsum(found) / len(found) if found else None


def _jobs_a_training(plan: WorkPlan, basis: Basis, records: Sequence[RunRecord]) -> int:
    if plan.job_limit_s is None:
        return 1
    setup = _mean([setup_s(record) for record in records])
    room_s = plan.job_limit_s - setup
    if room_s <= 0:
        problem = Problem("--job-hours", f"set-up alone takes {setup:.0f} s", "longer than that")
        raise InputError("no step fits into a job of this length", problems=(problem,))
    steps_s = plan.samples * _mean([1 / rate for rate in _rates(plan, basis, records)])
    return max(1, math.ceil((steps_s + _evaluations_s(plan, records)) / room_s))


def _evaluations_s(plan: WorkPlan, records: Sequence[RunRecord]) -> float:
    """Of one training; 0 where the plan or the runs tell none, which is said among what is not counted."""
    each = evaluation_s(records)
    return plan.epochs * each if plan.epochs is not None and each is not None else 0.0


def _terms(plan: WorkPlan, basis: Basis, records: Sequence[RunRecord], jobs: int) -> tuple[list[Term], tuple[str, ...]]:
    """From samples to device-hours of all trainings."""
    runs = tuple(record.run_id for record in records)
    rates = _rates(plan, basis, records)
    setups, each = [setup_s(record) for record in records], evaluation_s(records)
    evaluations = _evaluations_s(plan, records)
    steps = [plan.samples / rate for rate in rates]
    whole = [step + jobs * setup + evaluations for step, setup in zip(steps, setups, strict=True)]
    measured = basis.kind == "measured"
    doubts = across_jobs(whole).approximate
    if not measured:
        doubts = ("nothing was measured at this number of devices, so that there is no interval",)
    single = basis.cell.throughput if measured and len(records) == 1 else None
    # A rate from the time for a sample.
    each_s = _over(rates, turned=True, measured=measured, single=single)
    rate = Estimate(1 / each_s.value)
    if each_s.low and each_s.high is not None:
        rate = Estimate(rate.value, 1 / each_s.high, 1 / each_s.low)
    terms = _list_given(plan)
    origin = "measured" if measured else "not measured: see below"
    terms.append(Term("r", "rate of the job at N devices", "", rate, basis.cell.throughput.unit, origin, runs))
    steps_s = _over(steps, measured=measured, single=single, scale=plan.samples)
    terms.append(Term("T1", "time of the steps of one training", "{S} / {r}", steps_s, "s", "worked out", runs))
    terms.append(Term("t", "set-up of one job", "", _over(setups, measured=measured), "s", "measured", runs))
    why_jobs = "given: one job" if plan.job_limit_s is None else "counted: by the longest job allowed"
    terms.append(Term("J", "jobs of one training", "", Estimate(float(jobs)), "", why_jobs, digits=3))
    formula = "{T1} + {J} x {t}"
    if evaluations and each is not None and plan.epochs is not None:
        terms.append(Term("v", "one evaluation, after each epoch", "", Estimate(each), "s", "measured", runs))
        formula += " + {E} x {v}"
    training = _over(whole, measured=measured, single=single, scale=plan.samples, shift=_mean(whole) - _mean(steps))
    terms.append(Term("T", "time of one training", formula, training, "s", "worked out", runs))
    foretold = predicted(whole, plan.trainings * jobs) if measured and len(whole) > 1 else training
    hours = foretold.scaled(plan.trainings * plan.devices / HOUR_S)
    terms.append(
        Term("H", "device-hours of the plan", "{K} x {T} x {N} / 3600", hours, "device-hours", "worked out", runs)
    )
    return terms, doubts


def _list_given(plan: WorkPlan) -> list[Term]:
    terms = []
    if plan.epochs is not None and plan.epoch_samples is not None:
        terms.append(Term("E", "epochs of one training", "", Estimate(plan.epochs), "", "given"))
        terms.append(Term("D", "samples of one epoch", "", Estimate(plan.epoch_samples), "samples", "given", digits=9))
    formula = "{E} x {D}" if terms else ""
    origin = "worked out" if terms else "given"
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
    """Mean over jobs with its interval; of one job the interval of its own rate, which speaks for that job alone.

    `turned`: of the values' inverses. `scale` and `shift`: what one job's time is of its time for a sample.
    """
    found = across_jobs([1 / value for value in values] if turned else values)
    if not measured:
        return Estimate(found.value)
    if single is not None and single.interval is not None:
        ends = (1 / single.interval.high, 1 / single.interval.low) if single.interval.low > 0 else (None, None)
        if ends[0] is not None and ends[1] is not None:
            return Estimate(found.value, ends[0] * scale + shift, ends[1] * scale + shift)
    if found.low is None or found.high is None:
        return Estimate(found.value)
    return Estimate(found.value, max(0.0, found.low), found.high)


def predicted(values: Sequence[float], further: int) -> Estimate:
    """The mean of so many further jobs, with the interval that it will lie in."""
    found = across_jobs(values)
    if found.high is None:
        return Estimate(found.value)
    half = (found.high - found.value) * math.sqrt(1 + len(values) / further)
    return Estimate(found.value, max(0.0, found.value - half), found.value + half)


# -- what comes on top


def _overhead(plan: WorkPlan, hours: Estimate, failed: float) -> list[Term]:
    """Failed runs and the buffer. A failed training is made again from its start, which is the most it can cost."""
    with_failed = hours.scaled(1 / (1 - failed))
    asked = with_failed.scaled(1 + plan.buffer_percent / 100)
    told = "given" if plan.failed_percent is not None else "counted: runs of the study that failed"
    return [
        Term("f", "share of runs that fail", "", Estimate(failed), "", told, digits=3),
        Term(
            "F",
            "device-hours with failed runs made again",
            "{H} / (1 - {f})",
            with_failed,
            "device-hours",
            "worked out",
        ),
        Term("b", "buffer", "", Estimate(plan.buffer_percent), "%", "given", digits=3),
        Term("A", "device-hours to ask for", "{F} x (1 + {b} / 100)", asked, "device-hours", "worked out"),
    ]


def most_lost(lost: int, counted: int) -> float:
    """Largest share of failures under which so few are still seen in one of twenty studies (Clopper and Pearson)."""
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
    # By logarithms: the binomial coefficients of some thousand runs are beyond what a float can hold.
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
    """Time turned into the site's unit; by the node where it charges so."""
    each = tariff.devices_per_node
    if tariff.per_node_hour and each is None:
        problem = Problem("--node-devices", "not given, and nodes are charged", "devices on one node")
        raise InputError("how many nodes the job takes is not known", problems=(problem,))
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
                f"counted: {each} devices a node",
                digits=9,
            )
        )
    if tariff.per_device_hour:
        terms.append(
            Term("p", f"{tariff.unit} for a device-hour", "", Estimate(tariff.per_device_hour), "", tariff.source)
        )
        if held != plan.devices:
            terms.append(
                Term("Q", "devices charged: whole nodes", "", Estimate(float(held)), "devices", "counted", digits=9)
            )
        parts.append("{A} x {p}" if held == plan.devices else "{A} / {N} x {Q} x {p}")
    if tariff.per_node_hour:
        terms.append(Term("q", f"{tariff.unit} for a node-hour", "", Estimate(tariff.per_node_hour), "", tariff.source))
        parts.append("{A} / {N} x {M} x {q}")
    rate = held * tariff.per_device_hour + nodes * tariff.per_node_hour
    charge = hours.scaled(rate / plan.devices)
    return [*terms, Term("C", "charge", " + ".join(parts) or "0", charge, tariff.unit, "worked out")]


def _energy(plan: WorkPlan, basis: Basis, energies: Sequence[CellEnergy]) -> tuple[tuple[Term, ...], str]:
    """Energy of the steps of all trainings; none, with the reason, where it is not known or cannot be believed."""
    if basis.kind != "measured":
        return (), f"nothing was measured at {plan.devices} devices"
    found = next((entry for entry in energies if entry.cell.cell == basis.cell.cell), None)
    if found is None or "energy_per_sample" not in found.figures:
        return (), found.main.reason or "no energy was measured" if found else "no energy was measured"
    each = found.figures["energy_per_sample"]
    if each.value is None or found.verdict == "invalid":
        return (), each.reason or "the energy cannot be believed"
    low, high = (each.interval.low, each.interval.high) if each.interval else (None, None)
    sample = Estimate(each.value, low, high)
    runs = tuple(record.run_id for record in basis.cell.records)
    whole = sample.scaled(plan.samples * plan.trainings / JOULES_PER_KWH)
    terms = (
        Term("e", f"energy of a sample ({found.scope}; {found.verdict})", "", sample, "J", "measured", runs),
        Term("W", "energy of the steps of the plan", "{e} x {S} x {K} / 3600000", whole, "kWh", "worked out", runs),
    )
    return terms, ""


def _uncounted(plan: WorkPlan, records: Sequence[RunRecord]) -> tuple[str, ...]:
    """Said beside the hours, because nothing measured tells them."""
    found = ["time in the queue, and what the scheduler and the start of the program take before the first phase"]
    if evaluation_s(records) is None:
        found.append("evaluation: these runs made none")
    elif plan.epochs is None:
        found.append("evaluation: the runs made some, but the plan says samples and not epochs")
    found.append("checkpoints, unless the measured steps wrote them")
    if all(record.data is None for record in records):
        found.append("reading of real data: these runs made their samples themselves")
    return tuple(found)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
