"""Derive how a job ended from the reports of its processes, its launcher, the scheduler and its log."""

from __future__ import annotations

import math
import re
import signal
from dataclasses import replace
from typing import TYPE_CHECKING

from steelyard.contracts import observe
from steelyard.derive.program import BY_LIMIT
from steelyard.out_of_memory import degree

if TYPE_CHECKING:
    from steelyard.contracts.record import WrappedRun
    from steelyard.derive.observations import Observations
    from steelyard.errors import SteelyardError

    _Evidence = dict[str, float | int | str]

LOG_TAIL_BYTES = 2000
# Statuses of the processes of a job, the most specific first.
CAUSES = ("out_of_memory", "hung", "refused", "failed", "node_failure", "preempted", "killed", "time_limit", "lost")
# In torchrun's list of failures, and in the traceback that Python dumps when it hangs.
_RANK_ENDED = re.compile(r"rank\s*:\s*(\d{1,9})\D[^\n]*\n\s*exitcode\s*:\s*(-?\d{1,9})\b")
# What the C++ library prints about an error that nobody caught: its class, and up to two lines of its message.
_UNCAUGHT = re.compile(r"terminate called after throwing an instance of '[^'\n]{1,200}'(\n[^\n]{0,2000}){0,2}")
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
# The last line of a traceback, which torchrun and torch may put the rank before.
_RAISED = re.compile(r"(?:\[\w{1,20}\]:? ?){0,3}([A-Za-z_][\w.]{0,100}(?:Error|Exception)\b[^\n]{0,2000})")
# What Python prints where torchrun is not installed.
_NO_TORCHRUN = re.compile(r"'torch\.distributed\.run' \(ModuleNotFoundError: (No module named '[\w.]{1,100}')\)")
SHOWN_RANKS = 8
SHOWN_ERROR = 500
SHELL = 128
SHARES_MEMORY = "the accelerator and the processor share the node's memory"


def job_status(observed: Observations, damage: SteelyardError | None) -> observe.Status:
    """Return how the job ended."""
    if observed.program is not None:
        return _program_status(observed, observed.program.seen, damage)
    return _workers_status(observed, damage)


def _workers_status(observed: Observations, damage: SteelyardError | None) -> observe.Status:
    """Return how the job of a workload ended, whose workers report their status."""
    statuses, launch = observed.events.statuses, observed.launch
    reports = sorted(statuses.values(), key=_said)
    missing = len(reports) < observed.spec.processes
    scheduled = launch.scheduled if launch is not None else None
    # If all ranks have finished their measurement, it does not matter what ended the task afterwards.
    done = all(status.code in observe.MEASURED for status in reports)
    measured = scheduled is not None and done and not missing
    if scheduled is not None and scheduled.cause is not None and not measured:
        said = _status_by_scheduler(reports, scheduled, observed.log_end)
        if said is not None:
            return said
    if launch is not None and launch.limit_hit and not measured:
        return _time_limit(launch.wall_s, observed.log_end)
    causes = _causes(reports)
    if causes:
        cause = _with_places(causes[0], reports, _log_evidence(observed.log_end)[1] if missing else None)
        for_memory = scheduled is not None and scheduled.cause == "out_of_memory"
        killed = launch is not None and (launch.oom_kills > 0 or for_memory)
        if killed and "DataLoader worker" in cause.reason:
            # The memory limit killed a loader process.
            return replace(cause, code="out_of_memory")
        return cause
    if missing and not (damage and reports):
        outside = _status_from_outside(observed)
        if damage is None or outside.code != "failed":
            return outside
        # A report may have been in what cannot be read.
        return replace(damaged_status(str(damage)), evidence=outside.evidence)
    # The rest: ranks that saw another one end, ranks that were told to end, and those that completed.
    rest = [s for s in reports if s.code not in observe.MEASURED]
    if rest:
        return _with_places(rest[0], reports)
    if damage is not None:
        return damaged_status(str(damage))
    # All ranks report the same quality.
    return next((s for s in reports if s.code != "completed"), observe.Status(code="completed"))


