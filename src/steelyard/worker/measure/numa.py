"""Find the CPUs near a rank's PCI device, and bind the process to them."""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from steelyard.hostinfo import numa_nodes, read_int, read_text

if TYPE_CHECKING:
    from collections.abc import Set

_PCI = re.compile(r"(?:([0-9a-fA-F]{4,8}):)?([0-9a-fA-F]{2}):([0-9a-fA-F]{2})(?:\.([0-7]))?")


@dataclass(frozen=True)
class Nearby:
    """The CPUs to bind a rank to, or why it is not bound."""

    cpus: frozenset[int] = frozenset()
    nodes: tuple[int, ...] = ()
    """The NUMA nodes of these CPUs."""
    reason: str = ""

    def __str__(self) -> str:
        named = f"node{'s' * (len(self.nodes) > 1)} {', '.join(map(str, self.nodes))}"
        return named if self.cpus else f"no ({self.reason})"


def choose(
    asked: bool | None,
    device_pci: str | None,
    local_rank: int,
    local_ranks: int,
    *,
    accelerator: bool,
    root: Path = Path("/sys"),
) -> Nearby:
    """Return where to bind a rank. Not asked (None): near an accelerator, unless few of the usable CPUs are there."""
    if asked is False:
        return Nearby(reason="switched off")
    if not accelerator and not asked:
        return Nearby(reason="a run on the CPU is bound only on request")
    if accelerator and device_pci is None:
        return Nearby(reason="the PCI address of the device is unknown")
    near = cpus_beside(device_pci, local_rank, local_ranks, root)
    usable = os.sched_getaffinity(0)
    shares = [cpus & usable for cpus in numa_nodes(root).values() if cpus & usable]
    if asked is None and len(near.cpus) * len(shares) < len(usable):
        # Such as a job that was given scattered CPUs: its loader would have to do with the few near ones.
        few = f"only {len(near.cpus)} of {len(usable)} usable CPUs are near the device"
        return Nearby(reason=few) if near.cpus else near
    return near


def cpus_beside(device_pci: str | None, local_rank: int, local_ranks: int, root: Path = Path("/sys")) -> Nearby:
    """Return the CPUs of the NUMA node of a rank, limited to those this process may use.

    This is the node of the rank's PCI device. Ranks without a device are spread over the usable nodes: with fewer ranks
    than nodes each gets several; with more ranks than nodes some share a node. Without CPUs if there is only one node
    or rank, or if the node is unknown: binding would be a guess.
    """
    usable = os.sched_getaffinity(0)
    nodes = {node: cpus for node, cpus in numa_nodes(root).items() if cpus}
    if len(nodes) < 2:
        return Nearby(reason="the machine does not have several NUMA nodes")
    if device_pci is not None:
        return _beside_device(device_pci, nodes, usable, root)
    shares = [(node, cpus & usable) for node, cpus in sorted(nodes.items()) if cpus & usable]
    if len(shares) < 2 or local_ranks < 2 or not 0 <= local_rank < local_ranks:
        return Nearby(reason="one rank, or the usable CPUs are on one NUMA node")
    first = local_rank * len(shares) // local_ranks
    last = max(first + 1, (local_rank + 1) * len(shares) // local_ranks)
    own = shares[first:last]
    return Nearby(frozenset().union(*(cpus for _, cpus in own)), tuple(node for node, _ in own))


def _beside_device(device_pci: str, nodes: dict[int, set[int]], usable: set[int], root: Path) -> Nearby:
    address = pci_address(device_pci)
    node = None if address is None else read_int(root / "bus/pci/devices" / address / "numa_node")
    near = () if node is None or node < 0 else (node,) if node in nodes else _nearest(node, nodes, root)
    if not near:
        return Nearby(reason="the NUMA node of the device is unknown")
    cpus = frozenset().union(*(nodes[one] for one in near)) & usable
    return Nearby(cpus, near) if cpus else Nearby(reason="no usable CPU is near the device")


def pci_address(text: str) -> str | None:
    """Return a PCI address in the spelling of sysfs (`0000:65:00.0`), or None if the text is not one."""
    match = _PCI.fullmatch(text.strip())
    if match is None:
        return None
    domain, bus, device, function = match.groups()
    return f"{int(domain or '0', 16):04x}:{bus}:{device}.{function or '0'}".lower()


def bind(cpus: Set[int]) -> None:
    """Bind every thread of this process, and those they start, to these CPUs."""
    done: set[int] = set()
    # A thread that is not bound yet may start another: repeat until there are no new ones.
    while new := {int(path.name) for path in Path("/proc/self/task").iterdir()} - done:
        for thread in new:
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(thread, cpus)
        done |= new


def _nearest(node: int, nodes: dict[int, set[int]], root: Path) -> tuple[int, ...]:
    """Return the nodes nearest to one without CPUs, such as GPU memory on some machines; none if all are as near."""
    distances = [int(text) for text in (read_text(root / f"devices/system/node/node{node}/distance") or "").split()]
    everyone = sorted(numa_nodes(root))
    if len(distances) != len(everyone):
        return ()
    far = {other: distance for other, distance in zip(everyone, distances, strict=True) if other in nodes}
    near = tuple(other for other, distance in far.items() if distance == min(far.values()))
    return () if len(near) == len(nodes) else near
