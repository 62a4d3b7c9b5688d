"""A documented figure held against jobs, and its history over occasions. Knows records and verdicts; runs nothing.

An occasion is one use of a recipe: a study of its own, called `verify.RECIPE.TIME`. So the jobs of one occasion are
judged together and never with those of another day, and the result folder alone is the history.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from steelyard.analysis.rows import VOLATILE
from steelyard.analysis.summary import MEASURED
from steelyard.errors import InputError, Problem, nearest, refusal
from steelyard.inputs.recipe import cell_of
from steelyard.rules.statistics.history import Drifted
from steelyard.rules.table.row import Amount, Row, RowTable
from steelyard.stats.band import MIN_JOBS, Band, BandJudgement, Verdict, judge
from steelyard.stats.drift import Change, changes

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from steelyard.contracts.record import Finding, RunRecord
    from steelyard.inputs.recipe import Expect, Recipe
    from steelyard.inputs.study import Expansion
    from steelyard.results.store import ResultFolder

TIME_FORMAT = "%Y%m%dT%H%M%S"
INTERRUPTED = ("killed", "node_failure", "preempted", "cancelled")
"""How jobs end that say nothing about the machine's speed: they are not counted."""
ORDER: tuple[Verdict, ...] = ("pass", "cannot tell", "fail")
SHOWN_FACTS = 8
# What people look for first.
TELLING = ("driver", "torch.version", "kernel", "cuda", "cudnn", "nccl", "container", "governor")
# Frequencies as they were at one moment, and what names a job or a folder.
PASSING = ("cpu.cpu0_mhz", "filesystem.", *(f"env.{name}" for name in VOLATILE))


@dataclass(frozen=True)
class FigureVerdict:
    """One documented figure, judged."""

    expect: Expect
    band: Band
    cell: str
    verdict: Verdict
    why: str
    """In a sentence."""
    unit: str
    judgement: BandJudgement | None
    """None: no job has the figure."""
    statuses: dict[str, int]
    records: tuple[RunRecord, ...]

    @property
    def more_jobs(self) -> int | None:
        """Jobs to add before it can be told."""
        return self.judgement.more_jobs if self.judgement and self.verdict == "cannot tell" else None


@dataclass(frozen=True)
class Occasion:
    """One use of a recipe, for one of its figures."""

    study: str
    started_at: str
    values: tuple[float, ...]
    outcome: FigureVerdict


@dataclass(frozen=True)
class HistoryStep:
    """A change in a history, and what else changed with it."""

    change: Change
    facts: dict[str, tuple[str, str]]
    """Facts of the environment that are one thing in all jobs before, and another in all jobs after."""


@dataclass(frozen=True)
class History:
    """A documented figure over time."""

    expect: Expect
    unit: str
    occasions: tuple[Occasion, ...]
    other_settings: int
    """Occasions left out because their jobs ran with other settings than the recipe has now."""
    steps: tuple[HistoryStep, ...]
    findings: tuple[Finding, ...]


def overall(outcomes: Sequence[FigureVerdict]) -> Verdict:
    """Of several figures: the worst."""
    return max((outcome.verdict for outcome in outcomes), key=ORDER.index)


def new_occasion(folder: ResultFolder, recipe: Recipe, now: datetime) -> str:
    """The name of a new occasion; `begin_occasion` takes it."""
    name = first = f"verify.{recipe.name}.{now.strftime(TIME_FORMAT)}"
    there, number = set(folder.studies()), 1
    while name in there:
        number += 1
        name = f"{first}-{number}"
    return name


def begin_occasion(folder: ResultFolder, name: str) -> None:
    """Take the name, so that two that begin in the same second do not mix their jobs."""
    folder.prepare()
    try:
        (folder.path / "runs" / name).mkdir()
    except FileExistsError:
        raise InputError(
            f"another verify of this recipe began in the same second, as {name}",
            next_step="the same command again",
        ) from None


def occasions(folder: ResultFolder, recipe: Recipe) -> list[str]:
    """Names of all occasions of a recipe that have a finished job, oldest first."""
    pattern = re.compile(rf"verify\.{re.escape(recipe.name)}\.(\d{{8}}T\d{{6}})(?:-(\d{{1,9}}))?")
    found = [(match[1], int(match[2] or 1), name) for name in folder.studies() if (match := pattern.fullmatch(name))]
    return [name for *_, name in sorted(found) if folder.run_ids(name)]


def latest_occasion(folder: ResultFolder, recipe: Recipe) -> str:
    """The newest occasion; InputError where there is none."""
    names = occasions(folder, recipe)
    if not names:
        raise InputError(
            f"{folder.path} has no jobs of the recipe {recipe.name!r} yet",
            next_step="run it first: the same command without --more and --no-run",
        )
    return names[-1]


