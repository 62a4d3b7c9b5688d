"""Turn configurations of our own studies into rows, to judge them by the same rules as published tables.

Settings in effect take precedence over requested ones.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from steelyard.analysis.conditions import STATE_QUANTITIES, state_evidence
from steelyard.analysis.energy import common_share, energy_figures, scope_words
from steelyard.analysis.summary import (
    doubts,
    is_rate,
    is_steady,
    job_of,
    job_throughput,
    mean_over_jobs,
    offline,
    settings_of,
)
from steelyard.contracts.base import to_json_object
from steelyard.contracts.observe import MEASURED
from steelyard.inputs.study import setting
from steelyard.numbers import count_in
from steelyard.redact import redact
from steelyard.rules.program import options_of, own_words
from steelyard.rules.table.row import Amount, Row
from steelyard.rules.table.settings import BY_TORCH, SETTINGS, shown

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from steelyard.analysis.summary import CellSummary
    from steelyard.contracts.record import Quantity, RunRecord, Scope, WrappedRun
    from steelyard.contracts.spec import RunSpec
    from steelyard.rules.table.row import Setting

    Settings = dict[str, Setting | None]

DIGEST_DIGITS = 8
SHOWN_DOUBTS = 2
SYNTHETIC = "synthetic"
PLACES = ("data.path", "source.path", "weights")
BESIDE_LOAD = ("SY609", "SY610")
# Formats that are data sets; other formats describe only the layout of files.
NAMED_DATA = ("cifar10", "cifar100", "mnist", "food101", "coco", "cityscapes", "squad")
# Names that other sources use.
PARALLELISM = {
    "DistributedDataParallel": "DDP",
    "fully_shard": "FSDP2",
    "ddp": "DDP",
    "fsdp2": "FSDP2",
    "fsdp": "FSDP",
}
NUMBER_FORMATS = {
    "float64": "fp64",
    "float32": "fp32",
    "bfloat16": "bf16",
    "float16": "fp16",
    "float8_e4m3fn": "fp8",
    "int8": "int8",
}
# Facts that the worker finds about its environment: setting of a row, fact.
SURROUNDINGS = {
    "host_cpu": "cpu.model",
    "cpus": "cpu.usable",
    "cpu_quota": "cgroup.cpu_quota",
    "cpu_governor": "cpu.governor",
    "architecture": "system.architecture",
    "kernel": "system.kernel",
    "container": "container.digest",
    "driver": "gpu0.driver",
    "device_clock": "gpu0.clock_max",
    "power_limit": "gpu0.power_limit",
}
BUILD = ("torch.git_version", "torch.cuda", "torch.hip", "torch.cudnn", "torch.nccl", "triton.version")
# Variables that differ from job to job without effect, or that another setting includes.
VOLATILE = (
    "SLURM_",
    "OMP_NUM_THREADS",
    "STEELYARD_CPU_SHARE",
    "MKL_NUM_THREADS",
    "CUDA_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "LD_LIBRARY_PATH",
    "GLOO_SOCKET_IFNAME",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "TORCHINDUCTOR_CACHE_DIR",
    "TRITON_CACHE_DIR",
)
# Settings that are read back from a program, and the settings of a row that come from each.
READ_BACK = {
    "batch": ("batch", "global_batch"),
    "accumulation": ("accumulation", "global_batch"),
    "precision": ("precision", "float32_convolutions"),
    "compile": ("compile",),
    "parallel": ("parallel", "backend"),
    "loader.workers": ("loader.place", "loader.workers", "loader.prefetch", "loader.pin_memory"),
}
LEVELS = (
    "seen only from outside",
    "seen only from outside, with the figures that it prints",
    "steps seen by hooks",
    "steps and communication seen by hooks",
)
"""How a program was measured, by its level."""
# Settings that may differ between nodes of one machine, and between two starts of one program.
BESIDE = ("variables", "cpus", "kernel")


def row_of(cell: CellSummary) -> Row:
    """Return a configuration with its settings in effect and its figures, one value per job."""
    measured = [record for record in cell.records if record.status.code in MEASURED]
    told = measured or list(cell.records)
    by_job = [_settings(record) for record in told]
    stated = dict.fromkeys(key for entry in by_job for key in entry)
    settings = {key: _common([entry.get(key) for entry in by_job]) for key in stated}
    # Settings, chosen or of the machine, in which the jobs differ.
    keys = [key for key in stated if SETTINGS[key] != "evidence" and key not in BESIDE]
    mixed = [key for key in keys if len({entry.get(key) for entry in by_job} - {None}) > 1]
    settings |= _evidence(cell, measured) | {"mixed": ", ".join(mixed) or None}
    return Row(
        place=f"{cell.study}/{cell.name}",
        settings={key: value for key, value in settings.items() if value is not None},
        figures=_figures(measured, settings),
        table=cell.study,
        status="completed" if measured else next(iter(cell.statuses), "no run"),
        spec=told[0].spec,
        jobs=tuple(job_of(record) for record in measured),
    )


def chosen_names(specs: Iterable[RunSpec | None]) -> tuple[str, ...]:
    """Return the names of settings that any of these runs does not leave at its default."""
    names = dict.fromkeys(key for spec in specs if spec is not None for key in settings_of(spec))
    # A budget says how long was measured, not what. Where files are is private; a digest in the row identifies them.
    return tuple(key for key in names if not key.startswith("budget.") and key not in PLACES)


def settings_in_effect(row: Row, chosen: Collection[str]) -> dict[str, Setting]:
    """Return the settings of a row of ours by name: those in effect, and of `chosen` others with their values."""
    told: dict[str, Setting] = {}
    spec = row.spec
    if spec is not None:
        own, parameters = settings_of(spec), spec.program.parameters if spec.program is not None else {}
        for key in chosen:
            value = setting(spec, key)
            # What a row has no value for has no meaning for it, unless somebody asked for it.
            if not isinstance(value, (bool, int, float, str)) or (key in SETTINGS and key not in own):
                continue
            # A parameter of a program may be called like something that was read back.
            name = f"program.parameters.{key}" if key in parameters and key in SETTINGS else key
            told[name] = redact(value)[0] if isinstance(value, str) else value
    return told | {key: value for key, value in row.settings.items() if SETTINGS[key] != "evidence"}


# -- settings


def _settings(record: RunRecord) -> Settings:
    """Return the settings of one run; None if a setting is unknown or has no meaning for it."""
    settings: Settings = {
        **_machine(record),
        **_work(record),
        **_arithmetic(record),
        "batch": record.spec.batch,
        "global_batch": record.spec.step_samples,
        "accumulation": record.spec.accumulation,
        **_input(record),
        **_implementation(record),
        **_tuning(record),
        **_surroundings(record),
    }
    return settings if record.wrapped is None else settings | _of_program(record, record.wrapped)


def _of_program(record: RunRecord, seen: WrappedRun) -> Settings:
    """Return the settings of a program that replace those of a workload; None: it could not be read back."""
    spec, program = record.spec, record.spec.program
    known = [name for name in (*READ_BACK, "devices") if name not in seen.unknown]
    hidden: Settings = {key: None for name, keys in READ_BACK.items() if name in seen.unknown for key in keys}
    # A program chooses these itself, and nobody asks it.
    hidden |= dict.fromkeys(("dataset", "data_identity", "channels_last", "deterministic", "preset", "numa", "threads"))
    if program is not None and program.samples_per_step is not None and seen.samples == "stated":
        hidden["global_batch"] = program.samples_per_step
    # Two programs may have the same name. The ranks of a sharded one have only parts of its parameters.
    size = _effect(record, "trained_parameters") if spec.parallel != "fsdp2" else None
    options = [options_of(own_words(spec), known), f"{size} parameters" if size else ""]
    kernel, attention = _effect(record, "optimizer_kernel"), _effect(record, "attention")
    precision = _effect(record, "precision")
    if precision == "fp32":
        precision = _effect(record, "float32_products") or precision
    timing = f", {record.environment.timing}" if record.environment is not None else ""
    return hidden | {
        "model": f"{spec.workload} (program)",
        "model_options": "; ".join(filter(None, options)) or "none",
        "mode": "train",
        "precision": precision,
        "optimizer_kernel": kernel,
        "attention": attention,
        "framework": f"PyTorch {version}" if (version := _effect(record, "torch")) else None,
        "timing": f"{LEVELS[seen.level]}{timing}",
        "unknown": ", ".join(seen.unknown) or None,
    }


def _effect(record: RunRecord, name: str) -> str | None:
    return record.settings.values.get(name) if record.settings else None


def _fact(record: RunRecord, name: str) -> str | None:
    return record.environment.facts.get(name) if record.environment else None


def _machine(record: RunRecord) -> Settings:
    spec, device = record.spec, record.device
    known = device is not None and device.model is not None
    accelerator = (device.model or device.name) if device else None
    if device is None and record.wrapped is not None and record.environment is not None:
        # Its ranks tell only the family of their device.
        accelerator = record.environment.device if record.environment.device != "unknown" else None
    system = accelerator
    if spec.device_family == "sim":
        hardware = json.dumps(simulated_hardware(record), sort_keys=True)
        digest = hashlib.sha256(hardware.encode()).hexdigest()[:DIGEST_DIGITS]
        accelerator, system = "simulated", f"simulated {digest}"
    elif accelerator == "cpu":
        system = _fact(record, "cpu.model") or accelerator
    # A step may use only some of its job's nodes.
    nodes = _fact(record, "env.SLURM_NNODES") or _fact(record, "env.SLURM_JOB_NUM_NODES") or "1"
    return {
        "system": system or spec.device,
        "accelerator": accelerator or spec.device,
        "device_scope": device.scope if device and known else None,
        "dies": device.dies if device and known else None,
        "devices": spec.devices,
        "nodes": count_in(nodes),
    }


def simulated_hardware(record: RunRecord) -> dict[str, Any]:
    """Return the parts of a simulated truth that describe the machine, not the model, its input or its state."""
    truth: dict[str, Any] = to_json_object(record.spec.sim)
    hardware = {key: value for key, value in truth.items() if key not in ("input", "states", "wall_s_per_s")}
    hardware["collective"] = truth["collective"]["links"]
    hardware["memory"] = truth["memory"]["limit_bytes"]
    return hardware


def _work(record: RunRecord) -> Settings:
    spec, data = record.spec, record.data
    model, options = spec.workload, dict(spec.model)
    if spec.source is not None:
        model = f"{spec.source.function} of file {spec.source.sha256[:DIGEST_DIGITS]}"
    if spec.device_family == "sim":
        # A larger model sends and stores more.
        sizes = {"message_bytes": spec.sim.collective.message_bytes} | to_json_object(spec.sim.memory)
        options |= {key: value for key, value in sizes.items() if key != "limit_bytes" and value}
    kind = data.format if data else spec.data.format if spec.data else SYNTHETIC
    samples = spec.epoch_samples or (data.samples if data else None)
    return {
        "model": model,
        "model_options": ", ".join(f"{key}={options[key]}" for key in sorted(options)) or "none",
        "dataset": kind if kind in (*NAMED_DATA, SYNTHETIC) else None,
        "data_identity": data.identity[:DIGEST_DIGITS] if data else None if spec.data else SYNTHETIC,
        "mode": spec.mode,
        "serving": offline(spec),
        "epoch_samples": samples,
        "last_batch": spec.last_batch if samples is not None else None,
        "quality.target": spec.quality.target if spec.quality else None,
    }


def _arithmetic(record: RunRecord) -> Settings:
    rate = _effect(record, "learning_rate")
    asked = record.spec.learning_rate
    kind = NUMBER_FORMATS.get(_effect(record, "matmul_dtype") or "")
    weights, autocast = _effect(record, "parameter_dtype"), _effect(record, "autocast")
    if kind == "fp32":
        kind = _effect(record, "float32_products") or kind
    return {
        "precision": kind or record.spec.precision,
        "float32_convolutions": _effect(record, "float32_convolutions"),
        "parameter_precision": ", ".join(NUMBER_FORMATS.get(name, name) for name in weights.split(", "))
        if weights
        else None,
        "autocast": autocast == "true" if autocast else None,
        "optimizer": _effect(record, "optimizer"),
        "learning_rate": _number(rate) if rate is not None else asked,
        "initial_weights": _shortened(_effect(record, "initial_weights")),
    }


def _shortened(digest: str | None) -> str | None:
    return digest and digest[:DIGEST_DIGITS]


def _input(record: RunRecord) -> Settings:
    """Return how data arrives, without settings that have no effect: data on the device needs no workers."""
    spec = record.spec
    loader, simulated = spec.loader, spec.sim.input
    settings: Settings = {"loader.place": loader.place}
    if loader.place == "host":
        pinned = _effect(record, "loader.pin_memory")
        settings |= {"loader.workers": loader.workers}
        settings["loader.pin_memory"] = loader.pin_memory if pinned is None else pinned == "true"
    if loader.workers:
        settings["loader.prefetch"] = loader.prefetch
    if spec.device_family == "sim" and simulated.samples_per_s is not None:
        # The simulated device has no loader processes; the rate of its pipeline replaces them.
        settings |= {"input_rate": simulated.samples_per_s, "loader.prefetch": simulated.prefetch_batches}
        settings["input_restart_s"] = simulated.epoch_restart_s
    if record.data is not None:
        settings["filesystem"] = record.data.filesystem
    return settings


def _implementation(record: RunRecord) -> Settings:
    spec = record.spec
    parallel = _effect(record, "parallel") or (spec.parallel if spec.mode == "train" else "replicas")
    # A single rank divides nothing, but sharding may still be in effect on it and take time.
    several = spec.devices > 1 or (_effect(record, "parallel") in PARALLELISM)
    layout, threads = _effect(record, "channels_last"), _effect(record, "threads")
    backend = _effect(record, "backend") or spec.backend
    version = _fact(record, "torch.version")
    return {
        "parallel": PARALLELISM.get(parallel, parallel) if several else None,
        "backend": backend if several else None,
        "compile": spec.compile if _effect(record, "compiled") != "false" else "off",
        "kv_cache": spec.kv_cache if spec.mode == "generate" else None,
        "graphs": spec.graphs if spec.mode == "generate" else None,
        "channels_last": layout == "true" if layout else spec.channels_last,
        "deterministic": spec.deterministic,
        "threads": _number(threads) if threads else spec.threads,
        "framework": f"PyTorch {version}" if version else None,
    }


def _tuning(record: RunRecord) -> Settings:
    """Return the tuning settings in effect; None for one without meaning, such as buckets on one rank.

    What nobody asked for is torch's choice for this machine, and is marked as such: it is no tuning.
    """
    spec = record.spec
    bound = _effect(record, "numa_bound")
    nodes = _fact(record, "numa.nodes_with_cpus")
    # A single node leaves no choice. A run may have ended before it looked.
    unbound = spec.numa is None and (nodes == "1" or (nodes is None and bound is None))
    kernel, attention = _effect(record, "optimizer_kernel"), _effect(record, "attention")
    known = {key: _effect(record, key) for key in ("cudnn_benchmark", "gradient_as_bucket_view")}
    return {
        "preset": spec.preset,
        "numa": None if unbound else bool(spec.numa) if bound is None else not bound.startswith("no ("),
        "optimizer_kernel": f"{BY_TORCH}{kernel}" if kernel and spec.tuning.optimizer_kernel == "default" else kernel,
        "attention": f"{BY_TORCH}{attention}" if attention and spec.attention == "auto" else attention,
        **{key: None if value is None else value == "true" for key, value in known.items()},
    }


def _surroundings(record: RunRecord) -> Settings:
    facts = record.environment.facts if record.environment else {}
    build = [f"{name} {facts[name]}" for name in BUILD if facts.get(name)]
    variables = {
        name: value
        for key, value in sorted(facts.items())
        if key.startswith("env.") and not (name := key.removeprefix("env.")).startswith(VOLATILE)
    }
    settings: Settings = {key: facts.get(fact) for key, fact in SURROUNDINGS.items()}
    if record.spec.device_family == "sim":
        # A simulated clock does not depend on the host.
        settings = {}
        variables = {}
    limit = record.quantities.get("power_limit_device")
    if limit is not None and limit.value is not None:
        # Read during the run, so it is known for every vendor.
        settings["power_limit"] = f"{limit.value:g} W"
    return {
        **settings,
        "build": "; ".join(build) or None,
        "variables": json.dumps(variables) if variables else None,
        "timing": record.environment.timing if record.environment else None,
    }


def _evidence(cell: CellSummary, measured: Sequence[RunRecord]) -> Settings:
    """Return how the figures came about."""
    blocking = {finding.code for record in measured for finding in record.findings if finding.severity == "error"}
    lost = {code: count for code, count in sorted(cell.statuses.items()) if code not in MEASURED}
    nodes = sorted({record.environment.node for record in measured if record.environment})
    rates = [record.quantities.get("throughput") for record in measured]
    return {
        "jobs": len(measured),
        "unsteady_jobs": sum(not is_steady(record) for record in measured if record.steady is not None) or None,
        "node": ", ".join(nodes) or None,
        "window": _common([rate.window for rate in rates if rate is not None]),
        "findings": " ".join(sorted(blocking)) or None,
        "busy_jobs": sum(any(one.code in BESIDE_LOAD for one in record.findings) for record in measured) or None,
        "jobs_lost": ", ".join(f"{count} {code}" for code, count in lost.items()) or None,
        **_energy_evidence(measured),
        **state_evidence(measured),
    }


def _energy_evidence(measured: Sequence[RunRecord]) -> Settings:
    """Return what the energies include, and reasons to doubt them."""
    known = [
        record for record in measured if (energy := record.quantities.get("energy_job")) and energy.value is not None
    ]
    doubts = dict.fromkeys(
        reason
        for record in known
        if (validity := record.quantities["energy_job"].validity) is not None and validity.verdict != "valid"
        for reason in validity.reasons or ("marked doubtful",)
    )
    return {
        "energy_scope": _common([scope_words(record, ()) for record in known]),
        "energy_doubts": "; ".join([*doubts][:SHOWN_DOUBTS]) or None,
    }


def _common(values: Sequence[Setting | None]) -> Setting | None:
    """Return the value of all jobs; if they differ, all values as one text."""
    distinct = list(dict.fromkeys(value for value in values if value is not None))
    if len(distinct) <= 1:
        return distinct[0] if distinct else None
    return " or ".join(sorted(map(shown, distinct)))


def _number(text: str) -> float | int | str:
    for read in (int, float):
        with suppress(ValueError):
            return read(text)
    return text


# -- figures


def _figures(records: Sequence[RunRecord], settings: Settings) -> dict[str, Amount]:
    names = dict.fromkeys(name for record in records for name in record.quantities if name not in STATE_QUANTITIES)
    figures = {name: amount for name in names if (amount := _figure(records, name)) is not None}
    if any(quantity.validity is not None for record in records for quantity in record.quantities.values()):
        energies = energy_figures(records)
        for name in figures.keys() & energies.keys():
            figures[name] = replace(figures[name], quantity=energies[name])
    rate, device = figures.get("throughput"), figures.get("throughput_per_device")
    if rate is not None and records[0].model is not None and records[0].model.bus_factor is not None:
        # All devices take part in the same collective: each device and node makes as many as the job.
        parts: tuple[Scope, ...] = ("device", "module", "node")
        return figures | {f"throughput_per_{part}": scaled(rate, 1, part) for part in parts}
    if rate is not None:
        shown = job_throughput(records)
        figures["throughput"] = rate = replace(rate, quantity=shown)
        if shown.interval is not None:
            low, high = min(shown.interval.low, rate.value), max(shown.interval.top, rate.value)
            figures["throughput"] = rate = replace(rate, low=low, high=high)
        if isinstance(nodes := settings.get("nodes"), int):
            figures["throughput_per_node"] = scaled(rate, 1 / nodes, "node")
    if device is not None and (factor := _devices_per_module(settings)) is not None:
        figures["throughput_per_module"] = scaled(device, factor, "module")
    return figures


def _devices_per_module(settings: Settings) -> float | None:
    """Return the devices per card or module; None if that is unknown or some were idle."""
    scope, dies, devices = (settings.get(key) for key in ("device_scope", "dies", "devices"))
    if scope in ("device", "module"):
        return 1.0
    if scope == "die" and isinstance(dies, int) and isinstance(devices, int) and devices % dies == 0:
        return float(dies)
    return None


def _figure(records: Sequence[RunRecord], name: str) -> Amount | None:
    """Return a quantity over the jobs; None if one of them lacks it, because a mean of the others would mislead."""
    quantities = [record.quantities.get(name) for record in records]
    known = [
        (quantity, quantity.value)
        for quantity in quantities
        if quantity is not None
        and quantity.value is not None
        # An invalid energy does not count.
        and (quantity.validity is None or quantity.validity.verdict != "invalid")
    ]
    if not known or len(known) < len(records):
        return None
    amount = _over_jobs([quantity for quantity, _ in known], [value for _, value in known], records)
    shown = amount.quantity
    if len(records) > 1 and shown is not None and shown.interval is not None and _from_step_times(name, shown.unit):
        # The same jobs, with the same reasons for doubt, as for the throughput.
        interval = replace(shown.interval, approximate=(*shown.interval.approximate, *doubts(records)))
        amount = replace(amount, quantity=replace(shown, interval=interval))
    return amount


def _from_step_times(name: str, unit: str) -> bool:
    return is_rate(unit) or name == "step_time_mean"


def _over_jobs(quantities: Sequence[Quantity], values: Sequence[float], records: Sequence[RunRecord]) -> Amount:
    first = quantities[0]
    value, interval = mean_over_jobs(values, records, rate=is_rate(first.unit))
    interval = first.interval if len(values) == 1 else interval
    low, high = (min(values), max(values)) if interval is None else (interval.low, interval.top)
    # Repeats of a step time show all of its error; those of an energy do not show the gain of the sensor.
    common = common_share(quantities) if first.validity is not None else 0.0
    if len(values) > 1 and common:
        low, high = low - common * abs(low), high + common * abs(high)
    shown = first if len(values) == 1 else replace(first, value=value, interval=interval)
    return Amount(
        value,
        min(low, value),
        max(high, value),
        first.unit,
        jobs=tuple(values),
        common=common,
        # Energies over jobs are made together.
        quantity=shown if first.validity is None else None,
    )


def scaled(amount: Amount, factor: float, scope: Scope | None = None) -> Amount:
    """Scale a figure to another number of devices; `scope`: what it is of then, None: no quantity of a record."""
    shown, quantity = None, amount.quantity
    if scope is not None and quantity is not None and quantity.value is not None:
        interval = quantity.interval.times(factor) if quantity.interval is not None else None
        shown = replace(quantity, value=quantity.value * factor, interval=interval, scope=scope)
    return Amount(
        amount.value * factor,
        amount.low * factor,
        amount.high * factor,
        amount.unit,
        jobs=tuple(value * factor for value in amount.jobs),
        common=amount.common,
        quantity=shown,
    )
