"""A row: figures and their settings. Published tables and studies are both read into rows, so one rule checks both."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from steelyard.contracts.record import Quantity
    from steelyard.contracts.spec import RunSpec
    from steelyard.stats.ratio import JobTime

Setting = str | float | int | bool
Scope = Literal["job", "node", "module", "device", "die"]


@dataclass(frozen=True)
class Amount:
    """A figure in its base unit (s, J, W, 1/s, 1/J, 1) with bounds from its printed digits or its jobs."""

    value: float
    low: float
    high: float
    """Bounds from rounding, or the CI over jobs for a measured figure. Equal bounds: the value is exact."""
    unit: str
    """The unit as printed, such as `images/s`; rates are comparable only if they count the same items."""
    text: str = ""
    """The number as printed; empty for measured figures."""
    jobs: tuple[float, ...] = ()
    """One value per job, if known; published figures have none."""
    common: float = 0.0
    """Relative systematic error that all jobs share, such as a sensor's gain error; repeats do not show it."""
    quantity: Quantity | None = None
    """What every verb shows for this figure of our own jobs; None: published, or calculated from another figure."""

    def log_bounds(self) -> tuple[float, float]:
        """Return the bounds of the logarithm, so that products become sums."""
        return math.log(self.low), math.log(self.high)


@dataclass(frozen=True)
class Grid:
    """A table as printed: its caption, heading lines and cells as text."""

    caption: str
    headings: tuple[tuple[str, ...], ...]
    """One entry per heading line. A heading over several columns is repeated in each of them."""
    cells: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Row:
    """Figures of one configuration."""

    place: str
    """Where to find the row, such as `table 3, line 41` or `study/configuration`."""
    settings: Mapping[str, Setting]
    """Settings by the names in `rules.table.settings.SETTINGS`. A missing setting is unknown, not equal."""
    figures: Mapping[str, Amount]
    """Figures by metric. `throughput` is that of the whole job; `throughput_per_device` is a separate metric."""
    table: str = ""
    """The table that the row belongs to."""
    source: str = ""
    note: str = ""
    status: str = "completed"
    """`completed`, or why there are no figures, such as `out_of_memory`."""
    spec: RunSpec | None = None
    """Settings of the runs, to name a command that repeats them; None: a published row."""
    jobs: tuple[JobTime, ...] = ()
    """Where and when each job ran, in the order of the figures' jobs; published rows have none."""
    cells: Mapping[str, tuple[int, int, int]] = field(default_factory=dict)
    """Where a metric or setting is printed: the number of the grid in `RowTable.grids`, the line and the column in its
    `cells`, all from 0. A setting from a heading or a caption has no entry."""
    bases: Mapping[str, str] = field(default_factory=dict)
    """What a figure is relative to: for `speedup_over_precision` the base precision, for `speedup_over_system` the base
    system or accelerator, as in the settings of the base's rows. `time_speedup_over_...` is the same for a time."""

    def get(self, key: str) -> Setting | None:
        """Return a setting, or None if it is unknown."""
        return self.settings.get(key)

    def number(self, key: str) -> float | None:
        """Return a numeric setting, or None if it is unknown or text."""
        value = self.settings.get(key)
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


@dataclass(frozen=True)
class Platform:
    """A machine as described in a table of platforms."""

    name: str
    accelerator: str
    devices_per_node: int | None = None
    power_limit_w: float | None = None
    """Power limit of one device, or of the unit in `power_scope`."""
    power_scope: str = ""
    system_power_limit_w: float | None = None
    source: str = ""


@dataclass(frozen=True)
class RowTable:
    """Rows that were published or measured together, and their machines."""

    name: str
    rows: tuple[Row, ...]
    platforms: tuple[Platform, ...] = field(default=())
    grids: tuple[Grid, ...] = ()
    """The tables as printed, if the rows were read from them; `Row.cells` refers to these."""

    def platform(self, row: Row) -> Platform | None:
        """Return the machine of a row by its name, or by its accelerator if all such machines have the same limit."""
        named = [entry for entry in self.platforms if entry.name == row.get("system")]
        if named:
            return named[0]
        same = [entry for entry in self.platforms if entry.accelerator == row.get("accelerator")]
        limits = {(entry.power_limit_w, entry.power_scope) for entry in same}
        return same[0] if len(limits) == 1 else None


@dataclass(frozen=True, eq=False)
class Pair:
    """Two rows to be compared, and the factor under study. Equal only to itself, so that answers can be kept for it."""

    a: Row
    """The base."""
    b: Row
    factor: str = "system"
    """The setting, or role of settings, that is meant to differ (see `rules.table.settings.SETTINGS`)."""
    metric: str = "throughput"
    tuned: frozenset[str] = frozenset()
    """Settings tuned separately for each side; a difference in these is a warning, never an error."""
