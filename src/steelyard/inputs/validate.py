"""Turns untrusted text into contracts, or into an error that names each bad field and what is valid there.

Knows pydantic and the shape of contracts, not what their fields mean.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import re
import tomllib
import types
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter, ValidationError

from steelyard.contracts.base import Bound, Length
from steelyard.errors import SHOWN_PROBLEMS, InputError, Problem

if TYPE_CHECKING:
    from pathlib import Path

T = TypeVar("T")

# Far above anything honest: a spec has some 2 kB, a record of a 16,384-rank job on 4,096 nodes some 1 MB.
MAX_SPEC_BYTES = 1 << 20
MAX_RECORD_BYTES = 1 << 24
MAX_SHOWN_VALUE = 60

# The time to read dotted keys grows with the square of their parts: a file of 1 MB would take hours. The parts have
# a bound here so that the search itself takes linear time.
_LONG_KEY = re.compile(rb"(?:[^\s.=\[\]]{1,64}[ \t]{0,8}\.[ \t]{0,8}){32}")

# The messages of checks that look at several fields: "field: what is wrong; valid: what would be right".
_OWN_MESSAGE = re.compile(r"^(?:Value error, )?(?P<field>[\w.]+): (?P<problem>.*); valid: (?P<valid>.*)$", re.DOTALL)


def parse_json(cls: type[T], text: bytes | str, source: str) -> T:
    """The contract in `text`, or InputError with every problem found."""
    try:
        contract: T = _adapter(cls).validate_json(text)  # type: ignore[arg-type]
    except ValidationError as error:
        raise InputError(
            f"{source} is not valid ({error.error_count()} found wrong)", problems=tuple(_problems(cls, error))
        ) from None
    except (ValueError, RecursionError) as error:
        problem = Problem("(whole file)", str(error)[:200], f"JSON of a {cls.__name__}")
        raise InputError(f"{source} is not valid", problems=(problem,)) from None
    return contract


def parse_object(cls: type[T], data: Any, source: str) -> T:
    """The same for data already parsed (TOML, options). Through JSON, so that one set of strict rules holds."""
    try:
        text = json.dumps(data, allow_nan=True)
    except (TypeError, ValueError, RecursionError) as error:
        problem = Problem("(whole file)", str(error)[:200], "text, numbers, true or false, lists and tables")
        raise InputError(f"{source} is not valid", problems=(problem,)) from None
    return parse_json(cls, text, source)


def parse_toml(text: bytes, source: str) -> dict[str, Any]:
    """TOML as plain data."""
    if _LONG_KEY.search(text):
        problem = Problem("(whole file)", "a key of more than 32 parts", "keys such as sim.noise.cv")
        raise InputError(f"{source} is not valid", problems=(problem,))
    try:
        return tomllib.loads(text.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        problem = Problem("(whole file)", str(error)[:200] or "nested too deeply", "TOML 1.0 in UTF-8")
        raise InputError(f"{source} is not valid TOML", problems=(problem,)) from None


def read_bounded(path: Path, limit: int) -> bytes:
    """A file from a stranger, refused when it is larger than anything honest."""
    if path.exists() and not path.is_file():
        raise InputError(f"cannot read {path}: not a regular file")
    try:
        with path.open("rb") as file:
            text = file.read(limit + 1)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
    if len(text) > limit:
        raise InputError(f"{path} is larger than the {limit} bytes such a file may have")
    return text


def json_schema(cls: type) -> dict[str, Any]:
    """The contract as JSON Schema, for other tools."""
    return _adapter(cls).json_schema()


@cache
def _adapter(cls: Any) -> TypeAdapter[Any]:
    return TypeAdapter(cls)


def _problems(cls: type, error: ValidationError) -> list[Problem]:
    found = []
    entries = error.errors(include_url=False, include_context=False)
    for entry in entries[: SHOWN_PROBLEMS + 1]:
        where, kind, value = entry["loc"], entry["type"], entry.get("input")
        own = _OWN_MESSAGE.match(entry["msg"])
        if own:
            field = ".".join([*(str(part) for part in where), own["field"]])
            found.append(Problem(field, own["problem"], own["valid"]))
        elif kind == "unexpected_keyword_argument":
            owner = _hint_at(cls, where[:-1])
            known = [f.name for f in dataclasses.fields(owner)] if dataclasses.is_dataclass(owner) else []
            near = difflib.get_close_matches(str(where[-1])[:80], known, n=1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            found.append(Problem(_path(where), f"unknown field{hint}", ", ".join(known) or "nothing here"))
        else:
            problem = "missing"
            if kind != "missing":
                shown = repr(value)
                shown = shown if len(shown) <= MAX_SHOWN_VALUE else shown[: MAX_SHOWN_VALUE - 3] + "..."
                problem = f"{shown}: {entry['msg'][:1].lower()}{entry['msg'][1:]}"
            found.append(Problem(_path(where), problem, describe(_hint_at(cls, where))))
    return found


def _path(where: tuple[int | str, ...]) -> str:
    text = ""
    for part in where:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text.lstrip(".")[:200] or "(whole file)"


def _hint_at(hint: Any, where: tuple[int | str, ...]) -> Any:
    """The declared type at a path of an error, as far as it can be followed."""
    hint = _bare(hint)
    for part in where:
        if dataclasses.is_dataclass(hint):
            hint = _hints(hint).get(str(part))  # type: ignore[arg-type]
        elif get_origin(hint) is tuple and isinstance(part, int):
            hint = get_args(hint)[0]
        elif get_origin(hint) is dict:
            hint = get_args(hint)[1]
        else:
            return hint
        if part != where[-1]:
            hint = _bare(hint)
    return hint


@cache
def _hints(cls: type) -> dict[str, Any]:
    return get_type_hints(cls, include_extras=True)


def _bare(hint: Any) -> Any:
    """Without limits and without None."""
    if get_origin(hint) is Annotated:
        return _bare(get_args(hint)[0])
    if get_origin(hint) in (Union, types.UnionType):
        options = [option for option in get_args(hint) if option is not type(None)]
        return _bare(options[0]) if len(options) == 1 else hint
    return hint


def describe(hint: Any) -> str:
    """What is valid for a type, in words."""
    origin = get_origin(hint)
    if origin is Annotated:
        inner, *limits = get_args(hint)
        return " ".join([describe(inner), *(_describe_limit(limit) for limit in limits)]).strip()
    if origin in (Union, types.UnionType):
        return " or ".join("null" if option is type(None) else describe(option) for option in get_args(hint))
    if origin is Literal:
        return " or ".join(map(repr, get_args(hint)))
    if origin is tuple:
        return f"a list, each entry {describe(get_args(hint)[0])}"
    if origin is dict:
        return f"a table of names, each {describe(get_args(hint)[1])}"
    if dataclasses.is_dataclass(hint):
        return "a table with " + ", ".join(f.name for f in dataclasses.fields(hint))
    words = {int: "an integer", float: "a finite number", str: "text", bool: "true or false"}
    return words.get(hint, "see `steelyard explain`")


def _describe_limit(limit: Any) -> str:
    if isinstance(limit, Length):
        pattern = f" matching {limit.pattern}" if limit.pattern else ""
        return f"of at most {limit.max_length}{pattern}"
    if isinstance(limit, Bound):
        names = {"ge": "at least", "gt": "greater than", "le": "at most", "lt": "less than"}
        given = {word: getattr(limit, key) for key, word in names.items() if getattr(limit, key) is not None}
        return " and ".join(f"{word} {value:g}" for word, value in given.items())
    return ""
