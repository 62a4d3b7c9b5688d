"""The result folder on any shared filesystem: a run is written beside, renamed into place, and never changed.

Knows directories and atomic renames; needs neither locks nor a server. Layout:

    FOLDER/runs/STUDY/RUN_ID/record.json     the record
                            /raw/...         what it was derived from
    FOLDER/.scratch/HOST.PID.START.XXXXXXXX.RUN_ID/   a run being made by that process; nobody reads it
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import socket
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steelyard.contracts.base import to_json_object
from steelyard.contracts.observe import PROGRESS_FILE, SPEC_FILE
from steelyard.contracts.record import RunRecord
from steelyard.errors import InputError
from steelyard.spec.validate import MAX_RECORD_BYTES, parse_json, read_bounded

if TYPE_CHECKING:
    from collections.abc import Iterator

    from steelyard.contracts.spec import RunSpec

RECORD_FILE = "record.json"
RAW = "raw"


class ResultFolder:
    """One folder of results."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._runs = path / "runs"
        self._scratch = path / ".scratch"

    # -- making a run

    def open_scratch(self, spec: RunSpec) -> Path:
        """A private directory for a run in the making, on the filesystem it will be renamed within."""
        try:
            self._scratch.mkdir(parents=True, exist_ok=True)
            scratch = Path(tempfile.mkdtemp(prefix=_owner_prefix(), suffix=f".{spec.run_id}", dir=self._scratch))
        except OSError as error:
            raise InputError(
                f"cannot write results to {self.path}: {error.strerror}", next_step="give another folder with --results"
            ) from None
        (scratch / RAW).mkdir()
        write_json(scratch / RAW / SPEC_FILE, spec)
        return scratch

    def commit(self, scratch: Path, record: RunRecord) -> bool:
        """Put a finished run in its place. False when another launcher was first: its record stands, ours goes."""
        write_json(scratch / RECORD_FILE, record)
        place = self.run_path(record.spec)
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            scratch.rename(place)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            shutil.rmtree(scratch)
            return False
        _sync(place.parent)
        return True

    def sweep_scratch(self) -> int:
        """Remove what dead launchers of this host left; how many. Other hosts' are theirs to remove."""
        removed = 0
        if not self._scratch.is_dir():
            return 0
        for entry in self._scratch.iterdir():
            if _is_abandoned(entry.name):
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
        """Ids of the runs a study has."""
        folder = self._runs / study
        return {entry.name for entry in folder.iterdir()} if folder.is_dir() else set()

    def records(self, study: str | None = None) -> Iterator[RunRecord]:
        """All records, or those of one study, by study and run id."""
        for name in self.studies() if study is None else [study]:
            folder = self._runs / name
            if folder.is_dir():
                for run in sorted(folder.iterdir()):
                    if (run / RECORD_FILE).is_file():
                        yield read_record(run / RECORD_FILE)

    def find(self, run_id: str) -> list[Path]:
        """Directories of runs with this id; several studies may have it."""
        return [self._runs / name / run_id for name in self.studies() if run_id in self.run_ids(name)]


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
    """The one form in which contracts are written: the same contract gives the same bytes."""
    return json.dumps(to_json_object(record), indent=1, allow_nan=False) + "\n"


def write_json(path: Path, contract: Any) -> None:
    """Write a contract so that a crash of the machine right after leaves it whole."""
    with path.open("w", encoding="utf-8") as file:
        file.write(record_text(contract))
        file.flush()
        os.fsync(file.fileno())


def _sync(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _host() -> str:
    return socket.gethostname().replace(".", "-") or "unknown"


def _owner_prefix() -> str:
    """The maker is part of the name, so that there is no moment at which a directory has no owner."""
    return f"{_host()}.{os.getpid()}.{_start_ticks(os.getpid())}."


def _is_abandoned(name: str) -> bool:
    """Whether its maker ran here and runs no more; its start time tells it from a later process of that number."""
    host, _, rest = name.partition(".")
    pid, _, rest = rest.partition(".")
    ticks = rest.partition(".")[0]
    return host == _host() and str(_start_ticks(pid)) != ticks


def _start_ticks(pid: Any) -> int | None:
    try:
        stat = Path(f"/proc/{int(pid)}/stat").read_text(encoding="utf-8", errors="replace")
        return int(stat.rpartition(")")[2].split()[19])
    except (OSError, ValueError, TypeError, IndexError):
        return None
