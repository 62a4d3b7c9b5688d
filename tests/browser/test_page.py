"""A page with every kind of block in Chromium: it fits the window, asks nobody for anything and raises no error."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from browser import WIDTHS, chromium, visit
from sample_page import full_page
from steelyard.report.render.html import html

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as running:
        yield running


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "page.html"
    path.write_text(html(full_page()), encoding="utf-8")
    return path


@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
def test_a_page_fits_and_is_quiet(browser: Browser, file: Path, width: int) -> None:
    with visit(browser, file, width) as found:
        assert found.page.evaluate("document.documentElement.scrollWidth") <= width
        assert (found.elsewhere(file), found.complaints, found.dialogs) == ([], [], [])
        shown = found.page.evaluate("Array.from(document.images, image => image.naturalWidth)")
        assert shown
        assert all(shown)
