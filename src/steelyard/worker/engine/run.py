"""One run from spec to status: the phases setup, compile, steps and cross-check. Every failure becomes a status."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import signal
import threading
import time
import traceback
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steelyard import hostload, plugins
from steelyard.contracts import observe, wrap
from steelyard.contracts.base import from_json_object
from steelyard.contracts.spec import RunSpec
from steelyard.errors import DISK_FULL, SteelyardError, WorkerMemoryError
from steelyard.out_of_memory import ran_out
from steelyard.redact import redact
from steelyard.worker.devices.facts import look_up
from steelyard.worker.engine.between import Between
from steelyard.worker.engine.blocks import (
    BlockLoop,
    crosscheck,
    crosscheck_steps,
    examine_queue,
    led_share,
)
from steelyard.worker.engine.ending import on_terminate
from steelyard.worker.engine.timer import StepTimer
from steelyard.worker.engine.watchdog import Watchdog, stack_of
from steelyard.worker.measure.environment import ROOT, environment, node_name
from steelyard.worker.measure.software import free_device_bytes
from steelyard.worker.measure.writer import EventLog, StepWriter
from steelyard.worker.sensors.watch import Watch
from steelyard.worker.wrap.program import StartError, Supervisor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from steelyard.worker.devices.device import EventCost
    from steelyard.worker.engine.job import Job, SensorWatcher
    from steelyard.worker.workloads.step_maker import StepMaker

# A collective that failed because another rank ended: the cause is that rank, not this one.
_COMMUNICATION = re.compile(r"Connection (closed|reset)|gloo|NCCL|ncclRemoteError|Broken pipe|TCPStore", re.IGNORECASE)
HUNG = 1
MAX_TEXT = 100_000


def run_directory(
    raw: Path, supervise: Callable[[RunSpec, Path], Supervisor] = Supervisor, *, sha256: str = ""
) -> observe.Status:
    """Run the spec in `raw` and write the observations next to it; `supervise` returns who runs a program.

    `sha256`: of the spec; empty: not known.
    """
    try:
        text = (raw / observe.SPEC_FILE).read_bytes()
        if sha256 and hashlib.sha256(text).hexdigest() != sha256:
            raise ValueError("it was changed after it was written")
        spec = from_json_object(RunSpec, json.loads(text))
    except (OSError, ValueError) as error:
        status = observe.Status(code="refused", reason=_bound_text(f"the spec cannot be read: {error}"))
        EventLog(raw, _process()).end(status)
        return status
    if spec.program is not None:
        return _run_program(spec, raw, supervise(spec, raw))
    log = EventLog(raw, _process())
    status = _guarded(spec, raw, log)
    log.end(status)
    return status


def _run_program(spec: RunSpec, raw: Path, supervisor: Supervisor) -> observe.Status:
    """Run a person's program. Its ranks report themselves; where none does, only its end is known."""
    loads = [hostload.read_load(ROOT, "start", node_name())]
    try:
        status = _program_status(supervisor.run())
    except StartError as error:
        reason = _bound_text(f"{error.what}; next: {error.next_step}")
        status = observe.Status(code="refused", reason=reason, evidence={"exit_code": error.code})
    except OSError as error:
        status = failure(error, spec)
    loads.append(hostload.read_load(ROOT, "end", node_name()))
    first = supervisor.place.first_rank(raw)
    if first is None:
        return status
    silent = not any(raw.glob(observe.EVENTS_PATTERN))
    seen = _first_report(raw)
    log = EventLog(raw, first, append=True)
    if supervisor.idle is not None:
        log.write_phase("idle", *supervisor.idle)
    for load in loads:
        log.write("load", load)
    if seen is None:
        log.write("environment", environment("unknown", "wall time of the program", results=raw))
    else:
        log.write("environment", environment(seen.device, seen.timing, results=raw))
        if seen.device_name:
            log.write("device", look_up(seen.device_name, seen.device_bytes))
    if silent:
        log.write("status", status)
    log.close()
    return status


