"""The output of every figure script: a table for people, one JSON line for machines, and an exit code."""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from steelyard.derive.load import load_between
from steelyard.hostload import read_load

# As in .ci/lib: where nothing may be kept, every process that a figure starts compiles torch again, for ten seconds.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


@dataclass(frozen=True)
class Figure:
    """One measured figure, compared with its limit."""

    name: str
    figure: float
    unit: str
    bar: str
    holds: bool | None
    """None: undecided; only a figure about time that misses while others used the processor."""
    of_time: bool = False


def at_most(name: str, figure: float, unit: str, limit: float) -> Figure:
    """A figure that must not be above `limit`."""
    return Figure(name, figure, unit, f"<= {limit:g}", figure <= limit)


def at_least(name: str, figure: float, unit: str, limit: float) -> Figure:
    """A figure that must not be below `limit`."""
    return Figure(name, figure, unit, f">= {limit:g}", figure >= limit)


def between(name: str, figure: float, unit: str, low: float, high: float) -> Figure:
    """A figure that must be between `low` and `high`."""
    return Figure(name, figure, unit, f"{low:g} to {high:g}", low <= figure <= high)


LOOP_S = 0.034
"""Processor seconds of `_loop_s` where the limits of the figures were set, with nothing else running."""


def _loop_s() -> float:
    begin_s, counts = time.process_time(), dict[int, int]()
    for number in range(200_000):
        counts[number & 1023] = counts.get(number & 1023, 0) + number
    return time.process_time() - begin_s


def slowness() -> float:
    """Return how many times slower this machine is now than where the limits were set; at least 1.

    Machines of one kind differ by a factor of two, and so does one machine from minute to minute.
    """
    return max(1.0, statistics.median(_loop_s() for _ in range(9)) / LOOP_S)


def of_time(figure: Figure) -> Figure:
    """Mark a figure that other programs on the machine can spoil: a duration, a rate or a share of time."""
    return replace(figure, of_time=True)


def timed(name: str, figure: float, unit: str, limit: float, *, quick: bool, error: float = 0.0) -> Figure:
    """A time that must not be above `limit`; a quick form allows for a slow machine and for the noise `error`."""
    return of_time(at_most(name, figure, unit, limit * slowness() + error if quick and figure > limit else limit))


class Others:
    """How much of the processor others have used since this began: other programs, and other machines beside this one.

    What this program started is its own, until it outlives its parent, as a server does.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self._root, self._cpus = root, os.sched_getaffinity(0)
        self._begin = read_load(root, "start", cpus=self._cpus)

    def cpus(self) -> float | None:
        """Return their mean use of our processors, as a number of processors; None if the kernel does not tell."""
        load = load_between([(self._begin, read_load(self._root, "end", cpus=self._cpus))])
        if load is None or load.other_cpus is None:
            return None
        return load.other_cpus + len(self._cpus) * (load.steal_share or 0.0)


OTHERS = Others()
MOST_OTHERS_CPUS = 0.25
UNDECIDED_CODE = 3


def slack_percent(share_percent: float, cases: int, *, quick: bool) -> float:
    """Return how far a quick run may miss a limit on a share: 2.6 binomial standard errors of its case count.

    0 for a full run.
    """
    if not quick:
        return 0.0
    share = share_percent / 100
    return 100 * 2.6 * math.sqrt(share * (1 - share) / cases)


def arguments(description: str | None, **extra: dict[str, Any]) -> argparse.Namespace:
    """Parse the options of every figure script, and its own from `extra`."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="the form CI runs: fewer cases, at most 30 s")
    for name, options in extra.items():
        parser.add_argument(f"--{name.replace('_', '-')}", **options)
    return parser.parse_args()


def finish(figures: list[Figure]) -> NoReturn:
    """Print the figures as a table and as one JSON line; exit with 0 if all hold, 3 if some are undecided, else 1."""
    others = OTHERS.cpus() or 0.0
    if others > MOST_OTHERS_CPUS and any(f.of_time and not f.holds for f in figures):
        print(f"undecided, because other programs used {others:.2f} CPUs", file=sys.stderr)
        figures = [replace(f, holds=f.holds or None) if f.of_time else f for f in figures]
    wide = max(len(f.name) for f in figures)
    words = {True: "ok  ", False: "MISS", None: "undecided"}
    for f in figures:
        print(f"{words[f.holds]} {f.name:<{wide}}  {f.figure:.6g} {f.unit}  (bar {f.bar})")
    rows = [{name: value for name, value in asdict(f).items() if name != "of_time"} for f in figures]
    print(json.dumps(rows[0] if len(rows) == 1 else rows), flush=True)
    holds = {f.holds for f in figures}
    sys.exit(1 if False in holds else UNDECIDED_CODE if None in holds else 0)
