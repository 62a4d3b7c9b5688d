"""Runs a worker on this machine as a process that cannot outlive us. Knows processes, not results."""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import select
import signal
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from steelyard.contracts import observe

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from steelyard.contracts.spec import RunSpec

PROGRESS_EVERY_S = 0.2
GRACE_S = 3.0


class LocalLauncher:
    """One worker process at a time, in a process group of its own."""

    name = "local"

    def command(self, raw: Path) -> list[str]:
        """What is started. The worker reads its spec from `raw` and writes there.

        `-P`: without it Python would import from the current directory first, and a study somebody sent us would
        run whatever `numpy.py` lies beside it.
        """
        return [sys.executable, "-P", "-m", "steelyard.worker", str(raw), "--lifeline"]

    def run(self, spec: RunSpec, raw: Path, tick: Callable[[], None]) -> observe.Launch:
        """Start, wait, and end the worker whatever happens to us. `tick` is called now and then meanwhile."""
        command = self.command(raw)
        started_at = dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds")
        begin_s = time.monotonic()
        with (raw / observe.WORKER_LOG).open("wb") as log:
            # Our end of its standard input is the lifeline: the system closes it when we die, however we die.
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
        in_time = False
        try:
            in_time = _wait(process, spec.time_limit_s, tick)
        finally:
            _end(process, ended=in_time)
        return observe.Launch(
            launcher=self.name,
            host=socket.gethostname(),
            command=tuple(command),
            started_at=started_at,
            wall_s=time.monotonic() - begin_s,
            exit_code=process.returncode if in_time else None,
            limit_hit=not in_time,
        )


def _wait(process: subprocess.Popen[bytes], limit_s: float | None, tick: Callable[[], None]) -> bool:
    """Wait for the end; False when the limit came first."""
    deadline_s = None if limit_s is None else time.monotonic() + limit_s
    while True:
        wait_s = PROGRESS_EVERY_S
        if deadline_s is not None:
            wait_s = min(wait_s, max(0.0, deadline_s - time.monotonic()))
        if _ends_within(process, wait_s):
            return True
        if deadline_s is not None and time.monotonic() >= deadline_s:
            return False
        tick()


def _ends_within(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Wait without reaping. A process handle wakes us at the very end of the worker; Popen.wait would poll."""
    handle = os.pidfd_open(process.pid)
    try:
        return bool(select.select([handle], [], [], seconds)[0])
    finally:
        os.close(handle)


def _end(process: subprocess.Popen[bytes], *, ended: bool) -> None:
    """Leave nothing of the worker's group running: ask first, then insist.

    The group is signalled before its leader is reaped: until then nobody else can be given its number.
    """
    if not ended:
        _signal_group(process, signal.SIGTERM)
        _ends_within(process, GRACE_S)
    _signal_group(process, signal.SIGKILL)
    process.wait()
    if process.stdin is not None:
        process.stdin.close()


def _signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)