def _first_report(raw: Path) -> wrap.Wrapped | None:
    """Return what the observer of the first rank of a program reported."""
    with suppress(OSError, ValueError, SteelyardError):
        for event in observe.read_events(raw / observe.EVENTS_PATTERN.replace("*", "00000")):
            if event.pop("kind") == "wrapped":
                return from_json_object(wrap.Wrapped, event)
    return None


def _program_status(end: wrap.ProgramEnd) -> observe.Status:
    """Return how a program ended; the evidence has its exit code as a shell gives it."""
    code = end.exit_code if end.exit_code is not None else 128 + (end.signal or 0)
    evidence: dict[str, Any] | None = {"exit_code": code} if code else None
    if end.ended_by == "time limit":
        reason = f"ended by its time limit after {end.wall_s:.1f} s"
        return observe.Status(code="time_limit", reason=reason, evidence=evidence)
    if not code or end.ended_by in ("max_steps", "max_seconds"):
        return observe.Status(code="completed", evidence=evidence)
    if end.exit_code is None:
        told = end.signal in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
        reason = f"the program was ended by signal {end.signal}"
        return observe.Status(code="cancelled" if told else "killed", reason=reason, evidence=evidence)
    return observe.Status(code="failed", reason=f"the program ended with exit code {code}", evidence=evidence)


def report_termination(current: Callable[[], Path | None]) -> None:
    """Write a `cancelled` status to the folder of the current run, if there is one, when SIGTERM arrives."""

    def report(reason: str) -> None:
        raw = current()
        if raw is None:
            return
        where = stack_of(threading.main_thread().ident or 0)
        log = EventLog(raw, _process(), append=True)
        log.end(observe.Status(code="cancelled", reason=reason, evidence=_evidence(where)))

    on_terminate(report)


def _process() -> int:
    """Return the number of this process within its job, as set by torchrun or the scheduler."""
    return int(os.environ.get("RANK", "0"))


def _guarded(spec: RunSpec, raw: Path, log: EventLog) -> observe.Status:
    """Run, and turn every failure into a status."""
    try:
        return _run(spec, raw, log)
    except WorkerMemoryError as error:
        evidence: dict[str, Any] = dict(error.evidence)
        return observe.Status(code="out_of_memory", reason=_bound_text(str(error)), evidence=evidence)
    except SteelyardError as error:
        lines = [line.strip() for line in str(error).splitlines()]
        return observe.Status(code="refused", reason=_bound_text("; ".join(lines)))
    except Exception as error:  # noqa: BLE001 -- every error of a workload becomes a status
        # The log may be on a full disk.
        with suppress(OSError):
            traceback.print_exc()
        return failure(error, spec)


def failure(error: Exception, spec: RunSpec) -> observe.Status:
    """Return the status of a run that ended with this error."""
    kind, text = type(error).__name__, str(error)
    evidence = _evidence(_where(error, spec.source.path if spec.source else None))
    code: observe.StatusCode = "failed"
    if _is_memory(error, evidence):
        code = "out_of_memory"
    elif isinstance(error, OSError) and error.errno in DISK_FULL:
        evidence["disk"] = "full"
    elif spec.devices > 1 and (
        kind.startswith("Dist") or (isinstance(error, RuntimeError) and _COMMUNICATION.search(text) is not None)
    ):
        evidence["follows"] = "another rank's end"
    return observe.Status(code=code, reason=_bound_text(f"{kind}: {text}"), evidence=evidence)


def _is_memory(error: Exception, evidence: dict[str, Any]) -> bool:
    """Return whether memory ran out; adds the device's free memory to the evidence if it decided."""

    def free() -> float | None:
        bytes_ = free_device_bytes()
        if bytes_ is not None:
            evidence["device_free_bytes"] = bytes_
        return bytes_

    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    # Libraries of devices raise RuntimeError or a class of their own; another built-in class is a fault in a program.
    foreign = isinstance(error, RuntimeError) or type(error).__module__ != "builtins"
    return isinstance(error, MemoryError) or (foreign and ran_out(f"{type(error).__name__}: {error}", free))


def _evidence(where: str) -> dict[str, Any]:
    """Return rank, place and time: of several ranks that fail, the first is the cause."""
    return {"rank": _process(), "where": _bound_text(where), "at_unix_s": time.time()}


