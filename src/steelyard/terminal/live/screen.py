"""Lines at the foot of a terminal that change while others are printed above them. Knows escapes, no study."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import textwrap
import threading
from typing import TYPE_CHECKING, Any, TextIO

from steelyard.terminal.drawing import Look, coloured, moves_cursor, shows_blocks, wants_colour
from steelyard.terminal.narrow import OUTPUT_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

CLEAR = "\r\x1b[J"
UNKNOWN_SIZE = os.terminal_size((80, 24))


class Screen:
    """The foot of a terminal; on anything else only what is printed above it appears.

    The cursor waits at the foot's first character, not behind its last. Where a window is made narrower its lines
    are broken anew, below the cursor: what has to be cleared begins there whatever the terminal makes of them.
    """

    def __init__(self, stream: TextIO | None = None, *, live: bool = True) -> None:
        self._stream = sys.stderr if stream is None else stream
        self.live = live and self._stream.isatty() and moves_cursor(os.environ)
        """Whether there is a foot."""
        self._shown: list[str] = []
        self._handler: Any = None

    @property
    def look(self) -> Look:
        """What can be shown now; a window may change its size."""
        return look_of(self._stream)

    def __enter__(self) -> Screen:
        """Be told when we are stopped (Ctrl-Z): the shell's prompt is not to stand in the foot."""
        if self.live and threading.current_thread() is threading.main_thread():
            self._handler = signal.signal(signal.SIGTSTP, self._stop)
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the terminal clean, however this ends."""
        self.clear()
        if self._handler is not None:
            signal.signal(signal.SIGTSTP, self._handler)

    def show(self, lines: list[str]) -> None:
        """Let these lines be the foot. Each is narrower than the terminal; of too many the first are shown."""
        # What a low window cannot hold would scroll away from where the cursor waits.
        lines = lines[: max(1, self.look.rows - 1)]
        if self.live and lines != self._shown:
            self._shown = lines
            self._write(self._foot())

    def above(self, text: str) -> None:
        """Print lines that stay; too long ones are broken between words where there is a foot below them."""
        look = self.look
        if self.live:
            text = "\n".join(_broken(line, look.columns) for line in text.split("\n"))
        text = coloured(text) if look.colour else text
        self._write(f"{CLEAR}{text}\n{self._foot()}" if self._shown else f"{text}\n")

    def clear(self) -> None:
        """Take the foot away."""
        if self._shown:
            self._shown = []
            self._write(CLEAR)

    def _foot(self) -> str:
        lines = self._shown
        up = f"\x1b[{len(lines) - 1}A" if len(lines) > 1 else ""
        return "\r" + "\x1b[K\r\n".join(lines) + f"\x1b[J{up}\r" if lines else ""

    def _write(self, text: str) -> None:
        # A terminal that has been closed is no reason to end a study.
        with contextlib.suppress(OSError):
            self._stream.write(text)
            self._stream.flush()

    def _stop(self, number: int, _frame: FrameType | None) -> None:
        foot, self._shown = self._shown, []
        if foot:
            self._write(CLEAR)
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        # Here we go on again.
        signal.signal(number, self._stop)
        self.show(foot)


def _broken(line: str, columns: int) -> str:
    if len(line) <= columns:
        return line
    # Not inside a word: a path or a name is copied whole.
    lines = textwrap.wrap(
        line, columns, subsequent_indent="    ", break_on_hyphens=False, break_long_words=False, drop_whitespace=True
    )
    return "\n".join(lines)


def look_of(stream: TextIO) -> Look:
    """What a stream can show."""
    terminal = stream.isatty()
    size = UNKNOWN_SIZE
    if terminal:
        with contextlib.suppress(OSError, ValueError):
            size = os.get_terminal_size(stream.fileno())
    return Look(
        colour=wants_colour(os.environ, terminal=terminal),
        blocks=shows_blocks(stream.encoding, os.environ),
        # A pseudo-terminal that nobody has told its size says 0.
        columns=size.columns or UNKNOWN_SIZE.columns,
        rows=size.lines or UNKNOWN_SIZE.lines,
    )


class _Painted:
    """A stream whose severities, statuses and verdicts are coloured as they are written."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._stream.write(coloured(text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def dressed_output(*, plain: bool) -> Iterator[None]:
    """Standard output in colour where that is wanted; tables as wide as its terminal. `plain`: nothing of it."""
    stream, look = sys.stdout, look_of(sys.stdout)
    before = OUTPUT_COLUMNS.set(look.columns if stream.isatty() and not plain else None)
    if look.colour and not plain:
        sys.stdout = _Painted(stream)
    try:
        yield
    finally:
        sys.stdout = stream
        OUTPUT_COLUMNS.reset(before)
