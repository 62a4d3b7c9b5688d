"""Predict how long a study takes, from short runs of its configurations."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from steelyard.contracts.observe import MEASURED
from steelyard.contracts.spec import Budget
from steelyard.estimate.enough import STEPS_TO_JUDGE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from steelyard.contracts.record import RunRecord
    from steelyard.contracts.spec import RunSpec
    from steelyard.inputs.study import Expansion

SHORT = Budget(min_steps=8, min_seconds=0.0, max_steps=16, max_seconds=20.0, max_extension=1.0)
"""Enough to see the time of a step after the first ones."""
SUFFIX = "-probe"


@dataclass(frozen=True)
class StudyForecast:
    """What a study is going to take."""

    device_hours: float
    hours: float
    """Of one run after the other."""
    unknown: tuple[str, ...]
    """Configurations whose short run failed; they are not part of the sums."""


def short_runs(expansion: Expansion) -> Expansion:
    """Return the study with one short run for each configuration."""
    study = replace(expansion.study, name=expansion.study.name + SUFFIX, repeats=1)
    cells = tuple(replace(cell, spec=_shorten(cell.spec, study.name)) for cell in expansion.cells)
    return replace(expansion, study=study, cells=cells, runs=tuple(cell.spec for cell in cells))


def _shorten(spec: RunSpec, study: str) -> RunSpec:
    return replace(spec, study=study, budget=SHORT, quality=None, time_limit_s=None)


def forecast(expansion: Expansion, records: Iterable[RunRecord]) -> StudyForecast:
    """Return what the study takes, from its short runs."""
    measured = {record.spec.configuration: record for record in records if record.status.code in MEASURED}
    hours = device_hours = 0.0
    for spec in expansion.runs:
        if spec.configuration in measured:
            seconds = predict_s(measured[spec.configuration], spec)
            hours += seconds / 3600
            device_hours += seconds * spec.devices / 3600
    unknown = tuple(cell.name for cell in expansion.cells if cell.name not in measured)
    return StudyForecast(device_hours, hours, unknown)


def predict_s(short: RunRecord, spec: RunSpec) -> float:
    """Return the wall time of a run: that of the short run, with the measured part of the other budget."""
    step_s = short.seconds_measured / max(1, short.steps_seen)
    budget = spec.budget
    if budget.epochs is not None:
        steps = spec.steps_per_epoch or (short.data.samples // spec.step_samples if short.data is not None else 1)
        measured_s = budget.epochs * steps * step_s
    else:
        wanted_s = max(budget.min_steps * step_s, budget.min_seconds)
        measured_s = max(min(wanted_s, budget.max_seconds), min(STEPS_TO_JUDGE * step_s, budget.longest_s))
    return run_s(short) - short.seconds_measured + measured_s


def run_s(record: RunRecord) -> float:
    """Return how long a run took, with everything around its steps; in simulated time for a simulated device."""
    times = [time for phase in record.phases for time in (phase.start_s, phase.end_s) if time is not None]
    own_s = max(times) - min(times) if times else record.seconds_measured
    if record.spec.device_family == "sim" or record.launch is None:
        return own_s
    return max(own_s, record.launch.wall_s)
