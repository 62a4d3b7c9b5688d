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

from steelyard.estimate.student import MAD_TO_SD
from steelyard.numbers import short
from steelyard.stats.energy_window import (
    COVERAGE_FACTOR,
    DROPOUT_GAPS,
    MAX_OUTSIDE,
    OUTSIDE_PERIODS,
    PEAK,
    UNIFORM,
    Nature,
    Readings,
    Sight,
    WindowEnergy,
    changes,
    known,
    made_at,
    unknown,
    update_period_s,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

# Share of the time that a sensor may miss if it measures at fixed intervals.
UNSEEN = 0.05
# The mean of this many random samples is nearly normal, whatever the load does.
MIN_LOOKS = 30
# Share of equal readings within one period: one in three for a sensor with its own fixed rhythm, almost none by noise.
OWN_BEAT = 0.05
# Standard uncertainty from rounding, in steps: some sensors round to the nearest step, others cut off.
ROUNDING = np.sqrt((1 / 12 + 1 / 3) / 2)
# Standard uncertainties, chosen on the loads of benchmarks/lib/energy_calibration.py. Of an average that an edge of the
# window divides: as a share of its energy if the power seems steady, and of the difference between the highest and the
# lowest power beside the edge.
HIDDEN = 0.02
VISIBLE = 0.07
# Of a gap: as a share of the energy that may be there.
IN_GAP = 0.1
# Of a single reading: as a share of it. Larger differences between averages without gaps come from the load.
NOISE = 0.02
# Of slow swings, which may be a load with nearly the period of the readings: as a share of the swing.
SWING = 0.03
# Of a load in phase with the readings, which do not show it: as a share of what the sensor does not see.
LOCKED = 0.0005
# A window of fewer readings or averages than this has no energy.
FEWEST_BLOCKS = 2
# In a window of fewer readings or averages than this, what one of them hides may exceed the interval.
FEW_BLOCKS = 10
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
    stated: bool
    """Whether the averaging time is known."""
    period_s: float
    usual_s: float
    """Usual time between two distinct readings."""

    @property
    def unseen(self) -> float:
        """Return the share of the time that a complete series of readings misses or counts too often."""
        if not self.stated:
            return 1.0
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
    if sight.coverage < LEAST_COVERAGE or not sight.samples:
        reason = f"{sight.samples} readings cover only {sight.coverage:.0%} of the window of {short(window_s, 3)} s"
        return unknown(reason if sight.samples else f"no power reading in the window of {short(window_s, 3)} s", sight)
    if window_s < FEWEST_BLOCKS * track.block_s:
        return unknown(_too_short(track, window_s, np.inf), sight)
    if outside_s > max(OUTSIDE_PERIODS * track.block_s, MAX_OUTSIDE * window_s):
        return unknown(
            f"the readings do not cover {short(outside_s, 3)} s of the window of {short(window_s, 3)} s", sight
        )
    value_j = float(np.sum(np.diff(pieces.moment_s) * (pieces.power_w[1:] + pieces.power_w[:-1]) / 2))
    own_beat = random_phase and _has_own_beat(nature, readings, track.period_s)
    doubts = _doubts(nature, track, sight, random_phase=random_phase and not own_beat)
    if window_s < FEW_BLOCKS * track.block_s:
        doubts.append(
            f"the window of {short(window_s, 3)} s is short for readings over {short(track.block_s, 3)} s: the power "
            "inside one of them is unknown"
        )
    if glitches:
        doubts.append(f"implausible: ignored {glitches} readings that are negative or far above the power limit")
    sd_j = _sd_j(nature, track, pieces, (start_s, stop_s), random_phase=random_phase and not own_beat)
    too_short = _too_short(track, window_s, COVERAGE_FACTOR * sd_j / value_j if value_j > 0 else np.inf)
    return known(nature, window_s, value_j, sd_j, doubts, sight, too_short)


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
    stated = average_s is not None
    if average_s is None:
        average_s, blur_s = usual_s, blur_s + usual_s / 2
    return Track(at_s - average_s / 2, blur_s[kept], readings.value[kept], average_s, stated, period_s, usual_s)


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
    if window_s < FEW_BLOCKS * track.block_s:
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


def _sd_j(nature: Nature, track: Track, pieces: Pieces, edges_s: tuple[float, float], *, random_phase: bool) -> float:
    """Return the standard uncertainty of the integral; its parts are independent."""
    window_s = edges_s[1] - edges_s[0]
    parts_j = [_edge_j(track, edge_s) for edge_s in edges_s]
    parts_j.append(_scatter_j(track, pieces))
    cap_w = nature.limit_w or PEAK * float(np.max(pieces.power_w))
    middle_w = (pieces.power_w[1:] + pieces.power_w[:-1]) / 2
    lost_j = _lost_s(track, pieces) * np.maximum(middle_w, cap_w - middle_w)
    parts_j.append(IN_GAP * float(np.linalg.norm(lost_j)))
    parts_j.append(ROUNDING * nature.resolution * window_s)
    # A time by which all readings are late adds at one edge what it takes off at the other.
    parts_j.append(UNIFORM * float(np.median(track.blur_s)) * abs(float(pieces.power_w[-1] - pieces.power_w[0])))
    if not random_phase:
        parts_j.append(_unseen_j(track, pieces, window_s))
    return float(np.linalg.norm(parts_j))


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
    cut_j = np.hypot(HIDDEN * top_w, VISIBLE * spread_w) * track.block_s
    return float(np.linalg.norm([cut_j, UNIFORM * spread_w * blur_s, UNIFORM * top_w * outside_s]))


def _scatter_j(track: Track, pieces: Pieces) -> float:
    """Return the uncertainty from differences between neighbours: noise, and changes between readings.

    For one random reading per stratum this is the successive-difference estimate of the standard error of the mean.
    """
    inside_w = pieces.power_w[1:-1]
    if len(inside_w) < 2:
        return float(UNIFORM * track.block_s * np.ptp(pieces.power_w))
    step_s = np.diff(pieces.moment_s)
    weight_s = (step_s[1:] + step_s[:-1]) / 2
    change_w = np.diff(inside_w)
    unfollowed = _unfollowed(inside_w)
    # The sensor's noise is the usual difference between neighbours; a few large changes come from the load.
    noise = min(unfollowed, float(np.square(MAD_TO_SD * np.median(np.abs(change_w)))) / 2)
    noise = min(noise, float(np.square(NOISE * np.mean(inside_w))))
    variance = track.unseen * unfollowed + (1 - track.unseen) * noise
    blur_j = 0.0
    if track.unseen <= UNSEEN:
        # Averages without gaps miss nothing: changes of the load matter only because their time is uncertain.
        # Moving one reading in time moves the energy by half of the change between its two neighbours.
        blur_j = UNIFORM * float(np.median(track.blur_s) * np.linalg.norm(inside_w[2:] - inside_w[:-2])) / 2
    return float(np.hypot(np.sqrt(variance * np.sum(weight_s**2)), blur_j))


def _unfollowed(power_w: Floats) -> float:
    """Return the variance of what the trapezoidal rule does not follow between two readings, in square watts.

    The square difference of two readings that are n steps apart is 2 a + b n + c n^2 for a sum of noise, a random walk
    and a ramp. Of these the rule misses all of the noise, a twelfth of the walk, and nothing of the ramp.
    """
    once, twice, thrice = (
        float(np.mean((power_w[n:] - power_w[:-n]) ** 2)) if len(power_w) > n else 0.0 for n in (1, 2, 3)
    )
    if twice <= once:
        return once / 2
    ramp = min(max(0.0, (thrice - 2 * twice + once) / 2), (twice - once) / 3)
    walk = twice - once - 3 * ramp
    return max(0.0, once - walk - ramp) / 2 + walk / 12


def _unseen_j(track: Track, pieces: Pieces, window_s: float) -> float:
    """Return the uncertainty from a load with nearly the period of the readings, which shows as few, slow swings."""
    power_w = pieces.power_w
    above = power_w > (np.max(power_w) + np.min(power_w)) / 2
    swings = int(np.count_nonzero(np.diff(above)))
    swing_w = float(np.ptp(power_w)) / (2 * (swings + 1))
    return track.unseen * window_s * float(np.hypot(SWING * swing_w, LOCKED * np.mean(power_w)))
