"""What is observed of torch: backward passes, optimizer steps, batches, evaluations, checkpoints.

Each function gets a module that the program has just imported. A function or method that is replaced calls the original
with the same arguments and returns what that returns.
"""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any

from .observed import Fetched, Observed
from .work import CountedIndices

if TYPE_CHECKING:
    from collections.abc import Callable

    from .training import SeenTraining


def _optimizers(module: Any, training: SeenTraining) -> None:
    module.register_optimizer_step_pre_hook(training.update_begins)
    module.register_optimizer_step_post_hook(training.update_ends)
    module.Optimizer.__init__ = Observed(module.Optimizer.__init__, _nothing, training.created)


def _autograd(module: Any, training: SeenTraining) -> None:
    module.backward = Observed(module.backward, training.backward_begins, training.backward_ends)


def _scaler(module: Any, training: SeenTraining) -> None:
    stepped = module.OptState.STEPPED
    before: list[Any] = [0, set()]

    def done(scaler: Any) -> set[int]:
        # Nothing else tells which optimizer it was. A scaler that is switched off has none.
        states = getattr(scaler, "_per_optimizer_states", {})
        return {key for key, state in states.items() if state["stage"] is stepped}

    def begins(scaler: Any) -> None:
        before[:] = training.firings, done(scaler)

    def ends(scaler: Any) -> None:
        if training.firings == before[0]:
            for key in done(scaler) - before[1]:
                training.update_skipped(training.optimizers[key])

    module.GradScaler.step = Observed(module.GradScaler.step, _safe(training, begins), _safe(training, ends))


def _loader(module: Any, training: SeenTraining) -> None:
    def took(loader: Any, begin: Any, batch: Any) -> Any:
        training.fetched(loader, begin, batch)
        return batch

    kind = module._BaseDataLoaderIter  # noqa: SLF001 -- the only place that every batch passes
    kind.__next__ = Fetched(kind.__next__, training.fetch_begins, took)
    kind._sampler_iter = CountedIndices()  # noqa: SLF001 -- the only place that every index passes


def _modules(module: Any, training: SeenTraining) -> None:
    original = module.Module.train

    @functools.wraps(original)
    def train(self: Any, mode: bool = True) -> Any:
        original(self, mode)
        # Some programs set it in every step, for every module: look only if it changes.
        if mode is not training.evaluating:
            return self
        training.mode_set(self, mode)
        return self

    module.Module.train = train


def _saves(*names: str) -> Callable[[Any, SeenTraining], None]:
    """Observe functions that write a checkpoint."""

    def patch(module: Any, training: SeenTraining) -> None:
        for name in names:
            _surround(module, name, training.checkpoint_begins, training.checkpoint_ends)

    return patch


def _surround(owner: Any, name: str, begins: Callable[[], None], ends: Callable[[], None]) -> None:
    """Call something before and after a function of a module or a method of a class."""
    original = getattr(owner, name, None)
    if original is not None:
        setattr(owner, name, Observed(original, lambda _owner: begins(), lambda _owner: ends()))


def _safe(training: SeenTraining, act: Callable[[Any], None]) -> Callable[[Any], None]:
    """Return a function whose errors do not reach the program; after one it does nothing more, but the rest goes on."""
    failed: list[str] = []

    def call(owner: Any) -> None:
        if failed:
            return
        try:
            act(owner)
        except Exception as error:  # noqa: BLE001 -- the program must not notice
            failed.append(f"{type(owner).__name__} is not observed: {error!r}")
            training.note(failed[0])

    return call


def _nothing(_owner: Any) -> None:
    pass


def _transformers(module: Any, training: SeenTraining) -> None:
    _surround(module.Trainer, "evaluate", training.evaluation_begins, training.evaluation_ends)
    _surround(module.Trainer, "_save_checkpoint", training.checkpoint_begins, training.checkpoint_ends)


def _transformers_model(module: Any, training: SeenTraining) -> None:
    def made(model: Any) -> None:
        # It holds settings, no weights.
        training.model_config = training.model_config or getattr(model, "config", None)

    kind = module.PreTrainedModel
    kind.__init__ = Observed(kind.__init__, _nothing, _safe(training, made))


def _lightning_evaluation(module: Any, training: SeenTraining) -> None:
    _surround(module._EvaluationLoop, "run", training.evaluation_begins, training.evaluation_ends)  # noqa: SLF001


def _lightning_trainer(module: Any, training: SeenTraining) -> None:
    _surround(module.Trainer, "save_checkpoint", training.checkpoint_begins, training.checkpoint_ends)


def _autocast(module: Any, training: SeenTraining) -> None:
    original = module.autocast.__enter__

    @functools.wraps(original)
    def enter(self: Any) -> Any:
        training.autocast = self
        return original(self)

    module.autocast.__enter__ = enter


def _ddp(module: Any, training: SeenTraining) -> None:
    def begins(_model: Any) -> None:
        training.parallel = "ddp"

    kind = module.DistributedDataParallel
    kind.__init__ = Observed(kind.__init__, begins, _nothing)


def _checkpointing(module: Any, training: SeenTraining) -> None:
    # Compilers know the original by its identity, and the second pass compiles nothing.
    if training.second is not None:
        _surround(module, "checkpoint", training.second.recomputation, lambda: None)


AFTER: dict[str, Callable[[Any, SeenTraining], None]] = {
    "torch.optim.optimizer": _optimizers,
    "torch.autograd": _autograd,
    "torch.amp.grad_scaler": _scaler,
    "torch.amp.autocast_mode": _autocast,
    "torch.utils.data.dataloader": _loader,
    "torch.nn.modules.module": _modules,
    "torch.nn.parallel.distributed": _ddp,
    "torch.utils.checkpoint": _checkpointing,
    "torch.serialization": _saves("save"),
    "torch.distributed.checkpoint.state_dict_saver": _saves("save", "async_save"),
    "safetensors.torch": _saves("save_file"),
    "transformers.trainer": _transformers,
    "transformers.modeling_utils": _transformers_model,
    "lightning.pytorch.loops.evaluation_loop": _lightning_evaluation,
    "lightning.pytorch.trainer.trainer": _lightning_trainer,
    "pytorch_lightning.loops.evaluation_loop": _lightning_evaluation,
    "pytorch_lightning.trainer.trainer": _lightning_trainer,
}


def torch_module() -> Any:
    """Return torch if the program has imported it."""
    return sys.modules.get("torch")
