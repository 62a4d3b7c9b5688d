"""Families of jobs for comparisons of two machines: the noise of real machines, and runs that never settle.

Each family returns one row of step times for every job, relative to the level of the machine. The mean over all jobs of
a usable family is 1, so the true ratio of two machines is that of their levels. A step takes 0.1 s where seconds
matter. Jobs also differ from each other as a whole (`job_effects`).

Usable: a mean over the job is a fair figure of the machine.

| family | what happens |
| --- | --- |
| white | independent noise of 1 % |
| AR(1) 0.95 | noise of 1 %, correlated over about 40 steps |
| oscillating clocks | 1 % up and down with a period of 30 s, any phase; short jobs see half a period |
| two levels | switches between two levels 3 % apart; mean dwell 2 to 30 s |
| co-tenant bursts | 10 % slower for 2.5 s on average, after 10 s on average |
| pink | 1/f noise of 1 % |
| checkpoints | a step 2 to 10 times as long at every 10th to 200th step |
| slow loader | every 2nd to 16th batch waits, by a random 10 % to 100 % |
| log-normal tail | sigma 0.3 to 1 |
| public logs | stalls as in published training logs, see `public_logs` |
| recorded | pieces of real runs on an overloaded machine, see `recorded` |

Not usable: every job of one machine, or of both, changes in the same direction. Noise: 1 %, white or AR(1) up to 0.8.

| family | what happens |
| --- | --- |
| step of 3 %, of 10 % | one change of level, up or down, between a third and two thirds of the job |
| drift of 5 %, of 2 % | a straight line, up or down |
| long warm-up | an exponential fall; the last third is 5 % faster than the first |
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from scipy.signal import lfilter

from traces import log_uniform

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Jobs = NDArray[np.float64]
    Family = Callable[[np.random.Generator, int, int], Jobs]
    Changing = tuple[Jobs, float]
    """Jobs whose level is 1 at the start, and their level at the end."""

JOB_SD = 0.01
NOISE = 0.01
PERIOD_STEPS = 300
PIECE_STEPS = 100
RECORDED = Path(__file__).with_name("recorded_steps.csv")


def job_effects(rng: np.random.Generator, jobs: int) -> Jobs:
    """Factors by which whole jobs differ, with mean 1."""
    return 1 + JOB_SD * rng.standard_normal(jobs)


def white(rng: np.random.Generator, jobs: int, steps: int) -> Jobs:
    return 1 + NOISE * rng.standard_normal((jobs, steps))


def correlated(rng: np.random.Generator, jobs: int, steps: int, rho: float = 0.95) -> Jobs:
    """Stationary AR(1) noise."""
    shocks = rng.standard_normal((jobs, steps))
    shocks[:, 1:] *= math.sqrt(1 - rho * rho)
    return 1 + NOISE * np.asarray(lfilter([1.0], [1.0, -rho], shocks, axis=1))


def oscillating(rng: np.random.Generator, jobs: int, steps: int) -> Jobs:
    phase = rng.uniform(0, 2 * math.pi, (jobs, 1))
    wave = 0.01 * np.sin(phase + 2 * math.pi * np.arange(steps) / PERIOD_STEPS)
    return 1 + wave + 0.003 * rng.standard_normal((jobs, steps))


def switching(rng: np.random.Generator, jobs: int, steps: int, leave: tuple[float, float]) -> NDArray[np.bool_]:
    """Whether each step is in the second of two states, with the chances to leave each of them at a step."""
    shift = rng.random((jobs, steps))
    state = np.empty((jobs, steps), dtype=np.bool_)
    now = rng.random(jobs) < leave[0] / (leave[0] + leave[1])
    for step in range(steps):
        now = np.where(now, shift[:, step] >= leave[1], shift[:, step] < leave[0])
        state[:, step] = now
    return state


def two_levels(rng: np.random.Generator, jobs: int, steps: int) -> Jobs:
    leave = 1 / log_uniform(rng, 20, 300)
    high = switching(rng, jobs, steps, (leave, leave))
    return (1 + 0.03 * (high - 0.5)) * (1 + 0.003 * rng.standard_normal((jobs, steps)))


def bursts(rng: np.random.Generator, jobs: int, steps: int) -> Jobs:
    burst = switching(rng, jobs, steps, (1 / 100, 1 / 25))
    return (1 + 0.1 * burst) / 1.02 * (1 + 0.005 * rng.standard_normal((jobs, steps)))


def pink(rng: np.random.Generator, jobs: int, steps: int) -> Jobs:
    """1/f noise, as a stretch of a series four times as long, so that its ends do not join."""
    size = 4 * steps
    frequency = np.fft.rfftfreq(size)
    frequency[0] = math.inf
    spectrum = np.fft.rfft(rng.standard_normal((jobs, size)), axis=1) / np.sqrt(frequency)
    values = np.fft.irfft(spectrum, size, axis=1)
    return np.asarray(1 + NOISE * (values / values.std())[:, :steps])


def spiked(rng: np.random.Generator, jobs: int, steps: int, period: int, factor: float) -> Jobs:
    """A longer step at every period, at any phase."""
    slow = (np.arange(steps) + rng.integers(period, size=(jobs, 1))) % period == 0
    return np.where(slow, factor, 1.0) / (1 + (factor - 1) / period)


def checkpoints(rng: np.random.Generator, jobs: int, steps: int) -> Jobs:
    period = round(log_uniform(rng, 10, min(200, max(10, steps / 5))))
    return spiked(rng, jobs, steps, period, log_uniform(rng, 2, 10)) * white(rng, jobs, steps)


def slow_loader(rng: np.random.Generator, jobs: int, steps: int) -> Jobs:
    workers = int(rng.integers(2, 17))
    waits = spiked(rng, jobs, steps, workers, 2.0) > 1.0
    longest = rng.uniform(0.2, 1.0)
    waited = waits * rng.uniform(0.1, longest, (jobs, steps))
    return (1 + waited) / (1 + (0.1 + longest) / 2 / workers) * (1 + 0.005 * rng.standard_normal((jobs, steps)))


def long_tail(rng: np.random.Generator, jobs: int, steps: int) -> Jobs:
    sigma = rng.uniform(0.3, 1.0)
    return rng.lognormal(-sigma * sigma / 2, sigma, (jobs, steps))


def public_logs(rng: np.random.Generator, jobs: int, steps: int) -> Jobs:
    """Stalls with the periods and sizes of training logs on eight GPUs.

    Source: github.com/KellerJordan/modded-nanogpt, records/track_1_short, differences of the logged `train_time`.
    Either one step in 189 and one in 190 take 2.1 times as long (2024-11-06_ShortcutsTweaks), or every 10th step takes
    3.4 or 6.3 times as long (2024-10-29_Optimizers). The others vary by 1 %; the logs are in whole milliseconds.
    """
    ticks = np.diff(rng.uniform(-0.5, 0.5, (jobs, steps + 1)), axis=1) / 143
    noise = 1 + 0.01 * rng.standard_normal((jobs, steps)) + ticks
    shape = rng.integers(3)
    if shape == 0:
        both = spiked(rng, jobs, steps, 189, 2.1) + spiked(rng, jobs, steps, 190, 2.1)
        return both / 2 * noise
    return spiked(rng, jobs, steps, 10, (3.4, 6.3)[shape - 1]) * noise


def recorded(rng: np.random.Generator, jobs: int, steps: int) -> Jobs:
    """Pieces of 100 steps of a recorded run in random order (block bootstrap); a piece may go on at the run's start.

    Each of four rows of the file is 500 steps, in ms, of `steelyard run` with `autoencoder` or `mobilenet-v3-small` on
    one thread of a machine with two cores that other processes used as well; means over 50 steps differ by 20 %.
    """
    runs = np.loadtxt(RECORDED, delimiter=",", ndmin=2)
    run = runs[int(rng.integers(len(runs)))]
    place = np.arange(steps)[None, :] + rng.integers(PIECE_STEPS, size=(jobs, 1))
    begins = rng.integers(run.size, size=(jobs, 1 + (steps + PIECE_STEPS) // PIECE_STEPS))
    begin = np.take_along_axis(begins, place // PIECE_STEPS, axis=1)
    return np.asarray(run[(begin + place) % run.size] / run.mean())


def changing_noise(rng: np.random.Generator, jobs: int, steps: int) -> Jobs:
    return correlated(rng, jobs, steps, rng.choice([0.0, 0.5, 0.8]))


def step(rng: np.random.Generator, jobs: int, steps: int, size: float) -> Changing:
    place = rng.uniform(1 / 3, 2 / 3, (jobs, 1)) * steps
    change = float(rng.choice([-size, size]))
    return (1 + change * (np.arange(steps) >= place)) * changing_noise(rng, jobs, steps), 1 + change


def drift(rng: np.random.Generator, jobs: int, steps: int, size: float) -> Changing:
    change = float(rng.choice([-size, size]))
    return (1 + change * np.arange(steps) / steps) * changing_noise(rng, jobs, steps), 1 + change


def long_warm_up(rng: np.random.Generator, jobs: int, steps: int) -> Changing:
    """An exponential fall with a time constant of 0.2 to 1.5 jobs."""
    fall = np.exp(-np.arange(steps) / steps / log_uniform(rng, 0.2, 1.5))
    third = steps // 3
    fall *= 0.05 / (fall[:third].mean() - fall[-third:].mean())
    course = 1 + fall - fall[0]
    return course * changing_noise(rng, jobs, steps), float(course[-1])


USABLE: dict[str, Family] = {
    "white": white,
    "AR(1) 0.95": correlated,
    "oscillating clocks": oscillating,
    "two levels": two_levels,
    "co-tenant bursts": bursts,
    "pink": pink,
    "checkpoints": checkpoints,
    "slow loader": slow_loader,
    "log-normal tail": long_tail,
    "public logs": public_logs,
    "recorded": recorded,
}
CHANGING: dict[str, Callable[[np.random.Generator, int, int], Changing]] = {
    "step of 3 %": lambda rng, jobs, steps: step(rng, jobs, steps, 0.03),
    "step of 10 %": lambda rng, jobs, steps: step(rng, jobs, steps, 0.10),
    "drift of 5 %": lambda rng, jobs, steps: drift(rng, jobs, steps, 0.05),
    "long warm-up": long_warm_up,
    "drift of 2 %": lambda rng, jobs, steps: drift(rng, jobs, steps, 0.02),
}
