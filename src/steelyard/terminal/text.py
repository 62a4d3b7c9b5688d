"""Plain text tables and numbers for a terminal. Knows widths and digits."""

from __future__ import annotations

import re
import textwrap
from typing import TYPE_CHECKING

from steelyard.errors import printable
from steelyard.rules.table import phrases
from steelyard.terminal.narrow import OUTPUT_COLUMNS, narrow_table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from steelyard.contracts.record import Quantity

DIGITS = 5
WIDTH = 80
"""Columns that a terminal has at least."""
LEAST_WIDTH = 20
"""Below this nothing is broken any more: the indents alone would fill a line."""
NUMBER = re.compile(r"[+-]?[\d,.]+(e[+-]?\d+)?( ?[a-z%]{1,2})?")


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as their widest entry; numbers to the right."""
    rows = [[printable(cell) for cell in row] for row in rows]
    lines = [[printable(cell) for cell in header], *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    right = [
        bool(rows) and all(row[i] in ("", "-") or NUMBER.fullmatch(row[i]) for row in rows) for i in range(len(header))
    ]
    columns = OUTPUT_COLUMNS.get()
    if columns is not None and sum(widths) + 2 * (len(widths) - 1) > columns:
        return "\n".join(narrow_table(lines, right, columns))
    out = []
    for line in lines:
        cells = [text.rjust(w) if r else text.ljust(w) for text, w, r in zip(line, widths, right, strict=True)]
        out.append("  ".join(cells).rstrip())
    out.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(out)


def wrapped(text: str, indent: str = "", deeper: str = "  ") -> list[str]:
    """Text in lines that fit a terminal; those after the first are set in by `deeper` more.

    Names of rules have hyphens and are looked for whole, so no line ends inside one.
    """
    columns = min(WIDTH, OUTPUT_COLUMNS.get() or WIDTH)
    return textwrap.wrap(
        printable(text),
        max(columns, LEAST_WIDTH),
        initial_indent=indent,
        subsequent_indent=indent + deeper,
        break_on_hyphens=False,
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
