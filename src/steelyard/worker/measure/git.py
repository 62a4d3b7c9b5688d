"""The commit of the measured code and whether its files were changed, without running a program of the repository.

A repository's configuration can name programs that git runs: filters, hooks, a file system monitor, those of
submodules and included files. A checkout may come from anybody. So we find the repository and its commit ourselves,
and git compares files with it in an empty git directory of our own: it reads the objects and a copy of the index, and
no configuration but ours.
"""

from __future__ import annotations

import os
import re
import stat
import subprocess
import tempfile
from pathlib import Path
from typing import Final

GIT_LIMIT_S: Final = 2.0
MAX_POINTER_BYTES: Final = 4096
MAX_REFS_BYTES: Final = 1 << 24
MAX_INDEX_BYTES: Final = 1 << 27
_COMMIT: Final = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
# No part of a name may be '..' or empty, so that it stays inside the repository.
_BRANCH: Final = re.compile(r"ref: (refs(?:/(?!\.)[^\x00-\x20\x7f/\\:]+)+)")
# A change of the executable bit is not counted: some file systems have none.
_CONFIG: Final = """[core]
    repositoryformatversion = {version}
    bare = false
    fileMode = false
    fsmonitor = false
    untrackedCache = false
    hooksPath = /dev/null
    attributesFile = /dev/null
    excludesFile = /dev/null
[status]
    renames = false
[extensions]
    objectFormat = {format}
"""


def git_facts(folder: Path) -> dict[str, str]:
    """Return the commit of a folder's repository and whether tracked files were changed; empty without one.

    Submodules are not looked at. Where a filter such as that of Git LFS applies to files that differ, only the commit
    is returned: without running the filter nobody knows whether they were changed.
    """
    repository = _find(folder.resolve())
    commit = _commit(repository[1]) if repository is not None else None
    if repository is None or commit is None:
        return {}
    changed = _changed(*repository, commit)
    if changed is None:
        return {"git.commit": commit}
    return {"git.commit": commit, "git.dirty": f"yes: {changed} files" if changed else "no"}


def _find(folder: Path) -> tuple[Path, Path] | None:
    """Return the top folder of the checkout and its git directory."""
    for top in (folder, *folder.parents):
        entry = top / ".git"
        if entry.is_dir():
            return top, entry
        if entry.is_file():
            kind, _, place = _line(entry).partition(": ")
            return (top, top / place) if kind == "gitdir" and place else None
    return None


def _common(git: Path) -> Path:
    """Return the directory with objects and branches, which all working trees of a repository share."""
    return git / (_line(git / "commondir") or ".")


def _commit(git: Path) -> str | None:
    text = _line(git / "HEAD")
    branch = _BRANCH.fullmatch(text)
    if branch is not None:
        text = _line(_common(git) / branch[1]) or _packed(_common(git), branch[1])
    return text if _COMMIT.fullmatch(text) else None


def _packed(common: Path, branch: str) -> str:
    """Return the commit of a branch from the file that has many; empty: not there."""
    for line in (_read(common / "packed-refs", MAX_REFS_BYTES) or b"").splitlines():
        commit, _, name = line.partition(b" ")
        if name == os.fsencode(branch):
            return commit.decode("ascii", "replace")
    return ""


def _line(path: Path) -> str:
    """Return the text of a file of one line; empty if it is not one."""
    return os.fsdecode(_read(path, MAX_POINTER_BYTES) or b"").rstrip("\r\n")


def _read(path: Path, limit: int) -> bytes | None:
    """Return a regular file's bytes; None: there is none, or it is larger than the limit."""
    try:
        # A pipe must not block us.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY), "rb") as file:
            state = os.fstat(file.fileno())
            if stat.S_ISREG(state.st_mode) and state.st_size <= limit:
                return file.read(limit)
    except (OSError, ValueError):
        pass
    return None


def _changed(top: Path, git: Path, commit: str) -> int | None:
    """Count the tracked files that differ from the commit; None: unknown."""
    try:
        with tempfile.TemporaryDirectory(prefix="steelyard-git-") as scratch:
            own = Path(scratch)
            _make_own(own, git, commit)
            # As an option: `ignore = none` in .gitmodules goes before the configuration, and git would then run another
            # git in the submodule, with the configuration there.
            words = ("status", "--porcelain", "-z", "--untracked-files=no", "--ignore-submodules=all")
            entries = _git(own, top, _common(git), *words)
            names = b"".join(entry[3:] + b"\0" for entry in entries.split(b"\0") if entry)
            attributes = _git(own, top, _common(git), "check-attr", "--stdin", "-z", "filter", given=names)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    # Name, "filter" and its value for each file.
    if any(value not in (b"unspecified", b"unset") for value in attributes.split(b"\0")[2::3]):
        return None
    return names.count(b"\0")


def _make_own(own: Path, git: Path, commit: str) -> None:
    """Make a git directory with our configuration, the same commit, and copies of the index and the attributes."""
    sha256 = len(commit) == 64
    config = _CONFIG.format(version=int(sha256), format="sha256" if sha256 else "sha1")
    (own / "config").write_text(config if sha256 else config.partition("[extensions]")[0], encoding="ascii")
    (own / "HEAD").write_text(f"{commit}\n", encoding="ascii")
    for name in ("refs", "objects", "info"):
        (own / name).mkdir()
    (own / "info" / "attributes").write_bytes(_read(_common(git) / "info" / "attributes", MAX_INDEX_BYTES) or b"")
    if not (git / "index").exists():
        return
    index, state = _read(git / "index", MAX_INDEX_BYTES), (git / "index").stat()
    if index is None:
        raise ValueError("the index cannot be read, or is too large")
    (own / "index").write_bytes(index)
    # git compares the contents of files that are not older than the index.
    os.utime(own / "index", ns=(state.st_atime_ns, state.st_mtime_ns))


def _git(own: Path, top: Path, common: Path, *words: str, given: bytes = b"") -> bytes:
    # Nothing else of our environment: many variables of git name programs.
    variables = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
    variables |= {
        "HOME": str(own),
        "XDG_CONFIG_HOME": str(own),
        "LC_ALL": "C",
        "GIT_DIR": str(own),
        "GIT_WORK_TREE": str(top),
        "GIT_OBJECT_DIRECTORY": str(common / "objects"),
        "GIT_INDEX_FILE": str(own / "index"),
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_SYSTEM": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_TERMINAL_PROMPT": "0",
    }
    done = subprocess.run(
        ["git", *words], cwd=top, env=variables, input=given, capture_output=True, timeout=GIT_LIMIT_S, check=True
    )
    return done.stdout
