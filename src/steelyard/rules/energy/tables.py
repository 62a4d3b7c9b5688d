"""Table rule: power above the limit of the device (SY401)."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from steelyard.contracts.finding import WrongFigure
from steelyard.numbers import number
from steelyard.rules.rule import Example, TableRule
from steelyard.rules.table.devices import device_of
from steelyard.rules.table.peers import peers_of
from steelyard.rules.table.phrases import label, listed_of, places, printed
from steelyard.rules.table.relations import Bounds, variable
from steelyard.rules.table.row import Platform

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from steelyard.contracts.finding import Finding, Severity
    from steelyard.rules.table.relations import Solved
    from steelyard.rules.table.row import Row, RowTable

MARGIN = 1.05
"""Accelerator power sensors are accurate to about 5 %."""
# A server draws at most about twice the power limit of its accelerators: 6,500 W for eight of 400 W in a DGX A100.
WITH_HOST = 2.5
_SOURCES = (frozenset({"power", "devices"}), frozenset({"power", "devices"}))
ENERGIES = ("power", "energy", "energy_per_epoch", "items_per_energy")


@dataclass(frozen=True)
class Excess:
    """A row with more power than the device can draw."""

    row: Row
    power_w: float
    limit_w: float
    scope: str
    severity: Severity
    made_of: tuple[str, ...]
    """The printed figures that the power was computed from."""
    known_of: str = ""
    """The device of the built-in table that the limit is from; empty: the table states it."""


class PowerAboveLimit(TableRule):
    """Power, printed or computed from energy and time, above the device's limit."""

    code = "SY401"
    name = "power-above-limit"
    severity = "error"
    verdict = "impossible"
    why = (
        "Energy divided by time is power, and a device cannot exceed its power limit for long. If it seems to, energy "
        "and time cover different windows (the energy may include compilation and warm-up), or a unit or a scope is "
        "wrong."
    )
    detected = (
        "The power per device is taken as printed, or computed: energy over time, or rate over samples per energy, "
        "divided by the number of devices. Its lower bound, after rounding, exceeds the limit of the device by more "
        "than 5 %, the accuracy of common sensors. The energy of a job may include the hosts: unless the row says that "
        "it is the energy of the devices, up to 2.5 times the limit is a warning only, and no finding for the power of "
        "a node. If the limit of the whole system is known, that limit is used. If the table states no limit, it is "
        "that of the accelerator's datasheet, if steelyard knows the name; of several, the highest."
    )
    bad = Example(
        "system,devices,power_limit_w,metric,value,unit\n"
        "A,4,300,throughput,64.99,sequences/s\nA,4,300,sequences_per_energy,4.08,sequences/Wh\n"
        "A,4,300,energy_per_epoch_per_device,15.68,Wh\n",
        "64.99 sequences/s at 4.08 sequences/Wh is 14,336 W for each of 4 devices with a limit of 300 W.",
    )
    good = Example(
        "system,devices,power_limit_w,metric,value,unit\n"
        "A,1,300,throughput,1827.72,images/s\nA,1,300,images_per_energy,39925.87,images/Wh\n",
        "1,828 images/s at 39,926 images/Wh is 165 W.",
    )
    fix = "take energy and time over the same window, and state which devices and hosts the energy includes"

    def check(self, table: RowTable) -> Iterator[Finding]:
        """Yield one finding per table, model and machine."""
        groups: defaultdict[tuple[object, ...], list[Excess]] = defaultdict(list)
        peers = peers_of(table)
        for row, given, solved in zip(peers.rows, peers.given, peers.solved, strict=True):
            power, of_devices = power_of(given, solved)
            if power is None:
                continue
            excess = _find_excess(row, table.platform(row) or _look_up(row), power, of_devices)
            if excess:
                key = (
                    row.source,
                    row.table,
                    row.get("model"),
                    row.get("system"),
                    row.get("accelerator"),
                    excess.severity,
                )
                groups[key].append(excess)
        for group in groups.values():
            yield self._report(group)

    def _report(self, group: list[Excess]) -> Finding:
        worst, least = max(group, key=lambda e: e.power_w), min(group, key=lambda e: e.power_w)
        power = f"{number(worst.power_w)} W per {worst.scope}"
        if len(group) > 1:
            power = f"{number(least.power_w)} to {number(worst.power_w)} W per {worst.scope} in {len(group)} rows"
        message = f"the figures give {power}, but the limit is {worst.limit_w:g} W"
        message += f" (datasheet of {worst.known_of})" if worst.known_of else ""
        if worst.severity == "warning":
            message += "; the row does not say whether hosts and cooling are included"
        rows = [entry.row for entry in group]
        evidence = f"from {', '.join(worst.made_of)}"
        if len(group) > 1:
            parts = (f"{label(entry.row, rows)}: {number(entry.power_w)} W" for entry in group)
            evidence += f" ({label(worst.row, rows)}); {listed_of(parts, len(group), 9)}"
        wrong = tuple(entry for excess in group for entry in _doubt(excess))
        return self.found(message, place=places(rows), evidence=evidence, severity=worst.severity, wrong=wrong)


