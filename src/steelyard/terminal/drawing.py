"""What a terminal shows of data: colours, durations, sparklines, a grid of runs. Knows text, and no terminal itself.

A colour never says what a word or a character beside it does not.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Final

from steelyard.errors import printable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

BLOCKS: Final = "▁▂▃▄▅▆▇█"
ASCII_LEVELS: Final = "_.:-=+*#"
# Of the eight colours that every terminal has, as its user has set them to be readable there.
STYLES: Final = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "magenta": "35", "cyan": "36"}
UNITS: Final = (("d", 86_400.0), ("h", 3600.0), ("min", 60.0), ("s", 1.0))
LEAST_SPAN: Final = 0.1
"""Of a sparkline's highest value: what varies by less looks flat, else noise would fill the line."""
COMMON, OUTLIER = 0.95, 1.5
"""The share of values that a scale is for, and how far above them one must lie, as a first step does, to be cut."""
GAP: Final = "  "


@dataclass(frozen=True)
class Look:
    """What an output can show."""

    colour: bool = False
    blocks: bool = False
    """Unicode's block elements."""
    columns: int = 80
    rows: int = 24


def wants_colour(variables: Mapping[str, str], *, terminal: bool) -> bool:
    """Whether to colour: https://no-color.org and https://force-color.org, and no dumb terminal."""
    if variables.get("NO_COLOR"):
        return False
    if variables.get("FORCE_COLOR"):
        return True
    return terminal and moves_cursor(variables)


def moves_cursor(variables: Mapping[str, str]) -> bool:
    """Whether a terminal of this kind does more than print."""
    return variables.get("TERM", "dumb") not in ("", "dumb")


def shows_blocks(encoding: str | None, variables: Mapping[str, str]) -> bool:
    """Whether blocks can be written in this encoding, and the console has a glyph for them."""
    if variables.get("TERM") == "linux":
        return False
    try:
        BLOCKS.encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


# -- colours

# Spelled out: the contract that has the codes is slow to import, and this is imported by every verb.
STATUSES: Final = {
    "completed": "green",
    "not_converged": "yellow",
    "out_of_memory": "magenta",
    "time_limit": "red",
    "hung": "red",
    "failed": "red",
    "killed": "red",
    "node_failure": "red",
    "preempted": "red",
    "refused": "red",
    "cancelled": "red",
}
SEVERITIES: Final = {"error": "red", "warning": "yellow", "note": "cyan"}
VERDICTS: Final = {"pass": "green", "fail": "red", "cannot tell": "yellow"}
_CODES = "|".join(STATUSES)
# Each pattern marks with the group `word` what is coloured, and what has to stand beside it.
_RULES: Final = tuple(
    (re.compile(pattern, re.MULTILINE), styles)
    for pattern, styles in (
        (rf"SY\d{{3}}\s+[a-z0-9-]+\s+\((?P<word>{'|'.join(SEVERITIES)})\)", SEVERITIES),
        (rf"(?:^|[\s,;])\d[\d,]* (?P<word>{_CODES})\b", STATUSES),
        (rf"^(?:\[\d+/\d+\] )?[\w.-]+(?: \([^()\n]*\))?: (?P<word>{_CODES})\b", STATUSES),
        (rf"^(?P<word>{'|'.join(VERDICTS)}): ", VERDICTS),
    )
)


def paint(text: str, style: str, *, colour: bool) -> str:
    """The text in a colour, or as it is."""
    return f"\x1b[{STYLES[style]}m{text}\x1b[0m" if colour and text else text


def coloured(text: str) -> str:
    """Finished text with its severities, statuses and verdicts in colour.

    Done last, so that whatever lays text out counts only characters that are seen.
    """
    for pattern, styles in _RULES:
        text = pattern.sub(lambda found, styles=styles: _with_word(found, styles), text)  # type: ignore[misc]
    return text


def _with_word(found: re.Match[str], styles: Mapping[str, str]) -> str:
    whole, word = found.group(), found["word"]
    at = found.start("word") - found.start()
    return whole[:at] + paint(word, styles[word], colour=True) + whole[at + len(word) :]


# -- lengths


def width(text: str) -> int:
    """Columns that a text takes."""
    if text.isascii():
        return len(text)
    return sum(_columns(character) for character in text)


def _columns(character: str) -> int:
    if unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def fit(text: str, columns: int) -> str:
    """A text in one line of at most so many columns; what is left out is marked."""
    text = printable(text)
    if width(text) <= columns:
        return text
    mark = "..." if columns > 6 else ""
    taken, kept = len(mark), 0
    for character in text:
        taken += _columns(character)
        if taken > columns:
            break
        kept += 1
    return text[:kept] + mark


def duration(time_s: float, parts: int = 2) -> str:
    """A length of time as people say it, in at most so many units: 45 s, 3 min, 2 h 5 min."""
    if time_s < 59.5:
        return f"{time_s:.2g} s" if time_s < 9.95 else f"{time_s:.0f} s"
    at = next(i for i, (_, size_s) in enumerate(UNITS) if time_s >= size_s or i == len(UNITS) - 2)
    (unit, size_s), (lesser, lesser_s) = UNITS[at], UNITS[at + 1]
    if parts == 1:
        return f"{max(1, round(time_s / size_s))} {unit}"
    whole, rest = divmod(round(time_s / lesser_s), round(size_s / lesser_s))
    return f"{whole} {unit} {rest} {lesser}" if rest else f"{whole} {unit}"


