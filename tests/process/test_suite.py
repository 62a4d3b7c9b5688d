"""`steelyard suite` from the command line, with a suite in a folder whose document is a table beside it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from steelyard.cli.main import main
from steelyard.results.store import ResultFolder

if TYPE_CHECKING:
    from pathlib import Path

SUITE = """
name = "paper"
title = "Training rates of a paper"
question = "How fast is this machine beside theirs?"
document = "figures.csv"
cite = "A. Author: A paper (2024)"
repeats = 3
run = { precision = "fp16", epoch_samples = 6400, epochs = 10, crosscheck_steps = 0 }

[small]
run = { budget = { min_steps = 50, max_steps = 50, min_seconds = 0.0 } }
[tiny]
repeats = 1
devices = [1, 3]
run = { budget = { min_steps = 20, max_steps = 20, min_seconds = 0.0 } }

[[part]]
name = "rates"
title = "Rates over batches and devices"
sweep = { global_batch = [32, 64], devices = [1, 2] }
run = { sim = { step_time_s = 0.01, noise = { kind = "normal", between_jobs_cv = 0.01 } } }

[[part]]
name = "quality"
title = "Accuracy"
run = { workload = "tiny", data = "mnist", quality = { every_epochs = 1 }, budget = { epochs = 1 } }

[[table]]
name = "1"
part = "rates"
title = "Table 1: rates"
rows = ["global_batch", "devices"]
figures = ["throughput", "train_time"]
same = { model = { Net = { workload = "sim" } } }

[[deviation]]
parts = ["rates"]
at = { global_batch = 64 }
text = "simulated"
"""
TABLE = """table,system,accelerator,devices,model,precision,global_batch,mode,dataset,metric,value,unit
1,Theirs,X,1,Net,fp16,32,train,synthetic,throughput,1600,images/s
1,Theirs,X,1,Net,fp16,32,train,synthetic,train_time,40,s
1,Theirs,X,2,Net,fp16,32,train,synthetic,throughput,3000,images/s
1,Theirs,X,1,Net,fp16,64,train,synthetic,throughput,3200,images/s
1,Theirs,X,2,Other,fp16,64,train,synthetic,throughput,6400,images/s
"""


@pytest.fixture
def suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "paper").mkdir()
    (tmp_path / "paper" / "suite.toml").write_text(SUITE)
    (tmp_path / "paper" / "figures.csv").write_text(TABLE)
    return tmp_path / "paper"


def told(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> Any:
    assert main(["suite", *words, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def test_from_run_to_report(suite: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = told(capsys, "show", "paper")
    assert [(part["study"], part["runs"]) for part in shown["parts"]] == [("paper-rates-small", 12)]
    made = told(capsys, "run", "./paper")["parts"]
    assert made["rates"]["made"] == 12
    assert told(capsys, "run", "./paper", "--part", "rates")["parts"]["rates"] | {"configurations": 0} == {
        "shape": "study/1", "made": 0, "skipped": 12, "configurations": 0, "searches": [],
    }  # fmt: skip
    # A part that evaluates is left out without its data.
    assert "quality" not in made
    page = told(capsys, "report", "./paper", "--format", "csv", "-o", "page")
    assert page["sections"][0]["answer"].startswith("1 of 2 parts measured. 4 of 4 printed figures have one of ours")
    rows = (tmp_path / "page" / "table-0-0.csv").read_text().splitlines()
    assert [row.split(",")[:2] for row in rows[1:]] == [["32", "1"], ["32", "2"], ["64", "1"]]
    pairs = (tmp_path / "page" / "table-0-pairs.csv").read_text()
    # The number of epochs is not stated by the document: the time of a training is not compared.
    assert "SY108" in next(line for line in pairs.splitlines() if "train" in line)
    record = next(ResultFolder(tmp_path / "steelyard-results").records("paper-rates-small"))
    assert record.spec.study_arguments == ("suite", "run", "paper", "--part", "rates", "--size", "small")


def test_sizes_are_never_compared(suite: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = told(capsys, "run", "./paper", "--size", "tiny", "--part", "rates")["parts"]
    # 32 samples cannot be divided over three devices.
    assert made["rates"]["made"] == 2
    page = told(capsys, "report", "./paper", "--size", "tiny", "--format", "markdown", "-o", "page.md")
    assert "the size tiny is never compared" in page["sections"][0]["answer"]
    text = (tmp_path / "page.md").read_text()
    assert "Each printed figure and ours" not in text
    # Without a size: the only one that was run.
    assert told(capsys, "report", "./paper", "-o", "page.html")["title"].endswith("size tiny")
    words = ("report", "./paper", "--size", "small")
    assert told(capsys, *words, code=2)["error"]["next"] == "steelyard suite run ./paper --size small"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("show", "nrpp"), "did you mean nrp?"),
        (("run", "./paper", "--part", "rate"), "did you mean rates?"),
        (("run", "./paper", "--size", "big"), "--size big: must be full, small or tiny"),
        (("run", "./paper", "--devices", "0"), "--devices"),
        (("run", "./nothing"), "no folder nothing"),
    ],
)
def test_what_is_wrong_is_said(
    suite: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], message: str
) -> None:
    assert main(["suite", *words]) == 2
    assert message in capsys.readouterr().err


def test_a_suite_does_not_leave_its_folder(suite: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "other.csv").write_text(TABLE)
    (suite / "suite.toml").write_text(SUITE.replace('"figures.csv"', '"../other.csv"'))
    told(capsys, "run", "./paper", "--part", "rates")
    assert "outside the folder" in str(told(capsys, "report", "./paper", code=2))
