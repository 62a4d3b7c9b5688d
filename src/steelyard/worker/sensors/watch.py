"""Start the sampler for a run, request readings at the edges of windows, and end it.

Nothing here fails or delays a run: problems are recorded in the sensor files.
"""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from steelyard.contracts import energy
from steelyard.worker.measure import clock
from steelyard.worker.measure.environment import node_name
from steelyard.worker.sensors.files import Lines
from steelyard.worker.sensors.find import OPEN_LIMIT_S, missing_of, possible
from steelyard.worker.sensors.sampler import END, MARK, NOTHING_FOUND, READY, Order

if TYPE_CHECKING:
    from collections.abc import Mapping

    from steelyard.contracts.spec import RunSpec

STOP_S = 2.0
LOOK_AGAIN_S = 0.05
ROOT = Path("/")
# Never wait, and survive a sampler that has ended.
_NO_WAIT = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
# Variables that tell the vendors' libraries which devices belong to the job, in the order of its local ranks.
CUDA, ROCR, HIP, ZE = "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"
# Numerical libraries of a backend must not start threads that they do not need.
_FEW_THREADS = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
# Do not import modules from the run's folder; Python 3.10 ignores this.
_OWN_MODULES = {"PYTHONSAFEPATH": "1"}


class Watch:
    """The sensors of this process's node. Only the first process of a node reads them."""

    def __init__(self, spec: RunSpec, raw: Path, *, node: int | None = None) -> None:
        """`node`: the number of a program's node; None: this process is a rank."""
        self._spec = spec
        self._raw = raw
        rank = _count(os.environ, "RANK", 0)
        # Without information on nodes assume one: several samplers would count the same energy.
        local = _count(os.environ, "LOCAL_RANK", rank)
        self._leads = local == 0
        self._alone = _local_ranks(os.environ) == 1
        # Ranks are numbered node by node.
        self._number = max(0, rank - local) if node is None else node
        self._rested = raw / f"rested-{self._number:05d}"
        # A simulated job has its own sensors, which are read on its virtual clock.
        self._wanted = spec.energy.watch and spec.device_family != "sim"
        self._process: subprocess.Popen[bytes] | None = None
        self._bell: socket.socket | None = None
        self._held = False
        self._ready_s: float | None = None
        self._rested_s: float | None = None

    @property
    def sampler(self) -> int | None:
        """The number of the process that reads; None: there is none."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start to read the sensors, if there are any, and wait for the idle baseline if requested.

        Must be called before the device is used.
        """
        if not self._wanted:
            return
        # A job must not fail because its energy cannot be measured.
        with suppress(Exception):
            self._held = device_is_held()
            names, missing = possible(ROOT)
            if self._leads and names:
                self._launch()
            elif self._leads:
                self._write_missing(missing)
            if names and self._spec.energy.idle_s:
                self._rest()

    def reads(self, timeout_s: float) -> bool:
        """Whether every channel found is being read; waits up to `timeout_s` unless the sampler has ended."""
        if self._bell is None or self._ready_s is not None:
            return self._ready_s is not None
        poll = select.poll()
        poll.register(self._bell, select.POLLIN)
        with suppress(OSError):
            # A negative timeout would wait forever.
            if poll.poll(1000 * max(0.0, timeout_s)):
                data = self._bell.recv(READY.size, socket.MSG_DONTWAIT)
                if len(data) == READY.size:
                    self._ready_s = READY.unpack(data)[0] - clock.START_S
        return self._ready_s is not None

    def idle(self, touched_s: float | None) -> tuple[float, float] | None:
        """Return the window in which every channel was read and no device of this node was used, or None.

        `touched_s` is when this process first used its device. For other processes of the node this is known only if
        they waited for the baseline. A process that has already run a job has no idle window.
        """
        if self._held:
            return None
        self.reads(0.0)
        end_s = touched_s if self._alone else self._rested_s
        if self._ready_s is None or end_s is None or end_s <= self._ready_s:
            return None
        return self._ready_s, end_s

    def mark(self) -> None:
        """Request an immediate reading at the edge of a window. Never waits; a full pipe needs no more requests."""
        if self._bell is not None:
            with suppress(OSError):
                self._bell.send(MARK, _NO_WAIT)

    def stop(self) -> None:
        """Take a last reading and end the sampler, within a bounded time. Without its last event it was killed."""
        if self._leads:
            with suppress(OSError):
                self._rested.unlink(missing_ok=True)
        if self._process is None or self._bell is None:
            return
        with suppress(OSError):
            self._bell.send(END, _NO_WAIT)
        with suppress(OSError):
            # In case there was no room for the message.
            self._bell.shutdown(socket.SHUT_WR)
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            # A hanging driver can block even a killed process; do not wait for it.
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_S / 4)
        self._bell.close()
        self._bell = None

    def _launch(self) -> None:
        order = self._order()
        command = [
            sys.executable,
            "-m",
            "steelyard.worker.sensors",
            f"--node={order.node}",
            f"--process={order.process}",
            f"--period={order.period_s!r}",
            f"--zero={order.zero_s!r}",
            f"--parent={order.parent}",
            f"--root={order.root}",
            *(["--random-phase"] if order.random_phase else []),
        ]
        # With `=` and `--`: values from outside may look like options.
        command += [*(f"--device={device}" for device in order.devices), "--", str(order.raw)]
        added = {**os.environ, **_FEW_THREADS, **_OWN_MODULES}
        own, theirs = socket.socketpair()
        with own, theirs:
            try:
                self._process = subprocess.Popen(command, stdin=theirs.fileno(), env=added)
            except OSError as error:
                self._write_missing([missing_of("sampler", "sensor", error)])
                return
            self._bell = own.dup()

    def _order(self) -> Order:
        asked = self._spec.energy
        return Order(
            raw=self._raw,
            node=node_name(),
            process=self._number,
            period_s=asked.period_s,
            zero_s=clock.START_S,
            parent=os.getpid(),
            random_phase=asked.random_phase,
            root=ROOT,
            devices=devices_of(self._spec, os.environ),
        )

    def _write_missing(self, missing: list[energy.Missing]) -> None:
        """Record why there is nothing to read."""
        lines = Lines(self._raw, self._number)
        lines.write("sampler", self._order().description())
        for one in missing:
            lines.write("missing", one)
        lines.write("ended", energy.Ended(reason=NOTHING_FOUND, at_s=time.monotonic(), samples=0))
        lines.close()

    def _rest(self) -> None:
        """Wait for the baseline, if any; the other processes of the node wait for the first."""
        limit_s = time.monotonic() + OPEN_LIMIT_S + STOP_S
        if not self._leads:
            limit_s += self._spec.energy.idle_s
            while not self._rested.exists() and time.monotonic() < limit_s:
                time.sleep(LOOK_AGAIN_S)
            return
        if not self._held and self.reads(limit_s - time.monotonic()) and self._ready_s is not None:
            time.sleep(max(0.0, self._ready_s + self._spec.energy.idle_s - clock.now()))
        self._rested_s = clock.now()
        # Without it the others wait until their limit.
        with suppress(OSError):
            self._rested.touch()


