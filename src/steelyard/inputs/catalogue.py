"""What the shipped catalogue says of the workloads, and what a process counts of the others. Imports no workload."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from importlib import resources
from typing import Any

from steelyard.errors import InputError, Problem

LIMIT_S = 600.0


@cache
def load() -> dict[str, Any]:
    """What is in it: `workloads` by name, and `counted_with`, the libraries' releases."""
    file = resources.files("steelyard") / "catalogue.json"
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found


def default_mode(name: str) -> str:
    """What is done with a workload when nothing is said."""
    known = load()["workloads"].get(name)
    # Of another package, or of the user's own: a model.
    return "train" if known is None else str(known["modes"][0])


def count_workload(name: str, options: dict[str, Any]) -> dict[str, Any]:
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
