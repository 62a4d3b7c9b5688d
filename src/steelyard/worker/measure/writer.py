"""Writes observations as they come: events as JSON lines, step samples as chunks. Holds nothing back."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from steelyard.contracts import observe
from steelyard.contracts.base import to_json_object
from steelyard.errors import DISK_FULL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray


class EventLog:
    """The small observations of one process: phases, environment, stop, status."""

    def __init__(self, raw: Path, process: int, *, append: bool = False) -> None:
        self._reserve = raw / observe.RESERVE_FILE
        self._file = (raw / f"events-{process:05d}.jsonl").open("ab", buffering=0)
        if not append:
            self._file.truncate(0)
        self._lock = threading.Lock()
        self._pending = b""

    def write(self, kind: str, contract: Any) -> None:
        """One event, on disk before the call returns to the run."""
        line = json.dumps({"kind": kind, **to_json_object(contract)}, allow_nan=False) + "\n"
        with self._lock:
            self._pending += line.encode()
            self._flush()

    def end(self, status: observe.Status) -> None:
        """The last event. On a full disk the reserve that was laid by for it is given up."""
        try:
            self.write("status", status)
        except OSError as error:
            if error.errno not in DISK_FULL:
                raise
            self._reserve.unlink(missing_ok=True)
            with self._lock:
                self._flush()
        self._file.close()

    def _flush(self) -> None:
        """Write what is pending. What did not fit stays pending, from the very byte on: no line is torn or lost."""
        while self._pending:
            self._pending = self._pending[self._file.write(self._pending) :]

    @contextmanager
    def phase(self, name: observe.PhaseName, now: Callable[[], float], start_s: float | None = None) -> Iterator[None]:
        """A phase of the run; written also when it ends by an error, because failure is data."""
        begin_s = now() if start_s is None else start_s
        try:
            yield
        except BaseException:
            # The error is the news: a disk that is full takes this line later, with the status.
            with suppress(OSError):
                self.write("phase", observe.Phase(name=name, start_s=begin_s, end_s=now(), complete=False))
            raise
        self.write_phase(name, begin_s, now())

    def write_phase(self, name: observe.PhaseName, start_s: float, end_s: float) -> None:
        """A phase that is over."""
        self.write("phase", observe.Phase(name=name, start_s=start_s, end_s=end_s))


class StepWriter:
    """Streams the step samples of all ranks of one process into one file; or those of tokens, by another pattern."""

    def __init__(self, raw: Path, process: int, pattern: str = observe.STEPS_PATTERN) -> None:
        self._file = (raw / pattern.replace("*", f"{process:05d}")).open("wb")
        self._file.write(observe.FILE_MAGIC)
        self._next_step: dict[int, int] = {}

    def write(self, rank: int, table: NDArray[np.float64]) -> None:
        """Append one rank's block, in as many chunks as it takes."""
        for start in range(0, table.shape[1], observe.MAX_CHUNK_STEPS):
            chunk = table[:, start : start + observe.MAX_CHUNK_STEPS]
            first = self._next_step.get(rank, 0)
            observe.write_chunk(self._file, rank, first, chunk)
            self._next_step[rank] = first + chunk.shape[1]

    def flush(self) -> None:
        """Hand what was written to the system, so that a killed process loses no finished block."""
        self._file.flush()

    def close(self) -> None:
        """No more samples."""
        self._file.close()


def write_progress(raw: Path, progress: dict[str, float]) -> None:
    """Let the launcher see how far the run is; replaced whole, so that nobody reads half of it."""
    beside = raw / f"{observe.PROGRESS_FILE}.new"
    beside.write_text(json.dumps(progress), encoding="utf-8")
    beside.replace(raw / observe.PROGRESS_FILE)
