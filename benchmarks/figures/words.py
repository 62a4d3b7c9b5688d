"""Count wordings that no tool of this field uses, in everything that a person reads.

The patterns are in docs/tools/words.toml. The second part reads packages that other people wrote: a pattern that they
use often would be an ordinary word, and does not belong on the list.
"""

from __future__ import annotations

import ast
import fnmatch
import importlib.util
import io
import re
import subprocess
import tokenize
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from figure import arguments, at_most, finish

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
LIST = ROOT / "docs/tools/words.toml"
TEXTS = (".md", ".toml", ".yml", ".yaml", ".html", ".css", ".js", ".sh", ".cff", ".txt")
OTHERS = ("pytest", "_pytest", "rich", "pip", "mypy", "mkdocs", "numpy", "hypothesis", "pydantic", "timm")
OTHERS_BAR = 2.0
"""Matches per 10,000 words that other people's packages may have."""


@dataclass(frozen=True)
class Pattern:
    """A wording to avoid, where it is fine all the same, and what to write instead."""

    find: re.Pattern[str]
    allow: re.Pattern[str] | None
    use: str

    def matches(self, text: str) -> Iterator[str]:
        """The matches in a text that are not inside an allowed wording."""
        fine = [found.span() for found in self.allow.finditer(text)] if self.allow else []
        for found in self.find.finditer(text):
            if not any(start < found.end() and found.start() < end for start, end in fine):
                yield found.group()


def read_list() -> tuple[list[Pattern], list[str]]:
    """The patterns, and the files that are exempt."""
    data = tomllib.loads(LIST.read_text(encoding="utf-8"))
    patterns = [
        Pattern(_compile(entry["find"]), _compile(entry["allow"]) if "allow" in entry else None, entry["use"])
        for entry in data["pattern"]
    ]
    return patterns, data["exempt"]


def _compile(text: str) -> re.Pattern[str]:
    return re.compile(text, re.IGNORECASE)


def passages(path: Path) -> Iterator[tuple[int, str]]:
    """What a person reads in a file: the line where each passage begins, and its text with line breaks as spaces."""
    text = path.read_text(encoding="utf-8", errors="replace")
    if path.suffix == ".py":
        yield from _python_passages(text)
        return
    line = 1
    for block in re.split(r"(\n\s*\n)", text):
        yield line, " ".join(re.sub(r"^\s*(#|//|\*|>)+", "", part) for part in block.split("\n"))
        line += block.count("\n")


def _python_passages(text: str) -> Iterator[tuple[int, str]]:
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return
    inside = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            inside |= {id(part) for part in ast.walk(node)}
            yield node.lineno, "".join(str(p.value) if isinstance(p, ast.Constant) else "{}" for p in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
            yield node.lineno, node.value
    comment, begin, last = "", 0, 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            if token.start[0] != last + 1:
                yield begin, comment
                comment, begin = "", token.start[0]
            comment, last = f"{comment} {token.string.lstrip('#').strip()}", token.start[0]
    yield begin, comment


def count(paths: list[Path], patterns: list[Pattern], *, show: bool) -> tuple[int, int]:
    """Matches and words in these files; `show` prints each match with its place."""
    found = words = 0
    for path in paths:
        for line, text in passages(path):
            flat = " ".join(text.split())
            words += flat.count(" ") + 1
            for pattern in patterns:
                for match in pattern.matches(flat):
                    found += 1
                    if show:
                        print(f"{path.relative_to(ROOT)}:{line}: {match!r}: write {pattern.use}")
    return found, words


def main() -> None:
    """Count in our files, then in other people's."""
    options = arguments(
        __doc__, paths={"nargs": "+", "default": [], "help": "only these files or folders of ours, without the rest"}
    )
    patterns, exempt = read_list()
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *options.paths],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.split("\n")  # fmt: skip
    ours = [
        ROOT / name
        for name in listed
        if (name.endswith((".py", *TEXTS)) or name.startswith(".ci/"))
        and not any(fnmatch.fnmatch(name, e) for e in exempt)
        if (ROOT / name).is_file()
    ]
    found, words = count(ours, patterns, show=True)
    print(f"ours: {words:,} words in {len(ours)} files")
    figures = [at_most("words: wordings to avoid", found, "matches", 0)]
    if not options.paths:
        theirs: list[Path] = []
        for name in OTHERS[: 3 if options.quick else None]:
            spec = importlib.util.find_spec(name)
            if spec is not None and spec.submodule_search_locations:
                theirs += sorted(Path(next(iter(spec.submodule_search_locations))).rglob("*.py"))
        their_found, their_words = count(theirs, patterns, show=False)
        print(f"others: {their_found} matches in {their_words:,} words of {len(theirs)} files")
        rate = 1e4 * their_found / their_words
        figures.append(at_most("words: the same wordings in other packages", rate, "per 10,000 words", OTHERS_BAR))
    finish(figures)


if __name__ == "__main__":
    main()
