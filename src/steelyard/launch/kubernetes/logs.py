"""Reads results out of pods' logs, checked line by line, into the campaign's folder. Knows no API.

A log comes from a machine that we do not control, through several that may cut it. Whatever it says, nothing is
written outside the runs of its task, nothing grows beyond what was agreed, and what is missing is said.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
import re
import shutil
import tempfile
import zlib
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from steelyard.contracts import observe
from steelyard.errors import printable
from steelyard.launch.scripts.task import read_done

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from steelyard.launch.campaign import Campaign, JobArray

MARK: Final = b"#steelyard "
MAX_LINE_BYTES: Final = 20_000
UNPACKED_FACTOR: Final = 32
"""What a log unpacks to, at most, in sizes of the log; worker/pod.py sends no more."""
MAX_FILES: Final = 20_000
MAX_OPEN: Final = 32
MAX_PROBLEMS: Final = 20
OTHER_BYTES: Final = 64 << 10
LOG_OF_OTHERS_BYTES: Final = 32 << 10
TRANSPORT_FILE: Final = "events-transport.jsonl"
"""What the collector has to say of a run whose files did not all arrive."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_HEAD_OF_POD: Final = "---- pod {pod.index} on {pod.node}\n"
# Ours to write, not a pod's.
_OURS = (observe.SPEC_FILE, observe.LAUNCH_FILE, observe.RESERVE_FILE, TRANSPORT_FILE)
_NUMBER = r"(\d{1,12})"
_TIME = r"(\d{1,12}\.\d{1,9})"
_WORDS: Final = {
    "begin": re.compile(rf"{_NUMBER} (\S{{1,80}}) {_TIME}"),
    "file": re.compile(rf"{_NUMBER} {_NUMBER} (\S{{1,100}}) {_NUMBER} {_NUMBER} {_NUMBER} ([0-9a-f]{{64}})"),
    "data": re.compile(rf"{_NUMBER} {_NUMBER} {_NUMBER} {_NUMBER} ([0-9a-f]{{8}}) ([A-Za-z0-9+/=]+)"),
    "lost": re.compile(rf"{_NUMBER} (\S{{1,100}}) {_NUMBER}"),
    "end": re.compile(rf"{_NUMBER} (\S{{1,80}}) (\d{{1,3}}) {_TIME} {_TIME}"),
    "stop": re.compile(r"(limit|gone)"),
    "all": re.compile(_NUMBER),
}


class _BadLineError(Exception):
    """A line of ours that is not what it should be."""


@dataclass
class Arrived:
    """What has come of one run from one pod."""

    begun: str | None = None
    """When, as the pod wrote it."""
    end: tuple[int, str, str] | None = None
    """Exit code, begin, end."""
    files: dict[str, Path] = field(default_factory=dict)
    """Whole and checked."""
    lost: dict[str, int] = field(default_factory=dict)
    """Left out by the pod for want of room, with their sizes."""
    problems: list[str] = field(default_factory=list)

    def complain(self, problem: str) -> None:
        """Keep a problem, if there is room for one more."""
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(printable(problem)[:300])


@dataclass
class PodLog:
    """One pod's log, read."""

    index: int
    node: str
    runs: dict[int, Arrived] = field(default_factory=dict)
    stopped: str | None = None
    whole: bool = False
    """It says itself that nothing follows."""
    other: bytes = b""
    """The end of what else was printed there."""


class _Incoming:
    """A file on its way."""

    def __init__(self, path: Path, name: str, size: int, packed_size: int, lines: int, sha256: str) -> None:
        self.path, self.name = path, name
        self._size, self._packed_left, self._lines, self._sha256 = size, packed_size, lines, sha256
        self._next = 0
        self._digest = hashlib.sha256()
        self._unpack = zlib.decompressobj()
        self._left = size
        self._file = path.open("wb")

    def take(self, number: int, data: bytes) -> bool:
        """One line of it; True when it is whole."""
        if number != self._next:
            raise _BadLineError(f"line {number} of {self.name} where {self._next} is due")
        self._next += 1
        self._packed_left -= len(data)
        if self._packed_left < 0:
            raise _BadLineError(f"{self.name} is longer than was said")
        try:
            # One byte more than may come shows that there is more.
            block = self._unpack.decompress(data, self._left + 1)
        except zlib.error as error:
            raise _BadLineError(f"{self.name}: {error}") from None
        self._left -= len(block)
        if self._left < 0 or self._unpack.unconsumed_tail:
            raise _BadLineError(f"{self.name} unpacks to more than the {self._size} bytes that were said")
        self._digest.update(block)
        self._file.write(block)
        if self._next != self._lines:
            return False
        self._file.close()
        if self._left or self._packed_left or not self._unpack.eof or self._digest.hexdigest() != self._sha256:
            raise _BadLineError(f"{self.name} is not what its checksum says")
        return True

    def drop(self) -> None:
        """It will not come."""
        self._file.close()
        self.path.unlink(missing_ok=True)


