"""Where the worker runs, read without privileges. Knows the host and the scheduler's variables, no secrets."""

from __future__ import annotations

import os
import platform
import socket

import numpy as np

from steelyard.contracts.observe import Environment


def environment(device_name: str, timing: str) -> Environment:
    """Node, allocation and the facts of the software and CPU around the run."""
    node = os.environ.get("SLURMD_NODENAME") or os.environ.get("NODE_NAME") or socket.gethostname()
    facts = {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "system": f"{platform.system()} {platform.release()}",
        "architecture": platform.machine(),
        "cpus_online": str(os.cpu_count()),
        "cpus_usable": str(len(os.sched_getaffinity(0))),
    }
    return Environment(
        node=node, allocation=os.environ.get("SLURM_JOB_ID"), device=device_name, timing=timing, facts=facts
    )
