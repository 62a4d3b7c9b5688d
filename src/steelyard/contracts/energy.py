"""What sensors of energy and power say: channels with their nature, samples with their times, and what is missing.

Knows the layout of a node's sensor files, and nothing of how joules are made of them. Both sides read it from here.

A run's `raw/` directory holds for each node that was watched
    sensors-00000.jsonl   one JSON object a line: {"kind": "sampler" | "domain" | "missing" | "ended", ...}, and of each
                          channel {"kind": "counter" | "gauge", ...}, which is its own kind; see `sensor_event`
    power-00000.bin       samples in chunks, each of one channel
The number is that of the process which started the sampler: the first rank of its node.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Literal, get_args

import numpy as np

from steelyard.contracts.base import Bound, Contract, Count, Length, Name, NotNegative, Positive, Text
from steelyard.errors import DamagedDataError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

SENSORS_PATTERN = "sensors-*.jsonl"
POWER_PATTERN = "power-*.bin"

DomainScope = Literal["die", "device", "module", "cpu", "memory", "io", "board", "node"]
"""What a domain is: a die of a card; what the scheduler hands out as a device; a superchip with its CPU; a CPU package;
memory modules; the rest of a board; a whole node."""
ChannelKind = Literal["counter", "gauge"]
MissingCode = Literal["missing", "forbidden", "unsupported", "frozen", "implausible", "blocked", "vanished"]


@dataclass(frozen=True, kw_only=True)
class Domain(Contract):
    """A piece of hardware whose joules are counted once. Domains form a tree: a parent's joules hold its children's."""

    name: Name
    """Such as gpu0, module0, package-0; unique on its node."""
    scope: DomainScope
    parent: Name | None = None
    """The domain that contains this one; None: none that is known."""
    device: Text | None = None
    """As the vendor names it (UUID, PCI address); None for what is no accelerator."""
    ranks: Annotated[tuple[Count, ...], Length(4096)] = ()
    """Ranks of the job that run on it, where that is known."""


@dataclass(frozen=True, kw_only=True)
class Channel(Contract):
    """One reading of one domain, and what its numbers can tell."""

    name: Name
    """Unique on its node, such as nvml.0.energy."""
    backend: Name
    domain: Name
    kind: ChannelKind
    """A counter gives joules since some time; a gauge watts."""
    resolution: NotNegative
    """Smallest step between two readings, in J or W."""
    average_s: NotNegative | None = None
    """Of a gauge: a reading is the mean over so many seconds before it; 0: of an instant; None: unknown."""
    period_s: Positive | None = None
    """How often the sensor itself makes a new reading; None: unknown, and then estimated from the samples."""
    seen_s: Positive | None = None
    """Of a sensor that looks only part of the time: how long of each period it looks; None: all of it."""
    wrap: Positive | None = None
    """Of a counter: after so many joules it begins at zero again; None: never in practice."""
    gain: Annotated[float, Bound(ge=0, lt=1)] = 0.05
    """The true power may lie this share beside the reading, always to the same side: the maker's tolerance."""
    limit_w: Positive | None = None
    """The most that the domain may draw, where the vendor says so."""
    source: Text = ""
    """What was read: a field, a file, a call."""


@dataclass(frozen=True, kw_only=True)
class Missing(Contract):
    """A sensor that cannot be read, and why. Unavailable is said; nothing is guessed."""

    backend: Name
    what: Text
    code: MissingCode
    reason: Text
    fix: Text = ""
    broken: bool = False
    """Whether the driver itself does not work: the devices are useless then, not only their sensors."""


@dataclass(frozen=True, kw_only=True)
class Sampler(Contract):
    """Who watched, on which clock."""

    node: Text
    process: Count
    """Of the job: the first rank of the node."""
    period_s: Positive
    clock: Text
    """Which clock the samples' times are of: CLOCK_MONOTONIC of the node, or the simulated one."""
    zero_s: float
    """That clock at the zero of the worker's phases: subtract it from a sample's time to get the run's time."""
    unix_s: float | None = None
    """Seconds since 1970 at that zero, by the node's calendar: to hold a wattmeter's readings against ours."""
    random_phase: bool = False
    """Whether readings are taken at random times inside each period, for sensors that look part of the time."""


