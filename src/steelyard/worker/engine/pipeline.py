"""Train one model as a pipeline: each rank has some of its layers, and all micro-batches pass through all ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from steelyard.errors import InputError
from steelyard.worker.engine.steps import Training

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from steelyard.contracts.spec import RunSpec
    from steelyard.worker.engine.parallel import Parallel
    from steelyard.worker.engine.precision import Precision
    from steelyard.worker.workloads.batches import Batch
    from steelyard.worker.workloads.bundle import ModelBundle
    from steelyard.worker.workloads.feed import Feed


class StageOfRank(NamedTuple):
    """What one rank has of a model."""

    module: nn.Module
    groups: dict[str, Any]
    """By their names in the module, the parameters that other stages have too, such as embeddings that are also the
    head, with the group of the processes that have a copy."""


def stage_of(bundle: ModelBundle, spec: RunSpec, rank: int) -> StageOfRank:
    """Return a rank's stage of the model. All ranks call this together."""
    if bundle.stages is None:
        raise InputError(
            f"the workload {spec.workload} cannot be divided into the stages of a pipeline",
            next_step="use the workload gpt, or --parallel fsdp2",
        )
    stages = bundle.stages(spec.devices)
    named = [{parameter: name for name, parameter in stage.named_parameters()} for stage in stages]
    groups = {}
    for parameter in dict.fromkeys(parameter for names in named for parameter in names):
        users = [number for number, names in enumerate(named) if parameter in names]
        if len(users) > 1:
            group = dist.new_group(users)
            if rank in users:
                groups[named[rank][parameter]] = group
    return StageOfRank(stages[rank], groups)


class _Stage(nn.Module):
    """A stage in the number format of the run. The last one returns the loss: outputs are kept until the step ends."""

    def __init__(
        self, layers: nn.Module, loss: Callable[[Any, Any], torch.Tensor], precision: Precision, count: int
    ) -> None:
        super().__init__()
        self.layers = layers
        self._loss = loss
        self._precision = precision
        self._count = count

    def forward(self, inputs: torch.Tensor, labels: torch.Tensor | None = None) -> torch.Tensor:
        """Return the output for the next stage; with labels, what this micro-batch adds to the loss of the step."""
        with self._precision.context():
            output: torch.Tensor = self.layers(inputs)
            # Not a view as the result: torch then drops the graph of a micro-batch after its backward pass.
            return output if labels is None else self._loss(output, labels).reshape(1) / self._count


class Pipelined(Training):
    """One rank's part of a training step: forward, backward and optimizer step of its stage."""

    def __init__(
        self,
        spec: RunSpec,
        feed: Feed,
        own: StageOfRank,
        bundle: ModelBundle,
        precision: Precision,
        parallel: Parallel,
    ) -> None:
        from torch.distributed.pipelining import PipelineStage, Schedule1F1B

        super().__init__(spec, feed, own.module, bundle, precision, parallel)
        rank, count = dist.get_rank(), spec.accumulation
        self._first, self._last = rank == 0, rank == spec.devices - 1
        parameters = dict(own.module.named_parameters())
        self._shared = [(parameters[name], group) for name, group in own.groups.items()]
        module = _Stage(own.module, self._loss, precision, count)
        stage = PipelineStage(module, rank, spec.devices, feed.device)
        self._schedule = Schedule1F1B(stage, count, lambda loss, _: loss, scale_grads=False)
        self._shown = torch.zeros(1, device=feed.device)

    def run(self, batch: Batch) -> None:  # noqa: ARG002 -- all micro-batches are whole
        """Run one optimizer step: all micro-batches through this stage, forward and backward."""
        self._optimizer.zero_grad()
        if self._last:
            labels, losses = torch.cat([target for _, target in self._pieces]), list[torch.Tensor]()
            self._schedule.step(target=labels, losses=losses, labels=labels)
            for (inputs, _), loss in zip(self._pieces, losses, strict=True):
                if not self._references or id(inputs) in self._references:
                    self._last_loss, self._last_share = loss, self._spec.accumulation
        elif self._first:
            self._schedule.step(torch.cat([inputs for inputs, _ in self._pieces]))
        else:
            self._schedule.step()
        for parameter, group in self._shared:
            # The sum of what all copies get, so that they stay equal.
            assert parameter.grad is not None
            dist.all_reduce(parameter.grad, group=group)
        self._optimizer.step()

    def after_block(self, table: NDArray[np.float64], raw: Path) -> None:  # noqa: ARG002 -- as the interface has it
        """Send the loss to all ranks: only the last one has it, and the first one writes it."""
        if self._last_loss is not None:
            self._shown.copy_(self._last_loss.detach() * self._last_share)
        dist.broadcast(self._shown, src=self._spec.devices - 1)

    def last_loss(self) -> float | None:
        """Return the loss of a micro-batch of the last step of the last block."""
        return float(self._shown)
