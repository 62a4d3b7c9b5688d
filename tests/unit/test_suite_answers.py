"""Answers of a suite: ratios of the same work, what one setting changes, and lengths of training."""

from __future__ import annotations

import csv
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gallery_suites import as_measured, data_of, spec_of
from simjob import run_spec
from steelyard.analysis.compare import compare
from steelyard.contracts.sim import SimTruth
from steelyard.contracts.spec import Budget
from steelyard.inputs.suite import Choice, expand_part, find_suite, plan_part
from steelyard.report.page import Prose, Table
from steelyard.report.render.html import html
from steelyard.report.suite.beside import SuiteResults
from steelyard.report.suite.chart import together
from steelyard.report.suite.conditions import warned
from steelyard.report.suite.inside import GENERATED, relations
from steelyard.report.suite.page import suite_page
from steelyard.results.store import ResultFolder
from steelyard.rules.table.row import Amount, Row

if TYPE_CHECKING:
    from steelyard.inputs.suite import Planned, SuiteFolder
    from steelyard.report.page import Page
    from steelyard.report.suite.beside import Beside
    from steelyard.report.suite.inside import Relation

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "suites" / "node-a"
BUDGET = Budget(min_steps=30, max_steps=30, min_seconds=0.0, max_seconds=1e9)


