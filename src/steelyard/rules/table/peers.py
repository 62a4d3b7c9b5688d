"""Find what the rows of a table must have in common: the work of an epoch, and the base of the speed-ups.

Each row gives an interval for such a quantity. Where most rows agree, the others are compared with that value.
"""

from __future__ import annotations

import math
from collections import defaultdict
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from steelyard.rules.table.relations import (
    ALIASES,
    SAMPLES,
    TINY,
    Bounds,
    Solved,
    item_of,
    last_batch,
    observed,
    solve,
    without,
)
from steelyard.rules.table.settings import SETTINGS

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from steelyard.rules.table.row import Row, RowTable

WORK = ("epoch_work", "train_work")
WORK_ROLES = ("work", "data", "amount")
"""Rows that agree in all settings of these roles do the same work."""
BASES = (
    "base_throughput",
    "base_epoch_time",
    "base_train_time",
    "base_throughput_per_device",
    "base_devices",
)
# Training to a quality target may need a different number of epochs in each row, so more rows must agree.
SHARE = {"train_work": 2 / 3}
AT_LEAST = {"train_work": 3}
MAX_CAMPS = 8
BASE_SHARE = 0.6
"""Share of the rows with a speed-up that must have the same base before the others are compared with it."""


Camp = tuple[Bounds, tuple[int, ...]]
"""The overlap of some intervals, and their indices."""


@lru_cache(maxsize=32)
def keys_of(*roles: str) -> tuple[str, ...]:
    """Return the settings with one of these roles."""
    return tuple(key for key, role in SETTINGS.items() if role in roles)


class Agreed(NamedTuple):
    """The value that most rows of a group agree on, and which rows those are."""

    bounds: Bounds
    rows: tuple[int, ...]
    group: tuple[int, ...]


