"""[wrap_faults] A program that crashes, hangs or does something unusual behaves as without wrap; the record says it.

Each case runs once alone and once under `steelyard wrap`. Its exit code and the bytes of its standard output and
standard error must be the same; what steelyard has to say follows at the end. The record must say how the program ended
and what was seen of it. Most programs are functions of benchmarks/lib/programs/faults.py; others are parts of Python
and of installed packages.
"""

from __future__ import annotations

import os
import pty
import shutil
import signal
import subprocess
import sys
import tempfile
import termios
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from figure import arguments, at_least, at_most, finish
from program_cases import PROGRAMS, SURROUNDINGS
from steelyard.results.store import ResultFolder

if TYPE_CHECKING:
    from collections.abc import Mapping

    from steelyard.contracts.record import RunRecord

SCRIPT = PROGRAMS / "faults.py"
SOURCE = Path(__file__).parents[2] / "src"
WITH_OLD_TORCH = SOURCE.parent / ".venv-ci" / "old" / "bin" / "python"
STEELYARD = (sys.executable, "-P", "-m", "steelyard.cli.main", "wrap")
LIMIT_S = 600
"""No program takes so long, even on a busy machine."""
OURS = b"configuration  jobs"
"""Among the words of steelyard, after those of the program."""
ASKS = (b"ready\r\n", b"name?\r\n")
"""After which something is typed into a terminal."""
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")


@dataclass(frozen=True)
class Case:
    """A program, how it is started, and what the record must say about it."""

    name: str
    words: tuple[str, ...]
    status: str = "completed"
    exit_code: int | None = 0
    killed_by: int | None = None
    ended_by: str = "itself"
    steps: int = 0
    processes: int | None = 1
    findings: tuple[str, ...] = ()
    quick: bool = False
    options: tuple[str, ...] = ()
    """Of steelyard."""
    alone: tuple[str, ...] = ()
    """What gives it the same limits without steelyard."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Beside the program."""
    variables: Mapping[str, str] = field(default_factory=dict)
    typed: bytes = b""
    """Into its standard input, or into its terminal once it asks."""
    send: signal.Signals | None = None
    """To the command that was started, once it is ready."""
    terminal: bool = False
    same_errors: bool = True
    """Its standard error is the same each time; otherwise it contains times."""


def own(function: str, *more: str, python: str = sys.executable, **rest: Any) -> Case:
    """Return the case of a function of faults.py."""
    name = rest.pop("name", function.replace("_", " "))
    return Case(name, (python, *more, str(SCRIPT), function), **rest)


def of_folder(function: str, files: Mapping[str, str], python: str = sys.executable, **rest: Any) -> Case:
    """Return the case of a function with a folder on PYTHONPATH that steelyard itself does not have."""
    placed = {f"custom/{name}": text for name, text in files.items()}
    start = ("sh", "-c", 'PYTHONPATH="${PYTHONPATH:+$PYTHONPATH:}custom" exec "$@"', "sh")
    return Case(words=(*start, python, str(SCRIPT), function), files=placed, **rest)


def raising(function: str, **rest: Any) -> Case:
    """Return the case of a program that ends with a traceback."""
    return own(function, status=rest.pop("status", "failed"), exit_code=1, **rest)


def killed(function: str, number: signal.Signals, **rest: Any) -> Case:
    """Return the case of a program that ends with a signal."""
    return own(function, status="killed", exit_code=None, killed_by=number, ended_by="signal", **rest)


def unseen(name: str, *words: str, **rest: Any) -> Case:
    """Return the case of a program in which the observer cannot be."""
    return Case(name, words, processes=0, findings=("SY619",), **rest)


def python_of(version: str) -> str | None:
    """Return an interpreter of this version: one with torch if CI has made it, or one without."""
    made = [str(WITH_OLD_TORCH)] if version == "3.10" else []
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for place in [*made, *map(str, root.glob(f"{version}.*/bin/python{version}")), f"python{version}"]:
        with suppress(OSError):
            done = subprocess.run([place, "-c", "import sys; print(sys.version)"], capture_output=True, check=False)
            if done.stdout.startswith(f"{version}.".encode()):
                return place
    return None


