"""A stranger's text before it is escaped: only characters that can be seen. Knows code points and no markup."""

from __future__ import annotations

import re
import unicodedata

from steelyard.errors import InputError, Problem, printable

_SPACES = re.compile("[\t\n\v\f\r ]+")
# Control, format, surrogate, private, unassigned, line and paragraph separator: each steers something or shows nothing.
_HIDDEN = frozenset(("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"))
MAX_TEXT = 20_000
"""Characters of one text: five times what a record may hold."""


def one_line(text: str) -> str:
    """The text in one line that does nothing but be read, and of bounded length."""
    if len(text) <= MAX_TEXT and text.isprintable() and "  " not in text:
        return text.strip(" ")
    return _seen(_SPACES.sub(" ", _bounded(text)).strip(" "))


def code_lines(text: str) -> list[str]:
    """Text whose lines and indents stay."""
    return [_seen(line.expandtabs(4)).rstrip() for line in _bounded(text).split("\n")]


def file_name(name: str) -> str:
    """A name that is safe in every file system and inside a quoted attribute."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip(".-")[:80] or "data"


def picture_file(path: str) -> str:
    """The path of a picture as it may stand in a document: of plain letters, so that no mark of any format is in it."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._/-]*", path) or ".." in path:
        problem = Problem("pictures", f"{path!r} cannot stand in a document", "letters, digits, '.', '-', '_' and '/'")
        raise InputError("a picture's file has a name that cannot be written", problems=(problem,))
    return path


def _bounded(text: str) -> str:
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]} ..."


def _seen(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(
        c.encode("unicode_escape").decode("ascii") if unicodedata.category(c) in _HIDDEN else c for c in printable(text)
    )
