"""Energy of CPU packages and their memory from the kernel's powercap files. Uses neither MSRs nor perf.

Source of the files: Documentation/power/powercap/powercap.rst and Documentation/ABI/testing/sysfs-class-powercap of the
kernel; of the counters: Intel SDM volume 3B, chapter "Platform Specific Power Management Support" (updated about every
millisecond, 32 bits wide).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from steelyard.contracts.energy import Channel, Domain
from steelyard.worker.sensors.backend import ReadError
from steelyard.worker.sensors.sysfs import MICRO, FileSensors, entries, number_or_none, read_text, shown, text_or_none

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from steelyard.worker.sensors.backend import SensorsFound

BACKEND = "rapl"
FOLDER = "sys/class/powercap"
# One unit of the counter is 61 uJ on most Intel CPUs, 15 uJ on AMD and for some memory; the files do not tell.
UNIT_J = 2**-14
# From Intel's manual; AMD's manual has no value.
PERIOD_S = 1e-3
# AMD's counter follows a model of core activity that ignores operands and memory traffic:
# Schoene et al., Energy Efficiency Aspects of the AMD Zen 2 Architecture, CLUSTER 2021.
GAIN, GAIN_AMD = 0.05, 0.10
FIXES = {
    "forbidden": "as root, until the next boot: chmod o+r /sys/class/powercap/*/energy_uj "
    "(permanently: a udev rule; Slurm: a prolog)",
    "missing": "in a container: docker run -v /sys/devices/virtual/powercap:/sys/devices/virtual/powercap:ro; "
    "otherwise: modprobe intel_rapl_msr",
}
PARTS = ("core", "uncore")


class Zone(NamedTuple):
    """A folder of powercap with its name."""

    name: str
    path: Path


def open_rapl(root: Path, _devices: Sequence[str]) -> SensorsFound:
    """Find packages and their memory, each once."""
    sensors = FileSensors(root, BACKEND, FIXES)
    gain = GAIN_AMD if "AuthenticAMD" in (text_or_none(root / "proc/cpuinfo") or "") else GAIN
    # The same package may appear twice: as registers (intel-rapl) and as mapped memory (intel-rapl-mmio).
    for name, doubles in _packages(sensors).items():
        zone = next((zone for zone in doubles if _try(sensors, zone, "cpu", gain)), None)
        if zone is not None and len(doubles) > 1:
            # A duplicate that cannot be read does not matter if the other can.
            files = [f"{shown(root, double.path)}/energy_uj" for double in doubles]
            sensors.offered.missing[:] = [
                missing for missing in sensors.offered.missing if not any(file in missing.what for file in files)
            ]
        for each in [zone] if zone is not None else doubles[:1]:
            _memory(sensors, each, name, gain)
    return sensors.offered


def _packages(sensors: FileSensors) -> dict[str, list[Zone]]:
    """Return the folders of each package by name, the preferred one first."""
    packages: dict[str, list[Zone]] = {}
    for path in entries(sensors.root / FOLDER, r"intel-rapl(-mmio)?:\d+"):
        try:
            name = read_text(path / "name")
        except ReadError as error:
            code = "missing" if error.code == "vanished" else error.code
            sensors.miss(f"zone: {shown(sensors.root, path)}", code, "the folder exists but is empty")
            continue
        if name == "psys":
            sensors.miss(
                f"psys: {shown(sensors.root, path)}",
                "unsupported",
                "psys includes the packages and other parts of the platform, depending on the board: it is not used",
                "",
            )
        elif re.fullmatch(r"package-\d+(-die-\d+)?", name):
            packages.setdefault(name, []).append(Zone(name, path))
        else:
            reason = f'unknown zone "{name[:40]}"'
            sensors.miss(f"zone: {shown(sensors.root, path)}", "unsupported", reason)
    for zones in packages.values():
        zones.sort(key=lambda zone: "mmio" in zone.path.name)
    return packages


def _try(sensors: FileSensors, zone: Zone, scope: str, gain: float) -> bool:
    """Add the counter of a zone if it can be read."""
    range_uj = number_or_none(zone.path / "max_energy_range_uj")
    wrap_j = range_uj * MICRO if range_uj is not None and range_uj > 0 else None
    path = zone.path / "energy_uj"
    channel = Channel(
        name=f"{BACKEND}.{zone.name}",
        backend=BACKEND,
        domain=zone.name,
        kind="counter",
        resolution=UNIT_J,
        period_s=PERIOD_S if gain == GAIN else None,
        wrap=wrap_j,
        gain=gain,
        source=shown(sensors.root, path),
    )
    domain = Domain(name=zone.name, scope=scope)  # type: ignore[arg-type]
    offered = sensors.offer(domain, channel, path)
    if offered and wrap_j is None:
        sensors.miss(
            f"range of {zone.name}: {shown(sensors.root, zone.path / 'max_energy_range_uj')}",
            "missing",
            "the counter's range is unknown: a window in which it wraps has no energy; other windows are not affected",
            "use shorter windows: at 200 W most counters wrap after 20 minutes",
        )
    return offered


def _memory(sensors: FileSensors, package: Zone, name: str, gain: float) -> None:
    """Add the memory's counter. Its folder is below the package's, but the package's energy does not include it."""
    below = entries(package.path.parent, re.escape(package.path.name) + r":\d+")
    zones = {text_or_none(path / "name") or "": path for path in below}
    if "dram" in zones:
        _try(sensors, Zone(f"{name}-dram", zones["dram"]), "memory", gain)
    else:
        parts = " and ".join(part for part in PARTS if part in zones)
        more = f"; {parts} are parts of the package" if parts else ""
        sensors.miss(f"memory of {name}", "unsupported", f"this CPU has no energy counter for memory{more}", "")
