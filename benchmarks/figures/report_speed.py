"""[report_speed] A report of 2,000 runs: built in at most 10 s, opened in at most 1.5 s, at most 4 MB; linear growth.

A study in a result folder is made into one HTML file, in a fresh process like a user's command, at three sizes. Each
file is opened in headless Chromium with a fresh profile, until the load event and until the first contentful paint.
Growth is the exponent of a power law through the sizes: 1 is linear. In a report of 700 configurations, the table of
all configurations is sorted 20 times and filtered 20 times, each until the browser has drawn the next picture: at most
100 ms in the median. The quick form judges growth, size and counts; its times only say whether this machine is fast
enough to decide.
"""

from __future__ import annotations

import math
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from browser import chromium, visit
from copied_study import REPEATS, STUDY, make
from figure import arguments, at_least, at_most, finish, of_time

if TYPE_CHECKING:
    from playwright.sync_api import Browser

LONGEST_BUILD_S, LONGEST_OPEN_S, LONGEST_SORT_MS = 10.0, 1.5, 100.0
LARGEST_MB = 4.0
CONFIGURATIONS = 700
# Allowance above linear growth for noisy measurements.
GROWTH = 1.1
OPENED = 3


@dataclass(frozen=True)
class Built:
    """A report of some size: how long it took to build and to open, and how large it is."""

    build_s: float
    cpu_s: float
    load_s: float
    paint_s: float
    size_bytes: int
    elements: int


# Evaluated by the debugger of the browser, because the policy of the page does not allow eval.
PAINTED = """() => new Promise((done) => {
  const look = () =>
    performance.getEntriesByName("first-contentful-paint").length ? done(null) : requestAnimationFrame(look);
  look();
})"""
TIMES = """() => {
  const load = performance.getEntriesByType("navigation")[0].loadEventEnd;
  const paint = performance.getEntriesByName("first-contentful-paint")[0];
  return [load / 1000, paint ? paint.startTime / 1000 : null, document.querySelectorAll("*").length];
}"""

# From the click until the picture with the new order is drawn. Each step changes what is in sight.
USED = """async (kind) => {
  const drawn = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
  const heads = document.querySelectorAll("table.main thead button");
  const choice = document.querySelector(".tools select");
  const times = [];
  for (let turn = 0; turn < 20; turn += 1) {
    await drawn();
    const begin = performance.now();
    if (kind === "sort") {
      heads[Math.floor(turn / 2) % heads.length].click();
    } else {
      choice.selectedIndex = (turn + 1) % choice.length;
      choice.dispatchEvent(new Event("change"));
    }
    await drawn();
    times.push(performance.now() - begin);
  }
  return times;
}"""


