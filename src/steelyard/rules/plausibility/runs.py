"""Run rules on the training (SY701, SY702, SY705): a model that does not train may run at a different speed."""

from __future__ import annotations

import contextlib
import statistics
from typing import TYPE_CHECKING

from steelyard.inputs.command import run_again
from steelyard.numbers import short
from steelyard.rules.rule import Example, RunRule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from steelyard.contracts.finding import Finding
    from steelyard.contracts.record import RunRecord

# Fewer losses or steps than this do not show a trend.
LOSSES_NEEDED, LOSS_STEPS_NEEDED = 9, 100
# A rise beyond the spread shows in a few losses; a flat loss needs more, because losses are noisy.
LOSSES_TO_STAND = 30
NOT_FINITE = ("nan", "inf", "-inf")
# A scaler that finds its scale skips some updates at the start.
SKIPPED_SHARE, SKIPPED_AT_START = 0.05, 16


class RanAway(RunRule):
    """The loss became NaN or infinite."""

    code = "SY701"
    name = "loss-diverged"
    severity = "warning"
    why = (
        "After divergence the model computes with NaN or infinity. Loss scalers skip such steps and devices may run "
        "them faster, so the speed is not that of real training."
    )
    detected = "The loss of the last step, or of an earlier one, is not finite."
    bad = Example('model.last_loss = "nan"\n', "The training diverged: the last loss is NaN.")
    good = Example('model.last_loss = "2.31"\n', "The loss of the last step is finite.")
    fix = "use a smaller learning rate or another precision, then rerun"

    def check(self, record: RunRecord) -> Iterator[Finding]:
        """Yield one finding: for the last loss, otherwise for the first that is not finite."""
        last = record.model.last_loss if record.model else None
        if last in NOT_FINITE:
            message = f"the last loss is {last}: the training diverged, and steps may be faster than normal"
            yield self.found(message, command=_learn_slower(record))
            return
        trace = record.loss
        if trace is None or not _is_long_enough(record) or None not in trace.values:
            return
        lost = next(step for step, value in zip(trace.steps, trace.values, strict=True) if value is None)
        yield self.found(
            f"the loss is not finite at step {lost:,}: the training diverged", command=_learn_slower(record)
        )


class DoesNotLearn(RunRule):
    """The loss does not decrease."""

    code = "SY702"
    name = "loss-does-not-decrease"
    severity = "warning"
    why = (
        "If the loss rises or stays flat, the training may be broken: wrong data, wrong precision, no weight update. "
        "The speed is then not that of real training."
    )
    detected = (
        "The median of the first third of the losses is compared with that of the last third. A rise beyond the spread "
        f"is a finding. So is no decrease over at least {LOSSES_TO_STAND} losses if the data can be learnt."
    )
    bad = Example(
        "loss.steps = [1, 2, 4, 100, 200, 300, 400, 500, 600]\n"
        "loss.values = [2.3, 2.3, 2.3, 2.4, 2.5, 2.6, 2.8, 2.9, 3.0]\n",
        "The loss rises from 2.3 to 3.0.",
    )
    good = Example(
        "loss.steps = [1, 2, 4, 100, 200, 300, 400, 500, 600]\n"
        "loss.values = [2.3, 2.3, 2.2, 2.0, 1.9, 1.8, 1.7, 1.6, 1.6]\n",
        "The loss falls from 2.3 to 1.6.",
    )
    fix = "check the learning rate, the precision and the data"

    def check(self, record: RunRecord) -> Iterator[Finding]:
        """Yield a finding with the first and the last level of the loss."""
        trace = record.loss
        if trace is None or not _is_long_enough(record):
            return
        finite = [value for value in trace.values if value is not None]
        if len(finite) < len(trace.values):
            return
        third = len(finite) // 3
        # The first three losses are from steps 1, 2 and 4, before the model has learnt anything.
        first = max(statistics.median(finite[:3]), statistics.median(finite[:third]))
        last = statistics.median(finite[-third:])
        spread = max(_compute_spread(finite[:third]), _compute_spread(finite[-third:]))
        flat = trace.learnable and len(finite) >= LOSSES_TO_STAND and last >= first > 0
        if last > first + spread or flat:
            yield self.found(
                f"the loss does not decrease: {short(first)} at the start, {short(last)} at the end "
                f"({trace.steps[-1]:,} steps)"
            )


class UpdatesSkipped(RunRule):
    """A gradient scaler skips many updates."""

    code = "SY705"
    name = "updates-skipped"
    severity = "warning"
    why = (
        "If gradients overflow in fp16, the gradient scaler leaves out the update. Such a step is shorter than a whole "
        "one and trains nothing, so the throughput counts samples that were not learnt from."
    )
    detected = (
        f"The gradient scaler of a wrapped program skipped updates in more than {100 * SKIPPED_SHARE:g} % of the "
        f"steps, and more than the {SKIPPED_AT_START} with which a scaler may find its scale."
    )
    bad = Example(
        "wrapped.level = 2\nwrapped.processes = 1\nwrapped.unknown = {}\n"
        "wrapped.steps = 1000\nwrapped.skipped_updates = 120\n",
        "12 % of the updates were skipped.",
    )
    good = Example(
        "wrapped.level = 2\nwrapped.processes = 1\nwrapped.unknown = {}\n"
        "wrapped.steps = 1000\nwrapped.skipped_updates = 9\n",
        "Nine updates were skipped while the scaler found its scale.",
    )
    fix = "train in bf16, or find out why the gradients overflow"

    def check(self, record: RunRecord) -> Iterator[Finding]:
        """Yield a finding with the share of the updates."""
        seen = record.wrapped
        if seen is None or seen.skipped_updates <= SKIPPED_AT_START:
            return
        share = seen.skipped_updates / max(seen.steps, seen.skipped_updates)
        if share > SKIPPED_SHARE:
            yield self.found(
                f"a gradient scaler skipped {seen.skipped_updates:,} updates in {seen.steps:,} steps "
                f"({short(100 * share, 2)} %), because gradients overflowed"
            )


def _is_long_enough(record: RunRecord) -> bool:
    """Return whether there are enough losses to see a trend."""
    trace = record.loss
    return trace is not None and len(trace.values) >= LOSSES_NEEDED and trace.steps[-1] >= LOSS_STEPS_NEEDED


def _learn_slower(record: RunRecord) -> str:
    """Return the command for a run with a tenth of the learning rate; empty if the rate is not known."""
    rate = record.spec.learning_rate
    if rate is None and record.settings is not None:
        with contextlib.suppress(KeyError, ValueError):
            rate = float(record.settings.values["learning_rate"])
    return run_again(record.spec, {"learning_rate": float(f"{rate / 10:.6g}")}) if rate else ""


def _compute_spread(values: list[float]) -> float:
    """Return the range of the losses."""
    return max(values) - min(values)
