"""Damaged image data sets with the expected errors, and independent readers for valid ones.

Part of the figure data_formats; not run by itself.
"""

from __future__ import annotations

import gzip
import io
import os
import pickle
import shutil
import struct
import tarfile
import tempfile
import time
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from steelyard import plugins
from steelyard.errors import DamagedDataError, InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SAMPLES = 20
MEMORY_LIMIT_BYTES = 300e6
TIME_LIMIT_S = 2.0

Row = list[tuple[bytes, tuple[int, ...], int]]
"""Of a split: pixels, shape and label of each picture."""


@dataclass(frozen=True)
class Case:
    """A way to damage a data set, and the expected error."""

    name: str
    format: str
    spoil: Callable[[Path], None]
    says: str


@dataclass(frozen=True)
class Outcome:
    """Outcome of reading a damaged data set."""

    error: Exception | None
    seconds: float
    growth_bytes: float | None
    """Largest growth of the process; None if the kernel does not report it."""


def attempt(case: Case) -> Outcome:
    """Make a data set, damage it and read all of it, as a run does."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        plugins.load("data", case.format).make(root, SAMPLES, 1)
        case.spoil(root)
        before = _reset_peak()
        # Processor time, because the machine may be busy.
        begin = time.process_time()
        error: Exception | None = None
        try:
            read_all(case.format, root)
        except Exception as caught:  # noqa: BLE001 -- which one it is, is the question
            error = caught
        seconds = time.process_time() - begin
        peak = None if before is None else _status_bytes("VmHWM") - before
    return Outcome(error, seconds, peak)


def refused(outcome: Outcome) -> bool:
    """Whether it ended with the expected error."""
    return isinstance(outcome.error, (DamagedDataError, InputError))


def read_all(name: str, root: Path) -> list[tuple[Any, int]]:
    """Every example of both splits."""
    form = plugins.load("data", name)
    return [example for split in ("train", "evaluation") for example in _each(form.open(root, split))]


def _each(examples: Any) -> Iterator[Any]:
    return (examples[number] for number in range(len(examples)))


def _reset_peak() -> float | None:
    """Return the current resident size, and reset the highest value of the kernel to it."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
        return _status_bytes("VmRSS")
    except OSError:
        return None


