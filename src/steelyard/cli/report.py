"""Write a report of results: HTML, Markdown, LaTeX or CSV."""

import argparse
import json
from pathlib import Path

from steelyard.errors import InputError, printable
from steelyard.report.audit.reference import reference_page
from steelyard.report.page import Page
from steelyard.report.render import draw
from steelyard.report.render.files import default_name, require_place, write
from steelyard.report.study.page import study_page
from steelyard.results.store import ResultFolder
from steelyard.terminal.live.progress import say


def run(arguments: argparse.Namespace) -> int:
    """Build and write the report; print its path and size."""
    if not arguments.selection and not arguments.reference:
        raise InputError("nothing to report", next_step="steelyard report STUDY, or steelyard report --reference")
    words = arguments.selection or ["reference"]
    path = arguments.output or Path(default_name(" ".join(words), arguments.format))
    require_place(path, arguments.format)
    page = _page(arguments)
    if arguments.format in ("html", "latex"):
        say(
            "drawing charts"
            if draw.available()
            else "no charts, only their tables; for charts: pip install 'steelyard[report]'"
        )
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