def _doubt(excess: Excess) -> list[WrongFigure]:
    """Return the printed power, if it is printed; of an energy and a time it is not known which is wrong."""
    row = excess.row
    return [
        WrongFigure(place=row.place, name=metric, printed=amount.text, recomputed="")
        for metric, amount in row.figures.items()
        if metric in ("power", "power_per_device", "power_per_node") and amount.text
    ]


def _look_up(row: Row) -> Platform | None:
    """Return the power limit of the row's device from the built-in table, if it is known."""
    known = device_of(row)
    if known is None or known.power_limit_w is None:
        return None
    return Platform("", "", power_limit_w=known.power_limit_w, source=" or ".join(known.models))


def _find_excess(row: Row, platform: Platform | None, power: Bounds, of_devices: bool) -> Excess | None:
    if platform is None:
        return None
    devices, system = row.number("devices"), platform.system_power_limit_w
    if system and devices and not of_devices:
        nodes = row.number("nodes") or (
            math.ceil(devices / platform.devices_per_node) if platform.devices_per_node else 1
        )
        whole = math.log(devices / nodes)
        power = power._replace(low=power.low + whole, high=power.high + whole)
        return _find_above(row, power, system, "system", "error")
    if not platform.power_limit_w or platform.power_scope.startswith("system"):
        return None
    far = power.low > math.log(platform.power_limit_w * WITH_HOST)
    if not far and not of_devices and "power_per_node" in row.figures:
        # The power of a node includes its host.
        return None
    scope = platform.power_scope.split(" ")[0].strip("(),") or "device"
    excess = _find_above(row, power, platform.power_limit_w, scope, "error" if of_devices or far else "warning")
    looked_up = not platform.name and not platform.accelerator
    return replace(excess, known_of=platform.source) if excess is not None and looked_up else excess


def _find_above(row: Row, power: Bounds, limit_w: float, scope: str, severity: Severity) -> Excess | None:
    if power.low <= math.log(limit_w * MARGIN):
        return None
    made_of = [printed(metric, row.figures[metric]) for metric in row.figures if variable(row, metric) in power.sources]
    made_of += [f"{key} {row.number(key):g}" for key in ("devices", "nodes") if key in power.sources]
    return Excess(row, power.middle, limit_w, scope, severity, tuple(made_of))


def power_of(given: Mapping[str, Bounds], solved: Solved) -> tuple[Bounds | None, bool]:
    """Return the power per device, printed or computed, and whether the row says that it excludes the hosts."""
    own = any(name.endswith("_per_device") and name.startswith(("power", "energy")) for name in given)
    if solved.clash is None:
        return solved.known.get("power_per_device"), own
    power, devices = given.get("power"), given.get("devices")
    whole = Bounds(power.low - devices.low, power.high - devices.low, *_SOURCES) if power and devices else None
    return given.get("power_per_device", whole), own
