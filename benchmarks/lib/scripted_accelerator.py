"""A scripted accelerator with two clocks, both virtual: a host that pays for launches, and a device with a queue.

It stands where torch's device module stands, under the product's real device class, timer, block loop, cross-check and
derivation. The host issues kernels, copies, collectives and events; the device runs them in streams, never before they
were issued, and the host waits when the queue is full. Each rank is a thread with a host clock of its own. Collectives
end on all ranks at once, after the last has arrived; whatever depends on one is known only then.

The truth of a script comes from the same machine without any timer: nothing is recorded, and steps are not cut into
blocks. It shares no code with what derives the figures.
"""

from __future__ import annotations

import itertools
import threading
import time
import warnings
from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch
from torch._C._autograd import DeviceType

from steelyard.contracts.observe import SPEC_FILE, Status
from steelyard.derive.record import derive
from steelyard.results.store import record_text
from steelyard.worker.assumptions import Bench, check
from steelyard.worker.devices.torch_device import EventDevice
from steelyard.worker.engine.run import measure
from steelyard.worker.measure.writer import EventLog
from steelyard.worker.workloads.batches import batches
from steelyard.worker.workloads.step_maker import PROFILED_STEPS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from steelyard.contracts.accelerator import AssumptionCheck
    from steelyard.contracts.record import RunRecord
    from steelyard.contracts.spec import RunSpec
    from steelyard.worker.workloads.batches import Batch

COMPUTE, COPY, COMM = range(3)
# Threads that wait for each other longer than this have a fault.
STUCK_S = 300.0
# A profiler makes each launch slower; kernels take as long as before.
PROFILED_LAUNCH = 3.0
AGREE_S = 100e-6


@dataclass(frozen=True)
class Script:
    """The true machine and program."""

    kernels: tuple[float, ...] = (1e-3,) * 10
    """Seconds of each kernel of a step on the device."""
    launch_s: float = 10e-6
    """Host time per launch."""
    depth: int = 1024
    """Entries of the queue of each stream."""
    event_s: float = 1e-6
    """Cost of an event on the device."""
    event_host_s: float = 1e-6
    query_s: float = 0.5e-6
    wake_s: float = 10e-6
    """From the end of the device's work to the return of a synchronisation."""
    loader_s: float | None = None
    """Time in which the loader makes a batch; None: batches are on the device."""
    prefetch: int = 2
    copy_s: float = 0.0
    copy: str = "stream"
    """stream: in the compute stream; own stream; synchronous: from memory that is not pinned."""
    syncs: int = 0
    """Calls per step in which the host waits for the device."""
    buckets: tuple[tuple[int, float], ...] = ()
    """All-reduces: after which kernel each starts, and its seconds once all ranks have arrived."""
    reduced_by: int = 0
    """The kernel that needs all of them: the optimizer."""
    device_factors: tuple[float, ...] = (1.0,)
    """Of each rank: how many times longer its kernels take."""
    host_factors: tuple[float, ...] = (1.0,)
    clock_swing: float = 0.0
    """The device's clock changes between full speed and this much slower."""
    clock_period_s: float = 0.1
    delay_rank: int | None = None
    delay_s: float = 0.0
    """A rank that is late after every block of steps, and by how much."""
    blocking: bool = False
    """Whether a launch waits until its kernel has run."""
    timer_scale: float = 1.0
    """Length of a true second by its events."""
    profiler_scale: float = 1.0
    """Length of a true second by the profiler; 0: it sees no kernel."""
    names: tuple[str, str, str] = ("gemm", "Memcpy HtoD (Pinned -> Device)", "ncclDevKernel_AllReduce")
    """Of kernels, copies and collectives in the profiler."""
    memory_bytes: int = 80 << 30
    full: str = "CUDA out of memory. Tried to allocate 160.00 GiB."
    """What the driver says if there is no memory left; empty: it allocates more than there is."""
    driver_share: float = 1.0
    """Of the memory in use: what the driver counts."""

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return len(self.device_factors)


