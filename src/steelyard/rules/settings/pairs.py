"""Pair rules on settings that differ between two rows (SY102 to SY119).

What each setting affects is in `rules.table.settings`.
"""

from __future__ import annotations

import json
import math
import shlex
from operator import attrgetter
from typing import TYPE_CHECKING, ClassVar

from steelyard.inputs.command import run_again
from steelyard.numbers import short
from steelyard.rules.rule import Example, PairRule
from steelyard.rules.table.row import Pair
from steelyard.rules.table.settings import (
    FOLLOWS,
    SETTINGS,
    Difference,
    about_training,
    alike,
    blocking,
    blocks,
    confounders,
    differences,
    implied,
    keys_named,
    meant_to_differ,
    on_cpu,
    option_factor,
    shown,
    stated,
    unclear,
)
from steelyard.rules.table.units import counted, unit_of
from steelyard.stats.ratio import MIN_JOBS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from steelyard.contracts.finding import Finding
    from steelyard.rules.table.row import Setting
    from steelyard.rules.table.settings import Role

# Settings that every row should state; one of each group is enough.
CORE = (("model", "task"), ("precision",), ("batch", "global_batch"))

# Jobs that differ in one of these roles have no common mean.
ERROR_ROLES = ("system", "size", "work", "data", "arithmetic", "weights", "batches")
# Settings that an option of a run can change.
OPTIONS = (
    "mode", "precision", "autocast", "learning_rate", "batch", "accumulation", "devices", "loader.workers",
    "loader.prefetch", "loader.pin_memory", "parallel", "backend", "compile", "kv_cache", "graphs", "channels_last",
    "deterministic", "threads", "numa", "epoch_samples", "last_batch", "preset", "cudnn_benchmark", "optimizer_kernel",
    "gradient_as_bucket_view", "attention",
)  # fmt: skip
# Settings that follow from those of a run with other names.
FROM = {"model_options": "model", "parameter_precision": "autocast", "global_batch": "batch"}
SHOWN = 60
MOST_PARTS = 8


def _format_list(differing: list[Difference]) -> str:
    return "; ".join(map(str, differing))


class _OtherSettings(PairRule):
    """A rule on the settings of some roles; all that differ go into one finding."""

    roles: ClassVar[tuple[Role, ...]]
    meaning: ClassVar[str]

    def check(self, pair: Pair) -> Iterator[Finding]:
        """Yield one finding with all settings that differ; an error if one of the differences is."""
        differing = [entry for entry in confounders(pair) if entry.role in self.roles]
        if differing:
            invalid = any(blocks(pair, entry) for entry in differing)
            yield self.found(
                f"{self.meaning}: {self.listed(differing)}",
                place=pair.b.place,
                evidence=self.evidence(pair, differing),
                severity="error" if invalid else "warning",
                command=self.command(pair, differing),
            )

    def command(self, pair: Pair, differing: list[Difference]) -> str:
        """Return the command that makes the difference the factor, or runs both sides alike; empty: there is none."""
        return _fix_by(pair, differing)

    def listed(self, differing: list[Difference]) -> str:
        """Format the differences for the message."""
        return _format_list(differing)

    def evidence(self, pair: Pair, differing: list[Difference]) -> str:
        """Name the settings that were tuned separately for each side."""
        chosen = [entry.key for entry in differing if entry.key in pair.tuned]
        return f"tuned separately for each side: {', '.join(chosen)}" if chosen else ""


def _fix_by(pair: Pair, differing: list[Difference]) -> str:
    """Return the command that makes the difference the factor, if nothing else differs, or runs both sides alike."""
    if pair.a.spec is None or pair.b.spec is None:
        return ""
    named = keys_named(pair.factor)
    factors = {entry.key for entry in differences(pair.a, pair.b) if entry.key in named}
    others = [entry for entry in confounders(pair) if entry not in differing and blocks(pair, entry)]
    if factors or others:
        return _run_alike(pair, differing)
    factor = _name_factor(pair, differing)
    metric = ["--metric", pair.metric] if pair.metric != Pair.metric else []
    return shlex.join(["steelyard", "compare", pair.a.place, pair.b.place, "--factor", factor, *metric])


