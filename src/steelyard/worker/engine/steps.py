"""A step of training or inference with any model: the plain loop that one would write by hand."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Any

import torch

from steelyard.errors import InputError
from steelyard.worker.engine.optimizers import kernel_of, optimizer
from steelyard.worker.workloads.bundle import call
from steelyard.worker.workloads.step_maker import PROFILED_STEPS

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


# torch's messages about operands of different number formats: those that a model makes itself stay in fp32.
_MIXED = re.compile(r"same dtype|expected scalar type|should be the same|different dtype", re.IGNORECASE)


class _Steps:
    """Common part of training and inference."""

    block_steps: int | None = None
    events_per_step = 2
    profiled_steps = PROFILED_STEPS

    def __init__(self, spec: RunSpec, feed: Feed, module: Any, precision: Precision) -> None:
        self._spec = spec
        self._feed = feed
        self._module = module
        self._precision = precision
        self._pieces: list[tuple[Any, Any]] = []
        self.learnable = feed.learnable

    def take(self) -> Batch:
        """Return the next batch; blocks the host until it has arrived."""
        batch, self._pieces = self._feed.take()
        return batch

    def after_block(self, table: NDArray[np.float64], raw: Path) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Stop the loader."""
        self._feed.close()

    def _common(self) -> dict[str, str]:
        parameters = list(self._module.parameters())
        values = {}
        if parameters:
            formats = Counter[torch.dtype]()
            for parameter in parameters:
                formats[parameter.dtype] += parameter.numel()
            # All of them, the most common first.
            values["parameter_dtype"] = ", ".join(str(kind).removeprefix("torch.") for kind, _ in formats.most_common())
        # Whether memory is channels-last. For a 1 x 1 convolution both formats are the same, so it is skipped.
        orders = [
            (p.is_contiguous(), p.is_contiguous(memory_format=torch.channels_last)) for p in parameters if p.dim() == 4
        ]
        known = [last for first, last in orders if first != last]
        if known:
            values["channels_last"] = str(all(known)).lower()
        if self._spec.compile != "off":
            from torch._dynamo.utils import counters

            values["compiled_graphs"] = str(counters["stats"].get("unique_graphs", 0))
            values["graph_breaks"] = str(sum(counters["graph_break"].values()))
        return values | self._feed.effective()


class Training(_Steps):
    """Forward, backward and optimizer step."""

    def __init__(
        self, spec: RunSpec, feed: Feed, module: Any, bundle: ModelBundle, precision: Precision, parallel: Parallel
    ) -> None:
        super().__init__(spec, feed, module, precision)
        self._loss: Callable[[Any, Any], torch.Tensor] = bundle.loss
        self._parallel = parallel
        self._scaler = precision.scaler
        self._optimizer, self._kernel_note = optimizer(spec, bundle, module, sharded=parallel.shards)
        if spec.learning_rate is not None:
            for group in self._optimizer.param_groups:
                group["lr"] = spec.learning_rate
        self._last_loss: torch.Tensor | None = None
        self._last_share = 1.0
        self._references = feed.references
        self.communicates = parallel.communicates
        module.train()

    def compile(self) -> None:
        """Trigger compilation with a batch that trains nothing: buffers and random states are restored."""
        if self._spec.compile == "off":
            return
        buffers = [(buffer, buffer.clone()) for buffer in self._module.buffers()]
        states = _random_states(self._feed.device.type)
        inputs, target = self._feed.example()
        self._forward(inputs, target, 1.0).backward()  # type: ignore[no-untyped-call]
        self._optimizer.zero_grad()
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)
        for put_back, state in states:
            put_back(state)

    def run(self, batch: Batch) -> tuple[Any, Any] | None:
        """Run one optimizer step over all its micro-batches, each weighted by its number of samples."""
        self._optimizer.zero_grad()
        scaler = self._scaler
        if len(self._pieces) == 1:
            # The common case, and the one with the shortest steps: avoid any overhead.
            inputs, target = self._pieces[0]
            self._backward(self._forward(inputs, target, 1.0), inputs, 1.0)
        else:
            self._accumulate(batch)
        exposed = self._parallel.exposed() if self._parallel.watching else None
        if scaler is None:
            self._optimizer.step()
        else:
            scaler.step(self._optimizer)
            scaler.update()
        return exposed

    def _accumulate(self, batch: Batch) -> None:
        count, micro, computed = len(self._pieces), self._spec.batch, batch.computed
        for number, (inputs, target) in enumerate(self._pieces, 1):
            share = computed / min(micro, computed - (number - 1) * micro)
            with self._parallel.hold(self._module, last=number == count):
                self._backward(self._forward(inputs, target, share), inputs, share)

    def _forward(self, inputs: Any, target: Any, share: float) -> torch.Tensor:
        if self._precision.autocasts:
            with self._precision.context():
                loss = self._loss(call(self._module, inputs), target)
        else:
            loss = self._loss(call(self._module, inputs), target)
        return loss / share if share > 1 else loss

    def _backward(self, loss: torch.Tensor, inputs: Any, share: float) -> None:
        scaled = loss if self._scaler is None else self._scaler.scale(loss)
        scaled.backward()
        if not self._references or id(inputs) in self._references:
            self._last_loss, self._last_share = loss, share

    def watch_communication(self) -> None:
        """Wrap the model again, with a communication hook."""
        if self._parallel.can_watch:
            self._module = None
            self._module = self._parallel.watch()

    def last_loss(self) -> float | None:
        """Return the loss of the last micro-batch; with few that repeat, that of one and the same, so that it falls."""
        return None if self._last_loss is None else float(self._last_loss.detach()) * self._last_share

    def effective(self) -> dict[str, str]:
        """Return the settings of the model, its wrapper, its loader and its optimizer."""
        values = self._common() | self._parallel.effective(self._module)
        rates = {float(group["lr"]) for group in self._optimizer.param_groups}
        values["learning_rate"] = ", ".join(f"{rate:g}" for rate in sorted(rates))
        values |= {"optimizer": type(self._optimizer).__name__, "optimizer_kernel": kernel_of(self._optimizer)}
        return values | ({"optimizer_kernel_note": self._kernel_note} if self._kernel_note else {})


