"""Every device that torch drives, by one protocol: CUDA, ROCm, XPU, HPU, MPS and the CPU.

Knows torch's device modules. Where a backend has timed events they are used; where it has none, the host's clock is
read after a synchronisation; on the CPU, which runs in step with the host, the clock alone is right.
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
    """The device of one rank; `auto` takes the accelerator that is there, else the CPU."""
    kind = (accelerator_name(torch) or "cpu") if family == "auto" else family
    if not available(torch, kind):
        raise InputError(
            f"torch {torch.__version__} sees no device of the family {kind!r} here",
            next_step="steelyard doctor says what is there and why; --device cpu runs on the CPU",
        )
    if kind == "cpu":
        return CpuDevice(rank)
    module: Any = getattr(torch, kind)
    count = int(module.device_count()) if hasattr(module, "device_count") else 1
    if local_rank >= count:
        raise InputError(
            f"{local_rank + 1} or more ranks on a node with {count} {kind} device(s): each rank drives one",
            next_step=f"use --nproc {count}",
        )
    if hasattr(module, "set_device"):
        module.set_device(local_rank)
    device = torch.device(kind, local_rank)
    kind_of_timing = EventDevice if _times_events(module) else SynchronisedDevice
    return kind_of_timing(rank, device, module)


def _times_events(module: Any) -> bool:
    """Whether this backend's events tell times: some releases have events for other ends only, and say so."""
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
    """What all of them share."""

    timing = ""
    memory_method = ""

    def __init__(self, rank: int, device: torch.device) -> None:
        self.rank = rank
        self.device = device

    def now(self) -> float:
        """Seconds since the worker started."""
        return clock.now()

    def record(self) -> Any:
        """Put an event into the queue."""
        raise NotImplementedError

    def synchronize(self) -> None:
        """Wait until everything enqueued has run."""
        raise NotImplementedError

    def seconds(self, events: Sequence[Any]) -> NDArray[np.float64]:
        """When the device passed each event."""
        raise NotImplementedError

    def memory_peak_bytes(self) -> float | None:
        """The most memory the process has held on this device."""
        raise NotImplementedError

    def pause(self, seconds: float) -> None:
        """Nothing: real time passes by itself."""

    def name(self) -> str:
        """As the driver calls it."""
        return self.device.type

    def memory_bytes(self) -> float | None:
        """What the device has."""
        return None

    def pci_address(self) -> str | None:
        """Where the device sits, as sysfs names it."""
        return None


class CpuDevice(TorchDevice):
    """The CPU computes before a call returns: the host's clock is its clock."""

    timing = "host's monotonic clock; the CPU works in step with the host"
    memory_method = "peak resident memory of the rank's process (VmHWM)"

    def __init__(self, rank: int) -> None:
        super().__init__(rank, torch.device("cpu"))
        # The hottest call of a short step: the clock itself, without a method around it.
        self.record = time.monotonic  # type: ignore[method-assign]

    def synchronize(self) -> None:
        """Nothing is outstanding."""

    def seconds(self, events: Sequence[Any]) -> NDArray[np.float64]:
        """The clock's readings, from the worker's start."""
        return np.asarray(events, dtype=np.float64) - clock.START_S

    def memory_peak_bytes(self) -> float | None:
        """Of the process, by the system's account."""
        try:
            with open("/proc/self/status", encoding="ascii", errors="replace") as status:  # noqa: PTH123 -- plain read
                lines = [line.split() for line in status if line.startswith("VmHWM:")]
        except OSError:
            return None
        return float(lines[0][1]) * 1024 if lines else None


class _Accelerator(TorchDevice):
    """A device with a queue of its own."""

    memory_method = "the allocator's peak on the device (max_memory_allocated)"

    def __init__(self, rank: int, device: torch.device, module: Any) -> None:
        super().__init__(rank, device)
        self._module = module

    def synchronize(self) -> None:
        """Wait for the whole device."""
        self._module.synchronize()

    def memory_peak_bytes(self) -> float | None:
        """By torch's allocator, where it keeps account."""
        peak = getattr(self._module, "max_memory_allocated", None)
        return float(peak()) if peak is not None else None

    def name(self) -> str:
        """As the driver calls it."""
        ask = getattr(self._module, "get_device_name", None)
        return str(ask(self.device.index)) if ask is not None else self.device.type

    def memory_bytes(self) -> float | None:
        """What the device has, by its properties."""
        total = getattr(self._properties(), "total_memory", None)
        return float(total) if total is not None else None

    def pci_address(self) -> str | None:
        """Domain, bus and device, where torch tells them."""
        found = self._properties()
        bus, place = getattr(found, "pci_bus_id", None), getattr(found, "pci_device_id", None)
        if bus is None or place is None:
            return None
        return f"{getattr(found, 'pci_domain_id', 0):04x}:{bus:02x}:{place:02x}.0"

    def _properties(self) -> Any:
        ask = getattr(self._module, "get_device_properties", None)
        return ask(self.device.index) if ask is not None else None


class EventDevice(_Accelerator):
    """Timed events in the device's own queue; read after the block, never waited for one by one."""

    timing = "device events, read once a block"

    def __init__(self, rank: int, device: torch.device, module: Any) -> None:
        super().__init__(rank, device, module)
        self._free: list[Any] = []
        self._open_s: float | None = None

    def record(self) -> Any:
        """An event in the current stream."""
        if self._open_s is None:
            # The queue is empty at the start of a block: the device passes this event as it is put there.
            self._open_s = clock.now()
        event = self._free.pop() if self._free else self._module.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, events: Sequence[Any]) -> NDArray[np.float64]:
        """From event to event: the driver counts in single precision, which long distances would coarsen."""
        steps = [a.elapsed_time(b) for a, b in zip(events, events[1:])]  # noqa: B905, RUF007 -- Python 3.10, torch events
        begin_s = self._open_s if self._open_s is not None else clock.now()
        self._open_s = None
        self._free.extend(events)
        return begin_s + MILLI * np.concatenate([[0.0], np.cumsum(np.asarray(steps, dtype=np.float64))])


class SynchronisedDevice(_Accelerator):
    """No timed events in this backend: wait for the device, then read the host's clock."""

    timing = "host's monotonic clock after a synchronisation at every mark; hides nothing of the host's own work"

    def record(self) -> Any:
        """The time at which all before it had run."""
        self._module.synchronize()
        return time.monotonic()

    def seconds(self, events: Sequence[Any]) -> NDArray[np.float64]:
        """The clock's readings, from the worker's start."""
        return np.asarray(events, dtype=np.float64) - clock.START_S
