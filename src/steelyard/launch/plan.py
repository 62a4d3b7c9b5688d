"""Turns what a study still lacks into jobs that a site takes: shapes, tasks, time limits, price. Submits nothing."""

from __future__ import annotations

import datetime as dt
import itertools
import math
import os
import re
import secrets
import shutil
import sys
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Protocol

from steelyard.errors import InputError, Problem, SteelyardError
from steelyard.inputs.search import SearchGroup, remaining
from steelyard.inputs.validate import parse_json, read_bounded
from steelyard.launch.campaign import PLAN_FILE, Campaign, Image, JobArray, JobKind, Plan, RunShape, Scheduler
from steelyard.launch.images.image import look_at_image
from steelyard.launch.local_study import refuse_other_seed, write_study_plan
from steelyard.launch.price import price
from steelyard.launch.search import found
from steelyard.launch.staging import stage, write_campaign_plan, write_job, write_specs, write_study
from steelyard.results.store import sweep_halves
from steelyard.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from steelyard.contracts.spec import RunSpec
    from steelyard.inputs.site import Place
    from steelyard.inputs.study import Expansion
    from steelyard.results.store import ResultFolder

CAMPAIGNS: Final = "campaigns"
RUNS: Final = "runs"
DRY_RUN: Final = "dry-run"
COLLECTED_FILE: Final = "collected"
"""In a campaign all of whose runs have been collected, or were taken back before they were sent."""
MAX_PLAN_BYTES: Final = 1 << 28
NUMBER: Final = re.compile(r"\d{4,9}")

# Simulated runs: what one takes here, by 1 to 64 ranks and 100 to 20,000 steps (10 ms and 5 us a rank and step), with
# tenfold room for slower machines.
SIMULATED_S, SIMULATED_STEP_S, SIMULATED_ROOM = 0.02, 5e-6, 10
PACKED_RUNS: Final = 200
"""In one task: some seconds of work, so that starting Python is a small part of it."""
PACKED_A_MIB: Final = 4
"""For each MiB of a pod's log: a simulated run of 1,000 steps on a few ranks takes some 100 kB of it."""
PACKED_S: Final = 600
TASK_ROOM_S: Final = 60
MEASURED_ROOM: Final = 1.5
BUDGET_ROOM: Final = 1.2
MEASURED_LEAST_S: Final = 60
LOOKED_AT: Final = 20
"""Earlier runs of a cell that are asked how long they took."""


# -- what there is


def study_folder(folder: ResultFolder, study: str) -> Path:
    """Where the campaigns of a study lie."""
    return folder.path.resolve() / CAMPAIGNS / study


def campaigns(folder: ResultFolder, study: str) -> list[Campaign]:
    """The campaigns of a study, oldest first."""
    return [load_campaign(path) for path in planned(folder, study)]


def planned(folder: ResultFolder, study: str) -> list[Path]:
    """Where they lie."""
    return [path for path in _list_numbered(study_folder(folder, study)) if (path / PLAN_FILE).is_file()]


def load_campaign(path: Path) -> Campaign:
    """The campaign in a folder."""
    return Campaign(path, parse_json(Plan, read_bounded(path / PLAN_FILE, MAX_PLAN_BYTES), str(path / PLAN_FILE)))


def studies(folder: ResultFolder) -> list[str]:
    """Names of the studies that were sent somewhere."""
    home = folder.path / CAMPAIGNS
    return sorted(entry.name for entry in home.iterdir() if any(_list_numbered(entry))) if home.is_dir() else []


def is_collected(campaign: Path) -> bool:
    """Whether nothing is left to do for it."""
    return (campaign / COLLECTED_FILE).is_file()


def runs_left(campaign: Path) -> set[str]:
    """Ids of the runs that are not collected yet: one look at one folder."""
    try:
        # A file server may keep files of its own there, whose names begin with a dot; no run's does.
        return {entry.name for entry in os.scandir(campaign / RUNS) if not entry.name.startswith(".")}
    except FileNotFoundError:
        return set()


