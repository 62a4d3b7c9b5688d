"""Parse what squeue and sacct print, and work out the state of a task. Calls neither.

The commands are set to UTC, untruncated fields and `|` as separator.
"""

from __future__ import annotations

import pwd
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from steelyard.contracts import observe
from steelyard.errors import DamagedDataError, SteelyardError
from steelyard.launch.campaign import TaskState
from steelyard.launch.scripts.task import read_done, read_tail
from steelyard.launch.slurm.output import cause_in

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from steelyard.launch.campaign import Phase

SQUEUE_FIELDS: Final = "%F|%K|%T|%r|%N|%V|%S|%M|%j"
"""Job id of the array, index or indexes, state, reason, nodes, submit time, start time, time used, name."""
SACCT_FIELDS: Final = "JobID,State,ExitCode,NodeList,Submit,Start,ElapsedRaw,ConsumedEnergyRaw,Suspended,JobName"
TAIL_BYTES: Final = 16_384
MAX_INDEX: Final = 4_000_000  # Slurm's own bound of MaxArraySize is 4,000,001
MAX_TASKS: Final = 1_000_000
"""The most tasks in one answer; a line of squeue may stand for millions."""
MAX_NODES: Final = 10_000
MAX_DIGITS: Final = 12
# What Slurm writes for "no value" (NO_VAL, INFINITE) in 32 and 64 bits, sources in slurm.h.in.
NO_VALUES: Final = frozenset({2**32 - 2, 2**32 - 1, 2**64 - 2, 2**64 - 1})
SUSPENDED: Final = "suspended by Slurm: its time goes on, its processes do not"
GONE: Final = "GONE"
"""Our state for a task that Slurm no longer knows; it keeps ended jobs for MinJobAge, or in its accounting."""
ACCOUNT_LAG_S: Final = 600
"""How long accounting may lag behind the controller before we no longer trust that a task is running."""
OUTPUT_SIGNAL: Final = 53
"""The signal that Slurm reports if the folder or output file of a batch script could not be opened on the node."""

# Names from Slurm's page on job states (job_state_codes.html). A state that is not here counts as running.
_QUEUED: Final = frozenset(
    (
        "PENDING",
        "CONFIGURING",
        "REQUEUED",
        "REQUEUE_FED",
        "REQUEUE_HOLD",
        "SPECIAL_EXIT",
        "RESV_DEL_HOLD",
        "POWER_UP_NODE",
    )
)
ENDS: Final[dict[str, tuple[observe.StatusCode | None, str]]] = {
    "COMPLETED": (None, ""),
    "TIMEOUT": ("time_limit", "Slurm ended the job at its time limit"),
    "DEADLINE": ("time_limit", "Slurm ended the job at its deadline"),
    "OUT_OF_MEMORY": ("out_of_memory", "Slurm killed the job at its memory limit"),
    "NODE_FAIL": ("node_failure", "a node of the job failed or was set down"),
    "BOOT_FAIL": ("node_failure", "a node of the job did not boot"),
    "LAUNCH_FAILED": ("node_failure", "Slurm could not launch the job on its nodes"),
    "RECONFIG_FAIL": ("node_failure", "a node of the job could not be reconfigured"),
    "PREEMPTED": ("preempted", "preempted by a job of higher priority"),
    "CANCELLED": ("cancelled", "the job was cancelled"),
    "FAILED": ("failed", "the job script failed"),
}
"""States in which a job has ended, with the status that follows for a run without a result."""
_MEANINGS: Final[dict[observe.StatusCode, str]] = {
    "time_limit": "Slurm ended the job at its time limit",
    "out_of_memory": "Slurm killed the job at its memory limit",
    "node_failure": "a node of the job failed or was set down",
    "preempted": "preempted by a job of higher priority",
    "cancelled": "the job was cancelled",
}
# A job that is pending for one of these reasons never starts by itself.
_HOPELESS: Final = re.compile(
    r"DependencyNeverSatisfied|BadConstraints|InvalidAccount|InvalidQOS|PartitionTimeLimit|PartitionNodeLimit|"
    r"JobHeld(?:User|Admin)|launch.failed.requeued.held|ReservationDeleted|JobHoldMaxRequeue|"
    r"(?:Account|QOS)NotAllowed|(?:QOS|Assoc)Max\w{1,30}PerJob"
)
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d")
_USED: Final = re.compile(r"(?:(\d{1,6})-)?(?:(\d{1,3}):)?(\d{1,3}):(\d\d)")
_RANGE: Final = re.compile(r"(\d{1,7})(?:-(\d{1,7})(?::(\d{1,7}))?)?")
_BY: Final = re.compile(r"CANCELLED by (\d{1,10})")
_BRACKETS: Final = re.compile(r"([^\[\],]*)\[([\d,-]+)\]([^\[\],]*)")

