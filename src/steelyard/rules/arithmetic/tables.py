"""Table rules on figures that must be consistent (SY503 to SY509): work, units, scopes, device counts, bases, batches.

`table.diagnosis` finds the contradictions.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from steelyard.rules.rule import Example, TableRule
from steelyard.rules.table.diagnosis import diagnose

if TYPE_CHECKING:
    from collections.abc import Iterator

    from steelyard.contracts.record import Finding
    from steelyard.rules.table.row import Row, RowTable

TIERS = "Up to 2 % beyond rounding is a note, up to 10 % a warning, more is an error."


class _FromDiagnosis(TableRule):
    """A rule whose findings come from `diagnose`."""

    def check(self, table: RowTable) -> Iterator[Finding]:
        """Yield one finding per row with this diagnosis."""
        for made in diagnose(table):
            if made.code == self.code:
                yield self.found(made.message, place=made.place, evidence=made.evidence, severity=made.severity)


class OtherWorkInRow(_FromDiagnosis):
    """Rate times time differs from the work in the other rows."""

    code = "SY503"
    name = "different-work-in-row"
    severity = "error"
    why = (
        "Rate times time is the number of samples that a row processed. If one row processed a different number, it "
        "did different work, or its rate and time come from different runs. It cannot be compared with the other rows."
    )
    detected = (
        "Throughput times time (or samples per energy times energy) of each row, as an interval from the printed "
        "digits, is compared with the value that most rows of the same table, model, data and phase agree on, or with "
        "epoch_samples if the row states it. One batch more or less is allowed, because an incomplete last batch may "
        f"be dropped. {TIERS}"
    )
    bad = Example(
        "devices,metric,value,unit\n"
        "1,throughput,1005,images/s\n1,epoch_time,49.75,s\n"
        "2,throughput,1951,images/s\n2,epoch_time,25.63,s\n"
        "4,throughput,3799,images/s\n4,epoch_time,19.74,s\n",
        "The row with 4 devices processed 75,000 images per epoch, the other rows 50,000.",
    )
    good = Example(
        "devices,metric,value,unit\n"
        "1,throughput,1005,images/s\n1,epoch_time,49.75,s\n"
        "2,throughput,1951,images/s\n2,epoch_time,25.63,s\n"
        "4,throughput,3799,images/s\n4,epoch_time,13.16,s\n",
        "Every row processed 50,000 images, within rounding.",
    )
    fix = "take rate and time from the same run over the same samples, or state how much work each row did"


class FigureContradicts(_FromDiagnosis):
    """Figures of one row that cannot all be true."""

    code = "SY504"
    name = "contradictory-figures"
    severity = "error"
    why = (
        "Many figures of a row depend on each other: energy is power times time, the job's throughput is that of one "
        "device times the number of devices. If they do not match, at least one printed figure is wrong."
    )
    detected = (
        "The printed digits give an interval for every figure. A row is reported if no values inside the intervals "
        f"satisfy all relations, and no wrong unit, scope, device count or base explains it. {TIERS}"
    )
    bad = Example(
        "system,metric,value,unit\nA,power,300,W\nA,epoch_time,100.0,s\nA,energy_per_epoch,41.5,kJ\n",
        "300 W for 100 s is 30 kJ, not 41.5 kJ.",
    )
    good = Example(
        "system,metric,value,unit\nA,power,300,W\nA,epoch_time,100.0,s\nA,energy_per_epoch,30.2,kJ\n",
        "300 W can mean 295 W to 305 W, because the last zero may be rounding. 30.2 kJ fits.",
    )
    fix = "recompute the figures of the row from one run, and print enough digits"


class UnitSlip(_FromDiagnosis):
    """A figure that would fit in another unit."""

    code = "SY505"
    name = "wrong-unit"
    severity = "error"
    why = "A time in minutes in a column of seconds is wrong by a factor of 60, and so is every ratio computed from it."
    detected = (
        "The figures of a row contradict each other, or the work of the other rows, by the factor between two units "
        "(60, 3600, 1000, 24, 3.6, 100), and changing the unit of one figure removes every contradiction. The digits "
        "must determine the factor to within 1.5 times."
    )
    bad = Example(
        "devices,metric,value,unit\n"
        "1,throughput,1005,images/s\n1,epoch_time,49.75,s\n"
        "2,throughput,1951,images/s\n2,epoch_time,25.63,s\n"
        "4,throughput,3799,images/s\n4,epoch_time,0.2194,s\n",
        "With 4 devices the time is 13.16 s, which is 0.2194 min: the value is in minutes, the unit says seconds.",
    )
    good = Example(
        "devices,metric,value,unit\n"
        "1,throughput,1005,images/s\n1,epoch_time,49.75,s\n"
        "2,throughput,1951,images/s\n2,epoch_time,25.63,s\n"
        "4,throughput,3799,images/s\n4,epoch_time,0.2194,min\n",
        "The same time with the right unit.",
    )
    fix = "print the figure in the unit of its column, or correct the unit"


class ScopeSlip(_FromDiagnosis):
    """A figure per device printed as a figure of the job, or the reverse."""

    code = "SY506"
    name = "wrong-scope"
    severity = "error"
    why = (
        "A figure is per device, per node or for the whole job. With the wrong scope it is wrong by the number of "
        "devices or nodes, and a ratio computed from it compares one device with many."
    )
    detected = (
        "The figures of a row contradict each other, or the work of the other rows, by a factor equal to the number of "
        "devices, of nodes, or of devices per node, within rounding."
    )
    bad = Example(
        "devices,nodes,metric,value,unit\n8,2,throughput,4016,images/s\n8,2,throughput_per_device,2008,images/s\n",
        "2008 images/s is the rate of a node; a device reaches 502.",
    )
    good = Example(
        "devices,nodes,metric,value,unit\n8,2,throughput,4016,images/s\n8,2,throughput_per_node,2008,images/s\n",
        "Two nodes at 2008 images/s make 4016.",
    )
    fix = "name the metric by its scope: _per_device, _per_node, or no suffix for the whole job"


class WrongDeviceCount(_FromDiagnosis):
    """Figures that belong to another number of devices than the row states."""

    code = "SY507"
    name = "wrong-device-count"
    severity = "error"
    why = "Figures per device and scaling efficiency depend on the number of devices. A wrong count makes both wrong."
    detected = (
        "The figures of a row contradict each other, another whole number of devices removes every contradiction, and "
        "a wrong unit or scope does not explain it."
    )
    bad = Example(
        "devices,metric,value,unit\n4,throughput,4016,images/s\n4,throughput_per_device,502.0,images/s\n",
        "4016 is 8 times 502.0; the row says 4 devices.",
    )
    good = Example(
        "devices,metric,value,unit\n8,throughput,4016,images/s\n8,throughput_per_device,502.0,images/s\n",
        "8 devices at 502.0 images/s make 4016.",
    )
    fix = "state the number of devices that the figures were measured on"


class WrongBase(_FromDiagnosis):
    """A speed-up or efficiency with another base row than the others."""

    code = "SY508"
    name = "wrong-base"
    severity = "error"
    why = (
        "Readers compare the speed-ups of a table with each other, so all must have the same base row. A speed-up with "
        "another base looks better or worse than it is."
    )
    detected = (
        "Each printed speed-up or efficiency implies a base. Most rows imply the same base, within rounding. A row "
        "that does not is reported if its figure follows from another row of the table."
    )
    bad = Example(
        "devices,metric,value,unit\n"
        "1,throughput,1005,images/s\n1,speedup,1.00,x\n2,throughput,1951,images/s\n2,speedup,1.94,x\n"
        "4,throughput,3799,images/s\n4,speedup,3.78,x\n8,throughput,7212,images/s\n8,speedup,3.70,x\n",
        "3.70 is 7212 / 1951, relative to 2 devices; relative to one device it is 7.18.",
    )
    good = Example(
        "devices,metric,value,unit\n"
        "1,throughput,1005,images/s\n1,speedup,1.00,x\n2,throughput,1951,images/s\n2,speedup,1.94,x\n"
        "4,throughput,3799,images/s\n4,speedup,3.78,x\n8,throughput,7212,images/s\n8,speedup,7.18,x\n",
        "Every speed-up is relative to one device.",
    )
    fix = "use the same base row for every speed-up of the table, and state it"


class BatchProduct(TableRule):
    """A global batch that does not match the batch per device."""

    code = "SY509"
    name = "batch-mismatch"
    severity = "warning"
    why = (
        "The global batch is the batch per device x replicas x gradient accumulation steps. If the stated numbers do "
        "not match, readers cannot repeat the run."
    )
    detected = (
        "global_batch is compared with batch_per_device x replicas x grad_accumulation. The number of replicas is the "
        "number that the row states, or the number of devices if the row is data-parallel or has one device; otherwise "
        "it is unknown. An unknown factor may be any whole number."
    )
    bad = Example(
        "devices,parallelism,batch_per_device,global_batch,metric,value,unit\n4,DDP,32,64,throughput,900,images/s\n",
        "Four devices with 32 samples each make 128, not 64.",
    )
    good = Example(
        "devices,parallelism,batch_per_device,global_batch,metric,value,unit\n"
        "4,pipeline 4,32,64,throughput,900,images/s\n",
        "The four devices form one pipeline: 64 is two accumulated micro-batches of 32.",
    )
    fix = "correct global_batch, batch_per_device, devices or grad_accumulation"

    def check(self, table: RowTable) -> Iterator[Finding]:
        """Yield one finding per row whose batch sizes do not match."""
        for row in table.rows:
            share, batch = row.number("batch_per_device"), row.number("global_batch")
            if not share or not batch:
                continue
            replicas, steps = replicas_of(row), row.number("grad_accumulation")
            portion = share * (replicas or 1) * (steps or 1)
            exact = replicas is not None and steps is not None
            if batch == portion or (not exact and batch > portion and batch % portion == 0):
                continue
            parts = [f"{share:g} per device"]
            parts += [f"{replicas:g} replicas"] if replicas else []
            parts += [f"{steps:g} accumulated"] if steps else []
            message = f"global_batch {batch:g} is not {' x '.join(parts)}"
            message += f" = {portion:g}" if exact else f" = {portion:g}, or a multiple of it"
            yield self.found(message, place=row.place)


_DATA_PARALLEL = re.compile(
    r"\s*(ddp|dp|fsdp2?|data[- ]parallel|distributed data[- ]parallel|horovod)\s*", re.IGNORECASE
)
_REPLICAS = re.compile(r"([0-9]{1,6}) replicas?\b", re.IGNORECASE)


def replicas_of(row: Row) -> float | None:
    """Return the number of model replicas that share a global batch, or None if the row does not say."""
    parallelism, devices = str(row.get("parallelism") or ""), row.number("devices")
    stated = _REPLICAS.search(parallelism)
    if stated:
        return float(stated[1]) or None
    if devices == 1 or _DATA_PARALLEL.fullmatch(parallelism):
        return devices
    return None
