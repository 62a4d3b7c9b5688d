"""Parse published tables and machines: CSV with one line per figure, or TOML with one entry per row.

The format is described in docs/tables.md. An empty cell is unknown: not zero, and not equal to anything.
"""

from __future__ import annotations

import csv
import io
import math
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from steelyard.errors import SHOWN_PROBLEMS, InputError, Problem, nearest
from steelyard.inputs.synonyms import setting_for
from steelyard.inputs.validate import parse_toml, read_bounded
from steelyard.rules.table.relations import metric_kind
from steelyard.rules.table.row import Amount, Platform, Row, RowTable
from steelyard.rules.table.settings import SETTINGS
from steelyard.rules.table.units import CLOCKS, clock, known_units, printed, unit_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from steelyard.rules.table.row import Setting

MAX_TABLE_BYTES = 1 << 22
MAX_TOML_BYTES = 1 << 20
"""Lower than for CSV, because parsing TOML is slower."""
MAX_LINES = 200_000
MAX_ROWS = 20_000
MAX_COLUMNS = 64
MAX_CELL = 2000
MAX_METRIC = 80
MAX_PLATFORMS = 200

REQUIRED = ("metric", "value", "unit")
SHOWN_COLUMNS = 14
OTHERS = ("source", "table", "note", "power_limit_w", "base")
WHOLE = (
    *("devices", "nodes", "batch", "global_batch", "accumulation", "loader.workers"),
    *("epoch_samples", "epochs", "sequence_length", "loader.prefetch", "threads", "unsteady_jobs", "busy_jobs"),
)
NUMBERS = (
    *(*WHOLE, "learning_rate", "trend_percent"),
    *("power_capped_percent", "throttled_percent", "clock_loss_percent", "power_limit_percent"),
)
MAY_BE_ZERO = ("loader.workers", "loader.prefetch", "unsteady_jobs", "busy_jobs")
STATUSES = {"oom": "out_of_memory", "out of memory": "out_of_memory"}
PLATFORM_COLUMNS = {
    "platform": "name",
    "accelerator": "accelerator",
    "accelerators_per_node": "devices_per_node",
    "tdp_w_per_device": "power_limit_w",
    "tdp_w_per_system": "system_power_limit_w",
    "tdp_scope": "power_scope",
    "source": "source",
}
PLATFORM_TEXT = ("cpu", "cpu_accelerator_link", "accelerator_link", "node_link", "memory", "note")
# Reject text that a spreadsheet would run as a formula.
FORMULA = ("=", "@")


class BadCellError(ValueError):
    """An invalid cell: its column, the problem, and what is valid."""

    def __init__(self, column: str, problem: str, valid: str) -> None:
        super().__init__(problem)
        self.column, self.problem, self.valid = column, problem, valid


def is_long(text: str) -> bool:
    """Return whether CSV text has one line per figure: its first line names a metric and a value."""
    first = next((line for line in text.lstrip("\ufeff").splitlines() if line.strip(" ,")), "")
    cells = {cell.strip().strip('"') for cell in first.split(",")}
    return {"metric", "value"} <= cells


def parse_table(text: str, name: str, platforms: tuple[Platform, ...] = ()) -> RowTable:
    """Parse a table from text: TOML if the name ends in .toml, otherwise CSV."""
    if name.endswith(".toml"):
        return _parse_toml_table(text, name, platforms)
    made = _Rows(name)
    for line, cells in _read_lines(text, name, (*REQUIRED, *OTHERS, *SETTINGS), REQUIRED):
        made.take(f"line {line}", cells)
    return made.table(platforms)


def read_platforms(path: Path) -> tuple[Platform, ...]:
    """Read machines from a CSV file, one per line."""
    return parse_platforms(decoded(read_bounded(path, MAX_TABLE_BYTES), path.name), path.name)


def parse_platforms(text: str, name: str) -> tuple[Platform, ...]:
    """Parse machines from CSV text, one per line."""
    platforms: list[Platform] = []
    problems: list[Problem] = []
    for line, cells in _read_lines(text, name, (*PLATFORM_COLUMNS, *PLATFORM_TEXT), ("platform", "accelerator")):
        try:
            platforms.append(
                _make_platform({PLATFORM_COLUMNS[key]: cells[key] for key in PLATFORM_COLUMNS if cells.get(key)})
            )
        except BadCellError as error:
            problems.append(Problem(f"line {line}, {error.column}", error.problem, error.valid))
    _refuse(name, problems)
    if len(platforms) > MAX_PLATFORMS:
        raise InputError(f"{name} has more than {MAX_PLATFORMS} machines")
    return tuple(platforms)


