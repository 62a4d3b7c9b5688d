"""Picture data sets in their true layouts: read exactly, refused clearly when spoiled, learnable when made."""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import random
import re
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image

from data_formats_images import (
    CASES,
    MEMORY_LIMIT_BYTES,
    REFERENCE,
    TIME_LIMIT_S,
    Case,
    attempt,
    differences,
    read_all,
    refused,
)
from steelyard import plugins
from steelyard.data import images, shards
from steelyard.data.folder import IMAGEFOLDER
from steelyard.data.form import extent
from steelyard.errors import DamagedDataError, InputError, SteelyardError

if TYPE_CHECKING:
    from conftest import Within
    from steelyard.data.form import Split

NAMES = sorted(REFERENCE)


def made(name: str, root: Path, samples: int = 40, seed: int = 0) -> Any:
    form = plugins.load("data", name)
    form.make(root, samples, seed)
    return form


@pytest.mark.parametrize("case", CASES, ids=[case.name.replace(" ", "-") for case in CASES])
def test_what_is_spoiled_is_refused(case: Case, within: Within) -> None:
    with within(TIME_LIMIT_S):
        outcome = attempt(case)
    assert refused(outcome), repr(outcome.error)
    assert re.search(case.says, str(outcome.error), re.DOTALL), str(outcome.error)
    assert outcome.growth_bytes is None or outcome.growth_bytes < MEMORY_LIMIT_BYTES


@pytest.mark.parametrize("name", NAMES)
def test_reading_gives_what_was_made(name: str, tmp_path: Path) -> None:
    form = made(name, tmp_path)
    unequal, total = differences(name, tmp_path)
    assert (unequal, total) == (0, 50)
    train, evaluation = form.open(tmp_path, "train"), form.open(tmp_path, "evaluation")
    assert (len(train), len(evaluation)) == (40, 10)
    assert sorted(train.order(random.Random(1))) == list(range(40))
    assert list(train.order(random.Random(1))) == list(train.order(random.Random(1)))
    assert list(train.order(random.Random(1))) != list(train.order(random.Random(2)))
    with pytest.raises(IndexError):
        train[40]
    picture, label = train[np.int64(3)]
    assert isinstance(label, int)
    assert 0 <= label < train.classes
    assert images.evaluation_crop(picture, 32).shape == (32, 32, 3)
    found = extent(tmp_path, [*train.files(), *evaluation.files()])
    written = [path for path in tmp_path.rglob("*") if path.is_file() and path.parent.name != "meta"]
    assert (found.files, found.size_bytes) == (len(written), sum(path.stat().st_size for path in written))


@pytest.mark.parametrize("name", NAMES)
def test_the_seed_decides_what_is_made(name: str, tmp_path: Path) -> None:
    def contents(folder: str, seed: int) -> dict[str, bytes]:
        made(name, tmp_path / folder, 8, seed)
        paths = (path for path in (tmp_path / folder).rglob("*") if path.is_file())
        return {str(path.relative_to(tmp_path / folder)): path.read_bytes() for path in paths}

    assert contents("a", 1) == contents("b", 1)
    assert contents("c", 2) != contents("d", 3)
    if name != "mnist":
        with pytest.raises(InputError, match="two classes"):
            made(name, tmp_path / "e", 1)


@pytest.mark.parametrize("name", NAMES)
def test_noise_in_files_ends_in_words(name: str, tmp_path: Path) -> None:
    made(name, tmp_path, 4)
    source = random.Random(5)
    files = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    for _ in range(60):
        path = source.choice(files)
        sound = path.read_bytes()
        spoiled = bytearray(sound)
        reach = len(sound) if source.random() < 0.5 else min(1200, len(sound))
        for _ in range(source.choice((1, 4, 30))):
            spoiled[source.randrange(reach)] = source.randrange(256)
        path.write_bytes(spoiled if source.random() < 0.8 else spoiled[: source.randrange(len(sound))])
        with contextlib.suppress(SteelyardError):
            read_all(name, tmp_path)
        path.write_bytes(sound)


