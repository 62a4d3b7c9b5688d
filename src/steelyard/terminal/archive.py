"""What `steelyard archive` did, in a few lines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from steelyard.terminal.findings import next_line
from steelyard.terminal.text import many

if TYPE_CHECKING:
    from pathlib import Path

    from steelyard.results.fold import Folded

SHOWN = 10


def archive_lines(results: Path, done: Folded) -> list[str]:
    """Say how many runs were archived, and what was left where it is, and why."""
    lines = [f"{many(done.runs, 'run')} archived in {results / 'archive'}"] if done.runs else []
    if done.runs:
        lines[0] += f": {many(done.segments, 'segment')}, {done.bytes / 1e6:,.1f} MB"
    if done.merged:
        lines.append(f"{many(done.merged, 'earlier segment')} written anew")
    lines += [f"left: {what}" for what in done.left[:SHOWN]]
    lines += [f"left: {many(len(done.left) - SHOWN, 'more run')}"] * (len(done.left) > SHOWN)
    lines += [f"left: study {study}: {why}" for study, why in [*done.waiting.items()][:SHOWN]]
    if not lines:
        lines.append("nothing to archive")
    if done.waiting:
        lines.append(next_line("steelyard status"))
    elif done.runs:
        lines.append(next_line("steelyard query --list"))
    return lines
