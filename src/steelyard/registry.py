"""The only extension table: kind and name to "module:attribute". Knows names; imports nothing until asked."""

from __future__ import annotations

import difflib
import importlib
from typing import Any

from steelyard.errors import InputError, Problem

BUILTIN: dict[str, dict[str, str]] = {
    "device": {
        "sim": "steelyard.worker.engine.sim_job:SimJob",
        **dict.fromkeys(("auto", "cpu", "cuda", "xpu", "hpu", "mps"), "steelyard.worker.engine.torch_entry:open_job"),
    },
    "workload": {
        "sim": "steelyard.worker.workloads.sim:SimWorkload",
        "tiny": "steelyard.worker.workloads.tiny:build",
        "resnet50": "steelyard.worker.workloads.vision:resnet50",
        "resnet152": "steelyard.worker.workloads.vision:resnet152",
        "vit-l-16": "steelyard.worker.workloads.vision:vit_l_16",
        "vit-h-14": "steelyard.worker.workloads.vision:vit_h_14",
        "swin-t": "steelyard.worker.workloads.vision:swin_t",
        "swin-b": "steelyard.worker.workloads.vision:swin_b",
        "efficientnet-b0": "steelyard.worker.workloads.vision:efficientnet_b0",
        "efficientnet-b4": "steelyard.worker.workloads.vision:efficientnet_b4",
        "mobilenet-v3-small": "steelyard.worker.workloads.vision:mobilenet_v3_small",
        "mobilenet-v3-large": "steelyard.worker.workloads.vision:mobilenet_v3_large",
        "wideresnet28-10": "steelyard.worker.workloads.wideresnet:build",
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
    "rule": {
        "SY101": "steelyard.rules.effect:NotInEffect",
        "SY102": "steelyard.rules.comparability:OtherWork",
        "SY103": "steelyard.rules.comparability:OtherArithmetic",
        "SY104": "steelyard.rules.comparability:OtherBatch",
        "SY105": "steelyard.rules.comparability:OtherInput",
        "SY106": "steelyard.rules.comparability:OtherImplementation",
        "SY107": "steelyard.rules.comparability:OtherData",
        "SY108": "steelyard.rules.comparability:UnknownSetting",
        "SY109": "steelyard.rules.comparability:OtherDeviceCount",
        "SY110": "steelyard.rules.comparability:OtherSoftware",
        "SY111": "steelyard.rules.comparability:FactorUnchanged",
        "SY112": "steelyard.rules.comparability:OtherSystem",
        "SY113": "steelyard.rules.comparability:OtherTraining",
        "SY114": "steelyard.rules.comparability:OtherUnit",
        "SY115": "steelyard.rules.comparability:MixedJobs",
        "SY120": "steelyard.rules.claims:Unfair",
        "SY121": "steelyard.rules.claims:Confounded",
        "SY201": "steelyard.rules.steadiness:NotSteady",
        "SY202": "steelyard.rules.steadiness:StoppedEarly",
        "SY203": "steelyard.rules.steadiness:ApproximateInterval",
        "SY204": "steelyard.rules.steadiness:FirstEpoch",
        "SY205": "steelyard.rules.jobs:TooFewJobs",
        "SY206": "steelyard.rules.jobs:OneNodeOnly",
        "SY207": "steelyard.rules.jobs:UnsoundRuns",
        "SY208": "steelyard.rules.jobs:OtherWindow",
        "SY209": "steelyard.rules.jobs:JobsLost",
        "SY210": "steelyard.rules.claims:NotShown",
        "SY220": "steelyard.rules.history:Drifted",
        "SY301": "steelyard.rules.scaling:Superlinear",
        "SY303": "steelyard.rules.scaling:ConfoundedScaling",
        "SY310": "steelyard.rules.curve:Extrapolated",
        "SY311": "steelyard.rules.curve:BaseOfSeveral",
        "SY312": "steelyard.rules.curve:NeitherStrongNorWeak",
        "SY313": "steelyard.rules.curve:TwoCounts",
        "SY314": "steelyard.rules.curve:Gap",
        "SY315": "steelyard.rules.request:JobNotMeasured",
        "SY401": "steelyard.rules.energy:PowerAboveLimit",
        "SY402": "steelyard.rules.joules:EnergyInvalid",
        "SY403": "steelyard.rules.joules:EnergyDoubtful",
        "SY404": "steelyard.rules.joules:CounterAgainstIntegral",
        "SY405": "steelyard.rules.joules:DevicesMissing",
        "SY406": "steelyard.rules.joules:RunAboveLimit",
        "SY407": "steelyard.rules.joules:WindowMismatch",
        "SY408": "steelyard.rules.joules:SamplerDied",
        "SY409": "steelyard.rules.joules:HoldsHost",
        "SY410": "steelyard.rules.joules:EnergiesNotAlike",
        "SY501": "steelyard.rules.timing:ClocksDisagree",
        "SY502": "steelyard.rules.timing:SynchronisedDiffers",
        "SY503": "steelyard.rules.arithmetic:OtherWorkInRow",
        "SY504": "steelyard.rules.arithmetic:FigureContradicts",
        "SY505": "steelyard.rules.arithmetic:UnitSlip",
        "SY506": "steelyard.rules.arithmetic:ScopeSlip",
        "SY507": "steelyard.rules.arithmetic:WrongDeviceCount",
        "SY508": "steelyard.rules.arithmetic:WrongBase",
        "SY509": "steelyard.rules.arithmetic:BatchProduct",
        "SY510": "steelyard.rules.request:HoursDoNotFollow",
        "SY520": "steelyard.rules.claims:BaseDiffers",
        "SY521": "steelyard.rules.claims:DoesNotFollow",
        "SY601": "steelyard.rules.surroundings:RanksMissing",
        "SY602": "steelyard.rules.surroundings:TooFewCpus",
        "SY603": "steelyard.rules.surroundings:FellBack",
        "SY604": "steelyard.rules.environment:OtherNode",
        "SY605": "steelyard.rules.environment:OtherHost",
        "SY606": "steelyard.rules.environment:OtherDeviceState",
        "SY607": "steelyard.rules.environment:OtherScope",
        "SY608": "steelyard.rules.environment:OtherTiming",
        "SY701": "steelyard.rules.learning:RanAway",
        "SY702": "steelyard.rules.learning:DoesNotLearn",
        "SY703": "steelyard.rules.plausibility:Outlier",
        "SY704": "steelyard.rules.plausibility:StaleRow",
    },
    "sensor": {
        "nvml": "steelyard.worker.sensors.nvml:open_nvml",
        "rapl": "steelyard.worker.sensors.rapl:open_rapl",
        "hwmon": "steelyard.worker.sensors.hwmon:open_hwmon",
        "amd": "steelyard.worker.sensors.amd:open_amd",
        "ipu": "steelyard.worker.sensors.ipu:open_ipu",
        "xpu": "steelyard.worker.sensors.xpu:open_xpu",
    },
    "launcher": {
        "local": "steelyard.launch.local:LocalLauncher",
        "allocation": "steelyard.launch.allocation:AllocationLauncher",
    },
    "scheduler": {
        "slurm": "steelyard.launch.slurm:Slurm",
        "kubernetes": "steelyard.launch.kubernetes:Kubernetes",
    },
}


def names(kind: str) -> list[str]:
    """Every name of a kind: ours, then those that installed packages add by entry point."""
    return sorted({*BUILTIN[kind], *_entry_points(kind)})


def require(kind: str, name: str) -> str:
    """Where a registered object is, without importing it; InputError when there is none of that name."""
    target = BUILTIN[kind].get(name) or _entry_points(kind).get(name)
    if target is None:
        known = names(kind)
        near = difflib.get_close_matches(name, known, n=1)
        problem = Problem(kind, f"no {kind} is called {name!r}", ", ".join(known))
        raise InputError(f"unknown {kind}", problems=(problem,), next_step=f"use {near[0]!r}" if near else None)
    return target


def load(kind: str, name: str) -> Any:
    """The registered object. A package adds one with the entry point group `steelyard.<kind>`."""
    module, _, attribute = require(kind, name).partition(":")
    return getattr(importlib.import_module(module), attribute)


def _entry_points(kind: str) -> dict[str, str]:
    # Imported late: reading package metadata costs more than the whole help text.
    from importlib.metadata import entry_points

    return {point.name: point.value for point in entry_points(group=f"steelyard.{kind}")}
