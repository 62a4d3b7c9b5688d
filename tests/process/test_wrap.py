"""The verb `wrap`: a program behaves as without it, and the record says how it ended."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import termios
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from conftest import HANG_S

if TYPE_CHECKING:
    from pathlib import Path

STEELYARD = [sys.executable, "-m", "steelyard.cli.main"]
TABLE = b"\nconfiguration"
GOES_ON = 'trap "echo told" TERM; echo max_steps > "$STEELYARD_WRAP/stopped"; while :; do sleep 0.05; done'


def command(folder: Path, *options: str) -> list[str]:
    return [*STEELYARD, "wrap", "--results", str(folder / "results"), *options, "--"]


def python(text: str) -> list[str]:
    return [sys.executable, "-c", text]


def wrapped(folder: Path, words: list[str], *options: str, **more: Any) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [*command(folder, *options), *words], capture_output=True, check=False, timeout=HANG_S, **more
    )


def raw_of(folder: Path) -> Path:
    (found,) = (folder / "results" / "runs" / "adhoc").glob("*/raw")
    return found


def end_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((raw_of(folder) / "program-00000.json").read_text(encoding="utf-8"))
    return found


def status_of(folder: Path) -> str:
    record = json.loads((raw_of(folder).parent / "record.json").read_text(encoding="utf-8"))
    return str(record["status"]["code"])


def is_gone(number: int) -> bool:
    """Whether a process ends."""
    try:
        handle = os.pidfd_open(number)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], HANG_S)[0])
    finally:
        os.close(handle)


def test_output_and_exit_code_are_the_programs_own(tmp_path: Path) -> None:
    """Binary, large, on both outputs, and more of it than a log keeps."""
    text = """
import os, sys
for number in range(60):
    sys.stdout.buffer.write(bytes(range(256)) * 256)
    sys.stderr.buffer.write(bytes([number]) * 5000 + b"\\r\\n\\xff\\0")
sys.stdout.buffer.write(b"no end of line")
sys.exit(3)
"""
    alone = subprocess.run(python(text), capture_output=True, check=False)
    done = wrapped(tmp_path, python(text))
    assert done.returncode == alone.returncode == 3
    assert done.stdout == alone.stdout
    assert done.stderr.startswith(alone.stderr)
    assert TABLE in done.stderr.removeprefix(alone.stderr)
    end = end_of(tmp_path)
    assert (end["exit_code"], end["signal"], end["ended_by"]) == (3, None, "itself")
    assert end["output_bytes"] == len(alone.stdout) + len(alone.stderr)
    assert status_of(tmp_path) == "failed"
    log = (raw_of(tmp_path) / "worker.log").read_bytes()
    assert b"bytes of output were not kept]" in log
    # Not at its end: standard error may be read after the last of standard output.
    assert b"no end of line" in log.rpartition(b"were not kept]")[2]
    assert len(log) < 7 << 20


def test_what_was_measured_of_a_program_that_completes(tmp_path: Path) -> None:
    text = "import time\nx = bytearray(200 << 20)\nt = time.process_time()\nwhile time.process_time() < t + 0.2: pass"
    done = wrapped(tmp_path, python(text), "--json")
    assert (done.returncode, done.stdout) == (0, b"")
    assert json.loads(done.stderr)["runs"][0]["status"]["code"] == "completed"
    end = end_of(tmp_path)
    assert (end["exit_code"], end["ended_by"], end["output_bytes"]) == (0, "itself", 0)
    assert 0.2 <= end["cpu_s"] <= end["wall_s"] + 0.05
    assert 200 << 20 < end["peak_rss_bytes"] < 300 << 20
    assert status_of(tmp_path) == "completed"


@pytest.mark.parametrize(("number", "status"), [(signal.SIGKILL, "killed"), (signal.SIGTERM, "cancelled")])
def test_a_program_that_is_killed(tmp_path: Path, number: signal.Signals, status: str) -> None:
    done = wrapped(tmp_path, python(f"import os; os.kill(os.getpid(), {number})"))
    assert done.returncode == 128 + number
    assert (end_of(tmp_path)["exit_code"], end_of(tmp_path)["signal"]) == (None, number)
    assert status_of(tmp_path) == status


def test_input_variables_and_folder_are_the_programs_own(tmp_path: Path) -> None:
    """What a program sees is what it would see, but for the variables that we add."""
    text = """
