"""MNIST in its idx files, plain or as gzip."""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING

import numpy as np

from steelyard.data.form import Kind, begins_like, read_at, read_whole, shuffled
from steelyard.data.images import evaluation_samples
from steelyard.errors import DamagedDataError, InputError, Problem

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from steelyard.data.form import Split

CLASSES = 10
SIDE = 28
PICTURE_BYTES = SIDE * SIDE
# The real one has 60,000 pictures. What is packed is held in memory by every process that reads: 75 MiB at most.
MOST = 100_000
PACKED_LIMIT_BYTES = MOST * PICTURE_BYTES
# idx: two zero bytes, 08 for uint8, the number of dimensions; then each dimension as a big-endian uint32.
PICTURES, LABELS = 0x803, 0x801
BEGIN: dict[Split, str] = {"train": "train", "evaluation": "t10k"}
GZIP = 16 + zlib.MAX_WBITS


class Idx:
    """One idx file: items of one size, read from the file or, if it is packed, kept in memory."""

    def __init__(self, path: Path, magic: int, item: tuple[int, ...]) -> None:
        self.path = path
        self._item_bytes = int(np.prod(item, dtype=np.int64))
        self._header_bytes = 4 * (2 + len(item))
        self._packed: bytes | None = None
        raw = read_whole(path, PACKED_LIMIT_BYTES) if path.suffix == ".gz" else None
        header = read_at(path, 0, self._header_bytes) if raw is None else _unpack(path, raw, self._header_bytes)
        self.count = self._count(header, magic, item)
        wanted = self._header_bytes + self.count * self._item_bytes
        if raw is None:
            actual = path.stat().st_size
        else:
            # One byte more than the header promises tells a bomb from the truth.
            self._packed = _unpack(path, raw, wanted + 1)
            actual = len(self._packed)
        if actual != wanted:
            more = "more" if actual > wanted else f"{actual:,}"
            raise DamagedDataError(f"{path}: its header says {self.count:,} items, {wanted:,} bytes; it has {more}")

    def _count(self, header: bytes, magic: int, item: tuple[int, ...]) -> int:
        if len(header) < self._header_bytes or struct.unpack(">I", header[:4])[0] != magic:
            raise DamagedDataError(
                f"{self.path} is not an idx file of MNIST: it {begins_like(header)}, not with {magic:08x}"
            )
        count, *size = struct.unpack(f">{1 + len(item)}I", header[4:])
        if tuple(size) != item:
            raise DamagedDataError(f"{self.path}: items of {size}; MNIST has {list(item)}")
        if not 0 < count <= MOST:
            raise DamagedDataError(f"{self.path}: its header says {count:,} items; valid: 1 to {MOST:,}")
        return int(count)

    def read(self, first: int, count: int) -> NDArray[np.uint8]:
        """Return consecutive items as bytes."""
        begin, size_bytes = self._header_bytes + first * self._item_bytes, count * self._item_bytes
        held = self._packed
        data = read_at(self.path, begin, size_bytes) if held is None else held[begin : begin + size_bytes]
        if len(data) != size_bytes:
            raise DamagedDataError(f"{self.path} became shorter while it was read")
        return np.frombuffer(data, dtype=np.uint8)


def _unpack(path: Path, data: bytes, limit_bytes: int) -> bytes:
    """Return the first bytes of a gzip file, without using more memory than that."""
    machine = zlib.decompressobj(GZIP)
    try:
        unpacked = machine.decompress(data, limit_bytes)
    except zlib.error as error:
        raise DamagedDataError(f"{path} is not a valid gzip file: {error}; it {begins_like(data)}") from None
    if len(unpacked) < limit_bytes and not machine.eof:
        raise DamagedDataError(f"{path}: the gzip file is truncated")
    return unpacked


class MnistExamples:
    """Pictures and labels of one split."""

    classes: int | None = CLASSES

    def __init__(self, pictures: Path, labels: Path) -> None:
        self._pictures = Idx(pictures, PICTURES, (SIDE, SIDE))
        answers = Idx(labels, LABELS, ())
        if answers.count != self._pictures.count:
            raise DamagedDataError(f"{labels} has {answers.count} labels for {self._pictures.count} pictures")
        self._labels = answers.read(0, answers.count)
        if wrong := np.flatnonzero(self._labels >= CLASSES).tolist():
            raise DamagedDataError(f"{labels}: label {wrong[0]} is {self._labels[wrong[0]]}; valid: 0 to {CLASSES - 1}")
        self._files = (pictures, labels)

    def __len__(self) -> int:
        return self._pictures.count

    def __getitem__(self, number: int) -> tuple[NDArray[np.uint8], int]:
        if not 0 <= number < len(self):
            raise IndexError(number)
        # A copy: what lies in the packed file cannot be written to, and torch warns of that.
        return self._pictures.read(int(number), 1).reshape(SIDE, SIDE, 1).copy(), int(self._labels[number])

    def order(self, source: random.Random) -> Sequence[int]:
        """Any order: everything fits into memory."""
        return shuffled(len(self), source)

    def files(self) -> Iterable[Path]:
        """Pictures and labels."""
        return self._files


