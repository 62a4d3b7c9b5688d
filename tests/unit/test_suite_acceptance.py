"""The report of a suite without a document: what a node reaches, in the units of tables, beside its data sheet."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gallery_suites import DEVICE, SIZE, make_alone
from steelyard.cli.main import main
from steelyard.inputs.suite import Choice, expand_part, find_suite
from steelyard.report.page import Table
from steelyard.report.suite.beside import SuiteResults
from steelyard.report.suite.page import suite_page
from steelyard.results.store import ResultFolder
from steelyard.terminal.suite import part_lines
from steelyard.worker.devices.facts import look_up

if TYPE_CHECKING:
    from pathlib import Path

    from steelyard.report.page import Page

UNKNOWN = "Fictional GPU 9000"


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return node(tmp_path_factory.mktemp("known"), DEVICE)


def node(home: Path, device: str) -> Path:
    make_alone(ResultFolder(home), find_suite("site-acceptance"), 2, device)
    return home


def page_of(home: Path) -> Page:
    return suite_page(ResultFolder(home), find_suite("site-acceptance"), SIZE)


def reached(page: Page) -> dict[str, tuple[str, str, str]]:
    """The unit, the data sheet's value and the part of it in percent, by line of the first screen."""
    assert page.first is not None
    table = page.first.table
    assert table is not None
    return {row[0].text: (row[2].text, row[3].text, row[4].text) for row in table.rows}


def test_the_first_screen_has_a_line_for_each_thing_measured(known: Path) -> None:
    lines = reached(page_of(known))
    assert {unit for unit, _, _ in lines.values()} == {"TFLOP/s", "GB/s", "images/s", "tokens/s", "W"}
    assert lines["memory bandwidth (STREAM)"][:2] == ("GB/s", "3,350 GB/s")
    assert lines["copies between host and device, to-host"][0] == "GB/s"
    assert lines["all-reduce, 2 devices: bus bandwidth"] == ("GB/s", "-", "-")
    assert lines["gpt, training, bf16, batch 8, 2 devices"][0] == "tokens/s"
    assert lines["resnet50, training, bf16, batch 128: power"][1] == "700 W"


def test_figures_are_compared_with_the_data_sheet(known: Path) -> None:
    page = page_of(known)
    lines, peaks = reached(page), look_up(DEVICE).peak_flops or {}
    for precision in ("bf16", "tf32", "fp32"):
        unit, sheet, _ = lines[f"matrix product, {precision}"]
        assert (unit, sheet) == ("TFLOP/s", f"{peaks[precision] / 1e12:g} TFLOP/s")
    assert page.first is not None
    table = page.first.table
    assert table is not None
    row = next(row for row in table.rows if row[0].text == "matrix product, bf16")
    # Three jobs of a machine that was made to reach 66 %, each within a few percent.
    assert row[4].value == pytest.approx(66, rel=0.1)
    assert row[1].value == pytest.approx(float(row[4].value) / 100 * 989.4, rel=1e-3)
    assert any(note.startswith(f"Data sheet of {DEVICE}: NVIDIA") and "https://" in note for note in table.notes)


def test_of_an_unknown_device_no_data_sheet_is_guessed(tmp_path: Path) -> None:
    page = page_of(node(tmp_path, UNKNOWN))
    lines = reached(page)
    assert {(sheet, share) for _, sheet, share in lines.values()} == {("-", "-")}
    assert page.first is not None
    assert page.first.table is not None
    assert f"{UNKNOWN}: not in steelyard's table of devices, so that no value of its data sheet is known." in (
        page.first.table.notes
    )


def test_tables_have_the_units_of_people_and_no_settings_without_a_value(known: Path) -> None:
    page = page_of(known)
    tables = [block for part in page.sections for block in part.blocks if isinstance(block, Table)]
    measured = [table for table in tables if table.name.startswith("table-")]
    units = {column.unit for table in measured for column in table.columns}
    assert not units & {"FLOP/s", "B/s", "bytes", "1"}
    assert {"TFLOP/s", "GB/s", "images/s", "tokens/s", "W", "%"} <= units
    cells = [cell.text for table in page.tables for row in table.rows for cell in row]
    assert [text for text in cells if "=none" in text or "e+" in text] == []


def test_the_terminal_has_the_same_units(known: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = find_suite("site-acceptance")
    results = SuiteResults(ResultFolder(known), found, SIZE)
    part = found.part("ceilings")
    told = part_lines(expand_part(found, part, Choice(SIZE)), results.cells(part), SIZE)
    text = "\n".join(told)
    assert text.count(" TFLOP/s") == 3
    assert text.count(" GB/s") == 3
    assert "samples/s" not in text
    assert main(["suite", "report", "site-acceptance", "--results", str(known), "-o", str(known / "r.html")]) == 0
    out = capsys.readouterr().out
    assert "matrix product, bf16" in out
    assert "989.4 TFLOP/s" in out
