"""The raw files of power and energy sensors: channels, samples with their times, and sensors that are missing.

A run's `raw/` directory holds for each node
    sensors-00000.jsonl   one JSON object per line: {"kind": "sampler" | "domain" | "missing" | "ended", ...}, and for
                          each channel {"kind": "counter" | "gauge", ...}; see `sensor_event`
    power-00000.bin       samples in chunks, each of one channel
    conditions-00000.bin  the state of the devices; see `contracts.conditions`
The number is that of the process which started the sampler: the first rank of its node.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Literal, NamedTuple, get_args

import numpy as np

from steelyard.contracts import conditions
from steelyard.contracts.base import Bound, Contract, Count, Length, Name, NotNegative, Positive, Text, Time
from steelyard.contracts.observe import open_raw
from steelyard.errors import DamagedDataError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

SENSORS_PATTERN = "sensors-*.jsonl"

DomainScope = Literal["die", "device", "module", "cpu", "memory", "io", "board", "node"]
"""die: a die of a card; device: what the scheduler allocates; module: a superchip with its CPU; cpu: a CPU package;
memory: memory modules; io, board: the rest of a board; node: a whole node."""
ChannelKind = Literal["counter", "gauge"]
MissingCode = Literal["missing", "forbidden", "unsupported", "frozen", "implausible", "blocked", "vanished"]


@dataclass(frozen=True, kw_only=True)
class Domain(Contract):
    """Hardware whose energy is counted once. Domains form a tree: a parent's energy includes its children's."""

    name: Name
    """Unique on its node, such as gpu0, module0 or package-0."""
    scope: DomainScope
    parent: Name | None = None
    """The domain that contains this one; None: none known."""
    device: Text | None = None
    """UUID or PCI address; None: not an accelerator."""
    ranks: Annotated[tuple[Count, ...], Length(4096)] = ()
    """Ranks that run on it, if known."""


@dataclass(frozen=True, kw_only=True)
class Channel(Contract):
    """One sensor reading of a domain, and its properties."""

    name: Name
    """Unique on its node, such as nvml.0.energy."""
    backend: Name
    domain: Name
    kind: ChannelKind
    """counter: joules since some time; gauge: watts."""
    resolution: NotNegative
    """Smallest step between two readings, in J or W."""
    average_s: NotNegative | None = None
    """Gauge: a reading is the mean over this many seconds before it; 0: instantaneous; None: unknown."""
    period_s: Positive | None = None
    """Update period of the sensor; None: unknown, estimated from the samples."""
    seen_s: Positive | None = None
    """Part of each period in which the sensor measures; None: all of it."""
    wrap: Positive | None = None
    """Counter: joules after which it wraps to zero; None: never in practice."""
    gain: Annotated[float, Bound(ge=0, lt=1)] = 0.05
    """The maker's tolerance: a constant relative error of the readings."""
    limit_w: Positive | None = None
    """Power limit of the domain, if the vendor gives it."""
    source: Text = ""
    """The field, file or call that is read."""


@dataclass(frozen=True, kw_only=True)
class Missing(Contract):
    """A sensor that cannot be read, and the reason."""

    backend: Name
    what: Text
    code: MissingCode
    reason: Text
    fix: Text = ""
    broken: bool = False
    """Whether the driver itself does not work, so that the devices cannot be used at all."""


@dataclass(frozen=True, kw_only=True)
class Sampler(Contract):
    """The sampler of a node and its clock."""

    node: Text
    process: Count
    """The first rank of the node."""
    period_s: Positive
    clock: Text
    """Clock of the samples: CLOCK_MONOTONIC of the node, or the simulated one."""
    zero_s: Time
    """That clock at the start of the worker's phases; subtract it from a sample's time to get the time in the run."""
    unix_s: Time | None = None
    """Unix time at that moment, for the comparison with external meters."""
    random_phase: bool = False
    """Whether readings are taken at random times inside each period."""


@dataclass(frozen=True, kw_only=True)
class Ended(Contract):
    """The end of the sampler. Without this event it was killed."""

    reason: Text
    at_s: Time
    """Time on the samples' clock."""
    samples: Count
    late: Count = 0
    """Periods without a reading, because the one before took too long."""


