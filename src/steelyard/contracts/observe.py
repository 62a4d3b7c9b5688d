"""What the measured side writes down: small events as JSON lines, step samples as checked binary chunks.

Knows the layout of the raw files, and nothing of what is derived from them. Both sides read it from here.

A run's `raw/` directory holds
    spec.json            the RunSpec as it was launched
    events-00000.jsonl   one JSON object a line: {"kind": ..., ...}, from process 0
    steps-00000.bin      step samples of every rank that process drove
    tokens-00000.bin     of a run that generates: samples of its tokens, in the same form
    launch.json          what the launcher saw: command, times, exit code
    lease                who began a run that a scheduler started: exists once, so that no run begins twice
    worker.log           what the worker printed
"""

from __future__ import annotations

import json
import struct
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Literal

import numpy as np

from steelyard.contracts.base import Bound, Contract, Count, Length, Name, NotNegative, Text
from steelyard.errors import DamagedDataError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

SPEC_FILE = "spec.json"
LAUNCH_FILE = "launch.json"
WORKER_LOG = "worker.log"
LEASE_FILE = "lease"
"""Made by whoever begins a run of a campaign, and only if it is not there: no run begins twice."""
PROGRESS_FILE = "progress.json"
COMPILING_FILE = "compiling"
"""Touched by a rank that compiles, so that those which wait for it know."""
RESERVE_FILE = "reserve"
"""Disk space laid by for the last word of a run that fills its disk."""
EVENTS_PATTERN = "events-*.jsonl"
STEPS_PATTERN = "steps-*.bin"
TOKENS_PATTERN = "tokens-*.bin"
MAX_EVENT_BYTES = 1 << 20
SINGLE_PRECISION = 2.0**-23

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
    "refused",
    "cancelled",
]
PhaseName = Literal["idle", "setup", "data", "compile", "steps", "warmup", "steady", "evaluation", "crosscheck"]
"""Idle: the time in which sensors are read and no device is touched yet, for the baseline; it may lie inside setup."""
StopReason = Literal["interval", "max_steps", "max_seconds", "epochs", "quality"]


@dataclass(frozen=True, kw_only=True)
class Status(Contract):
    """How a run ended. Failure is data: every code but `completed` carries its reason."""

    code: StatusCode
    reason: Text = ""
    evidence: Annotated[dict[str, float | int | str], Length(100)] | None = None


@dataclass(frozen=True, kw_only=True)
class Phase(Contract):
    """A window of the run on the worker's monotonic clock, which starts at 0."""

    name: PhaseName
    start_s: float
    end_s: float
    complete: bool = True
    """False when the phase ended by an error."""


@dataclass(frozen=True, kw_only=True)
class Stop(Contract):
    """Why the measured steps ended."""

    reason: StopReason
    steps: Count
    seconds: NotNegative
    """Sum of the steps' times by device events, on the deciding rank."""
    host_seconds: NotNegative
    """The same blocks by the host's clock, from before the first enqueue to after the synchronisation."""


@dataclass(frozen=True, kw_only=True)
class MemoryPeak(Contract):
    """The most memory any device of the process held."""

    peak_bytes: NotNegative | None
    method: Text = ""
    """What was asked for it."""


@dataclass(frozen=True, kw_only=True)
class Settings(Contract):
    """The settings in effect, as read back from the engine; what was asked for is in the spec."""

    values: Annotated[dict[str, Text], Length(200)]


@dataclass(frozen=True, kw_only=True)
class DeviceFacts(Contract):
    """What is known of the device's model from its maker, each with its source; unknown stays None."""

    name: Text
    """As the driver calls it."""
    model: Text | None = None
    """As the table of facts calls it; None: not in the table."""
    peak_flops: Annotated[dict[str, NotNegative], Length(20)] | None = None
    """Dense FLOP/s of one device as the job sees it, by type."""
    memory_bytes: NotNegative | None = None
    dies: Annotated[int, Bound(ge=1, le=64)] | None = None
    """Dies on one card or module; the job may see each die as a device."""
    scope: Annotated[str, Length(20)] = "device"
    """What the job sees as one device: die, device or module."""
    power_limit_w: NotNegative | None = None
    sources: Annotated[tuple[Text, ...], Length(20)] = ()


@dataclass(frozen=True, kw_only=True)
class ModelFacts(Contract):
    """What the workload's model is, counted on the meta device."""

    parameters: Count
    flops_per_sample: NotNegative | None
    """Floating-point operations one sample takes in this mode; a multiply-add is two."""
    bytes_per_sample: NotNegative | None = None
    """Bytes that a ceiling moves in one sample; None for models."""
    bus_factor: NotNegative | None = None
    """Of a collective: bytes on the busiest link for each byte of the message."""
    tokens_per_sample: Count | None = None
    """Of a language model: tokens one sample is trained on, read or made of."""
    method: Text
    """How they were counted, or why they are unknown."""
    last_loss: Text | None = None
    """Of the last step, to see that the training has not run away; text, because it may be "nan"."""


