"""[messages] Every message of the program in one list with its place: none in Python's own words, none too long.

`--list` prints the list: place, what makes the message, and its text with placeholders. Counted are messages with a
Python repr, with a path that is made absolute (it would show whose home folder it is), and with more than two
sentences before the fix. The second part reads packages that other people wrote: the same search must find their reprs.
What the finished lines look like is counted in [typos] and [next_works].
"""

from __future__ import annotations

import ast
import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from figure import arguments, at_least, at_most, finish

if TYPE_CHECKING:
    from collections.abc import Iterator

SOURCE = Path(__file__).parents[2] / "src"
MAKERS = {
    "Check", "Finding", "OptionError", "Problem", "Reason", "argument_error", "complain", "damaged", "found",
    "leave_out", "next_line", "print", "refusal", "refuse", "say", "wrapped",
}  # fmt: skip
"""Beside these, every class whose name ends in Error."""
ATTRIBUTES = {"title", "why", "detected", "fix", "reason", "message", "note", "valid"}
"""Attributes of rules and of results that are shown as they are."""
REPR = re.compile(r"!r\}|\brepr\(|\bmap\(repr\b|!a\}")
ABSOLUTE = re.compile(r"/home/|/root\b|\.(?:resolve|absolute|expanduser|home|cwd)\(\)|__file__")
SENTENCE = re.compile(r"(?<=[a-z0-9)%}])[.] (?=[A-Z{])")
SENTENCES = 2
PARAGRAPHS = {"why", "detected"}
"""Read on the page of a rule and by `explain`, not in a message."""
OTHERS = ("pip", "_pytest", "mypy", "pydantic", "numpy")
THEIR_REPRS = 100


@dataclass(frozen=True)
class Message:
    """A text that a person reads, with `{...}` for what is filled in."""

    place: str
    maker: str
    text: str


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _makes(node: ast.AST) -> str:
    """What makes a message here, or ""."""
    name = _name(node.func) if isinstance(node, ast.Call) else ""
    return name if name in MAKERS or name.endswith("Error") else ""


def _texts(node: ast.AST) -> Iterator[tuple[int, str]]:
    """The texts in an expression, without those of messages inside it."""
    if _makes(node):
        return
    if isinstance(node, ast.JoinedStr):
        yield node.lineno, ast.unparse(node)[2:-1]
        return
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.lineno, node.value
        return
    for inner in ast.iter_child_nodes(node):
        yield from _texts(inner)


def messages(root: Path, base: Path) -> Iterator[Message]:
    """Yield the messages of the Python files below a folder."""
    for path in sorted(root.rglob("*.py")):
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except SyntaxError:
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and (maker := _makes(node)):
                parts: list[ast.AST] = [*node.args, *(keyword.value for keyword in node.keywords)]
            elif isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                maker = next((name for target in targets if (name := _name(target)) in ATTRIBUTES), "")
                parts = [node.value] if maker else []
            else:
                continue
            for part in parts:
                for line, text in _texts(part):
                    if " " in text:
                        yield Message(f"{path.relative_to(base)}:{line}", maker, " ".join(text.split()))


def is_long(message: Message) -> bool:
    """Whether it has more sentences than anybody reads before a fix."""
    return message.maker not in PARAGRAPHS and len(SENTENCE.findall(message.text)) >= SENTENCES


def main() -> None:
    """Count, or print the list."""
    options = arguments(__doc__, list={"action": "store_true", "help": "print every message with its place"})
    ours = list(messages(SOURCE / "steelyard", SOURCE))
    if options.list:
        print("\n".join(f"{entry.place}: {entry.maker}: {entry.text}" for entry in ours))
    faults = {
        "with a Python repr": [entry for entry in ours if REPR.search(entry.text)],
        "with an absolute path": [entry for entry in ours if ABSOLUTE.search(entry.text)],
        "of more than two sentences": [entry for entry in ours if is_long(entry)],
    }
    for what, entries in faults.items():
        for entry in entries:
            print(f"{entry.place}: {what}: {entry.text}")
    print(f"{len(ours):,} messages")
    figures = [at_most(f"messages: {what}", len(entries), "messages", 0) for what, entries in faults.items()]
    theirs = 0
    for name in OTHERS[: 2 if options.quick else None]:
        spec = importlib.util.find_spec(name)
        for place in (spec.submodule_search_locations or ()) if spec is not None else ():
            theirs += sum(bool(REPR.search(entry.text)) for entry in messages(Path(place), Path(place)))
    figures.append(at_least("messages: reprs that the search finds in other packages", theirs, "messages", THEIR_REPRS))
    finish(figures)


if __name__ == "__main__":
    main()
