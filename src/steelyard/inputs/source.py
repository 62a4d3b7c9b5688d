"""A workload of the user's own, given as FILE.py:FUNCTION. Knows paths and digests; reads the file, runs nothing."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from steelyard.contracts.spec import Source
from steelyard.errors import InputError, Problem
from steelyard.inputs.validate import read_bounded

MAX_SOURCE_BYTES = 1 << 20
_FORM = re.compile(r"(?P<path>.*\.py):(?P<function>[A-Za-z_][A-Za-z0-9_]{0,79})")


def find_source(workload: str, folder: Path | None, *, below: Path | None) -> Source | None:
    """The source that `workload` names, seen from `folder`; None when it is a registered name.

    `below`: a study may come from a stranger, and names files of its own folder only.
    """
    named = _FORM.fullmatch(workload)
    if named is None:
        if "/" in workload or ".py" in workload:
            problem = Problem("workload", f"{workload!r} is neither a name nor a function", "./my.py:build")
            raise InputError("the workload cannot be found", problems=(problem,))
        return None
    if folder is None:
        raise InputError("a study without a file of its own cannot name a workload by its file")
    try:
        path = (folder / named["path"]).resolve()
    except (OSError, ValueError, RuntimeError):
        # One that leads nowhere (a NUL in it, a link to itself) is the user's to fix.
        problem = Problem("workload", f"{named['path'][:80]!r} is no path", "./my.py:build")
        raise InputError("the workload cannot be found", problems=(problem,)) from None
    if below is not None and not path.is_relative_to(below.resolve()):
        problem = Problem(
            "workload", f"{named['path']!r} lies outside the study's folder", "a file beside the study or below"
        )
        raise InputError("the workload is not allowed", problems=(problem,))
    digest = hashlib.sha256(read_bounded(path, MAX_SOURCE_BYTES)).hexdigest()
    return Source(path=str(path), function=named["function"], sha256=digest)


def workload_name(source: Source) -> str:
    """What the workload is called in tables and directories."""
    stem = re.sub(r"[^A-Za-z0-9_.-]", "_", Path(source.path).stem).lstrip("_.-")[:40]
    return f"{stem or 'own'}.{source.function}"[:80]
