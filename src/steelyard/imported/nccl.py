"""nccl-tests and rccl-tests: what all_reduce_perf and its siblings print."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from steelyard.imported.form import ImportedFigure, Importer, size_mb

if TYPE_CHECKING:
    from collections.abc import Iterator

    from steelyard.imported.form import ForeignFile

MAX_ROW = 1000
RANK = re.compile(r"Rank\s+\d+\s.{0,80}?on\s+(?P<host>\S+)\s+device\s+\d+\s+\[[^\]]{0,40}\]\s+(?P<device>\S.*)$")
TEST = re.compile(r"\b([a-z_]+)_perf\b")
# Size in bytes, elements, type, and the rest: an operation, a root, and twice time, two bandwidths and errors.
ROW = re.compile(r"(?<!\S)(\d+)\s+(\d+)\s+([a-z]\w*)\s+(\S.*)$")
MEAN = re.compile(r"Avg bus bandwidth\s*:\s*([0-9.eE+-]+)")
PRECISIONS = {"float": "fp32", "half": "fp16", "bfloat16": "bf16", "double": "fp64"}
FIGURES = (("step_time", "us"), ("algorithm_bandwidth", "GB/s"), ("bus_bandwidth", "GB/s"))
PLACES = ("out-of-place", "in-place")


def recognises(file: ForeignFile) -> bool:
    """Return whether a file has the table of these programs."""
    return "busbw" in file.text and "algbw" in file.text


def read(file: ForeignFile) -> Iterator[ImportedFigure]:
    """Yield time and bandwidths of every size, out of place and in place, and the mean over sizes."""
    hosts: list[str] = []
    devices: list[str] = []
    test, within = "", False
    for line in file.lines():
        if len(line) > MAX_ROW:
            continue
        if match := RANK.search(line):
            if within:
                # Another run of the program begins in the same file.
                hosts, devices, within = [], [], False
            hosts.append(match["host"])
            devices.append(match["device"].strip())
        elif "busbw" in line:
            within = True
        elif match := TEST.search(line):
            test = match[1].replace("_", "-")
        elif match := MEAN.search(line):
            yield ImportedFigure(_machine(hosts, devices, test), "mean_bus_bandwidth", match[1], "GB/s")
        elif within and (match := ROW.search(line)):
            yield from _row(_machine(hosts, devices, test), *match.groups())


def _machine(hosts: list[str], devices: list[str], test: str) -> dict[str, str]:
    settings = {"model": test} if test else {}
    if hosts:
        settings |= {"devices": str(len(devices)), "nodes": str(len({*hosts})), "node": ", ".join(dict.fromkeys(hosts))}
    if len({*devices}) == 1:
        settings["accelerator"] = devices[0]
    return settings


def _row(machine: dict[str, str], size: str, _count: str, kind: str, rest: str) -> Iterator[ImportedFigure]:
    words = rest.split()
    operation = words.pop(0) if words and words[0][0].isalpha() and words[0] != "N/A" else ""
    if len(words) == 9:
        # The root of a broadcast or reduction; -1: there is none.
        words = words[1:]
    if len(words) != 8:
        return
    for place, values in zip(PLACES, (words[:3], words[4:7]), strict=True):
        settings = machine | {
            "precision": PRECISIONS.get(kind, kind),
            "model_options": size_mb(size),
            "options": ", ".join(filter(None, (place, operation))),
        }
        for (metric, unit), value in zip(FIGURES, values, strict=True):
            yield ImportedFigure(settings, metric, value, unit)


NCCL = Importer(
    "nccl",
    "output of nccl-tests or rccl-tests (all_reduce_perf and others)",
    (
        "lessizzmore/create-a3mega-ztan-fork, ztan-NCCL-test-result, 02dd8f455c43",
        "microsoft/superbenchmark, tests/benchmarks/micro_benchmarks/test_cuda_nccl_bw_performance.py, 0776b3911763",
    ),
    recognises,
    read,
)
