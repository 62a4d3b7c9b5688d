"""The simulated accelerator: a queue on a virtual clock with scripted true times.

It is driven through the same engine, timer and files as a real device.

The host enqueues operations and runs ahead; the device executes them in order, never before they are enqueued. A
collective ends on all ranks at once, after the last has arrived. A rank cannot know when the others arrive, so the
queues are executed only on synchronisation.

Power follows the same clock: if the spec has sensors, each device records what it draws and when, and the simulated
sampler reads that in virtual time. Otherwise nothing is recorded.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from steelyard.contracts.observe import MemoryPeak
from steelyard.errors import WorkerMemoryError
from steelyard.worker.devices.device import Profile
from steelyard.worker.devices.sim_noise import step_factors
from steelyard.worker.sensors.sim import SimSampler

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from steelyard.contracts.spec import RunSpec

# Operations in the queue. Plain integers and tuples: this is the hottest path of a simulated run.
_HOST, _EVENT, _WORK, _COLLECTIVE, _IDLE, _COMPILE = range(6)
_EVENT_ENTRY, _COLLECTIVE_ENTRY = (_EVENT, 0.0), (_COLLECTIVE, 0.0)

# Factors drawn at once over all ranks of a process; 8 MB as Python floats.
_FACTORS_IN_MEMORY = 1 << 18
# Each span is start, stop and watts; passed to the sensors when all devices together have this many numbers.
_SPANS_IN_MEMORY = 1 << 18


def open_devices(spec: RunSpec) -> list[SimDevice]:
    """Create the devices of all ranks, which share one process and one world."""
    world = _World(spec)
    chunk = min(4096, max(16, _FACTORS_IN_MEMORY // spec.devices))
    world.devices = [SimDevice(spec, rank, world, chunk) for rank in range(spec.devices)]
    return world.devices


class SimDevice:
    """One simulated device with its host thread."""

    timing = "virtual clock, deferred events"
    queued = True

    def __init__(self, spec: RunSpec, rank: int, world: _World, chunk: int) -> None:
        self.rank = rank
        self.truth = spec.sim
        self.factors = step_factors(spec.sim, spec.seed, rank, chunk)
        self.speed = spec.sim.slow_factor if rank == spec.sim.slow_rank else 1.0
        self.host_s = 0.0
        self.free_s = 0.0  # when the device has finished what it has seen
        self.memory_bytes = 0.0
        self.world = world
        self._queue: list[tuple[int, float]] = []
        self._cursor = 0
        self._seen_host_s = 0.0  # host time of the current operation
        self._times: list[float] = []
        self._events = 0
        self._worked_s = 0.0
        self._spans: list[float] | None = None  # start, stop and watts while busy, if there are sensors
        power = spec.sim.power
        self._compute_w = power.compute_w
        self._compile_w = power.idle_w if power.compile_w is None else power.compile_w
        self._comm_w = power.idle_w if power.comm_w is None else power.comm_w

    # -- interface of any device

    def now(self) -> float:
        """Return the host's virtual time."""
        return self.host_s

    def record(self) -> int:
        """Enqueue an event; return its number."""
        self._queue.append(_EVENT_ENTRY)
        self._events += 1
        return self._events - 1

    def synchronize(self) -> None:
        """Execute the queues of all ranks, and make the host wait for its device."""
        # An empty queue means that another rank has had it executed.
        if self._queue:
            self.world.work_off()
        if self.free_s > self.host_s:
            self.wait_until(self.free_s)

    def seconds(self, events: Sequence[int]) -> NDArray[np.float64]:
        """Return the event times, as this device's timer reports them."""
        times: NDArray[np.float64] = np.asarray(self._times, dtype=np.float64)[np.asarray(events)]
        self._times.clear()
        self._events = 0
        return times * self.truth.event_scale

    def ask(self, event: int) -> tuple[int, float]:
        """Note when it was asked: the answer is known once the queue is executed."""
        return event, self.host_s

    def told(self, asked: Sequence[tuple[int, float]]) -> Sequence[bool]:
        """Return whether the device reached each event only after it was asked."""
        return [self._times[event] > asked_s for event, asked_s in asked]

    def event_cost(self) -> None:
        """Return None: events take no time here."""

    def profile(self, run: Callable[[], None]) -> Profile:
        """Run the steps and add up the computation that they enqueue."""
        before_s = self._worked_s
        run()
        return Profile(compute_s=self._worked_s - before_s)

    def memory(self) -> MemoryPeak:
        """Return the scripted memory use; unknown if the spec has none."""
        return MemoryPeak(peak_bytes=self.memory_bytes or None, method="scripted")

    def pause(self, seconds: float) -> None:
        """Sleep in real time if the spec says so."""
        if self.rank == 0 and self.truth.wall_s_per_s:
            time.sleep(seconds * self.truth.wall_s_per_s)

    # -- for the simulated workload

    def wait_until(self, host_s: float) -> None:
        """Let the host do nothing until this time."""
        if host_s > self.host_s:
            self.host_s = host_s
            self._queue.append((_HOST, host_s))

    def work(self, seconds: float) -> None:
        """Enqueue computation."""
        self._worked_s += seconds
        self._queue.append((_WORK, seconds))

    def idle(self, seconds: float) -> None:
        """Enqueue a delay in which the device is idle."""
        self._queue.append((_IDLE, seconds))

    def compile(self, seconds: float) -> None:
        """Enqueue a delay in which something is compiled for the device."""
        self._queue.append((_COMPILE, seconds))

    def all_reduce(self) -> None:
        """Enqueue a collective with all ranks."""
        self._queue.append(_COLLECTIVE_ENTRY)

    def allocate(self, batch: int) -> None:
        """Allocate the memory of a batch, or fail as a device does."""
        memory = self.truth.memory
        needed = memory.fixed_bytes + batch * memory.bytes_per_sample
        if memory.limit_bytes is not None and needed > memory.limit_bytes:
            raise WorkerMemoryError(
                f"needs {needed / 1e9:.4g} GB, but the device has {memory.limit_bytes / 1e9:.4g} GB",
                {"needed_bytes": needed, "limit_bytes": memory.limit_bytes, "rank": self.rank},
            )
        self.memory_bytes = max(self.memory_bytes, needed)

    # -- the device itself

    def work_off(self) -> bool:
        """Execute the queue to its end (False) or to the next collective (True; `free_s` is the arrival time)."""
        queue, cursor, length = self._queue, self._cursor, len(self._queue)
        free_s, host_s, times, spans = self.free_s, self._seen_host_s, self._times, self._spans
        at_collective = False
        while cursor < length:
            operation, value = queue[cursor]
            cursor += 1
            if operation == _HOST:
                host_s = value
            elif operation == _EVENT:
                times.append(max(host_s, free_s))
            else:
                free_s = max(host_s, free_s)
                if operation == _COLLECTIVE:
                    at_collective = True
                    break
                if spans is not None and operation != _IDLE:
                    spans += (free_s, free_s + value, self._compute_w if operation == _WORK else self._compile_w)
                free_s += value
        if cursor == length and not at_collective:
            queue.clear()
            cursor = 0
        self._cursor, self.free_s, self._seen_host_s = cursor, free_s, host_s
        return at_collective

    def communicate(self, until_s: float) -> None:
        """End the current collective."""
        if self._spans is not None and until_s > self.free_s:
            self._spans += (self.free_s, until_s, self._comm_w)
        self.free_s = until_s

    # -- for its sensors

    def note_power(self) -> None:
        """Start to record power."""
        self._spans = []

    def noted(self) -> list[float]:
        """Return the power drawn since the last call; see `SimSampler.take`."""
        spans, self._spans = self._spans or [], []
        return spans

    @property
    def noted_until_s(self) -> float:
        """Time before which no operation enqueued from now on can begin."""
        return max(self.free_s, self.host_s)

    @property
    def spans_held(self) -> int:
        """Numbers kept in memory for the sensors."""
        return len(self._spans or ())


