"""Rows that request computing time."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from steelyard.rules.table.row import Row, RowTable

ASKED = "requested_device_hours"
"""A row with this figure is a request: device-hours, in a unit of time."""


def requests(table: RowTable) -> Iterator[tuple[Row, float]]:
    """Yield the rows that are requests, each with its number of devices."""
    for row in table.rows:
        devices = row.number("devices")
        if ASKED in row.figures and devices:
            yield row, devices
