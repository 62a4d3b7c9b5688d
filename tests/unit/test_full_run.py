"""The full run: every test and figure is in the gate or in one part, and every recorded figure holds or is named."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import subprocess
import sys
from collections import Counter
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

import pytest
import yaml

import figure
import figures
import quick
from conftest import FOLDERS

ROOT = Path(__file__).parents[2]
OF_ANY_CODE = {"tests", "documents", "figures", "times"}
RECORDED = json.loads(figures.DATA.read_text(encoding="utf-8"))


def _load(name: str) -> Any:
    """Import a script of .ci, whose name has no ending."""
    loader = SourceFileLoader(f"ci_{name}", str(ROOT / ".ci" / name))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    # A dataclass looks for its module there.
    sys.modules[loader.name] = module
    loader.exec_module(module)
    return module


full, passes, teeth = _load("full"), _load("passes"), _load("teeth")


# -- what is in which part


def test_every_folder_of_tests_is_in_one_part() -> None:
    commands = [line for part in full.PARTS.values() for line in part.commands if line.startswith(full.TESTS)]
    assert Counter(re.findall(r"tests/(\w+)", " ".join(commands))) == Counter(FOLDERS)
    found = {path.relative_to(ROOT / "tests").parts[0] for path in (ROOT / "tests").rglob("test_*.py")}
    assert found == set(FOLDERS)


def test_every_script_is_listed_once() -> None:
    listed = [*figures.NAMES, *figures.ELSEWHERE]
    assert sorted(listed) == sorted(path.stem for path in figures.SCRIPTS.glob("*.py"))
    assert set(figures.NAMES) >= quick.TOGETHER


@pytest.mark.parametrize("name", sorted(quick.TOGETHER))
def test_a_figure_about_time_is_measured_alone(name: str) -> None:
    text = (figures.SCRIPTS / f"{name}.py").read_text(encoding="utf-8")
    assert re.search(r"\b(of_time|timed)\(", text) is None


def test_every_part_is_run_at_night() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/full.yml").read_text(encoding="utf-8"))
    assert workflow["jobs"]["full"]["strategy"]["matrix"]["part"] == list(full.PARTS)


@pytest.mark.parametrize(
    ("file", "parts"),
    [
        ("tests/slurm/test_slurm.py", {"slurm"}),
        (
            "src/steelyard/launch/slurm/states.py",
            {"tests", "slurm", "containers", "kubernetes", "documents", "figures", "times"},
        ),
        ("docs/tables.md", {"browser", "documents"}),
        ("pyproject.toml", set(full.PARTS)),
        ("LICENSE", set()),
    ],
)
def test_parts_that_a_change_needs(file: str, parts: set[str]) -> None:
    assert set(full.touched([file])) == parts


# -- what a part says


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """Parts of the test, without an installation."""
    made: dict[str, Any] = {}
    monkeypatch.setattr(full, "PARTS", made)
    monkeypatch.setattr(full, "RESULT", tmp_path / "full.json")
    monkeypatch.setattr(full, "ROOT", tmp_path)
    monkeypatch.setattr(full, "DETAILS", tmp_path / "figures.json")
    monkeypatch.setattr(full, "QUICK", "true")
    (tmp_path / ".ci").mkdir()
    (tmp_path / ".ci" / "lib").touch()
    return made


def test_a_part_that_fails_does_not_stop_the_others(
    parts: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    parts["wrong"] = full.Part("", ("false", "touch went-on"), (), install=())
    parts["uninstalled"] = full.Part("", ("touch never",), (), install=("exit 7",))
    parts["slow"] = full.Part("", ("true; exit 3",), (), install=())
    parts["of pytest"] = full.Part("", ("exit 3",), (), install=())
    parts["right"] = full.Part("", ("true",), (), install=("true",))
    monkeypatch.setattr(sys, "argv", [".ci/full"])
    assert full.main() == 1
    rows = json.loads(full.RESULT.read_text(encoding="utf-8"))
    assert {row["part"]: row["exit_code"] for row in rows} == {
        "wrong": 1, "uninstalled": 1, "slow": 3, "of pytest": 1, "right": 0,
    }  # fmt: skip
    assert (full.ROOT / "went-on").exists()
    assert not (full.ROOT / "never").exists()
    text = capsys.readouterr().out
    assert "failed: exit 7 (7)" in text
    monkeypatch.setattr(sys, "argv", [".ci/full", "slow", "right"])
    assert full.main() == 3
    monkeypatch.setattr(sys, "argv", [".ci/full", "right"])
    assert full.main() == 0


@pytest.mark.parametrize(
    ("holds", "of_time", "others", "told", "code"),
    [
        (True, True, 1.0, True, 0),
        (False, True, 0.2, False, 1),
        (False, True, 0.3, None, 3),
        (False, False, 1.0, False, 1),
    ],
)
def test_only_a_miss_beside_others_is_undecided(
    holds: bool, of_time: bool, others: float, told: bool | None, code: int,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(figure.OTHERS, "cpus", lambda: others)
    one = figure.at_most("a", 1.0 if holds else 3.0, "s", 2.0)
    with pytest.raises(SystemExit) as ended:
        figure.finish([figure.of_time(one) if of_time else one])
    row = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert row == {"name": "a", "figure": one.figure, "unit": "s", "bar": "<= 2", "holds": told}
    assert ended.value.code == code


def test_our_own_work_is_not_that_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader of /proc/stat, with one processor of ours and a third of one of others, within 10 s."""
    seen = figure.Others()
    begin_s, before_s = seen._begin
    monkeypatch.setattr(figure.Others, "_now", staticmethod(lambda: (begin_s + 10, before_s + 10 / 3)))
    assert seen.cpus() == pytest.approx(1 / 3)