def _is_option(key: str) -> bool:
    return key in OPTIONS or key in FROM


def _name_factor(pair: Pair, differing: list[Difference]) -> str:
    """Return the setting from which these differences follow, or the role that they share."""
    keys = [entry.key for entry in differing]
    if keys == ["model_options"]:
        return option_factor(pair.a, pair.b)
    return next((key for key in keys if {*keys} <= {key, *FOLLOWS.get(key, ())}), differing[0].role)


def _run_alike(pair: Pair, differing: list[Difference]) -> str:
    """Return the command that runs the second side with the settings of the first in which it differs."""
    a, b = pair.a.spec, pair.b.spec
    if a is None or b is None or not all(_is_option(entry.key) for entry in differing):
        return ""
    names = dict.fromkeys(FROM.get(entry.key, entry.key) for entry in differing)
    changes = {name: attrgetter(name)(a) for name in names if attrgetter(name)(a) != attrgetter(name)(b)}
    return run_again(b, changes, repeats=MIN_JOBS) if changes else ""


class OtherWork(_OtherSettings):
    """Two rows that do different work."""

    code = "SY102"
    name = "different-work"
    severity = "error"
    roles = ("work",)
    meaning = "the two sides do different work"
    why = (
        "A rate counts samples of one model in one phase. With another model or phase, a sample is a different amount "
        "of work, and the ratio says nothing about the machines."
    )
    detected = (
        "Both sides state the model, its options, the phase (training or inference), the sequence length or the "
        "handling of the last batch; they differ, and none of them is the factor under study."
    )
    bad = Example(
        "system,model,metric,value,unit\nA,ResNet50,throughput,1000,images/s\nB,ResNet152,throughput,400,images/s\n",
        "Machine B reaches 0.4 times A's rate, but trains another model.",
    )
    good = Example(
        "system,model,metric,value,unit\nA,ResNet50,throughput,1000,images/s\nB,ResNet50,throughput,400,images/s\n",
        "Both train the same model; only the machines differ, and these are compared.",
    )
    fix = (
        "compare rows of the same model and phase, or compare the models or phases themselves (--factor model or phase)"
    )


class OtherArithmetic(_OtherSettings):
    """Two rows with different precision or optimizer."""

    code = "SY103"
    name = "different-precision"
    severity = "error"
    roles = ("arithmetic",)
    meaning = "the two sides differ in precision or optimizer"
    why = (
        "The matrix units of one device are many times faster in 16 bits than in 32. A ratio across precisions mixes "
        "the effect of the device with that of the number format. Another optimizer computes something else each step."
    )
    detected = (
        "Both sides state the precision of the matrix products or the optimizer; they differ, and neither is the "
        "factor under study. For steelyard's own runs it is the precision in effect. `mixed` and fp16 or bf16 count as "
        "unclear (SY108), not as different."
    )
    bad = Example(
        "system,model,precision,metric,value,unit\n"
        "A,ResNet50,fp32,throughput,1000,images/s\nB,ResNet50,fp16,throughput,3000,images/s\n",
        "B looks three times as fast, but computes with half the bits.",
    )
    good = Example(
        "system,model,precision,metric,value,unit\n"
        "A,ResNet50,fp16,throughput,2500,images/s\nB,ResNet50,FP16,throughput,3000,images/s\n",
        "Both compute in fp16.",
    )
    fix = "run both sides with the same precision and optimizer, or compare the precisions (--factor precision)"


