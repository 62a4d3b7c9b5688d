"""Find the CPUs near a rank's PCI device, and bind the process to them."""

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
    """Return the CPUs of the NUMA node of a rank, limited to those this process may use.

    This is the node of the rank's PCI device. Ranks without a device are spread over the usable nodes: with fewer ranks
    than nodes each gets several; with more ranks than nodes some share a node. Returns None if there is only one node
    or rank, or if the node is unknown: binding would be a guess.
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
    """Return a PCI address in the spelling of sysfs (`0000:65:00.0`), or None if the text is not one."""
    match = _PCI.fullmatch(text.strip())
    if match is None:
        return None
    domain, bus, device, function = match.groups()
    return f"{int(domain or '0', 16):04x}:{bus}:{device}.{function or '0'}".lower()


def bind(cpus: set[int]) -> None:
    """Bind every thread of this process, and those they start, to these CPUs."""
    done: set[int] = set()
    # A thread that is not bound yet may start another: repeat until there are no new ones.
    while new := {int(path.name) for path in Path("/proc/self/task").iterdir()} - done:
        for thread in new:
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(thread, cpus)
        done |= new


def _nearest(node: int, nodes: dict[int, set[int]], root: Path) -> set[int] | None:
    """Return the CPUs of the nodes nearest to one without CPUs, such as GPU memory on some machines."""
    distances = [int(text) for text in (read_text(root / f"devices/system/node/node{node}/distance") or "").split()]
    everyone = sorted(numa_nodes(root))
    if len(distances) != len(everyone):
        return None
    far = {other: distance for other, distance in zip(everyone, distances, strict=True) if other in nodes}
    near = [other for other, distance in far.items() if distance == min(far.values())]
    return None if len(near) == len(nodes) else set().union(*(nodes[other] for other in near))
