"""Ends a process that no longer gets on, and says where it stood. Knows threads and stacks, no engine.

A thread looks; behind it the interpreter's own timer, which needs no lock, ends a process whose hang holds the
interpreter. Compilation is no hang: a thread inside torch's compiler is seen by its stack, and the other ranks, which
wait for it, learn of it by a file.
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

# Modules that are on a stack only while something is being compiled. One of them also has a function, `run`, through
# which compiled code is called.
COMPILER_FILES = ("torch/_dynamo/convert_frame.py", "torch/_inductor/compile_fx.py", "triton/compiler/compiler.py")
RUNS_COMPILED = "run"
# For what comes before the first block of steps and after the last: long, but not without end.
PATIENCE_S = 1800.0
# How long after the thread should have acted the interpreter's timer does.
BACKSTOP_S = 5.0
SHOWN_FRAMES = 12


class Watchdog:
    """Watches the thread that made it; `bark` is told the limit that was passed and where the thread stands."""

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
        """From now on the watched thread must get on; until its first beat with patience."""
        self._rest(self._limit_s)
        self._thread.start()

    def beat(self) -> None:
        """It got on."""
        self._rest(self._usual_s)

    def finish(self) -> None:
        """No more beats will come; what is left is watched with patience."""
        self._rest(max(self._usual_s, PATIENCE_S))

    def stop(self) -> None:
        """Watch no more."""
        with self._lock:
            self._ended = True
            faulthandler.cancel_dump_traceback_later()
        self._wake.set()
        with suppress(OSError):
            self._file.unlink()

    def _rest(self, limit_s: float) -> None:
        with self._lock:
            if not self._ended:
                self._last_s, self._limit_s = time.monotonic(), limit_s
                faulthandler.dump_traceback_later(limit_s + BACKSTOP_S, exit=True, file=2)

    def _watch(self) -> None:
        # Three looks within the limit: others that wait for our compiler must learn of it before their own limit.
        look_s = self._usual_s / 4
        while not self._ended:
            if compiling := self._compiling():
                with suppress(OSError):
                    self._file.touch()
            if self._others_compile() or compiling:
                self._rest(self._limit_s)
            with self._lock:
                left_s = self._last_s + self._limit_s - time.monotonic()
                if left_s <= 0 and not self._ended:
                    self._bark(self._limit_s, stack_of(self._watched))
                    return
            self._wake.wait(max(0.05, min(look_s, left_s)))

    def _compiling(self) -> bool:
        # Any thread: the backward graph is compiled on the thread that runs it.
        frame: FrameType | None
        for frame in sys._current_frames().values():  # noqa: SLF001 -- the interpreter's only way to see stacks
            while frame is not None:
                code = frame.f_code
                if code.co_filename.endswith(COMPILER_FILES) and code.co_name != RUNS_COMPILED:
                    return True
                frame = frame.f_back
        return False

    def _others_compile(self) -> bool:
        """Whether the file has been touched since the last look; a shared disk's clock need not be ours."""
        before, self._others = self._others, self._mark()
        return self._others not in (before, None)

    def _mark(self) -> int | None:
        try:
            return self._file.stat().st_mtime_ns
        except OSError:
            return None


def stack_of(thread: int) -> str:
    """Where a thread stands, innermost call first."""
    frame = sys._current_frames().get(thread)  # noqa: SLF001 -- as above
    if frame is None:
        return "its thread is gone"
    lines = traceback.extract_stack(frame)[-SHOWN_FRAMES:]
    return " < ".join(f"{line.name} ({line.filename}:{line.lineno})" for line in reversed(lines))
