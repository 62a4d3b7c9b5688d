"""Find what the rows of a table must have in common: the work of an epoch, and the base of the speed-ups.

Each row gives an interval for such a quantity. Where most rows agree, the others are compared with that value.
"""

from __future__ import annotations

import math
from collections import defaultdict
from functools import lru_cache
from typing import TYPE_CHECKING

from steelyard.rules.table.bases import NAMES, Agreed, Camp, Ratios, curves_of, merge, others_of, overlap, vote
from steelyard.rules.table.relations import (
    OVER,
    SAMPLES,
    SPANS,
    TINY,
    Bounds,
    Solved,
    exactly,
    item_of,
    last_batch,
    observed,
    solve,
    without,
)
from steelyard.rules.table.settings import SETTINGS, on_cpu

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from steelyard.rules.table.row import Row, RowTable

WORK = ("epoch_work", "train_work")
WORK_ROLES = ("work", "data", "amount")
"""Rows that agree in all settings of these roles do the same work."""
# Training to a quality target may need a different number of epochs in each row, so more rows must agree.
SHARE = {"train_work": 2 / 3}
AT_LEAST = {"train_work": 3}


@lru_cache(maxsize=32)
def keys_of(*roles: str) -> tuple[str, ...]:
    """Return the settings with one of these roles."""
    return tuple(key for key, role in SETTINGS.items() if role in roles)


class Peers:
    """The rows of a table, with the stated and computed figures of each, and the values they agree on.

    `cuts`: allow for printed digits that were cut instead of rounded.
    """

    def __init__(self, table: RowTable, *, cuts: bool = False) -> None:
        self.rows = table.rows
        self.given = [observed(row, cuts=cuts) for row in table.rows]
        self.items = ["samples" if (item := item_of(row)) in SAMPLES else item for row in table.rows]
        self.solved = [solve(given) for given in self.given]
        self.agreed: list[dict[str, Agreed]] = [{} for _ in table.rows]
        self.split: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
        """Pairs of groups of equal size whose work per epoch differs; it is not known which is right."""
        self._groups: dict[Callable[[Row], Hashable], list[list[int]]] = {}
        for name in WORK:
            self._share(name, self._group(work_key))
        self.exact: set[tuple[int, str]] = set()
        """Rows and ratios that are 1 by definition: the row is the base."""
        self.over: dict[str, dict[int, int]] = {}
        """The base row of each row with a ratio to another precision or system, by ratio."""
        for ratio in ("speedup", "efficiency"):
            if any(ratio in given for given in self.given):
                self._find_bases(ratio)
        self._share("base_devices", self._group(settings_key))
        for ratio in OVER:
            if any(ratio in given for given in self.given):
                self.over[ratio] = others_of(self.rows, ratio)

    def constants(self, index: int) -> dict[str, Bounds]:
        """Return the values that the other rows agree on, as bounds for this row."""
        row, agreed = self.rows[index], self.agreed[index]
        # Prefer rates as base: the last batch may make one epoch longer than another.
        left_out: set[str] = set()
        left_out |= {"base_epoch_time", "base_train_time"} if "base_throughput" in agreed else set()
        by_rate = "base_throughput_per_device" in agreed
        left_out |= {"base_epoch_device_time", "base_train_device_time"} if by_rate else set()
        seen = {name: entry.bounds for name, entry in agreed.items() if name not in left_out}
        for ratio, bases in self.over.items():
            if index in bases:
                known = self._read_known(bases[index])
                seen |= {f"{ratio}_base_{name}": known[name] for name in ("throughput", *SPANS) if name in known}
        work = self.bounds(index, "epoch_work") or seen.get("epoch_work")
        if "epoch_work" in seen:
            seen["epoch_work"] = last_batch(seen["epoch_work"], row)
        by_time = [name for name in seen if name.startswith(("base_epoch", "base_throughput"))]
        if work and not any(name.startswith("throughput") for name in self.given[index]):
            wide = last_batch(work, row)
            for name in by_time:
                base = seen[name]
                seen[name] = Bounds(base.low + wide.low - work.low, base.high + wide.high - work.high)
        return seen

    def follows(self, index: int, ratio: str) -> bool:
        """Return whether a ratio follows from a figure that its row and the base row print."""
        base = self.base_of(index, ratio)
        stated = self.given[index][ratio]
        if base is None or base == index:
            return False
        own, other = self.given[index], self.given[base]
        growth = 0.0
        if ratio == "efficiency":
            if "devices" not in own or "devices" not in other:
                return False
            growth = own["devices"].low - other["devices"].low
        for name in ("throughput", *SPANS):
            if name in own and name in other:
                low, high = own[name].low - other[name].high, own[name].high - other[name].low
                low, high = (low, high) if name == "throughput" else (-high, -low)
                return overlap(Bounds(low - growth, high - growth), stated)
        return False

    def base_of(self, index: int, ratio: str) -> int | None:
        """Return the row that a ratio is relative to, if it is in the table."""
        if ratio in self.over:
            return self.over[ratio].get(index)
        names = [name for (kind, _), name in NAMES.items() if kind == ratio]
        return next((self.agreed[index][name].base for name in names if name in self.agreed[index]), None)

    def bounds(self, index: int, name: str) -> Bounds | None:
        """Return a row's own interval for a quantity, or None if its figures contradict each other."""
        solved: Solved = self.solved[index]
        known = solved.known.get(name) if solved.clash is None else None
        return last_batch(known, self.rows[index]) if known and name == "epoch_work" else known

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
            having = [(index, bounds) for index in group if (bounds := self.bounds(index, name))]
            camps = vote([bounds for _, bounds in having])
            won = merge(camps)
            if won is None or not _is_enough(name, len(won[1]), len(having)):
                if len(camps) == 2 and name == "epoch_work":
                    self._note_split(having, camps)
                continue
            entry = Agreed(won[0], tuple(having[at][0] for at in won[1]), tuple(index for index, _ in having))
            for index in group:
                self.agreed[index].setdefault(name, entry)

    def _find_bases(self, ratio: str) -> None:
        """Find the base of the ratios: in the curve, in all rows of equal settings, of a system, or of a size."""
        by_settings = self._group(settings_key)
        groupings = [curves_of(self.rows, by_settings), by_settings]
        groupings += [self._group(key) for key in (work_key, system_key, size_key)]
        known = [self._read_known(index) for index in range(len(self.rows))]
        for name, fit in Ratios(self.rows, known, ratio).find(groupings):
            for index in fit.ones:
                # The base is 1 by definition, however many digits are printed.
                self.exact.add((index, ratio))
                self.given[index] = {**self.given[index], ratio: exactly(1.0)}
            for group, entry in fit.entries:
                for index in group:
                    self.agreed[index][name] = entry
                    if entry.base is not None and (devices := known[entry.base].get("devices")):
                        self.agreed[index]["base_devices"] = entry._replace(bounds=devices)

    def _read_known(self, index: int) -> dict[str, Bounds]:
        """Return what a row states and what follows from it; only what it states if that is contradictory."""
        given = self.given[index]
        if "items_per_energy" in given and not any(own.startswith("throughput") for own in given):
            # Without a rate, speed-ups come from times, which may include one batch more or less than the energy.
            solved = solve(without(given, ("items_per_energy",)))
        else:
            solved = self.solved[index]
        return given if solved.clash is not None else solved.known

    def _note_split(self, having: list[tuple[int, Bounds]], camps: list[Camp]) -> None:
        one, two = (set(members) for _, members in camps)
        first, second = [having[at] for at in sorted(one - two)], [having[at] for at in sorted(two - one)]
        own, other = first[0][1], second[0][1]
        a, b = (self.rows[camp[0][0]].number("global_batch") for camp in (first, second))
        if a and b and a != b and other.low - own.high - TINY <= math.log(b / a) <= other.high - own.low + TINY:
            # An epoch may be a fixed number of batches; the work then grows with the batch, which is not an error.
            return
        self.split.append((tuple(index for index, _ in first), tuple(index for index, _ in second)))


