"""Recipes, verdicts and histories against jobs whose truth is known: by the rule, the analysis and the verb."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import steelyard
from steelyard.analysis import verify as analysis
from steelyard.audit.table import parse_table
from steelyard.cli.main import main
from steelyard.contracts.finding import Finding
from steelyard.errors import InputError
from steelyard.inputs.recipe import Expect, load_recipe, plan
from steelyard.inputs.suite import find_recipe
from steelyard.report.page import Chart
from steelyard.report.study.history import recipe_verdict
from steelyard.report.study.page import study_page
from steelyard.results.store import ResultFolder, write_json
from steelyard.rules.statistics.history import Drifted
from steelyard.rules.table.row import Amount, Row, RowTable
from steelyard.stats.band import MOST_JOBS, Band, judge
from steelyard.stats.drift import _step, changes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from conftest import Within
    from steelyard.contracts.record import RunRecord

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples" / "recipes"
QUICK = "crosscheck_steps = 0\nbudget = { min_steps = 50, max_steps = 50, min_seconds = 0.0 }\n"
RECIPE = f"""
name = "node"
title = "simulated training"
documents = "https://docs.example.org/node"
jobs = 4
[run]
{QUICK}
sim.noise = {{ kind = "normal", cv = 0.01, between_jobs_cv = 0.005 }}
[expect]
value = 3200.0
"""
START = datetime(2026, 3, 1, tzinfo=UTC)


# -- the decision rule


def test_the_three_verdicts() -> None:
    band = Band(95.0, 105.0, 100.0)
    assert judge([100.0, 100.5, 99.5, 100.2], band, rate=True).verdict == "pass"
    assert judge([93.0, 93.5, 92.5, 93.1], band, rate=True).verdict == "fail"
    assert judge([107.0, 107.5, 106.5, 107.1], band, rate=True).verdict == "fail"
    wide = judge([90.0, 100.0, 110.0, 101.0], band, rate=True)
    assert wide.verdict == "cannot tell"
    assert wide.more_jobs is not None
    assert wide.more_jobs > 10


def test_outside_the_band_but_not_shown_to_be() -> None:
    found = judge([90.0, 100.0, 91.0, 95.0], Band(95.0, 105.0, 100.0), rate=False)
    assert found.value == 94
    assert (found.verdict, found.high is not None and found.high > 100) == ("cannot tell", True)


def test_a_band_without_a_documented_figure_must_be_left_by_the_whole_interval() -> None:
    values = [93.0, 95.5, 92.5, 94.5]
    assert judge(values, Band(95.0, 105.0), rate=False).verdict == "cannot tell"
    assert judge(values, Band(95.0, 105.0, 100.0), rate=False).verdict == "fail"
    assert judge([v - 5 for v in values], Band(95.0, 105.0), rate=False).verdict == "fail"


def test_one_sided_bands() -> None:
    fast, slow = [120.0, 121.0, 119.0], [80.0, 81.0, 79.0]
    assert judge(fast, Band(97.0, None, 100.0), rate=True).verdict == "pass"
    assert judge(slow, Band(97.0, None, 100.0), rate=True).verdict == "fail"
    assert judge(slow, Band(None, 103.0, 100.0), rate=False).verdict == "pass"
    assert judge(fast, Band(None, 103.0, 100.0), rate=False).verdict == "fail"


@pytest.mark.parametrize("jobs", [1, 2])
def test_fewer_than_three_jobs_cannot_tell(jobs: int) -> None:
    found = judge([100.0, 100.1][:jobs], Band(50.0, 150.0, 100.0), rate=True)
    assert (found.verdict, found.more_jobs) == ("cannot tell", 3 - jobs)


def test_on_the_edge_no_number_of_jobs_tells() -> None:
    found = judge([94.0, 96.0, 95.0], Band(95.0, None, 95.0), rate=False)
    assert (found.verdict, found.needed, found.more_jobs) == ("cannot tell", None, None)


def test_too_many_jobs_are_counted_but_not_suggested() -> None:
    found = judge([90.0, 100.0, 110.0, 98.0], Band(99.0, 101.0, 100.0), rate=False)
    assert found.needed is not None
    assert found.needed > 1000
    assert found.more_jobs is None


@pytest.mark.parametrize(("truth", "spread"), [(100.0, 0.02), (97.0, 0.02), (100.0, 0.05), (98.0, 0.2), (100.0, 0.8)])
def test_adding_the_jobs_asked_for_always_ends(truth: float, spread: float) -> None:
    """Also for a machine on the edge of the band, and for one whose jobs vary by more than the band is wide."""
    rng = np.random.default_rng(round(1000 * spread + truth))
    band = Band(97.0, 103.0, 100.0)
    for _ in range(50):
        values: list[float] = []
        looks, more = 0, 5
        while more:
            values += (truth * np.exp(spread * rng.standard_normal(more))).tolist()
            found = judge(values, band, rate=True)
            more, looks = found.more_jobs or 0, looks + 1
        assert len(values) <= MOST_JOBS
        assert looks <= 8


def test_the_number_of_jobs_asked_for_by_hand() -> None:
    """Five jobs on the documented figure that vary by 2 %; the interval shall end at 0.75 of the way to the edge."""
    unit = 0.02 / math.sqrt(2.5)
    values = [100 * (1 + unit * n) for n in (-2, -1, 0, 1, 2)]
    wide, narrow = Band(97.0, 103.0, 100.0), Band(98.5, 101.5, 100.0)
    # t(4) 2.776 x 0.02 / sqrt(5) = 0.0248: inside 3 %, so that nothing is asked for.
    assert judge(values, wide, rate=False).verdict == "pass"
    # For 1.5 %, 14 jobs: t(13) 2.160 x 0.02 / sqrt(14) = 0.01155 > 0.01125; 15: 2.145 x 0.02 / sqrt(15) = 0.01108.
    assert judge(values, narrow, rate=False).more_jobs == 10


def test_a_figure_of_nothing_is_a_figure() -> None:
    found = judge([0.0, 0.0, 0.0], Band(None, 0.05), rate=False)
    assert (found.verdict, found.value) == ("pass", 0.0)


def test_the_default_band_holds_both_readings_of_a_miss() -> None:
    """A 5 % regression neither passes nor stays uncalled in more than 5 %; false alarms are at most 6.5 %."""
    rng = np.random.default_rng(2)
    band = Band(*Expect(value=100.0).edges(), 100.0)
    jobs = 1 / (1 + 0.02 * rng.standard_normal((2000, 5)))
    good = [judge(row, band, rate=True).verdict for row in (100 * jobs).tolist()]
    bad = [judge(row, band, rate=True).verdict for row in (95 * jobs).tolist()]
    assert good.count("fail") <= 0.065 * 2000
    assert bad.count("pass") <= 0.05 * 2000
    assert bad.count("fail") >= 0.95 * 2000


def test_rates_are_averaged_by_their_times() -> None:
    assert judge([1.0, 3.0, 3.0], Band(1.0, 9.0), rate=True).value == pytest.approx(3 / (1 + 1 / 3 + 1 / 3))


@pytest.mark.parametrize("tolerance", [0.01, 0.02, 0.03, 0.05])
def test_false_alarms_and_misses_stay_at_their_level(tolerance: float) -> None:
    rng = np.random.default_rng(round(1000 * tolerance))
    band = Band(100 * (1 - tolerance), 100 * (1 + tolerance), 100.0)
    cases = 1500
    jobs = 1 / (1 + 0.02 * rng.standard_normal((cases, 5)))
    alarms = sum(judge(row, band, rate=True).verdict == "fail" for row in (100 * jobs).tolist())
    misses = sum(judge(row, band, rate=True).verdict == "pass" for row in (95 * jobs).tolist())
    assert alarms <= 0.065 * cases
    assert misses <= 0.05 * cases


def test_the_jobs_asked_for_are_enough() -> None:
    rng = np.random.default_rng(4)
    band = Band(97.0, 103.0, 100.0)
    asked = told = 0
    for _ in range(300):
        values = (100 * (1 + 0.02 * rng.standard_normal(5))).tolist()
        found = judge(values, band, rate=False)
        if found.more_jobs is not None:
            asked += 1
            more = (100 * (1 + 0.02 * rng.standard_normal(found.more_jobs))).tolist()
            told += judge(values + more, band, rate=False).verdict != "cannot tell"
    assert asked > 50
    assert told >= 0.85 * asked


# -- change points


def days(rng: np.random.Generator, levels: Sequence[float]) -> list[list[float]]:
    return [(level * (1 + 0.02 * rng.standard_normal(5))).tolist() for level in levels]


def test_a_flat_history_has_no_step() -> None:
    rng = np.random.default_rng(8)
    for count in (2, 5, 12):
        assert sum(bool(changes(days(rng, [1.0] * count))) for _ in range(200)) <= 8


@pytest.mark.parametrize(("before", "after"), [(2, 2), (4, 3), (8, 4), (20, 10)])
def test_a_step_of_5_percent_is_found_where_it_is(before: int, after: int) -> None:
    rng = np.random.default_rng(9)
    found = [changes(days(rng, [1.0] * before + [0.95] * after)) for _ in range(100)]
    hits = [steps for steps in found if steps and steps[0].index == before]
    assert len(hits) >= 85
    assert np.mean([steps[0].ratio for steps in hits]) == pytest.approx(0.95, abs=0.01)


def test_there_and_back_again_are_two_steps() -> None:
    found = changes(days(np.random.default_rng(3), [1.0] * 10 + [0.9] * 10 + [1.0] * 10))
    assert [step.index for step in found] == [10, 20]
    assert found[1].ratio == pytest.approx(1 / 0.9, abs=0.02)


def test_without_noise_and_without_anything() -> None:
    assert changes([]) == []
    assert changes([[1.0, 1.0, 1.0]]) == []
    assert changes([[1.0, 1.0, 1.0]] * 9) == []
    assert [step.index for step in changes([[1.0, 1.0, 1.0]] * 2 + [[0.9, 0.9, 0.9]])] == [2]
    with pytest.raises(ValueError, match="positive"):
        changes([[1.0], [0.0]])


def test_p_values_against_every_t_taken_apart() -> None:
    from scipy import stats

    rng = np.random.default_rng(6)

    def largest(rows: Any) -> Any:
        t = [stats.ttest_ind(rows[:, :k], rows[:, k:], axis=1).statistic for k in range(1, rows.shape[1])]
        return np.abs(t).max(axis=0)

    null = largest(rng.standard_normal((20_000, 10)))
    noise = 0.01 * rng.standard_normal(10)
    for step in (0.0, 0.01, 0.015, 0.02):
        values = noise + step * (np.arange(10) >= 5)
        ((*_, p_value),) = _step([np.array([value]) for value in values], 0.9999)
        assert p_value == pytest.approx(float(np.mean(null >= largest(values[None, :])[0])), abs=0.02)


@pytest.mark.parametrize("count", [61, 90, 200])
def test_long_flat_histories_share_their_draws_and_keep_their_level(count: int) -> None:
    rng = np.random.default_rng(count)
    assert sum(bool(changes([[v] for v in row])) for row in np.exp(0.01 * rng.standard_normal((200, count)))) <= 8


def test_few_occasions_of_very_many_jobs_are_searched() -> None:
    rng = np.random.default_rng(1)
    found = changes([(level * (1 + 0.02 * rng.standard_normal(900))).tolist() for level in (1.0, 1.0, 0.95)])
    assert [step.index for step in found] == [2]


def test_a_table_of_very_many_histories_is_bounded(within: Within) -> None:
    rng = np.random.default_rng(2)
    rows = []
    for n in range(1500):
        noise = rng.standard_normal(24)
        values = {f"m{k}": 1000 + float(noise[k]) + 5 * (n // (150 + k) % 2) for k in range(24) if n >= k}
        figures = {name: Amount(value, value, value, "images/s") for name, value in values.items()}
        day = (START + timedelta(days=n)).date().isoformat()
        rows.append(Row("table", {"model": "m"}, figures, note=day))
    with within(20):
        assert list(Drifted().check(RowTable("table", tuple(rows))))


def test_the_rule_on_histories_names_what_changed_around() -> None:
    head = "system,framework,metric,value,unit,note\n"
    rows = [(1000 + n % 3, "1.0", f"2026-01-{n:02}") for n in range(1, 7)]
    rows += [(900 + n % 3, "2.0", f"2026-02-{n:02}") for n in range(1, 5)]
    lines = [f"A,{version},throughput,{value}.3,images/s,{day}\n" for value, version, day in reversed(rows)]
    found = list(Drifted().check(parse_table(head + "".join(lines), "history")))
    assert len(found) == 1
    assert "10.0 % lower since 2026-02-01" in found[0].message
    assert "framework 1.0 -> 2.0" in found[0].evidence
    undated = head + "".join(line.rsplit(",", 1)[0] + ",\n" for line in lines)
    assert not list(Drifted().check(parse_table(undated, "table")))


# -- recipes


def write(folder: Path, text: str, name: str = "node.toml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("value = 3200.0", "value = 3200.0\nlow = 3.0", "limits of its band"),
        ("value = 3200.0", "low = 3.0\nhigh = 2.0", "not below"),
        ("value = 3200.0", "low = 3.0\ntolerance = 0.1", "low and high are a band already"),
        ("value = 3200.0", "value = 3200.0\ntolerance = 1.5", "less than 1"),
        ("value = 3200.0", "", "limits of its band"),
        ("value = 3200.0", "value = 3200.0\nat = { batch = 7 }", "matches 0 of 1 configurations"),
        ('name = "node"', 'name = "../node"', "letters, digits"),
        ('name = "node"', 'name = "node"\nstudy = "a.toml"', "one of run, study and command"),
        ("jobs = 4", "jobs = 2", "at least 3"),
        ("jobs = 4", "job = 4", "did you mean jobs?"),
        ("jobs = 4", "jobs = -4", "at least 3"),
        ("jobs = 4", "level = 0.9999999999999999", "at most 0.9999"),
        ("value = 3200.0", "value = nan", "finite"),
        ("value = 3200.0", "value = 3200.0\ntolerance = 1e-300", "too small"),
        ("value = 3200.0", "value = 3200.0\nat = { " + "a" * 5000 + " = 1 }", "no such setting"),
        ("[run]", "[run]\nbatch = 0", "run.batch = 0: must be at least 1"),
        ("[run]", '[run]\nworkload = "a\\u0000.py:build"', "is not a path"),
    ],
)
def test_what_is_wrong_with_a_recipe_is_said(
    old: str, new: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, RECIPE.replace(old, new))
    assert main(["verify", str(path), "--dry-run", "--results", str(tmp_path / "r")]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ('["bash", "-c", "touch made"]', "is not run"),
        ('["steelyard", "show", "x"]', "is not run"),
        ("[]", "is not run"),
        ('["steelyard", "run", "sim", "--repeats", "9"]', "set by the recipe"),
        ('["steelyard", "run", "sim", "--results", "x"]', "set by the recipe"),
        ('["steelyard", "run", "sim", "--nonsense"]', "--nonsense: unknown option"),
        ('["steelyard", "run", "--help"]', "command"),
        ('["steelyard", "study", "../outside.toml"]', "outside the recipe's folder"),
        ('["steelyard", "study", "a.toml", "--dry-run"]', "the study file and nothing else"),
        ('["steelyard", "study"]', "the study file and nothing else"),
        ('["steelyard", "study", "a\\u0000.toml"]', "is not a file name"),
        (f'["steelyard", "study", "{"a" * 3000}"]', "is not a file name"),
        ('["steelyard", "study", "missing.toml"]', "no such file"),
        ('["steelyard", "run", "sim", "--set", "a=' + "[" * 3500 + '"]', "no such setting"),
        ('["steelyard", "run", "sim; touch made"]', "must consist of"),
        ('["steelyard", "run", "--", "--help"]', "must consist of"),
        ('["steelyard", "run", "../own.py:build"]', "outside the study's folder"),
    ],
)
def test_only_our_own_commands_are_read_and_none_is_started(
    command: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = write(tmp_path, f'name = "x"\ncommand = {command}\n[expect]\nvalue = 1.0\n')
    assert main(["verify", str(path)]) == 2
    assert said in capsys.readouterr().err
    assert [entry.name for entry in tmp_path.iterdir()] == ["node.toml"]


def test_a_command_means_what_it_means_to_run(tmp_path: Path) -> None:
    from steelyard.cli.verify import _read_command

    text = 'name = "x"\ncommand = ["steelyard", "run", "sim", "--batch", "64", "--set", "sim.step_time_s=0.02"]\n'
    recipe, settings = _read_command(load_recipe(write(tmp_path, text + "[expect]\nvalue = 1.0\n")))
    spec = plan(recipe, tmp_path, name="n", jobs=3, run=settings).runs[0]
    assert (spec.workload, spec.batch, spec.sim.step_time_s) == ("sim", 64, 0.02)


def test_hostile_recipes_end_early(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for text in ("a." * 5000 + "b = 1", "x = " + "[" * 5000, "\x00", 'name = "\\u001b[2J"\n' + RECIPE[16:]):
        path = write(tmp_path, text)
        assert main(["verify", str(path), "--dry-run"]) == 2
        assert "\x1b" not in capsys.readouterr().err
    path.write_bytes(b"#" * (1 << 21))
    assert main(["verify", str(path), "--dry-run"]) == 2


def test_files_outside_the_recipes_folder_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    outside.mkdir()
    inside.mkdir()
    write(outside, 'name = "s"\n', "study.toml")
    write(outside, "raise SystemExit\n", "own.py")
    (inside / "link.toml").symlink_to(outside / "study.toml")
    (inside / "folder").symlink_to(outside)
    write(inside, 'name = "s"\n[run]\nworkload = "folder/own.py:build"\n', "own.toml")
    for study in ("link.toml", "folder/study.toml", "../outside/study.toml", str(outside / "study.toml"), "own.toml"):
        path = write(inside, f'name = "x"\nstudy = "{study}"\n[expect]\nvalue = 1.0\n')
        assert main(["verify", str(path), "--results", str(tmp_path / "r")]) == 2
        assert "is outside" in capsys.readouterr().err
    (inside / "loop.toml").symlink_to(inside / "loop.toml")
    path = write(inside, 'name = "x"\nstudy = "loop.toml"\n[expect]\nvalue = 1.0\n')
    assert main(["verify", str(path), "--results", str(tmp_path / "r")]) == 2
    assert not (tmp_path / "r").exists()


def test_a_study_of_very_many_cells_is_refused_before_it_is_spelled_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, f'name = "s"\n[sweep]\nbatch = {list(range(1, 1002))}\n', "study.toml")
    path = write(tmp_path, 'name = "x"\nstudy = "study.toml"\n[expect]\nvalue = 1.0\n')
    assert main(["verify", str(path), "--dry-run"]) == 2
    assert "1,001 configurations" in capsys.readouterr().err


def test_only_cells_with_a_figure_are_run() -> None:
    recipe = load_recipe(EXAMPLES / "batch-sweep.toml")
    expansion = plan(recipe, EXAMPLES, name="n", jobs=3)
    assert sorted({spec.batch for spec in expansion.runs}) == [256, 1024]
    assert len(expansion.runs) == 6


def test_true_is_not_one() -> None:
    recipe = load_recipe(EXAMPLES / "simulated-node.toml")
    with pytest.raises(InputError, match="matches 0 of 1"):
        plan(dataclasses.replace(recipe, expect=(Expect(value=1.0, at={"devices": True}),)), EXAMPLES, name="n", jobs=3)


OF_SUITES = [f"{p.parents[1].name}/{p.stem}" for p in (Path(steelyard.__file__).parent / "suites").glob("*/recipes/*")]


@pytest.mark.parametrize(
    "recipe", sorted([*OF_SUITES, *(str(p) for p in EXAMPLES.glob("*.toml") if "study" not in p.stem)])
)
def test_the_recipes_can_be_planned(recipe: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", recipe, "--dry-run", "--json"]) == 0
    name = recipe.replace("/", "-") if recipe in OF_SUITES else Path(recipe).stem
    assert json.loads(capsys.readouterr().out)["recipe"] == name
    assert main(["verify", recipe, "--dry-run"]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("olivia/test-l", "olivia/test-l: no such recipe; did you mean olivia/test-1?"),
        ("olivia", "olivia: no such recipe; valid: olivia/test-1, "),
        ("olivai/test-1", "olivai: no such suite; did you mean olivia?"),
        ("nodes/node", "nodes/node: no folder nodes"),
    ],
)
def test_a_recipe_of_a_suite_that_there_is_not(text: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", text, "--dry-run"]) == 2
    assert said in capsys.readouterr().err


def test_a_file_goes_before_the_recipe_of_a_suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = find_recipe("olivia/test-1")
    assert found is not None
    assert load_recipe(found).name == "olivia-test-1"
    (tmp_path / "olivia").mkdir()
    assert find_recipe("olivia/test-1") == found
    (tmp_path / "olivia" / "test-1").touch()
    assert find_recipe("olivia/test-1") is None


# -- the verb


@pytest.fixture(autouse=True)
def same_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    """An occasion is named by its time, and its jobs draw their chance from that name."""
    monkeypatch.setattr("steelyard.cli.verify.now", lambda: START + timedelta(days=30))


@pytest.fixture(scope="module")
def occasions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three occasions of one recipe: the last is 6 % slower, on another driver."""
    folder = tmp_path_factory.mktemp("verify")
    path, results = write(folder, RECIPE), ResultFolder(folder / "results")
    recipe = load_recipe(path)
    for number in range(3):
        begun = START + timedelta(days=7 * number)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("steelyard.cli.verify.now", lambda begun=begun: begun)
            assert main(["verify", str(path), "--results", str(results.path)]) == 0
        study = analysis.latest_occasion(results, recipe)
        for record in results.records(study):
            write_json(
                results.path / "runs" / study / record.run_id / "record.json", _as_of(record, begun, number == 2)
            )
    return folder


