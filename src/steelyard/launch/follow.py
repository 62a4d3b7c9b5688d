"""Follow submitted campaigns: query each scheduler once, collect ended tasks, and report the status of a study."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from steelyard import hostinfo, nofollow
from steelyard.contracts.observe import Scheduled
from steelyard.doctor.node import SLOW_FILESYSTEMS
from steelyard.errors import SteelyardError
from steelyard.inputs.study import label
from steelyard.inputs.validate import read_inside
from steelyard.launch.campaign import TaskState
from steelyard.launch.collect import RunEnd, collect_task, done_lines, read_ended, write_ended
from steelyard.launch.plan import COLLECTED_FILE, RUNS, is_collected, load_campaign, planned, runs_left
from steelyard.launch.redacted import redact_output
from steelyard.launch.registry import user_name
from steelyard.launch.staging import read_arguments, read_cells
from steelyard.launch.submit import FORGOTTEN, recover, scheduler_of, sent_jobs, submit_rest, with_runs
from steelyard.results.store import replace_text, sweep_halves

if TYPE_CHECKING:
    from collections.abc import Callable

    from steelyard.launch.campaign import Campaign, JobArray, Scheduler
    from steelyard.launch.submit import SchedulerOf
    from steelyard.results.store import ResultFolder

UNSETTLED_FILE: Final = "unsettled.json"
LOST_AFTER_S: Final = 300.0
"""Give up a task that its scheduler does not know once none of its files has changed for this long."""
SETTLE_S: Final = 70.0
"""How long a network file system may show an outdated folder (acdirmax of NFS is 60 s)."""
PAUSE_S, LONGEST_PAUSE_S, PAUSE_GROWTH = 1.0, 30.0, 1.5
SILENT_LOOKS: Final = 20
"""Stop waiting after this many polls in a row have failed."""
REPEAT: Final = re.compile(r"(.+)-r\d{4,}")
NOT_POLLED: Final = "not polled"
WAITING: Final = ("planned", "queued", "running", "ended", "unknown", NOT_POLLED)
"""States of a run without a record. planned: not submitted; ended: not yet collected;
unknown: its scheduler does not know it; not polled: its campaign is not ours."""
MAX_UNSETTLED_BYTES: Final = 1 << 26


@dataclass(frozen=True)
class Sent:
    """One campaign of a study, as shown in its status."""

    path: Path
    site: str
    pool: str
    jobs: int
    tasks: int
    runs: int
    left: int
    """Runs that are not collected."""
    withdrawn: int
    """Runs that were cancelled before they were submitted."""
    vanished: int
    """Runs without a record whose folders are gone."""
    ids: tuple[str, ...]
    """The scheduler's ids of the jobs that still have runs to collect."""


@dataclass
class StudyStatus:
    """The status of a study that was submitted to a site."""

    study: str
    runs: dict[str, RunEnd] = field(default_factory=dict)
    """Runs with a record, by id."""
    waiting: dict[str, str] = field(default_factory=dict)
    """Runs without a record: their state, one of WAITING."""
    labels: dict[str, str] = field(default_factory=dict)
    """The swept values of each configuration, by its name."""
    why: Counter[str] = field(default_factory=Counter)
    """Why tasks are queued, as the scheduler reports it."""
    halted: Counter[str] = field(default_factory=Counter)
    """Why tasks that have started do not go on."""
    campaigns: list[Sent] = field(default_factory=list)
    arguments: tuple[str, ...] = ()
    """Arguments of `steelyard study` that name the study and its site; empty: not known."""
    foreign: dict[str, str] = field(default_factory=dict)
    """Open campaigns that are not ours, with the user who seems to have made them."""
    problems: list[str] = field(default_factory=list)
    """What could not be read or collected."""
    collected: int = 0
    """How many runs this poll has collected."""

    @property
    def cells(self) -> dict[str, Counter[str]]:
        """Count the runs of each configuration by state or final status."""
        cells: dict[str, Counter[str]] = {}
        for run, ended in self.runs.items():
            cells.setdefault(cell_of(run), Counter())[ended.code] += 1
        for run, state in self.waiting.items():
            cells.setdefault(cell_of(run), Counter())[state] += 1
        return dict(sorted(cells.items()))

    @property
    def totals(self) -> Counter[str]:
        """Count the runs of the whole study by state or final status."""
        return sum(self.cells.values(), Counter())

    @property
    def causes(self) -> Counter[tuple[str, str]]:
        """Count the runs that did not complete by status and reason."""
        return Counter((entry.code, entry.reason) for entry in self.runs.values() if entry.code != "completed")

    @property
    def short(self) -> list[RunEnd]:
        """Return the runs that were too short to be useful."""
        return [entry for entry in self.runs.values() if entry.short]


