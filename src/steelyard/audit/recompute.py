"""Works a claim's figures out again from its rows, in numbers and in words. Knows sums and rounding, no verdict."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from steelyard.audit.claims import figure, sides
from steelyard.audit.selecting import metric_of, pairs_of, same
from steelyard.errors import InputError, Problem
from steelyard.rules.claim import Reading, Span
from steelyard.rules.table.relations import SAMPLES
from steelyard.rules.table.settings import SETTINGS
from steelyard.rules.table.units import counted as items_of
from steelyard.rules.table.units import unit_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from steelyard.audit.claims import Claim, Efficiency, Equal, Faster, PairClaim, Times
    from steelyard.rules.table.row import Amount, Row, RowTable

SHOWN = 3
HUGE = 1e12
"""From here on digits are only noise."""
# Settings by which people tell rows apart, the plainest first.
TELLING = ("model", "dataset", "devices", "global_batch", "batch_per_device", "precision", "workers_per_device")

Kind = Literal["time", "rate", "other"]


@dataclass(frozen=True)
class Worked:
    """A claim's figures, worked out."""

    meant: tuple[Reading, ...] = ()
    other: tuple[Reading, ...] = ()
    faults: tuple[str, ...] = ()
    hint: str = ""
    words: str = ""
    """What the rows give where no single sum says it."""
    told: bool = True
    """Whether the words hold the faults already."""
    notes: tuple[str, ...] = ()
    pairs: tuple[tuple[Row, Row], ...] = ()
    """Of a claim on pairs: the row it speaks of, then the one it is held against."""
    rows: tuple[Row, ...] = ()
    metric: str = ""

    @property
    def place(self) -> str:
        """Where a reader finds the first row."""
        return (self.pairs[0][0] if self.pairs else self.rows[0]).place


# -- figures


def kind_of(amount: Amount) -> Kind:
    """Whether less is faster, more is faster, or neither is about speed."""
    known = unit_of(amount.unit)
    if known is not None and known[0] == "time":
        return "time"
    return "rate" if known is not None and known[0] in ("rate", "per_energy") else "other"


_LESS = ("loss", "error", "perplexity", "latency")
_MORE = ("accuracy", "score", "speedup", "efficiency", "utilisation", "utilization", "f1", "map", "iou", "bleu")


def better(metric: str, amount: Amount) -> Literal["more", "less"] | None:
    """Whether more or less of a figure is better, by its unit, else by its name; None where neither tells."""
    kind = (unit_of(amount.unit) or ("", 1.0))[0]
    if kind in ("time", "energy", "power"):
        return "less"
    if kind in ("rate", "per_energy"):
        return "more"
    words = re.split(r"[^a-z0-9]+", metric.casefold())
    if any(word in words for word in _LESS):
        return "less"
    return "more" if any(word in words for word in _MORE) else None


def over(a: Amount, b: Amount) -> Span:
    """What a / b may be. Figures of other kinds, or rates of other things, have no ratio."""
    kinds = [(unit_of(amount.unit) or ("", 1.0))[0] for amount in (a, b)]
    things = ["samples" if (item := items_of(amount.unit)) in SAMPLES else item for amount in (a, b)]
    if kinds[0] != kinds[1] or things[0] != things[1]:
        raise InputError(f"cannot hold {a.unit or 'a ratio'} against {b.unit or 'a ratio'}")
    if b.low <= 0 or a.low < 0:
        raise InputError(f"cannot divide {a.text or a.value} by {b.text or b.value}: figures must be above zero")
    return Span(a.low / b.high, a.high / b.low)


def speed_ratio(a: Amount, b: Amount) -> Reading:
    """How many times as fast A is as B; of what is not about speed, how many times as large."""
    return quotient(b, a) if kind_of(a) == "time" else quotient(a, b)


def quotient(top: Amount, bottom: Amount) -> Reading:
    """One figure over another."""
    span = over(top, bottom)
    result = times(top.value / bottom.value)
    return Reading((span,), f"{digits(top, bottom)}/{digits(bottom, top)} = {result}", result=result)


