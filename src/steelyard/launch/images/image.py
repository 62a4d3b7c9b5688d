"""Inspect a container image before anything is queued: architecture, digest and torch. Starts no run.

Images are files (Apptainer's SIF, an OCI layout as a folder or archive, a folder with a root file system) or names
that Podman, Docker or a registry know. What a login node cannot see stays unknown, with the reason.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steelyard.doctor.node import Check
from steelyard.doctor.torch_build import elf_machine
from steelyard.errors import InputError, Problem, printable
from steelyard.launch.campaign import Image
from steelyard.launch.images import oci
from steelyard.launch.images.ask import MAX_WORDS, ask, torch_in
from steelyard.launch.images.sif import is_sif, sif_architecture

if TYPE_CHECKING:
    from steelyard.inputs.site import Place

# Common programs: any of them shows the architecture of a root file system.
_PROGRAMS = ("bin/sh", "usr/bin/env", "bin/bash", "usr/bin/dash", "usr/bin/busybox", "usr/bin/python3")
_STEPS = 100
_PODMAN_NAME = re.compile(r"(/[a-z0-9]+(([._]|__|-+)[a-z0-9]+)*)+", re.ASCII)


@dataclass(frozen=True)
class _SeenImage:
    """An image as far as it can be inspected from here."""

    reference: str
    architecture: str | None
    digest: str | None = None
    file: Path | None = None
    """The file whose digest is that of the image."""
    here: bool = False
    """Whether this machine could start it without fetching it."""
    why: str = ""


def look_at_image(place: Place) -> Image | None:
    """Return the image for the nodes; None without a container. InputError if it is for another architecture."""
    name = _require_name(place)
    if name is None:
        return None
    seen = _see(place, name)
    _refuse_other_architecture(place, name, seen)
    torch = torch_in(place, seen.reference, seen.architecture, here=seen.here)
    digest = seen.digest
    if seen.file is not None:
        with seen.file.open("rb") as file:
            digest = "sha256:" + hashlib.file_digest(file, "sha256").hexdigest()
    why = "; ".join(text for text in (seen.why, torch.why) if text)
    return Image(
        name=name,
        reference=seen.reference,
        architecture=seen.architecture,
        digest=digest,
        torch=torch.text,
        unknown=why[:MAX_WORDS],
    )


def check_image(place: Place) -> Check:
    """Check that the image fits the nodes. The digest is not computed: it takes long for a large file."""
    try:
        name = _require_name(place)
        if name is None:
            return Check("container image", "ok", "none is used")
        seen = _see(place, name)
        _refuse_other_architecture(place, name, seen)
        torch = torch_in(place, seen.reference, seen.architecture, here=seen.here)
    except InputError as error:
        said = "; ".join(error.lines)
        return Check("container image", "wrong", printable(said), printable(error.next_step or ""))
    if torch.broken:
        fix = "use an image with torch for the nodes' devices"
        return Check("container image", "wrong", f"{name}: {torch.why}", fix)
    known = f"{name}: {seen.architecture or 'architecture unknown'}, torch {torch.text or 'unknown'}"
    why = "; ".join(text for text in (seen.why, torch.why) if text)
    if seen.architecture is None:
        fix = "compare the architecture of the image with `uname -m` on a node"
        return Check("container image", "note", f"{known} ({why})", fix)
    return Check("container image", "ok", f"{known} ({why})" if why else known)


def _require_name(place: Place) -> str | None:
    container = place.site.container
    needed = container.runtime != "none"
    if place.image is None and needed:
        there = ", ".join(container.images) or "none"
        problem = Problem(
            "container.images", f"there is no image for {place.pool.architecture}", f"a name or path (now: {there})"
        )
        raise InputError(
            f"there is no image for the nodes of {place.site.name}:{place.pool_name}",
            problems=(problem,),
            next_step=f'{place.pool.architecture} = "IMAGE" in [container.images]',
        )
    return place.image


# -- inspect ------------------------------------------------------------------------------------------------------


def _see(place: Place, name: str) -> _SeenImage:
    runtime = place.site.container.runtime
    if runtime in ("shifter", "pyxis"):
        return _SeenImage(name, None, why=f"images of {runtime} cannot be inspected from here")
    transport, _, rest = name.partition(":")
    if runtime != "none":
        if transport in ("oci", "oci-archive") and rest.startswith("/"):
            # The tag comes after the last colon; a path that exists as a whole has none.
            path, _, tag = rest.rpartition(":")
            if path and "/" not in tag and not Path(rest).exists():
                return _see_layout(place, name, Path(path), tag)
            return _see_layout(place, name, Path(rest), None)
        if name.startswith("/"):
            return _see_path(place, name)
        if place.site.container.family == "apptainer" and "://" not in name:
            raise InputError(
                f"the image {name} is not an absolute path",
                next_step="give the full path, or a name with docker:// before it",
            )
    return _see_name(place, name)


def _see_path(place: Place, name: str) -> _SeenImage:
    path, runtime = Path(name), place.site.container.family
    try:
        if path.is_file() and is_sif(path):
            if runtime != "apptainer":
                raise _unfit(name, runtime, "an Apptainer image", "apptainer, or an image in OCI layout")
            return _SeenImage(name, sif_architecture(path), file=path, here=True)
        if (
            path.is_dir()
            and not (path / "oci-layout").is_file()
            and any((path / part).is_dir() for part in ("usr", "bin"))
        ):
            if runtime == "docker":
                raise _unfit(
                    name,
                    runtime,
                    "a folder with a root file system",
                    f"docker import: tar -C {name} -c . | docker import - NAME",
                )
            architecture = next((machine for part in _PROGRAMS if (machine := _machine_below(path, part))), None)
            why = "a root file system has no digest" if architecture else "no known program in the root file system"
            return _SeenImage(str(path), architecture, here=True, why=why)
    except OSError as error:
        raise InputError(f"the image {name} cannot be read: {error.strerror}") from None
    if not path.exists():
        raise InputError(
            f"the image {name} does not exist",
            next_step="apptainer build IMAGE.sif, or correct the path in [container.images]",
        )
    return _see_layout(place, name, path, None)


def _machine_below(root: Path, part: str) -> str | None:
    """Return the machine type of a program in a root file system. Links are resolved as inside the container."""
    done: list[str] = []
    todo = part.split("/")[::-1]
    for _ in range(_STEPS):
        if not todo:
            path = root.joinpath(*done)
            return elf_machine(path) if path.is_file() else None
        step = todo.pop()
        link = root.joinpath(*done, step)
        if step == "..":
            done = done[:-1]
        elif link.is_symlink():
            target = str(link.readlink())
            done = [] if target.startswith("/") else done
            todo += target.split("/")[::-1]
        elif step not in ("", "."):
            done.append(step)
    return None


def _see_layout(place: Place, name: str, path: Path, tag: str | None) -> _SeenImage:
    runtime, wanted = place.site.container.runtime, place.pool.architecture
    if runtime == "docker":
        raise _unfit(name, runtime, "an OCI layout", f"a name, after: skopeo copy oci:{path} docker-daemon:NAME:TAG")
    try:
        with oci.open_layout(path) as documents:
            if documents is None:
                raise InputError(
                    f"{path} is not a known kind of image: neither SIF, nor OCI layout, nor root file system",
                    next_step=f"if it was made by `docker save`: skopeo copy docker-archive:{path} oci-archive:NEW.tar",
                )
            one = oci.choose(oci.images_in(documents, tag, str(path)), wanted, str(path))
    except OSError as error:
        raise InputError(f"the image {path} cannot be read: {error.strerror}") from None
    transport = "oci" if path.is_dir() else "oci-archive"
    if place.site.container.family == "podman" and transport == "oci" and not _PODMAN_NAME.fullmatch(str(path)):
        raise InputError(
            f"Podman cannot derive an image name from the folder {path}",
            next_step="use a folder with lower-case letters and digits, and single . _ - between them, or an archive",
        )
    reference = f"{transport}:{path}" + (f":{tag}" if tag else "")
    return _SeenImage(reference, one.architecture, one.digest)


def _unfit(name: str, runtime: str, what: str, valid: str) -> InputError:
    problem = Problem("container.runtime", f"{runtime} cannot start {what}", valid)
    return InputError(f"{runtime} cannot start the image {name}", problems=(problem,))


def _see_name(place: Place, name: str) -> _SeenImage:
    """Inspect an image by name: first with the local Podman or Docker, then in the registry."""
    runtime, wanted = place.site.container.family, place.pool.architecture
    bare = name.removeprefix("docker://")
    if runtime == "apptainer" and bare == name:
        return _SeenImage(name, None, why=f"{name.partition(':')[0]} images cannot be inspected from here")
    local = _see_local(runtime, bare, wanted) if runtime in ("podman", "docker") else None
    if local is not None and local.architecture == wanted:
        return local
    registered = _see_registered(bare, wanted, "docker://" if runtime == "apptainer" else "")
    if local is not None and registered.architecture != wanted:
        return local
    return registered


def _see_local(runtime: str, name: str, wanted: str) -> _SeenImage | None:
    """Inspect the image with this machine's Podman or Docker; None if it is not there."""
    if shutil.which(runtime) is None:
        return None
    if runtime == "podman" and ask([runtime, "manifest", "exists", "--", name]).text is not None:
        answer = ask([runtime, "manifest", "inspect", "--", name])
        images = oci.images_of_raw(answer.text, name) if answer.text is not None else None
        if images is not None:
            one = oci.choose(images, wanted, name)
            return _SeenImage(f"{_without_tag(name)}@{one.digest}", one.architecture, one.digest, here=True)
    answer = ask([runtime, "image", "inspect", "--", name])
    try:
        entries = json.loads(answer.text or b"")
    except (ValueError, RecursionError):
        return None
    found_one = isinstance(entries, list) and entries and isinstance(entries[0], dict)
    return _read_inspection(entries[0]) if found_one else None


