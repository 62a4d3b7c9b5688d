"""Reads a Slurm job's state: what squeue and sacct print, and what it means for a task. Calls neither.

Texts come from commands that were told to speak UTC, to cut nothing off, and to put a bar between fields.
"""

from __future__ import annotations

import pwd
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from steelyard.contracts import observe
from steelyard.launch.campaign import TaskState
from steelyard.launch.slurm.output import cause_in

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from steelyard.launch.campaign import Phase

SQUEUE_FIELDS: Final = "%F|%K|%T|%r|%N|%V|%S|%M|%j"
"""Array's id, index or indexes, state, reason, nodes, submitted, started, time used, name."""
SACCT_FIELDS: Final = "JobID,State,ExitCode,NodeList,Submit,Start,ElapsedRaw,ConsumedEnergyRaw,JobName"
TAIL_BYTES: Final = 16_384
MAX_INDEX: Final = 4_000_000  # Slurm's own bound of MaxArraySize is 4,000,001
MAX_NODES: Final = 10_000
# What Slurm writes for "no value" (NO_VAL, INFINITE) in 32 and 64 bits, sources in slurm.h.in.
NO_VALUES: Final = frozenset({2**32 - 2, 2**32 - 1, 2**64 - 2, 2**64 - 1})
GONE: Final = "GONE"
"""Our word for a task that Slurm has forgotten; it keeps what has ended for MinJobAge, or in its accounting."""
ACCOUNT_LAG_S: Final = 600
"""How long the account may lag behind the controller before its word of a running task is not believed."""
OUTPUT_SIGNAL: Final = 53
"""Slurm's mark of a batch script whose folder or output file could not be opened on the node."""

# Names from Slurm's page on job states (job_state_codes.html). What is not here is taken as still going on.
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
_ENDS: Final[dict[str, tuple[observe.StatusCode | None, str]]] = {
    "COMPLETED": (None, ""),
    "TIMEOUT": ("time_limit", "Slurm ended it at its time limit"),
    "DEADLINE": ("time_limit", "Slurm ended it at its deadline"),
    "OUT_OF_MEMORY": ("out_of_memory", "Slurm killed it at its memory limit"),
    "NODE_FAIL": ("node_failure", "a node of it failed or was set down"),
    "BOOT_FAIL": ("node_failure", "a node of it did not boot"),
    "LAUNCH_FAILED": ("node_failure", "Slurm could not launch it on its nodes"),
    "RECONFIG_FAIL": ("node_failure", "a node of it could not be reconfigured"),
    "PREEMPTED": ("preempted", "Slurm ended it for a job of higher priority"),
    "CANCELLED": ("cancelled", "it was cancelled"),
    "FAILED": ("failed", "its script failed"),
}
_WORD_MEANINGS: Final[dict[observe.StatusCode, str]] = {
    "time_limit": "Slurm ended it at its time limit",
    "out_of_memory": "Slurm killed it at its memory limit",
    "node_failure": "a node of it failed or was set down",
    "preempted": "Slurm ended it for a job of higher priority",
    "cancelled": "it was cancelled",
}
# Waiting for these never ends by itself.
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

TaskKey = tuple[str, int]
"""Slurm's id of a job and a task's number."""


@dataclass(frozen=True)
class TaskLine:
    """What one line of squeue or sacct says of a task."""

    job_id: str
    name: str
    state: str
    """The first word alone."""
    reason: str
    nodes: str
    queued_at: str | None
    started_at: str | None
    elapsed_s: float | None
    exit_code: int | None = None
    signal: int | None = None
    energy_j: float | None = None
    cancelled_by: int | None = None
    numbered: bool = True
    """False: the line does not say which task of an array it is about, or whether there is an array."""

    @property
    def phase(self) -> Phase:
        """Where it stands."""
        if self.state in _ENDS:
            return "ended"
        return "queued" if self.state in _QUEUED else "running"


# -- texts ----------------------------------------------------------------------------------------------------


def read_squeue(text: str) -> dict[TaskKey, TaskLine]:
    """The tasks in what squeue printed with SQUEUE_FIELDS."""
    found: dict[TaskKey, TaskLine] = {}
    for line in text.splitlines():
        fields = line.split("|", 8)
        if len(fields) < 9:
            continue
        job, tasks, state, reason, nodes, queued, started, used, name = fields
        told = TaskLine(job, name, state, reason, nodes, _utc(queued), _utc(started), seconds_of(used))
        found |= {(job, task): told for task in indexes(tasks)}
    return found


