"""Read results from the lines that pods print or store, checked line by line, into the campaign's folder.

A log comes from a machine that we do not control, through others that may truncate it. Whatever it contains, nothing
is written outside the runs of its task, sizes are limited, and missing files are reported.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
import secrets
import shutil
import zlib
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from steelyard import nofollow
from steelyard.contracts import observe
from steelyard.errors import printable
from steelyard.launch.scripts.task import read_done
from steelyard.redact import redact

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from steelyard.launch.campaign import Campaign, JobArray

MARK: Final = b"#steelyard "
MAX_LINE_BYTES: Final = 20_000
UNPACKED_FACTOR: Final = 32
"""A log unpacks to at most this many times its size; worker/pod.py sends no more."""
MAX_FILES: Final = 20_000
MAX_OPEN: Final = 32
MAX_PROBLEMS: Final = 20
OTHER_BYTES: Final = 64 << 10
LOG_OF_OTHERS_BYTES: Final = 32 << 10
TRANSPORT_FILE: Final = "events-transport.jsonl"
"""A status written by the collector for a run whose files did not all arrive."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_HEAD_OF_POD: Final = "---- pod {pod.index} on {pod.node}\n"
# Files that only we write, never a pod.
_OURS = (observe.SPEC_FILE, observe.LAUNCH_FILE, observe.RESERVE_FILE, TRANSPORT_FILE)
_NUMBER = r"(\d{1,12})"
_TIME = r"(\d{1,12}\.\d{1,9})"
_WORDS: Final = {
    "pod": re.compile(rf"([0-9a-f]{{1,32}}) {_NUMBER}"),
    "begin": re.compile(rf"{_NUMBER} (\S{{1,80}}) {_TIME}"),
    "file": re.compile(rf"{_NUMBER} {_NUMBER} (\S{{1,100}}) {_NUMBER} {_NUMBER} {_NUMBER} ([0-9a-f]{{64}})"),
    "data": re.compile(rf"{_NUMBER} {_NUMBER} {_NUMBER} {_NUMBER} ([0-9a-f]{{8}}) ([A-Za-z0-9+/=]+)"),
    "lost": re.compile(rf"{_NUMBER} (\S{{1,100}}) {_NUMBER}"),
    "kept": re.compile(_NUMBER),
    "end": re.compile(rf"{_NUMBER} (\S{{1,80}}) (\d{{1,3}}) {_TIME} {_TIME} (\d{{1,9}})"),
    "stop": re.compile(r"(limit|gone)"),
    "all": re.compile(rf"{_NUMBER} {_NUMBER}"),
}


_PARCEL = re.compile(rf"pod [0-9a-f]{{1,32}} {_NUMBER}")
_READ = re.compile(rf"read {_NUMBER}")


class _BadLineError(Exception):
    """One of our lines is malformed."""


@dataclass
class Arrived:
    """What has arrived of one run from one pod."""

    begun: str | None = None
    """The time of the start, as the pod wrote it."""
    end: tuple[int, str, str, int] | None = None
    """Exit code, begin, end, processes killed at the memory limit."""
    kept: bool = False
    """Whether the pod has stored the files outside its log."""
    files: dict[str, Path] = field(default_factory=dict)
    """Complete and checked files."""
    lost: dict[str, int] = field(default_factory=dict)
    """Files that the pod left out for lack of room, with their sizes."""
    problems: list[str] = field(default_factory=list)

    def complain(self, problem: str) -> None:
        """Keep a problem, up to a limit."""
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(printable(problem)[:300])


@dataclass
class PodLog:
    """What one pod printed, or stored of one run."""

    index: int
    node: str
    attempt: str = ""
    """The same for pods that ran together; empty: the beginning is missing."""
    runs: dict[int, Arrived] = field(default_factory=dict)
    stopped: str | None = None
    whole: bool = False
    """Whether it has its closing line and all lines before it."""
    closed: bool = False
    """Whether it was read after its end."""
    lines: int = 0
    """How many of our lines were read."""
    stored: bool = False
    """Whether it is of one run, from outside the log."""
    other: bytes = b""
    """The end of all other output."""

    @property
    def complete(self) -> bool:
        """Whether nothing that the pod printed is missing. A container that ended before our first line has none."""
        if self.stored:
            return False
        return self.whole or (self.closed and (bool(self.attempt) or not self.lines))


_Part = tuple[PodLog, Arrived]


