"""The state of the devices while a run is measured: clocks, temperature, throttling, ECC errors, power limit.

The sampler of a node reads it once a second. Beside its other files (see `contracts.energy`) there is
    conditions-00000.bin   readings in chunks, each of one device, as 32-bit numbers: 5 MB a day per device
and `sensors-00000.jsonl` has for each device, in the order of the chunks' numbers,
    {"kind": "conditions", ...}   what can be read of it, and why the rest cannot; see `Readable`
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from steelyard.contracts.base import Contract, Length, Name, Positive, Text

if TYPE_CHECKING:
    from steelyard.contracts.record import Aggregation, Scope

COLUMNS = (
    "time_s",
    "clock_mhz",
    "memory_clock_mhz",
    "temperature_c",
    "memory_temperature_c",
    "power_capped",
    "thermal",
    "hardware",
    "setting",
    "idle",
    "corrected",
    "uncorrected",
    "limit_w",
    "processes",
)
"""One row each; not a number: not read at this moment.

time_s: time in the run, so that 32 bits are enough. temperature_c: of the hottest place that the driver reports.
power_capped to idle: what held the clock back, as the share of the time since the reading before, which is 0 or 1 if
the driver tells only the present state; several can hold at once. power_capped: a power or current limit. thermal: a
temperature limit. hardware: a slowdown by the hardware itself, such as a power brake. setting: clocks set by somebody.
idle: nothing to do.
corrected, uncorrected: ECC errors since the sampler began. processes: how many compute on the device."""
READ = COLUMNS[1:]
SLOW = ("corrected", "uncorrected", "processes")
"""Read only every few seconds: a driver may need milliseconds for them."""
QUANTITIES: dict[str, tuple[str, str, Scope, Aggregation]] = {
    "clock_device": ("clock_mhz", "MHz", "device", "mean"),
    "clock_memory": ("memory_clock_mhz", "MHz", "device", "mean"),
    "temperature_device": ("temperature_c", "°C", "device", "max"),
    "temperature_memory": ("memory_temperature_c", "°C", "device", "max"),
    "power_capped_share": ("power_capped", "1", "device", "share of time"),
    "thermal_throttled_share": ("thermal", "1", "device", "share of time"),
    "hardware_slowed_share": ("hardware", "1", "device", "share of time"),
    "ecc_corrected": ("corrected", "errors", "job", "sum"),
    "ecc_uncorrected": ("uncorrected", "errors", "job", "sum"),
    "power_limit_device": ("limit_w", "W", "device", "min"),
    "power_limit_default": ("default_limit_w", "W", "device", "min"),
}
"""Field, unit, scope and aggregation; over devices, means and shares are means."""
HELD = {
    "power_capped": "power limit",
    "thermal": "temperature",
    "hardware": "hardware slowdown",
    "setting": "clock setting",
}
"""What can hold a busy device back, and its name."""


@dataclass(frozen=True, kw_only=True)
class Readable(Contract):
    """What can be read of the state of one device."""

    domain: Name
    """The device, as the sampler names it: see `contracts.energy.Domain`."""
    backend: Name
    sources: Annotated[dict[str, Text], Length(32)]
    """The call or file of each column that can be read."""
    unknown: Annotated[dict[str, Text], Length(32)]
    """Why each of the other columns cannot be read."""
    clock_limit_mhz: Positive | None = None
    """The highest clock that the device supports; None: unknown."""
    default_limit_w: Positive | None = None
    """The power limit as the maker set it; None: unknown."""
