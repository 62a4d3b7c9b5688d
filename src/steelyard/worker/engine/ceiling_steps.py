"""Steps of a ceiling: the same work again and again, checked between blocks. Knows no ceiling."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from steelyard.contracts.observe import ModelFacts
from steelyard.errors import InputError, Problem
from steelyard.worker.workloads.batches import Batch
from steelyard.worker.workloads.ceiling import WrongResultError

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from steelyard.contracts.spec import RunSpec
    from steelyard.worker.devices.torch_device import TorchDevice
    from steelyard.worker.engine.precision import Precision
    from steelyard.worker.workloads.ceiling import Ceiling


class CeilingSteps:
    """A step is `batch` repeats of the work; each counts as one sample."""

    learnable = False

    def __init__(self, spec: RunSpec, ceiling: Ceiling, device: TorchDevice, precision: Precision) -> None:
        _refuse(spec, ceiling)
        self._device = device
        self._work = ceiling.make(device.device, precision.cast or torch.float32, spec.batch)
        self._batch = Batch(spec.batch, spec.batch, opens_epoch=False)
        self._checks = 0
        self.communicates = self._work.bus_factor is not None
        kept = self._work.kept_results
        self.block_steps = None if kept is None else kept // spec.batch
        """Steps after which the results must be looked at; None: whenever."""

    def compile(self) -> None:
        """One repeat before the first step: libraries pick their kernels in it, and a wrong result ends the run."""
        self._work.step()
        self._device.synchronize()
        self._check()

    def take(self) -> Batch:
        """Nothing is read."""
        return self._batch

    def run(self, batch: Batch) -> Any | None:
        """Enqueue the repeats. All of a collective is communication."""
        begun = self._device.record() if self.communicates else None
        step = self._work.step
        for _ in range(batch.computed):
            step()
        return begun

    def after_block(self, table: NDArray[np.float64], raw: Path) -> None:  # noqa: ARG002 -- others write something
        """Look at the results, outside every measured step."""
        self._check()

    def _check(self) -> None:
        fault = self._work.fault()
        if fault is not None:
            raise WrongResultError(f"wrong result on rank {self._device.rank}: {fault}")
        self._checks += 1

    def watch_communication(self) -> None:
        """What is communication is known anyway."""

    def last_loss(self) -> float | None:
        """Nothing is learnt."""
        return None

    def close(self) -> None:
        """Nothing is open."""

    def effective(self) -> dict[str, str]:
        """What the work says of itself, and how it was checked."""
        checked = "the last repeat of each block" if self.block_steps is None else "every repeat"
        return {
            "parallel": "none" if self.communicates else "replicas",
            "results_checked": f"{checked}, {self._checks} looks, none wrong",
            **self._work.effective(),
        }

    def facts(self) -> ModelFacts:
        """What one repeat takes, by its definition."""
        work = self._work
        return ModelFacts(
            parameters=0,
            flops_per_sample=work.flops,
            bytes_per_sample=work.moved_bytes,
            bus_factor=work.bus_factor,
            method="by the definition of the work" + ("" if work.flops else ", which is not arithmetic"),
        )


def _refuse(spec: RunSpec, ceiling: Ceiling) -> None:
    """Settings that would change nothing, or that the work is not made for."""
    problems = []
    if spec.precision not in ceiling.formats:
        problems.append(Problem("precision", f"is {spec.precision}", ", ".join(ceiling.formats)))
    if spec.compile != "off":
        problems.append(Problem("compile", f"is {spec.compile}", "off: there is no model to compile"))
    if spec.channels_last:
        problems.append(Problem("channels_last", "is true", "false: there are no images"))
    if spec.parallel != "ddp":
        problems.append(Problem("parallel", f"is {spec.parallel}", "ddp: there is nothing to share"))
    if spec.epoch_samples is not None:
        problems.append(Problem("epoch_samples", f"is {spec.epoch_samples}", "none: a ceiling has no epochs"))
    if spec.loader.place != "device":
        problems.append(Problem("loader.place", f"is {spec.loader.place}", "device: a ceiling reads no data"))
    if problems:
        raise InputError(f"the ceiling {spec.workload!r} cannot be run so", problems=tuple(problems))
