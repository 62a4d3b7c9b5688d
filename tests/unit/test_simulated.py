"""The simulated device runs any workload, and every output says that it is simulated."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest

from conftest import make_spec
from steelyard.analysis.compare import compare
from steelyard.analysis.rows import row_of
from steelyard.analysis.summary import summarise
from steelyard.contracts.sim import Collective, Link, Memory, Power, Sensor, SimTruth
from steelyard.contracts.spec import Budget, Data, Loader, Source
from steelyard.inputs.command import run_again
from steelyard.report.suite.figures import OurRun, our_figure
from steelyard.terminal.compare import lines
from steelyard.terminal.tables import cells_lines
from steelyard.terminal.text import SIMULATED

if TYPE_CHECKING:
    from collections.abc import Callable

    from steelyard.contracts.record import RunRecord
    from steelyard.contracts.spec import RunSpec

    Simulate = Callable[[RunSpec], RunRecord]

TRUTH = SimTruth(
    step_time_s=0.01, sample_time_s=0.001, compile_s=3.0, collective=Collective(message_bytes=10**9, links=(Link(),)),
    memory=Memory(fixed_bytes=1e9, bytes_per_sample=1e6), power=Power(idle_w=100, compute_w=300),
    sensors=(Sensor(period_s=0.005),),
)  # fmt: skip


def model(**settings: Any) -> RunSpec:
    return make_spec(workload="resnet50", device="sim", sim=TRUTH, **settings)


@pytest.mark.parametrize("last_batch", ["drop", "pad", "keep"])
@pytest.mark.parametrize("mode", ["train", "infer"])
def test_a_model_is_run_by_script(mode: str, last_batch: str, simulate: Simulate) -> None:
    spec = model(
        mode=mode,
        devices=4,
        batch=8,
        precision="bf16",
        epoch_samples=330,
        last_batch=last_batch,
        budget=Budget(epochs=2),
    )
    record = simulate(spec)
    assert record.status.code == "completed", record.status
    assert (record.spec.workload, record.spec.device_family) == ("resnet50", "sim")
    value = {name: quantity.value for name, quantity in record.quantities.items()}
    step_s = 0.01 + 8 * 0.001
    # A ring of four ranks sends 1.5 times the message of 1 GB over links of 100 GB/s.
    exchange_s = 1.5 * 0.01 if mode == "train" else 0.0
    # The rest of 10 samples: 3, 3, 2 and 2. In training all wait for the largest; else the mean of the ranks counts.
    kept_s = 0.01 + (3 if mode == "train" else 2.5) * 0.001 + exchange_s
    rest_s = {"drop": 0.0, "pad": step_s + exchange_s, "keep": kept_s}[last_batch]
    assert value["first_epoch_time"] == pytest.approx(10 * (step_s + exchange_s) + rest_s, rel=1e-9)
    assert value["compile_time"] == pytest.approx(3.0)
    assert value["memory_peak"] == pytest.approx(1e9 + 8e6)
    assert value["energy_per_sample"] is not None
    row = row_of(summarise([record])[0])
    assert (row.get("model"), row.get("accelerator"), row.get("precision")) == ("resnet50", "simulated", "bf16")
    assert str(row.get("system")).startswith("simulated ")
    assert "--device sim" in run_again(record.spec)


@pytest.mark.parametrize("devices", [1, 3])
def test_the_stages_of_a_pipeline_count_their_samples_once(devices: int, simulate: Simulate) -> None:
    """Three stages work on 4 micro-batches of 8 in 6 thirds of the time of one, and send no gradients."""
    budget = Budget(epochs=2, max_steps=100)
    record = simulate(
        model(
            devices=devices,
            parallel="pipeline",
            batch=8,
            accumulation=4,
            precision="bf16",
            epoch_samples=70,
            last_batch="pad",
            budget=budget,
        )
    )
    value = {name: quantity.value for name, quantity in record.quantities.items()}
    step_s = 4 * 0.018 if devices == 1 else 6 * 0.018 / 3
    assert record.steps_seen == 2 * 3
    assert value["first_epoch_time"] == pytest.approx(3 * step_s, rel=1e-9)
    assert value["throughput"] == pytest.approx(2 * 70 / (6 * step_s), rel=1e-9)
    row = row_of(summarise([record])[0])
    assert (row.get("global_batch"), row.get("parallel")) == (32, "pipeline" if devices > 1 else None)


def test_independent_ranks_do_not_wait_for_each_other(simulate: Simulate) -> None:
    truth = dataclasses.replace(TRUTH, slow_rank=1, slow_factor=2.0)
    spec = dataclasses.replace(model(devices=2, batch=8, budget=Budget(max_steps=100)), sim=truth)
    rates = {}
    for parallel in ("ddp", "independent"):
        record = simulate(dataclasses.replace(spec, parallel=parallel))
        rates[parallel] = record.quantities["throughput"].value
        row = row_of(summarise([record])[0])
        assert row.get("parallel") == {"ddp": "DDP", "independent": "independent"}[parallel]
        assert "--parallel independent" in run_again(record.spec) or parallel == "ddp"
    # A step takes 18 ms on one rank and 36 ms on the other, and the all-reduce of two ranks 10 ms.
    assert rates["independent"] == pytest.approx(8 / 0.018 + 8 / 0.036)
    assert rates["ddp"] == pytest.approx(2 * 8 / 0.046)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"workload": "sim", "device": "cpu"}, "cpu does not run the workload sim; valid: sim or auto"),
        ({"workload": "gpt", "device": "sim", "mode": "generate"}, "mode: the simulated device does not run"),
        ({"workload": "matmul", "device": "sim", "mode": "ceiling"}, "mode: the simulated device does not run"),
        ({"mode": "load", "loader": Loader(place="host")}, "mode: the simulated device does not run"),
        ({"workload": "gpt", "device": "sim", "data": Data(format="tokens", path="/x")}, "reads no data"),
    ],
)
def test_what_the_simulated_device_does_not_run(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        make_spec(**settings)


def test_a_scripted_loader_needs_no_cpus(simulate: Simulate) -> None:
    record = simulate(model(loader=Loader(place="host", workers=1000), budget=Budget(max_steps=10)))
    assert record.environment is not None
    assert "SY602" not in {found.code for found in record.findings}


def test_a_file_of_the_user_is_not_executed(simulate: Simulate) -> None:
    source = Source(path="/nowhere/my.py", function="build", sha256="0" * 64)
    record = simulate(dataclasses.replace(model(), workload="my.build", source=source, budget=Budget(max_steps=10)))
    assert record.status.code == "completed", record.status


def test_tables_and_comparisons_tell_that_it_is_simulated(simulate: Simulate) -> None:
    record = simulate(model(budget=Budget(max_steps=100)))
    assert SIMULATED in cells_lines(summarise([record]))
    own = simulate(make_spec(budget=Budget(max_steps=100)))
    assert SIMULATED not in cells_lines(summarise([own]))
    row = row_of(summarise([record])[0])
    assert SIMULATED in lines(compare([row], [dataclasses.replace(row, place="b")]), "a", "b")


def test_a_measured_and_a_simulated_run_are_not_comparable(simulate: Simulate) -> None:
    record = simulate(model(budget=Budget(max_steps=100)))
    measured = dataclasses.replace(record, spec=dataclasses.replace(record.spec, device="cuda"))
    a, b = (row_of(summarise([entry])[0]) for entry in (measured, record))
    found = compare([a], [dataclasses.replace(b, place="b")]).comparisons[0]
    assert found.verdict == "not comparable"
    assert "one side was simulated" in {entry.code: entry.message for entry in found.findings}["SY608"]


def test_a_first_epoch_that_a_run_did_not_finish_is_calculated(simulate: Simulate) -> None:
    record = simulate(model(batch=10, epoch_samples=10**6, budget=Budget(min_steps=30, max_steps=30)))
    run = OurRun(row_of(summarise([record])[0]), record.spec, 2)
    found = our_figure(run, "first_epoch_throughput_with_compile")
    assert found is not None
    # 100,000 steps of 20 ms after 3 s of compilation.
    assert found.value == pytest.approx(10**6 / (3 + 2000), rel=1e-6)
