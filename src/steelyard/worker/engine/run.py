"""One run from spec to status: setup, compile, steps and cross-check, each a phase; each failure a status."""

from __future__ import annotations

import json
import traceback
from typing import TYPE_CHECKING, Any

from steelyard import registry
from steelyard.contracts import observe
from steelyard.contracts.base import from_json_object
from steelyard.contracts.spec import RunSpec
from steelyard.errors import SteelyardError, WorkerMemoryError
from steelyard.worker.engine.blocks import BlockLoop, crosscheck
from steelyard.worker.measure.environment import environment
from steelyard.worker.measure.timer import StepTimer
from steelyard.worker.measure.writer import EventLog, StepWriter

if TYPE_CHECKING:
    from pathlib import Path

PROCESS = 0


def run_directory(raw: Path) -> observe.Status:
    """Run the spec in `raw` and leave the observations beside it."""
    log = EventLog(raw, PROCESS)
    try:
        spec = from_json_object(RunSpec, json.loads((raw / observe.SPEC_FILE).read_text(encoding="utf-8")))
        status = _guarded(spec, raw, log)
    except (OSError, ValueError) as error:
        status = observe.Status(code="refused", reason=_words(f"the spec cannot be read: {error}"))
    log.write("status", status)
    log.close()
    return status


def _guarded(spec: RunSpec, raw: Path, log: EventLog) -> observe.Status:
    """The run, with every way it can fail turned into a status."""
    try:
        _run(spec, raw, log)
    except WorkerMemoryError as error:
        evidence: dict[str, Any] = dict(error.evidence)
        return observe.Status(code="out_of_memory", reason=_words(str(error)), evidence=evidence)
    except SteelyardError as error:
        return observe.Status(code="refused", reason=_words(str(error)))
    except Exception as error:  # noqa: BLE001 -- whatever a workload raises ends as a status, never as silence
        traceback.print_exc()
        return observe.Status(code="failed", reason=_words(f"{type(error).__name__}: {error}"))
    return observe.Status(code="completed")


def _words(text: str) -> str:
    """Text of an error as a record can hold it: of bounded length, and without the stray halves of characters."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")[:4000]


def _run(spec: RunSpec, raw: Path, log: EventLog) -> None:
    devices = registry.load("device", spec.device)(spec)
    now = devices[0].now
    log.write("environment", environment(spec.device, devices[0].timing))
    with log.phase("setup", now):
        build = registry.load("workload", spec.workload)
        workloads = [build(spec, device) for device in devices]
    with log.phase("compile", now):
        for workload in workloads:
            workload.compile()
    timers = [StepTimer(device, workload) for device, workload in zip(devices, workloads, strict=True)]
    writer = StepWriter(raw, PROCESS)
    try:
        with log.phase("steps", now):
            log.write("stop", BlockLoop(spec, timers, writer, raw).run())
        if spec.crosscheck_steps:
            with log.phase("crosscheck", now):
                log.write("crosscheck", crosscheck(timers, spec.crosscheck_steps))
    finally:
        writer.close()
    peaks = [peak for device in devices if (peak := device.memory_peak_bytes()) is not None]
    log.write("memory", observe.MemoryPeak(peak_bytes=max(peaks) if peaks else None))
