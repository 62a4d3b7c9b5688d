"""Run rules on steady state and confidence intervals (SY201 to SY204)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from steelyard.estimate.enough import STEPS_OF_COVERAGE, STEPS_TO_JUDGE
from steelyard.inputs.command import extend, longer_limits, wrap_again
from steelyard.numbers import change, short
from steelyard.rules.rule import Example, RunRule
from steelyard.stats.ratio import MIN_JOBS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from steelyard.contracts.finding import Finding
    from steelyard.contracts.record import RunRecord

LONGER = 4.0
"""How many times longer to run if it is not known how long is enough."""
ROOM = 1.5
"""Factor on the length that should be enough."""
LONG_S = 600.0
"""Seconds of a run up to which any length is recommended."""
MOST = 1e15
MORE_EPOCHS = "raise run.budget.epochs in the study's file, or find out what changes during the run"
# The first epoch may be slower by this much without a finding.
FIRST_EPOCH_TOLERANCE = 0.05


class NotSteady(RunRule):
    """The run has no steady state."""

    code = "SY201"
    name = "no-steady-state"
    severity = "warning"
    why = (
        "A rate predicts longer runs only if step times are stable. While steps still get faster, slower or drift, the "
        "mean depends on when the run was stopped. The spread between three jobs or more shows how much; one or two "
        "jobs do not."
    )
    detected = (
        "The step times are searched for change points and trends. The result is one of: steady, warming up "
        "throughout, slowing down, no steady state. Anything but steady is a finding. Comparisons need three such jobs "
        "on a side (SY213)."
    )
    bad = Example(
        'steady.answer = "slowing down"\nsteady.reason = "the last tenth of 4,000 steps is 12 % slower"\n',
        "The device throttles: an hour of training will be slower than the mean of this run.",
    )
    good = Example('steady.answer = "steady"\n', "After warm-up the step times no longer change.")
    fix = "run longer, or find out what changes during the run"

    def check(self, record: RunRecord) -> Iterator[Finding]:
        """Yield a finding unless the run is steady."""
        if record.steady is not None and record.steady.answer != "steady":
            first = f" from step {record.steady.start_step:,} on" if record.steady.start_step else ""
            yield self.found(
                f"{record.steady.answer}: {record.steady.reason}; the figures are for jobs of this length and include "
                f"all steps{first}",
                fix=MORE_EPOCHS if _has_epochs_in_file(record) else None,
                command=_run_longer(record, LONGER, at_least=True),
            )


class StoppedEarly(RunRule):
    """A limit ended the run before it reached the requested precision."""

    code = "SY202"
    name = "stopped-by-limit"
    severity = "warning"
    why = "The run has fewer steps or a wider CI than requested, so its mean is less certain than requested."
    detected = "The run was stopped by max_steps or max_seconds before it reached a minimum of its budget."
    bad = Example(
        'stop.reason = "max_seconds"\nspec.budget.min_steps = 100000\n',
        "The time limit was reached before the requested number of steps.",
    )
    good = Example('stop.reason = "interval"\n', "The run ended because its CI was narrow enough.")
    fix = "raise the limit, or accept the wider CI"

    def check(self, record: RunRecord) -> Iterator[Finding]:
        """Yield one finding with each minimum that was not reached."""
        if record.stop is not None and record.stop.reason in ("max_steps", "max_seconds"):
            unmet = _find_unmet(record)
            if unmet:
                command = _run_longer(record, ROOM * max(unmet.values()))
                yield self.found(f"stopped by {record.stop.reason}: " + "; ".join(unmet), command=command)


class ApproximateInterval(RunRule):
    """A CI outside the range in which its coverage was verified."""

    code = "SY203"
    name = "approximate-interval"
    severity = "warning"
    why = (
        "A 95 % CI contains the true mean in 95 of 100 jobs only under some conditions. With heavy tails, few steps or "
        "strong autocorrelation it does so less often."
    )
    detected = (
        "The number of steps, the tail of the step times and their autocorrelation are compared with the range in "
        "which the coverage was verified."
    )
    bad = Example(
        'quantities.throughput.interval.approximate = ["400 steady steps; coverage is verified from 900 steps"]\n',
        "Too few steps to trust the width of the CI.",
    )
    good = Example("quantities.throughput.interval.approximate = []\n", "The CI is within the range that was verified.")
    fix = "repeat the job, and use the spread between jobs"

    def check(self, record: RunRecord) -> Iterator[Finding]:
        """Yield a finding if the CI of the throughput is approximate."""
        rate = record.quantities.get("throughput")
        if rate is not None and rate.interval is not None and rate.interval.approximate:
            steps = record.steady.stop_step - record.steady.start_step if record.steady else 0
            fix, command = None, extend(record.spec, repeats=MIN_JOBS)
            if 0 < steps < STEPS_OF_COVERAGE:
                fix = f"run at least {STEPS_OF_COVERAGE} steps, or repeat the job and use the spread between jobs"
                if not _has_epochs_in_file(record):
                    command = _run_longer(record, ROOM * STEPS_OF_COVERAGE / steps, at_least=True) or command
            yield self.found("the CI is approximate: " + "; ".join(rate.interval.approximate), fix=fix, command=command)


class FirstEpoch(RunRule):
    """A first epoch that is slower than the later ones."""

    code = "SY204"
    name = "first-epoch-differs"
    severity = "warning"
    why = (
        "The first epoch includes the first step, compilation, and reading files from disk; later epochs may read them "
        "from memory. Rates of first epochs include compilation; rates of later epochs may depend on the page cache."
    )
    detected = f"Later epochs are more than {100 * FIRST_EPOCH_TOLERANCE:g} % faster than the first."
    bad = Example(
        "quantities.first_epoch_throughput.value = 1113\nquantities.later_epochs_throughput.value = 1862.9\n",
        "The first epoch runs at 1,113 images/s, later ones at 1,863: it includes compilation and the first reads.",
    )
    good = Example(
        "quantities.first_epoch_throughput.value = 1840\nquantities.later_epochs_throughput.value = 1862.9\n",
        "The first epoch is within 5 % of the others.",
    )
    fix = "state which epochs the figure covers, and the size of the data"

    def check(self, record: RunRecord) -> Iterator[Finding]:
        """Yield a finding with the likely causes."""
        first, later = (record.quantities.get(f"{name}_throughput") for name in ("first_epoch", "later_epochs"))
        if first is None or later is None or first.value is None or later.value is None:
            return
        share = later.value / first.value - 1
        if share <= FIRST_EPOCH_TOLERANCE:
            return
        data = record.data
        cause = "the first one includes the first step and compilation"
        if data is not None:
            cause += f", and may include reading {short(data.size_bytes / 1e9, 3)} GB from disk"
        if data is not None and data.fits_in_memory:
            cause += "; the data fits in memory, so later epochs may read from the page cache"
        yield self.found(f"later epochs are {change(share)} faster than the first: {cause}")


def too_short(record: RunRecord) -> tuple[Finding, ...]:
    """Return the findings of a run with too few steps to judge its steady state.

    A limit that ended a longer run is no reason to repeat it: the interval over jobs replaces that of each job.
    """
    few = record.steps_seen < STEPS_TO_JUDGE
    return tuple(finding for finding in record.findings if few and finding.code in ("SY201", "SY202"))


def _find_unmet(record: RunRecord) -> dict[str, float]:
    """Return the minima of the budget that a run did not reach, with how many times longer it should have been."""
    budget = record.spec.budget
    unmet: dict[str, float] = {}
    steady_steps = record.steady.stop_step - record.steady.start_step if record.steady else 0
    if steady_steps < budget.min_steps:
        factor = budget.min_steps / steady_steps if steady_steps else LONGER
        unmet[f"{steady_steps:,} steps count, of {budget.min_steps:,} requested"] = factor
    if record.stop is not None and record.stop.seconds < budget.min_seconds:
        factor = budget.min_seconds / record.stop.seconds if record.stop.seconds else LONGER
        unmet[f"{short(record.stop.seconds, 3)} of {budget.min_seconds:g} requested seconds"] = factor
    mean = record.quantities.get("step_time_mean")
    interval = mean.interval if mean else None
    if mean is None or mean.value is None or interval is None:
        unmet["no CI"] = LONGER
    elif (width := (interval.top - interval.low) / 2 / mean.value) > budget.rel_half_width:
        wanted = change(budget.rel_half_width)
        # The width falls with the root of the length.
        factor = (width / budget.rel_half_width) ** 2
        unmet[f"the CI's half-width is {change(width)} of the mean, {wanted} was requested"] = factor
    return unmet


def _has_epochs_in_file(record: RunRecord) -> bool:
    """Return whether a study's file sets the number of epochs, which `--extend` does not change."""
    return record.spec.budget.epochs is not None and bool(record.spec.study_arguments)


