"""What a sensor is, what its readings are and what they give for a window; must not know how joules are made of them.

The parts which counters and gauges share: tidy readings, when each was made, and how wide an interval may be.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

Verdict = Literal["valid", "doubtful", "invalid"]
"""Valid: the interval holds at its level. Doubtful: a number is given, and its reasons must be read. Invalid: the
sensor cannot tell, and there is no number."""

# Half-widths apart from gain, as shares of the energy: above the first the number is wide enough to say so, above the
# second it decides nothing any more.
WIDE = 0.10
USELESS = 0.35
# A reading speaks for the time up to the next one, but a gap of more than so many usual ones is a dropout.
DROPOUT_GAPS = 2.2
# What is hidden inside one tick or one average cannot be seen, however steady its neighbours are: an edge never gets
# less than this share of the worst that could be, so that the truth is never beyond twice the half-width.
HIDDEN = 0.5
# Short peaks above the limit are normal: it holds for the mean over some milliseconds.
PEAK = 1.5
LIMIT_MARGIN = 1.05
# A window may hang over the readings by so many periods or this share of itself; more would be made up.
OUTSIDE_PERIODS = 2.0
MAX_OUTSIDE = 0.01
# Seconds, joules and watts beyond this are no readings, whoever wrote them.
SANE = 1e15


@dataclass(frozen=True)
class Nature:
    """What a sensor's readings are; as in contracts.energy.Channel."""

    kind: Literal["counter", "gauge"]
    resolution: float
    average_s: float | None = None
    period_s: float | None = None
    seen_s: float | None = None
    wrap: float | None = None
    gain: float = 0.05
    limit_w: float | None = None


@dataclass(frozen=True)
class WindowEnergy:
    """Joules between two moments, or why they are not known."""

    value_j: float | None
    low_j: float | None
    high_j: float | None
    """Interval that holds the truth in 95 % of windows at least; the sensor's gain is in it."""
    verdict: Verdict
    reasons: tuple[str, ...]
    """Why it is doubtful or invalid; empty when valid."""
    samples: int
    """Distinct readings that were used."""
    coverage: float
    """Share of the window that readings speak for."""
    largest_gap_s: float | None
    gain_j: float = 0.0
    """How much of the half-width is the sensor's gain: an error common to all windows of this sensor."""

    @property
    def rest_j(self) -> float | None:
        """Half-width apart from gain."""
        if self.low_j is None or self.high_j is None:
            return None
        return (self.high_j - self.low_j) / 2 - self.gain_j


@dataclass(frozen=True)
class Readings:
    """Readings in the order of their times, without what is not a number and without doubles."""

    time_s: Floats
    value: Floats
    spent_s: Floats


@dataclass(frozen=True)
class Sight:
    """How much of a window was seen."""

    samples: int = 0
    coverage: float = 0.0
    largest_gap_s: float | None = None


def tidy(time_s: Floats, value: Floats, spent_s: Floats) -> Readings:
    """Sort by time; of readings at one time keep the last; leave out a value that is read again at once.

    Some samplers take every reading twice. The second says nothing new, and would blur when a value was first seen.
    """
    time_s, value, spent_s = (np.asarray(column, dtype=np.float64) for column in (time_s, value, spent_s))
    # Written so that what is not a number fails, too.
    finite = (np.abs(time_s) < SANE) & (np.abs(value) < SANE) & (np.abs(spent_s) < SANE)
    order = np.argsort(time_s[finite], kind="stable")
    time_s, value, spent_s = (column[finite][order] for column in (time_s, value, spent_s))
    if len(time_s) > 1:
        last = np.append(np.diff(time_s) > 0, [True])
        time_s, value, spent_s = time_s[last], value[last], spent_s[last]
    if len(time_s) > 2:
        step_s = np.diff(time_s)
        again = (np.diff(value) == 0) & (step_s < 0.1 * np.quantile(step_s, 0.75))
        keep = np.insert(~again, 0, [True])
        time_s, value, spent_s = time_s[keep], value[keep], spent_s[keep]
    return Readings(time_s, value, np.maximum(spent_s, 0.0))


