"""Select the rows of a claim: selectors, sums and means of rows, and pairs matched by settings."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from steelyard.errors import InputError, Problem, nearest
from steelyard.rules.table.row import Amount, Row
from steelyard.rules.table.settings import SETTINGS
from steelyard.rules.table.units import unit_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from steelyard.audit.claims import Claim, PairClaim
    from steelyard.rules.table.row import RowTable, Setting

PLACES = ("table", "source", "note")
WAYS = ("sum", "mean")
ADDED = ("rate", "energy", "power", "count")
"""Kinds of figures that can be added over independent jobs. Times and ratios cannot."""
KEYS = (*SETTINGS, *PLACES, "metric", *WAYS)
NEAR = 3


def same(a: object, b: object) -> bool:
    """Return whether two settings are equal: text exactly, numbers by value; two unknown ones are equal."""
    if a is None or b is None:
        return a is b
    if isinstance(a, str | bool) or isinstance(b, str | bool):
        return type(a) is type(b) and a == b
    if isinstance(a, int) and isinstance(b, int):
        # Compare integers directly: an untrusted one may be too large for a float.
        return a == b
    try:
        return isinstance(a, int | float) and isinstance(b, int | float) and math.isclose(a, b, rel_tol=1e-9)
    except OverflowError:
        return False


def rows_of(claim: Claim, table: RowTable, extra: Mapping[str, Setting] | None = None) -> list[Row]:
    """Return the rows that match a claim's selectors; raise InputError if there are none."""
    wanted = {**claim.rows, **(extra or {})}
    _refuse_unknown(claim, wanted)
    # `sum` and `mean` are allowed only on a side, and only as `true`.
    misplaced = [key for key in WAYS if key in claim.rows]
    problems = [Problem(f"rows.{key}", "not allowed in rows", f"{key} = true in a or b") for key in misplaced]
    problems += [
        Problem(key, f"{value}", "true") for key, value in (extra or {}).items() if key in WAYS and value is not True
    ]
    if problems:
        raise InputError(f"claim {claim.id} is not valid", problems=tuple(problems))
    wanted_metric = wanted.get("metric")
    wanted = {key: value for key, value in wanted.items() if key not in (*WAYS, "metric")}
    rows = [row for row in table.rows if all(_has(row, key, value) for key, value in wanted.items())]
    metric = wanted_metric or claim.metric
    if metric:
        rows = [row for row in rows if str(metric) in row.figures]
    if not rows:
        raise _explain_none(claim, table, wanted, str(metric or ""))
    return rows


def one_row(claim: Claim, table: RowTable, side: Mapping[str, Setting]) -> Row:
    """Return the row of one side; several rows are combined if the selector says how."""
    return _put_together(claim, rows_of(claim, table, side), side)


def pairs_of(claim: PairClaim, table: RowTable) -> tuple[list[tuple[Row, Row]], int]:
    """Return the pairs of rows of a claim, and the number of rows without a partner."""
    if not claim.over:
        return [(one_row(claim, table, claim.a), one_row(claim, table, claim.b))], 0
    _refuse_unknown(claim, dict.fromkeys(claim.over, ""))
    sides: list[dict[tuple[object, ...], Row]] = []
    for side in (claim.a, claim.b):
        groups: dict[tuple[object, ...], list[Row]] = {}
        for number, row in enumerate(rows_of(claim, table, side)):
            key = tuple(_read_value(row, key) for key in claim.over)
            # Unknown does not equal unknown, so a row with an unknown setting has no partner.
            groups.setdefault((number, row.place) if None in key else key, []).append(row)
        sides.append({key: _put_together(claim, rows, side) for key, rows in groups.items()})
    shared = [key for key in sides[0] if key in sides[1]]
    if not shared:
        problem = Problem(
            "over", f"no rows of both sides have the same {', '.join(claim.over)}", "settings that both sides state"
        )
        raise InputError(f"claim {claim.id} has no pair of rows", problems=(problem,))
    return [(sides[0][key], sides[1][key]) for key in shared], sum(len(side) - len(shared) for side in sides)


def metric_of(claim: Claim, rows: Sequence[Row], side: Mapping[str, Setting] | None = None) -> str:
    """Return the metric of a claim: the one it names, or the only one that all rows have."""
    named = (side or {}).get("metric") or claim.rows.get("metric") or claim.metric
    if named:
        return str(named)
    shared = set.intersection(*(set(row.figures) for row in rows))
    if len(shared) != 1:
        problem = Problem(
            "metric", "missing, and the rows have none or several in common", ", ".join(sorted(shared)) or "none"
        )
        raise InputError(f"claim {claim.id} must name a metric", problems=(problem,))
    return shared.pop()


