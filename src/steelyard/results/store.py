"""The result folder, on any shared file system. A run is written in a scratch folder, renamed into place, and never
changed. Atomic renames replace locks and servers. The folder may be somebody else's: no file in it is reached through
a link. A run that is archived is read where it is; if it is in both places, the folder counts. Layout:

    FOLDER/runs/STUDY/RUN_ID/record.json     the record
                            /raw/...         the raw files that it was derived from
    FOLDER/archive/SEGMENT/...               many such folders in one file each; see results/segments.py
    FOLDER/superseded/STUDY/RUN_ID.N/        a run that was set aside and is run again
    FOLDER/studies/STUDY-DIGEST.json         a study and the ids of its runs, as it was last run or submitted
    FOLDER/campaigns/STUDY/...               what was submitted to a site; see launch/campaign.py
    FOLDER/.scratch/HOST.PIDS.PID.START.XXXXXXXX.RUN_ID/   a run in progress by that process; nobody reads it
"""

from __future__ import annotations

import errno
import itertools
import json
import math
import os
import re
import secrets
import shutil
import socket
import tempfile
from contextlib import contextmanager, suppress
from dataclasses import fields, is_dataclass
from functools import cache
from json.encoder import encode_basestring_ascii
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

from steelyard import nofollow, packed
from steelyard.contracts.base import from_json_object
from steelyard.contracts.observe import (
    FIRST_EVENTS,
    PROGRESS_FILE,
    RESERVE_FILE,
    SPEC_FILE,
    Environment,
    read_events,
)
from steelyard.contracts.record import RunRecord
from steelyard.errors import InputError, Problem, SteelyardError, leave_out, nearest, refusal
from steelyard.inputs.validate import MAX_RECORD_BYTES, parse_json, read_inside
from steelyard.results.segments import RAW, RECORD_FILE, Segments

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from steelyard.contracts.spec import RunSpec

__all__ = ["RAW", "RECORD_FILE"]
T = TypeVar("T")
CAMPAIGNS = "campaigns"
PLANS = "studies"
SUPERSEDED = "superseded"
# Enough for the last events of a run and its record, on a disk that the run has filled.
RESERVE_BYTES = 1 << 18
IN_THE_WAY = (errno.ENOTEMPTY, errno.EEXIST)
MAX_PROGRESS_BYTES = 1 << 16
COPIED_BYTES = 1 << 20
FLUSHES = 8
OWN_FOLDER = 0o755
"""Of a new results folder: others can write to it only if its owner says so."""
NOT_OURS = (errno.EACCES, errno.EPERM, errno.EROFS)
NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


