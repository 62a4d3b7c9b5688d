"""Damaged data sets of boxes, masks, tokens and questions with the expected errors, and independent readers.

Part of the figure data_formats; not run by itself.
"""

from __future__ import annotations

import itertools
import json
import random
import struct
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from data_formats_images import PICKLE, Case, cut, first, overwrite, patch, png, void
from steelyard import plugins
from steelyard.data.tokens import to_shards

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

WINDOW = 32


def read_structured(name: str, root: Path) -> list[Any]:
    """Read all examples of both splits; JSON lines in the folder are first converted to shards."""
    if sources := sorted(root.glob("*.jsonl")):
        to_shards(sources, root / "made", None)
    found = []
    for split in ("train", "evaluation"):
        examples = plugins.load("data", name).open(root, split)
        if name == "tokens":
            found += [examples.window(number, WINDOW) for number in range(examples.count(WINDOW))]
        else:
            found += [examples[number] for number in range(len(examples))]
        list(examples.files())
    return found


# Ways to damage a file.


def change(pattern: str, alter: Callable[[Any], object]) -> Callable[[Path], None]:
    """Change something in a JSON file."""

    def spoil(root: Path) -> None:
        path = first(root, pattern)
        whole = json.loads(path.read_text())
        alter(whole)
        path.write_text(json.dumps(whole))

    return spoil


def insert(pattern: str, before: str, opening: str, text: str = "", times: int = 1) -> Callable[[Path], None]:
    """Insert something before a text in a JSON file, with its end repeated; `json` cannot write such files."""

    def spoil(root: Path) -> None:
        path = first(root, pattern)
        head, tail = path.read_text().split(before, 1)
        with path.open("w") as file:
            file.write(head + opening)
            file.writelines(itertools.repeat(text, times))
            file.write(before + tail)

    return spoil


def append(pattern: str, data: bytes) -> Callable[[Path], None]:
    return lambda root: void(first(root, pattern).write_bytes(first(root, pattern).read_bytes() + data))


def lines(*parts: tuple[bytes, int]) -> Callable[[Path], None]:
    """Write JSON lines from pieces, each repeated a number of times."""

    def spoil(root: Path) -> None:
        with (root / "corpus.jsonl").open("wb") as file:
            for piece, times in parts:
                for _ in range(times):
                    file.write(piece)

    return spoil


def remove(pattern: str) -> Callable[[Path], None]:
    return lambda root: first(root, pattern).unlink()


def index(offset: int, data: bytes) -> Callable[[Path], None]:
    return patch("train*.idx", offset, data)


def second_pointer(value: int) -> Callable[[Path], None]:
    def spoil(root: Path) -> None:
        path = first(root, "train*.idx")
        (sequences,) = struct.unpack_from("<Q", path.read_bytes(), 18)
        index(34 + 4 * sequences + 8, struct.pack("<q", value))(root)

    return spoil


def other_size(root: Path) -> None:
    Image.new("L", (255, 128)).save(first(root, LABEL))


def coloured_mask(root: Path) -> None:
    Image.new("RGB", (256, 128)).save(first(root, LABEL))


def no_city(root: Path) -> None:
    for path in (root / "leftImg8bit/train").rglob("*.png"):
        path.unlink()


def both_versions(root: Path) -> None:
    (root / "train-v2.0.json").write_bytes((root / "train-v1.1.json").read_bytes())


def answer_of(whole: Any) -> Any:
    return whole["data"][0]["paragraphs"][0]["qas"][0]


TRAIN = "annotations/instances_train2017.json"
LABEL = "gtFine/train/*/*_labelIds.png"
SQUAD = "train-v1.1.json"
INFINITE = '{"id": 9, "image_id": 1, "category_id": 1, "bbox": [0, 0, 1e999, 5]}, '

