"""[detection] How often a 2 % slowdown is found with 1 % noise between jobs, and the rate of false alarms.

Eight jobs per side, each through the real worker and derivation. The difference is four times the standard error of the
difference of two means of eight (1 % times the square root of 2/8 is 0.5 %); the Student t quantile is 2.14. In theory
the power is 96 %, and there are 5 % false alarms, half of them in each direction.
"""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor

from figure import arguments, at_least, at_most, finish, slack_percent
from simjob import run_job
from steelyard.contracts.sim import Noise, SimTruth
from steelyard.stats.ratio import compare_means

JOBS_A_SIDE = 8
STEP_S = 0.010
SLOWDOWN = 0.02
NOISE = Noise(kind="normal", cv=0.02, between_jobs_cv=0.01)
FIRST_SEED = 7_000_000


def side(step_s: float, first_seed: int) -> list[float]:
    """Return the mean step times of eight jobs."""
    truth = SimTruth(step_time_s=step_s, noise=NOISE)
    records = [run_job(truth, seed) for seed in range(first_seed, first_seed + JOBS_A_SIDE)]
    return [value for record in records if (value := record.quantities["step_time_mean"].value) is not None]


def comparison(number: int) -> tuple[bool, bool]:
    """Return whether a slowdown was found, and whether there was a false alarm."""
    seed = FIRST_SEED + 3 * JOBS_A_SIDE * number
    base, equal = side(STEP_S, seed), side(STEP_S, seed + JOBS_A_SIDE)
    slow = side(STEP_S * (1 + SLOWDOWN), seed + 2 * JOBS_A_SIDE)
    return compare_means(base, slow).verdict == "slower", compare_means(base, equal).verdict != "no difference shown"


def main() -> None:
    quick: bool = arguments(__doc__).quick
    count = 60 if quick else 1000
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        results = list(pool.map(comparison, range(count), chunksize=10))
    found, alarms = (100 * sum(column) / count for column in zip(*results, strict=True))
    finish(
        [
            at_least("detection: 2 % slowdown found", found, "%", 90 - slack_percent(90, count, quick=quick)),
            at_most("detection: false alarms", alarms, "%", 6.5 + slack_percent(6.5, count, quick=quick)),
        ]
    )


if __name__ == "__main__":
    main()
