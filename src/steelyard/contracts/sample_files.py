"""Step samples as binary chunks with checksums: the format of the files `steps-*.bin` and `tokens-*.bin` of a run."""

from __future__ import annotations

import os
import struct
import zlib
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

import numpy as np

from steelyard.contracts.observe import open_raw
from steelyard.errors import DamagedDataError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

COLUMNS = ("start_s", "step_s", "input_wait_s", "compute_s", "exposed_comm_s", "samples")
"""A step lasts from the end of the previous step to its own end. `input_wait_s`: the device waited for data;
`compute_s`: compute, with launch gaps; `exposed_comm_s`: communication that is not overlapped (NaN if a device cannot
separate them); `samples`: real samples, without padding."""

FILE_MAGIC = b"SYSTEPS1"
PLACE = struct.Struct("<4sIQI")  # mark, rank, first step, steps
CHECK = struct.Struct("<II")  # CRC-32 of the place and of the payload: a damaged length must not look like a cut file
HEADER_BYTES = PLACE.size + CHECK.size
CHUNK_MARK = b"CHNK"
MAX_CHUNK_STEPS = 1 << 20
# The values that a step can have, by column: far beyond any real one, and small enough that no sum overflows.
LONGEST_S, SHORTEST_S, MOST_SAMPLES = 1e9, 1e-12, 1e15
_LOWEST = np.array([-1e12, SHORTEST_S, -LONGEST_S, -LONGEST_S, -LONGEST_S, 0.0])
_HIGHEST = np.array([1e12, LONGEST_S, LONGEST_S, LONGEST_S, LONGEST_S, MOST_SAMPLES])
_MAY_BE_UNKNOWN = np.array([False, False, True, True, True, False])


@dataclass(frozen=True)
class StepChunk:
    """Consecutive steps of one rank; `table` has one row per column of COLUMNS."""

    rank: int
    first_step: int
    table: NDArray[np.float64]

    @property
    def steps(self) -> int:
        """Number of steps."""
        return int(self.table.shape[1])

    def column(self, name: str) -> NDArray[np.float64]:
        """Return a column by its name."""
        column: NDArray[np.float64] = self.table[COLUMNS.index(name)]
        return column


def write_chunk(file: IO[bytes], rank: int, first_step: int, table: NDArray[np.float64]) -> None:
    """Append one chunk, with checksums."""
    payload = np.ascontiguousarray(table, dtype="<f8").tobytes()
    place = PLACE.pack(CHUNK_MARK, rank, first_step, table.shape[1])
    file.write(place + CHECK.pack(zlib.crc32(place), zlib.crc32(payload)) + payload)


@dataclass(frozen=True)
class ChunkPlace:
    """The place of a chunk in its file."""

    rank: int
    first_step: int
    steps: int
    offset: int
    crc: int


def chunk_places(path: Path) -> Iterator[ChunkPlace]:
    """Yield the places of all chunks; reads only headers."""
    with open_raw(path) as file:
        yield from _walk(file, path)


def _walk(file: IO[bytes], path: Path) -> Iterator[ChunkPlace]:
    """Yield the chunks of an open step file, with the file positioned at each payload.

    A last chunk cut short by a kill is left out.
    """
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    if file.read(len(FILE_MAGIC)) != FILE_MAGIC:
        if size < len(FILE_MAGIC):
            return
        raise DamagedDataError(f"{path.name}: not a step file")
    offset = len(FILE_MAGIC) + HEADER_BYTES
    while len(header := file.read(HEADER_BYTES)) == HEADER_BYTES:
        mark, rank, first_step, steps = PLACE.unpack_from(header)
        place_crc, crc = CHECK.unpack_from(header, PLACE.size)
        sound = mark == CHUNK_MARK and zlib.crc32(header[: PLACE.size]) == place_crc
        if not sound or not 0 < steps <= MAX_CHUNK_STEPS:
            raise DamagedDataError(f"{path.name}: damaged chunk header before byte {offset}")
        end = offset + steps * len(COLUMNS) * 8
        if end > size:
            return
        yield ChunkPlace(rank, first_step, steps, offset, crc)
        file.seek(end)
        offset = end + HEADER_BYTES


def read_chunks(path: Path, start: int, stop: int, *, check: bool) -> Iterator[StepChunk]:
    """Yield the chunks that overlap steps `start` to `stop`, one at a time.

    `check` verifies checksums and values; needed only in the first of several passes.
    """
    with open_raw(path) as file:
        for place in _walk(file, path):
            if place.first_step >= stop or place.first_step + place.steps <= start:
                continue
            payload = file.read(place.steps * len(COLUMNS) * 8)
            table = np.frombuffer(payload, dtype="<f8").reshape(len(COLUMNS), place.steps)
            chunk = StepChunk(place.rank, place.first_step, table)
            if check:
                _check(chunk, payload, place, path)
            yield chunk


def _check(chunk: StepChunk, payload: bytes, place: ChunkPlace, path: Path) -> None:
    if zlib.crc32(payload) != place.crc:
        raise DamagedDataError(f"{path.name}: checksum differs in the chunk at byte {place.offset}")
    # Written so that NaN fails where it is not allowed.
    least, most = chunk.table.min(axis=1), chunk.table.max(axis=1)
    if np.isnan(least).any():
        known = np.where(_MAY_BE_UNKNOWN[:, None] & np.isnan(chunk.table), 0.0, chunk.table)
        least, most = known.min(axis=1), known.max(axis=1)
    possible = (least >= _LOWEST) & (most <= _HIGHEST)
    if not possible.all():
        column = COLUMNS[int(np.argmin(possible))]
        raise DamagedDataError(f"{path.name}: impossible values of {column} in the chunk at byte {place.offset}")