class Op:
    """One entry of the queue."""

    __slots__ = ("collective", "end_s", "issue_s", "kind", "needs", "seconds", "start_s", "stream")

    def __init__(self, kind: str, stream: int, seconds: float, issue_s: float, needs: tuple[Op, ...]) -> None:
        self.kind, self.stream, self.seconds, self.issue_s, self.needs = kind, stream, seconds, issue_s, needs
        self.start_s = self.end_s = -1.0
        """-1: not known yet."""
        self.collective = -1


@dataclass
class World:
    """What the ranks share."""

    ranks: int
    machines: list[Machine] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)
    clocks: list[float] = field(default_factory=list)
    arrived: dict[int, dict[int, float]] = field(default_factory=dict)
    meetings: dict[int, dict[int, tuple[float, list[int]]]] = field(default_factory=dict)
    waiting: int = 0
    failed: BaseException | None = None

    def settle(self) -> None:
        """Find all times that follow from what the ranks have issued. The caller holds `changed`."""
        progress = True
        while progress:
            progress = sum(machine.settle() for machine in self.machines) > 0

    def wait(self) -> None:
        """Wait until another rank has done something. The caller holds `changed`."""
        if self.failed is not None:
            raise RuntimeError("another rank failed") from self.failed
        self.waiting += 1
        try:
            if not self.changed.wait(STUCK_S):
                raise RuntimeError("the ranks wait for each other")
        finally:
            self.waiting -= 1


class Machine:
    """Host and device of one rank."""

    def __init__(self, script: Script, rank: int, world: World) -> None:
        self.script, self.rank, self.world = script, rank, world
        self.host_s = 0.0
        self.slow = script.host_factors[rank]
        self.speed = script.device_factors[rank]
        self.history: list[Op] = []
        """Everything issued since `forget`."""
        self.in_take: list[tuple[float, float]] = []
        self.launch_factor = 1.0
        self.allocated_bytes = 0
        self._unknown: deque[Op] = deque()
        self._tails = [0.0, 0.0, 0.0]
        self._recent: list[deque[Op]] = [deque(maxlen=script.depth) for _ in self._tails]
        self._needs: list[Op] = []
        self._collectives = 0

    # -- the host

    def spend(self, seconds: float) -> None:
        """Let the host work for some time."""
        self.be_at(self.host_s + seconds * self.slow)

    def be_at(self, host_s: float) -> None:
        """Let the host wait until a time."""
        if host_s > self.host_s:
            self.host_s = self.world.clocks[self.rank] = host_s
            if self.world.waiting:
                with self.world.changed:
                    self.world.changed.notify_all()

    def need(self, op: Op) -> None:
        """Let the next entry of the compute stream wait for another one."""
        self._needs.append(op)

    def issue(
        self, kind: str, seconds: float, stream: int = COMPUTE, needs: tuple[Op, ...] = (), *, cost_s: float
    ) -> Op:
        """Enqueue one entry. The host waits while the queue is full."""
        self.spend(cost_s)
        recent = self._recent[stream]
        if len(recent) == self.script.depth:
            oldest = recent[0]
            self.ensure(oldest)
            self.be_at(oldest.end_s)
        if stream == COMPUTE and self._needs:
            needs, self._needs = (*needs, *self._needs), []
        op = Op(kind, stream, seconds, self.host_s, needs)
        if kind == "collective":
            op.collective = self._collectives
            self._collectives += 1
        recent.append(op)
        self.history.append(op)
        if self.world.ranks == 1:
            self._settle(op)
            return op
        with self.world.changed:
            if self._unknown or not self._settle(op):
                self._unknown.append(op)
            if self.world.waiting and op.collective >= 0:
                self.world.changed.notify_all()
        return op

    def launch(self, seconds: float) -> Op:
        """Launch a kernel."""
        op = self.issue("kernel", seconds * self.speed, cost_s=self.script.launch_s * self.launch_factor)
        if self.script.blocking:
            self.ensure(op)
            self.be_at(op.end_s)
        return op

    def ensure(self, op: Op) -> None:
        """Wait, in real time, until the times of an entry are known."""
        if op.end_s >= 0:
            return
        with self.world.changed:
            self.world.settle()
            while op.end_s < 0:
                self.world.wait()
                self.world.settle()

    def synchronize(self) -> None:
        """Let the host wait for the whole device."""
        for op in itertools.chain(*self._recent):
            self.ensure(op)
        last = max(self._tails)
        if last > self.host_s:
            self.be_at(last + self.script.wake_s)

    def has_passed(self, op: Op) -> bool:
        """Whether the device has reached an entry at the host's present time."""
        self.spend(self.script.query_s)
        if op.end_s >= 0:
            return op.end_s <= self.host_s
        with self.world.changed:
            self.world.settle()
            while op.end_s < 0:
                # What the others have not issued by now cannot end before.
                if all(clock >= self.host_s for clock in self.world.clocks):
                    return False
                self.world.wait()
                self.world.settle()
        return op.end_s <= self.host_s

    # -- the device

    def _settle(self, op: Op) -> bool:
        """Find the times of an entry whose predecessors in its stream are known; False: it waits for another rank."""
        start_s = max(op.issue_s, self._tails[op.stream])
        for other in op.needs:
            if other.end_s < 0:
                return False
            start_s = max(start_s, other.end_s)
        if op.collective >= 0:
            arrived = self.world.arrived.setdefault(op.collective, {})
            arrived.setdefault(self.rank, start_s)
            if len(arrived) < self.world.ranks:
                return False
            end_s = max(arrived.values()) + op.seconds
        elif op.kind == "kernel":
            end_s = start_s + op.seconds * self._stretch(start_s)
        else:
            end_s = start_s + op.seconds
        op.start_s, op.end_s = start_s, end_s
        self._tails[op.stream] = end_s
        return True

    def settle(self) -> bool:
        """Find the times of all entries that do not wait for another rank; return whether there were any."""
        blocked: set[int] = set()
        before = len(self._unknown)
        remaining: deque[Op] = deque()
        for op in self._unknown:
            if op.stream in blocked or not self._settle(op):
                blocked.add(op.stream)
                remaining.append(op)
        self._unknown = remaining
        return len(remaining) < before

    def _stretch(self, at_s: float) -> float:
        script = self.script
        if not script.clock_swing:
            return 1.0
        return 1.0 + (script.clock_swing if (at_s / script.clock_period_s) % 1.0 < 0.5 else 0.0)