import json, os, sys
print(json.dumps([sys.stdin.read(), os.getcwd(), dict(os.environ), sys.path[0], os.read(5, 9).decode()]))
"""
    script = tmp_path / "show.py"
    script.write_text(text, encoding="utf-8")
    (tmp_path / "beside").mkdir()
    variables = {**os.environ, "RANK": "3", "PYTHONPATH": "/some/where", "A": "{b}"}

    def seen(words: list[str]) -> list[Any]:
        reading, writing = os.pipe()
        os.write(writing, b"inherited")
        os.close(writing)
        shell = ["bash", "-c", f'exec 5<&{reading}; exec "$@"', "bash"]
        done = subprocess.run(
            [*shell, *words], input=b"typed\n", env=variables, cwd=tmp_path / "beside", stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, pass_fds=[reading], check=True,
        )  # fmt: skip
        os.close(reading)
        found: list[Any] = json.loads(done.stdout)
        return found

    alone = seen([sys.executable, str(script)])
    with_us = seen([*command(tmp_path), sys.executable, str(script)])
    added = {name: value for name, value in with_us[2].items() if alone[2].get(name) != value}
    assert sorted(added) == [
        "PYTHONPATH", "STEELYARD_LAUNCH", "STEELYARD_WRAP", "STEELYARD_WRAP_OPTIONS", "STEELYARD_WRAP_PID",
        "STEELYARD_WRAP_ZERO",
    ]  # fmt: skip
    assert added["PYTHONPATH"].endswith("/worker/wrap/inject:/some/where")
    assert json.loads(added["STEELYARD_WRAP_OPTIONS"]) == {"max_steps": None, "max_seconds": None}
    assert [with_us[0], with_us[1], with_us[3], with_us[4]] == [alone[0], alone[1], alone[3], alone[4]]


def in_terminal(words: list[str], typed: bytes = b"", until: bytes = b"") -> tuple[bytes, int]:
    """Run a command in a terminal of its own, type something after `until` appears, and return what it shows."""
    number, terminal = pty.fork()
    if number == 0:
        os.execvp(words[0], words)
    termios.tcsetwinsize(terminal, (33, 77))
    shown = b""
    # A terminal without writers gives an error instead of an end.
    with suppress(OSError):
        while data := os.read(terminal, 4096):
            shown += data
            if typed and until in shown:
                os.write(terminal, typed)
                typed = b""
    os.close(terminal)
    return shown, os.waitstatus_to_exitcode(os.waitpid(number, 0)[1])


def test_a_terminal_stays_one(tmp_path: Path) -> None:
    text = """
import os, sys
print([os.isatty(fd) for fd in (0, 1, 2)], flush=True)
print("\\x1b[1mbold\\x1b[0m\\ttab", file=sys.stderr, flush=True)
print("name?", flush=True)
print("hello", input(), open("/dev/tty").isatty(), tuple(os.get_terminal_size()))
"""
    alone, code = in_terminal(python(text), b"me\n", b"name?\r\n")
    shown, wrapped_code = in_terminal([*command(tmp_path), *python(text)], b"me\n", b"name?\r\n")
    assert (code, wrapped_code) == (0, 0)
    assert b"[True, True, True]\r\n" in alone
    assert b"hello me True (77, 33)\r\n" in alone
    assert shown.startswith(alone)


def test_control_c_in_a_terminal_reaches_the_program_once(tmp_path: Path) -> None:
    text = """
import signal, sys, time
seen = []
signal.signal(signal.SIGINT, lambda *_: seen.append(1))
print("ready", flush=True)
# The signal may come before a pause would begin.
while not seen:
    time.sleep(0.01)
