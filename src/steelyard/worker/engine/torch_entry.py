"""Entry point of the PyTorch engine: what must happen before torch is imported, which takes seconds."""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING

from steelyard.errors import InputError
from steelyard.worker.measure.vendor import NvidiaSmi

if TYPE_CHECKING:
    from steelyard.contracts.spec import RunSpec
    from steelyard.worker.engine.job import Job


def open_job(spec: RunSpec) -> Job:
    """Open one rank's part of the job, or raise an error that says why torch cannot run here."""
    vendor = NvidiaSmi()
    if os.environ.get("RANK", "0") == "0":
        vendor.start()
    try:
        importlib.import_module("torch")
    except ImportError as missing:
        raise InputError(
            f"torch cannot be imported here: {missing}", next_step="pip install torch, or use a container that has it"
        ) from missing
    from steelyard.worker.engine import torch_job

    return torch_job.open_job(spec, vendor)