def _list_numbered(home: Path) -> list[Path]:
    if not home.is_dir():
        return []
    found = [entry for entry in home.iterdir() if NUMBER.fullmatch(entry.name) and entry.is_dir()]
    return sorted(found, key=lambda entry: int(entry.name))


# -- making one


def make_campaign(
    folder: ResultFolder,
    expansion: Expansion,
    place: Place,
    scheduler: Scheduler,
    *,
    file: Path | None = None,
    dry_run: bool = False,
) -> Campaign | None:
    """Write a campaign of all runs that are neither there nor under way; None when there is none.

    Whoever calls this holds the study's lock. `file` is the study's, to be kept with it.
    """
    folder.prepare()
    candidates = tuple(spec for group in expansion.searches for spec in group.runs)
    refuse_other_seed(folder, replace(expansion, runs=(*expansion.runs, *candidates)))
    home = study_folder(folder, expansion.study.name)
    home.mkdir(parents=True, exist_ok=True)
    # What planners left that died before their plan was whole, and the last dry run.
    for entry in [*_list_numbered(home), home / DRY_RUN]:
        if entry.is_dir() and (entry.name == DRY_RUN or not (entry / PLAN_FILE).is_file()):
            shutil.rmtree(entry)
    sweep_halves(home)
    work = _find_work(folder, expansion)
    if not work.groups:
        return None
    number = max((int(entry.name) for entry in _list_numbered(home)), default=0) + 1
    path = home / (DRY_RUN if dry_run else f"{number:04d}")
    room = place.site.limits.max_submitted - _count_open_tasks(folder, place)
    jobs = _make_jobs(work, place, _make_run_limit(folder, expansion, place), room)
    # Before anything is written: an image for other nodes is refused here.
    image = look_at_image(place)
    write_study_plan(folder, expansion)
    path.mkdir()
    return _write_campaign(path, expansion, place, scheduler, jobs, work, image, file)


def _write_campaign(
    path: Path,
    expansion: Expansion,
    place: Place,
    scheduler: Scheduler,
    jobs: Sequence[JobArray],
    work: _Work,
    image: Image | None,
    file: Path | None,
) -> Campaign:
    name = secrets.token_hex(6)
    jobs = [replace(job, name=f"sy-{name}-{job.number:03d}") for job in jobs]
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
    )
    campaign = Campaign(path, plan)
    chosen = {run for job in jobs for task in job.tasks for run in task}
    write_specs(path, (spec for spec in work.specs() if spec.run_id in chosen))
    for job in jobs:
        write_job(campaign, job, scheduler.render(campaign, job))
    write_study(path, expansion, file)
    write_campaign_plan(campaign)
    return campaign


def _count_open_tasks(folder: ResultFolder, place: Place) -> int:
    """Tasks of earlier campaigns that may still be in this site's queue."""
    count = 0
    for home in (folder.path / CAMPAIGNS).iterdir():
        for path in _list_numbered(home):
            if (path / PLAN_FILE).is_file() and not is_collected(path):
                left = runs_left(path)
                for plan in _read_plans([path]):
                    if plan.site.name == place.site.name:
                        count += sum(not left.isdisjoint(task) for job in plan.jobs for task in job.tasks)
    return count


def _read_plans(paths: Iterable[Path]) -> Iterator[Plan]:
    """Plans, without those of another version: they are told of where they are looked at, and hinder no others."""
    for path in paths:
        with suppress(SteelyardError):
            yield load_campaign(path).plan


# -- what is to be done


@dataclass(frozen=True)
class _Work:
    """What the study lacks: runs, each a group of its own, and searches of several candidates."""

    groups: list[tuple[RunSpec, ...]]
    searches: int
    """The last so many groups are searches."""

    def specs(self) -> Iterator[RunSpec]:
        return itertools.chain.from_iterable(self.groups)


