"""Makes what the README shows: the tree from every file's own first line, and the output of every command in it.

`--check` compares instead of writing. A fenced block `console` holds commands behind `$ `; each is run in an empty
directory, in order, and what it prints to standard output follows it. A `toml` block whose first line is a comment with
a file name becomes that file. The node calls itself `NODE`, wherever this runs.
"""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
BEGIN, END = "<!-- tree: made by docs/make_readme.py -->\n", "<!-- end of tree -->\n"
FOLDERS = ("src/steelyard", "benchmarks", "docs", "tests")
# What would make the output depend on where it is made.
OTHER_PLACES = ("STEELYARD_RESULTS", "SLURMD_NODENAME")
BLOCK = re.compile(r"```(toml|console)\n(.*?)```\n", re.DOTALL)


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
        return BLOCK.sub(lambda block: _run_block(block, Path(name)), text)


def _run_block(block: re.Match[str], folder: Path) -> str:
    kind, body = block.groups()
    if kind == "toml":
        file = body.partition("\n")[0].removeprefix("# ")
        (folder / file).write_text(body, encoding="utf-8")
        return block.group(0)
    commands = [line for line in body.splitlines() if line.startswith("$ ")]
    return "```console\n" + "".join(f"{command}\n{_output(command, folder)}" for command in commands) + "```\n"


def _output(command: str, folder: Path) -> str:
    words = shlex.split(command.removeprefix("$ "))
    assert words[0] == "steelyard", f"only our own commands are run: {command}"
    program = [sys.executable, "-m", "steelyard.cli.main", *words[1:]]
    kept = {name: value for name, value in os.environ.items() if name not in OTHER_PLACES}
    environment = kept | {"NODE_NAME": "NODE"}
    done = subprocess.run(program, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        raise SystemExit(f"{command}: exit code {done.returncode}\n{done.stderr}")
    return done.stdout


def main() -> int:
    """Write the README, or say that it is out of date."""
    old = README.read_text(encoding="utf-8")
    new = with_tree(with_outputs(old))
    if "--check" not in sys.argv:
        README.write_text(new, encoding="utf-8")
    elif old != new:
        print("README.md is out of date; run: python docs/make_readme.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
