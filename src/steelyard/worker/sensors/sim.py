"""Simulated sensors: turn exact power over time into the files of a sampler.

Sensors can average, round, lag, wrap and fail. Memory does not grow with the length of the run: power is read as soon
as it is final, and then dropped.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from steelyard.contracts.base import to_json_object
from steelyard.contracts.conditions import COLUMNS, READ, Readable
from steelyard.contracts.energy import (
    CONDITIONS,
    MAX_CHUNK_SAMPLES,
    POWER,
    SENSORS_PATTERN,
    Channel,
    Domain,
    Ended,
    Missing,
    Sampler,
    write_power_chunk,
)
from steelyard.nofollow import open_own

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from steelyard.contracts.sim import Sensor, State
    from steelyard.contracts.spec import RunSpec

    Floats = NDArray[np.float64]

# Reading of a counter at the start: it has counted since the machine was switched on.
COUNTED_BEFORE_J = 1e6
# Each node's clock starts at a different time, like those of real nodes.
CLOCK_ZERO_S = 1000.0
# A reading at the time of an update returns that update, despite rounding.
_SAME_MOMENT = 1e-9


class Drawn:
    """What one device draws above idle: cumulative joules at the times where the power changes."""

    def __init__(self, idle_w: float) -> None:
        self._idle_w = idle_w
        self._time_s = np.zeros(1)
        self._joules = np.zeros(1)

    def extend(self, spans: Sequence[float]) -> None:
        """Append spans of start, stop and watts, in order; all other time is idle."""
        if not spans:
            return
        start, stop, watts = np.asarray(spans, dtype=np.float64).reshape(-1, 3).T
        after = self._joules[-1] + np.cumsum((stop - start) * (watts - self._idle_w))
        before = np.concatenate([self._joules[-1:], after[:-1]])
        self._time_s = np.concatenate([self._time_s, np.stack([start, stop], axis=1).ravel()])
        self._joules = np.concatenate([self._joules, np.stack([before, after], axis=1).ravel()])

    def joules(self, at_s: Floats) -> Floats:
        """Return the energy until these times."""
        return at_s * self._idle_w + np.interp(at_s, self._time_s, self._joules)

    def watts(self, at_s: Floats) -> Floats:
        """Return the power just before these times."""
        after = np.searchsorted(self._time_s, at_s)
        inside = (after > 0) & (after < len(self._time_s))
        last = np.where(inside, after, 1 if len(self._time_s) > 1 else 0)
        first = np.maximum(last - 1, 0)
        length = self._time_s[last] - self._time_s[first]
        rise = (self._joules[last] - self._joules[first]) / np.where(length > 0, length, 1.0)
        return self._idle_w + np.where(inside, rise, 0.0)

    def forget(self, before_s: float) -> None:
        """Drop data before this time; it will not be needed again."""
        first = max(0, int(np.searchsorted(self._time_s, before_s)) - 1)
        self._time_s, self._joules = self._time_s[first:], self._joules[first:]


@dataclass
class _Domain:
    """A piece of hardware: its devices, and the constant power of the rest of it."""

    contract: Domain
    drawn: list[Drawn]
    base_w: float = 0.0

    def joules(self, at_s: Floats) -> Floats:
        return at_s * self.base_w + sum(device.joules(at_s) for device in self.drawn)

    def watts(self, at_s: Floats) -> Floats:
        return self.base_w + sum((device.watts(at_s) for device in self.drawn), np.zeros_like(at_s))


class _SensorReader:
    """One sensor on one domain."""

    def __init__(self, sensor: Sensor, domain: _Domain, seed: Sequence[int]) -> None:
        self._sensor = sensor
        self._domain = domain
        self._noise = np.random.default_rng([*seed, 1]) if sensor.noise_w else None
        self._losses = np.random.default_rng([*seed, 2]) if sensor.drop_share else None
        self._update = -np.inf  # the last update that was read, and its value
        self._shown = 0.0
        self._extra_j = 0.0  # counted in addition to the true energy

    def read(self, times_s: Floats) -> tuple[Floats, Floats]:
        """Return times and values of the readings that were not lost."""
        sensor = self._sensor
        updates = np.floor((times_s - sensor.phase_s) / sensor.period_s + _SAME_MOMENT)
        if sensor.frozen_after_s is not None:
            updates = np.minimum(updates, np.floor((sensor.frozen_after_s - sensor.phase_s) / sensor.period_s))
        numbers, place = np.unique(updates, return_inverse=True)
        known = int(numbers[0] == self._update)
        shown = self._show(numbers[known:])
        if known:
            shown = np.concatenate([[self._shown], shown])
        self._update, self._shown = numbers[-1], float(shown[-1])
        values = shown[place]
        if self._losses is None:
            return times_s, values
        kept = self._losses.random(len(times_s)) >= sensor.drop_share
        return times_s[kept], values[kept]

    def _show(self, numbers: Floats) -> Floats:
        """Return the values of these updates, which are new and in order."""
        if not len(numbers):
            return np.zeros(0)
        sensor = self._sensor
        if sensor.kind == "gauge":
            watts = self._power(numbers)
            return np.round(watts / sensor.resolution) * sensor.resolution if sensor.resolution else watts
        exact = self._count(numbers)
        counted = np.floor(exact / sensor.resolution) * sensor.resolution if sensor.resolution else exact
        return np.mod(counted, sensor.wrap) if sensor.wrap else counted

    def _power(self, numbers: Floats) -> Floats:
        sensor = self._sensor
        at_s = sensor.phase_s + numbers * sensor.period_s
        over_s = sensor.seen_s or sensor.average_s
        if over_s:
            watts = (self._domain.joules(at_s) - self._domain.joules(at_s - over_s)) / over_s
        else:
            watts = self._domain.watts(at_s)
        noise = 0.0 if self._noise is None else sensor.noise_w * self._noise.standard_normal(len(numbers))
        return (1 + sensor.gain_error) * watts + noise

    def _count(self, numbers: Floats) -> Floats:
        sensor = self._sensor
        at_s = sensor.phase_s + numbers * sensor.period_s
        passed = np.diff(numbers, prepend=self._update if np.isfinite(self._update) else numbers[0])
        beside = np.zeros(len(numbers))
        if self._noise is not None:
            beside += sensor.noise_w * sensor.period_s * np.sqrt(passed) * self._noise.standard_normal(len(numbers))
        if sensor.seen_s:
            beside += self._unseen(at_s, passed, sensor.seen_s)
        beside = self._extra_j + np.cumsum(beside)
        self._extra_j = float(beside[-1])
        return COUNTED_BEFORE_J + (1 + sensor.gain_error) * self._domain.joules(at_s) + beside

    def _unseen(self, at_s: Floats, passed: Floats, seen_s: float) -> Floats:
        """Return the error of a counter that extrapolates each period from the part it sees."""
        period_s = self._sensor.period_s
        wrong = np.zeros(len(at_s))
        # Updates that were not read count, too.
        for number in range(int(passed.max())):
            end_s = at_s - number * period_s
            seen = self._domain.joules(end_s) - self._domain.joules(end_s - seen_s)
            whole = self._domain.joules(end_s) - self._domain.joules(end_s - period_s)
            wrong += np.where(number < passed, seen * period_s / seen_s - whole, 0.0)
        return (1 + self._sensor.gain_error) * wrong


class _StateReader:
    """The state of one device, as the spec scripts it."""

    def __init__(self, domain: str, states: Sequence[State]) -> None:
        self._states = states
        told = [column for column in READ if any(getattr(state, column, None) is not None for state in states)]
        self.contract = Readable(
            domain=domain,
            backend="sim",
            sources=dict.fromkeys(told, "script"),
            unknown={column: "not scripted" for column in READ if column not in told},
            default_limit_w=states[0].default_limit_w,
        )

    def read(self, times_s: Floats) -> Floats:
        """Return a row for each column; before the first state nothing is known."""
        table = np.full((len(COLUMNS), len(times_s)), math.nan)
        table[0] = times_s
        for state in self._states:
            for place, column in enumerate(COLUMNS):
                value = getattr(state, column, None)
                if value is not None or column in READ:
                    table[place, times_s >= state.from_s] = math.nan if value is None else value
        return table


@dataclass
class _Node:
    """One node's sampler: its domains, its readers and its files."""

    process: int
    zero_s: float
    domains: list[_Domain] = field(default_factory=list)
    channels: list[Channel] = field(default_factory=list)
    readers: list[_SensorReader] = field(default_factory=list)
    states: list[_StateReader] = field(default_factory=list)
    events: Any = None
    samples: Any = None
    conditions: Any = None
    written: int = 0

    def open(self, raw: Path, sampler: Sampler) -> None:
        """Open the files and describe the sampler, domains and channels."""
        self.events = open_own(raw / SENSORS_PATTERN.replace("*", f"{self.process:05d}"), "wb", buffering=0)
        self.samples = open_own(POWER.place(raw, self.process), "wb")
        self.samples.write(POWER.magic)
        if self.states:
            self.conditions = open_own(CONDITIONS.place(raw, self.process), "wb")
            self.conditions.write(CONDITIONS.magic)
        self.write("sampler", sampler)
        for domain in self.domains:
            self.write("domain", domain.contract)
        for channel in self.channels:
            self.write("channel", channel)
        for state in self.states:
            self.write("conditions", state.contract)
        if not self.channels:
            reason = "no sensor of power or energy is scripted"
            self.write("missing", Missing(backend="sim", what="sensor", code="missing", reason=reason))

    def write(self, kind: str, contract: Any) -> None:
        """Write one event."""
        self.events.write((json.dumps({"kind": kind, **to_json_object(contract)}, allow_nan=False) + "\n").encode())

    def read(self, times_s: Floats) -> None:
        """Read every channel at each of these times."""
        for first in range(0, len(times_s), MAX_CHUNK_SAMPLES):
            for number, reader in enumerate(self.readers):
                at_s, values = reader.read(times_s[first : first + MAX_CHUNK_SAMPLES])
                if len(at_s):
                    table = np.stack([at_s + self.zero_s, values, np.zeros_like(values)])
                    write_power_chunk(self.samples, number, table)
                    self.written += len(at_s)
        self.samples.flush()

    def look(self, times_s: Floats) -> None:
        """Read the state of every device at each of these times."""
        for first in range(0, len(times_s), MAX_CHUNK_SAMPLES):
            for number, state in enumerate(self.states):
                table = state.read(times_s[first : first + MAX_CHUNK_SAMPLES])
                write_power_chunk(self.conditions, number, table, CONDITIONS)

    def close(self, at_s: float, reason: str) -> None:
        """Write the last event and close the files."""
        self.write("ended", Ended(reason=reason, at_s=at_s + self.zero_s, samples=self.written))
        self.events.close()
        self.samples.close()
        if self.conditions is not None:
            self.conditions.close()