def decoded(content: bytes, name: str) -> str:
    """Decode untrusted bytes as UTF-8, with or without a byte order mark; raise InputError if they are not text."""
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise InputError(f"{name} is UTF-16, not UTF-8", next_step="save it as UTF-8 and try again")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        problem = Problem(f"line {line}", f"byte 0x{content[error.start]:02x} is not UTF-8", "text in UTF-8")
        raise InputError(f"{name} is not text in UTF-8", problems=(problem,), next_step="save it as UTF-8") from None
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise InputError(f"{name} is not text", problems=(Problem(f"line {line}", "a NUL byte", "text in UTF-8"),))
    return text


def _read_lines(
    text: str, name: str, known: tuple[str, ...], required: tuple[str, ...]
) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the line number and the cells by column of each line of CSV text; skip blank lines."""
    if text.count("\n") > MAX_LINES:
        raise InputError(f"{name} has more than {MAX_LINES:,} lines")
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    columns: list[str] = []
    line = 1
    while True:
        line = reader.line_num + 1
        try:
            cells = next(reader)
        except StopIteration:
            break
        except csv.Error as error:
            problem = Problem(f"line {line}", str(error), "CSV: commas between cells, quotes closed, short cells")
            raise InputError(f"{name} is not valid CSV", problems=(problem,)) from None
        if not any(cells):
            continue
        if not columns:
            columns = _read_header(cells, name, known, required)
        else:
            yield line, _name_cells(cells, columns, line, name)
    if not columns:
        raise InputError(f"{name} is empty", next_step=f"begin with a header line: {','.join(required)}")


def _read_header(cells: list[str], name: str, known: tuple[str, ...], required: tuple[str, ...]) -> list[str]:
    problems: list[Problem] = []
    columns = [cell.strip() for cell in cells]
    if len(columns) > MAX_COLUMNS:
        raise InputError(f"{name} has {len(columns)} columns; at most {MAX_COLUMNS} are allowed")
    valid = ", ".join(known)
    if len(known) > SHOWN_COLUMNS:
        valid = f"{', '.join(known[:SHOWN_COLUMNS])}, ...; `steelyard explain settings` lists the others"
    for number, column in enumerate(columns, start=1):
        where = f"line 1, column {number}"
        if column in columns[: number - 1]:
            problems.append(Problem(where, f"the column {_shorten(column)} occurs twice", "each column once"))
        elif column not in known:
            near = setting_for(column, known) or nearest(column[:MAX_METRIC], known)
            problems.append(Problem(where, f"unknown column {_shorten(column)}", valid, near=near))
    missing = [column for column in required if column not in columns]
    problems += [Problem("line 1", f"the column {column} is missing", valid) for column in missing]
    _refuse(name, problems)
    return columns


def _name_cells(cells: list[str], columns: list[str], line: int, name: str) -> dict[str, str]:
    if len(cells) != len(columns):
        problem = Problem(f"line {line}", f"{len(cells)} cells", f"{len(columns)}, one for each column of line 1")
        raise InputError(f"{name} is not valid", problems=(problem,))
    for column, cell in zip(columns, cells, strict=True):
        if len(cell) > MAX_CELL:
            problem = Problem(f"line {line}, {column}", f"{len(cell):,} characters", f"at most {MAX_CELL:,}")
            raise InputError(f"{name} is not valid", problems=(problem,))
    return {column: cell.strip() for column, cell in zip(columns, cells, strict=True)}


@dataclass
class _Made:
    """A row under construction."""

    place: str
    settings: dict[str, Setting]
    table: str
    source: str
    figures: dict[str, Amount] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    status: str = "completed"
    bases: dict[str, str] = field(default_factory=dict)


class _Rows:
    """Collect figures with the same settings into one row, and all problems."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.rows: list[_Made] = []
        self.problems: list[Problem] = []
        self.platforms: dict[tuple[str, str], Platform] = {}
        self._by_identity: dict[tuple[object, ...], list[_Made]] = {}
        self._seen: Counter[tuple[object, ...]] = Counter()

    def take(self, where: str, cells: Mapping[str, str]) -> None:
        """Add one line. A metric that occurs again with the same settings begins another row, a repeat."""
        try:
            settings = {key: setting(key, cells[key]) for key in SETTINGS if cells.get(key)}
            metric = cells["metric"]
            if not metric or len(metric) > MAX_METRIC:
                wrong = "too long" if metric else "empty"
                raise BadCellError("metric", wrong, "a name such as throughput, epoch_time, power")
            _check_text("metric", metric)
            amount, status = figure(metric, cells["value"], cells["unit"])
            texts = {key: _check_text(key, cells.get(key, "")) for key in ("source", "table", "note", "base")}
            self._take_limit(settings, cells.get("power_limit_w", ""), texts["source"])
        except BadCellError as error:
            self.problems.append(Problem(f"{where}, {error.column}", error.problem, error.valid))
            if len(self.problems) > SHOWN_PROBLEMS:
                _refuse(self.name, self.problems)
            return
        identity = (texts["source"], texts["table"], *settings.items())
        # Count empty values too, so that the next value goes to the next repeat.
        turn = self._seen[*identity, metric]
        self._seen[*identity, metric] += 1
        made = self._by_identity.setdefault(identity, [])
        if turn == len(made):
            if len(self.rows) >= MAX_ROWS:
                raise InputError(f"{self.name} has more than {MAX_ROWS:,} rows")
            place = f"table {texts['table']}, {where}" if texts["table"] else where
            made.append(_Made(place, settings, texts["table"], texts["source"]))
            self.rows.append(made[-1])
        row = made[turn]
        if amount is not None:
            row.figures[metric] = amount
            if texts["base"]:
                row.bases[metric] = texts["base"]
        row.status = status or row.status
        if texts["note"] and texts["note"] not in row.notes:
            row.notes.append(texts["note"])

    def table(self, platforms: tuple[Platform, ...]) -> RowTable:
        """Return the table; raise InputError with all problems."""
        _refuse(self.name, self.problems)
        rows = tuple(
            Row(
                made.place,
                made.settings,
                made.figures,
                made.table,
                made.source,
                "; ".join(made.notes),
                made.status,
                bases=made.bases,
            )
            for made in self.rows
        )
        return RowTable(self.name, rows, (*self.platforms.values(), *platforms))

    def _take_limit(self, settings: Mapping[str, Setting], text: str, source: str) -> None:
        """Record the power limit of one device, if the line has one."""
        if not text:
            return
        system, accelerator = str(settings.get("system", "")), str(settings.get("accelerator", ""))
        if not system and not accelerator:
            raise BadCellError("power_limit_w", "without a machine", "a system or an accelerator in the same line")
        if (system, accelerator) not in self.platforms and len(self.platforms) >= MAX_PLATFORMS:
            raise BadCellError("power_limit_w", "too many machines", f"at most {MAX_PLATFORMS} in one table")
        made = Platform(system, accelerator, None, _parse_positive("power_limit_w", text), "device", source=source)
        if self.platforms.setdefault((system, accelerator), made).power_limit_w != made.power_limit_w:
            raise BadCellError(
                "power_limit_w", "differs from an earlier limit of the same machine", "one limit per machine"
            )


