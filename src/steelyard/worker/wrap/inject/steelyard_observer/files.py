"""Writes what was observed of a rank in the format of the worker's raw files, with the standard library alone."""

from __future__ import annotations

import json
import math
import os
import struct
import time
import zlib
from typing import TYPE_CHECKING, Any

from . import report
from .readback import read_memory, read_rank, read_wrapped

if TYPE_CHECKING:
    from .second import StepCounts
    from .training import SeenTraining

MAGIC = b"SYSTEPS1"
MARK = b"CHNK"
PLACE = struct.Struct("<4sIQI")
CHECK = struct.Struct("<II")
NAN = math.nan
STOP_FILE = "stop-at"
STOPPED_FILE = "stopped"
# After the decision to stop, ranks that work in step learn of it before they get there.
AHEAD_S = 2.0
LOOK_S = 0.25


def _open(raw: str, name: str) -> int:
    """Open a file to append. A number instead of a file object: Python may warn of one that is open at its end."""
    return os.open(os.path.join(raw, name), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o644)


def _write(handle: int, data: bytes) -> None:
    while data:
        data = data[os.write(handle, data) :]


class _OpenFile:
    """A file that stays open, unless the program closes whatever is open: its number may be the program's then."""

    def __init__(self, raw: str, name: str) -> None:
        self._raw, self._name = raw, name
        self._handle = _open(raw, name)
        self._identity = self._found()

    def _found(self) -> tuple[int, int] | None:
        try:
            about = os.fstat(self._handle)
        except OSError:
            return None
        return about.st_dev, about.st_ino

    def write(self, data: bytes) -> None:
        if self._found() != self._identity:
            self._handle = _open(self._raw, self._name)
        _write(self._handle, data)


class RankFiles:
    """The files of one rank; no other process writes them."""

    def __init__(self, raw: str, rank: int) -> None:
        self._raw = raw
        self._rank = rank
        self._steps = _OpenFile(raw, f"steps-{rank:05d}.bin")
        self._work = _OpenFile(raw, f"work-{rank:05d}.bin")
        for file in (self._steps, self._work):
            file.write(MAGIC)
        self._count = 0
        self._looked_s = 0.0

    @classmethod
    def claim(cls, training: SeenTraining) -> RankFiles | None:
        """Return the files of this process's rank; None if another process has them."""
        rank = read_rank(training)["rank"]
        path = os.path.join(training.raw, f"events-{rank:05d}.jsonl")
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))
        except FileExistsError:
            report("trains_too")
            return None
        return cls(training.raw, rank)

    def _event(self, kind: str, about: dict[str, Any]) -> None:
        line = json.dumps({"kind": kind, **about}, allow_nan=False) + "\n"
        handle = _open(self._raw, f"events-{self._rank:05d}.jsonl")
        try:
            _write(handle, line.encode("utf-8", "backslashreplace"))
        finally:
            os.close(handle)

    def write_about(self, training: SeenTraining, settings: dict[str, str], *, final: bool = False) -> None:
        """Write the facts on the training as a whole, after the first steps and at the end."""
        # The rank by which its files are called: torch may have told it only after the first steps.
        self._event("wrapped", {**read_wrapped(training), "rank": self._rank})
        self._event("settings", {"values": settings})
        if final:
            self._event("memory", read_memory(training))
            if training.stopped and self._rank == 0:
                handle = _open(self._raw, STOPPED_FILE)
                _write(handle, b"max_seconds" if training.stop_at is not None else b"max_steps")
                os.close(handle)

    def write_second(self, second: StepCounts) -> None:
        """Write what the second pass has counted."""
        self._event("second", second.about(self._rank))

    def write_phases(self, phases: list[tuple[str, float, float]]) -> None:
        """Write evaluations and checkpoints."""
        for name, start_s, end_s in phases:
            self._event("phase", {"name": name, "start_s": start_s, "end_s": end_s})

    def write_rows(self, rows: list[tuple[Any, ...]]) -> None:
        """Append steps: start, length, wait, samples, tokens, labels, padding, micro-batches."""
        start, length, wait, samples, tokens, labels, padding, micro = zip(*rows, strict=True)
        unknown = [NAN] * len(rows)
        known = [[NAN if value is None else value for value in column] for column in (labels, padding)]
        self._chunk(self._steps, (start, length, wait, unknown, unknown, samples), len(rows))
        self._chunk(self._work, (start, length, micro, *known, tokens), len(rows))
        self._count += len(rows)

    def _chunk(self, file: _OpenFile, columns: Any, steps: int) -> None:
        pack = struct.Struct(f"<{steps}d").pack
        payload = b"".join([pack(*column) for column in columns])
        place = PLACE.pack(MARK, self._rank, self._count, steps)
        file.write(place + CHECK.pack(zlib.crc32(place), zlib.crc32(payload)) + payload)

    def agreed_stop(self, training: SeenTraining, now_s: float) -> int | None:
        """Return the step at which all ranks stop; None: not decided.

        The first rank decides, the others look now and then.
        """
        if now_s - self._looked_s < LOOK_S:
            return None
        self._looked_s = now_s
        path = os.path.join(self._raw, STOP_FILE)
        if self._rank:
            try:
                with open(path, encoding="ascii") as file:
                    return int(file.read() or 0) or None
            except (OSError, ValueError):
                return None
        took_s = time.monotonic() - (training.first_s or now_s)
        if took_s < (training.limits.max_seconds or 0.0):
            return None
        each_s = took_s / max(1, training.steps)
        stop_at = training.steps + 2 + math.ceil(AHEAD_S / max(each_s, 1e-6))
        with open(f"{path}.new", "w", encoding="ascii") as file:
            file.write(str(stop_at))
        os.replace(f"{path}.new", path)
        return stop_at
