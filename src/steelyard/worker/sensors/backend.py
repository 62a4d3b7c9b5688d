"""The interface of a sensor backend: it finds its channels once, then reads them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from steelyard.contracts.conditions import Readable
    from steelyard.contracts.energy import Channel, Domain, Missing


class ReadError(Exception):
    """A channel cannot be read now. `code` is one of contracts.energy.MissingCode."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


@dataclass(frozen=True)
class DeviceState:
    """The state of one device, such as its clock and its throttle reasons."""

    contract: Readable
    reads: Mapping[str, Callable[[], float]]
    """How each readable column of `contracts.conditions.COLUMNS` is read; raises ReadError."""
    begin: Callable[[], None] = lambda: None
    """Called before the columns are read, so that several can share one call to the driver."""


@dataclass
class SensorsFound:
    """What a backend found on this node."""

    domains: list[Domain] = field(default_factory=list)
    channels: list[Channel] = field(default_factory=list)
    missing: list[Missing] = field(default_factory=list)
    read: Callable[[int], float] | None = None
    """Return the reading of the channel with this index in `channels`, in J or W; raises ReadError."""
    states: Callable[[], list[DeviceState]] | None = None
    """Find the devices whose state can be read; may be slow. See `conditions.state_of`."""
    close: Callable[[], None] = lambda: None


class Backend(Protocol):
    """Opens a vendor's library or a tree of files. Registered by name as `sensor` in `plugins.py`."""

    def __call__(self, root: Path, devices: Sequence[str]) -> SensorsFound:
        """Search below `root`; `devices` are the job's devices as UUIDs or numbers.

        Never raises if something is missing: that is a `Missing`. If there is nothing and nothing is expected, the
        result is empty.
        """
        ...
