"""Lines at the foot of a terminal that change while others are printed above them."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any, Self

from rich.console import Group
from rich.control import Control
from rich.live import Live
from rich.segment import ControlType, Segment, Segments

from steelyard.terminal.console import console_of, print_folded

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType

    from rich.console import ConsoleRenderable
    from rich.text import Text

CLEAR = Segments([Segment("\r\x1b[J", None, [(ControlType.CARRIAGE_RETURN,)])])


class _Live(Live):
    """A live display whose cursor waits at its first character instead of its last.

    A narrower window breaks the lines of the display anew, below the cursor: clearing from there removes all of them.
    """

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        lines = self.console.render_lines(self.get_renderable(), pad=False) if self.is_started else []
        shown: list[Segment] = []
        for line in lines[: max(1, self.console.height - 1)]:
            shown += [Segment.line(), *line] if shown else line
        up = sum(segment.text == "\n" for segment in shown)
        home = Control(ControlType.CARRIAGE_RETURN, *([(ControlType.CURSOR_UP, up)] if up else []))
        return [CLEAR, *renderables, Segments(shown), home]


class Foot:
    """The foot of standard error. In a pipe, a file or a dumb terminal only what is printed above it appears."""

    def __init__(self, *, live: bool = True) -> None:
        self.console = console_of(sys.stderr)
        self.live = live and self.console.is_interactive
        """Whether there is a foot."""
        # Drawn only on a change, without a thread: what is measured shares this machine.
        self._display = _Live(
            console=self.console, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False
        )
        self._shown: list[str | Text] = []
        self._handler: Any = None

    def __enter__(self) -> Self:
        if self.live:
            self._display.start()
            if threading.current_thread() is threading.main_thread():
                self._handler = signal.signal(signal.SIGTSTP, self._suspend)
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._display.stop()
        if self._handler is not None:
            signal.signal(signal.SIGTSTP, self._handler)

    def show(self, lines: Sequence[str | Text]) -> None:
        """Replace the lines of the foot. Each must be narrower than the terminal."""
        if self.live and list(lines) != self._shown:
            self._shown = list(lines)
            with contextlib.suppress(OSError):
                self._display.update(Group(*self._shown), refresh=True)

    def above(self, text: str) -> None:
        """Print lines that stay."""
        # A closed terminal does not end a study.
        with contextlib.suppress(OSError):
            print_folded(self.console, text)

    def _suspend(self, number: int, _frame: FrameType | None) -> None:
        """Ctrl-Z: give the shell a clean terminal with a cursor, and draw the foot again when resumed."""
        self._display.stop()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        signal.signal(number, self._suspend)
        self._display.start(refresh=True)
