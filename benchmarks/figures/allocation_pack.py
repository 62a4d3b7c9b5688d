"""[allocation_pack] The intervals of device-hours cover the truth, and a pack answers the demands of the forms.

Jobs run through the real worker loop, raw files and derivation on the simulated accelerator. Its step time, links,
set-up and spread between jobs are scripted, so the true cost of a plan is known. Coverage: how many intervals, each
from a study of a few jobs, contain the true mean cost of a training, and how many contain the cost of later trainings
(the jobs of another study). Failures: trainings of several jobs are simulated second by second until they are
complete, with exponential failures and checkpoints, for random plans; their mean must be the expected device-hours.
The pack: one study over devices for all schemes, audited from the written files, with its LaTeX compiled and its pages
counted.
"""

from __future__ import annotations

import math
import random
import statistics
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from figure import Figure, arguments, at_least, at_most, between, finish, slack_percent
from steelyard.analysis.measured_energy import cells_with_energy
from steelyard.analysis.request import Tariff, WorkPlan, request
from steelyard.analysis.summary import summarise
from steelyard.audit.subject import audit
from steelyard.contracts.observe import SPEC_FILE
from steelyard.contracts.sim import Collective, Link, Noise, Power, Sensor, SimTruth
from steelyard.contracts.spec import Budget, RunSpec
from steelyard.derive.record import derive
from steelyard.inputs.scheme import find_scheme, scheme_names
from steelyard.report.pack.build import gather
from steelyard.report.pack.checklist import lines
from steelyard.report.pack.files import write_pack
from steelyard.results.store import RAW, ResultFolder, record_text
from steelyard.worker.engine.run import run_directory

if TYPE_CHECKING:
    from steelyard.contracts.record import RunRecord
    from steelyard.report.pack.model import Pack

JOBS, RANKS, BATCH = 4, 4, 64
STEP_S, SETUP_S, MESSAGE_BYTES = 0.05, 30.0, 400_000_000
COMPUTE_W, COMM_W = 400.0, 400.0
LINK = Link(latency_s=2e-5, bytes_per_s=2e11)
STEPS = Budget(min_steps=60, max_steps=60, min_seconds=0)
TRUTH = SimTruth(
    step_time_s=STEP_S,
    setup_s=SETUP_S,
    noise=Noise(kind="normal", cv=0.0, between_jobs_cv=0.03),
    collective=Collective(message_bytes=MESSAGE_BYTES, links=(LINK,)),
    power=Power(idle_w=70.0, compute_w=COMPUTE_W, comm_w=COMM_W),
    sensors=(Sensor(scope="device", kind="counter", resolution=1e-3),),
)
EPOCHS, EPOCH_SAMPLES, TRAININGS = 90, 1_281_167, JOBS
COUNTS = (1, 2, 4, 8)
FIRST_SEED = 9_000_000
HOUR_S, JOULES_PER_KWH = 3600.0, 3.6e6
# Demands that no measurement answers, by scheme, read from the files by hand. A simulated device has no peak, no data.
OPEN = {
    "juqueen": {"production", "storage"},
    "marlowe": {"mfu", "experience"},
    "nhr-zib": {"necessity", "storage"},
    "eurohpc-hosting": {"ninety-percent"},
}
PAGES = 5


def plan_of(devices: int, trainings: int = TRAININGS) -> WorkPlan:
    return WorkPlan(
        samples=EPOCHS * EPOCH_SAMPLES, trainings=trainings, devices=devices, epochs=EPOCHS, epoch_samples=EPOCH_SAMPLES
    )


def spec_of(study: str, devices: int, job: int, seed: int) -> RunSpec:
    return RunSpec(
        run_id=f"{study}-{devices}-{job}", study=study, configuration=f"d{devices}", repeat=job, seed=seed,
        devices=devices,
        batch=BATCH, crosscheck_steps=0, budget=STEPS, sim=TRUTH,
    )  # fmt: skip


def run_job(spec: RunSpec) -> RunRecord:
    with tempfile.TemporaryDirectory() as folder:
        raw = Path(folder)
        (raw / SPEC_FILE).write_text(record_text(spec), encoding="utf-8")
        run_directory(raw)
        return derive(raw)


