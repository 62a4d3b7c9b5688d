"""From the columns of a table to rows: every cell read as printed, or refused by name."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from steelyard.audit.printed.headings import machine_of, precision_of, understand
from steelyard.audit.printed.spellings import DEVICE_WORDS
from steelyard.audit.printed.values import (
    Unit,
    UnreadableError,
    comma_is_decimal,
    failure,
    is_empty,
    is_number,
    read_number,
    to_amount,
)
from steelyard.audit.table import FORMULA, MAX_ROWS, MAY_BE_ZERO, NUMBERS, WHOLE
from steelyard.errors import InputError, Problem
from steelyard.rules.table.relations import metric_kind
from steelyard.rules.table.row import Amount, Grid, Row
from steelyard.rules.table.units import unit_of

if TYPE_CHECKING:
    from steelyard.audit.printed.columns import PrintedColumn
    from steelyard.audit.printed.grid import Found
    from steelyard.audit.printed.layout import TableLayout
    from steelyard.rules.table.row import Setting

MAX_SETTING = 200
MAX_REFUSED = 1000
MAX_SHOWN = 40
_COUNTED = re.compile(r"(?P<count>[0-9]{1,6})\s?[x×]\s?(?P<name>[A-Za-z].{0,100})")
_STATED = re.compile(
    r"(?:^|[,;.]\s+|\n)\s*(?P<key>[A-Za-z#][A-Za-z #/-]{1,30}?)\s?[:=]\s?(?P<value>[^,;:\n]{1,80})(?=$|[,;\n])"
)
_LISTED = re.compile(r"\s+and\s+|\s*/\s*|,\s+|\s*:\s*")
_HALF = {"mixed", "fp16", "bf16"}
_NAME_MARKS = re.compile(r"(?:\s?(?:\^\{[^{}]{0,12}\}|[*†‡§¶]))+$")
"""Footnote marks after a name."""
_PLAIN_NAMES = {"mixed": "mixed precision"}
_UNNAMED = ("", "method", "configuration", "config", "name", "setup")

Group = tuple[tuple[str, str], ...]
Where = dict[str, tuple[int, int, int]]


@dataclass
class ReadRows:
    """What was read from all tables of a file."""

    name: str
    several: bool
    rows: list[Row] = field(default_factory=list)
    grids: list[Grid] = field(default_factory=list)
    refused: list[Problem] = field(default_factory=list)
    more: int = 0
    """How many more cells were refused than are listed."""

    def refuse(self, place: str, problem: str, valid: str) -> None:
        """Note a cell that cannot be read."""
        if len(self.refused) < MAX_REFUSED:
            self.refused.append(Problem(place, problem, valid))
        else:
            self.more += 1


class BadSettingError(ValueError):
    """A setting that cannot be read; without it, the figures beside it would pass for another configuration's."""

    def __init__(self, heading: str, problem: str, valid: str) -> None:
        super().__init__(problem)
        self.heading, self.problem, self.valid = heading, problem, valid


def read_rows(layout: TableLayout, columns: list[PrintedColumn], entry: Found, book: ReadRows) -> None:
    """Add one row per line of cells and group of columns."""
    reader = _RowReader(layout, columns, entry, book)
    for line in range(len(layout.cells)):
        reader.read_line(line)