class SimSampler:
    """Reads all nodes of a simulated job, on its virtual clock."""

    def __init__(self, spec: RunSpec, raw: Path) -> None:
        self._period_s = spec.energy.period_s
        self._drawn = [Drawn(spec.sim.power.idle_w) for _ in range(spec.devices)]
        self._jitter = np.random.default_rng([spec.seed, 3]) if spec.energy.random_phase else None
        # Readings start before the run if an idle baseline is requested.
        self._next = -round(spec.energy.idle_s / self._period_s)
        self._next_second = 0
        self._marks: list[float] = []
        sensors = spec.sim.sensors
        backs_s = [sensor.period_s + max(sensor.average_s, sensor.seen_s or 0.0) for sensor in sensors]
        self._back_s = max(backs_s, default=0.0)
        # The updates of a part-time counter between two readings are evaluated again.
        self._back_s += max((sensor.period_s for sensor in sensors if sensor.seen_s), default=0.0)
        # A reading at a random time may come almost two periods after the one before it.
        self._back_s += 2 * self._period_s
        self._nodes = list(_nodes(spec, self._drawn))
        for number, node in enumerate(self._nodes):
            sampler = Sampler(
                node=f"sim{number}",
                process=node.process,
                period_s=self._period_s,
                clock="simulated",
                zero_s=node.zero_s,
                random_phase=spec.energy.random_phase,
            )
            node.open(raw, sampler)

    def take(self, rank: int, spans: Sequence[float]) -> None:
        """Add what a rank's device drew: see `Drawn.extend`."""
        self._drawn[rank].extend(spans)

    def mark(self, at_s: float) -> None:
        """Request a reading at the edge of a window; not earlier than what was already read."""
        self._marks.append(at_s)

    def read_until(self, known_s: float, *, last: bool = False) -> None:
        """Take the readings before this time, up to which the power of all devices is known."""
        if self._jitter is not None and not last:
            # Only whole periods, so that readings stay in order.
            known_s = known_s // self._period_s * self._period_s
        # The regular readings that have not been taken.
        last_slot = max(self._next, int(np.ceil(known_s / self._period_s)))
        times_s = np.arange(self._next, last_slot, dtype=np.float64) * self._period_s
        if self._jitter is not None:
            times_s += self._period_s * self._jitter.random(len(times_s))
        self._next = last_slot
        seconds = max(self._next_second, math.ceil(known_s))
        for node in self._nodes:
            node.look(np.arange(self._next_second, seconds, dtype=np.float64))
        self._next_second = seconds
        marks = [at_s for at_s in self._marks if at_s < known_s]
        self._marks = [at_s for at_s in self._marks if at_s >= known_s]
        times_s = np.unique(np.concatenate([times_s, marks]))
        times_s = times_s[times_s < known_s]
        if len(times_s):
            for node in self._nodes:
                node.read(times_s)
        for drawn in self._drawn:
            drawn.forget(known_s - self._back_s)

    def stop(self, at_s: float, reason: str = "the run ended") -> None:
        """End the sampling."""
        self.mark(at_s)
        # Include a reading at the very end.
        self.read_until(np.nextafter(at_s, np.inf), last=True)
        for node in self._nodes:
            node.close(at_s, reason)


