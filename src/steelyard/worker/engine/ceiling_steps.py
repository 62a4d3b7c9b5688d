"""Steps of a ceiling: the same operation repeated, with its results checked between blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from steelyard.contracts.observe import ModelFacts
from steelyard.errors import InputError, Problem
from steelyard.worker.workloads.batches import Batch
from steelyard.worker.workloads.ceiling import WrongResultError
from steelyard.worker.workloads.step_maker import PROFILED_STEPS

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from steelyard.contracts.spec import RunSpec
    from steelyard.worker.devices.torch_device import TorchDevice
    from steelyard.worker.engine.precision import Precision
    from steelyard.worker.workloads.ceiling import Ceiling


class CeilingSteps:
    """A step is `batch` repeats of the operation; each counts as one sample."""

    learnable = False
    profiled_steps = PROFILED_STEPS

    def __init__(self, spec: RunSpec, ceiling: Ceiling, device: TorchDevice, precision: Precision) -> None:
        _refuse(spec, ceiling)
        self._device = device
        self._work = ceiling.make(device.device, precision.cast or torch.float32, spec.batch)
        self._batch = Batch(spec.batch, spec.batch, opens_epoch=False)
        self._checks = 0
        self.communicates = self._work.bus_factor is not None
        self.events_per_step = 3 if self.communicates else 2
        kept = self._work.kept_results
        self.block_steps = None if kept is None else kept // spec.batch
        """Number of steps after which the results must be checked; None: any."""

    def compile(self) -> None:
        """Run one repeat before the first step, so that libraries select their kernels, and check its result."""
        self._work.step()
        self._device.synchronize()
        self._check()

    def take(self) -> Batch:
        """Return the fixed batch; a ceiling reads no data."""
        return self._batch

    def run(self, batch: Batch) -> Any | None:
        """Enqueue the repeats. A collective counts as communication in full."""
        begun = self._device.record() if self.communicates else None
        step = self._work.step
        for _ in range(batch.computed):
            step()
        return begun

    def after_block(self, table: NDArray[np.float64], raw: Path) -> None:  # noqa: ARG002 -- part of the interface
        """Check the results, outside the measured steps."""
        self._check()

    def _check(self) -> None:
        fault = self._work.fault()
        if fault is not None:
            raise WrongResultError(f"wrong result on rank {self._device.rank}: {fault}")
        self._checks += 1

    def watch_communication(self) -> None:
        """Do nothing: whether a ceiling communicates is known from its definition."""

    def last_loss(self) -> float | None:
        """Return None: nothing is trained."""
        return None

    def close(self) -> None:
        """Do nothing: no loader or file is open."""

    def effective(self) -> dict[str, str]:
        """Return the settings of the operation, and how its results were checked."""
        checked = "the last repeat of each block" if self.block_steps is None else "every repeat"
        return {
            "parallel": "none" if self.communicates else "replicas",
            "results_checked": f"{checked}, {self._checks} checks, none failed",
            **self._work.effective(),
        }

    def facts(self) -> ModelFacts:
        """Return operations and bytes of one repeat, from the definition of the ceiling."""
        work = self._work
        return ModelFacts(
            parameters=0,
            flops_per_sample=work.flops,
            bytes_per_sample=work.moved_bytes,
            bus_factor=work.bus_factor,
            method="by the definition of the work" + ("" if work.flops else ", which is not arithmetic"),
        )


def _refuse(spec: RunSpec, ceiling: Ceiling) -> None:
    """Raise InputError for settings that have no effect on a ceiling or that it does not support."""
    problems = []
    if spec.precision not in ceiling.formats:
        problems.append(Problem("precision", f"is {spec.precision}", ", ".join(ceiling.formats)))
    if spec.compile != "off":
        problems.append(Problem("compile", f"is {spec.compile}", "off: there is no model to compile"))
    if spec.channels_last:
        problems.append(Problem("channels_last", "is true", "false: there are no images"))
    if spec.parallel != "ddp":
        problems.append(Problem("parallel", f"is {spec.parallel}", "ddp: there is no model to distribute"))
    if spec.epoch_samples is not None:
        problems.append(Problem("epoch_samples", f"is {spec.epoch_samples}", "none: a ceiling has no epochs"))
    if spec.loader.place != "device":
        problems.append(Problem("loader.place", f"is {spec.loader.place}", "device: a ceiling reads no data"))
    if problems:
        raise InputError(f"the ceiling {spec.workload} does not support these settings", problems=tuple(problems))
