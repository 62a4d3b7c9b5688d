"""Recompute the figures of a claim from its rows, with rounding, and format the calculations."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from steelyard.audit.claims import figure, sides
from steelyard.audit.selecting import metric_of, one_row, pairs_of, rows_of, same
from steelyard.errors import InputError, Problem
from steelyard.rules.claim import Reading, Span
from steelyard.rules.table.relations import SAMPLES
from steelyard.rules.table.settings import SETTINGS
from steelyard.rules.table.units import counted as items_of
from steelyard.rules.table.units import unit_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from steelyard.audit.claims import Claim, Efficiency, Equal, Faster, PairClaim, Times, Value
    from steelyard.rules.table.row import Amount, Row, RowTable

SHOWN = 3
HUGE = 1e12
"""Larger numbers are printed with an exponent."""
# Settings that identify a row for readers, the most familiar first.
TELLING = ("model", "dataset", "devices", "global_batch", "batch", "precision", "loader.workers")

Kind = Literal["time", "rate", "other"]


@dataclass(frozen=True)
class Worked:
    """The recomputed figures of a claim."""

    meant: tuple[Reading, ...] = ()
    other: tuple[Reading, ...] = ()
    faults: tuple[str, ...] = ()
    hint: str = ""
    text: str = ""
    """A description of the result, if it is not a single calculation."""
    includes_faults: bool = True
    """Whether `text` already includes the faults."""
    notes: tuple[str, ...] = ()
    pairs: tuple[tuple[Row, Row], ...] = ()
    """Pairs of rows: the row that the claim is about, then the row it is compared with."""
    rows: tuple[Row, ...] = ()
    metric: str = ""

    @property
    def place(self) -> str:
        """Return the place of the first row."""
        return (self.pairs[0][0] if self.pairs else self.rows[0]).place


# -- figures


def kind_of(amount: Amount) -> Kind:
    """Return whether a figure is a time (less is faster), a rate (more is faster), or neither."""
    known = unit_of(amount.unit)
    if known is not None and known[0] == "time":
        return "time"
    return "rate" if known is not None and known[0] in ("rate", "per_energy") else "other"


_LESS = ("loss", "error", "perplexity", "latency")
_MORE = ("accuracy", "score", "speedup", "efficiency", "utilisation", "utilization", "f1", "map", "iou", "bleu")


def better(metric: str, amount: Amount) -> Literal["more", "less"] | None:
    """Return whether more or less is better, by the unit or by the name of the metric; None if unknown."""
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
    """Return the bounds of a / b; raise InputError if the figures are of different kinds or count different items."""
    kinds = [(unit_of(amount.unit) or ("", 1.0))[0] for amount in (a, b)]
    things = ["samples" if (item := items_of(amount.unit)) in SAMPLES else item for amount in (a, b)]
    if kinds[0] != kinds[1] or things[0] != things[1]:
        raise InputError(f"cannot compare {a.unit or 'a ratio'} with {b.unit or 'a ratio'}")
    if b.low <= 0 or a.low < 0:
        raise InputError(f"cannot divide {a.text or a.value} by {b.text or b.value}: figures must be positive")
    return Span(a.low / b.high, a.high / b.low)


def speed_ratio(a: Amount, b: Amount) -> Reading:
    """Return how many times as fast A is as B; for figures other than speed, how many times as large."""
    return quotient(b, a) if kind_of(a) == "time" else quotient(a, b)


def quotient(top: Amount, bottom: Amount) -> Reading:
    """Return one figure divided by another, with the calculation."""
    span = over(top, bottom)
    result = times(top.value / bottom.value)
    return Reading((span,), f"{digits(top, bottom)}/{digits(bottom, top)} = {result}", result=result)


def lead(metric: str, a: Amount, b: Amount) -> Reading | None:
    """Return the advantage of A over B, a ratio above 1 if A is better; None if it is unknown which is better."""
    way = better(metric, a)
    if way is None:
        return None
    return quotient(b, a) if way == "less" else quotient(a, b)


def digits(amount: Amount, beside: Amount | None = None) -> str:
    """Format a figure as printed, with thousands separators; with its unit if `beside` has another unit."""
    if amount.text:
        whole, dot, rest = amount.text.partition(".")
        text = (f"{int(whole):,}" if whole.isdigit() else whole) + dot + rest
    else:
        value = amount.value / unit_factor(amount)
        text = f"{value:,.4g}" if value < 1000 else f"{value:,.0f}"
    return text if beside is None or beside.unit == amount.unit else f"{text} {amount.unit}"


def unit_factor(amount: Amount) -> float:
    """Return the factor from the printed unit to the base unit."""
    known = unit_of(amount.unit)
    return known[1] if known else 1.0


def times(value: float) -> str:
    """Format a ratio, such as `1.33x`."""
    return f"{value:.3g}x" if not 1000 <= value < HUGE else f"{value:,.0f}x"


def percent(value: float) -> str:
    """Format a fraction as a percentage."""
    if abs(value) >= HUGE:
        return f"{100 * value:.3g} %"
    return f"{100 * value:.1f} %" if abs(value) < 10 else f"{100 * value:,.0f} %"


def amount_of(value: float) -> str:
    """Format a count."""
    return f"{value:,.0f}" if abs(value) < HUGE else f"{value:.3g}"


def apart(row: Row, rows: Sequence[Row]) -> str:
    """Return the settings that distinguish a row from the others, as few as possible; otherwise its place."""
    shown: list[str] = []
    left = [other for other in rows if other is not row]
    for key in dict.fromkeys((*TELLING, *SETTINGS)):
        others = [other for other in left if same(other.get(key), row.get(key))]
        if len(others) < len(left) and row.get(key) is not None:
            shown.append(named(key, row))
            left = others
    return " ".join(shown) if shown and not left else row.place


def named(key: str, row: Row) -> str:
    """Format a setting: `4 devices`, `batch 32`, `ResNet50`."""
    number = row.number(key)
    if number is None:
        return str(row.get(key))
    return counted(number) if key == "devices" else f"{key} {number:,g}"


def counted(devices: float) -> str:
    """Format a number of devices."""
    return "1 device" if devices == 1 else f"{devices:,g} devices"


# -- claims on pairs


def work_times(claim: Times, table: RowTable) -> Worked:
    """Recompute "A is r times B"."""
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
    """Check that A is faster than B in every pair."""
    pairs, metric, alone = pairs_and_metric(claim, table)
    about_speed(claim, metric, pairs[0][0].figures[metric])
    readings = [speed_ratio(*two_figures(claim, metric, pair)) for pair in pairs]
    slower = [(pair, ratio) for pair, ratio in zip(pairs, readings, strict=True) if ratio.values[0].high <= 1]
    firsts = [a for a, _ in pairs]
    faults = [
        f"{ratio.text}{f' on {apart(pair[0], firsts)}' if len(pairs) > 1 else ''}, which is not faster"
        for pair, ratio in slower[:SHOWN]
    ]
    faults += [f"{len(slower) - SHOWN} more"] if len(slower) > SHOWN else []
    worked = of_pairs(pairs, metric, (merged(claim, readings, pairs, alone, times),))
    return replace(worked, faults=(*faults, *_check_two_printed(claim, metric, pairs[0])))


def _check_two_printed(claim: Faster, metric: str, pair: tuple[Row, Row]) -> list[str]:
    """Compare the two figures of a claim that prints both (`about 3,000 against 270`) with the rows."""
    texts = sides(claim)
    if len(texts) != 2 or claim.over:
        return []
    faults = []
    for text, amount in zip(texts, two_figures(claim, metric, pair), strict=True):
        stated = figure(replace(claim, published=text))
        if not stated.low.meets(in_unit(amount, stated.unit)):
            faults.append(f"{digits(amount)} instead of {text}")
    return faults


def about_speed(claim: Claim, metric: str, amount: Amount) -> None:
    """Raise InputError if a metric is not a speed, such as an energy or an accuracy."""
    if kind_of(amount) == "other":
        problem = Problem(
            "metric", f"{metric} in {amount.unit or 'no unit'} is not a speed", 'kind = "percent" with more or less'
        )
        raise InputError(f"claim {claim.id} is about speed", problems=(problem,))


def work_efficiency(claim: Efficiency, table: RowTable) -> Worked:
    """Recompute the efficiency: speed-up divided by the ratio of device counts."""
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
    """The factor that turns a ratio of figures into a ratio per device."""

    factor: float
    text: str
    many: float
    whole: bool = True
    """Whether the figure is that of the whole job, so that only the number of devices matters."""


def of_a_device(claim: Claim, metric: str, a: Row, b: Row) -> RatioPart:
    """Return the factor from the ratio of A and B to the ratio per device, depending on the scope of the metric."""
    many = devices(claim, a) / devices(claim, b)
    on = f"on {many:g} times the devices" if many != 1 else "on the same number of devices"
    if metric.endswith("_per_device"):
        return RatioPart(1.0, "per device", many, whole=False)
    if metric.endswith("_per_node"):
        nodes = needed(claim, a, "nodes") / needed(claim, b, "nodes")
        return RatioPart(nodes / many, f"per node, {nodes:g} times the nodes {on}", many, whole=False)
    if metric.startswith("step_time"):
        work = _count_step_samples(claim, a) / _count_step_samples(claim, b)
        return RatioPart(work / many, f"with {work:g} times the samples per step {on}", many, whole=False)
    return RatioPart(1 / many, on, many)


def efficiency(gain: Reading, share: RatioPart) -> Reading:
    """Convert a speed-up to an efficiency."""
    (ratio,) = gain.values
    span = Span(ratio.low * share.factor, ratio.high * share.factor)
    result = percent(middle(span))
    return Reading((span,), f"{gain.text} {share.text} = {result}", result=result)


def _count_step_samples(claim: Claim, row: Row) -> float:
    """Return the samples per step of the whole job, which are needed to compare step times."""
    if batch := row.number("global_batch"):
        return batch
    return needed(claim, row, "batch") * devices(claim, row) * (row.number("accumulation") or 1)


def _guess_divisor(claim: Claim, gain: Reading, many: float) -> list[str]:
    """Return a hint if the printed efficiency follows from another whole number as divisor."""
    if not claim.published:
        return []
    stated, span = figure(claim).low, gain.values[0]
    if stated.low <= 0:
        return []
    least, most = math.ceil(span.low / stated.high), math.floor(span.high / stated.low)
    # If several divisors fit, none of them is an explanation.
    if least != most or most in (0, many):
        return []
    value = middle(span)
    share = percent(value / most)
    if most == 1:
        return [f"{claim.published} is the speed-up, not divided by {many:g}"]
    return [f"{times(value)[:-1]}/{most} = {share}, so it was divided by {most} instead of {many:g}"]


def _find_cleaner_base(claim: Efficiency, table: RowTable, pair: tuple[Row, Row], metric: str) -> tuple[str, ...]:
    """Return a note with the efficiency over a row that differs only in devices, if the base of the claim does not."""
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
    reached = efficiency(gain, of_a_device(claim, metric, row, base))
    count = f"{counted(devices(claim, row))} vs {devices(claim, base):g}"
    return (f"with all other settings equal, {count}: {gain.text}, an efficiency of {reached.result}",)


def work_equal(claim: Equal, table: RowTable) -> Worked:
    """Check that A and B are equal within a margin; a printed figure is the change from B to A."""
    pairs, metric, alone = pairs_and_metric(claim, table)
    readings, faults = [], []
    for pair in pairs:
        a, b = two_figures(claim, metric, pair)
        ratio, result = over(a, b), percent(a.value / b.value - 1)
        span, within = Span(ratio.low - 1, ratio.high - 1), claim.within
        reading = Reading((span,), f"({digits(a, b)}-{digits(b, a)})/{digits(b, a)} = {result}", result=result)
        readings.append(reading)
        # Without a stated margin, only a printed change can be wrong.
        if within is not None and (span.low > within or span.high < -within):
            faults.append(f"{reading.text}, beyond {percent(within)}")
        if within is None and not claim.published and (span.low > 0 or span.high < 0):
            faults.append(f"{reading.text}, more than rounding")
    worked = of_pairs(pairs, metric, (merged(claim, readings, pairs, alone, percent),))
    return replace(worked, faults=few(faults))


def work_value(claim: Value, table: RowTable) -> Worked:
    """Recompute the figure of one row, or for `up to` of several; per device if the claim says so."""
    stated = figure(claim) if claim.published else None
    rows = rows_of(claim, table) if stated and stated.reached else [one_row(claim, table, {})]
    metric = metric_of(claim, rows)
    divided = claim.per == "device" and not metric.endswith("_per_device")
    unit = stated.unit if stated else ""
    readings, faults = [], []
    for row in rows:
        amount = row.figures[metric]
        many = devices(claim, row) if divided else 1.0
        # Percentages in claims are fractions.
        span = Span(amount.low, amount.high) if unit == "%" else in_unit(amount, unit)
        span = Span(span.low / many, span.high / many)
        result = percent(middle(span)) if unit == "%" else f"{middle(span):,.6g} {unit or amount.unit}".strip()
        text = f"{digits(amount)}/{many:g} = {result}" if divided else result
        readings.append(Reading((span,), text, result=result))
        faults += [wrong] if (wrong := other_unit(amount, unit)) else []
    best = max(readings, key=lambda reading: middle(reading.values[0]))
    whole = Reading(tuple(reading.values[0] for reading in readings), best.text, result=best.result)
    return Worked(meant=(whole,), faults=few(faults), rows=tuple(rows), metric=metric)


# -- helpers


def stated_span(claim: Claim) -> Span:
    """Return the values that the printed figure allows; for a range, from its lower to its upper end."""
    stated = figure(claim)
    return Span(stated.low.low, stated.high.high)


def devices(claim: Claim, row: Row) -> float:
    """Return the number of devices of a row; raise InputError if it is unknown."""
    return needed(claim, row, "devices")


def needed(claim: Claim, row: Row, key: str) -> float:
    """Return a numeric setting that the claim needs; raise InputError if it is unknown."""
    number = row.number(key)
    if not number:
        problem = Problem(row.place, f"{key} is unknown", f"a table with the column {key}")
        raise InputError(f"claim {claim.id} needs {key} of its rows", problems=(problem,))
    return number


def few(faults: Sequence[str], shown: int = SHOWN) -> tuple[str, ...]:
    """Return the first faults, and how many more there are."""
    return (*faults[:shown], f"{len(faults) - shown} more") if len(faults) > shown else tuple(faults)


def in_unit(amount: Amount, unit: str) -> Span:
    """Return a figure in the unit of the claim, or in its own unit if the claim has none of the same kind."""
    asked, own = unit_of(unit) if unit else None, unit_of(amount.unit)
    factor = asked[1] if asked and own and asked[0] == own[0] else unit_factor(amount)
    return Span(amount.low / factor, amount.high / factor)


def other_unit(amount: Amount, unit: str) -> str:
    """Return a fault if the printed unit does not fit the unit of the row; otherwise empty."""
    asked, own = unit_of(unit) if unit else None, unit_of(amount.unit)
    alike = asked and own and asked[0] == own[0] and items_of(unit) == items_of(amount.unit)
    return f"{amount.unit} instead of {unit}" if unit and unit != amount.unit and not alike else ""


def wrong_range(claim: Claim, figures: Sequence[Amount]) -> list[str]:
    """Return the faults of a printed range: ends that differ from the smallest or largest figure."""
    stated = figure(claim)
    if wrong := other_unit(figures[0], stated.unit):
        return [wrong]
    values = sorted(figures, key=lambda amount: amount.value)
    return [
        f"{digits(amount)} {amount.unit} instead of {claim.published}"
        for end, amount in ((stated.low, values[0]), (stated.high, values[-1]))
        if not end.meets(in_unit(amount, stated.unit))
    ]


def middle(span: Span) -> float:
    """Return the middle of an interval."""
    return (span.low + span.high) / 2


def pairs_and_metric(claim: PairClaim, table: RowTable) -> tuple[list[tuple[Row, Row]], str, int]:
    """Return the pairs of rows, the metric, and the number of rows without a partner."""
    pairs, alone = pairs_of(claim, table)
    return pairs, metric_of(claim, [row for pair in pairs for row in pair], claim.a), alone


def two_figures(claim: PairClaim, metric: str, pair: tuple[Row, Row]) -> tuple[Amount, Amount]:
    """Return the figures of A and B; raise InputError if one is missing."""
    other = str(claim.b.get("metric") or metric)
    missing = [(row, name) for row, name in zip(pair, (metric, other), strict=True) if name not in row.figures]
    if missing:
        row, name = missing[0]
        problem = Problem(row.place, f"has no {name}", ", ".join(row.figures))
        raise InputError(f"claim {claim.id} needs a figure that is missing", problems=(problem,))
    return pair[0].figures[metric], pair[1].figures[other]


def of_pairs(pairs: list[tuple[Row, Row]], metric: str, meant: tuple[Reading, ...]) -> Worked:
    """Return the result of a claim on pairs."""
    return Worked(meant=meant, pairs=tuple(pairs), metric=metric, notes=_note_per_device(pairs, metric))


def _note_per_device(pairs: list[tuple[Row, Row]], metric: str) -> tuple[str, ...]:
    """Return a note with the ratio per device if the numbers of devices differ."""
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
    return (f"{counted(many_a)} vs {many_b:g}; per device {quick} is {times(max(each, 1 / each))} as fast as {slow}",)


def merged(
    claim: PairClaim, readings: list[Reading], pairs: list[tuple[Row, Row]], alone: int, shown: object
) -> Reading:
    """Merge the results of all pairs: their range, and the pairs outside the printed range."""
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
