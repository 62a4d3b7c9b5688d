"""Facts on where the worker runs, read without privileges and without secrets."""

from __future__ import annotations

import os
import platform
import socket
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

import numpy as np

from steelyard.contracts.observe import Environment
from steelyard.worker.measure.git import git_facts
from steelyard.worker.measure.host import container_facts, filesystem_facts, host_facts
from steelyard.worker.measure.software import variable_facts
from steelyard.worker.measure.vendor import driver_facts

MAX_FACTS = 1000
MAX_LENGTH = 4000
ROOT = Path("/")


def node_name() -> str:
    """Return the node's name as its scheduler calls it, or the host name."""
    return os.environ.get("SLURMD_NODENAME") or os.environ.get("NODE_NAME") or socket.gethostname()


def environment(
    device_name: str,
    timing: str,
    *,
    data: Path | None = None,
    results: Path | None = None,
    code: Path | None = None,
    more: dict[str, str] | None = None,
) -> Environment:
    """Return node, allocation and facts on the software and hardware of the run.

    `data` and `results` are folders whose file systems are recorded. `code` is the folder of the measured code, whose
    git state is recorded (default: the current one). `more` are facts that only the caller has, such as those on torch.
    """
    node = node_name()
    facts = {
        "python.version": platform.python_version(),
        "numpy.version": np.__version__,
        "cpu.usable": str(len(os.sched_getaffinity(0))),
        **_lasting_facts(),
        **container_facts(ROOT, os.environ),
    }
    for name, folder in (("data", data), ("results", results)):
        if folder is not None:
            facts.update(filesystem_facts(name, folder, ROOT))
    facts.update(more or {})
    # The current folder may have been deleted.
    with suppress(OSError):
        facts.update(_code_facts(code or Path.cwd()))
    # Last: if there are too many facts, these are left out.
    facts.update(variable_facts(os.environ))
    return Environment(
        node=node,
        allocation=os.environ.get("SLURM_JOB_ID") or os.environ.get("STEELYARD_ALLOCATION"),
        device=device_name,
        timing=timing,
        facts=bounded(facts),
    )


@lru_cache(maxsize=1)
def _lasting_facts() -> dict[str, str]:
    """Facts that do not change while the process runs; a worker may make many runs."""
    return {
        "system.kernel": f"{platform.system()} {platform.release()}",
        "system.architecture": platform.machine(),
        "cpu.online": str(os.cpu_count()),
        **host_facts(ROOT),
        **driver_facts(ROOT),
    }


@lru_cache(maxsize=8)
def _code_facts(folder: Path) -> dict[str, str]:
    """Cached: a worker may make many runs of the same code."""
    return git_facts(folder)


def bounded(facts: dict[str, str]) -> dict[str, str]:
    """Return facts limited in number and length and without lone surrogates, so that a record can hold them."""
    kept = dict(list(facts.items())[: MAX_FACTS - 1])
    if len(kept) < len(facts):
        kept["facts_left_out"] = str(len(facts) - len(kept))
    return {
        name: value.encode("utf-8", "backslashreplace").decode("utf-8")[:MAX_LENGTH] for name, value in kept.items()
    }
