"""The raw files of a run: small events as JSON lines, and step samples in the format of `contracts.sample_files`.

A run's `raw/` directory holds
    spec.json            the RunSpec as it was launched
    events-00000.jsonl   one JSON object per line: {"kind": ..., ...}, from process 0
    steps-00000.bin      step samples of every rank of that process
    tokens-00000.bin     samples of generated tokens, in the same format
    launch.json          observations of the launcher: command, times, exit code
    lease                who started a run of a scheduler; it is created once, so that no run starts twice
    worker.log           output of the worker
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

from steelyard import nofollow
from steelyard.contracts.base import Bound, Contract, Count, Length, Name, NotNegative, Share, Text, Time
from steelyard.errors import DamagedDataError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from io import BufferedReader
    from pathlib import Path

SPEC_FILE = "spec.json"
SPEC_VARIABLE = "STEELYARD_SPEC_SHA256"
"""For a worker: SHA-256 of its spec. It names what is executed, and others may write to where it is read."""
LAUNCH_FILE = "launch.json"
WORKER_LOG = "worker.log"
LEASE_FILE = "lease"
"""Created by the process that starts a run of a campaign, only if it does not exist: no run starts twice."""
PROGRESS_FILE = "progress.json"
COMPILING_FILE = "compiling"
"""Touched by a rank that compiles, for the ranks that wait for it."""
RESERVE_FILE = "reserve"
"""Reserved disk space for the last events of a run that fills its disk."""
EVENTS_PATTERN = "events-*.jsonl"
FIRST_EVENTS = "events-00000.jsonl"
STEPS_PATTERN = "steps-*.bin"
TOKENS_PATTERN = "tokens-*.bin"
MAX_EVENT_BYTES = 1 << 20
# Of one process. A run with 10,000 evaluations has 4 MB and 20,000 events.
MAX_EVENTS_BYTES = 1 << 23
MAX_EVENTS = 100_000
SINGLE_PRECISION = 2.0**-23

LEADS = 0.95
"""A host that is ahead of its device in fewer steps may have kept it waiting in the others."""

StatusCode = Literal[
    "completed",
    "not_converged",
    "out_of_memory",
    "time_limit",
    "hung",
    "failed",
    "killed",
    "node_failure",
    "preempted",
    "lost",
    "refused",
    "cancelled",
]
MEASURED: tuple[StatusCode, ...] = ("completed", "not_converged")
"""Statuses of runs whose speed counts."""
PhaseName = Literal[
    "idle",
    "setup",
    "data",
    "compile",
    "steps",
    "warmup",
    "steady",
    "evaluation",
    "checkpoint",
    "crosscheck",
]
"""idle: sensors are read and no device is used yet, for the baseline; it may be inside setup."""
StopReason = Literal["interval", "max_steps", "max_seconds", "epochs", "quality"]
LoadMoment = Literal["start", "steps", "end"]
"""start: the run starts; steps, end: the measured steps begin and end."""


@dataclass(frozen=True, kw_only=True)
class Status(Contract):
    """How a run ended. Every code but `completed` has a reason."""

    code: StatusCode
    reason: Text = ""
    evidence: Annotated[dict[str, float | int | str], Length(100)] | None = None


@dataclass(frozen=True, kw_only=True)
class Phase(Contract):
    """A part of the run, on the worker's monotonic clock from 0."""

    name: PhaseName
    start_s: Time
    end_s: Time
    complete: bool = True
    """False: the phase ended with an error."""


@dataclass(frozen=True, kw_only=True)
class Stop(Contract):
    """Why the measured steps ended."""

    reason: StopReason
    steps: Count
    seconds: NotNegative
    """Sum of the step times by device events, on the deciding rank."""
    host_seconds: NotNegative
    """The same blocks by the host's clock, from the first enqueue to the synchronisation."""
    extended_s: NotNegative = 0.0
    """Seconds beyond `budget.max_seconds`, which was too short to judge the steady state; 0: not extended."""


