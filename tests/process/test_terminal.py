"""The output in a terminal, read from a real pseudo-terminal by a small model of a screen."""

from __future__ import annotations

import codecs
import dataclasses
import fcntl
import io
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
from collections import Counter
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, get_args

import pytest

from conftest import HANG_S, make_spec, until
from steelyard.cli.main import main
from steelyard.contracts.finding import Finding
from steelyard.contracts.observe import FIRST_EVENTS, PROGRESS_FILE, Status, StatusCode
from steelyard.inputs.search import Search
from steelyard.inputs.study import Study, expand
from steelyard.launch.collect import RunEnd
from steelyard.launch.follow import Sent, StudyStatus
from steelyard.launch.staging import STUDY_FILE, read_arguments
from steelyard.results.store import ResultFolder
from steelyard.terminal import step_times
from steelyard.terminal.colours import STATUSES, console_of
from steelyard.terminal.drawing import (
    ASCII_LEVELS,
    BLOCKS,
    duration,
    fit,
    grid,
    shows_blocks,
    sparkline,
    state_of,
)
from steelyard.terminal.live import following, progress
from steelyard.terminal.live.following import Following
from steelyard.terminal.live.pace import Pace, parallel_left_s
from steelyard.terminal.live.progress import Loudness, Progress
from steelyard.terminal.status import campaign_lines, status_lines
from steelyard.terminal.step_times import step_time_lines
from steelyard.terminal.text import OUTPUT_COLUMNS, table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from steelyard.contracts.record import RunRecord
    from steelyard.contracts.spec import RunSpec

ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
UNFINISHED = re.compile(r"\x1b(?:\[[?0-9;]*)?\Z")


# -- a terminal


class Terminal:
    """A model of a screen and its scrollback that understands the few escape sequences we send."""

    SEQUENCE = re.compile(r"\x1b\[\??(\d*)(?:;\d+)*([AKJmhl])")

    def __init__(self, columns: int, rows: int) -> None:
        self.columns, self.rows = columns, rows
        self.lines = [""]
        self.row, self.column = 0, 0
        self.wrapped = 0
        """How often a line ran over the edge."""
        self.cursor = True
        """Whether the cursor is visible."""
        self._unfinished = ""

    def feed(self, text: str) -> None:
        """Do what a terminal does with this text; an escape sequence at its end may be continued by the next."""
        text = self._unfinished + text
        unfinished = UNFINISHED.search(text)
        end = unfinished.start() if unfinished else len(text)
        text, self._unfinished = text[:end], text[end:]
        at = 0
        while at < len(text):
            character = text[at]
            if character == "\x1b":
                found = self.SEQUENCE.match(text, at)
                assert found, f"an escape sequence that not every terminal supports: {text[at : at + 10]!r}"
                self._obey(int(found[1] or 1), found[2])
                at = found.end()
                continue
            if character == "\r":
                self.column = 0
            elif character == "\n":
                self._down()
            else:
                assert character.isprintable(), repr(character)
                self._put(character)
            at += 1

    def _put(self, character: str) -> None:
        if self.column == self.columns:
            self.wrapped += 1
            self._down()
            self.column = 0
        line = self.lines[self.row].ljust(self.column)
        self.lines[self.row] = line[: self.column] + character + line[self.column + 1 :]
        self.column += 1

    def _down(self) -> None:
        self.row += 1
        if self.row == len(self.lines):
            self.lines.append("")

    def _obey(self, number: int, letter: str) -> None:
        if letter == "A":
            assert self.row - number >= len(self.lines) - self.rows, "the cursor would leave the screen"
            self.row -= number
        elif letter in "KJ":
            self.lines[self.row] = self.lines[self.row][: self.column]
        elif letter in "hl":
            assert number == 25
            self.cursor = letter == "h"
        if letter == "J":
            del self.lines[self.row + 1 :]

    def resize(self, columns: int, *, reflow: bool) -> None:
        """Change the width; some terminals wrap lines that are then too long, others cut them."""
        parts = [
            [line[at : at + columns] for at in range(0, len(line), columns)] or [""] if reflow else [line[:columns]]
            for line in (line.rstrip() for line in self.lines)
        ]
        self.row = sum(map(len, parts[: self.row]))
        self.lines = [part for line in parts for part in line]
        self.columns = columns

    @property
    def text(self) -> str:
        """The text of the screen and its scrollback."""
        return "\n".join(line.rstrip() for line in self.lines)


