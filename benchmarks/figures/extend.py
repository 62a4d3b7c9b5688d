"""[extend] Each page docs/adding-a-*.md is followed exactly on a copy of the tree, and its checks pass.

The copy contains the files that git tracks. The page is applied, its commands are run, and git must then report
exactly the files that the page names as new or changed. The line above a code block says what the block is:

    New file `PATH`:                           the whole file
    In `PATH`, after the line `TEXT`:          lines to add, indented as the line that follows TEXT
    This writes `PATH` and `PATH`:             a command that changes these files
    Check:                                     commands that must succeed

Other blocks are examples. `--quick` runs no commands of the pages; at the end it applies all pages to one tree and runs
their tests together. `--page NAME` follows one page, such as `verb`.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from figure import arguments, at_least, at_most, finish

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).resolve().parent.parent.parent
THINGS = ("workload", "device", "sensor", "scheduler", "rule", "claim-rule", "verb")
BLOCK = re.compile(r"^(?P<said>[^\n]*)\n\n```(?P<kind>\w+)\n(?P<body>.*?)^```$", re.DOTALL | re.MULTILINE)
NEW_FILE = re.compile(r"New file `([^`]+)`:")
NEW_LINES = re.compile(r"In `([^`]+)`, after the line `(.+)`:")
WRITES = re.compile(r"This writes `[^`]+`(?: and `[^`]+`)*:")


class PageError(Exception):
    """A page cannot be followed."""


@dataclass
class Page:
    """The instructions of a page, in order."""

    new: dict[str, str] = field(default_factory=dict)
    """Text of each new file, by its path."""
    lines: list[tuple[str, str, str]] = field(default_factory=list)
    """Path, the line after which to add, and what to add."""
    writes: list[tuple[list[str], str]] = field(default_factory=list)
    """Paths and the command that changes them."""
    checks: list[str] = field(default_factory=list)

    @property
    def files(self) -> set[str]:
        """All files that the page names."""
        return {*self.new, *(path for path, _, _ in self.lines), *(path for paths, _ in self.writes for path in paths)}

    def shorten(self) -> None:
        """Return the page without commands: only new files and lines."""
        self.writes, self.checks = [], []


def read_page(text: str) -> Page:
    """Parse the instructions of a page."""
    page = Page()
    for block in BLOCK.finditer(text):
        said, body = block["said"], block["body"]
        if found := NEW_FILE.fullmatch(said):
            page.new[found[1]] = body
        elif found := NEW_LINES.fullmatch(said):
            page.lines.append((found[1], found[2], body))
        elif WRITES.fullmatch(said):
            page.writes.append((re.findall(r"`([^`]+)`", said), body.strip()))
        elif said == "Check:":
            page.checks += body.splitlines()
    if not page.new or not page.lines or not page.checks:
        raise PageError("a new file, a line to add or a check is missing")
    return page


def add_lines(text: str, after: str, lines: str) -> str:
    """Add lines after the only line that equals `after`, indented like the line below it."""
    old = text.splitlines(keepends=True)
    places = [number for number, line in enumerate(old) if line.strip() == after]
    if len(places) != 1:
        raise PageError(f"{len(places)} lines read {after!r}")
    below = old[places[0] + 1]
    indent = below[: len(below) - len(below.lstrip())]
    added = [f"{indent}{line}" if line.strip() else line for line in lines.splitlines(keepends=True)]
    return "".join([*old[: places[0] + 1], *added, *old[places[0] + 1 :]])


class Copy:
    """A copy of the tree, to which pages are applied one after the other."""

    def __init__(self, folder: Path) -> None:
        self.tree = folder / "tree"
        self._scratch = folder / "scratch"
        self._scratch.mkdir()
        tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        for name in filter(None, tracked.split("\0")):
            # Files that were deleted but not committed are still tracked.
            if (ROOT / name).exists():
                (self.tree / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, self.tree / name)
        self._git("init", "--quiet")
        self._git("add", "--all", "--force")
        self._git("-c", "user.name=copy", "-c", "user.email=copy@localhost", "commit", "--quiet", "--message=copy")

    def follow(self, page: Page) -> None:
        """Apply the page, without its checks."""
        for path, text in page.new.items():
            if (self.tree / path).exists():
                raise PageError(f"{path} already exists")
            (self.tree / path).parent.mkdir(parents=True, exist_ok=True)
            (self.tree / path).write_text(text, encoding="utf-8")
        for path, after, lines in page.lines:
            old = (self.tree / path).read_text(encoding="utf-8")
            (self.tree / path).write_text(add_lines(old, after, lines), encoding="utf-8")
        for paths, command in page.writes:
            if failure := self.run(command):
                raise PageError(f"{' and '.join(paths)}: not written: {failure}")

    def run(self, command: str) -> str:
        """Run one command in the tree; return its output if it failed, else an empty string."""
        begin_s = time.monotonic()
        environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
            "PYTHONPATH": f"{self.tree / 'src'}{os.pathsep}{self.tree / 'benchmarks/lib'}",
            "PYTHONPYCACHEPREFIX": str(self._scratch / "bytecode"),
            "STEELYARD_RESULTS": str(self._scratch / "results"),
            "MYPY_CACHE_DIR": str(self._scratch / "mypy"),
            "RUFF_CACHE_DIR": str(self._scratch / "ruff"),
        }
        words = shlex.split(command)
        done = subprocess.run(words, cwd=self.tree, env=environment, capture_output=True, text=True, check=False)
        print(f"    {time.monotonic() - begin_s:6.1f} s  {command}", flush=True)
        return "" if done.returncode == 0 else f"{command}: exit code {done.returncode}\n{done.stdout}{done.stderr}"

    def changed(self) -> set[str]:
        """Return the files that git reports as new or changed."""
        said = self._git("status", "--porcelain", "--untracked-files=all", "-z")
        return {entry[3:] for entry in said.split("\0") if entry}

    def restore(self) -> None:
        """Undo the page."""
        self._git("reset", "--quiet", "--hard")
        self._git("clean", "--quiet", "--force", "-d", "-x")

    def _git(self, *words: str) -> str:
        return subprocess.run(["git", *words], cwd=self.tree, capture_output=True, text=True, check=True).stdout


def try_page(copy: Copy, name: str, *, quick: bool) -> list[str]:
    """Follow one page; return the problems."""
    print(f"  {name}", flush=True)
    try:
        page = read_page((ROOT / "docs" / f"adding-a-{name}.md").read_text(encoding="utf-8"))
        if quick:
            page.shorten()
        copy.follow(page)
        wrong = [failure for command in page.checks if (failure := copy.run(command))]
        # After the checks, because they must not leave files that the page does not name.
        wrong += [f"{path} is changed, and the page does not name it" for path in sorted(copy.changed() - page.files)]
        wrong += [f"{path} is named, and was not changed" for path in sorted(page.files - copy.changed())]
    except (PageError, OSError) as error:
        wrong = [f"the page cannot be followed: {error}"]
    finally:
        copy.restore()
    for failure in wrong:
        print(f"{name}: {failure}", file=sys.stderr)
    return wrong


def try_tests(copy: Copy, names: Sequence[str]) -> list[str]:
    """Apply all pages to one tree and run their tests in one process; return the problems."""
    print("  all pages together", flush=True)
    tests = []
    for name in names:
        page = read_page((ROOT / "docs" / f"adding-a-{name}.md").read_text(encoding="utf-8"))
        page.shorten()
        copy.follow(page)
        tests += [path for path in page.new if path.startswith("tests/")]
    failure = copy.run(shlex.join(["pytest", *tests]))
    print(failure, file=sys.stderr, end="")
    return [failure] if failure else []


def main() -> None:
    """Follow the pages."""
    options = arguments(__doc__, page={"choices": THINGS, "help": "only this page"})
    names = [options.page] if options.page else [*THINGS]
    with tempfile.TemporaryDirectory() as folder:
        copy = Copy(Path(folder))
        wrong = {name: try_page(copy, name, quick=options.quick) for name in names}
        whole = [name for name in names if not wrong[name]]
        if options.quick:
            wrong["tests"] = try_tests(copy, whole)
    figures = [at_least("extend: things added by following their page", len(whole), "pages", len(names))]
    figures.append(
        at_most("extend: checks and files that are not as the page says", sum(map(len, wrong.values())), "faults", 0)
    )
    finish(figures)


if __name__ == "__main__":
    main()
