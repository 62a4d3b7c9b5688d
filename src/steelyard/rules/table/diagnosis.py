"""Find rows whose figures contradict each other, and the most likely mistake.

A single mistake explains a contradiction if correcting it removes every contradiction of the row: a wrong unit, scope,
device count or base row. Otherwise it is different work (if only the work of the epoch is in doubt), or an unexplained
contradiction.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from steelyard.numbers import number, percent
from steelyard.rules.table.peers import BASES, WORK, Peers, peers_of, work_key
from steelyard.rules.table.phrases import in_unit_of, label, listed, places, printed, whole
from steelyard.rules.table.relations import (
    EXTENSIVE,
    TINY,
    Bounds,
    exactly,
    metric_kind,
    samples_of,
    solve,
    variable,
    without,
)
from steelyard.rules.table.units import ENERGIES, POWERS, PREFIXES, TIMES, counted, unit_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from steelyard.contracts.record import Severity
    from steelyard.rules.table.row import Amount, Row, RowTable

SMALL, LARGE = 0.02, 0.10
"""Gap between figures beyond rounding: a note below the first value, an error above the second."""
# A wider interval would always contain the factor of some unit.
WIDEST_FACTOR = math.log(1.5)
SCOPED = {
    *EXTENSIVE,
    *(f"{name}_per_{scope}" for name in EXTENSIVE for scope in ("device", "node")),
    "items_per_energy",
}


@dataclass(frozen=True)
class Diagnosis:
    """A contradiction in one or more rows, for the rule with this code."""

    code: str
    rows: tuple[Row, ...]
    gap: float
    """The gap between the figures beyond rounding, as a logarithm."""
    message: str
    evidence: str

    @property
    def severity(self) -> Severity:
        """Return the severity, which depends on the size of the gap."""
        if self.gap < math.log1p(SMALL):
            return "note"
        return "warning" if self.gap < math.log1p(LARGE) else "error"

    @property
    def place(self) -> str:
        """Return the places of the rows."""
        return places(self.rows)


@dataclass(frozen=True)
class Suspect:
    """A figure whose removal resolves the contradiction, and the value that the other figures give for it."""

    name: str
    stated: Bounds
    deduced: Bounds | None

    @property
    def gap(self) -> float:
        """Return the distance between the two intervals."""
        return max(self.deduced.low - self.stated.high, self.stated.low - self.deduced.high) if self.deduced else 0.0

    def off_by(self, factor: float) -> bool:
        """Return whether the printed figure times `factor` would fit, with intervals narrow enough to tell."""
        if self.deduced is None or factor <= 0 or math.isclose(factor, 1.0):
            return False
        low, high = self.deduced.low - self.stated.high, self.deduced.high - self.stated.low
        return high - low < WIDEST_FACTOR and low - TINY <= math.log(factor) <= high + TINY


_MADE_FROM_OTHERS = {"efficiency": 5, "speedup": 4, "items_per_energy": 3, "energy_per_epoch": 1, "energy": 1}
_MADE_FROM_OTHERS |= {name: 2 for name in SCOPED if name not in (*EXTENSIVE, "items_per_energy")}
_NOT_PRINTED = {
    **dict.fromkeys(BASES, "the base of the other rows"),
    "epoch_work": "the work of an epoch",
    "train_work": "the work of the training",
    "step_work": "the global batch",
}
_last: list[tuple[RowTable, list[Diagnosis]]] = []


def diagnose(table: RowTable) -> list[Diagnosis]:
    """Return all contradictions in a table. The last result is cached, because several rules check the same table."""
    if not _last or _last[0][0] is not table:
        peers = peers_of(table)
        found = [made for index in range(len(peers.rows)) if (made := Clash.of(peers, index))]
        _last[:] = [(table, [*_gather(found), *(_split(peers, *camps) for camps in peers.split)])]
    return _last[0][1]


class Clash:
    """The figures of one row that contradict each other."""

    def __init__(self, peers: Peers, index: int, given: dict[str, Bounds], names: frozenset[str]) -> None:
        self.peers, self.index, self.row, self.names = peers, index, peers.rows[index], names
        self.amounts: dict[str, tuple[str, Amount]] = {}
        for metric, amount in self.row.figures.items():
            name = variable(self.row, metric)
            if name is not None:
                self.amounts.setdefault(name, (metric, amount))
        self.suspects: dict[str, Suspect] = {}
        for name in sorted(names):
            rest = solve(without(given, (name,)))
            if rest.clash is None:
                self.suspects[name] = Suspect(name, given[name], rest.known.get(name))

    @staticmethod
    def of(peers: Peers, index: int) -> Diagnosis | None:
        """Return the diagnosis of a row, or None if its figures are consistent."""
        given = {**peers.constants(index), **peers.given[index]}
        solved = solve(given)
        if solved.clash is None:
            return None
        return Clash(peers, index, given, solved.clash).explained()

    def explained(self) -> Diagnosis:
        """Return the first mistake that explains the contradiction."""
        for find in (self._find_unit_slip, self._find_base_slip, self._find_scope_slip, self._find_count_slip):
            made = find()
            if made:
                return made
        if any(name in self.suspects for name in WORK):
            return self._explain_work()
        return self._explain_plainly()

    def _find_unit_slip(self) -> Diagnosis | None:
        best: tuple[float, Suspect, str] | None = None
        for suspect in self._sort_suspects():
            for unit in other_units(self.amounts[suspect.name][1].unit):
                factor = _read_factor(unit) / _read_factor(self.amounts[suspect.name][1].unit)
                if suspect.off_by(factor):
                    off = abs(_compute_middle_ratio(suspect) - math.log(factor))
                    # If several mistakes fit, a wrong unit of time is the most likely: times come in many units.
                    off += 0 if metric_kind(suspect.name) == "time" else TINY
                    if best is None or off < best[0]:
                        best = (off, suspect, unit)
        if best is None:
            return None
        metric, amount = self.amounts[best[1].name]
        message = f"{printed(metric, amount)} fits the other figures only if the unit is {best[2]}"
        return self._make("SY505", best[1], message)

    def _find_base_slip(self) -> Diagnosis | None:
        for name in ("speedup", "efficiency"):
            suspect = self.suspects.get(name)
            if suspect is None or name not in self.amounts or not self.names.intersection(BASES):
                continue
            other = next((row for row in self._find_other_bases(name) if row is not None), None)
            if other is not None:
                what = printed(*self.amounts[name])
                telling = label(other, [row for row in self.peers.rows if work_key(row) == work_key(self.row)])
                message = f"{what} is relative to the row with {telling}, not to the base of the other rows"
                return self._make("SY508", suspect, message)
        return None

    def _find_scope_slip(self) -> Diagnosis | None:
        devices, nodes = self.row.number("devices") or 1.0, self.row.number("nodes") or 1.0
        scopes = {devices / nodes: "devices per node", nodes: "nodes", devices: "devices"}
        for suspect in self._sort_suspects():
            for count, what in scopes.items():
                if suspect.name not in SCOPED or count <= 1:
                    continue
                for factor in (count, 1 / count):
                    if suspect.off_by(factor):
                        metric, amount = self.amounts[suspect.name]
                        small = "too small" if factor > 1 else "too large"
                        message = (
                            f"{printed(metric, amount)} is {small} by a factor of {number(count, 3)}, the number of "
                            f"{what}: the scope is wrong"
                        )
                        return self._make("SY506", suspect, message)
        return None

    def _find_count_slip(self) -> Diagnosis | None:
        suspect = self.suspects.get("devices")
        if suspect is None or suspect.deduced is None:
            return None
        low, high = math.exp(suspect.deduced.low), math.exp(suspect.deduced.high)
        whole = max(1, round(suspect.deduced.middle))
        if not low - 1e-6 <= whole <= high + 1e-6:
            return None
        stated = math.exp(suspect.stated.low)
        return self._make("SY507", suspect, f"the figures are those of {whole} devices, but the row says {stated:g}")

    def _explain_work(self) -> Diagnosis:
        name = next(name for name in WORK if name in self.suspects)
        suspect = self.suspects[name]
        own = self._compute_central(suspect)
        item = next((item for _, amount in self.amounts.values() if (item := counted(amount.unit))), "samples")
        stated = samples_of(self.row, self.row.number("epoch_samples")) if name == "epoch_work" else None
        stated = stated or suspect.stated.middle
        agreed = self.peers.agreed[self.index].get(name)
        count = f"{whole(stated)} {item}"
        if agreed is None or (name == "epoch_work" and name in self.peers.given[self.index]):
            whose = f"the {count} that the row states"
        else:
            whose = f"the {count} of {len(agreed.rows)} of {len(agreed.group)} rows with the same work"
        change = f"{percent(abs(own / stated - 1))} {'more' if own > stated else 'fewer'}"
        message = f"the figures give {whole(own)} {item}, {change} than {whose}"
        return self._make("SY503", suspect, message)

    def _explain_plainly(self) -> Diagnosis:
        named = [suspect for suspect in self._sort_suspects() if suspect.deduced]
        if named:
            metric, amount = self.amounts[named[0].name]
            # The figures it is compared with, printed ones first.
            basis = sorted(self._find_basis(named[0]), key=lambda name: (name not in self.amounts, name))
            others = [self.amounts[name][0] if name in self.amounts else _NOT_PRINTED.get(name, name) for name in basis]
            given = f"but {' and '.join(others)} give {in_unit_of(amount, self._compute_central(named[0]))}"
            return self._make("SY504", named[0], f"{printed(metric, amount)}, {given}")
        parts = [self.amounts[name][0] for name in self._list_names() if name in self.amounts]
        return self._make("SY504", None, f"{', '.join(parts[:5])} contradict each other")

    def _find_basis(self, suspect: Suspect) -> frozenset[str]:
        """Return the figures that give another value, as few as possible; from the row itself if these are enough."""
        alone = solve(without(self.peers.given[self.index], (suspect.name,))).known.get(suspect.name)
        if alone is not None and Suspect(suspect.name, suspect.stated, alone).gap > TINY:
            return min(alone.low_from, alone.high_from, key=len)
        deduced = suspect.deduced
        return min(deduced.low_from, deduced.high_from, key=len) if deduced else frozenset()

    def _make(self, code: str, suspect: Suspect | None, message: str) -> Diagnosis:
        gap = suspect.gap if suspect else math.log1p(LARGE)
        return Diagnosis(code, (self.row,), gap, message, self._format_evidence(suspect))

    def _format_evidence(self, suspect: Suspect | None) -> str:
        parts = [printed(*self.amounts[name]) for name in self._list_names() if name in self.amounts]
        parts += [f"{key} {self.row.number(key):g}" for key in ("devices", "nodes") if key in self.names]
        if suspect and suspect.deduced and suspect.name in self.amounts:
            factor = number(math.exp(abs(_compute_middle_ratio(suspect))), 3)
            what = "smaller" if _compute_middle_ratio(suspect) > 0 else "larger"
            parts.append(f"{self.amounts[suspect.name][0]} is {factor} times {what} than these give")
        names = set(self._list_names())
        times_of = names & {"epoch_time", "train_time"}
        if len(names) == 2 and "throughput" in names and times_of and not self.names & set(BASES):
            # If only rate and time are in doubt, show them as a product.
            product = f"{printed(*self.amounts['throughput'])} x {printed(*self.amounts[times_of.pop()])}"
            parts = [product, *parts[2:]]
        return listed(parts, 8)

    def _compute_central(self, suspect: Suspect) -> float:
        """Return the value that the other figures give, computed from the printed values."""
        basis = self._find_basis(suspect)
        if suspect.deduced is None:
            return suspect.stated.middle
        exact = {name: exactly(amount.value) for name, (_, amount) in self.amounts.items()}
        given = {**self.peers.constants(self.index), **self.peers.given[self.index], **exact}
        found = solve({name: given[name] for name in basis}).known.get(suspect.name)
        return (found or suspect.deduced).middle

    def _list_names(self) -> list[str]:
        return [name for name in self.amounts if name in self.names]

    def _sort_suspects(self) -> list[Suspect]:
        """Return the printed suspects; derived figures first, because they are more likely to be wrong."""
        found = [suspect for name, suspect in self.suspects.items() if name in self.amounts]
        return sorted(found, key=lambda suspect: (-_MADE_FROM_OTHERS.get(suspect.name, 0), suspect.name))

    def _find_other_bases(self, name: str) -> Iterator[Row | None]:
        """Yield the rows of the same table that give the printed ratio if used as base."""
        own, stated = self.peers.solved[self.index].known, self.suspects[name].stated
        metrics = ("throughput", "epoch_time", "train_time") if name == "speedup" else ("throughput_per_device",)
        for index, row in enumerate(self.peers.rows):
            if index == self.index or (row.source, row.table) != (self.row.source, self.row.table):
                continue
            for metric in metrics:
                here, there = own.get(metric), self.peers.solved[index].known.get(metric)
                if here and there and _ratio_holds(here, there, stated, inverse=metric.endswith("time")):
                    yield row


def other_units(unit: str) -> list[str]:
    """Return the other units of the same kind."""
    known = unit_of(unit)
    if known is None:
        return []
    if known[0] in ("rate", "per_energy"):
        item = counted(unit)
        per = TIMES if known[0] == "rate" else ENERGIES
        made = [f"{prefix}{item}/{name}" for name in per for prefix in PREFIXES]
        # Units with the same denominator first: if several have the same factor, these are more likely.
        return sorted(
            (name for name in made if name != unit), key=lambda name: name.partition("/")[2] != unit.partition("/")[2]
        )
    if known[0] == "ratio":
        return ["fraction"] if unit == "%" else ["%"]
    tables = {"time": TIMES, "energy": ENERGIES, "power": POWERS}
    return [name for name in tables.get(known[0], {}) if name != unit]


def _read_factor(unit: str) -> float:
    known = unit_of(unit)
    return known[1] if known else 1.0


def _compute_middle_ratio(suspect: Suspect) -> float:
    """Return the logarithm of the factor that would correct the printed figure."""
    assert suspect.deduced is not None
    return (suspect.deduced.low + suspect.deduced.high - suspect.stated.low - suspect.stated.high) / 2


def _ratio_holds(here: Bounds, there: Bounds, stated: Bounds, *, inverse: bool) -> bool:
    low, high = (
        (there.low - here.high, there.high - here.low) if inverse else (here.low - there.high, here.high - there.low)
    )
    return low <= stated.high + TINY and stated.low <= high + TINY


def _gather(found: list[Diagnosis]) -> list[Diagnosis]:
    """Merge small differences in work into one finding, so that they do not hide the large ones."""
    small = [made for made in found if made.code == "SY503" and made.severity == "note"]
    if len(small) < 2:
        return found
    out = [made for made in found if made not in small]
    by_work: dict[object, list[Diagnosis]] = {}
    for made in small:
        by_work.setdefault(work_key(made.rows[0]), []).append(made)
    for group in by_work.values():
        rows = tuple(made.rows[0] for made in group)
        first = max(group, key=lambda made: made.gap)
        left = len(group) - 1
        less = "1 more row differs by less" if left == 1 else f"{left} more rows differ by less"
        more = f"{first.message}; {less}" if left else first.message
        lines = [f"{label(made.rows[0], rows)}: {made.evidence.replace('; ', ', ')}" for made in group]
        out.append(Diagnosis("SY503", rows, first.gap, more, listed(lines, 4)))
    return out


def _split(peers: Peers, one: tuple[int, ...], other: tuple[int, ...]) -> Diagnosis:
    """Return the diagnosis for two groups of equal size that did different work; it is not known which is wrong."""
    rows = tuple(peers.rows[index] for index in sorted((*one, *other)))
    first, second = peers.bounds(one[0], "epoch_work"), peers.bounds(other[0], "epoch_work")
    assert first is not None
    assert second is not None
    gap = max(first.low - second.high, second.low - first.high)
    message = (
        f"rate x time is {whole(first.middle)} in one row and {whole(second.middle)} in another row with the same work"
    )
    parts = [f"{label(row, rows)}: {number(made.middle)}" for row, made in zip(rows, (first, second), strict=False)]
    return Diagnosis("SY503", rows, gap, message, listed(parts))