class _RowReader:
    """Read the lines of one table, in order: a line may divide the table, or leave out what the line above says."""

    def __init__(self, layout: TableLayout, columns: list[PrintedColumn], entry: Found, book: ReadRows) -> None:
        self.layout, self.book = layout, book
        self.settings = [column for column in columns if column.setting]
        self.figures = [column for column in columns if column.metric]
        _drop_unreadable(self.figures, layout)
        self.figures = [column for column in self.figures if column.metric]
        self.groups: list[Group] = list(dict.fromkeys(column.group for column in self.figures))
        self.comma = _find_comma(layout, self.figures)
        self.shared = caption_settings(layout.grid.caption)
        self.table = str(entry.number + 1) if book.several else ""
        self.grid = len(book.grids)
        self.section: dict[str, Setting] = {}
        self.above: dict[int, str] = {}

    def read_line(self, line: int) -> None:
        """Add the rows of one line of cells."""
        cells, place = self.layout.cells[line], self.layout.places[line]
        if label := _section_label(cells, turned=self.layout.turned):
            self.section, self.above = _label_settings(label), {}
            return
        if cells == self.layout.headings:
            return
        filled = _fill_down(cells, {column.index for column in self.settings}, self.above)
        try:
            stated = [self._read_settings(filled, group, line) for group in self.groups]
        except BadSettingError as error:
            if any(not is_empty(cells[column.index]) for column in self.figures):
                self.book.refuse(f"{place}, {error.heading}", error.problem, error.valid)
            return
        for group, (settings, where) in zip(self.groups, stated, strict=True):
            self._add_row(line, group, {**self.shared, **self.section, **settings, **dict(group)}, where)

    def _add_row(self, line: int, group: Group, settings: dict[str, Setting], where: Where) -> None:
        cells, place = self.layout.cells[line], self.layout.places[line]
        made: dict[str, Amount] = {}
        bases: dict[str, str] = {}
        notes: list[str] = []
        status = "completed"
        for column in self.figures:
            if column.group != group:
                continue
            amount, failed = self._read_figure(column, cells[column.index], place)
            status = failed or status
            if amount is None:
                continue
            made[column.metric] = amount
            if column.heading.base:
                bases[column.metric] = column.heading.base
            self._note_place(where, column.metric, line, column.index)
            if "±" in cells[column.index] or "+/-" in cells[column.index]:
                notes.append(f"{column.metric} printed as {cells[column.index]}")
        if not made and status == "completed":
            return
        if len(self.book.rows) >= MAX_ROWS:
            raise InputError(f"{self.book.name} has more than {MAX_ROWS:,} rows", next_step="paste a part of it")
        words = ", ".join(in_words(value) for _, value in group)
        place = f"{place}, {words}" if words else place
        note = "; ".join(notes)
        self.book.rows.append(
            Row(place, settings, made, self.table, note=note, status=status, cells=where, bases=bases)
        )

    def _note_place(self, where: Where, name: str, line: int, column: int) -> None:
        position = self.layout.position(line, column)
        if position is not None:
            where[name] = (self.grid, *position)

    def _read_settings(self, cells: tuple[str, ...], group: Group, line: int) -> tuple[dict[str, Setting], Where]:
        settings: dict[str, Setting] = {}
        where: Where = {}
        options: list[str] = []
        for column in self.settings:
            text = cells[column.index]
            if (column.group and not set(column.group) <= set(group)) or is_empty(text):
                continue
            name = column.heading.text
            text = _own_value(text, column.heading.listed, group)
            if text[:1] in FORMULA or len(text) > MAX_SETTING:
                raise BadSettingError(name, f'"{text[:MAX_SHOWN]}" is a formula or too long', "a name or a number")
            if column.setting == "options":
                options.append(text if name.lower() in _UNNAMED else f"{name} {text}")
                continue
            try:
                stated = _read_machines(column.setting, text) or {
                    column.setting: read_setting(column.setting, text, comma=self.comma)
                }
            except UnreadableError as error:
                raise BadSettingError(name, f'"{text[:MAX_SHOWN]}": {error}', "a whole number") from None
            for key, value in stated.items():
                # A column of this group counts before one for all groups.
                if column.group or key not in settings:
                    settings[key] = value
                    self._note_place(where, key, line, column.index)
        if options:
            settings["options"] = "; ".join(options)[:MAX_SETTING]
        return settings, where

    def _read_figure(self, column: PrintedColumn, text: str, place: str) -> tuple[Amount | None, str | None]:
        """Return the figure of a cell and a status such as out_of_memory; note a cell that cannot be read."""
        if is_empty(text):
            return None, None
        if (failed := failure(text)) is not None:
            return None, failed
        try:
            read = read_number(text, decimal_comma=self.comma)
            known = unit_of(column.unit.name) if column.unit else None
            kind = metric_kind(column.metric) or (known[0] if known else "ratio")
            if read.unit is not None and read.unit.scope and not column.metric.endswith(read.unit.scope):
                raise UnreadableError(f"per {read.unit.scope}, unlike its heading")
            unit = column.unit
            if unit is None and kind in ("ratio", "count"):
                unit = Unit("parameters" if kind == "count" else "")
            return to_amount(read, unit, kind), None
        except UnreadableError as error:
            heading = column.heading.text
            words = ", ".join(in_words(value) for _, value in column.group)
            group = f" ({words})" if words and words.lower() not in heading.lower() else ""
            self.book.refuse(f"{place}, {heading}{group}", f'"{text[:MAX_SHOWN]}": {error}', "one number, as printed")
            return None, None


def in_words(value: str) -> str:
    """Return the value of a group as a reader knows it: FP32, mixed precision."""
    return _PLAIN_NAMES.get(value, value.upper() if re.fullmatch(r"[a-z]{1,4}[0-9]{1,2}", value) else value)


