"""What was understood of a table as printed: each heading and its meaning, and what was left out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from steelyard.terminal.text import many, table, wrapped

if TYPE_CHECKING:
    from steelyard.audit.subject import Audit
    from steelyard.terminal.shapes.checks import HeadingData, NotReadData

SHOWN = 10
"""Cells that could not be read, of which each is named."""


def reading_lines(entry: Audit) -> list[str]:
    """Format the meaning of each heading, then the cells that could not be read; empty for other subjects."""
    reading = entry.reading
    if reading is None:
        return []
    # A page repeats its headings in many tables.
    tables: dict[tuple[str, str], list[int]] = {}
    for meaning in reading.meanings:
        text = f"{meaning.meaning} ({meaning.note})" if meaning.note else meaning.meaning
        tables.setdefault((meaning.heading, text), []).append(meaning.table)
    several = any(meaning.table for meaning in reading.meanings)
    rows = [
        [heading, text, *([", ".join(map(str, numbers))] if several else [])]
        for (heading, text), numbers in tables.items()
    ]
    lines = [table(["heading", "read as", *(["in table"] if several else [])], rows)]
    unknown = len({meaning.heading for meaning in reading.meanings if not meaning.known})
    if unknown:
        text = f"{many(unknown, 'heading')} not understood and left out; say what it means with --map"
        lines += ["", *wrapped(text + ' "Heading=metric[unit]", or leave it out with "Heading=ignore".')]
    if reading.refused:
        lines += [
            "",
            f"Not read, so that no wrong value is used ({many(len(reading.refused) + reading.more_refused, 'cell')}):",
        ]
        for problem in reading.refused[:SHOWN]:
            lines += wrapped(f"{problem.field}: {problem.problem}", "  ")
        if len(reading.refused) + reading.more_refused > SHOWN:
            lines.append(f"  ... and {len(reading.refused) + reading.more_refused - SHOWN:,} more")
    if reading.skipped:
        lines += ["", *wrapped(f"Without figures, and left out: {'; '.join(reading.skipped[:SHOWN])}.")]
    return [*lines, ""]


def headings_object(entry: Audit) -> list[HeadingData]:
    """Return the meaning of each heading as plain data; empty for other subjects."""
    meanings = entry.reading.meanings if entry.reading is not None else ()
    return [
        {"table": one.table, "heading": one.heading, "meaning": one.meaning, "known": one.known} for one in meanings
    ]


def not_read_object(entry: Audit) -> list[NotReadData]:
    """Return the cells that were not read as plain data."""
    refused = entry.reading.refused if entry.reading is not None else ()
    return [{"place": problem.field, "problem": problem.problem} for problem in refused]
