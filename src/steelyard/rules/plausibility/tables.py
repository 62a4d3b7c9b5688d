"""Rules on figures that are unlikely beside the others of their table (SY703, SY704). Knows ratios and digits."""

from __future__ import annotations

import math
import re
import statistics
from collections import defaultdict
from itertools import combinations
from typing import TYPE_CHECKING

from steelyard.rules.rule import Example, TableRule
from steelyard.rules.scaling.tables import Speed, speeds_of
from steelyard.rules.table.peers import WORK_ROLES, keys_of
from steelyard.rules.table.phrases import label, listed, places, printed, setting, times
from steelyard.rules.table.settings import SETTINGS
from steelyard.rules.table.units import unit_of
from steelyard.stats.steady import MAD_TO_SD

if TYPE_CHECKING:
    from collections.abc import Iterator

    from steelyard.contracts.record import Finding
    from steelyard.rules.table.row import Row, RowTable

LEAST_PEERS = 5
FLOOR = 0.15
"""Logarithm: the ratio of two machines varies by this much from model to model even in the best of tables."""
FAR = 5.0
MAX_SYSTEMS, MAX_WORKS = 24, 400
CHANCE = 0.01
"""Expected number of pairs of rows that agree in so many digits by chance."""
LEAST_DIGITS = 3
INDEPENDENT = (("rate", "time"), ("energy", "power", "per_energy"))
"""Rate and time follow from each other, and so do figures of energy once the rate is known."""

System = tuple[object, ...]
_HOURS = ((10.2, 6.1), (4.4, 2.5), (8.8, 4.9), (6.3, 3.9), (12.1, 7.3), (9.1, 5.2), (7.7, 4.4), (5.1, 2.9), (3.3, 2.0))


def _write_example(odd: float) -> str:
    """The example's table: twelve models on two machines, one of them with a time to choose."""
    pairs = (*_HOURS, (2.9, 1.7), (15.1, 8.2), (4.6, odd))
    lines = [f"{system},m{i},train_time,{pair[at]},h" for i, pair in enumerate(pairs) for at, system in enumerate("AB")]
    return "\n".join(["system,model,metric,value,unit", *lines, ""])


class Outlier(TableRule):
    """One ratio of two machines that lies far from all others."""

    code = "SY703"
    name = "outlier"
    severity = "warning"
    verdict = "outlier"
    why = (
        "Two machines keep a similar ratio over many models. One model where the ratio is far off, or turns round, was "
        "likely limited by something else: the input, a shared node, a wrong setting, a single bad run. A mean over "
        "all models, or a conclusion from that one, would be about this accident."
    )
    detected = (
        "For every two machines the ratio of their fastest rows is taken for each model and data set. A ratio is held "
        "against the median of the others, in units of their spread (1.4826 times the median absolute deviation of the "
        "logarithms, at least 15 %). It is reported beyond 5 x (1 + (8 / number of ratios)^2) such units, which grows "
        "for small tables, and never with fewer than 5 others. The row that is far off against most machines is named."
    )
    bad = Example(
        _write_example(11.8), "B is 1.6 to 1.8 times as fast for eleven models, and takes 2.6 times as long for one."
    )
    good = Example(
        _write_example(2.1),
        "B is 2.2 times as fast for one model: more than for the others, but models do differ so much.",
    )
    fix = "repeat the run and look for what limits it; leave it out of means, or show it apart"

    def check(self, table: RowTable) -> Iterator[Finding]:
        """One finding for each row that is far off."""
        for speeds in _group_by_source(table).values():
            yield from self._check_source(speeds)

    def _check_source(self, speeds: dict[System, dict[System, Speed]]) -> Iterator[Finding]:
        far: defaultdict[tuple[System, System], list[tuple[float, str]]] = defaultdict(list)
        for one, other in combinations(list(speeds)[:MAX_SYSTEMS], 2):
            for work, off, evidence in _find_far_off(speeds[one], speeds[other]):
                far[other, work].append((off, evidence))
                far[one, work].append((off, evidence))
        told: set[System] = set()
        for (system, work), found in sorted(far.items(), key=lambda item: (-len(item[1]), -max(item[1])[0])):
            # Both sides of a pair are entered; the side that is far off against more machines is told, and only it.
            if work not in told:
                told.add(work)
                row = speeds[system][work].row
                named = [setting(row, key) for key in ("model", "dataset") if row.get(key) is not None]
                evidence = "; ".join([*named, _format_figures(row)])
                yield self.found(f"{max(found)[1]} works give", place=row.place, evidence=evidence)


