"""Ratios of one figure of two rows, for the whole job and per device, module, node and watt.

Knows which way is better and what a bound rests on: jobs, or printed digits. Whether a ratio may be given at all is not
decided here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from steelyard.analysis.rows import scaled
from steelyard.rules.row import Amount
from steelyard.rules.units import counted, unit_of
from steelyard.stats.ratio import MIN_JOBS, compare_means

if TYPE_CHECKING:
    from collections.abc import Callable

    from steelyard.contracts.record import Finding
    from steelyard.rules.row import Row
    from steelyard.stats.ratio import Verdict

Sense = Literal["rate", "time", "energy", "other"]
"""More is faster; less is faster; less is better; neither."""

LEVEL = 0.95
WELCH = "Welch on the jobs"
DIGITS = "printed digits only"
MIXED = "printed digits, and the interval of the measured jobs"
# By the names that quantities of records have, or may have once power is measured; the first that both sides have.
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
    """Of the interval; None where its bounds are those of printed digits."""
    method: str
    verdict: Verdict
    """What B is against A: of rates and times only. Of energies, `faster` means less."""
    percent_faster: float | None
    """B does so many percent more work in the same time than A; negative: slower. None for what is no speed."""
    jobs_a: int
    jobs_b: int
    findings: tuple[Finding, ...] = ()
    """What must be known wherever this ratio goes; those that block come first."""


def sense(unit: str) -> Sense:
    """Which way is better for a figure in this unit."""
    known = unit_of(unit)
    kind = known[0] if known else ""
    if kind in ("rate", "per_energy"):
        return "rate"
    if unit == "J/sample" or kind == "energy":
        return "energy"
    return "time" if kind == "time" else "other"


def base_unit(unit: str) -> str:
    """The unit that a figure's value is in, whatever it was printed in."""
    known = unit_of(unit)
    if known is None or known[0] in ("ratio", "count"):
        return unit
    bases = {"time": "s", "energy": "J", "power": "W", "rate": f"{counted(unit)}/s", "per_energy": f"{counted(unit)}/J"}
    return bases[known[0]]


def ratios(a: Row, b: Row, metric: str, level: float = LEVEL) -> list[Ratio]:
    """The ratio of the whole job and those per device, module, node and watt, as far as both sides know them."""
    found = [made for scope, make in _SCOPES.items() if (made := _one(scope, make, a, b, metric, level)) is not None]
    # For one device on one node on each side, all say the same.
    different: list[Ratio] = []
    for ratio in found:
        if not any((ratio.a, ratio.b) == (other.a, other.b) for other in different):
            different.append(ratio)
    return different


def _one(
    scope: str, make: Callable[[Row, str], Amount | None], a: Row, b: Row, metric: str, level: float
) -> Ratio | None:
    first, second = make(a, metric), make(b, metric)
    if first is None or second is None or min(first.value, second.value) <= 0:
        return None
    return divide(scope, metric, first, second, level)


def divide(scope: str, metric: str, a: Amount, b: Amount, level: float = LEVEL) -> Ratio:
    """B over A. With jobs on both sides Welch's interval; a printed figure is one job and has only its digits."""
    way = sense(a.unit)
    jobs_a, jobs_b = max(1, len(a.jobs)), max(1, len(b.jobs))
    speed = way in ("rate", "time")
    if a.jobs and b.jobs:
        turn: Callable[[float], float] = (lambda x: 1 / x) if way == "rate" else (lambda x: x)
        found = compare_means([turn(x) for x in a.jobs], [turn(x) for x in b.jobs], level)
        value, low, high = _own_way(way, found.value, found.low, found.high)
        percent = found.percent_faster if speed else None
        return Ratio(
            scope, metric, base_unit(a.unit), a.value, b.value, value, low, high, level, WELCH, found.verdict, percent,
            jobs_a, jobs_b,
        )  # fmt: skip
    value = b.value / a.value
    low, high = (b.low / a.high, b.high / a.low) if min(a.low, b.low) > 0 else (None, None)
    percent = 100 * ((value if way == "rate" else 1 / value) - 1) if speed else None
    method = MIXED if a.jobs or b.jobs else DIGITS
    return Ratio(
        scope, metric, base_unit(a.unit), a.value, b.value, value, low, high, None, method, "too few jobs", percent,
        jobs_a, jobs_b,
    )  # fmt: skip