@dataclass(frozen=True, kw_only=True)
class Condition(Contract):
    """What the devices said of themselves at one moment: what holds their clocks back, which limit is set."""

    at_s: float
    """On the samples' clock."""
    facts: Annotated[dict[str, Text], Length(1024)]
    """By domain and name, such as gpu0.clocks_held_by."""


@dataclass(frozen=True, kw_only=True)
class Ended(Contract):
    """The sampler's last word; without it, it was killed."""

    reason: Text
    at_s: float
    """On the samples' clock."""
    samples: Count
    late: Count = 0
    """Periods that passed without a reading, because one before took too long."""


# -- samples --------------------------------------------------------------------------------------------------

POWER_COLUMNS = ("time_s", "value", "spent_s")
"""When the reading came back, by the sampler's clock; joules or watts; how long the call took, so that the reading is
of some moment in `spent_s` before `time_s`."""
POWER_MAGIC = b"SYPOWER1"
_PLACE = struct.Struct("<4sII")  # mark, channel's number in the order of its events, samples
_CHECK = struct.Struct("<II")
_MARK = b"CHNP"
MAX_CHUNK_SAMPLES = 1 << 16


@dataclass(frozen=True)
class PowerChunk:
    """Consecutive samples of one channel; `table` has one row a column of POWER_COLUMNS."""

    channel: int
    table: NDArray[np.float64]


def write_power_chunk(file: BinaryIO, channel: int, table: NDArray[np.float64]) -> None:
    """Append samples of one channel; a reader that finds them cut short or damaged can tell."""
    payload = np.ascontiguousarray(table, dtype="<f8").tobytes()
    place = _PLACE.pack(_MARK, channel, table.shape[1])
    file.write(place + _CHECK.pack(zlib.crc32(place), zlib.crc32(payload)) + payload)


def read_power_chunks(path: Path) -> Iterator[PowerChunk]:
    """Stream the samples of a node. A last chunk cut short by a kill is left out; a damaged one is an error."""
    with path.open("rb") as file:
        if file.read(len(POWER_MAGIC)) != POWER_MAGIC:
            if path.stat().st_size < len(POWER_MAGIC):
                return
            raise DamagedDataError(f"{path.name}: not a file of power samples")
        header_bytes = _PLACE.size + _CHECK.size
        while len(header := file.read(header_bytes)) == header_bytes:
            mark, channel, samples = _PLACE.unpack_from(header)
            place_crc, crc = _CHECK.unpack_from(header, _PLACE.size)
            sound = mark == _MARK and zlib.crc32(header[: _PLACE.size]) == place_crc
            if not sound or not 0 < samples <= MAX_CHUNK_SAMPLES:
                raise DamagedDataError(f"{path.name}: damaged chunk header")
            payload = file.read(samples * len(POWER_COLUMNS) * 8)
            if len(payload) < samples * len(POWER_COLUMNS) * 8:
                return
            if zlib.crc32(payload) != crc:
                raise DamagedDataError(f"{path.name}: checksum differs")
            yield PowerChunk(channel, np.frombuffer(payload, dtype="<f8").reshape(len(POWER_COLUMNS), samples))


SENSOR_EVENTS: dict[str, type[Any]] = {
    "sampler": Sampler, "domain": Domain, "channel": Channel, "missing": Missing, "condition": Condition,
    "ended": Ended,
}  # fmt: skip


def sensor_event(event: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """What a line of a sensor file is, by a name of SENSOR_EVENTS, and the contract's fields in it.

    A line is {"kind": name, **fields}; a channel has a field `kind` of its own, which is what its line shows.
    """
    kind = event["kind"]
    if kind in get_args(ChannelKind):
        return "channel", event
    return kind, {name: value for name, value in event.items() if name != "kind"}


# -- reasons that a rule of their own speaks of, by their first words
DISAGREES = "counter against integral: "
DEVICES = "devices: "
SAMPLER = "sampler: "
HOLDS_HOST = "holds more than the accelerators: "
SPECIAL_REASONS = (DISAGREES, DEVICES, SAMPLER, HOLDS_HOST)
