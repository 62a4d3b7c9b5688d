"""How studies stand that were sent to a site, as text and JSON. Knows words for states, not how they were found."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from steelyard.contracts.base import to_json_object
from steelyard.errors import printable
from steelyard.terminal.drawing import MARKS, duration, fit, state_of
from steelyard.terminal.text import many, number, table, wrapped

if TYPE_CHECKING:
    from collections import Counter

    from steelyard.launch.campaign import Campaign, Plan
    from steelyard.launch.follow import Sent, StudyStatus

SHOWN_CAUSES: Final = 10
SHOWN_CELLS: Final = 40
SHOWN_IDS: Final = 5
LABEL_CHARACTERS: Final = 40
NO_FIT: Final = "out_of_memory"
"""Not a failure: the answer that a search looks for, and the same again whenever it is tried."""
# Columns, and the states that each counts; every other status is a run that did not complete.
COLUMNS: Final = (
    ("waiting", ("planned", "queued", "unknown")),
    ("running", ("running",)),
    ("ended", ("ended",)),
    ("completed", ("completed",)),
    ("not converged", ("not_converged",)),
    ("out of memory", (NO_FIT,)),
)
SELDOM: Final = ("not converged", "out of memory")
"""Columns that are shown where they have an entry."""
PLACES: Final = {name: place for place, name in enumerate(MARKS)}
COUNTED: Final = frozenset(state for _, states in COLUMNS for state in states)


def standing_lines(standing: StudyStatus, *, verbose: bool = False) -> list[str]:
    """Where each cell is, why runs did not complete, and what to type next. `verbose`: also paths, and every job."""
    cells, labels = standing.cells, standing.labels
    names = [name for name, count in _counts(standing.totals).items() if count != "-" or name not in SELDOM]
    every = [
        (fit(labels.get(cell, cell), LABEL_CHARACTERS), counts) for cell, counts in list(cells.items())[:SHOWN_CELLS]
    ]
    if len(cells) > 1:
        every.append(("all" if len(cells) <= SHOWN_CELLS else f"all {len(cells)} cells", standing.totals))
    rows = [[what, *(_counts(counts)[name] for name in names)] for what, counts in every]
    lines = [
        f"study {standing.study}",
        *(line for sent in standing.campaigns for line in _sent_lines(sent, verbose=verbose)),
    ]
    lines += ["", table(["configuration", *names], rows)]
    lines += _why_lines(standing) + _cause_lines(standing)
    for problem in standing.problems:
        # An error of several lines: what is wrong, and what to do.
        for line in problem.splitlines():
            lines += wrapped(f"could not be looked at: {line}" if line == problem.splitlines()[0] else line)
    return [*lines, *_next_lines(standing)]


def progress_line(standing: StudyStatus) -> str:
    """All of it in one line."""
    totals = standing.totals
    said = ", ".join(f"{count} {name}" for name, count in _counts(totals).items() if count != "-")
    missing = f"; {standing.problems[0].splitlines()[0]}" if standing.problems else ""
    return printable(f"{standing.study}: {said or 'nothing'} of {totals.total()} runs{missing}")


def grid_cells(standing: StudyStatus) -> dict[str, list[str]]:
    """The states of each cell's runs, as a grid shows them."""
    cells: dict[str, list[str]] = {}
    for cell, counts in standing.cells.items():
        states = [state for code, count in counts.items() for state in [state_of(code)] * count]
        cells[standing.labels.get(cell, cell)] = sorted(states, key=PLACES.__getitem__)
    return cells


def waiting_lines(standing: StudyStatus) -> list[str]:
    """What is being waited for, and which jobs that are."""
    lines = _why_lines(standing)
    for sent in standing.campaigns:
        lines += _sent_lines(sent, verbose=True) if sent.left else []
    return lines


def standing_object(standing: StudyStatus) -> dict[str, Any]:
    """All of it for programs."""
    return {
        "study": standing.study,
        "open": len(standing.waiting),
        "collected": standing.collected,
        "totals": dict(standing.totals),
        "configurations": [
            {"configuration": cell, "label": standing.labels.get(cell), "runs": dict(counts)}
            for cell, counts in standing.cells.items()
        ],
        "causes": [
            {"status": code, "reason": reason, "runs": count} for (code, reason), count in standing.causes.most_common()
        ],
        "waits_for": dict(standing.why),
        "campaigns": [{**vars(sent), "path": str(sent.path), "ids": list(sent.ids)} for sent in standing.campaigns],
        "problems": standing.problems,
    }