class ResultFolder:
    """A folder of results."""

    def __init__(self, path: Path) -> None:
        self.path = path
        """As the user gave it, for messages."""
        self.root = path.resolve()
        self.runs = self.root / "runs"
        """The runs that have a folder of their own, by study."""
        self._scratch = self.root / ".scratch"
        self.archived = Segments(self.root)

    # -- making a run

    def prepare(self) -> None:
        """Create the folder and remove what dead launchers of this host left."""
        try:
            self.root.mkdir(OWN_FOLDER, parents=True, exist_ok=True)
            nofollow.make_folder(self._scratch, exist_ok=True)
            nofollow.make_folder(self.runs, exist_ok=True)
        except OSError as error:
            raise InputError(
                f"cannot write results to {self.path}: {error.strerror}", next_step="give another folder with --results"
            ) from None
        self.sweep_scratch()

    def open_scratch(self, spec: RunSpec) -> Path:
        """Create a scratch directory for a run, on the file system of the results."""
        scratch = self.make_scratch(spec.run_id)
        nofollow.make_folder(scratch / RAW)
        write_json(scratch / RAW / SPEC_FILE, spec)
        with nofollow.open_file(scratch / RAW / RESERVE_FILE, "x") as file:
            file.write(bytes(RESERVE_BYTES))
        return scratch

    def commit(self, scratch: Path, record: RunRecord) -> bool:
        """Move a finished run into place. False: another launcher was first, and its record is kept."""
        write_json(scratch / RECORD_FILE, record)
        self.open_study(record.spec.study)
        if not self.adopt(scratch, record.spec):
            return False
        self.sync_study(record.spec.study)
        return True

    def adopt(self, made: Path, spec: RunSpec) -> bool:
        """Move a run with its record into place; other processes may do the same at this moment.

        False: a record exists already. FileNotFoundError: another process moved the run first.
        """
        place = self.runs / spec.study / spec.run_id
        if self.archived.find(spec.study, spec.run_id):
            return False
        try:
            nofollow.move(made, place)
        except OSError as error:
            if error.errno not in IN_THE_WAY:
                raise
            if self.has(spec):
                return False
            raise SteelyardError(
                f"{place} is not empty and has no record",
                next_step=f"check its content, then: rm -r {place}",
            ) from None
        return True

    def open_study(self, study: str) -> None:
        """Create the folder for the runs of a study."""
        nofollow.make_folder(self.runs / study, exist_ok=True)

    def sync_study(self, study: str) -> None:
        """Flush the study's folder to disk."""
        nofollow.flush(self.runs / study)

    def set_aside(self, run: Path, study: str) -> Path:
        """Move a run to `superseded`, so that it can be run again; return its new place."""
        shelf = self.root / SUPERSEDED / study
        nofollow.make_folder(shelf.parent, exist_ok=True)
        nofollow.make_folder(shelf, exist_ok=True)
        made = self._unpack(run) if packed.inside(run) else run
        for number in itertools.count(1):
            place = shelf / f"{run.name}.{number}"
            try:
                nofollow.move(made, place)
            except OSError as error:
                if error.errno not in IN_THE_WAY:
                    raise
            else:
                break
        if made != run:
            nofollow.remove_tree(made.parent)
        if made != run or run.parent.parent == self.runs:
            self.archived.make_void(study, run.name)
        return place

    def _unpack(self, run: Path) -> Path:
        """Copy the files of an archived run to a scratch folder with its name."""
        scratch = self.make_scratch("unpacked") / run.name
        for folder, target in ((run, scratch), (run / RAW, scratch / RAW)):
            nofollow.make_folder(target)
            for name in nofollow.names(folder):
                if nofollow.is_file(folder / name):
                    with nofollow.open_file(folder / name) as file, nofollow.open_file(target / name, "x") as copy:
                        shutil.copyfileobj(file, copy)
        return scratch

    def make_scratch(self, name: str) -> Path:
        """Create a folder that is swept when this process is gone."""
        # The owner is part of the name: a directory has one from the first moment.
        scratch = self._scratch / f"{owner()}.{secrets.token_hex(4)}.{name}"
        nofollow.make_folder(scratch)
        return scratch

    def sweep_scratch(self) -> int:
        """Remove scratch directories of dead launchers of this host; return their number."""
        removed = 0
        for name in nofollow.names(self._scratch):
            if is_gone(name):
                nofollow.remove_tree(self._scratch / name)
                removed += 1
        return removed

    # -- reading

    def run_path(self, spec: RunSpec) -> Path:
        """Return the directory of a run; that of an archived run is in its archive."""
        return self._find(spec.study, spec.run_id) or self.runs / spec.study / spec.run_id

    def _find(self, study: str, run_id: str) -> Path | None:
        """Return the directory of a run with a record; None: there is none."""
        # In this order: a run is archived before its folder is removed.
        path = self.runs / study / run_id
        return path if nofollow.is_file(path / RECORD_FILE) else self.archived.find(study, run_id)

    def _place(self, study: str, run_id: str) -> Path:
        """Return the directory of a run whose record may be anything; FileNotFoundError: it has none."""
        path = self.runs / study / run_id
        try:
            nofollow.stat(path / RECORD_FILE)
        except (FileNotFoundError, NotADirectoryError):
            archived = self.archived.find(study, run_id)
            if archived is None:
                raise
            return archived
        return path

    def has(self, spec: RunSpec) -> bool:
        """Return whether the run has a record."""
        return self._find(spec.study, spec.run_id) is not None

    def studies(self) -> list[str]:
        """Return the names of the studies with results."""
        return sorted({*nofollow.names(self.runs), *self.archived.studies()})

    def run_ids(self, study: str) -> set[str]:
        """Return the ids of a study's runs, without opening them."""
        return {*self.folder_names(study), *self.archived.run_ids(study)}

    def folder_names(self, study: str) -> list[str]:
        """Return the ids of the runs of a study that have a folder of their own."""
        folder = self.runs / study
        return nofollow.names(folder) if nofollow.is_folder(folder) else []

    def ids_being_made(self) -> set[str]:
        """Return the ids of all runs in progress, in any study."""
        return {name.split(".", 5)[-1] for name in nofollow.names(self._scratch)}

    def records(self, study: str | None = None) -> Iterator[RunRecord]:
        """Yield all records, or those of one study, ordered by study and run id. Unreadable ones are left out."""
        for name in self.studies() if study is None else [study]:
            runs: set[str] = set()
            with _one_of_many(self.runs / name):
                runs = self.run_ids(name)
            for run in sorted(runs):
                record = None
                with _one_of_many(self.runs / name / run), suppress(FileNotFoundError, NotADirectoryError):
                    record = self.read(self._place(name, run))
                if record is not None:
                    yield record

    def read(self, run: Path) -> RunRecord:
        """Read the record of a run's directory; study and run id must match the path."""
        record = self.of_run(run, lambda place: read_record(place / RECORD_FILE))
        if (record.spec.study, record.run_id, record.spec.run_id) != (run.parent.name, run.name, run.name):
            raise InputError(f"{run / RECORD_FILE} is the record of another run: {record.spec.study}/{record.run_id}")
        return record

    def of_run(self, run: Path, read: Callable[[Path], T]) -> T:
        """Return what `read` makes of a run's directory. If the run was archived meanwhile, it is read there."""
        try:
            return read(run)
        except (OSError, SteelyardError):
            place = self._find(run.parent.name, run.name)
            if place is None or place == run:
                raise
            return read(place)

    def empty(self, next_step: str) -> InputError:
        """Return the error for a folder without results; runs of a campaign may wait to be collected."""
        if nofollow.names(self.root / CAMPAIGNS):
            return InputError(f"no results in {self.path} yet: no run is collected", next_step="steelyard status")
        return InputError(f"no results in {self.path}", next_step=next_step)

    def unknown(self, name: str) -> InputError:
        """Return the error for a study or run that does not exist, with the nearest name."""
        studies = self.studies()
        near = nearest(name, studies) or nearest(
            name, (run for study in studies for run in sorted(self.run_ids(study)))
        )
        problem = Problem(name[:200], f"no such study or run in {self.path}", ", ".join(studies), near=near)
        return refusal(problem, next_step=None if near else "steelyard show")

    def planned(self, study: str) -> list[str]:
        """Return the ids of the runs that a study should have, as it was last run or submitted; none: not known."""
        home, name = self.root / PLANS, re.compile(re.escape(study) + r"-[0-9a-f]{12}\.json")
        try:
            plans = [home / file for file in nofollow.names(home) if name.fullmatch(file)]
            latest = max(plans, key=lambda path: nofollow.stat(path).st_mtime_ns, default=None)
            if latest is None:
                return []
            order = json.loads(read_inside(latest, MAX_RECORD_BYTES))["order"]
            return [run for run in order if isinstance(run, str)]
        except (OSError, ValueError, TypeError, KeyError, RecursionError, SteelyardError):
            # It tells what is missing and nothing else: without it, the runs that are there count.
            return []

    def find(self, run_id: str) -> list[Path]:
        """Return the directories of runs with this id; several studies may have one."""
        found = (self._find(study, run_id) for study in self.studies() if run_id in self.run_ids(study))
        return [path for path in found if path is not None]


