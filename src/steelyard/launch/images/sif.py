"""Read the header of an Apptainer image (SIF): its architecture, and whether the file is complete.

Uses only the standard library, because login nodes often have no Apptainer. The layout is version 01:
https://github.com/apptainer/sif/blob/main/pkg/sif/sif.go.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, BinaryIO, Final

from steelyard.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

# Start line, magic, version, architecture, id, then times and the offsets of descriptors and data.
_HEADER: Final = struct.Struct("<32s10s3s3s16s8q")
# Kind, whether it is used, its numbers, group and link, then offset and size, and fields that we do not read.
_DESCRIPTOR: Final = struct.Struct("<i?III7q128s384s")
_MARK: Final = b"SIF_MAGIC\0"
_VERSION: Final = b"01\0"
_PARTITION: Final = 0x4004
_PRIMARY: Final = 2
_PART = struct.Struct("<ii3s")  # file system, kind of partition, architecture
# Apptainer writes 48; a header with more than this is not from it.
MAX_DESCRIPTORS: Final = 4096

ARCHITECTURES: Final = {
    "01": "i686",
    "02": "x86_64",
    "03": "armv7l",
    "04": "aarch64",
    "05": "ppc64",
    "06": "ppc64le",
    "07": "mips",
    "08": "mipsel",
    "09": "mips64",
    "10": "mips64el",
    "11": "s390x",
    "12": "riscv64",
}
"""Names as in `uname -m`."""


def is_sif(path: Path) -> bool:
    """Return whether a file starts like a SIF image."""
    with path.open("rb") as file:
        return file.read(_HEADER.size)[32:42] == _MARK


def sif_architecture(path: Path) -> str:
    """Return the architecture of the image; InputError if the file is damaged or truncated."""
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(_HEADER.size)
        if len(head) < _HEADER.size or head[32:42] != _MARK:
            raise _damaged(path, "it has no SIF header")
        _, _, version, architecture, _, _, _, _, total, offset, *_ = _HEADER.unpack(head)
        if version != _VERSION:
            raise _damaged(path, f'its version is "{version.decode(errors="replace")}", not 01')
        if not (0 < total <= MAX_DESCRIPTORS and _HEADER.size <= offset <= size - total * _DESCRIPTOR.size):
            raise _damaged(path, "its table of contents is outside the file")
        file.seek(offset)
        code = _find_primary(path, file, total, size) or architecture
    text = code.rstrip(b"\0").decode("ascii", "replace")
    name = ARCHITECTURES.get(text)
    if name is None:
        raise _damaged(path, f'its architecture "{text}" is unknown')
    return name


def _find_primary(path: Path, file: BinaryIO, total: int, size: int) -> bytes | None:
    """Return the architecture of the primary partition; None if there is none, as in images of OCI blobs."""
    primary, end = None, 0
    for _ in range(total):
        kind, used, _, _, _, offset, length, *_, extra = _DESCRIPTOR.unpack(file.read(_DESCRIPTOR.size))
        if not used:
            continue
        if offset < 0 or length < 0:
            raise _damaged(path, "a section has a negative offset or size")
        end = max(end, offset + length)
        _, part, architecture = _PART.unpack_from(extra)
        if kind == _PARTITION and part == _PRIMARY and primary is None:
            primary = architecture
    if end > size:
        raise _damaged(path, f"it is truncated: {size} of {end} bytes")
    return primary


def _damaged(path: Path, why: str) -> InputError:
    return InputError(
        f"{path} is not a valid Apptainer image: {why}",
        next_step=f"apptainer inspect {path}, or copy or build it again",
    )
