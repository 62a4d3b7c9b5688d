"""The only extension table: kind and name to "module:attribute". Knows names; imports nothing until asked."""

from __future__ import annotations

import difflib
import importlib
from typing import Any

from steelyard.errors import InputError, Problem

BUILTIN: dict[str, dict[str, str]] = {
    "device": {
        "sim": "steelyard.worker.engine.sim_job:SimJob",
        **dict.fromkeys(("auto", "cpu", "cuda", "xpu", "hpu", "mps"), "steelyard.worker.engine.torch_entry:open_job"),
    },
    "workload": {
        "sim": "steelyard.worker.workloads.sim:SimWorkload",
        "tiny": "steelyard.worker.workloads.tiny:build",
        "resnet50": "steelyard.worker.workloads.vision:resnet50",
        "wideresnet28-10": "steelyard.worker.workloads.wideresnet:build",
        "gpt": "steelyard.worker.workloads.gpt:build",
    },
    "data": {},
    "launcher": {"local": "steelyard.launch.local:LocalLauncher"},
}


def names(kind: str) -> list[str]:
    """Every name of a kind: ours, then those that installed packages add by entry point."""
    return sorted({*BUILTIN[kind], *_entry_points(kind)})


def require(kind: str, name: str) -> str:
    """Where a registered object is, without importing it; InputError when there is none of that name."""
    target = BUILTIN[kind].get(name) or _entry_points(kind).get(name)
    if target is None:
        known = names(kind)
        near = difflib.get_close_matches(name, known, n=1)
        problem = Problem(kind, f"no {kind} is called {name!r}", ", ".join(known))
        raise InputError(f"unknown {kind}", problems=(problem,), next_step=f"use {near[0]!r}" if near else None)
    return target


def load(kind: str, name: str) -> Any:
    """The registered object. A package adds one with the entry point group `steelyard.<kind>`."""
    module, _, attribute = require(kind, name).partition(":")
    return getattr(importlib.import_module(module), attribute)


def _entry_points(kind: str) -> dict[str, str]:
    # Imported late: reading package metadata costs more than the whole help text.
    from importlib.metadata import entry_points

    return {point.name: point.value for point in entry_points(group=f"steelyard.{kind}")}
