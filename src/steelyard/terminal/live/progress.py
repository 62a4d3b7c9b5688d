"""Live progress of a study on this machine."""

from __future__ import annotations

import math
import shlex
import textwrap
import time
from collections import Counter
from typing import TYPE_CHECKING, Literal, Self

from steelyard.contracts.observe import MEASURED
from steelyard.errors import printable
from steelyard.estimate.enough import STEPS_TO_JUDGE
from steelyard.inputs.command import extend, longer_limits
from steelyard.inputs.study import label
from steelyard.numbers import change
from steelyard.results.store import read_environment, read_progress
from steelyard.terminal import console
from steelyard.terminal.drawing import duration, rounded
from steelyard.terminal.findings import command_line
from steelyard.terminal.live.board import Board
from steelyard.terminal.live.foot import Foot
from steelyard.terminal.live.pace import Pace
from steelyard.terminal.text import seconds, with_interval

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

    from rich.text import Text

    from steelyard.contracts.record import RunRecord
    from steelyard.contracts.spec import RunSpec
    from steelyard.inputs.study import Expansion
    from steelyard.results.store import ResultFolder

Loudness = Literal["quiet", "normal", "verbose"]
FOOT_ROWS = 16
"""Maximum number of lines of the foot."""
ROWS_ABOVE = 2
"""Lines of the terminal that are kept for what is printed above the foot."""
LONGER_ROOM = 1.25
"""Factor between the time that a run would need, by its first steps, and the budget to recommend."""


def loudness(arguments: argparse.Namespace) -> Loudness:
    """Return how much to print, by the options --quiet and --verbose."""
    return "quiet" if arguments.quiet else "verbose" if arguments.verbose else "normal"


def say(text: str, loud: Loudness = "normal") -> None:
    """Print a line that is not a result."""
    if loud != "quiet":
        console.say(printable(text))


