"""Whether the device waited for its host: the part of a step in which it had nothing to do and no data was missing.

The events of a step cannot show gaps between its kernels. Two observations do. After each launch the worker asked
whether the device was still busy with the step before: if so, the host was ahead and the device never waited. If not,
kernels of a few profiled steps tell how long the device really computes, and the rest of the step is waiting.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from steelyard.contracts import observe

if TYPE_CHECKING:
    from collections.abc import Mapping

    from steelyard.contracts.record import Quantity
    from steelyard.derive.observations import Events

NO_PROFILE = "the host was not ahead of the device, so computation includes waiting for it"


def queue_quantities(quantities: Mapping[str, Quantity], events: Events) -> dict[str, Quantity]:
    """Return computation without waiting for the host, that waiting, and the share of time in which the device worked.

    Empty without a queue: the host itself computes.
    """
    queues = events.queues
    wait, compute, step = (quantities.get(name) for name in ("input_wait_share", "compute_share", "step_time_mean"))
    led = [queue.led_share for queue in queues if queue.led_share is not None]
    if not led or wait is None or wait.value is None or compute is None:
        return {}
    if min(led) >= observe.LEADS:
        return {"host_wait_share": _share(0.0, compute), "busy_share": _share(1 - wait.value, compute)}
    told = [queue.compute_s for queue in queues if queue.compute_s is not None]
    if compute.value is None or len(told) < len(queues) or step is None or not step.value:
        why = next((queue.reason for queue in queues if queue.reason), "")
        reason = compute.reason or (f"{NO_PROFILE}: {why}" if why else NO_PROFILE)
        unknown = replace(compute, value=None, reason=reason)
        return {"compute_share": unknown, "host_wait_share": unknown, "busy_share": unknown}
    worked = min(compute.value, sum(told) / len(told) / step.value)
    waited = compute.value - worked
    # A rank that is ahead of the others spends in communication what it does not spend on its host. The rank that the
    # others wait for shows what the job is busy with.
    slowest = _slowest(events)
    busy = 1 - wait.value - waited
    if slowest is not None:
        check = events.crosschecks[slowest]
        rest = 1 - (check.input_wait_s or 0.0) / step.value
        busy = min(rest, (told[slowest] + (check.exposed_comm_s or 0.0)) / step.value)
    return {
        "compute_share": replace(_share(worked, compute), window="crosscheck"),
        "host_wait_share": replace(_share(waited, compute), window="crosscheck"),
        "busy_share": replace(_share(busy, compute), window="crosscheck"),
    }


def _slowest(events: Events) -> int | None:
    """Return the process that waits least for the others; None: one process, or unknown."""
    exposed = [check.exposed_comm_s for check in events.crosschecks]
    known = [seconds for seconds in exposed if seconds is not None]
    if len(known) < 2 or len(known) != len(events.queues):
        return None
    return known.index(min(known))


def _share(value: float, like: Quantity) -> Quantity:
    # Rounding may take it just outside.
    return replace(like, value=min(1.0, max(0.0, value)), reason=None)
