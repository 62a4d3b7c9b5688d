"""Takes the pictures of docs/pictures.md: every plot and the report at three widths, in a real browser.

`python docs/tools/make_pictures.py` draws the gallery's studies anew, opens each picture and a study's report in
Chromium, and writes docs/pictures/*.png and docs/pictures.md. Fonts differ by machine: CI checks only that every
kind of plot has its picture there.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path

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
HEADER = """# Pictures

Every kind of plot, and the report of a study at three widths, as Chromium shows them. All of it is simulated.
Made by `python docs/tools/make_pictures.py`.
"""


def main() -> None:
    """Take all pictures and write the page."""
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch, chromium() as browser:
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
        lines.append("## A report\n")
        for name, width in WIDTHS.items():
            with visit(browser, report, width) as found:
                found.page.screenshot(path=PICTURES / f"report-{name}.png", full_page=True)
            text = f"The report of a study at {width} pixels"
            lines += [f"### {text} {{ #report-{name} }}\n", f"![{text}](pictures/report-{name}.png)\n"]
    for path in PICTURES.glob("*.png"):
        # Few colours are in them, and the repository keeps every version.
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