def _program_status(observed: Observations, seen: WrappedRun, damage: SteelyardError | None) -> observe.Status:
    """Return how a program ended: it is complete if it says so, or if it was ended at the limit that the user set."""
    launch, end, wrapped = observed.launch, seen.end, observed.events.wrapped.values()
    stopped = bool(wrapped) and all(report.stopped for report in wrapped)
    # Another node may not have come to its end.
    cut = launch is not None and (launch.limit_hit or bool(launch.exit_code))
    whole = end is not None and end.exit_code == 0 and end.ended_by != "time limit" and not cut
    if end is not None and (whole or end.ended_by in BY_LIMIT or stopped):
        return observe.Status(code="completed") if damage is None else damaged_status(str(damage))
    reports = sorted(observed.events.statuses.values(), key=_said)
    if launch is not None and launch.scheduled is not None and launch.scheduled.cause is not None:
        said = _status_by_scheduler(reports, launch.scheduled, observed.log_end)
        if said is not None:
            return said
    if end is not None and end.ended_by == "time limit":
        return _time_limit(end.wall_s, observed.log_end)
    if launch is not None and launch.limit_hit:
        return _time_limit(launch.wall_s, observed.log_end)
    evidence = _log_evidence(observed.log_end)[1]
    if end is not None:
        # A shell reports a signal as an exit code above 128.
        signalled = end.exit_code is not None and 0 < end.exit_code - SHELL < signal.NSIG
        number = end.signal or (end.exit_code - SHELL if signalled and end.exit_code is not None else 0)
        evidence |= {"exit_code": end.exit_code} if end.exit_code is not None else {}
        evidence |= {"signal": number} if number else {}
    # That a program failed is all that its supervisor knows; its output tells more.
    if causes := [cause for cause in _causes(reports) if end is None or cause.code != "failed"]:
        return _with_places(causes[0], reports, evidence)
    outside = _status_from_outside(observed)
    if end is not None and outside.code == "failed" and "rank" not in (outside.evidence or {}):
        outside = _ended(-number if number else end.exit_code, "the program", evidence, shares=False, reports=False)
    if damage is not None and outside.code == "failed":
        return replace(damaged_status(str(damage)), evidence=outside.evidence)
    told = end is not None and end.ended_by == "signal"
    return replace(_as_told(outside) if told else outside, evidence={**(outside.evidence or {}), **evidence})


def _as_told(status: observe.Status) -> observe.Status:
    """Return the status of a program that was told to end: torchrun and others then end with an error of their own."""
    if status.code != "failed":
        return status
    return replace(status, code="cancelled", reason=f"it was told to end by a signal; {status.reason}")


def _causes(reports: list[observe.Status]) -> list[observe.Status]:
    """Return the reports that do not follow from others."""
    return [s for s in reports if s.code in CAUSES and "follows" not in (s.evidence or {})]


def _time_limit(wall_s: float, log_end: bytes) -> observe.Status:
    return observe.Status(
        code="time_limit",
        reason=f"ended by its time limit after {wall_s:.1f} s",
        evidence={"log_tail": log_end[-LOG_TAIL_BYTES:].decode("utf-8", "replace")},
    )


def damaged_status(what: str) -> observe.Status:
    """Return the status of a run whose raw files are damaged."""
    return observe.Status(code="failed", reason=f"the observations are damaged: {what}"[:4000])


def without_crosscheck(
    status: observe.Status, observed: Observations, damage: SteelyardError | None
) -> tuple[observe.Status, str | None]:
    """Return the status of the measurement, and why the cross-check after it failed, if it did.

    If every process had measured, nothing that happens later changes that, except damage to its files. The first
    failure is the reason: the others wait for that rank until their connection or the watchdog ends them.
    """
    events = observed.events
    failures = sorted(events.crosscheck_failures, key=lambda failure: failure.at_unix_s)
    told = [f"rank {failure.rank}: {failure.reason}"[:4000] for failure in failures]
    if status.code in observe.MEASURED:
        return status, told[0] if told else None
    lacking = len(events.measured) < observed.spec.processes or not events.statuses.keys() <= events.measured.keys()
    if damage is not None or lacking:
        return status, None
    measured = next((s for s in events.measured.values() if s.code != "completed"), observe.Status(code="completed"))
    # Other ranks fail when one that hangs or is killed is gone: then its end is the reason.
    follows = told and status.code in ("failed", "cancelled")
    return measured, told[0] if follows else f"{status.code}: {status.reason}"[:4000]


