"""The sampler: the process that reads the sensors of its node during a run.

Standard input is a socket: a byte requests an immediate reading; `END` or a closed socket ends the sampler. The sampler
sends back the time from which all channels are read. Only the main thread writes; each backend has its own thread, so
that none can delay another.
"""

from __future__ import annotations

import math
import os
import queue
import select
import signal
import struct
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from steelyard import plugins
from steelyard.contracts import energy
from steelyard.worker.sensors.conditions import StateReader
from steelyard.worker.sensors.files import Chunks, Lines
from steelyard.worker.sensors.find import distinct, missing_of, open_all
from steelyard.worker.sensors.reader import MARK_GAP_S, Reader

if TYPE_CHECKING:
    from collections.abc import Sequence

    from steelyard.worker.sensors.backend import SensorsFound
    from steelyard.worker.sensors.files import Samples

FLUSH_S = 1.0
LAST_READING_S = 0.5
NICENESS = 5
MARK, END = b"m", b"e"
READY = struct.Struct("<d")
NOTHING_FOUND, PARENT_GONE = "no sensor channel was found", "the measured process has ended"
STDIN = 0


@dataclass(frozen=True)
class Order:
    """What the sampler has to do."""

    raw: Path
    node: str
    process: int
    period_s: float
    zero_s: float
    parent: int
    random_phase: bool = False
    root: Path = Path("/")
    devices: tuple[str, ...] = ()

    def description(self) -> energy.Sampler:
        """Return the description for the sensor file."""
        return energy.Sampler(
            node=self.node,
            process=self.process,
            period_s=self.period_s,
            clock="CLOCK_MONOTONIC",
            zero_s=self.zero_s,
            unix_s=time.time() - (time.monotonic() - self.zero_s),
            random_phase=self.random_phase,
        )