def _own_way(
    way: Sense, value: float, low: float | None, high: float | None
) -> tuple[float, float | None, float | None]:
    """A ratio of times as one of rates."""
    if way != "rate":
        return value, low, high
    return 1 / value, 1 / high if high is not None else None, 1 / low if low is not None else None


# -- the same figure for other parts of a machine


def _job(row: Row, metric: str) -> Amount | None:
    return row.figures.get(metric)


def _per(part: str, count: str) -> Callable[[Row, str], Amount | None]:
    def make(row: Row, metric: str) -> Amount | None:
        """As measured, else by division; only rates of the whole job can be divided."""
        if f"{metric}_per_{part}" in row.figures:
            return row.figures[f"{metric}_per_{part}"]
        whole, number = row.figures.get(metric), row.number(count)
        divisible = whole is not None and sense(whole.unit) == "rate" and "_per_" not in metric
        return scaled(whole, 1 / number) if whole is not None and divisible and number else None

    return make


def _per_module(row: Row, metric: str) -> Amount | None:
    """A card or module; only where it is known what the job counts as one device."""
    if f"{metric}_per_module" in row.figures:
        return row.figures[f"{metric}_per_module"]
    return _per("device", "devices")(row, metric) if row.get("device_scope") in ("device", "module") else None


def _per_watt(row: Row, metric: str) -> Amount | None:
    """Work for a joule; the same as speed for a watt."""
    for name in ENERGY_PER_SAMPLE:
        energy = row.figures.get(name)
        if energy is not None and metric == "throughput" and energy.low > 0:
            turned = tuple(1 / value for value in energy.jobs)
            return Amount(1 / energy.value, 1 / energy.high, 1 / energy.low, "samples/J", jobs=turned)
    rate = row.figures.get(metric)
    power = next((row.figures[name] for name in POWER if name in row.figures), None)
    if rate is None or power is None or sense(rate.unit) != "rate" or power.low <= 0:
        return None
    paired = len(rate.jobs) == len(power.jobs)
    jobs = tuple(x / y for x, y in zip(rate.jobs, power.jobs, strict=True)) if paired else ()
    unit = rate.unit.replace("/s", "/J")
    return Amount(rate.value / power.value, rate.low / power.high, rate.high / power.low, unit, jobs=jobs)


_SCOPES: dict[str, Callable[[Row, str], Amount | None]] = {
    "job": _job,
    "device": _per("device", "devices"),
    "module": _per_module,
    "node": _per("node", "nodes"),
    "watt": _per_watt,
}


def sentence(ratio: Ratio, a: str, b: str) -> str:
    """What a ratio says, in words that need no explanation."""
    part = {"job": "", "watt": " for the same power"}.get(ratio.scope, f" per {ratio.scope}")
    way = sense(ratio.unit)
    if way == "other":
        return f"{b} has {ratio.value:.4g} times the {ratio.metric} of {a}{part}{_bounds(ratio, ratio.low, ratio.high)}"
    if way == "energy":
        return f"{b} needs {ratio.value:.4g} times the energy of {a}{part}{_bounds(ratio, ratio.low, ratio.high)}"
    speed, low, high = _own_way("rate" if way == "time" else "time", ratio.value, ratio.low, ratio.high)
    bounds = _bounds(ratio, low, high)
    percent = abs(ratio.percent_faster or 0.0)
    word = "faster" if (ratio.percent_faster or 0.0) >= 0 else "slower"
    if ratio.verdict == "no difference shown":
        return f"no difference shown{part}: {b} is {speed:.4g} times as fast as {a}{bounds}, which may be chance"
    if ratio.verdict == "too few jobs":
        return f"not ranked{part}, too few jobs: the figures alone give {b} {speed:.4g} times the speed of {a}{bounds}"
    return f"{b} is {speed:.4g} times as fast as {a}{part} ({percent:.3g} % {word}){bounds}"


def _bounds(ratio: Ratio, low: float | None, high: float | None) -> str:
    if low is None or high is None:
        return f"; no interval from fewer than {MIN_JOBS} jobs on a side" if ratio.method == WELCH else ""
    kind = f"{ratio.level:.3g}" if ratio.level is not None else ""
    says = f"{100 * float(kind):.4g} % interval" if kind else "printed digits allow"
    return f", {says} {low:.4g} to {high:.4g}"
