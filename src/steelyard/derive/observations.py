"""The raw files of a run as one object; each file is parsed once, at first use.

Names, layouts and limits of the raw files are known only here. Samples of steps and sensors stay in their files and are
read as streams and sums: memory does not grow with steps, and by only a few numbers per rank.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from steelyard.contracts import energy, observe
from steelyard.contracts.record import RawFile
from steelyard.contracts.spec import RunSpec
from steelyard.errors import DamagedDataError, SteelyardError
from steelyard.inputs.validate import MAX_SPEC_BYTES, parse_json, parse_object, read_bounded

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from numpy.typing import NDArray

MAX_NODES = 20_000
MAX_CHANNELS = 4096
MAX_MISSING = 1000
MAX_CONDITIONS = 10_000
LOG_END_BYTES = 32_000


class Observations:
    """The observations in the raw folder of a run."""

    def __init__(self, raw: Path) -> None:
        self._raw = raw

    @cached_property
    def spec(self) -> RunSpec:
        """The spec as it was launched."""
        path = self._raw / observe.SPEC_FILE
        return parse_json(RunSpec, read_bounded(path, MAX_SPEC_BYTES), str(path))

    @cached_property
    def launch(self) -> observe.Launch | None:
        """What the launcher observed; None if it has not written it yet."""
        path = self._raw / observe.LAUNCH_FILE
        if not path.exists():
            return None
        return parse_json(observe.Launch, read_bounded(path, MAX_SPEC_BYTES), str(path))

    @cached_property
    def events(self) -> Events:
        """The events of all processes."""
        # Each node has its own clock, that of its first process; it is needed only if energy was watched.
        watched = [node.process for node in self.nodes] if self.spec.energy.watch else []
        return _read_events(self._raw, watched)

    @cached_property
    def steps(self) -> StepSamples:
        """The step samples, as streams. DamagedDataError if steps are missing or out of order."""
        return StepSamples(self._raw, self.spec.ranks)

    @cached_property
    def tokens(self) -> StepSamples:
        """The token samples of a generating run, as streams."""
        return StepSamples(self._raw, self.spec.ranks, observe.TOKENS_PATTERN)

    @cached_property
    def nodes(self) -> list[NodeSensors]:
        """The nodes whose sensors were read, by the number of their first process."""
        files = [path for path in sorted(self._raw.glob(energy.SENSORS_PATTERN))[:MAX_NODES] if _is_observation(path)]
        nodes = sorted(map(_read_node, files), key=lambda node: node.process)
        # Two files of one process, by different spellings of its number, would count its energy twice: keep the first.
        return [node for number, node in enumerate(nodes) if not number or node.process != nodes[number - 1].process]

    @cached_property
    def log_end(self) -> bytes:
        """The end of the processes' output."""
        path = self._raw / observe.WORKER_LOG
        if not _is_observation(path):
            return b""
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - LOG_END_BYTES))
            return file.read(LOG_END_BYTES)

    @cached_property
    def files(self) -> tuple[RawFile, ...]:
        """The raw files with their digests."""
        found = []
        for path in filter(_is_observation, sorted(self._raw.iterdir())):
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            found.append(RawFile(name=path.name, bytes=path.stat().st_size, sha256=digest))
        return tuple(found)


def _is_observation(path: Path) -> bool:
    """Return whether a path is a regular file of the run, not a pipe or a link to another place."""
    return path.name != observe.PROGRESS_FILE and path.is_file() and not path.is_symlink()


# -- events

_FIRST_EVENTS = "events-00000.jsonl"
_CONTRACTS: dict[str, type] = {
    "status": observe.Status,
    "memory": observe.MemoryPeak,
    # Repeated events.
    "phase": observe.Phase,
    "evaluation": observe.Evaluation,
    "crosscheck": observe.CrossCheck,
    "load": observe.LoadCounters,
    # Once per job, by process 0.
    "environment": observe.Environment,
    "stop": observe.Stop,
    "settings": observe.Settings,
    "device": observe.DeviceFacts,
    "model": observe.ModelFacts,
    "data": observe.DataFacts,
    "loss": observe.LossTrace,
}


