"""Numbers as text for people: significant digits, no exponents. Messages, tables and reports share these forms."""

from __future__ import annotations

import math
import re


def number(value: float, digits: int = 4, plain_below: int = 12) -> str:
    """Format a number with `digits` significant digits and thousands separators; larger numbers with an exponent."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    # The magnitude after rounding: 9.99999 is shown as 10.000, not as 10.0000.
    magnitude = int(f"{value:.{digits - 1}e}".partition("e")[2])
    if -4 <= magnitude < plain_below:
        return f"{value:,.{max(0, digits - 1 - magnitude)}f}"
    return f"{value:.{digits - 1}e}"


def short(value: float, digits: int = 4) -> str:
    """Format a number as `number` does, without zeros at its end: 12.5, 1,800."""
    text = number(value, digits)
    return text.rstrip("0").rstrip(".") if "." in text and "e" not in text else text


def seconds(value: float, digits: int = 4) -> str:
    """Format a duration in s, ms, us or ns."""
    for factor, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if abs(value) >= factor:
            return f"{number(value / factor, digits)} {unit}"
    return f"{number(value * 1e9, digits)} ns" if value else "0 s"


def times(ratio: float, digits: int = 3) -> str:
    """Format a ratio, such as `14.2x`."""
    return f"{number(ratio, digits)}x"


def percent(share: float, digits: int = 3) -> str:
    """Format a share as a percentage, such as `12.0 %`."""
    return f"{number(100 * share, digits)} %"


def change(share: float) -> str:
    """Format by how much one of two values is larger: 0.4 %, 12 %, 180 %, and from three times on as `3.5x`."""
    return f"{short(100 * share, 2)} %" if share < 2 else f"{short(1 + share, 2)}x"


def count_in(text: str) -> int | None:
    """Return a count that a text is: up to 18 of the digits 0 to 9; None for everything else, such as "²"."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else None


def natural_order(text: str) -> list[float | str]:
    """Sort key for labels: numbers by value, so that batch=8 comes before batch=16."""
    return [float(part) if i % 2 else part for i, part in enumerate(re.split(r"([0-9]+(?:\.[0-9]+)?)", text))]
