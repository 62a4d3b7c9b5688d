"""Recompute claims on series of rows: linear scaling, same work, monotone trends, and best values."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from dataclasses import replace
from typing import TYPE_CHECKING

from steelyard.audit.recompute import (
    HUGE,
    SHOWN,
    Worked,
    about_speed,
    amount_of,
    apart,
    better,
    counted,
    devices,
    digits,
    efficiency,
    few,
    kind_of,
    middle,
    named,
    of_a_device,
    over,
    percent,
    speed_ratio,
    stated_span,
    wrong_range,
)
from steelyard.audit.selecting import averaged, metric_of, rows_of, same
from steelyard.errors import InputError, Problem
from steelyard.rules.claim import Span
from steelyard.rules.table.row import Pair
from steelyard.rules.table.settings import FOLLOWS, SETTINGS, confounders, follows_size
from steelyard.rules.table.units import unit_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from steelyard.audit.claims import Best, Claim, Linear, Monotone, SameWork
    from steelyard.rules.table.row import Amount, Row, RowTable

KNEE_SHARE = 0.9
MAX_LISTED = 12
MAX_RIVALS = 10_000


def work_linear(claim: Linear, table: RowTable) -> Worked:
    """Recompute the efficiency at every number of devices, relative to the smallest; the fastest base row is used."""
    rows = rows_of(claim, table)
    metric = metric_of(claim, rows)
    _refuse_several_works(claim, rows)
    about_speed(claim, metric, rows[0].figures[metric])
    rows = sorted((row for row in rows if metric in row.figures), key=lambda row: devices(claim, row))
    fewest = devices(claim, rows[0])
    if devices(claim, rows[-1]) == fewest:
        problem = Problem("rows", f"all have {counted(fewest)}", "rows with several numbers of devices")
        raise InputError(f"claim {claim.id} is about scaling", problems=(problem,))
    at_fewest = [row for row in rows if devices(claim, row) == fewest]
    quickest = min if kind_of(rows[0].figures[metric]) == "time" else max
    base = quickest(at_fewest, key=lambda row: row.figures[metric].value)
    reached: dict[float, list[tuple[Span, Row]]] = {}
    for row in rows:
        if devices(claim, row) > fewest:
            gain = speed_ratio(row.figures[metric], base.figures[metric])
            (span,) = efficiency(gain, of_a_device(claim, metric, row, base)).values
            reached.setdefault(devices(claim, row), []).append((span, row))
    limit = claim.up_to if claim.up_to is not None else max(reached)
    # The largest count first: it is the one that the claim is about.
    missed = [
        f"{_format_efficiencies(efficiencies)} at {counted(count)}"
        for count, efficiencies in sorted(reached.items(), reverse=True)
        if count <= limit and max(span.high for span, _ in efficiencies) < claim.at_least
    ]
    faults = [f"{', '.join(few(missed))}, below {100 * claim.at_least:g} %"] if missed else []
    last = max((count for count in reached if count <= limit), default=None)
    if last is None:
        faults.append(f"no row with more than {counted(fewest)} and at most {limit:g}")
    listed = [f"{_format_efficiencies(efficiencies)} at {count:g}" for count, efficiencies in reached.items()]
    words = ", ".join(few(listed, MAX_LISTED))
    return Worked(
        faults=few(faults),
        text=f"efficiency vs {counted(fewest)}: {words}",
        rows=tuple(rows),
        metric=metric,
        pairs=((max(reached[last], key=lambda entry: entry[0].high)[1], base),) if last is not None else (),
    )


def _format_efficiencies(efficiencies: list[tuple[Span, Row]]) -> str:
    return " and ".join(few([percent(middle(span)) for span, _ in efficiencies]))


def _refuse_several_works(claim: Claim, rows: Sequence[Row]) -> None:
    """Raise InputError if the rows have several machines, models or data sets."""
    for key, role in SETTINGS.items():
        values = {row.get(key) for row in rows} - {None}
        if len(values) > 1 and (key == "accelerator" or role in ("work", "data")):
            names = ", ".join(sorted(map(str, values))[:SHOWN])
            problem = Problem("rows", f"several values of {key}: {names}", f"a selector with one {key}")
            raise InputError(f"claim {claim.id} needs one series of rows", problems=(problem,))


def work_same_work(claim: SameWork, table: RowTable) -> Worked:
    """Recompute rate times time of every row, and find the rows that differ from most others."""
    having = [
        (row, names)
        for row in rows_of(claim, table)
        if (names := _find_rate_and_time(row, claim.rate, claim.time)) is not None
    ]
    rows = [row for row, _ in having]
    if len(rows) < (1 if claim.published else 2):
        problem = Problem(
            "rows", f"{len(rows)} rows have a rate and a time", "two or more; or one and a published amount"
        )
        raise InputError(f"claim {claim.id} needs rows with a rate and a time", problems=(problem,))
    amounts = [_multiply(row, *names) for row, names in having]
    # The stated amount is a count, so its zeros are significant, unless it is printed with `about`.
    shared, agree = _find_shared(amounts, claim.within, stated_span(claim) if claim.published else None)
    words = ""
    if agree:
        middles = [middle(amounts[i]) for i in agree]
        ends = " to ".join(dict.fromkeys((amount_of(min(middles)), amount_of(max(middles)))))
        words = f"rate x time = {ends} in {len(agree)} row{'s' * (len(agree) != 1)}"
    outside = [(middle(amounts[i]), row) for i, row in enumerate(rows) if i not in agree]
    outside.sort(key=lambda entry: -abs(math.log(entry[0] / shared)) if entry[0] > 0 and shared > 0 else 0.0)
    faults = []
    for value, row in outside[:SHOWN]:
        far = shared <= 0 or value / shared > HUGE
        off = "far from the others" if far else f"{100 * (value / shared - 1):+.1f} %"
        faults.append(f"{amount_of(value)} at {apart(row, rows)} ({off})")
    if len(outside) > SHOWN:
        faults.append(f"{len(outside) - SHOWN} more")
    metric = ", ".join(dict.fromkeys(name for _, names in having for name in names))
    return Worked(faults=tuple(faults), text=words, includes_faults=False, rows=tuple(rows), metric=metric)


def other_product(a: Row, b: Row) -> str:
    """Describe how the rate x time of two rows differs beyond rounding; empty if it does not or is unknown."""
    pair = [(row, _find_rate_and_time(row)) for row in (a, b)]
    spans = [_multiply(row, *names) for row, names in pair if names is not None]
    if len(spans) < 2 or pair[0][1] != pair[1][1] or spans[0].meets(spans[1]):
        return ""
    return "rate x time " + " vs ".join(amount_of(middle(span)) for span in spans)


def _find_rate_and_time(row: Row, rate: str = "", time: str = "") -> tuple[str, str] | None:
    """Return the names of the rate and the time of a row: as given, or the only ones; None if ambiguous."""
    rates = [name for name, amount in row.figures.items() if (unit_of(amount.unit) or ("", 0))[0] == "rate"]
    spans = [name for name, amount in row.figures.items() if kind_of(amount) == "time"]
    rate = rate if rate in row.figures else (rates[0] if not rate and len(rates) == 1 else "")
    time = time if time in row.figures else (spans[0] if not time and len(spans) == 1 else "")
    return (rate, time) if rate and time else None


def _multiply(row: Row, rate_name: str, time_name: str) -> Span:
    rate, time = row.figures[rate_name], row.figures[time_name]
    return Span(max(0.0, rate.low) * max(0.0, time.low), rate.high * time.high)


def _find_shared(amounts: list[Span], within: float, stated: Span | None) -> tuple[float, set[int]]:
    """Return the amount that most rows agree on, or the stated amount, and the indices of the rows that match."""
    wide = [Span(amount.low * (1 - within), amount.high * (1 + within)) for amount in amounts]
    if stated is not None:
        ends = [end for end in (stated.low, stated.high) if math.isfinite(end)]
        return sum(ends) / len(ends), {i for i, amount in enumerate(wide) if amount.meets(stated)}
    # The overlap is largest where one interval begins; sorted ends make counting fast.
    begins, ends = sorted(amount.low for amount in wide), sorted(amount.high for amount in wide)
    depths = [bisect_right(begins, start) - bisect_left(ends, start) for start in begins]
    start = begins[max(range(len(begins)), key=depths.__getitem__)]
    members = {i for i, amount in enumerate(wide) if amount.meets(Span(start, start))}
    return (start + min(wide[i].high for i in members)) / 2, members


def work_monotone(claim: Monotone, table: RowTable) -> Worked:
    """Check that the metric rises or falls with the setting in each series, and find where it is near its best."""
    rows = rows_of(claim, table)
    metric = metric_of(claim, rows)
    rows = [row for row in rows if metric in row.figures and row.number(claim.setting) is not None]
    rows.sort(key=lambda row: row.number(claim.setting) or 0.0)
    if len({row.number(claim.setting) for row in rows}) < 2:
        problem = Problem(
            "setting", f"{len(rows)} rows with one {claim.setting} or none", "rows with two values or more"
        )
        raise InputError(f"claim {claim.id} needs a series of rows", problems=(problem,))
    series = [_average_steps(group, claim.setting, metric) for group in _group_series(rows, claim.setting)]
    faults = [fault for steps in series for fault in _find_breaks(claim, steps)]
    figures = [row.figures[metric] for row in rows]
    faults += wrong_range(claim, figures) if claim.published else []
    words = f"{digits(figures[0])} to {digits(figures[-1])} {figures[0].unit} over {len(rows)} rows"
    words += f" in {len(series)} series" if len(series) > 1 else ""
    if claim.direction == "rises" and len(series) == 1:
        best = max(figure.value for figure in figures)
        near = next((row for row in rows if row.figures[metric].value >= KNEE_SHARE * best), None)
        if near is not None:
            reached = f"{named(claim.setting, near)} ({percent(near.figures[metric].value / best)})"
            words += f"; {100 * KNEE_SHARE:g} % of the best is reached at {reached}"
    longest = max(series, key=len)
    ends = ((longest[-1][0], longest[0][0]),)
    return Worked(faults=few(faults), text=words, includes_faults=False, rows=tuple(rows), metric=metric, pairs=ends)


# Roles of settings that may change along a series.
_LOOSE = ("amount", "training", "environment", "evidence")


def _group_series(rows: list[Row], setting: str) -> list[list[Row]]:
    """Group rows that differ only in one setting and what follows from it; without such groups, return all as one."""
    role = SETTINGS[setting]
    free = {setting, *FOLLOWS.get(setting, ())}
    free |= {key for key, its in SETTINGS.items() if its in _LOOSE or (its == role and role in ("batches", "size"))}
    if role == "size":
        free |= follows_size(rows)
    keys = sorted({key for row in rows for key in row.settings} - free)
    groups: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row.get(key) for key in keys), []).append(row)
    series = [group for group in groups.values() if len({row.number(setting) for row in group}) > 1]
    return series or [rows]


def _average_steps(rows: list[Row], setting: str, metric: str) -> list[tuple[Row, Amount]]:
    """Return one figure per value of the setting: the mean of its repeats, with bounds that cover all of them."""
    groups: dict[float | None, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.number(setting), []).append(row)
    steps = []
    for group in groups.values():
        figures = [row.figures[metric] for row in group]
        amount = figures[0] if len(figures) == 1 else averaged(figures)
        low, high = min(figure.low for figure in figures), max(figure.high for figure in figures)
        steps.append((group[0], replace(amount, low=low, high=high)))
    return steps


def _find_breaks(claim: Monotone, steps: list[tuple[Row, Amount]]) -> list[str]:
    """Return where a series goes the wrong way, relative to the best so far, so that slow trends are found too."""
    rises, breaks = claim.direction == "rises", []
    best = steps[0][1]
    for row, amount in steps[1:]:
        turned = amount.high < best.low if rises else amount.low > best.high
        if turned and not Span(amount.low, amount.high).meets(Span(best.low, best.high)):
            breaks.append(f"{digits(amount)} after {digits(best)} at {named(claim.setting, row)}")
        if (amount.value > best.value) if rises else (amount.value < best.value):
            best = amount
    first, last = steps[0][1], steps[-1][1]
    if not breaks and ((last.value <= first.value) if rises else (last.value >= first.value)):
        breaks.append(f"{digits(last)} at the end, {digits(first)} at the beginning")
    return breaks


def work_best(claim: Best, table: RowTable) -> Worked:
    """Compare the claimed value of a setting with every other value, all else equal. Repeats are averaged."""
    rows = [row for row in rows_of(claim, table) if row.get(claim.setting) is not None]
    metric = metric_of(claim, rows) if rows else ""
    rows = _average_repeats([row for row in rows if metric in row.figures], metric)
    claimed = [row for row in rows if same(row.get(claim.setting), claim.value)]
    if not claimed:
        problem = Problem("value", f"no row has {claim.setting} {claim.value}", "a value that rows have")
        raise InputError(f"claim {claim.id} has no row with its value", problems=(problem,))
    way = claim.better or better(metric, claimed[0].figures[metric])
    if way is None:
        problem = Problem("better", f"missing, and it is not known whether more {metric} is better", "more or less")
        raise InputError(f"claim {claim.id} must say what is better", problems=(problem,))
    ahead: list[tuple[Row, Row]] = []
    behind: list[tuple[Row, Row]] = []
    for row, other in _find_rivals(claim, metric, rows, claimed):
        figures = row.figures[metric], other.figures[metric]
        ratio = over(*figures) if way == "more" else over(*reversed(figures))
        (ahead if ratio.high < 1 else behind).append((row, other))
    faults, texts = (
        [_compare_sides(claim, metric, pair, claimed) for pair in pairs[: SHOWN + 1]] for pairs in (ahead, behind)
    )
    if not ahead and not behind:
        faults = [f"no row that differs from {claim.setting} {claim.value} only in {claim.setting}"]
    if len(ahead) > SHOWN:
        faults = [*faults[:SHOWN], f"{len(ahead) - SHOWN} more"]
    return Worked(
        faults=tuple(faults),
        text="; ".join(texts[:SHOWN]),
        includes_faults=False,
        rows=tuple(claimed),
        metric=metric,
        pairs=tuple((*ahead, *behind)[:1]),
    )


def _average_repeats(rows: list[Row], metric: str) -> list[Row]:
    """Average rows with the same settings, so that a single lucky run does not decide."""
    keys = sorted(key for key in {key for row in rows for key in row.settings} if SETTINGS[key] != "evidence")
    groups: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row.get(key) for key in keys), []).append(row)
    averages = []
    for group in groups.values():
        amount = group[0].figures[metric] if len(group) == 1 else averaged([row.figures[metric] for row in group])
        averages.append(replace(group[0], figures={metric: amount}))
    return averages


def _find_rivals(claim: Best, metric: str, rows: list[Row], claimed: list[Row]) -> list[tuple[Row, Row]]:
    """Pair each claimed row with every row that differs only in the setting and what follows from it."""
    followers = {claim.setting, *FOLLOWS.get(claim.setting, ())}
    role = SETTINGS[claim.setting]
    followers |= {key for key, its in SETTINGS.items() if its == role and role in ("batches", "size")}
    if role == "size":
        followers |= follows_size(rows)
    keys = [key for key, its in SETTINGS.items() if key not in followers and its != "evidence"]
    groups: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row.get(key) for key in keys), []).append(row)
    beside = [(row, groups[tuple(row.get(key) for key in keys)]) for row in claimed]
    if sum(len(group) for _, group in beside) > MAX_RIVALS:
        problem = Problem("rows", f"more than {MAX_RIVALS:,} pairs of rows", "a selector that matches fewer rows")
        raise InputError(f"claim {claim.id} compares too many rows", problems=(problem,))
    return [
        (row, other)
        for row, group in beside
        for other in group
        if not same(row.get(claim.setting), other.get(claim.setting))
        and not confounders(Pair(other, row, claim.setting, metric))
    ]


def _compare_sides(claim: Best, metric: str, pair: tuple[Row, Row], claimed: Sequence[Row]) -> str:
    sides = (f"{digits(row.figures[metric])} at {named(claim.setting, row)}" for row in reversed(pair))
    # Name the claimed row if there are several.
    kept = f" ({apart(pair[0], claimed)})" if len(claimed) > 1 else ""
    return " vs ".join(sides) + kept
