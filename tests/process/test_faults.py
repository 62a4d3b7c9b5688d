"""Every cause that ends a run is recognised, reported once, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from conftest import HANG_S, make_spec, until
from steelyard.contracts import observe
from steelyard.contracts.base import to_json_object
from steelyard.contracts.observe import COMPILING_FILE, Launch, Status
from steelyard.derive.record import derive
from steelyard.errors import SteelyardError
from steelyard.inputs.study import single_run
from steelyard.launch import local
from steelyard.launch.local import LocalLauncher
from steelyard.launch.local_study import run_all
from steelyard.results.store import ResultFolder, record_text
from steelyard.worker.engine import run as engine
from steelyard.worker.engine import watchdog as watching
from steelyard.worker.engine.watchdog import Watchdog
from steelyard.worker.measure import writer
from steelyard.worker.measure.writer import EventLog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from steelyard.contracts.spec import RunSpec

# -- reports of several ranks and torchrun, combined into one status


def word(rank: int, code: str, at_s: float, **evidence: Any) -> Status:
    evidence = {"rank": rank, "where": f"place_{rank}", "at_unix_s": at_s, **evidence}
    return Status(code=code, reason=f"{code} on {rank}", evidence=evidence)  # type: ignore[arg-type]


def follower(rank: int, at_s: float) -> Status:
    return word(rank, "failed", at_s, follows="another rank's end")


def account(*failures: tuple[int, int]) -> str:
    """Return torchrun's output: the failure it saw first comes last."""
    entries = [
        f"[{rank}]:\n  time      : 2026-11-15_05:39:46\n  host      : localhost\n"
        f"  rank      : {rank} (local_rank: {rank})\n  exitcode  : {code} (pid: 6400) \n  error_file: <N/A>\n"
        for rank, code in failures
    ]
    others = "\n".join(entries[:-1]) or "  <NO_OTHER_FAILURES>\n"
    return f"Failures:\n{others}-----\nRoot Cause (first observed failure):\n{entries[-1]}=====\n"


def status_of(raw: Path, *words: Status | None, ranks: int = 2, log: str = "", **launch: Any) -> Status:
    """Return the derived status of a job whose ranks wrote these statuses; None: nothing."""
    spec = make_spec(workload="tiny", device="cpu", devices=ranks)
    (raw / observe.SPEC_FILE).write_text(record_text(spec))
    (raw / observe.WORKER_LOG).write_text(log)
    for rank, said in enumerate(words):
        if said is not None:
            line = json.dumps({"kind": "status", **to_json_object(said)})
            (raw / f"events-{rank:05d}.jsonl").write_text(line + "\n")
    launched = {"exit_code": 1, **launch}
    seen = Launch(launcher="local", host="here", command=(), started_at="now", wall_s=9.0, **launched)
    (raw / observe.LAUNCH_FILE).write_text(record_text(seen))
    return derive(raw).status


def test_a_killed_rank_is_named_with_its_signal(tmp_path: Path) -> None:
    status = status_of(tmp_path, follower(0, 5.0), None, log=account((1, -9)))
    assert (status.code, status.reason) == ("killed", "rank 1 was ended by signal 9")
    assert status.evidence is not None
    assert (status.evidence["rank"], status.evidence["signal"]) == (1, 9)


@pytest.mark.parametrize("failures", [[(1, -9), (0, 1)], [(2, -15), (1, -9)], [(1, -9), (2, -15)]])
def test_a_killed_rank_among_several_failures(tmp_path: Path, failures: list[tuple[int, int]]) -> None:
    """torchrun may see a follower first, and ranks that it ended itself before they could report."""
    status = status_of(tmp_path, follower(0, 5.0), None, None, ranks=3, log=account(*failures))
    assert (status.code, status.reason) == ("killed", "rank 1 was ended by signal 9")


def test_a_rank_that_leaves_without_a_word(tmp_path: Path) -> None:
    status = status_of(tmp_path, word(0, "cancelled", 5.0), None, log=account((1, 3)))
    assert (status.code, status.reason) == ("failed", "rank 1 ended with exit code 3 and no status")


