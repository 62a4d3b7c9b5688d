"""End a process that makes no progress, and report where it was.

A thread checks for progress. As a backstop, the interpreter's own timer, which needs no lock, ends a process whose
hang holds the GIL. Compilation is not a hang: it is recognised by the stack of the compiling thread, and the other
ranks, which wait for it, see it by a file.
"""

from __future__ import annotations

import faulthandler
import sys
import threading
import time
import traceback
from contextlib import suppress
from typing import TYPE_CHECKING

from steelyard.contracts.observe import COMPILING_FILE

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import FrameType

# Modules that are on a stack only during compilation. One of them also has a function, `run`, that calls compiled
# code.
COMPILER_FILES = ("torch/_dynamo/convert_frame.py", "torch/_inductor/compile_fx.py", "triton/compiler/compiler.py")
RUNS_COMPILED = "run"
# Limit before the first block of steps and after the last: long, but finite.
PATIENCE_S = 1800.0
# How long after the thread's limit the interpreter's timer acts.
BACKSTOP_S = 5.0
SHOWN_FRAMES = 12


class Watchdog:
    """Watches the thread that created it. On a hang it calls `bark` with the limit and the thread's stack."""

    def __init__(self, limit_s: float, folder: Path, bark: Callable[[float, str], None]) -> None:
        self._usual_s = limit_s
        self._limit_s = max(limit_s, PATIENCE_S)
        self._file = folder / COMPILING_FILE
        self._bark = bark
        self._watched = threading.get_ident()
        self._last_s = time.monotonic()
        self._others = self._mark()
        self._wake = threading.Event()
        self._lock = threading.Lock()
        self._ended = False
        self._thread = threading.Thread(target=self._watch, daemon=True, name="watchdog")

    def start(self) -> None:
        """Start watching; until the first beat the limit is PATIENCE_S."""
        self._rest()
        self._thread.start()

    def beat(self) -> None:
        """Report progress."""
        self._rest(self._usual_s)

    def finish(self) -> None:
        """No more beats will come; the limit is PATIENCE_S again."""
        self._rest(max(self._usual_s, PATIENCE_S))

    def stop(self) -> None:
        """Stop watching."""
        with self._lock:
            self._ended = True
            faulthandler.cancel_dump_traceback_later()
        self._wake.set()
        with suppress(OSError):
            self._file.unlink()

    def _rest(self, limit_s: float | None = None) -> None:
        """Begin to wait anew, with another limit if it is given."""
        with self._lock:
            if not self._ended:
                self._last_s, self._limit_s = time.monotonic(), limit_s or self._limit_s
                faulthandler.dump_traceback_later(self._limit_s + BACKSTOP_S, exit=True, file=2)

    def _watch(self) -> None:
        # Several checks within the limit, so that ranks waiting for our compiler see it before their own limit.
        look_s = self._usual_s / 4
        while not self._ended:
            if compiling := self._compiling():
                with suppress(OSError):
                    self._file.touch()
            if self._others_compile() or compiling:
                # No look at the clock: this thread may be delayed as well.
                self._rest()
                left_s = self._limit_s
            else:
                with self._lock:
                    left_s = self._last_s + self._limit_s - time.monotonic()
                    if left_s <= 0 and not self._ended:
                        self._bark(self._limit_s, stack_of(self._watched))
                        return
            self._wake.wait(max(0.05, min(look_s, left_s)))

    def _compiling(self) -> bool:
        # Check all threads: the backward graph is compiled on the thread that runs it.
        frame: FrameType | None
        for frame in sys._current_frames().values():  # noqa: SLF001 -- the interpreter's only way to see stacks
            while frame is not None:
                code = frame.f_code
                if code.co_filename.endswith(COMPILER_FILES) and code.co_name != RUNS_COMPILED:
                    return True
                frame = frame.f_back
        return False

    def _others_compile(self) -> bool:
        """Whether the file was touched since the last check. Only changes count: clocks of shared disks may differ."""
        before, self._others = self._others, self._mark()
        return self._others not in (before, None)

    def _mark(self) -> int | None:
        try:
            return self._file.stat().st_mtime_ns
        except OSError:
            return None


def stack_of(thread: int) -> str:
    """Return the stack of a thread, innermost call first."""
    frame = sys._current_frames().get(thread)  # noqa: SLF001 -- as above
    if frame is None:
        return "the thread has ended"
    lines = traceback.extract_stack(frame)[-SHOWN_FRAMES:]
    return " < ".join(f"{line.name} ({line.filename}:{line.lineno})" for line in reversed(lines))
