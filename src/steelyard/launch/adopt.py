"""Take over campaigns that this user has not submitted from here: first shown, then registered."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from steelyard import nofollow
from steelyard.errors import InputError, Problem, SteelyardError, printable
from steelyard.launch import registry
from steelyard.launch.plan import is_collected, load_campaign, planned, runs_left
from steelyard.launch.submit import FORGOTTEN, scheduler_of, with_runs
from steelyard.results.store import own_uid

if TYPE_CHECKING:
    from steelyard.launch.campaign import Campaign
    from steelyard.launch.submit import SchedulerOf
    from steelyard.results.store import ResultFolder

DIGITS: Final = 12


@dataclass(frozen=True)
class Takeover:
    """What taking over a campaign would do."""

    campaign: Campaign
    owner: str
    """The user who seems to have made it."""
    ids: dict[int, str]
    """The jobs that would be polled and collected, by job number, as the campaign's folder names them."""
    collected: int
    """How many runs these have."""
    unsent: int
    """How many runs are in jobs that were not submitted; they would not be submitted either."""
    removed: str
    """What would be removed from the scheduler when all runs are collected; empty: nothing."""


def find_takeovers(folder: ResultFolder, study: str, scheduler_of: SchedulerOf = scheduler_of) -> list[Takeover]:
    """Return the open campaigns of a study that are not ours. Contacts nobody and writes nothing."""
    takeovers = []
    for path in planned(folder, study):
        # `steelyard status` reports those that cannot be read.
        with suppress(InputError, nofollow.LinkError):
            campaign = load_campaign(path)
            if not is_collected(path) and campaign.ours(shared=True) is None:
                takeovers.append(_describe(campaign, scheduler_of))
    return takeovers


def _describe(campaign: Campaign, scheduler_of: SchedulerOf) -> Takeover:
    scheduler, left = scheduler_of(campaign.plan.site.scheduler), runs_left(campaign.path)
    ids: dict[int, str] = {}
    counts = {True: 0, False: 0}
    for job in with_runs(campaign):
        job_id = campaign.named_id(job)
        if job_id is not None:
            if job_id != FORGOTTEN and not scheduler.is_id(campaign, job, job_id):
                raise SteelyardError(f'{campaign.job_folder(job)}/id is not the id of a job: "{printable(job_id)}"')
            ids[job.number] = job_id
        counts[job_id is not None] += sum(run in left for task in job.tasks for run in task)
    owner = registry.user_name(nofollow.stat(campaign.path).st_uid)
    return Takeover(campaign, owner, ids, counts[True], counts[False], scheduler.removed(campaign))


def digest_of(takeovers: list[Takeover]) -> str:
    """Return a digest of what was found: only what was shown can be taken over."""
    shown = [
        [str(takeover.campaign.path), takeover.campaign.plan_sha256, sorted(takeover.ids.items())]
        for takeover in takeovers
    ]
    return hashlib.sha256(json.dumps(shown).encode()).hexdigest()[:DIGITS]


def adopt(folder: ResultFolder, study: str, digest: str, scheduler_of: SchedulerOf = scheduler_of) -> int:
    """Register the campaigns that were shown with this digest as ours; return how many."""
    takeovers = find_takeovers(folder, study, scheduler_of)
    if not takeovers or digest != digest_of(takeovers):
        problem = Problem("--adopt", f"{digest} is not what the folder has now")
        raise InputError("nothing was taken over", problems=(problem,), next_step=f"steelyard status {study} --adopt")
    registry.prepare()
    for takeover in takeovers:
        path = takeover.campaign.path
        ours = own_uid(path)
        if ours is None:
            raise SteelyardError(f"cannot write to {path}, which belongs to {takeover.owner}")
        takeover.campaign.registration.write(takeover.campaign.plan_sha256, {}, ours, ids=takeover.ids, adopted=True)
    return len(takeovers)
