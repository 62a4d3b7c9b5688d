"""Turns untrusted text into contracts, or into an error that names each bad field and what is valid there.

The one place that knows pydantic. It knows the shape of contracts, not what their fields mean.
"""

from __future__ import annotations

import dataclasses
import json
import re
import stat
import tomllib
import types
from collections import Counter
from contextlib import suppress
from functools import cache
from typing import IO, TYPE_CHECKING, Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from steelyard import nofollow
from steelyard.contracts.base import Bound, Contract, Length, from_json_object
from steelyard.errors import SHOWN_PROBLEMS, InputError, Problem, nearest, refusal
from steelyard.inputs.places import InputFile, Where, bare
from steelyard.inputs.synonyms import number_in, value_for

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pydantic import TypeAdapter, ValidationError

T = TypeVar("T")

# Far above any real file: a spec has about 2 kB, a record of a 16,384-rank job on 4,096 nodes about 1 MB.
MAX_SPEC_BYTES = 1 << 20
MAX_RECORD_BYTES = 1 << 24
MAX_SHOWN_VALUE = 60
MAX_REASON = 160
LARGE = 10**6
SMALL = 1e-4
_KINDS: dict[Any, tuple[type, ...]] = {int: (int,), float: (int, float), str: (str,), tuple: (list,), dict: (dict,)}
_SWITCHES = {
    "1": "true",
    "yes": "true",
    "on": "true",
    "true": "true",
    "0": "false",
    "no": "false",
    "off": "false",
    "false": "false",
    "none": "false",
}
# Files of a folder that a missing file's name is compared with.
MAX_NEIGHBOURS = 1000
CLOSE_FILE = 0.75

# The time to read a dotted key grows with the square of its parts, and every part needs a kilobyte: a file of 1 MB
# would take hours and gigabytes. So parts are counted first, in one pass over what is not in a text or a comment.
MAX_KEY_PARTS = 32
MAX_ALL_PARTS = 20_000
# A list of values that are all wrong takes about a kilobyte for each.
MAX_VALUES = 100_000
MAX_DEPTH = 64
_TOML_TOKEN = re.compile(
    rb'''"""(?:[^"\\]|\\.|"(?!""))*+"{3,5}'''
    rb"""|'''(?:[^']|'(?!''))*+'{3,5}"""
    rb"""|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+'|\#[^\n]*+|[][{},=.\n"']""",
    re.DOTALL,
)

# The messages of checks that look at several fields: "field: what is wrong; valid: what would be right".
_OWN_MESSAGE = re.compile(
    r"^(?:Value error, )?(?P<field>[\w.]+): (?P<problem>.*); (?:valid: (?P<valid>.*)|did you mean (?P<near>.*)\?)$",
    re.DOTALL,
)
_TOML_PLACE = re.compile(r"(?P<problem>.*) \(at (?:line (?P<line>\d+), column \d+|end of document)\)", re.DOTALL)
# Slips in TOML that have one answer: text without quotes, and "key: value".
_NO_QUOTES = re.compile(r"\s*([\w.-]+)\s*=\s*([A-Za-z./][\w./:-]*)\s*(#.*)?")
_COLON = re.compile(r"\s*([\w.-]+)\s*:\s*(\S.*)")


# Importing pydantic and its learning a class take as long as reading 240 records of 10 kB plainly: 0.2 s.
FEW = 200
_read_plainly: Counter[type] = Counter()
_HALF_CHARACTER = re.compile(r"\\u[dD][89a-fA-F]")


@cache
def _adapter(cls: type) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter

    return TypeAdapter(cls)


def parse_json(cls: type[T], text: bytes | str, source: str | InputFile) -> T:
    """Return the contract in `text`, or raise InputError with every problem found."""
    if _read_plainly[cls] < FEW:
        _read_plainly[cls] += 1
        with suppress(ValueError, RecursionError):
            return from_json_object(cls, plain_json(text))
    from pydantic import ValidationError

    try:
        contract: T = _adapter(cls).validate_json(text)  # type: ignore[arg-type]
    except ValidationError as error:
        raise refusal(*_problems(cls, error, _document(source))) from None
    except (ValueError, RecursionError) as error:
        problem = Problem(_document(source).source or cls.__name__, f"not valid JSON: {str(error)[:MAX_REASON]}")
        raise refusal(problem) from None
    return contract