def lead(metric: str, a: Amount, b: Amount) -> Reading | None:
    """How far A is ahead of B, as a ratio above 1 where it is; None where nobody knows which way is better."""
    way = better(metric, a)
    if way is None:
        return None
    return quotient(b, a) if way == "less" else quotient(a, b)


def digits(amount: Amount, beside: Amount | None = None) -> str:
    """A figure as printed, thousands apart; with its unit where it stands beside one of another unit."""
    if amount.text:
        whole, dot, rest = amount.text.partition(".")
        text = (f"{int(whole):,}" if whole.isdigit() else whole) + dot + rest
    else:
        value = amount.value / unit_factor(amount)
        text = f"{value:,.4g}" if value < 1000 else f"{value:,.0f}"
    return text if beside is None or beside.unit == amount.unit else f"{text} {amount.unit}"


def unit_factor(amount: Amount) -> float:
    """From its printed unit to the base unit."""
    known = unit_of(amount.unit)
    return known[1] if known else 1.0


def times(value: float) -> str:
    """A ratio for people."""
    return f"{value:.3g}x" if not 1000 <= value < HUGE else f"{value:,.0f}x"


def percent(value: float) -> str:
    """A fraction as per cent."""
    if abs(value) >= HUGE:
        return f"{100 * value:.3g} %"
    return f"{100 * value:.1f} %" if abs(value) < 10 else f"{100 * value:,.0f} %"


def amount_of(value: float) -> str:
    """A count for people."""
    return f"{value:,.0f}" if abs(value) < HUGE else f"{value:.3g}"


def apart(row: Row, rows: Sequence[Row]) -> str:
    """A row named by as few settings as tell it from the others; by its place where none do."""
    shown: list[str] = []
    left = [other for other in rows if other is not row]
    for key in dict.fromkeys((*TELLING, *SETTINGS)):
        others = [other for other in left if same(other.get(key), row.get(key))]
        if len(others) < len(left) and row.get(key) is not None:
            shown.append(named(key, row))
            left = others
    return " ".join(shown) if shown and not left else row.place


def named(key: str, row: Row) -> str:
    """A setting for people: `4 devices`, `batch_per_device 32`, `ResNet50`."""
    number = row.number(key)
    if number is None:
        return str(row.get(key))
    return counted(number) if key == "devices" else f"{key} {number:,g}"


def counted(devices: float) -> str:
    """How many devices, for people."""
    return "1 device" if devices == 1 else f"{devices:,g} devices"


# -- claims on pairs


def work_times(claim: Times, table: RowTable) -> Worked:
    """A is r times B."""
    pairs, metric, alone = pairs_and_metric(claim, table)
    readings = []
    for pair in pairs:
        a, b = two_figures(claim, metric, pair)
        if claim.relation == "as fast":
            readings.append(speed_ratio(a, b))
        else:
            readings.append(quotient(b, a) if claim.relation == "less" else quotient(a, b))
    return of_pairs(pairs, metric, (merged(claim, readings, pairs, alone, times),))


def work_faster(claim: Faster, table: RowTable) -> Worked:
    """A is faster than B, on every pair."""
    pairs, metric, alone = pairs_and_metric(claim, table)
    about_speed(claim, metric, pairs[0][0].figures[metric])
    readings = [speed_ratio(*two_figures(claim, metric, pair)) for pair in pairs]
    slower = [(pair, found) for pair, found in zip(pairs, readings, strict=True) if found.values[0].high <= 1]
    firsts = [a for a, _ in pairs]
    faults = [
        f"{found.words}{f' on {apart(pair[0], firsts)}' if len(pairs) > 1 else ''}, which is not faster"
        for pair, found in slower[:SHOWN]
    ]
    faults += [f"{len(slower) - SHOWN} more"] if len(slower) > SHOWN else []
    worked = of_pairs(pairs, metric, (merged(claim, readings, pairs, alone, times),))
    return replace(worked, faults=(*faults, *_check_two_printed(claim, metric, pairs[0])))


