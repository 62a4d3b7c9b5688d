"""The state of devices during runs as a table: clocks, temperature, what held them back, and their power limit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from steelyard.terminal.text import number, table, wrapped

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from steelyard.contracts.record import DeviceConditions, RunRecord

SHOWN = 8


def mhz(value: float) -> str:
    """Format a clock."""
    return f"{value:,.0f} MHz"


def _percent(share: float) -> str:
    return number(100 * share, 3)


SHARES = (
    "power, heat, slowed: share of the time in which the device was held back by its power limit, its temperature, or "
    "the hardware"
)
COLUMNS: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("mean clock", "clock_mhz", mhz),
    ("highest clock", "clock_highest_mhz", mhz),
    ("memory clock", "memory_clock_mhz", mhz),
    ("highest °C", "temperature_c", "{:.0f}".format),
    ("power %", "power_capped", _percent),
    ("heat %", "thermal", _percent),
    ("slowed %", "hardware", _percent),
    ("power limit", "limit_w", "{:,.0f} W".format),
)


def state_lines(records: Sequence[RunRecord], *, always: bool = True) -> list[str]:
    """Format one row per device, with equal devices of a run together; `always`: also if all are equal."""
    rows: list[list[str]] = []
    several = False
    for record in records:
        devices = sorted(record.conditions, key=lambda device: device.clock_mhz or 0.0)
        same: dict[tuple[str, ...], list[DeviceConditions]] = {}
        for device in devices:
            same.setdefault(tuple(_cell(device, name, write) for _, name, write in COLUMNS), []).append(device)
        several = several or len(same) > 1
        for cells, alike in list(same.items())[:SHOWN]:
            first = f"{alike[0].node} {alike[0].device}" if len(alike) == 1 else f"{len(alike)} devices"
            rows.append([str(record.spec.repeat), first, *cells])
        if len(same) > SHOWN:
            rows.append([str(record.spec.repeat), f"and {len(same) - SHOWN} faster", *("" for _ in COLUMNS)])
    if not rows or not (always or several):
        return []
    heads = ["job", "device", *(heading for heading, _, _ in COLUMNS)]
    told = [place for place in range(len(heads)) if any(row[place] not in ("", "-") for row in rows)]
    kept = [place for place in told if place > 0 or len(records) > 1]
    shares = wrapped(SHARES) if any(heads[place].endswith(" %") for place in kept) else []
    return ["", table([heads[place] for place in kept], [[row[place] for place in kept] for row in rows]), *shares]


def _cell(device: DeviceConditions, name: str, write: Callable[[float], str]) -> str:
    value = getattr(device, name)
    return "-" if value is None else write(value)
