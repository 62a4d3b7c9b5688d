"""Write an allocation pack as files: HTML, Markdown, LaTeX with figures, tables, and the input of a reviewer's audit.

TeX runs without shell access, on text in which everything untrusted is escaped.
"""

from __future__ import annotations

import math
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from steelyard import nofollow
from steelyard.contracts.base import to_json_object
from steelyard.errors import InputError, Problem, SteelyardError
from steelyard.report.pack.build import HANDED_IN, appendix_page, hand_in_page, hand_in_sections, pack_page
from steelyard.report.pack.checklist import lines
from steelyard.report.pack.claims import TABLE_FILE
from steelyard.report.pack.fit import estimated_pages, fitted, page_limit
from steelyard.report.page import Chart
from steelyard.report.render import draw
from steelyard.report.render.csv_table import csv_table
from steelyard.report.render.html import html
from steelyard.report.render.latex import latex
from steelyard.report.render.markdown import markdown
from steelyard.report.render.published import published_findings
from steelyard.report.render.put import put
from steelyard.terminal.document import json_text
from steelyard.terminal.plain import estimate_object

if TYPE_CHECKING:
    from collections.abc import Sequence

    from steelyard.report.pack.model import Pack
    from steelyard.report.page import Section
    from steelyard.terminal.shapes.checks import PackData

WHOLE, HAND_IN, APPENDIX = "pack", "section", "appendix"
CLAIMS_FILE = "claims.toml"
FIGURES = "figures"
TEX_S = 120.0
TEX_PACKAGES = "apt-get install --no-install-recommends texlive-latex-recommended lmodern"
COLUMN = (340, 200)
"""Size in pixels of a chart that fits a column of a page with two columns, so that its letters can be read."""
# The last page counts in part. TeX breaks long lines of its log, so the mark is short.
MARK = r"\par\typeout{sy-end \thepage\space\the\pagetotal\space\the\textheight}"
_PAGES = re.compile(r"sy-end (\d+) ([\d.]+)pt ([\d.]+)pt")


@dataclass(frozen=True)
class WrittenPack:
    """A pack on disk."""

    pack: Pack
    """Includes the page count, if a PDF was made."""
    files: tuple[str, ...]
    """Relative to the folder."""


def write_pack(pack: Pack, folder: Path, *, pdf: bool = False) -> WrittenPack:
    """Write all files of a pack. With `pdf`, run TeX and count the pages before the checklist is written."""
    tex = _tex() if pdf else None
    _prepare(folder)
    page = pack_page(pack)
    # Charts as PDF for TeX and SVG for Markdown, if they can be drawn.
    charts = [block for section in page.sections for block in section.blocks if isinstance(block, Chart)]
    pictures = [chart.name for chart in charts] if draw.available() else []
    for chart in charts if pictures else ():
        put(folder, f"{FIGURES}/{chart.name}.pdf", draw.pdf(chart, titled=False))
        _write(folder, f"{FIGURES}/{chart.name}.svg", draw.svg(chart, titled=False))
    documents = {name: f"{FIGURES}/{name}.pdf" for name in pictures}
    column = [chart for chart in charts if chart.name == HANDED_IN and pictures]
    for chart in column:
        documents[chart.name] = f"{FIGURES}/{chart.name}-column.pdf"
        narrow = replace(chart, spec={**chart.spec, "width": COLUMN[0], "height": COLUMN[1]})
        put(folder, documents[chart.name], draw.pdf(narrow, titled=False))
    # The section to submit has no checklist, so the page count does not change its length.
    pack = _write_hand_in(pack, folder, tex, documents)
    page = pack_page(pack)
    documents |= {name: f"{FIGURES}/{name}.pdf" for name in pictures}
    drawings = {name: f"{FIGURES}/{name}.svg" for name in pictures}
    _write(folder, f"{WHOLE}.html", html(page))
    _write(folder, f"{WHOLE}.md", markdown(page, drawings))
    _write(folder, f"{WHOLE}.tex", latex(page, documents))
    if tex is not None:
        _set(tex, folder, WHOLE)
    for table in page.tables:
        _write(folder, f"tables/{table.name}.csv", csv_table(table))
    _write(folder, TABLE_FILE, pack.table_csv)
    if pack.own_audit.judgements:
        _write(folder, CLAIMS_FILE, pack.claims_toml)
    there = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    files = sorted({*there, f"{WHOLE}.json"})
    _write(folder, f"{WHOLE}.json", json_text(pack_object(pack, files), indent=1) + "\n")
    return WrittenPack(pack, tuple(files))


def _write_hand_in(pack: Pack, folder: Path, tex: str | None, documents: dict[str, str]) -> Pack:
    """Write the section to submit and its appendix; return the pack with the pages, counted by TeX if there is one."""

    def counted(sections: list[Section]) -> float:
        if tex is None:
            return estimated_pages(sections)
        _write(folder, f"{HAND_IN}.tex", latex(hand_in_page(pack, sections), documents, beside=True))
        return _set(tex, folder, HAND_IN, runs=1)

    shown, moved = fitted(hand_in_sections(pack), page_limit(pack), counted)
    _write(folder, f"{HAND_IN}.tex", latex(hand_in_page(pack, shown), documents, beside=True))
    if moved:
        _write(folder, f"{APPENDIX}.tex", latex(appendix_page(pack, moved), documents, beside=True))
    if tex is None:
        return replace(pack, appendix=bool(moved))
    if moved:
        _set(tex, folder, APPENDIX)
    return replace(pack, pages=_set(tex, folder, HAND_IN), appendix=bool(moved))