def _check_two_printed(claim: Faster, metric: str, pair: tuple[Row, Row]) -> list[str]:
    """Where the claim prints the figures of both sides, `about 3,000 against 270`: those that the rows do not have."""
    said = sides(claim)
    if len(said) != 2 or claim.over:
        return []
    found = []
    for text, amount in zip(said, two_figures(claim, metric, pair), strict=True):
        stated = figure(replace(claim, published=text))
        if not stated.low.meets(in_unit(amount, stated.unit)):
            found.append(f"{digits(amount)} where {text} is printed")
    return found


def about_speed(claim: Claim, metric: str, amount: Amount) -> None:
    """Refuse to call an energy or an accuracy fast."""
    if kind_of(amount) == "other":
        problem = Problem(
            "metric", f"{metric} in {amount.unit or 'no unit'} is not about speed", 'kind = "percent" with more or less'
        )
        raise InputError(f"claim {claim.id} is about speed", problems=(problem,))


def work_efficiency(claim: Efficiency, table: RowTable) -> Worked:
    """Speed-up over how many times the devices."""
    pairs, metric, alone = pairs_and_metric(claim, table)
    readings, hints = [], []
    for pair in pairs:
        gain = speed_ratio(*two_figures(claim, metric, pair))
        share = of_a_device(claim, metric, *pair)
        readings.append(efficiency(gain, share))
        hints += _guess_divisor(claim, gain, share.many) if share.whole else []
    worked = of_pairs(pairs, metric, (merged(claim, readings, pairs, alone, percent),))
    clean = _find_cleaner_base(claim, table, pairs[0], metric) if len(pairs) == 1 else ()
    return replace(worked, hint="; ".join(hints[:SHOWN]), notes=clean)


@dataclass(frozen=True)
class RatioPart:
    """What turns a ratio of figures into one of a device: devices, and what else a figure counts."""

    factor: float
    words: str
    many: float
    whole: bool = True
    """Whether the figure is of the whole job, so that it is divided by nothing but the devices."""


def of_a_device(claim: Claim, metric: str, a: Row, b: Row) -> RatioPart:
    """How many times the devices A has, and what its figure counts already."""
    many = devices(claim, a) / devices(claim, b)
    on = f"on {many:g} times the devices" if many != 1 else "on as many devices"
    if metric.endswith("_per_device"):
        return RatioPart(1.0, "per device", many, whole=False)
    if metric.endswith("_per_node"):
        nodes = needed(claim, a, "nodes") / needed(claim, b, "nodes")
        return RatioPart(nodes / many, f"per node, of {nodes:g} times the nodes {on}", many, whole=False)
    if metric.startswith("step_time"):
        work = _count_step_samples(claim, a) / _count_step_samples(claim, b)
        return RatioPart(work / many, f"a step of {work:g} times the samples {on}", many, whole=False)
    return RatioPart(1 / many, on, many)


def efficiency(gain: Reading, share: RatioPart) -> Reading:
    """A speed-up as the share of a device that is left."""
    (ratio,) = gain.values
    span = Span(ratio.low * share.factor, ratio.high * share.factor)
    result = percent(middle(span))
    return Reading((span,), f"{gain.words} {share.words} = {result}", result=result)


def _count_step_samples(claim: Claim, row: Row) -> float:
    """Samples of one step of the whole job: its time says nothing of speed without them."""
    if batch := row.number("global_batch"):
        return batch
    return needed(claim, row, "batch_per_device") * devices(claim, row) * (row.number("grad_accumulation") or 1)


def _guess_divisor(claim: Claim, gain: Reading, many: float) -> list[str]:
    """The whole number that the printed efficiency was divided by, if there is one."""
    if not claim.published:
        return []
    stated, span = figure(claim).low, gain.values[0]
    if stated.low <= 0:
        return []
    least, most = math.ceil(span.low / stated.high), math.floor(span.high / stated.low)
    # Where several would do, none of them explains anything.
    if least != most or most in (0, many):
        return []
    value = middle(span)
    share = percent(value / most)
    if most == 1:
        return [f"{claim.published} is the speed-up itself, not divided by {many:g}"]
    return [f"{times(value)[:-1]}/{most} = {share}, so it was divided by {most}, not by {many:g}"]


