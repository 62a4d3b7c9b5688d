"""`python -P -m steelyard.worker.assumptions CHECK...`: check what the engine assumes of the accelerator of this node.

Started by `steelyard selftest --accelerator`, which must not import torch. Prints one JSON object per check as soon as
it is made, so that a check that hangs loses only itself.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from steelyard.contracts.accelerator import MAX_DETAILS, AssumptionCheck
from steelyard.contracts.base import from_json_object, to_json_object
from steelyard.contracts.spec import RunSpec
from steelyard.worker.devices.profiler import computes, covered_s
from steelyard.worker.devices.torch_device import open_device
from steelyard.worker.engine.run import failure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

# The caller gives up earlier; this is for the case that it has died.
LIMIT_S = 180
MAX_TEXT = 300
NAME_CHARACTERS = 120
MICRO = 1e6
# A block of work between events: longer than what a synchronisation adds, short enough for a node of an hour.
BLOCK_S, MARKS = 1.0, 64
CLOSE = 0.005
"""By how much the device's clock may differ from the host's over a block."""
IDLE_PARTS, IDLE_S = 6, 0.5
IDLE_CLOSE = 0.001
AT_ONCE_S, GIVE_UP_S, TRIES = 1e-3, 0.01, 9
"""An event on the empty queue opens a block at the host's time: a later one shifts the block by as much."""
LAUNCHES = 64
AHEAD = 0.5
"""Share of the work's time after which the host must be back from launching it."""
MOST_LAUNCHES, MOST_S = 20_000, 10.0
BLOCKED = 8
"""Launches in a row that each take as long as the work of one: the queue is full."""
PROFILE_CLOSE = 0.02
SIDE = 8192
COPY_BYTES = 64 << 20
HELD_BYTES = 1 << 30


class Bench:
    """A device, and the work that the checks give it."""

    def __init__(self, device: Any) -> None:
        self.device = device

    def wait(self, seconds: float) -> None:
        """Let time pass while the device is idle."""
        time.sleep(seconds)

    def long_kernel(self) -> Callable[[], Any]:
        """Return a matrix product of some milliseconds, which has run once: libraries start late."""
        left, right = (torch.rand(SIDE, SIDE, device=self.device.device) for _ in range(2))
        product = torch.mm(left, right)
        return lambda: torch.mm(left, right, out=product)

    def from_host(self) -> Callable[[], Any]:
        """Return a copy from the host, as of a batch."""
        batch = torch.empty(COPY_BYTES, dtype=torch.uint8)
        return lambda: batch.to(self.device.device)

    def all_reduce(self) -> Callable[[], Any] | None:
        """Return a sum over all devices of this process; None with one device, or without such a library."""
        kind = self.device.device.type
        if kind != "cuda" or torch.cuda.device_count() < 2:
            return None
        parts = [torch.ones(1 << 20, device=f"{kind}:{index}") for index in range(torch.cuda.device_count())]
        nccl: Any = torch.cuda.nccl
        try:
            nccl.all_reduce(parts)
        except Exception:  # noqa: BLE001 -- the collectives have a check of their own
            return None
        return lambda: nccl.all_reduce(parts)

    def allocate(self, size_bytes: int) -> Any:
        """Return memory of the device."""
        return torch.empty(size_bytes, dtype=torch.uint8, device=self.device.device)


def _judge(
    name: str, faults: Sequence[str], good: str, numbers: dict[str, float], details: Iterable[str] = ()
) -> AssumptionCheck:
    return AssumptionCheck(
        name=name,
        outcome="not as assumed" if faults else "ok",
        text="; ".join(faults) or good,
        numbers=numbers,
        details=tuple(text[:NAME_CHARACTERS] for text in details)[:MAX_DETAILS],
    )


def _each_s(device: Any, load: Callable[[], Any]) -> float:
    """Return the seconds of one piece of work, after a first one that compiles or starts libraries."""
    load()
    device.synchronize()
    begin_s = device.now()
    for _ in range(LAUNCHES):
        load()
    device.synchronize()
    return float(device.now() - begin_s) / LAUNCHES


