"""Reads back how the program trains: rank, device, precision, optimizer, loader, memory."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from .clocks import EVENT_DEVICES

if TYPE_CHECKING:
    from collections import Counter

    from .training import SeenTraining


def _torch() -> Any:
    from .hooks import torch_module

    return torch_module()


def read_rank(training: SeenTraining) -> dict[str, Any]:
    """Return rank, world and device of this process, as torch knows them, or its launcher."""
    torch = _torch()
    dist = getattr(torch, "distributed", None)
    if dist is not None and dist.is_available() and dist.is_initialized():
        rank, world = dist.get_rank(), dist.get_world_size()
    else:
        rank = _number("RANK", _number("SLURM_PROCID", 0))
        world = max(_number("WORLD_SIZE", _number("SLURM_NTASKS", 1)), rank + 1)
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
        "checkpoint_s": training.checkpoint_s,
        "stopped": training.stopped,
    }


def read_settings(training: SeenTraining) -> dict[str, str]:
    """Return the settings in effect, as texts; what cannot be read is left out."""
    torch = _torch()
    if torch is None:
        # Steps that the program itself marks need no torch.
        return {}
    settings = {"torch": torch.__version__, "parallel": training.parallel, "precision": _precision(training, torch)}
    about = read_rank(training)
    settings |= {"world": about["world"], "device": about["device"]}
    first = next((one for one in training.fired.values() if one is not None), None)
    first = first or next(iter(training.optimizers.values()), None)
    if first is not None:
        group = first.param_groups[0]
        settings["optimizer"] = type(first).__name__
        settings["optimizer_kernel"] = (
            "fused" if group.get("fused") else "foreach" if group.get("foreach") else "default"
        )
        groups = [group for one in training.optimizers.values() for group in one.param_groups]
        sizes = {id(parameter): parameter.numel() for group in groups for parameter in group["params"]}
        settings["trained_parameters"] = sum(sizes.values())
        if any(type(p).__name__ == "DTensor" for p in group["params"][:1]):
            settings["parallel"] = "fsdp"
    if training.first_loader is not None:
        settings["loader.workers"] = getattr(training.first_loader, "_num_workers", None)
        settings["loader.pin_memory"] = getattr(training.first_loader, "_pin_memory", None)
    if (batch := _usual(training.batches)) is not None:
        settings["batch"] = batch
    if (micro := _usual(training.micro_batches)) is not None:
        settings["accumulation"] = micro
    dynamo = sys.modules.get("torch._dynamo.utils")
    graphs = dynamo.counters["stats"]["unique_graphs"] if dynamo is not None else 0
    settings["compile"] = "on" if graphs else "off"
    settings["attention"] = read_attention(training, torch)
    settings["float32_products"] = "ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32"
    return {name: str(value)[:4000] for name, value in settings.items() if value is not None}


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


def read_attention(training: SeenTraining, torch: Any) -> str:
    """Return how transformers' model attends, and which kernels torch's own attention may choose from."""
    own = getattr(training.model_config, "_attn_implementation", None) or "sdpa"
    if own != "sdpa":
        return str(own)
    allowed = [
        kernel
        for kernel in ("flash", "mem_efficient", "cudnn", "math")
        if getattr(torch.backends.cuda, f"{kernel}_sdp_enabled", bool)()
    ]
    return f"sdpa: {', '.join(allowed)}"


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
