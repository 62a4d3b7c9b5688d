"""Open, list, create, move and remove files of a results folder without following a link.

A results folder may come from anybody, and others may be able to write to it while we work on it. A link in it could
make us read, change or delete something elsewhere. So every part of a path is opened from the folder before it and
must not be a link; this also holds if somebody swaps a file for a link between two calls.

A path may go through an archive of runs (`packed.py`); a file there can be read, and nothing else.

Paths are absolute and have no links: whoever is given a folder by the user resolves its path once, and all paths below
it are made from that. A link is a LinkError, which names it. Everything else is the usual OSError.
"""

from __future__ import annotations

import errno
import os
import stat as modes
import threading
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING, Any, Final, Literal

from steelyard import packed
from steelyard.errors import SteelyardError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# O_PATH needs no permission to list the folders above ours.
_FOLDER: Final = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# A pipe must not block us; it is refused after it was opened.
_COMMON: Final = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_FLAGS: Final = {
    "r": os.O_RDONLY,
    "x": os.O_WRONLY | os.O_CREAT | os.O_EXCL,
    "a": os.O_WRONLY | os.O_CREAT | os.O_APPEND,
}
_BY_OTHERS: Final = modes.S_IWGRP | modes.S_IWOTH
_NOT_A_FOLDER: Final = (errno.ENOTDIR, errno.ELOOP)


class _Held(threading.local):
    """The folders that a thread keeps open, and their handles."""

    def __init__(self) -> None:
        self.folders: dict[str, int] = {}


_held = _Held()


