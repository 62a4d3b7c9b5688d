"""Plan the missing runs of a study as jobs of a site: shapes, tasks, time limits, price. Submits nothing."""

from __future__ import annotations

import datetime as dt
import hashlib
import itertools
import math
import os
import re
import secrets
import sys
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Protocol

from steelyard import nofollow
from steelyard.contracts.base import NAME_PATTERN
from steelyard.errors import InputError, Problem, SteelyardError, printable
from steelyard.inputs.search import SearchGroup, remaining
from steelyard.inputs.validate import parse_json, read_inside
from steelyard.launch import registry
from steelyard.launch.campaign import (
    PLAN_FILE,
    Campaign,
    Image,
    JobArray,
    JobKind,
    Plan,
    RunShape,
    Scheduler,
)
from steelyard.launch.images.image import look_at_image
from steelyard.launch.local_study import refuse_other_seed, write_study_plan
from steelyard.launch.price import price
from steelyard.launch.search import search_result
from steelyard.launch.staging import job_files, stage, write_campaign_plan, write_job, write_specs, write_study
from steelyard.results.store import CAMPAIGNS, sweep_halves
from steelyard.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from steelyard.contracts.spec import RunSpec
    from steelyard.inputs.site import Place
    from steelyard.inputs.study import Expansion
    from steelyard.results.store import ResultFolder

RUNS: Final = "runs"
DRY_RUN: Final = "dry-run"
COLLECTED_FILE: Final = "collected"
"""Marks a campaign whose runs are all collected, or were withdrawn before submission."""
MAX_PLAN_BYTES: Final = 1 << 25
NUMBER: Final = re.compile(r"[0-9]{4,9}")
STUDY: Final = re.compile(NAME_PATTERN)

# Simulated runs took at most 10 ms plus 5 us per rank and step here (1 to 64 ranks, 100 to 20,000 steps); the factor
# leaves room for slower machines.
SIMULATED_S, SIMULATED_STEP_S, SIMULATED_ROOM = 0.02, 5e-6, 10
PACKED_RUNS: Final = 200
"""Runs per task: some seconds of work, to make the start of Python a small part of it."""
PACKED_PER_MIB: Final = 4
"""Runs per MiB of a pod's log: a simulated run of 1,000 steps on a few ranks takes about 100 kB."""
PACKED_S: Final = 600
TASK_ROOM_S: Final = 60
PROGRAM_END_S: Final = 60
MEASURED_ROOM: Final = 1.5
BUDGET_ROOM: Final = 1.2
MEASURED_LEAST_S: Final = 60
LOOKED_AT: Final = 20
"""The most earlier runs of a configuration whose duration is read."""


# -- existing campaigns


def study_folder(folder: ResultFolder, study: str) -> Path:
    """The folder of the campaigns of a study."""
    return folder.root / CAMPAIGNS / study


def campaigns(folder: ResultFolder, study: str) -> list[Campaign]:
    """Return the campaigns of a study, oldest first."""
    return [load_campaign(path) for path in planned(folder, study)]


def planned(folder: ResultFolder, study: str) -> list[Path]:
    """Return the folders of the complete campaigns of a study, oldest first."""
    return [path for path in _list_numbered(study_folder(folder, study)) if _has_plan(path)]


def _has_plan(path: Path) -> bool:
    try:
        return nofollow.is_file(path / PLAN_FILE)
    except nofollow.LinkError:
        # Whoever reads it reports the link.
        return True


def load_campaign(path: Path) -> Campaign:
    """Read the campaign in a folder."""
    text = read_inside(path / PLAN_FILE, MAX_PLAN_BYTES)
    return Campaign(path, parse_json(Plan, text, str(path / PLAN_FILE)), hashlib.sha256(text).hexdigest())


def studies(folder: ResultFolder) -> list[str]:
    """Return the names of the studies that have campaigns."""
    home = folder.root / CAMPAIGNS
    return [name for name in nofollow.names(home) if STUDY.fullmatch(name) and _has_campaigns(home / name)]


def _has_campaigns(home: Path) -> bool:
    try:
        return bool(_list_numbered(home))
    except nofollow.LinkError:
        return True
    except OSError:
        return False


