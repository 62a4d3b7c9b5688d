"""The optimizer of a run, in the implementation that was asked for: torch's default, foreach or fused."""

from __future__ import annotations

import importlib
import inspect
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from steelyard.errors import InputError, Problem
from steelyard.worker.measure.software import ask

if TYPE_CHECKING:
    from steelyard.contracts.spec import RunSpec
    from steelyard.worker.workloads.bundle import ModelBundle

KERNELS = ("foreach", "fused")
REASON_CHARACTERS = 200


def optimizer(spec: RunSpec, bundle: ModelBundle, module: Any, *, sharded: bool) -> tuple[torch.optim.Optimizer, str]:
    """Return the optimizer, and why it is not in the preset's implementation.

    An implementation that was asked for by name and is not supported is an InputError.
    """
    kernel = spec.tuning.optimizer_kernel
    finished = isinstance(bundle.optimizer, torch.optim.Optimizer)
    if finished and sharded:
        raise InputError(
            "sharding replaces the parameters that this optimizer holds",
            next_step="return a function that creates the optimizer from the parameters",
        )
    made = bundle.optimizer if isinstance(bundle.optimizer, torch.optim.Optimizer) else None
    made = made if made is not None else bundle.optimizer(module.parameters())  # type: ignore[operator]
    if kernel == "default":
        return made, ""
    reason = "the workload returns a finished optimizer" if finished else _refusal(made, kernel)
    if not reason:
        return _with_kernel(made, made.param_groups, kernel), ""
    if spec.optimizer_kernel is None:
        return made, f"not {kernel}: {reason}"
    problem = Problem("optimizer_kernel", f"is {kernel}", "default")
    raise InputError(f"the optimizer cannot be {kernel}: {reason}", problems=(problem,))


def kernel_of(made: torch.optim.Optimizer) -> str:
    """Return the implementation that steps use: for-loop, foreach or fused. None of both asked: as torch chooses."""
    group = made.param_groups[0]
    named = next((kernel for kernel in reversed(KERNELS) if group.get(kernel)), None)
    if named is not None or not _takes(made, "foreach") or group.get("foreach") is False:
        return named or "for-loop"
    choice = ask(lambda: _torchs_choice(group["params"]))
    return "torch's default" if choice is None else ("foreach" if choice[1] else "for-loop")


def _torchs_choice(parameters: list[Any]) -> Any:
    """Ask torch for its default: fused or not, foreach or not. It has no public function for this."""
    choose = importlib.import_module("torch.optim.optimizer")._default_to_fused_or_foreach  # noqa: SLF001
    return choose(parameters, differentiable=False, use_fused=False)


def _takes(made: torch.optim.Optimizer, kernel: str) -> bool:
    return kernel in inspect.signature(type(made)).parameters


def _refusal(made: torch.optim.Optimizer, kernel: str) -> str:
    """Return why torch cannot use this implementation here; empty if it can: one step of a small parameter shows it."""
    if not _takes(made, kernel):
        return f"{type(made).__name__} has no such implementation"
    # Like a parameter of the model: a sharded one may have fewer operators.
    one = min(made.param_groups[0]["params"], key=lambda parameter: parameter.numel())
    try:
        small = nn.Parameter(torch.zeros_like(one))
        small.grad = torch.zeros_like(small)
        _with_kernel(made, [{"params": [small]}], kernel).step()
    except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
        return " ".join(str(error).split())[:REASON_CHARACTERS]
    return ""


def _with_kernel(made: torch.optim.Optimizer, groups: list[dict[str, Any]], kernel: str) -> torch.optim.Optimizer:
    """Return the same optimizer for these groups of parameters in another implementation."""
    own = inspect.signature(type(made)).parameters
    kept = {name: value for name, value in made.defaults.items() if name in own and name not in KERNELS}
    bare = [{name: value for name, value in group.items() if name not in KERNELS} for group in groups]
    # A subclass has the parameters of its own constructor; those of torch are keywords.
    again: Any = type(made)
    fresh: torch.optim.Optimizer = again(bare, **kept, **{kernel: True})
    return fresh
