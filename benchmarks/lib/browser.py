"""Open a report in headless Chromium: screenshots at three widths, requests and load times.

`python benchmarks/lib/browser.py REPORT.html --output DIR` writes the screenshots; without a file, of a sample page.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, ConsoleMessage, Dialog, Page, Request

WIDTHS = {"phone": 360, "tablet": 768, "wide": 1600}
HEIGHT = 900
PATIENCE_MS = 300_000
"""Ends a hang and judges nothing: on a busy machine all takes longer."""
NO_BROWSER = "Chromium is needed: apt-get install chromium (or: playwright install chromium, and set CHROMIUM to it)"


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start the browser without a window."""
    from playwright.sync_api import sync_playwright

    program = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        sys.exit(NO_BROWSER)
    with sync_playwright() as playwright:
        # No sandbox: CI runs as root in a container, and the pages are our own.
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"], timeout=PATIENCE_MS)
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Visit:
    """An opened file, with its requests and messages."""

    page: Page
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    """Errors and warnings of the browser: broken policy, exceptions."""
    dialogs: list[str] = field(default_factory=list)

    def watch(self) -> None:
        """Start recording."""
        self.page.on("request", self._requested)
        self.page.on("console", self._said)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", self._asked)

    def _requested(self, request: Request) -> None:
        self.requests.append(request.url)

    def _said(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def _asked(self, dialog: Dialog) -> None:
        self.dialogs.append(dialog.message)
        dialog.dismiss()

    def elsewhere(self, file: Path) -> list[str]:
        """Requests for anything outside the file."""
        return [url for url in self.requests if not url.startswith(("data:", "blob:", file.resolve().as_uri()))]


@contextmanager
def visit(browser: Browser, file: Path, width: int = 1600, **context: Any) -> Iterator[Visit]:
    """Open a file in a window of this width, with a fresh profile."""
    inside = browser.new_context(viewport={"width": width, "height": HEIGHT}, **context)
    inside.set_default_timeout(PATIENCE_MS)
    try:
        found = Visit(inside.new_page())
        found.watch()
        found.page.goto(file.resolve().as_uri(), wait_until="load")
        yield found
    finally:
        inside.close()


def bring_to_life(page: Page) -> None:
    """Scroll to every chart of an unfolded page and wait until it is interactive."""
    for box in page.query_selector_all("[data-chart]"):
        box.scroll_into_view_if_needed()
        box.wait_for_selector(".tip", state="attached")


def tips(page: Page) -> list[str]:
    """Point at every mark of the charts and return what each says."""
    found = []
    for mark in page.query_selector_all(".view .mark-symbol[class*=' series'] path"):
        mark.hover(force=True)
        found += [tip.text_content() or "" for tip in page.query_selector_all(".tip:not([hidden])")]
    return found


def pictures(browser: Browser, file: Path, output: Path, stem: str) -> list[Path]:
    """Take screenshots of the whole page at three widths and as printed."""
    output.mkdir(parents=True, exist_ok=True)
    made = []
    for name, width in WIDTHS.items():
        with visit(browser, file, width) as found:
            made.append(output / f"{stem}-{name}.png")
            found.page.screenshot(path=made[-1], full_page=True)
    with visit(browser, file, WIDTHS["wide"]) as found:
        made.append(output / f"{stem}-print.pdf")
        found.page.pdf(path=made[-1], format="A4", prefer_css_page_size=True)
    return made


def main() -> None:
    from sample_page import full_page
    from steelyard.report.render.html import html

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path, nargs="?", help="a report; default: a sample page")
    parser.add_argument("--output", type=Path, default=Path("pictures"), help="folder for the pictures")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch, chromium() as browser:
        file = options.file or Path(scratch) / "sample.html"
        if options.file is None:
            file.write_text(html(full_page()), encoding="utf-8")
        for made in pictures(browser, file, options.output, file.stem):
            print(made)


if __name__ == "__main__":
    main()
