"""What a campaign's jobs take of a site at most, and what it charges for that. Knows limits and rates, no queue."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from steelyard.launch.campaign import JobArray, Price

if TYPE_CHECKING:
    from collections.abc import Sequence

    from steelyard.inputs.site import Place

HOUR_S = 3600.0


def price(place: Place, jobs: Sequence[JobArray]) -> Price:
    """Device- and node-hours if every task takes all the wall time it asks for, and their charge by the site's rule."""
    charge, pool = place.site.charge, place.pool
    # On exclusive nodes a task holds all devices, whatever it uses.
    held = [pool.devices_per_node if pool.exclusive else job.shape.devices_per_node for job in jobs]
    device_hours = sum(_task_hours(job) * (job.shape.nodes * each) for job, each in zip(jobs, held, strict=True))
    node_hours = sum(_task_hours(job) * job.shape.nodes for job in jobs)
    running = place.site.limits.max_running
    end_s = _expected_s(jobs, running)
    if end_s is None:
        end = "the end is unknown: limits.max_running does not say how many tasks run at a time"
    else:
        many = "" if running is None else f", {running} tasks at a time"
        end = f"the end without waiting: every run takes all its limit{many}"
    what = "whole nodes, which are charged whatever runs on them" if pool.exclusive else "the devices asked for"
    return Price(
        device_hours=device_hours,
        node_hours=node_hours,
        charge=device_hours * charge.per_device_hour + node_hours * charge.per_node_hour,
        charge_unit=charge.unit,
        expected_s=end_s,
        basis=f"at most: every task takes all its wall time, and holds {what}; {end}",
    )


def _task_hours(job: JobArray) -> float:
    """Of all its tasks together."""
    return len(job.tasks) * job.task_limit_s / HOUR_S


def _expected_s(jobs: Sequence[JobArray], at_a_time: int | None) -> float | None:
    """From the first start to the last end if so many tasks run at a time, begun in their order.

    None where nobody has said how many; one task alone needs no saying.
    """
    tasks = sum(len(job.tasks) for job in jobs)
    if at_a_time is None and tasks > 1:
        return None
    ends_s: list[float] = []
    last_s = 0.0
    for job, runs in [(each, task) for each in jobs for task in each.tasks]:
        # What its runs are allowed, without the allowance for the task itself. A packed task starts Python outside its
        # runs, so that there only the task's own limit is one.
        allowed_s = job.task_limit_s if job.kind == "packed" else len(runs) * job.shape.run_limit_s
        begin_s = heapq.heappop(ends_s) if at_a_time is not None and len(ends_s) >= at_a_time else 0.0
        end_s = begin_s + min(job.task_limit_s, allowed_s)
        heapq.heappush(ends_s, end_s)
        last_s = max(last_s, end_s)
    return last_s
