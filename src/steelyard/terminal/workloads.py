"""The catalogue of workloads as a table, and one workload in full."""

from __future__ import annotations

from typing import Any

from steelyard.errors import printable
from steelyard.extras import install_line
from steelyard.terminal.text import number, table, wrapped

STATE = ("parameter_bytes", "gradient_bytes", "optimizer_bytes")
HEADER = ["name", "family", "parameters", "GFLOP train", "infer", "state, GB", "sample, GB", "needs"]
LEGEND = (
    "GFLOP train, infer = operations per sample, with the default options",
    "state = parameters, gradients and optimizer state in fp32",
    "sample = activations per sample that the forward pass keeps for the backward pass",
    "needs = extras, besides torch",
    "Details of one, and the command that installs what it needs: steelyard workloads NAME [--model KEY=VALUE]",
)


def workloads_table(shipped: dict[str, Any], others: list[str]) -> str:
    """Format all workloads by family; `others` are not counted by the catalogue."""
    entries = shipped["workloads"]
    order = sorted(entries, key=lambda name: (entries[name]["family"], name))
    rows = [_make_row(name, entries[name]) for name in order]
    rows += [[name, "not counted", "-", "-", "-", "-", "-", ""] for name in others]
    return "\n".join([table(HEADER, rows), "", *(line for text in LEGEND for line in wrapped(text))])


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
    """Format everything about one workload."""
    needs = ", ".join(["torch", *entry["needs"]]) if entry["extras"] else "nothing"
    rows = {
        "family": entry["family"],
        "modes": ", ".join(entry["modes"]) + f" (default: {entry['modes'][0]})",
        "data": ", ".join(entry["data"]) or "its own only",
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
        lines += wrapped(start + text, deeper=" " * len(start))
    # Not wrapped: it is copied.
    return [*lines, "", f"next: {install_line(*entry['extras'])}"] if entry["extras"] else lines


def _format_counts(entry: dict[str, Any]) -> dict[str, str]:
    """Format parameters, operations and memory."""
    if entry["parameters"] is None:
        return {"parameters": entry["flops_method"]["train"]}
    rows = {"parameters": f"{entry['parameters']:,}"}
    if entry["published"] and not entry.get("given"):
        published = entry["published"]
        rows["published"] = f"{published['parameters']:,.0f} ({published['source']})"
    if entry["tokens_per_sample"]:
        rows["tokens"] = f"{entry['tokens_per_sample']:,} per sample"
    for mode, flops in entry["flops_per_sample"].items():
        method = entry["flops_method"][mode]
        rows[f"FLOP, {mode}"] = method if flops is None else f"{number(flops, 6)} per sample ({method})"
    if memory := entry["memory"]:
        parts = [f"{_billions(memory[part])} GB of {part.partition('_')[0]}s" for part in STATE[:2]]
        parts.append(f"{_billions(memory['optimizer_bytes'])} GB of {memory['optimizer']} state")
        rows["state"] = "fp32: " + ", ".join(parts)
        kept = memory["activation_bytes"]
        rows["sample"] = memory["method"] if kept is None else f"{_billions(kept)} GB ({memory['method']})"
    return rows


def _format_options(options: dict[str, Any]) -> str:
    """Format options as they are typed, then those that follow from the others by default."""
    said = ", ".join(f"{key}={value}" for key, value in options.items() if value is not None)
    follow = ", ".join(key for key, value in options.items() if value is None)
    return f"{said}; derived from these unless given: {follow}" if follow else said