@pytest.mark.parametrize(
    ("first", "second", "code"),
    [
        (word(1, "out_of_memory", 1.0), word(0, "cancelled", 2.0), "out_of_memory"),
        (word(1, "out_of_memory", 1.0), follower(0, 2.0), "out_of_memory"),
        (word(1, "failed", 1.0), word(0, "hung", 9.0), "failed"),
        (word(1, "hung", 1.0), word(0, "failed", 9.0), "hung"),
        (follower(0, 1.0), word(1, "out_of_memory", 2.0), "out_of_memory"),
        (word(1, "cancelled", 1.0), follower(0, 2.0), "cancelled"),
        (follower(1, 1.0), word(0, "cancelled", 2.0), "failed"),
        (word(0, "cancelled", 1.0), Status(code="completed"), "cancelled"),
    ],
)
@pytest.mark.parametrize("swapped", [False, True])
def test_the_first_cause_is_the_status(tmp_path: Path, first: Status, second: Status, code: str, swapped: bool) -> None:
    words = (second, first) if swapped else (first, second)
    assert status_of(tmp_path, *words, log=account((0, 1))).code == code


def test_a_hang_tells_where_each_rank_stood(tmp_path: Path) -> None:
    status = status_of(tmp_path, word(0, "hung", 1.0), word(1, "cancelled", 1.5))
    assert status.code == "hung"
    assert status.evidence is not None
    assert (status.evidence["rank_0"], status.evidence["rank_1"]) == ("place_0", "place_1")


DUMP = """Timeout (0:00:10)!
Thread 0x00007f (most recent call first):
  File "threading.py", line 331 in wait

Thread 0x00007d (most recent call first):
  <no Python frame>

Thread 0x00007e (most recent call first):
  File "model.py", line 7 in forward
  File "run.py", line 8 in step
"""


def test_a_hang_that_holds_the_interpreter_is_read_from_the_log(tmp_path: Path) -> None:
    """torchrun's own output comes after the dump and must not displace it."""
    status = status_of(tmp_path, word(0, "hung", 1.0), None, log=DUMP + 100 * "later\n" + account((1, 1)))
    assert status.code == "hung"
    assert status.evidence is not None
    assert status.evidence["held_by"] == "forward (model.py:7) < step (run.py:8)"
    (tmp_path / "events-00000.jsonl").unlink()
    assert status_of(tmp_path, None, ranks=1, log=DUMP).code == "hung"


# github.com/open-edge-platform/physical-ai-studio/issues/440
SYCL = """terminate called after throwing an instance of 'sycl::_V1::exception'
  what():  Enqueue process failed.
level_zero backend failed with error: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)
Fatal Python error: Aborted
"""
# github.com/Scalsol/RepPointsV2/issues/15
ASSERTED = """terminate called after throwing an instance of 'c10::Error'
  what():  CUDA error: device-side assert triggered (insert_events at CUDACachingAllocator.cpp:569)
frame #0: c10::Error::Error(c10::SourceLocation)
"""


NO_TORCHRUN = (
    "/usr/bin/python3: Error while finding module specification for 'torch.distributed.run' "
    "(ModuleNotFoundError: No module named 'torch')\n"
)


@pytest.mark.parametrize(
    ("log", "launch", "code"),
    [
        ("", {"exit_code": -15}, "cancelled"),
        ("", {"exit_code": -9}, "killed"),
        ("", {"exit_code": -9, "oom_kills": 1}, "out_of_memory"),
        ("terminate called after throwing an instance of 'std::bad_alloc'\n", {"exit_code": -6}, "out_of_memory"),
        (SYCL, {"exit_code": -6}, "out_of_memory"),
        (ASSERTED, {"exit_code": -6}, "killed"),
        ("", {"exit_code": 1}, "failed"),
        (NO_TORCHRUN, {"exit_code": 1}, "refused"),
        ("", {"exit_code": None, "limit_hit": True}, "time_limit"),
    ],
)
def test_a_job_that_said_nothing(tmp_path: Path, log: str, launch: dict[str, Any], code: str) -> None:
    assert status_of(tmp_path, None, None, log=log, **launch).code == code


@pytest.mark.parametrize("shares", [False, True])
@pytest.mark.parametrize("oom_kills", [0, 1])
def test_a_process_killed_on_a_device_that_shares_the_memory(tmp_path: Path, shares: bool, oom_kills: int) -> None:
    facts = {"device.shares_memory": "yes"} if shares else {}
    place = observe.Environment(node="n", allocation=None, device="cuda", timing="events", facts=facts)
    line = json.dumps({"kind": "environment", **to_json_object(place)})
    (tmp_path / "events-00000.jsonl").write_text(line + "\n")
    status = status_of(tmp_path, None, ranks=1, exit_code=-9, oom_kills=oom_kills)
    assert status.code == ("out_of_memory" if oom_kills else "killed")
    assert ("accelerator and the processor share the node's memory" in status.reason) == shares


def test_a_loader_process_that_the_memory_limit_killed(tmp_path: Path) -> None:
    said = Status(code="failed", reason="RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed.")
    assert status_of(tmp_path, said, ranks=1, oom_kills=1).code == "out_of_memory"
    assert status_of(tmp_path, said, ranks=1, oom_kills=0).code == "failed"


