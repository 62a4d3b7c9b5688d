"""The settings of a row, what each of them changes, and which of two rows' differences forbid a ratio.

Knows what makes two figures speak of the same work; not how large their ratio is. The rules that say so to people are
in `rules.comparability`, the reasons in docs/decisions/0007-comparability.md.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

from steelyard.rules.table.units import unit_of

if TYPE_CHECKING:
    from steelyard.rules.table.row import Pair, Row, Setting

Role = Literal[
    "system", "size", "work", "data", "amount", "arithmetic", "training", "batch",
    "input", "implementation", "software", "environment", "evidence",
]  # fmt: skip
"""What a setting changes: the machine; how much of it; what is computed; on which data; for how long; in which numbers;
what is learnt but not how fast; in which portions; how data arrives; how the same is computed; with which software;
what is around it; and how the figure came about, which is never a factor."""

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
    "phase": "work",
    "sequence_length": "work",
    "last_batch": "work",
    "dataset": "data",
    "data_identity": "data",
    "epoch_samples": "amount",
    "quality_target": "amount",
    "precision": "arithmetic",
    "parameter_precision": "arithmetic",
    "float32_products": "arithmetic",
    "optimizer": "arithmetic",
    "learning_rate": "training",
    "batch_per_device": "batch",
    "global_batch": "batch",
    "grad_accumulation": "batch",
    "data_place": "input",
    "workers_per_device": "input",
    "prefetch": "input",
    "pin_memory": "input",
    "input_rate": "input",
    "input_restart_s": "input",
    "filesystem": "input",
    "parallelism": "implementation",
    "compile": "implementation",
    "channels_last": "implementation",
    "deterministic": "implementation",
    "threads": "implementation",
    "numa": "implementation",
    "backend": "implementation",
    "options": "implementation",
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
    "node": "evidence",
    "window": "evidence",
    "jobs": "evidence",
    "jobs_lost": "evidence",
    "mixed": "evidence",
    "findings": "evidence",
    "energy_scope": "evidence",
    "energy_doubts": "evidence",
}
"""Every setting that a row may have. `options` is whatever else a source says of a row's settings."""

BATCHES = ("batch_per_device", "global_batch", "grad_accumulation")
TUNABLE = ("batch", "input", "implementation")
"""Roles that each side may choose for itself in a comparison of best against best."""

# What changes by itself with a factor.
FOLLOWS: dict[str, tuple[str, ...]] = {
    "model": ("model_options", "task", "optimizer", "learning_rate", "sequence_length"),
    "phase": ("optimizer", "learning_rate", "parallelism", "backend"),
    "dataset": ("data_identity", "epoch_samples", "filesystem"),
    "data_identity": ("dataset", "epoch_samples", "filesystem"),
    "precision": ("parameter_precision", "float32_products"),
    "data_place": ("workers_per_device", "prefetch", "pin_memory", "input_rate"),
    "workers_per_device": ("prefetch", "input_rate"),
    "parallelism": ("backend", "parameter_precision"),
    "framework": ("build", "container", "optimizer", "compile", "backend"),
    "container": ("build", "framework", "variables"),
}
# Names that sources write with and without blanks and hyphens.
_NAMES = ("system", "accelerator", "task", "model", "dataset", "precision", "optimizer", "parallelism", "framework")
_PRECISIONS = {
    "float32": "fp32", "single": "fp32", "float16": "fp16", "half": "fp16", "bfloat16": "bf16", "float64": "fp64",
    "double": "fp64", "amp": "mixed", "mixedprecision": "mixed", "automaticmixedprecision": "mixed",
}  # fmt: skip
_MIXED = ("fp16", "bf16", "fp8")

# How sources say that nothing is divided.
_UNDIVIDED = ("unknown", "none", "single", "replicas", "1")

MAX_WORDS = 20
MAX_SHOWN = 100

Likeness = Literal["same", "different", "unclear"]


@dataclass(frozen=True)
class Difference:
    """A setting that two rows do not share."""

    key: str
    role: Role
    a: Setting
    b: Setting

    def __str__(self) -> str:
        return f"{self.key} {_shorten(self.a)} against {_shorten(self.b)}"


def differences(a: Row, b: Row) -> list[Difference]:
    """Settings that both rows state and that differ. What one of them leaves out is unknown, not different."""
    return [
        Difference(key, role, first, second)
        for key, role in SETTINGS.items()
        if role != "evidence"
        and (first := stated(a, key)) is not None
        and (second := stated(b, key)) is not None
        and alike(key, first, second, one_source=a.source == b.source) == "different"
    ]


