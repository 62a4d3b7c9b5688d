"""The output of every figure script: a table for people, one JSON line for machines, and an exit code."""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any, NoReturn


@dataclass(frozen=True)
class Figure:
    """One measured figure, compared with its limit."""

    name: str
    figure: float
    unit: str
    bar: str
    holds: bool | None
    """None: undecided, only in a quick form."""


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


def timed(name: str, figure: float, unit: str, limit: float, *, quick: bool, error: float = 0.0) -> Figure:
    """A time that must not be above `limit`.

    A quick form is undecided where the excess is explained by a slow machine or by `error`, the noise of this run.
    """
    if not quick or figure <= limit:
        return at_most(name, figure, unit, limit)
    allowed = limit * slowness() + error
    return Figure(
        name, figure, unit, f"<= {limit:g}, on this machine {allowed:.3g}", None if figure <= allowed else False
    )


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
    """Print the figures as a table and as one JSON line, and exit 0 only if all hold or are undecided."""
    wide = max(len(f.name) for f in figures)
    words = {True: "ok  ", False: "MISS", None: "undecided"}
    for f in figures:
        print(f"{words[f.holds]} {f.name:<{wide}}  {f.figure:.6g} {f.unit}  (bar {f.bar})")
    rows = [asdict(f) for f in figures]
    print(json.dumps(rows[0] if len(rows) == 1 else rows), flush=True)
    sys.exit(1 if any(f.holds is False for f in figures) else 0)
