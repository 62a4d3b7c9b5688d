"""Recompute the power and the figures per energy of a claim's rows."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from steelyard.audit.recompute import Worked, apart, counted, digits, few, unit_factor, wrong_range
from steelyard.audit.selecting import rows_of
from steelyard.errors import InputError, Problem
from steelyard.rules.claim import Span
from steelyard.rules.table.relations import observed, solve, variable
from steelyard.rules.table.row import Platform, RowTable

if TYPE_CHECKING:
    from steelyard.audit.claims import PowerClaim
    from steelyard.rules.table.relations import Bounds
    from steelyard.rules.table.row import Row


def work_power(claim: PowerClaim, table: RowTable) -> Worked:
    """Recompute the power per device of every row, and check its figures per energy."""
    rows = rows_of(claim, table)
    powers = [(row, _to_span(power)) for row in rows if (power := device_power(row)) is not None]
    checked = [fault for row in rows for fault in _check_per_energy(row, rows)]
    if "arithmetic" in claim.assertions():
        faults = list(few([fault for fault in checked if fault]))
        if claim.published:
            figures = ((row, name, amount) for row in rows for name, amount in row.figures.items())
            amounts = [amount for row, name, amount in figures if variable(row, name) == "items_per_energy"]
            faults += wrong_range(claim, amounts) if amounts else ["no figure per energy"]
        if not checked:
            faults.append("no figure per energy that can be recomputed")
    else:
        faults = []
    if "physical limit" in claim.assertions() and not powers:
        problem = Problem(
            "rows", "no row has the figures to compute power", "energy with a time, or with a rate and work"
        )
        raise InputError(f"claim {claim.id} needs power", problems=(problem,))
    words = _describe_power(claim, table, powers, checked)
    return Worked(faults=tuple(faults), text=words, includes_faults=False, rows=tuple(rows), metric="power")


def with_limit(limit_w: float | None, table: RowTable, rows: tuple[Row, ...]) -> RowTable:
    """Return the rows of a claim as a table, with the power limit that the claim states for its machines."""
    platforms = table.platforms
    if limit_w is not None:
        names = {(str(row.get("system") or ""), str(row.get("accelerator") or "")) for row in rows}
        stated = [Platform(name, other, power_limit_w=limit_w, power_scope="device") for name, other in sorted(names)]
        platforms = (*stated, *(entry for entry in platforms if entry.name not in {name for name, _ in names}))
    return RowTable(table.name, rows, platforms)


def device_power(row: Row) -> Bounds | None:
    """Return the bounds of the logarithm of the power per device in W, or None if it cannot be computed."""
    given = observed(row)
    solved = solve(given)
    # If the figures of a row contradict each other, use only printed ones.
    return (given if solved.clash is not None else solved.known).get("power_per_device")


# Formulas for the power per device: the numerators, then the denominators.
_SUMS: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (("energy_per_epoch_per_device",), ("epoch_time",)),
    (("energy_per_epoch",), ("epoch_time", "devices")),
    (("energy_per_device",), ("train_time",)),
    (("energy",), ("train_time", "devices")),
    (("throughput",), ("items_per_energy", "devices")),
    (("throughput_per_device",), ("items_per_energy",)),
    (("power",), ("devices",)),
    (("energy_per_epoch_per_device", "throughput"), ("epoch_work",)),
    (("energy_per_epoch", "throughput"), ("epoch_work", "devices")),
)


def power_sum(row: Row) -> str:
    """Return the calculation of the power per device, such as `64.99 tokens/s / 4.08 tokens/Wh / 4 devices`.

    Empty if the power itself is printed or cannot be computed.
    """
    power = device_power(row)
    if power is None:
        return ""
    made_of = power.sources - {"devices"}
    for above, below in _SUMS:
        if made_of == {*above, *below} - {"devices"}:
            parts = [
                " x ".join(_format_variable(row, name) for name in above),
                *(_format_variable(row, name) for name in below),
            ]
            return " / ".join(part for part in parts if part != "1 device")
    names = [_format_variable(row, name) for name in sorted(power.sources)]
    return f"from {', '.join(names)}" if "power_per_device" not in power.sources else ""


def _format_variable(row: Row, name: str) -> str:
    """Format a figure or count of a row by its name in the relations."""
    for metric, amount in row.figures.items():
        if variable(row, metric) == name:
            return f"{digits(amount)} {amount.unit}".strip()
    if name == "devices":
        return counted(row.number(name) or 1)
    return f"{row.number('epoch_samples') or 0:,g} samples" if name == "epoch_work" else name


def _to_span(bounds: Bounds) -> Span:
    return Span(math.exp(bounds.low), math.exp(bounds.high))


def _check_per_energy(row: Row, rows: list[Row]) -> list[str]:
    """Return one entry per figure per energy that can be recomputed: the fault, or an empty text."""
    faults = []
    for metric, amount in row.figures.items():
        if variable(row, metric) == "items_per_energy":
            given = {name: entry for name, entry in observed(row).items() if name != "items_per_energy"}
            reached = solve(given).known.get("items_per_energy")
            if reached is not None:
                fits = _to_span(reached).meets(Span(amount.low, amount.high))
                value = f"{reached.middle / unit_factor(amount):,.6g}"
                faults.append("" if fits else f"{metric} {digits(amount)} at {apart(row, rows)} instead of {value}")
    return faults


def _describe_power(claim: PowerClaim, table: RowTable, powers: list[tuple[Row, Span]], checked: list[str]) -> str:
    words = []
    if checked:
        right = sum(not fault for fault in checked)
        words.append(f"{right} of {len(checked)} figures per energy are right within rounding")
    if powers:
        ordered = sorted(powers, key=lambda entry: entry[1].high)
        least, most = (f"{(span.low + span.high) / 2:,.0f} W" for _, span in (ordered[0], ordered[-1]))
        rows = [row for row, _ in powers]
        where = [f" at {apart(entry[0], rows)}" if len(powers) > 1 else "" for entry in (ordered[0], ordered[-1])]
        between = f"{least}{where[0]} to {most}{where[1]}" if len(powers) > 1 else least
        platform = table.platform(ordered[-1][0])
        limit = claim.limit_w or (platform.power_limit_w if platform else None)
        made_of = power_sum(ordered[-1][0])
        made_of = f"; {'the last is ' if len(powers) > 1 else ''}{made_of}" if made_of else ""
        words.append(f"power per device {between}; limit {f'{limit:g} W' if limit else 'unknown'}{made_of}")
    return "; ".join(words)
