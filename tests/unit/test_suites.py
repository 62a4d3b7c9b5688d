"""Suites: they load and expand at every size; every setting has a source, every printed figure has a configuration."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from simjob import run_spec
from steelyard.audit.documents import names as documents
from steelyard.cli.main import main
from steelyard.errors import InputError
from steelyard.inputs.suite import SIZES, Choice, expand_part, find_suite, plan_part, why_left_out
from steelyard.inputs.suites import list_suite, suite_names
from steelyard.report.page import Table
from steelyard.report.suite.beside import SuiteResults
from steelyard.report.suite.page import suite_page
from steelyard.report.suite.speedup import speedup_tables
from steelyard.results.store import ResultFolder
from suite_sources import out_of_date, sources_of

DOCS = Path(__file__).parents[2] / "docs"
EXAMPLE = DOCS / "examples" / "suites" / "node-a"


@pytest.mark.parametrize("name", suite_names())
def test_every_setting_has_a_source(name: str) -> None:
    found = find_suite(name)
    assert found.suite.name == name
    assert found.suite.document in (*documents(), "")
    explained = sources_of(found)
    assert [str(setting) for setting, entry in explained if entry is None] == []
    assert out_of_date(found.suite.setting, explained) == []


def test_an_epoch_of_some_global_batches() -> None:
    found = find_suite("caraml")
    cells = expand_part(found, found.part("gpt-117m"), Choice()).cells
    assert {cell.spec.epoch_samples / cell.spec.step_samples for cell in cells} == {4.0}
    assert {cell.spec.step_samples for cell in cells if cell.spec.devices == 4} == {2**n for n in range(6, 15)}


@pytest.mark.parametrize("name", [name for name in suite_names() if find_suite(name).suite.document])
def test_every_printed_figure_has_a_configuration(name: str, tmp_path: Path) -> None:
    results = SuiteResults(ResultFolder(tmp_path), find_suite(name), "full")
    assert results.document is not None
    printed = {(row.place, metric) for row in results.document.rows for metric in row.figures}
    beside = {(entry.published.place, entry.metric) for table in results.suite.table for entry in results.beside(table)}
    assert printed - beside == set()


def test_a_setting_that_no_printed_row_can_have_is_refused(tmp_path: Path) -> None:
    found = find_suite("aces")
    table = replace(found.suite.table[0], same={"phase": {}})
    wrong = replace(found, suite=replace(found.suite, table=(table,)))
    with pytest.raises(InputError, match=r"table 1: same\.phase: no such setting"):
        SuiteResults(ResultFolder(tmp_path), wrong, "full")


def test_a_part_that_needs_several_devices_is_left_out_on_one() -> None:
    found = find_suite("site-acceptance")
    part = found.part("collectives")
    assert "devices" in (why_left_out(found.suite, part, Choice("tiny", devices=(1,))) or "")
    assert [entry.run["devices"] for entry in plan_part(found.suite, part, Choice("tiny", devices=(1, 2)))] == [2]


# -- the suite of docs/adding-a-suite.md


def test_the_page_shows_the_files_of_the_example() -> None:
    page = (DOCS / "adding-a-suite.md").read_text(encoding="utf-8")
    for file in EXAMPLE.iterdir():
        assert f"\n{file.read_text(encoding='utf-8')}```\n" in page, file.name


def test_a_folder_with_a_table_of_its_own_is_a_suite(tmp_path: Path) -> None:
    found = find_suite(str(EXAMPLE))
    (part,) = found.suite.part
    assert [len(expand_part(found, part, Choice(size)).runs) for size in SIZES] == [6, 6, 2]
    folder = ResultFolder(tmp_path)
    for spec in expand_part(found, part, Choice("small")).runs:
        run_spec(folder, replace(spec, crosscheck_steps=0))
    beside = SuiteResults(folder, found, "small").beside(found.suite.table[0])
    assert [entry.published.get("batch") for entry in beside] == [32, 64]
    for entry, batch in zip(beside, (32, 64), strict=True):
        assert entry.ours is not None
        # A step takes 2 ms and 0.1 ms for each sample.
        assert entry.ours.value == pytest.approx(batch / (0.002 + 0.0001 * batch), rel=0.03)
        assert entry.comparison is not None
        assert entry.comparison.ratios
    page = suite_page(folder, found, "small")
    assert "2 of these can be compared" in page.sections[0].answer
    (settings,) = (section.blocks[0] for section in page.sections if section.name == "settings")
    assert isinstance(settings, Table)
    rows = {row[0].text: [cell.text for cell in row[1:]] for row in settings.rows}
    assert rows["batch"] == ["32, 64", "all", "table 1", '"batch 32 and 64"']
    assert rows["threads"][:3] == ["any", "all", "chosen here"]


def test_speed_ups_as_printed_and_here(tmp_path: Path) -> None:
    home = tmp_path / "suite"
    shutil.copytree(EXAMPLE, home)
    csv, toml = (home / name for name in ("published.csv", "suite.toml"))
    csv.write_text(
        csv.read_text().replace(",1,our model,synthetic,bf16,train,64", ",2,our model,synthetic,bf16,train,32")
    )
    text = toml.read_text()
    for swept in ("batch = [32, 64]", "batch = [2, 4]"):
        text = text.replace(f"sweep = {{ {swept} }}", "sweep = { devices = [1, 2] }")
    text = text.replace('rows = ["batch"]', 'rows = ["devices"]')
    toml.write_text(text)
    found, folder = find_suite(str(home)), ResultFolder(tmp_path / "results")

    def tables() -> list[Table]:
        return speedup_tables(SuiteResults(folder, found, "small").beside(found.suite.table[0]), "speedup")

    runs = expand_part(found, found.suite.part[0], Choice("small")).runs
    for ranks in (1, 2):
        assert tables() == []
        for spec in runs:
            if spec.devices == ranks:
                run_spec(folder, replace(spec, crosscheck_steps=0))
    ((row,),) = (table.rows for table in tables())
    assert [cell.text for cell in row[:4]] == ["-", "A100-80GB", "1 to 2", "1.32"]
    assert row[4].value == pytest.approx(2, rel=0.05)


def test_where_each_setting_comes_from_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["suite", "show", str(EXAMPLE)]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert 'Settings that the document states: batch = 32, 64: table 1, "batch 32 and 64"' in text
    assert "As in every suite (--json tells why): " in text


def test_a_package_adds_a_suite_by_its_entry_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = '[project.entry-points."steelyard.suite"]\nnode-a = "our_suites.node_a"'
    assert said in (DOCS / "adding-a-suite.md").read_text(encoding="utf-8")
    shutil.copytree(EXAMPLE, tmp_path / "our_suites" / "node_a")
    metadata = tmp_path / "our_suites-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: our_suites\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text("[steelyard.suite]\nnode-a = our_suites.node_a\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert "node-a" in suite_names()
    assert list_suite("node-a").title == "Batch sizes on node A"
    assert find_suite("node-a").suite.title == "Batch sizes on node A"
    (tmp_path / "our_suites" / "node_a" / "suite.toml").write_text('name = "node-a"\npart = 1\n')
    assert main(["suite", "list"]) == 0
    printed = capsys.readouterr()
    assert "caraml" in printed.out
    assert "suite.toml is not a suite file: " in printed.err
