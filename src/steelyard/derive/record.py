"""Derives a RunRecord from raw observations, and from nothing else: the same files give the same record, always.

Knows the formulas of the product's numbers. Each is proven on simulated accelerators by `steelyard selftest`.
"""

from __future__ import annotations

import hashlib
import math
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from steelyard.contracts import observe
from steelyard.contracts.record import Interval, Quantity, RawFile, RunRecord, Steady
from steelyard.contracts.spec import RunSpec
from steelyard.derive.ceilings import ceiling_quantities
from steelyard.derive.energy import RunContext, energy_quantities
from steelyard.derive.epochs import epoch_quantities, quality_quantities
from steelyard.derive.ranks import checked_quantities, rank_quantities
from steelyard.derive.status import is_observation, job_status
from steelyard.derive.steps import StepSamples, Trace, WindowSums
from steelyard.derive.tokens import token_quantities
from steelyard.errors import DamagedDataError, SteelyardError
from steelyard.inputs.validate import MAX_SPEC_BYTES, parse_json, parse_object, read_bounded
from steelyard.rules.rule import check
from steelyard.stats.intervals import TAIL_QUANTILE, JobInterval, hill_tail_index, within_job
from steelyard.stats.quantiles import stream_quantiles
from steelyard.stats.steady import find_steady
from steelyard.version import VERSION

if TYPE_CHECKING:
    from pathlib import Path

    from steelyard.contracts.record import Aggregation, Scope, Window


PERCENTILES: tuple[tuple[Aggregation, float], ...] = (("p50", 0.50), ("p90", 0.90), ("p95", 0.95), ("p99", 0.99))
RATE = "samples/s"


def derive(raw: Path) -> RunRecord:
    """The record of the run whose raw files are in `raw`."""
    spec = parse_json(RunSpec, read_bounded(raw / observe.SPEC_FILE, MAX_SPEC_BYTES), f"{raw / observe.SPEC_FILE}")
    seen = _Seen()
    steps = _StepFigures()
    tokens: dict[str, Quantity] = {}
    damage: SteelyardError | None = None
    try:
        _read_events(raw, seen)
        steps = _derive_steps(StepSamples(raw, spec.ranks), _as_run(spec, seen))
        rate = steps.quantities.get("throughput_job")
        tokens = token_quantities(raw, spec, steps.steady, rate, seen.settings, seen.model)
    except SteelyardError as error:
        damage = error
    launch_file = raw / observe.LAUNCH_FILE
    launch = None
    if launch_file.exists():
        launch = parse_json(observe.Launch, read_bounded(launch_file, MAX_SPEC_BYTES), str(launch_file))
    record = RunRecord(
        run_id=spec.run_id,
        spec=spec,
        status=job_status(seen.statuses, spec, launch, raw, damage),
        launch=launch,
        environment=seen.environment,
        settings=seen.settings,
        device=seen.device,
        model=seen.model,
        memory=seen.memory,
        data=seen.data,
        loss=seen.loss,
        evaluations=tuple(seen.evaluations),
        phases=(*seen.phases, *steps.phases),
        stop=seen.stop,
        steady=steps.steady,
        crosscheck=seen.crosscheck,
        steps_seen=steps.steps,
        ranks_seen=steps.ranks,
        seconds_measured=steps.seconds,
        quantities={
            **_phase_quantities(seen),
            **_as_collective(_parts(steps.quantities, seen, spec.ranks), seen),
            **_utilisation(steps.quantities, seen),
            **quality_quantities(seen.evaluations, spec),
            **tokens,
            **ceiling_quantities(steps.quantities.get("throughput_device"), seen.model),
            **_energy(raw, spec, seen, steps, tokens),
        },
        findings=(),
        raw=tuple(_raw_file(path) for path in sorted(raw.iterdir()) if is_observation(path)),
        derived_by=f"steelyard {VERSION}",
    )
    return replace(record, findings=check("run", record))


def _as_run(spec: RunSpec, seen: _Seen) -> RunSpec:
    """With an epoch as long as the data set, where none was asked for."""
    if spec.epoch_samples is not None or seen.data is None:
        return spec
    try:
        return replace(spec, epoch_samples=seen.data.samples)
    except ValueError as error:
        raise DamagedDataError(f"the data and the spec do not belong together: {error}") from None


