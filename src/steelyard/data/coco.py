"""COCO detection: pictures with boxes, from the annotation files as they are published.

The annotation file of the training split has 470 MB. It is read as a stream, and of every annotation only the box, the
category and the picture's id are kept: masks are decoded to nothing more than the text they are, and dropped.
"""

from __future__ import annotations

import json
from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from steelyard.data import images
from steelyard.data.form import confined, shuffled
from steelyard.data.json_stream import JsonLimits, TextTable, entries
from steelyard.errors import DamagedDataError, InputError

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from steelyard.data.form import Kind, Split

FOLDERS = {"train": "train2017", "evaluation": "val2017"}
LIMITS = JsonLimits()
CATEGORY_LIMIT = 10_000
NAME_CHARS = 255
# Far outside of any picture; below it a 32-bit float is exact to a tenth of a pixel.
COORDINATE_LIMIT = 1e6
_INT64 = range(-(1 << 63), 1 << 63)

# The 80 categories of the detection task with their published ids; 12, 26, 29, ... were never given out.
_NAMES = (
    "person,bicycle,car,motorcycle,airplane,bus,train,truck,boat,traffic light,fire hydrant,stop sign,parking meter,"
    "bench,bird,cat,dog,horse,sheep,cow,elephant,bear,zebra,giraffe,backpack,umbrella,handbag,tie,suitcase,frisbee,"
    "skis,snowboard,sports ball,kite,baseball bat,baseball glove,skateboard,surfboard,tennis racket,bottle,wine glass,"
    "cup,fork,knife,spoon,bowl,banana,apple,sandwich,orange,broccoli,carrot,hot dog,pizza,donut,cake,chair,couch,"
    "potted plant,bed,dining table,toilet,tv,laptop,mouse,remote,keyboard,cell phone,microwave,oven,toaster,sink,"
    "refrigerator,book,clock,vase,scissors,teddy bear,hair drier,toothbrush"
)
_UNUSED = {12, 26, 29, 30, 45, 66, 68, 69, 71, 83}
CATEGORIES = dict(zip((key for key in range(1, 91) if key not in _UNUSED), _NAMES.split(","), strict=True))


@dataclass
class _Table:
    """What is kept of an annotation file while it is read."""

    path: Path
    image_ids: array[int] = field(default_factory=lambda: array("q"))
    sizes: array[int] = field(default_factory=lambda: array("i"))
    names: TextTable = field(default_factory=TextTable)
    ids: array[int] = field(default_factory=lambda: array("q"))
    owners: array[int] = field(default_factory=lambda: array("q"))
    categories: array[int] = field(default_factory=lambda: array("q"))
    crowds: array[int] = field(default_factory=lambda: array("b"))
    boxes: array[float] = field(default_factory=lambda: array("f"))
    known: dict[int, str] = field(default_factory=dict)

    def image(self, entry: Any) -> None:
        """An element of `images`."""
        number = self._whole(entry, "id", "an image")
        what = f"image {number}"
        name = entry.get("file_name")
        if not isinstance(name, str) or not 0 < len(name) <= NAME_CHARS:
            self.fail(f"{what} has no file_name of at most {NAME_CHARS} characters")
        confined(self.path.parent, name)
        width, height = (self._whole(entry, key, what) for key in ("width", "height"))
        if not (0 < width < 1 << 20 and 0 < height < 1 << 20):
            self.fail(f"{what} has a size of {width} x {height}")
        self.image_ids.append(number)
        self.sizes.extend((width, height))
        self.names.append(name)

    def annotation(self, entry: Any) -> None:
        """An element of `annotations`."""
        number = self._whole(entry, "id", "an annotation")
        what = f"annotation {number}"
        owner = self._whole(entry, "image_id", what)
        category = self._whole(entry, "category_id", what)
        crowd = entry.get("iscrowd", 0)
        if crowd not in (0, 1):
            self.fail(f"{what} has an iscrowd that is neither 0 nor 1")
        x, y, width, height = self._box(entry.get("bbox"), what)
        self._mask(entry.get("segmentation"), what)
        self.ids.append(number)
        self.owners.append(owner)
        self.categories.append(category)
        self.crowds.append(int(crowd))
        self.boxes.extend((x, y, x + width, y + height))

    def category(self, entry: Any) -> None:
        """An element of `categories`."""
        number = self._whole(entry, "id", "a category")
        if number in self.known:
            self.fail(f"category {number} is there twice")
        if len(self.known) == CATEGORY_LIMIT:
            self.fail(f"more than {CATEGORY_LIMIT:,} categories")
        self.known[number] = str(entry.get("name", ""))[:NAME_CHARS]

    def fail(self, what: str) -> NoReturn:
        """The file is not what it should be."""
        raise DamagedDataError(f"{self.path}: {what}")

    def _box(self, box: Any, what: str) -> list[float]:
        if not isinstance(box, list) or len(box) != 4 or not all(type(value) in (int, float) for value in box):
            self.fail(f"{what} has no bbox of four numbers: x, y, width, height")
        if not all(-COORDINATE_LIMIT <= value <= COORDINATE_LIMIT for value in box):
            self.fail(f"{what} has a bbox that is not finite or beyond {COORDINATE_LIMIT:,.0f} pixels")
        return box

    def _mask(self, mask: Any, what: str) -> None:
        """Masks are not unpacked here; a library that this file is handed on to may do so."""
        if not isinstance(mask, dict):
            return
        size = mask.get("size")
        if not isinstance(size, list) or len(size) != 2 or not all(type(side) is int and side > 0 for side in size):
            self.fail(f"{what} has a mask without a size")
        if size[0] * size[1] > images.PIXEL_LIMIT:
            self.fail(f"{what} has a mask of {size[1]} x {size[0]} pixels; at most {images.PIXEL_LIMIT:,} are valid")

    def _whole(self, entry: Any, key: str, what: str) -> int:
        if not isinstance(entry, dict):
            self.fail(f"{what} is not an object")
        value = entry.get(key)
        if type(value) is not int or value not in _INT64:
            self.fail(f"{what} has no whole number as {key}")
        return value


