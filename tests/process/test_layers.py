"""The two sides stay apart: each runs where the other's libraries cannot be imported."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

from conftest import make_spec
from steelyard.contracts.observe import SPEC_FILE
from steelyard.results.store import record_text

if TYPE_CHECKING:
    from pathlib import Path

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
