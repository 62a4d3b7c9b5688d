"""The verbs as a user types them: what they print, and their exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from steelyard.cli.main import VERBS, main
from steelyard.version import VERSION

if TYPE_CHECKING:
    from pathlib import Path

STUDY = """
name = "first"
repeats = 3
[run.sim]
noise = { kind = "normal", between_jobs_cv = 0.01 }
memory = { limit_bytes = 8e9, bytes_per_sample = 1e8 }
[sweep]
batch = [128, 32]
"""


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("STEELYARD_RESULTS", raising=False)


def run_json(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, Any]:
    code = main([*words, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(verb in text for verb in VERBS)
    assert main([]) == 2
    capsys.readouterr()
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"steelyard {VERSION}\n"
    assert main(["stud"]) == 2
    assert "next: steelyard study" in capsys.readouterr().err


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_each_verb_explains_itself(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main([verb, "--help"])
    assert stop.value.code == 0
    assert "--json" in capsys.readouterr().out


def test_run_show_derive(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["run", "sim", "--repeats", "3", "--set", "sim.noise.kind=normal"]) == 0
    out = capsys.readouterr()
    assert "3 completed" in out.out
    assert "95% interval for jobs on node" in out.out
    assert out.err.count("samples/s") == 3
    code, studies = run_json(capsys, "show")
    assert (code, studies) == (0, [{"study": "adhoc", "configurations": 1, "runs": 3, "completed": 3}])
    code, cells = run_json(capsys, "show", "adhoc")
    run_id = cells[0]["runs"][0]
    assert main(["show", "adhoc"]) == main(["show", run_id]) == 0
    assert "throughput_device" in capsys.readouterr().out
    assert main(["derive", run_id]) == 0
    record = tmp_path / "steelyard-results/runs/adhoc" / run_id / "record.json"
    record.write_text(record.read_text().replace('"interval"', '"max_steps"', 1))
    assert main(["derive", str(record.parent)]) == 1
    assert "ANOTHER" in capsys.readouterr().out
    # A second call appends; it does not repeat what is there.
    code, again = run_json(capsys, "run", "sim", "--set", "sim.noise.kind=normal")
    assert (code, again["runs"][0]["spec"]["repeat"]) == (0, 3)


def test_study_plans_runs_and_resumes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(STUDY)
    code, plan = run_json(capsys, "study", "s.toml", "--dry-run")
    assert (code, len(plan["order"]), plan["there"]) == (0, 6, 0)
    assert not (tmp_path / "steelyard-results").exists()
    code, result = run_json(capsys, "study", "s.toml")
    assert (code, result["made"], result["skipped"]) == (1, 6, 0)
    large, small = result["configurations"]
    assert large["statuses"] == {"out_of_memory": 3}
    assert large["throughput_job"]["value"] is None
    interval = small["throughput_job"]["interval"]
    assert interval["low"] < small["throughput_job"]["value"] < interval["high"]
    code, result = run_json(capsys, "study", "s.toml")
    assert (code, result["made"], result["skipped"]) == (1, 0, 6)
    assert main(["study", "s.toml"]) == 1
    assert "batch=128      3 out_of_memory" in capsys.readouterr().out
    assert main(["show", "first"]) == 0
    assert "batch=128      3 out_of_memory" in capsys.readouterr().out
    (tmp_path / "s.toml").write_text("seed = 9\n" + STUDY)
    assert main(["study", "s.toml"]) == 2
    assert "another seed" in capsys.readouterr().err
    assert len(list((tmp_path / "steelyard-results/studies").iterdir())) == 1


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["run", "simm"], "did you mean sim?"),
        (["run", "sim", "--set", "sim.noize=1"], "did you mean sim.noise?"),
        (["run", "sim", "--set", "batch"], "KEY=VALUE"),
        (["run", "sim", "--set", "batch.x.y=1"], "batch"),
        (["run", "sim", "--batch", "0"], "at least 1"),
        (["run", "sim", "--study", "../up"], "letters, digits"),
        (["run", "sim", "--device", "gpu9000"], "sim"),
        (["study", "none.toml"], "no such file"),
        (["run", "sim", "--results", "/proc/steelyard"], "--results"),
        (["show"], "steelyard run sim"),
        (["derive", "nothing"], "steelyard show"),
    ],
)
def test_errors_say_what_to_do(words: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert text in error


def test_schema(capsys: pytest.CaptureFixture[str]) -> None:
    code, schema = run_json(capsys, "schema", "run-record")
    assert (code, schema["title"]) == (0, "RunRecord")


def test_a_reader_that_stops_reading() -> None:
    command = f"{sys.executable} -m steelyard.cli.main schema run-record | head -c 1 > /dev/null"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.stderr == ""


def test_a_strangers_text_does_not_steer_the_terminal(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["run", "sim"]) == 0
    record = next(tmp_path.glob("steelyard-results/runs/adhoc/*/record.json"))
    content = json.loads(record.read_text())
    content["status"] = {"code": "failed", "reason": "\x1b[2J\u202egone", "evidence": None}
    content["environment"]["node"] = "a\rb"
    record.write_text(json.dumps(content))
    capsys.readouterr()
    for words in (["show"], ["show", "adhoc"], ["show", content["run_id"]]):
        assert main(words) == 0
    (tmp_path / "s.toml").write_text('"\\u001b[2J" = 1\nname = "s"\n')
    assert main(["study", "s.toml"]) == 2
    out = capsys.readouterr()
    assert "\\x1b[2J" in out.out
    assert "\\x1b[2J" in out.err
    assert not {"\x1b", "\r", "\u202e"} & set(out.out + out.err)