def changes(readings: Readings) -> NDArray[np.bool_]:
    """Which readings differ from the one before them; the first does not."""
    return np.insert(np.diff(readings.value) != 0, 0, [False])


def update_period_s(nature: Nature, readings: Readings) -> float:
    """How often the sensor makes a new value: as stated, else from when values change, else how often it was read.

    A value that stays as it was is no proof of a slow sensor: only the shorter times between changes are taken.
    """
    if nature.period_s is not None:
        return nature.period_s
    read_s = float(np.median(np.diff(readings.time_s))) if len(readings.time_s) > 1 else 0.0
    between_s = np.diff(readings.time_s[changes(readings)])
    return max(read_s, usual_gap_s(between_s)) if len(between_s) >= 8 else read_s


def usual_gap_s(between_s: Floats) -> float:
    """The mean gap, without those which are long against the short ones.

    Who reads a little more often than a sensor makes values sees gaps of one and of two readings: their mean is right.
    """
    return float(np.mean(between_s[between_s <= 2.2 * np.quantile(between_s, 0.25)]))


def made_at(readings: Readings, period_s: float) -> tuple[Floats, Floats]:
    """When the sensor made each reading: the middle of what is possible, and half of its length.

    It was made at some moment before the call returned, at most a period before the call began; and, if it differs
    from the reading before, after the call before began.
    """
    began_s = readings.time_s - readings.spent_s
    earliest_s = began_s - period_s
    new = changes(readings)
    earliest_s[1:] = np.where(new[1:], np.maximum(earliest_s[1:], began_s[:-1]), earliest_s[1:])
    earliest_s = np.minimum(earliest_s, readings.time_s)
    return (earliest_s + readings.time_s) / 2, (readings.time_s - earliest_s) / 2


def unknown(reason: str, sight: Sight) -> WindowEnergy:
    """No number, and why."""
    return WindowEnergy(
        None, None, None, "invalid", (reason,), sight.samples, sight.coverage, sight.largest_gap_s
    )  # fmt: skip


def known(
    nature: Nature, window_s: float, value_j: float, rest_j: float, doubts: list[str], sight: Sight, too_short: str
) -> WindowEnergy:
    """The number with its interval; none, if the interval would hold nearly anything or nothing that can be."""
    rest_j *= 1 + nature.gain
    # Written so that what is not a number fails, too.
    if not (value_j > 0 and rest_j <= USELESS * value_j):
        return unknown(too_short, sight)
    least_w = (value_j - rest_j) * (1 - nature.gain) / window_s
    if nature.limit_w is not None and least_w > LIMIT_MARGIN * nature.limit_w:
        return unknown(
            f"implausible: at least {least_w:.6g} W over the whole window, of a domain that may draw "
            f"{nature.limit_w:.6g} W", sight,
        )  # fmt: skip
    if rest_j > WIDE * value_j:
        doubts = [*doubts, f"apart from the sensor's gain the energy is known to {rest_j / value_j:.0%} only"]
    value_j, rest_j = float(value_j), float(rest_j)
    gain_j = nature.gain * value_j
    half_j = rest_j + gain_j
    return WindowEnergy(
        value_j=value_j,
        low_j=value_j - half_j,
        high_j=value_j + half_j,
        verdict="doubtful" if doubts else "valid",
        reasons=tuple(doubts),
        samples=sight.samples,
        coverage=float(sight.coverage),
        largest_gap_s=sight.largest_gap_s,
        gain_j=gain_j,
    )


def roughness(power_w: Floats) -> float:
    """0 for a steady power, 1 for one that comes and goes."""
    if len(power_w) < 2:
        return 1.0
    top = float(np.max(power_w))
    return 1.0 if top <= 0 else min(1.0, (top - float(np.min(power_w))) / top)
