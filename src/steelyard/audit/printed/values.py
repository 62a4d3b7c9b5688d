"""Numbers as printed in a cell: 938 img/s, 22.59M, ~36 hours, 03:19:59, 77.12 +/- 0.11. What is unclear is refused."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import lru_cache

from steelyard.audit.printed import spellings
from steelyard.rules.table.row import Amount
from steelyard.rules.table.units import CLOCKS, MAX_NUMBER, PREFIXES, Kind, clock, printed, unit_of

MAX_TEXT = 120
"""Maximum length of a cell that can hold a figure."""

_THIN = "\u00a0\u2009\u202f\u2007'\u2019"
_DIGITS = rf"(?:[0-9]{{1,3}}(?:(?:[{_THIN}][0-9]{{3}})+|(?:,[0-9]{{3}})+)|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+"
_NUMBER = re.compile(
    rf"(?P<about>[~≈∼≃]|ca\.? |approx\.? |about )?\s?(?P<money>\$|€|£|US\$)?\s?(?P<times>[x×])?\s?(?P<sign>[-+−])?"
    rf"(?P<digits>{_DIGITS})"
    r"(?:[eE](?P<power>[-+]?[0-9]{1,2})|\s?[×x*·]\s?10\^\{?(?P<raised>[-+−]?[0-9]{1,2})\}?)?"
    r"(?P<rest>.*)",
    re.DOTALL,
)
_SPREAD = re.compile(rf"\s?\(?(?:±|\+/-|\+-|\+/−)\s?(?P<spread>{_DIGITS})\s?(?P<percent>%)?\)?(?P<rest>.*)", re.DOTALL)
_MARKS = re.compile(r"(?:\s?(?:\^\{[^{}]{0,12}\}|[*†‡§¶#¹²³⁴⁵⁶⁷⁸⁹]))+$")
_PLAIN = re.compile(r"[0-9]+(?:\.[0-9]+)?")
_RAISED = str.maketrans("⁺⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "+-0123456789")
_TEN = re.compile(r"(?<=10)[⁺⁻]?[⁰¹²³⁴⁵⁶⁷⁸⁹]+")
_EXPONENT = re.compile(r"(?<![0-9.,])10\s?\^\{?[-+−]?[0-9]")
_SUFFIX = re.compile(
    r"\s?(?P<suffix>[kKMGBT]|[Mm]illion|[Bb]illion|[Tt]housand|mn|bn)(?![A-Za-z/])(?P<rest>.*)", re.DOTALL
)
_SUFFIXES = {
    "k": "k",
    "K": "k",
    "thousand": "k",
    "M": "M",
    "million": "M",
    "mn": "M",
    "G": "G",
    "B": "G",
    "billion": "G",
    "bn": "G",
    "T": "T",
}
_PARTS = re.compile(
    r"(?:(?P<d>[0-9]{1,5})\s?(?:d|days?))?,?\s?(?:(?P<h>[0-9]{1,5})\s?(?:h|hrs?|hours?))?,?\s?(?:and )?"
    r"(?:(?P<min>[0-9]{1,5})\s?(?:m|mins?|minutes?))?,?\s?(?:and )?(?:(?P<s>[0-9]{1,5})\s?(?:s|secs?|seconds?))?"
)
_CLOCK = re.compile(r"[0-9]{1,5}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,6})?)?")
_EUROPEAN = re.compile(r"[~≈]?[-+]?(?:[0-9]{1,3}(?:\.[0-9]{3})+|[0-9]+),(?:[0-9]{1,2}|[0-9]{4,})(?:\D.*)?", re.DOTALL)
_ENGLISH = re.compile(r".*?(?:[0-9]\.[0-9]|[0-9],[0-9]{3},[0-9]{3}).*", re.DOTALL)
_SECONDS = {"d": 86400, "h": 3600, "min": 60, "s": 1}


class UnreadableError(ValueError):
    """A cell that cannot be read, and why."""


@dataclass(frozen=True)
class Unit:
    """A unit as printed, in steelyard's spelling, with the scope that its text names."""

    name: str
    scope: str = ""
    """`device` or `node` for units such as images/s/GPU."""
    note: str = ""


@dataclass(frozen=True)
class Printed:
    """A number as printed: the text of its digits, its bounds, and the unit beside it."""

    text: str
    value: float
    low: float
    high: float
    unit: Unit | None = None
    prefix: str = ""
    """k, M, G or T after the number."""
    spread: bool = False
    """Whether the bounds come from a printed +/-."""