T = TypeVar("T")
TaskKey = tuple[str, int]
"""Slurm's job id and the number of a task."""


@dataclass(frozen=True)
class TaskLine:
    """One line of squeue or sacct about a task."""

    job_id: str
    name: str
    state: str
    """The state without additions such as "by 1000"."""
    reason: str
    nodes: str
    queued_at: str | None
    started_at: str | None
    elapsed_s: float | None
    exit_code: int | None = None
    signal: int | None = None
    energy_j: float | None = None
    cancelled_by: int | None = None
    suspended_s: float | None = None
    numbered: bool = True
    """False: the line does not give the index of the task, or whether the job is an array."""

    @property
    def phase(self) -> Phase:
        """The phase of the task that this state means."""
        if self.state in ENDS:
            return "ended"
        return "queued" if self.state in _QUEUED else "running"


# -- parsing --------------------------------------------------------------------------------------------------


def read_squeue(text: str) -> dict[TaskKey, TaskLine]:
    """Parse the output of squeue with SQUEUE_FIELDS."""
    by_task: dict[TaskKey, TaskLine] = {}
    for line in text.splitlines():
        fields = line.split("|", 8)
        if len(fields) < 9:
            continue
        job, tasks, state, reason, nodes, queued, started, used, name = fields
        told = TaskLine(job, name, state, reason, nodes, _utc(queued), _utc(started), seconds_of(used))
        _add(by_task, job, tasks, told)
    return by_task


def _add(by_task: dict[TaskKey, T], job: str, tasks: str, told: T) -> None:
    """Add what a line says to all its tasks."""
    for task in indexes(tasks):
        by_task[job, task] = told
        if len(by_task) > MAX_TASKS:
            raise SteelyardError(f"Slurm lists more than {MAX_TASKS:,} tasks")


def read_exit_codes(text: str) -> dict[TaskKey, int]:
    """Parse wait statuses from the output of squeue with --Format=ArrayJobID,ArrayTaskID,exit_code."""
    by_task: dict[TaskKey, int] = {}
    for words in (line.split() for line in text.splitlines()):
        if len(words) == 3 and words[0].isdecimal() and (status := small_number(words[2])) is not None:
            _add(by_task, words[0], words[1], status)
    return by_task


def read_sacct(text: str) -> dict[TaskKey, TaskLine]:
    """Parse the output of sacct with SACCT_FIELDS."""
    by_task: dict[TaskKey, TaskLine] = {}
    for line in text.splitlines():
        fields = line.split("|", 9)
        if len(fields) < 10:
            continue
        place, state, code, nodes, queued, started, elapsed, energy, suspended, name = fields
        job, _, tasks = place.partition("_")
        exit_code, _, signal = code.partition(":")
        by = _BY.match(state)
        told = TaskLine(
            job_id=job,
            name=name,
            state=state.split(" ")[0],
            reason="",
            nodes="" if nodes == "None assigned" else nodes,
            queued_at=_utc(queued),
            started_at=_utc(started),
            elapsed_s=_number(elapsed),
            exit_code=small_number(exit_code),
            signal=small_number(signal),
            # Slurm writes 0 where nobody measures energy.
            energy_j=_number(energy) or None,
            suspended_s=seconds_of(suspended) or None,
            cancelled_by=int(by[1]) if by else None,
            numbered=bool(tasks),
        )
        _add(by_task, job, tasks.strip("[]"), told)
    return by_task


