"""Table rules on figures that must be consistent (SY503 to SY509, SY512, SY513): work, units, counts, bases, batches.

`table.diagnosis` finds the contradictions.
"""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from steelyard.contracts.finding import WrongFigure
from steelyard.numbers import number
from steelyard.rules.rule import Example, TableRule
from steelyard.rules.table.diagnosis import diagnose
from steelyard.rules.table.peers import settings_key
from steelyard.rules.table.phrases import label, listed, listed_of, places, printed, wrong_setting
from steelyard.rules.table.relations import QUANTILE
from steelyard.rules.table.settings import BATCHES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from steelyard.contracts.finding import Finding
    from steelyard.rules.table.row import Amount, Row, RowTable

UNLIKELY = 99.0
"""A mean above this percentile needs a few values that are a hundred times the usual."""
RATIO_TIERS = "For a ratio up to 0.5 % beyond rounding is a note, up to 10 % a warning, more is an error."
TIERS = "Up to 2 % beyond rounding is a note, up to 10 % a warning, more is an error."


class _FromDiagnosis(TableRule):
    """A rule whose findings come from `diagnose`."""

    def check(self, table: RowTable) -> Iterator[Finding]:
        """Yield one finding per row with this diagnosis."""
        for made in diagnose(table):
            if made.code == self.code:
                yield self.found(
                    made.message, place=made.place, evidence=made.evidence, severity=made.severity, wrong=made.wrong
                )


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
        "Many figures depend on each other: energy is power times time, the job's throughput is that of one device "
        "times the number of devices, a speed-up is the quotient of two rows. If they do not match, at least one "
        "printed figure is wrong."
    )
    detected = (
        "The printed digits give an interval for every figure. A row is reported if no values inside the intervals "
        "satisfy all relations, and no wrong unit, scope, device count or base explains it. A speed-up or an "
        "efficiency is compared with the row that is printed as 1 or 100 %, or has the fewest devices. Two swapped "
        "digits and a misplaced decimal point are named. Figures that fit if digits were cut instead of rounded are "
        f"one note for the whole table. {TIERS} {RATIO_TIERS}"
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
        "A printed speed-up or efficiency does not follow from its base: the row printed as 1 or 100 %, or with the "
        "fewest devices and otherwise equal settings. It is reported if it follows from another row of the table."
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
        "global_batch is compared with batch x replicas x accumulation. If one other value explains "
        "it, that is named, and rows with the same slip are reported together. The number of replicas is the "
        "number that the row states, or the number of devices if the row is data-parallel or has one device; otherwise "
        "it is unknown. An unknown factor may be any whole number."
    )
    bad = Example(
        "devices,parallel,batch,global_batch,metric,value,unit\n4,DDP,32,64,throughput,900,images/s\n",
        "Four devices with 32 samples each make 128, not 64.",
    )
    good = Example(
        "devices,parallel,batch,global_batch,metric,value,unit\n4,pipeline 4,32,64,throughput,900,images/s\n",
        "The four devices form one pipeline: 64 is two accumulated micro-batches of 32.",
    )
    fix = "correct global_batch, batch, devices or accumulation"

    def check(self, table: RowTable) -> Iterator[Finding]:
        """Yield one finding per slip: rows in which the same setting is wrong by the same factor are told together."""
        right: defaultdict[tuple[object, ...], set[tuple[str, float]]] = defaultdict(set)
        wrong: list[tuple[Row, _Batches]] = []
        for row in table.rows:
            product = _Batches.of(row)
            if product is None:
                continue
            if product.holds:
                right[settings_key(row)] |= {(key, row.number(key) or 0.0) for key in BATCHES}
            else:
                wrong.append((row, product))
        slips: defaultdict[tuple[object, ...], list[tuple[Row, _Batches, WrongFigure | None]]] = defaultdict(list)
        for row, product in wrong:
            slip = product.find_slip(row, right[settings_key(row)])
            factor = round(float(slip.recomputed) / float(slip.printed), 9) if slip else 0.0
            key = (row.source, row.table, slip.name, factor) if slip else (id(row),)
            slips[key].append((row, product, slip))
        for group in slips.values():
            yield self._report(group)

    def _report(self, group: list[tuple[Row, _Batches, WrongFigure | None]]) -> Finding:
        rows = [row for row, _, _ in group]
        first, product, slip = group[0]
        message = product.describe()
        if slip is not None:
            message += f"; {slip.name} {slip.recomputed} would fit instead of {slip.printed}"
            if len(group) > 1:
                same = len({(entry.printed, entry.recomputed) for _, _, entry in group if entry}) == 1
                factor = number(float(slip.recomputed) / float(slip.printed), 3)
                message += (
                    f"; the same in {len(group)} rows" if same else f"; {len(group)} rows by a factor of {factor}"
                )
        lines = (f"{label(row, rows)}: {made.describe()}" for row, made, _ in group)
        evidence = listed_of(lines, len(group), 4) if len(group) > 1 else ""
        wrong = tuple(entry for _, _, entry in group if entry is not None)
        return self.found(message, place=places(rows) if len(rows) > 1 else first.place, evidence=evidence, wrong=wrong)


