"""Energy of a window from samples of an energy counter or a power gauge, with its uncertainty and validity."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from steelyard.numbers import short
from steelyard.stats.energy_counter import counter_energy
from steelyard.stats.energy_gauge import gauge_energy
from steelyard.stats.energy_window import Nature, Readings, Sight, Verdict, WindowEnergy, tidy, unknown

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

NEAR_READINGS = 64

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
    """None if one of the two has no value."""
    difference_j: float | None
    """Integral minus counter."""
    allowed_j: float | None
    reason: str
    """Why they disagree or cannot be compared; empty if they agree."""


def agreement(counter: WindowEnergy, integral: WindowEnergy) -> Agreement:
    """Check whether two channels of one domain give the same energy within their uncertainties.

    The gain error is ignored: both channels use the same circuit, so it affects both equally.
    """
    for name, energy in (("counter", counter), ("integral", integral)):
        if energy.value_j is None:
            return Agreement(None, None, None, f"the {name} has no value: {'; '.join(energy.reasons)}")
    assert counter.value_j is not None
    assert integral.value_j is not None
    assert counter.rest_j is not None
    assert integral.rest_j is not None
    difference_j = integral.value_j - counter.value_j
    allowed_j = counter.rest_j + integral.rest_j
    if abs(difference_j) <= allowed_j:
        return Agreement(True, difference_j, allowed_j, "")
    word = "more" if difference_j > 0 else "less"
    reason = (
        f"the integrated power is {short(abs(difference_j))} J {word} than the counter's "
        f"{short(counter.value_j, 6)} J, but the uncertainties allow only {short(allowed_j)} J"
    )
    return Agreement(False, difference_j, allowed_j, reason)
