"""Names that other tools use for our fields and values, and how to write a value in our units.

The names come from torchrun, sbatch, Hugging Face TrainingArguments, PyTorch Lightning, DeepSpeed, PyTorch's
DataLoader, Kubernetes and hyperfine. All are lower case with underscores.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from steelyard import plugins

if TYPE_CHECKING:
    from collections.abc import Sequence

# A dotted path from the top of the file, or a sentence where we have no field for it.
STUDY: Final[dict[str, str]] = {
    # PyTorch, Hugging Face, Lightning, DeepSpeed
    "batch_size": "run.batch", "bs": "run.batch", "batchsize": "run.batch", "local_batch_size": "run.batch",
    "micro_batch_size": "run.batch", "per_device_batch_size": "run.batch", "per_device_train_batch_size": "run.batch",
    "per_device_eval_batch_size": "run.batch", "train_micro_batch_size_per_gpu": "run.batch",
    "train_batch_size": "run.batch is per device: divide by run.devices and run.accumulation",
    "global_batch_size": "run.batch is per device: divide by run.devices and run.accumulation",
    "gradient_accumulation_steps": "run.accumulation", "accumulate_grad_batches": "run.accumulation",
    "grad_accum": "run.accumulation", "accumulation_steps": "run.accumulation",
    "lr": "run.learning_rate", "learningrate": "run.learning_rate", "base_lr": "run.learning_rate",
    "num_workers": "run.loader.workers", "workers": "run.loader.workers", "n_workers": "run.loader.workers",
    "dataloader_num_workers": "run.loader.workers", "loader_workers": "run.loader.workers",
    "prefetch_factor": "run.loader.prefetch", "dataloader_prefetch_factor": "run.loader.prefetch",
    "dataloader_pin_memory": "run.loader.pin_memory", "pinned": "run.loader.pin_memory",
    "num_epochs": "run.budget.epochs", "max_epochs": "run.budget.epochs", "num_train_epochs": "run.budget.epochs",
    "n_epochs": "run.budget.epochs", "num_steps": "run.budget.max_steps", "steps": "run.budget.max_steps",
    "iterations": "run.budget.max_steps", "iters": "run.budget.max_steps", "max_iters": "run.budget.max_steps",
    "max_time": "run.budget.max_seconds", "duration": "run.budget.max_seconds",
    "dtype": "run.precision", "torch_dtype": "run.precision", "mixed_precision": "run.precision",
    "amp": "run.precision", "half": "run.precision",
    "fp16": 'run.precision = "fp16"', "bf16": 'run.precision = "bf16"', "tf32": 'run.precision = "tf32"',
    "fp32": 'run.precision = "fp32"',
    "torch_compile": "run.compile", "compile_mode": "run.compile", "torch_compile_mode": "run.compile",
    "strategy": "run.parallel", "fsdp": 'run.parallel = "fsdp2"', "ddp": 'run.parallel = "ddp"',
    "pipeline": 'run.parallel = "pipeline"', "pipeline_parallel_size": 'run.devices, with run.parallel = "pipeline"',
    "n_microbatches": "run.accumulation", "num_microbatches": "run.accumulation",
    "dist_backend": "run.backend", "ddp_backend": "run.backend", "process_group_backend": "run.backend",
    "drop_last": "run.last_batch", "dataloader_drop_last": "run.last_batch",
    "memory_format": "run.channels_last", "accelerator": "run.device", "device_type": "run.device",
    "use_deterministic_algorithms": "run.deterministic", "dataset": "run.data", "data_dir": "run.data",
    "data_path": "run.data", "train_data": "run.data", "model_name": "run.workload", "arch": "run.workload",
    "model_name_or_path": "run.workload", "network": "run.workload", "benchmark": "run.workload",
    "random_seed": "seed", "data_seed": "seed", "manual_seed": "seed", "seed_everything": "seed",
    "omp_num_threads": "run.threads", "num_threads": "run.threads", "cpus_per_task": "run.threads",
    "timeout": "run.time_limit_s", "time_limit": "run.time_limit_s", "time": "run.time_limit_s",
    "walltime": "run.time_limit_s", "active_deadline_seconds": "run.time_limit_s",
    # torchrun, sbatch
    "nproc": "run.devices", "nproc_per_node": "run.devices", "gpus": "run.devices", "ngpus": "run.devices",
    "num_gpus": "run.devices", "n_gpu": "run.devices", "rank": "run.devices", "ranks": "run.devices",
    "num_devices": "run.devices",
    "world_size": "run.devices", "num_processes": "run.devices", "ntasks": "run.devices",
    "gpus_per_node": "run.devices", "ntasks_per_node": "run.devices",
    "nodes": "run.devices counts the devices of all nodes", "nnodes": "run.devices counts the devices of all nodes",
    "num_nodes": "run.devices counts the devices of all nodes",
    # hyperfine, pytest-benchmark
    "runs": "repeats", "repeat": "repeats", "repetitions": "repeats", "trials": "repeats", "rounds": "repeats",
    "num_runs": "repeats", "min_runs": "repeats", "title": "name", "job_name": "name", "jobname": "name",
    "parameter_list": "sweep", "parameters": "sweep", "matrix": "sweep", "grid": "sweep", "params": "sweep",
    "warmup": "the warm-up is found in the data; there is no field for it",
    "warmup_steps": "the warm-up is found in the data; there is no field for it",
    "num_warmup_steps": "the warm-up is found in the data; there is no field for it",
    # Of a site file
    "partition": "it belongs in the site file: partition in [pools.NAME]",
    "account": "it belongs in the site file: account in [pools.NAME]",
    "qos": "it belongs in the site file: qos in [pools.NAME]",
    "constraint": "it belongs in the site file: constraint in [pools.NAME]",
    "reservation": "it belongs in the site file: reservation in [pools.NAME]",
    "scheduler": "it belongs in the site file", "pools": "it belongs in the site file",
    "container": "it belongs in the site file: the table [container]",
    "image": "it belongs in the site file: the table [container.images]",
    "environment": "it belongs in the site file: the table [environment]",
    "env": "it belongs in the site file: the table [environment]",
    "modules": "it belongs in the site file: the table [modules]",
    "site": "name the site on the command line: steelyard study FILE --site SITE",
    "memory": "it belongs in the site file: memory_per_node_mib in [pools.NAME]",
    "mem": "it belongs in the site file: memory_per_node_mib in [pools.NAME]",
}  # fmt: skip

SITE: Final[dict[str, str]] = {
    # sbatch
    "queue_name": "pools.NAME.partition", "partition_name": "pools.NAME.partition", "queue": "pools.NAME.partition",
    "project": "pools.NAME.account", "account_name": "pools.NAME.account",
    "time": "pools.NAME.max_time_s", "walltime": "pools.NAME.max_time_s", "time_limit": "pools.NAME.max_time_s",
    "max_walltime": "pools.NAME.max_time_s", "time_limit_s": "pools.NAME.max_time_s",
    "active_deadline_seconds": "pools.NAME.max_time_s",
    "mem": "pools.NAME.memory_per_node_mib", "memory": "pools.NAME.memory_per_node_mib",
    "mem_per_node": "pools.NAME.memory_per_node_mib", "memory_mib": "pools.NAME.memory_per_node_mib",
    "cpus": "pools.NAME.cpus_per_node", "cpus_per_task": "pools.NAME.cpus_per_node",
    "cores": "pools.NAME.cpus_per_node", "cores_per_node": "pools.NAME.cpus_per_node",
    "gpus_per_node": "pools.NAME.devices_per_node", "ntasks_per_node": "pools.NAME.devices_per_node",
    "nproc_per_node": "pools.NAME.devices_per_node", "gpu_per_node": "pools.NAME.devices_per_node",
    "gres": "pools.NAME.gpus", "gpu_type": "pools.NAME.gpus", "nodes": "pools.NAME.max_nodes",
    "nnodes": "pools.NAME.max_nodes", "feature": "pools.NAME.constraint", "features": "pools.NAME.constraint",
    "sbatch_options": "pools.NAME.options", "extra_args": "pools.NAME.options", "arch": "pools.NAME.architecture",
    "launcher": "pools.NAME.start", "pool": "pools", "partitions": "pools", "node_types": "pools",
    "type": "scheduler", "batch_system": "scheduler", "workload_manager": "scheduler", "backend": "scheduler",
    "env": "environment", "variables": "environment", "env_vars": "environment", "module": "modules.load",
    "modules_load": "modules.load", "interpreter": "python", "python_path": "python", "master_addr": "meeting_host",
    "max_jobs": "limits.max_submitted", "max_array_size": "limits.array_size", "price": "charge",
    "cost": "charge", "cost_per_hour": "charge.per_device_hour", "concurrency": "limits.max_running",
    # containers, Kubernetes
    "volumes": "container.mounts", "binds": "container.mounts", "bind": "container.mounts",
    "volume_mounts": "container.mounts", "host_path": "container.mounts.source",
    "mount_path": "container.mounts.target", "read_only": "a mount is read-only unless writable is true",
    "images": "container.images", "engine": "container.runtime", "nodeselector": "pools.NAME.node_selector",
    "shm_size": "pools.NAME.shm_mib", "taints": "pools.NAME.tolerations", "ns": "cluster.namespace",
    "kubeconfig_context": "cluster.context",
}  # fmt: skip

# By the last part of a field's name: what people write, in lower case, and what we call it.
VALUES: Final[dict[str, dict[str, str]]] = {
    "precision": {
        "float32": "fp32", "float": "fp32", "single": "fp32", "full": "fp32", "32": "fp32", "32-true": "fp32",
        "f32": "fp32", "tensorfloat32": "tf32", "bfloat16": "bf16", "bfloat": "bf16", "bf16-mixed": "bf16",
        "float16": "fp16", "half": "fp16", "16-mixed": "fp16", "f16": "fp16", "16": "fp16", "mixed": "bf16",
        "amp": "bf16", "auto": "bf16", "true": "bf16", "false": "fp32",
    },
    "mode": {
        "training": "train", "trains": "train", "fit": "train", "inference": "infer", "eval": "infer",
        "evaluate": "infer", "test": "infer", "predict": "infer", "forward": "infer", "generation": "generate",
        "loader": "load", "loading": "load", "decode": "generate",
    },
    "compile": {
        "true": "default", "on": "default", "inductor": "default", "yes": "default", "false": "off", "none": "off",
        "no": "off", "eager": "off", "autotune": "max-autotune",
    },
    "parallel": {
        "fsdp": "fsdp2", "data": "ddp", "dp": "ddp", "sharded": "fsdp2", "zero": "fsdp2", "fully": "fsdp2",
        "pp": "pipeline", "gpipe": "pipeline", "1f1b": "pipeline",
        "replicas": "independent", "separate": "independent", "none": "independent",
    },
    "last_batch": {"true": "drop", "false": "keep", "dropped": "drop", "padded": "pad", "partial": "keep"},
    "device": plugins.OTHER_NAMES["device"],
    "place": {"gpu": "device", "cuda": "device", "cpu": "host", "ram": "host", "memory": "host"},
    "architecture": {
        "arm64": "aarch64", "arm": "aarch64", "arm64v8": "aarch64", "amd64": "x86_64", "x64": "x86_64",
        "x86-64": "x86_64", "x86": "x86_64", "intel": "x86_64",
    },
    "runtime": {"singularity": "apptainer", "false": "none"},
    "scheduler": {"sbatch": "slurm", "k8s": "kubernetes", "kube": "kubernetes"},
    "unit": {
        "gpu-hour": "device-hour", "gpu-hours": "device-hour", "gpuh": "device-hour", "node-hours": "node-hour",
        "core-hour": "billing-hour", "su": "billing-hour",
    },
    "start": {"srun": "tasks", "mpi": "tasks", "elastic": "torchrun", "torch.distributed.run": "torchrun"},
    "devices": {"cuda": "nvidia", "gpu": "nvidia", "rocm": "amd", "xpu": "intel"},
}  # fmt: skip
VALUES["images"] = VALUES["architecture"]

_SECONDS = {"s": 1, "sec": 1, "secs": 1, "second": 1, "seconds": 1, "ms": 1e-3, "m": 60, "min": 60, "mins": 60,
            "minute": 60, "minutes": 60, "h": 3600, "hr": 3600, "hour": 3600, "hours": 3600, "d": 86400,
            "day": 86400, "days": 86400}  # fmt: skip
# As sbatch --mem reads them: G is 1,024 M.
_MIB = {"k": 1 / 1024, "m": 1, "g": 1024, "t": 1024**2}
_BYTES = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3, "t": 1024**4}
_AMOUNT = re.compile(r"([+-]?\d{1,15}(?:\.\d{0,15})?(?:[eE][+-]?\d{1,3})?)\s*([A-Za-z%]{0,8})")
_CLOCK = re.compile(r"(?:(\d{1,3})-)?(\d{1,4}):(\d{1,2})(?::(\d{1,2}))?")


def setting_for(name: str, known: Sequence[str]) -> str:
    """Return our name, one of `known`, for a setting that other tools call so; empty if there is none."""
    theirs = STUDY.get(name.casefold().replace("-", "_"), "").removeprefix("run.")
    return theirs if theirs in known else ""


def number_in(text: str, field: str) -> float | None:
    """Return the number that a text with or without a unit means in the unit of a field; None: it is not clear."""
    text = text.strip()
    seconds = field.endswith(("_s", "seconds"))
    if seconds and (clock := _CLOCK.fullmatch(text)):
        days, first, second, third = (int(part or 0) for part in clock.groups())
        # sbatch: minutes:seconds, hours:minutes:seconds or days-hours:minutes.
        if clock[4] is None:
            return 86400 * days + 3600 * first + 60 * second if clock[1] else 60 * first + second
        return 86400 * days + 3600 * first + 60 * second + third
    amount = _AMOUNT.fullmatch(text)
    if amount is None:
        return None
    number, unit = float(amount[1]), amount[2]
    if not unit:
        return number
    if unit == "%":
        return number / 100
    if seconds:
        factor = _SECONDS.get(unit.lower())
    elif field.endswith("_mib"):
        factor = _MIB.get(unit.lower().removesuffix("b").removesuffix("i"))
    elif field.endswith("bytes"):
        factor = _BYTES.get(unit.lower().removesuffix("b").removesuffix("i"))
    else:
        return None
    return None if factor is None else number * factor


def value_for(value: Any, field: str) -> str:
    """Return our word for a value that other tools use in this place; "" when there is none."""
    table = VALUES.get(field, {})
    text = str(value)[:40].casefold()
    return table.get(text) or table.get(text.replace("_", "-"), "")