class OtherBatch(_OtherSettings):
    """Two rows with different batch sizes."""

    code = "SY104"
    name = "different-batch"
    severity = "error"
    roles = ("batches",)
    meaning = "the two sides have different batch sizes"
    why = (
        "A larger batch uses a device better, so its rate is higher. In training it also changes the computation, "
        "because the weights are updated less often. A ratio across batch sizes favours the larger batch."
    )
    detected = (
        "Both sides state a batch size, and both the batch per device and the global batch differ. With different "
        "device counts one of the two always changes, so that alone is not a finding. It is a warning if the same "
        "global batch on the same number of devices is split differently (gradient accumulation), or if the batch was "
        "tuned separately for each side."
    )
    bad = Example(
        "system,model,batch,devices,metric,value,unit\n"
        "A,ResNet50,32,1,throughput,1000,images/s\nB,ResNet50,256,1,throughput,2000,images/s\n",
        "B's batch is eight times as large; with the same batch B might not be faster at all.",
    )
    good = Example(
        "system,model,batch,global_batch,devices,metric,value,unit\n"
        "A,ResNet50,32,32,1,throughput,1000,images/s\nB,ResNet50,32,128,4,throughput,3800,images/s\n",
        "The batch per device is the same; the global batch is larger only because B has four devices.",
    )
    fix = "run both sides with the same batch, or sweep the batch on both and compare the best; or use --factor batch"


class OtherInput(_OtherSettings):
    """Two rows with different data loading."""

    code = "SY105"
    name = "different-input"
    severity = "warning"
    roles = ("input",)
    meaning = "the two sides load data differently"
    why = (
        "A device that waits for data is only as fast as its input pipeline. More loader processes on one side can "
        "look like a faster device. With data generated on the device, the figure does not include the pipeline at all."
    )
    detected = (
        "Loader processes, prefetching, pinned memory or the file system are stated on both sides and differ. Data "
        "generated on the device compared with data from the host is an error, because only one figure includes the "
        "input pipeline."
    )
    bad = Example(
        "system,model,loader.workers,metric,value,unit\n"
        "A,ResNet50,1,throughput,1000,images/s\nB,ResNet50,8,throughput,2600,images/s\n",
        "B has eight loader processes, A only one: A may be waiting for data.",
    )
    good = Example(
        "system,model,loader.workers,metric,value,unit\n"
        "A,ResNet50,8,throughput,2400,images/s\nB,ResNet50,8,throughput,2600,images/s\n",
        "Both sides have the same number of loader processes.",
    )
    fix = "use the same loader settings on both sides, or measure the input pipelines alone (run --mode load)"


class OtherImplementation(_OtherSettings):
    """Two rows that do the same work with different implementations."""

    code = "SY106"
    name = "different-implementation"
    severity = "warning"
    roles = ("implementation",)
    meaning = "the two sides do the same work with different implementations"
    why = (
        "Compilation, memory layout, deterministic algorithms or the kind of parallelism change the speed but not "
        "the result. Each side may use its best implementation, but readers must know that they differ."
    )
    detected = "Both sides state such a setting, it differs, and it is not the factor under study."
    bad = Example(
        "system,model,compile,metric,value,unit\n"
        "A,ResNet50,off,throughput,1000,images/s\nB,ResNet50,max-autotune,throughput,1400,images/s\n",
        "Only B is compiled; it is not known how much of the 1.4 comes from the machine.",
    )
    good = Example(
        "system,model,compile,metric,value,unit\n"
        "A,ResNet50,off,throughput,1000,images/s\nB,ResNet50,off,throughput,1200,images/s\n",
        "Neither side is compiled.",
    )
    fix = "run both sides the same way, or tune each side, and report the settings with the ratio"


class OtherThreads(_OtherSettings):
    """Two rows whose ranks compute with different numbers of threads."""

    code = "SY119"
    name = "different-threads"
    severity = "warning"
    roles = ("threads",)
    meaning = "the ranks of the two sides have different numbers of CPU threads"
    why = (
        "On CPUs the threads of a rank are its device: a rank with two threads compared with a rank with one is a "
        "larger device compared with a smaller one. On accelerators threads feed the device, and a difference matters "
        "only if it waits for them."
    )
    detected = (
        "Both sides state the threads of a rank, in effect for steelyard's own runs, and they differ. It is an error "
        "if both ran on CPUs, unless two machines are compared; else a warning. With --factor threads it is no finding."
    )
    bad = Example(
        "system,accelerator,devices,threads,metric,value,unit\n"
        "A,cpu,1,8,throughput,1000,samples/s\nA,cpu,4,2,throughput,900,samples/s\n",
        "Four ranks with two threads use the CPUs that one rank with eight used: nothing was scaled.",
        factor="devices",
    )
    good = Example(
        "system,accelerator,devices,threads,metric,value,unit\n"
        "A,cpu,1,2,throughput,300,samples/s\nA,cpu,4,2,throughput,900,samples/s\n",
        "Each rank has two threads, alone and beside others.",
        factor="devices",
    )
    fix = "run both sides with the same --threads, the smaller number of the two"

    def command(self, pair: Pair, differing: list[Difference]) -> str:
        """Return the command that runs the side with more threads again with those of the other."""
        del differing
        a, b = (row.number("threads") or 0 for row in (pair.a, pair.b))
        spec = (pair.a if a > b else pair.b).spec
        return run_again(spec, {"threads": int(min(a, b))}, repeats=MIN_JOBS) if spec is not None else ""


