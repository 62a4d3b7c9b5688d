"""How busy this node is now, and with what."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from steelyard.derive.load import load_between
from steelyard.doctor.node import Check, HostView
from steelyard.errors import printable
from steelyard.hostload import own_numbers, processes, read_load
from steelyard.rules.environment.load import describe_others, disturbances

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from steelyard.contracts.observe import LoadCounters, LoadMoment
    from steelyard.contracts.record import LoadShares
    from steelyard.hostload import ProcessTime

# CPU time is counted in ticks of 10 ms: long enough to see a tenth of a CPU, short enough not to be noticed.
INTERVAL_S = 0.3
# One tick is 3 % of this time on a CPU: more than in the rule must be used or lost.
CROWDED, LOST = 0.1, 0.05
LEAST_CPUS = 0.1
SHOWN = 3


def load_check(node: HostView, pause: Callable[[float], None] = time.sleep) -> Check:
    """Check whether something else uses the CPUs, and name the processes that use most."""
    begin_s, before = time.monotonic(), processes(node.root)
    look = Look(node)
    pause(INTERVAL_S)
    load = look.load()
    if load is None:
        return Check("load", "note", "unknown: the kernel does not show the CPU time of processes")
    told = dict(_disturbances(load, node))
    busiest = ", ".join(_busiest(before, processes(node.root), time.monotonic() - begin_s)) if told else ""
    text = "; ".join(told) or describe_others(load, len(node.cpu_numbers))
    return Check(
        "load", "note" if told else "ok", text + (f"; most: {busiest}" if busiest else ""), "; ".join(told.values())
    )


class Look:
    """A look at the load of this node, from its making until it is asked; what this process starts is its own."""

    def __init__(self, node: HostView | None = None) -> None:
        self._node = node or HostView()
        self._first = self._read("start")

    def load(self) -> LoadShares | None:
        """Return the load; None if the kernel does not show what others use."""
        load = load_between([(self._first, self._read("end"))])
        return load if load is not None and load.other_cpus is not None else None

    def busy_line(self) -> str:
        """Return a line for people if this node is busy; empty if it is not."""
        load = self.load()
        told = [] if load is None else [text for text, _ in _disturbances(load, self._node)]
        return f"busy machine: {'; '.join(told)}; see steelyard doctor" if told else ""

    def _read(self, moment: LoadMoment) -> LoadCounters:
        return read_load(self._node.root, moment, cpus=self._node.cpu_numbers)


def _disturbances(load: LoadShares, node: HostView) -> Iterator[tuple[str, str]]:
    cpus = len(node.cpu_numbers)
    # A run to come may want every CPU.
    wanted = replace(load, own_cpus=float(cpus))
    return disturbances(wanted, cpus, crowded=CROWDED, lost=LOST)


def _busiest(before: dict[int, ProcessTime], after: dict[int, ProcessTime], seconds: float) -> list[str]:
    """Return the other processes that used most CPU time."""
    ours = own_numbers(after, os.getpid())
    used = {
        number: (process.cpu_s - before[number].cpu_s) / seconds
        for number, process in after.items()
        if number in before and number not in ours
    }
    most = sorted(used, key=lambda number: -used[number])[:SHOWN]
    return [
        f"{printable(after[number].name)[:40]} (process {number}, {used[number]:.1f} CPUs)"
        for number in most
        if used[number] >= LEAST_CPUS
    ]