# -- the watchdog


@pytest.fixture(autouse=True)
def late_backstop(monkeypatch: pytest.MonkeyPatch) -> None:
    """The timer would end the tests' own process where the thread is delayed."""
    monkeypatch.setattr(watching, "BACKSTOP_S", HANG_S)


class Barks:
    """Waits for a bark, like a thread that hangs."""

    def __init__(self) -> None:
        self.heard = threading.Event()
        self.limit_s, self.where = 0.0, ""

    def __call__(self, limit_s: float, where: str) -> None:
        self.limit_s, self.where = limit_s, where
        self.heard.set()


@contextlib.contextmanager
def watched(limit_s: float, folder: Path) -> Iterator[tuple[Watchdog, Barks]]:
    barks = Barks()
    watchdog = Watchdog(limit_s, folder, barks)
    watchdog.start()
    try:
        yield watchdog, barks
    finally:
        watchdog.stop()


def test_a_thread_that_stands_still(tmp_path: Path) -> None:
    with watched(0.2, tmp_path) as (watchdog, barks):
        watchdog.beat()
        assert barks.heard.wait(HANG_S)
    assert barks.limit_s == 0.2
    assert "test_a_thread_that_stands_still" in barks.where


@pytest.mark.parametrize("end", [False, True])
def test_patience_before_the_first_beat_and_after_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: bool
) -> None:
    monkeypatch.setattr(watching, "PATIENCE_S", 0.4)
    with watched(0.1, tmp_path) as (watchdog, barks):
        if end:
            watchdog.finish()
        assert barks.heard.wait(HANG_S)
    assert barks.limit_s == 0.4


@pytest.mark.parametrize("delayed", [False, True])
def test_compilation_is_no_hang_and_the_others_learn_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, delayed: bool
) -> None:
    limit_s = 0.1

    def compile_slowly(watchdog: Watchdog, barks: Barks) -> None:
        assert not barks.heard.wait(5 * limit_s)
        until((tmp_path / COMPILING_FILE).exists)
        watchdog.stop()

    code = compile("def convert(slowly, *rest):\n    slowly(*rest)\n", "/x/torch/_dynamo/convert_frame.py", "exec")
    space: dict[str, Any] = {}
    exec(code, space)
    barks = Barks()
    watchdog = Watchdog(limit_s, tmp_path, barks)

    # All in the compiler's frame: a moment outside of it may take arbitrarily long.
    def whole() -> None:
        watchdog.start()
        watchdog.beat()
        if delayed:  # The watching thread: the time of its last look is long past whenever it asks.
            monkeypatch.setattr(watchdog, "_rest", lambda: None)
        compile_slowly(watchdog, barks)

    try:
        space["convert"](whole)
    finally:
        watchdog.stop()
    assert not barks.heard.is_set()
    assert not (tmp_path / COMPILING_FILE).exists()


def test_another_rank_that_compiles_is_seen_by_its_file_and_not_by_its_clock(tmp_path: Path) -> None:
    watchdog = Watchdog(1.0, tmp_path, Barks())
    file = tmp_path / COMPILING_FILE
    assert not watchdog._others_compile()
    file.touch()
    assert watchdog._others_compile()
    assert not watchdog._others_compile()
    os.utime(file, (1000, 1000))
    assert watchdog._others_compile()
    file.unlink()
    assert not watchdog._others_compile()


def test_a_beat_after_the_end_arms_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watchdog = Watchdog(1.0, tmp_path, Barks())
    watchdog.start()
    watchdog.stop()
    armed: list[float] = []
    monkeypatch.setattr(watching.faulthandler, "dump_traceback_later", lambda limit_s, **_: armed.append(limit_s))
    watchdog.beat()
    assert armed == []


HOLD = """
import ctypes, sys
from pathlib import Path
from steelyard.worker.engine import watchdog
watchdog.BACKSTOP_S = 0.3
dog = watchdog.Watchdog(0.3, Path(sys.argv[1]), lambda *_: None)
dog.start()
mutex = ctypes.create_string_buffer(256)
def forward():
    dog.beat()
    for _ in range(2):
        ctypes.PyDLL(None).pthread_mutex_lock(mutex)
forward()
"""


def test_a_hang_that_holds_the_interpreter_is_ended_from_below(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", HOLD, str(tmp_path)], capture_output=True, text=True, timeout=HANG_S, check=False
    )
    assert done.returncode == 1
    status = status_of(tmp_path, None, ranks=1, log=done.stderr)
    assert status.code == "hung"
    assert status.evidence is not None
    assert "forward" in str(status.evidence["held_by"])