class Sampling:
    """Reads one node during one run."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._lines = Lines(order.raw, order.process)
        self._chunks: Chunks | None = None
        self._readers: list[Reader] = []
        self._domains: set[str] = set()
        self._channels: list[str] = []
        self._states: Chunks | None = None
        self._state_readers: list[StateReader] = []
        self._devices = 0
        self._opened: queue.SimpleQueue[SensorsFound | None] = queue.SimpleQueue()
        self._all_opened = self._ready = False
        self._bell, self._ring = os.pipe()
        os.set_blocking(self._ring, False)
        self._told = ""
        self._heard_s = -math.inf

    def run(self) -> None:
        """Read until the run ends, no channel is left, or the disk is full."""

        def on_terminate(*_: object) -> None:
            self._told = "terminated by SIGTERM"

        # SIGINT is for the job, which then ends us. SIGTERM ends us with a reason in the file.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, on_terminate)
        signal.set_wakeup_fd(self._ring, warn_on_full_buffer=False)
        try:
            self._lines.write("sampler", self._order.description())
            threading.Thread(target=self._open, daemon=True, name="open").start()
            reason = self._watch()
            # The state first: the last reading of a backend closes its library.
            _finish(self._state_readers, LAST_READING_S / 2)
            _finish(self._readers, LAST_READING_S)
            self._look_after(ending=True)
        except OSError as error:
            reason = f"the readings cannot be written: {error.strerror}"
        except Exception as error:  # noqa: BLE001 -- our own errors are reported, too
            reason = f"{type(error).__name__}: {error}"[:500]
        self._end(reason)

    def _open(self) -> None:
        order = self._order
        for _, sensors in open_all(plugins.names("sensor"), order.root, order.devices):
            self._opened.put(sensors)
            self._wake()
        self._opened.put(None)
        self._wake()

    def _wake(self) -> None:
        """Wake the main thread; a full pipe means that it is awake already."""
        with suppress(BlockingIOError):
            os.write(self._ring, MARK)

    def _watch(self) -> str:
        """Run the main loop; return why it ended."""
        next_s = time.monotonic() + FLUSH_S
        while True:
            ready = self._wait(next_s)
            if self._bell in ready:
                os.read(self._bell, 4096)
                self._admit()
                self._report()
            if STDIN in ready and (ended := self._hear()):
                return ended
            if self._told:
                return self._told
            if time.monotonic() >= next_s:
                next_s = max(next_s + FLUSH_S, time.monotonic())
                self._look_after()
            if os.getppid() != self._order.parent:
                return PARENT_GONE
            live = any(reader.live for reader in self._readers) or any(reader.live for reader in self._state_readers)
            if self._all_opened and not live:
                return "no channel can be read any longer" if self._readers else NOTHING_FOUND

    def _wait(self, next_s: float) -> list[int]:
        """Return the ready file descriptors. A mark that follows another too soon waits, like its reading would."""
        deaf_s = self._heard_s + MARK_GAP_S - time.monotonic()
        if deaf_s > 0:
            ready = select.select([self._bell], [], [], deaf_s)[0]
            if ready:
                return ready
        return select.select([STDIN, self._bell], [], [], max(0.0, next_s - time.monotonic()))[0]

    def _hear(self) -> str:
        """Handle requests from the socket; return the reason if it ends."""
        try:
            data = os.read(STDIN, 4096)
        except ConnectionResetError:
            data = b""
        if not data:
            return PARENT_GONE
        if END in data:
            return "the run ended"
        self._heard_s = time.monotonic()
        for reader in self._readers:
            reader.mark()
        return ""

    def _admit(self) -> None:
        """Write what a backend has found, and start to read it."""
        while True:
            try:
                sensors = self._opened.get_nowait()
            except queue.Empty:
                return
            if sensors is None:
                self._all_opened = True
                continue
            fresh = distinct(sensors, self._domains, set(self._channels))
            for domain in fresh.domains:
                self._domains.add(domain.name)
                self._lines.write("domain", domain)
            for missing in fresh.missing:
                self._lines.write("missing", missing)
            if sensors.states is not None:
                reader = StateReader(sensors.states, self._order.zero_s)
                reader.start()
                self._state_readers.append(reader)
            if fresh.channels:
                self._begin(sensors, fresh)

    def _begin(self, sensors: SensorsFound, fresh: SensorsFound) -> None:
        if self._chunks is None:
            self._chunks = Chunks(self._order.raw, self._order.process)
        for channel in fresh.channels:
            self._lines.write("channel", channel)
        numbers = [sensors.channels.index(channel) for channel in fresh.channels]
        assert sensors.read is not None
        read = sensors.read
        own = replace(fresh, read=lambda number: read(numbers[number]), close=sensors.close)
        first = len(self._channels)
        self._channels += [channel.name for channel in fresh.channels]
        reader = Reader(own, first, self._order.period_s, random_phase=self._order.random_phase, ring=self._wake)
        reader.start()
        self._readers.append(reader)

    def _report(self) -> None:
        """Send once that every channel is read."""
        if self._all_opened and not self._ready and self._readers and all(reader.begun for reader in self._readers):
            self._ready = True
            with suppress(OSError):
                os.write(STDIN, READY.pack(time.monotonic()))

    def _look_after(self, *, ending: bool = False) -> None:
        held: dict[int, Samples] = {}
        for reader in self._readers:
            reader.look_after(ending=ending)
            samples, lost = reader.take()
            held.update(samples)
            for missing in lost:
                self._lines.write("missing", missing)
        if held and self._chunks is not None:
            self._chunks.write(held)
        for states in self._state_readers:
            self._write_states(states)

    def _write_states(self, reader: StateReader) -> None:
        if reader.first is None and reader.readable is not None:
            reader.first = self._devices
            self._devices += len(reader.readable)
            for device in reader.readable:
                self._lines.write("conditions", device)
            if reader.fault is not None:
                self._lines.write("missing", missing_of("sampler", "state of the devices", reader.fault))
        held = reader.take()
        if held and reader.first is not None:
            if self._states is None:
                self._states = Chunks(self._order.raw, self._order.process, energy.CONDITIONS)
            self._states.write({reader.first + place: columns for place, columns in held.items()})

    def _end(self, reason: str) -> None:
        """Write the last event; on a full disk some samples are dropped for it."""
        try:
            self._write_end(reason)
        except OSError:
            with suppress(OSError):
                if self._chunks is not None:
                    self._chunks.give_up_some()
                self._write_end(reason)

    def _write_end(self, reason: str) -> None:
        samples = self._chunks.samples if self._chunks is not None else 0
        late = max((reader.late for reader in self._readers), default=0)
        self._lines.write("ended", energy.Ended(reason=reason, at_s=time.monotonic(), samples=samples, late=late))


def _finish(readers: Sequence[Reader | StateReader], limit_s: float) -> None:
    """Let all readers read for the last time."""
    deadline_s = time.monotonic() + limit_s
    for reader in readers:
        reader.end()
    for reader in readers:
        reader.finished(max(0.0, deadline_s - time.monotonic()))


def sample(order: Order) -> None:
    """Read a node's sensors until its run ends, with low priority and on any CPU."""
    with suppress(OSError):
        os.nice(NICENESS)
    with suppress(OSError):
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
    Sampling(order).run()
