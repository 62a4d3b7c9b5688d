"""Run rules on host and device (SY611 to SY613): a device that waits for its host, hidden waiting, costly events."""

from __future__ import annotations

from typing import TYPE_CHECKING

from steelyard.inputs.command import run_again
from steelyard.numbers import percent, short
from steelyard.rules.rule import Example, RunRule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from steelyard.contracts.finding import Finding
    from steelyard.contracts.record import RunRecord

# As for waiting for data: below it, a faster host gains less than people notice between two jobs.
HOST_WAIT = 0.10
EVENT_SHARE = 0.01
LARGER_BATCH = 4
# Devices on which torch records graphs.
WITH_GRAPHS = ("cuda", "xpu")


class HostBound(RunRule):
    """The device waited for the host to give it work."""

    code = "SY611"
    name = "waits-for-host"
    severity = "warning"
    why = (
        "The host launches every kernel of a step. If the kernels are short, the device has finished one before the "
        "next is launched, and waits. The figure then depends on the processor and on Python more than on the "
        "accelerator: a faster accelerator would hardly be faster."
    )
    detected = (
        "After each step the worker asks whether the device still works on the step before. If it does not, a few "
        "steps of the cross-check are profiled, and what no kernel, no data and no communication explains is waiting "
        "for the host. A finding above 10 % of the time."
    )
    bad = Example(
        'quantities.host_wait_share = {value = 0.62, unit = "1", scope = "job", window = "crosscheck", '
        'aggregation = "share of time"}\n',
        "The device had nothing to do for 62 % of the time.",
    )
    good = Example(
        'quantities.host_wait_share = {value = 0.0, unit = "1", scope = "job", window = "steady", '
        'aggregation = "share of time"}\n',
        "The host was always ahead.",
    )
    fix = (
        "give each launch more work: a larger batch, or --compile reduce-overhead, which launches a step as one graph; "
        "in generation --kv-cache static --graphs"
    )

    def check(self, record: RunRecord) -> Iterator[Finding]:
        """Yield a finding with the share of time."""
        share = record.quantities.get("host_wait_share")
        if share is None or share.value is None or share.value <= HOST_WAIT:
            return
        queue = record.queue
        led = "" if queue is None or queue.led_share is None else f"the host led in {percent(queue.led_share, 2)} of "
        changes: dict[str, object] = {"batch": LARGER_BATCH * record.spec.batch}
        family = record.environment.device if record.environment else record.spec.device_family
        if record.spec.mode == "generate" and not record.spec.graphs and family in WITH_GRAPHS:
            changes = {"kv_cache": "static", "graphs": True}
        yield self.found(
            f"the device waited for the host {percent(share.value, 2)} of the time",
            command=run_again(record.spec, changes),
            evidence=f"{led}the steps" if led else "",
        )


class HiddenSynchronisations(RunRule):
    """The program made the host wait for the device inside its steps."""

    code = "SY612"
    name = "hidden-synchronisations"
    severity = "note"
    why = (
        "A copy from memory that is not pinned, a mask, a gradient scaler or a printed value makes the host wait until "
        "the device is idle. The device then waits for the next launches, in every step."
    )
    detected = (
        "torch counts such calls in a few steps of the cross-check (CUDA and ROCm). A finding if there is at least one "
        "per step and the device waited for the host for more than 10 % of the time, or for an unknown time."
    )
    bad = Example(
        "queue = {led_share = 0.0, profiled_steps = 3, synchronisations = 2.0}\n"
        'quantities.host_wait_share = {value = 0.3, unit = "1", scope = "job", window = "crosscheck", '
        'aggregation = "share of time"}\n',
        "Two calls per step made it wait.",
    )
    good = Example(
        "queue = {led_share = 1.0, profiled_steps = 3, synchronisations = 0.0}\n", "Nothing waited inside a step."
    )
    fix = (
        "use pinned memory, read values only between many steps, and use bf16 instead of fp16 with a gradient scaler, "
        "or --optimizer-kernel fused: it removes the scale without waiting"
    )

    def check(self, record: RunRecord) -> Iterator[Finding]:
        """Yield a finding with the number of calls."""
        queue, share = record.queue, record.quantities.get("host_wait_share")
        if queue is None or queue.synchronisations is None or queue.synchronisations < 1:
            return
        if share is not None and share.value is not None and share.value <= HOST_WAIT:
            return
        waited = "an unknown share" if share is None or share.value is None else percent(share.value, 2)
        yield self.found(
            f"{short(queue.synchronisations, 3)} calls per step made the host wait for the device, which then waited "
            f"for the host {waited} of the time"
        )


class CostlyEvents(RunRule):
    """Timing the steps takes a visible part of them."""

    code = "SY613"
    name = "costly-events"
    severity = "warning"
    why = "Each step is timed by events in the device's queue. If a step is very short, they make it longer."
    detected = (
        "The cost of an event is measured at the start, on the device behind other work and on the host. A finding if "
        "the events of a step take more than 1 % of it: on the device, or on the host if the device waits for it."
    )
    bad = Example(
        "queue = {led_share = 1.0, event_s = 8e-6, event_host_s = 2e-6, events_per_step = 2}\n"
        'quantities.step_time_mean = {value = 0.0004, unit = "s", scope = "job", window = "steady", '
        'aggregation = "mean"}\n',
        "16 of 400 microseconds are events.",
    )
    good = Example(
        "queue = {led_share = 1.0, event_s = 8e-6, event_host_s = 2e-6, events_per_step = 2}\n"
        'quantities.step_time_mean = {value = 0.04, unit = "s", scope = "job", window = "steady", '
        'aggregation = "mean"}\n',
        "16 of 40,000 microseconds are events.",
    )
    fix = "measure with more work per step, such as a larger batch"

    def check(self, record: RunRecord) -> Iterator[Finding]:
        """Yield a finding with the share of the step."""
        queue, step = record.queue, record.quantities.get("step_time_mean")
        if queue is None or queue.event_s is None or step is None or not step.value:
            return
        waited = record.quantities.get("host_wait_share")
        lags = waited is not None and bool(waited.value)
        each_s = max(queue.event_s, queue.event_host_s or 0.0) if lags else queue.event_s
        share = queue.events_per_step * each_s / step.value
        if share > EVENT_SHARE:
            yield self.found(
                f"the events that time a step take {percent(share, 2)} of it: "
                f"{queue.events_per_step} of {short(1e6 * each_s, 3)} us",
                command=run_again(record.spec, {"batch": LARGER_BATCH * record.spec.batch}),
            )
