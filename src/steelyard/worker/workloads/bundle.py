"""What a workload's `build` function returns: a model, how it is trained, and its data. Knows no device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

import torch
from torch import nn

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np

Loss = Callable[[Any, Any], torch.Tensor]
"""From the module's output and the target to a scalar."""
MakeOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
MakeBatch = Callable[[int, torch.Generator], "tuple[Any, Any]"]
"""From a number of samples and a source of randomness on the CPU to inputs and target on the CPU.

Inputs are a tensor, or a tuple (positional) or dict (named) of tensors that the module is called with.
"""


class Metric(Protocol):
    """How good a model's outputs are; adds up over batches and over ranks."""

    name: str
    better: Literal["higher", "lower"]

    def update(self, output: Any, target: Any) -> None:
        """Take in the outputs, in evaluation mode, of one batch."""

    def compute(self) -> float:
        """Over everything that all ranks took in."""


@dataclass(frozen=True)
class Task:
    """How examples of a data set become batches, and how good the outputs are."""

    kind: str
    """Of the examples, as `steelyard.data` names them."""
    prepare: Callable[[Any, bool, np.random.Generator], Any]
    """From an example, whether it is for training (augmented) and a source of randomness to one sample."""
    collate: Callable[[Sequence[Any]], tuple[Any, Any]]
    """From samples to inputs and target, as the batch maker gives them."""
    metric: Callable[[], Metric] | None = None
    """Makes a fresh metric; imports its library only when called."""
    length: int | None = None
    """Of kind tokens: how long a window is; the sample has one token more."""
    open: Callable[[Path], Task] | None = None
    """From the data set's folder to the task itself, where it needs something from there, such as a vocabulary."""


@dataclass(frozen=True)
class Generation:
    """How a language model makes tokens one after the other."""

    prompt: int
    """Tokens it reads first."""
    new_tokens: int
    """Tokens it makes, the first of them by reading the prompt."""
    prefill: Callable[[Any, torch.Tensor], tuple[torch.Tensor, Any]]
    """From the module and the prompts to the next tokens and a state."""
    decode: Callable[[Any, torch.Tensor, Any], tuple[torch.Tensor, Any]]
    """From the module, the last tokens and the state to the next ones."""


@dataclass(frozen=True)
class ModelBundle:
    """A model to train or to infer with."""

    module: nn.Module
    loss: Loss
    optimizer: MakeOptimizer | torch.optim.Optimizer
    """Makes the optimizer from the parameters; or the optimizer itself, where nothing replaces the parameters."""
    batch: MakeBatch
    task: Task | None = None
    """How real data is read; None: the workload takes synthetic data only."""
    generation: Generation | None = None
    """How tokens are made; None: the model makes none."""
    tokens: int | None = None
    """Tokens in one sample of a language model."""


def call(module: Any, inputs: Any) -> Any:
    """The module's output for the inputs of a batch."""
    if isinstance(inputs, dict):
        return module(**inputs)
    return module(*inputs) if isinstance(inputs, (tuple, list)) else module(inputs)


def each_tensor(data: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The same structure with every tensor changed."""
    if isinstance(data, torch.Tensor):
        return change(data)
    if isinstance(data, dict):
        return {key: each_tensor(item, change) for key, item in data.items()}
    if isinstance(data, (tuple, list)):
        return tuple(each_tensor(item, change) for item in data)
    return data
