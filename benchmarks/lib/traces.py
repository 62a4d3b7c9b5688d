"""Random step-time traces of eight kinds with known truth.

Every trace is `level x shape x (1 + noise)`, with independent random choices:

| what | range |
| --- | --- |
| values | 400 to 4,096, log-uniform |
| level | 1 ms to 10 s, log-uniform |
| noise, coefficient of variation | 0.2 % to 5 %, log-uniform |
| noise, kind | white; AR(1), rho 0.1 to 0.8; skewed (lognormal, sigma 0.3 to 1); Student t, 3 to 8 degrees |
| flat | nothing else |
| exponential warm-up | amplitude 5 % to 300 %, time constant 3 steps to a sixth of the trace |
| compile step | 1 to 5 first steps, each 5x to 1000x |
| periodic spikes | period 5 to 200, size 1.2x to 10x, any phase |
| slow drift | linear rise of 0.5 % to 60 %, from the start or from a point in the first half |
| throttling | a rise of 0.5 % to 60 %, 25 % to 80 % of the way in; a third of them in two stages |
| warm-up longer than the trace | exponential fall of 1 % to 200 % (over the trace), time constant 0.7 to 3 traces |
| random walk | standard deviation at the end 2 % to 40 %; half with white noise, 6 to 30 times smaller |

A trace is drawn again until three conditions hold:

- A change is at least `LEAST_EFFECT_SE` standard errors: its size over the standard error of that size when the shape
  is known and fitted by least squares, `size * sqrt(sum((r - mean(r))**2)) / long_run_sd` for a shape `r` between 0 and
  1. For a jump this is the difference of the two means over its standard error; for a drift the fitted total rise over
  its own. The noise's correlation is in `long_run_sd = cv * sqrt((1 + rho) / (1 - rho))`.
- An exponential warm-up is over at 60 % of the trace: what is left of it there is at most 0.3 % of the level. Otherwise
  "steady" would not be the truth.
- Every step time is positive.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from steelyard.stats.steady import Answer

    Series = NDArray[np.float64]

LEAST_EFFECT_SE = 4.0
WARM_AT_SHARE = 0.6
WARM_REST = 0.003


@dataclass(frozen=True)
class Trace:
    """One generated trace and its truth."""

    kind: str
    answer: Answer
    step_s: Series
    steady_step_s: float | None
    """Mean step time of the steady part without noise, including spikes; None without a steady part."""
    effect_se: float | None
    """Size of the change in standard errors; None if the kind has no change."""


@dataclass(frozen=True)
class Noise:
    """Relative noise of one trace."""

    values: Series
    long_run_sd: float


@dataclass(frozen=True)
class Shape:
    """A trace without noise, relative to its level."""

    values: Series
    steady_mean: float | None = None
    change: tuple[float, Series] | None = None
    """Size of the change, and its course from 0 to 1."""


def log_uniform(rng: np.random.Generator, low: float, high: float) -> float:
    """A draw that is uniform on the logarithm."""
    return float(math.exp(rng.uniform(math.log(low), math.log(high))))


def ar1(rng: np.random.Generator, n: int, rho: float) -> Series:
    """A stationary AR(1) series of unit variance."""
    values = rng.standard_normal(n)
    values[1:] *= math.sqrt(1 - rho * rho)
    for i in range(1, n):
        values[i] += rho * values[i - 1]
    return values


def draw_noise(rng: np.random.Generator, n: int) -> Noise:
    """White, correlated, skewed or heavy-tailed noise of a drawn size."""
    cv = log_uniform(rng, 0.002, 0.05)
    kind = rng.integers(4)
    if kind == 1:
        rho = rng.uniform(0.1, 0.8)
        return Noise(cv * ar1(rng, n, rho), cv * math.sqrt((1 + rho) / (1 - rho)))
    if kind == 2:
        sigma = rng.uniform(0.3, 1.0)
        raw = rng.lognormal(0.0, sigma, n)
        mean = math.exp(sigma * sigma / 2)
        return Noise(cv * (raw - mean) / (mean * math.sqrt(math.expm1(sigma * sigma))), cv)
    if kind == 3:
        degrees = rng.uniform(3.0, 8.0)
        return Noise(cv * rng.standard_t(degrees, n) / math.sqrt(degrees / (degrees - 2)), cv)
    return Noise(cv * rng.standard_normal(n), cv)


def flat(_rng: np.random.Generator, n: int) -> Shape:
    """The level, from the first step to the last."""
    return Shape(np.ones(n), 1.0)


def warm_up(rng: np.random.Generator, n: int) -> Shape:
    """An exponential fall to the level, over at 60 % of the trace."""
    while True:
        amplitude = log_uniform(rng, 0.05, 3.0)
        steps = log_uniform(rng, 3.0, n / 6)
        if amplitude * math.exp(-WARM_AT_SHARE * n / steps) <= WARM_REST:
            break
    course = np.exp(-np.arange(n) / steps)
    return Shape(1 + amplitude * course, 1.0, (amplitude, course))


def compile_step(rng: np.random.Generator, n: int) -> Shape:
    """One or a few very slow first steps."""
    values = np.ones(n)
    slow = rng.integers(1, 6)
    values[:slow] = [log_uniform(rng, 5.0, 1000.0) for _ in range(slow)]
    return Shape(values, 1.0)


def spikes(rng: np.random.Generator, n: int) -> Shape:
    """A longer step at every period: a checkpoint, an evaluation, an epoch's end."""
    period = round(log_uniform(rng, 5, 200))
    values = np.ones(n)
    values[rng.integers(period) :: period] = log_uniform(rng, 1.2, 10.0)
    return Shape(values, float(values.mean()))


