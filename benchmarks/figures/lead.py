"""[lead] Whether the time of slow first steps (compilation) stays out of a job's figure.

The first one to five steps together take as long as 100 to 1,000 steps, each at least a twentieth of that; the rest is
a job of every usable family of lib/families.py. The figure, the mean over the window of `find_steady`, must be within
1 % of the mean over the same job after its slow first steps in at least 95 %.

- 150 to 4,000 steps: of each family.
- Short runs, 10 to 100 steps: of all families together. The worst single one is printed: after a co-tenant's burst at
  the start of a short run, the fall to the level looks like the end of a warm-up, and the window begins there.

Seeds from 1,000,000 on are for this figure only; constants were chosen on seeds below 10,000.
"""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import NoReturn

import numpy as np

from families import USABLE
from figure import arguments, at_least, finish, slack_percent
from steelyard.stats.steady import find_steady
from traces import log_uniform

BAR_PERCENT = 95.0
WITHIN = 0.01
FIRST_SEED = 1_000_000
FULL, QUICK = 2000, 60
PIECE = 20
SHORT, LONG = (10, 100), (150, 4000)
LEAST_SHARE = 0.05


def right(family: str, steps: tuple[int, int], seed: int) -> bool:
    """Return whether the figure of one job is within 1 %."""
    rng = np.random.default_rng([seed, list(USABLE).index(family), steps[0]])
    step_s = USABLE[family](rng, 1, round(log_uniform(rng, *steps)))[0]
    slow = int(rng.integers(1, 6))
    shares = LEAST_SHARE + (1 - slow * LEAST_SHARE) * rng.dirichlet(np.ones(slow))
    step_s[:slow] += log_uniform(rng, 100, 1000) * shares
    found = find_steady(step_s)
    return abs(float(step_s[found.start : found.stop].mean() / step_s[slow:].mean()) - 1) <= WITHIN


def count(family: str, steps: tuple[int, int], first: int) -> int:
    return sum(right(family, steps, seed) for seed in range(first, first + PIECE))


def main() -> NoReturn:
    options = arguments(__doc__)
    cases = QUICK if options.quick else FULL
    firsts = range(FIRST_SEED, FIRST_SEED + cases, PIECE)
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        shares = {
            steps: {family: 100 * sum(pool.map(partial(count, family, steps), firsts)) / cases for family in USABLE}
            for steps in (LONG, SHORT)
        }
    for (low, high), by_family in shares.items():
        for family, share in by_family.items():
            print(f"{low} to {high} steps, {family}: {share:.1f} %")
    worst = min(USABLE, key=lambda family: shares[LONG][family])
    together = sum(shares[SHORT].values()) / len(USABLE)
    bar = BAR_PERCENT - slack_percent(BAR_PERCENT, cases, quick=options.quick)
    unit = f"% of {cases} within 1 % (worst: {worst})"
    finish(
        [
            at_least("lead: figure without the slow first steps", shares[LONG][worst], unit, bar),
            at_least("lead: the same in short runs", together, f"% of {cases * len(USABLE)} within 1 %", BAR_PERCENT),
        ]
    )


if __name__ == "__main__":
    main()