@contextmanager
def _one_of_many(path: Path) -> Iterator[None]:
    """Leave out what cannot be read, if the command goes on without it."""
    try:
        yield
    except OSError as error:
        leave_out(SteelyardError(f"{path}: {error.strerror or error}"))
    except SteelyardError as error:
        leave_out(error)


def read_record_text(run: Path) -> bytes:
    """Return the record of a run's directory as it is stored."""
    return read_inside(run / RECORD_FILE, MAX_RECORD_BYTES)


def read_record(path: Path) -> RunRecord:
    """Read and check a record; the file is untrusted."""
    return parse_json(RunRecord, read_inside(path, MAX_RECORD_BYTES), str(path))


def read_progress(raw: Path) -> dict[str, Any] | None:
    """Read the progress of a running run; None: none reported yet."""
    try:
        progress = json.loads(read_inside(raw / PROGRESS_FILE, MAX_PROGRESS_BYTES))
    except (SteelyardError, ValueError, RecursionError):
        return None
    return progress if isinstance(progress, dict) else None


def read_environment(raw: Path) -> Environment | None:
    """Read where a running run is; None: not reported yet."""
    try:
        for event in read_events(raw / FIRST_EVENTS):
            if event.pop("kind") == "environment":
                return from_json_object(Environment, event)
    except (OSError, SteelyardError, ValueError):
        return None
    return None


