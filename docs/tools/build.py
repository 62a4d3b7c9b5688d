"""Refresh README.md and docs/*.md: output of commands, measured figures, the tables of verbs, extras and accelerators.

    python docs/tools/build.py --update               run every command of every page and write what it prints
    python docs/tools/build.py --update docs/tables.md   only this page
    python docs/tools/build.py --update --pictures    everything that git holds and a program makes
    python docs/tools/build.py --check                compare and write nothing; --fast runs no command, --exact only
                                                      those that print the same on every machine

These parts of a page are made by this script:

    ```console                                   commands and their output; see console.py
    <!-- figure: NAME -->8.5<!-- end -->         a measured figure of figures.json
    <!-- extras --> ... <!-- end of extras -->   the extras of the package
    <!-- verbs --> ... <!-- end of verbs -->     the verbs, grouped by question
    <!-- accelerators --> ... <!-- end of accelerators -->   on which somebody tested; see accelerators.py

`mkdocs build` makes the pages that git does not hold; see generated.py.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import sys
import tempfile
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import accelerators
import generated
from console import PageError, command, run_page

from steelyard.cli.main import GROUPS

ROOT = Path(__file__).resolve().parent.parent.parent
FIGURE = re.compile(r"<!-- figure: (?P<name>.+?) -->.*?<!-- end -->", re.DOTALL)
EXTRAS = re.compile(r"<!-- extras -->\n.*?<!-- end of extras -->", re.DOTALL)
VERB_TABLE = re.compile(r"<!-- verbs -->\n.*?<!-- end of verbs -->", re.DOTALL)
ACCELERATORS = re.compile(r"<!-- accelerators -->\n.*?<!-- end of accelerators -->", re.DOTALL)
PURPOSES = {
    "torch": "run models",
    "images": "read image files as data",
    "timm": "the workload `timm`",
    "transformers": "Llama, BERT and the detection transformer",
    "segmentation": "the segmentation workloads",
    "quality": "metrics of detection and segmentation",
    "nvidia": "energy of NVIDIA devices",
    "kubernetes": "studies on Kubernetes",
    "report": "charts in reports; tables work without it",
    "archive": "archive and query many runs",
}
# The tutorial's commands are checked in a fresh environment, by try_tutorial.py.
CHECKED_ELSEWHERE = "tutorial.md"
INSTALLING = ("python3", ".", "pip")
THOUSAND = 1000
SHOWN_LINES = 100


def written_pages() -> list[Path]:
    """Return every page that is written by hand."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def with_figures(text: str) -> str:
    """Return the page with the current figures."""
    figures = generated.measured()

    def put(found: re.Match[str]) -> str:
        name = " ".join(found["name"].split())
        if name not in figures:
            near = difflib.get_close_matches(name, figures, n=1)
            raise PageError(f"unknown figure {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
        value = figures[name]
        shown = f"{value:,.0f}" if abs(value) >= THOUSAND else f"{value:.3g}"
        return f"<!-- figure: {found['name']} -->{shown}<!-- end -->"

    return FIGURE.sub(put, text)


def with_extras(text: str) -> str:
    """Return the page with the current extras of the package."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = {name: needs for name, needs in project["optional-dependencies"].items() if name not in ("all", "dev")}
    if set(extras) != set(PURPOSES):
        raise PageError(f"PURPOSES in build.py and the extras in pyproject.toml differ: {set(extras) ^ set(PURPOSES)}")
    rows = [f"| `{name}` | {PURPOSES[name]} | {', '.join(f'`{each}`' for each in extras[name])} |" for name in extras]
    table = "\n".join(["| extra | for | installs |", "| --- | --- | --- |", *rows])
    return EXTRAS.sub(lambda _: f"<!-- extras -->\n{table}\n<!-- end of extras -->", text)


def with_verbs(text: str) -> str:
    """Return the page with the current verbs, in the groups of `steelyard --help`."""
    rows = []
    for group, verbs in GROUPS.items():
        heads = [f"**{group}**", *[""] * (len(verbs) - 1)]
        rows += [f"| {head} | `{verb}` | {text} |" for head, (verb, text) in zip(heads, verbs.items(), strict=True)]
    table = "\n".join(["| | verb | what it does |", "| --- | --- | --- |", *rows])
    return VERB_TABLE.sub(lambda _: f"<!-- verbs -->\n{table}\n<!-- end of verbs -->", text)


def with_accelerators(text: str) -> str:
    """Return the page with the accelerators, and on which of them somebody tested."""
    return ACCELERATORS.sub(
        lambda _: f"<!-- accelerators -->\n{accelerators.table()}\n<!-- end of accelerators -->", text
    )


def with_outputs(text: str, *, exact: bool) -> str:
    """Return the page with the output of every command, run in an empty folder; see `run_page`."""

    def run(words: list[str], folder: Path) -> str:
        # This environment already has what a page installs.
        return "" if words[0] in INSTALLING else command(words, folder)

    with tempfile.TemporaryDirectory() as name:
        return run_page(text, Path(name), run, exact=exact)


def make_page(path: Path, *, check: bool = False, fast: bool = False, exact: bool = False) -> str:
    """Return a page as it should be."""
    text = with_accelerators(with_verbs(with_extras(with_figures(path.read_text(encoding="utf-8")))))
    generated.fill(text)  # Fails here, not only in mkdocs, if a marker is unknown.
    return text if fast or (check and path.name == CHECKED_ELSEWHERE) else with_outputs(text, exact=exact)


def difference(path: Path, new: str) -> str:
    """Return how a page differs from what it should be, or an empty text."""
    old = path.read_text(encoding="utf-8")
    name = str(path.relative_to(ROOT))
    lines = difflib.unified_diff(old.splitlines(), new.splitlines(), name, "as it should be", lineterm="")
    return "\n".join(list(lines)[:SHOWN_LINES])


def update(pages: list[Path]) -> list[str]:
    """Write the pages; return one problem per page that could not be made. Such a page stays as it was."""
    problems = []
    for path in pages:
        old = path.read_text(encoding="utf-8")
        try:
            new = make_page(path)
        except PageError as error:
            problems.append(f"{_name(path)}: {error}")
            continue
        if new != old:
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
        return f"{text}\nnext: python docs/tools/build.py --update {_name(path)}" if text else ""

    # Each page has a folder of its own. Real runs would notice that the machine is busy with another page.
    with ThreadPoolExecutor(os.cpu_count() if exact else 1) as pool:
        # The longest first, so that no processor waits for it at the end.
        longest_first = sorted(pages, key=lambda page: -page.read_text(encoding="utf-8").count("\n$ "))
        return [text for text in pool.map(problem, longest_first) if text]


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)


def main() -> int:
    """Update or check the pages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--update", action="store_true", help="write the pages")
    mode.add_argument("--check", action="store_true", help="compare the pages, write nothing")
    parser.add_argument("--fast", action="store_true", help="with --check: run no command")
    parser.add_argument("--exact", action="store_true", help="with --check: leave out what differs by machine")
    parser.add_argument("--pictures", action="store_true", help="with --update: take the pictures too (needs Chromium)")
    parser.add_argument("pages", nargs="*", metavar="PAGE", help="only these pages, such as docs/tables.md")
    arguments = parser.parse_args()
    if ((arguments.fast or arguments.exact) and not arguments.check) or (arguments.pictures and not arguments.update):
        parser.error("--fast and --exact need --check, and --pictures needs --update")
    if arguments.pictures:
        import make_pictures

        make_pictures.main()
    pages = [Path(name).resolve() for name in arguments.pages] or written_pages()
    problems = update(pages) if arguments.update else check(pages, fast=arguments.fast, exact=arguments.exact)
    print("\n".join(problems), end="\n" if problems else "", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
