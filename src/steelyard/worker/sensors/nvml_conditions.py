"""The state of an NVIDIA GPU: clocks, temperatures, what holds the clock back, ECC errors, power limit, processes.

Names and numbers are those of nvml.h and https://docs.nvidia.com/deploy/nvml-api.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from steelyard.worker.sensors.backend import DeviceState, ReadError
from steelyard.worker.sensors.conditions import Shared, state_of
from steelyard.worker.sensors.nvml_library import BACKEND, GPU_SCOPE, Session

if TYPE_CHECKING:
    from collections.abc import Sequence

    from steelyard.worker.sensors.conditions import Read
    from steelyard.worker.sensors.nvml_cards import Card

SM_CLOCK, MEMORY_CLOCK = 1, 2  # nvmlClockType_t
GPU_TEMPERATURE = 0  # nvmlTemperatureSensors_t
MEMORY_TEMPERATURE_FIELD = 82
CORRECTED, UNCORRECTED, VOLATILE = 0, 1, 0  # nvmlMemoryErrorType_t, nvmlEccCounterType_t: since the driver was loaded
ENFORCED, MANAGED = "nvmlDeviceGetEnforcedPowerLimit", "nvmlDeviceGetPowerManagementLimit"
EVENTS = "nvmlDeviceGetCurrentClocksEventReasons"
THROTTLE = "nvmlDeviceGetCurrentClocksThrottleReasons"  # its name before driver 535
# By version of the driver. The plain name raises an error of another class if the driver lacks the call.
PROCESSES = ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2")

# nvmlClocksEventReasons. HW slowdown is also set during a thermal one, which then counts as both.
HELD_BY = {
    "power_capped": 0x004,
    "thermal": 0x020 | 0x040,  # by software and by hardware
    "hardware": 0x008 | 0x040 | 0x080,  # slowdown, thermal slowdown, external power brake
    "setting": 0x002 | 0x010 | 0x100,  # clocks set by a user, sync boost with other GPUs, display clocks
    "idle": 0x001,
}


def gpu_state(session: Session, card: Card, devices: Sequence[str]) -> DeviceState:
    """Return what can be read of a card; `devices`: those of the job, empty if they are unknown."""

    def call(name: str, *arguments: int) -> Read:
        return name, lambda: float(session.call(name, card.handle, *arguments))

    events = EVENTS if session.try_call(EVENTS, card.handle) is not None else THROTTLE
    held_by = Shared(lambda: int(session.call(events, card.handle)))
    reads: dict[str, Read] = {
        "clock_mhz": call("nvmlDeviceGetClockInfo", SM_CLOCK),
        "memory_clock_mhz": call("nvmlDeviceGetClockInfo", MEMORY_CLOCK),
        "temperature_c": call("nvmlDeviceGetTemperature", GPU_TEMPERATURE),
        "memory_temperature_c": (
            "NVML_FI_DEV_MEMORY_TEMP",
            lambda: session.field(card.handle, MEMORY_TEMPERATURE_FIELD, GPU_SCOPE),
        ),
        **{column: (events, partial(_any_of, held_by, mask)) for column, mask in HELD_BY.items()},
        "corrected": call("nvmlDeviceGetTotalEccErrors", CORRECTED, VOLATILE),
        "uncorrected": call("nvmlDeviceGetTotalEccErrors", UNCORRECTED, VOLATILE),
    }
    unknown = {"limit_w": "the driver reports no power limit"}
    if limit := power_limit(session, card):
        reads["limit_w"] = limit[0], partial(session.milli, limit[0], card.handle)
    if devices and not card.instances:
        reads["processes"] = PROCESSES[0], lambda: _processes(session, card)
    else:
        # Processes may be on a device, or on an instance of it, that the job does not use.
        unknown["processes"] = "it is unknown which part of the GPU is the job's"
    default_mw = session.try_call("nvmlDeviceGetPowerManagementDefaultLimit", card.handle)
    return state_of(
        f"gpu{card.index}",
        BACKEND,
        reads,
        unknown,
        held_by,
        clock_limit_mhz=session.try_call("nvmlDeviceGetMaxClockInfo", card.handle, SM_CLOCK),
        default_limit_w=default_mw / 1000 if default_mw else None,
    )


def power_limit(session: Session, card: Card) -> tuple[str, float] | None:
    """Return the call that reports the enforced power limit, or else the configured one, and its watts."""
    for name in (ENFORCED, MANAGED):
        if limit_mw := session.try_call(name, card.handle):
            return name, float(limit_mw) / 1000
    return None


def _any_of(held_by: Shared[int], mask: int) -> float:
    return float(bool(held_by() & mask))


def _processes(session: Session, card: Card) -> float:
    lists = (session.try_call(name, card.handle) for name in PROCESSES)
    listed = next((each for each in lists if each is not None), None)
    if listed is None:
        raise ReadError("unsupported", "the driver does not list the processes")
    return float(len({process.pid for process in listed}))
