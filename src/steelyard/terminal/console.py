"""Where text leaves the program: standard output and standard error, laid out for a terminal if they are one.

Everything else in this package makes plain text. Colour is added here, last, and repeats what a word already says.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import textwrap
from typing import TYPE_CHECKING, Any, TextIO, cast

from steelyard.errors import printable_lines
from steelyard.terminal.text import OUTPUT_COLUMNS, columns_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

COMMAND = re.compile(r" *(?:next: )?(?:steelyard|pip install) \S+")
"""A line that is a command, which people copy."""
WORDS = re.compile(r"""(?:'[^']*'|"[^"]*"|[^\s'"])+""")
"""The words of a command, with their quotes."""


def terminal(stream: TextIO) -> Console | None:
    """Return the console of a stream that people read on a terminal, or want coloured; None for a file or a pipe."""
    asked = any(os.environ.get(name) for name in ("FORCE_COLOR", "TTY_COMPATIBLE"))
    if not asked and not stream.isatty():
        return None
    # Imported late, because it imports rich.
    from steelyard.terminal.colours import console_of

    return console_of(stream)


def print_folded(console: Console, text: str, end: str = "\n") -> None:
    """Print text; on a terminal, lines that are too long are broken between words, never inside a path or a name."""
    text = printable_lines(text)
    if console.file.isatty():
        text = "\n".join(_folded(line, console.width) for line in text.split("\n"))
    console.print(text, end=end)


def _folded(line: str, columns: int) -> str:
    if columns_of(line) <= columns:
        return line
    indent = " " * (len(line) - len(line.lstrip()) + 2)
    if COMMAND.match(line):
        return _continued(line, columns, indent)
    return textwrap.fill(line, columns, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False)


def _continued(line: str, columns: int, indent: str) -> str:
    """Break a command between its words as a shell reads it, so that it can be copied."""
    first, *words = WORDS.findall(line)
    lines = [line[: len(line) - len(line.lstrip())] + first]
    for word in words:
        if columns_of(f"{lines[-1]} {word} \\") <= columns:
            lines[-1] += f" {word}"
        else:
            lines.append(indent + word)
    return " \\\n".join(lines)


def from_here(text: str) -> str:
    """Write paths as somebody in this folder would: relative to it, or with ~ for the home folder.

    A message is often pasted where others read it. In a command ~ may be quoted, so there only this folder is left out.
    """
    try:
        here, home = os.getcwd(), os.path.expanduser("~")  # noqa: PTH109, PTH111 -- both are text already
    except OSError:  # the folder was removed
        return text
    if len(here) > 1:
        text = re.sub(rf"(?<![\w./~-]){re.escape(here)}/(?=[\w.])", "", text)
    if len(home) > 1:
        inside = re.compile(rf"(?<![\w./~-]){re.escape(home)}(?=/)")
        text = "\n".join(line if COMMAND.match(line) else inside.sub("~", line) for line in text.split("\n"))
    return text


def say(text: str) -> None:
    """Print text that is not a result to standard error."""
    text = from_here(text)
    # A closed terminal does not end a study.
    with contextlib.suppress(OSError):
        if console := terminal(sys.stderr):
            print_folded(console, text)
        else:
            print(printable_lines(text), file=sys.stderr, flush=True)


class _Output:
    """Standard output by way of a console; in a file or pipe without one. Control characters are escaped."""

    def __init__(self, file: TextIO, console: Console | None) -> None:
        self._file = file
        self._console = console

    def write(self, text: str) -> int:
        if self._console is not None and self._console.is_terminal:
            print_folded(self._console, text, end="")
        else:
            self._file.write(printable_lines(text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


@contextlib.contextmanager
def output() -> Iterator[None]:
    """Send what is printed to standard output through a console, laid out for its terminal if it has one."""
    console = terminal(sys.stdout)
    before = OUTPUT_COLUMNS.set(console.width if console is not None and sys.stdout.isatty() else None)
    try:
        with contextlib.redirect_stdout(cast("TextIO", _Output(sys.stdout, console))):
            yield
    finally:
        OUTPUT_COLUMNS.reset(before)
