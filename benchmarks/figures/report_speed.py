"""[report_speed] A report of 2,000 runs is built in at most 10 s and opens in at most 2 s; growth is at most linear.

A study in a result folder is made into one HTML file, in a fresh process like a user's command, at three sizes. Each
file is opened in headless Chromium with a fresh profile, until the load event and until the first contentful paint.
Growth is the exponent of a power law through the three sizes: 1 is linear.
"""

from __future__ import annotations

import math
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from browser import chromium, visit
from copied_study import STUDY, make
from figure import arguments, at_least, at_most, finish

if TYPE_CHECKING:
    from playwright.sync_api import Browser

LONGEST_BUILD_S, LONGEST_OPEN_S = 10.0, 2.0
# Typical size limit of a mail server.
LARGEST_MB = 20.0
# Allowance above linear growth for noisy measurements.
GROWTH = 1.1
OPENED = 3
Measured = dict[int, tuple[float, float, float, int, int]]
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


def growth(found: Measured, place: int) -> float:
    """Return the exponent of the power law through one measure at all sizes, by least squares of logarithms."""
    x, y = [math.log(size) for size in found], [math.log(values[place]) for values in found.values()]
    mx, my = sum(x) / len(x), sum(y) / len(y)
    return sum((a - mx) * (b - my) for a, b in zip(x, y, strict=True)) / sum((a - mx) ** 2 for a in x)


def write(results: Path, output: Path) -> None:
    """Make the HTML file from the folder; this is what is timed."""
    from steelyard.report.render.html import html
    from steelyard.report.study.page import study_page
    from steelyard.results.store import ResultFolder

    output.write_text(html(study_page(ResultFolder(results), STUDY)), encoding="utf-8")


def measure(sizes: list[int]) -> Measured:
    """Return build, load and paint times, bytes and elements by number of runs."""
    found: Measured = {}
    with tempfile.TemporaryDirectory() as scratch, chromium() as browser:
        for size in sizes:
            file = Path(scratch) / f"{size}.html"
            results = Path(scratch) / f"results-{size}"
            make(results, size)
            build_s, cpu_s = build(results, file)
            load_s, paint_s, elements = opened(browser, file)
            found[size] = (build_s, load_s, paint_s, file.stat().st_size, elements)
            print(
                f"{size} runs: built in {build_s:.2f} s ({cpu_s:.2f} s of a CPU), loaded in {load_s:.2f} s, "
                f"painted after {paint_s:.2f} s, {file.stat().st_size / 1e6:.2f} MB, {elements} elements",
                file=sys.stderr,
            )
    return found


def main() -> None:
    options = arguments(__doc__, build={"type": Path}, output={"type": Path})
    if options.build:
        write(options.build, options.output)
        return
    sizes = [125, 250, 500] if options.quick else [500, 1000, 2000]
    found = measure(sizes)
    build_s, load_s, paint_s, size_bytes, _ = found[sizes[-1]]
    finish(
        [
            at_least("report_speed: runs in the largest study", sizes[-1], "runs", 500 if options.quick else 2000),
            at_most("report_speed: built in", build_s, "s", LONGEST_BUILD_S),
            at_most("report_speed: load event after", load_s, "s", LONGEST_OPEN_S),
            at_most("report_speed: first contentful paint after", paint_s, "s", LONGEST_OPEN_S),
            at_most("report_speed: size of the file", size_bytes / 1e6, "MB", LARGEST_MB),
            *(
                at_most(f"report_speed: growth of {what} with runs", growth(found, place), "exponent", GROWTH)
                for what, place in (("the build", 0), ("the load", 1), ("the file", 3))
            ),
        ]
    )


if __name__ == "__main__":
    main()
