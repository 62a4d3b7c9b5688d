"""What the launcher adds to the files of a run, without secrets: its own observations, and the log of the worker."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from steelyard import nofollow
from steelyard.contracts import observe
from steelyard.contracts.base import from_json_object, to_json_object
from steelyard.redact import clean, redact
from steelyard.results.store import replace_text

if TYPE_CHECKING:
    from pathlib import Path

MAX_LOG_BYTES: Final = 1 << 25


def without_secrets(launch: observe.Launch) -> observe.Launch:
    """Return the observations of a launcher with secrets redacted, such as those in a command or a scheduler's text."""
    told, count = clean(to_json_object(launch))
    return from_json_object(observe.Launch, told) if count else launch


def redact_log(raw: Path, scratch: Path) -> None:
    """Redact secrets in the log of a run that has ended; `scratch`: a folder on the same file system.

    Only the end of a very long log is kept.
    """
    path = raw / observe.WORKER_LOG
    try:
        with nofollow.open_file(path) as file:
            cut = file.seek(0, os.SEEK_END) - MAX_LOG_BYTES
            file.seek(max(0, cut))
            text = file.read(MAX_LOG_BYTES).decode("utf-8", "replace")
    except (FileNotFoundError, nofollow.LinkError):
        # A link is damage, which the record of the run states.
        return
    redacted, count = redact(text)
    if cut > 0:
        redacted = f"[the first {cut:,} bytes of this log were not kept]\n{redacted}"
    if count or cut > 0:
        replace_text(path, redacted, scratch)