def record_text(record: Any) -> str:
    """Return a contract as text. The same contract always gives the same bytes.

    They are the bytes of `json.dumps(..., indent=1, allow_nan=False)`, which is four times slower with an indent.
    """
    return _json_text(record, "\n") + "\n"


def _json_text(value: Any, line: str) -> str:
    """Return a value as JSON. `line`: a line break and the indent of the next line."""
    if isinstance(value, str):
        return encode_basestring_ascii(value)
    # Most values are numbers or absent, and json.dumps takes ten times as long.
    if value is None:
        return "null"
    if type(value) is int or (type(value) is float and math.isfinite(value)):
        return repr(value)
    inner = line + " "
    if is_dataclass(value) and not isinstance(value, type):
        parts = [f'"{name}": {_json_text(getattr(value, name), inner)}' for name in _field_names(type(value))]
    elif isinstance(value, dict):
        parts = [f"{_json_key(key)}: {_json_text(item, inner)}" for key, item in value.items()]
    elif isinstance(value, (list, tuple)):
        parts = [_json_text(item, inner) for item in value]
        return f"[{inner}{f',{inner}'.join(parts)}{line}]" if parts else "[]"
    else:
        # True and false; json refuses the rest.
        return json.dumps(value, allow_nan=False)
    return f"{{{inner}{f',{inner}'.join(parts)}{line}}}" if parts else "{}"


def _json_key(key: Any) -> str:
    # Keys that are not text are rare; json converts them.
    return encode_basestring_ascii(key) if isinstance(key, str) else json.dumps({key: 0})[1:-4]


@cache
def _field_names(kind: type) -> tuple[str, ...]:
    return tuple(entry.name for entry in fields(kind))


def write_json(path: Path, contract: Any) -> None:
    """Create or replace a file with a contract, atomically, and flush it to disk."""
    replace_text(path, record_text(contract), path.parent, flush=True)


def replace_text(path: Path, text: str, scratch: Path, *, flush: bool = False) -> None:
    """Create or replace a file atomically, through the folder `scratch`."""
    with _beside(path, text, scratch, flush=flush) as beside:
        nofollow.move(beside, path)


