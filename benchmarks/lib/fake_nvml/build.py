"""Build the fake NVIDIA library and write the control file for its devices.

A process with the variables of `environment(folder, devices=...)` loads it through the real nvidia-ml-py.
"""

from __future__ import annotations

import math
import os
import shutil
import struct
import subprocess
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

SOURCE = Path(__file__).parent / "nvml_fake.c"
LIBRARY = "libnvidia-ml.so.1"
CONTROL = "control.txt"
CLOCK = "clock.bin"

Points = tuple[tuple[float, float], ...]
"""Power over time: (seconds, watts), starting at 0, linear in between; the last value stays."""


@dataclass(frozen=True, kw_only=True)
class Device:
    """One fake GPU: its properties, its true power, and its faults."""

    uuid: str | None = None
    name: str = "Fake GPU"
    capability: tuple[int, int] = (8, 0)
    power_w: Points = ((0.0, 300.0),)
    offset_j: float = 1_000_000.0
    """Value of the counter at time zero."""
    module_offset_j: float = 2_500_000.0
    tick_s: float = 0.1
    """Seconds between updates of the counter."""
    sensor_s: tuple[float, float, float] = (0.1, 0.025, 1.0)
    """Period of the power readings, window of an instant reading, and window of an average reading."""
    gain: float = 1.0
    limit_w: float = 400.0
    default_limit_w: float = 400.0
    changed_s: float | None = None
    """When the second of the following pairs begins to hold."""
    reasons: int | tuple[int, int] = 0
    clock_mhz: int | tuple[int, int] = 1980
    corrected: int | tuple[int, int] = 0
    """ECC errors since the driver was loaded."""
    uncorrected: int | tuple[int, int] = 0
    memory_clock_mhz: int = 2619
    highest_clock_mhz: int = 1980
    temperature_c: int = 55
    memory_temperature_c: int = 61
    processes: int = 0
    """Processes that compute on it."""
    module_power_w: Points = ()
    """Power of its superchip, including the CPU; empty: no superchip."""
    module_limit_w: float = 0.0
    total_is_module: bool = False
    """Whether the plain energy counter is that of the superchip."""
    c2c: bool = False
    cpus: tuple[int, int] | None = None
    """First and last CPU near it."""
    mig: tuple[str, ...] = ()
    lost_s: float | None = None
    """From then on every call reports that the GPU is lost."""
    stuck_s: float | None = None
    """From then on the counter is frozen."""
    errors: tuple[tuple[str, int, float], ...] = ()
    """(call, NVML error code, start): energy, instant, average, usage, enforced, module_instant, handle, ..."""
    blocks: tuple[tuple[str, float, float], ...] = ()
    """(call, seconds that it blocks, start)."""

    def counter_j(self, time_s: float, *, module: bool = False) -> float:
        """Return the value of the counter, to a millijoule, at a time before it is frozen."""
        offset_j = self.module_offset_j if module else self.offset_j
        ticked_s = _ticked_s(time_s, self.tick_s)
        return offset_j + self.gain * self.energy_j(ticked_s, module=module)

    def gauge_w(self, time_s: float, wide_s: float, *, module: bool = False) -> float:
        """Return the value of a power reading with the window `wide_s`."""
        end_s = _ticked_s(time_s, self.sensor_s[0])
        drawn_j = self.energy_j(end_s, module=module) - self.energy_j(end_s - wide_s, module=module)
        return self.gain * drawn_j / wide_s

    def energy_j(self, time_s: float, *, module: bool = False) -> float:
        """Return the true joules since time zero: the counter minus its offset, right after a tick."""
        points = self.module_power_w if module else self.power_w
        if time_s <= 0:
            return time_s * points[0][1]
        total = 0.0
        for (a, low), (b, high) in pairwise(points):
            if a < b and time_s > a:
                end = min(b, time_s)
                at_end = low + (high - low) * (end - a) / (b - a)
                total += (end - a) * (low + at_end) / 2
        last_s, last_w = points[-1]
        return total + max(0.0, time_s - last_s) * last_w


