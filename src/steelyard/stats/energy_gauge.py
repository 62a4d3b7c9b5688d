"""Energy of a window from readings of a power gauge: trapezoid over distinct readings, interpolated at the edges.

Knows averaging windows, update periods, gaps and what is not seen between readings; must not know counters or runs.

A reading is the mean power over `average_s` before the sensor made it, so it is put in the middle of that time. What is
not known, and goes into the interval: how the power is spread inside the average that an edge of the window cuts;
the scatter between neighbouring readings; what went on in gaps; and, of a sensor that looks only part of the time,
what it never sees. The last cannot be told from readings at a fixed beat: a load with nearly the same beat looks
constant. Then the number is doubtful, unless the sensor looks at random moments.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

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

# Share of the time that a sensor may leave unseen at a fixed beat.
UNSEEN = 0.05
# So many random looks make their mean nearly normal, whatever the load does.
MIN_LOOKS = 30
# Of two readings in one period that are equal: one in three for a sensor with its own beat, hardly any by noise.
OWN_BEAT = 0.05
SCATTER_FACTOR = 2.2
# An edge divides an average at random: this is the mean of the longer part.
EDGE_SHARE = 0.75
# A load locked to the beat of the readings is seen at one of its levels only; nothing shows it, so some is added.
LOCKED = 0.10
# More than this share of the window without readings is said.
MIN_COVERAGE = 0.9
LEAST_COVERAGE = 0.6
# A reading so far above the limit is not a peak but an error of the sensor.
GLITCH = 2.0


@dataclass(frozen=True)
class Track:
    """Distinct readings, each in the middle of the time that it is the mean of."""

    at_s: Floats
    blur_s: Floats
    power_w: Floats
    average_s: float
    """As stated; the update period where it is unknown."""
    period_s: float
    usual_s: float
    """Usual time between two distinct readings."""

    @property
    def unseen(self) -> float:
        """Share of the time that readings leave out, or count too often, although none is missing."""
        if self.usual_s <= 0:
            return 0.0
        averages = self.average_s / self.usual_s
        part = averages % 1
        # Of a load with the sensor's beat, an average over 1.4 beats sees one part twice and the rest once.
        return float(part * (1 - part) / averages) if averages > 0 else 1.0

    @property
    def block_s(self) -> float:
        """The shortest time that is resolved."""
        return max(self.average_s, self.usual_s)


@dataclass(frozen=True)
class Pieces:
    """The window cut at the readings in it: `moment_s` begins and ends with its edges."""

    moment_s: Floats
    power_w: Floats
    gap_s: Floats
    """Between readings, of which the first and the last of the window may lie outside."""


def gauge_energy(
    nature: Nature, readings: Readings, start_s: float, stop_s: float, *, random_phase: bool
) -> WindowEnergy:
    """Trapezoid over the window, and everything that may be beside it."""
    # Without negative power, and without power far above the limit; a little below zero is noise around it.
    good = readings.value >= -nature.resolution - 0.02 * float(np.median(np.abs(readings.value)))
    if nature.limit_w is not None:
        good &= readings.value <= GLITCH * nature.limit_w * (1 + nature.gain) + nature.resolution
    glitches = int(np.count_nonzero(~good))
    readings = Readings(readings.time_s[good], readings.value[good], readings.spent_s[good])
    if not len(readings.time_s):
        return unknown("implausible: every reading lies outside 0 and what the domain may draw", Sight())
    track = _track(nature, readings)
    window_s = stop_s - start_s
    pieces = _pieces(track, start_s, stop_s)
    outside_s = max(0.0, track.at_s[0] - start_s) + max(0.0, stop_s - track.at_s[-1])
    lost_s = max(float(np.sum(_lost_s(track, pieces))), outside_s)
    gap_s = float(np.max(np.diff(pieces.moment_s)))
    sight = Sight(len(pieces.moment_s) - 2, 1 - min(window_s, lost_s) / window_s, gap_s)
    if sight.coverage < LEAST_COVERAGE:
        said = f"readings speak for {sight.coverage:.0%} of the window of {window_s:.3g} s, {sight.samples} in all"
        return unknown(said if sight.samples else f"no reading of the gauge in the window of {window_s:.3g} s", sight)
    if outside_s > max(OUTSIDE_PERIODS * track.block_s, MAX_OUTSIDE * window_s):
        return unknown(f"the readings leave out {outside_s:.3g} s of the window of {window_s:.3g} s", sight)
    value_j = float(np.sum(np.diff(pieces.moment_s) * (pieces.power_w[1:] + pieces.power_w[:-1]) / 2))
    own_beat = random_phase and _has_own_beat(nature, readings, track.period_s)
    doubts = _doubts(nature, track, sight, random_phase=random_phase and not own_beat)
    if glitches:
        doubts.append(f"implausible: {glitches} readings outside 0 and what the domain may draw were left out")
    rest_j = _rest_j(nature, track, pieces, (start_s, stop_s), random_phase=random_phase and not own_beat)
    too_short = _too_short(track, window_s, rest_j / value_j if value_j > 0 else np.inf)
    return known(nature, window_s, value_j, rest_j, doubts, sight, too_short)


# -- readings -------------------------------------------------------------------------------------------------


def _track(nature: Nature, readings: Readings) -> Track:
    """One point a reading of the sensor, however often that was read."""
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
    """Readings with a new value, and such as come so late after it that the sensor must have made them anew."""
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
    """Whether the sensor makes values at its own beat, so that reading it at random moments does not help.

    Then two readings in one of its periods are equal to the last digit, which noise hardly ever allows otherwise.
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


