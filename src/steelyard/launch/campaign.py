"""Campaign, Plan, JobArray, RunShape and the Scheduler protocol, independent of Slurm and Kubernetes.

A campaign is what one command submits to a site: a folder of readable files beside the results.

    FOLDER/campaigns/STUDY/NNNN/plan.json       the Plan; written last: a folder without it is incomplete and ignored
                               /README          the layout, and how to run each script by hand
                               /worker/         the code of the measured side, as it was submitted
                               /jobs/JJJ/job.sh     what a task does: its runs, one after the other
                                        /node.sh    what each node does for one run ($1: its raw folder)
                                        /tasks      run ids, one line per task
                                        /specs      SHA-256 of the spec of each run
                                        /manifest.json   Kubernetes: the objects to create
                                        /trying     exists once a submission was started
                                        /id         the scheduler's id, for people; launch/registry.py has ours
                                        /TASK.out   output of a task
                                        /TASK.done  a line for each run that ended: RUN_ID EXIT_CODE BEGAN ENDED
                               /runs/RUN_ID/raw/    spec.json and the worker's files; moved to FOLDER/runs in the end
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final, Literal, Protocol

from steelyard import nofollow
from steelyard.contracts.base import Bound, Contract, Count, Length, Name, NotNegative, Text
from steelyard.errors import SteelyardError
from steelyard.inputs.site import Place, Seconds, Site
from steelyard.launch.registry import MAX_ID_CHARACTERS, Registration

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from steelyard.contracts.observe import Scheduled
    from steelyard.doctor.node import Check
    from steelyard.launch.registry import RegistryEntry

PLAN_FILE: Final = "plan.json"
MANIFEST_FILE: Final = "manifest.json"
TRYING_FILE: Final = "trying"
ID_FILE: Final = "id"
JobKind = Literal["runs", "packed", "search"]
"""runs: each run is a launch of its own; packed: all runs of a task in one process (simulated only); search:
candidates in rising order, to find the largest that fits."""
Phase = Literal["unknown", "queued", "running", "ended"]
"""unknown: the scheduler does not know the task, or no longer knows it."""


@dataclass(frozen=True, kw_only=True)
class RunShape(Contract):
    """What one run needs from the site; runs with the same shape can be tasks of one array."""

    nodes: Annotated[int, Bound(ge=1, le=100_000)]
    processes_per_node: Annotated[int, Bound(ge=1, le=1024)]
    devices_per_node: Annotated[int, Bound(ge=0, le=1024)]
    """Devices requested from the scheduler; 0: none (simulated runs)."""
    threads: Annotated[int, Bound(ge=1, le=4096)] | None
    """CPU threads per process; None: an equal share of the CPUs of the node."""
    sharing: Annotated[int, Bound(ge=1, le=1024)]
    """Processes among which the job's CPUs of a node are divided."""
    run_limit_s: Seconds
    """Time limit of one run."""
    program: bool = False
    """A person's own program, which is started once on each node and starts its ranks itself."""


@dataclass(frozen=True, kw_only=True)
class JobArray(Contract):
    """An array of tasks with the same requirements."""

    number: Count
    name: Name
    """The job's name at the scheduler; unique."""
    kind: JobKind
    shape: RunShape
    task_limit_s: Seconds
    """Time limit to request for a task."""
    tasks: Annotated[tuple[Annotated[tuple[Name, ...], Length(1_000_000)], ...], Length(1_000_000)]
    """The run ids of each task, in order."""


@dataclass(frozen=True, kw_only=True)
class Price(Contract):
    """The most that a campaign can take, and its cost."""

    device_hours: NotNegative
    node_hours: NotNegative
    charge: NotNegative
    charge_unit: Text
    expected_s: NotNegative | None
    """From the first start to the last end, without queueing; None: unknown how many tasks run at a time."""
    basis: Text


@dataclass(frozen=True, kw_only=True)
class Image(Contract):
    """A container image as found when the campaign was planned."""

    name: Text
    """The name in the site file."""
    reference: Text
    """The image that is started: of one architecture, by digest where it has one."""
    architecture: Text | None
    """None: the image could not be inspected from here."""
    digest: Text | None
    torch: Text | None = None
    """Version and build, if they could be read."""
    unknown: Text = ""
    """Why some of this could not be read."""


