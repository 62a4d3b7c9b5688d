"""Energy of a window from readings of a counter: aligned to its ticks, which bracket the window's edges.

Knows ticks, wraps and resets; must not know gauges, files or runs.

A tick is a value that was not seen before. It was made between the call before and the end of this one; energy between
two ticks is exact up to the resolution. Only the two ticks in which the window's edges lie must be divided, and how the
energy is spread inside a tick is not known: in proportion to time is the estimate, and the rest is the uncertainty.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from steelyard.stats.energy_window import (
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
    usual_gap_s,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

# A fall that would need so many times the power of the rest of the run to be a wrap is a reset.
RESET_FACTOR = 10.0
# Without a limit nobody knows what the domain may draw; it is taken to stay below so many times what was seen.
UNSEEN_PEAK = 3.0
# No tick for so many periods: the counter stands still.
FROZEN_PERIODS = 5.0
COARSE_PATIENCE = 4.0
STILL_SHARE = 0.05
# So many ticks should give the energy to 1 %; where the power jumps at an edge they may not, and it is said.
MANY_TICKS = 100
UNEVEN = 0.008
# Share of the time that the sensor behind a counter may leave unseen.
UNSEEN = 0.05
# Ticks on each side of an edge that tell whether the power is steady there.
NEIGHBOURS = 3


@dataclass(frozen=True)
class Ticks:
    """New values of a counter, unwrapped, in the order of time."""

    at_s: Floats
    blur_s: Floats
    """The tick may have been so much earlier or later."""
    count_j: Floats
    fault: NDArray[np.bool_]
    """Whether the energy since the tick before is not known."""
    period_s: float
    peak_w: float
    patience_s: float
    """Without a new value for longer than this, the counter stands still."""
    resolution_j: float = 0.0

    def power_w(self, first: int, last: int) -> Floats:
        """Mean powers between the ticks `first` to `last`, with times rounded to whole periods."""
        first, last = max(0, first), min(len(self.at_s) - 1, last)
        between_s = np.diff(self.at_s[first : last + 1])
        if self.period_s > 0:
            between_s = np.maximum(1.0, np.round(between_s / self.period_s)) * self.period_s
        return np.diff(self.count_j[first : last + 1]) / between_s

    def unsteady(self, first: int, last: int) -> float:
        """0 where one constant power explains the ticks `first` to `last`, with all that is open about their times.

        Else by which share the highest power that they prove is above the lowest. Readings that come late, as on a busy
        machine, make powers between neighbours differ, and prove nothing.
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
    residual_j: float
    uneven_j: float
    """How much of the tick may lie on either side because the power changes there."""
    outside_s: float = 0.0
    """How far the edge is beyond the last tick; 0 inside."""


def counter_energy(nature: Nature, readings: Readings, start_s: float, stop_s: float) -> WindowEnergy:
    """Counts at the window's edges, subtracted."""
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
        return unknown(f"frozen: the counter gives nothing new for the last {stopped_s:.3g} s of its readings", sight)
    first = max(0, int(np.searchsorted(ticks.at_s, start_s, "right")) - 1)
    last = min(len(ticks.at_s) - 1, int(np.searchsorted(ticks.at_s, stop_s, "left")))
    faults = np.flatnonzero(ticks.fault[first + 1 : last + 1])
    if len(faults):
        return unknown(why[first + 1 + int(faults[0])], sight)
    edges = [_edge(ticks, moment_s) for moment_s in (start_s, stop_s)]
    value_j = edges[1].count_j - edges[0].count_j
    outside_s = sum(edge.outside_s for edge in edges)
    if outside_s > max(OUTSIDE_PERIODS * period_s, MAX_OUTSIDE * window_s):
        return unknown(f"the readings leave out {outside_s:.3g} s of the window of {window_s:.3g} s", sight)
    doubts = _doubts(ticks, readings, edges, start_s, stop_s)
    if nature.seen_s is not None and nature.seen_s < (1 - UNSEEN) * (nature.period_s or period_s):
        doubts.append(
            f"the counter adds up a sensor that sees {nature.seen_s / (nature.period_s or period_s):.0%} of the time, "
            "always at the same beat: of a load with that beat it counts one part for all"
        )
    rest_j = sum(edge.residual_j for edge in edges) + nature.resolution
    too_short = f"the window of {window_s:.3g} s is too short for a counter with a new value every {period_s:.3g} s"
    return known(nature, window_s, value_j, rest_j, doubts, sight, too_short)


def _doubts(ticks: Ticks, readings: Readings, edges: list[Edge], start_s: float, stop_s: float) -> list[str]:
    doubts = []
    value_j = edges[1].count_j - edges[0].count_j
    outside_s = sum(edge.outside_s for edge in edges)
    if outside_s > OUTSIDE_PERIODS * ticks.period_s:
        doubts.append(f"no new value of the counter for {outside_s:.3g} s at the window's edges")
    uneven_j = sum(edge.uneven_j for edge in edges)
    many = np.count_nonzero((ticks.at_s > start_s) & (ticks.at_s < stop_s)) >= MANY_TICKS
    if many and uneven_j > UNEVEN * value_j:
        doubts.append(
            f"the power changes at an edge of the window, inside a tick of the counter: {uneven_j / value_j:.1%} of "
            "the energy may lie on either side"
        )
    still_s = _still_s(ticks, readings, start_s, stop_s)
    if still_s > ticks.patience_s:
        doubts.append(f"the counter stood still for {still_s:.3g} s")
    return doubts


