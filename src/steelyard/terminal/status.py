"""The status of studies submitted to a site, and submitted campaigns, as lines and as plain data."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Final

from steelyard.contracts.base import to_json_object
from steelyard.errors import printable
from steelyard.launch.follow import NOT_POLLED
from steelyard.terminal.drawing import MARKS, duration, fit, state_of
from steelyard.terminal.findings import command_line, next_line
from steelyard.terminal.text import many, number, table, wrapped

if TYPE_CHECKING:
    from collections import Counter

    from steelyard.launch.adopt import Takeover
    from steelyard.launch.campaign import Campaign, Plan
    from steelyard.launch.follow import Sent, StudyStatus
    from steelyard.terminal.shapes.measure import CampaignData, StudySentData, SubmittedStudyData, TakeoverData

SHOWN_CAUSES: Final = 10
SHOWN_CELLS: Final = 40
SHOWN_IDS: Final = 5
LABEL_CHARACTERS: Final = 40
NO_FIT: Final = "out_of_memory"
"""Not a failure: a rerun would end in the same way, and a search looks for it."""
# Columns, and the states that each counts; runs with another status failed.
COLUMNS: Final = (
    ("waiting", ("planned", "queued", "unknown", NOT_POLLED)),
    ("running", ("running",)),
    ("ended", ("ended",)),
    ("completed", ("completed",)),
    ("not converged", ("not_converged",)),
    ("out of memory", (NO_FIT,)),
)
SELDOM: Final = ("not converged", "out of memory")
"""Columns that are shown only if they have an entry."""
PLACES: Final = {name: place for place, name in enumerate(MARKS)}
COUNTED: Final = frozenset(state for _, states in COLUMNS for state in states)


def status_lines(status: StudyStatus, *, verbose: bool = False) -> list[str]:
    """Format the state of each configuration, why runs failed, and the next command. `verbose`: also paths and jobs."""
    cells, labels = status.cells, status.labels
    names = [name for name, count in _counts(status.totals).items() if count != "-" or name not in SELDOM]
    every = [
        (fit(labels.get(cell, cell), LABEL_CHARACTERS), counts) for cell, counts in list(cells.items())[:SHOWN_CELLS]
    ]
    if len(cells) > 1:
        every.append(("all" if len(cells) <= SHOWN_CELLS else f"all {len(cells)} configurations", status.totals))
    rows = [[what, *(_counts(counts)[name] for name in names)] for what, counts in every]
    lines = [
        printable(f"Study {status.study}"),
        *(line for sent in status.campaigns for line in _sent_lines(sent, verbose=verbose)),
    ]
    lines += ["", table(["configuration", *names], rows)] if rows else []
    lines += _why_lines(status) + foreign_lines(status) + _cause_lines(status) + short_lines(status)
    for problem in status.problems:
        first, *others = problem.splitlines()
        for line in (f"error: {first}", *others):
            lines += wrapped(line)
    return [*lines, *_next_lines(status)]


def progress_line(status: StudyStatus) -> str:
    """Count the runs by state, in one line."""
    totals = status.totals
    said = ", ".join(f"{count} {name}" for name, count in _counts(totals).items() if count != "-")
    missing = f"; {status.problems[0].splitlines()[0]}" if status.problems else ""
    return printable(f"{status.study}: {many(totals.total(), 'run')}: {said or 'none'}{missing}")


def grid_cells(status: StudyStatus) -> dict[str, list[str]]:
    """Return the states of the runs of each configuration, in the order of the grid."""
    cells: dict[str, list[str]] = {}
    for cell, counts in status.cells.items():
        states = [state for code, count in counts.items() for state in [state_of(code)] * count]
        cells[status.labels.get(cell, cell)] = sorted(states, key=PLACES.__getitem__)
    return cells


def waiting_lines(status: StudyStatus) -> list[str]:
    """List why runs wait, and the jobs that are not finished."""
    lines = _why_lines(status)
    for sent in status.campaigns:
        lines += _sent_lines(sent, verbose=True) if sent.left else []
    return lines


def status_object(status: StudyStatus) -> SubmittedStudyData:
    """Return the status of a study as plain data."""
    return {
        "study": status.study,
        "open": len(status.waiting),
        "collected": status.collected,
        "totals": dict(status.totals),
        "configurations": [
            {
                "configuration": status.labels.get(cell, cell),
                "selection": f"{status.study}/{cell}",
                "statuses": dict(counts),
            }
            for cell, counts in status.cells.items()
        ],
        "causes": [
            {"status": code, "reason": reason, "runs": count} for (code, reason), count in status.causes.most_common()
        ],
        "too_short": [entry.run_id for entry in status.short],
        "waits_for": dict(status.why),
        "halted": dict(status.halted),
        "campaigns": [
            {
                "path": str(sent.path),
                "site": sent.site,
                "pool": sent.pool,
                "jobs": sent.jobs,
                "tasks": sent.tasks,
                "runs": sent.runs,
                "left": sent.left,
                "withdrawn": sent.withdrawn,
                "vanished": sent.vanished,
                "ids": list(sent.ids),
            }
            for sent in status.campaigns
        ],
        "not_ours": status.foreign,
        "problems": status.problems,
    }


def foreign_lines(status: StudyStatus) -> list[str]:
    """Say which campaigns are only read, and how to take them over."""
    lines = []
    for campaign, owner in status.foreign.items():
        lines += wrapped(
            f"Campaign {campaign} was not submitted by you from here (it seems to be from {owner}) and is only read; "
            f"to take it over: {command_line(f'steelyard status {status.study} --adopt')}"
        )
    return lines


def takeover_lines(study: str, takeovers: list[Takeover], digest: str) -> list[str]:
    """Format what taking over campaigns would do, and the command that does it."""
    if not takeovers:
        return [printable(f"All open campaigns of {study} are yours")]
    lines = []
    for takeover in takeovers:
        plan = takeover.campaign.plan
        name = takeover.campaign.path.name
        lines += wrapped(f"Campaign {name} seems to be from {takeover.owner}. Taking it over would")
        lines += wrapped(f"poll {plan.site.scheduler} at {plan.site.name} (pool {plan.pool})", "  ")
        ids = ", ".join(_name(job_id) for job_id in takeover.ids.values())
        lines += wrapped(f"collect {many(takeover.collected, 'run')} of jobs: {ids or 'none'}", "  ")
        if takeover.unsent:
            lines += wrapped(f"submit nothing: {many(takeover.unsent, 'run')} of other jobs stay unsubmitted", "  ")
        lines += wrapped(f"in the end delete {takeover.removed or 'nothing'}", "  ")
        lines.append(printable(f"  files: {takeover.campaign.path}"))
    command = command_line(f"steelyard status {study} --adopt {digest}")
    return [*lines, "", "Nothing was done. To take them over:", f"    {command}"]


def takeover_object(takeover: Takeover) -> TakeoverData:
    """Return what taking over a campaign would do as plain data."""
    plan = takeover.campaign.plan
    return {
        "campaign": str(takeover.campaign.path),
        "owner": takeover.owner,
        "scheduler": plan.site.scheduler,
        "site": plan.site.name,
        "pool": plan.pool,
        "ids": list(takeover.ids.values()),
        "collected": takeover.collected,
        "not_submitted": takeover.unsent,
        "deleted": takeover.removed,
    }


def campaign_lines(campaign: Campaign, *, sent: bool) -> list[str]:
    """Format the jobs of a campaign, its maximum cost, and where its files are."""
    plan, price = campaign.plan, campaign.plan.price
    tasks, runs = sum(len(job.tasks) for job in plan.jobs), sum(len(task) for job in plan.jobs for task in job.tasks)
    what = "Submitted" if sent else "Dry run, nothing submitted:"
    lines = [*wrapped(f"{what} {_amount(plan, runs)} of {plan.study} to {plan.site.name} (pool {plan.pool})"), ""]
    rows = [
        [
            _name(campaign.job_id(job)) if sent else f"{job.number:03d}",
            job.kind,
            str(len(job.tasks)),
            str(job.shape.nodes),
            str(job.shape.processes_per_node),
            str(job.shape.devices_per_node),
            duration(job.task_limit_s),
        ]
        for job in plan.jobs
    ]
    header = ["job", "kind", "tasks", "nodes", "processes/node", "devices/node", "limit"]
    lines += [table(header, rows), ""]
    hours = f"{number(price.device_hours, 3)} device-hours, {number(price.node_hours, 3)} node-hours"
    lines += wrapped(f"Cost of {many(tasks, 'task')} in {many(len(plan.jobs), 'array')}: at most {hours}")
    lines += wrapped(f"Charge: {number(price.charge, 3)} {price.charge_unit}s ({price.basis})")
    if price.expected_s is not None:
        lines += wrapped(f"Finished at most {duration(price.expected_s)} after the first start")
    if plan.image is not None:
        lines += wrapped(f"Image: {plan.image.reference}")
    lines += [printable(f"Scripts: {campaign.path}/jobs"), printable(f"Read first: {campaign.path}/README")]
    return lines


def _amount(plan: Plan, runs: int) -> str:
    """Count the runs, and the searches with their candidates; a search runs only the candidates it needs."""
    searches = [task for job in plan.jobs if job.kind == "search" for task in job.tasks]
    tried = sum(map(len, searches))
    if not searches:
        return many(runs, "run")
    what = f"{len(searches)} search{'es' * (len(searches) > 1)} (up to {many(tried, 'candidate')})"
    return f"{many(runs - tried, 'run') + ' and ' if runs > tried else ''}{what}"


def campaign_object(campaign: Campaign) -> CampaignData:
    """Return a campaign as plain data."""
    plan = campaign.plan
    return {
        "study": plan.study,
        "campaign": str(campaign.path),
        "site": plan.site.name,
        "pool": plan.pool,
        "price": to_json_object(plan.price),
        "jobs": [
            {
                "id": campaign.job_id(job),
                "kind": job.kind,
                "tasks": len(job.tasks),
                "runs": sum(len(task) for task in job.tasks),
                "layout": to_json_object(job.shape),
                "task_limit_s": job.task_limit_s,
                "folder": str(campaign.job_folder(job)),
            }
            for job in plan.jobs
        ],
    }


def sent_object(
    campaign: Campaign | None, *, dry_run: bool, under_way: int = 0, left_over: int = 0, queue_full: str = ""
) -> StudySentData:
    """Return what was submitted, or would be, as plain data."""
    return {
        "shape": "study-sent/1",
        "dry_run": dry_run,
        "sent": campaign_object(campaign) if campaign is not None else None,
        "under_way": under_way,
        "left_over": left_over,
        "queue_full": queue_full,
    }


def _counts(counts: Counter[str]) -> dict[str, str]:
    """Count the runs of each column."""
    columns = {name: sum(counts[state] for state in states) for name, states in COLUMNS}
    columns["failed"] = sum(count for state, count in counts.items() if state not in COUNTED)
    return {name: str(count) if count else "-" for name, count in columns.items()}


def _sent_lines(sent: Sent, *, verbose: bool) -> list[str]:
    state = f"{sent.left} of {sent.runs} runs not collected" if sent.left else f"all {sent.runs} runs collected"
    if sent.withdrawn or sent.vanished:
        lost = [f"{sent.withdrawn} withdrawn before submission"] if sent.withdrawn else []
        lost += [f"{sent.vanished} without a result because their folders are gone"] if sent.vanished else []
        collected = sent.runs - sent.left - sent.withdrawn - sent.vanished
        state = f"{collected} of {sent.runs} runs collected, {', '.join(lost)}"
        state += f", {sent.left} not collected" if sent.left else ""
    ids = sent.ids if verbose else sent.ids[:SHOWN_IDS]
    more = ", ..." if len(sent.ids) > len(ids) else ""
    jobs = f", jobs {', '.join(map(_name, ids))}{more}" if sent.ids else ""
    lines = wrapped(f"Campaign {sent.path.name} at {sent.site} (pool {sent.pool}): {state}{jobs}", "  ")
    return [*lines, printable(f"    files: {sent.path}")] if verbose else lines


def _name(job_id: str | None) -> str:
    """Return a job id without the name of the cluster that Slurm appends."""
    return (job_id or "-").partition(";")[0]


def _why_lines(status: StudyStatus) -> list[str]:
    lines = []
    for why, count in status.why.most_common(SHOWN_CAUSES):
        if why:
            lines += wrapped(f"{many(count, 'task')} queued: {why}")
    for why, count in status.halted.most_common(SHOWN_CAUSES):
        lines += wrapped(f"{many(count, 'task')} started: {why}")
    planned = sum(state == "planned" for state in status.waiting.values())
    unknown = sum(state == "unknown" for state in status.waiting.values())
    if planned:
        lines += wrapped(f"{many(planned, 'run')} planned but not submitted: repeat the steelyard study command")
    if unknown and not status.problems:
        lines += wrapped(
            f"{many(unknown, 'run')} unknown to the scheduler: counted as failed if their files do not change for some "
            "minutes"
        )
    return lines


def _cause_lines(status: StudyStatus) -> list[str]:
    causes = status.causes.most_common()
    lines = [""] if causes else []
    for (code, reason), count in causes[:SHOWN_CAUSES]:
        lines += wrapped(f"{count} {code}: {reason}")
    if len(causes) > SHOWN_CAUSES:
        lines.append(f"and {len(causes) - SHOWN_CAUSES} other reasons (listed by --json)")
    return lines


def short_lines(status: StudyStatus) -> list[str]:
    """Say how many runs were too short, why the first one was, and what makes longer ones."""
    short = status.short
    if not short:
        return []
    lines = wrapped(f"warning: {many(len(short), 'run')} too short, such as {short[0].run_id}: {short[0].short}")
    return [*lines, "  fix: run longer", f"    {_study_command(status, '--extend')}"]


def _study_command(status: StudyStatus, *options: str) -> str:
    return printable(command_line(shlex.join(["steelyard", *(status.arguments or ("study", "FILE")), *options])))


def _next_lines(status: StudyStatus) -> list[str]:
    if status.waiting:
        what = "--adopt" if set(status.waiting.values()) == {NOT_POLLED} else "--wait"
        return ["", next_line(f"steelyard status {status.study} {what}")]
    codes = sorted({code for code, _ in status.causes} - {NO_FIT})
    if codes:
        again = _study_command(status, "--again", ",".join(codes))
        failed = next(run for run, ended in status.runs.items() if ended.code in codes)
        return [
            "",
            "To run the failed ones again:",
            f"    {again}",
            next_line(f"steelyard show {failed}"),
        ]
    return ["", next_line(f"steelyard show {status.study}")]