def _status_by_scheduler(
    reports: list[observe.Status], scheduled: observe.Scheduled, log_end: bytes
) -> observe.Status | None:
    """Return the scheduler's cause for a run that could not report one; None if the run itself reported more.

    The first report counts: what ranks report after one of them was told to end follows from that.
    """
    first = next((s for s in reports if s.code not in observe.MEASURED), None)
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
    return at_s if isinstance(at_s, (int, float)) else math.inf, told


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
    if launch is None and observed.program is None:
        return observe.Status(code="failed", reason="neither worker nor launcher left a status", evidence=evidence)
    place = observed.events.environment
    shares = place is not None and place.facts.get("device.shares_memory") == "yes"
    if launch is not None and launch.oom_kills:
        reason = "the system killed a process at the memory limit of its control group"
        return observe.Status(
            code="out_of_memory",
            reason=f"{reason}; {SHARES_MEMORY}" if shares else reason,
            evidence={**evidence, "oom_kills": launch.oom_kills},
        )
    if "held_by" in evidence:
        return observe.Status(code="hung", reason="no block of steps ended within the limit", evidence=evidence)
    uncaught = _UNCAUGHT.search(log)
    if uncaught and degree(uncaught[0]) in ("certain", "likely"):
        whose = "host memory" if "bad_alloc" in uncaught[0] else "memory"
        words = " ".join(uncaught[0].partition("what():")[2].split())
        reason = f"{whose} is exhausted" + (f": {words}" if words else "")
        return observe.Status(code="out_of_memory", reason=reason, evidence=evidence)
    if observed.program is not None and (raised := _raised_for_memory(log)):
        return observe.Status(code="out_of_memory", reason=raised[:SHOWN_ERROR], evidence=evidence)
    if launch is not None and launch.scheduled is not None and _STEP_NO_MEMORY.search(log):
        reason = "Slurm killed the run at the memory limit of its job"
        return observe.Status(code="out_of_memory", reason=reason, evidence=evidence)
    if (missing := _NO_TORCHRUN.search(log)) and not statuses:
        # As the worker says it, which torchrun would have started.
        reason = f"torch cannot be imported here: {missing[1]}; next: pip install torch, or use a container that has it"
        return observe.Status(code="refused", reason=reason, evidence=evidence)
    silent = [
        (rank, code)
        for rank, code in ((int(match[1]), int(match[2])) for match in _RANK_ENDED.finditer(log))
        if f"events-{rank:05d}.jsonl" not in statuses
    ]
    if silent:
        # The last in torchrun's list failed first; ranks that were told to end are not the cause.
        rank, code = min(reversed(silent), key=lambda entry: -entry[1] in ORDERS)
        place_of = {**evidence, "rank": rank}
        return _ended(code, f"rank {rank}", place_of, shares=shares, reports=observed.program is None)
    reports = sorted(statuses.values(), key=_said)
    if reports and reports[0].code == "cancelled":
        return _with_places(reports[0], reports, evidence)
    return _ended(launch.exit_code if launch is not None else None, "the worker", evidence, shares=shares)


def _raised_for_memory(log: str) -> str:
    """Return the last error in the output of a program, if it is about memory; empty otherwise."""
    last = next((match for line in reversed(log.splitlines()) if (match := _RAISED.match(line))), None)
    return last[1] if last is not None and degree(last[1]) in ("certain", "likely") else ""


def _ended(code: int | None, who: str, evidence: _Evidence, *, shares: bool, reports: bool = True) -> observe.Status:
    """Return the status of a process that reported nothing; a signal to end may come before it can.

    `reports`: it should have reported a status, which the processes of a program do not.
    """
    if code is None or code >= 0:
        reason = f"{who} ended with exit code {code}"
        return observe.Status(code="failed", reason=f"{reason} and no status" if reports else reason, evidence=evidence)
    status: observe.StatusCode = "cancelled" if -code in ORDERS else "killed"
    reason = f"{who} was ended by signal {-code}"
    if -code == signal.SIGKILL and shares:
        # The kernel leaves no count of what it kills for the whole machine.
        reason += f"; {SHARES_MEMORY}, and the kernel ends processes when it is exhausted"
    return observe.Status(code=status, reason=reason, evidence={**evidence, "signal": -code})
