"""Pictures as single files: folders of classes as ImageNet has them, and Food-101 with its lists."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import numpy as np

from steelyard.data.form import Kind, confined, read_whole, shuffled
from steelyard.data.images import classes_for, decode, draw, encode, evaluation_samples
from steelyard.errors import DamagedDataError, InputError, Problem

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from PIL.Image import Image as Picture

    from steelyard.data.form import Split

ENDINGS = (".jpeg", ".jpg", ".png")
FOLDERS: dict[Split, str] = {"train": "train", "evaluation": "val"}
# Made pictures have one of 125 colours each; more classes than these would look alike.
MADE_CLASSES = 100
# Sides of made pictures, in pixels.
SIDES = (120, 400)
# Food-101 names 75,750 pictures in 2 MB; a list of a million is 30 MB.
LIST_LIMIT_BYTES = 64 << 20


class Packed:
    """Many names in one piece of memory: a million strings would be copied into every loader process."""

    def __init__(self, names: Iterable[str]) -> None:
        packed = [os.fsencode(name) for name in names]
        self._ends = np.cumsum([0, *map(len, packed)])
        self._bytes = b"".join(packed)

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, number: int) -> str:
        return os.fsdecode(self._bytes[self._ends[number] : self._ends[number + 1]])


class PictureFiles:
    """One split: names below a folder and their labels."""

    def __init__(self, folder: Path, names: Iterable[str], labels: Sequence[int], classes: Sequence[str]) -> None:
        self.classes: int | None = len(classes)
        self.class_names = tuple(classes)
        self._folder = folder
        self._names = Packed(names)
        self._labels = np.array(labels, dtype=np.int32)

    def __len__(self) -> int:
        return len(self._labels)

    def path(self, number: int) -> Path:
        """Where a picture is."""
        return self._folder / self._names[number]

    def label(self, number: int) -> int:
        """Its class."""
        return int(self._labels[number])

    def __getitem__(self, number: int) -> tuple[Picture, int]:
        if not 0 <= number < len(self):
            raise IndexError(number)
        return decode(self.path(number)), self.label(number)

    def order(self, source: random.Random) -> Sequence[int]:
        """Any order: each picture is a file of its own."""
        return shuffled(len(self), source)

    def files(self) -> Iterator[Path]:
        """The pictures."""
        return (self.path(number) for number in range(len(self)))


def _listed(folder: Path, *, folders: bool) -> list[str]:
    """Names in a folder, sorted, without hidden ones: of folders, or of pictures by their endings."""
    with os.scandir(folder) as entries:
        return sorted(
            entry.name
            for entry in entries
            if not entry.name.startswith(".") and (entry.is_dir() if folders else entry.name.lower().endswith(ENDINGS))
        )


class ImageFolder:
    """Any data set of classes with a folder each."""

    name = "imagefolder"
    kind: Kind = "image-class"
    needs: tuple[str, ...] = ("PIL",)
    title = "Images, one folder per class, such as ImageNet-1k"
    layout = (
        "train/<class>/*.JPEG (or .jpg, .png)\nval/<class>/*.JPEG\n"
        "classes are numbered in the order of their names; val has none that train has not"
    )
    source = (
        "ImageNet-1k (ILSVRC 2012): https://image-net.org/download after registration; 1,281,167 + 50,000 pictures, "
        "138 + 6.3 GB; for non-commercial research and teaching. The archive of the validation pictures has no "
        "folders: sort it by its labels first."
    )

    def open(self, root: Path, split: Split) -> PictureFiles:
        """A split; the training split's folders say which classes there are."""
        classes = self._classes(root)
        folder = root / FOLDERS[split]
        present = classes if split == "train" else self._known(folder, classes)
        numbers = {name: number for number, name in enumerate(classes)}
        names: list[str] = []
        labels: list[int] = []
        for name in present:
            files = _listed(folder / name, folders=False)
            if not files and split == "train":
                raise self._wrong(
                    folder / name, "has no pictures", f"files with one of the endings {', '.join(ENDINGS)}"
                )
            names += [f"{name}/{file}" for file in files]
            labels += [numbers[name]] * len(files)
        if not names:
            raise self._wrong(folder, "has no pictures", "val/<class>/*.JPEG")
        return PictureFiles(folder, names, labels, classes)

    def _classes(self, root: Path) -> list[str]:
        if not (root / "train").is_dir():
            raise self._wrong(root, "has no folder train", "train/<class>/*.JPEG")
        classes = _listed(root / "train", folders=True)
        if not classes:
            raise self._wrong(root / "train", "has no folders: the classes are missing", "train/<class>/*.JPEG")
        return classes

    def _known(self, folder: Path, classes: list[str]) -> list[str]:
        if not folder.is_dir():
            raise self._wrong(folder.parent, f"has no folder {folder.name}", f"{folder.name}/<class>/*.JPEG")
        present = _listed(folder, folders=True)
        if not present:
            raise self._wrong(folder, "has no folders: sort the pictures by class", f"{folder.name}/<class>/*.JPEG")
        if strange := sorted(set(present) - set(classes)):
            raise self._wrong(
                folder, f'has the class "{strange[0]}", which train does not have', "the classes of train"
            )
        return present

    def _wrong(self, place: Path, problem: str, valid: str) -> InputError:
        problems = (Problem(str(place), problem, valid),)
        return InputError("not a folder of classes", problems=problems, next_step="steelyard data show imagefolder")

    def make(self, root: Path, samples: int, seed: int) -> None:
        """JPEGs of many sizes; as many classes as samples / 50, at least 2 and at most 100."""
        classes = classes_for(samples, MADE_CLASSES)
        source = np.random.default_rng(seed)
        for folder, count in (("train", samples), ("val", evaluation_samples(samples, classes))):
            for number in range(count):
                name = f"n{number % classes:08d}"
                place = root / folder / name
                place.mkdir(parents=True, exist_ok=True)
                (place / f"{name}_{number // classes}.JPEG").write_bytes(_jpeg(number % classes, source))


