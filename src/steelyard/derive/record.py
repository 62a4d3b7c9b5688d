"""Derive a RunRecord from raw observations and nothing else: the same files always give the same record.

`steelyard selftest` checks each formula on simulated accelerators.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import TYPE_CHECKING

import numpy as np

from steelyard import nofollow
from steelyard.contracts.observe import MemoryPeak, Phase
from steelyard.contracts.record import Quantity, RunRecord, Steady
from steelyard.derive.ceilings import ceiling_quantities
from steelyard.derive.conditions import job_conditions
from steelyard.derive.energy import energy_quantities
from steelyard.derive.epochs import RATE, epoch_quantities, quality_quantities, steps_per_epoch
from steelyard.derive.load import host_loads
from steelyard.derive.observations import Observations
from steelyard.derive.printed.claims import printed_claims
from steelyard.derive.program_figures import counted_tokens, program_quantities, second_pass_shares
from steelyard.derive.queue import queue_quantities
from steelyard.derive.ranks import checked_quantities, rank_quantities
from steelyard.derive.rates import interval_of, job_interval, rank_seconds, rate_quantity
from steelyard.derive.status import damaged_status, job_status, without_crosscheck
from steelyard.derive.tokens import PERCENTILES, token_quantities
from steelyard.errors import DamagedDataError, SteelyardError
from steelyard.redact import MARK
from steelyard.rules.rule import check
from steelyard.stats.intervals import TAIL_QUANTILE
from steelyard.stats.quantiles import stream_quantiles
from steelyard.stats.steady import find_steady
from steelyard.version import VERSION

if TYPE_CHECKING:
    from pathlib import Path

    from steelyard.contracts.record import Aggregation, Interval, PrintedClaim, Scope, Window, WrappedRun
    from steelyard.contracts.spec import RunSpec
    from steelyard.derive.observations import Events, StepSamples, Trace, WindowSums
    from steelyard.derive.program import ProgramFacts


def derive(raw: Path) -> RunRecord:
    """Derive the record of the run whose raw files are in `raw`: an absolute path without links.

    Damaged files give a record whose status says so. Without a readable spec there is none: SteelyardError.
    """
    observed = Observations(raw)
    try:
        with nofollow.held(raw):
            spec = observed.launched
            try:
                return _derive(observed)
            except OSError:
                raise
            except Exception as error:  # noqa: BLE001 -- what no limit has caught must not cost the other runs
                return _damaged(observed, spec, error)
    except OSError as error:
        # The file system may work again later: this says nothing about the run.
        name = PurePath(error.filename or raw).name
        raise SteelyardError(f"{name}: cannot be read: {error.strerror or error}") from error


def _damaged(observed: Observations, spec: RunSpec, error: Exception) -> RunRecord:
    """Return the record of a run whose observations cannot be evaluated."""
    what = str(error) if isinstance(error, SteelyardError) else f"{type(error).__name__}: {error}"
    return RunRecord(
        run_id=spec.run_id,
        spec=spec,
        status=damaged_status(what),
        launch=None,
        environment=None,
        phases=(),
        stop=None,
        steady=None,
        crosscheck=None,
        steps_seen=0,
        ranks_seen=0,
        seconds_measured=0.0,
        quantities={},
        findings=(),
        raw=tuple(observed.raw_files.files),
        derived_by=f"steelyard {VERSION}",
    )


def _derive(observed: Observations) -> RunRecord:
    spec, events, launch = observed.spec, observed.events, observed.launch
    steps = _StepFigures()
    tokens: dict[str, Quantity] = {}
    printed: tuple[PrintedClaim, ...] = ()
    program = observed.program
    damage = events.damage or (program.damage if program is not None else None)
    if damage is None:
        try:
            steps = _derive_steps(observed)
            tokens = _token_figures(observed, steps)
            printed = printed_claims(observed, program.seen) if program is not None else ()
        except SteelyardError as error:
            damage = error
    raw_files = observed.raw_files
    if raw_files.damage is not None:
        damage, steps, tokens, printed = damage or raw_files.damage, _StepFigures(), {}, ()
    rate = steps.quantities.get("throughput")
    conditions = job_conditions(observed, steps.steady, rate.window if rate else "all steps")
    status, crosscheck_failure = without_crosscheck(job_status(observed, damage), observed, damage)
    told = (spec, status, launch, events.environment, crosscheck_failure)
    record = RunRecord(
        run_id=spec.run_id,
        spec=spec,
        status=status,
        wrapped=_with_steps(program.seen, steps, printed) if program is not None else None,
        printed=printed,
        launch=launch,
        environment=events.environment,
        load=host_loads(observed),
        conditions=conditions.devices,
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
        crosscheck_failure=crosscheck_failure,
        queue=events.queues[0] if events.queues else None,
        steps_seen=steps.steps,
        ranks_seen=steps.ranks,
        seconds_measured=steps.seconds,
        quantities={
            **_phase_quantities(events, of_program=program is not None),
            **program_quantities(observed),
            **_job_quantities(steps.quantities, events, spec.devices),
            **_utilisation(steps.quantities, events, program),
            **(second_pass_shares(steps.quantities, program.seen) if program is not None else {}),
            **conditions.quantities,
            **quality_quantities(events.evaluations, spec),
            **tokens,
            **ceiling_quantities(steps.quantities.get("throughput_per_device"), events.model),
            **energy_quantities(observed, steps.steady, steps.quantities | tokens),
        },
        findings=(),
        raw=tuple(raw_files.files),
        redacted=repr(told).count(MARK),
        derived_by=f"steelyard {VERSION}",
    )
    return replace(record, findings=check("run", record))


def _token_figures(observed: Observations, steps: _StepFigures) -> dict[str, Quantity]:
    rate = steps.quantities.get("throughput")
    if observed.program is None:
        return token_quantities(observed, steps.steady, rate)
    if steps.steady is None or rate is None:
        return {}
    return counted_tokens(observed, observed.program.seen, steps.steady, rate)


def _with_steps(seen: WrappedRun, steps: _StepFigures, printed: tuple[PrintedClaim, ...]) -> WrappedRun:
    """Return what was seen of a program; one that was killed has more steps on disk than it last reported."""
    if not steps.steps:
        return replace(seen, level=1) if printed and not seen.level else seen
    return replace(seen, level=max(seen.level, 2), steps=max(seen.steps, steps.steps))


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
    quantities = _step_quantities(samples, trace, steady, window, sums, first, observed.spec)
    if observed.program is not None:
        quantities = _of_program(quantities, observed.program.seen)
    return _StepFigures(
        steps=samples.steps,
        ranks=len(samples.ranks),
        seconds=float(sums.column("step_s").mean()),
        steady=steady,
        quantities=quantities | epoch_quantities(samples, per_epoch),
        phases=tuple(phases),
    )


def _find_steady(trace: Trace, steps: int) -> Steady:
    per_bin = trace.steps_per_bin
    steady = find_steady(trace.times / per_bin)
    # Steps at the end that fill no bin belong to the window if it reaches the last bin.
    stop = steps if steady.stop >= len(trace.times) else steady.stop * per_bin
    return Steady(
        answer=steady.answer,
        start_step=steady.start * per_bin,
        stop_step=stop,
        reason=steady.reason.sentence(per_bin, steps),
        trend=steady.trend,
        change_steps=tuple(point * per_bin for point in steady.change_points),
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


ASIDE = (
    "compute_share",
    "exposed_comm_share",
    "exposed_transfer_share",
    "rank_wait_share",
    "rank_compute_mean",
    "rank_compute_max",
)


def _of_program(quantities: dict[str, Quantity], seen: WrappedRun) -> dict[str, Quantity]:
    """Take away what the steps of a program do not tell: rates without samples, and waiting for a hidden loader."""
    reasons = (
        {} if seen.samples != "unknown" else dict.fromkeys(("throughput", "throughput_per_device"), seen.samples_reason)
    )
    if quantities["input_wait_share"].value is None:
        reasons["input_wait_share"] = "the program has a loader of its own: waiting for it was not seen"
    unknown = {name: replace(quantities[name], value=None, interval=None, reason=why) for name, why in reasons.items()}
    # The steps of a program do not tell computation and communication apart.
    parts = {name for name in ASIDE if name in quantities and quantities[name].value is None}
    return {name: quantity for name, quantity in (quantities | unknown).items() if name not in parts}


def _phase_quantities(events: Events, *, of_program: bool) -> dict[str, Quantity]:
    lengths = {phase.name: phase.end_s - phase.start_s for phase in events.phases if phase.complete}
    quantities = {}
    # A program has no phases of ours.
    for name in () if of_program else ("setup", "compile"):
        quantities[f"{name}_time"] = _quantity(
            lengths.get(name), "s", "job", name, "sum", reason=f"the run ended before the end of its {name} phase"
        )
    memory = events.memory or MemoryPeak(peak_bytes=None)
    if of_program and events.memory is None:
        return quantities
    quantities["memory_peak"] = _quantity(
        memory.peak_bytes, "bytes", "device", "run", "max", reason="peak memory was not reported"
    )
    for name, value in (("memory_reserved", memory.reserved_bytes), ("memory_used", memory.driver_used_bytes)):
        if value is not None:
            quantities[name] = _quantity(value, "bytes", "device", "run", "max")
    return quantities


def _job_quantities(quantities: dict[str, Quantity], events: Events, ranks: int) -> dict[str, Quantity]:
    """Add to the quantities of the steps what other observations tell about the whole job."""
    quantities = quantities | _checked_shares(quantities, events, ranks)
    quantities |= queue_quantities(quantities, events)
    if events.model is not None and events.model.bus_factor is not None and "throughput_per_device" in quantities:
        # All ranks take part in the same collective: the job has made as many as each of them.
        quantities["throughput"] = replace(quantities["throughput_per_device"], scope="job")
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
    "float64": "fp64",
    "float32": "fp32",
    "bfloat16": "bf16",
    "float16": "fp16",
    "float8_e4m3fn": "fp8",
    "int8": "int8",
}


def _utilisation(quantities: dict[str, Quantity], events: Events, program: ProgramFacts | None) -> dict[str, Quantity]:
    """Return model FLOPS and their share of the device's peak; unknown if either is."""
    rate, model, device = quantities.get("throughput_per_device"), events.model, events.device
    step = quantities.get("step_time_mean")
    flops = share = None
    if program is not None:
        seen = program.seen
        if step is None or step.value is None or not (seen.flops_per_step or seen.second_reason):
            return {}
        rate, reason = step, f"FLOPs unknown: {seen.second_reason}"
        if seen.flops_per_step is not None and seen.world is not None:
            flops = seen.flops_per_step / seen.world / step.value
    elif rate is None or rate.value is None or model is None:
        return {}
    else:
        reason = f"FLOPs unknown: {model.method}"
        flops = None if model.flops_per_sample is None else model.flops_per_sample * rate.value
    if flops is not None:
        # The number format of the matrix products, from the worker's own probe.
        values = events.settings.values if events.settings else {}
        kind = _TYPES.get(values.get("matmul_dtype", ""), "unknown")
        if program is not None and "precision" not in program.seen.unknown:
            kind = program.spec.precision
        if kind == "fp32" and values.get("float32_products") == "tf32":
            kind = "tf32"
        peak = (device.peak_flops or {}).get(kind) if device else None
        share = flops / peak if peak else None
        reason = f"the {kind} peak of {device.name if device else 'this device'} is not known"
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
    spec: RunSpec,
) -> dict[str, Quantity]:
    """Return the quantities of the window; `sums`: its totals, `first`: those of the first step."""
    start, stop = steady.start_step, steady.stop_step
    wanted = [TAIL_QUANTILE, *(level for _, level in PERCENTILES)]
    threshold, *levels = stream_quantiles(lambda: samples.step_times(start, stop), wanted)
    job = job_interval(samples, trace, start, stop, (threshold, levels[0]))
    whole_s = rank_seconds(sums, together=spec.exchanges_gradients)
    rate = float((sums.column("samples") / whole_s).sum())
    step_s = float(whole_s.mean()) / (stop - start)
    of_time = None
    if math.isfinite(job.high):
        of_time = interval_of(step_s * job.low / job.value, step_s * job.high / job.value, job)
    quantities = {
        "throughput": rate_quantity(rate, RATE, "job", window, job),
        "throughput_per_device": rate_quantity(rate / spec.devices, RATE, "device", window, job),
        "step_time_mean": _quantity(step_s, "s", "job", window, "mean", interval=of_time),
        "first_step_time": _quantity(float(first.column("step_s").mean()), "s", "job", "first step", "mean"),
    }
    for (name, _), value in zip(PERCENTILES, levels, strict=True):
        quantities[f"step_time_{name}"] = _quantity(value, "s", "rank", window, name)
    return quantities | _shares(sums, window) | rank_quantities(samples, steady, sums, window)


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
