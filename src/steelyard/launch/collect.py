"""Turn the files of an ended task into records in the result folder, independent of the scheduler.

Several processes may collect at once, and each may die at any moment. The launcher's observations are written once
and whole; every process derives the same record from them; the rename of the run's folder decides which one has
collected it.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import signal
import socket
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final, get_args

from steelyard import nofollow
from steelyard.contracts import observe
from steelyard.errors import DamagedDataError, SteelyardError
from steelyard.launch.campaign import MANIFEST_FILE
from steelyard.launch.redacted import redact_log, without_secrets
from steelyard.launch.scripts.task import (
    CHANGED,
    CHANGED_CODE,
    LIMIT_HIT,
    REQUEUED,
    TAKEN,
    TORCHRUN_LOGS,
    Done,
    read_done,
    read_tail,
)
from steelyard.redact import redact
from steelyard.results.store import RAW, RECORD_FILE, copy_over, create_once, flush_all, record_text, replace_text
from steelyard.rules.statistics.runs import too_short

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Sequence
    from pathlib import Path

    from steelyard.contracts.record import RunRecord
    from steelyard.launch.campaign import Campaign, JobArray
    from steelyard.results.store import ResultFolder

ENDED_FILE: Final = "ended.jsonl"
"""In a campaign: one line per collected run, to count results without reading thousands of records."""
MAX_ENDED_BYTES: Final = 1 << 28
MAX_ENDED_LINE: Final = 10_000
CODES: Final = get_args(observe.StatusCode)
TAIL_BYTES: Final = 2000
LONG_TAIL_BYTES: Final = 1 << 16
REASON_CHARACTERS: Final = 300
SIGNALLED: Final = 128
MAX_DERIVED: Final = 10
"""Times that a record is derived because files appear; each worker makes a few, once."""
OOM_KILLED: Final = "OOMKilled"
"""The state of a Kubernetes container with a process that the memory limit has killed."""


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
        short = "" if chosen else "; ".join(f"{finding.code} {finding.message}" for finding in too_short(record))
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

    @contextmanager
    def attempt(self, made: Path) -> Iterator[None]:
        """Do something with the folder of a run. What goes wrong with its files is a problem of this run only."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 -- the files are untrusted
            try:
                nofollow.stat(made)
            except FileNotFoundError:
                # Another process has collected it.
                return
            except nofollow.LinkError:
                pass
            what = str(error) if isinstance(error, SteelyardError | OSError) else f"{type(error).__name__}: {error}"
            self.problems.append(f"{made.name} cannot be collected: {what}")


