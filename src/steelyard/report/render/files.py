"""Write a page: one HTML or Markdown file, a folder for LaTeX or CSV, or a picture of its first screen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from steelyard.errors import InputError, Problem
from steelyard.report.page import Chart, Drawing
from steelyard.report.render import draw
from steelyard.report.render.card import card
from steelyard.report.render.csv_table import csv_table
from steelyard.report.render.html import html
from steelyard.report.render.latex import latex
from steelyard.report.render.markdown import markdown
from steelyard.report.render.plain import file_name
from steelyard.report.render.put import put

if TYPE_CHECKING:
    from pathlib import Path

    from steelyard.report.page import Page

Format = Literal["html", "markdown", "latex", "csv", "card"]
FORMATS: tuple[Format, ...] = ("html", "markdown", "latex", "csv")
ENDINGS: dict[Format, str] = {"html": ".html", "markdown": ".md", "latex": "-latex", "csv": "-csv", "card": ".png"}
FOLDERS = ("latex", "csv")
SUFFIXES: dict[Format, tuple[str, ...]] = {"html": (".html", ".htm"), "markdown": (".md",), "card": (".png",)}
"""How a file may end: anything else is another format, or a file of the user."""
FIGURES = "figures"
MAIN_TEX = "report.tex"


@dataclass(frozen=True)
class Written:
    """The written file or folder, and its total size."""

    path: Path
    files: int
    size_bytes: int


def default_name(words: str, kind: Format) -> str:
    """Return the default name of the file or folder."""
    return f"{file_name(words)}{ENDINGS[kind]}"


def require_place(path: Path, kind: Format) -> None:
    """Raise InputError if the path cannot be written, before any work is done."""
    problem = ""
    if kind in FOLDERS and path.exists() and not path.is_dir():
        problem = "is a file, but this format needs a folder"
    elif kind not in FOLDERS and path.is_dir():
        problem = "is a folder, but this format is one file"
    elif not path.absolute().parent.is_dir():
        problem = f"folder {path.parent} does not exist"
    elif kind not in FOLDERS and path.suffix.lower() not in SUFFIXES[kind]:
        problem = f"the format is {kind}, so it must end in {SUFFIXES[kind][0]}"
    if problem:
        valid = "-o FOLDER" if kind in FOLDERS else f"-o FILE{ENDINGS[kind]}"
        other = next((name for name, suffixes in SUFFIXES.items() if path.suffix.lower() in suffixes), kind)
        valid += f", or --format {other}" if other not in (kind, "card") else ""
        raise InputError("cannot write the report", problems=(Problem(str(path), problem, valid),))


def write(page: Page, path: Path, kind: Format) -> Written:
    """Write the page. In a folder, files of the same names are replaced; others stay."""
    require_place(path, kind)
    if kind == "html":
        return _written(path, {"": html(page).encode()})
    if kind == "markdown":
        return _written(path, {"": markdown(page).encode()})
    if kind == "card":
        return _written(path, {"": card(page)})
    if kind == "csv":
        return _written(path, {f"{file_name(table.name)}.csv": csv_table(table).encode() for table in page.tables})
    files, pictures = _pictures(page)
    return _written(path, {MAIN_TEX: latex(page, pictures).encode(), **files})


def _pictures(page: Page) -> tuple[dict[str, bytes], dict[str, str]]:
    """Draw the charts as PDF if possible; otherwise the document has their tables."""
    files: dict[str, bytes] = {}
    names: dict[str, str] = {}
    if not draw.available():
        return files, names
    for section in page.all_sections:
        for block in section.blocks:
            if isinstance(block, Chart | Drawing):
                names[block.name] = f"{FIGURES}/{file_name(block.name)}.pdf"
                if isinstance(block, Chart):
                    files[names[block.name]] = draw.pdf(block, titled=False)
                else:
                    # Imported late because it takes long to load.
                    import vl_convert

                    files[names[block.name]] = vl_convert.svg_to_pdf(block.svg)
    return files, names


def _written(path: Path, files: dict[str, bytes]) -> Written:
    for name, content in files.items():
        put(path if name else path.parent, name or path.name, content)
    return Written(path, len(files), sum(map(len, files.values())))