def is_empty(text: str) -> bool:
    """Return whether a cell states nothing, such as `-` or `N/A`."""
    if text[:1].isdigit():
        return False
    return _MARKS.sub("", text).strip().casefold() in spellings.EMPTY


def failure(text: str) -> str | None:
    """Return the status that a cell states instead of a figure, such as out_of_memory."""
    return spellings.FAILED.get(_MARKS.sub("", text).strip().casefold())


def comma_is_decimal(cells: list[str]) -> bool | None:
    """Return whether the commas of a table are decimal points; None if its cells contradict each other."""
    european = any("," in cell and _EUROPEAN.fullmatch(cell) for cell in cells)
    if not european:
        return False
    return None if any(_ENGLISH.fullmatch(cell) for cell in cells if "." in cell or "," in cell) else True


@lru_cache(maxsize=4096)
def unit_spelled(text: str) -> Unit | None:
    """Return the unit that a text spells, such as images/s for `img/sec`; None if it is not a unit."""
    text = re.sub(r"\s+", " ", text).strip().removeprefix("in ").strip()
    if not text or len(text) > 40:
        return None
    low = text.lower()
    plain: tuple[tuple[dict[str, str], str], ...] = (
        (spellings.TIMES, low),
        (spellings.CLOCKS, low),
        (spellings.MEMORIES, text),
        (spellings.POWERS, text),
        (spellings.ENERGIES, text),
        (spellings.MONEY, text),
    )
    for table, key in plain:
        if key in table:
            return Unit(table[key])
    if low in ("%", "percent", "pct"):
        return Unit("%")
    if low in ("x", "×", "times"):
        return Unit("x")
    return _rate_spelled(text)


_PER = re.compile(r"\s?/\s?| per |(?<=[a-z]) ?⁻¹", re.IGNORECASE)
_SCOPES = {**dict.fromkeys(spellings.DEVICE_WORDS, "device"), **dict.fromkeys(spellings.NODE_WORDS, "node")}
_LETTERS = {"K": "k", "B": "G"}
_FLOPS = re.compile(r"(?P<prefix>[kKMGTPE]?)(?P<name>FLOPS|FLOP|FLOPs|flops|Flops|flop)")
_COUNTED = re.compile(r"(?P<prefix>[kKMGB]?)(?P<item>[A-Za-z.]+)")
_MILLIONS = re.compile(r"(?P<count>1|1,000|1000)\s?(?P<prefix>[kKMB]?)\s?(?P<item>[A-Za-z]+)")


def _rate_spelled(text: str) -> Unit | None:
    """Return the unit of a rate, FLOP/s, a price, or samples per energy."""
    parts = [part.strip() for part in _PER.split(text)]
    scope = ""
    for index in (len(parts) - 1, 1):
        if 0 < index < len(parts) and parts[index].lower() in _SCOPES:
            scope = _SCOPES[parts.pop(index).lower()]
            break
    head = parts[0]
    if len(parts) == 1 and head.lower() in spellings.RATES:
        unit, note = spellings.RATES[head.lower()]
        return Unit(unit, scope, note)
    if (flops := _FLOPS.fullmatch(head)) is not None:
        return _flops_spelled(flops, parts, scope)
    if len(parts) == 2 and head in spellings.MONEY:
        return _price_spelled(spellings.MONEY[head], parts[1])
    item, prefix = _item_spelled(head)
    if item is None or len(parts) not in (2, 3):
        return None
    time = spellings.TIMES.get(parts[1].lower())
    if len(parts) == 3:
        # Samples per second and watt are samples per joule.
        return Unit(f"{prefix}{item}/J", scope) if spellings.POWERS.get(parts[2]) == "W" and time == "s" else None
    per = time or spellings.ENERGIES.get(parts[1])
    return Unit(f"{prefix}{item}/{per}", scope) if per else None


def _flops_spelled(match: re.Match[str], parts: list[str], scope: str) -> Unit | None:
    """Return FLOP/s with its prefix; None if the text means an amount of work, or may mean either."""
    prefix = "k" if match["prefix"] == "K" else match["prefix"]
    if len(parts) == 2:
        return Unit(f"{prefix}FLOP/s", scope) if spellings.TIMES.get(parts[1].lower()) == "s" else None
    # FLOPS is a rate by its capital S. "TFLOPs/GPU" is one too: work has no such scope.
    rate = match["name"] == "FLOPS" or (scope != "" and match["name"].lower() == "flops")
    return Unit(f"{prefix}FLOP/s", scope) if rate and len(parts) == 1 else None


