"""Make the images of the container figure: a root file system with only Python, and an index of two architectures.

Both are made once, in a cache folder (debootstrap takes about a minute), also with `python benchmarks/lib/rootfs.py`.
numpy, torch and the imports of torch are mounted into it from this environment.
"""

from __future__ import annotations

import argparse
import fcntl
import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

SUITES: Final = {(3, 11): "bookworm", (3, 13): "trixie"}
"""The Debian release with the Python version of this environment."""
MIRROR: Final = "http://deb.debian.org/debian"
TAG: Final = "v1"
OTHERS: Final = {"x86_64": "aarch64", "aarch64": "x86_64"}
GO_NAMES: Final = {"x86_64": "amd64", "aarch64": "arm64"}
INSIDE: Final = "/usr/lib/python3/dist-packages"
# On machines that are containers themselves, Podman must not raise limits.
PODMAN_OPTIONS: Final = ("--runtime=runc", "--ulimit=nofile=4096:4096", "--ulimit=nproc=4096:4096")


@dataclass(frozen=True)
class Made:
    """The images and where they are."""

    root: Path
    index: Path
    """An OCI layout: the root file system for this machine, and a small image for the other architecture."""
    storage: tuple[str, ...]
    """Options that keep the files of Podman in the cache too."""
    digests: dict[str, str]
    """Digests of the images in the index by architecture, as skopeo reports them."""


def make(cache: Path) -> Made:
    """Make everything that does not exist yet."""
    cache.mkdir(parents=True, exist_ok=True)
    storage = (f"--root={cache}/storage", f"--runroot={cache}/run")
    index = cache / "index"
    # Others on this machine may be making it, too: they share the folder.
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        root = _root(cache)
        if not (cache / "digests").is_file():
            _index(cache, root, index, storage)
    words = (cache / "digests").read_text(encoding="utf-8").split()
    return Made(root, index, storage, dict(zip(words[::2], words[1::2], strict=True)))


def default_cache() -> Path:
    """Return the cache folder. debootstrap needs root, so it is in root's home."""
    return Path(os.environ.get("STEELYARD_BENCHMARK_CACHE") or "/var/cache/steelyard-bench")


def _root(cache: Path) -> Path:
    root, part = cache / "root", cache / "root.part"
    if not root.is_dir():
        if (suite := SUITES.get(sys.version_info[:2])) is None:
            sys.exit(f"no Debian release is known with Python {sys.version_info[0]}.{sys.version_info[1]}")
        shutil.rmtree(part, ignore_errors=True)
        _run("debootstrap", "--variant=minbase", "--include=python3", suite, str(part), MIRROR)
        # Packages of the system would be found next to the mounted ones.
        shutil.rmtree(part / "var/cache/apt", ignore_errors=True)
        part.rename(root)
    return root


def _index(cache: Path, root: Path, index: Path, storage: tuple[str, ...]) -> None:
    shutil.rmtree(index, ignore_errors=True)
    own = platform.machine()
    small = cache / "small"
    small.mkdir(exist_ok=True)
    (small / "about").write_text("an image for the other architecture: it is never started\n", encoding="utf-8")
    name = "localhost/steelyard-bench"
    for architecture, tree in {own: root, OTHERS[own]: small}.items():
        go = GO_NAMES[architecture]
        work = _run("buildah", *storage, "from", "scratch").strip()
        _run("buildah", *storage, "copy", "--quiet", work, str(tree), "/")
        _run("buildah", *storage, "config", f"--arch={go}", "--os=linux", "--env=PATH=/usr/bin:/bin", work)
        _run("buildah", *storage, "commit", "--quiet", "--format=oci", work, f"{name}:{go}")
        _run("buildah", *storage, "rm", work)
    _run("buildah", *storage, "manifest", "create", f"{name}:all")
    for go in GO_NAMES.values():
        _run("buildah", *storage, "manifest", "add", f"{name}:all", f"containers-storage:{name}:{go}")
    _run("buildah", *storage, "manifest", "push", "--all", f"{name}:all", f"oci:{index}:{TAG}")
    said = json.loads(_run("skopeo", "inspect", "--raw", f"oci:{index}:{TAG}"))
    unames = {go: uname for uname, go in GO_NAMES.items()}
    lines = [f"{unames[one['platform']['architecture']]} {one['digest']}\n" for one in said["manifests"]]
    (cache / "digests").write_text("".join(lines), encoding="utf-8")


def mounts() -> list[tuple[str, str]]:
    """Return source and target of numpy, torch and the imports of torch."""
    found: dict[str, Path] = {}
    for name in _needed("torch", "numpy"):
        distribution = importlib.metadata.distribution(name)
        for file in distribution.files or []:
            first = file.parts[0]
            # Skip command line programs. Keep the metadata: torch finds its backends with it.
            if first not in ("..", "__pycache__") and not first.endswith(".pth"):
                found[first] = Path(str(distribution.locate_file(first)))
    return [(str(path), f"{INSIDE}/{name}") for name, path in sorted(found.items()) if path.exists()]


def _needed(*names: str) -> list[str]:
    """Return the distributions and their dependencies on this machine."""
    todo, done = list(names), []
    while todo:
        name = todo.pop()
        if name in done:
            continue
        try:
            wanted = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        done.append(name)
        plain = [text for text in wanted if "extra ==" not in text]
        todo += [match.group() for text in plain if (match := re.match(r"[A-Za-z0-9._-]*[A-Za-z0-9]", text))]
    return done


def _run(*command: str) -> str:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cache", type=Path, default=default_cache(), help="where to make it")
    made = make(parser.parse_args().cache)
    print(f"{made.root}, {made.index}: {made.digests}; {len(mounts())} mounts")


if __name__ == "__main__":
    main()
