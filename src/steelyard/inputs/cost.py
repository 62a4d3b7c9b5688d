"""The largest cost of a study, from its budgets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from steelyard.inputs.study import Expansion


@dataclass(frozen=True)
class Cost:
    """Upper limit of the device-hours of the measured steps; None when there is no limit."""

    device_hours: float | None
    basis: str


def cost(expansion: Expansion) -> Cost:
    """Return the cost from max_seconds and its extension; the time of a step is not known before a run."""
    # Candidates of a search differ only in the batch.
    counted = [(spec, 1) for spec in expansion.runs]
    counted += [(group.runs[0], group.most_tries) for group in expansion.searches]
    if any(spec.program is not None for spec, _ in counted):
        if any(spec.time_limit_s is None for spec, _ in counted):
            return Cost(None, "a program runs to its end; time_limit_s limits it")
        return Cost(sum((spec.time_limit_s or 0.0) * spec.devices for spec, _ in counted) / 3600, "from time_limit_s")
    if any(spec.budget.epochs is not None for spec, _ in counted):
        return Cost(None, "a budget in epochs has no limit in seconds")
    hours = sum(spec.budget.longest_s * spec.devices * runs for spec, runs in counted) / 3600
    if all(spec.device_family == "sim" for spec, _ in counted):
        return Cost(hours, "from max_seconds x max_extension, in simulated time")
    return Cost(hours, "from max_seconds x max_extension, without set-up and compilation")
