"""Plain text tables and numbers for a terminal. Knows widths and digits."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

from steelyard.errors import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from steelyard.contracts.record import Quantity

DIGITS = 5
NUMBER = re.compile(r"[+-]?[\d,.]+(e[+-]?\d+)?( ?[a-z%]{1,2})?")


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as their widest entry; numbers to the right."""
    rows = [[printable(cell) for cell in row] for row in rows]
    lines = [[printable(cell) for cell in header], *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    right = [bool(rows) and all(_is_number(row[i]) for row in rows) for i in range(len(header))]
    out = []
    for line in lines:
        cells = [text.rjust(w) if r else text.ljust(w) for text, w, r in zip(line, widths, right, strict=True)]
        out.append("  ".join(cells).rstrip())
    out.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(out)


def _is_number(text: str) -> bool:
    return text in ("", "-") or NUMBER.fullmatch(text) is not None


def number(value: float, digits: int = DIGITS) -> str:
    """A number with so many significant digits, thousands apart, no exponent where people can do without."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    # The magnitude after rounding: 9.99999 is shown as 10.000, not as 10.0000.
    magnitude = int(f"{value:.{digits - 1}e}".partition("e")[2])
    if -4 <= magnitude < 9:
        return f"{value:,.{max(0, digits - 1 - magnitude)}f}"
    return f"{value:.{digits - 1}e}"


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
