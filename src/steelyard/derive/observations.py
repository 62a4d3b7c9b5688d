"""The raw files of a run as one object; each file is parsed once, at first use.

Names, layouts and limits of the raw files are known only here. Samples of steps and sensors stay in their files and are
read as streams and sums: memory does not grow with steps, and by only a few numbers per rank.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fnmatch import filter as matching
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from steelyard import nofollow
from steelyard.contracts import energy, observe, sample_files, wrap
from steelyard.contracts.base import from_json_object
from steelyard.contracts.conditions import Readable
from steelyard.contracts.record import RawFile
from steelyard.contracts.spec import RunSpec
from steelyard.derive.program import ProgramFacts, PythonProcess, program_facts
from steelyard.errors import DamagedDataError, SteelyardError, printable
from steelyard.inputs.validate import MAX_SPEC_BYTES, parse_json, parse_object
from steelyard.redact import redact

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from numpy.typing import NDArray

T = TypeVar("T")
MAX_NODES = 20_000
MAX_CHANNELS = 4096
MAX_MISSING = 1000
LOG_END_BYTES = 32_000
MAX_PROCESSES = 20_000
MAX_REASON = 300
MAX_FILES = 100_000
# Files of samples may be large, and are hashed only after their chunks were found in order.
MAX_SAMPLES_BYTES = 1 << 36
MAX_RAW_BYTES = 1 << 32


class Observations:
    """The observations in the raw folder of a run: an absolute path without links."""

    def __init__(self, raw: Path) -> None:
        self._raw = raw
        self._end_damage: SteelyardError | None = None

    @cached_property
    def _names(self) -> list[str]:
        return nofollow.names(self._raw)

    @cached_property
    def launched(self) -> RunSpec:
        """The spec as it was launched."""
        return _read_contract(RunSpec, self._raw / observe.SPEC_FILE)

    @property
    def spec(self) -> RunSpec:
        """The spec; that of a program has the settings that were read back."""
        return self.launched if self.program is None else self.program.spec

    @cached_property
    def program(self) -> ProgramFacts | None:
        """What was seen of a program; None for a workload."""
        if self.launched.program is None:
            return None
        reports = {_number_of(name): report for name, report in self.events.wrapped.items()}
        started = [process for node in self.python_processes.values() for process in node]
        facts = program_facts(
            self.launched, reports, self.events.settings, started, self.ends.values(), [*self.events.second.values()]
        )
        seen = facts.seen
        if not seen.steps and wrap.OBSERVER_LOG in self._names:
            with suppress(OSError), nofollow.open_file(self._raw / wrap.OBSERVER_LOG) as file:
                said = redact(printable(file.read(MAX_REASON).decode("utf-8", "replace")))[0]
                seen = replace(seen, step_reason=f"the observer failed: {said.strip()}")
        return replace(facts, seen=seen, damage=facts.damage or self._end_damage)

    @cached_property
    def ends(self) -> dict[int, wrap.ProgramEnd]:
        """How the command of a program ended on each node, as far as that can be read."""
        ends = {}
        for name in matching(self._names, wrap.END_PATTERN)[:MAX_NODES]:
            try:
                ends[_number_of(name)] = _read_contract(wrap.ProgramEnd, self._raw / name)
            except SteelyardError as error:
                self._end_damage = self._end_damage or error
        return ends

    @cached_property
    def python_processes(self) -> dict[int, list[PythonProcess]]:
        """The Python processes of a program that reported in, by the number of their node."""
        processes, left = {}, MAX_ALL_EVENTS_BYTES // 4
        for name in matching(self._names, wrap.PROCESSES_PATTERN)[:MAX_NODES]:
            left -= min(observe.raw_bytes(self._raw / name), observe.MAX_EVENTS_BYTES)
            if left < 0:
                raise DamagedDataError(f"the files {wrap.PROCESSES_PATTERN} are larger than those of any job")
            processes[_number_of(name)] = list(_read_processes(self._raw / name))
        return processes

    @cached_property
    def launch(self) -> observe.Launch | None:
        """What the launcher observed; None if it has not written it yet."""
        if observe.LAUNCH_FILE not in self._names:
            return None
        return _read_contract(observe.Launch, self._raw / observe.LAUNCH_FILE)

    @cached_property
    def events(self) -> Events:
        """The events of all processes."""
        # Each node has its own clock, that of its first process; it is needed only if energy was watched.
        watched = [node.process for node in self.nodes] if self.launched.energy.watch else []
        paths = [self._raw / name for name in matching(self._names, observe.EVENTS_PATTERN)]
        return _read_events(paths, watched)

    @cached_property
    def steps(self) -> StepSamples:
        """The step samples, as streams. DamagedDataError if steps are missing or out of order."""
        samples = StepSamples(self._raw, self.spec.devices)
        if self.program is not None and self.program.seen.samples != "seen":
            # What the user states is of the whole job; without it every step counts as one.
            program = self.program.spec.program
            stated = program.samples_per_step if program is not None else None
            samples.counts(lambda table: np.full(table.shape[1], (stated or 1.0) / max(1, len(samples.ranks))))
        return samples

    @cached_property
    def tokens(self) -> StepSamples:
        """The token samples of a generating run, as streams."""
        return StepSamples(self._raw, self.spec.devices, observe.TOKENS_PATTERN)

    def work(self, count: Callable[[NDArray[np.float64]], NDArray[np.float64]]) -> StepSamples:
        """Return what the steps of a program worked on; `count` makes one number per step of columns WORK_COLUMNS."""
        samples = StepSamples(self._raw, self.spec.devices, wrap.WORK_PATTERN)
        samples.counts(count)
        return samples

    @cached_property
    def nodes(self) -> list[NodeSensors]:
        """The nodes whose sensors were read, by the number of their first process."""
        files = [self._raw / name for name in matching(self._names, energy.SENSORS_PATTERN)[:MAX_NODES]]
        nodes = [_read_node(path) for path in files]
        for node in nodes:
            # A program is started once per node, and the clock of its observers is that of the node.
            ranks = [process.rank for process in self.python_processes.get(node.number, ())]
            node.process = min((rank for rank in ranks if rank is not None), default=node.number)
        nodes.sort(key=lambda node: node.process)
        # Two files of one process, by different spellings of its number, would count its energy twice: keep the first.
        return [node for number, node in enumerate(nodes) if not number or node.process != nodes[number - 1].process]

    @cached_property
    def log_end(self) -> bytes:
        """The end of the processes' output, without secrets."""
        if observe.WORKER_LOG not in self._names:
            return b""
        with suppress(DamagedDataError), observe.open_raw(self._raw / observe.WORKER_LOG) as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - LOG_END_BYTES))
            return redact(file.read(LOG_END_BYTES).decode("utf-8", "replace"))[0].encode()
        return b""

    def read_output(self, limit: int) -> bytes:
        """Return the output of the processes up to a limit, as it is."""
        if observe.WORKER_LOG not in self._names:
            return b""
        with suppress(DamagedDataError), observe.open_raw(self._raw / observe.WORKER_LOG) as file:
            return file.read(limit)
        return b""

    @cached_property
    def raw_files(self) -> RawFiles:
        """The raw files with their digests, and those that cannot be part of a run."""
        raw = RawFiles()
        if len(self._names) > MAX_FILES:
            raw.damage = DamagedDataError(f"more than {MAX_FILES:,} raw files")
        for name in self._names[:MAX_FILES]:
            try:
                if name != observe.PROGRESS_FILE:
                    raw.files.append(_digest(self._raw / name))
            except DamagedDataError as error:
                # A folder that could not be removed, such as that of torchrun, holds nothing that is read.
                if not _is_folder(self._raw / name):
                    raw.damage = raw.damage or error
        return raw