def _find_comma(layout: TableLayout, figures: list[PrintedColumn]) -> bool | None:
    """Return whether commas are decimal points in this table; None if it uses both."""
    cells = [row[column.index] for row in layout.cells for column in figures]
    with_comma = [cell for cell in cells if "," in cell]
    return comma_is_decimal([*with_comma, *(cell for cell in cells if "." in cell)]) if with_comma else False


def _own_value(text: str, listed: tuple[str, ...], group: Group) -> str:
    """Return the value for a group where the text has one for each precision that its heading lists."""
    values = _LISTED.split(text) if listed else []
    if len(values) != len(listed) or len(values) < 2:
        return text
    own = dict(group).get("precision", "")
    # "Mixed precision" in one heading is FP16 or BF16 in another.
    alike = [name for name in listed if name == own] or [name for name in listed if {name, own} <= _HALF]
    return values[listed.index(alike[0])] if len(alike) == 1 else text


def _read_machines(key: str, text: str) -> dict[str, Setting]:
    """Return the devices and the accelerator of a cell such as `8x A100`; empty if it is not one."""
    match = _COUNTED.fullmatch(text) if key in ("accelerator", "devices", "system") else None
    if match is None:
        return {}
    name = match["name"]
    named: dict[str, Setting] = {} if name.lower() in DEVICE_WORDS else {"accelerator": name}
    return {"devices": int(match["count"]), **named}


def _drop_unreadable(figures: list[PrintedColumn], layout: TableLayout) -> None:
    """Leave out a column without a single number, such as one of links."""
    for column in figures:
        cells = [row[column.index] for row in layout.cells if not is_empty(row[column.index])]
        if cells and not any(is_number(cell) or failure(cell) for cell in cells[:500]):
            column.reason = f'its cells are not numbers, such as "{cells[0][:MAX_SHOWN]}"'
            column.metric = ""


def _section_label(cells: tuple[str, ...], *, turned: bool) -> str:
    """Return the text of a line that only divides the table: one cell, or one cell over all columns."""
    stated = {cell for cell in cells if cell}
    if len(stated) != 1 or len(cells) < 3 or turned:
        return ""
    label = next(iter(stated))
    return label if (cells[0] == label or cells.count(label) == len(cells)) and not is_number(label) else ""


def _label_settings(label: str) -> dict[str, Setting]:
    if machine := machine_of(label):
        return {machine: label}
    if precision := precision_of(label) if len(label) < 20 else "":
        return {"precision": precision}
    return caption_settings(label) or {"options": label[:MAX_SETTING]}


def caption_settings(caption: str) -> dict[str, Setting]:
    """Return what a caption plainly states as `Key: value`, if the key is the name of a setting."""
    settings: dict[str, Setting] = {}
    for match in _STATED.finditer(caption):
        heading = understand(match["key"])
        value = match["value"].strip()
        if (
            heading.setting
            and not heading.group
            and heading.setting not in ("any_batch", "options")
            and value[:1] not in FORMULA
        ):
            try:
                settings.setdefault(heading.setting, read_setting(heading.setting, value, comma=False))
            except UnreadableError:
                continue
    return settings


def _fill_down(cells: tuple[str, ...], settings: set[int], above: dict[int, str]) -> tuple[str, ...]:
    """Repeat the text above in empty cells at the beginning of a line, as tables leave out a repeated name."""
    first = next((index for index, cell in enumerate(cells) if cell), len(cells))
    if first == 0:
        above.clear()
    filled = tuple(
        above.get(index, cell) if index < first and index in settings else cell for index, cell in enumerate(cells)
    )
    above.update({index: cell for index, cell in enumerate(cells) if cell and index in settings})
    return filled


def read_setting(key: str, text: str, *, comma: bool | None) -> Setting:
    """Read the value of a setting; raise UnreadableError if it is not one plain number where one is needed."""
    if key == "precision":
        return precision_of(text) or _NAME_MARKS.sub("", text).lower()
    if key not in NUMBERS:
        return _NAME_MARKS.sub("", text).strip() or text
    read = read_number(text, decimal_comma=comma)
    if read.prefix:
        raise UnreadableError(f"{read.prefix} may mean 1000 or 1024")
    if read.unit is not None and read.unit.name not in ("device", "node"):
        raise UnreadableError(f"a number without {read.unit.name}")
    if read.text.startswith("-") or read.spread:
        raise UnreadableError("not a count")
    if key not in WHOLE:
        return read.value
    if read.value != int(read.value) or read.value < (0 if key in MAY_BE_ZERO else 1) or read.value > 1e18:
        raise UnreadableError("not a whole number")
    return int(read.value)