COCO_CASES = [
    Case("not JSON", "coco", overwrite(TRAIN, b"hello"), r"instances_train2017\.json is not a JSON object"),
    Case("a pickle", "coco", overwrite(TRAIN, PICKLE), r"instances_train2017\.json.*begins like a pickle"),
    Case("empty", "coco", overwrite(TRAIN, b""), r"expected"),
    Case("truncated", "coco", cut(TRAIN, 0.5), r"cut off|expected"),
    Case("truncated at the end", "coco", cut(TRAIN, 0.9999), r"cut off|expected"),
    Case("something follows", "coco", append(TRAIN, b" {}"), r"follows the end"),
    Case("not UTF-8", "coco", patch(TRAIN, 30, b"\xff"), r"not UTF-8"),
    Case("nested deep", "coco", insert(TRAIN, '"annotations"', '"x": ', "[" * 1000, 1000), r"32 deep"),
    Case("nested deep in quotes", "coco", insert(TRAIN, '"annotations"', '"x": ', '["]", ', 1000), r"32 deep"),
    Case("nested deep in an annotation", "coco", insert(TRAIN, '{"segmentation"', "", "[" * 1000, 1000), r"32 deep"),
    Case("5 million empty lists", "coco", insert(TRAIN, '{"segmentation"', "", "[]," * 1000, 5000),
         r"not an object"),
    Case("5 million empty lists in a mask", "coco",
         insert(TRAIN, '{"segmentation"', '{"segmentation": [', "[]," * 1000, 5000), r"more than 100,000 lists"),
    Case("5 million empty lists beside", "coco",
         insert(TRAIN, '"annotations"', '"x": [', "[]," * 1000, 5000), r"more than 200,000 elements"),
    Case("one text of 300 MB", "coco", insert(TRAIN, '"annotations"', '"x": "', " " * 300_000, 1000),
         r"more than 1,048,576 char"),
    Case("hole of 4 GB", "coco", lambda root: grow(first(root, TRAIN), 4 << 30), r"more than 2,048 MiB"),
    Case("mask of 100000 x 100000", "coco",
         change(TRAIN, lambda whole: whole["annotations"][0].update(segmentation={
             "size": [100_000, 100_000], "counts": [0, 10**10]}, iscrowd=1)), r"mask of 100000 x 100000"),
    Case("name leads out", "coco",
         change(TRAIN, lambda whole: whole["images"][0].update(file_name="../../etc/passwd")), r"leads out"),
    Case("name absolute", "coco", change(TRAIN, lambda whole: whole["images"][0].update(file_name="/etc/passwd")),
         r"leads out"),
    Case("name is a number", "coco", change(TRAIN, lambda whole: whole["images"][0].update(file_name=5)),
         r"image 1 has no file_name"),
    Case("no such image", "coco", change(TRAIN, lambda whole: whole["annotations"][0].update(image_id=10**6)),
         r"image 1000000, which is not in the file"),
    Case("no such category", "coco", change(TRAIN, lambda whole: whole["annotations"][0].update(category_id=12)),
         r"category 12, which is not in the file"),
    Case("box of NaN", "coco",
         change(TRAIN, lambda whole: whole["annotations"][0].update(bbox=[0, 0, float("nan"), 1])), r"NaN is not a"),
    Case("box of Infinity", "coco",
         change(TRAIN, lambda whole: whole["annotations"][0].update(bbox=[0, 0, float("inf"), 1])), r"Infinity is not"),
    Case("box of 1e999", "coco", insert(TRAIN, '{"segmentation"', INFINITE), r"annotation 9.*not finite"),
    Case("box of 3", "coco", change(TRAIN, lambda whole: whole["annotations"][0].update(bbox=[0, 0, 1])),
         r"no bbox of four numbers"),
    Case("id of 400 digits", "coco", change(TRAIN, lambda whole: whole["images"][0].update(id=10**400)),
         r"no whole number as id"),
    Case("image twice", "coco", change(TRAIN, lambda whole: whole["images"].append(whole["images"][0])),
         r"image id 1 is there twice"),
    Case("annotation twice", "coco", change(TRAIN, lambda whole: whole["annotations"].append(whole["annotations"][0])),
         r"annotation id 1001 is there twice"),
    Case("category twice", "coco", change(TRAIN, lambda whole: whole["categories"].append(whole["categories"][0])),
         r"category 1 is there twice"),
    Case("no categories", "coco", change(TRAIN, lambda whole: whole.pop("categories")), r"nothing in categories"),
    Case("images no list", "coco", change(TRAIN, lambda whole: whole.update(images={})), r"image has no whole number"),
    Case("picture of another size", "coco", change(TRAIN, lambda whole: whole["images"][0].update(width=900)),
         r"\.jpg has .* its annotations say 900"),
    Case("picture missing", "coco", remove("train2017/*.jpg"), r"\.jpg.*No such file"),
    Case("annotations missing", "coco", remove(TRAIN), r"instances_train2017\.json is missing"),
]  # fmt: skip

