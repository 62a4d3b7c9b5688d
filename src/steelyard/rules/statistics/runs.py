"""Rules on whether one job's steps have a steady state, and how well its mean is known (SY201 to SY204)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from steelyard.rules.rule import Example, RunRule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from steelyard.contracts.record import Finding, RunRecord

# What a first epoch may be slower without a word.
FIRST_EPOCH_TOLERANCE = 0.05


class NotSteady(RunRule):
    """No part of the run in which steps take the same time."""

    code = "SY201"
    name = "no-steady-state"
    severity = "error"
    why = (
        "A rate speaks for the work to come only if steps keep their speed. While steps still get faster, get slower "
        "or wander, the mean depends on when the run was stopped, and two runs differ by that alone."
    )
    detected = (
        "Change points and trends are looked for in the step times. The answer is one of: steady, warming up "
        "throughout, slowing down, no steady state. Anything but steady is a finding."
    )
    bad = Example(
        'steady.answer = "slowing down"\nsteady.reason = "the last tenth of 4,000 steps is 12 % slower"\n',
        "The device throttles; the mean over this run is not what an hour of training gets.",
    )
    good = Example('steady.answer = "steady"\n', "After warm-up, no change is left in the step times.")
    fix = "run longer (--min-steps, --max-seconds), or find what changes during the run"

    def check(self, record: RunRecord) -> Iterator[Finding]:
        """A finding unless the run is steady."""
        if record.steady is not None and record.steady.answer != "steady":
            yield self.found(f"{record.steady.answer}: {record.steady.reason}; the figures are over all steps")


class StoppedEarly(RunRule):
    """A cap ended the run before it knew its mean as well as was asked."""

    code = "SY202"
    name = "stopped-by-a-cap"
    severity = "warning"
    why = (
        "The run has fewer steps or a wider interval than was asked for. Its figure is known less well than the label "
        "says."
    )
    detected = "The run was ended by max_steps or max_seconds, and a minimum of its budget was not reached."
    bad = Example(
        'stop.reason = "max_seconds"\nspec.budget.min_steps = 100000\n',
        "The time was up before the steps that were asked for.",
    )
    good = Example('stop.reason = "interval"\n', "The run ended because its interval was narrow enough.")
    fix = "raise the cap, or accept the interval as it is"

    def check(self, record: RunRecord) -> Iterator[Finding]:
        """One finding with each minimum that was missed."""
        if record.stop is not None and record.stop.reason in ("max_steps", "max_seconds"):
            unmet = _find_unmet(record)
            if unmet:
                yield self.found(
                    f"stopped by {record.stop.reason}: " + "; ".join(unmet),
                    fix=f"raise {record.stop.reason}, or accept the interval as it is",
                )


class ApproximateInterval(RunRule):
    """An interval outside the range in which its coverage has been shown."""

    code = "SY203"
    name = "approximate-interval"
    severity = "warning"
    why = (
        "An interval of 95 % covers the truth in 95 of 100 jobs only under conditions. With a heavy tail, too few "
        "steps or long memory between steps it covers less often than it says."
    )
    detected = (
        "The number of steps, the tail of the step times and their correlation are held against the range in which the "
        "intervals were checked."
    )
    bad = Example(
        'quantities.throughput_job.interval.approximate = ["400 steady steps: intervals are checked from 900 on"]\n',
        "Too few steps to trust the interval's width.",
    )
    good = Example("quantities.throughput_job.interval.approximate = []\n", "Inside the range that was checked.")
    fix = "judge by the spread between jobs (--repeats) instead"

    def check(self, record: RunRecord) -> Iterator[Finding]:
        """A finding where the interval of the throughput is approximate."""
        rate = record.quantities.get("throughput_job")
        if rate is not None and rate.interval is not None and rate.interval.approximate:
            yield self.found("the interval is approximate: " + "; ".join(rate.interval.approximate))


class FirstEpoch(RunRule):
    """A first epoch that is slower than those after it."""

    code = "SY204"
    name = "first-epoch-differs"
    severity = "warning"
    why = (
        "The first epoch holds the first step, compilation, and files that are read from disk; later epochs may read "
        "them from memory. Scaling read from first epochs is that of the compiler; rates of later epochs may be those "
        "of the page cache."
    )
    detected = f"Later epochs are more than {100 * FIRST_EPOCH_TOLERANCE:g} % faster than the first."
    bad = Example(
        "quantities.first_epoch_throughput.value = 1113\nquantities.later_epochs_throughput.value = 1862.9\n",
        "The first epoch runs at 1,113 images/s, later ones at 1,863: compilation and first reads are in it.",
    )
    good = Example(
        "quantities.first_epoch_throughput.value = 1840\nquantities.later_epochs_throughput.value = 1862.9\n",
        "The first epoch is as fast as the others within 5 %.",
    )
    fix = "say which epochs a figure speaks for, and on how much data"

    def check(self, record: RunRecord) -> Iterator[Finding]:
        """A finding with the likely causes."""
        first, later = (record.quantities.get(f"{name}_throughput") for name in ("first_epoch", "later_epochs"))
        if first is None or later is None or first.value is None or later.value is None:
            return
        share = later.value / first.value - 1
        if share <= FIRST_EPOCH_TOLERANCE:
            return
        data = record.data
        cause = "the first step and what is compiled in it are part of the first"
        if data is not None:
            cause += f", and so are files ({data.size_bytes / 1e9:.3g} GB) that may have been read from disk"
        if data is not None and data.fits_in_memory:
            cause += "; the data fits in memory, so that later epochs may read the page cache"
        yield self.found(f"later epochs are {share:.0%} faster than the first: {cause}")


def _find_unmet(record: RunRecord) -> list[str]:
    """Which minima of its budget a run did not reach."""
    budget, unmet = record.spec.budget, []
    steady_steps = record.steady.stop_step - record.steady.start_step if record.steady else 0
    if steady_steps < budget.min_steps:
        unmet.append(f"{steady_steps} steps of the {budget.min_steps} asked for")
    if record.stop is not None and record.stop.seconds < budget.min_seconds:
        unmet.append(f"{record.stop.seconds:.3g} s of the {budget.min_seconds:g} asked for")
    mean = record.quantities.get("step_time_mean")
    interval = mean.interval if mean else None
    if mean is None or mean.value is None or interval is None:
        unmet.append("no interval")
    elif (width := (interval.high - interval.low) / 2 / mean.value) > budget.rel_half_width:
        unmet.append(
            f"the interval's half-width is {width:.2%} of the mean, {budget.rel_half_width:.2%} were asked for"
        )
    return unmet