class LogReader:
    """Reads one pod's log into files of a scratch folder."""

    def __init__(self, runs: Sequence[str], scratch: Path, log_bytes: int, pod: PodLog) -> None:
        self._runs, self._scratch, self.pod = runs, scratch, pod
        self._left = UNPACKED_FACTOR * log_bytes
        self._files = 0
        self._open: dict[tuple[int, int], _Incoming] = {}

    def read(self, chunks: Iterable[bytes]) -> PodLog:
        """All of it. What is still open at its end has not arrived."""
        for line in bounded_lines(chunks):
            if line.startswith(MARK):
                self._take(line[len(MARK) :].decode("ascii", "replace"))
            else:
                self.pod.other = (self.pod.other + line + b"\n")[-OTHER_BYTES:]
        for (index, _), incoming in self._open.items():
            self._of(index).complain(f"{incoming.name} broke off")
            incoming.drop()
        self._open.clear()
        return self.pod

    def _take(self, line: str) -> None:
        word, _, rest = line.partition(" ")
        found = _WORDS[word].fullmatch(rest) if word in _WORDS else None
        # Something else that begins like ours, or a line that was cut: whoever needs it will miss it.
        if found is None:
            return
        if word == "stop":
            self.pod.stopped = found[1]
        elif word == "all":
            self.pod.whole = True
        elif word == "data":
            self._take_data(*found.groups())
        elif int(found[1]) < len(self._runs):
            self._take_of_run(word, int(found[1]), found.groups()[1:])

    def _take_of_run(self, word: str, index: int, values: Sequence[str]) -> None:
        if word == "file":
            self._take_file(index, *values)
        elif word == "lost":
            name, size = values
            if _NAME.fullmatch(name) and len(self._of(index).lost) < MAX_PROBLEMS:
                self._of(index).lost[name] = int(size)
        elif values[0] != self._runs[index]:
            # It begins or ends a run that is not the one of this number.
            return
        elif word == "begin":
            self._of(index).begun = values[1]
        elif (code := int(values[1])) <= 255:
            self._of(index).end = code, values[2], values[3]

    def _of(self, index: int) -> Arrived:
        return self.pod.runs.setdefault(index, Arrived())

    def _take_file(self, index: int, number: str, name: str, size: str, packed: str, lines: str, sha256: str) -> None:
        arrived, key = self._of(index), (index, int(number))
        allowed = _NAME.fullmatch(name) and name not in _OURS
        self._files += 1
        if not allowed or name in arrived.files or key in self._open:
            arrived.complain(f"a file of the name {name!r} is not taken")
        elif int(size) > self._left or self._files > MAX_FILES or len(self._open) >= MAX_OPEN or int(lines) < 1:
            arrived.complain(f"{name} is more than may be sent")
        else:
            self._left -= int(size)
            # By a count of our own: a header that comes again must not open the place of a file that is whole.
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
        raise _BadLineError(f"{name}: a line is not what its checksum says")
    return data


