"""Writes the sensor files of one node: events as JSON lines, samples as chunks. Knows full disks, no sensor."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from steelyard.contracts import energy
from steelyard.contracts.base import to_json_object

if TYPE_CHECKING:
    from array import array
    from pathlib import Path

    Samples = tuple[array[float], array[float], array[float]]

# So much of the samples is given up when a full disk does not hold the last word.
WORD_BYTES = 8192


def sensors_file(raw: Path, process: int) -> Path:
    """Where a node's sensors are described."""
    return raw / energy.SENSORS_PATTERN.replace("*", f"{process:05d}")


class Lines:
    """The small events. A line that does not fit on the disk leaves no part of itself behind."""

    def __init__(self, raw: Path, process: int) -> None:
        self._file = sensors_file(raw, process).open("wb", buffering=0)

    def write(self, kind: str, contract: Any) -> None:
        """One event, on disk before the call returns."""
        line = json.dumps({"kind": kind, **to_json_object(contract)}, allow_nan=False).encode() + b"\n"
        _write_whole(self._file, line)

    def close(self) -> None:
        """No more events."""
        self._file.close()


class Chunks:
    """The samples of all channels."""

    def __init__(self, raw: Path, process: int) -> None:
        self._file = (raw / energy.POWER_PATTERN.replace("*", f"{process:05d}")).open("wb", buffering=0)
        _write_whole(self._file, energy.POWER_MAGIC)
        self.samples = 0
        self._ends = [(self._file.tell(), 0)]

    def write(self, held: dict[int, Samples]) -> None:
        """What was held of each channel, in one piece."""
        whole = _Pieces()
        for channel, columns in held.items():
            energy.write_power_chunk(whole, channel, np.array(columns))  # type: ignore[arg-type]
        _write_whole(self._file, whole.joined())
        self.samples += sum(len(times) for times, _, _ in held.values())
        self._ends.append((self._file.tell(), self.samples))
        # No more than it takes to give up WORD_BYTES.
        del self._ends[: -WORD_BYTES // 32]

    def close(self) -> None:
        """No more samples."""
        self._file.close()

    def give_up_some(self) -> None:
        """Make room for a last word. Whole chunks alone are given up: what stays can be read."""
        end = self._file.tell()
        enough = (place for place in reversed(self._ends) if place[0] <= end - WORD_BYTES)
        kept, self.samples = next(enough, self._ends[0])
        self._file.truncate(kept)


class _Pieces:
    """As much of a file as a chunk is written to."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def write(self, data: bytes) -> None:
        self._parts.append(data)

    def joined(self) -> bytes:
        return b"".join(self._parts)


def _write_whole(file: Any, data: bytes) -> None:
    start = file.tell()
    try:
        while data:
            data = data[file.write(data) :]
    except OSError:
        with suppress(OSError):
            file.truncate(start)
            file.seek(start)
        raise