def _energy(
    raw: Path, spec: RunSpec, seen: _Seen, steps: _StepFigures, tokens: dict[str, Quantity]
) -> dict[str, Quantity]:
    """From the sensors, over the window of the throughput."""
    with suppress(DamagedDataError):
        spec = _as_run(spec, seen)
    rate = steps.quantities.get("throughput_job")
    made = tokens.get("tokens_job") or tokens.get("tokens_per_second")
    per_sample = made.value / rate.value if rate and rate.value and made and made.value else None
    facts = seen.environment.facts if seen.environment else {}
    # A step may use some of its job's nodes.
    given = facts.get("env.SLURM_NNODES") or facts.get("env.SLURM_JOB_NUM_NODES", "")
    measured = RunContext(
        nodes=int(given) if given.isascii() and given.isdigit() and len(given) < 9 else None,
        phases=seen.phases,
        steady=steps.steady,
        window=rate.window if rate else "all steps",
        tokens_per_sample=per_sample,
        collective=seen.model is not None and seen.model.bus_factor is not None,
        device=seen.device,
        family=seen.environment.device if seen.environment else spec.device_family,
    )
    return energy_quantities(raw, spec, measured)


# -- what the worker and the launcher wrote


@dataclass
class _Seen:
    statuses: dict[str, observe.Status] = field(default_factory=dict)
    """By the file of the process that wrote it."""
    settings: observe.Settings | None = None
    device: observe.DeviceFacts | None = None
    model: observe.ModelFacts | None = None
    environment: observe.Environment | None = None
    stop: observe.Stop | None = None
    crosschecks: list[observe.CrossCheck] = field(default_factory=list)
    """Of every process that tells its own, by its number."""
    memory: observe.MemoryPeak | None = None
    data: observe.DataFacts | None = None
    loss: observe.LossTrace | None = None
    evaluations: list[observe.Evaluation] = field(default_factory=list)
    phases: list[observe.Phase] = field(default_factory=list)

    @property
    def crosscheck(self) -> observe.CrossCheck | None:
        """That of the deciding process."""
        return self.crosschecks[0] if self.crosschecks else None


_FIRST_EVENTS = "events-00000.jsonl"
_SINGLE: dict[str, type] = {
    "environment": observe.Environment,
    "stop": observe.Stop,
    "settings": observe.Settings,
    "device": observe.DeviceFacts,
    "model": observe.ModelFacts,
    "data": observe.DataFacts,
    "loss": observe.LossTrace,
}
"""Said once in a job, by process 0."""
_SEVERAL: dict[str, tuple[str, type]] = {
    "evaluation": ("evaluations", observe.Evaluation),
    "crosscheck": ("crosschecks", observe.CrossCheck),
}


def _read_events(raw: Path, seen: _Seen) -> None:
    """All events of all processes, into `seen`; what was read before a damaged line stays."""
    for path in filter(is_observation, sorted(raw.glob(observe.EVENTS_PATTERN))):
        for event in observe.read_events(path):
            kind = event.pop("kind")
            _take_in(seen, path.name, kind, event, f"{path.name} ({kind})")


def _take_in(seen: _Seen, file: str, kind: str, event: dict[str, Any], where: str) -> None:
    if kind == "phase":
        # Ranks pass the phases together; those of process 0 stand for all.
        if file == _FIRST_EVENTS:
            seen.phases.append(parse_object(observe.Phase, event, where))
    elif kind == "status":
        # A word that the process was told to end comes after what it said before.
        status = parse_object(observe.Status, event, where)
        if file not in seen.statuses or seen.statuses[file].code == "completed":
            seen.statuses[file] = status
    elif kind == "memory":
        memory = parse_object(observe.MemoryPeak, event, where)
        if seen.memory is None or (memory.peak_bytes or 0.0) > (seen.memory.peak_bytes or 0.0):
            seen.memory = memory
    elif kind in _SEVERAL:
        name, contract = _SEVERAL[kind]
        getattr(seen, name).append(parse_object(contract, event, where))
    elif kind in _SINGLE:
        setattr(seen, kind, parse_object(_SINGLE[kind], event, where))


def _raw_file(path: Path) -> RawFile:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return RawFile(name=path.name, bytes=path.stat().st_size, sha256=digest)


# -- which steps count


@dataclass(frozen=True)
class _StepFigures:
    """All that the step samples tell; empty when there are none."""

    steps: int = 0
    ranks: int = 0
    seconds: float = 0.0
    steady: Steady | None = None
    quantities: dict[str, Quantity] = field(default_factory=dict)
    phases: tuple[observe.Phase, ...] = ()