def _where(error: Exception, source: str | None) -> str:
    """Return file and line where it was raised, and the line of the user's file that led there."""
    frames = traceback.extract_tb(error.__traceback__)
    places = [f"{frame.filename}:{frame.lineno}" for frame in reversed(frames)]
    if isinstance(error, SyntaxError):
        places.insert(0, f"{error.filename}:{error.lineno}")
    led = [place for place in places[3:] if source is not None and place.startswith(f"{source}:")]
    return " < ".join(places[:3] + led[:1])


def _bound_text(text: str) -> str:
    """Return the text cut to a bounded length, without secrets and lone surrogates, so that a record can hold it."""
    # A secret must not be cut in two before it is recognised.
    whole = redact(text[:MAX_TEXT])[0]
    return whole.encode("utf-8", "backslashreplace").decode("utf-8")[:4000]


def _run(spec: RunSpec, raw: Path, log: EventLog) -> observe.Status:
    def bark(limit_s: float, where: str) -> None:
        # The watched thread hangs, so this thread must write the status and end the process.
        reason = f"no block of steps completed within {limit_s:g} s"
        try:
            log.end(observe.Status(code="hung", reason=reason, evidence=_evidence(where)))
        finally:
            os._exit(HUNG)

    watchdog = Watchdog(spec.hang_limit_s, raw, bark)
    watchdog.start()
    _write_load(log, spec, "start")
    sensors = Watch(spec, raw)
    watch: SensorWatcher = sensors
    try:
        sensors.start()
        open_job: Callable[[RunSpec], Job] = plugins.load("device", spec.device_family)
        job = open_job(spec)
        # The idle baseline was read until the device was first used.
        if (idle := sensors.idle(job.touched_s)) is not None:
            log.write_phase("idle", *idle)
        # A simulated job has its own sensors, which are read on its virtual clock.
        watch = job.watch(raw) or sensors
        stop, together = _run_job(raw, log, job, watchdog, watch)
        # All measurements are on disk; leaving the group cannot change them. After other failures it is skipped: it
        # could wait for a rank that is gone.
        with suppress(Exception):
            job.close(lost=not together)
    finally:
        # Also stop the node's sensors if the job has its own.
        for each in {sensors, watch}:
            each.stop()
        watchdog.stop()
    return _outcome(spec, stop)


def _outcome(spec: RunSpec, stop: observe.Stop) -> observe.Status:
    """Return the status of a measured run. One that missed its quality target is measured but not completed."""
    target = spec.quality.target if spec.quality is not None else None
    if target is None or stop.reason == "quality":
        return observe.Status(code="completed")
    reason = f"the quality target {target:g} was not reached in {spec.budget.epochs} epochs"
    return observe.Status(code="not_converged", reason=reason)


def _run_job(raw: Path, log: EventLog, job: Job, watchdog: Watchdog, watch: SensorWatcher) -> tuple[observe.Stop, bool]:
    """Return why the steps ended, and whether no process was lost in the cross-check."""
    leads = job.team.process == 0
    now = _edges(job, watch)
    with log.phase("setup", now, start_s=0.0):
        # First, because it uses some memory of the device.
        cost = job.devices[0].event_cost()
        step_makers = job.build()
    spec = job.spec
    if leads:
        code = Path(spec.source.path).parent if spec.source is not None else None
        data = Path(spec.data.path) if spec.data is not None else None
        timing = job.devices[0].timing
        log.write("environment", environment(job.family, timing, data=data, results=raw, code=code, more=job.facts()))
        if data is not None:
            # Looks at every file, which takes time if there are millions.
            with log.phase("data", now):
                log.write("data", job.data_facts())
    # No rank should wait inside its first step for what only rank 0 writes.
    job.team.agree([0])
    stop, together = measure(raw, log, job, step_makers, watchdog, watch, cost)
    if leads:
        # After the measurement: counting the model must not delay the first step.
        _write_read(log, "device", job.device_facts)
        _write_read(log, "model", job.model_facts)
    return stop, together


def _edges(job: Job, watch: SensorWatcher) -> Callable[[], float]:
    """Return the device's clock. It is read at the edges of windows, so reading it also reads the sensors."""

    def now() -> float:
        watch.mark()
        return job.devices[0].now()

    return now


