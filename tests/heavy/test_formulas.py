"""The self-test's cases one by one, and what the simulated accelerator does beyond them."""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING

import numpy as np
import pytest

from conftest import make_spec
from steelyard.contracts import sample_files
from steelyard.contracts.sim import Collective as Ring
from steelyard.contracts.sim import InputPipeline, Link, Memory, Noise, Shape, SimTruth
from steelyard.contracts.spec import Budget, RunSpec
from steelyard.derive.record import derive
from steelyard.results.store import record_text
from steelyard.selftest.cases import Case, cases
from steelyard.worker.devices.sim_noise import job_factor, shape_factors, step_factors
from steelyard.worker.workloads.batches import batches

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from steelyard.contracts.record import RunRecord

    Simulate = Callable[[RunSpec], RunRecord]

SHORT = Budget(min_steps=300, max_steps=300, min_seconds=0)


@pytest.mark.parametrize("case", list(cases()), ids=lambda case: case.name)
def test_figure_is_the_truth(case: Case, simulate: Simulate) -> None:
    record = simulate(case.spec)
    assert record.status.code == "completed", record.status
    for name, truth in case.truths.items():
        assert record.quantities[name].value == pytest.approx(truth, rel=1e-4, abs=1e-9), name


def test_without_noise_nothing_is_found_wrong(simulate: Simulate) -> None:
    record = simulate(make_spec())
    assert record.findings == ()
    interval = record.quantities["throughput"].interval
    assert interval is not None
    assert interval.approximate == ()
    assert interval.high - interval.low < 1e-6


def test_shares_add_up(simulate: Simulate) -> None:
    truth = SimTruth(
        noise=Noise(kind="lognormal", sigma=0.2),
        collective=Ring(message_bytes=10**8, links=(Link(bytes_per_s=1e10),)),
        input=InputPipeline(samples_per_s=1000.0),
    )
    record = simulate(make_spec(devices=4, sim=truth, budget=SHORT))
    names = ("input_wait", "compute", "exposed_comm", "host_wait")
    shares = [record.quantities[f"{name}_share"].value for name in names]
    assert all(share is not None and share > 0.01 for share in shares[:3])
    assert sum(share for share in shares if share is not None) == pytest.approx(1.0)


def test_phases_follow_each_other(simulate: Simulate) -> None:
    truth = SimTruth(setup_s=1.0, compile_s=2.0, shape=Shape(compile_step_s=5.0))
    record = simulate(make_spec(sim=truth, budget=SHORT))
    phases = {phase.name: phase for phase in record.phases}
    assert list(phases) == ["setup", "compile", "steps", "crosscheck", "warmup", "steady"]
    assert phases["compile"].end_s == phases["steps"].start_s == phases["warmup"].start_s == 3.0
    assert phases["warmup"].end_s == phases["steady"].start_s == pytest.approx(8.01)
    assert phases["steady"].end_s == pytest.approx(phases["steps"].end_s)


def test_a_broken_timer_is_found(simulate: Simulate) -> None:
    record = simulate(make_spec(sim=SimTruth(event_scale=0.9)))
    assert [found.code for found in record.findings if found.severity == "error"] == ["SY501"]


def test_work_that_the_host_hides_is_no_fault_of_the_timer(simulate: Simulate) -> None:
    for truth in (SimTruth(launch_s=0.008), SimTruth(input=InputPipeline(samples_per_s=3300.0), launch_s=0.0099)):
        assert simulate(make_spec(sim=truth)).findings == ()


def test_synchronised_steps_that_differ_are_disclosed(simulate: Simulate) -> None:
    # The measured pass ends after 1,000 steps; the device is throttled right after it, in the second pass.
    record = simulate(make_spec(sim=SimTruth(shape=Shape(throttle_at_step=1000, throttle_factor=1.5))))
    assert [(found.code, found.severity) for found in record.findings] == [("SY502", "warning")]
    assert "50 % longer" in record.findings[0].message


def test_memory_that_does_not_suffice_is_a_status(simulate: Simulate) -> None:
    record = simulate(make_spec(sim=SimTruth(memory=Memory(limit_bytes=1e9, bytes_per_sample=1e8))))
    assert record.status.code == "out_of_memory"
    assert record.status.evidence == {"needed_bytes": 3.2e9, "limit_bytes": 1e9, "rank": 0}
    assert record.quantities["compile_time"].value is None
    assert "throughput" not in record.quantities


