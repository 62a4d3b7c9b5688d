"""Distribute a model over ranks with torch.distributed, and time exposed communication."""

from __future__ import annotations

import contextlib
import gc
import inspect
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from steelyard.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from steelyard.contracts.spec import RunSpec

_NOTHING: AbstractContextManager[Any] = contextlib.nullcontext()


class Parallel:
    """Wraps the module of one rank."""

    def __init__(self, spec: RunSpec, device: torch.device, record: Callable[[], Any]) -> None:
        self._spec = spec
        self._device = device
        self._record = record
        self._bare: nn.Module | None = None
        self._ready: Any = None
        self.shards = spec.parallel == "fsdp2" and spec.mode == "train"
        self.pipelines = spec.parallel == "pipeline" and spec.devices > 1
        self.communicates = spec.exchanges_gradients or self.shards
        self.watching = False
        if self.pipelines:
            _refuse_without_pipeline()
        if not self.shards:
            return
        try:
            from torch.distributed.fsdp import fully_shard  # noqa: F401
        except ImportError:
            raise InputError(
                f"torch {torch.__version__} has no fully_shard", next_step="use torch 2.6 or newer, or --parallel ddp"
            ) from None
        if spec.channels_last:
            raise InputError(
                "fully_shard does not support parameters in channels_last memory format",
                next_step="leave --channels-last out, or use --parallel ddp",
            )

    def wrap(self, module: nn.Module) -> Any:
        """Wrap the module for training."""
        self._bare = module
        if self.shards:
            return self._compiled(self._fully_shard(module))
        if self.communicates:
            return self._compiled(self._ddp(module))
        return self._compiled(module)

    def replicate(self, module: nn.Module) -> Any:
        """Prepare the module for inference: every rank has the whole model and runs on its own."""
        return self._compiled(module)

    def _compiled(self, module: Any) -> Any:
        return module if self._spec.compile == "off" else torch.compile(module, mode=self._spec.compile)

    def _ddp(self, module: nn.Module) -> DistributedDataParallel:
        index = None if self._device.index is None else [self._device.index]
        views = self._spec.tuning.gradient_as_bucket_view
        return DistributedDataParallel(module, device_ids=index, gradient_as_bucket_view=views)

    def _fully_shard(self, module: nn.Module) -> Any:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        # Without a mesh, fully_shard would use the node's accelerator even for a run on the CPU.
        mesh = init_device_mesh(self._device.type, (self._spec.devices,))
        inner = outer = MixedPrecisionPolicy()
        if self._spec.precision == "bf16":
            # Activations stay in bf16 between blocks; only the loss gets fp32.
            short, long = torch.bfloat16, torch.float32
            inner = MixedPrecisionPolicy(param_dtype=short, reduce_dtype=long)
            outer = MixedPrecisionPolicy(param_dtype=short, reduce_dtype=long, output_dtype=long)
        # The entries of the longest list of layers are the units that are gathered and freed.
        lists = [part for part in module.modules() if isinstance(part, (nn.ModuleList, nn.Sequential))]
        for part in max(lists, key=len, default=()):
            if any(True for _ in part.parameters()):
                fully_shard(part, mesh=mesh, mp_policy=inner)
        return fully_shard(module, mesh=mesh, mp_policy=outer)

    def hold(self, module: Any, *, last: bool) -> AbstractContextManager[Any]:
        """Return the context of a micro-batch, so that gradients are exchanged only after the last one."""
        if not self.communicates:
            return _NOTHING
        if self.shards:
            module.set_requires_gradient_sync(last)
            return _NOTHING
        return _NOTHING if last else module.no_sync()

    @property
    def can_watch(self) -> bool:
        """Whether communication can be timed. Sharded and compiled modules exchange inside their own graph.

        A stage of a pipeline also waits for other stages.
        """
        return self.communicates and not self.shards and not self.pipelines and self._spec.compile == "off"

    def watch(self) -> Any:
        """Return the module wrapped again, with a hook that records when the last gradients were ready to be sent.

        Only the cross-check pays for the hook. The caller must have dropped the old wrapper.
        """
        assert self._bare is not None
        # In most releases the old wrapper is in a reference cycle and would keep memory of the size of all gradients.
        gc.collect()
        fresh = self._ddp(self._bare)

        # No annotations: DDP checks them and accepts only its own classes, not their names.
        def hook(_state, bucket):  # type: ignore[no-untyped-def]
            if bucket.is_last():
                self._ready = self._record()
            gradients = bucket.buffer().div_(dist.get_world_size())
            return dist.all_reduce(gradients, async_op=True).get_future().then(lambda future: future.value()[0])

        fresh.register_comm_hook(None, hook)
        self.watching = True
        return fresh

    def exposed(self) -> tuple[Any, Any]:
        """Return begin and end of the exposed communication of the step whose backward pass was just enqueued."""
        return self._ready, self._record()

    def effective(self, module: Any) -> dict[str, str]:
        """Return what the module is wrapped in."""
        original = getattr(module, "_orig_mod", module)
        kind = "none"
        values = {}
        if isinstance(original, DistributedDataParallel):
            kind = "DistributedDataParallel"
            values["gradient_as_bucket_view"] = str(original.gradient_as_bucket_view).lower()
        elif self.shards:
            kind = "fully_shard"
        elif self.pipelines:
            kind = "pipeline"
            values["stages"] = str(self._spec.devices)
        elif self._spec.devices > 1:
            kind = "independent"
        return {"parallel": kind, "compiled": str(original is not module).lower(), **values}


def _refuse_without_pipeline() -> None:
    """Raise InputError if this torch has no pipeline, or one that cannot leave the scale of gradients to the loss."""
    try:
        from torch.distributed.pipelining import Schedule1F1B
    except ImportError:
        pass
    else:
        if "scale_grads" in inspect.signature(Schedule1F1B).parameters:
            return
    raise InputError(
        f"torch {torch.__version__} does not support a pipeline",
        next_step="use torch 2.7 or newer, or --parallel ddp",
    )