# -- termination

ENDING = """
import os, signal, sys, threading, time
from steelyard.worker.engine.ending import on_terminate

def say(reason):
    print(reason, flush=True)
    {after}

on_terminate(say)
{before}
print("ready", flush=True)
{main}
"""
BLOCKED = "lock = threading.Lock(); lock.acquire(); lock.acquire()"


@pytest.mark.parametrize(
    ("before", "main", "after"),
    [
        ("", BLOCKED, ""),
        ("", BLOCKED, "raise OSError('no space')"),
        ("signal.set_wakeup_fd(-1)", "time.sleep(60)", ""),
        ("signal.signal(signal.SIGUSR1, lambda *_: None); os.kill(os.getpid(), signal.SIGUSR1)", BLOCKED, ""),
    ],
    ids=["in a library", "report impossible", "wake-up taken", "other signals"],
)
def test_an_order_to_end_is_told_and_obeyed(before: str, main: str, after: str) -> None:
    script = ENDING.format(before=before, main=main, after=after)
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.read() == b"terminated by SIGTERM\n"
        assert process.wait(HANG_S) == 128 + signal.SIGTERM


FORKING = """
import os, signal
from steelyard.worker.engine.ending import on_terminate
on_terminate(lambda reason: print("said", flush=True))
reading, writing = os.pipe()
child = os.fork()
if child == 0:
    os.write(writing, b"x")
    signal.pause()
    os._exit(0)
os.read(reading, 1)
os.kill(child, signal.SIGTERM)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_loader_process_obeys_by_itself_and_its_parent_lives_on() -> None:
    command = [sys.executable, "-W", "ignore", "-c", FORKING]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert (done.returncode, done.stdout) == (0, "-15\n")


def test_an_order_to_end_waits_until_the_launch_is_over() -> None:
    class ToldError(Exception):
        pass

    def raise_it(*_: object) -> None:
        raise ToldError

    steps: list[Any] = []

    def launch() -> None:
        with local._signals_held() as signals:
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGTERM)
            steps.append(list(signals))
        steps.append("the signal is lost")

    before = signal.signal(signal.SIGTERM, raise_it)
    try:
        with pytest.raises(ToldError):
            launch()
        assert signal.getsignal(signal.SIGTERM) is raise_it
    finally:
        signal.signal(signal.SIGTERM, before)
    assert steps == [[signal.SIGTERM, signal.SIGTERM]]


SURVIVOR = """
import os, subprocess, sys
started = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"], start_new_session=True)
open(sys.argv[1], "w").write(str(started.pid))
os._exit(0)
"""


def test_a_process_in_another_session_does_not_survive(tmp_path: Path) -> None:
    note = tmp_path / "pid"

    class Leaving(LocalLauncher):
        def command(self, spec: RunSpec, raw: Path) -> list[str]:
            return [sys.executable, "-c", SURVIVOR, str(note)]

    launch = Leaving().run(make_spec(), tmp_path, lambda: None)
    assert launch.exit_code == 0
    assert not lives(int(note.read_text()))


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_a_second_order_does_not_disturb_the_end(tmp_path: Path) -> None:
    """The worker ignores the first SIGTERM, so that the command is still waiting when the second comes."""
    script = tmp_path / "front.py"
    script.write_text(
        "import signal, sys\n"
        "from pathlib import Path\n"
        "from steelyard.contracts.spec import RunSpec\n"
        "from steelyard.launch.local import LocalLauncher\n"
        "def stop(*_):\n    raise KeyboardInterrupt\n"
        "signal.signal(signal.SIGTERM, stop)\n"
        "deaf = 'import os, signal; signal.signal(signal.SIGTERM, lambda *_: os.write(1, b\"asked\\\\n\"));'\n"
        "deaf += 'os.write(1, b\"%d\\\\n\" % os.getpid());'\n"
        "deaf += '[signal.pause() for _ in range(9)]'\n"
        "class Deaf(LocalLauncher):\n"
        "    def command(self, spec, raw):\n        return [sys.executable, '-c', deaf]\n"
        "Deaf().run(RunSpec(run_id='r', configuration='c'), Path(sys.argv[1]), lambda: None)\n"
    )
    log = tmp_path / observe.WORKER_LOG
    log.touch()
    with subprocess.Popen([sys.executable, str(script), str(tmp_path)], stderr=subprocess.DEVNULL) as front:
        for line in range(2):
            lines = wait_for_lines(log, line + 1, front)
            front.send_signal(signal.SIGTERM)
        assert front.wait(HANG_S) != 0
    assert not lives(int(lines[0]))


def wait_for_lines(log: Path, count: int, process: subprocess.Popen[bytes]) -> list[str]:
    until(lambda: len(log.read_text().splitlines()) >= count or process.poll() is not None)
    assert process.poll() is None
    return log.read_text().splitlines()


# -- a full disk


class Nearly:
    """A file on a disk with room for a few more bytes, and for all after the reserve is deleted."""

    def __init__(self, path: Path, reserve: Path, room: int) -> None:
        self._file = path.open("ab", buffering=0)
        self._reserve = reserve
        self._room = room

    def write(self, data: bytes) -> int:
        if not self._reserve.exists():
            return self._file.write(data)
        if not self._room:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = self._file.write(data[: self._room])
        self._room -= written
        return written

    def close(self) -> None:
        self._file.close()


@pytest.mark.parametrize("room", [0, 1, 40, 100])
def test_the_last_word_fits_into_the_reserve_and_no_line_is_torn(tmp_path: Path, room: int) -> None:
    reserve = tmp_path / observe.RESERVE_FILE
    reserve.write_bytes(bytes(4096))
    log = EventLog(tmp_path, 0)
    log._file.close()
    path = tmp_path / "events-00000.jsonl"
    log._file = Nearly(path, reserve, room)  # type: ignore[assignment]
    with pytest.raises(ZeroDivisionError), log.phase("steps", lambda: 1.0):
        raise ZeroDivisionError
    log.end(Status(code="failed", reason="x" * 20_000))
    events = list(observe.read_events(path))
    assert [event["kind"] for event in events] == ["phase", "status"]
    assert not events[0]["complete"]
    assert not reserve.exists()


def test_a_run_on_a_full_disk_fails_with_this_evidence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples and log go to a device that is always full: the system's own error, through the whole worker."""
    (tmp_path / observe.SPEC_FILE).write_text(record_text(make_spec()))
    opened = writer.open_own

    def on_a_full_disk(path: Path, mode: Any, buffering: int = -1) -> Any:
        return opened(Path("/dev/full") if path.name == "steps-00000.bin" else path, mode, buffering)

    monkeypatch.setattr(writer, "open_own", on_a_full_disk)
    with contextlib.suppress(OSError), open("/dev/full", "w", buffering=1) as full:  # noqa: PTH123
        monkeypatch.setattr(sys, "stderr", full)
        status = engine.run_directory(tmp_path)
    assert status.code == "failed"
    assert status.evidence is not None
    assert status.evidence["disk"] == "full"