@dataclass(frozen=True, kw_only=True)
class Plan(Contract):
    """All of a campaign."""

    schema_version: Literal[1] = 1
    study: Name
    campaign: Name
    """Twelve random hexadecimal digits: part of the name of every job."""
    created_at: Text
    made_by: Text
    site: Site
    pool: Name
    image: Image | None
    worker_sha256: Annotated[str, Length(64, r"^[0-9a-f]{64}$")]
    python: Text
    jobs: Annotated[tuple[JobArray, ...], Length(100_000)]
    price: Price
    folder: Text | None = None
    """Where people's own programs start: the folder from which the study was submitted; None: there are none."""

    @property
    def place(self) -> Place:
        """The site and pool it runs on."""
        return Place(self.site, self.pool)


@dataclass(frozen=True)
class Campaign:
    """A plan and its folder."""

    path: Path
    """Absolute, without links."""
    plan: Plan
    plan_sha256: str = ""
    """Of the file from which the plan was read."""

    @property
    def registration(self) -> Registration:
        """What this user knows about it."""
        return Registration(self.path, self.plan.campaign)

    def ours(self, *, shared: bool = False) -> RegistryEntry | None:
        """Return its entry in the registry if it is ours; SteelyardError if others can write to it, unless `shared`."""
        return self.registration.ours(self.plan_sha256, shared=shared)

    def raw(self, run_id: str) -> Path:
        """The folder in which the worker of a run reads and writes."""
        return self.path / "runs" / run_id / "raw"

    def job_folder(self, job: JobArray) -> Path:
        """The folder with the scripts and outputs of a job."""
        return self.path / "jobs" / f"{job.number:03d}"

    def done_file(self, job: JobArray, task: int) -> Path:
        """The file with one line for each ended run of a task."""
        return self.job_folder(job) / f"{task}.done"

    def output_file(self, job: JobArray, task: int) -> Path:
        """The output of a task."""
        return self.job_folder(job) / f"{task}.out"

    def job_id(self, job: JobArray) -> str | None:
        """Return the scheduler's id of a job of ours; None: not submitted, or the answer is not known yet."""
        return self.registration.job_id(job.number)

    def named_id(self, job: JobArray) -> str | None:
        """Return the id that the campaign's folder names, which anybody may have written."""
        try:
            with nofollow.open_file(self.job_folder(job) / ID_FILE) as file:
                return file.read(MAX_ID_CHARACTERS).decode("utf-8", "replace").strip() or None
        except (OSError, nofollow.LinkError):
            return None


@dataclass(frozen=True)
class TaskState:
    """The state of one task, as its scheduler reports it."""

    phase: Phase
    said: Scheduled | None = None
    """How the task ended, once it has."""
    why: str = ""
    """Why the task is queued, while it is."""
    began: bool | None = None
    """Whether the task has begun; None: not known."""
    unsent: bool = False
    """Whether the scheduler has not accepted it yet and it must be submitted again."""


class QueueFullError(SteelyardError):
    """The scheduler takes no more jobs of this user now; it will later."""


class Scheduler(Protocol):
    """A kind of scheduler. The number of calls to the scheduler does not grow with the number of runs."""

    name: str

    def check(self, place: Place) -> Iterator[Check]:
        """Check the place for problems before anything is queued."""

    def most_queued(self, place: Place) -> int | None:
        """Return how many tasks the scheduler lets this user have in the queue; None: not known."""

    def render(self, campaign: Campaign, job: JobArray) -> dict[str, str]:
        """Return the files of a job, by name within its folder."""

    def submit(self, campaign: Campaign, job: JobArray, files: Mapping[str, str]) -> str:
        """Queue a job and return its id. SteelyardError with the scheduler's own message if it refuses, QueueFullError
        if it would take the job later.

        `files`: what `render` returned just now, the same as in the job's folder.
        """

    def find(self, campaign: Campaign, jobs: Sequence[JobArray]) -> dict[int, str]:
        """Return the ids of jobs that the scheduler has: submissions whose answer was lost. Creates nothing."""

    def is_id(self, campaign: Campaign, job: JobArray, text: str) -> bool:
        """Return whether a text that anybody may have written can be the id of this job."""

    def removed(self, campaign: Campaign) -> str:
        """Return what `clean` removes, for people; empty: nothing."""

    def poll(self, campaign: Campaign, jobs: Sequence[JobArray]) -> dict[tuple[int, int], TaskState]:
        """Return states by job number and task number; a missing task is unknown."""

    def fetch(self, campaign: Campaign, job: JobArray, task: int) -> str:
        """Copy the files that a task has written to the campaign's folder, if the task cannot write there itself.

        Return why some are lost; empty: all are there. SteelyardError if they may still come.
        """

    def cancel(self, campaign: Campaign, jobs: Sequence[JobArray]) -> None:
        """Remove jobs from the queue, and end those that run."""

    def clean(self, campaign: Campaign, jobs: Sequence[JobArray]) -> None:
        """Remove what the scheduler keeps about jobs that are collected."""
