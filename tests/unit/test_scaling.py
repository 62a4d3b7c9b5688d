"""Scaling: factors compared with values by hand, curves, fits with their errors, and the output."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from steelyard.analysis.loss import APART, NO_PARTS
from steelyard.analysis.scaling import scaling
from steelyard.analysis.summary import summarise
from steelyard.cli.main import main
from steelyard.contracts import observe, sample_files
from steelyard.contracts.finding import Finding
from steelyard.contracts.sim import Collective, InputPipeline, Link, Memory, Noise, SimTruth
from steelyard.contracts.spec import Budget, RunSpec
from steelyard.derive import ranks
from steelyard.derive.record import derive
from steelyard.errors import InputError
from steelyard.results.store import RAW, ResultFolder, record_text
from steelyard.rules.rule import check, rule
from steelyard.rules.scaling.curves import curves
from steelyard.rules.table.batches import kind_of
from steelyard.rules.table.row import Row, RowTable
from steelyard.stats.quotient import Estimate, Quotient, change
from steelyard.stats.ratio import compare_means
from steelyard.stats.scaling_fit import CurveFit, Refused, amdahl, gustafson, latency_bandwidth
from steelyard.terminal.scaling import _half, scaling_lines, scaling_object
from steelyard.worker.engine.run import run_directory

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from steelyard.analysis.scaling import Scaling
    from steelyard.contracts.record import Quantity, RunRecord

STEPS = Budget(min_steps=200, max_steps=200, min_seconds=0)
STEP_S, BATCH = 0.010, 32
RING = Collective(message_bytes=10_000_000, links=(Link(latency_s=1e-4, bytes_per_s=1e10),))


def ring_s(count: int) -> float:
    return 2 * (count - 1) * 1e-4 + 2 * (count - 1) / count * 1e-3


def spec_of(count: int, job: int = 0, cell: str = "", **settings: Any) -> RunSpec:
    given: dict[str, Any] = {"batch": BATCH, "budget": STEPS, "crosscheck_steps": 0, **settings}
    return RunSpec(
        run_id=f"run-{cell}{count}-{job}", study="study", configuration=f"cell-{cell}{count}", repeat=job, seed=job,
        devices=count, **given,
    )  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> Any:
    def one(spec: RunSpec) -> RunRecord:
        raw = tmp_path / spec.run_id
        raw.mkdir()
        (raw / observe.SPEC_FILE).write_text(record_text(spec), encoding="utf-8")
        run_directory(raw)
        return derive(raw)

    return one


@pytest.fixture
def study(run: Any) -> Any:
    """Return records of one or several jobs at each device count."""

    def all_of(counts: Sequence[int], jobs: int = 1, **settings: Any) -> list[RunRecord]:
        return [run(spec_of(count, job, **settings)) for count in counts for job in range(jobs)]

    return all_of


def factors(found: Scaling, devices: int) -> dict[str, float | None]:
    point = next(point for point in found.points if point.devices == devices)
    return {f.name: f.change.value if f.change else None for f in point.split.factors}


def without(record: RunRecord, *names: str) -> RunRecord:
    """Remove the shares that some devices do not report."""
    gone = {name: _unknown(record.quantities[name]) for name in names if name in record.quantities}
    return dataclasses.replace(record, quantities={**record.quantities, **gone})


def _unknown(quantity: Quantity) -> Quantity:
    return dataclasses.replace(quantity, value=None, interval=None, reason="not told")


# -- what ranks cost each other


def test_waiting_for_the_slow_rank_is_told_from_the_transfer(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = SimTruth(step_time_s=STEP_S, collective=RING, slow_rank=2, slow_factor=1.5)
    step_s = 1.5 * STEP_S + ring_s(4)
    truths = {
        "exposed_transfer_share": ring_s(4) / step_s,
        "rank_wait_share": (3 * 0.5 / 4) * STEP_S / step_s,
        "rank_compute_mean": STEP_S * 4.5 / 4,
        "rank_compute_max": 1.5 * STEP_S,
    }
    for passes in (1 << 16, 7):
        monkeypatch.setattr(ranks, "STEPS_PER_PASS", passes)
        record = run(spec_of(4, passes, sim=slow))
        for name, truth in truths.items():
            assert record.quantities[name].value == pytest.approx(truth, rel=1e-9), name
        shares = [record.quantities[f"{name}_share"].value or 0.0 for name in ("exposed_transfer", "rank_wait")]
        assert sum(shares) == pytest.approx(record.quantities["exposed_comm_share"].value)


def test_one_rank_waits_for_nobody(run: Any) -> None:
    assert "rank_wait_share" not in run(spec_of(1)).quantities


def test_ranks_that_take_turns_at_being_late_wait_in_every_step(run: Any) -> None:
    noisy = SimTruth(step_time_s=STEP_S, noise=Noise(kind="normal", cv=0.05))
    record = run(spec_of(2, sim=noisy))
    # The larger of two normal variables is above their mean by the deviation over the root of pi.
    late_s = STEP_S * 0.05 / math.sqrt(math.pi)
    assert record.quantities["rank_wait_share"].value == pytest.approx(late_s / (STEP_S + late_s), rel=0.1)
    assert record.quantities["exposed_transfer_share"].value == pytest.approx(0, abs=1e-12)


def test_the_cross_checks_of_all_ranks_stand_in(run: Any, tmp_path: Path) -> None:
    raw = tmp_path / "torch"
    raw.mkdir()
    spec = spec_of(2, workload="tiny", device="cpu")
    (raw / observe.SPEC_FILE).write_text(record_text(spec), encoding="utf-8")
    table = np.array([[0.0, 0.02], [0.02, 0.02], [0.002] * 2, [math.nan] * 2, [math.nan] * 2, [32.0] * 2])
    for rank, (compute_s, exposed_s) in enumerate([(0.008, 0.010), (0.014, 0.004)]):
        with (raw / f"steps-{rank:05d}.bin").open("wb") as file:
            file.write(sample_files.FILE_MAGIC)
            sample_files.write_chunk(file, rank, 0, table)
        parts = {"input_wait_s": 0.002, "compute_s": compute_s, "exposed_comm_s": exposed_s}
        event = {"kind": "crosscheck", "steps": 4, "mean_step_s": 0.02, "sem_step_s": 0.0, **parts}
        (raw / f"events-{rank:05d}.jsonl").write_text(json.dumps(event) + "\n", encoding="utf-8")
    found = derive(raw).quantities
    truths = {"compute_share": 0.55, "exposed_comm_share": 0.35, "exposed_transfer_share": 0.2, "rank_wait_share": 0.15}
    assert {name: found[name].value for name in truths} == pytest.approx(truths)
    assert found["rank_compute_max"].value == 0.014
    assert {found[name].window for name in truths} == {"crosscheck"}
    assert derive(raw).crosscheck.compute_s == 0.008  # type: ignore[union-attr]
    # One rank alone does not show who waits for whom.
    (raw / "events-00001.jsonl").unlink()
    found = derive(raw).quantities
    assert found["exposed_comm_share"].value == pytest.approx(0.5)
    assert found["exposed_comm_share"].scope == "rank"
    assert found["rank_wait_share"].value is None


# -- factors


def test_four_losses_by_hand(study: Any) -> None:
    """One slow rank of four, a ring, input at 400 samples/s, and a fixed part of each step (strong scaling)."""
    truth = SimTruth(
        step_time_s=0.004, sample_time_s=0.0005, slow_rank=1, slow_factor=1.25, collective=RING,
        input=InputPipeline(samples_per_s=400.0),
    )  # fmt: skip
    records = study([1], sim=truth, batch=64) + study([4], sim=truth, batch=16)
    (found,) = scaling(summarise(records))
    # One device computes 36 ms and waits until 160; four compute 12 (one 15), reduce 2.1 and wait until 40.
    base_s, step_s, busy_s = 0.160, 0.040, 0.015 + ring_s(4)
    assert found.kind == "strong"
    assert factors(found, 4) == pytest.approx(
        {
            "input": (busy_s / step_s) / (0.036 / base_s),
            "balance": (0.012 * 4.25 / 4) / 0.015,
            "communication": 0.015 / busy_s,
            "computation": (0.036 / 64) / (0.012 * 4.25 / 4 / 16),
        }
    )
    total = found.points[1].split.total.value
    assert total == pytest.approx((base_s / 64) / (4 * step_s / 64))
    assert math.prod(value or 0.0 for value in factors(found, 4).values()) == pytest.approx(total, rel=1e-12)
    assert found.points[1].slowest == pytest.approx(1.25 / (4.25 / 4))
    own = [f.own for f in found.base.split.factors]
    assert own[:3] == pytest.approx([0.036 / base_s, 1.0, 1.0])
    assert own[3] is None


def test_what_is_unknown_is_one_rest_and_the_product_stays_exact(study: Any) -> None:
    truth = SimTruth(step_time_s=STEP_S, collective=RING, slow_rank=1, slow_factor=1.25)
    records = study([1, 2, 4], sim=truth)
    apart = [without(record, "exposed_transfer_share", "rank_wait_share") for record in records]
    (found,) = scaling(summarise(apart))
    last = found.points[-1].split
    assert factors(found, 4)["balance"] is None
    assert {f.reason for f in last.factors if f.change is None} == {APART}
    assert last.rest_is == ("balance", "communication")
    assert last.rest is not None
    assert last.rest.value == pytest.approx((4.25 / 4) * STEP_S / (1.25 * STEP_S + ring_s(4)))
    known = math.prod(value for value in factors(found, 4).values() if value is not None)
    assert known * last.rest.value == pytest.approx(last.total.value, rel=1e-12)
    names = ("exposed_transfer_share", "compute_share", "exposed_comm_share")
    (found,) = scaling(summarise([without(record, *names) for record in records]))
    last = found.points[-1].split
    assert last.rest_is == ("balance", "communication", "computation")
    assert {f.reason for f in last.factors if f.change is None} == {NO_PARTS}
    assert last.rest is not None
    assert last.rest.value == pytest.approx(last.total.value)
    (found,) = scaling(summarise([without(record, "input_wait_share") for record in records]))
    assert found.points[-1].split.rest_is == ("input", "balance", "communication")


def test_intervals_need_three_jobs_on_each_side(study: Any) -> None:
    truth = SimTruth(step_time_s=STEP_S, collective=RING, noise=Noise(kind="normal", cv=0.02, between_jobs_cv=0.02))
    records = study([1, 2], 3, sim=truth)
    (found,) = scaling(summarise(records))
    point = found.points[1]
    times = [
        [1 / (r.quantities["throughput_per_device"].value or 0) for r in records if r.spec.devices == n] for n in (1, 2)
    ]
    ratio = compare_means(times[1], times[0])
    assert point.split.total == change(Quotient((), (tuple(times[0]),)), Quotient((), (tuple(times[1]),)))
    assert (point.split.total.low, point.split.total.high) == pytest.approx((ratio.low, ratio.high))
    assert all(f.change is not None and f.change.low is not None for f in point.split.factors)
    (found,) = scaling(summarise(records[1:]))
    assert found.points[1].split.total.low is None
    assert found.returns[0].share.low is None
    assert found.base.split.total.low == 1.0


def test_a_quotient_of_two_means_covers_at_its_level() -> None:
    """Parts of a step that vary together: the quotient varies less than either."""
    rng, held, studies = np.random.default_rng(3), 0, 2000
    for _ in range(studies):
        sides = []
        for transfer in (0.1, 0.4):
            factor = 1 + 0.02 * rng.standard_normal(5)
            compute = tuple(factor * (1 + 0.005 * rng.standard_normal(5)))
            sides.append(Quotient((compute,), (tuple(c + transfer for c in compute),)))
        found = change(sides[0], sides[1])
        assert found.low is not None
        assert found.high is not None
        held += found.low <= (1 / 1.4) / (1 / 1.1) <= found.high
    assert 0.935 < held / studies < 0.975


# -- curves


def test_strong_weak_and_neither(study: Any) -> None:
    sized = SimTruth(step_time_s=0.002, sample_time_s=0.0001)
    assert scaling(summarise(study([1, 2, 4], sim=sized, cell="w")))[0].kind == "weak"
    strong = [study([n], sim=sized, batch=64 // n, cell="s")[0] for n in (1, 2, 4)]
    assert scaling(summarise(strong))[0].kind == "strong"
    neither = [study([n], sim=sized, batch=batch, cell="n")[0] for n, batch in ((1, 64), (2, 48), (4, 32))]
    (found,) = scaling(summarise(neither))
    assert (found.kind, found.blocked, found.fits) == ("neither", True, ())
    blocking = [entry for entry in found.findings if entry.severity == "error"]
    assert "SY312" in {entry.code for entry in blocking}
    assert any("64, 64 per device" in entry.evidence for entry in blocking)
    (found,) = scaling(summarise(strong), "weak")
    assert found.blocked
    assert any("declared as weak" in entry.message for entry in found.findings)


def test_accumulation_may_keep_the_batch_of_the_job(study: Any) -> None:
    records = [study([n], accumulation=4 // n, batch=8)[0] for n in (1, 2, 4)]
    assert scaling(summarise(records))[0].kind == "strong"


def test_another_setting_that_changes_along_the_curve_blocks(study: Any) -> None:
    records = study([1, 2]) + study([4], precision="bf16")
    (found,) = scaling(summarise(records))
    assert found.blocked
    assert any("precision" in entry.message and entry.place == "4 devices" for entry in found.findings)


def test_settings_swept_beside_the_devices_give_several_curves(study: Any) -> None:
    records = study([1, 2]) + study([1, 2, 4], precision="bf16", cell="b") + study([8], precision="fp16", cell="h")
    found = scaling(summarise(records))
    assert [(curve.label, len(curve.points), curve.blocked) for curve in found] == [
        ("precision bf16", 3, False),
        ("precision fp32", 2, False),
    ]
    assert found[-1].alone == ("8 devices, precision fp16",)


def test_several_batches_at_one_count_give_the_longest_curves(study: Any) -> None:
    records = study([1, 2]) + study([1, 2], batch=64, cell="b")
    for kind in (None, "weak"):
        assert [curve.label for curve in scaling(summarise(records), kind)] == [
            "32 samples per device",
            "64 samples per device",
        ]
    both = study([1], batch=64, cell="s") + study([2], batch=32, cell="s") + study([4], batch=16, cell="s")
    both += study([1], batch=128, cell="t") + study([2], batch=64, cell="t") + study([4], batch=32, cell="t")
    assert [curve.label for curve in scaling(summarise(both))] == ["64 samples per step", "128 samples per step"]
    (found,) = scaling(summarise(records), "strong")
    assert (found.label, found.alone) == (
        "64 samples per step", ("1 device, 32 samples per step", "2 devices, 128 samples per step"),
    )  # fmt: skip


def test_an_unreliable_count_stays_in_the_table_and_off_the_curve(study: Any) -> None:
    wrong = Finding(code="SY601", severity="error", message="a rank is missing", fix="rerun")
    records = [
        dataclasses.replace(record, findings=(wrong,)) if record.spec.devices == 4 else record
        for record in study([1, 2, 4, 8], jobs=3)
    ]
    (found,) = scaling(summarise(records))
    assert [point.devices for point in found.points] == [1, 2, 8]
    assert ([cell.records[0].spec.devices for cell in found.aside], found.blocked) == ([4], False)
    said = " ".join(" ".join(scaling_lines(found, "study")).split())
    assert "4 devices are unreliable and not used: errors in its runs: SY601" in said
    assert any(line.split()[:2] == ["4", "3"] and "unreliable" in line for line in scaling_lines(found, "study"))
    (one,) = scaling(summarise(study([1, 2], cell="few")))
    assert one.provisional
    assert "Provisional, because fewer than two device counts are reliable: 1 of the 3 jobs" in " ".join(
        " ".join(scaling_lines(one, "study")).split()
    )


def steady(records: Sequence[RunRecord], **values: Any) -> list[RunRecord]:
    """Return the jobs with another steady state."""
    return [dataclasses.replace(record, steady=dataclasses.replace(record.steady, **values)) for record in records]  # type: ignore[type-var]


def test_a_count_whose_trend_shows_beside_another_does_not_block_the_curve(study: Any) -> None:
    still = [one for record in study([2, 4, 8], jobs=3) for one in steady([record], trend=0.0)]
    for devices in (1, 16):
        # Alone, these trends vary too much to be shown.
        jobs = zip(study([devices], jobs=3), (0.04, 0.05, 0.06), strict=True)
        (found,) = scaling(summarise([*still, *(one for job, trend in jobs for one in steady([job], trend=trend))]))
        assert [point.devices for point in found.points] == [2, 4, 8]
        assert ([cell.records[0].spec.devices for cell in found.aside], found.blocked) == ([devices], False)
        assert found.aside[0].unreliable[0].startswith("its jobs get slower by 5.1 %")


def test_two_jobs_without_a_steady_state_give_a_provisional_curve(study: Any) -> None:
    (found,) = scaling(summarise(steady(study([1, 2], jobs=2), answer="never steady")))
    assert found.provisional
    assert not found.blocked
    assert ("SY213", "warning") in {(entry.code, entry.severity) for entry in found.findings}


def test_small_trends_widen_the_intervals_as_the_finding_says(study: Any) -> None:
    records = study([1, 2], jobs=3)
    (still,) = scaling(summarise(steady(records, trend=0.0)))
    (found,) = scaling(summarise(steady(records, trend=0.01)))
    assert "the interval is widened by this" in {entry.message.split("; ")[-1] for entry in found.findings}
    before, after = still.points[1].speedup, found.points[1].speedup
    assert after.low == pytest.approx((before.low or 0.0) * math.exp(-0.02))
    assert after.high == pytest.approx((before.high or 0.0) * math.exp(0.02))
    assert (found.returns[0].share.low or 0.0) < (still.returns[0].share.low or 0.0)


def test_a_bound_is_not_printed_as_an_infinite_interval(study: Any) -> None:
    records = study([1, 2], jobs=3)
    rates = [1000.0, 3000.0, 9000.0] * 2
    far = [
        dataclasses.replace(
            record,
            quantities={
                **record.quantities,
                "throughput": dataclasses.replace(record.quantities["throughput"], value=rate),
            },
        )
        for record, rate in zip(records, rates, strict=True)
    ]
    text = shown(far)
    assert "[at least " in text
    assert "inf]" not in text


def test_cells_that_no_setting_tells_apart_are_refused(study: Any) -> None:
    records = study([1, 2]) + study([2], cell="again", hang_limit_s=100.0)
    with pytest.raises(InputError, match="2 configurations have 2 devices"):
        scaling(summarise(records))


def test_one_count_is_no_curve(study: Any) -> None:
    with pytest.raises(InputError, match="two device counts; the selection has 2"):
        scaling(summarise(study([2])))


def test_counts_without_a_figure_are_shown(study: Any) -> None:
    small = SimTruth(memory=Memory(limit_bytes=1e9, bytes_per_sample=1e7))
    records = study([2, 4], sim=small) + study([1], sim=small, batch=128)
    (found,) = scaling(summarise(records), "weak")
    assert (found.missing, found.base.devices) == (((1, "1 out_of_memory"),), 2)
    assert "SY311" in {entry.code for entry in found.findings}
    with pytest.raises(InputError, match="1 device: 1 out_of_memory"):
        scaling(summarise(records[1:]), "weak")


# -- where to stop


def test_the_next_devices_return_what_they_add(study: Any) -> None:
    truth = SimTruth(step_time_s=STEP_S, collective=RING)
    (found,) = scaling(summarise(study([1, 2, 4, 6], sim=truth)), threshold=0.85)
    rate = {n: n * BATCH / (STEP_S + (ring_s(n) if n > 1 else 0.0)) for n in (1, 2, 4, 6)}
    wanted = [rate[2] / rate[1] - 1, rate[4] / rate[2] - 1, (rate[6] / rate[4] - 1) / 0.5]
    assert [entry.share.value for entry in found.returns] == pytest.approx(wanted)
    efficiency = {n: rate[n] / n / rate[1] for n in rate}
    assert found.enough is not None
    assert found.enough.devices == max(n for n in rate if efficiency[n] >= 0.85) == 2
    (found,) = scaling(summarise(study([1, 2, 4, 6], sim=truth, cell="x")), threshold=1.0)
    assert found.enough is found.base


# -- fits


COUNTS = (1, 2, 4, 8, 16)


def test_fits_find_what_made_the_curve() -> None:
    rates = [1 / (0.05 + 0.95 / n) for n in COUNTS]
    found = amdahl(COUNTS, rates)
    assert isinstance(found, CurveFit)
    assert (found.parameters[0].value, found.error_percent) == pytest.approx((0.05, 0.0), abs=1e-9)
    assert found.rate(64) == pytest.approx(1 / (0.05 + 0.95 / 64))
    found = gustafson(COUNTS, [7 * (0.2 + 0.8 * n) for n in COUNTS])
    assert isinstance(found, CurveFit)
    assert (found.parameters[0].value, found.rate(32)) == pytest.approx((0.2, 7 * (0.2 + 0.8 * 32)))


@pytest.mark.parametrize("strong", [True, False])
def test_latency_and_bandwidth_are_found(*, strong: bool) -> None:
    transfers = [ring_s(n) if n > 1 else 0.0 for n in COUNTS]
    rests = [0.004 + 0.064 / n if strong else 0.02 for n in COUNTS]
    steps = [rest + transfer for rest, transfer in zip(rests, transfers, strict=True)]
    rates = [(1024 if strong else 64 * n) / step for n, step in zip(COUNTS, steps, strict=True)]
    found = latency_bandwidth(COUNTS, rates, steps, transfers, strong=strong)
    assert isinstance(found, CurveFit)
    assert [entry.value for entry in found.parameters] == pytest.approx([1e-4, 1e-3])
    step_s = (0.004 + 0.064 / 64 if strong else 0.02) + ring_s(64)
    assert found.rate(64) == pytest.approx((1024 if strong else 64 * 64) / step_s)
    still = latency_bandwidth(COUNTS, rates, steps, [0.0] * 5, strong=strong)
    assert isinstance(still, Refused)


def test_too_few_points_are_refused_with_their_number() -> None:
    found = amdahl((1, 2, 4), (1.0, 1.9, 3.6))
    assert isinstance(found, Refused)
    assert "at least 4 device counts, but there are 3" in found.reason
    ring = latency_bandwidth((1, 2, 4, 8), (1.0,) * 4, (1.0,) * 4, (0.1,) * 4, strong=False)
    assert isinstance(ring, Refused)
    assert "at least 4 device counts above one, but there are 3" in ring.reason


def test_the_error_is_that_of_a_point_left_out() -> None:
    """A cliff at the last count: a fit through the others misses it by what the cliff is."""
    rates = [float(n) for n in COUNTS[:-1]] + [8.0]
    found = gustafson(COUNTS, rates)
    assert isinstance(found, CurveFit)
    assert found.error_percent == pytest.approx(100.0)
    # Superlinear curves have no serial share below zero.
    steep = gustafson(COUNTS, [n**1.2 for n in COUNTS])
    assert isinstance(steep, CurveFit)
    assert steep.parameters[0].value == steep.parameters[0].low == 0.0


def test_intervals_of_parameters_cover() -> None:
    rng, held, fits = np.random.default_rng(4), 0, 1000
    for _ in range(fits):
        found = amdahl(COUNTS, [(1 + 0.01 * rng.standard_normal()) / (0.1 + 0.9 / n) for n in COUNTS])
        assert isinstance(found, CurveFit)
        held += found.parameters[0].low <= 0.1 <= found.parameters[0].high
    assert 0.92 < held / fits < 0.98


def test_projections_end_at_twice_the_data_unless_it_is_said(study: Any) -> None:
    cells = summarise(study([1, 2, 4, 8, 16], sim=SimTruth(step_time_s=STEP_S, collective=RING)))
    (found,) = scaling(cells)
    assert {entry.devices for entry in found.projections} == {32}
    ring = next(entry for entry in found.projections if entry.model == "latency-bandwidth")
    assert ring.throughput == pytest.approx(32 * BATCH / (STEP_S + ring_s(32)))
    assert (ring.speedup, ring.efficiency) == pytest.approx((32 * ring.efficiency, STEP_S / (STEP_S + ring_s(32))))
    assert "SY310" not in {entry.code for entry in found.findings}
    (found,) = scaling(cells, at=33)
    assert "SY310" in {entry.code for entry in found.findings}


# -- rules


def test_rules_on_curves_look_at_each_curve_alone() -> None:
    def row(devices: int, batch: int, **settings: Any) -> Row:
        return Row(f"{devices}", {"devices": devices, "global_batch": batch, **settings}, {})

    assert kind_of([row(1, 8), row(2, 16)]) == "weak"
    assert kind_of([row(1, 8), row(2, 8)]) == "strong"
    assert kind_of([Row("a", {"devices": 1}, {}), row(2, 8)]) == "unknown"
    each = [Row(f"{n}", {"devices": n, "batch": 8 // n}, {}) for n in (1, 2, 4)]
    assert kind_of(each) == "strong"
    table = RowTable("t", (row(1, 8, model="a"), row(2, 8, model="a"), row(4, 8, model="b"), row(1, 8, model="c")))
    assert [[entry.place for entry in rows] for rows in curves(table)] == [["1", "2"]]


def test_tables_that_state_no_efficiency_have_no_base(study: Any) -> None:
    """A published table with only throughputs has no finding of these rules."""
    from steelyard.audit.table import parse_table

    table = parse_table("devices,metric,value,unit\n4,throughput,100,images/s\n64,throughput,900,images/s\n", "t")
    codes = {entry.code for entry in check("table", table)}
    assert not codes & {"SY310", "SY311", "SY312", "SY313", "SY314"}
    assert rule("SY311").subject == "table"


# -- output


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "results"
    results = ResultFolder(path)
    results.prepare()
    truth = SimTruth(
        step_time_s=STEP_S, collective=RING, slow_rank=0, slow_factor=1.2,
        noise=Noise(kind="normal", cv=0.01, between_jobs_cv=0.01),
    )  # fmt: skip
    for count in (1, 2, 4, 8):
        for job in range(3):
            spec = spec_of(count, job, sim=truth, batch=10_000)
            scratch = results.open_scratch(spec)
            run_directory(scratch / RAW)
            results.commit(scratch, derive(scratch / RAW))
    return path


def test_the_verb_answers_first_and_fits_the_terminal(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scaling", "study", "--results", str(folder), "--at", "64"]) == 0
    text = capsys.readouterr().out
    lines = text.splitlines()
    assert lines[0].startswith("8 devices give ")
    assert "study: weak scaling: constant batch per device" in lines
    # A command is one line, to be copied.
    assert max(len(line) for line in lines if "steelyard run" not in line) <= 80
    said = ("1 to 2 devices: ", "Largest device count with at least 70 %", "Base: 1 device at", "Gustafson: serial")
    for part in (*said, "cross-validation error", "SY310", "the slowest computes", "Projected to 64 devices"):
        assert part in text
    assert main(["scaling", "study", "--results", str(folder), "--threshold", "0.999"]) == 0
    assert "99.9 % efficiency: 1 device (the base). 2 devices reach" in " ".join(capsys.readouterr().out.split())


def test_models_that_miss_foretell_nothing(study: Any) -> None:
    cliff = Collective(message_bytes=10**8, links=(Link(bytes_per_s=1e12), Link(from_ranks=8, bytes_per_s=2e9)))
    (found,) = scaling(summarise(study([1, 2, 4, 8], sim=SimTruth(step_time_s=STEP_S, collective=cliff))))
    assert found.projections == ()
    text = "\n".join(scaling_lines(found, "study"))
    assert "too large for a projection" in text
    assert "No projection to 16 devices" in text


def test_the_verb_as_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scaling", "study", "--results", str(folder), "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["curves"]
    assert (found["kind"], found["blocked"], [p["devices"] for p in found["points"]]) == ("weak", False, [1, 2, 4, 8])
    last = found["points"][-1]
    product = math.prod(factor["change"]["value"] for factor in last["factors"].values())
    assert product == pytest.approx(last["efficiency"]["value"], rel=1e-12)
    assert last["speedup"]["low"] < last["speedup"]["value"] < last["speedup"]["high"]


def test_a_blocked_curve_shows_rates_and_no_ratio(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scaling", "study", "--results", str(folder), "--strong"]) == 1
    text = capsys.readouterr().out
    assert "Speed-up not reported" in text
    assert "efficiency, %" not in text
    assert main(["scaling", "study", "--results", str(folder), "--strong", "--json"]) == 1
    (found,) = json.loads(capsys.readouterr().out)["curves"]
    assert found["blocked"]
    last = found["points"][-1]
    assert (last["speedup"], last["efficiency"], last["factors"], last["rest"]) == (None, None, {}, None)
    assert (found["answer"], found["returns"], found["fits"], found["projections"]) == (None, [], [], [])


def test_options_that_are_not_valid(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--threshold", "70"], ["--at", "0"]):
        assert main(["scaling", "study", "--results", str(folder), *words]) == 2
        assert f"{' '.join(words)}: must be at " in capsys.readouterr().err


# -- what a review found


def shown(records: Sequence[RunRecord], *arguments: Any, name: str = "study", **options: Any) -> str:
    """Return the output for all curves in one line."""
    curves = scaling(summarise(records), *arguments, **options)
    return " ".join(" ".join(line for curve in curves for line in scaling_lines(curve, name)).split())


def with_settings(record: RunRecord, **values: str) -> RunRecord:
    known = record.settings.values if record.settings else {}
    return dataclasses.replace(record, settings=observe.Settings(values={**known, **values}))


def with_facts(record: RunRecord, facts: dict[str, str]) -> RunRecord:
    assert record.environment is not None
    return dataclasses.replace(record, environment=dataclasses.replace(record.environment, facts=facts))


def test_a_blocked_curve_names_no_ratio_in_any_finding(study: Any) -> None:
    # Superlinear by far, and in another precision: neither the text nor the data may say how far.
    slow, fast = SimTruth(step_time_s=0.010), SimTruth(step_time_s=0.010, sample_time_s=0.0)
    records = study([1], sim=slow, batch=8) + study([2, 4], sim=fast, batch=64, precision="bf16")
    (found,) = scaling(summarise(records))
    assert found.blocked
    assert "SY301" not in {entry.code for entry in found.findings}
    data = json.dumps(scaling_object(found)).replace('"speedup": null', "")
    texts = data + "".join(scaling_lines(found, "study"))
    for word in ("speedup", "as fast", "efficiency 1", "times the devices"):
        assert word not in texts


def test_a_superlinear_curve_is_told_from_its_own_interval(study: Any) -> None:
    feed = SimTruth(step_time_s=0.002, input=InputPipeline(samples_per_s=4000.0))
    fed = SimTruth(step_time_s=0.002)
    records = study([1], sim=feed) + study([2, 4], sim=fed)
    (found,) = scaling(summarise(records))
    (told,) = [entry for entry in found.findings if entry.code == "SY301"][:1]
    assert "rounding" not in told.message + told.evidence


def test_collectives_are_refused(study: Any) -> None:
    facts = observe.ModelFacts(parameters=0, flops_per_sample=None, method="by hand", bus_factor=1.5)
    records = [dataclasses.replace(record, model=facts) for record in study([2, 4])]
    with pytest.raises(InputError, match="a collective has no speed-up"):
        scaling(summarise(records))


def test_one_device_is_the_base_of_every_way_to_divide(study: Any) -> None:
    swept = study([1, 2]) + study([1, 2], parallel="fsdp2", cell="f")
    assert [(curve.label, len(curve.points)) for curve in scaling(summarise(swept))] == [
        ("parallel DDP", 2),
        ("parallel FSDP2", 2),
    ]
    # Only one of them has a run on one device, which divides nothing and so serves both.
    shared = study([1, 2], cell="x") + study([2], parallel="fsdp2", cell="y")
    assert [curve.base.devices for curve in scaling(summarise(shared))] == [1, 1]
    # Sharding that is in effect on one device is another program.
    sharded = [with_settings(record, parallel="fully_shard") for record in study([1], parallel="fsdp2", cell="z")]
    curves = scaling(summarise([*sharded, *study([2], parallel="fsdp2", cell="z"), *study([2], cell="w")]))
    assert [(curve.label, curve.alone) for curve in curves] == [("parallel FSDP2", ("2 devices, parallel DDP",))]


def test_a_count_that_failed_belongs_to_its_curve(study: Any) -> None:
    """Settings that a failed run did not report do not start another curve."""
    small = SimTruth(memory=Memory(limit_bytes=1e9, bytes_per_sample=1e7))
    done = [with_settings(record, optimizer="SGD") for record in study([1, 2], sim=small)]
    other = [
        with_settings(record, optimizer="SGD") for record in study([1, 2, 4], sim=small, precision="bf16", cell="b")
    ]
    failed = study([4], sim=small, batch=32, cell="")
    failed = [dataclasses.replace(record, status=observe.Status(code="out_of_memory", reason="x")) for record in failed]
    curves = scaling(summarise(done + other + failed))
    assert [(curve.label, curve.missing) for curve in curves] == [
        ("precision bf16", ()),
        ("precision fp32", ((4, "1 out_of_memory"),)),
    ]


def test_what_a_failed_run_did_not_look_at_is_no_setting_of_it(study: Any) -> None:
    """The measured runs are on a node where memory cannot be bound to anything; the failed ones have not told."""
    done = [with_facts(record, {"numa.nodes_with_cpus": "1"}) for record in study([1, 2])]
    failed = [with_facts(record, {}) for record in study([1, 2], batch=64, cell="b")]
    failed = [dataclasses.replace(record, status=observe.Status(code="out_of_memory", reason="x")) for record in failed]
    (found,) = scaling(summarise(done + failed), "weak")
    assert found.label == "32 samples per device"


def test_a_setting_without_meaning_has_no_value_in_a_label(study: Any) -> None:
    """Such as the attention kernel of a model that has none."""
    done = study([1, 2]) + [with_settings(record, attention="math") for record in study([1, 2], cell="b")]
    assert sorted(curve.label for curve in scaling(summarise(done))) == ["attention default: math", "no attention"]


def test_a_curve_without_figures_does_not_hide_the_others(study: Any) -> None:
    good = study([1, 2], precision="bf16", cell="b")
    bad = [
        dataclasses.replace(record, status=observe.Status(code="out_of_memory", reason="x")) for record in study([1, 2])
    ]
    (found,) = scaling(summarise(good + bad))
    assert found.label == "precision bf16"
    assert found.alone == ("precision fp32 (1 device: 1 out_of_memory; 2 devices: 1 out_of_memory)",)


def test_records_of_old_versions_and_jobs_without_figures(study: Any) -> None:
    records = study([1, 2, 4], jobs=3, sim=SimTruth(collective=RING))
    kept = ("throughput", "throughput_per_device")
    bare = [
        dataclasses.replace(record, quantities={name: record.quantities[name] for name in kept}) for record in records
    ]
    text = shown(bare)
    assert "These records do not show where the rest is lost." in text
    assert ". ." not in text
    without = [dataclasses.replace(records[0], quantities={}), *records[1:]]
    (found,) = scaling(summarise(without))
    assert found.base.jobs == 2
    assert found.points[-1].speedup.value == pytest.approx(4 * 0.010 / (0.010 + ring_s(4)))


def test_sentences_on_where_to_stop(study: Any) -> None:
    noisy = SimTruth(collective=RING, noise=Noise(kind="normal", cv=0.01, between_jobs_cv=0.02))
    records = study([1, 2, 3, 8], jobs=3, sim=noisy)
    (found,) = scaling(summarise(records))
    last = found.points[-1].split.total
    assert last.low is not None
    assert last.high is not None
    between = (last.low + last.value) / 2
    text = shown(records, threshold=between, name="study:batch=32")
    assert "study:batch=32: weak scaling" in text
    assert "8 devices, the largest count measured (" in text
    assert "The CI of 8 devices includes" in text
    assert "2 to 3 devices: " in text
    assert "3 to 8 devices: " in text
    # A middle count that is worse than its neighbours is reported.
    worse = [
        dataclasses.replace(point, split=dataclasses.replace(point.split, total=Estimate(0.3)))
        for point in found.points
    ]
    dented = dataclasses.replace(found, points=(found.points[0], worse[1], *found.points[2:]), enough=found.points[2])
    assert "But 2 is below 70 %." in " ".join(" ".join(scaling_lines(dented, "study")).split())


def test_what_the_balance_of_a_cross_check_counts_is_said_where_it_applies(study: Any) -> None:
    records = study([1, 2], sim=SimTruth(collective=RING))
    told = "counts as communication"
    assert told not in shown(records)

    def checked(record: RunRecord) -> RunRecord:
        window = {
            name: dataclasses.replace(q, window="crosscheck")
            for name, q in record.quantities.items()
            if "_share" in name
        }
        return dataclasses.replace(record, quantities={**record.quantities, **window})

    assert told in shown([records[0], checked(records[1])])


def test_wide_intervals_are_shown_by_both_ends() -> None:
    assert _half(Estimate(0.28, 0.10, 0.78)) == "28 [10, 78]"
    assert _half(Estimate(0.80, 0.79, 0.81)) == "80.0 ±1.0"
    assert _half(None) == "-"
