"""What must hold between the sensors of one node: counter and power, a whole and its parts, idle, load and limit.

Knows readings and the tree of domains; must not know how they came about.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from steelyard.derive.domains import Tree
from steelyard.stats.energy import Nature, agreement, energy_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from steelyard.derive.observations import NodeSensors
    from steelyard.stats.energy import WindowEnergy

    Floats = NDArray[np.float64]

Outcome = Literal["holds", "doubtful", "fails", "not tested"]
# A load that draws less than this more than idleness is none.
RISE = 1.1
HOST_SCOPES = ("cpu", "module", "node")
DEVICE_SCOPES = ("die", "device", "module")


@dataclass(frozen=True)
class Window:
    """A stretch of time by the sampler's clock."""

    start_s: float
    stop_s: float

    @property
    def seconds(self) -> float:
        """Its length."""
        return self.stop_s - self.start_s


@dataclass(frozen=True)
class SensorCheck:
    """One thing that must hold of the sensors."""

    name: str
    of: str
    """The domain or channel."""
    outcome: Outcome
    text: str


@dataclass(frozen=True)
class _ChannelEnergies:
    """Energies of every channel in every window."""

    node: NodeSensors
    windows: dict[str, Window]
    energies: dict[str, list[WindowEnergy]]

    def channels(self, domain: str, kind: str | None = None) -> list[int]:
        return [
            number
            for number, channel in enumerate(self.node.channels)
            if channel.domain == domain and kind in (None, channel.kind)
        ]

    def best(self, domain: str, window: str) -> WindowEnergy | None:
        """The energy of a domain: by its counter, or else its power; None where neither has a number."""
        numbers = [*self.channels(domain, "counter"), *self.channels(domain, "gauge")]
        found = [self.energies[window][number] for number in numbers]
        return next((energy for energy in found if energy.value_j is not None), None)

    def power_w(self, domain: str, window: str) -> tuple[float, float, float] | None:
        """Mean power: value and interval."""
        energy = self.best(domain, window)
        if energy is None or energy.value_j is None or energy.low_j is None or energy.high_j is None:
            return None
        seconds = self.windows[window].seconds
        return energy.value_j / seconds, energy.low_j / seconds, energy.high_j / seconds


def fitting(
    node: NodeSensors, samples: Sequence[Floats], windows: dict[str, Window], family: str
) -> Iterator[SensorCheck]:
    """Every check on one node; `samples` has one table a channel, `family` is the device that was loaded."""
    energies: dict[str, list[WindowEnergy]] = {name: [] for name in windows}
    for channel, table in zip(node.channels, samples, strict=True):
        # Without the limit: it has a check of its own, and is not to take the numbers from the others.
        nature = Nature(
            kind=channel.kind, resolution=channel.resolution, average_s=channel.average_s, period_s=channel.period_s,
            seen_s=channel.seen_s, wrap=channel.wrap, gain=channel.gain,
        )  # fmt: skip
        for name, window in windows.items():
            time_s, value, spent_s = table[0], table[1], table[2]
            found = energy_of(nature, time_s, value, spent_s, window.start_s, window.stop_s, random_phase=False)
            energies[name].append(found)
    seen = _ChannelEnergies(node, windows, energies)
    if node.ended is None or node.damage:
        yield SensorCheck("sampler", "", "fails", node.damage or "it left no last word: it was killed")
    else:
        told = f"{node.ended.samples} readings, {node.ended.late} periods missed"
        yield SensorCheck("sampler", "", "holds", told)
    last = "load" if "load" in windows else "idle"
    for domain in node.domains:
        yield from _check_readable(seen, domain, last)
        yield from _check_counters(seen, domain, last)
    yield from _check_parts(seen, last)
    yield from _check_rise(seen, family)
    # The mean power stays at or below the limit that the maker names.
    for domain in node.domains:
        limits = [limit for n in seen.channels(domain) if (limit := node.channels[n].limit_w) is not None]
        power = seen.power_w(domain, last)
        if limits and power is not None:
            text = f"{last}: mean {power[0]:.4g} W, limit {min(limits):.4g} W"
            if power[1] <= min(limits):
                yield SensorCheck("limit", domain, "holds", text)
            else:
                yield SensorCheck("limit", domain, "fails", f"{text}: more than it may draw")