def plain_json(text: bytes | str) -> Any:
    """Parse JSON with the standard library; ValueError for what it takes and pydantic refuses."""
    if isinstance(text, bytes):
        text = text.decode("utf-8")
    elif not text.isascii():
        # Half a character has no UTF-8.
        text.encode("utf-8")
    if _HALF_CHARACTER.search(text):
        raise ValueError("may be half a character")
    return json.loads(text, parse_constant=_refuse, object_pairs_hook=_once)


def _refuse(word: str) -> Any:
    raise ValueError(f"{word} is not JSON")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) < len(pairs):
        raise ValueError("a name occurs twice")
    return entries


def parse_object(cls: type[T], data: Any, source: str | InputFile) -> T:
    """Do the same for data already parsed (TOML, options). It goes through JSON so that the same strict rules hold."""
    return parse_json(cls, to_json(data, source), source)


def to_json(data: Any, source: str | InputFile) -> str:
    """Return data as JSON; InputError names a value that JSON does not have."""
    document = _document(source)
    try:
        return json.dumps(data, allow_nan=True)
    except TypeError:
        where, value = _odd_value(data)
        number = number_in(str(value), str(where[-1])) if where else None
        near = "" if number is None else f"{number:g}"
        problem = "must be text, a number, true or false, a list or a table; dates and times need quotes"
        raise refusal(document.problem(where, problem, given=str(value)[:MAX_SHOWN_VALUE], near=near)) from None
    except (ValueError, RecursionError) as error:
        raise refusal(Problem(document.source or "the settings", str(error)[:MAX_REASON])) from None


def _odd_value(data: Any) -> tuple[Where, Any]:
    """Return the first value that JSON does not have, and its path."""
    inner = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in inner:
        if isinstance(value, dict | list):
            path, odd = _odd_value(value)
            if path:
                return (key, *path), odd
        elif not isinstance(value, str | int | float | None):
            return (key,), value
    return (), None


def find_problems(cls: type, data: Any, source: str | InputFile) -> tuple[Problem, ...]:
    """Return everything that is wrong with data; nothing when it is valid."""
    try:
        parse_object(cls, data, source)
    except InputError as error:
        return error.problems
    return ()


def parse_file(
    cls: type[T], path: Path, *, prepare: Callable[[dict[str, Any]], dict[str, Any]] | None = None, **more: Any
) -> T:
    """Read and check a TOML file; errors name its lines. `prepare` may rewrite the data before the check."""
    text = read_bounded(path, MAX_SPEC_BYTES)
    data = parse_toml(text, str(path))
    return parse_object(cls, prepare(data) if prepare else data, InputFile(str(path), text, **more))


