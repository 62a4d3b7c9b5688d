"""Copies of the logs of pods, kept in the campaign's folder while the pods run.

A log is gone with its pod, and a node that rotates logs shows only the newest part. A copy grows with every look; what
it has already is recognised by the time that the node writes before each line.
"""

from __future__ import annotations

import datetime as dt
import fcntl
import hashlib
import os
import re
import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from steelyard import nofollow
from steelyard.errors import SteelyardError
from steelyard.launch.kubernetes.logs import MARK, MAX_LINE_BYTES, bounded_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

CLOSED: Final = b"#closed\n"
"""Last line of a copy that was read after the end of its container."""
TAIL_BYTES: Final = 4 * MAX_LINE_BYTES
MAX_FOLLOWERS: Final = 200
END_S: Final = 10.0
"""How long the answer of a node may take to end after its container has ended."""
_STAMP = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d) ")
_NAME = re.compile(r"(\d{1,7})\.(\d{1,6})\.[0-9a-f]{16}\.log")


def copy_name(task: int, index: int, pod_uid: str) -> str:
    """Return the name of the copy of a pod's log."""
    return f"{task}.{index}.{hashlib.sha256(pod_uid.encode()).hexdigest()[:16]}.log"


def copies_of(folder: Path, task: int) -> list[tuple[int, Path]]:
    """Return the copies of a task with the index of their pods."""
    matches = [(_NAME.fullmatch(name), name) for name in nofollow.names(folder)]
    return [(int(match[2]), folder / name) for match, name in matches if match and int(match[1]) == task]


def tasks_with_copies(folder: Path) -> set[int]:
    """Return the tasks of a job of which a pod was seen started."""
    return {int(match[1]) for name in nofollow.names(folder) if (match := _NAME.fullmatch(name))}


def _moment_ns(line: bytes) -> int | None:
    """Return the time before a line of a log, in nanoseconds."""
    match = _STAMP.match(line)
    if match is None:
        return None
    try:
        whole = dt.datetime.fromisoformat((match[1] + match[3].replace(b"Z", b"+00:00")).decode("ascii"))
        return int(whole.timestamp()) * 10**9 + int((match[2] or b"0").ljust(9, b"0"))
    except (ValueError, OverflowError):
        return None


@dataclass
class _Seen:
    """The newest lines of a copy: those of ours and the others apart, as two streams of a container may overtake."""

    newest_ns: dict[bool, int] = field(default_factory=dict)
    lines: dict[bool, set[bytes]] = field(default_factory=dict)
    floor_ns: int = -1
    """The oldest line that was looked at: of a kind without any newer line, all before it are known."""

    def add(self, line: bytes) -> None:
        moment_ns, ours = _moment_ns(line), _is_ours(line)
        if moment_ns is None:
            return
        if self.floor_ns < 0:
            self.floor_ns = moment_ns
        if moment_ns > self.newest_ns.get(ours, -1):
            self.newest_ns[ours], self.lines[ours] = moment_ns, set()
        self.lines.setdefault(ours, set()).add(line)

    def has(self, line: bytes) -> bool:
        moment_ns, ours = _moment_ns(line), _is_ours(line)
        newest_ns = self.newest_ns.get(ours, self.floor_ns)
        if moment_ns is None:
            return True
        return moment_ns < newest_ns or (moment_ns == newest_ns and line in self.lines.get(ours, ()))


def _is_ours(line: bytes) -> bool:
    return line.partition(b" ")[2].startswith(MARK)


class Copy:
    """The copy of one pod's log."""

    def __init__(self, path: Path, limit_bytes: int) -> None:
        self.path, self._limit_bytes = path, limit_bytes

    @contextmanager
    def _locked(self) -> Iterator[int]:
        """Open the copy to append; SteelyardError if another process is writing it."""
        with nofollow.open_file(self.path, "a") as file:
            try:
                fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise SteelyardError(f"{self.path} is being written by another process") from None
            yield file.fileno()

    def begin(self) -> None:
        """Create the copy: its existence shows that the container has begun."""
        nofollow.open_file(self.path, "a").close()

    @property
    def closed(self) -> bool:
        """Whether it has all that the container printed until its end."""
        return self._tail().endswith(CLOSED)

    def _tail(self) -> bytes:
        with suppress(FileNotFoundError), nofollow.open_file(self.path) as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
            tail: bytes = file.read(TAIL_BYTES)
            return tail
        return b""

    def since(self) -> str | None:
        """Return the second of its newest line, in the API's form; None: it has none."""
        newest_ns = [moment for line in self._tail().splitlines() if (moment := _moment_ns(line)) is not None]
        if not newest_ns:
            return None
        return dt.datetime.fromtimestamp(max(newest_ns) // 10**9, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def add(self, chunks: Iterable[bytes], *, last: bool = False) -> None:
        """Append the lines that it does not have. `last`: the container has ended, nothing follows them."""
        with self._locked() as handle:
            seen, size = _Seen(), os.fstat(handle).st_size
            for line in self._tail().splitlines():
                seen.add(line)
            for line in bounded_lines(chunks):
                if not seen.has(line) and size + len(line) < self._limit_bytes:
                    os.write(handle, line + b"\n")
                    size += len(line) + 1
            if last:
                os.write(handle, CLOSED)

    def lines(self) -> Iterator[bytes]:
        """Yield the lines as the pod printed them."""
        left = self._limit_bytes + len(CLOSED)
        with suppress(FileNotFoundError), nofollow.open_file(self.path) as file:
            # What is beyond the limit was not written by us.
            while left > 0 and (line := file.readline(2 * MAX_LINE_BYTES)):
                left -= len(line)
                text = _STAMP.sub(b"", line, count=1)
                if line != CLOSED and len(text) < len(line):
                    yield text.rstrip(b"\n")


class Followers:
    """Threads that append to copies while their pods run: nothing is lost to rotation."""

    def __init__(self) -> None:
        self._threads: dict[str, threading.Thread] = {}

    def start(self, copy: Copy, stream: Callable[[], Iterable[bytes]]) -> bool:
        """Follow a log, unless it is being followed or too many are; return whether it is being followed."""
        name = str(copy.path)
        self._threads = {key: thread for key, thread in self._threads.items() if thread.is_alive()}
        if name in self._threads:
            return True
        if len(self._threads) >= MAX_FOLLOWERS:
            return False

        def follow() -> None:
            # Whatever ends it: the next look reads what is missing, or starts it again.
            with suppress(SteelyardError, OSError):
                copy.add(stream())

        self._threads[name] = threading.Thread(target=follow, name=f"log {copy.path.name}", daemon=True)
        self._threads[name].start()
        return True

    def finish(self, copy: Copy) -> None:
        """Wait for the rest of a log whose container has ended."""
        thread = self._threads.pop(str(copy.path), None)
        if thread is not None:
            thread.join(END_S)