def confounders(pair: Pair) -> list[Difference]:
    """What differs beside the factor under study and beside what follows from it."""
    meant = meant_to_differ(pair)
    return [found for found in differences(pair.a, pair.b) if found.key not in meant]


def blocking(pair: Pair) -> list[Difference]:
    """Confounders that forbid a ratio: what is computed, in which numbers or in which portions is another."""
    return [found for found in confounders(pair) if blocks(pair, found)]


def unclear(pair: Pair) -> list[str]:
    """Settings that one row states and the other does not, or in words that may mean the same; not those that follow
    from the factor.
    """
    meant, one_source = meant_to_differ(pair), pair.a.source == pair.b.source
    found = []
    for key, role in SETTINGS.items():
        if key in meant or role in ("evidence", "environment") or key in ("build", "variables", "container"):
            continue
        a, b = stated(pair.a, key), stated(pair.b, key)
        if a is not None and b is not None and alike(key, a, b, one_source=one_source) == "unclear":
            found.append(f"{key} ({_shorten(a)} against {_shorten(b)})")
        elif (a is None) != (b is None) and not implied(pair, key):
            found.append(f"{key} ({_shorten(a) if a is not None else _shorten(b)})")
    return found


def blocks(pair: Pair, found: Difference) -> bool:
    """Whether a difference forbids a ratio. A setting that each side was allowed to choose for itself does not."""
    if found.key in pair.tuned and found.role in TUNABLE:
        return False
    if found.key == "global_batch" and about_quality(pair.metric) and {"devices", "nodes"} & _find_named(pair):
        # More devices with the batch of each kept is a way to scale; that it is learnt otherwise must be told.
        return not _is_equal(pair, "batch_per_device")
    if found.role == "batch":
        return not (_is_equal(pair, "global_batch") and _is_equal(pair, "devices"))
    if found.role == "training":
        return about_quality(pair.metric)
    if found.role == "amount":
        return not about_rate(pair)
    if found.role == "size":
        # The same devices spread over other nodes do the same work another way.
        return found.key == "devices" or not _is_equal(pair, "devices")
    # Data that is made on the device leaves the input pipeline out of what is timed.
    return found.role in ("system", "work", "data", "arithmetic") or found.key == "data_place"


def about_quality(metric: str) -> bool:
    """Whether a figure depends on what was learnt, and not on speed alone."""
    return any(word in metric for word in ("quality", "accuracy", "loss", "train_time"))


def about_rate(pair: Pair) -> bool:
    """Whether a figure is work over time, or the time of one step: how long the run goes on does not change it."""
    amount = pair.a.figures.get(pair.metric) or pair.b.figures.get(pair.metric)
    known = unit_of(amount.unit) if amount is not None else None
    if pair.metric.startswith(("step_time", "ttft", "time_per_token")) or "throughput" in pair.metric:
        return True
    return known is not None and known[0] in ("rate", "per_energy", "power", "ratio")


def meant_to_differ(pair: Pair) -> frozenset[str]:
    """The factor's settings and all that changes with them by itself."""
    meant = _find_named(pair)
    follows = {name for key in meant for name in FOLLOWS.get(key, ())}
    follows |= _follow_system(pair, meant)
    if {"devices", "nodes"} & (meant | follows):
        follows |= _follow_devices(pair)
    if meant & set(BATCHES):
        # Of the three numbers of a batch one follows from the other two and the devices.
        follows |= set(BATCHES) if "global_batch" in meant or _is_equal(pair, "global_batch") else {"global_batch"}
    if {"global_batch", "devices"} & (meant | follows) and _is_rate_scaled(pair):
        follows.add("learning_rate")
    return frozenset(meant | follows)


def _find_named(pair: Pair) -> set[str]:
    return {key for key, role in SETTINGS.items() if pair.factor in (key, role)}


def _follow_system(pair: Pair, meant: set[str]) -> set[str]:
    """A machine has its own host and its own number of devices. The same machine in two sizes is no such thing."""
    if not {"system", "accelerator"} & meant:
        return set()
    machine = {key for key, role in SETTINGS.items() if role == "system"}
    if _is_equal(pair, "system") and (_is_equal(pair, "accelerator") or _is_missing(pair, "accelerator")):
        return machine
    host = {key for key, role in SETTINGS.items() if role == "environment"} - {"cpu_quota", "cpu_governor"}
    return machine | host | {"devices", "nodes", "threads"}