def setting(key: str, text: str) -> Setting:
    """Parse a setting; raise BadCellError if it is not valid."""
    if key not in NUMBERS:
        return {"true": True, "false": False}.get(text.lower(), _check_text(key, text))
    least = "a whole number, 0 or more" if key in MAY_BE_ZERO else "a whole number, 1 or more"
    number = printed(text)
    if key not in WHOLE:
        return _parse_positive(key, text)
    if (
        number is None
        or number[0] != int(number[0])
        or number[0] < (0 if key in MAY_BE_ZERO else 1)
        or number[0] > 1e18
    ):
        raise BadCellError(key, _shorten(text), least)
    return int(number[0])


def figure(metric: str, text: str, unit: str) -> tuple[Amount | None, str | None]:
    """Parse the figure and the status of a line: an empty value is unknown, OOM is a status."""
    known = unit_of(unit)
    if known is None:
        raise BadCellError("unit", f"unknown unit {_shorten(unit)}", known_units())
    if not text or text.lower() in STATUSES:
        return None, STATUSES.get(text.lower())
    wanted = metric_kind(metric)
    if wanted is not None and known[0] != wanted:
        raise BadCellError("unit", f"{metric} in {_shorten(unit)}", f"the unit of a {wanted.replace('_', ' ')}")
    number = clock(text, unit) if unit in CLOCKS else printed(text)
    if number is None:
        raise BadCellError(
            "value", f"{_shorten(text)} is not a number", "a number such as 786, 1,281,167 or 2.1e5; empty; OOM"
        )
    if number[0] < 0 and known[0] != "ratio":
        raise BadCellError("value", f"{_shorten(text)} is negative", f"a {known[0].replace('_', ' ')} of at least 0")
    return Amount(number[0] * known[1], number[1] * known[1], number[2] * known[1], unit, text), None