def is_collected(campaign: Path) -> bool:
    """Return whether nothing is left to do for a campaign."""
    return nofollow.is_file(campaign / COLLECTED_FILE)


def runs_left(campaign: Path) -> set[str]:
    """Return the ids of the runs that are not collected yet; lists one folder."""
    # A file server may keep its own files here, with names that begin with a dot; no run id does.
    return {name for name in nofollow.names(campaign / RUNS) if not name.startswith(".")}


def _list_numbered(home: Path) -> list[Path]:
    return sorted(
        (home / name for name in nofollow.names(home) if NUMBER.fullmatch(name)), key=lambda path: int(path.name)
    )


# -- a new campaign


def make_campaign(
    folder: ResultFolder,
    expansion: Expansion,
    place: Place,
    scheduler: Scheduler,
    *,
    file: Path | None = None,
    dry_run: bool = False,
) -> Campaign | None:
    """Write and register a campaign of all runs that have no record and are not submitted; None if there are none.

    A dry run is not registered: it is never submitted. The caller holds the lock of the study. `file`: the study's
    file, which is kept with the campaign.
    """
    try:
        str(folder.root).encode()
    except UnicodeEncodeError:
        raise InputError(
            f"the path of the results is not UTF-8: {printable(str(folder.root))}; records could not name their files",
            next_step="give another folder with --results",
        ) from None
    if not dry_run:
        registry.prepare()
    folder.prepare()
    candidates = tuple(spec for group in expansion.searches for spec in group.runs)
    refuse_other_seed(folder, replace(expansion, runs=(*expansion.runs, *candidates)))
    home = study_folder(folder, expansion.study.name)
    nofollow.make_folder(home.parent, exist_ok=True)
    nofollow.make_folder(home, exist_ok=True)
    # Incomplete campaigns of interrupted commands, and the last dry run.
    for entry in [*_list_numbered(home), home / DRY_RUN]:
        if nofollow.is_folder(entry) and (entry.name == DRY_RUN or not _has_plan(entry)):
            nofollow.remove_tree(entry)
    sweep_halves(home)
    work = _find_work(folder, expansion)
    if not work.groups:
        return None
    number = max((int(entry.name) for entry in _list_numbered(home)), default=0) + 1
    path = home / (DRY_RUN if dry_run else f"{number:04d}")
    # A dry run asks nobody.
    most = None if dry_run else scheduler.most_queued(place)
    limits = place.site.limits
    room = (limits.max_submitted if most is None else min(limits.max_submitted, most)) - _count_open_tasks(
        folder, place
    )
    jobs = _make_jobs(work, place, _make_run_limit(folder, expansion, place), room)
    # Before anything is written: an image for other nodes is an error.
    image = look_at_image(place)
    write_study_plan(folder, expansion)
    # Nobody else may change what a job will run, whatever the umask.
    with registry.mask(0o022):
        nofollow.make_folder(path)
        return _write_campaign(path, expansion, place, scheduler, jobs, work, image, file, dry_run=dry_run)


def _write_campaign(
    path: Path,
    expansion: Expansion,
    place: Place,
    scheduler: Scheduler,
    jobs: Sequence[JobArray],
    work: _Work,
    image: Image | None,
    file: Path | None,
    *,
    dry_run: bool,
) -> Campaign:
    name = secrets.token_hex(6)
    jobs = [replace(job, name=f"sy-{expansion.study.name[:40]}-{name}-{job.number:03d}") for job in jobs]
    plan = Plan(
        study=expansion.study.name,
        campaign=name,
        created_at=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        made_by=f"steelyard {VERSION}",
        site=place.site,
        pool=place.pool_name,
        image=image,
        worker_sha256=stage(path / "worker"),
        python=place.site.python or (sys.executable if image is None else "python3"),
        jobs=tuple(jobs),
        price=price(place, jobs),
        folder=os.getcwd() if any(job.shape.program for job in jobs) else None,  # noqa: PTH109 -- plain text
    )
    campaign = Campaign(path, plan)
    chosen = {run for job in jobs for task in job.tasks for run in task}
    specs = write_specs(path, (spec for spec in work.specs() if spec.run_id in chosen))
    digests = {
        str(job.number): write_job(campaign, job, job_files(job, specs, scheduler.render(campaign, job)))
        for job in jobs
    }
    write_study(path, expansion, file)
    write_campaign_plan(campaign, None if dry_run else digests)
    return campaign


