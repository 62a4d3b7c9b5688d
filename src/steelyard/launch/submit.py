"""Sends campaigns to their site, once each, whatever dies on the way. Knows a scheduler's protocol, not what runs mean.

A job is marked before it is submitted and has its id afterwards. Between the two only the scheduler knows whether it
has the job: it is asked by the job's name, which no other job has. Should it be asked in vain and yet have it, no run
is made twice: whoever begins a run, or takes it back, takes its lease first.
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
"""In place of the id of a job that has begun runs, and whose scheduler no longer knows its name."""


def scheduler_of(name: str) -> Scheduler:
    """The scheduler of a site, by the name that the site gives."""
    found: Scheduler = plugins.load("scheduler", name)()
    return found


# -- one at a time


@contextlib.contextmanager
def lock(folder: ResultFolder, study: str) -> Iterator[None]:
    """Be the only one who plans, submits or cancels a study; SteelyardError when another does.

    What a dead process of this host left is taken over. Of another host nobody here knows whether it lives.
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
        # Unless somebody has taken us for dead and the lock is theirs.
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
        # Among the processes of this host; others take nothing over from one of ours.
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
        f"another process is at this study: {pid} on {host}",
        next_step=f"wait until it has ended; if it is gone for certain: rm {path}",
    )


# -- sending


def send(
    folder: ResultFolder, expansion: Expansion, place: Place, *, file: Path | None = None, dry_run: bool = False
) -> Campaign | None:
    """Plan and submit what the study lacks, and what an earlier command could not submit. None: nothing new."""
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
    """InputError when something is wrong with the site that can be seen from here."""
    wrong = [check for check in checks(place, results=folder.path) if check.verdict == "wrong"]
    if wrong:
        problems = tuple(Problem(check.name, check.found, check.fix or "see the site's file") for check in wrong)
        raise InputError(
            f"{place.site.name!r} is not ready; nothing was queued",
            problems=problems,
            next_step="steelyard site check SITE",
        )


def resume(folder: ResultFolder, expansion: Expansion, place: Place, scheduler_of: SchedulerOf = scheduler_of) -> None:
    """Take back jobs of earlier commands that no scheduler has and that are no longer what is wanted.

    The site may have been mended since, or the study changed: they are planned anew.
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
    """Submit every job that is planned and that the scheduler does not have; how many. Whoever calls holds the lock."""
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
    """Take what is out there back: jobs that were sent are cancelled, others forgotten; how many jobs."""
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
    """Learn the ids of jobs whose submission was begun by somebody who died before the answer came."""
    lost = [job for job in unsent(campaign) if (campaign.job_folder(job) / TRYING_FILE).exists()]
    # Of another user's job the scheduler may tell us nothing.
    others = senders(campaign, lost)
    lost = [job for job in lost if job.number not in others]
    if not lost:
        return
    # Before the scheduler is asked: it may be submitted by a living process, and begin, while we ask.
    traced = {job.number for job in lost if _has_traces(campaign, job)}
    found = scheduler.find(campaign, lost)
    for job in lost:
        if job.number in found:
            _keep_id(campaign, job, found[job.number])
        elif job.number in traced:
            _keep_id(campaign, job, FORGOTTEN)


def senders(campaign: Campaign, jobs: Sequence[JobArray]) -> dict[int, str]:
    """Which jobs were given to the scheduler by another user than us, and by whom."""
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
    """Jobs with runs to make that have no id yet."""
    return [job for job in _with_runs(campaign) if campaign.job_id(job) is None]


def sent_jobs(campaign: Campaign) -> list[JobArray]:
    """Jobs with runs to collect that the scheduler was given and can be asked about."""
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
    """Whether it has ever been started."""
    printed = any(path.suffix in (".out", ".done") for path in campaign.job_folder(job).iterdir())
    return printed or any((campaign.raw(run) / LEASE_FILE).exists() for task in job.tasks for run in task)


def withdraw(campaign: Campaign, job: JobArray) -> None:
    """Forget the runs of a job that was never accepted; one that somebody has begun all the same is left to them."""
    for task in job.tasks:
        for run in task:
            if take_lease(campaign.raw(run)):
                shutil.rmtree(campaign.path / "runs" / run, ignore_errors=True)