class SwappedFigures(_FromDiagnosis):
    """Figures that are in each other's place."""

    code = "SY512"
    name = "swapped-figures"
    severity = "error"
    why = (
        "If two columns or two rows were swapped when the table was made, every figure in them belongs to another "
        "configuration, and a reader picks the wrong one."
    )
    detected = (
        "A figure contradicts the other figures of its row, so does the same metric in another row, and each of the "
        f"two fits in the other row. {RATIO_TIERS}"
    )
    bad = Example(
        "devices,precision,metric,value,unit\n"
        "1,fp32,throughput,1005,images/s\n4,fp32,throughput,3799,images/s\n4,fp32,speedup,3.21,x\n"
        "1,fp16,throughput,2871,images/s\n4,fp16,throughput,9216,images/s\n4,fp16,speedup,3.78,x\n",
        "3799 / 1005 is 3.78 and 9216 / 2871 is 3.21: the speed-ups of the two precisions are swapped.",
    )
    good = Example(
        "devices,precision,metric,value,unit\n"
        "1,fp32,throughput,1005,images/s\n4,fp32,throughput,3799,images/s\n4,fp32,speedup,3.78,x\n"
        "1,fp16,throughput,2871,images/s\n4,fp16,throughput,9216,images/s\n4,fp16,speedup,3.21,x\n",
        "Each speed-up follows from its own rows.",
    )
    fix = "put the figures back in their rows, and compute the ratios from the printed figures once more"


class PercentilesOutOfOrder(TableRule):
    """Percentiles that are not in order, or a mean outside of what they allow."""

    code = "SY513"
    name = "percentiles-out-of-order"
    severity = "error"
    why = (
        "99 % of the requests are at most as slow as p99, so p50 cannot be above p90. If it is, columns were swapped "
        "or the figures come from different runs."
    )
    detected = (
        "The printed times of one kind in a row, such as latency_min, latency_p50, latency_p90, latency_p99 and "
        "latency_max, decrease beyond rounding, or the mean is below the minimum or above the maximum. A mean above "
        "p99 or below p1 is a warning: a few extreme values can cause it."
    )
    bad = Example(
        "system,metric,value,unit\nA,latency_mean,41.2,ms\nA,latency_p50,55.0,ms\nA,latency_p90,48.1,ms\n",
        "Half of the requests took longer than 55 ms, yet 90 % took at most 48.1 ms.",
    )
    good = Example(
        "system,metric,value,unit\nA,latency_mean,41.2,ms\nA,latency_p50,38.0,ms\nA,latency_p90,48.1,ms\n",
        "The percentiles increase, and the mean is between them.",
    )
    fix = "take all percentiles and the mean from the same requests, and check the order of the columns"

    def check(self, table: RowTable) -> Iterator[Finding]:
        """Yield one finding per row and kind of time."""
        for row in table.rows:
            kinds: defaultdict[str, dict[float, tuple[str, Amount]]] = defaultdict(dict)
            means: dict[str, tuple[str, Amount]] = {}
            for metric, amount in row.figures.items():
                match = QUANTILE.fullmatch(metric)
                if match is None:
                    continue
                if match[2] == "mean":
                    means[match[1]] = (metric, amount)
                elif match[2] != "std":
                    kinds[match[1]].setdefault(_read_rank(match[2]), (metric, amount))
            for kind, ranks in kinds.items():
                yield from self._check_order(row, [ranks[rank] for rank in sorted(ranks)])
                if kind in means:
                    yield from self._check_mean(row, *means[kind], ranks)

    def _check_order(self, row: Row, ordered: list[tuple[str, Amount]]) -> Iterator[Finding]:
        for (low, small), (high, large) in itertools.pairwise(ordered):
            if small.low > large.high:
                message = f"{printed(low, small)} is above {printed(high, large)}"
                both = ((low, small), (high, large))
                yield self.found(message, place=row.place, evidence=_format_all(ordered), wrong=_doubt(row, *both))

    def _check_mean(
        self, row: Row, metric: str, mean: Amount, ranks: Mapping[float, tuple[str, Amount]]
    ) -> Iterator[Finding]:
        for rank, (name, amount) in ranks.items():
            above = rank >= UNLIKELY and mean.low > amount.high
            below = rank <= 100 - UNLIKELY and mean.high < amount.low
            if above or below:
                message = f"{printed(metric, mean)} is {'above' if above else 'below'} {printed(name, amount)}"
                certain = rank in (0.0, 100.0)
                wrong = _doubt(row, (metric, mean))
                yield self.found(message, place=row.place, severity=None if certain else "warning", wrong=wrong)
                return


