"""The batches of rows with different device counts: which kind of scaling they show, and which rows form a curve."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from steelyard.rules.table.row import Row

Kind = Literal["strong", "weak", "neither", "unknown"]


def devices_of(row: Row) -> float:
    """Return the number of devices of a row, which must be known."""
    return row.number("devices") or math.nan


def global_batch_of(row: Row) -> float | None:
    """Return the global batch of a row, stated or computed; None if the row does not say."""
    stated, each = row.number("global_batch"), row.number("batch")
    if stated is not None:
        return stated
    return None if each is None else each * devices_of(row) * (row.number("accumulation") or 1.0)


def kind_of(rows: Sequence[Row]) -> Kind:
    """Return the kind of scaling: strong keeps the global batch, weak the batch per device; unknown without batches."""
    whole = [global_batch_of(row) for row in rows]
    known = [batch for batch in whole if batch is not None]
    if len(known) < len(rows):
        return "unknown"
    if _are_equal(known):
        return "strong"
    return (
        "weak" if _are_equal([batch / devices_of(row) for batch, row in zip(known, rows, strict=True)]) else "neither"
    )


def split_by_batch(rows: list[Row]) -> list[list[Row]]:
    """Split rows of otherwise equal settings into curves that keep the batch per device, or the global batch.

    Rows stay together if they keep one of the two already, or if a row of more than the fewest devices would be left
    alone: it then has no base with its batch.
    """
    if kind_of(rows) != "neither":
        return [rows]
    least = min(map(devices_of, rows))
    for size in (_compute_share, global_batch_of):
        curves = _group(rows, size)
        alone = [curve for curve in curves if len(set(map(devices_of, curve))) == 1]
        if all(devices_of(curve[0]) == least for curve in alone):
            return curves
    return [rows]


def _group(rows: list[Row], size: Callable[[Row], float | None]) -> list[list[Row]]:
    groups: defaultdict[float | None, list[Row]] = defaultdict(list)
    for row in rows:
        batch = size(row)
        groups[None if batch is None else round(batch, 6)].append(row)
    return list(groups.values())


def _compute_share(row: Row) -> float | None:
    batch = global_batch_of(row)
    return None if batch is None else batch / devices_of(row)


def _are_equal(values: Sequence[float]) -> bool:
    return all(math.isclose(value, values[0], rel_tol=1e-9) for value in values)
