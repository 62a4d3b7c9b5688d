"""Lines at the foot of a terminal that change while others are printed above them."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any, Self

from steelyard.terminal import console

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType

    from rich.text import Text

    from steelyard.terminal.live.display import Display


class Foot:
    """The foot of standard error. In a pipe, a file or a dumb terminal only what is printed above it appears."""

    def __init__(self, *, live: bool = True) -> None:
        stream = console.terminal(sys.stderr) if live else None
        self._display: Display | None = None
        if stream is not None and stream.is_interactive:
            from steelyard.terminal.live.display import Display

            # Drawn only on a change, without a thread: what is measured shares this machine.
            self._display = Display(
                console=stream, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False
            )
        self._shown: list[str | Text] = []
        self._handler: Any = None

    @property
    def room(self) -> tuple[int, int] | None:
        """Columns and rows of the terminal; None: there is no foot."""
        return None if self._display is None else self._display.console.size

    def __enter__(self) -> Self:
        if self._display is not None:
            self._display.start()
            if threading.current_thread() is threading.main_thread():
                self._handler = signal.signal(signal.SIGTSTP, self._suspend)
        return self

    def __exit__(self, *_: object) -> None:
        if self._display is not None:
            with contextlib.suppress(OSError):
                self._display.stop()
        if self._handler is not None:
            signal.signal(signal.SIGTSTP, self._handler)

    def show(self, lines: Sequence[str | Text]) -> None:
        """Replace the lines of the foot. Each must be narrower than the terminal."""
        if self._display is not None and list(lines) != self._shown:
            self._shown = list(lines)
            with contextlib.suppress(OSError):
                self._display.draw(self._shown)

    def above(self, text: str) -> None:
        """Print lines that stay."""
        if self._display is None:
            console.say(text)
            return
        # A closed terminal does not end a study.
        with contextlib.suppress(OSError):
            console.print_folded(self._display.console, text)

    def _suspend(self, number: int, _frame: FrameType | None) -> None:
        """Ctrl-Z: give the shell a clean terminal with a cursor, and draw the foot again when resumed."""
        if self._display is not None:
            self._display.stop()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        signal.signal(number, self._suspend)
        if self._display is not None:
            self._display.start(refresh=True)