class OtherTuning(_OtherSettings):
    """Two rows that are tuned differently."""

    code = "SY118"
    name = "different-tuning"
    severity = "warning"
    roles = ("tuning",)
    meaning = "the two sides are tuned differently"
    why = (
        "A fused optimizer, cuDNN's search for the fastest algorithm, another attention kernel or binding to the near "
        "CPUs can change the speed by more than the difference between two machines, and need no other hardware."
    )
    detected = (
        "The preset, cudnn_benchmark, the implementation of the optimizer, gradient_as_bucket_view, the attention "
        "kernel or the NUMA binding are stated on both sides and differ, and none of them is the factor under study. "
        "For steelyard's own runs they are read back from torch; what torch chose by default on both sides belongs to "
        "the machines. With --factor preset the settings of the preset may "
        "differ, with --factor tuning all of them."
    )
    bad = Example(
        "system,model,preset,metric,value,unit\n"
        "A,ResNet50,plain,throughput,1000,images/s\nB,ResNet50,tuned,throughput,1150,images/s\n",
        "Only B is tuned; it is not known how much of the 1.15 comes from the machine.",
    )
    good = Example(
        "system,model,preset,metric,value,unit\n"
        "A,ResNet50,tuned,throughput,1080,images/s\nB,ResNet50,tuned,throughput,1150,images/s\n",
        "Both sides are tuned.",
    )
    fix = "run both sides with the same preset, or compare the presets (--factor preset)"


class OtherData(_OtherSettings):
    """Two rows with different data."""

    code = "SY107"
    name = "different-data"
    severity = "error"
    roles = ("data", "amount")
    meaning = "the two sides use different data, or different amounts of it"
    why = (
        "Samples of another data set differ in size and in the cost of reading them. An epoch with more samples, or a "
        "higher quality target, takes longer on any machine."
    )
    detected = (
        "Both sides state the data set (its name, or the digest of its files), and it differs. A different number of "
        "samples per epoch or a different quality target is an error if the figure is a time or an energy of the whole "
        "run, and a warning if it is a rate."
    )
    bad = Example(
        "system,model,dataset,metric,value,unit\n"
        "A,ResNet50,synthetic,throughput,2000,images/s\nB,ResNet50,ImageNet,throughput,1200,images/s\n",
        "A generates its data, B reads files.",
    )
    good = Example(
        "system,model,dataset,metric,value,unit\n"
        "A,ResNet50,CIFAR-100,throughput,2000,images/s\nB,ResNet50,cifar100,throughput,2200,images/s\n",
        "Two spellings of the same data set.",
    )
    fix = "run both sides with the same data and number of samples, or compare the data sets (--factor dataset)"


