"""The interface of data formats, and helpers that read untrusted files within limits.

Both sides use it: the front side to check and make data sets, the worker to read them. The files are
untrusted: every size has a limit, every name stays below the root, and nothing is unpickled or executed.
"""

from __future__ import annotations

import hashlib
import os
import stat
from array import array
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from steelyard.errors import DamagedDataError

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable, Iterator, Sequence

Kind = Literal["image-class", "image-boxes", "image-mask", "tokens", "question-answer"]
"""What an example is:
    image-class       (picture, label): a picture is a Pillow image or an array of height x width x channels, uint8
    image-boxes       (picture, boxes, labels, number): boxes float32 [n, 4] as x0, y0, x1, y1 in
                      pixels; labels int64 [n]
    image-mask        (picture, mask): mask uint8 [height, width] of training classes, 255 where none counts
    tokens            an array of tokens: see `Tokens`
    question-answer   a `Question`
"""
Split = Literal["train", "evaluation"]


class Examples(Protocol):
    """One split of a data set. It keeps no open file, because forked processes use it."""

    classes: int | None
    """Number of classes; None: no labels."""

    def __len__(self) -> int:
        """Return the number of examples."""

    def __getitem__(self, number: int) -> Any:
        """Return a decoded example; DamagedDataError names the damaged file."""

    def order(self, source: random.Random) -> Sequence[int]:
        """Return the numbers of all examples in the reading order of one epoch."""

    def files(self) -> Iterable[Path]:
        """Return every file of the split."""


class Format(Protocol):
    """A data format."""

    name: str
    kind: Kind
    needs: tuple[str, ...]
    """Modules that are needed besides numpy."""
    title: str
    layout: str
    """Files and folders, one per line."""
    source: str
    """Origin, size and licence of the data set."""

    def open(self, root: Path, split: Split) -> Examples:
        """Open a split; DamagedDataError or InputError names what is missing and what is valid."""

    def make(self, root: Path, samples: int, seed: int) -> None:
        """Write a small data set in this layout, with both splits, that a model can learn."""


@dataclass(frozen=True)
class Question:
    """A question about a paragraph."""

    number: str
    paragraph: str
    question: str
    answers: tuple[tuple[str, int], ...]
    """Answers and their first characters; empty: no answer."""


class Tokens(Protocol):
    """Examples of kind `tokens`: windows of one long row, of the length that the model needs."""

    def count(self, length: int) -> int:
        """Return the number of windows of `length` + 1 tokens, without overlap."""

    def window(self, number: int, length: int) -> Any:
        """Return `length` + 1 tokens as int64."""

    def files(self) -> Iterable[Path]:
        """Return every file."""


def confined(root: Path, name: str) -> Path:
    """Return the file of that name below `root`; names in data files are untrusted and must stay inside."""
    parts = PurePosixPath(name).parts
    if not parts or name.startswith("/") or ".." in parts or "\x00" in name or "\\" in name:
        raise DamagedDataError(f'{root}: the name "{name[:100]}" leads out of the data set')
    return root.joinpath(*parts)


def shuffled(count: int, source: random.Random) -> Sequence[int]:
    """Return all numbers below `count` in random order. numpy does not stall the start of an epoch."""
    numbers: Sequence[int] = np.random.default_rng(source.getrandbits(64)).permutation(count)  # type: ignore[assignment]
    return numbers


def walk(folder: Path, endings: tuple[str, ...]) -> Iterator[Path]:
    """Return the files below `folder` with these endings, sorted; links to folders are followed one level."""
    with os.scandir(folder) as entries:
        ordered = sorted(entries, key=lambda entry: entry.name)
    for entry in ordered:
        if entry.is_dir(follow_symlinks=False):
            yield from walk(Path(entry.path), endings)
        elif entry.name.lower().endswith(endings):
            yield Path(entry.path)


ROW_BYTES = 16


@dataclass(frozen=True)
class Extent:
    """Number, size and identity of the files of a data set."""

    files: int
    size_bytes: int
    identity: str