class CocoExamples:
    """One split: pictures with their boxes; of training, those that have any."""

    def __init__(self, root: Path, split: Split) -> None:
        self._folder = root / FOLDERS[split]
        self._path = root / "annotations" / f"instances_{FOLDERS[split]}.json"
        table = _read(self._path)
        ids = np.asarray(table.image_ids, np.int64)
        by_id = np.argsort(ids, kind="stable")
        _unique(table, ids[by_id], "image id")
        _unique(table, np.sort(np.asarray(table.ids, np.int64)), "annotation id")
        owner = _found(table, ids, by_id, np.asarray(table.owners, np.int64), "image")
        self.category_ids = tuple(sorted(table.known))
        """The id in the file of label 1, 2, ..."""
        self.category_names = tuple(table.known[number] for number in self.category_ids)
        self.classes: int | None = len(self.category_ids) + 1
        sorted_ids = np.array(self.category_ids, np.int64)
        categories = np.asarray(table.categories, np.int64)
        label = _found(table, sorted_ids, np.arange(len(sorted_ids)), categories, "category") + 1
        self._names = table.names
        self._sizes = np.asarray(table.sizes, np.int32).reshape(-1, 2)
        boxes = np.asarray(table.boxes, np.float32).reshape(-1, 4)
        # As torchvision prepares it: cut at the picture's edge, then without what has no area.
        np.clip(boxes, 0, np.tile(self._sizes[owner], 2), out=boxes)
        good = (np.asarray(table.crowds) == 0) & (boxes[:, 2] > boxes[:, 0]) & (boxes[:, 3] > boxes[:, 1])
        rows = np.flatnonzero(good)
        rows = rows[np.argsort(owner[rows], kind="stable")]
        self._boxes, self._labels = boxes[rows], label[rows]
        self._first = np.searchsorted(owner[rows], np.arange(len(ids) + 1))
        self._ids = ids
        self._chosen = np.flatnonzero(np.diff(self._first)) if split == "train" else np.arange(len(ids))
        if not len(self._chosen):
            raise DamagedDataError(f"{self._path}: no image {'with a box ' if split == 'train' else ''}is listed")

    def __len__(self) -> int:
        return len(self._chosen)

    def __getitem__(self, number: int) -> tuple[Any, NDArray[np.float32], NDArray[np.int64], int]:
        place = int(self._chosen[number])
        path = confined(self._folder, self._names[place])
        picture = images.decode(path)
        width, height = (int(side) for side in self._sizes[place])
        if picture.size != (width, height):
            size = "{} x {}".format(*picture.size)
            raise DamagedDataError(f"{path} has {size} pixels; its annotations say {width} x {height}")
        rows = slice(self._first[place], self._first[place + 1])
        return picture, self._boxes[rows].copy(), self._labels[rows].copy(), int(self._ids[place])

    def order(self, source: random.Random) -> Sequence[int]:
        """All examples, shuffled."""
        return shuffled(len(self), source)

    def files(self) -> Iterable[Path]:
        """The annotations and the pictures."""
        yield self._path
        for place in self._chosen:
            yield confined(self._folder, self._names[int(place)])


def _read(path: Path) -> _Table:
    if not path.exists():
        raise InputError(f"COCO: {path} is missing", next_step="put it there: steelyard data show coco")
    table = _Table(path)
    take = {"images": table.image, "annotations": table.annotation, "categories": table.category}
    seen = set()
    for name, element in entries(path, take, LIMITS):
        seen.add(name)
        if name in take:
            take[name](element)
    if missing := take.keys() - seen:
        table.fail(
            f"nothing in {', '.join(sorted(missing))}; an instances file of COCO has images, annotations, categories"
        )
    return table