def _count_open_tasks(folder: ResultFolder, place: Place) -> int:
    """Count the tasks of earlier campaigns that may still be in the queue of this site."""
    count = 0
    for path in (path for study in studies(folder) for path in planned(folder, study)):
        for plan in _read_plans([path]):
            if plan.site.name == place.site.name and not is_collected(path):
                left = runs_left(path)
                count += sum(not left.isdisjoint(task) for job in plan.jobs for task in job.tasks)
    return count


def _read_plans(paths: Iterable[Path]) -> Iterator[Plan]:
    """Read plans; skip those of another version, which `steelyard status` reports."""
    for path in paths:
        with suppress(SteelyardError):
            yield load_campaign(path).plan


# -- what is missing


@dataclass(frozen=True)
class _Work:
    """What the study lacks: single runs, each a group of its own, and searches with several candidates."""

    groups: list[tuple[RunSpec, ...]]
    searches: int
    """How many of the groups are searches; these come last."""

    def specs(self) -> Iterator[RunSpec]:
        return itertools.chain.from_iterable(self.groups)


def under_way(folder: ResultFolder, study: str) -> set[str]:
    """Return the ids of the runs that are planned or submitted and have no record yet."""
    return {run for path in planned(folder, study) for run in runs_left(path)}


def _find_work(folder: ResultFolder, expansion: Expansion) -> _Work:
    out = under_way(folder, expansion.study.name)
    # Listed after that, and as a whole: a network file system may still deny a single run that another host has just
    # collected.
    there = folder.run_ids(expansion.study.name)
    runs = [
        (spec,) for spec in expansion.runs if spec.run_id not in out and not (spec.run_id in there and folder.has(spec))
    ]
    # A search that is submitted tries its candidates itself; one that was interrupted continues.
    searches = [
        left
        for group in expansion.searches
        if out.isdisjoint(spec.run_id for spec in group.runs)
        and (left := remaining(group, search_result(folder, group).known))
    ]
    return _Work([*runs, *searches], len(searches))


# -- limits and shapes


class _RunLimit(Protocol):
    """Return the time limit of a run; `packed`: without the start of Python."""

    def __call__(self, spec: RunSpec, *, packed: bool) -> int: ...


def _make_run_limit(folder: ResultFolder, expansion: Expansion, place: Place) -> _RunLimit:
    """Return the time limit of a run: as given, else from earlier runs of its configuration, else from its budget."""
    took = _read_longest_s(folder, expansion, place)
    longest = place.pool.max_time_s

    def limit(spec: RunSpec, *, packed: bool) -> int:
        limits = place.site.limits
        if spec.time_limit_s is not None:
            # The worker ends a program at its limit, and its end must be written.
            least = spec.time_limit_s + (PROGRAM_END_S if spec.program is not None else 0)
        elif spec.configuration in took:
            least = max(MEASURED_LEAST_S, MEASURED_ROOM * took[spec.configuration])
        elif spec.device_family == "sim":
            least = _simulated_s(spec) + (0 if packed else limits.setup_s)
        elif spec.program is not None:
            # It runs to its end, unless it has a limit of its own.
            own_s = spec.program.max_seconds
            least = limits.unbounded_s if own_s is None else limits.setup_s + BUDGET_ROOM * own_s
        elif spec.budget.epochs is not None:
            least = limits.unbounded_s
        else:
            least = limits.setup_s + BUDGET_ROOM * spec.budget.longest_s
        seconds = math.ceil(least)
        if spec.time_limit_s is None and seconds > TASK_ROOM_S:
            # Whole minutes, to let runs of similar duration share an array.
            seconds = 60 * math.ceil(seconds / 60)
        return seconds if longest is None else min(seconds, max(1, longest - TASK_ROOM_S))

    return limit


def _simulated_s(spec: RunSpec) -> float:
    """Estimate the duration of a simulated run, without the start of Python."""
    budget = spec.budget
    steps = budget.max_steps
    if budget.epochs is not None:
        steps = budget.epochs * (spec.steps_per_epoch or 1)
    # A simulated clock may be tied to the real one.
    tied_s = BUDGET_ROOM * budget.longest_s * spec.sim.wall_s_per_s
    return tied_s + SIMULATED_ROOM * (SIMULATED_S + SIMULATED_STEP_S * spec.devices * steps)


