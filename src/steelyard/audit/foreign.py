"""Results of others: find the format of each file, read its figures into rows as printed, and keep them as a table.

What a file does not say stays unknown. A figure that has no unit, or is no number, is left out and counted.
"""

from __future__ import annotations

import csv
import hashlib
import io
import os
import re
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from steelyard import nofollow, plugins
from steelyard.audit.table import MAX_METRIC, MAX_TABLE_BYTES, BadCellError, decoded, figure, parse_table, setting
from steelyard.errors import InputError, Problem, SteelyardError, leave_out, printable
from steelyard.imported.form import ForeignFile
from steelyard.inputs.validate import read_bounded, read_inside
from steelyard.redact import redact
from steelyard.results.store import replace_text
from steelyard.rules.table.settings import SETTINGS
from steelyard.rules.table.units import unit_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from steelyard.imported.form import ImportedFigure, Importer
    from steelyard.results.store import ResultFolder
    from steelyard.rules.table.row import RowTable

IMPORTED = "imported"
"""The folder of kept tables below the results."""
MAX_FILE_BYTES = 1 << 25
MAX_BESIDE_BYTES = 1 << 20
MAX_FILES = 2000
MAX_LINES = 1_000_000
MAX_FIGURES = 200_000
"""Of all files, with those that are left out."""
MAX_DEPTH = 8
MAX_TEXT = 200
MAX_PARTS = 4
DIGEST_DIGITS = 12
LINE_ENDS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
NO_UNIT = "the file does not state their unit"
NO_NUMBER = "not a number, or negative"


@dataclass(frozen=True)
class ReadFile:
    """A file that was read."""

    name: str
    format: str
    figures: int


@dataclass(frozen=True)
class Imported:
    """The figures of some files as one table."""

    table: RowTable
    text: str
    """The same as CSV, in the form of docs/tables.md."""
    files: tuple[ReadFile, ...]
    left_out: Mapping[str, int]
    """Figures and settings that are not in the table: why, and how many."""
    skipped: int
    """Files of a folder that are in no known format."""


@cache
def importers() -> tuple[Importer, ...]:
    """Return every known format, the built-in ones first."""
    own = plugins.BUILTIN["importer"]
    others = [name for name in plugins.names("importer") if name not in own]
    return tuple(plugins.load("importer", name) for name in [*own, *others])


def read_results(
    paths: Sequence[Path], *, form: str | None = None, source: str = "", known: Mapping[str, str] | None = None
) -> Imported:
    """Read files or folders of others. `known`: settings that the files do not state, but the user knows."""
    chosen = (plugins.load("importer", form),) if form else importers()
    made = _ImportedTable(source, dict(known or {}))
    for path in paths:
        whole = path.is_dir()
        for place, name in _files(path) if whole else [(path, _short(path))]:
            made.take(place, name, chosen, required=not whole)
    if not made.files:
        raise InputError(f"{', '.join(map(str, paths))}: no results in a known format", problems=(_formats(chosen),))
    return made.imported(redact(paths[0].name)[0] or "results")


def _formats(chosen: Sequence[Importer]) -> Problem:
    return Problem("format", "not recognised", "; ".join(f"{entry.name} ({entry.about})" for entry in chosen))


def _files(folder: Path) -> Iterator[tuple[Path, str]]:
    """Yield the files of a folder and their paths below it, without links and hidden ones."""
    count = 0
    for base, folders, names in os.walk(folder):
        depth = len(Path(base).relative_to(folder).parts)
        folders[:] = sorted(name for name in folders if not name.startswith(".") and depth < MAX_DEPTH)
        for name in sorted(names):
            path = Path(base) / name
            if name.startswith(".") or path.is_symlink() or not path.is_file():
                continue
            count += 1
            if count > MAX_FILES:
                raise InputError(f"{folder} has more than {MAX_FILES:,} files", next_step="import a folder below it")
            yield path, path.relative_to(folder.parent).as_posix()


def _short(path: Path) -> str:
    """Return the path as given, without the folders that only this machine has."""
    return "/".join(path.parts[-MAX_PARTS:]) if path.is_absolute() or ".." in path.parts else path.as_posix()