def work_key(row: Row) -> tuple[object, ...]:
    """Return the key of rows of one table that do the same work."""
    return (row.source, row.table, *(row.get(key) for key in keys_of(*WORK_ROLES)))


def system_key(row: Row) -> tuple[object, ...]:
    """Return the key of rows that do the same work on the same system."""
    return (*work_key(row), *(row.get(key) for key in keys_of("system")))


_FOLLOWS_SIZE = {*keys_of("size", "evidence", "batches"), "parallel", "backend", "threads"}
_BESIDE_SIZE = tuple(key for key in SETTINGS if key not in _FOLLOWS_SIZE)


def settings_key(row: Row) -> tuple[object, ...]:
    """Return the key of rows with the same settings, except the size and what follows from it."""
    # On CPUs the threads of a rank are its device.
    own = row.get("threads") if on_cpu(row) else None
    return (row.source, row.table, own, *(row.get(key) for key in _BESIDE_SIZE))


def size_key(row: Row) -> tuple[object, ...]:
    """Return the key of rows that do the same work on the same number of devices."""
    return (*work_key(row), *(row.get(key) for key in keys_of("size")))


_last: list[tuple[RowTable, Peers]] = []


def peers_of(table: RowTable) -> Peers:
    """Return the analysed rows of a table. The last result is cached, because many rules check the same table."""
    if not _last or _last[0][0] is not table:
        _last[:] = [(table, Peers(table))]
    return _last[0][1]


def _is_enough(name: str, agreeing: int, having: int) -> bool:
    return (
        agreeing >= AT_LEAST.get(name, 2) and agreeing > SHARE.get(name, 0.5) * having - TINY and 2 * agreeing > having
    )
