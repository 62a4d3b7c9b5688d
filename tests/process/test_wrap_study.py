"""A study of a person's own program, and what is read from its results."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from steelyard.cli.main import main
from steelyard.results.store import ResultFolder

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

# Two epochs of data without a length.
TRAIN = """
import sys
import torch
from torch.utils.data import DataLoader, IterableDataset

class Numbers(IterableDataset):
    def __iter__(self):
        return (torch.randn(4) for _ in range(80))

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=float(sys.argv[2]))
for epoch in range(2):
    for x in DataLoader(Numbers(), batch_size=int(sys.argv[1])):
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""
STUDY = """
name = "mine"
repeats = 1
[run.program]
command = "python {file} {{batch}} {{lr}}"
[sweep]
batch = [4, 8]
lr = [0.01]
"""


def test_reports_of_a_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STEELYARD_RESULTS", str(tmp_path / "results"))
    private = tmp_path / "private"
    private.mkdir()
    (private / "train.py").write_text(TRAIN, encoding="utf-8")
    (tmp_path / "mine.toml").write_text(STUDY.format(file=private / "train.py"), encoding="utf-8")
    assert main(["study", "mine.toml", "--dry-run"]) == 0
    assert "a program runs to its end" in capsys.readouterr().out
    assert main(["study", "mine.toml", "--quiet"]) == 0
    records = [*ResultFolder(tmp_path / "results").records()]
    assert {(r.status.code, r.spec.batch, r.steps_seen) for r in records} == {
        ("completed", 4, 40),
        ("completed", 8, 20),
    }
    assert "steelyard run" not in capsys.readouterr().out
    assert main(["report", "mine", "-o", "mine.html"]) == 0
    assert main(["pack", "mine:lr=0.01,batch=8", "--samples", "1000", "--devices", "1", "-o", "pack"]) == 0
    page, pack = (tmp_path / "mine.html").read_text("utf-8"), (tmp_path / "pack" / "pack.md").read_text("utf-8")
    assert "python train.py {batch} {lr}" in page
    assert "program.parameters" not in page
    assert re.search(r"^\| command \| python train\.py ", pack, re.MULTILINE)
    assert "| values in it | batch=8, lr=0.01 |" in pack
    assert str(private) not in page + pack
