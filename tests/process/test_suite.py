"""`steelyard suite` from the command line, with a suite in a folder whose document is a table beside it."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from steelyard import extras
from steelyard.cli import suite_run
from steelyard.cli.main import main
from steelyard.cli.study import StudyAnswer
from steelyard.inputs.site import find_place
from steelyard.launch import allocation
from steelyard.results.store import ResultFolder
from steelyard.terminal.study import plan_object

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
about = "evidence"
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
    assert page["sections"][0]["answer"].startswith("Where the work is the same, throughput here is ")
    assert "1 of 2 parts measured." in page["sections"][0]["answer"]
    kinds = {row[0]["text"] for table in page["answers"] for row in table["rows"]}
    assert kinds == {"same work", "inside"}
    rows = (tmp_path / "page" / "table-0-0.csv").read_text().splitlines()
    assert [row.split(",")[:2] for row in rows[1:]] == [["32", "1"], ["32", "2"], ["64", "1"]]
    pairs = (tmp_path / "page" / "table-0-same-work.csv").read_text()
    # The number of epochs is not stated by the document: the time of a training is not compared.
    assert "throughput" in pairs
    assert "train" not in pairs
    record = next(ResultFolder(tmp_path / "steelyard-results").records("paper-rates-small"))
    assert record.spec.study_arguments == ("suite", "run", "paper", "--part", "rates", "--size", "small")


def test_sizes_are_never_compared(suite: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = told(capsys, "run", "./paper", "--size", "tiny", "--part", "rates")["parts"]
    # 32 samples cannot be divided over three devices.
    assert made["rates"]["made"] == 2
    page = told(capsys, "report", "./paper", "--size", "tiny", "--format", "markdown", "-o", "page.md")
    assert "the size tiny is never compared" in page["sections"][0]["answer"]
    text = (tmp_path / "page.md").read_text()
    assert "Same work" not in text
    assert "| 32 | 1 | 1,600 | 40 | runs |" in text
    assert main(["suite", "run", "./paper", "--size", "tiny", "--part", "rates"]) == 0
    assert "configuration    jobs         runs" in capsys.readouterr().out
    # Without a size: the only one that was run.
    assert told(capsys, "report", "./paper", "-o", "page.html")["title"].endswith("size tiny")
    words = ("report", "./paper", "--size", "small")
    assert told(capsys, *words, code=2)["error"]["next"] == "steelyard suite show ./paper --size small"


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


# -- what this machine and the data sets allow


@pytest.fixture
def one_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "root/dev").mkdir(parents=True)
    (tmp_path / "root/dev/nvidia0").touch()
    monkeypatch.setattr(allocation, "ROOT", tmp_path / "root")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.fixture
def planned(one_gpu: None, suite: Path) -> Path:
    """A suite of models, two of its parts on data sets."""
    (suite / "suite.toml").write_text(
        """