def _derive_steps(samples: StepSamples, spec: RunSpec) -> _StepFigures:
    if not samples.steps:
        return _StepFigures(ranks=len(samples.ranks))
    trace = samples.trace()
    if trace.work.sum() == 0:
        raise DamagedDataError("no step has a sample: there is nothing to divide by")
    steady = _steady(trace, samples.steps)
    window: Window = "steady" if steady.answer == "steady" else "all steps"
    sums = samples.sums(steady.start_step, steady.stop_step)
    return _StepFigures(
        steps=samples.steps,
        ranks=len(samples.ranks),
        seconds=float(sums.column("step_s").mean()),
        steady=steady,
        quantities=_step_quantities(samples, trace, steady, sums, window, spec),
        phases=_split_steps(sums, samples) if steady.answer == "steady" else (),
    )


def _steady(trace: Trace, steps: int) -> Steady:
    found = find_steady(trace.times / trace.steps_per_bin)
    per_bin = trace.steps_per_bin
    # Steps that filled no bin at the end belong to the window when the window reaches the last bin.
    stop = steps if found.stop >= len(trace.times) else found.stop * per_bin
    return Steady(
        answer=found.answer,
        start_step=found.start * per_bin,
        stop_step=stop,
        reason=found.reason,
        change_steps=tuple(point * per_bin for point in found.change_points),
    )


def _split_steps(sums: WindowSums, samples: StepSamples) -> tuple[observe.Phase, ...]:
    """The phase of the steps, cut where the steady window begins."""
    steady = observe.Phase(name="steady", start_s=sums.start_s, end_s=sums.end_s)
    start_s = samples.sums(0, 1).start_s
    if sums.start_s > start_s:
        return observe.Phase(name="warmup", start_s=start_s, end_s=sums.start_s), steady
    return (steady,)


# -- the numbers


def _quantity(
    value: float | None,
    unit: str,
    scope: Scope,
    window: Window,
    aggregation: Aggregation,
    *,
    interval: Interval | None = None,
    reason: str | None = None,
) -> Quantity:
    return Quantity(
        value=value,
        unit=unit,
        scope=scope,
        window=window,
        aggregation=aggregation,
        interval=interval,
        reason=reason if value is None else None,
    )


def _phase_quantities(seen: _Seen) -> dict[str, Quantity]:
    lengths = {phase.name: phase.end_s - phase.start_s for phase in seen.phases if phase.complete}
    quantities = {}
    for name in ("setup", "compile"):
        quantities[f"{name}_time"] = _quantity(
            lengths.get(name), "s", "job", name, "sum", reason=f"the run ended before its {name} phase did"
        )
    quantities["memory_peak"] = _quantity(
        seen.memory.peak_bytes if seen.memory else None,
        "bytes",
        "device",
        "run",
        "max",
        reason="the device or the run's end gave no account of memory",
    )
    return quantities


def _parts(quantities: dict[str, Quantity], seen: _Seen, ranks: int) -> dict[str, Quantity]:
    """Where the measured steps do not tell communication, its share comes from the cross-check pass, and says so.

    The input's share is the measured steps' own. What neither has is computation.
    """
    whole = len(seen.crosschecks) == ranks
    checks = seen.crosschecks if whole else [check for check in [seen.crosscheck] if check is not None]
    told = [(check.input_wait_s, check.compute_s, check.exposed_comm_s) for check in checks]
    share, wait = quantities.get("exposed_comm_share"), quantities.get("input_wait_share")
    if not told or any(part is None for parts in told for part in parts):
        return quantities
    total = sum(part or 0.0 for parts in told for part in parts)
    if share is None or share.value is not None or wait is None or wait.value is None or total <= 0:
        return quantities
    exposed = min(sum(check.exposed_comm_s or 0.0 for check in checks) / total, 1 - wait.value)
    shares = {"compute_share": 1 - wait.value - exposed, "exposed_comm_share": exposed}
    # Where only one rank tells, it speaks for itself.
    scope: Scope = "job" if whole else "rank"
    return (
        quantities
        | {name: _quantity(value, "1", scope, "crosscheck", "share of time") for name, value in shares.items()}
        | (checked_quantities(checks, wait.value) if whole else {})
    )


_TYPES = {
    "float64": "fp64", "float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "float8_e4m3fn": "fp8", "int8": "int8",
}  # fmt: skip


def _as_collective(quantities: dict[str, Quantity], seen: _Seen) -> dict[str, Quantity]:
    """All ranks take part in one and the same collective: the job has made as many as each of them."""
    if seen.model is None or seen.model.bus_factor is None or "throughput_device" not in quantities:
        return quantities
    return quantities | {"throughput_job": replace(quantities["throughput_device"], scope="job")}


