"""Where the worker runs, read without privileges. Knows the host and the scheduler's variables, no secrets."""

from __future__ import annotations

import os
import platform
import socket
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

import numpy as np

from steelyard.contracts.observe import Environment
from steelyard.worker.measure.host import container_facts, filesystem_facts, host_facts
from steelyard.worker.measure.software import git_facts, variable_facts
from steelyard.worker.measure.vendor import driver_facts

MAX_FACTS = 1000
MAX_LENGTH = 4000
ROOT = Path("/")


def node_name() -> str:
    """What this node is called: by its scheduler, which may have several on one host, or else by itself."""
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
    """Node, allocation and the facts of the software and hardware around the run.

    `data` and `results` are folders whose file systems are told; `code` is the folder of the measured code (default:
    the current one), whose git state is told; `more` are facts that only the caller has, such as those of torch.
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
    # None of the current folder when somebody has removed it under us.
    with suppress(OSError):
        facts.update(_code_facts(code or Path.cwd()))
    # Last: were there too many facts, these would be the ones left out.
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
    """What does not change while the process lives; a worker may make many runs."""
    return {
        "system.kernel": f"{platform.system()} {platform.release()}",
        "system.architecture": platform.machine(),
        "cpu.online": str(os.cpu_count()),
        **host_facts(ROOT),
        **driver_facts(ROOT),
    }


@lru_cache(maxsize=8)
def _code_facts(folder: Path) -> dict[str, str]:
    """Remembered: a worker may make many runs of the same code."""
    return git_facts(folder)


def bounded(facts: dict[str, str]) -> dict[str, str]:
    """Facts as a record can hold them: so many, each so long, and no stray halves of characters."""
    kept = dict(list(facts.items())[: MAX_FACTS - 1])
    if len(kept) < len(facts):
        kept["facts_left_out"] = str(len(facts) - len(kept))
    return {
        name: value.encode("utf-8", "backslashreplace").decode("utf-8")[:MAX_LENGTH] for name, value in kept.items()
    }
