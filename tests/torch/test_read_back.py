"""What is read back from the torch of a wrapped program."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from steelyard.worker.wrap.program import INJECT

if TYPE_CHECKING:
    from pathlib import Path

READ = """
import json, sys
from types import SimpleNamespace
from steelyard_observer.readback import read_settings
from steelyard_observer.training import SeenTraining, StopLimits
training = SeenTraining(".", 0.0, StopLimits())
parameter = SimpleNamespace(device=torch.device(sys.argv[1]), dtype=torch.float32, numel=lambda: 1)
training.optimizers[0] = SimpleNamespace(param_groups=[{"params": [parameter]}])
print(json.dumps(read_settings(training)))
"""
"""Prints what is read back from an optimizer on a device that is not here."""


@pytest.mark.parametrize(
    ("statement", "device", "read"),
    [
        ("pass", "cuda", ("fp32", "tf32")),
        ("torch.set_float32_matmul_precision('high')", "cuda", ("tf32", "tf32")),
        ("torch.backends.cudnn.allow_tf32 = False", "cuda", ("fp32", "fp32")),
        # Since torch 2.9. The older switches cannot be read after these.
        ("torch.backends.fp32_precision = 'tf32'", "cuda", ("tf32", "tf32")),
        ("torch.backends.cuda.matmul.fp32_precision = 'tf32'", "cuda", ("tf32", "tf32")),
        ("torch.backends.cudnn.conv.fp32_precision = 'ieee'", "cuda", ("fp32", "fp32")),
        ("torch.backends.fp32_precision = 'tf32'", "cpu", (None, None)),
    ],
)
def test_arithmetic_of_fp32(tmp_path: Path, statement: str, device: str, read: tuple[str | None, str | None]) -> None:
    variables = {**os.environ, "PYTHONPATH": str(INJECT)}
    done = subprocess.run(
        [sys.executable, "-c", f"import torch\n{statement}\n{READ}", device],
        cwd=tmp_path, env=variables, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["precision"], told.get("float32_products"), told.get("float32_convolutions")) == ("fp32", *read)


def test_a_setting_that_cannot_be_read_costs_only_itself(tmp_path: Path) -> None:
    variables = {**os.environ, "PYTHONPATH": str(INJECT)}
    broken = "def none(): raise RuntimeError\nimport torch.backends.cuda as cuda\ncuda.flash_sdp_enabled = none"
    done = subprocess.run(
        [sys.executable, "-c", f"import torch\n{broken}\n{READ}", "cpu"],
        cwd=tmp_path, env=variables, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["precision"], told["compile"], told.get("attention")) == ("fp32", "off", None)


COUNT = """
import json
from collections import deque
import torch
from torch.utils import data
from steelyard_observer import hooks
from steelyard_observer.work import work_of
class Told:
    fetch_begins = staticmethod(lambda loader: None)
    fetched = staticmethod(lambda loader, begin, batch: counts.append(work_of(loader, batch).samples))
hooks._loader(data.dataloader, Told)
class Numbers(data.Dataset):
    def __len__(self): return 10
    def __getitem__(self, at): return torch.zeros(3, at + 1)
class Stream(data.IterableDataset):
    def __iter__(self): return iter([torch.zeros(3)] * 10)
found = {}
for name, dataset, options in (
    ("images", Numbers(), {"collate_fn": list}),
    ("workers", Numbers(), {"collate_fn": list, "num_workers": 2}),
    ("boxes", Numbers(), {"collate_fn": lambda one: torch.zeros(7 * len(one), 6)}),
    ("pairs", Numbers(), {"collate_fn": lambda one: {"input_ids": torch.zeros(2 * len(one), 5)}}),
    ("stream", Stream(), {}),
    ("ragged stream", Stream(), {"collate_fn": lambda one: [torch.zeros(4), torch.zeros(7)]}),
):
    counts = []
    loader = data.DataLoader(dataset, batch_size=4, **options)
    for epoch in range(2):
        for _ in loader:
            pass
    found[name] = counts
print(json.dumps(found))
"""


def test_samples_are_what_a_loader_asks_for(tmp_path: Path) -> None:
    """Not the first dimension of some tensor, which may be that of channels, boxes or pairs."""
    done = subprocess.run(
        [sys.executable, "-c", COUNT], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(INJECT)}, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    right = [4, 4, 2] * 2
    assert json.loads(done.stdout) == {
        **dict.fromkeys(("images", "workers", "boxes", "pairs", "stream"), right), "ragged stream": [None] * 6
    }  # fmt: skip


def test_a_scaler_that_is_switched_off_hides_no_step(tmp_path: Path) -> None:
    """As programs have it that can also train in fp16."""
    program = tmp_path / "train.py"
    program.write_text(
        "import torch\nmodel = torch.nn.Linear(4, 1)\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "scaler = torch.amp.GradScaler('cpu', enabled=False)\n"
        "for _ in range(7):\n    scaler.scale(model(torch.ones(8, 4)).sum()).backward()\n    scaler.step(optimizer)\n"
        "    scaler.update()\n    optimizer.zero_grad()\n"
    )
    raw = tmp_path / "raw"
    raw.mkdir()
    variables = {**os.environ, "PYTHONPATH": str(INJECT), "STEELYARD_WRAP": str(raw)}
    done = subprocess.run([sys.executable, str(program)], env=variables, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    events = [json.loads(line) for line in (raw / "events-00000.jsonl").read_text().splitlines()]
    told = [event for event in events if event["kind"] == "wrapped"][-1]
    assert (told["steps"], told["updates"], told["skipped_updates"], told["step_reason"]) == (7, 7, 0, "")
