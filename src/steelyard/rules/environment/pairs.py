"""Rules on what is around two runs: nodes, hosts, drivers and clocks, and what counts as one device (SY604 to SY608).

Knows what the environment of a record says, as far as rows carry it; not how much of a difference it makes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from steelyard.rules.rule import Example, PairRule
from steelyard.rules.table.settings import alike, confounders, differences, nodes_of, shown, stated

if TYPE_CHECKING:
    from collections.abc import Iterator

    from steelyard.contracts.record import Finding
    from steelyard.rules.table.row import Pair


class _OtherSurroundings(PairRule):
    """A rule on some settings around a run: one finding with all of them that differ."""

    keys: ClassVar[tuple[str, ...]]
    meaning: ClassVar[str]
    severity = "warning"

    def check(self, pair: Pair) -> Iterator[Finding]:
        """One finding with all that differs."""
        found = [str(entry) for entry in confounders(pair) if entry.key in self.keys]
        if found:
            yield self.found(f"{self.meaning}: {'; '.join(found)}", place=pair.b.place)


class OtherNode(PairRule):
    """The two sides ran on different nodes of one system."""

    code = "SY604"
    name = "other-node"
    severity = "warning"
    why = (
        "Nodes of one type differ by a few percent. Where one setting was measured on one node and the other setting "
        "on another, the difference of the nodes is part of the ratio."
    )
    detected = "Both sides name their nodes, they share none, and the machine is not what is compared."
    bad = Example(
        "system,model,compile,node,metric,value,unit\n"
        "A,ResNet50,off,n1,throughput,1000,images/s\nA,ResNet50,default,n2,throughput,1030,images/s\n",
        "The compiled run had another node: the 3 % may be the node.",
        factor="compile",
    )
    good = Example(
        "system,model,compile,node,metric,value,unit\n"
        'A,ResNet50,off,"n1,n2",throughput,1000,images/s\nA,ResNet50,default,"n1,n2",throughput,1030,images/s\n',
        "Both settings ran on the same two nodes.",
        factor="compile",
    )
    fix = "run both sides on the same nodes in turns (one study does this by itself), or on many nodes each"

    def check(self, pair: Pair) -> Iterator[Finding]:
        """One finding with the nodes of both sides."""
        a, b = nodes_of(pair.a), nodes_of(pair.b)
        other = any(entry.key in ("system", "accelerator") for entry in differences(pair.a, pair.b))
        if a and b and not a & b and not other:
            message = f"the sides ran on different nodes: {', '.join(sorted(a))} against {', '.join(sorted(b))}"
            yield self.found(message, place=pair.b.place)


class OtherHost(_OtherSurroundings):
    """The two sides have different hosts around their devices."""

    code = "SY605"
    name = "other-host"
    keys = ("host_cpu", "cpus", "cpu_quota", "cpu_governor", "architecture", "kernel")
    meaning = "the hosts of the two sides differ"
    why = (
        "The host starts kernels and prepares data. A processor with a slower core, fewer usable CPUs, a quota of a "
        "container or a power-saving governor can hold a fast device back."
    )
    detected = (
        "Processor, usable CPUs, CPU quota, governor, architecture or kernel are known on both sides and differ. "
        "Between two systems only quota and governor are told: the rest belongs to the system."
    )
    bad = Example(
        "system,model,cpu_quota,metric,value,unit\n"
        "A,ResNet50,none,throughput,1000,images/s\nB,ResNet50,2,throughput,600,images/s\n",
        "B may use two CPUs only: its container holds it back, not its device.",
    )
    good = Example(
        "system,model,cpu_quota,metric,value,unit\n"
        "A,ResNet50,none,throughput,1000,images/s\nB,ResNet50,none,throughput,600,images/s\n",
        "Neither side has a quota of CPUs.",
    )
    fix = "give both sides the same host settings, or say beside the ratio what they were"


class OtherDeviceState(_OtherSurroundings):
    """The devices of the two sides run at different clocks, power limits or drivers."""

    code = "SY606"
    name = "other-device-state"
    keys = ("driver", "device_clock", "power_limit")
    meaning = "the devices of the two sides are set up differently"
    why = (
        "A lower power limit or clock makes a device slower, and another driver brings other kernels. Two devices of "
        "one model are then not the same device."
    )
    detected = "Driver, highest clock or power limit are known on both sides and differ, on what is one system."
    bad = Example(
        "system,model,power_limit,precision,metric,value,unit\n"
        "A,ResNet50,400 W,fp32,throughput,1000,images/s\nA,ResNet50,300 W,bf16,throughput,1800,images/s\n",
        "The second side's device may draw less power; with all of it, bf16 might gain more.",
        factor="precision",
    )
    good = Example(
        "system,model,power_limit,precision,metric,value,unit\n"
        "A,ResNet50,400 W,fp32,throughput,1000,images/s\nA,ResNet50,400 W,bf16,throughput,2000,images/s\n",
        "The same power limit on both sides.",
        factor="precision",
    )
    fix = "run both sides with one driver, clock and power limit"


class OtherScope(PairRule):
    """One device is not the same thing on both sides."""

    code = "SY607"
    name = "other-scope"
    severity = "warning"
    why = (
        "A job counts what its scheduler hands out. That may be half a card (a die), a card, or a module with a "
        "processor on it. Per device they look alike; in price, power and silicon they are not."
    )
    detected = "Both sides say what one device is (die, device or module), or of how many dies, and these differ."
    bad = Example(
        "system,model,device_scope,dies,metric,value,unit\n"
        "A,ResNet50,die,2,throughput,1000,images/s\nB,ResNet50,device,1,throughput,1500,images/s\n",
        "One device of A is half a card: the whole card may well be faster than B's.",
    )
    good = Example(
        "system,model,device_scope,dies,metric,value,unit\n"
        "A,ResNet50,device,1,throughput,1000,images/s\nB,ResNet50,device,1,throughput,1500,images/s\n",
        "A device is a card on both sides.",
    )
    fix = "give the ratio per card or module beside the one per device"

    def check(self, pair: Pair) -> Iterator[Finding]:
        """One finding that says what a device is on each side."""
        found = [str(entry) for entry in differences(pair.a, pair.b) if entry.key in ("device_scope", "dies")]
        if found:
            yield self.found(f"one device is not the same on both sides: {'; '.join(found)}", place=pair.b.place)


class OtherTiming(PairRule):
    """The two sides were timed in different ways."""

    code = "SY608"
    name = "other-timing"
    severity = "warning"
    why = (
        "A clock of the host that waits for the device at every step adds the wait to the step. Events on the device "
        "do not. Short steps look slower with the first."
    )
    detected = "Both sides say how steps were timed, and these differ."
    bad = Example(
        "system,model,timing,metric,value,unit\n"
        "A,ResNet50,device events,throughput,1000,images/s\nB,ResNet50,host clock,throughput,900,images/s\n",
        "B's steps contain what the host needs to wait for its device.",
    )
    good = Example(
        "system,model,timing,metric,value,unit\n"
        "A,ResNet50,device events,throughput,1000,images/s\nB,ResNet50,device events,throughput,900,images/s\n",
        "Both were timed in one way.",
    )
    fix = "say how each side was timed; compare steps that are long against a synchronisation (10 ms and more)"

    def check(self, pair: Pair) -> Iterator[Finding]:
        """One finding with both ways."""
        a, b = stated(pair.a, "timing"), stated(pair.b, "timing")
        if a is not None and b is not None and alike("timing", a, b) == "different":
            yield self.found(f"steps were timed in different ways: {shown(a)} against {shown(b)}", place=pair.b.place)