def _status_bytes(name: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(float(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


# Ways to damage a file.


def first(root: Path, pattern: str) -> Path:
    return min(root.rglob(pattern))


def overwrite(pattern: str, data: bytes) -> Callable[[Path], None]:
    return lambda root: void(first(root, pattern).write_bytes(data))


def cut(pattern: str, share: float) -> Callable[[Path], None]:
    def spoil(root: Path) -> None:
        path = first(root, pattern)
        path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])

    return spoil


def patch(pattern: str, offset: int, data: bytes) -> Callable[[Path], None]:
    def spoil(root: Path) -> None:
        path = first(root, pattern)
        held = bytearray(path.read_bytes())
        held[offset : offset + len(data)] = data
        path.write_bytes(held)

    return spoil


def void(_result: object) -> None:
    """Discard the result of a function in a lambda."""


class Planted:
    """Code that runs if the pickle is loaded; the tests look for its effect."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (exec, ("raise SystemExit('a pickle was loaded')",))


PICKLE = pickle.dumps(Planted())


def png(width: int, height: int, data: bytes = b"") -> bytes:
    """A PNG whose header may be false."""

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    header = struct.pack(">2I5B", width, height, 8, 2, 0, 0, 0)
    body = zlib.compress(data or bytes(100))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def truncated_png(root: Path) -> None:
    path = first(root, "train/*/*.JPEG")
    held = io.BytesIO()
    Image.open(path).save(held, "PNG")
    path.unlink()
    path.with_suffix(".png").write_bytes(held.getvalue()[: len(held.getvalue()) // 2])


def add_member(member: tarfile.TarInfo, content: bytes = b"") -> Callable[[Path], None]:
    """Add a member at the beginning of the first shard."""

    def spoil(root: Path) -> None:
        path = first(root, "train/*.tar")
        old = path.read_bytes()
        held = io.BytesIO()
        with tarfile.open(fileobj=held, mode="w", format=tarfile.GNU_FORMAT) as archive:
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
        block = -(-len(content) // 512) * 512 + held.getvalue().index(member.name.encode()) + 512
        path.write_bytes(held.getvalue()[:block] + old)

    return spoil


def linked(kind: bytes) -> tarfile.TarInfo:
    member = tarfile.TarInfo("000000000.jpg")
    member.type, member.linkname = kind, "/etc/passwd"
    return member


def huge_member(root: Path) -> None:
    """Make the first header claim 100 GB, with a correct checksum."""
    path = first(root, "train/*.tar")
    held = bytearray(path.read_bytes())
    held[124:136] = b"\x80" + (100 * 10**9).to_bytes(11, "big")
    held[148:156] = b" " * 8
    held[148:156] = b"%06o\0 " % sum(held[:512])
    path.write_bytes(held)


def long_header(root: Path) -> None:
    """Add an extended header of a gigabyte, which a reader must not load."""
    path = first(root, "train/*.tar")
    member = tarfile.TarInfo("name")
    member.type, member.size = tarfile.XHDTYPE, 1 << 30
    path.write_bytes(member.tobuf(tarfile.GNU_FORMAT) + path.read_bytes())


def rewrite_shard(change: Callable[[str, bytes], tuple[str, bytes] | None]) -> Callable[[Path], None]:
    """Change or remove members of an otherwise valid shard."""

    def spoil(root: Path) -> None:
        path = first(root, "train/*.tar")
        with tarfile.open(path) as archive:
            members = [(item.name, archive.extractfile(item).read()) for item in archive]  # type: ignore[union-attr]
        with tarfile.open(path, "w") as archive:
            for name, content in filter(None, (change(*member) for member in members)):
                made = tarfile.TarInfo(name)
                made.size = len(content)
                archive.addfile(made, io.BytesIO(content))

    return spoil


def python_version(folder: str, pickled: str) -> Callable[[Path], None]:
    def spoil(root: Path) -> None:
        shutil.rmtree(root / folder)
        (root / pickled).mkdir()
        (root / pickled / "train").write_bytes(PICKLE)

    return spoil


def zip_bomb(size_bytes: int, count: int) -> Callable[[Path], None]:
    """MNIST images as a small gzip file that unpacks to far more than its header says."""

    def spoil(root: Path) -> None:
        path = first(root, "train-images*")
        path.unlink()
        header = struct.pack(">4I", 0x803, count, 28, 28)
        with gzip.open(path.with_name(f"{path.name}.gz"), "wb", compresslevel=1) as packed:
            packed.write(header)
            for _ in range(size_bytes >> 20):
                packed.write(bytes(1 << 20))

    return spoil


def no_classes(root: Path) -> None:
    """Put all images directly into train, as from an archive without folders."""
    for path in sorted((root / "train").rglob("*.JPEG")):
        path.rename(root / "train" / path.name)
    for folder in sorted((root / "train").iterdir()):
        if folder.is_dir():
            folder.rmdir()


def pipe(root: Path) -> None:
    path = first(root, "train/*/*.JPEG")
    path.unlink()
    os.mkfifo(path)


def huge_file(root: Path) -> None:
    """An image file of 4 GB, mostly sparse."""
    with first(root, "train/*/*.JPEG").open("r+b") as file:
        file.truncate(4 << 30)


PICTURE = "train/*/*.JPEG"
CASES: list[Case] = [
    Case("jpeg corrupt", "imagefolder", patch(PICTURE, 20, bytes(300)), r"\.JPEG.*damaged or truncated JPEG"),
    Case("jpeg truncated", "imagefolder", cut(PICTURE, 0.5), r"\.JPEG.*truncated"),
    Case("png truncated", "imagefolder", truncated_png, r"\.png.*truncated"),
    Case("picture empty", "imagefolder", overwrite(PICTURE, b""), r"\.JPEG.*is empty"),
    Case("pickle named .JPEG", "imagefolder", overwrite(PICTURE, PICKLE), r"\.JPEG.*begins like a pickle"),
    Case("web page named .JPEG", "imagefolder", overwrite(PICTURE, b"<html>404"), r"\.JPEG.*web page"),
    Case("GIF named .JPEG", "imagefolder", overwrite(PICTURE, b"GIF89a" + bytes(99)), r"neither JPEG nor PNG.*GIF"),
    Case("png of 100000 x 100000", "imagefolder", overwrite(PICTURE, png(100_000, 100_000)), r"\.JPEG.*pixels"),
    Case("png of 9000 x 9000", "imagefolder", overwrite(PICTURE, png(9000, 9000)), r"\.JPEG.*9000 x 9000 pixels"),
    Case("picture of 4 GB", "imagefolder", huge_file, r"\.JPEG.*larger than"),
    Case("pipe named .JPEG", "imagefolder", pipe, r"\.JPEG.*not a regular file"),
    Case("no class folders", "imagefolder", no_classes, r"train.*no folders.*classes"),
    Case("class only in val", "imagefolder", lambda root: (root / "val" / "zebra").mkdir(), r"zebra.*train does not"),
    Case("no val", "imagefolder", lambda root: shutil.rmtree(root / "val"), r"no folder val"),
    Case("class without pictures", "imagefolder", lambda root: (root / "train" / "zebra").mkdir(), r"no pictures"),
    Case("meta leads out", "food101", overwrite("train.txt", b"../../etc/passwd\n"), r"leads out"),
    Case("meta absolute", "food101", overwrite("test.txt", b"/etc/passwd\n"), r"leads out"),
    Case("meta of no class", "food101", overwrite("train.txt", b"stone/1\n"), r"train\.txt.*in no class"),
    Case("meta is binary", "food101", overwrite("classes.txt", b"\xff\xfe\x00"), r"classes\.txt is not text"),
    Case("meta names what is not there", "food101", overwrite("test.txt", b"dish_000/7\n"), r"7\.jpg.*No such file"),
    Case("tar leads out", "webdataset", add_member(tarfile.TarInfo("../0.jpg"), b"x"), r"\.tar.*leads out"),
    Case("tar absolute", "webdataset", add_member(tarfile.TarInfo("/etc/0.jpg"), b"x"), r"\.tar.*leads out"),
    Case("tar symbolic link", "webdataset", add_member(linked(tarfile.SYMTYPE)), r"\.tar.*symbolic link"),
    Case("tar hard link", "webdataset", add_member(linked(tarfile.LNKTYPE)), r"\.tar.*hard link"),
    Case("tar device", "webdataset", add_member(linked(tarfile.CHRTYPE)), r"\.tar.*device"),
    Case("tar with .pyd", "webdataset", add_member(tarfile.TarInfo("0.pyd"), PICKLE), r"\.tar.*\.pyd.*refused"),
    Case("tar with .pth", "webdataset", add_member(tarfile.TarInfo("0.pth"), PICKLE), r"\.tar.*\.pth.*refused"),
    Case("tar truncated", "webdataset", cut("train/*.tar", 0.5), r"\.tar is truncated"),
    Case("tar without end", "webdataset", lambda root: no_end(root), r"\.tar is truncated"),
    Case("tar says 100 GB", "webdataset", huge_member, r"\.tar.*100,000,000,000 bytes"),
    Case("tar long header", "webdataset", long_header, r"\.tar.*extended header of 1,073,741,824 bytes"),
    Case("tar is a pickle", "webdataset", overwrite("train/*.tar", PICKLE + bytes(2000)), r"\.tar.*like a pickle"),
    Case("tar empty", "webdataset", overwrite("train/*.tar", b""), r"\.tar is truncated"),
    Case("two tars in one", "webdataset", lambda root: twice(root), r"\.tar.*two archives"),
    Case("cls with text", "webdataset",
         rewrite_shard(lambda name, data: (name, b"cat" if name.endswith("cls") else data)), r"\.tar.*cat.*digits"),
    Case("cls is huge", "webdataset",
         rewrite_shard(lambda name, data: (name, b"9" * 9 if name.endswith("cls") else data)), r"\.tar.*0 to 99999"),
    Case("no cls", "webdataset",
         rewrite_shard(lambda name, data: None if name.endswith("0.cls") else (name, data)), r"\.tar has no label"),
    Case("cls alone", "webdataset",
         rewrite_shard(lambda name, data: None if name.endswith("0.jpg") else (name, data)), r"\.tar has no picture"),
    Case("tar with a pickle as .jpg", "webdataset",
         rewrite_shard(lambda name, data: (name, PICKLE if name.endswith("jpg") else data)), r"\.jpg.*like a pickle"),
    Case("no shards", "webdataset", lambda root: shutil.rmtree(root / "train"), r"no train/\*\.tar"),
    Case("half a record", "cifar100", cut("train.bin", 0.51), r"train\.bin.*no whole number of records"),
    Case("half a record of 10", "cifar10", cut("data_batch_1.bin", 0.51), r"data_batch_1.*no whole number of records"),
    Case("label out of range", "cifar100", patch("train.bin", 1, b"\xc8"), r"train\.bin.*label 200.*0 to 99"),
    Case("label of 10 out of range", "cifar10", patch("test_batch.bin", 0, b"\x0a"), r"test_batch.*label 10.*0 to 9"),
    Case("batch missing", "cifar10", lambda root: first(root, "data_batch_3.bin").unlink(), r"no data_batch_3"),
    Case("Python version", "cifar100", python_version("cifar-100-binary", "cifar-100-python"), r"pickled.*binary"),
    Case("Python version of 10", "cifar10", python_version("cifar-10-batches-bin", "cifar-10-batches-py"), r"pickled"),
    Case("gzip bomb", "mnist", zip_bomb(1 << 28, 20), r"\.gz.*header says 20 items.*it has more"),
    Case("gzip bomb that says so", "mnist", zip_bomb(1 << 26, 4_000_000_000), r"\.gz.*4,000,000,000 items; valid"),
    Case("gzip truncated", "mnist", lambda root: packed_and_cut(root), r"\.gz: the gzip file is truncated"),
    Case("header lies on count", "mnist", patch("train-images*", 4, struct.pack(">I", 21)), r"header says 21 items"),
    Case("header lies on size", "mnist", patch("train-images*", 8, struct.pack(">I", 64)), r"items of \[64, 28\]"),
    Case("fewer labels", "mnist", lambda root: fewer_labels(root), r"labels-idx1.*19 labels for 20 pictures"),
    Case("label of mnist", "mnist", patch("t10k-labels*", 8, b"\x0b"), r"t10k-labels.*label 0 is 11; valid: 0 to 9"),
    Case("idx is a pickle", "mnist", overwrite("train-labels*", PICKLE), r"train-labels.*begins like a pickle"),
]  # fmt: skip


def no_end(root: Path) -> None:
    """Cut between two members, so that only the end marker is missing."""
    path = first(root, "train/*.tar")
    with tarfile.open(path) as archive:
        end = archive.getmembers()[2].offset
    path.write_bytes(path.read_bytes()[:end])


def twice(root: Path) -> None:
    path = first(root, "train/*.tar")
    path.write_bytes(path.read_bytes() * 2)


def packed_and_cut(root: Path) -> None:
    path = first(root, "train-images*")
    data = gzip.compress(path.read_bytes())
    path.unlink()
    path.with_name(f"{path.name}.gz").write_bytes(data[: len(data) // 2])


def fewer_labels(root: Path) -> None:
    path = first(root, "train-labels*")
    path.write_bytes(struct.pack(">2I", 0x801, 19) + path.read_bytes()[8:-1])


# Independent readers: plain numpy, Pillow and tarfile.


def _of(pixels: Any, label: int) -> tuple[bytes, tuple[int, ...], int]:
    array = np.asarray(pixels)
    return array.tobytes(), array.shape, label


def reference_cifar10(root: Path) -> Row:
    names = [*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"]
    return _cifar([root / "cifar-10-batches-bin" / name for name in names], 1)


def reference_cifar100(root: Path) -> Row:
    return _cifar([root / "cifar-100-binary" / name for name in ("train.bin", "test.bin")], 2)


def _cifar(paths: list[Path], labels: int) -> Row:
    rows = np.concatenate([np.fromfile(path, np.uint8).reshape(-1, labels + 3072) for path in paths])
    return [_of(np.dstack(row[labels:].reshape(3, 32, 32)), int(row[labels - 1])) for row in rows]


def reference_mnist(root: Path) -> Row:
    rows: Row = []
    for name in ("train", "t10k"):
        pictures = np.fromfile(root / f"MNIST/raw/{name}-images-idx3-ubyte", np.uint8, offset=16).reshape(-1, 28, 28, 1)
        labels = np.fromfile(root / f"MNIST/raw/{name}-labels-idx1-ubyte", np.uint8, offset=8)
        rows += [_of(picture, int(label)) for picture, label in zip(pictures, labels, strict=True)]
    return rows


def reference_imagefolder(root: Path) -> Row:
    classes = sorted(path.name for path in (root / "train").iterdir())
    paths = [path for part in ("train", "val") for path in sorted((root / part).glob("*/*"))]
    return [_of(Image.open(path).convert("RGB"), classes.index(path.parent.name)) for path in paths]


def reference_food101(root: Path) -> Row:
    meta, images = root / "food-101/meta", root / "food-101/images"
    classes = (meta / "classes.txt").read_text().split()
    names = [name for part in ("train", "test") for name in (meta / f"{part}.txt").read_text().split()]
    return [_of(Image.open(images / f"{name}.jpg").convert("RGB"), classes.index(name.split("/")[0])) for name in names]


def reference_webdataset(root: Path) -> Row:
    rows: Row = []
    for path in [path for part in ("train", "val") for path in sorted((root / part).glob("*.tar"))]:
        with tarfile.open(path) as archive:
            contents = {item.name: archive.extractfile(item).read() for item in archive}  # type: ignore[union-attr]
        for name in contents:
            if name.endswith(".jpg"):
                picture = Image.open(io.BytesIO(contents[name])).convert("RGB")
                rows.append(_of(picture, int(contents[name.replace(".jpg", ".cls")])))
    return rows


REFERENCE: dict[str, Callable[[Path], Row]] = {
    "cifar10": reference_cifar10,
    "cifar100": reference_cifar100,
    "mnist": reference_mnist,
    "imagefolder": reference_imagefolder,
    "food101": reference_food101,
    "webdataset": reference_webdataset,
}


def differences(name: str, root: Path) -> tuple[int, int]:
    """Return how many images or labels differ from the reference reader, and the total."""
    ours = [_of(picture, label) for picture, label in read_all(name, root)]
    theirs = REFERENCE[name](root)
    unequal = sum(one != other for one, other in zip(ours, theirs, strict=False))
    return unequal + abs(len(ours) - len(theirs)), len(theirs)
