"""The settings of a row, what each affects, and which differences between two rows make a ratio invalid.

The rules that report this are in `rules.settings`, the reasons in docs/decisions/0007-comparability.md.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

from steelyard.rules.table.units import unit_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from steelyard.rules.table.row import Amount, Pair, Row, Setting

Role = Literal[
    "system",
    "size",
    "work",
    "data",
    "amount",
    "arithmetic",
    "weights",
    "training",
    "batches",
    "input",
    "implementation",
    "threads",
    "tuning",
    "software",
    "environment",
    "evidence",
]
"""What a setting affects: system: the machine; size: the number of devices; work: what is computed; data: the data set;
amount: how much is computed; arithmetic: precision and optimizer; weights: their number format and when they are cast;
training: what is learnt, not the speed; batches: the batch sizes; input: data loading; implementation: how the same
work is computed; threads: those of a rank on the CPU; tuning: switches that experts set for speed; software;
environment; and evidence: how the figure was measured, which is never a factor."""

SETTINGS: dict[str, Role] = {
    "system": "system",
    "accelerator": "system",
    "device_scope": "system",
    "dies": "system",
    "devices": "size",
    "nodes": "size",
    "task": "work",
    "model": "work",
    "model_options": "work",
    "program": "work",
    "mode": "work",
    "sequence_length": "work",
    "last_batch": "work",
    "dataset": "data",
    "data_identity": "data",
    "epoch_samples": "amount",
    "epochs": "amount",
    "quality.target": "amount",
    "precision": "arithmetic",
    "float32_products": "arithmetic",
    "float32_convolutions": "arithmetic",
    "optimizer": "arithmetic",
    "parameter_precision": "weights",
    "autocast": "weights",
    "learning_rate": "training",
    "initial_weights": "training",
    "batch": "batches",
    "global_batch": "batches",
    "accumulation": "batches",
    "loader.place": "input",
    "loader.workers": "input",
    "loader.prefetch": "input",
    "loader.pin_memory": "input",
    "input_rate": "input",
    "input_restart_s": "input",
    "filesystem": "input",
    "parallel": "implementation",
    "compile": "implementation",
    "kv_cache": "implementation",
    "graphs": "implementation",
    "channels_last": "implementation",
    "deterministic": "implementation",
    "threads": "threads",
    "backend": "implementation",
    "options": "implementation",
    "preset": "tuning",
    "cudnn_benchmark": "tuning",
    "optimizer_kernel": "tuning",
    "gradient_as_bucket_view": "tuning",
    "attention": "tuning",
    "numa": "tuning",
    "framework": "software",
    "build": "software",
    "container": "software",
    "variables": "software",
    "host_cpu": "environment",
    "cpus": "environment",
    "cpu_quota": "environment",
    "cpu_governor": "environment",
    "architecture": "environment",
    "kernel": "environment",
    "driver": "environment",
    "device_clock": "environment",
    "power_limit": "environment",
    "timing": "evidence",
    "unknown": "evidence",
    "node": "evidence",
    "window": "evidence",
    "serving": "evidence",
    "jobs": "evidence",
    "jobs_lost": "evidence",
    "unsteady_jobs": "evidence",
    "busy_jobs": "evidence",
    "trend_percent": "evidence",
    "began": "evidence",
    "ended": "evidence",
    "mixed": "evidence",
    "findings": "evidence",
    "energy_scope": "evidence",
    "energy_doubts": "evidence",
    "power_capped_percent": "evidence",
    "throttled_percent": "evidence",
    "clock_loss_percent": "evidence",
    "power_limit_percent": "evidence",
}
"""Every setting that a row may have, with its role. `options` holds any other settings that a source states."""

BY_TORCH = "default: "
"""Before a value that torch chose for the machine: two such values are no difference in tuning."""
OPTION = "model."
"""Before the name of an option of the model, as in a study: `model.width`."""
OF_RUNS = ("batches", "weights", "training", "implementation", "tuning")
"""Roles of settings that are chosen for a run, not those of its machine."""
BATCHES = ("batch", "global_batch", "accumulation")
TUNABLE = ("batches", "input", "implementation", "threads", "tuning")
"""Roles that may be tuned separately for each side."""

# Settings that change with a factor.
FOLLOWS: dict[str, tuple[str, ...]] = {
    "model": (
        "model_options",
        "task",
        "optimizer",
        "optimizer_kernel",
        "learning_rate",
        "initial_weights",
        "sequence_length",
        "attention",
    ),
    "mode": (
        "optimizer",
        "optimizer_kernel",
        "learning_rate",
        "parallel",
        "backend",
        "gradient_as_bucket_view",
        "parameter_precision",
        "autocast",
    ),
    "dataset": ("data_identity", "epoch_samples", "filesystem"),
    "data_identity": ("dataset", "epoch_samples", "filesystem"),
    "precision": ("parameter_precision", "autocast", "float32_products", "float32_convolutions", "attention"),
    "preset": ("cudnn_benchmark", "optimizer_kernel", "gradient_as_bucket_view"),
    "loader.place": ("loader.workers", "loader.prefetch", "loader.pin_memory", "input_rate"),
    "loader.workers": ("loader.prefetch", "input_rate"),
    "parallel": ("backend", "parameter_precision", "autocast", "gradient_as_bucket_view"),
    "autocast": ("parameter_precision",),
    "framework": ("build", "container", "optimizer", "compile", "backend", "optimizer_kernel", "attention"),
    "container": ("build", "framework", "variables"),
}
# Settings whose values are spelled with or without spaces and hyphens.
_NAMES = ("system", "accelerator", "task", "model", "dataset", "precision", "optimizer", "parallel", "framework")
_PRECISIONS = {
    "float32": "fp32",
    "single": "fp32",
    "float16": "fp16",
    "half": "fp16",
    "bfloat16": "bf16",
    "float64": "fp64",
    "double": "fp64",
    "amp": "mixed",
    "mixedprecision": "mixed",
    "automaticmixedprecision": "mixed",
}
_MIXED = ("fp16", "bf16", "fp8")

# Values of `parallel` that mean none.
_UNDIVIDED = ("unknown", "none", "single", "replicas", "1")

MAX_WORDS = 20
MAX_SHOWN = 100

Likeness = Literal["same", "different", "unclear"]


def setting_groups() -> dict[str, list[str]]:
    """Return the names of all settings that can be a factor, by what they affect."""
    groups: dict[str, list[str]] = {}
    for key, role in SETTINGS.items():
        if role != "evidence":
            groups.setdefault(role, []).append(key)
    return groups


@dataclass(frozen=True)
class Difference:
    """A setting that differs between two rows."""

    key: str
    role: Role
    a: Setting
    b: Setting

    def __str__(self) -> str:
        return f"{self.key} {_shorten(self.a)} vs {_shorten(self.b)}"


def differences(a: Row, b: Row) -> list[Difference]:
    """Return the settings that both rows state and that differ. A missing setting is unknown, not different."""
    return [
        Difference(key, role, first, second)
        for key, role in SETTINGS.items()
        if role != "evidence"
        and (first := stated(a, key)) is not None
        and (second := stated(b, key)) is not None
        # Most are equal, and need no closer look.
        and first != second
        and alike(key, first, second, one_source=a.source == b.source) == "different"
    ]


# Each rule asks for these again; kept for the last pair only.
@lru_cache(maxsize=1)
def confounders(pair: Pair) -> tuple[Difference, ...]:
    """Return the differences, except for the factor under study and what follows from it."""
    meant = meant_to_differ(pair)
    return tuple(difference for difference in differences(pair.a, pair.b) if difference.key not in meant)


def blocking(pair: Pair) -> list[Difference]:
    """Return the confounders that make a ratio invalid, such as different work, precision or batch."""
    return [difference for difference in confounders(pair) if blocks(pair, difference)]


def unclear(pair: Pair) -> list[str]:
    """Return the settings that only one row states, or whose values may mean the same; without the factor's own."""
    meant, one_source = meant_to_differ(pair), pair.a.source == pair.b.source
    settings = []
    for key, role in SETTINGS.items():
        if key in meant or role in ("evidence", "environment") or key in ("build", "variables", "container", "preset"):
            continue
        a, b = stated(pair.a, key), stated(pair.b, key)
        if a is not None and b is not None and alike(key, a, b, one_source=one_source) == "unclear":
            settings.append(f"{key} ({_shorten(a)} vs {_shorten(b)})")
        elif (a is None) != (b is None) and not implied(pair, key):
            settings.append(f"{key} ({_shorten(a) if a is not None else _shorten(b)})")
    return settings