# -- samples --------------------------------------------------------------------------------------------------

POWER_COLUMNS = ("time_s", "value", "spent_s")
"""Time at which the reading returned, on the sampler's clock; joules or watts; duration of the call. The reading is of
some moment in the `spent_s` before `time_s`."""


class ChunkFile(NamedTuple):
    """A kind of file with samples in chunks."""

    pattern: str
    magic: bytes
    columns: tuple[str, ...]
    number: str
    """numpy's name of the number format."""

    def place(self, raw: Path, process: int) -> Path:
        """Return the path of a node's file."""
        return raw / self.pattern.replace("*", f"{process:05d}")


POWER_MAGIC = b"SYPOWER1"
POWER = ChunkFile("power-*.bin", POWER_MAGIC, POWER_COLUMNS, "<f8")
CONDITIONS = ChunkFile("conditions-*.bin", b"SYSTATE1", conditions.COLUMNS, "<f4")
_PLACE = struct.Struct("<4sII")  # mark, number of the channel or device in the order of its events, samples
_CHECK = struct.Struct("<II")
_MARK = b"CHNP"
MAX_CHUNK_SAMPLES = 1 << 16
# Seconds, joules, watts, clocks: larger numbers are not readings.
HIGHEST_READING = 1e15


@dataclass(frozen=True)
class PowerChunk:
    """Consecutive samples of one channel, or readings of one device; `table` has one row per column of its file."""

    channel: int
    table: NDArray[np.float64]


def write_power_chunk(file: BinaryIO, channel: int, table: NDArray[np.float64], kind: ChunkFile = POWER) -> None:
    """Append samples of one channel or device, with checksums."""
    payload = np.ascontiguousarray(table, dtype=kind.number).tobytes()
    place = _PLACE.pack(_MARK, channel, table.shape[1])
    file.write(place + _CHECK.pack(zlib.crc32(place), zlib.crc32(payload)) + payload)


def read_power_chunks(path: Path, kind: ChunkFile = POWER) -> Iterator[PowerChunk]:
    """Stream the samples of a node. A last chunk cut short by a kill is left out; a damaged one is an error."""
    rows, each = len(kind.columns), np.dtype(kind.number).itemsize
    with open_raw(path) as file:
        magic = file.read(len(kind.magic))
        if magic != kind.magic:
            if len(magic) < len(kind.magic):
                return
            raise DamagedDataError(f"{path.name}: not a file of this kind of samples")
        header_bytes = _PLACE.size + _CHECK.size
        while len(header := file.read(header_bytes)) == header_bytes:
            mark, channel, samples = _PLACE.unpack_from(header)
            place_crc, crc = _CHECK.unpack_from(header, _PLACE.size)
            sound = mark == _MARK and zlib.crc32(header[: _PLACE.size]) == place_crc
            if not sound or not 0 < samples <= MAX_CHUNK_SAMPLES:
                raise DamagedDataError(f"{path.name}: damaged chunk header")
            payload = file.read(samples * rows * each)
            if len(payload) < samples * rows * each:
                return
            if zlib.crc32(payload) != crc:
                raise DamagedDataError(f"{path.name}: checksum differs")
            table = np.frombuffer(payload, dtype=kind.number).reshape(rows, samples)
            # Not a number: not read. Everything else must be a number to calculate with.
            if (np.abs(table) > HIGHEST_READING).any():
                raise DamagedDataError(f"{path.name}: impossible readings")
            yield PowerChunk(channel, table)


SENSOR_EVENTS: dict[str, type[Any]] = {
    "sampler": Sampler,
    "domain": Domain,
    "channel": Channel,
    "missing": Missing,
    "conditions": conditions.Readable,
    "ended": Ended,
}


def sensor_event(event: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return which of SENSOR_EVENTS a line is, and its fields.

    A line is {"kind": name, **fields}; a channel has a field `kind` of its own, which is what its line shows.
    """
    kind = event["kind"]
    if kind in get_args(ChannelKind):
        return "channel", event
    return kind, {name: value for name, value in event.items() if name != "kind"}
