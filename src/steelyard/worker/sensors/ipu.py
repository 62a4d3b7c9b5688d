"""Power of Graphcore IPUs and their boards from gcipuinfo. There is no engine for IPUs here.

Sources: Graphcore IPU Info Library (https://docs.graphcore.ai/projects/gcipuinfo): values are texts, kept until
updateData() is called; device attributes (https://docs.graphcore.ai/projects/command-line-tools): `ipu power` is `N/A`
on some boards, `total board power` is of all IPUs of a board.
"""

from __future__ import annotations

import importlib
import os
import re
import time
from typing import TYPE_CHECKING, Any

from steelyard.contracts.energy import Channel, Domain, Missing
from steelyard.worker.sensors.backend import ReadError, SensorsFound

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

BACKEND = "ipu"
IPU_POWER, BOARD_POWER = "ipu power", "total board power"
# gc-powertest shows steps of 0.5 W for an IPU, the attributes of a board 0.1 W.
RESOLUTION_W = {IPU_POWER: 0.5, BOARD_POWER: 0.1}
# One update queries all devices and serves all channels of a round.
FRESH_S = 0.005
INSTALL = "source the Poplar SDK's enable script, which puts gcipuinfo on PYTHONPATH"
# IPUs of a pod are reached over the network: there is no file for them in /dev.
VARIABLES = ("IPUOF_VIPU_API_PARTITION_ID", "IPUOF_CONFIG_PATH")
MAX_DEVICES = 4096


class Inventory:
    """The library's table of devices, updated when it is too old."""

    def __init__(self, library: Any) -> None:
        self._source = library.gcipuinfo()
        self._devices: list[dict[str, str]] = []
        self._asked_s = float("-inf")

    def devices(self) -> list[dict[str, str]]:
        """Return one dict of texts per IPU of our partition."""
        now_s = time.monotonic()
        if now_s - self._asked_s > FRESH_S:
            if self._source.updateData() is False:
                raise ReadError("missing", "gcipuinfo could not update its data")
            self._devices = [dict(device) for device in self._source.getDevices()][:MAX_DEVICES]
            self._asked_s = now_s
        return self._devices

    def watts(self, number: int, attribute: str) -> float:
        """Return the power of one device."""
        try:
            devices = self.devices()
        except ReadError:
            raise
        except Exception as error:  # noqa: BLE001 -- any error of the vendor's binding is a reason
            raise ReadError("missing", _describe_error(error)) from None
        if number >= len(devices):
            raise ReadError("vanished", f"gcipuinfo lists only {len(devices)} IPUs now")
        text = devices[number].get(attribute, "")
        watts = parse_watts(text)
        if watts is None:
            raise ReadError("missing", f'{attribute} is "{str(text)[:40]}"')
        return watts


def parse_watts(text: object) -> float | None:
    """Parse `123.50W` or `12.6 W`; None for `N/A` and anything else. Unknown is never 0."""
    match = re.fullmatch(r"\s*(\d{1,6}(?:\.\d{1,6})?)\s*W\s*", text) if isinstance(text, str) else None
    return float(match[1]) if match else None


def open_ipu(root: Path, _devices: Sequence[str]) -> SensorsFound:
    """Find the IPUs of our partition and their boards."""
    present = any(root.glob("dev/ipu[0-9]*")) or any(os.environ.get(name) for name in VARIABLES)
    try:
        inventory = Inventory(importlib.import_module("gcipuinfo"))
        devices = inventory.devices()
    except Exception as error:  # noqa: BLE001 -- it loads shared libraries and may raise anything
        if not present:
            return SensorsFound()
        absent = isinstance(error, ModuleNotFoundError)
        reason = "gcipuinfo is not installed for this Python" if absent else f"gcipuinfo: {_describe_error(error)}"
        return SensorsFound(missing=[_missing("gcipuinfo", "missing", reason, INSTALL)])
    sensors = SensorsFound()
    reads: list[tuple[int, str]] = []
    # Boards that report power: serial number -> name and first IPU. Also if only one IPU of a board is visible: the
    # others may belong to another user, and the board's power includes them.
    shared: dict[str, tuple[str, int]] = {}
    for number, device in enumerate(devices):
        if parse_watts(device.get(BOARD_POWER)) is not None:
            shared.setdefault(_board(device, number), (f"ipu-board{len(shared)}", number))
    for name, number in shared.values():
        sensors.domains.append(Domain(name=name, scope="board"))
        _add(sensors, reads, name, number, BOARD_POWER)
    for number, device in enumerate(devices):
        name = f"ipu{number}"
        parent = shared.get(_board(device, number), (None, 0))[0]
        known_as = (device.get("pci id") or device.get("id") or "")[:200] or None
        sensors.domains.append(Domain(name=name, scope="device", parent=parent, device=known_as))
        if parse_watts(device.get(IPU_POWER)) is not None:
            _add(sensors, reads, name, number, IPU_POWER)
        else:
            instead = f"; {parent}, which includes it, reports its power" if parent else ""
            reason = f"{IPU_POWER} is {str(device.get(IPU_POWER, 'not given'))[:40]}{instead}"
            sensors.missing.append(_missing(f"power of {name}", "unsupported", reason))
    if reads:
        sensors.read = lambda channel: inventory.watts(*reads[channel])
    return sensors


def _board(device: dict[str, str], number: int) -> str:
    """Return the board's serial number; a device without one is treated as its own board."""
    return device.get("board serial number") or f"of device {number}"


def _add(sensors: SensorsFound, reads: list[tuple[int, str]], name: str, number: int, attribute: str) -> None:
    channel = Channel(
        name=f"{BACKEND}.{name}",
        backend=BACKEND,
        domain=name,
        kind="gauge",
        resolution=RESOLUTION_W[attribute],
        source=f"gcipuinfo: {attribute} of device {number}",
    )
    sensors.channels.append(channel)
    reads.append((number, attribute))


def _missing(what: str, code: Any, reason: str, fix: str = "") -> Missing:
    return Missing(backend=BACKEND, what=what, code=code, reason=reason, fix=fix)


def _describe_error(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]
