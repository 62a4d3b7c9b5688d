"""Power over the time of one run, from its raw sensor files: a few points per domain, in bounded memory.

For plots only: energy is never computed from these points.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from steelyard.contracts.conditions import COLUMNS, HELD
from steelyard.derive.observations import Observations
from steelyard.errors import SteelyardError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from steelyard.contracts.energy import Channel, Domain, DomainScope, PowerChunk
    from steelyard.contracts.observe import Phase
    from steelyard.contracts.record import RunRecord
    from steelyard.derive.observations import NodeSensors

    Floats = NDArray[np.float64]

MAX_POINTS = 2000
# Readings of a counter per point: its updates and the readings are not synchronous.
COUNTER_GROUP = 5
# After this many times as many readings without a new value, the counter is shown as constant.
STILL = 3
# Points of all lines together: with many domains each gets fewer.
MAX_ALL_POINTS = 2_000_000
GRID = 500
# Seconds and watts beyond this are not readings.
SANE = 1e12
# Two readings this many times the usual distance apart are not joined.
GAP = 5.0


@dataclass(frozen=True)
class PowerLine:
    """The power of one domain over time; or of several of one kind, if `of` is above 1."""

    name: str
    node: str
    scope: DomainScope
    counted: bool
    """Whether the energy of the job includes it."""
    time_s: Floats
    low_w: Floats
    mean_w: Floats
    high_w: Floats
    limit_w: float | None = None
    of: int = 1

    def gaps(self) -> list[int]:
        """Return the points after which there is a long gap."""
        steps = np.diff(self.time_s)
        usual = float(np.median(steps)) if steps.size else 0.0
        return [int(i) + 1 for i in np.flatnonzero(steps > max(GAP * usual, 1e-9))]


@dataclass(frozen=True)
class PowerTrace:
    """The power plot of a run."""

    run_id: str
    phases: tuple[Phase, ...]
    lines: tuple[PowerLine, ...]
    notes: tuple[str, ...]
    """What could not be read, and samplers that did not end properly."""
    held: tuple[str, ...] = ()
    """What held the clocks of devices back, and when it was first seen."""

    @property
    def start_s(self) -> float:
        """The first time in the plot, on the run's clock."""
        return min([float(line.time_s[0]) for line in self.lines] + [phase.start_s for phase in self.phases] or [0.0])

    @property
    def end_s(self) -> float:
        """The last time in the plot."""
        return max([float(line.time_s[-1]) for line in self.lines] + [phase.end_s for phase in self.phases] or [0.0])


# -- what was measured


def counted_scopes(nodes: Sequence[NodeSensors], names: Sequence[str]) -> tuple[DomainScope, ...]:
    """Return the scopes of the domains in an energy, by the names in its validity; empty if they are unknown."""
    scopes = [domain.scope for node in nodes for domain in node.domains.values() if is_named(node.name, domain, names)]
    return tuple(dict.fromkeys(scopes))


def is_named(node: str, domain: Domain, names: Sequence[str]) -> bool:
    """Return whether a domain of a node is among names such as `node/gpu0`."""
    wanted = {f"{node}/{domain.name}", f"{node} {domain.name}", f"{node}:{domain.name}"}
    return any(name in wanted for name in names)


# -- the trace


def power_trace(record: RunRecord, raw: Path) -> PowerTrace:
    """Return the power of every domain that was read, on the run's clock."""
    nodes = Observations(raw).nodes
    main = record.quantities.get("energy_job")
    names = main.validity.domains if main is not None and main.validity is not None else ()
    chosen = [(node, _choose_channels(node)) for node in nodes]
    points = MAX_ALL_POINTS // max(1, sum(len(channels) for _, channels in chosen))
    lines = [line for node, channels in chosen for line in _make_lines(node, channels, min(MAX_POINTS, points), names)]
    notes = [f"{missing.backend}: {missing.what}: {missing.reason}" for node in nodes for missing in node.missing]
    notes += [f"{node.name}: {node.damage}" for node in nodes if node.damage]
    notes += [f"the sampler of {node.name} did not end properly" for node in nodes if node.sampler and not node.ended]
    return PowerTrace(
        run_id=record.run_id,
        phases=_choose_phases(record.phases),
        lines=tuple(lines),
        notes=tuple(dict.fromkeys(notes)),
        held=tuple(_list_held(nodes)),
    )