# -- domains and channels


def _nodes(spec: RunSpec, drawn: list[Drawn]) -> Any:
    per_node = spec.sim.node.devices_per_node or spec.devices
    for number, first in enumerate(range(0, spec.devices, per_node)):
        node = _Node(process=first, zero_s=CLOCK_ZERO_S * (number + 1))
        ranks = range(first, min(first + per_node, spec.devices))
        node.domains = _domains(spec, ranks, drawn)
        node.states = list(_states(spec, node.domains, ranks))
        for kind, sensor in enumerate(spec.sim.sensors):
            for domain in node.domains:
                if domain.contract.scope == sensor.scope:
                    node.channels.append(_channel(sensor, domain.contract, kind))
                    node.readers.append(_SensorReader(sensor, domain, [spec.seed, first, len(node.readers)]))
        yield node


def _states(spec: RunSpec, domains: Sequence[_Domain], ranks: range) -> Iterator[_StateReader]:
    scope = "die" if spec.sim.node.dies_per_card > 1 else "device"
    names = {
        rank: entry.contract.name for entry in domains if entry.contract.scope == scope for rank in entry.contract.ranks
    }
    for rank in ranks:
        own = [state for state in spec.sim.states if state.rank in (None, rank)]
        if own:
            yield _StateReader(names[rank], own)


