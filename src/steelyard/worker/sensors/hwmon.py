"""Power meters in the kernel's hwmon files: those of Grace by name, others as unknown meters.

Sources: Documentation/hwmon/sysfs-interface.rst and acpi_power_meter.rst of the kernel; NVIDIA Grace Performance Tuning
Guide, "Power Telemetry" (https://docs.nvidia.com/grace-perf-tuning-guide/power-thermals.html).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from steelyard.contracts.energy import Channel, Domain, DomainScope
from steelyard.worker.sensors.sysfs import FileSensors, entries, number_or_none, shown, text_or_none

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from steelyard.worker.sensors.backend import SensorsFound

BACKEND = "hwmon"
GRACE = re.compile(r"(Module|Grace|CPU|SysIO) Power Socket (\d{1,3})")
# Name and scope of each of Grace's meters, and the meter that includes it.
TREE: dict[str, tuple[str, DomainScope, str | None]] = {
    "Module": ("module", "module", None),
    "Grace": ("grace", "cpu", "Module"),
    "CPU": ("cpu", "cpu", "Grace"),
    "SysIO": ("sysio", "io", "Grace"),
}
# These have their own backends.
OTHERS = re.compile(r"amdgpu|i915|xe|i915_gt\d+")
# ACPI meters report whole milliwatts, others microwatts.
RESOLUTION_ACPI_W, RESOLUTION_W = 1e-3, 1e-6
GAIN = 0.05
FIXES = {
    "forbidden": "as root, until the next boot: chmod o+r on that file",
    "missing": "run `sensors` to see whether the meter works; if not, ask your site's support",
}


class Meter(NamedTuple):
    """One power meter of a chip."""

    chip: str
    number: int
    label: str | None
    reading: Path
    average_s: float | None
    gain: float


def open_hwmon(root: Path, _devices: Sequence[str]) -> SensorsFound:
    """Find every power meter that does not belong to an accelerator."""
    sensors = FileSensors(root, BACKEND, FIXES)
    meters = [meter for chip in entries(root / "sys/class/hwmon", r"hwmon\d+") for meter in _meters(chip)]
    sockets = {(match[1], match[2]) for meter in meters if (match := GRACE.fullmatch(meter.label or ""))}
    for meter in meters:
        match = GRACE.fullmatch(meter.label or "")
        if match:
            # Skip parents without a meter, except the module: NVML may read it, and its energy includes the
            # processor's.
            (name, scope, parent), socket = TREE[match[1]], match[2]
            while parent is not None and parent != "Module" and (parent, socket) not in sockets:
                parent = TREE[parent][2]
            holder = f"{TREE[parent][0]}{int(socket)}" if parent else None
            domain = Domain(name=f"{name}{int(socket)}", scope=scope, parent=holder)
            # Its place in the tree is known even if it cannot be read.
            sensors.add(domain)
            _offer(sensors, meter, domain)
        else:
            _unknown(sensors, meter)
    return sensors.offered


def _meters(chip: Path) -> Iterator[Meter]:
    name = text_or_none(chip / "name") or ""
    if OTHERS.fullmatch(name):
        return
    # The ACPI driver has its files in the device folder, all others in the chip's folder.
    for folder in (chip, chip / "device"):
        readings = entries(folder, r"power\d{1,3}_(average|input)")
        numbers = sorted({int(re.sub(r"\D", "", path.name)) for path in readings})
        for number in numbers:
            start = f"power{number}_"
            average = folder / f"{start}average"
            interval_ms = number_or_none(folder / f"{start}average_interval")
            is_average = average in readings
            # The meter's own accuracy, such as `95.0%`. Never better than GAIN, whatever the firmware claims.
            accuracy = re.fullmatch(r"(\d{1,3}(?:\.\d+)?)\s*%", text_or_none(folder / f"{start}accuracy") or "")
            yield Meter(
                chip=chip.name,
                number=number,
                label=text_or_none(folder / f"{start}label") or text_or_none(folder / f"{start}oem_info"),
                reading=average if is_average else folder / f"{start}input",
                average_s=interval_ms / 1000 if is_average and interval_ms and interval_ms > 0 else None,
                gain=min(max(GAIN, 1 - float(accuracy[1]) / 100), 0.5) if accuracy else GAIN,
            )
        if numbers:
            return


def _offer(sensors: FileSensors, meter: Meter, domain: Domain) -> bool:
    acpi = meter.reading.parent.name == "device"
    channel = Channel(
        name=f"{BACKEND}.{domain.name}",
        backend=BACKEND,
        domain=domain.name,
        kind="gauge",
        resolution=RESOLUTION_ACPI_W if acpi else RESOLUTION_W,
        average_s=meter.average_s,
        # No period: the ACPI driver repeats a reading for the meter's sampling time, which is unknown.
        gain=meter.gain,
        source=f"{shown(sensors.root, meter.reading)} ({meter.label})"[:200]
        if meter.label
        else shown(sensors.root, meter.reading),
    )
    return sensors.offer(domain, channel, meter.reading)


def _unknown(sensors: FileSensors, meter: Meter) -> None:
    """Add a meter whose scope is unknown."""
    label = re.sub(r"[^A-Za-z0-9]+", "-", meter.label or "").strip("-")[:40]
    name = f"{meter.chip}-power{meter.number}" + (f"-{label}" if label else "")
    if _offer(sensors, meter, Domain(name=name, scope="board")):
        described = f'label "{meter.label[:60]}"' if meter.label else "no label"
        sensors.miss(
            f"scope of {name}",
            "unsupported",
            f"unknown what this meter measures ({described}): its power is recorded but not added to any total",
            "",
        )
