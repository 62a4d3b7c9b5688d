"""Rules on the measured energy (SY402 to SY409): whether it can be believed, and what it holds.

Knows the record's energy quantities and their validity; must not know how sensors are read. A run without any sensor
gives no finding: its record says why it has no energy. None of these rules blocks: a run's speed is sound without them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from steelyard.contracts.energy import DEVICES, DISAGREES, HOLDS_HOST, SAMPLER, SPECIAL_REASONS
from steelyard.rules.rule import Example, RunRule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from steelyard.contracts.record import Finding, Quantity, RunRecord

MAIN = "energy_job"
PER_WORK = ("energy_per_sample", "energy_per_token", "samples_per_wh", MAIN)
SHOWN = 3
# Sensors of accelerators are good to about 5 %, and so is the limit's regulation.
MARGIN = 1.10

_JOB = """
[quantities.energy_job]
value = 180000.0
unit = "J"
scope = "job"
window = "steady"
aggregation = "sum"
"""


def _write_energy(verdict: str, *reasons: str) -> str:
    """A measured energy as an example's text."""
    told = ", ".join(f'"{reason}"' for reason in reasons)
    return f'{_JOB}[quantities.energy_job.validity]\nverdict = "{verdict}"\nreasons = [{told}]\n'


_VALID = _write_energy("valid")


class EnergyInvalid(RunRule):
    """An energy that was measured and cannot be believed."""

    code = "SY402"
    name = "energy-invalid"
    severity = "warning"
    why = (
        "A sensor that stood still, lost its readings or was too slow for the window gives a number all the same. "
        "Joules made of it are wrong by an unknown amount, so the run has no energy."
    )
    detected = (
        "Readings must cover the window without a long gap, be new ones, lie between 0 and the limit of the device, "
        "and be fine enough for the window's length. Where that fails, the energy is marked invalid with the reason."
    )
    bad = Example(
        _write_energy("invalid", "frozen: 120 readings in 12 s, and not one new value of the counter"),
        "The counter did not move while the device worked.",
    )
    good = Example(_VALID, "The readings cover the window, and nothing speaks against them.")
    fix = "see the reasons; measure a longer window, or mend the sensor (steelyard doctor says what can be read)"

    def check(self, record: RunRecord) -> Iterator[Finding]:
        """One finding with the reasons that no other rule speaks of."""
        reasons = _select_ordinary(record)
        if _read_verdict(record) == "invalid" and reasons is not None:
            yield self.found("the energy cannot be believed: " + _format_reasons(reasons))


class EnergyDoubtful(RunRule):
    """An energy with reservations."""

    code = "SY403"
    name = "energy-doubtful"
    severity = "warning"
    why = (
        "The number may be right, but something speaks against it: a wide interval, a gap, readings from a second-best "
        "sensor. Whoever prints it without the reason claims more than was measured."
    )
    detected = (
        "The same checks as for an invalid energy, where they leave a number: an interval of more than 10 % apart from "
        "the sensor's gain, edges of the window without readings, a counter that stood still for a while, time between "
        "the steps inside the window."
    )
    bad = Example(
        _write_energy("doubtful", "apart from the sensor's gain the energy is known to 14% only"),
        "The window is short for this sensor, so the energy is known to 14 % only.",
    )
    good = Example(_VALID, "The readings cover the window, and nothing speaks against them.")
    fix = "print the reason beside the energy, or measure a longer window (--min-seconds)"

    def check(self, record: RunRecord) -> Iterator[Finding]:
        """One finding with the reasons that no other rule speaks of."""
        reasons = _select_ordinary(record)
        if _read_verdict(record) == "doubtful" and reasons is not None:
            yield self.found("the energy is doubtful: " + _format_reasons(reasons))


class CounterAgainstIntegral(RunRule):
    """Two sensors of one device that contradict each other."""

    code = "SY404"
    name = "counter-against-integral"
    severity = "warning"
    why = (
        "A device often has both a counter of energy and a meter of power. If the power added up over the window is "
        "not the energy counted in it, one of them is wrong or is of something else, and nobody knows which."
    )
    detected = (
        "Energy by the counter and by the integral of the power are compared for each device over the same window. "
        "Their difference must be explained by both intervals together, the makers' tolerances included."
    )
    bad = Example(
        _write_energy("doubtful", f"{DISAGREES}n1/gpu0 180000 J counted, 131000 J integrated, 16200 J explained"),
        "The meter misses more than a quarter of what the counter counts.",
    )
    good = Example(_VALID, "Both give the same joules within their intervals.")
    fix = "take the counter, say so, and find out what the meter averages over (steelyard doctor lists both)"

    def check(self, record: RunRecord) -> Iterator[Finding]:
        """One finding with the devices that differ."""
        for reason in _select_special(record, DISAGREES):
            yield self.found("counted and integrated energy differ", evidence=reason)