@dataclass
class RawFiles:
    """The raw files of a run."""

    files: list[RawFile] = field(default_factory=list)
    damage: DamagedDataError | None = None
    """The first link, pipe or file that is larger than any real one."""


def _is_folder(path: Path) -> bool:
    try:
        return nofollow.is_folder(path)
    except nofollow.LinkError:
        return False


def _digest(path: Path) -> RawFile:
    samples = path.name.startswith(("steps-", "tokens-", "work-"))
    limit = MAX_SAMPLES_BYTES if samples else MAX_RAW_BYTES
    with observe.open_raw(path) as file:
        size = file.seek(0, os.SEEK_END)
        if size > limit:
            raise DamagedDataError(f"{path.name} is larger than {limit:,} bytes, the limit for such a file")
        if samples and size > MAX_RAW_BYTES:
            # A file with a hole costs nothing to make and minutes to read; its headers show that it has no samples.
            sum(1 for _ in sample_files.chunk_places(path))
        file.seek(0)
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return RawFile(name=path.name, bytes=size, sha256=digest)


def _read_contract(cls: type[T], path: Path) -> T:
    with observe.open_raw(path) as file:
        text = file.read(MAX_SPEC_BYTES + 1)
    if len(text) > MAX_SPEC_BYTES:
        raise DamagedDataError(f"{path.name} is larger than {MAX_SPEC_BYTES:,} bytes, the limit for such a file")
    return parse_json(cls, text, path.name)


