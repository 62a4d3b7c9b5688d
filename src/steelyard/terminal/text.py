"""Tables, wrapped text and numbers, as plain text for a terminal."""

from __future__ import annotations

import io
import re
import textwrap
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

from steelyard.errors import printable
from steelyard.rules.table import phrases

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from steelyard.contracts.record import Quantity

OUTPUT_COLUMNS: ContextVar[int | None] = ContextVar("OUTPUT_COLUMNS", default=None)
"""Columns of the terminal that is written to; None for a file or a pipe, where table rows are not wrapped."""
DIGITS: Final = 5
WIDTH: Final = 80
"""Columns of text, even on a wider terminal."""
LEAST_WIDTH: Final = 20
"""Text is not wrapped to fewer columns than this: its indents would fill the line."""
UNLIMITED: Final = 100_000
"""Columns of a table that is not for a terminal."""
NUMBER: Final = re.compile(r"[+-]?[\d,.]+(e[+-]?\d+)?( ?[a-z%]{1,2})?")


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Format a table, numbers to the right. One that is too wide for the terminal becomes a block of lines per row."""
    from rich.box import Box
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    header, *rows = [[printable(cell) for cell in row] for row in (header, *rows)]
    columns = OUTPUT_COLUMNS.get() or UNLIMITED
    console = Console(file=io.StringIO(), width=columns, color_system=None)
    box = Box("    \n    \n -  \n" + 5 * "    \n", ascii=True)
    made = Table(box=box, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for i, heading in enumerate(header):
        cells = [row[i] for row in rows]
        is_number = bool(cells) and all(cell in ("", "-") or NUMBER.fullmatch(cell) for cell in cells)
        # Lines break between words only, and never inside a number.
        unbroken = [*heading.split(), *(cells if is_number else " ".join(cells).split())]
        made.add_column(
            Text(heading),
            justify="right" if is_number else "left",
            min_width=max(map(cell_len, unbroken), default=1),
            overflow="fold",
        )
    for row in rows:
        made.add_row(*map(Text, row))
    text = "".join(segment.text for segment in console.render(made))
    lines = [line.rstrip() for line in text.splitlines()]
    if max(map(len, lines)) <= columns:
        return "\n".join(lines)
    blocks = [
        "\n".join(
            line for heading, cell in zip(header, row, strict=True) if cell for line in wrapped(f"{heading}: {cell}")
        )
        for row in rows
    ]
    return "\n\n".join(blocks) or "  ".join(header)


def wrapped(text: str, indent: str = "", deeper: str = "  ") -> list[str]:
    """Wrap text to the terminal's width, at most WIDTH; lines after the first are indented by `deeper` more.

    Names of rules contain hyphens and are searched for, and paths are copied: no line breaks inside a word.
    """
    columns = min(WIDTH, OUTPUT_COLUMNS.get() or WIDTH)
    return textwrap.wrap(
        printable(text),
        max(columns, LEAST_WIDTH),
        initial_indent=indent,
        subsequent_indent=indent + deeper,
        break_on_hyphens=False,
        break_long_words=False,
    )


def number(value: float, digits: int = DIGITS) -> str:
    """A number with so many significant digits, thousands apart, no exponent where people can do without."""
    return phrases.number(value, digits, plain_below=9)


def seconds(value: float) -> str:
    """A duration in the unit people would say it in."""
    for factor, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if abs(value) >= factor:
            return f"{number(value / factor)} {unit}"
    return f"{number(value * 1e9)} ns" if value else "0 s"


def with_interval(quantity: Quantity) -> str:
    """A quantity as people read it: value and interval, or why there is none."""
    if quantity.value is None:
        return f"unknown: {quantity.reason}"
    if quantity.interval is None:
        return number(quantity.value)
    low, high = quantity.interval.low, quantity.interval.high
    mark = " ~" if quantity.interval.approximate else ""
    return f"{number(quantity.value)} [{number(low)}, {number(high)}]{mark}"


def capital(text: str) -> str:
    """With a large first letter."""
    return text[:1].upper() + text[1:]


def sentence(text: str) -> str:
    """With a large first letter, and a point at its end."""
    text = text.strip()
    return capital(text) + ("" if text.endswith((".", "?", "!", ":")) or not text else ".")


def many(count: int, what: str) -> str:
    """A number of things, one or more."""
    return f"{count} {what}" + ("" if count == 1 else "s")


def count_statuses(statuses: Mapping[str, int]) -> str:
    """How many runs ended in which way."""
    return ", ".join(f"{count} {code}" for code, count in sorted(statuses.items()))