name = "nets"
title = "Nets"
question = "How fast?"
run = { workload = "tiny", budget = { max_seconds = 1.0 } }
[[data]]
format = "mnist"
name = "MNIST"
[[data]]
format = "cifar10"
name = "CIFAR-10"
[[part]]
name = "scaling"
title = "Devices"
run = { data = "mnist" }
sweep = { devices = [1, 2, 4] }
[[part]]
name = "several"
title = "Several devices"
sweep = { devices = [2, 8] }
[[part]]
name = "sets"
title = "Data sets"
case = [{ data = "mnist", batch = 4 }, { data = "cifar10", batch = 8 }]
[[part]]
name = "other"
title = "Another data set"
run = { data = "cifar10" }
"""
    )
    return suite


def runs_of(answer: Any) -> dict[str, int]:
    return {name: len(part["order"]) for name, part in answer["parts"].items()}


def test_what_needs_more_devices_is_left_out_once(planned: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("run", "./paper", "--synthetic", "--dry-run")
    answer = told(capsys, *words)
    assert runs_of(answer) == {"scaling": 3, "sets": 6, "other": 3}
    assert answer["left_out"] == [
        {
            "reason": "this machine has 1 device", "configurations": 4, "devices": [2, 4, 8], "parts": ["several"],
            "named": {"scaling": ["devices=2", "devices=4"], "several": ["devices=2", "devices=8"]},
        }
    ]  # fmt: skip
    assert main(["suite", *words]) == 0
    said = capsys.readouterr().err.splitlines()[0]
    assert said == (
        "left out, because this machine has 1 device: 4 configurations with 2, 4, 8; nothing is left of several"
    )
    # The user's numbers count.
    assert runs_of(told(capsys, *words, "--devices", "1,2")) == {"scaling": 6, "several": 6, "sets": 6, "other": 3}
    shown = told(capsys, "show", "./paper")
    assert [(part["part"], part["runs"]) for part in shown["parts"]] == [("scaling", 3), ("sets", 6), ("other", 3)]
    assert shown["left_out"] == answer["left_out"]
    refused = told(capsys, *words, "--part", "several", code=2)["error"]
    assert refused["message"] == "nothing can run with these options"


def test_what_lacks_its_data_set_is_left_out_once(
    planned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("run", "./paper", "--dry-run", "--data", "sets")
    (tmp_path / "sets/mnist").mkdir(parents=True)
    (tmp_path / "sets/mnist/images").touch()
    # An empty folder is no data set.
    (tmp_path / "sets/cifar10").mkdir()
    answer = told(capsys, *words)
    assert runs_of(answer) == {"scaling": 3, "sets": 3}
    assert answer["left_out"][1] == {
        "reason": "--data has no cifar10", "configurations": 2, "devices": [], "parts": ["other"],
        "named": {"sets": ["data=cifar10"], "other": ["(no sweep)"]},
    }  # fmt: skip
    refused = told(capsys, *words, "--part", "other", code=2)["error"]
    assert refused["problems"][0]["valid"] == "a folder with cifar10/"
    assert refused["next"] == "steelyard data show cifar10"
    near = told(capsys, *words[:-1], "sets/mnist", code=2)["error"]
    assert near["message"].endswith("did you mean --data sets?")


def test_the_input_is_named(planned: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for size in ("small", "full"):
        words = ("run", "./paper", "--size", size, "--dry-run")
        refused = told(capsys, *words, code=2)["error"]
        assert refused["message"] == "nets reads data sets (cifar10, mnist), and none is named"
        again = f"steelyard suite run ./paper --size {size}"
        assert refused["next"] == f"{again} --data DIR, or {again} --synthetic"
    both = told(capsys, *words, "--synthetic", "--data", ".", code=2)["error"]
    assert "--data" in both["message"]
    assert "--synthetic" in both["message"]
    # A part that reads none needs neither; the size tiny makes its own.
    assert runs_of(told(capsys, "run", "./paper", "--part", "several", "--devices", "2", "--dry-run"))
    assert runs_of(told(capsys, "run", "./paper", "--size", "tiny", "--dry-run"))
    assert main(["suite", "show", "./paper"]) == 0
    shown = capsys.readouterr().out
    assert "with --synthetic the input is" in shown
    assert shown.endswith("next: steelyard suite run ./paper --size small --synthetic\n")


def test_missing_packages_are_named_before_anything_runs(
    planned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (planned / "suite.toml").read_text()
    (planned / "suite.toml").write_text(text.replace("[2, 8] }", '[1] }\nrun = { workload = "bert-base" }'))
    monkeypatch.setattr(extras, "find_spec", lambda name: None if name in ("transformers", "torchvision") else name)
    refused = told(capsys, "run", "./paper", "--synthetic", code=2)["error"]
    assert refused["message"] == "not installed here: transformers (for several)"
    assert refused["next"] == "pip install 'transformers>=4.45'"
    assert told(capsys, "run", "./paper", "--size", "tiny", code=2)["error"] == refused
    assert not (tmp_path / "steelyard-results").exists()
    assert main(["suite", "show", "./paper"]) == 0
    assert f"Not installed here: transformers (for several):\n  {refused['next']}\n" in capsys.readouterr().out
    assert told(capsys, "show", "./paper")["missing"] == {"transformers": ["several"]}
    # It is enough for the other parts, and for a plan.
    assert told(capsys, "run", "./paper", "--synthetic", "--dry-run", "--part", "several")["parts"]
    assert told(capsys, "run", "./paper", "--synthetic", "--dry-run", "--part", "sets")["parts"]


def test_what_fits_into_the_hours(suite: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refused = told(capsys, "run", "./paper", "--hours", "0.001", code=2)["error"]
    assert refused["message"].startswith("nothing fits into 3.6 s: the shortest configuration takes up to ")
    hours = float(refused["next"].rpartition(" ")[2])
    assert refused["next"] == f"steelyard suite run ./paper --size small --hours {hours:g}"
    assert hours > 0.1
    assert not (tmp_path / "steelyard-results" / "runs").exists()
    answer = told(capsys, "run", "./paper", "--part", "rates", "--hours", "100")
    assert (answer["parts"]["rates"]["made"], answer["left_out"]) == (12, [])
    # What is there costs no time.
    assert main(["suite", "run", "./paper", "--part", "rates", "--hours", "0.001"]) == 0
    said = capsys.readouterr().out
    assert "\nmeasured: 4 of 4 configurations, with 4 of 4 printed figures; " in said
    assert said.endswith("next: steelyard suite report ./paper --size small\n")


def test_hours_name_what_they_leave_out(suite: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The simulated set-up of two devices takes an hour, as their short run tells."""
    (suite / "suite.toml").write_text(
        """
name = "slow"
title = "A slow set-up"
question = "How long?"
run = { budget = { min_steps = 50, max_steps = 50, min_seconds = 0.0 } }
[[part]]
name = "rates"
title = "Rates"
case = [{ batch = 4 }, { batch = 8, devices = 2, sim.setup_s = 3600.0 }]
"""
    )
    words = ("run", "./paper", "--hours", "0.4")
    answer = told(capsys, *words)
    assert answer["parts"]["rates"]["made"] == 3
    assert answer["left_out"] == [
        {
            "reason": "24 min is too short", "configurations": 1, "devices": [], "parts": [],
            "named": {"rates": ["batch=8"]},
        }
    ]  # fmt: skip
    assert main(["suite", *words]) == 0
    out = capsys.readouterr().out
    assert "\nmeasured: 1 of 2 configurations; " in out
    assert "left out, because 24 min is too short: rates: batch=8\n" in out
    # Without the option, the same command makes the rest.
    made = told(capsys, "run", "./paper")["parts"]["rates"]
    assert (made["made"], made["skipped"]) == (3, 3)


