"""Helpers of the build functions: check options, and import libraries when needed."""

from __future__ import annotations

import importlib
from typing import Any

from steelyard.errors import InputError, Problem
from steelyard.extras import install_line

REASON_CHARACTERS = 200


def at_least(least: int, what: str, **given: float | None) -> None:
    """Reject options below `least`; None is an option that is not set."""
    problems = tuple(
        Problem(name, f"is {value}", f"at least {least}")
        for name, value in given.items()
        if value is not None and value < least
    )
    if problems:
        raise InputError(f"invalid option of {what}", problems=problems)


def multiple_of(part: int, what: str, **given: int) -> None:
    """Reject options that are not a multiple of `part`."""
    problems = tuple(
        Problem(name, f"is {value}", f"a multiple of {part}") for name, value in given.items() if value % part
    )
    if problems:
        raise InputError(f"invalid option of {what}", problems=problems)


def one_of(valid: tuple[str, ...], what: str, **given: str) -> None:
    """Reject options that are none of the valid words."""
    problems = tuple(
        Problem(name, f"is {value}", ", ".join(valid)) for name, value in given.items() if value not in valid
    )
    if problems:
        raise InputError(f"invalid option of {what}", problems=problems)


def padded(size: int, multiple: int) -> int:
    """Return the smallest multiple that is not below `size`."""
    return -(-size // multiple) * multiple


def library(module: str, extra: str, what: str) -> Any:
    """Import a module that `what` needs; the error says what to install."""
    try:
        return importlib.import_module(module)
    except (ImportError, RuntimeError) as error:  # RuntimeError: torchvision for another torch version
        name = module.partition(".")[0]
        raise InputError(
            f"{what} needs {name}, which cannot be imported here",
            problems=(Problem(name, str(error)[:REASON_CHARACTERS], "a version that matches this torch"),),
            # Not the extra with torch: it could replace the installed torch.
            next_step="pip install torchvision" if name == "torchvision" else install_line(extra),
        ) from None