class StaleRow(TableRule):
    """A row that repeats the figures of another, digit for digit."""

    code = "SY704"
    name = "stale-row"
    severity = "warning"
    why = (
        "Two different configurations do not give the same figures in every digit. A row that repeats another one was "
        "most likely copied and not yet filled in, or its settings were changed and its figures were not."
    )
    detected = (
        "Two rows of a table differ in the machine, the number of devices or the work, and all their rates, times, "
        "energies and powers are the same text. At least 3 digits must agree, and so many that chance would do it in "
        "fewer than one of 100 such tables; rate and time count once, because one follows from the other."
    )
    bad = Example(
        "devices,metric,value,unit\n"
        "1,throughput,1862.9,images/s\n2,throughput,3717.2,images/s\n4,throughput,3717.2,images/s\n",
        "4 devices have the figure of 2 devices in all five digits.",
    )
    good = Example(
        "devices,metric,value,unit\n"
        "1,throughput,1862.9,images/s\n2,throughput,3717.2,images/s\n4,throughput,7078.1,images/s\n",
        "Each row has its own figure.",
    )
    fix = "fill in the figures that were measured with the settings of the row"

    def check(self, table: RowTable) -> Iterator[Finding]:
        """One finding for each row that repeats an earlier one."""
        tables: defaultdict[tuple[str, str], list[Row]] = defaultdict(list)
        for row in table.rows:
            tables[row.source, row.table].append(row)
        for rows in tables.values():
            yield from self._check_rows(rows)

    def _check_rows(self, rows: list[Row]) -> Iterator[Finding]:
        # The settings by which the figures of two rows must differ.
        telling = [key for key in SETTINGS if key in keys_of("system", "size", *WORK_ROLES)]
        pairs = len(rows) * (len(rows) - 1) / 2
        first: dict[object, Row] = {}
        for row in rows:
            figures = _read_measured(row)
            digits = _count_digits(figures)
            if digits < LEAST_DIGITS or pairs * 10.0**-digits > CHANCE:
                continue
            earlier = first.setdefault(tuple(figures), row)
            stated = [key for key in telling if earlier.get(key) is not None and row.get(key) is not None]
            differing = [key for key in stated if earlier.get(key) != row.get(key)]
            if earlier is not row and differing:
                what = " and ".join(f"{setting(row, key)} against {setting(earlier, key)}" for key in differing[:2])
                message = f"two rows have the same figures, digit for digit, although {what}"
                yield self.found(message, place=places((earlier, row)), evidence=_format_figures(row))


def _group_by_source(table: RowTable) -> dict[str, dict[System, dict[System, Speed]]]:
    """The fastest row of each machine and work, source by source."""
    found: dict[str, dict[System, dict[System, Speed]]] = {}
    for speed in speeds_of(table):
        row = speed.row
        if not speed.by:
            continue
        system = tuple(row.get(key) for key in keys_of("system", "size"))
        work = tuple(row.get(key) for key in keys_of(*WORK_ROLES))
        there = found.setdefault(row.source, {}).setdefault(system, {})
        best = there.get(work)
        ratio = speed.over(best) if best else None
        if best is None or (ratio is not None and ratio.low + ratio.high > 0):
            there[work] = speed
    return found


def _find_far_off(a: dict[System, Speed], b: dict[System, Speed]) -> Iterator[tuple[System, float, str]]:
    """Works whose ratio of two machines is far from the others, how far, and in words."""
    shared = [work for work in list(a)[:MAX_WORKS] if work in b]
    ratios = {work: (over.low + over.high) / 2 for work in shared if (over := b[work].over(a[work]))}
    far = FAR * (1 + (8 / len(ratios)) ** 2) if ratios else FAR
    for work, ratio in ratios.items():
        others = [other for key, other in ratios.items() if key != work]
        if len(others) < LEAST_PEERS:
            return
        middle = statistics.median(others)
        spread = max(FLOOR, MAD_TO_SD * statistics.median(abs(other - middle) for other in others))
        off = abs(ratio - middle) / spread
        if off > far:
            ends = f"{times(math.exp(min(others)))} to {times(math.exp(max(others)))}"
            who = f"{_name_machine(b[work].row, a[work].row)} against {_name_machine(a[work].row, b[work].row)}"
            yield work, off, f"{who}: {times(math.exp(ratio))}, far from the {ends} that {len(others)} other"


def _name_machine(row: Row, other: Row) -> str:
    keys = [key for key in keys_of("system", "size") if row.get(key) is not None and row.get(key) != other.get(key)]
    named = [str(row.get(key))[:40] if key in ("system", "accelerator") else setting(row, key) for key in keys]
    return ", ".join(named) or label(row, (other,))


def _read_measured(row: Row) -> list[tuple[str, str, str]]:
    """Rates, times, energies and powers as printed."""
    kinds = {kind for group in INDEPENDENT for kind in group}
    return sorted(
        (metric, amount.text, amount.unit)
        for metric, amount in row.figures.items()
        if amount.text and (known := unit_of(amount.unit)) and known[0] in kinds
    )


def _count_digits(figures: list[tuple[str, str, str]]) -> int:
    """Digits that agree and do not follow from each other."""
    total = 0
    for group in INDEPENDENT:
        most = 0
        for _, text, unit in figures:
            if (known := unit_of(unit)) is not None and known[0] in group:
                digits = re.split("[eE]", text.replace(",", "").lstrip("+-"))[0]
                significant = digits.replace(".", "") if "." in digits else digits.rstrip("0")
                most = max(most, len(significant.lstrip("0")))
        total += most
    return total


def _format_figures(row: Row) -> str:
    return listed([printed(metric, amount) for metric, amount in row.figures.items()], 4)