def cell_of(run: str) -> str:
    """Return the configuration of which a run is a repeat."""
    match = REPEAT.fullmatch(run)
    return match[1] if match else run


# -- one poll


def look(
    folder: ResultFolder, study: str, scheduler_of: SchedulerOf = scheduler_of, *, shared: bool = False
) -> StudyStatus:
    """Query the scheduler of each open campaign of ours once and collect the runs that have ended.

    Campaigns of others are only read. `shared`: also act on campaigns of ours to which others can write.
    """
    status = StudyStatus(study)
    try:
        paths = planned(folder, study)
    except (SteelyardError, OSError) as error:
        status.problems.append(str(error))
        return status
    for path in paths:
        try:
            _look_at(folder, load_campaign(path), scheduler_of, status, shared=shared)
        except (SteelyardError, OSError) as error:
            status.problems.append(f"{path}: {error}")
    return status


def _look_at(
    folder: ResultFolder, campaign: Campaign, scheduler_of: SchedulerOf, status: StudyStatus, *, shared: bool
) -> None:
    status.labels |= {cell: label(swept) for cell, swept in read_cells(campaign.path).items()}
    status.arguments = read_arguments(campaign.path) or status.arguments
    states: dict[str, str] = {}
    ours = False
    try:
        ours = campaign.ours(shared=shared) is not None
        if is_collected(campaign.path):
            if ours:
                campaign.registration.forget()
        elif ours:
            scheduler = scheduler_of(campaign.plan.site.scheduler)
            states = _Look(folder, campaign, scheduler, status).take()
            if not runs_left(campaign.path):
                _close(campaign, scheduler)
        else:
            states = dict.fromkeys(runs_left(campaign.path), NOT_POLLED)
            status.foreign[campaign.path.name] = user_name(nofollow.stat(campaign.path).st_uid)
    except (SteelyardError, OSError) as error:
        # Another process may have collected the last run and closed the campaign meanwhile.
        if not is_collected(campaign.path):
            status.problems.append(f"{campaign.path}: {error}")
    _add(folder, campaign, states, status, ours=ours)


def _add(folder: ResultFolder, campaign: Campaign, states: dict[str, str], status: StudyStatus, *, ours: bool) -> None:
    """Add the runs of one campaign to the status. A run that a later campaign repeats counts once."""
    plan = campaign.plan
    runs = [run for job in plan.jobs for task in job.tasks for run in task]
    left, there = runs_left(campaign.path), folder.run_ids(plan.study)
    known = read_ended(campaign.path, set(runs))
    unnoted = []
    for run in runs:
        if run in left:
            status.waiting[run] = states.get(run, "unknown")
            status.runs.pop(run, None)
        elif run in there:
            if run not in known:
                try:
                    record = folder.read(folder.root / RUNS / plan.study / run)
                except (SteelyardError, OSError) as error:
                    status.problems.append(f"{run}: its record cannot be read: {error}")
                    continue
                known[run] = RunEnd.of(record)
                unnoted.append(known[run])
            status.runs[run] = known[run]
    if unnoted and ours:
        write_ended(campaign.path, unnoted)
    # A search does not need all its candidates.
    needed = {run for job in plan.jobs if job.kind != "search" for task in job.tasks for run in task}
    gone = needed - left - there - known.keys()
    submitted = {
        run for job in plan.jobs if gone and campaign.named_id(job) is not None for task in job.tasks for run in task
    }
    open_jobs = with_runs(campaign)
    ids = (campaign.job_id(job) if ours else campaign.named_id(job) for job in open_jobs)
    status.campaigns.append(
        Sent(
            path=campaign.path,
            site=plan.site.name,
            pool=plan.pool,
            jobs=len(plan.jobs),
            tasks=sum(len(job.tasks) for job in plan.jobs),
            runs=len(runs),
            left=len(left),
            withdrawn=len(gone - submitted),
            vanished=len(gone & submitted),
            ids=tuple(job_id for job_id in ids if job_id not in (None, FORGOTTEN)),
        )
    )


