"""A page with every kind of block in Chromium: it fits the window, asks nobody for anything and raises no error.

Its table of configurations can be sorted, filtered and copied, and reads as well without a script.
"""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from io import BytesIO
from typing import TYPE_CHECKING

import pytest
from PIL import Image

from browser import WIDTHS, bring_to_life, chromium, tips, visit
from sample_page import chart, full_page, poisoned, run_table, scaling_table
from steelyard.report.page import FirstScreen, KeyFigure, Section
from steelyard.report.render.csv_table import csv_table
from steelyard.report.render.html import html
from steelyard.report.render.latex import latex_table
from steelyard.report.render.markdown import markdown_table

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Browser, ElementHandle, Page

ROWS = "Array.from(document.querySelectorAll('table.main tbody tr')).filter(row => !row.hidden)"
HOSTILE = "<img src=x onerror=alert(1)>"
WIDE = 1400


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as running:
        yield running


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "page.html"
    path.write_text(html(full_page()), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "width",
    [pytest.param(width, id=name, marks=[pytest.mark.gate] * (name == "phone")) for name, width in WIDTHS.items()],
)
def test_a_page_fits_and_is_quiet(browser: Browser, file: Path, width: int) -> None:
    with visit(browser, file, width) as found:
        assert found.page.evaluate("document.documentElement.scrollWidth") <= width
        assert (found.elsewhere(file), found.complaints, found.dialogs) == ([], [], [])
        shown = found.page.evaluate("Array.from(document.images, image => image.naturalWidth)")
        assert shown
        assert all(shown)


def corner(found: ElementHandle) -> int:
    """How bright the corner of an element is on the screen, from 0 to 255."""
    with Image.open(BytesIO(found.screenshot())) as image:
        bright = image.convert("L").getpixel((4, 4))
    assert isinstance(bright, int)
    return bright


def test_charts_are_pictures_without_scripts_and_follow_the_colours_of_the_reader(browser: Browser, file: Path) -> None:
    for scheme, scripts in (("light", True), ("dark", True), ("dark", False)):
        with visit(browser, file, color_scheme=scheme, java_script_enabled=scripts) as found:
            if scripts:
                bring_to_life(found.page)
            bright = [corner(box) for box in found.page.query_selector_all(".picture")]
            assert len(bright) == 3
            assert all(one > 240 for one in bright) if scheme == "light" else all(one < 40 for one in bright)
            # Print has the pictures, in light colours.
            found.page.emulate_media(media="print", color_scheme=scheme)
            shown = [image for image in found.page.query_selector_all(".picture img") if image.is_visible()]
            assert [corner(image) > 240 for image in shown] == [True] * 3
            assert not found.page.is_visible(".view")


def test_charts_answer_to_mouse_and_keyboard(browser: Browser, file: Path) -> None:
    with visit(browser, file) as found:
        page = found.page
        bring_to_life(page)
        every = tips(page)
        assert every[0] == "devices: 1\nthroughput: 407.1 images/s\n95 % CI 394.8 to 419.3"
        assert len(every) == 10
        page.focus("[data-chart]")
        page.keyboard.press("ArrowLeft")
        assert "devices: 16" in page.inner_text(".tip:not([hidden])")
        # The key hides its marks, and what is hidden says nothing.
        page.click(".view [role=button] text")
        assert page.get_attribute(".view [role=button]", "aria-pressed") == "false"
        assert len(tips(page)) == 5
        page.press(".view [role=button]", "Enter")
        assert len(tips(page)) == 10
        box = page.query_selector(".view svg")
        assert box is not None
        box.scroll_into_view_if_needed()
        size = box.bounding_box()
        assert size is not None
        middle = size["y"] + size["height"] / 2
        page.mouse.move(size["x"] + 0.3 * size["width"], middle)
        page.mouse.down()
        page.mouse.move(size["x"] + 0.6 * size["width"], middle)
        page.mouse.up()
        page.click(".hint button:enabled")
        page.wait_for_selector(".hint button:enabled", state="detached")
        assert (found.elsewhere(file), found.complaints) == ([], [])