def under_way(folder: ResultFolder, study: str) -> set[str]:
    """Ids of the runs that were sent somewhere, or are to be, and have no record yet."""
    return {run for path in planned(folder, study) for run in runs_left(path)}


def _find_work(folder: ResultFolder, expansion: Expansion) -> _Work:
    out = under_way(folder, expansion.study.name)
    # Listed after that, and listed anew: one by one a network file system may still say "no" of a run which another
    # host has collected just now.
    there = folder.run_ids(expansion.study.name)
    runs = [
        (spec,) for spec in expansion.runs if spec.run_id not in out and not (spec.run_id in there and folder.has(spec))
    ]
    # A search that is under way tries its candidates itself; one that was broken off goes on.
    searches = [
        left
        for group in expansion.searches
        if out.isdisjoint(spec.run_id for spec in group.runs) and (left := remaining(group, found(folder, group).known))
    ]
    return _Work([*runs, *searches], len(searches))


# -- limits and shapes


class _RunLimit(Protocol):
    """How long a run may take, with or without the start of Python."""

    def __call__(self, spec: RunSpec, *, packed: bool) -> int: ...


def _make_run_limit(folder: ResultFolder, expansion: Expansion, place: Place) -> _RunLimit:
    """How long a run may take: as asked, else by what runs of its cell took here, else by its budget."""
    took = _read_longest_s(folder, expansion, place)
    longest = place.pool.max_time_s

    def limit(spec: RunSpec, *, packed: bool) -> int:
        limits = place.site.limits
        if spec.time_limit_s is not None:
            least = spec.time_limit_s
        elif spec.configuration in took:
            least = max(MEASURED_LEAST_S, MEASURED_ROOM * took[spec.configuration])
        elif spec.device_family == "sim":
            least = _simulated_s(spec) + (0 if packed else limits.setup_s)
        elif spec.budget.epochs is not None:
            least = limits.unbounded_s
        else:
            least = limits.setup_s + BUDGET_ROOM * spec.budget.max_seconds
        seconds = math.ceil(least)
        if spec.time_limit_s is None and seconds > TASK_ROOM_S:
            # By whole minutes, so that runs which took nearly the same share an array.
            seconds = 60 * math.ceil(seconds / 60)
        return seconds if longest is None else min(seconds, max(1, longest - TASK_ROOM_S))

    return limit


def _simulated_s(spec: RunSpec) -> float:
    """Once Python has started."""
    budget = spec.budget
    steps = budget.max_steps
    if budget.epochs is not None:
        steps = budget.epochs * (spec.steps_per_epoch or 1)
    # Its clock may be tied to ours.
    tied_s = BUDGET_ROOM * budget.max_seconds * spec.sim.wall_s_per_s
    return tied_s + SIMULATED_ROOM * (SIMULATED_S + SIMULATED_STEP_S * spec.ranks * steps)


def _read_longest_s(folder: ResultFolder, expansion: Expansion, place: Place) -> dict[str, float]:
    """The longest wall time of completed runs of a cell at this very place; without cells that were ever cut short."""
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
    """What a run needs of the place. InputError when the place cannot give it."""
    if spec.device_family == "sim":
        return RunShape(
            nodes=1, processes_per_node=1, devices_per_node=0, threads=spec.threads, run_limit_s=run_limit_s
        )
    pool = place.pool
    problems = []
    nodes, rest = divmod(spec.ranks, pool.devices_per_node)
    if spec.ranks < pool.devices_per_node:
        nodes, rest = 1, 0
    if rest:
        valid = f"at most {pool.devices_per_node}, or a multiple of it: whole nodes"
        problems.append(Problem("ranks", f"{spec.ranks} on nodes of {pool.devices_per_node} devices", valid))
    if pool.max_nodes is not None and nodes > pool.max_nodes:
        most = pool.max_nodes * pool.devices_per_node
        problems.append(Problem("ranks", f"{spec.ranks} ranks need {nodes} nodes", f"at most {most} ranks"))
    if "auto" not in (pool.device, spec.device) and spec.device not in (pool.device, "cpu"):
        problems.append(Problem("device", f"{spec.device} where the nodes have {pool.device}", f"{pool.device}, auto"))
    if problems:
        raise InputError(f"the pool {place.pool_name!r} of {place.site.name!r} cannot run this", problems=(*problems,))
    on_the_host = spec.device == "cpu" and pool.device not in ("cpu", "auto")
    per_node = min(spec.ranks, pool.devices_per_node)
    return RunShape(
        nodes=nodes,
        processes_per_node=per_node,
        devices_per_node=0 if on_the_host else per_node,
        threads=spec.threads,
        run_limit_s=run_limit_s,
    )