# -- sparklines


@dataclass(frozen=True)
class Sparkline:
    """Values as a line of characters, and what its bottom and its top mean."""

    text: str
    low: float
    high: float
    cut: bool
    """Whether values lie above the top."""


def sparkline(values: Sequence[float], *, blocks: bool) -> Sparkline:
    """A character a value. Its scale begins at the lowest value, not at zero: it is to be said beside it."""
    ordered = sorted(values)
    low, highest, common = ordered[0], ordered[-1], ordered[int(COMMON * (len(ordered) - 1))]
    high = common if 0 < OUTLIER * common < highest else highest
    span = max(high - low, LEAST_SPAN * abs(high)) or 1.0
    levels = BLOCKS if blocks else ASCII_LEVELS
    places = (math.floor((value - low) / span * len(levels)) for value in values)
    text = "".join(levels[min(max(place, 0), len(levels) - 1)] for place in places)
    return Sparkline(text, low, high, cut=highest > high)


# -- the grid

# States of a run: name, character, colour. In the order in which they are counted.
MARKS: Final = (
    ("completed", "#", "green"),
    ("there already", "=", "green"),
    ("not converged", "~", "yellow"),
    ("out of memory", "M", "magenta"),
    ("failed", "x", "red"),
    ("running", ">", "cyan"),
    ("to collect", "+", "cyan"),
    ("queued", ".", "dim"),
    ("not tried", "-", "dim"),
    ("unknown", "?", "yellow"),
)
_CHARACTERS: Final = {name: (character, style) for name, character, style in MARKS}
# How records and schedulers call it; every status that is not here is a failure.
_STATES: Final = {
    "not_converged": "not converged",
    "out_of_memory": "out of memory",
    "ended": "to collect",
    "planned": "queued",
    **{name: name for name in _CHARACTERS},
}


def state_of(code: str) -> str:
    """Which of MARKS a status, or the state of a run without one, is."""
    return _STATES.get(code, "failed")


def grid(cells: Mapping[str, Sequence[str]], look: Look, height: int) -> list[str]:
    """A character for each run, and how many there are of each, in at most `height` lines where that can be.

    `cells`: the states of its runs by what a cell is called. Many cells go without their names, one behind the other;
    where even that is too high the counts alone are left.
    """
    legend = _legend(Counter(state for states in cells.values() for state in states), look)
    room = height - len(legend)
    return [*(_named(cells, look, room) or _packed(cells, look, room)), *legend]


def _named(cells: Mapping[str, Sequence[str]], look: Look, room: int) -> list[str]:
    most = max((len(states) for states in cells.values()), default=0)
    space = look.columns - 1 - len(GAP) - most
    if not 0 < len(cells) <= room or space < min(8, max(map(width, cells))):
        return []
    names = {cell: fit(cell, space) for cell in cells}
    wide = max(map(width, names.values()))
    return [
        name + " " * (wide - width(name)) + GAP + _row([_CHARACTERS[state] for state in cells[cell]], look)
        for cell, name in names.items()
    ]


def _packed(cells: Mapping[str, Sequence[str]], look: Look, room: int) -> list[str]:
    each, columns = list(cells.values()), look.columns - 1
    apart = any(len(states) > 1 for states in each)
    if sum(len(states) + apart for states in each) > room * columns:
        return []
    rows: list[list[tuple[str, str]]] = [[]]
    for states in each:
        marks = [_CHARACTERS[state] for state in states]
        if rows[-1] and len(rows[-1]) + apart + len(marks) > columns:
            rows.append([])
        if apart and rows[-1]:
            rows[-1].append((" ", "dim"))
        rows[-1] += marks
        while len(rows[-1]) > columns:
            rows.append(rows[-1][columns:])
            del rows[-2][columns:]
    return [_row(row, look) for row in rows] if len(rows) <= room else []


def _row(marks: Sequence[tuple[str, str]], look: Look) -> str:
    """Neighbours of one colour are coloured together."""
    runs = ((style, "".join(character for character, _ in same)) for style, same in groupby(marks, key=lambda m: m[1]))
    return "".join(paint(text, style, colour=look.colour) for style, text in runs)


def _legend(counts: Counter[str], look: Look) -> list[str]:
    """What the characters mean, with how many runs are so, in as many lines as it takes."""
    lines, used = [""], 0
    for name, character, style in MARKS:
        if counts[name]:
            text = fit(f"{character} {counts[name]:,} {name}", look.columns - 1)
            if used and used + len(GAP) + len(text) > look.columns - 1:
                lines.append("")
                used = 0
            lines[-1] += (GAP if used else "") + paint(text, style, colour=look.colour)
            used += (len(GAP) if used else 0) + len(text)
    return lines if counts else []
