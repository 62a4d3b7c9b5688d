"""Derives a RunRecord from raw observations, and from nothing else: the same files give the same record, always.

Knows the formulas of the product's numbers. Each is proven on simulated accelerators by `steelyard selftest`.
"""

from __future__ import annotations

import hashlib
import math
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from steelyard.contracts import observe
from steelyard.contracts.record import Interval, Quantity, RawFile, RunRecord, Steady
from steelyard.contracts.spec import RunSpec
from steelyard.errors import DamagedDataError, SteelyardError
from steelyard.results.findings import findings
from steelyard.results.trace import StepSamples, Trace, WindowSums
from steelyard.spec.validate import MAX_SPEC_BYTES, parse_json, parse_object, read_bounded
from steelyard.stats.intervals import TAIL_QUANTILE, JobInterval, hill_tail_index, within_job
from steelyard.stats.quantiles import stream_quantiles
from steelyard.stats.steady import find_steady
from steelyard.version import VERSION

if TYPE_CHECKING:
    from pathlib import Path

    from steelyard.contracts.record import Aggregation, Scope, Window

    _Evidence = dict[str, float | int | str]

PERCENTILES: tuple[tuple[Aggregation, float], ...] = (("p50", 0.50), ("p90", 0.90), ("p95", 0.95), ("p99", 0.99))
LOG_TAIL_BYTES = 2000
# Statuses of one job's processes, the one that tells the most first.
CAUSES = ("out_of_memory", "hung", "refused", "failed", "node_failure", "killed", "time_limit")
# In torchrun's account of what failed, and in the interpreter's of a hang that holds it.
_RANK_ENDED = re.compile(r"rank\s*:\s*(\d{1,9})\D[^\n]*\n\s*exitcode\s*:\s*(-?\d{1,9})\b")
_NO_MEMORY = re.compile(r"terminate called after throwing an instance of 'std::bad_alloc'")
# Hang-up, interrupt and termination: somebody asked for it.
ORDERS = (1, 2, 15)
_INTERPRETER_HUNG = re.compile(
    r"^Timeout \(\d+:\d\d:\d\d[^\n]*\n((?:(?:Thread|Current thread) [^\n]*\n|  [^\n]*\n|\n)*)", re.MULTILINE
)
_DUMPED_FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.*)$', re.MULTILINE)
SHOWN_RANKS = 8
RATE = "samples/s"


def derive(raw: Path) -> RunRecord:
    """The record of the run whose raw files are in `raw`."""
    spec = parse_json(RunSpec, read_bounded(raw / observe.SPEC_FILE, MAX_SPEC_BYTES), f"{raw / observe.SPEC_FILE}")
    seen = _Seen()
    steps = _Steps()
    damage: SteelyardError | None = None
    try:
        _read_events(raw, seen)
        steps = _derive_steps(StepSamples(raw, spec.ranks), spec)
    except SteelyardError as error:
        damage = error
    launch_file = raw / observe.LAUNCH_FILE
    launch = None
    if launch_file.exists():
        launch = parse_json(observe.Launch, read_bounded(launch_file, MAX_SPEC_BYTES), str(launch_file))
    record = RunRecord(
        run_id=spec.run_id,
        spec=spec,
        status=_status(seen, spec, launch, raw, damage),
        launch=launch,
        environment=seen.environment,
        settings=seen.settings,
        device=seen.device,
        model=seen.model,
        memory=seen.memory,
        phases=(*seen.phases, *steps.phases),
        stop=seen.stop,
        steady=steps.steady,
        crosscheck=seen.crosscheck,
        steps_seen=steps.steps,
        ranks_seen=steps.ranks,
        seconds_measured=steps.seconds,
        quantities={
            **_phase_quantities(seen),
            **_parts(steps.quantities, seen),
            **_utilisation(steps.quantities, seen),
        },
        findings=(),
        raw=tuple(_raw_file(path) for path in sorted(raw.iterdir()) if _is_observation(path)),
        derived_by=f"steelyard {VERSION}",
    )
    return findings(record)


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
    crosscheck: observe.CrossCheck | None = None
    memory: observe.MemoryPeak | None = None
    phases: list[observe.Phase] = field(default_factory=list)


_FIRST_EVENTS = "events-00000.jsonl"
_SINGLE: dict[str, type] = {
    "environment": observe.Environment,
    "stop": observe.Stop,
    "settings": observe.Settings,
    "crosscheck": observe.CrossCheck,
    "device": observe.DeviceFacts,
    "model": observe.ModelFacts,
}
"""Said once in a job, by process 0."""


