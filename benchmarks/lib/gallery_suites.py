"""Suites on simulated machines, for pictures of their reports: faster than the document's, with noise, three jobs each."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from printed_machines import Printed, batches, joined, printed_rows, simulated
from simjob import run_spec
from steelyard.contracts.sim import Noise, Power, Sensor, SimTruth
from steelyard.inputs.suite import Choice, counterpart, expand_part, find_suite, plan_part
from steelyard.report.suite.beside import SuiteResults

if TYPE_CHECKING:
    from steelyard.contracts.spec import RunSpec
    from steelyard.inputs.suite import Planned, Size, SuiteFolder
    from steelyard.results.store import ResultFolder

SIZE: Size = "small"
FASTER = 1.3
JOBS = 3
NOISE = Noise(kind="normal", cv=0.02, between_jobs_cv=0.01)


def make_suite(folder: ResultFolder, found: SuiteFolder) -> None:
    """Make the runs of a suite on a machine like the first one of its document, and faster."""
    rows = joined(printed_rows(SuiteResults(folder, found, "full")))
    for row in batches(rows)[0]:
        there = counterpart(found.suite, row.entries[0].planned, Choice(SIZE))
        spec = spec_of(found, there) if there is not None else None
        run = simulated(row, spec) if spec is not None else None
        if spec is None or run is None:
            continue
        truth = replace(run.sim, step_time_s=run.sim.step_time_s / FASTER, noise=NOISE)
        make_jobs(folder, replace(run, sim=truth, budget=spec.budget))


def spec_of(found: SuiteFolder, planned: Planned) -> RunSpec:
    """Return the settings of a configuration."""
    plan = plan_part(found.suite, planned.part, Choice(SIZE))
    cells = expand_part(found, planned.part, Choice(SIZE)).cells
    return next(cell.spec for one, cell in zip(plan, cells, strict=True) if one.settings == planned.settings)


def make_jobs(folder: ResultFolder, spec: RunSpec) -> None:
    """Run a configuration several times."""
    for job in range(JOBS):
        run_spec(folder, replace(spec, run_id=f"{spec.configuration}-r{job:04}", repeat=job, seed=spec.seed + job))