# -- torch's device module, for one machine


class ScriptedModule:
    """What `torch.cuda` is for a real device."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        if machine.world.ranks == 1:
            # Python's warnings belong to the process, and several ranks share one here.
            self.set_sync_debug_mode = self._set_sync_debug_mode
        self.warns = False

    def synchronize(self) -> None:
        """Wait for the device."""
        self.machine.synchronize()

    def Event(self, *, enable_timing: bool) -> ScriptedEvent:  # noqa: N802 -- torch's name
        """Return a new event."""
        assert enable_timing
        return ScriptedEvent(self.machine)

    def _set_sync_debug_mode(self, mode: str) -> None:
        self.warns = mode == "warn"

    def get_device_properties(self, _index: int) -> Any:
        """Return the size of the memory."""
        return SimpleNamespace(total_memory=self.machine.script.memory_bytes)

    def max_memory_allocated(self) -> int:
        """Return the most memory that was in use."""
        return self.machine.allocated_bytes

    max_memory_reserved = max_memory_allocated

    def mem_get_info(self) -> tuple[int, int]:
        """Return free and total memory as the driver counts."""
        script = self.machine.script
        used = int(script.driver_share * self.machine.allocated_bytes)
        return script.memory_bytes - used, script.memory_bytes


class ScriptedEvent:
    """An event whose time is known only after a synchronisation."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._op: Op | None = None

    def record(self) -> None:
        """Enqueue it."""
        script = self._machine.script
        self._op = self._machine.issue("event", script.event_s, cost_s=script.event_host_s)

    def query(self) -> bool:
        """Whether the device has reached it."""
        assert self._op is not None
        return self._machine.has_passed(self._op)

    def elapsed_time(self, other: ScriptedEvent) -> float:
        """Return milliseconds from this event to another."""
        assert self._op is not None
        assert other._op is not None
        if min(self._op.end_s, other._op.end_s) < 0:
            raise RuntimeError("Both events must be completed before calculating elapsed time.")
        return 1e3 * (other._op.start_s - self._op.start_s) * self._machine.script.timer_scale


