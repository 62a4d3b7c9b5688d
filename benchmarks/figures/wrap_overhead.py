"""[wrap_overhead] Microseconds that the observer of `steelyard wrap` adds to each step of a tiny model.

Every round starts new processes: the same program alone and observed, without and with labels to count. They run at the
same time, but take turns of about 30 ms, because the speed of a machine varies from second to second. The difference of
a pair is that of the means over all its turns, so the time in which the observer writes its files counts. The figure is
the median over the pairs, by the clock, and by the processor's time, which other programs on the machine disturb less.

Every eighth round has the peers beside them: the whole `steelyard wrap`, traceml-ai (with the lines that it needs in a
plain loop), and Hugging Face's Trainer alone, observed, and with a TrainerCallback that does the same job. The sampler
of the whole is a process of its own, whose cost is the figure `sampler`.
"""

from __future__ import annotations

import importlib.util
import math
import os
import select
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from figure import Figure, arguments, at_least, at_most, finish, of_time
from program_cases import PROGRAMS, SURROUNDINGS
from steelyard.worker.wrap.program import INJECT

if TYPE_CHECKING:
    from collections.abc import Sequence

TURN_S, WARM_UP = 0.03, 3
MICRO, NANO = 1e6, 1e-9
LIMIT_S = 120
"""For one turn; the first one contains the start of the program."""
BARS = {
    "plain observed": (10.0, "added to a step, without labels"),
    "labels observed": (25.0, "added to a step, with labels counted"),
}


class Side(NamedTuple):
    """One way to run a program."""

    name: str
    pair: str
    """The side without an observer that it is compared with."""
    words: tuple[str, ...]
    package: str = "torch"


def _python(*words: str) -> tuple[str, ...]:
    return (sys.executable, str(PROGRAMS / words[0]), *words[1:])


WRAP = (sys.executable, "-m", "steelyard.cli.main", "wrap", "--results", "results", "--")
TRACEML = (
    sys.executable, "-m", "traceml_ai.launcher.cli", "run", "--logs-dir", "logs", str(PROGRAMS / "tiny.py"), "--args",
)  # fmt: skip
OURS = (
    Side("plain alone", "plain alone", _python("tiny.py")),
    Side("plain observed", "plain alone", _python("tiny.py")),
    Side("labels alone", "labels alone", _python("tiny.py", "--texts")),
    Side("labels observed", "labels alone", _python("tiny.py", "--texts")),
)
PEERS = (
    Side("labels, traceml-ai", "labels alone", (*TRACEML, "--texts", "--traceml"), "traceml_ai"),
    Side("labels, whole steelyard wrap", "labels alone", (*WRAP, *_python("tiny.py", "--texts"))),
    Side("trainer alone", "trainer alone", _python("tiny_trainer.py"), "accelerate"),
    Side("trainer observed", "trainer alone", _python("tiny_trainer.py"), "accelerate"),
    Side("trainer, TrainerCallback", "trainer alone", _python("tiny_trainer.py", "--count"), "accelerate"),
)


OBSERVED = [side for side in (*OURS, *PEERS) if side.name.endswith(" observed")]


@dataclass
class Player:
    """A running program that takes turns."""

    side: Side
    raw: Path
    process: subprocess.Popen[bytes]
    go: int
    done: int
    steps: int = 20

    def __post_init__(self) -> None:
        self.wall: list[float] = []
        self.cpu: list[float] = []

    @property
    def is_observed(self) -> bool:
        """Whether the observer is in it, without the rest of `steelyard wrap`."""
        return self.side in OBSERVED

    def wait(self) -> tuple[float, float]:
        """Return what its last turn took per step: seconds of the clock, and of the processor."""
        if not select.select([self.done], [], [], LIMIT_S)[0]:
            said = (self.raw.parent / "output").read_text(errors="replace")[-2000:]
            raise SystemExit(f"{self.side.name}: no turn within {LIMIT_S} s; exit code {self.process.poll()}\n{said}")
        wall_ns, cpu_ns = os.read(self.done, 1000).split()
        return NANO * float(wall_ns), NANO * float(cpu_ns)

    def turn(self) -> tuple[float, float]:
        """Let it run some steps."""
        os.write(self.go, b"%d\n" % self.steps)
        return self.wait()


def start(side: Side, folder: Path) -> Player:
    """Start a side in a folder of its own."""
    raw = folder / "raw"
    raw.mkdir(parents=True)
    pipes = [folder / "go", folder / "done"]
    for pipe in pipes:
        os.mkfifo(pipe)
    variables = {**os.environ, **SURROUNDINGS, "TURN_GO": str(pipes[0]), "TURN_DONE": str(pipes[1])}
    if side in OBSERVED:
        variables |= {
            "PYTHONPATH": str(INJECT), "STEELYARD_WRAP": str(raw), "STEELYARD_WRAP_ZERO": "0.0",
            "STEELYARD_WRAP_OPTIONS": "{}",
        }  # fmt: skip
    # Both ways, so that no side waits for the other to open it.
    handles = [os.open(pipe, os.O_RDWR) for pipe in pipes]
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(side.words, env=variables, cwd=folder, stdout=output, stderr=output)
    return Player(side, raw, process, *handles)


