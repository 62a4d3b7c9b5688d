"""Ratios of one figure of two rows, for the whole job and per device, module, node and watt.

Bounds come from jobs or from printed digits. `compare` decides whether a ratio may be given at all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from steelyard.analysis.rows import scaled
from steelyard.numbers import short
from steelyard.rules.table.row import Amount
from steelyard.rules.table.units import counted, unit_of
from steelyard.stats.ratio import MIN_JOBS, compare_means

if TYPE_CHECKING:
    from collections.abc import Callable

    from steelyard.contracts.record import Finding
    from steelyard.rules.table.row import Row

Verdict = Literal["faster", "slower", "more", "less", "no difference shown", "too few jobs"]
"""B compared with A: faster or slower for rates and times, more or less for everything else."""
Sense = Literal["rate", "time", "energy", "other"]
"""rate: more is faster; time: less is faster; energy: less is better; other: neither."""

LEVEL = 0.95
WELCH = "Welch's t on jobs"
WITH_GAIN = "Welch's t on jobs, plus the sensor error common to the jobs of each side"
NOT_POSITIVE = "none, because the figure of a job is not above zero"
# Figures per device, whatever the number of devices.
PER_DEVICE = ("_device", "bandwidth", "utilisation")
DIGITS = "printed digits only"
MIXED = "printed digits, and the interval of the measured jobs"
# Names of quantities in records; the first that both sides have is used.
ENERGY_PER_SAMPLE = ("energy_per_sample", "energy_per_sample_job")
POWER = ("power_job", "power_mean", "power")


@dataclass(frozen=True)
class Ratio:
    """A figure of B over the same figure of its base A."""

    scope: str
    """`job`, `device`, `module`, `node` or `watt`."""
    metric: str
    unit: str
    a: float
    b: float
    value: float
    """B over A in the figure's own unit."""
    low: float | None
    high: float | None
    level: float | None
    """Level of the interval; None if its bounds are those of printed digits."""
    method: str
    verdict: Verdict
    percent_faster: float | None
    """B does this many percent more work in the same time than A; negative: slower. None if it is not a speed."""
    jobs_a: int
    jobs_b: int
    findings: tuple[Finding, ...] = ()
    """Findings to show wherever this ratio is shown; errors come first."""


def sense(unit: str) -> Sense:
    """Return which direction is better for a figure in this unit."""
    known = unit_of(unit)
    kind = known[0] if known else ""
    if kind in ("rate", "per_energy"):
        return "rate"
    if unit == "J/sample" or kind == "energy":
        return "energy"
    return "time" if kind == "time" else "other"


def base_unit(unit: str) -> str:
    """Return the unit of a figure's value, whatever unit it was printed in."""
    known = unit_of(unit)
    if known is None or known[0] in ("ratio", "count"):
        return unit
    bases = {"time": "s", "energy": "J", "power": "W", "rate": f"{counted(unit)}/s", "per_energy": f"{counted(unit)}/J"}
    return bases[known[0]]


def ratios(a: Row, b: Row, metric: str, level: float = LEVEL) -> list[Ratio]:
    """Return the ratio of the whole job and those per device, module, node and watt, if both sides have them."""
    a, b = _by_one_energy(a, b)
    found = []
    for scope, make in _SCOPES.items():
        first, second = make(a, metric), make(b, metric)
        if first is not None and second is not None and min(first.value, second.value) > 0:
            found.append(divide(scope, metric, first, second, level))
    # With one device on one node on each side, all are equal.
    different: list[Ratio] = []
    for ratio in found:
        if not any((ratio.a, ratio.b) == (other.a, other.b) for other in different):
            different.append(ratio)
    return different


def _by_one_energy(a: Row, b: Row) -> tuple[Row, Row]:
    """Remove energies and powers that only one side has: two kinds of them do not measure the same.

    A module with its CPU compared with a device alone gives no ratio either. The error of one sensor is in both of its
    figures and cancels; for two sensors it does not.
    """
    a, b = _of_one_sensor(a, b)
    names = (*ENERGY_PER_SAMPLE, *POWER)
    kinds = {name for name in names if (name in a.figures) != (name in b.figures)}
    scopes = {row.get("energy_scope") for row in (a, b)} - {None}
    kinds |= set(names) if len(scopes) > 1 else set()
    if not kinds:
        return a, b
    first, second = (
        replace(row, figures={name: amount for name, amount in row.figures.items() if name not in kinds})
        for row in (a, b)
    )
    return first, second


