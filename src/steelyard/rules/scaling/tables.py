"""Table rules on rows with different device counts (SY301, SY303): superlinear and confounded scaling."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from steelyard.numbers import number, percent, times
from steelyard.rules.rule import Example, TableRule
from steelyard.rules.table.peers import WORK_ROLES, keys_of, peers_of, system_key
from steelyard.rules.table.phrases import printed
from steelyard.rules.table.relations import ALIASES, RATIOS, Bounds, variable
from steelyard.rules.table.row import Pair
from steelyard.rules.table.settings import Difference, blocks, confounders

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from steelyard.contracts.finding import Finding, Severity
    from steelyard.rules.table.row import Row, RowTable

MARGIN = 0.03
"""Two identical runs may differ by this much, so an efficiency of 103 % needs no explanation."""
MAX_BASES = 20
SPEEDS = (("throughput", 1), ("epoch_time", -1), ("train_time", -1))
"""Figures that measure speed; 1 if a larger value is faster, -1 if a smaller one is."""


class Speed(NamedTuple):
    """The speed figures of a row."""

    row: Row
    devices: float
    by: dict[str, Bounds]

    def over(self, base: Speed) -> Bounds | None:
        """Return the logarithm of the speed-up over a base row, from the first figure that both have."""
        for name, sign in SPEEDS:
            own, other = self.by.get(name), base.by.get(name)
            if own and other:
                high, low = own.high - other.low, own.low - other.high
                return Bounds(low, high) if sign > 0 else Bounds(-high, -low)
        return None


class Superlinear(TableRule):
    """An efficiency above 100 %."""

    code = "SY301"
    name = "superlinear"
    severity = "warning"
    verdict = "superlinear"
    why = (
        "Four devices rarely do more than four times the work of one. If a table says so, the rows often differ in "
        "something it does not show: the batch per device, the data loading, caching, or a slow first run. The "
        "efficiency is then not evidence of good scaling."
    )
    detected = (
        "The speed-up over the row with the fewest devices and otherwise equal settings, by throughput or by time, is "
        "divided by the ratio of device counts. Its lower bound, after rounding, exceeds 103 %, because two identical "
        "runs may differ by 3 %. A printed efficiency above 103 % is reported as well. Strong scaling may divide the "
        "accumulation steps; that is a note if no row states a speed-up or an efficiency."
    )
    bad = Example(
        "devices,model,metric,value,unit\n1,detector,train_time,4.59,h\n4,detector,train_time,1.08,h\n",
        "4.25 times as fast on 4 devices: an efficiency of 106 %.",
    )
    good = Example(
        "devices,model,metric,value,unit\n1,detector,train_time,4.59,h\n4,detector,train_time,1.18,h\n",
        "3.89 times as fast on 4 devices: an efficiency of 97 %.",
    )
    fix = "repeat both rows with the same batch, input and warm-up; if the gain remains, explain it"

    def check(self, table: RowTable) -> Iterator[Finding]:
        """Yield one finding per row."""
        recomputed: set[int] = set()
        for group in _group_by_system(table):
            claims = _claims_scaling(group)
            group.sort(key=lambda speed: speed.devices)
            for speed in group:
                efficiency = _find_efficiency(speed, group)
                if efficiency:
                    recomputed.add(id(speed.row))
                    if efficiency[1].low > math.log1p(MARGIN):
                        yield self._report(speed, *efficiency, claims=claims)
        for row in table.rows:
            for metric, amount in row.figures.items():
                printed_alone = variable(row, metric) == "efficiency" and id(row) not in recomputed
                if printed_alone and amount.low > 1 + MARGIN:
                    yield self.found(f"{printed(metric, amount)} is above 100 %", place=row.place)

    def _report(self, speed: Speed, base: Speed, efficiency: Bounds, *, claims: bool) -> Finding:
        factor = speed.devices / base.devices
        share = efficiency.middle
        message = f"{times(share * factor)} as fast on {factor:g} times the devices: efficiency {percent(share)}"
        evidence = f"{_format_speeds(speed, base)}; at least {percent(math.exp(efficiency.low))} after rounding"
        steps = [entry.row.get("accumulation") for entry in (speed, base)]
        severity: Severity = "note" if not claims and steps[0] != steps[1] else "warning"
        return self.found(message, place=speed.row.place, evidence=evidence, severity=severity)


class ConfoundedScaling(TableRule):
    """A scaling series where other settings change with the device count."""

    code = "SY303"
    name = "confounded-scaling"
    severity = "error"
    why = (
        "Readers take rows with 1, 4 and 8 devices for a scaling series. If batch, precision or input changed with the "
        "device count, the speed-up is the effect of all these changes together, not of the devices."
    )
    detected = (
        "Rows of one model, data set and system with different device counts form a series, within a table or over the "
        "tables of a source that have one count each. For each larger count, the fastest row without a base of equal "
        "settings at the smallest count is compared with the most similar base that has no equal row at that count. "
        "Keeping the batch per device (weak scaling) or the global batch (strong scaling) is not a change. It is a "
        "warning only if a base of equal settings exists at another count, or if work and precision stayed the same. "
        "If no row of the series has a speed-up or an efficiency, the table claims no scaling: then it is a warning at "
        "most, and a note if only the batch changed."
    )
    bad = Example(
        "devices,precision,batch,metric,value,unit\n"
        "1,fp32,32,throughput,2640,images/s\n4,fp16,256,throughput,37510,images/s\n4,fp16,256,speedup,14.2,x\n",
        "14.2 times as fast on 4 devices, but precision and batch changed as well.",
    )
    good = Example(
        "devices,precision,batch,metric,value,unit\n"
        "1,fp16,256,throughput,9900,images/s\n4,fp16,256,throughput,37510,images/s\n",
        "Only the number of devices changed.",
    )
    fix = "measure the base with the settings of the larger job, and divide by that"

    def check(self, table: RowTable) -> Iterator[Finding]:
        """Yield one finding per larger device count of a series; notes of a table that claims no scaling as one."""
        findings = list(self._check_series(table))
        notes = [finding for finding in findings if finding.severity == "note"]
        yield from (finding for finding in findings if finding.severity != "note")
        if notes:
            more = f"; so in {len(notes) - 1} more rows" if len(notes) > 1 else ""
            yield replace(notes[0], message=f"{notes[0].message}{more}")

    def _check_series(self, table: RowTable) -> Iterator[Finding]:
        for series in _find_series(table):
            least = min(speed.devices for speed in series)
            bases = [speed for speed in series if speed.devices == least][:MAX_BASES]
            for count in sorted({speed.devices for speed in series if speed.devices > least}):
                pair = _find_confounded([speed for speed in series if speed.devices == count], bases)
                if pair:
                    yield self._report(*pair, series)

    def _report(self, speed: Speed, base: Speed, series: list[Speed]) -> Finding:
        ratio = speed.over(base)
        assert ratio is not None
        factor, changes = speed.devices / base.devices, changed(base.row, speed.row)
        what = ", ".join(
            f"{change.key} {_format_value(change.a)} to {_format_value(change.b)}" for change in changes[:5]
        )
        share = percent(ratio.middle / factor)
        message = (
            f"{times(ratio.middle)} as fast on {factor:g} times the devices ({share}), but other settings changed too: "
            f"{what}"
        )
        evidence = _format_speeds(speed, base)
        smaller = [entry for entry in series if entry.devices < speed.devices and entry.over(speed)]
        other = next((entry for entry in smaller[: 5 * MAX_BASES] if _is_clean(entry, speed)), None)
        clean = speed.over(other) if other else None
        severity: Severity = "warning"
        if other is None or clean is None:
            pair = Pair(base.row, speed.row, "devices")
            severity = "error" if any(blocks(pair, change) for change in changes) else "warning"
        else:
            share = percent(clean.middle / (speed.devices / other.devices))
            evidence += f"; with equal settings {times(clean.middle)} over {other.devices:g} devices, {share}"
        if not _claims_scaling(series):
            severity = "note" if all(change.role == "batches" for change in changes) else "warning"
        return self.found(message, place=speed.row.place, evidence=evidence, severity=severity)


def _find_confounded(at_count: list[Speed], bases: list[Speed]) -> tuple[Speed, Speed] | None:
    """Return the fastest row that has no base of equal settings, and the base a reader would compare it with.

    A base that has a row of equal settings at this count is left out: a reader would compare it with that row.
    """
    taken: set[int] = set()
    orphans: list[Speed] = []
    for speed in at_count:
        clean = [number for number, base in enumerate(bases) if not changed(base.row, speed.row)]
        taken.update(clean)
        if not clean:
            orphans.append(speed)
    free = [base for number, base in enumerate(bases) if number not in taken]
    pairs = [(speed, base, ratio) for speed in orphans for base in free if (ratio := speed.over(base))]
    if not pairs:
        return None
    fastest = max(pairs, key=lambda pair: pair[2].middle if pair[1] is pairs[0][1] else 0)[0]
    nearest = min(
        (pair for pair in pairs if pair[0] is fastest), key=lambda pair: len(changed(pair[1].row, fastest.row))
    )
    return fastest, nearest[1]


def speeds_of(table: RowTable) -> list[Speed]:
    """Return the speed of each row, printed or computed. A row without a device count counts as one device.

    A row without figures is included too: it shows that its settings were measured.
    """
    peers, made = peers_of(table), []
    for row, given, solved in zip(peers.rows, peers.given, peers.solved, strict=True):
        known = solved.known if solved.clash is None else given
        by = {name: known[name] for name, _ in SPEEDS if name in known}
        made.append(Speed(row, row.number("devices") or 1.0, by))
    return made


def changed(base: Row, row: Row) -> list[Difference]:
    """Return the settings that changed and do not follow from the number of devices."""
    differing = confounders(Pair(base, row, "devices"))
    growth = (row.number("devices") or 1) / (base.number("devices") or 1)
    keys = {entry.key for entry in differing}
    kept = []
    for entry in differing:
        counts = all(isinstance(value, int | float) and value for value in (entry.a, entry.b))
        ratio = float(entry.b) / float(entry.a) if counts else 0.0
        # If a table states only one of the two batch sizes, weak or strong scaling changes it in proportion.
        alone = not {"batch", "global_batch"} <= keys
        if alone and entry.key == "global_batch" and math.isclose(ratio, growth) and "batch" not in row.settings:
            continue
        if alone and entry.key == "batch" and math.isclose(ratio * growth, 1) and "global_batch" not in row.settings:
            continue
        if entry.key == "global_batch" and "batch" in keys:
            continue
        kept.append(entry)
    return kept


def _claims_scaling(series: list[Speed]) -> bool:
    """Return whether a row states a speed-up or an efficiency. Without one, a table only lists what was measured."""
    return any(ALIASES.get(metric, metric) in RATIOS for entry in series for metric in entry.row.figures)


def _is_clean(base: Speed, speed: Speed) -> bool:
    return not changed(base.row, speed.row)


def _find_efficiency(speed: Speed, group: Sequence[Speed]) -> tuple[Speed, Bounds] | None:
    """Return the base of a row and its efficiency; `group` is sorted by device count."""
    tried = 0
    for base in group:
        if base.devices >= speed.devices or tried >= MAX_BASES:
            return None
        ratio = speed.over(base) if _may_be_clean(base.row, speed.row) else None
        if ratio is None:
            continue
        tried += 1
        if _is_clean(base, speed):
            factor = math.log(speed.devices / base.devices)
            return base, Bounds(ratio.low - factor, ratio.high - factor)
    return None


def _may_be_clean(base: Row, row: Row) -> bool:
    """Check cheaply, before `changed`, that numbers which both rows state are equal.

    Strong scaling by gradient accumulation keeps the global batch and divides the accumulation steps.
    """
    strong = base.get("global_batch") is not None and base.get("global_batch") == row.get("global_batch")
    keys = ("loader.workers", "sequence_length", *(() if strong else ("accumulation",)))
    return all((a := base.get(key)) is None or (b := row.get(key)) is None or a == b for key in keys)


def _group_by_system(table: RowTable) -> list[list[Speed]]:
    """Group the rows that state a device count by table, work and system."""
    groups: defaultdict[object, list[Speed]] = defaultdict(list)
    for speed in speeds_of(table):
        if speed.row.number("devices"):
            groups[system_key(speed.row)].append(speed)
    return list(groups.values())


def _find_series(table: RowTable) -> Iterator[list[Speed]]:
    """Yield the groups of rows that a reader would take for a scaling series."""
    whole: defaultdict[object, list[Speed]] = defaultdict(list)
    for group in _group_by_system(table):
        if len({speed.devices for speed in group}) > 1:
            yield group
        else:
            row = group[0].row
            whole[row.source, *(row.get(key) for key in keys_of(*WORK_ROLES, "system"))] += group
    yield from (group for group in whole.values() if len({speed.devices for speed in group}) > 1)


def _format_speeds(speed: Speed, base: Speed) -> str:
    """Format the two figures that were divided."""
    for name, _ in SPEEDS:
        if name in speed.by and name in base.by:
            parts = [
                printed(metric, amount)
                for entry in (speed, base)
                for metric, amount in entry.row.figures.items()
                if variable(entry.row, metric) == name
            ]
            if len(parts) == 2:
                return f"{parts[0]} vs {parts[1]} ({base.row.place})"
            return f"{name} {number(speed.by[name].middle)} vs {number(base.by[name].middle)} ({base.row.place})"
    return ""


def _format_value(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)[:40]