def _parse_toml_table(text: str, name: str, platforms: tuple[Platform, ...]) -> RowTable:
    if len(text) > MAX_TOML_BYTES:
        raise InputError(f"{name} is larger than {MAX_TOML_BYTES} bytes")
    data = parse_toml(text.encode("utf-8"), name)
    problems = [
        Problem(_shorten(key), "unknown part", "table, row, platform")
        for key in data
        if key not in ("table", "row", "platform")
    ]
    head, rows, machines = data.get("table", {}), data.get("row", []), data.get("platform", [])
    lists = (rows, machines)
    if not isinstance(head, dict) or not all(
        isinstance(part, list) and all(isinstance(e, dict) for e in part) for part in lists
    ):
        problems.append(Problem("(whole file)", "not a table", "[table], [[row]] ..., [[platform]] ..."))
    _refuse(name, problems)
    made = _Rows(name)
    for number, row in enumerate(rows, start=1):
        _take_toml_row(made, f"row {number}", {**head, **row})
    own: list[Platform] = []
    for number, machine in enumerate(machines[: MAX_PLATFORMS + 1], start=1):
        try:
            own.append(_make_platform({str(key): _format_plain(str(key), value) for key, value in machine.items()}))
        except BadCellError as error:
            made.problems.append(Problem(f"platform {number}, {error.column}", error.problem, error.valid))
    return made.table((*own, *platforms))


def _take_toml_row(made: _Rows, where: str, row: dict[str, Any]) -> None:
    """Add one row of a TOML table, converted to the lines it would have in CSV."""
    figures = row.pop("figures", {})
    known = (*SETTINGS, *OTHERS, "url", "title")
    try:
        if not isinstance(figures, dict) or len(row) > MAX_COLUMNS or len(figures) > MAX_COLUMNS:
            raise BadCellError("figures", "not a table of figures", 'figures = { throughput = "786 images/s" }')
        cells = {key: _format_plain(key, value) for key, value in row.items() if key not in ("url", "title")}
        for key in cells:
            if key not in known:
                near = nearest(key[:MAX_METRIC], known)
                hint = f"; did you mean {near}?" if near else ""
                raise BadCellError(_shorten(key), f"unknown{hint}", ", ".join(known))
        lines = []
        for metric, text in figures.items():
            if not isinstance(text, str):
                wrong = f"{_shorten(str(text))} is not text with a number and a unit"
                raise BadCellError(_shorten(metric), wrong, '"786 images/s", with quotes')
            value, _, unit = text.strip().partition(" ")
            lines.append((metric, text, "") if text.lower() in STATUSES else (metric, value, unit.strip()))
    except BadCellError as error:
        made.problems.append(Problem(f"{where}, {error.column}", error.problem, error.valid))
        return
    for metric, value, unit in lines:
        made.take(where, {**cells, "metric": metric, "value": value, "unit": unit})


def _format_plain(key: str, value: object) -> str:
    """Convert a TOML value to the text of a CSV cell."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        text = str(value)
        if len(text) > MAX_CELL:
            raise BadCellError(_shorten(key), f"{len(text):,} characters", f"at most {MAX_CELL:,}")
        return text
    raise BadCellError(_shorten(key), "a list, a date or a table", "text, a number, true or false")


def _make_platform(cells: dict[str, str]) -> Platform:
    known = tuple(PLATFORM_COLUMNS.values())
    for key in cells:
        if key not in known:
            raise BadCellError(_shorten(key), "unknown", ", ".join(known))
    per_node = cells.get("devices_per_node")
    limits = {
        key: _parse_positive(key, cells[key]) for key in ("power_limit_w", "system_power_limit_w") if cells.get(key)
    }
    return Platform(
        name=_check_text("platform", cells.get("name", "")),
        accelerator=_check_text("accelerator", cells.get("accelerator", "")),
        devices_per_node=int(setting("devices", per_node)) if per_node else None,
        power_limit_w=limits.get("power_limit_w"),
        power_scope=_check_text("power_scope", cells.get("power_scope", "")),
        system_power_limit_w=limits.get("system_power_limit_w"),
        source=_check_text("source", cells.get("source", "")),
    )


def _check_text(column: str, text: str) -> str:
    if text.startswith(FORMULA):
        raise BadCellError(column, f"{_shorten(text)} is a formula", "a name or a number, as printed")
    return text


def _parse_positive(column: str, text: str) -> float:
    number = printed(text)
    if number is None or not 0 < number[0] < math.inf:
        raise BadCellError(column, _shorten(text), "a number above 0")
    return number[0]


def _shorten(text: str) -> str:
    return f'"{text if len(text) <= MAX_METRIC else text[: MAX_METRIC - 3] + "..."}"'


def _refuse(name: str, problems: list[Problem]) -> None:
    if problems:
        raise InputError(
            f"{name} is not valid", problems=tuple(problems), next_step="see docs/tables.md for the format"
        )
