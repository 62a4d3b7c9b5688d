"""What a reader of one record must know before using its numbers. Looks at the record alone."""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
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
# What a first epoch may be slower without a word.
FIRST_EPOCH_TOLERANCE = 0.05
# Fewer losses or steps than this show no trend.
LOSSES_NEEDED, LOSS_STEPS_NEEDED = 9, 100
# A loss that rises beyond its own spread is seen in a few; one that stands still only in more than a noisy one needs.
LOSSES_TO_STAND = 30


def findings(record: RunRecord) -> RunRecord:
    """The record with its findings."""
    checks = (
        _settings, _steady, _precision, _timer, _synchronised, _complete, _cpus, _fell_back, _cached, _loss, _learns,
    )  # fmt: skip
    return dataclasses.replace(record, findings=tuple(found for check in checks for found in check(record)))


_EFFECTIVE = {"fp32": "float32", "tf32": "float32", "bf16": "bfloat16", "fp16": "float16"}


def _settings(record: RunRecord) -> Iterator[Finding]:
    """What was asked for and is not in effect."""
    if record.settings is None:
        return
    spec, values = record.spec, record.settings.values
    # A ceiling may be asked for in formats that no model's precision has.
    own_format = spec.mode == "ceiling" and spec.model.get("dtype", "auto") != "auto"
    wanted = {} if own_format else {"matmul_dtype": _EFFECTIVE[spec.precision]}
    if spec.precision in ("fp32", "tf32"):
        wanted["float32_products"] = spec.precision
    wanted["deterministic"] = str(spec.deterministic).lower()
    wanted["ranks"] = str(spec.ranks)
    if "channels_last" in values:
        wanted["channels_last"] = str(spec.channels_last).lower()
    if spec.threads is not None:
        wanted["threads"] = str(spec.threads)
    if spec.loader.place == "host":
        wanted |= {"loader_workers": str(spec.loader.workers), "pin_memory": str(spec.loader.pin_memory).lower()}
    other = [
        f"{name} is {values.get(name)}, not {value}" for name, value in wanted.items() if values.get(name) != value
    ]
    if spec.compile != "off" and values.get("compiled_graphs", "0") == "0":
        other.append("nothing was compiled")
    if spec.channels_last and "channels_last" not in values:
        other.append("no parameter has a channel dimension to put last")
    if other:
        yield Finding(
            code="SY101",
            severity="disclose",
            message="settings in effect differ from those asked for: " + "; ".join(other),
            remedy="compare by what is in effect (settings of the record), or ask for what this device can do",
        )


def _steady(record: RunRecord) -> Iterator[Finding]:
    if record.steady is not None and record.steady.answer != "steady":
        yield Finding(
            code="SY201",
            severity="blocks",
            message=f"{record.steady.answer}: {record.steady.reason}; the figures are over all steps",
            remedy="run longer (--min-steps, --max-seconds), or find what changes during the run",
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


def _cpus(record: RunRecord) -> Iterator[Finding]:
    spec, place = record.spec, record.environment
    if spec.loader.workers == 0 or place is None or not place.facts.get("cpu.usable", "").isdigit():
        return
    usable = float(place.facts["cpu.usable"])
    with contextlib.suppress(KeyError, ValueError):
        usable = min(usable, float(place.facts["cgroup.cpu_quota"]))
    # A rank that was bound to CPUs of its own sees these alone.
    ranks = 1 if spec.numa else spec.ranks
    needed = ranks * (1 + spec.loader.workers)
    if needed > usable:
        yield Finding(
            code="SY602",
            severity="disclose",
            message=f"{ranks} ranks with {spec.loader.workers} loader workers each are {needed} processes on "
            f"{usable:g} usable CPUs: they take turns",
            remedy=f"use at most {max(0, int(usable // ranks) - 1)} loader workers a rank, or ask for more CPUs",
        )


def _fell_back(record: RunRecord) -> Iterator[Finding]:
    if record.environment is None or record.settings is None or record.spec.device != "auto":
        return
    files = record.environment.facts.get("accelerator.files")
    if files and files != "none" and record.settings.values.get("device") == "cpu":
        yield Finding(
            code="SY603",
            severity="disclose",
            message=f"ran on the CPU although the node has accelerators ({files}): torch cannot use them",
            remedy="steelyard doctor says why; --device cpu says that the CPU is meant",
        )


def _cached(record: RunRecord) -> Iterator[Finding]:
    """A first epoch that is slower than later ones, and why that may be."""
    first, later = (record.quantities.get(f"{name}_throughput") for name in ("first_epoch", "later_epochs"))
    if first is None or later is None or first.value is None or later.value is None:
        return
    share = later.value / first.value - 1
    if share <= FIRST_EPOCH_TOLERANCE:
        return
    data = record.data
    cause = "the first step and what is compiled in it are part of the first"
    if data is not None:
        cause += f", and so are files ({data.size_bytes / 1e9:.3g} GB) that may have been read from disk"
    if data is not None and data.fits_in_memory:
        cause += "; the data fits in memory, so that later epochs may read the page cache"
    yield Finding(
        code="SY204",
        severity="disclose",
        message=f"later epochs are {share:.0%} faster than the first: {cause}",
        remedy="say which epochs a figure speaks for, and on how much data",
    )


def _loss(record: RunRecord) -> Iterator[Finding]:
    loss = record.model.last_loss if record.model else None
    if loss is not None and loss in ("nan", "inf", "-inf"):
        yield Finding(
            code="SY701",
            severity="disclose",
            message=f"the last loss is {loss}: the training has run away, and may compute less than a sound one",
            remedy="use a smaller learning rate or another precision; the speed of a diverged model is not its speed",
        )


def _learns(record: RunRecord) -> Iterator[Finding]:
    """Whether the loss falls. The medians of the first and last losses are held against each other."""
    trace = record.loss
    if trace is None or len(trace.values) < LOSSES_NEEDED or trace.steps[-1] < LOSS_STEPS_NEEDED:
        return
    finite = [value for value in trace.values if value is not None]
    if len(finite) < len(trace.values):
        lost = next(step for step, value in zip(trace.steps, trace.values, strict=True) if value is None)
        if record.model is None or record.model.last_loss not in ("nan", "inf", "-inf"):
            yield Finding(
                code="SY701",
                severity="disclose",
                message=f"the loss was not finite at step {lost:,}: the training ran away, and may compute less then",
                remedy="use a smaller learning rate or another precision",
            )
        return
    third = len(finite) // 3
    # The first three are of steps 1, 2 and 4: those of a model that has learnt nothing yet.
    first = max(statistics.median(finite[:3]), statistics.median(finite[:third]))
    last = statistics.median(finite[-third:])
    spread = max(_spread(finite[:third]), _spread(finite[-third:]))
    stands = trace.learnable and len(finite) >= LOSSES_TO_STAND and last >= first > 0
    if last > first + spread or stands:
        yield Finding(
            code="SY702",
            severity="disclose",
            message=f"the loss does not fall: {first:.4g} at first, {last:.4g} at last ({trace.steps[-1]:,} steps)",
            remedy="look at learning rate, precision and data: a model that learns nothing may have another speed",
        )


def _spread(values: list[float]) -> float:
    """How far losses of one stretch lie apart."""
    return max(values) - min(values)