def _unique(table: _Table, ordered: NDArray[np.int64], what: str) -> None:
    twice = np.flatnonzero(ordered[1:] == ordered[:-1])
    if len(twice):
        table.fail(f"{what} {ordered[twice[0]]} is there twice")


def _found(
    table: _Table, ids: NDArray[np.int64], by_id: NDArray[np.int64], wanted: NDArray[np.int64], what: str
) -> NDArray[np.int64]:
    """The places of ids; every one must be there."""
    places = np.searchsorted(ids, wanted, sorter=by_id)
    places = by_id[np.minimum(places, len(ids) - 1)]
    lost = np.flatnonzero(ids[places] != wanted)
    if len(lost):
        table.fail(f"annotation {table.ids[lost[0]]} belongs to {what} {wanted[lost[0]]}, which is not in the file")
    return places.astype(np.int64)


# Categories of a made data set and their colours.
MADE = {1: (220, 40, 40), 18: (40, 200, 60), 62: (50, 70, 220), 90: (230, 210, 50)}


def _rectangles(pixels: NDArray[np.uint8], source: np.random.Generator) -> list[tuple[int, int, int, int, int]]:
    """Draws up to three that do not touch: left, top, width, height, category."""
    height, width = pixels.shape[:2]
    free = np.ones((height, width), bool)
    drawn = []
    for _ in range(int(source.integers(1, 4))):
        category = int(source.choice(list(MADE)))
        wide, high = (int(side) for side in source.integers(24, 60, 2))
        left, top = int(source.integers(0, width - wide + 1)), int(source.integers(0, height - high + 1))
        place = slice(top, top + high), slice(left, left + wide)
        if free[place].all():
            free[place] = False
            pixels[place] = np.clip(np.array(MADE[category]) + source.integers(-20, 21, (high, wide, 3)), 0, 255)
            drawn.append((left, top, wide, high, category))
    return drawn


def _make_split(root: Path, folder: str, samples: int, first: int, source: np.random.Generator) -> None:
    (root / folder).mkdir(parents=True, exist_ok=True)
    pictures: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for number in range(first, first + samples):
        width, height = (int(side) for side in source.integers(96, 201, 2))
        pixels = source.integers(60, 140, (height, width, 3)).astype(np.uint8)
        for left, top, wide, high, category in _rectangles(pixels, source):
            right, low = left + wide, top + high
            annotations.append(
                {
                    "segmentation": [[left, top, right, top, right, low, left, low]],
                    "area": wide * high,
                    "iscrowd": 0,
                    "image_id": number,
                    "bbox": [left, top, wide, high],
                    "category_id": category,
                    "id": 1000 * first + len(annotations) + 1,
                }
            )
        name = f"{number:012d}.jpg"
        (root / folder / name).write_bytes(images.encode(pixels))
        pictures.append({"license": 1, "file_name": name, "height": height, "width": width, "id": number})
    whole = {
        "info": {"description": "made by steelyard", "version": "1.0"},
        "licenses": [{"url": "https://www.apache.org/licenses/LICENSE-2.0", "id": 1, "name": "Apache License 2.0"}],
        "images": pictures,
        "annotations": annotations,
        "categories": [{"supercategory": "made", "id": key, "name": name} for key, name in CATEGORIES.items()],
    }
    path = root / "annotations" / f"instances_{folder}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(whole), encoding="utf-8")


class _Coco:
    name = "coco"
    kind: Kind = "image-boxes"
    needs: tuple[str, ...] = ("PIL",)
    title = "COCO 2017: objects in pictures, 80 categories, 118,287 pictures for training and 5,000 for evaluation"
    layout = (
        "annotations/instances_train2017.json\n"
        "annotations/instances_val2017.json\n"
        "train2017/*.jpg, as the annotations name them\n"
        "val2017/*.jpg\n"
        "data sets of your own in this form: the same categories in both files"
    )
    source = (
        "https://cocodataset.org: train2017.zip (18 GB), val2017.zip (1 GB), annotations_trainval2017.zip (241 MB). "
        "The annotations are under CC BY 4.0; the pictures come from Flickr, each under the licence of its author."
    )

    def open(self, root: Path, split: Split) -> CocoExamples:
        """A split; reads the whole annotation file."""
        return CocoExamples(root, split)

    def make(self, root: Path, samples: int, seed: int) -> None:
        """Rectangles in a colour per category on grey noise; all 80 categories are listed, four occur."""
        source = np.random.default_rng(seed)
        _make_split(root, "train2017", max(1, samples), 1, source)
        _make_split(root, "val2017", max(1, samples // 4), max(1, samples) + 1, source)


COCO = _Coco()
