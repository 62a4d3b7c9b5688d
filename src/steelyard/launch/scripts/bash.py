"""Quotes words and commands for bash, so that nothing in them is carried out. Knows bash alone."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from steelyard.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

# A word with `=` may be an assignment, and a lone `time` a keyword; a leading dash is an option whatever is done.
_PLAIN = re.compile(r"[A-Za-z0-9_@%+:,./-]+|-[A-Za-z0-9_@%+=:,./-]+")
_KEYWORDS = frozenset(
    (
        *("if", "then", "else", "elif", "fi", "case", "esac", "for", "select", "while", "until", "do", "done", "in"),
        *("time", "function", "coproc"),
    )
)
# What would end a line or hide from a reader; bytes of a path that are no text are surrogates here.
_CONTROL = re.compile("[\x01-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


class Raw(str):
    """Shell text that is already quoted, or is an expansion."""

    __slots__ = ()


Word = str | Raw


def quoted(word: Word) -> str:
    """One word of bash, whatever it holds."""
    if isinstance(word, Raw):
        return str(word)
    if "\0" in word:
        raise InputError(f"no command can be given the character NUL: {word!r}", next_step="leave it out")
    if _PLAIN.fullmatch(word) and word not in _KEYWORDS:
        return word
    if not _CONTROL.search(word):
        return "'" + word.replace("'", "'\\''") + "'"
    text = word.replace("\\", "\\\\").replace("'", "\\'")
    return "$'" + _CONTROL.sub(lambda found: _escape(found.group()), text) + "'"


def _escape(character: str) -> str:
    """Octal, always three digits: what follows cannot become a part of it, and no locale changes it."""
    return "".join(f"\\{byte:03o}" for byte in character.encode("utf-8", "surrogateescape"))


def line(words: Sequence[Word]) -> str:
    """A command."""
    return " ".join(quoted(word) for word in words)
