"""Derive a RunRecord from raw observations and nothing else: the same files always give the same record.

`steelyard selftest` checks each formula on simulated accelerators.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from steelyard.contracts.observe import Phase
from steelyard.contracts.record import Interval, Quantity, RunRecord, Steady
from steelyard.derive.ceilings import ceiling_quantities
from steelyard.derive.energy import energy_quantities
from steelyard.derive.epochs import RATE, epoch_quantities, quality_quantities, steps_per_epoch
from steelyard.derive.load import host_loads
from steelyard.derive.observations import Observations
from steelyard.derive.ranks import checked_quantities, rank_quantities
from steelyard.derive.status import job_status
from steelyard.derive.tokens import PERCENTILES, token_quantities
from steelyard.errors import DamagedDataError, SteelyardError
from steelyard.rules.rule import check
from steelyard.stats.intervals import TAIL_QUANTILE, JobInterval, hill_tail_index, within_job
from steelyard.stats.quantiles import stream_quantiles
from steelyard.stats.steady import find_steady
from steelyard.version import VERSION

if TYPE_CHECKING:
    from pathlib import Path

    from steelyard.contracts.record import Aggregation, Scope, Window
    from steelyard.derive.observations import Events, StepSamples, Trace, WindowSums


def derive(raw: Path) -> RunRecord:
    """Derive the record of the run whose raw files are in `raw`."""
    observed = Observations(raw)
    spec, events = observed.spec, observed.events
    steps = _StepFigures()
    tokens: dict[str, Quantity] = {}
    damage = events.damage
    if damage is None:
        try:
            steps = _derive_steps(observed)
            tokens = token_quantities(observed, steps.steady, steps.quantities.get("throughput_job"))
        except SteelyardError as error:
            damage = error
    record = RunRecord(
        run_id=spec.run_id,
        spec=spec,
        status=job_status(observed, damage),
        launch=observed.launch,
        environment=events.environment,
        load=host_loads(observed),
        settings=events.settings,
        device=events.device,
        model=events.model,
        memory=events.memory,
        data=events.data,
        loss=events.loss,
        evaluations=tuple(events.evaluations),
        phases=(*events.phases, *steps.phases),
        stop=events.stop,
        steady=steps.steady,
        crosscheck=events.crosschecks[0] if events.crosschecks else None,
        steps_seen=steps.steps,
        ranks_seen=steps.ranks,
        seconds_measured=steps.seconds,
        quantities={
            **_phase_quantities(events),
            **_job_quantities(steps.quantities, events, spec.ranks),
            **_utilisation(steps.quantities, events),
            **quality_quantities(events.evaluations, spec),
            **tokens,
            **ceiling_quantities(steps.quantities.get("throughput_device"), events.model),
            **energy_quantities(observed, steps.steady, steps.quantities | tokens),
        },
        findings=(),
        raw=observed.files,
        derived_by=f"steelyard {VERSION}",
    )
    return replace(record, findings=check("run", record))


# -- which steps count


@dataclass(frozen=True)
class _StepFigures:
    """Everything derived from the step samples; empty if there are none."""

    steps: int = 0
    ranks: int = 0
    seconds: float = 0.0
    steady: Steady | None = None
    quantities: dict[str, Quantity] = field(default_factory=dict)
    phases: tuple[Phase, ...] = ()


def _derive_steps(observed: Observations) -> _StepFigures:
    samples = observed.steps
    per_epoch = steps_per_epoch(observed.spec, observed.events.data)
    if not samples.steps:
        return _StepFigures(ranks=len(samples.ranks))
    trace = samples.trace()
    if trace.work.sum() == 0:
        raise DamagedDataError("no step has processed a sample")
    steady = _find_steady(trace, samples.steps)
    sums, first = samples.sums(steady.start_step, steady.stop_step), samples.sums(0, 1)
    window: Window = "after start-up"
    phases = []
    # Split the phase of the steps where the window begins.
    if sums.start_s > first.start_s:
        phases.append(Phase(name="warmup", start_s=first.start_s, end_s=sums.start_s))
    if steady.answer == "steady":
        window = "steady"
        phases.append(Phase(name="steady", start_s=sums.start_s, end_s=sums.end_s))
    return _StepFigures(
        steps=samples.steps,
        ranks=len(samples.ranks),
        seconds=float(sums.column("step_s").mean()),
        steady=steady,
        quantities=_step_quantities(samples, trace, steady, window, sums, first, observed.spec.ranks)
        | epoch_quantities(samples, per_epoch),
        phases=tuple(phases),
    )


def _find_steady(trace: Trace, steps: int) -> Steady:
    per_bin = trace.steps_per_bin
    found = find_steady(trace.times / per_bin)
    # Steps at the end that fill no bin belong to the window if it reaches the last bin.
    stop = steps if found.stop >= len(trace.times) else found.stop * per_bin
    return Steady(
        answer=found.answer,
        start_step=found.start * per_bin,
        stop_step=stop,
        reason=found.reason,
        trend=found.trend,
        change_steps=tuple(point * per_bin for point in found.change_points),
    )


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


def _phase_quantities(events: Events) -> dict[str, Quantity]:
    lengths = {phase.name: phase.end_s - phase.start_s for phase in events.phases if phase.complete}
    quantities = {}
    for name in ("setup", "compile"):
        quantities[f"{name}_time"] = _quantity(
            lengths.get(name), "s", "job", name, "sum", reason=f"the run ended before the end of its {name} phase"
        )
    quantities["memory_peak"] = _quantity(
        events.memory.peak_bytes if events.memory else None,
        "bytes",
        "device",
        "run",
        "max",
        reason="peak memory was not reported",
    )
    return quantities


def _job_quantities(quantities: dict[str, Quantity], events: Events, ranks: int) -> dict[str, Quantity]:
    """Add to the quantities of the steps what other observations tell about the whole job."""
    quantities = quantities | _checked_shares(quantities, events, ranks)
    if events.model is not None and events.model.bus_factor is not None and "throughput_device" in quantities:
        # All ranks take part in the same collective: the job has made as many as each of them.
        quantities["throughput_job"] = replace(quantities["throughput_device"], scope="job")
    return quantities


def _checked_shares(quantities: dict[str, Quantity], events: Events, ranks: int) -> dict[str, Quantity]:
    """Take the share of communication from the cross-check pass if the measured steps do not show it.

    The share of input is from the measured steps. The rest is computation.
    """
    whole = len(events.crosschecks) == ranks
    checks = events.crosschecks if whole else events.crosschecks[:1]
    told = [(check.input_wait_s, check.compute_s, check.exposed_comm_s) for check in checks]
    share, wait = quantities.get("exposed_comm_share"), quantities.get("input_wait_share")
    if not told or any(part is None for parts in told for part in parts):
        return {}
    total = sum(part or 0.0 for parts in told for part in parts)
    if share is None or share.value is not None or wait is None or wait.value is None or total <= 0:
        return {}
    exposed = min(sum(check.exposed_comm_s or 0.0 for check in checks) / total, 1 - wait.value)
    # A single cross-check describes only its own rank.
    scope: Scope = "job" if whole else "rank"
    return {
        "compute_share": _quantity(1 - wait.value - exposed, "1", scope, "crosscheck", "share of time"),
        "exposed_comm_share": _quantity(exposed, "1", scope, "crosscheck", "share of time"),
        **(checked_quantities(checks, wait.value) if whole else {}),
    }


_TYPES = {
    "float64": "fp64", "float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "float8_e4m3fn": "fp8", "int8": "int8",
}  # fmt: skip


def _utilisation(quantities: dict[str, Quantity], events: Events) -> dict[str, Quantity]:
    """Return model FLOPS and their share of the device's peak; unknown if either is."""
    rate, model, device = quantities.get("throughput_device"), events.model, events.device
    if rate is None or rate.value is None or model is None:
        return {}
    flops = share = None
    reason = f"FLOPs unknown: {model.method}"
    if model.flops_per_sample is not None:
        flops = model.flops_per_sample * rate.value
        # The number format of the matrix products, from the worker's own probe.
        values = events.settings.values if events.settings else {}
        kind = _TYPES.get(values.get("matmul_dtype", ""), "unknown")
        if kind == "fp32" and values.get("float32_products") == "tf32":
            kind = "tf32"
        peak = (device.peak_flops or {}).get(kind) if device else None
        share = flops / peak if peak else None
        reason = f"the {kind} peak of {device.name if device else 'this device'!r} is not known"
    return {
        "model_flops_device": _quantity(flops, "FLOP/s", "device", rate.window, "work over time", reason=reason),
        "model_flops_utilisation": _quantity(share, "1", "device", rate.window, "work over time", reason=reason),
    }