def true_training_s(devices: int) -> float:
    """True mean cost of a training, over all possible jobs."""
    step_s = STEP_S + TRUTH.collective.seconds(devices)
    return EPOCHS * EPOCH_SAMPLES / (BATCH * devices) * step_s + SETUP_S


def spent_s(records: list[RunRecord]) -> float:
    """Cost of a training with the mean of these jobs."""
    rates = [record.quantities["throughput"].value or 0.0 for record in records]
    return sum(EPOCHS * EPOCH_SAMPLES / rate + SETUP_S for rate in rates) / len(rates)


def covered(studies: int) -> tuple[float, float]:
    """Percentage of studies whose interval contains the true mean, and the cost of later trainings."""
    made = [
        [run_job(spec_of(f"s{number}", RANKS, job, FIRST_SEED + JOBS * number + job)) for job in range(JOBS)]
        for number in range(studies)
    ]
    true_h = true_training_s(RANKS) * RANKS / HOUR_S
    mean = later = 0
    for number, records in enumerate(made):
        # With this many trainings their own spread vanishes: the interval is that of the mean.
        many = request(plan_of(RANKS, 10**6), summarise(records), None).worked_out.amount.scaled(1e-6)
        mean += _within(many.low, true_h, many.high)
        few = request(plan_of(RANKS), summarise(records), None).worked_out.amount
        later += _within(few.low, spent_s(made[number - 1]) * TRAININGS * RANKS / HOUR_S, few.high)
    return 100 * mean / studies, 100 * later / studies


def _within(low: float | None, value: float, high: float | None) -> bool:
    return low is not None and high is not None and low <= value <= high


# -- failures


def training_s(chance: random.Random, rate: float, job_work_s: float, jobs: int, every_s: float) -> float:
    """Time of one training: each job works from checkpoint to checkpoint, and after a failure sets up again."""
    spent = 0.0
    for _ in range(jobs):
        left, ready = job_work_s, False
        failure = chance.expovariate(rate)
        while left > 0:
            part = min(left, every_s) if every_s else left
            needed = part + (0.0 if ready else SETUP_S)
            if needed <= failure:
                spent, failure, left, ready = spent + needed, failure - needed, left - part, True
            else:
                spent, failure, ready = spent + failure, chance.expovariate(rate), False
    return spent


def failed_plans(plans: int, trainings: int) -> float:
    """Largest difference between expected and simulated hours over random plans, in standard errors."""
    records = [run_job(spec_of("failures", RANKS, job, FIRST_SEED - job - 1)) for job in range(JOBS)]
    cells = summarise(records)
    chance = random.Random(FIRST_SEED)
    worst = 0.0
    for _ in range(plans):
        jobs = chance.randint(1, 5)
        failures_a_job = chance.uniform(0.05, 1.5)
        whole = request(plan_of(RANKS, 1), cells, None)
        work_s = whole.worked_out.amount.value * HOUR_S / RANKS - SETUP_S
        every_s = chance.choice([0.0, work_s / jobs * chance.uniform(0.05, 0.9)])
        rate = failures_a_job * jobs / work_s
        planned = WorkPlan(
            samples=EPOCHS * EPOCH_SAMPLES, trainings=1, devices=RANKS, failures=1000 * rate * HOUR_S / RANKS,
            checkpoint_s=every_s, job_limit_s=work_s / (jobs - 0.5) + SETUP_S if jobs > 1 else None,
        )  # fmt: skip
        found = request(planned, cells, None)
        expected = found.term("F")
        assert expected is not None
        assert found.jobs_a_training == jobs
        times = [training_s(chance, rate, work_s / jobs, jobs, every_s) for _ in range(trainings)]
        mean, error = statistics.fmean(times), statistics.stdev(times) / math.sqrt(trainings)
        off = expected.amount.value * HOUR_S / RANKS - mean
        worst = max(worst, abs(off) / error)
        checkpoints = f"every {every_s / 60:.0f} min" if every_s else "none"
        told = f"expected {expected.amount.value:.1f} h, simulated {mean * RANKS / HOUR_S:.1f} h"
        print(f"  {jobs} jobs, {failures_a_job:.2f} failures per job, checkpoints {checkpoints}: {told}")
    return worst


