"""LocalLauncher: run a worker on this machine as processes that cannot outlive us.

One process is started directly; more are started by torchrun, which gives each its rank.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import math
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steelyard import hostinfo, nofollow
from steelyard.contracts import observe, threads
from steelyard.contracts.wrap import END_PATTERN
from steelyard.errors import InputError
from steelyard.results.store import record_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from steelyard.contracts.spec import RunSpec

PROGRESS_EVERY_S = 0.2
GRACE_S = 3.0
PROGRAM_GRACE_S = 15.0
"""For a program that was told to end; its supervisor kills it within 10 s."""
SUPERVISOR_LATE_S = 60
"""For the supervisor to start a program, and to end it at its limit."""
# What the supervisor of a program is told on the lifeline.
ORDERS = {signal.SIGINT: b"I", signal.SIGTERM: b"T"}
LIMIT = b"L"
ROUNDS = 50
LOOK_AGAIN_S = 0.01
KILL_LIMIT_S = 5.0
"""For processes to be gone that were killed: the device of one may take seconds to release its memory."""
# Marks the environment of every process of a launch: torchrun starts its children in new sessions, thus no process
# group has them all.
MARK = "STEELYARD_LAUNCH"
ROOT = Path("/")
TORCHRUN_LOGS = "torchrun"
RANK_VARIABLES = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"}
PROCESSES_PER_CPU = 32


class Child(subprocess.Popen[bytes]):
    """A process whose end is awaited without reaping it: until then its number is not used again.

    A thread waits. A handle of the process (pidfd) would need none, but the kernel of RHEL 8 is older than such
    handles, and some builds of Python, such as that of conda, have no function for them.
    """

    def __init__(self, command: list[str], **options: Any) -> None:
        super().__init__(command, **options)
        self._ended = threading.Event()
        threading.Thread(target=self._await_end, daemon=True).start()

    def ends_within(self, seconds: float) -> bool:
        """Whether it ends within this time; return as soon as it does."""
        return self._ended.wait(seconds)

    def _await_end(self) -> None:
        # It may be reaped meanwhile.
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        self._ended.set()


class LocalLauncher:
    """One run at a time, in a process group of its own."""

    name = "local"

    def __init__(self, *, show: bool = False) -> None:
        """`show`: a program has our terminal, and its end is its own even if a signal came first."""
        self.show = show
        self.signals: list[int] = []
        """Signals to end that were passed on to a program that was shown."""
        self.once_started: Callable[[], None] | None = None
        """Called once, when the first run has been going on for a moment."""

    def shows(self, spec: RunSpec) -> bool:
        """Whether a run has our terminal."""
        return self.show and spec.program is not None

    def command(self, spec: RunSpec, raw: Path) -> list[str]:
        """Return the command line. The worker reads its spec from `raw` and writes there.

        Without `-P` Python would import from the current directory first: a study from somebody else would run any
        `numpy.py` beside it.
        """
        python = [sys.executable, "-P", "-m"]
        worker = [*python, "steelyard.worker", str(raw)]
        if self.shows(spec):
            return worker
        worker.append("--lifeline")
        if spec.processes == 1:
            return worker
        # `--standalone`: rendezvous on a free port of this machine. Without a directory for its logs torchrun would
        # create one in /tmp on every start.
        torchrun = [*python, "torch.distributed.run", "--standalone", f"--nproc-per-node={spec.devices}"]
        return [*torchrun, f"--log-dir={raw / TORCHRUN_LOGS}", "--no-python", *worker]

    def environment(self, spec: RunSpec) -> dict[str, str]:
        """Return the variables to add to our environment; what the user has set stays."""
        # A program imports what it would without us.
        added = {} if spec.program is not None else {"PYTHONSAFEPATH": "1"}
        added |= self.threads(spec)
        if spec.processes > 1:
            # All ranks are here; a host name that cannot be resolved must not matter.
            added["GLOO_SOCKET_IFNAME"] = os.environ.get("GLOO_SOCKET_IFNAME", "lo")
        return added

    def threads(self, spec: RunSpec) -> dict[str, str]:
        """Return the variables that set the threads of a rank."""
        if spec.threads is None and (spec.program is not None or spec.device_family == "sim"):
            return {}
        ranks, cpus = self.shared(spec)
        return threads.variables(spec.threads, ranks, os.environ, cpus)

    def shared(self, spec: RunSpec) -> tuple[int, int | None]:
        """Return how many ranks share the CPUs of a node, and which CPUs; None: all that a rank may use."""
        return spec.most_devices or spec.devices, None

    def admit(self, spec: RunSpec) -> None:
        """Raise InputError for a run that would start too many processes on this machine.

        A study may come from anybody.
        """
        wanted = spec.processes * (1 + spec.loader.workers)
        limit = PROCESSES_PER_CPU * (os.cpu_count() or 1)
        if wanted > limit:
            raise InputError(
                f"{spec.devices} devices with {spec.loader.workers} loader workers each are {wanted} processes",
                next_step=f"use at most {limit} on this machine",
            )

    def inherited(self) -> dict[str, str]:
        """Return our environment without the rank variables of a job that we may have been started in."""
        return {name: value for name, value in os.environ.items() if name not in RANK_VARIABLES}

    def end(self, process: Child, mark: str, *, ended: bool) -> None:
        """Leave no process of a launch running: SIGTERM first, then SIGKILL. `ended`: it has ended by itself.

        The group is signalled before its leader is reaped: until then its number cannot be reused.
        """
        since = _start_ticks(Path(f"/proc/{process.pid}"))
        if not ended:
            _signal_group(process, signal.SIGTERM)
            process.ends_within(GRACE_S)
        _signal_group(process, signal.SIGKILL)
        process.wait()
        if process.stdin is not None:
            process.stdin.close()
        # A process may start another while we look; none is left once a round finds nothing.
        for _ in range(ROUNDS):
            left, starting = _find_marked(mark, since)
            if not left and not starting:
                return
            _kill(left)
            if not left:
                time.sleep(LOOK_AGAIN_S)

    def run(self, spec: RunSpec, raw: Path, tick: Callable[[], None]) -> observe.Launch:
        """Start a worker, wait for it, and end it whatever happens to us. `tick` is called now and then meanwhile."""

        def look() -> None:
            if self.once_started is not None:
                first, self.once_started = self.once_started, None
                first()
            tick()

        self.admit(spec)
        command, mark = self.command(spec, raw), secrets.token_hex(16)
        started_at = dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds")
        kills = _oom_kills()
        begin_s = time.monotonic()
        shown = self.shows(spec)
        with nofollow.open_own(raw / observe.WORKER_LOG, "wb") as log, _signals_held(raised=not shown) as signals:
            own = {MARK: mark, observe.SPEC_VARIABLE: hashlib.sha256(record_text(spec).encode()).hexdigest()}
            variables = {**self.inherited(), **self.environment(spec), **own}
            if shown:
                process = _start_shown(command, {**os.environ, **own})
            else:
                # Our end of its standard input is the lifeline: the system closes it when we die, for whatever reason.
                process = Child(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    env=variables,
                )
            ended = limit_hit = False
            try:
                if spec.program is None:
                    ended = _wait(process, spec.time_limit_s, look, signals)
                    limit_hit = not ended and not signals
                else:
                    patience_s = math.inf if shown else PROGRAM_GRACE_S
                    ended, limit_hit = _wait_for_program(process, spec.time_limit_s, look, signals, patience_s)
            finally:
                self.end(process, mark, ended=ended)
                shutil.rmtree(raw / TORCHRUN_LOGS, ignore_errors=True)
        if shown and signals and not any(raw.glob(END_PATTERN)):
            # It came before the program was there to take it.
            signal.raise_signal(signals[0])
        self.signals += signals if shown else []
        return observe.Launch(
            launcher=self.name,
            host=socket.gethostname(),
            command=tuple(command),
            started_at=started_at,
            wall_s=time.monotonic() - begin_s,
            exit_code=process.returncode if ended else None,
            limit_hit=limit_hit,
            oom_kills=max(0, _oom_kills() - kills),
        )


def _start_shown(command: list[str], variables: dict[str, str]) -> Child:
    """Start the worker of a program that has our terminal, and everything else that we were given, as its own.

    It stays in our process group, to which the terminal sends its signals. The lifeline is a pipe of its own.
    """
    reading, writing = os.pipe()
    os.set_inheritable(reading, True)
    try:
        process = Child([*command, "--lifeline-from", str(reading), "--show"], env=variables, close_fds=False)
    finally:
        os.close(reading)
    process.stdin = os.fdopen(writing, "wb", buffering=0)
    return process


@contextlib.contextmanager
def _signals_held(*, raised: bool = True) -> Iterator[list[int]]:
    """Hold back signals to end that arrive meanwhile; the first is raised afterwards, unless it was passed on.

    A handler that raises could interrupt anything, even the start or the end of a process.
    """
    signals: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM) if threading.current_thread() is threading.main_thread() else ()
    before = {
        number: handler for number in numbers if (handler := signal.getsignal(number)) not in (signal.SIG_IGN, None)
    }
    for number in before:
        signal.signal(number, lambda number, _frame: signals.append(number))
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if signals and raised:
            signal.raise_signal(signals[0])


def _wait(process: Child, limit_s: float | None, tick: Callable[[], None], signals: list[int]) -> bool:
    """Wait for the end of a process; False if the time limit or a signal came first."""
    deadline_s = None if limit_s is None else time.monotonic() + limit_s
    while True:
        wait_s = PROGRESS_EVERY_S
        if deadline_s is not None:
            wait_s = min(wait_s, max(0.0, deadline_s - time.monotonic()))
        if process.ends_within(wait_s):
            return True
        if signals or (deadline_s is not None and time.monotonic() >= deadline_s):
            return False
        tick()


def _wait_for_program(
    process: Child,
    limit_s: float | None,
    tick: Callable[[], None],
    signals: list[int],
    patience_s: float,
) -> tuple[bool, bool]:
    """Pass signals on to a program; return whether it ended by itself, and whether we ended it at its limit.

    `patience_s`: how long it may take to end after a signal. Its supervisor keeps the limit, from the start of the
    program; here it only keeps a supervisor that does not from running forever.
    """
    told, limit_hit, until_s = 0, False, math.inf
    deadline_s = math.inf if limit_s is None else time.monotonic() + limit_s + SUPERVISOR_LATE_S
    while True:
        next_s = min(deadline_s, until_s) - time.monotonic()
        if process.ends_within(min(PROGRESS_EVERY_S, max(0.0, next_s))):
            return not limit_hit, limit_hit
        for number in signals[told:]:
            _tell(process, ORDERS[signal.Signals(number)])
            until_s = min(until_s, time.monotonic() + patience_s)
        told = len(signals)
        if time.monotonic() >= deadline_s:
            limit_hit, deadline_s = True, math.inf
            _tell(process, LIMIT)
            until_s = min(until_s, time.monotonic() + PROGRAM_GRACE_S)
        if time.monotonic() >= until_s:
            return False, limit_hit
        tick()


def _tell(process: subprocess.Popen[bytes], order: bytes) -> None:
    # It may have ended.
    with contextlib.suppress(BrokenPipeError):
        if process.stdin is not None:
            os.write(process.stdin.fileno(), order)


def _kill(numbers: list[int]) -> None:
    """Kill processes that are not our children, and wait until they have released what they held."""
    for number in numbers:
        with contextlib.suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)
    until_s = time.monotonic() + KILL_LIMIT_S
    while any(map(_is_alive, numbers)) and time.monotonic() < until_s:
        time.sleep(LOOK_AGAIN_S)


def _signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        # A worker in our own group is told alone.
        if os.getpgid(process.pid) == os.getpgid(0):
            os.kill(process.pid, number)
        else:
            os.killpg(process.pid, number)


def _find_marked(mark: str, since: int) -> tuple[list[int], bool]:
    """Find living processes that were started with this mark, and whether one is just starting.

    A process that is changing its program shows no variables for a moment. A process without variables looks the
    same; it is not ours if it is older than the launch.
    """
    wanted, found, starting = f"{MARK}={mark}".encode(), [], False
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                variables = (entry / "environ").read_bytes()
                if wanted in variables.split(b"\0"):
                    found.append(int(entry.name))
                elif not variables and _start_ticks(entry) >= since:
                    # Kernel threads and dead processes have no program: this raises.
                    starting = bool((entry / "exe").readlink()) or starting
    return found, starting


def _is_alive(number: int) -> bool:
    try:
        return _stat(Path(f"/proc/{number}"))[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _start_ticks(process: Path) -> int:
    """Return the start time of a process in clock ticks."""
    return int(_stat(process)[19])


def _stat(process: Path) -> list[str]:
    """Return what the system tells about a process, from its state on; its name before that may hold blanks."""
    return (process / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()


def _oom_kills() -> int:
    """Count the processes killed until now by the memory limit of our own control group."""
    for group in hostinfo.control_groups("memory", ROOT):
        text = hostinfo.read_text(group / "memory.events") or hostinfo.read_text(group / "memory.oom_control") or ""
        return sum(int(words[1]) for line in text.splitlines() if (words := line.split())[:1] == ["oom_kill"])
    return 0
