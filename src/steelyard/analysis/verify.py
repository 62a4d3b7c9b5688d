"""Compare documented figures with jobs, and follow them over time. Runs nothing.

An occasion is one use of a recipe: a study of its own, called `verify.RECIPE.TIME`. Its jobs are judged together and
never with those of another day; the result folder is the history.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from steelyard import nofollow
from steelyard.analysis.rows import VOLATILE
from steelyard.contracts.observe import MEASURED
from steelyard.errors import InputError, Problem, nearest, refusal
from steelyard.inputs.recipe import cell_of
from steelyard.rules.statistics.history import Drifted
from steelyard.rules.table.row import Amount, Row, RowTable
from steelyard.stats.band import MIN_JOBS, Band, BandJudgement, Verdict, judge
from steelyard.stats.drift import Change, changes

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from steelyard.contracts.finding import Finding
    from steelyard.contracts.record import RunRecord
    from steelyard.inputs.recipe import Expect, Recipe
    from steelyard.inputs.study import Expansion
    from steelyard.results.store import ResultFolder

TIME_FORMAT = "%Y%m%dT%H%M%S"
INTERRUPTED = ("killed", "node_failure", "preempted", "lost", "cancelled")
"""Statuses that say nothing about the speed of the machine: such jobs are not counted."""
ORDER: tuple[Verdict, ...] = ("pass", "cannot tell", "fail")
BUSY = "SY609"
SHOWN_FACTS = 8
# Most likely causes of a change, shown first.
TELLING = ("driver", "torch.version", "kernel", "cuda", "cudnn", "nccl", "container", "governor")
# Of these, what an upgrade of the machine changes.
UPGRADED = TELLING[:-1]
# Momentary frequencies, and names of jobs or folders.
PASSING = ("cpu.cpu0_mhz", "filesystem.", *(f"env.{name}" for name in VOLATILE))


@dataclass(frozen=True)
class FigureVerdict:
    """One documented figure and its verdict."""

    expect: Expect
    band: Band
    configuration: str
    """Its name."""
    verdict: Verdict
    why: str
    """The reason in one sentence."""
    unit: str
    judgement: BandJudgement | None
    """None: no job has the figure."""
    statuses: dict[str, int]
    records: tuple[RunRecord, ...]

    errors: tuple[str, ...] = ()
    """Codes of errors of the jobs, which leave no verdict."""

    @property
    def open(self) -> BandJudgement | None:
        """The judgement that further jobs could decide; None if there is a verdict, or if they could not."""
        undecided = self.judgement is not None and self.judgement.verdict == "cannot tell"
        return self.judgement if undecided and self.verdict == "cannot tell" and not self.errors else None

    @property
    def more_jobs(self) -> int | None:
        """Number of jobs to add next; None if they would not decide, or too many would be needed."""
        return self.open.more_jobs if self.open else None

    @property
    def busy(self) -> int:
        """Number of jobs that ran on a busy machine."""
        return sum(map(_is_busy, self.records))

    @property
    def not_steady(self) -> int:
        """Number of measured jobs without a steady state."""
        return sum(
            record.steady is not None and record.steady.answer != "steady"
            for record in self.records
            if record.status.code in MEASURED
        )


@dataclass(frozen=True)
class JobsPrice:
    """What further jobs cost, if they take as long as those before."""

    wall_s: float
    device_hours: float | None
    """None on a simulated device, which has no hours."""


@dataclass(frozen=True)
class Occasion:
    """One use of a recipe, for one of its figures."""

    study: str
    started_at: str
    values: tuple[float, ...]
    outcome: FigureVerdict


@dataclass(frozen=True)
class HistoryStep:
    """A change in a history, and facts that changed with it."""

    change: Change
    facts: dict[str, tuple[str, str]]
    """Environment facts with one value in all jobs before and another in all jobs after."""


@dataclass(frozen=True)
class History:
    """A documented figure over time."""

    expect: Expect
    unit: str
    occasions: tuple[Occasion, ...]
    other_settings: int
    """Occasions left out because their settings differ from the recipe's current ones."""
    steps: tuple[HistoryStep, ...]
    findings: tuple[Finding, ...]


