"""Table rules on implausible figures (SY703, SY704): outliers and repeated rows."""

from __future__ import annotations

import math
import re
import statistics
from collections import defaultdict
from itertools import combinations
from typing import TYPE_CHECKING

from steelyard.estimate.student import MAD_TO_SD
from steelyard.numbers import times
from steelyard.rules.rule import Example, TableRule
from steelyard.rules.scaling.tables import Speed, speeds_of
from steelyard.rules.table.peers import WORK_ROLES, keys_of
from steelyard.rules.table.phrases import label, listed, places, printed, setting
from steelyard.rules.table.settings import SETTINGS
from steelyard.rules.table.units import unit_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from steelyard.contracts.finding import Finding
    from steelyard.rules.table.row import Row, RowTable

LEAST_PEERS = 5
FLOOR = 0.15
"""Least spread, as a logarithm: the ratio of two machines varies at least this much between models."""
FAR = 5.0
MAX_SYSTEMS, MAX_WORKS = 24, 400
CHANCE = 0.01
"""Highest expected number of row pairs that agree in all digits by chance."""
LEAST_DIGITS = 3
INDEPENDENT = (("rate", "time"), ("energy", "power", "per_energy"))
"""Groups of dependent figures: time follows from rate, and the energy figures follow from each other given the rate."""

System = tuple[object, ...]
_HOURS = ((10.2, 6.1), (4.4, 2.5), (8.8, 4.9), (6.3, 3.9), (12.1, 7.3), (9.1, 5.2), (7.7, 4.4), (5.1, 2.9), (3.3, 2.0))


def _write_example(odd: float) -> str:
    """Return the example table: twelve models on two machines; `odd` is the last time on machine B."""
    pairs = (*_HOURS, (2.9, 1.7), (15.1, 8.2), (4.6, odd))
    lines = [f"{system},m{i},train_time,{pair[at]},h" for i, pair in enumerate(pairs) for at, system in enumerate("AB")]
    return "\n".join(["system,model,metric,value,unit", *lines, ""])


class Outlier(TableRule):
    """A ratio of two machines that is far from the ratios of other models."""

    code = "SY703"
    name = "outlier"
    severity = "warning"
    verdict = "outlier"
    why = (
        "The ratio of two machines is similar for most models. If one model is far off, something else probably "
        "limited that run: data loading, a shared node, a wrong setting, a single bad run. It distorts means over all "
        "models."
    )
    detected = (
        "For every pair of machines, the ratio of their fastest rows is computed for each model and data set. Each "
        "ratio is compared with the median of the others, in units of their spread (1.4826 times the median absolute "
        "deviation of the logarithms, at least 15 %). An outlier is more than 5 x (1 + (8 / number of ratios)^2) units "
        "away, so the threshold is higher in small tables; at least 5 other ratios are needed. The row that is far off "
        "relative to most machines is reported."
    )
    bad = Example(
        _write_example(11.8), "B is 1.6 to 1.8 times as fast for eleven models, but takes 2.6 times as long for one."
    )
    good = Example(
        _write_example(2.1),
        "B is 2.2 times as fast for one model: more than for the others, but within the usual variation.",
    )
    fix = "repeat the run and find out what limited it; until then exclude it from means, or show it separately"

    def check(self, table: RowTable) -> Iterator[Finding]:
        """Yield one finding per outlier."""
        for speeds in _group_by_source(table).values():
            yield from self._check_source(speeds)

    def _check_source(self, speeds: dict[System, dict[System, Speed]]) -> Iterator[Finding]:
        far: defaultdict[tuple[System, System], list[tuple[float, str]]] = defaultdict(list)
        for one, other in combinations(list(speeds)[:MAX_SYSTEMS], 2):
            for work, off, evidence in _find_far_off(speeds[one], speeds[other]):
                far[other, work].append((off, evidence))
                far[one, work].append((off, evidence))
        reported: set[System] = set()
        for (system, work), outliers in sorted(far.items(), key=lambda item: (-len(item[1]), -max(item[1])[0])):
            # Each pair is entered for both machines; only the machine that is an outlier more often is reported.
            if work not in reported:
                reported.add(work)
                row = speeds[system][work].row
                named = [setting(row, key) for key in ("model", "dataset") if row.get(key) is not None]
                evidence = "; ".join([*named, _format_figures(row)])
                yield self.found(max(outliers)[1], place=row.place, evidence=evidence)


