"""Makes what the README shows: the tree from every file's own first line, and the output of every command in it.

`--check` compares instead of writing. How commands are run is in console.py.
"""

from __future__ import annotations

import ast
import sys
import tempfile
from pathlib import Path

from console import PageError, run_page, steelyard

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
BEGIN, END = "<!-- tree: made by docs/make_readme.py -->\n", "<!-- end of tree -->\n"
FOLDERS = ("src/steelyard", "benchmarks", "docs", "tests")


def purpose(path: Path) -> str:
    """The first paragraph of a module's docstring, in one line."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    if not text:
        raise SystemExit(f"{path} has no docstring: its first line is its line in the README")
    return " ".join(text.split("\n\n")[0].split()).removesuffix(".")


def tree(folder: Path) -> list[tuple[str, str]]:
    """Files of a folder, then its sub-folders, each with its purpose."""
    package = folder / "__init__.py"
    rows = [(f"{folder.relative_to(ROOT)}/", purpose(package) if package.exists() else "")]
    rows += [("  " + path.name, purpose(path)) for path in sorted(folder.glob("*.py")) if path != package]
    for inner in sorted(path for path in folder.iterdir() if path.is_dir() and any(path.glob("*.py"))):
        rows += tree(inner)
    return rows


def with_tree(text: str) -> str:
    """The README with its tree made anew."""
    rows = [row for folder in FOLDERS for row in tree(ROOT / folder)]
    width = max(len(name) for name, _ in rows)
    lines = "".join(f"{name:<{width}}  {words}".rstrip() + "\n" for name, words in rows)
    before, _, rest = text.partition(BEGIN)
    return before + BEGIN + "```\n" + lines + "```\n" + END + rest.partition(END)[2]


def with_outputs(text: str) -> str:
    """The README with every command run anew."""
    with tempfile.TemporaryDirectory() as name:
        return run_page(text, Path(name), steelyard)


def main() -> int:
    """Write the README, or say that it is out of date."""
    old = README.read_text(encoding="utf-8")
    try:
        new = with_tree(with_outputs(old))
    except PageError as error:
        print(error, file=sys.stderr)
        return 1
    if "--check" not in sys.argv:
        README.write_text(new, encoding="utf-8")
    elif old != new:
        print("README.md is out of date; run: python docs/make_readme.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
