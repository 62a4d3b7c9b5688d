"""Rules on settings that differ between two rows (SY102 to SY115): which forbid a ratio, which must stand beside it.

Knows how to say it; what each setting changes is in `rules.settings`.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, ClassVar

from steelyard.rules.rule import Example, PairRule
from steelyard.rules.table.settings import (
    SETTINGS,
    Difference,
    alike,
    blocking,
    blocks,
    confounders,
    differences,
    implied,
    meant_to_differ,
    shown,
    stated,
    unclear,
)
from steelyard.rules.table.units import counted, unit_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from steelyard.contracts.record import Finding
    from steelyard.rules.table.row import Pair, Setting
    from steelyard.rules.table.settings import Role

# Whose absence on both sides leaves a reader without ground: one of each group is enough.
CORE = (("model", "task"), ("precision",), ("batch_per_device", "global_batch"))

# Jobs that differ in one of these have no common figure.
GRAVE = ("system", "size", "work", "data", "arithmetic", "batch")
SHOWN = 60
MOST_PARTS = 8


def _format_list(found: list[Difference]) -> str:
    return "; ".join(map(str, found))


class _OtherSettings(PairRule):
    """A rule on the settings of some roles: one finding with all of them that differ, and what that means."""

    roles: ClassVar[tuple[Role, ...]]
    meaning: ClassVar[str]

    def check(self, pair: Pair) -> Iterator[Finding]:
        """One finding with all that differs; it blocks when one of the differences does."""
        found = [entry for entry in confounders(pair) if entry.role in self.roles]
        if found:
            forbids = any(blocks(pair, entry) for entry in found)
            yield self.found(
                f"{self.meaning}: {self.listed(found)}",
                place=pair.b.place,
                evidence=self.evidence(pair, found),
                severity="error" if forbids else "warning",
            )

    def listed(self, found: list[Difference]) -> str:
        """The differences in words."""
        return _format_list(found)

    def evidence(self, pair: Pair, found: list[Difference]) -> str:
        """What else a reader should know of these differences."""
        chosen = [entry.key for entry in found if entry.key in pair.tuned]
        return f"chosen by each side for itself: {', '.join(chosen)}" if chosen else ""


class OtherWork(_OtherSettings):
    """Two rows that do not compute the same thing."""

    code = "SY102"
    name = "other-work"
    severity = "error"
    roles = ("work",)
    meaning = "the two sides do not do the same work"
    why = (
        "A rate counts samples of one model in one phase. Where the model or the phase differs, a sample is another "
        "amount of work, and the ratio says nothing about the machines."
    )
    detected = (
        "Both sides state the model, its options, the phase (training or inference), the sequence length or what is "
        "done with the last batch, they differ, and none of them is the factor under study."
    )
    bad = Example(
        "system,model,metric,value,unit\nA,ResNet50,throughput,1000,images/s\nB,ResNet152,throughput,400,images/s\n",
        "Machine B reaches 0.4 of A's rate, but trains another model.",
    )
    good = Example(
        "system,model,metric,value,unit\nA,ResNet50,throughput,1000,images/s\nB,ResNet50,throughput,400,images/s\n",
        "Both train the same model; the machines differ, and they are what is compared.",
    )
    fix = "compare rows of the same model and phase; or name what differs as the factor (--factor model, or phase)"


class OtherArithmetic(_OtherSettings):
    """Two rows that compute in different number formats."""

    code = "SY103"
    name = "other-arithmetic"
    severity = "error"
    roles = ("arithmetic",)
    meaning = "the two sides differ in number format or optimizer"
    why = (
        "The matrix units of one and the same device are many times faster in 16 bits than in 32. A ratio across "
        "precisions mixes the device with its number format. Another optimizer makes other computations each step."
    )
    detected = (
        "Both sides state the precision of the products, of the parameters or the optimizer, they differ, and none of "
        "them is the factor. Of our own runs it is the precision in effect, as the worker probed it. `mixed` against "
        "fp16 or bf16 is unclear (SY108), not different."
    )
    bad = Example(
        "system,model,precision,metric,value,unit\n"
        "A,ResNet50,fp32,throughput,1000,images/s\nB,ResNet50,fp16,throughput,3000,images/s\n",
        "B looks three times as fast, but it computes in half the bits.",
    )
    good = Example(
        "system,model,precision,metric,value,unit\n"
        "A,ResNet50,fp16,throughput,2500,images/s\nB,ResNet50,FP16,throughput,3000,images/s\n",
        "Both compute in fp16.",
    )
    fix = "run both sides in one precision with one optimizer; or make it the factor (--factor precision)"


class OtherBatch(_OtherSettings):
    """Two rows with different batches."""

    code = "SY104"
    name = "other-batch"
    severity = "error"
    roles = ("batch",)
    meaning = "the two sides have different batches"
    why = (
        "A larger batch keeps a device busier, so that its rate rises by itself; in training it is also another "
        "computation, because the weights are updated less often. A ratio across batches favours the larger one."
    )
    detected = (
        "Both sides state a batch, and neither the batch of a device nor that of the whole job stays the same. With "
        "different numbers of devices one of the two changes by itself and is no finding. The same global batch on the "
        "same devices in smaller portions (gradient accumulation) is disclosed, and so is a batch that each side chose "
        "for itself in a comparison of best against best."
    )
    bad = Example(
        "system,model,batch_per_device,devices,metric,value,unit\n"
        "A,ResNet50,32,1,throughput,1000,images/s\nB,ResNet50,256,1,throughput,2000,images/s\n",
        "B has batches eight times as large; on small batches it might be no faster at all.",
    )
    good = Example(
        "system,model,batch_per_device,global_batch,devices,metric,value,unit\n"
        "A,ResNet50,32,32,1,throughput,1000,images/s\nB,ResNet50,32,128,4,throughput,3800,images/s\n",
        "Each device has the same batch; that the global batch is larger follows from there being four of them.",
    )
    fix = "run both sides at one batch, or sweep the batch on both and compare best against best; or --factor batch"


class OtherInput(_OtherSettings):
    """Two rows whose data arrives in different ways."""

    code = "SY105"
    name = "other-input"
    severity = "warning"
    roles = ("input",)
    meaning = "data reaches the two sides in different ways"
    why = (
        "A device that waits for data is as fast as its input pipeline. More loader processes on one side can look "
        "like a faster device. Where data is made on the device, the pipeline is not part of the figure at all."
    )
    detected = (
        "Loader processes, prefetching, pinned memory or the file system are stated on both sides and differ: "
        "disclosed. Data made on the device against data from the host blocks, because one figure contains the input "
        "and the other does not."
    )
    bad = Example(
        "system,model,workers_per_device,metric,value,unit\n"
        "A,ResNet50,1,throughput,1000,images/s\nB,ResNet50,8,throughput,2600,images/s\n",
        "B has eight loader processes, A has one: A may be waiting for data.",
    )
    good = Example(
        "system,model,workers_per_device,metric,value,unit\n"
        "A,ResNet50,8,throughput,2400,images/s\nB,ResNet50,8,throughput,2600,images/s\n",
        "Both sides have the same loader.",
    )
    fix = "give both sides the same loader, or show with `steelyard run --mode load` that neither waits for data"


class OtherImplementation(_OtherSettings):
    """Two rows that compute the same in different ways."""

    code = "SY106"
    name = "other-implementation"
    severity = "warning"
    roles = ("implementation",)
    meaning = "the two sides do the same work in different ways"
    why = (
        "Compilation, memory layout, deterministic algorithms, threads or the way to divide the work change the speed "
        "and not the result. Each side may have its own best way, but a reader must know that they differ."
    )
    detected = "Both sides state such a setting, it differs, and it is not the factor under study."
    bad = Example(
        "system,model,compile,metric,value,unit\n"
        "A,ResNet50,off,throughput,1000,images/s\nB,ResNet50,max-autotune,throughput,1400,images/s\n",
        "Only B is compiled; how much of the 1.4 comes from the machine nobody can tell.",
    )
    good = Example(
        "system,model,compile,metric,value,unit\n"
        "A,ResNet50,off,throughput,1000,images/s\nB,ResNet50,off,throughput,1200,images/s\n",
        "Neither side is compiled.",
    )
    fix = "run both sides the same way, or each at its best, and say so beside the ratio"


class OtherData(_OtherSettings):
    """Two rows on different data."""

    code = "SY107"
    name = "other-data"
    severity = "error"
    roles = ("data", "amount")
    meaning = "the two sides work on different data, or on different amounts of it"
    why = (
        "Samples of another data set have another size and another cost to read. An epoch of more samples, or a higher "
        "quality to reach, takes longer on any machine."
    )
    detected = (
        "Both sides state the data set (its name, or the digest of its files) and it differs: blocks. Another number "
        "of samples in an epoch or another quality target blocks where the figure is a time or an energy of the whole, "
        "and is disclosed beside rates."
    )
    bad = Example(
        "system,model,dataset,metric,value,unit\n"
        "A,ResNet50,synthetic,throughput,2000,images/s\nB,ResNet50,ImageNet,throughput,1200,images/s\n",
        "A reads nothing from disk; B does.",
    )
    good = Example(
        "system,model,dataset,metric,value,unit\n"
        "A,ResNet50,CIFAR-100,throughput,2000,images/s\nB,ResNet50,cifar100,throughput,2200,images/s\n",
        "Two spellings of one data set.",
    )
    fix = "run both sides on the same data for the same number of samples; or make the data the factor"


class UnknownSetting(PairRule):
    """Settings that only one side states."""

    code = "SY108"
    name = "unknown-setting"
    severity = "warning"
    why = (
        "What a source does not say may be the same or may be the whole difference. Unknown is not equal, and a reader "
        "must be told what could not be checked."
    )
    detected = (
        "A setting is stated on one side only, or in words that may mean the same (`mixed` and `fp16`; names of which "
        "one is part of the other, from two sources). Where neither side states model, precision or batch it is a note."
    )
    bad = Example(
        "system,model,precision,metric,value,unit\n"
        "A,ResNet50,fp16,throughput,1000,images/s\nB,ResNet50,,throughput,400,images/s\n",
        "Whether B computes in fp16 too is not known.",
    )
    good = Example(
        "system,model,precision,batch_per_device,metric,value,unit\n"
        "A,ResNet50,fp16,32,throughput,1000,images/s\nB,ResNet50,fp16,32,throughput,400,images/s\n",
        "Both sides state the same settings.",
    )
    fix = "find out what the source left open, or say beside the ratio that it is unknown"

    def check(self, pair: Pair) -> Iterator[Finding]:
        """One finding with what one side states alone; a note with what neither does."""
        if found := unclear(pair):
            yield self.found(
                f"not known to be the same on both sides: {', '.join(found)}",
                place=pair.b.place,
                evidence="one side leaves it out, or names it less exactly",
            )
        meant = meant_to_differ(pair)
        silent = [
            group[0]
            for group in CORE
            if not meant & set(group) and not any(stated(row, key) for row in (pair.a, pair.b) for key in group)
        ]
        if silent:
            yield self.found(f"neither side states: {', '.join(silent)}", place=pair.b.place, severity="note")


class OtherDeviceCount(PairRule):
    """Two rows with different numbers of devices."""

    code = "SY109"
    name = "other-device-count"
    severity = "warning"
    why = (
        "Four devices against one is no statement about the devices. Readers remember the ratio of the jobs and forget "
        "the four. The ratio per device must stand beside it."
    )
    detected = (
        "The number of devices or nodes differs, although it is not the factor. Between two systems it is disclosed, "
        "with the ratio per device where the figure is a rate, and with the batch of a device where that differs too. "
        "With any other factor it blocks: the ratio would mix that factor with the scaling."
    )
    bad = Example(
        "system,model,devices,metric,value,unit\n"
        "A,ResNet50,1,throughput,1000,images/s\nB,ResNet50,4,throughput,2400,images/s\n",
        "B looks 2.4 times as fast; per device it reaches 0.6 of A.",
    )
    good = Example(
        "system,model,devices,metric,value,unit\n"
        "A,ResNet50,4,throughput,2500,images/s\nB,ResNet50,4,throughput,2400,images/s\n",
        "Four devices on each side.",
    )
    fix = "compare equal numbers of devices, or give the ratio per device beside it; or --factor devices"

    def check(self, pair: Pair) -> Iterator[Finding]:
        """One finding on devices and nodes."""
        named = {key for key, role in SETTINGS.items() if pair.factor in (key, role)}
        if named & {"devices", "nodes"}:
            return
        differing = differences(pair.a, pair.b)
        found = [entry for entry in differing if entry.role == "size"]
        if not found:
            return
        # Where the job's batch stays, each of more devices has less to do, which a ratio per device contains.
        found += [entry for entry in differing if entry.key == "batch_per_device"]
        confounding = [entry for entry in confounders(pair) if entry.role == "size"]
        forbids = any(blocks(pair, entry) for entry in confounding)
        yield self.found(
            f"the two sides have different numbers of devices: {_format_list(found)}",
            place=pair.b.place,
            # A ratio that is forbidden must not come in by the back door.
            evidence="" if blocking(pair) else _format_per_device(pair),
            severity="error" if forbids else "warning",
        )


def _format_per_device(pair: Pair) -> str:
    """The ratio for one device, of figures that are rates of the whole job."""
    a, b = pair.a.figures.get(pair.metric), pair.b.figures.get(pair.metric)
    first, second = pair.a.number("devices"), pair.b.number("devices")
    if a is None or b is None or not first or not second or not a.unit.endswith("/s") or a.value <= 0:
        return ""
    if pair.metric.endswith(("_per_device", "_per_node", "_per_module", "_device", "bandwidth")):
        return ""
    whole = b.value / a.value
    each = [row.figures.get(f"{pair.metric}_format_per_device") for row in (pair.a, pair.b)]
    one, other = (amount.value if amount is not None else math.nan for amount in each)
    ratio = other / one if one > 0 and other > 0 else whole * first / second
    return f"ratio of the jobs {whole:.4g}, per device {ratio:.4g}"


class OtherSoftware(_OtherSettings):
    """Two rows with different software."""

    code = "SY110"
    name = "other-software"
    severity = "warning"
    roles = ("software",)
    meaning = "the two sides run different software"
    why = (
        "A newer framework, another build of it or a variable that steers a library can change the speed of the same "
        "device by more than the difference between two devices."
    )
    detected = "Framework and version, build, container or performance variables are stated on both sides and differ."
    bad = Example(
        "system,model,framework,metric,value,unit\n"
        "A,ResNet50,PyTorch 1.13,throughput,1000,images/s\nB,ResNet50,PyTorch 2.5,throughput,1300,images/s\n",
        "Between the two versions lie years of faster kernels.",
    )
    good = Example(
        "system,model,framework,metric,value,unit\n"
        "A,ResNet50,PyTorch 2.5,throughput,1000,images/s\nB,ResNet50,PyTorch 2.5,throughput,1300,images/s\n",
        "One framework in one version.",
    )
    fix = "run both sides with one version where it exists for both; else say which one each side has"

    def listed(self, found: list[Difference]) -> str:
        """Of long lists only the entries that differ."""
        return "; ".join(_format_parts(entry) if entry.key in ("build", "variables") else str(entry) for entry in found)


def _format_parts(found: Difference) -> str:
    """The parts of a long setting that differ."""
    a, b = _split(found, found.a), _split(found, found.b)
    names = [name for name in {**a, **b} if a.get(name) != b.get(name)]
    texts = [f"{name} {a.get(name, 'not set')[:SHOWN]} against {b.get(name, 'not set')[:SHOWN]}" for name in names]
    return "; ".join(texts[:MOST_PARTS]) + (f"; and {len(texts) - MOST_PARTS} more" if len(texts) > MOST_PARTS else "")


def _split(found: Difference, value: Setting) -> dict[str, str]:
    if found.key == "variables":
        try:
            data = json.loads(str(value))
        except (ValueError, RecursionError):
            data = None
        if isinstance(data, dict):
            return {str(name): str(entry) for name, entry in data.items()}
    return dict(part.strip().partition(" ")[::2] for part in str(value).split(";"))


class FactorUnchanged(PairRule):
    """The factor under study is the same on both sides."""

    code = "SY111"
    name = "factor-unchanged"
    severity = "note"
    why = (
        "A ratio is read as the effect of what was compared. Where that does not differ, the ratio shows chance, or "
        "something that nobody wrote down. Where it is unknown, nobody can say what the ratio is the effect of."
    )
    detected = "The setting under study has the same value on both sides (a note), or is unknown (disclosed)."
    bad = Example(
        "system,model,precision,metric,value,unit\n"
        "A,ResNet50,fp16,throughput,1000,images/s\nA,ResNet50,fp16,throughput,1010,images/s\n",
        "The same machine twice: the difference is no property of a machine.",
    )
    good = Example(
        "system,model,precision,metric,value,unit\n"
        "A,ResNet50,fp16,throughput,1000,images/s\nB,ResNet50,fp16,throughput,1300,images/s\n",
        "The machines differ, and they are compared.",
    )
    fix = "name what was changed as the factor (--factor NAME); or read the ratio as a test of repeatability"

    def check(self, pair: Pair) -> Iterator[Finding]:
        """One finding where the factor cannot be what made the difference."""
        keys = [key for key, role in SETTINGS.items() if pair.factor in (key, role)]
        if any(entry.key in keys for entry in differences(pair.a, pair.b)):
            return
        values = [(key, stated(pair.a, key), stated(pair.b, key)) for key in keys]
        same = [
            f"{key} {shown(a)}" for key, a, b in values
            if a is not None and b is not None and alike(key, a, b) == "same"
        ]  # fmt: skip
        if any((a is None) != (b is None) and implied(pair, key) for key, a, b in values):
            # One side has none of it, such as a way to divide the work on one device: that is a difference too.
            return
        if same:
            yield self.found(f"{pair.factor} is the same on both sides: {'; '.join(same)}", place=pair.b.place)
        else:
            yield self.found(f"{pair.factor} is not known on both sides", place=pair.b.place, severity="warning")


class OtherSystem(_OtherSettings):
    """Two rows from different machines, although the machine is not the factor."""

    code = "SY112"
    name = "other-system"
    severity = "error"
    roles = ("system",)
    meaning = "the two sides are different machines, and the machine is not what is compared"
    why = (
        "An effect of a setting is shown on one machine. Measured on two, it is mixed with the difference of the "
        "machines, and no arithmetic takes them apart."
    )
    detected = "System or accelerator differ and the factor under study is something else."
    bad = Example(
        "system,model,precision,metric,value,unit\n"
        "A,ResNet50,fp32,throughput,1000,images/s\nB,ResNet50,fp16,throughput,3000,images/s\n",
        "Nobody can say how much of the 3 comes from fp16, and how much from machine B.",
        factor="precision",
    )
    good = Example(
        "system,model,precision,metric,value,unit\n"
        "B,ResNet50,fp32,throughput,1400,images/s\nB,ResNet50,fp16,throughput,3000,images/s\n",
        "Both precisions on one machine.",
        factor="precision",
    )
    fix = "measure both values of the factor on one machine; or compare the machines with all else equal"


class OtherTraining(_OtherSettings):
    """Two rows that learn at different rates."""

    code = "SY113"
    name = "other-training"
    severity = "warning"
    roles = ("training",)
    meaning = "the two sides train with different learning rates"
    why = (
        "The learning rate does not change how long a step takes, but how many steps a quality needs. A time to "
        "quality is a property of both."
    )
    detected = (
        "Both sides state a learning rate and it differs. It blocks where the figure depends on what was learnt (a "
        "time to quality, an accuracy) and is disclosed beside rates. A rate that grew in proportion to a global batch "
        "which follows from the factor is no finding."
    )
    bad = Example(
        "system,model,learning_rate,metric,value,unit\n"
        "A,ResNet50,0.1,time_to_quality,1000,s\nB,ResNet50,0.4,time_to_quality,600,s\n",
        "B learns faster because of its learning rate, or because of the machine.",
    )
    good = Example(
        "system,model,learning_rate,metric,value,unit\n"
        "A,ResNet50,0.1,time_to_quality,1000,s\nB,ResNet50,0.1,time_to_quality,600,s\n",
        "Both sides have one learning rate.",
    )
    fix = "use one learning rate on both sides, or scale it with the batch by one stated rule"


class OtherUnit(PairRule):
    """Two figures that count different things."""

    code = "SY114"
    name = "other-unit"
    severity = "error"
    why = (
        "A rate of tokens and a rate of sequences differ by the length of a sequence, a rate and a time by everything. "
        "Their quotient has no meaning, however alike the numbers look."
    )
    detected = (
        "The two figures are of different kinds (a rate and a time), or rates of different things: blocks. A sample "
        "may be an image or a sequence; against one of these it is disclosed."
    )
    bad = Example(
        "system,model,metric,value,unit\nA,GPT,throughput,1000,tokens/s\nB,GPT,throughput,400,sequences/s\n",
        "A sequence has many tokens: B is far faster, not slower.",
    )
    good = Example(
        "system,model,metric,value,unit\nA,GPT,throughput,1000,tokens/s\nB,GPT,throughput,400,tokens/s\n",
        "Both figures count tokens.",
    )
    fix = "give both figures in one unit; turn sequences into tokens by the sequence length"

    def check(self, pair: Pair) -> Iterator[Finding]:
        """One finding with both units."""
        a, b = pair.a.figures.get(pair.metric), pair.b.figures.get(pair.metric)
        if a is None or b is None or a.unit == b.unit:
            return
        first, second = unit_of(a.unit), unit_of(b.unit)
        kinds = [known[0] if known else unit for known, unit in ((first, a.unit), (second, b.unit))]
        things = {counted(a.unit), counted(b.unit)}
        if kinds[0] == kinds[1] and len(things) == 1:
            return
        loose = kinds[0] == kinds[1] and things & {"samples", "items"} and not things & {"tokens", "B", "FLOP", "steps"}
        message = f"{pair.metric} is in {a.unit} on one side and in {b.unit} on the other"
        yield self.found(message, place=pair.b.place, severity="warning" if loose else "error")


class MixedJobs(PairRule):
    """Jobs of one side that were not set up alike."""

    code = "SY115"
    name = "mixed-jobs"
    severity = "warning"
    why = (
        "The figure of a side is a mean over its jobs. Where some of them ran on another machine or with other "
        "software, as after a study was resumed weeks later, the mean belongs to neither, and the spread is no chance."
    )
    detected = (
        "The jobs of one side state a setting differently. It blocks where that is the machine, the work, the data or "
        "the number format, and is disclosed otherwise. Of a table: a column `mixed` with the names of such settings."
    )
    bad = Example(
        "system,model,compile,mixed,metric,value,unit\n"
        "A,ResNet50,off,,throughput,1000,images/s\nA,ResNet50,default,framework,throughput,1030,images/s\n",
        "Some jobs of the second row ran with another version of the framework; the 3 % may come from that.",
        factor="compile",
    )
    good = Example(
        "system,model,compile,mixed,metric,value,unit\n"
        "A,ResNet50,off,,throughput,1000,images/s\nA,ResNet50,default,,throughput,1030,images/s\n",
        "All jobs of a row were set up alike.",
        factor="compile",
    )
    fix = "run the jobs that differ again, under a new study name where the machine or its software has changed"

    def check(self, pair: Pair) -> Iterator[Finding]:
        """One finding a side."""
        for row in (pair.a, pair.b):
            mixed = row.get("mixed")
            keys = [key for key in shown(mixed).replace(",", " ").split() if key in SETTINGS] if mixed else []
            if keys:
                forbids = any(SETTINGS[key] in GRAVE for key in keys)
                listed = "; ".join(f"{key} {shown(row.get(key))[:SHOWN]}" for key in keys[:MOST_PARTS])
                yield self.found(
                    f"its own jobs were not set up alike: {listed}",
                    place=row.place,
                    severity="error" if forbids else "warning",
                )