@dataclass
class Events:
    """The events of the processes of a run, up to the first damaged line."""

    statuses: dict[str, observe.Status] = field(default_factory=dict)
    """By the file of the process that wrote the status."""
    settings: observe.Settings | None = None
    device: observe.DeviceFacts | None = None
    model: observe.ModelFacts | None = None
    environment: observe.Environment | None = None
    stop: observe.Stop | None = None
    crosschecks: list[observe.CrossCheck] = field(default_factory=list)
    """By process number; that of the deciding process is the first."""
    memory: observe.MemoryPeak | None = None
    data: observe.DataFacts | None = None
    loss: observe.LossTrace | None = None
    evaluations: list[observe.Evaluation] = field(default_factory=list)
    loads: dict[str, list[observe.LoadCounters]] = field(default_factory=dict)
    """By the file of the process, in the order of reading."""
    phases: list[observe.Phase] = field(default_factory=list)
    """Phases of process 0; all ranks pass the phases together."""
    node_phases: dict[int, list[observe.Phase]] = field(default_factory=dict)
    """Phases of the first process of each watched node, on its own clock; none where they cannot be read."""
    damage: SteelyardError | None = None
    """Why no more events were read."""

    def take_in(self, file: str, event: dict[str, Any]) -> None:
        """Add one event, unless an earlier one was damaged."""
        kind = event["kind"]
        if self.damage is not None or kind not in _CONTRACTS or (kind == "phase" and file != _FIRST_EVENTS):
            return
        said: Any
        try:
            fields = {name: value for name, value in event.items() if name != "kind"}
            said = parse_object(_CONTRACTS[kind], fields, f"{file} ({kind})")
        except SteelyardError as error:
            self.damage = error
            return
        if kind == "status":
            # A report that the process was told to end comes after its earlier status.
            if file not in self.statuses or self.statuses[file].code == "completed":
                self.statuses[file] = said
        elif kind == "memory":
            if self.memory is None or (said.peak_bytes or 0.0) > (self.memory.peak_bytes or 0.0):
                self.memory = said
        elif kind == "load":
            self.loads.setdefault(file, []).append(said)
        elif kind in ("phase", "evaluation", "crosscheck"):
            getattr(self, f"{kind}s").append(said)
        else:
            setattr(self, kind, said)


def _read_events(raw: Path, watched: Iterable[int]) -> Events:
    """Read the events of all processes. After a damaged line only the phases of watched nodes are read."""
    events = Events()
    process_of = {f"events-{process:05d}.jsonl": process for process in watched}
    for path in filter(_is_observation, sorted(raw.glob(observe.EVENTS_PATTERN))):
        if events.damage is not None and path.name not in process_of:
            continue
        phases = []
        try:
            for event in observe.read_events(path):
                events.take_in(path.name, event)
                if event.pop("kind") == "phase":
                    phases.append(event)
        except SteelyardError as error:
            events.damage = events.damage or error
            continue
        if path.name in process_of:
            with suppress(SteelyardError):
                events.node_phases[process_of[path.name]] = [
                    parse_object(observe.Phase, phase, path.name) for phase in phases
                ]
    return events


# -- steps

MAX_BINS = 4096


@dataclass(frozen=True)
class Trace:
    """The step times of a job over its steps, in bins of equal step count.

    The step time of the job is the mean over its ranks: in synchronous training all ranks have the same; independent
    replicas have no common step, and the mean is their common pace.
    """

    times: NDArray[np.float64]
    """Seconds in each bin."""
    work: NDArray[np.float64]
    """Samples of all ranks in each bin."""
    steps_per_bin: int


@dataclass(frozen=True)
class WindowSums:
    """Totals over a window of steps, one entry per rank."""

    columns: NDArray[np.float64]
    """Sums: one row per rank, one column for each of `observe.COLUMNS`."""
    start_s: float
    """When the first rank entered the window."""
    end_s: float

    def column(self, name: str) -> NDArray[np.float64]:
        """Return the sums of one column, by rank."""
        column: NDArray[np.float64] = self.columns[:, observe.COLUMNS.index(name)]
        return column