def measure(
    raw: Path,
    log: EventLog,
    job: Job,
    step_makers: Sequence[StepMaker],
    watchdog: Watchdog,
    watch: SensorWatcher,
    cost: EventCost | None,
) -> tuple[observe.Stop, bool]:
    """Compile, measure the steps and cross-check them; `cost`: of an event on this device.

    Returns why the steps ended, and whether no process was lost in the cross-check.
    """
    spec, now, leads = job.spec, _edges(job, watch), job.team.process == 0

    def after_block() -> None:
        watch.mark()
        watchdog.beat()

    with ExitStack() as closing:
        for step_maker in step_makers:
            closing.callback(step_maker.close)
        if job.judge is not None:
            closing.callback(job.judge.close)
        writer = StepWriter(raw, job.team.process)
        closing.callback(writer.close)
        # Called first, so that a slow close after a failure is not reported as a hang.
        closing.callback(watchdog.finish)
        with log.phase("compile", now):
            for step_maker in step_makers:
                step_maker.compile()
        timers = [StepTimer(device, maker) for device, maker in zip(job.devices, step_makers, strict=True)]
        _write_load(log, spec, "steps")
        with log.phase("steps", now):
            between = Between(step_makers[0], job.judge, log=log if leads else None, now=now, beat=watchdog.beat)
            stop = BlockLoop(spec, timers, writer, raw, job.team, after_block, between).run()
        _write_load(log, spec, "end")
        # Before the cross-check, whose second wrapper of the model needs more.
        log.write("memory", max((d.memory() for d in job.devices), key=lambda memory: memory.peak_bytes or 0.0))
        if leads:
            log.write("stop", stop)
            _write_read(log, "settings", job.settings)
        check_steps = job.team.agree([crosscheck_steps(spec.crosscheck_steps, stop, spec.budget)])[0]
        together = True
        if check_steps or job.devices[0].queued:
            # Whatever happens from here on, to this process or to one that it waits for, the measurement is done.
            log.write("measured", _outcome(spec, stop))
            together = _cross_check(log, job, timers, check_steps, watchdog.beat, now, cost)
    return stop, together


def _cross_check(
    log: EventLog,
    job: Job,
    timers: list[StepTimer],
    steps: int,
    beat: Callable[[], None],
    now: Callable[[], float],
    cost: EventCost | None,
) -> bool:
    """Run the second pass; return whether it succeeded. A failure does not overturn the measurement."""
    try:
        if steps:
            with log.phase("crosscheck", now):
                checked = crosscheck(timers, steps, beat)
            # Every process: waiting for the slowest rank and the transfer can only be separated with all of them.
            log.write("crosscheck", checked)
        if job.devices[0].queued:
            # A device whose host was not ahead may have waited for it: only a profile tells how long.
            lagged = (led_share(timers) or 0.0) < observe.LEADS
            most = timers[0].step_maker.profiled_steps
            wanted = min(most, steps or most) if steps or lagged else 0
            log.write("queue", examine_queue(timers, cost, job.team.agree([wanted])[0], beat))
    except Exception as error:  # noqa: BLE001 -- see above; it is in the log
        with suppress(OSError):
            traceback.print_exc()
        reason = _bound_text(f"{type(error).__name__}: {error}")
        failure = observe.CrossCheckFailure(rank=_process(), reason=reason, at_unix_s=time.time())
        log.write("crosscheck_failure", failure)
        return False
    return True


def _write_load(log: EventLog, spec: RunSpec, moment: observe.LoadMoment) -> None:
    """Write how much CPU time this job and others have used. A simulated clock does not depend on the machine."""
    if spec.device_family != "sim":
        log.write("load", hostload.read_load(ROOT, moment, node_name()))


def _write_read(log: EventLog, kind: str, read: Callable[[], Any]) -> None:
    """Write what is read back after the measurement. An error in reading it does not fail a measured run."""
    try:
        value = read()
    except Exception:  # noqa: BLE001 -- see above; it is in the log
        traceback.print_exc()
        return
    if value is not None:
        log.write(kind, value)
