"""Cityscapes: street scenes with a class for every pixel, from the fine annotations."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np

from steelyard.data import images
from steelyard.data.form import shuffled
from steelyard.errors import DamagedDataError, InputError

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from steelyard.data.form import Kind, Split

FOLDERS = {"train": "train", "evaluation": "val"}
PICTURE = "_leftImg8bit.png"
LABEL = "_gtFine_labelIds.png"
# The real data set has 5,000 fine and 20,000 coarse annotations.
PICTURE_LIMIT = 1_000_000
CLASSES = 19
IGNORED = 255
# Ids in the files to the 19 classes of training: labels.py of github.com/mcordts/cityscapesScripts.
TRAINING = {
    7: 0, 8: 1, 11: 2, 12: 3, 13: 4, 17: 5, 19: 6, 20: 7, 21: 8, 22: 9, 23: 10, 24: 11, 25: 12, 26: 13, 27: 14, 28: 15,
    31: 16, 32: 17, 33: 18,
}  # fmt: skip
TABLE = np.full(256, IGNORED, np.uint8)
TABLE[list(TRAINING)] = list(TRAINING.values())


class CityscapesExamples:
    """One split: pictures and masks of training classes, in the order of their names."""

    classes: int | None = CLASSES

    def __init__(self, root: Path, split: Split) -> None:
        self._pictures = root / "leftImg8bit" / FOLDERS[split]
        self._labels = root / "gtFine" / FOLDERS[split]
        for folder in (self._pictures, self._labels):
            if not folder.is_dir():
                raise InputError(
                    f"Cityscapes: {folder} is missing", next_step="unpack it: steelyard data show cityscapes"
                )
        self._names = list(self._found())
        if not self._names:
            raise DamagedDataError(f"{self._pictures}: has no <city>/*{PICTURE}")

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, number: int) -> tuple[Any, NDArray[np.uint8]]:
        picture_path, label_path = self._paths(self._names[number])
        picture = images.decode(picture_path)
        label = images.load(label_path)
        if label.mode != "L":
            raise DamagedDataError(f"{label_path} is of mode {label.mode}; label ids are 8-bit grey (mode L)")
        if label.size != picture.size:
            sizes = "{} x {} pixels, its picture {} x {}".format(*label.size, *picture.size)
            raise DamagedDataError(f"{label_path} has {sizes}")
        return picture, TABLE[np.asarray(label)]

    def order(self, source: random.Random) -> Sequence[int]:
        """All examples, shuffled."""
        return shuffled(len(self), source)

    def files(self) -> Iterable[Path]:
        """Pictures and masks."""
        for name in self._names:
            yield from self._paths(name)

    def _paths(self, name: str) -> tuple[Path, Path]:
        return self._pictures / f"{name}{PICTURE}", self._labels / f"{name}{LABEL}"

    def _found(self) -> Iterator[str]:
        """City and name of every picture; each must have its mask."""
        left = PICTURE_LIMIT
        for city in _listed(self._pictures):
            if not (self._pictures / city).is_dir():
                continue
            labels = self._labels / city
            masks = set(_listed(labels)) if labels.is_dir() else set()
            for file in _listed(self._pictures / city):
                if not file.endswith(PICTURE):
                    continue
                name = file[: -len(PICTURE)]
                if f"{name}{LABEL}" not in masks:
                    raise DamagedDataError(f"{labels / name}{LABEL} is missing: the picture {city}/{file} has no mask")
                left -= 1
                if left < 0:
                    raise DamagedDataError(f"{self._pictures}: more than {PICTURE_LIMIT:,} pictures")
                yield f"{city}/{name}"


def _listed(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))  # noqa: PTH208 -- a path for each of many names is slow
    except OSError as error:
        raise DamagedDataError(f"{folder}: cannot be read: {error.strerror}") from None


# A made scene: sky over buildings over road, and a car; ids and colours as the official table has them.
MADE = {23: (70, 130, 180), 11: (70, 70, 70), 7: (128, 64, 128), 26: (0, 0, 142), 21: (107, 142, 35)}
MADE_SIZE = (128, 256)
CITIES = ("aachen", "bochum")


def _scene(source: np.random.Generator) -> NDArray[np.uint8]:
    """Label ids of a street."""
    height, width = MADE_SIZE
    ids = np.full(MADE_SIZE, 23, np.uint8)
    horizon, kerb = (int(row) for row in (source.integers(30, 55), source.integers(70, 95)))
    ids[horizon:kerb] = 11
    middle = int(source.integers(40, width - 40))
    ids[horizon:kerb, :middle] = 21
    ids[kerb:] = 7
    left, top = int(source.integers(0, width - 60)), kerb + int(source.integers(0, 10))
    ids[top - 12 : top + 12, left : left + 50] = 26
    # The bonnet of the car that drives the camera: one of the ids that do not count.
    ids[height - 6 :] = 1
    return ids


def _make_split(root: Path, folder: str, samples: int, source: np.random.Generator) -> None:
    for number in range(samples):
        city = CITIES[number % 2]
        name = f"{city}_{number:06d}_000019"
        ids = _scene(source)
        colours = np.zeros((256, 3), np.int16)
        colours[list(MADE)] = list(MADE.values())
        pixels = np.clip(colours[ids] + source.integers(-16, 17, (*MADE_SIZE, 3)), 0, 255).astype(np.uint8)
        for kind, ending, array in (("leftImg8bit", PICTURE, pixels), ("gtFine", LABEL, ids)):
            place = root / kind / folder / city
            place.mkdir(parents=True, exist_ok=True)
            (place / f"{name}{ending}").write_bytes(images.encode(array, "PNG"))


class _Cityscapes:
    name = "cityscapes"
    kind: Kind = "image-mask"
    needs: tuple[str, ...] = ("PIL",)
    title = (
        "Cityscapes: a class for every pixel of a street, 19 classes, 2,975 pictures for training, 500 for evaluation"
    )
    layout = (
        "leftImg8bit/train/<city>/<name>_leftImg8bit.png\n"
        "leftImg8bit/val/<city>/<name>_leftImg8bit.png\n"
        "gtFine/train/<city>/<name>_gtFine_labelIds.png\n"
        "gtFine/val/<city>/<name>_gtFine_labelIds.png"
    )
    source = (
        "https://www.cityscapes-dataset.com, after registration: leftImg8bit_trainvaltest.zip (11 GB) and "
        "gtFine_trainvaltest.zip (241 MB). For non-commercial use such as research and teaching; see its licence."
    )

    def open(self, root: Path, split: Split) -> CityscapesExamples:
        """A split; lists its folders."""
        return CityscapesExamples(root, split)

    def make(self, root: Path, samples: int, seed: int) -> None:
        """Streets of 256 x 128 pixels in two cities, one colour a class."""
        source = np.random.default_rng(seed)
        _make_split(root, "train", max(1, samples), source)
        _make_split(root, "val", max(1, samples // 4), source)


CITYSCAPES = _Cityscapes()
