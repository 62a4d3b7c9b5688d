"""Hostile surroundings: races that swap files for links, git repositories, archives unpacked with tar."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import shutil
import signal
import subprocess
from typing import TYPE_CHECKING, Final

from foreign_cases import Case, left, put

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from foreign_folder import Genuine

# -- races


def swap_for_ever(first: Path, second: Path) -> None:
    """Exchange two names as fast as possible."""
    library = ctypes.CDLL(None)
    a, b = os.fsencode(first), os.fsencode(second)
    while True:
        library.renameat2(-100, a, -100, b, 2)


@contextlib.contextmanager
def swapping(genuine: Genuine, name: str, kind: str) -> Iterator[None]:
    """Swap a path for a link while something else happens."""
    path, beside = genuine.sandbox.results / name, genuine.sandbox.scratch / "swap" / "beside"
    targets = {"file": genuine.sandbox.home / ".bashrc", "folder": genuine.sandbox.elsewhere}
    if not os.path.lexists(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    beside.unlink(missing_ok=True)
    beside.symlink_to(targets[kind])
    process = multiprocessing.get_context("fork").Process(target=swap_for_ever, args=(path, beside), daemon=True)
    process.start()
    try:
        yield
    finally:
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join()


def races(genuine: Genuine, times: int) -> Iterator[Case]:
    """Swap a file or folder for a link between check and use."""
    run, campaign = f"runs/s/{genuine.run}", "campaigns/c/0001"
    waiting = left(genuine.slurm, genuine.sandbox.results)
    reads = ("show STUDY", "show RUN --derive", "energy", "audit", "status")
    for name, kind in (
        (run, "folder"), (f"{run}/raw", "folder"), (f"{run}/record.json", "file"),
        (f"{run}/raw/events-00000.jsonl", "file"), (f"{run}/raw/steps-00000.bin", "file"),
        ("runs", "folder"), ("runs/s", "folder"),
    ):  # fmt: skip
        yield Case("race", f"{name}, read", lambda _: None, reads, races=(name, kind), times=times)
    for name, kind in (
        (campaign, "folder"), (f"{campaign}/runs", "folder"), (f"{campaign}/ended.jsonl", "file"), (waiting, "folder"),
        (f"{waiting}/raw", "folder"), (f"{campaign}/unsettled.json", "file"), (f"{campaign}/jobs/001", "folder"),
        (f"{campaign}/jobs/001/job.sh", "file"), ("campaigns/c", "folder"), ("runs/c", "folder"), ("runs", "folder"),
    ):  # fmt: skip
        for own in (False, True):
            verbs = ("status", "status --cancel")
            yield Case(
                "race",
                f"{name}{', own' if own else ''}",
                lambda _: None,
                verbs,
                own=own,
                races=(name, kind),
                times=times,
            )
    for name, kind in (("runs", "folder"), ("runs/s", "folder"), (run, "folder"), (f"{run}/raw", "folder"),
                       (f"{run}/record.json", "file"), ("archive", "folder"), (".scratch", "folder")):  # fmt: skip
        yield Case("race", f"{name}, archive", lambda _: None, ("archive",), races=(name, kind), times=times)
    segment = f"archive/{next((genuine.sandbox.results / 'archive').iterdir()).name}"
    for name, kind in (("archive", "folder"), (segment, "folder"), (f"{segment}/runs.tar", "file"),
                       (f"{segment}/index", "file"), (f"{segment}/runs.parquet", "file")):  # fmt: skip
        verbs = ("query", "show ARCHIVED --derive")
        yield Case(
            "race",
            f"{name.replace(segment, 'archive/SEGMENT')}, read",
            lambda _: None,
            verbs,
            races=(name, kind),
            times=times,
        )
    for name in (".scratch", "runs/n", "runs"):
        yield Case(
            "race", f"{name}, run", lambda _: None, ("study", "run"), races=(name, "folder"), times=max(1, times // 8)
        )


# -- hostile git repositories, in the working directory


def make_repository(genuine: Genuine) -> Path:
    """A repository with a submodule, a file that has changed, and room for a configuration."""
    repository = genuine.sandbox.work / "repository"
    if not repository.exists():
        inner = genuine.sandbox.work / "module"
        who = ("-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "protocol.file.allow=always")
        variables = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1"}

        def git(*words: str, where: Path) -> None:
            subprocess.run(["git", *who, *words], cwd=where, env=variables, check=True, capture_output=True)

        for folder in (inner, repository):
            folder.mkdir()
            git("init", "-q", ".", where=folder)
            (folder / "file.txt").write_text("one\n")
            (folder / ".gitattributes").write_text("*.txt filter=evil diff=evil merge=evil\n")
            git("add", ".", where=folder)
            git("commit", "-q", "-m", "first", where=folder)
        git("submodule", "add", "-q", str(inner), "inner", where=repository)
        git("commit", "-q", "-m", "second", where=repository)
        for path in (repository / "file.txt", repository / "inner" / "file.txt"):
            path.write_text("two\n")
    return repository


# Forms from published advisories: CVE-2022-24765 (fsmonitor in a folder of somebody else), CVE-2021-21300 (filters),
# CVE-2024-32004 (partial clones), and the write-ups on bare repositories inside of others.
_GIT: Final = {
    "a filter": "[filter \"evil\"]\n\tclean = {m}\n\tsmudge = {m}\n\tprocess = {m}\n\trequired = true\n",
    "a filter without process": "[filter \"evil\"]\n\tclean = {m}\n\trequired = true\n",
    "fsmonitor": "[core]\n\tfsmonitor = {m}\n",
    "hooks": "[core]\n\thooksPath = {hooks}\n",
    "a pager and an editor": "[core]\n\tpager = {m}\n\teditor = {m}\n\taskPass = {m}\n\tsshCommand = {m}\n"
    "\tgitProxy = {m}\n[pager]\n\tstatus = {m}\n",
    "aliases": "[alias]\n\tstatus = !{m}\n\trev-parse = !{m}\n\tdiff = !{m}\n",
    "an external diff": "[diff]\n\texternal = {m}\n[diff \"evil\"]\n\tcommand = {m}\n\ttextconv = {m}\n",
    "credentials": "[credential]\n\thelper = !{m}\n[gpg]\n\tprogram = {m}\n[commit]\n\tgpgSign = true\n",
    "alternates": "[core]\n\talternateRefsCommand = {m}\n[uploadpack]\n\tpackObjectsHook = {m}\n",
    "a partial clone": "[core]\n\trepositoryFormatVersion = 1\n\tsshCommand = {m}\n[extensions]\n"
    "\tpartialClone = origin\n[remote \"origin\"]\n\turl = ssh://host/x\n\tpromisor = true\n"
    "\tuploadpack = {m}\n\tpartialclonefilter = blob:none\n",
    "a partial clone by ext": "[core]\n\trepositoryFormatVersion = 1\n[extensions]\n\tpartialClone = origin\n"
    "[protocol \"ext\"]\n\tallow = always\n"
    "[remote \"origin\"]\n\turl = ext::{m}\n\tpromisor = true\n\tpartialclonefilter = tree:0\n",
}  # fmt: skip


def git_case(what: str, where: str) -> Case:
    """A configuration at one of the places from which git reads it."""
    text = _GIT[what]

    def plant(genuine: Genuine) -> None:
        repository = make_repository(genuine)
        hooks = genuine.sandbox.bin
        for hook in (
            "post-index-change",
            "pre-commit",
            "post-checkout",
            "reference-transaction",
            "fsmonitor-watchman",
            "pre-auto-gc",
        ):
            shutil.copy(genuine.sandbox.marker, hooks / hook)
        lines = text.format(m=genuine.sandbox.marker, hooks=hooks)
        git = repository / ".git"
        if where == "worktree":
            with (git / "config").open("a") as file:
                file.write("[core]\n\trepositoryFormatVersion = 1\n[extensions]\n\tworktreeConfig = true\n")
            (git / "config.worktree").write_text(lines)
        elif where == "module":
            with (git / "modules" / "inner" / "config").open("a") as file:
                file.write(lines)
            # Git looks at submodules only where it is asked to.
            with (repository / ".gitmodules").open("a") as file:
                file.write("\tignore = none\n")
        elif where == "include":
            (git / "more").write_text(lines)
            with (git / "config").open("a") as file:
                file.write('[include]\n\tpath = more\n[includeIf "gitdir:**"]\n\tpath = more\n')
        else:
            with (git / "config").open("a") as file:
                file.write(lines)
        if "partial" in what:
            commit = subprocess.run(
                ["/usr/bin/git", "rev-parse", "HEAD^{tree}"],
                cwd=repository,
                capture_output=True,
                text=True,
                check=False,
            )
            tree = commit.stdout.strip()
            if tree:
                (git / "objects" / tree[:2] / tree[2:]).unlink(missing_ok=True)

    return Case("git", f"{what}, in {where}", plant, ("run",), cwd="repository")


def _bare(genuine: Genuine) -> None:
    """A repository whose folder is also a bare one: files that look like .git beside the measured code."""
    repository = make_repository(genuine)
    inside = repository / "code"
    shutil.copytree(repository / ".git", inside, ignore=shutil.ignore_patterns("modules"))
    with (inside / "config").open("a") as file:
        file.write(
            f"[core]\n\tbare = false\n\tworktree = .\n\tfsmonitor = {genuine.sandbox.marker}\n"
            f'[filter "evil"]\n\tclean = {genuine.sandbox.marker}\n'
        )


def _other_place(genuine: Genuine) -> None:
    """A file .git that leads to a configuration elsewhere."""
    repository = make_repository(genuine)
    moved = genuine.sandbox.work / "moved.git"
    (repository / ".git").rename(moved)
    (repository / ".git").write_text(f"gitdir: {moved}\n")
    with (moved / "config").open("a") as file:
        file.write(
            f"[core]\n\tworktree = {repository}\n"
            f'[filter "evil"]\n\tclean = {genuine.sandbox.marker}\n\trequired = true\n'
        )


def repositories() -> Iterator[Case]:
    """Programs in the configuration of the repository in which a user runs something."""
    for what in _GIT:
        for where in ("config", "worktree", "module", "include"):
            yield git_case(what, where)
    yield Case("git", "a bare repository in a folder", _bare, ("run",), cwd="repository/code")
    yield Case("git", "a file .git that leads elsewhere", _other_place, ("run",), cwd="repository")


# -- archives, as people exchange them


def archives(genuine: Genuine) -> Iterator[Case]:
    """Folders that were packed and unpacked with tar, with links in them."""
    run = f"runs/s/{genuine.run}"
    for options in ((), ("--format=pax",), ("--format=ustar",), ("--hard-dereference",)):
        for name, kind in (
            ("runs", "content"), ("runs/s", "relative"), (run, "content"), (f"{run}/record.json", "hard"),
            (f"{run}/raw", "relative"), ("campaigns/c/0001", "content"), ("campaigns/c/0001/ended.jsonl", "bashrc"),
            ("campaigns/k/0001/runs", "content"),
        ):  # fmt: skip

            def plant(genuine: Genuine, name: str = name, kind: str = kind, options: tuple[str, ...] = options) -> None:
                put(genuine, name, kind)
                archive, results = genuine.sandbox.scratch / "x.tar", genuine.sandbox.results
                subprocess.run(["tar", *options, "-cf", str(archive), "-C", str(results), "."], check=True)
                shutil.rmtree(results)
                results.mkdir()
                subprocess.run(["tar", "-xf", str(archive), "-C", str(results)], check=True)

            verbs = ("show", "show STUDY", "best", "audit", "status", "status --cancel", "study --site --dry-run")
            yield Case("archive", f"{kind} at {name} {' '.join(options)}", plant, verbs)
