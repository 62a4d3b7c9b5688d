"""Run rules on measured energy (SY402 to SY409): whether it is reliable, and what it includes.

A run without a sensor gives no finding; its record says why it has no energy. All findings are warnings: the speed of
the run is valid without its energy.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from steelyard.contracts.record import DEVICES, DISAGREES, HOLDS_HOST, SAMPLER, SPECIAL_REASONS
from steelyard.inputs.command import run_again
from steelyard.numbers import short
from steelyard.rules.rule import Example, RunRule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from steelyard.contracts.finding import Finding
    from steelyard.contracts.record import Quantity, RunRecord

MAIN = "energy_job"
PER_WORK = ("energy_per_sample", "energy_per_token", "samples_per_wh", MAIN)
SHOWN = 3
LONGER = 4
"""How many times longer to measure."""
# Accelerator sensors and power capping are each accurate to about 5 %.
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
    """Return the example text of a measured energy with this verdict."""
    listed = ", ".join(f'"{reason}"' for reason in reasons)
    return f'{_JOB}[quantities.energy_job.validity]\nverdict = "{verdict}"\nreasons = [{listed}]\n'


_VALID = _write_energy("valid")


class EnergyInvalid(RunRule):
    """An energy that was measured but is not reliable."""

    code = "SY402"
    name = "energy-invalid"
    severity = "warning"
    why = (
        "A sensor that is stuck, drops readings or is too slow for the window still returns numbers. An energy "
        "computed from them is wrong by an unknown amount, so it is not reported. The speed of the run is still valid."
    )
    detected = (
        "Readings must cover the window without a long gap, change over time, lie between 0 and the device's power "
        "limit, and have a sufficient resolution for the length of the window. Otherwise the energy is marked invalid "
        "with the reason."
    )
    bad = Example(
        _write_energy("invalid", "frozen: 120 readings in 12 s, all with the same counter value"),
        "The energy counter did not change while the device was busy.",
    )
    good = Example(_VALID, "The readings cover the window and pass all checks.")
    fix = "measure a longer window if it is too short; otherwise find out what is wrong with the sensor"

    def check(self, record: RunRecord) -> Iterator[Finding]:
        """Yield one finding with the reasons that have no rule of their own."""
        reasons = _select_ordinary(record)
        if _read_verdict(record) == "invalid" and reasons is not None:
            short_window = any("too short" in reason for reason in reasons)
            command = _measure_longer(record) if short_window else "steelyard doctor"
            yield self.found("the energy is not reliable: " + _format_reasons(reasons), command=command)


class EnergyDoubtful(RunRule):
    """An energy that may be wrong."""

    code = "SY403"
    name = "energy-doubtful"
    severity = "warning"
    why = (
        "The number may be right, but there is a reason for doubt: a wide interval, a gap, readings from a fallback "
        "sensor. A report that leaves out the reason claims more than was measured."
    )
    detected = (
        "The checks of SY402 pass with a reservation: an uncertainty above 10 % without the sensor's gain error, no "
        "readings at the edges of the window, a counter that was stuck for a while, or idle time between steps inside "
        "the window."
    )
    bad = Example(
        _write_energy("doubtful", "the uncertainty is 14%, without the sensor's gain error"),
        "The window is too short for this sensor: the uncertainty is 14 %.",
    )
    good = Example(_VALID, "The readings cover the window and pass all checks.")
    fix = "report the reason with the energy, or measure a longer window"

    def check(self, record: RunRecord) -> Iterator[Finding]:
        """Yield one finding with the reasons that have no rule of their own."""
        reasons = _select_ordinary(record)
        if _read_verdict(record) == "doubtful" and reasons is not None:
            message = "the energy is doubtful: " + _format_reasons(reasons)
            yield self.found(message, command=_measure_longer(record))


class CounterAgainstIntegral(RunRule):
    """The energy counter and the power sensor of a device disagree."""

    code = "SY404"
    name = "energy-sensors-disagree"
    severity = "warning"
    why = (
        "Many devices have both an energy counter and a power sensor. If power integrated over the window differs from "
        "the counted energy, one of them is wrong or measures something else, and it is not known which."
    )
    detected = (
        "For each device, the counted energy is compared with the integrated power over the same window. The "
        "difference must be within 1 % plus twice the combined 95 % uncertainty. The vendor's tolerance does not "
        "count: both read the same circuit, so it is the same in both."
    )
    bad = Example(
        _write_energy("doubtful", f"{DISAGREES}n1/gpu0 180000 J counted, 131000 J integrated, 16200 J explained"),
        "Integrated power is more than a quarter below the counted energy.",
    )
    good = Example(_VALID, "Both give the same energy within their uncertainties.")
    fix = "use the counter, and say so; see which sensors the node has"

    def check(self, record: RunRecord) -> Iterator[Finding]:
        """Yield a finding with the devices whose sensors disagree."""
        for reason in _select_special(record, DISAGREES):
            yield self.found("counted energy and integrated power differ", evidence=reason, command="steelyard doctor")


class DevicesMissing(RunRule):
    """Devices of the job whose energy was not measured."""

    code = "SY405"
    name = "device-energy-missing"
    severity = "warning"
    why = (
        "The energy of a job is the sum over all its devices. If one is missing, the sum is too small, and the machine "
        "looks more efficient than it is."
    )
    detected = (
        "On each node, the devices with sensor readings are compared with the ranks that ran there. A card with two "
        "dies counts as two ranks. If a device is missing, the job's energy is not reported. If other devices are "
        "included, it is doubtful."
    )
    bad = Example(
        _write_energy("invalid", f"{DEVICES}3 of 4 devices on n1 can be read: nvml: GPU is lost"),
        "One of four devices was lost, so a quarter of the energy is missing.",
    )
    good = Example(_VALID, "Every device of the job was measured.")
    fix = "find out on that node why its sensors cannot be read"

    def check(self, record: RunRecord) -> Iterator[Finding]:
        """Yield one finding per node."""
        for reason in _select_special(record, DEVICES):
            message = f"the energy does not cover exactly the job's devices: {reason}"
            yield self.found(message, command="steelyard doctor")


class RunAboveLimit(RunRule):
    """Measured power above the power limit of the device."""

    code = "SY406"
    name = "measured-power-above-limit"
    severity = "warning"
    why = (
        "A device exceeds its power limit only for moments. A mean above the limit means that a unit or scope is "
        "wrong, or that the sensor also measures something else, such as another job on the same card."
    )
    detected = (
        "The mean power of the job over the steady window, divided by the number of measured devices or cards, exceeds "
        "the power limit of one by more than 10 %. Not checked if only a module or a whole node could be measured."
    )
    bad = Example(
        'device.name = "GPU"\ndevice.power_limit_w = 400.0\n'
        '[quantities.power_job]\nvalue = 700.0\nunit = "W"\nscope = "job"\nwindow = "steady"\naggregation = "mean"\n',
        "A device with a limit of 400 W seems to draw 700 W.",
    )
    good = Example(
        'device.name = "GPU"\ndevice.power_limit_w = 400.0\n'
        '[quantities.power_job]\nvalue = 390.0\nunit = "W"\nscope = "job"\nwindow = "steady"\naggregation = "mean"\n',
        "390 W is below the limit of 400 W.",
    )
    fix = "check what the sensor measures (card, die or module), and whether other jobs use the same device"

    def check(self, record: RunRecord) -> Iterator[Finding]:
        """Yield a finding if the mean power per device is above the limit."""
        power, device = record.quantities.get("power_job"), record.device
        limit_w = device.power_limit_w if device is not None else None
        read = record.quantities.get("energy_device")
        more_than_devices = read is not None and read.scope in ("module", "node")
        if power is None or power.value is None or not limit_w or device is None or more_than_devices:
            return
        # On a card with several dies each rank sees a die as its device, but the limit is that of the card.
        main = _find_main(record)
        counted = len(main.validity.domains) if main is not None and main.validity is not None else 0
        counted = counted or record.spec.devices
        each_w = power.value / counted
        if each_w > MARGIN * limit_w:
            message = (
                f"mean power is {short(each_w)} W per device, but the limit of {device.name} is {short(limit_w)} W"
            )
            yield self.found(message, evidence=f"{short(power.value)} W over {counted} device(s) or card(s)")


class WindowMismatch(RunRule):
    """Energy and speed from different windows."""

    code = "SY407"
    name = "different-energy-window"
    severity = "warning"
    why = (
        "Compilation and warm-up use energy but process no samples. If the energy includes them and the speed does "
        "not, the device seems to draw far more power than it can, most of all in short runs."
    )
    detected = "The window of the energy, or of a figure computed from it, is not the window of the job's throughput."
    bad = Example(
        '[quantities.energy_per_sample]\nvalue = 880.0\nunit = "J/sample"\nscope = "job"\nwindow = "run"\n'
        'aggregation = "mean"\n',
        "The energy covers the whole run with compilation, the throughput only the steady steps.",
    )
    good = Example(
        '[quantities.energy_per_sample]\nvalue = 0.95\nunit = "J/sample"\nscope = "job"\nwindow = "steady"\n'
        'aggregation = "mean"\n',
        "Both cover the steady steps.",
    )
    fix = "take energy and speed over the same steps, and report the energy of compilation separately"

    def check(self, record: RunRecord) -> Iterator[Finding]:
        """Yield one finding with all quantities of another window."""
        rate = record.quantities.get("throughput")
        if rate is None or rate.value is None:
            return
        other = {
            name: energy.window
            for name in PER_WORK
            if (energy := record.quantities.get(name)) is not None
            and energy.value is not None
            and energy.window != rate.window
        }
        if other:
            windows = "; ".join(f"{name} covers {window}" for name, window in other.items())
            included = ", which includes compilation" if set(other.values()) & {"run", "compile"} else ""
            yield self.found(f"{windows}{included}; the throughput covers {rate.window}")


class SamplerDied(RunRule):
    """The sensors were not read until the end of the run."""

    code = "SY408"
    name = "sampler-died"
    severity = "warning"
    why = (
        "A separate process, the sampler, reads the sensors. If it is killed or runs out of disk space, the rest of "
        "the run has no readings, and the energy does not cover the window."
    )
    detected = (
        "The sampler writes a final entry when it ends normally. A missing entry, or one before the end of the window, "
        "is a finding. If the last reading is also before the end of the window, the energy is invalid."
    )
    bad = Example(
        _write_energy("invalid", f"{SAMPLER}killed on n1; its last reading is 8.2 s before the end of the window"),
        "The sampler was killed in the middle of the run.",
    )
    good = Example(_VALID, "The sampler ended normally after the run.")
    fix = "find out what killed the sampler (a memory limit, a full disk), then rerun if you need the energy"

    def check(self, record: RunRecord) -> Iterator[Finding]:
        """Yield one finding per node."""
        for reason in _select_special(record, SAMPLER):
            message = f"the sensors were not read to the end: {reason}"
            yield self.found(message, command=run_again(record.spec))


class HoldsHost(RunRule):
    """Energy that includes more than the accelerators."""

    code = "SY409"
    name = "energy-includes-host"
    severity = "warning"
    why = (
        "A superchip combines CPU and GPU in one module, and some machines report only the power of the whole module. "
        "That energy includes the CPU, so it cannot be compared with the energy of a GPU alone."
    )
    detected = (
        "The accelerators have no readable sensor of their own, so the smallest readable unit that contains them is "
        "counted: a module, a board or a node."
    )
    bad = Example(
        _write_energy("doubtful", f"{HOLDS_HOST}only the module with its CPU can be read"),
        "The energy includes the CPU.",
    )
    good = Example(_VALID, "The accelerators have their own sensors.")
    fix = "state that the energy includes the host, and compare it only with energy of the same scope"

    def check(self, record: RunRecord) -> Iterator[Finding]:
        """Yield a finding if the energy includes more than the accelerators."""
        for reason in _select_special(record, HOLDS_HOST):
            yield self.found(f"the energy includes more than the accelerators: {reason}")


# -- helpers


def _measure_longer(record: RunRecord) -> str:
    """Return the command for a run with a longer window."""
    budget, seconds = record.spec.budget, record.stop.seconds if record.stop is not None else 0.0
    least = float(math.ceil(LONGER * max(seconds, budget.min_seconds)))
    return run_again(
        record.spec,
        {
            "budget.min_seconds": least,
            "budget.max_seconds": max(budget.max_seconds, 2 * least),
            "budget.max_steps": max(budget.max_steps, 2 * LONGER * record.steps_seen),
        },
    )


def _find_main(record: RunRecord) -> Quantity | None:
    return record.quantities.get(MAIN)


def _read_verdict(record: RunRecord) -> str | None:
    main = _find_main(record)
    return main.validity.verdict if main is not None and main.validity is not None else None


def _read_reasons(record: RunRecord) -> tuple[str, ...]:
    main = _find_main(record)
    return main.validity.reasons if main is not None and main.validity is not None else ()


def _select_ordinary(record: RunRecord) -> list[str] | None:
    """Return the reasons that have no rule of their own; None if every reason has one."""
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
