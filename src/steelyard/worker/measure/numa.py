"""Which CPUs are near a rank's device, and how to stay on them. Knows NUMA nodes and PCI devices, no accelerator."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

from steelyard.hostinfo import numa_nodes, read_int, read_text

_PCI = re.compile(r"(?:([0-9a-fA-F]{4,8}):)?([0-9a-fA-F]{2}):([0-9a-fA-F]{2})(?:\.([0-7]))?")


def cpus_beside(
    device_pci: str | None, local_rank: int, local_ranks: int, root: Path = Path("/sys")
) -> set[int] | None:
    """CPUs of the NUMA node that a rank belongs on, of those this process may use.

    That is the node of the rank's PCI device. Ranks without one share out the nodes whose CPUs this process may use:
    with fewer ranks than nodes each gets several, with more ranks some share a node and each gets all of it. None:
    there is only one node, one rank has them all, or nothing is known; binding would then be a guess.
    """
    usable = os.sched_getaffinity(0)
    nodes = {node: cpus for node, cpus in numa_nodes(root).items() if cpus}
    if len(nodes) < 2:
        return None
    if device_pci is not None:
        address = pci_address(device_pci)
        node = None if address is None else read_int(root / "bus/pci/devices" / address / "numa_node")
        if node is None or node < 0:
            return None
        near = nodes[node] if node in nodes else _nearest(node, nodes, root)
        return near & usable or None if near else None
    shares = [cpus & usable for _, cpus in sorted(nodes.items()) if cpus & usable]
    if len(shares) < 2 or local_ranks < 2 or not 0 <= local_rank < local_ranks:
        return None
    first = local_rank * len(shares) // local_ranks
    last = max(first + 1, (local_rank + 1) * len(shares) // local_ranks)
    return set().union(*shares[first:last])


def pci_address(text: str) -> str | None:
    """A PCI address as sysfs spells it (`0000:65:00.0`), from the spellings of drivers; None when it is not one."""
    match = _PCI.fullmatch(text.strip())
    if match is None:
        return None
    domain, bus, device, function = match.groups()
    return f"{int(domain or '0', 16):04x}:{bus}:{device}.{function or '0'}".lower()


def bind(cpus: set[int]) -> None:
    """Keep every thread of this process, and those they start, on these CPUs."""
    done: set[int] = set()
    # A thread not bound yet may start another meanwhile: look again until there is no new one.
    while new := {int(path.name) for path in Path("/proc/self/task").iterdir()} - done:
        for thread in new:
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(thread, cpus)
        done |= new


def _nearest(node: int, nodes: dict[int, set[int]], root: Path) -> set[int] | None:
    """CPUs of the nodes nearest to one that has memory only, as a GPU's memory has on some machines."""
    distances = [int(text) for text in (read_text(root / f"devices/system/node/node{node}/distance") or "").split()]
    everyone = sorted(numa_nodes(root))
    if len(distances) != len(everyone):
        return None
    far = {other: distance for other, distance in zip(everyone, distances, strict=True) if other in nodes}
    near = [other for other, distance in far.items() if distance == min(far.values())]
    return None if len(near) == len(nodes) else set().union(*(nodes[other] for other in near))
