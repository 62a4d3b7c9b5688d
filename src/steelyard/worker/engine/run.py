"""One run from spec to status: the phases setup, compile, steps and cross-check. Every failure becomes a status."""

from __future__ import annotations

import errno
import json
import os
import re
import threading
import time
import traceback
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steelyard import hostload, plugins
from steelyard.contracts import observe
from steelyard.contracts.base import from_json_object
from steelyard.contracts.spec import RunSpec
from steelyard.errors import DISK_FULL, SteelyardError, WorkerMemoryError
from steelyard.worker.engine.between import Between
from steelyard.worker.engine.blocks import BlockLoop, crosscheck, crosscheck_steps
from steelyard.worker.engine.ending import on_terminate
from steelyard.worker.engine.timer import StepTimer
from steelyard.worker.engine.watchdog import Watchdog, stack_of
from steelyard.worker.measure.environment import ROOT, environment, node_name
from steelyard.worker.measure.writer import EventLog, StepWriter
from steelyard.worker.sensors.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from steelyard.worker.engine.job import Job, SensorWatcher
    from steelyard.worker.workloads.step_maker import StepMaker

# Messages of torch and the C++ library when host memory is exhausted; a device raises its own error class.
_HOST_MEMORY = re.compile(
    r"can't allocate memory|not enough memory|bad_alloc|Cannot allocate memory|out of memory", re.IGNORECASE
)
# A collective that failed because another rank ended: the cause is that rank, not this one.
_COMMUNICATION = re.compile(r"Connection (closed|reset)|gloo|NCCL|ncclRemoteError|Broken pipe|TCPStore", re.IGNORECASE)
HUNG = 1


def run_directory(raw: Path) -> observe.Status:
    """Run the spec in `raw` and write the observations next to it."""
    log = EventLog(raw, _process())
    try:
        spec = from_json_object(RunSpec, json.loads((raw / observe.SPEC_FILE).read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        status = observe.Status(code="refused", reason=_bound_text(f"the spec cannot be read: {error}"))
    else:
        status = _guarded(spec, raw, log)
    log.end(status)
    return status


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
        return _failure(error, spec)


def _failure(error: Exception, spec: RunSpec) -> observe.Status:
    kind, text = type(error).__name__, str(error)
    evidence = _evidence(_where(error, spec.source.path if spec.source else None))
    code: observe.StatusCode = "failed"
    if isinstance(error, OSError):
        host_memory = error.errno == errno.ENOMEM
    else:
        host_memory = isinstance(error, RuntimeError) and _HOST_MEMORY.search(text) is not None
    if kind == "OutOfMemoryError" or isinstance(error, MemoryError) or host_memory:
        code = "out_of_memory"
    elif isinstance(error, OSError) and error.errno in DISK_FULL:
        evidence["disk"] = "full"
    elif spec.ranks > 1 and (
        kind.startswith("Dist") or (isinstance(error, RuntimeError) and _COMMUNICATION.search(text) is not None)
    ):
        evidence["follows"] = "another rank's end"
    return observe.Status(code=code, reason=_bound_text(f"{kind}: {text}"), evidence=evidence)


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
    """Return the text cut to a bounded length and without lone surrogates, so that a record can hold it."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")[:4000]


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
        stop = _run_job(raw, log, job, watchdog, watch)
        # All measurements are on disk; leaving the group cannot change them. After a failure it is skipped, because it
        # could wait for a rank that is gone.
        with suppress(Exception):
            job.close()
    finally:
        # Also stop the node's sensors if the job has its own.
        for each in {sensors, watch}:
            each.stop()
        watchdog.stop()
    # A run that missed its quality target is measured but not completed.
    target = spec.quality.target if spec.quality is not None else None
    if target is None or stop.reason == "quality":
        return observe.Status(code="completed")
    reason = f"the quality target {target:g} was not reached in {spec.budget.epochs} epochs"
    return observe.Status(code="not_converged", reason=reason)


def _run_job(raw: Path, log: EventLog, job: Job, watchdog: Watchdog, watch: SensorWatcher) -> observe.Stop:
    leads = job.team.process == 0
    now = _edges(job, watch)
    with log.phase("setup", now, start_s=0.0):
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
    stop = _measure(raw, log, job, step_makers, watchdog, watch)
    # After the measurement: counting the model must not delay the first step.
    peaks = [peak for device in job.devices if (peak := device.memory_peak_bytes()) is not None]
    method = job.devices[0].memory_method
    log.write("memory", observe.MemoryPeak(peak_bytes=max(peaks) if peaks else None, method=method))
    if leads:
        for kind, facts in (("device", job.device_facts()), ("model", job.model_facts())):
            if facts is not None:
                log.write(kind, facts)
    return stop


def _edges(job: Job, watch: SensorWatcher) -> Callable[[], float]:
    """Return the device's clock. It is read at the edges of windows, so reading it also reads the sensors."""

    def now() -> float:
        watch.mark()
        return job.devices[0].now()

    return now


def _measure(
    raw: Path, log: EventLog, job: Job, step_makers: Sequence[StepMaker], watchdog: Watchdog, watch: SensorWatcher
) -> observe.Stop:
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
        if leads:
            log.write("stop", stop)
            _write_settings(job, log)
        check_steps = job.team.agree([crosscheck_steps(spec.crosscheck_steps, stop)])[0]
        if check_steps:
            with log.phase("crosscheck", now):
                checked = crosscheck(timers, check_steps, watchdog.beat)
            # Every process: waiting for the slowest rank and the transfer can only be separated with all of them.
            log.write("crosscheck", checked)
    return stop


def _write_load(log: EventLog, spec: RunSpec, moment: observe.LoadMoment) -> None:
    """Write how much CPU time this job and others have used. A simulated clock does not depend on the machine."""
    if spec.device_family != "sim":
        log.write("load", hostload.read_load(ROOT, moment, node_name()))


def _write_settings(job: Job, log: EventLog) -> None:
    """Write the settings in effect. An error in reading them does not fail a measured run."""
    try:
        settings = job.settings()
    except Exception:  # noqa: BLE001 -- see above; it is in the log
        traceback.print_exc()
        return
    if settings is not None:
        log.write("settings", settings)