class _ImportedTable:
    """Collects the lines of a table."""

    def __init__(self, source: str, known: dict[str, str]) -> None:
        self.source, self.known = source, {key: redact(value)[0] for key, value in known.items()}
        self.lines: list[dict[str, str]] = []
        self.files: list[ReadFile] = []
        self.left_out: Counter[str] = Counter()
        self.skipped = 0
        self._figures = self._bytes = 0
        for key, value in known.items():
            if key not in SETTINGS:
                raise plugins.unknown("setting", key, list(SETTINGS))
            try:
                setting(key, value)
            except BadCellError as error:
                raise InputError(
                    f"{key}: {error.problem}", problems=(Problem(key, error.problem, error.valid),)
                ) from None

    def take(self, path: Path, name: str, chosen: Sequence[Importer], *, required: bool) -> None:
        """Read one file; in a folder, a file in no known format is skipped."""
        content = read_bounded(path, MAX_FILE_BYTES)
        # Logs have what programs print: a byte that is no text must not hide the figures around it.
        text = content.decode("utf-8-sig", errors="replace").replace("\0", "")
        if sum(text.count(mark) for mark in LINE_ENDS) > MAX_LINES:
            raise InputError(f"{name} has more than {MAX_LINES:,} lines", next_step="import only the part with results")
        file = ForeignFile(name, text, lambda other: _beside(path, other))
        importer = chosen[0] if len(chosen) == 1 else next((entry for entry in chosen if entry.recognises(file)), None)
        before = len(self.lines)
        if importer is not None:
            about = f"{importer.name}, sha256 {hashlib.sha256(content).hexdigest()[:DIGEST_DIGITS]}"
            for entry in importer.read(file):
                self._add(entry, name, about)
        if len(self.lines) > before and importer is not None:
            self.files.append(ReadFile(redact(name)[0], importer.name, len(self.lines) - before))
        elif required:
            problem = Problem(name, f"has no figures that {importer.name} files have") if importer else _formats(chosen)
            raise InputError(f"{name}: no results", problems=(problem,))
        else:
            self.skipped += 1

    def _add(self, entry: ImportedFigure, name: str, about: str) -> None:
        self._figures += 1
        if self._figures > MAX_FIGURES:
            raise InputError(f"{name}: more than {MAX_FIGURES:,} figures", next_step="import fewer files at once")
        metric = re.sub(r"[^\w.@-]+", "_", entry.metric)[:MAX_METRIC].strip("_")
        if not entry.unit:
            self.left_out[NO_UNIT] += 1
            return
        if unit_of(entry.unit) is None:
            self.left_out[f"in {_plain(entry.unit)[:20]}, a unit that is not known here"] += 1
            return
        value = entry.value.strip()
        try:
            figure(metric or "figure", value, entry.unit)
        except BadCellError:
            self.left_out[NO_NUMBER] += 1
            return
        cells = self._settings(entry.settings)
        note = "; ".join(filter(None, (_plain(entry.note), about)))
        place = {"source": _plain(self.source), "table": _plain(name)} if self.source else {"source": _plain(name)}
        line = {**place, **cells, "metric": metric or "figure", "value": value, "unit": entry.unit, "note": note}
        self._bytes += sum(len(cell.encode("utf-8", "surrogatepass")) + 1 for cell in line.values())
        if self._bytes > MAX_TABLE_BYTES:
            # A kept table that is larger could not be read again.
            limit = f"the table of these figures is larger than {MAX_TABLE_BYTES:,} bytes"
            raise InputError(f"{name}: {limit}", next_step="import fewer files at once")
        self.lines.append(line)

    def _settings(self, stated: Mapping[str, str]) -> dict[str, str]:
        cells: dict[str, str] = {}
        for key, value in stated.items():
            text = _plain(value)
            try:
                setting(key, text)
            except BadCellError:
                self.left_out[f"the setting {key}: not a valid value"] += 1
                continue
            if text and key in SETTINGS:
                cells[key] = text
        for key, value in self.known.items():
            if cells.setdefault(key, value) != value:
                problem = Problem(key, f"the file says {cells[key]}", "only settings that the file does not state")
                raise InputError(f"{key} is stated otherwise", problems=(problem,))
        return cells

    def imported(self, name: str) -> Imported:
        """Return the table."""
        used = {key for line in self.lines for key in line}
        columns = [
            "source",
            *["table"] * bool(self.source),
            *(key for key in SETTINGS if key in used),
            "metric",
            "value",
            "unit",
            "note",
        ]
        written = io.StringIO()
        writer = csv.DictWriter(written, columns, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.lines)
        text = written.getvalue()
        table = parse_table(text, name)
        return Imported(table, text, tuple(self.files), dict(self.left_out), self.skipped)


def _plain(text: str) -> str:
    """Return untrusted text on one line, short, without secrets, and as no spreadsheet takes for a formula."""
    # A secret that is cut may not be recognised.
    line = redact(printable(" ".join(text.split()))[: 2 * MAX_TEXT])[0]
    return line[:MAX_TEXT].lstrip("=@").strip()


def _beside(path: Path, other: str) -> str | None:
    """Return the text of a file near another one; None: there is none, or a link leads elsewhere."""
    own = path.resolve()
    place = Path(os.path.normpath(own.parent / other))
    top = own.parents[min(MAX_PARTS, len(own.parents)) - 1]
    if not place.is_file() or not place.resolve().is_relative_to(top):
        return None
    try:
        return read_bounded(place, MAX_BESIDE_BYTES).decode("utf-8-sig", errors="replace")
    except SteelyardError:
        return None


# -- kept with the results


def keep(folder: ResultFolder, imported: Imported) -> Path:
    """Write the table into the results folder. The same results again give the same file."""
    folder.prepare()
    digest = hashlib.sha256(imported.text.encode()).hexdigest()[:DIGEST_DIGITS]
    name = re.sub(r"[^\w.-]+", "-", Path(imported.table.name).stem)[:60].strip(".-") or "results"
    place = folder.root / IMPORTED / f"{name}-{digest}.csv"
    nofollow.make_folder(place.parent, exist_ok=True)
    replace_text(place, imported.text, place.parent, flush=True)
    return folder.path / IMPORTED / place.name


def kept_tables(folder: ResultFolder) -> Iterator[RowTable]:
    """Yield the kept tables; one that cannot be read is left out."""
    for name in nofollow.names(folder.root / IMPORTED):
        if not name.endswith(".csv") or name.startswith("."):
            continue
        try:
            content = read_inside(folder.root / IMPORTED / name, MAX_TABLE_BYTES)
            table = parse_table(decoded(content, name), name)
        except SteelyardError as error:
            leave_out(error)
            continue
        yield table