def _choose_channels(node: NodeSensors) -> dict[int, Channel]:
    """Choose one channel per domain: the gauge with the shortest averaging time, or else a counter."""
    best: dict[str, int] = {}
    for number, channel in enumerate(node.channels):
        before = best.get(channel.domain)
        if channel.domain in node.domains and (before is None or _rank(channel) < _rank(node.channels[before])):
            best[channel.domain] = number
    return {number: node.channels[number] for number in best.values()}


def _rank(channel: Channel) -> tuple[bool, float]:
    return channel.kind == "counter", float("inf") if channel.average_s is None else channel.average_s


def _make_lines(node: NodeSensors, channels: dict[int, Channel], points: int, names: Sequence[str]) -> list[PowerLine]:
    if node.sampler is None:
        return []
    counts = dict.fromkeys(channels, 0)
    for chunk in _chunks(node):
        if chunk.channel in counts:
            counts[chunk.channel] += _finite(chunk.table).shape[1]
    bins = {
        number: _Counter(counts[number], points, channel.wrap)
        if channel.kind == "counter"
        else _Gauge(counts[number], points)
        for number, channel in channels.items()
        if counts[number]
    }
    left = dict(counts)
    for chunk in _chunks(node):
        if chunk.channel in bins and (table := _finite(chunk.table)[:, : left[chunk.channel]]).size:
            bins[chunk.channel].add(table)
            left[chunk.channel] -= table.shape[1]
    lines = []
    for number, reduced in bins.items():
        if left[number]:
            # The file is not what it was when its readings were counted.
            continue
        time_s, low, mean, high = reduced.points()
        if time_s.size:
            domain, channel = node.domains[channels[number].domain], channels[number]
            counted, time_s = is_named(node.name, domain, names), time_s - node.sampler.zero_s
            limits = [other.limit_w for other in node.channels if other.domain == domain.name and other.limit_w]
            limit = channel.limit_w or min(limits, default=None)
            lines.append(PowerLine(domain.name, node.name, domain.scope, counted, time_s, low, mean, high, limit))
    return lines


def _finite(table: Floats) -> Floats:
    # Written to reject NaN, too.
    sound: Floats = table[:, (np.abs(table) < SANE).all(axis=0)]
    return sound


def _chunks(node: NodeSensors) -> Iterator[PowerChunk]:
    """Yield chunks up to the first damaged one: what was read before is worth drawing."""
    with suppress(SteelyardError):
        yield from node.samples()


class _Gauge:
    """Readings in bins of equal count: minimum, mean, maximum."""

    def __init__(self, samples: int, points: int) -> None:
        self._bins, self._samples, self._seen = max(1, min(points, samples)), samples, 0
        self._count, self._time, self._sum = (np.zeros(self._bins) for _ in range(3))
        self._low, self._high = np.full(self._bins, np.inf), np.full(self._bins, -np.inf)

    def add(self, table: Floats) -> None:
        """Add consecutive readings."""
        place = (self._seen + np.arange(table.shape[1])) * self._bins // self._samples
        self._seen += table.shape[1]
        np.add.at(self._count, place, 1)
        np.add.at(self._time, place, table[0])
        np.add.at(self._sum, place, table[1])
        np.minimum.at(self._low, place, table[1])
        np.maximum.at(self._high, place, table[1])

    def points(self) -> tuple[Floats, Floats, Floats, Floats]:
        """Return times, minimum, mean and maximum, by time."""
        order = np.argsort(self._time / self._count, kind="stable")
        mean = self._sum / self._count
        return (self._time / self._count)[order], self._low[order], mean[order], self._high[order]


