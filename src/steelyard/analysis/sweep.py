"""The settings that a selection varies, and its configurations ordered and grouped by them."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING, Any

from steelyard.analysis.compare import NAMED_OTHERWISE, require_factor
from steelyard.analysis.select import all_settings, narrow
from steelyard.analysis.summary import settings_of
from steelyard.errors import InputError
from steelyard.inputs.study import setting

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from steelyard.analysis.summary import CellSummary

LONGEST_VALUE = 60


def swept_settings(cells: Sequence[CellSummary]) -> dict[str, tuple[Any, ...]]:
    """Return the settings in which configurations differ, by dotted name, each with its values in order."""
    chosen = [settings_of(cell.spec) for cell in cells]
    keys = sorted({key for settings in chosen for key in settings})
    values = {key: ordered(setting(cell.spec, key) for cell in cells) for key in keys}
    return {key: several for key, several in values.items() if len(several) > 1}


def in_order(cells: Sequence[CellSummary], swept: dict[str, tuple[Any, ...]]) -> list[CellSummary]:
    """Sort configurations by their swept settings."""
    places = {key: {repr(value): place for place, value in enumerate(values)} for key, values in swept.items()}
    return sorted(cells, key=lambda cell: [places[key][repr(setting(cell.spec, key))] for key in swept])


def grouped(cells: Sequence[CellSummary], key: str) -> list[tuple[str, list[CellSummary]]]:
    """Group configurations that differ only in `key`, each group with a label of its other swept settings.

    Configurations that have no partner are left out. The label is empty if no other setting was swept.
    """
    others = [name for name in swept_settings(cells) if name != key]
    groups: dict[tuple[str, ...], list[CellSummary]] = {}
    for cell in cells:
        groups.setdefault(tuple(repr(setting(cell.spec, name)) for name in others), []).append(cell)
    kept = [group for group in groups.values() if len({repr(setting(cell.spec, key)) for cell in group}) > 1]
    values = [{name: setting(group[0].spec, name) for name in others} for group in kept]
    whole = [", ".join(f"{name}={written(value)}" for name, value in of_group.items()) for of_group in values]
    # An option that only another model has says nothing about this one, as long as the others tell them apart.
    brief = [
        ", ".join(f"{name}={written(value)}" for name, value in of_group.items() if value is not None)
        for of_group in values
    ]
    told = brief if len({*brief}) == len(brief) and all(brief) else whole
    return [*zip(told, kept, strict=True)]


def selecting(cells: Sequence[CellSummary], wanted: Sequence[CellSummary], selection: str) -> str:
    """Return the selection of `wanted` among `cells`: by a setting if one tells them apart, else by two or all.

    `selection`: that of the cells. If no settings tell them apart, the first of them is named.
    """
    given = {key: ordered(setting(cell.spec, key) for cell in wanted) for key in swept_settings(cells)}
    parts = [f"{key}={written(values[0])}" for key, values in given.items() if len(values) == 1]
    entries = [(cell, all_settings(cell)) for cell in cells]
    for text in filter(None, (*parts, *map(",".join, combinations(parts, 2)), ",".join(parts))):
        try:
            told = {cell.name for cell in narrow(entries, selection, text)}
        except InputError:
            continue
        if told == {cell.name for cell in wanted}:
            return f"{selection}{',' if ':' in selection else ':'}{text}"
    return f"{wanted[0].study}/{wanted[0].name}"


def factor_of(key: str) -> str | None:
    """Return the comparison factor for a setting of a spec, or None if the rules know no factor for it."""
    if key.startswith("sim.") and key not in NAMED_OTHERWISE and not key.startswith("sim.input"):
        return "system"
    try:
        return require_factor(key)
    except InputError:
        return None


def ordered(values: Iterable[Any]) -> tuple[Any, ...]:
    """Return the distinct values: numbers in order, then the others alphabetically."""
    different = {repr(value): value for value in values}
    return tuple(sorted(different.values(), key=_order))


def _order(value: Any) -> tuple[bool, float, str]:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return not number, float(value) if number else 0.0, "" if number else str(value)


def written(value: Any) -> str:
    """Format a value as a selection takes it, with bounded length."""
    text = "none" if value is None else str(value)
    return text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 3]}..."
