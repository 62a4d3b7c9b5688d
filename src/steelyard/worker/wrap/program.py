"""Run a person's program as it is: start it, pass its output on, measure it from outside, and leave nothing running.

The run is over when the command itself ends, as for a shell. Processes that it leaves behind may finish within
`LINGER_S`, such as a `tee` that still writes; then they are killed, because nothing of a run may disturb the next.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import tempfile
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steelyard import nofollow
from steelyard.contracts import observe, wrap
from steelyard.contracts.base import to_json_object
from steelyard.contracts.spec import Energy
from steelyard.errors import SteelyardError
from steelyard.worker.measure import clock
from steelyard.worker.sensors.watch import Watch
from steelyard.worker.wrap import second, tree
from steelyard.worker.wrap.output import BoundedLog, ProgramOutput
from steelyard.worker.wrap.place import NodePlace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from steelyard.contracts.spec import RunSpec

INJECT = Path(__file__).parent / "inject"
LINGER_S = 5.0
STOP_S = 30.0
"""For a program that its observers have ended, until it is told to end."""
KILL_S = 10.0
"""For a program that was told to end, until it is killed."""
LOOK_EVERY_S = 1.0
SECOND_PASS_S = 120.0
"""More than the program took, for the few but slower steps of the second pass."""
MAX_WORD_BYTES = 100
NOT_STARTED = {PermissionError: 126, FileNotFoundError: 127}
"""Exit codes of a shell for a command that it cannot start."""
# What a launcher may ask for on the lifeline.
LIMIT = ord("L")
_PASSED_ON = {ord("I"): signal.SIGINT, ord("T"): signal.SIGTERM}
_HELD = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGWINCH, signal.SIGCHLD)


class StartError(SteelyardError):
    """The command cannot be started."""

    def __init__(self, word: str, error: OSError) -> None:
        missing = isinstance(error, FileNotFoundError)
        step = "check its spelling and PATH, or give its path" if missing else "make it a program that may be executed"
        super().__init__(f"{word}: cannot be started: {error.strerror}", next_step=step)
        self.code = NOT_STARTED.get(type(error), 126)


class Supervisor:
    """One run of a program."""

    def __init__(
        self, spec: RunSpec, raw: Path, *, show: bool = False, own_input: bool = False, second_pass: bool = False
    ) -> None:
        """`show`: its output goes to ours, and our terminal is its terminal; `own_input`: our input is its input.

        `second_pass`: this is the second pass, whose output goes to a log of its own.

        A terminal sends its signals to all of a process group. A program that is shown is in our group, so that it gets
        them as it would without us, once. Any other program has a group of its own and gets what we get.
        """
        if spec.program is None:
            raise ValueError("program: missing")
        self._spec = spec
        self._program, self._limit_s = spec.program, spec.time_limit_s
        self.place = NodePlace.read(spec.devices, os.environ)
        self._raw = raw.absolute()
        self._show, self._own_input, self._second = show, own_input, second_pass
        self._again: Supervisor | None = None
        self._watch = Watch(spec, raw, node=self.place.node)
        self._heard, self._bell = os.pipe()
        for handle in (self._heard, self._bell):
            os.set_blocking(handle, False)
        self._process = self._own_kib = 0
        self._direct = dict.fromkeys(_PASSED_ON.values(), 0)
        self._ended_by: wrap.EndedBy | None = None
        self._signalled = False
        self._kill_s = self._stop_s = float("inf")
        self.idle: tuple[float, float] | None = None
        """The window before the program in which the sensors were read."""

    def run(self) -> wrap.ProgramEnd:
        """Run the program to its end and write how it ended; StartError if it cannot be started."""
        tree.adopt_orphans()
        self._watch.start()
        with _signals_to(self._bell):
            try:
                end = self._run()
            finally:
                self._watch.stop()
                tree.kill_below(os.getpid())
                tree.reap()
            done = end.ended_by in ("max_steps", "max_seconds") or (end.ended_by == "itself" and end.exit_code == 0)
            if done and self._program.second_pass and not self._second:
                self._look_again(end.wall_s)
            return end

    def obey(self, orders: bytes) -> None:
        """Take orders of the launcher; called by the thread that listens to it."""
        if self._again is not None:
            self._again.obey(orders)
            return
        with suppress(OSError):
            os.write(self._bell, orders)

    def kill(self) -> None:
        """Leave nothing running: the launcher has gone."""
        tree.kill_below(os.getpid())

    def _run(self) -> wrap.ProgramEnd:
        # Where nothing is shown, our own output is the log already.
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
        own_log = self._show or self._second
        handle = os.open(self._raw / observe.WORKER_LOG, flags, 0o666) if own_log else os.dup(1)
        output = ProgramOutput(BoundedLog(handle), lambda: self.obey(b"\n"), show=self._show)
        self._watch.mark()
        start_s = clock.now()
        self.idle = self._watch.idle(start_s)
        try:
            self._start(output)
        finally:
            for passage in output.passages:
                passage.start()
        self._look_after(output, start_s)
        wall_s = clock.now() - start_s
        self._watch.mark()
        _, status, usage = os.wait4(self._process, 0)
        # No reading belongs to the run any more.
        self._watch.stop()
        self._let_finish(output)
        output.log.finish()
        code = os.waitstatus_to_exitcode(status)
        end = wrap.ProgramEnd(
            exit_code=code if code >= 0 else None,
            signal=-code if code < 0 else None,
            start_s=start_s,
            wall_s=wall_s,
            cpu_s=usage.ru_utime + usage.ru_stime,
            # A process has the largest memory of the one that started it, too.
            peak_rss_bytes=usage.ru_maxrss * 1024.0 if usage.ru_maxrss > self._own_kib else None,
            output_bytes=output.log.total_bytes,
            ended_by=self._find_end(killed=code < 0),
        )
        path = self._raw / wrap.END_PATTERN.replace("*", f"{self.place.node:05d}")
        with nofollow.open_own(path, "w") as file:
            json.dump(to_json_object(end), file)
        return end

    # -- start

    def _start(self, output: ProgramOutput) -> None:
        words = self._program.words(self.place.values())
        out, err = output.entries
        actions: list[tuple[Any, ...]] = [(os.POSIX_SPAWN_DUP2, out, 1), (os.POSIX_SPAWN_DUP2, err, 2)]
        if not self._own_input:
            actions.insert(0, (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0))
        # Python ignores these two, other programs expect them.
        more: dict[str, Any] = {"setsigdef": [signal.SIGPIPE, signal.SIGXFSZ], "file_actions": actions}
        if not self._show:
            more["setpgroup"] = 0
        try:
            if self.place.folder is not None:
                os.chdir(self.place.folder)
        except OSError as error:
            raise StartError(self.place.folder or "", error) from None
        self._own_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        try:
            self._process = os.posix_spawnp(words[0], words, self._environment(), **more)
        except OSError as error:
            raise StartError(words[0], error) from None

    def _environment(self) -> dict[str, str]:
        limits = {"max_steps": self._program.max_steps, "max_seconds": self._program.max_seconds}
        more = {}
        if self._second:
            # Compiled code hides its operators from the counter.
            limits, more = {"second_pass": True}, {"TORCHDYNAMO_DISABLE": "1"}
        return {
            **self.place.environment(str(INJECT)),
            **more,
            "STEELYARD_WRAP": str(self._raw),
            "STEELYARD_WRAP_PID": str(os.getpid()),
            "STEELYARD_WRAP_ZERO": repr(clock.START_S),
            "STEELYARD_WRAP_OPTIONS": json.dumps(limits),
        }

    # -- while it runs

    def _look_after(self, output: ProgramOutput, start_s: float) -> None:
        """Return when the program has ended, but leave it to be waited for."""
        ready = select.poll()
        ready.register(self._heard, select.POLLIN)
        limit_s = float("inf") if self._limit_s is None else start_s + self._limit_s
        ended = False
        while not ended:
            now_s = clock.now()
            next_s = min(limit_s, self._kill_s, self._stop_s, now_s + LOOK_EVERY_S)
            # The end of a child is a signal, too.
            ready.poll(1000 * max(0.0, next_s - now_s))
            # Signals first. One that came to the whole group is here before the launcher passes it on, but perhaps
            # only after the first read has returned.
            heard = self._hear() + self._hear()
            ended = os.waitid(os.P_PID, self._process, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None
            for byte in sorted(heard + (self._hear() if ended else b"")):
                self._take(byte, output)
            if not ended:
                self._check(limit_s)

    def _hear(self) -> bytes:
        try:
            return os.read(self._heard, 4096)
        except BlockingIOError:
            return b""

    def _take(self, byte: int, output: ProgramOutput) -> None:
        """Take a signal that arrived here, by its number, or an order of the launcher, by its letter."""
        if byte == signal.SIGWINCH:
            for passage in output.passages:
                passage.take_over_size()
            tree.tell([self._process], signal.SIGWINCH)
        elif byte == LIMIT:
            self._end("time limit")
        elif byte in self._direct:
            self._signalled = True
            if self._show:
                # It came to the whole group, and from there to the launcher, which passes it on to us again.
                self._direct[signal.Signals(byte)] += 1
            else:
                tree.tell([self._process], signal.Signals(byte))
        elif (order := _PASSED_ON.get(byte)) is not None:
            self._signalled = True
            if self._direct[order]:
                self._direct[order] -= 1
            else:
                tree.tell([self._process], order)

    def _check(self, limit_s: float) -> None:
        """End a program that has reached a limit, and kill one that does not end."""
        now_s = clock.now()
        if now_s >= limit_s:
            self._end("time limit")
        if self._stop_s == float("inf") and nofollow.is_file(self._raw / wrap.STOPPED_FILE):
            self._stop_s = now_s + STOP_S
        if now_s >= self._stop_s and self._kill_s == float("inf"):
            self._end(self._limit_reached())
        if now_s >= self._kill_s:
            tree.tell(self._all(), signal.SIGKILL)
            self._kill_s = now_s + LOOK_EVERY_S

    def _end(self, why: wrap.EndedBy) -> None:
        """Tell the program and all that it started to end. A shell or a launcher may not pass it on."""
        if self._ended_by is None:
            self._ended_by = why
            self._kill_s = clock.now() + KILL_S
            tree.tell(self._all(), signal.SIGTERM)

    def _all(self) -> list[int]:
        return tree.below(os.getpid(), but=self._watch.sampler)

    # -- the second pass

    def _look_again(self, wall_s: float) -> None:
        """Launch the program once more, out of sight, and keep what its ranks count. Whatever happens is no failure."""
        spec = replace(self._spec, energy=Energy(watch=False), time_limit_s=wall_s + SECOND_PASS_S)
        with tempfile.TemporaryDirectory(prefix="steelyard-") as scratch:
            self._again = Supervisor(spec, Path(scratch), second_pass=True)
            try:
                end = self._again.run()
                second.keep(Path(scratch), self._raw, end)
            except (OSError, SteelyardError) as error:
                second.say_why_not(self._raw, str(error))
            finally:
                self._again = None

    # -- after its end

    def _let_finish(self, output: ProgramOutput) -> None:
        until_s = clock.now() + LINGER_S
        ready = select.poll()
        ready.register(self._heard, select.POLLIN)
        while (tree.reap() or output.is_open) and (left_s := until_s - clock.now()) > 0:
            ready.poll(1000 * left_s)
            self._hear()
        tree.kill_below(os.getpid())
        for passage in output.passages:
            passage.finish()

    def _find_end(self, *, killed: bool) -> wrap.EndedBy:
        if self._ended_by is not None:
            return self._ended_by
        if nofollow.is_file(self._raw / wrap.STOPPED_FILE):
            return self._limit_reached()
        return "signal" if killed or self._signalled else "itself"

    def _limit_reached(self) -> wrap.EndedBy:
        """Return the limit at which an observer ended the program."""
        with suppress(OSError), nofollow.open_file(self._raw / wrap.STOPPED_FILE) as file:
            if b"max_seconds" in file.read(MAX_WORD_BYTES):
                return "max_seconds"
        return "max_seconds" if self._program.max_steps is None else "max_steps"


@contextmanager
def _signals_to(bell: int) -> Iterator[None]:
    """Write the numbers of signals to a pipe instead of ending this process. Those that are ignored stay ignored."""
    before = {
        number: handler for number in _HELD if (handler := signal.getsignal(number)) not in (signal.SIG_IGN, None)
    }
    # Only with a handler does the system write to the pipe.
    for number in before:
        signal.signal(number, lambda _number, _frame: None)
    pipe = signal.set_wakeup_fd(bell, warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(pipe)
        for number, handler in before.items():
            signal.signal(number, handler)
