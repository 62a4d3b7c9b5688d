"""Rates of an input pipeline next to the model's, as lines and as plain data."""

from __future__ import annotations

from typing import TYPE_CHECKING

from steelyard.terminal.plain import figure_object
from steelyard.terminal.text import number, table, with_interval, wrapped

if TYPE_CHECKING:
    from collections.abc import Sequence

    from steelyard.analysis.bound import Forecast
    from steelyard.contracts.record import Quantity
    from steelyard.terminal.shapes.measure import ForecastData, PipelineData, RunLoadData

    Pipelines = Sequence[tuple[int, Quantity, Forecast | None]]
    """Loader processes per rank, the rate of the pipeline alone, and the forecast for a full run."""

HEADER = ["workers", "pipeline alone, samples/s", "full run", "waits", "at most, samples/s"]


def loader_lines(model: Quantity, pipelines: Pipelines) -> list[str]:
    """Format the rate of the model alone, then one row per worker count."""
    rows = []
    for count, rate, forecast in pipelines:
        told = ["unknown", "-", "-"]
        if forecast is not None:
            told = [forecast.bound, f"{100 * forecast.wait_share:.0f} %", number(forecast.rate)]
        rows.append([str(count), with_interval(rate), *told])
    lines = [f"Model alone, with synthetic data on the device: {with_interval(model)} samples/s", ""]
    lines.append(table(HEADER, rows))
    if model.interval is not None:
        lines += wrapped("[ ] = 95 % CI. The forecast assumes that the model leaves the pipeline's CPUs free.")
    return lines


def loader_object(model: Quantity, pipelines: Pipelines, jobs: Sequence[int]) -> RunLoadData:
    """Return the rates and forecasts as plain data; `jobs`: how many have a rate, of the model and of each pipeline."""
    told: list[PipelineData] = []
    for (count, rate, expected), behind in zip(pipelines, jobs[1:], strict=True):
        forecast: ForecastData | None = None
        if expected is not None:
            forecast = {
                "bound": expected.bound,
                "wait_share": expected.wait_share,
                "samples_per_s_at_most": expected.rate,
            }
        told.append({"workers": count, "pipeline": figure_object(rate, behind), "forecast": forecast})
    return {"shape": "run-load/1", "model_alone": figure_object(model, jobs[0]), "pipelines": told}