def _ticked_s(time_s: float, period_s: float) -> float:
    return math.floor((time_s + 5e-10) / period_s) * period_s


def build(folder: Path, *, old: bool = False) -> Path:
    """Compile the library into `folder`; `old` leaves out the calls that drivers before 530 do not have."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise SystemExit("a C compiler is needed for the fake library: install gcc")
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / LIBRARY
    flags = ["-O2", "-shared", "-fPIC", f"-Wl,-soname,{LIBRARY}", *(["-DOLD_DRIVER"] if old else [])]
    subprocess.run([compiler, *flags, "-o", str(library), str(SOURCE), "-lm"], check=True)
    return library


def environment(
    folder: Path,
    *,
    devices: list[Device] | int = 1,
    init_error: int = 0,
    start_s: float | None = None,
    own_clock: bool = False,
) -> dict[str, str]:
    """Write the control file next to the library; return the variables with which a new process finds both.

    `start_s` is time zero of the devices on CLOCK_MONOTONIC (default: now). With `own_clock`, their time is set by
    `set_clock` and does not run.
    """
    if isinstance(devices, int):
        devices = [Device() for _ in range(devices)]
    lines = [f"init {init_error}", f"start {time.monotonic() if start_s is None else start_s!r}"]
    if own_clock:
        set_clock(folder, 0.0)
        lines.append(f"clock {folder / CLOCK}")
    for number, device in enumerate(devices):
        lines += [f"{number} {fact}" for fact in _facts(device)]
    (folder / CONTROL).write_text("\n".join(lines) + "\n", encoding="utf-8")
    path = os.environ.get("LD_LIBRARY_PATH")
    return {
        "FAKE_NVML": str(folder / CONTROL),
        "LD_LIBRARY_PATH": f"{folder}{os.pathsep}{path}" if path else str(folder),
    }


def set_clock(folder: Path, time_s: float) -> None:
    """Set the clock of the devices, in place, so that running processes see it."""
    path = folder / CLOCK
    with path.open("r+b" if path.exists() else "w+b") as file:
        file.write(struct.pack("d", time_s))


def _facts(device: Device) -> list[str]:
    facts = [
        f"name {device.name}",
        "capability {} {}".format(*device.capability),
        f"power {_points(device.power_w)}",
        f"offset {device.offset_j!r} {device.module_offset_j!r}",
        f"tick {device.tick_s!r}",
        "sensor {!r} {!r} {!r}".format(*device.sensor_s),
        f"gain {device.gain!r}",
        f"limit {device.limit_w!r} {device.module_limit_w!r}",
        f"default_limit {device.default_limit_w!r}",
        f"reasons {_pair(device.reasons)}",
        f"clocks {_pair(device.clock_mhz)} {device.memory_clock_mhz} {device.highest_clock_mhz}",
        f"temperatures {device.temperature_c} {device.memory_temperature_c}",
        f"ecc {_pair(device.corrected)} {_pair(device.uncorrected)}",
        f"processes {device.processes}",
        f"c2c {int(device.c2c)}",
        f"total_is_module {int(device.total_is_module)}",
    ]
    optional = {
        "uuid": device.uuid,
        "module_power": _points(device.module_power_w) or None,
        "cpus": "{} {}".format(*device.cpus) if device.cpus else None,
        "mig": " ".join(device.mig) or None,
        "changed": device.changed_s,
        "lost": device.lost_s,
        "stuck": device.stuck_s,
    }
    facts += [f"{key} {value}" for key, value in optional.items() if value is not None]
    facts += [f"error {call} {code} {from_s!r}" for call, code, from_s in device.errors]
    facts += [f"block {call} {hold_s!r} {from_s!r}" for call, hold_s, from_s in device.blocks]
    return facts


def _pair(value: int | tuple[int, int]) -> str:
    return "{} {}".format(*(value if isinstance(value, tuple) else (value, value)))


def _points(points: Points) -> str:
    return " ".join(f"{time_s!r}:{power_w!r}" for time_s, power_w in points)
