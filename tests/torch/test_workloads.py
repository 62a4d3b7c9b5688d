"""Every workload at its reduced size: training and inference, on one and two ranks, with a complete record."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from conftest import HANG_S, make_spec
from steelyard import plugins
from steelyard.cli.main import main
from steelyard.contracts.observe import SPEC_FILE
from steelyard.contracts.record import RunRecord
from steelyard.contracts.spec import Budget
from steelyard.derive.record import derive
from steelyard.inputs.catalogue import load
from steelyard.inputs.validate import parse_json
from steelyard.results.store import record_text

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from steelyard.contracts.spec import RunSpec

CATALOGUE: dict[str, dict[str, Any]] = load()["workloads"]
NAMES = [name for name in plugins.BUILTIN["workload"] if name != "sim"]
# In the gate: one of each kind, and those that take no time. The others are large even at their reduced size.
QUICK = ("tiny", "wideresnet28-10", "wideresnet-olivia", "vit-l-32", "autoencoder", "gpt", "llama", "bert-base")
COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter")
STEPS = 3
SHORT = Budget(min_steps=STEPS, max_steps=STEPS, min_seconds=0)


def modes(name: str) -> list[str]:
    """Those that need no data set."""
    return [mode for mode in CATALOGUE[name]["modes"] if mode != "load"]


def cases() -> list[Any]:
    long = pytest.mark.full("takes long: 2 min of all the models")
    return [
        pytest.param(name, mode, marks=[] if name in QUICK or mode == "ceiling" else [long])
        for name in NAMES
        for mode in modes(name)
    ]


def groups() -> dict[str, list[str]]:
    """Grouped by the libraries that they import, which takes the longest."""
    found: dict[str, list[str]] = {}
    for name in NAMES:
        needs = CATALOGUE[name]["needs"]
        group = "transformers" if "transformers" in needs else "images" if needs else "torch"
        found.setdefault(group, []).append(name)
    return found


def spec_of(name: str, mode: str, **settings: Any) -> RunSpec:
    model = CATALOGUE[name]["reduced"]
    return make_spec(workload=name, mode=mode, model=model, device="cpu", batch=2, threads=1, budget=SHORT, **settings)


def check(record: RunRecord, mode: str, *, devices: int) -> None:
    assert record.status.code == "completed", record.status
    assert (record.ranks_seen, record.steps_seen) == (devices, STEPS)
    assert parse_json(RunRecord, record_text(record), "record") == record
    assert record.model is not None
    if mode == "train":
        assert math.isfinite(float(record.model.last_loss or "nan"))
    if mode in ("train", "infer"):
        assert record.model.parameters > 0
        assert record.model.flops_per_sample, record.model.method


def test_every_workload_of_ours_is_in_the_catalogue() -> None:
    assert set(CATALOGUE) == set(plugins.BUILTIN["workload"])


@pytest.mark.usefixtures("torch_as_it_was")
@pytest.mark.parametrize(("name", "mode"), cases())
def test_alone(name: str, mode: str, simulate: Callable[[RunSpec], RunRecord]) -> None:
    record = simulate(spec_of(name, mode, crosscheck_steps=0))
    if name in COLLECTIVES:
        assert (record.status.code, "--devices 2" in record.status.reason) == ("refused", True)
    else:
        check(record, mode, devices=1)


RANK = """
import os, sys
from pathlib import Path
import torch.distributed as dist
from steelyard.worker.engine.run import run_directory
for raw in map(Path, sys.argv[1:]):
    # A meeting point of its own for each: those of one starter cannot be used twice.
    dist.init_process_group("gloo", store=dist.FileStore(str(raw / "meeting"), 2), rank=int(os.environ["RANK"]),
                            world_size=2)
    if run_directory(raw).code != "completed":
        os._exit(1)
"""


@pytest.mark.full("takes long: 3 min of every workload in every mode")
@pytest.mark.parametrize("group", groups())
def test_in_two_ranks(group: str, tmp_path: Path) -> None:
    """All workloads of a group in all their modes, one after the other, in the same two processes."""
    raws: dict[str, Path] = {}
    for name, mode in [(member, mode) for member in groups()[group] for mode in modes(member)]:
        raw = raws[f"{name} {mode}"] = tmp_path / f"{name}-{mode}"
        raw.mkdir()
        spec = spec_of(name, mode, devices=2, crosscheck_steps=0)
        (raw / SPEC_FILE).write_text(record_text(spec), encoding="utf-8")
    command = [sys.executable, "-P", "-c", RANK, *map(str, raws.values())]
    common = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "WORLD_SIZE": "2"}
    with (tmp_path / "log").open("wb") as log:
        started = [
            subprocess.Popen(command, stdout=log, stderr=log, env={**common, "RANK": rank, "LOCAL_RANK": rank})
            for rank in ("0", "1")
        ]
        try:
            codes = [process.wait(HANG_S) for process in started]
        finally:
            for process in started:
                process.kill()
                process.wait()
    said = (tmp_path / "log").read_text()[-3000:]
    for name, raw in raws.items():
        record = derive(raw)
        assert record.status.code == "completed", (name, record.status, said)
        check(record, record.spec.mode, devices=2)
        if record.spec.mode == "train":
            assert record.settings is not None
            assert record.settings.values["parallel"] == "DistributedDataParallel"
    assert codes == [0, 0], said


@pytest.mark.full("takes long: 40 s of a large detector")
def test_by_the_command_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Through torchrun: a detector, all of whose parameters must get gradients."""
    options = [f"{key}={value}" for key, value in CATALOGUE["deformable-detr-swin-l"]["reduced"].items()]
    words = [word for option in options for word in ("--model", option)]
    short = ["--device", "cpu", "--devices", "2", "--batch", "2", "--min-steps", "3", "--max-steps", "3"]
    place = ["--results", str(tmp_path / "results"), "--min-seconds", "0", "--json"]
    code = main(["run", "deformable-detr-swin-l", *words, *short, *place])
    out = capfd.readouterr()
    assert code == 0, out.out[-3000:] + out.err
    found = json.loads(out.out)["runs"][0]
    assert (found["ranks_seen"], found["steps_seen"]) == (2, 3)
