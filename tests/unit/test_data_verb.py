"""The verb `data` as a user types it: list, show, check, make, shards; what it prints and its exit codes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from steelyard import plugins
from steelyard.cli.main import main
from steelyard.inputs.data_set import SAMPLED, WORKLOADS

if TYPE_CHECKING:
    from pathlib import Path

IMAGES = ["cifar10", "cifar100", "food101", "imagefolder", "mnist", "webdataset"]


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run_json(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, Any]:
    code = main(["data", *words, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_list_names_every_format(capsys: pytest.CaptureFixture[str]) -> None:
    code, found = run_json(capsys)
    assert (code, [row["name"] for row in found["formats"]]) == (0, plugins.names("data"))
    assert main(["data"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in plugins.names("data"))
    assert "next: steelyard data show FORMAT" in out


def test_a_format_that_is_broken_hides_no_other(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(plugins.BUILTIN["data"], "broken", "steelyard.nowhere:FORM")
    code, found = run_json(capsys)
    assert (code, len(found["formats"])) == (0, len(plugins.names("data")))
    assert any("cannot be loaded" in row["title"] for row in found["formats"])


@pytest.mark.parametrize("name", IMAGES)
def test_show_tells_layout_source_and_terms(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "show", name]) == 0
    out = capsys.readouterr().out
    form = plugins.load("data", name)
    assert all(line in out for line in form.layout.splitlines())
    assert "https://" in out
    assert f"steelyard data check {name}:PATH" in out
    code, facts = run_json(capsys, "show", name)
    assert (code, facts["layout"], facts["source"]) == (0, form.layout, form.source)


@pytest.mark.parametrize("name", IMAGES)
def test_make_then_check(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "make", name, "made here", "--samples", "40", "--seed", "3"]) == 0
    out = capsys.readouterr().out
    assert "No problems found." in out
    assert f"--data '{name}:made here'" in out
    code, found = run_json(capsys, "check", f"{name}:made here")
    assert (code, found["problems"]) == (0, [])
    assert (found["splits"]["train"]["examples"], found["splits"]["evaluation"]["examples"]) == (40, 10)
    assert found["next"].split()[2] in plugins.names("workload")
    assert len(found["identity"]) == 64
    # Not over what is there.
    assert main(["data", "make", name, "made here"]) == 2
    assert "is not empty" in capsys.readouterr().err


def test_check_samples_or_takes_all(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["data", "make", "cifar100", "c", "--samples", "500"]) == 0
    path = tmp_path / "c" / "cifar-100-binary" / "train.bin"
    held = bytearray(path.read_bytes())
    # Record 1 is none of the spread ones; the last always is.
    held[3074 + 1] = 255
    path.write_bytes(held)
    capsys.readouterr()
    code, found = run_json(capsys, "check", "cifar100:c")
    assert (code, found["splits"]["train"]["decoded"]) == (0, SAMPLED)
    code, found = run_json(capsys, "check", "cifar100:c", "--all")
    assert (code, found["splits"]["train"]["decoded"], len(found["problems"])) == (1, 500, 1)
    held[-3073] = 255
    path.write_bytes(held)
    assert main(["data", "check", "cifar100:c"]) == 1
    out = capsys.readouterr().out
    assert "train.bin: record 499 has the label 255" in out
    assert "1 problem" in out
    assert "steelyard run" not in out


def test_check_goes_on_behind_a_problem(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["data", "make", "imagefolder", "f", "--samples", "60"]) == 0
    for path in sorted((tmp_path / "f" / "train").rglob("*.JPEG"))[:30]:
        path.write_bytes(b"\x80\x04spoiled \x1b[2J")
    (tmp_path / "f" / "val" / "strange").mkdir()
    capsys.readouterr()
    assert main(["data", "check", "imagefolder:f"]) == 1
    out = capsys.readouterr().out
    assert out.count("begins like a pickle") == 20
    assert "and 11 more" in out
    assert "31 problems" in out
    code, found = run_json(capsys, "check", "imagefolder:f")
    assert (code, len(found["problems"])) == (1, 31)
    assert "strange" in found["problems"][-1]["problem"]
    assert list(found["splits"]) == ["train"]


def test_a_picture_that_is_missing_is_said(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["data", "make", "food101", "f", "--samples", "8"]) == 0
    next(iter((tmp_path / "f").rglob("*.jpg"))).unlink()
    capsys.readouterr()
    code, found = run_json(capsys, "check", "food101:f")
    assert (code, found["identity"]) == (1, None)
    assert all(".jpg: No such file" in problem["problem"] for problem in found["problems"])


def test_pictures_into_shards(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["data", "make", "imagefolder", "f", "--samples", "20"]) == 0
    assert main(["data", "shards", "imagefolder:f", "w", "--samples-per-shard", "8"]) == 0
    assert "--data webdataset:w" in capsys.readouterr().out
    assert len(list((tmp_path / "w" / "train").iterdir())) == 3
    assert main(["data", "shards", "imagefolder:f", "w"]) == 2
    assert main(["data", "shards", "webdataset:w", "x"]) == 2
    assert main(["data", "shards", "none.jsonl", "x"]) == 2
    assert "none.jsonl: is not a file" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["check", "cifar100"], "FORMAT:PATH"),
        (["check", "cifar100:"], "FORMAT:PATH"),
        (["check", "cifar:x"], "did you mean cifar10?"),
        (["check", "cifar100:nowhere"], "steelyard data make cifar100 nowhere"),
        (["show", "imagenet"], "no such data format"),
        (["make", "mnits", "x"], "did you mean mnist?"),
    ],
)
def test_what_is_not_valid(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", *words]) == 2
    assert says in capsys.readouterr().err


def test_counts_have_bounds(capsys: pytest.CaptureFixture[str]) -> None:
    for count in ("1", "-5", "many", "99999999999"):
        assert main(["data", "make", "mnist", "x", "--samples", count]) == 2
        assert f"--samples {count}: must be " in capsys.readouterr().err


def test_every_suggestion_is_a_workload() -> None:
    assert set(WORKLOADS.values()) <= set(plugins.names("workload"))