def _close(campaign: Campaign, scheduler: Scheduler) -> None:
    """Clean up a campaign whose runs are all collected. Can be repeated if it was interrupted."""
    sent = [job for job in campaign.plan.jobs if campaign.job_id(job) not in (None, FORGOTTEN)]
    if sent:
        scheduler.clean(campaign, sent)
    # A file server may keep files of its own in the folder.
    if not nofollow.names(campaign.path / RUNS):
        nofollow.remove_tree(campaign.path / RUNS)
    nofollow.remove(campaign.path / UNSETTLED_FILE)
    for home in (campaign.path, *(campaign.job_folder(job) for job in campaign.plan.jobs)):
        sweep_halves(home)
    for job in campaign.plan.jobs:
        for task in range(len(job.tasks)):
            redact_output(campaign.output_file(job, task), campaign.path)
    nofollow.open_file(campaign.path / COLLECTED_FILE, "a").close()
    campaign.registration.forget()


class _Look:
    """One poll of one open campaign."""

    def __init__(self, folder: ResultFolder, campaign: Campaign, scheduler: Scheduler, status: StudyStatus) -> None:
        self._folder = folder
        self._campaign = campaign
        self._scheduler = scheduler
        self._status = status
        self._left = runs_left(campaign.path)
        self._patience = _Patience(campaign.path)
        # How long files that other hosts write may take to show up here.
        mount = hostinfo.mount_of(campaign.path, Path("/"))
        self._settle_s = SETTLE_S if mount is not None and SLOW_FILESYSTEMS.fullmatch(mount.kind) else 0.0
        self._states: dict[str, str] = {}

    def take(self) -> dict[str, str]:
        """Collect the tasks that have ended and return the states of the other runs."""
        if not self._left:
            return {}
        recover(self._campaign, self._scheduler)
        sent = sent_jobs(self._campaign)
        polled = self._scheduler.poll(self._campaign, sent) if sent else {}
        for job in sent:
            if any(state.unsent for (number, _), state in polled.items() if number == job.number):
                submit_rest(self._folder, self._campaign, job, self._scheduler)
        ids = {job.number: self._campaign.job_id(job) for job in self._campaign.plan.jobs}
        try:
            tasks = [(job, task) for job in self._campaign.plan.jobs for task in range(len(job.tasks))]
            for job, task in tasks:
                if self._left.isdisjoint(job.tasks[task]):
                    continue
                if ids[job.number] is None:
                    self._say(job, task, "planned")
                else:
                    self._follow_task(job, task, polled.get((job.number, task), TaskState("unknown")))
        finally:
            self._patience.keep()
        return self._states

    def _follow_task(self, job: JobArray, task: int, state: TaskState) -> None:
        if state.phase == "queued":
            self._say(job, task, "queued")
            self._status.why[state.why] += 1
        elif state.phase == "running":
            self._status.halted.update([state.why] if state.why else [])
            # A task makes its runs one after the other.
            self._say(job, task, "queued")
            lines = done_lines(self._campaign, job, task) if len(job.tasks[task]) > 1 else {}
            going = [run for run in job.tasks[task] if run in self._left and run not in lines]
            self._states |= {run: "ended" for run in lines if run in self._left} | dict.fromkeys(going[:1], "running")
        else:
            name = f"{self._campaign.job_id(job)}_{task}"
            unsaid = Scheduled(scheduler=self._campaign.plan.site.scheduler, job=name, state="unknown")
            if state.phase == "ended":
                self._settle_ended(job, task, state.said or unsaid, began=state.began)
            else:
                self._settle_unknown(job, task, state.said or unsaid)

    def _say(self, job: JobArray, task: int, state: str) -> None:
        self._states |= {run: state for run in job.tasks[task] if run in self._left}

    def _settle_ended(self, job: JobArray, task: int, said: Scheduled, *, began: bool | None) -> None:
        try:
            lost = self._scheduler.fetch(self._campaign, job, task)
        except SteelyardError as error:
            # Files that cannot be read now may be readable later, and must not keep other tasks from being collected.
            self._status.problems.append(f"{job.name}, task {task}: {error}")
            self._say(job, task, "ended")
            return
        if began is False:
            lost = ""
        elif lost and began is None:
            lost = f"{lost}; whether the runs had begun is not known"
        if self._settle_s and not self._has_all_lines(job, task):
            key = f"{job.number}.{task}.ended"
            if self._patience.waits(key, _fingerprint(self._campaign, job, task), self._settle_s):
                self._say(job, task, "ended")
                return
        self._collect(job, task, said, lost)

    def _settle_unknown(self, job: JobArray, task: int, said: Scheduled) -> None:
        if not self._has_all_lines(job, task):
            key = f"{job.number}.{task}.unknown"
            if self._patience.waits(key, _fingerprint(self._campaign, job, task), LOST_AFTER_S):
                self._say(job, task, "unknown")
                return
            said = replace(
                said,
                cause=said.cause or "failed",
                reason=said.reason or "the scheduler no longer knows this job",
                evidence={**(said.evidence or {}), "unknown_since_unix_s": self._patience.since(key)},
            )
        self._collect(job, task, said)

    def _has_all_lines(self, job: JobArray, task: int) -> bool:
        lines = done_lines(self._campaign, job, task)
        return all(run in lines for run in job.tasks[task] if run in self._left)

    def _collect(self, job: JobArray, task: int, said: Scheduled, lost: str = "") -> None:
        haul = collect_task(self._folder, self._campaign, job, task, said, self._left, lost)
        self._status.collected += len(haul.ended)
        self._status.problems += haul.problems
        if haul.problems:
            self._say(job, task, "ended")