class Inference(_Steps):
    """Forward pass only."""

    communicates = False

    def __init__(self, spec: RunSpec, feed: Feed, module: Any, precision: Precision) -> None:
        super().__init__(spec, feed, module, precision)
        module.eval()

    def compile(self) -> None:
        """Trigger compilation."""
        if self._spec.compile != "off":
            with torch.inference_mode(), self._precision.context():
                call(self._module, self._feed.example()[0])

    def run(self, batch: Batch) -> None:  # noqa: ARG002 -- `take` has stored its data
        """Run one batch through the model."""
        try:
            with torch.inference_mode(), self._precision.context():
                for inputs, _ in self._pieces:
                    call(self._module, inputs)
        except RuntimeError as error:
            if self._precision.weights is None or not _MIXED.search(str(error)):
                raise
            raise InputError(
                f"the model mixes {self._precision.weights} weights with other number formats: {error}",
                next_step="--autocast casts in every step instead of once",
            ) from None

    def watch_communication(self) -> None:
        """Do nothing: replicas do not communicate."""

    def last_loss(self) -> float | None:
        """Return None: inference has no loss."""
        return None

    def effective(self) -> dict[str, str]:
        """Return the settings of the model and its loader."""
        compiled = hasattr(self._module, "_orig_mod")
        return {**self._common(), "parallel": "replicas", "compiled": str(compiled).lower()}


class Loading:
    """The input pipeline only: batches are loaded and moved to the device, without a model."""

    communicates = False
    learnable = False
    block_steps: int | None = None
    events_per_step = 2
    profiled_steps = PROFILED_STEPS

    def __init__(self, feed: Feed) -> None:
        self._feed = feed

    def compile(self) -> None:
        """Do nothing: there is no model."""

    def take(self) -> Batch:
        """Return the next batch; blocks the host until it has arrived."""
        return self._feed.take()[0]

    def run(self, batch: Batch) -> None:
        """Do nothing with the batch."""

    def watch_communication(self) -> None:
        """Do nothing: there is no communication."""

    def after_block(self, table: NDArray[np.float64], raw: Path) -> None:
        """Do nothing."""

    def last_loss(self) -> float | None:
        """Return None: there is no loss."""
        return None

    def close(self) -> None:
        """Stop the loader."""
        self._feed.close()

    def effective(self) -> dict[str, str]:
        """Return the settings of the loader."""
        return {**self._feed.effective(), "parallel": "none", "compiled": "false"}


TorchSteps = Training | Inference | Loading


def _random_states(kind: str) -> list[tuple[Callable[[torch.Tensor], None], torch.Tensor]]:
    """Return the random states of the CPU and the device, each with the function that restores it."""
    sources: list[Any] = [torch] if kind == "cpu" else [torch, getattr(torch, kind)]
    return [(source.set_rng_state, source.get_rng_state()) for source in sources]