@pytest.mark.parametrize(
    ("budget", "reason", "steps"),
    [
        (Budget(), "interval", 1000),
        (Budget(min_steps=100, min_seconds=0), "interval", 100),
        (Budget(min_seconds=15), "interval", 2000),
        (Budget(max_steps=500), "max_steps", 500),
        (Budget(rel_half_width=1e-9, max_seconds=20), "max_seconds", 2000),
        (Budget(epochs=3), "epochs", 93),
    ],
)
def test_why_a_run_stops(simulate: Simulate, budget: Budget, reason: str, steps: int) -> None:
    noise = Noise(kind="normal", cv=0.01)
    record = simulate(make_spec(budget=budget, epoch_samples=1000, sim=SimTruth(noise=noise)))
    assert record.stop is not None
    assert record.stop.reason == reason
    assert record.steps_seen == pytest.approx(steps, rel=0.3)
    assert ("SY202" in [found.code for found in record.findings]) == (reason in ("max_steps", "max_seconds"))


def test_a_budget_that_needs_no_step_more_is_not_complained_of(simulate: Simulate) -> None:
    record = simulate(make_spec(budget=Budget(min_seconds=15, max_seconds=12)))
    message = next(found.message for found in record.findings if found.code == "SY202")
    assert message == "stopped by max_seconds: 12 of 15 requested seconds"


def test_a_single_step_has_a_value_and_no_interval(simulate: Simulate) -> None:
    record = simulate(make_spec(budget=Budget(max_steps=1)))
    assert record.quantities["throughput"].value == pytest.approx(3200)
    assert record.quantities["step_time_mean"].interval is None
    record_text(record)


def test_the_cap_on_seconds_is_kept(simulate: Simulate) -> None:
    record = simulate(make_spec(sim=SimTruth(step_time_s=10.0), budget=Budget(max_seconds=35)))
    assert record.stop is not None
    assert record.stop.seconds == pytest.approx(40.0)


def test_what_is_in_the_way_of_derivation(simulate: Simulate, tmp_path: Path) -> None:
    simulate(make_spec(budget=SHORT))
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "events-pipe.jsonl")
    (tmp_path / "events-00001.jsonl").write_text('{"kind": "status", "code": "node_failure", "reason": "gone"}\n')
    assert derive(tmp_path).status.code == "node_failure"
    (tmp_path / "events-00001.jsonl").write_text("nonsense\n")
    record = derive(tmp_path)
    assert (record.status.code, "not JSON" in record.status.reason) == ("failed", True)
    assert str(tmp_path) not in record_text(record)


def test_a_run_that_dies_in_setup_has_no_setup_time(simulate: Simulate) -> None:
    truth = SimTruth(setup_s=2.0, memory=Memory(limit_bytes=1e9, bytes_per_sample=1e8))
    assert simulate(make_spec(sim=truth)).quantities["setup_time"].value is None


def test_without_steady_state_no_phase_is_called_so(simulate: Simulate) -> None:
    record = simulate(make_spec(sim=SimTruth(noise=Noise(walk_cv=0.01))))
    assert "steady" not in [phase.name for phase in record.phases]


def test_record_is_derived_again_the_same(simulate: Simulate, tmp_path: Path) -> None:
    record = simulate(make_spec(sim=SimTruth(noise=Noise(kind="normal"))))
    assert derive(tmp_path) == record


def test_same_seed_same_samples(simulate: Simulate, tmp_path: Path) -> None:
    spec = make_spec(seed=5, sim=SimTruth(noise=Noise(kind="pareto", between_jobs_cv=0.05)), budget=SHORT)
    first = simulate(spec)
    text = (tmp_path / "steps-00000.bin").read_bytes()
    assert simulate(spec).quantities == first.quantities
    assert (tmp_path / "steps-00000.bin").read_bytes() == text
    assert simulate(dataclasses.replace(spec, seed=6)).quantities != first.quantities