def blocks(pair: Pair, difference: Difference) -> bool:
    """Return whether a difference makes a ratio invalid. A setting tuned separately for each side does not."""
    if difference.key in pair.tuned and difference.role in TUNABLE:
        return False
    if (
        difference.key == "global_batch"
        and about_quality(pair.metric)
        and {"devices", "nodes"} & keys_named(pair.factor)
    ):
        # Weak scaling keeps the batch per device; the changed global batch affects learning, which is a warning.
        return not _is_equal(pair, "batch")
    if difference.role == "batches":
        return not (_is_equal(pair, "global_batch") and _is_equal(pair, "devices"))
    if difference.role == "training":
        return about_quality(pair.metric)
    if difference.key == "epochs":
        return about_training(pair.metric)
    if difference.role == "amount":
        return not about_rate(pair)
    if difference.role == "size":
        # The same number of devices on other nodes does the same work.
        return difference.key == "devices" or not _is_equal(pair, "devices")
    if difference.role == "threads":
        # Machines differ in their CPUs.
        return on_cpu(pair.a) and on_cpu(pair.b) and (not _is_about_system(pair) or _is_equal(pair, "system"))
    # With data generated on the device, the figure does not include the input pipeline.
    return difference.role in ("system", "work", "data", "arithmetic", "weights") or difference.key == "loader.place"