def read_exit_codes(text: str) -> dict[TaskKey, int]:
    """Wait statuses, of what squeue printed with --Format=ArrayJobID,ArrayTaskID,exit_code."""
    found: dict[TaskKey, int] = {}
    for words in (line.split() for line in text.splitlines()):
        if len(words) == 3 and words[0].isdecimal() and words[2].isdecimal():
            found |= {(words[0], task): int(words[2]) for task in indexes(words[1])}
    return found


def read_sacct(text: str) -> dict[TaskKey, TaskLine]:
    """The tasks in what sacct printed with SACCT_FIELDS."""
    found: dict[TaskKey, TaskLine] = {}
    for line in text.splitlines():
        fields = line.split("|", 8)
        if len(fields) < 9:
            continue
        place, state, code, nodes, queued, started, elapsed, energy, name = fields
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
            exit_code=int(exit_code) if exit_code.isdecimal() else None,
            signal=int(signal) if signal.isdecimal() else None,
            # Nothing runs without energy: 0 is what Slurm writes where nobody measures.
            energy_j=_number(energy) or None,
            cancelled_by=int(by[1]) if by else None,
            numbered=bool(tasks),
        )
        found |= {(job, task): told for task in indexes(tasks.strip("[]"))}
    return found


def indexes(text: str) -> Iterator[int]:
    """The tasks in Slurm's form of an array: 3, 0-20:2%1, 1,4-6. A job that is no array is task 0."""
    if text in ("", "N/A"):
        yield 0
        return
    for part in text.partition("%")[0].split(","):
        if found := _RANGE.fullmatch(part):
            first, last = int(found[1]), int(found[2] or found[1])
            yield from range(first, min(last, MAX_INDEX) + 1, max(1, int(found[3] or 1)))


def node_names(text: str) -> tuple[str, ...]:
    """The nodes in Slurm's form of a list: n[1-3,7],login. What it does not understand stays as it is."""
    names: list[str] = []
    for part in re.findall(r"[^\[\],]+(?:\[[^\]]*\][^\[\],]*)*", text[:100_000]):
        found = _BRACKETS.fullmatch(part)
        if found is None:
            names.append(part)
            continue
        for piece in found[2].split(","):
            first, _, last = piece.partition("-")
            if not (first.isdecimal() and (last or first).isdecimal()):
                continue
            end = min(int(last or first), int(first) + MAX_NODES)
            names += [f"{found[1]}{number:0{len(first)}d}{found[3]}" for number in range(int(first), end + 1)]
    return tuple(names[:MAX_NODES])


def _utc(text: str) -> str | None:
    return f"{text}+00:00" if _TIME.fullmatch(text) else None


def seconds_of(text: str) -> int | None:
    """A length of time as Slurm writes it, [DAYS-][HOURS:]MINUTES:SECONDS; None: it writes something else."""
    found = _USED.fullmatch(text)
    if found is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def _number(text: str) -> float | None:
    return float(text) if text.isdecimal() and len(text) < 20 and int(text) not in NO_VALUES else None


# -- what it means --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Traces:
    """What a task itself has left behind."""

    output: Path
    """What it printed, and what slurmstepd printed for it."""
    done: Path
    runs: int
    """How many the task has."""

    def tail(self) -> str:
        """The end of its output."""
        try:
            with self.output.open("rb") as file:
                file.seek(0, 2)
                file.seek(max(0, file.tell() - TAIL_BYTES))
                return file.read(TAIL_BYTES).decode("utf-8", "replace")
        except OSError:
            return ""

    def settled(self) -> bool:
        """Whether they tell by themselves that the task is over, and how."""
        return cause_in(self.tail()) is not None or self.finished()

    def finished(self) -> bool:
        """Whether every run has a line that says how it ended."""
        try:
            with self.done.open("rb") as file:
                return sum(1 for _ in file) >= self.runs
        except OSError:
            return False


