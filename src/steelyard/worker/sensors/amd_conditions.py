"""The state of an AMD device from the driver's files: clocks, temperatures, throttling, ECC errors, power limit.

Sources: Documentation/gpu/amdgpu/thermal.rst and ras.rst of the kernel; `gpu_metrics` is a binary table whose layouts
are in drivers/gpu/drm/amd/include/kgd_pp_interface.h, with the bits of its throttle status in
drivers/gpu/drm/amd/pm/swsmu/inc/amdgpu_smu.h.
"""

from __future__ import annotations

import math
import re
import struct
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from steelyard.worker.sensors.backend import DeviceState, ReadError
from steelyard.worker.sensors.conditions import Shared, state_of
from steelyard.worker.sensors.sysfs import (
    MICRO,
    MILLI,
    entries,
    number_or_none,
    read_bytes,
    read_micro,
    read_scaled,
    read_text,
    shown,
    temperature,
    text_or_none,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from steelyard.worker.sensors.conditions import Read

# Hottest place first; the edge of the chip is cooler than its junction.
TEMPERATURES = {"temperature_c": ("junction", "edge"), "memory_temperature_c": ("mem",)}
# Values of fields that a device does not fill; 16, 32 and 64 bits wide.
UNFILLED = UNFILLED_16, UNFILLED_32, UNFILLED_64 = 2**16 - 1, 2**32 - 1, 2**64 - 1

# Bits of indep_throttle_status: limits of power (PPT) and current (TDC, EDC); temperatures and hot regulators; PROCHOT,
# which another part of the system raises, and reliability (FIT).
STATUS = {
    "power_capped": sum(1 << bit for bit in (*range(8), *range(16, 24), 56)),
    "thermal": sum(1 << bit for bit in range(32, 46)),
    "hardware": sum(1 << bit for bit in (46, 47, 57)),
}


class MetricsLayout(NamedTuple):
    """Where a version of gpu_metrics has its fields, in bytes; None: nowhere, or never filled."""

    clocks: tuple[int, int]
    """First of the device's clocks, and how many."""
    memory_clock: int
    status: int | None = None
    """indep_throttle_status."""
    residencies: int | None = None
    """accumulation_counter, followed by the times in PROCHOT, power limit, and three temperature limits."""


# By format and content revision. In 1.4 and 1.5 the driver writes no throttle status.
LAYOUTS = {
    (1, 3): MetricsLayout((54, 1), 58, status=112),
    (1, 4): MetricsLayout((240, 8), 280),
    (1, 5): MetricsLayout((312, 8), 352),
    (1, 6): MetricsLayout((264, 8), 304, residencies=32),
    (1, 7): MetricsLayout((296, 8), 336, residencies=40),
    (1, 8): MetricsLayout((296, 8), 336, residencies=40),
}
RESIDENCIES = {"hardware": (1,), "power_capped": (2,), "thermal": (3, 4, 5)}


def die_state(root: Path, chip: Path, domain: str, backend: str) -> DeviceState:
    """Return what can be read of a device; `chip`: its hwmon folder."""
    device = chip / "device"
    metrics = Metrics(device / "gpu_metrics")
    reads: dict[str, Read] = {}
    unknown: dict[str, str] = {}

    def offer(column: str, path: Path, read: Callable[[], float]) -> None:
        reads[column] = shown(root, path), read

    for column, name, part in (("clock_mhz", "freq1_input", "clocks"), ("memory_clock_mhz", "freq2_input", "memory")):
        path = chip / name
        # Some devices have no such file, but fill the table.
        if text_or_none(path) is not None:
            offer(column, path, partial(read_scaled, path, MICRO))
        else:
            offer(column, metrics.path, partial(metrics.clock_mhz, part))
    for column, labels in TEMPERATURES.items():
        sensor = temperature(chip, labels)
        if sensor is None:
            unknown[column] = f"the driver has no temperature called {' or '.join(labels)}"
        else:
            offer(column, sensor, partial(read_scaled, sensor, MILLI))
    for column in STATUS:
        offer(column, metrics.path, partial(metrics.held, column))
    unknown |= dict.fromkeys(("setting", "idle"), "the driver does not tell why a clock is low on purpose")
    unknown["processes"] = "the driver does not list them here"
    errors = entries(device / "ras", r"\w+_err_count|aca_umc")
    for column, key in (("corrected", "ce"), ("uncorrected", "ue")):
        if errors:
            reads[column] = f"{shown(root, device / 'ras')}/*_err_count", partial(_errors, errors, key)
        else:
            unknown[column] = "the driver has no folder ras: this device reports no memory errors"
    offer("limit_w", chip / "power1_cap", partial(read_micro, chip / "power1_cap"))
    default_uw = number_or_none(chip / "power1_cap_default")
    return state_of(
        domain,
        backend,
        reads,
        unknown,
        metrics.table,
        clock_limit_mhz=_highest_clock(device / "pp_dpm_sclk"),
        default_limit_w=default_uw * MICRO if default_uw else None,
    )


def _errors(files: list[Path], key: str) -> float:
    """Return the errors of all parts of the device, from lines such as `ue: 0`."""
    counts = [re.search(rf"^{key}: (\d{{1,15}})$", read_text(path), re.MULTILINE) for path in files]
    known = [int(match[1]) for match in counts if match]
    if not known:
        raise ReadError("unsupported", f"the files below ras have no line `{key}: COUNT`")
    return float(sum(known))


def _highest_clock(path: Path) -> float | None:
    """Return the highest level, from lines such as `1: 1700Mhz *`."""
    levels = re.findall(r"\b(\d{1,6})Mhz", text_or_none(path) or "", re.IGNORECASE)
    return float(max(map(int, levels))) if levels else None


class Metrics:
    """The binary table of a device, read once for all columns of a row."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.table = Shared(partial(_read_table, path))
        self._before: dict[str, tuple[int, ...]] = {}

    def clock_mhz(self, part: str) -> float:
        """Return the mean over the clocks of the device's parts, or the clock of its memory."""
        data, layout = self.table()
        first, count = layout.clocks if part == "clocks" else (layout.memory_clock, 1)
        known: list[int] = [mhz for mhz in struct.unpack_from(f"<{count}H", data, first) if mhz != UNFILLED_16]
        if not known:
            raise ReadError("unsupported", f"{self.path.name} has no value for this clock")
        return sum(known) / len(known)

    def held(self, column: str) -> float:
        """Return the share of the time since the last reading in which the clock was held back for this reason."""
        data, layout = self.table()
        if layout.status is not None:
            (status,) = struct.unpack_from("<Q", data, layout.status)
            if status == UNFILLED_64:
                raise ReadError("unsupported", f"{self.path.name} has no throttle status")
            return float(bool(status & STATUS[column]))
        if layout.residencies is None:
            raise ReadError(
                "unsupported", f"{self.path.name} {data[2]}.{data[3]}: the driver writes no throttle status"
            )
        now = struct.unpack_from("<6I", data, layout.residencies)
        if now[0] == UNFILLED_32:
            raise ReadError("unsupported", f"{self.path.name} does not count how long clocks are held back")
        before, self._before[column] = self._before.get(column, now), now
        # 32-bit counters that wrap; of several temperature limits the one that held longest.
        passed, *held = ((new - old) % 2**32 for new, old in zip(now, before, strict=True))
        return min(1.0, max(held[place - 1] for place in RESIDENCIES[column]) / passed) if passed else math.nan


def _read_table(path: Path) -> tuple[bytes, MetricsLayout]:
    data = read_bytes(path)
    if len(data) < 4:
        raise ReadError("implausible", f"{path.name} has only {len(data)} bytes")
    size, *version = struct.unpack_from("<HBB", data)
    layout = LAYOUTS.get((version[0], version[1]))
    if layout is None:
        raise ReadError("unsupported", f"{path.name} has the unknown version {version[0]}.{version[1]}")
    if len(data) < size or size < max(
        layout.memory_clock + 2, (layout.status or 0) + 8, (layout.residencies or 0) + 24
    ):
        raise ReadError("implausible", f"{path.name} {version[0]}.{version[1]} is too short: {len(data)} bytes")
    return data, layout
