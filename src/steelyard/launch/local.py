"""LocalLauncher: runs a worker on this machine as processes that cannot outlive us. Knows no results.

One process is started directly; more are started by torchrun, which gives each its rank.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import secrets
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from steelyard import hostinfo
from steelyard.contracts import observe
from steelyard.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from steelyard.contracts.spec import RunSpec

PROGRESS_EVERY_S = 0.2
GRACE_S = 3.0
ROUNDS = 50
LOOK_AGAIN_S = 0.01
# In the environment of everything a launch starts, however it is started: torchrun gives its children sessions of
# their own, so that no process group holds them all.
MARK = "STEELYARD_LAUNCH"
ROOT = Path("/")
TORCHRUN_LOGS = "torchrun"
RANK_VARIABLES = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"}
PROCESSES_PER_CPU = 32


class LocalLauncher:
    """One run at a time, in a process group of its own."""

    name = "local"

    def command(self, spec: RunSpec, raw: Path) -> list[str]:
        """What is started. The worker reads its spec from `raw` and writes there.

        `-P`: without it Python would import from the current directory first, and a study somebody sent us would
        run whatever `numpy.py` lies beside it.
        """
        python = [sys.executable, "-P", "-m"]
        worker = [*python, "steelyard.worker", str(raw), "--lifeline"]
        if spec.processes == 1:
            return worker
        # `--standalone`: a meeting point on a free port of this machine. Without a place for its own logs torchrun
        # would leave a directory in /tmp on every start.
        torchrun = [*python, "torch.distributed.run", "--standalone", f"--nproc-per-node={spec.ranks}"]
        return [*torchrun, f"--log-dir={raw / TORCHRUN_LOGS}", "--no-python", *worker]

    def environment(self, spec: RunSpec) -> dict[str, str]:
        """Variables that are added to ours; what the user has set stays."""
        added = {"PYTHONSAFEPATH": "1"}
        if spec.threads is not None:
            added["OMP_NUM_THREADS"] = str(spec.threads)
        if spec.processes > 1:
            # Ranks share the CPUs; torchrun would give each one thread and say so on every start.
            share = max(1, len(os.sched_getaffinity(0)) // spec.ranks)
            added.setdefault("OMP_NUM_THREADS", os.environ.get("OMP_NUM_THREADS", str(share)))
            # All ranks are here; a host name that resolves to nowhere must not matter.
            added["GLOO_SOCKET_IFNAME"] = os.environ.get("GLOO_SOCKET_IFNAME", "lo")
        return added

    def admit(self, spec: RunSpec) -> None:
        """InputError for a run that cannot be made here.

        A study may come from anybody: it is not to start more processes than a machine like this can bear.
        """
        wanted = spec.processes * (1 + spec.loader.workers)
        bearable = PROCESSES_PER_CPU * (os.cpu_count() or 1)
        if wanted > bearable:
            raise InputError(
                f"{spec.ranks} ranks with {spec.loader.workers} loader workers each are {wanted} processes",
                next_step=f"use at most {bearable} on this machine",
            )

    def inherited(self) -> dict[str, str]:
        """What a run gets of our environment: all but the place in another job that we may have been started in."""
        return {name: value for name, value in os.environ.items() if name not in RANK_VARIABLES}

    def end(self, process: subprocess.Popen[bytes], mark: str, *, ended: bool) -> None:
        """Leave nothing of a launch running: ask first, then insist. `ended`: its first process has ended by itself.

        The group is signalled before its leader is reaped: until then nobody else can be given its number.
        """
        since = _start_ticks(Path(f"/proc/{process.pid}"))
        if not ended:
            _signal_group(process, signal.SIGTERM)
            _ends_within(process, GRACE_S)
        _signal_group(process, signal.SIGKILL)
        process.wait()
        if process.stdin is not None:
            process.stdin.close()
        # A process may start another while we look; nothing can after a look that found nothing.
        for _ in range(ROUNDS):
            left, starting = _find_marked(mark, since)
            if not left and not starting:
                return
            for number in left:
                _kill(number)
            if not left:
                time.sleep(LOOK_AGAIN_S)

    def run(self, spec: RunSpec, raw: Path, tick: Callable[[], None]) -> observe.Launch:
        """Start, wait, and end the worker whatever happens to us. `tick` is called now and then meanwhile."""
        self.admit(spec)
        command, mark = self.command(spec, raw), secrets.token_hex(16)
        started_at = dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds")
        kills = _oom_kills()
        begin_s = time.monotonic()
        with (raw / observe.WORKER_LOG).open("wb") as log, _orders_held() as orders:
            # Our end of its standard input is the lifeline: the system closes it when we die, however we die.
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**self.inherited(), **self.environment(spec), MARK: mark},
            )
            ended = False
            try:
                ended = _wait(process, spec.time_limit_s, tick, orders)
            finally:
                self.end(process, mark, ended=ended)
                shutil.rmtree(raw / TORCHRUN_LOGS, ignore_errors=True)
        return observe.Launch(
            launcher=self.name,
            host=socket.gethostname(),
            command=tuple(command),
            started_at=started_at,
            wall_s=time.monotonic() - begin_s,
            exit_code=process.returncode if ended else None,
            limit_hit=not ended and not orders,
            oom_kills=max(0, _oom_kills() - kills),
        )


@contextlib.contextmanager
def _orders_held() -> Iterator[list[int]]:
    """The orders to end that come meanwhile; the first is carried out afterwards.

    A handler that raises could do so at any place, also where a process has just been started, or is being ended.
    """
    orders: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM) if threading.current_thread() is threading.main_thread() else ()
    before = {
        number: handler for number in numbers if (handler := signal.getsignal(number)) not in (signal.SIG_IGN, None)
    }
    for number in before:
        signal.signal(number, lambda number, _frame: orders.append(number))
    try:
        yield orders
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if orders:
            signal.raise_signal(orders[0])


def _wait(process: subprocess.Popen[bytes], limit_s: float | None, tick: Callable[[], None], orders: list[int]) -> bool:
    """Wait for the end; False when the limit or an order to end came first."""
    deadline_s = None if limit_s is None else time.monotonic() + limit_s
    while True:
        wait_s = PROGRESS_EVERY_S
        if deadline_s is not None:
            wait_s = min(wait_s, max(0.0, deadline_s - time.monotonic()))
        if _ends_within(process, wait_s):
            return True
        if orders or (deadline_s is not None and time.monotonic() >= deadline_s):
            return False
        tick()


def _ends_within(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Wait without reaping. A process handle wakes us at the very end of the worker; Popen.wait would poll."""
    handle = os.pidfd_open(process.pid)
    try:
        return bool(select.select([handle], [], [], seconds)[0])
    finally:
        os.close(handle)


