"""Write a report of what was measured: one HTML page that opens offline, Markdown, LaTeX or CSV."""

import argparse
import json
from pathlib import Path

from steelyard.analysis.select import FORMS
from steelyard.cli.verb import add_results
from steelyard.errors import InputError, printable
from steelyard.report.audit.reference import reference_page
from steelyard.report.page import Page
from steelyard.report.render import draw
from steelyard.report.render.files import FORMATS, default_name, require_place, write
from steelyard.report.study.page import study_page
from steelyard.results.store import ResultFolder
from steelyard.terminal.live.progress import say


def configure(parser: argparse.ArgumentParser) -> None:
    """Options of the verb."""
    parser.add_argument(
        "selection", nargs="*", help=f"what to report: {FORMS}; of several, each is held against the first"
    )
    parser.add_argument(
        "--reference", action="store_true",
        help="the main tables and figures of the built-in documents, made again; the names of some, or all",
    )  # fmt: skip
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="file or folder (default: STUDY.html here)")
    parser.add_argument(
        "--format", choices=FORMATS, default="html",
        help="html and markdown are one file; latex is a folder with a document and its figures, csv one with a file "
        "for each table (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--title", default="", help="of the page (default: what is selected)")
    parser.add_argument(
        "--factor", default="system", metavar="NAME", help="what is under study between several selections"
    )
    add_results(parser)


def run(arguments: argparse.Namespace) -> int:
    """Build and write; the file's path and size go to standard output."""
    if not arguments.selection and not arguments.reference:
        raise InputError("nothing to report", next_step="steelyard report STUDY, or steelyard report --reference")
    words = arguments.selection or ["reference"]
    path = arguments.output or Path(default_name(" ".join(words), arguments.format))
    require_place(path, arguments.format)
    page = _page(arguments)
    if arguments.format in ("html", "latex"):
        say("drawing" if draw.available() else "no pictures, their tables instead: pip install 'steelyard[report]'")
    made = write(page, path, arguments.format)
    if arguments.json:
        sections = [{"name": part.name, "title": part.title, "answer": part.answer} for part in page.sections]
        print(json.dumps({"path": str(made.path), "files": made.files, "size_bytes": made.size_bytes,
                          "format": arguments.format, "title": page.title, "sections": sections}))  # fmt: skip
    else:
        files = "" if made.files == 1 else f" in {made.files} files"
        print(printable(f"{made.path}: {made.size_bytes:,} bytes{files}"))
    return 0


def _page(arguments: argparse.Namespace) -> Page:
    if arguments.reference:
        return reference_page(arguments.selection, title=arguments.title)
    return study_page(
        ResultFolder(arguments.results), arguments.selection, title=arguments.title, factor=arguments.factor, say=say
    )