def pack_object(pack: Pack, files: Sequence[str]) -> PackData:
    """Return plan, derivation, findings and checklists as plain data."""
    request = pack.request
    return {
        "shape": "pack/1",
        "selection": pack.selection,
        "plan": to_json_object(request.plan),
        "tariff": to_json_object(request.tariff),
        "basis": {"kind": request.basis.kind, "devices": request.basis.devices, "largest": request.basis.largest},
        "measured_jobs": request.measured_jobs,
        "failures": to_json_object(request.failures),
        "derivation": [
            {
                **estimate_object(term.amount, len(term.runs), term.unit),
                "symbol": term.symbol,
                "what": term.what,
                "formula": term.formula,
                "origin": term.origin,
                "runs": list(term.runs),
            }
            for term in (*request.terms, *request.energy)
        ],
        "not_counted": list(request.uncounted),
        "pages": pack.pages,
        "appendix": pack.appendix,
        "passes": pack.passes,
        "findings": to_json_object(published_findings(pack.findings)),
        "checklists": {
            file.name: [
                {
                    "id": line.demand.id,
                    "demand": line.demand.demand,
                    "sections": list(line.sections),
                    "answered": not line.todo,
                    "to_do": list(line.todo),
                }
                for line in lines(pack, file)
            ]
            for file in pack.schemes
        },
        "files": list(files),
    }


def _prepare(folder: Path) -> None:
    """Create the folder and remove the files of an older pack."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file", next_step="choose a folder with -o")
    old = folder / f"{WHOLE}.json"
    if folder.is_dir() and any(folder.iterdir()) and not old.is_file():
        problem = Problem("-o", f"{folder} contains other files", "a new folder, or that of an older pack")
        raise InputError("the folder is not empty", problems=(problem,))
    folder.mkdir(parents=True, exist_ok=True)
    root = folder.resolve()
    for name in (FIGURES, "tables"):
        # Somebody else may have made the folder, with a link to files of ours in place of one of these.
        nofollow.make_folder(root / name, exist_ok=True)
        for entry in nofollow.names(root / name):
            if "." in entry:
                nofollow.remove(root / name / entry)
    (folder / f"{APPENDIX}.tex").unlink(missing_ok=True)
    for suffix in ("pdf", "log", "aux"):
        for stem in (WHOLE, HAND_IN, APPENDIX):
            (folder / f"{stem}.{suffix}").unlink(missing_ok=True)


def _write(folder: Path, name: str, text: str) -> None:
    put(folder, name, text.encode())


# -- TeX


def _tex() -> str:
    path = shutil.which("pdflatex")
    if path is None:
        problem = Problem("--pdf", "pdflatex not found", "without --pdf, the .tex files are still written")
        raise InputError("TeX is not installed", problems=(problem,), next_step=f"Debian: {TEX_PACKAGES}")
    return path


def _set(tex: str, folder: Path, stem: str, *, runs: int = 2) -> float:
    """Run TeX, usually twice because long tables get their widths in the first run; return the pages in tenths."""
    source = folder / f"{stem}.tex"
    text = source.read_text("utf-8")
    if MARK not in text:
        text = text.replace(r"\end{document}", f"{MARK}\n\\end{{document}}")
        _write(folder, source.name, text)
    # In a folder of its own: TeX reads a class or a format that it finds beside the source, and somebody else may have
    # made the folder of an older pack.
    with tempfile.TemporaryDirectory(prefix="steelyard-tex-") as name:
        scratch = Path(name)
        (scratch / source.name).write_text(text, encoding="utf-8")
        (scratch / FIGURES).mkdir()
        for picture in (folder / FIGURES).glob("*.pdf"):
            shutil.copyfile(picture, scratch / FIGURES / picture.name)
        try:
            said = _run_tex(tex, scratch, stem, runs)
        finally:
            for made in (scratch / f"{stem}.pdf", scratch / f"{stem}.log"):
                if made.exists():
                    put(folder, made.name, made.read_bytes())
    match = _PAGES.search(said.replace("\n", ""))
    if match is None:
        raise SteelyardError(f"TeX made no pages from {stem}.tex", next_step=f"see {folder / stem}.log")
    return math.ceil(10 * (int(match[1]) - 1 + float(match[2]) / float(match[3]))) / 10


def _run_tex(tex: str, scratch: Path, stem: str, runs: int) -> str:
    """Run TeX in a folder; return what it prints the last time."""
    command = [tex, "-no-shell-escape", "-interaction=nonstopmode", "-halt-on-error", f"{stem}.tex"]
    said = ""
    for _ in range(runs):
        try:
            done = subprocess.run(command, cwd=scratch, capture_output=True, timeout=TEX_S, check=False)
        except subprocess.TimeoutExpired:
            raise SteelyardError(f"TeX did not finish {stem}.tex in {TEX_S:g} s") from None
        said = done.stdout.decode("utf-8", errors="replace")
        if done.returncode != 0:
            wrong = next((line for line in said.splitlines() if line.startswith("!")), "no message")
            raise SteelyardError(f"TeX failed on {stem}.tex: {wrong[:200]}", next_step=f"see {stem}.log in the pack")
    return said
