"""Ends of a process at which Python calls nobody: `os._exit`, and another program in its place."""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from .training import SeenTraining


def before_ending(training: SeenTraining) -> None:
    """Write the steps before the process ends in one of these ways."""
    _precede("_exit", training.finish)
    # The other functions of this kind call these; they may fail, and the training goes on.
    for name in ("execv", "execve"):
        _precede(name, training.write_steps)


def _precede(name: str, act: Callable[[], None]) -> None:
    original = getattr(os, name)

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        act()
        return original(*args, **kwargs)

    setattr(os, name, call)
