"""Rules on energy and power of a table (SY4xx): what a device can draw. Knows limits, not how energy is measured."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from steelyard.rules.rule import Example, TableRule
from steelyard.rules.table.peers import peers_of
from steelyard.rules.table.phrases import label, listed, number, places, printed
from steelyard.rules.table.relations import variable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from steelyard.contracts.record import Finding, Severity
    from steelyard.rules.table.relations import Bounds, Solved
    from steelyard.rules.table.row import Platform, Row, RowTable

MARGIN = 1.05
"""Power sensors of accelerators are good to about 5 %."""
# A server draws at most about twice what its accelerators may: 6,500 W for eight of 400 W in a DGX A100.
WITH_HOST = 2.5
ENERGIES = ("power", "energy", "energy_per_epoch", "items_per_energy")


@dataclass(frozen=True)
class Excess:
    """A row that draws more than its device can."""

    row: Row
    power_w: float
    limit_w: float
    scope: str
    severity: Severity
    made_of: tuple[str, ...]
    """The printed figures that give the power."""


class PowerAboveLimit(TableRule):
    """Energy over time above what the device can draw."""

    code = "SY401"
    name = "power-above-limit"
    severity = "error"
    verdict = "impossible"
    why = (
        "Energy over time is power, and a device cannot draw more than its limit for long. Where it seems to, energy "
        "and time are not of the same window: the energy may hold compilation and warm-up that the time or the rate "
        "leaves out, or a unit or a scope is wrong."
    )
    detected = (
        "The power of a device is taken as printed, or deduced: energy over time, or rate over samples per energy, "
        "divided by the devices. Its lower bound by rounding must exceed the limit of the device by 5 %, the accuracy "
        "of common sensors. Energy of a whole job may hold hosts too: if nothing in the row says that it is of the "
        "devices, up to 2.5 times the limit is to be disclosed only, and a limit of the whole system is used where one "
        "is known."
    )
    bad = Example(
        "system,devices,power_limit_w,metric,value,unit\n"
        "A,4,300,throughput,64.99,sequences/s\nA,4,300,sequences_per_energy,4.08,sequences/Wh\n"
        "A,4,300,energy_per_epoch_per_device,15.68,Wh\n",
        "64.99 sequences/s at 4.08 sequences/Wh are 14,336 W for each of 4 devices that may draw 300 W.",
    )
    good = Example(
        "system,devices,power_limit_w,metric,value,unit\n"
        "A,1,300,throughput,1827.72,images/s\nA,1,300,images_per_energy,39925.87,images/Wh\n",
        "1,828 images/s at 39,926 images/Wh are 165 W.",
    )
    fix = "take energy and time over the same window, and say which devices and hosts the energy holds"

    def check(self, table: RowTable) -> Iterator[Finding]:
        """One finding for the rows of a table, a model and a machine together."""
        groups: defaultdict[tuple[object, ...], list[Excess]] = defaultdict(list)
        if not table.platforms:
            return
        peers = peers_of(table)
        for row, given, solved in zip(peers.rows, peers.given, peers.solved, strict=True):
            found = _find_excess(row, table.platform(row), *power_of(given, solved))
            if found:
                key = (
                    row.source,
                    row.table,
                    row.get("model"),
                    row.get("system"),
                    row.get("accelerator"),
                    found.severity,
                )
                groups[key].append(found)
        for group in groups.values():
            yield self._report(group)

    def _report(self, group: list[Excess]) -> Finding:
        worst, least = max(group, key=lambda e: e.power_w), min(group, key=lambda e: e.power_w)
        power = f"{number(worst.power_w)} W a {worst.scope}"
        if len(group) > 1:
            power = f"{number(least.power_w)} to {number(worst.power_w)} W a {worst.scope} in {len(group)} rows"
        message = f"the figures give {power}, which may draw {worst.limit_w:g} W"
        if worst.severity == "warning":
            message += ": unless hosts and cooling are in it, which the row does not say"
        rows = [entry.row for entry in group]
        parts = [f"{label(entry.row, rows)}: {number(entry.power_w)} W" for entry in group] if len(group) > 1 else []
        parts.insert(0, f"from {', '.join(worst.made_of)}" + (f" ({label(worst.row, rows)})" if parts else ""))
        return self.found(message, place=places(rows), evidence=listed(parts, 10), severity=worst.severity)


def _find_excess(row: Row, platform: Platform | None, power: Bounds | None, of_devices: bool) -> Excess | None:
    if platform is None or power is None:
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
    scope = platform.power_scope.split(" ")[0].strip("(),") or "device"
    return _find_above(row, power, platform.power_limit_w, scope, "error" if of_devices or far else "warning")


def _find_above(row: Row, power: Bounds, limit_w: float, scope: str, severity: Severity) -> Excess | None:
    if power.low <= math.log(limit_w * MARGIN):
        return None
    made_of = [printed(metric, row.figures[metric]) for metric in row.figures if variable(row, metric) in power.sources]
    made_of += [f"{key} {row.number(key):g}" for key in ("devices", "nodes") if key in power.sources]
    return Excess(row, power.middle, limit_w, scope, severity, tuple(made_of))


def power_of(given: Mapping[str, Bounds], solved: Solved) -> tuple[Bounds | None, bool]:
    """Power of a device, printed or deduced, and whether the row says that it is the devices' own."""
    own = any(name.endswith("_per_device") and name.startswith(("power", "energy")) for name in given)
    known = given if solved.clash is not None else solved.known
    return known.get("power_per_device"), own
