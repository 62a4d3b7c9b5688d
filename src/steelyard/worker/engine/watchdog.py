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
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import FrameType

# Modules that are on a stack only while something is being compiled, not while compiled code runs.
COMPILER_FILES = ("torch/_dynamo/convert_frame.py", "torch/_inductor/compile_fx.py", "triton/compiler/compiler.py")
COMPILING_FILE = "compiling"
# How long after the thread should have acted the interpreter's timer does.
BACKSTOP_S = 5.0
SHOWN_FRAMES = 12


class Watchdog:
    """Watches the thread that made it."""

    def __init__(self, limit_s: float, folder: Path, bark: Callable[[str], None]) -> None:
        self._limit_s = limit_s
        self._folder = folder
        self._bark = bark
        self._watched = threading.get_ident()
        self._last_s = time.monotonic()
        self._wake = threading.Event()
        self._ended = False
        self._thread = threading.Thread(target=self._watch, daemon=True, name="watchdog")

    def start(self) -> None:
        """From now on the watched thread must get on."""
        self.beat()
        self._thread.start()

    def beat(self) -> None:
        """It got on."""
        self._last_s = time.monotonic()
        faulthandler.dump_traceback_later(self._limit_s + BACKSTOP_S, exit=True, file=2)

    def stop(self) -> None:
        """Watch no more."""
        self._ended = True
        self._wake.set()
        faulthandler.cancel_dump_traceback_later()

    def _watch(self) -> None:
        while not self._ended:
            silent_s = time.monotonic() - self._last_s
            # Twice within the limit: others that wait for our compiler must learn of it before their own limit.
            if silent_s > self._limit_s / 3 and self._compiling():
                self.beat()
                self._tell_others()
            elif silent_s >= self._limit_s:
                if self._others_compile():
                    self.beat()
                else:
                    self._bark(self._where())
                    return
            self._wake.wait(max(0.05, self._limit_s / 4))

    def _compiling(self) -> bool:
        # Any thread: the backward graph is compiled on the thread that runs it.
        frame: FrameType | None
        for frame in sys._current_frames().values():  # noqa: SLF001 -- the interpreter's only way to see stacks
            while frame is not None:
                if frame.f_code.co_filename.endswith(COMPILER_FILES):
                    return True
                frame = frame.f_back
        return False

    def _tell_others(self) -> None:
        try:
            (self._folder / COMPILING_FILE).touch()
        except OSError:
            return

    def _others_compile(self) -> bool:
        try:
            age_s = time.time() - (self._folder / COMPILING_FILE).stat().st_mtime
        except OSError:
            return False
        return age_s < self._limit_s

    def _where(self) -> str:
        frame = sys._current_frames().get(self._watched)  # noqa: SLF001
        if frame is None:
            return "its thread is gone"
        lines = traceback.extract_stack(frame)[-SHOWN_FRAMES:]
        return " < ".join(f"{line.name} ({line.filename}:{line.lineno})" for line in reversed(lines))