def _follow_devices(pair: Pair) -> set[str]:
    """Weak scaling keeps the batch of a device, strong scaling that of the job; one of them must stay."""
    follows = {"devices", "nodes", "threads"}
    if _is_equal(pair, "devices"):
        return follows
    if _is_equal(pair, "global_batch"):
        follows |= {"batch_per_device", "grad_accumulation"}
    elif (
        _is_equal(pair, "batch_per_device")
        and (_is_equal(pair, "grad_accumulation") or _is_missing(pair, "grad_accumulation"))
        and not about_quality(pair.metric)
    ):
        # A larger batch of the job is learnt otherwise, which no rate shows and every time to a quality does.
        follows.add("global_batch")
    if _is_divided_alike(pair):
        follows |= {"parallelism", "backend"}
    return follows


def _is_divided_alike(pair: Pair) -> bool:
    """Whether the work is divided the same way but for counts; one device needs no way to divide it."""
    ways = [shown(row.get("parallelism")) for row in (pair.a, pair.b)]
    if any(row.number("devices") == 1 and way in _UNDIVIDED for row, way in zip((pair.a, pair.b), ways, strict=True)):
        return True
    # "2 replicas, 2 host instances" and "4 replicas, 4 host instances" are one way in two sizes.
    first, second = (re.sub(r"\d+", "#", _simplify("parallelism", way)) for way in ways)
    return first == second


def _is_rate_scaled(pair: Pair) -> bool:
    """Whether the learning rate grew with the batch, as the linear rule wants it."""
    rates = [row.number("learning_rate") for row in (pair.a, pair.b)]
    batches = [row.number("global_batch") for row in (pair.a, pair.b)]
    if None in rates or None in batches or not all(rates) or not all(batches):
        return False
    (first, second), (small, large) = rates, batches
    return math.isclose(second / first, large / small, rel_tol=1e-3)  # type: ignore[operator]


def implied(pair: Pair, key: str) -> bool:
    """What the other settings tell although a row leaves it out."""
    one = 1 in (pair.a.number("devices"), pair.b.number("devices"))
    # A queue, a copy or a worker needs data on the host; a way to divide the work needs somebody to divide it with.
    on_device = "device" in (pair.a.get("data_place"), pair.b.get("data_place"))
    return (
        (key in ("parallelism", "backend") and one)
        or (key == "task" and not _is_missing(pair, "model"))
        or (key == "data_identity" and not _is_missing(pair, "dataset"))
        or (key == "model_options" and "none" in (pair.a.get(key), pair.b.get(key)))
        or (SETTINGS[key] == "input" and on_device)
        or (key == "last_batch" and "epoch_samples" in (*pair.a.settings, *pair.b.settings))
    )


def stated(row: Row, key: str) -> Setting | None:
    """A setting as the row states it, or as it follows without doubt from what it states."""
    value = row.settings.get(key)
    if value is None and key == "data_identity" and row.settings.get("dataset") == "synthetic":
        return "synthetic"
    return value


def nodes_of(row: Row) -> set[str]:
    """Names of the nodes that a row's jobs ran on; none where they are unknown."""
    value = row.get("node")
    return {name.strip() for name in shown(value).split(",")} if value is not None else set()


def alike(key: str, a: Setting, b: Setting, *, one_source: bool = True) -> Likeness:
    """Whether two values mean the same.

    Two sources may name one thing more or less fully: `ResNet50` and `ResNet50 v1.5` are unclear between two sources,
    and different within one, which knows what it calls by which name.
    """
    if not isinstance(a, str) and not isinstance(b, str):
        return "same" if math.isclose(a, b, rel_tol=1e-9) else "different"
    # A table reads as text what a record has as a number.
    first, second = _simplify(key, shown(a)), _simplify(key, shown(b))
    if first == second:
        return "same"
    if key == "precision" and "mixed" in (first, second) and {first, second} & set(_MIXED):
        return "unclear"
    if not one_source and key in _NAMES and _is_part_of(shown(a), shown(b)):
        return "unclear"
    return "different"


def _is_part_of(a: str, b: str) -> bool:
    """Whether one name is some of the words of the other: `GH200` of `NVIDIA GH200 480GB`, but not `gpt` of `gpt2`."""
    few, many = sorted((re.split(r"[\s_()-]+", name.casefold())[:MAX_WORDS] for name in (a, b)), key=len)
    joined = "".join(few)
    return any(
        "".join(many[first:last]) == joined for first in range(len(many)) for last in range(first + 1, len(many) + 1)
    )


def shown(value: Setting | None) -> str:
    """A setting as people write it."""
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
