"""What differs between selections: their settings, devices and software as recorded, and what that means for a ratio.

The rules on comparability know what each setting affects, which differences follow from the factor under study, and
which make a ratio invalid.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from steelyard.report.page import Cell, Column, Table
from steelyard.rules.table.row import Pair
from steelyard.rules.table.settings import (
    SETTINGS,
    Difference,
    alike,
    blocks,
    keys_named,
    meant_to_differ,
    shown,
    stated,
)
from steelyard.terminal.text import shortened

if TYPE_CHECKING:
    from collections.abc import Sequence

    from steelyard.analysis.compare import Comparison
    from steelyard.report.study.subject import Subject

FACTOR, FOLLOWS, PREVENTS, EXPLAINS, UNKNOWN, RANGE, HOW = (
    "the factor",
    "follows from the factor",
    "prevents a ratio",
    "may explain part of the difference",
    "recorded on one side only",
    "other values measured",
    "how it was measured",
)
# Most important first.
ORDER = (PREVENTS, EXPLAINS, FACTOR, FOLLOWS, UNKNOWN, RANGE, HOW)
MEASURED_BY = ("node", "timing")
# Software and surroundings that only one selection has, such as a driver, are told as well.
TOLD_IF_MISSING = ("software", "environment")
SHOWN_VALUES = 4
LONGEST = 60


def differing_table(subjects: Sequence[Subject], comparisons: Sequence[Comparison], factor: str) -> Table | None:
    """Return one row for each setting or fact of the environment whose values differ; None if none does."""
    rows = []
    for key, role in SETTINGS.items():
        if role == "evidence" and key not in MEASURED_BY:
            continue
        each = [
            list(dict.fromkeys(shown(value) for row in entry.rows.values() if (value := stated(row, key)) is not None))
            for entry in subjects
        ]
        needed = any if role in TOLD_IF_MISSING else all
        if len({frozenset(values) for values in each}) < 2 or not needed(each):
            continue
        word = HOW if role == "evidence" else _meaning(key, comparisons, factor) if all(each) else UNKNOWN
        rows += [(word, name, role, values) for name, values in _parts(key, each)]
    rows.sort(key=lambda row: ORDER.index(row[0]))
    columns = (
        Column("what", align="left"),
        Column("kind", align="left"),
        *(Column(entry.text, align="left") for entry in subjects),
        Column("for the comparison", align="left"),
    )
    cells = tuple(
        (Cell(name, name), Cell(role, role), *(Cell(value, value) for value in values), Cell(word, word))
        for word, name, role, values in rows
    )
    return Table("differs", "What differs", columns, cells) if cells else None


def differing_answer(table: Table | None, factor: str) -> str:
    """Say what differs beside the factor, the most important first."""
    words = {word: [row[0].text for row in table.rows if row[-1].text == word] for word in ORDER} if table else {}
    for word, verb in ((PREVENTS, "prevents a ratio"), (EXPLAINS, "may explain part of the difference")):
        if names := words.get(word):
            return f"Beside the factor ({factor}), this {verb}: {shortened(names).replace('; ', ', ')}."
    return f"Nothing that is recorded differs beside the factor ({factor}) and what follows from it."


def _meaning(key: str, comparisons: Sequence[Comparison], factor: str) -> str:
    """Return what a difference means for the ratio: the worst of all pairs."""
    if key in keys_named(factor):
        return FACTOR
    meanings = {RANGE}
    for one in comparisons:
        pair = Pair(one.a, one.b, one.factor, one.metric, frozenset(one.chosen))
        a, b = stated(one.a, key), stated(one.b, key)
        if a is None or b is None or alike(key, a, b) != "different":
            continue
        if key in meant_to_differ(pair):
            meanings.add(FOLLOWS)
        else:
            meanings.add(PREVENTS if blocks(pair, Difference(key, SETTINGS[key], a, b)) else EXPLAINS)
    return min(meanings, key=ORDER.index)


def _parts(key: str, each: Sequence[list[str]]) -> list[tuple[str, list[str]]]:
    """Return the texts of a setting; of a list of variables or versions only those that differ, one row each."""
    if key not in ("variables", "build") or any(len(values) > 1 for values in each):
        return [(key.replace("_", " "), [_text(values) for values in each])]
    split = [_entries(key, values[0]) if values else {} for values in each]
    names = dict.fromkeys(name for entries in split for name in entries)
    parts = [
        (name, [entries.get(name, "not set" if key == "variables" else "-") for entries in split]) for name in names
    ]
    return [(name, [_text([value]) for value in values]) for name, values in parts if len(set(values)) > 1]


def _entries(key: str, text: str) -> dict[str, str]:
    """Split what `analysis.rows` joined."""
    if key == "variables":
        return {f"${name}": str(value) for name, value in json.loads(text).items()}
    pairs = (part.partition(" ") for part in text.split("; "))
    return {name: value for name, _, value in pairs}


def _text(values: Sequence[str]) -> str:
    cut = [value if len(value) <= LONGEST else f"{value[: LONGEST - 3]}..." for value in values]
    return shortened(cut, SHOWN_VALUES).replace("; ", ", ") or "not recorded"