def parse_toml(text: bytes, source: str) -> dict[str, Any]:
    """Return TOML as plain data."""
    if problem := _toml_excess(text):
        raise refusal(Problem(source, problem, "keys such as sim.noise.cv" if "key" in problem else ""))
    try:
        return tomllib.loads(text.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise refusal(_toml_problem(text, source, str(error) or "nested too deeply")) from None


def _toml_excess(text: bytes) -> str:
    """Return what is too much in a TOML file to read it; "" if nothing is."""
    parts, whole, values, depth, before = 1, 0, 0, 0, b"\n"
    for match in _TOML_TOKEN.finditer(text):
        token = match[0]
        if token == b".":
            parts += 1
            # Two parts may be a number.
            whole += parts > 2
            if parts > MAX_KEY_PARTS:
                return f"a key has more than {MAX_KEY_PARTS} parts"
        elif token in b"[]{},=\n":
            parts = 1
            # The header of a table.
            whole += token == b"[" and before == b"\n"
            values += token == b","
            depth += (token in b"[{") - (token in b"]}")
            if depth > MAX_DEPTH:
                return f"nested more than {MAX_DEPTH} deep"
        elif token in (b'"', b"'"):
            # A text without an end: nothing after it is read.
            break
        if whole > MAX_ALL_PARTS:
            return f"more than {MAX_ALL_PARTS:,} tables and parts of keys"
        if values > MAX_VALUES:
            return f"more than {MAX_VALUES:,} values in lists"
        before = token
    return ""


def _toml_problem(text: bytes, source: str, reason: str) -> Problem:
    place = _TOML_PLACE.fullmatch(reason)
    if place is None:
        return Problem(source, f"not valid TOML: {reason[:MAX_REASON]}", "TOML 1.0 in UTF-8")
    lines = text.decode("utf-8").split("\n")
    number = int(place["line"] or len(lines))
    line = lines[number - 1][:MAX_REASON].rstrip("\r")
    near = ""
    if slip := _NO_QUOTES.fullmatch(line) or _COLON.fullmatch(line):
        near = f"{slip[1]} = {_quoted(slip[2])}"
    reason = place["problem"].replace("Cannot overwrite a value", "the key is set twice")
    if reason.startswith("Illegal character '\\n'") and re.search(r"[\"']", line):
        reason = "the quote is not closed"
    return Problem(f"{source}:{number}", f"not valid TOML: {reason[:MAX_REASON]}", near=near)


def _quoted(value: str) -> str:
    """Return a value as TOML writes it, if it is a bare word."""
    if value.lower() in ("true", "false"):
        return value.lower()
    return json.dumps(value) if re.fullmatch(r"[A-Za-z./][\w./:-]*", value) else value


def read_bounded(path: Path, limit: int) -> bytes:
    """Read an untrusted file; refuse one that is larger than any real one."""
    try:
        mode = path.stat().st_mode
    except OSError:
        # Opening it gives the error.
        mode = stat.S_IFREG
    if stat.S_ISDIR(mode):
        raise refusal(Problem(str(path), "is a folder, not a file"))
    if not stat.S_ISREG(mode):
        raise refusal(Problem(str(path), "is not a regular file"))
    return _read(path, limit, lambda: path.open("rb"))


def read_inside(path: Path, limit: int) -> bytes:
    """Do the same for a file below a results folder, which is not reached through a link."""
    return _read(path, limit, lambda: nofollow.open_file(path))


def _read(path: Path, limit: int, opened: Callable[[], IO[bytes]]) -> bytes:
    try:
        with opened() as file:
            text = file.read(limit + 1)
    except FileNotFoundError:
        raise missing_file(path) from None
    except OSError as error:
        raise refusal(Problem(str(path), f"cannot be read: {error.strerror}")) from None
    if len(text) > limit:
        raise refusal(Problem(str(path), f"is larger than {limit:,} bytes, the limit for such a file"))
    return text


def missing_file(path: Path) -> InputError:
    """Return the error for a file that does not exist, with the name beside it that is closest."""
    for part in reversed((path, *path.parents)):
        if not part.exists():
            what = "no such file" if part == path else f"no folder {part}"
            near = near_file(part)
            return refusal(Problem(str(path), what, near=f"{near}{str(path)[len(str(part)) :]}" if near else ""))
    return refusal(Problem(str(path), "no such file"))


def near_file(path: Path) -> str:
    """Return the path beside a missing one whose name is closest, as far as the folder can be read."""
    try:
        names = [entry.name for _, entry in zip(range(MAX_NEIGHBOURS), path.parent.iterdir(), strict=False)]
    except OSError:
        return ""
    # A name without its ending is the most common slip; endings that are the same say nothing.
    near = next((name for name in names if name == f"{path.name}.toml"), "")
    alike = [name.removesuffix(path.suffix) for name in names if name.endswith(path.suffix)] if path.suffix else []
    near = near or (
        stem + path.suffix if (stem := nearest(path.stem, alike)) else nearest(path.name, names, CLOSE_FILE)
    )
    return str(path.with_name(near)) if near else ""


def json_schema(cls: type) -> dict[str, Any]:
    """Return the contract as JSON Schema, for other tools, with the docstrings of its fields."""
    from pydantic import TypeAdapter

    config = Contract.__pydantic_config__
    # Only here: finding the docstrings in the source takes longer than reading many records.
    config["use_attribute_docstrings"] = True
    try:
        return TypeAdapter(cls).json_schema()
    finally:
        del config["use_attribute_docstrings"]


def _document(source: str | InputFile) -> InputFile:
    return source if isinstance(source, InputFile) else InputFile(source)


def _problems(cls: type, error: ValidationError, document: InputFile) -> list[Problem]:
    problems: dict[Any, Problem] = {}
    entries = error.errors(include_url=False, include_context=False)
    for entry in entries[: SHOWN_PROBLEMS + 1]:
        hint, where = _hint_at(cls, entry["loc"])
        own = _OWN_MESSAGE.match(entry["msg"])
        if own:
            place = (*where, *own["field"].split("."))
            problems[place] = document.problem(place, own["problem"], valid=own["valid"] or "", near=own["near"] or "")
        elif entry["type"] == "unexpected_keyword_argument":
            problems[where] = document.unknown(cls, where, entry.get("input"))
        elif entry["type"] == "missing":
            problems[where] = document.problem(where, "missing", valid=describe(hint))
        elif entry["type"] == "json_invalid":
            problem = f"not valid JSON: {entry['msg'].removeprefix('Invalid JSON: ')[:MAX_REASON]}"
            problems[where] = Problem(document.source or cls.__name__, problem)
        elif entry["loc"][-1:] == ("[key]",):
            problems[where] = _bad_key(document, where, hint)
        else:
            # One value may have several entries: one for each form that is allowed.
            problems.setdefault(where, _bad_value(document, where, hint, entry))
    # A misspelt field is not missing as well.
    meant = {(*where[:-1], problem.near) for where, problem in problems.items() if problem.near}
    return [problem for where, problem in problems.items() if problem.problem != "missing" or where not in meant]


def _bad_key(document: InputFile, where: Where, hint: Any) -> Problem:
    name, table = str(where[-1]), str(where[-2]) if len(where) > 1 else ""
    near = value_for(name, table) or _near_value(name, hint, table)
    return document.problem(where, f"the name must be {describe(hint)}", near=near)


def _bad_value(document: InputFile, where: Where, hint: Any, entry: Any) -> Problem:
    value = entry.get("input")
    field = str(next((part for part in reversed(where) if isinstance(part, str)), ""))
    fault = "must be a finite number" if entry["type"] == "finite_number" else _fault(value, hint)
    problem = fault or f"must be {describe(hint)}"
    if not where:
        return document.problem(where, problem)
    near = "" if fault else _near_value(value, hint, field)
    return document.problem(where, problem, given=show_value(value), near=near)


def show_value(value: Any) -> str:
    """Return a value as TOML and JSON write it, cut off where it is long."""
    try:
        shown = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        shown = str(value)
    return shown if len(shown) <= MAX_SHOWN_VALUE else shown[: MAX_SHOWN_VALUE - 3] + "..."


def _fault(value: Any, hint: Any) -> str | None:
    """Return which limit a value breaks; None when its type is wrong."""
    for option in _options(hint):
        if get_origin(option) is Annotated:
            inner, *limits = get_args(option)
            kinds = _KINDS.get(get_origin(inner) or inner, ())
            if not isinstance(value, bool) and isinstance(value, kinds):
                return next((fault for limit in limits if (fault := limit.fault(value))), None)
    return None


def _near_value(value: Any, hint: Any, field: str) -> str:
    """Return how the value was most likely meant to be written; "" when that is not clear."""
    return next(filter(None, (_near_form(value, option, field) for option in _options(hint))), "")


def _near_form(value: Any, hint: Any, field: str) -> str:
    inner, *limits = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    if get_origin(inner) is Literal:
        return _near_word(value, [word for word in get_args(inner) if isinstance(word, str)], field)
    if inner is bool:
        return _SWITCHES.get(str(value)[:8].lower(), "")
    if get_origin(inner) is tuple:
        if isinstance(value, dict):
            return f'"{field}.{_first_path(value)}", in quotes' if value else ""
        return f"[{show_value(value)}]"
    if inner in (int, float):
        number = _near_number(value, inner, field)
        if number is None or any(limit.fault(number) for limit in limits):
            return ""
        return f"{number:g}" if isinstance(number, float) and abs(number) >= SMALL else str(number)
    if inner is str and type(value) in (int, float) and not any(limit.fault(str(value)) for limit in limits):
        return f'"{value}"'
    return ""


def _near_word(value: Any, words: list[str], field: str) -> str:
    text = show_value(value).strip('"')
    near = value_for(text, field) or (nearest(text, words) if isinstance(value, str) else "")
    return near if near in words else ""


def _first_path(table: dict[str, Any]) -> str:
    """Return the first dotted key of a nested table."""
    key, inner = next(iter(table.items()))
    return f"{key}.{_first_path(inner)}" if isinstance(inner, dict) and inner else str(key)[:MAX_SHOWN_VALUE]


def _near_number(value: Any, kind: type, field: str) -> float | None:
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    number = number_in(value, field) if isinstance(value, str) else value
    if number is None or kind is float:
        return number
    return int(number) if number == number // 1 else None


def _options(hint: Any) -> list[Any]:
    """Return the forms that a type allows, but None."""
    if get_origin(hint) in (Union, types.UnionType):
        return [option for option in get_args(hint) if option is not type(None)]
    return [hint]


def _hint_at(hint: Any, where: Where) -> tuple[Any, Where]:
    """Return the declared type at a path of an error, and the path as far as it can be followed.

    pydantic adds the names of types to the paths of values that may have several.
    """
    for depth, part in enumerate(where):
        inner = bare(hint)
        if dataclasses.is_dataclass(inner):
            # An unknown field is the last part of its path.
            hint = _hints(inner).get(str(part))  # type: ignore[arg-type]
        elif get_origin(inner) is tuple and isinstance(part, int):
            hint = get_args(inner)[0]
        elif get_origin(inner) is dict:
            is_key = where[depth + 1 :] == ("[key]",)
            hint = get_args(inner)[0 if is_key else 1]
            if is_key:
                return hint, where[: depth + 1]
        else:
            return hint, where[:depth]
    return hint, where


@cache
def _hints(cls: type) -> dict[str, Any]:
    return get_type_hints(cls, include_extras=True)


def describe(hint: Any) -> str:
    """Describe the valid values of a type."""
    origin = get_origin(hint)
    if origin is Annotated:
        inner, *limits = get_args(hint)
        return " ".join([describe(inner), *(_describe_limit(limit) for limit in limits)]).strip()
    if origin in (Union, types.UnionType):
        return _either([describe(option) for option in _options(hint)])
    if origin is Literal:
        return _either([str(word) for word in get_args(hint)])
    if origin is tuple:
        inner = get_args(hint)[0]
        return "a list" if inner is Any else f"a list, each entry {describe(inner)}"
    if origin is dict:
        inner = get_args(hint)[1]
        return "a table" if inner is Any else f"a table, each entry {describe(inner)}"
    if dataclasses.is_dataclass(hint):
        return "a table with " + ", ".join(f.name for f in dataclasses.fields(hint))
    words = {int: "an integer", float: "a number", str: "text in quotes", bool: "true or false"}
    return words.get(hint, "another value")


def _either(words: list[str]) -> str:
    return " or ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def _describe_limit(limit: Any) -> str:
    if isinstance(limit, Length):
        return f"({limit.form})" if limit.form else "" if limit.pattern is None else f"matching {limit.pattern}"
    if isinstance(limit, Bound):
        if limit.ge is not None and limit.le is not None and limit.le < LARGE:
            return f"from {limit.ge:,} to {limit.le:,}"
        names = {"ge": "of at least", "gt": "greater than", "le": "of at most", "lt": "less than"}
        # Upper limits that no real value reaches are left out.
        given = {
            word: value
            for key, word in names.items()
            if (value := getattr(limit, key)) is not None and abs(value) < LARGE
        }
        return " and ".join(f"{word} {value:g}" for word, value in given.items())
    return ""
