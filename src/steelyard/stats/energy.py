"""Energy of a window from samples of an energy counter or a power gauge, with its uncertainty and validity."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from steelyard.numbers import short
from steelyard.stats.energy_counter import counter_energy
from steelyard.stats.energy_gauge import gauge_energy
from steelyard.stats.energy_window import Nature, Readings, Sight, Verdict, WindowEnergy, tidy, unknown

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

NEAR_READINGS = 64
# Counter and gauge contradict each other if they differ by more than this many 95 % half-widths, and this share:
# firmware may compute the two from one circuit in different ways, and so small a difference changes no answer.
ALARM = 2.0
ALIKE = 0.01

__all__ = ["Agreement", "Nature", "Verdict", "WindowEnergy", "agreement", "energy_of"]


def energy_of(
    nature: Nature, time_s: Floats, value: Floats, spent_s: Floats, start_s: float, stop_s: float, *, random_phase: bool
) -> WindowEnergy:
    """Compute the energy of a window from the samples of one channel, which should extend beyond the window.

    `random_phase` means that the sampling times of the sensor are random relative to the load.
    """
    if not stop_s > start_s:
        return unknown("the window has no length", Sight())
    readings = tidy(time_s, value, spent_s)
    # Use only readings in and near the window: a run has many windows, and may last for days.
    reach_s = max(stop_s - start_s, 20 * (nature.average_s or 0.0), 20 * (nature.period_s or 0.0))
    first = max(0, int(np.searchsorted(readings.time_s, start_s - reach_s)) - NEAR_READINGS)
    last = int(np.searchsorted(readings.time_s, stop_s + reach_s)) + NEAR_READINGS
    readings = Readings(readings.time_s[first:last], readings.value[first:last], readings.spent_s[first:last])
    if not len(readings.time_s):
        return unknown("no readings from this sensor", Sight())
    # Untrusted files may contain any number; an overflow ends in an unusable interval, which is rejected.
    with np.errstate(all="ignore"):
        if nature.kind == "counter":
            return counter_energy(nature, readings, start_s, stop_s)
        return gauge_energy(nature, readings, start_s, stop_s, random_phase=random_phase)


@dataclass(frozen=True)
class Agreement:
    """Comparison of a counter with the integral of a gauge over the same window and domain."""

    agrees: bool | None
    """None if one of the two has no value, or if they differ and the gauge is doubtful."""
    difference_j: float | None
    """Integral minus counter."""
    allowed_j: float | None
    reason: str
    """Why they disagree or cannot be compared; empty if they agree."""


class Measured(Protocol):
    """An energy with the parts of its half-width: of one window, or of several pieces of time together."""

    @property
    def value_j(self) -> float | None: ...
    @property
    def rest_j(self) -> float | None: ...
    @property
    def gain_j(self) -> float: ...
    @property
    def verdict(self) -> Verdict: ...
    @property
    def reasons(self) -> Iterable[str]: ...


def agreement(counter: Measured, integral: Measured) -> Agreement:
    """Check whether the counter and the power gauge of one domain give the same energy within their uncertainties.

    Both channels read the same circuit, so its gain error is in both, and only a difference of the stated tolerances
    counts. What remains is independent. It may be twice the 95 % half-width: this is checked in every run for every
    domain, and with 95 % there would be a false alarm in every other run of a large job.

    The interval of a doubtful gauge does not hold: one that measures part of the time can be wrong by 10 % for a load
    with the period of its readings, which do not show it. It contradicts no counter.
    """
    for name, energy in (("counter", counter), ("integral", integral)):
        if energy.value_j is None:
            return Agreement(None, None, None, f"the {name} has no value: {'; '.join(energy.reasons)}")
    assert counter.value_j is not None
    assert integral.value_j is not None
    difference_j = integral.value_j - counter.value_j
    allowed_j = ALARM * math.hypot(counter.rest_j or 0.0, integral.rest_j or 0.0)
    allowed_j += abs(integral.gain_j - counter.gain_j) + ALIKE * abs(counter.value_j)
    if abs(difference_j) <= allowed_j:
        return Agreement(True, difference_j, allowed_j, "")
    if integral.verdict != "valid":
        return Agreement(None, difference_j, allowed_j, f"the integral is doubtful: {'; '.join(integral.reasons)}")
    word = "more" if difference_j > 0 else "less"
    reason = (
        f"the integrated power is {short(abs(difference_j))} J {word} than the counter's "
        f"{short(counter.value_j, 6)} J, but the uncertainties allow only {short(allowed_j)} J"
    )
    return Agreement(False, difference_j, allowed_j, reason)
