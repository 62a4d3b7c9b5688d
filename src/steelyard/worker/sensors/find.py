"""Find the readable sensors of this node over all registered backends."""

from __future__ import annotations

import os
import queue
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from steelyard import plugins
from steelyard.contracts.base import from_json_object, to_json_object
from steelyard.contracts.energy import Channel, Domain, Missing
from steelyard.worker.sensors.backend import ReadError, SensorsFound

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

# A driver may need several seconds to wake eight sleeping devices.
OPEN_LIMIT_S = 10.0
MAX_REASON = 500

# What the kernel shows for each built-in backend, below the root. If none of it exists, the backend has nothing to read
# and no process is started. A backend without an entry is always tried.
SIGNS = {
    "nvml": ("dev/nvidiactl", "dev/nvidia[0-9]*", "proc/driver/nvidia/version", "dev/dxg"),
    "rapl": ("sys/class/powercap/*",),
    # Grace has its files in the device folder.
    "hwmon": (
        "sys/class/hwmon/hwmon*/power*_*",
        "sys/class/hwmon/hwmon*/device/power*_*",
        "sys/class/hwmon/hwmon*/energy*_*",
    ),
    "amd": ("dev/kfd",),
    "ipu": ("dev/ipu[0-9]*",),
    "xpu": ("dev/dri/renderD*",),
}
# In a container, only the dynamic loader may find the library; IPUs may be attached through the network.
LIBRARIES = {"nvml": "libnvidia-ml.so.1"}
VARIABLES = {"ipu": "IPUOF_"}


def possible(root: Path) -> tuple[list[str], list[Missing]]:
    """Return the names of backends that could work here, and why the others cannot. Opens nothing."""
    names, absent = [], []
    for name in plugins.names("sensor"):
        if _sign(name, root):
            names.append(name)
        else:
            shown = ", ".join(f"/{pattern}" for pattern in SIGNS[name])
            absent.append(missing(name, "sensor", "missing", f"there is no {shown}"))
    return names, absent


def _sign(name: str, root: Path) -> bool:
    if name not in SIGNS or name not in plugins.BUILTIN["sensor"]:
        return True
    if any(next(root.glob(pattern), None) is not None for pattern in SIGNS[name]):
        return True
    if name in VARIABLES and any(variable.startswith(VARIABLES[name]) for variable in os.environ):
        return True
    folders = os.environ.get("LD_LIBRARY_PATH", "").split(":") if name in LIBRARIES else []
    return any((Path(folder) / LIBRARIES[name]).exists() for folder in folders if folder)


def find(root: Path, devices: Sequence[str]) -> SensorsFound:
    """Return everything that can be read, merged; what cannot be read is in `missing`."""
    opened = dict(open_all(plugins.names("sensor"), root, devices))
    return merge([opened[name] for name in sorted(opened)])


def open_all(
    names: Iterable[str], root: Path, devices: Sequence[str], limit_s: float = OPEN_LIMIT_S
) -> Iterator[tuple[str, SensorsFound]]:
    """Yield what each backend found as soon as it is done; a backend that takes too long is reported as blocked."""
    done: queue.SimpleQueue[tuple[str, SensorsFound]] = queue.SimpleQueue()
    waiting = sorted(names)
    for name in waiting:
        # Daemon threads: one that never returns must not keep the process alive.
        threading.Thread(
            target=lambda name=name: done.put((name, _open(name, root, devices))), daemon=True, name=f"open {name}"
        ).start()
    deadline_s = time.monotonic() + limit_s
    while waiting:
        try:
            name, sensors = done.get(timeout=max(0.0, deadline_s - time.monotonic()))
        except queue.Empty:
            break
        waiting.remove(name)
        yield name, sensors
    for name in waiting:
        reason = f"no answer within {limit_s:g} s"
        yield name, SensorsFound(missing=[missing(name, "sensor", "blocked", reason)])


def _open(name: str, root: Path, devices: Sequence[str]) -> SensorsFound:
    """Return what one backend finds. It may be third-party code: any error becomes a reason."""
    try:
        sensors = plugins.load("sensor", name)(root, devices)
        if not isinstance(sensors, SensorsFound):
            raise TypeError(f"it returned {type(sensors).__name__}, not SensorsFound")
        # Check that the result can be read back; otherwise it would corrupt the file of all sensors.
        for kind, contracts in ((Domain, sensors.domains), (Channel, sensors.channels), (Missing, sensors.missing)):
            for contract in contracts:
                from_json_object(kind, to_json_object(contract))
    except Exception as error:  # noqa: BLE001 -- see above
        return SensorsFound(missing=[missing_of(name, "sensor", error)])
    return sensors


def missing_of(backend: str, what: str, error: Exception) -> Missing:
    """Return an error as a reason."""
    if isinstance(error, ReadError):
        return missing(backend, what, error.code, error.reason)
    code = "forbidden" if isinstance(error, PermissionError) else "missing"
    return missing(backend, what, code, f"{type(error).__name__}: {error}")


def missing(backend: str, what: str, code: str, reason: str) -> Missing:
    """Return a reason that a record can hold, whatever its origin."""
    known = code if code in _CODES else "missing"
    text = reason.encode("utf-8", "backslashreplace").decode("utf-8")[:MAX_REASON]
    return Missing(backend=backend, what=what, code=known, reason=text)  # type: ignore[arg-type]


_CODES = ("missing", "forbidden", "unsupported", "frozen", "implausible", "blocked", "vanished")


def merge(parts: Sequence[SensorsFound]) -> SensorsFound:
    """Merge several results and renumber their channels. Of two with the same name the first is kept."""
    whole = SensorsFound()
    places: list[tuple[SensorsFound, int]] = []
    for part in parts:
        fresh = distinct(part, {domain.name for domain in whole.domains}, {channel.name for channel in whole.channels})
        whole.domains += fresh.domains
        whole.missing += fresh.missing
        for channel in fresh.channels:
            whole.channels.append(channel)
            places.append((part, part.channels.index(channel)))

    def read(number: int) -> float:
        part, own = places[number]
        assert part.read is not None
        return part.read(own)

    def close() -> None:
        for part in parts:
            part.close()

    opened = [part.states for part in parts if part.states is not None]
    whole.states = lambda: [state for states in opened for state in states()]
    whole.read, whole.close = (read if places else None), close
    return whole


def distinct(part: SensorsFound, domains: set[str], channels: set[str]) -> SensorsFound:
    """Return the part of a result that does not clash with these names. A known domain is the same hardware."""
    fresh = SensorsFound(missing=list(part.missing))
    fresh.domains = [domain for domain in part.domains if domain.name not in domains]
    for channel in part.channels:
        if part.read is None or channel.name in channels:
            why = "another channel has the same name" if channel.name in channels else "the backend cannot read it"
            fresh.missing.append(missing(channel.backend, channel.name, "unsupported", why))
        else:
            fresh.channels.append(channel)
            channels = channels | {channel.name}
    return fresh
