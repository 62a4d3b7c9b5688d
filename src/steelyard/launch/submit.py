"""Submit campaigns to their site, each exactly once even if a process dies on the way.

A job is marked before it is submitted and gets its id afterwards. In between only the scheduler knows whether it has
the job: it is queried by the job's name, which is unique. Even if the answer is wrong, no run is made twice: whoever
starts or withdraws a run takes its lease first.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pwd
import shutil
from typing import TYPE_CHECKING, Final

from steelyard import plugins
from steelyard.contracts.observe import LEASE_FILE
from steelyard.errors import InputError, Problem, SteelyardError
from steelyard.launch.campaign import ID_FILE, TRYING_FILE
from steelyard.launch.collect import take_lease
from steelyard.launch.plan import is_collected, load_campaign, make_campaign, planned, runs_left, study_folder
from steelyard.launch.site_check import checks
from steelyard.results.store import create_once, is_gone, own_uid, owner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from steelyard.inputs.site import Place
    from steelyard.inputs.study import Expansion
    from steelyard.launch.campaign import Campaign, JobArray, Scheduler
    from steelyard.results.store import ResultFolder

    SchedulerOf = Callable[[str], Scheduler]

LOCK_FILE: Final = "lock"
FORGOTTEN: Final = "forgotten"
"""In place of the id of a job that has started runs but whose name the scheduler no longer knows."""


def scheduler_of(name: str) -> Scheduler:
    """Return the scheduler with this name, as given in the site file."""
    found: Scheduler = plugins.load("scheduler", name)()
    return found


# -- lock


@contextlib.contextmanager
def lock(folder: ResultFolder, study: str) -> Iterator[None]:
    """Hold the lock of a study while planning, submitting or cancelling; SteelyardError if another process has it.

    The lock of a dead process on this host is taken over; for another host it is unknown whether the process lives.
    """
    home = study_folder(folder, study)
    try:
        home.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"cannot write to {home}: {error.strerror}", next_step="give another folder with --results"
        ) from None
    path = home / LOCK_FILE
    if not create_once(path, owner() + "\n", home):
        _take_over(path)
    try:
        yield
    finally:
        # Unless another process considered us dead and took the lock.
        if _holder(path) == owner():
            path.unlink(missing_ok=True)


def _holder(path: Path) -> str | None:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(200).strip()
    except FileNotFoundError:
        return None


def _take_over(path: Path) -> None:
    handle = os.open(path.parent, os.O_RDONLY)
    try:
        # Between the processes of this host; no other host takes over their locks.
        fcntl.flock(handle, fcntl.LOCK_EX)
        holder = _holder(path)
        if holder is not None and is_gone(holder):
            path.unlink(missing_ok=True)
            holder = None
        if holder is None and create_once(path, owner() + "\n", path.parent):
            return
    finally:
        os.close(handle)
    host, _, pid, *_ = [*(holder or "").split("."), "?", "?", "?"]
    raise SteelyardError(
        f"another process is working on this study: {pid} on {host}",
        next_step=f"wait until it has ended; if it no longer exists: rm {path}",
    )


# -- submit


def send(
    folder: ResultFolder, expansion: Expansion, place: Place, *, file: Path | None = None, dry_run: bool = False
) -> Campaign | None:
    """Plan and submit the missing runs, and jobs that an earlier command did not submit. None: nothing new."""
    refuse_wrong(folder, place)
    study = expansion.study.name
    with lock(folder, study):
        if not dry_run:
            resume(folder, expansion, place)
        made = make_campaign(folder, expansion, place, scheduler_of(place.site.scheduler), file=file, dry_run=dry_run)
        if not dry_run:
            submit(folder, study)
    return made


def refuse_wrong(folder: ResultFolder, place: Place) -> None:
    """Raise InputError if the checks of the site find an error."""
    wrong = [check for check in checks(place, results=folder.path) if check.verdict == "wrong"]
    if wrong:
        problems = tuple(Problem(check.name, check.found, check.fix or "see the site file") for check in wrong)
        raise InputError(
            f"{place.site.name!r} is not ready; nothing was queued",
            problems=problems,
            next_step="steelyard site check SITE",
        )


def resume(folder: ResultFolder, expansion: Expansion, place: Place, scheduler_of: SchedulerOf = scheduler_of) -> None:
    """Withdraw unsubmitted jobs of earlier commands that are no longer wanted.

    The site or the study may have changed since: their runs are planned again.
    """
    wanted = {spec.run_id for spec in expansion.runs}
    wanted |= {spec.run_id for group in expansion.searches for spec in group.runs}
    for campaign in _open(folder, expansion.study.name):
        recover(campaign, scheduler_of(campaign.plan.site.scheduler))
        same = (campaign.plan.site, campaign.plan.pool) == (place.site, place.pool_name)
        for job in unsent(campaign):
            if not same or not wanted.issuperset(run for task in job.tasks for run in task):
                withdraw(campaign, job)


def submit(folder: ResultFolder, study: str, scheduler_of: SchedulerOf = scheduler_of) -> int:
    """Submit every planned job that the scheduler does not have; return how many. The caller holds the lock."""
    count = 0
    for campaign in _open(folder, study):
        scheduler = scheduler_of(campaign.plan.site.scheduler)
        recover(campaign, scheduler)
        for job in unsent(campaign):
            home = campaign.job_folder(job)
            create_once(home / TRYING_FILE, owner() + "\n", home)
            _keep_id(campaign, job, scheduler.submit(campaign, job))
            count += 1
    return count


def cancel(folder: ResultFolder, study: str, scheduler_of: SchedulerOf = scheduler_of) -> int:
    """Cancel submitted jobs and withdraw the others; return how many jobs."""
    count = 0
    with lock(folder, study):
        for campaign in _open(folder, study):
            scheduler = scheduler_of(campaign.plan.site.scheduler)
            recover(campaign, scheduler)
            for job in unsent(campaign):
                withdraw(campaign, job)
                count += 1
            sent = sent_jobs(campaign)
            if sent:
                scheduler.cancel(campaign, sent)
                count += len(sent)
    return count


def recover(campaign: Campaign, scheduler: Scheduler) -> None:
    """Find the ids of jobs whose submission was interrupted before the answer came."""
    lost = [job for job in unsent(campaign) if (campaign.job_folder(job) / TRYING_FILE).exists()]
    # The scheduler may hide another user's job from us.
    others = senders(campaign, lost)
    lost = [job for job in lost if job.number not in others]
    if not lost:
        return
    # Before the query: another process may submit the job, and it may start, while we query.
    traced = {job.number for job in lost if _has_traces(campaign, job)}
    found = scheduler.find(campaign, lost)
    for job in lost:
        if job.number in found:
            _keep_id(campaign, job, found[job.number])
        elif job.number in traced:
            _keep_id(campaign, job, FORGOTTEN)


def senders(campaign: Campaign, jobs: Sequence[JobArray]) -> dict[int, str]:
    """Return the jobs that another user submitted, with the name of that user."""
    ours = own_uid(campaign.path) if jobs else None
    found: dict[int, str] = {}
    for job in jobs:
        home = campaign.job_folder(job)
        marks = (path for path in (home / ID_FILE, home / TRYING_FILE) if path.exists())
        if (mark := next(marks, None)) is not None and (sender := mark.stat().st_uid) != ours:
            try:
                found[job.number] = pwd.getpwuid(sender).pw_name
            except KeyError:
                found[job.number] = f"user {sender}"
    return found


def unsent(campaign: Campaign) -> list[JobArray]:
    """Return the jobs with runs to make that have no id yet."""
    return [job for job in _with_runs(campaign) if campaign.job_id(job) is None]


def sent_jobs(campaign: Campaign) -> list[JobArray]:
    """Return the submitted jobs with runs to collect that the scheduler can be queried for."""
    return [job for job in _with_runs(campaign) if campaign.job_id(job) not in (None, FORGOTTEN)]


def _with_runs(campaign: Campaign) -> list[JobArray]:
    left = runs_left(campaign.path)
    return [job for job in campaign.plan.jobs if any(run in left for task in job.tasks for run in task)]


def _open(folder: ResultFolder, study: str) -> list[Campaign]:
    return [load_campaign(path) for path in planned(folder, study) if not is_collected(path)]


def _keep_id(campaign: Campaign, job: JobArray, text: str) -> None:
    home = campaign.job_folder(job)
    create_once(home / ID_FILE, text + "\n", home)


def _has_traces(campaign: Campaign, job: JobArray) -> bool:
    """Return whether a job was ever started."""
    printed = any(path.suffix in (".out", ".done") for path in campaign.job_folder(job).iterdir())
    return printed or any((campaign.raw(run) / LEASE_FILE).exists() for task in job.tasks for run in task)


def withdraw(campaign: Campaign, job: JobArray) -> None:
    """Remove the runs of a job that was never submitted, except runs that were started nevertheless."""
    for task in job.tasks:
        for run in task:
            if take_lease(campaign.raw(run)):
                shutil.rmtree(campaign.path / "runs" / run, ignore_errors=True)
