"""Fold finished runs into segments of the archive, and drop raw files that are no longer kept.

No process waits for another, and each may be killed at any moment. A segment is written in a scratch folder, flushed,
and renamed into place; only then are the folders of its runs removed, each by a rename first. So a run is always whole
in at least one place. It may be in two, which readers count as one: the folder before the archive, and of several
segments the last.
"""

from __future__ import annotations

import errno
import os
import random
import secrets
import time
from calendar import timegm
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from steelyard import nofollow, packed
from steelyard.errors import InputError, SteelyardError
from steelyard.inputs.validate import MAX_RECORD_BYTES
from steelyard.results import rows
from steelyard.results.store import RAW, RECORD_FILE, SUPERSEDED, ResultFolder

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Sequence
    from pathlib import Path
    from typing import IO

SEGMENT_RUNS = 4096
"""Runs in a segment, at most."""
SEGMENT_BYTES = 1 << 32
"""A segment with more raw files than this is closed early."""
SMALL_SEGMENTS = 16
"""As many segments with less than a quarter of the runs are merged."""
NO_RAW = "no-raw"
"""An empty file in a segment whose raw files were dropped."""
SEGMENT_TIME = "%Y%m%dT%H%M%S"
PIECE_BYTES = 1 << 23
REMOVERS = 8
NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EIO)


@dataclass
class Folded:
    """What one call did."""

    runs: int = 0
    segments: int = 0
    bytes: int = 0
    merged: int = 0
    """Segments that were replaced, because they were small or their raw files were dropped."""
    waiting: dict[str, str] = field(default_factory=dict)
    """Studies that were left alone, and why."""
    left: list[str] = field(default_factory=list)
    """Runs that were left where they are, and why."""


@dataclass
class _Run:
    """A run in a segment that is being written."""

    study: str
    run_id: str
    path: Path
    age_s: float = 0.0
    state: tuple[int, int, int] = (0, 0, 0)
    """Inode, time and size of its record when it was read."""


class SegmentWriter:
    """A segment that is being written to a scratch folder."""

    def __init__(self, folder: ResultFolder) -> None:
        self.folder, self.runs = folder, list[_Run]()
        self.scratch = folder.make_scratch("archive")
        self.path = self.scratch / "segment"
        nofollow.make_folder(self.path)
        self._tar: IO[bytes] = nofollow.open_file(self.path / packed.TAR, "x")
        self._lines: IO[bytes] = nofollow.open_file(self.path / rows.LINES, "x")
        self._longest = 0
        self.bytes = 0
        self._index: list[bytes] = []

    def add(self, run: _Run, *, raw: bool) -> None:
        """Add a run. An error of the run itself leaves the segment as it was."""
        name = f"{run.study}/{run.run_id}"
        if not packed.fits(name, RECORD_FILE):
            raise InputError(f"{name}: the name is too long for an archive")
        unknown = [entry for entry in nofollow.names(run.path) if entry not in (RECORD_FILE, RAW)]
        if unknown:
            raise InputError(f"{run.path} has files that are not of a run: {', '.join(unknown)[:200]}")
        start = self._tar.tell()
        path, changed = run.path / RECORD_FILE, 0
        try:
            with nofollow.open_file(path) as file:
                text = file.read(MAX_RECORD_BYTES + 1)
                if not packed.inside(path):
                    found = os.fstat(file.fileno())
                    run.state, changed = (found.st_ino, found.st_mtime_ns, found.st_size), int(found.st_mtime)
            if len(text) > MAX_RECORD_BYTES:
                raise InputError(f"{path} is larger than {MAX_RECORD_BYTES:,} bytes, the limit for such a file")
            line = rows.line_of(text, run.study, run.run_id)
            header = packed.make_header(name, RECORD_FILE, len(text), changed)
            self._tar.write(header + text + packed.padding(len(text)))
            if raw:
                self._add_raw(run, name)
        except (SteelyardError, OSError):
            self._tar.seek(start)
            self._tar.truncate()
            raise
        self._longest = max(self._longest, len(line))
        self._lines.write(line)
        end = self._tar.tell()
        self._index.append(f"{name} {start} {end - start}\n".encode())
        self.bytes = end
        self.runs.append(run)

    def _add_raw(self, run: _Run, name: str) -> None:
        if packed.inside(run.path):
            for member in nofollow.names(run.path / RAW):
                path = run.path / RAW / member
                with nofollow.open_file(path) as file:
                    self._copy(name, member, nofollow.stat(path).st_size, 0, file.read)
            return
        with suppress(FileNotFoundError):
            for member, handle, found in nofollow.open_files(run.path / RAW):
                self._copy(name, member, found.st_size, int(found.st_mtime), partial(os.read, handle))

    def _copy(self, run: str, member: str, size: int, changed: int, read: Callable[[int], bytes]) -> None:
        member = f"{RAW}/{member}"
        if not packed.fits(run, member):
            raise InputError(f"{run}/{member}: the name is too long for an archive")
        header, left = packed.make_header(run, member, size, changed), size
        while left > PIECE_BYTES:
            piece = read(PIECE_BYTES)
            if not piece:
                break
            self._tar.write(header + piece)
            header, left = b"", left - len(piece)
        piece = read(left)
        if len(piece) != left:
            raise InputError(f"{run}/{member} changed while it was read")
        self._tar.write(header + piece + packed.padding(size))

    def publish(self, *, raw: bool) -> str:
        """Finish the segment and put it into place; return its name."""
        self._tar.write(bytes(2 * packed.BLOCK))
        with nofollow.open_file(self.path / packed.INDEX, "x") as file:
            file.write(b"".join(sorted(self._index)))
        self._lines.close()
        rows.write_tables(self.path, self._longest)
        nofollow.remove(self.path / rows.LINES)
        if not raw:
            nofollow.open_file(self.path / NO_RAW, "x").close()
        self._tar.close()
        for name in nofollow.names(self.path):
            nofollow.flush(self.path / name)
        nofollow.flush(self.path)
        home = self.folder.archived.path
        nofollow.make_folder(home, exist_ok=True)
        name = time.strftime(SEGMENT_TIME, time.gmtime()) + f"-{secrets.token_hex(4)}"
        nofollow.move(self.path, home / name)
        nofollow.flush(home)
        return name

    def close(self) -> None:
        """Remove the scratch folder, with what was moved there."""
        self._lines.close()
        self._tar.close()
        nofollow.remove_tree(self.scratch)


