"""Energy of a window from the readings of an energy counter.

A tick is a new value of the counter. It appeared between the previous call and the end of this one. The energy between
two ticks is exact up to the resolution. Only the two intervals that contain the edges of the window must be divided:
in proportion to time, with an uncertainty for the unknown distribution.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from steelyard.numbers import short
from steelyard.stats.energy_window import (
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
    roughness,
    unknown,
    update_period_s,
    usual_gap_s,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

# A drop that would need this many times the usual power to be a wrap is a reset.
RESET_FACTOR = 10.0
# If the power limit is unknown, the peak power is assumed to be at most this many times the observed power.
UNSEEN_PEAK = 3.0
# A counter without a tick for this many periods is frozen.
FROZEN_PERIODS = 5.0
COARSE_PATIENCE = 4.0
STILL_SHARE = 0.05
# With this many ticks the energy should be accurate to 1 %; if the power jumps at an edge, report a doubt.
MANY_TICKS = 100
UNEVEN = 0.008
# Share of the time that the sensor behind a counter may miss.
UNSEEN = 0.05
# Standard deviation of the energy before an edge in the middle between two ticks, chosen on the loads of
# benchmarks/lib/energy_calibration.py: as a share of the energy between the ticks if the power seems steady, and as a
# share of the difference between the highest and the lowest power of the neighbouring ticks.
HIDDEN = 0.025
VISIBLE = 0.2
# Ticks on each side of an edge that are used to check whether the power is steady there.
NEIGHBOURS = 3


@dataclass(frozen=True)
class Ticks:
    """New values of a counter, unwrapped, in order of time."""

    at_s: Floats
    blur_s: Floats
    """Uncertainty of `at_s` in either direction."""
    count_j: Floats
    fault: NDArray[np.bool_]
    """Whether the energy since the previous tick is unknown."""
    period_s: float
    peak_w: float
    patience_s: float
    """Without a new value for longer than this, the counter is frozen."""
    resolution_j: float = 0.0
    read_s: float = 0.0
    """Usual time between two readings."""
    update_s: float = 0.0
    """Update period of the sensor; with a coarse resolution the value may change less often."""

    def power_w(self, first: int, last: int) -> Floats:
        """Return the mean power between consecutive ticks from `first` to `last`, with times rounded to periods."""
        first, last = max(0, first), min(len(self.at_s) - 1, last)
        between_s = np.diff(self.at_s[first : last + 1])
        if self.period_s > 0:
            between_s = np.maximum(1.0, np.round(between_s / self.period_s)) * self.period_s
        return np.diff(self.count_j[first : last + 1]) / between_s

    def unsteady(self, first: int, last: int) -> float:
        """Return 0 if a constant power explains the ticks `first` to `last` within the uncertainty of their times.

        Otherwise return the relative difference between the highest and the lowest power that they prove. Late
        readings, as on a busy machine, make neighbouring powers differ, but prove nothing.
        """
        first, last = max(0, first), min(len(self.at_s) - 1, last)
        at_s, blur_s, count_j = (column[first : last + 1] for column in (self.at_s, self.blur_s, self.count_j))
        early, late = np.triu_indices(len(at_s), 1)
        if not len(early):
            return 1.0
        between_s, open_s = at_s[late] - at_s[early], blur_s[late] + blur_s[early]
        energy_j = count_j[late] - count_j[early]
        least_w = np.maximum(energy_j - self.resolution_j, 0.0) / np.maximum(between_s + open_s, 1e-12)
        most_w = (energy_j + self.resolution_j) / np.maximum(between_s - open_s, 1e-12)
        proven_w = float(np.max(least_w))
        return max(0.0, 1 - float(np.min(most_w)) / proven_w) if proven_w > 0 else 0.0


@dataclass(frozen=True)
class Edge:
    """The count at an edge of the window."""

    count_j: float
    sd_j: float
    """Standard uncertainty of the count."""
    uneven_j: float
    """Energy that may be on either side of the edge because the power changes there."""
    outside_s: float = 0.0
    """Distance from the edge to the nearest tick if it is outside all ticks; otherwise 0."""


def counter_energy(nature: Nature, readings: Readings, start_s: float, stop_s: float) -> WindowEnergy:
    """Return the difference of the counts at the two edges of the window."""
    new = changes(readings)
    new[0] = True
    ticks, why = _ticks(nature, readings, new)
    period_s, window_s = ticks.period_s, stop_s - start_s
    inside_s = ticks.at_s[(ticks.at_s > start_s) & (ticks.at_s < stop_s)]
    seen_s = min(stop_s, float(ticks.at_s[-1])) - max(start_s, float(ticks.at_s[0]))
    gap_s = float(np.max(np.diff(np.concatenate([[start_s], inside_s, [stop_s]]))))
    sight = Sight(len(inside_s), max(0.0, seen_s) / window_s, gap_s)
    if not sight.samples and (why_not := _no_tick(nature, ticks, readings, start_s, stop_s)):
        return unknown(why_not, sight)
    stopped_s = float(readings.time_s[-1] - ticks.at_s[-1])
    if ticks.at_s[-1] < stop_s + 2 * period_s and stopped_s > ticks.patience_s:
        return unknown(f"frozen: the counter has no new value in its last {short(stopped_s, 3)} s of readings", sight)
    first = max(0, int(np.searchsorted(ticks.at_s, start_s, "right")) - 1)
    last = min(len(ticks.at_s) - 1, int(np.searchsorted(ticks.at_s, stop_s, "left")))
    faults = np.flatnonzero(ticks.fault[first + 1 : last + 1])
    if len(faults):
        return unknown(why[first + 1 + int(faults[0])], sight)
    edges = [_edge(ticks, moment_s) for moment_s in (start_s, stop_s)]
    value_j = edges[1].count_j - edges[0].count_j
    outside_s = sum(edge.outside_s for edge in edges)
    if outside_s > max(OUTSIDE_PERIODS * period_s, MAX_OUTSIDE * window_s):
        return unknown(
            f"the readings do not cover {short(outside_s, 3)} s of the window of {short(window_s, 3)} s", sight
        )
    doubts = _doubts(ticks, readings, edges, start_s, stop_s)
    if nature.seen_s is not None and nature.seen_s < (1 - UNSEEN) * (nature.period_s or period_s):
        doubts.append(
            f"the counter measures only {nature.seen_s / (nature.period_s or period_s):.0%} of the time, in a fixed "
            "rhythm: it is wrong for a load with the same rhythm"
        )
    # Two edges in two different ticks: their errors are independent.
    sd_j = math.hypot(*(edge.sd_j for edge in edges))
    too_short = (
        f"the window of {short(window_s, 3)} s is too short for a counter with a new value every {short(period_s, 3)} s"
    )
    return known(nature, window_s, value_j, sd_j, doubts, sight, too_short)


def _doubts(ticks: Ticks, readings: Readings, edges: list[Edge], start_s: float, stop_s: float) -> list[str]:
    doubts = []
    value_j = edges[1].count_j - edges[0].count_j
    outside_s = sum(edge.outside_s for edge in edges)
    if outside_s > OUTSIDE_PERIODS * ticks.period_s:
        doubts.append(f"no new counter value for {short(outside_s, 3)} s at the edges of the window")
    uneven_j = sum(edge.uneven_j for edge in edges)
    many = np.count_nonzero((ticks.at_s > start_s) & (ticks.at_s < stop_s)) >= MANY_TICKS
    if many and uneven_j > UNEVEN * value_j:
        doubts.append(
            f"the power changes at an edge of the window, between two counter values: {uneven_j / value_j:.1%} of "
            "the energy may be on either side"
        )
    still_s = _still_s(ticks, readings, start_s, stop_s)
    if still_s > ticks.patience_s:
        doubts.append(f"the counter was frozen for {short(still_s, 3)} s")
    return doubts


def _ticks(nature: Nature, readings: Readings, new: NDArray[np.bool_]) -> tuple[Ticks, list[str]]:
    """Return the ticks, and for each a reason if the energy since the previous tick is unknown, otherwise empty."""
    period_s = update_s = update_period_s(nature, readings)
    at_s, blur_s = (column[new] for column in made_at(readings, period_s))
    at_s = np.maximum.accumulate(at_s)
    between_s = np.diff(readings.time_s[new][1:])
    if len(between_s) > 1:
        # The value may change less often than the sensor updates.
        period_s = max(period_s, usual_gap_s(between_s))
    rise_j = np.diff(readings.value[new], prepend=readings.value[0])
    # The energy of a whole period can appear between two readings.
    since_s = np.diff(readings.time_s, prepend=readings.time_s[0])[new] + readings.spent_s[new] + period_s
    fell = rise_j < 0
    # The highest power of the run, without the rare jumps.
    power_w = rise_j[1:] / np.maximum(np.diff(at_s), max(period_s, 1e-9))
    power_w = power_w[power_w > 0]
    usual_w = float(min(np.max(power_w), 5 * np.quantile(power_w, 0.9))) if len(power_w) else 0.0
    peak_w = PEAK * nature.limit_w * (1 + nature.gain) if nature.limit_w else UNSEEN_PEAK * usual_w
    if nature.wrap is not None:
        rise_j = np.where(fell, rise_j + nature.wrap, rise_j)
    most_w = 2 * peak_w if nature.limit_w else RESET_FACTOR * usual_w
    reasons = _faults(nature, readings.value[new], rise_j, fell, since_s, most_w)
    if nature.wrap is not None:
        for n in np.flatnonzero(peak_w * since_s > nature.wrap + rise_j):
            reasons[n] = f"the counter may have wrapped more than once in {short(since_s[n], 3)} s without a reading"
    fault = np.array([bool(reason) for reason in reasons])
    count_j = np.cumsum(np.where(fault, 0.0, rise_j))
    # A counter with a coarse resolution ticks less often at low power.
    coarse = len(rise_j) > 1 and float(np.median(rise_j[1:])) < 3 * nature.resolution
    patience_s = FROZEN_PERIODS * period_s * (COARSE_PATIENCE if coarse else 1.0)
    read_s = float(np.median(np.diff(readings.time_s))) if len(readings.time_s) > 1 else 0.0
    return Ticks(
        at_s, blur_s, count_j, fault, period_s, peak_w, patience_s, nature.resolution, read_s, update_s
    ), reasons


def _faults(
    nature: Nature, value: Floats, rise_j: Floats, fell: NDArray[np.bool_], since_s: Floats, most_w: float
) -> list[str]:
    """Return for each tick why the energy since the previous one is unknown; empty if it is known."""
    reasons = [""] * len(rise_j)
    for n in np.flatnonzero(fell | (rise_j > most_w * since_s + nature.resolution)):
        if fell[n] and nature.wrap is None:
            reasons[n] = (
                f"the counter dropped from {short(value[n - 1], 6)} to {short(value[n], 6)} J: it was reset, or it "
                "wraps at an unknown value"
            )
        elif rise_j[n] > most_w * since_s[n] + nature.resolution:
            reasons[n] = f"implausible: the counter jumped from {short(value[n - 1], 6)} to {short(value[n], 6)} J"
    return reasons


def _edge(ticks: Ticks, moment_s: float) -> Edge:
    """Return the count at a moment between two ticks, in proportion to time, with its uncertainty."""
    after = int(np.searchsorted(ticks.at_s, moment_s, "right"))
    if after == 0 or after == len(ticks.at_s):
        return _edge_outside(ticks, moment_s, after)
    before = after - 1
    early_s, late_s = moment_s - ticks.at_s[before], ticks.at_s[after] - moment_s
    between_s = max(early_s + late_s, 1e-12)
    tick_j = ticks.count_j[after] - ticks.count_j[before]
    share = early_s / between_s
    # Energy before the edge: at most the whole tick, and at most peak power times the time.
    peak_w = max(ticks.peak_w, PEAK * tick_j / between_s)
    most_j = min(tick_j, peak_w * early_s)
    least_j = max(0.0, tick_j - peak_w * late_s)
    worst_j = max(most_j - share * tick_j, share * tick_j - least_j, 0.0)
    near_w = ticks.power_w(after - 1 - NEIGHBOURS, after + NEIGHBOURS)
    # At a tick the count is exact; in the middle between two it is least certain.
    swing_j = float(np.ptp(near_w)) * between_s
    divided_j = 4 * share * (1 - share) * np.hypot(HIDDEN * tick_j, VISIBLE * swing_j)
    power_w = tick_j / max(between_s, ticks.period_s)
    blur_j = power_w * np.hypot((1 - share) * ticks.blur_s[before], share * ticks.blur_s[after])
    # A new value means that the count passed a step since the reading before: not more than the energy since then.
    step_j = min(ticks.resolution_j, power_w * max(ticks.read_s, ticks.update_s)) / 2
    sd_j = float(np.sqrt(min(divided_j, UNIFORM * worst_j) ** 2 + (UNIFORM * blur_j) ** 2 + (UNIFORM * step_j) ** 2))
    uneven = ticks.unsteady(after - 1 - NEIGHBOURS, after + NEIGHBOURS)
    return Edge(float(ticks.count_j[before] + share * tick_j), sd_j, uneven * worst_j)


def _edge_outside(ticks: Ticks, moment_s: float, after: int) -> Edge:
    """Return the count at an edge outside all ticks: the nearest power is extrapolated, with full uncertainty."""
    end = 0 if after == 0 else len(ticks.at_s) - 1
    near_w = ticks.power_w(0, 2) if after == 0 else ticks.power_w(end - 2, end)
    power_w = float(np.mean(near_w)) if len(near_w) else 0.0
    away_s = moment_s - float(ticks.at_s[end])
    bound_j = power_w * (abs(away_s) * (1 + roughness(near_w)) + float(ticks.blur_s[end]))
    sd_j = float(np.hypot(UNIFORM * bound_j, UNIFORM * ticks.resolution_j / 2))
    return Edge(float(ticks.count_j[end]) + power_w * away_s, sd_j, bound_j, abs(away_s))


def _still_s(ticks: Ticks, readings: Readings, start_s: float, stop_s: float) -> float:
    """Return the longest time with readings but without a new counter value.

    Inside the window only a relevant part counts; at an edge any part does, because its share of the window is unknown.
    """
    longest_s = 0.0
    low_s, high_s = ticks.at_s[:-1], ticks.at_s[1:]
    touches = (high_s > start_s) & (low_s < stop_s) & (high_s - low_s > 3 * ticks.period_s)
    matters = (low_s < start_s) | (high_s > stop_s) | (high_s - low_s > STILL_SHARE * (stop_s - start_s))
    for n in np.flatnonzero(touches & matters):
        first, last = np.searchsorted(readings.time_s, [low_s[n], high_s[n]])
        if last - first > 2:
            longest_s = max(longest_s, float(readings.time_s[last - 1] - readings.time_s[first]))
    return longest_s


def _no_tick(nature: Nature, ticks: Ticks, readings: Readings, start_s: float, stop_s: float) -> str:
    """Return why a window without a new counter value has no energy; empty if only readings are missing."""
    window_s = stop_s - start_s
    inside = int(np.count_nonzero((readings.time_s >= start_s) & (readings.time_s <= stop_s)))
    bracketed = len(ticks.at_s) > 1 and ticks.at_s[0] <= start_s and ticks.at_s[-1] >= stop_s
    if bracketed and inside <= 1 and window_s > 2 * ticks.period_s:
        return ""
    if inside < 2:
        return f"{inside or 'no'} counter reading in the window of {short(window_s, 3)} s"
    if nature.period_s is not None and window_s < FROZEN_PERIODS * nature.period_s:
        return (
            f"the window of {short(window_s, 3)} s is too short for a counter with a new value every "
            f"{short(nature.period_s, 3)} s"
        )
    return f"frozen: {inside} readings in {short(window_s, 3)} s, all with the same counter value"
