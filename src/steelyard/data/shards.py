"""Pictures in tar shards as the webdataset library lays them out, in any order. Unpacks, runs and unpickles nothing.

The library itself is not used to read: it takes names for shell commands, and unpickles what has such an ending.
"""

from __future__ import annotations

import io
import os
import random
import re
import tarfile
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from steelyard.data.folder import IMAGEFOLDER, MADE_CLASSES, SIDES
from steelyard.data.form import Kind, begins_like, confined, read_at, read_whole
from steelyard.data.images import FILE_LIMIT_BYTES, classes_for, decode, draw, encode, evaluation_samples
from steelyard.errors import DamagedDataError, InputError, Problem

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from PIL.Image import Image as Picture

    from steelyard.data.form import Split

BLOCK = 512
# Read at once while scanning: the headers of a picture and of its label, and the label, mostly lie together.
WINDOW_BYTES = 4096
# Of a name that is too long for a header, and its like.
EXTENSION_LIMIT_BYTES = 64 << 10
CLS_LIMIT_BYTES = 32
# ImageNet-21k has 21,841 classes. One sample with a huge label would make a model too large for any machine.
LABEL_LIMIT = 100_000
PICTURES = ("jpg", "jpeg", "png")
# What people put beside a picture and its label; passed over unread.
PASSED_OVER = ("json", "txt")
# As the library splits a name: the key up to the first dot behind the last slash, then the ending.
NAME = re.compile(r"((?:.*/)?[^./][^./]*)\.([^/]+)", re.DOTALL)
# Leads nowhere by its looks; taking every name apart would be half of the time of a scan.
PLAIN = re.compile(r"[\w-][\w.-]*")
SHARD_SAMPLES = 1000
FOLDERS: dict[Split, str] = {"train": "train", "evaluation": "val"}
KINDS = {
    "1": "a hard link",
    "2": "a symbolic link",
    "3": "a device",
    "4": "a device",
    "6": "a pipe",
    "S": "a sparse file",
}


@dataclass(frozen=True)
class Member:
    """A regular file in an archive."""

    name: str
    offset: int
    size_bytes: int


