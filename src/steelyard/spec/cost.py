"""What a study costs before it runs, from its budgets alone. Knows limits, not machines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from steelyard.spec.study import Expansion


@dataclass(frozen=True)
class Cost:
    """Device-hours of measured steps: never less than `low`, never more than `high`."""

    device_hours_low: float
    device_hours_high: float
    basis: str


def cost(expansion: Expansion) -> Cost:
    """Between the budgets' minimum and maximum seconds; how long a step takes is not known before a run."""
    low = sum(spec.budget.min_seconds * spec.ranks for spec in expansion.runs) / 3600
    high = sum(spec.budget.max_seconds * spec.ranks for spec in expansion.runs) / 3600
    basis = "(the budgets' least and most seconds; set-up and compilation come on top)"
    if all(spec.device == "sim" for spec in expansion.runs):
        basis = "(the budgets' least and most seconds, which pass on the simulated devices' own clock)"
    return Cost(low, high, basis)
