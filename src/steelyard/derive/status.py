"""Derive how a job ended from the reports of its processes, its launcher, the scheduler and its log."""

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
# Statuses of the processes of a job, the most specific first.
CAUSES = ("out_of_memory", "hung", "refused", "failed", "node_failure", "preempted", "killed", "time_limit")
# In torchrun's list of failures, and in the traceback that Python dumps when it hangs.
_RANK_ENDED = re.compile(r"rank\s*:\s*(\d{1,9})\D[^\n]*\n\s*exitcode\s*:\s*(-?\d{1,9})\b")
_NO_MEMORY = re.compile(r"terminate called after throwing an instance of 'std::bad_alloc'")
# What slurmstepd prints about a step that it killed for its memory; since 25.05 with the time instead of its name.
_STEP_NO_MEMORY = re.compile(
    r"(slurmstepd\S{0,300}:|\[\d{4}-\d\d-\d\dT[\d:.+Z-]{5,30}\]) error: "
    r"[^\n]{0,300}?(oom.kill|[Ee]xceeded (\w+ )?memory limit)"
)
# Hang-up, interrupt and termination: somebody requested the end.
ORDERS = (1, 2, 15)
_INTERPRETER_HUNG = re.compile(
    r"^Timeout \(\d+:\d\d:\d\d[^\n]*\n((?:(?:Thread|Current thread) [^\n]*\n|  [^\n]*\n|\n)*)", re.MULTILINE
)
_DUMPED_FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.*)$', re.MULTILINE)
SHOWN_RANKS = 8


def job_status(observed: Observations, damage: SteelyardError | None) -> observe.Status:
    """Return how the job ended."""
    statuses, launch = observed.events.statuses, observed.launch
    reports = sorted(statuses.values(), key=_said)
    missing = len(reports) < observed.spec.processes
    scheduled = launch.scheduled if launch is not None else None
    # If all ranks have finished their measurement, it does not matter what ended the task afterwards.
    done = all(status.code in ("completed", "not_converged") for status in reports)
    measured = scheduled is not None and done and not missing
    if scheduled is not None and scheduled.cause is not None and not measured:
        said = _status_by_scheduler(reports, scheduled, observed.log_end)
        if said is not None:
            return said
    if launch is not None and launch.limit_hit and not measured:
        return observe.Status(
            code="time_limit",
            reason=f"ended by its time limit after {launch.wall_s:.1f} s",
            evidence={"log_tail": observed.log_end[-LOG_TAIL_BYTES:].decode("utf-8", "replace")},
        )
    causes = [s for s in reports if s.code in CAUSES and "follows" not in (s.evidence or {})]
    if causes:
        cause = _with_places(causes[0], reports, _log_evidence(observed.log_end)[1] if missing else None)
        for_memory = scheduled is not None and scheduled.cause == "out_of_memory"
        killed = launch is not None and (launch.oom_kills > 0 or for_memory)
        if killed and "DataLoader worker" in cause.reason:
            # The memory limit killed a loader process.
            return replace(cause, code="out_of_memory")
        return cause
    if missing and not (damage and reports):
        return _status_from_outside(observed)
    # The rest: ranks that saw another one end, ranks that were told to end, and those that completed.
    rest = [s for s in reports if s.code not in ("completed", "not_converged")]
    if rest:
        return _with_places(rest[0], reports)
    if damage is not None:
        return observe.Status(code="failed", reason=f"the observations are damaged: {damage}"[:4000])
    # All ranks report the same quality.
    return next((s for s in reports if s.code != "completed"), observe.Status(code="completed"))


def _status_by_scheduler(
    reports: list[observe.Status], scheduled: observe.Scheduled, log_end: bytes
) -> observe.Status | None:
    """Return the scheduler's cause for a run that could not report one; None if the run itself reported more.

    The first report counts: what ranks report after one of them was told to end follows from that.
    """
    first = next((s for s in reports if s.code not in ("completed", "not_converged")), None)
    if scheduled.cause is None or (
        first is not None and first.code in CAUSES and "follows" not in (first.evidence or {})
    ):
        return None
    evidence: _Evidence = {"job": scheduled.job, "state": scheduled.state, **(scheduled.evidence or {})}
    if scheduled.nodes:
        evidence["nodes"] = ", ".join(scheduled.nodes[:SHOWN_RANKS])
    evidence |= {key: value for key, value in _log_evidence(log_end)[1].items() if value}
    reason = scheduled.reason or f"{scheduled.scheduler} reports {scheduled.state}"
    return _with_places(observe.Status(code=scheduled.cause, reason=reason, evidence=evidence), reports)


