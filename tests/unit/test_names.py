"""One name for one setting, in studies, selections, factors, rows and errors."""

from __future__ import annotations

import json
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from steelyard import plugins
from steelyard.analysis.compare import compare, require_factor
from steelyard.analysis.rows import row_of
from steelyard.analysis.select import all_settings
from steelyard.analysis.summary import summarise
from steelyard.cli.main import main
from steelyard.contracts.spec import RunSpec
from steelyard.errors import InputError, Problem, refusal
from steelyard.rules.settings.pairs import FROM, OPTIONS
from steelyard.rules.table.settings import SETTINGS

if TYPE_CHECKING:
    from collections.abc import Callable

    from steelyard.contracts.record import RunRecord
    from steelyard.rules.table.row import Row

    Simulate = Callable[[RunSpec], RunRecord]


@pytest.mark.parametrize("name", [*OPTIONS, *FROM.values()])
def test_a_setting_of_a_run_has_its_name_in_rows_and_factors(name: str) -> None:
    attrgetter(name)(RunSpec(run_id="r", configuration="c"))
    if name in OPTIONS:
        assert name in SETTINGS
        assert require_factor(name) == name


def made(simulate: Simulate, **model: int) -> Row:
    records = [
        simulate(RunSpec(run_id=f"r{job}", configuration="c", study="s", repeat=job, seed=job, model=dict(model)))
        for job in range(3)
    ]
    (cell,) = summarise(records)
    # A selection takes the names of the study, too.
    assert all_settings(cell)["model.width"] == model["width"]
    return replace(row_of(cell), place=f"s/{json.dumps(model)}")


def test_an_option_of_the_model_is_a_factor_as_the_study_writes_it(simulate: Simulate) -> None:
    small, wide, both = (
        made(simulate, width=64, depth=2),
        made(simulate, width=128, depth=2),
        made(simulate, width=128, depth=4),
    )
    (one,) = compare([small], [wide], factor="model.width").comparisons
    assert one.ratios
    (two,) = compare([small], [both], factor="model.width").comparisons
    assert [entry.code for entry in two.findings if entry.severity == "error"] == ["SY102"]
    assert not two.ratios
    (unnamed,) = compare([small], [wide]).comparisons
    assert any(entry.command.endswith("--factor model.width") for entry in unnamed.findings if entry.code == "SY102")
    with pytest.raises(InputError, match=r"model\.wdith: no such factor; did you mean model\.width\?"):
        compare([small], [wide], factor="model.wdith")


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [("nproc", "devices"), ("ranks", "devices"), ("batch-size", "batch"), ("num_workers", "loader.workers")],
)
def test_names_of_other_tools_are_answered_with_ours(theirs: str, ours: str) -> None:
    with pytest.raises(InputError, match=f"no such factor; did you mean {ours}"):
        require_factor(theirs)


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["run", "sim", "--nproc", "2"], "did you mean --devices?"),
        (["doctor", "--ranks", "2"], "did you mean --devices?"),
        (["run", "sim", "--num-workers", "2"], "did you mean --loader-workers?"),
        (["run", "tiny", "--device", "2"], "did you mean devices?"),
        (["run", "mlp"], "next: steelyard workloads"),
        (["expect", "gpt", "--set", "zzz=1"], "next: steelyard explain settings"),
        (["audit", "ranks.csv"], 'unknown column "ranks"; did you mean devices?'),
        (["audit", "zzz.csv"], "`steelyard explain settings` lists the others"),
    ],
)
def test_the_command_line_says_our_name(
    words: list[str],
    answer: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for column in ("ranks", "zzz"):
        Path(f"{column}.csv").write_text(f"{column},metric,value,unit\n1,throughput,1,images/s\n", encoding="utf-8")
    assert main(words) == 2
    assert answer in capsys.readouterr().err


def test_a_list_is_cut_off_only_where_a_command_prints_all() -> None:
    names = [f"name{number}" for number in range(100)]
    told = str(refusal(Problem("x", "no such name", ", ".join(names))))
    assert told.endswith("name99")
    told = str(refusal(Problem("x", "no such name", ", ".join(names), listed="steelyard workloads")))
    assert told.endswith(", ...\nnext: steelyard workloads")
    assert "name99" not in told
    assert "next" not in str(refusal(Problem("x", "no such name", ", ".join(names), near="name1", listed="command")))
    for kind, command in plugins.LISTS.items():
        assert str(plugins.unknown(kind, "zzz", names)).endswith(command)


def test_all_names_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "settings", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["settings"]
    assert [name for group in listed.values() for name in group if SETTINGS[name] == "evidence"] == []
    assert {name for group in listed.values() for name in group} >= {*OPTIONS}
    assert main(["explain", "settings"]) == 0
    assert {*capsys.readouterr().out.replace(",", " ").split()} >= {*OPTIONS}