CITYSCAPES_CASES = [
    Case("mask of another size", "cityscapes", other_size, r"labelIds\.png has 255 x 128 pixels, its picture 256 x"),
    Case("mask in colour", "cityscapes", coloured_mask, r"labelIds\.png is of mode RGB"),
    Case("mask missing", "cityscapes", remove(LABEL), r"labelIds\.png is missing"),
    Case("mask of 100000 x 100000", "cityscapes", overwrite(LABEL, png(100_000, 100_000)), r"labelIds\.png.*pixels"),
    Case("mask of 9000 x 9000", "cityscapes", overwrite(LABEL, png(9000, 9000)), r"labelIds\.png.*9000 x 9000 pixels"),
    Case("mask truncated", "cityscapes", cut(LABEL, 0.5), r"labelIds\.png.*truncated"),
    Case("mask is a pickle", "cityscapes", overwrite(LABEL, PICKLE), r"labelIds\.png.*begins like a pickle"),
    Case("picture truncated", "cityscapes", cut("leftImg8bit/val/*/*.png", 0.5), r"leftImg8bit\.png.*truncated"),
    Case("no pictures", "cityscapes", no_city, r"no <city>"),
    Case("no folder", "cityscapes", lambda root: void((root / "gtFine").rename(root / "fine")), r"gtFine.*is missing"),
]  # fmt: skip

TOKENS_CASES = [
    Case("wrong magic", "tokens", index(0, b"MMIDIDY"), r"\.idx is not an index of Megatron-LM"),
    Case("a pickle", "tokens", overwrite("train*.idx", PICKLE), r"\.idx is not an index.*begins like a pickle"),
    Case("wrong version", "tokens", index(9, struct.pack("<Q", 2)), r"\.idx: version 2"),
    Case("floats", "tokens", index(17, b"\x06"), r"\.idx: type 6 is not one of whole numbers"),
    Case("unknown type", "tokens", index(17, b"\x63"), r"\.idx: type 99"),
    Case("2^60 sequences", "tokens", index(18, struct.pack("<Q", 1 << 60)), r"1,152,921,504,606,846,976 sequences"),
    Case("2^60 documents", "tokens", index(26, struct.pack("<Q", 1 << 60)), r"1,152,921,504,606,846,976 documents"),
    Case("wider type", "tokens", index(17, b"\x05"), r"end at byte|sequences have"),
    Case("negative length", "tokens", index(34, struct.pack("<i", -5)), r"length -5"),
    Case("long length", "tokens", index(34, struct.pack("<i", (1 << 31) - 1)), r"end at byte"),
    Case("pointer beyond", "tokens", second_pointer(1 << 50), r"pointer"),
    Case("negative pointer", "tokens", second_pointer(-8), r"pointer"),
    Case("documents out of order", "tokens", lambda root: last_document(root), r"documents"),
    Case("index truncated", "tokens", cut("train*.idx", 0.5), r"\.idx.*it has"),
    Case("header truncated", "tokens", overwrite("train*.idx", b"MMIDIDX\x00\x00\x01"), r"\.idx is not an index"),
    Case("bin truncated", "tokens", cut("train*.bin", 0.5), r"end at byte .* the \.bin has"),
    Case("bin too long", "tokens", append("train*.bin", b"\x01\x00"), r"the \.bin has"),
    Case("index missing", "tokens", remove("train*.idx"), r"\.idx: No such file"),
    Case("no evaluation", "tokens", remove("val*.bin"), r"no val\*\.bin"),
    Case("token above the vocabulary", "tokens", patch("train*.bin", 0, b"\xff\xff"), r"token is 65535.*lary is 257"),
    Case("meta.json lies", "tokens", overwrite("meta.json", b'{"vocabulary": -1}'), r"meta\.json: no whole number"),
    Case("line of 100 MB", "tokens", lines((b'{"text": "', 1), (b"x" * 1_000_000, 100), (b'"}\n', 1)),
         r"corpus\.jsonl: line 1 has more than 16 MiB"),
    Case("line of 5 million lists", "tokens", lines((b'{"text": [', 1), (b"[]," * 1000, 5000), (b"[]]}\n", 1)),
         r"corpus\.jsonl: more than 200,000 lists.*line 1"),
    Case("line nested deep", "tokens", lines((b'{"text": "x"}\n', 1), (b"[" * 1000, 1000)), r"32 deep.*line 2"),
    Case("line not UTF-8", "tokens", lines((b'{"text": "\xff\xfe"}\n', 1)), r"not UTF-8.*line 1"),
    Case("line not JSON", "tokens", lines((b'{"text": "x"}\n', 3), (b"hello\n", 1)), r"not JSON.*line 4"),
    Case("line without text", "tokens", lines((b'{"url": "x"}\n', 1)), r"line 1 is not an object with a text"),
    Case("lines are a pickle", "tokens", lines((PICKLE, 1)), r"corpus\.jsonl.*line 1"),
]  # fmt: skip

