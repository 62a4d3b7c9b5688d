"""The allocation pack: hours that follow and hold the truth, no figure for what was not measured, demands answered."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import random
import re
import statistics
from dataclasses import replace
from typing import TYPE_CHECKING, Any, get_args

import pytest

from steelyard.analysis.measured_energy import cells_with_energy
from steelyard.analysis.request import ASSUMED_RATE, HOUR_S, Tariff, WorkPlan, predicted, request, setup_s
from steelyard.analysis.scaling import scaling
from steelyard.analysis.select import select
from steelyard.analysis.summary import summarise
from steelyard.audit.check import check_table
from steelyard.audit.documents import names as documents
from steelyard.audit.subject import audit
from steelyard.audit.table import parse_table
from steelyard.cli.main import main
from steelyard.contracts.finding import Finding
from steelyard.contracts.observe import Phase, Status
from steelyard.contracts.record import Steady
from steelyard.contracts.sim import Collective, Link, Noise, Power, Sensor, SimTruth, State
from steelyard.contracts.spec import Budget, RunSpec
from steelyard.derive.record import derive
from steelyard.errors import InputError, SteelyardError
from steelyard.inputs.scheme import SCHEMES_VARIABLE, Need, find_scheme, scheme_names
from steelyard.report.audit.page import audit_page
from steelyard.report.pack.build import NOT_MEASURED, gather, hand_in_page, hand_in_sections, pack_page
from steelyard.report.pack.checklist import CHECKS, TITLES, checklist_section, fits, lines
from steelyard.report.pack.files import write_pack
from steelyard.report.pack.fit import estimated_pages, fitted, page_limit
from steelyard.report.pack.sections import derivation_table, hours_answer, use_section
from steelyard.report.page import Chart, Table
from steelyard.report.render import draw
from steelyard.report.render.csv_table import csv_table
from steelyard.report.render.html import html
from steelyard.report.render.latex import latex
from steelyard.report.render.markdown import markdown
from steelyard.results.store import RAW, ResultFolder
from steelyard.stats.failures import most_rate
from steelyard.stats.quotient import Estimate
from steelyard.worker.engine.run import run_directory

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from steelyard.contracts.record import RunRecord
    from steelyard.report.pack.model import Pack

STEP_S, SETUP_S, BATCH = 0.05, 40.0, 32
COUNTS, JOBS = (1, 2, 4), 3
SAMPLES = 10_000_000
HOSTILE = "</script><img src=x onerror=alert(1)> \\input{/etc/passwd} =cmd|1 `x` $x$ \u202e"
RING = Collective(message_bytes=100_000_000, links=(Link(latency_s=1e-4, bytes_per_s=1e10),))
TRUTH = SimTruth(
    step_time_s=STEP_S, setup_s=SETUP_S, collective=RING,
    noise=Noise(kind="normal", cv=0.0, between_jobs_cv=0.02),
    power=Power(idle_w=50.0, compute_w=300.0, comm_w=300.0),
    sensors=(Sensor(scope="device", kind="counter", resolution=1e-3),), states=(State(clock_mhz=1980.0),),
)  # fmt: skip


def commit(folder: ResultFolder, ranks: int, job: int, study: str = "train", **settings: Any) -> None:
    spec = RunSpec(
        run_id=f"{study}-{ranks}-{job}", study=study, configuration=f"d{ranks}", repeat=job,
        seed=100 * ranks + job, devices=ranks,
        crosscheck_steps=0, budget=Budget(min_steps=60, max_steps=60, min_seconds=0), sim=TRUTH,
        **{"batch": BATCH, **settings},
    )  # fmt: skip
    scratch = folder.open_scratch(spec)
    run_directory(scratch / RAW)
    folder.commit(scratch, derive(scratch / RAW))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> ResultFolder:
    """A study over devices whose truth is known, through the real worker."""
    made = ResultFolder(tmp_path_factory.mktemp("results"))
    made.prepare()
    for ranks in COUNTS:
        for job in range(JOBS):
            commit(made, ranks, job)
    commit(made, 2, 0, study="single")
    return made


def plan(devices: int = 4, **settings: Any) -> WorkPlan:
    return WorkPlan(**{"samples": SAMPLES, "trainings": 10, "devices": devices, **settings})


def packed(
    folder: ResultFolder, devices: int = 4, *schemes: str, tariff: Tariff | None = None, **settings: Any
) -> Pack:
    found = [find_scheme(name) for name in schemes]
    return gather(folder, "train", plan(devices, **settings), schemes=found, tariff=tariff)


def value(pack: Pack, symbol: str) -> float:
    found = pack.request.term(symbol)
    assert found is not None
    return found.amount.value


# -- hours


def test_hours_follow_their_formulas(folder: ResultFolder) -> None:
    pack = packed(folder, tariff=Tariff("SU", 1.5, 0.0, None, False, "given"), buffer_percent=20, failures=50.0)
    training = SAMPLES / value(pack, "r") + value(pack, "t")
    assert value(pack, "T") == pytest.approx(training)
    assert value(pack, "H") == pytest.approx(10 * training * 4 / 3600)
    rate = 0.05 * 4 / 3600
    assert value(pack, "X") == pytest.approx((math.exp(rate * training) - 1) / rate)
    assert value(pack, "F") == pytest.approx(10 * value(pack, "X") * 4 / 3600)
    assert value(pack, "A") == pytest.approx(value(pack, "H") / (1 - value(pack, "f") / 100) * 1.2)
    assert value(pack, "C") == pytest.approx(1.5 * value(pack, "A"))


def test_hours_are_near_the_truth_and_their_interval_holds_it(folder: ResultFolder) -> None:
    pack = packed(folder)
    step_s = STEP_S + RING.seconds(4)
    true_hours = 10 * 4 * (SAMPLES / (4 * BATCH) * step_s + SETUP_S) / HOUR_S
    found = pack.request.worked_out.amount
    assert found.low is not None
    assert found.high is not None
    assert found.low < true_hours < found.high
    assert value(pack, "t") == pytest.approx(SETUP_S)


def drawn(record: RunRecord, rate: float) -> RunRecord:
    quantities = {**record.quantities}
    for name in ("throughput", "throughput_per_device"):
        share = 1.0 if name == "throughput" else 1 / record.spec.devices
        quantities[name] = replace(quantities[name], value=rate * share)
    return replace(record, quantities=quantities)


@pytest.mark.parametrize("trainings", [1, 5, 1_000_000])
def test_intervals_cover_what_the_plan_takes_in_95_of_100_studies(folder: ResultFolder, trainings: int) -> None:
    """The truth: the mean time of future jobs, each with its own factor like the measured ones."""
    record, chance = next(iter(folder.records("train"))), random.Random(trainings)
    studies, jobs, spread, sample_s = 600, 4, 0.03, 1e-3
    held = 0
    for _ in range(studies):
        times = [sample_s * chance.gauss(1, spread) for _ in range(jobs)]
        later = sample_s * chance.gauss(1, spread / math.sqrt(trainings))
        cells = summarise([drawn(record, 1 / time) for time in times])
        found = request(plan(1, trainings=trainings), cells, None).worked_out.amount
        truth = trainings * (SAMPLES * later + SETUP_S) / HOUR_S
        assert found.low is not None
        assert found.high is not None
        held += found.low <= truth <= found.high
    # 2.6 standard errors for this number of studies.
    assert 100 * held / studies == pytest.approx(95, abs=2.3)


def test_a_prediction_is_wider_the_fewer_jobs_are_to_come() -> None:
    widths = []
    for further in (1, 10, 10**9):
        found = predicted([9.0, 10.0, 11.0], further)
        assert found.low is not None
        assert found.high is not None
        widths.append(found.high - found.low)
    # Student's t with two degrees of freedom, the mean's own error and that of the jobs to come.
    assert widths[0] == pytest.approx(2 * 4.3027 * math.sqrt(1 / 3 + 1), rel=1e-3)
    assert widths[2] == pytest.approx(2 * 4.3027 * math.sqrt(1 / 3), rel=1e-3)
    assert widths[0] > widths[1] > widths[2]


def test_one_job_has_the_interval_of_its_steps_and_says_so(folder: ResultFolder) -> None:
    cells = select(folder, "single")
    found = request(plan(2), cells, None)
    assert found.measured_jobs == 1
    assert any("one job" in text for text in found.approximate)
    pack = gather(folder, "single", plan(2), schemes=[find_scheme("nhr-zib"), find_scheme("nairr")])
    assert pack.curve is None
    todo = {line.demand.id: " ".join(line.todo) for line in lines(pack, pack.schemes[0])}
    assert "--repeats 3" in todo["performance"]
    assert "two numbers of devices" in todo["efficiency"]
    assert "measure 1 and 2" in " ".join(lines(pack, pack.schemes[1])[1].todo)
    assert "Not shown: only one number" in html(pack_page(pack))
    assert "95 % CI of the only job measured, " in hours_answer(replace(found, terms=_with_interval(found)))


def _with_interval(found: Any) -> tuple[Any, ...]:
    """The scripted steps of this truth do not vary: an interval as one of real steps."""
    return tuple(replace(term, amount=Estimate(2.0, 1.0, 3.0)) if term.symbol == "H" else term for term in found.terms)


def test_what_is_wrong_with_the_runs_stands_beside_the_hours(folder: ResultFolder) -> None:
    pack = packed(folder)
    found = Finding(code="SY201", severity="error", message="it drifts", fix="run longer")
    cell = replace(pack.request.basis.cell, findings=(found,))
    pack = replace(pack, request=replace(pack.request, basis=replace(pack.request.basis, cell=cell)))
    assert found in pack_page(pack).sections[0].findings
    assert found in hand_in_page(pack, hand_in_sections(pack)).sections[0].findings
    # Not beside the hours alone: the sentence itself and the checklist say that they are not to be used.
    assert "Do not use: the throughput has errors (SY201)" in hours_answer(pack.request)
    told = {line.demand.id: " ".join(line.todo) for line in lines(pack, find_scheme("nairr"))}
    assert "SY201" in told["hours"]
    rows = list(csv.DictReader(io.StringIO(csv_table(derivation_table(pack.request)))))
    assert [row["findings"] for row in rows if row["quantity"].startswith("device-hours")] == ["SY201"] * 3
    assert "Do not use" not in hours_answer(packed(folder).request)


def test_failures_are_counted_per_device_hour_and_bounded(folder: ResultFolder) -> None:
    cells = select(folder, "train")
    records = [record for cell in cells for record in cell.records]
    hours = sum(max(phase.end_s for phase in record.phases) * record.spec.devices for record in records) / HOUR_S
    none = request(plan(), cells, None).failures
    assert (none.lost_runs, none.counted_runs, none.device_hours) == (0, 9, pytest.approx(hours))
    # The rule of three; far too little for this plan, so that a published rate is assumed.
    assert none.most == pytest.approx(3 / hours, rel=0.002)
    assert (none.origin, none.rate, none.most_hours) == ("assumed", 2e-5, None)
    failed = [replace(records[0], status=Status(code="node_failure", reason="gone")), *records[1:]]
    some = request(plan(), summarise(failed), None)
    assert (some.failures.origin, some.failures.lost_runs) == ("assumed", 1)
    text = markdown(pack_page(replace(packed(folder), request=some)))
    assert "Find out why they failed" in text
    # For a plan as short as the study, its own rate counts.
    short = plan(samples=SAMPLES / 2000, trainings=1)
    own = request(short, summarise(failed), None).failures
    assert (own.origin, own.rate) == ("counted", pytest.approx(1 / own.device_hours))
    # A run that does not fit would not be planned, and costs nothing here.
    full = [replace(records[0], status=Status(code="out_of_memory", reason="full")), *records[1:]]
    assert request(plan(), summarise(full), None).failures.lost_runs == 0


def test_a_study_without_a_failure_gives_its_limit_and_never_zero(folder: ResultFolder) -> None:
    """Runs of 10 and of 50,000 hours instead of their seconds."""

    def stretched(hours: float) -> list[RunRecord]:
        phase = Phase(name="measure", start_s=0.0, end_s=hours * HOUR_S)
        records = [record for cell in select(folder, "train") for record in cell.records]
        return [replace(record, phases=(*record.phases, phase)) for record in records]

    long = request(plan(), summarise(stretched(10.0)), None)
    found = long.failures
    assert (found.origin, found.rate) == ("assumed", 2e-5)
    assert found.most == pytest.approx(3 / (10 * 3 * sum(COUNTS)), rel=0.002)
    assert found.most_hours is not None
    assert found.most_hours > long.worked_out.amount.value
    years = request(plan(), summarise(stretched(50_000.0)), None).failures
    assert (years.origin, years.rate) == ("counted", pytest.approx(years.most))
    assert 0 < years.rate < 2e-5


def test_limits_of_rates_by_hand() -> None:
    """Upper 95 % limits of a Poisson mean: 2.996, 4.744, 7.754 for 0, 1, 3; normal for many."""
    assert most_rate(0, 1.0) == pytest.approx(-math.log(0.05), rel=1e-9)
    assert most_rate(1, 10.0) == pytest.approx(0.4744, abs=1e-4)
    assert most_rate(3, 1.0) == pytest.approx(7.754, abs=1e-3)
    assert most_rate(5000, 1.0) == pytest.approx(5000 + 1.645 * math.sqrt(5000), rel=1e-3)
    assert most_rate(0, 0.0) == math.inf


def test_the_published_rate_is_the_assumed_one() -> None:
    """Llama 3 (arXiv 2407.21783): 419 unexpected interruptions in 54 days on 16,384 GPUs."""
    gpu_hours = 16_384 * 54 * 24
    assert 419 / gpu_hours == pytest.approx(ASSUMED_RATE, rel=0.05)
    # The whole job was interrupted about every three hours.
    assert pytest.approx(54 * 24 / 419, rel=0.05) == 1 / (ASSUMED_RATE * 16_384)
    assert most_rate(419, gpu_hours) < 1.1 * ASSUMED_RATE


def time_spent(chance: random.Random, rate: float, setup_s: float, work_s: float, every_s: float) -> float:
    """Live through one job: set up, work, lose what no checkpoint has when the next failure comes."""
    spent = done = 0.0
    while done < work_s:
        alive_s = chance.expovariate(rate)
        worked_s = alive_s - setup_s
        if worked_s >= work_s - done:
            return spent + setup_s + work_s - done
        spent += alive_s
        saved = math.floor(max(0.0, worked_s) / every_s) * every_s if every_s else 0.0
        done += saved
    return spent


@pytest.mark.parametrize(
    ("failures", "checkpoint_s", "cut"), [(300.0, None, 1), (300.0, None, 3), (1500.0, 400.0, 1), (1500.0, 400.0, 3)]
)
def test_hours_with_failures_are_what_trainings_take(
    folder: ResultFolder, failures: float, checkpoint_s: float | None, cut: int
) -> None:
    cells = select(folder, "train")
    whole_s = _time(request(plan(), cells, None)) - SETUP_S
    limits = {} if cut == 1 else {"job_limit_s": whole_s / (cut - 0.5) + SETUP_S}
    found = request(plan(failures=failures, checkpoint_s=checkpoint_s, **limits), cells, None)
    assert found.jobs_a_training == cut
    rate, chance = failures / 1000 * 4 / HOUR_S, random.Random(f"{failures} {checkpoint_s} {cut}")
    times = [
        sum(time_spent(chance, rate, SETUP_S, whole_s / cut, checkpoint_s or 0.0) for _ in range(cut))
        for _ in range(20_000)
    ]
    mean, error = statistics.fmean(times), statistics.stdev(times) / math.sqrt(len(times))
    with_failures = found.term("F")
    assert with_failures is not None
    assert with_failures.amount.value * HOUR_S / (10 * 4) == pytest.approx(mean, abs=3.5 * error)
    # So many failures that it matters, and repeating whole trainings would cost far more.
    assert mean > 1.05 * _time(found)


def test_only_the_lost_part_is_repeated(folder: ResultFolder) -> None:
    cells = select(folder, "train")
    limit_s = _time(request(plan(), cells, None)) / 3

    def lost(**settings: Any) -> float:
        found = request(plan(**{"failures": 100.0, **settings}), cells, None).term("f")
        assert found is not None
        return found.amount.value

    whole, jobs = lost(), lost(job_limit_s=limit_s)
    often = lost(job_limit_s=limit_s, checkpoint_s=60.0)
    assert whole > 2 * jobs > 4 * often > 0
    assert lost(checkpoint_s=0.0) == whole
    with pytest.raises(InputError, match="hardly ever finish"):
        lost(failures=1e5)


@pytest.mark.parametrize("settings", [{}, {"failures": 0.0}, {"checkpoint_s": 300.0}, {"job_limit_s": 1000.0}])
def test_every_formula_gives_its_value(folder: ResultFolder, settings: dict[str, Any]) -> None:
    """Each line of the derivation, as a reader would calculate it."""
    found = request(plan(**{"failures": 20.0, **settings}), select(folder, "train"), None)
    values = {term.symbol: repr(term.amount.value) for term in found.terms}
    for term in found.terms:
        if term.formula:
            text = term.formula.format(**values).replace(" x ", " * ")
            result = eval(text, {"exp": math.exp, "__builtins__": {}})
            assert result == pytest.approx(term.amount.value, rel=1e-3, abs=1e-9), term.symbol


def test_the_text_says_which_checkpoints_are_given_or_assumed(folder: ResultFolder) -> None:
    for settings, words in (
        ({}, "Checkpoints within a job: none is assumed."),
        ({"checkpoint_s": 0.0}, "Checkpoints within a job: none, as given."),
        ({"checkpoint_s": 600.0}, "Checkpoints: every 10.0 min of work, as given."),
    ):
        text = markdown(pack_page(packed(folder, **settings)))
        assert words in text
        assert "assumed as in the training of Llama 3" in text
    assert "Failures: 3.0 per 1,000 device-hours, as given." in markdown(pack_page(packed(folder, failures=3.0)))


def test_setup_leaves_out_the_idle_baseline_and_adds_slow_first_steps(folder: ResultFolder) -> None:
    record = drawn(next(iter(folder.records("train"))), 1000.0)
    phases = (
        Phase(name="setup", start_s=0.0, end_s=10.0),
        Phase(name="idle", start_s=2.0, end_s=5.0),
        Phase(name="compile", start_s=10.0, end_s=15.0),
        Phase(name="warmup", start_s=15.0, end_s=21.0),
    )
    steady = Steady(answer="steady", start_step=50, stop_step=60, reason="so")
    # 50 steps of 32 samples take 1.6 s at the steady rate; they took 6 s.
    assert setup_s(replace(record, phases=phases, steady=steady)) == pytest.approx(10 - 3 + 5 + 6 - 1.6)


def test_evaluations_count_by_the_epoch(folder: ResultFolder) -> None:
    cells = select(folder, "train")
    more = Phase(name="evaluation", start_s=100.0, end_s=107.0)
    evaluated = summarise([replace(record, phases=(*record.phases, more)) for cell in cells for record in cell.records])
    with_epochs = plan(epochs=5.0, epoch_samples=SAMPLES / 5)
    without, extra = request(with_epochs, cells, None), request(with_epochs, evaluated, None)
    assert _time(extra) - _time(without) == pytest.approx(5 * 7)
    assert any("samples, not epochs" in text for text in request(plan(), evaluated, None).uncounted)
    # Evaluations take room in the jobs as steps do.
    limited = replace(with_epochs, job_limit_s=_time(without) + 1)
    assert request(limited, cells, None).jobs_a_training == 1
    assert request(limited, evaluated, None).jobs_a_training == 2


def _time(found: Any) -> float:
    return float(found.term("T").amount.value)


def test_a_long_training_is_cut_into_jobs_that_each_set_up(folder: ResultFolder) -> None:
    cells = select(folder, "train")
    whole = request(plan(), cells, None)
    limit_s = (_time(whole) - SETUP_S) / 2.5 + SETUP_S
    cut = request(plan(job_limit_s=limit_s), cells, None)
    assert cut.jobs_a_training == 3
    assert _time(cut) - _time(whole) == pytest.approx(2 * SETUP_S)
    with pytest.raises(InputError, match="no step fits"):
        request(plan(job_limit_s=SETUP_S / 2), cells, None)


@pytest.mark.parametrize(
    ("tariff", "charge"),
    [
        (Tariff("SU", 2.0, 0.0, 3, False, "x"), lambda hours: 2 * hours),
        (Tariff("SU", 2.0, 0.0, 3, True, "x"), lambda hours: 2 * hours * 6 / 4),
        (Tariff("node-hour", 0.0, 1.0, 3, False, "x"), lambda hours: hours * 2 / 4),
        (Tariff("SU", 1.0, 5.0, 4, False, "x"), lambda hours: hours + 5 * hours / 4),
    ],
)
def test_the_charge_counts_nodes_as_the_site_does(
    folder: ResultFolder, tariff: Tariff, charge: Callable[[float], float]
) -> None:
    pack = packed(folder, tariff=tariff)
    assert value(pack, "C") == pytest.approx(charge(value(pack, "A")))


def test_nodes_that_are_not_known_cannot_be_charged(folder: ResultFolder) -> None:
    with pytest.raises(InputError, match="the number of nodes"):
        packed(folder, tariff=Tariff("SU", 0.0, 1.0, None, False, "x"))


@pytest.mark.parametrize(
    "wrong", [{"samples": 0}, {"trainings": 0}, {"devices": 0}, {"buffer_percent": -1}, {"epochs": -1}]
)
def test_a_plan_that_is_none_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="plan is not valid"):
        plan(**{"devices": 4, **wrong})


def test_energy_of_the_plan_holds_the_truth_and_is_left_out_where_it_is_not_known(folder: ResultFolder) -> None:
    pack = packed(folder)
    step_s = STEP_S + RING.seconds(4)
    true_kwh = 10 * SAMPLES / (4 * BATCH) * step_s * 4 * 300.0 / 3.6e6
    amount = pack.request.energy[-1].amount
    assert amount.low is not None
    assert amount.high is not None
    assert amount.low < true_kwh < amount.high
    cells = select(folder, "train")
    assert request(plan(), cells, None, None, ()).energy == ()
    beyond = request(plan(8), cells, None, None, cells_with_energy(folder, cells))
    assert beyond.energy == ()
    assert "8 devices" in beyond.energy_reason


# -- what was not measured


def test_a_job_beyond_what_was_measured_is_found_and_never_drawn_as_measured(folder: ResultFolder) -> None:
    pack = packed(folder, 64, "archer2")
    found = pack.request
    assert found.basis.kind in ("projected", "largest")
    assert found.worked_out.amount.low is None
    assert "not measured at this size" in hours_answer(found)
    assert "SY315" in {entry.code for entry in pack.own_audit.findings}
    sections = {section.name: section for section in pack_page(pack).sections}
    assert "SY315" in {entry.code for entry in sections["device-hours"].findings}
    charts = [block for section in sections.values() for block in section.blocks if isinstance(block, Chart)]
    chart = next(chart for chart in charts if chart.name == "scaling-throughput")
    row = next(row for row in chart.table.rows if row[0].value == 64)
    assert all(cell.value is None for cell in row[2:])
    assert NOT_MEASURED in row[2].text
    assert NOT_MEASURED in chart.alt
    todo = {line.demand.id: line.todo for line in lines(pack, pack.schemes[0])}
    assert "measure 64 devices" in todo["largest-job"][0]
    if draw.available():
        # The only mark at 64 devices is the cross on the axis.
        at = [v for part in chart.spec["layer"] for v in part.get("data", {}).get("values", []) if v.get("x") == 64]
        assert all(mark.get("y", 0) == 0 for mark in at)


def test_between_two_counts_the_next_larger_stands_in(folder: ResultFolder) -> None:
    cells = select(folder, "train")
    found = request(plan(3), cells, scaling(cells)[0])
    assert (found.basis.kind, found.basis.devices) == ("larger", 4)
    rate = found.term("r")
    assert rate is not None
    assert rate.amount.value == pytest.approx((found.basis.cell.throughput.value or 0) * 3 / 4)
    assert rate.amount.low is None
    assert "SY315" in {entry.code for entry in packed(folder, 3).own_audit.findings}


def test_without_a_fit_the_largest_count_gives_the_least_hours(folder: ResultFolder) -> None:
    found = request(plan(64), select(folder, "train"), None)
    assert found.basis.kind == "largest"
    pack = packed(folder, 64)
    text = markdown(pack_page(replace(pack, request=found)))
    assert "lower limit" in text


def test_a_blocked_curve_gives_no_efficiency_anywhere(folder: ResultFolder, tmp_path: Path) -> None:
    other = ResultFolder(tmp_path / "results")
    other.prepare()
    for ranks in (1, 2):
        for job in range(JOBS):
            commit(other, ranks, job, precision="bf16" if ranks == 2 else "fp32")
    pack = gather(other, "train", plan(2), schemes=[find_scheme("access-maximize")])
    assert pack.curve is not None
    assert pack.curve.blocked
    page = pack_page(pack)
    assert "efficiency" not in pack.table_csv
    assert not pack.own_audit.judgements
    section = next(section for section in page.sections if section.name == "scaling")
    assert "Parallel efficiency not reported" in section.answer
    assert "speed-up" not in {column.name for table in page.tables for column in table.columns}
    written = write_pack(pack, tmp_path / "pack")
    assert "claims.toml" not in written.files
    assert any("fix the errors of the scaling" in todo for line in lines(pack, pack.schemes[0]) for todo in line.todo)
    told = {line.demand.id: " ".join(line.todo) for line in lines(pack, find_scheme("nairr"))}
    assert "fix the errors of the scaling" in told["two-scales"]


def test_a_selection_of_several_curves_is_refused(folder: ResultFolder, tmp_path: Path) -> None:
    other = ResultFolder(tmp_path / "results")
    other.prepare()
    for precision in ("fp32", "bf16"):
        for ranks in (1, 2):
            spec = {"precision": precision, "study": f"x{precision}"}
            commit(other, ranks, 0, **spec)
    records = [replace(record, spec=replace(record.spec, study="x",
    configuration=f"{record.spec.study}-{record.spec.devices}"))
               for name in other.studies() for record in other.records(name)]  # fmt: skip
    assert len(scaling(summarise(records))) == 2
    from steelyard.report.pack.build import _one_curve

    with pytest.raises(InputError, match="one configuration"):
        _one_curve(summarise(records), plan(2), None, "x")


# -- the pack audits itself


def test_what_the_pack_prints_holds_when_it_is_audited_from_its_files(folder: ResultFolder, tmp_path: Path) -> None:
    pack = packed(folder, buffer_percent=25, failures=40.0, checkpoint_s=900.0)
    write_pack(pack, tmp_path / "pack")
    judged = audit(str(tmp_path / "pack" / "claims.toml"), folder)
    assert judged.verdict == "consistent"
    assert len(judged.judgements) == len(COUNTS) - 1
    assert judged.findings == ()


def test_hours_that_do_not_follow_are_found(folder: ResultFolder) -> None:
    pack = packed(folder, buffer_percent=25)
    lines_ = pack.table_csv.splitlines()
    changed = [line.replace(",25.0000,%", ",0.00000,%") if ",buffer," in line else line for line in lines_]
    assert changed != lines_
    found = check_table(parse_table("\n".join(changed), "table.csv"))
    assert {entry.code for entry in found} == {"SY510"}


# -- schemes and checklists


def test_every_scheme_is_valid_and_every_need_can_be_looked_up() -> None:
    assert len(scheme_names()) >= 9
    assert set(get_args(Need)) == set(CHECKS)
    for name in scheme_names():
        scheme = find_scheme(name).scheme
        assert scheme.source
        assert scheme.seen >= 2026
        assert all(entry.demand.endswith(".") for entry in scheme.demand)


def test_a_folder_of_ones_own_goes_before_the_built_in_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (
        'title = "Ours"\nsource = "our wiki"\nseen = 2026\n[[demand]]\nid = "hours"\ndemand = "Hours."\n'
        'needs = ["device-hours"]\n'
    )
    (tmp_path / "nairr.toml").write_text(text, encoding="utf-8")
    (tmp_path / "ours.toml").write_text(text, encoding="utf-8")
    monkeypatch.setenv(SCHEMES_VARIABLE, str(tmp_path))
    assert find_scheme("nairr").scheme.title == "Ours"
    assert "ours" in scheme_names()
    assert find_scheme(str(tmp_path / "ours.toml")).name == "ours"


HEAD = 'title = "x"\nsource = "y"\nseen = 2026\n'
DEMAND = '[[demand]]\nid = "a"\ndemand = "b"\nneeds = ["yours"]\n'


@pytest.mark.parametrize(
    "text",
    [
        'title = "x"',
        f"{HEAD}demand = []",
        f"{HEAD}{DEMAND.replace('yours', 'magic')}",
        f"{HEAD}{DEMAND}{DEMAND}",
        f'{HEAD}address = "javascript:alert(1)"\n{DEMAND}',
        f"{HEAD}buffer = {{ low_percent = 30, high_percent = 20 }}\n{DEMAND}",
    ],
)
def test_a_scheme_that_is_not_one_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=r"bad\.toml"):
        find_scheme(str(tmp_path / "bad.toml"))
    with pytest.raises(InputError, match="no such scheme"):
        find_scheme("nair")


def test_the_checklist_says_where_and_what_to_do(folder: ResultFolder) -> None:
    pack = packed(folder, 4, "nairr", "marlowe", "juqueen", tariff=None, buffer_percent=10)
    told = {line.demand.id: line for found in pack.schemes for line in lines(pack, found)}
    assert told["hours"].sections == ("device-hours",)
    assert "20 to 30" in told["buffer"].todo[0]
    assert "--charge" in told["units"].todo[0]
    assert told["two-scales"].todo == ()
    assert "known FLOPs" in told["mfu"].todo[0]
    assert "real data" in told["production"].todo[0]
    assert "write it yourself" in told["experience"].todo[0]
    page = pack_page(pack)
    names = {section.name for section in page.sections}
    assert {section for line in told.values() for section in line.sections} <= names
    assert set(TITLES) <= names
    section = checklist_section(pack, pack.schemes[0])
    assert section.answer.startswith("3 of 5 demands answered; open: buffer, units")


def test_pages_are_held_against_the_limit(folder: ResultFolder) -> None:
    pack = packed(folder, 4, "nhr-zib")
    assert fits(pack, pack.schemes[0])
    long = replace(pack, pages=4)
    assert not fits(long, pack.schemes[0])
    table = checklist_section(long, pack.schemes[0]).blocks[0]
    assert isinstance(table, Table)
    assert table.rows[-1][1].text == "NOT answered"
    assert "not counted" in html(pack_page(pack))


def test_what_does_not_fit_is_in_the_appendix(folder: ResultFolder) -> None:
    """The limit of 1.5 pages, with the estimate that is used without TeX."""
    pack = packed(folder, 4, "nhr-zib")
    whole = hand_in_sections(pack)
    assert estimated_pages(whole) > 1.5
    shown, moved = fitted(whole, page_limit(pack), estimated_pages)
    assert estimated_pages(shown) <= 1.5
    names = [[block.name for part in parts for block in part.blocks if isinstance(block, Table | Chart)]
             for parts in (shown, moved)]  # fmt: skip
    assert {"scaling-table", "scaling-throughput"} <= set(names[0])
    assert set(names[0]).isdisjoint(names[1])
    told = [text for part in (*shown, *moved) for block in part.blocks for text in getattr(block, "paragraphs", ())]
    assert len(told) == len(set(told))
    assert fitted(whole, None, estimated_pages) == (whole, [])
    # Errors stay, whatever the limit.
    wrong = Finding(code="SY501", severity="error", message="clocks disagree", fix="fix them")
    shown, _ = fitted([replace(part, findings=(wrong,)) for part in whole], 0.01, estimated_pages)
    assert all(wrong in part.findings for part in shown)


@pytest.mark.full("needs TeX")
@pytest.mark.parametrize("name", ["article.cls", "pdflatex.fmt", "graphicx.sty", "section.aux"])
def test_tex_reads_nothing_that_came_with_the_folder_of_an_older_pack(
    folder: ResultFolder, tmp_path: Path, name: str
) -> None:
    pack = tmp_path / "pack"
    pack.mkdir()
    (pack / "pack.json").write_text("{}")
    (pack / name).write_text("\\errmessage{somebody else}\n")
    write_pack(packed(folder, 4, "nhr-zib"), pack, pdf=True)
    assert (pack / "section.pdf").is_file()


@pytest.mark.full("needs TeX")
def test_tex_sets_the_section_within_its_limit(folder: ResultFolder, tmp_path: Path) -> None:
    written = write_pack(packed(folder, 4, "nhr-zib"), tmp_path / "pack", pdf=True)
    assert written.pack.pages is not None
    assert 1 <= written.pack.pages <= 1.5
    assert {"section.pdf", "appendix.pdf"} <= set(written.files)
    assert "Overfull" not in (tmp_path / "pack" / "section.log").read_text(encoding="utf-8", errors="replace")


# -- files


def test_a_pack_has_all_its_files_and_can_be_made_again(folder: ResultFolder, tmp_path: Path) -> None:
    pack = packed(folder, 4, "nairr", tariff=Tariff("SU", 1.0, 0.0, None, False, "given"), buffer_percent=25)
    out = tmp_path / "pack"
    written = write_pack(pack, out)
    assert {"pack.html", "pack.md", "pack.tex", "section.tex", "pack.json", "table.csv", "claims.toml"} <= set(
        written.files
    )
    assert "tables/derivation.csv" in written.files
    assert {"figures/scaling-throughput.pdf", "figures/scaling-throughput.svg"} <= set(written.files)
    assert "figures/scaling-throughput-column.pdf" in (out / "section.tex").read_text(encoding="utf-8")
    assert "figures/scaling-throughput.svg" in (out / "pack.md").read_text(encoding="utf-8")
    data = json.loads((out / "pack.json").read_text(encoding="utf-8"))
    assert data["checklists"]["nairr"][0]["answered"]
    rows = list(csv.DictReader(io.StringIO((out / "tables" / "derivation.csv").read_text(encoding="utf-8"))))
    assert float(next(row for row in rows if row["quantity"].startswith("device-hours to request"))["value"]) == value(
        pack, "A"
    )
    (out / "figures" / "old.pdf").write_bytes(b"")
    write_pack(pack, out)
    assert not (out / "figures" / "old.pdf").exists()


def test_other_peoples_files_are_left_alone(folder: ResultFolder, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(InputError, match="not empty"):
        write_pack(packed(folder), tmp_path)
    with pytest.raises(InputError, match="is a file"):
        write_pack(packed(folder), tmp_path / "mine.txt")


def test_without_the_library_there_are_no_pictures_but_all_the_rest(
    folder: ResultFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(draw, "available", lambda: False)
    written = write_pack(packed(folder), tmp_path / "pack")
    assert not any(name.startswith("figures/") for name in written.files)
    assert "Throughput over devices" in (tmp_path / "pack" / "pack.tex").read_text(encoding="utf-8")


TEX = """#!/bin/sh
echo "$@" >> "${0%/*}/arguments"
for last; do :; done
stem=${last%.tex}
grep -q BROKEN "$last" && { echo "! Undefined control sequence."; exit 1; }
echo pdf > "$stem.pdf"
echo "sy-end 3 700.0pt 720.0pt"
"""


def test_the_mean_clock_is_beside_the_shares_of_the_device_time(folder: ResultFolder) -> None:
    (table,) = [block for block in use_section(packed(folder)).blocks if isinstance(block, Table)]
    assert (table.columns[-1].name, table.columns[-1].unit) == ("mean clock", "MHz")
    assert {row[-1].text for row in table.rows} == {"1,980"}


@pytest.fixture
def tex(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fake TeX that only reports a number of pages."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "pdflatex").write_text(TEX, encoding="utf-8")
    (tmp_path / "bin" / "pdflatex").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")


@pytest.mark.usefixtures("tex")
def test_pages_are_counted_before_the_checklist_is_written(folder: ResultFolder, tmp_path: Path) -> None:
    written = write_pack(packed(folder, 4, "access-maximize"), tmp_path / "pack", pdf=True)
    assert written.pack.pages == 3
    assert "| 3 pages |" in (tmp_path / "pack" / "pack.md").read_text(encoding="utf-8")
    called = (tmp_path / "bin" / "arguments").read_text(encoding="utf-8").splitlines()
    assert len(called) == 5
    assert all("-no-shell-escape" in line for line in called)


@pytest.mark.usefixtures("tex")
def test_what_tex_refuses_is_said(folder: ResultFolder, tmp_path: Path) -> None:
    pack = replace(packed(folder), selection="BROKEN")
    with pytest.raises(SteelyardError, match="Undefined control sequence"):
        write_pack(pack, tmp_path / "pack", pdf=True)


def test_without_tex_the_command_to_type_is_said(
    folder: ResultFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match="apt-get install") as caught:
        write_pack(packed(folder), tmp_path / "pack", pdf=True)
    assert caught.value.problems
    assert not (tmp_path / "pack").exists()


def test_strangers_words_are_inert_in_every_form(folder: ResultFolder) -> None:
    pack = packed(folder, 4, "nairr")
    scheme = replace(pack.schemes[0].scheme, title=HOSTILE, about=HOSTILE)
    pack = replace(pack, selection=HOSTILE, schemes=(replace(pack.schemes[0], scheme=scheme),))
    page = pack_page(pack)
    text = html(page, charts=False)
    assert "<img src=x" not in text
    assert "\\input{" not in latex(page, {})
    assert "\\input{" not in latex(hand_in_page(pack, hand_in_sections(pack)), {})
    assert "<img" not in markdown(page)


# -- the verb


def arguments(folder: ResultFolder, out: Path, *more: str) -> list[str]:
    given = ["--samples", "1e7", "--runs", "10", "--devices", "4", "-o", str(out)]
    return ["pack", "train", "--results", str(folder.path), *given, *more]


def test_the_verb_writes_and_says_what_to_do(
    folder: ResultFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = arguments(folder, tmp_path / "p", "--scheme", "nairr", "--charge", "2 SU/node-hour", "--node-devices", "4")
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "a buffer of 25 %" in said
    assert "SU" in said
    assert main(arguments(folder, tmp_path / "q", "--scheme", "nairr", "--json")) == 1
    data = json.loads(capsys.readouterr().out)
    assert [entry["id"] for entry in data["checklists"]["nairr"] if not entry["answered"]] == ["units"]


def test_the_verb_takes_the_charge_and_the_longest_job_of_a_site(
    folder: ResultFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "site.toml").write_text(
        'name = "here"\nscheduler = "slurm"\n[pools.gpu]\narchitecture = "x86_64"\ndevices_per_node = 3\n'
        'exclusive = true\nmax_time_s = 1800\n[charge]\nunit = "node-hour"\nper_device_hour = 0.0\n'
        "per_node_hour = 1.0\n",
        encoding="utf-8",
    )
    main([*arguments(folder, tmp_path / "p", "--json"), "--site", str(tmp_path / "site.toml")])
    terms = {term["symbol"]: term["value"] for term in json.loads(capsys.readouterr().out)["derivation"]}
    assert terms["M"] == 2
    assert terms["C"] == pytest.approx(terms["A"] / 4 * 2)
    assert terms["J"] == math.ceil(terms["T1"] / (1800 - SETUP_S))


@pytest.mark.parametrize(
    "words",
    [
        ["pack"],
        ["pack", "train", "--devices", "4", "-o", "x"],
        ["pack", "train", "--devices", "4", "-o", "x", "--samples", "5", "--epochs", "2"],
        ["pack", "train", "--devices", "4", "-o", "x", "--epochs", "2"],
        ["pack", "train", "--devices", "4", "-o", "x", "--samples", "5", "--charge", "cheap"],
        ["pack", "train", "--devices", "4", "-o", "x", "--samples", "5", "--scheme", "nobody"],
        ["pack", "nothing", "--devices", "4", "-o", "x", "--samples", "5"],
    ],
)
def test_what_the_verb_cannot_do_is_an_error_with_a_next_step(
    words: list[str], folder: ResultFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, "--results", str(folder.path)]) == 2
    assert re.search("valid:|give --samples N, or|next: steelyard pack --help", capsys.readouterr().err)


def test_the_verb_lists_schemes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pack", "--schemes"]) == 0
    assert "access-maximize" in capsys.readouterr().out
    assert main(["pack", "--schemes", "--json"]) == 0
    assert {entry["name"] for entry in json.loads(capsys.readouterr().out)["schemes"]} >= {"nairr", "archer2"}


# -- the reviewer's page


@pytest.mark.parametrize("name", documents())
def test_a_document_has_its_rows_findings_and_claims_on_the_page(name: str, folder: ResultFolder) -> None:
    judged = audit(name, folder)
    page = audit_page([judged])
    assert page.first is not None
    assert page.first.verdict.startswith(judged.verdict.capitalize())
    tables = {table.name: table for table in page.tables}
    rows = judged.tables[0].rows
    assert len(tables["table-rows"].rows) == len(rows)
    shown = {found for section in page.sections for found in section.findings}
    assert shown == set(judged.findings)
    claims = tables["claims-table"].rows
    assert [row[1].value for row in claims] == [entry.verdict for entry in judged.judgements]
    html(page)


def test_findings_stand_beside_their_rows(folder: ResultFolder) -> None:
    page = audit_page([audit("aces-ipu", folder)])
    rows = next(table for table in page.tables if table.name == "table-rows").rows
    with_codes = {row[0].text: row[-1].codes for row in rows if row[-1].codes}
    assert with_codes["table 3, line 43"] == ("SY503",)
    # A finding on two rows is shown with both.
    assert {"table 3, line 39", "table 3, line 41"} <= set(with_codes)
    first = next(table for table in page.tables if table.name == "table-concerned")
    assert {row[0].text for row in first.rows} == set(with_codes)


def test_a_finding_on_many_rows_stands_beside_each(folder: ResultFolder) -> None:
    judged = audit("caraml", folder)
    (many,) = (found for found in judged.findings if "other rows" in found.place)
    rows = next(table for table in audit_page([judged]).tables if table.name == "table-rows").rows
    # The finding names one row and how many more.
    assert sum(many.code in row[-1].codes for row in rows) == 1 + int(many.place.split()[-3])


def test_a_study_a_pack_and_a_table_can_be_reviewed(folder: ResultFolder, tmp_path: Path) -> None:
    write_pack(packed(folder), tmp_path / "pack")
    system = HOSTILE.replace("=", "")
    (tmp_path / "hostile.csv").write_text(
        f'system,model,devices,metric,value,unit,note\n"{system}",m,1,throughput,5,images/s,{HOSTILE!r}\n',
        encoding="utf-8",
    )
    words = ["train", str(tmp_path / "pack" / "claims.toml"), str(tmp_path / "hostile.csv"), str(folder.path)]
    page = audit_page([audit(word, folder) for word in words])
    text = html(page)
    assert "<img src=x" not in text
    assert page.subtitle.endswith("consistent.")
    assert len({section.name for section in page.sections}) == len(page.sections)
    assert {table.name for table in page.tables} >= {"a1-table-rows", "a2-claims-table", "a3-table-rows"}


def test_the_verb_audit_writes_the_page(
    folder: ResultFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "review.html"
    assert main(["audit", "train", "aces-ipu", "--html", str(out), "--results", str(folder.path), "--brief"]) == 1
    assert str(out) in capsys.readouterr().err
    assert "Is aces-ipu consistent?" in out.read_text(encoding="utf-8")
    assert main(["audit", "--reference", "--html", str(out), "--results", str(folder.path), "--json"]) == 1
