"""The energy of a run from its sensors: every joule of the job's accelerators once, with interval and validity.

Chooses the domains that make up a job and computes the energy quantities; `sensors` turns readings into joules. Energy
and throughput of a run are from the same window.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from steelyard.contracts.energy import SENSORS_PATTERN
from steelyard.contracts.record import (
    DEVICES,
    DISAGREES,
    HOLDS_HOST,
    METHOD_OF_SENSORS,
    SAMPLER,
    Interval,
    Quantity,
    Validity,
)
from steelyard.derive import windows as at
from steelyard.derive.domains import cover
from steelyard.derive.sensors import VERDICTS, Joules, read_windows
from steelyard.numbers import short
from steelyard.stats.energy import agreement

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from steelyard.contracts.record import Aggregation, Scope, Steady, Window
    from steelyard.derive.domains import Cover
    from steelyard.derive.observations import NodeSensors, Observations
    from steelyard.derive.sensors import NodeReadings

JOULES_PER_WH = 3600.0
MAX_REASONS = 50
MAX_REASON_LENGTH = 400
MAX_NAMES = 10_000
# With more domains only the main figure lists them: fifteen figures need not repeat ten thousand names.
NAMED_EVERYWHERE = 64
SHOWN_MISSING = 3
NO_IDLE = "no sensor was read long enough before the device was first used; set energy.idle_s to wait for it"


def energy_quantities(
    observed: Observations, steady: Steady | None, rates: Mapping[str, Quantity]
) -> dict[str, Quantity]:
    """Return all energy quantities; only `energy_job`, with the reason, if nothing can be read.

    `steady`: the steps of the throughput; `rates`: the throughput in samples and tokens.
    """
    spec = observed.spec
    if not spec.energy.watch:
        return {}
    # A file with a rank number that the job does not have is not part of this job.
    nodes = [node for node in observed.nodes if node.process < spec.devices]
    if any(node.channels for node in nodes):
        return _Job(observed, nodes, steady, rates).quantities()
    # Nobody looked for sensors, or a simulated run has none: that is not a machine whose sensors cannot be read.
    if not nodes and (spec.device_family == "sim" or not observed.events.phases):
        return {}
    why = _missing(nodes) or f"no sampler left a file {SENSORS_PATTERN}"
    reason = f"no power or energy sensor can be read here: {why}"
    return {"energy_job": _unknown(reason, _window_of(rates))}


def _window_of(rates: Mapping[str, Quantity]) -> Window:
    return rates["throughput"].window if "throughput" in rates else "all steps"


def _missing(nodes: Sequence[NodeSensors]) -> str:
    # A sensor that exists but cannot be read matters more than one of another vendor: only the first few are shown.
    lost = sorted((lost for node in nodes for lost in node.missing), key=lambda entry: entry.code == "missing")
    said = [f"{entry.backend}: {entry.reason}" for entry in lost]
    said += [f"{node.name}: {node.damage}" for node in nodes if node.damage]
    known = list(dict.fromkeys(said))
    more = f"; and {len(known) - SHOWN_MISSING} more" if len(known) > SHOWN_MISSING else ""
    return "; ".join(known[:SHOWN_MISSING]) + more


def _unknown(reason: str, window: Window) -> Quantity:
    return Quantity(value=None, unit="J", scope="job", window=window, aggregation="sum", reason=reason[:4000])


# -- one domain


@dataclass(frozen=True)
class DomainEnergy:
    """The energy of one domain in one window, and the channel it was read from."""

    domain: str
    channel: str
    joules: Joules
    doubt: str = ""
    """How counter and gauge contradict each other, if they do."""


def _read_off(node: NodeSensors, readings: NodeReadings, domain: str, window: str) -> DomainEnergy | None:
    """Return the best reading of a domain: one with a value before one without, a counter before a gauge."""
    pairs = [(node.channels[number], readings.joules[window][number]) for number in node.channels_of.get(domain, ())]
    if not pairs:
        return None
    pairs.sort(key=lambda pair: (pair[1].value_j is None, pair[0].kind != "counter", pair[1].half_j))
    channel, joules = pairs[0]
    mute = next((lost for other, lost in pairs if other.kind == "counter" and lost.value_j is None), None)
    joules = joules.scaled(1.0)
    if channel.kind == "gauge" and mute is not None and joules.value_j is not None:
        joules.doubt("doubtful", f"read from a gauge, because the counter has no value: {next(iter(mute.reasons), '')}")
    if joules.value_j is None:
        joules.reasons = {f"{lost.code}: {lost.reason}": None for lost in node.missing if lost.what == channel.name} | (
            joules.reasons
        )
    gauges = [beside for other, beside in pairs if other.kind == "gauge"] if channel.kind == "counter" else []
    compared = [agreement(joules, beside) for beside in gauges]
    doubt = next((against.reason for against in compared if against.agrees is False), "")
    return DomainEnergy(domain, channel.name, joules, doubt)


# -- several domains


@dataclass
class Sum:
    """The energy of several domains in one window."""

    joules: Joules = field(default_factory=Joules)
    coverage: float | None = None
    channels: list[str] = field(default_factory=list)
    domains: list[str] = field(default_factory=list)
    reasons: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    """Each reason with the channels it is about."""
    contradictions: list[str] = field(default_factory=list)

    def add(self, node: str, part: DomainEnergy, joules: Joules) -> None:
        """Add a domain; `joules` may be per second or per sample."""
        self.joules.add(replace(joules, reasons={}))
        self.coverage = min(joules.coverage, 1.0 if self.coverage is None else self.coverage)
        name = f"{node}/{part.channel}"
        if part.channel:
            self.channels.append(name)
        self.domains.append(f"{node}/{part.domain}")
        for reason in joules.reasons:
            self.reasons[reason].append(name)
        if part.doubt:
            self.contradictions.append(f"{node}/{part.domain} {part.doubt}")

    def validity(self, *, names: bool) -> Validity:
        """Return verdict and reasons for the record."""
        told = [*self.joules.reasons]
        if self.contradictions:
            more = f" (and {len(self.contradictions) - 1} more domains)" if len(self.contradictions) > 1 else ""
            told.append(f"{DISAGREES}{self.contradictions[0]}{more}")
        for reason, (first, *others) in self.reasons.items():
            told.append(f"{reason} ({first}{f' and {len(others)} more' if others else ''})")
        if len(told) > MAX_REASONS:
            told = [*told[: MAX_REASONS - 1], f"and {len(told) - MAX_REASONS + 1} more reasons"]
        verdict = self.joules.verdict
        if self.contradictions:
            verdict = max(verdict, "doubtful", key=VERDICTS.index)
        return Validity(
            verdict=verdict,
            reasons=tuple(reason[:MAX_REASON_LENGTH] for reason in told),
            channels=tuple(self.channels[:MAX_NAMES]) if names else (),
            domains=tuple(self.domains[:MAX_NAMES]) if names else (),
            coverage=self.coverage,
            largest_gap_s=self.joules.gap_s,
        )


# -- the job


class _Job:
    """The energy quantities of one run."""

    def __init__(
        self, observed: Observations, nodes: Sequence[NodeSensors], steady: Steady | None, rates: Mapping[str, Quantity]
    ) -> None:
        self._spec, self._events, self._rates = observed.spec, observed.events, rates
        environment = observed.events.environment
        self._on_cpu = (environment.device if environment else self._spec.device_family) == "cpu"
        self._nodes = nodes
        self._windows = at.windows_of(observed, nodes, steady)
        self._readings = [read_windows(node, own.pieces) for node, own in zip(nodes, self._windows.nodes, strict=True)]
        self._main = at.MAIN if any(at.MAIN in own.pieces for own in self._windows.nodes) else at.RUN
        self._covers = [self._cover(number) for number in range(len(nodes))]
        # Problems of the whole job's energy, in every window.
        self._wrong = [f"{DEVICES}{fault}" for fault in self._faults()]
        self._unrelated = [f"{DEVICES}{fault}" for fault in self._extras()]

    def _cover(self, number: int) -> Cover:
        """Choose domains by what can be read in the main window; a channel without a value is better than none."""
        node, readings = self._nodes[number], self._readings[number]
        if self._main not in readings.joules:
            return cover(node.domains, {channel.domain for channel in node.channels}, on_cpu=self._on_cpu)
        told = {
            channel.domain
            for channel, joules in zip(node.channels, readings.joules[self._main], strict=True)
            if joules.value_j is not None
        }
        covered = cover(node.domains, told, on_cpu=self._on_cpu)
        if covered.unread or not covered.counted:
            covered = cover(node.domains, {channel.domain for channel in node.channels}, on_cpu=self._on_cpu)
        return covered

    # -- whether the whole job was read

    def _local(self) -> Iterator[tuple[NodeSensors, Cover, range]]:
        """Yield each node with its counted domains and the ranks that ran there."""
        firsts = [node.process for node in self._nodes] + [self._spec.devices]
        for number, (node, covered) in enumerate(zip(self._nodes, self._covers, strict=True)):
            yield node, covered, range(firsts[number], firsts[number + 1])

    def _faults(self) -> Iterator[str]:
        """Yield accelerators of the job that are missing."""
        if self._nodes[0].process != 0:
            yield "no sensor was read on the node of rank 0"
        for node, covered, ranks in self._local():
            if covered.unread:
                yield f"{', '.join(covered.unread[:4])} on {node.name} cannot be read{_because(node)}"
            elif not covered.counted:
                yield f"no sensor of the job can be read on {node.name}{_because(node)}"
            elif fault := self._absent(node, covered, ranks):
                yield fault

    def _absent(self, node: NodeSensors, covered: Cover, ranks: range) -> str:
        on = {rank for name in covered.counted for rank in node.domains[name].ranks}
        if on:
            absent = [rank for rank in ranks if rank not in on]
            named = ", ".join(map(str, absent[:8])) + (f" and {len(absent) - 8} more" if len(absent) > 8 else "")
            return f"no sensor covers the devices of ranks {named} on {node.name}" if absent else ""
        seen = self._counted_devices(node, covered)
        if seen is None or seen[1] >= len(ranks):
            return ""
        return f"{seen[1]} of {len(ranks)} devices on {node.name} can be read{_because(node)}"

    def _extras(self) -> Iterator[str]:
        """Yield accelerators that are counted but have no rank of the job, and nodes whose CPUs were not read."""
        facts = self._events.environment.facts if self._events.environment else {}
        # Nodes that the scheduler gave to the job; a step may use only some of them.
        given = facts.get("env.SLURM_NNODES") or facts.get("env.SLURM_JOB_NUM_NODES", "")
        known = given.isascii() and given.isdigit() and len(given) < 9
        if self._on_cpu and known and int(given) > len(self._nodes):
            # CPU ranks cannot be matched with sensors, and a job need not use all of its nodes.
            yield f"sensors were read on {len(self._nodes)} of the {int(given)} nodes of the job"
        for node, covered, ranks in self._local():
            seen = self._counted_devices(node, covered)
            named = any(node.domains[name].ranks for name in covered.counted)
            if not named and seen is not None and seen[0] > len(ranks):
                yield f"{seen[0]} devices on {node.name} are counted, but the job has only {len(ranks)} there"

    def _counted_devices(self, node: NodeSensors, covered: Cover) -> tuple[int, int] | None:
        """Return the smallest and largest number of devices in the counted domains; None: unknown.

        A card with dies is one device or as many as it has dies, and a job need not use all of them.
        """
        if self._on_cpu:
            return None
        facts = self._events.device
        dies = (facts.dies or 1) if facts is not None and facts.scope == "die" else 1
        least = most = 0
        for name in covered.counted:
            domain = node.domains[name]
            inside = [other for other in node.domains.values() if other.parent == name]
            if domain.scope in ("module", "board", "node"):
                inside = [other for other in inside if other.scope == "device"]
                if not inside:
                    return None
                least += 1
                most += len(inside) * dies
            else:
                least += 1
                most += max(dies, len(inside)) if domain.scope == "device" else 1
        return least, most

    # -- sums

    def _sum(self, window: str, *, hosts: bool = False, per_second: bool = False, net: bool = False) -> Sum | None:
        """Add up all counted domains; None if a node has no such window."""
        total = Sum()
        for number, (node, covered) in enumerate(zip(self._nodes, self._covers, strict=True)):
            own, readings = self._windows.nodes[number], self._readings[number]
            seconds = own.seconds(window)
            if seconds <= 0:
                return None
            for name in covered.hosts if hosts else covered.counted:
                part = _read_off(node, readings, name, window)
                if part is not None:
                    total.add(node.name, part, part.joules.scaled(1 / seconds if per_second else 1.0))
                if part is not None and net and not self._take_off_idle(total, number, name, seconds):
                    return None
            self._doubt_node(total, number, window, [*covered.hosts] if hosts else covered.counted)
        self._doubt_whole(total, hosts=hosts)
        value_j = total.joules.value_j
        if net and value_j is not None and value_j <= total.joules.half_j:
            total.joules.doubt("doubtful", "not shown to be above idle")
        return total if total.domains else None

    def _doubt_whole(self, total: Sum, *, hosts: bool) -> None:
        """Add doubts about what is missing from the sum, or in it beside the job's devices."""
        if hosts:
            silent = [node.name for node, covered in zip(self._nodes, self._covers, strict=True) if not covered.hosts]
            if silent:
                total.joules.doubt("invalid", f"no host sensor can be read on {', '.join(silent[:4])}")
            return
        for reason in self._wrong:
            total.joules.doubt("invalid", reason)
        for reason in self._unrelated:
            total.joules.doubt("doubtful", reason)
        larger = sorted(self._scopes() & {"module", "board", "node"})
        if larger and not self._on_cpu:
            words = {"module": "a module with its CPU", "board": "a whole board", "node": "a whole node"}
            told = " and ".join(words[scope] for scope in larger)
            total.joules.doubt("doubtful", f"{HOLDS_HOST}only {told} can be read, and all of it is counted")

    def _take_off_idle(self, total: Sum, number: int, domain: str, seconds: float) -> bool:
        """Subtract the idle energy. The gain of the sensor is the same in both and applies to the difference only."""
        own = self._windows.nodes[number]
        idle_s = own.seconds(at.IDLE)
        part = _read_off(self._nodes[number], self._readings[number], domain, at.IDLE) if idle_s > 0 else None
        if part is None or part.joules.value_j is None:
            return False
        idle = part.joules.scaled(-seconds / idle_s)
        idle.reasons = {f"idle: {reason}": None for reason in idle.reasons}
        total.joules.add(idle)
        return True

    def _doubt_node(self, total: Sum, number: int, window: str, domains: Sequence[str]) -> None:
        """Add doubts about what the sampler of a node missed, and about time in the window outside steps."""
        node, own, readings = self._nodes[number], self._windows.nodes[number], self._readings[number]
        for damage in filter(None, (node.damage, readings.damage)):
            total.joules.doubt("doubtful", f"{node.name}: {damage}")
        if window in own.doubts:
            total.joules.doubt("doubtful", own.doubts[window])
        if node.sampler is None:
            total.joules.doubt("invalid", f"{node.name}: its sensor file does not name its clock")
        if not domains or node.sampler is None:
            return
        end_s, period_s = own.end_s(window), node.sampler.period_s
        last_s = min(
            (
                last_s
                for channel, last_s in zip(node.channels, readings.last_s, strict=True)
                if channel.domain in domains
            ),
            default=end_s,
        )
        seen = last_s >= end_s - 2 * period_s
        if node.ended is None:
            when = f"its last reading is {short(end_s - last_s, 3)} s before the end of the window"
            if seen:
                when = "its last reading is at or after the end of the window"
            elif last_s == -math.inf:
                when = "no counted channel has a reading"
            word = f"{SAMPLER}killed on {node.name}; {when}"
            total.joules.doubt("doubtful" if seen else "invalid", word)
        elif not seen and node.ended.at_s - node.sampler.zero_s < end_s - period_s:
            before_s = end_s - (node.ended.at_s - node.sampler.zero_s)
            word = f"{SAMPLER}ended on {node.name} {short(before_s, 3)} s before the window: {node.ended.reason}"
            total.joules.doubt("invalid", word)

    def _scopes(self) -> set[str]:
        return {
            node.domains[name].scope
            for node, covered in zip(self._nodes, self._covers, strict=True)
            for name in covered.counted
        }

    # -- the quantities

    def quantities(self) -> dict[str, Quantity]:
        """Return the quantities by name."""
        window = _window_of(self._rates) if self._main == at.MAIN else "run"
        main = self._sum(self._main)
        quantities: dict[str, Quantity] = {}
        if main is None:
            reason = self._wrong[0].removeprefix(DEVICES) if self._wrong else "the run has no window to measure"
            quantities["energy_job"] = _unknown(f"the job's accelerators cannot be read: {reason}", window)
        elif self._main == at.RUN:
            quantities["energy_run"] = self._make_quantity(main, "J", "run", "sum")
        else:
            quantities |= self._of_main(main, window)
        quantities |= self._of_windows()
        hosts = self._sum(self._main, hosts=True)
        if hosts is not None:
            quantities["energy_host"] = self._make_quantity(hosts, "J", window, "sum", names=True)
        return quantities

    def _of_main(self, main: Sum, window: Window) -> dict[str, Quantity]:
        quantities = {"energy_job": self._make_quantity(main, "J", window, "sum", names=True)}
        power = self._sum(at.MAIN, per_second=True)
        assert power is not None
        quantities["power_job"] = self._make_quantity(power, "W", window, "mean")
        ranks = self._spec.devices
        scopes, domains = self._scopes(), sum(len(counted.counted) for counted in self._covers)
        scope: Scope = "die" if scopes == {"die"} or domains < ranks else "device"
        if scopes & {"node", "board", "module"}:
            scope = "node" if scopes & {"node", "board"} else "module"
        quantities["energy_device"] = self._make_quantity(main, "J", window, "mean", scope=scope, factor=1 / ranks)
        work = self._work()
        if work > 0:
            sample = self._make_quantity(main, "J/sample", window, "mean", factor=1 / work)
            quantities |= {"energy_per_sample": sample, "samples_per_wh": _turned(sample, "samples/Wh")}
            if tokens := self._tokens_per_sample():
                quantities["energy_per_token"] = self._make_quantity(
                    main, "J/token", window, "mean", factor=1 / work / tokens
                )
        idle = self._sum(at.IDLE, per_second=True)
        net = self._sum(at.MAIN, net=True)
        if idle is None:
            quantities["idle_power_job"] = replace(_unknown(NO_IDLE, "setup"), unit="W", aggregation="mean")
        else:
            quantities["idle_power_job"] = self._make_quantity(idle, "W", "setup", "mean")
        if net is not None:
            quantities["energy_job_net"] = self._make_quantity(net, "J", window, "sum")
            if work > 0:
                quantities["energy_per_sample_net"] = self._make_quantity(
                    net, "J/sample", window, "mean", factor=1 / work
                )
        return quantities

    def _work(self) -> float:
        """Return the samples in the main window: what each rank does while its node's first rank passes through it.

        0 if they are not known.
        """
        if (rate := self._rates.get("throughput")) is not None and rate.value is None:
            return 0.0
        firsts = [node.process for node in self._nodes] + [self._spec.devices]
        work = sum(
            own.step_s[at.MAIN] * self._windows.rates.get(rank, 0.0)
            for number, own in enumerate(self._windows.nodes)
            if at.MAIN in own.step_s
            for rank in range(firsts[number], firsts[number + 1])
        )
        # The ranks of a collective make one sample together.
        collective = self._events.model is not None and self._events.model.bus_factor is not None
        return work / self._spec.devices if collective else work

    def _tokens_per_sample(self) -> float | None:
        samples = self._rates.get("throughput")
        tokens = self._rates.get("token_throughput")
        if samples is None or not samples.value or tokens is None or not tokens.value:
            return None
        return tokens.value / samples.value

    def _of_windows(self) -> dict[str, Quantity]:
        """Return the energy of whole phases and of epochs."""
        told: list[tuple[str, str, Window, float]] = [
            ("energy_compile", at.COMPILE, "compile", 1.0),
            ("energy_all_steps", at.ALL_STEPS, "all steps", 1.0),
            ("energy_first_epoch", at.FIRST_EPOCH, "first epoch", 1.0),
            ("energy_later_epochs", at.LATER_EPOCHS, "later epochs", 1 / max(1, self._windows.epochs - 1)),
            ("energy_run", at.RUN, "run", 1.0),
        ]
        quantities = {}
        for name, window, shown, factor in told:
            total = self._sum(window)
            if total is not None:
                aggregation: Aggregation = "mean" if window == at.LATER_EPOCHS else "sum"
                quantities[name] = self._make_quantity(total, "J", shown, aggregation, factor=factor)
        return quantities

    def _make_quantity(
        self,
        total: Sum,
        unit: str,
        window: Window,
        aggregation: Aggregation,
        *,
        scope: Scope = "job",
        factor: float = 1.0,
        names: bool = False,
    ) -> Quantity:
        joules = total.joules.scaled(factor)
        validity = total.validity(names=names or len(total.domains) <= NAMED_EVERYWHERE)
        value, interval, reason = joules.value_j, None, None
        if value is None:
            reason = "; ".join(validity.reasons)[:4000] or "the sensors have no value"
        else:
            interval = Interval(
                low=value - joules.half_j,
                high=value + joules.half_j,
                method=METHOD_OF_SENSORS,
                covers="this job",
                low_without_gain=value - joules.rest_j,
                high_without_gain=value + joules.rest_j,
            )
        return Quantity(
            value=value,
            unit=unit,
            scope=scope,
            window=window,
            aggregation=aggregation,
            interval=interval,
            reason=reason,
            validity=validity,
        )


def _turned(energy: Quantity, unit: str) -> Quantity:
    """Return work per watt-hour from joules per unit of work."""
    if energy.value is None or energy.value <= 0:
        reason = energy.reason or "the energy is not above 0"
        return replace(energy, value=None, unit=unit, interval=None, reason=reason)
    interval = energy.interval
    if interval is not None:
        interval = interval.inverse(JOULES_PER_WH) if interval.low > 0 else None
    return replace(energy, value=JOULES_PER_WH / energy.value, unit=unit, interval=interval)


def _because(node: NodeSensors) -> str:
    said = _missing([node])
    return f": {said}" if said else ""