def _read_longest_s(folder: ResultFolder, expansion: Expansion, place: Place) -> dict[str, float]:
    """Return the longest wall time of completed runs per configuration on this pool.

    Configurations with a run that hit its time limit are left out.
    """
    here = {
        run
        for plan in _read_plans(planned(folder, expansion.study.name))
        if (plan.site.name, plan.pool) == (place.site.name, place.pool_name)
        for job in plan.jobs
        for task in job.tasks
        for run in task
    }
    took: dict[str, list[float]] = {}
    cut: set[str] = set()
    for spec in expansion.runs:
        asked = spec.time_limit_s is None and spec.device_family != "sim" and spec.run_id in here
        if not asked or len(took.get(spec.configuration, ())) >= LOOKED_AT or not folder.has(spec):
            continue
        record = folder.read(folder.run_path(spec))
        if record.status.code == "time_limit":
            cut.add(spec.configuration)
        elif record.status.code == "completed" and record.launch is not None:
            took.setdefault(spec.configuration, []).append(record.launch.wall_s)
    return {cell: max(times) for cell, times in took.items() if cell not in cut}


def shape_of(spec: RunSpec, place: Place, run_limit_s: int) -> RunShape:
    """Return what a run needs from the place. InputError if the place does not have it."""
    if spec.device_family == "sim":
        return RunShape(
            nodes=1, processes_per_node=1, devices_per_node=0, threads=spec.threads, sharing=1, run_limit_s=run_limit_s
        )
    pool = place.pool
    problems = []
    nodes, rest = divmod(spec.devices, pool.devices_per_node)
    if spec.devices < pool.devices_per_node:
        nodes, rest = 1, 0
    if rest:
        valid = f"at most {pool.devices_per_node}, or a multiple of it: whole nodes"
        problems.append(Problem("devices", f"{spec.devices} on nodes with {pool.devices_per_node} devices", valid))
    if pool.max_nodes is not None and nodes > pool.max_nodes:
        most = pool.max_nodes * pool.devices_per_node
        problems.append(Problem("devices", f"{spec.devices} devices need {nodes} nodes", f"at most {most} devices"))
    if "auto" not in (pool.device, spec.device) and spec.device not in (pool.device, "cpu"):
        problems.append(Problem("device", f"{spec.device}, but the nodes have {pool.device}", f"{pool.device}, auto"))
    if problems:
        raise InputError(f"pool {place.pool_name} of {place.site.name} cannot run this", problems=(*problems,))
    on_the_host = spec.device == "cpu" and pool.device not in ("cpu", "auto")
    per_node = min(spec.devices, pool.devices_per_node)
    return RunShape(
        nodes=nodes,
        processes_per_node=per_node if spec.program is None else 1,
        devices_per_node=0 if on_the_host else per_node,
        threads=spec.threads,
        sharing=_sharing(spec, place, per_node),
        run_limit_s=run_limit_s,
        program=spec.program is not None,
    )


def _sharing(spec: RunSpec, place: Place, per_node: int) -> int:
    """Return among how many processes the job's CPUs of a node are divided.

    A job that does not have whole nodes requests CPUs in proportion to its own processes.
    """
    if not place.pool.exclusive:
        return per_node
    if "cpu" in (spec.device, place.pool.device):
        return min(spec.most_devices or spec.devices, place.pool.devices_per_node)
    return place.pool.devices_per_node


# -- jobs


