"""Windows with a known energy, read through simulated sensors, for the figures on energy.

The estimator knows what the vendor of the sensor states (resolution, averaging window, tolerance, and mostly the period
and the limit) and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from energy_loads import log_uniform
from sensor_truth import Power, Reader, Sensor, bursts, levels, ramps, square_wave
from steelyard.stats.energy import Nature, WindowEnergy, energy_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from energy_loads import Family

    Floats = NDArray[np.float64]

SHAPES = ("constant", "steps", "ramps", "square", "bursts")
KINDS = ("counter", "average", "instant", "part-time", "random part-time")
KIND_SHARES = (0.4, 0.3, 0.1, 0.08, 0.12)
# A sensor that sees all of the time resolves a window of at least this many ticks, readings or averages.
RESOLVED = 20
# Random readings are a survey: their error falls with the square root of their number.
RESOLVED_LOOKS = 200
# The windows of `draw_window`: the fewest ticks, readings or averages, and the longest time in seconds.
LEAST_BLOCKS = 10
MOST_S = 120.0


@dataclass(frozen=True)
class Case:
    """A window with its truth, and what an estimator sees of it."""

    setting: Setting
    nature: Nature
    table: tuple[Floats, Floats, Floats] = field(repr=False)
    truth_j: float
    without_gain_j: float
    tick_j: float
    """The most energy between two new values of a counter, as they were read, in the window and at its edges."""
    ticks: int
    cannot_know: str
    """Why the energy cannot be known from these readings; empty if it can."""
    resolved: bool
    """Whether the sensor resolves the window."""

    def without_readings(self) -> Case:
        """The same without the readings, which take most of the memory."""
        none = np.zeros(0)
        return replace(self, table=(none, none, none))

    def energy(self) -> WindowEnergy:
        """The estimate."""
        setting = self.setting
        return energy_of(
            self.nature, *self.table, setting.start_s, setting.stop_s, random_phase=setting.random_phase
        )  # fmt: skip


@dataclass(frozen=True)
class Setting:
    """The random choices that come first."""

    kind: str
    shape: str
    period_s: float
    read_s: float
    average_s: float
    start_s: float
    stop_s: float

    @property
    def counter(self) -> bool:
        """Whether it counts joules, rather than reading watts."""
        return self.kind == "counter"

    @property
    def random_phase(self) -> bool:
        """Whether it reads at random moments."""
        return self.kind == "random part-time"

    @property
    def block_s(self) -> float:
        """The longest of its times."""
        return max(self.period_s, self.read_s, self.average_s)

    @property
    def blocks(self) -> float:
        """Length of the window in ticks, readings or averages."""
        return self.window_s / self.block_s

    @property
    def window_s(self) -> float:
        """Length of the window."""
        return self.stop_s - self.start_s

    @property
    def blind(self) -> bool:
        """Whether a load with the period of the sensor may be invisible; then the verdict must not be valid."""
        return not self.counter and not self.random_phase and self.average_s < 0.9 * max(self.period_s, self.read_s)


# -- drawing a case -------------------------------------------------------------------------------------------


def draw_setting(random: np.random.Generator) -> Setting:
    kind = str(random.choice(KINDS, p=KIND_SHARES))
    shape = str(random.choice(SHAPES))
    period_s = log_uniform(random, 0.005, 0.5)
    read_s = draw_read_s(random, kind, period_s)
    average_s = draw_average_s(random, kind, period_s)
    start_s = 100.0 + random.random()
    window_s = max(period_s, read_s, average_s) * log_uniform(random, 0.3, 3000)
    return Setting(kind, shape, period_s, read_s, average_s, start_s, start_s + window_s)


def draw_power(random: np.random.Generator, setting: Setting) -> Power:
    """A load; its fast parts are near the period of the sensor or of its reader."""
    low_w, high_w = np.sort([log_uniform(random, 20, 700), log_uniform(random, 20, 700)])
    beat_s = float(random.choice([setting.period_s, setting.read_s]))
    begin_s, end_s = setting.start_s - 24 * setting.block_s, setting.stop_s + 24 * setting.block_s
    if setting.shape == "constant":
        return levels(np.array([begin_s, end_s]), np.array([high_w]))
    if setting.shape in {"steps", "ramps"}:
        count = int(random.integers(2, 12))
        corner_s = np.concatenate([[begin_s], np.sort(random.uniform(begin_s, end_s, count - 1)), [end_s]])
        corner_w = random.uniform(low_w, high_w, count + (setting.shape == "ramps"))
        return levels(corner_s, corner_w) if setting.shape == "steps" else ramps(corner_s, corner_w)
    if setting.shape == "square":
        # Half of them close to the period, where only a slow beat is visible.
        ratio = random.uniform(0.97, 1.03) if random.random() < 0.5 else log_uniform(random, 0.5, 2.0)
        first_s, duty = begin_s - ratio * beat_s * random.random(), random.uniform(0.2, 0.8)
        return square_wave(first_s, end_s, ratio * beat_s, duty, low_w, high_w)
    count = max(1, int((end_s - begin_s) / (beat_s * log_uniform(random, 3, 100))))
    room_s = (end_s - begin_s) / count
    moment_s = begin_s + room_s * (np.arange(count) + random.uniform(0, 0.5, count))
    length_s = np.minimum(beat_s * np.exp(random.uniform(np.log(0.1), np.log(10), count)), 0.49 * room_s)
    return bursts(begin_s, end_s, moment_s, length_s, low_w, np.full(count, high_w))


def draw(seed: int) -> Case:
    """A case with any window and any fault; the load is chosen to be hard for the sensor."""
    random = np.random.default_rng(seed)
    setting = draw_setting(random)
    return read_case(random, setting, draw_power(random, setting), faults=True)


def draw_window(seed: int, kind: str, families: Mapping[str, Family]) -> Case:
    """A window of some length without faults, under a load that does not know the sensor."""
    random = np.random.default_rng(seed)
    shape = str(random.choice(list(families)))
    period_s = log_uniform(random, 0.01, 0.2)
    read_s = draw_read_s(random, kind, period_s)
    average_s = draw_average_s(random, kind, period_s)
    block_s = max(period_s, read_s, average_s)
    window_s = min(block_s * log_uniform(random, LEAST_BLOCKS, 3000), max(MOST_S, LEAST_BLOCKS * block_s))
    start_s = 100.0 + random.random()
    setting = Setting(kind, shape, period_s, read_s, average_s, start_s, start_s + window_s)
    power = families[shape](random, setting.start_s - 24 * block_s, setting.stop_s + 24 * block_s)
    return read_case(random, setting, power, faults=False)


def read_case(random: np.random.Generator, setting: Setting, power: Power, *, faults: bool) -> Case:
    """Read a load with a random sensor; `faults`: it may freeze, stay silent, or wrap at a range that nobody states."""
    truth_j = power.between_j(setting.start_s, setting.stop_s)
    gain = random.uniform(0, 0.05)
    sensor, states_wrap = draw_sensor(random, setting, truth_j, 1 + gain * random.uniform(-1, 1))
    reader = draw_reader(random, setting)
    if not faults:
        sensor, reader, states_wrap = replace(sensor, freezes_s=None), replace(reader, silence_s=None), True
    time_s, spent_s, moment_s = reader.times(random)
    value = sensor.read(power, moment_s, random)
    part_time = "part-time" in setting.kind
    nature = Nature(
        kind="counter" if setting.counter else "gauge",
        resolution=sensor.resolution,
        average_s=None if setting.counter or part_time else setting.average_s,
        period_s=setting.period_s if part_time or random.random() < 0.8 else None,
        seen_s=setting.average_s if part_time else None,
        wrap=sensor.wrap_j if states_wrap else None,
        gain=gain,
        limit_w=power.highest_w * random.uniform(1.0, 1.6) if random.random() < 0.8 else None,
    )
    tick_j, ticks = seen_ticks(power, sensor, setting, moment_s, value)
    cannot_know = why_not(sensor, nature, setting, moment_s, value)
    return Case(
        setting=setting,
        nature=nature,
        table=(time_s, value, spent_s),
        truth_j=truth_j,
        without_gain_j=truth_j / sensor.gain_factor,
        tick_j=tick_j,
        ticks=ticks,
        cannot_know=cannot_know,
        resolved=not cannot_know and resolves(setting, sensor, reader, truth_j),
    )


def resolves(setting: Setting, sensor: Sensor, reader: Reader, truth_j: float) -> bool:
    """Whether the window is long enough for the sensor, and the readings have no fault and no long gap."""
    if reader.silence_s is not None or sensor.freezes_s is not None:
        return False
    if setting.counter:
        return setting.window_s >= RESOLVED * setting.block_s and truth_j >= RESOLVED * sensor.resolution
    if setting.random_phase:
        return setting.window_s >= RESOLVED_LOOKS * setting.block_s
    return setting.window_s >= RESOLVED * setting.block_s and setting.average_s >= 0.95 * max(
        setting.period_s, setting.read_s
    )


def draw_sensor(random: np.random.Generator, setting: Setting, truth_j: float, factor: float) -> tuple[Sensor, bool]:
    """A sensor, and whether its vendor states the range of its counter."""
    counter, window_s = setting.counter, setting.window_s
    resolution, wrap_j = draw_steps(random, setting, truth_j / window_s)
    freezes = counter and random.random() < 0.04
    sensor = Sensor(
        counter=counter,
        period_s=0.0 if setting.random_phase else setting.period_s * (1 + 1e-3 * random.standard_normal()),
        phase_s=setting.period_s * random.random(),
        average_s=setting.average_s,
        gain_factor=factor,
        noise=random.choice([0.0, 0.03]) * random.random(),
        resolution=resolution,
        rounds=bool(random.random() < 0.5),
        wrap_j=wrap_j,
        offset_j=1e3 * random.random(),
        freezes_s=setting.start_s + window_s * random.uniform(-0.2, 0.9) if freezes else None,
    )
    return sensor, bool(random.random() < 0.8)


def draw_read_s(random: np.random.Generator, kind: str, period_s: float) -> float:
    """One random reading per period; other sensors are read more or less often than they make values."""
    if kind == "random part-time":
        return period_s
    return period_s * log_uniform(random, 0.2, 3 if kind == "counter" else 1.5)


def draw_average_s(random: np.random.Generator, kind: str, period_s: float) -> float:
    if kind == "average":
        return period_s if random.random() < 0.6 else period_s * log_uniform(random, 1, 10)
    return 0.25 * period_s if "part-time" in kind else 0.0


def draw_steps(random: np.random.Generator, setting: Setting, mean_w: float) -> tuple[float, float | None]:
    """Resolution, and range of a counter."""
    if not setting.counter:
        return float(random.choice([0.001, 0.1, 1.0])), None
    tick_j = mean_w * setting.period_s
    resolution = float(random.choice([6.1e-5, 1e-3, 0.1 * tick_j, 2 * tick_j]))
    if random.random() < 0.5:
        return resolution, None
    # No reader can follow a range of a few ticks, and no such counter exists.
    wrap_j = max(mean_w * setting.window_s / random.uniform(0.2, 5), 100 * tick_j)
    return resolution, float(np.ceil(wrap_j / resolution) * resolution)


def draw_reader(random: np.random.Generator, setting: Setting) -> Reader:
    read_s, window_s = setting.read_s, setting.window_s
    late_s = min(0.005, 0.1 * read_s)
    edges_s = (setting.start_s, setting.stop_s)
    marks_s = tuple(edge_s + late_s * random.random() for edge_s in edges_s if random.random() < 0.8)
    silence_s = None
    if random.random() < 0.08:
        begin_s = setting.start_s + window_s * random.uniform(-0.1, 1)
        silence_s = (begin_s, begin_s + window_s * log_uniform(random, 0.01, 1))
    margin_s = 12 * setting.block_s
    return Reader(
        period_s=read_s,
        begin_s=setting.start_s - margin_s * random.uniform(0.3, 1) + read_s * random.random(),
        end_s=setting.stop_s + margin_s * (random.uniform(0.3, 1) if random.random() < 0.9 else 0),
        jitter=random.choice([0.002, 0.02]),
        random_phase=setting.random_phase,
        marks_s=() if setting.random_phase else marks_s,
        spent_s=min(0.02 * read_s, 0.002) * random.random(),
        dropouts=random.choice([0.0, 0.0, 0.03, 0.1]) * random.random(),
        silence_s=silence_s,
    )


# -- the truth's side -----------------------------------------------------------------------------------------


def seen_ticks(power: Power, sensor: Sensor, setting: Setting, moment_s: Floats, value: Floats) -> tuple[float, int]:
    """Return the largest energy between two new values around the window, and how many values are in it."""
    new = np.append(len(value) > 0, np.diff(value) != 0)[: len(value)]
    tick_s = sensor.made_s(moment_s[new])
    first = max(0, int(np.searchsorted(tick_s, setting.start_s)) - 1)
    last = int(np.searchsorted(tick_s, setting.stop_s)) + 1
    step_j = np.diff(power.until_j(tick_s[first:last])) / sensor.gain_factor
    inside = np.count_nonzero((tick_s > setting.start_s) & (tick_s < setting.stop_s))
    return float(np.max(step_j, initial=sensor.resolution)), int(inside)


def why_not(sensor: Sensor, nature: Nature, setting: Setting, moment_s: Floats, value: Floats) -> str:
    """Return why these readings do not determine the energy of the window."""
    made_s = sensor.made_s(moment_s)
    near_s = setting.period_s / 2
    if not np.any((made_s > setting.start_s - near_s) & (made_s < setting.stop_s + near_s)):
        return "no value was made in the window and read"
    frozen_s = max(0.2 * setting.window_s, 20 * setting.period_s)
    if sensor.freezes_s is not None and sensor.freezes_s < setting.stop_s - frozen_s:
        return "frozen for a fifth of the window and more"
    inside = (moment_s > setting.start_s) & (moment_s < setting.stop_s)
    if setting.counter and nature.wrap is None and np.any(np.diff(value[inside]) < 0):
        return "wrapped at a range that nobody states"
    return ""
