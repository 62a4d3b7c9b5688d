"""Families of loads for the figures on energy: those that the constants were chosen on, and others to test them on.

Each family draws a power in closed form over a given time. The time scales of a load are its own, from milliseconds to
seconds: a training does not know the period of the sensor that watches it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.signal import lfilter

from sensor_truth import Power, bursts, levels, ramps, square_wave

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Family = Callable[[np.random.Generator, float, float], Power]

LEAST_W, MOST_W = 20, 700
FAST_S, SLOW_S = 0.005, 2.0


def log_uniform(random: np.random.Generator, low: float, high: float) -> float:
    return float(np.exp(random.uniform(np.log(low), np.log(high))))


def two_levels(random: np.random.Generator) -> tuple[float, float]:
    low_w, high_w = sorted(log_uniform(random, LEAST_W, MOST_W) for _ in range(2))
    return low_w, high_w


# -- for calibration: the constants of the estimator were chosen on these --------------------------------------


def constant(random: np.random.Generator, begin_s: float, end_s: float) -> Power:
    return levels(np.array([begin_s, end_s]), np.array([two_levels(random)[1]]))


def corners(random: np.random.Generator, begin_s: float, end_s: float) -> tuple[Floats, Floats]:
    count = int(random.integers(2, 12))
    inside_s = np.sort(random.uniform(begin_s, end_s, count - 1))
    return np.concatenate([[begin_s], inside_s, [end_s]]), random.uniform(*two_levels(random), count + 1)


def some_steps(random: np.random.Generator, begin_s: float, end_s: float) -> Power:
    corner_s, corner_w = corners(random, begin_s, end_s)
    return levels(corner_s, corner_w[1:])


def some_ramps(random: np.random.Generator, begin_s: float, end_s: float) -> Power:
    return ramps(*corners(random, begin_s, end_s))


def regular(random: np.random.Generator, begin_s: float, end_s: float) -> Power:
    period_s, duty = log_uniform(random, FAST_S, SLOW_S), random.uniform(0.2, 0.8)
    return square_wave(begin_s - period_s * random.random(), end_s, period_s, duty, *two_levels(random))


def irregular(random: np.random.Generator, begin_s: float, end_s: float) -> Power:
    """Bursts of different lengths, at times that are only roughly regular."""
    low_w, high_w = two_levels(random)
    beat_s = log_uniform(random, FAST_S, SLOW_S)
    count = max(1, int((end_s - begin_s) / (beat_s * log_uniform(random, 3, 30))))
    room_s = (end_s - begin_s) / count
    moment_s = begin_s + room_s * (np.arange(count) + random.uniform(0, 0.5, count))
    length_s = np.minimum(beat_s * np.exp(random.uniform(np.log(0.1), np.log(10), count)), 0.49 * room_s)
    return bursts(begin_s, end_s, moment_s, length_s, low_w, np.full(count, high_w))


CALIBRATION: dict[str, Family] = {
    "constant": constant, "steps": some_steps, "ramps": some_ramps, "square": regular, "bursts": irregular,
}  # fmt: skip


# -- for the test -----------------------------------------------------------------------------------------------


def moments(begin_s: float, end_s: float, length_s: Floats) -> Floats:
    """Corners after pieces of these lengths, as many as the time needs; the last piece is made longer."""
    corner_s = begin_s + np.concatenate([[0.0], np.cumsum(length_s)])
    corner_s = corner_s[: max(1, int(np.searchsorted(corner_s, end_s)))]
    return np.append(corner_s, max(end_s, corner_s[-1] + 1e-3))


def training(random: np.random.Generator, begin_s: float, end_s: float) -> Power:
    """Steps of a few phases (forward, backward, waiting for others), none of exactly the same length."""
    step_s, phases = log_uniform(random, 0.02, SLOW_S), int(random.integers(2, 6))
    share = random.dirichlet(np.full(phases, 2.0))
    steps = int(1.3 * (end_s - begin_s) / step_s) + 2
    jitter = 1 + log_uniform(random, 0.003, 0.1) * random.standard_normal((steps, phases))
    corner_s = moments(begin_s, end_s, (step_s * share * np.clip(jitter, 0.2, 3)).ravel())
    level_w = np.tile(random.uniform(*two_levels(random), phases), steps)[: len(corner_s) - 1]
    return levels(corner_s, level_w * np.clip(1 + 0.02 * random.standard_normal(len(level_w)), 0.5, 1.5))


def telegraph(random: np.random.Generator, begin_s: float, end_s: float) -> Power:
    """Two levels, each for a random time without memory."""
    mean_s = log_uniform(random, FAST_S, SLOW_S)
    dwell_s = mean_s * random.exponential(1.0, int(2 * (end_s - begin_s) / mean_s) + 20)
    corner_s = moments(begin_s, end_s, dwell_s)
    return levels(corner_s, np.resize(two_levels(random), len(corner_s) - 1))


def wandering(random: np.random.Generator, begin_s: float, end_s: float) -> Power:
    """Correlated noise around a level."""
    grid_s, memory_s = 0.004, log_uniform(random, 0.01, SLOW_S)
    count = int((end_s - begin_s) / grid_s) + 2
    keep = np.exp(-grid_s / memory_s)
    shocks = random.standard_normal(count) * np.sqrt(1 - keep**2)
    noise: Floats = np.asarray(lfilter([1.0], [1.0, -keep], shocks), dtype=np.float64)
    level_w = two_levels(random)[1]
    power_w = level_w * np.clip(1 + random.uniform(0.02, 0.3) * noise, 0.05, 1.9)
    return ramps(begin_s + grid_s * np.arange(count, dtype=np.float64), power_w)


def waves(random: np.random.Generator, begin_s: float, end_s: float) -> Power:
    """Two sines of unrelated periods."""
    low_w, high_w = two_levels(random)
    period_s = [log_uniform(random, 0.02, SLOW_S) for _ in range(2)]
    count = int(16 * (end_s - begin_s) / min(period_s)) + 2
    time_s = np.linspace(begin_s, end_s, count)
    weight = random.random()
    phase = random.uniform(0, 2 * np.pi, 2)
    wave = weight * np.sin(2 * np.pi * time_s / period_s[0] + phase[0])
    wave += (1 - weight) * np.sin(2 * np.pi * time_s / period_s[1] + phase[1])
    return ramps(time_s, (low_w + high_w) / 2 + (high_w - low_w) / 2 * wave)


def sawtooth(random: np.random.Generator, begin_s: float, end_s: float) -> Power:
    """Rises and falls off at once, with a period that gets longer."""
    period_s, slower = log_uniform(random, 0.01, SLOW_S), random.uniform(0, 0.3)
    count = int(1.1 * (end_s - begin_s) / period_s) + 2
    corner_s = moments(begin_s, end_s, period_s * np.linspace(1, 1 + slower, count))
    low_w, high_w = two_levels(random)
    first_w = np.full(len(corner_s) - 1, low_w)
    return Power(corner_s, first_w, np.full(len(first_w), high_w))


def requests(random: np.random.Generator, begin_s: float, end_s: float) -> Power:
    """Requests that come at random and are served together, up to a limit."""
    low_w, high_w = two_levels(random)
    served_s, busy, room = log_uniform(random, 0.01, 1.0), random.uniform(0.2, 3), int(random.integers(2, 9))
    count = random.poisson((end_s - begin_s) * busy / served_s)
    come_s = random.uniform(begin_s, end_s, count)
    gone_s = come_s + served_s * random.lognormal(-0.2, 0.6, count)
    moment_s = np.concatenate([come_s, gone_s])
    order = np.argsort(moment_s)
    change = np.concatenate([np.ones(count), -np.ones(count)])[order]
    inside = moment_s[order] < end_s
    active = np.minimum(np.concatenate([[0.0], np.cumsum(change)[inside]]), room) / room
    corner_s = np.concatenate([[begin_s - 1.0], moment_s[order][inside], [end_s + 1.0]])
    return levels(corner_s, low_w + (high_w - low_w) * active)


def pauses(random: np.random.Generator, begin_s: float, end_s: float) -> Power:
    """A power that falls slowly as the device gets warm, with pauses for checkpoints."""
    low_w, high_w = two_levels(random)
    work_s, pause_s = log_uniform(random, 1, 20), log_uniform(random, 0.05, 1)
    count = int(1.5 * (end_s - begin_s) / (work_s + pause_s)) + 4
    length_s = np.column_stack([random.uniform(0.5, 1.5, count) * work_s, random.uniform(0.5, 1.5, count) * pause_s])
    corner_s = moments(begin_s, end_s, length_s.ravel())
    warm_w = high_w * (0.9 + 0.1 * np.exp(-(corner_s - begin_s) / 20))
    at_work = np.arange(len(corner_s) - 1) % 2 == 0
    return Power(corner_s, np.where(at_work, warm_w[:-1], low_w), np.where(at_work, warm_w[1:], low_w))


TEST: dict[str, Family] = {
    "training": training, "telegraph": telegraph, "noise": wandering, "waves": waves, "sawtooth": sawtooth,
    "requests": requests, "pauses": pauses,
}  # fmt: skip


# -- measured by others -------------------------------------------------------------------------------------------


def recorded(
    time_s: Floats, power_w: Floats, random: np.random.Generator, begin_s: float, end_s: float
) -> Power:  # fmt: skip
    """A measured power from a random moment on, again and again."""
    long_s = float(time_s[-1] - time_s[0])
    again = int((end_s - begin_s) / long_s) + 3
    gap_s = float(np.median(np.diff(time_s)))
    corner_s = (time_s - time_s[0] + (long_s + gap_s) * np.arange(again)[:, None]).ravel()
    return ramps(corner_s + begin_s - long_s * random.random(), np.tile(power_w, again))