def build(results: Path, output: Path) -> tuple[float, float]:
    """Return wall and CPU seconds of a process that reads the folder and writes the file."""
    command = [sys.executable, __file__, "--build", str(results), "--output", str(output)]
    before, begin_s = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    subprocess.run(command, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.monotonic() - begin_s, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def opened(browser: Browser, file: Path) -> tuple[float, float, int]:
    """Return the median seconds to the load event and to the first paint, and the number of elements."""
    found = []
    for _ in range(OPENED):
        with visit(browser, file) as seen:
            # The first paint may come after the load event.
            seen.page.evaluate(PAINTED)
            found.append(seen.page.evaluate(TIMES))
    return median(f[0] for f in found), median(f[1] for f in found), int(found[0][2])


def used(browser: Browser, file: Path) -> tuple[int, float, float]:
    """Return the rows of the table of all configurations, and the median milliseconds to sort and to filter it."""
    with visit(browser, file) as seen:
        rows = seen.page.evaluate("document.querySelectorAll('table.main tbody tr').length")
        sort_ms, filter_ms = (median(seen.page.evaluate(USED, kind)) for kind in ("sort", "filter"))
    print(f"{rows} configurations: sorted in {sort_ms:.0f} ms, filtered in {filter_ms:.0f} ms", file=sys.stderr)
    return rows, sort_ms, filter_ms


def growth(found: dict[int, Built], measure: str) -> float:
    """Return the exponent of the power law through one measure at all sizes, by least squares of logarithms."""
    x, y = [math.log(size) for size in found], [math.log(getattr(built, measure)) for built in found.values()]
    mx, my = sum(x) / len(x), sum(y) / len(y)
    return sum((a - mx) * (b - my) for a, b in zip(x, y, strict=True)) / sum((a - mx) ** 2 for a in x)


def write(results: Path, output: Path) -> None:
    """Make the HTML file from the folder; this is what is timed."""
    from steelyard.report.render.html import html
    from steelyard.report.study.page import study_page
    from steelyard.results.store import ResultFolder

    output.write_text(html(study_page(ResultFolder(results), STUDY)), encoding="utf-8")


def measure(sizes: list[int], repeats: int) -> tuple[dict[int, Built], tuple[int, float, float]]:
    """Return what was measured by number of runs, and what `used` returns."""
    found: dict[int, Built] = {}
    with tempfile.TemporaryDirectory() as scratch, chromium() as browser:
        for size in sizes:
            file = Path(scratch) / f"{size}.html"
            results = Path(scratch) / f"results-{size}"
            make(results, size, repeats=repeats)
            build_s, cpu_s = build(results, file)
            load_s, paint_s, elements = opened(browser, file)
            found[size] = Built(build_s, cpu_s, load_s, paint_s, file.stat().st_size, elements)
            print(
                f"{size} runs: built in {build_s:.2f} s ({cpu_s:.2f} s of a CPU), loaded in {load_s:.2f} s, "
                f"painted after {paint_s:.2f} s, {file.stat().st_size / 1e6:.2f} MB, {elements} elements",
                file=sys.stderr,
            )
        if sizes[-1] != CONFIGURATIONS * repeats:
            file, results = Path(scratch) / "wide.html", Path(scratch) / "results-wide"
            make(results, CONFIGURATIONS, repeats=1)
            build(results, file)
        return found, used(browser, file)


def main() -> None:
    options = arguments(__doc__, build={"type": Path}, output={"type": Path})
    if options.build:
        write(options.build, options.output)
        return
    # A quick run has one job per configuration, so that its largest study has enough configurations to sort.
    sizes, repeats = ([175, CONFIGURATIONS], 1) if options.quick else ([500, 1000, 2000], REPEATS)
    found, (rows, sort_ms, filter_ms) = measure(sizes, repeats)
    last = found[sizes[-1]]
    times = [
        at_most("report_speed: built in", last.build_s, "s", LONGEST_BUILD_S),
        at_most("report_speed: load event after", last.load_s, "s", LONGEST_OPEN_S),
        at_most("report_speed: first contentful paint after", last.paint_s, "s", LONGEST_OPEN_S),
        at_most("report_speed: sorted in, median of 20", sort_ms, "ms", LONGEST_SORT_MS),
        at_most("report_speed: filtered in, median of 20", filter_ms, "ms", LONGEST_SORT_MS),
    ]
    # Waiting for other programs does not count as growth.
    grows = {"the build": "cpu_s", "the file": "size_bytes", "its elements": "elements"}
    if options.quick:
        for slow in (one for one in times if not one.holds):
            print(f"undecided on this machine: {slow.name} {slow.figure:.3g} {slow.unit} (bar {slow.bar})")
    else:
        grows["the load"] = "load_s"
    finish(
        [
            at_least("report_speed: runs in the largest study", sizes[-1], "runs", 500 if options.quick else 2000),
            *(of_time(one) for one in (times if not options.quick else ())),
            at_most("report_speed: size of the file", last.size_bytes / 1e6, "MB", LARGEST_MB),
            at_least("report_speed: configurations in the table", rows, "rows", CONFIGURATIONS),
            *(
                of_time(at_most(f"report_speed: growth of {what} with runs", growth(found, name), "exponent", GROWTH))
                for what, name in grows.items()
            ),
        ]
    )


if __name__ == "__main__":
    main()
