"""How a job ended, from what its processes, its launcher and its log say. Knows words and signals, no numbers."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import TYPE_CHECKING

from steelyard.contracts import observe

if TYPE_CHECKING:
    from steelyard.derive.observations import Observations
    from steelyard.errors import SteelyardError

    _Evidence = dict[str, float | int | str]

LOG_TAIL_BYTES = 2000
# Statuses of one job's processes, the one that tells the most first.
CAUSES = ("out_of_memory", "hung", "refused", "failed", "node_failure", "preempted", "killed", "time_limit")
# In torchrun's account of what failed, and in the interpreter's of a hang that holds it.
_RANK_ENDED = re.compile(r"rank\s*:\s*(\d{1,9})\D[^\n]*\n\s*exitcode\s*:\s*(-?\d{1,9})\b")
_NO_MEMORY = re.compile(r"terminate called after throwing an instance of 'std::bad_alloc'")
# What Slurm's daemon on the node prints of a step that it killed for memory; since 25.05 with the time for its name.
_STEP_NO_MEMORY = re.compile(
    r"(slurmstepd\S{0,300}:|\[\d{4}-\d\d-\d\dT[\d:.+Z-]{5,30}\]) error: "
    r"[^\n]{0,300}?(oom.kill|[Ee]xceeded (\w+ )?memory limit)"
)
# Hang-up, interrupt and termination: somebody asked for it.
ORDERS = (1, 2, 15)
_INTERPRETER_HUNG = re.compile(
    r"^Timeout \(\d+:\d\d:\d\d[^\n]*\n((?:(?:Thread|Current thread) [^\n]*\n|  [^\n]*\n|\n)*)", re.MULTILINE
)
_DUMPED_FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.*)$', re.MULTILINE)
SHOWN_RANKS = 8


def job_status(observed: Observations, damage: SteelyardError | None) -> observe.Status:
    """How the job ended, from what each of its processes, the launcher and the scheduler say."""
    statuses, launch = observed.events.statuses, observed.launch
    words = sorted(statuses.values(), key=_said)
    missing = len(words) < observed.spec.processes
    scheduled = launch.scheduled if launch is not None else None
    # Where all ranks have all that was asked, what ended the rest of a task afterwards takes nothing from it.
    done = all(status.code in ("completed", "not_converged") for status in words)
    measured = scheduled is not None and done and not missing
    if scheduled is not None and scheduled.cause is not None and not measured:
        said = _status_by_scheduler(words, scheduled, observed.log_end)
        if said is not None:
            return said
    if launch is not None and launch.limit_hit and not measured:
        return observe.Status(
            code="time_limit",
            reason=f"ended after {launch.wall_s:.1f} s by its time limit",
            evidence={"log_tail": observed.log_end[-LOG_TAIL_BYTES:].decode("utf-8", "replace")},
        )
    causes = [s for s in words if s.code in CAUSES and "follows" not in (s.evidence or {})]
    if causes:
        cause = _with_places(causes[0], words, _log_evidence(observed.log_end)[1] if missing else None)
        for_memory = scheduled is not None and scheduled.cause == "out_of_memory"
        killed = launch is not None and (launch.oom_kills > 0 or for_memory)
        if killed and "DataLoader worker" in cause.reason:
            # A loader process was what the memory limit killed.
            return replace(cause, code="out_of_memory")
        return cause
    if missing and not (damage and words):
        return _status_from_outside(observed)
    # What is left: ranks that saw another go, ranks that were told to end, and those that completed.
    rest = [s for s in words if s.code not in ("completed", "not_converged")]
    if rest:
        return _with_places(rest[0], words)
    if damage is not None:
        return observe.Status(code="failed", reason=f"the observations are damaged: {damage}"[:4000])
    # All ranks say the same of the quality.
    return next((s for s in words if s.code != "completed"), observe.Status(code="completed"))


def _status_by_scheduler(
    words: list[observe.Status], scheduled: observe.Scheduled, log_end: bytes
) -> observe.Status | None:
    """What the scheduler did to a run that could not say it, or only that it was told to end; None: it said more.

    The first word counts: what ranks say after one of them was told to end follows from that.
    """
    first = next((s for s in words if s.code not in ("completed", "not_converged")), None)
    if scheduled.cause is None or (
        first is not None and first.code in CAUSES and "follows" not in (first.evidence or {})
    ):
        return None
    evidence: _Evidence = {"job": scheduled.job, "state": scheduled.state, **(scheduled.evidence or {})}
    if scheduled.nodes:
        evidence["nodes"] = ", ".join(scheduled.nodes[:SHOWN_RANKS])
    evidence |= {key: value for key, value in _log_evidence(log_end)[1].items() if value}
    reason = scheduled.reason or f"{scheduled.scheduler} says {scheduled.state}"
    return _with_places(observe.Status(code=scheduled.cause, reason=reason, evidence=evidence), words)


def _said(status: observe.Status) -> tuple[float, int]:
    """When a rank said it: the first word is the cause of the others. Without a time the one that tells the most."""
    at_s = (status.evidence or {}).get("at_unix_s")
    told = CAUSES.index(status.code) if status.code in CAUSES else len(CAUSES)
    return float(at_s) if isinstance(at_s, (int, float)) else math.inf, told


def _log_evidence(log_end: bytes) -> tuple[str, _Evidence]:
    """What the processes printed last, and of it what a record keeps."""
    log = log_end.decode("utf-8", "replace")
    evidence: _Evidence = {"log_tail": log[-LOG_TAIL_BYTES:]}
    if dump := _INTERPRETER_HUNG.search(log):
        # The main thread is the last in a dump.
        frames = _DUMPED_FRAME.findall(dump[1].rpartition("(most recent call first)")[2])
        evidence["held_by"] = " < ".join(f"{name} ({file}:{line})" for file, line, name in frames)[:4000]
    return log, evidence


def _with_places(
    status: observe.Status, words: list[observe.Status], from_log: _Evidence | None = None
) -> observe.Status:
    """Where each rank stood, when several tell it; the log speaks for those that could not."""
    evidence = {**(status.evidence or {}), **(from_log or {})}
    ranks = [word.evidence for word in words if word.evidence and {"rank", "where"} <= word.evidence.keys()]
    if len(ranks) > 1:
        evidence |= {f"rank_{rank['rank']}": rank["where"] for rank in ranks[:SHOWN_RANKS]}
    return replace(status, evidence=evidence or None)


def _status_from_outside(observed: Observations) -> observe.Status:
    """A process left no status: what the launcher and its log saw must tell."""
    launch, statuses = observed.launch, observed.events.statuses
    log, evidence = _log_evidence(observed.log_end)
    if launch is None:
        return observe.Status(code="failed", reason="neither worker nor launcher left a word", evidence=evidence)
    if launch.oom_kills:
        return observe.Status(
            code="out_of_memory",
            reason="the system killed a process of the job at the control group's memory limit",
            evidence={**evidence, "oom_kills": launch.oom_kills},
        )
    if "held_by" in evidence:
        return observe.Status(code="hung", reason="no block of steps ended within the limit", evidence=evidence)
    if _NO_MEMORY.search(log):
        return observe.Status(code="out_of_memory", reason="the host's memory is exhausted", evidence=evidence)
    if launch.scheduled is not None and _STEP_NO_MEMORY.search(log):
        reason = "Slurm killed it at the memory limit of its job"
        return observe.Status(code="out_of_memory", reason=reason, evidence=evidence)
    silent = [
        (rank, code)
        for rank, code in ((int(found[1]), int(found[2])) for found in _RANK_ENDED.finditer(log))
        if f"events-{rank:05d}.jsonl" not in statuses
    ]
    if silent:
        # The last in torchrun's account is the one that it saw first; those that were asked to end are none.
        rank, code = min(reversed(silent), key=lambda entry: -entry[1] in ORDERS)
        return _ended(code, f"rank {rank}", {**evidence, "rank": rank})
    words = sorted(statuses.values(), key=_said)
    if words and words[0].code == "cancelled":
        return _with_places(words[0], words, evidence)
    return _ended(launch.exit_code, "the worker", evidence)


def _ended(code: int | None, who: str, evidence: _Evidence) -> observe.Status:
    """The end of a process that said nothing; an order to end may come before it can."""
    if code is None or code >= 0:
        return observe.Status(code="failed", reason=f"{who} left exit code {code} and no status", evidence=evidence)
    status: observe.StatusCode = "cancelled" if -code in ORDERS else "killed"
    return observe.Status(code=status, reason=f"{who} ended by signal {-code}", evidence={**evidence, "signal": -code})