class _World:
    """The ranks of one job and their collectives."""

    def __init__(self, spec: RunSpec) -> None:
        self.devices: list[SimDevice] = []
        self._collective_s = spec.sim.collective.seconds(spec.replicas)
        self.sampler: SimSampler | None = None

    def work_off(self) -> None:
        """Execute all queues; every rank has issued the same collectives by now."""
        while waiting := [device for device in self.devices if device.work_off()]:
            if len(waiting) != len(self.devices):
                raise RuntimeError("a rank synchronised before all ranks had issued the same collectives")
            end_s = max(device.free_s for device in waiting) + self._collective_s
            for device in waiting:
                device.communicate(end_s)
        if self.sampler is not None and sum(device.spans_held for device in self.devices) > _SPANS_IN_MEMORY:
            self.read_sensors(self.sampler)

    def read_sensors(self, sampler: SimSampler) -> None:
        """Pass the recorded power to the sampler, and read it as far as it is final."""
        for device in self.devices:
            sampler.take(device.rank, device.noted())
        sampler.read_until(min(device.noted_until_s for device in self.devices))


class SimWatch:
    """The sampler of a simulated job, with the engine's interface."""

    def __init__(self, spec: RunSpec, raw: Path, devices: Sequence[SimDevice]) -> None:
        self._devices = devices
        self._world = devices[0].world
        self._sampler = self._world.sampler = SimSampler(spec, raw)
        for device in devices:
            device.note_power()

    def mark(self) -> None:
        """Read at the edge of a window."""
        self._sampler.mark(self._devices[0].now())

    def stop(self) -> None:
        """Read for the last time, when the last rank is done."""
        # After a failure, ranks may have issued different collectives; what was drawn before is kept.
        with suppress(RuntimeError):
            self._world.work_off()
        self._world.read_sensors(self._sampler)
        self._sampler.stop(max(device.noted_until_s for device in self._devices))
        self._world.sampler = None
