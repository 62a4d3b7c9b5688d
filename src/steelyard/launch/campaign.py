"""Campaign, Plan, JobArray, RunShape and the Scheduler protocol. Knows neither Slurm nor Kubernetes.

A campaign is what one command sends to a site: a folder of readable files beside the results.

    FOLDER/campaigns/STUDY/NNNN/plan.json       this module's Plan; written last, so that a folder without it is nothing
                               /README          how to read it, and how to run each script by hand
                               /worker/         the measured side's code, as it was sent
                               /jobs/JJJ/job.sh     what a task does: its runs, one after the other
                                        /node.sh    what each node does for one run ($1: its raw folder)
                                        /tasks      run ids, one line a task
                                        /manifest.json   Kubernetes: what is created
                                        /trying     exists once a submission was begun
                                        /id         the scheduler's id, once it has said it
                                        /TASK.out   what a task printed
                                        /TASK.done  a line for each run that ended: RUN_ID EXIT_CODE BEGAN ENDED
                               /runs/RUN_ID/raw/    spec.json, and what the worker writes; renamed into FOLDER/runs
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final, Literal, Protocol

from steelyard.contracts.base import Bound, Contract, Count, Length, Name, NotNegative, Text
from steelyard.inputs.site import Place, Seconds, Site

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from steelyard.contracts.observe import Scheduled
    from steelyard.doctor.node import Check

PLAN_FILE: Final = "plan.json"
MANIFEST_FILE: Final = "manifest.json"
TRYING_FILE: Final = "trying"
ID_FILE: Final = "id"
MAX_ID_CHARACTERS: Final = 300
JobKind = Literal["runs", "packed", "search"]
"""Each run a launch of its own; all runs of a task in one process (simulated only); or candidates in rising order, of
which the largest that fits is sought."""
Phase = Literal["unknown", "queued", "running", "ended"]
"""Unknown: the scheduler does not know it, or no more."""


@dataclass(frozen=True, kw_only=True)
class RunShape(Contract):
    """What one run needs of the site; runs of one shape can be tasks of one array."""

    nodes: Annotated[int, Bound(ge=1, le=100_000)]
    processes_per_node: Annotated[int, Bound(ge=1, le=1024)]
    devices_per_node: Annotated[int, Bound(ge=0, le=1024)]
    """Asked of the scheduler; 0: none (simulated runs)."""
    threads: Annotated[int, Bound(ge=1, le=4096)] | None
    """CPU threads a process; None: an equal share of the node's."""
    run_limit_s: Seconds
    """After so long one run is ended."""


@dataclass(frozen=True, kw_only=True)
class JobArray(Contract):
    """An array of tasks that need the same."""

    number: Count
    name: Name
    """At the scheduler; no other job anywhere has it."""
    kind: JobKind
    shape: RunShape
    task_limit_s: Seconds
    """Wall time to ask for."""
    tasks: Annotated[tuple[Annotated[tuple[Name, ...], Length(1_000_000)], ...], Length(1_000_000)]
    """Ids of the runs of each task, in order."""


@dataclass(frozen=True, kw_only=True)
class Price(Contract):
    """What a campaign takes at most, and what that costs."""

    device_hours: NotNegative
    node_hours: NotNegative
    charge: NotNegative
    charge_unit: Text
    expected_s: NotNegative | None
    """From the first start to the last end, without waiting in the queue; None: unknown how many run at a time."""
    basis: Text


@dataclass(frozen=True, kw_only=True)
class Image(Contract):
    """A container image as it was found when the campaign was planned."""

    name: Text
    """As the site names it."""
    reference: Text
    """What is started: the image of one architecture, by its digest where there is one."""
    architecture: Text | None
    """None: it could not be looked into from here."""
    digest: Text | None
    torch: Text | None = None
    """Version and build, where it could be asked."""
    unknown: Text = ""
    """Why something of it could not be found out from here."""


@dataclass(frozen=True, kw_only=True)
class Plan(Contract):
    """A campaign, whole."""

    schema_version: Literal[1] = 1
    study: Name
    campaign: Name
    """Twelve random hexadecimal digits: part of every job's name."""
    created_at: Text
    made_by: Text
    site: Site
    pool: Name
    image: Image | None
    worker_sha256: Annotated[str, Length(64, r"^[0-9a-f]{64}$")]
    python: Text
    jobs: Annotated[tuple[JobArray, ...], Length(100_000)]
    price: Price

    @property
    def place(self) -> Place:
        """Where it runs."""
        return Place(self.site, self.pool)


@dataclass(frozen=True)
class Campaign:
    """A plan and the folder it lies in."""

    path: Path
    plan: Plan

    def raw(self, run_id: str) -> Path:
        """Where a run's worker reads and writes."""
        return self.path / "runs" / run_id / "raw"

    def job_folder(self, job: JobArray) -> Path:
        """Scripts and outputs of a job."""
        return self.path / "jobs" / f"{job.number:03d}"

    def done_file(self, job: JobArray, task: int) -> Path:
        """What a task says of each run that has ended."""
        return self.job_folder(job) / f"{task}.done"

    def output_file(self, job: JobArray, task: int) -> Path:
        """What a task printed."""
        return self.job_folder(job) / f"{task}.out"

    def job_id(self, job: JobArray) -> str | None:
        """What the scheduler calls a job; None: it has not said yet, or nobody has asked."""
        try:
            with (self.job_folder(job) / ID_FILE).open(encoding="utf-8") as file:
                return file.read(MAX_ID_CHARACTERS).strip() or None
        except OSError:
            return None


@dataclass(frozen=True)
class TaskState:
    """What a scheduler says of one task."""

    phase: Phase
    said: Scheduled | None = None
    """Once it has ended: how."""
    why: str = ""
    """While it is queued: what for."""


class Scheduler(Protocol):
    """A kind of site. Every call for many jobs is a bounded number of calls of the scheduler, however many runs."""

    name: str

    def check(self, place: Place) -> Iterator[Check]:
        """What would go wrong there, found from here before anything is queued."""

    def render(self, campaign: Campaign, job: JobArray) -> dict[str, str]:
        """The files of a job, by name within its folder."""

    def submit(self, campaign: Campaign, job: JobArray) -> str:
        """Queue a job; its id. SteelyardError with the scheduler's own words when it refuses."""

    def find(self, campaign: Campaign, jobs: Sequence[JobArray]) -> dict[int, str]:
        """Ids of those that the scheduler knows by their name: a submission whose answer was lost."""

    def poll(self, campaign: Campaign, jobs: Sequence[JobArray]) -> dict[tuple[int, int], TaskState]:
        """States by job number and task number; what is left out is unknown."""

    def fetch(self, campaign: Campaign, job: JobArray, task: int) -> None:
        """Bring here what a task has written, where it does not write here itself."""

    def cancel(self, campaign: Campaign, jobs: Sequence[JobArray]) -> None:
        """Take them out of the queue, and end them where they run."""

    def clean(self, campaign: Campaign, jobs: Sequence[JobArray]) -> None:
        """Remove what the scheduler keeps of jobs that are collected."""