@pytest.mark.parametrize("name", NAMES)
def test_forked_processes_read_the_same(name: str, tmp_path: Path) -> None:
    examples = made(name, tmp_path, 8).open(tmp_path, "train")
    expected = np.asarray(examples[5][0]).tobytes()
    child = os.fork()
    if child == 0:
        os._exit(0 if np.asarray(examples[5][0]).tobytes() == expected else 1)
    assert os.waitpid(child, 0)[1] == 0
    # No file stays open, in which two processes would share a place.
    kept = [str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    assert not [name for name in kept if name.startswith(str(tmp_path))]


def test_cifar_and_food_in_the_folder_itself(tmp_path: Path) -> None:
    for name, folder in (
        ("cifar10", "cifar-10-batches-bin"),
        ("cifar100", "cifar-100-binary"),
        ("food101", "food-101"),
    ):
        form = made(name, tmp_path, 8)
        outer, inner = form.open(tmp_path, "train"), form.open(tmp_path / folder, "train")
        assert np.array_equal(np.asarray(outer[3][0]), np.asarray(inner[3][0]))


def test_mnist_packed_and_plain(tmp_path: Path) -> None:
    form = made("mnist", tmp_path, 20)
    plain = [(picture.tobytes(), label) for picture, label in read_all("mnist", tmp_path)]
    flat = tmp_path / "flat"
    flat.mkdir()
    for path in (tmp_path / "MNIST" / "raw").iterdir():
        (flat / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
    assert [(picture.tobytes(), label) for picture, label in read_all("mnist", flat)] == plain
    assert form.open(flat, "train")[0][0].flags.writeable
    with pytest.raises(InputError, match="has no train-images-idx3-ubyte"):
        form.open(tmp_path / "x", "train")


@pytest.mark.parametrize("layout", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_every_layout_of_tar(layout: int, tmp_path: Path) -> None:
    picture = images.encode(images.draw(1, 20, 30, np.random.default_rng(0)), "PNG")
    # Longer than the 100 characters of the name field; ustar splits it at a slash.
    names = ["short", "./dot", "a" * 60 + "/" + "b" * 80] + ([] if layout == tarfile.USTAR_FORMAT else ["ü" * 120])
    for part in ("train", "val"):
        with tarfile.open(tmp_path / f"some-{part}-0.tar", "w", format=layout) as archive:
            folder = tarfile.TarInfo("folder")
            folder.type = tarfile.DIRTYPE
            archive.addfile(folder)
            for label, name in enumerate(names):
                for ending, content in (("cls", f"{label}\n".encode()), ("PNG", picture), ("txt", b"passed over")):
                    member = tarfile.TarInfo(f"{name}.{ending}")
                    member.size = len(content)
                    archive.addfile(member, io.BytesIO(content))
    examples = shards.WEBDATASET.open(tmp_path, "evaluation")
    assert [label for _, label in read_all("webdataset", tmp_path)] == [*range(len(names))] * 2
    assert examples.classes == len(names)
    assert {examples.raw(number) for number in range(len(names))} == {picture}


def test_folders_become_shards_with_the_same_bytes(tmp_path: Path) -> None:
    made("imagefolder", tmp_path / "files", 30)
    shards.to_shards(tmp_path / "files", tmp_path / "shards", samples_per_shard=8)
    expected_counts: dict[Split, int] = {"train": 4, "evaluation": 1}
    for split, count in expected_counts.items():
        files = IMAGEFOLDER.open(tmp_path / "files", split)
        packed = shards.WEBDATASET.open(tmp_path / "shards", split)
        assert len(list(packed.files())) == count
        expected = sorted((files.path(number).read_bytes(), files.label(number)) for number in range(len(files)))
        assert sorted((packed.raw(number), packed[number][1]) for number in range(len(packed))) == expected
    train = shards.WEBDATASET.open(tmp_path / "shards", "train")
    # Mixed: the first shard has more than one class.
    assert len({train[number][1] for number in range(8)}) == 2
    # Read shard by shard, each wholly before the next.
    places = [number // 8 for number in train.order(random.Random(3))]
    assert [place for at, place in enumerate(places) if at == 0 or places[at - 1] != place] == list(
        dict.fromkeys(places)
    )
    assert not list(tmp_path.rglob("*.part"))


def test_scanning_is_fast_enough_for_a_large_set(tmp_path: Path, within: Within) -> None:
    count = 5000
    shards.write(tmp_path, "train", ((b"x" * 5000, "jpg", 1) for _ in range(count)), samples_per_shard=count)
    # 1.3 million samples of ImageNet in some minutes at worst; measured 20 times as fast.
    with within(count * 400e-6):
        assert len(shards.scan(tmp_path / "train-000000.tar").labels) == count


@pytest.mark.parametrize("mode", ["RGB", "L", "P", "RGBA", "LA", "1", "I;16", "CMYK"])
def test_every_mode_becomes_rgb(mode: str) -> None:
    array = np.arange(30 * 20 * 3, dtype=np.uint8).reshape(30, 20, 3)
    held = io.BytesIO()
    if mode == "I;16":
        Image.fromarray(array[..., 0].astype(np.uint16) << 8).save(held, "PNG")
    else:
        picture = Image.fromarray(array).convert(mode)
        options = {"transparency": bytes(range(200))} if mode == "P" else {}
        picture.save(held, "JPEG" if mode == "CMYK" else "PNG", **options)
    decoded = images.decode(held.getvalue())
    assert (decoded.mode, decoded.size) == ("RGB", (20, 30))
    if mode == "I;16":
        assert np.array_equal(np.asarray(decoded)[..., 0], array[..., 0])


def test_limits_on_pictures(tmp_path: Path) -> None:
    data = images.encode(np.zeros((40, 50, 3), dtype=np.uint8), "PNG")
    assert images.decode(data, limit=2000).size == (50, 40)
    with pytest.raises(DamagedDataError, match="the-name: its header says 50 x 40 pixels; at most 1,999"):
        images.decode(data, "the-name", limit=1999)
    with pytest.raises(DamagedDataError, match=r"none\.png: No such file"):
        images.decode(tmp_path / "none.png")
    with pytest.raises(DamagedDataError, match="bytes; pictures of at most"):
        images.decode(bytes(images.FILE_LIMIT_BYTES + 1))


def test_without_pillow() -> None:
    code = (
        "import sys; sys.modules['PIL'] = None\n"
        "from steelyard.data.images import decode\n"
        "from steelyard.errors import InputError\n"
        "try:\n    decode(b'')\nexcept InputError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "next: pip install 'pillow>=" in done.stdout


def test_training_crops_are_as_they_should_be() -> None:
    # Each pixel says where it is: the first and last of a crop tell the part that it shows.
    height, width = 240, 255
    rows, columns = np.mgrid[0:height, 0:width].astype(np.uint8)
    picture = np.dstack([rows, columns, np.zeros_like(rows)])
    source = np.random.default_rng(0)
    areas, ratios, mirrored = [], [], 0
    for _ in range(400):
        cut = images.training_crop(picture, 32, source).astype(float)
        assert cut.shape == (32, 32, 3)
        high = (cut[-1, 0, 0] - cut[0, 0, 0]) * 32 / 31
        wide = (cut[0, -1, 1] - cut[0, 0, 1]) * 32 / 31
        mirrored += wide < 0
        areas.append(abs(high * wide) / (height * width))
        ratios.append(abs(wide) / high)
    assert 0.07 < min(areas) < 0.12
    assert 0.85 < max(areas) < 1.01
    # The share of the area is uniform from 0.08 to 1, short of what does not fit.
    assert np.mean(areas) == pytest.approx(0.51, abs=0.05)
    assert 0.7 < min(ratios) < max(ratios) < 1.42
    assert mirrored / 400 == pytest.approx(0.5, abs=0.08)
    narrow = images.training_crop(np.zeros((3, 500, 3), dtype=np.uint8), 8, source)
    assert narrow.shape == (8, 8, 3)
    first = images.training_crop(picture, 32, np.random.default_rng(7))
    assert np.array_equal(first, images.training_crop(picture, 32, np.random.default_rng(7)))


def test_evaluation_crops_are_those_of_two_steps() -> None:
    source = np.random.default_rng(0)
    smooth = Image.fromarray(source.integers(0, 256, (8, 10, 3), dtype=np.uint8)).resize((400, 320))
    ours = images.evaluation_crop(smooth, 224).astype(float)
    resized = smooth.resize((320, 256), Image.Resampling.BILINEAR)
    two_steps = np.asarray(resized.crop((48, 16, 272, 240)), dtype=float)
    assert np.abs(ours - two_steps).max() <= 4
    assert images.evaluation_crop(np.full((28, 28, 1), 9, dtype=np.uint8), 28).mean() == 9


@pytest.mark.parametrize("name", ["cifar100", "mnist", "imagefolder"])
def test_what_is_made_can_be_learned(name: str, tmp_path: Path) -> None:
    # Nearest mean of a few pixels: what this tells apart, any network does.
    form = made(name, tmp_path, 250, 4)

    def features(split: str) -> tuple[Any, Any]:
        examples = form.open(tmp_path, split)
        pairs = [examples[number] for number in range(len(examples))]
        size = 28 if name == "mnist" else 2
        return np.stack([images.evaluation_crop(item, size).ravel() for item, _ in pairs]), np.array(
            [y for _, y in pairs]
        )

    x, y = features("train")
    means = np.stack([x[y == label].mean(0) for label in range(y.max() + 1)])
    x, y = features("evaluation")
    guesses = ((x[:, None] - means[None]) ** 2).sum(2).argmin(1)
    assert (guesses == y).mean() > (0.6 if name == "mnist" else 0.95)
