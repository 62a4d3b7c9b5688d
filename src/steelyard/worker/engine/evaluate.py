"""Evaluate the quality of a model during training on all ranks, and detect when the target is reached."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from steelyard.contracts.observe import Evaluation
from steelyard.errors import InputError
from steelyard.worker.workloads.bundle import call, each_tensor
from steelyard.worker.workloads.feed import loader_of, received
from steelyard.worker.workloads.real import EvaluationSplit as EvaluationSplit

if TYPE_CHECKING:
    from collections.abc import Callable

    from steelyard.contracts.spec import RunSpec
    from steelyard.worker.engine.precision import Precision
    from steelyard.worker.workloads.bundle import Metric
    from steelyard.worker.workloads.real import RealData


class Judge:
    """Evaluates between blocks of steps, outside the timed steps."""

    def __init__(
        self, spec: RunSpec, data: RealData, rank: int, device: torch.device, module: Any, precision: Precision
    ) -> None:
        quality, make = spec.quality, data.task.metric
        assert quality is not None
        if make is None:
            raise InputError(f"the workload {spec.workload} has no quality metric", next_step="leave quality out")
        self._target = quality.target
        self._make: Callable[[], Metric] = make
        # Before the first step: a missing library must not end the run after training.
        self._make()
        self._device = device
        self._module = module
        self._precision = precision
        self._split = EvaluationSplit(data, spec, rank)
        self._loader = loader_of(self._split, spec, pin=False)
        self._steps_per_epoch = spec.steps_per_epoch or 1
        self.every_steps = self._steps_per_epoch * quality.every_epochs

    def __call__(
        self, steps: int, now: Callable[[], float], began_s: float, beat: Callable[[], None]
    ) -> tuple[Evaluation, bool]:
        """Return the quality after this many steps, and whether the target is reached."""
        start_s = now()
        metric = self._make()
        # Make buffers equal on all ranks: since the last step each rank has its own statistics.
        if dist.is_initialized() and dist.get_world_size() > 1:
            for buffer in self._module.buffers():
                dist.broadcast(buffer, src=0)
        self._module.eval()
        try:
            for made in self._loader:
                inputs, target, counts = received(made)
                inputs, target = each_tensor((inputs, target), lambda tensor: tensor.to(self._device))
                with torch.no_grad(), self._precision.context():
                    output = call(self._module, inputs)
                if counts:
                    metric.update(output, target)
                beat()
            value = float(metric.compute())
        finally:
            self._module.train()
        end_s = now()
        evaluation = Evaluation(
            metric=metric.name,
            value=value if math.isfinite(value) else None,
            better=metric.better,
            epoch=steps // self._steps_per_epoch,
            steps=steps,
            samples=self._split.samples,
            at_s=end_s - began_s,
            seconds=end_s - start_s,
        )
        return evaluation, self._target is not None and evaluation.reaches(self._target)

    def close(self) -> None:
        """Stop the DataLoader workers."""
        del self._loader
