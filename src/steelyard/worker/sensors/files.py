"""Write the sensor files of one node: events as JSON lines, samples as binary chunks. Handles full disks."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from steelyard.contracts import energy
from steelyard.contracts.base import to_json_object
from steelyard.nofollow import open_own

if TYPE_CHECKING:
    from array import array
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    Samples = tuple[array[float], array[float], array[float]]

# On a full disk this many bytes of samples are dropped to make room for the last event.
END_BYTES = 8192


def sensors_file(raw: Path, process: int) -> Path:
    """Return the path of the file that describes a node's sensors."""
    return raw / energy.SENSORS_PATTERN.replace("*", f"{process:05d}")


class Lines:
    """The small events. A line that does not fit on the disk is removed completely."""

    def __init__(self, raw: Path, process: int) -> None:
        self._file = open_own(sensors_file(raw, process), "wb", buffering=0)

    def write(self, kind: str, contract: Any) -> None:
        """Write one event to disk before returning."""
        line = json.dumps({"kind": kind, **to_json_object(contract)}, allow_nan=False).encode() + b"\n"
        _write_whole(self._file, line)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class Chunks:
    """The samples of all channels, or the readings of the state of all devices."""

    def __init__(self, raw: Path, process: int, kind: energy.ChunkFile = energy.POWER) -> None:
        self._kind = kind
        self._file = open_own(kind.place(raw, process), "wb", buffering=0)
        _write_whole(self._file, kind.magic)
        self.samples = 0
        self._ends = [(self._file.tell(), 0)]

    def write(self, held: Mapping[int, Sequence[Any]]) -> None:
        """Write the collected columns of all channels at once."""
        whole = _Pieces()
        for channel, columns in held.items():
            energy.write_power_chunk(whole, channel, np.array(columns), self._kind)  # type: ignore[arg-type]
        _write_whole(self._file, whole.joined())
        self.samples += sum(len(columns[0]) for columns in held.values())
        self._ends.append((self._file.tell(), self.samples))
        # Only as many as are needed to drop END_BYTES.
        del self._ends[: -END_BYTES // 32]

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def give_up_some(self) -> None:
        """Make room for the last event by dropping whole chunks; the rest stays readable."""
        end = self._file.tell()
        enough = (place for place in reversed(self._ends) if place[0] <= end - END_BYTES)
        kept, self.samples = next(enough, self._ends[0])
        self._file.truncate(kept)


class _Pieces:
    """The part of the file interface that writing a chunk needs."""

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