def test_hostile_texts_in_charts_stay_texts(browser: Browser, tmp_path: Path) -> None:
    evil, file = "<img src=x onerror='window.hit=1'>{{datum.x}}javascript:alert(1)", tmp_path / "evil.html"
    file.write_text(html(poisoned(full_page(), evil)), encoding="utf-8")
    with visit(browser, file) as found:
        bring_to_life(found.page)
        assert evil in tips(found.page)[0]
        found.page.click(".view [role=button] text")
        assert found.page.evaluate("window.hit") is None
        assert found.page.query_selector("img[src=x]") is None
        assert (found.elsewhere(file), found.complaints, found.dialogs) == ([], [], [])


def test_the_picture_stays_if_the_view_cannot_be_drawn(browser: Browser, file: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.html"
    broken.write_text(re.sub(r'data-vega="[^"]*"', 'data-vega="payload-1"', file.read_text("utf-8")), encoding="utf-8")
    with visit(browser, broken) as found:
        # The policy refuses any other script.
        found.page.wait_for_selector(".still img", state="visible")
        assert found.page.query_selector(".view") is None


def shown(page: Page, place: int) -> list[str]:
    """The texts of one column, of the rows in sight."""
    return list(page.evaluate(f"{ROWS}.map(row => row.cells[{place}].innerText)"))


def test_a_table_is_sorted_by_a_click(browser: Browser, file: Path) -> None:
    with visit(browser, file, WIDE) as found:
        heads = found.page.locator("table.main thead th")
        ordered = ["1", "2", "4", "8", "16"]
        for way, wanted in (("ascending", ordered), ("descending", ordered[::-1]), (None, ordered)):
            heads.nth(2).locator("button").click()
            assert (shown(found.page, 0), heads.nth(2).get_attribute("aria-sort")) == (wanted, way)
        # Equal values keep their order, and what is unknown comes last both ways.
        for way in ("ascending", "descending"):
            heads.nth(4).locator("button").press("Enter")
            assert shown(found.page, 0) == ["2", "4", "8", "16", "1"], way
        assert found.page.locator("[aria-sort]").count() == 1
        assert (found.complaints, found.dialogs) == ([], [])


def test_a_table_is_filtered_and_copied_as_it_is_seen(browser: Browser, file: Path) -> None:
    with visit(browser, file, WIDE, permissions=["clipboard-read", "clipboard-write"]) as found:
        page, table = found.page, scaling_table()
        page.locator("table.main thead button").nth(2).click(click_count=2)
        page.get_by_label("reliability:").select_option("reliable")
        assert shown(page, 0) == ["8", "4", "2", "1"]
        assert page.locator(".tools p").inner_text() == "4 of 5 rows"
        for kind, text in {
            "CSV": csv_table(table), "Markdown": markdown_table(table), "LaTeX": latex_table(table),
        }.items():  # fmt: skip
            page.get_by_role("button", name=f"Copy {kind}").click()
            page.get_by_text(f"Copied 4 of 5 rows as {kind}").wait_for()
            lines = text.split("\n")
            first = next(place for place, line in enumerate(lines) if "407." in line)
            rows = lines[first : first + 5]
            copied = page.evaluate("navigator.clipboard.readText()").split("\n")
            assert copied == lines[:first] + rows[3::-1] + lines[first + 5 :]
        page.get_by_label("devices:").select_option("16")
        assert page.locator(".tools p").inner_text() == "0 of 5 rows"
        assert (found.complaints, found.dialogs) == ([], [])


def test_a_long_table_grows_as_it_is_read(browser: Browser, tmp_path: Path) -> None:
    runs = run_table(200)
    table = replace(runs, columns=(*runs.columns[:-1], replace(runs.columns[-1], filtered=True)))
    file = tmp_path / "long.html"
    page = replace(full_page(), sections=(Section("runs", "Runs", blocks=(table,)),))
    file.write_text(html(page), encoding="utf-8")
    with visit(browser, file, WIDE) as found:
        assert len(shown(found.page, 0)) == 60
        found.page.evaluate("document.querySelector('.all').scrollTop = 1e6")
        found.page.wait_for_function(f"{ROWS}.length === 120")
        found.page.locator("table.main thead button").nth(3).click()
        rates = sorted(row[3].value for row in table.rows if isinstance(row[3].value, float))
        assert shown(found.page, 3)[:60] == [f"{rate:,.1f}" for rate in rates[:60]]
        # A link leads to a row that is not in sight yet.
        found.page.evaluate("location.hash = '#run-' + document.querySelector('tr[hidden]').id.slice(4)")
        found.page.wait_for_function(f"{ROWS}.length === 200")
        assert found.complaints == []


@pytest.mark.parametrize("scripts", [True, False])
def test_a_chip_says_what_it_means(browser: Browser, file: Path, scripts: bool) -> None:
    with visit(browser, file, WIDE, java_script_enabled=scripts) as found:
        chip, box = found.page.get_by_role("button", name="SY301, error"), found.page.locator("#about-sy301")
        for way in (chip.click, lambda: chip.press("Enter")):
            assert not box.is_visible()
            way()
            assert "Fix: measure one device" in box.inner_text()
            found.page.keyboard.press("Escape")


def test_without_a_script_the_whole_table_stands(browser: Browser, file: Path) -> None:
    with visit(browser, file, WIDE, java_script_enabled=False) as found:
        assert found.page.locator("table.main tbody tr:visible").count() == 5
        assert found.page.locator("select, thead button, button[data-copy]:visible").count() == 0
        assert found.page.locator("table.main .bar:visible").count() == 10


def test_hostile_texts_stay_texts_in_filters(browser: Browser, tmp_path: Path) -> None:
    file = tmp_path / "hostile.html"
    file.write_text(html(poisoned(full_page(), HOSTILE), charts=False), encoding="utf-8")
    with visit(browser, file, WIDE) as found:
        wanted = f"{HOSTILE} unreliable {HOSTILE}"
        found.page.locator(".tools select").last.select_option(label=wanted)
        assert shown(found.page, 5) == [wanted]
        assert found.page.locator("[onerror]").count() == 0
        assert (found.elsewhere(file), found.complaints, found.dialogs) == ([], [], [])


def test_a_table_gets_the_room_that_it_needs(browser: Browser, file: Path) -> None:
    with visit(browser, file, WIDE) as found:
        found.page.evaluate("document.querySelectorAll('figure > details').forEach((one) => { one.open = true; })")
        clipped = "Array.from(document.querySelectorAll('.scroll'), box => box.scrollWidth - box.clientWidth)"
        assert max(found.page.evaluate(clipped)) <= 0


def test_print_has_two_pages_and_an_appendix(browser: Browser, tmp_path: Path) -> None:
    """The first screen, the table and the charts are on the first two; the list of all runs is not printed."""
    page = full_page()
    first = FirstScreen("It scales.", (KeyFigure("Speed-up", "3.5", "times"),) * 4, "reliable", ("all",), chart())
    more = (
        Section("configurations", "Configurations", "Which?", "All.", (replace(run_table(30), name="all"),)),
        *page.sections,
        Section("provenance", "Provenance", blocks=(run_table(60),), folded=True),
    )
    file, made = tmp_path / "page.html", tmp_path / "page.pdf"
    file.write_text(html(replace(page, first=first, sections=more)), encoding="utf-8")
    with visit(browser, file, WIDE, java_script_enabled=False) as found:
        # Nothing of the first screen needs a script.
        for part in (".verdict", ".figure", ".badge", ".picture img"):
            assert found.page.locator(f".first {part}:visible").count() == (4 if part == ".figure" else 1)
        found.page.pdf(path=made, prefer_css_page_size=True)
    text = subprocess.run(["pdftotext", "-layout", str(made), "-"], capture_output=True, text=True, check=True).stdout
    pages = text.split("\f")
    assert [number for number, words in enumerate(pages, 1) if "Appendix" in words] == [3]
    front = pages[0] + pages[1]
    for words in (
        "It scales.",
        "Speed-up",
        "More rows are in the file.",
        page.sections[0].blocks[0].title,
        "Power over time",
    ):
        assert words in front
    assert "Provenance" not in text
    assert "Jobs are the sampling unit." in "".join(pages[2:])