@dataclass(frozen=True, kw_only=True)
class DataFacts(Contract):
    """Which data a run read."""

    format: Name
    path: Text
    samples: Count
    """Of the training split, or of the one that was read."""
    evaluation_samples: Count | None = None
    files: Count
    size_bytes: NotNegative
    identity: Annotated[str, Length(64, r"^[0-9a-f]{64}$")]
    """SHA-256 over the names and sizes of the files, sorted: the same data set wherever it lies."""
    filesystem: Text
    """Type of the file system it lies on."""
    memory_bytes: NotNegative | None
    """Of the host, as far as this job may use it."""
    fits_in_memory: bool | None
    """Whether the page cache can hold all of it: then later epochs measure the cache, not the file system."""


@dataclass(frozen=True, kw_only=True)
class LossTrace(Contract):
    """The training loss at the ends of some blocks, the first and last among them."""

    steps: Annotated[tuple[Count, ...], Length(1000)]
    values: Annotated[tuple[float | None, ...], Length(1000)]
    """None: not finite."""
    learnable: bool
    """Whether the loss can fall: real data, or one batch again and again; random labels anew each step cannot be
    learnt."""


@dataclass(frozen=True, kw_only=True)
class Evaluation(Contract):
    """Quality after some training."""

    metric: Text
    value: float | None
    """None: not finite."""
    better: Literal["higher", "lower"]
    epoch: Count
    steps: Count
    samples: Count
    at_s: NotNegative
    """From the begin of the first training step to the end of this evaluation, evaluations included."""
    seconds: NotNegative
    """Of the evaluation alone."""

    def reaches(self, target: float) -> bool:
        """Whether it is as good as `target`, up to the rounding of single precision: 450 of 500 are 0.9."""
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
    """Standard error of that mean over the pass's steps."""
    input_wait_s: NotNegative | None = None
    compute_s: NotNegative | None = None
    exposed_comm_s: NotNegative | None = None
    """Means of the parts of a step over this pass and the deciding process's ranks; None where they cannot be told."""


@dataclass(frozen=True, kw_only=True)
class Environment(Contract):
    """Where the worker ran."""

    node: Text
    allocation: Text | None
    """The scheduler's job id; None when no scheduler was involved."""
    device: Name
    timing: Text
    """How steps are timed on this device."""
    facts: Annotated[dict[str, Text], Length(1000)]


@dataclass(frozen=True, kw_only=True)
class Scheduled(Contract):
    """What a scheduler says of the task that a run was part of."""

    scheduler: Name
    """slurm or kubernetes."""
    job: Text
    """Its id of the job, with the array's index; the name of a Kubernetes Job."""
    state: Text
    """Its own last word, such as TIMEOUT or OOMKilled."""
    cause: StatusCode | None = None
    """What that means for a run which left no word itself; None: nothing, it ended by itself."""
    reason: Text = ""
    evidence: Annotated[dict[str, float | int | str], Length(100)] | None = None
    nodes: Annotated[tuple[Text, ...], Length(10_000)] = ()
    queued_at: Text | None = None
    started_at: Text | None = None
    """UTC, ISO 8601."""
    elapsed_s: NotNegative | None = None
    """Of the whole task, by the scheduler's account."""
    energy_j: NotNegative | None = None
    """Of the whole task, by the scheduler's account; None: it keeps none."""
    runs: Annotated[int, Bound(ge=1, le=1_000_000)] = 1
    """Runs in the task that elapsed time and energy are of."""
    image: Text | None = None
    digest: Text | None = None
    """Of the container image; None: no container, or nobody could tell."""


@dataclass(frozen=True, kw_only=True)
class Launch(Contract):
    """What the launcher saw of a run from outside."""

    launcher: Name
    host: Text
    command: Annotated[tuple[Text, ...], Length(1000)]
    started_at: Text
    """UTC, ISO 8601."""
    wall_s: NotNegative
    exit_code: int | None
    """None when the launcher ended the run itself."""
    limit_hit: bool = False
    oom_kills: Count = 0
    """Processes that the control group's memory limit killed meanwhile."""
    scheduled: Scheduled | None = None
    """None: started by the user's own process."""


def read_events(path: Path) -> Iterator[dict[str, Any]]:
    """The events of one file. A line cut short by a kill ends the file; it is not an error."""
    with path.open("rb") as file:
        while line := file.readline(MAX_EVENT_BYTES):
            if len(line) == MAX_EVENT_BYTES:
                raise DamagedDataError(f"{path.name}: a line has more than {MAX_EVENT_BYTES} bytes")
            if not line.endswith(b"\n"):
                return
            try:
                event = json.loads(line)
            except ValueError:
                raise DamagedDataError(f"{path.name}: a line is not JSON: {line[:80]!r}") from None
            if not isinstance(event, dict) or not isinstance(event.get("kind"), str):
                raise DamagedDataError(f"{path.name}: a line is not an event: {line[:80]!r}")
            yield event


