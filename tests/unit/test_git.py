"""The git state of the measured code: right for ordinary checkouts, and no program of a repository is ever run."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from conftest import HANG_S
from steelyard.worker.measure import git as git_module
from steelyard.worker.measure.git import git_facts

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run does not wait long for git. A test does: the machine may be busy."""
    monkeypatch.setattr(git_module, "GIT_LIMIT_S", HANG_S)


NAMES = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false", "-c", "init.defaultBranch=main")


def git(folder: Path, *words: str) -> str:
    allowed = ("-c", "protocol.file.allow=always", "-c", "advice.detachedHead=false")
    done = subprocess.run(["git", "-C", folder, *NAMES, *allowed, *words], check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository with two files and one commit, and a subfolder."""
    folder = tmp_path / "code"
    (folder / "sub").mkdir(parents=True)
    (folder / "model.py").write_text("1\n")
    (folder / "sub" / "data.py").write_text("2\n")
    git(folder, "init")
    git(folder, "add", ".")
    git(folder, "commit", "-m", "one")
    return folder


def by_git(folder: Path) -> dict[str, str]:
    changed = git(folder, "status", "--porcelain", "--untracked-files=no", "--no-renames").splitlines()
    return {
        "git.commit": git(folder, "rev-parse", "HEAD"),
        "git.dirty": f"yes: {len(changed)} files" if changed else "no",
    }


def change(folder: Path) -> None:
    (folder / "model.py").write_text("changed\n")


def same_size_at_once(folder: Path) -> None:
    """The change that only contents show: the same size, and no older than the index."""
    (folder / "model.py").write_text("3\n")
    state = (folder / ".git" / "index").stat()
    os.utime(folder / "model.py", ns=(state.st_mtime_ns, state.st_mtime_ns))


def stage(folder: Path) -> None:
    (folder / "new.py").write_text("3\n")
    git(folder, "add", "new.py")
    git(folder, "mv", "model.py", "renamed.py")


def delete(folder: Path) -> None:
    (folder / "model.py").unlink()


def untracked(folder: Path) -> None:
    (folder / "other.py").write_text("3\n")


def detached(folder: Path) -> None:
    git(folder, "checkout", "--detach")


def packed(folder: Path) -> None:
    git(folder, "checkout", "-b", "feature/one")
    git(folder, "pack-refs", "--all")
    git(folder, "gc")


def touched(folder: Path) -> None:
    os.utime(folder / "model.py", (1, 1))


def line_ends(folder: Path) -> None:
    (folder / ".gitattributes").write_text("*.py text eol=crlf\n")
    (folder / "model.py").write_text("1\r\n", newline="")


def no_index(folder: Path) -> None:
    (folder / ".git" / "index").unlink()


ORDINARY = (
    change, same_size_at_once, stage, delete, untracked, detached, packed, touched, line_ends, no_index
)  # fmt: skip


@pytest.mark.parametrize("prepare", ORDINARY)
def test_the_state_is_that_of_git(prepare: Callable[[Path], None], checkout: Path) -> None:
    assert git_facts(checkout) == by_git(checkout)
    prepare(checkout)
    before = sorted(path for path in (checkout / ".git").rglob("*"))
    assert git_facts(checkout) == git_facts(checkout / "sub") == by_git(checkout)
    assert sorted(path for path in (checkout / ".git").rglob("*")) == before


def test_other_working_trees_and_submodules(checkout: Path, tmp_path: Path) -> None:
    second, outer = tmp_path / "second", tmp_path / "outer"
    git(checkout, "worktree", "add", str(second))
    change(second)
    git(second, "commit", "-a", "-m", "two")
    (second / "sub" / "data.py").unlink()
    assert git_facts(second) == by_git(second)
    assert git_facts(checkout) == by_git(checkout)
    outer.mkdir()
    git(outer, "init")
    git(outer, "submodule", "add", str(checkout), "inner")
    git(outer, "commit", "-m", "outer")
    assert git_facts(outer) == by_git(outer)
    assert git_facts(outer / "inner") == by_git(outer / "inner")
    change(outer / "inner")
    assert git_facts(outer / "inner") == by_git(outer / "inner")
    # What is inside a submodule is not looked at from outside.
    assert git_facts(outer)["git.dirty"] == "no"


def test_sha256(tmp_path: Path) -> None:
    git(tmp_path, "init", "--object-format=sha256")
    (tmp_path / "model.py").write_text("1\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "one")
    assert git_facts(tmp_path) == by_git(tmp_path)
    change(tmp_path)
    assert git_facts(tmp_path) == by_git(tmp_path)


def test_no_commit_and_no_git(checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    assert git_facts(empty) == {}
    git(empty, "init")
    assert git_facts(empty) == {}
    commit = git(checkout, "rev-parse", "HEAD")
    monkeypatch.setattr(git_module, "MAX_INDEX_BYTES", 10)
    assert git_facts(checkout) == {"git.commit": commit}
    monkeypatch.undo()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert git_facts(checkout) == {"git.commit": commit}


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"ref: refs/heads/../../../outside",
        b"ref: refs/heads//outside",
        b"ref: /etc/passwd",
        b"ref: refs/heads/\0",
        b"$(touch ran)",
        b"a" * 39,
        b"\xff" * 40,
        b"ref: " * 2000,
    ],
)
def test_a_head_that_is_none(head: bytes, checkout: Path) -> None:
    (checkout / "outside").write_text("a" * 40)
    (checkout / ".git" / "HEAD").write_bytes(head)
    assert git_facts(checkout) == {}


def test_pipes_do_not_block(checkout: Path) -> None:
    for name in ("index", "HEAD"):
        (checkout / ".git" / name).unlink()
        os.mkfifo(checkout / ".git" / name)
        assert "git.dirty" not in git_facts(checkout)
    shutil.rmtree(checkout / ".git")
    os.mkfifo(checkout / ".git")
    assert git_facts(checkout) == {}


def test_of_filtered_files_only_the_commit(checkout: Path) -> None:
    """As with Git LFS: files that were not changed look changed if their filter does not run."""
    commit = {"git.commit": git(checkout, "rev-parse", "HEAD")}
    git(checkout, "config", "filter.upper.clean", "tr a-z A-Z")
    (checkout / ".gitattributes").write_text("*.bin filter=upper\n")
    (checkout / "weights.bin").write_text("abc\n")
    git(checkout, "add", ".")
    git(checkout, "commit", "-m", "two")
    os.utime(checkout / "weights.bin", (1, 1))
    assert git_facts(checkout) == {"git.commit": git(checkout, "rev-parse", "HEAD")} != commit
    # Without a difference in a file with a filter the state is known.
    (checkout / "weights.bin").write_text("ABC\n")
    change(checkout)
    assert git_facts(checkout)["git.dirty"] == "yes: 1 files"


# -- hostile repositories


class Hostile:
    """A checkout with a changed file, and a program that leaves a mark if it is run."""

    def __init__(self, checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.top, self.git, self.monkeypatch = checkout, checkout / ".git", monkeypatch
        self.mark = checkout.parent / "ran"
        self.program = checkout.parent / "program"
        self.program.write_text(f"#!/bin/sh\ntouch {self.mark}\ncat\n")
        self.program.chmod(0o755)
        self.attributes = "* filter=x diff=x merge=x\n"

    @property
    def config(self) -> str:
        """Every setting that names a program."""
        run = self.program
        return f"""
[core]
    fsmonitor = {run}
    hooksPath = {self.top.parent}/hooks
    sshCommand = {run}
    pager = {run}
    editor = {run}
    gitProxy = {run}
    askPass = {run}
    alternateRefsCommand = {run}
[pager]
    status = true
[credential]
    helper = {run}
[filter "x"]
    clean = {run}
    smudge = {run}
    process = {run}
    required = true
[diff]
    external = {run}
[diff "x"]
    textconv = {run}
    command = {run}
[merge "x"]
    driver = {run}
[alias]
    status = !{run}
    check-attr = !{run}
[gpg]
    program = {run}
[uploadpack]
    packObjectsHook = {run}
"""

    def add(self, file: Path, text: str) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a") as out:
            out.write(text)

    def filter_files(self) -> None:
        self.add(self.top / ".gitattributes", self.attributes)


def in_config(repo: Hostile) -> None:
    repo.add(repo.git / "config", repo.config)
    repo.filter_files()


def in_worktree_config(repo: Hostile) -> None:
    repo.add(repo.git / "config", "[extensions]\n\tworktreeConfig = true\n")
    repo.add(repo.git / "config.worktree", repo.config)
    repo.filter_files()


def in_include(repo: Hostile) -> None:
    repo.add(repo.git / "config", "[include]\n\tpath = ../more\n")
    repo.add(repo.top / "more", repo.config)
    repo.filter_files()


def in_include_if(repo: Hostile) -> None:
    repo.add(repo.git / "config", f'[includeIf "gitdir:{repo.top.parent}/"]\n\tpath = {repo.top}/more\n')
    repo.add(repo.top / "more", repo.config)
    repo.filter_files()


def in_info_attributes(repo: Hostile) -> None:
    repo.add(repo.git / "config", repo.config)
    repo.add(repo.git / "info" / "attributes", repo.attributes)


def fsmonitor(repo: Hostile) -> None:
    git(repo.top, "-c", f"core.fsmonitor={repo.program}", "update-index", "--fsmonitor")
    repo.mark.unlink(missing_ok=True)
    repo.add(repo.git / "config.worktree", f"[core]\n\tfsmonitor = {repo.program}\n")
    repo.add(repo.git / "config", "[extensions]\n\tworktreeConfig = true\n")


def hooks(repo: Hostile) -> None:
    for folder in (repo.git / "hooks", repo.top.parent / "hooks"):
        folder.mkdir(exist_ok=True)
        for name in ("post-index-change", "fsmonitor-watchman", "pre-commit", "post-checkout", "reference-transaction"):
            shutil.copy(repo.program, folder / name)
    repo.add(repo.git / "config", "[core]\n\tfsmonitor = .git/hooks/fsmonitor-watchman\n")
    os.utime(repo.top / "sub" / "data.py", (1, 1))


def submodule(repo: Hostile) -> None:
    inner = repo.top.parent / "inner"
    shutil.copytree(repo.top, inner)
    git(repo.top, "submodule", "add", str(inner), "part")
    git(repo.top, "commit", "-a", "-m", "part")
    modules = repo.git / "modules" / "part"
    repo.add(modules / "config", repo.config)
    repo.add(modules / "info" / "attributes", repo.attributes)
    for name in ("model.py", "sub/data.py"):
        os.utime(repo.top / "part" / name, (1, 1))
    change(repo.top / "part")
    repo.add(repo.top / ".gitmodules", f"\tupdate = !{repo.program}\n\tignore = none\n")


def submodule_that_asks_to_be_looked_at(repo: Hostile) -> None:
    """What .gitmodules says about a submodule goes before the configuration, but not before an option."""
    submodule(repo)
    modules = repo.top / ".gitmodules"
    # git ends at a program there, before it looks at anything.
    modules.write_text(modules.read_text().replace(f"update = !{repo.program}", ""))


def submodule_of_another_kind(repo: Hostile) -> None:
    """A nested repository with its own folder `.git`, as a submodule."""
    shutil.copytree(repo.top, repo.top / "part")
    git(repo.top, "add", "part")
    git(repo.top, "commit", "-m", "part")
    repo.add(repo.top / "part" / ".git" / "config", repo.config)
    repo.add(repo.top / "part" / ".git" / "info" / "attributes", repo.attributes)
    change(repo.top / "part")


def inside_submodule(repo: Hostile) -> None:
    submodule(repo)
    repo.top = repo.top / "part"


def linked_worktree(repo: Hostile) -> None:
    other = repo.top.parent / "other"
    git(repo.top, "worktree", "add", str(other))
    repo.add(repo.git / "config", "[extensions]\n\tworktreeConfig = true\n")
    repo.add(repo.git / "worktrees" / "other" / "config.worktree", repo.config)
    repo.top = other
    repo.filter_files()
    os.utime(other / "sub" / "data.py", (1, 1))


def global_config(repo: Hostile) -> None:
    home = repo.top.parent / "home"
    repo.add(home / ".gitconfig", repo.config)
    repo.add(home / "git" / "config", repo.config)
    repo.add(home / "git" / "attributes", repo.attributes)
    repo.monkeypatch.setenv("HOME", str(home))
    repo.monkeypatch.setenv("XDG_CONFIG_HOME", str(home))
    repo.filter_files()


def config_in_environment(repo: Hostile) -> None:
    pairs = {"core.fsmonitor": str(repo.program), "filter.x.clean": str(repo.program), "filter.x.required": "true"}
    repo.monkeypatch.setenv("GIT_CONFIG_COUNT", str(len(pairs)))
    for number, (key, value) in enumerate(pairs.items()):
        repo.monkeypatch.setenv(f"GIT_CONFIG_KEY_{number}", key)
        repo.monkeypatch.setenv(f"GIT_CONFIG_VALUE_{number}", value)
    repo.filter_files()


def parameters_in_environment(repo: Hostile) -> None:
    repo.monkeypatch.setenv("GIT_CONFIG_PARAMETERS", f"'filter.x.clean={repo.program}' 'core.fsmonitor={repo.program}'")
    for name in ("GIT_PAGER", "GIT_EDITOR", "GIT_SSH_COMMAND", "GIT_EXTERNAL_DIFF", "GIT_ASKPASS", "GIT_PROXY_COMMAND"):
        repo.monkeypatch.setenv(name, str(repo.program))
    repo.filter_files()


def other_folders_in_environment(repo: Hostile) -> None:
    programs = repo.top.parent / "programs"
    programs.mkdir()
    for name in ("git", "git-status", "git-check-attr"):
        shutil.copy(repo.program, programs / name)
    repo.monkeypatch.setenv("GIT_EXEC_PATH", str(programs))
    other = repo.top.parent / "foreign"
    shutil.copytree(repo.git, other)
    repo.add(other / "config", repo.config)
    for name in ("GIT_DIR", "GIT_COMMON_DIR"):
        repo.monkeypatch.setenv(name, str(other))
    repo.monkeypatch.setenv("GIT_TEMPLATE_DIR", str(other))
    repo.filter_files()


def alternates(repo: Hostile) -> None:
    other = repo.top.parent / "other"
    shutil.copytree(repo.git, other)
    repo.add(other / "config", repo.config)
    shutil.rmtree(repo.git / "objects")
    repo.add(repo.git / "objects" / "info" / "alternates", f"{other / 'objects'}\n")
    in_config(repo)


def partial_clone(repo: Hostile) -> None:
    """Objects are missing, and the remote that promises them is reached by a program."""
    repo.program.write_text(f"#!/bin/sh\ntouch {repo.mark}\n")
    repo.add(
        repo.git / "config",
        "[core]\n\trepositoryformatversion = 1\n[extensions]\n\tpartialClone = origin\n[protocol]\n\tallow = always\n"
        f'[remote "origin"]\n\turl = ext::{repo.program}\n\tpromisor = true\n\tpartialclonefilter = tree:0\n'
        f"\tuploadpack = {repo.program}\n[core]\n\tsshCommand = {repo.program}\n",
    )
    for kind in (repo.git / "objects").glob("??"):
        for entry in kind.iterdir():
            if git(repo.top, "cat-file", "-t", kind.name + entry.name) != "commit":
                entry.unlink()


def pointer_to_elsewhere(repo: Hostile) -> None:
    """The file `.git` names a git directory with another configuration."""
    other = repo.top.parent / "elsewhere"
    repo.git.rename(other)
    repo.add(other / "config", repo.config)
    repo.add(repo.top / ".git", f"gitdir: {other}\n")
    repo.filter_files()


HOSTILE = (
    in_config, in_worktree_config, in_include, in_include_if, in_info_attributes, fsmonitor, hooks, submodule,
    submodule_that_asks_to_be_looked_at, submodule_of_another_kind, inside_submodule, linked_worktree, global_config,
    config_in_environment,
    parameters_in_environment, other_folders_in_environment, alternates, partial_clone, pointer_to_elsewhere,
)  # fmt: skip


@pytest.mark.parametrize("plant", HOSTILE)
def test_no_program_of_a_repository_is_run(
    plant: Callable[[Hostile], None], checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo = Hostile(checkout, monkeypatch)
    plant(repo)
    repo.mark.unlink(missing_ok=True)
    # Differs only in its time: git must read it, through a filter if there is one.
    for name in ("model.py", "sub/data.py"):
        os.utime(repo.top / name, (1, 1))
    assert len(git_facts(repo.top)["git.commit"]) == 40
    change(repo.top)
    assert len(git_facts(repo.top)["git.commit"]) == 40
    assert not repo.mark.exists()
    # The trap is a real one.
    git_runs_it(repo)


def git_runs_it(repo: Hostile) -> None:
    for words in (["status"], ["diff"], ["add", "."], ["commit", "-m", "x"], ["log", "-p"], ["fetch", "--all"]):
        subprocess.run(["git", *NAMES, *words], cwd=repo.top, check=False, capture_output=True, timeout=HANG_S)
        if repo.mark.exists():
            return
    raise AssertionError("git itself runs nothing here: this case proves nothing")
