"""Runs of a results folder in one file: a tar archive with an index beside it, so that a run is read where it is.

An archived run has a path that goes through the archive, such as FOLDER/archive/SEGMENT/runs.tar/STUDY/RUN_ID/raw.
`nofollow` opens such paths with these functions. Each line of the index is the place of one run:

    STUDY/RUN_ID OFFSET BYTES

The members of a run follow each other, and its record is the first. Any tar program unpacks the archive.
"""

from __future__ import annotations

import io
import os
import re
from bisect import bisect_left
from functools import lru_cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, NamedTuple

from steelyard.errors import DamagedDataError, leave_out

if TYPE_CHECKING:
    from collections.abc import Callable

FOLDER: Final = "archive"
TAR: Final = "runs.tar"
INDEX: Final = "index"
SEGMENT: Final = re.compile(r"\d{8}T\d{6}-[0-9a-f]{8}")
MAX_INDEX_BYTES: Final = 1 << 21
MAX_RUNS: Final = 1 << 13
"""In a segment. Ours have half as many; many short lines take twenty times the memory of their text."""
MAX_MEMBERS: Final = 100_001
BLOCK: Final = 512
# Larger members are read piece by piece.
SMALL_BYTES: Final = 1 << 20
_OCTAL_BYTES: Final = 8 << 30
_NAME: Final = slice(0, 100)
_SIZE: Final = slice(124, 136)
_CHECKSUM: Final = slice(148, 156)
_KIND: Final = slice(156, 157)
# The names become parts of paths: a line must not lead out of the folder.
_LINE: Final = rb"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]* [0-9]{1,18} [0-9]{1,18}"
_OF_A_RUN: Final = re.compile(_LINE)
_OF_RUNS: Final = re.compile(rb"(?:" + _LINE + rb"\n)*")
_PREFIX: Final = slice(345, 500)


class Inside(NamedTuple):
    """A path through an archive, in its parts."""

    segment: Path
    run: str
    """STUDY/RUN_ID."""
    member: str
    """Path below the run; empty: the run itself."""


class ByteRange(NamedTuple):
    """Where something is in the archive: the members of a run, or the content of a file."""

    offset: int
    bytes: int


def inside(path: Path) -> Inside | None:
    """Return the parts of a path that goes through an archive; None for every other path."""
    parts = path.parts
    if TAR not in parts:
        return None
    at = len(parts) - 1 - parts[::-1].index(TAR)
    if at < 2 or parts[at - 2] != FOLDER or not SEGMENT.fullmatch(parts[at - 1]) or len(parts) < at + 3:
        return None
    return Inside(Path(*parts[:at]), "/".join(parts[at + 1 : at + 3]), "/".join(parts[at + 3 :]))


# -- reading


# A segment is never changed, and no other gets its name.
@lru_cache(maxsize=8192)
def index_of(segment: Path, opener: Callable[[Path], IO[bytes]]) -> list[bytes]:
    """Return the sorted lines of the index of a segment; lines that cannot be of a run are left out."""
    with opener(segment / INDEX) as file:
        text = file.read(MAX_INDEX_BYTES + 1)
    if len(text) > MAX_INDEX_BYTES:
        raise DamagedDataError(f"{segment / INDEX} is larger than {MAX_INDEX_BYTES:,} bytes, the limit for an index")
    if text.count(b"\n") > MAX_RUNS:
        raise DamagedDataError(f"{segment / INDEX} names more than {MAX_RUNS:,} runs, the limit for a segment")
    lines = text.splitlines()
    if not _OF_RUNS.fullmatch(text):
        sound = [line for line in lines if _OF_A_RUN.fullmatch(line)]
        if len(sound) < len(lines):
            bad = len(lines) - len(sound)
            what = f"{bad:,} of {len(lines):,} lines are not the place of a run"
            leave_out(DamagedDataError(f"{segment / INDEX}: {what}"))
        lines = sound
    return sorted(lines)


def place_of(lines: list[bytes], run: str) -> ByteRange | None:
    """Return the place of a run from the lines of an index; None: it is not there."""
    key = f"{run} ".encode("utf-8", "surrogateescape")
    at = bisect_left(lines, key)
    if at == len(lines) or not lines[at].startswith(key):
        return None
    numbers = lines[at][len(key) :].split()
    if len(numbers) != 2 or not all(number.isdigit() and len(number) < 19 for number in numbers):
        raise DamagedDataError(f"damaged index of an archive at {run}")
    return ByteRange(int(numbers[0]), int(numbers[1]))


def open_member(at: Inside, opener: Callable[[Path], IO[bytes]]) -> IO[Any]:
    """Open a file of an archived run to read, as nofollow.open_file."""
    place = place_of(index_of(at.segment, opener), at.run)
    with opener(at.segment / TAR) as file:
        handle, member = file.fileno(), None
        if place is not None:
            # The record is the first member: most readers want nothing else.
            name, size = _parse_header(os.pread(handle, BLOCK, place.offset), at.run)
            first = name == at.member and BLOCK + size <= place.bytes
            members = {} if first else _list_members(at.segment, at.run, opener) or {}
            member = ByteRange(place.offset + BLOCK, size) if first else members.get(at.member)
        if member is None:
            raise FileNotFoundError(2, "not in the archive", f"{at.segment / TAR}/{at.run}/{at.member}")
        if member.bytes > SMALL_BYTES:
            return io.BufferedReader(_Slice(os.dup(handle), member))
        data = os.pread(handle, member.bytes, member.offset)
    if len(data) != member.bytes:
        raise DamagedDataError(f"{at.segment / TAR} is cut short at {at.run}")
    return io.BytesIO(data)


