"""A step of training or inference with any model. This is the loop a careful person writes by hand, and no more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from steelyard.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

    from steelyard.contracts.spec import RunSpec
    from steelyard.worker.engine.parallel import Parallel
    from steelyard.worker.engine.precision import Precision
    from steelyard.worker.workloads.batches import Batch
    from steelyard.worker.workloads.feed import Feed
    from steelyard.worker.workloads.recipe import Recipe


class _Steps:
    """What training and inference share."""

    def __init__(self, spec: RunSpec, feed: Feed, module: Any, precision: Precision) -> None:
        self._spec = spec
        self._feed = feed
        self._module = module
        self._precision = precision
        self._pieces: list[tuple[Any, Any]] = []

    def take(self) -> Batch:
        """The next batch; blocks the host until it is there."""
        batch, self._pieces = self._feed.take()
        return batch

    def close(self) -> None:
        """End the loader."""
        self._feed.close()

    def _common(self) -> dict[str, str]:
        parameter = next(self._module.parameters())
        four = next((p for p in self._module.parameters() if p.dim() == 4), None)
        values = {"parameter_dtype": str(parameter.dtype).removeprefix("torch.")}
        if four is not None:
            last = four.is_contiguous(memory_format=torch.channels_last) and not four.is_contiguous()
            values["channels_last"] = str(bool(last)).lower()
        if self._spec.compile != "off":
            values |= _compiler_counts()
        return values | self._feed.effective()


class Training(_Steps):
    """Forward, backward, optimizer."""

    def __init__(
        self, spec: RunSpec, feed: Feed, module: Any, recipe: Recipe, precision: Precision, parallel: Parallel
    ) -> None:
        super().__init__(spec, feed, module, precision)
        self._loss: Callable[[Any, Any], torch.Tensor] = recipe.loss
        self._parallel = parallel
        self._scaler = precision.scaler
        self._optimizer = _optimizer(recipe, module, sharded=parallel.shards)
        self._last_loss: torch.Tensor | None = None
        self.communicates = parallel.communicates
        module.train()

    def compile(self) -> None:
        """Let a compiled model be compiled on a batch that trains nothing: buffers and randomness stay as they were."""
        if self._spec.compile == "off":
            return
        buffers = [(buffer, buffer.clone()) for buffer in self._module.buffers()]
        state = torch.get_rng_state()
        inputs, target = self._feed.example()
        self._forward(inputs, target, 1).backward()  # type: ignore[no-untyped-call]
        self._optimizer.zero_grad()
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)
        torch.set_rng_state(state)

    def run(self, batch: Batch) -> tuple[Any, Any] | None:  # noqa: ARG002 -- `take` has kept its data
        """One optimizer step over all its micro-batches."""
        self._optimizer.zero_grad()
        pieces, scaler = self._pieces, self._scaler
        count = len(pieces)
        for number, (inputs, target) in enumerate(pieces, 1):
            with self._parallel.hold(self._module, last=number == count):
                loss = self._forward(inputs, target, count)
                (loss if scaler is None else scaler.scale(loss)).backward()
        exposed = self._parallel.exposed() if self._parallel.watching else None
        if scaler is None:
            self._optimizer.step()
        else:
            scaler.step(self._optimizer)
            scaler.update()
        self._last_loss = loss.detach()
        return exposed

    def _forward(self, inputs: Any, target: Any, micro_batches: int) -> torch.Tensor:
        with self._precision.context():
            loss = self._loss(_call(self._module, inputs), target)
        return loss / micro_batches if micro_batches > 1 else loss

    def watch_communication(self) -> None:
        """Dress the model anew, with a hook."""
        module, self._module = self._module, None
        self._module = self._parallel.watch(module)

    def last_loss(self) -> float | None:
        """Of the last micro-batch, as its share of the step."""
        return None if self._last_loss is None else float(self._last_loss)

    def effective(self) -> dict[str, str]:
        """What the model, its dress and its loader say of themselves."""
        values = self._common() | self._parallel.effective(self._module)
        return values | {"optimizer": type(self._optimizer).__name__}


class Inference(_Steps):
    """Forward alone."""

    communicates = False

    def __init__(self, spec: RunSpec, feed: Feed, module: Any, precision: Precision) -> None:
        super().__init__(spec, feed, module, precision)
        module.eval()

    def compile(self) -> None:
        """Let a compiled model be compiled."""
        if self._spec.compile != "off":
            with torch.inference_mode(), self._precision.context():
                _call(self._module, self._feed.example()[0])

    def run(self, batch: Batch) -> None:  # noqa: ARG002 -- `take` has kept its data
        """One batch through the model."""
        with torch.inference_mode(), self._precision.context():
            for inputs, _ in self._pieces:
                _call(self._module, inputs)

    def watch_communication(self) -> None:
        """Replicas do not communicate."""

    def last_loss(self) -> float | None:
        """Inference has none."""
        return None

    def effective(self) -> dict[str, str]:
        """What the model and its loader say of themselves."""
        compiled = hasattr(self._module, "_orig_mod")
        return {**self._common(), "parallel": "replicas", "compiled": str(compiled).lower()}


TorchWorkload = Training | Inference


def _call(module: Any, inputs: Any) -> Any:
    if isinstance(inputs, torch.Tensor):
        return module(inputs)
    return module(**inputs) if isinstance(inputs, dict) else module(*inputs)


def _optimizer(recipe: Recipe, module: Any, *, sharded: bool) -> torch.optim.Optimizer:
    if not isinstance(recipe.optimizer, torch.optim.Optimizer):
        return recipe.optimizer(module.parameters())
    if sharded:
        raise InputError(
            "sharding replaces the parameters that this optimizer holds",
            next_step="return a function that makes the optimizer from the parameters",
        )
    return recipe.optimizer


def _compiler_counts() -> dict[str, str]:
    from torch._dynamo.utils import counters

    return {
        "compiled_graphs": str(counters["stats"].get("unique_graphs", 0)),
        "graph_breaks": str(sum(counters["graph_break"].values())),
    }