def overall(outcomes: Sequence[FigureVerdict]) -> Verdict:
    """Return the worst verdict of several figures."""
    return max((outcome.verdict for outcome in outcomes), key=ORDER.index)


def price(outcomes: Sequence[FigureVerdict], jobs: int) -> JobsPrice | None:
    """Return the price of adding `jobs` jobs to each configuration; None if it is not known how long jobs take."""
    cells = {outcome.configuration: outcome.records for outcome in outcomes}
    wall_s = device_s = 0.0
    for records in cells.values():
        walls = [record.launch.wall_s for record in records if record.launch and record.status.code in MEASURED]
        if not walls:
            return None
        each_s = jobs * sum(walls) / len(walls)
        wall_s += each_s
        device_s += each_s * records[0].spec.devices
    simulated = all(record.spec.device_family == "sim" for records in cells.values() for record in records)
    return JobsPrice(wall_s, None if simulated else device_s / 3600)


def new_occasion(folder: ResultFolder, recipe: Recipe, now: datetime) -> str:
    """Return the name of a new occasion; `begin_occasion` reserves it."""
    name = first = f"verify.{recipe.name}.{now.strftime(TIME_FORMAT)}"
    there, number = set(folder.studies()), 1
    while name in there:
        number += 1
        name = f"{first}-{number}"
    return name


def begin_occasion(folder: ResultFolder, name: str) -> None:
    """Reserve the name, to keep two occasions of the same second apart."""
    folder.prepare()
    try:
        nofollow.make_folder(folder.root / "runs" / name)
    except FileExistsError:
        raise InputError(
            f"another verify of this recipe started in the same second, as {name}",
            next_step="run the same command again",
        ) from None


def occasions(folder: ResultFolder, recipe: Recipe) -> list[str]:
    """Return the names of all occasions of a recipe that have a finished job, oldest first."""
    pattern = re.compile(rf"verify\.{re.escape(recipe.name)}\.(\d{{8}}T\d{{6}})(?:-(\d{{1,9}}))?")
    dated = [(match[1], int(match[2] or 1), name) for name in folder.studies() if (match := pattern.fullmatch(name))]
    return [name for *_, name in sorted(dated) if folder.run_ids(name)]


def latest_occasion(folder: ResultFolder, recipe: Recipe) -> str:
    """Return the newest occasion; InputError if there is none."""
    names = occasions(folder, recipe)
    if not names:
        raise InputError(
            f"{folder.path} has no jobs of the recipe {recipe.name} yet",
            next_step="run it first: the same command without --more and --no-run",
        )
    return names[-1]


def require_begun(folder: ResultFolder, expansion: Expansion) -> None:
    """Raise InputError if the occasion's settings differ from the recipe's current ones: no jobs can be added."""
    if not any(folder.has(spec) for spec in expansion.runs):
        raise InputError(
            f"the jobs of {expansion.study.name} have other settings than the recipe now",
            next_step="run it without --more to start a new occasion",
        )


def require_figures(recipe: Recipe, expansion: Expansion, record: RunRecord) -> None:
    """Raise InputError after the first job if a figure of the recipe is unknown, rather than after the last."""
    for expected in recipe.expect:
        if cell_of(expansion, expected).name == record.spec.configuration:
            figures([record], expected)


def judge_records(recipe: Recipe, expansion: Expansion, records: Sequence[RunRecord]) -> list[FigureVerdict]:
    """Judge every documented figure of a recipe by the jobs of one occasion."""
    return [_judge(recipe, expected, cell_of(expansion, expected).name, records) for expected in recipe.expect]