HALF = 10
SEEN_CUSTOM = "import sys\nprint('custom', sys.argv, file=sys.stderr)\n"
CASES = (
    raising("raises", quick=True),
    raising("raises_deeply", name="endless recursion"),
    raising("recurses"),
    raising("runs_out_of_memory", status="out_of_memory", quick=True),
    raising("exits_with_text"),
    raising("closes_output"),
    own("exits", status="failed", exit_code=7),
    own("exits_at_once", status="failed", exit_code=5),
    killed("kills_itself", signal.SIGKILL, quick=True),
    killed("reads_nowhere", signal.SIGSEGV),
    killed("breaks_off", signal.SIGABRT),
    own(
        "hangs", status="time_limit", exit_code=None, killed_by=15, ended_by="time limit",
        options=("--time-limit", "3"), alone=("timeout", "3"),
    ),
    own("forks"),
    own("executes_itself", processes=2, quick=True),
    own("spawns", processes=None),
    own("changes_folder"),
    own("loses_its_folder", processes=2),
    own("replaces_output"),
    own("redirects_output"),
    own("writes_bytes", quick=True),
    own("reads_input", typed=b"first line\nsecond \xc3\xa4 line"),
    own("reads_input", name="reads nothing"),
    own("looks_at_terminal", terminal=True, typed=b"me\n", quick=True),
    raising("raises", name="raises in a terminal", terminal=True),
    own(
        "waits_for_interrupt", terminal=True, typed=b"\x03", status="cancelled", exit_code=None, killed_by=2,
        ended_by="signal",
    ),
    own("waits_for_order", send=signal.SIGTERM, status="cancelled", exit_code=9, ended_by="signal", quick=True),
    own(
        "waits_for_interrupt", name="interrupt by a signal", send=signal.SIGINT, status="cancelled", exit_code=None,
        killed_by=2, ended_by="signal",
    ),
    own("leaves_child_behind"),
    own("traces"),
    own("lists_modules", quick=True),
    Case(
        "own module with a name of the library", (sys.executable, "main.py"), quick=True,
        files={"main.py": "import resource, json; print(resource, json)", "resource.py": "", "json.py": ""},
    ),
    of_folder("lists_modules", {"sitecustomize.py": SEEN_CUSTOM}, name="own sitecustomize", quick=True),
    of_folder("exits", {"sitecustomize.py": "import no_such_module\n"}, name="own sitecustomize that fails",
              status="failed", exit_code=7),
    Case("a script with the name of a workload", (sys.executable, "sim.py"), files={"sim.py": "print('mine')\n"}),
    own("marks_steps", steps=19, variables={"PYTHONPATH": str(SOURCE)}),
    unseen("isolated Python", sys.executable, "-I", "-c", "print('seen by nobody')"),
    unseen("empty environment", "env", "-i", sys.executable, "-c", "import os; print(dict(os.environ))"),
    unseen("no Python", "bash", "-c", "echo out; echo err >&2; exit 3", status="failed", exit_code=3, quick=True),
    # Not ours.
    Case("http.server", (sys.executable, "-m", "http.server", "--no-such-option"), status="failed", exit_code=2),
    Case("unittest", (sys.executable, "-m", "unittest", "no_such_test"), status="failed", exit_code=1,
         same_errors=False),
    Case("pytest", (sys.executable, "-m", "pytest", "--version")),
    Case("pdb", (sys.executable, "-m", "pdb", "-c", "continue", str(SCRIPT), "exits_with_text"), typed=b"q\n"),
    Case("timeit", (sys.executable, "-m", "timeit", "-n1", "-r1", "import sys; sys.exit(3)"), status="failed",
         exit_code=1),
    Case("torchrun", (sys.executable, "-m", "torch.distributed.run", "--help")),
    # With training.
    raising("raises_in_training", steps=HALF),
    raising("raises_in_backward", steps=HALF),
    raising("raises_in_data", steps=12),
    raising("raises_in_worker", steps=12),
    raising("raises_in_save", steps=HALF),
    raising("raises_at_start"),
    raising("device_out_of_memory", status="out_of_memory", steps=HALF),
    own("exits_in_training", status="failed", exit_code=5, steps=HALF),
    killed("is_killed_in_training", signal.SIGKILL, steps=HALF),
    own("forks_in_training", steps=20),
    own("workers_by_fork", steps=20),
    own("workers_by_spawn", steps=20, processes=None),
    own("closes_files_in_training", steps=20),
    own("executes_itself_in_training", steps=HALF, processes=2, findings=("SY620",)),
    own(
        "one_rank_hangs", *TORCHRUN, status="time_limit", exit_code=1, ended_by="time limit",
        options=("--time-limit", "40"), alone=("timeout", "40"), steps=HALF, processes=3, same_errors=False,
    ),
    own("one_rank_fails", *TORCHRUN, status="failed", exit_code=1, steps=HALF, processes=3, same_errors=False),
)  # fmt: skip
VERSIONS = ("3.10", "3.13")
TOO_OLD = ("3.8", "2.7")