class LinkError(SteelyardError):
    """Something below a results folder is a link, or another kind of file that no run makes."""


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Keep a folder open: what is in it is meanwhile reached from there, in this thread, without the way to it."""
    if str(path) in _held.folders or packed.inside(path):
        yield
        return
    with _opened(path, os.O_RDONLY | os.O_DIRECTORY) as handle:
        _held.folders[str(path)] = handle
        try:
            yield
        finally:
            del _held.folders[str(path)]


def _held_at(path: Path) -> tuple[int, str] | None:
    """Return the handle of the folder in which a path is, and its name there, if that folder is kept open."""
    if not _held.folders:
        return None
    # Texts, because paths take longer to compare than files to open.
    text = str(path)
    if (handle := _held.folders.get(text)) is not None:
        return handle, "."
    folder, _, name = text.rpartition("/")
    handle = _held.folders.get(folder)
    return None if handle is None or name == ".." else (handle, name)


@contextmanager
def folder_of(path: Path) -> Iterator[tuple[int, str]]:
    """Yield a handle of the folder in which a path is, and its name there."""
    if (at := _held_at(path)) is not None:
        yield at
        return
    if not path.is_absolute() or ".." in path.parts:
        raise ValueError(f"not an absolute path without '..': {path}")
    handle = os.open("/", _FOLDER)
    try:
        for depth, part in enumerate(path.parts[1:-1]):
            try:
                inner = os.open(part, _FOLDER, dir_fd=handle)
            except OSError as error:
                if error.errno in _NOT_A_FOLDER:
                    _refuse_link(path.parents[len(path.parts) - depth - 3], handle)
                error.filename = str(path)
                raise
            os.close(handle)
            handle = inner
        yield handle, path.name
    finally:
        os.close(handle)


def _refuse_link(path: Path, folder: int) -> None:
    """Raise LinkError if this name in a folder is a link."""
    with suppress(OSError):
        if modes.S_ISLNK(os.stat(path.name, dir_fd=folder, follow_symlinks=False).st_mode):
            raise LinkError(f"{path} is a link; links in a results folder are refused")


def _open(path: Path, flags: int) -> int:
    """Return a handle of a file or folder."""
    if (at := _held_at(path)) is not None:
        return _open_in(path, *at, flags)
    with folder_of(path) as (folder, name):
        return _open_in(path, folder, name, flags)


def _open_in(path: Path, folder: int, name: str, flags: int) -> int:
    try:
        return os.open(name, flags | _COMMON, 0o666, dir_fd=folder)
    except OSError as error:
        if error.errno in _NOT_A_FOLDER:
            _refuse_link(path, folder)
        error.filename = str(path)
        raise


@contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    """Yield a handle of a file or folder."""
    handle = _open(path, flags)
    try:
        yield handle
    finally:
        os.close(handle)


def open_file(path: Path, mode: Literal["r", "x", "a"] = "r") -> IO[Any]:
    """Open a regular file in binary mode: to read, to create, or to append."""
    if mode == "r" and (at := packed.inside(path)):
        return packed.open_member(at, open_file)
    handle = _open(path, _FLAGS[mode])
    try:
        state = os.fstat(handle)
        if not modes.S_ISREG(state.st_mode):
            raise LinkError(f"{path} is not a regular file")
        if mode == "a" and state.st_nlink > 1:
            # A second name of a file outside would be changed with it.
            raise LinkError(f"{path} is a hard link; links in a results folder are refused")
        # What is appended goes to the file in one write.
        return os.fdopen(handle, "rb" if mode == "r" else "wb", buffering=0 if mode == "a" else -1)
    except BaseException:
        os.close(handle)
        raise


def open_own(path: Path, mode: Literal["ab", "wb", "w"], buffering: int = -1) -> IO[Any]:
    """Open a file to write in a folder that we have made; OSError if there is a link of its name.

    The way to the folder may have links: a worker gets the path as its job has it.
    """

    def open_leaf(name: str, flags: int) -> int:
        return os.open(name, flags | os.O_NOFOLLOW, 0o666)

    return open(path, mode, buffering, encoding=None if "b" in mode else "utf-8", opener=open_leaf)


def open_files(path: Path) -> Iterator[tuple[str, int, os.stat_result]]:
    """Yield name, handle and state of each file of a folder, by name; LinkError if one is not a regular file."""
    with _opened(path, os.O_RDONLY | os.O_DIRECTORY) as folder:
        for name in sorted(os.listdir(folder)):  # noqa: PTH208 -- of the folder that was opened
            try:
                handle = os.open(name, os.O_RDONLY | _COMMON, dir_fd=folder)
            except OSError as error:
                _refuse_link(path / name, folder)
                error.filename = str(path / name)
                raise
            try:
                state = os.fstat(handle)
                if not modes.S_ISREG(state.st_mode):
                    raise LinkError(f"{path / name} is not a regular file")
                yield name, handle, state
            finally:
                os.close(handle)


def stat(path: Path) -> os.stat_result:
    """Return the state of a file or folder."""
    if at := packed.inside(path):
        return packed.stat_of(at, open_file)
    with folder_of(path) as (folder, name):
        state = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if modes.S_ISLNK(state.st_mode):
            raise LinkError(f"{path} is a link; links in a results folder are refused")
        return state


def is_file(path: Path) -> bool:
    """Return whether this is a regular file; False if there is nothing."""
    try:
        return modes.S_ISREG(stat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def is_folder(path: Path) -> bool:
    """Return whether this is a folder; False if there is nothing."""
    try:
        return modes.S_ISDIR(stat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def names(path: Path) -> list[str]:
    """Return the sorted names in a folder; none if it does not exist."""
    if at := packed.inside(path):
        return packed.names_of(at, open_file)
    try:
        with _opened(path, os.O_RDONLY | os.O_DIRECTORY) as handle:
            return sorted(os.listdir(handle))  # noqa: PTH208 -- of the folder that was opened
    except FileNotFoundError:
        return []


def flush(path: Path) -> None:
    """Flush a file or folder to disk."""
    with _opened(path, os.O_RDONLY) as handle:
        os.fsync(handle)


def make_folder(path: Path, mode: int = 0o777, *, exist_ok: bool = False) -> None:
    """Create a folder. Others can write to it only if they can write to the folder that it is in."""
    try:
        with folder_of(path) as (folder, name):
            os.mkdir(name, mode & (~_BY_OTHERS | os.fstat(folder).st_mode), dir_fd=folder)
    except FileExistsError:
        if not exist_ok or not is_folder(path):
            raise


def move(source: Path, target: Path) -> None:
    """Move a file or folder, as os.rename."""
    with folder_of(source) as (folder, name), folder_of(target) as (other, new):
        _refuse_link(source, folder)
        _refuse_link(target, other)
        os.rename(name, new, src_dir_fd=folder, dst_dir_fd=other)


def give_name(source: Path, target: Path) -> None:
    """Give a file of ours a second name, which must be new: os.link."""
    with folder_of(source) as (folder, name), folder_of(target) as (other, new):
        os.link(name, new, src_dir_fd=folder, dst_dir_fd=other, follow_symlinks=False)


def remove(path: Path) -> None:
    """Remove a file if it exists."""
    with suppress(FileNotFoundError), folder_of(path) as (folder, name):
        os.unlink(name, dir_fd=folder)


def remove_tree(path: Path) -> None:
    """Remove a folder with all its content, as far as possible; links in it are removed, not followed."""
    with suppress(FileNotFoundError), folder_of(path) as (folder, name):
        _refuse_link(path, folder)
        _remove_folder(folder, name)


def _remove_folder(folder: int, name: str) -> None:
    # shutil.rmtree takes three times as many system calls.
    with suppress(OSError):
        inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | _COMMON, dir_fd=folder)
        try:
            for entry in os.listdir(inner):  # noqa: PTH208 -- of the folder that was opened
                try:
                    os.unlink(entry, dir_fd=inner)
                except OSError:
                    _remove_folder(inner, entry)
        finally:
            os.close(inner)
        os.rmdir(name, dir_fd=folder)
