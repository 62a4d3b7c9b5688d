"""Turns an order to end into a word in the record, even while the main thread is inside a library. Knows signals."""

from __future__ import annotations

import os
import signal
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def on_terminate(say: Callable[[str], None]) -> None:
    """Call `say` with the reason when SIGTERM comes, then end the process.

    A Python handler runs only when the main thread returns to the interpreter, and a rank that waits for a dead one
    never does. The system's part of the handler writes to a pipe at once; a thread reads it.
    """
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    order = bytes([signal.SIGTERM])

    def wait() -> None:
        # Every signal that has a handler comes through here; a loader installs one for the end of its processes.
        while os.read(reading, 1) != order:
            pass
        try:
            say("told to end by SIGTERM")
        finally:
            os._exit(128 + signal.SIGTERM)

    def forget() -> None:
        # A loader process must neither ignore the signal nor write into our pipe.
        if threading.current_thread() is threading.main_thread():
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    # The handler writes too: a library that takes the wake-up for itself must not make us deaf.
    signal.signal(signal.SIGTERM, lambda _number, _frame: os.write(writing, order))
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    os.register_at_fork(after_in_child=forget)
    threading.Thread(target=wait, daemon=True, name="ending").start()