class Pseudo:
    """A pseudo-terminal, the stream of a program that writes to it, and the screen that a person sees."""

    def __init__(self, columns: int, rows: int, encoding: str = "utf-8") -> None:
        self.master, self.slave = pty.openpty()
        self.terminal = Terminal(columns, rows)
        self._size(columns, rows)
        self.stream = io.TextIOWrapper(io.FileIO(self.slave, "w", closefd=False), encoding, write_through=True)
        self.raw = b""
        self._decoder = codecs.getincrementaldecoder("utf-8")()

    def _size(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def resize(self, columns: int, rows: int, *, reflow: bool) -> None:
        self.see()
        self._size(columns, rows)
        self.terminal.resize(columns, reflow=reflow)
        self.terminal.rows = rows

    def see(self, wait_s: float = 0.0) -> str:
        """Return the text on the screen after reading all output."""
        while select.select([self.master], [], [], wait_s)[0]:
            try:
                found = os.read(self.master, 65536)
            except OSError:  # the other side has gone
                break
            self.raw += found
            self.terminal.feed(self._decoder.decode(found))
        return self.terminal.text

    def close(self) -> None:
        self.stream.detach()
        os.close(self.master)
        os.close(self.slave)


@pytest.fixture(autouse=True)
def plain_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES", "STEELYARD_RESULTS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def pseudo(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Pseudo]]:
    """Makes a pseudo-terminal that is standard error, or standard output."""
    made = []
    # The size of a terminal is that of the first of these which is one.
    before = {number: os.dup(number) for number in (1, 2)}

    def make(columns: int = 80, rows: int = 24, *, encoding: str = "utf-8", output: str = "stderr") -> Pseudo:
        made.append(Pseudo(columns, rows, encoding))
        monkeypatch.setattr(sys, output, made[-1].stream)
        os.dup2(made[-1].slave, {"stdout": 1, "stderr": 2}[output])
        return made[-1]

    yield make
    monkeypatch.undo()
    for number, kept in before.items():
        os.dup2(kept, number)
        os.close(kept)
    for each in made:
        each.close()


# -- pure functions


def shown(text: str, **variables: str) -> str:
    """What a console writes for this text with these variables set."""
    stream = io.StringIO()
    with pytest.MonkeyPatch.context() as patched:
        for name, value in variables.items():
            patched.setenv(name, value)
        console_of(stream).print(text)
    return stream.getvalue().removesuffix("\n")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("SY203 approximate-interval (warning): the interval", ["SY203", "warning"]),
        ("table.csv:3: SY101 work-over-time (error): x", ["SY101", "error"]),
        ("SY203 approximate-interval\n    (note): x", ["SY203", "note"]),
        ("batch=8    3 completed, 1 out_of_memory  12", ["completed", "out_of_memory"]),
        ("[3/40] batch=8, job 0: out_of_memory: needs 3 bytes", ["out_of_memory"]),
        ("sim-1-r0000 (adhoc): failed it crashed", ["failed"]),
        ("PASS: throughput of x\nFAIL: y", ["PASS", "FAIL"]),
        ("best against best: NOT COMPARABLE", ["NOT COMPARABLE"]),
        ("study  runs  completed\nthe run failed (error) completed", []),
        ("[red]not markup[/red] :warning: https://example.org 3.5 True", []),
    ],
)
def test_colours_add_nothing_but_colour(text: str, words: list[str]) -> None:
    coloured = shown(text, FORCE_COLOR="1")
    assert re.findall(r"\x1b\[[\d;]+m(.*?)\x1b\[0m", coloured) == words
    assert ESCAPES.sub("", coloured) == text
    assert shown(text) == text
    assert shown(text, FORCE_COLOR="1", TERM="dumb") == text
    assert not re.search(r"\x1b\[(?:\d+;)?3\dm", shown(text, FORCE_COLOR="1", NO_COLOR="1"))


@pytest.mark.parametrize(
    ("time_s", "text", "short"),
    [
        (0.0, "0 s", "0 s"),
        (0.25, "0.25 s", "0.25 s"),
        (9.97, "10 s", "10 s"),
        (59.4, "59 s", "59 s"),
        (59.6, "1 min", "1 min"),
        (180.0, "3 min", "3 min"),
        (200.0, "3 min 20 s", "3 min"),
        (3599.9, "60 min", "60 min"),
        (7500.0, "2 h 5 min", "2 h"),
        (100_000.0, "1 d 4 h", "1 d"),
    ],
)
def test_durations_as_people_say_them(time_s: float, text: str, short: str) -> None:
    assert (duration(time_s), duration(time_s, parts=1)) == (text, short)


def test_texts_are_cut_by_the_columns_they_take() -> None:
    assert fit("batch=8", 7) == "batch=8"
    assert fit("batch=16", 7) == "batc..."
    assert fit("机器学习模型", 9) == "机器学..."
    assert fit("a\x1b[31mb", 40) == "a\\x1b[31mb"


def test_a_sparkline_shows_what_varies_and_no_noise() -> None:
    rising = sparkline([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0], blocks=True)
    assert (rising.text, rising.low, rising.high, rising.cut) == (BLOCKS, 1.0, 8.0, False)
    assert sparkline([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0], blocks=False).text == ASCII_LEVELS
    assert sparkline([5.0, 5.01, 5.0, 5.02], blocks=True).text == BLOCKS[0] * 4
    first = sparkline([100.0, 1.0, 1.0, 2.0, 1.0], blocks=False)
    assert (first.text, first.high, first.cut) == ("#__#_", 2.0, True)
    assert sparkline([0.0, 0.0], blocks=True).text == BLOCKS[0] * 2


def test_blocks_only_where_they_can_be_written() -> None:
    assert shows_blocks("utf-8", {"TERM": "xterm"})
    assert not shows_blocks("ascii", {"TERM": "xterm"})
    assert not shows_blocks("latin-1", {})
    assert not shows_blocks("no such encoding", {})
    assert not shows_blocks("utf-8", {"TERM": "linux"})


def drawn(cells: dict[str, list[str]], columns: int = 80, height: int = 10) -> list[str]:
    return [line.plain for line in grid(cells, columns, height)]


def states(*counts: tuple[str, int]) -> list[str]:
    return [state for state, count in counts for _ in range(count)]


