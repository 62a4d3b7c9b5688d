"""Count how often a model's weights are turned into another number format while it runs."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class Casts(TorchDispatchMode):  # type: ignore[no-untyped-call, unused-ignore]
    """Counts operators that turn a weight, or a part of one, into another number format."""

    def __init__(self, module: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call, unused-ignore]
        self._weights = {parameter.untyped_storage().data_ptr() for parameter in module.parameters()}
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operator."""
        made = func(*args, **(kwargs or {}))
        given = args[0] if args and isinstance(args[0], torch.Tensor) else None
        if given is not None and isinstance(made, torch.Tensor) and made.dtype != given.dtype:
            self.count += given.untyped_storage().data_ptr() in self._weights
        return made
