"""What a workload's `build` function returns: a model, how it is trained, and its data. Knows no device."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

Loss = Callable[[Any, Any], torch.Tensor]
"""From the module's output and the target to a scalar."""
MakeOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
MakeBatch = Callable[[int, torch.Generator], "tuple[Any, Any]"]
"""From a number of samples and a source of randomness on the CPU to inputs and target on the CPU.

Inputs are a tensor, or a tuple (positional) or dict (named) of tensors that the module is called with.
"""


@dataclass(frozen=True)
class Recipe:
    """A model to train or to infer with."""

    module: nn.Module
    loss: Loss
    optimizer: MakeOptimizer | torch.optim.Optimizer
    """Makes the optimizer from the parameters; or the optimizer itself, where nothing replaces the parameters."""
    batch: MakeBatch


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
