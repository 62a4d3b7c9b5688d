"""What a workload's `build` function returns: a model, its loss and optimizer, and its data."""

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
"""From a number of samples and a random generator on the CPU to inputs and target on the CPU.

Inputs are a tensor, or a tuple (positional) or dict (named) of tensors that the module is called with.
"""


class Metric(Protocol):
    """Quality of a model's outputs, accumulated over batches and ranks."""

    name: str
    better: Literal["higher", "lower"]

    def update(self, output: Any, target: Any) -> None:
        """Add the outputs of one batch, computed in evaluation mode."""

    def compute(self) -> float:
        """Return the value over all batches of all ranks."""


@dataclass(frozen=True)
class Task:
    """How examples of a data set become batches, and how quality is measured."""

    kind: str
    """Kind of the examples, as named in `steelyard.data`."""
    prepare: Callable[[Any, bool, np.random.Generator], Any]
    """From an example, whether it is for training (augmented) and a random generator to one sample."""
    collate: Callable[[Sequence[Any]], tuple[Any, Any]]
    """From samples to inputs and target, like the batch maker."""
    metric: Callable[[], Metric] | None = None
    """Creates a new metric; imports its library only when called."""
    length: int | None = None
    """For kind tokens: the window length; a sample has one token more."""
    open: Callable[[Path], Task] | None = None
    """From the data set's folder to the final task, if it needs something from there, such as a vocabulary."""


@dataclass(frozen=True)
class Generation:
    """How a language model generates tokens."""

    prompt: int
    """Number of prompt tokens."""
    new_tokens: int
    """Number of generated tokens; the first comes from reading the prompt."""
    prefill: Callable[[Any, torch.Tensor], tuple[torch.Tensor, Any]]
    """From the module and the prompts to the next tokens and a state."""
    decode: Callable[[Any, torch.Tensor, Any], tuple[torch.Tensor, Any]]
    """From the module, the last tokens and the state to the next tokens, those with the highest score, and a state."""
    static: Callable[[], Any] | None = None
    """Creates a key-value cache of fixed size: a state that `decode` can also read the prompts into, and that `reset()`
    empties. What changes from token to token is in tensors, so that a decode can be replayed as a graph. None: not
    supported."""


@dataclass(frozen=True)
class ModelBundle:
    """A model for training or inference."""

    module: nn.Module
    loss: Loss
    optimizer: MakeOptimizer | torch.optim.Optimizer
    """Creates the optimizer from the parameters; or an optimizer, if nothing replaces the parameters."""
    batch: MakeBatch
    task: Task | None = None
    """How real data is read; None: synthetic data only."""
    generation: Generation | None = None
    """How tokens are generated; None: not supported."""
    tokens: int | None = None
    """Tokens per sample of a language model."""
    backbone: nn.Module | None = None
    """Part of the module for which there are weights of a classifier; None: a file has those of the whole module."""
    stages: Callable[[int], list[nn.Module]] | None = None
    """Divides `module` into a number of stages that follow each other, each with one tensor in and one out; the stages
    may share parameters. None: not supported."""


def call(module: Any, inputs: Any) -> Any:
    """Call the module with the inputs of a batch."""
    if isinstance(inputs, dict):
        return module(**inputs)
    return module(*inputs) if isinstance(inputs, (tuple, list)) else module(inputs)


def each_tensor(data: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return the same structure with every tensor changed."""
    if isinstance(data, torch.Tensor):
        return change(data)
    if isinstance(data, dict):
        return {key: each_tensor(item, change) for key, item in data.items()}
    if isinstance(data, (tuple, list)):
        return tuple(each_tensor(item, change) for item in data)
    return data
