"""The verbs as a user types them: what they print, and their exit codes."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import shlex
import subprocess
import sys
from typing import TYPE_CHECKING, Any, get_args

import pytest

from conftest import HANG_S, until
from steelyard.cli.exit_codes import DONE, FAILED, INTERRUPTED, INVALID, MEANINGS
from steelyard.cli.main import VERBS, main
from steelyard.cli.verb import make_parser
from steelyard.terminal.console import from_here
from steelyard.version import VERSION

if TYPE_CHECKING:
    from pathlib import Path

    from steelyard.cli.parser import Parser

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
    assert all(f"\n  {verb} " in text for verb in VERBS)
    assert max(map(len, text.splitlines())) <= 60
    assert main([]) == 2
    capsys.readouterr()
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"steelyard {VERSION}\n"


def pages() -> list[tuple[str, Parser]]:
    """Every verb and every action of one, with its parser."""
    found = []
    for verb in sorted(VERBS):
        parser = make_parser(verb)
        found += [(verb, parser), *((f"{verb} {name}", inner) for name, inner in parser.actions().items())]
    return found


@pytest.mark.parametrize("words", [name for name, _ in pages()])
def test_each_verb_explains_itself(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = []
    for typed in ([*words.split(), "--help"], ["help", *words.split()]):
        with pytest.raises(SystemExit) as stop:
            main(typed)
        assert stop.value.code == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1]
    assert said[0].startswith(f"usage: steelyard {words} [options]")
    assert "--json" in said[0]


@pytest.mark.parametrize(("words", "parser"), pages(), ids=[name for name, _ in pages()])
def test_each_help_has_an_example_that_is_accepted(words: str, parser: Parser) -> None:
    """And one of the verb itself, or of the action."""
    examples = re.findall(r"^\$ steelyard (.*)$", parser.description or "", re.MULTILINE)
    assert any(f"{each} ".startswith(f"{words} ") for each in examples), words
    for each in examples:
        verb, *rest = shlex.split(each.partition(" > ")[0])
        make_parser(verb).parse_args(rest)


def test_other_systems_are_told_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert main(["run", "sim"]) == 2
    assert "error: steelyard needs Linux, and this is darwin" in capsys.readouterr().err


# What conda's and uv's Python lack, although the system has it.
LACKING = {
    "os": ("copy_file_range", "eventfd", "getrandom", "memfd_create", "pidfd_open", "splice"),
    "signal": ("pidfd_send_signal",),
}


def test_a_python_with_fewer_functions_of_the_system(tmp_path: Path) -> None:
    lines = [f"import {module}; vars({module}).pop({name!r}, None)" for module in LACKING for name in LACKING[module]]
    (tmp_path / "sitecustomize.py").write_text("\n".join(lines), encoding="utf-8")
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    for words in (
        ["-P", "-c", "import os, signal; assert not hasattr(os, 'pidfd_open') and not hasattr(os, 'memfd_create')"],
        ["-m", "steelyard.cli.main", "run", "sim", "--max-steps", "20", "--min-steps", "20", "--min-seconds", "0"],
        ["-m", "steelyard.cli.main", "wrap", "--study", "own", "--", "true"],
        ["-m", "steelyard.cli.main", "query", "select count(*) as runs from runs"],
    ):
        command, environment = [sys.executable, *words], {**os.environ, "PYTHONPATH": path}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=HANG_S)
        assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == "2"


def test_run_and_show(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["run", "sim", "--repeats", "3", "--set", "sim.noise.kind=normal"]) == 0
    out = capsys.readouterr()
    assert "3 completed" in out.out
    assert "[ ] = 95 % CI over 3 jobs, all on node" in out.out
    assert out.err.count("samples/s") == 3
    code, studies = run_json(capsys, "show")
    listed = [{"study": "adhoc", "configurations": 1, "runs": 3, "completed": 3}]
    assert (code, studies) == (0, {"shape": "show-studies/1", "studies": listed})
    code, shown = run_json(capsys, "show", "adhoc")
    run_id = shown["configurations"][0]["runs"][0]
    assert main(["show", "adhoc"]) == main(["show", run_id]) == 0
    assert "throughput_per_device" in capsys.readouterr().out
    assert main(["show", run_id, "--derive"]) == 0
    record = tmp_path / "steelyard-results/runs/adhoc" / run_id / "record.json"
    record.write_text(record.read_text().replace('"interval"', '"max_steps"', 1))
    assert main(["show", str(record.parent), "--derive"]) == 1
    assert "DIFFERENT" in capsys.readouterr().out
    # A second call appends; it does not repeat what is there.
    code, again = run_json(capsys, "run", "sim", "--set", "sim.noise.kind=normal")
    assert (code, again["runs"][0]["spec"]["repeat"]) == (0, 3)


def test_a_study_goes_on_after_what_refused_or_failed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A refused run is made again by itself, a failed one when it is asked for."""
    (tmp_path / "s.toml").write_text("name = 's'\nrepeats = 2\n[run]\nworkload = 'sim'\n")
    assert main(["study", "s.toml", "--quiet"]) == 0
    one, two = sorted((tmp_path / "steelyard-results" / "runs" / "s").glob("*/record.json"))
    for record, ended in ((one, "refused"), (two, "failed")):
        content = json.loads(record.read_text())
        content["status"] = {"code": ended, "reason": "no such package", "evidence": None}
        record.write_text(json.dumps(content))
    capsys.readouterr()
    assert main(["study", "s.toml", "--quiet"]) == 1
    said = capsys.readouterr().out
    assert said.endswith("\n\nTo run again what ended as failed:\n  steelyard study s.toml --again failed\n")
    assert "1 completed" in said
    assert "1 failed" in said
    assert main(["study", "s.toml", "--again", "failed", "--quiet"]) == 0
    assert "2 completed" in capsys.readouterr().out