class Progress:
    """Shows a grid of the runs, the running one and the time left on a terminal, or one line per run elsewhere."""

    def __init__(
        self,
        loud: Loudness = "normal",
        plan: Expansion | None = None,
        folder: ResultFolder | None = None,
        *,
        too_short: bool = True,
    ) -> None:
        """`too_short`: say when runs are too short to be useful; some are only for trying."""
        self._loud = loud
        self._says_too_short = too_short
        self._folder = folder
        self._warned: set[str] = set()
        self._foreseen: set[tuple[str, bool]] = set()
        self._foot = Foot(live=loud != "quiet")
        self._board = Board(plan, folder) if plan is not None and folder is not None and self._foot.room else None
        self._pace = Pace()
        self._labels = {cell.name: label(cell.swept) for cell in plan.cells if cell.swept} if plan is not None else {}
        self._begun_s = 0.0
        self._running: RunSpec | None = None
        self._raw: Path | None = None
        self._stepping = False
        self._device: str | None = None
        self._made, self._total = 0, 0
        self._line = ""

    def __enter__(self) -> Self:
        self._foot.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._foot.__exit__()

    def say(self, text: str) -> None:
        """Print a line that is not a result."""
        if self._loud != "quiet":
            self._foot.above(printable(text))

    def begin(self, spec: RunSpec, done: int, total: int) -> None:
        """Show that a run starts."""
        self._begun_s, self._running, self._raw, self._total = time.monotonic(), spec, None, total
        self._line, self._stepping = f"[{done + 1}/{total}] {self._name(spec)}", False
        if self._board is not None:
            self._board.begin(spec)
        self._show("starting, 0 s")

    def tick(self, raw: Path) -> None:
        """Show how far the run is."""
        if self._raw is None:
            self._raw = raw
            self._detail(f"{self._line}: temporary files: {raw}")
        if self._loud == "quiet":
            return
        if self._device is None:
            self._tell_device(raw)
        progress = read_progress(raw)
        if progress:
            self._foresee(progress.get("needed_s"), progress.get("limit_s", 0.0))
            if not self._stepping:
                self._stepping = True
                self._detail(f"{self._line}: first steps after {duration(self._spent_s())}")
            width = progress.get("rel_half_width")
            precision = "" if width is None else f", mean ±{change(width)}"
            self._show(f"{progress['steps']:,.0f} steps, {progress['seconds']:,.1f} s measured{precision}")
        else:
            # A program does not tell how far it is.
            word = "running" if self._running is not None and self._running.program is not None else "starting"
            self._show(f"{word}, {duration(int(self._spent_s()), parts=1)}")

    def end(self, record: RunRecord, done: int, total: int) -> None:
        """Print how a run ended."""
        self._pace.add(record.spec.configuration, self._spent_s())
        self._running, self._made = None, self._made + 1
        if self._board is not None:
            self._board.end(record)
        self.say(f"[{done}/{total}] {self._name(record.spec)}: {_outcome(record)}")
        if done < total:
            self._warn(record)
        if record.launch is not None:
            self._detail(f"  command: {shlex.join(record.launch.command)}")
        if self._folder is not None:
            self._detail(f"  record: {self._folder.run_path(record.spec)}")
        self._show("")

    def _name(self, spec: RunSpec) -> str:
        return f"{self._labels.get(spec.configuration, spec.workload)}, job {spec.repeat}"

    def _tell_device(self, raw: Path) -> None:
        """Print which device is used and how long it measures, as soon as the first run knows."""
        spec = self._running
        if spec is None or spec.device_family == "sim" or spec.program is not None:
            self._device = ""
            return
        if (here := read_environment(raw)) is None:
            return
        self._device, budget, facts = here.device, spec.budget, here.facts
        name = facts.get("device.name", here.device)
        if here.device == "cpu":
            none = ", no accelerator was found" if spec.device == "auto" else ""
            threads = facts.get("torch.threads", "?")
            name = f"the CPU ({threads} {'thread' if threads == '1' else 'threads'}{none})"
        most = f"for {budget.epochs} epochs" if budget.epochs else f"for at most {budget.max_seconds:g} s"
        self.say(f"{self._line}: measures on {name} {most}")

    def _foresee(self, needed_s: float | None, limit_s: float) -> None:
        """Print once per configuration that a run extends itself, or that it will be too short to be useful."""
        if needed_s is None or self._running is None or not self._says_too_short:
            return
        spec, budget, cell = self._running, self._running.budget, self._running.configuration
        extends = needed_s <= limit_s
        if (cell, extends) in self._foreseen:
            return
        self._foreseen.add((cell, extends))
        why = f"{STEPS_TO_JUDGE} steps, needed to judge the steady state, take about {rounded(needed_s)}"
        if extends:
            self.say(f"{self._line}: extended: {why}, longer than max_seconds ({budget.max_seconds:g} s)")
        else:
            most = "" if budget.max_extension == 1 else f", {budget.longest_s:g} s with its extension"
            if needed_s <= budget.longest_s:
                most = f", and time_limit_s ({spec.time_limit_s or 0:g} s) has no room for an extension"
            self.say(f"{self._line}: warning: too short: {why}; max_seconds is {budget.max_seconds:g} s{most}")
            enough = math.ceil(LONGER_ROOM * needed_s)
            command = command_line(extend(spec, longer_limits(spec, enough)))
            if spec.study_arguments[:1] in (("study",), ("",)):
                later = f", or after this has ended: {command}" if command else ""
                file = spec.study_arguments[1] if command else "its file"
                command = f"set run.budget.max_seconds = {enough} in {file}{later}"
            self.say(f"  fix: {command}")
            if self._device == "cpu":
                fits = int(spec.batch * limit_s / needed_s)
                smaller = f"--batch {1 << fits.bit_length() - 1}" if fits else "a smaller model (steelyard workloads)"
                self.say(f"  or, as a CPU is slow: {smaller}, or a machine with an accelerator")

    def _warn(self, record: RunRecord) -> None:
        """Print once per kind of finding that runs are too short to be useful, before the others are made."""
        # It imports rules, which the first run need not wait for.
        from steelyard.rules.statistics.runs import too_short

        for finding in too_short(record) if self._says_too_short else ():
            if finding.code not in self._warned:
                self._warned.add(finding.code)
                self.say(f"  warning: {finding.code} {finding.message}")
                self.say(f"  fix: {finding.fix}{': ' if finding.command else ''}{command_line(finding.command)}")

    def _spent_s(self) -> float:
        return time.monotonic() - self._begun_s

    def _detail(self, text: str) -> None:
        if self._loud == "verbose":
            self._foot.above(printable(text))

    def _show(self, text: str) -> None:
        if self._foot.room is None:
            return
        columns, rows = self._foot.room
        head: list[str | Text] = []
        run = textwrap.wrap(f"{self._line}: {text}", columns - 1, break_on_hyphens=False) if text else []
        if self._board is not None and self._total > 1:
            head += textwrap.wrap(self._head(self._board), columns - 1)
            # Room is kept for the line of the run, which comes and goes, so that the grid does not move.
            height = min(FOOT_ROWS, rows - ROWS_ABOVE) - len(head) - max(1, len(run))
            head += self._board.lines(columns, height)
        self._foot.show([*head, *run])

    def _head(self, board: Board) -> str:
        """Format the number of runs done and the time left."""
        if board.searches:
            said = f"{board.name}: {self._made} of at most {self._total} runs done"
            queued = Counter({"": self._total - self._made - (self._running is not None)})
        else:
            said = f"{board.name}: {board.ended} of {self._total} runs done"
            queued = board.queued
        left_s = self._pace.left_s(queued, self._running.configuration if self._running else None, self._spent_s())
        if left_s is None:
            return f"{said}; time left: known after the first run"
        most = "at most " if board.searches else "about "
        return f"{said}, {most}{rounded(left_s)} left"


def _outcome(record: RunRecord) -> str:
    rate = record.quantities.get("throughput")
    if record.status.code in MEASURED and rate is not None:
        mean_s = record.quantities["step_time_mean"].value
        each = seconds(mean_s) if mean_s is not None else "unknown length"
        speed = f"{with_interval(rate)} {rate.unit}" if rate.value is not None else f"throughput {with_interval(rate)}"
        text = f"{speed}, {record.steps_seen:,} steps of {each}"
        if record.stop is not None and record.stop.extended_s:
            text += f", extended by {duration(record.stop.extended_s)}"
    else:
        text = f"{record.status.code}: {record.status.reason}"
    if record.status.code == "not_converged":
        text += f"; not converged: {record.status.reason}"
    return text
