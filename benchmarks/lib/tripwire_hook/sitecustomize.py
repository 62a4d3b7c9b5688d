"""A tripwire inside a Python process: every process start, connection, and access to a file where none is expected.

A process that the figure forks calls `arm`. Python processes that it starts find this file on PYTHONPATH and are armed
by the variable TRIPWIRE. What is seen is appended to a file, one JSON object per line.
"""

from __future__ import annotations

import json
import os
import stat
import sys
from threading import get_ident
from typing import Any

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
# The event, and which of its arguments is the command line.
STARTS = {
    "subprocess.Popen": 1, "os.exec": 1, "os.posix_spawn": 1, "os.spawn": 2, "os.system": None, "pty.spawn": 0,
    "os.forkpty": None,
}  # fmt: skip
# The event, and which of its arguments are paths, each with the argument that holds the handle of its folder.
CHANGES: dict[str, tuple[tuple[int, int | None], ...]] = {
    "os.rename": ((0, 2), (1, 3)),
    "os.link": ((1, 3),),
    "os.symlink": ((1, 2),),
    "os.remove": ((0, 1),),
    "os.rmdir": ((0, 1),),
    "os.mkdir": ((0, 2),),
    "os.chmod": ((0, 2),),
    "os.chown": ((0, 3),),
    "os.utime": ((0, 3),),
    "os.setxattr": ((0, None),),
    "os.truncate": ((0, None),),
    "shutil.rmtree": ((0, 1),),
}
LISTS = ("os.listdir", "os.scandir")


class Tripwire:
    """What is watched, and where to write it down."""

    def __init__(self) -> None:
        self.log = -1
        self.allowed: tuple[str, ...] = ()
        self.secret: tuple[str, ...] = ()
        self.busy: set[int] = set()
        """Threads whose events are ours."""

    def arm(self, log: str, allowed: tuple[str, ...], secret: tuple[str, ...]) -> None:
        """Begin. Changes are allowed below `allowed`; nothing below `secret` may be read."""
        self.allowed, self.secret = allowed, secret
        real_open = os.open
        self.log = real_open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

        def watched_open(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
            # The audit event lacks the handle of the folder.
            if dir_fd is not None:
                self.opened(place(path, dir_fd, follow=not flags & os.O_NOFOLLOW), flags)
            return real_open(path, flags, mode, dir_fd=dir_fd)

        os.open = watched_open
        sys.addaudithook(self.hear)

    def tell(self, what: str, about: Any) -> None:
        """Write one line."""
        os.write(self.log, (json.dumps({"what": what, "about": about, "pid": os.getpid()}) + "\n").encode())

    def hear(self, event: str, values: tuple[Any, ...]) -> None:
        """Handle one event of the interpreter."""
        thread = get_ident()
        if thread in self.busy or not (
            event in CHANGES or event in LISTS or event in STARTS or event in ("open", "socket.connect")
        ):
            return
        self.busy.add(thread)
        try:
            self.judge(event, values)
        finally:
            self.busy.discard(thread)

    def judge(self, event: str, values: tuple[Any, ...]) -> None:
        """Write an event down if it should not have been."""
        if event in STARTS:
            words = STARTS[event]
            self.tell("start", [os.fsdecode(word) for word in (values if words is None else values[words])])
        elif event == "socket.connect":
            # A name is no connection: resolvers and systemd have local sockets.
            if isinstance(values[1], tuple):
                self.tell("connect", [str(part) for part in values[1]])
        elif event == "open":
            path, mode, flags = values
            # A number is an open file; os.open has no mode, and its relative names are handled by the wrapper.
            if not isinstance(path, int) and (mode is not None or os.path.isabs(os.fspath(path))):
                self.opened(place(path, None, follow=not (flags or 0) & os.O_NOFOLLOW), flags or 0)
        elif event in LISTS:
            path = values[0]
            if not isinstance(path, int):
                self.opened(place(path or ".", None, follow=True), 0)
        else:
            self.changed(event, values)

    def opened(self, path: str, flags: int) -> None:
        """Judge an open file."""
        if flags & WRITING and not flags & os.O_PATH:
            if not path.startswith((*self.allowed, "/proc/self/")) and not is_device(path):
                self.tell("write", path)
        elif path.startswith(self.secret):
            self.tell("read", path)

    def changed(self, event: str, values: tuple[Any, ...]) -> None:
        """Judge a change of names, modes or folders."""
        for at, handle in CHANGES[event]:
            if isinstance(values[at], int):
                continue
            folder = values[handle] if handle is not None and handle < len(values) else None
            path = place(values[at], folder, follow=event in ("os.chmod", "os.chown", "os.truncate"))
            if not path.startswith(self.allowed):
                self.tell(event, path)


def is_device(path: str) -> bool:
    """Return whether a path is in the folder of devices; what is in memory there is a file as others are."""
    return path.startswith("/dev/") and not path.startswith("/dev/shm/")


def is_link(name: Any, handle: int) -> bool:
    """Return whether a name in an open folder is a link."""
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=handle, follow_symlinks=False).st_mode)
    except OSError:
        return False


def place(path: Any, handle: Any, *, follow: bool) -> str:
    """Return where a path leads now: links in its folders are followed, and one at its end if asked for."""
    text = os.fsdecode(path)
    if isinstance(handle, int) and handle >= 0 and not os.path.isabs(text):
        text = os.path.join(os.readlink(f"/proc/self/fd/{handle}"), text)
        # An open folder is where it is; a race may have put a link in its place meanwhile.
        if "/" not in os.fsdecode(path) and not (follow and is_link(path, handle)):
            return text
    if follow:
        return os.path.realpath(text)
    head, tail = os.path.split(text.rstrip("/"))
    return os.path.join(os.path.realpath(head), tail)


TRIPWIRE = Tripwire()
if "TRIPWIRE" in os.environ:
    told = json.loads(os.environ["TRIPWIRE"])
    TRIPWIRE.arm(told["log"], tuple(told["allowed"]), tuple(told["secret"]))