@dataclass(frozen=True, kw_only=True)
class MemoryPeak(Contract):
    """Memory of the device of the process when its steps ended; None: unknown."""

    peak_bytes: NotNegative | None
    """The most that its tensors needed at one time."""
    method: Text = ""
    """How `peak_bytes` was read."""
    reserved_bytes: NotNegative | None = None
    """The most that torch's allocator took from the driver: the tensors and the gaps between them."""
    driver_used_bytes: NotNegative | None = None
    """Used on the whole device by the driver's count: also context, libraries, communication and other processes."""
    device_bytes: NotNegative | None = None
    """All memory of the device."""
    node_used_bytes: NotNegative | None = None
    """Only if processor and device share their memory: what was in use on the node, without what can be freed."""
    node_bytes: NotNegative | None = None
    """All memory of such a node."""


@dataclass(frozen=True, kw_only=True)
class Settings(Contract):
    """The settings in effect, as read back from the engine. The requested ones are in the spec."""

    values: Annotated[dict[str, Text], Length(200)]


@dataclass(frozen=True, kw_only=True)
class DeviceFacts(Contract):
    """Data of the device model from its maker, with sources; None: unknown."""

    name: Text
    """Name given by the driver."""
    model: Text | None = None
    """Name in the table of devices; None: not in the table."""
    peak_flops: Annotated[dict[str, NotNegative], Length(20)] | None = None
    """Dense FLOP/s per device, by data type."""
    memory_bytes: NotNegative | None = None
    memory_bytes_per_s: NotNegative | None = None
    """Highest bandwidth of this memory, per device."""
    dies: Annotated[int, Bound(ge=1, le=64)] | None = None
    """Dies per card or module. A job may use each die as a device."""
    scope: Annotated[str, Length(20)] = "device"
    """What counts as one device for the job: die, device or module."""
    power_limit_w: NotNegative | None = None
    sources: Annotated[tuple[Text, ...], Length(20)] = ()


@dataclass(frozen=True, kw_only=True)
class ModelFacts(Contract):
    """Size of the workload's model, counted on the meta device."""

    parameters: Count
    flops_per_sample: NotNegative | None
    """Floating-point operations per sample in this mode; a multiply-add counts as two."""
    bytes_per_sample: NotNegative | None = None
    """Bytes moved per sample of a ceiling; None for models."""
    bus_factor: NotNegative | None = None
    """Collectives: bytes on the busiest link per byte of the message."""
    tokens_per_sample: Count | None = None
    """Language models: tokens per sample."""
    method: Text
    """How they were counted, or why they are unknown."""
    last_loss: Text | None = None
    """Loss of the last step, to detect divergence; text, because it may be "nan"."""


@dataclass(frozen=True, kw_only=True)
class DataFacts(Contract):
    """The data that a run read."""

    format: Name
    path: Text
    samples: Count
    """Samples of the training split, or of the split that was read."""
    evaluation_samples: Count | None = None
    files: Count
    size_bytes: NotNegative
    identity: Annotated[str, Length(64, r"^[0-9a-f]{64}$")]
    """SHA-256 over the sorted names and sizes of the files; independent of the folder."""
    filesystem: Text
    """Type of the file system."""
    memory_bytes: NotNegative | None
    """Host memory that the job may use."""
    fits_in_memory: bool | None
    """Whether the page cache can hold all of it; later epochs then measure the cache, not the file system."""


@dataclass(frozen=True, kw_only=True)
class LossTrace(Contract):
    """The training loss at the end of some blocks, with the first and the last."""

    steps: Annotated[tuple[Count, ...], Length(1000)]
    values: Annotated[tuple[float | None, ...], Length(1000)]
    """None: not finite."""
    learnable: bool
    """Whether the loss can fall: with real data or one repeated batch, but not with new random labels in each step."""


