"""The catalogue of workloads as a table, and everything about one of them. Knows words and digits."""

from __future__ import annotations

import textwrap
from typing import Any

from steelyard.errors import printable
from steelyard.terminal.text import number, table

WIDE = 120
STATE = ("parameter_bytes", "gradient_bytes", "optimizer_bytes")
HEADER = ["name", "family", "parameters", "GFLOP train", "infer", "state, GB", "a sample, GB", "needs"]
LEGEND = """parameters, and GFLOP that one sample takes in training and in inference: with the default options
state: parameters, gradients and the optimizer's state in fp32; a sample: what its forward pass keeps for the backward
needs: extras of the package, as in pip install 'steelyard[torch,timm]'; all need torch
steelyard workloads NAME tells everything about one; --model KEY=VALUE counts it with other options"""


def workloads_table(shipped: dict[str, Any], others: list[str]) -> str:
    """All workloads by family; `others` are those that the catalogue does not count."""
    entries = shipped["workloads"]
    order = sorted(entries, key=lambda name: (entries[name]["family"], name))
    rows = [_make_row(name, entries[name]) for name in order]
    rows += [[name, "not counted", "-", "-", "-", "-", "-", ""] for name in others]
    return f"{table(HEADER, rows)}\n\n{LEGEND}"


def _make_row(name: str, entry: dict[str, Any]) -> list[str]:
    flops, memory = entry["flops_per_sample"], entry["memory"] or {}
    state = sum(memory[part] for part in STATE) if memory else None
    return [
        name,
        entry["family"],
        "-" if entry["parameters"] is None else f"{entry['parameters']:,}",
        _billions(flops["train"]),
        _billions(flops["infer"]),
        _billions(state),
        _billions(memory.get("activation_bytes")),
        ", ".join(entry["extras"][1:] or entry["extras"]),
    ]


def _billions(value: float | None) -> str:
    return "-" if value is None else number(value / 1e9, 4)


def workload_lines(name: str, entry: dict[str, Any]) -> list[str]:
    """Everything about one, a line or a few each."""
    needs = "nothing more"
    if entry["extras"]:
        needs = ", ".join(["torch", *entry["needs"]]) + f": pip install 'steelyard[{','.join(entry['extras'])}]'"
    rows = {
        "family": entry["family"],
        "modes": ", ".join(entry["modes"]) + f" (without --mode: {entry['modes'][0]})",
        "data": ", ".join(entry["data"]) or "none but its own",
        "metric": entry["metric"] or "none",
        "needs": needs,
        "options": _format_options(entry["options"]) or "none",
    }
    if entry.get("given"):
        rows["counted with"] = _format_options(entry["given"])
    rows |= _format_counts(entry)
    if entry["note"]:
        rows["note"] = entry["note"]
    lines = [printable(f"{name}: {entry['title']}")]
    for title, text in rows.items():
        start = f"  {title:<13} "
        lines += textwrap.wrap(printable(text), WIDE, initial_indent=start, subsequent_indent=" " * len(start))
    return lines


def _format_counts(entry: dict[str, Any]) -> dict[str, str]:
    """Parameters, operations and memory."""
    if entry["parameters"] is None:
        return {"parameters": entry["flops_method"]["train"]}
    rows = {"parameters": f"{entry['parameters']:,}"}
    if entry["published"] and not entry.get("given"):
        published = entry["published"]
        rows["published"] = f"{published['parameters']:,.0f} ({published['source']})"
    if entry["tokens_per_sample"]:
        rows["tokens"] = f"{entry['tokens_per_sample']:,} a sample"
    for mode, flops in entry["flops_per_sample"].items():
        method = entry["flops_method"][mode]
        rows[f"FLOP, {mode}"] = method if flops is None else f"{number(flops, 6)} a sample ({method})"
    if memory := entry["memory"]:
        parts = [f"{_billions(memory[part])} GB of {part.partition('_')[0]}s" for part in STATE[:2]]
        parts.append(f"{_billions(memory['optimizer_bytes'])} GB of {memory['optimizer']}'s state")
        rows["state"] = "fp32: " + ", ".join(parts)
        kept = memory["activation_bytes"]
        rows["a sample"] = memory["method"] if kept is None else f"{_billions(kept)} GB ({memory['method']})"
    return rows


def _format_options(options: dict[str, Any]) -> str:
    """As they are typed, then those whose value follows from the others."""
    said = ", ".join(f"{key}={value}" for key, value in options.items() if value is not None)
    follow = ", ".join(key for key, value in options.items() if value is None)
    return f"{said}; as these say unless given: {follow}" if follow else said
