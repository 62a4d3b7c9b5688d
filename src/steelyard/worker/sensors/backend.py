"""What a backend of sensors is: it finds its channels once, then reads them. Knows no file and no clock of the run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from steelyard.contracts.energy import Channel, Domain, Missing


class ReadError(Exception):
    """A channel cannot be read now. `code` is one of contracts.energy.MissingCode."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


@dataclass
class SensorsFound:
    """What a backend has to offer on this node."""

    domains: list[Domain] = field(default_factory=list)
    channels: list[Channel] = field(default_factory=list)
    missing: list[Missing] = field(default_factory=list)
    read: Callable[[int], float] | None = None
    """The reading of the channel with this number in `channels`, in J or W; raises ReadError."""
    conditions: Callable[[], dict[str, str]] | None = None
    """What the devices say of themselves now, by domain and name; may take its time."""
    close: Callable[[], None] = lambda: None


class Backend(Protocol):
    """Opens a vendor's library or a tree of files. Registered as `sensor` in `plugins.py`, by its name."""

    def __call__(self, root: Path, devices: Sequence[str]) -> SensorsFound:
        """Look below `root` (the file system's, or a test's); `devices` are the job's own, as their UUIDs or numbers.

        Never raises for what is not there: that is a `Missing`. Nothing there at all and nothing expected: an empty
        SensorsFound.
        """
        ...
