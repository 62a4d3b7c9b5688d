"""Units of printed figures, and the interval that the printed digits of a number allow."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Literal

Kind = Literal[
    "time", "rate", "energy", "per_energy", "power", "ratio", "count", "memory", "money", "money_rate", "money_per_item"
]

TIMES = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "min": 60.0, "h": 3600.0, "d": 86400.0}
CLOCKS = ("h:mm:ss", "h:mm", "mm:ss")
"""Times written with colons; their values are in seconds."""
ENERGIES = {"J": 1.0, "kJ": 1e3, "MJ": 1e6, "Wh": 3600.0, "kWh": 3.6e6, "MWh": 3.6e9}
POWERS = {"W": 1.0, "mW": 1e-3, "kW": 1e3, "MW": 1e6}
RATIOS = {"": 1.0, "1": 1.0, "x": 1.0, "fraction": 1.0, "%": 0.01}
PREFIXES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
MEMORIES = {
    **{f"{prefix}B": PREFIXES[prefix] for prefix in "kMGTP"},
    **{f"{prefix}iB": 1024.0**power for power, prefix in enumerate("KMGT", start=1)},
}
MONEY = ("$", "EUR", "GBP", "CHF")
"""Amounts in different money are never converted; compare them only where the units are equal."""
ITEMS = ("images", "samples", "sequences", "tokens", "items", "steps", "epochs", "requests", "B", "FLOP", "parameters")

_RATE = re.compile(r"(?P<prefix>[kMGTPE]?)(?P<item>[A-Za-z]+)/(?P<per>[A-Za-z]+)")
_COUNT = re.compile(rf"(?P<prefix>[kMGTPE]?)(?P<item>{'|'.join(ITEMS)})")
_PRICE = re.compile(r"(?P<money>[$A-Z]+)/(?P<per>[A-Za-z]+)")
_CLOCK = re.compile(r"(?:(?P<first>[0-9]{1,5}):)?(?P<middle>[0-9]{1,5}):(?P<last>[0-9]{2})(?P<fraction>\.[0-9]{1,9})?")
# ASCII digits only, although `float` accepts other scripts. Two exponent digits are enough for any real figure.
_NUMBER = re.compile(
    r"[-+]?(?P<whole>[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.(?P<fraction>[0-9]+))?(?:[eE](?P<power>[-+]?[0-9]{1,2}))?"
)
MAX_NUMBER = 40
"""Maximum length of a printed number, in characters."""


# Asked for every figure, by most rules.
@lru_cache(maxsize=1024)
def unit_of(text: str) -> tuple[Kind, float] | None:
    """Return the kind of a unit and its factor to the base unit, or None if the unit is unknown."""
    tables: tuple[tuple[Kind, dict[str, float]], ...] = (
        ("time", TIMES),
        ("energy", ENERGIES),
        ("power", POWERS),
        ("ratio", RATIOS),
        ("memory", MEMORIES),
    )
    for kind, table in tables:
        if text in table:
            return kind, table[text]
    if text in CLOCKS:
        return "time", 1.0
    if text in MONEY:
        return "money", 1.0
    count = _COUNT.fullmatch(text)
    if count is not None:
        return "count", PREFIXES[count["prefix"]]
    rate = _RATE.fullmatch(text)
    if rate is None or rate["item"] not in ITEMS:
        return _price_of(text)
    if rate["per"] in TIMES:
        return "rate", PREFIXES[rate["prefix"]] / TIMES[rate["per"]]
    if rate["per"] in ENERGIES:
        return "per_energy", PREFIXES[rate["prefix"]] / ENERGIES[rate["per"]]
    return None


def _price_of(text: str) -> tuple[Kind, float] | None:
    """Return the kind and the factor of a price such as $/h or $/Mtokens."""
    price = _PRICE.fullmatch(text)
    if price is None or price["money"] not in MONEY:
        return None
    if price["per"] in TIMES:
        return "money_rate", 1 / TIMES[price["per"]]
    count = _COUNT.fullmatch(price["per"])
    return ("money_per_item", 1 / PREFIXES[count["prefix"]]) if count else None


def base_unit(unit: str) -> str:
    """Return the unit of a figure's value, whatever unit it was printed in."""
    known = unit_of(unit)
    if known is None or known[0] in ("ratio", "count", "money"):
        return unit
    money, _, per = unit.partition("/")
    count = _COUNT.fullmatch(per)
    bases: dict[Kind, str] = {
        "time": "s",
        "energy": "J",
        "power": "W",
        "memory": "B",
        "rate": f"{counted(unit)}/s",
        "per_energy": f"{counted(unit)}/J",
        "money_rate": f"{money}/s",
        "money_per_item": f"{money}/{count['item'] if count else per}",
    }
    return bases[known[0]]


def counted(unit: str) -> str:
    """Return what a rate counts, such as `images` for images/s; empty for other units."""
    rate = _RATE.fullmatch(unit)
    return rate["item"] if rate else ""


def printed(text: str) -> tuple[float, float, float] | None:
    """Return the value and bounds of a printed number (half a unit of its last digit), or None if it is not a number.

    Trailing zeros of a whole number may be significant or rounded. After the first two digits they count as rounded,
    which gives the wider interval: 4200 is 4150 to 4250, 4200.0 is 4199.95 to 4200.05, and 100 is 95 to 105. A comma
    separates thousands.
    """
    match = _NUMBER.fullmatch(text) if len(text) <= MAX_NUMBER else None
    if match is None:
        return None
    value, whole, fraction = float(text.replace(",", "")), match["whole"].replace(",", ""), match["fraction"]
    if fraction is not None:
        last = -len(fraction)
    else:
        digits, meant = whole.rstrip("0"), whole.lstrip("0")
        last = min(len(whole) - len(digits), max(0, len(meant) - 2)) if digits else 0
    half = 0.5 * 10.0 ** (last + int(match["power"] or 0))
    return value, value - half, value + half


def clock(text: str, unit: str) -> tuple[float, float, float] | None:
    """Return the seconds of a time such as 03:19:59 with their bounds, or None if it does not fit the unit.

    Half of the last unit is the rounding: half a second, or half a minute for h:mm.
    """
    match = _CLOCK.fullmatch(text) if len(text) <= MAX_NUMBER else None
    if match is None or (match["first"] is not None) != (unit == "h:mm:ss"):
        return None
    middle, last = int(match["middle"]), int(match["last"])
    if last > 59 or (match["first"] is not None and middle > 59) or (unit == "h:mm" and match["fraction"]):
        return None
    scale = 60 if unit == "h:mm" else 1
    seconds = 3600 * int(match["first"] or 0) + scale * (60 * middle + last) + float(match["fraction"] or 0)
    half = 0.5 * scale * 10.0 ** -(len(match["fraction"]) - 1 if match["fraction"] else 0)
    return seconds, max(0.0, seconds - half), seconds + half


def known_units() -> str:
    """List all units for an error message."""
    plain = [unit for table in (TIMES, ENERGIES, POWERS, RATIOS, MEMORIES) for unit in table if unit]
    items = ", ".join(ITEMS)
    listed = f"{', '.join((*plain, *CLOCKS, *MONEY))}; {items}"
    return f"{listed}; and these per time or per energy, such as images/s, ktokens/s, images/Wh"
