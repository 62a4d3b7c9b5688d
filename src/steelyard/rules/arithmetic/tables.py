"""Rules on figures of a table that must follow from each other (SY503 to SY509): work, units, scopes, counts, bases.

Knows how each slip is described; `diagnosis` finds them.
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

TIERS = "Up to 2 % beyond rounding it is a note, up to 10 % it is to be disclosed, above it blocks."


class _FromDiagnosis(TableRule):
    """A rule whose findings come from the common search for clashes."""

    def check(self, table: RowTable) -> Iterator[Finding]:
        """One finding for each row that this slip explains."""
        for made in diagnose(table):
            if made.code == self.code:
                yield self.found(made.message, place=made.place, evidence=made.evidence, severity=made.severity)


class OtherWorkInRow(_FromDiagnosis):
    """Rate times time is not the work that the other rows count."""

    code = "SY503"
    name = "other-work-in-a-row"
    severity = "error"
    why = (
        "Rate times time is the number of samples that a row processed. When one row of a table processed another "
        "number, it did other work, or its rate and its time come from different runs. It cannot be compared with the "
        "other rows."
    )
    detected = (
        "Throughput times time (or samples per energy times energy) of each row, as an interval from the printed "
        "digits, is held against the value that most rows of the same table, model, data and phase have in common, or "
        "against epoch_samples where the row states it. One batch more or less is allowed, because a last incomplete "
        f"batch may be left out. {TIERS}"
    )
    bad = Example(
        "devices,metric,value,unit\n"
        "1,throughput,1005,images/s\n1,epoch_time,49.75,s\n"
        "2,throughput,1951,images/s\n2,epoch_time,25.63,s\n"
        "4,throughput,3799,images/s\n4,epoch_time,19.74,s\n",
        "4 devices count 75,000 images in an epoch, the other rows 50,000.",
    )
    good = Example(
        "devices,metric,value,unit\n"
        "1,throughput,1005,images/s\n1,epoch_time,49.75,s\n"
        "2,throughput,1951,images/s\n2,epoch_time,25.63,s\n"
        "4,throughput,3799,images/s\n4,epoch_time,13.16,s\n",
        "Every row counts 50,000 images within the rounding of its digits.",
    )
    fix = "take rate and time from the same run over the same samples, or say how much work each row did"


class FigureContradicts(_FromDiagnosis):
    """Figures of one row that cannot all be true."""

    code = "SY504"
    name = "figure-contradicts"
    severity = "error"
    why = (
        "A row often says the same thing twice: energy is power times time, the rate of a job is that of a device "
        "times the devices. When the two ways give different numbers, at least one printed figure is wrong."
    )
    detected = (
        "Every figure has an interval from its printed digits. The products that figures must obey are solved "
        "together; a row is reported when no values inside the intervals obey them all, and no slip of a unit, a "
        f"scope, a count or a base explains it. {TIERS}"
    )
    bad = Example(
        "system,metric,value,unit\nA,power,300,W\nA,epoch_time,100.0,s\nA,energy_per_epoch,41.5,kJ\n",
        "300 W for 100 s is 30 kJ, not 41.5 kJ.",
    )
    good = Example(
        "system,metric,value,unit\nA,power,300,W\nA,epoch_time,100.0,s\nA,energy_per_epoch,30.2,kJ\n",
        "300 W may be anything from 295 to 305 W: its last zero may be padding. 30.2 kJ fits.",
    )
    fix = "recompute the figures of the row from one run, and print them with enough digits"


class UnitSlip(_FromDiagnosis):
    """A figure that would fit in another unit."""

    code = "SY505"
    name = "unit-slip"
    severity = "error"
    why = "A time in minutes under a heading in seconds is wrong by 60, and so is every ratio that is made with it."
    detected = (
        "The figures of a row contradict each other, or the work of the other rows, by a factor that is the step from "
        "one unit to another (60, 3600, 1000, 24, 3.6, 100), and the figure in that other unit removes every "
        "contradiction. The digits must fix the factor to within 1.5 times, to tell it from other causes."
    )
    bad = Example(
        "devices,metric,value,unit\n"
        "1,throughput,1005,images/s\n1,epoch_time,49.75,s\n"
        "2,throughput,1951,images/s\n2,epoch_time,25.63,s\n"
        "4,throughput,3799,images/s\n4,epoch_time,0.2194,s\n",
        "With 4 devices the time is 13.16 s, or 0.2194 min: the unit was not changed.",
    )
    good = Example(
        "devices,metric,value,unit\n"
        "1,throughput,1005,images/s\n1,epoch_time,49.75,s\n"
        "2,throughput,1951,images/s\n2,epoch_time,25.63,s\n"
        "4,throughput,3799,images/s\n4,epoch_time,0.2194,min\n",
        "The same time with its unit.",
    )
    fix = "print the figure in the unit of its column"


class ScopeSlip(_FromDiagnosis):
    """A figure of a device under the name of the job, or the other way round."""

    code = "SY506"
    name = "scope-slip"
    severity = "error"
    why = (
        "A figure belongs to a device, a node or the whole job. One that is printed under the wrong name is wrong by "
        "the number of devices, and a ratio made with it compares one device with many."
    )
    detected = (
        "The figures of a row contradict each other, or the work of the other rows, by the number of devices, of "
        "nodes, or of devices in a node, within the rounding of their digits."
    )
    bad = Example(
        "devices,nodes,metric,value,unit\n8,2,throughput,4016,images/s\n8,2,throughput_per_device,2008,images/s\n",
        "2008 is what a node does; a device does 502.",
    )
    good = Example(
        "devices,nodes,metric,value,unit\n8,2,throughput,4016,images/s\n8,2,throughput_per_node,2008,images/s\n",
        "Two nodes of 2008 images/s make 4016.",
    )
    fix = "name the scope of the figure as it is: _per_device, _per_node, or nothing for the whole job"


class WrongDeviceCount(_FromDiagnosis):
    """Figures of another number of devices than the row states."""

    code = "SY507"
    name = "wrong-device-count"
    severity = "error"
    why = "Figures per device and scaling efficiency are divided by the number of devices. A wrong count spoils both."
    detected = (
        "The figures of a row contradict each other, another whole number of devices removes every contradiction, and "
        "no unit and no scope explains it."
    )
    bad = Example(
        "devices,metric,value,unit\n4,throughput,4016,images/s\n4,throughput_per_device,502.0,images/s\n",
        "4016 is 8 times 502.0; the row says 4 devices.",
    )
    good = Example(
        "devices,metric,value,unit\n8,throughput,4016,images/s\n8,throughput_per_device,502.0,images/s\n",
        "8 devices of 502.0 images/s.",
    )
    fix = "state the number of devices that the figures belong to"


class WrongBase(_FromDiagnosis):
    """A speed-up or efficiency that is divided by another row than its neighbours."""

    code = "SY508"
    name = "wrong-base"
    severity = "error"
    why = (
        "Speed-ups of one table are read together, so they must be divided by the same row. One that is divided by "
        "another row looks better or worse than it is."
    )
    detected = (
        "Each printed speed-up or efficiency implies a base. Most rows imply the same one, within rounding; the row "
        "that does not is reported when another row of the table is the base that it follows from."
    )
    bad = Example(
        "devices,metric,value,unit\n"
        "1,throughput,1005,images/s\n1,speedup,1.00,x\n2,throughput,1951,images/s\n2,speedup,1.94,x\n"
        "4,throughput,3799,images/s\n4,speedup,3.78,x\n8,throughput,7212,images/s\n8,speedup,3.70,x\n",
        "3.70 is 7212 / 1951, the row of 2 devices; over one device it is 7.18.",
    )
    good = Example(
        "devices,metric,value,unit\n"
        "1,throughput,1005,images/s\n1,speedup,1.00,x\n2,throughput,1951,images/s\n2,speedup,1.94,x\n"
        "4,throughput,3799,images/s\n4,speedup,3.78,x\n8,throughput,7212,images/s\n8,speedup,7.18,x\n",
        "Every speed-up is divided by the rate of one device.",
    )
    fix = "divide every speed-up of a table by the same row, and say which one it is"


class BatchProduct(TableRule):
    """A batch of the job that its devices cannot make up."""

    code = "SY509"
    name = "batch-product"
    severity = "warning"
    why = (
        "The batch of the job is the batch of a device times the devices that take part in it, times the steps that "
        "are accumulated. When the numbers do not multiply, a reader cannot repeat the run."
    )
    detected = (
        "global_batch is held against batch_per_device x replicas x grad_accumulation. Replicas are the devices where "
        "the row says that it is data-parallel or has one device, or the number that it states; otherwise they are "
        "unknown. Unknown factors need only be whole numbers."
    )
    bad = Example(
        "devices,parallelism,batch_per_device,global_batch,metric,value,unit\n4,DDP,32,64,throughput,900,images/s\n",
        "Four devices with 32 samples each make 128, not 64.",
    )
    good = Example(
        "devices,parallelism,batch_per_device,global_batch,metric,value,unit\n"
        "4,pipeline 4,32,64,throughput,900,images/s\n",
        "The four devices are one pipeline: 64 is two accumulated portions of 32.",
    )
    fix = "state global_batch, batch_per_device, devices and grad_accumulation so that they multiply"

    def check(self, table: RowTable) -> Iterator[Finding]:
        """One finding for each row whose numbers do not multiply."""
        for row in table.rows:
            share, batch = row.number("batch_per_device"), row.number("global_batch")
            if not share or not batch:
                continue
            replicas, steps = replicas_of(row), row.number("grad_accumulation")
            portion = share * (replicas or 1) * (steps or 1)
            exact = replicas is not None and steps is not None
            if batch == portion or (not exact and batch > portion and batch % portion == 0):
                continue
            parts = [f"{share:g} a device"]
            parts += [f"{replicas:g} replicas"] if replicas else []
            parts += [f"{steps:g} accumulated"] if steps else []
            message = f"global_batch {batch:g} is not {' x '.join(parts)}"
            message += f" = {portion:g}" if exact else f", nor a whole multiple of that: {portion:g}"
            yield self.found(message, place=row.place)


_DATA_PARALLEL = re.compile(
    r"\s*(ddp|dp|fsdp2?|data[- ]parallel|distributed data[- ]parallel|horovod)\s*", re.IGNORECASE
)
_REPLICAS = re.compile(r"([0-9]{1,6}) replicas?\b", re.IGNORECASE)


def replicas_of(row: Row) -> float | None:
    """How many copies of the model share a batch; None where the row does not say."""
    parallelism, devices = str(row.get("parallelism") or ""), row.number("devices")
    stated = _REPLICAS.search(parallelism)
    if stated:
        return float(stated[1]) or None
    if devices == 1 or _DATA_PARALLEL.fullmatch(parallelism):
        return devices
    return None