class DevicesMissing(RunRule):
    """Devices of the job whose energy was not read."""

    code = "SY405"
    name = "energy-of-devices-missing"
    severity = "warning"
    why = (
        "The energy of a job is the sum over all its devices. Where one cannot be read, the sum is too small, and "
        "divided by the work of all devices it makes the machine look better than it is."
    )
    detected = (
        "The devices whose sensors were read on each node are held against the ranks that ran there. A card with two "
        "dies stands for two ranks. If one is missing, the job's energy is not given. If others are in it, it is "
        "doubtful."
    )
    bad = Example(
        _write_energy("invalid", f"{DEVICES}3 of 4 devices on n1 can be read: nvml: GPU is lost"),
        "One of four devices vanished, so that the sum lacks a quarter.",
    )
    good = Example(_VALID, "Every device of the job was read.")
    fix = "have the sensors of every node of the job read (steelyard doctor on that node says what is in the way)"

    def check(self, record: RunRecord) -> Iterator[Finding]:
        """One finding a node."""
        for reason in _select_special(record, DEVICES):
            yield self.found(f"the energy is not that of the job's devices: {reason}")


class RunAboveLimit(RunRule):
    """Measured power above what the device may draw."""

    code = "SY406"
    name = "measured-power-above-limit"
    severity = "warning"
    why = (
        "A device does not draw more than its limit for longer than a moment. A mean above it says that a unit or a "
        "scope is wrong, or that something else is on the same sensor, such as a neighbour on the card."
    )
    detected = (
        "The mean power of the job over the steady window, divided by the devices or cards that were read, is above "
        "the maker's limit of one by more than 10 %. Not checked where only a module or a whole node could be read."
    )
    bad = Example(
        'device.name = "GPU"\ndevice.power_limit_w = 400.0\n'
        '[quantities.power_job]\nvalue = 700.0\nunit = "W"\nscope = "job"\nwindow = "steady"\naggregation = "mean"\n',
        "One device with a limit of 400 W draws 700 W.",
    )
    good = Example(
        'device.name = "GPU"\ndevice.power_limit_w = 400.0\n'
        '[quantities.power_job]\nvalue = 390.0\nunit = "W"\nscope = "job"\nwindow = "steady"\naggregation = "mean"\n',
        "390 W are below the limit of 400 W.",
    )
    fix = "check what the sensor reads (a card, a die, a module), and whether others use the same device"

    def check(self, record: RunRecord) -> Iterator[Finding]:
        """One finding."""
        power, device = record.quantities.get("power_job"), record.device
        limit_w = device.power_limit_w if device is not None else None
        read = record.quantities.get("energy_device")
        more_than_devices = read is not None and read.scope in ("module", "node")
        if power is None or power.value is None or not limit_w or device is None or more_than_devices:
            return
        # Of a card with several dies, each of which a rank sees as a device, the limit is the whole card's.
        main = _find_main(record)
        counted = len(main.validity.domains) if main is not None and main.validity is not None else 0
        counted = counted or record.spec.ranks
        each_w = power.value / counted
        if each_w > MARGIN * limit_w:
            message = f"{each_w:.4g} W a device on the mean, and {device.name!r} may draw {limit_w:.4g} W"
            yield self.found(message, evidence=f"{power.value:.4g} W over {counted} device(s) or card(s)")


