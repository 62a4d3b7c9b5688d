"""Summaries of repeats: what an interval over jobs covers, and when it is doubtful."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest

from conftest import make_spec
from steelyard.analysis.summary import job_throughput, labels, summarise
from steelyard.contracts.finding import Finding
from steelyard.contracts.sim import Noise, SimTruth

if TYPE_CHECKING:
    from collections.abc import Callable

    from steelyard.contracts.record import RunRecord
    from steelyard.contracts.spec import RunSpec

    Simulate = Callable[[RunSpec], RunRecord]


def jobs(simulate: Simulate, nodes: list[str], noise: Noise) -> list[RunRecord]:
    records = []
    for number, node in enumerate(nodes):
        record = simulate(make_spec(seed=number, repeat=number, sim=SimTruth(noise=noise)))
        assert record.environment is not None
        records.append(dataclasses.replace(record, environment=dataclasses.replace(record.environment, node=node)))
    return records


@pytest.mark.parametrize(
    ("nodes", "covers", "doubts"),
    [
        (["a"], "this job", 0),
        (["a", "a", "a"], "3 jobs, all on node a", 0),
        (["a", "b", "c"], "3 jobs on 3 nodes", 0),
        (["a", "a", "b"], "3 jobs on 2 nodes", 1),
        (["a", "a"], "2 jobs, all on node a", 1),
    ],
)
def test_what_an_interval_covers(simulate: Simulate, nodes: list[str], covers: str, doubts: int) -> None:
    interval = job_throughput(jobs(simulate, nodes, Noise(kind="normal", between_jobs_cv=0.01))).interval
    assert interval is not None
    assert interval.covers.startswith(covers)
    assert len(interval.approximate) == doubts


def test_heavy_tails_are_doubted_across_jobs_too(simulate: Simulate) -> None:
    interval = job_throughput(jobs(simulate, ["a", "b", "c"], Noise(kind="pareto", alpha=1.5))).interval
    assert interval is not None
    assert "heavy tail" in interval.approximate[0]


def test_two_findings_of_one_code_are_both_shown(simulate: Simulate) -> None:
    """Once for all jobs: two figures that a program prints may both be wrong."""
    record = simulate(make_spec())
    wrong = tuple(
        Finding(code="SY511", severity="warning", message=said, fix="correct it") for said in ("the time", "the rate")
    )
    (cell,) = summarise([dataclasses.replace(record, run_id=str(job), findings=wrong) for job in range(2)])
    assert [finding.message for finding in cell.findings] == ["the time", "the rate"]


def test_times_are_averaged_not_rates(simulate: Simulate) -> None:
    records = [simulate(make_spec(sim=SimTruth(step_time_s=step_s))) for step_s in (0.01, 0.03)]
    assert job_throughput(records).value == pytest.approx(32 / 0.02)


def test_cells_are_named_by_what_differs(simulate: Simulate) -> None:
    specs = [
        make_spec(batch=batch, sim=SimTruth(noise=Noise(kind=kind))) for batch, kind in ((8, "none"), (32, "normal"))
    ]
    records = [simulate(dataclasses.replace(spec, configuration=f"c{number}")) for number, spec in enumerate(specs)]
    assert labels(summarise(records)) == {
        "c0": "batch=8, sim.noise.kind=none",
        "c1": "batch=32, sim.noise.kind=normal",
    }
    assert labels(summarise(records[:1])) == {"c0": "sim"}
