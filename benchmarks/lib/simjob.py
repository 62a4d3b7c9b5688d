"""One simulated job through the real worker loop, sample files and derivation, without the cost of a process."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from steelyard.contracts.observe import SPEC_FILE
from steelyard.contracts.spec import RunSpec
from steelyard.derive.record import derive
from steelyard.results.store import RAW, record_text
from steelyard.worker.engine.run import run_directory
from steelyard.worker.measure.writer import EventLog

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from steelyard.contracts.base import Contract
    from steelyard.contracts.record import RunRecord
    from steelyard.contracts.sim import SimTruth
    from steelyard.results.store import ResultFolder

    Change = Callable[[RunRecord], RunRecord]

BATCH = 32


def run_job(truth: SimTruth, seed: int) -> RunRecord:
    """Run a job of one rank with the default stopping rule."""
    return run_whole(
        RunSpec(run_id=f"job-{seed}", configuration="figure", seed=seed, batch=BATCH, crosscheck_steps=0, sim=truth)
    )


def run_whole(spec: RunSpec) -> RunRecord:
    """Run a job in this process."""
    with tempfile.TemporaryDirectory(dir=memory_folder()) as folder:
        raw = Path(folder)
        (raw / SPEC_FILE).write_text(record_text(spec), encoding="utf-8")
        status = run_directory(raw)
        if status.code != "completed":
            raise RuntimeError(f"{spec.run_id}: {status}")
        return derive(raw)


def run_spec(
    folder: ResultFolder,
    spec: RunSpec,
    change: Change = lambda record: record,
    seen: Mapping[str, Contract] = MappingProxyType({}),
) -> RunRecord:
    """Run a simulated job of a study in this process, and put its record into a folder of results.

    `change`: what to put there instead of the record; `seen`: what the worker of a real device would have observed, by
    kind of event.
    """
    folder.prepare()
    scratch = folder.open_scratch(spec)
    raw = scratch / RAW
    (raw / SPEC_FILE).write_text(record_text(spec), encoding="utf-8")
    status = run_directory(raw)
    if status.code != "completed":
        raise RuntimeError(f"{spec.run_id}: {status}")
    if seen:
        log = EventLog(raw, 0, append=True)
        for kind, observed in seen.items():
            log.write(kind, observed)
        log.close()
    record = change(derive(raw))
    folder.commit(scratch, record)
    return record


def memory_folder() -> str | None:
    """Return a folder in memory if there is one, because these jobs are many and small."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