class WindowMismatch(RunRule):
    """Energy and speed of different windows."""

    code = "SY407"
    name = "energy-of-another-window"
    severity = "warning"
    why = (
        "Compilation and warm-up cost energy and do no work. Energy of a window that holds them beside a speed of one "
        "that does not makes a device seem to draw many times what it can, and short runs look the worst."
    )
    detected = "The window of the energy, or of what is made of it, is not that of the job's throughput."
    bad = Example(
        '[quantities.energy_per_sample]\nvalue = 880.0\nunit = "J/sample"\nscope = "job"\nwindow = "run"\n'
        'aggregation = "mean"\n',
        "The energy is of the whole run with its compilation, the throughput of the steady steps.",
    )
    good = Example(
        '[quantities.energy_per_sample]\nvalue = 0.95\nunit = "J/sample"\nscope = "job"\nwindow = "steady"\n'
        'aggregation = "mean"\n',
        "Both are of the steady steps.",
    )
    fix = "take energy and speed over the same steps, and give the energy of compilation as a figure of its own"

    def check(self, record: RunRecord) -> Iterator[Finding]:
        """One finding with all quantities of another window."""
        rate = record.quantities.get("throughput_job")
        if rate is None or rate.value is None:
            return
        other = {
            name: found.window
            for name in PER_WORK
            if (found := record.quantities.get(name)) is not None
            and found.value is not None
            and found.window != rate.window
        }
        if other:
            told = "; ".join(f"{name} is of {window!r}" for name, window in other.items())
            held = ", which holds compilation" if set(other.values()) & {"run", "compile"} else ""
            yield self.found(f"{told}{held}; the throughput is of {rate.window!r}")


class SamplerDied(RunRule):
    """Nobody read the sensors until the end."""

    code = "SY408"
    name = "sampler-died"
    severity = "warning"
    why = (
        "A process of its own reads the sensors, so that it cannot disturb the run. If it is killed, stopped or runs "
        "out of disk, the rest of the run has no readings, and the energy up to then is not that of the window."
    )
    detected = (
        "The sampler leaves a last word when it ends in order. Without it, or with one before the window's end, it is "
        "a finding; if its last reading is before the window's end, too, the energy is invalid."
    )
    bad = Example(
        _write_energy(
            "invalid", f"{SAMPLER}that of n1 was killed and left no last word; its last reading is 8.2 s before the end"
        ),
        "Somebody killed the sampler in the middle of the run.",
    )
    good = Example(_VALID, "The sampler ended after the run, in order.")
    fix = "look for what killed it (memory limits of the job, a full disk), and run again if the energy matters"

    def check(self, record: RunRecord) -> Iterator[Finding]:
        """One finding a node."""
        for reason in _select_special(record, SAMPLER):
            yield self.found(f"the sensors were not read to the end: {reason}")


class HoldsHost(RunRule):
    """Energy that holds more than the accelerators."""

    code = "SY409"
    name = "module-includes-host"
    severity = "warning"
    why = (
        "A superchip is one module of CPU and GPU, and some machines only tell the power of the whole. Its joules "
        "beside those of a GPU alone are too high by a CPU, and no ratio of the two is fair."
    )
    detected = (
        "No sensor of the accelerators themselves can be read, so the smallest thing that holds them and can be read "
        "is counted: a module, a board or a node."
    )
    bad = Example(
        _write_energy("doubtful", f"{HOLDS_HOST}only a module with its CPU can be read, which is counted whole"),
        "The CPU's joules are in it.",
    )
    good = Example(_VALID, "The accelerators have sensors of their own.")
    fix = "say that the host is in it, and compare with energy of the same scope only"

    def check(self, record: RunRecord) -> Iterator[Finding]:
        """One finding."""
        for reason in _select_special(record, HOLDS_HOST):
            yield self.found(f"the energy holds more than the accelerators: {reason}")


# -- what the rules share


def _find_main(record: RunRecord) -> Quantity | None:
    return record.quantities.get(MAIN)


def _read_verdict(record: RunRecord) -> str | None:
    found = _find_main(record)
    return found.validity.verdict if found is not None and found.validity is not None else None


def _read_reasons(record: RunRecord) -> tuple[str, ...]:
    found = _find_main(record)
    return found.validity.reasons if found is not None and found.validity is not None else ()


def _select_ordinary(record: RunRecord) -> list[str] | None:
    """The reasons that no rule of their own speaks of; None where all have one."""
    reasons = _read_reasons(record)
    own = [reason for reason in reasons if not reason.startswith(SPECIAL_REASONS)]
    return own if own or not reasons else None


def _select_special(record: RunRecord, topic: str) -> Iterator[str]:
    for reason in _read_reasons(record):
        if reason.startswith(topic):
            yield reason.removeprefix(topic)


def _format_reasons(reasons: list[str]) -> str:
    if not reasons:
        return "the record does not say why"
    more = f"; and {len(reasons) - SHOWN} more" if len(reasons) > SHOWN else ""
    return "; ".join(reasons[:SHOWN]) + more
