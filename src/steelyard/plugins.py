"""The registry of extensions: kind and name to "module:attribute". Imports an object when it is loaded, not before."""

from __future__ import annotations

import importlib
import sys
from functools import cache
from typing import TYPE_CHECKING, Any

from steelyard.errors import Problem, nearest, refusal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from steelyard.errors import InputError

SHOWN_NAME = 80
# Names of kinds in messages, and the commands that list them.
TITLES = {"data": "data format", "device": "device family", "importer": "format of results"}
LISTS = {
    "workload": "steelyard workloads",
    "data": "steelyard data",
    "rule": "steelyard explain",
    "reference table": "steelyard audit --reference",
    "suite": "steelyard suite list",
    "factor": "steelyard explain settings",
    "setting": "steelyard explain settings",
}
# What other tools call these, or the nearest thing that is registered.
_DEVICES = {
    "gpu": "cuda",
    "nvidia": "cuda",
    "rocm": "cuda",
    "hip": "cuda",
    "amd": "cuda",
    "intel": "xpu",
    "gaudi": "hpu",
    "habana": "hpu",
    "any": "auto",
}
_WORKLOADS = {
    "resnet": "resnet50",
    "gpt2": "gpt",
    "gpt-2": "gpt",
    "bert": "bert-base",
    "vit": "vit-l-16",
    "swin": "swin-t",
    "efficientnet": "efficientnet-b0",
    "mobilenet": "mobilenet-v3-large",
    "wideresnet": "wideresnet28-10",
    "wrn-28-10": "wideresnet28-10",
    "gemm": "matmul",
    "stream": "memory-bandwidth",
    "nccl": "all-reduce",
    "bandwidth": "memory-bandwidth",
    "fasterrcnn": "fasterrcnn-r50-fpn",
}
_DATA = {"cifar": "cifar10", "imagenet": "imagefolder", "wds": "webdataset", "text": "tokens"}
OTHER_NAMES: dict[str, dict[str, str]] = {"device": _DEVICES, "workload": _WORKLOADS, "data": _DATA}

