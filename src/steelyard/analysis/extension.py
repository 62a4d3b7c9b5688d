"""What a finished study still needs: more jobs, or longer ones, only where a finding asks for them.

Longer jobs are further repeats of their configuration. Its summary counts only the jobs with the longest budget; the
records of the shorter ones are kept.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING

from steelyard.analysis.summary import summarise, why_longer
from steelyard.contracts.observe import MEASURED
from steelyard.estimate.enough import STEPS_TO_JUDGE
from steelyard.inputs.study import further_runs
from steelyard.rules.statistics.runs import too_short
from steelyard.stats.ratio import MIN_JOBS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from steelyard.contracts.record import RunRecord
    from steelyard.contracts.spec import RunSpec
    from steelyard.inputs.study import Configuration, Expansion

LONGER = 2
"""How many times longer the next jobs are."""
STEPS_ROOM = 1.25
"""Factor on the time of the fewest steps: the next jobs may be slower."""


@dataclass(frozen=True)
class Need:
    """The jobs that a configuration needs."""

    cell: Configuration
    spec: RunSpec
    """Their settings."""
    first: int
    """Number of the first one."""
    jobs: int
    why: str
    each_s: float
    """Estimated wall time of one, from the earlier jobs."""

    @property
    def time_s(self) -> float:
        """Estimated wall time of all."""
        return self.jobs * self.each_s

    @property
    def device_hours(self) -> float:
        """Estimated device-hours of all."""
        return self.time_s * self.spec.devices / 3600


@dataclass(frozen=True)
class Extension:
    """The further jobs of a study."""

    needs: tuple[Need, ...]
    lost: tuple[tuple[Configuration, Counter[str]], ...]
    """Configurations without a measured job, and how their jobs ended. More jobs would end in the same way."""

    def runs(self, expansion: Expansion) -> Expansion:
        """Return the study with these jobs instead of its own."""
        return further_runs(expansion, [(need.spec, need.first, need.jobs) for need in self.needs])


def find_extension(expansion: Expansion, records: Iterable[RunRecord]) -> Extension:
    """Return the jobs that a study needs, by its records."""
    by_cell: dict[str, list[RunRecord]] = {cell.name: [] for cell in expansion.cells}
    for record in records:
        if record.spec.configuration in by_cell:
            by_cell[record.spec.configuration].append(record)
    needs, lost = [], []
    for cell in expansion.cells:
        runs = by_cell[cell.name]
        if not any(record.status.code in MEASURED for record in runs):
            lost.append((cell, Counter[str](record.status.code for record in runs)))
            continue
        first = max(expansion.study.repeats, *(record.spec.repeat + 1 for record in runs))
        counted = summarise(runs)[0].records
        measured = [record for record in counted if record.status.code in MEASURED]
        if (why := why_longer(measured)) is not None:
            spec = _make_longer(cell.spec, measured)
            jobs = max(MIN_JOBS, len(counted))
            needs.append(Need(cell, spec, first, jobs, why, _estimate_s(measured, spec)))
        elif len(measured) < MIN_JOBS:
            spec = replace(cell.spec, budget=measured[0].spec.budget, time_limit_s=measured[0].spec.time_limit_s)
            why = f"{len(measured)} of {MIN_JOBS} jobs"
            needs.append(Need(cell, spec, first, MIN_JOBS - len(measured), why, _estimate_s(measured, spec)))
    return Extension(tuple(needs), tuple(lost))


def _make_longer(spec: RunSpec, measured: Sequence[RunRecord]) -> RunSpec:
    """Return these settings with a budget twice as long as that of the jobs, or more if the fewest steps need it."""
    budget, limit_s = measured[0].spec.budget, measured[0].spec.time_limit_s
    stops = [record.stop for record in measured if record.stop is not None and record.stop.steps]
    step_s = max((stop.seconds / stop.steps for stop in stops), default=0.0)
    used_s = max((stop.seconds for stop in stops), default=0.0)
    max_seconds = math.ceil(max(LONGER * budget.max_seconds, LONGER * used_s, STEPS_ROOM * STEPS_TO_JUDGE * step_s))
    min_steps = budget.min_steps
    if not any(too_short(record) for record in measured):
        # Otherwise jobs with a trend would end as early as before.
        min_steps = max(min_steps, LONGER * max((stop.steps for stop in stops), default=0))
    longer = replace(budget, min_steps=min_steps, max_steps=LONGER * budget.max_steps, max_seconds=max_seconds)
    if limit_s is not None:
        limit_s *= max_seconds / budget.max_seconds
    return replace(spec, budget=longer, time_limit_s=limit_s)


def _estimate_s(measured: Sequence[RunRecord], spec: RunSpec) -> float:
    """Estimate the wall time of a job: that of the earlier jobs, with the measured part in proportion to the budget."""
    factor = spec.budget.max_seconds / measured[0].spec.budget.max_seconds
    times = []
    for record in measured:
        wall_s = record.launch.wall_s if record.launch is not None else record.seconds_measured
        # Simulated time may pass faster than that of the clock.
        times.append(wall_s + (factor - 1) * min(wall_s, record.seconds_measured))
    return fmean(times)
