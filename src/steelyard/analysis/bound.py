"""What takes most of a run's time, as measured; and whether it will wait for its data, as predicted from two rates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from steelyard.contracts.record import Quantity, RunRecord

Bound = Literal["input-bound", "compute-bound", "cannot tell"]
Leading = Literal["input-bound", "host-bound", "communication-bound", "compute-bound", "cannot tell"]

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


def leading(record: RunRecord) -> Leading:
    """Name the largest part of a run's time: computation, communication, or waiting for the host or for data.

    If ranks wait for each other, the one that the others wait for decides, so waiting for it is not communication. A
    device without a queue does not wait for its host.
    """

    def share(name: str) -> float | None:
        quantity = record.quantities.get(name)
        return None if quantity is None else quantity.value

    wait, exposed, transfer = share("input_wait_share"), share("exposed_comm_share"), share("exposed_transfer_share")
    busy = share("busy_share") if "busy_share" in record.quantities or wait is None else 1 - wait
    if wait is None or exposed is None or busy is None:
        return "cannot tell"
    communication = min(busy, exposed if transfer is None else transfer)
    parts: dict[Leading, float] = {
        "compute-bound": busy - communication,
        "communication-bound": communication,
        "host-bound": 1 - wait - busy,
        "input-bound": wait,
    }
    return max(parts, key=lambda name: parts[name])


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
