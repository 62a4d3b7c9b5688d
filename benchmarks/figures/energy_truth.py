"""[energy_truth] The stated interval contains the true energy and is not wider than it must be.

Power in closed form is read through simulated counters and gauges: averaging, instantaneous, part-time. The estimator
knows what the vendor of the sensor states and nothing else. Three parts:

1. Any case (seeds from 6,000,000): windows from a third of a tick, loads near the period of the sensor or its reader,
   dropouts, wraps, resets and frozen values. The interval with gain holds, and the verdict marks what the sensor cannot
   know. Windows this short often have no number; the reasons are counted on stderr.
2. For each class of sensor, windows of 10 ticks and more without faults (seeds from 8,000,000) under loads that the
   constants of the estimator were not chosen on: those were chosen on `CALIBRATION` of lib/energy_loads.py with seeds
   from 7,000,000 (lib/energy_calibration.py), these are `TEST`. Apart from gain: how often the interval holds, and its
   mean half-width as a multiple of the true 95 % error, in the worst of five groups of window lengths.
3. The same with power that others have measured, if files are given with --traces: CSV with timestamp and power_w.

"Apart from gain" compares a number with what a sensor without gain error would read, and uses the interval without the
part for gain. Counter errors are those of all numbers, including doubtful ones. A tick is a new value as the reader saw
it, so dropouts make ticks longer. The quick form has fewer cases and allows for their number.
"""

from __future__ import annotations

import collections
import sys
import time
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from energy_cases import KINDS, SHAPES, Case, draw, draw_window
from energy_loads import TEST, recorded
from figure import Figure, arguments, at_least, at_most, between, finish, slack_percent
from steelyard.analysis.meters import read_meter

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from energy_loads import Family
    from steelyard.stats.energy import WindowEnergy

FIRST_SEED = 6_000_000
TEST_SEED = 8_000_000
SEEDS_PER_CLASS = 100_000
CASES, MANY_CASES = 1000, 20_000
WINDOWS, MANY_WINDOWS = 400, 4000
MANY_TICKS = 100
# Edges of the groups of window lengths, in ticks, readings or averages.
LENGTHS = (10, 30, 100, 300, 1000, np.inf)
# Fewer windows do not show the 95 % error.
LEAST_WINDOWS = 150


# -- counting -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """A case with its estimate."""

    case: Case
    """Without its readings."""
    energy: WindowEnergy

    @property
    def half_j(self) -> float:
        """Half-width of the interval."""
        assert self.energy.high_j is not None
        assert self.energy.low_j is not None
        return (self.energy.high_j - self.energy.low_j) / 2

    @property
    def error_j(self) -> float:
        """Distance of the number from the truth."""
        assert self.energy.value_j is not None
        return abs(self.energy.value_j - self.case.truth_j)

    @property
    def error_without_gain_j(self) -> float:
        """Distance from the truth as a sensor without gain error reads it."""
        assert self.energy.value_j is not None
        return abs(self.energy.value_j - self.case.without_gain_j)

    @property
    def rest_j(self) -> float:
        """Half-width apart from gain."""
        assert self.energy.rest_j is not None
        return self.energy.rest_j

    @property
    def width(self) -> float:
        """Half-width as a share of the number."""
        assert self.energy.value_j is not None
        return self.half_j / self.energy.value_j


def estimated(case: Case) -> Outcome:
    return Outcome(case.without_readings(), case.energy())


def told(title: str, rows: list[Outcome]) -> None:
    """Print one line of a breakdown."""
    numbers = [row for row in rows if row.energy.value_j is not None]
    valid = [row for row in numbers if row.energy.verdict == "valid"]
    held = sum(row.error_j <= row.half_j for row in numbers)
    held_valid = sum(row.error_j <= row.half_j for row in valid)
    width = np.median([row.width for row in numbers]) if numbers else float("nan")
    print(
        f"{title:<18} {len(rows):>5} cases  {len(valid):>5} valid ({100 * held_valid / max(1, len(valid)):5.1f} % hold)"
        f"  {len(numbers) - len(valid):>4} doubtful  {len(rows) - len(numbers):>4} no number  "
        f"{100 * held / max(1, len(numbers)):5.1f} % hold  +-{100 * width:4.1f} %",
        file=sys.stderr,
    )


def breakdown(rows: list[Outcome]) -> None:
    for name in KINDS:
        told(name, [row for row in rows if row.case.setting.kind == name])
    for name in SHAPES:
        told(name, [row for row in rows if row.case.setting.shape == name])
    told("all", rows)
    why = collections.Counter(reason_family(row.energy.reasons[0]) for row in rows if row.energy.verdict == "invalid")
    for reason, count in why.most_common():
        print(f"no number, {count}: {reason}", file=sys.stderr)


def reason_family(reason: str) -> str:
    """Remove the numbers from a reason."""
    return " ".join(word for word in reason.split() if not any(sign.isdigit() for sign in word))


def share_percent(hits: Iterable[bool]) -> float:
    found = list(hits)
    return 100 * sum(found) / len(found)


