"""The output of a program: passed on as it is, a terminal where ours is one, and its first and last part in a log."""

from __future__ import annotations

import fcntl
import os
import select
import termios
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_PART_BYTES = 1 << 20
READ_BYTES = 1 << 16
STDOUT, STDERR = 1, 2
_OUTPUT_FLAGS, _LOCAL_FLAGS = 1, 3


class BoundedLog:
    """Keeps the first and the last part of what it is given. A full disk is no concern of the program."""

    def __init__(self, handle: int) -> None:
        self._handle = handle
        self._lock = threading.Lock()
        self._last = bytearray()
        self._cut = 0
        self.total_bytes = 0

    def add(self, data: bytes) -> None:
        """Write the first part at once, so that it is there whatever happens; the last part waits for the end."""
        with self._lock:
            room = max(0, MAX_PART_BYTES - self.total_bytes)
            self.total_bytes += len(data)
            self._write(data[:room])
            self._last += data[room:]
            # Not on every call: cutting moves what is left.
            if len(self._last) > 2 * MAX_PART_BYTES:
                self._shorten()

    def finish(self) -> None:
        """Write the last part."""
        with self._lock:
            self._shorten()
            if self._cut:
                self._write(f"\n[{self._cut:,} bytes of output were not kept]\n".encode())
            self._write(bytes(self._last))
            os.close(self._handle)

    def _shorten(self) -> None:
        extra = len(self._last) - MAX_PART_BYTES
        if extra > 0:
            self._cut += extra
            del self._last[:extra]

    def _write(self, data: bytes) -> None:
        with suppress(OSError):
            while data:
                data = data[os.write(self._handle, data) :]


class Passage:
    """One way out of a program: what it writes at one end is passed on at ours."""

    def __init__(self, target: int | None, log: BoundedLog, done: Callable[[], None]) -> None:
        """`target`: our own output; None: only the log. `done` is called when the last writer has closed its end."""
        self._target, self._log, self._done = target, log, done
        self.terminal = target is not None and os.isatty(target)
        self._source, self.entry = os.openpty() if self.terminal else os.pipe()
        if self.terminal:
            self._take_over_modes()
            self.take_over_size()
        self._writing = False
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._pump, daemon=True, name="output")

    def start(self) -> None:
        """Pass on what is written; the program has its end by now."""
        os.close(self.entry)
        self._thread.start()

    def take_over_size(self) -> None:
        """Give the program's terminal the size of ours."""
        with suppress(OSError):
            if self.terminal and self._target is not None:
                size = fcntl.ioctl(self._target, termios.TIOCGWINSZ, bytes(8))
                fcntl.ioctl(self._source, termios.TIOCSWINSZ, size)

    @property
    def is_open(self) -> bool:
        """Whether something may still be written."""
        return not self._closed.is_set()

    def finish(self) -> None:
        """Wait until everything is passed on. Nobody writes any more; but our reader may be slow, such as a pager."""
        self._thread.join(1.0)
        while self._thread.is_alive() and self._writing:
            self._thread.join(1.0)

    def _take_over_modes(self) -> None:
        """Our own terminal adds the carriage returns and echoes what is typed: the program's must not do it again."""
        with suppress(termios.error):
            modes = termios.tcgetattr(self._target or 0)
            modes[_OUTPUT_FLAGS] &= ~termios.OPOST
            modes[_LOCAL_FLAGS] &= ~termios.ECHO
            termios.tcsetattr(self.entry, termios.TCSANOW, modes)

    def _pump(self) -> None:
        try:
            # A terminal without writers gives an error instead of an end.
            with suppress(OSError):
                while data := os.read(self._source, READ_BYTES):
                    self._log.add(data)
                    self._pass_on(data)
        finally:
            # If our reader has gone, the program learns it from its next write, as it would without us.
            os.close(self._source)
            # Before `done`, whose listener looks at it: our thread still lives for a moment.
            self._closed.set()
            self._done()

    def _pass_on(self, data: bytes) -> None:
        if self._target is None:
            return
        self._writing = True
        while data:
            # Whoever shares our output may have told it not to wait.
            select.select([], [self._target], [])
            with suppress(BlockingIOError):
                data = data[os.write(self._target, data) :]
        self._writing = False


class ProgramOutput:
    """Standard output and standard error of a program."""

    def __init__(self, log: BoundedLog, done: Callable[[], None], *, show: bool) -> None:
        """`show`: pass it on to our own, not only to the log."""
        self.log = log
        # In one place ours keep their order, and so must those of the program.
        apart = show and not os.path.samestat(os.fstat(STDOUT), os.fstat(STDERR))
        targets: list[int | None] = [STDOUT, STDERR] if apart else [STDOUT if show else None]
        self.passages = [Passage(target, log, done) for target in targets]

    @property
    def entries(self) -> tuple[int, int]:
        """What the program gets as its standard output and standard error."""
        return self.passages[0].entry, self.passages[-1].entry

    @property
    def is_open(self) -> bool:
        """Whether something may still be written."""
        return any(passage.is_open for passage in self.passages)
