"""What every importer takes and gives: a file of others as text, and its figures exactly as they are printed there.

Importers know formats. They do not read files, do not convert units and do not judge: `audit.foreign` does.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

MAX_LINE = 1 << 16
"""Longer lines of a log are no results."""
MEGABYTE = 1_000_000
MAX_DIGITS = 20
MAX_VALUES = 2_000_000
"""Of a JSON file: each takes a hundred times the memory of its text."""


class Digits(str):
    """A number of a JSON file with its digits as they are printed there."""

    __slots__ = ()


@dataclass(frozen=True)
class ImportedFigure:
    """A figure as a file has it."""

    settings: Mapping[str, str]
    """By the names of `rules.table.settings.SETTINGS`. What the file does not say is left out."""
    metric: str
    value: str
    """As printed; empty: the run gave none."""
    unit: str
    """In our spelling; empty: the file does not say it, and no documentation does."""
    note: str = ""


@dataclass(frozen=True)
class ForeignFile:
    """A file of others."""

    name: str
    """Its path below the folder that was imported."""
    text: str
    beside: Callable[[str], str | None] = field(default=lambda _: None)
    """Returns the text of another file by its path from this file's folder; None: there is none."""

    @cached_property
    def data(self) -> Any:
        """The file as JSON, with numbers as `Printed`; None if it is something else."""
        return parse(self.text) if self.text.lstrip()[:1] in ("{", "[") else None

    def lines(self) -> Iterator[str]:
        """Yield the lines, without those that are too long for a result."""
        return (line for line in self.text.splitlines() if len(line) <= MAX_LINE)


@dataclass(frozen=True)
class Importer:
    """A format of results."""

    name: str
    about: str
    """What writes such files, and which files they are."""
    seen: tuple[str, ...]
    """Where the format was learnt: repository, path and commit of public files."""
    recognises: Callable[[ForeignFile], bool]
    read: Callable[[ForeignFile], Iterable[ImportedFigure]]


def parse(text: str) -> Any:
    """Return JSON with numbers as `Printed`; None if it is not valid, or has more values than any result."""
    if sum(text.count(mark) for mark in ",[{") > MAX_VALUES:
        return None
    try:
        return json.loads(text, parse_float=Digits, parse_int=Digits, parse_constant=lambda _: None)
    except (ValueError, RecursionError):
        return None


def inside(data: Any, *path: str | int) -> Any:
    """Return what is at a path of keys and indices; None if it is not there."""
    for key in path:
        if isinstance(data, dict):
            data = data.get(key)
        elif isinstance(data, list) and isinstance(key, int) and key < len(data):
            data = data[key]
        else:
            return None
    return data


def mapping(data: Any) -> dict[str, Any]:
    """Return a table of a JSON file; empty if it is something else."""
    return data if isinstance(data, dict) else {}


def items(data: Any) -> list[Any]:
    """Return a list of a JSON file; empty if it is something else."""
    return data if isinstance(data, list) else []


def stated(**settings: Any) -> dict[str, str]:
    """Return the settings that are text or a number and not empty."""
    return {key: value for key, value in settings.items() if isinstance(value, str) and value.strip()}


def times(*counts: Any) -> str | None:
    """Return the product of whole numbers as text; None if one of them is not known."""
    product = 1
    for count in counts:
        if not isinstance(count, str) or not count.isascii() or not count.isdigit() or len(count) > 9:
            return None
        product *= int(count)
    return str(product)


def size_mb(text: str) -> str:
    """Return the message of a collective from its bytes as our own collectives state it, in megabytes."""
    whole, rest = divmod(int(text[:MAX_DIGITS]), MEGABYTE)
    return f"size_mb={whole}.{rest:06d}".rstrip("0").rstrip(".")