class _Incoming:
    """A file of which lines are still arriving."""

    def __init__(self, path: Path, name: str, size: int, packed_size: int, lines: int, sha256: str) -> None:
        self.path, self.name = path, name
        self._size, self._packed_left, self._lines, self._sha256 = size, packed_size, lines, sha256
        self._next = 0
        self._digest = hashlib.sha256()
        self._unpack = zlib.decompressobj()
        self._left = size
        self._file = path.open("wb")

    def take(self, number: int, data: bytes) -> bool:
        """Add one line of the file; True when it is complete."""
        if number != self._next:
            raise _BadLineError(f"{self.name}: line {number} instead of {self._next}")
        self._next += 1
        self._packed_left -= len(data)
        if self._packed_left < 0:
            raise _BadLineError(f"{self.name} is longer than announced")
        try:
            # One byte more than allowed shows that there is more.
            block = self._unpack.decompress(data, self._left + 1)
        except zlib.error as error:
            raise _BadLineError(f"{self.name}: {error}") from None
        self._left -= len(block)
        if self._left < 0 or self._unpack.unconsumed_tail:
            raise _BadLineError(f"{self.name} unpacks to more than the announced {self._size} bytes")
        self._digest.update(block)
        self._file.write(block)
        if self._next != self._lines:
            return False
        self._file.close()
        if self._left or self._packed_left or not self._unpack.eof or self._digest.hexdigest() != self._sha256:
            raise _BadLineError(f"{self.name} does not match its checksum")
        return True

    def drop(self) -> None:
        """Discard the file."""
        self._file.close()
        self.path.unlink(missing_ok=True)


class LogReader:
    """Reads one pod's log into files of a scratch folder."""

    def __init__(self, runs: Sequence[str], scratch: Path, log_bytes: int, pod: PodLog) -> None:
        self._runs, self._scratch, self.pod = runs, scratch, pod
        self._left = UNPACKED_FACTOR * log_bytes
        self._files = 0
        self._open: dict[tuple[int, int], _Incoming] = {}

    def read(self, lines: Iterable[bytes]) -> PodLog:
        """Read all lines."""
        for line in lines:
            self.take(line)
        return self.finish()

    def take(self, line: bytes) -> None:
        """Read one line."""
        if line.startswith(MARK):
            self._take(line[len(MARK) :].decode("ascii", "replace"))
        else:
            self.pod.other = (self.pod.other + line + b"\n")[-OTHER_BYTES:]

    def finish(self) -> PodLog:
        """Return what was read. Files that are incomplete have not arrived."""
        for (index, _), incoming in self._open.items():
            self._of(index).complain(f"{incoming.name} is incomplete")
            incoming.drop()
        self._open.clear()
        return self.pod

    def _take(self, line: str) -> None:
        word, _, rest = line.partition(" ")
        match = _WORDS[word].fullmatch(rest) if word in _WORDS else None
        # Other output that begins like ours, or a truncated line: it is missed where it is needed.
        if match is None:
            return
        self.pod.lines += 1
        if word == "pod":
            self.pod.attempt = match[1]
        elif word == "stop":
            self.pod.stopped = match[1]
        elif word == "all":
            self.pod.whole = int(match[2]) == self.pod.lines - 1
        elif word == "data":
            self._take_data(*match.groups())
        elif int(match[1]) < len(self._runs):
            self._take_of_run(word, int(match[1]), match.groups()[1:])

    def _take_of_run(self, word: str, index: int, values: Sequence[str]) -> None:
        if word == "file":
            self._take_file(index, *values)
        elif word == "kept":
            self._of(index).kept = True
        elif word == "lost":
            name, size = values
            if _NAME.fullmatch(name) and len(self._of(index).lost) < MAX_PROBLEMS:
                self._of(index).lost[name] = int(size)
        elif values[0] != self._runs[index]:
            # The run id does not match the number.
            return
        elif word == "begin":
            self._of(index).begun = values[1]
        elif (code := int(values[1])) <= 255:
            self._of(index).end = code, values[2], values[3], int(values[4])

    def _of(self, index: int) -> Arrived:
        return self.pod.runs.setdefault(index, Arrived())

    def _take_file(self, index: int, number: str, name: str, size: str, packed: str, lines: str, sha256: str) -> None:
        arrived, key = self._of(index), (index, int(number))
        allowed = _NAME.fullmatch(name) and name not in _OURS
        self._files += 1
        if not allowed or name in arrived.files or key in self._open:
            arrived.complain(f'a file named "{name}" is not accepted')
        elif int(size) > self._left or self._files > MAX_FILES or len(self._open) >= MAX_OPEN or int(lines) < 1:
            arrived.complain(f"{name} exceeds the limits")
        else:
            self._left -= int(size)
            # By our own count: a repeated header must not overwrite a complete file.
            path = self._scratch / f"{self.pod.index}-{self._files}"
            self._open[key] = _Incoming(path, name, int(size), int(packed), int(lines), sha256)

    def _take_data(self, index: str, number: str, line: str, length: str, crc: str, text: str) -> None:
        key = int(index), int(number)
        incoming = self._open.get(key)
        if incoming is None:
            return
        try:
            whole = incoming.take(int(line), _decode(incoming.name, int(length), crc, text))
        except _BadLineError as error:
            incoming.drop()
            del self._open[key]
            self._of(key[0]).complain(str(error))
            return
        if whole:
            del self._open[key]
            self._of(key[0]).files[incoming.name] = incoming.path


