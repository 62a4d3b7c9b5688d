"""Has a node's sensors read while a job runs: starts the sampler, rings it at the edges of windows, ends it.

Knows the process and its pipe. Nothing here fails or holds up a run: what goes wrong is told by the sensor files.
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
# Never wait, and never be killed by a sampler that is gone.
_QUIETLY = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
# By which the makers' libraries are told which devices are the job's, in the order of its local ranks.
CUDA, ROCR, HIP, ZE = "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"
# Numerical libraries that come with a backend must not start threads for work that there is none of.
_FEW_THREADS = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
# A module that lies in the folder of the run is not to be taken for one of ours; Python 3.10 does not know this.
_OWN_MODULES = {"PYTHONSAFEPATH": "1"}


class Watch:
    """The watch over this process's node. Of a node's processes the first keeps it; the others' do nothing."""

    def __init__(self, spec: RunSpec, raw: Path) -> None:
        self._spec = spec
        self._raw = raw
        rank = _count(os.environ, "RANK", 0)
        # Without a word of nodes all ranks are on one: of several samplers each would count the same joules.
        local = _count(os.environ, "LOCAL_RANK", rank)
        self._leads = local == 0
        self._alone = _local_ranks(os.environ) == 1
        # Ranks are counted through node by node.
        self._number = max(0, rank - local)
        self._rested = raw / f"rested-{self._number:05d}"
        # A simulated job has simulated sensors, which are read on its own clock.
        self._wanted = spec.energy.watch and spec.device_family != "sim"
        self._process: subprocess.Popen[bytes] | None = None
        self._bell: socket.socket | None = None
        self._held = False
        self._ready_s: float | None = None
        self._rested_s: float | None = None

    def start(self) -> None:
        """Have the sensors read from now on, where there are any; and wait for the idle baseline that was asked for.

        To be called before the device is touched.
        """
        if not self._wanted:
            return
        # Whatever it is: a job is not to fail because its energy cannot be watched.
        with suppress(Exception):
            self._held = device_is_held()
            names, missing = possible(ROOT)
            if self._leads and names:
                self._launch()
            elif self._leads:
                self._tell(missing)
            if names and self._spec.energy.idle_s:
                self._rest()

    def reads(self, timeout_s: float) -> bool:
        """Whether every channel that was found is being read; waits so long for it, unless the sampler is gone."""
        if self._bell is None or self._ready_s is not None:
            return self._ready_s is not None
        there = select.poll()
        there.register(self._bell, select.POLLIN)
        with suppress(OSError):
            # Less than nothing would be for ever.
            if there.poll(1000 * max(0.0, timeout_s)):
                said = self._bell.recv(READY.size, socket.MSG_DONTWAIT)
                if len(said) == READY.size:
                    self._ready_s = READY.unpack(said)[0] - clock.START_S
        return self._ready_s is not None

    def idle(self, touched_s: float | None) -> tuple[float, float] | None:
        """In which time of the run every channel was read and no device of this node was touched; None: in none.

        `touched_s` is when this process went for its device. When others of the node did is known only where they
        have waited for the baseline. A process that has run a job before has touched it long since.
        """
        if self._held:
            return None
        self.reads(0.0)
        end_s = touched_s if self._alone else self._rested_s
        if self._ready_s is None or end_s is None or end_s <= self._ready_s:
            return None
        return self._ready_s, end_s

    def mark(self) -> None:
        """A window begins or ends: have every channel read at once. Never waits; a full pipe needs no more marks."""
        if self._bell is not None:
            with suppress(OSError):
                self._bell.send(MARK, _QUIETLY)

    def stop(self) -> None:
        """Have a last reading taken and the sampler ended, within a bounded time. Without its word it was killed."""
        if self._leads:
            with suppress(OSError):
                self._rested.unlink(missing_ok=True)
        if self._process is None or self._bell is None:
            return
        with suppress(OSError):
            self._bell.send(END, _QUIETLY)
        with suppress(OSError):
            # Should there have been no room for the word.
            self._bell.shutdown(socket.SHUT_WR)
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            # A driver that hangs can hold even a killed process; we do not wait for it.
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_S / 4)
        self._bell.close()
        self._bell = None

    def _launch(self) -> None:
        order = self._order()
        command = [
            sys.executable, "-m", "steelyard.worker.sensors", f"--node={order.node}", f"--process={order.process}",
            f"--period={order.period_s!r}", f"--zero={order.zero_s!r}", f"--parent={order.parent}",
            f"--root={order.root}", *(["--random-phase"] if order.random_phase else []),
        ]  # fmt: skip
        # With `=` and `--`: what comes from outside may begin as an option does.
        command += [*(f"--device={device}" for device in order.devices), "--", str(order.raw)]
        added = {**os.environ, **_FEW_THREADS, **_OWN_MODULES}
        own, theirs = socket.socketpair()
        with own, theirs:
            try:
                self._process = subprocess.Popen(command, stdin=theirs.fileno(), env=added)
            except OSError as error:
                self._tell([missing_of("sampler", "sensor", error)])
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

    def _tell(self, missing: list[energy.Missing]) -> None:
        """There is nothing to read; the record is to say why."""
        lines = Lines(self._raw, self._number)
        lines.write("sampler", self._order().told())
        for one in missing:
            lines.write("missing", one)
        lines.write("ended", energy.Ended(reason=NOTHING_FOUND, at_s=time.monotonic(), samples=0))
        lines.close()

    def _rest(self) -> None:
        """Wait for the baseline where there is one; the other processes of the node wait for the first."""
        limit_s = time.monotonic() + OPEN_LIMIT_S + STOP_S
        if not self._leads:
            limit_s += self._spec.energy.idle_s
            while not self._rested.exists() and time.monotonic() < limit_s:
                time.sleep(LOOK_AGAIN_S)
            return
        if not self._held and self.reads(limit_s - time.monotonic()) and self._ready_s is not None:
            time.sleep(max(0.0, self._ready_s + self._spec.energy.idle_s - clock.now()))
        self._rested_s = clock.now()
        self._rested.touch()


def devices_of(spec: RunSpec, environ: Mapping[str, str]) -> tuple[str, ...]:
    """The accelerators of this node's ranks, by number or UUID; empty: none, or not known.

    Where each rank was given one device of its own to see, the first rank cannot tell the others'.
    """
    if spec.device_family == "cpu":
        return ()
    ranks = _local_ranks(environ)
    seen = _seen(environ)
    if seen is None:
        return tuple(str(number) for number in range(ranks))
    return tuple(seen[:ranks]) if ranks <= len(seen) else ()


def device_is_held() -> bool:
    """Whether this process has opened a device already: a job ran in it before."""
    torch = sys.modules.get("torch")
    asked = (getattr(getattr(torch, name, None), "is_initialized", None) for name in ("cuda", "xpu"))
    return any(is_initialized is not None and is_initialized() for is_initialized in asked)


def _seen(environ: Mapping[str, str]) -> list[str] | None:
    """The devices that the variables leave, in the job's order; None: all. Empty where they contradict each other.

    A scheduler may set all of them alike. Where they differ, HIP counts among those that ROCR leaves, and takes CUDA's
    variable for its own.
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
    """What is no number is taken as not said: it is not for the watch to refuse a run."""
    word = environ.get(name, "").strip()
    return int(word) if word.isascii() and word.isdigit() and len(word) < 10 else otherwise
