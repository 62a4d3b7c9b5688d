"""The suite olivia: its printed figures have runs of the document's own work beside them, with what was assumed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gallery_suites import as_measured, data_of, spec_of
from printed_machines import printed_rows, simulated
from simjob import run_spec
from steelyard.inputs.recipe import load_recipe
from steelyard.inputs.suite import Choice, counterpart, expand_part, find_recipe, find_suite, plan_part
from steelyard.report.suite.beside import SuiteResults
from steelyard.results.store import ResultFolder

if TYPE_CHECKING:
    from steelyard.report.suite.beside import Beside


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> SuiteResults:
    return SuiteResults(ResultFolder(tmp_path_factory.mktemp("olivia")), find_suite("olivia"), "full")


def every(results: SuiteResults) -> list[Beside]:
    return [entry for table in results.suite.table for entry in results.beside(table)]


def test_every_figure_is_of_the_network_that_the_document_trained(results: SuiteResults) -> None:
    assert not any(entry.other_work for entry in results.suite.deviation)
    entries = every(results)
    assert {entry.planned.get("workload") for entry in entries} == {"wideresnet-olivia"}
    assert all(any("17,175,444" in one.text for one in entry.differences) for entry in entries)


def test_fp32_is_compared_with_tf32_and_says_that_this_is_assumed(results: SuiteResults) -> None:
    entries = every(results)
    printed = [entry for entry in entries if entry.published.get("precision") == "fp32"]
    assert len(printed) == 6
    assert {entry.planned.get("precision") for entry in printed} == {"tf32"}
    for entry in entries:
        assumed = any("assumed to be torch's default" in one.text for one in entry.differences)
        assert assumed == (entry in printed)


def test_trainings_on_several_devices_have_the_optimizer_of_the_guide_for_them(results: SuiteResults) -> None:
    alone = ("test 1", "test 4", "test 13", "summary")
    for entry in every(results):
        chosen = entry.planned.run["learning_rate"], entry.planned.run["model"]
        plain = (0.01, {"classes": 100})
        together = (0.04, {"classes": 100, "momentum": 0.9, "weight_decay": 0.0005})
        assert chosen == (plain if entry.published.table in alone else together), entry.published.place


def test_figures_of_the_summary_table_have_configurations(results: SuiteResults) -> None:
    found = {(entry.published.table, entry.printed.text): entry.planned for entry in every(results)}
    total = found["summary", "17511"]
    assert (total.get("devices"), total.get("parallel")) == (4, "independent")
    sixteen = found["test 6", "0.494"]
    assert (sixteen.get("devices"), sixteen.get("precision"), sixteen.epochs) == (4, "bf16", 10)
    prefetched = found["test 5", "31218"]
    assert (prefetched.get("devices"), prefetched.get("loader.prefetch")) == (4, 4)


def test_an_accuracy_is_that_after_ten_epochs_at_every_size() -> None:
    found = find_suite("olivia")
    for size in ("full", "small"):
        for name in ("accuracy", "accuracy-ddp"):
            runs = expand_part(found, found.part(name), Choice(size, data={"cifar100": Path("/data")})).runs
            assert {run.budget.epochs for run in runs} == {10}


@pytest.mark.parametrize("name", ["test 1", "tests 8-12"])
def test_a_machine_of_the_document_s_speed_gets_a_ratio_of_one(name: str, tmp_path: Path) -> None:
    found, folder = find_suite("olivia"), ResultFolder(tmp_path)
    row = next(
        row
        for row in printed_rows(SuiteResults(folder, found, "full"))
        if row.row.table == name and row.row.get("precision") == "fp32"
    )
    planned = row.entries[0].planned
    there = counterpart(found.suite, planned, "small", plan_part(found.suite, planned.part, Choice("small")))
    assert there is not None
    run = simulated(row, spec_of(found, there))
    assert run is not None
    for job in range(3):
        one = replace(run, run_id=f"job{job}", repeat=job)
        run_spec(folder, one, lambda record: as_measured(record, data_of(there)))
    results = SuiteResults(folder, found, "small")
    (entry,) = [
        entry
        for entry in every(results)
        if entry.metric == "throughput" and entry.published.place == row.row.place and entry.ours is not None
    ]
    assert entry.comparison is not None
    assert entry.comparison.ratios[0].value == pytest.approx(1, rel=0.003)


def test_the_recipes_train_as_the_tests_that_they_are_named_after() -> None:
    found = find_suite("olivia")
    parts = {"test-1": "factors", "test-2": "nodes", "test-3": "nodes", "test-4": "prefetch", "test-13": "independent"}
    for name, part in parts.items():
        path = find_recipe(f"olivia/{name}")
        assert path is not None
        recipe = load_recipe(path)
        assert "No gate for nodes" in recipe.documents
        assert recipe.run is not None
        run = recipe.run
        plans = plan_part(found.suite, found.part(part), Choice())
        wanted = {key: run.get(key) for key in ("workload", "model", "learning_rate", "batch", "precision", "loader")}
        alike = [
            planned
            for planned in plans
            if {**planned.run["loader"], "prefetch": planned.get("loader.prefetch")} == {"prefetch": 2, **run["loader"]}
            and all(planned.run.get(key) == value for key, value in wanted.items() if key != "loader")
            and planned.get("devices") == run.get("devices", 1)
        ]
        assert alike, name