def state_of(
    queue: TaskLine | None, account: TaskLine | None, traces: Traces, task: int, limit_s: float
) -> TaskState | None:
    """What is known of a task by the queue, the account and its own traces; None: nothing, it was never heard of."""
    now = queue or account
    if now is None:
        return None
    if now.state == "REVOKED":
        # Another cluster of the federation has it, and may be making its runs: only what it leaves tells of its end.
        where = "another cluster of a federation has it: squeue --federation"
        return state_of_forgotten(now.job_id, traces, task) if traces.settled() else TaskState("running", why=where)
    if queue is None and now.phase != "ended":
        # The controller has forgotten it, and the account has not heard of its end: for a while it may yet.
        if now.phase == "running" and (now.elapsed_s or 0.0) <= limit_s + ACCOUNT_LAG_S:
            return TaskState("running")
        return state_of_forgotten(now.job_id, traces, task)
    if now.phase != "ended":
        hopeless = "; will not start by itself" if _HOPELESS.search(now.reason) else ""
        waiting = now.phase == "queued" and now.reason not in ("", "None")
        return TaskState(now.phase, why=f"{now.reason}{hopeless}" if waiting else "")
    return TaskState(
        "ended", _describe_end(now, account if account and account.phase == "ended" else None, traces, task)
    )


def state_of_forgotten(job_id: str, traces: Traces, task: int) -> TaskState:
    """A task that was queued once and that Slurm does not know any more: its own output is all there is."""
    word = cause_in(traces.tail())
    evidence: dict[str, float | int | str] = {"state": GONE}
    cause: observe.StatusCode | None = "failed"
    reason = "Slurm has forgotten the task, keeps no account of it, and it left no word of its end"
    if word is not None:
        cause, evidence["output"] = word
        reason = f"{_WORD_MEANINGS[cause]}, by its output; Slurm has forgotten it"
    elif traces.finished():
        cause, reason = None, "Slurm has forgotten it; all its runs say how they ended"
    said = observe.Scheduled(
        scheduler="slurm",
        job=f"{job_id}_{task}",
        state=GONE,
        cause=cause,
        reason=reason,
        evidence=evidence,
        runs=traces.runs,
    )
    # Without a word of its own a worker of it may be alive: whoever asks looks for a while whether its files change.
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
        # Of one that never ran Slurm gives the time at which it was cancelled.
        started_at=(best.started_at or now.started_at) if ran else None,
        elapsed_s=best.elapsed_s if ran else None,
        energy_j=best.energy_j if ran else None,
        runs=traces.runs,
    )


def _find_cause(
    now: TaskLine, account: TaskLine | None, traces: Traces
) -> tuple[observe.StatusCode | None, str, dict[str, float | int | str]]:
    """What a task's end means, in words, and the evidence for it."""
    cause, reason = _ENDS[now.state]
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
    word = cause_in(traces.tail())
    if word is not None:
        evidence["output"] = word[1]
        # Slurm's own lines tell more than a bare end; but a cancelled step also says so when the job failed.
        if now.state in ("FAILED", "CANCELLED") and word[0] != "cancelled":
            cause, reason = word[0], _WORD_MEANINGS[word[0]]
    if cause == "cancelled":
        reason = f"{reason} {_explain_cancelling(account, now, evidence)}"
    if cause == "failed":
        cause, reason = _explain_failure(exit_code, signal)
    return cause, reason, evidence


def _explain_cancelling(account: TaskLine | None, now: TaskLine, evidence: dict[str, float | int | str]) -> str:
    when = "while it waited" if not now.nodes else "while it ran"
    if account is None or account.cancelled_by is None:
        return f"{when}; Slurm does not say by whom"
    number = account.cancelled_by
    try:
        who = pwd.getpwuid(number).pw_name
    except KeyError:
        who = "a user without a name here"
    evidence["cancelled_by"] = f"{who} (uid {number})"
    return f"{when}, by {who} (uid {number})"


def _explain_failure(exit_code: int | None, signal: int | None) -> tuple[observe.StatusCode, str]:
    if signal == OUTPUT_SIGNAL:
        return "failed", "Slurm could not start it: its folder or output file cannot be opened on the node"
    ended_by = signal or (exit_code - 128 if exit_code is not None and 128 < exit_code < 193 else None)
    if ended_by:
        return "killed", f"its script ended by signal {ended_by}, and nobody says why"
    return "failed", "its script failed" if exit_code is None else f"its script ended with exit code {exit_code}"


def wait_status(number: int) -> tuple[int, int]:
    """Exit code and signal of a wait status, as squeue prints it."""
    signal = number & 0x7F
    return (0, signal) if signal else (number >> 8 & 0xFF, 0)