def collect_task(
    folder: ResultFolder,
    campaign: Campaign,
    job: JobArray,
    task: int,
    said: observe.Scheduled,
    left: set[str],
    lost: str = "",
) -> Haul:
    """Put all runs of a task into the result folder, except those that another process has collected.

    `left`: ids of the campaign's runs that are not collected. `lost`: why files of the task are missing.
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
    lines = done_lines(campaign, job, task)
    begun, unbegun = _sort(campaign, job, task, lines, left, haul, lost=bool(lost))
    made: list[RunRecord] = []
    sealed: dict[str, set[str]] = {}
    for run in [*(run for run in begun if run in left), *unbegun]:
        # The campaign's own folder takes the files that are being written.
        with haul.attempt(_made(campaign, run)), nofollow.held(campaign.path):
            last = bool(begun) and run == begun[-1]
            word = _narrow_to_run(campaign, job, task, said, lines.get(run), begun=run in begun, last=last, lost=lost)
            launch = _describe_launch(campaign, job, task, run, lines.get(run), word)
            # All its processes have ended if the starter said so; a program may leave others behind.
            over = (line := lines.get(run)) is not None and line.exit_code == 0 and not job.shape.program
            if not over:
                sealed[run] = _seal(campaign, run)
            made.append(_derive(campaign, run, launch, sealed.get(run)))
    _adopt(folder, campaign, made, sealed, haul)
    return haul


def _made(campaign: Campaign, run: str) -> Path:
    return campaign.path / "runs" / run


def _seal(campaign: Campaign, run: str) -> set[str]:
    """Replace each file of a run by a copy of its own; return their names.

    A worker whose node lost its daemon may live on: it appends to the files that it has open, which are no longer the
    run's.
    """
    raw = campaign.raw(run)
    with nofollow.held(raw):
        # The logs of torchrun, which their job removes unless it is killed.
        nofollow.remove_tree(raw / TORCHRUN_LOGS)
        names = set(nofollow.names(raw))
        for name in sorted(names):
            if nofollow.is_file(raw / name):
                copy_over(raw / name, campaign.path)
    return names


def _derive(campaign: Campaign, run: str, launch: observe.Launch, sealed: set[str] | None) -> RunRecord:
    """Write the launch and the record beside the files of a run; of those in `sealed` alone, unless that is None."""
    # It imports numpy, which a study that is planned here can do without.
    from steelyard.derive.record import derive

    made = _made(campaign, run)
    raw = made / RAW
    with nofollow.held(made), nofollow.held(raw):
        create_once(raw / observe.LAUNCH_FILE, record_text(without_secrets(launch)), campaign.path, flush=False)
        redact_log(raw, campaign.path)
        _remove(raw, {name for name in nofollow.names(raw) if _is_passing(name)})
        for _ in range(MAX_DERIVED):
            record = derive(raw)
            # A worker that lives on makes each of its files once; what it made meanwhile may be in the record.
            late = _unsealed(raw, sealed) if sealed is not None else set()
            late = {name for name in late if not _is_passing(name)}
            if not late:
                break
            _remove(raw, late)
        else:
            raise SteelyardError("its processes live on and keep making files; end them first")
        replace_text(made / RECORD_FILE, record_text(record), campaign.path)
    return record


def _is_passing(name: str) -> bool:
    """Return whether a file only tells how far a run is."""
    return name == observe.COMPILING_FILE or name.startswith(observe.PROGRESS_FILE)


def _unsealed(raw: Path, sealed: set[str]) -> set[str]:
    return set(nofollow.names(raw)) - sealed - {observe.LAUNCH_FILE}


def _remove(raw: Path, names: set[str]) -> None:
    for name in names:
        nofollow.remove(raw / name)


def _adopt(
    folder: ResultFolder, campaign: Campaign, made: Sequence[RunRecord], sealed: dict[str, set[str]], haul: Haul
) -> None:
    """Move runs into the result folder. All files are flushed first: a crash cannot leave a moved run incomplete.

    `sealed`: names of the files that were copied, by run.
    """
    runs = campaign.path / "runs"
    flush_all(
        [path for r in made for path in (runs / r.run_id / RAW / observe.LAUNCH_FILE, runs / r.run_id / RECORD_FILE)]
        + [runs / run / RAW / name for run, names in sealed.items() for name in names]
    )
    for record in made:
        run = record.run_id
        with haul.attempt(runs / run):
            if not folder.adopt(runs / run, record.spec):
                # Also made elsewhere, by hand or by a study on this machine: that record is kept.
                folder.set_aside(runs / run, campaign.plan.study)
                record = folder.read(folder.run_path(record.spec))
            elif run in sealed:
                # What appeared since is not in the record, and its writer may still have it open.
                raw = folder.run_path(record.spec) / RAW
                _remove(raw, _unsealed(raw, sealed[run]))
            haul.ended.append(RunEnd.of(record))
    if haul.ended:
        folder.sync_study(campaign.plan.study)
        write_ended(campaign.path, haul.ended)


def _sort(
    campaign: Campaign, job: JobArray, task: int, lines: dict[str, Done], left: set[str], haul: Haul, *, lost: bool
) -> tuple[list[str], list[str]]:
    """Return the runs of a task that have begun, and those that are left and never will.

    `lost`: what shows that a run has begun may be missing.
    """
    begun: list[str] = []
    unbegun: list[str] = []
    for run in job.tasks[task]:
        if run in lines:
            begun.append(run)
        elif run in left:
            with haul.attempt(_made(campaign, run)):
                (begun if _has_begun(campaign.raw(run), lost=lost) else unbegun).append(run)
    if job.kind == "search":
        # A search did not run the candidates it skipped. If it never began, one run represents all.
        for run in unbegun if begun else unbegun[1:]:
            nofollow.remove_tree(_made(campaign, run))
        unbegun = [] if begun else unbegun[:1]
    return begun, unbegun


def _has_begun(raw: Path, *, lost: bool) -> bool:
    """Return whether a run has begun; takes its lease if not, and then it never will.

    If files are lost, the lease is not taken: it would say that the run never began.
    """
    if not lost and take_lease(raw):
        # Where files are copied here from elsewhere, the lease was taken there.
        return any(fnmatchcase(name, observe.EVENTS_PATTERN) for name in nofollow.names(raw))
    return nofollow.is_file(raw / observe.LEASE_FILE)


def take_lease(raw: Path) -> bool:
    """Take the lease of a run to keep any task from starting it; False if the run was started or is gone."""
    try:
        with nofollow.open_file(raw / observe.LEASE_FILE, "x") as file:
            file.write(f"{TAKEN} {socket.gethostname()} {os.getpid()}\n".encode())
    except (FileExistsError, FileNotFoundError):
        # A lease taken by another collector means that the run was not started either.
        return _was_taken(raw)
    return True


def _was_taken(raw: Path) -> bool:
    try:
        with nofollow.open_file(raw / observe.LEASE_FILE) as file:
            return bool(file.read(len(TAKEN)) == TAKEN.encode())
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
    lost: str,
) -> observe.Scheduled:
    """Return what the scheduler's report on a task means for one run: it applies to the last run that began, and later.

    An earlier run, or one that ended well, ended by itself. `lost`: why files of the task are missing.
    """
    if line is not None and line.exit_code == CHANGED_CODE:
        return replace(said, cause="failed", reason=CHANGED)
    if line is not None and said.state == OOM_KILLED:
        # Any process of the container may have been killed, in any of its runs.
        return said if line.exit_code == SIGNALLED + signal.SIGKILL else replace(said, cause=None)
    if line is not None:
        return said if last and line.exit_code != LIMIT_HIT else replace(said, cause=None)
    evidence = dict(said.evidence or {})
    # Twice as much is redacted: the tail may begin inside a secret.
    if "output_tail" not in evidence and (tail := read_tail(campaign.output_file(job, task), 2 * TAIL_BYTES)):
        evidence["output_tail"] = redact(tail)[0][-TAIL_BYTES:]
    reason = CHANGED if CHANGED in str(evidence.get("output_tail")) else said.reason
    if lost:
        reason = f"results lost: {lost}; {reason}" if reason else f"results lost: {lost}"
        return replace(said, cause=said.cause or "lost", reason=reason[:4000], evidence=evidence)
    if begun and not (last and said.cause) and REQUEUED in read_tail(campaign.output_file(job, task), LONG_TAIL_BYTES):
        said, reason = replace(said, cause="preempted"), "the job was requeued during this run; no run starts twice"
    elif begun:
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
    by_manifest = nofollow.is_file(manifest)
    given = ("kubectl", "create", "-f", str(manifest)) if by_manifest else ("bash", str(home / "job.sh"), str(task))
    return observe.Launch(
        launcher=word.scheduler,
        host=word.nodes[0] if word.nodes else campaign.plan.site.name,
        command=given,
        started_at=started,
        wall_s=max(0.0, wall_s),
        exit_code=None if code == LIMIT_HIT else SIGNALLED - code if code and code > SIGNALLED else code,
        limit_hit=code == LIMIT_HIT,
        oom_kills=line.oom_kills if line else 0,
        scheduled=word,
    )


def _read_times(raw: Path) -> tuple[float | None, float]:
    """Estimate start and duration of a run without a line from the times of its files."""
    if _was_taken(raw):
        return None, 0.0
    try:
        began_s = nofollow.stat(raw / observe.LEASE_FILE).st_mtime
        return began_s, max(nofollow.stat(raw / name).st_mtime for name in nofollow.names(raw)) - began_s
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
    with nofollow.open_file(campaign / ENDED_FILE, "a") as file:
        file.write("".join(lines).encode())


def read_ended(campaign: Path, runs: Container[str]) -> dict[str, RunEnd]:
    """Read how these runs of a campaign ended, as far as it was written down."""
    ends: dict[str, RunEnd] = {}
    read_bytes = 0
    with suppress(FileNotFoundError), nofollow.open_file(campaign / ENDED_FILE) as file:
        while (text := file.readline(MAX_ENDED_LINE)) and read_bytes < MAX_ENDED_BYTES:
            read_bytes += len(text)
            with suppress(ValueError, KeyError, TypeError, AttributeError, RecursionError):
                entry = json.loads(text)
                run = entry["run"]
                if entry["code"] in CODES and run in runs:
                    ends[run] = RunEnd(run, entry["code"], str(entry["reason"]), str(entry.get("short", "")))
    return ends
