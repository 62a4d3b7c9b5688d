"""Arguments that verbs share, and values that are checked as they are read.

Types, limits, choices and defaults of a run's settings come from the contract, so that help never contradicts it.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import types
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from steelyard.contracts.base import NAME_PATTERN, Bound, Length

if TYPE_CHECKING:
    from collections.abc import Callable

    from steelyard.cli.parser import Parser

SELECTION = "STUDY, STUDY/CONFIGURATION, STUDY:key=value,key=value or RUN_ID"
NAME_RULE = "must be letters, digits, '.', '_' or '-', and begin with a letter or digit"


# -- options of several verbs


def add_common(parser: Parser, *, results: bool = True, loudness: bool = False, inner: bool = False) -> None:
    """Add the options that most verbs have. `inner`: the parser of an action of a verb."""
    group = parser.add_argument_group("general options")
    if results:
        default = os.environ.get("STEELYARD_RESULTS") or "steelyard-results"
        group.add_argument(
            "--results",
            type=Path,
            default=Path(default),
            metavar="DIR",
            help="results folder (default: $STEELYARD_RESULTS or ./steelyard-results)",
        )
    if loudness:
        either = group.add_mutually_exclusive_group()
        either.add_argument("--quiet", action="store_true", help="print the result only, no progress")
        either.add_argument("--verbose", action="store_true", help="also print commands, paths and waiting times")
    # The default of an action would overwrite a --json that was typed before its name.
    default_json = argparse.SUPPRESS if inner else False
    group.add_argument("--json", action="store_true", default=default_json, help="print the result as JSON")
    group.add_argument("-h", "--help", action="help", help="print this help")


def add_action(actions: Any, name: str, text: str, *examples: str) -> Parser:
    """Add an action to a verb, such as `check` to `steelyard site`; `examples` are command lines for its help."""
    shown = "\n".join(f"$ steelyard {line}" for line in examples)
    parser: Parser = actions.add_parser(name, help=text, description=f"{text[:1].upper()}{text[1:]}.\n\n{shown}")
    return parser


# -- settings of a contract


def add_setting(
    group: Any,
    contract: type,
    field: str,
    text: str,
    *,
    names: tuple[str, ...] = (),
    default: str | None = None,
    metavar: str | None = None,
) -> None:
    """Add an option for a field: its type, limits and choices from the contract, its default in the help.

    The value is None when the option is not given. `default` describes the default where a value does not.
    """
    kind, limits = _bare(_hints(contract)[field])
    choices = [str(choice) for choice in get_args(kind)] if get_origin(kind) is Literal else None
    if choices:
        text = f"{text}: {', '.join(choices[:-1])} or {choices[-1]}"
    value = next(entry.default for entry in dataclasses.fields(contract) if entry.name == field)
    if default is not None:
        text = f"{text} (default: {default})"
    elif value is not None:
        text = f"{text} (default {value:g})" if isinstance(value, float) else f"{text} (default {value})"
    reads: dict[Any, Callable[[str], Any]] = {int: whole, float: number}
    group.add_argument(
        *(names or (f"--{field.replace('_', '-')}",)),
        dest=field,
        default=None,
        choices=choices,
        type=_limited(reads.get(kind, str), limits),
        help=text.replace("%", "%%"),
        metavar=metavar or {int: "N", float: "X"}.get(kind, "NAME"),
    )


def add_switch(group: Any, field: str, text: str) -> None:
    """Add an option without a value."""
    group.add_argument(f"--{field.replace('_', '-')}", action="store_true", help=text)


def add_choice(group: Any, field: str, text: str) -> None:
    """Add an option without a value and its opposite, `--no-...`. The value is None when neither is given."""
    name = f"--{field.replace('_', '-')}"
    group.add_argument(name, action=argparse.BooleanOptionalAction, default=None, help=text)


@cache
def _hints(contract: type) -> dict[str, Any]:
    return get_type_hints(contract, include_extras=True)


def _bare(hint: Any) -> tuple[Any, list[Bound | Length]]:
    """The type without None and limits, and the limits."""
    if get_origin(hint) is Annotated:
        inner, *limits = get_args(hint)
        kind, more = _bare(inner)
        return kind, [*limits, *more]
    if get_origin(hint) in (Union, types.UnionType):
        return _bare(next(option for option in get_args(hint) if option is not type(None)))
    return hint, []


# -- values


def whole(text: str) -> int:
    """A whole number."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError("must be a whole number") from None


def number(text: str) -> float:
    """A finite number."""
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError("must be a number") from None
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError("must be finite")
    return value


def within(read: Callable[[str], Any], **limits: float) -> Callable[[str], Any]:
    """Read a value and check it, such as `within(whole, ge=1)`."""
    return _limited(read, [Bound(**limits)])


def counts(text: str) -> tuple[int, ...]:
    """One or more counts, such as `4` or `0,1,2`."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and len(part) <= 9 for part in parts):
        raise argparse.ArgumentTypeError("must be a whole number, or several such as 0,1,2")
    return tuple(dict.fromkeys(map(int, parts)))


def _limited(read: Callable[[str], Any], limits: list[Bound | Length]) -> Callable[[str], Any]:
    def checked(text: str) -> Any:
        value = read(text)
        for limit in limits:
            if fault := limit.fault(value):
                named = isinstance(limit, Length) and limit.pattern == NAME_PATTERN and len(text) <= limit.max_length
                raise argparse.ArgumentTypeError(NAME_RULE if named else fault)
        return value

    return checked


def assignment(text: str) -> tuple[str, Any]:
    """Key and value of `KEY=VALUE`. The value is JSON if it parses, else text."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise argparse.ArgumentTypeError("must be KEY=VALUE")
    try:
        return key, json.loads(value)
    except (ValueError, RecursionError):
        return key, value


def stated(text: str) -> tuple[str, str]:
    """Key and value of `KEY=VALUE`, with the value as it is written."""
    key, equals, value = (part.strip() for part in text.partition("="))
    if not equals or not key or not value:
        raise argparse.ArgumentTypeError("must be KEY=VALUE")
    return key, value
