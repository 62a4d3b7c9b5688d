"""Take the pictures of the documentation: a terminal, every plot, and a report at several widths.

`python docs/tools/make_pictures.py` records real commands in a terminal, draws the studies of the gallery, opens each
plot and a report in Chromium, and writes docs/pictures/ and docs/pictures.md. Fonts differ by machine; CI checks only
that every kind of plot has a picture.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import terminal
from PIL import Image

import gallery_studies
from browser import WIDTHS, chromium, visit
from steelyard.report.page import Drawing
from steelyard.report.render import draw
from steelyard.report.render.html import html
from steelyard.report.study.page import study_page
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
RECORDED = ["steelyard compare old new", "steelyard compare old new-bf16"]
HEADER = """# Pictures

A recorded terminal, every kind of plot, and the report of a study. All data is simulated.
`python docs/tools/make_pictures.py` makes this page.

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
    for path in PICTURES.glob("*.png"):
        # They have few colours, and the repository keeps every version.
        with Image.open(path) as picture:
            picture.convert("RGB").quantize(COLOURS).save(path, optimize=True)
    (DOCS / "pictures.md").write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")


def _plots(folder: ResultFolder) -> Iterator[tuple[str, str, str, str]]:
    for name, make in gallery_studies.pictures(folder):
        picture = make()
        svg = picture.svg if isinstance(picture, Drawing) else draw.svg(picture)
        yield name, picture.title, " ".join(picture.alt.split()), svg


if __name__ == "__main__":
    main()
