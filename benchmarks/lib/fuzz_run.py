"""Runs the readers on changed files, in processes with limits on time and memory, and reports what fails.

A reader may return a value or raise SteelyardError with a text of bounded length that a terminal can show. Everything
else is a failure.
"""

from __future__ import annotations

import faulthandler
import json
import multiprocessing
import os
import re
import resource
import shutil
import signal
import sys
import tempfile
import traceback
from dataclasses import dataclass, field
from multiprocessing import connection
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from fuzz_mutate import Input, mutate
from fuzz_readers import CONTROL, READERS, Reader
from fuzz_seeds import make_seeds
from simjob import memory_folder
from steelyard.errors import SteelyardError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from multiprocessing.connection import Connection

    Make = Callable[["Bench", Any], "Case"]

LIMIT_S = 10
"""Of processor time: the machine may be busy. Whoever only waits gets WAIT_FACTOR times as long."""
WAIT_FACTOR = 6
LIMIT_BYTES = 500 << 20
"""That an input may add to what the process had before: a forked one has the memory of its parent."""
MOST_BYTES = 3 << 30
OVER_MEMORY = 3
# Up to 20 problems, each with a path and what is valid.
MAX_MESSAGE = 12_000
FILES_PER_READER = 60
RECYCLE = 4000
"""A process ends after this many inputs: caches must not use up the memory of an input."""
BY_NAME = {reader.name: reader for reader in READERS}
RECIPE = ".recipe"
FORK = multiprocessing.get_context("fork")


@dataclass(frozen=True)
class Failure:
    """An input that a reader did not stand."""

    name: str
    """Reader, number and file of the input."""
    what: str
    """The last line of the traceback, or how the process ended."""
    where: str
    """The innermost place in our code."""
    text: str = ""

    @property
    def kind(self) -> tuple[str, str]:
        """Reader and place: several inputs with the same have the same cause."""
        return self.name.partition("/")[0], self.where


@dataclass(frozen=True)
class Case:
    """A file to read."""

    reader: str
    name: str
    """Any text, a dash, and the file whose place it takes: its name, or its path with ~ instead of /."""
    content: Input


class Bench:
    """A folder of valid files in which one at a time is changed and read."""

    def __init__(self, seeds: Path, folder: Path) -> None:
        shutil.copytree(seeds, folder)
        self._folder = folder.resolve()
        self._files: dict[str, list[Path]] = {}
        self._contents: dict[str, list[bytes]] = {}

    def files(self, reader: Reader) -> list[Path]:
        """Return the valid files of a reader."""
        if reader.name not in self._files:
            found = sorted(path for path in self._folder.glob(reader.files) if path.is_file())[:FILES_PER_READER]
            if not found:
                raise LookupError(f"{reader.name}: no file matches {reader.files}")
            self._files[reader.name] = found
            self._contents[reader.name] = [path.read_bytes() for path in found]
        return self._files[reader.name]

    def make(self, seed: int, number: int, readers: Sequence[Reader] = READERS) -> Case:
        """Return an input; the same for the same numbers and the same valid files."""
        source = Random(f"{seed}:{number}")
        (reader,) = source.choices(readers, [reader.weight for reader in readers])
        place = source.randrange(len(self.files(reader)))
        contents = self._contents[reader.name]
        content = mutate(reader.form, contents[place], contents, source)
        path = self.files(reader)[place].relative_to(self._folder)
        return Case(reader.name, f"{number}-{path}".replace("/", "~"), content)

    def read(self, case: Case) -> None:
        """Have a file read in the place of a valid one."""
        reader = BY_NAME[case.reader]
        place = case.name.removesuffix(RECIPE).partition("-")[2].replace("~", "/")
        path = next(path for path in self.files(reader) if str(path).endswith(f"/{place}"))
        if reader.changes:
            with tempfile.TemporaryDirectory(dir=self._folder) as fresh:
                shutil.copytree(self._folder / reader.changes, Path(fresh) / reader.changes, dirs_exist_ok=True)
                path = Path(fresh) / path.relative_to(self._folder)
                _put(path, case.content)
                reader.read(path)
            return
        before = path.read_bytes()
        try:
            _put(path, case.content)
            reader.read(path)
        finally:
            path.write_bytes(before)


def _put(path: Path, content: Input) -> None:
    path.write_bytes(content.data)
    if content.size_bytes > len(content.data):
        os.truncate(path, content.size_bytes)


def load_case(path: Path) -> Case:
    """Return an input that was kept: FOLDER/READER/NAME, or a recipe for one that is large."""
    if path.suffix != RECIPE:
        return Case(path.parent.name, path.name, Input(path.read_bytes()))
    recipe = json.loads(path.read_text(encoding="utf-8"))
    data = b"".join(part.encode() * times for part, times in recipe["parts"])
    return Case(path.parent.name, path.name, Input(data, recipe.get("size_bytes", 0)))


# -- one input


def judge(bench: Bench, case: Case) -> Failure | None:
    """Have an input read; return what is wrong with the outcome."""
    name = f"{case.reader}/{case.name}"
    try:
        bench.read(case)
    except SteelyardError as error:
        text = str(error)
        if found := CONTROL.search(text):
            seen = text[max(0, found.start() - 60) : found.end()]
            return Failure(name, f"control character in the message: {seen!r}", "message")
        if len(text) > MAX_MESSAGE:
            return Failure(name, f"a message of {len(text)} characters: {text[:80]!r}", "message")
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        text = "".join(traceback.format_exception(error, limit=-25))
        places = re.findall(r'File "[^"]*src/steelyard/([^"]+)", line (\d+)', text)
        where = ":".join(places[-1]) if places else "outside"
        return Failure(name, f"{type(error).__name__}: {error}"[:300], where, text)
    return None


