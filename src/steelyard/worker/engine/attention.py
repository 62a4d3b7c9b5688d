"""Which kernel torch's scaled_dot_product_attention uses: set it, and find the one that a model's shapes get."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from steelyard.errors import InputError
from steelyard.out_of_memory import degree
from steelyard.worker.engine.flops import SAMPLES, Agreeing, built_on_meta, on_meta
from steelyard.worker.workloads.bundle import call

if TYPE_CHECKING:
    from collections.abc import Callable

    from steelyard.contracts.spec import RunSpec
    from steelyard.worker.workloads.bundle import ModelBundle

NAMES = {0: "math", 1: "flash", 2: "efficient", 3: "cudnn", 4: "the device's own"}
"""Kernels by torch's numbers."""
# torch's switches; they are also for the CPU, which has flash and math. Older releases have no cudnn.
_SWITCHES = {"flash": "flash", "efficient": "mem_efficient", "math": "math", "cudnn": "cudnn"}


def allow_only(kernel: str) -> None:
    """Switch off all kernels but one; auto: leave torch's switches alone."""
    if kernel == "auto":
        return
    for name, switch in _SWITCHES.items():
        turn = getattr(torch.backends.cuda, f"enable_{switch}_sdp", None)
        if turn is not None:
            turn(name == kernel)


class _Calls(TorchFunctionMode):
    """Keeps the arguments of every call of scaled_dot_product_attention."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call, unused-ignore]
        self.arguments: dict[str, tuple[Any, Any]] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one function."""
        if func is functional.scaled_dot_product_attention:
            # Layers of the same shape get the same kernel.
            self.arguments[str([_form(given) for given in (*args, *sorted((kwargs or {}).items()))])] = (
                args,
                kwargs or {},
            )
        return func(*args, **(kwargs or {}))


def _form(given: Any) -> Any:
    return (given.shape, given.stride(), given.dtype) if isinstance(given, torch.Tensor) else given


def kernels(make: Callable[[], ModelBundle], spec: RunSpec, device: torch.device, dtype: torch.dtype) -> str | None:
    """Return the kernels that the model's calls get on this device, or None if it makes none or torch does not tell.

    `dtype` is that of the products. The calls are collected on the meta device, and torch is asked about each of them
    with tensors of its shape on the device; nothing is computed. A kernel that torch does not have is `none`.
    """
    calls, train = _Calls(), spec.mode == "train"
    with torch.random.fork_rng(devices=[]), torch.set_grad_enabled(train):
        bundle = built_on_meta(make)
        with Agreeing(), calls:
            _call(bundle, spec)
    try:
        chosen = {_choice(*given, device, dtype, train=train) for given in calls.arguments.values()}
    except NotImplementedError:
        return None
    return ", ".join(sorted(chosen)) or None


def _call(bundle: ModelBundle, spec: RunSpec) -> None:
    made = bundle.generation
    if spec.mode != "generate" or made is None:
        module, inputs, _ = on_meta(bundle, train=spec.mode == "train")
        call(module, inputs)
        return
    module = bundle.module.to("meta").eval()
    prompts = torch.zeros(SAMPLES, made.prompt, dtype=torch.int64, device="meta")
    if spec.kv_cache == "static" and made.static is not None:
        # Its decodes have a mask, which not every kernel takes.
        tokens, state = made.decode(module, prompts, made.static())
    else:
        tokens, state = made.prefill(module, prompts)
    if made.new_tokens > 1:
        made.decode(module, tokens, state)


def _choice(args: Any, named: Any, device: torch.device, dtype: torch.dtype, *, train: bool) -> str:
    def real(given: Any) -> Any:
        if not isinstance(given, torch.Tensor):
            return given
        kind = dtype if given.dtype.is_floating_point else given.dtype
        made = torch.empty_strided(given.shape, given.stride(), dtype=kind, device=device)
        return made.requires_grad_(train and given.requires_grad)

    with warnings.catch_warnings():
        # torch explains every kernel that it cannot use.
        warnings.simplefilter("ignore")
        try:
            choose = torch._fused_sdp_choice  # noqa: SLF001 -- torch has no public name for it on all devices
            number = choose(*map(real, args), **{key: real(value) for key, value in named.items()})
        except NotImplementedError:
            raise
        except RuntimeError as error:
            if degree(str(error)) != "no":
                raise
            return "none"
    return NAMES.get(int(number), f"number {int(number)}")


def refuse_other(spec: RunSpec, make: Callable[[], ModelBundle], device: torch.device, dtype: torch.dtype) -> None:
    """Raise InputError if the model cannot use the kernel that was asked for."""
    if spec.attention == "auto":
        return
    used = kernels(make, spec, device, dtype)
    if used == spec.attention:
        return
    why = (
        f"the workload {spec.workload} does not call scaled_dot_product_attention"
        if used is None
        else f"torch {torch.__version__} has no {spec.attention} attention for this model in "
        f"{str(dtype).removeprefix('torch.')} on the device {device.type}"
    )
    raise InputError(why, next_step="leave --attention out")
