"""What is known about workloads without importing them: the shipped catalogue, and counts made by a worker process."""

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
    """Return the catalogue: `workloads` by name, and `counted_with`, the versions of the libraries."""
    file = resources.files("steelyard") / "catalogue.json"
    catalogue: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return catalogue


def default_mode(name: str) -> str:
    """Return the mode that a workload runs in when none is set."""
    known = load()["workloads"].get(name)
    # One that is not in the catalogue is a model.
    return "train" if known is None else str(known["modes"][0])


def usual_options(name: str) -> dict[str, Any] | None:
    """Return the options of a workload's model with their defaults; None for one that is not in the catalogue."""
    known = load()["workloads"].get(name)
    return None if known is None else dict(known["options"])


def count_workload(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """Count a workload in a worker process: only there is torch imported."""
    command = [sys.executable, "-P", "-m", "steelyard.worker.catalogue", name, json.dumps(options)]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        raise InputError(f"{name}: counting took longer than {LIMIT_S:g} s", next_step="use smaller options") from None
    try:
        answer: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        why = lines[-1] if lines else f"exit code {done.returncode}"
        raise InputError(f"{name}: cannot be counted on this machine: {why}", next_step="steelyard doctor") from None
    if "error" in answer:
        problems = tuple(Problem(**problem) for problem in answer["problems"])
        raise InputError(answer["error"], problems=problems, next_step=answer["next_step"])
    return answer