# -- jobs


@dataclass
class _Batch:
    """Runs of one shape and kind."""

    kind: JobKind
    shape: RunShape
    groups: list[tuple[str, ...]]
    tries: int
    """Of a search: runs that are made at most."""

    def most(self, place: Place) -> int:
        """Groups that one task may hold before it gets too long."""
        if self.kind == "search":
            return 1
        longest = place.pool.max_time_s
        if longest is None:
            return len(self.groups)
        return max(1, (longest - self.room_s(place)) // self.shape.run_limit_s)

    def room_s(self, place: Place) -> int:
        """Of a task, beyond its runs. A packed task starts Python once; other runs have that in their own limit."""
        return TASK_ROOM_S + (place.site.limits.setup_s if self.kind == "packed" else 0)

    def usual(self, place: Place) -> int:
        """Groups in one task where nothing demands more."""
        if self.kind != "packed":
            return 1
        # A pod's results come back through its log.
        room = PACKED_A_MIB * place.site.limits.log_mib if place.site.scheduler == "kubernetes" else PACKED_RUNS
        return max(1, min(PACKED_RUNS, room, PACKED_S // self.shape.run_limit_s))

    def task_limit_s(self, tasks: Sequence[Sequence[str]], place: Place) -> int:
        """Wall time that every one of these tasks has enough of."""
        runs = self.tries if self.kind == "search" else max(len(task) for task in tasks)
        limit = runs * self.shape.run_limit_s + self.room_s(place)
        return limit if place.pool.max_time_s is None else min(limit, place.pool.max_time_s)


def _make_jobs(work: _Work, place: Place, limit: _RunLimit, room: int) -> list[JobArray]:
    longest_s = place.pool.max_time_s
    asked_s = max((spec.time_limit_s for spec in work.specs() if spec.time_limit_s is not None), default=0.0)
    if longest_s is not None and asked_s + TASK_ROOM_S > longest_s:
        valid = f"at most {longest_s - TASK_ROOM_S}: jobs of the pool {place.pool_name!r} last {longest_s} s at most"
        raise InputError(
            f"{place.site.name!r} allows no run so long", problems=(Problem("time_limit_s", f"{asked_s:g}", valid),)
        )
    batches = _make_batches(work, place, limit)
    if room < 1:
        raise SteelyardError(
            f"limits.max_submitted of {place.site.name!r} leaves no room: that many tasks are in its queue already",
            next_step="steelyard status",
        )
    each = _runs_a_task(batches, place, room)
    jobs: list[JobArray] = []
    for batch in batches:
        size = max(1, min(batch.most(place), max(each, batch.usual(place))))
        tasks = [tuple(itertools.chain(*batch.groups[i : i + size])) for i in range(0, len(batch.groups), size)]
        # What is over is for the next campaign: the same command again.
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
        # Simulated runs of milliseconds share a process; one with a limit of its own, or on our clock, does not.
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


def _runs_a_task(batches: Sequence[_Batch], place: Place, room: int) -> int:
    """The fewest runs a task with which all fit into the queue, or the most that a task may hold."""
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
