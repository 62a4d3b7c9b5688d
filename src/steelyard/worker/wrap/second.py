"""What the ranks of a program counted in its second pass, added to the events of the run."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from steelyard.contracts import observe, wrap
from steelyard.contracts.base import from_json_object
from steelyard.errors import SteelyardError
from steelyard.worker.measure.writer import EventLog

if TYPE_CHECKING:
    from pathlib import Path

KIND = "second"
REASON_CHARACTERS = 1000
LAST_CHARACTERS = 300


def keep(scratch: Path, raw: Path, end: wrap.ProgramEnd) -> None:
    """Add what the ranks counted to their own events; if none did, why not."""
    passes = {}
    for path in sorted(scratch.glob(observe.EVENTS_PATTERN)):
        with suppress(SteelyardError, ValueError):
            for event in observe.read_events(path):
                if event.pop("kind") == KIND:
                    passes[path.name] = from_json_object(wrap.SecondPass, event)
    for name, counted in passes.items():
        if (raw / name).exists():
            _write(raw, int(name.split("-")[1].split(".")[0]), counted)
    if passes:
        return
    how = f"it was ended after {end.wall_s:.0f} s" if end.ended_by == "time limit" else f"signal {end.signal}"
    if end.ended_by == "itself" and end.exit_code is not None:
        with (scratch / observe.WORKER_LOG).open("rb") as log:
            log.seek(max(0, end.output_bytes - 4 * LAST_CHARACTERS))
            last = " ".join(log.read().decode("utf-8", "replace").split())[-LAST_CHARACTERS:]
        how = f"exit code {end.exit_code}: {last}"
    say_why_not(raw, f"no rank counted anything: {how}")


def say_why_not(raw: Path, reason: str) -> None:
    """Add to the events of the first rank here that nothing was counted."""
    first = min(raw.glob(observe.EVENTS_PATTERN), default=None)
    if first is not None:
        rank = int(first.name.split("-")[1].split(".")[0])
        _write(raw, rank, wrap.SecondPass(rank=rank, reason=reason[:REASON_CHARACTERS]))


def _write(raw: Path, process: int, counted: wrap.SecondPass) -> None:
    log = EventLog(raw, process, append=True)
    log.write(KIND, counted)
    log.close()
