"""Finds what can be read on this node, over all registered backends. Knows their names and signs, reads no channel."""

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

# A driver that has to wake eight sleeping devices takes several seconds for it.
OPEN_LIMIT_S = 10.0
MAX_REASON = 500

# What the kernel shows of each of our backends, below the root. Where nothing of it is there, none of them has anything
# to offer, and no process needs to be started to say so. A backend without an entry here is always tried.
SIGNS = {
    "nvml": ("dev/nvidiactl", "dev/nvidia[0-9]*", "proc/driver/nvidia/version", "dev/dxg"),
    "rapl": ("sys/class/powercap/*",),
    # Grace keeps its files with the device.
    "hwmon": (
        "sys/class/hwmon/hwmon*/power*_*",
        "sys/class/hwmon/hwmon*/device/power*_*",
        "sys/class/hwmon/hwmon*/energy*_*",
    ),
    "amd": ("dev/kfd",),
    "ipu": ("dev/ipu[0-9]*",),
    "xpu": ("dev/dri/renderD*",),
}
# A container may have the library where only the loader is told of it; IPUs may be reached through the network.
LIBRARIES = {"nvml": "libnvidia-ml.so.1"}
VARIABLES = {"ipu": "IPUOF_"}


def possible(root: Path) -> tuple[list[str], list[Missing]]:
    """Names of the backends that could have something here, and why the others cannot. Opens nothing."""
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
    """All that can be read, as one; what cannot is in `missing`."""
    opened = dict(open_all(plugins.names("sensor"), root, devices))
    return merge([opened[name] for name in sorted(opened)])


def open_all(
    names: Iterable[str], root: Path, devices: Sequence[str], limit_s: float = OPEN_LIMIT_S
) -> Iterator[tuple[str, SensorsFound]]:
    """What each backend found, as it comes. None keeps the others waiting; one that takes too long is blocked."""
    done: queue.SimpleQueue[tuple[str, SensorsFound]] = queue.SimpleQueue()
    waiting = sorted(names)
    for name in waiting:
        # A thread that never comes back must not keep the process from ending.
        threading.Thread(
            target=lambda name=name: done.put((name, _open(name, root, devices))), daemon=True, name=f"open {name}"
        ).start()
    deadline_s = time.monotonic() + limit_s
    while waiting:
        try:
            name, found = done.get(timeout=max(0.0, deadline_s - time.monotonic()))
        except queue.Empty:
            break
        waiting.remove(name)
        yield name, found
    for name in waiting:
        reason = f"gave no answer within {limit_s:g} s"
        yield name, SensorsFound(missing=[missing(name, "sensor", "blocked", reason)])


def _open(name: str, root: Path, devices: Sequence[str]) -> SensorsFound:
    """What one backend finds. It may be a stranger's: whatever it raises is a reason."""
    try:
        found = plugins.load("sensor", name)(root, devices)
        if not isinstance(found, SensorsFound):
            raise TypeError(f"it returned {type(found).__name__}, not SensorsFound")
        # What cannot be read back is refused here: it would spoil the file of all sensors.
        for kind, contracts in ((Domain, found.domains), (Channel, found.channels), (Missing, found.missing)):
            for contract in contracts:
                from_json_object(kind, to_json_object(contract))
    except Exception as error:  # noqa: BLE001 -- see above
        return SensorsFound(missing=[missing_of(name, "sensor", error)])
    return found


def missing_of(backend: str, what: str, error: Exception) -> Missing:
    """An error as a reason."""
    if isinstance(error, ReadError):
        return missing(backend, what, error.code, error.reason)
    code = "forbidden" if isinstance(error, PermissionError) else "missing"
    return missing(backend, what, code, f"{type(error).__name__}: {error}")


def missing(backend: str, what: str, code: str, reason: str) -> Missing:
    """A reason that a record can hold, whoever worded it."""
    known = code if code in _CODES else "missing"
    words = reason.encode("utf-8", "backslashreplace").decode("utf-8")[:MAX_REASON]
    return Missing(backend=backend, what=what, code=known, reason=words)  # type: ignore[arg-type]


_CODES = ("missing", "forbidden", "unsupported", "frozen", "implausible", "blocked", "vanished")


def merge(parts: Sequence[SensorsFound]) -> SensorsFound:
    """Several findings as one, with one numbering of the channels. Of two with one name the first is kept."""
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

    whole.read, whole.close = (read if places else None), close
    return whole


def distinct(part: SensorsFound, domains: set[str], channels: set[str]) -> SensorsFound:
    """What of a finding can be added to these names. A domain that is known already is the same piece of hardware."""
    fresh = SensorsFound(missing=list(part.missing))
    fresh.domains = [domain for domain in part.domains if domain.name not in domains]
    for channel in part.channels:
        if part.read is None or channel.name in channels:
            why = "another channel has its name" if channel.name in channels else "its backend has no way to read it"
            fresh.missing.append(missing(channel.backend, channel.name, "unsupported", why))
        else:
            fresh.channels.append(channel)
            channels = channels | {channel.name}
    return fresh
