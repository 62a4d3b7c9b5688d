"""Find the NVIDIA GPUs, which of them belong to the job, and their modules."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from steelyard.hostinfo import read_int
from steelyard.worker.sensors.backend import ReadError
from steelyard.worker.sensors.nvml_library import AVERAGE, INSTANT, MODULE_SCOPE, Session, missing, text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from steelyard.contracts.energy import Missing

HOPPER, GA100 = (9, 0), (8, 0)
SOCKET_SCOPE = 1
CPU_WORDS = 64
MAX_CARDS, MAX_INSTANCES = 256, 64


@dataclass(frozen=True)
class Card:
    """One GPU as NVML shows it."""

    index: int
    handle: Any
    uuid: str
    name: str
    capability: tuple[int, int] | None
    instances: tuple[str, ...]
    """UUIDs of its MIG instances."""
    superchip: bool
    """Whether it shares a module with a processor."""
    module: str | None = None
    """The domain of that module, if known."""


def all_cards(session: Session, root: Path, absent: list[Missing]) -> list[Card]:
    """Return every GPU that answers; the others go to `absent`."""
    try:
        count = min(session.call("nvmlDeviceGetCount"), MAX_CARDS)
    except ReadError as error:
        absent.append(missing("all GPUs", error.code, error.reason))
        return []
    cards = [card for index in range(count) if (card := _card(session, index, absent)) is not None]
    # Each GPU of a superchip belongs to a module, numbered like the processor's socket.
    placed = []
    for card in cards:
        socket = _socket(session, card, root) if card.superchip else None
        if card.superchip and socket is None and (len(cards) == 1 or card.capability == HOPPER):
            # A Grace Hopper has one GPU and one processor. Newer modules have more, so the socket must be known.
            socket = card.index
        placed.append(card if socket is None else replace(card, module=f"module{socket}"))
    return placed


def _card(session: Session, index: int, absent: list[Missing]) -> Card | None:
    try:
        handle = session.call("nvmlDeviceGetHandleByIndex", index)
        uuid = text(session.call("nvmlDeviceGetUUID", handle))
    except ReadError as error:
        absent.append(missing(f"GPU {index}", error.code, error.reason))
        return None
    c2c = session.try_call("nvmlDeviceGetC2cModeInfoV", handle)
    capability = session.try_call("nvmlDeviceGetCudaComputeCapability", handle)
    return Card(
        index=index,
        handle=handle,
        uuid=uuid,
        name=text(session.try_call("nvmlDeviceGetName", handle)),
        capability=(capability[0], capability[1]) if capability else None,
        instances=tuple(_instances(session, handle)),
        superchip=bool(getattr(c2c, "isC2cEnabled", 0))
        or any(session.try_field(handle, field, MODULE_SCOPE) is not None for field in (INSTANT, AVERAGE)),
    )


def _instances(session: Session, handle: Any) -> Iterator[str]:
    mode = session.try_call("nvmlDeviceGetMigMode", handle)
    if not mode or not mode[0]:
        return
    for number in range(min(session.try_call("nvmlDeviceGetMaxMigDeviceCount", handle) or 0, MAX_INSTANCES)):
        instance = session.try_call("nvmlDeviceGetMigDeviceHandleByIndex", handle, number)
        if instance is not None and (uuid := session.try_call("nvmlDeviceGetUUID", instance)):
            yield text(uuid)


def _socket(session: Session, card: Card, root: Path) -> int | None:
    """Return the index of the CPU package near the GPU; the kernel's own numbers have gaps on ARM."""
    mask = session.try_call("nvmlDeviceGetCpuAffinityWithinScope", card.handle, CPU_WORDS, SOCKET_SCOPE)
    if mask is None:
        return None
    beside = next((64 * word + bit for word, bits in enumerate(mask) for bit in range(64) if bits >> bit & 1), None)
    files = root.glob("sys/devices/system/cpu/cpu[0-9]*/topology/physical_package_id")
    packages = {path.parent.parent.name: read_int(path) for path in files}
    known = sorted({package for package in packages.values() if package is not None})
    package = packages.get(f"cpu{beside}")
    return known.index(package) if package is not None else None


# -- the job's devices ----------------------------------------------------------------------------------------


def ours(device: str) -> bool:
    """Whether the device has a name that only NVIDIA uses."""
    return device.upper().startswith(("GPU-", "MIG-"))


def wanted(cards: list[Card], devices: Sequence[str], absent: list[Missing]) -> list[Card]:
    """Return the job's cards, each once, from numbers or UUIDs as in CUDA_VISIBLE_DEVICES and torch; empty: all."""
    if not devices:
        return cards
    # CUDA stops at the first negative number.
    named = list(takewhile(lambda device: not device.startswith("-"), (device.strip() for device in devices)))
    order_unknown = len({card.name for card in cards}) > 1 and os.environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID"
    if order_unknown and any(_number(device) is not None for device in named):
        reason = "the node has different GPUs: CUDA numbers them by speed, NVML by PCI address"
        absent.append(missing("GPUs by number", "missing", reason, "set CUDA_DEVICE_ORDER=PCI_BUS_ID, or use UUIDs"))
        named = [device for device in named if _number(device) is None]
    chosen: dict[int, Card] = {}
    for device in named:
        matches = _matches(cards, device)
        if len(matches) == 1:
            chosen.setdefault(matches[0].index, matches[0])
        else:
            why = "more than one GPU matches this name" if matches else "NVML has no GPU with this name"
            absent.append(missing(f"device {device[:100]}", "missing", why))
    return [chosen[index] for index in sorted(chosen)]


def _number(device: str) -> int | None:
    """Return the card's number from `3` or `3:1` (an instance of that card)."""
    match = re.fullmatch(r"(\d{1,4})(:\d{1,4}){0,2}", device)
    return int(match[1]) if match else None


def _matches(cards: list[Card], device: str) -> list[Card]:
    number = _number(device)
    if number is not None:
        return [card for card in cards if card.index == number]
    # Old names of an instance are the card's UUID and two numbers: MIG-GPU-<uuid>/1/0.
    start = re.sub(r"^(MIG-)?(GPU-)?", "", device.partition("/")[0], flags=re.IGNORECASE).lower()
    # CUDA accepts a unique prefix of a UUID; torch omits the GPU- prefix.
    return [
        card
        for card in cards
        if start
        and any(re.sub(r"^(GPU|MIG)-", "", name).lower().startswith(start) for name in (card.uuid, *card.instances))
    ]
