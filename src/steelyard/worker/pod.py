"""The entry of a pod: makes the runs of its task and ships what they wrote through its log. Knows no API.

Started as a file before the package is unpacked, so it imports the standard library alone. A platform may share no file
system with us; what a container prints is kept by all of them. Normal output goes to each run's log; standard output
carries lines of this form, and whoever reads them skips every other:

    #steelyard begin INDEX RUN_ID BEGAN
    #steelyard file INDEX FILE NAME SIZE PACKED_SIZE LINES SHA256     then its lines, zlib and base64:
    #steelyard data INDEX FILE LINE LENGTH CRC32 BASE64
    #steelyard lost INDEX NAME SIZE                  did not fit into the log
    #steelyard end INDEX RUN_ID EXIT BEGAN ENDED
    #steelyard stop WHY                              limit: no time for the next run; gone: another pod is
    #steelyard all RUNS                              nothing follows
"""

from __future__ import annotations

import base64
import contextlib
import gzip
import hashlib
import io
import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
import zipfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

MARK = "#steelyard"
LINE_BYTES = 9000
"""Of packed data in a line: 12,000 characters, below the 16 KiB at which container runtimes split lines."""
LINE_OVERHEAD_BYTES = 60
"""What the runtime writes before each line: time, stream and a flag."""
LOG_TAIL_BYTES = 128 << 10
UNPACKED_FACTOR = 32
"""What is sent unpacks to so many times the log at most: the reader must not be filled up by a bomb."""
LIMIT_HIT = 124
GRACE_S = 30.0
TOLD_GRACE_S = 15.0
SHIPPING_S = 30.0
"""Kept free at the end of the task's time."""
LOOK_EVERY_S = 0.2
FIRST_PORT, PORTS = 29_501, 400
MEETING_PORT = 29_500
RESERVE_BYTES = 1 << 18
LAUNCH_MARK = "STEELYARD_LAUNCH"
ROUNDS = 50
NOT_MET = 71
"""Exit code: not all pods of the task came in time."""
# Made by a run for itself alone.
NOT_SHIPPED = re.compile(r"spec\.json|launch\.json|reserve|compiling|progress\.json.*|rested-.*")
# What is left out when the log is full is left out from the end of this list.
ORDER = ("lease", "events-", "sensors-", "worker.log", "steps-", "tokens-", "power-")
MEMORY_WORDS = re.compile(rb"oom.kill|exceeded memory limit|std::bad_alloc", re.IGNORECASE)
OUT_OF_MEMORY = b'{"kind": "status", "code": "out_of_memory"'


class NotMetError(Exception):
    """Another pod of the task did not come, or is gone."""


# -- shipping ----------------------------------------------------------------------------------------------------