def _read_events(raw: Path, seen: _Seen) -> None:
    """All events of all processes, into `seen`; what was read before a damaged line stays."""
    for path in filter(_is_observation, sorted(raw.glob(observe.EVENTS_PATTERN))):
        for event in observe.read_events(path):
            kind = event.pop("kind")
            where = f"{path.name} ({kind})"
            if kind == "phase":
                # Ranks pass the phases together; those of process 0 stand for all.
                if path.name == _FIRST_EVENTS:
                    seen.phases.append(parse_object(observe.Phase, event, where))
            elif kind == "status":
                # A word that the process was told to end comes after what it said before.
                status = parse_object(observe.Status, event, where)
                if path.name not in seen.statuses or seen.statuses[path.name].code == "completed":
                    seen.statuses[path.name] = status
            elif kind == "memory":
                memory = parse_object(observe.MemoryPeak, event, where)
                if seen.memory is None or (memory.peak_bytes or 0.0) > (seen.memory.peak_bytes or 0.0):
                    seen.memory = memory
            elif kind in _SINGLE:
                setattr(seen, kind, parse_object(_SINGLE[kind], event, where))


def _status(
    seen: _Seen, spec: RunSpec, launch: observe.Launch | None, raw: Path, damage: SteelyardError | None
) -> observe.Status:
    """How the job ended, from what each of its processes and the launcher say."""
    if launch is not None and launch.limit_hit:
        return observe.Status(
            code="time_limit",
            reason=f"ended after {launch.wall_s:.1f} s by its time limit",
            evidence={"log_tail": _log_tail(raw / observe.WORKER_LOG)},
        )
    words = sorted(seen.statuses.values(), key=_said)
    causes = [s for s in words if s.code in CAUSES and "follows" not in (s.evidence or {})]
    missing = len(words) < spec.processes
    if causes:
        cause = _with_places(causes[0], words, _log_evidence(raw)[1] if missing else None)
        if launch is not None and launch.oom_kills and "DataLoader worker" in cause.reason:
            # A loader process was what the memory limit killed.
            return replace(cause, code="out_of_memory")
        return cause
    if missing and not (damage and words):
        return _status_from_outside(launch, raw, seen.statuses)
    # What is left: ranks that saw another go, ranks that were told to end, and those that completed.
    rest = [s for s in words if s.code != "completed"]
    if rest:
        return _with_places(rest[0], words)
    if damage is not None:
        return observe.Status(code="failed", reason=f"the observations are damaged: {damage}"[:4000])
    return observe.Status(code="completed")


def _said(status: observe.Status) -> tuple[float, int]:
    """When a rank said it: the first word is the cause of the others. Without a time the one that tells the most."""
    at_s = (status.evidence or {}).get("at_unix_s")
    told = CAUSES.index(status.code) if status.code in CAUSES else len(CAUSES)
    return float(at_s) if isinstance(at_s, (int, float)) else math.inf, told


def _log_evidence(raw: Path) -> tuple[str, _Evidence]:
    """What the processes printed last, and of it what a record keeps."""
    log = _log_tail(raw / observe.WORKER_LOG, 16 * LOG_TAIL_BYTES)
    evidence: _Evidence = {"log_tail": log[-LOG_TAIL_BYTES:]}
    if dump := _INTERPRETER_HUNG.search(log):
        # The main thread is the last in a dump.
        frames = _DUMPED_FRAME.findall(dump[1].rpartition("(most recent call first)")[2])
        evidence["held_by"] = " < ".join(f"{name} ({file}:{line})" for file, line, name in frames)[:4000]
    return log, evidence


def _with_places(
    status: observe.Status, words: list[observe.Status], from_log: _Evidence | None = None
) -> observe.Status:
    """Where each rank stood, when several tell it; the log speaks for those that could not."""
    evidence = {**(status.evidence or {}), **(from_log or {})}
    ranks = [word.evidence for word in words if word.evidence and {"rank", "where"} <= word.evidence.keys()]
    if len(ranks) > 1:
        evidence |= {f"rank_{rank['rank']}": rank["where"] for rank in ranks[:SHOWN_RANKS]}
    return replace(status, evidence=evidence or None)


