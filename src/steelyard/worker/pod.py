"""Entry point of a pod: makes the runs of its task and sends what they wrote through its log.

Started as a file before the package is unpacked, so it imports only the standard library. A platform may share no file
system with us, but every platform keeps what a container prints. Normal output goes to each run's log; standard output
has lines of the following form, and the reader skips all others:

    #steelyard pod ATTEMPT INDEX                     first; pods that ran together have the same random ATTEMPT
    #steelyard begin INDEX RUN_ID BEGAN
    #steelyard file INDEX FILE NAME SIZE PACKED_SIZE LINES SHA256     then its lines, zlib and base64:
    #steelyard data INDEX FILE LINE LENGTH CRC32 BASE64
    #steelyard lost INDEX NAME SIZE                  did not fit in the log
    #steelyard kept INDEX                            its files are in the object store or on the claim
    #steelyard end INDEX RUN_ID EXIT BEGAN ENDED OOM_KILLS
    #steelyard stop WHY                              limit: no time for the next run; gone: another pod has ended
    #steelyard all RUNS LINES                        nothing follows; LINES: how many came before

Where results are kept in an object store or on a claim, the same lines of one run make up one file there.
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
import urllib.error
import urllib.request
import zipfile
import zlib
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

MARK = "#steelyard"
LINE_BYTES = 9000
"""Packed data per line: 12,000 characters, below the 16 KiB at which container runtimes split lines."""
LINE_OVERHEAD_BYTES = 60
"""What the runtime writes before each line: time, stream and a flag."""
LOG_TAIL_BYTES = 128 << 10
UNPACKED_FACTOR = 32
"""Limit of the unpacked size, as a multiple of the log size: protects the reader from a decompression bomb."""
LIMIT_HIT = 124
GRACE_S = 30.0
SIGNAL_GRACE_S = 15.0
SHIPPING_S = 30.0
"""Reserved at the end of the task's time."""
LOOK_EVERY_S = 0.2
PORT_VARIABLE = "STEELYARD_MEETING_PORT"
"""Of the pod, where the port at which the pods of a task meet is taken: if they share the network of their node."""
MEETING_PORT, RUN_PORTS = 29_500, 400
RESERVE_BYTES = 1 << 18
LAUNCH_MARK = "STEELYARD_LAUNCH"
ROUNDS = 50
NOT_MET = 71
"""Exit code: not all pods of the task started in time."""
# Files that a run writes only for itself.
NOT_SHIPPED = re.compile(r"spec\.json|launch\.json|reserve|compiling|progress\.json.*|rested-.*")
# If the log is full, files from the end of this list are left out.
ORDER = ("lease", "events-", "program-", "processes-", "sensors-", "worker.log", "steps-", "tokens-", "work-", "power-")
KEPT_BYTES = 5_000_000_000
"""What one task may keep outside its log: the largest object that one request can store."""
STORE_TRIES, STORE_S = 5, 120.0
MEMORY_COUNTS = ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control")
"""In a container these are of its own control group, version 2 and 1."""
MEMORY_WORDS = re.compile(rb"oom.kill|exceeded memory limit|std::bad_alloc", re.IGNORECASE)
OUT_OF_MEMORY = b'{"kind": "status", "code": "out_of_memory"'


class NotMetError(Exception):
    """Another pod of the task did not start in time or has ended."""


# -- shipping ----------------------------------------------------------------------------------------------------


