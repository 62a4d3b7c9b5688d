"""What a reader of one record must know before using its numbers. Looks at the record alone."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from steelyard.contracts.record import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from steelyard.contracts.record import RunRecord

# Event sums and the host's clock around the same block differ by launch latency; more is a broken timer.
TIMER_TOLERANCE = 0.02
# A synchronised step is longer by whatever the host could hide before; up to here it is not worth a word.
SYNCHRONISED_TOLERANCE = 0.10
SYNCHRONISED_ERRORS = 4.0


def findings(record: RunRecord) -> RunRecord:
    """The record with its findings."""
    checks = (_steady, _precision, _timer, _synchronised, _complete)
    return dataclasses.replace(record, findings=tuple(found for check in checks for found in check(record)))


def _steady(record: RunRecord) -> Iterator[Finding]:
    if record.steady is not None and record.steady.answer != "steady":
        yield Finding(
            code="SY201",
            severity="blocks",
            message=f"{record.steady.answer}: {record.steady.reason}; the figures are over all steps",
            remedy="run longer (--min-steps), or find what changes during the run",
        )


def _precision(record: RunRecord) -> Iterator[Finding]:
    if record.stop is not None and record.stop.reason in ("max_steps", "max_seconds"):
        unmet = _unmet(record)
        if unmet:
            yield Finding(
                code="SY202",
                severity="disclose",
                message=f"stopped by {record.stop.reason}: " + "; ".join(unmet),
                remedy=f"raise {record.stop.reason}, or accept the interval as it is",
            )
    rate = record.quantities.get("throughput_job")
    if rate is not None and rate.interval is not None and rate.interval.approximate:
        yield Finding(
            code="SY203",
            severity="disclose",
            message="the interval is approximate: " + "; ".join(rate.interval.approximate),
            remedy="judge by the spread between jobs (--repeats) instead",
        )


def _unmet(record: RunRecord) -> list[str]:
    """Which minima of its budget a run did not reach."""
    budget, unmet = record.spec.budget, []
    steady_steps = record.steady.stop_step - record.steady.start_step if record.steady else 0
    if steady_steps < budget.min_steps:
        unmet.append(f"{steady_steps} steps of the {budget.min_steps} asked for")
    if record.stop is not None and record.stop.seconds < budget.min_seconds:
        unmet.append(f"{record.stop.seconds:.3g} s of the {budget.min_seconds:g} asked for")
    mean = record.quantities.get("step_time_mean")
    interval = mean.interval if mean else None
    if mean is None or mean.value is None or interval is None:
        unmet.append("no interval")
    elif (width := (interval.high - interval.low) / 2 / mean.value) > budget.rel_half_width:
        unmet.append(
            f"the interval's half-width is {width:.2%} of the mean, {budget.rel_half_width:.2%} were asked for"
        )
    return unmet


def _timer(record: RunRecord) -> Iterator[Finding]:
    stop = record.stop
    if stop is None or stop.seconds == 0:
        return
    share = stop.host_seconds / stop.seconds - 1
    if abs(share) > TIMER_TOLERANCE:
        yield Finding(
            code="SY501",
            severity="blocks",
            message=f"device events add up to {stop.seconds:.6g} s, the host's clock saw {stop.host_seconds:.6g} s "
            f"for the same blocks ({share:+.1%})",
            remedy="do not use these times; report the device and driver",
        )


def _synchronised(record: RunRecord) -> Iterator[Finding]:
    check, mean = record.crosscheck, record.quantities.get("step_time_mean")
    if check is None or mean is None or mean.value is None or record.steady is None or record.steady.answer != "steady":
        return
    width = (mean.interval.high - mean.interval.low) / 2 if mean.interval else 0.0
    allowed = SYNCHRONISED_TOLERANCE * mean.value + SYNCHRONISED_ERRORS * check.sem_step_s + width
    difference = check.mean_step_s - mean.value
    if abs(difference) > allowed:
        yield Finding(
            code="SY502",
            severity="disclose",
            message=f"a step takes {mean.value:.6g} s in the run and {check.mean_step_s:.6g} s when each step is "
            f"synchronised ({difference / mean.value:+.1%})",
            remedy="longer: the host's work is hidden behind the device's; shorter: the run's timing is not understood",
        )


def _complete(record: RunRecord) -> Iterator[Finding]:
    if record.steps_seen and record.ranks_seen != record.spec.ranks:
        yield Finding(
            code="SY601",
            severity="blocks",
            message=f"samples from {record.ranks_seen} of {record.spec.ranks} ranks",
            remedy="look at the logs of the missing ranks and run again",
        )