class Mnist:
    """The data set."""

    name = "mnist"
    kind: Kind = "image-class"
    needs: tuple[str, ...] = ()
    title = "MNIST: digits, 60,000 + 10,000 grey pictures of 28 x 28 pixels, idx files"
    layout = (
        "train-images-idx3-ubyte[.gz]\ntrain-labels-idx1-ubyte[.gz]\n"
        "t10k-images-idx3-ubyte[.gz]\nt10k-labels-idx1-ubyte[.gz]\n"
        "in the folder itself or in MNIST/raw below it, where torchvision puts them"
    )
    source = (
        "LeCun, Cortes and Burges, http://yann.lecun.com/exdb/mnist; torchvision fetches the same files from "
        "https://ossci-datasets.s3.amazonaws.com/mnist/ (12 MB packed, 55 MB unpacked). Keras gives the "
        "terms as CC BY-SA 3.0."
    )

    def open(self, root: Path, split: Split) -> MnistExamples:
        """A split; the plain file where both are there."""
        folder = root / "MNIST" / "raw" if (root / "MNIST" / "raw").is_dir() else root
        begin = BEGIN[split]
        files = [self._find(root, folder, f"{begin}-{end}") for end in ("images-idx3-ubyte", "labels-idx1-ubyte")]
        return MnistExamples(*files)

    def _find(self, root: Path, folder: Path, name: str) -> Path:
        for path in (folder / name, folder / f"{name}.gz"):
            if path.is_file():
                return path
        raise InputError(
            "mnist is not here",
            problems=(Problem(str(root), f"has no {name} or {name}.gz", self.layout.replace("\n", ", ")),),
            next_step="steelyard data show mnist",
        )

    def make(self, root: Path, samples: int, seed: int) -> None:
        """Digits of seven bars each, moved about a little, with noise; all ten, in turn."""
        source = np.random.default_rng(seed)
        folder = root / "MNIST" / "raw"
        folder.mkdir(parents=True, exist_ok=True)
        for begin, count in (("train", samples), ("t10k", evaluation_samples(samples, CLASSES))):
            labels = bytes(number % CLASSES for number in range(count))
            pictures = b"".join(_digit(label, source).tobytes() for label in labels)
            header = struct.pack(">4I", PICTURES, count, SIDE, SIDE)
            (folder / f"{begin}-images-idx3-ubyte").write_bytes(header + pictures)
            (folder / f"{begin}-labels-idx1-ubyte").write_bytes(struct.pack(">2I", LABELS, count) + labels)


# Which of seven bars each digit lights, and where the bars are: rows, then columns, of the 28 x 28 pixels.
SEGMENTS = ("abcdef", "bc", "abdeg", "abcdg", "bcfg", "acdfg", "acdefg", "abc", "abcdefg", "abcdfg")
BARS = {
    "a": (slice(5, 7), slice(9, 19)),
    "b": (slice(6, 14), slice(17, 19)),
    "c": (slice(14, 22), slice(17, 19)),
    "d": (slice(21, 23), slice(9, 19)),
    "e": (slice(14, 22), slice(9, 11)),
    "f": (slice(6, 14), slice(9, 11)),
    "g": (slice(13, 15), slice(9, 19)),
}


def _digit(label: int, source: np.random.Generator) -> NDArray[np.uint8]:
    drawn = np.zeros((SIDE, SIDE), dtype=np.int16)
    for bar in SEGMENTS[label]:
        drawn[BARS[bar]] = source.integers(160, 256)
    noisy: NDArray[np.int16] = np.roll(drawn, source.integers(-2, 3, 2).tolist(), (0, 1))
    noisy += source.integers(0, 60, drawn.shape, dtype=np.int16)
    return np.clip(noisy, 0, 255).astype(np.uint8)


MNIST = Mnist()