def test_the_grid_of_a_small_study_names_its_cells() -> None:
    cells = {
        "batch=8": states(("completed", 2), ("running", 1)),
        "batch=128": states(("out of memory", 1), ("queued", 2)),
    }
    assert drawn(cells) == [
        "batch=8    ##>",
        "batch=128  M..",
        "# 2 completed  M 1 out of memory  > 1 running  . 2 queued",
    ]


def test_a_larger_one_goes_without_names_and_a_huge_one_is_counted() -> None:
    cells = {f"batch={n}": states(("completed", 3), ("failed", 1)) for n in range(40)}
    packed = drawn(cells)
    assert packed[0] == " ".join(["###x"] * 16)[:79]
    assert "".join(packed[:-1]).count("x") == 40
    assert packed[-1] == "# 120 completed  x 40 failed"
    huge = {f"batch={n}": states(("completed", 10), ("queued", 10)) for n in range(1000)}
    assert drawn(huge) == ["# 10,000 completed  . 10,000 queued"]
    single = {f"batch={n}": ["queued"] for n in range(100)}
    assert drawn(single) == ["." * 79, "." * 21, ". 100 queued"]
    one = {"(no sweep)": states(("completed", 100))}
    assert drawn(one) == ["#" * 79, "#" * 21, "# 100 completed"]


@pytest.mark.parametrize("columns", [20, 40, 80])
@pytest.mark.parametrize("cells", [1, 7, 30, 300])
@pytest.mark.parametrize("repeats", [1, 4, 50])
def test_no_grid_is_wider_or_higher_than_it_may_be(columns: int, cells: int, repeats: int) -> None:
    kinds = ["completed", "out of memory", "failed", "running", "queued", "not converged", "already done"]
    runs = {f"precision=fp32, batch={n}": [kinds[(n + i) % 7] for i in range(repeats)] for n in range(cells)}
    plain = drawn(runs, columns, 12)
    assert len(plain) <= 12
    assert all(len(line) < columns for line in plain)
    legend = "  ".join(line for line in plain if re.match(r"\S [\d,]+ [a-z]", line))
    counts = re.findall(r"\S ([\d,]+) [a-z .]+?(?=  |$)", legend)
    assert sum(int(count.replace(",", "")) for count in counts) == cells * repeats


@pytest.mark.parametrize(
    ("code", "state"),
    [
        ("completed", "completed"), ("not_converged", "not converged"), ("out_of_memory", "out of memory"),
        ("hung", "failed"), ("preempted", "failed"), ("planned", "queued"), ("ended", "to collect"),
        ("unknown", "unknown"), ("running", "running"),
    ],
)  # fmt: skip
def test_every_status_has_a_character(code: str, state: str) -> None:
    assert state_of(code) == state
    assert set(STATUSES) == set(get_args(StatusCode))


def test_time_left_rests_on_the_runs_of_the_same_cell() -> None:
    pace = Pace()
    assert pace.left_s(Counter({"a": 3})) is None
    pace.add("a", 10.0)
    pace.add("b", 2.0)
    pace.add("b", 4.0)
    assert pace.runs == 3
    assert pace.left_s(Counter({"a": 2, "b": 1})) == pytest.approx(23.0)
    assert pace.left_s(Counter({"new": 1})) == pytest.approx(16.0 / 3)
    assert pace.left_s(Counter(), running="a", spent_s=4.0) == pytest.approx(6.0)
    assert pace.left_s(Counter(), running="a", spent_s=40.0) == 0.0
    assert parallel_left_s(0, 60.0, 9) is None
    assert parallel_left_s(3, 60.0, 9) == pytest.approx(180.0)


# -- tables

HEADER = ["quantity", "value", "unit", "scope"]
ROWS = [
    ["memory_peak", "unknown: the device or the run's end gave no account of memory", "bytes", "device"],
    ["throughput", "800.00 [800.00, 800.00]", "samples/s", "job"],
]


def narrow(columns: int, header: list[str], rows: list[list[str]]) -> list[str]:
    before = OUTPUT_COLUMNS.set(columns)
    lines = table(header, rows).splitlines()
    OUTPUT_COLUMNS.reset(before)
    return lines


@pytest.mark.parametrize("columns", [40, 60, 80])
def test_a_table_fits_the_terminal(columns: int) -> None:
    lines = narrow(columns, HEADER, ROWS)
    assert all(len(line) <= columns for line in lines)
    words = " ".join(lines).replace(";", "").split()
    assert all(word in words for row in ROWS for cell in row for word in cell.split())
    assert max(map(len, table(HEADER, ROWS).splitlines())) == 94


def test_numbers_are_never_broken_and_many_columns_become_blocks() -> None:
    header, rows = ["job", "time", "why"], [["0", "10.000 ms", "the interval was narrow"], ["1", "11.000 ms", "-"]]
    assert narrow(28, header, rows) == [
        "job       time  why",
        "---  ---------  ------------",
        "  0  10.000 ms  the interval",
        "                was narrow",
        "  1  11.000 ms  -",
    ]
    assert narrow(20, header, rows) == [
        "job: 0",
        "  time: 10.000 ms;",
        "  why: the interval",
        "  was narrow",
        "job: 1",
        "  time: 11.000 ms",
    ]


# -- progress on a terminal


@pytest.fixture
def record(simulate: Callable[[RunSpec], RunRecord], tmp_path: Path) -> RunRecord:
    made = simulate(make_spec())
    # Only its record is used: a run of a test that begins has no progress yet.
    (tmp_path / PROGRESS_FILE).unlink(missing_ok=True)
    return made


