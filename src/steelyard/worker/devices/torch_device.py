"""Devices that torch drives, behind one interface: CUDA, ROCm, XPU, HPU and the CPU.

Timed events are used if the backend has them. Otherwise the host's clock is read after a synchronisation. On the CPU,
which computes synchronously, the host's clock is enough.
"""

from __future__ import annotations

import importlib
import os
import re
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from steelyard import hostinfo
from steelyard.contracts.observe import MemoryPeak
from steelyard.errors import InputError
from steelyard.worker.devices.device import EventCost, Profile
from steelyard.worker.devices.profiler import device_events, profile
from steelyard.worker.measure import clock
from steelyard.worker.measure.environment import ROOT
from steelyard.worker.measure.software import accelerator_name, ask, available

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

MILLI = 1e-3
# Devices of one module with their processor, whose memories are one for the system: GH200, GB200 and MI300A.
COHERENT = re.compile(r"\bG[BH]\d{2,3}\b|\bMI300A\b")
COST_EVENTS = 64
# Enough work to keep any device busy while the host records these events, in passes over 64 MB.
LOADS = (4, 32, 256)
LOAD_ELEMENTS = 1 << 24


def open_device(family: str, rank: int, local_rank: int, local_world: int = 1) -> TorchDevice:
    """Open the device of one rank; `auto` takes the available accelerator, else the CPU.

    `local_world`: ranks on this node. If only one device is visible to this process, it is the rank's own: a scheduler
    has bound it. That no other rank has the same one is checked when all ranks are connected.
    """
    kind = (accelerator_name(torch) or "cpu") if family == "auto" else family
    if not available(torch, kind):
        raise InputError(
            f"torch {torch.__version__} found no {kind} device on this node",
            next_step="run steelyard doctor to see why, or use --device cpu",
        )
    if kind == "cpu":
        return CpuDevice(rank)
    if kind == "hpu":
        _refuse_lazy_mode()
    module: Any = getattr(torch, kind)
    count = int(module.device_count()) if hasattr(module, "device_count") else 1
    index = 0 if count == 1 and local_world > 1 else local_rank
    if index >= count:
        raise InputError(
            f"{local_rank + 1} or more ranks on a node with {count} {kind} device(s): each rank needs its own",
            next_step=f"use --devices {count}",
        )
    if hasattr(module, "set_device"):
        module.set_device(index)
    kind_of_timing = EventDevice if _times_events(module) else SynchronisedDevice
    device = kind_of_timing(rank, torch.device(kind, index), module)
    # Where nothing tells devices apart, ranks could share one unseen. A Gaudi belongs to the process that opened it.
    if index != local_rank and device.identity() is None and kind != "hpu":
        raise InputError(
            f"each rank sees one {kind} device, and torch {torch.__version__} cannot tell them apart",
            next_step="use a newer torch, or let every rank see all devices of its node",
        )
    device.visible = count
    return device


def _refuse_lazy_mode() -> None:
    """Raise InputError if Gaudi's lazy mode is on: it collects operations, and no step here ends with `mark_step`."""
    setting = os.environ.get("PT_HPU_LAZY_MODE")
    if setting is None:
        # The default changed between releases, so ask the installed one.
        internal = ask(lambda: importlib.import_module("habana_frameworks.torch.utils.internal"))
        lazy = ask(lambda: bool(internal.is_lazy()))
        setting = {True: "1", False: "0"}.get(lazy, "not set")
    if setting != "0":
        raise InputError(
            f"Gaudi's lazy mode is not supported (PT_HPU_LAZY_MODE is {setting}): it runs operations when a graph is "
            "complete, so a step would not end where it is timed",
            next_step="set PT_HPU_LAZY_MODE=0; --compile default gives the graphs of torch.compile",
        )


def _times_events(module: Any) -> bool:
    """Whether this backend's events have times: in some releases they do not, and raise an error."""
    if not hasattr(module, "Event"):
        return False
    try:
        first, second = module.Event(enable_timing=True), module.Event(enable_timing=True)
        first.record()
        second.record()
        module.synchronize()
        return float(first.elapsed_time(second)) >= 0
    except (RuntimeError, TypeError):
        return False