BUILTIN: dict[str, dict[str, str]] = {
    "device": {
        "sim": "steelyard.worker.engine.sim_job:open_job",
        **dict.fromkeys(("auto", "cpu", "cuda", "xpu", "hpu"), "steelyard.worker.engine.torch_entry:open_job"),
    },
    "workload": {
        "sim": "steelyard.worker.workloads.sim:SimSteps",
        "tiny": "steelyard.worker.workloads.tiny:build",
        "resnet50": "steelyard.worker.workloads.vision:resnet50",
        "resnet50-v2": "steelyard.worker.workloads.resnet_v2:build",
        "resnet152": "steelyard.worker.workloads.vision:resnet152",
        "vit-l-16": "steelyard.worker.workloads.vision:vit_l_16",
        "vit-l-32": "steelyard.worker.workloads.vision:vit_l_32",
        "vit-h-14": "steelyard.worker.workloads.vision:vit_h_14",
        "swin-t": "steelyard.worker.workloads.vision:swin_t",
        "swin-b": "steelyard.worker.workloads.vision:swin_b",
        "efficientnet-b0": "steelyard.worker.workloads.vision:efficientnet_b0",
        "efficientnet-b4": "steelyard.worker.workloads.vision:efficientnet_b4",
        "mobilenet-v3-small": "steelyard.worker.workloads.vision:mobilenet_v3_small",
        "mobilenet-v3-large": "steelyard.worker.workloads.vision:mobilenet_v3_large",
        "wideresnet28-10": "steelyard.worker.workloads.wideresnet:build",
        "wideresnet-olivia": "steelyard.worker.workloads.wideresnet_olivia:build",
        "timm": "steelyard.worker.workloads.timm_models:build",
        "fasterrcnn-r50-fpn": "steelyard.worker.workloads.detection:fasterrcnn",
        "deformable-detr-swin-l": "steelyard.worker.workloads.detection:deformable_detr",
        "segformer-b4": "steelyard.worker.workloads.segmentation:segformer",
        "deeplabv3plus-r101": "steelyard.worker.workloads.segmentation:deeplab",
        "gpt": "steelyard.worker.workloads.gpt:build",
        "llama": "steelyard.worker.workloads.llama:build",
        "bert-base": "steelyard.worker.workloads.bert:base",
        "bert-large": "steelyard.worker.workloads.bert:large",
        "autoencoder": "steelyard.worker.workloads.autoencoder:build",
        "matmul": "steelyard.worker.workloads.ceilings:matmul",
        "memory-bandwidth": "steelyard.worker.workloads.ceilings:memory_bandwidth",
        "host-device-copy": "steelyard.worker.workloads.ceilings:host_device_copy",
        "all-reduce": "steelyard.worker.workloads.collectives:all_reduce",
        "all-gather": "steelyard.worker.workloads.collectives:all_gather",
        "reduce-scatter": "steelyard.worker.workloads.collectives:reduce_scatter",
    },
    "data": {
        "cifar10": "steelyard.data.cifar:CIFAR10",
        "cifar100": "steelyard.data.cifar:CIFAR100",
        "mnist": "steelyard.data.mnist:MNIST",
        "imagefolder": "steelyard.data.folder:IMAGEFOLDER",
        "food101": "steelyard.data.folder:FOOD101",
        "webdataset": "steelyard.data.shards:WEBDATASET",
        "coco": "steelyard.data.coco:COCO",
        "cityscapes": "steelyard.data.cityscapes:CITYSCAPES",
        "tokens": "steelyard.data.tokens:TOKENS",
        "squad": "steelyard.data.squad:SQUAD",
    },
    "run_rule": {
        "SY101": "steelyard.rules.settings.runs:NotInEffect",
        "SY201": "steelyard.rules.statistics.runs:NotSteady",
        "SY202": "steelyard.rules.statistics.runs:StoppedEarly",
        "SY203": "steelyard.rules.statistics.runs:ApproximateInterval",
        "SY204": "steelyard.rules.statistics.runs:FirstEpoch",
        "SY402": "steelyard.rules.energy.runs:EnergyInvalid",
        "SY403": "steelyard.rules.energy.runs:EnergyDoubtful",
        "SY404": "steelyard.rules.energy.runs:CounterAgainstIntegral",
        "SY405": "steelyard.rules.energy.runs:DevicesMissing",
        "SY406": "steelyard.rules.energy.runs:RunAboveLimit",
        "SY407": "steelyard.rules.energy.runs:WindowMismatch",
        "SY408": "steelyard.rules.energy.runs:SamplerDied",
        "SY409": "steelyard.rules.energy.runs:HoldsHost",
        "SY501": "steelyard.rules.arithmetic.runs:ClocksDisagree",
        "SY502": "steelyard.rules.arithmetic.runs:SynchronisedDiffers",
        "SY511": "steelyard.rules.arithmetic.runs:PrintedDiffers",
        "SY601": "steelyard.rules.environment.runs:RanksMissing",
        "SY602": "steelyard.rules.environment.runs:TooFewCpus",
        "SY603": "steelyard.rules.environment.runs:FellBack",
        "SY609": "steelyard.rules.environment.load:BusyMachine",
        "SY610": "steelyard.rules.environment.load:SharedDevice",
        "SY611": "steelyard.rules.environment.queue:HostBound",
        "SY612": "steelyard.rules.environment.queue:HiddenSynchronisations",
        "SY613": "steelyard.rules.environment.queue:CostlyEvents",
        "SY614": "steelyard.rules.environment.conditions:HeldBack",
        "SY616": "steelyard.rules.environment.conditions:MemoryErrors",
        "SY617": "steelyard.rules.environment.runs:NodeMemoryNearlyFull",
        "SY618": "steelyard.rules.environment.runs:CrossCheckFailed",
        "SY619": "steelyard.rules.environment.programs:NotReportedIn",
        "SY620": "steelyard.rules.environment.programs:StepsUncertain",
        "SY621": "steelyard.rules.environment.programs:SamplesUnknown",
        "SY622": "steelyard.rules.environment.programs:FigureUnchecked",
        "SY623": "steelyard.rules.environment.scheduler:Suspended",
        "SY624": "steelyard.rules.environment.scheduler:ClockSkew",
        "SY626": "steelyard.rules.environment.programs:OtherDevices",
        "SY627": "steelyard.rules.environment.programs:CostlyHooks",
        "SY628": "steelyard.rules.environment.programs:OtherSamples",
        "SY629": "steelyard.rules.environment.programs:NotebookOutput",
        "SY630": "steelyard.rules.environment.programs:EvaluationMode",
        "SY701": "steelyard.rules.plausibility.runs:RanAway",
        "SY702": "steelyard.rules.plausibility.runs:DoesNotLearn",
        "SY705": "steelyard.rules.plausibility.runs:UpdatesSkipped",
    },
    "pair_rule": {
        "SY102": "steelyard.rules.settings.pairs:OtherWork",
        "SY103": "steelyard.rules.settings.pairs:OtherArithmetic",
        "SY104": "steelyard.rules.settings.pairs:OtherBatch",
        "SY105": "steelyard.rules.settings.pairs:OtherInput",
        "SY106": "steelyard.rules.settings.pairs:OtherImplementation",
        "SY107": "steelyard.rules.settings.pairs:OtherData",
        "SY108": "steelyard.rules.settings.pairs:UnknownSetting",
        "SY109": "steelyard.rules.settings.pairs:OtherDeviceCount",
        "SY110": "steelyard.rules.settings.pairs:OtherSoftware",
        "SY111": "steelyard.rules.settings.pairs:FactorUnchanged",
        "SY112": "steelyard.rules.settings.pairs:OtherSystem",
        "SY113": "steelyard.rules.settings.pairs:OtherTraining",
        "SY114": "steelyard.rules.settings.pairs:OtherUnit",
        "SY115": "steelyard.rules.settings.pairs:MixedJobs",
        "SY116": "steelyard.rules.settings.pairs:OtherWeights",
        "SY117": "steelyard.rules.settings.serving:NotServing",
        "SY119": "steelyard.rules.settings.pairs:OtherThreads",
        "SY118": "steelyard.rules.settings.pairs:OtherTuning",
        "SY205": "steelyard.rules.statistics.pairs:TooFewJobs",
        "SY206": "steelyard.rules.statistics.pairs:OneNodeOnly",
        "SY207": "steelyard.rules.statistics.pairs:UnsoundRuns",
        "SY208": "steelyard.rules.statistics.pairs:OtherWindow",
        "SY209": "steelyard.rules.statistics.pairs:JobsLost",
        "SY211": "steelyard.rules.statistics.pairs:TrendInJobs",
        "SY212": "steelyard.rules.statistics.pairs:OneAfterTheOther",
        "SY213": "steelyard.rules.statistics.pairs:UnsteadyJobs",
        "SY410": "steelyard.rules.energy.pairs:EnergiesNotAlike",
        "SY604": "steelyard.rules.environment.pairs:OtherNode",
        "SY605": "steelyard.rules.environment.pairs:OtherHost",
        "SY606": "steelyard.rules.environment.pairs:OtherDeviceState",
        "SY607": "steelyard.rules.environment.pairs:OtherScope",
        "SY608": "steelyard.rules.environment.pairs:OtherTiming",
        "SY615": "steelyard.rules.environment.pairs:OneHeldBack",
        "SY625": "steelyard.rules.environment.pairs:BesideLoad",
    },
    "table_rule": {
        "SY220": "steelyard.rules.statistics.history:Drifted",
        "SY301": "steelyard.rules.scaling.tables:Superlinear",
        "SY303": "steelyard.rules.scaling.tables:ConfoundedScaling",
        "SY310": "steelyard.rules.scaling.curves:Extrapolated",
        "SY311": "steelyard.rules.scaling.curves:BaseOfSeveral",
        "SY312": "steelyard.rules.scaling.curves:NeitherStrongNorWeak",
        "SY313": "steelyard.rules.scaling.curves:TwoCounts",
        "SY314": "steelyard.rules.scaling.curves:Gap",
        "SY315": "steelyard.rules.scaling.requests:JobNotMeasured",
        "SY401": "steelyard.rules.energy.tables:PowerAboveLimit",
        "SY503": "steelyard.rules.arithmetic.tables:OtherWorkInRow",
        "SY504": "steelyard.rules.arithmetic.tables:FigureContradicts",
        "SY505": "steelyard.rules.arithmetic.tables:UnitSlip",
        "SY506": "steelyard.rules.arithmetic.tables:ScopeSlip",
        "SY507": "steelyard.rules.arithmetic.tables:WrongDeviceCount",
        "SY508": "steelyard.rules.arithmetic.tables:WrongBase",
        "SY509": "steelyard.rules.arithmetic.tables:BatchProduct",
        "SY510": "steelyard.rules.arithmetic.requests:HoursDoNotFollow",
        "SY512": "steelyard.rules.arithmetic.tables:SwappedFigures",
        "SY513": "steelyard.rules.arithmetic.tables:PercentilesOutOfOrder",
        "SY703": "steelyard.rules.plausibility.tables:Outlier",
        "SY704": "steelyard.rules.plausibility.tables:StaleRow",
    },
    "claim_rule": {
        "SY120": "steelyard.rules.settings.claims:Unfair",
        "SY121": "steelyard.rules.settings.claims:Confounded",
        "SY210": "steelyard.rules.statistics.claims:NotShown",
        "SY520": "steelyard.rules.arithmetic.claims:BaseDiffers",
        "SY521": "steelyard.rules.arithmetic.claims:DoesNotFollow",
    },
    "sensor": {
        "nvml": "steelyard.worker.sensors.nvml:open_nvml",
        "rapl": "steelyard.worker.sensors.rapl:open_rapl",
        "hwmon": "steelyard.worker.sensors.hwmon:open_hwmon",
        "amd": "steelyard.worker.sensors.amd:open_amd",
        "ipu": "steelyard.worker.sensors.ipu:open_ipu",
        "xpu": "steelyard.worker.sensors.xpu:open_xpu",
    },
    "suite": {
        "nrp": "steelyard.suites.nrp",
        "aces": "steelyard.suites.aces",
        "olivia": "steelyard.suites.olivia",
        "caraml": "steelyard.suites.caraml",
        "site-acceptance": "steelyard.suites.site_acceptance",
    },
    "importer": {
        "mlperf": "steelyard.imported.mlperf:MLPERF",
        "nccl": "steelyard.imported.nccl:NCCL",
        "jube": "steelyard.imported.jube:JUBE",
        "reframe": "steelyard.imported.reframe:REFRAME",
        "superbench": "steelyard.imported.superbench:SUPERBENCH",
        "milabench": "steelyard.imported.milabench:MILABENCH",
        "aiperf": "steelyard.imported.aiperf:AIPERF",
        "guidellm": "steelyard.imported.guidellm:GUIDELLM",
    },
    "scheduler": {
        "slurm": "steelyard.launch.slurm.scheduler:Slurm",
        "kubernetes": "steelyard.launch.kubernetes.scheduler:Kubernetes",
    },
}


