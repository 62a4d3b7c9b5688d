"""Estimate the memory that training a model needs, counted on the meta device without allocating it.

Memory of the device's libraries (workspaces, fragmentation, the context) and short-lived tensors come on top.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional

from steelyard.worker.engine.flops import REASON_CHARACTERS, SAMPLES, Agreeing, built_on_meta, on_meta
from steelyard.worker.workloads.bundle import call

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from steelyard.worker.workloads.bundle import ModelBundle

METHOD = (
    f"fp32, on the meta device: what autograd saves for {SAMPLES} samples, each storage once, without parameters; "
    "fused attention, which saves its inputs, its output and one number per row of scores"
)


@dataclass(frozen=True)
class Footprint:
    """Bytes needed for fp32 training without sharding."""

    parameter_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    optimizer: str
    activation_bytes: float | None
    """Per sample: what the forward pass saves for the backward pass; None: unknown."""
    method: str
    """How the activations were counted, or why they are unknown."""


def footprint(make: Callable[[], ModelBundle]) -> Footprint:
    """Return the memory needed to train the model that `make` builds."""
    with torch.random.fork_rng(devices=[]):
        bundle = built_on_meta(make)
        memory = held(bundle)
        try:
            return replace(memory, activation_bytes=_kept(bundle) / SAMPLES, method=METHOD)
        except Exception as error:  # noqa: BLE001 -- user code; the other numbers are still known
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:REASON_CHARACTERS]
            return replace(memory, method=f"unknown: {reason}")


def held(bundle: ModelBundle) -> Footprint:
    """Return what training holds all the time, without activations. Moves the model to the meta device."""
    module = bundle.module.to("meta")
    optimizer = bundle.optimizer
    if not isinstance(optimizer, torch.optim.Optimizer):
        optimizer = optimizer(module.parameters())
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    # The optimizer's state after its first step, without its step counters.
    for parameter in trained:
        parameter.grad = torch.empty_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    states = [value for state in optimizer.state.values() for value in state.values()]
    return Footprint(
        parameter_bytes=_bytes([*module.parameters(), *module.buffers()]),
        gradient_bytes=_bytes(trained),
        optimizer_bytes=_bytes(value for value in states if isinstance(value, torch.Tensor) and value.dim()),
        optimizer=type(optimizer).__name__,
        activation_bytes=None,
        method="not counted",
    )


def _bytes(tensors: Iterable[torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _kept(bundle: ModelBundle) -> float:
    module, inputs, target = on_meta(bundle, train=True)
    known = {_storage(tensor) for tensor in (*module.parameters(), *module.buffers())}
    seen: dict[int, torch.Tensor] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        # Keep the tensor alive, so that no later storage gets the same address.
        if _storage(tensor) not in known:
            seen.setdefault(_storage(tensor), tensor)
        return tensor

    def attend(query: Any, key: Any, value: Any, *_more: Any, **_named: Any) -> Any:
        return _Fused.apply(query, key, value)

    fused = mock.patch.object(functional, "scaled_dot_product_attention", attend)
    with Agreeing(), fused, torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        bundle.loss(call(module, inputs), target)
    return float(sum(tensor.untyped_storage().nbytes() for tensor in seen.values()))


def _storage(tensor: torch.Tensor) -> int:
    """Return an id that is the same for all views of a storage; meta tensors have no address."""
    return int(StorageWeakRef(tensor.untyped_storage()).cdata)  # type: ignore[no-untyped-call]


class _Fused(torch.autograd.Function):
    """Attention that saves what a fused kernel saves."""

    @staticmethod
    def forward(ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:  # type: ignore[override, unused-ignore]
        """Return an output of the right shape."""
        output = query.new_empty((*query.shape[:-1], value.shape[-1]))
        ctx.save_for_backward(query, key, value, output, query.new_empty(query.shape[:-1], dtype=torch.float32))
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        """Never called."""
        raise NotImplementedError
