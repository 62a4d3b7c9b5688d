"""Record the reason when the process receives SIGTERM, even while the main thread is inside a library."""

from __future__ import annotations

import os
import signal
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def on_terminate(report: Callable[[str], None]) -> None:
    """Call `report` with the reason on SIGTERM, then end the process.

    A Python signal handler runs only when the main thread returns to the interpreter. A rank that waits for a dead one
    never does. The C-level part of the handler writes to a pipe at once, and a thread reads it.
    """
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    order = bytes([signal.SIGTERM])

    def wait() -> None:
        # Every handled signal arrives here; the DataLoader installs a handler for the end of its workers.
        while os.read(reading, 1) != order:
            pass
        try:
            report("terminated by SIGTERM")
        finally:
            os._exit(128 + signal.SIGTERM)

    def forget() -> None:
        # A DataLoader worker must neither ignore the signal nor write to this process's pipe.
        if threading.current_thread() is threading.main_thread():
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    # The handler writes too, in case a library takes over the wake-up file descriptor.
    signal.signal(signal.SIGTERM, lambda _number, _frame: os.write(writing, order))
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    os.register_at_fork(after_in_child=forget)
    threading.Thread(target=wait, daemon=True, name="ending").start()
