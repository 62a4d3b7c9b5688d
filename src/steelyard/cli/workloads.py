"""List the workloads: what each is, how large, what a sample costs; or everything about one of them."""

import argparse
import json
import subprocess
import sys
import textwrap
from typing import Any

from steelyard import plugins
from steelyard.cli.verb import assignment
from steelyard.errors import InputError, Problem, printable
from steelyard.inputs.catalogue import load
from steelyard.terminal.text import number, table

WIDE = 120
LIMIT_S = 600.0
STATE = ("parameter_bytes", "gradient_bytes", "optimizer_bytes")
HEADER = ["name", "family", "parameters", "GFLOP train", "infer", "state, GB", "a sample, GB", "needs"]
LEGEND = """parameters, and GFLOP that one sample takes in training and in inference: with the default options
state: parameters, gradients and the optimizer's state in fp32; a sample: what its forward pass keeps for the backward
needs: extras of the package, as in pip install 'steelyard[torch,timm]'; all need torch
steelyard workloads NAME tells everything about one; --model KEY=VALUE counts it with other options"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Options of the verb."""
    parser.add_argument("name", nargs="?", help="a workload; nothing: all of them")
    parser.add_argument(
        "--model", action="append", default=[], metavar="KEY=VALUE", help="count with this option, such as size=13B"
    )


def run(arguments: argparse.Namespace) -> int:
    """Exit code 2 when there is no workload of that name."""
    shipped = load()
    if arguments.name is None:
        if arguments.model:
            raise InputError("options belong to one workload", next_step="steelyard workloads NAME --model KEY=VALUE")
        _list(shipped, as_json=arguments.json)
        return 0
    plugins.require("workload", arguments.name)
    entry = _entry(shipped, arguments.name, dict(assignment("--model", text) for text in arguments.model))
    if arguments.json:
        print(json.dumps({"name": arguments.name, **entry}))
    else:
        _tell(arguments.name, entry)
    return 0


def _entry(shipped: dict[str, Any], name: str, options: dict[str, Any]) -> dict[str, Any]:
    """As shipped; with options, or of another package, as a process of the measured side counts it."""
    known: dict[str, Any] | None = shipped["workloads"].get(name)
    return known if known is not None and not options else count(name, options)


def count(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """What a process of the measured side says of a workload: it alone imports torch."""
    command = [sys.executable, "-P", "-m", "steelyard.worker.catalogue", name, json.dumps(options)]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        raise InputError(f"{name} was not counted in {LIMIT_S:g} s", next_step="use smaller options") from None
    try:
        found: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        words = done.stderr.decode("utf-8", "replace").strip().splitlines()
        why = words[-1] if words else f"exit code {done.returncode}"
        raise InputError(f"{name} cannot be counted here: {why}", next_step="steelyard doctor") from None
    if "error" in found:
        problems = tuple(Problem(**problem) for problem in found["problems"])
        raise InputError(found["error"], problems=problems, next_step=found["next_step"])
    return found


def _list(shipped: dict[str, Any], *, as_json: bool) -> None:
    entries = shipped["workloads"]
    others = [name for name in plugins.names("workload") if name not in entries]
    if as_json:
        print(json.dumps({**shipped, "not_counted": others}))
        return
    order = sorted(entries, key=lambda name: (entries[name]["family"], name))
    rows = [_row(name, entries[name]) for name in order]
    rows += [[name, "not counted", "-", "-", "-", "-", "-", ""] for name in others]
    print(table(HEADER, rows))
    print(f"\n{LEGEND}")


def _row(name: str, entry: dict[str, Any]) -> list[str]:
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


def _tell(name: str, entry: dict[str, Any]) -> None:
    """Everything about one, a line or a few each."""
    print(printable(f"{name}: {entry['title']}"))
    rows = {
        "family": entry["family"],
        "modes": ", ".join(entry["modes"]) + f" (without --mode: {entry['modes'][0]})",
        "data": ", ".join(entry["data"]) or "none but its own",
        "metric": entry["metric"] or "none",
        "needs": _needs(entry),
        "options": _pairs(entry["options"]) or "none",
    }
    if entry.get("given"):
        rows["counted with"] = _pairs(entry["given"])
    rows |= _numbers(entry)
    if entry["note"]:
        rows["note"] = entry["note"]
    for title, text in rows.items():
        start = f"  {title:<13} "
        print(textwrap.fill(printable(text), WIDE, initial_indent=start, subsequent_indent=" " * len(start)))


def _needs(entry: dict[str, Any]) -> str:
    if not entry["extras"]:
        return "nothing more"
    return ", ".join(["torch", *entry["needs"]]) + f": pip install 'steelyard[{','.join(entry['extras'])}]'"


def _numbers(entry: dict[str, Any]) -> dict[str, str]:
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
    if entry["memory"]:
        rows |= _memory(entry["memory"])
    return rows


def _memory(memory: dict[str, Any]) -> dict[str, str]:
    parts = [f"{number(memory[part] / 1e9, 4)} GB of {part.partition('_')[0]}s" for part in STATE[:2]]
    parts.append(f"{number(memory['optimizer_bytes'] / 1e9, 4)} GB of {memory['optimizer']}'s state")
    kept = memory["activation_bytes"]
    text = memory["method"] if kept is None else f"{number(kept / 1e9, 4)} GB ({memory['method']})"
    return {"state": "fp32: " + ", ".join(parts), "a sample": text}


def _pairs(options: dict[str, Any]) -> str:
    """As they are typed, then those whose value follows from the others."""
    said = ", ".join(f"{key}={value}" for key, value in options.items() if value is not None)
    follow = ", ".join(key for key, value in options.items() if value is None)
    return f"{said}; as these say unless given: {follow}" if follow else said