def _step_quantities(
    samples: StepSamples,
    trace: Trace,
    steady: Steady,
    window: Window,
    sums: WindowSums,
    first: WindowSums,
    ranks: int,
) -> dict[str, Quantity]:
    """Return the quantities of the window; `sums`: its totals, `first`: those of the first step."""
    start, stop = steady.start_step, steady.stop_step
    wanted = [TAIL_QUANTILE, *(level for _, level in PERCENTILES)]
    threshold, *levels = stream_quantiles(lambda: samples.step_times(start, stop), wanted)
    bins = slice(start // trace.steps_per_bin, stop // trace.steps_per_bin)
    job = within_job(
        trace.times[bins],
        trace.work[bins],
        steps_per_bin=trace.steps_per_bin,
        tail_index=hill_tail_index(samples.step_times(start, stop), threshold, levels[0]),
    )
    rate = float((sums.column("samples") / sums.column("step_s")).sum())
    step_s = float(sums.column("step_s").mean()) / (stop - start)
    of_time = None
    if math.isfinite(job.high):
        of_time = _interval(step_s * job.low / job.value, step_s * job.high / job.value, job)
    quantities = {
        "throughput_job": _rate(rate, "job", window, job),
        "throughput_device": _rate(rate / ranks, "device", window, job),
        "step_time_mean": _quantity(step_s, "s", "job", window, "mean", interval=of_time),
        "first_step_time": _quantity(float(first.column("step_s").mean()), "s", "job", "first step", "mean"),
    }
    for (name, _), value in zip(PERCENTILES, levels, strict=True):
        quantities[f"step_time_{name}"] = _quantity(value, "s", "rank", window, name)
    return quantities | _shares(sums, window) | rank_quantities(samples, steady, sums, window)


def _rate(rate: float, scope: Scope, window: Window, job: JobInterval) -> Quantity:
    """Return samples per second. The interval is that of the time per sample, inverted."""
    interval = None
    if job.low > 0 and math.isfinite(job.high):
        interval = _interval(rate * job.value / job.high, rate * job.value / job.low, job)
    return _quantity(rate, RATE, scope, window, "work over time", interval=interval)


def _interval(low: float, high: float, job: JobInterval) -> Interval:
    return Interval(
        low=low, high=high, level=job.level, method=job.method, covers="this job", approximate=job.approximate
    )


def _shares(sums: WindowSums, window: Window) -> dict[str, Quantity]:
    """Return where the time of a step went, as shares that add up to one."""
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
            reason="computation and communication cannot be separated here",
        )
    return quantities
