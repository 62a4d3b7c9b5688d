"""Read images in OCI layout, as a folder or one file, and choose the image for an architecture.

The JSON is untrusted: it is read within bounds, and every digest is checked. Runs nothing, unpacks nothing.
The layout: https://github.com/opencontainers/image-spec/blob/main/image-layout.md
"""

from __future__ import annotations

import hashlib
import json
import re
import tarfile
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from steelyard.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# Manifests and configurations of real images are a few kilobytes; registries refuse manifests above 4 MiB.
MAX_DOCUMENT_BYTES: Final = 4 << 20
MAX_DEPTH: Final = 4
MAX_ENTRIES: Final = 1000
MAX_ARCHIVE_MEMBERS: Final = 10_000
NAME_KEY: Final = "org.opencontainers.image.ref.name"

GO_NAMES: Final = {"x86_64": "amd64", "aarch64": "arm64"}
"""The names of architectures in images, by their names in `uname -m`."""
_UNAMES = {go: name for name, go in GO_NAMES.items()}
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}", re.ASCII)


@dataclass(frozen=True)
class ImageEntry:
    """One image of an index or layout."""

    architecture: str | None
    """As in `uname -m`; None: the image does not specify it."""
    digest: str
    """Digest of its manifest."""


class Documents(Protocol):
    """A source of the JSON documents of an image."""

    def read(self, name: str) -> bytes | None:
        """Return a document by its path in the layout, at most MAX_DOCUMENT_BYTES + 1; None if it does not exist."""


class Folder:
    """A layout in a folder."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self, name: str) -> bytes | None:
        """Read a regular file below the folder."""
        path = self._path / name
        if not path.is_file():
            return None
        with path.open("rb") as file:
            return file.read(MAX_DOCUMENT_BYTES + 1)


class TarLayout:
    """A layout in a tar file; only headers and requested documents are read."""

    def __init__(self, path: Path, archive: tarfile.TarFile) -> None:
        self._archive = archive
        self._members: dict[str, tarfile.TarInfo] = {}
        for number, member in enumerate(archive):
            if number >= MAX_ARCHIVE_MEMBERS:
                raise InputError(f"{path} has more than {MAX_ARCHIVE_MEMBERS} members: not an image")
            if member.isreg():
                self._members[member.name.removeprefix("./")] = member

    def read(self, name: str) -> bytes | None:
        """Read a regular member."""
        member = self._members.get(name)
        file = None if member is None else self._archive.extractfile(member)
        return None if file is None else file.read(MAX_DOCUMENT_BYTES + 1)


@contextmanager
def open_layout(path: Path) -> Iterator[Documents | None]:
    """Open the documents of a layout; None if the path is not a layout."""
    if path.is_dir():
        yield Folder(path) if (path / "oci-layout").is_file() else None
        return
    try:
        # Only uncompressed, as such archives are: seeking is cheap, and there are no decompression bombs.
        archive = tarfile.open(path, "r:")  # noqa: SIM115 -- closed below
    except tarfile.TarError:
        yield None
        return
    try:
        documents = TarLayout(path, archive)
        yield documents if documents.read("oci-layout") is not None else None
    except (tarfile.TarError, ValueError, OverflowError) as error:
        # The last two: a header states a size that no file has.
        raise InputError(f"{path} is damaged: {error}", next_step="copy it or build it again") from None
    finally:
        archive.close()


def images_in(documents: Documents, tag: str | None, source: str) -> list[ImageEntry]:
    """Return every image of a layout, or those with a tag."""
    index = _parse(documents.read("index.json"), f"{source}: index.json")
    entries = _read_entries(index, source)
    if tag is not None:
        names = [entry.get("annotations") or {} for entry in entries]
        chosen = [entry for entry, name in zip(entries, names, strict=True) if name.get(NAME_KEY) == tag]
        if not chosen:
            known = sorted({str(name[NAME_KEY]) for name in names if NAME_KEY in name})
            raise InputError(
                f"{source} has no image tagged {tag}", next_step=f"use one of {', '.join(known[:20]) or 'no tag'}"
            )
        entries = chosen
    return [image for entry in entries for image in _follow(documents, entry, source, 1)]


def images_of_raw(text: bytes, source: str) -> list[ImageEntry] | None:
    """Return the images in a registry's index; None if the text is the manifest of one image."""
    document = _parse(text, source)
    if "manifests" not in document:
        return None
    return [
        ImageEntry(_platform(entry), str(entry["digest"]))
        for entry in _read_entries(document, source)
        if not _attests(entry)
    ]