def finding(code: str, message: str) -> Finding:
    command = "steelyard study s.toml --extend"
    return Finding(code=code, severity="warning", message=message, fix="run longer", command=command)


class Scene:
    """A study of five configurations and four repeats; each run ends as the test says."""

    def __init__(self, record: RunRecord, path: Path, loud: Any = "normal", **changes: Any) -> None:
        settings: dict[str, Any] = {"name": "sweep", "repeats": 4, "sweep": {"batch": (1, 2, 4, 8, 16)}}
        self.plan = expand(Study(**{**settings, **changes}))
        self.folder = ResultFolder(path / "results")
        self.record = record
        self.progress = Progress(loud, self.plan, self.folder)
        self.done = 0

    @property
    def spec(self) -> RunSpec:
        return self.plan.runs[self.done]

    def name(self, number: int) -> str:
        """A run as the lines call it."""
        spec = self.plan.runs[number]
        return f"batch={spec.batch}, job {spec.repeat}"

    def begin(self) -> None:
        self.progress.begin(self.spec, self.done, len(self.plan.runs))

    def end(self, code: str = "completed", reason: str = "") -> None:
        status = Status(code=code, reason=reason)  # type: ignore[arg-type]
        made = dataclasses.replace(self.record, run_id=self.spec.run_id, spec=self.spec, status=status)
        self.done += 1
        self.progress.end(made, self.done, len(self.plan.runs))


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(progress, "time", made)
    monkeypatch.setattr(following, "time", made)
    return made


def test_a_study_is_a_grid_with_the_time_left(
    record: RunRecord, pseudo: Callable[..., Pseudo], tmp_path: Path, clock: Clock
) -> None:
    there = pseudo()
    scene = Scene(record, tmp_path)
    with scene.progress:
        scene.begin()
        assert there.see().splitlines() == [
            "sweep: 0 of 20 runs done; time left: known after the first run",
            *[f"batch={batch:<2}  {'>...' if scene.spec.batch == batch else '....'}" for batch in (1, 2, 4, 8, 16)],
            "> 1 running  . 19 queued",
            f"[1/20] {scene.name(0)}: starting, 0 s",
        ]
        clock.now_s += 60.0
        scene.end()
        scene.begin()
        assert "sweep: 1 of 20 runs done, about 19 min left" in there.see()
        clock.now_s += 30.0
        scene.progress.tick(tmp_path)
        text = there.see()
        assert "about 18 min left" in text or "about 19 min left" in text
        assert f"[2/20] {scene.name(1)}: starting, 30 s" in text
        (tmp_path / PROGRESS_FILE).write_text('{"steps": 1500, "seconds": 2.5, "rel_half_width": 0.012}')
        scene.progress.tick(tmp_path)
        assert "1,500 steps, 2.5 s measured, mean ±1.2 %" in " ".join(there.see().split())
        scene.end("out_of_memory", "needs 1e10 bytes")
        text = there.see()
        assert "# 1 completed  M 1 out of memory  . 18 queued" in text
        assert f"[2/20] {scene.name(1)}: out_of_memory: needs 1e10 bytes" in text
    assert [line[:7] for line in there.see().splitlines()] == ["[1/20] ", "  10.00", "[2/20] "]
    assert there.terminal.column == 0
    assert there.terminal.wrapped == 0
    assert there.terminal.cursor


@pytest.mark.parametrize("reflow", [True, False])
@pytest.mark.parametrize("rows", [24, 8])
def test_a_window_that_changes_its_size_stays_readable(
    record: RunRecord, pseudo: Callable[..., Pseudo], tmp_path: Path, rows: int, reflow: bool
) -> None:
    there = pseudo(80, rows)
    scene = Scene(record, tmp_path)
    with scene.progress:
        scene.begin()
        scene.progress.say("a line above")
        for columns in (40, 120, 80, 30):
            there.resize(columns, rows, reflow=reflow)
            scene.progress.tick(tmp_path)
            lines = there.see().splitlines()
            assert lines[0] == "a line above"
            assert [line.startswith("sweep: ") for line in lines].count(True) == 1
            assert sum("> 1 running" in line for line in lines) == 1
            assert all(len(line) < columns for line in lines)
    assert there.see() == "a line above\n"
    assert there.terminal.wrapped == 0


def test_a_resumed_study_says_what_was_there(record: RunRecord, pseudo: Callable[..., Pseudo], tmp_path: Path) -> None:
    there = pseudo()
    first = Scene(record, tmp_path)
    for spec in first.plan.runs[:6]:
        first.folder.run_path(spec).mkdir(parents=True)
    scene = Scene(record, tmp_path)
    with scene.progress:
        # Another launcher has made one more meanwhile.
        scene.done = 7
        scene.begin()
        assert "= 7 already done  > 1 running  . 12 queued" in there.see()
        assert "sweep: 7 of 20 runs done" in there.see()


def test_a_search_shows_its_candidates(record: RunRecord, pseudo: Callable[..., Pseudo], tmp_path: Path) -> None:
    there = pseudo()
    scene = Scene(record, tmp_path, repeats=1, sweep={}, search=Search(first=8, last=64))
    spec = scene.plan.searches[0].runs[0]
    with scene.progress as shown:
        shown.begin(spec, 0, 9)
        shown.end(dataclasses.replace(record, run_id=spec.run_id, spec=spec), 1, 9)
        text = there.see()
    assert "sweep: 1 of at most 9 runs done, at most" in text
    assert "# 1 completed  - " in text
    assert "not tried" in text