class UnknownSetting(PairRule):
    """Settings that only one side states."""

    code = "SY108"
    name = "unknown-setting"
    severity = "warning"
    why = (
        "A setting that a source does not state may be the same, or may explain the whole difference. Unknown is not "
        "equal, so readers must know what could not be checked."
    )
    detected = (
        "Only one side states a setting, or the values may mean the same (`mixed` and `fp16`, or a name from one "
        "source that contains the name from the other). So is a setting that could not be read back from a program on "
        "either side. It is a note if neither side states model, precision or batch, and an error for the time of a "
        "training whose number of epochs only one side states."
    )
    bad = Example(
        "system,model,precision,metric,value,unit\n"
        "A,ResNet50,fp16,throughput,1000,images/s\nB,ResNet50,,throughput,400,images/s\n",
        "It is not known whether B also computes in fp16.",
    )
    good = Example(
        "system,model,precision,batch,metric,value,unit\n"
        "A,ResNet50,fp16,32,throughput,1000,images/s\nB,ResNet50,fp16,32,throughput,400,images/s\n",
        "Both sides state the same settings.",
    )
    fix = "look up the missing settings, or report with the ratio that they are unknown"

    def check(self, pair: Pair) -> Iterator[Finding]:
        """Yield a warning with the settings that only one side states, and a note with those that neither states."""
        if uncertain := unclear(pair):
            lengths = {stated(row, "epochs") for row in (pair.a, pair.b)}
            # A training of unknown length takes any time.
            unknown = about_training(pair.metric) and None in lengths and len(lengths) > 1
            yield self.found(
                f"not known to be the same on both sides: {', '.join(uncertain)}",
                place=pair.b.place,
                evidence="one side does not state it, or less exactly",
                severity="error" if unknown else "warning",
            )
        meant = meant_to_differ(pair)
        # Settings of programs that both sides hide: they may be the same, or not.
        names = [{*shown(row.get("unknown")).split(", ")} if row.get("unknown") else set() for row in (pair.a, pair.b)]
        if hidden := sorted(names[0] & names[1]):
            yield self.found(f"unknown on both sides: {', '.join(hidden)}", place=pair.b.place)
        silent = [
            group[0]
            for group in CORE
            if not meant & set(group)
            and not any(stated(row, key) for row in (pair.a, pair.b) for key in group)
            and not {FROM.get(key, key) for key in group} & {*hidden}
        ]
        if silent:
            yield self.found(f"neither side states: {', '.join(silent)}", place=pair.b.place, severity="note")


class OtherDeviceCount(PairRule):
    """Two rows with different numbers of devices."""

    code = "SY109"
    name = "different-device-count"
    severity = "warning"
    why = (
        "A ratio of four devices to one says little about the devices. Readers remember the ratio and forget the "
        "device counts, so the ratio per device must be reported with it."
    )
    detected = (
        "The number of devices or nodes differs, although it is not the factor under study. Between two systems it is "
        "a warning, with the ratio per device if the figure is a rate. With any other factor it is an error, because "
        "the ratio would mix that factor with scaling."
    )
    bad = Example(
        "system,model,devices,metric,value,unit\n"
        "A,ResNet50,1,throughput,1000,images/s\nB,ResNet50,4,throughput,2400,images/s\n",
        "B looks 2.4 times as fast, but per device it reaches only 0.6 times A's rate.",
    )
    good = Example(
        "system,model,devices,metric,value,unit\n"
        "A,ResNet50,4,throughput,2500,images/s\nB,ResNet50,4,throughput,2400,images/s\n",
        "Four devices on each side.",
    )
    fix = "compare equal numbers of devices, or report the ratio per device too; or use --factor devices"

    def check(self, pair: Pair) -> Iterator[Finding]:
        """Yield one finding with the numbers of devices and nodes."""
        if keys_named(pair.factor) & {"devices", "nodes"}:
            return
        differing = differences(pair.a, pair.b)
        sizes = [entry for entry in differing if entry.role == "size"]
        if not sizes:
            return
        # With the same global batch, more devices have less work each, which affects the ratio per device.
        sizes += [entry for entry in differing if entry.key == "batch"]
        confounding = [entry for entry in confounders(pair) if entry.role == "size"]
        invalid = any(blocks(pair, entry) for entry in confounding)
        yield self.found(
            f"the two sides have different numbers of devices: {_format_list(sizes)}",
            place=pair.b.place,
            # The evidence must not show a ratio that errors make invalid.
            evidence="" if blocking(pair) else _format_per_device(pair),
            severity="error" if invalid else "warning",
            command=_run_alike(pair, [entry for entry in sizes if entry.key == "devices"]),
        )


