"""Whether a run waits for its data: as measured, and as predicted from the rates of pipeline and device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from steelyard.contracts.record import Quantity, RunRecord

Bound = Literal["input-bound", "compute-bound", "cannot tell"]

# Share of the time. Below it, a faster pipeline gains less than people notice between two jobs.
INPUT_BOUND_SHARE = 0.10


@dataclass(frozen=True)
class Forecast:
    """The prediction for a full run."""

    bound: Bound
    wait_share: float
    """Share of the time that the device will wait for data."""
    rate: float
    """The highest rate of the full run, in samples/s."""


def seen(record: RunRecord) -> Bound:
    """Judge a run. Waiting is the time between the end of one step and the arrival of the next one's data."""
    share = record.quantities.get("input_wait_share")
    if share is None or share.value is None:
        return "cannot tell"
    return "input-bound" if share.value > INPUT_BOUND_SHARE else "compute-bound"


def has_queue(record: RunRecord) -> bool:
    """Return whether the host works while the device computes: if steps are timed by events in the device's queue."""
    return record.environment is not None and record.environment.timing.startswith("device events")


def forecast(pipeline: Quantity, device: Quantity, *, overlaps: bool) -> Forecast | None:
    """Predict from the rate of the pipeline without a model and of the model without a pipeline; None: one is unknown.

    If both work at the same time (`overlaps`), the slower one decides: with loader processes, or if the device has a
    queue and the host reads the next batch while it computes. If the training process does one after the other, the
    times per sample add up. A pipeline that shares CPUs with the model's host process gets fewer of them than alone:
    the prediction is then too optimistic.
    """
    if not pipeline.value or not device.value:
        return None
    shares = [
        _wait_share(rate, other, overlaps=overlaps)
        for rate, other in zip(_ends(pipeline), _ends(device)[::-1], strict=True)
    ]
    bound: Bound = "cannot tell"
    if min(shares) > INPUT_BOUND_SHARE:
        bound = "input-bound"
    elif max(shares) <= INPUT_BOUND_SHARE:
        bound = "compute-bound"
    wait = _wait_share(pipeline.value, device.value, overlaps=overlaps)
    return Forecast(bound, wait, device.value * (1 - wait))


def _ends(rate: Quantity) -> tuple[float, float]:
    """Return the lowest and highest possible rate."""
    assert rate.value is not None
    return (rate.interval.low, rate.interval.top) if rate.interval else (rate.value, rate.value)


def _wait_share(pipeline: float, device: float, *, overlaps: bool) -> float:
    if not overlaps:
        return (1 / pipeline) / (1 / pipeline + 1 / device)
    return max(0.0, 1 - pipeline / device)
