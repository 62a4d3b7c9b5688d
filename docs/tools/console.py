"""Run the commands of a page and put what they print below them.

A fenced block `console` holds commands after `$ `: of steelyard, or `python FILE` for a script of the page. Each runs
in order, in the page's own empty folder. Its standard output follows it, unless it ends in `> FILE`. A block of another
kind whose first line is a comment with a file name becomes that file; so does a block below a line that ends in a file
name and a colon. The node is called `NODE` on every machine.

The title of a block says what is special about it. Readers see it too:

    ```console title="not executed in CI"          no command runs
    ```console title="numbers differ by machine"   run; only the words must be the same

In a block whose numbers differ, a line `...` leaves out the rest of the output.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NOT_EXECUTED, VARIES = "not executed in CI", "numbers differ by machine"
CUT = "..."
BLOCK = re.compile(r'^```(?P<kind>\w+)(?: title="(?P<title>[^"\n]*)")?\n(?P<body>.*?)^```\n', re.DOTALL | re.MULTILINE)
FILE_NAME = re.compile(r"[\w.-]+\.(?:toml|csv|py|json)")
NAMED_ABOVE = re.compile(r"`([\w.-]+\.(?:toml|csv))`[^`\n]{0,40}:\n\n$")
# Variables that would make the output depend on the machine.
OTHER_PLACES = ("STEELYARD_RESULTS", "STEELYARD_SITES", "SLURMD_NODENAME", "COLUMNS", "LINES", "FORCE_COLOR")
NUMBER = re.compile(r"\d[\d,.]*(?:e[+-]?\d+)?")


class PageError(Exception):
    """A page cannot be made: a command fails, or a block or marker is not valid."""


def run_page(text: str, folder: Path, run: Callable[[list[str], Path], str], *, exact: bool = False) -> str:
    """Return the page with the output of every command, as `run` returns it for the words and the folder.

    `exact`: blocks whose numbers differ by machine stay as they are.
    """
    return BLOCK.sub(lambda block: _run_block(block, folder, run, exact=exact), text)


def _run_block(block: re.Match[str], folder: Path, run: Callable[[list[str], Path], str], *, exact: bool) -> str:
    kind, title, body = block.group("kind", "title", "body")
    if kind != "console":
        name = _file_name(block)
        if name:
            (folder / name).write_text(body, encoding="utf-8")
        return block.group(0)
    if title == NOT_EXECUTED or (exact and title == VARIES):
        return block.group(0)
    if title not in (None, VARIES):
        raise PageError(f"unknown block title {title!r}; valid: {NOT_EXECUTED!r}, {VARIES!r}")
    shown = _commands(body)
    made = [(command, _run(_words(command), folder, run)) for command, _ in shown]
    if title == VARIES:
        pairs = [(old, new) for (_, old), (_, new) in zip(shown, made, strict=True)]
        if all(_alike(old, new) for old, new in pairs):
            return block.group(0)
        made = [(command, _shortened(old, new)) for (command, new), (old, _) in zip(made, pairs, strict=True)]
    lines = "".join(f"$ {command}\n{output}" for command, output in made)
    return block.group(0).partition("\n")[0] + "\n" + lines + "```\n"


def _run(words: list[str], folder: Path, run: Callable[[list[str], Path], str]) -> str:
    """Return what a command prints; nothing if it ends in `> FILE`, which is then written."""
    if words[-2:-1] != [">"]:
        return run(words, folder)
    if not FILE_NAME.fullmatch(words[-1]):
        raise PageError(f"not a file name: {words[-1]}")
    (folder / words[-1]).write_text(run(words[:-2], folder), encoding="utf-8")
    return ""


def _file_name(block: re.Match[str]) -> str | None:
    first = block["body"].partition("\n")[0].removeprefix("# ")
    if FILE_NAME.fullmatch(first):
        return first
    above = NAMED_ABOVE.search(block.string[: block.start()])
    return above[1] if above else None


def _commands(body: str) -> list[tuple[str, str]]:
    """Return each command with the output that the page shows. A backslash at the end of a line continues a command."""
    parts = re.split(r"^\$ ((?:[^\n]*\\\n)*[^\n]*)\n", body, flags=re.MULTILINE)
    if parts[0]:
        raise PageError(f"a console block must begin with '$ ', not with {parts[0]!r}")
    return list(zip(parts[1::2], parts[2::2], strict=True))


def _words(command: str) -> list[str]:
    return shlex.split(command.replace("\\\n", " "), comments=True)


def _alike(old: str, new: str) -> bool:
    """Return whether two outputs differ only in numbers, column widths and what `...` leaves out."""
    before, cut, _ = old.partition(f"{CUT}\n")
    return _shape(new).startswith(_shape(before)) if cut else _shape(new) == _shape(old)


def _shortened(old: str, new: str) -> str:
    """Return the new output, cut after as many lines as the old one was."""
    before, cut, _ = old.partition(f"{CUT}\n")
    return "".join(new.splitlines(keepends=True)[: before.count("\n")]) + cut if cut else new


def _shape(text: str) -> str:
    plain = NUMBER.sub("#", re.sub(r"-{2,}", "-", text))
    return "\n".join(" ".join(line.split()) for line in plain.splitlines())


def command(words: list[str], folder: Path) -> str:
    """Return what a steelyard command prints, or a script of the page, in this environment."""
    if words[0] == "steelyard":
        return output([sys.executable, "-m", "steelyard.cli.main", *words[1:]], folder, shlex.join(words))
    if words[0] == "python" and FILE_NAME.fullmatch(words[-1]):
        return output([sys.executable, words[-1]], folder, shlex.join(words))
    raise PageError(f"only steelyard commands and scripts of the page can run: {shlex.join(words)}")


def output(program: list[str], folder: Path, typed: str, **more: str) -> str:
    """Return what a program prints in `folder`. Exit codes 1 and 3 are answers, such as a failed check."""
    kept = {name: value for name, value in os.environ.items() if name not in OTHER_PLACES}
    environment = kept | {"NODE_NAME": "NODE", "HOME": str(folder), "NO_COLOR": "1"} | more
    done = subprocess.run(program, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1, 3) or "Traceback" in done.stderr:
        raise PageError(f"{typed}: exit code {done.returncode}\n{done.stderr}")
    # The folder has another name each time.
    return done.stdout.replace(str(folder), "/home/you")