def check_events(bench: Bench) -> AssumptionCheck:
    """Check that events have times that increase and agree with the host's clock, and measure what they cost."""
    device = bench.device
    if not device.queued:
        fault = "events have no times here, so every time is that of the host after a synchronisation"
        return _judge("events", [fault], "", {})
    load = device.load()
    loads = max(1, int(BLOCK_S / MARKS / _each_s(device, load)))
    device.synchronize()
    begin_s = device.now()
    marks = [device.record()]
    for _ in range(MARKS):
        for _ in range(loads):
            load()
        marks.append(device.record())
    device.synchronize()
    host_s = device.now() - begin_s
    steps = np.diff(device.seconds(marks))
    for _ in range(LAUNCHES):
        load()
    marks = [device.record() for _ in range(4 * MARKS)]
    device.synchronize()
    fine = np.diff(device.seconds(marks))
    numbers = {
        "host_s": host_s,
        "device_s": float(steps.sum()),
        "ratio": float(steps.sum() / host_s),
        "events_not_later": int((steps <= 0).sum()),
    }
    if (fine > 0).any():
        numbers["resolution_s"] = float(fine[fine > 0].min())
    faults = []
    if numbers["events_not_later"]:
        faults.append(f"{numbers['events_not_later']} of {MARKS} events are not later than the one before")
    if abs(numbers["ratio"] - 1) > CLOSE:
        faults.append(f"events say {steps.sum():.4g} s for a block that took {host_s:.4g} s by the host's clock")
    cost = device.event_cost()
    if cost is None:
        faults.append("the cost of an event cannot be measured: the device is never busy when it is recorded")
        return _judge("events", faults, "", numbers)
    numbers |= {"event_device_s": cost.device_s, "event_host_s": cost.host_s}
    good = (
        f"event times increase and agree with the host's clock (ratio {numbers['ratio']:.4f}); an event costs the "
        f"device {MICRO * cost.device_s:.2g} microseconds and the host {MICRO * cost.host_s:.2g}"
    )
    return _judge("events", faults, good, numbers)


def check_clocks(bench: Bench) -> AssumptionCheck:
    """Check that an event on the empty queue is reached at once, and that the device's clock keeps the host's pace."""
    device = bench.device
    if not device.queued:
        return AssumptionCheck(name="clocks", outcome="could not check", text="events have no times here")
    delays = []
    for _ in range(TRIES):
        device.synchronize()
        begin_s = device.now()
        event = device.record()
        while device.ask(event) and device.now() - begin_s < GIVE_UP_S:
            pass
        delays.append(device.now() - begin_s)
        device.synchronize()
        device.seconds([event])
    hosts, marks = [], []
    for _ in range(IDLE_PARTS + 1):
        device.synchronize()
        hosts.append(device.now())
        marks.append(device.record())
        bench.wait(IDLE_S)
    device.synchronize()
    times = device.seconds(marks)
    late_s, span_s = float(np.median(delays)), hosts[-1] - hosts[0]
    rate = float(times[-1] - times[0]) / span_s
    faults = []
    if late_s > AT_ONCE_S:
        more = "more than " if late_s >= GIVE_UP_S else ""
        faults.append(f"an event on an empty queue is reached only after {more}{1e3 * late_s:.3g} ms")
    if abs(rate - 1) > IDLE_CLOSE:
        faults.append(f"the device's clock runs at {rate:.4f} times the host's over {span_s:.1f} s")
    good = (
        f"an event on an empty queue is reached after {MICRO * late_s:.3g} microseconds, and the clocks differ by "
        f"{MICRO * abs(rate - 1):.3g} parts in a million over {span_s:.1f} s"
    )
    return _judge("clocks", faults, good, {"empty_queue_s": late_s, "clock_ratio": rate, "over_s": span_s})


def check_queue(bench: Bench) -> AssumptionCheck:
    """Check that the host returns from launches before the device has run them; find about how many it may be ahead."""
    device = bench.device
    if not device.queued:
        return AssumptionCheck(name="queue", outcome="could not check", text="events have no times here")
    load = device.load()
    each_s = _each_s(device, load)
    begin_s = device.now()
    for _ in range(LAUNCHES):
        load()
    event = device.record()
    back_s = device.now() - begin_s
    # Asks the driver, and does not wait.
    pending = device.ask(event)
    device.synchronize()
    share = back_s / (device.now() - begin_s)
    device.seconds([event])
    numbers = {"host_share": share, "work_s": each_s, "pending": float(pending)}
    faults = []
    if share > AHEAD:
        told = "launches wait for the device (CUDA_LAUNCH_BLOCKING?), or the queue is short"
        faults.append(f"the host returned only after {share:.0%} of the work's time: {told}")
    depth, launched = _depth(device, load, each_s)
    numbers["launched"] = launched
    told = f"more than {launched:,} launches were not enough to fill it"
    if depth is not None:
        numbers["depth"], told = depth, f"it holds about {depth:,} launches"
    return _judge("queue", faults, f"the host runs ahead of the device's queue; {told}", numbers)


def _depth(device: Any, load: Callable[[], Any], each_s: float) -> tuple[int | None, int]:
    """Launch until launches take as long as the work itself; return how many were waiting then, and were launched."""
    begin_s = before_s = device.now()
    slow, depth, launched = 0, None, 0
    for launched in range(1, MOST_LAUNCHES + 1):
        load()
        now_s = device.now()
        slow = slow + 1 if now_s - before_s > each_s / 2 else 0
        before_s = now_s
        if slow == BLOCKED:
            depth = max(1, launched - int((now_s - begin_s) / each_s))
        if depth is not None or now_s - begin_s > MOST_S:
            break
    device.synchronize()
    return depth, launched