class Archive:
    """A tar file whose headers are read one after the other. Keeps it open only while it is scanned."""

    def __init__(self, path: Path, handle: int) -> None:
        self.path = path
        self._handle = handle
        self._size_bytes = os.fstat(handle).st_size
        self._window = b""
        self._begin = 0

    def read(self, offset: int, size_bytes: int) -> bytes:
        """Bytes that must be there."""
        begin = offset - self._begin
        if not 0 <= begin <= begin + size_bytes <= len(self._window):
            self._window, self._begin, begin = os.pread(self._handle, max(size_bytes, WINDOW_BYTES), offset), offset, 0
        data = self._window[begin : begin + size_bytes]
        if len(data) < size_bytes:
            raise self.damaged("is truncated: it ends inside of a member or without the mark of its end")
        return data

    def damaged(self, what: str) -> DamagedDataError:
        """An error that names the archive."""
        return DamagedDataError(f"{self.path} {what}", next_step="write the shard again: steelyard data shards")

    def members(self) -> Iterator[Member]:
        """Every regular file; anything but files and folders is refused."""
        offset, name = 0, None
        while any(header := self.read(offset, BLOCK)):
            self._check(header, offset)
            kind, size_bytes = chr(header[156]), self._size(header, offset)
            data = offset + BLOCK
            if kind in "xgL":
                name = self._extension(kind, data, size_bytes) or name
            elif kind in "0\x00":
                member = Member(name or _short_name(header), data, size_bytes)
                self._admit(member)
                yield member
                name = None
            elif kind == "5":
                size_bytes, name = 0, None
            else:
                what = KINDS.get(kind, f"a member of the type {kind}")
                raise self.damaged(f'holds {what}, "{(name or _short_name(header))[:100]}": only files are read')
            offset = data + -(-size_bytes // BLOCK) * BLOCK
        if any(self._rest(offset)):
            raise self.damaged("goes on behind the mark of its end: two archives put together?")

    def _check(self, header: bytes, offset: int) -> None:
        told = _octal(header[148:156])
        if told != sum(header) - sum(header[148:156]) + 8 * ord(" "):
            what = begins_like(header) if offset == 0 else f"has no member's header at byte {offset:,}"
            raise self.damaged(f"is no sound tar archive: it {what}")

    def _size(self, header: bytes, offset: int) -> int:
        digits = header[124:136]
        size = int.from_bytes(digits[1:], "big") if digits[0] & 0x80 else _octal(digits)
        if size is None:
            raise self.damaged(f"has a member without a size at byte {offset:,}")
        return size

    def _extension(self, kind: str, offset: int, size_bytes: int) -> str | None:
        """The name of the next member where it was too long for its header."""
        if size_bytes > EXTENSION_LIMIT_BYTES:
            raise self.damaged(f"has an extended header of {size_bytes:,} bytes; at most {EXTENSION_LIMIT_BYTES:,}")
        data = self.read(offset, size_bytes)
        if kind == "L":
            return _text(data)
        records = dict(_records(data))
        if "size" in records or any(key.startswith("GNU.sparse") for key in records):
            raise self.damaged("has a member of more than 8 GB, or a sparse one: only pictures are read")
        return records.get("path") if kind == "x" else None

    def _admit(self, member: Member) -> None:
        if PLAIN.fullmatch(member.name) is None:
            confined(self.path, member.name)
        if member.size_bytes > FILE_LIMIT_BYTES:
            what = f'says that "{member.name[:100]}" has {member.size_bytes:,} bytes'
            raise self.damaged(f"{what}; at most {FILE_LIMIT_BYTES:,} are read")
        if member.offset + member.size_bytes > self._size_bytes:
            raise self.damaged(f'is truncated inside of "{member.name[:100]}"')

    def _rest(self, offset: int) -> bytes:
        # Archives are padded with zeros, by 10 KiB mostly, a MiB at most.
        return os.pread(self._handle, 1 << 20, offset)


def _octal(digits: bytes) -> int | None:
    try:
        return int(digits.strip(b" \x00") or b"0", 8)
    except ValueError:
        return None


def _text(data: bytes) -> str:
    return data.partition(b"\x00")[0].decode("utf-8", "surrogateescape")


def _short_name(header: bytes) -> str:
    name = _text(header[:100])
    prefix = _text(header[345:500]) if header[257:263] == b"ustar\x00" else ""
    return f"{prefix}/{name}" if prefix else name


def _records(data: bytes) -> Iterator[tuple[str, str]]:
    """Of an extended header: its length, a space, key=value and a new line, each."""
    while data:
        digits, _, rest = data.partition(b" ")
        length = int(digits) if digits.isdigit() and len(digits) < 8 else 0
        key, equals, value = rest[: length - len(digits) - 2].partition(b"=")
        if length < len(digits) + 4 or not equals:
            return
        yield _text(key), value.decode("utf-8", "surrogateescape")
        data = data[length:]


class Shard:
    """The samples of one archive: where each picture is, and its label."""

    def __init__(self, archive: Archive) -> None:
        self.offsets: list[int] = []
        self.sizes: list[int] = []
        self.labels: list[int] = []
        self._archive = archive
        self._key: str | None = None
        self._picture: Member | None = None
        self._label: int | None = None
        for member in archive.members():
            self._take(member)
        self._finish()
        if not self.labels:
            raise archive.damaged("holds no samples")

    def _take(self, member: Member) -> None:
        parts = _split_name(self._archive, member.name)
        if parts is None:
            return
        key, ending = parts
        if key != self._key:
            self._finish()
            self._key = key
        if ending == "cls":
            self._label = _label(self._archive, member)
        elif ending in PICTURES:
            if self._picture is not None:
                raise self._archive.damaged(f'has two pictures for the sample "{key[:100]}"')
            self._picture = member

    def _finish(self) -> None:
        """The files of a sample lie together: with another key, the sample is whole."""
        if self._key is None:
            return
        if self._picture is None or self._label is None:
            lacks = "label (.cls)" if self._label is None else "picture (.jpg, .jpeg or .png)"
            raise self._archive.damaged(f'has no {lacks} beside the other files of the sample "{self._key[:100]}"')
        self.offsets.append(self._picture.offset)
        self.sizes.append(self._picture.size_bytes)
        self.labels.append(self._label)
        self._key = self._picture = self._label = None


def scan(path: Path) -> Shard:
    """Where the samples of an archive are. Reads headers and labels, no pictures."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise DamagedDataError(f"{path}: {error.strerror}") from None
    try:
        return Shard(Archive(path, handle))
    except OSError as error:
        raise DamagedDataError(f"{path}: {error.strerror}") from None
    finally:
        os.close(handle)


def _split_name(archive: Archive, name: str) -> tuple[str, str] | None:
    """Key and ending; None for what is passed over."""
    if name.startswith("__") and name.endswith("__") and "/" not in name:
        # The library's own notes.
        return None
    parts = NAME.fullmatch(name)
    ending = parts[2].lower() if parts else ""
    if parts is None or ending not in ("cls", *PICTURES, *PASSED_OVER):
        valid = ", ".join(("cls", *PICTURES, *PASSED_OVER))
        raise archive.damaged(f'holds "{name[:100]}": files with that ending are refused, never loaded; valid: {valid}')
    return parts[1], ending


def _label(archive: Archive, member: Member) -> int:
    text = archive.read(member.offset, min(member.size_bytes, CLS_LIMIT_BYTES + 1)).strip()
    if len(text) > CLS_LIMIT_BYTES or not text.isdigit() or int(text) >= LABEL_LIMIT:
        raise archive.damaged(
            f'has "{text[:20].decode(errors="replace")}" in "{member.name[:100]}"; '
            f"valid: a number from 0 to {LABEL_LIMIT - 1} in digits"
        )
    return int(text)


class ShardExamples:
    """One split: the samples of all its archives."""

    def __init__(self, paths: Sequence[Path]) -> None:
        shards = [scan(path) for path in paths]
        self._paths = list(paths)
        # The first number of each shard, and one past the last.
        self._starts = np.cumsum([0, *(len(shard.labels) for shard in shards)])
        self._offsets = np.concatenate([np.array(shard.offsets, dtype=np.int64) for shard in shards])
        self._sizes = np.concatenate([np.array(shard.sizes, dtype=np.int64) for shard in shards])
        self._labels = np.concatenate([np.array(shard.labels, dtype=np.int32) for shard in shards])
        # Shards do not say it: the highest label that occurs in the split.
        self.classes: int | None = int(self._labels.max()) + 1

    def __len__(self) -> int:
        return len(self._labels)

    def raw(self, number: int) -> bytes:
        """A picture as it lies in the archive."""
        path, offset, size = self._place(number)
        data = read_at(path, offset, size)
        if len(data) != size:
            raise DamagedDataError(f"{path} became shorter while it was read")
        return data

    def __getitem__(self, number: int) -> tuple[Picture, int]:
        data = self.raw(number)
        try:
            return decode(data), int(self._labels[number])
        except DamagedDataError as error:
            path, offset, _ = self._place(number)
            name = _short_name(read_at(path, offset - BLOCK, BLOCK))
            raise DamagedDataError(f'{path}, member "{name[:100]}": {error.what}') from None

    def _place(self, number: int) -> tuple[Path, int, int]:
        if not 0 <= number < len(self):
            raise IndexError(number)
        shard = int(np.searchsorted(self._starts, number, side="right")) - 1
        return self._paths[shard], int(self._offsets[number]), int(self._sizes[number])

    def order(self, source: random.Random) -> Sequence[int]:
        """Shards in random order, and the samples of each: reading stays within a file for a while."""
        choose = np.random.default_rng(source.getrandbits(64))
        parts = [
            choose.permutation(np.arange(self._starts[shard], self._starts[shard + 1]))
            for shard in choose.permutation(len(self._paths))
        ]
        numbers: Sequence[int] = np.concatenate(parts)  # type: ignore[assignment]
        return numbers

    def files(self) -> Iterable[Path]:
        """The archives."""
        return self._paths


class WebDataset:
    """Any data set of labelled pictures in shards."""

    name = "webdataset"
    kind: Kind = "image-class"
    needs: tuple[str, ...] = ("PIL",)
    title = "Labelled pictures in tar shards (WebDataset)"
    layout = (
        "train/*.tar and val/*.tar, or *train*.tar and *val*.tar\n"
        "in each: <key>.jpg (or .jpeg, .png) and <key>.cls with the label in digits, one after the other\n"
        "<key>.json and <key>.txt are passed over; any other file is refused"
    )
    source = (
        "https://github.com/webdataset/webdataset describes the layout. ImageNet-1k in it: "
        "https://huggingface.co/datasets/timm/imagenet-1k-wds (as large as ImageNet, on its terms). "
        "From folders of your own: steelyard data shards imagefolder:PATH TARGET"
    )

    def open(self, root: Path, split: Split) -> ShardExamples:
        """A split; scans the headers of all its archives."""
        part = FOLDERS[split]
        paths = sorted((root / part).glob("*.tar")) if (root / part).is_dir() else []
        paths = paths or sorted(path for path in root.glob("*.tar") if part in path.name)
        if not paths:
            raise InputError(
                "there are no shards",
                problems=(Problem(str(root), f"has no {part}/*.tar and no *{part}*.tar", "local tar files"),),
                next_step="steelyard data show webdataset",
            )
        return ShardExamples(paths)

    def make(self, root: Path, samples: int, seed: int) -> None:
        """JPEGs of many sizes, in four shards at least; as many classes as samples / 50, at least 2 and at most 100."""
        classes = classes_for(samples, MADE_CLASSES)
        source = np.random.default_rng(seed)
        for part, count in (("train", samples), ("val", evaluation_samples(samples, classes))):
            drawn = ((_draw(number % classes, source), "jpg", number % classes) for number in range(count))
            write(root / part, part, drawn, samples_per_shard=min(SHARD_SAMPLES, -(-count // 4)))


def _draw(label: int, source: np.random.Generator) -> bytes:
    height, width = source.integers(*SIDES, 2).tolist()
    return encode(draw(label, height, width, source))


def write(folder: Path, name: str, samples: Iterable[tuple[bytes, str, int]], *, samples_per_shard: int) -> None:
    """Pictures with their endings and labels as shards; each gets its name when it is whole."""
    folder.mkdir(parents=True, exist_ok=True)
    archive: tarfile.TarFile | None = None
    path = folder
    for number, (data, ending, label) in enumerate(samples):
        if number % samples_per_shard == 0:
            _close(archive, path)
            path = folder / f"{name}-{number // samples_per_shard:06d}.tar"
            archive = tarfile.open(path.with_name(f"{path.name}.part"), "w", format=tarfile.USTAR_FORMAT)  # noqa: SIM115 -- closed by _close
        assert archive is not None
        for end, content in ((ending, data), ("cls", str(label).encode("ascii"))):
            # Time, owner and mode are the same for all: the same pictures give the same bytes.
            member = tarfile.TarInfo(f"{number:09d}.{end}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    _close(archive, path)


def _close(archive: tarfile.TarFile | None, path: Path) -> None:
    if archive is not None:
        archive.close()
        path.with_name(f"{path.name}.part").replace(path)


def to_shards(root: Path, target: Path, samples_per_shard: int = SHARD_SAMPLES, seed: int = 0) -> None:
    """Folders of classes as shards, every file's bytes unchanged.

    Training samples are mixed first: read shard by shard, a batch would else see one class only.
    """
    for split, part in FOLDERS.items():
        examples = IMAGEFOLDER.open(root, split)
        numbers: Iterable[int] = range(len(examples))
        if split == "train":
            numbers = examples.order(random.Random(seed))
        copied = (
            (read_whole(path, FILE_LIMIT_BYTES), path.suffix[1:].lower(), examples.label(number))
            for number in numbers
            for path in [examples.path(number)]
        )
        write(target / part, part, copied, samples_per_shard=samples_per_shard)


WEBDATASET = WebDataset()