def devices_of(spec: RunSpec, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the accelerators of this node's ranks, as numbers or UUIDs; empty: none or unknown.

    If each rank sees only its own device, the first rank cannot know the others.
    """
    if spec.device_family == "cpu":
        return ()
    ranks = _local_ranks(environ)
    seen = _seen(environ)
    if spec.program is not None:
        # It starts its ranks itself: any device that it sees may be its own.
        return tuple(seen or ())
    if seen is None:
        return tuple(str(number) for number in range(ranks))
    return tuple(seen[:ranks]) if ranks <= len(seen) else ()


def device_is_held() -> bool:
    """Whether this process has already opened a device: a job ran in it before."""
    torch = sys.modules.get("torch")
    asked = (getattr(getattr(torch, name, None), "is_initialized", None) for name in ("cuda", "xpu"))
    return any(is_initialized is not None and is_initialized() for is_initialized in asked)


def _seen(environ: Mapping[str, str]) -> list[str] | None:
    """Return the devices that the variables select, in the job's order; None: all; empty: they contradict each other.

    A scheduler may set all of them to the same value. If they differ, HIP counts among those that ROCR selects and
    uses CUDA's variable as its own.
    """
    words = {
        name: [word.strip() for word in environ[name].split(",") if word.strip()]
        for name in (CUDA, ROCR, HIP, ZE)
        if name in environ
    }
    if not words:
        return None
    first = next(iter(words.values()))
    if all(other == first for other in words.values()):
        return first
    if ROCR not in words:
        return first if HIP not in words or words.get(CUDA, words[HIP]) == words[HIP] else []
    inner, outer = words.get(HIP, words.get(CUDA)), words[ROCR]
    if inner is None or inner == outer:
        return outer
    places = [int(word) if word.isascii() and word.isdigit() else len(outer) for word in inner]
    return [outer[place] for place in places] if all(place < len(outer) for place in places) else []


def _local_ranks(environ: Mapping[str, str]) -> int:
    return _count(environ, "LOCAL_WORLD_SIZE", _count(environ, "WORLD_SIZE", 1))


def _count(environ: Mapping[str, str], name: str, otherwise: int) -> int:
    """Return an environment variable as a number; one that is not a number counts as not set."""
    word = environ.get(name, "").strip()
    return int(word) if word.isascii() and word.isdigit() and len(word) < 10 else otherwise
