"""Rates of an input pipeline beside the model's as lines for a terminal and as plain data. Knows words, no forecast."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from steelyard.contracts.base import to_json_object
from steelyard.terminal.text import number, table, with_interval

if TYPE_CHECKING:
    from collections.abc import Sequence

    from steelyard.analysis.bound import Forecast
    from steelyard.contracts.record import Quantity

    Pipelines = Sequence[tuple[int, Quantity, Forecast | None]]
    """Loader processes a rank, the pipeline's own rate, and what a full run would be."""

HEADER = ["workers", "pipeline alone, samples/s", "the full run would be", "waits", "at most, samples/s"]


def loader_lines(model: Quantity, pipelines: Pipelines) -> list[str]:
    """A row for each worker count, below the rate of the model alone."""
    rows = []
    for count, rate, found in pipelines:
        told = ["unknown", "-", "-"]
        if found is not None:
            told = [found.bound, f"{100 * found.wait_share:.0f} %", number(found.rate)]
        rows.append([str(count), with_interval(rate), *told])
    lines = [f"the model alone, on synthetic data that is on the device: {with_interval(model)} samples/s", ""]
    lines.append(table(HEADER, rows))
    if model.interval is not None:
        lines.append("[]: 95 % interval; the forecast holds where the pipeline has CPUs that the model does not use")
    return lines


def loader_object(model: Quantity, pipelines: Pipelines) -> dict[str, Any]:
    """The same for machines."""
    told = []
    for count, rate, found in pipelines:
        forecast = None
        if found is not None:
            forecast = {"bound": found.bound, "wait_share": found.wait_share, "samples_per_s_at_most": found.rate}
        told.append({"workers": count, "pipeline": to_json_object(rate), "forecast": forecast})
    return {"model_alone": to_json_object(model), "pipelines": told}
