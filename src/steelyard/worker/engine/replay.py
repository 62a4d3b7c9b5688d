"""Record the decode of a token as a graph of the device, and replay it: the host starts one graph, not every kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from steelyard.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable


def graphs_of(device: torch.device) -> Any:
    """Return torch's module of this device family, which has its graphs; InputError if it has none."""
    module = getattr(torch, device.type, None)
    if not hasattr(module, "graph"):
        raise InputError(
            f"torch {torch.__version__} has no graphs for the device {device.type}",
            next_step="leave --graphs out",
        )
    return module


class Replay:
    """A decode on fixed memory: recorded when made, replayed by each call."""

    def __init__(self, family: Any, decode: Callable[[torch.Tensor], torch.Tensor], tokens: torch.Tensor) -> None:
        self._tokens = tokens.clone()
        # Libraries reserve memory at their first call, which a recording does not allow; torch asks for another stream.
        stream = family.Stream()
        stream.wait_stream(family.current_stream())
        with family.stream(stream):
            decode(self._tokens)
        family.current_stream().wait_stream(stream)
        self._graph = getattr(family, f"{tokens.device.type.upper()}Graph")()
        # A loader's thread may call the driver meanwhile; CUDA can be told that only this thread records.
        more = {"capture_error_mode": "thread_local"} if tokens.device.type == "cuda" else {}
        with family.graph(self._graph, **more):
            self._tokens.copy_(decode(self._tokens))

    def __call__(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the tokens that follow these; the next call overwrites them."""
        if tokens is not self._tokens:
            self._tokens.copy_(tokens)
        self._graph.replay()
        return self._tokens