class Shipper:
    """Writes lines to the log within its size limit."""

    def __init__(self, log: io.RawIOBase | Any, budget_bytes: int) -> None:
        self._log = log
        self.lines = 0
        self._left = budget_bytes
        self._unpacked_left = UNPACKED_FACTOR * budget_bytes

    def write(self, *fields: object) -> None:
        """Write one line."""
        line = " ".join([MARK, *map(str, fields)]).encode("ascii") + b"\n"
        self.lines += 1
        self._left -= len(line) + LINE_OVERHEAD_BYTES
        self._log.write(line)
        self._log.flush()

    def ship(self, index: int, raw: Path, runs_left: int, scratch: Path) -> None:
        """Send the files of a run within its share of the log; report those that do not fit."""
        # The reserve was for the final status on a full disk, which is written by now.
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
                self.write("lost", index, name, size)
            else:
                self._unpacked_left -= size

    def _send_file(self, index: int, number: int, path: Path, packed: Path, until: int) -> bool:
        """Send one file; return False if there is no room in the log or on the disk."""
        try:
            packed_size, digest = _pack(path, packed)
        except OSError:
            return False
        lines = -(-packed_size // LINE_BYTES)
        if self._left - packed_size * 4 // 3 - (lines + 2) * (LINE_OVERHEAD_BYTES + 60) < until:
            return False
        self.write("file", index, number, path.name, path.stat().st_size, packed_size, lines, digest)
        with packed.open("rb") as file:
            for line in range(lines):
                data = file.read(LINE_BYTES)
                crc = f"{zlib.crc32(data):08x}"
                self.write("data", index, number, line, len(data), crc, base64.b64encode(data).decode("ascii"))
        return True


def _tail_of(log: Path, scratch: Path) -> Path:
    """Return a copy of the end of a log that is too long, with a first line that says so."""
    left_out = log.stat().st_size - LOG_TAIL_BYTES
    tail = scratch / log.name
    with log.open("rb") as file:
        file.seek(left_out)
        tail.write_bytes(
            f"... {left_out} earlier bytes were not sent from the pod\n".encode() + file.read(LOG_TAIL_BYTES)
        )
    return tail


def _pack(path: Path, packed: Path) -> tuple[int, str]:
    """Compress a file; return the packed size and the checksum of the content."""
    digest, press = hashlib.sha256(), zlib.compressobj(6)
    with path.open("rb") as source, packed.open("wb") as target:
        while block := source.read(1 << 20):
            digest.update(block)
            target.write(press.compress(block))
        target.write(press.flush())
        return target.tell(), digest.hexdigest()


# -- results outside the log -------------------------------------------------------------------------------------


class Store:
    """An object store: one address per run, which allows this pod to write that object and nothing else."""

    def __init__(self, addresses: list[str]) -> None:
        self._addresses = addresses

    def keep(self, run: int, _attempt: str, parcel: Path, stopped: Callable[[], bool]) -> bool:
        """Store a file; False if the store does not accept it."""
        for number in range(STORE_TRIES):
            if number:
                time.sleep(0 if stopped() else 2.0**number)
            try:
                with parcel.open("rb") as file:
                    size = str(parcel.stat().st_size)
                    request = urllib.request.Request(  # noqa: S310 -- the address was made by the front, with https
                        self._addresses[run], data=file, method="PUT", headers={"Content-Length": size}
                    )
                    with urllib.request.urlopen(request, timeout=STORE_S):  # noqa: S310
                        return True
            except urllib.error.HTTPError as error:
                # Without the address, which allows anybody to write there.
                os.write(2, f"the object store answers {error.code} {error.reason}\n".encode("ascii", "replace"))
                if error.code in (400, 403, 404):
                    return False
            except (OSError, ValueError, IndexError) as error:
                os.write(2, f"the object store cannot be reached: {type(error).__name__}\n".encode())
        return False

    def has(self, _run: int) -> bool:
        """Return whether an earlier pod has finished this run: not known, as the address only allows writing."""
        return False


class SharedVolume:
    """A folder on a volume that all pods of the campaign share."""

    def __init__(self, folder: Path, index: int) -> None:
        self._folder, self._index = folder, index

    def keep(self, run: int, attempt: str, parcel: Path, _stopped: Callable[[], bool]) -> bool:
        """Store a file; False if the volume does not accept it."""
        place = self._folder / attempt
        try:
            place.mkdir(parents=True, exist_ok=True)
            half = place / f".{self._index}-{run}"
            shutil.copyfile(parcel, half)
            with half.open("rb") as file:
                os.fsync(file.fileno())
            half.rename(place / f"{self._index}-{run}")
        except OSError as error:
            os.write(2, f"the claim cannot be written: {error}\n".encode("utf-8", "replace"))
            return False
        return True

    def has(self, run: int) -> bool:
        """Return whether an earlier pod has finished this run."""
        return any(self._folder.glob(f"*/{self._index}-{run}"))


def read_claim(folder: Path, log: Any) -> int:
    """Print all files of a task on the claim; for the short pod that fetches them."""
    count = 0
    for path in sorted(folder.glob("*/[0-9]*-[0-9]*")):
        if path.is_file() and not path.is_symlink():
            with path.open("rb") as file:
                shutil.copyfileobj(file, log)
            count += 1
    log.write(f"{MARK} read {count}\n".encode())
    log.flush()
    return 0


def memory_kills() -> int:
    """Count the processes that the memory limit of this container has killed; 0 if that cannot be seen."""
    for place in MEMORY_COUNTS:
        with contextlib.suppress(OSError, ValueError, IndexError):
            lines = Path(place).read_text(encoding="ascii").splitlines()
            return sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))
    return 0