def _utilisation(quantities: dict[str, Quantity], seen: _Seen) -> dict[str, Quantity]:
    """Model FLOPs and their share of the device's peak; unknown where either is."""
    rate, model = quantities.get("throughput_device"), seen.model
    if rate is None or rate.value is None or model is None:
        return {}
    flops = None if model.flops_per_sample is None else model.flops_per_sample * rate.value
    reason, peak = f"FLOPs unknown: {model.method}", None
    if flops is not None:
        kind = _number_format(seen.settings)
        peak = (seen.device.peak_flops or {}).get(kind) if seen.device else None
        name = seen.device.name if seen.device else "this device"
        reason = f"no peak in {kind} is known for {name!r}"
    return {
        "model_flops_device": _quantity(flops, "FLOP/s", "device", rate.window, "work over time", reason=reason),
        "model_flops_utilisation": _quantity(
            flops / peak if flops is not None and peak else None,
            "1",
            "device",
            rate.window,
            "work over time",
            reason=reason,
        ),
    }


def _number_format(settings: observe.Settings | None) -> str:
    """The format that products were computed in, by the worker's own probe."""
    values = settings.values if settings else {}
    kind = _TYPES.get(values.get("matmul_dtype", ""), "unknown")
    return "tf32" if kind == "fp32" and values.get("float32_products") == "tf32" else kind


def _step_quantities(
    samples: StepSamples, trace: Trace, steady: Steady, sums: WindowSums, window: Window, spec: RunSpec
) -> dict[str, Quantity]:
    start, stop = steady.start_step, steady.stop_step
    wanted = [TAIL_QUANTILE, *(level for _, level in PERCENTILES)]
    tail, *levels = stream_quantiles(lambda: samples.step_times(start, stop), wanted)
    job = _job_interval(samples, trace, steady, threshold=tail, median=levels[0])
    rates = sums.column("samples") / sums.column("step_s")
    rate = float(rates.sum())
    step_s = float(sums.column("step_s").mean()) / (stop - start)
    quantities = {
        "throughput_job": _quantity(rate, RATE, "job", window, "work over time", interval=_rate_interval(rate, job)),
        "throughput_device": _quantity(
            rate / spec.ranks, RATE, "device", window, "work over time", interval=_rate_interval(rate / spec.ranks, job)
        ),
        "step_time_mean": _quantity(step_s, "s", "job", window, "mean", interval=_time_interval(step_s, job)),
        "first_step_time": _quantity(_first_step(samples), "s", "job", "first step", "mean"),
    }
    for (name, _), value in zip(PERCENTILES, levels, strict=True):
        quantities[f"step_time_{name}"] = _quantity(value, "s", "rank", window, name)
    quantities |= _shares(sums, window) | rank_quantities(samples, steady, sums, window)
    return quantities | epoch_quantities(samples, spec)


def _job_interval(
    samples: StepSamples, trace: Trace, steady: Steady, *, threshold: float, median: float
) -> JobInterval:
    first, last = steady.start_step // trace.steps_per_bin, steady.stop_step // trace.steps_per_bin
    tail = hill_tail_index(samples.step_times(steady.start_step, steady.stop_step), threshold, median)
    return within_job(
        trace.times[first:last], trace.work[first:last], steps_per_bin=trace.steps_per_bin, tail_index=tail
    )


def _rate_interval(rate: float, job: JobInterval) -> Interval | None:
    """The interval of the time for one sample, turned over: a rate is one over it."""
    if job.low <= 0 or not math.isfinite(job.high):
        return None
    return _interval(rate * job.value / job.high, rate * job.value / job.low, job)


def _time_interval(step_s: float, job: JobInterval) -> Interval | None:
    if not math.isfinite(job.high):
        return None
    return _interval(step_s * job.low / job.value, step_s * job.high / job.value, job)


def _interval(low: float, high: float, job: JobInterval) -> Interval:
    return Interval(
        low=low, high=high, level=job.level, method=job.method, covers="this job", approximate=job.approximate
    )


def _first_step(samples: StepSamples) -> float:
    return float(samples.sums(0, 1).column("step_s").mean())


def _shares(sums: WindowSums, window: Window) -> dict[str, Quantity]:
    """Where the time of a step went, as shares that add up to one."""
    total = float(sums.column("step_s").sum())
    quantities = {}
    for name in ("input_wait", "compute", "exposed_comm"):
        part = float(sums.column(f"{name}_s").sum())
        quantities[f"{name}_share"] = _quantity(
            part / total if np.isfinite(part) else None,
            "1",
            "job",
            window,
            "share of time",
            reason="nothing tells computation from communication here",
        )
    return quantities