def check_profiler(bench: Bench) -> AssumptionCheck:
    """Check that torch's profiler sees kernels with their times, and that copies and communication are recognised."""
    device = bench.device
    if not device.queued:
        return AssumptionCheck(name="profiler", outcome="could not check", text="events have no times here")
    kernel, copy = bench.long_kernel(), bench.from_host()
    device.synchronize()
    marks: list[Any] = []

    def run() -> None:
        marks.append(device.record())
        kernel()
        marks.append(device.record())

    seen, reason = device.seen(run)
    if seen is None:
        return _judge("profiler", [reason], "", {})
    by_events_s = float(np.diff(device.seconds(marks))[0])
    by_profiler_s = covered_s([span for name, *span in seen if computes(name)])
    numbers = {"events_s": by_events_s, "profiler_s": by_profiler_s, "ratio": by_profiler_s / by_events_s}
    faults = []
    if abs(numbers["ratio"] - 1) > PROFILE_CLOSE:
        faults.append(f"a kernel of {1e3 * by_events_s:.4g} ms takes {1e3 * by_profiler_s:.4g} ms for the profiler")
    names = [name for name, *_ in seen]
    copied, reason = device.seen(copy)
    others = [name for name, *_ in copied or ()]
    if all(map(computes, others)):
        faults.append(f"a copy from the host is not recognised by its name ({reason or ', '.join(others)[:MAX_TEXT]})")
    told = "the name of a copy is recognised; that of communication was not checked"
    if (reduce := bench.all_reduce()) is not None:
        reduced = [name for name, *_ in device.seen(reduce)[0] or ()]
        others += reduced
        told = "names of copies and communication are recognised"
        if all(map(computes, reduced)):
            faults.append(f"communication is not recognised by its name ({', '.join(reduced)[:MAX_TEXT]})")
    good = f"the profiler sees kernels and agrees with events (ratio {numbers['ratio']:.3f}); {told}"
    return _judge("profiler", faults, good, numbers, dict.fromkeys(names + others))


def check_memory(bench: Bench) -> AssumptionCheck:
    """Check that a failed allocation is recognised by its words, and that the figures of memory are plausible."""
    device = bench.device
    total = device.memory_bytes()
    if total is None:
        return AssumptionCheck(name="memory", outcome="could not check", text="torch does not tell the device's memory")
    faults, message = [], ""
    try:
        bench.allocate(2 * int(total))
        faults.append("the device allocates twice the memory that it has")
    except Exception as error:  # noqa: BLE001 -- which class it is differs between devices
        message = " ".join(f"{type(error).__name__}: {error}".split())[:MAX_TEXT]
        if failure(error, RunSpec(run_id="memory", configuration="memory")).code != "out_of_memory":
            faults.append(f'a device without memory says "{message}", which is not recognised as out of memory')
    device.forget_memory()
    held_bytes = min(HELD_BYTES, int(total) // 4)
    held = bench.allocate(held_bytes)
    device.synchronize()
    memory = device.memory()
    del held
    figures = {
        "asked": float(held_bytes),
        "allocated": memory.peak_bytes,
        "reserved": memory.reserved_bytes,
        "driver": memory.driver_used_bytes,
        "device": memory.device_bytes,
    }
    known = [(name, value) for name, value in figures.items() if value is not None]
    faults += [
        f"memory is not plausible: {name} {value:.4g} bytes, {larger} {more:.4g} bytes"
        for (name, value), (larger, more) in zip(known, known[1:])  # noqa: B905, RUF007 -- Python 3.10
        if value > more
    ]
    unknown = [name for name, value in figures.items() if value is None]
    told = f"; unknown: {', '.join(unknown)}" if unknown else ""
    good = f"a failed allocation is recognised as out of memory, and the figures of memory are plausible{told}"
    return _judge("memory", faults, good, {f"{name}_bytes": value for name, value in known}, filter(None, [message]))


CHECKS: dict[str, Callable[[Bench], AssumptionCheck]] = {
    "events": check_events,
    "clocks": check_clocks,
    "queue": check_queue,
    "profiler": check_profiler,
    "memory": check_memory,
}


def check(name: str, bench: Bench) -> AssumptionCheck:
    """Make one check; an error in it becomes its result."""
    try:
        # As the caller will read it: a number that is not finite is an error, too.
        return from_json_object(AssumptionCheck, to_json_object(CHECKS[name](bench)))
    except Exception as error:  # noqa: BLE001 -- nobody has seen this device before: any error is a result
        text = " ".join(f"{type(error).__name__}: {error}".split())[:MAX_TEXT]
        return AssumptionCheck(name=name, outcome="could not check", text=text)


def main() -> int:
    """Make the checks that are named. What torch itself prints goes to standard error."""
    signal.alarm(LIMIT_S)
    own = os.dup(1)
    os.dup2(2, 1)
    bench = Bench(open_device("auto", 0, 0))
    with os.fdopen(own, "w", encoding="utf-8") as output:
        for name in sys.argv[1:]:
            print(json.dumps(to_json_object(check(name, bench))), file=output, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