# -- what was seen --------------------------------------------------------------------------------------------


def _lost_s(track: Track, pieces: Pieces) -> Floats:
    """Of each piece of the window: the time of a dropout, in which a reading is due and none is there."""
    usual_s = max(track.usual_s, track.average_s)
    inside_s = np.diff(pieces.moment_s)
    return np.where(pieces.gap_s > DROPOUT_GAPS * usual_s, np.minimum(inside_s, pieces.gap_s - usual_s), 0.0)


def _too_short(track: Track, window_s: float, width: float) -> str:
    if window_s < 10 * track.block_s:
        return (
            f"the window of {window_s:.3g} s is too short for a gauge whose readings are {track.usual_s:.3g} s apart "
            f"and the mean over {track.average_s:.3g} s"
        )
    return f"the readings scatter and leave out so much that the energy would be known to {width:.0%} only"


def _doubts(nature: Nature, track: Track, sight: Sight, *, random_phase: bool) -> list[str]:
    doubts = []
    part_time = track.unseen > UNSEEN
    if random_phase and part_time and sight.samples < MIN_LOOKS:
        doubts.append(f"{sight.samples} looks at random moments are few: {MIN_LOOKS} and more tell the mean")
    if not random_phase and nature.average_s is None and nature.seen_s is None:
        doubts.append(
            "how long this gauge averages is not known: a load with the beat of its readings would look steady"
        )
    elif not random_phase and part_time and track.average_s > track.usual_s:
        doubts.append(
            f"a reading is the mean over {track.average_s / track.usual_s:.3g} beats of {track.usual_s:.3g} s: of a "
            "load with that beat it counts a part too often"
        )
    elif not random_phase and part_time and track.average_s < 0.01 * track.usual_s:
        doubts.append(
            f"readings are of an instant, always at the same beat of {track.usual_s:.3g} s: a load with that beat "
            "would look steady"
        )
    elif not random_phase and part_time:
        doubts.append(
            f"the gauge sees {1 - track.unseen:.0%} of the time, always at the same beat of {track.usual_s:.3g} s: "
            "a load with that beat would look steady"
        )
    if sight.coverage < MIN_COVERAGE:
        doubts.append(f"readings speak for {sight.coverage:.0%} of the window")
    return doubts


# -- what it may be beside ------------------------------------------------------------------------------------


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
    """The average that an edge cuts may lie on one side of it; the less, the steadier the power is around it."""
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
    """From the differences between neighbours: noise, and what happens between readings.

    For one look at random in each stratum this is the successive-difference estimate of the error of the mean.
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
        # Averages without a gap lose nothing of what happens between them. Their noise is what most neighbours differ
        # by; a few large changes are the load's, and harm only in as far as their time is not known.
        variance = min(variance, float(np.square(MAD_TO_SD * np.median(np.abs(change_w)))) / 2)
        blur_j = float(np.median(track.blur_s) * np.sqrt(np.sum(change_w**2) / 3))
    # Readings that overlap in time hide the scatter that they have in common.
    shared = max(1.0, track.average_s / track.usual_s) if track.usual_s > 0 else 1.0
    return SCATTER_FACTOR * float(np.hypot(np.sqrt(variance * np.sum(weight_s**2) * shared), blur_j))


def _unseen_j(nature: Nature, track: Track, pieces: Pieces, window_s: float) -> float:
    """What a load with nearly the beat of the readings can hide: its slow beat shows as few, long swings."""
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
    # So little is unseen that the worst can be borne, and the verdict need not warn of it.
    return unseen * window_s * (swing_w + HIDDEN * max(mean_w, (nature.limit_w or float(np.max(power_w))) - mean_w))