# -- recorded figures


def test_every_figure_is_measured_or_named_as_unmeasured() -> None:
    assert RECORDED.keys() <= set(figures.NAMES)
    assert sorted(set(figures.NAMES) - RECORDED.keys()) == sorted(figures.UNMEASURED)


@pytest.mark.parametrize("name", RECORDED)
def test_a_recorded_figure_holds_or_is_named_as_missed(name: str) -> None:
    entry = RECORDED[name]
    assert entry["holds"] == all(row["holds"] for row in entry["figures"])
    assert entry["holds"] != (name in figures.MISSED)


def test_the_versions_are_newest_or_lowest() -> None:
    done = subprocess.run(["bash", str(ROOT / ".ci/versions"), "old"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "usage: .ci/versions newest | lowest\n")


# -- whole passes of the gate


def test_the_seconds_of_a_gate_are_without_install() -> None:
    table = "\n== seconds of each part\n     9  install\n    38  install packages\n     1  lint\n   600  tests\n"
    assert passes.seconds(f"   77  noise\n{table}   648  all, passed\n") == (601, 47)


def test_what_passes_are_wanted(capsys: pytest.CaptureFixture[str]) -> None:
    every = [
        {"kind": kind, "passed": True, "seconds": 700, "install_seconds": 9}
        for kind, count in passes.WANTED.items()
        for _ in range(count)
    ]
    assert passes.judge(every)["holds"]
    assert not passes.judge(every[1:])["holds"]
    assert passes.judge([{**every[0], "seconds": 900}, *every[1:]])["holds"]
    assert "alone, above 720 s: 900; the reason" in capsys.readouterr().out
    assert not passes.judge([{**every[0], "seconds": 1201}, *every[1:]])["holds"]
    assert not passes.judge([{**every[0], "passed": False}, *every[1:]])["holds"]
    assert not passes.judge([*every, {**every[-1], "passed": False}])["holds"]


# -- faults that the gate must notice

SAMPLE = b'''"""Text with 1 and True."""
def total(rows: list[int], most: int = 3) -> int:
    if rows and most <= 4:
        rows.sort()
    return f"{1 + 2}" if not rows else rows[0] * 2  # caf\xc3\xa9
'''


def test_every_fault_changes_the_code_and_no_text() -> None:
    found = teeth.faults_of("a.py", SAMPLE)
    made = [SAMPLE[: one.begin] + one.text.encode() + SAMPLE[one.end :] for one in found]
    before = ast.dump(ast.parse(SAMPLE))
    assert all(ast.dump(ast.parse(text)) != before for text in made)
    assert sorted((one.line, one.old, one.text) for one in found) == [
        (2, "3", "(4)"),
        (3, "4", "(5)"),
        (3, "most <= 4", "(most < 4)"),
        (3, "rows and most <= 4", "(not (rows and most <= 4))"),
        (3, "rows and most <= 4", "(rows or most <= 4)"),
        (4, "rows.sort()", "None"),
        (5, "0", "(1)"),
        (5, "2", "(3)"),
        (5, 'f"{1 + 2}" if not rows else rows[0] * 2', "None"),
        (5, "not rows", "(not not rows)"),
        (5, "not rows", "(rows)"),
        (5, "rows[0] * 2", "(rows[0] / 2)"),
    ]


def test_faults_are_drawn_from_every_large_package(tmp_path: Path) -> None:
    for name, lines in (("large", 200), ("small", 100), ("none", 1)):
        folder = tmp_path / teeth.SOURCE / name
        folder.mkdir(parents=True)
        (folder / "a.py").write_text("a = b + 1\n" * lines)
    found = teeth.drawn(tmp_path, 1)
    assert Counter(Path(one.file).parent.name for one in found) == {"large": 40, "small": 20}
    assert found == teeth.drawn(tmp_path, 1)
    assert found != teeth.drawn(tmp_path, 2)