def architecture_of_config(text: bytes, source: str) -> str | None:
    """Return the architecture in an image's configuration."""
    return _uname(_parse(text, source).get("architecture"))


def choose(images: list[ImageEntry], architecture: str, source: str) -> ImageEntry:
    """Return the image for an architecture; InputError with the available ones if there is none."""
    fitting = [one for one in images if one.architecture == architecture]
    if len({one.digest for one in fitting}) == 1:
        return fitting[0]
    if len(images) == 1:
        return images[0]
    if fitting:
        raise InputError(
            f"{source} has {len(fitting)} images for {architecture}",
            next_step="select one by its tag or digest",
        )
    there = ", ".join(sorted({one.architecture or "unknown" for one in images})) or "none"
    raise InputError(
        f"{source} has no image for {architecture}; it has: {there}",
        next_step="build one there, and add it to the index: buildah manifest add INDEX IMAGE",
    )


def _follow(documents: Documents, entry: dict[str, Any], source: str, depth: int) -> Iterator[ImageEntry]:
    """Yield the images behind an entry of an index, through nested indexes."""
    if _attests(entry):
        return
    if depth > MAX_DEPTH:
        raise InputError(f"{source}: indexes are nested more than {MAX_DEPTH} deep")
    digest = str(entry["digest"])
    document = _parse(_read_blob(documents, digest, source), f"{source}: {digest}")
    if "manifests" in document:
        for inner in _read_entries(document, source):
            yield from _follow(documents, inner, source, depth + 1)
        return
    config = document.get("config")
    known = _platform(entry)
    if isinstance(config, dict) and _DIGEST.fullmatch(str(config.get("digest"))):
        # The image's own configuration takes precedence over the index.
        text = _read_blob(documents, str(config["digest"]), source)
        known = architecture_of_config(text, f"{source}: {config['digest']}") or known
    yield ImageEntry(known, digest)


def _read_entries(index: dict[str, Any], source: str) -> list[dict[str, Any]]:
    entries = index.get("manifests")
    if isinstance(entries, list) and 0 < len(entries) <= MAX_ENTRIES:
        sound = (
            isinstance(entry, dict)
            and isinstance(entry.get("annotations") or {}, dict)
            and _DIGEST.fullmatch(str(entry.get("digest")))
            for entry in entries
        )
        if all(sound):
            return entries
    raise InputError(f"{source}: its index is not valid", next_step="inspect it: skopeo inspect --raw; then rebuild it")


def _attests(entry: dict[str, Any]) -> bool:
    """Return whether an entry is an attestation, which builders add for the platform `unknown`."""
    platform = entry.get("platform")
    return isinstance(platform, dict) and platform.get("os") == "unknown"


def _platform(entry: dict[str, Any]) -> str | None:
    platform = entry.get("platform")
    return _uname(platform.get("architecture")) if isinstance(platform, dict) else None


def _uname(name: Any) -> str | None:
    return _UNAMES.get(name, name[:40]) if isinstance(name, str) and name else None


def _read_blob(documents: Documents, digest: str, source: str) -> bytes:
    """Read a document by its digest and check it."""
    text = documents.read(f"blobs/sha256/{digest.removeprefix('sha256:')}")
    if text is None:
        raise InputError(f"{source}: {digest} is missing", next_step="copy the image again, with all architectures")
    if len(text) <= MAX_DOCUMENT_BYTES and "sha256:" + hashlib.sha256(text).hexdigest() != digest:
        raise InputError(f"{source}: {digest} is damaged", next_step="copy the image again")
    return text


def _parse(text: bytes | None, source: str) -> dict[str, Any]:
    if text is None:
        raise InputError(f"{source} is missing", next_step="copy or build the image again")
    if len(text) > MAX_DOCUMENT_BYTES:
        raise InputError(f"{source} has more than {MAX_DOCUMENT_BYTES} bytes, the limit for such a document")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise InputError(f"{source} is not a JSON object", next_step="copy or build the image again")
    return document