def _number_of(name: str) -> int:
    """Return the number in the name of a file; 0 if it has none."""
    number = name.partition(".")[0].rpartition("-")[2]
    return int(number) if number.isascii() and number.isdigit() and len(number) < 9 else 0


def _read_processes(path: Path) -> Iterator[PythonProcess]:
    """Yield the processes of a file. Many processes write it, so a line that cannot be read costs only itself."""
    with observe.open_raw(path) as file:
        lines = file.read(observe.MAX_EVENTS_BYTES).split(b"\n", MAX_PROCESSES)
    for line in lines[:MAX_PROCESSES]:
        with suppress(ValueError, RecursionError):
            yield from_json_object(PythonProcess, json.loads(line))


# -- events

_CONTRACTS: dict[str, type] = {
    "status": observe.Status,
    "measured": observe.Status,
    "memory": observe.MemoryPeak,
    # Repeated events.
    "phase": observe.Phase,
    "evaluation": observe.Evaluation,
    "crosscheck": observe.CrossCheck,
    "crosscheck_failure": observe.CrossCheckFailure,
    "queue": observe.QueueFacts,
    "load": observe.LoadCounters,
    # By every rank of a program; the last one counts.
    "wrapped": wrap.Wrapped,
    "second": wrap.SecondPass,
    # Once per job, by process 0.
    "environment": observe.Environment,
    "stop": observe.Stop,
    "settings": observe.Settings,
    "device": observe.DeviceFacts,
    "model": observe.ModelFacts,
    "data": observe.DataFacts,
    "loss": observe.LossTrace,
}
# How many events of a kind one process may write. Evaluations have a phase each.
_MOST = {"phase": 10_100, "evaluation": 10_000}
_MOST_OF_OTHERS = 16
# Of all processes together: 65,536 ranks write about 2 kB each.
MAX_ALL_EVENTS_BYTES = 1 << 27


