"""Reads back how the program trains: rank, device, precision, optimizer, loader, memory."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from .clocks import EVENT_DEVICES

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable

    from .training import SeenTraining


def _torch() -> Any:
    from .hooks import torch_module

    return torch_module()


def read_rank(training: SeenTraining) -> dict[str, Any]:
    """Return rank, world and device of this process, as torch knows them, or its launcher."""
    torch = _torch()
    dist = getattr(torch, "distributed", None)
    if dist is not None and dist.is_available() and dist.is_initialized():
        # Kept, because many programs leave their group before they end.
        rank, world = training.place = dist.get_rank(), dist.get_world_size()
    elif training.place is not None:
        rank, world = training.place
    else:
        # A batch script has the variables of a task, too, but only a step has as many tasks as they say.
        in_step = "SLURM_STEP_ID" in os.environ
        rank = _number("RANK", _number("SLURM_PROCID", 0) if in_step else 0)
        world = max(_number("WORLD_SIZE", _number("SLURM_STEP_NUM_TASKS", 1) if in_step else 1), rank + 1)
    device = "cpu"
    for optimizer in training.optimizers.values():
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                device = parameter.device.type
                return {"rank": rank, "world": world, "device": device}
    return {"rank": rank, "world": world, "device": device}


def _number(name: str, otherwise: int) -> int:
    word = os.environ.get(name, "")
    return int(word) if word.isascii() and word.isdigit() and len(word) < 7 else otherwise


def _usual(counts: Counter[int]) -> int | None:
    """Return the value of most steps, if most have the same: the last of an epoch may be smaller."""
    value, count = max(counts.items(), key=lambda entry: entry[1], default=(0, 0))
    return value if value and count > sum(counts.values()) / 2 else None


def read_wrapped(training: SeenTraining) -> dict[str, Any]:
    """Return what was seen of the training."""
    reason = ""
    if training.irregular:
        reason = "the optimizers step in no regular order; a step ends with the one that steps least often"
    if training.captures:
        reason = "an update is captured in a graph, whose replays call no optimizer"
    if training.notes:
        reason = "; ".join([reason, *training.notes]).strip("; ")
    samples_reason = tokens_reason = ""
    if training.first_loader is None:
        samples_reason = "no DataLoader of torch was seen"
    elif training.two_loaders > training.steps / 2:
        samples_reason = "several loaders feed each step"
    elif training.unknown_samples:
        samples_reason = "some steps had no batch of a DataLoader, or one without a tensor that counts samples"
    if not training.known_tokens:
        tokens_reason = "the batches have no input_ids"
    elif training.unknown_tokens:
        tokens_reason = "some batches have no input_ids"
    return {
        **read_rank(training),
        **_read_device(read_rank(training)["device"]),
        "timing": training.clock.timing,
        "steps": training.steps,
        "updates": training.updates,
        "skipped_updates": training.skipped,
        "phantom_updates": training.phantom,
        "optimizers": max(len(training.fired), len(training.optimizers) if training.in_backward else 0),
        "backwards": training.backwards,
        "step_reason": reason[:4000],
        "accumulation": _usual(training.micro_batches),
        "batch": _usual(training.batches),
        "samples_known": not samples_reason,
        "samples_reason": samples_reason,
        "tokens_known": not tokens_reason,
        "tokens_reason": tokens_reason,
        "evaluation_s": training.evaluation_s,
        "evaluation_mode_s": training.evaluation_mode_s,
        "checkpoint_s": training.checkpoint_s,
        "stopped": training.stopped,
    }


def read_settings(training: SeenTraining) -> dict[str, str]:
    """Return the settings in effect, as texts; what cannot be read is left out."""
    torch = _torch()
    if torch is None:
        # Steps that the program itself marks need no torch.
        return {}
    settings: dict[str, Any] = {}
    for read in (_read_place, _read_optimizer, _read_work, _read_compilation, _read_attention, _read_fp32):
        try:
            settings |= read(training, torch)
        except Exception:  # noqa: BLE001, PERF203, S112 -- what a version of torch does not tell must not hide the steps
            continue
    return {name: str(value)[:4000] for name, value in settings.items() if value is not None}


def _read_place(training: SeenTraining, torch: Any) -> dict[str, Any]:
    about = read_rank(training)
    settings = {"torch": torch.__version__, "world": about["world"], "device": about["device"]}
    return settings | {"precision": _precision(training, torch), "parallel": training.parallel}


def _read_optimizer(training: SeenTraining, _torch: Any) -> dict[str, Any]:
    first = next((one for one in training.fired.values() if one is not None), None)
    first = first or next(iter(training.optimizers.values()), None)
    if first is None:
        return {}
    group = first.param_groups[0]
    settings = {"optimizer": type(first).__name__}
    settings["optimizer_kernel"] = "fused" if group.get("fused") else "foreach" if group.get("foreach") else "default"
    groups = [group for one in training.optimizers.values() for group in one.param_groups]
    sizes = {id(parameter): parameter.numel() for group in groups for parameter in group["params"]}
    if any(type(p).__name__ == "DTensor" for p in group["params"][:1]):
        settings["parallel"] = "fsdp"
    return {**settings, "trained_parameters": sum(sizes.values())}


def _read_work(training: SeenTraining, _torch: Any) -> dict[str, Any]:
    loader = training.first_loader
    return {
        "loader.workers": getattr(loader, "_num_workers", None),
        "loader.pin_memory": getattr(loader, "_pin_memory", None),
        "batch": _usual(training.batches),
        "accumulation": _usual(training.micro_batches),
    }


def _read_compilation(_training: SeenTraining, _torch: Any) -> dict[str, Any]:
    dynamo = sys.modules.get("torch._dynamo.utils")
    graphs = dynamo.counters["stats"]["unique_graphs"] if dynamo is not None else 0
    return {"compile": "on" if graphs else "off"}


def _read_attention(training: SeenTraining, torch: Any) -> dict[str, Any]:
    """Return how transformers' model attends, and which kernels torch's own attention may choose from."""
    own = getattr(training.model_config, "_attn_implementation", None) or "sdpa"
    if own != "sdpa":
        return {"attention": own}
    allowed = [
        kernel
        for kernel in ("flash", "mem_efficient", "cudnn", "math")
        if getattr(torch.backends.cuda, f"{kernel}_sdp_enabled", bool)()
    ]
    return {"attention": f"sdpa: {', '.join(allowed)}"}


def _read_fp32(training: SeenTraining, torch: Any) -> dict[str, Any]:
    if read_rank(training)["device"] != "cuda":
        # These switches mean nothing elsewhere.
        return {}
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    return {
        "float32_products": _tf32(matmul, lambda: matmul.allow_tf32),
        "float32_convolutions": _tf32(getattr(cudnn, "conv", None), lambda: cudnn.allow_tf32),
    }


def _tf32(part: Any, older: Callable[[], Any]) -> str | None:
    """Return how products of fp32 numbers are calculated; None: torch does not tell.

    `part`: of the switches that torch has since 2.9. Once a program has used these, the `older` ones are an error.
    """
    kind = getattr(part, "fp32_precision", None)
    try:
        is_short = older() if kind is None else kind == "tf32"
    except RuntimeError:
        return None
    return "tf32" if is_short else "fp32"


def _precision(training: SeenTraining, torch: Any) -> str:
    """Return the number format of the matrix products: that of autocast, or of the parameters."""
    names = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float64: "fp64"}
    if training.autocast is not None and getattr(training.autocast, "_enabled", True):
        kind = getattr(training.autocast, "fast_dtype", None)
        if kind in names:
            return names[kind]
    for optimizer in training.optimizers.values():
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                return names.get(parameter.dtype, "fp32")
    return "fp32"


def _read_device(device: str) -> dict[str, Any]:
    """Return the name and the memory of the device, as its driver gives them."""
    module: Any = getattr(_torch(), device, None)
    if device == "cpu" or not hasattr(module, "get_device_name"):
        return {}
    memory = None
    if hasattr(module, "get_device_properties"):
        memory = getattr(module.get_device_properties(module.current_device()), "total_memory", None)
    return {"device_name": str(module.get_device_name())[:200], "device_bytes": memory and float(memory)}


def read_memory(training: SeenTraining) -> dict[str, Any]:
    """Return the peak memory of the device, or of the process if the host itself computes."""
    torch, device = _torch(), read_rank(training)["device"]
    module = getattr(torch, device, None)
    if device in EVENT_DEVICES and module is not None:
        free, whole = module.mem_get_info()
        return {
            "peak_bytes": float(module.max_memory_allocated()),
            "method": f"torch.{device}.max_memory_allocated",
            "reserved_bytes": float(module.max_memory_reserved()),
            "driver_used_bytes": float(whole - free),
            "device_bytes": float(whole),
        }
    # Not by the module resource, which torch does not load: a file of that name may be the program's own.
    with open("/proc/self/status", encoding="utf-8", errors="replace") as file:
        peak = next((line.split()[1] for line in file if line.startswith("VmHWM:")), None)
    return {"peak_bytes": peak and float(peak) * 1024, "method": "largest resident set of the process"}