def of_versions() -> list[Case]:
    """Return the cases with other versions of Python than this one, and say which are missing."""
    found = []
    for version in (*VERSIONS, *TOO_OLD):
        if (python := python_of(version)) is None:
            print(f"not installed, and left out: Python {version}")
        elif version in TOO_OLD:
            name = f"Python {version}, which is too old"
            # It would write its form of our file beside it.
            clean = {"PYTHONDONTWRITEBYTECODE": "1"}
            found.append(unseen(name, python, "-c", "import sys; print(sys.version_info[:2])", variables=clean))
        else:
            variables = {"PYTHONPATH": str(SOURCE)}
            found.append(own("marks_steps", python=python, name=f"Python {version}", steps=19, variables=variables))
            found.append(raising("raises", python=python, name=f"Python {version} raises"))
            found.append(own("lists_modules", python=python, name=f"Python {version} lists modules"))
            if python == str(WITH_OLD_TORCH):
                found.append(
                    raising("raises_in_backward", python=python, name="Python 3.10 with torch 2.1", steps=HALF)
                )
            custom = {"usercustomize.py": SEEN_CUSTOM}
            found.append(of_folder("forks", custom, python, name=f"Python {version}, own usercustomize"))
    return found


class Ran(NamedTuple):
    """What a run leaves."""

    code: int
    """As a shell shows it."""
    out: bytes
    err: bytes


