"""Compute the most that a campaign can take of a site, and what the site charges for it."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from steelyard.launch.campaign import JobArray, Price

if TYPE_CHECKING:
    from collections.abc import Sequence

    from steelyard.inputs.site import Place

HOUR_S = 3600.0


def price(place: Place, jobs: Sequence[JobArray]) -> Price:
    """Return device- and node-hours if every task takes its full time limit, and their charge at the site's rates."""
    charge, pool = place.site.charge, place.pool
    # On exclusive nodes a task occupies all devices, even those it does not use.
    held = [pool.devices_per_node if pool.exclusive else job.shape.devices_per_node for job in jobs]
    device_hours = sum(_task_hours(job) * (job.shape.nodes * each) for job, each in zip(jobs, held, strict=True))
    node_hours = sum(_task_hours(job) * job.shape.nodes for job in jobs)
    running = place.site.limits.max_running
    end_s = _expected_s(jobs, running)
    if end_s is None:
        end = "duration unknown: limits.max_running is not set"
    else:
        many = "" if running is None else f", {running} tasks at a time"
        end = f"duration without queueing: every run takes its full limit{many}"
    what = "whole nodes, charged even where devices are unused" if pool.exclusive else "the devices it requests"
    return Price(
        device_hours=device_hours,
        node_hours=node_hours,
        charge=device_hours * charge.per_device_hour + node_hours * charge.per_node_hour,
        charge_unit=charge.unit,
        expected_s=end_s,
        basis=f"upper bound: every task takes its full time limit and occupies {what}; {end}",
    )


def _task_hours(job: JobArray) -> float:
    """Return the hours of all tasks of a job together, each with its full time limit."""
    return len(job.tasks) * job.task_limit_s / HOUR_S


def _expected_s(jobs: Sequence[JobArray], at_a_time: int | None) -> float | None:
    """Return the time from the first start to the last end if `at_a_time` tasks run at once, started in order.

    None if `at_a_time` is unknown and there is more than one task.
    """
    tasks = sum(len(job.tasks) for job in jobs)
    if at_a_time is None and tasks > 1:
        return None
    ends_s: list[float] = []
    last_s = 0.0
    for job, runs in [(each, task) for each in jobs for task in each.tasks]:
        # The limits of its runs, without the allowance for the task itself. A packed task starts Python outside its
        # runs: only the limit of the task applies.
        allowed_s = job.task_limit_s if job.kind == "packed" else len(runs) * job.shape.run_limit_s
        begin_s = heapq.heappop(ends_s) if at_a_time is not None and len(ends_s) >= at_a_time else 0.0
        end_s = begin_s + min(job.task_limit_s, allowed_s)
        heapq.heappush(ends_s, end_s)
        last_s = max(last_s, end_s)
    return last_s
