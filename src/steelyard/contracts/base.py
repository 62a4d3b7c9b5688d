"""What all contracts share: limits that both sides enforce, and a reader that needs only the standard library.

`from_json_object` reads what the worker needs, and the few files of a short command. `inputs.validate` passes the same
classes to pydantic, which takes the limits from here: it reads many files faster, and finds every problem of one.
"""

from __future__ import annotations

import dataclasses
import math
import re
import types
from dataclasses import dataclass
from functools import cache
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Literal,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    Reader = Callable[[Any], Any]

T = TypeVar("T")
_fields = cache(dataclasses.fields)


class Contract:
    """Base of every contract. Unknown fields, wrong types and non-finite numbers are refused."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {
        "extra": "forbid",
        "strict": True,
        "allow_inf_nan": False,
    }


class _Limit:
    """Base of the limits: adds them to the schema that pydantic builds for the type."""

    _keys: ClassVar[tuple[str, ...]]

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        schema = dict(handler(source))
        schema.update({key: getattr(self, key) for key in self._keys if getattr(self, key) is not None})
        return schema


@dataclass(frozen=True)
class Bound(_Limit):
    """Limits of a number."""

    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    lt: float | None = None
    _keys: ClassVar[tuple[str, ...]] = ("ge", "gt", "le", "lt")

    def fault(self, value: float) -> str | None:
        """Return what is wrong with `value`, or None."""
        if self.ge is not None and value < self.ge:
            return f"must be at least {self.ge:,}"
        if self.gt is not None and value <= self.gt:
            return f"must be greater than {self.gt:,}"
        if self.le is not None and value > self.le:
            return f"must be at most {self.le:,}"
        if self.lt is not None and value >= self.lt:
            return f"must be less than {self.lt:,}"
        return None


@dataclass(frozen=True)
class Length(_Limit):
    """Limits of a text or list. The files are untrusted, so every text and list has a largest length."""

    max_length: int
    pattern: str | None = None
    form: str = ""
    """What the pattern allows."""
    _keys: ClassVar[tuple[str, ...]] = ("max_length", "pattern")

    def fault(self, value: Any) -> str | None:
        """Return what is wrong with `value`, or None."""
        if len(value) > self.max_length:
            return f"must have at most {self.max_length} {'characters' if isinstance(value, str) else 'entries'}"
        if self.pattern is not None and not re.fullmatch(self.pattern, value):
            return f"must consist of {self.form}" if self.form else f"must match {self.pattern}"
        return None


# Names become directory names: no separators, no leading dot or dash, nothing a shell or a terminal interprets.
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_.-]*$"
Name = Annotated[str, Length(80, NAME_PATTERN, "letters, digits, '_', '.' and '-'")]
Text = Annotated[str, Length(4000)]
Share = Annotated[float, Bound(ge=0, le=1)]
Positive = Annotated[float, Bound(gt=0, le=1e18)]
NotNegative = Annotated[float, Bound(ge=0, le=1e18)]
Time = Annotated[float, Bound(ge=-1e15, le=1e15)]
"""Seconds on some clock."""
Count = Annotated[int, Bound(ge=0, le=10**15)]
AtLeastOne = Annotated[int, Bound(ge=1, le=10**15)]


def to_json_object(value: Any) -> Any:
    """Return the contract as nested dicts and lists, ready for `json.dumps`."""
    if value is None or isinstance(value, (str, int, float)):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_json_object(getattr(value, f.name)) for f in _fields(type(value))}
    if isinstance(value, dict):
        return {key: to_json_object(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json_object(item) for item in value]
    return value


def finite_json(value: Any) -> Any:
    """Return data for JSON with null for what JSON does not have: infinite ends of intervals, and not-a-number."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite_json(item) for key, item in value.items()}
    return [finite_json(item) for item in value] if isinstance(value, (list, tuple)) else value


def from_json_object(cls: type[T], data: Any, where: str = "") -> T:
    """Build a contract from parsed JSON with the standard library alone; ValueError names the first bad field."""
    try:
        made: T = _object(cls)(data)  # type: ignore[arg-type]
    except _FaultError as fault:
        raise ValueError(f"{fault.place(where) or cls.__name__}: {fault.what}") from None
    return made


class _FaultError(Exception):
    """What is wrong with a value. The readers around it add its place, from the inside out."""

    def __init__(self, what: str, *inside: str) -> None:
        super().__init__(what)
        self.what = what
        self.inside = [*reversed(inside)]

    def place(self, where: str) -> str:
        """Return the path to the value: a.b[3].c."""
        for part in reversed(self.inside):
            where += part if part.startswith("[") or not where else f".{part}"
        return where


# The readers of a type are made once, from its annotations: a record has thousands of values.