def require_begun(folder: ResultFolder, expansion: Expansion) -> None:
    """Refuse to add jobs to an occasion that ran with other settings than the recipe has now."""
    if not any(folder.has(spec) for spec in expansion.runs):
        raise InputError(
            f"the jobs of {expansion.study.name} ran with other settings than the recipe has now",
            next_step="the same without --more: a new occasion",
        )


def require_figures(recipe: Recipe, expansion: Expansion, record: RunRecord) -> None:
    """Refuse after the first job what no job will have, rather than after the last."""
    for expected in recipe.expect:
        if cell_of(expansion, expected).name == record.spec.configuration:
            figures([record], expected)


def judge_records(recipe: Recipe, expansion: Expansion, records: Sequence[RunRecord]) -> list[FigureVerdict]:
    """Every documented figure of a recipe, held against the jobs of one occasion."""
    return [_judge(recipe, expected, cell_of(expansion, expected).name, records) for expected in recipe.expect]


def _judge(recipe: Recipe, expected: Expect, cell: str, all_records: Sequence[RunRecord]) -> FigureVerdict:
    records = tuple(record for record in all_records if record.spec.configuration == cell)
    band = Band(*expected.edges(), expected.value)
    values, unit = figures(records, expected)
    judgement = judge(values, band, rate=is_rate(unit), level=recipe.level) if values else None
    verdict, why = _verdict(records, judgement, expected)
    statuses: dict[str, int] = dict(Counter(str(record.status.code) for record in records))
    return FigureVerdict(expected, band, cell, verdict, why, unit, judgement, statuses, records)


def _verdict(records: Sequence[RunRecord], judgement: BandJudgement | None, expected: Expect) -> tuple[Verdict, str]:
    lost = Counter(record.status.code for record in records if record.status.code not in (*MEASURED, *INTERRUPTED))
    if lost:
        said = ", ".join(f"{count} {code}" for code, count in sorted(lost.items()))
        return "fail", f"{lost.total()} of {len(records)} jobs did not complete: {said}"
    if judgement is None:
        return "cannot tell", _no_figure(records, expected)
    blocking = sorted({found.code for record in records for found in record.findings if found.severity == "error"})
    if blocking:
        return "cannot tell", f"the jobs have findings that must be mended first: {', '.join(blocking)}"
    if judgement.verdict == "pass":
        return "pass", "the whole interval lies inside the band"
    if judgement.verdict == "fail" and expected.value is None:
        return "fail", "the whole interval lies outside the band"
    if judgement.verdict == "fail":
        return "fail", "the figure lies outside the band, and the documented figure outside the interval"
    return "cannot tell", _why_open(judgement, Band(*expected.edges(), expected.value))


def _no_figure(records: Sequence[RunRecord], expected: Expect) -> str:
    if not records:
        return "the latest jobs ran with other settings than the recipe has now"
    measured = [record for record in records if record.status.code in MEASURED]
    if not measured:
        return "all jobs were interrupted before they had a figure"
    reasons = [record.quantities[expected.metric].reason for record in measured if expected.metric in record.quantities]
    return f"no job has {expected.metric}: {next(filter(None, reasons), 'the reason is not known')}"


def _why_open(judgement: BandJudgement, band: Band) -> str:
    if judgement.jobs < MIN_JOBS:
        jobs = "one job does" if judgement.jobs == 1 else f"{judgement.jobs} jobs do"
        return f"{jobs} not show how much jobs vary: it takes {MIN_JOBS} at least"
    if judgement.more_jobs is None:
        return "the figure is so near the edge of the band that not even 1,000 more jobs would tell"
    if band.holds(judgement.value):
        return "the figure lies inside the band, but its interval reaches out of it"
    what = "the documented figure" if band.documented is not None else "a part of the band"
    return f"the figure lies outside the band, but its interval still holds {what}"


def figures(records: Sequence[RunRecord], expected: Expect) -> tuple[list[float], str]:
    """The figure of each measured job, and its unit."""
    measured = [record for record in records if record.status.code in MEASURED]
    found = [record.quantities[expected.metric] for record in measured if expected.metric in record.quantities]
    if measured and not found:
        known = sorted(measured[0].quantities)
        near = nearest(expected.metric, known)
        raise refusal(Problem("expect.metric", f"the jobs have no {expected.metric}", ", ".join(known), near=near))
    units = {quantity.unit for quantity in found}
    if expected.unit is not None and units - {expected.unit}:
        problem = Problem("expect.unit", f"{expected.unit!r}, but the jobs say", ", ".join(sorted(units)))
        raise InputError("the recipe's figure has another unit", problems=(problem,))
    unit = next(iter(units), expected.unit or "")
    values = [quantity.value for quantity in found if quantity.value is not None]
    # A rate of nothing has no time; a share may well be nothing.
    return [value for value in values if value > 0 or not is_rate(unit)], unit