def _said(status: observe.Status) -> tuple[float, int]:
    """Sort key: the earliest report is the cause of the others; without a time, the most specific one."""
    at_s = (status.evidence or {}).get("at_unix_s")
    told = CAUSES.index(status.code) if status.code in CAUSES else len(CAUSES)
    return float(at_s) if isinstance(at_s, (int, float)) else math.inf, told


def _log_evidence(log_end: bytes) -> tuple[str, _Evidence]:
    """Return the end of the output, and what a record keeps of it."""
    log = log_end.decode("utf-8", "replace")
    evidence: _Evidence = {"log_tail": log[-LOG_TAIL_BYTES:]}
    if dump := _INTERPRETER_HUNG.search(log):
        # The main thread is the last in a dump.
        frames = _DUMPED_FRAME.findall(dump[1].rpartition("(most recent call first)")[2])
        evidence["held_by"] = " < ".join(f"{name} ({file}:{line})" for file, line, name in frames)[:4000]
    return log, evidence


def _with_places(
    status: observe.Status, reports: list[observe.Status], from_log: _Evidence | None = None
) -> observe.Status:
    """Add where each rank was, if several report it; and the log for ranks that could not report."""
    evidence = {**(status.evidence or {}), **(from_log or {})}
    ranks = [report.evidence for report in reports if report.evidence and {"rank", "where"} <= report.evidence.keys()]
    if len(ranks) > 1:
        evidence |= {f"rank_{rank['rank']}": rank["where"] for rank in ranks[:SHOWN_RANKS]}
    return replace(status, evidence=evidence or None)


def _status_from_outside(observed: Observations) -> observe.Status:
    """Return the status of a job if a process left none, from what the launcher and the log show."""
    launch, statuses = observed.launch, observed.events.statuses
    log, evidence = _log_evidence(observed.log_end)
    if launch is None:
        return observe.Status(code="failed", reason="neither worker nor launcher left a status", evidence=evidence)
    if launch.oom_kills:
        return observe.Status(
            code="out_of_memory",
            reason="the system killed a process at the memory limit of its control group",
            evidence={**evidence, "oom_kills": launch.oom_kills},
        )
    if "held_by" in evidence:
        return observe.Status(code="hung", reason="no block of steps ended within the limit", evidence=evidence)
    if _NO_MEMORY.search(log):
        return observe.Status(code="out_of_memory", reason="host memory is exhausted", evidence=evidence)
    if launch.scheduled is not None and _STEP_NO_MEMORY.search(log):
        reason = "Slurm killed the run at the memory limit of its job"
        return observe.Status(code="out_of_memory", reason=reason, evidence=evidence)
    silent = [
        (rank, code)
        for rank, code in ((int(found[1]), int(found[2])) for found in _RANK_ENDED.finditer(log))
        if f"events-{rank:05d}.jsonl" not in statuses
    ]
    if silent:
        # The last in torchrun's list failed first; ranks that were told to end are not the cause.
        rank, code = min(reversed(silent), key=lambda entry: -entry[1] in ORDERS)
        return _ended(code, f"rank {rank}", {**evidence, "rank": rank})
    reports = sorted(statuses.values(), key=_said)
    if reports and reports[0].code == "cancelled":
        return _with_places(reports[0], reports, evidence)
    return _ended(launch.exit_code, "the worker", evidence)


def _ended(code: int | None, who: str, evidence: _Evidence) -> observe.Status:
    """Return the status of a process that reported nothing; a signal to end may come before it can."""
    if code is None or code >= 0:
        return observe.Status(
            code="failed", reason=f"{who} ended with exit code {code} and no status", evidence=evidence
        )
    status: observe.StatusCode = "cancelled" if -code in ORDERS else "killed"
    reason = f"{who} was ended by signal {-code}"
    return observe.Status(code=status, reason=reason, evidence={**evidence, "signal": -code})