def _read_inspection(entry: dict[str, Any]) -> _SeenImage:
    architecture = oci.architecture_of_config(json.dumps({"architecture": entry.get("Architecture")}).encode(), "image")
    given = entry.get("RepoDigests")
    names = [one for one in given if isinstance(one, str) and "@sha256:" in one] if isinstance(given, list) else []
    digest = entry.get("Digest")
    if not isinstance(digest, str):
        digest = names[0].partition("@")[2] if names else None
    # Podman also lists the name with the digest of the index; what is started is the image of one architecture.
    named = [one for one in names if digest is not None and one.endswith(digest)] or names
    identity = str(entry.get("Id") or "")
    return _SeenImage((named[0] if named else identity)[:1000], architecture, digest or identity or None, here=True)


def _see_registered(name: str, wanted: str, prefix: str) -> _SeenImage:
    """Inspect an image in its registry."""
    unknown = _SeenImage(prefix + name, None)
    if shutil.which("skopeo") is None:
        return replace(unknown, why="skopeo, which queries a registry, is not installed here")
    answer = ask(["skopeo", "inspect", "--raw", "--", f"docker://{name}"])
    if answer.text is None:
        return replace(unknown, why=f"skopeo: {answer.why}")
    images = oci.images_of_raw(answer.text, name)
    if images is None:
        config = ask(["skopeo", "inspect", "--config", "--", f"docker://{name}"])
        architecture = None if config.text is None else oci.architecture_of_config(config.text, name)
        one = oci.ImageEntry(architecture, "sha256:" + hashlib.sha256(answer.text).hexdigest())
    else:
        one = oci.choose(images, wanted, name)
    return _SeenImage(f"{prefix}{_without_tag(name)}@{one.digest}", one.architecture, one.digest)


def _without_tag(name: str) -> str:
    """Remove digest and tag from a name; a colon before a slash belongs to the registry's port."""
    name = name.partition("@")[0]
    start, colon, tag = name.rpartition(":")
    return start if colon and "/" not in tag else name


def _refuse_other_architecture(place: Place, name: str, seen: _SeenImage) -> None:
    wanted = place.pool.architecture
    if seen.architecture in (None, wanted):
        return
    field = f"pools.{place.pool_name}.image" if place.pool.image else f"container.images.{wanted}"
    problem = Problem(field, f"{name} is for {seen.architecture}", f"an image for {wanted}")
    where = f"{place.site.name}:{place.pool_name}"
    if place.site.container.family == "apptainer":
        step = f"use an image for {wanted}; on a node of {where}: apptainer build {wanted}.sif DEFINITION"
    else:
        tool = "docker" if place.site.container.runtime == "docker" else "podman"
        step = f"use an image for {wanted}: {tool} pull --platform=linux/{oci.GO_NAMES[wanted]} NAME"
    raise InputError(
        f"the image is for {seen.architecture}, but the nodes of {where} are {wanted}: it cannot start there",
        problems=(problem,),
        next_step=step,
    )
