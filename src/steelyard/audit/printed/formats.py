"""A grid of text from each format: Markdown, CSV or TSV, LaTeX and HTML. It knows nothing of what a heading means."""

from __future__ import annotations

import csv
import io
import re
from itertools import chain
from typing import TYPE_CHECKING

from steelyard.audit.printed.grid import MAX_CAPTION, MAX_CELLS, MAX_LINES, MAX_TABLES, Found, plain, shape
from steelyard.audit.printed.latex import latex_grids
from steelyard.audit.printed.page import html_grids
from steelyard.errors import InputError, Problem
from steelyard.rules.table.row import Grid

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

# Nothing is tried twice: a line may have a million spaces.
_RULE = re.compile(r"[ \t]*+(?:\|[ \t]*+)?:?-++:?[ \t]*+(?:\|[ \t]*+:?-++:?[ \t]*+)*+(?:\|[ \t]*+)?")
_PIPE = re.compile(r"(?<!\\)\|")


def find_grids(text: str, name: str) -> list[Found]:
    """Find the tables in a text; the end of the name, or else the content, tells the format."""
    # Several characters end a line, and each line may become as wide as the widest.
    if len(text.splitlines()) > MAX_LINES:
        raise InputError(f"{name} has more than {MAX_LINES:,} lines", next_step="paste only its tables")
    suffix = name.rpartition(".")[2].lower() if "." in name else ""
    grids: Iterable[Found]
    if suffix == "tex" or (suffix not in ("csv", "tsv", "html", "htm") and "\\begin{tabular" in text):
        grids = latex_grids(text)
    elif suffix in ("html", "htm"):
        grids = html_grids(text)
    elif suffix in ("csv", "tsv"):
        grids = _csv(text, name)
    else:
        grids = chain(_markdown(text.splitlines()), html_grids(text) if "<table" in text.lower() else [])
        found = _within_limits(grids, name)
        if found or suffix in ("md", "markdown", "rst"):
            return found
        grids = _csv(text, name)
    return _within_limits(grids, name)


def _within_limits(grids: Iterable[Found], name: str) -> list[Found]:
    """Number the tables; stop at the first one that is too much for a file."""
    found: list[Found] = []
    cells = 0
    for entry in grids:
        cells += len(entry.grid.cells) * _width(entry.grid)
        if cells > MAX_CELLS:
            raise InputError(f"{name} has more than {MAX_CELLS:,} cells", next_step="paste only the tables you need")
        if len(found) == MAX_TABLES:
            raise InputError(f"{name} has more than {MAX_TABLES} tables", next_step="paste those you need")
        found.append(Found(entry.grid, entry.lines, len(found)))
    return found


def _width(grid: Grid) -> int:
    return max((len(row) for row in (*grid.headings, *grid.cells)), default=0)


def _markdown(lines: list[str]) -> Iterator[Found]:
    """Find pipe tables: a line of headings, a line of dashes, and lines of cells."""
    end = 0
    number = 1
    while number < len(lines):
        if "|" not in lines[number - 1] or "-" not in lines[number] or not _RULE.fullmatch(lines[number]):
            number += 1
            continue
        headings = _split_pipes(lines[number - 1])
        if len(headings) < 2 and len(_split_pipes(lines[number])) != len(headings):
            number += 1
            continue
        caption = _caption_above(lines, end, number - 1)
        body, at = [], []
        number += 1
        while number < len(lines) and "|" in lines[number] and lines[number].strip():
            if not _RULE.fullmatch(lines[number]):
                body.append(_split_pipes(lines[number]))
                at.append(number + 1)
            number += 1
        end = number
        rows = shape([headings, *body])
        yield Found(Grid(caption, (rows[0],), tuple(rows[1:])), tuple(at))


def _split_pipes(line: str) -> list[str]:
    line = line.strip()
    line = line.removeprefix("|")
    line = line[:-1] if line.endswith("|") and not line.endswith("\\|") else line
    return [plain(cell) for cell in _PIPE.split(line)]


def _caption_above(lines: list[str], begin: int, end: int) -> str:
    """Return the last paragraph before a table and the heading before it."""
    above = [line.strip() for line in lines[max(begin, end - 12) : end]]
    while above and not above[-1]:
        above.pop()
    paragraph: list[str] = []
    while above and above[-1] and len(paragraph) < 6:
        paragraph.insert(0, above.pop())
    return "\n".join(plain(line.lstrip("#> ")) for line in paragraph)[:MAX_CAPTION]


def _csv(text: str, name: str) -> list[Found]:
    """Read a wide table with commas, semicolons or tabs. Lines with one cell above it are its caption."""
    first = [line for line in text.splitlines()[:50] if line.strip()]
    if not first:
        raise InputError(f"{name} is empty", next_step="paste a table with a line of headings")
    marks = {mark: max(line.count(mark) for line in first) for mark in ("\t", ";", ",")}
    delimiter = "\t" if marks["\t"] else ";" if marks[";"] >= max(1, marks[","]) else ","
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    caption: list[str] = []
    rows: list[list[str]] = []
    at: list[int] = []
    line = 1
    try:
        while True:
            line = reader.line_num + 1
            cells = [plain(cell) for cell in next(reader)]
            stated = [cell for cell in cells if cell]
            if not rows and len(stated) < 2:
                caption += stated
            elif stated:
                rows.append(cells)
                at.append(line)
    except StopIteration:
        pass
    except csv.Error as error:
        problem = Problem(f"line {line}", str(error), "CSV: commas between cells, quotes closed, short cells")
        raise InputError(f"{name} is not valid CSV", problems=(problem,)) from None
    if not rows:
        return []
    shaped = shape(rows)
    return [Found(Grid("\n".join(caption)[:MAX_CAPTION], (shaped[0],), tuple(shaped[1:])), tuple(at[1:]))]