def any_case(cases: int, *, quick: bool) -> list[Figure]:
    rows = [estimated(draw(seed)) for seed in range(FIRST_SEED, FIRST_SEED + cases)]
    breakdown(rows)
    numbers = [row for row in rows if row.energy.value_j is not None]
    valid = [row for row in numbers if row.energy.verdict == "valid"]
    resolved = [row for row in rows if row.case.resolved]
    widths = [row.width for row in resolved if row.energy.value_j is not None]
    cannot = [row for row in rows if row.case.cannot_know]
    blind = [row for row in rows if row.case.setting.blind]
    named = "energy_truth: "
    held = share_percent(r.error_j <= r.half_j for r in numbers)
    held_rest = share_percent(r.error_without_gain_j <= r.rest_j for r in numbers)
    slack = slack_percent(95, len(numbers), quick=quick)
    answered = share_percent(r.energy.value_j is not None for r in resolved)
    far = share_percent(r.error_without_gain_j > 2 * r.rest_j for r in valid)
    return [
        at_least(named + "the interval holds the truth", held, "%", 95),
        at_least(named + "the interval apart from gain, too", held_rest, "%", 95 - slack),
        at_most(named + "median half-width where resolved", 100 * float(np.median(widths)), "%", 5),
        at_least(named + "resolved and a number", answered, "%", 95),
        at_most(named + "no number, of all", 100 * (len(rows) - len(numbers)) / len(rows), "%", 40),
        *counter_figures(named, [row for row in numbers if row.case.setting.counter]),
        at_most(named + "valid, beyond twice the half-width", sum(r.error_j > 2 * r.half_j for r in valid), "cases", 0),
        at_most(named + "valid, apart from gain beyond twice", far, "%", 1 + slack_percent(1, len(valid), quick=quick)),
        at_most(
            named + f"a number where none can be known, of {len(cannot)}",
            sum(r.energy.value_j is not None for r in cannot), "cases", 0,
        ),
        at_most(
            named + f"valid where a load may hide, of {len(blind)}",
            sum(r.energy.verdict == "valid" for r in blind), "cases", 0,
        ),
    ]  # fmt: skip


def counter_figures(named: str, counters: list[Outcome]) -> list[Figure]:
    """Apart from gain."""
    long = [row for row in counters if row.case.ticks >= MANY_TICKS]
    short = [row for row in counters if row.case.ticks < MANY_TICKS]
    worst_long = max(100 * row.error_without_gain_j / row.case.without_gain_j for row in long)
    worst_short = max(row.error_without_gain_j / row.case.tick_j for row in short)
    return [
        at_most(named + "counter error, 100 ticks and more", worst_long, "%", 1),
        at_most(named + "counter error, fewer ticks", worst_short, "ticks", 1),
    ]


# -- by class of sensor ---------------------------------------------------------------------------------------


def by_class(windows: int, families: Mapping[str, Family], place: str, *, quick: bool) -> list[Figure]:
    """Coverage, width and answers of each class of sensor, apart from gain."""
    figures, unanswered = [], []
    slack = slack_percent(96, windows, quick=quick)
    for number, kind in enumerate(KINDS):
        first = TEST_SEED + number * SEEDS_PER_CLASS
        rows = [estimated(draw_window(seed, kind, families)) for seed in range(first, first + windows)]
        unanswered += [row.energy.value_j is None for row in rows if row.case.setting.blocks > MANY_TICKS]
        numbers = [row for row in rows if row.energy.value_j is not None]
        by_family(kind, numbers)
        held = share_percent(r.error_without_gain_j <= r.rest_j for r in numbers)
        figures.append(between(f"energy_truth: {place}{kind}, apart from gain", held, "%", 93 - slack, 98 + slack))
        wide = [found for low, high in pairwise(LENGTHS) if (found := multiple(numbers, low, high)) is not None]
        if wide:
            figures.append(at_most(f"energy_truth: {place}{kind}, half-width", max(wide), "true 95 % errors", 1.5))
    figures.append(at_most(f"energy_truth: {place}long window, no number", share_percent(unanswered), "%", 1))
    return figures


def multiple(rows: list[Outcome], low: float, high: float) -> float | None:
    """Mean half-width apart from gain, as a multiple of the true 95 % error; None if there are too few windows."""
    group = [row for row in rows if low <= row.case.setting.blocks < high]
    if len(group) < LEAST_WINDOWS:
        return None
    half = np.array([row.rest_j / row.case.without_gain_j for row in group])
    error = np.array([row.error_without_gain_j / row.case.without_gain_j for row in group])
    true = float(np.quantile(error, 0.95))
    print(
        f"  {low:g} to {high:g} ticks: {len(group)} windows, +-{100 * half.mean():.3f} %, true 95 % error "
        f"{100 * true:.3f} %, held {100 * np.mean(error <= half):.1f} %",
        file=sys.stderr,
    )
    return float(half.mean()) / true


def by_family(kind: str, rows: list[Outcome]) -> None:
    """Print how often the interval apart from gain holds under each load."""
    held = collections.defaultdict(list)
    for row in rows:
        held[row.case.setting.shape].append(row.error_without_gain_j <= row.rest_j)
    print(f"{kind}: " + ", ".join(f"{k} {share_percent(v):.1f} %" for k, v in sorted(held.items())), file=sys.stderr)


def main() -> None:
    options = arguments(__doc__, traces={"type": Path, "default": None, "help": "folder with CSV files"})
    begin_s = time.monotonic()
    windows = WINDOWS if options.quick else MANY_WINDOWS
    figures = any_case(CASES if options.quick else MANY_CASES, quick=options.quick)
    figures += by_class(windows, TEST, "", quick=options.quick)
    if options.traces is not None:
        series = {path.stem: read_meter(path) for path in sorted(options.traces.glob("*.csv"))}
        traces = {name: partial(recorded, found.time_s, found.power_w) for name, found in series.items()}
        figures += by_class(windows, traces, "recorded, ", quick=options.quick)
    print(f"{time.monotonic() - begin_s:.1f} s", file=sys.stderr)
    finish(figures)


if __name__ == "__main__":
    main()
