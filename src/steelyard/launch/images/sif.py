"""Reads the header of an Apptainer image (SIF): its architecture, and whether all of the file is there.

Read with the standard library, because login nodes often have no Apptainer. The layout is that of version 01:
https://github.com/apptainer/sif/blob/main/pkg/sif/sif.go. Knows nothing of what is in the image.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, BinaryIO, Final

from steelyard.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

# Start line, mark, version, architecture, identity, then times and the places of descriptors and data.
_HEADER: Final = struct.Struct("<32s10s3s3s16s8q")
# Kind, whether it is used, numbers of it, its group and its link, then offset and size, and fields that we do not read.
_DESCRIPTOR: Final = struct.Struct("<i?III7q128s384s")
_MARK: Final = b"SIF_MAGIC\0"
_VERSION: Final = b"01\0"
_PARTITION: Final = 0x4004
_PRIMARY: Final = 2
_PART = struct.Struct("<ii3s")  # file system, kind of partition, architecture
# Apptainer makes 48; a header that tells of more than this is not from it.
MAX_DESCRIPTORS: Final = 4096

ARCHITECTURES: Final = {
    "01": "i686", "02": "x86_64", "03": "armv7l", "04": "aarch64", "05": "ppc64", "06": "ppc64le", "07": "mips",
    "08": "mipsel", "09": "mips64", "10": "mips64el", "11": "s390x", "12": "riscv64",
}  # fmt: skip
"""As `uname -m` says them."""


def is_sif(path: Path) -> bool:
    """Whether a file begins as such an image does."""
    with path.open("rb") as file:
        return file.read(_HEADER.size)[32:42] == _MARK


def sif_architecture(path: Path) -> str:
    """For which architecture the image's system is; InputError when the file is damaged or cut short."""
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(_HEADER.size)
        if len(head) < _HEADER.size or head[32:42] != _MARK:
            raise _damaged(path, "it has no header of one")
        _, _, version, architecture, _, _, _, _, total, offset, *_ = _HEADER.unpack(head)
        if version != _VERSION:
            raise _damaged(path, f"its version is {version!r}, not 01")
        if not (0 < total <= MAX_DESCRIPTORS and _HEADER.size <= offset <= size - total * _DESCRIPTOR.size):
            raise _damaged(path, "its table of contents lies outside the file")
        file.seek(offset)
        code = _find_primary(path, file, total, size) or architecture
    name = ARCHITECTURES.get(code.rstrip(b"\0").decode("ascii", "replace"))
    if name is None:
        raise _damaged(path, f"its architecture {code!r} is unknown")
    return name


def _find_primary(path: Path, file: BinaryIO, total: int, size: int) -> bytes | None:
    """The architecture of the partition that is started; None: there is none, as in images of OCI blobs."""
    found, end = None, 0
    for _ in range(total):
        kind, used, _, _, _, offset, length, *_, extra = _DESCRIPTOR.unpack(file.read(_DESCRIPTOR.size))
        if not used:
            continue
        if offset < 0 or length < 0:
            raise _damaged(path, "a part of it lies before its begin")
        end = max(end, offset + length)
        _, part, architecture = _PART.unpack_from(extra)
        if kind == _PARTITION and part == _PRIMARY and found is None:
            found = architecture
    if end > size:
        raise _damaged(path, f"it is cut short: it should have {end} bytes and has {size}")
    return found


def _damaged(path: Path, why: str) -> InputError:
    return InputError(
        f"{path} is no sound Apptainer image: {why}", next_step=f"apptainer inspect {path}, or copy or build it again"
    )