def test_a_file_system_that_loses_renames_costs_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lose(path: Path, target: Path) -> Path:
        raise OSError(errno.EIO, "Input/output error", str(path))

    (tmp_path / observe.SPEC_FILE).write_text(record_text(make_spec()))
    monkeypatch.setattr(Path, "replace", lose)
    assert engine.run_directory(tmp_path).code == "completed"


def test_a_study_on_a_full_disk_stops_with_words(tmp_path: Path) -> None:
    class Full(LocalLauncher):
        def run(self, spec: RunSpec, raw: Path, tick: Callable[[], None]) -> Launch:
            raise OSError(errno.ENOSPC, "No space left on device")

    class Silent:
        def __getattr__(self, name: str) -> Callable[..., None]:
            return lambda *_: None

    expansion = single_run({"workload": "sim"}, study="s", seed=0, repeats=1, taken=lambda _: set())
    with pytest.raises(SteelyardError, match="is full") as caught:
        run_all(ResultFolder(tmp_path), expansion, Full(), Silent())  # type: ignore[arg-type]
    assert "free some space" in str(caught.value)
    assert list((tmp_path / ".scratch").iterdir()) == []


# -- errors in a user's file


def test_the_evidence_names_the_line_of_the_users_file_however_deep_the_error() -> None:
    space: dict[str, Any] = {}
    exec(compile("def deep(n):\n    return deep(n - 1) if n else 1 / 0\n", "/lib/library.py", "exec"), space)
    exec(compile("\n\ndef build():\n    deep(9)\n", "/home/user.py", "exec"), space)
    with pytest.raises(ZeroDivisionError) as caught:
        space["build"]()
    where = engine._where(caught.value, "/home/user.py")
    assert where.startswith("/lib/library.py:2 < ")
    assert where.endswith(" < /home/user.py:4")
    with pytest.raises(SyntaxError) as wrong:
        compile("x = 1\ny = (\n", "/home/user.py", "exec")
    assert engine._where(wrong.value, "/home/user.py").startswith("/home/user.py:2")
