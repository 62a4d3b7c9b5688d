"""The state of an Intel card from the files of its driver (i915, xe): clock, temperatures, throttling, power limit.

Files: Documentation/ABI/testing/sysfs-driver-intel-xe-hwmon and -i915-hwmon, and the throttle files as
drivers/gpu/drm/xe/xe_gt_throttle.c and drivers/gpu/drm/i915/gt/intel_gt_sysfs_pm.c of the kernel name them.
"""

from __future__ import annotations

import re
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from steelyard.worker.sensors.conditions import state_of
from steelyard.worker.sensors.sysfs import (
    MICRO,
    MILLI,
    entries,
    number_or_none,
    read_micro,
    read_number,
    read_scaled,
    shown,
    temperature,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from steelyard.worker.sensors.backend import DeviceState
    from steelyard.worker.sensors.conditions import Read

# Ends of the names of reasons: power limits and limits of current; temperatures, also averaged ones and those of
# regulators; PROCHOT, which another part of the system raises.
REASONS = {
    "power_capped": r"(psys_)?(pl\d|crit)|vr_tdc|iccmax|fastvmode",
    "thermal": r"(\w+_)?thermal|ratl|vr_thermalert",
    "hardware": r"prochot",
}
THROTTLE_FILE = r"(?:throttle_)?reason_(\w+)"
TEMPERATURES = {"temperature_c": ("pkg", None), "memory_temperature_c": ("vram",)}


class GraphicsPart:
    """One graphics part of a card (a tile): its clock and the files with its throttle reasons."""

    def __init__(self, folder: Path) -> None:
        xe = folder / "freq0"
        self.clock = xe / "act_freq" if xe.is_dir() else folder / "rps_act_freq_mhz"
        self.highest = number_or_none(xe / "rp0_freq" if xe.is_dir() else folder / "rps_RP0_freq_mhz")
        self.reasons: dict[str, Path] = {}
        for path in entries(xe / "throttle" if xe.is_dir() else folder, THROTTLE_FILE):
            match = re.fullmatch(THROTTLE_FILE, path.name)
            if match:
                self.reasons[match[1]] = path


def card_state(root: Path, chip: Path, domain: str, backend: str) -> DeviceState:
    """Return what can be read of a card; `chip`: its hwmon folder."""
    parts = _parts(chip / "device")
    reads: dict[str, Read] = {}
    unknown = {
        "memory_clock_mhz": "Intel's drivers do not report it",
        "setting": "Intel's drivers do not report it",
        "idle": "Intel's drivers do not report it",
        "corrected": "Intel's drivers have no files with memory errors",
        "uncorrected": "Intel's drivers have no files with memory errors",
        "processes": "the driver does not list them here",
    }
    if parts:
        clocks = [part.clock for part in parts]
        reads["clock_mhz"] = shown(root, clocks[0]), partial(_mean, clocks)
    else:
        unknown["clock_mhz"] = "the driver has no folder of clocks (gt/gt0, tile0/gt0) for this card"
    for column, names in REASONS.items():
        files = [path for part in parts for name, path in part.reasons.items() if re.fullmatch(names, name)]
        if files:
            reads[column] = f"{shown(root, files[0])}{' ...' if len(files) > 1 else ''}", partial(_any, files)
        else:
            unknown[column] = "the driver has no files with throttle reasons for this card"
    for column, labels in TEMPERATURES.items():
        if (sensor := temperature(chip, labels)) is not None:
            reads[column] = shown(root, sensor), partial(read_scaled, sensor, MILLI)
        else:
            unknown[column] = "the driver reports no such temperature"
    limit = chip / ("power1_cap" if (chip / "power1_cap").exists() else "power1_max")
    reads["limit_w"] = shown(root, limit), partial(read_micro, limit)
    default_uw = number_or_none(chip / "power1_rated_max")
    return state_of(
        domain,
        backend,
        reads,
        unknown,
        clock_limit_mhz=next((float(part.highest) for part in parts if part.highest), None),
        default_limit_w=default_uw * MICRO if default_uw else None,
    )


def _parts(device: Path) -> list[GraphicsPart]:
    """Return the graphics parts. A part with a lower highest clock is for media."""
    # xe has the parts in the folders of tiles, i915 in that of the card.
    tiles = [*entries(device, r"tile\d+"), *(card / "gt" for card in entries(device / "drm", r"card\d+"))]
    parts = [GraphicsPart(folder) for folder in chain.from_iterable(entries(tile, r"gt\d+") for tile in tiles)]
    return [part for part in parts if part.clock.exists() and part.highest == parts[0].highest]


def _mean(files: Sequence[Path]) -> float:
    return sum(read_number(path) for path in files) / len(files)


def _any(files: Sequence[Path]) -> float:
    return float(any(read_number(path) for path in files))
