"""What the shipped catalogue says of the workloads. Reads a file; imports no workload."""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import Any


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
