"""Run rules on the state of the devices (SY614, SY616): power limit, temperature, slowdowns, memory errors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from steelyard.inputs.command import extend
from steelyard.numbers import percent, short
from steelyard.rules.rule import Example, RunRule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from steelyard.contracts.finding import Finding
    from steelyard.contracts.record import DeviceConditions, RunRecord

# One of 20 readings. A device that reaches a limit now and then loses less than a job's own spread.
HELD_BACK = 0.05
# Devices as sold reach their power limit under full load: only a large loss of clock must be reported with a figure.
LOST_CLOCK = 0.1
# Limits are set in watts; drivers round them.
SAME_LIMIT = 0.01

LIMIT_FIX = "restore the default power limit (nvidia-smi -pl, amd-smi set --power-cap, xpu-smi config --powerlimit)"
POWER_FIX = "report the mean clock with the figure; a lower clock, or another device, may give more work per joule"
HEAT_FIX = "have the cooling of the node checked, or measure on another node; then measure again"
BRAKE_FIX = "have power supply and cooling of the node checked: the hardware slowed the device down"
SETTING_FIX = "report the clock with the figure, or have an administrator remove the setting (nvidia-smi -rgc)"


class HeldBack(RunRule):
    """A limit held the clocks of a device back."""

    code = "SY614"
    name = "held-back-clocks"
    severity = "warning"
    why = (
        "A device that is at its power limit, too hot or slowed down by its hardware computes at a lower clock. The "
        "figure is then that of this node on this day, and a repeat on a cooler one gives another."
    )
    detected = (
        f"In more than {100 * HELD_BACK:g} % of the readings in the window of the throughput, one a second, the driver "
        "names a power limit, a temperature, a slowdown by the hardware or a clock setting as the reason for the "
        "clock. A clock setting is only a note, and so is the device's default power limit, unless the mean clock is "
        "more than "
        f"{100 * LOST_CLOCK:g} % below the highest that the device had in the run."
    )
    bad = Example(
        'conditions = [{node = "n1", device = "gpu0", backend = "nvml", readings = 60, clock_mhz = 1200.0, '
        "clock_highest_mhz = 1980.0, temperature_c = 87.0, power_capped = 0.0, thermal = 0.7, unknown = {}}]\n",
        "The device was too hot 70 % of the time, and lost 39 % of its clock.",
    )
    good = Example(
        'conditions = [{node = "n1", device = "gpu0", backend = "nvml", readings = 60, clock_mhz = 1980.0, '
        "clock_highest_mhz = 1980.0, temperature_c = 61.0, power_capped = 0.01, thermal = 0.0, unknown = {}}]\n",
        "The device kept its clock.",
    )
    fix = HEAT_FIX

    def check(self, record: RunRecord) -> Iterator[Finding]:
        """Yield a finding on the device that lost the most."""
        held = [device for device in record.conditions if reasons_of(device)]
        if not held:
            return
        worst = max(held, key=lambda device: (lost_clock(device) or 0.0, *sorted(reasons_of(device).values())[-1:]))
        reasons = reasons_of(worst)
        shares = " and ".join(f"{REASONS[reason]} in {percent(share, 2)}" for reason, share in reasons.items())
        many = f"; {len(held)} of {len(record.conditions)} devices were held back" if len(record.conditions) > 1 else ""
        heat = "" if worst.temperature_c is None else f"; at most {short(worst.temperature_c)} °C"
        details = f"{_clocks(worst)}{_limit(worst) if 'power_capped' in reasons else ''}{heat}"
        reduced = limit_reduced(worst)
        fixes = {
            "power_capped": LIMIT_FIX if reduced else POWER_FIX,
            "thermal": HEAT_FIX,
            "hardware": BRAKE_FIX,
            "setting": SETTING_FIX,
        }
        yield self.found(
            f"{_place(worst)} was held back {shares} of the time{details}{many}",
            severity="note" if all(map(_is_usual, held)) else "warning",
            fix="; ".join(fixes[reason] for reason in reasons),
            command=f"steelyard energy {record.run_id}",
        )


REASONS = {
    "power_capped": "by its power limit",
    "thermal": "by its temperature",
    "hardware": "by its hardware",
    "setting": "by a clock setting",
}


def reasons_of(device: DeviceConditions) -> dict[str, float]:
    """Return what held a device back, and in which share of the time."""
    shares = {reason: getattr(device, reason) or 0.0 for reason in REASONS}
    return {reason: share for reason, share in shares.items() if share > HELD_BACK}


def _is_usual(device: DeviceConditions) -> bool:
    """Return whether a device only had a clock that somebody set, or reached its default power limit at little cost."""
    reasons = set(reasons_of(device))
    cheap = not limit_reduced(device) and (lost_clock(device) or 0.0) <= LOST_CLOCK
    return reasons == {"setting"} or (cheap and not reasons & {"thermal", "hardware"})


def lost_clock(device: DeviceConditions) -> float | None:
    """Return by which share the mean clock is below the highest of the run; None if one is unknown."""
    if device.clock_mhz is None or not device.clock_highest_mhz:
        return None
    return max(0.0, 1 - device.clock_mhz / device.clock_highest_mhz)


def limit_reduced(device: DeviceConditions) -> bool:
    """Return whether the power limit is below the default."""
    if device.limit_w is None or device.default_limit_w is None:
        return False
    return device.limit_w < (1 - SAME_LIMIT) * device.default_limit_w


def _place(device: DeviceConditions) -> str:
    return f"{device.device} on {device.node}"


def _clocks(device: DeviceConditions) -> str:
    lost = lost_clock(device)
    if device.clock_mhz is None or lost is None:
        return ""
    below = f", {percent(lost, 2)} below its highest" if lost > 0 else ""
    return f": mean clock {short(device.clock_mhz)} MHz{below}"


def _limit(device: DeviceConditions) -> str:
    if device.limit_w is None:
        return ""
    default = f", {short(device.default_limit_w or 0.0)} W by default" if limit_reduced(device) else ""
    return f"; power limit {short(device.limit_w)} W{default}"


class MemoryErrors(RunRule):
    """The memory of a device had errors that were not corrected."""

    code = "SY616"
    name = "uncorrected-memory-errors"
    severity = "error"
    why = (
        "After an uncorrected error the memory holds wrong numbers, or the driver has taken pages out of use. Results "
        "may be wrong, and the device is about to fail."
    )
    detected = "The driver's count of uncorrected ECC errors of a device grew during the run."
    bad = Example(
        'conditions = [{node = "n1", device = "gpu3", backend = "nvml", readings = 60, corrected = 12, '
        "uncorrected = 1, unknown = {}}]\n",
        "One error could not be corrected.",
    )
    good = Example(
        'conditions = [{node = "n1", device = "gpu3", backend = "nvml", readings = 60, corrected = 12, '
        "uncorrected = 0, unknown = {}}]\n",
        "All errors were corrected.",
    )
    fix = (
        "take the device out of use and have it checked (nvidia-smi -q -d ECC,ROW_REMAPPER; amd-smi metric --ecc), "
        "then measure on another"
    )

    def check(self, record: RunRecord) -> Iterator[Finding]:
        """Yield one finding with the device that has the most errors."""
        faulty = [device for device in record.conditions if device.uncorrected]
        if not faulty:
            return
        worst = max(faulty, key=lambda device: device.uncorrected or 0)
        count = worst.uncorrected or 0
        many = f"; {len(faulty)} devices had some" if len(faulty) > 1 else ""
        yield self.found(
            f"{_place(worst)} had {count} uncorrected memory error{'s' * (count != 1)} during the run{many}",
            evidence=f"corrected: {worst.corrected}" if worst.corrected is not None else "",
            command=extend(record.spec),
        )
