"""CIFAR-10 and CIFAR-100 in their binary versions: records of label bytes and 32 x 32 pixels. Nothing is unpickled."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from steelyard.data.form import Kind, begins_like, read_at, shuffled
from steelyard.data.images import classes_for, draw, evaluation_samples
from steelyard.errors import DamagedDataError, InputError, Problem

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from steelyard.data.form import Split

SIDE = 32
PIXELS_BYTES = 3 * SIDE * SIDE
# Superclasses of 5 fine classes each, of CIFAR-100 alone.
FINE_IN_COARSE = 5
PAGE = "https://www.cs.toronto.edu/~kriz/cifar.html"


class CifarExamples:
    """Records of one split, read one at a time."""

    def __init__(self, paths: list[Path], label_bytes: int, classes: int) -> None:
        self.classes: int | None = classes
        self._below = classes
        self._paths = paths
        self._label_bytes = label_bytes
        self._record_bytes = label_bytes + PIXELS_BYTES
        self._ends = np.cumsum([self._records(path) for path in paths])

    def _records(self, path: Path) -> int:
        size_bytes = path.stat().st_size
        if size_bytes == 0 or size_bytes % self._record_bytes:
            raise DamagedDataError(
                f"{path} has {size_bytes:,} bytes, which is no whole number of records of {self._record_bytes}: "
                f"it is truncated or another file; it {begins_like(read_at(path, 0, 512))}",
                next_step=f"fetch the binary version again: {PAGE}",
            )
        return size_bytes // self._record_bytes

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, number: int) -> tuple[NDArray[np.uint8], int]:
        if not 0 <= number < len(self):
            raise IndexError(number)
        place = int(np.searchsorted(self._ends, number, side="right"))
        path, inside = self._paths[place], int(number - (self._ends[place - 1] if place else 0))
        record = np.frombuffer(read_at(path, inside * self._record_bytes, self._record_bytes), dtype=np.uint8)
        if record.size != self._record_bytes:
            raise DamagedDataError(f"{path} became shorter while it was read")
        label = int(record[self._label_bytes - 1])
        if label >= self._below:
            raise DamagedDataError(f"{path}: record {inside} has the label {label}; valid: 0 to {self._below - 1}")
        planes = record[self._label_bytes :].reshape(3, SIDE, SIDE)
        return np.ascontiguousarray(planes.transpose(1, 2, 0)), label

    def order(self, source: random.Random) -> Sequence[int]:
        """Any order: records are small, and the page cache holds them all."""
        return shuffled(len(self), source)

    def files(self) -> Iterable[Path]:
        """One, or the five batches of CIFAR-10."""
        return self._paths


class Cifar:
    """One of the two data sets."""

    kind: Kind = "image-class"
    needs: tuple[str, ...] = ()

    def __init__(self, classes: int, folder: str, pickled: str, train: tuple[str, ...], evaluation: str) -> None:
        self.name = f"cifar{classes}"
        self.title = f"CIFAR-{classes}: {classes} classes, 50,000 + 10,000 pictures of 32 x 32 pixels, binary version"
        files = [*(f"{folder}/{name}" for name in train), f"{folder}/{evaluation}"]
        labels = "1 coarse and 1 fine label byte" if classes == 100 else "1 label byte"
        self.layout = "\n".join([*files, f"each: records of {labels} and 3072 bytes (red, green, blue; row by row)"])
        self.source = (
            f"{PAGE} (cifar-{classes}-binary.tar.gz, {161 if classes == 100 else 162} MB; unpacked 184 MB). "
            "The page names no licence; it asks to cite Krizhevsky, Learning Multiple Layers of Features from "
            "Tiny Images, 2009."
        )
        self._classes = classes
        self._label_bytes = 2 if classes == 100 else 1
        self._folder = folder
        self._pickled = pickled
        self._files: dict[Split, tuple[str, ...]] = {"train": train, "evaluation": (evaluation,)}

    def open(self, root: Path, split: Split) -> CifarExamples:
        """A split below `root`, which is the folder itself or the one that it was unpacked in."""
        names = self._files[split]
        folder = root / self._folder if (root / self._folder).is_dir() else root
        missing = [name for name in names if not (folder / name).is_file()]
        if missing:
            raise self._absent(root, folder, missing)
        return CifarExamples([folder / name for name in names], self._label_bytes, self._classes)

    def _absent(self, root: Path, folder: Path, missing: list[str]) -> InputError:
        binary = f"the binary version, cifar-{self._classes}-binary.tar.gz of {PAGE}"
        if (root / self._pickled).is_dir() or (root / "batches.meta").exists() or (root / "meta").exists():
            problem = Problem(str(root), "holds the Python version, which is pickled: never loaded", binary)
            return InputError(f"{self.name} is not here in its binary version", problems=(problem,), next_step=binary)
        problem = Problem(str(folder), f"has no {', no '.join(missing)}", self.layout.replace("\n", ", "))
        return InputError(f"{self.name} is not here", problems=(problem,), next_step=f"steelyard data show {self.name}")

    def make(self, root: Path, samples: int, seed: int) -> None:
        """A small one: labels are 0 to k - 1 where k is the number of samples / 50, and at least 2.

        Coarse labels are the fine ones in fives, which is not the true grouping; nothing here reads them.
        """
        classes = classes_for(samples, self._classes)
        source = np.random.default_rng(seed)
        folder = root / self._folder
        folder.mkdir(parents=True, exist_ok=True)
        train = self._files["train"]
        # Every file has a record at least.
        counts = [
            max(1, samples * (place + 1) // len(train) - samples * place // len(train)) for place in range(len(train))
        ]
        plan = [*zip(train, counts, strict=True), (self._files["evaluation"][0], evaluation_samples(samples, classes))]
        first = 0
        for name, count in plan:
            records = [self._record((first + number) % classes, source) for number in range(count)]
            (folder / name).write_bytes(b"".join(records))
            first += count

    def _record(self, label: int, source: np.random.Generator) -> bytes:
        pixels: bytes = draw(label, SIDE, SIDE, source).transpose(2, 0, 1).tobytes()
        return bytes([label // FINE_IN_COARSE, label][-self._label_bytes :]) + pixels


CIFAR10 = Cifar(
    10,
    "cifar-10-batches-bin",
    "cifar-10-batches-py",
    tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
    "test_batch.bin",
)
CIFAR100 = Cifar(100, "cifar-100-binary", "cifar-100-python", ("train.bin",), "test.bin")
