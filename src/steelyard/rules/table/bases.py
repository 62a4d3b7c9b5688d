"""Find what each printed speed-up or efficiency is relative to.

A table rarely says it. The base is the row of a curve with the ratio 1 or 100 %, which is exact by definition, or the
row with the fewest devices if it has no ratio. That row decides, even if most other rows contradict it. If it is not in
the table, or another base explains clearly more rows, the value that most rows imply decides.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from steelyard.rules.table.batches import split_by_batch
from steelyard.rules.table.relations import ALIASES, OVER, SPANS, TINY, Bounds, cut
from steelyard.rules.table.settings import BATCHES, FOLLOWS, SETTINGS, alike

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence

    from steelyard.rules.table.row import Row

MAX_CAMPS = 8
BASE_SHARE = 0.6
"""Share of the rows with a ratio that a base must explain before the others are compared with it."""
CLEAR_SHARE = 0.8
"""The same for a base other than that of the curve, if every curve has one."""
PLAUSIBLE = math.log(1.5)
"""If no ratio fits a base that is not marked as one, all must be this near, or they are relative to something else."""
MAX_PEERS = 64

SPEEDS = (("throughput", 1), ("epoch_time", -1), ("train_time", -1))
NAMES = {
    ("speedup", "throughput"): "base_throughput",
    ("speedup", "epoch_time"): "base_epoch_time",
    ("speedup", "train_time"): "base_train_time",
    ("efficiency", "throughput"): "base_throughput_per_device",
    ("efficiency", "epoch_time"): "base_epoch_device_time",
    ("efficiency", "train_time"): "base_train_device_time",
}
"""The quantity that a ratio gives for its base, by the figure that the ratio was computed from."""
BASES = (*NAMES.values(), "base_devices", *(f"{over}_base_{name}" for over in OVER for name in ("throughput", *SPANS)))

Camp = tuple[Bounds, tuple[int, ...]]
"""The overlap of some intervals, and their indices."""


class Agreed(NamedTuple):
    """The value that most rows of a group agree on, or that their base row states, and which rows those are."""

    bounds: Bounds
    rows: tuple[int, ...]
    group: tuple[int, ...]
    base: int | None = None
    """The row that is the base, if it is in the table and not in doubt."""


@dataclass
class BaseFit:
    """How well one way to group the rows explains the ratios by one figure."""

    explained: int = 0
    against: int = 0
    declared: bool = True
    """Whether every ratio has a base row in its group."""
    entries: list[tuple[list[int], Agreed]] = field(default_factory=list)
    ones: list[int] = field(default_factory=list)
    """The base rows, whose ratio is exactly 1."""
    far: float = 0.0
    """The largest distance of a ratio from a base that is not marked."""

    @property
    def is_enough(self) -> bool:
        """Return whether the base explains enough ratios."""
        return self.explained >= (1 if self.declared else 2) and self.share >= BASE_SHARE

    @property
    def share(self) -> float:
        """Return the share of the ratios that the bases explain."""
        return self.explained / max(1, self.explained + self.against)

    @property
    def lead(self) -> int:
        """Return how many more ratios are explained than not."""
        return self.explained - self.against


class Ratios:
    """The ratios of one kind in a table, and what each implies for its base."""

    def __init__(self, rows: Sequence[Row], known: Sequence[Mapping[str, Bounds]], ratio: str) -> None:
        self.rows, self.known, self.ratio = rows, known, ratio
        self.marked = {index for index, row in enumerate(rows) if _is_one(row, ratio)}

    def find(self, groupings: Sequence[list[list[int]]]) -> Iterator[tuple[str, BaseFit]]:
        """Yield the base of each row by each figure that explains the ratios; the first grouping is that by curves."""
        stated = False
        first: list[tuple[str, BaseFit]] = []
        for figure, sign in SPEEDS:
            fits = [self.fit(groups, figure, sign) for groups in groupings]
            curves = fits[0]
            declared = curves.declared and bool(curves.entries)
            # Ratios near those to the base of their own curve are meant to be relative to it.
            others = [] if declared and curves.far < PLAUSIBLE else fits[1:]
            others = [fit for fit in others if not declared or fit.share >= CLEAR_SHARE]
            enough = [fit for fit in (curves, *others) if fit.is_enough]
            name = NAMES[self.ratio, figure]
            if enough:
                stated = True
                yield name, max(enough, key=lambda fit: fit.lead)
            elif fits and fits[0].entries:
                first.append((name, fits[0]))
        if stated or not first:
            return
        # No base explains the ratios: the base rows of the curves decide, if the table has them.
        name, fit = max(first, key=lambda entry: entry[1].explained + entry[1].against)
        if fit.explained or fit.far < PLAUSIBLE:
            fit.entries = [(group, made) for group, made in fit.entries if made.base is not None]
            yield name, fit

    def fit(self, groups: list[list[int]], figure: str, sign: int) -> BaseFit:
        """Compare the ratios with the base of each group."""
        made = BaseFit()
        for group in groups:
            implied = {index: bounds for index in group if (bounds := self._imply(index, figure, sign)) is not None}
            if not implied:
                continue
            base = self._find_base(group, implied, figure)
            own = self._read_own(base, figure, sign) if base is not None else None
            if base is None or own is None:
                self._take_vote(made, group, implied)
            else:
                fitting = [index for index in implied if overlap(self._imply_cut(index, figure, sign), cut(own))]
                self._take_base(made, group, implied, base, own, [index for index in fitting if index != base])
        return made

    def _take_base(
        self, made: BaseFit, group: list[int], implied: dict[int, Bounds], base: int, own: Bounds, fitting: list[int]
    ) -> None:
        others = {index: bounds for index, bounds in implied.items() if index != base}
        made.ones.append(base)
        if len(others) >= 2 and not fitting:
            camps = vote(list(others.values()))
            if len(camps) == 1 and len(camps[0][1]) == len(others):
                # All others agree on another base, so the figure of the base row is in doubt.
                made.explained, made.against = made.explained + len(others), made.against + 1
                made.entries.append((group, Agreed(camps[0][0], tuple(others), tuple(implied))))
                return
        made.explained, made.against = made.explained + len(fitting), made.against + len(others) - len(fitting)
        if base not in self.marked:
            gaps = [max(other.low - own.high, own.low - other.high) for other in others.values()]
            made.far = max([made.far, *gaps])
        made.entries.append((group, Agreed(own, (base, *fitting), tuple({base: None, **implied}), base)))

    def _take_vote(self, made: BaseFit, group: list[int], implied: dict[int, Bounds]) -> None:
        made.declared = False
        indices = list(implied)
        camps = vote(list(implied.values()))
        won = merge(camps)
        size = len(won[1]) if won else 1
        made.explained += size if size >= 2 else 0
        made.against += len(indices) - (size if size >= 2 else 0) if len(indices) >= 2 else 0
        if won and len(won[1]) >= 2 and 2 * len(won[1]) > len(indices):
            made.entries.append((group, Agreed(won[0], tuple(indices[at] for at in won[1]), tuple(indices))))

    def _find_base(self, group: list[int], implied: Mapping[int, Bounds], figure: str) -> int | None:
        """Return the base of a group: the ratio is 1, or missing in the only row with the fewest devices."""
        counts = {index: self.rows[index].number("devices") or 0.0 for index in group}
        least = min(counts.values())
        ones = [index for index in group if index in self.marked]
        if len(ones) > 1:
            ones = [index for index in ones if counts[index] == least]
        if ones:
            return ones[0] if len(ones) == 1 else None
        silent = [
            index for index in group if counts[index] == least and index not in implied and figure in self.known[index]
        ]
        return silent[0] if len(silent) == 1 and self.ratio not in self.known[silent[0]] else None

    def _read_own(self, index: int, figure: str, sign: int) -> Bounds | None:
        """Return the quantity that ratios imply, as the row itself states it."""
        own = self.known[index].get(figure)
        if own is None or self.ratio == "speedup":
            return own
        devices = self.known[index].get("devices")
        return None if devices is None else Bounds(own.low - sign * devices.low, own.high - sign * devices.low)

    def _imply(self, index: int, figure: str, sign: int) -> Bounds | None:
        """Return what the ratio of a row implies for its base."""
        own, stated = self._read_own(index, figure, sign), self.known[index].get(self.ratio)
        if own is None or stated is None:
            return None
        return own if index in self.marked else self._divide(own, stated, sign)

    def _imply_cut(self, index: int, figure: str, sign: int) -> Bounds:
        """Return the same if digits may have been cut; the row must have both figures."""
        own, stated = self._read_own(index, figure, sign), self.known[index][self.ratio]
        assert own is not None
        return cut(own) if index in self.marked else self._divide(cut(own), cut(stated), sign)

    @staticmethod
    def _divide(own: Bounds, stated: Bounds, sign: int) -> Bounds:
        low, high = (-stated.high, -stated.low) if sign > 0 else (stated.low, stated.high)
        return Bounds(own.low + low, own.high + high)


def curves_of(rows: Sequence[Row], groups: Iterable[list[int]]) -> list[list[int]]:
    """Split groups of rows with equal settings by their batch, as curves are."""
    curves: list[list[int]] = []
    for group in groups:
        index = {id(rows[at]): at for at in group}
        counted = [rows[at] for at in group if rows[at].number("devices")]
        parts = split_by_batch(counted) if counted else []
        curves += [[index[id(row)] for row in part] for part in parts]
        rest = [at for at in group if not rows[at].number("devices")]
        curves += [rest] if rest else []
    return curves


def others_of(rows: Sequence[Row], ratio: str) -> dict[int, int]:
    """Return the base row of each row with a ratio to another precision or another system.

    The base has that precision or system and otherwise equal settings. If several do, it is that with the same batch.
    """
    keys = ("precision",) if ratio == "speedup_over_precision" else ("system", "accelerator")
    roles = {SETTINGS[key] for key in keys} - {"arithmetic"}
    apart = {*keys, *BATCHES, *(name for key in keys for name in FOLLOWS.get(key, ()))}
    apart |= {key for key, role in SETTINGS.items() if role in (*roles, "evidence", "environment")}
    beside = [key for key in SETTINGS if key not in apart]
    groups: defaultdict[Hashable, list[int]] = defaultdict(list)
    for index, row in enumerate(rows):
        groups[row.source, row.table, *(row.get(key) for key in beside)].append(index)
    bases: dict[int, int] = {}
    for group in groups.values():
        for index in group:
            if ratio not in rows[index].figures:
                continue
            others = [other for other in group[:MAX_PEERS] if other != index]
            fitting = [other for other in others if _is_meant(rows[index], rows[other], ratio, keys)]
            same = [other for other in fitting if all(_agree(rows[index], rows[other], key) for key in BATCHES)]
            if len(same) == 1 or len(fitting) == 1:
                bases[index] = (same if len(same) == 1 else fitting)[0]
    return bases


def _is_meant(row: Row, other: Row, ratio: str, keys: tuple[str, ...]) -> bool:
    named = row.bases.get(ratio)
    values = [(key, value) for key in keys if (value := other.get(key)) is not None]
    if named is not None:
        return any(alike(key, named, value) == "same" for key, value in values)
    return any(row.get(key) is not None and not _agree(row, other, key) for key, _ in values)


def _agree(a: Row, b: Row, key: str) -> bool:
    return a.get(key) == b.get(key)


def overlap(a: Bounds, b: Bounds) -> bool:
    """Return whether two intervals have a value in common."""
    return a.low <= b.high + TINY and b.low <= a.high + TINY


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


def merge(camps: list[Camp]) -> Camp | None:
    """Merge groups that share most intervals, because only rounding separates the few that do not overlap."""
    if not camps:
        return None
    core = set.intersection(*(set(members) for _, members in camps))
    everyone = set().union(*(members for _, members in camps))
    if 2 * len(core) <= len(everyone) or len(camps) > MAX_CAMPS:
        return None
    return Bounds(min(b.low for b, _ in camps), max(b.high for b, _ in camps)), tuple(sorted(everyone))


def _is_one(row: Row, ratio: str) -> bool:
    """Return whether a row is marked as the base by a speed-up of 1 or an efficiency of 100 %."""
    return any(
        math.isclose(amount.value, 1.0)
        for metric, amount in row.figures.items()
        if ALIASES.get(metric, metric) == ratio
    )