def names(kind: str) -> list[str]:
    """Return every name of a kind: built-in ones and those that installed packages add by entry point."""
    return sorted({*BUILTIN[kind], *_entry_points(kind)})


def has(kind: str, name: str) -> bool:
    """Return whether a name is registered. Package metadata is read only for names that are not built in."""
    return name in BUILTIN[kind] or name in _entry_points(kind)


def require(kind: str, name: str) -> str:
    """Return where a registered object is, without importing it; InputError for an unknown name."""
    target = BUILTIN[kind].get(name) or _entry_points(kind).get(name)
    if target is None:
        raise unknown(kind, name, names(kind))
    return target


def unknown(what: str, name: str, known: Sequence[str], theirs: str = "") -> InputError:
    """Return the error for an unknown name: the nearest known one, or else all of them.

    `theirs`: the known one that other tools call so, if the caller knows it.
    """
    number = "devices" if what == "device" and name.isdigit() else ""
    near = theirs or number or OTHER_NAMES.get(what, {}).get(name.casefold()) or nearest(name, known)
    problem = Problem(
        name[:SHOWN_NAME], f"no such {TITLES.get(what, what)}", ", ".join(known), near=near, listed=LISTS.get(what, "")
    )
    return refusal(problem, next_step=None if near else LISTS.get(what))


def load(kind: str, name: str) -> Any:
    """Import and return the registered object. A package adds one with the entry point group `steelyard.<kind>`."""
    module, _, attribute = require(kind, name).partition(":")
    return getattr(importlib.import_module(module), attribute)


def _entry_points(kind: str) -> dict[str, str]:
    return _installed(kind, tuple(sys.path))


@cache
def _installed(kind: str, _path: tuple[str, ...]) -> dict[str, str]:
    """Return name and target of each entry point. A file of every installed package is read, so only once."""
    # Imported late: reading package metadata takes longer than printing the help.
    from importlib.metadata import entry_points

    return {point.name: point.value for point in entry_points(group=f"steelyard.{kind}")}