# Another would come while it ends.
time.sleep(0.5)
print("seen", len(seen), flush=True)
sys.exit(7)
"""
    shown, code = in_terminal([*command(tmp_path, "--repeats", "2"), *python(text)], b"\x03", b"ready\r\n")
    assert b"seen 1\r\n" in shown
    assert code == 7
    # The other repeat was not started.
    assert (end_of(tmp_path)["exit_code"], end_of(tmp_path)["ended_by"]) == (7, "signal")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_steelyard_is_passed_on(tmp_path: Path, number: signal.Signals) -> None:
    text = f"""
import signal, sys
signal.signal({number}, lambda *_: sys.exit(9))
print("ready", flush=True)
signal.pause()
"""
    with subprocess.Popen(
        [*command(tmp_path), *python(text)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(number)
        assert process.wait(HANG_S) == 9
    assert end_of(tmp_path)["ended_by"] == "signal"


def test_nothing_outlives_a_killed_steelyard(tmp_path: Path) -> None:
    """Neither the program, nor a child in a session of its own without our mark in its environment."""
    text = """
import os, signal, subprocess, sys
child = subprocess.Popen(["sleep", "1000"], env={}, start_new_session=True, executable="/bin/sleep")
print(os.getpid(), child.pid, flush=True)
signal.pause()
"""
    with subprocess.Popen(
        [*command(tmp_path), *python(text)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None
        numbers = [int(word) for word in process.stdout.readline().split()]
        process.kill()
        assert all(is_gone(number) for number in numbers)


def test_what_a_program_leaves_behind(tmp_path: Path) -> None:
    """A child that still writes finishes; one that stays is ended, and the exit code is that of the command."""
    shell = 'exec > >(sleep 0.5; cat); echo late; setsid sleep 1000 > /dev/null & echo "$!" > pid; exit 4'
    done = wrapped(tmp_path, ["bash", "-c", shell], cwd=tmp_path)
    assert (done.returncode, done.stdout) == (4, b"late\n")
    assert is_gone(int((tmp_path / "pid").read_text(encoding="utf-8")))


def test_a_reader_that_goes_ends_the_program_as_without_us(tmp_path: Path) -> None:
    done = subprocess.run(
        ["bash", "-c", '"$@" 2> /dev/null | head -n 2; exit ${PIPESTATUS[0]}', "bash", *command(tmp_path), "yes"],
        capture_output=True, check=False,
    )  # fmt: skip
    assert (done.stdout, done.returncode) == (b"y\ny\n", 128 + signal.SIGPIPE)


def test_a_command_in_an_allocation_runs_where_it_was_typed(tmp_path: Path) -> None:
    """How it is spread over the nodes is its own affair; a step of ours would change what it sees."""
    job = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_NTASKS": "2"}
    done = subprocess.run(
        [*command(tmp_path), "bash", "-c", "cat; echo $SLURM_NTASKS"], env={**os.environ, **job}, input=b"typed\n",
        capture_output=True, check=False,
    )  # fmt: skip
    assert (done.stdout, done.returncode) == (b"typed\n2\n", 0)


def test_the_time_limit(tmp_path: Path) -> None:
    done = wrapped(tmp_path, ["sh", "-c", "sleep 1000; echo end"], "--time-limit", "1")
    assert (done.returncode, done.stdout) == (124, b"")
    assert end_of(tmp_path)["ended_by"] == "time limit"
    assert status_of(tmp_path) == "time_limit"


def test_commands_that_cannot_run(tmp_path: Path) -> None:
    done = wrapped(tmp_path, ["no-such-program", "x"])
    assert done.returncode == 127
    assert done.stderr.startswith(b"error: no-such-program: no such program on PATH, or it may not be executed\n")
    assert b"next: check its spelling, or give its path\n" in done.stderr
    script = tmp_path / "my-own"
    script.write_text("echo", encoding="utf-8")
    assert b"such as ./my-own\n" in wrapped(tmp_path, ["my-own"], cwd=tmp_path).stderr
    assert wrapped(tmp_path, [str(script)]).returncode == 126
    assert not (tmp_path / "results").exists()
    # Only the system finds out that it has no interpreter.
    script.write_text("#!/no/such/interpreter\n", encoding="utf-8")
    script.chmod(0o755)
    assert wrapped(tmp_path, [str(script)]).returncode == 127
    assert status_of(tmp_path) == "refused"
    assert b"missing: COMMAND" in wrapped(tmp_path, []).stderr


def test_repeats_and_different_commands(tmp_path: Path) -> None:
    """The exit code is the first that is not 0; another command is another configuration."""
    shell = "echo x >> count; exit $(($(wc -l < count) - 1))"
    assert wrapped(tmp_path, ["sh", "-c", shell], "--repeats", "3", cwd=tmp_path).returncode == 1
    assert wrapped(tmp_path, ["sh", "-c", "exit 0"]).returncode == 0
    runs = sorted(path.name for path in (tmp_path / "results" / "runs" / "adhoc").iterdir())
    assert len(runs) == 4
    assert len({name.rpartition("-r")[0] for name in runs}) == 2


def test_a_study_over_placeholders_writes_to_the_log(tmp_path: Path) -> None:
    text = """
