"""Works out claims on many rows: scaling, equal work, what rises with a setting, which value is best. No verdict."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING

from steelyard.audit.claims import figure
from steelyard.audit.recompute import (
    SHOWN,
    Worked,
    apart,
    counted,
    devices,
    digits,
    kind_of,
    middle,
    named,
    percent,
    speed,
    speed_ratio,
    unit_factor,
)
from steelyard.audit.selecting import metric_of, rows_of, same
from steelyard.errors import InputError, Problem
from steelyard.rules.claims import Span
from steelyard.rules.settings import SETTINGS
from steelyard.rules.units import unit_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from steelyard.audit.claims import Best, Claim, Linear, Monotone, SameWork
    from steelyard.rules.row import Amount, Row, Table

KNEE_SHARE = 0.9


def work_linear(claim: Linear, table: Table) -> Worked:
    """Efficiency at every number of devices against the fewest; the best row counts where several have the same."""
    rows = rows_of(claim, table)
    metric = metric_of(claim, rows)
    rows = sorted((row for row in rows if metric in row.figures), key=lambda row: devices(claim, row))
    fewest = devices(claim, rows[0])
    if devices(claim, rows[-1]) == fewest:
        problem = Problem("rows", f"all have {counted(fewest)}", "rows of several numbers of devices")
        raise InputError(f"claim {claim.id} is about scaling", problems=(problem,))
    base = max((row for row in rows if devices(claim, row) == fewest), key=lambda row: speed(row.figures[metric]))
    reached: dict[float, list[tuple[Span, Row]]] = {}
    for row in rows:
        if devices(claim, row) > fewest:
            gain, many = speed_ratio(row.figures[metric], base.figures[metric]), devices(claim, row) / fewest
            span = Span(gain.values[0].low / many, gain.values[0].high / many)
            reached.setdefault(devices(claim, row), []).append((span, row))
    limit = claim.up_to if claim.up_to is not None else max(reached)
    faults = [
        f"{_efficiencies(found)} at {counted(count)}, below {100 * claim.at_least:g} %"
        for count, found in reached.items()
        if count <= limit and max(span.high for span, _ in found) < claim.at_least
    ]
    last = max((count for count in reached if count <= limit), default=None)
    if last is None:
        faults.append(f"no row has more than {counted(fewest)} and at most {limit:g}")
    words = ", ".join(f"{_efficiencies(found)} at {count:g}" for count, found in reached.items())
    return Worked(
        faults=tuple(faults), words=f"efficiency against {counted(fewest)}: {words}", rows=tuple(rows), metric=metric,
        pairs=((max(reached[last], key=lambda entry: entry[0].high)[1], base),) if last is not None else (),
    )  # fmt: skip


def _efficiencies(found: list[tuple[Span, Row]]) -> str:
    return " and ".join(percent(middle(span)) for span, _ in found)


def work_same_work(claim: SameWork, table: Table) -> Worked:
    """Rate times time of every row; the amount that most rows share, and the rows that have another."""
    rows = [row for row in rows_of(claim, table) if _rate_and_time(claim, row) is not None]
    if len(rows) < (1 if claim.published else 2):
        problem = Problem(
            "rows", f"{len(rows)} rows have a rate and a time", "two or more; or one and a published amount"
        )
        raise InputError(f"claim {claim.id} has nothing to multiply", problems=(problem,))
    amounts = [_product(claim, row) for row in rows]
    shared, agree = _shared(amounts, claim.within, _stated_work(claim))
    words = [f"rate x time = {_from_to([amounts[i] for i in agree])} in {len(agree)} rows"] if agree else []
    outside = [(middle(amounts[i]), row) for i, row in enumerate(rows) if i not in agree]
    outside.sort(key=lambda entry: -abs(math.log(entry[0] / shared)))
    faults = [
        f"{value:,.0f} at {apart(row, rows)} ({100 * (value / shared - 1):+.1f} %)" for value, row in outside[:SHOWN]
    ]
    faults += [f"{len(outside) - SHOWN} more"] if len(outside) > SHOWN else []
    names = dict.fromkeys(name for row in rows for name in _rate_and_time(claim, row) or ())
    return Worked(faults=tuple(faults), words="; ".join([*words, *faults]), rows=tuple(rows), metric=", ".join(names))


def _rate_and_time(claim: SameWork, row: Row) -> tuple[str, str] | None:
    """Names of the rate and the time of a row: named by the claim, or the only ones."""
    rates = [name for name, amount in row.figures.items() if kind_of(amount) == "rate" and _is_rate(amount)]
    spans = [name for name, amount in row.figures.items() if kind_of(amount) == "time"]
    rate = claim.rate if claim.rate in row.figures else (rates[0] if not claim.rate and len(rates) == 1 else "")
    time = claim.time if claim.time in row.figures else (spans[0] if not claim.time and len(spans) == 1 else "")
    return (rate, time) if rate and time else None


def _is_rate(amount: Amount) -> bool:
    return (unit_of(amount.unit) or ("", 0))[0] == "rate"


def _product(claim: SameWork, row: Row) -> Span:
    found = _rate_and_time(claim, row)
    assert found is not None
    rate, time = row.figures[found[0]], row.figures[found[1]]
    return Span(rate.low * time.low, rate.high * time.high)


def _stated_work(claim: SameWork) -> float | None:
    """The amount that the document states. It is a count, so its zeros are digits and not rounding."""
    return figure(claim).ends[0] if claim.published else None


def _shared(amounts: list[Span], within: float, stated: float | None) -> tuple[float, set[int]]:
    """The amount that most rows may have in common, or the stated one, and the rows that have it."""
    wide = [Span(amount.low * (1 - within), amount.high * (1 + within)) for amount in amounts]
    if stated is not None:
        return stated, {i for i, amount in enumerate(wide) if amount.meets(Span(stated, stated))}
    # The most intervals overlap where one of them begins; both lists are sorted, so that one pass counts them.
    begins, ends = sorted(amount.low for amount in wide), sorted(amount.high for amount in wide)
    depths = [bisect_right(begins, start) - bisect_left(ends, start) for start in begins]
    start = begins[max(range(len(begins)), key=depths.__getitem__)]
    members = {i for i, amount in enumerate(wide) if amount.meets(Span(start, start))}
    return (start + min(wide[i].high for i in members)) / 2, members


def _from_to(spans: list[Span]) -> str:
    middles = [middle(span) for span in spans]
    low, high = min(middles), max(middles)
    return f"{low:,.0f}" if f"{low:,.0f}" == f"{high:,.0f}" else f"{low:,.0f} to {high:,.0f}"


def work_monotone(claim: Monotone, table: Table) -> Worked:
    """The metric against the setting, row by row; and where it has come near its best."""
    rows = rows_of(claim, table)
    metric = metric_of(claim, rows)
    rows = [row for row in rows if metric in row.figures and row.number(claim.setting) is not None]
    rows.sort(key=lambda row: row.number(claim.setting) or 0.0)
    if len(rows) < 2:
        problem = Problem("setting", f"{len(rows)} rows state {claim.setting!r} as a number", "two rows or more")
        raise InputError(f"claim {claim.id} needs rows to follow", problems=(problem,))
    figures = [row.figures[metric] for row in rows]
    faults = [
        f"{digits(after)} after {digits(before)} at {named(claim.setting, row)}"
        for before, after, row in zip(figures, figures[1:], rows[1:], strict=False)
        if (after.high < before.low if claim.direction == "rises" else after.low > before.high)
    ]
    if claim.direction == "rises" and figures[-1].high <= figures[0].low:
        faults.append(f"{digits(figures[-1])} at the end, {digits(figures[0])} at the beginning")
    faults += _ends(claim, figures)
    words = f"{digits(figures[0])} to {digits(figures[-1])} {figures[0].unit} over {len(rows)} rows"
    words += _knee(claim, rows, figures) if claim.direction == "rises" else ""
    return Worked(faults=tuple(faults), words=words, rows=tuple(rows), metric=metric, pairs=((rows[-1], rows[0]),))


def _ends(claim: Claim, figures: list[Amount]) -> list[str]:
    """Where the printed range is not that of the rows."""
    if not claim.published:
        return []
    stated, found = figure(claim), []
    if stated.unit not in ("", figures[0].unit):
        found.append(f"printed in {stated.unit}, the rows in {figures[0].unit}")
    values = sorted(figures, key=lambda amount: amount.value)
    for end, amount in ((stated.low, values[0]), (stated.high, values[-1])):
        factor = unit_factor(amount)
        if not end.meets(Span(amount.low / factor, amount.high / factor)):
            found.append(f"{digits(amount)} where {middle(end):,.6g} is printed")
    return found


def _knee(claim: Monotone, rows: list[Row], figures: list[Amount]) -> str:
    """The first row that reaches nine tenths of the best."""
    best = max(figure.value for figure in figures)
    for row, amount in zip(rows, figures, strict=True):
        if amount.value >= KNEE_SHARE * best:
            at = f"{named(claim.setting, row)} ({percent(amount.value / best)})"
            return f"; {100 * KNEE_SHARE:g} % of the best is reached at {at}"
    return ""


def work_best(claim: Best, table: Table) -> Worked:
    """The claimed value of a setting against every other value, where all other settings are the same."""
    rows = rows_of(claim, table)
    metric = metric_of(claim, rows)
    claimed = [row for row in rows if metric in row.figures and same(row.get(claim.setting), claim.value)]
    if not claimed:
        problem = Problem("value", f"no row has {claim.setting} {claim.value}", "a value that rows have")
        raise InputError(f"claim {claim.id} speaks of a row that is not there", problems=(problem,))
    better: list[tuple[Row, Row]] = []
    worse: list[tuple[Row, Row]] = []
    rivals: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        if metric in row.figures and row.get(claim.setting) is not None:
            rivals.setdefault(_all_else(row, claim.setting), []).append(row)
    for row in claimed:
        for other in rivals[_all_else(row, claim.setting)]:
            if not same(row.get(claim.setting), other.get(claim.setting)):
                ratio = speed_ratio(row.figures[metric], other.figures[metric])
                (better if ratio.values[0].high < 1 else worse).append((row, other))
    said = [_against(claim, metric, pair, claimed) for pair in (*better, *worse)[:SHOWN]]
    faults = tuple(said[: len(better)])
    if not better and not worse:
        said = [f"no row differs from {claim.setting} {claim.value} in {claim.setting} alone"]
        faults = tuple(said)
    pairs = tuple((*better, *worse)[:1])
    return Worked(faults=faults, words="; ".join(said), rows=tuple(claimed), metric=metric, pairs=pairs)


def _against(claim: Best, metric: str, pair: tuple[Row, Row], claimed: Sequence[Row]) -> str:
    sides = (f"{digits(row.figures[metric])} at {named(claim.setting, row)}" for row in reversed(pair))
    return " against ".join(sides) + _kept(pair[0], claimed)


def _kept(row: Row, claimed: Sequence[Row]) -> str:
    """What stays the same in a comparison, where the claim's rows do not all have it."""
    return f" ({apart(row, claimed)})" if len(claimed) > 1 else ""


def _all_else(row: Row, setting: str) -> tuple[object, ...]:
    """Every setting but one; rows that share these differ in that one alone, as far as the table says."""
    return tuple(row.get(key) for key in SETTINGS if key != setting)