def indexes(text: str) -> Iterator[int]:
    """Expand Slurm's array notation (3, 0-20:2%1, 1,4-6) to task numbers. A job that is not an array is task 0."""
    if text in ("", "N/A"):
        yield 0
        return
    for part in text.partition("%")[0].split(","):
        if match := _RANGE.fullmatch(part):
            first, last = int(match[1]), int(match[2] or match[1])
            yield from range(first, min(last, MAX_INDEX) + 1, max(1, int(match[3] or 1)))


def node_names(text: str) -> tuple[str, ...]:
    """Expand Slurm's list of nodes, such as n[1-3,7],login; keep what cannot be parsed."""
    names: list[str] = []
    for part in re.findall(r"[^\[\],]+(?:\[[^\]]*\][^\[\],]*)*", text[:100_000]):
        match = _BRACKETS.fullmatch(part)
        if match is None:
            names.append(part)
            continue
        for piece in match[2].split(","):
            first, _, last = piece.partition("-")
            begin, end = small_number(first), small_number(last or first)
            if begin is None or end is None:
                continue
            end = min(end, begin + MAX_NODES - len(names))
            names += [f"{match[1]}{number:0{len(first)}d}{match[3]}" for number in range(begin, end + 1)]
    return tuple(names[:MAX_NODES])


def _utc(text: str) -> str | None:
    return f"{text}+00:00" if _TIME.fullmatch(text) else None


def seconds_of(text: str) -> int | None:
    """Parse Slurm's duration [DAYS-][HOURS:]MINUTES:SECONDS; None if it is something else."""
    match = _USED.fullmatch(text)
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def small_number(text: str) -> int | None:
    """Return a number of a few digits; None if it is something else."""
    return int(text) if text.isdecimal() and len(text) < MAX_DIGITS else None


def _number(text: str) -> float | None:
    return float(text) if text.isdecimal() and len(text) < 20 and int(text) not in NO_VALUES else None


# -- meaning --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Traces:
    """The files that a task itself has left behind."""

    output: Path
    """The output of the task and of slurmstepd."""
    done: Path
    runs: int
    """Number of runs of the task."""

    def tail(self) -> str:
        """Return the end of the output."""
        return read_tail(self.output, TAIL_BYTES)

    def settled(self) -> bool:
        """Return whether the files alone show that the task is over."""
        return cause_in(self.tail()) is not None or self.finished()

    def finished(self) -> bool:
        """Return whether every run has a line in TASK.done."""
        try:
            return sum(1 for _ in read_done(self.done)) >= self.runs
        except (OSError, DamagedDataError):
            return False


def state_of(
    queue: TaskLine | None, account: TaskLine | None, traces: Traces, task: int, limit_s: float
) -> TaskState | None:
    """Work out the state of a task from the queue, accounting and its own files; None if Slurm never knew it."""
    now = queue or account
    if now is None:
        return None
    if now.state == "REVOKED":
        # Another cluster of the federation has the job and may be making its runs: only its files show its end.
        where = "moved to another cluster of the federation: squeue --federation"
        return state_of_forgotten(now.job_id, traces, task) if traces.settled() else TaskState("running", why=where)
    if queue is None and now.phase != "ended":
        # The controller has forgotten the job, and accounting may not have its end yet.
        if now.phase == "running" and (now.elapsed_s or 0.0) <= limit_s + ACCOUNT_LAG_S:
            return TaskState("running")
        return state_of_forgotten(now.job_id, traces, task)
    if now.phase != "ended":
        hopeless = "; will not start by itself" if _HOPELESS.search(now.reason) else ""
        waiting = now.phase == "queued" and now.reason not in ("", "None")
        suspended = SUSPENDED if now.state in ("SUSPENDED", "STOPPED") else ""
        return TaskState(now.phase, why=f"{now.reason}{hopeless}" if waiting else suspended)
    return TaskState(
        "ended", _describe_end(now, account if account and account.phase == "ended" else None, traces, task)
    )


