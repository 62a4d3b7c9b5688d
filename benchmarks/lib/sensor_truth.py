"""Simulated power with energy in closed form, and sensors that read it. Shares no code with the energy estimator.

Power is piecewise linear, so the energy up to any moment is a quadratic. A sensor makes a new value at its own period:
the mean power over some time before, or the joules so far. A reader gets the latest value, correct up to gain, noise
and quantisation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]


class Power:
    """Power over time, piecewise linear; `begin_s` has one more entry for the end."""

    def __init__(self, begin_s: Floats, first_w: Floats, last_w: Floats) -> None:
        length_s = np.diff(begin_s)
        self.begin_s = begin_s[:-1]
        self.first_w = first_w
        self.slope = (last_w - first_w) / length_s
        self.so_far_j = np.concatenate([[0.0], np.cumsum(length_s * (first_w + last_w) / 2)])[:-1]
        self.highest_w = float(max(np.max(first_w), np.max(last_w)))

    def at_w(self, moment_s: Floats) -> Floats:
        """Power at these moments."""
        piece, since_s = self._piece(moment_s)
        return self.first_w[piece] + self.slope[piece] * since_s

    def until_j(self, moment_s: Floats) -> Floats:
        """Energy from the beginning to these moments."""
        piece, since_s = self._piece(moment_s)
        return self.so_far_j[piece] + since_s * (self.first_w[piece] + self.slope[piece] * since_s / 2)

    def between_j(self, start_s: float, stop_s: float) -> float:
        """Energy of a window."""
        first_j, last_j = self.until_j(np.array([start_s, stop_s]))
        return float(last_j - first_j)

    def _piece(self, moment_s: Floats) -> tuple[NDArray[np.intp], Floats]:
        piece = np.clip(np.searchsorted(self.begin_s, moment_s, "right") - 1, 0, None)
        return piece, moment_s - self.begin_s[piece]


def levels(begin_s: Floats, power_w: Floats) -> Power:
    """Power in steps; `begin_s` has one more entry than there are steps."""
    return Power(begin_s, power_w, power_w)


def ramps(corner_s: Floats, power_w: Floats) -> Power:
    """Power that is linear between the given points."""
    return Power(corner_s, power_w[:-1], power_w[1:])


def square_wave(begin_s: float, end_s: float, period_s: float, duty: float, low_w: float, high_w: float) -> Power:
    """High for `duty` of each period, then low."""
    count = int((end_s - begin_s) / period_s) + 2
    rise_s = begin_s + period_s * np.arange(count)
    edge_s = np.column_stack([rise_s, rise_s + duty * period_s]).ravel()
    return levels(np.append(edge_s, [rise_s[-1] + period_s]), np.tile([high_w, low_w], count))


def bursts(begin_s: float, end_s: float, moment_s: Floats, length_s: Floats, low_w: float, high_w: Floats) -> Power:
    """Low, with bursts that begin at `moment_s` and do not overlap."""
    edge_s = np.column_stack([moment_s, moment_s + length_s]).ravel()
    power_w = np.column_stack([high_w, np.full(len(high_w), low_w)]).ravel()
    inside = np.concatenate([[begin_s], edge_s, [max(end_s, float(edge_s[-1])) + 1.0]])
    return levels(inside, np.concatenate([[low_w], power_w]))


@dataclass(frozen=True)
class Sensor:
    """A sensor. `truth = reading * gain_factor`, apart from noise and quantisation."""

    counter: bool
    period_s: float
    """Seconds between new values; 0: a new value at every call."""
    phase_s: float
    average_s: float = 0.0
    gain_factor: float = 1.0
    noise: float = 0.0
    """Noise of each value of a gauge, as a share of it."""
    resolution: float = 0.0
    rounds: bool = True
    """Whether it rounds to the nearest step, or down."""
    wrap_j: float | None = None
    offset_j: float = 0.0
    freezes_s: float | None = None
    """From this moment on the value is frozen."""

    def made_s(self, moment_s: Floats) -> Floats:
        """Return when the values were made that are read at these moments."""
        made_s = moment_s
        if self.period_s > 0:
            made_s = self.phase_s + np.floor((moment_s - self.phase_s) / self.period_s) * self.period_s
        return made_s if self.freezes_s is None else np.minimum(made_s, self.freezes_s)

    def read(self, power: Power, moment_s: Floats, random: np.random.Generator) -> Floats:
        """Return the readings at these moments, which must be in rising order."""
        made_s, which = np.unique(self.made_s(moment_s), return_inverse=True)
        if self.counter:
            value = self._quantised(self.offset_j + power.until_j(made_s) / self.gain_factor)
            if self.wrap_j is not None:
                value = np.mod(value, self.wrap_j)
        else:
            value = self._mean_w(power, made_s) / self.gain_factor
            value = self._quantised(value * (1 + self.noise * random.standard_normal(len(made_s))))
        return value[which]

    def _mean_w(self, power: Power, made_s: Floats) -> Floats:
        if self.average_s <= 0:
            return power.at_w(made_s)
        return (power.until_j(made_s) - power.until_j(made_s - self.average_s)) / self.average_s

    def _quantised(self, value: Floats) -> Floats:
        if self.resolution <= 0:
            return value
        steps = np.round(value / self.resolution) if self.rounds else np.floor(value / self.resolution)
        return steps * self.resolution


@dataclass(frozen=True)
class Reader:
    """When a sensor is read: periodically with jitter, and once at each edge of the window; calls take time."""

    period_s: float
    begin_s: float
    end_s: float
    jitter: float = 0.0
    random_phase: bool = False
    marks_s: tuple[float, ...] = ()
    spent_s: float = 0.0
    dropouts: float = 0.0
    """Share of single readings that are lost."""
    silence_s: tuple[float, float] | None = None
    """Start and end of a gap without readings."""

    def times(self, random: np.random.Generator) -> tuple[Floats, Floats, Floats]:
        """Return when each call returned, how long it took, and when inside it the value was taken."""
        beat_s = np.arange(self.begin_s, self.end_s, self.period_s)
        shift = random.random(len(beat_s)) if self.random_phase else self.jitter * random.standard_normal(len(beat_s))
        time_s = np.sort(np.concatenate([beat_s + self.period_s * shift, self.marks_s]))
        kept = random.random(len(time_s)) >= self.dropouts
        if self.silence_s is not None:
            kept &= (time_s < self.silence_s[0]) | (time_s > self.silence_s[1])
        time_s = time_s[kept]
        spent_s = self.spent_s * random.uniform(0.5, 1.5, len(time_s))
        # Calls do not overlap.
        spent_s = np.minimum(spent_s, np.diff(time_s, prepend=-np.inf))
        return time_s, spent_s, time_s - spent_s * random.random(len(time_s))
