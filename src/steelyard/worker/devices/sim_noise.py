"""Random and scripted factors of simulated step times."""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from steelyard.contracts.sim import Noise, Shape, SimTruth

# Random streams of one seed: the job's factor, then one per rank (or one for all if shared).
JOB_STREAM = 0
STEP_STREAM = 1
WALK_STREAM = 2
# A normal factor with cv 0.3 falls below this once in 740 draws; a step always takes some time.
LEAST_FACTOR = 0.1


def job_factor(noise: Noise, seed: int) -> float:
    """Return the factor of this job among all jobs; the true time in the job is the scripted time multiplied by it."""
    if noise.between_jobs_cv == 0:
        return 1.0
    draw = np.random.default_rng([seed, JOB_STREAM]).standard_normal()
    # Truncated so that no duration is negative; at the largest cv allowed this cuts at 4.5 standard deviations.
    return float(max(0.1, 1.0 + noise.between_jobs_cv * draw))


def step_factors(truth: SimTruth, seed: int, rank: int, chunk: int) -> Iterator[float]:
    """Yield the factor of each step without end: job factor x shape x noise.

    `chunk` steps are drawn at once; this bounds the memory of a process with many ranks.
    """
    base = job_factor(truth.noise, seed)
    shape = truth.shape
    changes = shape.warmup_amplitude or shape.drift_per_step or shape.spike_every or shape.throttle_at_step is not None
    if truth.noise.kind == "none" and truth.noise.walk_cv == 0 and not changes:
        yield from repeat(base)
    stream = 0 if truth.noise.shared else rank
    draw = _Noise(truth.noise, seed, stream)
    first = 0
    while True:
        factors = base * shape_factors(shape, first, chunk) * draw.take(chunk)
        yield from factors.tolist()
        first += chunk


def shape_factors(shape: Shape, first: int, count: int) -> NDArray[np.float64]:
    """Return the scripted factors of steps `first` to `first + count`."""
    step = np.arange(first, first + count, dtype=np.float64)
    factors = 1.0 + shape.warmup_amplitude * np.exp(-step / shape.warmup_steps) + shape.drift_per_step * step
    if shape.throttle_at_step is not None:
        factors = np.where(step >= shape.throttle_at_step, factors * shape.throttle_factor, factors)
    if shape.spike_every:
        # The last step of each period, so that any whole number of periods has the same mean.
        factors = np.where((step + 1) % shape.spike_every == 0, factors * shape.spike_factor, factors)
    return factors


class _Noise:
    """Draws factors with mean 1 and keeps the state of correlated noise between chunks."""

    def __init__(self, noise: Noise, seed: int, stream: int) -> None:
        self._noise = noise
        # One generator per kind of draw, so that draws do not depend on the chunk size.
        self._rng = np.random.default_rng([seed, STEP_STREAM, stream])
        self._walk_rng = np.random.default_rng([seed, WALK_STREAM, stream])
        self._ar = float(self._rng.standard_normal())  # started in its stationary distribution
        self._walk = 0.0

    def take(self, count: int) -> NDArray[np.float64]:
        noise, rng = self._noise, self._rng
        factors = np.ones(count)
        if noise.kind == "normal":
            factors = np.maximum(factors + noise.cv * rng.standard_normal(count), LEAST_FACTOR)
        elif noise.kind == "ar1":
            factors = np.maximum(factors + noise.cv * self._correlated(count), LEAST_FACTOR)
        elif noise.kind == "lognormal":
            factors = np.exp(noise.sigma * rng.standard_normal(count) - noise.sigma**2 / 2)
        elif noise.kind == "pareto":
            # Minimum (alpha - 1) / alpha gives a Pareto variable of mean 1.
            factors = (1.0 - rng.random(count)) ** (-1.0 / noise.alpha) * (noise.alpha - 1.0) / noise.alpha
        if noise.walk_cv:
            walk = self._walk + np.cumsum(noise.walk_cv * self._walk_rng.standard_normal(count))
            self._walk = float(walk[-1])
            factors = factors * np.exp(walk)
        return factors

    def _correlated(self, count: int) -> NDArray[np.float64]:
        rho, value = self._noise.rho, self._ar
        shocks = np.sqrt(1.0 - rho * rho) * self._rng.standard_normal(count)
        values = []
        for shock in shocks.tolist():
            value = rho * value + shock
            values.append(value)
        self._ar = value
        return np.asarray(values)
