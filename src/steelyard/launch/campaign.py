"""Campaign, Plan, JobArray, RunShape and the Scheduler protocol, independent of Slurm and Kubernetes.

A campaign is what one command submits to a site: a folder of readable files beside the results.

    FOLDER/campaigns/STUDY/NNNN/plan.json       the Plan; written last: a folder without it is incomplete and ignored
                               /README          the layout, and how to run each script by hand
                               /worker/         the code of the measured side, as it was submitted
                               /jobs/JJJ/job.sh     what a task does: its runs, one after the other
                                        /node.sh    what each node does for one run ($1: its raw folder)
                                        /tasks      run ids, one line per task
                                        /manifest.json   Kubernetes: the objects to create
                                        /trying     exists once a submission was started
                                        /id         the scheduler's id, once the job is submitted
                                        /TASK.out   output of a task
                                        /TASK.done  a line for each run that ended: RUN_ID EXIT_CODE BEGAN ENDED
                               /runs/RUN_ID/raw/    spec.json and the worker's files; moved to FOLDER/runs in the end
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
    run_limit_s: Seconds
    """Time limit of one run."""


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

    @property
    def place(self) -> Place:
        """The site and pool it runs on."""
        return Place(self.site, self.pool)


@dataclass(frozen=True)
class Campaign:
    """A plan and its folder."""

    path: Path
    plan: Plan

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
        """Return the scheduler's id of a job; None: not submitted, or the answer is not known yet."""
        try:
            with (self.job_folder(job) / ID_FILE).open(encoding="utf-8") as file:
                return file.read(MAX_ID_CHARACTERS).strip() or None
        except OSError:
            return None


@dataclass(frozen=True)
class TaskState:
    """The state of one task, as its scheduler reports it."""

    phase: Phase
    said: Scheduled | None = None
    """How the task ended, once it has."""
    why: str = ""
    """Why the task is queued, while it is."""


class Scheduler(Protocol):
    """A kind of scheduler. The number of calls to the scheduler does not grow with the number of runs."""

    name: str

    def check(self, place: Place) -> Iterator[Check]:
        """Check the place for problems before anything is queued."""

    def render(self, campaign: Campaign, job: JobArray) -> dict[str, str]:
        """Return the files of a job, by name within its folder."""

    def submit(self, campaign: Campaign, job: JobArray) -> str:
        """Queue a job and return its id. SteelyardError with the scheduler's own message if it refuses."""

    def find(self, campaign: Campaign, jobs: Sequence[JobArray]) -> dict[int, str]:
        """Return the ids of jobs that the scheduler knows by name: submissions whose answer was lost."""

    def poll(self, campaign: Campaign, jobs: Sequence[JobArray]) -> dict[tuple[int, int], TaskState]:
        """Return states by job number and task number; a missing task is unknown."""

    def fetch(self, campaign: Campaign, job: JobArray, task: int) -> None:
        """Copy the files that a task has written to the campaign's folder, if the task cannot write there itself."""

    def cancel(self, campaign: Campaign, jobs: Sequence[JobArray]) -> None:
        """Remove jobs from the queue, and end those that run."""

    def clean(self, campaign: Campaign, jobs: Sequence[JobArray]) -> None:
        """Remove what the scheduler keeps about jobs that are collected."""
