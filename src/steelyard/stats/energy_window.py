"""Types and helpers that energy counters and power gauges share: readings, their times, and the resulting energy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from steelyard.numbers import short

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

Verdict = Literal["valid", "doubtful", "invalid"]
"""valid: the interval has its stated coverage. doubtful: there is a value, with reasons for doubt. invalid: the sensor
cannot measure this window, and there is no value."""

# Half-widths without gain error, as shares of the energy: above the first the energy is doubtful, above the second
# invalid.
WIDE = 0.10
USELESS = 0.35
# A reading covers the time up to the next one; a gap of more than this many usual gaps is a dropout.
DROPOUT_GAPS = 2.2
# Half-width of a 95 % interval, in standard uncertainties.
COVERAGE_FACTOR = 1.96
# The standard deviation of a value that may be anywhere within a bound.
UNIFORM = 1 / np.sqrt(3)
# Short peaks above the limit are normal: the limit applies to the mean over some milliseconds.
PEAK = 1.5
LIMIT_MARGIN = 1.05
# A window may extend beyond the readings by this many periods or this share of its length.
OUTSIDE_PERIODS = 2.0
MAX_OUTSIDE = 0.01
# Larger numbers of seconds, joules or watts are not readings.
SANE = 1e15


@dataclass(frozen=True)
class Nature:
    """The properties of a sensor; see contracts.energy.Channel."""

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
    """The energy of a window, or why it is unknown."""

    value_j: float | None
    low_j: float | None
    high_j: float | None
    """Interval with at least 95 % coverage; includes the sensor's gain error."""
    verdict: Verdict
    reasons: tuple[str, ...]
    """Why it is doubtful or invalid; empty if valid."""
    samples: int
    """Number of distinct readings used."""
    coverage: float
    """Share of the window that the readings cover."""
    largest_gap_s: float | None
    gain_j: float = 0.0
    """The part of the half-width from the sensor's gain error, which all windows of this sensor share."""

    @property
    def rest_j(self) -> float | None:
        """Return the half-width without the gain error."""
        if self.low_j is None or self.high_j is None:
            return None
        return (self.high_j - self.low_j) / 2 - self.gain_j


@dataclass(frozen=True)
class Readings:
    """Readings in order of time, without invalid numbers and duplicates."""

    time_s: Floats
    value: Floats
    spent_s: Floats


@dataclass(frozen=True)
class Sight:
    """How well the readings cover a window."""

    samples: int = 0
    coverage: float = 0.0
    largest_gap_s: float | None = None


def tidy(time_s: Floats, value: Floats, spent_s: Floats) -> Readings:
    """Sort readings by time, keep the last of several at one time, and drop immediate repeats of a value.

    Some samplers take every reading twice. The second one would blur the time of a new value.
    """
    time_s, value, spent_s = (np.asarray(column, dtype=np.float64) for column in (time_s, value, spent_s))
    # Comparisons with NaN are False, so NaN is dropped too.
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
    """Mark the readings that differ from the previous one; the first is not marked."""
    return np.insert(np.diff(readings.value) != 0, 0, [False])


def update_period_s(nature: Nature, readings: Readings) -> float:
    """Return the update period of the sensor: as stated, or from the times between changes, or between readings.

    A constant value does not mean a slow sensor, so only the shorter times between changes are used.
    """
    if nature.period_s is not None:
        return nature.period_s
    read_s = float(np.median(np.diff(readings.time_s))) if len(readings.time_s) > 1 else 0.0
    between_s = np.diff(readings.time_s[changes(readings)])
    return max(read_s, usual_gap_s(between_s)) if len(between_s) >= 8 else read_s


def usual_gap_s(between_s: Floats) -> float:
    """Return the mean gap, without unusually long ones.

    Readings slightly faster than the sensor give gaps of one and of two readings, whose mean is the update period.
    """
    return float(np.mean(between_s[between_s <= 2.2 * np.quantile(between_s, 0.25)]))


def made_at(readings: Readings, period_s: float) -> tuple[Floats, Floats]:
    """Return when the sensor made each reading: the middle of the possible interval, and its half-width.

    The value was made before the call returned, at most one period before the call began. If it differs from the
    previous reading, it was made after the previous call began.
    """
    began_s = readings.time_s - readings.spent_s
    earliest_s = began_s - period_s
    new = changes(readings)
    earliest_s[1:] = np.where(new[1:], np.maximum(earliest_s[1:], began_s[:-1]), earliest_s[1:])
    earliest_s = np.minimum(earliest_s, readings.time_s)
    return (earliest_s + readings.time_s) / 2, (readings.time_s - earliest_s) / 2


def unknown(reason: str, sight: Sight) -> WindowEnergy:
    """Return an invalid energy with its reason."""
    return WindowEnergy(
        value_j=None,
        low_j=None,
        high_j=None,
        verdict="invalid",
        reasons=(reason,),
        samples=sight.samples,
        coverage=sight.coverage,
        largest_gap_s=sight.largest_gap_s,
    )


def known(
    nature: Nature, window_s: float, value_j: float, sd_j: float, doubts: list[str], sight: Sight, too_short: str
) -> WindowEnergy:
    """Return the energy with its interval; invalid if the interval is too wide or the power is above the limit.

    `sd_j`: the combined standard uncertainty of everything except gain.
    """
    rest_j = COVERAGE_FACTOR * sd_j * (1 + nature.gain)
    # Comparisons with NaN are False, so NaN is rejected too.
    if not (value_j > 0 and rest_j <= USELESS * value_j):
        return unknown(too_short, sight)
    least_w = (value_j - rest_j) * (1 - nature.gain) / window_s
    if nature.limit_w is not None and least_w > LIMIT_MARGIN * nature.limit_w:
        return unknown(
            f"implausible: at least {short(least_w, 6)} W over the whole window, but the power limit is "
            f"{short(nature.limit_w, 6)} W",
            sight,
        )
    if rest_j > WIDE * value_j:
        doubts = [*doubts, f"the uncertainty is {rest_j / value_j:.0%}, without the sensor's gain error"]
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
    """Return 0 for a constant power, up to 1 for one that drops to zero."""
    if len(power_w) < 2:
        return 1.0
    top = float(np.max(power_w))
    return 1.0 if top <= 0 else min(1.0, (top - float(np.min(power_w))) / top)
