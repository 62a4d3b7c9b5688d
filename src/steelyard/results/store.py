"""The result folder, on any shared file system. A run is written in a scratch folder, renamed into place, and never
changed. Atomic renames replace locks and servers. Layout:

    FOLDER/runs/STUDY/RUN_ID/record.json     the record
                            /raw/...         the raw files that it was derived from
    FOLDER/superseded/STUDY/RUN_ID.N/        a run that was set aside and is run again
    FOLDER/campaigns/STUDY/...               what was submitted to a site; see launch/local_study.py
    FOLDER/.scratch/HOST.PIDS.PID.START.XXXXXXXX.RUN_ID/   a run in progress by that process; nobody reads it
"""

from __future__ import annotations

import errno
import itertools
import json
import os
import shutil
import socket
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import fields, is_dataclass
from functools import cache
from json.encoder import encode_basestring_ascii
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steelyard.contracts.observe import PROGRESS_FILE, RESERVE_FILE, SPEC_FILE
from steelyard.contracts.record import RunRecord
from steelyard.errors import InputError, Problem, SteelyardError, nearest, refusal
from steelyard.inputs.validate import MAX_RECORD_BYTES, parse_json, read_bounded

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from steelyard.contracts.spec import RunSpec

RECORD_FILE = "record.json"
RAW = "raw"
# Enough for the last events of a run and its record, on a disk that the run has filled.
RESERVE_BYTES = 1 << 18
IN_THE_WAY = (errno.ENOTEMPTY, errno.EEXIST)
FLUSHES = 8
NOT_OURS = (errno.EACCES, errno.EPERM, errno.EROFS)
NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


class ResultFolder:
    """A folder of results."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._runs = path / "runs"
        self._scratch = path / ".scratch"

    # -- making a run

    def prepare(self) -> None:
        """Create the folder and remove what dead launchers of this host left."""
        try:
            self._scratch.mkdir(parents=True, exist_ok=True)
            self._runs.mkdir(exist_ok=True)
        except OSError as error:
            raise InputError(
                f"cannot write results to {self.path}: {error.strerror}", next_step="give another folder with --results"
            ) from None
        self.sweep_scratch()

    def open_scratch(self, spec: RunSpec) -> Path:
        """Create a scratch directory for a run, on the file system of the results."""
        # The owner is part of the name: a directory has one from the first moment.
        scratch = Path(tempfile.mkdtemp(prefix=f"{owner()}.", suffix=f".{spec.run_id}", dir=self._scratch))
        # mkdtemp excludes other users; results follow the user's umask, which can only be read by setting it.
        mask = os.umask(0o077)
        os.umask(mask)
        scratch.chmod(0o777 & ~mask)
        (scratch / RAW).mkdir()
        write_json(scratch / RAW / SPEC_FILE, spec)
        (scratch / RAW / RESERVE_FILE).write_bytes(bytes(RESERVE_BYTES))
        return scratch

    def commit(self, scratch: Path, record: RunRecord) -> bool:
        """Move a finished run into place. False: another launcher was first, and its record is kept."""
        write_json(scratch / RECORD_FILE, record)
        place = self.run_path(record.spec)
        place.parent.mkdir(parents=True, exist_ok=True)
        if not self.adopt(scratch, record.spec):
            return False
        _sync(place.parent)
        return True

    def adopt(self, made: Path, spec: RunSpec) -> bool:
        """Move a run with its record into place; other processes may do the same at this moment.

        False: a record exists already. FileNotFoundError: another process moved the run first.
        """
        place = self.run_path(spec)
        try:
            made.rename(place)
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
        (self._runs / study).mkdir(parents=True, exist_ok=True)

    def sync_study(self, study: str) -> None:
        """Flush the study's folder to disk."""
        _sync(self._runs / study)

    def set_aside(self, run: Path, study: str) -> Path:
        """Move a run to `superseded`, so that it can be run again; return its new place."""
        shelf = self.path / "superseded" / study
        shelf.mkdir(parents=True, exist_ok=True)
        for number in itertools.count(1):
            place = shelf / f"{run.name}.{number}"
            try:
                run.rename(place)
            except OSError as error:
                if error.errno not in IN_THE_WAY:
                    raise
            else:
                return place
        raise AssertionError

    def sweep_scratch(self) -> int:
        """Remove scratch directories of dead launchers of this host; return their number."""
        removed = 0
        for entry in self._scratch.iterdir():
            if is_gone(entry.name):
                shutil.rmtree(entry, ignore_errors=True)
                removed += 1
        return removed

    # -- reading

    def run_path(self, spec: RunSpec) -> Path:
        """Return the directory of a run."""
        return self._runs / spec.study / spec.run_id

    def has(self, spec: RunSpec) -> bool:
        """Return whether the run has a record."""
        return (self.run_path(spec) / RECORD_FILE).is_file()

    def studies(self) -> list[str]:
        """Return the names of the studies with results."""
        return sorted(entry.name for entry in self._runs.iterdir()) if self._runs.is_dir() else []

    def run_ids(self, study: str) -> set[str]:
        """Return the ids of a study's runs, without opening them."""
        folder = self._runs / study
        return {entry.name for entry in folder.iterdir()} if folder.is_dir() else set()

    def ids_being_made(self) -> set[str]:
        """Return the ids of all runs in progress, in any study."""
        made = self._scratch.iterdir() if self._scratch.is_dir() else ()
        return {entry.name.split(".", 5)[-1] for entry in made}

    def records(self, study: str | None = None) -> Iterator[RunRecord]:
        """Yield all records, or those of one study, ordered by study and run id."""
        for name in self.studies() if study is None else [study]:
            folder = self._runs / name
            if folder.is_dir():
                for run in sorted(folder.iterdir()):
                    if (run / RECORD_FILE).is_file():
                        yield self.read(run)

    def read(self, run: Path) -> RunRecord:
        """Read the record of a run's directory; study and run id must match the path."""
        record = read_record(run / RECORD_FILE)
        if (record.spec.study, record.run_id, record.spec.run_id) != (run.parent.name, run.name, run.name):
            raise InputError(f"{run / RECORD_FILE} is the record of another run: {record.spec.study}/{record.run_id}")
        return record

    def unknown(self, name: str) -> InputError:
        """Return the error for a study or run that does not exist, with the nearest name."""
        studies = self.studies()
        near = nearest(name, studies) or nearest(
            name, (run for study in studies for run in sorted(self.run_ids(study)))
        )
        problem = Problem(name[:200], f"no such study or run in {self.path}", ", ".join(studies), near=near)
        return refusal(problem, next_step=None if near else "steelyard show")

    def find(self, run_id: str) -> list[Path]:
        """Return the directories of runs with this id; several studies may have one."""
        found = [self._runs / name / run_id for name in self.studies() if run_id in self.run_ids(name)]
        return [path for path in found if (path / RECORD_FILE).is_file()]


