"""Rules on the loss of one training run (SY701 and SY702): a model that does not train may have another speed."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from steelyard.rules.rule import Example, RunRule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from steelyard.contracts.record import Finding, RunRecord

# Fewer losses or steps than this show no trend.
LOSSES_NEEDED, LOSS_STEPS_NEEDED = 9, 100
# A loss that rises beyond its own spread is seen in a few; one that stands still only in more than a noisy one needs.
LOSSES_TO_STAND = 30
NOT_FINITE = ("nan", "inf", "-inf")


class RanAway(RunRule):
    """A loss that is no number any more."""

    code = "SY701"
    name = "loss-ran-away"
    severity = "warning"
    why = (
        "A training that has diverged computes with infinities. Devices and scalers may skip such steps or do them "
        "faster, and in any case nobody wants this model."
    )
    detected = "The loss of the last step, or one in between, is not finite."
    bad = Example('model.last_loss = "nan"\n', "The speed of a model that learns nothing.")
    good = Example('model.last_loss = "2.31"\n', "The loss of the last step is finite.")
    fix = "use a smaller learning rate or another precision; the speed of a diverged model is not its speed"

    def check(self, record: RunRecord) -> Iterator[Finding]:
        """One finding: of the last loss, else of the first that is not finite."""
        last = record.model.last_loss if record.model else None
        if last in NOT_FINITE:
            yield self.found(
                f"the last loss is {last}: the training has run away, and may compute less than a sound one"
            )
            return
        trace = record.loss
        if trace is None or not _is_long_enough(record) or None not in trace.values:
            return
        lost = next(step for step, value in zip(trace.steps, trace.values, strict=True) if value is None)
        yield self.found(f"the loss was not finite at step {lost:,}: the training ran away, and may compute less then")


class DoesNotLearn(RunRule):
    """A loss that does not fall."""

    code = "SY702"
    name = "loss-does-not-fall"
    severity = "warning"
    why = (
        "A training whose loss rises or stands still may be broken: wrong data, wrong precision, no update. Its "
        "speed may be that of something else than training."
    )
    detected = (
        "Medians of the first and the last third of the losses are held against each other. A rise beyond the spread "
        f"is a finding; so is standing still over {LOSSES_TO_STAND} losses where the data can be learnt."
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
    fix = "look at learning rate, precision and data: a model that learns nothing may have another speed"

    def check(self, record: RunRecord) -> Iterator[Finding]:
        """A finding with the first and the last level."""
        trace = record.loss
        if trace is None or not _is_long_enough(record):
            return
        finite = [value for value in trace.values if value is not None]
        if len(finite) < len(trace.values):
            return
        third = len(finite) // 3
        # The first three are of steps 1, 2 and 4: those of a model that has learnt nothing yet.
        first = max(statistics.median(finite[:3]), statistics.median(finite[:third]))
        last = statistics.median(finite[-third:])
        spread = max(_compute_spread(finite[:third]), _compute_spread(finite[-third:]))
        stands = trace.learnable and len(finite) >= LOSSES_TO_STAND and last >= first > 0
        if last > first + spread or stands:
            yield self.found(
                f"the loss does not fall: {first:.4g} at first, {last:.4g} at last ({trace.steps[-1]:,} steps)"
            )


def _is_long_enough(record: RunRecord) -> bool:
    """Whether there are losses enough to see a trend."""
    trace = record.loss
    return trace is not None and len(trace.values) >= LOSSES_NEEDED and trace.steps[-1] >= LOSS_STEPS_NEEDED


def _compute_spread(values: list[float]) -> float:
    """How far losses of one stretch lie apart."""
    return max(values) - min(values)