def _channel(sensor: Sensor, domain: Domain, kind: int) -> Channel:
    return Channel(
        name=f"sim{kind}.{domain.name}.{'energy' if sensor.kind == 'counter' else 'power'}",
        backend="sim",
        domain=domain.name,
        kind=sensor.kind,
        resolution=sensor.resolution,
        average_s=sensor.average_s if sensor.kind == "gauge" else None,
        period_s=sensor.period_s,
        seen_s=sensor.seen_s,
        wrap=sensor.wrap,
        gain=sensor.gain,
        limit_w=sensor.limit_w,
        source="script",
    )


def _domains(spec: RunSpec, ranks: range, drawn: list[Drawn]) -> list[_Domain]:
    """Return the tree of one node: node > module > device > die, as far as they exist, and the host."""
    power, shape = spec.sim.power, spec.sim.node
    own = [drawn[rank] for rank in ranks]
    cards = [ranks[at : at + shape.dies_per_card] for at in range(0, len(ranks), shape.dies_per_card)]
    # Dies without a rank draw idle power.
    spare_w = power.idle_w * (len(cards) * shape.dies_per_card - len(ranks))
    domains = [_domain("node", "node", None, ranks, own, power.host_w + spare_w)]
    if not shape.modules:
        domains.append(_domain("host", "cpu", "node", (), [], power.host_w))
    for number, card in enumerate(cards):
        parts = [drawn[rank] for rank in card]
        idle_w = power.idle_w * (shape.dies_per_card - len(card))
        parent = "node"
        if shape.modules:
            parent, host_w = f"module{number}", power.host_w / len(cards)
            domains.append(_domain(parent, "module", "node", card, parts, host_w + idle_w))
            domains.append(_domain(f"host{number}", "cpu", parent, (), [], host_w))
        name = f"device{number}"
        domains.append(_domain(name, "device", parent, card, parts, idle_w))
        if shape.dies_per_card > 1:
            domains += [
                _domain(f"die{rank - ranks[0]}", "die", name, (rank,), [part], 0.0)
                for rank, part in zip(card, parts, strict=True)
            ]
    return domains


def _domain(
    name: str, scope: Any, parent: str | None, ranks: Sequence[int], drawn: list[Drawn], base_w: float
) -> _Domain:
    device = f"sim:{ranks[0]}" if scope in ("device", "die") else None
    return _Domain(Domain(name=name, scope=scope, parent=parent, device=device, ranks=tuple(ranks)), drawn, base_w)
