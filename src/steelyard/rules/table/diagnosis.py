"""Find rows whose figures contradict each other, and the most likely mistake.

A single mistake explains a contradiction if correcting it removes every contradiction of the row: a wrong unit, scope,
device count or base row, or figures of two rows that were swapped. Otherwise it is different work (if only the work of
the epoch is in doubt), or an unexplained contradiction. Digits that were cut instead of rounded are one note.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from steelyard.contracts.finding import WrongFigure
from steelyard.numbers import number, percent
from steelyard.rules.table.bases import BASES, overlap
from steelyard.rules.table.peers import WORK, Peers, peers_of, work_key
from steelyard.rules.table.phrases import (
    bare,
    in_unit_of,
    label,
    listed,
    listed_of,
    places,
    printed,
    whole,
    wrong_setting,
)
from steelyard.rules.table.relations import (
    EXTENSIVE,
    OVER,
    RATIOS,
    SPANS,
    TINY,
    Bounds,
    Solved,
    cut,
    exactly,
    metric_kind,
    samples_of,
    solve,
    variable,
    without,
)
from steelyard.rules.table.settings import SETTINGS
from steelyard.rules.table.units import ENERGIES, POWERS, PREFIXES, TIMES, counted, unit_of
from steelyard.rules.table.units import printed as read_number

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from steelyard.contracts.finding import Severity
    from steelyard.rules.table.row import Amount, Row, RowTable

SMALL, LARGE = 0.02, 0.10
"""Gap between figures beyond rounding: a note below the first value, an error above the second."""
SMALL_RATIO = 0.005
"""Limit for a ratio of two printed figures, which is a division: nothing but rounding may differ."""
MAX_DIAGNOSED = 400
"""Rows of a table whose contradiction is explained one by one. The others are counted."""
MAX_OF_ROW = 4
MAX_BASES = 500
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
    wrong: tuple[WrongFigure, ...] = ()
    suspect: Suspect | None = None
    """The figure in doubt, if it is one."""
    is_cut: bool = False
    """Whether cut digits explain it."""

    @property
    def severity(self) -> Severity:
        """Return the severity, which depends on the size of the gap."""
        ratio = self.suspect is not None and self.suspect.name in RATIOS
        if self.is_cut or self.gap < math.log1p(SMALL_RATIO if ratio else SMALL):
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


_MADE_FROM_OTHERS = {**dict.fromkeys(OVER, 6), "efficiency": 5, "speedup": 4, "mfu": 4, "other_rate": 3, "cost": 3}
_MADE_FROM_OTHERS |= {"items_per_energy": 3, "energy_per_epoch": 1, "energy": 1}
_MADE_FROM_OTHERS |= {name: 2 for name in SCOPED if name not in (*EXTENSIVE, "items_per_energy")}
_NOT_PRINTED = {
    **dict.fromkeys(BASES, "the base"),
    "length_ratio": "the sequence length",
    "peak": "the peak of the device",
    "work_done": "the samples of the training",
    "billed": "the devices",
    "epoch_work": "the work of an epoch",
    "train_work": "the work of the training",
    "step_work": "the global batch",
}
_last: list[tuple[RowTable, list[Diagnosis]]] = []


def diagnose(table: RowTable) -> list[Diagnosis]:
    """Return all contradictions in a table. The last result is cached, because several rules check the same table."""
    if not _last or _last[0][0] is not table:
        peers = peers_of(table)
        clashing = [index for index in range(len(peers.rows)) if solve(given_of(peers, index)).clash is not None]
        diagnoses = _explain_rows(peers, Peers(table, cuts=True), clashing[:MAX_DIAGNOSED]) if clashing else []
        if len(clashing) > MAX_DIAGNOSED:
            rows = tuple(peers.rows[index] for index in clashing[MAX_DIAGNOSED:])
            message = f"the figures of {len(rows)} more rows contradict each other; these were not looked at closely"
            diagnoses.append(Diagnosis("SY504", rows, math.log1p(LARGE), message, ""))
        diagnoses = find_swaps(diagnoses)
        _last[:] = [(table, [*_gather(_gather_cut(diagnoses)), *(_split(peers, *camps) for camps in peers.split)])]
    return _last[0][1]


def _explain_rows(peers: Peers, wide: Peers, clashing: list[int]) -> list[Diagnosis]:
    """Explain rows that contradict themselves; `wide` allows for digits that were cut."""
    cuts = [index for index in clashing if solve(given_of(wide, index)).clash is None]
    # A table that cuts its digits in several rows does so everywhere.
    used = wide if len(cuts) > 1 else peers
    made = [diagnosis for index in clashing if index not in set(cuts) for diagnosis in Clash.of(used, index)]
    return made + [Clash(wide, index, given_of(peers, index), Solved({})).explain_cut() for index in cuts]


def given_of(peers: Peers, index: int) -> dict[str, Bounds]:
    """Return what a row states and what other rows give for it.

    A ratio that follows from two printed figures is right, even if others tell their unrounded values more exactly.
    """
    given = {**peers.constants(index), **peers.given[index]}
    return without(given, [name for name in RATIOS if name in given and peers.follows(index, name)])


class Clash:
    """The figures of one row that contradict each other."""

    def __init__(self, peers: Peers, index: int, given: dict[str, Bounds], solved: Solved) -> None:
        names = solved.clash or frozenset()
        self.gap = solved.gap
        self.peers, self.index, self.row, self.names = peers, index, peers.rows[index], names
        self.amounts: dict[str, tuple[str, Amount]] = {}
        for metric, amount in self.row.figures.items():
            name = variable(self.row, metric)
            if name is not None:
                self.amounts.setdefault(name, (metric, amount))
        self.suspects: dict[str, Suspect] = {}
        self.given = given
        for name in sorted(names):
            rest = solve(without(given, (name,)))
            if rest.clash is None and (index, name) not in peers.exact:
                self.suspects[name] = Suspect(name, given[name], rest.known.get(name))

    @staticmethod
    def of(peers: Peers, index: int) -> list[Diagnosis]:
        """Return the contradictions of a row; each is explained without the figures of those before."""
        left = given_of(peers, index)
        diagnoses: list[Diagnosis] = []
        while len(diagnoses) < MAX_OF_ROW:
            solved = solve(left)
            if solved.clash is None:
                break
            made = Clash(peers, index, left, solved).explained()
            diagnoses += made
            doubted = [entry.suspect.name for entry in made if entry.suspect is not None]
            if not doubted:
                break
            left = without(left, doubted)
        return diagnoses

    def explained(self) -> list[Diagnosis]:
        """Return the first mistake that explains the contradiction; if ratios contradict a figure, each of them."""
        for find in (self._find_unit_slip, self._find_base_slip, self._find_scope_slip, self._find_count_slip):
            made = find()
            if made:
                return [made]
        if any(name in self.suspects for name in WORK):
            return [self._explain_work()]
        return self._explain_ratios() or [self._explain_plainly()]

    def explain_cut(self) -> Diagnosis:
        """Return the diagnosis of a row whose figures fit if digits were cut, as its peers allow for."""
        left = given_of(self.peers, self.index)
        cut_names = [name for name in self.amounts if name in left]
        # Measured figures first: those that were computed from them are the ones to be cut.
        for name in sorted(cut_names, key=lambda name: (_MADE_FROM_OTHERS.get(name, 0), name)):
            if solve({**left, name: self.given[name]}).clash is None:
                left[name] = self.given[name]
                cut_names.remove(name)
        wrong: list[WrongFigure] = []
        for name in cut_names:
            deduced = solve(without(left, (name,))).known.get(name)
            wrong += self._find_wrong(Suspect(name, self.given[name], deduced))
        parts = [f"{entry.name} {entry.printed} is {entry.recomputed} by the other figures" for entry in wrong]
        message = "; ".join(parts) or "figures contradict each other in the last digit"
        return Diagnosis("SY504", (self.row,), 0.0, message, "", tuple(wrong), is_cut=True)

    def _explain_ratios(self) -> list[Diagnosis]:
        """Return one diagnosis for each ratio that contradicts its base, if the rest of the row is consistent."""
        own = [name for name in RATIOS if name in self.amounts and name in self.given]
        own = [name for name in own if (self.index, name) not in self.peers.exact]
        rest = without(self.given, own)
        solved = solve(rest)
        if len(own) < 2 or solved.clash is not None:
            return []
        diagnoses = []
        for name in own:
            deduced = solved.known.get(name)
            suspect = Suspect(name, self.given[name], deduced)
            if deduced is not None and suspect.gap > TINY:
                diagnoses.append(self._explain_figure(suspect, rest))
        if len(diagnoses) < 2:
            return diagnoses
        for blamed in self._sort_suspects():
            if blamed.name not in RATIOS and blamed.deduced is not None:
                metric, amount = self.amounts[blamed.name]
                hint = f"all would fit {metric} {in_unit_of(amount, blamed.deduced.middle)} instead of {amount.text}"
                return [replace(made, evidence=f"{made.evidence}; {hint}") for made in diagnoses]
        return diagnoses

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
        for name in RATIOS:
            suspect = self.suspects.get(name)
            if suspect is None or name not in self.amounts or not self.names.intersection(BASES):
                continue
            other = next((row for row in self._find_other_bases(name) if row is not None), None)
            if other is not None:
                what, right = (
                    printed(*self.amounts[name]),
                    in_unit_of(self.amounts[name][1], self._compute_central(suspect)),
                )
                telling = label(other, [row for row in self.peers.rows if work_key(row) == work_key(self.row)])
                message = f"{what} is relative to the row with {telling}; relative to its base it is {right}"
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
            return self._explain_figure(named[0], self.peers.given[self.index])
        parts = [self.amounts[name][0] for name in self._list_names() if name in self.amounts]
        return self._make("SY504", None, f"{', '.join(parts[:5])} contradict each other")

    def _explain_figure(self, suspect: Suspect, given: Mapping[str, Bounds]) -> Diagnosis:
        metric, amount = self.amounts[suspect.name]
        # The figures it is compared with, printed ones first.
        basis = sorted(self._find_basis(suspect, given), key=lambda name: (name not in self.amounts, name))
        others = dict.fromkeys(
            self.amounts[name][0] if name in self.amounts else _NOT_PRINTED.get(name, name) for name in basis
        )
        value = in_unit_of(amount, self._compute_central(suspect))
        message = f"{printed(metric, amount)}, but {' and '.join(others)} give {value}"
        slip = digit_slip(amount, suspect.deduced) if suspect.deduced else ""
        made = self._make("SY504", suspect, f"{message}: {slip}" if slip else message)
        # A slip of the pen is never a matter of rounding.
        return replace(made, gap=max(made.gap, math.log1p(SMALL))) if slip else made

    def _find_basis(self, suspect: Suspect, given: Mapping[str, Bounds] | None = None) -> frozenset[str]:
        """Return the figures that give another value, as few as possible; from the row itself if these are enough."""
        given = self.peers.given[self.index] if given is None else given
        alone = solve(without(given, (suspect.name,))).known.get(suspect.name)
        if alone is not None and Suspect(suspect.name, suspect.stated, alone).gap > TINY:
            return min(alone.low_from, alone.high_from, key=len)
        deduced = suspect.deduced
        return min(deduced.low_from, deduced.high_from, key=len) if deduced else frozenset()

    def _make(self, code: str, suspect: Suspect | None, message: str) -> Diagnosis:
        gap = suspect.gap if suspect else self.gap
        return Diagnosis(
            code, (self.row,), gap, message, self._format_evidence(suspect), self._find_wrong(suspect), suspect
        )

    def _find_wrong(self, suspect: Suspect | None) -> tuple[WrongFigure, ...]:
        if suspect is None or suspect.deduced is None:
            return ()
        place, value = self.row.place, self._compute_central(suspect)
        if suspect.name == "devices":
            return (wrong_setting(self.row, "devices", round(value)),)
        if suspect.name not in self.amounts:
            return ()
        metric, amount = self.amounts[suspect.name]
        text = amount.text or number(amount.value)
        return (WrongFigure(place=place, name=metric, printed=text, recomputed=bare(amount, value)),)

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
        exact = {
            name: exactly(amount.value)
            for name, (_, amount) in self.amounts.items()
            if (self.index, name) not in self.peers.exact
        }
        given = {**self.peers.constants(self.index), **self.peers.given[self.index], **exact}
        given |= self._base_figures(suspect.name, given)
        central = solve({name: given[name] for name in basis}).known.get(suspect.name)
        return (central or suspect.deduced).middle

    def _base_figures(self, ratio: str, given: Mapping[str, Bounds]) -> dict[str, Bounds]:
        """Return what the base row of a ratio prints, without its rounding: 9500 over 2500 is 3.8."""
        index = self.peers.base_of(self.index, ratio) if ratio in RATIOS else None
        if index is None or index == self.index:
            return {}
        row = self.peers.rows[index]
        named = ((variable(row, metric), amount.value) for metric, amount in row.figures.items())
        figures = {name: exactly(value) for name, value in named if name is not None and value > 0}
        counts = {key: exactly(count) for key in ("devices", "nodes") if (count := row.number(key))}
        known = solve({**figures, **counts}).known
        return {
            name: known[stem]
            for name in given
            if name in BASES and (stem := name.rpartition("base_")[2]) in known and overlap(known[stem], given[name])
        }

    def _list_names(self) -> list[str]:
        return [name for name in self.amounts if name in self.names]

    def _sort_suspects(self) -> list[Suspect]:
        """Return the printed suspects; derived figures first, because they are more likely to be wrong."""
        suspects = [suspect for name, suspect in self.suspects.items() if name in self.amounts]
        return sorted(suspects, key=lambda suspect: (-_MADE_FROM_OTHERS.get(suspect.name, 0), suspect.name))

    def _find_other_bases(self, name: str) -> Iterator[Row | None]:
        """Yield the rows of the same table that give the printed ratio if used as base."""
        own, stated = self.peers.solved[self.index].known, self.suspects[name].stated
        metrics = ("throughput_per_device",) if name == "efficiency" else ("throughput", *SPANS)
        known = self.peers.over.get(name, {}).get(self.index)
        for index, row in enumerate(self.peers.rows[:MAX_BASES]):
            if index in (self.index, known) or (row.source, row.table) != (self.row.source, self.row.table):
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
    return overlap(Bounds(low, high), cut(stated))


def digit_slip(amount: Amount, deduced: Bounds) -> str:
    """Return how a slip of the pen explains a printed figure: two digits swapped, or the point in the wrong place."""
    text = amount.text
    factor = _read_factor(amount.unit)
    low, high = math.exp(deduced.low) / factor, math.exp(deduced.high) / factor
    known = read_number(text)
    if known is None:
        return ""
    half = (known[2] - known[1]) / 2
    for at in range(len(text) - 1):
        one, two = text[at], text[at + 1]
        if one.isdigit() and two.isdigit() and one != two:
            other = read_number(text[:at] + two + one + text[at + 2 :])
            if other is not None and other[0] + half >= low and other[0] - half <= high:
                return f"the digits {one} and {two} may be swapped"
    for shift in (0.01, 0.1, 10.0, 100.0):
        if low <= known[2] * shift and known[1] * shift <= high:
            return "the decimal point may be in the wrong place"
    return ""


def find_swaps(diagnoses: list[Diagnosis]) -> list[Diagnosis]:
    """Merge pairs of contradictions into one if the figures fit each other's rows: whole columns, or two rows."""
    by_figure: defaultdict[tuple[str, str, str], list[Diagnosis]] = defaultdict(list)
    for made in diagnoses:
        if made.suspect is not None and made.suspect.deduced is not None and made.code in ("SY504", "SY508"):
            by_figure[made.rows[0].source, made.rows[0].table, made.suspect.name].append(made)
    pairs: defaultdict[tuple[object, ...], list[tuple[Diagnosis, Diagnosis]]] = defaultdict(list)
    taken: set[int] = set()
    for (*_, name), group in by_figure.items():
        for at, made in enumerate(group[:MAX_DIAGNOSED]):
            fitting = [other for other in group[at + 1 :] if _fit_each_other(made, other)]
            fitting = [other for other in fitting if id(other) not in taken]
            if fitting and id(made) not in taken:
                other = min(fitting, key=lambda entry: len(_find_apart(made.rows[0], entry.rows[0])))
                taken |= {id(made), id(other)}
                pairs[name, *_find_apart(made.rows[0], other.rows[0])].append((made, other))
    swapped = [_merge_swapped(str(key[0]), members) for key, members in pairs.items()]
    return [*(made for made in diagnoses if id(made) not in taken), *swapped]