@cache
def _reader(hint: Any) -> Reader:
    """Return the function that checks and returns a value of this type; it raises _FaultError."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _limited(_reader(inner[0]), inner[1:])
    if origin in (Union, types.UnionType):
        return _one_of(inner)
    if origin is Literal:
        return _word(inner)
    if origin is tuple:
        return _list(_reader(inner[0]))
    if origin is dict:
        return _table(_reader(inner[0]), _reader(inner[1]))
    if dataclasses.is_dataclass(hint):
        return _object(hint)  # type: ignore[arg-type]
    return _anything if hint is Any else _number if hint is float else _scalar(hint)


@cache
def _object(cls: type) -> Reader:
    names = [f.name for f in dataclasses.fields(cls)]
    hints = get_type_hints(cls, include_extras=True)
    readers: dict[str, Reader] = {}

    def read(data: Any) -> Any:
        _must_be(dict, data, "an object")
        if not readers:
            # Only now: a contract may hold others of its own kind.
            readers.update({name: _reader(hints[name]) for name in names})
        if unknown := sorted(data.keys() - readers.keys()):
            raise _FaultError(f"no such field; valid: {', '.join(names)}", unknown[0])
        values, name = {}, ""
        try:
            for name, item in data.items():
                values[name] = readers[name](item)
        except _FaultError as fault:
            fault.inside.append(name)
            raise
        try:
            return cls(**values)
        except TypeError as error:
            raise _FaultError(str(error)) from None
        except ValueError as error:
            # A check of several fields names one of them first.
            field, colon, what = str(error).partition(": ")
            raise (_FaultError(what, field) if colon else _FaultError(str(error))) from None

    return read


def _limited(read: Reader, limits: tuple[Any, ...]) -> Reader:
    def limited(data: Any) -> Any:
        value = read(data)
        for limit in limits:
            if fault := limit.fault(value):
                raise _FaultError(fault)
        return value

    return limited


def _word(words: tuple[Any, ...]) -> Reader:
    def read(data: Any) -> Any:
        # 1 is equal to True and to 1.0.
        if not any(data == word and type(data) is type(word) for word in words):
            raise _FaultError(f"must be one of {', '.join(map(str, words))}")
        return data

    return read


def _list(read: Reader) -> Reader:
    def read_list(data: Any) -> Any:
        _must_be(list, data)
        values, place = {}, 0
        try:
            for place, item in enumerate(data):
                values[place] = read(item)
        except _FaultError as fault:
            fault.inside.append(f"[{place}]")
            raise
        return tuple(values.values())

    return read_list


def _table(read_key: Reader, read: Reader) -> Reader:
    def read_table(data: Any) -> Any:
        _must_be(dict, data)
        values, key = {}, ""
        try:
            for key, item in data.items():
                values[read_key(key)] = read(item)
        except _FaultError as fault:
            fault.inside.append(key)
            raise
        return values

    return read_table


def _one_of(options: tuple[Any, ...]) -> Reader:
    """Read the form whose type the value has: 1 is a whole number, also where it could be any number."""
    readers = [(_kind(option), _reader(option)) for option in options if option is not type(None)]
    may_be_missing = len(readers) < len(options)

    def read(data: Any) -> Any:
        if data is None and may_be_missing:
            return None
        first: _FaultError | None = None
        for _, reader in sorted(readers, key=lambda entry: entry[0] is not type(data)):
            try:
                return reader(data)
            except _FaultError as fault:  # noqa: PERF203
                first = first or fault
        raise first or _FaultError("no valid form")

    def read_one(data: Any) -> Any:
        return None if data is None else readers[0][1](data)

    return read_one if may_be_missing and len(readers) == 1 else read


def _kind(hint: Any) -> Any:
    """Return the type that parsed JSON has for a hint."""
    if get_origin(hint) is Annotated:
        return _kind(get_args(hint)[0])
    return list if get_origin(hint) is tuple else hint


def _anything(data: Any) -> Any:
    return data


def _number(data: Any) -> float:
    if type(data) is int:
        try:
            data = float(data)
        except OverflowError:
            raise _FaultError("must be finite") from None
    _must_be(float, data)
    if not math.isfinite(data):
        raise _FaultError("must be finite")
    return data  # type: ignore[no-any-return]


def _scalar(kind: type) -> Reader:
    def read(data: Any) -> Any:
        _must_be(kind, data)
        return data

    return read


def _must_be(kind: type, data: Any, what: str = "") -> None:
    if not isinstance(data, kind) or (kind is not bool and isinstance(data, bool)):
        raise _FaultError(f"must be {what}" if what else f"must be {kind.__name__}, not {type(data).__name__}")
