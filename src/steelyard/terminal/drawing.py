"""Durations, sparklines and the grid of runs as text."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from steelyard.errors import printable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.text import Text

BLOCKS: Final = "▁▂▃▄▅▆▇█"
ASCII_LEVELS: Final = "_.:-=+*#"
UNITS: Final = (("d", 86_400.0), ("h", 3600.0), ("min", 60.0), ("s", 1.0))
LEAST_SPAN: Final = 0.1
"""Share of a sparkline's highest value: less variation than this looks flat, so that noise does not fill the line."""
COMMON, OUTLIER = 0.95, 1.5
"""A sparkline's scale covers this share of its values; those this many times above are cut, such as first steps."""
GAP: Final = "  "


def shows_blocks(encoding: str | None, variables: Mapping[str, str]) -> bool:
    """Whether this encoding has the block characters and the terminal's font shows them."""
    if variables.get("TERM") == "linux":
        return False
    try:
        BLOCKS.encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def fit(text: str, columns: int) -> str:
    """Cut a text to one line of at most `columns` columns; "..." marks what is cut."""
    from rich.cells import cell_len, set_cell_size

    text = printable(text)
    if cell_len(text) <= columns:
        return text
    mark = "..." if columns > 6 else ""
    return set_cell_size(text, columns - len(mark)).rstrip() + mark


def duration(time_s: float, parts: int = 2) -> str:
    """Format a duration in one or two units: 45 s, 3 min, 2 h 5 min."""
    if time_s < 59.5:
        return f"{time_s:.2g} s" if time_s < 9.95 else f"{time_s:.0f} s"
    at = next(i for i, (_, size_s) in enumerate(UNITS) if time_s >= size_s or i == len(UNITS) - 2)
    (unit, size_s), (lesser, lesser_s) = UNITS[at], UNITS[at + 1]
    if parts == 1:
        return f"{max(1, round(time_s / size_s))} {unit}"
    whole, rest = divmod(round(time_s / lesser_s), round(size_s / lesser_s))
    return f"{whole} {unit} {rest} {lesser}" if rest else f"{whole} {unit}"


def rounded(time_s: float) -> str:
    """Format an estimated duration: whole seconds, then one unit, two from an hour on."""
    return duration(max(1.0, round(time_s)), parts=1 if time_s < 3600 else 2)


# -- sparklines


@dataclass(frozen=True)
class Sparkline:
    """Values as a line of characters, with the values of its bottom and top."""

    text: str
    low: float
    high: float
    cut: bool
    """Whether some values are above the top."""


def sparkline(values: Sequence[float], *, blocks: bool) -> Sparkline:
    """Draw one character per value. The scale begins at the lowest value, not at zero: print it beside the line."""
    ordered = sorted(values)
    low, highest, common = ordered[0], ordered[-1], ordered[int(COMMON * (len(ordered) - 1))]
    high = common if 0 < OUTLIER * common < highest else highest
    span = max(high - low, LEAST_SPAN * abs(high)) or 1.0
    levels = BLOCKS if blocks else ASCII_LEVELS
    places = (math.floor((value - low) / span * len(levels)) for value in values)
    text = "".join(levels[min(max(place, 0), len(levels) - 1)] for place in places)
    return Sparkline(text, low, high, cut=highest > high)


# -- the grid

# States of a run: character and colour, in the order in which they are counted.
MARKS: Final = {
    "completed": ("#", "green"),
    "already done": ("=", "green"),
    "not converged": ("~", "yellow"),
    "out of memory": ("M", "magenta"),
    "failed": ("x", "red"),
    "running": (">", "cyan"),
    "to collect": ("+", "cyan"),
    "queued": (".", "dim"),
    "not tried": ("-", "dim"),
    "unknown": ("?", "yellow"),
}
# What records and schedulers call them; every other status is a failure.
_STATES: Final = {
    "not_converged": "not converged",
    "out_of_memory": "out of memory",
    "ended": "to collect",
    "planned": "queued",
    "not polled": "unknown",
    **{name: name for name in MARKS},
}


def state_of(code: str) -> str:
    """Return the entry of MARKS for a status or for the state of a run that has not ended."""
    return _STATES.get(code, "failed")


def grid(cells: Mapping[str, Sequence[str]], columns: int, height: int) -> list[Text]:
    """Draw one character per run, and the number of runs in each state, in at most `height` lines if possible.

    `cells`: the states of a configuration's runs by its label. If there is no room for the labels, the characters
    follow each other without them; if there is no room for the characters either, only the counts are drawn.
    """
    legend = _legend(Counter(state for states in cells.values() for state in states), columns - 1)
    room = height - len(legend)
    return [*(_named(cells, columns - 1, room) or _packed(cells, columns - 1, room)), *legend]


def _named(cells: Mapping[str, Sequence[str]], columns: int, room: int) -> list[Text]:
    from rich.cells import cell_len, set_cell_size
    from rich.text import Text

    space = columns - len(GAP) - max(map(len, cells.values()), default=0)
    if not 0 < len(cells) <= room or space < min(8, max(map(cell_len, cells))):
        return []
    names = [fit(cell, space) for cell in cells]
    wide = max(map(cell_len, names))
    return [
        Text.assemble(set_cell_size(name, wide), GAP, *(MARKS[state] for state in states))
        for name, states in zip(names, cells.values(), strict=True)
    ]


def _packed(cells: Mapping[str, Sequence[str]], columns: int, room: int) -> list[Text]:
    """Rows of as many characters as fit; a configuration begins a new row if it does not fit into the rest of one."""
    from rich.text import Text

    apart = any(len(states) > 1 for states in cells.values())
    if sum(len(states) + apart for states in cells.values()) > room * columns:
        return []
    rows = [Text()]
    for states in cells.values():
        marks = Text.assemble(*(MARKS[state] for state in states))
        if rows[-1] and len(rows[-1]) + apart + len(marks) > columns:
            rows.append(Text())
        if apart and rows[-1]:
            rows[-1].append(" ")
        rows[-1:] = rows[-1].append_text(marks).divide(range(columns, len(rows[-1]), columns))
    return rows if len(rows) <= room else []


def _legend(counts: Counter[str], columns: int) -> list[Text]:
    """What the characters mean, and how many runs are in each state."""
    from rich.text import Text

    lines = [Text()]
    for name, (character, style) in MARKS.items():
        if counts[name]:
            text = Text(fit(f"{character} {counts[name]:,} {name}", columns), style)
            if lines[-1] and len(lines[-1]) + len(GAP) + len(text) > columns:
                lines.append(Text())
            lines[-1].append(GAP if lines[-1] else "").append_text(text)
    return lines if counts else []
