"""Clean untrusted text before it is escaped: keep only visible characters."""

from __future__ import annotations

import re
import unicodedata

from steelyard.errors import InputError, Problem, printable

_SPACES = re.compile("[\t\n\v\f\r ]+")
# Control, format, surrogate, private, unassigned, line and paragraph separator: invisible, or with side effects.
_HIDDEN = frozenset(("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"))
MAX_TEXT = 20_000
"""Maximum length of one text: five times the limit of a record."""


def one_line(text: str) -> str:
    """Return the text as one line of visible characters, with bounded length."""
    if len(text) <= MAX_TEXT and text.isprintable() and "  " not in text:
        return text.strip(" ")
    return _seen(_SPACES.sub(" ", _bounded(text)).strip(" "))


def code_lines(text: str) -> list[str]:
    """Return the lines of a text, with their indents."""
    return [_seen(line.expandtabs(4)).rstrip() for line in _bounded(text).split("\n")]


def file_name(name: str) -> str:
    """Return a name that is safe in every file system and inside a quoted attribute."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip(".-")[:80] or "data"


def picture_file(path: str) -> str:
    """Return the path if it contains only characters that are safe in every document format; else InputError."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._/-]*", path) or ".." in path:
        problem = Problem("pictures", f"{path} is not allowed", "letters, digits, '.', '-', '_' and '/'")
        raise InputError("the file name of a chart is not valid", problems=(problem,))
    return path


def _bounded(text: str) -> str:
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]} ..."


def _seen(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(
        c.encode("unicode_escape").decode("ascii") if unicodedata.category(c) in _HIDDEN else c for c in printable(text)
    )