def _run_longer(record: RunRecord, factor: float, *, at_least: bool = False) -> str:
    """Return the command for a run that may be `factor` times as long, or with `at_least` must be.

    If that would be very long, it is for a shorter one.
    """
    budget, seconds = record.spec.budget, record.stop.seconds if record.stop is not None else 0.0
    if record.spec.program is not None:
        # A program that runs to its end has the length that its author gave it.
        most = record.spec.program.max_steps
        return wrap_again(record.spec, {"--max-steps": str(_round_up(factor * most))}) if most else ""
    if _has_epochs_in_file(record):
        return ""
    if budget.epochs is not None:
        return extend(record.spec, {"budget.epochs": math.ceil(factor * budget.epochs)}, repeats=MIN_JOBS)
    if seconds and record.steps_seen:
        # Nobody waits a day for one run: better several short jobs, whose spread is shown.
        factor = min(factor, max(LONG_S / seconds, LONGER, ROOM * STEPS_TO_JUDGE / record.steps_seen))
    steps = _round_up(factor * record.steps_seen)
    changes: dict[str, float] = {"budget.min_steps": max(budget.min_steps, steps)} if at_least else {}
    changes |= {"budget.max_steps": max(budget.max_steps, steps)}
    changes |= longer_limits(record.spec, max(budget.max_seconds, _round_up(ROOM * factor * seconds)))
    # Only the longest jobs of a configuration count, so there must be enough of them.
    return extend(record.spec, changes, repeats=MIN_JOBS)


def _round_up(value: float) -> int:
    """Round up to two digits."""
    # The times of a damaged record may differ by any factor.
    value = min(value, MOST)
    unit = 10 ** max(0, math.floor(math.log10(value)) - 1) if value > 0 else 1
    return math.ceil(value / unit) * unit
