"""Mistakes in files and names: the error names the place, the line and the right spelling."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from steelyard.cli.main import main
from steelyard.contracts.spec import RunSpec
from steelyard.errors import InputError, Problem, nearest, refusal
from steelyard.inputs.places import tables_of
from steelyard.inputs.site import Site, find_place, load_site
from steelyard.inputs.source import defined_names, find_source
from steelyard.inputs.study import Study, load_study, option_of
from steelyard.inputs.synonyms import SITE, STUDY, VALUES, number_in
from steelyard.inputs.toml_lines import line_of
from steelyard.inputs.validate import read_bounded

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Within

SITE_TEXT = 'name = "x"\nscheduler = "slurm"\n[pools.gpu]\narchitecture = "x86_64"\ndevices_per_node = 4\n'


def study_error(tmp_path: Path, text: str) -> str:
    path = tmp_path / "study.toml"
    path.write_text(f'name = "s"\n[run]\nworkload = "tiny"\n{text}\n')
    with pytest.raises(InputError) as found:
        load_study(path)
    return str(found.value).replace(f"{tmp_path}/", "")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("bacth = 8", "study.toml:4: run.bacth: no such field; did you mean batch?"),
        ("max_seconds = 8", "study.toml:4: run.max_seconds: belongs in [run.budget]"),
        ("repeats = 8", "study.toml:4: run.repeats: belongs at the top of the file, before the first [table]"),
        ('batch = "64"', 'study.toml:4: run.batch = "64": must be an integer of at least 1; did you mean 64?'),
        ("num_workers = 8", "study.toml:4: run.num_workers: no such field; did you mean loader.workers?"),
        ("batch = 0", "study.toml:4: run.batch = 0: must be at least 1"),
        ('time_limit_s = "01:30:00"', "did you mean 5400?"),
        ('precision = "bf61"', "must be fp32, tf32, bf16 or fp16; did you mean bf16?"),
        ("precision = bf16", 'study.toml:4: not valid TOML: Invalid value; did you mean precision = "bf16"?'),
        ("model.widht = 3", "study.toml:4: run.model.widht: no such option; did you mean width?"),
        ('device = "gpu"', 'run.device = "gpu": no such device family; did you mean cuda?'),
        ("[sweep]\nbath = [8]", "study.toml:5: sweep.bath: no such field; did you mean batch?"),
        ("[sweep]\nmax_seconds = [8]", "sweep.max_seconds: no such setting; did you mean budget.max_seconds?"),
        ("[sweep]\nbatch = [8, 0]", "study.toml:5: sweep.batch = 0: must be at least 1"),
    ],
)
def test_a_mistake_in_a_study(text: str, error: str, tmp_path: Path) -> None:
    said = study_error(tmp_path, text)
    assert error in said
    assert "\n" not in said


def test_all_mistakes_of_a_study_are_in_one_error(tmp_path: Path) -> None:
    said = study_error(tmp_path, 'bacth = 8\nthreads = 0\n[sweep]\nprecision = ["bf61"]\n[serach]\nfirst = 1')
    assert said.startswith("study.toml: 4 problems\n")
    assert all(word in said for word in ("batch?", "threads = 0", "bf16?", "search?"))


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ("scheduler", "schedular", "site.toml:2: schedular: no such field; did you mean scheduler?"),
        ('"slurm"', '"k8s"', "did you mean kubernetes?"),
        ('name = "x"', 'name = "x"\npartition = "a"', "site.toml:2: partition: belongs in [pools.NAME]"),
        ('"x86_64"', '"arm64"', "did you mean aarch64?"),
        ("devices_per_node", "gpus_per_node", "pools.gpu.gpus_per_node: no such field; did you mean devices_per_node?"),
        ("= 4", '= 4\nmemory_per_node_mib = "16GB"', "did you mean 16384?"),
        ("= 4", '= 4\n[container.images]\narm64 = "a"', "container.images.arm64: the name must be x86_64 or aarch64"),
    ],
)
def test_a_mistake_in_a_site_file(old: str, new: str, error: str, tmp_path: Path) -> None:
    path = tmp_path / "site.toml"
    path.write_text(SITE_TEXT.replace(old, new, 1))
    with pytest.raises(InputError) as found:
        load_site(path)
    assert error in str(found.value)
    assert "\n" not in str(found.value)


def test_a_pool_and_a_site_that_are_misspelt(tmp_path: Path) -> None:
    path = tmp_path / "site.toml"
    path.write_text(SITE_TEXT)
    with pytest.raises(InputError, match=r"has no pool gup; did you mean gpu\?"):
        find_place(f"{path}:gup")
    with pytest.raises(InputError, match=r"stie.toml: no such file; did you mean .*site.toml\?"):
        find_place(str(tmp_path / "stie.toml"))


def test_functions_are_found_without_running_the_file(tmp_path: Path) -> None:
    path = tmp_path / "my.py"
    path.write_text(
        "raise SystemExit\ndef build(): ...\ntry:\n    from x import other as taken\nexcept E:\n    made = 1\n"
    )
    for name in ("build", "taken", "made"):
        source = find_source(f"./my.py:{name}", tmp_path, below=tmp_path)
        assert source is not None
        assert source.function == name
    with pytest.raises(InputError, match=r"no such function; did you mean ./my.py:build\?"):
        find_source("./my.py:bild", tmp_path, below=tmp_path)
    with pytest.raises(InputError, match=r"no such file; did you mean ./my.py\?"):
        find_source("./mi.py:build", tmp_path, below=tmp_path)
    with pytest.raises(InputError, match=r"must name a function; did you mean ./my.py:build\?"):
        find_source("./my.py", tmp_path, below=tmp_path)
    path.write_text("def build(:\n")
    with pytest.raises(InputError, match=r"my.py:1: not valid Python"):
        find_source("./my.py:build", tmp_path, below=tmp_path)
    for text in (b"from x import *\n", b"globals()['build'] = 1\n", b"def __getattr__(name): ...\n"):
        assert defined_names(text, "my.py") is None


def test_every_synonym_names_a_field() -> None:
    for table, cls in ((STUDY, Study), (SITE, Site)):
        fields = {".".join((*path, name)) for path, names in tables_of(cls).items() for name in names}
        targets = {target.partition(" = ")[0] for target in table.values() if "; " not in target and ":" not in target}
        assert {target for target in targets if " " not in target} <= fields
        assert all(name == name.lower().replace("-", "_") for name in table)
    assert set(VALUES["precision"].values()) <= {"fp32", "tf32", "bf16", "fp16"}


def test_every_option_of_a_setting_exists(capsys: pytest.CaptureFixture[str]) -> None:
    for verb in ("run", "wrap"):
        with pytest.raises(SystemExit):
            main([verb, "--help"])
    options = set(re.findall(r"--[a-z-]+", capsys.readouterr().out))
    paths = [".".join((*path, name)) for path, names in tables_of(RunSpec).items() for name in names]
    named = {option_of(path) for path in paths}
    assert {option for option in named if option.startswith("--") and " " not in option} <= options


@pytest.mark.parametrize(
    ("text", "field", "number"),
    [
        ("10 s", "max_seconds", 10), ("1h", "time_limit_s", 3600), ("1-00:00:00", "max_time_s", 86400),
        ("90:00", "max_time_s", 5400), ("16GB", "memory_per_node_mib", 16384), ("64", "batch", 64),
        ("64 samples", "batch", None), ("3 %", "tolerance", 0.03), ("soon", "max_seconds", None),
    ],
)  # fmt: skip
def test_amounts_with_units(text: str, field: str, number: float | None) -> None:
    assert number_in(text, field) == number


def test_lines_of_keys() -> None:
    text = b'a = """\nb = 1\n"""\n[t]\nc.d = 1\n"e.f" = 2\n[[x]]\nk = 1\n[[x]]\nk = 2\n[x.y]\nz = 1\n'
    assert [line_of(text, path) for path in (("t", "c", "d"), ("t", "e.f"), ("x", 1, "k"), ("x", 1, "y", "z"))] == [
        5, 6, 10, 12,
    ]  # fmt: skip
    assert line_of(text, ("b",)) is None
    assert line_of(text, ("t", "c", "d", "deeper")) == 5


def test_hostile_names_take_little_time(tmp_path: Path, within: Within) -> None:
    text = 'name = "s"\n[run]\n' + "".join(f"{'batch' * 20}{n} = 1\n" for n in range(8000))
    (tmp_path / "study.toml").write_text(text)
    with within(20):
        with pytest.raises(InputError, match="more than 20 problems"):
            load_study(tmp_path / "study.toml")
        nearest("x" * 100_000, ["x" * 100_000] * 5000)


def test_problems_are_short_and_do_not_steer_the_terminal(tmp_path: Path) -> None:
    problem = Problem("a\x1b", "no such field", ", ".join(f"name{n}" for n in range(500)), file="f", line=3)
    assert len(str(problem)) < 2100
    assert len(str(replace(problem, listed="steelyard explain settings"))) < 240
    assert "\x1b" not in str(refusal(problem))
    (tmp_path / "plan.toml").touch()
    with pytest.raises(InputError, match=r"no such file; did you mean .*plan.toml\?"):
        read_bounded(tmp_path / "plna.toml", 10)
    with pytest.raises(InputError, match=r"no such file$"):
        read_bounded(tmp_path / "other.toml", 10)
