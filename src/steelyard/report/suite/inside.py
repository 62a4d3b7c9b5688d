"""What one setting changes on a machine of the document, and on ours: two printed rows, and the same two of our runs.

The document need not state what both of its rows share, such as the length of a training: their ratio does not depend
on it. Nothing is concluded from how near the two ratios are.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from steelyard.analysis.compare import compare
from steelyard.analysis.rows import row_of
from steelyard.report.suite.cells import OTHER_NETWORK
from steelyard.report.suite.conditions import WITH_MODEL, unstated, warned
from steelyard.rules.table.row import Pair
from steelyard.rules.table.settings import FOLLOWS, differences, shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from steelyard.analysis.compare import Comparison
    from steelyard.analysis.ratios import Ratio
    from steelyard.report.suite.beside import Beside
    from steelyard.report.suite.conditions import Condition
    from steelyard.rules.table.row import Row

FACTORS = ("model", "precision", "batch", "global_batch", "loader.workers", "numa", "devices")
# What else may change with the number of devices.
WITH_DEVICES = ("nodes", "parallel", "global_batch", "backend")
GENERATED = "generated data here"
OTHER_DATA = "other data here"


@dataclass(frozen=True)
class Relation:
    """Two printed figures of one machine that differ in one setting, and ours for both."""

    factor: str
    base: Beside
    entry: Beside
    printed: Ratio
    """The second printed figure over the first; its bounds come from the printed digits."""
    ours: Ratio
    conditions: tuple[str, ...]
    """Settings that the document does not state for both rows, and that change the figure: the printed ratio shows the
    effect of the factor only if both rows had the same."""
    marks: tuple[str, ...]
    """What is not the document's work here, and what differs beside the factor."""
    warnings: tuple[Condition, ...]
    """What the rules warn of, in the document and here."""


def relations(entries: Sequence[Beside]) -> list[Relation]:
    """Return what one setting changes, for every printed figure that differs from an earlier one in one setting."""
    usable = [entry for entry in entries if _is_usable(entry)]
    return [
        found
        for factor in FACTORS
        for group in _groups(usable, factor)
        for entry in group[1:]
        if (found := _relate(factor, group[0], entry)) is not None
    ]


def _is_usable(entry: Beside) -> bool:
    # Here an error between two printed rows counts too.
    wrong = entry.doubted or any(mark.severity == "error" for mark in entry.marks)
    return entry.ours is not None and not wrong


def _groups(entries: Sequence[Beside], factor: str) -> list[list[Beside]]:
    """Return the printed figures that share every setting but the factor and what follows from it, by its value."""
    free = {factor, *FOLLOWS.get(factor, ()), *(WITH_DEVICES if factor == "devices" else ())}
    free |= {"batch", "global_batch"} if factor in ("batch", "global_batch") else set()
    found: defaultdict[tuple[str, ...], dict[str, Beside]] = defaultdict(dict)
    for entry in entries:
        value = entry.published.get(factor)
        # Where the batch of a device is stated, that of the job follows from it.
        if value is None or (factor == "global_batch" and entry.published.get("batch") is not None):
            continue
        kept = (f"{key}={shown(one)}" for key, one in entry.published.settings.items() if key not in free)
        # A document may print one configuration twice.
        found[entry.metric, *sorted(kept)].setdefault(shown(value), entry)
    return [sorted(group.values(), key=lambda one: one.published.number(factor) or 0.0) for group in found.values()]


def _relate(factor: str, base: Beside, entry: Beside) -> Relation | None:
    """Return the two ratios, if the rules allow both."""
    rows = [_our_row(one) for one in (base, entry)]
    if shown(rows[0].get(factor)) == shown(rows[1].get(factor)):
        # Two printed values may have the same runs beside them.
        return None
    there = compare([base.published], [entry.published], factor=factor, metric=entry.metric).comparisons[0]
    here = compare(rows[:1], rows[1:], factor=factor, metric=entry.metric).comparisons[0]
    printed, ours = _allowed(there), _allowed(here)
    if printed is None or ours is None or _is_other_task(there):
        return None
    marks = [*_marks(base), *_marks(entry), *_beside_model("in the document", there), *_beside_model("here", here)]
    warnings = (*warned(there, " (in the document)"), *warned(here, " (here)"))
    pair = Pair(base.published, entry.published, factor, entry.metric)
    conditions = tuple(unstated(pair, rows))
    return Relation(factor, base, entry, printed, ours, conditions, tuple(dict.fromkeys(marks)), warnings)


def _is_other_task(made: Comparison) -> bool:
    """Return whether two models do another task, or on another length of sequence: more than the model differs."""
    return any(one.key in ("task", "sequence_length") for one in differences(made.a, made.b))


def _beside_model(where: str, made: Comparison) -> Iterator[str]:
    """Yield what differs with the model."""
    told = [str(one) for one in differences(made.a, made.b) if one.key in WITH_MODEL]
    if made.factor == "model" and told:
        yield f"also different {where}: {'; '.join(told)}"


def _allowed(made: Comparison) -> Ratio | None:
    """Return the ratio of the whole job; None if the rules find an error, or only a bound holds."""
    return next((ratio for ratio in made.ratios if ratio.scope == "job" and ratio.answer == "ratio"), None)


def _our_row(entry: Beside) -> Row:
    """Return our row with the figure that stands for the printed one."""
    assert entry.cell is not None
    assert entry.ours is not None
    row = row_of(entry.cell)
    settings = dict(row.settings)
    if entry.epochs is not None:
        settings["epochs"] = entry.epochs
    return replace(row, settings=settings, figures={**row.figures, entry.metric: entry.ours})


def _marks(entry: Beside) -> Iterator[str]:
    if entry.other_work:
        yield f"{OTHER_NETWORK} here"
    assert entry.cell is not None
    if entry.planned.data is not None and not entry.same_data:
        yield GENERATED if all(record.data is None for record in entry.cell.records) else OTHER_DATA