class Shipper:
    """Writes lines to the log, and no more of them than it may hold."""

    def __init__(self, log: io.RawIOBase | Any, budget_bytes: int) -> None:
        self._log = log
        self._left = budget_bytes
        self._unpacked_left = UNPACKED_FACTOR * budget_bytes

    def say(self, *words: object) -> None:
        """One line."""
        line = " ".join([MARK, *map(str, words)]).encode("ascii") + b"\n"
        self._left -= len(line) + LINE_OVERHEAD_BYTES
        self._log.write(line)
        self._log.flush()

    def ship(self, index: int, raw: Path, runs_left: int, scratch: Path) -> None:
        """What a run wrote, as far as its share of the log goes; what does not fit is named."""
        # Kept for the last words of a run on a full disk; they are said.
        (raw / "reserve").unlink(missing_ok=True)
        until = self._left - self._left // max(1, runs_left)

        def importance(path: Path) -> tuple[int, str]:
            known = [place for place, start in enumerate(ORDER) if path.name.startswith(start)]
            return (known or [len(ORDER)])[0], path.name

        files = [path for path in raw.iterdir() if path.is_file() and not path.is_symlink()]
        files = [path for path in files if not NOT_SHIPPED.fullmatch(path.name)]
        for number, path in enumerate(sorted(files, key=importance)):
            if path.name == "worker.log" and path.stat().st_size > LOG_TAIL_BYTES:
                path = _tail_of(path, scratch)
            size, name = path.stat().st_size, re.sub(r"[^A-Za-z0-9_.-]", "_", path.name)[:100]
            sent = name == path.name and size <= self._unpacked_left
            if not sent or not self._send_file(index, number, path, scratch / "packed", until):
                self.say("lost", index, name, size)
            else:
                self._unpacked_left -= size

    def _send_file(self, index: int, number: int, path: Path, packed: Path, until: int) -> bool:
        """Whether there is room for it, in the log and on the disk."""
        try:
            packed_size, digest = _pack(path, packed)
        except OSError:
            return False
        lines = -(-packed_size // LINE_BYTES)
        if self._left - packed_size * 4 // 3 - (lines + 2) * (LINE_OVERHEAD_BYTES + 60) < until:
            return False
        self.say("file", index, number, path.name, path.stat().st_size, packed_size, lines, digest)
        with packed.open("rb") as file:
            for line in range(lines):
                data = file.read(LINE_BYTES)
                crc = f"{zlib.crc32(data):08x}"
                self.say("data", index, number, line, len(data), crc, base64.b64encode(data).decode("ascii"))
        return True


def _tail_of(log: Path, scratch: Path) -> Path:
    """The end of a log that is too long, under the same name, with a first line that says so."""
    left_out = log.stat().st_size - LOG_TAIL_BYTES
    tail = scratch / log.name
    with log.open("rb") as file:
        file.seek(left_out)
        tail.write_bytes(
            f"... {left_out} bytes before this were left in the pod\n".encode() + file.read(LOG_TAIL_BYTES)
        )
    return tail


def _pack(path: Path, packed: Path) -> tuple[int, str]:
    """Compressed, as a file: its size, and the checksum of what is in it."""
    digest, press = hashlib.sha256(), zlib.compressobj(6)
    with path.open("rb") as source, packed.open("wb") as target:
        while block := source.read(1 << 20):
            digest.update(block)
            target.write(press.compress(block))
        target.write(press.flush())
        return target.tell(), digest.hexdigest()


# -- several pods ------------------------------------------------------------------------------------------------


class PodTeam:
    """The pods of a task in step with each other: no run starts before all are there, and none waits for the dead."""

    def __init__(self, name: str, index: int, count: int, host: str | None) -> None:
        self.index, self.count, self.host = index, count, host
        self._name = name
        self._others: list[socket.socket] = []

    def gather(self, limit_s: float) -> None:
        """The first meeting. The platform may start the pods minutes apart."""
        if self.count == 1:
            return
        deadline_s = time.monotonic() + limit_s
        if self.index:
            self._others = [self._join(deadline_s)]
        else:
            self._others = self._welcome(deadline_s)
        self.meet(0, limit_s)

    def meet(self, number: int, limit_s: float) -> None:
        """Return when all have come to this point; NotMetError when one is gone."""
        word = f"{self._name} {number}\n".encode()
        try:
            for other in self._others:
                other.settimeout(limit_s)
                if self.index:
                    other.sendall(word)
                if (said := _line(other)) != word:
                    raise OSError(f"it said {said[:40]!r} instead of {word!r}")
            for other in self._others if not self.index else []:
                other.sendall(word)
        except OSError as error:
            raise NotMetError(f"another pod of the task is gone: {error}") from None

    def _welcome(self, deadline_s: float) -> list[socket.socket]:
        with socket.create_server(("", MEETING_PORT), backlog=self.count) as server:
            there: dict[int, socket.socket] = {}
            while len(there) < self.count - 1:
                server.settimeout(max(0.01, deadline_s - time.monotonic()))
                try:
                    other, _ = server.accept()
                except OSError:
                    missing = [str(n) for n in range(1, self.count) if n not in there]
                    raise NotMetError(f"pods {', '.join(missing[:20])} of {self.count} did not come in time") from None
                if (number := _introduced(other, self._name)) is not None and 0 < number < self.count:
                    there[number] = other
                else:
                    other.close()
        return list(there.values())

    def _join(self, deadline_s: float) -> socket.socket:
        """The first pod's name is known to the platform's name service only some time after it was started."""
        why = "no time left"
        while (left_s := deadline_s - time.monotonic()) > 0:
            other, why = self._call(left_s)
            if other is not None:
                return other
            time.sleep(min(1.0, left_s))
        raise NotMetError(f"pod 0 of {self.count} did not come in time: {self.host}: {why}")

    def _call(self, limit_s: float) -> tuple[socket.socket | None, str]:
        try:
            other = socket.create_connection((self.host, MEETING_PORT), timeout=limit_s)
            other.sendall(f"{self._name} {self.index}\n".encode())
        except OSError as error:
            return None, str(error)
        return other, ""


def _line(other: socket.socket) -> bytes:
    said = b""
    while not said.endswith(b"\n") and len(said) < 200:
        if not (byte := other.recv(1)):
            raise OSError("it closed the connection")
        said += byte
    return said


def _introduced(other: socket.socket, name: str) -> int | None:
    """Which pod this is; None: somebody else."""
    other.settimeout(10)
    try:
        words = _line(other).decode("ascii", "replace").split()
    except OSError:
        return None
    return int(words[1]) if len(words) == 2 and words[0] == name and words[1].isdigit() else None


# -- runs --------------------------------------------------------------------------------------------------------


class Pod:
    """One pod with its task."""

    def __init__(self, code: Path, task: Path, results: Path, log: Any) -> None:
        self.task: dict[str, Any] = json.loads((task / "task.json").read_bytes())
        self.specs: dict[str, Any] = json.loads(gzip.decompress((task / "specs.json.gz").read_bytes()))
        self.sources: dict[str, str] = self.specs.pop("sources", {})
        self.runs: list[str] = self.task["runs"]
        self.results = results
        self.shipper = Shipper(log, self.task["log_bytes"])
        self.index = int(os.environ.get("JOB_COMPLETION_INDEX", "0"))
        self.team = PodTeam(self.task["name"], self.index, self.task["nodes"], self.task["master"])
        self.told: list[int] = []
        # A search tries no more than so many of its candidates.
        tries = 2 * len(self.runs).bit_length() + 1
        self.to_ship = min(len(self.runs), tries) if self.task["kind"] == "search" else len(self.runs)
        self.end_s = time.monotonic() + self.task["task_limit_s"]
        self.worker = results / "worker"
        packed_worker = (code / "worker.zip").read_bytes()
        if hashlib.sha256(packed_worker).hexdigest() != self.task["worker_sha256"]:
            raise SystemExit(f"{code / 'worker.zip'} is not the worker that this task was planned with")
        with zipfile.ZipFile(io.BytesIO(packed_worker)) as archive:
            archive.extractall(self.worker)

    def raw(self, run_id: str) -> Path:
        """Where a run's worker reads and writes: as in a campaign's folder."""
        return self.results / "runs" / run_id / "raw"

    def prepare(self, index: int) -> Path:
        """A run's folder with its spec."""
        run_id = self.runs[index]
        raw, spec = self.raw(run_id), self.specs[run_id]
        raw.mkdir(parents=True)
        source = spec.get("source")
        if source is not None and source["sha256"] in self.sources:
            # The user's own file travels with the task; here it has another path.
            path = self.results / "sources" / f"{source['sha256']}.py"
            path.parent.mkdir(exist_ok=True)
            path.write_text(self.sources[source["sha256"]], encoding="utf-8")
            source["path"] = str(path)
        (raw / "spec.json").write_text(json.dumps(spec, indent=1), encoding="utf-8")
        (raw / "reserve").write_bytes(bytes(RESERVE_BYTES))
        return raw

    def make(self, index: int) -> int | None:
        """One run; its exit code, None: it was not made."""
        left_s = self.end_s - SHIPPING_S - time.monotonic()
        if self.told:
            return None
        if left_s <= 0:
            self.shipper.say("stop", "limit")
            return None
        raw = self.prepare(index)
        if not take_lease(raw):
            return None
        self.team.meet(index + 1, self.task["run_limit_s"] + 4 * GRACE_S)
        began = time.time()
        self.shipper.say("begin", index, self.runs[index], f"{began:.3f}")
        limit_s = min(self.task["run_limit_s"], left_s)
        code = self.start(self.command(raw, index), raw / "worker.log", limit_s, lambda: None)
        shutil.rmtree(raw / "torchrun", ignore_errors=True)
        self.ship(index, code, began)
        return None if self.told else code

    def ship(self, index: int, code: int, began: float, ended: float | None = None) -> None:
        """What it wrote, and how it ended: unless we were told to end, which is the platform's to explain."""
        ended = time.time() if ended is None else ended
        self.shipper.ship(index, self.raw(self.runs[index]), self.to_ship, self.results)
        self.to_ship -= 1
        if not self.told:
            self.shipper.say("end", index, self.runs[index], code, f"{began:.3f}", f"{ended:.3f}")

    def command(self, raw: Path, index: int) -> list[str]:
        """What this pod starts for a run."""
        task = self.task
        worker = [*python(), "steelyard.worker", str(raw), "--lifeline"]
        if task["nodes"] * task["processes"] == 1:
            return worker
        torchrun = [*python(), "torch.distributed.run", f"--log-dir={raw / 'torchrun'}"]
        if task["nodes"] == 1:
            torchrun += ["--standalone"]
        else:
            # Another port for each run: what one leaves behind must not be in the way of the next.
            torchrun += [f"--nnodes={task['nodes']}", f"--node-rank={self.index}", "--rdzv-backend=static"]
            torchrun += [f"--master-addr={task['master']}", f"--master-port={FIRST_PORT + index % PORTS}"]
        return [*torchrun, f"--nproc-per-node={task['processes']}", "--no-python", *worker]

    def environment(self) -> dict[str, str]:
        """Variables of the worker: ours, which the manifest set, and what a run needs."""
        given = dict(os.environ)
        path = [str(self.worker), *filter(None, [given.get("PYTHONPATH")])]
        given.update(PYTHONPATH=":".join(path), PYTHONSAFEPATH="1")
        threads = self.task["threads"]
        if threads is None and self.task["processes"] > 1:
            cpus = self.task["cpus"] or len(os.sched_getaffinity(0))
            threads = given.get("OMP_NUM_THREADS") or max(1, cpus // self.task["processes"])
        if threads is not None:
            given["OMP_NUM_THREADS"] = str(threads)
        if self.task["nodes"] == 1:
            given.setdefault("GLOO_SOCKET_IFNAME", "lo")
        # A platform may run us as a user that the image does not know; caches need a name and a place.
        given.setdefault("USER", f"user{os.getuid()}")
        if not os.access(given.get("HOME") or "/nowhere", os.W_OK):
            given["HOME"] = str(self.results)
        return given

    def start(self, command: list[str], log: Path, limit_s: float, look: Callable[[], None]) -> int:
        """Run a command to its end, its limit or ours; its exit code as a shell tells it."""
        mark = secrets.token_hex(16)
        with log.open("ab") as file:
            process = subprocess.Popen(
                command,
                # The lifeline: it closes when we die.
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=subprocess.STDOUT,
                cwd=self.worker,
                env={**self.environment(), LAUNCH_MARK: mark},
                start_new_session=True,
            )
            deadline_s, ended = time.monotonic() + limit_s, False
            while not ended and not self.told and (left_s := deadline_s - time.monotonic()) > 0:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(min(LOOK_EVERY_S, left_s))
                    ended = True
                if not ended:
                    look()
            _end(process, mark, GRACE_S if not self.told else TOLD_GRACE_S, ended=ended)
        if not ended and not self.told:
            return LIMIT_HIT
        return process.returncode if process.returncode >= 0 else 128 - process.returncode


def python() -> list[str]:
    """This interpreter; without the current folder on its path, which older ones cannot be told."""
    return [sys.executable, *(["-P"] if sys.version_info >= (3, 11) else []), "-m"]


def take_lease(raw: Path) -> bool:
    """Whether the run is ours to begin: only one can create the file."""
    try:
        handle = os.open(raw / "lease", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
    except FileExistsError:
        return False
    with os.fdopen(handle, "w") as file:
        file.write(f"{socket.gethostname()} {os.environ.get('NODE_NAME', '')}\n")
    return True


def _end(process: subprocess.Popen[bytes], mark: str, grace_s: float, *, ended: bool) -> None:
    """Leave nothing of a run: ask first, then insist; also with those that have sessions of their own."""
    if not ended:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(grace_s)
    for _ in range(ROUNDS):
        left = _marked(mark)
        for number in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        if process.poll() is not None and not left:
            break
        time.sleep(0.02)
    process.wait()
    if process.stdin is not None:
        process.stdin.close()
    # We are the first process of the container: orphans are ours to bury.
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _marked(mark: str) -> list[int]:
    """Processes that were started, by whatever way, with this mark."""
    found, wanted = [], f"{LAUNCH_MARK}={mark}".encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if wanted in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
    return found


# -- tasks -------------------------------------------------------------------------------------------------------


def each(pod: Pod) -> None:
    """Every run a launch of its own, one after the other."""
    for index in range(len(pod.runs)):
        if pod.make(index) is None:
            return


def packed(pod: Pod) -> None:
    """All runs in one process; each is shipped once its line is there, so that what is finished is safe."""
    folder = pod.results / "jobs" / "000"
    folder.mkdir(parents=True)
    (folder / "tasks").write_text(" ".join(pod.runs) + "\n", encoding="ascii")
    for index in range(len(pod.runs)):
        pod.prepare(index)
    places = {run_id: index for index, run_id in enumerate(pod.runs)}
    done, taken = folder / "0.done", [0]

    def look() -> None:
        lines = done.read_text(encoding="ascii").split("\n")[:-1] if done.exists() else []
        for line in lines[taken[0] :]:
            run_id, code, began, ended = line.split()
            pod.shipper.say("begin", places[run_id], run_id, began)
            pod.ship(places[run_id], int(code), float(began), float(ended))
        taken[0] = len(lines)

    command = [*python(), "steelyard.worker", "--lease", "--done", str(done), "--task", str(folder / "tasks"), "0"]
    limit_s = pod.end_s - SHIPPING_S - time.monotonic()
    code = pod.start(command, pod.results / "packed.log", limit_s, look)
    look()
    _say_broken_off(pod, code, taken[0])
    if code == LIMIT_HIT:
        pod.shipper.say("stop", "limit")


def _say_broken_off(pod: Pod, code: int, done: int) -> None:
    """The run at which the process broke off left no line; what it printed belongs to that one."""
    begun = [index for index, run_id in enumerate(pod.runs) if (pod.raw(run_id) / "lease").exists()]
    if pod.told or len(begun) <= done:
        return
    index = begun[-1]
    raw = pod.raw(pod.runs[index])
    shutil.copyfile(pod.results / "packed.log", raw / "worker.log")
    began = (raw / "lease").stat().st_mtime
    pod.shipper.say("begin", index, pod.runs[index], f"{began:.3f}")
    pod.ship(index, code, began)


def search(pod: Pod) -> None:
    """The largest batch that fits: doubled until it does not, then the gap is halved."""
    batches = [int(pod.specs[run_id]["batch"]) for run_id in pod.runs]
    count, low, high, index = len(batches), -1, len(batches), 0
    while high - low > 1:
        code = pod.make(index)
        if code == 0:
            low = index
        elif code is not None and _memory_is_why(pod.raw(pod.runs[index])):
            high = index
        else:
            return
        if high < count:
            index = (low + high) // 2
        else:
            while index < count - 1 and batches[index] < 2 * batches[low]:
                index += 1


def _memory_is_why(raw: Path) -> bool:
    events = (line for path in sorted(raw.glob("events-*.jsonl")) for line in path.read_bytes().splitlines())
    if any(line.startswith(OUT_OF_MEMORY) for line in events):
        return True
    log = raw / "worker.log"
    return log.exists() and bool(MEMORY_WORDS.search(log.read_bytes()))


def main(arguments: list[str]) -> int:
    """CODE TASK RESULTS: folders of the worker's code, of the task, and for what is written.

    Exit code 0 once all is shipped, however the runs ended: after another code the platform would take the other pods
    of the task away, and their logs with them.
    """
    # Nothing else may write there: what the interpreter or a library prints goes to standard error.
    log = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    code, task, results = map(Path, arguments)
    pod = Pod(code, task, results, log)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _frame: pod.told.append(number))
    try:
        pod.team.gather(pod.task["meeting_s"])
        pod.end_s = time.monotonic() + pod.task["task_limit_s"]
    except NotMetError as error:
        os.write(2, f"{error}\n".encode())
        return NOT_MET
    try:
        {"runs": each, "packed": packed, "search": search}[pod.task["kind"]](pod)
    except NotMetError as error:
        pod.shipper.say("stop", "gone")
        os.write(2, f"{error}\n".encode())
    if pod.told:
        return 128 + pod.told[0]
    pod.shipper.say("all", len(pod.runs))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