# -- step samples ---------------------------------------------------------------------------------------------

COLUMNS = ("start_s", "step_s", "input_wait_s", "compute_s", "exposed_comm_s", "samples")
"""A step lasts from the end of the one before it to its own end. `input_wait_s` is how long the device stood idle
before it for want of data; `compute_s`, with the gaps in which the host had not yet launched the next kernel, and
`exposed_comm_s` share the rest (NaN where a device cannot tell them apart); `samples` counts real samples, without
padding."""

FILE_MAGIC = b"SYSTEPS1"
PLACE = struct.Struct("<4sIQI")  # mark, rank, first step, steps
CHECK = struct.Struct("<II")  # CRC-32 of the place and of the payload: a damaged length must not look like a cut file
HEADER_BYTES = PLACE.size + CHECK.size
CHUNK_MARK = b"CHNK"
MAX_CHUNK_STEPS = 1 << 20


@dataclass(frozen=True)
class StepChunk:
    """Consecutive steps of one rank; `table` has one row a column of COLUMNS."""

    rank: int
    first_step: int
    table: NDArray[np.float64]

    @property
    def steps(self) -> int:
        """How many steps it holds."""
        return int(self.table.shape[1])

    def column(self, name: str) -> NDArray[np.float64]:
        """One column by its name."""
        column: NDArray[np.float64] = self.table[COLUMNS.index(name)]
        return column


def write_chunk(file: BinaryIO, rank: int, first_step: int, table: NDArray[np.float64]) -> None:
    """Append one chunk; a reader that finds it cut short or damaged can tell."""
    payload = np.ascontiguousarray(table, dtype="<f8").tobytes()
    place = PLACE.pack(CHUNK_MARK, rank, first_step, table.shape[1])
    file.write(place + CHECK.pack(zlib.crc32(place), zlib.crc32(payload)) + payload)


@dataclass(frozen=True)
class ChunkPlace:
    """Where a chunk's steps lie, without reading them."""

    rank: int
    first_step: int
    steps: int
    offset: int
    crc: int


def chunk_places(path: Path) -> Iterator[ChunkPlace]:
    """Walk a step file by its chunk headers alone."""
    with path.open("rb") as file:
        yield from _walk(file, path)


def _walk(file: BinaryIO, path: Path) -> Iterator[ChunkPlace]:
    """The chunks of an open step file, each given with the file at its payload.

    A last chunk cut short by a kill is left out.
    """
    size = path.stat().st_size
    if file.read(len(FILE_MAGIC)) != FILE_MAGIC:
        if size < len(FILE_MAGIC):
            return
        raise DamagedDataError(f"{path.name}: not a step file")
    offset = len(FILE_MAGIC) + HEADER_BYTES
    while len(header := file.read(HEADER_BYTES)) == HEADER_BYTES:
        mark, rank, first_step, steps = PLACE.unpack_from(header)
        place_crc, crc = CHECK.unpack_from(header, PLACE.size)
        sound = mark == CHUNK_MARK and zlib.crc32(header[: PLACE.size]) == place_crc
        if not sound or not 0 < steps <= MAX_CHUNK_STEPS:
            raise DamagedDataError(f"{path.name}: damaged chunk header before byte {offset}")
        end = offset + steps * len(COLUMNS) * 8
        if end > size:
            return
        yield ChunkPlace(rank, first_step, steps, offset, crc)
        file.seek(end)
        offset = end + HEADER_BYTES


def read_chunks(path: Path, start: int, stop: int, *, check: bool) -> Iterator[StepChunk]:
    """Stream the chunks that touch steps `start` to `stop`: memory is one chunk, whatever the file's size.

    `check` verifies checksums and values; a reader of several passes needs that in the first only.
    """
    with path.open("rb") as file:
        for place in _walk(file, path):
            if place.first_step >= stop or place.first_step + place.steps <= start:
                continue
            payload = file.read(place.steps * len(COLUMNS) * 8)
            table = np.frombuffer(payload, dtype="<f8").reshape(len(COLUMNS), place.steps)
            chunk = StepChunk(place.rank, place.first_step, table)
            if check:
                _check(chunk, payload, place, path)
            yield chunk


def _check(chunk: StepChunk, payload: bytes, place: ChunkPlace, path: Path) -> None:
    if zlib.crc32(payload) != place.crc:
        raise DamagedDataError(f"{path.name}: checksum differs in the chunk at byte {place.offset}")
    step_s, samples = chunk.column("step_s"), chunk.column("samples")
    # Written so that NaN fails too.
    if not (step_s.min() > 0 and step_s.max() < np.inf and samples.min() >= 0 and samples.max() < np.inf):
        raise DamagedDataError(f"{path.name}: impossible step times or samples in the chunk at byte {place.offset}")