name = "mine"
repeats = 1
[run.program]
command = ["sh", "-c", "cat; echo $0 $1 >&2", "{batch}", "{{{devices}}}"]
[sweep]
batch = [16, 32]
"""
    (tmp_path / "study.toml").write_text(text, encoding="utf-8")
    words = ["study", str(tmp_path / "study.toml"), "--results", str(tmp_path / "results")]
    done = subprocess.run([*STEELYARD, *words], capture_output=True, check=False, input=b"not for it")
    assert done.returncode == 0, done.stderr
    logs = sorted((tmp_path / "results" / "runs" / "mine").glob("*/raw/worker.log"))
    assert sorted(path.read_text(encoding="utf-8") for path in logs) == ["16 {1}\n", "32 {1}\n"]


def test_a_program_that_its_observer_has_ended_but_that_goes_on(tmp_path: Path) -> None:
    """It is told to end, then killed; it reached its limit, so the run is completed."""
    spec = {
        "run_id": "x", "configuration": "x", "workload": "x",
        "program": {"command": ["bash", "-c", GOES_ON], "max_steps": 5},
    }  # fmt: skip
    (tmp_path / "spec.json").write_text(json.dumps(spec), encoding="utf-8")
    hurry = "from steelyard.worker.wrap import program; program.STOP_S = 0.2; program.KILL_S = 3"
    start = f"import sys; {hurry}; from steelyard.worker.__main__ import main; sys.exit(main())"
    done = subprocess.run([*python(start), str(tmp_path)], capture_output=True, check=False, timeout=HANG_S)
    assert done.returncode == 128 + signal.SIGKILL
    # Its `sleep` is told, too.
    assert done.stdout.replace(b"Terminated\n", b"") == b"told\n"
    end = json.loads((tmp_path / "program-00000.json").read_text(encoding="utf-8"))
    assert (end["signal"], end["ended_by"]) == (signal.SIGKILL, "max_steps")
    events = [json.loads(line) for line in (tmp_path / "events-00000.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [event["kind"] for event in events] == ["load", "load", "environment", "status"]
    assert events[-1]["code"] == "completed"


def test_events_of_ranks_are_left_alone(tmp_path: Path) -> None:
    """Where a rank reports, its own events tell how it ended."""
    shell = 'echo \'{"kind": "status", "code": "completed"}\' > "$STEELYARD_WRAP/events-00000.jsonl"; exit 5'
    assert wrapped(tmp_path, ["sh", "-c", shell]).returncode == 5
    events = (raw_of(tmp_path) / "events-00000.jsonl").read_text(encoding="utf-8").splitlines()
    assert events[0] == '{"kind": "status", "code": "completed"}'
    assert [json.loads(event)["kind"] for event in events[1:]] == ["load", "load", "environment"]
