"""What a study can cost at most, from its budgets alone. Knows limits, not machines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from steelyard.inputs.study import Expansion


@dataclass(frozen=True)
class Cost:
    """The most device-hours that the measured steps can take; None when nothing limits them."""

    device_hours: float | None
    basis: str


def cost(expansion: Expansion) -> Cost:
    """From the caps on seconds; how long a step takes is not known before a run."""
    # Candidates of a search differ in the batch alone.
    counted = [(spec, 1) for spec in expansion.runs]
    counted += [(group.runs[0], group.most_tries) for group in expansion.searches]
    if any(spec.budget.epochs is not None for spec, _ in counted):
        return Cost(None, "a budget in epochs has no limit in seconds")
    hours = sum(spec.budget.max_seconds * spec.ranks * runs for spec, runs in counted) / 3600
    if all(spec.device_family == "sim" for spec, _ in counted):
        return Cost(hours, "by max_seconds, which pass on the simulated devices' own clock")
    return Cost(hours, "by max_seconds; set-up and compilation come on top")
