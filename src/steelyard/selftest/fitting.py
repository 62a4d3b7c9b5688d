"""Check that the sensors of a node are consistent: counter and power, a whole and its parts, idle, load and limit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from steelyard.derive.domains import Tree
from steelyard.numbers import short
from steelyard.stats.energy import Nature, agreement, energy_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from steelyard.derive.observations import NodeSensors
    from steelyard.stats.energy import WindowEnergy

    Floats = NDArray[np.float64]

Outcome = Literal["holds", "doubtful", "fails", "not tested"]
# A load must draw this many times the idle power.
RISE = 1.1
HOST_SCOPES = ("cpu", "module", "node")
DEVICE_SCOPES = ("die", "device", "module")


@dataclass(frozen=True)
class Window:
    """A period on the sampler's clock."""

    start_s: float
    stop_s: float

    @property
    def seconds(self) -> float:
        """The length in seconds."""
        return self.stop_s - self.start_s


@dataclass(frozen=True)
class SensorCheck:
    """The result of one check of the sensors."""

    name: str
    of: str
    """The domain or channel."""
    outcome: Outcome
    text: str


@dataclass(frozen=True)
class _ChannelEnergies:
    """The energy of every channel in every window."""

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
        """Return the energy of a domain from its counter, or else its power; None if neither has a value."""
        numbers = [*self.channels(domain, "counter"), *self.channels(domain, "gauge")]
        energies = [self.energies[window][number] for number in numbers]
        return next((energy for energy in energies if energy.value_j is not None), None)

    def power_w(self, domain: str, window: str) -> tuple[float, float, float] | None:
        """Return mean power: value and interval."""
        energy = self.best(domain, window)
        if energy is None or energy.value_j is None or energy.low_j is None or energy.high_j is None:
            return None
        seconds = self.windows[window].seconds
        return energy.value_j / seconds, energy.low_j / seconds, energy.high_j / seconds


def fitting(
    node: NodeSensors, samples: Sequence[Floats], windows: dict[str, Window], family: str
) -> Iterator[SensorCheck]:
    """Yield every check of one node; `samples`: one table per channel; `family`: the device that was loaded."""
    energies: dict[str, list[WindowEnergy]] = {name: [] for name in windows}
    for channel, table in zip(node.channels, samples, strict=True):
        # Without the limit: it has its own check, and must not invalidate the others.
        nature = Nature(
            kind=channel.kind,
            resolution=channel.resolution,
            average_s=channel.average_s,
            period_s=channel.period_s,
            seen_s=channel.seen_s,
            wrap=channel.wrap,
            gain=channel.gain,
        )
        for name, window in windows.items():
            time_s, value, spent_s = table[0], table[1], table[2]
            energy = energy_of(nature, time_s, value, spent_s, window.start_s, window.stop_s, random_phase=False)
            energies[name].append(energy)
    seen = _ChannelEnergies(node, windows, energies)
    if node.ended is None or node.damage:
        yield SensorCheck("sampler", "", "fails", node.damage or "it was killed before it could finish its file")
    else:
        told = f"{node.ended.samples} readings, {node.ended.late} periods missed"
        yield SensorCheck("sampler", "", "holds", told)
    last = "load" if "load" in windows else "idle"
    for domain in node.domains:
        yield from _check_readable(seen, domain, last)
        yield from _check_counters(seen, domain, last)
    yield from _check_parts(seen, last)
    yield from _check_rise(seen, family)
    # The mean power must not exceed the limit that the vendor gives.
    for domain in node.domains:
        limits = [limit for n in seen.channels(domain) if (limit := node.channels[n].limit_w) is not None]
        power = seen.power_w(domain, last)
        if limits and power is not None:
            text = f"{last}: mean {short(power[0])} W, limit {short(min(limits))} W"
            if power[1] <= min(limits):
                yield SensorCheck("limit", domain, "holds", text)
            else:
                yield SensorCheck("limit", domain, "fails", f"{text}: above the limit")


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
    """Compare the increment of the counter with the integral of the power over the same time."""
    counters, gauges = seen.channels(domain, "counter"), seen.channels(domain, "gauge")
    if not counters or not gauges:
        missing = "counter" if gauges else "power reading"
        if counters or gauges:
            yield SensorCheck("counter and power", domain, "not tested", f"it has no {missing}")
        return
    for number in gauges:
        name = seen.node.channels[number].name
        counter, integral = seen.energies[window][counters[0]], seen.energies[window][number]
        compared = agreement(counter, integral)
        if compared.agrees is None:
            yield SensorCheck("counter and power", name, "not tested", compared.reason)
        elif not compared.agrees:
            yield SensorCheck("counter and power", name, "fails", compared.reason)
        else:
            both = (
                f"counter {short(counter.value_j or 0.0, 5)} J, integral of power {short(integral.value_j or 0.0, 5)} J"
            )
            apart = f"uncertainty explains a difference up to {short(compared.allowed_j or 0.0, 3)} J"
            yield SensorCheck("counter and power", name, "holds", f"{window}: {both}; {apart}")


def _check_parts(seen: _ChannelEnergies, window: str) -> Iterator[SensorCheck]:
    """Check that a whole draws at least as much as its parts together."""
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
        text = f"{window}: {short(own.value_j, 5)} J, its parts ({names}) {short(value, 5)} J"
        outcome: Outcome = "holds" if (own.high_j or own.value_j) >= least else "fails"
        yield SensorCheck(
            "whole and parts", whole, outcome, text if outcome == "holds" else f"{text}: less than its parts"
        )


def _check_rise(seen: _ChannelEnergies, family: str) -> Iterator[SensorCheck]:
    """Check that the load draws more than idle. If one of several devices is loaded: the one that rises most."""
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
            name, "", "not tested", f"the load ran on {family or 'nothing'}, and no sensor of it has a value"
        )
        return
    domain, (_, idle, load) = max(rises.items(), key=lambda entry: entry[1][0])
    text = f"idle {short(idle[0])} W, load {short(load[0])} W"
    if load[0] > RISE * idle[0]:
        yield SensorCheck(name, domain, "holds", text)
    else:
        yield SensorCheck(name, domain, "fails", f"{text}: the load is not visible")