@dataclass
class Events:
    """The events of the processes of a run, up to the first damaged line."""

    statuses: dict[str, observe.Status] = field(default_factory=dict)
    """By the file of the process that wrote the status."""
    measured: dict[str, observe.Status] = field(default_factory=dict)
    """The status that each process had when all its measured steps were on disk, before the cross-check."""
    settings: observe.Settings | None = None
    device: observe.DeviceFacts | None = None
    model: observe.ModelFacts | None = None
    environment: observe.Environment | None = None
    stop: observe.Stop | None = None
    crosschecks: list[observe.CrossCheck] = field(default_factory=list)
    """By process number; that of the deciding process is the first."""
    crosscheck_failures: list[observe.CrossCheckFailure] = field(default_factory=list)
    queues: list[observe.QueueFacts] = field(default_factory=list)
    """The same."""
    memory: observe.MemoryPeak | None = None
    data: observe.DataFacts | None = None
    loss: observe.LossTrace | None = None
    evaluations: list[observe.Evaluation] = field(default_factory=list)
    loads: dict[str, list[observe.LoadCounters]] = field(default_factory=dict)
    """By the file of the process, in the order of reading."""
    wrapped: dict[str, wrap.Wrapped] = field(default_factory=dict)
    """What the ranks of a program report, by the file of the process."""
    second: dict[str, wrap.SecondPass] = field(default_factory=dict)
    """What they counted in a second pass."""
    phases: list[observe.Phase] = field(default_factory=list)
    """Phases of process 0; all ranks pass the phases together."""
    node_phases: dict[int, list[observe.Phase]] = field(default_factory=dict)
    """Phases of the first process of each watched node, on its own clock; none where they cannot be read."""
    damage: SteelyardError | None = None
    """Why no more events were read."""

    def parse(self, file: str, kind: str, event: dict[str, Any]) -> Any:
        """Return the contract of an event; None if it is damaged."""
        try:
            return parse_object(_CONTRACTS[kind], event, f"{file} ({kind})")
        except SteelyardError as error:
            self.damage = self.damage or error
            return None

    def take_in(self, file: str, kind: str, said: Any) -> None:
        """Add one event."""
        if kind == "status":
            # A report that the process was told to end comes after its earlier status.
            if file not in self.statuses or self.statuses[file].code == "completed":
                self.statuses[file] = said
        elif kind in ("measured", "wrapped", "second"):
            getattr(self, kind)[file] = said
        elif kind == "memory":
            if self.memory is None or (said.peak_bytes or 0.0) > (self.memory.peak_bytes or 0.0):
                self.memory = said
        elif kind == "load":
            self.loads.setdefault(file, []).append(said)
        elif kind in ("phase", "evaluation", "crosscheck", "crosscheck_failure", "queue"):
            getattr(self, f"{kind}s").append(said)
        elif file == observe.FIRST_EVENTS or getattr(self, kind) is None:
            # Every rank of a program tells its own.
            setattr(self, kind, said)


def _read_events(paths: Iterable[Path], watched: Iterable[int]) -> Events:
    """Read the events of all processes. After a damaged line only the phases of watched nodes are read."""
    events = Events()
    process_of = {f"events-{process:05d}.jsonl": process for process in watched}
    left = MAX_ALL_EVENTS_BYTES
    for path in paths:
        process = process_of.get(path.name)
        if events.damage is not None and process is None:
            continue
        try:
            left -= observe.raw_bytes(path)
            if left < 0:
                raise DamagedDataError(f"the events of all files have more than {MAX_ALL_EVENTS_BYTES:,} bytes")
            phases = _read_process(path, events, with_phases=process is not None)
        except SteelyardError as error:
            events.damage = events.damage or error
            continue
        if process is not None and None not in phases:
            events.node_phases[process] = phases
    return events


def _read_process(path: Path, events: Events, *, with_phases: bool) -> list[Any]:
    """Add the events of one process; return its phases, with None for a damaged one."""
    first, phases = path.name == observe.FIRST_EVENTS, []
    counts: Counter[str] = Counter()
    for event in observe.read_events(path):
        kind = event.pop("kind")
        wanted = with_phases or first if kind == "phase" else events.damage is None
        if kind not in _CONTRACTS or not wanted:
            continue
        counts[kind] += 1
        if counts[kind] > _MOST.get(kind, _MOST_OF_OTHERS):
            raise DamagedDataError(f"{path.name}: more than {_MOST.get(kind, _MOST_OF_OTHERS):,} events of kind {kind}")
        said = events.parse(path.name, kind, event)
        if kind == "phase":
            phases.append(said)
        if events.damage is None and (kind != "phase" or first):
            events.take_in(path.name, kind, said)
    return phases


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
        column: NDArray[np.float64] = self.columns[:, sample_files.COLUMNS.index(name)]
        return column


