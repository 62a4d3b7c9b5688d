"""Rules on the clocks of one run (SY501 and SY502): two ways to time the same steps must agree."""

from __future__ import annotations

from typing import TYPE_CHECKING

from steelyard.rules.rule import Example, RunRule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from steelyard.contracts.record import Finding, RunRecord

# Event sums and the host's clock around the same block differ by launch latency; more is a broken timer.
TIMER_TOLERANCE = 0.02
# A synchronised step is longer by whatever the host could hide before; up to here it is not worth a word.
SYNCHRONISED_TOLERANCE = 0.10
SYNCHRONISED_ERRORS = 4.0


class ClocksDisagree(RunRule):
    """The device's timer and the host's clock saw different durations of the same steps."""

    code = "SY501"
    name = "clocks-disagree"
    severity = "error"
    why = (
        "One of the two clocks is wrong, and nothing tells which. A throughput from a wrong clock is wrong by as much."
    )
    detected = (
        "The sum of all steps by device events is held against the host's clock around the same blocks. They may "
        f"differ by {100 * TIMER_TOLERANCE:g} %, which is launch latency."
    )
    bad = Example(
        "stop.seconds = 5.0\nstop.host_seconds = 10.0\n",
        "The device's events count half the time that passed: the throughput is twice too high.",
    )
    good = Example("stop.seconds = 10.0\nstop.host_seconds = 10.02\n", "Both clocks agree within 2 %.")
    fix = "do not use these times; report the device and driver"

    def check(self, record: RunRecord) -> Iterator[Finding]:
        """A finding where the clocks are further apart."""
        stop = record.stop
        if stop is None or stop.seconds == 0:
            return
        share = stop.host_seconds / stop.seconds - 1
        if abs(share) > TIMER_TOLERANCE:
            yield self.found(
                f"device events add up to {stop.seconds:.6g} s, the host's clock saw {stop.host_seconds:.6g} s "
                f"for the same blocks ({share:+.1%})"
            )


class SynchronisedDiffers(RunRule):
    """Steps take another time when the host waits for each."""

    code = "SY502"
    name = "synchronised-steps-differ"
    severity = "warning"
    why = (
        "A second, short pass waits for the device after each step. If its steps are longer, the host's work is hidden "
        "behind the device's in the run, which a script that waits each step will not see. If they are shorter, the "
        "run's timing is not understood."
    )
    detected = (
        f"The two means differ by more than {100 * SYNCHRONISED_TOLERANCE:g} %, {SYNCHRONISED_ERRORS:g} standard "
        "errors of the second pass and the half-width of the first mean's interval together."
    )
    bad = Example(
        "quantities.step_time_mean.value = 0.010\ncrosscheck.mean_step_s = 0.016\n",
        "Waiting each step makes it 60 % longer.",
    )
    good = Example(
        "quantities.step_time_mean.value = 0.010\ncrosscheck.mean_step_s = 0.0104\n",
        "Waiting each step costs 4 %.",
    )
    fix = (
        "longer: expect that time in scripts that wait after each step; shorter: do not use the figure, and report the "
        "device"
    )

    def check(self, record: RunRecord) -> Iterator[Finding]:
        """A finding where the second pass gives another mean."""
        check, mean = record.crosscheck, record.quantities.get("step_time_mean")
        if check is None or mean is None or mean.value is None:
            return
        if record.steady is None or record.steady.answer != "steady":
            return
        width = (mean.interval.high - mean.interval.low) / 2 if mean.interval else 0.0
        allowed = SYNCHRONISED_TOLERANCE * mean.value + SYNCHRONISED_ERRORS * check.sem_step_s + width
        difference = check.mean_step_s - mean.value
        if abs(difference) > allowed:
            yield self.found(
                f"a step takes {mean.value:.6g} s in the run and {check.mean_step_s:.6g} s when each step is "
                f"synchronised ({difference / mean.value:+.1%})"
            )
