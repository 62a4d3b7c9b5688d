"""Table rules on scaling curves (SY310 to SY314): what a speed-up or an efficiency is based on."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

from steelyard.contracts.spec import count_replicas
from steelyard.inputs.command import run_again
from steelyard.rules.rule import Example, TableRule
from steelyard.rules.table.batches import devices_of, global_batch_of, kind_of, split_by_batch
from steelyard.stats.ratio import MIN_JOBS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from steelyard.contracts.finding import Finding
    from steelyard.rules.table.row import Row, RowTable

STATED = ("speedup", "efficiency")
"""Figures relative to the base of the curve."""
PROJECTED = ("projected_", "expected_")
"""Prefixes of figures that were not measured."""
REACH = 2.0
"""A projection may go up to this many times the largest measured device count without a finding."""
GAP = 4.0
FEW_COUNTS = 2
# Settings that may change with the number of devices. The batch is checked separately.
GROWS = ("devices", "nodes", "batch", "global_batch", "accumulation", "parallel", "backend")


def curves(table: RowTable) -> list[list[Row]]:
    """Return groups of rows that differ only in device count and what follows from it, sorted; two counts or more.

    Two batch sizes in one table are two curves.
    """
    groups: dict[tuple[object, ...], list[Row]] = {}
    for row in table.rows:
        if row.number("devices"):
            settings = sorted((key, str(value)) for key, value in row.settings.items() if key not in GROWS)
            groups.setdefault((row.source, row.table, *settings), []).append(row)
    ordered = [sorted(rows, key=devices_of) for group in groups.values() for rows in split_by_batch(group)]
    return [rows for rows in ordered if devices_of(rows[0]) < devices_of(rows[-1])]


def _select_stated(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if any(metric in row.figures for metric in STATED)]


def _is_projected(metric: str) -> bool:
    return metric.startswith(PROJECTED)


def _format_counts(rows: Sequence[Row]) -> str:
    return ", ".join(f"{count:g}" for count in dict.fromkeys(map(devices_of, rows)))


def _measure_at(rows: Sequence[Row], devices: float) -> str:
    """Return the command that adds a number of devices to a curve of our own; empty for a published one."""
    row = next((row for row in rows if row.spec is not None), None)
    if row is None or row.spec is None or row.spec.program is not None:
        # How many ranks a program has is in its command.
        return ""
    changes = {"devices": int(devices)}
    if kind_of([each for each in rows if each.spec is not None]) == "strong":
        shares = count_replicas(row.spec.parallel, int(devices))
        batch, rest = divmod(row.spec.batch * row.spec.replicas, shares)
        if rest or not batch:
            return ""
        changes["batch"] = batch
    return run_again(row.spec, changes, repeats=MIN_JOBS)


class Extrapolated(TableRule):
    """A projection far beyond the measured device counts."""

    code = "SY310"
    name = "extrapolated-too-far"
    severity = "warning"
    why = (
        "A fit describes only the measured device counts. Beyond them other effects begin, such as the network between "
        "nodes, which the fit cannot predict."
    )
    detected = (
        "A figure whose name begins with projected_ or expected_ is given for more than twice the largest number of "
        "devices that was measured with the same settings."
    )
    bad = Example(
        "devices,metric,value,unit\n1,throughput,100,images/s\n4,throughput,380,images/s\n"
        "32,projected_throughput,2900,images/s\n",
        "Measured up to 4 devices, projected to 32: eight times as many.",
    )
    good = Example(
        "devices,metric,value,unit\n1,throughput,100,images/s\n4,throughput,380,images/s\n"
        "8,projected_throughput,740,images/s\n",
        "8 devices is twice the largest measured count.",
    )
    fix = "measure at half the projected number of devices or more, or state up to which count you measured"

    def check(self, table: RowTable) -> Iterator[Finding]:
        """Yield one finding per figure that is projected too far."""
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
                        f"project to {REACH * largest:g} at most",
                        command=_measure_at(measured, math.ceil(devices_of(row) / REACH)),
                    )


class BaseOfSeveral(TableRule):
    """A speed-up or an efficiency relative to more than one device."""

    code = "SY311"
    name = "base-of-several-devices"
    severity = "warning"
    why = (
        "Efficiency is relative to the base. Losses between one device and the base do not show: relative to 4 "
        "devices, those 4 count as 100 %, even if they already scale badly."
    )
    detected = (
        "A curve states a speed-up or an efficiency, and its smallest number of devices is more than one. If the base "
        "is one whole node, as the row says, it is a note: that is what scaling over nodes means."
    )
    bad = Example(
        "devices,metric,value,unit\n4,efficiency,100,%\n8,efficiency,97,%\n16,efficiency,94,%\n",
        "94 % looks good, but the loss from 1 to 4 devices is not included.",
    )
    good = Example(
        "devices,metric,value,unit\n1,efficiency,100,%\n4,efficiency,80,%\n16,efficiency,75,%\n",
        "The base is one device, so the efficiency includes all losses.",
    )
    fix = "measure one device as well; if the work does not fit on one, state the base and its throughput"

    def check(self, table: RowTable) -> Iterator[Finding]:
        """Yield one finding per curve."""
        for rows in curves(table):
            least = devices_of(rows[0])
            if _select_stated(rows) and least > 1:
                yield self.found(
                    f"the base has {least:g} devices; the efficiency does not include losses from 1 to {least:g}",
                    place=rows[0].place,
                    evidence=f"measured at {_format_counts(rows)} devices",
                    command=_measure_at(rows, 1),
                    severity="note" if rows[0].number("nodes") == 1 and (rows[-1].number("nodes") or 1) > 1 else None,
                )


class NeitherStrongNorWeak(TableRule):
    """A curve where both the global batch and the batch per device change."""

    code = "SY312"
    name = "neither-strong-nor-weak"
    severity = "error"
    why = (
        "Strong scaling keeps the global batch, weak scaling keeps the batch per device. If both change, the effect of "
        "the batch on the speed cannot be separated from the effect of more devices."
    )
    detected = (
        "A curve states a speed-up or an efficiency, the batch sizes are known for every number of devices, and "
        "neither the global batch nor the batch per device is constant."
    )
    bad = Example(
        "devices,batch,metric,value,unit\n1,64,efficiency,100,%\n2,48,efficiency,96,%\n4,32,efficiency,80,%\n",
        "The global batch is 64, 96 and 128, the batch per device 64, 48 and 32: both change.",
    )
    good = Example(
        "devices,batch,metric,value,unit\n1,64,efficiency,100,%\n2,64,efficiency,96,%\n4,64,efficiency,90,%\n",
        "The batch per device is always 64: weak scaling.",
    )
    fix = "keep the batch per device (weak scaling) or the global batch (strong scaling) the same at every device count"

    def check(self, table: RowTable) -> Iterator[Finding]:
        """Yield one finding per curve."""
        for rows in curves(table):
            if _select_stated(rows) and kind_of(rows) == "neither":
                batches = [(devices_of(row), global_batch_of(row) or math.nan) for row in rows]
                listed = "; ".join(f"{n:g} devices: {batch:g}, {batch / n:g} per device" for n, batch in batches)
                yield self.found(
                    "both the global batch and the batch per device change along the curve",
                    place=rows[0].place,
                    evidence=f"global batch, {listed}",
                )


class TwoCounts(TableRule):
    """A curve with only two device counts."""

    code = "SY313"
    name = "only-two-device-counts"
    severity = "note"
    why = (
        "Two device counts give one ratio. They do not show whether the loss stays constant, grows or jumps with more "
        "devices, and no model can be checked on two points."
    )
    detected = "A curve states a speed-up or an efficiency at only two numbers of devices."
    bad = Example(
        "devices,metric,value,unit\n1,efficiency,100,%\n8,efficiency,70,%\n",
        "30 % is lost somewhere between 1 and 8 devices.",
    )
    good = Example(
        "devices,metric,value,unit\n1,efficiency,100,%\n2,efficiency,72,%\n4,efficiency,71,%\n8,efficiency,70,%\n",
        "Nearly all of the loss is between 1 and 2 devices; from there on the job scales well.",
    )
    fix = "measure more device counts, such as 1, 2, 4 and 8"

    def check(self, table: RowTable) -> Iterator[Finding]:
        """Yield one finding per curve."""
        for rows in curves(table):
            if _select_stated(rows) and len(set(map(devices_of, rows))) <= FEW_COUNTS:
                least, most = devices_of(rows[0]), devices_of(rows[-1])
                spec = rows[-1].spec
                between = most > 2 * least
                # More ranks on the CPUs of a node share them.
                possible = between or spec is None or spec.device_family != "cpu"
                yield self.found(
                    f"only two device counts were measured: {_format_counts(rows)}",
                    place=rows[-1].place,
                    command=_measure_at(rows, 2 * (least if between else most)) if possible else "",
                )


class Gap(TableRule):
    """Consecutive device counts that are far apart."""

    code = "SY314"
    name = "gap-between-device-counts"
    severity = "note"
    why = (
        "A wide gap hides the largest device count that is still efficient. A loss at one point, such as the step from "
        "one node to two, then looks gradual."
    )
    detected = (
        "Two consecutive device counts in a curve with speed-ups or efficiencies differ by more than a factor of 4."
    )
    bad = Example(
        "devices,metric,value,unit\n1,efficiency,100,%\n2,efficiency,96,%\n64,efficiency,48,%\n",
        "Half is lost between 2 and 64 devices, and it is not known where.",
    )
    good = Example(
        "devices,metric,value,unit\n1,efficiency,100,%\n4,efficiency,94,%\n16,efficiency,90,%\n64,efficiency,48,%\n",
        "The loss is between 16 and 64 devices.",
    )
    fix = "measure the device counts in between, doubling each time"

    def check(self, table: RowTable) -> Iterator[Finding]:
        """Yield one finding per gap."""
        for rows in curves(table):
            for before, after in itertools.pairwise(_select_stated(rows)):
                if devices_of(after) > GAP * devices_of(before):
                    yield self.found(
                        f"nothing was measured between {devices_of(before):g} and {devices_of(after):g} devices",
                        place=after.place,
                        command=_measure_at(rows, 2 * devices_of(before)),
                    )