def _find_cleaner_base(claim: Efficiency, table: RowTable, pair: tuple[Row, Row], metric: str) -> tuple[str, ...]:
    """Another row from which only the devices changed, where the claimed base is not such a row."""
    free = ("devices", "nodes", "global_batch")
    row = pair[0]
    keys = [key for key, role in SETTINGS.items() if key not in free and role != "evidence"]

    def clean(other: Row) -> bool:
        return metric in other.figures and all(
            other.get(key) is None if row.get(key) is None else same(other.get(key), row.get(key)) for key in keys
        )

    if clean(pair[1]):
        return ()
    fewer = [other for other in table.rows if clean(other) and devices(claim, other) < devices(claim, row)]
    if not fewer:
        return ()
    base = min(fewer, key=lambda other: devices(claim, other))
    gain = speed_ratio(row.figures[metric], base.figures[metric])
    found = efficiency(gain, of_a_device(claim, metric, row, base))
    count = f"{counted(devices(claim, row))} against {devices(claim, base):g}"
    return (f"with nothing else changed, {count}: {gain.words}, an efficiency of {found.result}",)


def work_equal(claim: Equal, table: RowTable) -> Worked:
    """A and B are equal within a margin; what is printed is the change from B to A."""
    pairs, metric, alone = pairs_and_metric(claim, table)
    readings, faults = [], []
    for pair in pairs:
        a, b = two_figures(claim, metric, pair)
        ratio, result = over(a, b), percent(a.value / b.value - 1)
        span, within = Span(ratio.low - 1, ratio.high - 1), claim.within
        reading = Reading((span,), f"({digits(a, b)}-{digits(b, a)})/{digits(b, a)} = {result}", result=result)
        readings.append(reading)
        # A margin that is not stated cannot be exceeded; the printed change can be wrong all the same.
        if within is not None and (span.low > within or span.high < -within):
            faults.append(f"{reading.words}, beyond {percent(within)}")
        if within is None and not claim.published and (span.low > 0 or span.high < 0):
            faults.append(f"{reading.words}, more than rounding explains")
    worked = of_pairs(pairs, metric, (merged(claim, readings, pairs, alone, percent),))
    return replace(worked, faults=few(faults))


# -- shared


def stated_span(claim: Claim) -> Span:
    """What the printed figure allows; of a range, from its lower end to its upper one."""
    stated = figure(claim)
    return Span(stated.low.low, stated.high.high)


def devices(claim: Claim, row: Row) -> float:
    """Of a row; InputError where they are unknown."""
    return needed(claim, row, "devices")


def needed(claim: Claim, row: Row, key: str) -> float:
    """A number without which a claim cannot be worked out."""
    found = row.number(key)
    if not found:
        problem = Problem(row.place, f"{key} is unknown", f"a table with the column {key}")
        raise InputError(f"claim {claim.id} needs {key} of its rows", problems=(problem,))
    return found


def few(faults: Sequence[str], shown: int = SHOWN) -> tuple[str, ...]:
    """The first few of what is wrong, and how many more there are."""
    return (*faults[:shown], f"{len(faults) - shown} more") if len(faults) > shown else tuple(faults)


def in_unit(amount: Amount, unit: str) -> Span:
    """A figure in the unit that a claim prints, or in its own where the claim prints none or one of another kind."""
    asked, own = unit_of(unit) if unit else None, unit_of(amount.unit)
    factor = asked[1] if asked and own and asked[0] == own[0] else unit_factor(amount)
    return Span(amount.low / factor, amount.high / factor)


def other_unit(amount: Amount, unit: str) -> str:
    """Why what is printed in a unit cannot be what a row has; empty where it can."""
    asked, own = unit_of(unit) if unit else None, unit_of(amount.unit)
    alike = asked and own and asked[0] == own[0] and items_of(unit) == items_of(amount.unit)
    return f"{amount.unit}, where {unit} is printed" if unit and unit != amount.unit and not alike else ""


