"""[report_safe] A report is accessible and safe: axe-core finds nothing serious, and hostile texts have no effect.

A page with every kind of block is opened in headless Chromium at three widths, in light and dark, with everything
unfolded, and checked by axe-core. Then hostile texts (a list, and combinations by Hypothesis) are put into every text
of a page, including names. HTML: the browser finds the same elements as for harmless texts, no dialog, no script, no
request. Markdown: GitHub's renderer and Python-Markdown with common extensions also make the same elements. LaTeX:
ASCII, only commands of a short list, and one document with all the texts compiles. CSV: no entry starts a formula
unless it is a number.

Needs: chromium, npm, and `apt-get install --no-install-recommends texlive-latex-recommended lmodern`.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import markdown as python_markdown  # type: ignore[import-untyped]
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from browser import WIDTHS, bring_to_life, chromium, tips, visit
from figure import Figure, arguments, at_least, at_most, finish
from hostile import TEXTS, effects, elements, harmless
from sample_page import full_page, poisoned, small_page
from steelyard.report.render.csv_table import csv_table
from steelyard.report.render.html import html
from steelyard.report.render.latex import latex
from steelyard.report.render.markdown import markdown

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from steelyard.report.page import Page

AXE = "axe-core-4.14.0"
AXE_SHA256 = "2277b0a3ef47af9b52497faa3e71598e86e0a0e5e6eb295207a5657ede4709af"
CACHE = Path.home() / ".cache" / "steelyard-benchmarks"
SERIOUS = ("serious", "critical")
UNFOLD = "for (const fold of document.querySelectorAll('details')) fold.open = true"
# With the shadow at the edge of a table, and with hidden rows, axe-core cannot determine the background colour.
IN_SIGHT = """for (const box of document.querySelectorAll(".scroll")) {
  box.style.background = getComputedStyle(box).backgroundColor;
  box.style.maxHeight = "none";
}"""
# The extensions that the documentation of mkdocs-material recommends.
EXTENSIONS = [
    "abbr", "admonition", "attr_list", "def_list", "footnotes", "md_in_html", "tables", "toc", "pymdownx.arithmatex",
    "pymdownx.betterem", "pymdownx.caret", "pymdownx.details", "pymdownx.emoji", "pymdownx.inlinehilite",
    "pymdownx.keys", "pymdownx.magiclink", "pymdownx.mark", "pymdownx.smartsymbols", "pymdownx.snippets",
    "pymdownx.superfences", "pymdownx.tabbed", "pymdownx.tilde",
]  # fmt: skip
Look = tuple[int, dict[str, Any]]
LIGHT: list[Look] = [(width, {"color_scheme": "light"}) for width in WIDTHS.values()]
DARK: list[Look] = [(width, {"color_scheme": "dark"}) for width in WIDTHS.values()]


def axe_source() -> str:
    """Return the path of axe-core, downloaded from npm into a cache and verified by its hash."""
    file = CACHE / f"{AXE}.tgz"
    if not file.exists():
        if shutil.which("npm") is None:
            sys.exit("npm is needed to fetch axe-core: apt-get install npm")
        CACHE.mkdir(parents=True, exist_ok=True)
        name = AXE.replace("core-", "core@")
        subprocess.run(["npm", "pack", "--silent", name, "--pack-destination", str(CACHE)], check=True, stdout=2)
    if hashlib.sha256(file.read_bytes()).hexdigest() != AXE_SHA256:
        sys.exit(f"{file} has an unexpected hash: delete it and run again")
    with tarfile.open(file) as archive:
        member = archive.extractfile("package/axe.min.js")
        assert member is not None
        return member.read().decode()


def accessibility(browser: Browser, file: Path, looks: list[Look]) -> list[Figure]:
    """Check the unfolded page with axe-core at every width."""
    source, serious, others, passed = axe_source(), Counter[str](), Counter[str](), 0
    for width, context in looks:
        with visit(browser, file, width, **context) as seen:
            seen.page.evaluate(UNFOLD)
            bring_to_life(seen.page)
            seen.page.evaluate(IN_SIGHT)
            seen.page.evaluate(source)
            found = seen.page.evaluate("axe.run(document, {resultTypes: ['violations', 'passes']})")
            passed += len(found["passes"])
            for entry in found["violations"]:
                told = f"{entry['id']} ({entry['impact']}): {json.dumps(entry['nodes'][0]['html'])[:160]}"
                (serious if entry["impact"] in SERIOUS else others)[told] += len(entry["nodes"])
    for told, count in (serious + others).items():
        print(f"axe: {count} x {told}", file=sys.stderr)
    return [
        at_least("report_safe: axe-core rules passed, over all looks", passed, "rules", 20 * len(looks)),
        at_most("report_safe: axe-core findings, serious or critical", serious.total(), "elements", 0),
        at_most("report_safe: axe-core findings, moderate or minor", others.total(), "elements", 0),
    ]


def behaviour(browser: Browser, file: Path, page: Page, widths: set[int]) -> list[Figure]:
    """Check requests, downloads, reading without scripts, and the width on a phone."""
    elsewhere, complaints, too_wide = 0, [], 0
    for width in widths:
        with visit(browser, file, width) as seen:
            seen.page.evaluate(UNFOLD)
            bring_to_life(seen.page)
            too_wide += seen.page.evaluate("document.documentElement.scrollWidth > window.innerWidth")
            elsewhere += len(seen.elsewhere(file))
            complaints += seen.complaints
    wanted = {f"{table.name}.csv": csv_table(table).encode() for table in page.tables} | page.downloads
    wrong = 0
    with visit(browser, file, accept_downloads=True) as seen:
        seen.page.evaluate(UNFOLD)
        for name, content in wanted.items():
            with seen.page.expect_download() as waited:
                seen.page.click(f'button[data-name="{name}"]')
            wrong += Path(waited.value.path()).read_bytes() != content or waited.value.suggested_filename != name
    with visit(browser, file, java_script_enabled=False) as seen:
        words = seen.page.inner_text("main")
        unread = sum(section.answer not in words for section in page.sections)
    print(*complaints, sep="\n", file=sys.stderr)
    return [
        at_most("report_safe: requests for anything but the file", elsewhere, "requests", 0),
        at_most("report_safe: errors and warnings in the browser", len(complaints), "messages", 0),
        at_most("report_safe: widths at which the page is wider than the window", too_wide, "widths", 0),
        at_least("report_safe: files saved from inside the page", len(wanted), "files", 3),
        at_most("report_safe: saved files that differ from what was put in", wrong, "files", 0),
        at_most("report_safe: answers that cannot be read without JavaScript", unread, "answers", 0),
    ]


def in_browser(browser: Browser, page: Page, folder: Path, texts: tuple[str, ...], least: int) -> list[Figure]:
    """Open pages in the browser, which may parse them differently from other parsers."""
    new, ran, asked, told = 0, 0, 0, 0
    count = "Array.from(document.querySelectorAll('*'), (e) => e.localName).join(' ')"
    kinds: dict[int, str] = {}
    file = folder / "hostile.html"
    for number, words in enumerate(texts):
        # One in ten with charts: drawing them takes longer than the rest.
        charts = number % 10 == 0
        file.write_text(html(poisoned(page, words), charts=charts), encoding="utf-8")
        with visit(browser, file) as seen:
            seen.page.evaluate(UNFOLD)
            bring_to_life(seen.page)
            told += len(tips(seen.page))
            found = seen.page.evaluate(count)
            ran += bool(seen.page.evaluate("window.hit !== undefined")) + len(seen.dialogs) + len(seen.complaints)
            asked += len(seen.elsewhere(file))
        if charts not in kinds:
            file.write_text(html(poisoned(page, "x"), charts=charts), encoding="utf-8")
            with visit(browser, file) as seen:
                seen.page.evaluate(UNFOLD)
                bring_to_life(seen.page)
                kinds[charts] = seen.page.evaluate(count)
        if found != kinds[charts]:
            new += 1
            print(f"elements differ for {words[:60]!r}", file=sys.stderr)
    return [
        at_least("report_safe: hostile texts opened in the browser", len(texts), "pages", least),
        at_least("report_safe: marks of charts that were pointed at", told, "marks", 10),
        at_most("report_safe: pages with an element that a text brought", new, "pages", 0),
        at_most("report_safe: scripts run, dialogs and complaints", ran, "events", 0),
        at_most("report_safe: requests that a text brought", asked, "requests", 0),
    ]


def faults(page: Page, words: str) -> dict[str, bool]:
    """Return in which formats a text has an effect, and print them."""
    made = [_mkdocs(markdown(poisoned(page, text))) for text in (words, harmless(words))]
    found = {**effects(page, words), "Markdown, mkdocs": made[0] != made[1]}
    for form in (name for name, wrong in found.items() if wrong):
        print(f"{form}: {words[:80]!r}", file=sys.stderr)
    return found


def _mkdocs(text: str) -> list[str]:
    return [tag for tag, _ in elements(python_markdown.markdown(text, extensions=EXTENSIONS))]


def made_up(page: Page, examples: int) -> tuple[Counter[str], int]:
    """Random texts: pieces of the list with anything between them."""
    total, tried = Counter[str](), 0
    pieces = st.one_of(st.sampled_from(TEXTS).map(lambda words: words[:40]), st.text(max_size=12),
                       st.text("<>&\"'`\\{}[]()|*_~^$%#@!=+-:;,./ \n\t", max_size=12))  # fmt: skip

    @settings(
        max_examples=examples, derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck)
    )
    @given(st.lists(pieces, min_size=1, max_size=6).map("".join).filter(str.strip))
    def check(words: str) -> None:
        nonlocal tried
        tried += 1
        total.update(faults(page, words))

    check()
    return total, tried


def compiled(page: Page, folder: Path, texts: tuple[str, ...]) -> list[Figure]:
    """Compile one document with all the texts, with shell escape off as by default."""
    if shutil.which("pdflatex") is None:
        sys.exit("pdflatex is needed: apt-get install --no-install-recommends texlive-latex-recommended lmodern")
    sections = tuple(section for words in texts for section in poisoned(page, words).sections)
    (folder / "all.tex").write_text(latex(replace(page, sections=sections), {}), encoding="ascii")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "all.tex"]
    done = subprocess.run(command, cwd=folder, capture_output=True, check=False, stdin=subprocess.DEVNULL)
    made = (folder / "all.pdf").exists() and done.returncode == 0
    if not made:
        print(done.stdout.decode("latin-1")[-1500:], file=sys.stderr)
    touched = sorted({path.name for path in folder.iterdir()} - {"all.tex", "all.pdf", "all.aux", "all.log"})
    return [
        at_most("report_safe: LaTeX documents that do not compile", int(not made), "documents", 0),
        at_most("report_safe: files that LaTeX wrote beside its own", len(touched), "files", 0),
    ]


def main() -> None:
    options = arguments(__doc__)
    page, small = full_page(), small_page()
    # A quick run takes every sixteenth text for the browser, and others for the formats.
    every, examples, looks = (16, 12, [LIGHT[0], DARK[-1]]) if options.quick else (1, 300, LIGHT + DARK)
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory() as scratch, chromium() as browser:
        file = Path(scratch) / "report.html"
        file.write_text(html(page), encoding="utf-8")
        figures += accessibility(browser, file, looks)
        figures += behaviour(browser, file, page, {width for width, _ in looks})
        figures += in_browser(browser, small, Path(scratch), TEXTS[::every], 6 if options.quick else 90)
    total, tried = made_up(small, examples)
    listed = TEXTS[every // 2 :: every]
    for words in listed:
        total.update(faults(small, words))
    least = 16 if options.quick else 300
    figures.append(at_least("report_safe: hostile texts tried in all formats", tried + len(listed), "texts", least))
    figures += [at_most(f"report_safe: not inert in {form}", count, "texts", 0) for form, count in total.items()]
    with tempfile.TemporaryDirectory() as scratch:
        figures += compiled(small, Path(scratch), TEXTS[every // 4 :: every])
    finish(figures)


if __name__ == "__main__":
    main()