class ScriptedDevice(EventDevice):
    """The product's own device class, on the scripted module and its host's clock."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine.rank, torch.device("cuda", machine.rank), ScriptedModule(machine))
        self.machine = machine

    def now(self) -> float:
        """Return the virtual time of the host."""
        return self.machine.host_s

    def load(self) -> Callable[[], Any]:
        """Return a kernel of 1 ms."""
        return lambda: self.machine.launch(1e-3)


class ScriptedBench(Bench):
    """What the checks of `steelyard selftest --accelerator` run, on one scripted machine."""

    device: ScriptedDevice

    def __init__(self, script: Script) -> None:
        world = World(1, clocks=[0.0])
        machine = Machine(script, 0, world)
        world.machines = [machine]
        super().__init__(ScriptedDevice(machine))
        self._machine = machine

    def check(self, name: str) -> AssumptionCheck:
        """Make one check under the scripted profiler."""
        _CURRENT.machine = self._machine
        with mock.patch.object(torch.profiler, "profile", _profile):
            return check(name, self)

    def wait(self, seconds: float) -> None:
        """Let virtual time pass."""
        self._machine.spend(seconds)

    def long_kernel(self) -> Callable[[], Any]:
        """Return a kernel of 20 ms."""
        return lambda: self._machine.launch(20e-3)

    def from_host(self) -> Callable[[], Any]:
        """Return a copy of 1 ms."""
        return lambda: self._machine.issue("copy", 1e-3, cost_s=self._machine.script.launch_s)

    def all_reduce(self) -> Callable[[], Any]:
        """Return a collective of 1 ms."""
        return lambda: self._machine.issue("collective", 1e-3, cost_s=self._machine.script.launch_s)

    def allocate(self, size_bytes: int) -> None:
        """Count memory; an error in the driver's words if there is none left."""
        script = self._machine.script
        if self._machine.allocated_bytes + size_bytes > script.memory_bytes and script.full:
            raise RuntimeError(script.full)
        self._machine.allocated_bytes += size_bytes


# -- the program


class ScriptedSteps:
    """A training loop on one machine; `record` is None for the truth, where nothing is recorded."""

    learnable = False
    block_steps: int | None = None
    events_per_step = 2
    profiled_steps = PROFILED_STEPS

    def __init__(self, machine: Machine, plan: Iterator[Batch], module: ScriptedModule | None) -> None:
        self._machine, self._plan, self._module = machine, plan, module
        self.communicates = bool(machine.script.buckets)
        self._made_s = 0.0
        self._taken: deque[float] = deque(maxlen=machine.script.prefetch)
        self._record: Callable[[], Any] | None = None
        self._watched: Callable[[], Any] | None = None

    def compile(self) -> None:
        """Do nothing."""

    def take(self) -> Batch:
        """Wait for the loader and copy the batch."""
        machine, script = self._machine, self._machine.script
        begin_s = machine.host_s
        if script.loader_s is not None:
            room_s = self._taken[0] if len(self._taken) == script.prefetch else 0.0
            self._made_s = max(self._made_s, room_s) + script.loader_s
            machine.be_at(self._made_s)
            self._taken.append(machine.host_s)
        if script.copy_s:
            own = COPY if script.copy == "own stream" else COMPUTE
            copied = machine.issue("copy", script.copy_s, own, cost_s=script.launch_s)
            if script.copy == "own stream":
                machine.need(copied)
            elif script.copy == "synchronous":
                self._wait_for(copied)
        machine.in_take.append((begin_s, machine.host_s))
        return next(self._plan)

    def run(self, batch: Batch) -> tuple[Any, Any] | None:  # noqa: ARG002 -- part of the interface
        """Launch the kernels of one step."""
        machine, script = self._machine, self._machine.script
        starts = dict(script.buckets)
        last = max(starts, default=-1)
        reduces: list[Op] = []
        exposed: tuple[Any, Any] | None = None
        ready = None
        for number, seconds in enumerate(script.kernels):
            if reduces and number == script.reduced_by:
                for op in reduces:
                    machine.need(op)
                if self._watched is not None:
                    exposed = (ready, self._watched())
            kernel = machine.launch(seconds)
            if number in starts:
                if number == last and self._watched is not None:
                    ready = self._watched()
                reduces.append(machine.issue("collective", starts[number], COMM, (kernel,), cost_s=script.launch_s))
        for _ in range(script.syncs):
            self._wait_for(kernel)
        return exposed

    def _wait_for(self, op: Op) -> None:
        """Make the host wait for an entry, as `.item()` does."""
        if self._module is not None and self._module.warns:
            warnings.warn("called a synchronizing CUDA operation", stacklevel=1)
        machine = self._machine
        machine.ensure(op)
        if op.end_s > machine.host_s:
            machine.be_at(op.end_s + machine.script.wake_s)

    def watch_with(self, record: Callable[[], Any]) -> None:
        """Keep the function that records an event."""
        self._record = record

    def watch_communication(self) -> None:
        """From now on record when communication is exposed."""
        if self.communicates:
            self._watched = self._record

    def after_block(self, table: Any, raw: Path) -> None:  # noqa: ARG002
        """Be late, if the script says so."""
        script = self._machine.script
        if script.delay_rank == self._machine.rank:
            self._machine.spend(script.delay_s)

    def last_loss(self) -> None:
        """Return None."""

    def close(self) -> None:
        """Do nothing."""


