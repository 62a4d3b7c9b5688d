"""Energy of a window from readings of a power gauge, by the trapezoidal rule over distinct readings.

A reading is the mean power over the `average_s` before the sensor made it, so it is placed in the middle of that time.
The uncertainty includes: the distribution of power inside an average that an edge of the window cuts; the scatter
between neighbouring readings; gaps; and, for a sensor that measures only part of the time, what it misses. The last
cannot be estimated from readings at fixed intervals, because a load with nearly the same period looks constant. The
energy is then doubtful, unless the sensor is read at random times.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from steelyard.numbers import short
from steelyard.stats.energy_window import (
    DROPOUT_GAPS,
    HIDDEN,
    MAX_OUTSIDE,
    OUTSIDE_PERIODS,
    PEAK,
    Nature,
    Readings,
    Sight,
    WindowEnergy,
    changes,
    known,
    made_at,
    roughness,
    unknown,
    update_period_s,
)
from steelyard.stats.steady import MAD_TO_SD

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

# Share of the time that a sensor may miss if it measures at fixed intervals.
UNSEEN = 0.05
# The mean of this many random samples is nearly normal, whatever the load does.
MIN_LOOKS = 30
# Share of equal readings within one period: one in three for a sensor with its own fixed rhythm, almost none by noise.
OWN_BEAT = 0.05
SCATTER_FACTOR = 2.2
# An edge divides an average at a random point: this is the mean share of the longer part.
EDGE_SHARE = 0.75
# A load in phase with the readings is measured at only one of its levels; the readings do not show it, so add this.
LOCKED = 0.10
# Below this coverage the energy is doubtful.
MIN_COVERAGE = 0.9
LEAST_COVERAGE = 0.6
# A reading above this multiple of the limit is a sensor error, not a peak.
GLITCH = 2.0


@dataclass(frozen=True)
class Track:
    """Distinct readings, each in the middle of its averaging time."""

    at_s: Floats
    blur_s: Floats
    power_w: Floats
    average_s: float
    """As stated; if unknown, the update period."""
    period_s: float
    usual_s: float
    """Usual time between two distinct readings."""

    @property
    def unseen(self) -> float:
        """Return the share of the time that a complete series of readings misses or counts too often."""
        if self.usual_s <= 0:
            return 0.0
        averages = self.average_s / self.usual_s
        part = averages % 1
        # For a load with the sensor's period, an average over 1.4 periods counts one part twice and the rest once.
        return float(part * (1 - part) / averages) if averages > 0 else 1.0

    @property
    def block_s(self) -> float:
        """Return the time resolution."""
        return max(self.average_s, self.usual_s)


@dataclass(frozen=True)
class Pieces:
    """The window cut at the readings in it: `moment_s` begins and ends with its edges."""

    moment_s: Floats
    power_w: Floats
    gap_s: Floats
    """Times between readings; the first and the last reading may be outside the window."""


def gauge_energy(
    nature: Nature, readings: Readings, start_s: float, stop_s: float, *, random_phase: bool
) -> WindowEnergy:
    """Integrate the power over the window with the trapezoidal rule, and compute the uncertainty."""
    # Drop negative readings (except noise around zero) and readings far above the limit.
    good = readings.value >= -nature.resolution - 0.02 * float(np.median(np.abs(readings.value)))
    if nature.limit_w is not None:
        good &= readings.value <= GLITCH * nature.limit_w * (1 + nature.gain) + nature.resolution
    glitches = int(np.count_nonzero(~good))
    readings = Readings(readings.time_s[good], readings.value[good], readings.spent_s[good])
    if not len(readings.time_s):
        return unknown("implausible: every reading is negative or far above the power limit", Sight())
    track = _track(nature, readings)
    window_s = stop_s - start_s
    pieces = _pieces(track, start_s, stop_s)
    outside_s = max(0.0, track.at_s[0] - start_s) + max(0.0, stop_s - track.at_s[-1])
    lost_s = max(float(np.sum(_lost_s(track, pieces))), outside_s)
    gap_s = float(np.max(np.diff(pieces.moment_s)))
    sight = Sight(len(pieces.moment_s) - 2, 1 - min(window_s, lost_s) / window_s, gap_s)
    if sight.coverage < LEAST_COVERAGE:
        reason = f"{sight.samples} readings cover only {sight.coverage:.0%} of the window of {short(window_s, 3)} s"
        return unknown(reason if sight.samples else f"no power reading in the window of {short(window_s, 3)} s", sight)
    if outside_s > max(OUTSIDE_PERIODS * track.block_s, MAX_OUTSIDE * window_s):
        return unknown(
            f"the readings do not cover {short(outside_s, 3)} s of the window of {short(window_s, 3)} s", sight
        )
    value_j = float(np.sum(np.diff(pieces.moment_s) * (pieces.power_w[1:] + pieces.power_w[:-1]) / 2))
    own_beat = random_phase and _has_own_beat(nature, readings, track.period_s)
    doubts = _doubts(nature, track, sight, random_phase=random_phase and not own_beat)
    if glitches:
        doubts.append(f"implausible: ignored {glitches} readings that are negative or far above the power limit")
    rest_j = _rest_j(nature, track, pieces, (start_s, stop_s), random_phase=random_phase and not own_beat)
    too_short = _too_short(track, window_s, rest_j / value_j if value_j > 0 else np.inf)
    return known(nature, window_s, value_j, rest_j, doubts, sight, too_short)


# -- readings -------------------------------------------------------------------------------------------------


def _track(nature: Nature, readings: Readings) -> Track:
    """Return one point per distinct value of the sensor, however often it was read."""
    period_s = update_period_s(nature, readings)
    made_s, blur_s = made_at(readings, period_s)
    kept = _distinct(readings, period_s)
    average_s = nature.seen_s if nature.seen_s is not None else nature.average_s
    at_s = np.maximum.accumulate(made_s[kept])
    read_s = float(np.median(np.diff(readings.time_s))) if len(at_s) > 1 else period_s
    usual_s = period_s if read_s <= 1.05 * period_s else read_s
    if average_s is None:
        average_s, unknown_s = usual_s, usual_s / 2
    else:
        unknown_s = 0.0
    return Track(at_s - average_s / 2, blur_s[kept] + unknown_s, readings.value[kept], average_s, period_s, usual_s)


def _distinct(readings: Readings, period_s: float) -> NDArray[np.bool_]:
    """Mark readings with a new value, and equal ones that come at least one update period later."""
    new = changes(readings)
    new[0] = True
    if period_s <= 0:
        return np.ones(len(new), dtype=np.bool_)
    run = np.cumsum(new) - 1
    since_s = readings.time_s - readings.time_s[new][run]
    number = np.floor(since_s / (0.95 * period_s))
    distinct: NDArray[np.bool_] = new | (np.diff(number, prepend=-1) != 0)
    return distinct


def _has_own_beat(nature: Nature, readings: Readings, period_s: float) -> bool:
    """Return whether the sensor updates in its own fixed rhythm, so that reading it at random times does not help.

    Two readings in one update period are then exactly equal, which noise makes unlikely otherwise.
    """
    change_w = np.abs(np.diff(readings.value))[np.diff(readings.time_s) < 1.05 * period_s]
    moved = change_w[change_w > 0]
    if len(moved) < MIN_LOOKS or np.median(moved) < 20 * nature.resolution:
        return False
    if len(np.unique(readings.value)) < len(readings.value) / 2:  # a load of few levels, without noise
        return False
    return bool(len(change_w) - len(moved) > OWN_BEAT * len(change_w))


def _pieces(track: Track, start_s: float, stop_s: float) -> Pieces:
    inside = (track.at_s > start_s) & (track.at_s < stop_s)
    edges_w = np.interp([start_s, stop_s], track.at_s, track.power_w)
    moment_s = np.concatenate([[start_s], track.at_s[inside], [stop_s]])
    power_w = np.concatenate([edges_w[:1], track.power_w[inside], edges_w[1:]])
    first = int(np.searchsorted(track.at_s, start_s, "right"))
    last = int(np.searchsorted(track.at_s, stop_s, "left"))
    begin_s = track.at_s[first - 1] if first > 0 else start_s - track.usual_s
    end_s = track.at_s[last] if last < len(track.at_s) else stop_s + track.usual_s
    gap_s = np.diff(np.concatenate([[begin_s], track.at_s[first:last], [end_s]]))
    return Pieces(moment_s, power_w, gap_s)


# -- coverage and doubts --------------------------------------------------------------------------------------


def _lost_s(track: Track, pieces: Pieces) -> Floats:
    """Return for each piece of the window the time without readings because of a dropout."""
    usual_s = max(track.usual_s, track.average_s)
    inside_s = np.diff(pieces.moment_s)
    return np.where(pieces.gap_s > DROPOUT_GAPS * usual_s, np.minimum(inside_s, pieces.gap_s - usual_s), 0.0)


def _too_short(track: Track, window_s: float, width: float) -> str:
    if window_s < 10 * track.block_s:
        return (
            f"the window of {short(window_s, 3)} s is too short for a power sensor with a reading every "
            f"{short(track.usual_s, 3)} s, averaged over {short(track.average_s, 3)} s"
        )
    return f"scatter and gaps of the readings are too large: the uncertainty would be {width:.0%}"


def _doubts(nature: Nature, track: Track, sight: Sight, *, random_phase: bool) -> list[str]:
    doubts = []
    part_time = track.unseen > UNSEEN
    if random_phase and part_time and sight.samples < MIN_LOOKS:
        doubts.append(f"only {sight.samples} readings at random times; at least {MIN_LOOKS} are needed")
    if not random_phase and nature.average_s is None and nature.seen_s is None:
        doubts.append(
            "the averaging time of this power sensor is unknown: a load with the period of its readings would look "
            "constant"
        )
    elif not random_phase and part_time and track.average_s > track.usual_s:
        doubts.append(
            f"a reading every {short(track.usual_s, 3)} s is the mean over {short(track.average_s / track.usual_s, 3)} "
            "periods: it is wrong for a load with that period"
        )
    elif not random_phase and part_time and track.average_s < 0.01 * track.usual_s:
        doubts.append(
            f"instantaneous readings every {short(track.usual_s, 3)} s: a load with that period would look constant"
        )
    elif not random_phase and part_time:
        doubts.append(
            f"the power sensor measures {1 - track.unseen:.0%} of the time, every {short(track.usual_s, 3)} s: a load "
            "with that period would look constant"
        )
    if sight.coverage < MIN_COVERAGE:
        doubts.append(f"the readings cover {sight.coverage:.0%} of the window")
    return doubts


# -- uncertainty ----------------------------------------------------------------------------------------------


def _rest_j(nature: Nature, track: Track, pieces: Pieces, edges_s: tuple[float, float], *, random_phase: bool) -> float:
    window_s = edges_s[1] - edges_s[0]
    edge_j = sum(_edge_j(track, edge_s) for edge_s in edges_s)
    scatter_j = _scatter_j(track, pieces)
    cap_w = nature.limit_w or PEAK * float(np.max(pieces.power_w))
    middle_w = (pieces.power_w[1:] + pieces.power_w[:-1]) / 2
    gaps_j = HIDDEN * float(np.sum(_lost_s(track, pieces) * np.maximum(middle_w, cap_w - middle_w)))
    systematic_j = nature.resolution * window_s
    if not random_phase:
        systematic_j += _unseen_j(nature, track, pieces, window_s)
    return float(edge_j + np.hypot(scatter_j, gaps_j) + systematic_j)


def _edge_j(track: Track, edge_s: float) -> float:
    """Return the uncertainty from the average that an edge cuts; it is smaller if the power is steady there."""
    reach_s = 2 * track.block_s + track.usual_s
    near = track.power_w[np.abs(track.at_s - edge_s) <= reach_s]
    if len(near) < 2:
        nearest = np.argsort(np.abs(track.at_s - edge_s), kind="stable")[:3]
        near = track.power_w[nearest]
    top_w = float(np.max(near))
    spread_w = top_w - float(np.min(near))
    blur_s = float(np.median(track.blur_s))
    outside_s = max(0.0, track.at_s[0] - edge_s, edge_s - track.at_s[-1])
    rough = roughness(near)
    cut_j = (HIDDEN + (1 - HIDDEN) * rough) * EDGE_SHARE * top_w * track.block_s
    return float(cut_j + spread_w * blur_s + top_w * outside_s)


def _scatter_j(track: Track, pieces: Pieces) -> float:
    """Return the uncertainty from differences between neighbours: noise, and changes between readings.

    For one random reading per stratum this is the successive-difference estimate of the standard error of the mean.
    """
    inside_w = pieces.power_w[1:-1]
    if len(inside_w) < 2:
        return float(track.block_s * np.ptp(pieces.power_w))
    step_s = np.diff(pieces.moment_s)
    weight_s = (step_s[1:] + step_s[:-1]) / 2
    change_w = np.diff(inside_w)
    variance = float(np.mean(change_w**2)) / 2
    blur_j = 0.0
    if track.unseen <= UNSEEN and track.usual_s <= 1.05 * track.average_s:
        # Averages without gaps miss nothing. Their noise is the usual difference between neighbours; a few large
        # changes come from the load, and matter only because their time is uncertain.
        variance = min(variance, float(np.square(MAD_TO_SD * np.median(np.abs(change_w)))) / 2)
        blur_j = float(np.median(track.blur_s) * np.sqrt(np.sum(change_w**2) / 3))
    # Averages that overlap in time share part of their scatter.
    shared = max(1.0, track.average_s / track.usual_s) if track.usual_s > 0 else 1.0
    return SCATTER_FACTOR * float(np.hypot(np.sqrt(variance * np.sum(weight_s**2) * shared), blur_j))


def _unseen_j(nature: Nature, track: Track, pieces: Pieces, window_s: float) -> float:
    """Return the uncertainty from a load with nearly the period of the readings, which shows as few, slow swings."""
    unseen = 1.0 if nature.average_s is None and nature.seen_s is None else track.unseen
    if unseen <= 0:
        return 0.0
    power_w = pieces.power_w
    above = power_w > (np.max(power_w) + np.min(power_w)) / 2
    swings = int(np.count_nonzero(np.diff(above)))
    swing_w = float(np.ptp(power_w)) / (2 * (swings + 1))
    mean_w = float(np.mean(power_w))
    if unseen > UNSEEN:
        return unseen * window_s * (swing_w + LOCKED * mean_w)
    # Little is missed, so the worst case is small enough to include without a doubt.
    return unseen * window_s * (swing_w + HIDDEN * max(mean_w, (nature.limit_w or float(np.max(power_w))) - mean_w))