def _put_together(claim: Claim, rows: Sequence[Row], side: Mapping[str, Setting]) -> Row:
    if side.get("sum"):
        return _combine(claim, rows, metric_of(claim, rows, side), "sum")
    if side.get("mean"):
        return _combine(claim, rows, metric_of(claim, rows, side), "mean")
    if len(rows) > 1:
        problem = Problem(
            "rows",
            f"{len(rows)} rows match {_format_selector({**claim.rows, **side})}",
            "a selector that leaves one row",
        )
        first = {key: _read_value(rows[0], key) for key in (*PLACES, *SETTINGS)}
        differing = [key for key, value in first.items() if not all(_has(row, key, value) for row in rows)]
        near = tuple(
            Problem(row.place, _format_selector({key: _read_value(row, key) for key in differing}), "select by these")
            for row in rows[:NEAR]
        )
        raise InputError(
            f"claim {claim.id} needs one row",
            problems=(problem, *near),
            next_step="add settings to the selector, or write sum = true to add jobs or mean = true to average repeats",
        )
    return rows[0]


def _combine(claim: Claim, rows: Sequence[Row], metric: str, way: str) -> Row:
    """Combine several rows into one: add independent jobs, or average repeats."""
    figures = [row.figures[metric] for row in rows]
    kind = (unit_of(figures[0].unit) or ("", 1.0))[0]
    if len({figure.unit for figure in figures}) > 1 or (way == "sum" and kind not in ADDED):
        valid = f"{', '.join(ADDED)} of one unit" if way == "sum" else "figures of one unit"
        problem = Problem(
            way, f"figures in {', '.join(sorted({figure.unit or 'no unit' for figure in figures}))}", valid
        )
        raise InputError(f"claim {claim.id} cannot {_VERBS[way]} {metric}", problems=(problem,))
    first = rows[0]
    shared = {key: value for key, value in first.settings.items() if all(same(row.get(key), value) for row in rows)}
    if way == "sum":
        # The parts of a sum are not repeats.
        amount = replace(_fold_amounts(sum, figures), jobs=())
        devices = [row.number("devices") for row in rows]
        if all(devices):
            shared["devices"] = sum(value or 0.0 for value in devices)
    else:
        amount = averaged(figures)
    place = f"{first.place} and {len(rows) - 1} more" if len(rows) > 1 else first.place
    return replace(first, place=place, settings=shared, figures={metric: amount})


_VERBS = {"sum": "add", "mean": "average"}


def averaged(figures: Sequence[Amount]) -> Amount:
    """Return the mean of repeats: the harmonic mean for rates and figures per energy."""
    kind = (unit_of(figures[0].unit) or ("", 1.0))[0]
    harmonic = kind in ("rate", "per_energy") and all(figure.low > 0 for figure in figures)

    def mean(values: list[float]) -> float:
        if harmonic:
            return len(values) / math.fsum(1 / value for value in values)
        return math.fsum(values) / len(values)

    return _fold_amounts(mean, figures)


def _fold_amounts(fold: Callable[[list[float]], float], figures: Sequence[Amount]) -> Amount:
    value, low, high = (fold([getattr(figure, name) for figure in figures]) for name in ("value", "low", "high"))
    return Amount(value, low, high, figures[0].unit, "", tuple(figure.value for figure in figures))


def _read_value(row: Row, key: str) -> object:
    return getattr(row, key) if key in PLACES else row.get(key)


def _has(row: Row, key: str, wanted: object) -> bool:
    return same(_read_value(row, key), wanted)


def _refuse_unknown(claim: Claim, wanted: Mapping[str, object]) -> None:
    unknown = [key for key in wanted if key not in KEYS]
    if unknown:
        valid = ", ".join(KEYS)
        problems = tuple(Problem(key, "not a setting of rows", valid, near=nearest(key, KEYS)) for key in unknown)
        raise InputError(f"claim {claim.id} selects by unknown settings", problems=problems)


def _explain_none(claim: Claim, table: RowTable, wanted: Mapping[str, Setting], metric: str) -> InputError:
    """Return an error that lists the closest rows and how they differ."""

    def missed(row: Row) -> dict[str, object]:
        other = {key: _read_value(row, key) for key, value in wanted.items() if not _has(row, key, value)}
        return other if not metric or metric in row.figures else {**other, "metric": " or ".join(row.figures)}

    near = sorted(table.rows, key=lambda row: len(missed(row)))[:NEAR]
    selector = _format_selector({**wanted, **({"metric": metric} if metric else {})})
    problems = tuple(
        Problem(row.place, f"has {_format_selector(missed(row))}", "the values of the selector") for row in near
    )
    return InputError(
        f"claim {claim.id}: no row of {table.name} has {selector}; the closest are",
        problems=problems,
        next_step="write the values as in the table",
    )


def _format_selector(wanted: Mapping[str, object]) -> str:
    return ", ".join(f"{key} {'unknown' if value is None else value}" for key, value in wanted.items()) or "anything"