def _format_per_device(pair: Pair) -> str:
    """Format the ratio of the jobs and the ratio per device; empty unless the figure is a rate of the whole job."""
    a, b = pair.a.figures.get(pair.metric), pair.b.figures.get(pair.metric)
    first, second = pair.a.number("devices"), pair.b.number("devices")
    if a is None or b is None or not first or not second or not a.unit.endswith("/s") or a.value <= 0:
        return ""
    if pair.metric.endswith(("_per_device", "_per_node", "_per_module", "_device", "bandwidth")):
        return ""
    whole = b.value / a.value
    each = [row.figures.get(f"{pair.metric}_per_device") for row in (pair.a, pair.b)]
    one, other = (amount.value if amount is not None else math.nan for amount in each)
    ratio = other / one if one > 0 and other > 0 else whole * first / second
    return f"ratio of the jobs {short(whole)}, per device {short(ratio)}"


class OtherSoftware(_OtherSettings):
    """Two rows with different software."""

    code = "SY110"
    name = "different-software"
    severity = "warning"
    roles = ("software",)
    meaning = "the two sides run different software"
    why = (
        "A newer framework, another build or an environment variable can change the speed of a device by more than the "
        "difference between two devices."
    )
    detected = (
        "Framework and version, build, container or performance-related environment variables are stated on both sides "
        "and differ."
    )
    bad = Example(
        "system,model,framework,metric,value,unit\n"
        "A,ResNet50,PyTorch 1.13,throughput,1000,images/s\nB,ResNet50,PyTorch 2.5,throughput,1300,images/s\n",
        "The newer version may have faster kernels.",
    )
    good = Example(
        "system,model,framework,metric,value,unit\n"
        "A,ResNet50,PyTorch 2.5,throughput,1000,images/s\nB,ResNet50,PyTorch 2.5,throughput,1300,images/s\n",
        "Both sides use the same version.",
    )
    fix = "run both sides with the same version if possible; otherwise report both versions with the ratio"

    def listed(self, differing: list[Difference]) -> str:
        """Format the differences; of long lists show only the entries that differ."""
        return "; ".join(
            _format_parts(entry) if entry.key in ("build", "variables") else str(entry) for entry in differing
        )


def _format_parts(difference: Difference) -> str:
    """Format the parts of a long setting that differ."""
    a, b = _split(difference, difference.a), _split(difference, difference.b)
    names = [name for name in {**a, **b} if a.get(name) != b.get(name)]
    texts = [f"{name} {a.get(name, 'not set')[:SHOWN]} vs {b.get(name, 'not set')[:SHOWN]}" for name in names]
    return "; ".join(texts[:MOST_PARTS]) + (f"; and {len(texts) - MOST_PARTS} more" if len(texts) > MOST_PARTS else "")


def _split(difference: Difference, value: Setting) -> dict[str, str]:
    if difference.key == "variables":
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
        "Readers take a ratio for the effect of the factor. If the factor is the same on both sides, the ratio shows "
        "noise or an unrecorded difference. If it is unknown, so is the cause of the ratio."
    )
    detected = "The factor under study has the same value on both sides (note), or is unknown (warning)."
    bad = Example(
        "system,model,precision,metric,value,unit\n"
        "A,ResNet50,fp16,throughput,1000,images/s\nA,ResNet50,fp16,throughput,1010,images/s\n",
        "The same machine twice: the difference does not come from the machine.",
    )
    good = Example(
        "system,model,precision,metric,value,unit\n"
        "A,ResNet50,fp16,throughput,1000,images/s\nB,ResNet50,fp16,throughput,1300,images/s\n",
        "The machines differ, and they are compared.",
    )
    fix = "set --factor to the setting that was changed, or treat the ratio as a repeatability test"

    def check(self, pair: Pair) -> Iterator[Finding]:
        """Yield a finding if the factor cannot be the cause of the difference."""
        keys = keys_named(pair.factor)
        if any(entry.key in keys for entry in differences(pair.a, pair.b)):
            return
        values = [(key, stated(pair.a, key), stated(pair.b, key)) for key in keys]
        same = [
            f"{key} {shown(a)}"
            for key, a, b in values
            if a is not None and b is not None and alike(key, a, b) == "same"
        ]
        if any((a is None) != (b is None) and implied(pair, key) for key, a, b in values):
            # Only one side has the setting (one device needs no parallelism), which is a difference too.
            return
        if same:
            message = f"{pair.factor} is the same on both sides: {'; '.join(same)}"
            yield self.found(message, place=pair.b.place, fix=self._name_changed(pair))
        else:
            yield self.found(f"{pair.factor} is not known on both sides", place=pair.b.place, severity="warning")

    def _name_changed(self, pair: Pair) -> str:
        """Return the fix with the settings that were changed, if any."""
        by_role: dict[str, list[Difference]] = {}
        for entry in confounders(pair):
            if _is_option(entry.key):
                by_role.setdefault(entry.role, []).append(entry)
        names = [_name_factor(pair, differing) for differing in by_role.values()]
        if len(names) > 1:
            return f"compare rows that differ in one of these only: {', '.join(names)}"
        return (
            self.fix.replace("set --factor to the setting that was changed", f"use --factor {names[0]}")
            if names
            else self.fix
        )


