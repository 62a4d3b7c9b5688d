"""What is coloured on a terminal, and the rich consoles that do it.

rich takes longer to import than many commands take, so this module is imported only where a terminal is written to.
"""

from __future__ import annotations

from typing import TextIO

from rich.console import Console
from rich.highlighter import RegexHighlighter
from rich.theme import Theme

STATUSES = {
    "completed": "green",
    "not_converged": "yellow",
    "out_of_memory": "magenta",
    "time_limit": "red",
    "hung": "red",
    "failed": "red",
    "killed": "red",
    "node_failure": "red",
    "preempted": "red",
    "lost": "red",
    "refused": "red",
    "cancelled": "red",
}
_STATUS = "|".join(f"(?P<{code}>{code})" for code in STATUSES)
_STYLES = {
    **STATUSES,
    "error": "bold red",
    "warning": "yellow",
    "note": "cyan",
    "good": "bold green",
    "bad": "bold red",
    "unsure": "bold yellow",
    "code": "bold",
    "label": "bold",
    "heading": "bold",
    "quiet": "dim",
}


class _Highlighter(RegexHighlighter):
    """Colours severities, statuses, verdicts, labels and the headings of tables."""

    base_style = "steelyard."
    highlights = [  # noqa: RUF012
        r"(?P<code>SY\d{3})\s+[a-z0-9-]+\s+\((?:(?P<error>error)|(?P<warning>warning)|(?P<note>note))\)",
        r"(?m)^(?:(?P<error>\d+ errors?)(?:, |\.))?(?:(?P<warning>\d+ warnings?)(?:, |\.))?(?:(?P<note>\d+ notes?)\.)?",
        rf"(?m)(?:^|[\s,;])\d[\d,]* {{1,2}}(?:{_STATUS})\b",
        rf"(?m)^(?:\[\d+/\d+\] [^\n]+?|[\w.-]+(?: \([^()\n]*\))?): (?:{_STATUS})\b",
        r"(?m)(?:^|: )(?:(?P<bad>NOT COMPARABLE|FAIL)|(?P<good>COMPARABLE(?: WITH WARNINGS)?|PASS))\b",
        r"(?m)^(?P<unsure>CANNOT TELL|FORCED):",
        r"(?m)^(?:(?P<good>ok)|(?P<bad>wrong)|(?P<note>note)) {2,}\S",
        r"(?m)(?: {2}|^|verdict: )(?:(?P<good>ok)|(?P<bad>WRONG))$",
        r"(?m)^(?P<bad>error|WRONG)(?=:| )",
        r"(?m)^ *(?P<label>fix|next|Fix):",
        r"(?m)^(?P<heading>.+\n(?:.+\n)?)(?P<quiet>-+(?: +-+)+)$",
    ]


def console_of(stream: TextIO) -> Console:
    """A console that colours as rich decides (NO_COLOR, FORCE_COLOR, TERM) and reads no markup in what it prints."""
    theme = Theme({f"steelyard.{name}": style for name, style in _STYLES.items()})
    return Console(
        file=stream,
        theme=theme,
        highlighter=_Highlighter(),
        markup=False,
        emoji=False,
        soft_wrap=True,
        # FORCE_COLOR asks for colour in a file, not for a cursor that moves there.
        force_interactive=None if stream.isatty() else False,
    )
