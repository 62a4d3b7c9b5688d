"""Data sets as torchvision and webdataset read and write them; both load torch."""

from __future__ import annotations

import gc
import importlib
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from steelyard import plugins
from steelyard.data import coco

if TYPE_CHECKING:
    from pathlib import Path


def made(name: str, root: Path, samples: int = 40, seed: int = 0) -> Any:
    form = plugins.load("data", name)
    form.make(root, samples, seed)
    return form


def test_as_torchvision_reads_it(tmp_path: Path) -> None:
    datasets: Any = importlib.import_module("torchvision.datasets")
    made("imagefolder", tmp_path / "imagefolder", 12)
    made("food101", tmp_path / "food101", 12)
    made("mnist", tmp_path / "mnist", 12)
    references: dict[str, Any] = {
        "imagefolder": datasets.ImageFolder(tmp_path / "imagefolder" / "train"),
        "food101": datasets.Food101(tmp_path / "food101", split="train"),
        "mnist": datasets.MNIST(tmp_path / "mnist", train=True),
    }
    for name, reference in references.items():
        ours = plugins.load("data", name).open(tmp_path / name, "train")
        # torchvision orders Food-101 by class, we by its list.
        expected = sorted(
            (np.asarray(picture).tobytes(), label) for picture, label in map(reference.__getitem__, range(12))
        )
        assert sorted((np.asarray(ours[place][0]).tobytes(), ours[place][1]) for place in range(len(ours))) == expected


# The library leaves shards it has read to the garbage collector.
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_shards_that_the_library_writes_and_reads(tmp_path: Path) -> None:
    library: Any = importlib.import_module("webdataset")
    form = made("webdataset", tmp_path / "ours", 12)
    ours = form.open(tmp_path / "ours", "train")
    paths = [str(path) for path in ours.files()]
    read = list(library.WebDataset(paths, shardshuffle=False, empty_check=False).decode("pil").to_tuple("jpg", "cls"))
    assert [label for _, label in read] == [ours[number][1] for number in range(12)]
    assert all(np.array_equal(np.asarray(read[number][0]), np.asarray(ours[number][0])) for number in range(12))
    for part in ("train", "val"):
        with library.ShardWriter(str(tmp_path / f"{part}-%06d.tar"), maxcount=5, verbose=0) as sink:
            for number in range(12):
                # A key longer than a header allows, and notes next to the image.
                sink.write({"__key__": f"{'deep/' * 30}{number:06d}", "jpg": ours.raw(number), "cls": ours[number][1],
                            "json": {"note": number}})  # fmt: skip
    theirs = form.open(tmp_path, "train")
    assert len(list(theirs.files())) == 3
    assert [theirs.raw(number) for number in range(12)] == [ours.raw(number) for number in range(12)]
    assert [theirs[number][1] for number in range(12)] == [ours[number][1] for number in range(12)]
    gc.collect()


def test_the_categories_are_those_of_torchvision() -> None:
    meta = importlib.import_module("torchvision.models._meta")
    named = {number: name for number, name in enumerate(meta._COCO_CATEGORIES) if name not in ("__background__", "N/A")}
    assert named == coco.CATEGORIES
