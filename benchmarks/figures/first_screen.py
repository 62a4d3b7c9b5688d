"""[first_screen] A report answers in its first view: the verdict, the figures, how far to trust them, and one chart.

Reports of simulated studies of all kinds, and of one of torch on this machine, whose noise nobody chose, are opened in
a real browser at three sizes, light and dark. What must be seen without scrolling is measured from the page, and the
background of charts from the pixels of a picture of it. No table or chart may be cut off, and no two may overlap.
`--output DIR` keeps a picture of each first view and of a pack, to be looked at.
"""

from __future__ import annotations

import io
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from browser import chromium, visit
from figure import arguments, at_least, at_most, finish
from gallery_studies import STUDIES, make_history, make_pack, make_studies, make_study
from steelyard.report.render.html import html
from steelyard.report.study.page import study_page
from steelyard.results.store import ResultFolder

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

SIZES = ((1400, 900), (1024, 768), (390, 844))
NARROW = 640
"""On a screen that is not wider, the chart comes after the first view, and wide tables scroll inside their frame."""
DARK = 80
"""Mean brightness, of 255, below which a background is dark."""
MORE_STUDIES = {
    "noisy": """
        repeats = 3
        [run]
        crosscheck_steps = 0
        budget = BUDGET
        [run.sim]
        step_time_s = 0.05
        noise = { kind = "normal", cv = 0.2, between_jobs_cv = 0.15 }
        [sweep]
        batch = [32, 64, 128]
    """,
    "failed": """
        repeats = 2
        [run]
        crosscheck_steps = 0
        budget = BUDGET
        [run.sim]
        step_time_s = 0.05
        memory = { limit_bytes = 1e8, bytes_per_sample = 3e6 }
        [sweep]
        batch = [64, 128]
    """,
    "once": """
        repeats = 1
        [run]
        batch = 64
        budget = BUDGET
        [run.sim]
        step_time_s = 0.05
        noise = { kind = "normal", cv = 0.02 }
    """,
    "ties": """
        repeats = 3
        [run]
        crosscheck_steps = 0
        budget = BUDGET
        [run.sim]
        step_time_s = 0.05
        noise = { kind = "normal", cv = 0.02, between_jobs_cv = 0.05 }
        [sweep]
        precision = ["fp32", "bf16"]
        threads = [1, 2, 4]
    """,
}
REAL = """
name = "real"
repeats = 3
[run]
workload = "tiny"
device = "cpu"
budget = { min_steps = 20, max_steps = 200, min_seconds = 0.5, max_seconds = 2.0 }
[sweep]
batch = [32, 256]
"""
QUICK = ("batch", "failed", "once")
SELECTIONS: tuple[tuple[str, ...], ...] = (
    ("scaling",), ("mixed",), ("batch",), ("steps",), ("throttled",), ("energy",), ("heat",), ("system-a",),
    ("system-a", "system-b"), ("system-b", "system-a:batch=64"), ("noisy",), ("failed",), ("once",), ("ties",),
    ("week-00",), ("week-00", "week-13"), ("heat:devices=8",), ("heat:batch=128",), ("energy:batch=64",),
    ("batch:batch=4096",), ("scaling:devices=1", "scaling:devices=8"),
)  # fmt: skip

LOOK = """
([narrow]) => {
  const found = [];
  const box = (one) => one.getBoundingClientRect();
  const shown = (one) => one.checkVisibility() && box(one).width > 0;
  const first = [...document.querySelectorAll('.first .verdict, .first .figure, .first .badge')];
  const chart = document.querySelector('.first .picture');
  for (const one of ['.verdict', '.figure', '.badge'])
    if (!document.querySelector('.first ' + one)) found.push('no ' + one);
  for (const one of narrow || !chart ? first : [...first, chart])
    if (box(one).bottom > innerHeight + 1 || box(one).right > innerWidth + 1)
      found.push(`${one.className} is below the first view by ${Math.round(box(one).bottom - innerHeight)}`);
  if (document.documentElement.scrollWidth > innerWidth + 1) found.push('the page is wider than the screen');
  for (const one of [...document.querySelectorAll('.scroll')].filter(shown)) {
    if (box(one).right > innerWidth + 1) found.push('a frame leaves the screen');
    if (!narrow && one.scrollWidth > one.clientWidth + 1)
      found.push(`cut off: ${one.getAttribute('aria-labelledby')} by ${one.scrollWidth - one.clientWidth}`);
  }
  for (const parent of document.querySelectorAll('.first, .first .numbers, .inside, .blocks, .pictures, .parts')) {
    const inner = [...parent.children].filter(shown).map(box);
    inner.forEach((a, n) => inner.slice(n + 1).forEach((b) => {
      if (a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 1 && b.top < a.bottom - 1)
        found.push(`overlap in ${parent.className}`);
    }));
  }
  return found;
}
"""


