"""[usable] Whether comparisons on noisy machines get a ratio, whether it is true, and whether changing jobs get none.

Each comparison draws five jobs for each of two machines from one family of lib/families.py, 150 to 4,000 steps long,
with 1 % between jobs and a true ratio of 0.8 to 1.25. The first three of each are the comparison of 3 against 3. The
time and the trend of a job come from `find_steady`, the comparison from `compare_jobs`: neither knows the family.

- Usable families: a ratio in at least 95 % (two levels 3 % apart: 90 %). Its CI contains the true ratio in at least
  93 %, and is at most 1.3 times as wide (median) as the plain t interval of the means over all steps.
- Steps, drift of 5 % and a long warm-up, on one machine or on both: no ratio in at least 98 %.
- Drift of 2 %: what is stated holds for the levels at the start and at the end in at least 93 %.

Seeds from 1,000,000 on are for this figure only; constants were chosen on seeds below 10,000 (`--tuning`).
"""

from __future__ import annotations

import math
import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from families import CHANGING, USABLE, changing_noise, job_effects
from figure import Figure, arguments, at_least, at_most, finish, slack_percent
from steelyard.stats.ratio import JobTime, compare_jobs, compare_means
from steelyard.stats.steady import find_steady
from traces import log_uniform

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from steelyard.stats.ratio import TimeRatio

JOBS = 5
SIZES = (3, JOBS)
FIRST_SEED = 1_000_000
FULL, QUICK = 2000, 40
PIECE = 10
TWO_LEVELS, SLOW_DRIFT = "two levels", "drift of 2 %"


@dataclass(frozen=True)
class Side:
    """The jobs of one machine, and its level at the start and at the end of a job."""

    step_s: NDArray[np.float64]
    start: float = 1.0
    end: float = 1.0


@dataclass(frozen=True)
class Outcome:
    """One comparison."""

    ratio_given: bool
    true: bool
    """What is stated holds."""
    half_width: float
    plain_half_width: float


def draw(family: str, rng: np.random.Generator) -> tuple[Side, Side]:
    """Return the jobs of two machines, the second at a random ratio."""
    steps = round(log_uniform(rng, 150, 4000))
    ratio = log_uniform(rng, 0.8, 1.25)
    if family in USABLE:
        both = USABLE[family](rng, 2 * JOBS, steps)
        return Side(both[:JOBS]), Side(ratio * both[JOBS:], ratio, ratio)
    changes = [(True, True), (True, False), (False, True)][int(rng.integers(3))]
    (a, end_a), (b, end_b) = (
        CHANGING[family](rng, JOBS, steps) if change else (changing_noise(rng, JOBS, steps), 1.0) for change in changes
    )
    return Side(a, 1.0, end_a), Side(ratio * b, ratio, ratio * end_b)


def measured(step_s: NDArray[np.float64], effect: float) -> JobTime:
    """Return what the product derives from the step times of a job."""
    found = find_steady(step_s)
    return JobTime(effect * float(step_s[found.start : found.stop].mean()), trend=found.trend)


def holds(found: TimeRatio, truth: float) -> bool:
    """Return whether what is stated is true: the CI, or only its nearer end, or nothing."""
    assert found.low is not None
    assert found.high is not None
    if found.answer == "ratio":
        return found.low <= truth <= found.high
    if found.answer == "bound":
        return truth <= found.high if found.verdict == "faster" else truth >= found.low
    return True


def outcomes(family: str, seed: int) -> list[Outcome]:
    """Return the comparisons of all sizes for one seed."""
    rng = np.random.default_rng([seed, [*USABLE, *CHANGING].index(family)])
    sides = draw(family, rng)
    jobs, means = [], []
    for side in sides:
        effects = job_effects(rng, JOBS)
        jobs.append([measured(*job) for job in zip(side.step_s, effects, strict=True)])
        means.append((effects * side.step_s.mean(axis=1)).tolist())
    truths = sides[1].start / sides[0].start, sides[1].end / sides[0].end
    rows = []
    for size in SIZES:
        found = compare_jobs(jobs[0][:size], jobs[1][:size])
        plain = compare_means(means[0][:size], means[1][:size])
        true = all(holds(found, truth) for truth in truths)
        rows.append(Outcome(found.answer == "ratio", true, half_width(found), half_width(plain)))
    return rows


def half_width(found: TimeRatio) -> float:
    assert found.high is not None
    return math.log(found.high / found.value)


def piece(family: str, first: int, count: int) -> list[list[Outcome]]:
    return [outcomes(family, seed) for seed in range(first, first + count)]


def score(rows: list[Outcome]) -> tuple[float, float, float]:
    """Return the percentages with a ratio and of true statements, and the width compared with the plain interval."""
    given = [row for row in rows if row.ratio_given]
    width = math.nan
    if given:
        width = float(np.median([row.half_width for row in given]) / np.median([row.plain_half_width for row in given]))
    counted = given if len(given) > len(rows) / 2 else rows
    return 100 * len(given) / len(rows), 100 * sum(row.true for row in counted) / len(counted), width


def judge(scores: dict[str, tuple[float, float, float]], size: int, cases: int, *, quick: bool) -> list[Figure]:
    """Return the figures of one size: the worst family counts."""
    sizes = f"{size} against {size}"

    def least(name: str, families: list[str], column: int, bar: float) -> Figure:
        worst = min(families, key=lambda family: scores[family][column])
        bar -= slack_percent(bar, cases, quick=quick)
        return at_least(f"usable: {name}, {sizes}", scores[worst][column], f"% of {cases} (worst: {worst})", bar)

    widest = max(USABLE, key=lambda family: scores[family][2])
    settled = [family for family in USABLE if family != TWO_LEVELS]
    changing = [family for family in CHANGING if family != SLOW_DRIFT]
    most = max(changing, key=lambda family: scores[family][0])
    refused = 100 - scores[most][0]
    bar = 98 - slack_percent(98, cases, quick=quick)
    return [
        least("ratio given", settled, 0, 95),
        least("ratio given, two levels 3 % apart", [TWO_LEVELS], 0, 90),
        least("CI contains the true ratio", list(USABLE), 1, 93),
        at_most(f"usable: width, {sizes}", scores[widest][2], f"of plain (worst: {widest})", 1.6 if quick else 1.3),
        at_least(f"usable: no ratio of changing jobs, {sizes}", refused, f"% of {cases} (worst: {most})", bar),
        least("drift of 2 % is in the CI", [SLOW_DRIFT], 1, 93),
    ]


def main() -> NoReturn:
    options = arguments(
        __doc__, tuning={"action": "store_true", "help": "use the seeds that the constants were chosen on"}
    )
    cases = QUICK if options.quick else FULL
    begin = 0 if options.tuning else FIRST_SEED
    scores: dict[int, dict[str, tuple[float, float, float]]] = {size: {} for size in SIZES}
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for family in [*USABLE, *CHANGING]:
            firsts = range(begin, begin + cases, PIECE)
            some = partial(piece, family, count=PIECE)
            rows = [row for part in pool.map(some, firsts) for row in part]
            for number, size in enumerate(SIZES):
                scores[size][family] = score([row[number] for row in rows])
                given, true, width = scores[size][family]
                print(f"{family:<20} {size}: ratio {given:5.1f} %, true {true:5.1f} %, width {width:.2f}", flush=True)
    finish([figure for size in SIZES for figure in judge(scores[size], size, cases, quick=options.quick)])


if __name__ == "__main__":
    main()