def _judge(recipe: Recipe, expected: Expect, cell: str, all_records: Sequence[RunRecord]) -> FigureVerdict:
    records = tuple(record for record in all_records if record.spec.configuration == cell)
    band = Band(*expected.edges(), expected.value)
    values, unit = figures(records, expected)
    judgement = judge(values, band, rate=is_rate(unit), level=recipe.level) if values else None
    errors = tuple(
        sorted({finding.code for record in records for finding in record.findings if finding.severity == "error"})
    )
    verdict, why = _verdict(records, judgement, expected, errors)
    statuses: dict[str, int] = dict(Counter(str(record.status.code) for record in records))
    return FigureVerdict(expected, band, cell, verdict, why, unit, judgement, statuses, records, errors)


def _is_busy(record: RunRecord) -> bool:
    return any(finding.code == BUSY for finding in record.findings)


def _perhaps_load(records: Sequence[RunRecord], judgement: BandJudgement, expected: Expect) -> bool:
    """Return whether other load may be why a figure fails: it does not fail in the jobs without load alone.

    Load makes nothing faster.
    """
    _, unit = figures(records, expected)
    band = Band(*expected.edges(), expected.value)
    too_fast = is_rate(unit) and band.high is not None and judgement.value > band.high
    quiet = [record for record in records if not _is_busy(record)]
    if too_fast or len(quiet) == len(records):
        return False
    values, _ = figures(quiet, expected)
    return not values or judge(values, band, rate=is_rate(unit), level=judgement.level).verdict != "fail"


def _verdict(
    records: Sequence[RunRecord], judgement: BandJudgement | None, expected: Expect, errors: tuple[str, ...]
) -> tuple[Verdict, str]:
    lost = Counter(record.status.code for record in records if record.status.code not in (*MEASURED, *INTERRUPTED))
    if lost:
        said = ", ".join(f"{count} {code}" for code, count in sorted(lost.items()))
        return "fail", f"{lost.total()} of {len(records)} jobs did not complete: {said}"
    if judgement is None:
        return "cannot tell", _no_figure(records, expected)
    if errors:
        told = ", ".join(f"steelyard explain {code}" for code in errors)
        return (
            "cannot tell",
            f"the jobs have errors, which more jobs do not remove; fix them, then verify again: {told}",
        )
    if judgement.verdict == "pass":
        return "pass", "the whole interval is inside the band"
    if judgement.verdict == "fail" and _perhaps_load(records, judgement, expected):
        return "cannot tell", "the figure is outside the band, and other load beside the jobs may be the reason"
    if judgement.verdict == "fail" and expected.value is None:
        return "fail", "the whole interval is outside the band"
    if judgement.verdict == "fail":
        return "fail", "the figure is outside the band, and the documented figure outside the interval"
    return "cannot tell", _why_open(judgement, Band(*expected.edges(), expected.value))


def _no_figure(records: Sequence[RunRecord], expected: Expect) -> str:
    if not records:
        return "the latest jobs have other settings than the recipe now"
    measured = [record for record in records if record.status.code in MEASURED]
    if not measured:
        return "all jobs were interrupted before they had a figure"
    reasons = [record.quantities[expected.metric].reason for record in measured if expected.metric in record.quantities]
    return f"no job has {expected.metric}: {next(filter(None, reasons), 'reason unknown')}"


def _why_open(judgement: BandJudgement, band: Band) -> str:
    if judgement.jobs < MIN_JOBS:
        jobs = "one job does" if judgement.jobs == 1 else f"{judgement.jobs} jobs do"
        return f"{jobs} not show how much jobs vary; at least {MIN_JOBS} are needed"
    if band.holds(judgement.value):
        return "the figure is inside the band, but its interval is not"
    what = "the documented figure" if band.documented is not None else "part of the band"
    return f"the figure is outside the band, but its interval contains {what}"


def figures(records: Sequence[RunRecord], expected: Expect) -> tuple[list[float], str]:
    """Return the figure of each measured job, and its unit."""
    measured = [record for record in records if record.status.code in MEASURED]
    quantities = [record.quantities[expected.metric] for record in measured if expected.metric in record.quantities]
    if measured and not quantities:
        known = sorted(measured[0].quantities)
        near = nearest(expected.metric, known)
        raise refusal(Problem("expect.metric", f"the jobs have no {expected.metric}", ", ".join(known), near=near))
    units = {quantity.unit for quantity in quantities}
    if expected.unit is not None and units - {expected.unit}:
        problem = Problem("expect.unit", f"{expected.unit} is not the unit of the jobs", ", ".join(sorted(units)))
        raise InputError("the recipe's figure has another unit", problems=(problem,))
    unit = next(iter(units), expected.unit or "")
    values = [quantity.value for quantity in quantities if quantity.value is not None]
    # A rate of zero has no time; a share may be zero.
    return [value for value in values if value > 0 or not is_rate(unit)], unit


