"""The result folder on any shared filesystem: a run is written beside, renamed into place, and never changed.

Knows directories and atomic renames; needs neither locks nor a server. Layout:

    FOLDER/runs/STUDY/RUN_ID/record.json     the record
                            /raw/...         what it was derived from
    FOLDER/superseded/STUDY/RUN_ID.N/        a run that was set aside so that it is made again
    FOLDER/campaigns/STUDY/...               what was sent to a site; see launch/local_study.py
    FOLDER/.scratch/HOST.PIDS.PID.START.XXXXXXXX.RUN_ID/   a run being made by that process; nobody reads it
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
# Enough for the last events of a run and for its record, on a disk that the run has filled.
RESERVE_BYTES = 1 << 18
IN_THE_WAY = (errno.ENOTEMPTY, errno.EEXIST)
FLUSHES = 8
NOT_OURS = (errno.EACCES, errno.EPERM, errno.EROFS)
NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


class ResultFolder:
    """One folder of results."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._runs = path / "runs"
        self._scratch = path / ".scratch"

    # -- making a run

    def prepare(self) -> None:
        """See to it that results can be written here; what dead launchers of this host left is removed."""
        try:
            self._scratch.mkdir(parents=True, exist_ok=True)
            self._runs.mkdir(exist_ok=True)
        except OSError as error:
            raise InputError(
                f"cannot write results to {self.path}: {error.strerror}", next_step="give another folder with --results"
            ) from None
        self.sweep_scratch()

    def open_scratch(self, spec: RunSpec) -> Path:
        """A directory for a run in the making, on the filesystem it will be renamed within."""
        # The maker is part of the name, so that there is no moment at which a directory has no owner.
        scratch = Path(tempfile.mkdtemp(prefix=f"{owner()}.", suffix=f".{spec.run_id}", dir=self._scratch))
        # mkdtemp shuts others out; results are for colleagues too, as far as the user's umask allows. There is no way
        # to read that but to set it.
        mask = os.umask(0o077)
        os.umask(mask)
        scratch.chmod(0o777 & ~mask)
        (scratch / RAW).mkdir()
        write_json(scratch / RAW / SPEC_FILE, spec)
        (scratch / RAW / RESERVE_FILE).write_bytes(bytes(RESERVE_BYTES))
        return scratch

    def commit(self, scratch: Path, record: RunRecord) -> bool:
        """Put a finished run in its place. False when another launcher was first: its record stands."""
        write_json(scratch / RECORD_FILE, record)
        place = self.run_path(record.spec)
        place.parent.mkdir(parents=True, exist_ok=True)
        if not self.adopt(scratch, record.spec):
            return False
        _sync(place.parent)
        return True

    def adopt(self, made: Path, spec: RunSpec) -> bool:
        """Put a run with its record in its place, where others may be putting it at this moment, too.

        False: another run's record stands there. FileNotFoundError: somebody else was faster.
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
                f"{place} is in the way: it is not empty and holds no record",
                next_step=f"look into it, then: rm -r {place}",
            ) from None
        return True

    def open_study(self, study: str) -> None:
        """Make the folder that runs of a study are put into."""
        (self._runs / study).mkdir(parents=True, exist_ok=True)

    def sync_study(self, study: str) -> None:
        """Keep what was put there even if the machine dies now."""
        _sync(self._runs / study)

    def set_aside(self, run: Path, study: str) -> Path:
        """Move a run's directory to where nobody counts it, so that it can be made again; where it is now."""
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
        """Remove what dead launchers of this host left; how many. Other hosts' are theirs to remove."""
        removed = 0
        for entry in self._scratch.iterdir():
            if is_gone(entry.name):
                shutil.rmtree(entry, ignore_errors=True)
                removed += 1
        return removed

    # -- reading

    def run_path(self, spec: RunSpec) -> Path:
        """Where a run's directory is, or will be."""
        return self._runs / spec.study / spec.run_id

    def has(self, spec: RunSpec) -> bool:
        """Whether the run is there already."""
        return (self.run_path(spec) / RECORD_FILE).is_file()

    def studies(self) -> list[str]:
        """Names of the studies with results."""
        return sorted(entry.name for entry in self._runs.iterdir()) if self._runs.is_dir() else []

    def run_ids(self, study: str) -> set[str]:
        """Ids of the runs a study has, as far as one can see without opening them."""
        folder = self._runs / study
        return {entry.name for entry in folder.iterdir()} if folder.is_dir() else set()

    def ids_being_made(self) -> set[str]:
        """Ids of the runs that somebody is making, of whatever study."""
        made = self._scratch.iterdir() if self._scratch.is_dir() else ()
        return {entry.name.split(".", 5)[-1] for entry in made}

    def records(self, study: str | None = None) -> Iterator[RunRecord]:
        """All records, or those of one study, by study and run id."""
        for name in self.studies() if study is None else [study]:
            folder = self._runs / name
            if folder.is_dir():
                for run in sorted(folder.iterdir()):
                    if (run / RECORD_FILE).is_file():
                        yield self.read(run)

    def read(self, run: Path) -> RunRecord:
        """The record in a run's directory, which must be the one its place says."""
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
        """Directories of runs with this id; several studies may have it."""
        found = [self._runs / name / run_id for name in self.studies() if run_id in self.run_ids(name)]
        return [path for path in found if (path / RECORD_FILE).is_file()]


