"""Noise between repeated rows of a document, and the best result of each side."""

from __future__ import annotations

from typing import TYPE_CHECKING

from steelyard.audit.recompute import better, kind_of, lead, percent, speed_ratio, unit_factor
from steelyard.audit.selecting import same
from steelyard.numbers import short
from steelyard.rules.claim import Reading, RepeatNoise
from steelyard.rules.table.row import Amount
from steelyard.rules.table.settings import SETTINGS, TUNABLE, shown
from steelyard.stats.ratio import MIN_JOBS, compare_means

if TYPE_CHECKING:
    from collections.abc import Sequence

    from steelyard.audit.recompute import Kind
    from steelyard.rules.table.row import Row, RowTable

# Settings that may differ between a row and the best row of the same machine for the same work.
CHOSEN = tuple(key for key, role in SETTINGS.items() if role in TUNABLE)
FREE = (*CHOSEN, *(key for key, role in SETTINGS.items() if role == "size"))
STATED = tuple(key for key, role in SETTINGS.items() if role != "evidence")
KEPT = tuple(key for key in STATED if key not in FREE)


Key = tuple[object, ...]


class Index:
    """The rows of a document by their settings, for one metric."""

    def __init__(self, table: RowTable, metric: str) -> None:
        self.metric = metric
        self.alike: dict[Key, list[float]] = {}
        """Values of rows with the same settings."""
        self.machines: dict[Key, list[Row]] = {}
        """Rows of the same machine, work and precision."""
        for row in table.rows:
            if metric in row.figures:
                amount = row.figures[metric]
                self.alike.setdefault(_make_key(row, STATED), []).extend(amount.jobs or (amount.value,))
                self.machines.setdefault(_make_key(row, KEPT), []).append(row)

    def repeats(self, row: Row) -> list[float]:
        """Return the values of all rows with the same settings, including the row itself."""
        own = row.figures[self.metric]
        alike = self.alike.get(_make_key(row, STATED), [])
        # A sum of jobs may have the same settings as one large job, but is not a repeat of it.
        return alike if own.jobs or own.value in alike else [own.value]

    def spreads(self) -> list[list[float]]:
        """Return every group of repeats."""
        return [group for group in self.alike.values() if len(group) > 1]


def _make_key(row: Row, keys: Sequence[str]) -> Key:
    return tuple(row.get(key) for key in keys)


def chance(index: Index, pair: tuple[Row, Row]) -> RepeatNoise:
    """Check whether a difference attributed to a cause is larger than the difference between repeats."""
    sides = [index.repeats(row) for row in pair]
    a, b = (row.figures[index.metric] for row in pair)
    if min(map(min, sides)) <= 0:
        return RepeatNoise(shown=False, text="a run has the figure 0, so there is no ratio")
    if min(map(len, sides)) >= MIN_JOBS:
        return _compare_repeats(sides, kind_of(a))
    known = [side for side in sides if len(side) > 1] or index.spreads()
    if not known:
        return RepeatNoise(shown=False, text="one run on each side, and the document has no repeats")
    widest = max(known, key=_compute_spread)
    ratio = speed_ratio(a, b).values[0]
    low, high = sorted((1.0, (ratio.low + ratio.high) / 2))
    factor = unit_factor(a)
    figures = " and ".join(f"{value / factor:,.5g}" for value in (max(widest), min(widest)))
    spread = _compute_spread(widest)
    gap = high / low - 1
    runs = f"{len(widest)} runs of one configuration gave {figures}, which differ by {percent(spread)}"
    return RepeatNoise(shown=gap > spread, text=f"{runs}; these rows differ by {percent(gap)}")


