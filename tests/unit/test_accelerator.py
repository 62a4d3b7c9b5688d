"""The checks of an accelerator by runs of steelyard: each on a record as assumed, and on one that is not."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from conftest import make_spec
from steelyard.contracts.accelerator import AcceleratorReport, AssumptionCheck
from steelyard.contracts.observe import Status
from steelyard.contracts.record import Quantity
from steelyard.contracts.sim import SimTruth, State
from steelyard.contracts.spec import Budget
from steelyard.selftest.accelerator_runs import (
    judge_bound,
    judge_collectives,
    judge_hardware,
    judge_repeats,
    judge_throttling,
)
from steelyard.selftest.fitting import SensorCheck
from steelyard.selftest.hardware import HardwareTest
from steelyard.selftest.shareable import without_names
from steelyard.terminal.accelerator import accelerator_lines

if TYPE_CHECKING:
    from collections.abc import Callable

    from steelyard.contracts.record import RunRecord
    from steelyard.contracts.spec import RunSpec

    Simulate = Callable[[RunSpec], RunRecord]

BUSY, HOST = SimTruth(step_time_s=0.01), SimTruth(step_time_s=0.01, launch_s=0.05)


def simulated(simulate: Simulate, sim: SimTruth = BUSY, **more: Any) -> RunRecord:
    return simulate(make_spec(sim=sim, budget=Budget(min_steps=2000, max_steps=2000), **more))


def holding(record: RunRecord, **values: float | None) -> RunRecord:
    """The record with these quantities."""
    plain: dict[str, Any] = {"unit": "1", "scope": "job", "window": "run", "aggregation": "mean"}
    made = {name: Quantity(value=value, reason=None if value else "x", **plain) for name, value in values.items()}
    return replace(record, quantities=record.quantities | made)


def test_what_a_run_is_bound_by(simulate: Simulate) -> None:
    busy, host = simulated(simulate), simulated(simulate, HOST)
    assert judge_bound(host, busy).outcome == "ok"
    wrong = judge_bound(busy, busy)
    assert wrong.outcome == "not as assumed"
    assert wrong.text == "tiny kernels are called compute-bound instead of host-bound"


@pytest.mark.parametrize(("code", "outcome"), [("failed", "not as assumed"), ("time_limit", "could not check")])
def test_a_run_that_did_not_complete(code: Any, outcome: str, simulate: Simulate) -> None:
    good = simulated(simulate)
    bad = replace(good, status=Status(code=code, reason="no\nluck"))
    found = [judge_bound(good, bad), judge_collectives(bad), judge_throttling(bad), judge_repeats([good, bad], {})]
    assert {check.outcome for check in found} == {outcome}
    assert all(f"ended as {code}: no luck" in check.text for check in found)


def test_repeats_and_the_peak(simulate: Simulate) -> None:
    record = simulated(simulate)
    repeats = [holding(record, throughput=rate) for rate in (100.0, 101.0, 99.0)]
    half = holding(record, model_flops_device=5e14, model_flops_utilisation=0.5)
    good = judge_repeats(repeats, {"bf16": half, "fp32": holding(record, model_flops_utilisation=None)})
    assert good.outcome == "ok"
    assert good.text.startswith("3 equal runs differ by 2.0%; matrix products: bf16 50% of the peak, fp32 0 TFLOP/s")
    assert good.numbers["bf16_share_of_peak"] == 0.5
    spread = judge_repeats([*repeats, holding(record, throughput=120.0)], {})
    assert spread.outcome == "not as assumed"
    beyond = judge_repeats(repeats, {"bf16": holding(record, model_flops_utilisation=1.06)})
    assert beyond.text == "bf16 reaches 106% of the peak in the table of devices"


def test_the_clock_under_load(simulate: Simulate) -> None:
    def judged(*states: State) -> AssumptionCheck:
        return judge_throttling(simulated(simulate, replace(BUSY, states=states)))

    steady = judged(State(clock_mhz=1980.0, power_capped=0.0, thermal=0.0, hardware=0.0))
    assert (steady.outcome, steady.numbers["clock_mhz"]) == ("ok", 1980.0)
    # A power limit is usual for products of large matrices.
    capped = judged(State(clock_mhz=1980.0), State(from_s=2.0, clock_mhz=1400.0, power_capped=1.0))
    assert capped.outcome == "ok"
    assert "a power limit held it back" in capped.text
    hot = judged(State(clock_mhz=1980.0, thermal=0.0), State(from_s=2.0, clock_mhz=1400.0, thermal=1.0))
    assert hot.outcome == "not as assumed"
    assert hot.text.startswith("the temperature held the clock back")
    silent = judged(State(clock_mhz=1980.0), State(from_s=2.0, clock_mhz=1000.0))
    assert silent.text.startswith("the clock fell for a reason that the driver does not tell")
    assert judged(State(temperature_c=60.0)).outcome == "could not check"
    assert judge_throttling(simulated(simulate)).outcome == "could not check"


def test_collectives_and_sensors(simulate: Simulate) -> None:
    found = judge_collectives(holding(simulated(simulate, devices=4), bus_bandwidth=3e11))
    assert (found.outcome, found.numbers["devices"]) == ("ok", 4)
    assert "300 GB/s" in found.text
    holds, fails = SensorCheck("limit", "gpu0", "holds", "x"), SensorCheck("limit", "gpu0", "fails", "900 W of 700 W")
    assert judge_hardware(HardwareTest("holds", (), (holds,))).outcome == "ok"
    wrong = judge_hardware(HardwareTest("fails", (), (holds, fails)))
    assert (wrong.outcome, wrong.text) == ("not as assumed", "limit gpu0: 900 W of 700 W")
    assert judge_hardware(HardwareTest("nothing to test here", ("no sensor",))).outcome == "could not check"


def report(*outcomes: Any) -> AcceleratorReport:
    checks = [AssumptionCheck(name=f"c{n}", outcome=outcome, text="found") for n, outcome in enumerate(outcomes)]
    return AcceleratorReport(
        version="1", date="2026-11-20", device="NVIDIA GH200 480GB", devices=1, memory_bytes=1e11, facts={},
        seconds=200.0, checks=tuple(checks),
    )  # fmt: skip


def test_the_answer_comes_first() -> None:
    good = next(accelerator_lines(report("ok", "ok")))
    assert good == "NVIDIA GH200 480GB: as steelyard assumes in 2 of 2 checks"
    lines = list(accelerator_lines(report("ok", "not as assumed", "could not check")))
    answer = " ".join(" ".join(lines[:2]).split())
    assert answer == "NVIDIA GH200 480GB: not as steelyard assumes in 1 of 3 checks: c1; 1 could not be checked"
    assert lines[-1] == "could not check c2: found"


@pytest.mark.parametrize(
    "secret",
    [
        "GPU-5ec2e7aa-0000-1111-2222-333344445555", "0000:c1:00.0", "10.21.3.4:29500", "/scratch/project_1/me/x.py",
        "1322621045378", "node17.example.org",
    ],
)  # fmt: skip
def test_nothing_of_the_place_is_shared(secret: str) -> None:
    told = {"text": [f"error at {secret}: 81559 MiB of 300 GB/s, MI250X / MI250"]}
    cleaned = without_names(told, {"node17.example.org": "(host)"}, private=True)["text"][0]
    assert secret not in cleaned
    assert cleaned.endswith("81559 MiB of 300 GB/s, MI250X / MI250")
