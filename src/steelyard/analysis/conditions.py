"""How much limits held the devices of jobs back: for comparisons, tables and reports."""

from __future__ import annotations

from typing import TYPE_CHECKING

from steelyard.contracts.conditions import QUANTITIES
from steelyard.rules.environment.conditions import lost_clock

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from steelyard.contracts.record import DeviceConditions, RunRecord

STATE_QUANTITIES = frozenset(QUANTITIES) - {"clock_device"}
"""Evidence about a figure, not figures of their own; the mean clock is shown beside the utilisation."""


def state_evidence(measured: Sequence[RunRecord]) -> dict[str, float]:
    """Return how much the devices were held back, as means over the jobs; without what is unknown for one of them."""
    jobs = [record.conditions for record in measured]
    shares: dict[str, Callable[[DeviceConditions], float | None]] = {
        "power_capped_percent": lambda device: device.power_capped,
        "throttled_percent": throttled,
        "clock_loss_percent": lost_clock,
    }
    percents: dict[str, float] = {}
    for key, share in shares.items():
        # A synchronous job waits for its slowest device.
        worst = [max((told for device in job if (told := share(device)) is not None), default=None) for job in jobs]
        known = [told for told in worst if told is not None]
        if known and len(known) == len(jobs):
            percents[key] = 100 * sum(known) / len(known)
    limits = [
        device.limit_w / device.default_limit_w
        for job in jobs
        for device in job
        if device.limit_w is not None and device.default_limit_w
    ]
    return percents | ({"power_limit_percent": 100 * min(limits)} if limits else {})


def throttled(device: DeviceConditions) -> float | None:
    """Return the share of the time in which temperature or hardware held a device back; None if both are unknown."""
    return max((share for share in (device.thermal, device.hardware) if share is not None), default=None)