def extent(root: Path, files: Iterable[Path]) -> Extent:
    """Return number, size and digest of the list of files; contents are not read.

    The digest is SHA-256 over the sorted BLAKE2b digests (128 bits) of each name below the root and its size: a million
    files take 24 MB, and a file that is listed twice counts once.
    """
    prefix = os.fspath(root).rstrip("/") + "/"
    digests, sizes = bytearray(), array("q")
    for path in files:
        name = os.fspath(path)
        try:
            size = os.stat(name).st_size  # noqa: PTH116 -- a Path for each of a million takes seconds
        except OSError as error:
            raise DamagedDataError(f"{name}: {error.strerror}") from None
        row = f"{name.removeprefix(prefix)}\0{size}".encode("utf-8", "surrogateescape")
        digests += hashlib.blake2b(row, digest_size=ROW_BYTES).digest()
        sizes.append(size)
    rows, first = np.unique(np.frombuffer(digests, dtype=f"S{ROW_BYTES}"), return_index=True)
    total = int(np.frombuffer(sizes, dtype=np.int64)[first].sum()) if len(rows) else 0
    return Extent(len(rows), total, hashlib.sha256(rows.tobytes()).hexdigest())


# First bytes of common file types, and their names.
_PICKLE = "a pickle, which steelyard never loads"
_BEGINNINGS = (
    (b"\xff\xd8\xff", "a JPEG picture"),
    (b"\x89PNG\r\n\x1a\n", "a PNG picture"),
    (b"GIF8", "a GIF picture"),
    (b"BM", "a BMP picture"),
    (b"II*\x00", "a TIFF picture"),
    (b"MM\x00*", "a TIFF picture"),
    (b"RIFF", "a RIFF file such as WebP"),
    (b"%PDF", "a PDF"),
    (b"PK\x03\x04", "a zip archive, perhaps of torch.save"),
    (b"\x1f\x8b", "a gzip file: unpack it"),
    (b"\x93NUMPY", "a numpy file"),
    (b"\x7fELF", "a program"),
    (b"version https://git-lfs", "a pointer of git-lfs: the file itself was not fetched"),
    (b"<", "a web page or XML: a download that failed?"),
    *((b"\x80" + bytes([protocol]), _PICKLE) for protocol in range(2, 6)),
    *((opening, _PICKLE) for opening in (b"(lp0", b"(dp0", b"c__builtin__\n", b"cposix\n", b"cos\n", b"cbuiltins\n")),
)


def begins_like(data: bytes) -> str:
    """Describe a file by its first bytes, for error messages."""
    if not data:
        return "is empty"
    for beginning, name in _BEGINNINGS:
        if data.startswith(beginning):
            return f"begins like {name}"
    if data[257:262] == b"ustar":
        return "is a tar archive"
    return f"begins with the bytes {data[:8].hex(' ')}"


def read_at(path: Path, offset: int, size_bytes: int) -> bytes:
    """Return up to `size` bytes from an offset. Does not wait for a pipe."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise DamagedDataError(f"{path}: {error.strerror}") from None
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise DamagedDataError(f"{path} is not a regular file")
        pieces = []
        while size_bytes > 0 and (piece := os.pread(handle, min(size_bytes, _READ_BYTES), offset)):
            pieces.append(piece)
            offset += len(piece)
            size_bytes -= len(piece)
    except OSError as error:
        raise DamagedDataError(f"{path}: {error.strerror}") from None
    finally:
        os.close(handle)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def read_whole(path: Path, limit_bytes: int) -> bytes:
    """Read a whole file; refuse one above the limit."""
    try:
        # Checked before and after reading, for a file that grows.
        told_bytes = path.stat().st_size
    except OSError as error:
        raise DamagedDataError(f"{path}: {error.strerror}") from None
    data = b"" if told_bytes > limit_bytes else read_at(path, 0, limit_bytes + 1)
    if max(told_bytes, len(data)) > limit_bytes:
        raise DamagedDataError(f"{path} is larger than {limit_bytes:,} bytes, the limit for such a file")
    return data


# A wrong size in a file must not become a buffer of a terabyte.
_READ_BYTES = 16 << 20
