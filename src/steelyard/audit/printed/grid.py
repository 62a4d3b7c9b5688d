"""A table found in a text as a grid of cells, with the limits that all formats share."""

from __future__ import annotations

import html
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from steelyard.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from steelyard.rules.table.row import Grid

MAX_LINES = 20_000
MAX_COLUMNS = 64
MAX_CELLS = 400_000
"""Cells of all tables of a file, after a cell over several rows or columns was repeated in each."""
MAX_TABLES = 100
MAX_CELL = 2000
MAX_CAPTION = 1000

_LINK = re.compile(r"!?\[([^\[\]]{0,200})\]\((?:[^()\s]|\([^()]{0,200}\)){0,1000}\)")
# [s] and [h] are units; a footnote has a number or a ^.
_REFERENCE = re.compile(r"(?<=\S)\s?\[(\^[0-9a-z]{1,3}|[0-9]{1,2})\](?!\()")
_SUPERSCRIPT = re.compile(r"<sup>(.{0,40}?)</sup>", re.IGNORECASE)
_TAG = re.compile(r"</?[A-Za-z][^<>]{0,500}>")
_BOLD = re.compile(r"(\*\*|__|~~)(?=\S)(.{1,400}?)(?<=\S)\1")
_ITALIC = re.compile(r"(?<![\w*])([*_])(?=[^\s*_])([^*_]{1,400}?)(?<=[^\s*_])\1(?![\w*])")
_ESCAPE = re.compile(r"\\([-|#_*()\[\]+.!~<>$&])")
_SPACE = re.compile(r"[ \t\r\n\f\v]+")


@dataclass(frozen=True)
class Found:
    """A table found in a text, and the line of the file that each of its lines of cells is on."""

    grid: Grid
    lines: tuple[int, ...]
    """Empty for HTML, where the lines of the file mean nothing to a reader."""
    number: int = 0
    """From 0, among the tables of the file."""


def plain(text: str) -> str:
    """Return the text of a cell without its markup. A superscript becomes `^{...}`, so it is not read as digits."""
    if "<" in text:
        text = _SUPERSCRIPT.sub(r"^{\1}", text)
        text = _TAG.sub(" ", text)
    if "[" in text:
        text = _LINK.sub(r"\1", text)
        text = _REFERENCE.sub(r"^{\1}", text)
    if "*" in text or "_" in text or "~" in text:
        text = _ITALIC.sub(r"\2", _BOLD.sub(r"\2", text))
    if "&" in text:
        text = html.unescape(text)
    if "\\" in text:
        text = _ESCAPE.sub(r"\1", text)
    return _SPACE.sub(" ", text.replace("`", "")).strip()


def shape(rows: Iterable[Sequence[str]]) -> list[tuple[str, ...]]:
    """Give all rows the same width, with empty cells at the end; cut what is too long or too wide."""
    kept = [[cell[:MAX_CELL] for cell in row[: MAX_COLUMNS + 1]] for row in rows]
    width = max((len(row) for row in kept), default=0)
    if width * len(kept) > MAX_CELLS:
        raise InputError(f"a table has more than {MAX_CELLS:,} cells", next_step="paste only the tables you need")
    return [tuple(row) + ("",) * (width - len(row)) for row in kept]