def bounded_lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Lines without their ends; one that is too long is left out, whatever its length. The last needs its end, too."""
    rest, too_long = b"", False
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if not too_long and len(line) <= MAX_LINE_BYTES:
                yield line
            too_long = False
        if len(rest) > MAX_LINE_BYTES:
            rest, too_long = b"", True


# -- into the campaign -------------------------------------------------------------------------------------------


def lay_down(campaign: Campaign, job: JobArray, task: int, pods: Sequence[PodLog]) -> None:
    """What has arrived of a task, into the folders of its runs that are not collected yet."""
    if not pods:
        return
    pods = sorted(pods, key=lambda pod: pod.index)
    # Logs may go while we look, and be shorter at the next look: what has been said stays.
    lines = {
        done.run_id: f"{done.run_id} {done.exit_code} {done.began_unix_s:.3f} {done.ended_unix_s:.3f}\n"
        for done in read_done(campaign.done_file(job, task))
    }
    for index, run_id in enumerate(job.tasks[task]):
        parts = [(pod, pod.runs[index]) for pod in pods if index in pod.runs]
        raw = campaign.raw(run_id)
        if parts:
            # Another collector may be done with it.
            with suppress(FileNotFoundError):
                _lay_run(raw, parts)
        elif job.kind != "search" and any(pod.stopped == "limit" for pod in pods) and raw.is_dir():
            _say(raw, "time_limit", "the task's time was over before this run could begin", {})
        if ends := [part.end for _, part in parts if part.end is not None]:
            code = next((end[0] for end in ends if end[0]), 0)
            began, ended = min((end[1] for end in ends), key=float), max((end[2] for end in ends), key=float)
            lines.setdefault(run_id, f"{run_id} {code} {began} {ended}\n")
    printed = [_HEAD_OF_POD.format(pod=pod).encode("utf-8", "replace") + pod.other for pod in pods if pod.other]
    _write_whole(campaign.output_file(job, task), b"".join(printed))
    _write_whole(campaign.done_file(job, task), "".join(lines.values()).encode())


def _lay_run(raw: Path, parts: Sequence[tuple[PodLog, Arrived]]) -> None:
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
                path.replace(raw / name)
            else:
                problems.append(f"pod {pod.index}: {name} came from another pod, too")
    _join_logs(raw / observe.WORKER_LOG, logs)
    if not (raw / observe.LEASE_FILE).exists():
        _write_whole(raw / observe.LEASE_FILE, f"{parts[0][0].node}\n".encode())
    _say_missing(raw, problems, lost, ended=all(part.end is not None for _, part in parts))


def _say_missing(raw: Path, problems: list[str], lost: dict[str, int], *, ended: bool) -> None:
    """A run is not complete whose observations are not; a log that is missing spoils nothing."""
    lost = {name: size for name, size in lost.items() if name != observe.WORKER_LOG}
    if not problems and not lost:
        return
    evidence: dict[str, Any] = dict(list(lost.items())[:MAX_PROBLEMS])
    evidence |= {f"problem_{number}": problem for number, problem in enumerate(problems[:MAX_PROBLEMS])}
    if not ended:
        evidence["follows"] = "the end of the pod"
    reason = "the pod's log did not bring all that was measured"
    if lost:
        named = ", ".join(list(lost)[:5])
        reason = f"{named}: left out, because the pod's log has no room for it; raise limits.log_mib, or measure less"
    _say(raw, "failed", reason, evidence)


def _say(raw: Path, code: observe.StatusCode, reason: str, evidence: dict[str, Any]) -> None:
    event = {"kind": "status", "code": code, "reason": reason, "evidence": evidence or None}
    _write_whole(raw / TRANSPORT_FILE, json.dumps(event).encode() + b"\n")


def _join_logs(target: Path, logs: Sequence[tuple[PodLog, Path]]) -> None:
    """One log of all pods: the others' last words, then the first pod's, whose end is read first."""
    if not logs:
        return
    (first, log), *others = logs
    if not others and first.index == 0:
        log.replace(target)
        return
    with (log.parent / "joined").open("wb") as joined:
        for pod, path in [*reversed(others), (first, log)]:
            joined.write(_HEAD_OF_POD.format(pod=pod).encode("utf-8", "replace"))
            with path.open("rb") as file:
                if pod is not first:
                    file.seek(max(0, path.stat().st_size - LOG_OF_OTHERS_BYTES))
                shutil.copyfileobj(file, joined)
            joined.write(b"\n")
    (log.parent / "joined").replace(target)


def _write_whole(path: Path, data: bytes) -> None:
    """Replaced at once: two collectors may do the same."""
    handle, beside = tempfile.mkstemp(prefix=".", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        Path(beside).replace(path)
    except BaseException:
        Path(beside).unlink(missing_ok=True)
        raise
