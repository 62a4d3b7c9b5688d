"""Format rows, figures and lists for the messages of rules."""

from __future__ import annotations

import math
import re
from itertools import islice
from typing import TYPE_CHECKING

from steelyard.contracts.finding import WrongFigure
from steelyard.numbers import change, number
from steelyard.rules.table.settings import SETTINGS
from steelyard.rules.table.units import unit_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from steelyard.rules.table.row import Amount, Row

# The order in which settings are used to identify a row: device count and batch first.
_ORDER = ("size", "batches", "arithmetic", "system", "input")
_TELLING = (
    *(key for wanted in _ORDER for key, role in SETTINGS.items() if role == wanted),
    *(key for key, role in SETTINGS.items() if role not in (*_ORDER, "amount", "evidence")),
)
MAX_LISTED = 6
MAX_SETTING = 40


def whole(value: float) -> str:
    """Format a count without decimals, unless it is small."""
    return f"{round(value):,}" if value >= 1000 else number(value)


def printed(metric: str, amount: Amount) -> str:
    """Format a figure as printed in its table, with metric and unit."""
    unit = f" {amount.unit}" if amount.unit not in ("", "1") else ""
    return f"{metric} {amount.text or number(amount.value)}{unit}"


def in_unit_of(amount: Amount, value: float) -> str:
    """Format a value in base units in the unit of a printed figure."""
    known = unit_of(amount.unit)
    unit = f" {amount.unit}" if amount.unit not in ("", "1") else ""
    return f"{number(value / (known[1] if known else 1.0))}{unit}"


def bare(amount: Amount, value: float) -> str:
    """Format a value in base units as the cell of a printed figure would have it, with one more digit; no unit."""
    known = unit_of(amount.unit)
    value /= known[1] if known else 1.0
    digits = len(re.sub(r"[eE].*|[^0-9]", "", amount.text).lstrip("0")) or 3
    return number(value, max(4, digits + 1)) if value > 0 else number(value)


def wrong_setting(row: Row, key: str, value: float) -> WrongFigure:
    """Return a setting of a row that is wrong, and what the figures give for it."""
    stated = row.number(key) or 0.0
    return WrongFigure(place=row.place, name=key, printed=f"{stated:.10g}", recomputed=f"{value:.10g}")


def setting(row: Row, key: str) -> str:
    """Format a setting with its name; long text is truncated."""
    value = row.get(key)
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return f"{key} {text if len(text) <= MAX_SETTING else text[: MAX_SETTING - 3] + '...'}"


def label(row: Row, among: Iterable[Row]) -> str:
    """Return the settings that distinguish a row from others, as few as possible; if none do, its place."""
    left = [other for other in among if other is not row]
    telling: list[str] = []
    for key in _TELLING:
        same = [other for other in left if other.get(key) == row.get(key)]
        if row.get(key) is not None and len(same) < len(left):
            telling.append(setting(row, key))
            left = same
    return ", ".join(telling[:3]) or row.place


def places(rows: Sequence[Row]) -> str:
    """Format the places of several rows."""
    if len(rows) <= 2:
        return " and ".join(row.place for row in rows)
    return f"{rows[0].place} and {len(rows) - 1} other rows"


def listed(parts: Collection[str], most: int = MAX_LISTED) -> str:
    """Join the first `most` parts, and say how many more there are."""
    return listed_of(parts, len(parts), most)


def listed_of(parts: Iterable[str], count: int, most: int) -> str:
    """Do the same with parts that are made when they are asked for: of a thousand, a few are shown."""
    more = [f"{count - most} more"] if count > most else []
    return "; ".join([*islice(parts, most), *more])


def describe_trend(trend: float) -> str:
    """Describe a trend of log step times."""
    way = "slower" if trend > 0 else "faster"
    return f"its jobs get {way} by {change(abs(math.expm1(trend)))} from their first third to their last"