def on_cpu(row: Row) -> bool:
    """Return whether the device of a row is a CPU, so that the threads of its ranks are their device."""
    return shown(row.get("accelerator")).lower() == "cpu"


def follows_size(rows: Iterable[Row]) -> set[str]:
    """Return the settings that may change with the number of devices along these rows."""
    keys = {key for key, role in SETTINGS.items() if role == "batches"} | {"parallel", "backend"}
    return keys if any(map(on_cpu, rows)) else keys | {"threads"}


def _is_about_system(pair: Pair) -> bool:
    return bool({"system", "accelerator"} & keys_named(pair.factor))


def about_quality(metric: str) -> bool:
    """Return whether a figure depends on what was learnt, not only on speed."""
    return any(word in metric for word in ("quality", "accuracy", "loss", "train_time"))


def about_training(metric: str) -> bool:
    """Return whether a figure is that of a whole training, such as its time or energy."""
    return metric.startswith("train_")


def about_rate(pair: Pair) -> bool:
    """Return whether the figure of a pair is a rate or the time of one step."""
    return of_steps(pair.metric, pair.a.figures.get(pair.metric) or pair.b.figures.get(pair.metric))


def of_steps(metric: str, amount: Amount | None) -> bool:
    """Return whether a figure is a rate or the time of one step, so that the length of the run does not change it."""
    known = unit_of(amount.unit) if amount is not None else None
    if metric.startswith(("step_time", "ttft", "time_per_token")) or "throughput" in metric:
        return True
    return known is not None and known[0] in ("rate", "per_energy", "power", "ratio")


@lru_cache(maxsize=1)
def meant_to_differ(pair: Pair) -> frozenset[str]:
    """Return the settings of the factor and all that follow from them."""
    meant = keys_named(pair.factor)
    if pair.factor.startswith(OPTION) and option_factor(pair.a, pair.b) not in (pair.factor, ""):
        meant = set()
    follows = {name for key in meant for name in FOLLOWS.get(key, ())}
    follows |= _follow_system(pair, meant)
    if {"devices", "nodes"} & (meant | follows):
        follows |= _follow_devices(pair)
    if meant & set(BATCHES):
        # One of the three batch settings follows from the other two and the device count.
        follows |= set(BATCHES) if "global_batch" in meant or _is_equal(pair, "global_batch") else {"global_batch"}
    if {"global_batch", "devices"} & (meant | follows) and _is_rate_scaled(pair):
        follows.add("learning_rate")
    return frozenset(meant | follows)