def _status_from_outside(
    launch: observe.Launch | None, raw: Path, statuses: dict[str, observe.Status]
) -> observe.Status:
    """A process left no status: what the launcher and its log saw must tell."""
    log, evidence = _log_evidence(raw)
    if launch is None:
        return observe.Status(code="failed", reason="neither worker nor launcher left a word", evidence=evidence)
    if launch.oom_kills:
        return observe.Status(
            code="out_of_memory",
            reason="the system killed a process of the job at the control group's memory limit",
            evidence={**evidence, "oom_kills": launch.oom_kills},
        )
    if "held_by" in evidence:
        return observe.Status(code="hung", reason="no block of steps ended within the limit", evidence=evidence)
    if _NO_MEMORY.search(log):
        return observe.Status(code="out_of_memory", reason="the host's memory is exhausted", evidence=evidence)
    silent = [
        (rank, code)
        for rank, code in ((int(found[1]), int(found[2])) for found in _RANK_ENDED.finditer(log))
        if f"events-{rank:05d}.jsonl" not in statuses
    ]
    if silent:
        # The last in torchrun's account is the one that it saw first; those that were asked to end are none.
        rank, code = min(reversed(silent), key=lambda entry: -entry[1] in ORDERS)
        return _ended(code, f"rank {rank}", {**evidence, "rank": rank})
    words = sorted(statuses.values(), key=_said)
    if words and words[0].code == "cancelled":
        return _with_places(words[0], words, evidence)
    return _ended(launch.exit_code, "the worker", evidence)


def _ended(code: int | None, who: str, evidence: _Evidence) -> observe.Status:
    """The end of a process that said nothing; an order to end may come before it can."""
    if code is None or code >= 0:
        return observe.Status(code="failed", reason=f"{who} left exit code {code} and no status", evidence=evidence)
    status: observe.StatusCode = "cancelled" if -code in ORDERS else "killed"
    return observe.Status(code=status, reason=f"{who} ended by signal {-code}", evidence={**evidence, "signal": -code})


def _is_observation(path: Path) -> bool:
    """A regular file of the run's: not a pipe to hang on, nor a link to somewhere else."""
    return path.name != observe.PROGRESS_FILE and path.is_file() and not path.is_symlink()


def _log_tail(log: Path, length: int = LOG_TAIL_BYTES) -> str:
    if not _is_observation(log):
        return ""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - length))
        return file.read(length).decode("utf-8", "replace")


def _raw_file(path: Path) -> RawFile:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return RawFile(name=path.name, bytes=path.stat().st_size, sha256=digest)


# -- which steps count


@dataclass(frozen=True)
class _Steps:
    """All that the step samples tell; empty when there are none."""

    steps: int = 0
    ranks: int = 0
    seconds: float = 0.0
    steady: Steady | None = None
    quantities: dict[str, Quantity] = field(default_factory=dict)
    phases: tuple[observe.Phase, ...] = ()


def _derive_steps(samples: StepSamples, spec: RunSpec) -> _Steps:
    if not samples.steps:
        return _Steps(ranks=len(samples.ranks))
    trace = samples.trace()
    if trace.work.sum() == 0:
        raise DamagedDataError("no step has a sample: there is nothing to divide by")
    steady = _steady(trace, samples.steps)
    window: Window = "steady" if steady.answer == "steady" else "all steps"
    sums = samples.sums(steady.start_step, steady.stop_step)
    return _Steps(
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


def _parts(quantities: dict[str, Quantity], seen: _Seen) -> dict[str, Quantity]:
    """Where the measured steps do not tell communication, its share comes from the cross-check pass, and says so.

    The input's share is the measured steps' own. What neither has is computation.
    """
    check, share, wait = seen.crosscheck, quantities.get("exposed_comm_share"), quantities.get("input_wait_share")
    if check is None or check.compute_s is None or check.exposed_comm_s is None or check.input_wait_s is None:
        return quantities
    total = check.input_wait_s + check.compute_s + check.exposed_comm_s
    if share is None or share.value is not None or wait is None or wait.value is None or total <= 0:
        return quantities
    exposed = min(check.exposed_comm_s / total, 1 - wait.value)
    shares = {"compute_share": 1 - wait.value - exposed, "exposed_comm_share": exposed}
    # The cross-check is that of one rank.
    return quantities | {
        name: _quantity(value, "1", "rank", "crosscheck", "share of time") for name, value in shares.items()
    }


_TYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


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
    return quantities | _shares(sums, window)


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
