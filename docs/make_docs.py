"""Makes what the documentation shows and holds it against the pages: commands, figures, code and the reference.

`--check` compares instead of writing; page names (such as `tutorial.md`) do only those. In a page

    ```console                                   commands that are run; see console.py
    <!-- figure: NAME -->8.5<!-- end -->         a measured figure of figures.json
    <!-- table: NAME -->                         arithmetic of make_scale.py, up to <!-- end of table -->
    <!-- extras -->                              the package's extras, up to <!-- end of extras -->
    <!-- code: PATH NAME ... -->                 classes or functions as in the code, up to <!-- end of code -->

are made anew. The pages of the reference are made whole by make_reference.py.
"""

from __future__ import annotations

import ast
import difflib
import json
import re
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

from console import PageError, run_page, steelyard
from make_reference import pages as reference_pages
from make_scale import facility, registry

if TYPE_CHECKING:
    from collections.abc import Iterator

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
FIGURE = re.compile(r"<!-- figure: (?P<name>.+?) -->.*?<!-- end -->", re.DOTALL)
CODE = re.compile(r"<!-- code: (?P<path>\S+) (?P<names>[\w .]+?) -->\n.*?<!-- end of code -->", re.DOTALL)
TABLE = re.compile(r"<!-- table: (?P<name>\w+) -->\n.*?<!-- end of table -->", re.DOTALL)
TABLES = {"facility": facility, "registry": registry}
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
# Made whole by scripts of their own.
ELSEWHERE = ("rules/", "reference/", "figures.md")
TRIED_FRESH = "tutorial.md"
INSTALLING = ("python3", ".", "pip")
THOUSAND = 1000
SHOWN_LINES = 100


def written_pages() -> list[Path]:
    """The pages that people write."""
    return [path for path in sorted(DOCS.rglob("*.md")) if not str(path.relative_to(DOCS)).startswith(ELSEWHERE)]


def measured() -> dict[str, float]:
    """The figures by name."""
    data = json.loads((DOCS / "figures.json").read_text(encoding="utf-8"))
    return {each["name"]: each["figure"] for entry in data.values() for each in entry["figures"]}


def with_figures(text: str) -> str:
    """The page with current figures, and what is worked out from them."""
    figures = measured()

    def put(found: re.Match[str]) -> str:
        name = " ".join(found["name"].split())
        if name not in figures:
            near = difflib.get_close_matches(name, figures, n=1)
            raise PageError(f"no figure is called {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
        return f"<!-- figure: {found['name']} -->{shown(figures[name])}<!-- end -->"

    def work_out(found: re.Match[str]) -> str:
        return f"<!-- table: {found['name']} -->\n{TABLES[found['name']](figures)}\n<!-- end of table -->"

    return TABLE.sub(work_out, FIGURE.sub(put, text))


def shown(value: float) -> str:
    """A figure as people read it."""
    return f"{value:,.0f}" if abs(value) >= THOUSAND else f"{value:.3g}"


def with_code(text: str) -> str:
    """The page with its pieces of code as they are now."""
    return CODE.sub(_code, text)


def _code(found: re.Match[str]) -> str:
    source = (ROOT / found["path"]).read_text(encoding="utf-8")
    pieces = "\n\n\n".join(_piece(source, name, found["path"]) for name in found["names"].split())
    return f"{found[0].partition(chr(10))[0]}\n```python\n{pieces}\n```\n<!-- end of code -->"


def _piece(source: str, name: str, path: str) -> str:
    for node in ast.parse(source).body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and node.name == name:
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            return "\n".join(source.splitlines()[first - 1 : node.end_lineno])
    raise PageError(f"{path} has no class or function {name}")


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
    with tempfile.TemporaryDirectory() as name:
        return run_page(text, Path(name), _here)


def _here(words: list[str], folder: Path) -> str:
    """Whoever runs this has installed already what a page tells to install."""
    return "" if words[0] in INSTALLING else steelyard(words, folder)


def made_page(path: Path, *, check: bool) -> str:
    """A page as it should be."""
    text = with_code(with_extras(with_figures(path.read_text(encoding="utf-8"))))
    # The tutorial's commands are checked in a fresh environment, by try_tutorial.py.
    return text if check and path.name == TRIED_FRESH else with_outputs(text)


def made_pages(only: list[str], *, check: bool) -> Iterator[tuple[str, str | PageError]]:
    """Every page as it should be, or what keeps it from being made; by its path below docs/."""
    yield from ((name, text) for name, text in reference_pages().items() if not only or name in only)
    for path in written_pages():
        name = str(path.relative_to(DOCS))
        if only and name not in only:
            continue
        try:
            yield name, made_page(path, check=check)
        except PageError as error:
            yield name, error


def difference(name: str, new: str) -> str:
    """How a page differs from what it should be; empty: it does not."""
    path = DOCS / name
    old = path.read_text(encoding="utf-8") if path.exists() else ""
    lines = difflib.unified_diff(old.splitlines(), new.splitlines(), f"docs/{name}", "as it should be", lineterm="")
    return "\n".join(list(lines)[:SHOWN_LINES])


def main() -> int:
    """Write the pages, or say what is not current."""
    check = "--check" in sys.argv[1:]
    wrong = []
    for name, made in made_pages([word for word in sys.argv[1:] if not word.startswith("-")], check=check):
        if isinstance(made, PageError):
            wrong.append(f"docs/{name}: {made}")
        elif check:
            wrong += filter(None, [difference(name, made)])
        else:
            path = DOCS / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(made, encoding="utf-8")
    if wrong:
        print("\n".join([*wrong, *(["next: python docs/make_docs.py"] if check else [])]), file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
