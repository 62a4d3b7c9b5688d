"""[order] Whether two machines that were measured at different times, or on several nodes, are ranked wrongly.

One node, whose job means have a daily swing of 2 % up and down, and AR(1) noise of 1 % with a correlation of 0.8 from
job to job:

- Identical machines measured one after the other are ranked in at most 5 % of the comparisons.
- Machines with a factor of two between them, measured in the same way, are ranked in all of them, and rightly.
- Interleaved jobs: the CI contains the true ratio in at least 93 %.

Several nodes that differ by 2 %, two to four on each side, one to five jobs on each of them, with 1 % between jobs: the
CI contains the true ratio in at least 93 %, with the same nodes on both sides and with different ones.

Job times are drawn directly; `compare_jobs` gets them with the node and the times of start and end.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NoReturn

import numpy as np
from scipy.signal import lfilter

from figure import Figure, arguments, at_least, at_most, finish, slack_percent
from steelyard.stats.ratio import JobTime, compare_jobs
from traces import log_uniform

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from steelyard.stats.ratio import TimeRatio

FIRST_SEED = 1_000_000
FULL, QUICK = 4000, 400
DAY_S = 86_400.0
SWING = 0.02
NOISE, CORRELATION = 0.01, 0.8
NODE_SD = 0.02
JOB_SD = 0.01
SIDES_JOBS = (3, 5, 10)


def one_node(rng: np.random.Generator, jobs: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the state of a node during consecutive jobs, as factors of their times, and the times of their starts."""
    length_s = log_uniform(rng, 60, 3600)
    start_s = length_s * np.arange(jobs)
    swing = SWING * np.sin(2 * math.pi * (start_s / DAY_S + rng.random()))
    shocks = rng.standard_normal(jobs)
    shocks[1:] *= math.sqrt(1 - CORRELATION**2)
    noise = NOISE * np.asarray(lfilter([1.0], [1.0, -CORRELATION], shocks))
    return np.asarray(1 + swing + noise, dtype=np.float64), np.asarray(start_s, dtype=np.float64)


def on_one_node(rng: np.random.Generator, ratio: float, *, interleaved: bool) -> TimeRatio:
    """Compare two machines on one node; `ratio` is the true one."""
    jobs = int(rng.choice(SIDES_JOBS))
    factors, start_s = one_node(rng, 2 * jobs)
    of_b = np.arange(2 * jobs) % 2 == 1 if interleaved else np.arange(2 * jobs) >= jobs
    times = factors * np.where(of_b, ratio, 1.0)
    length_s = float(start_s[1])
    all_jobs = [JobTime(float(t), "node1", float(s), float(s) + length_s) for t, s in zip(times, start_s, strict=True)]
    a, b = ([job for job, second in zip(all_jobs, of_b, strict=True) if second == side] for side in (False, True))
    return compare_jobs(a, b)


def on_nodes(rng: np.random.Generator, ratio: float, *, paired: bool) -> TimeRatio:
    """Compare two machines on several nodes: the same ones at different times, or different ones."""
    counts = [int(rng.integers(2, 5))] * 2 if paired else [int(n) for n in rng.integers(2, 5, 2)]
    levels = 1 + NODE_SD * rng.standard_normal(sum(counts))
    sides = []
    for level, first, count in ((1.0, 0, counts[0]), (ratio, 0 if paired else counts[0], counts[1])):
        jobs = rng.integers(1, 6, count)
        jobs[0] = max(jobs[0], 2)  # three jobs in all are needed
        sides.append(
            [
                JobTime(level * levels[first + node] * (1 + JOB_SD * rng.standard_normal()), f"node{first + node}")
                for node in range(count)
                for _ in range(jobs[node])
            ]
        )
    return compare_jobs(sides[0], sides[1])


def contains(found: TimeRatio, ratio: float) -> bool:
    assert found.low is not None
    assert found.high is not None
    return found.low <= ratio <= found.high


def ranked(found: TimeRatio) -> bool:
    return found.verdict in ("faster", "slower")


def share(cases: int, kind: int, case: Callable[[np.random.Generator], bool]) -> float:
    """Return the percentage of cases in which something holds."""
    return 100 * sum(case(np.random.default_rng([FIRST_SEED + seed, kind])) for seed in range(cases)) / cases


def twofold(rng: np.random.Generator) -> bool:
    ratio = float(rng.choice([0.5, 2.0]))
    return on_one_node(rng, ratio, interleaved=False).verdict == ("faster" if ratio < 1 else "slower")


def covered(make: Callable[[np.random.Generator, float], TimeRatio]) -> Callable[[np.random.Generator], bool]:
    def case(rng: np.random.Generator) -> bool:
        ratio = log_uniform(rng, 0.8, 1.25)
        return contains(make(rng, ratio), ratio)

    return case


def main() -> NoReturn:
    options = arguments(__doc__)
    cases = QUICK if options.quick else FULL
    unit = f"% of {cases}"
    least = 93 - slack_percent(93, cases, quick=options.quick)
    most = 5 + slack_percent(5, cases, quick=options.quick)
    identical = share(cases, 0, lambda rng: ranked(on_one_node(rng, 1.0, interleaved=False)))
    figures: list[Figure] = [
        at_most("order: identical machines, one after the other, ranked", identical, unit, most),
        at_least("order: a factor of two, one after the other, ranked rightly", share(cases, 1, twofold), unit, 100),
    ]
    for name, kind, make in (
        ("order: interleaved", 2, lambda rng, ratio: on_one_node(rng, ratio, interleaved=True)),
        ("nodes: same nodes", 3, lambda rng, ratio: on_nodes(rng, ratio, paired=True)),
        ("nodes: different nodes", 4, lambda rng, ratio: on_nodes(rng, ratio, paired=False)),
    ):
        inside = share(cases, kind, covered(make))
        figures.append(at_least(f"{name}, CI contains the true ratio", inside, unit, least))
    finish(figures)


if __name__ == "__main__":
    main()