def test_elsewhere_there_is_a_line_a_run_and_no_escape(
    record: RunRecord, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scene = Scene(record, tmp_path)
    with scene.progress:
        scene.begin()
        scene.progress.tick(tmp_path)
        scene.end()
        scene.begin()
        scene.end("failed", "it \x1b[31mcrashed")
    assert capsys.readouterr().err.splitlines() == [
        f"[1/20] {scene.name(0)}: 3,200.0 [3,200.0, 3,200.0] samples/s, 1,000 steps of 10.000 ms",
        f"[2/20] {scene.name(1)}: failed: it \\x1b[31mcrashed",
    ]


def test_a_dumb_terminal_gets_lines_alone(
    record: RunRecord, pseudo: Callable[..., Pseudo], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "dumb")
    there = pseudo()
    scene = Scene(record, tmp_path)
    with scene.progress:
        scene.begin()
        scene.end("failed", "it crashed")
    assert there.see() == f"[1/20] {scene.name(0)}: failed: it crashed\n"
    assert b"\x1b" not in there.raw


def test_quiet_says_nothing_and_verbose_says_where(
    record: RunRecord, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for loud in ("quiet", "verbose"):
        scene = Scene(record, tmp_path, loud)
        with scene.progress:
            scene.progress.say("in an allocation")
            scene.begin()
            scene.progress.tick(tmp_path)
            (tmp_path / PROGRESS_FILE).write_text('{"steps": 1, "seconds": 1.0}')
            scene.progress.tick(tmp_path)
            scene.end()
        said = capsys.readouterr().err
        if loud == "quiet":
            assert said == ""
    assert f"temporary files: {tmp_path}\n" in said
    assert "first steps after" in said
    assert f"  record: {scene.folder.run_path(scene.plan.runs[0])}\n" in said


def test_a_budget_that_is_too_short_is_said_at_once_and_once(
    record: RunRecord, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from_file = "set run.budget.max_seconds = 750 in s.toml, or after this has ended: steelyard study s.toml --extend"
    fixes = {
        (): "steelyard run sim --batch 8 --max-seconds 750 --study sweep",
        ("study", "s.toml"): from_file,
        ("",): "set run.budget.max_seconds = 750 in its file",
    }
    for file, fix in fixes.items():
        scene = Scene(record, tmp_path, sweep={"batch": (8,)}, repeats=20)
        with scene.progress:
            scene.progress.begin(dataclasses.replace(scene.spec, study_arguments=file), 0, 20)
            for needed_s in (300.0, 600.0, 590.0):
                (tmp_path / PROGRESS_FILE).write_text(
                    f'{{"steps": 4, "seconds": 86.0, "needed_s": {needed_s}, "limit_s": {min(300, needed_s)}}}'
                )
                scene.progress.tick(tmp_path)
        begun, need = f"[1/20] {scene.name(0)}", "28 steps, needed to judge the steady state, take about"
        assert capsys.readouterr().err.splitlines() == [
            f"{begun}: extended: {need} 5 min, longer than max_seconds (240 s)",
            f"{begun}: warning: too short: {need} 10 min; max_seconds is 240 s, 480 s with its extension",
            f"  fix: {fix}",
        ]


@pytest.mark.parametrize(
    ("device", "name", "needed_s", "said"),
    [
        ("cpu", "cpu", 600.0, ["measures on the CPU (2 threads, no accelerator was found) for at most 240 s",
                               "--batch 16", "or, as a CPU is slow: "]),
        ("cpu", "cpu", 60_000.0, ["a smaller model (steelyard workloads)"]),
        ("cuda", "NVIDIA GH200 480GB", 600.0, ["measures on NVIDIA GH200 480GB for at most 240 s"]),
    ],
)  # fmt: skip
def test_a_run_says_on_what_it_measures_and_what_to_do_on_a_slow_cpu(
    record: RunRecord,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    device: str,
    name: str,
    needed_s: float,
    said: list[str],
) -> None:
    facts = {"device.name": name, "torch.threads": "2"}
    event = {"kind": "environment", "node": "n", "allocation": None, "device": device, "timing": "t", "facts": facts}
    (tmp_path / FIRST_EVENTS).write_text(json.dumps({"kind": "load"}) + "\n" + json.dumps(event) + "\n")
    progress = {"steps": 4, "seconds": 86.0, "needed_s": needed_s, "limit_s": 480.0}
    (tmp_path / PROGRESS_FILE).write_text(json.dumps(progress))
    scene = Scene(record, tmp_path, sweep={}, run={"workload": "resnet50", "batch": 32})
    with scene.progress:
        scene.begin()
        scene.progress.tick(tmp_path)
        scene.progress.tick(tmp_path)
    told = capsys.readouterr().err
    assert all(told.count(part) == 1 for part in said), told
    assert ("a CPU is slow" in told) == (device == "cpu")


def test_a_study_warns_after_its_first_useless_run_once_per_kind(
    record: RunRecord, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    short = (finding("SY201", "no steady state: 12 steps"), finding("SY202", "stopped by max_seconds"))
    scene = Scene(dataclasses.replace(record, findings=short, steps_seen=12), tmp_path)
    with scene.progress:
        for _ in range(3):
            scene.begin()
            scene.end()
    assert [line for line in capsys.readouterr().err.splitlines() if line.startswith("  ")] == [
        "  warning: SY201 no steady state: 12 steps",
        "  fix: run longer: steelyard study s.toml --extend",
        "  warning: SY202 stopped by max_seconds",
        "  fix: run longer: steelyard study s.toml --extend",
    ]


def test_a_run_that_ends_the_study_or_was_long_enough_gets_no_warning(
    record: RunRecord, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unsteady = dataclasses.replace(record, findings=(finding("SY201", "slowing down"),))
    for made, done in ((unsteady, 1), (dataclasses.replace(unsteady, steps_seen=12), 20)):
        scene = Scene(made, tmp_path)
        scene.done = done - 1
        with scene.progress:
            scene.begin()
            scene.end()
    assert "warning" not in capsys.readouterr().err


def test_an_error_leaves_the_terminal_clean(record: RunRecord, pseudo: Callable[..., Pseudo], tmp_path: Path) -> None:
    there = pseudo()
    scene = Scene(record, tmp_path)
    before = signal.getsignal(signal.SIGTSTP)

    def fail() -> None:
        with scene.progress:
            scene.begin()
            assert "> 1 running" in there.see()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert there.see() == ""
    assert there.terminal.cursor
    assert signal.getsignal(signal.SIGTSTP) == before


def test_a_terminal_that_is_closed_ends_nothing(
    record: RunRecord, pseudo: Callable[..., Pseudo], tmp_path: Path
) -> None:
    there = pseudo()
    scene = Scene(record, tmp_path)
    with scene.progress:
        scene.begin()
        os.close(there.master)
        scene.end()
    there.master = os.open(os.devnull, os.O_RDONLY)


# -- a study at a site


def test_a_study_at_a_site_warns_of_short_runs_once(capsys: pytest.CaptureFixture[str]) -> None:
    status = standing(["completed", "completed"], ["running"])
    status.runs["a-r0000"] = RunEnd("a-r0000", "completed", "", "SY202 stopped by max_seconds")
    with Following() as shown:
        shown.tell(status)
        shown.tell(status)
    said = capsys.readouterr().err
    warning = "warning: 1 run too short, such as a-r0000: SY202 stopped by max_seconds"
    assert said.count(warning) == 1
    assert warning in status_lines(status)
    status.arguments = ("study", "my.toml", "--site", "olive")
    assert "    steelyard study my.toml --site olive --extend" in status_lines(status)
    status.arguments = (
        "study",
        "\x1b[2J.toml",
    )
    assert "    steelyard study '\\x1b[2J.toml' --extend" in status_lines(status)


@pytest.mark.parametrize("text", ["[]", "{", "[" * 100_000, '{"arguments": [1]}'])
def test_the_words_of_a_damaged_campaign_are_not_used(tmp_path: Path, text: str) -> None:
    assert read_arguments(tmp_path) == ()
    (tmp_path / STUDY_FILE).write_text(text)
    assert read_arguments(tmp_path) == ()


@pytest.mark.parametrize(
    ("words", "known"),
    [(["study"] * 20, True), (["study"] * 21, False), (["study", "a" * 2000], False), (["rm"], False)],
)
def test_only_so_many_words_of_a_campaign_are_used(tmp_path: Path, words: list[str], *, known: bool) -> None:
    (tmp_path / STUDY_FILE).write_text(json.dumps({"arguments": words}))
    assert read_arguments(tmp_path) == (tuple(words) if known else ())


def standing(ended: Sequence[str], waiting: Sequence[str], **more: Any) -> StudyStatus:
    runs = {f"a-r{n:04d}": RunEnd(f"a-r{n:04d}", code, "why") for n, code in enumerate(ended)}  # type: ignore[arg-type]
    left = {f"b-r{n:04d}": state for n, state in enumerate(waiting)}
    return StudyStatus("sweep", runs, left, {"a": "batch=8", "b": "batch=16"}, **more)


def test_a_study_at_a_site_is_a_grid_with_the_pace(pseudo: Callable[..., Pseudo], clock: Clock) -> None:
    there = pseudo()
    with Following() as shown:
        shown.tell(standing(["completed"], ["running", "queued", "planned", "ended", "unknown"]))
        text = " ".join(there.see().split())
        assert "time left: known after the next run" in text
        assert "batch=8 # batch=16 >+..?" in text
        clock.now_s += 120.0
        shown.tell(standing(["completed", "out_of_memory", "completed"], ["running"] * 3))
        text = " ".join(there.see().split())
        assert "about 3 min left (2 runs in 2 min)" in text
        shown.tell(standing(["completed", "out_of_memory", "completed"], []))
    assert there.see() == "sweep: 3 runs: 2 completed, 1 out of memory\n"


def test_what_does_not_fit_is_no_failure_and_is_not_to_be_made_again() -> None:
    lines = status_lines(standing(["completed", "out_of_memory"], []))
    header = next(line for line in " ".join(lines).splitlines() if "completed" in line)
    assert "out of memory" in header
    assert "not converged" not in header
    assert lines[-1] == "next: steelyard show sweep"
    lines = status_lines(standing(["completed", "out_of_memory", "hung"], []))
    assert lines[-2:] == ["    steelyard study FILE --again hung", "next: steelyard show a-r0002"]


def test_a_study_at_a_site_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    looks = [standing(["completed"], ["queued"], why=Counter({"Priority": 1})), standing(["completed"] * 2, [])]
    louds: tuple[Loudness, ...] = ("normal", "quiet", "verbose")
    for loud in louds:
        with Following(loud) as shown:
            for look in (looks[0], *looks):
                shown.tell(look)
    assert capsys.readouterr().err.splitlines() == [
        "sweep: 2 runs: 1 waiting, 1 completed",
        "sweep: 2 runs: 2 completed",
        "1 task queued: Priority",
        "sweep: 2 runs: 1 waiting, 1 completed",
        "sweep: 2 runs: 2 completed",
    ]


@pytest.mark.parametrize(
    ("kinds", "said"),
    [
        (["runs"], "Submitted 4 runs of s to here"),
        (["search"], "Submitted 1 search (up to 4 candidates) of s to here"),
        (["runs", "search"], "Submitted 4 runs and 1 search (up to 4 candidates) of s to here"),
        (["search", "search"], "Submitted 2 searches (up to 8 candidates) of s to here"),
    ],
)
def test_candidates_of_a_search_are_not_called_runs(kinds: list[str], said: str, tmp_path: Path) -> None:
    shape = SimpleNamespace(nodes=1, processes_per_node=1, devices_per_node=1)
    jobs = [
        SimpleNamespace(number=n, kind=kind, shape=shape, task_limit_s=60.0, tasks=(tuple("abcd"),))
        for n, kind in enumerate(kinds)
    ]
    price = SimpleNamespace(
        device_hours=1.0, node_hours=1.0, charge=1.0, charge_unit="node-hour", expected_s=None, basis="x"
    )
    plan = SimpleNamespace(jobs=jobs, price=price, study="s", site=SimpleNamespace(name="here"), pool="p", image=None)
    campaign: Any = SimpleNamespace(plan=plan, path=tmp_path, job_id=lambda job: str(job.number))
    assert campaign_lines(campaign, sent=True)[0].startswith(said)


def test_verbose_status_has_paths_and_every_job(tmp_path: Path) -> None:
    sent = Sent(
        tmp_path / "c1", "here", "cpu", jobs=7, tasks=7, runs=7, left=7, withdrawn=0, vanished=0, ids=tuple("1234567")
    )
    found = standing([], ["queued"], campaigns=[sent])
    assert "jobs 1, 2, 3, 4, 5, ..." in " ".join(" ".join(status_lines(found)).split())
    said = " ".join(" ".join(status_lines(found, verbose=True)).split())
    assert "jobs 1, 2, 3, 4, 5, 6, 7" in said
    assert f"files: {tmp_path / 'c1'}" in said


# -- the verbs on a terminal


STUDY = """
name = "forty"
repeats = 2
[run.sim]
wall_s_per_s = {pace}
memory = {{ limit_bytes = 8e9, bytes_per_sample = 1e8 }}
[sweep]
batch = [8, 128]
"""


def start(there: Pseudo, folder: Path, pace: float, *, shell: bool = False) -> subprocess.Popen[bytes]:
    """Start the study with this terminal; `shell`: as a shell does, so that it can be stopped."""
    (folder / "study.toml").write_text(STUDY.format(pace=pace), encoding="utf-8")
    command = [sys.executable, "-m", "steelyard.cli.main", "study", "study.toml"]

    def own_terminal() -> None:
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    return subprocess.Popen(
        command,
        cwd=folder,
        # Without it the child has COLUMNS and LINES, which readline sets behind Python's back.
        env=dict(os.environ),
        stdin=there.slave,
        stdout=there.slave,
        stderr=there.slave,
        # The system does not stop a process whose parent is in another session.
        preexec_fn=None if shell else own_terminal,
        process_group=0 if shell else None,
    )


def see_until(there: Pseudo, words: str) -> str:
    text = ""

    def seen() -> bool:
        nonlocal text
        text = there.see(0.05)
        return words in text

    until(seen, words)
    return text


@pytest.mark.parametrize("columns", [80, 40])
def test_a_real_study_on_a_terminal(columns: int, tmp_path: Path) -> None:
    there = Pseudo(columns, 24)
    process = start(there, tmp_path, 0.0)
    see_until(there, "did not complete")
    assert process.wait(HANG_S) == 1
    text = there.see(0.1)
    assert "runs done" not in text
    assert "batch=128" in text
    assert text.count("out_of_memory") == 3
    assert b"\x1b[32mcompleted\x1b[0m" in there.raw
    assert b"\x1b[35mM 1 out of memory\x1b[0m" in there.raw
    assert not any(line.startswith(("batch=", "#", ">")) and "running" in line for line in text.splitlines())
    there.close()


@pytest.mark.parametrize("how", ["Ctrl-C", "SIGTERM"])
def test_an_interrupted_study_leaves_the_terminal_clean(how: str, tmp_path: Path) -> None:
    there = Pseudo(80, 24)
    process = start(there, tmp_path, 100.0)
    see_until(there, "> 1 running")
    if how == "Ctrl-C":
        os.write(there.master, b"\x03")
    else:
        process.send_signal(signal.SIGTERM)
    assert process.wait(HANG_S) == 130
    lines = there.see(0.1).splitlines()
    assert lines[-2].startswith("interrupted: 0 of ")
    assert lines[-1].startswith("next: steelyard study ")
    assert not any("running" in line or "^C" in line for line in lines)
    assert there.terminal.column == 0
    assert there.terminal.cursor
    there.close()


def test_a_stopped_study_gives_the_terminal_to_the_shell(tmp_path: Path) -> None:
    there = Pseudo(80, 24)
    process = start(there, tmp_path, 100.0, shell=True)
    see_until(there, "> 1 running")
    os.kill(process.pid, signal.SIGTSTP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)
    assert "running" not in there.see(0.1)
    assert there.terminal.cursor
    process.send_signal(signal.SIGCONT)
    see_until(there, "> 1 running")
    process.terminate()
    assert process.wait(HANG_S) == 130
    there.close()


def words_of(text: str) -> list[str]:
    """Words, names and numbers; without the steps per character of a sparkline, which depend on the width."""
    text = re.sub(r"1 character = .*?steps", "", text, flags=re.DOTALL)
    return re.findall(r"[^\s;:,()\[\]]*\w[^\s;:,()\[\]]*", text)


def test_verbs_fit_a_narrow_terminal(
    tmp_path: Path, pseudo: Callable[..., Pseudo], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "study.toml").write_text(STUDY.format(pace=0.0), encoding="utf-8")
    assert main(["study", "study.toml", "--quiet"]) == 1
    sensors = 'sim.sensors=[{"kind": "counter", "period_s": 0.02}]'
    assert main(["run", "sim", "--devices", "2", "--repeats", "2", "--study", "two", "--set", sensors, "--quiet"]) == 0
    run = min(ResultFolder(tmp_path / "steelyard-results").run_ids("two"))
    verbs = [
        ["show"], ["show", "forty"], ["show", "two"], ["show", run], ["batch", "forty"], ["energy", "two"],
        ["compare", "forty:batch=8", "two"], ["compare", "forty:batch=8", "two", "--force"], ["scaling", "forty"],
        ["study", "study.toml", "--dry-run"], ["workloads"], ["workloads", "resnet50"], ["explain"],
        ["explain", "SY103"], ["audit", "caraml"], ["show", "unknown"],
    ]  # fmt: skip
    for verb in verbs:
        texts = {}
        for columns in (60, 120):
            out, err = pseudo(columns, output="stdout"), pseudo(columns, output="stderr")
            main(verb)
            texts[columns] = out.see() + err.see()
            assert out.terminal.wrapped + err.terminal.wrapped == 0, (verb, columns)
        assert not re.search(r"(?m)^\|", texts[60]), "a line of a chart is broken"
        # A part of a broken word would be no word of the wide output.
        wide_words = set(words_of(texts[120]))
        assert [word for word in words_of(texts[60]) if word not in wide_words] == [], verb


def test_show_draws_the_step_times(
    tmp_path: Path, pseudo: Callable[..., Pseudo], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["run", "sim", "--quiet"]) == 0
    assert capsys.readouterr().err == ""
    (run,) = ResultFolder(tmp_path / "steelyard-results").run_ids("adhoc")
    for encoding, levels in (("utf-8", BLOCKS), ("ascii", ASCII_LEVELS)):
        there = pseudo(encoding=encoding, output="stdout")
        assert main(["show", run]) == 0
        lines = there.see().splitlines()
        line = next(line for line in lines if line.startswith("step time  "))
        assert set(line.removeprefix("step time  ")) <= set(levels)
        assert all(len(line) <= 80 for line in lines)
        assert "steady window" in " ".join(lines)
    # NO_COLOR leaves bold as it is.
    for variables, words, escapes in (
        ({}, ["show", run], rb"\[32m"),
        ({"NO_COLOR": "1"}, ["show", run], rb"\[1m"),
        ({"FORCE_COLOR": "1"}, ["show", run, "--json"], None),
    ):
        there = pseudo(output="stdout")
        with pytest.MonkeyPatch.context() as patched:
            for name, value in variables.items():
                patched.setenv(name, value)
            assert main(words) == 0
        there.see()
        assert bool(re.search(rb"\x1b\[32mcompleted", there.raw)) is (not variables)
        assert (b"\x1b" in there.raw) is (escapes is not None)
        assert escapes is None or re.search(escapes, there.raw)


def test_step_times_say_what_their_scale_is(record: RunRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_times, "OUTPUT_COLUMNS", SimpleNamespace(get=lambda: 40))
    assert step_time_lines(tmp_path, record) == [
        "",
        f"step time  {BLOCKS[0] * 28}",
        f"           {'^' * 28}",
        "           1 character = the mean of 35 or 36 steps; lowest 10.000 ms, highest",
        "           10.000 ms; ^ = steady window",
    ]
    monkeypatch.setattr(step_times, "MOST_BYTES", 10)
    assert "not drawn" in step_time_lines(tmp_path, record)[0]
    monkeypatch.undo()
    path = next(tmp_path.glob("steps*"))
    path.write_bytes(b"damaged" + path.read_bytes()[7:])
    assert step_time_lines(tmp_path, record)[0].startswith("step time  cannot be read: ")
    path.unlink()
    assert step_time_lines(tmp_path, record) == []


@pytest.mark.parametrize("verb", ["run", "study", "status", "verify"])
def test_quiet_and_verbose_are_options_of_what_takes_time(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([verb, "--help"])
    said = capsys.readouterr().out
    assert "--quiet" in said
    assert "--verbose" in said


def test_a_terminal_that_does_not_know_its_size(pseudo: Callable[..., Pseudo]) -> None:
    assert console_of(pseudo(0, 0).stream).size == (80, 25)
