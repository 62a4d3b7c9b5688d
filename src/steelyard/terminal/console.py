"""Where text leaves the program: rich consoles for standard output and standard error, and what is coloured on them.

Everything else in this package makes plain text. Colour is added here, last, and repeats what a word already says.
rich takes tens of milliseconds to import, so import this module where something is first written.
"""

from __future__ import annotations

import contextlib
import re
import sys
import textwrap
from typing import TYPE_CHECKING, Any, TextIO, cast

from rich.cells import cell_len
from rich.console import Console
from rich.highlighter import RegexHighlighter
from rich.theme import Theme

from steelyard.errors import printable_lines
from steelyard.terminal.text import OUTPUT_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Iterator

STATUSES = {
    "completed": "green",
    "not_converged": "yellow",
    "out_of_memory": "magenta",
    "time_limit": "red",
    "hung": "red",
    "failed": "red",
    "killed": "red",
    "node_failure": "red",
    "preempted": "red",
    "lost": "red",
    "refused": "red",
    "cancelled": "red",
}
COMMAND = re.compile(r" *(?:next: )?(?:steelyard|pip install) \S+")
"""A line that is a command, which people copy."""
WORDS = re.compile(r"""(?:'[^']*'|"[^"]*"|[^\s'"])+""")
"""The words of a command, with their quotes."""
_STATUS = "|".join(f"(?P<{code}>{code})" for code in STATUSES)
_STYLES = {
    **STATUSES,
    "error": "bold red",
    "warning": "yellow",
    "note": "cyan",
    "good": "bold green",
    "bad": "bold red",
    "unsure": "bold yellow",
    "code": "bold",
    "label": "bold",
    "heading": "bold",
    "quiet": "dim",
}


class _Highlighter(RegexHighlighter):
    """Colours severities, statuses, verdicts, labels and the headings of tables."""

    base_style = "steelyard."
    highlights = [  # noqa: RUF012
        r"(?P<code>SY\d{3})\s+[a-z0-9-]+\s+\((?:(?P<error>error)|(?P<warning>warning)|(?P<note>note))\)",
        r"(?m)^(?:(?P<error>\d+ errors?)(?:, |\.))?(?:(?P<warning>\d+ warnings?)(?:, |\.))?(?:(?P<note>\d+ notes?)\.)?",
        rf"(?m)(?:^|[\s,;])\d[\d,]* {{1,2}}(?:{_STATUS})\b",
        rf"(?m)^(?:\[\d+/\d+\] [^\n]+?|[\w.-]+(?: \([^()\n]*\))?): (?:{_STATUS})\b",
        r"(?m)(?:^|: )(?:(?P<bad>NOT COMPARABLE|FAIL)|(?P<good>COMPARABLE(?: WITH WARNINGS)?|PASS))\b",
        r"(?m)^(?P<unsure>CANNOT TELL|FORCED):",
        r"(?m)^(?:(?P<good>ok)|(?P<bad>wrong)|(?P<note>note)) {2,}\S",
        r"(?m)(?: {2}|^|verdict: )(?:(?P<good>ok)|(?P<bad>WRONG))$",
        r"(?m)^(?P<bad>error|WRONG)(?=:| )",
        r"(?m)^ *(?P<label>fix|next|Fix):",
        r"(?m)^(?P<heading>.+\n(?:.+\n)?)(?P<quiet>-+(?: +-+)+)$",
    ]


def console_of(stream: TextIO) -> Console:
    """A console that colours as rich decides (NO_COLOR, FORCE_COLOR, TERM) and reads no markup in what it prints."""
    theme = Theme({f"steelyard.{name}": style for name, style in _STYLES.items()})
    return Console(
        file=stream, theme=theme, highlighter=_Highlighter(), markup=False, emoji=False, soft_wrap=True,
        # FORCE_COLOR asks for colour in a file, not for a cursor that moves there.
        force_interactive=None if stream.isatty() else False,
    )  # fmt: skip


def print_folded(console: Console, text: str, end: str = "\n") -> None:
    """Print text; on a terminal, lines that are too long are broken between words, never inside a path or a name."""
    text = printable_lines(text)
    if console.file.isatty():
        text = "\n".join(_folded(line, console.width) for line in text.split("\n"))
    console.print(text, end=end)


def _folded(line: str, columns: int) -> str:
    if cell_len(line) <= columns:
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
        if cell_len(f"{lines[-1]} {word} \\") <= columns:
            lines[-1] += f" {word}"
        else:
            lines.append(indent + word)
    return " \\\n".join(lines)


def say(text: str) -> None:
    """Print text that is not a result to standard error."""
    # A closed terminal does not end a study.
    with contextlib.suppress(OSError):
        print_folded(console_of(sys.stderr), text)


class _Output:
    """Standard output by way of a console; in a file or pipe without one. Control characters are escaped."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def write(self, text: str) -> int:
        if self._console.is_terminal:
            print_folded(self._console, text, end="")
        else:
            self._console.file.write(printable_lines(text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._console.file, name)


@contextlib.contextmanager
def output() -> Iterator[None]:
    """Send what is printed to standard output through a console, laid out for its terminal if it has one."""
    console = console_of(sys.stdout)
    before = OUTPUT_COLUMNS.set(console.width if sys.stdout.isatty() else None)
    try:
        with contextlib.redirect_stdout(cast("TextIO", _Output(console))):
            yield
    finally:
        OUTPUT_COLUMNS.reset(before)