class ScriptedTeam:
    """All ranks meet, as in a collective of one element."""

    def __init__(self, machine: Machine) -> None:
        self.process = machine.rank
        self._machine = machine
        self._calls = 0

    def agree(self, values: list[int]) -> list[int]:
        """Return the values of process 0 when all have arrived."""
        world, number = self._machine.world, self._calls
        self._calls += 1
        with world.changed:
            meeting = world.meetings.setdefault(number, {})
            meeting[self.process] = (self._machine.host_s, values)
            world.changed.notify_all()
            while len(meeting) < world.ranks:
                world.wait()
        self._machine.be_at(max(at_s for at_s, _ in meeting.values()) + AGREE_S)
        return meeting[0][1]


# -- running it


def measured(script: Script, spec: RunSpec, raw: Path) -> RunRecord:
    """Measure the script with the product, and derive the record."""
    (raw / SPEC_FILE).write_text(record_text(spec), encoding="utf-8")

    def run(machine: Machine) -> None:
        _CURRENT.machine = machine
        device = ScriptedDevice(machine)
        steps = ScriptedSteps(machine, batches(spec, machine.rank), device._module)  # noqa: SLF001 -- the scripted one
        steps.watch_with(device.record)
        job: Any = SimpleNamespace(
            spec=spec, devices=[device], team=ScriptedTeam(machine), judge=None, settings=lambda: None, family="cuda"
        )
        quiet: Any = SimpleNamespace(beat=lambda: None, finish=lambda: None, mark=lambda: None)
        log = EventLog(raw, machine.rank)
        measure(raw, log, job, [steps], quiet, quiet, device.event_cost())
        log.end(Status(code="completed"))

    with mock.patch.object(torch.profiler, "profile", _profile):
        _on_all_ranks(script, run)
    return derive(raw)


@dataclass(frozen=True)
class TrueShares:
    """Where the time of a step really goes."""

    step_s: float
    compute: float
    communication: float
    host: float
    input: float

    @property
    def busy(self) -> float:
        """Share of time in which the device computes or communicates."""
        return self.compute + self.communication


def truth(script: Script, spec: RunSpec, steps: int) -> TrueShares:
    """Run the script without a timer, and add up what the device waited for. The first third does not count.

    If ranks wait for each other, the shares are those of the rank that the others wait for: the others spend in
    communication what they do not spend on their own hosts.
    """
    ends: dict[int, list[float]] = {}
    found: dict[int, tuple[float, float, float, float]] = {}

    def run(machine: Machine) -> None:
        program = ScriptedSteps(machine, batches(spec, machine.rank), None)
        last: list[Op] = []
        for _ in range(steps):
            program.run(program.take())
            last.append(next(op for op in reversed(machine.history) if op.kind == "kernel"))
        machine.synchronize()
        ends[machine.rank] = [op.end_s for op in last]
        first = steps // 3
        found[machine.rank] = _causes(machine, last[first].end_s, last[-1].end_s)

    _on_all_ranks(script, run)
    first = steps // 3
    lengths = [(end[-1] - end[first]) / (steps - 1 - first) for end in ends.values()]
    slowest = min(found, key=lambda rank: found[rank][1])
    whole = sum(found[slowest])
    return TrueShares(sum(lengths) / len(lengths), *(part / whole for part in found[slowest]))


