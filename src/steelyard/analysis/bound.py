"""Whether a run waits for its data: as it was seen, and as the pipeline's and the device's own rates foretell it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from steelyard.contracts.record import Quantity, RunRecord

Bound = Literal["input-bound", "compute-bound", "cannot tell"]

# Of the time. Below it, a faster pipeline gains less than people notice between two jobs.
INPUT_BOUND_SHARE = 0.10


@dataclass(frozen=True)
class Forecast:
    """What a full run will be."""

    bound: Bound
    wait_share: float
    """Share of the time that the device will wait for data."""
    rate: float
    """Samples/s that the full run can reach at most."""


def seen(record: RunRecord) -> Bound:
    """What a run was. Waiting is counted between the end of one step and the arrival of the next one's data."""
    share = record.quantities.get("input_wait_share")
    if share is None or share.value is None:
        return "cannot tell"
    return "input-bound" if share.value > INPUT_BOUND_SHARE else "compute-bound"


def has_queue(record: RunRecord) -> bool:
    """Whether the host went on while the device computed: where steps are timed by events in the device's queue."""
    return record.environment is not None and record.environment.timing.startswith("device events")


def forecast(pipeline: Quantity, device: Quantity, *, overlaps: bool) -> Forecast | None:
    """From the rate of the pipeline without a model and that of the model without a pipeline; None: a rate is unknown.

    Where the two work at the same time (`overlaps`), the slower one decides: with loader processes, and where a device
    has a queue, so that the host reads the next batch while it computes. Where the training process does one after
    the other, their times for a sample add up. A pipeline that shares its CPUs with the model's host process gets
    fewer of them than it had alone: the forecast is then too good for it.
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
    """Lowest and highest of what the rate may be."""
    assert rate.value is not None
    return (rate.interval.low, rate.interval.high) if rate.interval else (rate.value, rate.value)


def _wait_share(pipeline: float, device: float, *, overlaps: bool) -> float:
    if not overlaps:
        return (1 / pipeline) / (1 / pipeline + 1 / device)
    return max(0.0, 1 - pipeline / device)