@pytest.mark.parametrize("words", [("--site", "a.toml"), ("--wait",), ("--extend",)])
def test_hours_are_for_this_machine(suite: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]) -> None:
    refused = told(capsys, "run", "./paper", "--hours", "2", *words, code=2)["error"]
    assert refused["message"] == f"--hours is for runs on this machine, and not together with {words[0]}"
    assert refused["next"] == "steelyard suite run ./paper --size small --hours 2"


def test_the_pool_of_a_site_has_its_own_number_of_devices(
    planned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pool = 'architecture = "x86_64"\ndevices_per_node = 2\n'
    site = f'name = "olive"\nscheduler = "slurm"\n[pools.small]\n{pool}max_nodes = 1\n[pools.large]\n{pool}'
    (tmp_path / "olive.toml").write_text(site)

    def carry_out(_: Any, expansion: Any, __: Any) -> StudyAnswer:
        return StudyAnswer(0, plan_object(expansion, 0, expansion), [])

    monkeypatch.setattr(suite_run, "carry_out", carry_out)
    words = ("run", "./paper", "--synthetic", "--dry-run", "--site")
    answer = told(capsys, *words, "olive.toml:small")
    assert runs_of(answer) == {"scaling": 6, "several": 3, "sets": 6, "other": 3}
    assert [(entry["reason"], entry["devices"]) for entry in answer["left_out"]] == [
        ("pool small of olive has 2 devices", [4, 8])
    ]
    assert told(capsys, *words, "olive.toml:large")["left_out"] == []
    # To wait for what was submitted there.
    sent = SimpleNamespace(plan=SimpleNamespace(place=find_place("olive.toml:small")))
    monkeypatch.setattr(suite_run, "campaigns", lambda _, study: [sent] if study == "nets-scaling-small" else [])
    assert runs_of(told(capsys, *words[:-1], "--wait")) == runs_of(answer)


def test_a_suite_does_not_leave_its_folder(suite: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "other.csv").write_text(TABLE)
    (suite / "suite.toml").write_text(SUITE.replace('"figures.csv"', '"../other.csv"'))
    told(capsys, "run", "./paper", "--part", "rates")
    assert "outside the folder" in str(told(capsys, "report", "./paper", code=2))