def drift(rng: np.random.Generator, n: int) -> Shape:
    """A linear rise to the end, from the start or from a point in the first half."""
    rise = log_uniform(rng, 0.005, 0.6)
    onset = 0.0 if rng.random() < 0.5 else rng.uniform(0.0, 0.5) * n
    course = np.clip((np.arange(n) - onset) / (n - onset), 0, None)
    return Shape(1 + rise * course, None, (rise, course))


def throttling(rng: np.random.Generator, n: int) -> Shape:
    """The step time jumps up once, or in two stages, and stays there."""
    rise = log_uniform(rng, 0.005, 0.6)
    course = np.zeros(n)
    if rng.random() < 1 / 3:
        first, second = sorted(rng.uniform(0.25, 0.8, 2))
        share = rng.uniform(0.3, 0.7)
        course[round(first * n) :] += share
        course[round(second * n) :] += 1 - share
    else:
        course[round(rng.uniform(0.25, 0.8) * n) :] = 1
    return Shape(1 + rise * course, None, (rise, course))


def long_warm_up(rng: np.random.Generator, n: int) -> Shape:
    """An exponential fall that is far from its end when the trace ends."""
    fall = log_uniform(rng, 0.01, 2.0)
    decay = np.exp(-np.arange(n) / (n * log_uniform(rng, 0.7, 3.0)))
    course = (decay - decay[-1]) / (decay[0] - decay[-1])
    return Shape(1 + fall * course, None, (fall, course))


def random_walk(rng: np.random.Generator, n: int) -> tuple[Shape, Noise]:
    """A random walk that is larger than the noise on it."""
    end_sd = log_uniform(rng, 0.02, 0.4)
    walk = np.exp(np.cumsum(rng.standard_normal(n)) * end_sd / math.sqrt(n))
    noise_sd = 0.0 if rng.random() < 0.5 else end_sd / log_uniform(rng, 6.0, 30.0)
    return Shape(walk), Noise(noise_sd * rng.standard_normal(n), noise_sd)


SHAPES: dict[str, tuple[Answer, Callable[[np.random.Generator, int], Shape]]] = {
    "flat": ("steady", flat),
    "exponential warm-up": ("steady", warm_up),
    "compile step": ("steady", compile_step),
    "periodic spikes": ("steady", spikes),
    "slow drift": ("slowing down", drift),
    "throttling": ("slowing down", throttling),
    "warm-up longer than the trace": ("warming up throughout", long_warm_up),
}
WALK = "random walk"
KINDS = (*SHAPES, WALK)


def effect_se(shape: Shape, noise: Noise) -> float | None:
    """The change in standard errors of its least-squares size, as the module describes."""
    if shape.change is None:
        return None
    size, course = shape.change
    return size * math.sqrt(float(np.sum((course - course.mean()) ** 2))) / noise.long_run_sd


def draw(kind: str, seed: int) -> Trace:
    """Return the trace of a kind for a seed."""
    rng = np.random.default_rng([KINDS.index(kind), seed])
    answer: Answer = "no steady state" if kind == WALK else SHAPES[kind][0]
    while True:
        n = round(log_uniform(rng, 400, 4096))
        if kind == WALK:
            shape, noise = random_walk(rng, n)
        else:
            shape, noise = SHAPES[kind][1](rng, n), draw_noise(rng, n)
        level_s = log_uniform(rng, 1e-3, 10.0)
        effect = effect_se(shape, noise)
        step_s = level_s * shape.values * (1 + noise.values)
        if (effect is None or effect >= LEAST_EFFECT_SE) and step_s.min() > 0:
            break
    steady = None if shape.steady_mean is None else level_s * shape.steady_mean
    return Trace(kind, answer, step_s, steady, effect)