class Peers:
    """The rows of a table, with the stated and computed figures of each, and the values they agree on."""

    def __init__(self, table: RowTable) -> None:
        self.rows = table.rows
        self.given = [observed(row) for row in table.rows]
        self.items = ["samples" if (item := item_of(row)) in SAMPLES else item for row in table.rows]
        self.solved = [solve(given) for given in self.given]
        self.agreed: list[dict[str, Agreed]] = [{} for _ in table.rows]
        self.split: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
        """Pairs of groups of equal size whose work per epoch differs; it is not known which is right."""
        self._groups: dict[Callable[[Row], Hashable], list[list[int]]] = {}
        for name in WORK:
            self._share(name, self._group(work_key))
        if any("speedup" in given or "efficiency" in given for given in self.given):
            for name in BASES:
                self._share(name, self._find_best_grouping(name))

    def constants(self, index: int) -> dict[str, Bounds]:
        """Return the values that the other rows agree on, as bounds for this row."""
        row, agreed = self.rows[index], self.agreed[index]
        # Prefer rates as base: the last batch may make one epoch longer than another.
        left_out = ("base_epoch_time", "base_train_time") if "base_throughput" in agreed else ()
        seen = {name: entry.bounds for name, entry in agreed.items() if name not in left_out}
        work = self.bounds(index, "epoch_work") or seen.get("epoch_work")
        if "epoch_work" in seen:
            seen["epoch_work"] = last_batch(seen["epoch_work"], row)
        by_time = [name for name in seen if name == "base_epoch_time" or name.startswith("base_throughput")]
        if work and not any(name.startswith("throughput") for name in self.given[index]):
            wide = last_batch(work, row)
            for name in by_time:
                base = seen[name]
                seen[name] = Bounds(base.low + wide.low - work.low, base.high + wide.high - work.high)
        return seen

    def bounds(self, index: int, name: str) -> Bounds | None:
        """Return a row's own interval for a quantity, or None if its figures contradict each other."""
        solved: Solved = self.solved[index]
        given = self.given[index]
        no_rate = "items_per_energy" in given and not any(own.startswith("throughput") for own in given)
        if no_rate and name.startswith("base_throughput"):
            # Without a rate, speed-ups come from times, which may include one batch more or less than the energy.
            solved = solve(without(given, ("items_per_energy",)))
        found = solved.known.get(name) if solved.clash is None else None
        return last_batch(found, self.rows[index]) if found and name == "epoch_work" else found

    def _group(self, key: Callable[[Row], Hashable]) -> list[list[int]]:
        if key in self._groups:
            return self._groups[key]
        groups: defaultdict[Hashable, list[int]] = defaultdict(list)
        counting: dict[Hashable, str] = {}
        keys = [key(row) for row in self.rows]
        for own, item in zip(keys, self.items, strict=True):
            if item:
                counting.setdefault(own, item)
        # Tokens and samples are different work; a row without a rate joins the first group with its key.
        for index, (own, item) in enumerate(zip(keys, self.items, strict=True)):
            groups[own, item or counting.get(own, "")].append(index)
        self._groups[key] = list(groups.values())
        return self._groups[key]

    def _share(self, name: str, groups: list[list[int]]) -> None:
        for group in groups:
            having, first = self._collect_voices(group, name)
            camps = vote([found for _, found in having])
            won = _merge(camps)
            if won is None or not _is_enough(name, len(won[1]), len(having)):
                if len(camps) == 2 and name == "epoch_work":
                    self._note_split(having, camps)
                # If groups have the same size, the one with the base row is right about the base.
                won = next((camp for camp in camps if first is not None and having[camp[1][0]][0] == first), None)
                won = won or next((camp for camp in camps if first in [having[at][0] for at in camp[1]]), None)
            if won is not None:
                entry = Agreed(won[0], tuple(having[at][0] for at in won[1]), tuple(index for index, _ in having))
                for index in group:
                    self.agreed[index][name] = entry

    def _collect_voices(self, group: list[int], name: str) -> tuple[list[tuple[int, Bounds]], int | None]:
        """Return each row's interval for a quantity, and the index of the base row: its ratio is 1, or missing.

        Many tables do not print the ratio of the base. The row with the fewest devices is then the base.
        """
        having = [(index, found) for index in group if (found := self.bounds(index, name))]
        plain = name.removeprefix("base_")
        if name == plain or not having:
            return having, None
        ratio = "efficiency" if name == "base_throughput_per_device" else "speedup"
        stated = [index for index in group if _is_one(self.rows[index], ratio)]
        voting = {index for index, _ in having}
        ones = [index for index in stated if index in voting]
        silent = [index for index in group if index not in voting and self.bounds(index, plain)]
        least = min((self.rows[index].number("devices") or 0 for index in group), default=0)
        silent = [index for index in silent if self.rows[index].number("devices") == least]
        if not stated and len(silent) == 1 and (found := self.bounds(silent[0], plain)):
            return [*having, (silent[0], found)], silent[0]
        return having, ones[0] if len(ones) == 1 else None

    def _note_split(self, having: list[tuple[int, Bounds]], camps: list[Camp]) -> None:
        one, two = (set(members) for _, members in camps)
        first, second = [having[at] for at in sorted(one - two)], [having[at] for at in sorted(two - one)]
        own, other = first[0][1], second[0][1]
        a, b = (self.rows[camp[0][0]].number("global_batch") for camp in (first, second))
        if a and b and a != b and other.low - own.high - TINY <= math.log(b / a) <= other.high - own.low + TINY:
            # An epoch may be a fixed number of batches; the work then grows with the batch, which is not an error.
            return
        self.split.append((tuple(index for index, _ in first), tuple(index for index, _ in second)))

    def _find_best_grouping(self, name: str) -> list[list[int]]:
        """Return the grouping of rows by common base: the whole table, each system, each setting, or each size.

        The table does not state it, so the grouping that explains most rows is used, the simplest first.
        """
        best: list[list[int]] = []
        most = 0.0
        for key in (work_key, system_key, settings_key, size_key):
            groups = self._group(key)
            explained = against = 0.0
            for group in groups:
                having, first = self._collect_voices(group, name)
                largest = max((float(len(members)) for _, members in vote([found for _, found in having])), default=0.0)
                # A stated base explains its group even with only one other row, if only the size differs.
                alone = 1.5 if first is not None and key is settings_key else 0.0
                largest = largest if largest >= 2 else alone
                if len(having) >= 2:
                    explained += largest
                    against += len(having) - largest
            enough = explained >= BASE_SHARE * (explained + against)
            if enough and explained - against > most:
                best, most = groups, explained - against
        return best


