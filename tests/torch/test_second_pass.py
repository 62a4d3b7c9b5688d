"""The second pass of a wrapped program: operations and communication are counted, and nothing else changes."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from conftest import HANG_S
from steelyard.results.store import ResultFolder

if TYPE_CHECKING:
    from pathlib import Path

    from steelyard.contracts.record import RunRecord

# The product itself gives a second pass no more than two minutes, and each test starts PyTorch twice or more.
pytestmark = pytest.mark.full(
    "takes long: programs that run twice; a busy machine may not finish the second pass in time"
)

PROGRAM = """
import os, pathlib, sys
import torch
import torch.utils.checkpoint
import torch.distributed as dist

devices = int(os.environ.get("WORLD_SIZE", "1"))
mark = pathlib.Path("launched")
if "fail" in sys.argv and mark.exists():
    sys.exit("this program runs only once")
mark.touch()
if devices > 1:
    dist.init_process_group("gloo")
first, last = torch.nn.Linear(32, 64), torch.nn.Linear(64, 8)
model = torch.nn.Sequential(first, torch.nn.ReLU(), last)
if devices > 1:
    model = torch.nn.parallel.DistributedDataParallel(model)
if "compile" in sys.argv:
    model = torch.compile(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(20):
    for part in range(2):
        batch = torch.ones(4, 32)
        if "checkpoint" in sys.argv:
            batch.requires_grad_()
            loss = torch.utils.checkpoint.checkpoint(model, batch, use_reentrant=False).sum()
        else:
            loss = model(batch).sum()
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
if devices > 1:
    dist.destroy_process_group()
"""
# Two micro-batches of 4 samples. The first layer needs no gradient of its input, so its backward pass is one product.
OF_ONE_RANK = 2 * 2 * 4 * (2 * 32 * 64 + 3 * 64 * 8)


def measure(folder: Path, *words: str, ranks: int = 1) -> tuple[RunRecord, str]:
    """Wrap the program with a second pass; return its record and what was printed."""
    (folder / "train.py").write_text(PROGRAM, encoding="utf-8")
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks > 1 else []
    done = subprocess.run(
        [
            sys.executable, "-m", "steelyard.cli.main", "wrap", "--second-pass", "--results", "results", "--",
            sys.executable, *launcher, "train.py", *words,
        ],
        cwd=folder, capture_output=True, text=True, check=False, timeout=HANG_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (record,) = ResultFolder(folder / "results").records()
    return record, done.stderr


def test_operations_of_all_ranks_are_counted_exactly(tmp_path: Path) -> None:
    """And the share of communication is known."""
    record, said = measure(tmp_path, ranks=2)
    seen = record.wrapped
    assert seen is not None
    assert (seen.level, seen.second_reason) == (3, "")
    assert seen.flops_per_step == 2 * OF_ONE_RANK
    assert seen.steps == 20
    parts = [record.quantities[f"{name}_share"].value for name in ("exposed_comm", "compute", "input_wait")]
    assert all(part is not None for part in parts)
    assert parts[0]
    assert sum(part or 0 for part in parts) == pytest.approx(1)
    rate, step = (record.quantities[name].value for name in ("model_flops_device", "step_time_mean"))
    assert rate is not None
    assert step is not None
    assert rate == pytest.approx(OF_ONE_RANK / step)
    assert "measured in the second pass" in said
    # The files of the run are those of the first launch.
    events = (tmp_path / "results").glob("runs/*/*/raw/events-*.jsonl")
    assert [path.read_text(encoding="utf-8").count('"kind": "second"') for path in events] == [1, 1]


def test_a_compiled_model_is_counted_too(tmp_path: Path) -> None:
    """Compiled code hides its operators; the second pass runs without it."""
    record, _ = measure(tmp_path, "compile")
    assert record.wrapped is not None
    assert record.wrapped.flops_per_step == OF_ONE_RANK
    assert record.spec.compile == "default"


@pytest.mark.parametrize(
    ("word", "reason"),
    [("checkpoint", "activations are computed again"), ("fail", "exit code 1: this program runs only once")],
)
def test_what_cannot_be_counted_is_told(tmp_path: Path, word: str, reason: str) -> None:
    """The measurement stands."""
    record, said = measure(tmp_path, word)
    assert record.status.code == "completed"
    assert record.wrapped is not None
    assert reason in record.wrapped.second_reason
    assert record.wrapped.flops_per_step is None
    assert "operations (" in said
