"""New study files: templates, and parts of suites."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest

from steelyard.cli.main import main
from steelyard.errors import InputError
from steelyard.inputs.study import expand, load_study
from steelyard.inputs.study_file import choice_of, from_suite, from_template, part_named
from steelyard.inputs.suite import expand_part, find_suite, plan_part
from steelyard.inputs.suites import suite_names
from steelyard.inputs.templates import about, kinds

PARTS = [(suite, part.name) for suite in suite_names() for part in find_suite(suite).suite.part]


def words(capsys: pytest.CaptureFixture[str], *typed: str) -> tuple[int, str]:
    code = main(["study", *typed])
    printed = capsys.readouterr()
    return code, printed.out + printed.err


@pytest.mark.parametrize("kind", kinds("studies"))
def test_a_template_is_a_study_that_can_be_planned(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    code, said = words(capsys, "new", kind, "--output", "mine-2.toml")
    assert (code, said.splitlines()[-1].strip()) == (0, "steelyard study mine-2.toml --dry-run")
    text = Path("mine-2.toml").read_text(encoding="utf-8")
    assert main(["study", "mine-2.toml", "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["study"] == tomllib.loads(text)["name"] == "mine-2"
    # The first line is a question or says what it is, and commands name this file and this study.
    assert f"# {about('studies', kind)}" == text.splitlines()[0]
    commands = re.findall(r"^#   (steelyard .*?) {3,}", text, re.MULTILINE)
    assert "steelyard study mine-2.toml" in commands
    assert not re.search(r"\b(FILE|STUDY)\b", text)
    assert max(map(len, text.splitlines())) <= 130


def test_the_template_of_a_search_searches(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text(from_template("largest-batch", file), encoding="utf-8")
    assert [group.runs[0].batch for group in expand(load_study(file), tmp_path).searches] == [8, 8]


def test_settings_that_a_template_has_commented_out_are_valid(tmp_path: Path) -> None:
    tried = 0
    for kind in kinds("studies"):
        lines = from_template(kind, Path("a.toml")).splitlines()
        for number, line in enumerate(lines):
            if re.match(r"# \w+ = ", line):
                tried += 1
                file = tmp_path / "a.toml"
                name = line.split()[1]
                kept = [other for other in lines if not other.startswith(f"{name} = ")]
                at = kept.index(line) if line in kept else number
                file.write_text("\n".join([*kept[:at], line[2:], *kept[at + 1 :]]), encoding="utf-8")
                if name not in ("devices", "accumulation", "batch"):
                    load_study(file)
    assert tried > 5


@pytest.mark.parametrize(("suite", "part"), PARTS, ids=lambda name: name)
@pytest.mark.parametrize("size", ["full", "small", "tiny"])
def test_a_file_from_a_suite_runs_what_the_suite_runs(suite: str, part: str, size: str, tmp_path: Path) -> None:
    found = find_suite(suite)
    choice = choice_of(found, found.part(part), size)  # type: ignore[arg-type]
    if not plan_part(found.suite, found.part(part), choice):
        return
    file = tmp_path / "mine.toml"
    file.write_text(from_suite(found, found.part(part), choice.size, Path("mine.toml")), encoding="utf-8")
    ours, theirs = expand(load_study(file), tmp_path), expand_part(found, found.part(part), choice)
    # The name of a configuration depends on nothing but its settings.
    assert {cell.name for cell in ours.cells} == {cell.name for cell in theirs.cells}
    assert len(ours.runs) == len(theirs.runs)
    assert ours.study.name == "mine"


def test_a_file_from_a_suite_says_where_settings_come_from() -> None:
    found = find_suite("olivia")
    text = from_suite(found, found.part("workers"), "small", Path("w.toml"))
    assert "# stated in test 2\nbatch = 256\n" in text
    assert '# data = "cifar100:/path/to/cifar100"' in text
    assert '"loader.workers" = [4, 8, 16, 32, 48]' in text
    with pytest.raises(InputError, match=r"(?s)one part of a suite.*valid: factors, workers.*--part factors"):
        part_named(found, None)


def test_nothing_is_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    code, said = words(capsys, "new")
    assert code == 0
    assert all(f"  {kind} " in said for kind in kinds("studies"))
    Path("batch.toml").write_text("mine", encoding="utf-8")
    assert words(capsys, "new", "batch") == (
        2, "error: batch.toml already exists\nnext: steelyard study new batch --output FILE\n",
    )  # fmt: skip
    assert words(capsys, "new", "bacth")[1].startswith("error: bacth: no such template; did you mean batch?")
    assert words(capsys, "new", "batch", "--from-suite", "olivia")[0] == 2
    assert Path("batch.toml").read_text(encoding="utf-8") == "mine"
    assert words(capsys, "new", "batch", "--output", "no/such.toml")[1].startswith("error: no folder no\nnext: ")
    assert words(capsys, "new", "--output", "x.toml") == (
        2, "error: missing: a template, or --from-suite\nnext: steelyard study new\n",
    )  # fmt: skip
    assert words(capsys, "new", "batch", "--part", "x")[1].startswith(
        "error: a template has no parts\n  --part: needs "
    )
    assert words(capsys, "new", "batch", "-o", "-") == (0, from_template("batch", Path("batch.toml")))
    assert words(capsys, "none.toml") == (2, "error: none.toml: no such file\nnext: steelyard study new\n")
    # A file may be called so.
    Path("new").write_text("name = 'x'\n[run]\nworkload = 'sim'\n", encoding="utf-8")
    assert words(capsys, "./new", "--dry-run")[0] == 0


CASES = """name = "c"
repeats = 2
[run]
workload = "sim"
[[case]]
devices = 1
accumulation = 4
[[case]]
devices = 4
accumulation = 1
[sweep]
batch = [8, 16]
"""


def test_a_case_changes_single_fields_of_a_table(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    own = "[run.sim]\nsample_time_s = 0.5\n[[case]]\nsim.step_time_s = 2.0\nsim.noise = { kind = 'normal' }\n"
    file.write_text(f"name = 'c'\n{own}", encoding="utf-8")
    (cell,) = expand(load_study(file), tmp_path).cells
    sim = cell.spec.sim
    assert (sim.step_time_s, sim.sample_time_s, sim.noise.kind) == (2.0, 0.5, "normal")
    assert cell.swept == {"sim.step_time_s": 2.0, "sim.noise.kind": "normal"}
    file.write_text(f"name = 'c'\n{own}[sweep]\n'sim.step_time_s' = [1.0]\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"case\[0\]\.sim\.step_time_s: is swept, too"):
        load_study(file)
    file.write_text("name = 'c'\n[case]\ndevices = 2\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"c\.toml:2: case: is one table; valid: \[\[case\]\], once for each case"):
        load_study(file)


def test_every_case_is_run_with_every_combination(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text(CASES, encoding="utf-8")
    made = expand(load_study(file), tmp_path)
    assert [cell.swept for cell in made.cells] == [
        {"devices": devices, "accumulation": 4 // devices, "batch": batch} for devices in (1, 4) for batch in (8, 16)
    ]
    assert [(s.devices, s.accumulation, s.most_devices) for s in (cell.spec for cell in made.cells)][::2] == [
        (1, 4, 4), (4, 1, None),
    ]  # fmt: skip
    assert len(made.runs) == 8


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("accumulation = 1", "acumulation = 1", r"c\.toml:10: case\[1\]\.acumulation: .*did you mean accumulation\?"),
        ("devices = 4", 'devices = "x"', r'c\.toml:9: case\[1\]\.devices = "x": must be an integer'),
        ("devices = 4", "batch = 4", r"c\.toml:9: case\[1\]\.batch: is swept, too"),
        ("batch = [8, 16]", 'batch = [8, "x"]', r'sweep\.batch = "x": must be an integer'),
        ("[sweep]\nbatch = [8, 16]", "[search]\nfirst = 1\nlast = 8", None),
        (
            "[sweep]\nbatch = [8, 16]",
            "batch = 1\n[search]\nfirst = 1\nlast = 8",
            r"case\[1\]\.batch: the search sets it",
        ),
        ("accumulation = 1", "accumulation = 1\n[[case]]", r"c\.toml:11: case\[2\]: is empty"),
    ],
)
def test_a_wrong_case_is_named_with_its_line(old: str, new: str, said: str | None, tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text(CASES.replace(old, new), encoding="utf-8")
    if said is None:
        assert len(expand(load_study(file), tmp_path).searches) == 2
        return
    with pytest.raises(InputError, match=said):
        load_study(file)