def _fit_each_other(a: Diagnosis, b: Diagnosis) -> bool:
    assert a.suspect is not None
    assert b.suspect is not None
    one, two = a.suspect, b.suspect
    if one.deduced is None or two.deduced is None:
        return False
    return overlap(cut(one.stated), two.deduced) and overlap(cut(two.stated), one.deduced)


def _find_apart(a: Row, b: Row) -> list[tuple[str, object, object]]:
    """Return the settings in which two rows differ; the batch only if nothing else differs."""
    keys = [key for key in SETTINGS if a.get(key) != b.get(key)]
    keys = [key for key in keys if SETTINGS[key] not in ("batches", "evidence")] or keys
    return [(key, a.get(key), b.get(key)) for key in keys if key != "nodes" or "devices" not in keys]


def _merge_swapped(name: str, members: list[tuple[Diagnosis, Diagnosis]]) -> Diagnosis:
    every = [made for pair in members for made in pair]
    rows = tuple(made.rows[0] for made in every)
    first, second = members[0][0].rows[0], members[0][1].rows[0]
    sides = f"{label(first, (second,))} and {label(second, (first,))}"
    metric = every[0].wrong[0].name if every[0].wrong else name
    worst = max(every, key=lambda made: made.gap)
    message = f"{metric} of the rows with {sides} is swapped: each fits the other row"
    if len(members) > 1:
        message = f"{metric} of the rows with {sides} is swapped in {len(members)} pairs of rows"
    evidence = listed_of((f"{label(made.rows[0], rows)}: {made.message}" for made in every), len(every), 4)
    wrong = tuple(entry for made in every for entry in made.wrong)
    return Diagnosis("SY512", rows, worst.gap, message, evidence, wrong, worst.suspect)


