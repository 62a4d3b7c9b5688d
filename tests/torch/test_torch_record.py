"""The record of a PyTorch run: its settings, device, model and memory, and what is derived from them."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from conftest import make_spec
from steelyard.contracts import observe, sample_files
from steelyard.contracts.base import to_json_object
from steelyard.contracts.observe import CrossCheck, DeviceFacts, Environment, MemoryPeak, ModelFacts, Settings
from steelyard.contracts.spec import Budget, Loader, Source
from steelyard.derive.record import derive
from steelyard.results.store import record_text

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from steelyard.contracts.finding import Finding
    from steelyard.contracts.record import RunRecord
    from steelyard.contracts.spec import RunSpec

SHORT = Budget(min_steps=20, max_steps=20, min_seconds=0)
STEPS, STEP_S, BATCH = 1000, 0.01, 32
IN_EFFECT = {
    "device": "cuda:0",
    "devices": "1",
    "matmul_dtype": "float32",
    "float32_matmul_precision": "highest",
    "float32_products": "fp32",
    "deterministic": "false",
}
MODEL = ModelFacts(parameters=10, flops_per_sample=1e9, method="by hand", last_loss="0.5")
DEVICE = DeviceFacts(name="Scripted 9000", peak_flops={"fp32": 20e12, "tf32": 40e12, "bf16": 80e12, "fp16": 60e12})


def spec_of(**settings: Any) -> RunSpec:
    return make_spec(**{"workload": "tiny", "batch": BATCH, **settings})


def place(**facts: str) -> Environment:
    return Environment(node="n", allocation=None, device="auto", timing="t", facts=facts)


def written(raw: Path, spec: RunSpec, *said: Any, samples: float = BATCH, parts: bool = True) -> RunRecord:
    """Return the record of a run with these events and equal steps of 10 ms on every rank."""
    kinds = {
        Settings: "settings",
        DeviceFacts: "device",
        ModelFacts: "model",
        Environment: "environment",
        CrossCheck: "crosscheck",
        MemoryPeak: "memory",
    }
    (raw / observe.SPEC_FILE).write_text(record_text(spec), encoding="utf-8")
    start_s = STEP_S * np.arange(STEPS)
    full, none = np.full(STEPS, STEP_S), np.zeros(STEPS)
    comm = none if parts else np.full(STEPS, np.nan)
    table = np.stack([start_s, full, none, full + comm, comm, np.full(STEPS, samples)])
    for rank in range(spec.devices):
        words = [{"kind": kinds[type(word)], **to_json_object(word)} for word in said if rank == 0]
        words.append({"kind": "status", "code": "completed"})
        lines = "".join(json.dumps(word) + "\n" for word in words)
        (raw / f"events-{rank:05d}.jsonl").write_text(lines, encoding="utf-8")
        with (raw / f"steps-{rank:05d}.bin").open("wb") as file:
            file.write(sample_files.FILE_MAGIC)
            sample_files.write_chunk(file, rank, 0, table)
    record = derive(raw)
    assert record.status.code == "completed", record.status
    return record


def effect(**values: str) -> Settings:
    return Settings(values={**IN_EFFECT, **values})


def finding(record: RunRecord, code: str) -> Finding | None:
    return next((found for found in record.findings if found.code == code), None)


# -- a real run


@pytest.mark.usefixtures("torch_as_it_was")
def test_a_run_on_the_cpu(simulate: Callable[[RunSpec], RunRecord]) -> None:
    record = simulate(spec_of(device="cpu", budget=SHORT, accumulation=2, crosscheck_steps=4))
    assert record.status.code == "completed", record.status
    assert record.settings is not None
    wanted = {
        "device": "cpu",
        "devices": "1",
        "optimizer": "SGD",
        "parallel": "none",
        "data": "synthetic, on the device",
    }
    assert record.settings.values.items() >= wanted.items()
    assert record.device == DeviceFacts(name="cpu")
    assert record.model is not None
    assert (record.model.parameters, record.model.flops_per_sample) == (8970, 44_800)
    # Ten classes, near chance; not halved by gradient accumulation.
    assert 1 < float(record.model.last_loss or "nan") < 4
    assert record.memory is not None
    assert record.quantities["memory_peak"].value == record.memory.peak_bytes
    assert "VmHWM" in record.memory.method
    assert record.environment is not None
    assert record.environment.facts["torch.version"]
    assert record.environment.facts["device.name"] == "cpu"
    rate, flops = record.quantities["throughput_per_device"].value, record.quantities["model_flops_device"]
    assert rate is not None
    assert flops.value == pytest.approx(44_800 * rate)
    share = record.quantities["model_flops_utilisation"]
    assert (share.value, share.reason) == (None, "the fp32 peak of cpu is not known")
    assert [phase.name for phase in record.phases[:4]] == ["setup", "compile", "steps", "crosscheck"]


DIVERGING = """
import torch
from torch import nn

