"""The state of the job's devices in the window of its throughput, from the readings of once a second.

Memory does not grow with the length of the run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from steelyard.contracts.conditions import COLUMNS, QUANTITIES, READ
from steelyard.contracts.record import DeviceConditions, Quantity
from steelyard.derive import windows as at
from steelyard.errors import SteelyardError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from steelyard.contracts.conditions import Readable
    from steelyard.contracts.record import Aggregation, Steady, Window
    from steelyard.derive.observations import NodeSensors, Observations

    Floats = NDArray[np.float64]

# In the record, with the slowest first: a record of 10,000 devices would be megabytes.
MAX_LISTED = 1024
MAX_REASON = 400
MEANS = ("clock_mhz", "memory_clock_mhz", "power_capped", "thermal", "hardware", "setting", "idle")
SHARES = MEANS[2:]
HIGHEST = ("temperature_c", "memory_temperature_c")
COUNTED = ("corrected", "uncorrected")
# Clocks, temperatures and watts beyond this are not readings.
SANE = 1e7


@dataclass(frozen=True)
class JobConditions:
    """The devices of a job, and its quantities."""

    devices: tuple[DeviceConditions, ...] = ()
    quantities: dict[str, Quantity] = field(default_factory=dict)


def job_conditions(observed: Observations, steady: Steady | None, window: Window) -> JobConditions:
    """Return the state of all devices and the quantities of the job; nothing if no device has a state to read."""
    spec, environment = observed.spec, observed.events.environment
    nodes = [node for node in observed.nodes if node.states and node.process < spec.devices]
    on_cpu = (environment.device if environment else spec.device_family) == "cpu"
    if not spec.energy.watch or not nodes or on_cpu:
        return JobConditions()
    if others := _others([node for node in observed.nodes if node.process < spec.devices], spec.devices):
        return JobConditions((), dict(_quantities((), window, others)))
    pieces = at.windows_of(observed, nodes, steady).nodes
    devices = [
        device
        for node, own in zip(nodes, pieces, strict=True)
        for device in _devices(node, own.pieces.get(at.MAIN, []))
    ]
    listed = devices
    if len(devices) > MAX_LISTED:
        listed = sorted(devices, key=lambda device: device.clock_mhz or 0.0)[:MAX_LISTED]
    return JobConditions(tuple(listed), dict(_quantities(devices, window)))


def _others(nodes: Sequence[NodeSensors], ranks: int) -> str:
    """Return why the devices that a node shows are not those of the job: they are more, or fewer, than its ranks."""
    firsts = [*(node.process for node in nodes[1:]), ranks]
    for node, following in zip(nodes, firsts, strict=True):
        own = following - node.process
        if len(node.states) > own:
            return f"{len(node.states)} devices are visible on {node.name}, but the job has only {own} there"
        # Ranks may share a device whose state is read as a whole: the tiles of a card, or MIG instances.
        seen = {state.domain for state in node.states}
        shared = any(domain.parent in seen for domain in node.domains.values()) or any(
            lost.what.startswith("power of MIG-") for lost in node.missing
        )
        if len(seen) < own and not shared:
            # Such as a job step that gives each task its own device.
            return f"only {len(seen)} of the devices of {own} ranks are visible to the sampler of {node.name}"
    return ""


class _Sums:
    """What is kept of the readings of one device."""

    def __init__(self) -> None:
        self.readings = 0
        self.totals = np.zeros(len(COLUMNS))
        self.counts = np.zeros(len(COLUMNS))
        self.highest = np.full(len(COLUMNS), -math.inf)
        self.lowest_limit_w = math.inf
        self.best_clock = -math.inf
        self.last = np.full(len(COLUMNS), math.nan)

    def take(self, table: Floats, edges: Floats) -> None:
        """Add readings; `edges`: the start and end of each piece of the window."""
        table = np.where(np.abs(table) < SANE, table, math.nan)
        times = table[COLUMNS.index("time_s")]
        inside = table[:, np.searchsorted(edges, times, side="right") % 2 == 1]
        known = np.isfinite(inside)
        self.readings += inside.shape[1]
        self.totals += np.where(known, inside, 0.0).sum(axis=1)
        self.counts += known.sum(axis=1)
        self.highest = np.maximum(self.highest, np.where(known, inside, -math.inf).max(axis=1, initial=-math.inf))
        limits = inside[COLUMNS.index("limit_w")]
        self.lowest_limit_w = float(np.nanmin(limits, initial=self.lowest_limit_w))
        self.best_clock = float(np.nanmax(table[COLUMNS.index("clock_mhz")], initial=self.best_clock))
        for column in COUNTED:
            row = table[COLUMNS.index(column)]
            for value in row[np.isfinite(row)][-1:]:
                self.last[COLUMNS.index(column)] = value


def _devices(node: NodeSensors, pieces: Sequence[tuple[float, float]]) -> Iterator[DeviceConditions]:
    edges = np.array([edge for piece in pieces for edge in piece])
    sums = {device.domain: _Sums() for device in node.states}
    damage = ""
    try:
        for device, table in node.readings():
            sums[device.domain].take(table, edges)
    except (SteelyardError, OSError) as error:
        damage = str(error).splitlines()[0][:MAX_REASON]
    dies = [_condition(node.name, device, sums[device.domain], damage) for device in node.states]
    cards = {name: domain.parent for name, domain in node.domains.items() if domain.scope == "die"}
    limited = {cards.get(die.device): die for die in dies if die.limit_w is not None}
    for die in dies:
        # The power limit is that of the card, and the driver shows it on one of its dies only.
        other = limited.get(cards[die.device]) if die.limit_w is None and die.device in cards else None
        if other is None:
            yield die
        else:
            unknown = {column: reason for column, reason in die.unknown.items() if column != "limit_w"}
            yield replace(die, limit_w=other.limit_w, default_limit_w=other.default_limit_w, unknown=unknown)


def _condition(node: str, device: Readable, sums: _Sums, damage: str) -> DeviceConditions:
    """Return the state of one device, with a reason for everything that is unknown."""
    values: dict[str, Any] = {}
    for column in (*MEANS, *HIGHEST):
        place = COLUMNS.index(column)
        if sums.counts[place]:
            mean = float(sums.totals[place] / sums.counts[place])
            values[column] = float(sums.highest[place]) if column in HIGHEST else mean
    values |= {column: min(1.0, max(0.0, values[column])) for column in SHARES if column in values}
    for column in COUNTED:
        last = float(sums.last[COLUMNS.index(column)])
        # Below zero: the driver was loaded again during the run.
        if last >= 0:
            values[column] = round(last)
    if math.isfinite(sums.lowest_limit_w):
        values["limit_w"] = sums.lowest_limit_w
    if math.isfinite(sums.best_clock):
        values["clock_highest_mhz"] = sums.best_clock
    told = {
        column: device.unknown.get(column) or damage or f"no reading in the {'run' if column in COUNTED else 'window'}"
        for column in READ
    }
    return DeviceConditions(
        node=node,
        device=device.domain,
        backend=device.backend,
        readings=sums.readings,
        clock_limit_mhz=device.clock_limit_mhz,
        default_limit_w=device.default_limit_w,
        **values,
        unknown={column: reason for column, reason in told.items() if column not in values and column != "processes"},
    )


def _quantities(
    devices: Sequence[DeviceConditions], window: Window, unknown: str = ""
) -> Iterator[tuple[str, Quantity]]:
    """Yield the quantities of the job; one is unknown if it is for a single device."""
    for name, (column, unit, scope, aggregation) in QUANTITIES.items():
        values = [getattr(device, column) for device in devices]
        reason = unknown or next(
            (
                f"{device.node}/{device.device}: {device.unknown.get(column, 'the driver does not report it')}"
                for device, value in zip(devices, values, strict=True)
                if value is None
            ),
            None,
        )
        value = None if reason else _over_devices(values, aggregation)
        own: Window = "run" if column in COUNTED else window
        yield name, Quantity(value=value, unit=unit, scope=scope, window=own, aggregation=aggregation, reason=reason)


def _over_devices(values: Sequence[float], aggregation: Aggregation) -> float:
    if aggregation == "sum":
        return float(sum(values))
    if aggregation in ("min", "max"):
        return float(min(values) if aggregation == "min" else max(values))
    return math.fsum(values) / len(values)