class TorchDevice:
    """Common part of all devices."""

    timing = ""
    shares_memory = False
    """Whether it shares the memory of the processor."""
    queued = False
    visible = 1
    """Devices of its kind that this rank sees."""

    def __init__(self, rank: int, device: torch.device) -> None:
        self.rank = rank
        self.device = device

    def now(self) -> float:
        """Return seconds since the worker started."""
        return clock.now()

    def record(self) -> Any:
        """Enqueue an event and return it."""
        raise NotImplementedError

    def synchronize(self) -> None:
        """Wait until everything enqueued has run."""
        raise NotImplementedError

    def seconds(self, events: Sequence[Any]) -> NDArray[np.float64]:
        """Return when the device reached each event."""
        raise NotImplementedError

    def ask(self, event: Any) -> Any:
        """Note whether the device has yet to reach an event."""
        raise NotImplementedError

    def told(self, asked: Sequence[Any]) -> Sequence[bool]:
        """Return the answers."""
        raise NotImplementedError

    def event_cost(self) -> EventCost | None:
        """Return None: an event is a reading of the host's clock."""
        return None

    def profile(self, run: Callable[[], None]) -> Profile:
        """Run the steps without a profile: the host itself computes."""
        run()
        return Profile(reason="the host computes itself")

    def memory(self) -> MemoryPeak:
        """Return the memory of the process on this device."""
        raise NotImplementedError

    def pause(self, seconds: float) -> None:
        """Do nothing: only simulated devices pause."""

    def name(self) -> str:
        """Return the driver's name of the device."""
        return self.device.type

    def memory_bytes(self) -> float | None:
        """Return the device's memory size."""
        return None

    def pci_address(self) -> str | None:
        """Return the PCI address in the spelling of sysfs."""
        return None

    def identity(self) -> str | None:
        """Return what no other device of the node has; None: unknown, or it may be shared."""
        return None


class CpuDevice(TorchDevice):
    """The CPU computes before a call returns, so the host's clock gives its times."""

    timing = "host's monotonic clock; the CPU computes synchronously"

    def __init__(self, rank: int) -> None:
        super().__init__(rank, torch.device("cpu"))
        # Called most often in short steps: the clock itself, without a method around it.
        self.record = time.monotonic  # type: ignore[method-assign]

    def synchronize(self) -> None:
        """Do nothing: nothing is outstanding."""

    def seconds(self, events: Sequence[Any]) -> NDArray[np.float64]:
        """Return the clock readings, relative to the worker's start."""
        return np.asarray(events, dtype=np.float64) - clock.START_S

    def memory(self) -> MemoryPeak:
        """Return the peak resident memory of the process."""
        text = hostinfo.read_text(ROOT / "proc/self/status") or ""
        lines = [line.split() for line in text.splitlines() if line.startswith("VmHWM:")]
        peak = float(lines[0][1]) * 1024 if lines else None
        return MemoryPeak(peak_bytes=peak, method="peak resident memory of the rank's process (VmHWM)")


class _Accelerator(TorchDevice):
    """A device with its own queue."""

    def __init__(self, rank: int, device: torch.device, module: Any) -> None:
        super().__init__(rank, device)
        self._module = module
        integrated = bool(getattr(self._properties(), "is_integrated", False))
        self.shares_memory = integrated or COHERENT.search(self.name()) is not None

    def synchronize(self) -> None:
        """Wait for the whole device."""
        self._module.synchronize()

    def profile(self, run: Callable[[], None]) -> Profile:
        """Run the steps under torch's profiler."""
        return profile(self._module, self.device.type, run)

    def seen(self, run: Callable[[], None]) -> tuple[list[tuple[str, float, float]] | None, str]:
        """Return name, begin and end in seconds of all that the profiler sees; or None and why."""
        return device_events(self._module, self.device.type, run)

    def memory(self) -> MemoryPeak:
        """Return what torch's allocator and the driver tell; not every backend and release has both."""
        module = self._module
        free, total = ask(lambda: module.mem_get_info()) or (None, None)
        used = None if free is None else total - free
        host = hostinfo.memory_table(ROOT) if self.shares_memory else {}
        node_used = host["MemTotal"] - host["MemAvailable"] if {"MemTotal", "MemAvailable"} <= host.keys() else None
        return MemoryPeak(
            peak_bytes=_bytes(ask(lambda: module.max_memory_allocated())),
            method="peak of torch's allocator on the device (max_memory_allocated)",
            reserved_bytes=_bytes(ask(lambda: module.max_memory_reserved())),
            driver_used_bytes=_bytes(used),
            device_bytes=_bytes(total) or self.memory_bytes(),
            node_used_bytes=_bytes(node_used),
            node_bytes=_bytes(host.get("MemTotal")),
        )

    def forget_memory(self) -> None:
        """Give memory that is not in use back to the driver, and begin its statistics anew."""
        for name in ("empty_cache", "reset_peak_memory_stats"):
            if hasattr(self._module, name):
                getattr(self._module, name)()

    def name(self) -> str:
        """Return the driver's name of the device."""
        ask = getattr(self._module, "get_device_name", None)
        return str(ask(self.device.index)) if ask is not None else self.device.type

    def memory_bytes(self) -> float | None:
        """Return the memory size from the device properties."""
        total = getattr(self._properties(), "total_memory", None)
        return float(total) if total is not None else None

    def pci_address(self) -> str | None:
        """Return domain, bus and device number, if torch knows them."""
        properties = self._properties()
        bus, place = getattr(properties, "pci_bus_id", None), getattr(properties, "pci_device_id", None)
        if bus is None or place is None:
            return None
        return f"{getattr(properties, 'pci_domain_id', 0):04x}:{bus:02x}:{place:02x}.0"

    def identity(self) -> str | None:
        """Return the driver's UUID, or the PCI address in older releases of torch, and the slice of the device."""
        uuid = getattr(self._properties(), "uuid", None)
        device = str(uuid) if uuid is not None else self.pci_address()
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        if visible.startswith("MIG-") or (device is None and visible.startswith("GPU-")):
            # A process has one MIG slice at most, the first in the list. Older torch knows no UUID of a whole device.
            return visible.split(",")[0]
        if device is not None and torch.version.hip is not None:
            # Partitions of a card may have the same UUID.
            seen = [os.environ.get(f"{name}_VISIBLE_DEVICES", "") for name in ("ROCR", "HIP", "CUDA")]
            return " ".join([device, *filter(None, seen), f"number {self.device.index}"])
        return device

    def _properties(self) -> Any:
        ask = getattr(self._module, "get_device_properties", None)
        return ask(self.device.index) if ask is not None else None


