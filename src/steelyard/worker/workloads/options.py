"""What the build functions share: numbers that make no sense are refused, libraries are imported when needed.

Knows no model.
"""

from __future__ import annotations

import importlib
from typing import Any

from steelyard.errors import InputError, Problem

REASON_CHARACTERS = 200


def at_least(least: int, what: str, **given: int | None) -> None:
    """Refuse options below `least`; None is an option that was not given."""
    problems = tuple(
        Problem(name, f"is {value}", f"at least {least}")
        for name, value in given.items()
        if value is not None and value < least
    )
    if problems:
        raise InputError(f"{what} cannot be built so", problems=problems)


def multiple_of(part: int, what: str, **given: int) -> None:
    """Refuse options that are no multiple of `part`."""
    problems = tuple(
        Problem(name, f"is {value}", f"a multiple of {part}") for name, value in given.items() if value % part
    )
    if problems:
        raise InputError(f"{what} cannot be built so", problems=problems)


def library(module: str, extra: str, what: str) -> Any:
    """A module that `what` needs; the error names what to install."""
    try:
        return importlib.import_module(module)
    except (ImportError, RuntimeError) as error:  # RuntimeError: torchvision that belongs to another torch
        name = module.partition(".")[0]
        raise InputError(
            f"{what} needs {name}, which cannot be imported here",
            problems=(Problem(name, str(error)[:REASON_CHARACTERS], "a version that belongs to this torch"),),
            # Not the extra that brings torch: it could put another torch in the place of this one.
            next_step="pip install torchvision" if name == "torchvision" else f"pip install 'steelyard[{extra}]'",
        ) from None