def names_of(at: Inside, opener: Callable[[Path], IO[bytes]]) -> list[str]:
    """Return the sorted names in a folder of an archived run; none if it has no such folder."""
    start = f"{at.member}/" if at.member else ""
    members = _list_members(at.segment, at.run, opener) or {}
    return sorted({name[len(start) :].split("/")[0] for name in members if name.startswith(start)})


def stat_of(at: Inside, opener: Callable[[Path], IO[bytes]]) -> os.stat_result:
    """Return kind and size of a file or folder of an archived run."""
    members = _list_members(at.segment, at.run, opener)
    member = members.get(at.member) if members is not None else None
    if member is None and (members is None or not names_of(at, opener)):
        raise FileNotFoundError(2, "not in the archive", f"{at.segment / TAR}/{at.run}/{at.member}")
    mode, size = (0o100444, member.bytes) if member else (0o040555, 0)
    return os.stat_result((mode, 0, 0, 1, 0, 0, size, 0, 0, 0))


@lru_cache(maxsize=64)
def _list_members(segment: Path, run: str, opener: Callable[[Path], IO[bytes]]) -> dict[str, ByteRange] | None:
    """Return the files of a run by their path below it; None if the archive does not have the run."""
    place = place_of(index_of(segment, opener), run)
    if place is None:
        return None
    members: dict[str, ByteRange] = {}
    with opener(segment / TAR) as file:
        at, end = place.offset, place.offset + place.bytes
        while at < end:
            name, size = _parse_header(os.pread(file.fileno(), BLOCK, at), run)
            # The name is a path below the run, and stays one when the run is unpacked.
            outside = "\0" in name or not {"", ".", ".."}.isdisjoint(name.split("/"))
            if outside or at + BLOCK + size > end or len(members) >= MAX_MEMBERS:
                raise DamagedDataError(f"damaged archive {segment / TAR} at {run}")
            members[name] = ByteRange(at + BLOCK, size)
            at += BLOCK + -(-size // BLOCK) * BLOCK
    return members


def _parse_header(header: bytes, run: str) -> tuple[str, int]:
    """Return the name below a run, and the size, of the member with this header."""
    checksum = b"%06o\0 " % (sum(header) - sum(header[_CHECKSUM]) + 8 * 0x20)
    sound = len(header) == BLOCK and header[_KIND] == b"0" and header[_CHECKSUM] == checksum
    if not sound or header[_PREFIX].rstrip(b"\0").decode("utf-8", "replace") != run:
        raise DamagedDataError(f"damaged archive: not a file of {run}")
    size = header[_SIZE]
    digits = size.rstrip(b"\0 ")
    if size[0] == 0x80:
        number = int.from_bytes(size[1:], "big")
    elif digits.isdigit() and b"8" not in digits and b"9" not in digits:
        number = int(digits, 8)
    else:
        raise DamagedDataError(f"damaged archive: size of a file of {run}")
    return header[_NAME].rstrip(b"\0").decode("utf-8", "surrogateescape"), number


class _Slice(io.RawIOBase):
    """A part of a file as a file."""

    def __init__(self, handle: int, member: ByteRange) -> None:
        self._handle, self._member, self._at = handle, member, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._member.bytes}[whence]
        self._at = max(0, start + offset)
        return self._at

    def readinto(self, buffer: Any) -> int:
        wanted = min(len(buffer), max(0, self._member.bytes - self._at))
        count = os.preadv(self._handle, [memoryview(buffer)[:wanted]], self._member.offset + self._at)
        self._at += count
        return count

    def close(self) -> None:
        if not self.closed:
            os.close(self._handle)
        super().close()


# -- writing


def fits(run: str, name: str) -> bool:
    """Return whether a member can have this name in an archive."""
    return len(run.encode()) <= 155 and len(os.fsencode(name)) <= 100


def make_header(run: str, name: str, size: int, mtime_s: int) -> bytes:
    """Return the header of a member: POSIX ustar, with the size as GNU tar writes it if it has more than 8 GiB."""
    number = b"%011o\0" % size if size < _OCTAL_BYTES else b"\x80" + size.to_bytes(11, "big")
    header = b"".join(
        (
            os.fsencode(name).ljust(100, b"\0"),
            b"0000644\0000000000\0000000000\0",
            number,
            b"%011o\0" % min(max(mtime_s, 0), 0o77777777777),
            b"        0",
            bytes(100),
            b"ustar\00000",
            bytes(64),
            b"0000000\0000000000\0",
            run.encode().ljust(155, b"\0"),
            bytes(12),
        )
    )
    return header[:148] + b"%06o\0 " % sum(header) + header[156:]


def padding(size: int) -> bytes:
    """Return what fills a member up to whole blocks."""
    return bytes(-size % BLOCK)