def carried_along(pair: Pair) -> list[Difference]:
    """Return the differences in what is chosen for a run that the factor takes along, such as the batch of the job."""
    meant = meant_to_differ(pair)
    return [
        one
        for one in differences(pair.a, pair.b)
        if one.role in OF_RUNS and one.key != pair.factor and one.key in meant
    ]


def keys_named(factor: str) -> set[str]:
    """Return the settings that a factor names: one, all of a role, or for `model.width` the options of the model."""
    if factor.startswith(OPTION):
        return {"model_options"}
    return {key for key, role in SETTINGS.items() if factor in (key, role)}


def _options(row: Row) -> dict[str, str]:
    parts = (part.partition("=") for part in shown(row.get("model_options")).split(", "))
    return {key: value for key, _, value in parts}


def option_factor(a: Row, b: Row) -> str:
    """Return the option of the model that differs, as `model.width`; `model_options` for several, empty for none."""
    first, second = _options(a), _options(b)
    differing = [key for key in dict.fromkeys((*first, *second)) if first.get(key) != second.get(key)]
    return f"{OPTION}{differing[0]}" if len(differing) == 1 else "model_options" if differing else ""


def _follow_system(pair: Pair, meant: set[str]) -> set[str]:
    """Return the settings that follow from the system, such as its host; not for the same machine in two sizes."""
    if not {"system", "accelerator"} & meant:
        return set()
    machine = {key for key, role in SETTINGS.items() if role == "system"}
    if _is_equal(pair, "system") and (_is_equal(pair, "accelerator") or _is_missing(pair, "accelerator")):
        return machine
    host = {key for key, role in SETTINGS.items() if role == "environment"} - {"cpu_quota", "cpu_governor"}
    return machine | host | {"devices", "nodes"}


def _follow_devices(pair: Pair) -> set[str]:
    """Return the settings that follow from the device count: the global batch (weak) or batch per device (strong)."""
    follows = {"devices", "nodes"}
    if _is_equal(pair, "devices"):
        return follows
    if _is_equal(pair, "global_batch"):
        follows |= {"batch", "accumulation"}
    elif (
        _is_equal(pair, "batch")
        and (_is_equal(pair, "accumulation") or _is_missing(pair, "accumulation"))
        and not about_quality(pair.metric)
    ):
        # A larger global batch changes learning, which affects a time to quality but not a rate.
        follows.add("global_batch")
    if _is_divided_alike(pair):
        follows |= {"parallel", "backend"}
    return follows


def _is_divided_alike(pair: Pair) -> bool:
    """Return whether both rows use the same kind of parallelism, ignoring counts; one device needs none."""
    ways = [shown(row.get("parallel")) for row in (pair.a, pair.b)]
    if any(row.number("devices") == 1 and way in _UNDIVIDED for row, way in zip((pair.a, pair.b), ways, strict=True)):
        return True
    # "2 replicas, 2 host instances" and "4 replicas, 4 host instances" are the same kind of parallelism.
    first, second = (re.sub(r"\d+", "#", _simplify("parallel", way)) for way in ways)
    return first == second


def _is_rate_scaled(pair: Pair) -> bool:
    """Return whether the learning rate was scaled linearly with the batch."""
    rates = [row.number("learning_rate") for row in (pair.a, pair.b)]
    batches = [row.number("global_batch") for row in (pair.a, pair.b)]
    if None in rates or None in batches or not all(rates) or not all(batches):
        return False
    (first, second), (small, large) = rates, batches
    return math.isclose(second / first, large / small, rel_tol=1e-3)  # type: ignore[operator]


