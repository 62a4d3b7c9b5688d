"""Record real commands in a terminal and draw what they print as an SVG picture.

The commands run one after the other in one folder. Their standard output is a pseudo-terminal, so that they print the
colours that a person sees. Standard error, which has the progress, is not recorded. The SVG needs no font or other file
from the internet: a viewer uses its own monospace font.
"""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import shlex
import struct
import subprocess
import sys
import termios
from typing import TYPE_CHECKING

from console import OTHER_PLACES, PageError
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

if TYPE_CHECKING:
    from pathlib import Path

COLUMNS, LINES = 90, 50
# Without the fonts that rich would load from a public server.
SVG = re.sub(r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL).replace(
    "Fira Code, monospace", "ui-monospace, SFMono-Regular, Menlo, Consolas, DejaVu Sans Mono, monospace"
)


def record(commands: list[str], folder: Path) -> list[tuple[str, str]]:
    """Run steelyard commands in a terminal; return each with the text and the colour codes that it prints."""
    return [(command, _run(command, folder)) for command in commands]


def svg(recorded: list[tuple[str, str]], title: str) -> str:
    """Return the recorded commands and their output as one picture."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, legacy_windows=False)
    for number, (command, output) in enumerate(recorded):
        if number:
            console.print()
        console.print(Text.assemble(("$ ", "bold green"), (command, "bold")))
        console.print(Text.from_ansi(output.rstrip()))
    drawn = console.export_svg(title=title, theme=MONOKAI, code_format=SVG, unique_id="steelyard")
    return "\n".join(line.rstrip() for line in drawn.splitlines()) + "\n"


def _run(command: str, folder: Path) -> str:
    words = shlex.split(command)
    if words[0] != "steelyard":
        raise PageError(f"only steelyard commands can run: {command}")
    hidden = (*OTHER_PLACES, "NO_COLOR", "CI")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    environment |= {"NODE_NAME": "NODE", "HOME": str(folder), "TERM": "xterm-256color", "COLORTERM": "truecolor"}
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    program = [sys.executable, "-m", "steelyard.cli.main", *words[1:]]
    with subprocess.Popen(program, cwd=folder, env=environment, stdout=theirs, stderr=subprocess.DEVNULL) as process:
        os.close(theirs)
        output = _read(ours)
    if process.returncode not in (0, 1):
        raise PageError(f"{command}: exit code {process.returncode}")
    return output.replace("\r\n", "\n")


def _read(terminal: int) -> str:
    """Return everything that is printed until the program closes its side."""
    parts = []
    with open(terminal, "rb", buffering=0) as file:
        while True:
            try:
                part = file.read(65536)
            except OSError:  # Linux reports the other side's end as an error.
                break
            if not part:
                break
            parts.append(part)
    return b"".join(parts).decode("utf-8", "replace")