def _as_of(record: Any, begun: datetime, slower: bool) -> Any:
    facts = {**record.environment.facts, "gpu0.driver": "560.1" if slower else "550.2", "env.SLURM_JOB_ID": str(begun)}
    quantities = dict(record.quantities)
    if slower:
        rate = quantities["throughput"]
        quantities["throughput"] = dataclasses.replace(rate, value=rate.value * 0.94)
    return dataclasses.replace(
        record,
        launch=dataclasses.replace(record.launch, started_at=begun.isoformat()),
        environment=dataclasses.replace(record.environment, facts=facts),
        quantities=quantities,
    )


def verify(capsys: pytest.CaptureFixture[str], folder: Path, *words: str) -> tuple[int, str]:
    capsys.readouterr()
    code = main(["verify", str(folder / "node.toml"), "--results", str(folder / "results"), *words])
    return code, capsys.readouterr().out


def test_the_history_shows_drift_and_what_changed_with_it(occasions: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = verify(capsys, occasions, "--history", "--json")
    assert code == 0
    (found,) = json.loads(text)["histories"]
    assert [entry["verdict"] for entry in found["occasions"]][:2] == ["pass", "pass"]
    assert found["occasions"][2]["verdict"] != "pass"
    (change,) = found["changes"]
    assert change["index"] == 2
    assert change["after"] / change["before"] == pytest.approx(0.94, abs=0.01)
    assert change["facts"] == {"gpu0.driver": ["550.2", "560.1"]}
    assert [entry["code"] for entry in found["findings"]] == ["SY220"]
    assert "gpu0.driver 550.2 -> 560.1" in found["findings"][0]["evidence"]
    code, text = verify(capsys, occasions, "--history")
    assert text.startswith("node: throughput on 3 occasions: ")
    assert "lower since 2026-03-15" in text
    assert max(map(len, text.splitlines())) <= 80


def test_the_history_is_drawn_with_its_change(
    occasions: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "history.svg"
    assert verify(capsys, occasions, "--history", "--plot", str(picture))[0] == 0
    drawn = picture.read_text("utf-8")
    assert drawn.startswith("<svg")
    assert "3 occasions from 2026-03-01 to 2026-03-15" in drawn
    assert "lower since 2026-03-15" in drawn
    page = study_page(ResultFolder(occasions / "results"), "verify.node.20260315T000000")
    (part,) = [part for part in page.sections if part.name == "history"]
    assert "lower since 2026-03-15" in part.answer
    assert page.first is not None
    chart = page.first.chart
    assert isinstance(chart, Chart)
    assert [row[0].text for row in chart.table.rows] == ["2026-03-01", "2026-03-08", "2026-03-15"]
    assert verify(capsys, occasions, "--no-run", "--plot", str(picture))[0] == 2


def test_the_page_of_a_recipe_begins_with_its_history(
    occasions: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The figure with its band, the change that verify finds, and the upgrade, as recorded."""
    command = ["report", str(occasions / "node.toml"), "--results", str(occasions / "results")]
    assert main([*command, "-o", str(tmp_path / "page.html"), "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["title"] == "History: simulated training"
    assert made["sections"][0]["name"] == "history"
    text = (tmp_path / "page.html").read_text("utf-8")
    for said in ("Fail: throughput of the job on 2026-03-15 was ", "expected 3,104.0 to 3,296.0",
                 "lower since 2026-03-15", "Upgrade 1, 2026-03-15: driver 550.2 to 560.1."):  # fmt: skip
        assert said in text
    recipe = load_recipe(occasions / "node.toml")
    results = ResultFolder(occasions / "results")
    (found,) = analysis.history(results, recipe, plan(recipe, occasions, name="x", jobs=4))
    page = study_page(results, found.occasions[-1].study, histories=[found])
    assert page.first is not None
    assert page.first.chart is not None
    assert page.first.chart.name == "history-1"
    assert [figure.label for figure in page.first.figures] == ["Latest", "Expected", "Change since 2026-03-15"]
    verdicts = next(table for table in page.tables if table.name == "occasions-1")
    assert [row[-1].text for row in verdicts.rows] == ["pass", "pass", "fail"]
    assert main([*command, "another"]) == 2
    assert main(["report", str(occasions / "node.toml"), "--results", str(tmp_path / "none")]) == 2
    assert "steelyard verify" in capsys.readouterr().err


def test_no_run_judges_the_latest_jobs(occasions: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = verify(capsys, occasions, "--no-run", "--json")
    found = json.loads(text)
    assert (code, found["verdict"], found["occasion"]) == (1, "fail", "verify.node.20260315T000000")
    assert found["figures"][0]["figure"]["value"] == pytest.approx(3200 * 0.94, rel=0.02)
    code, text = verify(capsys, occasions, "--no-run")
    assert text.startswith("FAIL: node: throughput ")
    assert "Documented in: https://docs.example.org/node" in text


def test_more_jobs_join_the_latest_occasion(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    noisy = RECIPE.replace("between_jobs_cv = 0.005", "between_jobs_cv = 0.05").replace("jobs = 4", "jobs = 3")
    write(tmp_path, noisy)
    code, text = verify(capsys, tmp_path, "--json")
    found = json.loads(text)
    assert (code, found["verdict"]) == (3, "cannot tell")
    assert found["figures"][0]["more_jobs"] >= 1
    code, text = verify(capsys, tmp_path, "--more", "2", "--json")
    again = json.loads(text)
    assert again["occasion"] == found["occasion"]
    assert len(again["figures"][0]["runs"]) == 5
    text = verify(capsys, tmp_path, "--no-run")[1]
    assert text.startswith("CANNOT TELL: node: ")
    # The command can be copied: with the results that were named, in one line.
    (line,) = [line for line in text.splitlines() if line.startswith("next: ")]
    assert f"steelyard verify {tmp_path / 'node.toml'} --more " in line
    assert line.endswith(f" --results {tmp_path / 'results'}")
    assert re.search(r"\d+ more jobs?(?: on a quiet machine)? (should|may) be enough \(about \d+ s\)\.", text)


def test_where_jobs_do_not_decide_it_says_why_and_which_band_they_would(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    noisy = RECIPE.replace("between_jobs_cv = 0.005", "between_jobs_cv = 0.15")
    write(tmp_path, noisy + "tolerance = 0.001\n")
    verify(capsys, tmp_path)
    _set_rates(tmp_path, [2800.0, 3200.0, 3700.0, 3180.0])
    code, text = verify(capsys, tmp_path, "--no-run")
    text = " ".join(text.split())
    assert code == 3
    assert "next:" not in text
    assert re.search(r"More jobs are not suggested: .* would be needed .*jobs vary by 1[0-9] %", text)
    (tolerance,) = re.findall(r"\(tolerance = ([0-9.]+)\)", text)
    # What it prints holds: these jobs pass with that tolerance, and not with a narrower one.
    write(tmp_path, noisy + f"tolerance = {tolerance}\n")
    assert verify(capsys, tmp_path, "--no-run")[0] == 0
    write(tmp_path, noisy + f"tolerance = {float(tolerance) - 0.002}\n")
    assert verify(capsys, tmp_path, "--no-run")[0] == 3


def test_large_differences_are_factors_and_jobs_that_are_not_steady_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, RECIPE)
    verify(capsys, tmp_path)
    _set_rates(tmp_path, [11000.0, 11200.0, 11400.0, 11200.0], answer="slowing down")
    code, text = verify(capsys, tmp_path, "--no-run")
    text = " ".join(text.split())
    assert code == 1
    assert "; 3.5x the documented 3,200.0" in text
    assert "4 of 4 jobs had no steady state (SY201)" in text
    # So far apart that the interval of a rate has no upper end.
    _set_rates(tmp_path, [3200.0, 100.0, 3200.0, 3200.0])
    text = " ".join(verify(capsys, tmp_path, "--no-run")[1].split())
    assert "no limit]" in text
    assert "jobs vary by 177 %" in text
    assert "inf" not in text
    assert "e+" not in text


def test_errors_of_jobs_are_not_answered_with_more_jobs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, RECIPE)
    verify(capsys, tmp_path)
    found = Finding(code="SY501", severity="error", message="wrong", fix="fix")
    _change_records(tmp_path, lambda _number, record: dataclasses.replace(record, findings=(found,)))
    code, text = verify(capsys, tmp_path, "--no-run")
    assert code == 3
    assert "steelyard explain SY501" in " ".join(text.split())
    assert "--more" not in text
    assert f"next: steelyard verify {tmp_path / 'node.toml'}" in text


def test_other_load_may_be_why_a_figure_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, RECIPE)
    verify(capsys, tmp_path)
    load = Finding(code="SY609", severity="warning", message="busy", fix="wait")

    def judged(rates: Sequence[float], busy: set[int]) -> tuple[int, str]:
        _set_rates(tmp_path, rates)
        _change_records(
            tmp_path,
            lambda number, record: dataclasses.replace(record, findings=(load,)) if number in busy else record,
        )
        code, text = verify(capsys, tmp_path, "--no-run")
        return code, " ".join(text.split())

    slow = [2900.0, 2905.0, 2895.0, 2900.0]
    assert judged(slow, set())[0] == 1
    code, text = judged(slow, {0, 1, 2, 3})
    assert code == 3
    assert "other load beside the jobs may be the reason" in text
    assert "--more" not in text
    assert f"next: steelyard verify {tmp_path / 'node.toml'}" in text
    # Three jobs without load fail by themselves.
    assert judged(slow, {0})[0] == 1
    # Load makes nothing faster, and a pass beside it is a pass.
    assert judged([3500.0, 3505.0, 3495.0, 3500.0], {0, 1, 2, 3})[0] == 1
    assert judged([3200.0, 3201.0, 3199.0, 3200.0], {0, 1, 2, 3})[0] == 0


def _set_rates(folder: Path, rates: Sequence[float], answer: Any = "steady") -> None:
    """Give the jobs of the latest occasion these throughputs, and this answer on their steady state."""

    def change(number: int, record: RunRecord) -> RunRecord:
        assert record.steady is not None
        rate = dataclasses.replace(record.quantities["throughput"], value=rates[number])
        quantities = {**record.quantities, "throughput": rate}
        return dataclasses.replace(
            record, quantities=quantities, findings=(), steady=dataclasses.replace(record.steady, answer=answer)
        )

    _change_records(folder, change)


def _change_records(folder: Path, change: Callable[[int, RunRecord], RunRecord]) -> None:
    results = ResultFolder(folder / "results")
    study = analysis.latest_occasion(results, load_recipe(folder / "node.toml"))
    for number, record in enumerate(list(results.records(study))):
        write_json(results.path / "runs" / study / record.run_id / "record.json", change(number, record))


def test_jobs_that_run_out_of_memory_fail_the_recipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, RECIPE.replace("[expect]", "sim.memory = { limit_bytes = 1.0, bytes_per_sample = 1.0 }\n[expect]"))
    code, text = verify(capsys, tmp_path)
    assert code == 1
    assert text.startswith("FAIL: node: 4 of 4 jobs did not complete: 4 out_of_memory")
    # Nobody measured it, so that the unit is the recipe's own text.
    write(tmp_path, (tmp_path / "node.toml").read_text(encoding="utf-8") + 'unit = "\\u001b[2J\\n"\n')
    for words in (["--no-run"], ["--history"], ["--dry-run"]):
        assert "\x1b" not in verify(capsys, tmp_path, *words)[1]
    assert "figure  verdict" in verify(capsys, tmp_path, "--history")[1]


def test_other_settings_are_another_history(
    occasions: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, RECIPE.replace("cv = 0.01,", "cv = 0.02,"))
    shared = ["--results", str(occasions / "results")]
    assert main(["verify", str(path), "--more", "1", *shared]) == 2
    assert "other settings" in capsys.readouterr().err
    assert main(["verify", str(path), "--history", *shared]) == 0
    assert "not run yet" in capsys.readouterr().out


def test_a_figure_that_no_job_has_ends_it_after_the_first_job(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, RECIPE + 'metric = "thruput"\n')
    assert verify(capsys, tmp_path)[0] == 2
    assert len(list((tmp_path / "results" / "runs").glob("*/*/record.json"))) == 1


def test_words_for_bands_without_a_documented_figure(occasions: Path, capsys: pytest.CaptureFixture[str]) -> None:
    low = write(occasions, RECIPE.replace("value = 3200.0", "low = 3200.0"), "low.toml")
    assert main(["verify", str(low), "--no-run", "--results", str(occasions / "results")]) == 1
    assert "documented one" not in (text := capsys.readouterr().out)
    assert "The whole interval is outside the band." in text


def test_a_share_of_nothing_and_a_figure_that_is_unknown(occasions: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shared = ["--no-run", "--results", str(occasions / "results")]
    share = RECIPE.replace("value = 3200.0", 'metric = "input_wait_share"\nhigh = 0.05')
    assert main(["verify", str(write(occasions, share, "share.toml")), *shared]) == 0
    assert "PASS: node: input_wait_share 0 [0, 0]" in capsys.readouterr().out
    assert main(["verify", str(occasions / "share.toml"), "--history", *shared[1:]]) == 0
    assert "no change shown" in capsys.readouterr().out
    memory = RECIPE.replace("value = 3200.0", 'metric = "memory_peak"\nhigh = 5.0')
    assert main(["verify", str(write(occasions, memory, "memory.toml")), *shared]) == 3
    assert "CANNOT TELL: node: no job has memory_peak: " in capsys.readouterr().out


def test_two_that_begin_in_the_same_second_do_not_mix(tmp_path: Path) -> None:
    folder, recipe = ResultFolder(tmp_path / "results"), load_recipe(write(tmp_path, RECIPE))
    first = analysis.new_occasion(folder, recipe, START)
    second = analysis.new_occasion(folder, recipe, START)
    analysis.begin_occasion(folder, first)
    with pytest.raises(InputError, match="same second"):
        analysis.begin_occasion(folder, second)
    assert analysis.new_occasion(folder, recipe, START) == f"{first}-2"
    # Begun, but without a job yet: nothing to judge and no part of the history.
    assert analysis.occasions(folder, recipe) == []


def test_jobs_without_a_launch_are_dated_by_their_occasion(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, RECIPE)
    results = ResultFolder(tmp_path / "results")
    for day in (1, 2):
        monkeypatch.setattr("steelyard.cli.verify.now", lambda day=day: START + timedelta(days=day))
        verify(capsys, tmp_path, "--jobs", "3")
    for study in results.studies():
        for record in results.records(study):
            assert record.environment is not None
            place = results.path / "runs" / study / record.run_id / "record.json"
            rate = record.quantities["throughput"]
            value = (rate.value or 0.0) * (0.9 if study.endswith("0303T000000") else 1.0)
            quantities = {**record.quantities, "throughput": dataclasses.replace(rate, value=value)}
            node = dataclasses.replace(record.environment, node=f"node{study[-8]}")
            write_json(place, dataclasses.replace(record, launch=None, quantities=quantities, environment=node))
    (found,) = json.loads(verify(capsys, tmp_path, "--history", "--json")[1])["histories"]
    assert [entry["started_at"][:10] for entry in found["occasions"]] == ["2026-03-02", "2026-03-03"]
    # Two nodes, one after the other: the step is there, and so is the node that came with it.
    assert found["changes"][0]["facts"]["node"] == ["node2", "node3"]
    assert "node node2 -> node3" in found["findings"][0]["evidence"]


def test_an_unknown_figure_or_unit_is_refused(
    occasions: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shared = ["--no-run", "--results", str(occasions / "results")]
    path = write(tmp_path, RECIPE + 'metric = "thruput"\n')
    assert main(["verify", str(path), *shared]) == 2
    assert "throughput" in capsys.readouterr().err
    path = write(tmp_path, RECIPE + 'unit = "images/s"\n')
    assert main(["verify", str(path), *shared]) == 2
    assert "samples/s" in capsys.readouterr().err


def test_options_that_ask_for_different_things(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, RECIPE)
    for words in (
        ["--more", "1", "--no-run"],
        ["--history", "--dry-run"],
        ["--jobs", "3", "--no-run"],
        ["--jobs", "0"],
    ):
        assert verify(capsys, tmp_path, *words)[0] == 2
    assert verify(capsys, tmp_path, "--no-run")[0] == 2


def test_a_recipe_that_was_not_run_has_no_verdict() -> None:
    assert recipe_verdict([]) == "Not run yet with these settings."
