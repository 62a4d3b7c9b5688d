"""Quote words and commands for bash: nothing in them is expanded or executed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from steelyard.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

# A word with `=` could be an assignment, and a lone `time` a keyword; after a leading dash both are plain.
_PLAIN = re.compile(r"[A-Za-z0-9_@%+:,./-]+|-[A-Za-z0-9_@%+=:,./-]+")
_KEYWORDS = frozenset(
    (
        *("if", "then", "else", "elif", "fi", "case", "esac", "for", "select", "while", "until", "do", "done", "in"),
        *("time", "function", "coproc"),
    )
)
# Characters that end a line or are invisible; bytes of a path that are not text are surrogates here.
_CONTROL = re.compile("[\x01-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


class Raw(str):
    """Shell text that is already quoted, or is an expansion."""

    __slots__ = ()


Word = str | Raw


def quoted(word: Word) -> str:
    """Quote one word for bash."""
    if isinstance(word, Raw):
        return str(word)
    if "\0" in word:
        raise InputError(f'no command accepts the character NUL: "{word}"', next_step="remove it")
    if _PLAIN.fullmatch(word) and word not in _KEYWORDS:
        return word
    if not _CONTROL.search(word):
        return "'" + word.replace("'", "'\\''") + "'"
    text = word.replace("\\", "\\\\").replace("'", "\\'")
    return "$'" + _CONTROL.sub(lambda match: _escape(match.group()), text) + "'"


def _escape(character: str) -> str:
    """Escape a character as three octal digits per byte, independent of the locale and of what follows."""
    return "".join(f"\\{byte:03o}" for byte in character.encode("utf-8", "surrogateescape"))


_REFERENCE = re.compile(r"(:?)\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)\})(:?)", re.ASCII)


def expanding(text: str) -> Raw:
    """Quote a text in which $NAME and ${NAME} are replaced by the shell, and nothing else.

    A colon beside a variable that is not set or empty is left out: in a search path it would stand for this folder.
    """
    parts, at = [], 0
    for match in _REFERENCE.finditer(text):
        name = match[2] or match[3]
        before, after = match[1], match[4]
        if before and after:
            # One of the two stays, to separate what is on both sides.
            reference = f"${{{name}:+:${name}}}:"
        elif before or after:
            reference = f"${{{name}:+{before}${name}{after}}}"
        else:
            reference = f"${{{name}}}"
        parts += [_escape_double(text[at : match.start()]), reference]
        at = match.end()
    return Raw('"' + "".join([*parts, _escape_double(text[at:])]) + '"')


def _escape_double(text: str) -> str:
    return re.sub(r'(["\\`$])', r"\\\1", text)


def line(words: Sequence[Word]) -> str:
    """Quote a command for bash."""
    return " ".join(quoted(word) for word in words)