def _gather_cut(diagnoses: list[Diagnosis]) -> list[Diagnosis]:
    """Merge all rows whose digits were cut into one note."""
    cuts = [made for made in diagnoses if made.is_cut]
    if not cuts:
        return diagnoses
    rows = tuple(made.rows[0] for made in cuts)
    names = dict.fromkeys(entry.name for made in cuts for entry in made.wrong)
    what = " and ".join(names) or "figures"
    where = "1 row" if len(cuts) == 1 else f"{len(cuts)} rows"
    message = f"the last digits of {what} were cut instead of rounded in {where}"
    evidence = listed([made.message for made in cuts], 4)
    wrong = tuple(entry for made in cuts for entry in made.wrong)
    joined = Diagnosis("SY504", rows, 0.0, message, evidence, wrong, is_cut=True)
    return [*(made for made in diagnoses if not made.is_cut), joined]


def _gather(diagnoses: list[Diagnosis]) -> list[Diagnosis]:
    """Merge small differences in work into one finding, so that they do not hide the large ones."""
    small = [made for made in diagnoses if made.code == "SY503" and made.severity == "note"]
    if len(small) < 2:
        return diagnoses
    out = [made for made in diagnoses if made not in small]
    by_work: dict[object, list[Diagnosis]] = {}
    for made in small:
        by_work.setdefault(work_key(made.rows[0]), []).append(made)
    for group in by_work.values():
        rows = tuple(made.rows[0] for made in group)
        first = max(group, key=lambda made: made.gap)
        left = len(group) - 1
        less = "1 more row differs by less" if left == 1 else f"{left} more rows differ by less"
        more = f"{first.message}; {less}" if left else first.message
        lines = (f"{label(made.rows[0], rows)}: {made.evidence.replace('; ', ', ')}" for made in group)
        out.append(Diagnosis("SY503", rows, first.gap, more, listed_of(lines, len(group), 4)))
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
