"""Quantities of whole epochs and of quality: first epoch and later ones, time to quality."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from steelyard.contracts.record import Quantity
from steelyard.errors import DamagedDataError
from steelyard.numbers import short

if TYPE_CHECKING:
    from collections.abc import Sequence

    from steelyard.contracts.observe import DataFacts, Evaluation
    from steelyard.contracts.record import Window
    from steelyard.contracts.spec import RunSpec
    from steelyard.derive.observations import StepSamples

RATE = "samples/s"


def steps_per_epoch(spec: RunSpec, data: DataFacts | None) -> int | None:
    """Return the steps of one epoch of the spec or else the whole data set; None for endless data."""
    if spec.epoch_samples is None and data is not None:
        try:
            spec = replace(spec, epoch_samples=data.samples)
        except ValueError as error:
            raise DamagedDataError(f"the data and the spec do not match: {error}") from None
    return spec.steps_per_epoch


def epoch_quantities(samples: StepSamples, per_epoch: int | None) -> dict[str, Quantity]:
    """Return time and throughput of the first epoch and of later ones, from steps only: gaps between them do not count.

    The first epoch includes what happens only once: the first step, compilation in it, and reading of files that are
    not yet in the page cache. Empty for endless data.
    """
    if per_epoch is None:
        return {}
    epochs = samples.steps // per_epoch
    first = _epochs(samples, 0, 1, per_epoch, "first epoch", epochs)
    return first | _epochs(samples, 1, epochs, per_epoch, "later epochs", epochs)


def _epochs(
    samples: StepSamples, start: int, stop: int, per_epoch: int, window: Window, complete: int
) -> dict[str, Quantity]:
    name = window.replace(" ", "_")
    seconds = rate = reason = None
    if start < stop <= complete:
        sums = samples.sums(start * per_epoch, stop * per_epoch)
        seconds = float(sums.column("step_s").mean()) / (stop - start)
        rate = float((sums.column("samples") / sums.column("step_s")).sum())
    else:
        reason = f"the run has {samples.steps:,} steps, an epoch has {per_epoch:,}"
    return {
        f"{name}_time": Quantity(
            value=seconds, unit="s", scope="job", window=window, aggregation="mean", reason=reason
        ),
        f"{name}_throughput": Quantity(
            value=rate, unit=RATE, scope="job", window=window, aggregation="work over time", reason=reason
        ),
    }


def quality_quantities(evaluations: Sequence[Evaluation], spec: RunSpec) -> dict[str, Quantity]:
    """Return the quality at the end, and when the target was reached; empty if no quality was requested."""
    if spec.quality is None:
        return {}
    last = evaluations[-1] if evaluations else None
    value = last.value if last else None
    unknown = f"{last.metric} is not a finite number" if last else "the run ended before its first evaluation"
    quantities = {
        "quality": Quantity(
            value=value,
            unit=last.metric if last else "1",
            scope="job",
            window="evaluation",
            aggregation="last",
            reason=unknown if value is None else None,
        )
    }
    if spec.quality.target is not None:
        quantities |= _to_quality(next((e for e in evaluations if e.reaches(spec.quality.target)), None), spec, last)
    return quantities


def _to_quality(first: Evaluation | None, spec: RunSpec, last: Evaluation | None) -> dict[str, Quantity]:
    assert spec.quality is not None
    reason = None
    if first is None:
        best = f"; after {last.epoch} it is {short(last.value)}" if last and last.value is not None else ""
        reason = f"{spec.quality.target:g} was not reached within {spec.budget.epochs} epochs{best}"
    return {
        "time_to_quality": Quantity(
            value=first.at_s if first else None,
            unit="s",
            scope="job",
            window="to quality",
            aggregation="sum",
            reason=reason,
        ),
        "epochs_to_quality": Quantity(
            value=float(first.epoch) if first else None,
            unit="epochs",
            scope="job",
            window="to quality",
            aggregation="sum",
            reason=reason,
        ),
    }
