"""Measure what fits of a suite into a limited time: short runs first, then what has the most printed figures.

How runs are made and what the time is are given, so that simulated machines need no hours.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Protocol

from steelyard.analysis.probe import SHORT, SUFFIX, predict_s, run_s, short_runs
from steelyard.contracts.observe import MEASURED
from steelyard.inputs.suite import NotRun

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from steelyard.contracts.record import RunRecord
    from steelyard.contracts.spec import RunSpec
    from steelyard.inputs.study import Expansion
    from steelyard.inputs.suite import Planned, Reason
    from steelyard.launch.local_study import Outcome
    from steelyard.results.store import ResultFolder

START_S = 60.0
"""Time of a run without its measured steps, before any has ended: Python, imports, the model, the first data."""
WORTH_S = 60.0
"""A run that may measure for longer is worth a short run before it. One that may not tells as much by itself."""
SHORT_RUNS_SHARE = 0.25
"""The most that short runs take of the time that is left before them."""


Key = tuple[str, str]
"""Study and configuration."""


def key_of(spec: RunSpec) -> Key:
    """Return the study and the configuration of a run; a short run has those of the runs that it stands for."""
    return spec.study.removesuffix(SUFFIX), spec.configuration


class RunTimes:
    """How long runs take, by those that have ended."""

    def __init__(self) -> None:
        self.failed: dict[Key, RunRecord] = {}
        """A run that did not complete, of each configuration that has one."""
        self.short: dict[Key, RunRecord] = {}
        """The short run of each configuration that has one."""
        self._took_s: dict[Key, float] = {}
        self._around_s: dict[tuple[str | int, ...], float] = {}

    def add(self, record: RunRecord) -> None:
        """Learn from a run, or from a short run."""
        spec, key = record.spec, key_of(record.spec)
        if record.status.code not in MEASURED:
            self.failed[key] = record
            return
        if spec.study == key[0]:
            self._took_s[key] = max(run_s(record), self._took_s.get(key, 0.0))
        else:
            self.short[key] = record
        # What a run measures beyond its budget, as with steps of minutes, others like it do as well.
        around_s = run_s(record) - min(record.seconds_measured, _longest_s(spec) or record.seconds_measured)
        for like in _alike(spec):
            self._around_s[like] = max(around_s, self._around_s.get(like, 0.0))

    def known(self, spec: RunSpec) -> bool:
        """Return whether a run of this configuration, or a short one, has ended."""
        key = key_of(spec)
        return key in self._took_s or key in self.short or key in self.failed

    def job_s(self, spec: RunSpec) -> float | None:
        """Return how long a run takes: as the longest of its configuration; before one has ended, as predicted from its
        short run; else the most that its budget allows. None: its budget has no limit in seconds."""
        key, longest_s = key_of(spec), _longest_s(spec)
        if key in self._took_s:
            return self._took_s[key]
        if key in self.short:
            return predict_s(self.short[key], spec)
        return None if longest_s is None else self._start_s(spec) + longest_s

    def short_s(self, spec: RunSpec) -> float:
        """Return how long a short run takes at most."""
        return self._start_s(spec) + SHORT.max_seconds

    def _start_s(self, spec: RunSpec) -> float:
        """Return the longest time around the measured steps, of the runs that are most like this one."""
        return next((self._around_s[like] for like in _alike(spec) if like in self._around_s), START_S)


def _alike(spec: RunSpec) -> list[tuple[str | int, ...]]:
    """Return names of runs that start alike: first those most like this one, at last all."""
    return [(spec.workload, spec.compile, spec.devices), (spec.workload,), ()]


def worth_short_run(spec: RunSpec) -> bool:
    """Return whether a short run tells enough for what it costs."""
    longest_s = _longest_s(spec)
    return longest_s is None or longest_s > WORTH_S


def _longest_s(spec: RunSpec) -> float | None:
    return None if spec.budget.epochs is not None else spec.budget.longest_s


@dataclass(frozen=True)
class TimedOffer:
    """A configuration that can be measured."""

    key: Key
    figures: int
    """Printed figures that it is measured for."""
    left_s: float
    """How long all its missing jobs take."""


def choose(offers: Iterable[TimedOffer], left_s: float) -> list[TimedOffer]:
    """Return the configurations to measure in the time that is left.

    Those with the most figures per second are taken first, as long as they fit; each with all its jobs, because fewer
    than three are not ranked. Another choice may have a few figures more. It is not looked for: the times are
    predictions, and their errors matter more.
    """
    chosen = []
    for offer in sorted(offers, key=lambda one: (-one.figures / max(one.left_s, 1e-9), one.left_s, one.key)):
        if offer.left_s <= left_s:
            chosen.append(offer)
            left_s -= offer.left_s
    return chosen


@dataclass(frozen=True)
class TimedPart:
    """A part of a suite that is to run in a limited time."""

    name: str
    expansion: Expansion
    planned: tuple[Planned, ...]
    """Its configurations, in the order of the expansion."""
    figures: tuple[int, ...] | None
    """How many printed figures each configuration is measured for; None: there is no document, and all count alike."""


class Make(Protocol):
    """Makes runs of a part."""

    def __call__(self, part: str, expansion: Expansion, wanted: Callable[[RunSpec], bool], /) -> Outcome:
        """Make the wanted runs; asked for all at first, and again before each."""


@dataclass(frozen=True)
class _Candidate:
    """A configuration that may be chosen."""

    part: TimedPart
    planned: Planned
    figures: int
    jobs: tuple[RunSpec, ...]

    @property
    def key(self) -> Key:
        return key_of(self.jobs[0])


def _candidates(part: TimedPart) -> Iterator[_Candidate]:
    counts = part.figures if part.figures is not None else (1,) * len(part.planned)
    for cell, planned, figures in zip(part.expansion.cells, part.planned, counts, strict=True):
        jobs = tuple(spec for spec in part.expansion.runs if spec.configuration == cell.name)
        yield _Candidate(part, planned, figures, jobs)


class TimedSuite:
    """The parts of a suite, and the time in which their runs have to end.

    What is chosen is looked at again before each run, when more is known about how long runs take. No run starts that
    would end too late, as far as is known. Configurations without a printed figure come after all others.
    """

    def __init__(
        self, folder: ResultFolder, parts: Sequence[TimedPart], end_s: float, clock: Callable[[], float]
    ) -> None:
        """`end_s`: when the time is over, on the clock."""
        self._folder, self._parts, self._end_s, self._clock = folder, parts, end_s, clock
        self._times = RunTimes()
        self._candidates = [one for part in parts for one in _candidates(part)]
        runs = [spec for part in parts for spec in (*part.expansion.runs, *short_runs(part.expansion).runs)]
        self._not_made = {(spec.study, spec.run_id): spec for spec in runs}
        self._look()

    # -- what is chosen

    @property
    def keys(self) -> list[Key]:
        """All configurations."""
        return [one.key for one in self._candidates]

    def figures(self, keys: Collection[Key]) -> int | None:
        """Return how many printed figures these configurations are measured for; None: there is no document."""
        if any(part.figures is None for part in self._parts):
            return None
        return sum(one.figures for one in self._candidates if one.key in keys)

    def chosen(self) -> dict[Key, TimedOffer]:
        """Return the configurations whose missing jobs fit into the time that is left."""
        return self._choose(self._candidates)

    def measured(self) -> list[Key]:
        """Return the configurations that have all their jobs."""
        self._look()
        return [one.key for one in self._candidates if not self._missing(one) and one.key not in self._times.failed]

    def left_out(self, chosen: Collection[Key] = ()) -> list[NotRun]:
        """Return the configurations with missing jobs, but for those that are chosen, by part and reason."""
        made = []
        left = [one for one in self._candidates if self._missing(one) and one.key not in chosen]
        for part in self._parts:
            by_reason: dict[Reason, list[Planned]] = {}
            for one in left:
                if one.part is part:
                    by_reason.setdefault("failed" if one.key in self._times.failed else "hours", []).append(one.planned)
            for why, some in by_reason.items():
                made.append(NotRun(part.name, why, tuple(some), len(some) == len(part.planned), part.planned))
        return made

    def least_s(self) -> float | None:
        """Return how long the shortest configuration takes, with its short run; None: nothing is left to measure."""
        return min((self._least_s(one) for one in self._candidates if self._to_make(one)), default=None)

    def short_runs(self) -> list[RunRecord]:
        """Return the short runs that there are."""
        records = (*self._times.short.values(), *self._times.failed.values())
        return [record for record in records if record.spec.study.endswith(SUFFIX)]

    # -- what is made

    def run(self, make: Make, tell: Callable[[], None]) -> None:
        """Make runs until nothing fits any more. `tell`: called when the first short runs have ended."""
        printed = [one for one in self._candidates if one.figures]
        self._make_short_runs(printed, make)
        tell()
        self._make_all_chosen(printed, make)
        # Only now: short runs of what no printed figure belongs to cost time, too.
        self._make_short_runs(self._candidates, make)
        self._make_all_chosen(self._candidates, make)

    def _make_short_runs(self, group: Sequence[_Candidate], make: Make) -> None:
        """Make short runs, first those of the configurations with most printed figures."""
        until_s = self._clock() + SHORT_RUNS_SHARE * self._time_left_s()
        ordered = sorted(group, key=lambda one: -one.figures)
        for part, some in groupby(ordered, key=lambda one: one.part.name):
            these = {one.key: one for one in some}

            def wanted(spec: RunSpec, these: dict[Key, _Candidate] = these) -> bool:
                one = these.get(key_of(spec))
                return one is not None and self._wants_short_run(one, group, until_s)

            make(part, short_runs(next(iter(these.values())).part.expansion), wanted)

    def _wants_short_run(self, one: _Candidate, group: Sequence[_Candidate], until_s: float) -> bool:
        """Return whether a short run of a configuration is made now."""
        self._look()
        spec = one.jobs[0]
        if not self._to_make(one) or self._times.known(spec) or not worth_short_run(spec):
            return False
        # Without time for the jobs themselves it would be of no use.
        if self._clock() + self._times.short_s(spec) > until_s or self._least_s(one) > self._time_left_s():
            return False
        # Everything may fit, whatever it would tell.
        most_s = [self._left_s(other) for other in group if self._to_make(other)]
        return None in most_s or sum(filter(None, most_s)) > self._time_left_s()

    def _make_all_chosen(self, group: Sequence[_Candidate], make: Make) -> None:
        """Make the runs that fit, part by part in the order of each study, until nothing fits any more."""
        made = 1
        while made:
            # Runs that took less time than predicted have left some for others.
            chosen = self._choose(group)

            def wanted(spec: RunSpec, chosen: Collection[Key] = frozenset(chosen)) -> bool:
                return key_of(spec) in chosen and key_of(spec) in self._choose(group)

            made = sum(len(make(part.name, part.expansion, wanted).made) for part in self._parts)

    # -- what is known

    def _time_left_s(self) -> float:
        return self._end_s - self._clock()

    def _choose(self, group: Sequence[_Candidate]) -> dict[Key, TimedOffer]:
        self._look()
        timed = [(one, self._left_s(one)) for one in group if self._to_make(one)]
        offers = [TimedOffer(one.key, one.figures, left_s) for one, left_s in timed if left_s is not None]
        return {offer.key: offer for offer in choose(offers, self._time_left_s())}

    def _missing(self, one: _Candidate) -> int:
        return sum((spec.study, spec.run_id) in self._not_made for spec in one.jobs)

    def _to_make(self, one: _Candidate) -> int:
        """Return how many jobs are to be made: none of a configuration with a run that did not complete."""
        return 0 if one.key in self._times.failed else self._missing(one)

    def _left_s(self, one: _Candidate) -> float | None:
        """Return how long the missing jobs of a configuration take; None: its budget does not tell."""
        job_s = self._times.job_s(one.jobs[0])
        return None if job_s is None else self._to_make(one) * job_s

    def _least_s(self, one: _Candidate) -> float:
        """Return how long the missing jobs of a configuration take; before its short run the least, and with it."""
        spec = one.jobs[0]
        job_s = self._times.job_s(spec) if self._times.known(spec) or not worth_short_run(spec) else None
        if job_s is not None:
            return self._to_make(one) * job_s
        # A job takes at least as long as a short run.
        return (1 + self._to_make(one)) * self._times.short_s(spec)

    def _look(self) -> None:
        """Learn from the runs that are there. Another process may be making some, too."""
        there = {study: self._folder.run_ids(study) for study in {study for study, _ in self._not_made}}
        for (study, run), spec in list(self._not_made.items()):
            if run in there[study] and self._folder.has(spec):
                self._times.add(self._folder.read(self._folder.run_path(spec)))
                del self._not_made[study, run]
