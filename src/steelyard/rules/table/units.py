"""Units of printed figures, and the interval that the printed digits of a number allow."""

from __future__ import annotations

import re
from typing import Literal

Kind = Literal["time", "rate", "energy", "per_energy", "power", "ratio", "count"]

TIMES = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "min": 60.0, "h": 3600.0, "d": 86400.0}
ENERGIES = {"J": 1.0, "kJ": 1e3, "MJ": 1e6, "Wh": 3600.0, "kWh": 3.6e6, "MWh": 3.6e9}
POWERS = {"W": 1.0, "mW": 1e-3, "kW": 1e3, "MW": 1e6}
RATIOS = {"": 1.0, "1": 1.0, "x": 1.0, "fraction": 1.0, "%": 0.01}
PREFIXES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9}
ITEMS = ("images", "samples", "sequences", "tokens", "items", "steps", "epochs", "requests", "B", "FLOP")

_RATE = re.compile(r"(?P<prefix>[kMG]?)(?P<item>[A-Za-z]+)/(?P<per>[A-Za-z]+)")
# ASCII digits only, although `float` accepts other scripts. Two exponent digits are enough for any real figure.
_NUMBER = re.compile(
    r"[-+]?(?P<whole>[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.(?P<fraction>[0-9]+))?(?:[eE](?P<power>[-+]?[0-9]{1,2}))?"
)
MAX_NUMBER = 40
"""Maximum length of a printed number, in characters."""


def unit_of(text: str) -> tuple[Kind, float] | None:
    """Return the kind of a unit and its factor to the base unit, or None if the unit is unknown."""
    for kind, table in (("time", TIMES), ("energy", ENERGIES), ("power", POWERS), ("ratio", RATIOS)):
        if text in table:
            return kind, table[text]  # type: ignore[return-value]
    if text in ITEMS:
        return "count", 1.0
    found = _RATE.fullmatch(text)
    if found is None or found["item"] not in ITEMS:
        return None
    if found["per"] in TIMES:
        return "rate", PREFIXES[found["prefix"]] / TIMES[found["per"]]
    if found["per"] in ENERGIES:
        return "per_energy", PREFIXES[found["prefix"]] / ENERGIES[found["per"]]
    return None


def counted(unit: str) -> str:
    """Return what a rate counts, such as `images` for images/s; empty for other units."""
    found = _RATE.fullmatch(unit)
    return found["item"] if found else ""


def printed(text: str) -> tuple[float, float, float] | None:
    """Return the value and bounds of a printed number (half a unit of its last digit), or None if it is not a number.

    Trailing zeros of a whole number may be significant or rounded. After the first two digits they count as rounded,
    which gives the wider interval: 4200 is 4150 to 4250, 4200.0 is 4199.95 to 4200.05, and 100 is 95 to 105. A comma
    separates thousands.
    """
    found = _NUMBER.fullmatch(text) if len(text) <= MAX_NUMBER else None
    if found is None:
        return None
    value, whole, fraction = float(text.replace(",", "")), found["whole"].replace(",", ""), found["fraction"]
    if fraction is not None:
        last = -len(fraction)
    else:
        digits, meant = whole.rstrip("0"), whole.lstrip("0")
        last = min(len(whole) - len(digits), max(0, len(meant) - 2)) if digits else 0
    half = 0.5 * 10.0 ** (last + int(found["power"] or 0))
    return value, value - half, value + half


def known_units() -> str:
    """List all units for an error message."""
    plain = [unit for table in (TIMES, ENERGIES, POWERS, RATIOS) for unit in table if unit]
    items = ", ".join(ITEMS)
    return f"{', '.join(plain)}; {items}; and these per time or per energy, such as images/s, ktokens/s, images/Wh"
