"""What all contracts share: limits that both sides enforce, and a reader that needs only `json`.

The front side passes the same classes to pydantic, which takes the limits from here. The worker reads with
`from_json_object`.
"""

from __future__ import annotations

import dataclasses
import math
import re
import types
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

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
    if not isinstance(data, dict):
        raise ValueError(f"{where or cls.__name__}: must be an object")
    hints = _hints(cls)  # type: ignore[arg-type]
    unknown = sorted(set(data) - set(hints))
    if unknown:
        raise ValueError(f"{_join(where, unknown[0])}: no such field; valid: {', '.join(hints)}")
    values = {name: _read(hints[name], item, _join(where, name)) for name, item in data.items()}
    try:
        return cls(**values)
    except TypeError as error:
        raise ValueError(f"{where or cls.__name__}: {error}") from None


@cache
def _hints(cls: type) -> dict[str, Any]:
    hints = get_type_hints(cls, include_extras=True)
    return {f.name: hints[f.name] for f in dataclasses.fields(cls)}


def _join(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def _read(hint: Any, data: Any, where: str) -> Any:
    origin = get_origin(hint)
    if origin is Annotated:
        inner, *limits = get_args(hint)
        value = _read(inner, data, where)
        for limit in limits:
            if fault := limit.fault(value):
                raise ValueError(f"{where}: {fault}")
        return value
    if origin in (Union, types.UnionType):
        return _read_union(get_args(hint), data, where)
    if origin is Literal:
        if data not in get_args(hint):
            raise ValueError(f"{where}: must be one of {', '.join(map(repr, get_args(hint)))}")
        return data
    if origin is tuple:
        _must_be(list, data, where)
        return tuple(_read(get_args(hint)[0], item, f"{where}[{i}]") for i, item in enumerate(data))
    if origin is dict:
        _must_be(dict, data, where)
        return {key: _read(get_args(hint)[1], item, _join(where, key)) for key, item in data.items()}
    if dataclasses.is_dataclass(hint):
        return from_json_object(hint, data, where)  # type: ignore[arg-type]
    return _read_scalar(hint, data, where)


def _read_union(options: tuple[Any, ...], data: Any, where: str) -> Any:
    if data is None and type(None) in options:
        return None
    fault = ValueError(f"{where}: no valid form")
    for option in options:
        if option is not type(None):
            try:
                return _read(option, data, where)
            except ValueError as error:
                fault = error
    raise fault


def _read_scalar(hint: Any, data: Any, where: str) -> Any:
    if hint is float and isinstance(data, int) and not isinstance(data, bool):
        try:
            data = float(data)
        except OverflowError:
            raise ValueError(f"{where}: must be finite") from None
    _must_be(hint, data, where)
    if hint is float and not math.isfinite(data):
        raise ValueError(f"{where}: must be finite")
    return data


def _must_be(kind: type, data: Any, where: str) -> None:
    if not isinstance(data, kind) or (isinstance(data, bool) and kind is not bool):
        raise ValueError(f"{where}: must be {kind.__name__}, not {type(data).__name__}")
