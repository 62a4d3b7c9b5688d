"""Devices that torch drives, behind one interface: CUDA, ROCm, XPU, HPU, MPS and the CPU.

Timed events are used if the backend has them. Otherwise the host's clock is read after a synchronisation. On the CPU,
which computes synchronously, the host's clock is enough.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from steelyard.errors import InputError
from steelyard.worker.measure import clock
from steelyard.worker.measure.software import accelerator_name, available

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

MILLI = 1e-3


def open_device(family: str, rank: int, local_rank: int) -> TorchDevice:
    """Open the device of one rank; `auto` takes the available accelerator, else the CPU."""
    kind = (accelerator_name(torch) or "cpu") if family == "auto" else family
    if not available(torch, kind):
        raise InputError(
            f"torch {torch.__version__} found no {kind!r} device on this node",
            next_step="run steelyard doctor to see why, or use --device cpu",
        )
    if kind == "cpu":
        return CpuDevice(rank)
    module: Any = getattr(torch, kind)
    count = int(module.device_count()) if hasattr(module, "device_count") else 1
    if local_rank >= count:
        raise InputError(
            f"{local_rank + 1} or more ranks on a node with {count} {kind} device(s): each rank needs its own",
            next_step=f"use --nproc {count}",
        )
    if hasattr(module, "set_device"):
        module.set_device(local_rank)
    device = torch.device(kind, local_rank)
    kind_of_timing = EventDevice if _times_events(module) else SynchronisedDevice
    return kind_of_timing(rank, device, module)


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
    memory_method = ""

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

    def memory_peak_bytes(self) -> float | None:
        """Return the peak memory of the process on this device."""
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


class CpuDevice(TorchDevice):
    """The CPU computes before a call returns, so the host's clock gives its times."""

    timing = "host's monotonic clock; the CPU computes synchronously"
    memory_method = "peak resident memory of the rank's process (VmHWM)"

    def __init__(self, rank: int) -> None:
        super().__init__(rank, torch.device("cpu"))
        # Called most often in short steps: the clock itself, without a method around it.
        self.record = time.monotonic  # type: ignore[method-assign]

    def synchronize(self) -> None:
        """Do nothing: nothing is outstanding."""

    def seconds(self, events: Sequence[Any]) -> NDArray[np.float64]:
        """Return the clock readings, relative to the worker's start."""
        return np.asarray(events, dtype=np.float64) - clock.START_S

    def memory_peak_bytes(self) -> float | None:
        """Return the peak resident memory of the process."""
        try:
            with open("/proc/self/status", encoding="ascii", errors="replace") as status:  # noqa: PTH123 -- plain read
                lines = [line.split() for line in status if line.startswith("VmHWM:")]
        except OSError:
            return None
        return float(lines[0][1]) * 1024 if lines else None


class _Accelerator(TorchDevice):
    """A device with its own queue."""

    memory_method = "peak of torch's allocator on the device (max_memory_allocated)"

    def __init__(self, rank: int, device: torch.device, module: Any) -> None:
        super().__init__(rank, device)
        self._module = module

    def synchronize(self) -> None:
        """Wait for the whole device."""
        self._module.synchronize()

    def memory_peak_bytes(self) -> float | None:
        """Return the peak of torch's allocator, if it keeps one."""
        peak = getattr(self._module, "max_memory_allocated", None)
        return float(peak()) if peak is not None else None

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
        found = self._properties()
        bus, place = getattr(found, "pci_bus_id", None), getattr(found, "pci_device_id", None)
        if bus is None or place is None:
            return None
        return f"{getattr(found, 'pci_domain_id', 0):04x}:{bus:02x}:{place:02x}.0"

    def _properties(self) -> Any:
        ask = getattr(self._module, "get_device_properties", None)
        return ask(self.device.index) if ask is not None else None


class EventDevice(_Accelerator):
    """Timed events in the device's queue, read after the block without waiting for single events."""

    timing = "device events, read once per block"

    def __init__(self, rank: int, device: torch.device, module: Any) -> None:
        super().__init__(rank, device, module)
        self._free: list[Any] = []
        self._open_s: float | None = None

    def record(self) -> Any:
        """Record an event in the current stream."""
        if self._open_s is None:
            # The queue is empty at the start of a block, so the device reaches this event immediately.
            self._open_s = clock.now()
        event = self._free.pop() if self._free else self._module.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, events: Sequence[Any]) -> NDArray[np.float64]:
        """Return event times as sums of differences: the driver uses single precision, too coarse for long spans."""
        steps = [a.elapsed_time(b) for a, b in zip(events, events[1:])]  # noqa: B905, RUF007 -- Python 3.10, torch events
        begin_s = self._open_s if self._open_s is not None else clock.now()
        self._open_s = None
        self._free.extend(events)
        return begin_s + MILLI * np.concatenate([[0.0], np.cumsum(np.asarray(steps, dtype=np.float64))])


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
