"""The two sides stay apart: each runs where the other's libraries cannot be imported."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

from conftest import make_spec
from steelyard.cli.main import main
from steelyard.contracts.observe import SPEC_FILE
from steelyard.inputs.templates import template
from steelyard.results.store import record_text
from steelyard.rules.rule import codes

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

BLOCK = "import sys\nfor name in {names!r}:\n    sys.modules[name] = None\n"


def run_without(names: list[str], code: str) -> subprocess.CompletedProcess[str]:
    program = BLOCK.format(names=names) + code
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)


def test_every_verb_imports_without_torch() -> None:
    code = (
        "import importlib\nfrom steelyard.cli.main import VERBS\n"
        "for verb in VERBS:\n    importlib.import_module(f'steelyard.cli.{verb}')\n"
        "assert not [name for name in sys.modules if name.startswith('steelyard.worker')]\n"
    )
    done = run_without(["torch"], code)
    assert done.returncode == 0, done.stderr


def test_the_worker_runs_with_numpy_alone(tmp_path: Path) -> None:
    (tmp_path / SPEC_FILE).write_text(record_text(make_spec(devices=2)))
    code = f"sys.argv = ['worker', {str(tmp_path)!r}]\nfrom steelyard.worker.__main__ import main\nsys.exit(main())\n"
    done = run_without(["pydantic", "pydantic_core", "scipy", "torch", "tomllib"], code)
    assert done.returncode == 0, done.stderr
    last = json.loads((tmp_path / "events-00000.jsonl").read_text().splitlines()[-1])
    assert (last["kind"], last["code"]) == ("status", "completed")


HEAVY = ["torch", "numpy", "scipy", "pydantic", "pydantic_core"]
RUN = "from steelyard.cli.main import main\nsys.exit(main({words!r}))\n"


def test_names_and_texts_are_looked_up_without_heavy_libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here.toml").write_text(template("sites", "slurm-cpu"))
    monkeypatch.setenv("STEELYARD_SITES", str(tmp_path))
    looked_up = [*(["explain", code] for code in codes()), ["explain", "settings"], ["suite", "list"], ["site", "list"]]
    looked_up += [["workloads"], ["workloads", "resnet50"], ["completion", "bash"], ["--version"]]
    code = f"from steelyard.cli.main import main\nsys.exit(max(main(words) for words in {looked_up!r}))\n"
    done = run_without(HEAVY, code)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"{tmp_path}/here.toml" in done.stdout


def test_a_small_study_is_shown_and_compared_without_heavy_libraries(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(
        'name = "s"\nrepeats = 3\n[run]\nworkload = "sim"\ndevice = "sim"\nbudget.max_steps = 100\n'
        "[sweep]\nbatch = [16, 32]\n"
    )
    results = ["--results", str(tmp_path / "r")]
    assert main(["study", str(tmp_path / "s.toml"), "--quiet", *results]) == 0
    for words in (["show", "s"], ["show", "s", "--json"], ["compare", "s:batch=16", "s:batch=32"]):
        done = run_without(HEAVY, RUN.format(words=[*words, *results]))
        assert (done.returncode, done.stderr) == (0, ""), words


def test_help_needs_no_library() -> None:
    code = "from steelyard.cli.main import main\nsys.exit(main(['--help']))\n"
    done = run_without(["torch", "numpy", "pydantic", "scipy", "argparse"], code)
    assert (done.returncode, "usage: steelyard" in done.stdout) == (0, True), done.stderr


def test_help_of_every_verb_and_option_errors_need_no_library() -> None:
    code = (
        "from steelyard.cli.main import VERBS\nfrom steelyard.cli.verb import make_parser\n"
        "for verb in VERBS:\n    make_parser(verb).format_help()\n"
    )
    done = run_without(["torch", "numpy", "pydantic", "scipy", "rich", "shtab"], code)
    assert done.returncode == 0, done.stderr
