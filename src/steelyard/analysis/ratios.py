"""Ratios of one figure of two rows, for the whole job and per device, module, node and watt.

Bounds come from jobs or from printed digits. `compare` decides whether a ratio may be given at all, and
`terminal.ratios` puts it into text.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from steelyard.analysis.rows import scaled
from steelyard.rules.table.row import Amount
from steelyard.rules.table.settings import of_steps
from steelyard.rules.table.units import base_unit, unit_of
from steelyard.stats.ratio import DRIFT, MIN_JOBS, JobTime, compare_jobs

if TYPE_CHECKING:
    from collections.abc import Callable

    from steelyard.contracts.finding import Finding
    from steelyard.rules.table.row import Row
    from steelyard.stats.ratio import Answer, Unit

Verdict = Literal["faster", "slower", "more", "less", "equal within margin", "no difference shown", "too few jobs"]
"""B compared with A: faster or slower for rates and times, more or less for everything else."""
Sense = Literal["rate", "time", "energy", "other"]
"""rate: more is faster; time: less is faster; energy: less is better; other: neither."""

Method = Literal["jobs", "nodes", "same nodes", "digits", "digits and jobs", "not positive"]
"""What the interval comes from.

jobs, nodes: Welch's t. same nodes: Student's t on nodes that both sides ran on. digits: printed digits on both sides;
digits and jobs: on one side. not positive: no interval, because the figure of a job is not above zero.
"""

LEVEL = 0.95
# Figures per device, whatever the number of devices.
PER_DEVICE = ("_device", "bandwidth", "utilisation")
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
    method: Method
    verdict: Verdict
    percent_faster: float | None
    """B does this many percent more work in the same time than A; negative: slower. None if it is not a speed."""
    jobs_a: int
    jobs_b: int
    answer: Answer = "ratio"
    """bound: only the end of the interval that is nearer to 1 counts, because of a trend or a drift."""
    sensor_error: bool = False
    """Whether the interval includes a sensor error that the jobs of a side share."""
    trends: tuple[float | None, float | None] = (None, None)
    """Trends in the jobs of A and B that the interval allows for, as changes of the logarithm. None: no trend shown."""
    drift: float | None = None
    """Change of the nodes that the interval allows for, because A and B ran one after the other. None: they did not."""
    margin: float | None = None
    """Sides that differ by less than this share count as equal; None: not asked."""
    findings: tuple[Finding, ...] = ()
    """Findings to show wherever this ratio is shown; errors come first."""

    @property
    def bound(self) -> float | None:
        """Return the end of the interval that is nearer to 1 if only this bound counts."""
        if self.answer != "bound" or self.low is None or self.high is None:
            return None
        return self.low if self.low > 1 else self.high


def sense(unit: str) -> Sense:
    """Return which direction is better for a figure in this unit."""
    known = unit_of(unit)
    kind = known[0] if known else ""
    if kind in ("rate", "per_energy"):
        return "rate"
    if unit == "J/sample" or kind == "energy":
        return "energy"
    return "time" if kind == "time" else "other"


@dataclass(frozen=True)
class RatioQuestion:
    """What to answer about two sides."""

    level: float = LEVEL
    margin: float | None = None
    """Sides that differ by less than this share count as equal."""
    drift: float = DRIFT
    """Change of a node to allow for if the sides ran on it one after the other."""


def ratios(
    a: Row,
    b: Row,
    metric: str,
    asked: RatioQuestion = RatioQuestion(),
    *,
    only_job: bool = False,
) -> list[Ratio]:
    """Return the ratio of the whole job and those per device, module, node and watt, if both sides have them."""
    a, b = _by_one_energy(a, b)
    found = []
    for scope, make in list(_SCOPES.items())[: 1 if only_job else None]:
        first, second = make(a, metric), make(b, metric)
        if first is not None and second is not None and min(first.value, second.value) > 0:
            found.append(_divide(scope, metric, (first, a.jobs), (second, b.jobs), asked))
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
        if any(amount.common for amount in row.figures.values())
        else row
        for row in (a, b)
    )
    return first, second


def _divide(
    scope: str,
    metric: str,
    side_a: tuple[Amount, tuple[JobTime, ...]],
    side_b: tuple[Amount, tuple[JobTime, ...]],
    asked: RatioQuestion,
) -> Ratio:
    """Return B over A. With jobs on both sides an interval; a printed figure counts as one job with its digits."""
    (a, at_a), (b, at_b) = side_a, side_b
    way = sense(a.unit)
    base = Ratio(
        scope=scope,
        metric=metric,
        unit=base_unit(a.unit),
        a=a.value,
        b=b.value,
        value=b.value / a.value,
        low=None,
        high=None,
        level=None,
        method="digits and jobs" if a.jobs or b.jobs else "digits",
        verdict="too few jobs",
        percent_faster=_percent_faster(way, b.value / a.value),
        jobs_a=max(1, len(a.jobs)),
        jobs_b=max(1, len(b.jobs)),
    )
    if a.jobs and b.jobs and min(*a.jobs, *b.jobs) <= 0:
        # Shares and qualities of single jobs may be zero; the interval uses logarithms.
        few = min(base.jobs_a, base.jobs_b) < MIN_JOBS
        return replace(base, method="not positive", verdict="too few jobs" if few else "no difference shown")
    if a.jobs and b.jobs:
        sides = _placed(metric, a, at_a), _placed(metric, b, at_b)
        return _by_jobs(base, way, sides, a.common + b.common, asked)
    known = min(a.low, b.low) > 0 and max(a.high, b.high) < math.inf
    return replace(base, low=b.low / a.high, high=b.high / a.low) if known else base


def _placed(metric: str, amount: Amount, jobs: tuple[JobTime, ...]) -> list[JobTime]:
    """Return the jobs of a figure with where and when they ran; rates as times.

    Memory and quality do not change with the time of day. The trend of step times is that of rates only.
    """
    way = sense(amount.unit)
    values = [1 / value if way == "rate" else value for value in amount.jobs]
    if len(jobs) != len(values):
        return [JobTime(value) for value in values]
    if way == "other":
        return [JobTime(value, job.node) for value, job in zip(values, jobs, strict=True)]
    steps = of_steps(metric, amount)
    return [
        JobTime(value, job.node, job.start_s, job.end_s, job.trend if steps else None)
        for value, job in zip(values, jobs, strict=True)
    ]


def _by_jobs(
    base: Ratio, way: Sense, sides: tuple[list[JobTime], list[JobTime]], common: float, asked: RatioQuestion
) -> Ratio:
    """Return the ratio with its interval over jobs; `common`: the error that all jobs of a side share."""
    found = compare_jobs(*sides, asked.level, margin=asked.margin, drift=asked.drift, common=common)
    value, low, high = _own_way(way, found.value, found.low, found.high)
    speed = way in ("rate", "time")
    verdict: Verdict = found.verdict if speed else _OTHER_WORDS.get(found.verdict, found.verdict)
    return replace(
        base,
        value=value,
        low=low,
        high=high,
        level=asked.level,
        method=_METHODS[found.unit],
        verdict=verdict,
        percent_faster=found.percent_faster if speed else None,
        answer=found.answer,
        sensor_error=bool(common),
        trends=found.trends,
        drift=found.drift,
        margin=asked.margin,
    )


_METHODS: dict[Unit, Method] = {"job": "jobs", "node": "nodes", "node, paired": "same nodes"}
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
    return inverse(value, low, high) if way == "rate" else (value, low, high)


def inverse(value: float, low: float | None, high: float | None) -> tuple[float, float | None, float | None]:
    """Return the ratio of A to B from that of B to A."""
    return 1 / value, None if high is None else 1 / high, None if low is None else 1 / low


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
