"""Where fields belong in a file: the tables of a contract, and what to say about a field that is in none of them."""

from __future__ import annotations

import dataclasses
import types
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from steelyard.errors import Problem, nearest
from steelyard.inputs.toml_lines import line_of

HOLDS = "holds"
"""Metadata of a field with free settings: the contract that they are checked against later."""
HIDES = "hides"
"""Metadata beside HOLDS: fields of that contract that the user does not set."""
NAMED = "NAME"
"""Stands for the name that the user gives a table, as in [pools.NAME]."""
# A match in another table must be closer than one in the same table.
VERY_CLOSE = 0.8
CLOSE_ELSEWHERE = 0.85
MAX_PATH = 120
SCHEMAS = {"Study": "study", "RunSpec": "run-spec", "Suite": "suite", "Recipe": "recipe", "Site": "site"}
"""Contracts, with the name under which `steelyard explain` prints all their fields."""

Where = tuple[int | str, ...]


@dataclass(frozen=True)
class InputFile:
    """A file, or another source of settings: how to name a place in it."""

    source: str = ""
    text: bytes = b""
    """The TOML text, for line numbers."""
    root: type | None = None
    """The contract of the whole file, if what is read is a part of it."""
    at: tuple[str, ...] = ()
    """Where that part is."""
    synonyms: dict[str, str] = dataclasses.field(default_factory=dict)
    """Other tools' names for fields."""

    def problem(self, where: Where, problem: str, **more: Any) -> Problem:
        """Return a problem with this place."""
        path = (*self.at, *where)
        line = line_of(self.text, path) if self.text else None
        return Problem(dotted(path) or "(whole file)", problem, file=self.source, line=line, **more)

    def unknown(self, cls: type, where: Where, value: Any) -> Problem:
        """Return the problem of a field that does not exist there: the right name or the right table."""
        table = tuple(part for part in (*self.at, *where[:-1]) if isinstance(part, str))
        name = str(where[-1])
        tables = tables_of(self.root or cls)
        generic = _generic(table, tables)
        here = tables.get(generic, ())
        others = [path for path, fields in tables.items() if path != generic and name in fields]
        if "sim" not in generic and all("sim" in path for path in others) and nearest(name, here, VERY_CLOSE):
            # Rather a slip than a setting of a simulated device.
            others = []
        # A table is not what other tools have a value for.
        other = self.synonyms.get(name.casefold().replace("-", "_"), "") if not isinstance(value, dict) else ""
        if others and not (other and tuple(other.split(".")[:-1]) == generic):
            return self.misplaced(where, (*_plainest(others), name))
        if other and " " in other and "=" not in other:
            return self.problem(where, f"no such field; {other}")
        near = self.write_name(other, generic) if other else nearest(name, here)
        if not near:
            known = {entry: path for path, fields in tables.items() for entry in fields}
            elsewhere = nearest(name, known, CLOSE_ELSEWHERE)
            near = self.write_name(".".join((*known[elsewhere], elsewhere)), generic) if elsewhere else ""
        schema = "run-spec" if generic == ("run",) else SCHEMAS.get((self.root or cls).__name__)
        listed = f"steelyard explain {schema}" if schema else ""
        return self.problem(where, "no such field", valid=", ".join(here), near=near, listed=listed)

    def misplaced(self, where: Where, path: tuple[str, ...]) -> Problem:
        """Return the problem of a field that belongs in another table."""
        *table, _ = path
        place = f"in [{'.'.join(table)}]" if table else "at the top of the file, before the first [table]"
        return self.problem(where, f"belongs {place}")

    def write_name(self, path: str, table: tuple[str, ...]) -> str:
        """Return how to write a field: its name if it is in the same table, or else its whole path."""
        start = "".join(f"{part}." for part in table)
        return path.removeprefix(start) if path.startswith(start) else path


def dotted(path: Where) -> str:
    """Return a path as a user would write it."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text.lstrip(".")[:MAX_PATH]


@cache
def tables_of(cls: type) -> dict[tuple[str, ...], tuple[str, ...]]:
    """Return the fields of every table of a contract."""
    tables: dict[tuple[str, ...], tuple[str, ...]] = {}
    _collect(cls, (), tables)
    return tables


def _collect(
    cls: Any, path: tuple[str, ...], tables: dict[tuple[str, ...], tuple[str, ...]], hides: tuple[str, ...] = ()
) -> None:
    fields = [entry for entry in dataclasses.fields(cls) if entry.name not in hides]
    tables[path] = tuple(entry.name for entry in fields)
    hints = get_type_hints(cls, include_extras=True)
    for entry in fields:
        inner = entry.metadata.get(HOLDS) or bare(hints[entry.name])
        place = (*path, entry.name)
        if get_origin(inner) is tuple:
            inner = bare(get_args(inner)[0])
        elif get_origin(inner) is dict:
            inner, place = bare(get_args(inner)[1]), (*place, NAMED)
        if dataclasses.is_dataclass(inner):
            _collect(inner, place, tables, entry.metadata.get(HIDES, ()))


def bare(hint: Any) -> Any:
    """Return a type without limits and without None."""
    if get_origin(hint) is Annotated:
        return bare(get_args(hint)[0])
    if get_origin(hint) in (Union, types.UnionType):
        options = [option for option in get_args(hint) if option is not type(None)]
        return bare(options[0]) if len(options) == 1 else hint
    return hint


def _generic(table: tuple[str, ...], tables: dict[tuple[str, ...], tuple[str, ...]]) -> tuple[str, ...]:
    """Return the table with NAME instead of names that the user gave."""
    path: tuple[str, ...] = ()
    for part in table:
        path = (*path, part) if (*path, part) in tables or (*path, part, NAMED) in tables else (*path, NAMED)
    return path


def _plainest(paths: list[tuple[str, ...]]) -> tuple[str, ...]:
    """Return the least deep table; settings of simulated devices come last."""
    return min(paths, key=lambda path: ("sim" in path, len(path)))