def _check_readable(seen: _ChannelEnergies, domain: str, window: str) -> Iterator[SensorCheck]:
    for number in seen.channels(domain):
        name, energy = seen.node.channels[number].name, seen.energies[window][number]
        text = f"{energy.samples} readings, {100 * energy.coverage:.0f} % of the {window} window covered"
        if energy.verdict == "valid":
            yield SensorCheck("readable", name, "holds", text)
        else:
            outcome: Outcome = "fails" if energy.verdict == "invalid" else "doubtful"
            yield SensorCheck("readable", name, outcome, "; ".join(energy.reasons))


def _check_counters(seen: _ChannelEnergies, domain: str, window: str) -> Iterator[SensorCheck]:
    """The counter's increment against the power added up over the same time."""
    counters, gauges = seen.channels(domain, "counter"), seen.channels(domain, "gauge")
    if not counters or not gauges:
        missing = "counter" if gauges else "power reading"
        if counters or gauges:
            yield SensorCheck("counter and power", domain, "not tested", f"it has no {missing}")
        return
    for number in gauges:
        name = seen.node.channels[number].name
        counter, integral = seen.energies[window][counters[0]], seen.energies[window][number]
        found = agreement(counter, integral)
        if found.agrees is None:
            yield SensorCheck("counter and power", name, "not tested", found.reason)
        elif not found.agrees:
            yield SensorCheck("counter and power", name, "fails", found.reason)
        else:
            both = f"counter {counter.value_j or 0.0:.5g} J, power added up {integral.value_j or 0.0:.5g} J"
            apart = f"up to {found.allowed_j or 0.0:.3g} J apart is explained"
            yield SensorCheck("counter and power", name, "holds", f"{window}: {both}; {apart}")


def _check_parts(seen: _ChannelEnergies, window: str) -> Iterator[SensorCheck]:
    """A whole draws at least what its parts do together."""
    tree = Tree(seen.node.domains)
    for whole, children in tree.children.items():
        parts = {name: energy for name in children if (energy := seen.best(name, window)) is not None}
        own = seen.best(whole, window)
        if own is None or own.value_j is None or not parts:
            yield SensorCheck("whole and parts", whole, "not tested", "the whole or its parts have no reading")
            continue
        least = sum(energy.low_j or 0.0 for energy in parts.values())
        value = sum(energy.value_j or 0.0 for energy in parts.values())
        names = ", ".join(parts)
        text = f"{window}: {own.value_j:.5g} J, its parts ({names}) {value:.5g} J"
        outcome: Outcome = "holds" if (own.high_j or own.value_j) >= least else "fails"
        yield SensorCheck(
            "whole and parts", whole, outcome, text if outcome == "holds" else f"{text}: less than its parts"
        )


def _check_rise(seen: _ChannelEnergies, family: str) -> Iterator[SensorCheck]:
    """What was loaded draws more than before. One device of several is loaded: the one that rises most."""
    name = "idle below load"
    if "load" not in seen.windows:
        yield SensorCheck(name, "", "not tested", "there was no load")
        return
    scopes = HOST_SCOPES if family == "cpu" else DEVICE_SCOPES
    rises = {}
    for domain, what in seen.node.domains.items():
        idle, load = seen.power_w(domain, "idle"), seen.power_w(domain, "load")
        if what.scope in scopes and idle is not None and load is not None:
            rises[domain] = (load[0] - idle[0], idle, load)
    if not rises:
        yield SensorCheck(
            name, "", "not tested", f"the load ran on {family or 'nothing'}, and no sensor of that has a number"
        )
        return
    domain, (_, idle, load) = max(rises.items(), key=lambda entry: entry[1][0])
    text = f"idle {idle[0]:.4g} W, load {load[0]:.4g} W"
    if load[0] > RISE * idle[0]:
        yield SensorCheck(name, domain, "holds", text)
    else:
        yield SensorCheck(name, domain, "fails", f"{text}: the load does not show")
