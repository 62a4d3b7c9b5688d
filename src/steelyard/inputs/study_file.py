"""The text of a new study file: from a template, or from a part of a suite."""

from __future__ import annotations

import itertools
import json
import re
import shlex
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steelyard.contracts.base import NAME_PATTERN
from steelyard.errors import InputError, Problem, printable
from steelyard.inputs.study import by_dotted_name
from steelyard.inputs.suite import Choice, applies, data_formats, expand_part, plan_part, study_name
from steelyard.inputs.templates import template

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from steelyard.contracts.spec import RunSpec
    from steelyard.inputs.suite import Part, Size, SuiteFolder

COLUMNS = 110
USE = """#
#   steelyard study FILE --dry-run    what it would run, and what that costs
#   steelyard study FILE              run it; the same command continues it
#   steelyard show STUDY              its table
"""
COMMAND = re.compile(r"^(#   steelyard .*?)  +(.*)$", re.MULTILINE)

Row = dict[str, str]
"""The settings of a configuration that differ between configurations, as TOML."""


def from_template(kind: str, file: Path) -> str:
    """Return the study file of a template, with the names of its file and of its study."""
    return _named(template("studies", kind), file, study_name_of(file) or kind)


def _named(text: str, file: Path, name: str) -> str:
    """Write the names of a file and of its study into a text, and what its commands do in one column."""
    names = {"FILE": printable(shlex.quote(str(file))), "STUDY": name}
    text = re.sub(r"\b(?:FILE|STUDY)\b", lambda match: names[match[0]], text)
    width = max(len(match[1]) for match in COMMAND.finditer(text))
    return COMMAND.sub(lambda match: f"{match[1]:<{width}}    {match[2]}", text)


def from_suite(folder: SuiteFolder, part: Part, size: Size, file: Path) -> str:
    """Return the study file of a part of a suite: the same configurations, with where each setting comes from."""
    suite, choice = folder.suite, choice_of(folder, part, size)
    expansion = expand_part(folder, part, choice)
    planned = plan_part(suite, part, choice)
    rows = [_as_toml(entry.run) for entry in planned]
    keys = list(dict.fromkeys(key for row in rows for key in row))
    shared = {key: rows[0][key] for key in keys if all(row.get(key) == rows[0].get(key) for row in rows)}
    sweep, cases = _factors([{key: value for key, value in row.items() if key not in shared} for row in rows])
    name = study_name_of(file) or study_name(suite, part, choice.size)
    lines = textwrap.wrap(f"{suite.title}: {part.title}, size {choice.size}.", COLUMNS)
    lines = [*(f"# {line}" for line in lines), _named(USE, file, name)]
    lines += [f'name = "{name}"', f"seed = {expansion.study.seed}", f"repeats = {expansion.study.repeats}"]
    sources = _Sources(folder, part, choice, [cell.spec for cell in expansion.cells])
    lines += ["", "[run]"]
    for key, value in shared.items():
        needed = ["# the folder of the data set, which an evaluation needs"] if key == "data.path" else []
        lines += [*sources.lines(key), *needed, f"{key} = {value}"]
    formats = sorted({entry.data for entry in planned if entry.data and "data" not in entry.run})
    lines += [f'# data = "{each}:/path/to/{each}"    # of the document; without it synthetic data' for each in formats]
    for case in cases:
        lines += ["", "[[case]]", *(f"{_quoted(key)} = {value}" for key, value in case.items())]
    if sweep:
        lines += ["", f"[sweep]    # every combination is run{', with each case' if cases else ''}"]
        lines += [f"{_quoted(key)} = [{', '.join(values)}]" for key, values in sweep.items()]
    return "\n".join(lines) + "\n"


class _Sources:
    """Where the settings of a part come from: a document states them, or they were chosen."""

    def __init__(self, folder: SuiteFolder, part: Part, choice: Choice, specs: Sequence[RunSpec]) -> None:
        self._left = [entry for entry in folder.setting_sources() if applies(entry, choice.size, {part.name: specs})]

    def lines(self, key: str) -> list[str]:
        """Return a comment above a setting; nothing if it was said above another one."""
        entry = next((each for each in self._left if each.name in (key, f"{key.partition('.')[0]}.*")), None)
        if entry is None:
            return []
        self._left.remove(entry)
        said = f"stated in {entry.stated}" if entry.stated else entry.why
        return [f"# {line}" for line in textwrap.wrap(" ".join(said.split()), COLUMNS)]


def choice_of(folder: SuiteFolder, part: Part, size: Size) -> Choice:
    """Return the choice for a part: with synthetic data, or with folders to fill in if it cannot do without."""
    choice = Choice(size)
    if any("quality" in entry.run for entry in plan_part(folder.suite, part, choice)):
        return Choice(size, data={name: Path("/path/to") / name for name in data_formats(folder.suite, part)})
    return choice


def study_name_of(file: Path) -> str:
    """Return the name of a file as that of a study; empty if a study cannot be called so."""
    return file.stem if re.fullmatch(NAME_PATTERN, file.stem) else ""


def part_named(folder: SuiteFolder, name: str | None) -> Part:
    """Return a part of a suite; without a name the only one."""
    parts = folder.suite.part
    if name is None and len(parts) > 1:
        problem = Problem("--part", "missing", ", ".join(part.name for part in parts))
        again = f"steelyard study new --from-suite {folder.suite.name} --part {parts[0].name}"
        raise InputError("a study file is one part of a suite", problems=(problem,), next_step=again)
    return folder.part(name or parts[0].name)


def _as_toml(settings: dict[str, Any]) -> Row:
    # A list of scalars, a number, a text or a truth value is the same in JSON and TOML.
    return {key: json.dumps(value, ensure_ascii=False) for key, value in by_dotted_name(settings).items()}


def _factors(rows: Sequence[Row]) -> tuple[dict[str, list[str]], list[Row]]:
    """Return what is swept independently of the rest, and the cases that remain."""
    sweep: dict[str, list[str]] = {}
    left = list(rows)
    for key in list(dict.fromkeys(key for row in rows for key in row)):
        if any(key not in row for row in left):
            continue
        values = list(dict.fromkeys(row[key] for row in left))
        others = _unique({name: value for name, value in row.items() if name != key} for row in left)
        combined = [{**other, key: value} for other, value in itertools.product(others, values)]
        if len(combined) == len(left) and all(row in left for row in combined):
            sweep[key], left = values, others
    return sweep, [row for row in left if row]


def _unique(rows: Iterable[Row]) -> list[Row]:
    unique: list[Row] = []
    for row in rows:
        if row not in unique:
            unique.append(row)
    return unique


def _quoted(key: str) -> str:
    """Return a setting as the key of a sweep or a case, where dots are a part of the name."""
    return f'"{key}"' if "." in key else key