def _ticks(nature: Nature, readings: Readings, new: NDArray[np.bool_]) -> tuple[Ticks, list[str]]:
    """Ticks with what is wrong between each and the one before; empty where nothing is."""
    period_s = update_period_s(nature, readings)
    at_s, blur_s = (column[new] for column in made_at(readings, period_s))
    at_s = np.maximum.accumulate(at_s)
    between_s = np.diff(readings.time_s[new][1:])
    if len(between_s) > 1:
        # Values may change less often than they are made.
        period_s = max(period_s, usual_gap_s(between_s))
    rise_j = np.diff(readings.value[new], prepend=readings.value[0])
    # From one reading to the next a whole tick can appear at once.
    since_s = np.diff(readings.time_s, prepend=readings.time_s[0])[new] + readings.spent_s[new] + period_s
    fell = rise_j < 0
    # The highest power of the run that is not a jump: of which there are few.
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
            reasons[n] = f"the counter may have wrapped more than once in {since_s[n]:.3g} s without a reading"
    fault = np.array([bool(reason) for reason in reasons])
    count_j = np.cumsum(np.where(fault, 0.0, rise_j))
    # Where most ticks are single steps of a coarse counter, it ticks as rarely as the power is low.
    coarse = len(rise_j) > 1 and float(np.median(rise_j[1:])) < 3 * nature.resolution
    patience_s = FROZEN_PERIODS * period_s * (COARSE_PATIENCE if coarse else 1.0)
    return Ticks(at_s, blur_s, count_j, fault, period_s, peak_w, patience_s, nature.resolution), reasons


def _faults(
    nature: Nature, value: Floats, rise_j: Floats, fell: NDArray[np.bool_], since_s: Floats, most_w: float
) -> list[str]:
    """Of each tick: why the energy since the one before is not known; empty where it is."""
    reasons = [""] * len(rise_j)
    for n in np.flatnonzero(fell | (rise_j > most_w * since_s + nature.resolution)):
        if fell[n] and nature.wrap is None:
            reasons[n] = (
                f"the counter fell from {value[n - 1]:.6g} to {value[n]:.6g} J: it was reset, or it wraps at a "
                "value that is not known"
            )
        elif rise_j[n] > most_w * since_s[n] + nature.resolution:
            reasons[n] = f"implausible: the counter went from {value[n - 1]:.6g} to {value[n]:.6g} J at once"
    return reasons


def _edge(ticks: Ticks, moment_s: float) -> Edge:
    """The count at a moment between two ticks, in proportion to time, and what it may be beside it."""
    after = int(np.searchsorted(ticks.at_s, moment_s, "right"))
    rough = roughness(ticks.power_w(after - 1 - NEIGHBOURS, after + NEIGHBOURS))
    if after == 0 or after == len(ticks.at_s):
        return _edge_outside(ticks, moment_s, after, rough)
    before = after - 1
    early_s, late_s = moment_s - ticks.at_s[before], ticks.at_s[after] - moment_s
    tick_j = ticks.count_j[after] - ticks.count_j[before]
    share = early_s / max(early_s + late_s, 1e-12)
    # What lies before the edge: at most the whole tick, and no more than the highest power makes of the time.
    peak_w = max(ticks.peak_w, PEAK * tick_j / max(early_s + late_s, 1e-12))
    most_j = min(tick_j, peak_w * early_s)
    least_j = max(0.0, tick_j - peak_w * late_s)
    worst_j = max(most_j - share * tick_j, share * tick_j - least_j, 0.0)
    power_w = tick_j / max(early_s + late_s, ticks.period_s, 1e-12)
    blur_j = power_w * ((1 - share) * ticks.blur_s[before] + share * ticks.blur_s[after])
    residual_j = (HIDDEN + (1 - HIDDEN) * rough) * worst_j + blur_j
    uneven = ticks.unsteady(after - 1 - NEIGHBOURS, after + NEIGHBOURS)
    return Edge(float(ticks.count_j[before] + share * tick_j), residual_j, uneven * worst_j)


def _edge_outside(ticks: Ticks, moment_s: float, after: int, rough: float) -> Edge:
    """An edge before the first or after the last tick: the nearest power goes on, and all of it is uncertain."""
    end = 0 if after == 0 else len(ticks.at_s) - 1
    near_w = ticks.power_w(0, 2) if after == 0 else ticks.power_w(end - 2, end)
    power_w = float(np.mean(near_w)) if len(near_w) else 0.0
    away_s = moment_s - float(ticks.at_s[end])
    residual_j = power_w * (abs(away_s) * (1 + rough) + float(ticks.blur_s[end]))
    return Edge(float(ticks.count_j[end]) + power_w * away_s, residual_j, residual_j, abs(away_s))


def _still_s(ticks: Ticks, readings: Readings, start_s: float, stop_s: float) -> float:
    """The longest time in which readings were taken and the counter gave nothing new.

    In the window it must be a part of it that matters; at an edge nobody knows how much of the window it hides.
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
    """Why a counter without a new value in the window tells nothing; empty where only readings are missing."""
    window_s = stop_s - start_s
    inside = int(np.count_nonzero((readings.time_s >= start_s) & (readings.time_s <= stop_s)))
    bracketed = len(ticks.at_s) > 1 and ticks.at_s[0] <= start_s and ticks.at_s[-1] >= stop_s
    if bracketed and inside <= 1 and window_s > 2 * ticks.period_s:
        return ""
    if inside < 2:
        return f"{inside or 'no'} reading of the counter in the window of {window_s:.3g} s"
    if nature.period_s is not None and window_s < FROZEN_PERIODS * nature.period_s:
        return (
            f"the window of {window_s:.3g} s is too short for a counter with a new value every {nature.period_s:.3g} s"
        )
    return f"frozen: {inside} readings in {window_s:.3g} s, and not one new value of the counter"
