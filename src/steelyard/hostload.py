"""How busy this machine is: the kernel's counters of CPU time, waiting, throttling and steal, and the processes.

Used by the front side and by the worker. Files are read below a root that tests can replace, without privileges. What
cannot be read is None or absent, never an error. A reading takes one or two milliseconds per hundred
processes.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from steelyard.contracts.observe import LoadCounters
from steelyard.hostinfo import control_groups, read_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from steelyard.contracts.observe import LoadMoment

MAX_PROCESSES = 100_000
MAX_LINE_BYTES = 4096
# More than the kernel counts in years; fewer than a contract refuses.
MAX_DIGITS = 15
TICK_S = 1 / os.sysconf("SC_CLK_TCK")
MICRO = 1e-6
# Columns of /proc/stat: user, nice, system, idle, iowait, irq, softirq, steal. Time of guests is part of user.
BUSY, STEAL = (0, 1, 2, 5, 6), 7


@dataclass(frozen=True)
class ProcessTime:
    """A process and the CPU time that it has used."""

    parent: int
    name: str
    cpu_s: float
    ended_s: float
    """CPU time of the processes that it started, waited for, and that have ended."""


def read_load(
    root: Path, moment: LoadMoment, node: str = "", own: int | None = None, cpus: Iterable[int] | None = None
) -> LoadCounters:
    """Read the counters now. `own` is the process whose use is counted, `cpus` are those that it may use.

    By default they are this process and its CPUs.
    """
    allowed = set(os.sched_getaffinity(0) if cpus is None else cpus)
    busy_s, steal_s = _cpu_times(root, allowed)
    at_s = time.monotonic()
    own_s = own_cpu_s(processes(root), os.getpid() if own is None else own)
    load = (read_text(root / "proc/loadavg") or "").split()[:1]
    periods, throttled = _throttling(root)
    return LoadCounters(
        moment=moment,
        node=node,
        at_s=at_s,
        cpus=f"{sum(1 << cpu for cpu in allowed):x}",
        load_average=_decimal(load[0]) if load else None,
        busy_s=busy_s,
        steal_s=steal_s,
        own_s=own_s,
        periods=periods,
        throttled_periods=throttled,
        cpu_wait_s=_waited_s(root, "cpu"),
        memory_wait_s=_waited_s(root, "memory"),
        io_wait_s=_waited_s(root, "io"),
    )


def processes(root: Path) -> dict[int, ProcessTime]:
    """Return all visible processes by number."""
    seen = {}
    try:
        with os.scandir(root / "proc") as entries:
            numbers = [entry.name for entry in islice(entries, MAX_PROCESSES) if entry.name.isdigit()]
    except OSError:
        return {}
    for number in numbers:
        # The name is in parentheses and may hold any character.
        before, _, after = _stat_line(f"{root}/proc/{number}/stat").rpartition(")")
        words = after.split()
        times = [_number(word) for word in words[11:15]]
        parent = _number(words[1]) if len(words) > 1 else None
        if parent is None or len(times) < 4 or None in times:
            continue
        user, system, ended_user, ended_system = (TICK_S * (ticks or 0) for ticks in times)
        name = before.partition("(")[2]
        seen[int(number)] = ProcessTime(parent, name, user + system, ended_user + ended_system)
    return seen


def own_numbers(seen: Mapping[int, ProcessTime], own: int) -> set[int]:
    """Return the numbers of a process and of all those that it started, directly or not."""
    children: dict[int, list[int]] = {}
    for number, process in seen.items():
        children.setdefault(process.parent, []).append(number)
    numbers, waiting = set(), [own]
    while waiting:
        number = waiting.pop()
        if number not in numbers:
            numbers.add(number)
            waiting += children.get(number, [])
    return numbers


def own_cpu_s(seen: Mapping[int, ProcessTime], own: int) -> float | None:
    """Return the CPU time of a process and of all those that it started, also those that have ended."""
    if own not in seen:
        return None
    return sum(seen[number].cpu_s + seen[number].ended_s for number in own_numbers(seen, own))


def _cpu_times(root: Path, allowed: set[int]) -> tuple[float | None, float | None]:
    """Return busy and stolen seconds of these CPUs; None if the kernel does not show all of them."""
    busy = steal = seen = 0
    for line in (read_text(root / "proc/stat") or "").splitlines():
        name, *words = line.split()[:9] or [""]
        number = _number(name[3:]) if name.startswith("cpu") else None
        if number is None or number not in allowed:
            continue
        ticks = [_number(word) for word in words]
        if len(ticks) > STEAL and None not in ticks:
            seen += 1
            busy += sum(ticks[column] or 0 for column in BUSY)
            steal += ticks[STEAL] or 0
    return (TICK_S * busy, TICK_S * steal) if seen == len(allowed) > 0 else (None, None)


def _throttling(root: Path) -> tuple[int | None, int | None]:
    """Return the scheduling periods of our control groups, and those in which the quota stopped them."""
    sums: dict[str, int] = {}
    for group in control_groups("cpu", root):
        for line in (read_text(group / "cpu.stat") or "").splitlines():
            name, _, value = line.partition(" ")
            count = _number(value) if name in ("nr_periods", "nr_throttled") else None
            if count is not None:
                sums[name] = sums.get(name, 0) + count
    return sums.get("nr_periods"), sums.get("nr_throttled")


def _waited_s(root: Path, what: str) -> float | None:
    """Return the seconds in which some task has waited; None if the kernel does not count them."""
    for line in (read_text(root / "proc/pressure" / what) or "").splitlines():
        words = line.split()
        if words[:1] == ["some"] and words[-1].startswith("total="):
            total = _number(words[-1].removeprefix("total="))
            return None if total is None else MICRO * total
    return None


def _stat_line(path: str) -> str:
    """Return the line of a process; empty if it has ended. Quicker than `read_text`: a node has thousands of them."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return os.read(file, MAX_LINE_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
    finally:
        os.close(file)


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS else None


def _decimal(text: str) -> float | None:
    whole, _, part = text.partition(".")
    return float(text) if _number(whole) is not None and (not part or _number(part) is not None) else None