def read_record(path: Path) -> RunRecord:
    """A record from a file that anybody may have written."""
    return parse_json(RunRecord, read_bounded(path, MAX_RECORD_BYTES), str(path))


def read_progress(raw: Path) -> dict[str, Any] | None:
    """How far a run in the making is; None while it has not said."""
    try:
        progress = json.loads((raw / PROGRESS_FILE).read_bytes())
    except (OSError, ValueError):
        return None
    return progress if isinstance(progress, dict) else None


def record_text(record: Any) -> str:
    """The one form in which contracts are written: the same contract gives the same bytes.

    They are those of `json.dumps(..., indent=1, allow_nan=False)`, which with an indent is four times slower.
    """
    return _json_text(record, "\n") + "\n"


def _json_text(value: Any, line: str) -> str:
    """A value as JSON. `line`: the end of a line and how far the next one is set in."""
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
        # Numbers, true, false, null; and whatever else json knows or refuses.
        return json.dumps(value, allow_nan=False)
    return f"{{{inner}{f',{inner}'.join(parts)}{line}}}" if parts else "{}"


def _json_key(key: Any) -> str:
    # Keys that are no texts are rare; json has its own way with them.
    return encode_basestring_ascii(key) if isinstance(key, str) else json.dumps({key: 0})[1:-4]


@cache
def _field_names(kind: type) -> tuple[str, ...]:
    return tuple(entry.name for entry in fields(kind))


def write_json(path: Path, contract: Any) -> None:
    """Write a contract so that a crash of the machine right after leaves it whole."""
    with path.open("w", encoding="utf-8") as file:
        file.write(record_text(contract))
        file.flush()
        os.fsync(file.fileno())


def replace_text(path: Path, text: str, scratch: Path) -> None:
    """Make or replace a file, whole. It is written in the folder `scratch` first, and not flushed."""
    beside = scratch / f".{owner()}.{path.name}"
    try:
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def flush_all(paths: Sequence[Path]) -> None:
    """Keep files even if the machine dies now. Several at a time: most of it is waiting. Those that are gone are not
    ours any more.
    """

    def flush(path: Path) -> None:
        with suppress(FileNotFoundError):
            _sync(path)

    with ThreadPoolExecutor(FLUSHES) as pool:
        list(pool.map(flush, paths))


def create_once(path: Path, text: str, scratch: Path, *, flush: bool = True) -> bool:
    """Make a file, whole, if it is not there; False when it is. It is written in the folder `scratch` first."""
    beside = scratch / f".{owner()}.{path.name}"
    with beside.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        if flush:
            os.fsync(file.fileno())
    try:
        os.link(beside, path)
    except FileExistsError:
        # A file server may have made the link and lost its answer: asked again, it says that the file is there.
        return beside.stat().st_nlink > 1
    except OSError as error:
        # Some file systems have no links; there two at the very same moment both believe that they were first.
        if error.errno not in NO_LINKS:
            raise
        if path.exists():
            return False
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
    return True


def own_uid(folder: Path) -> int | None:
    """Whose files are that we make in a folder: a file server may give us another number. None: we may make none."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            return os.fstat(file.fileno()).st_uid
    except OSError as error:
        if error.errno not in NOT_OURS:
            raise
        return None


def sweep_halves(folder: Path) -> None:
    """Remove files that dead processes of this host were writing here before they put them in their place."""
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
    """Which process numbers are meant: a container on this host may have its own."""
    try:
        return Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        return 0


def owner() -> str:
    """This process among all others, as a part of a file's name."""
    return f"{_host()}.{_pid_namespace()}.{os.getpid()}.{_start_ticks(os.getpid())}"


def is_gone(name: str) -> bool:
    """Whether the process that `owner` called so, at the begin of a name, ran here and runs no more.

    False of another host's: nobody knows. Its start time tells it from a later process of that number.
    """
    host, namespace, pid, ticks = [*name.strip().split(".", 4), "", "", "", ""][:4]
    return (host, namespace) == (_host(), str(_pid_namespace())) and str(_start_ticks(pid)) != ticks


def _start_ticks(pid: Any) -> int | None:
    try:
        stat = Path(f"/proc/{int(pid)}/stat").read_text(encoding="utf-8", errors="replace")
        return int(stat.rpartition(")")[2].split()[19])
    except (OSError, ValueError, TypeError, IndexError):
        return None