# -- what is folded


def archive(
    folder: ResultFolder,
    *,
    older_than_s: float = 0.0,
    drop_raw_s: float | None = None,
    busy: Container[str] = (),
    tell: Callable[[Folded], None] = lambda _: None,
) -> Folded:
    """Fold all finished runs that are old enough.

    `drop_raw_s`: raw files of older runs are not kept. `busy`: studies with runs that are not collected yet; they are
    left alone. `tell` is called after each segment.
    """
    rows.import_duckdb()
    folder.prepare()
    done = Folded()
    now = time.time()
    runs = [run for run in _find_runs(folder, busy, done, now) if run.age_s >= older_than_s]
    for raw in (True, False):
        _fold(folder, [run for run in runs if raw != _is_over(run.age_s, drop_raw_s)], done, tell, raw=raw)
    _merge(folder, done, tell, drop_raw_s, now)
    return done


def _is_over(age_s: float, limit_s: float | None) -> bool:
    return limit_s is not None and age_s >= limit_s


def _find_runs(folder: ResultFolder, busy: Container[str], done: Folded, now: float) -> list[_Run]:
    """Return the runs that have a folder, from a random one on: a second process begins elsewhere."""
    found: list[_Run] = []
    for study in nofollow.names(folder.runs):
        if study in busy:
            done.waiting[study] = "not all of its runs are collected"
            continue
        home = folder.runs / study
        try:
            for name in folder.folder_names(study):
                try:
                    with suppress(FileNotFoundError, NotADirectoryError):
                        state = nofollow.stat(home / name / RECORD_FILE)
                        found.append(_Run(study, name, home / name, now - state.st_mtime))
                except nofollow.LinkError as error:
                    done.left.append(f"{study}/{name}: {error}")
        except (OSError, SteelyardError) as error:
            done.left.append(f"{study}: {error}")
    start = random.randrange(len(found)) if found else 0
    return found[start:] + found[:start]


def _fold(
    folder: ResultFolder, runs: Sequence[_Run], done: Folded, tell: Callable[[Folded], None], *, raw: bool
) -> None:
    left = iter(runs)
    while True:
        writer = SegmentWriter(folder)
        try:
            for run in left:
                there = folder.archived.find(run.study, run.run_id)
                if there is None or not _retire_copy(writer, run, there):
                    try:
                        with nofollow.held(run.path):
                            writer.add(run, raw=raw)
                    except FileNotFoundError:
                        # Another process archived it, or set it aside.
                        continue
                    except (SteelyardError, OSError) as error:
                        if isinstance(error, OSError) and error.errno in NO_SPACE:
                            raise
                        done.left.append(f"{run.study}/{run.run_id}: {error}")
                if len(writer.runs) >= SEGMENT_RUNS or writer.bytes >= SEGMENT_BYTES:
                    break
            if not writer.runs:
                return
            name = writer.publish(raw=raw)
            done.segments += 1
            done.runs += len(writer.runs)
            done.bytes += writer.bytes
            # Nearly all of this time is spent waiting for the disk.
            with ThreadPoolExecutor(REMOVERS) as pool:
                list(pool.map(partial(_retire, folder, writer.scratch, name), writer.runs))
        finally:
            writer.close()
        tell(done)