SQUAD_CASES = [
    Case("answer elsewhere", "squad",
         change(SQUAD, lambda whole: answer_of(whole)["answers"][0].update(answer_start=1)),
         r"question made00000000: the answer .* is not at character 1"),
    Case("answer not there", "squad", change(SQUAD, lambda whole: answer_of(whole)["answers"][0].update(text="purple")),
         r'question made00000000: the answer "purple" is not at'),
    Case("answer from behind", "squad", change(SQUAD, lambda whole: answer_of(whole)["answers"][0].update(
        answer_start=-5)), r"question made00000000.*-5"),
    Case("no answer", "squad", change(SQUAD, lambda whole: answer_of(whole).update(answers=[])),
         r"question made00000000 has no answer"),
    Case("question twice", "squad", change(SQUAD, lambda whole: answer_of(whole).update(id="made00000001")),
         r"question made00000001 is there twice"),
    Case("id of a megabyte", "squad", change(SQUAD, lambda whole: answer_of(whole).update(id="x" * 10**6)),
         r"id of 1000000 characters"),
    Case("nested deep", "squad", insert(SQUAD, '{"title"', "", "[" * 1000, 1000), r"32 deep"),
    Case("truncated", "squad", cut(SQUAD, 0.5), r"cut off|expected"),
    Case("a pickle", "squad", overwrite(SQUAD, PICKLE), r"begins like a pickle"),
    Case("5 million empty lists", "squad", insert(SQUAD, '{"title"', '{"paragraphs": [', "[]," * 1000, 5000),
         r"more than 100,000 lists"),
    Case("an article of 5 MB", "squad", insert(SQUAD, '{"title"', '{"title": "', "x" * 1000, 5000),
         r"more than 2,097,152 char"),
    Case("version of another name", "squad", change(SQUAD, lambda whole: whole.update(version="v2.0")),
         r"version is v2\.0, in a file named v1\.1"),
    Case("no version", "squad", change(SQUAD, lambda whole: whole.pop("version")), r"there is no version"),
    Case("data no list", "squad", change(SQUAD, lambda whole: whole.update(data="x")), r"an article has no list"),
    Case("no paragraphs", "squad", change(SQUAD, lambda whole: whole["data"].append({"title": "x"})), r"list of para"),
    Case("context a number", "squad", change(SQUAD, lambda whole: whole["data"][0]["paragraphs"][0].update(context=1)),
         r"a paragraph has no text as context"),
    Case("nothing in it", "squad", change(SQUAD, lambda whole: whole.update(data=[])), r"no questions"),
    Case("both versions", "squad", both_versions, r"there are both"),
    Case("no questions", "squad", remove(SQUAD), r"there is none"),
    Case("no vocab.txt", "squad", remove("vocab.txt"), r"vocab\.txt is missing"),
    Case("vocab.txt of another kind", "squad", overwrite("vocab.txt", b"a\nb\n"), r"vocab\.txt: no line \[CLS\]"),
]  # fmt: skip

CASES = [*COCO_CASES, *CITYSCAPES_CASES, *TOKENS_CASES, *SQUAD_CASES]


def grow(path: Path, size_bytes: int) -> None:
    with path.open("r+b") as file:
        file.truncate(size_bytes)


def last_document(root: Path) -> None:
    path = first(root, "train*.idx")
    path.write_bytes(path.read_bytes()[:-8] + struct.pack("<q", 1 << 40))


