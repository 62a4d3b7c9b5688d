"""From a grid of text to rows: what each column means, and every cell read as printed or refused by name."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from steelyard.audit.printed.columns import PrintedColumn, settle, understand_columns
from steelyard.audit.printed.formats import find_grids
from steelyard.audit.printed.headings import Heading
from steelyard.audit.printed.layout import TableLayout, folded, join_headings, lay_out
from steelyard.audit.printed.rows import ReadRows, in_words, read_rows
from steelyard.audit.printed.values import Unit
from steelyard.errors import InputError, Problem, nearest
from steelyard.rules.table.relations import KINDS, metric_kind
from steelyard.rules.table.row import Platform, RowTable
from steelyard.rules.table.settings import SETTINGS
from steelyard.rules.table.units import known_units, unit_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from steelyard.audit.printed.grid import Found

MAX_SHOWN = 40
_MAP = re.compile(r"(?P<heading>.+?)\s*=\s*(?P<name>[a-z][a-z0-9_]*)\s*(?:\[(?P<unit>[^\[\]]*)\])?\s*")
METRICS = (*KINDS, "latency_mean", "latency_p50", "latency_p99", "accuracy", "loss")


@dataclass(frozen=True)
class Meaning:
    """What one heading was taken for."""

    heading: str
    meaning: str
    """The metric with its unit and group, the setting, or why the column was left out."""
    known: bool
    note: str = ""
    """What was assumed, such as a unit that is not printed."""
    table: int = 0
    """The number of the table in the file, from 1; 0 if there is only one."""


@dataclass(frozen=True)
class TableReading:
    """A table as it was understood, and what was not."""

    table: RowTable
    meanings: tuple[Meaning, ...] = ()
    refused: tuple[Problem, ...] = ()
    """Cells that could not be read; their figures are missing in the rows."""
    more_refused: int = 0
    skipped: tuple[str, ...] = ()
    """Tables of the file without a figure that was understood."""


def read_printed(text: str, name: str, maps: Iterable[str] = (), platforms: tuple[Platform, ...] = ()) -> TableReading:
    """Read every table with figures in a text; raise InputError if there is none."""
    chosen = _parse_maps(maps)
    grids = find_grids(text, name)
    if not grids:
        raise InputError(
            f"{name} has no table", next_step="paste a Markdown, CSV, LaTeX or HTML table with a line of headings"
        )
    book = ReadRows(name, len(grids) > 1)
    used: set[str] = set()
    meanings: list[Meaning] = []
    skipped: list[str] = []
    for entry in grids:
        layout = lay_out(entry, chosen)
        columns = understand_columns(layout, chosen, used)
        settle(columns, layout)
        before = len(book.rows)
        if any(column.metric for column in columns):
            read_rows(layout, columns, entry, book)
        if len(book.rows) > before:
            book.grids.append(layout.grid)
            meanings += _tell(columns, entry.number + 1 if book.several else 0)
        else:
            skipped.append(_title(entry, layout))
    _check_maps(chosen, used, grids)
    if not book.rows:
        raise _nothing_read(book, grids)
    table = RowTable(name, tuple(book.rows), platforms, tuple(book.grids))
    return TableReading(table, tuple(meanings), tuple(book.refused), book.more, tuple(skipped))


def _nothing_read(book: ReadRows, grids: list[Found]) -> InputError:
    names = [text for entry in grids for text in join_headings(entry.grid.headings) if text]
    shown = ", ".join(f'"{text[:MAX_SHOWN]}"' for text in names[:8]) + (", ..." if len(names) > 8 else "")
    problems = book.refused[:3]
    return InputError(
        f"{book.name} has no figures that steelyard understands; its headings are {shown or 'empty'}",
        problems=tuple(problems),
        next_step='say what a heading means, such as --map "Speed=throughput[images/s]"; see docs/tables.md',
    )


def _parse_maps(maps: Iterable[str]) -> dict[str, Heading]:
    """Parse `Heading=metric[unit]`, `Heading=setting` and `Heading=ignore`."""
    chosen: dict[str, Heading] = {}
    for text in maps:
        match = _MAP.fullmatch(text)
        if match is None:
            raise InputError(
                f'--map "{text}" is not Heading=meaning', next_step='such as --map "Speed=throughput[images/s]"'
            )
        chosen[folded(match["heading"])] = _mapped(text, match["heading"], match["name"], match["unit"])
    return chosen


def _mapped(text: str, heading: str, name: str, unit: str | None) -> Heading:
    known, kind = unit_of(unit) if unit is not None else None, metric_kind(name)
    if unit is not None and known is None:
        raise InputError(f'--map "{text}": unknown unit "{unit}"', next_step=f"known units: {known_units()}")
    if known is not None and kind is not None and known[0] != kind:
        raise InputError(f"--map {text}: {name} cannot be in {unit}")
    if name == "ignore":
        return Heading(heading, reason="by --map")
    if name in SETTINGS:
        return Heading(heading, setting=name)
    if kind is None and unit is None and (near := nearest(name, [*METRICS, *SETTINGS])) and near != name:
        raise InputError(f'--map "{text}": unknown meaning "{name}"', next_step=f"did you mean {near}?")
    return Heading(heading, metric=name, unit=Unit(unit) if unit is not None else None)


def _check_maps(chosen: Mapping[str, Heading], used: set[str], grids: list[Found]) -> None:
    for key, heading in chosen.items():
        if key not in used:
            known = [text for entry in grids for text in join_headings(entry.grid.headings)]
            near = nearest(heading.text[:MAX_SHOWN], known)
            step = f'did you mean "{near}"?' if near else f"the headings are {', '.join(known[:8])}"
            raise InputError(f'--map: no heading "{heading.text}"', next_step=step)


def _title(entry: Found, layout: TableLayout) -> str:
    heads = ", ".join(text for text in layout.headings if text)
    return f"table {entry.number + 1} ({heads[:60]}{'...' if len(heads) > 60 else ''})"


def _tell(columns: list[PrintedColumn], number: int) -> list[Meaning]:
    """Say what each heading was taken for."""
    told = []
    for column in columns:
        heading = column.heading.text or f"(column {column.index + 1}, no heading)"
        groups = [in_words(value) for _, value in column.group]
        if column.metric:
            over = f" over {in_words(column.heading.base)}" if column.heading.base else ""
            parts = [f"{column.metric}{over}", column.unit.name if column.unit is not None else "", *groups]
            note = column.note or (column.unit.note if column.unit else "")
            told.append(Meaning(heading, ", ".join(part for part in parts if part), True, note, number))
        elif column.setting:
            told.append(Meaning(heading, ", ".join([f"setting {column.setting}", *groups]), True, column.note, number))
        elif column.heading.text:
            told.append(Meaning(heading, f"left out: {column.reason}", False, "", number))
    return told