# -- several pods ------------------------------------------------------------------------------------------------


class PodTeam:
    """Synchronises the pods of a task: no run starts before all have arrived, and none waits for one that ended."""

    def __init__(self, name: str, index: int, count: int, host: str | None) -> None:
        self.index, self.count, self.host = index, count, host
        self.attempt = secrets.token_hex(8)
        self._name = name
        self._others: list[socket.socket] = []

    def gather(self, limit_s: float) -> None:
        """Wait until all pods have started. The platform may start them minutes apart."""
        if self.count == 1:
            return
        deadline_s = time.monotonic() + limit_s
        if self.index:
            self._others = [self._join(deadline_s)]
        else:
            self._others = self._welcome(deadline_s)
        self.meet(0, limit_s)
        try:
            if self.index:
                self.attempt = _line(self._others[0]).decode("ascii", "replace").strip()
            for other in self._others if not self.index else []:
                other.sendall(f"{self.attempt}\n".encode())
        except OSError as error:
            raise NotMetError(f"another pod of the task has ended: {error}") from None

    def meet(self, number: int, limit_s: float) -> None:
        """Return when all pods have reached this point; NotMetError if one has ended."""
        message = f"{self._name} {number}\n".encode()
        try:
            for other in self._others:
                other.settimeout(limit_s)
                if self.index:
                    other.sendall(message)
                if (answer := _line(other)) != message:
                    raise OSError(
                        f'it sent "{answer[:40].decode(errors="replace")}" instead of "{message.decode().strip()}"'
                    )
            for other in self._others if not self.index else []:
                other.sendall(message)
        except OSError as error:
            raise NotMetError(f"another pod of the task has ended: {error}") from None

    def _welcome(self, deadline_s: float) -> list[socket.socket]:
        with socket.create_server(("", meeting_port()), backlog=self.count) as server:
            connected: dict[int, socket.socket] = {}
            while len(connected) < self.count - 1:
                server.settimeout(max(0.01, deadline_s - time.monotonic()))
                try:
                    other, _ = server.accept()
                except OSError:
                    missing = [str(n) for n in range(1, self.count) if n not in connected]
                    raise NotMetError(f"pods {', '.join(missing[:20])} of {self.count} did not start in time") from None
                if (number := _introduced(other, self._name)) is not None and 0 < number < self.count:
                    connected[number] = other
                else:
                    other.close()
        return list(connected.values())

    def _join(self, deadline_s: float) -> socket.socket:
        """Connect to the first pod, whose name the platform's DNS knows only some time after its start."""
        why = "no time left"
        while (left_s := deadline_s - time.monotonic()) > 0:
            other, why = self._call(left_s)
            if other is not None:
                return other
            time.sleep(min(1.0, left_s))
        raise NotMetError(f"pod 0 of {self.count} did not start in time: {self.host}: {why}")

    def _call(self, limit_s: float) -> tuple[socket.socket | None, str]:
        try:
            other = socket.create_connection((self.host, meeting_port()), timeout=limit_s)
            other.sendall(f"{self._name} {self.index}\n".encode())
        except OSError as error:
            return None, str(error)
        return other, ""


def meeting_port() -> int:
    """Return the port at which the pods of a task meet; those after it are for their runs."""
    return int(os.environ.get(PORT_VARIABLE) or MEETING_PORT)


def run_port(index: int) -> int:
    """Return the port at which the ranks of a run meet: another for each, so that leftovers do not disturb the next."""
    return meeting_port() + 1 + index % RUN_PORTS


def _line(other: socket.socket) -> bytes:
    line = b""
    while not line.endswith(b"\n") and len(line) < 200:
        if not (byte := other.recv(1)):
            raise OSError("it closed the connection")
        line += byte
    return line


def _introduced(other: socket.socket, name: str) -> int | None:
    """Return the number of the pod that connects; None: not one of ours."""
    other.settimeout(10)
    try:
        fields = _line(other).decode("ascii", "replace").split()
    except OSError:
        return None
    return int(fields[1]) if len(fields) == 2 and fields[0] == name and fields[1].isdigit() else None


# -- runs --------------------------------------------------------------------------------------------------------


