"""Refuse a model that this job can neither build nor hold, before anything is started.

Only what is certainly needed is counted: the weights, and in training the gradients and the optimizer's state.
Activations, libraries and buffers come on top, so a model that passes may still run out of memory.
"""

from __future__ import annotations

import math
import re
import sys
from typing import TYPE_CHECKING, Any

import torch

from steelyard import hostinfo, plugins
from steelyard.errors import InputError, Problem
from steelyard.worker.engine.footprint import held
from steelyard.worker.measure.environment import ROOT
from steelyard.worker.measure.software import ask
from steelyard.worker.workloads.bundle import ModelBundle
from steelyard.worker.workloads.user import load_source

if TYPE_CHECKING:
    from steelyard.contracts.spec import RunSpec
    from steelyard.worker.devices.torch_device import TorchDevice
    from steelyard.worker.engine.footprint import Footprint

# Counting loads parts of torch, which takes seconds. Smaller models are built in that time, and fit.
LARGE = 1e9
GIB = 2**30
FP32_BYTES = 4
# Values of `parallel` with which no device holds the whole model.
DIVIDED = ("fsdp2", "pipeline")
_NAMED = re.compile(r"(\d{1,6}(?:\.\d{1,6})?)([MB])")


def refuse_too_large(spec: RunSpec, device: TorchDevice, local_ranks: int) -> None:
    """Raise InputError if the host cannot build the model for all ranks of this node, or a device cannot hold it."""
    if spec.mode in ("ceiling", "load"):
        return
    build = load_source(spec.source) if spec.source is not None else plugins.load("workload", spec.workload)
    if _roughly(build, spec.model) < LARGE:
        return
    footprint = _counted(build, spec)
    if footprint is None:
        return
    on_host = device.device.type == "cpu"
    state, words = _state(footprint, spec)
    problems = []
    room, whose = host_room()
    # Every rank builds the whole model on the host, in fp32, before it moves or shards it.
    each = max(footprint.parameter_bytes, state) if on_host else float(footprint.parameter_bytes)
    if room is not None and local_ranks * each > room:
        what = f"({words})" if each > footprint.parameter_bytes else f"{_gib(each)} weights in fp32"
        many = f"{local_ranks} ranks x {what}" if local_ranks > 1 else what.strip("()")
        problems.append(Problem("host memory", f"needs {_gib(local_ranks * each)} ({many}); {whose} {_gib(room)}"))
    total = device.memory_bytes()
    if total is not None and state > total:
        problems.append(Problem("device memory", f"needs {_gib(state)} ({words}); {device.name()} has {_gib(total)}"))
    if problems:
        # On the CPU the host is the device.
        limits = [(room, local_ranks * each), (total, state)]
        shares = [limit / needed for limit, needed in limits if limit is not None]
        fitting = local_ranks if room is None else int(room // footprint.parameter_bytes)
        raise InputError(
            f"{spec.workload} with {footprint.parameter_bytes / FP32_BYTES / 1e9:,.1f} billion parameters does not fit",
            problems=tuple(problems),
            next_step=_advice(spec, build, footprint, min(shares), fitting if fitting < local_ranks else None, total),
        )


def host_room() -> tuple[float | None, str]:
    """Return the host memory that this job can still get, and who limits it; None: unknown."""
    free = hostinfo.memory_table(ROOT).get("MemAvailable")
    limit = hostinfo.memory_limit(hostinfo.control_groups("memory", ROOT))
    if limit is not None and (free is None or limit < free):
        return float(limit), "the control group allows"
    return (None if free is None else float(free)), "free on this node:"


def _roughly(build: Any, options: dict[str, Any]) -> float:
    """Return about how many parameters a model has, from the names and numbers of its options; 0: unknown."""
    sizes = [named_parameters(str(options.get("size", "")))]
    layers, width = options.get("layers"), options.get("width")
    if isinstance(layers, int) and isinstance(width, int):
        # Four matrices of attention and an MLP of eight, as in most transformers.
        sizes.append(12.0 * layers * width**2)
    facts = getattr(build, "about", None)
    if "size" not in options and facts is not None:
        sizes.append(facts.parameters or 0.0)
    return max(sizes)


def named_parameters(size: str) -> float:
    """Return the number of parameters in the name of a size, such as 1.3B; 0: none."""
    match = _NAMED.fullmatch(size)
    return float(match[1]) * {"M": 1e6, "B": 1e9}[match[2]] if match else 0.0


def _counted(build: Any, spec: RunSpec) -> Footprint | None:
    """Return what the model holds, counted on the meta device; None: it cannot be built there, or not at all."""

    def count() -> Footprint:
        with torch.random.fork_rng(devices=[]), torch.device("meta"):
            made = build(**spec.model)
            return held(made if isinstance(made, ModelBundle) else ModelBundle(*made))

    footprint: Footprint | None = ask(count)
    return footprint


def _state(footprint: Footprint, spec: RunSpec) -> tuple[float, str]:
    """Return the bytes that a device holds all the time, and their sum as text."""
    if spec.mode != "train":
        # The weights may be kept in the number format of the products.
        weights = footprint.parameter_bytes / (2 if spec.precision in ("bf16", "fp16") else 1)
        return weights, "weights"
    parts = (footprint.parameter_bytes, footprint.gradient_bytes, footprint.optimizer_bytes)
    names = ("weights", "gradients", f"state of {footprint.optimizer}")
    words = " + ".join(f"{_gib(part)} {name}" for part, name in zip(parts, names, strict=True))
    whole = float(sum(parts))
    if spec.parallel not in DIVIDED:
        return whole, words
    return whole / spec.devices, f"({words}) / {spec.devices} devices"


def _advice(
    spec: RunSpec, build: Any, footprint: Footprint, share: float, on_node: int | None, total: float | None
) -> str:
    """Return what would fit: more shards, fewer ranks on a node, or a smaller size.

    `share`: of the model, that fits. `on_node`: how many ranks of a node can build it, if not all.
    """
    ways = []
    if total is not None and spec.mode == "train" and on_node != 0:
        whole = footprint.parameter_bytes + footprint.gradient_bytes + footprint.optimizer_bytes
        if (shards := math.ceil(whole / total)) > (spec.devices if spec.parallel in DIVIDED else 1):
            ways.append(f"--parallel fsdp2 on more than {shards} devices")
    if on_node and total is not None:
        ways.append(f"at most {on_node} devices per node")
    # Everything that is counted here grows like the number in the name. Half of the room is left for activations.
    most = share / 2 * footprint.parameter_bytes / FP32_BYTES
    known = getattr(sys.modules.get(build.__module__), "SIZES", {})
    smaller = [name for name in known if 0 < named_parameters(name) < most]
    if smaller:
        largest = max(smaller, key=named_parameters)
        ways.append(f"--model size={largest}{' or smaller' if len(smaller) > 1 else ''}; activations come on top")
    return ", or ".join(ways) or "use a smaller model"


def _gib(number: float) -> str:
    return f"{number / GIB:,.0f} GiB"