@dataclass(frozen=True, kw_only=True)
class Evaluation(Contract):
    """The result of one evaluation."""

    metric: Text
    value: float | None
    """None: not finite."""
    better: Literal["higher", "lower"]
    epoch: Count
    steps: Count
    samples: Count
    at_s: NotNegative
    """From the start of the first training step to the end of this evaluation, including evaluations."""
    seconds: NotNegative
    """Duration of the evaluation."""

    def reaches(self, target: float) -> bool:
        """Return whether the value reaches `target`, up to single-precision rounding."""
        if self.value is None:
            return False
        slack = SINGLE_PRECISION * abs(target)
        return self.value >= target - slack if self.better == "higher" else self.value <= target + slack


@dataclass(frozen=True, kw_only=True)
class CrossCheck(Contract):
    """The second pass: host clock around steps that are each followed by a synchronisation."""

    steps: Count
    mean_step_s: NotNegative
    sem_step_s: NotNegative
    """Standard error of that mean."""
    input_wait_s: NotNegative | None = None
    compute_s: NotNegative | None = None
    exposed_comm_s: NotNegative | None = None
    """Mean parts of a step over this pass and the ranks of the deciding process; None: unknown."""


@dataclass(frozen=True, kw_only=True)
class CrossCheckFailure(Contract):
    """Why the second pass failed on a process. The measurement before it stays valid."""

    rank: Count
    reason: Text
    at_unix_s: NotNegative
    """The first failure is the cause of those of other processes."""


@dataclass(frozen=True, kw_only=True)
class QueueFacts(Contract):
    """How one rank's host kept the queue of its device filled. None: unknown."""

    led_share: Share | None = None
    """Share of the measured steps after whose launch the device was still busy with the step before. Where the host
    leads, the device never waits for it."""
    event_s: NotNegative | None = None
    """What one event costs the device while it has work."""
    event_host_s: NotNegative | None = None
    """What one event costs the host."""
    events_per_step: Count = 0
    profiled_steps: Count = 0
    """Steps of the cross-check that were profiled or watched for synchronisations."""
    compute_s: NotNegative | None = None
    """Per profiled step: time in which a kernel ran, without communication and copies from the host."""
    synchronisations: NotNegative | None = None
    """Per step: calls in which the host waited for the device."""
    reason: Text = ""
    """Why the profile is unknown."""


@dataclass(frozen=True, kw_only=True)
class Environment(Contract):
    """Where the worker ran."""

    node: Text
    allocation: Text | None
    """The scheduler's job id; None: no scheduler."""
    device: Name
    timing: Text
    """Timing method on this device."""
    facts: Annotated[dict[str, Text], Length(1000)]


@dataclass(frozen=True, kw_only=True)
class LoadCounters(Contract):
    """Counters of the kernel at one moment, read by each process of a job: the load between two is their difference.

    None: the kernel does not tell. Seconds of CPU time and of waiting count from the start of the machine.
    """

    moment: LoadMoment
    node: Text
    at_s: Time
    """On the monotonic clock of the node."""
    cpus: Annotated[str, Length(4000, r"^[0-9a-f]+$", "hexadecimal digits")]
    """The CPUs that this process may use, as a bit mask."""
    load_average: NotNegative | None = None
    """Tasks that run or wait to run, averaged over a minute."""
    busy_s: NotNegative | None = None
    """CPU time used on these CPUs, by any process."""
    steal_s: NotNegative | None = None
    """Time in which the hypervisor ran other machines on these CPUs."""
    own_s: NotNegative | None = None
    """CPU time used by this process and those that it started."""
    periods: Count | None = None
    """Scheduling periods of the control groups with a CPU quota, and in how many the quota stopped them."""
    throttled_periods: Count | None = None
    cpu_wait_s: NotNegative | None = None
    """Time in which some task of the node waited for a CPU, for memory or for a disk (pressure stall information)."""
    memory_wait_s: NotNegative | None = None
    io_wait_s: NotNegative | None = None