def _item_spelled(text: str) -> tuple[str | None, str]:
    """Return what is counted and the prefix before it: tokens and k for `ktok`."""
    if text.lower() in spellings.ITEMS:
        return spellings.ITEMS[text.lower()], ""
    match = _COUNTED.fullmatch(text)
    if match is None or not match["prefix"]:
        return None, ""
    return spellings.ITEMS.get(match["item"].lower()), _LETTERS.get(match["prefix"], match["prefix"])


def _price_spelled(money: str, per: str) -> Unit | None:
    if (time := spellings.TIMES.get(per.lower())) is not None:
        return Unit(f"{money}/{time}")
    match = _MILLIONS.fullmatch(per)
    if match is None:
        item, prefix = _item_spelled(per)
        return Unit(f"{money}/{prefix}{item}") if item else None
    item, prefix = spellings.ITEMS.get(match["item"].lower()), _LETTERS.get(match["prefix"], match["prefix"])
    thousand = match["count"] != "1"
    if item is None or (thousand and prefix):
        return None
    return Unit(f"{money}/{'k' if thousand else prefix}{item}")


def time_per_item(text: str) -> tuple[str, str] | None:
    """Return the item and the unit of time of `s/it` or `ms per step`; None if a text is not such a unit."""
    parts = [part.strip().lower() for part in _PER.split(text)]
    if len(parts) != 2 or parts[0] not in spellings.TIMES or parts[1] not in spellings.ITEMS:
        return None
    return spellings.ITEMS[parts[1]], spellings.TIMES[parts[0]]


@lru_cache(maxsize=16384)
def read_number(text: str, *, decimal_comma: bool | None = False) -> Printed:
    """Read a printed number with its unit; raise UnreadableError with the reason if it is not one number."""
    if len(text) > MAX_TEXT:
        raise UnreadableError("too long for a number")
    if _PLAIN.fullmatch(text) and (plain := printed(text)) is not None:
        # Most cells of a large table.
        return Printed(text, *plain)
    text = _TEN.sub(lambda match: f"^{{{match[0].translate(_RAISED)}}}", text)
    # The 6 of 10^{6} is an exponent, not a footnote mark.
    bare = text.strip() if _EXPONENT.search(text) else _MARKS.sub("", text).strip()
    if _CLOCK.fullmatch(bare):
        return _read_clock(bare)
    if parts := _read_parts(bare):
        return parts
    if "," in bare:
        bare = _settle_comma(bare, decimal_comma=decimal_comma)
    match = _NUMBER.fullmatch(bare)
    if match is None:
        raise UnreadableError("not a number")
    if match["sign"] == "+":
        raise UnreadableError("a difference, not a figure")
    number = _digits_of(match)
    read = printed(number) if len(number) <= MAX_NUMBER else None
    if read is None:
        raise UnreadableError("not a number")
    value, low, high = read
    if match["about"]:
        low, high = value - 2 * (value - low), value + 2 * (high - value)
    spread, prefix, rest = _read_rest(match["rest"])
    unit = _unit_beside(match["money"], match["times"], rest)
    return Printed(number, value, min(low, value - spread), max(high, value + spread), unit, prefix, spread=spread > 0)


def is_number(text: str) -> bool:
    """Return whether a cell can be read as one number."""
    try:
        read_number(text)
    except UnreadableError:
        return False
    return True


def _digits_of(match: re.Match[str]) -> str:
    """Return the digits of a number as `float` reads them, apart from thousands commas."""
    digits = re.sub(rf"[{_THIN}]", "", match["digits"])
    digits = f"0{digits}" if digits.startswith(".") else digits
    power = (match["power"] or match["raised"] or "").replace("−", "-")
    return ("-" if match["sign"] else "") + digits + (f"e{int(power)}" if power else "")


def _read_rest(rest: str) -> tuple[float, str, str]:
    """Read what follows a number: its +/-, its k, M or B, and the unit that is left."""
    by = 0.0
    if (spread := _SPREAD.fullmatch(rest)) is not None:
        by = float(re.sub(rf"[{_THIN},]", "", spread["spread"]))
        # 77.12 +/- 0.11 % is in percent. Relative to a rate it would be unclear, and its unit does not fit there.
        rest = (spread["percent"] or "") + spread["rest"]
    suffix = _SUFFIX.fullmatch(rest)
    if suffix is None or (suffix["suffix"] in ("G", "T") and suffix["rest"].strip()):
        return by, "", rest
    letter, rest = suffix["suffix"], suffix["rest"]
    if spread is None and (later := _SPREAD.fullmatch(rest)) is not None:
        after = later["rest"].strip()
        if not after.startswith(letter):
            raise UnreadableError(f"the +/- has no {letter}")
        by, rest = float(re.sub(rf"[{_THIN},]", "", later["spread"])), after[len(letter) :]
    return by, _SUFFIXES.get(letter) or _SUFFIXES[letter.lower()], rest