def campaign_lines(campaign: Campaign, *, sent: bool) -> list[str]:
    """What was planned, what it takes at most, and where its files are."""
    plan, price = campaign.plan, campaign.plan.price
    tasks, runs = sum(len(job.tasks) for job in plan.jobs), sum(len(task) for job in plan.jobs for task in job.tasks)
    what = "sent" if sent else "dry run, nothing was queued:"
    lines = [f"{what} {_amount(plan, runs)} of {plan.study} to {plan.site.name} (pool {plan.pool})", ""]
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
    lines += wrapped(f"{many(tasks, 'task')} in {many(len(plan.jobs), 'array')}: at most {hours}")
    lines += wrapped(f"charge: {number(price.charge, 3)} {price.charge_unit}s ({price.basis})")
    if price.expected_s is not None:
        lines += wrapped(f"at the latest {duration(price.expected_s)} after the first start")
    if plan.image is not None:
        lines += wrapped(f"image: {plan.image.reference}")
    lines += [printable(f"scripts: {campaign.path}/jobs"), printable(f"read first: {campaign.path}/README")]
    return lines


def _amount(plan: Plan, runs: int) -> str:
    """Runs, and searches with their candidates: a search makes only those that it needs."""
    searches = [task for job in plan.jobs if job.kind == "search" for task in job.tasks]
    tried = sum(map(len, searches))
    if not searches:
        return many(runs, "run")
    what = f"a search of {many(tried, 'candidate')}"
    if len(searches) > 1:
        what = f"{len(searches)} searches of {many(tried, 'candidate')} in all"
    return f"{many(runs - tried, 'run') + ' and ' if runs > tried else ''}{what}, of which few are tried,"


def campaign_object(campaign: Campaign) -> dict[str, Any]:
    """The same for programs."""
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
                "shape": to_json_object(job.shape),
                "task_limit_s": job.task_limit_s,
                "folder": str(campaign.job_folder(job)),
            }
            for job in plan.jobs
        ],
    }


def _counts(counts: Counter[str]) -> dict[str, str]:
    """By the name of the column."""
    found = {name: sum(counts[state] for state in states) for name, states in COLUMNS}
    found["failed"] = sum(count for state, count in counts.items() if state not in COUNTED)
    return {name: str(count) if count else "-" for name, count in found.items()}


def _sent_lines(sent: Sent, *, verbose: bool) -> list[str]:
    state = f"{sent.left} of {sent.runs} runs not collected" if sent.left else f"all {sent.runs} runs collected"
    ids = sent.ids if verbose else sent.ids[:SHOWN_IDS]
    more = ", ..." if len(sent.ids) > len(ids) else ""
    jobs = f", jobs {', '.join(map(_name, ids))}{more}" if sent.ids else ""
    lines = wrapped(f"campaign {sent.path.name} at {sent.site} (pool {sent.pool}): {state}{jobs}", "  ")
    return [*lines, printable(f"    files: {sent.path}")] if verbose else lines


def _name(job_id: str | None) -> str:
    """As people type it: Slurm's ids are kept with the name of the cluster."""
    return (job_id or "-").partition(";")[0]


def _why_lines(standing: StudyStatus) -> list[str]:
    lines = []
    for why, count in standing.why.most_common(SHOWN_CAUSES):
        if why:
            lines += wrapped(f"{count} tasks are queued: {why}")
    planned = sum(state == "planned" for state in standing.waiting.values())
    unknown = sum(state == "unknown" for state in standing.waiting.values())
    if planned:
        lines.append(f"{planned} runs are planned and not submitted: give the study's command again")
    if unknown and not standing.problems:
        lines += wrapped(
            f"{unknown} runs: their scheduler does not know them. If that and their files stay so for some minutes, "
            "they are given up as failed"
        )
    return lines


def _cause_lines(standing: StudyStatus) -> list[str]:
    causes = standing.causes.most_common()
    lines = [""] if causes else []
    for (code, reason), count in causes[:SHOWN_CAUSES]:
        lines += wrapped(f"{count} {code}: {reason}")
    if len(causes) > SHOWN_CAUSES:
        lines.append(f"and {len(causes) - SHOWN_CAUSES} other reasons: --json has them all")
    return lines


def _next_lines(standing: StudyStatus) -> list[str]:
    if standing.waiting:
        return ["", f"next: steelyard status {standing.study} --wait"]
    codes = sorted({code for code, _ in standing.causes} - {NO_FIT})
    if codes:
        return ["", f"next: steelyard show RUN_ID; to make them again: steelyard study FILE --again {','.join(codes)}"]
    return ["", f"next: steelyard show {standing.study}"]