def vote(bounds: Sequence[Bounds]) -> list[Camp]:
    """Return the largest groups of overlapping intervals: the overlap and the indices. Usually there is one group."""
    begins, ends = sorted(entry.low for entry in bounds), sorted(entry.high for entry in bounds)
    levels: list[tuple[int, float]] = []
    opened = closed = 0
    # The most intervals overlap where one of them begins. Both lists are sorted, so one pass counts them.
    for start in begins:
        while opened < len(begins) and begins[opened] <= start + TINY:
            opened += 1
        while ends[closed] < start - TINY:
            closed += 1
        levels.append((opened - closed, start))
    most = max((level for level, _ in levels), default=0)
    camps: dict[tuple[int, ...], Bounds] = {}
    for start in [start for level, start in levels if level == most][: MAX_CAMPS + 1]:
        members = tuple(
            index for index, entry in enumerate(bounds) if entry.low <= start + TINY and entry.high >= start - TINY
        )
        high = min(bounds[index].high for index in members)
        camps[members] = Bounds(start, max(start, high))
    return [(agreed, members) for members, agreed in camps.items()]


def _merge(camps: list[Camp]) -> Camp | None:
    """Merge groups that share most intervals, because only rounding separates the few that do not overlap."""
    if not camps:
        return None
    core = set.intersection(*(set(members) for _, members in camps))
    everyone = set().union(*(members for _, members in camps))
    if 2 * len(core) <= len(everyone) or len(camps) > MAX_CAMPS:
        return None
    return Bounds(min(b.low for b, _ in camps), max(b.high for b, _ in camps)), tuple(sorted(everyone))


def work_key(row: Row) -> tuple[object, ...]:
    """Return the key of rows of one table that do the same work."""
    return (row.source, row.table, *(row.get(key) for key in keys_of(*WORK_ROLES)))


def system_key(row: Row) -> tuple[object, ...]:
    """Return the key of rows that do the same work on the same system."""
    return (*work_key(row), *(row.get(key) for key in keys_of("system")))


_FOLLOWS_SIZE = {*keys_of("size", "evidence"), "batch_per_device", "global_batch", "parallelism"}
_BESIDE_SIZE = tuple(key for key in SETTINGS if key not in _FOLLOWS_SIZE)


def settings_key(row: Row) -> tuple[object, ...]:
    """Return the key of rows with the same settings, except the size and what follows from it."""
    return (row.source, row.table, *(row.get(key) for key in _BESIDE_SIZE))


def size_key(row: Row) -> tuple[object, ...]:
    """Return the key of rows that do the same work on the same number of devices."""
    return (*work_key(row), *(row.get(key) for key in keys_of("size")))


_last: list[tuple[RowTable, Peers]] = []


def peers_of(table: RowTable) -> Peers:
    """Return the analysed rows of a table. The last result is cached, because many rules check the same table."""
    if not _last or _last[0][0] is not table:
        _last[:] = [(table, Peers(table))]
    return _last[0][1]


def _is_one(row: Row, ratio: str) -> bool:
    """Return whether a row is marked as the base by a speed-up of 1 or an efficiency of 100 %."""
    return any(
        math.isclose(amount.value, 1.0)
        for metric, amount in row.figures.items()
        if ALIASES.get(metric, metric) == ratio
    )


def _is_enough(name: str, agreeing: int, having: int) -> bool:
    return (
        agreeing >= AT_LEAST.get(name, 2) and agreeing > SHARE.get(name, 0.5) * having - TINY and 2 * agreeing > having
    )
