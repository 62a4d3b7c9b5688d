"""A user's own workload: found, named, checked and run from its file."""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys
from typing import TYPE_CHECKING, Any

import pytest

from conftest import make_spec
from steelyard.cli.main import main
from steelyard.contracts.spec import Budget
from steelyard.errors import InputError
from steelyard.inputs.source import find_source, workload_name
from steelyard.inputs.study import Study, expand, load_study, single_run

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from steelyard.contracts.record import RunRecord
    from steelyard.contracts.spec import RunSpec

pytestmark = pytest.mark.usefixtures("torch_as_it_was")

MY = """
import wave
import torch
from beside import WIDTH
from torch import nn

def batch(samples, generator):
    return torch.randn(samples, WIDTH, generator=generator), torch.zeros(samples, 1)

def build(hidden: int, layers: int = 1, rate: float = 0.1):
    parts = [nn.Linear(WIDTH, hidden)] + [nn.Linear(hidden, hidden) for _ in range(layers)]
    module = nn.Sequential(*parts, nn.Linear(hidden, 1))
    return module, nn.functional.mse_loss, lambda parameters: torch.optim.SGD(parameters, lr=rate), batch

def any_options(**options):
    return build(**options)

def only_a_module(hidden: int = 3):
    return nn.Linear(WIDTH, hidden)

def three():
    return build(2)[:3]

not_a_function = 3
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's folder as the current one. Modules that the file imports are removed after each test."""
    home = tmp_path / "mine"
    home.mkdir()
    (home / "my.py").write_text(MY)
    (home / "beside.py").write_text("WIDTH = 5\n")
    (home / "wave.py").write_text("raise SystemExit('a file beside the workload took the place of a library')\n")
    monkeypatch.chdir(home)
    monkeypatch.delenv("STEELYARD_RESULTS", raising=False)
    # Saved by pytest and restored after the test.
    monkeypatch.syspath_prepend(str(tmp_path / "nothing"))
    for name in ("beside", "wave", "steelyard_user_workload"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return home


def spec_of(workload: str, **settings: Any) -> RunSpec:
    """Like the command line creates it, but short."""
    made = single_run({"workload": workload, "device": "cpu"}, study="s", seed=0, repeats=1, taken=lambda _: set())
    short = Budget(min_steps=10, max_steps=10, min_seconds=0)
    spec = made.runs[0]
    return dataclasses.replace(spec, budget=short, crosscheck_steps=0, **settings)


def test_by_the_command_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--device", "cpu", "--model", "hidden=7", "--model", "layers=2", "--min-steps", "10", "--max-steps", "10"]
    code = main(["run", "./my.py:build", *words, "--min-seconds", "0", "--json"])
    out = capsys.readouterr()
    assert code == 0, out
    record = json.loads(out.out)["runs"][0]
    spec = record["spec"]
    assert (spec["workload"], spec["model"]) == ("my.build", {"hidden": 7, "layers": 2})
    assert spec["source"]["path"] == str(folder / "my.py")
    assert record["model"]["parameters"] == 6 * 7 + 2 * 8 * 7 + 8
    # A multiply-add is two; the first layer's inputs need no gradient.
    assert record["model"]["flops_per_sample"] == 3 * 2 * (5 * 7 + 2 * 7 * 7 + 7) - 2 * 5 * 7
    assert record["settings"]["values"]["optimizer"] == "SGD"
    assert record["run_id"].startswith("my.build-")
    assert main(["show", "adhoc"]) == 0
    assert "my.build" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("workload", "model", "words"),
    [
        ("my.py:build", {"hiden": 3, "layer": 1}, "model.hiden: unknown option; valid: hidden, layers, rate"),
        ("my.py:build", {"hiden": 3, "layer": 1}, "model.layer: unknown option"),
        ("my.py:build", {}, "model.hidden: is missing; valid: --model hidden=VALUE"),
        ("my.py:only_a_module", {"x": 1}, "model.x: unknown option; valid: hidden"),
        ("my.py:three", {"x": 1}, "model.x: unknown option; valid: none"),
        ("my.py:not_a_function", {}, "my.py has no function not_a_function"),
        ("my.py:only_a_module", {}, "returned Linear; next: return (module, loss, optimizer, batch)"),
        ("my.py:three", {}, "returned tuple; next: return (module, loss, optimizer, batch)"),
    ],
)
def test_what_is_refused_when_it_is_built(
    workload: str, model: dict[str, Any], words: str, folder: Path, simulate: Callable[[RunSpec], RunRecord]
) -> None:
    status = simulate(spec_of(workload, model=model)).status
    assert status.code == "refused", status
    assert words in status.reason


