"""Pair rules on the environment of two rows (SY604 to SY608, SY615, SY625): nodes, hosts, devices, other load."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from steelyard.inputs.command import run_again
from steelyard.numbers import short
from steelyard.rules.environment.conditions import HELD_BACK, SAME_LIMIT
from steelyard.rules.rule import Example, PairRule
from steelyard.rules.statistics.pairs import job_count
from steelyard.rules.table.settings import (
    alike,
    confounders,
    differences,
    meant_to_differ,
    nodes_of,
    shown,
    stated,
)
from steelyard.rules.table.units import unit_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from steelyard.contracts.finding import Finding
    from steelyard.rules.table.row import Pair, Row


class _OtherSurroundings(PairRule):
    """A rule on some environment settings; all that differ go into one finding."""

    keys: ClassVar[tuple[str, ...]]
    meaning: ClassVar[str]
    severity = "warning"

    def check(self, pair: Pair) -> Iterator[Finding]:
        """Yield one finding with all settings that differ."""
        differing = [str(entry) for entry in confounders(pair) if entry.key in self.keys]
        if differing:
            yield self.found(f"{self.meaning}: {'; '.join(differing)}", place=pair.b.place)


class BesideLoad(PairRule):
    """Jobs of a side ran while something else used their machine."""

    code = "SY625"
    name = "jobs-beside-load"
    severity = "warning"
    why = (
        "A job beside other load is slower than alone. If the load of the two sides differs, the ratio is partly that "
        "of the loads."
    )
    detected = "Jobs of one side have SY609 (other processes on the CPUs) or SY610 (another process on the device)."
    bad = Example(
        "system,model,jobs,busy_jobs,metric,value,unit\n"
        "A,ResNet50,3,,throughput,1000,images/s\nB,ResNet50,3,2,throughput,970,images/s\n",
        "Two jobs of B ran beside other load: the 3 % may come from it.",
    )
    good = Example(
        "system,model,jobs,busy_jobs,metric,value,unit\n"
        "A,ResNet50,3,,throughput,1000,images/s\nB,ResNet50,3,,throughput,970,images/s\n",
        "All jobs of both sides ran alone.",
    )
    fix = "measure again while nothing else runs there; steelyard doctor shows what runs now"

    def check(self, pair: Pair) -> Iterator[Finding]:
        """Yield one finding per side with such jobs."""
        for row in (pair.a, pair.b):
            if busy := row.number("busy_jobs"):
                jobs = job_count(row, pair.metric)
                told = f"{busy:g} of {jobs} jobs" if jobs > 1 else "its only job"
                yield self.found(f"{told} ran beside other load (SY609, SY610)", place=row.place)


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
    """The devices of the two sides have different clocks or drivers."""

    code = "SY606"
    name = "different-device-settings"
    keys = ("driver", "device_clock")
    meaning = "the devices of the two sides are configured differently"
    why = (
        "A lower clock makes a device slower, and another driver may use other kernels. Two devices of the same model "
        "then perform differently."
    )
    detected = (
        "Driver or maximum clock are known on both sides and differ, on the same system. SY615 reports power limits."
    )
    bad = Example(
        "system,model,device_clock,precision,metric,value,unit\n"
        "A,ResNet50,1980 MHz,fp32,throughput,1000,images/s\nA,ResNet50,1500 MHz,bf16,throughput,1800,images/s\n",
        "The bf16 run had a lower clock; at 1980 MHz, bf16 might be faster still.",
        factor="precision",
    )
    good = Example(
        "system,model,device_clock,precision,metric,value,unit\n"
        "A,ResNet50,1980 MHz,fp32,throughput,1000,images/s\nA,ResNet50,1980 MHz,bf16,throughput,2000,images/s\n",
        "Both sides have the same clock.",
        factor="precision",
    )
    fix = "run both sides with the same driver and clock"


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
        differing = [str(entry) for entry in differences(pair.a, pair.b) if entry.key in ("device_scope", "dies")]
        if differing:
            yield self.found(
                f"one device is not the same unit on both sides: {'; '.join(differing)}", place=pair.b.place
            )


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


class OneHeldBack(PairRule):
    """One side was held back by a limit, the other was not."""

    code = "SY615"
    name = "one-side-held-back"
    severity = "warning"
    why = (
        "If one side was throttled or had a lower power limit, the ratio compares cooling and power settings as well, "
        "not only what was meant to differ."
    )
    detected = (
        "Power limits are known on both sides and differ, on the same system; or one side was held back by its "
        f"temperature or its hardware in more than {100 * HELD_BACK:g} % of the time and the other was not; or, on the "
        "same system or with a limit below the default, by its power limit. It is an error if the side that was held "
        "back is slower by no more than the clock that it lost: this alone can explain the difference."
    )
    bad = Example(
        "system,model,precision,throttled_percent,clock_loss_percent,metric,value,unit\n"
        "A,ResNet50,fp32,0.1,0.1,throughput,1000,images/s\nA,ResNet50,tf32,60,30,throughput,900,images/s\n",
        "The second run lost 30 % of its clock to its temperature, and is 10 % slower.",
        factor="precision",
    )
    good = Example(
        "system,model,precision,throttled_percent,clock_loss_percent,metric,value,unit\n"
        "A,ResNet50,fp32,0.1,0.1,throughput,1000,images/s\nA,ResNet50,tf32,0.2,0.1,throughput,900,images/s\n",
        "Neither side was throttled.",
        factor="precision",
    )
    fix = "measure the side that was held back again, on a node that is cool and with the same power limit"

    def check(self, pair: Pair) -> Iterator[Finding]:
        """Yield findings on different power limits and on a side that was held back alone."""
        limits = [str(entry).removeprefix("power_limit ") for entry in confounders(pair) if entry.key == "power_limit"]
        if limits:
            yield self.found(f"the power limits of the two sides differ: {limits[0]}", place=pair.b.place)
        held = {id(row): dict(_reasons(pair, row)) for row in (pair.a, pair.b)}
        for side, row, other in (("A", pair.a, pair.b), ("B", pair.b, pair.a)):
            # If the state of the other side is unknown, it may have been held back as well.
            told = {
                key: words
                for key, words in held[id(row)].items()
                if key not in held[id(other)] and other.number(key) is not None
            }
            if not told:
                continue
            loss = row.number("clock_loss_percent")
            slower = _slower_by(pair, row)
            explained = loss is not None and slower is not None and 0 < slower <= loss
            clock = f"; it lost {short(loss, 2)} % of its clock" if loss is not None else ""
            yield self.found(
                f"only side {side} was held back: {', '.join(told.values())}{clock}"
                + (", which can explain the whole difference" if explained else ""),
                place=row.place,
                severity="error" if explained else "warning",
                # Extending a study adds no job to a configuration that has its jobs.
                command=run_again(row.spec) if row.spec is not None and "" not in row.spec.study_arguments else "",
            )


def _reasons(pair: Pair, row: Row) -> Iterator[tuple[str, str]]:
    """Yield what held a side back. On another system, its own default power limit is a property of that system."""
    heat, power = row.number("throttled_percent"), row.number("power_capped_percent")
    if heat is not None and heat > 100 * HELD_BACK:
        yield "throttled_percent", f"by its temperature or hardware in {short(heat, 2)} % of the time"
    same = pair.a.get("system") == pair.b.get("system")
    share = row.number("power_limit_percent")
    reduced = share is not None and share < 100 * (1 - SAME_LIMIT)
    meant = "power_limit" in meant_to_differ(pair) and same
    if power is not None and power > 100 * HELD_BACK and (same or reduced) and not meant:
        yield "power_capped_percent", f"by its power limit in {short(power, 2)} % of the time"


def _slower_by(pair: Pair, row: Row) -> float | None:
    """Return by how many percent a side is slower than the other; None if the figure is neither a rate nor a time."""
    other = pair.b if row is pair.a else pair.a
    own, base = row.figures.get(pair.metric), other.figures.get(pair.metric)
    kind = unit_of(own.unit) if own is not None else None
    if own is None or base is None or kind is None or kind[0] not in ("rate", "time") or not (own.value and base.value):
        return None
    speed = own.value / base.value if kind[0] == "rate" else base.value / own.value
    return 100 * (1 - speed)
