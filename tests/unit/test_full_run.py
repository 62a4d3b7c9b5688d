"""The full run: every test and figure is in the gate or in one part, and every recorded figure holds or is named."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import subprocess
import sys
from collections import Counter
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

import figure
import figures
import quick
from conftest import FOLDERS
from steelyard import hostload
from steelyard.hostload import TICK_S
from test_gate import gate_code
from test_load import plant, stat

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


# As for a script that is started: what they share is in a module beside them.
sys.path.append(str(ROOT / ".ci"))
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
        (False, True, None, False, 1),
        (False, False, 1.0, False, 1),
    ],
)
def test_only_a_miss_beside_others_is_undecided(
    holds: bool, of_time: bool, others: float | None, told: bool | None, code: int,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(figure.OTHERS, "cpus", lambda: others)
    one = figure.at_most("a", 1.0 if holds else 3.0, "s", 2.0)
    with pytest.raises(SystemExit) as ended:
        figure.finish([figure.of_time(one) if of_time else one])
    row = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert row == {"name": "a", "figure": one.figure, "unit": "s", "bar": "<= 2", "holds": told}
    assert ended.value.code == code


def test_our_own_work_is_not_that_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within 10 s: 2 s of ours, 1 s of an ended child, 4 s of one that runs, 3 s of another program, 1 s stolen."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})

    def at(now_s: float, own: int, ended: int, child: int, other: int, stolen: int) -> None:
        own, ended, child, other, stolen = (round(s / TICK_S) for s in (own, ended, child, other, stolen))
        monkeypatch.setattr(hostload, "time", SimpleNamespace(monotonic=lambda: now_s))
        first = f"cpu0 {own + ended} 0 0 77 88 0 0 {stolen}"
        # Nothing of ours runs on the third.
        rest = f"cpu1 0 0 {child} 77 88 0 {other} 0\ncpu2 {round(now_s / TICK_S)} 0 0 0 0 0 0 0"
        lines = {7: stat(7, 1, other, 0, 0, 0), 8: stat(8, os.getpid(), 0, child, 0, 0)}
        lines[os.getpid()] = stat(os.getpid(), 1, own, 0, ended, 0)
        plant(tmp_path, {"proc/stat": f"{first}\n{rest}\n"} | {f"proc/{n}/stat": text for n, text in lines.items()})

    at(50.0, own=3, ended=1, child=0, other=7, stolen=2)
    seen = figure.Others(tmp_path)
    at(60.0, own=5, ended=2, child=4, other=10, stolen=3)
    assert seen.cpus() == pytest.approx((3 + 1) / 10)
    assert figure.Others(tmp_path / "empty").cpus() is None


KNOWN = {"name": "a", "holds": False}
NEW = {"name": "b", "holds": False}
HELD = {"name": "b", "holds": True}


@pytest.mark.parametrize(
    ("name", "code", "last", "result"),
    [
        ("named", 0, json.dumps(HELD), "holds"),
        ("named", 3, json.dumps([{"name": "a", "holds": None}, HELD]), "undecided"),
        ("named", 1, json.dumps(KNOWN), "missed as known"),
        ("named", 1, json.dumps([KNOWN, HELD]), "missed as known"),
        ("named", 1, json.dumps([KNOWN, NEW]), "failed"),
        ("named", 1, json.dumps(NEW), "failed"),
        ("named", 1, json.dumps(HELD), "failed"),
        ("other", 1, json.dumps(KNOWN), "failed"),
        ("named", 2, json.dumps(KNOWN), "failed"),
        ("named", -9, json.dumps(KNOWN), "failed"),
        ("named", 1, f"{json.dumps(KNOWN)}\nValueError: x", "failed"),
        ("named", 1, "5", "failed"),
        ("named", 1, '{"error": "x"}', "failed"),
        ("named", 1, "", "failed"),
    ],
)
def test_only_a_miss_of_named_rows_is_known(
    name: str, code: int, last: str, result: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quick, "MISSED", {"named": {"a": "why"}})
    assert quick.result_of(name, code, f"MISS a\n{last}" if last else "") == result


# -- recorded figures


def test_every_figure_is_measured_or_named_as_unmeasured() -> None:
    assert RECORDED.keys() <= set(figures.NAMES)
    assert sorted(set(figures.NAMES) - RECORDED.keys()) == sorted(figures.UNMEASURED)


@pytest.mark.parametrize("name", RECORDED)
def test_a_recorded_figure_holds_or_is_named_as_missed(name: str) -> None:
    entry = RECORDED[name]
    missed = {row["name"] for row in entry["figures"] if not row["holds"]}
    assert entry["holds"] == (not missed)
    assert missed == figures.MISSED.get(name, {}).keys()


def test_what_is_named_as_missed_is_recorded() -> None:
    assert figures.MISSED.keys() <= RECORDED.keys()


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


@pytest.mark.parametrize("one", passes.SHORT)
def test_the_short_passes_are_in_the_gate(one: str) -> None:
    path, _, name = one.partition("[")[0].partition("::")
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    found = [made.name for made in gate_code(tree, Path(path).parts[1]) if isinstance(made, ast.FunctionDef)]
    assert name in found


def test_a_kind_of_pass_is_one_of_four(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", [".ci/passes", "short", "long"])
    with pytest.raises(SystemExit):
        passes.main()
    assert "unknown kind: long; valid: alone, busy, together, short" in capsys.readouterr().err


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


def test_which_test_files_a_fault_needs(tmp_path: Path) -> None:
    source = "src/steelyard/stats/a.py"
    # A constant inside a statement of several lines is reached where the statement is.
    fault = next(one for one in teeth.faults_of(source, b"a = b(\n    1,\n)\n") if one.old == "1")
    known = {
        "seconds": {
            "tests/process/test_slow.py": 20.0,
            "tests/unit/test_quick.py": 2.0,
            "tests/process/test_far.py": 1.0,
        },
        "reached": {source: {"1": ["tests/process/test_slow.py", "tests/unit/test_quick.py"]}},
    }
    assert teeth.of_gate(fault, known) == ["tests/unit/test_quick.py", "tests/process/test_slow.py"]
    # Ten times the seconds, and more than ten times as much of the file.
    known["reached"][source] |= {str(line): ["tests/process/test_slow.py"] for line in range(2, 30)}
    assert teeth.of_gate(fault, known) == ["tests/process/test_slow.py", "tests/unit/test_quick.py"]
    (tmp_path / "tests" / "process").mkdir(parents=True)
    for name in ("slow", "far", "only_full"):
        (tmp_path / "tests" / "process" / f"test_{name}.py").touch()
    known["seconds"]["tests/process/test_only_full.py"] = None
    assert teeth.of_full_run(tmp_path, fault, known) == [
        "tests/process/test_slow.py",
        "tests/process/test_far.py",
        "tests/process/test_only_full.py",
    ]