def large_coco(root: Path, size_bytes: int) -> int:
    """Write annotations like those of the real file, without images, up to this size; return their number."""
    source = random.Random(1)
    path = root / "annotations/instances_val2017.json"
    path.parent.mkdir()
    count = 0
    with path.open("w") as file:
        images = [
            {"id": number, "file_name": f"{number:012d}.jpg", "width": 640, "height": 480} for number in range(9999)
        ]
        file.write(f'{{"categories": [{{"id": 1}}], "images": {json.dumps(images)}, "annotations": [')
        while file.tell() < size_bytes:
            outline = [round(source.uniform(0, 640), 2) for _ in range(50)]
            row = {"segmentation": [outline], "area": source.random() * 1e4, "iscrowd": 0, "image_id": count % 9999,
                   "bbox": [12.5, 40.25, 100.5, 80.75], "category_id": 1, "id": count}  # fmt: skip
            file.write(f"{', ' if count else ''}{json.dumps(row)}")
            count += 1
        file.write("]}")
    return count


# Independent readers: plain json, Pillow and struct.


def _coco(root: Path) -> list[Any]:
    rows: list[Any] = []
    for folder in ("train2017", "val2017"):
        whole = json.loads((root / f"annotations/instances_{folder}.json").read_text())
        labels = {number: place + 1 for place, number in enumerate(sorted(item["id"] for item in whole["categories"]))}
        for image in whole["images"]:
            mine = [item for item in whole["annotations"] if item["image_id"] == image["id"]]
            boxes = [[x, y, x + wide, y + high] for x, y, wide, high in (item["bbox"] for item in mine)]
            pixels = np.asarray(Image.open(root / folder / image["file_name"]).convert("RGB"))
            rows.append((pixels.tobytes(), boxes, [labels[item["category_id"]] for item in mine], image["id"]))
    return rows


def _cityscapes(root: Path) -> list[Any]:
    # The ids of the 19 classes in the order of training, from the list in the paper's scripts.
    counted = [7, 8, 11, 12, 13, 17, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 31, 32, 33]
    rows: list[Any] = []
    for part in ("train", "val"):
        for path in sorted((root / "leftImg8bit" / part).glob("*/*.png")):
            name = path.name.replace("leftImg8bit", "gtFine_labelIds")
            ids = Image.open(root / "gtFine" / part / path.parent.name / name)
            mask = bytes(counted.index(value) if value in counted else 255 for value in ids.tobytes())
            rows.append((Image.open(path).tobytes(), mask))
    return rows


def _tokens(root: Path) -> list[Any]:
    rows: list[Any] = []
    for part in ("train", "val"):
        data = b"".join(path.read_bytes() for path in sorted(root.glob(f"{part}*.bin")))
        row = [value for (value,) in struct.iter_unpack("<H", data)]
        rows += [row[place : place + WINDOW + 1] for place in range(0, len(row) - WINDOW, WINDOW)]
    return rows


def _squad(root: Path) -> list[Any]:
    rows: list[Any] = []
    for part in ("train", "dev"):
        for article in json.loads((root / f"{part}-v1.1.json").read_text())["data"]:
            for paragraph in article["paragraphs"]:
                for item in paragraph["qas"]:
                    answers = [(answer["text"], answer["answer_start"]) for answer in item["answers"]]
                    rows.append((item["id"], paragraph["context"], item["question"], answers))
    return rows


def _plain(name: str, example: Any) -> Any:
    """Convert an example to the form of the readers above."""
    if name == "coco":
        picture, boxes, labels, number = example
        return picture.tobytes(), boxes.tolist(), labels.tolist(), number
    if name == "cityscapes":
        return example[0].tobytes(), example[1].tobytes()
    if name == "tokens":
        return example.tolist()
    return example.number, example.paragraph, example.question, list(example.answers)


REFERENCE: dict[str, Callable[[Path], list[Any]]] = {
    "coco": _coco, "cityscapes": _cityscapes, "tokens": _tokens, "squad": _squad,
}  # fmt: skip


def differences(name: str, root: Path) -> tuple[int, int]:
    """Return how many examples differ from the reference reader, and the total."""
    ours = [_plain(name, example) for example in read_structured(name, root)]
    theirs = REFERENCE[name](root)
    unequal = sum(one != other for one, other in zip(ours, theirs, strict=False))
    return unequal + abs(len(ours) - len(theirs)), len(theirs)
