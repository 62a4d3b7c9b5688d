"""The processes that a program started, also those that it left behind: find them, and end them."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from contextlib import suppress
from pathlib import Path

PROC = Path("/proc")
KILL_LIMIT_S = 5.0
LOOK_AGAIN_S = 0.01
_PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Make this process the parent of every process below it whose own parent ends: none can leave the tree."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def below(number: int, but: int | None = None) -> list[int]:
    """Return the living processes below one, without the branch of process `but`; parents come before children."""
    children: dict[int, list[int]] = {}
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            # It may end while we look.
            with suppress(OSError, ValueError):
                text = (entry / "stat").read_text(encoding="utf-8", errors="replace")
                # The name in this line may hold blanks and brackets.
                state, parent = text.rpartition(")")[2].split()[:2]
                if state not in "ZX":
                    children.setdefault(int(parent), []).append(int(entry.name))
    living, left = [], [number]
    while left:
        more = [child for child in children.get(left.pop(0), ()) if child != but]
        living += more
        left += more
    return living


def tell(numbers: list[int], order: signal.Signals) -> None:
    """Send a signal to these processes."""
    for number in numbers:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(number, order)


def kill_below(number: int, but: int | None = None) -> None:
    """Kill every process below one; a process may start another while we look."""
    until_s = time.monotonic() + KILL_LIMIT_S
    while (left := below(number, but)) and time.monotonic() < until_s:
        tell(left, signal.SIGKILL)
        time.sleep(LOOK_AGAIN_S)


def reap() -> bool:
    """Collect the children that have ended; return whether there are others."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True
