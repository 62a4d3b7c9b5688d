"""Makes what pages in git show of the program: the output of every command, measured figures, the package's extras.

`python docs/tools/build.py` writes README.md and docs/*.md anew; page names (such as `docs/tables.md`) do only those.
`--check` compares instead of writing; `--check --fast` runs no command. In a page

    ```console                                   commands that are run; see console.py
    <!-- figure: NAME -->8.5<!-- end -->         a measured figure of figures.json
    <!-- extras -->                              the package's extras, up to <!-- end of extras -->

are made anew. What git does not hold is made by `mkdocs build`; see generated.py.
"""

from __future__ import annotations

import argparse
import difflib
import re
import sys
import tempfile
import tomllib
from pathlib import Path

import generated
from console import PageError, run_page, steelyard

ROOT = Path(__file__).resolve().parent.parent.parent
FIGURE = re.compile(r"<!-- figure: (?P<name>.+?) -->.*?<!-- end -->", re.DOTALL)
EXTRAS = re.compile(r"<!-- extras -->\n.*?<!-- end of extras -->", re.DOTALL)
WHAT_FOR = {
    "torch": "to run models at all",
    "images": "picture files as data",
    "timm": "the workload `timm`",
    "transformers": "Llama, BERT and the detection transformer",
    "segmentation": "the segmentation workloads",
    "quality": "metrics of detection and segmentation",
    "nvidia": "energy of NVIDIA devices",
    "kubernetes": "studies on Kubernetes",
    "report": "pictures in reports; tables need nothing",
}
# The tutorial's commands are checked in a fresh environment, by try_tutorial.py.
TRIED_FRESH = "tutorial.md"
INSTALLING = ("python3", ".", "pip")
THOUSAND = 1000
SHOWN_LINES = 100


def written_pages() -> list[Path]:
    """The pages that people write."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def with_figures(text: str) -> str:
    """The page with current figures."""
    figures = generated.measured()

    def put(found: re.Match[str]) -> str:
        name = " ".join(found["name"].split())
        if name not in figures:
            near = difflib.get_close_matches(name, figures, n=1)
            raise PageError(f"no figure is called {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
        value = figures[name]
        shown = f"{value:,.0f}" if abs(value) >= THOUSAND else f"{value:.3g}"
        return f"<!-- figure: {found['name']} -->{shown}<!-- end -->"

    return FIGURE.sub(put, text)


def with_extras(text: str) -> str:
    """The page with the extras that the package has now."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = {name: what for name, what in project["optional-dependencies"].items() if name not in ("all", "dev")}
    if set(extras) != set(WHAT_FOR):
        raise PageError(f"what these extras are for is not said, or they are gone: {set(extras) ^ set(WHAT_FOR)}")
    rows = [f"| `{name}` | {WHAT_FOR[name]} | {', '.join(f'`{each}`' for each in extras[name])} |" for name in extras]
    table = "\n".join(["| extra | for | brings |", "| --- | --- | --- |", *rows])
    return EXTRAS.sub(lambda _: f"<!-- extras -->\n{table}\n<!-- end of extras -->", text)


def with_outputs(text: str) -> str:
    """The page with every command run anew, in a folder of its own."""

    def run(words: list[str], folder: Path) -> str:
        # Whoever runs this has installed already what a page tells to install.
        return "" if words[0] in INSTALLING else steelyard(words, folder)

    with tempfile.TemporaryDirectory() as name:
        return run_page(text, Path(name), run)


def make_page(path: Path, *, check: bool, fast: bool) -> str:
    """A page as it should be."""
    text = with_extras(with_figures(path.read_text(encoding="utf-8")))
    generated.fill(text)  # A marker that nothing can be made for is found here, not first by mkdocs.
    return text if fast or (check and path.name == TRIED_FRESH) else with_outputs(text)


def difference(path: Path, new: str) -> str:
    """How a page differs from what it should be; empty: it does not."""
    old = path.read_text(encoding="utf-8")
    name = str(path.relative_to(ROOT))
    lines = difflib.unified_diff(old.splitlines(), new.splitlines(), name, "as it should be", lineterm="")
    return "\n".join(list(lines)[:SHOWN_LINES])


def main() -> int:
    """Write the pages, or say what is not current."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    parser.add_argument("--fast", action="store_true", help="run no command")
    parser.add_argument("pages", nargs="*", metavar="PAGE", help="only these, such as docs/tables.md")
    arguments = parser.parse_args()
    only = [Path(name).resolve() for name in arguments.pages]
    wrong = []
    for path in written_pages():
        if only and path not in only:
            continue
        try:
            made = make_page(path, check=arguments.check, fast=arguments.fast)
        except PageError as error:
            wrong.append(f"{path.relative_to(ROOT)}: {error}")
            continue
        if not arguments.check:
            path.write_text(made, encoding="utf-8")
        elif text := difference(path, made):
            wrong += [text, f"next: python docs/tools/build.py {path.relative_to(ROOT)}"]
    print("\n".join(wrong), end="\n" if wrong else "", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
