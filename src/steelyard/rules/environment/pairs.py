"""Pair rules on the environment of two rows (SY604 to SY608): nodes, hosts, drivers, clocks, and what one device is."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from steelyard.rules.rule import Example, PairRule
from steelyard.rules.table.settings import alike, confounders, differences, nodes_of, shown, stated

if TYPE_CHECKING:
    from collections.abc import Iterator

    from steelyard.contracts.record import Finding
    from steelyard.rules.table.row import Pair


class _OtherSurroundings(PairRule):
    """A rule on some environment settings; all that differ go into one finding."""

    keys: ClassVar[tuple[str, ...]]
    meaning: ClassVar[str]
    severity = "warning"

    def check(self, pair: Pair) -> Iterator[Finding]:
        """Yield one finding with all settings that differ."""
        found = [str(entry) for entry in confounders(pair) if entry.key in self.keys]
        if found:
            yield self.found(f"{self.meaning}: {'; '.join(found)}", place=pair.b.place)


class OtherNode(PairRule):
    """The two sides ran on different nodes of one system."""

    code = "SY604"
    name = "different-nodes"
    severity = "warning"
    why = (
        "Nodes of one type differ by a few percent. If each setting was measured on another node, the difference "
        "between the nodes is part of the ratio."
    )
    detected = "Both sides name their nodes, have none in common, and the system is not the factor under study."
    bad = Example(
        "system,model,compile,node,metric,value,unit\n"
        "A,ResNet50,off,n1,throughput,1000,images/s\nA,ResNet50,default,n2,throughput,1030,images/s\n",
        "The compiled run used another node: the 3 % may come from the node.",
        factor="compile",
    )
    good = Example(
        "system,model,compile,node,metric,value,unit\n"
        'A,ResNet50,off,"n1,n2",throughput,1000,images/s\nA,ResNet50,default,"n1,n2",throughput,1030,images/s\n',
        "Both settings ran on the same two nodes.",
        factor="compile",
    )
    fix = "run both sides on the same nodes, interleaved (one study file does this), or use several nodes per side"

    def check(self, pair: Pair) -> Iterator[Finding]:
        """Yield one finding with the nodes of both sides."""
        a, b = nodes_of(pair.a), nodes_of(pair.b)
        other = any(entry.key in ("system", "accelerator") for entry in differences(pair.a, pair.b))
        if a and b and not a & b and not other:
            message = f"the two sides ran on different nodes: {', '.join(sorted(a))} vs {', '.join(sorted(b))}"
            yield self.found(message, place=pair.b.place)


class OtherHost(_OtherSurroundings):
    """The hosts of the two sides differ."""

    code = "SY605"
    name = "different-host"
    keys = ("host_cpu", "cpus", "cpu_quota", "cpu_governor", "architecture", "kernel")
    meaning = "the hosts of the two sides differ"
    why = (
        "The host launches kernels and prepares data. A slower CPU core, fewer usable CPUs, a container CPU quota or a "
        "power-saving governor can slow down a fast device."
    )
    detected = (
        "CPU model, usable CPUs, CPU quota, governor, architecture or kernel are known on both sides and differ. "
        "Between two systems only quota and governor are reported; the rest is part of the system."
    )
    bad = Example(
        "system,model,cpu_quota,metric,value,unit\n"
        "A,ResNet50,none,throughput,1000,images/s\nB,ResNet50,2,throughput,600,images/s\n",
        "B may use only two CPUs: the container limits it, not the device.",
    )
    good = Example(
        "system,model,cpu_quota,metric,value,unit\n"
        "A,ResNet50,none,throughput,1000,images/s\nB,ResNet50,none,throughput,600,images/s\n",
        "Neither side has a CPU quota.",
    )
    fix = "use the same host settings on both sides, or report them with the ratio"


class OtherDeviceState(_OtherSurroundings):
    """The devices of the two sides have different clocks, power limits or drivers."""

    code = "SY606"
    name = "different-device-settings"
    keys = ("driver", "device_clock", "power_limit")
    meaning = "the devices of the two sides are configured differently"
    why = (
        "A lower power limit or clock makes a device slower, and another driver may use other kernels. Two devices of "
        "the same model then perform differently."
    )
    detected = "Driver, maximum clock or power limit are known on both sides and differ, on the same system."
    bad = Example(
        "system,model,power_limit,precision,metric,value,unit\n"
        "A,ResNet50,400 W,fp32,throughput,1000,images/s\nA,ResNet50,300 W,bf16,throughput,1800,images/s\n",
        "The bf16 run had a lower power limit; at 400 W, bf16 might be faster still.",
        factor="precision",
    )
    good = Example(
        "system,model,power_limit,precision,metric,value,unit\n"
        "A,ResNet50,400 W,fp32,throughput,1000,images/s\nA,ResNet50,400 W,bf16,throughput,2000,images/s\n",
        "Both sides have the same power limit.",
        factor="precision",
    )
    fix = "run both sides with the same driver, clock and power limit"


class OtherScope(PairRule):
    """One device is a different unit on each side."""

    code = "SY607"
    name = "different-device-scope"
    severity = "warning"
    why = (
        "A job counts the devices that the scheduler allocates. One device may be half a card (a die), a card, or a "
        "module with a CPU. Figures per device look comparable, but price, power and chip area are not."
    )
    detected = "Both sides state what one device is (die, device or module) or how many dies it has, and these differ."
    bad = Example(
        "system,model,device_scope,dies,metric,value,unit\n"
        "A,ResNet50,die,2,throughput,1000,images/s\nB,ResNet50,device,1,throughput,1500,images/s\n",
        "One device of A is half a card; the whole card may be faster than B's.",
    )
    good = Example(
        "system,model,device_scope,dies,metric,value,unit\n"
        "A,ResNet50,device,1,throughput,1000,images/s\nB,ResNet50,device,1,throughput,1500,images/s\n",
        "One device is one card on both sides.",
    )
    fix = "report the ratio per card or per module as well"

    def check(self, pair: Pair) -> Iterator[Finding]:
        """Yield one finding that says what one device is on each side."""
        found = [str(entry) for entry in differences(pair.a, pair.b) if entry.key in ("device_scope", "dies")]
        if found:
            yield self.found(f"one device is not the same unit on both sides: {'; '.join(found)}", place=pair.b.place)


class OtherTiming(PairRule):
    """The two sides were timed with different methods."""

    code = "SY608"
    name = "different-timing"
    severity = "warning"
    why = (
        "A host clock that waits for the device at every step adds the waiting time to the step. Device events do not. "
        "Short steps look slower with the host clock."
    )
    detected = (
        "Both sides state how steps were timed, and the methods differ; or, as an error, one side was measured and "
        "the other ran on the simulated device, whose times are scripted."
    )
    bad = Example(
        "system,model,timing,metric,value,unit\n"
        "A,ResNet50,device events,throughput,1000,images/s\nB,ResNet50,host clock,throughput,900,images/s\n",
        "B's step times include the time to synchronise with the device.",
    )
    good = Example(
        "system,model,timing,metric,value,unit\n"
        "A,ResNet50,device events,throughput,1000,images/s\nB,ResNet50,device events,throughput,900,images/s\n",
        "Both sides were timed with device events.",
    )
    fix = "state how each side was timed, and compare only long steps (10 ms or more)"

    def check(self, pair: Pair) -> Iterator[Finding]:
        """Yield one finding with both methods."""
        a, b = stated(pair.a, "timing"), stated(pair.b, "timing")
        simulated = {row.spec.device_family == "sim" for row in (pair.a, pair.b) if row.spec is not None}
        if len(simulated) > 1:
            message = "one side was simulated: its times are scripted, not measured"
            yield self.found(message, place=pair.b.place, severity="error")
        elif a is not None and b is not None and alike("timing", a, b) == "different":
            yield self.found(f"steps were timed differently: {shown(a)} vs {shown(b)}", place=pair.b.place)