class StepSamples:
    """All step samples of one run; with another file pattern, its token samples."""

    def __init__(self, raw: Path, ranks: int, pattern: str = observe.STEPS_PATTERN) -> None:
        self._files = [raw / name for name in matching(nofollow.names(raw), pattern)]
        steps: dict[int, int] = {}
        for path in self._files:
            for place in sample_files.chunk_places(path):
                if place.rank >= ranks or place.first_step != steps.get(place.rank, 0):
                    raise DamagedDataError(
                        f"{path.name}: step {place.first_step} of rank {place.rank} does not follow the one before"
                    )
                steps[place.rank] = place.first_step + place.steps
        self.ranks = tuple(sorted(steps))
        self.steps = min(steps.values(), default=0)
        """Steps that every rank has finished."""
        self._count: Callable[[NDArray[np.float64]], NDArray[np.float64]] | None = None

    def counts(self, count: Callable[[NDArray[np.float64]], NDArray[np.float64]]) -> None:
        """Take the samples of each step from `count`, which gets the columns of the file."""
        self._count = count

    @property
    def size_bytes(self) -> int:
        """Size of the files."""
        return sum(map(observe.raw_bytes, self._files))

    def windowed(self, start: int, stop: int, *, check: bool = False) -> Iterator[sample_files.StepChunk]:
        """Yield the samples of steps `start` to `stop` chunk by chunk, in the order in which ranks wrote them."""
        for path in self._files:
            for chunk in sample_files.read_chunks(path, start, stop, check=check):
                first, last = max(start, chunk.first_step), min(stop, chunk.first_step + chunk.steps)
                if last - first == chunk.steps and self._count is None:
                    yield chunk
                    continue
                table = chunk.table[:, first - chunk.first_step : last - chunk.first_step]
                if self._count is not None:
                    table = np.vstack([table[:-1], self._count(table)])
                yield sample_files.StepChunk(chunk.rank, first, table)

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
        columns = np.zeros((len(self.ranks), len(sample_files.COLUMNS)))
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
    number: int = 0
    """The number in the names of its files."""
    sampler: energy.Sampler | None = None
    domains: dict[str, energy.Domain] = field(default_factory=dict)
    channels: list[energy.Channel] = field(default_factory=list)
    missing: list[energy.Missing] = field(default_factory=list)
    states: list[Readable] = field(default_factory=list)
    """The devices whose state was read, in the order of the numbers of their readings."""
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
        with suppress(FileNotFoundError):
            yield from energy.read_power_chunks(self.power)

    def readings(self) -> Iterator[tuple[Readable, NDArray[np.float64]]]:
        """Yield readings of the devices' state as a stream: a row for each of `contracts.conditions.COLUMNS`."""
        path = energy.CONDITIONS.place(self.power.parent, self.number)
        with suppress(FileNotFoundError):
            for chunk in energy.read_power_chunks(path, energy.CONDITIONS):
                if chunk.channel < len(self.states):
                    yield self.states[chunk.channel], chunk.table.astype(np.float64)


_LISTS: dict[type, tuple[str, int]] = {
    energy.Channel: ("channels", MAX_CHANNELS),
    energy.Missing: ("missing", MAX_MISSING),
    Readable: ("states", MAX_CHANNELS),
}


def _read_node(path: Path) -> NodeSensors:
    number = _number_of(path.name)
    name = f"power-{path.stem.rpartition('-')[2]}.bin"
    node = NodeSensors(number=number, process=number, power=path.with_name(name))
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