class OtherSystem(_OtherSettings):
    """Two rows from different machines, although the machine is not the factor."""

    code = "SY112"
    name = "different-system"
    severity = "error"
    roles = ("system",)
    meaning = "the two sides are different machines, but the machine is not the factor under study"
    why = (
        "The effect of a setting must be measured on one machine. On two machines it is mixed with the difference "
        "between them, and the two cannot be separated."
    )
    detected = "System or accelerator differ, and the factor under study is something else."
    bad = Example(
        "system,model,precision,metric,value,unit\n"
        "A,ResNet50,fp32,throughput,1000,images/s\nB,ResNet50,fp16,throughput,3000,images/s\n",
        "It is not known how much of the factor 3 comes from fp16 and how much from machine B.",
        factor="precision",
    )
    good = Example(
        "system,model,precision,metric,value,unit\n"
        "B,ResNet50,fp32,throughput,1400,images/s\nB,ResNet50,fp16,throughput,3000,images/s\n",
        "Both precisions were measured on one machine.",
        factor="precision",
    )
    fix = "measure both values of the factor on one machine, or compare the machines with all other settings equal"


class OtherTraining(_OtherSettings):
    """Two rows with different learning rates or initial weights."""

    code = "SY113"
    name = "different-training"
    severity = "warning"
    roles = ("training",)
    meaning = "the two sides differ in their learning rates or in the weights that they begin with"
    why = (
        "Neither changes the time of a step, but both change how many steps a quality target needs, and what a model "
        "knows. A time to quality depends on both."
    )
    detected = (
        "Both sides state a learning rate or their initial weights, and they differ. It is an error if the figure "
        "depends on what was learnt (a time to quality, an accuracy), and a warning for rates. A learning rate scaled "
        "in proportion to a global batch that follows from the factor is not a finding."
    )
    bad = Example(
        "system,model,learning_rate,metric,value,unit\n"
        "A,ResNet50,0.1,time_to_quality,1000,s\nB,ResNet50,0.4,time_to_quality,600,s\n",
        "B is faster because of its learning rate or because of the machine; it is not known which.",
    )
    good = Example(
        "system,model,learning_rate,metric,value,unit\n"
        "A,ResNet50,0.1,time_to_quality,1000,s\nB,ResNet50,0.1,time_to_quality,600,s\n",
        "Both sides have the same learning rate.",
    )
    fix = "use the same weights and learning rate on both sides, or scale the rate with the batch by a stated rule"


