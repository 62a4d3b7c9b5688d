"""Take the pictures of the documentation: a terminal, every plot, a report at several widths, the reports of suites.

`python docs/tools/make_pictures.py` records real commands in a terminal, draws the studies of the gallery, opens each
plot and the reports in Chromium, and writes docs/pictures/ and docs/pictures.md. Fonts differ by machine; CI checks
only that every kind of plot has a picture.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import terminal
from PIL import Image
from playwright.sync_api import Browser

import gallery_studies
import gallery_suites
from browser import WIDTHS, chromium, visit
from steelyard.inputs.suite import find_suite
from steelyard.report.page import Drawing
from steelyard.report.render import draw
from steelyard.report.render.html import html
from steelyard.report.study.page import study_page
from steelyard.report.suite.page import suite_page
from steelyard.results.store import ResultFolder

DOCS = Path(__file__).resolve().parent.parent
PICTURES = DOCS / "pictures"
REPORT = "energy"
COLOURS = 128
FIRST_SCREEN = 1280
SIMULATED = "--repeats 5 --set sim.noise.kind=normal --set sim.noise.between_jobs_cv=0.01"
PREPARED = [
    f"steelyard run sim --study old {SIMULATED}",
    f"steelyard run sim --study new {SIMULATED} --set sim.step_time_s=0.008",
    f"steelyard run sim --study new-bf16 {SIMULATED} --set sim.step_time_s=0.008 --precision bf16",
]
SUITES = {
    "nrp": ("Table I:", "a machine 1.3 times as fast as the A100 of the document"),
    "aces": ("Table 3: ResNet-50 on one IPU", "a machine 1.3 times as fast as the IPU of the document"),
    "olivia": ("Tests 8-12:", "a machine 1.3 times as fast as the GH200 of the document"),
    "caraml": ("CV benchmark", "a machine 1.3 times as fast as the IPU of the document"),
    "site-acceptance": ("Throughput over", "a node with eight simulated H100"),
}
"""How the title of the table to show begins, and the simulated machine."""
SHOWN_ROWS = 6
ABOUT_SUITES = f"""The first screen of each report, and of one section the first {SHOWN_ROWS} rows of each table. The
machines are simulated, and their runs are recorded as if they had read the data sets of the document."""
HIGHEST = 1700
MARGIN = 8
# Leaves out the other rows, and returns the end of the last row, note or chart that is complete.
SHORTEN = """(part, [rows, highest]) => {
    part.querySelectorAll("tbody").forEach(body => [...body.rows].slice(rows).forEach(row => row.hidden = true));
    const top = part.getBoundingClientRect().top;
    const pieces = [...part.querySelectorAll("tr, .notes, .picture")].filter(piece => !piece.closest("details"));
    return Math.max(...pieces.map(piece => piece.getBoundingClientRect().bottom - top).filter(end => end <= highest));
}"""
RECORDED = ["steelyard compare old new", "steelyard compare old new-bf16"]
HEADER = """# Pictures

A recorded terminal, every kind of plot, the report of a study, and a part of the report of each suite. All data is
simulated. `python docs/tools/make_pictures.py` makes this page.

## The terminal

![Two comparisons in a terminal: one with a ratio, one refused](pictures/terminal.svg)
"""


def main() -> None:
    """Take all pictures and write the page."""
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch, chromium() as browser:
        terminal.record(PREPARED, Path(scratch))
        recorded = terminal.record(RECORDED, Path(scratch))
        (PICTURES / "terminal.svg").write_text(terminal.svg(recorded, "steelyard"), encoding="utf-8")
        folder = ResultFolder(Path(scratch) / "results")
        folder.path.mkdir()
        gallery_studies.make_studies(folder)
        lines = [HEADER, "## Plots\n"]
        for name, title, alt, svg in _plots(folder):
            file = Path(scratch) / f"{name}.svg"
            file.write_text(svg, encoding="utf-8")
            with visit(browser, file, 900) as found:
                found.page.locator("svg").first.screenshot(path=PICTURES / f"{name}.png")
            lines += [f"### {title} {{ #{name} }}\n", f"![{title}](pictures/{name}.png)\n", f"{alt}\n"]
        report = Path(scratch) / "report.html"
        report.write_text(html(study_page(folder, REPORT)), encoding="utf-8")
        with visit(browser, report, FIRST_SCREEN) as found:
            found.page.screenshot(path=PICTURES / "report-first.png")
        lines += ["## A report\n", "![The first screen of a report](pictures/report-first.png)\n"]
        for name, width in WIDTHS.items():
            with visit(browser, report, width) as found:
                found.page.screenshot(path=PICTURES / f"report-{name}.png", full_page=True)
            text = f"The report of a study at {width} pixels"
            lines += [f"### {text} {{ #report-{name} }}\n", f"![{text}](pictures/report-{name}.png)\n"]
        lines += ["## Suites\n", f"{ABOUT_SUITES}\n"]
        for name, (title, machine) in SUITES.items():
            _suite(browser, name, title, Path(scratch) / name)
            text = f"{name}: {machine}"
            lines.append(f"### {text} {{ #suite-{name} }}\n")
            lines.append(f"![{text}, first screen](pictures/suite-{name}-first.png)\n")
            lines.append(f"![{text}](pictures/suite-{name}.png)\n")
    for path in PICTURES.glob("*.png"):
        # They have few colours, and the repository keeps every version.
        with Image.open(path) as picture:
            picture.convert("RGB").quantize(COLOURS).save(path, optimize=True)
    (DOCS / "pictures.md").write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")


def _suite(browser: Browser, name: str, title: str, scratch: Path) -> None:
    """Run a suite on a simulated machine, and picture the first screen and a section of its report."""
    folder, found = ResultFolder(scratch), find_suite(name)
    folder.path.mkdir()
    gallery_suites.make_suite(folder, found)
    file = scratch / "report.html"
    file.write_text(html(suite_page(folder, found, gallery_suites.SIZE)), encoding="utf-8")
    with visit(browser, file, FIRST_SCREEN) as opened:
        opened.page.screenshot(path=PICTURES / f"suite-{name}-first.png")
        place = next(place for place, table in enumerate(found.suite.table) if table.title.startswith(title))
        part = opened.page.locator(f'section[aria-labelledby="table-{place}"]')
        height = part.evaluate(SHORTEN, [SHOWN_ROWS, HIGHEST])
        box = part.bounding_box()
        assert box is not None
        clip = {"x": 0, "y": box["y"], "width": FIRST_SCREEN, "height": height + MARGIN}
        opened.page.screenshot(path=PICTURES / f"suite-{name}.png", full_page=True, clip=clip)


def _plots(folder: ResultFolder) -> Iterator[tuple[str, str, str, str]]:
    for name, make in gallery_studies.pictures(folder):
        picture = make()
        svg = picture.svg if isinstance(picture, Drawing) else draw.svg(picture)
        yield name, picture.title, " ".join(picture.alt.split()), svg


if __name__ == "__main__":
    main()
