"""Runs the commands that a page shows and puts what they print below them. Knows Markdown's fences, and no page.

A fenced block `console` holds commands behind `$ `; each is run in the page's own empty directory, in order, and what
it prints to standard output follows it. A block of another kind whose first line is a comment with a file name becomes
that file; so does one below a line that ends in such a name and a colon. The node calls itself `NODE` wherever this
runs.

A block may say in its title what is special about it, and readers see that, too:

    ```console title="not executed in CI"          nothing is run
    ```console title="numbers differ by machine"   run; digits, and what comes after a line `...`, may be others
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
# What would make the output depend on where it is made.
OTHER_PLACES = ("STEELYARD_RESULTS", "STEELYARD_SITES", "SLURMD_NODENAME", "COLUMNS", "LINES", "FORCE_COLOR")
NUMBER = re.compile(r"\d[\d,.]*(?:e[+-]?\d+)?")


class PageError(Exception):
    """A command of a page does not do what the page needs of it."""


def run_page(text: str, folder: Path, run: Callable[[list[str], Path], str]) -> str:
    """The page with every command run anew by `run`, in `folder`."""
    return BLOCK.sub(lambda block: _run_block(block, folder, run), text)


def _run_block(block: re.Match[str], folder: Path, run: Callable[[list[str], Path], str]) -> str:
    kind, title, body = block.group("kind", "title", "body")
    if kind != "console":
        name = _file_name(block)
        if name:
            (folder / name).write_text(body, encoding="utf-8")
        return block.group(0)
    if title == NOT_EXECUTED:
        return block.group(0)
    if title not in (None, VARIES):
        raise PageError(f"no block may be called {title!r}; valid: {NOT_EXECUTED!r}, {VARIES!r}")
    shown = _commands(body)
    made = [(command, run(_words(command), folder)) for command, _ in shown]
    if title == VARIES and all(_alike(old, new) for (_, old), (_, new) in zip(shown, made, strict=True)):
        return block.group(0)
    lines = "".join(f"$ {command}\n{output}" for command, output in made)
    return block.group(0).partition("\n")[0] + "\n" + lines + "```\n"


def _file_name(block: re.Match[str]) -> str | None:
    first = block["body"].partition("\n")[0].removeprefix("# ")
    if FILE_NAME.fullmatch(first):
        return first
    above = NAMED_ABOVE.search(block.string[: block.start()])
    return above[1] if above else None


def _commands(body: str) -> list[tuple[str, str]]:
    """Commands, each with what the page says it prints; a command goes on after a backslash at the end of a line."""
    parts = re.split(r"^\$ ((?:[^\n]*\\\n)*[^\n]*)\n", body, flags=re.MULTILINE)
    if parts[0]:
        raise PageError(f"a console block begins with a command, not with {parts[0]!r}")
    return list(zip(parts[1::2], parts[2::2], strict=True))


def _words(command: str) -> list[str]:
    return shlex.split(command.replace("\\\n", " "), comments=True)


def _alike(old: str, new: str) -> bool:
    """Whether two outputs are the same but for numbers, the widths that follow from them, and what is left out."""
    before, cut, _ = old.partition(f"{CUT}\n")
    return _shape(new).startswith(_shape(before)) if cut else _shape(new) == _shape(old)


def _shape(text: str) -> str:
    plain = NUMBER.sub("#", re.sub(r"-{2,}", "-", text))
    return "\n".join(" ".join(line.split()) for line in plain.splitlines())


def steelyard(words: list[str], folder: Path) -> str:
    """What our own command prints, in the environment that runs this."""
    if words[0] != "steelyard":
        raise PageError(f"only our own commands are run: {shlex.join(words)}")
    return output([sys.executable, "-m", "steelyard.cli.main", *words[1:]], folder, shlex.join(words))


def output(program: list[str], folder: Path, said: str, **more: str) -> str:
    """What a program prints in `folder`; exit code 1 is an answer, others are not."""
    kept = {name: value for name, value in os.environ.items() if name not in OTHER_PLACES}
    environment = kept | {"NODE_NAME": "NODE", "HOME": str(folder), "NO_COLOR": "1"} | more
    done = subprocess.run(program, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1) or "Traceback" in done.stderr:
        raise PageError(f"{said}: exit code {done.returncode}\n{done.stderr}")
    # Where the page's folder is, is nobody's business.
    return done.stdout.replace(str(folder), "/home/you")
