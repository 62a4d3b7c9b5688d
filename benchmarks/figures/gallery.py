"""[gallery] Every kind of chart, drawn from simulated studies, as PNG and SVG in a folder for visual inspection.

The studies run through the real worker loop, raw files and derivation. Each chart is drawn twice: the SVG must be the
same, and the second drawing fast. A trace of many steps must become few points in bounded memory.
"""

from __future__ import annotations

import tempfile
import time
import tracemalloc
from pathlib import Path

import numpy as np
import vl_convert

from figure import Figure, arguments, at_least, at_most, finish, timed
from gallery_studies import make_studies, pictures
from steelyard.contracts import sample_files
from steelyard.report.charts.trace import POINTS, step_band
from steelyard.report.page import Drawing
from steelyard.report.render import draw
from steelyard.results.store import ResultFolder

FIRST_S, LATER_S = 5.0, 0.4
"""Time limit of the first drawing, which loads the library."""
AGAIN = 3
"""Number of later drawings; the fastest counts, because the machine may be busy."""
MANY_STEPS, FEW_STEPS = 10_000_000, 1_000_000
MEBIBYTE = 1 << 20


def draw_all(folder: ResultFolder, output: Path) -> dict[str, tuple[float, float, bool]]:
    """Return the first and the later time of each chart, and whether both drawings are the same."""
    found = {}
    for name, make in pictures(folder):
        picture = make()
        if isinstance(picture, Drawing):
            begin = time.perf_counter()
            again = make()
            later_s = time.perf_counter() - begin
            assert isinstance(again, Drawing)
            text, first_s, same = picture.svg, later_s, again.svg == picture.svg
        else:
            begin = time.perf_counter()
            text = draw.svg(picture)
            first_s = time.perf_counter() - begin
            same, later_s = True, first_s
            for _ in range(AGAIN):
                begin = time.perf_counter()
                same = draw.svg(picture) == text and same
                later_s = min(later_s, time.perf_counter() - begin)
        (output / f"{name}.svg").write_text(text, encoding="utf-8")
        (output / f"{name}.png").write_bytes(vl_convert.svg_to_png(text, scale=1.5))
        found[name] = (first_s, later_s, same)
        print(f"{name:<20} first {1e3 * first_s:6.0f} ms, later {1e3 * later_s:5.0f} ms, {len(text):7,} bytes")
    return found


# -- a long trace


def long_trace(steps: int) -> tuple[int, float, float]:
    """Return the points, seconds and mebibytes for reducing this number of steps."""
    random = np.random.default_rng(8)
    with tempfile.TemporaryDirectory() as scratch:
        with (Path(scratch) / "steps-00000.bin").open("wb") as file:
            file.write(sample_files.FILE_MAGIC)
            for first in range(0, steps, 100_000):
                count = min(100_000, steps - first)
                table = np.ones((len(sample_files.COLUMNS), count))
                table[1] = 0.05 * (1 + 0.01 * random.standard_normal(count))
                sample_files.write_chunk(file, 0, first, table)
        tracemalloc.start()
        begin = time.perf_counter()
        band = step_band(Path(scratch), 1)
        spent_s, peak = time.perf_counter() - begin, tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return band.mean_s.size, spent_s, peak / MEBIBYTE


def main() -> None:
    options = arguments(__doc__, output={"type": Path, "help": "folder for the pictures", "default": None})
    with tempfile.TemporaryDirectory() as scratch:
        output = options.output or Path(scratch) / "pictures"
        output.mkdir(parents=True, exist_ok=True)
        folder = ResultFolder(Path(scratch) / "results")
        folder.path.mkdir()
        begin = time.perf_counter()
        make_studies(folder)
        print(f"studies made in {time.perf_counter() - begin:.1f} s")
        found = draw_all(folder, output)
    steps = FEW_STEPS if options.quick else MANY_STEPS
    drawn, spent_s, memory = long_trace(steps)
    print(f"a trace of {steps:,} steps: {drawn} points in {spent_s:.1f} s, {memory:.1f} MiB")
    finish(figures(found, drawn, memory, quick=options.quick))


def figures(found: dict[str, tuple[float, float, bool]], drawn: int, memory: float, *, quick: bool) -> list[Figure]:
    return [
        at_least("gallery: pictures drawn", len(found), "pictures", 14),
        at_most("gallery: pictures that differ when drawn again", sum(not f[2] for f in found.values()), "pictures", 0),
        timed("gallery: longest first drawing", max(f[0] for f in found.values()), "s", FIRST_S, quick=quick),
        timed("gallery: longest later drawing", max(f[1] for f in found.values()), "s", LATER_S, quick=quick),
        at_most("gallery: points of a long trace", drawn, "points", POINTS),
        at_most("gallery: memory of a long trace", memory, "MiB", 64),
    ]


if __name__ == "__main__":
    main()