def test_damaged_samples_end_as_a_status(simulate: Simulate, tmp_path: Path) -> None:
    simulate(make_spec(budget=SHORT))
    path = tmp_path / "steps-00000.bin"
    text = bytearray(path.read_bytes())
    text[len(text) // 2] ^= 1
    path.write_bytes(bytes(text))
    record = derive(tmp_path)
    assert (record.status.code, "checksum" in record.status.reason) == ("failed", True)


def test_samples_of_a_lost_rank_block(simulate: Simulate, tmp_path: Path) -> None:
    simulate(make_spec(budget=SHORT, devices=2))
    path = tmp_path / "steps-00000.bin"
    kept = [chunk for chunk in sample_files.read_chunks(path, 0, 10**9, check=True) if chunk.rank == 0]
    with path.open("wb") as file:
        file.write(sample_files.FILE_MAGIC)
        for chunk in kept:
            sample_files.write_chunk(file, chunk.rank, chunk.first_step, chunk.table)
    assert "SY601" in [found.code for found in derive(tmp_path).findings]


# -- the simulation itself


@pytest.mark.parametrize("kind", ["normal", "ar1", "lognormal", "pareto"])
def test_noise_has_mean_one(kind: str) -> None:
    noise = Noise(kind=kind, cv=0.1, sigma=1.0, alpha=5.0)  # type: ignore[arg-type]
    stream = step_factors(SimTruth(noise=noise), seed=3, rank=0, chunk=4096)
    values = np.asarray([next(stream) for _ in range(400_000)])
    assert values.mean() == pytest.approx(1.0, abs=4 * values.std() / np.sqrt(values.size / 9))
    if kind == "ar1":
        steps = values - values.mean()
        assert (steps[1:] * steps[:-1]).mean() / steps.var() == pytest.approx(noise.rho, abs=0.02)


def test_noise_does_not_depend_on_the_chunk() -> None:
    truth = SimTruth(noise=Noise(kind="ar1", walk_cv=0.01), shape=Shape(warmup_amplitude=1, warmup_steps=9))
    small, large = (step_factors(truth, seed=3, rank=0, chunk=chunk) for chunk in (37, 100))
    np.testing.assert_allclose([next(small) for _ in range(500)], [next(large) for _ in range(500)])


def test_ranks_are_independent_unless_shared() -> None:
    own = [next(step_factors(SimTruth(noise=Noise(kind="normal")), 1, rank, 16)) for rank in (0, 1)]
    common = [next(step_factors(SimTruth(noise=Noise(kind="normal", shared=True)), 1, rank, 16)) for rank in (0, 1)]
    assert own[0] != own[1]
    assert common[0] == common[1]


def test_jobs_differ_by_the_scripted_spread() -> None:
    factors = np.asarray([job_factor(Noise(between_jobs_cv=0.05), seed) for seed in range(4000)])
    assert factors.mean() == pytest.approx(1.0, abs=0.004)
    assert factors.std() == pytest.approx(0.05, rel=0.05)


def test_shape() -> None:
    shape = Shape(drift_per_step=0.01, throttle_at_step=5, throttle_factor=2.0, spike_every=4, spike_factor=3.0)
    expected = [1.00, 1.01, 1.02, 3 * 1.03, 1.04, 2 * 1.05, 2 * 1.06, 6 * 1.07]
    np.testing.assert_allclose(shape_factors(shape, 0, 8), expected)
    np.testing.assert_allclose(shape_factors(shape, 3, 5), expected[3:])


@pytest.mark.parametrize(
    ("ranks", "seconds"), [(1, 0.0), (4, 6 * 1e-6 + 1.5 * 1e8 / 1e11), (8, 14 * 1e-5 + 1.75 * 1e8 / 1e10)]
)
def test_collective_by_rank_count(ranks: int, seconds: float) -> None:
    near = Link(latency_s=1e-6, bytes_per_s=1e11)
    far = Link(from_ranks=5, latency_s=1e-5, bytes_per_s=1e10)
    ring = Ring(message_bytes=10**8, links=(near, far))
    assert ring.seconds(ranks) == pytest.approx(seconds)


@pytest.mark.parametrize("last_batch", ["drop", "pad", "keep"])
def test_an_epoch_counts_each_sample_once(last_batch: str) -> None:
    spec = make_spec(devices=3, batch=4, epoch_samples=40, last_batch=last_batch)
    assert spec.steps_per_epoch == (3 if last_batch == "drop" else 4)
    assert spec.steps_per_epoch is not None
    plans = [batches(spec, rank) for rank in range(3)]
    counted = computed = 0
    for _ in range(spec.steps_per_epoch):
        for plan in plans:
            batch = next(plan)
            counted, computed = counted + batch.samples, computed + batch.computed
    assert counted == (36 if last_batch == "drop" else 40)
    assert computed == {"drop": 36, "pad": 48, "keep": 40}[last_batch]
    assert all(next(plan).opens_epoch for plan in plans)