class StaleRow(TableRule):
    """A row with the same figures as another, digit for digit."""

    code = "SY704"
    name = "duplicate-figures"
    severity = "warning"
    why = (
        "Two different configurations do not give the same figures in every digit. Most likely the row was copied and "
        "its figures or settings were not updated."
    )
    detected = (
        "Two rows of a table differ in the machine, the number of devices or the work, but all their rates, times, "
        "energies and powers are printed identically. At least 3 digits must agree, and enough that fewer than one in "
        "100 such tables would agree by chance; rate and time count once, because one follows from the other."
    )
    bad = Example(
        "devices,metric,value,unit\n"
        "1,throughput,1862.9,images/s\n2,throughput,3717.2,images/s\n4,throughput,3717.2,images/s\n",
        "The figure for 4 devices equals that for 2 devices in all five digits.",
    )
    good = Example(
        "devices,metric,value,unit\n"
        "1,throughput,1862.9,images/s\n2,throughput,3717.2,images/s\n4,throughput,7078.1,images/s\n",
        "Each row has its own figure.",
    )
    fix = "enter the figures that were measured with the settings of the row"

    def check(self, table: RowTable) -> Iterator[Finding]:
        """Yield one finding per row that repeats an earlier one."""
        tables: defaultdict[tuple[str, str], list[Row]] = defaultdict(list)
        for row in table.rows:
            tables[row.source, row.table].append(row)
        for rows in tables.values():
            yield from self._check_rows(rows)

    def _check_rows(self, rows: list[Row]) -> Iterator[Finding]:
        # If one of these settings differs, the figures must differ too.
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
                what = ", ".join(f"{setting(earlier, key)} and {setting(row, key)}" for key in differing[:2])
                message = f"two rows with different settings ({what}) have the same figures, digit for digit"
                yield self.found(message, place=places((earlier, row)), evidence=_format_figures(row))


def _group_by_source(table: RowTable) -> dict[str, dict[System, dict[System, Speed]]]:
    """Return the fastest row of each machine and work, by source."""
    fastest: dict[str, dict[System, dict[System, Speed]]] = {}
    for speed in speeds_of(table):
        row = speed.row
        if not speed.by:
            continue
        system = tuple(row.get(key) for key in keys_of("system", "size"))
        work = tuple(row.get(key) for key in keys_of(*WORK_ROLES))
        there = fastest.setdefault(row.source, {}).setdefault(system, {})
        best = there.get(work)
        ratio = speed.over(best) if best else None
        if best is None or (ratio is not None and ratio.low + ratio.high > 0):
            there[work] = speed
    return fastest


def _find_far_off(a: dict[System, Speed], b: dict[System, Speed]) -> Iterator[tuple[System, float, str]]:
    """Yield the works whose ratio of two machines is an outlier, with its distance and a message."""
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
            who = f"{_name_machine(b[work].row, a[work].row)} vs {_name_machine(a[work].row, b[work].row)}"
            yield work, off, f"{who}: {times(math.exp(ratio))}, but {ends} for {len(others)} other models or data sets"


def _name_machine(row: Row, other: Row) -> str:
    keys = [key for key in keys_of("system", "size") if row.get(key) is not None and row.get(key) != other.get(key)]
    named = [str(row.get(key))[:40] if key in ("system", "accelerator") else setting(row, key) for key in keys]
    return ", ".join(named) or label(row, (other,))


def _read_measured(row: Row) -> list[tuple[str, str, str]]:
    """Return the rates, times, energies and powers of a row as printed."""
    kinds = {kind for group in INDEPENDENT for kind in group}
    return sorted(
        (metric, amount.text, amount.unit)
        for metric, amount in row.figures.items()
        if amount.text and (known := unit_of(amount.unit)) and known[0] in kinds
    )


def _count_digits(figures: list[tuple[str, str, str]]) -> int:
    """Count the significant digits of independent figures."""
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
