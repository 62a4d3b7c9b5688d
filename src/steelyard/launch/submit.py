"""Submit campaigns to their site, each exactly once even if a process dies on the way.

A job is marked before it is submitted and gets its id afterwards. In between only the scheduler knows whether it has
the job: it is queried by the job's name, which is unique. Even if the answer is wrong, no run is made twice: whoever
starts or withdraws a run takes its lease first.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from steelyard import nofollow, plugins
from steelyard.contracts.observe import LEASE_FILE
from steelyard.errors import InputError, Problem, SteelyardError, printable
from steelyard.launch import registry
from steelyard.launch.campaign import ID_FILE, TRYING_FILE, QueueFullError
from steelyard.launch.collect import take_lease
from steelyard.launch.plan import is_collected, load_campaign, make_campaign, planned, runs_left, study_folder
from steelyard.launch.site_check import checks
from steelyard.launch.staging import render_again
from steelyard.results.store import OWN_FOLDER, create_once, is_gone, own_uid, owner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from steelyard.inputs.site import Place
    from steelyard.inputs.study import Expansion
    from steelyard.launch.campaign import Campaign, JobArray, Scheduler
    from steelyard.launch.registry import RegistryEntry
    from steelyard.results.store import ResultFolder

    SchedulerOf = Callable[[str], Scheduler]

LOCK_FILE: Final = "lock"
FORGOTTEN: Final = "forgotten"
"""In place of the id of a job that has started runs but whose name the scheduler no longer knows."""


class LockedError(SteelyardError):
    """Another process holds the lock of the study."""


def scheduler_of(name: str) -> Scheduler:
    """Return the scheduler with this name, as given in the site file."""
    scheduler: Scheduler = plugins.load("scheduler", name)()
    return scheduler


# -- lock


@contextlib.contextmanager
def lock(folder: ResultFolder, study: str) -> Iterator[None]:
    """Hold the lock of a study while planning, submitting or cancelling; SteelyardError if another process has it.

    The lock of a dead process on this host is taken over; for another host it is unknown whether the process lives.
    """
    home = study_folder(folder, study)
    try:
        folder.root.mkdir(OWN_FOLDER, parents=True, exist_ok=True)
        nofollow.make_folder(home.parent, exist_ok=True)
        nofollow.make_folder(home, exist_ok=True)
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
            nofollow.remove(path)


def _holder(path: Path) -> str | None:
    try:
        with nofollow.open_file(path) as file:
            return printable(file.read(200).decode("utf-8", "replace").strip())
    except FileNotFoundError:
        return None


def _take_over(path: Path) -> None:
    with nofollow.folder_of(path) as (parent, _):
        handle = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=parent)
    try:
        # Between the processes of this host; no other host takes over their locks.
        fcntl.flock(handle, fcntl.LOCK_EX)
        holder = _holder(path)
        if holder is not None and is_gone(holder):
            nofollow.remove(path)
            holder = None
        if holder is None and create_once(path, owner() + "\n", path.parent):
            return
    finally:
        os.close(handle)
    host, _, pid, *_ = [*(holder or "").split("."), "?", "?", "?"]
    raise LockedError(
        f"another process is working on this study: {pid} on {host}",
        next_step=f"wait until it has ended; if it no longer exists: rm {path}",
    )


# -- submit


@dataclass(frozen=True)
class Submitted:
    """What was submitted."""

    count: int
    """How many jobs."""
    full: str = ""
    """Why the scheduler takes no more jobs now; empty: nothing is left to submit."""
    made: Campaign | None = None
    """The new campaign; None: nothing new."""


def send(
    folder: ResultFolder,
    expansion: Expansion,
    place: Place,
    *,
    file: Path | None = None,
    dry_run: bool = False,
    shared: bool = False,
) -> Submitted:
    """Plan and submit the missing runs, and jobs that an earlier command did not submit."""
    refuse_wrong(folder, place)
    study = expansion.study.name
    with lock(folder, study):
        if not dry_run:
            home = study_folder(folder, study)
            owner_there = own_uid(home)
            if owner_there is not None and not shared:
                registry.refuse_exposed(home, owner_there)
            resume(folder, expansion, place, shared=shared)
        made = make_campaign(folder, expansion, place, scheduler_of(place.site.scheduler), file=file, dry_run=dry_run)
        done = Submitted(0) if dry_run else submit(folder, study, shared=shared)
    return replace(done, made=made)


def refuse_wrong(folder: ResultFolder, place: Place) -> None:
    """Raise InputError if the checks of the site find an error."""
    wrong = [check for check in checks(place, results=folder.path) if check.verdict == "wrong"]
    if wrong:
        problems = tuple(Problem(check.name, check.found, check.fix or "see the site file") for check in wrong)
        raise InputError(
            f"{place.site.name} is not ready; nothing was queued",
            problems=problems,
            next_step="steelyard site check SITE",
        )


def resume(
    folder: ResultFolder,
    expansion: Expansion,
    place: Place,
    scheduler_of: SchedulerOf = scheduler_of,
    *,
    shared: bool = False,
) -> None:
    """Withdraw unsubmitted jobs of earlier commands that are no longer wanted, and of campaigns that were taken over.

    The site or the study may have changed since: their runs are planned again.
    """
    wanted = {spec.run_id for spec in expansion.runs}
    wanted |= {spec.run_id for group in expansion.searches for spec in group.runs}
    for campaign, entry in _ours(folder, expansion.study.name, shared=shared):
        recover(campaign, scheduler_of(campaign.plan.site.scheduler))
        same = (campaign.plan.site, campaign.plan.pool) == (place.site, place.pool_name) and not entry.adopted
        for job in unsent(campaign):
            if not same or not wanted.issuperset(run for task in job.tasks for run in task):
                withdraw(campaign, job)


def submit(
    folder: ResultFolder, study: str, scheduler_of: SchedulerOf = scheduler_of, *, shared: bool = False
) -> Submitted:
    """Submit every planned job that the scheduler does not have, until its queue is full. The caller holds the lock."""
    count = 0
    for campaign, entry in _ours(folder, study, shared=shared):
        scheduler = scheduler_of(campaign.plan.site.scheduler)
        recover(campaign, scheduler)
        for job in [] if entry.adopted else unsent(campaign):
            files = render_again(campaign, job, scheduler, entry.jobs.get(str(job.number), {}))
            home = campaign.job_folder(job)
            create_once(home / TRYING_FILE, owner() + "\n", home)
            try:
                _keep_id(campaign, job, scheduler.submit(campaign, job, files))
            except QueueFullError as error:
                return Submitted(count, full=str(error))
            count += 1
    return Submitted(count)


def submit_rest(folder: ResultFolder, campaign: Campaign, job: JobArray, scheduler: Scheduler) -> None:
    """Submit the tasks of a job of ours that its scheduler had no room for, unless another process is submitting."""
    entry = campaign.ours(shared=True)
    if entry is None or entry.adopted:
        return
    with contextlib.suppress(LockedError), lock(folder, campaign.plan.study):
        files = render_again(campaign, job, scheduler, entry.jobs.get(str(job.number), {}))
        scheduler.submit(campaign, job, files)


def cancel(folder: ResultFolder, study: str, scheduler_of: SchedulerOf = scheduler_of, *, shared: bool = False) -> int:
    """Cancel submitted jobs and withdraw the others; return how many jobs."""
    if not _ours(folder, study, shared=shared):
        return 0
    count = 0
    with lock(folder, study):
        for campaign, _ in _ours(folder, study, shared=shared):
            scheduler = scheduler_of(campaign.plan.site.scheduler)
            recover(campaign, scheduler)
            # Part of a job may have been submitted before a process died.
            sent, rest = sent_jobs(campaign), unsent(campaign)
            sent += [job for job in rest if _was_tried(campaign, job)]
            if sent:
                scheduler.cancel(campaign, sent)
            for job in rest:
                withdraw(campaign, job)
            count += len({job.number for job in (*sent, *rest)})
    return count


def recover(campaign: Campaign, scheduler: Scheduler) -> None:
    """Find the ids of jobs whose submission was interrupted before the answer came."""
    lost = [job for job in unsent(campaign) if _was_tried(campaign, job)]
    if not lost:
        return
    # Before the query: another process may submit the job, and it may start, while we query.
    traced = {job.number for job in lost if _has_traces(campaign, job)}
    ids = scheduler.find(campaign, lost)
    for job in lost:
        if job.number in ids:
            _keep_id(campaign, job, ids[job.number])
        elif job.number in traced:
            _keep_id(campaign, job, FORGOTTEN)


def unsent(campaign: Campaign) -> list[JobArray]:
    """Return the jobs with runs to make that have no id yet."""
    return [job for job in with_runs(campaign) if campaign.job_id(job) is None]


def sent_jobs(campaign: Campaign) -> list[JobArray]:
    """Return the submitted jobs with runs to collect that the scheduler can be queried for."""
    return [job for job in with_runs(campaign) if campaign.job_id(job) not in (None, FORGOTTEN)]


def with_runs(campaign: Campaign) -> list[JobArray]:
    """Return the jobs with runs that are not collected."""
    left = runs_left(campaign.path)
    return [job for job in campaign.plan.jobs if any(run in left for task in job.tasks for run in task)]


def _ours(folder: ResultFolder, study: str, *, shared: bool) -> list[tuple[Campaign, RegistryEntry]]:
    """Return the open campaigns of ours with their entries; `steelyard status` reports those that cannot be read."""
    campaigns = []
    for path in planned(folder, study):
        with contextlib.suppress(InputError, nofollow.LinkError):
            campaign = load_campaign(path)
            if not is_collected(path) and (entry := campaign.ours(shared=shared)) is not None:
                campaigns.append((campaign, entry))
    return campaigns


def _was_tried(campaign: Campaign, job: JobArray) -> bool:
    return nofollow.is_file(campaign.job_folder(job) / TRYING_FILE)


def _keep_id(campaign: Campaign, job: JobArray, text: str) -> None:
    campaign.registration.keep_id(job.number, text)
    home = campaign.job_folder(job)
    create_once(home / ID_FILE, text + "\n", home)


def _has_traces(campaign: Campaign, job: JobArray) -> bool:
    """Return whether a job was ever started."""
    printed = any(name.endswith((".out", ".done")) for name in nofollow.names(campaign.job_folder(job)))
    return printed or any(nofollow.is_file(campaign.raw(run) / LEASE_FILE) for task in job.tasks for run in task)


def withdraw(campaign: Campaign, job: JobArray) -> None:
    """Remove the runs of a job that was never submitted, except runs that were started nevertheless."""
    for task in job.tasks:
        for run in task:
            if take_lease(campaign.raw(run)):
                nofollow.remove_tree(campaign.path / "runs" / run)
