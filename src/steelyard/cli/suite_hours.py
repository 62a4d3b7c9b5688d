"""Run what fits of a suite into a limited time on this machine, and say what does not."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from steelyard.analysis.hours import TimedSuite
from steelyard.analysis.probe import SUFFIX
from steelyard.cli.verb import counted_if_interrupted
from steelyard.errors import InputError
from steelyard.launch.allocation import launcher_here
from steelyard.launch.local_study import Outcome, run_all
from steelyard.results.store import ResultFolder
from steelyard.terminal.drawing import duration, rounded
from steelyard.terminal.live.progress import Progress, loudness, say
from steelyard.terminal.suite import name_configurations
from steelyard.terminal.text import many

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Collection, Mapping, Sequence

    from steelyard.analysis.hours import Key, TimedPart
    from steelyard.contracts.record import RunRecord
    from steelyard.contracts.spec import RunSpec
    from steelyard.inputs.study import Expansion
    from steelyard.inputs.suite import Choice, NotRun
    from steelyard.terminal.live.progress import Loudness


@dataclass(frozen=True)
class InTime:
    """What was run in a limited time."""

    made: Mapping[str, Sequence[RunRecord]]
    """The runs of each part that were made."""
    short: Sequence[RunRecord]
    """All short runs."""
    left_out: Sequence[NotRun]
    measured: str
    """How many configurations have all their jobs."""


def run_in_time(
    arguments: argparse.Namespace, parts: Sequence[TimedPart], choice: Choice, begun_s: float, again: str
) -> InTime:
    """Run what fits into the time of `choice`, from `begun_s` on the monotonic clock.

    `again`: the command without its time.
    """
    folder, loud, seconds = ResultFolder(arguments.results), loudness(arguments), 3600 * (choice.hours or 0.0)
    made: dict[str, list[RunRecord]] = {part.name: [] for part in parts}
    suite, given = TimedSuite(folder, parts, begun_s + seconds, time.monotonic), duration(seconds)

    def make(part: str, expansion: Expansion, wanted: Callable[[RunSpec], bool]) -> Outcome:
        outcome = _make(folder, expansion, wanted, loud, trial=choice.size == "tiny")
        made[part] += () if expansion.study.name.endswith(SUFFIX) else outcome.made
        return outcome

    def tell() -> None:
        chosen = suite.chosen()
        if chosen:
            take_s = sum(offer.left_s for offer in chosen.values())
            say(f"chosen: {_counted(suite, chosen)}; about {rounded(take_s)} of {given}", loud)
            for entry in suite.left_out(chosen):
                if entry.why == "hours":
                    say(f"if time is left: {name_configurations(entry)}", loud)

    suite.run(make, tell)
    if not any(folder.run_ids(part.expansion.study.name) for part in parts) and (least_s := suite.least_s()):
        what = f"nothing fits into {given}: the shortest configuration takes up to {rounded(least_s)}"
        raise InputError(what, next_step=f"{again} --hours {_rounded_up(least_s / 3600)}")
    used = duration(time.monotonic() - begun_s)
    measured = f"measured: {_counted(suite, suite.measured())}; {used} of {given} used"
    return InTime(made, suite.short_runs(), suite.left_out(), measured)


def _make(
    folder: ResultFolder, expansion: Expansion, wanted: Callable[[RunSpec], bool], loud: Loudness, *, trial: bool
) -> Outcome:
    """Make the wanted runs of a study, as it is shown without the others."""
    runs = tuple(spec for spec in expansion.runs if wanted(spec))
    if not runs:
        return Outcome((), 0)
    names = {spec.configuration for spec in runs}
    shown = replace(expansion, cells=tuple(cell for cell in expansion.cells if cell.name in names), runs=runs)
    short = expansion.study.name.endswith(SUFFIX)
    say(f"{expansion.study.name}: {many(len(runs), 'short run' if short else 'run')}", loud)
    with (
        counted_if_interrupted(folder, shown),
        Progress(loud, shown, folder, too_short=not (short or trial)) as progress,
    ):
        return run_all(folder, expansion, launcher_here(progress.say, list(runs)), progress, wanted=wanted)


def _counted(suite: TimedSuite, keys: Collection[Key]) -> str:
    """Say how many configurations and printed figures these are."""
    text = f"{len(keys)} of {many(len(suite.keys), 'configuration')}"
    figures, total = suite.figures(keys), suite.figures(suite.keys)
    return text if total is None else f"{text}, with {figures} of {many(total, 'printed figure')}"


def _rounded_up(hours: float) -> str:
    """Return a number of hours that is a little longer, in two digits."""
    unit = 10 ** (math.floor(math.log10(hours)) - 1)
    return f"{math.ceil(1.2 * hours / unit) * unit:g}"
