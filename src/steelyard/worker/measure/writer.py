"""Write observations at once: events as JSON lines, step samples as binary chunks."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from steelyard.contracts import observe, sample_files
from steelyard.contracts.base import to_json_object
from steelyard.errors import DISK_FULL
from steelyard.nofollow import open_own
from steelyard.redact import clean

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray


class EventLog:
    """The small observations of one process: phases, environment, stop, status."""

    def __init__(self, raw: Path, process: int, *, append: bool = False) -> None:
        self._reserve = raw / observe.RESERVE_FILE
        self._file = open_own(raw / f"events-{process:05d}.jsonl", "ab", buffering=0)
        if not append:
            self._file.truncate(0)
        self._lock = threading.Lock()
        self._pending = b""

    def write(self, kind: str, contract: Any) -> None:
        """Write one event to disk before returning, without secrets."""
        told, _ = clean(to_json_object(contract))
        line = json.dumps({"kind": kind, **told}, allow_nan=False) + "\n"
        with self._lock:
            self._pending += line.encode()
            self._flush()

    def end(self, status: observe.Status) -> None:
        """Write the last event. On a full disk, delete the reserve file to make room for it."""
        try:
            self.write("status", status)
        except OSError as error:
            if error.errno not in DISK_FULL:
                raise
            self._reserve.unlink(missing_ok=True)
            with self._lock:
                self._flush()
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _flush(self) -> None:
        """Write what is pending. What does not fit stays pending, byte by byte: no line is torn or lost."""
        while self._pending:
            self._pending = self._pending[self._file.write(self._pending) :]

    @contextmanager
    def phase(self, name: observe.PhaseName, now: Callable[[], float], start_s: float | None = None) -> Iterator[None]:
        """Write a phase of the run, even if it ends with an error."""
        begin_s = now() if start_s is None else start_s
        try:
            yield
        except BaseException:
            # The original error matters more. On a full disk this line is written later, with the status.
            with suppress(OSError):
                self.write("phase", observe.Phase(name=name, start_s=begin_s, end_s=now(), complete=False))
            raise
        self.write_phase(name, begin_s, now())

    def write_phase(self, name: observe.PhaseName, start_s: float, end_s: float) -> None:
        """Write a phase that is over."""
        self.write("phase", observe.Phase(name=name, start_s=start_s, end_s=end_s))


class StepWriter:
    """Streams the step samples (or, with another pattern, token samples) of one process to a file."""

    def __init__(self, raw: Path, process: int, pattern: str = observe.STEPS_PATTERN) -> None:
        self._file = open_own(raw / pattern.replace("*", f"{process:05d}"), "wb")
        self._file.write(sample_files.FILE_MAGIC)
        self._next_step: dict[int, int] = {}

    def write(self, rank: int, table: NDArray[np.float64]) -> None:
        """Append one rank's block, split into chunks."""
        for start in range(0, table.shape[1], sample_files.MAX_CHUNK_STEPS):
            chunk = table[:, start : start + sample_files.MAX_CHUNK_STEPS]
            first = self._next_step.get(rank, 0)
            sample_files.write_chunk(self._file, rank, first, chunk)
            self._next_step[rank] = first + chunk.shape[1]

    def flush(self) -> None:
        """Hand the data to the operating system, so that a killed process loses no finished block."""
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def write_progress(raw: Path, progress: dict[str, float]) -> None:
    """Write the progress for the launcher, if possible; the file is replaced atomically."""
    beside = raw / f"{observe.PROGRESS_FILE}.new"
    # Only a display needs it: a file system that loses a rename must not cost the run.
    with suppress(OSError):
        beside.write_text(json.dumps(progress), encoding="utf-8")
        beside.replace(raw / observe.PROGRESS_FILE)