def _peak_bytes(*, reset: bool = False) -> int:
    """Return the highest resident size of this process since it was last reset; reset, it is the size now."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _limit_data() -> None:
    """Stop this process before it brings down the machine: a forked one begins with what its parent has."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    most = int(status.partition("VmData:")[2].split()[0]) * 1024 + MOST_BYTES
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))


# -- many inputs


@dataclass
class Outcome:
    """What came of many inputs."""

    failures: list[tuple[Failure, Case]] = field(default_factory=list)
    peak_bytes: int = 0
    """The most memory that an input has added."""


def _work(seeds: Path, cases: Sequence[Any], make: Make, current: Any, said: Connection) -> None:
    """Judge cases in this process, and report failures and the most memory used."""
    with tempfile.TemporaryDirectory(dir=seeds.parent) as folder, _trace(seeds, os.getpid()).open("w") as trace:
        bench = Bench(seeds, Path(folder) / "bench")
        os.chdir(folder)
        # Writes the traceback, and ends the process.
        faulthandler.register(signal.SIGPROF, file=trace, chain=True)
        _limit_data()
        peak = 0
        for number, given in enumerate(cases):
            current.value = number
            case = make(bench, given)
            before = _peak_bytes(reset=True)
            signal.setitimer(signal.ITIMER_PROF, LIMIT_S)
            faulthandler.dump_traceback_later(WAIT_FACTOR * LIMIT_S, exit=True, file=trace)
            failure = judge(bench, case)
            faulthandler.cancel_dump_traceback_later()
            signal.setitimer(signal.ITIMER_PROF, 0)
            if failure is not None:
                said.send((failure, case))
            peak = max(peak, _peak_bytes() - before)
            if peak > LIMIT_BYTES:
                said.send(peak)
                os._exit(OVER_MEMORY)
        said.send(peak)


def _trace(seeds: Path, process: int) -> Path:
    return seeds.parent / f"trace-{process}"


class Pool:
    """Processes that share the work; one that dies is replaced, and its input is a failure."""

    def __init__(self, seeds: Path, make: Make, processes: int = 2) -> None:
        self._seeds, self._make, self._processes = seeds, make, processes
        self._bench = Bench(seeds, seeds.parent / "bench")
        self._outcome = Outcome()

    def run(self, cases: Sequence[Any]) -> Outcome:
        """Judge all cases."""
        each = min(RECYCLE, -(-len(cases) // self._processes)) or 1
        todo = [cases[begin : begin + each] for begin in range(0, len(cases), each)]
        active: dict[Any, _Worker] = {}
        while todo or active:
            while todo and len(active) < self._processes:
                worker = _Worker(self._seeds, todo.pop(), self._make)
                active[worker.answers] = worker
            for ready in connection.wait(list(active)):
                try:
                    self._take(active[ready].answers.recv())
                except EOFError:
                    todo += self._bury(active.pop(ready))
        return self._outcome

    def _take(self, said: Any) -> None:
        if isinstance(said, int):
            self._outcome.peak_bytes = max(self._outcome.peak_bytes, said)
        else:
            self._add(*said)

    def _add(self, failure: Failure, case: Case) -> None:
        if failure.kind not in {other.kind for other, _ in self._outcome.failures}:
            # At once: the whole takes minutes.
            print(f"{failure.name} at {failure.where}: {failure.what}", file=sys.stderr, flush=True)
        self._outcome.failures.append((failure, case))

    def _bury(self, worker: _Worker) -> list[Sequence[Any]]:
        """Return the cases that an ended process has left."""
        worker.process.join()
        code, at = worker.process.exitcode, worker.current.value
        if code == 0:
            return []
        case = self._make(self._bench, worker.cases[at])
        trace = _trace(self._seeds, worker.process.pid or 0)
        text = trace.read_text(encoding="utf-8", errors="replace") if trace.exists() else ""
        late = code == -signal.SIGPROF or "Timeout" in text
        what = f"not within {LIMIT_S} s" if late else f"the process died with exit code {code}"
        what = f"more than {LIMIT_BYTES >> 20} MiB" if code == OVER_MEMORY else what
        places = re.findall(r'File "[^"]*src/steelyard/([^"]+)", line (\d+)', text)
        where = ":".join(places[0]) if places else "outside"
        self._add(Failure(f"{case.reader}/{case.name}", what, where, text), case)
        left = worker.cases[at + 1 :]
        return [left] if left else []


class _Worker:
    def __init__(self, seeds: Path, cases: Sequence[Any], make: Make) -> None:
        self.cases = cases
        self.current = FORK.Value("q", 0, lock=False)
        self.answers, said = FORK.Pipe(duplex=False)
        self.process = FORK.Process(target=_work, args=(seeds, cases, make, self.current, said), daemon=True)
        self.process.start()
        said.close()


def maker(seed: int = 0, readers: Sequence[Reader] = READERS) -> Make:
    """Return what makes an input: from its number, or from the path of one that was kept."""
    return lambda bench, given: load_case(given) if isinstance(given, Path) else bench.make(seed, given, readers)


def run_cases(make: Make, cases: Sequence[Any], processes: int = 2) -> Outcome:
    """Make valid files and judge all cases."""
    with tempfile.TemporaryDirectory(dir=memory_folder()) as folder:
        seeds = Path(folder) / "seeds"
        make_seeds(seeds)
        return Pool(seeds, make, processes).run(cases)
