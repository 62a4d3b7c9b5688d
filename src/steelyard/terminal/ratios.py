"""A ratio of two rows as text: its sentence, its bounds, and what its interval comes from."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from steelyard.analysis.ratios import LEVEL, inverse, sense
from steelyard.numbers import change, short
from steelyard.stats.ratio import MIN_JOBS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from steelyard.analysis.ratios import Method, Ratio

FEW_TIMES = 3.0
"""From this factor on, percentages say less than "x times"."""
OF_A_STEP = "step_time"
METHODS: dict[Method, str] = {
    "jobs": "Welch's t on jobs",
    "nodes": "Welch's t on nodes",
    "same nodes": "Student's t on nodes that both sides ran on",
    "digits": "printed digits only",
    "digits and jobs": "printed digits, and the interval of the measured jobs",
    "not positive": "none, because the figure of a job is not above zero",
}


def method_text(ratio: Ratio) -> str:
    """Say what the interval comes from."""
    common = ", plus the sensor error common to the jobs of each side"
    return METHODS[ratio.method] + (common if ratio.sensor_error else "")


def allowed_for(ratio: Ratio) -> Iterator[str]:
    """Say what the interval allows for, besides the spread between jobs or nodes."""
    for name, trend in zip("AB", ratio.trends, strict=True):
        if trend is not None:
            yield f"a trend of {short(abs(100 * math.expm1(trend)), 2)} % in the jobs of {name}"
    if ratio.drift is not None:
        yield f"a drift of {short(100 * ratio.drift, 2)} %, because A and B ran one after the other"


def sentence(ratio: Ratio, a: str, b: str) -> str:
    """Describe a ratio in one sentence."""
    part = {"job": "", "watt": " for the same power"}.get(ratio.scope, f" per {ratio.scope}")
    way = sense(ratio.unit)
    if way in ("other", "energy"):
        return _no_speed(ratio, a, b, part, "needs" if way == "energy" else "has")
    if ratio.metric.startswith(OF_A_STEP):
        # Steps may have different numbers of samples: a longer one need not be slower work.
        return _of_step(ratio, a, b)
    times = ratio.value, ratio.low, ratio.high
    speed, low, high = inverse(*times) if way == "time" else times
    bounds = _bounds(ratio, low, high)
    equal = short(speed) == "1"
    says = f"{a} and {b} are equally fast" if equal else f"{b} is {short(speed)} times as fast as {a}"
    if ratio.bound is not None:
        # A bound on the time of B over that of A is one on its speed, turned round.
        fast = ratio.bound if way == "rate" else 1 / ratio.bound
        return f"{b} is {bounded(fast)} times as fast as {a}{part}, {_level(ratio)} bound{_allowing(ratio)}"
    if ratio.verdict == "equal within margin":
        return f"equal within {short(100 * (ratio.margin or 0.0), 3)} %{part}: {says}{bounds}"
    if ratio.verdict == "no difference shown":
        chance = "" if equal else f", {_chance(ratio)}"
        return f"no difference shown{part}: {says}{chance}{_largest(low, high)}{bounds}"
    if ratio.verdict == "too few jobs":
        return (
            f"not ranked{part}, too few jobs: the figures alone give {b} {short(speed)} times the speed of {a}{bounds}"
        )
    percent = abs(ratio.percent_faster or 0.0)
    word = "faster" if (ratio.percent_faster or 0.0) >= 0 else "slower"
    by = f" ({short(percent, 3)} % {word})" if speed < FEW_TIMES else ""
    return f"{says}{part}{by}{bounds}"


def _of_step(ratio: Ratio, a: str, b: str) -> str:
    bounds = _bounds(ratio, ratio.low, ratio.high)
    equal = short(ratio.value) == "1"
    says = f"a step of {b} takes {short(ratio.value)} times as long as one of {a}"
    says = f"steps of {a} and {b} take equally long" if equal else says
    if ratio.bound is not None:
        return (
            f"a step of {b} takes {bounded(ratio.bound)} times as long as one of {a}, {_level(ratio)} bound"
            f"{_allowing(ratio)}"
        )
    if ratio.verdict == "equal within margin":
        return f"equal within {short(100 * (ratio.margin or 0.0), 3)} %: {says}{bounds}"
    if ratio.verdict == "no difference shown":
        chance = "" if equal else f", {_chance(ratio)}"
        return f"no difference shown: {says}{chance}{_largest(ratio.low, ratio.high)}{bounds}"
    if ratio.verdict == "too few jobs":
        return f"not ranked, too few jobs: from the figures alone {says}{bounds}"
    return f"{says}{bounds}"


def bounded(value: float) -> str:
    """Format a bound on a ratio."""
    return f"at {'least' if value > 1 else 'most'} {short(value)}"


def _largest(low: float | None, high: float | None) -> str:
    """Say how large a difference that was not shown may be."""
    if low is None or high is None or low <= 0:
        return ""
    return f"; a difference is at most {change(max(high, 1 / low) - 1)}"


def _chance(ratio: Ratio) -> str:
    return "which may be chance or sensor error" if ratio.sensor_error else "which may be chance"


def _no_speed(ratio: Ratio, a: str, b: str, part: str, verb: str) -> str:
    bounds = _bounds(ratio, ratio.low, ratio.high)
    says = f"{b} {verb} {short(ratio.value)} times the {ratio.metric} of {a}"
    if ratio.bound is not None:
        most = bounded(ratio.bound)
        return f"{b} {verb} {most} times the {ratio.metric} of {a}{part}, {_level(ratio)} bound{_allowing(ratio)}"
    if ratio.verdict == "too few jobs":
        return f"not ranked{part}, too few jobs: from the figures alone {says}{bounds}"
    if ratio.verdict == "equal within margin":
        return f"equal within {short(100 * (ratio.margin or 0.0), 3)} %{part}: {says}{bounds}"
    if ratio.verdict == "no difference shown":
        return f"no difference shown{part}: {says}, {_chance(ratio)}{bounds}"
    return f"{says}{part}{bounds}"


def _bounds(ratio: Ratio, low: float | None, high: float | None) -> str:
    if low is None or high is None:
        if ratio.method == "not positive":
            return "; no interval, because the figure of a job is not above zero"
        no_jobs = ratio.method in ("digits", "digits and jobs")
        return "" if no_jobs else f"; no interval with fewer than {MIN_JOBS} jobs per side"
    says = "printed digits allow" if ratio.level is None else f"{_level(ratio)} CI"
    return f", {says} {short(low)} to {short(high)}{_allowing(ratio)}"


def _allowing(ratio: Ratio) -> str:
    causes = " and ".join(allowed_for(ratio))
    return f", allowing for {causes}" if causes else ""


def _level(ratio: Ratio) -> str:
    return level_percent(ratio.level or LEVEL)


def level_percent(level: float) -> str:
    """Format a level with enough digits to differ from 100 %: 95 %, 98.8 %, 99.98 %."""
    digits = max(3, -math.floor(math.log10(1 - level)))
    return f"{100 * level:.{digits}g} %"