def statistics(index: Index, pair: tuple[Row, Row], within: float | None, *, equal: bool) -> RepeatNoise:
    """Check whether repeats on both sides show a difference or, for a claim of equality, stay within the margin."""
    sides = [index.repeats(row) for row in pair]
    kind = kind_of(pair[0].figures[index.metric])
    if min(map(len, sides)) < MIN_JOBS:
        counts = [len(side) for side in sides]
        have = "one run on each side" if counts == [1, 1] else f"{counts[0]} and {counts[1]} runs"
        return RepeatNoise(shown=False, text=f"{have}; three on each side are needed")
    if min(map(min, sides)) <= 0:
        return RepeatNoise(shown=False, text="a run has the figure 0, so there is no ratio")
    if not equal:
        return _compare_repeats(sides, kind)
    if within is None:
        return RepeatNoise(shown=False, text="the claim states no margin for equality")
    ratio = compare_means(sides[1], sides[0])
    assert ratio.low is not None
    assert ratio.high is not None
    inside = 1 - within <= ratio.low and ratio.high <= 1 + within
    words = f"A/B = {short(ratio.value)}, 95 % CI {short(ratio.low)} to {short(ratio.high)}, margin {percent(within)}"
    return RepeatNoise(shown=inside, text=words)


def best_ratio(index: Index, pair: tuple[Row, Row]) -> tuple[Reading | None, str]:
    """Return the ratio at each side's best settings, or None and the reason."""
    amounts, words, metric = [], [], index.metric
    way = better(metric, pair[0].figures[metric])
    if way is None:
        return None, f"it is not known whether a higher or a lower {metric} is better"
    choose = max if way == "more" else min
    for row in pair:
        own = row.number("devices")
        # Scale down from more devices only: scaling up would assume perfect scaling.
        candidates = [
            other
            for other in index.machines.get(_make_key(row, KEPT), ())
            if (its := other.number("devices")) == own or (own is not None and its is not None and own < its)
        ]
        if len({tuple(other.get(key) for key in CHOSEN) for other in candidates}) < 2:
            amounts.append(row.figures[metric])
            words.append("")
            continue
        scaled = [(_scale(other, row, metric), other) for other in candidates]
        best, other = choose(scaled, key=lambda entry: entry[0].value)
        amounts.append(best)
        tuned = [key for key in FREE if other.get(key) is not None and not same(row.get(key), other.get(key))]
        words.append(", ".join(f"{key} {shown(other.get(key))}" for key in tuned) or "as claimed")
    if not any(words):
        return None, "both sides were measured at only one setting, so their best is unknown"
    ratio = lead(metric, amounts[0], amounts[1])
    assert ratio is not None
    settings = " vs ".join(word or "the row of the claim" for word in words)
    return Reading(ratio.values, f"{ratio.text} ({settings})", result=ratio.result), ""


def _scale(other: Row, row: Row, metric: str) -> Amount:
    """Scale a figure to the number of devices of another row."""
    amount, own, its = other.figures[metric], row.number("devices"), other.number("devices")
    if not own or not its or own == its:
        return amount
    if metric.endswith(("_per_device", "_per_node")) or kind_of(amount) == "other" or metric.startswith("step_time"):
        return amount
    share = its / own if kind_of(amount) == "time" else own / its
    return Amount(amount.value * share, amount.low * share, amount.high * share, amount.unit)


def _compute_spread(values: Sequence[float]) -> float:
    return max(values) / min(values) - 1 if min(values) > 0 else float("inf")


def _compare_repeats(sides: list[list[float]], kind: Kind) -> RepeatNoise:
    """Compute Welch's CI of the ratio of means; rates are averaged as times."""
    a, b = ([1 / value for value in side] if kind == "rate" else side for side in sides)
    ratio = compare_means(b, a)
    assert ratio.low is not None
    assert ratio.high is not None
    what = "A/B" if kind == "other" else "time of A over time of B"
    runs = f"{len(a)} and {len(b)} runs"
    words = f"{what} = {short(ratio.value)}, 95 % CI {short(ratio.low)} to {short(ratio.high)}, {runs}"
    return RepeatNoise(shown=ratio.verdict in ("faster", "slower"), text=words)