def copy_over(path: Path, scratch: Path) -> None:
    """Replace a file atomically by a copy of what it holds now, through the folder `scratch`."""
    with nofollow.open_file(path) as file, _new_beside(path, scratch) as (beside, copy):
        shutil.copyfileobj(file, copy, COPIED_BYTES)
        copy.flush()
        found = os.fstat(file.fileno())
        os.utime(copy.fileno(), ns=(found.st_atime_ns, found.st_mtime_ns))
        nofollow.move(beside, path)


@contextmanager
def _beside(path: Path, text: str, scratch: Path, *, flush: bool) -> Iterator[Path]:
    """Write a new file in `scratch`, to be moved to its place; it is removed in the end."""
    with _new_beside(path, scratch) as (beside, file):
        file.write(text.encode())
        file.flush()
        if flush:
            os.fsync(file.fileno())
        yield beside


@contextmanager
def _new_beside(path: Path, scratch: Path) -> Iterator[tuple[Path, IO[Any]]]:
    """Create a file in `scratch`, to be moved to its place; it is removed in the end."""
    # Random, so that nobody can have put something there before.
    beside = scratch / f".{owner()}.{secrets.token_hex(4)}.{path.name}"
    try:
        with nofollow.open_file(beside, "x") as file:
            yield beside, file
    finally:
        nofollow.remove(beside)


def flush_all(paths: Sequence[Path]) -> None:
    """Flush files to disk, several at a time. Files that no longer exist are skipped."""
    # Imported late: most commands only read.
    from concurrent.futures import ThreadPoolExecutor

    def flush(path: Path) -> None:
        with suppress(FileNotFoundError):
            nofollow.flush(path)

    with ThreadPoolExecutor(FLUSHES) as pool:
        list(pool.map(flush, paths))


def create_once(path: Path, text: str, scratch: Path, *, flush: bool = True) -> bool:
    """Create a file atomically, through the folder `scratch`; False: it exists already."""
    with _beside(path, text, scratch, flush=flush) as beside:
        try:
            nofollow.give_name(beside, path)
        except FileExistsError:
            # A file server may have made the link and lost its reply; the retry then reports that the file exists.
            return nofollow.stat(beside).st_nlink > 1
        except OSError as error:
            # Without links, two processes at the same moment may both believe that they were first.
            if error.errno not in NO_LINKS:
                raise
            if nofollow.is_file(path):
                return False
            nofollow.move(beside, path)
    return True


def own_uid(folder: Path) -> int | None:
    """Return the user id of files that we create in a folder, which a file server may map; None: not writable."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            return os.fstat(file.fileno()).st_uid
    except OSError as error:
        if error.errno not in NOT_OURS:
            raise
        return None


def sweep_halves(folder: Path) -> None:
    """Remove unfinished files of dead processes of this host."""
    for name in nofollow.names(folder):
        if name.startswith(".") and is_gone(name[1:]):
            nofollow.remove(folder / name)


def _host() -> str:
    return socket.gethostname().replace(".", "-") or "unknown"


def _pid_namespace() -> int:
    """Return the pid namespace; containers on this host have their own."""
    try:
        return Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        return 0


def owner() -> str:
    """Return a unique name of this process, for file names."""
    return _owner(os.getpid())


@cache
def _owner(pid: int) -> str:
    return f"{_host()}.{_pid_namespace()}.{pid}.{_start_ticks(pid)}"


def is_gone(name: str) -> bool:
    """Return whether the process in a name made by `owner` ran on this host and has ended.

    False for other hosts, where it is unknown. The start time distinguishes later processes with the same number.
    """
    host, namespace, pid, ticks = [*name.strip().split(".", 4), "", "", "", ""][:4]
    return (host, namespace) == (_host(), str(_pid_namespace())) and str(_start_ticks(pid)) != ticks


def _start_ticks(pid: Any) -> int | None:
    try:
        stat = Path(f"/proc/{int(pid)}/stat").read_text(encoding="utf-8", errors="replace")
        return int(stat.rpartition(")")[2].split()[19])
    except (OSError, ValueError, TypeError, IndexError):
        return None
