"""Failures in time: their rate from what was observed, and what they cost jobs that repeat lost work.

Failures are a Poisson process: a job that runs for x seconds has none with probability exp(-rate x).
"""

from __future__ import annotations

import math

LEVEL = 0.95


def most_rate(failures: int, hours: float) -> float:
    """Return the upper 95 % confidence limit of the failures per hour after `hours` with this many failures.

    The rate at which so few or fewer have a probability of 5 %. Without a failure it is -ln(0.05) / hours, about
    3 / hours: the rule of three.
    """
    if hours <= 0:
        return math.inf
    low, high = float(failures), failures + 10.0 * math.sqrt(failures + 1.0)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _at_most(failures, middle) > 1 - LEVEL else (low, middle)
    return high / hours


def _at_most(count: int, mean: float) -> float:
    """Return the probability that a Poisson variable is at most `count`. Logarithms, for thousands of failures."""
    if mean <= 0:
        return 1.0
    return math.fsum(math.exp(k * math.log(mean) - mean - math.lgamma(k + 1)) for k in range(count + 1))


def time_with_failures(rate: float, setup_s: float, checkpoints: int, between_s: float, last_s: float) -> float:
    """Return the expected seconds of a job until it is complete, with all its attempts.

    The job sets up, works `between_s` up to each of its checkpoints, then `last_s` to its end. `rate`: failures of the
    running job per second. After a failure it sets up again and repeats the work since the last checkpoint.

    An attempt at a part of x seconds lasts (1 - exp(-rate x)) / rate on average and fails with probability
    1 - exp(-rate x); each further attempt takes set-up and part. This sums to exp(rate setup) (exp(rate x) - 1) / rate
    for a part that follows a checkpoint, and to (exp(rate (setup + x)) - 1) / rate for the first part of the job.
    """
    if rate == 0:
        return setup_s + checkpoints * between_s + last_s
    parts = checkpoints * math.expm1(rate * between_s) + math.expm1(rate * last_s)
    return (math.exp(rate * setup_s) * parts + math.expm1(rate * setup_s)) / rate