def _bytes(number: float | None) -> float | None:
    return None if number is None else float(number)


class EventDevice(_Accelerator):
    """Timed events in the device's queue, read after the block without waiting for single events."""

    timing = "device events, read once per block"
    queued = True

    def __init__(self, rank: int, device: torch.device, module: Any) -> None:
        super().__init__(rank, device, module)
        self._free: list[Any] = []
        self._open_s: float | None = None

    def record(self) -> Any:
        """Record an event in the current stream."""
        if self._open_s is None:
            # The queue is empty at the start of a block, so the device reaches this event immediately.
            self._open_s = self.now()
        event = self._free.pop() if self._free else self._module.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, events: Sequence[Any]) -> NDArray[np.float64]:
        """Return event times as sums of differences: the driver uses single precision, too coarse for long spans."""
        steps = [a.elapsed_time(b) for a, b in zip(events, events[1:])]  # noqa: B905, RUF007 -- Python 3.10, torch events
        begin_s = self._open_s if self._open_s is not None else self.now()
        self._open_s = None
        self._free.extend(events)
        return begin_s + MILLI * np.concatenate([[0.0], np.cumsum(np.asarray(steps, dtype=np.float64))])

    def ask(self, event: Any) -> bool:
        """Ask the driver, which does not wait."""
        return not event.query()

    def told(self, asked: Sequence[Any]) -> Sequence[bool]:
        """Return what the driver said."""
        return asked

    def event_cost(self) -> EventCost | None:
        """Record events on the empty queue, which shows the host's cost, and behind work, which shows the device's."""
        # Twice: the driver makes an event when it is first recorded, and later steps use the same ones.
        for _ in range(2):
            self.synchronize()
            begin_s = self.now()
            events = [self.record() for _ in range(COST_EVENTS)]
            host_s = (self.now() - begin_s) / COST_EVENTS
            self.synchronize()
            self.seconds(events)
        load = self.load()
        for passes in LOADS:
            for _ in range(passes):
                load()
            events = [self.record() for _ in range(COST_EVENTS)]
            busy = self.ask(events[0])
            self.synchronize()
            times = self.seconds(events)
            if busy:
                # The device has passed them at its own speed.
                cost = EventCost(device_s=float(times[-1] - times[0]) / (COST_EVENTS - 1), host_s=host_s)
                break
        else:
            cost = None
        del load
        # The run has not begun.
        self.forget_memory()
        return cost

    def load(self) -> Callable[[], Any]:
        """Return a function that enqueues some work."""
        buffer = torch.zeros(LOAD_ELEMENTS, device=self.device)
        return lambda: buffer.mul_(1.0)


class SynchronisedDevice(_Accelerator):
    """A backend without timed events: wait for the device, then read the host's clock."""

    timing = "host's monotonic clock after a synchronisation at every event; includes the host's own work"

    def record(self) -> Any:
        """Return the time at which all earlier work was done."""
        self._module.synchronize()
        return time.monotonic()

    def seconds(self, events: Sequence[Any]) -> NDArray[np.float64]:
        """Return the clock readings, relative to the worker's start."""
        return np.asarray(events, dtype=np.float64) - clock.START_S