class StepSamples:
    """All step samples of one run; with another file pattern, its token samples."""

    def __init__(self, raw: Path, ranks: int, pattern: str = observe.STEPS_PATTERN) -> None:
        self._files = [path for path in sorted(raw.glob(pattern)) if path.is_file()]
        steps: dict[int, int] = {}
        for path in self._files:
            for place in observe.chunk_places(path):
                if place.rank >= ranks or place.first_step != steps.get(place.rank, 0):
                    raise DamagedDataError(
                        f"{path.name}: step {place.first_step} of rank {place.rank} does not follow the one before"
                    )
                steps[place.rank] = place.first_step + place.steps
        self.ranks = tuple(sorted(steps))
        self.steps = min(steps.values(), default=0)
        """Steps that every rank has finished."""

    def windowed(self, start: int, stop: int, *, check: bool = False) -> Iterator[observe.StepChunk]:
        """Yield the samples of steps `start` to `stop` chunk by chunk, in the order in which ranks wrote them."""
        for path in self._files:
            for chunk in observe.read_chunks(path, start, stop, check=check):
                first, last = max(start, chunk.first_step), min(stop, chunk.first_step + chunk.steps)
                if last - first == chunk.steps:
                    yield chunk
                    continue
                table = chunk.table[:, first - chunk.first_step : last - chunk.first_step]
                yield observe.StepChunk(chunk.rank, first, table)

    def step_times(self, start: int, stop: int) -> Iterator[NDArray[np.float64]]:
        """Yield only the step times, of every rank."""
        for chunk in self.windowed(start, stop):
            yield chunk.column("step_s")

    def trace(self) -> Trace:
        """Return the whole run in at most MAX_BINS bins; steps at the end that fill no bin are left out.

        This is the first pass over the samples, and the one that checks them.
        """
        per_bin = max(1, -(-self.steps // MAX_BINS))
        bins = self.steps // per_bin
        times, work = np.zeros(bins + 1), np.zeros(bins + 1)  # the last is for steps that fill no bin
        for chunk in self.windowed(0, self.steps, check=True):
            first = chunk.first_step // per_bin
            at = (chunk.first_step + np.arange(chunk.steps)) // per_bin - first
            length = int(at[-1]) + 1
            times[first : first + length] += np.bincount(at, chunk.column("step_s"))
            work[first : first + length] += np.bincount(at, chunk.column("samples"))
        return Trace(times[:bins] / max(1, len(self.ranks)), work[:bins], per_bin)

    def sums(self, start: int, stop: int) -> WindowSums:
        """Return the totals of a window."""
        row = {rank: i for i, rank in enumerate(self.ranks)}
        columns = np.zeros((len(self.ranks), len(observe.COLUMNS)))
        begin_s, end_s = np.inf, -np.inf
        for chunk in self.windowed(start, stop):
            columns[row[chunk.rank]] += chunk.table.sum(axis=1)
            starts, times = chunk.column("start_s"), chunk.column("step_s")
            begin_s = min(begin_s, float(starts[0]))
            end_s = max(end_s, float(starts[-1] + times[-1]))
        return WindowSums(columns, begin_s, end_s)


# -- sensors


@dataclass
class NodeSensors:
    """What the sampler of one node wrote."""

    process: int
    """The first rank of the node, whose clock the windows use."""
    power: Path
    """The file of the samples."""
    sampler: energy.Sampler | None = None
    domains: dict[str, energy.Domain] = field(default_factory=dict)
    channels: list[energy.Channel] = field(default_factory=list)
    missing: list[energy.Missing] = field(default_factory=list)
    conditions: list[energy.Condition] = field(default_factory=list)
    ended: energy.Ended | None = None
    damage: str = ""

    @property
    def name(self) -> str:
        """The name that the sampler gave the node."""
        return self.sampler.node if self.sampler else f"node of rank {self.process}"

    @cached_property
    def channels_of(self) -> dict[str, list[int]]:
        """The channel numbers of each domain."""
        numbers: dict[str, list[int]] = {}
        for number, channel in enumerate(self.channels):
            numbers.setdefault(channel.domain, []).append(number)
        return numbers

    def samples(self) -> Iterator[energy.PowerChunk]:
        """Yield the samples as a stream; nothing if there is no file."""
        if _is_observation(self.power):
            yield from energy.read_power_chunks(self.power)


_LISTS: dict[type, tuple[str, int]] = {
    energy.Channel: ("channels", MAX_CHANNELS),
    energy.Missing: ("missing", MAX_MISSING),
    energy.Condition: ("conditions", MAX_CONDITIONS),
}


def _read_node(path: Path) -> NodeSensors:
    number = path.stem.rpartition("-")[2]
    node = NodeSensors(
        process=int(number) if number.isascii() and number.isdigit() and len(number) < 9 else 0,
        power=path.with_name(f"power-{number}.bin"),
    )
    try:
        for event in observe.read_events(path):
            kind, said = energy.sensor_event(event)
            if kind in energy.SENSOR_EVENTS:
                _take_in(node, parse_object(energy.SENSOR_EVENTS[kind], said, f"{path.name} ({kind})"))
    except SteelyardError as error:
        node.damage = str(error).splitlines()[0][:300]
    return node


def _take_in(node: NodeSensors, said: Any) -> None:
    if type(said) in _LISTS:
        name, most = _LISTS[type(said)]
        there = getattr(node, name)
        if len(there) < most:
            there.append(said)
    elif isinstance(said, energy.Domain):
        if len(node.domains) < MAX_CHANNELS:
            node.domains.setdefault(said.name, said)
    elif isinstance(said, energy.Sampler):
        node.sampler = node.sampler or said
    else:
        node.ended = said