def _decode(name: str, length: int, crc: str, text: str) -> bytes:
    try:
        data = base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise _BadLineError(f"{name}: {error}") from None
    if len(data) != length or f"{zlib.crc32(data):08x}" != crc:
        raise _BadLineError(f"{name}: a line does not match its checksum")
    return data


def bounded_lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield lines without line ends; skip lines that are too long, and an unfinished last line."""
    rest, too_long = b"", False
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if not too_long and len(line) <= MAX_LINE_BYTES:
                yield line
            too_long = False
        if len(rest) > MAX_LINE_BYTES:
            rest, too_long = b"", True


def read_parcels(lines: Iterable[bytes], make: Callable[[int], LogReader]) -> tuple[list[PodLog], int | None]:
    """Read what pods have stored: files of single runs that follow each other, each from its first line `pod`.

    `make`: a reader for the pod with this index. Also return how many files there are, if the last line says it.
    """
    pods: list[PodLog] = []
    reader: LogReader | None = None
    count: int | None = None
    for line in lines:
        text = line[len(MARK) :].decode("ascii", "replace") if line.startswith(MARK) else ""
        if head := _PARCEL.fullmatch(text):
            pods += [reader.finish()] if reader is not None else []
            reader = make(int(head[1]))
        elif end := _READ.fullmatch(text):
            count = int(end[1])
        if reader is not None:
            reader.take(line)
    pods += [reader.finish()] if reader is not None else []
    # Half of a file is as good as none: its pod may still be writing, or the rest may follow.
    return [pod for pod in pods if pod.whole], count


# -- into the campaign -------------------------------------------------------------------------------------------


def lay_down(campaign: Campaign, job: JobArray, task: int, pods: Sequence[PodLog]) -> bool:
    """Write what has arrived of a task into the folders of its runs that are not collected yet.

    The platform may start pods a second time. A run comes from one attempt as a whole: the first that finished it.
    Return whether something that the pods printed or stored may be missing.
    """
    # Files that may be removed or truncated before the next poll: keep what is known.
    lines = {
        done.run_id: f"{done.run_id} {done.exit_code} {done.began_unix_s:.3f} {done.ended_unix_s:.3f}"
        f" {done.oom_kills}\n"
        for done in read_done(campaign.done_file(job, task))
    }
    pods = sorted(pods, key=lambda pod: pod.index)
    for index, run_id in enumerate(job.tasks[task]):
        parts = _choose_attempt([(pod, pod.runs[index]) for pod in pods if index in pod.runs])
        raw = campaign.raw(run_id)
        if parts:
            # Another collector may have finished the run.
            with suppress(FileNotFoundError):
                _lay_run(raw, parts)
        elif job.kind != "search" and any(pod.stopped == "limit" for pod in pods) and nofollow.is_folder(raw):
            _say(raw, "time_limit", "the task reached its time limit before this run could start", {})
        ends = [part.end for _, part in parts if part.end is not None]
        if len(ends) == job.shape.nodes:
            code = next((end[0] for end in ends if end[0]), 0)
            began, ended = min((end[1] for end in ends), key=float), max((end[2] for end in ends), key=float)
            lines.setdefault(run_id, f"{run_id} {code} {began} {ended} {sum(end[3] for end in ends)}\n")
    if pods:
        printed = [_HEAD_OF_POD.format(pod=pod).encode("utf-8", "replace") + pod.other for pod in pods if pod.other]
        text = redact(b"".join(printed).decode("utf-8", "replace"))[0]
        _write_whole(campaign.output_file(job, task), text.encode())
        _write_whole(campaign.done_file(job, task), "".join(lines.values()).encode())
    return not lines.keys() >= set(job.tasks[task]) and not _is_complete(pods, job.shape.nodes)


def _is_complete(pods: Sequence[PodLog], nodes: int) -> bool:
    """Return whether all lines of all pods of one attempt are here; of pods that printed nothing, of any."""
    silent = {pod.index for pod in pods if pod.complete and not pod.attempt}
    attempts = {pod.attempt for pod in pods}
    return any(
        len({pod.index for pod in pods if pod.attempt == attempt and pod.complete} | silent) >= nodes
        for attempt in attempts
    )


def _choose_attempt(parts: Sequence[_Part]) -> list[_Part]:
    """Return the parts of the first attempt that finished a run on all nodes; else of the one that came furthest."""
    attempts: dict[str, dict[int, _Part]] = {}
    for pod, part in parts:
        there = attempts.setdefault(pod.attempt, {})
        # What a pod stored outside its log has the files; its log has none.
        if pod.index not in there or len(part.files) > len(there[pod.index][1].files):
            there[pod.index] = pod, part

    def finished(attempt: dict[int, _Part]) -> tuple[int, float]:
        # Of a run that was stored outside the log, the log has the end but no files.
        here = [part for _, part in attempt.values() if not part.problems and (part.files or not part.kept)]
        ends = [part.end for part in here if part.end is not None]
        return len(ends), -min((float(end[1]) for end in ends), default=0.0)

    best = max(attempts.values(), key=finished, default={})
    for _, part in best.values():
        if part.kept and not part.files:
            part.complain("the files that it stored outside its log were not found")
    return [best[index] for index in sorted(best)]


def _lay_run(raw: Path, parts: Sequence[_Part]) -> None:
    logs: list[tuple[PodLog, Path]] = []
    problems = [f"pod {pod.index}: {problem}" for pod, part in parts for problem in part.problems]
    lost = {name: size for _, part in parts for name, size in part.lost.items()}
    taken: set[str] = set()
    for pod, part in parts:
        for name, path in part.files.items():
            if name == observe.WORKER_LOG:
                logs.append((pod, path))
            elif name == observe.LEASE_FILE or name not in taken:
                taken.add(name)
                nofollow.move(path, raw / name)
            else:
                problems.append(f"pod {pod.index}: {name} came from another pod, too")
    _join_logs(raw / observe.WORKER_LOG, logs)
    if not nofollow.is_file(raw / observe.LEASE_FILE):
        _write_whole(raw / observe.LEASE_FILE, f"{parts[0][0].node}\n".encode())
    _say_missing(raw, problems, lost, ended=all(part.end is not None for _, part in parts))


def _say_missing(raw: Path, problems: list[str], lost: dict[str, int], *, ended: bool) -> None:
    """Record that observations are missing; a missing worker log does no harm."""
    lost = {name: size for name, size in lost.items() if name != observe.WORKER_LOG}
    if not problems and not lost:
        return
    evidence: dict[str, Any] = dict(list(lost.items())[:MAX_PROBLEMS])
    evidence |= {f"problem_{number}": problem for number, problem in enumerate(problems[:MAX_PROBLEMS])}
    if not ended:
        evidence["follows"] = "the end of the pod"
    if lost:
        named = ", ".join(list(lost)[:5])
        reason = f"{named}: left out for lack of room in the pod's log; raise limits.log_mib, or measure less"
        _say(raw, "failed", reason, evidence)
    else:
        _say(raw, "lost", "results lost: some of the measured data did not arrive from the pod", evidence)


def _say(raw: Path, code: observe.StatusCode, reason: str, evidence: dict[str, Any]) -> None:
    event = {"kind": "status", "code": code, "reason": reason, "evidence": evidence or None}
    _write_whole(raw / TRANSPORT_FILE, json.dumps(event).encode() + b"\n")


def _join_logs(target: Path, logs: Sequence[tuple[PodLog, Path]]) -> None:
    """Join the logs of all pods: the ends of the others, then the whole log of the first, which is read first."""
    if not logs:
        return
    (first, log), *others = logs
    if not others and first.index == 0:
        nofollow.move(log, target)
        return
    with (log.parent / "joined").open("wb") as joined:
        for pod, path in [*reversed(others), (first, log)]:
            joined.write(_HEAD_OF_POD.format(pod=pod).encode("utf-8", "replace"))
            with path.open("rb") as file:
                if pod is not first:
                    file.seek(max(0, path.stat().st_size - LOG_OF_OTHERS_BYTES))
                shutil.copyfileobj(file, joined)
            joined.write(b"\n")
    nofollow.move(log.parent / "joined", target)


def _write_whole(path: Path, data: bytes) -> None:
    """Replace a file atomically: two collectors may do the same."""
    beside = path.with_name(f".{secrets.token_hex(8)}")
    try:
        with nofollow.open_file(beside, "x") as file:
            file.write(data)
        nofollow.move(beside, path)
    finally:
        nofollow.remove(beside)
