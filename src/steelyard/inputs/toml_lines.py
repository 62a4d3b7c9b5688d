"""Line numbers of TOML keys, which tomllib does not give. Finds them by a search; a key that it misses has none."""

from __future__ import annotations

import re
from functools import lru_cache

# Longer lines are values, not keys; the bound keeps the search linear.
_SEARCHED = 400
_PART = r"""(?:[A-Za-z0-9_-]+|"(?:[^"\\]|\\.)*"|'[^']*')"""
_KEY = rf"{_PART}(?:[ \t]*\.[ \t]*{_PART})*"
_TABLE = re.compile(rf"\s*(\[\[?)[ \t]*({_KEY})[ \t]*\]")
_ASSIGNMENT = re.compile(rf"\s*({_KEY})[ \t]*=")
_LONG_TEXT = re.compile(r'"""|' + "'''")

Path = tuple[int | str, ...]


def line_of(text: bytes, path: Path) -> int | None:
    """Return the line of a key, or of the innermost table or array around it that is found."""
    lines = _key_lines(text)
    return next((lines[path[:end]] for end in range(len(path), 0, -1) if path[:end] in lines), None)


@lru_cache(maxsize=1)
def _key_lines(text: bytes) -> dict[Path, int]:
    """Return the lines of the keys of a file; kept for its other problems, of which there may be thousands."""
    lines: dict[Path, int] = {}
    counts: dict[Path, int] = {}
    table: Path = ()
    closing = ""
    for number, line in enumerate(text.decode("utf-8", "replace").split("\n"), 1):
        if not closing:
            head = line[:_SEARCHED]
            if header := _TABLE.match(head):
                table = _resolve(_parts(header[2]), counts)
                if header[1] == "[[":
                    counts[table] = counts.get(table, -1) + 1
                    table = (*table, counts[table])
                _note(lines, (), table, number)
            elif assignment := _ASSIGNMENT.match(head):
                _note(lines, table, _parts(assignment[1]), number)
        for mark in _LONG_TEXT.findall(line):
            closing = mark if not closing else "" if mark == closing else closing
    return lines


def _note(lines: dict[Path, int], table: Path, parts: Path, number: int) -> None:
    for end in range(1, len(parts) + 1):
        lines.setdefault((*table, *parts[:end]), number)


def _resolve(parts: Path, counts: dict[Path, int]) -> Path:
    """Add the index of the current entry after each name of an array of tables but the last."""
    path: Path = ()
    for position, part in enumerate(parts):
        path = (*path, part)
        if position < len(parts) - 1 and path in counts:
            path = (*path, counts[path])
    return path


def _parts(key: str) -> Path:
    return tuple(part.strip("\"'") for part in re.findall(_PART, key))
