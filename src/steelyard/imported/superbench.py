"""SuperBench: results-summary.jsonl, one line for each node, or results-summary.json of one machine."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from steelyard.imported.form import Digits, ImportedFigure, Importer, mapping, parse, size_mb

if TYPE_CHECKING:
    from collections.abc import Iterator

    from steelyard.imported.form import ForeignFile

# The file has no units: these are those of SuperBench's documentation (docs/user-tutorial/benchmarks).
MODEL = re.compile(
    r"(?:(?P<format>fp64|fp32|fp16|bf16|fp8\w*)_)?(?P<phase>train|inference)_(?P<what>throughput|step_time)"
    r"|(?P<old>throughput|steptime)_(?P<mode>train|inference)_(?P<kind>float32|float16)"
)
COLLECTIVE = re.compile(r"(?P<what>[a-z_]+?)_(?P<size>\d+)_(?P<figure>time|algbw|busbw)")
BENCHMARK = re.compile(r"[\w.-]+(?::[\w.-]+)?(?:/[\w.-]+)*")
PRECISIONS = {"float32": "fp32", "float16": "fp16"}
UNITS = {"throughput": "samples/s", "step_time": "ms", "steptime": "ms", "time": "us", "algbw": "GB/s", "busbw": "GB/s"}
METRICS = {
    # Each rank reports its own rate; whether the ranks train together is not said.
    "throughput": "throughput_per_rank",
    "step_time": "step_time",
    "steptime": "step_time",
    "time": "step_time",
    "algbw": "algorithm_bandwidth",
    "busbw": "bus_bandwidth",
}
SIGNS = ("return_code", "-benchmarks", "pytorch-", "nccl-bw", "cublas-function", "gemm-flops")
LOOKED_AT = 1 << 16
NAMED = re.compile(r'"[\w:.-]+/[^"]+": ')


def recognises(file: ForeignFile) -> bool:
    """Return whether a file names benchmarks of SuperBench and their metrics."""
    head = file.text[:LOOKED_AT]
    return (
        head.lstrip().startswith("{")
        and '"session_info"' not in head
        and any(sign in head for sign in SIGNS)
        and NAMED.search(head) is not None
    )


def read(file: ForeignFile) -> Iterator[ImportedFigure]:
    """Yield every figure; those whose unit is not documented have none."""
    if file.data is not None:
        yield from _node(mapping(file.data))
        return
    for line in file.text.splitlines():
        yield from _node(mapping(parse(line)))


def _node(row: dict[str, object]) -> Iterator[ImportedFigure]:
    node = row.get("node")
    place = {"node": node} if isinstance(node, str) and node and not isinstance(node, Digits) else {}
    for key, value in row.items():
        name, _, metric = key.rpartition("/")
        if not isinstance(value, Digits) or not BENCHMARK.fullmatch(name) or metric.startswith("return_code"):
            continue
        metric, _, rank = metric.partition(":")
        note = f"rank {rank}" if rank else ""
        model = name.rpartition("/")[2]
        if match := MODEL.fullmatch(metric):
            what = match["what"] or match["old"]
            settings = place | {
                "model": model.removeprefix("pytorch-"),
                "mode": _mode(match["phase"] or match["mode"]),
            }
            kind = match["format"] or PRECISIONS.get(match["kind"] or "")
            if kind:
                settings["precision"] = kind
            if model.startswith("pytorch-"):
                settings["framework"] = "PyTorch"
            yield ImportedFigure(settings, METRICS[what], value, UNITS[what], note)
        elif "nccl-bw" in name and (match := COLLECTIVE.fullmatch(metric)):
            settings = place | {"model": match["what"].replace("_", "-"), "model_options": size_mb(match["size"])}
            yield ImportedFigure(settings, METRICS[match["figure"]], value, UNITS[match["figure"]], note)
        else:
            yield ImportedFigure(place | {"model": model}, metric, value, "", note)


def _mode(text: str) -> str:
    return "train" if text == "train" else "infer"


SUPERBENCH = Importer(
    "superbench",
    "SuperBench summaries (results-summary.jsonl)",
    (
        (
            "microsoft/superbenchmark, new_tests_determinis_gold_data/05_node_0_good_data_llama2-7b-det-6h-hash/"
            "run2-selfcheck_2026-06-25_11-59-04/results-summary.jsonl, 45b97e1718b5"
        ),
        "microsoft/superbench-results, v0.2.1/V100/results-summary-v100.json, 7b5ea6429977",
    ),
    recognises,
    read,
)