@dataclass(frozen=True, kw_only=True)
class Scheduled(Contract):
    """Scheduler data of the task that a run was part of."""

    scheduler: Name
    """slurm or kubernetes."""
    job: Text
    """Job id with the array index, or the name of a Kubernetes Job."""
    state: Text
    """Final state, such as TIMEOUT or OOMKilled."""
    cause: StatusCode | None = None
    """Status of a run that wrote none itself; None: it ended by itself."""
    reason: Text = ""
    evidence: Annotated[dict[str, float | int | str], Length(100)] | None = None
    nodes: Annotated[tuple[Text, ...], Length(10_000)] = ()
    queued_at: Text | None = None
    started_at: Text | None = None
    """UTC, ISO 8601."""
    elapsed_s: NotNegative | None = None
    """Elapsed time of the whole task, by the scheduler's accounting."""
    energy_j: NotNegative | None = None
    """Energy of the whole task, by the scheduler's accounting; None: not recorded."""
    suspended_s: NotNegative | None = None
    """How long the scheduler suspended the task, by its accounting; None: it did not, or unknown."""
    runs: Annotated[int, Bound(ge=1, le=1_000_000)] = 1
    """Number of runs in the task."""
    image: Text | None = None
    digest: Text | None = None
    """Digest of the container image; None: no container, or unknown."""


@dataclass(frozen=True, kw_only=True)
class Launch(Contract):
    """Observations of the launcher."""

    launcher: Name
    host: Text
    command: Annotated[tuple[Text, ...], Length(1000)]
    started_at: Text
    """UTC, ISO 8601."""
    wall_s: NotNegative
    exit_code: int | None
    """None: the launcher ended the run."""
    limit_hit: bool = False
    oom_kills: Count = 0
    """Processes killed by the control group's memory limit during the run."""
    scheduled: Scheduled | None = None
    """None: started by the user's own process."""


def open_raw(path: Path) -> BufferedReader:
    """Open a raw file to read; DamagedDataError names a link, or anything else that is not a regular file."""
    try:
        return cast("BufferedReader", nofollow.open_file(path))
    except nofollow.LinkError as error:
        raise _without_folder(error, path) from None


def raw_bytes(path: Path) -> int:
    """Return the size of a raw file; DamagedDataError names a link."""
    try:
        return nofollow.stat(path).st_size
    except nofollow.LinkError as error:
        raise _without_folder(error, path) from None


def _without_folder(error: nofollow.LinkError, path: Path) -> DamagedDataError:
    # The same files give the same record, wherever they are.
    return DamagedDataError(error.what.replace(f"{path.parent}/", ""))


def _start(line: bytes) -> str:
    """The beginning of a line that is shown in a message."""
    return line[:80].decode(errors="replace").rstrip()


def read_events(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the events of a file. A last line cut short by a kill is left out."""
    read = count = 0
    with open_raw(path) as file:
        while line := file.readline(MAX_EVENT_BYTES):
            read, count = read + len(line), count + 1
            if len(line) == MAX_EVENT_BYTES:
                raise DamagedDataError(f"{path.name}: a line has more than {MAX_EVENT_BYTES} bytes")
            if read > MAX_EVENTS_BYTES or count > MAX_EVENTS:
                raise DamagedDataError(f"{path.name}: more than {MAX_EVENTS:,} events or {MAX_EVENTS_BYTES:,} bytes")
            if not line.endswith(b"\n"):
                return
            try:
                event = json.loads(line)
            except (ValueError, RecursionError):
                raise DamagedDataError(f'{path.name}: a line is not JSON: "{_start(line)}"') from None
            if not isinstance(event, dict) or not isinstance(event.get("kind"), str):
                raise DamagedDataError(f'{path.name}: a line is not an event: "{_start(line)}"')
            yield event