def _jpeg(label: int, source: np.random.Generator) -> bytes:
    height, width = source.integers(*SIDES, 2).tolist()
    return encode(draw(label, height, width, source))


class Food101:
    """The data set of dishes."""

    name = "food101"
    kind: Kind = "image-class"
    needs: tuple[str, ...] = ("PIL",)
    title = "Food-101: 101 dishes, 75,750 + 25,250 pictures of up to 512 pixels"
    layout = (
        "food-101/images/<class>/<number>.jpg\nfood-101/meta/classes.txt\n"
        "food-101/meta/train.txt, food-101/meta/test.txt: a line <class>/<number> for each picture\n"
        "the other files of food-101/meta are not read"
    )
    source = (
        "Bossard, Guillaumin and Van Gool, ECCV 2014: https://data.vision.ee.ethz.ch/cvl/datasets_extra/food-101/ "
        "(food-101.tar.gz, 5 GB). The pictures are from Foodspotting and not the authors' property: use beyond "
        "scientific fair use is to be negotiated with their owners."
    )
    _lists: dict[Split, str] = {"train": "train.txt", "evaluation": "test.txt"}  # noqa: RUF012 -- nobody writes to it

    def open(self, root: Path, split: Split) -> PictureFiles:
        """A split; `root` is food-101 or the folder that it was unpacked in."""
        folder = root / "food-101" if (root / "food-101").is_dir() else root
        meta, images = folder / "meta", folder / "images"
        for place in (meta / "classes.txt", meta / self._lists[split], images):
            if not place.exists():
                raise InputError(
                    "food101 is not here",
                    problems=(Problem(str(place), "is missing", self.layout.replace("\n", ", ")),),
                    next_step="steelyard data show food101",
                )
        classes = _lines(meta / "classes.txt")
        numbers = {name: number for number, name in enumerate(classes)}
        if len(numbers) != len(classes):
            raise DamagedDataError(f"{meta / 'classes.txt'} names a class twice")
        listing = meta / self._lists[split]
        names = _lines(listing)
        labels = [_label(line, numbers, images, listing) for line in names]
        return PictureFiles(images, (f"{name}.jpg" for name in names), labels, classes)

    def make(self, root: Path, samples: int, seed: int) -> None:
        """JPEGs of many sizes; as many classes as samples / 50, at least 2 and at most 100."""
        classes = [f"dish_{number:03d}" for number in range(classes_for(samples, MADE_CLASSES))]
        source = np.random.default_rng(seed)
        folder = root / "food-101"
        (folder / "meta").mkdir(parents=True, exist_ok=True)
        for name in classes:
            (folder / "images" / name).mkdir(parents=True, exist_ok=True)
        _write_lines(folder / "meta" / "classes.txt", classes)
        _write_lines(folder / "meta" / "labels.txt", [name.replace("_", " ").capitalize() for name in classes])
        first = 0
        for part, count in (("train", samples), ("test", evaluation_samples(samples, len(classes)))):
            names = [f"{classes[number % len(classes)]}/{1000 + first + number}" for number in range(count)]
            for number, name in enumerate(names):
                (folder / "images" / f"{name}.jpg").write_bytes(_jpeg(number % len(classes), source))
            _write_lines(folder / "meta" / f"{part}.txt", names)
            # The same by class: not read here, but other readers take it.
            by_class = {name: [entry for entry in names if entry.startswith(f"{name}/")] for name in classes}
            (folder / "meta" / f"{part}.json").write_text(json.dumps(by_class), encoding="utf-8")
            first += count


def _write_lines(path: Path, lines: Sequence[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def _lines(path: Path) -> list[str]:
    try:
        lines = read_whole(path, LIST_LIMIT_BYTES).decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise DamagedDataError(f"{path} is not text: {error.reason} at byte {error.start}") from None
    names = [line.strip() for line in lines if line.strip()]
    if not names:
        raise DamagedDataError(f"{path} is empty")
    return names


def _label(line: str, numbers: dict[str, int], images: Path, listing: Path) -> int:
    confined(images, line)
    name = line.partition("/")[0]
    if name not in numbers:
        raise DamagedDataError(f'{listing}: "{line[:100]}" is in no class of classes.txt')
    return numbers[name]


IMAGEFOLDER = ImageFolder()
FOOD101 = Food101()