def implied(pair: Pair, key: str) -> bool:
    """Return whether a setting that one row does not state follows from its other settings."""
    one = 1 in (pair.a.number("devices"), pair.b.number("devices"))
    # Loader settings apply only to data on the host; parallelism only to several devices.
    on_device = "device" in (pair.a.get("loader.place"), pair.b.get("loader.place"))
    # A measured run states its preset, and its binding unless the host has one NUMA node.
    measured = None not in (pair.a.get("preset"), pair.b.get("preset"))
    return (
        (key in ("parallel", "backend", "gradient_as_bucket_view") and one)
        or (key == "numa" and measured)
        or (key == "task" and not _is_missing(pair, "model"))
        or (key == "initial_weights" and "random" in (pair.a.get(key), pair.b.get(key)))
        or (key == "data_identity" and not _is_missing(pair, "dataset"))
        or (key == "model_options" and "none" in (pair.a.get(key), pair.b.get(key)))
        or (SETTINGS[key] == "input" and on_device)
        or (key == "last_batch" and "epoch_samples" in (*pair.a.settings, *pair.b.settings))
    )


def stated(row: Row, key: str) -> Setting | None:
    """Return a setting that the row states, or that certainly follows from its other settings."""
    value = row.settings.get(key)
    if value is None and key == "data_identity" and row.settings.get("dataset") == "synthetic":
        return "synthetic"
    return value


def nodes_of(row: Row) -> set[str]:
    """Return the names of the nodes that a row's jobs ran on; empty if unknown."""
    value = row.get("node")
    return {name.strip() for name in shown(value).split(",")} if value is not None else set()


def alike(key: str, a: Setting, b: Setting, *, one_source: bool = True) -> Likeness:
    """Compare two values of a setting.

    Sources may name the same thing more or less exactly: `ResNet50` and `ResNet50 v1.5` are unclear if they come from
    two sources, and different within one source.
    """
    if not isinstance(a, str) and not isinstance(b, str):
        return "same" if math.isclose(a, b, rel_tol=1e-9) else "different"
    # A table may have as text what a record has as a number.
    one, two = shown(a), shown(b)
    first, second = (_simplify(key, text.removeprefix(BY_TORCH)) for text in (one, two))
    if first == second or (one.startswith(BY_TORCH) and two.startswith(BY_TORCH)):
        return "same"
    if key == "precision" and "mixed" in (first, second) and {first, second} & set(_MIXED):
        return "unclear"
    if not one_source and key in _NAMES and _is_part_of(one, two):
        return "unclear"
    return "different"


def normal(key: str, value: Setting) -> str:
    """Return the value of a setting in the form in which values that are `alike` are equal."""
    text = shown(value)
    return BY_TORCH if text.startswith(BY_TORCH) else _simplify(key, text)


def _is_part_of(a: str, b: str) -> bool:
    """Return whether one name consists of words of the other: `GH200` in `NVIDIA GH200 480GB`, not `gpt` in `gpt2`."""
    few, many = sorted((re.split(r"[\s_()-]+", name.casefold())[:MAX_WORDS] for name in (a, b)), key=len)
    joined = "".join(few)
    return any(
        "".join(many[first:last]) == joined for first in range(len(many)) for last in range(first + 1, len(many) + 1)
    )


def shown(value: Setting | None) -> str:
    """Format the value of a setting."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.10g}"
    return "unknown" if value is None else str(value)


def _shorten(value: Setting | None) -> str:
    text = shown(value)
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 3] + "..."


@lru_cache(maxsize=4096)
def _simplify(key: str, text: str) -> str:
    text = text.casefold()
    if key in _NAMES:
        text = re.sub(r"[\s_-]+", "", text)
    if key == "precision":
        return _PRECISIONS.get(text, text)
    return {"true": "yes", "false": "no"}.get(text, text)


def _is_equal(pair: Pair, key: str) -> bool:
    a, b = pair.a.get(key), pair.b.get(key)
    return a is not None and b is not None and alike(key, a, b) == "same"


def _is_missing(pair: Pair, key: str) -> bool:
    return pair.a.get(key) is None or pair.b.get(key) is None
