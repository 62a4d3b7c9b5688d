"""The documentation site in Chromium: nothing is cut, nothing is loaded from other servers, commands can be copied."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from browser import Visit, chromium, visit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser

ROOT = Path(__file__).parents[2]
PAGES = ("index", "tutorial", "install", "howto/researcher", "reference/verbs", "campaigns", "sites", "reference/rules")
# Lines of commands, and lines of files: every line but output, which scrolls in its box.
CUT = """() => [...document.querySelectorAll('.highlight:not(.language-text) pre > code > span')].filter(line => {
    const right = line.closest('code').getBoundingClientRect().right;
    return !line.querySelector('.go') && [...line.getClientRects()].some(part => part.right > right + 1);
}).map(line => line.innerText)"""
WIDE = "() => document.documentElement.scrollWidth > window.innerWidth"
COPIED = """code => {
    code.setAttribute('data-md-copying', '');
    const text = code.innerText;
    code.removeAttribute('data-md-copying');
    return text;
}"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-W", "ignore", "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "DISABLE_MKDOCS_2_WARNING": "true"}
    subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


def _is_dark(found: Visit) -> bool:
    return bool(found.page.evaluate("() => getComputedStyle(document.body).backgroundColor !== 'rgb(255, 255, 255)'"))


@pytest.mark.parametrize(
    ("width", "scheme"),
    [
        pytest.param(1400, "dark", marks=pytest.mark.gate),
        pytest.param(400, "light", marks=pytest.mark.gate),
        (1400, "light"),
        (400, "dark"),
    ],
)
def test_no_page_cuts_a_command(site: Path, browser: Browser, width: int, scheme: str) -> None:
    for name in PAGES:
        with visit(browser, site / f"{name}.html", width, color_scheme=scheme) as found:
            assert found.page.evaluate(CUT) == [], name
            assert not found.page.evaluate(WIDE), name
            assert found.complaints == [], name
            assert [url for url in found.requests if not url.startswith(("file:", "data:", "blob:"))] == [], name
            assert _is_dark(found) == (scheme == "dark"), name


def test_the_copy_button_copies_commands_only(site: Path, browser: Browser) -> None:
    with visit(browser, site / "tutorial.html") as found:
        assert found.page.locator("button.md-code__button").count() > 5
        text = found.page.locator(".language-console pre > code").nth(1).evaluate(COPIED)
    assert text.split()[:3] == ["steelyard", "run", "sim"]
    assert "completed" not in text
