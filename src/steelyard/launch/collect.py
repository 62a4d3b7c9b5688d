"""Turn the files of an ended task into records in the result folder, independent of the scheduler.

Several processes may collect at once, and each may die at any moment. The launcher's observations are written once
and whole; every process derives the same record from them; the rename of the run's folder decides which one has
collected it.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import shutil
import socket
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, get_args

from steelyard.contracts import observe
from steelyard.derive.record import derive
from steelyard.errors import DamagedDataError, SteelyardError
from steelyard.launch.campaign import MANIFEST_FILE
from steelyard.launch.scripts.task import LIMIT_HIT, Done, read_done
from steelyard.results.store import RAW, RECORD_FILE, create_once, flush_all, record_text, replace_text
from steelyard.rules.statistics.runs import too_short

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from steelyard.contracts.record import RunRecord
    from steelyard.launch.campaign import Campaign, JobArray
    from steelyard.results.store import ResultFolder

ENDED_FILE: Final = "ended.jsonl"
"""In a campaign: one line per collected run, to count results without reading thousands of records."""
MAX_ENDED_BYTES: Final = 1 << 30
CODES: Final = get_args(observe.StatusCode)
TAIL_BYTES: Final = 2000
REASON_CHARACTERS: Final = 300
SIGNALLED: Final = 128


@dataclass(frozen=True)
class RunEnd:
    """How a run of a campaign ended."""

    run_id: str
    code: observe.StatusCode
    reason: str
    short: str = ""
    """Why it was too short to be useful; empty: it was not."""

    @classmethod
    def of(cls, record: RunRecord) -> RunEnd:
        """Return how the run of a record ended."""
        # Of a run in epochs, --extend makes no longer one.
        chosen = record.spec.budget.epochs is not None
        short = "" if chosen else "; ".join(f"{found.code} {found.message}" for found in too_short(record))
        return cls(record.run_id, record.status.code, record.status.reason, short)


def done_lines(campaign: Campaign, job: JobArray, task: int) -> dict[str, Done]:
    """Read the lines of the ended runs of a task, in order; of a damaged file, those before the damage."""
    lines: dict[str, Done] = {}
    with suppress(DamagedDataError):
        for line in read_done(campaign.done_file(job, task)):
            lines.setdefault(line.run_id, line)
    return lines


@dataclass
class Haul:
    """The result of collecting a task."""

    ended: list[RunEnd] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    """Runs whose files give no record; they stay where they are."""


def collect_task(
    folder: ResultFolder, campaign: Campaign, job: JobArray, task: int, said: observe.Scheduled, left: set[str]
) -> Haul:
    """Put all runs of a task into the result folder, except those that another process has collected.

    `left`: ids of the campaign's runs that are not collected.
    """
    image = campaign.plan.image
    said = replace(
        said,
        runs=len(job.tasks[task]),
        image=image.reference if image else said.image,
        digest=(image.digest if image else None) or said.digest,
    )
    folder.open_study(campaign.plan.study)
    haul = Haul()
    made: list[RunRecord] = []
    for run_id, launch in _describe_launches(campaign, job, task, said, left):
        try:
            record = _derive(campaign, run_id, launch)
        except SteelyardError as error:
            haul.problems.append(f"{run_id} cannot be collected: {error}")
            continue
        made += [record] if record is not None else []
    _adopt(folder, campaign, made, haul)
    return haul


def _derive(campaign: Campaign, run: str, launch: observe.Launch) -> RunRecord | None:
    """Write the launch and the record beside the files of a run; None if another process has collected it."""
    made = campaign.path / "runs" / run
    raw = made / RAW
    try:
        create_once(raw / observe.LAUNCH_FILE, record_text(launch), campaign.path, flush=False)
        for path in [raw / observe.COMPILING_FILE, *raw.glob(f"{observe.PROGRESS_FILE}*")]:
            path.unlink(missing_ok=True)
        record = derive(raw)
        replace_text(made / RECORD_FILE, record_text(record), campaign.path)
    except Exception:
        if not made.exists():
            return None
        raise
    return record


def _adopt(folder: ResultFolder, campaign: Campaign, made: Sequence[RunRecord], haul: Haul) -> None:
    """Move runs into the result folder. All files are flushed first: a crash cannot leave a moved run incomplete."""
    runs = campaign.path / "runs"
    flush_all(
        [path for r in made for path in (runs / r.run_id / RAW / observe.LAUNCH_FILE, runs / r.run_id / RECORD_FILE)]
    )
    for record in made:
        run = record.run_id
        try:
            if not folder.adopt(runs / run, record.spec):
                # Also made elsewhere, by hand or by a study on this machine: that record is kept.
                folder.set_aside(runs / run, campaign.plan.study)
                record = folder.read(folder.run_path(record.spec))
        except FileNotFoundError:
            continue
        except SteelyardError as error:
            haul.problems.append(f"{run} cannot be collected: {error}")
            continue
        haul.ended.append(RunEnd.of(record))
    if haul.ended:
        folder.sync_study(campaign.plan.study)
        write_ended(campaign.path, haul.ended)


def _describe_launches(
    campaign: Campaign, job: JobArray, task: int, said: observe.Scheduled, left: set[str]
) -> Iterator[tuple[str, observe.Launch]]:
    runs = job.tasks[task]
    lines = done_lines(campaign, job, task)
    begun = [run for run in runs if run in lines or (run in left and _has_begun(campaign.raw(run)))]
    last = begun[-1] if begun else None
    unbegun = [run for run in runs if run in left and run not in begun]
    if job.kind == "search":
        # A search did not run the candidates it skipped. If it never began, one run represents all.
        for run in unbegun if begun else unbegun[1:]:
            shutil.rmtree(campaign.path / "runs" / run, ignore_errors=True)
        unbegun = [] if begun else unbegun[:1]
    for run in [*(run for run in begun if run in left), *unbegun]:
        word = _narrow_to_run(campaign, job, task, said, lines.get(run), begun=run in begun, last=run == last)
        yield run, _describe_launch(campaign, job, task, run, lines.get(run), word)


def _has_begun(raw: Path) -> bool:
    """Return whether a run has begun; takes its lease if not, and then it never will."""
    if take_lease(raw):
        # Where files are copied here from elsewhere, the lease was taken there.
        return any(raw.glob(observe.EVENTS_PATTERN))
    return (raw / observe.LEASE_FILE).exists()


def take_lease(raw: Path) -> bool:
    """Take the lease of a run to keep any task from starting it; False if the run was started or is gone."""
    try:
        handle = os.open(raw / observe.LEASE_FILE, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    except (FileExistsError, FileNotFoundError):
        # A lease taken by another collector means that the run was not started either.
        return _was_taken(raw)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(f"{TAKEN} {socket.gethostname()} {os.getpid()}\n")
    return True


TAKEN: Final = "never-began:"
"""Marks a lease taken by a collector. A host name has no colon."""


def _was_taken(raw: Path) -> bool:
    try:
        with (raw / observe.LEASE_FILE).open("rb") as file:
            return file.read(len(TAKEN)) == TAKEN.encode()
    except OSError:
        return False


def _narrow_to_run(
    campaign: Campaign,
    job: JobArray,
    task: int,
    said: observe.Scheduled,
    line: Done | None,
    *,
    begun: bool,
    last: bool,
) -> observe.Scheduled:
    """Return what the scheduler's report on a task means for one run: it applies to the last run that began, and later.

    An earlier run, or one that ended well, ended by itself.
    """
    if line is not None:
        return said if last and line.exit_code != LIMIT_HIT else replace(said, cause=None)
    evidence = dict(said.evidence or {})
    printed = campaign.output_file(job, task)
    if "output_tail" not in evidence and printed.is_file() and not printed.is_symlink():
        with printed.open("rb") as file:
            file.seek(max(0, printed.stat().st_size - TAIL_BYTES))
            if tail := file.read(TAIL_BYTES).decode("utf-8", "replace"):
                evidence["output_tail"] = tail
    reason = said.reason
    if begun:
        reason = reason or "the task ended without reporting how this run ended"
    else:
        reason = f"the run never started: {reason or 'the task ended before it'}"
    return replace(said, cause=said.cause or "failed", reason=reason[:4000], evidence=evidence)


def _describe_launch(
    campaign: Campaign, job: JobArray, task: int, run: str, line: Done | None, word: observe.Scheduled
) -> observe.Launch:
    began_s, wall_s = (
        (line.began_unix_s, line.ended_unix_s - line.began_unix_s) if line else _read_times(campaign.raw(run))
    )
    if began_s is None:
        started = word.started_at or word.queued_at or campaign.plan.created_at
    else:
        started = dt.datetime.fromtimestamp(began_s, dt.UTC).isoformat(timespec="milliseconds")
    code = line.exit_code if line else None
    home = campaign.job_folder(job)
    manifest = home / MANIFEST_FILE
    given = (
        ("kubectl", "create", "-f", str(manifest)) if manifest.exists() else ("bash", str(home / "job.sh"), str(task))
    )
    return observe.Launch(
        launcher=word.scheduler,
        host=word.nodes[0] if word.nodes else campaign.plan.site.name,
        command=given,
        started_at=started,
        wall_s=max(0.0, wall_s),
        exit_code=None if code == LIMIT_HIT else SIGNALLED - code if code and code > SIGNALLED else code,
        limit_hit=code == LIMIT_HIT,
        scheduled=word,
    )


def _read_times(raw: Path) -> tuple[float | None, float]:
    """Estimate start and duration of a run without a line from the times of its files."""
    if _was_taken(raw):
        return None, 0.0
    try:
        began_s = (raw / observe.LEASE_FILE).stat().st_mtime
        return began_s, max(entry.stat().st_mtime for entry in os.scandir(raw)) - began_s
    except (OSError, ValueError):
        return None, 0.0


# -- list of collected runs


def write_ended(campaign: Path, ended: Sequence[RunEnd]) -> None:
    """Append how runs ended, in one write. A lost line only costs reading the record."""
    lines = []
    for entry in ended:
        short = {"short": entry.short[:REASON_CHARACTERS]} if entry.short else {}
        line = {"run": entry.run_id, "code": entry.code, "reason": entry.reason[:REASON_CHARACTERS], **short}
        lines.append(json.dumps(line) + "\n")
    with (campaign / ENDED_FILE).open("ab", buffering=0) as file:
        file.write("".join(lines).encode())


def read_ended(campaign: Path) -> dict[str, RunEnd]:
    """Read how the runs of a campaign ended, as far as it was written down."""
    found: dict[str, RunEnd] = {}
    with suppress(FileNotFoundError), (campaign / ENDED_FILE).open("rb") as file:
        for text in file.read(MAX_ENDED_BYTES).splitlines():
            with suppress(ValueError, KeyError, TypeError):
                entry = json.loads(text)
                if entry["code"] not in CODES:
                    continue
                run = str(entry["run"])
                found[run] = RunEnd(run, entry["code"], str(entry["reason"]), str(entry.get("short", "")))
    return found