# -- how long a task has looked the same


class _Patience:
    """Remember since when a task has looked the same, across polls by different processes."""

    def __init__(self, campaign: Path) -> None:
        self._path = campaign / UNSETTLED_FILE
        self._before: dict[str, tuple[float, int]] = {}
        # Numbers out of range or of the wrong kind, or nested too deeply: as if there was nothing.
        with suppress(ValueError, TypeError, AttributeError, OverflowError, RecursionError):
            if nofollow.is_file(self._path):
                entries: Any = json.loads(read_inside(self._path, MAX_UNSETTLED_BYTES))
                now_s = time.time()
                self._before = {
                    str(key): (float(since_s), int(mark))
                    for key, (since_s, mark) in entries.items()
                    if 0 <= since_s <= now_s
                }
        self._now: dict[str, tuple[float, int]] = {}

    def waits(self, key: str, fingerprint: int, wait_s: float) -> bool:
        """Return whether the task has looked like this for less than `wait_s`, and must be polled again."""
        since_s, before = self._before.get(key, (time.time(), fingerprint))
        if before != fingerprint:
            since_s = time.time()
        self._now[key] = (since_s, fingerprint)
        return time.time() - since_s < wait_s

    def since(self, key: str) -> float:
        """Return when the task was first seen like this."""
        return self._now[key][0]

    def keep(self) -> None:
        """Write the times down for the next poll."""
        if self._now != self._before:
            replace_text(self._path, json.dumps(self._now), self._path.parent)


def _fingerprint(campaign: Campaign, job: JobArray, task: int) -> int:
    """Return the last time that any file of a task changed, in nanoseconds."""
    folders = [campaign.raw(run) for run in job.tasks[task]]
    files = [campaign.done_file(job, task), campaign.output_file(job, task), *folders]
    times = [0]
    # A link is a problem of its run, which collecting reports.
    for raw in folders:
        with suppress(OSError, nofollow.LinkError):
            files += [raw / name for name in nofollow.names(raw)]
    for path in files:
        with suppress(OSError, nofollow.LinkError):
            times.append(nofollow.stat(path).st_mtime_ns)
    return max(times)


# -- waiting


def wait(
    folder: ResultFolder,
    study: str,
    tell: Callable[[StudyStatus], None],
    scheduler_of: SchedulerOf = scheduler_of,
    *,
    shared: bool = False,
    full: bool = False,
) -> StudyStatus:
    """Poll until every submitted run of ours is collected; call `tell` after each poll.

    `full`: the queue had no room for all of them, so return as soon as one is collected, or after a pause.

    A scheduler that does not answer is queried again; after SILENT_LOOKS failures in a row this is an error.
    """
    pause_s, silent = PAUSE_S, 0
    # One for all polls, because it may follow what tasks print in between.
    kept = cache(scheduler_of)
    while True:
        status = look(folder, study, kept, shared=shared)
        tell(status)
        if all(state in ("planned", NOT_POLLED) for state in status.waiting.values()):
            if full and not status.collected:
                # Jobs of another campaign, or of another kind, fill the queue.
                time.sleep(LONGEST_PAUSE_S)
            return status
        silent = silent + 1 if status.problems else 0
        if silent >= SILENT_LOOKS:
            raise SteelyardError(status.problems[0], next_step=f"steelyard status {study}")
        if full and (status.collected or pause_s >= LONGEST_PAUSE_S):
            return status
        pause_s = PAUSE_S if status.collected else min(LONGEST_PAUSE_S, pause_s * PAUSE_GROWTH)
        time.sleep(pause_s)