def _of_one_sensor(a: Row, b: Row) -> tuple[Row, Row]:
    """Remove the common error of the jobs if both sides ran on the same node of the same system."""
    if any(a.get(key) is None or a.get(key) != b.get(key) for key in ("node", "system", "energy_scope")):
        return a, b
    first, second = (
        replace(row, figures={name: replace(amount, common=0.0) for name, amount in row.figures.items()})
        for row in (a, b)
    )
    return first, second


def divide(scope: str, metric: str, a: Amount, b: Amount, level: float = LEVEL) -> Ratio:
    """Return B over A. With jobs on both sides Welch's interval; a printed figure counts as one job with its digits."""
    way = sense(a.unit)
    jobs_a, jobs_b = max(1, len(a.jobs)), max(1, len(b.jobs))
    speed = way in ("rate", "time")
    if a.jobs and b.jobs and min(*a.jobs, *b.jobs) <= 0:
        # Shares and qualities of single jobs may be zero; the interval uses logarithms.
        percent = _percent_faster(way, b.value / a.value)
        return Ratio(
            scope, metric, base_unit(a.unit), a.value, b.value, b.value / a.value, None, None, None, NOT_POSITIVE,
            "too few jobs" if min(jobs_a, jobs_b) < MIN_JOBS else "no difference shown", percent, jobs_a, jobs_b,
        )  # fmt: skip
    if a.jobs and b.jobs:
        turn: Callable[[float], float] = (lambda x: 1 / x) if way == "rate" else (lambda x: x)
        found = compare_means([turn(x) for x in a.jobs], [turn(x) for x in b.jobs], level)
        value, low, high = _own_way(way, found.value, found.low, found.high)
        percent = found.percent_faster if speed else None
        verdict: Verdict = found.verdict if speed else _OTHER_WORDS.get(found.verdict, found.verdict)
        method = WELCH
        if (common := a.common + b.common) and low is not None and high is not None:
            method, low, high = WITH_GAIN, low * (1 - common), high * (1 + common)
            if low <= 1 <= high and verdict != "too few jobs":
                verdict = "no difference shown"
        return Ratio(
            scope, metric, base_unit(a.unit), a.value, b.value, value, low, high, level, method, verdict, percent,
            jobs_a, jobs_b,
        )  # fmt: skip
    value = b.value / a.value
    low, high = (b.low / a.high, b.high / a.low) if min(a.low, b.low) > 0 else (None, None)
    percent = _percent_faster(way, value)
    method = MIXED if a.jobs or b.jobs else DIGITS
    return Ratio(
        scope, metric, base_unit(a.unit), a.value, b.value, value, low, high, None, method, "too few jobs", percent,
        jobs_a, jobs_b,
    )  # fmt: skip


# For times, less is faster; for what is not a speed, it is just less.
_OTHER_WORDS: dict[str, Verdict] = {"faster": "less", "slower": "more"}


def _percent_faster(way: Sense, value: float) -> float | None:
    if way not in ("rate", "time"):
        return None
    return 100 * ((value if way == "rate" else 1 / value) - 1)


def _own_way(
    way: Sense, value: float, low: float | None, high: float | None
) -> tuple[float, float | None, float | None]:
    """Convert a ratio of times to one of rates."""
    if way != "rate":
        return value, low, high
    return 1 / value, 1 / high if high is not None else None, 1 / low if low is not None else None


# -- the figure per part of a machine


def _per(part: str, count: str) -> Callable[[Row, str], Amount | None]:
    def make(row: Row, metric: str) -> Amount | None:
        """Return the figure as measured, else by division; only rates of the whole job can be divided."""
        if f"{metric}_per_{part}" in row.figures:
            return row.figures[f"{metric}_per_{part}"]
        whole, number = row.figures.get(metric), row.number(count)
        divisible = whole is not None and sense(whole.unit) == "rate" and not _is_per_part(metric)
        return scaled(whole, 1 / number) if whole is not None and divisible and number else None

    return make


def _is_per_part(metric: str) -> bool:
    """Return whether a figure already applies to a part and cannot be divided."""
    return "_per_" in metric or metric.endswith(PER_DEVICE)