def start(case: Case, words: tuple[str, ...], folder: Path) -> Ran:
    """Run a command in a new folder."""
    work = folder / "work"
    shutil.rmtree(work, ignore_errors=True)
    for name, text in case.files.items():
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).write_text(text, encoding="utf-8")
    work.mkdir(exist_ok=True)
    variables = {**os.environ, **SURROUNDINGS, **case.variables}
    if case.terminal:
        return in_terminal(case, words, work, variables)
    with subprocess.Popen(
        words, cwd=work, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        begun = b""
        if case.send is not None and process.stdout is not None:
            begun = process.stdout.readline()
            process.send_signal(case.send)
        out, err = process.communicate(case.typed, timeout=LIMIT_S)
    return Ran(shell_code(process.returncode), begun + out, err)


def in_terminal(case: Case, words: tuple[str, ...], work: Path, variables: dict[str, str]) -> Ran:
    """Run a command in a terminal of its own."""
    ours, terminal = pty.openpty()
    termios.tcsetwinsize(ours, (33, 77))
    process = subprocess.Popen(
        ("setsid", "--ctty", *words), cwd=work, env=variables, stdin=terminal, stdout=terminal, stderr=terminal
    )
    os.close(terminal)
    shown, typed = b"", case.typed
    # A terminal without writers gives an error instead of an end.
    with suppress(OSError):
        while data := os.read(ours, 4096):
            shown += data
            if typed and shown.endswith(ASKS):
                os.write(ours, typed)
                typed = b""
    os.close(ours)
    return Ran(shell_code(process.wait(LIMIT_S)), shown, b"")


def shell_code(code: int) -> int:
    """Return the exit code that a shell shows."""
    return code if code >= 0 else 128 - code


def differences(case: Case, alone: Ran, wrapped: Ran) -> list[str]:
    """Return what a user could notice."""
    found = []
    if wrapped.code != alone.code:
        found.append(f"exit code {wrapped.code} instead of {alone.code}")
    if not case.terminal and wrapped.out != alone.out:
        found.append(f"standard output {first_difference(wrapped.out, alone.out)}")
    # In a terminal, both outputs of the program and ours are in one place.
    said, theirs = (wrapped.out, alone.out) if case.terminal else (wrapped.err, alone.err)
    if not case.same_errors:
        return found
    if not said.startswith(theirs):
        found.append(f"standard error {first_difference(said, theirs)}")
    elif OURS not in (rest := said[len(theirs) :]) or b"Traceback" in rest:
        found.append(f"steelyard says {rest!r}")
    return found


def first_difference(ours: bytes, theirs: bytes) -> str:
    """Return both texts from shortly before the place where they differ."""
    pairs = enumerate(zip(ours, theirs, strict=False))
    start = max(0, next((at for at, (one, other) in pairs if one != other), min(len(ours), len(theirs))) - 30)
    return f"from {start} on: {ours[start : start + 200]!r} instead of {theirs[start : start + 200]!r}"


def wrong(case: Case, folder: Path) -> list[str]:
    """Return what the record does not say as it was."""
    records: list[RunRecord] = list(ResultFolder(folder).records())
    if len(records) != 1 or (seen := records[0].wrapped) is None:
        return [f"{len(records)} records"]
    record, end = records[0], seen.end
    pairs: dict[str, tuple[object, object]] = {
        "status": (record.status.code, case.status),
        "exit code": (end and end.exit_code, case.exit_code),
        "signal": (end and end.signal, case.killed_by),
        "ended by": (end and end.ended_by, case.ended_by),
        "level": (seen.level, 2 if seen.steps else 0),
        "device": (record.spec.device_family == "sim", False),
    }
    pairs["steps"] = (seen.steps, case.steps)
    if case.status in ("killed", "time_limit"):
        # The steps of its last half second are not on the disk.
        pairs["steps"] = (0 < seen.steps <= case.steps, case.steps > 0)
    if case.processes is not None:
        pairs["processes"] = (seen.processes, case.processes)
    codes = {finding.code for finding in record.findings}
    missing = [code for code in case.findings if code not in codes]
    logs = [path.read_text(encoding="utf-8") for path in folder.glob("runs/*/*/raw/observer.log")]
    return [
        *(f"{name} {ours} instead of {theirs}" for name, (ours, theirs) in pairs.items() if ours != theirs),
        *(f"no finding {code}" for code in missing),
        *(f"the observer failed: {log}" for log in logs),
    ]


def examine(case: Case) -> tuple[list[str], list[str]]:
    """Run a case both ways; return how it differs and what its record has wrong."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        alone = start(case, (*case.alone, *case.words), folder)
        results = folder / "results"
        wrapped = start(case, (*STEELYARD, "--results", str(results), *case.options, "--", *case.words), folder)
        return differences(case, alone, wrapped), wrong(case, results)


def main() -> None:
    options = arguments(__doc__, only={"help": "run only the cases whose name contains this"})
    cases = [case for case in CASES if case.quick] if options.quick else [*CASES, *of_versions()]
    cases = [case for case in cases if (options.only or "") in case.name]
    different = false = 0
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for case, (differs, says) in zip(cases, pool.map(examine, cases), strict=True):
            different, false = different + bool(differs), false + bool(says)
            problems = [*(f"differs: {text}" for text in differs), *(f"record: {text}" for text in says)]
            print(f"{case.name}: {'; '.join(problems) or 'the same, and the record is right'}", flush=True)
    finish(
        [
            at_least("wrap_faults: programs", len(cases), "programs", 10 if options.quick else 30),
            at_most("wrap_faults: programs that behave otherwise than alone", different, "programs", 0),
            at_most("wrap_faults: programs with a wrong record", false, "programs", 0),
        ]
    )


if __name__ == "__main__":
    main()