def _settle_comma(text: str, *, decimal_comma: bool | None) -> str:
    """Return the text with thousands commas only, or raise if a comma may be a decimal point."""
    if decimal_comma is None:
        raise UnreadableError("a comma that may be a decimal point: other cells of the table use both")
    if not decimal_comma:
        return text
    match = re.match(r"[^0-9]*[0-9.]*,[0-9]+", text)
    if match is None:
        raise UnreadableError("not a number")
    if "," in text[match.end() :]:
        raise UnreadableError("two commas")
    return match[0].replace(".", "").replace(",", ".") + text[match.end() :]


def _unit_beside(money: str | None, times: str | None, rest: str) -> Unit | None:
    words = rest.strip()
    if words.startswith("(") and words.endswith(")"):
        words = words[1:-1]
        if not re.search(r"[A-Za-z%$]", words):
            raise UnreadableError("two numbers in one cell")
    if not words:
        return Unit(spellings.MONEY[money]) if money else Unit("x") if times else None
    if money:
        beside = unit_spelled(f"{money}{words}" if words.startswith("/") else f"{money}/{words.removeprefix('per ')}")
        if beside is None or times:
            raise UnreadableError(f'"{words}" after the number')
        return beside
    beside = unit_spelled(words)
    if beside is None or times:
        if words.lower() in spellings.DEVICE_WORDS | spellings.NODE_WORDS:
            return Unit("device" if words.lower() in spellings.DEVICE_WORDS else "node")
        raise UnreadableError(f'"{words}" after the number')
    return beside


def _read_clock(text: str) -> Printed:
    unit = "h:mm:ss" if text.count(":") == 2 else ""
    if not unit:
        # The heading must say whether these are hours and minutes or minutes and seconds.
        return Printed(text, 0.0, 0.0, 0.0, Unit(":"))
    seconds = clock(text, unit)
    if seconds is None:
        raise UnreadableError("not a time")
    return Printed(text, *seconds, Unit(unit))


def _read_parts(text: str) -> Printed | None:
    """Read a time such as `3h 20m` or `1 day 4 hours`; None if it has fewer than two parts."""
    match = _PARTS.fullmatch(text)
    named = {key: int(words) for key, words in match.groupdict().items() if words is not None} if match else {}
    if len(named) < 2:
        return None
    last = next(key for key in reversed(_SECONDS) if key in named)
    total = sum(_SECONDS[key] * count for key, count in named.items()) // _SECONDS[last]
    # All digits of the total are exact, also zeros at its end.
    digits = str(total)
    number = digits if not digits.endswith("0") else f"{digits[0]}.{digits[1:] or '0'}e{len(digits) - 1}"
    return Printed(number, float(total), total - 0.5, total + 0.5, Unit(last))


def to_amount(read: Printed, unit: Unit | None, kind: Kind | None) -> Amount:
    """Return the figure in its base unit. The unit beside the number counts before that of the heading."""
    chosen = read.unit or unit
    if chosen is None:
        raise UnreadableError("no unit")
    if chosen.name == ":":
        return _clock_amount(read.text, unit)
    known = unit_of(chosen.name)
    if known is None or (kind is not None and known[0] != kind):
        raise UnreadableError(f"{chosen.name} is not a unit of this figure")
    name, text, factor = chosen.name, read.text, known[1]
    if name in CLOCKS and read.unit is None:
        raise UnreadableError(f"not a time in {name}")
    if read.value < 0 and known[0] != "ratio":
        raise UnreadableError("negative")
    if read.prefix:
        bare = unit_of(name[1:])
        if known[0] not in ("rate", "count", "money", "per_energy") or (bare is not None and bare[0] == known[0]):
            raise UnreadableError(f"{read.prefix} before {name}")
        factor *= PREFIXES[read.prefix]
        # $ has no prefixes; an exponent keeps the digits.
        text = f"{text}e{round(math.log10(PREFIXES[read.prefix]))}" if known[0] == "money" else text
        name = name if known[0] == "money" else read.prefix + name
    return Amount(read.value * factor, read.low * factor, read.high * factor, name, text)


def _clock_amount(text: str, unit: Unit | None) -> Amount:
    if unit is None or unit.name not in CLOCKS:
        raise UnreadableError("h:mm or mm:ss? the heading does not say")
    seconds = clock(text, unit.name)
    if seconds is None:
        raise UnreadableError(f"not a time in {unit.name}")
    return Amount(*seconds, unit.name, text)
