"""Recompute claimed percentages with every possible base."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from steelyard.audit.claims import figure
from steelyard.audit.recompute import (
    Kind,
    about_speed,
    digits,
    few,
    kind_of,
    merged,
    of_pairs,
    over,
    pairs_and_metric,
    percent,
    stated_span,
    two_figures,
)
from steelyard.rules.claim import Reading, Span

if TYPE_CHECKING:
    from collections.abc import Sequence

    from steelyard.audit.claims import Claim, Percent
    from steelyard.audit.recompute import Worked
    from steelyard.rules.table.row import Amount, RowTable

BASES: dict[Kind, tuple[str, str]] = {
    "time": ("the longer time", "the shorter time"),
    "rate": ("the higher rate", "the lower rate"),
    "other": ("the larger figure", "the smaller figure"),
}


def work_percent(claim: Percent, table: RowTable, convention: str = "") -> Worked:
    """Recompute "A differs from B by p %" with every base; the intended bases go into `meant`."""
    pairs, metric, alone = pairs_and_metric(claim, table)
    if claim.relation not in ("more", "less", "change"):
        about_speed(claim, metric, pairs[0][0].figures[metric])
    meant: list[list[Reading]] = []
    other: list[list[Reading]] = []
    for pair in pairs:
        a, b = two_figures(claim, metric, pair)
        by_base = percent_readings(claim, a, b)
        # Which side is larger may change from pair to pair.
        bases = meant_bases(claim, a, b, convention)
        meant.append([by_base[base] for base in bases])
        other.append([by_base[base] for base in ("b", "a") if base not in bases])
    by_meaning = [
        tuple(merged(claim, list(column), pairs, alone, percent) for column in zip(*readings, strict=True))
        for readings in (meant, other)
    ]
    worked = of_pairs(pairs, metric, by_meaning[0])
    hint = _find_lost_hundred(claim, (*by_meaning[0], *by_meaning[1]))
    faults = []
    if not claim.published and claim.states_order():
        behind = [readings[0].text for readings in meant if readings[0].values[0].high <= 0]
        faults = [f"{words}, which is not {claim.relation}" for words in behind]
    return replace(worked, other=by_meaning[1], hint=hint, faults=few(faults))


def percent_readings(claim: Percent, a: Amount, b: Amount) -> dict[str, Reading]:
    """Return the difference as a percentage of either side."""
    # Whether the claim says that A's figure is smaller than B's.
    if claim.relation in ("more", "less", "change"):
        smaller_a = claim.relation == "less"
    else:
        smaller_a = (claim.relation in ("faster", "less time", "more throughput")) == (kind_of(a) == "time")
    first, last = (b, a) if smaller_a else (a, b)
    ratio, value = over(a, b), a.value / b.value
    sign = -1 if smaller_a else 1
    of_b = sorted((sign * (ratio.low - 1), sign * (ratio.high - 1)))
    of_a = sorted((-sign * (1 / ratio.low - 1), -sign * (1 / ratio.high - 1)))
    values = {"b": (of_b, sign * (value - 1), b, a), "a": (of_a, -sign * (1 / value - 1), a, b)}
    larger, smaller = BASES[kind_of(a)]
    return {
        base: Reading(
            (Span(*span),),
            f"({digits(first, last)}-{digits(last, first)})/{digits(by, beside)} = {percent(middle)}",
            larger if by.value >= beside.value else smaller,
            percent(middle),
        )
        for base, (span, middle, by, beside) in values.items()
    }


def meant_bases(claim: Percent, a: Amount, b: Amount, convention: str) -> tuple[str, ...]:
    """Return the base of a percentage: as stated, set by the wording, or usual in the document; otherwise both."""
    by_size = {"larger": "a" if a.value > b.value else "b", "smaller": "b" if a.value > b.value else "a"}
    if claim.base is not None:
        return (by_size.get(claim.base, claim.base),)
    if claim.relation in ("more", "less", "change"):
        return ("b",)
    if claim.relation in ("faster", "slower"):
        return (by_size[convention],) if convention else ("b", "a")
    about_time = claim.relation in ("less time", "more time")
    return ("b",) if about_time == (kind_of(a) == "time") else ("a",)


def base_of(claim: Percent, table: RowTable) -> tuple[str, str] | None:
    """Return the kind of figure and the base that gives the printed percentage, if only one base does."""
    if claim.relation not in ("faster", "slower") or claim.base is not None or not claim.published or claim.over:
        return None
    (pair,), metric, _ = pairs_and_metric(claim, table)
    a, b = two_figures(claim, metric, pair)
    stated = stated_span(claim)
    fits = [
        base for base, reading in percent_readings(claim, a, b).items() if reading.gives(stated, figure(claim).reached)
    ]
    if len(fits) != 1 or a.value == b.value:
        return None
    return kind_of(a), "larger" if (fits[0] == "a") == (a.value > b.value) else "smaller"


def _find_lost_hundred(claim: Claim, readings: Sequence[Reading]) -> str:
    """Return a hint if the printed percentage is the computed one minus 100."""
    if not claim.published:
        return ""
    stated = stated_span(claim)
    for reading in readings:
        if len(reading.values) > 1:
            continue
        less = Reading(tuple(Span(value.low - 1, value.high - 1) for value in reading.values), "")
        if less.gives(stated, figure(claim).reached):
            return f"{reading.result} minus 100 is {claim.published}"
    return ""