def is_rate(unit: str) -> bool:
    """Whether it is so much in a time or for an energy: the mean of those is taken over the times."""
    return unit.endswith(("/s", "/J", "/Wh"))


# -- history


def history(folder: ResultFolder, recipe: Recipe, expansion: Expansion) -> list[History]:
    """Every documented figure of a recipe over its occasions."""
    there = [(name, records) for name in occasions(folder, recipe) if (records := list(folder.records(name)))]
    return [_history(recipe, expected, cell_of(expansion, expected).name, there) for expected in recipe.expect]


def _history(recipe: Recipe, expected: Expect, cell: str, there: Sequence[tuple[str, list[RunRecord]]]) -> History:
    kept = []
    for study, records in there:
        if any(record.spec.configuration == cell for record in records):
            outcome = _judge(recipe, expected, cell, records)
            values, _ = figures(outcome.records, expected)
            # When the first job began; where no record says it, when the occasion was named. Digits that are no date
            # stay what they are: the folder is anybody's.
            t = study.rsplit(".", 1)[1]
            named = f"{t[:4]}-{t[4:6]}-{t[6:8]}T{t[9:11]}:{t[11:13]}:{t[13:15]}+00:00"
            started = min((record.launch.started_at for record in outcome.records if record.launch), default=named)
            kept.append(Occasion(study, started, tuple(values), outcome))
    kept.sort(key=lambda occasion: occasion.started_at)
    measured = [occasion for occasion in kept if occasion.values]
    steps = _steps(measured)
    return History(
        expect=expected,
        unit=next((occasion.outcome.unit for occasion in measured), ""),
        occasions=tuple(kept),
        other_settings=len(there) - len(kept),
        steps=steps,
        findings=_findings(recipe, expected, measured, steps),
    )


def _steps(measured: Sequence[Occasion]) -> tuple[HistoryStep, ...]:
    if any(value <= 0 for occasion in measured for value in occasion.values):
        # A step is a factor, and nothing is no multiple of anything.
        return ()
    found = changes([occasion.values for occasion in measured])
    bounds = [0, *(change.index for change in found), len(measured)]
    return tuple(
        HistoryStep(change, changed_facts(_records(measured[a:b]), _records(measured[b:c])))
        for change, a, b, c in zip(found, bounds, bounds[1:], bounds[2:], strict=False)
    )


def _records(measured: Sequence[Occasion]) -> list[RunRecord]:
    return [record for occasion in measured for record in occasion.outcome.records]


def changed_facts(before: Sequence[RunRecord], after: Sequence[RunRecord]) -> dict[str, tuple[str, str]]:
    """Facts of the environment that have one value in all jobs before, and another in all jobs after."""
    first, second = _constant(before), _constant(after)
    changed = {key: (first[key], second[key]) for key in first if key in second and first[key] != second[key]}
    telling = sorted(changed, key=lambda key: (not any(word in key for word in TELLING), key))
    return {key: changed[key] for key in telling}


def _constant(records: Sequence[RunRecord]) -> dict[str, str]:
    facts = [{**entry.facts, "node": entry.node} for record in records if (entry := record.environment)]
    if not facts:
        return {}
    return {
        key: value
        for key, value in facts[0].items()
        if not key.startswith(PASSING) and all(other.get(key) == value for other in facts)
    }


def _findings(
    recipe: Recipe, expected: Expect, measured: Sequence[Occasion], steps: Sequence[HistoryStep]
) -> tuple[Finding, ...]:
    """The history as a table, so that the rule on tables finds in it what it finds in anybody's."""
    rows = tuple(_row(occasion, expected) for occasion in measured)
    found = list(Drifted().check(RowTable(f"history of {recipe.name}", rows)))
    for number, (finding, step) in enumerate(zip(found, steps, strict=False)):
        shown = [f"{key} {was} -> {now}" for key, (was, now) in list(step.facts.items())[:SHOWN_FACTS]]
        more = len(step.facts) - len(shown)
        said = "; ".join(shown) + (f"; and {more} more" if more > 0 else "")
        changed = f"changed with it: {said}" if said else "no recorded fact of the environment changed with it"
        found[number] = dataclasses.replace(finding, evidence=f"{finding.evidence}; {changed}")
    return tuple(found)


def _row(occasion: Occasion, expected: Expect) -> Row:
    judgement = occasion.outcome.judgement
    assert judgement is not None
    low = judgement.value if judgement.low is None else judgement.low
    high = judgement.value if judgement.high is None else judgement.high
    amount = Amount(judgement.value, low, high, occasion.outcome.unit, jobs=occasion.values)
    # The cell's name says that all settings are the same; the model stands for them.
    settings = {"model": occasion.outcome.records[0].spec.workload}
    return Row(occasion.study, settings, {expected.metric: amount}, note=occasion.started_at)
