"""One row of figures with the settings they were reached at: what a published table and a cell of a study have in
common, so that the same rules judge both. Knows values, units and bounds; not where they come from.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

Setting = str | float | int | bool
Scope = Literal["job", "node", "module", "device", "die"]


@dataclass(frozen=True)
class Amount:
    """A figure in its base unit (s, J, W, 1/s, 1/J, 1), with the bounds that its printed digits or its jobs allow."""

    value: float
    low: float
    high: float
    """What is printed this way lies between them; of measured jobs, the interval over the jobs. No width: exact."""
    unit: str
    """As printed, such as `images/s`; what is counted matters when rates are compared."""
    text: str = ""
    """As printed, digits and all; empty for measured figures."""
    jobs: tuple[float, ...] = ()
    """One value a job, where they are known; a published figure has none."""
    common: float = 0.0
    """Share by which all jobs may be wrong to the same side: a sensor's gain, which repeats do not show."""

    def log_bounds(self) -> tuple[float, float]:
        """Bounds of the logarithm: products and quotients of figures become sums and differences."""
        return math.log(self.low), math.log(self.high)


@dataclass(frozen=True)
class Row:
    """Figures of one configuration."""

    place: str
    """Where a reader finds it: `table 3, line 41`, or `study/cell`."""
    settings: Mapping[str, Setting]
    """By the names in `rules.settings.SETTINGS`. A missing one is unknown, which is not the same as equal."""
    figures: Mapping[str, Amount]
    """By metric, such as `throughput` of the whole job; `throughput_per_device` and `_per_node` are other metrics."""
    table: str = ""
    """Rows of one table were printed to be read together."""
    source: str = ""
    note: str = ""
    status: str = "completed"
    """Or why there are no figures, such as out_of_memory."""

    def get(self, key: str) -> Setting | None:
        """A setting, or None where it is unknown."""
        return self.settings.get(key)

    def number(self, key: str) -> float | None:
        """A setting that is a number, or None where it is unknown or text."""
        value = self.settings.get(key)
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


@dataclass(frozen=True)
class Platform:
    """A machine as its table describes it."""

    name: str
    accelerator: str
    devices_per_node: int | None = None
    power_limit_w: float | None = None
    """Of one device, or of what `power_scope` says."""
    power_scope: str = ""
    system_power_limit_w: float | None = None
    source: str = ""


@dataclass(frozen=True)
class RowTable:
    """Rows that were published or measured together, and the machines they name."""

    name: str
    rows: tuple[Row, ...]
    platforms: tuple[Platform, ...] = field(default=())

    def platform(self, row: Row) -> Platform | None:
        """The machine of a row: by its name, else by its accelerator where only one limit is stated for that."""
        named = [entry for entry in self.platforms if entry.name == row.get("system")]
        if named:
            return named[0]
        same = [entry for entry in self.platforms if entry.accelerator == row.get("accelerator")]
        limits = {(entry.power_limit_w, entry.power_scope) for entry in same}
        return same[0] if len(limits) == 1 else None


@dataclass(frozen=True)
class Pair:
    """Two rows whose figures somebody wants to divide by each other, and the factor under study."""

    a: Row
    """The base."""
    b: Row
    factor: str = "system"
    """A name or a group of `rules.settings.SETTINGS`: what is meant to differ."""
    metric: str = "throughput"
    tuned: frozenset[str] = frozenset()
    """Settings that each side chose for itself, as for a comparison of best against best: told, but never blocking."""