class Pod:
    """One pod with its task."""

    def __init__(self, code: Path, task: Path, results: Path, kept: Path | None, log: Any) -> None:
        self.task: dict[str, Any] = json.loads((task / "task.json").read_bytes())
        self.specs: dict[str, Any] = json.loads(gzip.decompress((task / "specs.json.gz").read_bytes()))
        self.sources: dict[str, str] = self.specs.pop("sources", {})
        self.runs: list[str] = self.task["runs"]
        self.results = results
        # Of the image: a person's own program starts there.
        self.folder = os.getcwd()  # noqa: PTH109 -- plain text
        self.shipper = Shipper(log, self.task["log_bytes"])
        self.index = int(os.environ.get("JOB_COMPLETION_INDEX", "0"))
        self.team = PodTeam(self.task["name"], self.index, self.task["nodes"], self.task["master"])
        self.keeper: Store | SharedVolume | None = None
        if kept is not None and self.task["results"] == "s3":
            self.keeper = Store(json.loads((kept / "addresses.json").read_bytes())[self.index])
        elif kept is not None:
            self.keeper = SharedVolume(kept / self.task["folder"], self.index)
        self._kept_left = KEPT_BYTES
        self.signals: list[int] = []
        # The largest number of candidates that a search tries.
        tries = 2 * len(self.runs).bit_length() + 1
        self.to_ship = min(len(self.runs), tries) if self.task["kind"] == "search" else len(self.runs)
        self.end_s = time.monotonic() + self.task["task_limit_s"]
        self.worker = results / "worker"
        packed_worker = (code / "worker.zip").read_bytes()
        if hashlib.sha256(packed_worker).hexdigest() != self.task["worker_sha256"]:
            raise SystemExit(f"{code / 'worker.zip'} does not match this task (checksum differs)")
        with zipfile.ZipFile(io.BytesIO(packed_worker)) as archive:
            archive.extractall(self.worker)

    def raw(self, run_id: str) -> Path:
        """Return where a run's worker reads and writes, as in a campaign's folder."""
        return self.results / "runs" / run_id / "raw"

    def prepare(self, index: int) -> Path:
        """Create a run's folder with its spec."""
        run_id = self.runs[index]
        raw, spec = self.raw(run_id), self.specs[run_id]
        raw.mkdir(parents=True)
        source = spec.get("source")
        if source is not None and source["sha256"] in self.sources:
            # The user's file is part of the task; its path is different here.
            path = self.results / "sources" / f"{source['sha256']}.py"
            path.parent.mkdir(exist_ok=True)
            path.write_text(self.sources[source["sha256"]], encoding="utf-8")
            source["path"] = str(path)
        (raw / "spec.json").write_text(json.dumps(spec, indent=1), encoding="utf-8")
        (raw / "reserve").write_bytes(bytes(RESERVE_BYTES))
        return raw

    def make(self, index: int) -> int | None:
        """Make one run; return its exit code, or None if it was not made."""
        left_s = self.end_s - SHIPPING_S - time.monotonic()
        if self.signals:
            return None
        if left_s <= 0:
            self.shipper.write("stop", "limit")
            return None
        raw = self.prepare(index)
        if not take_lease(raw):
            return None
        self.team.meet(index + 1, self.task["run_limit_s"] + 4 * GRACE_S)
        began, kills = time.time(), memory_kills()
        self.shipper.write("begin", index, self.runs[index], f"{began:.3f}")
        limit_s = min(self.task["run_limit_s"], left_s)
        code = self.start(self.command(raw, index), raw / "worker.log", limit_s, more=self.place_program(index))
        shutil.rmtree(raw / "torchrun", ignore_errors=True)
        self.ship(index, code, began, kills=memory_kills() - kills)
        return None if self.signals else code

    def ship(self, index: int, code: int, began: float, ended: float | None = None, kills: int = 0) -> None:
        """Send the files of a run and how it ended. After a signal the platform reports the end."""
        ended = time.time() if ended is None else ended
        raw = self.raw(self.runs[index])
        end = ("end", index, self.runs[index], code, f"{began:.3f}", f"{ended:.3f}", max(0, kills))
        if self.keeper is not None and not self.signals and self._keep(index, raw, began, end):
            self.shipper.write("kept", index)
        else:
            self.shipper.ship(index, raw, self.to_ship, self.results)
        self.to_ship -= 1
        if not self.signals:
            self.shipper.write(*end)

    def _keep(self, index: int, raw: Path, began: float, end: tuple[object, ...]) -> bool:
        """Store a finished run outside the log; False: it must go through the log."""
        parcel = self.results / "parcel"
        try:
            with parcel.open("wb") as file:
                lines = Shipper(file, self._kept_left)
                lines.write("pod", self.team.attempt, self.index)
                lines.write("begin", index, self.runs[index], f"{began:.3f}")
                lines.ship(index, raw, 1, self.results)
                lines.write(*end)
                lines.write("all", 1, lines.lines)
            kept = self.keeper is not None and self.keeper.keep(
                index, self.team.attempt, parcel, lambda: bool(self.signals)
            )
            self._kept_left -= parcel.stat().st_size if kept else 0
        except OSError as error:
            os.write(2, f"the results of {self.runs[index]} cannot be packed: {error}\n".encode("utf-8", "replace"))
            return False
        finally:
            parcel.unlink(missing_ok=True)
        return kept

    def command(self, raw: Path, index: int) -> list[str]:
        """Return the command that this pod starts for a run."""
        task = self.task
        worker = [*python(), "steelyard.worker", str(raw), "--lifeline"]
        if task["program"] or task["nodes"] * task["processes"] == 1:
            return worker
        torchrun = [*python(), "torch.distributed.run", f"--log-dir={raw / 'torchrun'}"]
        if task["nodes"] == 1:
            torchrun += ["--standalone"]
        else:
            torchrun += [f"--nnodes={task['nodes']}", f"--node-rank={self.index}", "--rdzv-backend=static"]
            torchrun += [f"--master-addr={task['master']}", f"--master-port={run_port(index)}"]
        return [*torchrun, f"--nproc-per-node={task['processes']}", "--no-python", *worker]

    def environment(self) -> dict[str, str]:
        """Return the worker's environment: the pod's variables and what a run needs."""
        given = dict(os.environ)
        path = [str(self.worker), *filter(None, [given.get("PYTHONPATH")])]
        given.update(PYTHONPATH=":".join(path), PYTHONSAFEPATH="1")
        # As steelyard.contracts.threads, which is not here.
        if self.task["threads"] is not None:
            given["OMP_NUM_THREADS"] = str(self.task["threads"])
        elif not given.get("OMP_NUM_THREADS") and not self.task["program"]:
            share = f"{self.task['cpus'] or ''}/{self.task['sharing']}"
            given.update(OMP_NUM_THREADS="1", STEELYARD_CPU_SHARE=share)
        if self.task["nodes"] == 1 and not self.task["program"]:
            given.setdefault("GLOO_SOCKET_IFNAME", "lo")
        # The user id may be unknown in the image; caches need a user name and a writable folder.
        given.setdefault("USER", f"user{os.getuid()}")
        if not os.access(given.get("HOME") or "/nowhere", os.W_OK):
            given["HOME"] = str(self.results)
        return given

    def place_program(self, index: int) -> dict[str, str]:
        """Return the variables that tell the worker of a program where to start it, and which of the nodes this is.

        Their names are those of steelyard.contracts.wrap, which is not here.
        """
        if not self.task["program"]:
            return {}
        values = {"STEELYARD_FOLDER": self.folder}
        if self.task["nodes"] > 1:
            values |= {"STEELYARD_NODES": str(self.task["nodes"]), "STEELYARD_NODE": str(self.index)}
            values |= {"STEELYARD_MEETING_HOST": self.task["master"], "STEELYARD_MEETING_PORT": str(run_port(index))}
        return values

    def start(
        self,
        command: list[str],
        log: Path,
        limit_s: float,
        look: Callable[[], None] = lambda: None,
        more: Mapping[str, str] = MappingProxyType({}),
    ) -> int:
        """Run a command until it ends, hits its limit or we get a signal; return the exit code as a shell does.

        `more`: variables beside those of every run.
        """
        mark = secrets.token_hex(16)
        with log.open("ab") as file:
            process = subprocess.Popen(
                command,
                # The lifeline: it closes when this process dies.
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=subprocess.STDOUT,
                cwd=self.worker,
                env={**self.environment(), **more, LAUNCH_MARK: mark},
                start_new_session=True,
            )
            deadline_s, ended = time.monotonic() + limit_s, False
            while not ended and not self.signals and (left_s := deadline_s - time.monotonic()) > 0:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(min(LOOK_EVERY_S, left_s))
                    ended = True
                if not ended:
                    look()
            _end(process, mark, GRACE_S if not self.signals else SIGNAL_GRACE_S, ended=ended)
        if not ended and not self.signals:
            return LIMIT_HIT
        return process.returncode if process.returncode >= 0 else 128 - process.returncode


