"""GuideLLM: benchmarks.json, with one benchmark for each rate or number of streams."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from steelyard.imported.form import Digits, ImportedFigure, Importer, inside, items, mapping, stated

if TYPE_CHECKING:
    from collections.abc import Iterator

    from steelyard.imported.form import ForeignFile

UNITS = {
    "requests_per_second": "requests/s",
    "prompt_tokens_per_second": "tokens/s",
    "output_tokens_per_second": "tokens/s",
    "tokens_per_second": "tokens/s",
    "request_latency": "s",
    "time_to_first_token_ms": "ms",
    "time_per_output_token_ms": "ms",
    "inter_token_latency_ms": "ms",
}
METRICS = {"output_tokens_per_second": "token_throughput", "time_to_first_token_ms": "ttft"}
STATISTICS = ("mean", "median", "min", "max")


def recognises(file: ForeignFile) -> bool:
    """Return whether a file has benchmarks with the figures of requests that succeeded."""
    metrics = inside(file.data, "benchmarks", 0, "metrics")
    return isinstance(inside(metrics, "requests_per_second", "successful"), dict)


def read(file: ForeignFile) -> Iterator[ImportedFigure]:
    """Yield mean, median, extremes and percentiles over the requests that succeeded."""
    version = inside(file.data, "metadata", "guidellm_version")
    note = f"GuideLLM {version}" if isinstance(version, str) else ""
    for benchmark in items(inside(file.data, "benchmarks")):
        settings = _settings(file.data, benchmark)
        for name, unit in UNITS.items():
            statistics = inside(benchmark, "metrics", name, "successful")
            base = METRICS.get(name, name.removesuffix("_ms"))
            values = {key: inside(statistics, key) for key in STATISTICS}
            values |= mapping(inside(statistics, "percentiles"))
            for statistic, value in values.items():
                if isinstance(value, Digits):
                    metric = base if statistic == "mean" and base != "ttft" else f"{base}_{statistic}"
                    yield ImportedFigure(settings, metric, value, unit, note)


def _settings(data: Any, benchmark: Any) -> dict[str, str]:
    strategy = inside(benchmark, "config", "strategy") or inside(benchmark, "args", "strategy")
    kind = inside(strategy, "type_")
    parts = [kind] if isinstance(kind, str) else []
    parts += [f"{name} {value}" for name in ("streams", "rate") if isinstance(value := inside(strategy, name), Digits)]
    return stated(
        model=inside(benchmark, "config", "backend", "model") or inside(data, "args", "model"),
        mode="generate",
        serving=", ".join(["a server under load", *parts]),
        options=", ".join(parts),
    )


GUIDELLM = Importer(
    "guidellm",
    "GuideLLM reports (benchmarks.json)",
    (
        (
            "danielkorat/guidellm-bench, guidellm_sanity_results/20260302_1856/"
            "Qwen_Qwen3-4B-Thinking-2507_tp4_quant-fp8_benchmarks.json, 8f24116d0d1b"
        ),
    ),
    recognises,
    read,
)
