"""Refresh README.md and docs/*.md: what comes from code, measured figures, the output of commands.

    python docs/tools/build.py --update               run every command of every page and write what it prints
    python docs/tools/build.py --update docs/tables.md   only this page
    python docs/tools/build.py --update --fast        run no command
    python docs/tools/build.py --update --pictures    everything that git holds and a program makes
    python docs/tools/build.py --check                compare and write nothing; --fast runs no command, --exact only
                                                      those that print the same on every machine

The pages in docs/reference and the parts of others between comments are made by generated.py. Blocks that begin with
```console are commands and their output; see console.py.
"""

from __future__ import annotations

import argparse
import difflib
import os
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import generated
from console import PageError, command, run_page

ROOT = Path(__file__).resolve().parent.parent.parent
REFERENCE = ROOT / "docs" / "reference"
# The tutorial's commands are checked in a fresh environment, by try_tutorial.py.
CHECKED_ELSEWHERE = "tutorial.md"
INSTALLING = ("python3", ".", "pip")
SHOWN_LINES = 100


@cache
def generated_pages() -> dict[Path, str]:
    """Return the pages of docs/reference, as they should be."""
    return {ROOT / "docs" / name: text for name, text in generated.pages().items()}


def all_pages() -> list[Path]:
    """Return README.md and every page of docs/, also those that should be there and are not."""
    return sorted({ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *generated_pages()})


def with_outputs(text: str, *, exact: bool) -> str:
    """Return the page with the output of every command, run in an empty folder; see `run_page`."""

    def run(words: list[str], folder: Path) -> str:
        # This environment already has what a page installs.
        return "" if words[0] in INSTALLING else command(words, folder)

    with tempfile.TemporaryDirectory() as name:
        return run_page(text, Path(name), run, exact=exact)


def make_page(path: Path, *, check: bool = False, fast: bool = False, exact: bool = False) -> str:
    """Return a page as it should be."""
    made = generated_pages().get(path)
    if made is not None:
        return made
    if path.parent == REFERENCE:
        raise PageError("is not made any more; delete it")
    text = generated.fill(path.read_text(encoding="utf-8"))
    return text if fast or (check and path.name == CHECKED_ELSEWHERE) else with_outputs(text, exact=exact)


def difference(path: Path, new: str) -> str:
    """Return how a page differs from what it should be, or an empty text."""
    old = path.read_text(encoding="utf-8") if path.exists() else ""
    name = str(path.relative_to(ROOT))
    lines = difflib.unified_diff(old.splitlines(), new.splitlines(), name, "as it should be", lineterm="")
    return "\n".join(list(lines)[:SHOWN_LINES])


def update(pages: list[Path], *, fast: bool = False) -> list[str]:
    """Write the pages; return one problem per page that could not be made. Such a page stays as it was."""
    problems = []
    for path in pages:
        old = path.read_text(encoding="utf-8") if path.exists() else ""
        try:
            new = make_page(path, fast=fast)
        except PageError as error:
            problems.append(f"{_name(path)}: {error}")
            continue
        if new != old:
            path.parent.mkdir(exist_ok=True)
            path.write_text(new, encoding="utf-8")
        print(f"{_name(path)}: {'unchanged' if new == old else 'updated'}", flush=True)
    return problems


def check(pages: list[Path], *, fast: bool, exact: bool) -> list[str]:
    """Return one problem per page that is not current."""

    def problem(path: Path) -> str:
        try:
            text = difference(path, make_page(path, check=True, fast=fast, exact=exact))
        except PageError as error:
            text = f"{_name(path)}: {error}"
        again = f"--update {'--fast ' if fast else ''}{_name(path)}"
        return f"{text}\nnext: python docs/tools/build.py {again}" if text else ""

    # Each page has a folder of its own. Real runs would notice that the machine is busy with another page.
    with ThreadPoolExecutor(os.cpu_count() if exact else 1) as pool:
        # The longest first, so that no processor waits for it at the end.
        longest_first = sorted(pages, key=lambda page: -_commands(page))
        return [text for text in pool.map(problem, longest_first) if text]


def _commands(path: Path) -> int:
    return 0 if path in generated_pages() else path.read_text(encoding="utf-8").count("\n$ ")


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)


def main() -> int:
    """Update or check the pages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--update", action="store_true", help="write the pages")
    mode.add_argument("--check", action="store_true", help="compare the pages, write nothing")
    parser.add_argument("--fast", action="store_true", help="run no command")
    parser.add_argument("--exact", action="store_true", help="with --check: leave out what differs by machine")
    parser.add_argument("--pictures", action="store_true", help="with --update: take the pictures too (needs Chromium)")
    parser.add_argument("pages", nargs="*", metavar="PAGE", help="only these pages, such as docs/tables.md")
    arguments = parser.parse_args()
    if (arguments.exact and not arguments.check) or (arguments.pictures and not arguments.update):
        parser.error("--exact needs --check, and --pictures needs --update")
    if arguments.pictures:
        import make_pictures

        make_pictures.main()
    pages = [Path(name).resolve() for name in arguments.pages] or all_pages()
    fast = arguments.fast
    problems = update(pages, fast=fast) if arguments.update else check(pages, fast=fast, exact=arguments.exact)
    print("\n".join(problems), end="\n" if problems else "", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