def _retire_copy(writer: SegmentWriter, run: _Run, there: Path) -> bool:
    """Remove the folder of a run that was archived by a process that ended before it removed it."""
    try:
        with nofollow.open_file(run.path / RECORD_FILE) as file, nofollow.open_file(there / RECORD_FILE) as copy:
            if file.read(MAX_RECORD_BYTES) != copy.read(MAX_RECORD_BYTES):
                return False
            found = os.fstat(file.fileno())
            run.state = (found.st_ino, found.st_mtime_ns, found.st_size)
    except (FileNotFoundError, SteelyardError):
        return False
    _retire(writer.folder, writer.scratch, there.parents[2].name, run)
    return True


def _retire(folder: ResultFolder, scratch: Path, segment: str, run: _Run) -> None:
    """Remove the folder of a run that is archived now, unless it is no longer the one that was read."""
    target = scratch / f"{run.study},{run.run_id}"
    try:
        if _state(run.path) != run.state:
            return
        nofollow.move(run.path, target)
        if _state(target) != run.state:
            nofollow.move(target, run.path)
            return
    except FileNotFoundError:
        # Another process archived it too; or it was set aside, and what was archived does not count.
        shelf = folder.root / SUPERSEDED / run.study
        for name in nofollow.names(shelf):
            with suppress(FileNotFoundError, NotADirectoryError):
                if name.startswith(f"{run.run_id}.") and _state(shelf / name) == run.state:
                    folder.archived.make_void(run.study, run.run_id, (segment,))
        return
    nofollow.remove_tree(target)


def _state(path: Path) -> tuple[int, int, int]:
    found = nofollow.stat(path / RECORD_FILE)
    return found.st_ino, found.st_mtime_ns, found.st_size


# -- segments that are replaced


def _merge(
    folder: ResultFolder, done: Folded, tell: Callable[[Folded], None], drop_raw_s: float | None, now: float
) -> None:
    """Replace segments whose raw files are no longer kept, and small ones if there are many."""
    small: dict[bool, list[str]] = {True: [], False: []}
    for name, lines in folder.archived.look().items():
        path = folder.archived.path / name
        with suppress(FileNotFoundError):
            raw = not nofollow.is_file(path / NO_RAW)
            if raw and _is_over(now - timegm(time.strptime(name[:15], SEGMENT_TIME)), drop_raw_s):
                _replace(folder, [name], done, raw=False)
                tell(done)
            elif len(lines) * 4 < SEGMENT_RUNS and nofollow.stat(path / packed.TAR).st_size * 4 < SEGMENT_BYTES:
                small[raw].append(name)
    for raw, names in small.items():
        if len(names) >= SMALL_SEGMENTS:
            _replace(folder, names, done, raw=raw)
            tell(done)


def _replace(folder: ResultFolder, names: Sequence[str], done: Folded, *, raw: bool) -> None:
    """Write one segment with the runs of some, as far as they count and fit, then remove these."""
    writer, replaced = SegmentWriter(folder), list[str]()
    try:
        for name in names:
            if len(writer.runs) + len(folder.archived.look().get(name, ())) > SEGMENT_RUNS:
                break
            for path in folder.archived.runs_of(name):
                writer.add(_Run(path.parent.name, path.name, path), raw=raw)
            replaced.append(name)
        new = writer.publish(raw=raw) if writer.runs else ""
        for run in writer.runs:
            # It may have been set aside meanwhile.
            if run.path not in folder.archived.copies(run.study, run.run_id):
                folder.archived.make_void(run.study, run.run_id, (new,))
        for name in replaced:
            with suppress(FileNotFoundError):
                nofollow.move(folder.archived.path / name, writer.scratch / name)
            folder.archived.forget_void(name)
        done.merged += len(replaced)
    except FileNotFoundError:
        # Another process is replacing them.
        return
    except SteelyardError as error:
        done.left.append(f"{', '.join(names)[:200]}: {error}")
    finally:
        writer.close()
