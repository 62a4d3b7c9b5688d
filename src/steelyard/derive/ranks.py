"""What the ranks of a job cost each other: waiting for the slowest rank, separated from the transfer.

Synchronous ranks end a step together. Each of them sees communication from the end of its own computation to the end
of the step. The last to arrive waits for nobody: what it sees is the transfer, and what the others see beyond that is
waiting.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from steelyard.contracts.record import Quantity

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from steelyard.contracts.observe import CrossCheck
    from steelyard.contracts.record import Aggregation, Steady, Window
    from steelyard.derive.observations import StepSamples, WindowSums

# Steps per pass: one number is held for each, whatever the number of ranks.
STEPS_PER_PASS = 1 << 16
UNKNOWN = "computation and communication cannot be separated on every rank here"


def rank_quantities(samples: StepSamples, steady: Steady, sums: WindowSums, window: Window) -> dict[str, Quantity]:
    """Return waiting and transfer of a job with several ranks; empty for one rank, which waits for nobody."""
    if len(samples.ranks) < 2:
        return {}
    total, exposed = float(sums.column("step_s").sum()), float(sums.column("exposed_comm_s").sum())
    steps = steady.stop_step - steady.start_step
    transfer = wait = slowest = mean = None
    if math.isfinite(exposed):
        least = sum(_least_exposed(samples, steady.start_step, steady.stop_step))
        transfer = least * len(samples.ranks) / total
        # Rounding of the clock may take it below zero.
        wait = max(0.0, exposed / total - transfer)
        compute = sums.column("compute_s") / steps
        slowest, mean = float(compute.max()), float(compute.mean())
    return _shares(transfer, wait, window) | {
        "rank_compute_mean": _quantity(mean, "s", window, "mean"),
        "rank_compute_max": _quantity(slowest, "s", window, "max"),
    }


def checked_quantities(checks: Sequence[CrossCheck], wait_share: float) -> dict[str, Quantity]:
    """Return the same quantities from the cross-check passes of all ranks, for runs whose steps do not show them.

    Means over the pass are compared: waiting that alternates between ranks from step to step counts as transfer.
    """
    exposed = [check.exposed_comm_s for check in checks if check.exposed_comm_s is not None]
    compute = [check.compute_s for check in checks if check.compute_s is not None]
    input_waits = [check.input_wait_s or 0.0 for check in checks]
    total = sum(input_waits) + sum(compute) + sum(exposed)
    if len(exposed) != len(checks) or len(compute) != len(checks) or len(checks) < 2 or total <= 0:
        return {}
    count = len(checks)
    # Like the exposed share: never more than what the measured steps leave beside their waiting for input.
    share = sum(exposed) / total
    scale = min(1.0, (1 - wait_share) / share) if share > 0 else 1.0
    transfer = scale * min(exposed) * count / total
    return _shares(transfer, max(0.0, scale * sum(exposed) / total - transfer), "crosscheck") | {
        "rank_compute_mean": _quantity(sum(compute) / count, "s", "crosscheck", "mean"),
        "rank_compute_max": _quantity(max(compute), "s", "crosscheck", "max"),
    }


def _shares(transfer: float | None, wait: float | None, window: Window) -> dict[str, Quantity]:
    return {
        "exposed_transfer_share": _quantity(transfer, "1", window, "share of time"),
        "rank_wait_share": _quantity(wait, "1", window, "share of time"),
    }


def _quantity(value: float | None, unit: str, window: Window, aggregation: Aggregation) -> Quantity:
    return Quantity(
        value=value,
        unit=unit,
        scope="job" if unit == "1" else "rank",
        window=window,
        aggregation=aggregation,
        reason=UNKNOWN if value is None else None,
    )


def _least_exposed(samples: StepSamples, start: int, stop: int) -> Iterator[float]:
    """Yield, per pass, the sum over steps of the shortest communication that any rank saw."""
    for first in range(start, stop, STEPS_PER_PASS):
        last = min(stop, first + STEPS_PER_PASS)
        least = np.full(last - first, np.inf)
        for chunk in samples.windowed(first, last):
            at = slice(chunk.first_step - first, chunk.first_step - first + chunk.steps)
            np.minimum(least[at], chunk.column("exposed_comm_s"), out=least[at])
        yield float(np.maximum(least, 0.0).sum())
