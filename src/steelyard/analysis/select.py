"""Select configurations by text: a study, a configuration, settings, or one run."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, TypeVar

from steelyard.analysis.rows import row_of
from steelyard.analysis.summary import CellSummary, summarise
from steelyard.contracts.base import to_json_object
from steelyard.errors import InputError, Problem, nearest, refusal
from steelyard.inputs.synonyms import setting_for
from steelyard.numbers import natural_order
from steelyard.rules.table.settings import SETTINGS

if TYPE_CHECKING:
    from steelyard.results.store import ResultFolder

FORMS = "STUDY, STUDY/CONFIGURATION, STUDY:key=value,key=value, or a run id"
T = TypeVar("T")
SHOWN_VALUES = 12
MAX_TEXT = 2000


def select(folder: ResultFolder, text: str) -> list[CellSummary]:
    """Return the configurations that a text selects, at least one; InputError lists the alternatives.

    `STUDY`, `STUDY/CONFIGURATION`, `STUDY:key=value,key=value`, or a run id. A key is a setting of a row (`precision`,
    `devices`) or the dotted name of a spec field (`batch`, `model.layers`, `sim.step_time_s`).
    """
    if len(text) > MAX_TEXT:
        problem = _problem(text[:40], "too long")
        raise InputError(f"the selection has {len(text)} characters", problems=(problem,))
    studies = folder.studies()
    if not studies:
        raise folder.empty("steelyard run sim --repeats 3")
    name, colon, wanted = text.partition(":")
    if colon:
        cells = summarise(folder.records(_known(name, studies, folder)))
        return narrow([(cell, all_settings(cell)) for cell in cells], name, wanted)
    if text in studies:
        cells = summarise(folder.records(text))
        if not cells:
            raise InputError("nothing selected", problems=(_problem(text, "the study has no finished run yet"),))
        return cells
    study, slash, cell = text.partition("/")
    if slash:
        return _by_name(summarise(folder.records(_known(study, studies, folder))), study, cell)
    runs = folder.find(text)
    if len(runs) == 1:
        return summarise([folder.read(runs[0])])
    if runs:
        several = ", ".join(path.parent.name for path in runs)
        raise InputError(
            f'several studies have a run "{text}": {several}', next_step=f"use {runs[0].parent.name}/CONFIGURATION"
        )
    _known(text, studies, folder)
    raise AssertionError("unreachable: a known study was handled before")


def _known(study: str, studies: list[str], folder: ResultFolder) -> str:
    if study in studies:
        return study
    raise folder.unknown(study)


def _by_name(cells: list[CellSummary], study: str, name: str) -> list[CellSummary]:
    """Select by the whole name, or by an unambiguous prefix."""
    exact = [cell for cell in cells if cell.name == name]
    matches = exact or [cell for cell in cells if name and cell.name.startswith(name)]
    if len(matches) == 1:
        return matches
    word = f"{len(matches)} configurations begin with it" if matches else "no such configuration"
    problem = _problem(f"{study}/{name}", f"{word}; configurations: {_few([cell.name for cell in cells])}")
    raise InputError("nothing selected", problems=(problem,))


def narrow(entries: list[tuple[T, dict[str, Any]]], name: str, text: str) -> list[T]:
    """Select the entries with all of `key=value,key=value`, at least one; InputError lists the available values."""
    left = entries
    for part in text.split(","):
        key, equals, value = part.strip().partition("=")
        if not equals or not key:
            raise InputError("nothing selected", problems=(_problem(f"{name}:{text}", f'"{part}" is not key=value'),))
        _require_key(key, name, entries)
        kept = [(entry, settings) for entry, settings in left if key in settings and same(settings[key], value)]
        if not kept:
            there = sorted({str(settings[key]) for _, settings in left if key in settings}, key=natural_order)
            problem = _problem(f"{name}:{part}", f"no match; {key} is {_few(there) or 'unknown'}")
            raise InputError("nothing selected", problems=(problem,))
        left = kept
    return [entry for entry, _ in left]


def _require_key(key: str, name: str, entries: list[tuple[T, dict[str, Any]]]) -> None:
    known = sorted({setting for _, settings in entries for setting in settings})
    if key not in known:
        # Specs have many names; people compare by those of rows.
        some = [setting for setting in known if setting in SETTINGS]
        near = setting_for(key, known) or nearest(key, known)
        listed = "steelyard explain settings"
        raise refusal(Problem(f"{name}:{key}", "no such setting", ", ".join(some), near=near, listed=listed))


def all_settings(cell: CellSummary) -> dict[str, Any]:
    """Return the settings of a configuration by all of their names: requested in the spec, and as rows name them."""
    spec = cell.records[0].spec
    asked = {**(spec.program.parameters if spec.program is not None else {}), **_flat(to_json_object(spec), "")}
    return {key: value for key, value in asked.items() if value is not None} | dict(row_of(cell).settings)


def _flat(data: dict[str, Any], prefix: str) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in data.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def same(value: Any, text: str) -> bool:
    """Return whether a setting has the value that a person wrote."""
    if str(value).casefold() == text.strip().casefold():
        return True
    try:
        wanted = json.loads(text)
    except (ValueError, RecursionError):
        return False
    if isinstance(value, bool) or isinstance(wanted, bool):
        return value is wanted
    if isinstance(value, int | float) and isinstance(wanted, int | float):
        return math.isclose(value, wanted, rel_tol=1e-9)
    return bool(value == wanted)


def _few(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN_VALUES} more" if len(names) > SHOWN_VALUES else ""
    return ", ".join(names[:SHOWN_VALUES]) + more


def _problem(field: str, problem: str) -> Problem:
    return Problem(field, problem, FORMS)