def test_study_plans_runs_and_resumes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(STUDY)
    code, plan = run_json(capsys, "study", "s.toml", "--dry-run")
    assert (code, len(plan["order"]), plan["done"]) == (0, 6, 0)
    assert not (tmp_path / "steelyard-results").exists()
    code, result = run_json(capsys, "study", "s.toml")
    assert (code, result["made"], result["skipped"]) == (1, 6, 0)
    small, large = result["configurations"]
    assert large["statuses"] == {"out_of_memory": 3}
    assert large["throughput"]["value"] is None
    rate = small["throughput"]
    assert rate["low"] < rate["value"] < rate["high"]
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


def test_a_study_is_extended_where_a_finding_asks_for_it(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(
        'name = "s"\nrepeats = 1\n[run]\ncrosscheck_steps = 0\n[sweep]\n"sim.step_time_s" = [0.01, 20.0]\n'
    )
    assert run_json(capsys, "study", "s.toml")[0] == 0
    for words, text in ((["--again", "failed"], "--again"), (["--wait"], "--wait without --site")):
        assert main(["study", "s.toml", "--extend", *words]) == 2
        assert f"--extend: not together with {text}" in capsys.readouterr().err
    code, plan = run_json(capsys, "study", "s.toml", "--extend", "--dry-run")
    assert (code, [need["jobs"] for need in plan["needs"]]) == (0, [2, 3])
    assert main(["study", "s.toml", "--extend"]) == 0
    said = capsys.readouterr()
    assert "Price: 5 more jobs, about " in said.err
    assert "sim.step_time_s=0.01  3 completed" in said.out
    assert "sim.step_time_s=20.0: 1 shorter job not counted" in said.out
    # The study as such is complete, and shows what was added.
    code, result = run_json(capsys, "study", "s.toml")
    assert (code, result["made"], [cell["shorter_runs"] for cell in result["configurations"]]) == (0, 0, [0, 1])
    plans = list((tmp_path / "steelyard-results/studies").iterdir())
    assert len(plans) == 2


def test_a_refused_comparison_names_the_one_that_was_measured(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "s.toml").write_text(
        'name = "s"\nrepeats = 3\n[run]\ncrosscheck_steps = 0\n'
        '[sweep]\n"sim.step_time_s" = [0.01, 0.008]\nprecision = ["fp32", "bf16"]\n'
    )
    assert main(["study", "s.toml"]) == 0
    a, b = "s:sim.step_time_s=0.01,precision=fp32", "s:sim.step_time_s=0.008,precision=bf16"
    capsys.readouterr()
    assert main(["compare", a, b]) == 1
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == f"next: steelyard compare {a} s:precision=fp32,sim.step_time_s=0.008"
    # It leads to an answer.
    assert main(shlex.split(last)[2:]) == 0
    assert "B is 1.25 times as fast as A" in capsys.readouterr().out
    # Nothing else has the other's settings.
    assert main(["compare", a, b, "--factor", "batch"]) == 1
    assert "steelyard run sim" in capsys.readouterr().out.splitlines()[-1]


def test_what_is_missing_comes_before_an_extension(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Findings print the command after Ctrl-C, too."""
    (tmp_path / "s.toml").write_text('name = "s"\nrepeats = 2\n[run]\ncrosscheck_steps = 0\n')
    code, plan = run_json(capsys, "study", "s.toml", "--extend", "--dry-run")
    assert (code, len(plan["order"]), plan["done"]) == (0, 2, 0)
    assert main(["study", "s.toml", "--extend"]) == 0
    said = capsys.readouterr()
    assert "first the study as it is: 2 runs without a result" in said.err
    assert "Price: 1 more job, about " in said.err
    assert "3 completed" in said.out


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["run", "simm"], "did you mean sim?"),
        (["run", "sim", "--set", "sim.noize=1"], "did you mean sim.noise?"),
        (["run", "sim", "--set", "batch"], "KEY=VALUE"),
        (["run", "sim", "--set", "batch.x.y=1"], "batch"),
        (["run", "sim", "--study", "../up"], "--study ../up: must be letters"),
        (["run", "sim", "--epochs", "3"], "--epoch-samples: "),
        (["run", "sim", "--device", "gpu9000"], "sim"),
        (["study", "none.toml"], "no such file"),
        (["run", "sim", "--results", "/proc/steelyard"], "--results"),
        (["show"], "steelyard run sim"),
        (["show", "nothing", "--derive"], "steelyard show"),
        (["show", "--derive"], "steelyard show RUN_ID --derive"),
        (["explain", "study", "SY301"], "steelyard explain study"),
    ],
)
def test_errors_say_what_to_do(words: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert text in error


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["stduy", "s.toml"], "stduy: unknown verb; did you mean study?"),
        (["run", "--bacth", "8"], "--bacth: unknown option; did you mean --batch?"),
        (["study", "--dry-rnu"], "--dry-rnu: unknown option; did you mean --dry-run?"),
        (["run", "sim", "--max-s", "9"], "--max-s: unknown option; did you mean --max-steps?"),
        (["run", "sim", "-x"], "-x: unknown option"),
        (
            ["run", "sim", "--precision", "bf61"],
            "--precision bf61: must be fp32, tf32, bf16 or fp16; did you mean bf16?",
        ),
        (["run", "sim", "--batch", "0"], "--batch 0: must be at least 1"),
        (["run", "sim", "--devices=0"], "--devices 0: must be at least 1"),
        (["run", "sim", "--batch", "8.5"], "--batch 8.5: must be a whole number"),
        (["run", "sim", "--max-seconds", "inf"], "--max-seconds inf: must be finite"),
        (["run", "sim", "--batch"], "--batch: needs a value"),
        (["run", "sim", "--quiet", "--verbose"], "--verbose: cannot be used with --quiet"),
        (["run", "sim", "more"], "more: unexpected argument"),
        (["run"], "missing: WORKLOAD"),
        (["run", "sim", "--set", "batch"], "--set batch: must be KEY=VALUE"),
        (["run", "sim", "--loader-workers", "0,1"], "--loader-workers 0,1: several counts need --mode load"),
        (["site", "chek", "x"], "chek: must be list, new, show or check; did you mean check?"),
        (["site", "check", "x", "--result", "y"], "--result: unknown option; did you mean --results?"),
        (["batch", "x", "--share", "1"], "--share 1: must be less than 1"),
        (["run", "sim", "--device", "\x1b[2J\n"], "--device \\x1b[2J\\n: must be letters"),
    ],
)
def test_option_errors_have_two_lines(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The option as it was typed, what it must be, the nearest valid name, and the help to read."""
    assert main(words) == 2
    out = capsys.readouterr()
    first, second = out.err.splitlines()
    assert first.startswith(f"error: {said}")
    assert second.startswith("next: steelyard ")
    assert second.endswith(" --help")
    assert out.out == ""


def test_with_json_errors_are_json(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, said = run_json(capsys, "run", "sim", "--batch", "0")
    expected = {
        "message": "--batch 0: must be at least 1",
        "problems": [],
        "next": "steelyard run --help",
        "exit_code": 2,
    }
    assert (code, said) == (2, {"shape": "error/1", "error": expected})
    code, said = run_json(capsys, "nonsense")
    assert (code, said["error"]["exit_code"]) == (2, 2)
    (tmp_path / "s.toml").write_text(STUDY + "bacth = [1]\n[run]\n")
    code, said = run_json(capsys, "study", "s.toml")
    assert code == said["error"]["exit_code"] == 2
    assert set(said["error"]["problems"][0]) == {"field", "problem", "valid"}
    (tmp_path / "file").write_text("")
    code, said = run_json(capsys, "run", "sim", "--results", "file/below")
    assert code == said["error"]["exit_code"]
    assert "file/below" in json.dumps(said)


def test_the_fields_of_a_file_format_are_a_list_and_a_schema(capsys: pytest.CaptureFixture[str]) -> None:
    code, schema = run_json(capsys, "explain", "run-record")
    assert (code, schema["title"]) == (0, "RunRecord")
    for name, field in (
        ("run-spec", "budget.max_seconds        Stop measuring after this many seconds. [number"),
        ("study", "case                      Settings that belong together"),
        ("suite", "part[].least_devices      "),
        ("site", "pools.NAME.partition      "),
        ("recipe", "expect[].value            The documented value."),
        ("run-record", "quantities.NAME.value"),
    ):
        assert main(["explain", name]) == 0
        said = capsys.readouterr().out
        assert f"\n{field}" in said, said
        assert max(map(len, said.splitlines())) <= 80
    assert main(["explain", "run-spec", "loader"]) == 0
    said = capsys.readouterr().out
    fields = [line.split()[0] for line in said.split("\n\n")[1].splitlines() if not line.startswith(" ")]
    assert fields == ["loader.place", "loader.workers", "loader.prefetch", "loader.pin_memory"]
    assert "run_id" not in said
    assert main(["explain", "run-spec", "nothing"]) == 2
    assert "nothing: in no name of a field\nnext: steelyard explain run-spec" in capsys.readouterr().err
    assert main(["explain"]) == 0
    listed = capsys.readouterr().out
    assert "run-record" in listed
    assert "SY301" in listed


def test_help_agrees_with_the_code() -> None:
    """What the options repeat, so that help imports no library, is what the code says."""
    from steelyard.analysis.batch import SHARE
    from steelyard.analysis.scaling import THRESHOLD
    from steelyard.cli.options import batch, data, energy, report, run, scaling, selftest, study
    from steelyard.contracts.energy import DomainScope
    from steelyard.contracts.observe import StatusCode
    from steelyard.inputs.data_set import SAMPLED
    from steelyard.inputs.study import Repeats
    from steelyard.report.render.files import FORMATS
    from steelyard.selftest.hardware import IDLE_S, LOAD_S

    assert batch.SHARE == SHARE
    assert scaling.THRESHOLD == THRESHOLD
    assert data.SAMPLED == SAMPLED
    assert (selftest.IDLE_S, selftest.LOAD_S) == (IDLE_S, LOAD_S)
    assert report.FORMATS == FORMATS
    assert ("completed", *study.STATUSES) == get_args(StatusCode)
    assert set(energy.METER_SCOPES) <= set(get_args(DomainScope))
    assert Repeats.__metadata__[0].le == run.MOST_REPEATS


def test_every_option_of_run_reaches_the_spec() -> None:
    """Each option that sets a field sets the field of that name, and help shows the default of the contract."""
    from steelyard.cli.run import settings

    parser = make_parser("run")
    words = [
        "sim", "--mode", "train", "--device", "sim", "--devices", "2", "--batch", "3", "--accumulation", "4",
        "--learning-rate", "0.5", "--precision", "bf16", "--compile", "default", "--parallel", "fsdp2",
        "--backend", "b", "--threads", "5", "--epoch-samples", "600", "--last-batch", "pad", "--time-limit-s", "7",
        "--hang-limit-s", "8", "--min-steps", "9", "--min-seconds", "10", "--rel-half-width", "0.11",
        "--max-steps", "12", "--max-seconds", "13", "--epochs", "14",
        "--target", "0.15", "--evaluate-every", "16", "--prefetch", "17", "--loader-workers", "18",
        "--kv-cache", "static", "--graphs", "--autocast",
        "--pin-memory", "--channels-last", "--deterministic", "--numa", "--model", "a=1", "--set", "sim.setup_s=2",
        "--data", "host", "--preset", "tuned", "--no-cudnn-benchmark", "--optimizer-kernel", "foreach",
        "--gradient-as-bucket-view", "--attention", "math",
    ]  # fmt: skip
    chosen = settings(parser.parse_args(words))
    assert chosen == {
        "workload": "sim", "mode": "train", "device": "sim", "devices": 2, "batch": 3, "accumulation": 4,
        "learning_rate": 0.5, "precision": "bf16", "compile": "default", "parallel": "fsdp2", "backend": "b",
        "threads": 5, "epoch_samples": 600, "last_batch": "pad", "time_limit_s": 7.0, "hang_limit_s": 8.0,
        "budget": {"min_steps": 9, "min_seconds": 10.0, "rel_half_width": 0.11, "max_steps": 12, "max_seconds": 13.0,
                   "epochs": 14},
        "quality": {"target": 0.15, "every_epochs": 16},
        "loader": {"prefetch": 17, "workers": 18, "pin_memory": True},
        "kv_cache": "static", "graphs": True, "autocast": True,
        "channels_last": True, "deterministic": True, "numa": True, "model": {"a": 1}, "sim": {"setup_s": 2},
        "data": "host", "preset": "tuned", "cudnn_benchmark": False, "optimizer_kernel": "foreach",
        "gradient_as_bucket_view": True, "attention": "math",
    }  # fmt: skip
    text = " ".join(parser.format_help().split())
    assert "--batch N samples per device and micro-batch (default 32)" in text
    assert "stop measuring after this many seconds (default: 240; 20 with --mode load)" in text
    assert "fp32, tf32, bf16 or fp16 (default fp32)" in text


@pytest.mark.parametrize("columns", [60, 80, 120])
@pytest.mark.parametrize("verb", sorted(VERBS))
def test_help_fits_its_terminal(verb: str, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    parser = make_parser(verb)
    for each in (parser, *parser.actions().values()):
        lines = each.format_help().splitlines()
        assert lines[0].startswith(f"usage: {each.prog} [options]")
        # A command to copy is not broken.
        assert [line for line in lines if len(line) > columns and not line.startswith("  $ ")] == []
        assert all(action.help for action in each._actions if action.nargs != "A...")


def test_exit_codes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """One table for all verbs: 0 success, 1 failed, 2 invalid, in help and from each verb that can be tried here."""
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(f"  {code:<5}{meaning}\n" in text for code, meaning in MEANINGS.items())
    for verb in VERBS:
        assert main([verb, "--no-such-option"]) == INVALID
    short = ["--quiet", "--min-steps", "5", "--max-steps", "5"]
    full = ["--set", 'sim.memory={"limit_bytes": 1, "bytes_per_sample": 1e9}']
    (tmp_path / "s.toml").write_text(STUDY)
    (tmp_path / "r.toml").write_text(
        'name = "r"\njobs = 3\n[run]\nbudget = { max_steps = 5, min_steps = 5 }\n[expect]\nvalue = 1.0\n'
    )
    (tmp_path / "t.csv").write_text("system,devices,throughput\na,1,10\n")
    assert main(["run", "sim", *short]) == DONE
    for code, words in (
        (DONE, ["show"]),
        (DONE, ["show", "adhoc"]),
        (INVALID, ["show", "none"]),
        (FAILED, ["run", "sim", "--study", "full", *short, *full]),
        (FAILED, ["study", "s.toml", "--quiet"]),
        (DONE, ["study", "s.toml", "--dry-run"]),
        (INVALID, ["study", "none.toml"]),
        (DONE, ["status"]),
        (INVALID, ["status", "none"]),
        (FAILED, ["compare", "adhoc", "first:batch=32"]),
        (INVALID, ["compare", "adhoc", "none"]),
        (FAILED, ["batch", "first"]),
        (INVALID, ["batch", "none"]),
        (INVALID, ["scaling", "none"]),
        (FAILED, ["energy", "adhoc"]),
        (INVALID, ["energy", "none"]),
        (FAILED, ["verify", "r.toml", "--quiet"]),
        (INVALID, ["verify", "none.toml"]),
        (INVALID, ["audit", "none.csv"]),
        (DONE, ["report", "adhoc", "--format", "csv"]),
        (INVALID, ["report", "none"]),
        (DONE, ["pack", "--schemes"]),
        (INVALID, ["pack", "adhoc"]),
        (DONE, ["workloads"]),
        (INVALID, ["workloads", "none"]),
        (DONE, ["data"]),
        (DONE, ["data", "make", "mnist", "m", "--samples", "20"]),
        (INVALID, ["data", "show", "none"]),
        (DONE, ["site", "list"]),
        (INVALID, ["site", "show", "none"]),
        (DONE, ["explain", "SY301"]),
        (INVALID, ["explain", "SY999"]),
        (DONE, ["completion", "bash"]),
    ):  # fmt: skip
        assert (main(words), words) == (code, words)


def test_interrupted_is_130(tmp_path: Path) -> None:
    slow = ["--set", "sim.wall_s_per_s=1", "--min-seconds", "1000", "--max-seconds", "1000"]
    command = [sys.executable, "-m", "steelyard.cli.main", "run", "sim", "--json", *slow]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    until(lambda: list(tmp_path.rglob("spec.json")))
    running.terminate()
    out, said = running.communicate(timeout=HANG_S)
    assert running.returncode == INTERRUPTED
    assert json.loads(out)["error"]["exit_code"] == INTERRUPTED
    assert said == "\ninterrupted: 0 of 1 run of adhoc done\n"


@pytest.mark.parametrize("closed", ["2>&-", ">&-", ">&- 2>&-"])
@pytest.mark.parametrize(("words", "code"), [("explain SY999", INVALID), ("data", DONE), ("run sim", DONE)])
def test_closed_output_leaves_the_exit_code_as_it_is(closed: str, words: str, code: int) -> None:
    command = f"exec {closed}; exec {sys.executable} -m steelyard.cli.main {words}"
    done = subprocess.run(["sh", "-c", command], check=False, capture_output=True, text=True)
    assert (done.returncode, "Traceback" in done.stderr) == (code, False)


def test_messages_name_paths_as_one_would_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("HOME", str(tmp_path))
    here = tmp_path / "work"
    assert from_here(f"{here}/a.toml: no such file; did you mean '{here}/b c.toml'?") == (
        "a.toml: no such file; did you mean 'b c.toml'?"
    )
    assert from_here(f"{tmp_path}/other/a.toml is a folder") == "~/other/a.toml is a folder"
    command = f"next: steelyard show --results '{tmp_path}/a b'"
    assert from_here(command) == command
    assert from_here(f"/mnt{here}/a") == f"/mnt{here}/a"
    assert from_here(f"{here}2/a") == "~/work2/a"


BASH = """
source steelyard.bash
function=$(complete -p steelyard | grep -o '_[a-z_]*steelyard[a-z_]*')
words() {
  COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
  $function steelyard "${@: -1}" "${@: -2:1}"; echo "${COMPREPLY[@]}"
}
words steelyard comp
words steelyard run --prec
words steelyard run sim --precision bf
mkdir -p steelyard-results/runs/mystudy
words steelyard show my
words steelyard suite run car
"""
FISH = """
source steelyard.fish
complete --do-complete 'steelyard comp'
complete --do-complete 'steelyard run --prec'
complete --do-complete 'steelyard run sim --precision bf'
mkdir -p steelyard-results/runs/mystudy
complete --do-complete 'steelyard show my'
complete --do-complete 'steelyard suite run car'
"""


@pytest.mark.parametrize(
    ("shell", "script"), [("bash", BASH), pytest.param("fish", FISH, marks=pytest.mark.full("needs fish"))]
)
def test_a_shell_completes_verbs_options_and_values(
    shell: str, script: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["completion", shell]) == 0
    (tmp_path / f"steelyard.{shell}").write_text(capsys.readouterr().out)
    done = subprocess.run([shell, "-c", script], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.stderr == ""
    for word in ("compare", "completion", "--precision", "bf16", "mystudy", "caraml"):
        assert word in done.stdout, done.stdout


@pytest.mark.full("needs zsh")
def test_zsh_completes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In a real terminal: zsh completes nowhere else."""
    assert main(["completion", "zsh"]) == 0
    (tmp_path / "_steelyard").write_text(capsys.readouterr().out)
    (tmp_path / "steelyard-results" / "runs" / "mystudy").mkdir(parents=True)
    (tmp_path / ".zshrc").write_text("PS1='> '\nfpath=($PWD $fpath)\nautoload -U compinit; compinit -D\n")
    environment = {**os.environ, "ZDOTDIR": str(tmp_path), "TERM": "dumb", "HOME": str(tmp_path)}
    master, slave = pty.openpty()
    shell = subprocess.Popen(["zsh", "-i"], stdin=slave, stdout=slave, stderr=slave, env=environment, cwd=tmp_path)
    os.close(slave)
    seen = ""
    try:
        for typed, expected in ((b"", "> "), (b"steelyard sel\t", "steelyard selftest"), (b"--qui\t", "--quick"),
                                (b"\x15steelyard run --precis\t", "--precision"),
                                (b"\x15steelyard show mys\t", "show mystudy")):  # fmt: skip
            os.write(master, typed)
            while expected not in seen:
                assert select.select([master], [], [], HANG_S)[0], seen
                seen += os.read(master, 4096).decode(errors="replace")
    finally:
        shell.kill()
        shell.wait()
        os.close(master)


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("show ''", "s.t-1"),
        ("compare x s", "s.t-1"),
        ("suite run n", "nrp"),
        ("explain SY30", "SY301 SY303"),
        ("explain run-s", "run-spec"),
        ("data show imagef", "imagefolder"),
        ("import --format nc", "nccl"),
        ("report --format h", "html"),
        ("workloads gp", "gpt"),
        ("site new slurm-n", "slurm-nvidia"),
        ("query slow-n", "slow-nodes"),
    ],
)
def test_bash_completes_names(typed: str, completed: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Those of studies from the results folder, whose folders may be called anything."""
    assert main(["completion", "bash"]) == 0
    (tmp_path / "steelyard.bash").write_text(capsys.readouterr().out)
    for name in ("s.t-1", "$(touch planted)", "`touch planted`", "b c", "-n", "*"):
        (tmp_path / "steelyard-results" / "runs" / name).mkdir(parents=True)
    script = f"{BASH.partition('words steelyard')[0]}words steelyard {typed}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.stdout.strip(), done.stderr) == (completed, "")
    assert not (tmp_path / "planted").exists()


def test_a_reader_that_stops_reading() -> None:
    command = f"{sys.executable} -m steelyard.cli.main explain run-record | head -c 1 > /dev/null"
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
