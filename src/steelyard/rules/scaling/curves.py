"""Rules on scaling curves: what a speed-up or an efficiency rests on (SY310 to SY319).

Knows rows that differ in their number of devices; not how the loss comes about.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Literal

from steelyard.rules.rule import Example, TableRule

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from steelyard.contracts.record import Finding
    from steelyard.rules.table.row import Row, RowTable

Kind = Literal["strong", "weak", "neither", "unknown"]
STATED = ("speedup", "efficiency")
"""Figures that hold a row against the base of its curve."""
PROJECTED = ("projected_", "expected_")
"""How the names of figures begin that nobody measured."""
REACH = 2.0
"""A projection goes at most this many times as far as the measurements before it must be said."""
GAP = 4.0
FEW_COUNTS = 2
# What changes with the number of devices by itself. The batch is looked at on its own.
GROWS = ("devices", "nodes", "batch_per_device", "global_batch", "grad_accumulation", "parallelism", "backend")


def curves(table: RowTable) -> list[list[Row]]:
    """Rows that differ only in their number of devices and what follows from it, by that number; two counts or more."""
    groups: dict[tuple[object, ...], list[Row]] = {}
    for row in table.rows:
        if row.number("devices"):
            settings = sorted((key, str(value)) for key, value in row.settings.items() if key not in GROWS)
            groups.setdefault((row.source, row.table, *settings), []).append(row)
    ordered = [sorted(rows, key=devices_of) for rows in groups.values()]
    return [rows for rows in ordered if devices_of(rows[0]) < devices_of(rows[-1])]


def devices_of(row: Row) -> float:
    """Devices of a row that is known to have some."""
    return row.number("devices") or math.nan


def kind_of(rows: Sequence[Row]) -> Kind:
    """Strong: the job's batch stays. Weak: the device's batch stays. Unknown where the batches are not stated."""
    whole = [_find_global_batch(row) for row in rows]
    known = [batch for batch in whole if batch is not None]
    if len(known) < len(rows):
        return "unknown"
    if _are_equal(known):
        return "strong"
    return (
        "weak" if _are_equal([batch / devices_of(row) for batch, row in zip(known, rows, strict=True)]) else "neither"
    )


def _find_global_batch(row: Row) -> float | None:
    stated, each = row.number("global_batch"), row.number("batch_per_device")
    if stated is not None:
        return stated
    return None if each is None else each * devices_of(row) * (row.number("grad_accumulation") or 1.0)


def _are_equal(values: Sequence[float]) -> bool:
    return all(math.isclose(value, values[0], rel_tol=1e-9) for value in values)


def _select_stated(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if any(metric in row.figures for metric in STATED)]


def _is_projected(metric: str) -> bool:
    return metric.startswith(PROJECTED)


def _format_counts(rows: Sequence[Row]) -> str:
    return ", ".join(f"{count:g}" for count in dict.fromkeys(map(devices_of, rows)))


class Extrapolated(TableRule):
    """A projection far beyond what was measured."""

    code = "SY310"
    name = "extrapolated-too-far"
    severity = "warning"
    why = (
        "A fitted curve knows only what happened at the measured counts. Beyond them other things begin to matter, "
        "such as the first link between nodes, and the curve cannot know them."
    )
    detected = (
        "A figure whose name begins with projected_ or expected_ stands at more than twice the largest number of "
        "devices that was measured with the same settings."
    )
    bad = Example(
        "devices,metric,value,unit\n1,throughput,100,images/s\n4,throughput,380,images/s\n"
        "32,projected_throughput,2900,images/s\n",
        "Measured up to 4 devices, projected to 32: eight times as far.",
    )
    good = Example(
        "devices,metric,value,unit\n1,throughput,100,images/s\n4,throughput,380,images/s\n"
        "8,projected_throughput,740,images/s\n",
        "8 devices are twice the largest measured count.",
    )
    fix = "measure at half the projected number of devices or more; else say how far the measurements go"

    def check(self, table: RowTable) -> Iterator[Finding]:
        """One finding for each figure that goes too far."""
        for rows in curves(table):
            measured = [row for row in rows if any(not _is_projected(metric) for metric in row.figures)]
            if not measured:
                continue
            largest = devices_of(measured[-1])
            for row in rows:
                far = [metric for metric in row.figures if _is_projected(metric)]
                if far and devices_of(row) > REACH * largest:
                    yield self.found(
                        f"{far[0]} is given for {devices_of(row):g} devices, but nothing was measured beyond "
                        f"{largest:g}",
                        place=row.place,
                        evidence=f"measured at {_format_counts(measured)} devices; "
                        f"{REACH * largest:g} would be twice as far",
                    )


class BaseOfSeveral(TableRule):
    """A speed-up or an efficiency against more than one device."""

    code = "SY311"
    name = "base-of-several-devices"
    severity = "warning"
    why = (
        "Efficiency compares with the base. What is lost between one device and the base is not seen: against 4 "
        "devices, those 4 count as perfect, however much they lose already."
    )
    detected = "A curve states a speed-up or an efficiency, and its smallest number of devices is more than one."
    bad = Example(
        "devices,metric,value,unit\n4,efficiency,100,%\n8,efficiency,97,%\n16,efficiency,94,%\n",
        "94 % looks good, but the loss from 1 to 4 devices is left out.",
    )
    good = Example(
        "devices,metric,value,unit\n1,efficiency,100,%\n4,efficiency,80,%\n16,efficiency,75,%\n",
        "The base is one device: the efficiency holds all losses.",
    )
    fix = "measure one device too; where the work does not fit on one, give the base with its throughput each time"

    def check(self, table: RowTable) -> Iterator[Finding]:
        """One finding a curve."""
        for rows in curves(table):
            least = devices_of(rows[0])
            if _select_stated(rows) and least > 1:
                yield self.found(
                    f"the base has {least:g} devices: what is lost from 1 to {least:g} is in no efficiency",
                    place=rows[0].place,
                    evidence=f"measured at {_format_counts(rows)} devices",
                )


class NeitherStrongNorWeak(TableRule):
    """A curve along which the job's and the device's batch both change."""

    code = "SY312"
    name = "neither-strong-nor-weak"
    severity = "error"
    why = (
        "Strong scaling keeps the batch of the whole job, weak scaling that of a device. Where both change, a larger "
        "batch makes a device faster or slower by itself, and nobody can tell that from the effect of more devices."
    )
    detected = (
        "A curve states a speed-up or an efficiency; the batches are known at every number of devices, and neither "
        "the job's nor the device's stays the same."
    )
    bad = Example(
        "devices,batch_per_device,metric,value,unit\n1,64,efficiency,100,%\n2,48,efficiency,96,%\n4,32,efficiency,80,%\n",
        "The job takes 64, 96 and 128 samples a step, a device 64, 48 and 32: both change.",
    )
    good = Example(
        "devices,batch_per_device,metric,value,unit\n1,64,efficiency,100,%\n2,64,efficiency,96,%\n4,64,efficiency,90,%\n",
        "A device keeps its 64 samples: weak scaling.",
    )
    fix = "keep the batch of a device (weak scaling) or of the job (strong scaling) at every number of devices"

    def check(self, table: RowTable) -> Iterator[Finding]:
        """One finding a curve."""
        for rows in curves(table):
            if _select_stated(rows) and kind_of(rows) == "neither":
                batches = [(devices_of(row), _find_global_batch(row) or math.nan) for row in rows]
                listed = "; ".join(f"{n:g} devices: {batch:g}, {batch / n:g} each" for n, batch in batches)
                yield self.found(
                    "neither the job's nor the device's batch stays the same along the curve",
                    place=rows[0].place,
                    evidence=f"samples a step, {listed}",
                )


class TwoCounts(TableRule):
    """A curve of two points."""

    code = "SY313"
    name = "two-device-counts"
    severity = "note"
    why = (
        "Two device counts give one ratio. Whether the loss stays, grows or jumps with more devices needs a third; no "
        "model can be checked on two points."
    )
    detected = "A curve states a speed-up or an efficiency at two numbers of devices only."
    bad = Example(
        "devices,metric,value,unit\n1,efficiency,100,%\n8,efficiency,70,%\n",
        "Somewhere between 1 and 8 devices 30 % were lost.",
    )
    good = Example(
        "devices,metric,value,unit\n1,efficiency,100,%\n2,efficiency,72,%\n4,efficiency,71,%\n8,efficiency,70,%\n",
        "Nearly all is lost from 1 to 2 devices; from there on the job scales.",
    )
    fix = "measure the counts between and beyond, best in doublings"

    def check(self, table: RowTable) -> Iterator[Finding]:
        """One finding a curve."""
        for rows in curves(table):
            if _select_stated(rows) and len(set(map(devices_of, rows))) <= FEW_COUNTS:
                yield self.found(f"only {_format_counts(rows)} devices were measured", place=rows[-1].place)


class Gap(TableRule):
    """Neighbouring counts that lie far apart."""

    code = "SY314"
    name = "gap-between-device-counts"
    severity = "note"
    why = (
        "Where to stop is a question of the last count that still pays. A wide gap hides it, and a loss that comes at "
        "one place, such as the border of a node, looks as if it came slowly."
    )
    detected = (
        "Two neighbouring numbers of devices in a curve with speed-ups or efficiencies are more than 4 times apart."
    )
    bad = Example(
        "devices,metric,value,unit\n1,efficiency,100,%\n2,efficiency,96,%\n64,efficiency,48,%\n",
        "Between 2 and 64 devices half is lost, and nobody knows where.",
    )
    good = Example(
        "devices,metric,value,unit\n1,efficiency,100,%\n4,efficiency,94,%\n16,efficiency,90,%\n64,efficiency,48,%\n",
        "The loss comes between 16 and 64 devices.",
    )
    fix = "measure the doublings between"

    def check(self, table: RowTable) -> Iterator[Finding]:
        """One finding for each gap."""
        for rows in curves(table):
            for before, after in itertools.pairwise(_select_stated(rows)):
                if devices_of(after) > GAP * devices_of(before):
                    yield self.found(
                        f"nothing was measured between {devices_of(before):g} and {devices_of(after):g} devices",
                        place=after.place,
                    )
