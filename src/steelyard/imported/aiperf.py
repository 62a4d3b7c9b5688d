"""AIPerf: profile_export_aiperf.json, the figures of a load on a server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from steelyard.imported.form import Digits, ImportedFigure, Importer, inside, items, mapping, stated

if TYPE_CHECKING:
    from collections.abc import Iterator

    from steelyard.imported.form import ForeignFile

UNITS = {
    "ms": "ms",
    "sec": "s",
    "s": "s",
    "us": "us",
    "requests/sec": "requests/s",
    "tokens/sec": "tokens/s",
    "tokens/sec/user": "tokens/s",
    "%": "%",
    "tokens": "tokens",
    "requests": "requests",
}
# Names of the same figures in our own rows.
METRICS = {"output_token_throughput": "token_throughput", "time_to_first_token": "ttft"}
NO_FIGURES = ("count", "sum", "std")
MEAN = "avg"


def recognises(file: ForeignFile) -> bool:
    """Return whether a file says which AIPerf wrote it, or has its figures."""
    return inside(file.data, "aiperf_version") is not None or (
        isinstance(inside(file.data, "request_throughput", "unit"), str) and "input_config" in mapping(file.data)
    )


def read(file: ForeignFile) -> Iterator[ImportedFigure]:
    """Yield mean, extremes and percentiles of every figure."""
    settings = _settings(file.data)
    version = inside(file.data, "aiperf_version")
    note = f"AIPerf {version}" if isinstance(version, str) else ""
    for name, entry in mapping(file.data).items():
        unit = inside(entry, "unit")
        if not isinstance(unit, str):
            continue
        for statistic, value in mapping(entry).items():
            if isinstance(value, Digits) and statistic not in NO_FIGURES:
                metric = METRICS.get(name, name)
                metric = metric if statistic == MEAN and metric != "ttft" else f"{metric}_{_plain(statistic)}"
                yield ImportedFigure(settings, metric, value, UNITS.get(unit, unit), note)


def _plain(statistic: str) -> str:
    return "mean" if statistic == MEAN else statistic


def _settings(data: Any) -> dict[str, str]:
    config = inside(data, "input_config")
    model = inside(config, "models", "items", 0, "name") or inside(config, "endpoint", "model_names", 0)
    dataset = inside(config, "datasets", 0, "dataset") or inside(config, "datasets", 0, "type")
    load = [phase for phase in items(inside(config, "phases")) if inside(phase, "exclude_from_results") is not True]
    parts = [
        f"{name} {value}"
        for name in ("concurrency", "request_rate", "rate")
        if isinstance(value := inside(load, 0, name) or inside(config, "loadgen", name), str)
    ]
    return stated(
        model=model,
        dataset=dataset,
        mode="generate",
        serving=", ".join(["a server under load", *parts]),
        options=", ".join(parts),
    )


AIPERF = Importer(
    "aiperf",
    "AIPerf exports (profile_export_aiperf.json)",
    ("anud18/qwen36-vllm-aiperf-benchmark, results/nvfp4/5090/chatbot/c8/profile_export_aiperf.json, d254ffc72ef9",),
    recognises,
    read,
)
