"""Suites on simulated machines, for pictures of their reports: faster ones than the document has, with noise."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from printed_machines import batches, joined, printed_rows, simulated
from simjob import run_spec
from steelyard.contracts.observe import DataFacts
from steelyard.contracts.sim import Collective, Link, Noise, Power, Sensor, SimTruth
from steelyard.inputs.suite import Choice, counterpart, expand_part, plan_part
from steelyard.report.suite.beside import SuiteResults

if TYPE_CHECKING:
    from steelyard.contracts.record import RunRecord
    from steelyard.contracts.spec import RunSpec
    from steelyard.inputs.suite import Planned, Size, SuiteFolder
    from steelyard.results.store import ResultFolder

SIZE: Size = "small"
FASTER = 1.3
JOBS = 3
NOISE = Noise(kind="normal", cv=0.02, between_jobs_cv=0.01)
NODE = SimTruth(
    step_time_s=0.085, noise=NOISE, power=Power(idle_w=70.0, compute_w=640.0), sensors=(Sensor(kind="gauge"),),
    collective=Collective(message_bytes=496_000_000, links=(Link(latency_s=2e-5, bytes_per_s=1e11),)),
)  # fmt: skip
"""The node of the suite without a document."""


def make_suite(folder: ResultFolder, found: SuiteFolder) -> None:
    """Make the runs of a suite on a simulated machine."""
    make = make_beside if found.suite.document else make_alone
    make(folder, found)


def make_beside(folder: ResultFolder, found: SuiteFolder) -> None:
    """Make the runs beside the rows of the document's first machine, on one that is faster."""
    rows = joined(printed_rows(SuiteResults(folder, found, "full")))
    for row in batches(rows)[0]:
        planned = row.entries[0].planned
        there = counterpart(found.suite, planned, SIZE, plan_part(found.suite, planned.part, Choice(SIZE)))
        spec = spec_of(found, there) if there is not None else None
        run = simulated(row, spec) if spec is not None else None
        if there is None or spec is None or run is None:
            continue
        truth = replace(run.sim, step_time_s=run.sim.step_time_s / FASTER, noise=NOISE)
        make_jobs(folder, replace(run, sim=truth, budget=spec.budget), data_of(there))


def make_alone(folder: ResultFolder, found: SuiteFolder) -> None:
    """Make the runs that train a model, on a node with steps of one length."""
    for part in found.suite.part:
        for cell in expand_part(found, part, Choice(SIZE)).cells:
            if cell.spec.mode == "train":
                make_jobs(folder, replace(cell.spec, device="sim", sim=NODE, crosscheck_steps=0))


def spec_of(found: SuiteFolder, planned: Planned) -> RunSpec:
    """Return the settings of a configuration."""
    plan = plan_part(found.suite, planned.part, Choice(SIZE))
    cells = expand_part(found, planned.part, Choice(SIZE)).cells
    return next(cell.spec for one, cell in zip(plan, cells, strict=True) if one.settings == planned.settings)


def data_of(planned: Planned) -> DataFacts | None:
    """Return the data set of the document, as a run would have found it."""
    if planned.data is None:
        return None
    samples = planned.get("epoch_samples") or 1
    return DataFacts(
        format=planned.data, path=planned.data, samples=samples, files=samples, size_bytes=samples * 100_000,
        identity="0" * 64, filesystem="simulated", memory_bytes=None, fits_in_memory=None,
    )  # fmt: skip


def make_jobs(folder: ResultFolder, spec: RunSpec, data: DataFacts | None = None) -> None:
    """Run a configuration several times."""
    for job in range(JOBS):
        one = replace(spec, run_id=f"{spec.configuration}-r{job:04}", repeat=job, seed=spec.seed + job)
        run_spec(folder, one, lambda record: as_measured(record, data))


def as_measured(record: RunRecord, data: DataFacts | None) -> RunRecord:
    """Return the record as if the machine were real: it read the data, and its speed is not a setting."""
    return replace(record, data=data, spec=replace(record.spec, sim=SimTruth()))