def python() -> list[str]:
    """Return the command of this interpreter, without the current folder on its path where that is supported."""
    return [sys.executable, *(["-P"] if sys.version_info >= (3, 11) else []), "-m"]


def take_lease(raw: Path) -> bool:
    """Whether this pod may start the run: only one can create the file."""
    try:
        handle = os.open(raw / "lease", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
    except FileExistsError:
        return False
    with os.fdopen(handle, "w") as file:
        file.write(f"{socket.gethostname()} {os.environ.get('NODE_NAME', '')}\n")
    return True


def _end(process: subprocess.Popen[bytes], mark: str, grace_s: float, *, ended: bool) -> None:
    """End all processes of a run: SIGTERM first, then SIGKILL, also for those with their own session."""
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
    # As the container's first process we must reap orphans.
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _marked(mark: str) -> list[int]:
    """Return the processes whose environment has this mark."""
    numbers, wanted = [], f"{LAUNCH_MARK}={mark}".encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if wanted in (entry / "environ").read_bytes().split(b"\0"):
                    numbers.append(int(entry.name))
    return numbers


# -- tasks -------------------------------------------------------------------------------------------------------


def each(pod: Pod) -> None:
    """Launch the runs one after the other, each in its own process."""
    for index in range(len(pod.runs)):
        # The platform may start a second pod after the first was lost; runs that it finished are not made again.
        if pod.task["nodes"] == 1 and pod.keeper is not None and pod.keeper.has(index):
            continue
        if pod.make(index) is None:
            return


def packed(pod: Pod) -> None:
    """Make all runs in one process; send each as soon as its line appears, so that finished runs are safe."""
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
            pod.shipper.write("begin", places[run_id], run_id, began)
            pod.ship(places[run_id], int(code), float(began), float(ended))
        taken[0] = len(lines)

    command = [*python(), "steelyard.worker", "--lease", "--done", str(done), "--task", str(folder / "tasks"), "0"]
    limit_s = pod.end_s - SHIPPING_S - time.monotonic()
    code = pod.start(command, pod.results / "packed.log", limit_s, look)
    look()
    _ship_unfinished(pod, code, taken[0])
    if code == LIMIT_HIT:
        pod.shipper.write("stop", "limit")


def _ship_unfinished(pod: Pod, code: int, done: int) -> None:
    """Send the run during which the process ended; it has no line, and the output belongs to it."""
    begun = [index for index, run_id in enumerate(pod.runs) if (pod.raw(run_id) / "lease").exists()]
    if pod.signals or len(begun) <= done:
        return
    index = begun[-1]
    raw = pod.raw(pod.runs[index])
    shutil.copyfile(pod.results / "packed.log", raw / "worker.log")
    began = (raw / "lease").stat().st_mtime
    pod.shipper.write("begin", index, pod.runs[index], f"{began:.3f}")
    pod.ship(index, code, began)


def search(pod: Pod) -> None:
    """Find the largest batch that fits: double it until it does not, then bisect."""
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
    """CODE TASK RESULTS [KEPT]: folders of the worker's code, of the task, for results, and of what outlives the pod.
    Or --read FOLDER: print the files of a task that were kept on a claim.

    Exit with 0 once everything is sent, however the runs ended: on another code the platform would remove the other
    pods of the task with their logs.
    """
    # Standard output is reserved: other output goes to standard error.
    log = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    if arguments[0] == "--read":
        return read_claim(Path(arguments[1]), log)
    code, task, results, *kept = map(Path, arguments)
    pod = Pod(code, task, results, kept[0] if kept else None, log)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _frame: pod.signals.append(number))
    try:
        pod.team.gather(pod.task["meeting_s"])
        pod.end_s = time.monotonic() + pod.task["task_limit_s"]
    except NotMetError as error:
        os.write(2, f"{error}\n".encode())
        return NOT_MET
    pod.shipper.write("pod", pod.team.attempt, pod.index)
    try:
        {"runs": each, "packed": packed, "search": search}[pod.task["kind"]](pod)
    except NotMetError as error:
        pod.shipper.write("stop", "gone")
        os.write(2, f"{error}\n".encode())
    if pod.signals:
        return 128 + pod.signals[0]
    pod.shipper.write("all", len(pod.runs), pod.shipper.lines)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