def read_record(path: Path) -> RunRecord:
    """Read and check a record; the file is untrusted."""
    return parse_json(RunRecord, read_bounded(path, MAX_RECORD_BYTES), str(path))


def read_progress(raw: Path) -> dict[str, Any] | None:
    """Read the progress of a running run; None: none reported yet."""
    try:
        progress = json.loads((raw / PROGRESS_FILE).read_bytes())
    except (OSError, ValueError):
        return None
    return progress if isinstance(progress, dict) else None


def record_text(record: Any) -> str:
    """Return a contract as text. The same contract always gives the same bytes.

    They are the bytes of `json.dumps(..., indent=1, allow_nan=False)`, which is four times slower with an indent.
    """
    return _json_text(record, "\n") + "\n"


def _json_text(value: Any, line: str) -> str:
    """Return a value as JSON. `line`: a line break and the indent of the next line."""
    if isinstance(value, str):
        return encode_basestring_ascii(value)
    inner = line + " "
    if is_dataclass(value) and not isinstance(value, type):
        parts = [f'"{name}": {_json_text(getattr(value, name), inner)}' for name in _field_names(type(value))]
    elif isinstance(value, dict):
        parts = [f"{_json_key(key)}: {_json_text(item, inner)}" for key, item in value.items()]
    elif isinstance(value, (list, tuple)):
        parts = [_json_text(item, inner) for item in value]
        return f"[{inner}{f',{inner}'.join(parts)}{line}]" if parts else "[]"
    else:
        # Numbers, true, false and null; json refuses the rest.
        return json.dumps(value, allow_nan=False)
    return f"{{{inner}{f',{inner}'.join(parts)}{line}}}" if parts else "{}"


def _json_key(key: Any) -> str:
    # Keys that are not text are rare; json converts them.
    return encode_basestring_ascii(key) if isinstance(key, str) else json.dumps({key: 0})[1:-4]


@cache
def _field_names(kind: type) -> tuple[str, ...]:
    return tuple(entry.name for entry in fields(kind))


def write_json(path: Path, contract: Any) -> None:
    """Write a contract and flush it to disk."""
    with path.open("w", encoding="utf-8") as file:
        file.write(record_text(contract))
        file.flush()
        os.fsync(file.fileno())


def replace_text(path: Path, text: str, scratch: Path) -> None:
    """Create or replace a file atomically, through the folder `scratch`; it is not flushed."""
    beside = scratch / f".{owner()}.{path.name}"
    try:
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def flush_all(paths: Sequence[Path]) -> None:
    """Flush files to disk, several at a time. Files that no longer exist are skipped."""

    def flush(path: Path) -> None:
        with suppress(FileNotFoundError):
            _sync(path)

    with ThreadPoolExecutor(FLUSHES) as pool:
        list(pool.map(flush, paths))


def create_once(path: Path, text: str, scratch: Path, *, flush: bool = True) -> bool:
    """Create a file atomically, through the folder `scratch`; False: it exists already."""
    beside = scratch / f".{owner()}.{path.name}"
    with beside.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        if flush:
            os.fsync(file.fileno())
    try:
        os.link(beside, path)
    except FileExistsError:
        # A file server may have made the link and lost its reply; the retry then reports that the file exists.
        return beside.stat().st_nlink > 1
    except OSError as error:
        # Without links, two processes at the same moment may both believe that they were first.
        if error.errno not in NO_LINKS:
            raise
        if path.exists():
            return False
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
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
    for path in folder.glob(".*"):
        if is_gone(path.name[1:]):
            path.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


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
    return f"{_host()}.{_pid_namespace()}.{os.getpid()}.{_start_ticks(os.getpid())}"


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