class OtherUnit(PairRule):
    """Two figures in incompatible units."""

    code = "SY114"
    name = "different-units"
    severity = "error"
    why = (
        "A rate in tokens and a rate in sequences differ by the sequence length; a rate and a time are different "
        "quantities. Their ratio has no meaning, even if the numbers look similar."
    )
    detected = (
        "The two figures are of different kinds (a rate and a time), or rates of different items. Samples compared "
        "with images or sequences are a warning, because a sample may be either."
    )
    bad = Example(
        "system,model,metric,value,unit\nA,GPT,throughput,1000,tokens/s\nB,GPT,throughput,400,sequences/s\n",
        "A sequence has many tokens, so B is far faster, not slower.",
    )
    good = Example(
        "system,model,metric,value,unit\nA,GPT,throughput,1000,tokens/s\nB,GPT,throughput,400,tokens/s\n",
        "Both figures count tokens.",
    )
    fix = "give both figures in the same unit; multiply sequences by the sequence length to get tokens"

    def check(self, pair: Pair) -> Iterator[Finding]:
        """Yield one finding with both units."""
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
    """Jobs of one side with different settings."""

    code = "SY115"
    name = "mixed-jobs"
    severity = "warning"
    why = (
        "The figure of a side is the mean over its jobs. If some of them ran on another machine or with other software "
        "(for example after a study was resumed weeks later), the mean describes neither, and the spread is not noise."
    )
    detected = (
        "The jobs of one side differ in a setting. It is an error for the machine, the work, the data, the batch, "
        "the precision or, on CPUs, the threads, otherwise a warning. In a table, a column `mixed` names such settings."
    )
    bad = Example(
        "system,model,compile,mixed,metric,value,unit\n"
        "A,ResNet50,off,,throughput,1000,images/s\nA,ResNet50,default,framework,throughput,1030,images/s\n",
        "Some jobs of the second row used another framework version; the 3 % may come from that.",
        factor="compile",
    )
    good = Example(
        "system,model,compile,mixed,metric,value,unit\n"
        "A,ResNet50,off,,throughput,1000,images/s\nA,ResNet50,default,,throughput,1030,images/s\n",
        "All jobs of a row have the same settings.",
        factor="compile",
    )
    fix = "rerun the jobs that differ; use a new study name if the machine or its software has changed"

    def check(self, pair: Pair) -> Iterator[Finding]:
        """Yield one finding per side whose jobs differ."""
        for row in (pair.a, pair.b):
            mixed = row.get("mixed")
            keys = [key for key in shown(mixed).replace(",", " ").split() if key in SETTINGS] if mixed else []
            if keys:
                invalid = any(SETTINGS[key] in ERROR_ROLES or (key == "threads" and on_cpu(row)) for key in keys)
                listed = "; ".join(f"{key} {shown(row.get(key))[:SHOWN]}" for key in keys[:MOST_PARTS])
                yield self.found(
                    f"its jobs differ in settings: {listed}",
                    place=row.place,
                    severity="error" if invalid else "warning",
                )


class OtherWeights(_OtherSettings):
    """Two rows whose weights have different number formats, or of which one casts them in every step."""

    code = "SY116"
    name = "different-weights"
    severity = "error"
    roles = ("weights",)
    meaning = "the two sides hold their weights differently"
    why = (
        "With autocast the weights stay in fp32 and are read and cast in every step; cast once, they are read in half "
        "the bytes and never cast again. When a language model decodes, reading weights is most of the time: a ratio "
        "between the two says more about this than about the machines."
    )
    detected = (
        "Both sides state the number format of the parameters or whether they autocast, it differs, and neither is the "
        "factor under study. For steelyard's own runs both are read back from the model. Weights that differ because "
        "the precision differs are reported with the precision (SY103)."
    )
    bad = Example(
        "system,model,mode,precision,parameter_precision,autocast,metric,value,unit\n"
        "A,GPT,generate,bf16,bf16,false,throughput,1000,tokens/s\n"
        "B,GPT,generate,bf16,fp32,true,throughput,400,tokens/s\n",
        "Both compute in bf16, but B casts all its weights for every token.",
    )
    good = Example(
        "system,model,mode,precision,parameter_precision,autocast,metric,value,unit\n"
        "A,GPT,generate,bf16,bf16,false,throughput,1000,tokens/s\n"
        "B,GPT,generate,bf16,bf16,false,throughput,900,tokens/s\n",
        "Both cast their weights once, before the first step.",
    )
    fix = "run both sides with or both without --autocast, or compare the two (--factor autocast)"

    def check(self, pair: Pair) -> Iterator[Finding]:
        """Yield one finding, unless the precision differs too."""
        if not any(entry.key == "precision" for entry in confounders(pair)):
            yield from super().check(pair)
