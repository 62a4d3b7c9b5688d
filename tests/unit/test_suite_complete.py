"""The experiments of the documents: their states follow from the suites, and a wrong entry or suite is found."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, get_args

import pytest

from experiments import STATES, Experiment, derive, experiments, problems, suites
from gallery_suites import spec_of
from printed_machines import STEPS
from simjob import run_spec
from steelyard.contracts.sim import SimTruth
from steelyard.inputs.suite import About, Choice, Suite, find_suite, plan_part
from steelyard.report.page import Chart, Table
from steelyard.report.suite.page import suite_page
from steelyard.results.store import ResultFolder
from steelyard.rules.table.settings import Role

if TYPE_CHECKING:
    from pathlib import Path

SUITES = suites()


def one(name: str) -> Experiment:
    return next(entry for entry in experiments() if entry.id == name)


def wrong(experiment: Experiment, suite: Suite | None = None) -> list[str]:
    found = derive(experiment, suite or SUITES[experiment.suite])
    return [text.removeprefix(f"{experiment.id}: ") for text in problems(experiment, found)]


def with_part(name: str, part: str, **changed: dict[str, Any]) -> Suite:
    """A suite of which a part has other settings."""
    suite = SUITES[name]
    (old,) = [entry for entry in suite.part if entry.name == part]
    new = replace(old, **{key: {**getattr(old, key), **settings} for key, settings in changed.items()})
    return replace(suite, part=tuple(new if entry is old else entry for entry in suite.part))


def test_every_experiment_has_the_state_that_its_suite_gives() -> None:
    assert len({entry.id for entry in experiments()}) == 51
    assert [text for entry in experiments() for text in wrong(entry)] == []
    assert {entry.state for entry in experiments()} <= {*STATES} - {"missing"}
    kinds = {kind for entry in experiments() for kind in entry.settings}
    assert kinds <= {*get_args(About)} <= {*get_args(Role), "devices", "statement"}
    assert all(entry.note for entry in experiments() if entry.state != "as stated")


def test_a_wrong_batch_in_the_suite_is_found() -> None:
    suite = with_part("aces", "resnet50-gpu-epoch", run={"batch": 128})
    assert wrong(one("aces-12"), suite) == [
        "batch: stated 256, run 128",
        "state as stated, but by the suite partly",
        "nothing differs, but by the suite batches",
    ]
    # Also where batches differ already.
    suite = with_part("aces", "resnet50-scaling", run={"batch": 16})
    assert wrong(one("aces-11"), suite) == ["batch: stated 20, run 16"]


def test_a_missing_part_or_configuration_is_found() -> None:
    aces = SUITES["aces"]
    kept = tuple(part for part in aces.part if part.name != "resnet50-gpu")
    without = replace(aces, part=kept, table=(), deviation=(), setting=())
    found = derive(one("aces-03"), without)
    assert (found.state, found.configurations) == ("missing", 0)
    assert wrong(one("aces-03"), without) == [
        "no configuration resnet50-gpu {'precision': 'tf32'}",
        "state as stated, but by the suite missing",
    ]
    fewer = with_part("olivia", "workers", sweep={"loader.workers": (4, 8, 16, 32)})
    assert wrong(one("olivia-06"), fewer) == [
        "no configuration workers {'precision': 'bf16', 'loader.workers': 48}",
        "state partly, but by the suite missing",
    ]


@pytest.mark.parametrize(
    ("name", "text", "state"),
    [
        ("aces-11", "batch normalisation spans pairs", "as stated"),
        ("aces-13", "the document describes its model", "partly"),
        ("olivia-04", "copies the next batch", "as stated"),
        ("olivia-07", "with numactl", "as stated"),
        ("nrp-15", "Deformable DETR", "as stated"),
    ],
)
def test_a_deviation_that_was_removed_is_found(name: str, text: str, state: str) -> None:
    suite = SUITES[one(name).suite]
    kept = tuple(entry for entry in suite.deviation if text not in entry.text)
    assert len(kept) == len(suite.deviation) - 1
    assert wrong(one(name), replace(suite, deviation=kept))[0] == (f"state {one(name).state}, but by the suite {state}")


def test_a_new_deviation_about_something_stated_is_found() -> None:
    suite = SUITES["olivia"]
    other = replace(suite.deviation[0], parts=("nodes",), at={}, text="loss scaling is static")
    counted = replace(suite, deviation=(*suite.deviation, replace(other, about="arithmetic")))
    assert wrong(one("olivia-02"), counted)[0] == "state as stated, but by the suite partly"
    named = replace(suite, deviation=(*suite.deviation, replace(other, about="software")))
    assert wrong(one("olivia-02"), named) == []


def test_a_wrong_entry_is_found() -> None:
    typed = replace(one("nrp-01"), state="partly", differs=["work"])
    assert wrong(typed) == ["state partly, but by the suite as stated", "work differs, but by the suite nothing"]
    settings = {kind: stated for kind, stated in one("aces-01").settings.items() if kind != "input"}
    assert wrong(replace(one("aces-01"), settings=settings))[0] == "instances: runs as stated"
    assert wrong(replace(one("nrp-01"), runs=[{"part": "clasification"}])) == [
        "no configuration clasification {}",
        "state as stated, but by the suite missing",
    ]


def test_a_figure_that_is_only_a_plot_has_a_table_and_a_chart_of_ours(tmp_path: Path) -> None:
    found, folder = find_suite("aces"), ResultFolder(tmp_path)
    part = found.part("resnet50-gpu")
    for planned in plan_part(found.suite, part, Choice("small", devices=(1, 2))):
        spec = spec_of(found, planned)
        assert (spec.compile, spec.batch) == ("off", 256)
        run = replace(spec, device="sim", sim=SimTruth(step_time_s=0.1), budget=STEPS, crosscheck_steps=0)
        run_spec(folder, run)
    page = suite_page(folder, found, "small")
    section = next(section for section in page.sections if section.title.startswith("Figure 1"))
    chart, table = section.blocks
    assert isinstance(table, Table)
    assert [[cell.text for cell in row[:3]] for row in table.rows] == [
        ["fp16", "1", "2,560"],
        ["fp16", "2", "5,120"],
        ["tf32", "1", "2,560"],
        ["tf32", "2", "5,120"],
    ]
    assert isinstance(chart, Chart)
    assert "precision fp16: 2,560 at 1, 5,120 at 2; precision tf32" in chart.alt