def wrong_range(claim: Claim, figures: Sequence[Amount]) -> list[str]:
    """Where the printed range is not that of the figures."""
    stated = figure(claim)
    if wrong := other_unit(figures[0], stated.unit):
        return [wrong]
    values = sorted(figures, key=lambda amount: amount.value)
    return [
        f"{digits(amount)} {amount.unit} where {claim.published} is printed"
        for end, amount in ((stated.low, values[0]), (stated.high, values[-1]))
        if not end.meets(in_unit(amount, stated.unit))
    ]


def middle(span: Span) -> float:
    """The middle of what is possible."""
    return (span.low + span.high) / 2


def pairs_and_metric(claim: PairClaim, table: RowTable) -> tuple[list[tuple[Row, Row]], str, int]:
    """Pairs of rows, the metric that is meant, and how many rows found no partner."""
    pairs, alone = pairs_of(claim, table)
    return pairs, metric_of(claim, [row for pair in pairs for row in pair], claim.a), alone


def two_figures(claim: PairClaim, metric: str, pair: tuple[Row, Row]) -> tuple[Amount, Amount]:
    """The figures of A and B."""
    against = str(claim.b.get("metric") or metric)
    missing = [(row, name) for row, name in zip(pair, (metric, against), strict=True) if name not in row.figures]
    if missing:
        row, name = missing[0]
        problem = Problem(row.place, f"has no {name}", ", ".join(row.figures))
        raise InputError(f"claim {claim.id} has no figure to work with", problems=(problem,))
    return pair[0].figures[metric], pair[1].figures[against]


def of_pairs(pairs: list[tuple[Row, Row]], metric: str, meant: tuple[Reading, ...]) -> Worked:
    """A claim on pairs, worked out."""
    return Worked(meant=meant, pairs=tuple(pairs), metric=metric, notes=_note_per_device(pairs, metric))


def _note_per_device(pairs: list[tuple[Row, Row]], metric: str) -> tuple[str, ...]:
    """What a comparison of unlike numbers of devices comes to for one device."""
    if len(pairs) != 1:
        return ()
    a, b = pairs[0]
    many_a, many_b = a.number("devices"), b.number("devices")
    if not many_a or not many_b or many_a == many_b or metric not in a.figures or metric not in b.figures:
        return ()
    names = [str(row.get("accelerator") or row.get("system")) for row in (a, b)]
    part_of = metric.endswith(("_per_device", "_per_node")) or metric.startswith("step_time")
    if names[0] == names[1] or kind_of(a.figures[metric]) == "other" or part_of:
        return ()
    ratio = speed_ratio(a.figures[metric], b.figures[metric]).values[0]
    each = middle(ratio) / (many_a / many_b)
    quick, slow = names if each >= 1 else reversed(names)
    return (
        f"{counted(many_a)} against {many_b:g}; per device {quick} is {times(max(each, 1 / each))} as fast as {slow}",
    )


def merged(
    claim: PairClaim, readings: list[Reading], pairs: list[tuple[Row, Row]], alone: int, shown: object
) -> Reading:
    """The readings of all pairs as one, with the range and what lies outside the printed one."""
    if len(readings) == 1:
        return readings[0]
    assert callable(shown)
    values = tuple(reading.values[0] for reading in readings)
    middles = [middle(value) for value in values]
    base = f", divided by {readings[0].base}" if readings[0].base else ""
    result = f"{shown(min(middles))} to {shown(max(middles))}"
    words = f"{result} over {len(pairs)} pairs{base}"
    if claim.published:
        stated = Span(*figure(claim).ends)
        out = [(value, pair) for value, pair in zip(values, pairs, strict=True) if not value.meets(stated)]
        firsts = [a for a, _ in pairs]
        named_out = [f"{apart(pair[0], firsts)} {shown(middle(value))}" for value, pair in out[:SHOWN]]
        more = f" and {len(out) - SHOWN} more" if len(out) > SHOWN else ""
        words += f"; outside {claim.published}: {', '.join(named_out)}{more}" if out else ""
    words += f"; {alone} row{'s' * (alone != 1)} without a partner" if alone else ""
    return Reading(values, words, readings[0].base, result)