@dataclass
class _Batch:
    """Runs of one shape and kind."""

    kind: JobKind
    shape: RunShape
    groups: list[tuple[str, ...]]
    tries: int
    """The most runs that a search can take."""

    def most(self, place: Place) -> int:
        """Return the most groups that fit into the longest task."""
        if self.kind == "search":
            return 1
        longest = place.pool.max_time_s
        if longest is None:
            return len(self.groups)
        return max(1, (longest - self.room_s(place)) // self.shape.run_limit_s)

    def room_s(self, place: Place) -> int:
        """Return the time of a task beyond its runs. A packed task starts Python once; other runs include it."""
        return TASK_ROOM_S + (place.site.limits.setup_s if self.kind == "packed" else 0)

    def usual(self, place: Place) -> int:
        """Return the number of groups in one task if the queue limit does not require more."""
        if self.kind != "packed":
            return 1
        # The results of a pod come back through its log.
        room = PACKED_PER_MIB * place.site.limits.log_mib if place.site.scheduler == "kubernetes" else PACKED_RUNS
        return max(1, min(PACKED_RUNS, room, PACKED_S // self.shape.run_limit_s))

    def task_limit_s(self, tasks: Sequence[Sequence[str]], place: Place) -> int:
        """Return a time limit that is enough for each of these tasks."""
        runs = self.tries if self.kind == "search" else max(len(task) for task in tasks)
        limit = runs * self.shape.run_limit_s + self.room_s(place)
        return limit if place.pool.max_time_s is None else min(limit, place.pool.max_time_s)


def _make_jobs(work: _Work, place: Place, limit: _RunLimit, room: int) -> list[JobArray]:
    longest_s = place.pool.max_time_s
    asked_s = max((spec.time_limit_s for spec in work.specs() if spec.time_limit_s is not None), default=0.0)
    if longest_s is not None and asked_s + TASK_ROOM_S > longest_s:
        valid = f"at most {longest_s - TASK_ROOM_S}: the time limit of pool {place.pool_name} is {longest_s} s"
        raise InputError(
            f"{place.site.name} does not allow a run this long",
            problems=(Problem("time_limit_s", f"{asked_s:g}", valid),),
        )
    batches = _make_batches(work, place, limit)
    if room < 1:
        raise SteelyardError(
            f"the queue of {place.site.name} is full: limits.max_submitted tasks are already submitted",
            next_step="steelyard status",
        )
    each = _runs_per_task(batches, place, room)
    jobs: list[JobArray] = []
    for batch in batches:
        size = max(1, min(batch.most(place), max(each, batch.usual(place))))
        tasks = [tuple(itertools.chain(*batch.groups[i : i + size])) for i in range(0, len(batch.groups), size)]
        # The rest is left to the next campaign: the same command again.
        tasks = tasks[: room - sum(len(job.tasks) for job in jobs)]
        for i in range(0, len(tasks), place.site.limits.array_size):
            part = tasks[i : i + place.site.limits.array_size]
            number = len(jobs)
            jobs.append(
                JobArray(
                    number=number,
                    name=f"sy-{number:03d}",
                    kind=batch.kind,
                    shape=batch.shape,
                    task_limit_s=batch.task_limit_s(part, place),
                    tasks=tuple(part),
                )
            )
    return jobs


def _make_batches(work: _Work, place: Place, limit: _RunLimit) -> list[_Batch]:
    batches: dict[tuple[JobKind, RunShape], _Batch] = {}
    first_search = len(work.groups) - work.searches
    for number, group in enumerate(work.groups):
        first = group[0]
        # Short simulated runs share a process, except those with their own time limit or on the real clock.
        quick = first.device_family == "sim" and first.time_limit_s is None and not first.sim.wall_s_per_s
        packs = quick and _simulated_s(first) <= TASK_ROOM_S
        kind: JobKind = "search" if number >= first_search else "packed" if packs else "runs"
        longest_s = max(limit(spec, packed=kind == "packed") for spec in group)
        shape = shape_of(group[-1], place, longest_s)
        batch = batches.setdefault((kind, shape), _Batch(kind, shape, [], 0))
        batch.groups.append(tuple(spec.run_id for spec in group))
        if kind == "search":
            batch.tries = max(batch.tries, SearchGroup(group).most_tries)
    return list(batches.values())


def _runs_per_task(batches: Sequence[_Batch], place: Place, room: int) -> int:
    """Return the fewest runs per task for which all tasks fit into the queue, or the most that a task may hold."""
    most = max(batch.most(place) for batch in batches)

    def tasks(each: int) -> int:
        sizes = [max(1, min(batch.most(place), max(each, batch.usual(place)))) for batch in batches]
        return sum(math.ceil(len(batch.groups) / size) for batch, size in zip(batches, sizes, strict=True))

    low, high = 1, most
    while low < high:
        middle = (low + high) // 2
        if tasks(middle) <= room:
            high = middle
        else:
            low = middle + 1
    return low