class _Counter:
    """Mean power between every few readings of a counter."""

    def __init__(self, samples: int, points: int, wrap: float | None) -> None:
        self._every = max(COUNTER_GROUP, -(-samples // points))
        self._wrap, self._seen = wrap, 0
        self._last: float | None = None
        self._joules = 0.0
        self._edge: int | None = None  # the reading that ended the last point
        self._edges: list[tuple[float, float]] = []

    def add(self, table: Floats) -> None:
        """Add consecutive readings."""
        before = table[1, 0] if self._last is None else self._last
        steps = np.diff(table[1], prepend=before)
        # A counter that falls has wrapped or was reset: in the latter case the step is unknown.
        steps = np.where(steps < 0, steps + self._wrap if self._wrap else 0.0, steps)
        joules = self._joules + np.cumsum(steps)
        new = np.flatnonzero(steps != 0)
        while (at := self._next_edge(new)) < table.shape[1]:
            self._edges.append((float(table[0, at]), float(joules[at])))
            self._edge = self._seen + at
        self._last, self._joules, self._seen = float(table[1, -1]), float(joules[-1]), self._seen + table.shape[1]

    def _next_edge(self, new: NDArray[np.intp]) -> int:
        """Return where the next point begins: at a new value, or anywhere if there is none for long.

        If an edge only repeated an old value, power would appear to jump.
        """
        due = 0 if self._edge is None else self._edge + self._every - self._seen
        latest = 0 if self._edge is None else due + STILL * self._every
        place = int(np.searchsorted(new, due))
        return max(0, min(int(new[place]) if place < len(new) else latest, latest))

    def points(self) -> tuple[Floats, Floats, Floats, Floats]:
        """Return times midway between two readings, and the mean power between them."""
        time_s, joules = (np.array(column) for column in zip(*self._edges, strict=True))
        later = np.flatnonzero(np.diff(time_s) > 0)
        power = np.diff(joules)[later] / np.diff(time_s)[later]
        middle = ((time_s[1:] + time_s[:-1]) / 2)[later]
        return middle, power, power, power


def _choose_phases(phases: Sequence[Phase]) -> tuple[Phase, ...]:
    """Return the phases by time. If steps are split into warm-up and steady, the whole is left out."""
    names = {phase.name for phase in phases}
    warm = max((phase.end_s for phase in phases if phase.name == "warmup"), default=-math.inf)
    phases = [replace(phase, start_s=max(phase.start_s, warm)) if phase.name == "steps" else phase for phase in phases]
    shown = [
        phase
        for phase in phases
        if (phase.name != "steps" or "steady" not in names) and -SANE < phase.start_s <= phase.end_s < SANE
    ]
    return tuple(sorted(shown, key=lambda phase: (phase.start_s, phase.end_s)))


def _list_held(nodes: Sequence[NodeSensors]) -> list[str]:
    first: dict[tuple[str, str, str], float] = {}
    for node in nodes:
        with suppress(SteelyardError, OSError):
            for device, table in node.readings():
                for column, words in HELD.items():
                    for at_s in table[COLUMNS.index("time_s"), table[COLUMNS.index(column)] > 0][:1]:
                        first.setdefault((node.name, device.domain, words), float(at_s))
    return [
        f"clocks of {domain} on {node} held back by: {words} (first seen at {at_s:.1f} s)"
        for (node, domain, words), at_s in first.items()
    ]


# -- several domains together


def together(lines: Sequence[PowerLine]) -> PowerLine:
    """Combine domains of one kind into one line: their mean, with their minimum and maximum."""
    grid = _grid(lines, GRID)
    table = np.array([np.interp(grid, line.time_s, line.mean_w) for line in lines])
    limits = {line.limit_w for line in lines}
    return PowerLine(
        name=f"{len(lines)} x {lines[0].scope}",
        node="",
        scope=lines[0].scope,
        counted=lines[0].counted,
        time_s=grid,
        low_w=table.min(axis=0),
        mean_w=table.mean(axis=0),
        high_w=table.max(axis=0),
        limit_w=limits.pop() if len(limits) == 1 else None,
        of=len(lines),
    )


def total(lines: Sequence[PowerLine], points: int) -> tuple[Floats, Floats]:
    """Return times and the total power of all lines; NaN where one of them has no data."""
    grid = _grid(lines, points)
    table = [np.interp(grid, line.time_s, line.mean_w, left=np.nan, right=np.nan) for line in lines]
    return grid, np.sum(table, axis=0)


def _grid(lines: Sequence[PowerLine], points: int) -> Floats:
    start_s, end_s = min(line.time_s[0] for line in lines), max(line.time_s[-1] for line in lines)
    return np.linspace(start_s, end_s, points)