# -- one pack for all schemes


def make_pack(root: Path) -> Pack:
    folder = ResultFolder(root)
    folder.prepare()
    for devices in COUNTS:
        for job in range(JOBS):
            spec = spec_of("train", devices, job, FIRST_SEED - 1000 * devices - job)
            scratch = folder.open_scratch(spec)
            run_directory(scratch / RAW)
            folder.commit(scratch, derive(scratch / RAW))
    plan = WorkPlan(
        samples=EPOCHS * EPOCH_SAMPLES, trainings=20, devices=COUNTS[-1], epochs=EPOCHS, epoch_samples=EPOCH_SAMPLES,
        buffer_percent=25.0,
    )  # fmt: skip
    schemes = [find_scheme(name) for name in scheme_names()]
    return gather(folder, "train", plan, schemes=schemes, tariff=Tariff("SU", 0.0, 2.5, 4, False, "the rate given"))


def pack_figures(root: Path) -> list[Figure]:
    pack = make_pack(root / "results")
    written = write_pack(pack, root / "pack", pdf=True)
    pack = written.pack
    wrong = sum(
        bool(line.todo) != (line.demand.id in OPEN.get(found.name, set()))
        for found in pack.schemes
        for line in lines(pack, found)
    )
    for found in pack.schemes:
        told = [f"{line.demand.id} {'NOT' if line.todo else 'yes'}" for line in lines(pack, found)]
        print(f"  {found.name:<18} {', '.join(told)}")
    judged = audit(str(root / "pack" / "claims.toml"), ResultFolder(root / "results"))
    held = sum(entry.verdict == "holds" for entry in judged.judgements)
    blocking = sum(entry.severity == "error" for entry in judged.findings)
    energy = cells_with_energy(ResultFolder(root / "results"), [pack.request.basis.cell])[0]
    true_kwh = true_energy_kwh(COUNTS[-1], 20)
    amount = pack.request.energy[-1].amount
    print(
        f"  energy {amount.value:.4g} kWh [{amount.low:.4g}, {amount.high:.4g}], true {true_kwh:.4g}, {energy.verdict}"
    )
    return [
        at_most("demands judged otherwise than by hand", wrong, "demands", 0),
        at_least("claims of the pack that a reviewer's audit upholds", held, "claims", len(COUNTS) - 1),
        at_most("errors in the numbers of the pack", blocking, "findings", 0),
        at_most("pages of the part to hand in, set by TeX", pack.pages or 99, "pages", PAGES),
        at_most("energy of the plan against the truth", 100 * abs(amount.value / true_kwh - 1), "%", 5.0),
    ]  # fmt: skip


def true_energy_kwh(devices: int, trainings: int) -> float:
    """True energy of the plan: devices draw the same power for communication and computation."""
    step_s = STEP_S + TRUTH.collective.seconds(devices)
    steps = EPOCHS * EPOCH_SAMPLES / (BATCH * devices)
    return trainings * steps * step_s * devices * COMPUTE_W / JOULES_PER_KWH


def main() -> None:
    options = arguments(__doc__)
    studies = 40 if options.quick else 400
    mean, later = covered(studies)
    slack = slack_percent(95, studies, quick=True) if options.quick else 2.0
    off = failed_plans(plans=20, trainings=2000 if options.quick else 50_000)
    with tempfile.TemporaryDirectory() as scratch:
        figures = pack_figures(Path(scratch))
    finish([
        between("intervals that hold the true mean", mean, "%", 95 - slack, min(100.0, 95 + slack)),
        between("intervals that hold trainings made later", later, "%", 95 - slack, min(100.0, 95 + slack)),
        # The largest of 20 differences by chance is below this in 99.9 %.
        at_most("hours with failures against simulated trainings", off, "standard errors", 4.1),
        *figures,
    ])  # fmt: skip


if __name__ == "__main__":
    main()