def _per_module(row: Row, metric: str) -> Amount | None:
    """Return the figure per card or module; only if it is known what the job counts as one device."""
    if f"{metric}_per_module" in row.figures:
        return row.figures[f"{metric}_per_module"]
    return _per("device", "devices")(row, metric) if row.get("device_scope") in ("device", "module") else None


def _per_watt(row: Row, metric: str) -> Amount | None:
    """Return work per joule, which equals speed per watt."""
    if _is_per_part(metric):
        return None
    for name in ENERGY_PER_SAMPLE:
        energy = row.figures.get(name)
        if energy is not None and metric == "throughput" and energy.low > 0:
            turned = tuple(1 / value for value in energy.jobs)
            return Amount(
                1 / energy.value, 1 / energy.high, 1 / energy.low, "samples/J", jobs=turned, common=energy.common
            )
    rate = row.figures.get(metric)
    power = next((row.figures[name] for name in POWER if name in row.figures), None)
    if rate is None or power is None or sense(rate.unit) != "rate" or power.low <= 0:
        return None
    paired = len(rate.jobs) == len(power.jobs)
    jobs = tuple(x / y for x, y in zip(rate.jobs, power.jobs, strict=True)) if paired else ()
    unit = rate.unit.replace("/s", "/J")
    value, low, high = rate.value / power.value, rate.low / power.high, rate.high / power.low
    return Amount(value, low, high, unit, jobs=jobs, common=power.common)


_SCOPES: dict[str, Callable[[Row, str], Amount | None]] = {
    "job": lambda row, metric: row.figures.get(metric),
    "device": _per("device", "devices"),
    "module": _per_module,
    "node": _per("node", "nodes"),
    "watt": _per_watt,
}


def sentence(ratio: Ratio, a: str, b: str) -> str:
    """Describe a ratio in one sentence."""
    part = {"job": "", "watt": " for the same power"}.get(ratio.scope, f" per {ratio.scope}")
    way = sense(ratio.unit)
    if way in ("other", "energy"):
        return _no_speed(ratio, a, b, part, "needs" if way == "energy" else "has")
    speed, low, high = _own_way("rate" if way == "time" else "time", ratio.value, ratio.low, ratio.high)
    bounds = _bounds(ratio, low, high)
    percent = abs(ratio.percent_faster or 0.0)
    word = "faster" if (ratio.percent_faster or 0.0) >= 0 else "slower"
    if ratio.verdict == "no difference shown":
        return f"no difference shown{part}: {b} is {short(speed)} times as fast as {a}{bounds}, {_chance(ratio)}"
    if ratio.verdict == "too few jobs":
        return (
            f"not ranked{part}, too few jobs: the figures alone give {b} {short(speed)} times the speed of {a}{bounds}"
        )
    return f"{b} is {short(speed)} times as fast as {a}{part} ({short(percent, 3)} % {word}){bounds}"


def _chance(ratio: Ratio) -> str:
    return "which may be chance or sensor error" if ratio.method == WITH_GAIN else "which may be chance"


def _no_speed(ratio: Ratio, a: str, b: str, part: str, verb: str) -> str:
    bounds = _bounds(ratio, ratio.low, ratio.high)
    says = f"{b} {verb} {short(ratio.value)} times the {ratio.metric} of {a}"
    if ratio.verdict == "too few jobs":
        return f"not ranked{part}, too few jobs: from the figures alone {says}{bounds}"
    if ratio.verdict == "no difference shown":
        return f"no difference shown{part}: {says}{bounds}, {_chance(ratio)}"
    return f"{says}{part}{bounds}"


def _bounds(ratio: Ratio, low: float | None, high: float | None) -> str:
    if low is None or high is None:
        if ratio.method == NOT_POSITIVE:
            return "; no interval, because the figure of a job is not above zero"
        return f"; no interval with fewer than {MIN_JOBS} jobs per side" if ratio.method in (WELCH, WITH_GAIN) else ""
    says = "printed digits allow" if ratio.level is None else f"{level_percent(ratio.level)} CI"
    return f", {says} {short(low)} to {short(high)}"


def level_percent(level: float) -> str:
    """Format a level with enough digits to differ from 100 %: 95 %, 98.8 %, 99.978 %."""
    digits = max(3, 2 - math.floor(math.log10(1 - level)))
    return f"{100 * level:.{digits}g} %"