def start_all(sides: Sequence[Side], folder: Path, at_end: ExitStack) -> list[Player]:
    """Start all sides, and return them when they are ready for their first turn."""
    players, waiting = [], []
    for number, side in enumerate(sides):
        player = start(side, folder / str(number))
        at_end.callback(player.process.kill)
        players.append(player)
        # traceml-ai gives up if its own server does not answer soon, which is slow while other programs start.
        if side.package == "traceml_ai":
            player.wait()
        else:
            waiting.append(player)
    for player in waiting:
        player.wait()
    return players


def play(sides: Sequence[Side], turns: int) -> list[Player]:
    """Run all sides at the same time, in turns, and return them with their times."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as at_end:
        players = start_all(sides, Path(folder), at_end)
        for number in range(-WARM_UP, turns):
            for at in range(len(players)):
                # Another one begins each time.
                player = players[(at + number) % len(players)]
                wall_s, cpu_s = player.turn()
                player.wall.append(wall_s)
                player.cpu.append(cpu_s)
            if number < 0:
                # As many steps as the side that it is compared with: what a turn itself costs is then the same.
                alone_s = {player.side.name: player.cpu.pop() for player in players}
                for player in players:
                    player.wall.clear()
                    player.steps = max(1, round(TURN_S / alone_s[player.side.pair]))
        for player in players:
            os.write(player.go, b"0\n")
        for player in players:
            player.process.wait(LIMIT_S)
            os.close(player.go)
            os.close(player.done)
        silent = [player.side.name for player in players if player.is_observed and not any(player.raw.glob("steps-*"))]
    if silent:
        raise SystemExit(f"not observed: {', '.join(silent)}")
    return players


def middle(values: Sequence[float]) -> tuple[float, float]:
    """Return the median and its standard error, from the middle half."""
    ordered = sorted(values)
    low, high = ordered[len(ordered) // 4], ordered[-1 - len(ordered) // 4]
    return statistics.median(ordered), 1.25 * (high - low) / 1.35 / math.sqrt(len(ordered))


class Added:
    """Microseconds that one side adds to a step, of each pair; for a quick run, of each turn of its only pair."""

    def __init__(self, side: Side) -> None:
        self.side = side
        self.clock: list[float] = []
        self.processor: list[float] = []
        self.step: list[float] = []

    def take(self, alone: Player, ours: Player, *, quick: bool) -> None:
        """Take in a pair."""
        self.step.append(MICRO * statistics.fmean(ours.wall))
        for found, theirs, own in ((self.clock, alone.wall, ours.wall), (self.processor, alone.cpu, ours.cpu)):
            differences = [MICRO * (b - a) for a, b in zip(theirs, own, strict=True)]
            found += differences if quick else [statistics.fmean(differences)]

    def show(self) -> None:
        """Print it, for people."""
        text = f"{self.side.name}: {statistics.median(self.step):.0f} us per step, {len(self.step)} processes"
        if self.side.name != self.side.pair:
            for name, values in (("clock", self.clock), ("processor", self.processor)):
                text += f"; added by the {name} {{:.2f}} us, standard error {{:.2f}}".format(*middle(values))
        print(text)

    def figures(self, *, quick: bool) -> list[Figure]:
        """Compare it with its limit: a quick run only the processor's time, because others may use the machine too."""
        limit, words = BARS[self.side.name]
        kinds = [("processor", self.processor)] if quick else [("clock", self.clock), ("processor", self.processor)]
        found = []
        for name, values in kinds:
            value, error = middle(values)
            if quick and limit < value <= limit + 3 * error:
                print(f"undecided: {words}, {value:.1f} us is less than three standard errors above {limit:g}")
            found.append(
                of_time(
                    at_most(
                        f"wrap_overhead: {words}, by the {name}", value, "us", limit + (3 * error if quick else 0.0)
                    )
                )
            )
        return found


def main() -> None:
    options = arguments(__doc__, rounds={"type": int, "default": 40, "help": "process pairs of the full form"})
    quick = options.quick
    rounds, turns = (1, 40) if quick else (options.rounds, 20)
    peers = [side for side in PEERS if importlib.util.find_spec(side.package) is not None]
    if missing := sorted({side.package for side in PEERS} - {side.package for side in peers}):
        print(f"not installed, and left out: {', '.join(missing)}")
    added = {side.name: Added(side) for side in (*OURS, *([] if quick else peers))}
    for number in range(rounds):
        players = play((*([] if quick or number % 8 else peers), *OURS), turns)
        by_name = {player.side.name: player for player in players}
        for player in players:
            added[player.side.name].take(by_name[player.side.pair], player, quick=quick)
    for one in added.values():
        one.show()
    pairs = at_least("wrap_overhead: process pairs", rounds, "pairs", 1 if quick else 40)
    finish([*(row for name in BARS for row in added[name].figures(quick=quick)), pairs])


if __name__ == "__main__":
    main()
