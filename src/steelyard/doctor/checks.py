"""All checks of the doctor verb. They need no privileges and change nothing."""

from __future__ import annotations

import importlib.metadata
import platform
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from steelyard.contracts.spec import Budget, RunSpec
from steelyard.doctor.load import load_check
from steelyard.doctor.node import Check, HostView, IntendedRun, node_checks, place_checks
from steelyard.doctor.sensors import judge_sensors, run_survey
from steelyard.doctor.torch_build import torch_checks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from steelyard.contracts.record import RunRecord

# The shortest steps that people report take 8 ms; the clock must be much finer.
CLOCK_LIMIT_S = 1e-5
TRAINING_LIMIT_S = 120.0
STEPS = Budget(min_steps=10, max_steps=10, min_seconds=0)


def checks(
    node: HostView,
    plan: IntendedRun,
    trial: Callable[[RunSpec], RunRecord],
    scheduler: str,
    tell: Callable[[str], None],
) -> Iterator[Check]:
    """Yield all checks, cheap ones first. `trial` makes a run and discards it; `scheduler` describes the allocation.

    `tell` is called with what a check does that takes a second or more.
    """
    packages = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("numpy", "scipy", "pydantic"))
    yield Check("python", "ok", f"{platform.python_version()} at {sys.executable}; {packages}")
    yield Check("machine", "ok", f"{node.machine}, {platform.system()} {platform.release()}")
    yield from node_checks(node, plan)
    tell("what else uses the CPUs")
    yield load_check(node)
    tell("energy sensors")
    yield from judge_sensors(run_survey(node.root))
    if scheduler:
        yield Check("scheduler", "ok", scheduler)
    else:
        yield Check("scheduler", "note", "none: results cover this node only")
    clock = time.get_clock_info("monotonic")
    if clock.resolution > CLOCK_LIMIT_S:
        text = f"monotonic clock resolves {clock.resolution:g} s"
        yield Check("clock", "wrong", text, "do not measure short steps here")
    else:
        yield Check("clock", "ok", f"{clock.implementation}, resolution {clock.resolution:g} s")
    yield from place_checks(node, plan)
    yield _check_folder(plan.results)
    tell("torch and its devices")
    torch = list(torch_checks(node))
    yield from torch
    tell("10 steps of the simulated accelerator")
    yield _try_worker(trial)
    if torch and torch[0].verdict == "ok":
        tell("10 training steps with torch")
        yield _try_training(trial, plan.devices or 1)


def _check_folder(results: Path) -> Check:
    if results.exists() and not results.is_dir():
        return Check("results", "wrong", f"{results} is not a directory", "give another folder with --results")
    parent = next(path for path in [results, *results.absolute().parents] if path.is_dir())
    try:
        with tempfile.TemporaryDirectory(dir=parent, prefix=".steelyard-doctor-") as scratch:
            (Path(scratch) / "beside").mkdir()
            (Path(scratch) / "beside").rename(Path(scratch) / "place")
    except OSError as error:
        return Check("results", "wrong", f"{results}: {error.strerror}", "give another folder with --results")
    return Check("results", "ok", f"{results}: writable, renames work")


def _try_worker(trial: Callable[[RunSpec], RunRecord]) -> Check:
    """Start a worker process with a small simulated run."""
    spec = RunSpec(run_id="doctor", configuration="doctor", workload="sim", device="sim", budget=STEPS)
    record, seconds = _time(trial, spec)
    if record.status.code != "completed":
        return Check(
            "worker",
            "wrong",
            f"a simulated run ended as {record.status.code}: {record.status.reason}",
            f"{sys.executable} -P -m steelyard.worker --help must work; it needs numpy",
        )
    return Check("worker", "ok", f"a simulated run of 10 steps took {seconds:.2f} s")


def _try_training(trial: Callable[[RunSpec], RunRecord], devices: int) -> Check:
    """Make a small training run with torch; with several devices also with torchrun and collectives."""
    spec = RunSpec(
        run_id="doctor",
        configuration="doctor",
        workload="tiny",
        devices=devices,
        budget=STEPS,
        time_limit_s=TRAINING_LIMIT_S,
    )
    record, seconds = _time(trial, spec)
    if record.status.code != "completed":
        text = f"10 steps of `tiny` on {devices} device(s) ended as {record.status.code}: {record.status.reason}"
        return Check("training", "wrong", text[:300], f"for details: steelyard run tiny --devices {devices}")
    values = record.settings.values if record.settings else {}
    where = f"{devices} x {values.get('device', '?')}, collectives {values.get('backend', '?')}"
    return Check("training", "ok", f"10 steps of `tiny` took {seconds:.1f} s: {where}")


def _time(trial: Callable[[RunSpec], RunRecord], spec: RunSpec) -> tuple[RunRecord, float]:
    begin_s = time.monotonic()
    record = trial(spec)
    return record, time.monotonic() - begin_s