def small_suite(
    home: Path, second: dict[str, str] | None = None, *, without: str = "", sweep: str = "batch = [32, 64]"
) -> SuiteFolder:
    """Return the suite of the documentation with other values in its second row, or without a column."""
    shutil.copytree(EXAMPLE, home)
    with (home / "published.csv").open(newline="") as file:
        rows = [*csv.DictReader(file)]
    rows[1] |= second or {}
    with (home / "published.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, [key for key in rows[0] if key != without], extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    toml = home / "suite.toml"
    toml.write_text(toml.read_text().replace("sweep = { batch = [32, 64] }", f"sweep = {{ {sweep} }}"))
    return find_suite(str(home))


def answered(found: SuiteFolder, folder: ResultFolder) -> tuple[list[Beside], list[Relation]]:
    """Run a suite, and return the printed figures and their relations."""
    for part in found.suite.part:
        for spec in expand_part(found, part, Choice("small")).runs:
            run_spec(folder, replace(spec, crosscheck_steps=0))
    entries = SuiteResults(folder, found, "small").beside(found.suite.table[0])
    return entries, relations(entries)


def test_what_the_batch_changes_as_printed_and_here(tmp_path: Path) -> None:
    found = small_suite(tmp_path / "suite")
    entries, (relation,) = answered(found, ResultFolder(tmp_path / "results"))
    assert all(entry.same_work is not None for entry in entries)
    assert relation.factor == "batch"
    assert relation.printed.value == pytest.approx(6230 / 4710)
    # A step takes 2 ms and 0.1 ms for each sample.
    assert relation.ours.value == pytest.approx((64 / 8.4) / (32 / 5.2), rel=0.03)
    assert "batch" not in relation.conditions
    assert {"loader.place", "optimizer"} & {*relation.conditions} == {"loader.place"}


def test_what_the_number_of_devices_changes(tmp_path: Path) -> None:
    found = small_suite(tmp_path / "suite", {"devices": "2", "batch": "32"}, sweep="devices = [1, 2]")
    _, (relation,) = answered(found, ResultFolder(tmp_path / "results"))
    assert relation.factor == "devices"
    assert relation.printed.value == pytest.approx(6230 / 4710)
    assert relation.ours.value == pytest.approx(2, rel=0.05)


@pytest.mark.parametrize(
    "second",
    [
        {"precision": "fp16"},
        {"system": "node B"},
        {"unit": "tokens/s"},
        {"dataset": "MNIST"},
        {"metric": "epoch_time", "value": "12", "unit": "s"},
    ],
    ids=["two settings", "two machines", "two units", "two data sets", "two figures"],
)
def test_figures_that_differ_in_more_have_no_relation(tmp_path: Path, second: dict[str, str]) -> None:
    found = small_suite(tmp_path / "suite", second)
    _, made = answered(found, ResultFolder(tmp_path / "results"))
    assert made == []


def test_a_setting_that_the_document_does_not_state_is_a_condition(tmp_path: Path) -> None:
    found = small_suite(tmp_path / "suite", without="precision")
    entries, (relation,) = answered(found, ResultFolder(tmp_path / "results"))
    assert "precision" in relation.conditions
    assert all(entry.same_work is not None for entry in entries)
    page = suite_page(ResultFolder(tmp_path / "results"), found, "small")
    same, inside = (table_of(page, name) for name in ("table-0-same-work", "table-0-inside"))
    for table in (same, inside):
        assert {"precision" in str(row[-1].value) for row in table.rows} == {True}
    assert [row[0].text for row in same.rows] == ["same work", "same work"]
    assert [row[0].text for row in inside.rows] == ["inside"]


def test_a_condition_of_every_answer_is_said_once(tmp_path: Path) -> None:
    found = small_suite(tmp_path / "suite", without="precision")
    answered(found, ResultFolder(tmp_path / "results"))
    page = suite_page(ResultFolder(tmp_path / "results"), found, "small")
    (once,) = (section.blocks[0] for section in page.sections if section.name == "conditions")
    assert isinstance(once, Prose)
    assert "precision" in once.paragraphs[0]
    explained = table_of(page, "table-0-conditions")
    assert explained.folded
    assert not [row for row in explained.rows if "precision" in row[1].text]
    letters = {row[0].text for row in explained.rows}
    assert {*table_of(page, "table-0-inside").rows[0][-1].text.split(", ")} <= letters | {"-"}


def test_the_ratio_is_beside_the_printed_figure(tmp_path: Path) -> None:
    found = small_suite(tmp_path / "suite")
    entries, _ = answered(found, ResultFolder(tmp_path / "results"))
    page = suite_page(ResultFolder(tmp_path / "results"), found, "small")
    printed, listed = (table_of(page, name) for name in ("table-0-0", "table-0-same-work"))
    assert [column.name for column in printed.columns][-2:] == ["same work", "conditions"]
    assert [row[-2].value for row in printed.rows] == [entry.same_work.value for entry in entries if entry.same_work]
    assert [row[-1].value for row in printed.rows] == [row[-1].value for row in listed.rows]
    assert (printed.folded, listed.folded) == (False, True)
    text = html(page, charts=False)
    assert ">kind</th>" not in text
    assert listed.columns[0].name == "kind"
    assert {row[0].text for row in listed.rows} == {"same work"}


@pytest.mark.parametrize(
    ("second", "names"),
    [
        ({"batch": "32"}, ["32 (1 of 2 as printed)", "32 (2 of 2 as printed)"]),
        ({"batch": "32", "system": "node B"}, ["32 (node A)", "32 (node B)"]),
    ],
    ids=["nothing", "machine"],
)
def test_rows_of_one_name_have_a_line_each(tmp_path: Path, second: dict[str, str], names: list[str]) -> None:
    found = small_suite(tmp_path / "suite", second)
    entries, _ = answered(found, ResultFolder(tmp_path / "results"))
    printed = table_of(suite_page(ResultFolder(tmp_path / "results"), found, "small"), "table-0-0")
    assert [row[0].text for row in printed.rows] == names
    assert [row[1].value for row in printed.rows] == [entry.printed.value for entry in entries]


@pytest.mark.parametrize(("metric", "codes"), [("throughput", []), ("energy", ["SY410"])])
def test_a_doubtful_energy_is_a_condition_only_of_energies(metric: str, codes: list[str]) -> None:
    figures = {"throughput": Amount(9, 9, 9, "images/s"), "energy": Amount(7, 7, 7, "J")}
    alike = {"model": "a", "batch": 8, "energy_scope": "GPU only"}
    rows = [
        Row(f"node {name}", {**alike, "system": name, **doubt}, figures)
        for name, doubt in (("A", {}), ("B", {"energy_doubts": "a gap"}))
    ]
    made = compare(rows[:1], rows[1:], metric=metric).comparisons[0]
    assert "SY410" in [finding.code for finding in made.findings]
    assert [one.text.partition(":")[0] for one in warned(made)] == codes


def test_the_count_of_lengths_links_to_them(tmp_path: Path) -> None:
    folder = ResultFolder(tmp_path)
    text = html(suite_page(folder, nrp_measured(folder, "classification", "resnet50"), "small"), charts=False)
    assert '<a href="#table-0-if">2</a>' in text
    assert text.count('id="table-0-if"') == 1


def table_of(page: Page, name: str) -> Table:
    return next(table for table in page.tables if table.name == name)


# -- a document that does not say how long it trained

STEP_S = 0.02


def measure(found: SuiteFolder, folder: ResultFolder, plan: list[Planned], *, data: bool = True) -> None:
    """Make three jobs of configurations whose steps take the same time."""
    for planned in plan:
        facts = data_of(planned) if data else None
        spec = replace(spec_of(found, planned), device="sim", sim=SimTruth(step_time_s=STEP_S), budget=BUDGET)
        for job in range(3):
            one = replace(spec, run_id=f"{spec.configuration}-r{job:04}", repeat=job, crosscheck_steps=0)
            run_spec(folder, one, partial(as_measured, data=facts))


def nrp_measured(folder: ResultFolder, part: str, *models: str, data: bool = True) -> SuiteFolder:
    """Measure models of the suite nrp on one device; classifiers on CIFAR-100."""
    found = find_suite("nrp")
    plan = plan_part(found.suite, found.part(part), Choice("small", (1,)))
    measure(found, folder, [one for one in plan if one.get("workload") in models and one.data != "food101"], data=data)
    return found


def test_the_length_of_training_at_which_both_are_as_fast(tmp_path: Path) -> None:
    folder = ResultFolder(tmp_path)
    found = nrp_measured(folder, "classification", "resnet50")
    entries = SuiteResults(folder, found, "small").beside(found.suite.table[0])
    evens = {entry.published.get("accelerator"): entry.even for entry in entries if entry.even is not None}
    assert set(evens) == {"A100-80GB", "GH200"}
    epoch_s = 50_000 / 32 * STEP_S
    for name, minutes in (("A100-80GB", 36.67), ("GH200", 24.81)):
        even = evens[name]
        assert even is not None
        assert even.epochs == pytest.approx(60 * minutes / epoch_s, rel=0.01)
        assert even.usual == (30, 90)
    assert all(entry.same_work is None for entry in entries)


def test_generated_data_is_marked_and_has_no_length(tmp_path: Path) -> None:
    folder = ResultFolder(tmp_path)
    found = nrp_measured(folder, "classification", "resnet50", "resnet152", data=False)
    entries = SuiteResults(folder, found, "small").beside(found.suite.table[0])
    assert not any(entry.even or entry.same_work for entry in entries)
    made = relations(entries)
    assert {(one.factor, one.marks) for one in made} == {("model", (GENERATED,))}
    assert all(one.ours.value == pytest.approx(1, rel=0.02) for one in made)
    assert {"epochs", "precision", "batch"} <= {*made[0].conditions}


def test_another_network_is_marked(tmp_path: Path) -> None:
    folder, found = ResultFolder(tmp_path), find_suite("aces")
    measure(found, folder, plan_part(found.suite, found.part("autoencoder-scaling"), Choice("small", (1, 2))))
    table = next(one for one in found.suite.table if one.part == "autoencoder-scaling")
    made = relations(SuiteResults(folder, found, "small").beside(table))
    assert {one.marks for one in made} == {("another network here",)}
    assert {one.entry.published.get("accelerator") for one in made} == {"A100-40GB", "GC200 IPU"}


def test_an_implausible_figure_has_no_answer(tmp_path: Path) -> None:
    folder = ResultFolder(tmp_path)
    found = nrp_measured(folder, "detection", "fasterrcnn-r50-fpn", "deformable-detr-swin-l")
    table = next(one for one in found.suite.table if one.part == "detection")
    entries = SuiteResults(folder, found, "small").beside(table)
    measured = [entry for entry in entries if entry.ours is not None]
    assert len(measured) == 4
    assert not any(entry.even or entry.same_work for entry in measured)
    assert relations(entries) == []
    page = suite_page(folder, found, "small")
    prose = [block for part in page.sections for block in part.blocks if isinstance(block, Prose)]
    told = [text for block in prose for text in block.paragraphs]
    assert "No answer for 2 figures: the printed figure is implausible" in told


def test_every_measured_configuration_is_on_the_page(tmp_path: Path) -> None:
    found = small_suite(tmp_path / "suite", {"precision": "fp16"}, sweep="batch = [32, 64, 128]")
    answered(found, ResultFolder(tmp_path / "results"))
    page = suite_page(ResultFolder(tmp_path / "results"), found, "small")
    rest = table_of(page, "rest-batch")
    assert [[cell.text for cell in row[:2]] for row in rest.rows] == [["1", "64"], ["1", "128"]]


def test_the_first_screen_answers(tmp_path: Path) -> None:
    found = small_suite(tmp_path / "suite")
    answered(found, ResultFolder(tmp_path / "results"))
    page = suite_page(ResultFolder(tmp_path / "results"), found, "small")
    assert page.first is not None
    assert page.first.verdict.startswith("Where the work is the same, throughput here is ")
    figures = {one.label: one.value for one in page.first.figures}
    counted = [figures[label] for label in ("Printed figures", "Same work", "Inside", "If")]
    assert counted == ["2 of 2", "2", "2", "0"]
    assert page.first.table is not None
    ((_, here, same, inside),) = page.first.table.rows
    assert "samples/s" in here.text
    assert same.text.endswith(" times that of A100-80GB")
    assert inside.text.startswith("batch 32 to 64: throughput x 1.2")


def test_a_chart_has_the_points_of_the_document_and_ours(tmp_path: Path) -> None:
    found = small_suite(tmp_path / "suite")
    entries, _ = answered(found, ResultFolder(tmp_path / "results"))
    chart = together(entries, "chart")
    assert chart is not None
    assert {row[0].text for row in chart.table.rows} == {"1 x A100-80GB", "here"}
    assert [row[1].value for row in chart.table.rows] == [32, 64, 32, 64]
    assert together(entries[:1], "chart") is None


def test_a_document_with_both_batches_has_one_relation(tmp_path: Path) -> None:
    found = small_suite(tmp_path / "suite")
    csv_file = tmp_path / "suite" / "published.csv"
    head, *rows = csv_file.read_text().splitlines()
    lines = [f"{head},global_batch", *(f"{row},{batch}" for row, batch in zip(rows, (32, 64), strict=True))]
    csv_file.write_text("\n".join(lines) + "\n")
    _, made = answered(found, ResultFolder(tmp_path / "results"))
    assert [one.factor for one in made] == ["batch"]