def is_rate(unit: str) -> bool:
    """Return whether a unit is per time or per energy: such figures are averaged by their inverse."""
    return unit.endswith(("/s", "/J", "/Wh"))


# -- history


def history(folder: ResultFolder, recipe: Recipe, expansion: Expansion) -> list[History]:
    """Return the history of every documented figure of a recipe."""
    there = [(name, records) for name in occasions(folder, recipe) if (records := list(folder.records(name)))]
    return [_history(recipe, expected, cell_of(expansion, expected).name, there) for expected in recipe.expect]


def _history(recipe: Recipe, expected: Expect, cell: str, there: Sequence[tuple[str, list[RunRecord]]]) -> History:
    kept = []
    for study, records in there:
        if any(record.spec.configuration == cell for record in records):
            outcome = _judge(recipe, expected, cell, records)
            values, _ = figures(outcome.records, expected)
            # The start of the first job; without records, the time in the name of the occasion. Digits that are not a
            # date are kept as they are: the folder is untrusted.
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
        # A change is a factor: it does not exist for zero.
        return ()
    shifts = changes([occasion.values for occasion in measured])
    bounds = [0, *(change.index for change in shifts), len(measured)]
    return tuple(
        HistoryStep(change, changed_facts(_records(measured[a:b]), _records(measured[b:c])))
        for change, a, b, c in zip(shifts, bounds, bounds[1:], bounds[2:], strict=False)
    )


def _records(measured: Sequence[Occasion]) -> list[RunRecord]:
    return [record for occasion in measured for record in occasion.outcome.records]


def changed_facts(before: Sequence[RunRecord], after: Sequence[RunRecord]) -> dict[str, tuple[str, str]]:
    """Return environment facts with one value in all jobs before and another in all jobs after."""
    first, second = constant_facts(before), constant_facts(after)
    changed = {key: (first[key], second[key]) for key in first if key in second and first[key] != second[key]}
    telling = sorted(changed, key=lambda key: (not any(word in key for word in TELLING), key))
    return {key: changed[key] for key in telling}


def constant_facts(records: Sequence[RunRecord]) -> dict[str, str]:
    """Return the environment facts that are the same in all jobs."""
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
    """Judge the history as a table, with the rule for published tables."""
    rows = tuple(_row(occasion, expected) for occasion in measured)
    findings = list(Drifted().check(RowTable(f"history of {recipe.name}", rows)))
    for number, (finding, step) in enumerate(zip(findings, steps, strict=False)):
        shown = [f"{key} {was} -> {now}" for key, (was, now) in list(step.facts.items())[:SHOWN_FACTS]]
        more = len(step.facts) - len(shown)
        said = "; ".join(shown) + (f"; and {more} more" if more > 0 else "")
        changed = f"changed with it: {said}" if said else "no recorded fact of the environment changed with it"
        findings[number] = dataclasses.replace(finding, evidence=f"{finding.evidence}; {changed}")
    return tuple(findings)


def _row(occasion: Occasion, expected: Expect) -> Row:
    judgement = occasion.outcome.judgement
    assert judgement is not None
    low = judgement.value if judgement.low is None else judgement.low
    high = judgement.value if judgement.high is None else judgement.high
    amount = Amount(judgement.value, low, high, occasion.outcome.unit, jobs=occasion.values)
    # All settings are equal within a configuration; the model represents them.
    settings = {"model": occasion.outcome.records[0].spec.workload}
    return Row(occasion.study, settings, {expected.metric: amount}, note=occasion.started_at)