def _kill(number: int) -> None:
    """Kill a process that is not our child, and wait until it is gone."""
    with contextlib.suppress(ProcessLookupError):
        handle = os.pidfd_open(number)
        try:
            signal.pidfd_send_signal(handle, signal.SIGKILL)
            select.select([handle], [], [], 1.0)
        finally:
            os.close(handle)


def _signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def _find_marked(mark: str, since: int) -> tuple[list[int], bool]:
    """Living processes that were started, by whatever way, with this mark; and whether one is at its very start.

    A process that is just changing its program shows no variables for a moment. So does one that has none, and is not
    ours to wait for if it is older than the launch.
    """
    wanted, found, starting = f"{MARK}={mark}".encode(), [], False
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                variables = (entry / "environ").read_bytes()
                if wanted in variables.split(b"\0"):
                    found.append(int(entry.name))
                elif not variables and _start_ticks(entry) >= since:
                    # Threads of the system and the dead have no program: this raises.
                    starting = bool((entry / "exe").readlink()) or starting
    return found, starting


def _start_ticks(process: Path) -> int:
    """When it was forked, by the system's clock; from a line whose second word may hold blanks."""
    return int((process / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[19])


def _oom_kills() -> int:
    """Processes killed so far by the memory limit of our own control group."""
    for group in hostinfo.control_groups("memory", ROOT):
        text = hostinfo.read_text(group / "memory.events") or hostinfo.read_text(group / "memory.oom_control") or ""
        return sum(int(words[1]) for line in text.splitlines() if (words := line.split())[:1] == ["oom_kill"])
    return 0