def test_a_function_that_takes_any_option(folder: Path, simulate: Callable[[RunSpec], RunRecord]) -> None:
    record = simulate(spec_of("my.py:any_options", model={"hidden": 4}))
    assert record.status.code == "completed", record.status
    status = simulate(spec_of("my.py:any_options", model={"wrong": 4})).status
    assert (status.code, "wrong" in status.reason) == ("failed", True)
    assert status.evidence is not None
    assert "my.py:16" in str(status.evidence["where"])


def test_only_the_requested_file_is_run(folder: Path, simulate: Callable[[RunSpec], RunRecord]) -> None:
    asked = spec_of("my.py:build", model={"hidden": 2})
    assert simulate(asked).status.code == "completed"
    (folder / "my.py").write_text(MY.replace("rate: float = 0.1", "rate: float = 0.2"))
    status = simulate(asked).status
    assert status.code == "refused"
    assert "my.py has changed since this run was requested; next: run the command again" in status.reason
    (folder / "my.py").unlink()
    status = simulate(asked).status
    assert (status.code, "No such file" in status.reason) == ("refused", True)


def test_a_changed_file_is_read_again(folder: Path, simulate: Callable[[RunSpec], RunRecord]) -> None:
    """Also by a process that has run an earlier version of the file, or has failed to."""

    def parameters() -> int:
        record = simulate(spec_of("my.py:build", model={"hidden": 1}))
        assert record.model is not None, record.status
        return record.model.parameters

    assert parameters() == 6 + 2 + 2
    (folder / "my.py").write_text(MY.replace("layers: int = 1", "layers: int = 4"))
    assert parameters() == 6 + 4 * 2 + 2
    (folder / "my.py").write_text(MY + "\nraise RuntimeError('not today')\n")
    for _ in range(2):
        status = simulate(spec_of("my.py:build", model={"hidden": 1})).status
        assert (status.code, status.reason) == ("failed", "RuntimeError: not today")
    (folder / "my.py").write_text("def build(:\n")
    with pytest.raises(InputError, match=r"my\.py:1: not valid Python: invalid syntax"):
        spec_of("my.py:build")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["run", "./none.py:build"], "no such file"),
        (["run", "./my.py:bild"], "no such function; did you mean ./my.py:build?"),
        (["run", "./my.py"], "must name a function"),
        (["run", "mine/my:build"], "must name a function"),
        (["run", "./my.py:not-a-name"], "must name a function"),
        (["run", "./my.py:build", "--set", "source.path=/etc/passwd"], "source: is set by steelyard"),
        (["run", "./my.py:build", "--device", "sim", "--mode", "generate"], "does not run the mode generate"),
        (["run", "./my.py:build", "--model", "hidden"], "KEY=VALUE"),
    ],
)
def test_what_is_refused_before_anything_starts(
    words: list[str], text: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert text in capsys.readouterr().err
    assert not (folder / "steelyard-results").exists()


def test_a_study_names_files_of_its_own_folder_only(folder: Path) -> None:
    def study(workload: str, **run: Any) -> Study:
        return Study(name="s", repeats=1, run={"workload": workload, **run})

    below = folder / "studies"
    below.mkdir()
    shutil.copy(folder / "my.py", below / "own.py")
    shutil.copytree(below, folder / "studies-of-others")
    (below / "link.py").symlink_to(folder / "my.py")
    for outside in ("../my.py:build", f"{folder}/my.py:build", "link.py:build", "../studies-of-others/own.py:build"):
        with pytest.raises(InputError, match="is outside the study's folder; valid: a file beside the study"):
            expand(study(outside), below)
    for inside in ("own.py:build", "./own.py:build", f"{below}/own.py:build", "../studies/own.py:build"):
        assert expand(study(inside), below).cells[0].spec.workload == "own.build"
    with pytest.raises(InputError, match="only a study in a file"):
        expand(study("own.py:build"))
    digest = "0" * 64
    for settings in ({"source": {"path": "/x.py", "function": "f", "sha256": digest}}, {"source": None}):
        with pytest.raises(InputError, match=r"run\.source: is set by steelyard; leave it out"):
            expand(study("own.py:build", **settings), below)
    with pytest.raises(InputError, match=r"source[.a-z]*: is set by steelyard"):
        expand(Study(name="s", run={"workload": "tiny"}, sweep={"source.path": ("/x.py",)}), below)
    (below / "s.toml").write_text(f'name = "s"\n[run.source]\npath = "/x"\nfunction = "f"\nsha256 = "{digest}"\n')
    with pytest.raises(InputError, match=r"run\.source"):
        expand(load_study(below / "s.toml"), below)


def test_a_study_may_sweep_over_workloads(folder: Path) -> None:
    swept = {"workload": ("my.py:build", "my.py:three", "tiny")}
    found = expand(Study(name="s", repeats=1, sweep=swept), folder)
    assert [cell.spec.workload for cell in found.cells] == ["my.build", "my.three", "tiny"]
    assert [cell.spec.source is None for cell in found.cells] == [False, False, True]


def test_a_configuration_is_named_by_the_content_of_the_file_not_its_path(folder: Path) -> None:
    (folder / "copy").mkdir()
    shutil.copy(folder / "my.py", folder / "copy")
    here = spec_of("my.py:build").configuration
    assert spec_of("copy/my.py:build").configuration == spec_of(str(folder / "copy/my.py:build")).configuration == here
    assert spec_of("my.py:three").configuration != here
    (folder / "copy" / "my.py").write_text(MY + "\n")
    assert spec_of("copy/my.py:build").configuration != here


@pytest.mark.parametrize(
    ("name", "called"),
    [("my.py", "my.f"), ("größe 2.py", "gr__e_2.f"), ("__init__.py", "init__.f"), ("ю.py", "own.f"), (".py", "py.f")],
)
def test_what_a_workload_is_called(name: str, called: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(f"def f(): ...\n{'f' * 80} = f\n")
    source = find_source(f"{name}:f", tmp_path, below=tmp_path)
    assert source is not None
    assert workload_name(source) == called
    assert make_spec(workload=workload_name(source), source=source).source == source
    long = find_source(f"{name}:{'f' * 80}", tmp_path, below=tmp_path)
    assert long is not None
    assert len(workload_name(long)) == 80


def test_a_file_does_not_undo_the_switches(folder: Path, simulate: Callable[[RunSpec], RunRecord]) -> None:
    (folder / "fast.py").write_text(MY + "\ntorch.set_float32_matmul_precision('high')\ntorch.rand(3)\n")
    record = simulate(spec_of("fast.py:build", model={"hidden": 3}))
    assert record.status.code == "completed", record.status
    assert record.settings is not None
    assert record.settings.values["float32_matmul_precision"] == "highest"


def test_a_missing_path_is_an_input_error(tmp_path: Path) -> None:
    (tmp_path / "loop.py").symlink_to(tmp_path / "loop.py")
    for path in ("a\0b.py", "loop.py"):
        with pytest.raises(InputError):
            find_source(f"{path}:build", tmp_path, below=tmp_path)


MIXED = """
import torch

class Shifted(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(x.float() + torch.zeros(4))

def build():
    batch = lambda samples, generator: (torch.randn(samples, 4, generator=generator), torch.zeros(samples, 4))
    return Shifted(), torch.nn.functional.mse_loss, lambda p: torch.optim.SGD(p, lr=0.1), batch
"""


@pytest.mark.full("takes long: 8 s, two runs")
def test_a_model_that_makes_its_own_fp32_is_told_about_autocast(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mixed.py").write_text(MIXED)
    words = ["run", f"{tmp_path / 'mixed.py'}:build", "--mode", "infer", "--precision", "bf16", "--device", "cpu"]
    words += ["--max-steps", "3", "--min-steps", "3", "--results", str(tmp_path / "results")]
    assert main(words) == 2
    assert "--autocast" in capfd.readouterr().err
    assert main([*words, "--autocast"]) == 0
