"""Find a comparison that was measured already, for one that was refused.

Two sides that differ in more than the factor need one more configuration: one side with the other's settings. A study
often has it, and then nothing needs to be measured.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from steelyard.analysis.compare import compare
from steelyard.analysis.rows import row_of
from steelyard.analysis.select import select
from steelyard.analysis.sweep import swept_settings, written
from steelyard.errors import InputError
from steelyard.inputs.study import setting

if TYPE_CHECKING:
    from collections.abc import Sequence

    from steelyard.analysis.summary import CellSummary
    from steelyard.results.store import ResultFolder
    from steelyard.rules.table.row import Row

MOST_TRIED = 20


def comparable_instead(
    folder: ResultFolder,
    texts: tuple[str, str],
    sides: tuple[Sequence[Row], Sequence[Row]],
    factor: str | None,
    metric: str,
) -> tuple[str, str] | None:
    """Return two selections that can be compared: one as it is, of the other a configuration that is more like it.

    None if there is none, or if a side is published or has several configurations.
    """
    if any(len(rows) != 1 or rows[0].spec is None for rows in sides):
        return None
    candidates = []
    for place in (1, 0):
        kept, changed = sides[1 - place][0], sides[place][0]
        for text, row in _nearer(folder, changed, kept):
            pair = ([kept], [row]) if place else ([row], [kept])
            candidates.append(((texts[0], text) if place else (text, texts[1]), *pair))
    # Whoever names no factor means the machines first.
    for name in (factor,) if factor else ("system", None):
        for selections, a, b in candidates:
            with suppress(InputError):
                if compare(a, b, factor=name, metric=metric).answers:
                    return selections
    return None


def _nearer(folder: ResultFolder, changed: Row, kept: Row) -> list[tuple[str, Row]]:
    """Return the configurations that differ from one side only in having settings of the other; nearest first."""
    if changed.spec is None or kept.spec is None:
        return []
    cells = select(folder, changed.spec.study)
    swept = swept_settings(cells)
    candidates = []
    for cell in cells:
        keys = [key for key in swept if setting(cell.spec, key) != setting(changed.spec, key)]
        if keys and all(setting(cell.spec, key) == setting(kept.spec, key) for key in keys):
            candidates.append((len(keys), cell))
    nearest = [cell for _, cell in sorted(candidates, key=lambda entry: entry[0])[:MOST_TRIED]]
    return [(_name(folder, cell, list(swept)), row_of(cell)) for cell in nearest]


def _name(folder: ResultFolder, cell: CellSummary, swept: Sequence[str]) -> str:
    """Return a selection of one configuration, by its settings if they are unambiguous."""
    text = f"{cell.study}:{','.join(f'{key}={written(setting(cell.spec, key))}' for key in swept)}"
    with suppress(InputError):
        if [one.name for one in select(folder, text)] == [cell.name]:
            return text
    return f"{cell.study}/{cell.name}"
