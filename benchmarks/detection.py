"""[detection] How often a 2 % slowdown is found among 1 % job-to-job noise, and how often one is seen where none is.

Eight jobs a side. The difference is twice the noise of a job and four times that of the difference of two means of
eight (1 % times the square root of 2/8 is 0.5 %), against a Student t quantile of 2.14: power 96 % in theory, and by
construction 5 % false alarms, half of them in each direction.
"""

from __future__ import annotations

import numpy as np

from figure import arguments, at_least, at_most, finish, slack_percent
from steelyard.stats.ratio import Ratio, compare_means

JOBS_A_SIDE = 8
NOISE = 0.01
SLOWDOWN = 0.02
SEED = 20_260


def comparisons(count: int, slowdown: float, seed: int) -> list[Ratio]:
    rng = np.random.default_rng(seed)
    base = 0.25 * (1 + NOISE * rng.standard_normal((count, JOBS_A_SIDE)))
    changed = 0.25 * (1 + slowdown) * (1 + NOISE * rng.standard_normal((count, JOBS_A_SIDE)))
    return [compare_means(a.tolist(), b.tolist()) for a, b in zip(base, changed, strict=True)]


def main() -> None:
    quick: bool = arguments(__doc__).quick
    count = 1000 if quick else 20_000
    found = [ratio.verdict == "slower" for ratio in comparisons(count, SLOWDOWN, SEED)]
    alarms = [ratio.verdict != "no difference shown" for ratio in comparisons(count, 0.0, SEED + 1)]
    finish(
        [
            at_least("2 % slowdown found", 100 * sum(found) / count, "%", 90 - slack_percent(90, count, quick=quick)),
            at_most("false alarms", 100 * sum(alarms) / count, "%", 6.5 + slack_percent(6.5, count, quick=quick)),
        ]
    )


if __name__ == "__main__":
    main()