def _causes(machine: Machine, begin_s: float, end_s: float) -> tuple[float, float, float, float]:
    """Return seconds of computation, communication, waiting for the host and for input, between two times.

    Before each kernel the device may have been idle: first because of the collectives or copies that the kernel needs,
    then because the host had not launched it; the host may itself have waited for input.
    """
    compute = communication = host = data = 0.0
    free_s, takes, at = begin_s, machine.in_take, 0
    copies: list[Op] = []
    for op in machine.history:
        if op.kind == "copy":
            copies.append(op)
        if op.kind != "kernel" or op.stream != COMPUTE or op.end_s <= begin_s or op.start_s >= end_s:
            continue
        gap = (free_s, op.start_s)
        if gap[1] > gap[0]:
            idle = gap[1] - gap[0]
            reduced = _union([(need.start_s, need.end_s) for need in op.needs if need.kind == "collective"], gap)
            while at < len(takes) and takes[at][1] < gap[0]:
                at += 1
            taking = [(copy.start_s, copy.end_s) for copy in copies]
            for take in takes[at:]:
                if take[0] > gap[1]:
                    break
                taking.append(take)
            waits = _union([*taking, *reduced], gap)
            shared = sum(b - a for a, b in reduced)
            both = sum(b - a for a, b in waits)
            communication += shared
            data += both - shared
            host += idle - both
        copies = []
        compute += min(op.end_s, end_s) - max(op.start_s, begin_s)
        free_s = op.end_s
    return compute, communication, host, data


def _union(spans: Sequence[tuple[float, float]], within: tuple[float, float]) -> list[tuple[float, float]]:
    """Return the spans inside another one, merged."""
    merged: list[tuple[float, float]] = []
    for begin_s, end_s in sorted((max(a, within[0]), min(b, within[1])) for a, b in spans):
        if end_s <= begin_s:
            continue
        if merged and begin_s <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end_s))
        else:
            merged.append((begin_s, end_s))
    return merged


_CURRENT = threading.local()


@contextmanager
def _profile(activities: Any) -> Iterator[Any]:  # noqa: ARG001 -- torch's signature
    """Return the same as torch's profiler on the machine of this thread."""
    machine: Machine = _CURRENT.machine
    first = len(machine.history)
    machine.launch_factor = PROFILED_LAUNCH
    seen = SimpleNamespace(events=list)
    yield seen
    machine.launch_factor = 1.0
    names = dict(zip(("kernel", "copy", "collective"), machine.script.names, strict=True))
    scale = machine.script.profiler_scale
    found = [
        SimpleNamespace(
            name=names[op.kind],
            device_type=DeviceType.CUDA,
            time_range=SimpleNamespace(
                start=1e6 * op.start_s, end=1e6 * (op.start_s + scale * (op.end_s - op.start_s))
            ),
        )
        for op in machine.history[first:]
        if op.kind in names and scale
    ]
    seen.events = lambda: found


def _on_all_ranks(script: Script, run: Callable[[Machine], None]) -> None:
    """Run a function for every rank, each in its own thread if there are several."""
    world = World(script.ranks, clocks=[0.0] * script.ranks)
    machines = world.machines = [Machine(script, rank, world) for rank in range(script.ranks)]
    if len(machines) == 1:
        run(machines[0])
        return

    def guarded(machine: Machine) -> None:
        try:
            run(machine)
        except BaseException as error:  # noqa: BLE001 -- raised below, in the thread of the caller
            world.failed = world.failed or error
        finally:
            # Who has ended keeps nobody waiting.
            with world.changed:
                world.clocks[machine.rank] = float("inf")
                world.changed.notify_all()

    threads = [threading.Thread(target=guarded, args=(machine,)) for machine in machines]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 10 * STUCK_S
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    if world.failed is not None:
        raise world.failed