def _read_rank(text: str) -> float:
    named = {"min": 0.0, "median": 50.0, "max": 100.0}
    return named[text] if text in named else float(text[1:].replace("_", "."))


def _doubt(row: Row, *figures: tuple[str, Amount]) -> tuple[WrongFigure, ...]:
    return tuple(
        WrongFigure(place=row.place, name=metric, printed=amount.text, recomputed="") for metric, amount in figures
    )


def _format_all(figures: Iterable[tuple[str, Amount]]) -> str:
    return listed([printed(metric, amount) for metric, amount in figures], 8)


class _Batches(NamedTuple):
    """The batch sizes that a row states, and their product."""

    share: float
    batch: float
    replicas: float | None
    steps: float | None

    @staticmethod
    def of(row: Row) -> _Batches | None:
        """Return the batch sizes of a row, or None if it does not state the global batch and that per device."""
        share, batch = row.number("batch"), row.number("global_batch")
        return _Batches(share, batch, replicas_of(row), row.number("accumulation")) if share and batch else None

    @property
    def portion(self) -> float:
        """Return the product of the factors that are known."""
        return self.share * (self.replicas or 1) * (self.steps or 1)

    @property
    def is_exact(self) -> bool:
        """Return whether all factors are known."""
        return self.replicas is not None and self.steps is not None

    @property
    def holds(self) -> bool:
        """Return whether the global batch is the product, or a multiple of it if a factor is unknown."""
        more = not self.is_exact and self.batch > self.portion and self.batch % self.portion == 0
        return self.batch == self.portion or more

    def describe(self) -> str:
        """Return a message about the contradiction."""
        parts = [f"{self.share:g} per device"]
        parts += [f"{self.replicas:g} replicas"] if self.replicas else []
        parts += [f"{self.steps:g} accumulated"] if self.steps else []
        more = "" if self.is_exact else ", or a multiple of it"
        return f"global_batch {self.batch:.10g} is not {' x '.join(parts)} = {self.portion:.10g}{more}"

    def find_slip(self, row: Row, right: set[tuple[str, float]]) -> WrongFigure | None:
        """Return the one setting that explains it: the value that fits is whole, and no row with it is right."""
        if not self.is_exact:
            return None
        able = {"accumulation": self.steps or 1.0, "batch": self.share}
        fitting = {key: stated * self.batch / self.portion for key, stated in able.items()}
        whole = {key: value for key, value in fitting.items() if value >= 1 and value == round(value)}
        # A value that also occurs in a row whose product is right is trusted.
        doubted = {key: value for key, value in whole.items() if (key, able[key]) not in right} or whole
        if len(doubted) != 1 or row.number(next(iter(doubted))) is None:
            return None
        return wrong_setting(row, *next(iter(doubted.items())))


_DATA_PARALLEL = re.compile(
    r"\s*(ddp|dp|fsdp2?|data[- ]parallel|distributed data[- ]parallel|horovod)\s*", re.IGNORECASE
)
_REPLICAS = re.compile(r"([0-9]{1,6}) replicas?\b", re.IGNORECASE)


def replicas_of(row: Row) -> float | None:
    """Return the number of model replicas that share a global batch, or None if the row does not say."""
    parallelism, devices = str(row.get("parallel") or ""), row.number("devices")
    stated = _REPLICAS.search(parallelism)
    if stated:
        return float(stated[1]) or None
    if devices == 1 or _DATA_PARALLEL.fullmatch(parallelism):
        return devices
    return None
