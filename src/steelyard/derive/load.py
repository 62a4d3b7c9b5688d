"""How busy the nodes of a job were, from the counters that every process read before and after the measured steps."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from steelyard.contracts.conditions import COLUMNS
from steelyard.contracts.record import HostLoad, LoadShares
from steelyard.errors import SteelyardError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from steelyard.contracts.observe import LoadCounters, LoadMoment
    from steelyard.derive.observations import NodeSensors, Observations

    Pair = tuple[LoadCounters, LoadCounters]

# The kernel counts in ticks of milliseconds: in less time it tells nothing.
LEAST_S = 1e-3
MOST_CPUS = 1e6


def host_loads(observed: Observations) -> tuple[HostLoad, ...]:
    """Return the load of every node, in the order of its first process."""
    nodes: dict[str, list[list[LoadCounters]]] = {}
    for readings in observed.events.loads.values():
        nodes.setdefault(readings[0].node, []).append(readings)
    # A rank that tells nothing would count as another process.
    spec = observed.spec
    whole = len(observed.events.loads) == (spec.processes if spec.program is None else spec.devices)
    sensors = {node.name: node for node in observed.nodes}
    return tuple(
        HostLoad(
            node=node,
            cpus=_union(readings[-1].cpus for readings in ranks).bit_count(),
            before=load_between(_pairs(ranks, "start", "steps"), whole=whole),
            during=load_between(_pairs(ranks, "steps", "end"), whole=whole),
            device_processes=_device_processes(observed, sensors[node]) if node in sensors else None,
        )
        for node, ranks in nodes.items()
    )


def _pairs(ranks: Iterable[Sequence[LoadCounters]], begin: LoadMoment, end: LoadMoment) -> list[Pair]:
    """Return the two readings of each process of a node; none if a process has only one."""
    by_moment = [{reading.moment: reading for reading in readings} for readings in ranks]
    return [(at[begin], at[end]) for at in by_moment] if all(begin in at and end in at for at in by_moment) else []


def load_between(pairs: Sequence[Pair], *, whole: bool = True) -> LoadShares | None:
    """Return the load of a node between two readings of each of its processes; None if they are too close in time.

    `whole`: all processes of the job on this node are here.
    """
    if not pairs or (seconds := pairs[0][1].at_s - pairs[0][0].at_s) < LEAST_S:
        return None
    # Ranks may share their CPUs or have their own. Where sets overlap, or change, CPU time cannot be told apart.
    sets = {pair[0].cpus: pair for pair in pairs}
    cpus = _union(sets).bit_count()
    apart = sum(_union([mask]).bit_count() for mask in sets) == cpus and all(one.cpus == two.cpus for one, two in pairs)
    own_s = _grown(pairs, "own_s") if whole else None
    busy_s = _grown(sets.values(), "busy_s") if apart else None
    first = pairs[:1]
    return LoadShares(
        seconds=seconds,
        load_average=pairs[0][1].load_average,
        own_cpus=None if own_s is None else min(own_s / seconds, MOST_CPUS),
        # Ticks of 10 ms, and readings that are not quite at the same time, can give slightly too little or too much.
        other_cpus=None if own_s is None or busy_s is None else min(max(0.0, busy_s - own_s) / seconds, float(cpus)),
        steal_share=_share(_grown(sets.values(), "steal_s") if apart else None, seconds * cpus),
        throttled_share=_share(_grown(first, "throttled_periods"), _grown(first, "periods")),
        cpu_wait_share=_share(_grown(first, "cpu_wait_s"), seconds),
        memory_wait_share=_share(_grown(first, "memory_wait_s"), seconds),
        io_wait_share=_share(_grown(first, "io_wait_s"), seconds),
    )


def _union(masks: Iterable[str]) -> int:
    cpus = 0
    for mask in masks:
        cpus |= int(mask, 16)
    return cpus


def _grown(pairs: Iterable[Pair], name: str) -> float | None:
    """Return by how much a counter has grown, summed over processes; None if one does not tell or went backwards."""
    total = 0.0
    for pair in pairs:
        before, after = (getattr(reading, name) for reading in pair)
        if before is None or after is None or after < before:
            return None
        total += after - before
    return total


def _share(part: float | None, whole: float | None) -> float | None:
    return min(1.0, part / whole) if part is not None and whole else None


def _device_processes(observed: Observations, node: NodeSensors) -> int | None:
    """Return the most processes seen on one device of the job; None if not even our own is shown."""
    phases = observed.events.node_phases.get(node.process, [])
    steps = next((phase for phase in phases if phase.name == "steps"), None)
    if steps is None or node.sampler is None:
        return None
    # Imported late: `steelyard run` uses this module before the first step.
    import numpy as np

    times, counts = COLUMNS.index("time_s"), COLUMNS.index("processes")
    before: dict[str, float] = {}
    seen = 0.0
    with suppress(SteelyardError, OSError):
        for device, table in node.readings():
            told = table[:, np.isfinite(table[counts])]
            # Processes are listed every few seconds: the last list before the steps still holds when they begin.
            for count in told[counts, told[times] < steps.start_s][-1:]:
                before[device.domain] = float(count)
            inside = (told[times] >= steps.start_s) & (told[times] <= steps.end_s)
            seen = max(seen, told[counts, inside].max(initial=0.0))
    return int(max(seen, *before.values(), 0.0)) or None