def brightness(page: Page) -> float | None:
    """Return the mean brightness at the edges of the first chart; None if there is none."""
    chart = page.query_selector(".first .picture")
    if chart is None:
        return None
    picture = Image.open(io.BytesIO(chart.screenshot())).convert("L")
    return float(np.asarray(picture)[1, 2:-2].mean())


def look(browser: Browser, file: Path, size: tuple[int, int], scheme: Any, output: Path | None) -> list[str]:
    """Open a report and return what is wrong with its first view."""
    wide, high = size
    with visit(browser, file, wide, color_scheme=scheme) as found:
        found.page.set_viewport_size({"width": wide, "height": high})
        if wide > NARROW and found.page.query_selector(".first [data-chart]"):
            found.page.wait_for_selector(".first .live, .first .still", state="attached")
        if output is not None:
            found.page.screenshot(path=output / f"{file.stem}-{wide}-{scheme}.png")
        wrong: list[str] = found.page.evaluate(LOOK, [wide <= NARROW])
        light = brightness(found.page) if wide > NARROW else None
        if light is not None and (light < DARK) != (scheme == "dark"):
            wrong.append(f"the chart's background has brightness {light:.0f}")
        return [*wrong, *found.complaints]


def write_reports(folder: ResultFolder, place: Path, *, quick: bool) -> list[Path]:
    """Make the studies and write their reports."""
    every = {**STUDIES, **MORE_STUDIES}
    if quick:
        folder.prepare()
        for number, name in enumerate(QUICK):
            make_study(folder, name, every[name], seed=number)
    else:
        make_studies(folder)
        for number, (name, text) in enumerate(MORE_STUDIES.items()):
            make_study(folder, name, text, seed=200 + number)
    files = []
    for words in [(name,) for name in QUICK] if quick else SELECTIONS:
        files.append(place / f"{'-'.join(words).replace(':', '-').replace('=', '-')}.html")
        files[-1].write_text(html(study_page(folder, words)), encoding="utf-8")
    if not quick:
        found = make_history(folder)
        files.append(place / "history.html")
        page = study_page(folder, found[0].occasions[-1].study, title="History of a recipe", histories=found)
        files[-1].write_text(html(page), encoding="utf-8")
        files.append(measure_real(folder, place))
    return files


def measure_real(folder: ResultFolder, place: Path) -> Path:
    """Measure torch on this machine by the command line, and write the report of it."""
    study, file = place / "real.toml", place / "real.html"
    study.write_text(REAL, encoding="utf-8")
    for words in (("study", str(study)), ("report", "real", "-o", str(file))):
        command = [sys.executable, "-m", "steelyard.cli.main", *words, "--results", str(folder.path)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return file


def main() -> None:
    options = arguments(__doc__, output={"type": Path, "default": None, "help": "folder for pictures"})
    if options.output is not None:
        options.output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch, chromium() as browser:
        folder = ResultFolder(Path(scratch) / "results")
        folder.path.mkdir()
        begin_s = time.monotonic()
        files = write_reports(folder, Path(scratch), quick=options.quick)
        print(f"{len(files)} reports made in {time.monotonic() - begin_s:.0f} s")
        views = [(file, size, scheme) for file in files for size in SIZES for scheme in ("light", "dark")]
        if options.quick:
            views = [view for view in views if view[2] == "dark"]
        bad = 0
        for file, size, scheme in views:
            wrong = look(browser, file, size, scheme, options.output)
            bad += bool(wrong)
            if wrong:
                print(f"{file.stem}, {size[0]} x {size[1]}, {scheme}: {'; '.join(wrong)}", flush=True)
        if options.output is not None and not options.quick:
            with visit(browser, make_pack(folder, Path(scratch) / "pack"), SIZES[0][0]) as found:
                found.page.screenshot(path=options.output / "pack.png", full_page=True)
    finish(
        [
            at_least("first_screen: reports", len(files), "reports", len(QUICK) if options.quick else 20),
            at_least("first_screen: views", len(views), "views", 9 if options.quick else 120),
            at_most("first_screen: views with something missing, cut off, overlapping or too light", bad, "views", 0),
        ]
    )


if __name__ == "__main__":
    main()
