"""[coverage] How often a 95 % interval contains the truth, under the default stopping rule.

Every job runs through the real worker loop, sample files and derivation on the simulated accelerator; no formula for
the sampling distribution is used. For each kind of noise, 2,000 studies of five jobs are made. One job: does the
interval from its steps contain the true mean of that job (the scripted mean times the random factor of the job)? Five
jobs: does Student's t over the job means contain the mean over all jobs?

Outside the tested range (correlation 0.95, Pareto tails) an interval may miss the truth, but must be marked as
approximate; inside, it should not be marked without need. (With five jobs, a correlation of 0.95 inside a job does not
matter, as each job gives one mean. Tails do affect the means.)
"""

from __future__ import annotations

import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from figure import Figure, arguments, at_least, at_most, between, finish, slack_percent
from simjob import BATCH, run_job
from steelyard.analysis.summary import job_throughput
from steelyard.contracts.sim import Noise, Shape, SimTruth
from steelyard.worker.devices.sim_noise import job_factor

if TYPE_CHECKING:
    from steelyard.contracts.record import Interval

STEP_S = 0.010
JOBS = 5
# Seeds of the generator; the statistics were tuned on others.
FIRST_SEED = 5_000_000


@dataclass(frozen=True)
class Kind:
    """A kind of noise, and the mean of its shape."""

    noise: Noise
    shape: Shape = field(default_factory=Shape)
    shape_mean: float = 1.0


IN_RANGE = {
    "independent, cv 1 %": Kind(Noise(kind="normal", cv=0.01)),
    "independent, cv 16 %, 1 % between jobs": Kind(Noise(kind="normal", cv=0.16, between_jobs_cv=0.01)),
    "AR(1) rho 0.5, cv 10 %, 5 % between jobs": Kind(Noise(kind="ar1", rho=0.5, cv=0.10, between_jobs_cv=0.05)),
    "AR(1) rho 0.8, cv 5 %": Kind(Noise(kind="ar1", rho=0.8, cv=0.05)),
    "AR(1) rho 0.8, cv 10 %, 1 % between jobs": Kind(Noise(kind="ar1", rho=0.8, cv=0.10, between_jobs_cv=0.01)),
    "lognormal sigma 0.3, 2 % between jobs": Kind(Noise(kind="lognormal", sigma=0.3, between_jobs_cv=0.02)),
    "lognormal sigma 1": Kind(Noise(kind="lognormal", sigma=1.0)),
    "spikes, 3x every 50th, cv 5 %": Kind(
        Noise(kind="normal", cv=0.05), Shape(spike_every=50, spike_factor=3.0), shape_mean=1.04
    ),
}
BEYOND = {
    "AR(1) rho 0.95, cv 5 %": Kind(Noise(kind="ar1", rho=0.95, cv=0.05)),
    "Pareto alpha 1.5": Kind(Noise(kind="pareto", alpha=1.5)),
    "Pareto alpha 2": Kind(Noise(kind="pareto", alpha=2.0)),
}


@dataclass(frozen=True)
class Tally:
    """Counts over some studies."""

    studies: int = 0
    jobs: int = 0
    one_job_held: int = 0
    five_jobs_held: int = 0
    approximate: int = 0
    studies_approximate: int = 0
    steps: int = 0

    def __add__(self, other: Tally) -> Tally:
        return Tally(*(getattr(self, name) + getattr(other, name) for name in self.__dataclass_fields__))


def study(kind: Kind, seed: int) -> Tally:
    """Run five jobs; the first is also the case of one job."""
    truth = SimTruth(step_time_s=STEP_S, noise=kind.noise, shape=kind.shape)
    population = BATCH / (STEP_S * kind.shape_mean)
    records = [run_job(truth, seed * JOBS + number) for number in range(JOBS)]
    own = population / job_factor(kind.noise, seed * JOBS)
    return Tally(
        studies=1,
        jobs=JOBS,
        one_job_held=holds(job_throughput(records[:1]).interval, own),
        five_jobs_held=holds(job_throughput(records).interval, population),
        approximate=sum(is_approximate(record.quantities["throughput"].interval) for record in records),
        studies_approximate=is_approximate(job_throughput(records).interval),
        steps=sum(record.steps_seen for record in records),
    )


def holds(interval: Interval | None, truth: float) -> bool:
    return interval is not None and interval.low <= truth <= interval.top


def is_approximate(interval: Interval | None) -> bool:
    return interval is None or bool(interval.approximate)


def some_studies(kind: Kind, seeds: range) -> Tally:
    return sum((study(kind, seed) for seed in seeds), Tally())


def count(pool: ProcessPoolExecutor, kind: Kind, studies: int) -> Tally:
    piece = 5
    pieces = [range(FIRST_SEED + n, FIRST_SEED + min(n + piece, studies)) for n in range(0, studies, piece)]
    return sum(pool.map(some_studies, [kind] * len(pieces), pieces), Tally())


def main() -> None:
    options = arguments(__doc__)
    studies = 20 if options.quick else 2000
    slack = slack_percent(95, studies, quick=options.quick)
    figures: list[Figure] = []
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for name, kind in IN_RANGE.items():
            begin_s = time.monotonic()
            tally = count(pool, kind, studies)
            print(
                f"{name}: {tally.steps / tally.jobs:,.0f} steps a job, called approximate in "
                f"{100 * tally.approximate / tally.jobs:.1f} % of jobs, {time.monotonic() - begin_s:.0f} s",
                file=sys.stderr,
            )
            one, five = 100 * tally.one_job_held / studies, 100 * tally.five_jobs_held / studies
            figures.append(between(f"coverage: one job, {name}", one, "%", 93 - slack, min(100, 97 + slack)))
            figures.append(between(f"coverage: five jobs, {name}", five, "%", 93 - slack, min(100, 97 + slack)))
            doubted = 100 * tally.approximate / tally.jobs
            most = 5 + slack_percent(5, tally.jobs, quick=options.quick)
            figures.append(at_most(f"coverage: called approximate without need, {name}", doubted, "%", most))
        for name, kind in BEYOND.items():
            tally = count(pool, kind, 6 if options.quick else 200)
            said = 100 * tally.approximate / tally.jobs
            held = 100 * tally.one_job_held / tally.studies
            print(f"{name}: one job's interval holds in {held:.1f} %", file=sys.stderr)
            least = 95 - slack_percent(95, tally.jobs, quick=options.quick)
            figures.append(at_least(f"coverage: says approximate, one job, {name}", said, "%", least))
            if name.startswith("Pareto"):
                said = 100 * tally.studies_approximate / tally.studies
                least = 95 - slack_percent(95, tally.studies, quick=options.quick)
                figures.append(at_least(f"coverage: says approximate, five jobs, {name}", said, "%", least))
    finish(figures)


if __name__ == "__main__":
    main()
