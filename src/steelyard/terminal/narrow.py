"""A table that is wider than the terminal: cells broken over lines, or a block of lines for each row. Knows widths."""

from __future__ import annotations

import textwrap
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

OUTPUT_COLUMNS: ContextVar[int | None] = ContextVar("OUTPUT_COLUMNS", default=None)
"""Columns of the terminal that is written to; None: to a file or a program, where no line need be broken."""
GAP: Final = "  "
LEAST_TEXT: Final = 16
"""Columns that a text keeps at least: every status fits; a longer word is broken."""


def narrow_table(lines: Sequence[Sequence[str]], right: Sequence[bool], columns: int) -> list[str]:
    """The lines of a table, the header first, in so many columns. `right`: which columns hold numbers."""
    widths = [max(len(line[i]) for line in lines) for i in range(len(right))]
    least = []
    for i, is_number in enumerate(right):
        heading, *cells = [line[i] for line in lines]
        words = [len(word) for cell in (heading, *cells) for word in cell.split()]
        # A number is never broken, its heading between words only.
        numbers = [*map(len, cells), *(len(word) for word in heading.split())]
        least.append(max(numbers, default=1) if is_number else min(LEAST_TEXT, max(words, default=1)))
    room = columns - len(GAP) * (len(right) - 1)
    if sum(least) > room:
        return _blocks(lines, columns)
    while sum(widths) > room:
        # The widest gives first: it has most to break.
        at = max((i for i in range(len(right)) if widths[i] > least[i]), key=lambda i: widths[i])
        widths[at] -= 1
    out = [row for line in lines for row in _broken(line, widths, right)]
    out.insert(len(_broken(lines[0], widths, right)), GAP.join("-" * width for width in widths))
    return out


def _broken(line: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> list[str]:
    cells = [textwrap.wrap(cell, width, break_on_hyphens=False) for cell, width in zip(line, widths, strict=True)]
    out = []
    for at in range(max(map(len, cells))):
        parts = [cell[at] if at < len(cell) else "" for cell in cells]
        padded = [text.rjust(w) if r else text.ljust(w) for text, w, r in zip(parts, widths, right, strict=True)]
        out.append(GAP.join(padded).rstrip())
    return out


def _blocks(lines: Sequence[Sequence[str]], columns: int) -> list[str]:
    """Each row for itself: what stands in which column."""
    header, *rows = lines
    out: list[str] = []
    for row in rows:
        out += [""] if out else []
        for heading, cell in zip(header, row, strict=True):
            if cell:
                out += textwrap.wrap(
                    f"{heading}: {cell}", max(columns, LEAST_TEXT), subsequent_indent=GAP, break_on_hyphens=False
                )
    return out or [GAP.join(header)]