def state_of_forgotten(job_id: str, traces: Traces, task: int) -> TaskState:
    """Return the state of a task that Slurm no longer knows, from its own files."""
    printed = cause_in(traces.tail())
    evidence: dict[str, float | int | str] = {"state": GONE}
    cause: observe.StatusCode | None = "failed"
    reason = "Slurm no longer knows the job, has no accounting of it, and the job left no sign of how it ended"
    if printed is not None:
        cause, evidence["output"] = printed
        reason = f"{_MEANINGS[cause]}, according to its output; Slurm no longer knows the job"
    elif traces.finished():
        cause, reason = None, "Slurm no longer knows the job; all of its runs have ended"
    said = observe.Scheduled(
        scheduler="slurm",
        job=f"{job_id}_{task}",
        state=GONE,
        cause=cause,
        reason=reason,
        evidence=evidence,
        runs=traces.runs,
    )
    # Without such a sign a worker may still be alive: the caller watches for a while whether the files change.
    return TaskState("ended" if traces.settled() else "unknown", said)


def _describe_end(now: TaskLine, account: TaskLine | None, traces: Traces, task: int) -> observe.Scheduled:
    best = account or now
    cause, reason, evidence = _find_cause(now, account, traces)
    ran = bool(best.nodes)
    return observe.Scheduled(
        scheduler="slurm",
        job=f"{now.job_id}_{task}",
        state=now.state,
        cause=cause,
        reason=reason,
        evidence=evidence,
        nodes=node_names(best.nodes),
        queued_at=best.queued_at or now.queued_at,
        # For a job that never ran Slurm gives the time at which it was cancelled.
        started_at=(best.started_at or now.started_at) if ran else None,
        elapsed_s=best.elapsed_s if ran else None,
        energy_j=best.energy_j if ran else None,
        suspended_s=best.suspended_s,
        runs=traces.runs,
    )


def _find_cause(
    now: TaskLine, account: TaskLine | None, traces: Traces
) -> tuple[observe.StatusCode | None, str, dict[str, float | int | str]]:
    """Return the status, reason and evidence for the end of a task."""
    cause, reason = ENDS[now.state]
    evidence: dict[str, float | int | str] = {"state": now.state}
    exit_code, signal = (best.exit_code, best.signal) if (best := account or now) else (None, None)
    if exit_code is not None:
        evidence["exit_code"] = exit_code
    if signal:
        evidence["signal"] = signal
    if now.reason not in ("", "None"):
        evidence["reason"] = now.reason
    if cause is None:
        return None, "", evidence
    printed = cause_in(traces.tail())
    if printed is not None:
        evidence["output"] = printed[1]
        # Slurm's own lines are more specific; but a failed job also has a line about a cancelled step.
        if now.state in ("FAILED", "CANCELLED") and printed[0] != "cancelled":
            cause, reason = printed[0], _MEANINGS[printed[0]]
    if cause == "cancelled":
        reason = f"{reason} {_explain_cancelling(account, now, evidence)}"
    if cause == "failed":
        cause, reason = _explain_failure(exit_code, signal)
    return cause, reason, evidence


def _explain_cancelling(account: TaskLine | None, now: TaskLine, evidence: dict[str, float | int | str]) -> str:
    when = "while it was pending" if not now.nodes else "while it was running"
    if account is None or account.cancelled_by is None:
        return f"{when}; Slurm does not report by whom"
    number = account.cancelled_by
    try:
        who = pwd.getpwuid(number).pw_name
    except KeyError:
        who = "a user unknown on this machine"
    evidence["cancelled_by"] = f"{who} (uid {number})"
    return f"{when}, by {who} (uid {number})"


def _explain_failure(exit_code: int | None, signal: int | None) -> tuple[observe.StatusCode, str]:
    if signal == OUTPUT_SIGNAL:
        return "failed", "Slurm could not start the job: its folder or output file cannot be opened on the node"
    ended_by = signal or (exit_code - 128 if exit_code is not None and 128 < exit_code < 193 else None)
    if ended_by:
        return "killed", f"the job script was ended by signal {ended_by}, reason unknown"
    return (
        "failed",
        "the job script failed" if exit_code is None else f"the job script ended with exit code {exit_code}",
    )


def wait_status(number: int) -> tuple[int, int]:
    """Split a wait status, as squeue prints it, into exit code and signal."""
    signal = number & 0x7F
    return (0, signal) if signal else (number >> 8 & 0xFF, 0)
