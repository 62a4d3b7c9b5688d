"""What short runs of steelyard itself tell about an accelerator: records in, checks out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from steelyard.analysis.bound import leading
from steelyard.contracts.accelerator import MAX_DETAILS, AssumptionCheck
from steelyard.numbers import short

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from steelyard.contracts.record import DeviceConditions, RunRecord
    from steelyard.selftest.hardware import HardwareTest

MAX_REASON = 300
SPREAD = 0.05
"""By how much runs of one matrix product may differ."""
MOST_OF_PEAK = 1.05
HELD_BACK = 0.01
"""Share of the time in which a temperature or the hardware may hold the clock back."""
LOWER_CLOCK = 0.9


def unmeasured(name: str, records: Sequence[RunRecord]) -> AssumptionCheck | None:
    """Return the check for runs of which one did not complete; None: all did."""
    failed = next((record for record in records if record.status.code != "completed"), None)
    if failed is None:
        return None
    what = f"{failed.spec.workload} on {failed.spec.devices} device(s) ended as {failed.status.code}"
    return AssumptionCheck(
        name=name,
        # The product's own run fails here; a run that took too long may only have begun too late.
        outcome="could not check" if failed.status.code == "time_limit" else "not as assumed",
        text=f"{what}: {' '.join(failed.status.reason.split())[:MAX_REASON]}",
    )


def _value(record: RunRecord, name: str) -> float | None:
    quantity = record.quantities.get(name)
    return None if quantity is None else quantity.value


def judge_bound(tiny: RunRecord, large: RunRecord) -> AssumptionCheck:
    """Check that tiny kernels are called host-bound and large matrix products compute-bound."""
    if (failed := unmeasured("host-bound", [tiny, large])) is not None:
        return failed
    wanted = {"tiny kernels": (tiny, "host-bound"), "large matrix products": (large, "compute-bound")}
    called = {what: leading(record) for what, (record, _) in wanted.items()}
    wrong = [
        f"{what} are called {called[what]} instead of {bound}"
        for what, (_, bound) in wanted.items()
        if called[what] != bound
    ]
    numbers = {
        f"{size}_{name}": value
        for size, record in (("tiny", tiny), ("large", large))
        for name in ("busy_share", "host_wait_share", "compute_share")
        if (value := _value(record, name)) is not None
    }
    return AssumptionCheck(
        name="host-bound",
        outcome="not as assumed" if wrong else "ok",
        text="; ".join(wrong) or "tiny kernels are called host-bound, and large matrix products compute-bound",
        numbers=numbers,
    )


def judge_collectives(record: RunRecord) -> AssumptionCheck:
    """Check an all-reduce, whose results the run itself compares with the known sums."""
    if (failed := unmeasured("collectives", [record])) is not None:
        return failed
    rate = _value(record, "bus_bandwidth") or 0.0
    return AssumptionCheck(
        name="collectives",
        outcome="ok",
        text=f"an all-reduce over {record.spec.devices} devices is correct, with {short(rate / 1e9)} GB/s on the bus",
        numbers={"devices": record.spec.devices, "bus_bandwidth_bytes_per_s": rate},
    )


def judge_hardware(test: HardwareTest) -> AssumptionCheck:
    """Check that the energy sensors are consistent with each other."""
    details = [f"{check.outcome}: {check.name} {check.of}: {check.text}" for check in test.checks]
    reasons = "; ".join(test.reasons)
    if not test.checks:
        return AssumptionCheck(name="sensors", outcome="could not check", text=reasons[:MAX_REASON] or test.verdict)
    failed = [check for check in test.checks if check.outcome == "fails"]
    held = sum(check.outcome == "holds" for check in test.checks)
    text = "; ".join(f"{check.name} {check.of}: {check.text}" for check in failed)[:MAX_REASON]
    return AssumptionCheck(
        name="sensors",
        outcome="ok" if test.verdict == "holds" else "not as assumed",
        text=text or reasons or f"the energy sensors are consistent in {held} of {len(test.checks)} comparisons",
        numbers={"holds": held, "fails": len(failed)},
        details=tuple(line[:MAX_REASON] for line in details)[:MAX_DETAILS],
    )


def judge_throttling(record: RunRecord) -> AssumptionCheck:
    """Check that the clock of every device holds under load, or that the driver says why not."""
    if (failed := unmeasured("throttling", [record])) is not None:
        return failed
    if not record.conditions:
        unknown = record.quantities.get("clock_device")
        reason = unknown.reason if unknown is not None else None
        text = f"clocks cannot be read: {reason or 'no driver library or file with them was found'}"
        return AssumptionCheck(name="throttling", outcome="could not check", text=text)
    device = min(record.conditions, key=_clock_share)
    if device.clock_mhz is None or not device.clock_highest_mhz:
        text = f"clocks cannot be read: {device.unknown.get('clock_mhz', 'no reading')}"
        return AssumptionCheck(name="throttling", outcome="could not check", text=text)
    share = _clock_share(device)
    fields = ("clock_mhz", "clock_highest_mhz", "temperature_c", "power_capped", "thermal", "hardware", "setting")
    numbers = {name: value for name in fields if (value := getattr(device, name)) is not None}
    why = {"thermal": "the temperature", "hardware": "the hardware"}
    faults = [
        f"{what} held the clock back for {held:.0%} of the time"
        for name, what in why.items()
        if (held := getattr(device, name) or 0.0) > HELD_BACK
    ]
    if share < LOWER_CLOCK and not (device.power_capped or device.setting or faults):
        faults.append("the clock fell for a reason that the driver does not tell")
    if record.steady is not None and record.steady.answer == "slowing down":
        faults.append("the products became slower")
    clocks = f"mean clock {short(device.clock_mhz)} MHz under load, {share:.0%} of the highest"
    capped = f"; a power limit held it back for {device.power_capped:.0%} of the time" if device.power_capped else ""
    return AssumptionCheck(
        name="throttling",
        outcome="not as assumed" if faults else "ok",
        text="; ".join([*faults, clocks + capped]),
        numbers=numbers,
        details=tuple(f"{column} cannot be read: {reason}" for column, reason in device.unknown.items()),
    )


def _clock_share(device: DeviceConditions) -> float:
    """Return the mean clock as a share of the highest that was read, which is that of the beginning."""
    return (device.clock_mhz or 0.0) / (device.clock_highest_mhz or 1.0)


def judge_repeats(repeats: Sequence[RunRecord], products: Mapping[str, RunRecord]) -> AssumptionCheck:
    """Check that equal runs agree, and that no matrix product is faster than the device; `products`: by format."""
    if (failed := unmeasured("repeatability", [*repeats, *products.values()])) is not None:
        return failed
    rates = [_value(record, "throughput") or 0.0 for record in repeats]
    spread = (max(rates) - min(rates)) * len(rates) / sum(rates)
    numbers = {"spread": spread, **{f"repeat_{n}_per_s": rate for n, rate in enumerate(rates, start=1)}}
    faults = [f"{len(rates)} equal runs differ by {spread:.1%}"] if spread > SPREAD else []
    told = []
    for name, record in products.items():
        flops, share = (_value(record, f"model_flops_{what}") for what in ("device", "utilisation"))
        numbers[f"{name}_flops"] = flops or 0.0
        if share is None:
            told.append(f"{name} {short((flops or 0.0) / 1e12)} TFLOP/s, peak unknown")
            continue
        numbers[f"{name}_share_of_peak"] = share
        told.append(f"{name} {share:.0%} of the peak")
        if share > MOST_OF_PEAK:
            faults.append(f"{name} reaches {share:.0%} of the peak in the table of devices")
    good = f"{len(rates)} equal runs differ by {spread:.1%}; matrix products: {', '.join(told)}"
    return AssumptionCheck(
        name="repeatability",
        outcome="not as assumed" if faults else "ok",
        text="; ".join(faults) or good,
        numbers=numbers,
    )
