"""What the launcher adds to the files of a run, without secrets: its own observations, and what a program left there.

The processes of a program run with the standard library alone, and write their command lines as they are.
"""

from __future__ import annotations

import json
import os
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final

from steelyard import nofollow
from steelyard.contracts import observe, wrap
from steelyard.contracts.base import from_json_object, to_json_object
from steelyard.redact import clean, redact
from steelyard.results.store import replace_text

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MAX_LOG_BYTES: Final = 1 << 25
_OF_PROCESSES: Final = (wrap.PROCESSES_PATTERN, wrap.OBSERVER_LOG)


def without_secrets(launch: observe.Launch) -> observe.Launch:
    """Return the observations of a launcher with secrets redacted, such as those in a command or a scheduler's text."""
    told, count = clean(to_json_object(launch))
    return from_json_object(observe.Launch, told) if count else launch


def redact_log(raw: Path, scratch: Path) -> None:
    """Redact secrets in the log of a run that has ended, and in what the processes of a program wrote beside it.

    Only the end of a very long log is kept. `scratch`: a folder on the same file system.
    """
    _redact_file(raw / observe.WORKER_LOG, scratch, redact)
    for name in nofollow.names(raw):
        if any(fnmatchcase(name, pattern) for pattern in _OF_PROCESSES):
            _redact_file(raw / name, scratch, _redact_lines)


def redact_output(path: Path, scratch: Path) -> None:
    """Redact secrets in what a task printed beside the logs of its runs, such as lines of the site's own."""
    _redact_file(path, scratch, redact)


def _redact_lines(text: str) -> tuple[str, int]:
    """Redact each line, those of JSON by their names and words."""
    lines, count = [], 0
    for line in text.split("\n"):
        try:
            told, found = clean(json.loads(line))
            new = json.dumps(told)
        except (ValueError, RecursionError):
            new, found = redact(line)
        lines.append(new if found else line)
        count += found
    return "\n".join(lines), count


def _redact_file(path: Path, scratch: Path, redacted_text: Callable[[str], tuple[str, int]]) -> None:
    try:
        with nofollow.open_file(path) as file:
            cut = file.seek(0, os.SEEK_END) - MAX_LOG_BYTES
            file.seek(max(0, cut))
            text = file.read(MAX_LOG_BYTES).decode("utf-8", "replace")
    except (FileNotFoundError, nofollow.LinkError):
        # A link is damage, which the record of the run states.
        return
    redacted, count = redacted_text(text)
    if cut > 0:
        redacted = f"[the first {cut:,} bytes of this log were not kept]\n{redacted}"
    if count or cut > 0:
        replace_text(path, redacted, scratch)