def build():
    module = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(module.parameters(), lr=1e30)
    return module, nn.functional.mse_loss, optimizer, lambda n, g: (torch.randn(n, 4, generator=g), torch.ones(n, 1))
"""


@pytest.mark.usefixtures("torch_as_it_was")
def test_a_training_that_has_run_away(simulate: Callable[[RunSpec], RunRecord], tmp_path: Path) -> None:
    path = tmp_path / "diverging.py"
    path.write_text(DIVERGING)
    source = Source(path=str(path), function="build", sha256=hashlib.sha256(path.read_bytes()).hexdigest())
    record = simulate(spec_of(device="cpu", workload="d.build", source=source, budget=SHORT, crosscheck_steps=0))
    assert record.model is not None, record.status
    assert record.model.last_loss == "nan"
    found = finding(record, "SY701")
    assert found is not None
    assert "the last loss is nan" in found.message


# -- derived quantities


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ({}, "fp32"),
        ({"float32_products": "tf32"}, "tf32"),
        ({"matmul_dtype": "bfloat16"}, "bf16"),
        ({"matmul_dtype": "float16"}, "fp16"),
        ({"matmul_dtype": "bfloat16", "float32_products": "tf32"}, "bf16"),
    ],
)
@pytest.mark.parametrize("ranks", [1, 2])
def test_utilisation_from_first_principles(tmp_path: Path, values: dict[str, str], kind: str, ranks: int) -> None:
    """FLOPs per sample times samples per second of one device, divided by the peak of the computed format."""
    record = written(tmp_path, spec_of(devices=ranks), effect(**values), DEVICE, MODEL)
    assert DEVICE.peak_flops is not None
    flops = 1e9 * BATCH / STEP_S
    assert record.quantities["model_flops_device"].value == pytest.approx(flops)
    share = record.quantities["model_flops_utilisation"]
    assert share.value == pytest.approx(flops / DEVICE.peak_flops[kind])
    assert (share.unit, share.scope, share.window) == ("1", "device", "steady")
    rate = record.quantities["throughput"].value
    assert rate == pytest.approx(ranks * BATCH / STEP_S)


def test_padding_is_no_work(tmp_path: Path) -> None:
    record = written(tmp_path, spec_of(), effect(), DEVICE, MODEL, samples=BATCH / 2)
    assert record.quantities["model_flops_utilisation"].value == pytest.approx(1e9 * BATCH / 2 / STEP_S / 20e12)


@pytest.mark.parametrize(
    ("said", "reason", "flops_known"),
    [
        ((effect(), DeviceFacts(name="odd"), MODEL), "the fp32 peak of odd is not known", True),
        ((effect(matmul_dtype="float64"), DEVICE, MODEL), "the fp64 peak of Scripted 9000 is not known", True),
        ((DEVICE, MODEL), "the unknown peak of Scripted 9000 is not known", True),
        ((effect(), MODEL), "the fp32 peak of this device is not known", True),
        (
            (effect(), DEVICE, dataclasses.replace(MODEL, flops_per_sample=None, method="unknown: no")),
            "FLOPs unknown: unknown: no",
            False,
        ),
    ],
)
def test_utilisation_is_unknown_with_a_reason(
    tmp_path: Path, said: tuple[Any, ...], reason: str, flops_known: bool
) -> None:
    record = written(tmp_path, spec_of(), *said)
    share = record.quantities["model_flops_utilisation"]
    assert (share.value, share.reason) == (None, reason)
    assert (record.quantities["model_flops_device"].value is not None) == flops_known


def test_without_a_model_nothing_is_said_of_its_work(tmp_path: Path) -> None:
    assert "model_flops_utilisation" not in written(tmp_path, spec_of(), effect(), DEVICE).quantities


def test_parts_that_only_the_second_pass_tells(tmp_path: Path) -> None:
    check = CrossCheck(
        steps=9, mean_step_s=0.01, sem_step_s=0, input_wait_s=0.001, compute_s=0.006, exposed_comm_s=0.003
    )
    spec = spec_of(devices=2)
    record = written(tmp_path, spec, effect(devices="2"), check, parts=False)
    for name, share, window in (
        ("input_wait", 0.0, "steady"),
        ("compute", 0.7, "crosscheck"),
        ("exposed_comm", 0.3, "crosscheck"),
    ):
        quantity = record.quantities[f"{name}_share"]
        assert (quantity.value, quantity.window) == (pytest.approx(share), window)
    # What the measured steps contain is kept.
    assert written(tmp_path, spec, effect(devices="2"), check).quantities["exposed_comm_share"].window == "steady"
    unknown = dataclasses.replace(check, exposed_comm_s=None)
    assert (
        written(tmp_path, spec, effect(devices="2"), unknown, parts=False).quantities["exposed_comm_share"].value
        is None
    )


def test_the_memory_of_a_job_is_that_of_its_largest_rank(tmp_path: Path) -> None:
    said = (MemoryPeak(peak_bytes=None), MemoryPeak(peak_bytes=5.0, method="m"), MemoryPeak(peak_bytes=4.0))
    record = written(tmp_path, spec_of(), *said)
    assert record.memory == said[1]
    assert record.quantities["memory_peak"].value == 5


# -- findings


@pytest.mark.parametrize(
    ("settings", "values", "message"),
    [
        ({}, {}, None),
        ({"precision": "bf16"}, {}, "matmul_dtype is float32, not bfloat16"),
        ({"precision": "bf16"}, {"matmul_dtype": "bfloat16"}, None),
        (
            {"precision": "bf16", "mode": "infer"},
            {"matmul_dtype": "bfloat16", "parameter_dtype": "float32", "autocast": "true"},
            "autocast is true, not false; parameter_dtype is float32, not bfloat16",
        ),
        (
            {"precision": "bf16", "mode": "infer", "autocast": True},
            {"matmul_dtype": "bfloat16", "parameter_dtype": "float32", "autocast": "true"},
            None,
        ),
        ({"precision": "tf32"}, {}, "float32_products is fp32, not tf32"),
        ({}, {"float32_products": "tf32"}, "float32_products is tf32, not fp32"),
        ({"deterministic": True}, {}, "deterministic is false, not true"),
        ({"threads": 4}, {"threads": "2"}, "threads is 2, not 4"),
        ({}, {"threads": "2"}, None),
        ({"compile": "default"}, {"compiled_graphs": "0"}, "nothing was compiled"),
        ({"compile": "default"}, {}, "nothing was compiled"),
        ({"compile": "default"}, {"compiled_graphs": "3"}, None),
        ({"channels_last": True}, {"channels_last": "false"}, "channels_last is false, not true"),
        ({"channels_last": True}, {}, "channels_last has no effect, because no parameter has a channel dimension"),
        ({"channels_last": True}, {"channels_last": "true"}, None),
        ({}, {"devices": "4"}, "devices is 4, not 1"),
        (
            {"loader": Loader(place="host", pin_memory=True)},
            {"loader.workers": "0", "loader.pin_memory": "false"},
            "loader.pin_memory is false, not true",
        ),
        ({"precision": "fp16", "threads": 4}, {"threads": "2"}, "not float16; threads is 2, not 4"),
    ],
)
def test_sy101_asked_for_and_not_in_effect(
    tmp_path: Path, settings: dict[str, Any], values: dict[str, str], message: str | None
) -> None:
    found = finding(written(tmp_path, spec_of(**settings), effect(**values)), "SY101")
    if message is None:
        assert found is None
    else:
        assert found is not None
        assert message in found.message


def test_without_settings_nothing_is_said_of_them(tmp_path: Path) -> None:
    assert finding(written(tmp_path, spec_of(precision="bf16")), "SY101") is None


@pytest.mark.parametrize(
    ("settings", "facts", "fix"),
    [
        ({"devices": 2, "loader": Loader(place="host", workers=3)}, {"cpu.usable": "8"}, None),
        ({"devices": 2, "loader": Loader(place="host", workers=4)}, {"cpu.usable": "8"}, "at most 3 loader workers"),
        (
            {"devices": 2, "loader": Loader(place="host", workers=3)},
            {"cpu.usable": "8", "cgroup.cpu_quota": "4.5"},
            "at most 1 loader worker",
        ),
        ({"loader": Loader(place="host", workers=1)}, {"cpu.usable": "1"}, "at most 0 loader workers"),
        ({"loader": Loader(place="host", workers=1)}, {"cpu.usable": "2", "cgroup.cpu_quota": "none"}, None),
        ({"loader": Loader(place="host", workers=9)}, {}, None),
        # A rank may see only the CPUs that are its own; the load is that of the node.
        ({"devices": 9, "loader": Loader(place="host")}, {"cpu.usable": "1"}, None),
        # Each rank is bound to the CPUs of its NUMA node and sees only these.
        (
            {"devices": 2, "numa": True, "loader": Loader(place="host", workers=3)},
            {"cpu.usable": "4", "numa.nodes_with_cpus": "2"},
            None,
        ),
        (
            {"devices": 2, "numa": True, "loader": Loader(place="host", workers=4)},
            {"cpu.usable": "4", "numa.nodes_with_cpus": "2"},
            "at most 3 loader workers",
        ),
    ],
)
def test_sy602_more_processes_than_cpus(
    tmp_path: Path, settings: dict[str, Any], facts: dict[str, str], fix: str | None
) -> None:
    found = finding(written(tmp_path, spec_of(**settings), place(**facts)), "SY602")
    if fix is None:
        assert found is None
    else:
        assert found is not None
        assert fix in found.fix


@pytest.mark.parametrize(
    ("device", "in_effect", "files", "said"),
    [
        ("auto", "cpu", "NVIDIA: 4", True),
        ("auto", "cpu", "none", False),
        ("auto", "cpu", None, False),
        ("auto", "cuda:0", "NVIDIA: 4", False),
        ("cpu", "cpu", "NVIDIA: 4", False),
    ],
)
def test_sy603_the_accelerators_were_not_used(
    tmp_path: Path, device: str, in_effect: str, files: str | None, said: bool
) -> None:
    there = place(**({} if files is None else {"accelerator.files": files}))
    found = finding(written(tmp_path, spec_of(device=device), effect(device=in_effect), there), "SY603")
    assert (found is not None) == said
    if found is not None:
        assert "NVIDIA: 4" in found.message
        assert found.command.startswith("steelyard doctor")


@pytest.mark.parametrize(
    ("loss", "said"), [("nan", True), ("inf", True), ("-inf", True), ("1e+30", False), (None, False)]
)
def test_sy701_a_loss_that_is_no_number(tmp_path: Path, loss: str | None, said: bool) -> None:
    record = written(tmp_path, spec_of(), dataclasses.replace(MODEL, last_loss=loss))
    assert (finding(record, "SY701") is not None) == said
