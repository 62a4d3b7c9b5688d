"""Run rules on clocks and printed figures (SY501, SY502, SY511): two ways to measure the same steps must agree."""

from __future__ import annotations

from typing import TYPE_CHECKING

from steelyard.numbers import change, seconds
from steelyard.rules.environment.load import busy_nodes
from steelyard.rules.rule import Example, RunRule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from steelyard.contracts.finding import Finding
    from steelyard.contracts.record import RunRecord

# Device events and the host clock differ by launch latency; a larger difference is a broken timer.
TIMER_TOLERANCE = 0.02
# Synchronising adds the host work that otherwise overlaps with the device; a smaller difference is expected.
SYNCHRONISED_TOLERANCE = 0.10
SYNCHRONISED_ERRORS = 4.0

_PRINTED = (
    'spec.workload = "train"\nspec.program.command = ["python", "train.py"]\nwrapped.level = 2\nwrapped.processes = 1\n'
    "wrapped.unknown = {}\n"
)


class ClocksDisagree(RunRule):
    """The device timer and the host clock measured different durations for the same steps."""

    code = "SY501"
    name = "clocks-disagree"
    severity = "error"
    why = (
        "One of the two clocks is wrong, and it is not known which. A throughput from a wrong clock is wrong by the "
        "same factor."
    )
    detected = (
        "The total step time by device events is compared with the host clock around the same blocks. A difference of "
        f"up to {100 * TIMER_TOLERANCE:g} % is allowed for launch latency."
    )
    bad = Example(
        "stop.seconds = 5.0\nstop.host_seconds = 10.0\n",
        "The device events count half of the elapsed time, so the throughput is twice too high.",
    )
    good = Example("stop.seconds = 10.0\nstop.host_seconds = 10.02\n", "Both clocks agree within 2 %.")
    fix = "do not use these times; report the device and its driver version to the vendor"

    def check(self, record: RunRecord) -> Iterator[Finding]:
        """Yield a finding if the clocks differ by more than the tolerance."""
        stop = record.stop
        if stop is None or stop.seconds == 0:
            return
        share = stop.host_seconds / stop.seconds - 1
        if abs(share) > TIMER_TOLERANCE:
            yield self.found(
                f"device events add up to {seconds(stop.seconds)}, but the host clock measured "
                f"{seconds(stop.host_seconds)} for the same blocks ({_format_difference(share, 'more', 'less')})"
            )


class SynchronisedDiffers(RunRule):
    """Step times change when the host waits for each step."""

    code = "SY502"
    name = "synchronised-steps-differ"
    severity = "warning"
    why = (
        "A second, short pass waits for the device after each step. If its steps are longer, host work normally "
        "overlaps with device work; a script that synchronises at each step will be slower than this figure. If its "
        "steps are shorter, the timing of the run is not reliable."
    )
    detected = (
        f"The two mean step times differ by more than the sum of {100 * SYNCHRONISED_TOLERANCE:g} %, "
        f"{SYNCHRONISED_ERRORS:g} standard errors of the second pass, and the half-width of the first mean's CI. "
        "Not on a busy machine (SY609), where two passes differ anyway."
    )
    bad = Example(
        "quantities.step_time_mean.value = 0.010\ncrosscheck.mean_step_s = 0.016\n",
        "Waiting after each step makes it 60 % longer.",
    )
    good = Example(
        "quantities.step_time_mean.value = 0.010\ncrosscheck.mean_step_s = 0.0104\n",
        "Waiting after each step costs 4 %.",
    )
    fix = (
        "if synchronised steps are longer, expect that time in scripts that wait after each step; if they are shorter, "
        "do not use the figure"
    )

    def check(self, record: RunRecord) -> Iterator[Finding]:
        """Yield a finding if the second pass gives a different mean."""
        check, mean = record.crosscheck, record.quantities.get("step_time_mean")
        if check is None or mean is None or mean.value is None:
            return
        if record.steady is None or record.steady.answer != "steady" or any(busy_nodes(record)):
            return
        width = (mean.interval.top - mean.interval.low) / 2 if mean.interval else 0.0
        allowed = SYNCHRONISED_TOLERANCE * mean.value + SYNCHRONISED_ERRORS * check.sem_step_s + width
        difference = check.mean_step_s - mean.value
        if abs(difference) > allowed:
            longer = "expect that time in scripts that wait after each step"
            yield self.found(
                f"a step takes {seconds(mean.value)} in the run, but {seconds(check.mean_step_s)} when each step "
                f"is synchronised ({_format_difference(difference / mean.value, 'longer', 'shorter')})",
                fix=longer if difference > 0 else "do not use the figure",
            )


def _format_difference(share: float, more: str, less: str) -> str:
    return f"{change(abs(share))} {more if share > 0 else less}"


class PrintedDiffers(RunRule):
    """A figure that a program prints, and that is not what was measured."""

    code = "SY511"
    name = "printed-figure-differs"
    severity = "warning"
    why = (
        "The line that a training program prints is often the only source for its speed, and it goes into papers and "
        "proposals. Usual mistakes make it wrong by a whole factor: gradient accumulation left out, padding counted as "
        "tokens, the rate of one device given as that of all, a clock that does not wait for the device."
    )
    detected = (
        "The mean of the printed lines differs from what was measured over the same steps by more than the rounding, "
        "the spread of the lines and 2 %. Mistakes whose factor explains the difference are named. The first line may "
        "have the start of the program in its time: if it is the only one, and slower, it is not judged."
    )
    bad = Example(
        _PRINTED + 'printed = [{kind = "tokens_per_s", format = "generic", lines = 20, value = 1000.0, '
        'verdict = "differs", measured = 4000.0, factor = 0.25, causes = ["the accumulation is left out"], '
        'sentence = "The program prints 1000 tokens/s, but 4000 tokens/s was measured."}]\n',
        "The printed rate is a quarter of the true one.",
    )
    good = Example(
        _PRINTED + 'printed = [{kind = "tokens_per_s", format = "generic", lines = 20, value = 4000.0, '
        'verdict = "agrees", measured = 4010.0, factor = 0.998, '
        'sentence = "The program prints 4000 tokens/s; 4010 tokens/s was measured, so it is right."}]\n',
        "The printed rate is right.",
    )
    fix = "use the measured figure, and correct the line that prints the other"

    def check(self, record: RunRecord) -> Iterator[Finding]:
        """Yield a finding for each kind of figure that differs."""
        for claim in record.printed:
            if claim.verdict == "differs" and not claim.by_definition:
                yield self.found(claim.sentence.rstrip("."))
