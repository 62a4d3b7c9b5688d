"""The reports of suites in Chromium: short, nothing wider than the page, and every measured configuration is there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import gallery_suites
from browser import HEIGHT, chromium, visit
from steelyard.inputs.suite import find_suite
from steelyard.report.render.html import html
from steelyard.report.suite.beside import SuiteResults
from steelyard.report.suite.page import suite_page
from steelyard.results.store import ResultFolder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Browser

SUITES = ("nrp", "aces", "olivia", "caraml", "site-acceptance")
MACHINES = (1, 4, 8)
IN_GATE = (("caraml", 1), ("site-acceptance", 8))
SCREENS = 8
WIDE, PHONE = 1400, 390
# Parts of tables that a reader sees only after scrolling sideways.
HIDDEN = """Array.from(document.querySelectorAll('.scroll'))
    .filter(box => box.checkVisibility() && box.scrollWidth > box.clientWidth + 1)
    .map(box => box.innerText.slice(0, 80) || box.className)"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as running:
        yield running


@pytest.mark.parametrize(
    ("name", "devices"),
    [
        pytest.param(name, devices, marks=[pytest.mark.gate] * ((name, devices) in IN_GATE))
        for name in SUITES
        for devices in MACHINES
    ],
)
def test_a_report_is_short_and_complete(browser: Browser, tmp_path: Path, name: str, devices: int) -> None:
    folder, found = ResultFolder(tmp_path / "results"), find_suite(name)
    make = gallery_suites.make_machine if found.suite.document else gallery_suites.make_alone
    make(folder, found, devices)
    file = tmp_path / "report.html"
    file.write_text(html(suite_page(folder, found, gallery_suites.SIZE)), encoding="utf-8")
    with visit(browser, file, PHONE) as opened:
        assert opened.page.evaluate("document.documentElement.scrollWidth") <= PHONE
    with visit(browser, file, WIDE) as opened:
        assert opened.page.evaluate("document.documentElement.scrollWidth") <= WIDE
        assert opened.page.evaluate("document.documentElement.scrollHeight") <= SCREENS * HEIGHT
        assert opened.page.evaluate(HIDDEN) == []
        text = opened.page.evaluate("document.querySelector('main').textContent")
        assert opened.complaints == []
    results = SuiteResults(folder, found, gallery_suites.SIZE)
    cells = [cell for part in found.suite.part for cell in results.cells(part)]
    assert cells
    assert [cell.name for cell in cells if not any(record.run_id in text for record in cell.records)] == []
