"""What the documents tell people to type and to write works."""

from __future__ import annotations

import ast
import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import test_rules
from steelyard import registry
from steelyard.cli.main import main
from steelyard.rules.rule import rule

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
ADDING = (ROOT / "docs" / "adding-a-workload.md").read_text(encoding="utf-8")
ADDING_RULE = (ROOT / "docs" / "adding-a-rule.md").read_text(encoding="utf-8")
EXAMPLE = ROOT / "docs" / "examples" / "steelyard-mixer"


def test_the_example_of_an_own_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = re.search(r"```python\n(# my\.py\n.*?)```", README, re.DOTALL)
    assert found is not None
    assert len(found[1].splitlines()) <= 20
    (tmp_path / "my.py").write_text(found[1], encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    command = re.search(r"^steelyard (run \./my\.py:build .*)$", README, re.MULTILINE)
    assert command is not None
    quick = ["--max-steps", "30", "--min-steps", "30", "--min-seconds", "0", "--json"]
    assert main([*command[1].split(), *quick]) == 0
    record = json.loads(capsys.readouterr().out)["runs"][0]
    assert record["model"]["parameters"] == 64 * 512 + 512 + 512 * 10 + 10
    assert record["spec"]["batch"] == 128
    assert record["steps_seen"] == 30


def _blocks(kind: str, page: str = ADDING) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", page, re.DOTALL)


def _first(name: str, page: str = ADDING) -> str:
    return next(block for block in _blocks("python", page) if block.startswith(f"# {name}\n"))


def test_a_rule_is_one_file_one_registry_line_and_one_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = next(block for block in _blocks("python", ADDING_RULE) if block.startswith('"SY790"'))
    assert ast.literal_eval("{" + line + "}") == {"SY790": "steelyard.rules.tiles:OddBatch"}
    for name in ("tiles.py", "test_tiles.py"):
        (tmp_path / name).write_text(_first(name, ADDING_RULE), encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(registry.BUILTIN["rule"], "SY790", "tiles:OddBatch")
    importlib.import_module("test_tiles").test_an_unknown_precision_is_no_finding()
    made = rule("SY790")
    test_rules.test_a_rule_says_what_it_is("SY790")
    assert [found.code for found in test_rules.tried(made, made.bad, {})] == ["SY790"]
    assert test_rules.tried(made, made.good, {}) == []


def test_a_workload_is_one_file_one_registry_line_and_one_test(tmp_path: Path) -> None:
    """The page's own file, line and test, with the file beside the package instead of in it."""
    line = next(block for block in _blocks("python") if block.startswith('"perceptron"'))
    entry = ast.literal_eval("{" + line + "}")
    assert entry == {"perceptron": "steelyard.worker.workloads.perceptron:build"}
    (tmp_path / "perceptron.py").write_text(_first("perceptron.py"), encoding="utf-8")
    (tmp_path / "conftest.py").write_text(
        "from steelyard import registry\nregistry.BUILTIN['workload']['perceptron'] = 'perceptron:build'\n"
    )
    (tmp_path / "test_perceptron.py").write_text(
        _first("test_perceptron.py") + "\n\ndef test_published():\n"
        "    from steelyard import registry\n"
        "    build = registry.load('workload', 'perceptron')\n"
        "    built = sum(parameter.numel() for parameter in build().module.parameters())\n"
        "    assert built == build.about.parameters\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout


def test_a_package_adds_a_workload_by_its_entry_point(tmp_path: Path) -> None:
    said = _blocks("toml")[0].strip()
    assert said in (EXAMPLE / "pyproject.toml").read_text(encoding="utf-8")
    place = tmp_path / "site"
    install = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "--target",
        str(place),
    ]
    subprocess.run([*install, str(EXAMPLE)], check=True, capture_output=True)
    environment = {**os.environ, "PYTHONPATH": str(place)}
    short = ["--batch", "4", "--threads", "1", "--device", "cpu", "--max-steps", "3", "--min-seconds", "0", "--json"]
    steelyard = [sys.executable, "-m", "steelyard.cli.main"]
    done = subprocess.run(
        [*steelyard, "run", "mixer", "--model", "layers=1", *short],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)["runs"][0]
    assert record["spec"]["workload"] == "mixer"
    assert record["steps_seen"] == 3
    assert record["model"]["flops_per_sample"] > 0
    listed = subprocess.run([*steelyard, "workloads"], env=environment, capture_output=True, text=True, check=True)
    assert "mixer" in listed.stdout


@pytest.mark.parametrize("study", sorted((ROOT / "docs" / "examples" / "studies").glob("*.toml")), ids=lambda p: p.stem)
def test_the_example_studies_can_be_planned(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study", str(study), "--dry-run", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["study"] == study.stem
    assert len(plan["cells"]) >= 5
