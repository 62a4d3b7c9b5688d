"""Compare energy that others measured (Slurm, a wattmeter) with ours. Changes no record.

Slurm, one line per step; times in seconds since 1970, because sacct prints local times without their zone:
    SLURM_TIME_FORMAT=%s sacct -P -j JOB -o JobIDRaw,Start,End,ConsumedEnergyRaw

A meter, CSV with a header; other columns are ignored. `timestamp` is seconds since 1970 or ISO 8601 with its offset
(2026-11-15T12:00:00.5+01:00), `power_w` is watts:
    timestamp,power_w
    1794744000.0,412.5
"""

from __future__ import annotations

import io
import re
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Literal

import numpy as np

from steelyard.errors import SHOWN_PROBLEMS, InputError, Problem, printable
from steelyard.inputs.validate import read_bounded
from steelyard.numbers import short
from steelyard.stats.energy import Nature, WindowEnergy, energy_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from steelyard.contracts.energy import DomainScope
    from steelyard.contracts.record import Quantity

MAX_BYTES = 64 << 20
MAX_ROWS = 2_000_000
MAX_LINE = 4096
MAX_WATTS = 1e9
MAX_UNIX_S = 4e10
MAX_PLACES = 9
NUMBER = re.compile(r"[+-]?[0-9]{1,30}(?:\.([0-9]{0,30}))?(?:[eE]([+-]?[0-9]{1,3}))?")
SLURM_COLUMNS = ("JobIDRaw", "Start", "End", "ConsumedEnergyRaw")
METER_COLUMNS = ("timestamp", "power_w")
SLURM_COMMAND = "SLURM_TIME_FORMAT=%s sacct -P -j JOB -o JobIDRaw,Start,End,ConsumedEnergyRaw"
# What Slurm writes for "no value" in 64 and 32 bits.
NO_VALUE = {2**64 - 1, 2**64 - 2, 2**32 - 1, 2**32 - 2}
# What its plugins measure (AcctGatherEnergyType, without acct_gather_energy/).
PLUGIN_SCOPES: dict[str, DomainScope] = {
    "ipmi": "node",
    "xcc": "node",
    "pm_counters": "node",
    "ibmaem": "node",
    "rapl": "cpu",
    "gpu": "device",
}
# Accounting has steps begin and end at whole seconds.
SLURM_EDGE_S = 1.0
GAIN = 0.05
# Possible error of a meter's clock.
CLOCK_ERROR_S = 1.0
# Two windows count as the same if their edges differ by less than this share.
SAME_WINDOW = 0.02
# What each scope includes.
HOLDS: dict[str, frozenset[str]] = {
    "device": frozenset({"die"}),
    "module": frozenset({"die", "device", "cpu", "memory", "io"}),
    "node": frozenset({"die", "device", "module", "cpu", "memory", "io", "board"}),
}

Answer = Literal["agree", "consistent", "disagree", "unknown"]
"""agree: equal within both intervals. consistent: one includes more than the other, and has at least as much.
disagree: they cannot both be right. unknown: they cannot be compared."""


@dataclass(frozen=True)
class MeteredEnergy:
    """Joules of a window as somebody measured them, or why there are none."""

    source: str
    scope: DomainScope | None
    """None: it is unknown what was measured."""
    value_j: float | None
    low_j: float | None = None
    high_j: float | None = None
    start_s: float | None = None
    stop_s: float | None = None
    """Seconds since 1970."""
    reasons: tuple[str, ...] = ()
    """Why there is no value, or notes on it."""


@dataclass(frozen=True)
class MeterAgreement:
    """The result of comparing two measurements of energy."""

    answer: Answer
    ratio: float | None
    """The other's joules over ours."""
    difference_w: float | None
    """How much higher the other's mean power is."""
    reasons: tuple[str, ...]


# -- Slurm --------------------------------------------------------------------------------------------------------


def read_slurm(path: Path, *, plugin: str | None = None) -> dict[str, MeteredEnergy]:
    """Read the energy of each step from saved output of sacct."""
    return parse_slurm(_decoded(path), plugin=plugin)


def parse_slurm(text: str, *, plugin: str | None = None) -> dict[str, MeteredEnergy]:
    """Parse energy by step. `plugin`: the site's AcctGatherEnergyType; without it the scope is unknown."""
    if plugin is not None and plugin not in PLUGIN_SCOPES:
        problem = Problem("plugin", f"{plugin} is not known", ", ".join(PLUGIN_SCOPES))
        raise InputError("unknown energy plugin of Slurm", problems=(problem,))
    scope = PLUGIN_SCOPES.get(plugin or "")
    steps: dict[str, MeteredEnergy] = {}
    problems: list[Problem] = []
    for line, cells in _rows(text, "sacct output", "|", SLURM_COLUMNS, SLURM_COMMAND):
        try:
            steps[cells["JobIDRaw"][:80]] = _step(cells, scope)
        except ValueError as error:
            _note(problems, line, str(error), "whole numbers; Start and End in seconds since 1970")
    _refuse("sacct output cannot be read", problems, SLURM_COMMAND)
    return steps


def _step(cells: dict[str, str], scope: DomainScope | None) -> MeteredEnergy:
    name = f"Slurm step {printable(cells['JobIDRaw'][:80])}"
    start_s, stop_s = _slurm_time(cells["Start"]), _slurm_time(cells["End"])
    energy = cells["ConsumedEnergyRaw"].strip()
    if energy and not re.fullmatch(r"[0-9]{1,20}", energy):
        raise ValueError(f'ConsumedEnergyRaw is "{energy[:40]}"')
    if not energy or int(energy) == 0 or int(energy) in NO_VALUE:
        reason = "Slurm collected no energy for this step: it reports 0 or nothing"
        return MeteredEnergy(name, scope, None, start_s=start_s, stop_s=stop_s, reasons=(reason,))
    value_j = float(energy)
    half_j = GAIN * value_j
    if start_s is not None and stop_s is not None and stop_s > start_s:
        half_j += value_j * min(1.0, 2 * SLURM_EDGE_S / (stop_s - start_s))
    notes = ["on a shared node, Slurm includes the energy of other jobs"]
    if scope is None:
        notes.append("what Slurm measures depends on its plugin: scontrol show config | grep AcctGatherEnergyType")
    return MeteredEnergy(
        name, scope, value_j, max(0.0, value_j - half_j), value_j + half_j, start_s, stop_s, tuple(notes)
    )


def _slurm_time(text: str) -> float | None:
    """Parse seconds since 1970; None while a step is running or has not begun."""
    words = text.strip()
    if words in ("", "Unknown", "None"):
        return None
    if not re.fullmatch(r"[0-9]{1,11}", words):
        raise ValueError(f'"{words[:40]}" is not in seconds since 1970')
    return float(words)


# -- a meter ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class MeterSeries:
    """The readings of a meter."""

    source: str
    time_s: NDArray[np.float64]
    """Seconds since 1970, never decreasing."""
    power_w: NDArray[np.float64]
    resolution_w: float
    """The value of the last decimal place."""


def read_meter(path: Path) -> MeterSeries:
    """Read the CSV file of a meter."""
    return parse_meter(_decoded(path), path.name)


def parse_meter(text: str, name: str) -> MeterSeries:
    """Parse the CSV text of a meter. Every invalid line is reported; one is enough to refuse the file."""
    times: list[float] = []
    powers: list[float] = []
    problems: list[Problem] = []
    places = 0
    step = "start the file with a header `timestamp,power_w`"
    for line, cells in _rows(text, name, ",", METER_COLUMNS, step):
        try:
            time_s, words = _meter_time(cells["timestamp"]), cells["power_w"].strip()
            power_w = _number(words)
            if power_w is None or not 0 <= power_w <= MAX_WATTS:
                raise ValueError(f'"{words[:40]}" is not a power in watts')
            if times and time_s < times[-1]:
                raise ValueError("its time is before that of the previous line")
        except ValueError as error:
            _note(problems, line, str(error), "seconds since 1970 or ISO 8601 with an offset; watts from 0 on")
            continue
        times.append(time_s)
        powers.append(power_w)
        # Number of decimal places.
        digits = NUMBER.fullmatch(words)
        places = max(places, len(digits[1] or "") - int(digits[2] or 0) if digits else 0)
    _refuse(f"{name} is not a valid meter file", problems, step)
    return MeterSeries(name, np.array(times), np.array(powers), 10.0 ** -min(places, MAX_PLACES))


def _meter_time(text: str) -> float:
    words = text.strip()
    number = _number(words)
    if number is not None:
        time_s = number
    else:
        try:
            moment = datetime.fromisoformat(words[:40])
        except ValueError:
            raise ValueError(f'"{words[:40]}" is not a time') from None
        if moment.tzinfo is None:
            raise ValueError(f'"{words[:40]}" has no time zone') from None
        time_s = moment.timestamp()
    if not 0 <= time_s <= MAX_UNIX_S:
        raise ValueError(f'"{words[:40]}" is not a time since 1970')
    return time_s


def _number(words: str) -> float | None:
    """Parse a number as meters write it; float() would also accept others, such as 4_12."""
    return float(words) if NUMBER.fullmatch(words) else None


def meter_energy(
    series: MeterSeries,
    start_s: float,
    stop_s: float,
    *,
    scope: DomainScope | None,
) -> MeteredEnergy:
    """Return the meter's joules in a window; the interval includes the possible error of its clock."""
    nature = Nature("gauge", series.resolution_w, gain=GAIN)
    spent_s = np.zeros_like(series.time_s)

    def energy(shift_s: float) -> WindowEnergy:
        edges = (start_s + shift_s, stop_s + shift_s)
        return energy_of(nature, series.time_s, series.power_w, spent_s, *edges, random_phase=False)

    middle = energy(0.0)
    name = f"meter {printable(series.source[:200])}"
    if middle.value_j is None or middle.low_j is None or middle.high_j is None:
        return MeteredEnergy(name, scope, None, start_s=start_s, stop_s=stop_s, reasons=middle.reasons)
    shifted = [one - middle.value_j for shift in (-1, 1) if (one := energy(shift * CLOCK_ERROR_S).value_j) is not None]
    if len(shifted) < 2:
        # One edge gains while the other loses: at most the highest power minus the lowest, which is unknown if the
        # shifted window leaves the file.
        inside = series.time_s[0] <= start_s - CLOCK_ERROR_S and stop_s + CLOCK_ERROR_S <= series.time_s[-1]
        most_j = CLOCK_ERROR_S * float(series.power_w.max() - (series.power_w.min() if inside else 0.0))
        shifted += [-most_j, most_j]
    low_j = middle.low_j + min([0.0, *shifted])
    high_j = middle.high_j + max([0.0, *shifted])
    return MeteredEnergy(name, scope, middle.value_j, max(0.0, low_j), high_j, start_s, stop_s, middle.reasons)


# -- compared with ours -------------------------------------------------------------------------------------------


def ours(quantity: Quantity, scope: DomainScope | None, start_s: float | None, stop_s: float | None) -> MeteredEnergy:
    """Return one of our energy quantities. `scope`: what its domains are; the quantity only names the job."""
    if quantity.unit != "J":
        raise InputError(f"a quantity in {quantity.unit} is not an energy")
    name = f"our energy in the {quantity.window} window"
    if quantity.value is None:
        return MeteredEnergy(name, scope, None, start_s=start_s, stop_s=stop_s, reasons=(quantity.reason or "unknown",))
    low_j, high_j = (
        (quantity.interval.low, quantity.interval.top) if quantity.interval else (quantity.value, quantity.value)
    )
    reasons = quantity.validity.reasons if quantity.validity else ()
    return MeteredEnergy(name, scope, quantity.value, low_j, high_j, start_s, stop_s, reasons)


def check_agreement(own: MeteredEnergy, other: MeteredEnergy) -> MeterAgreement:
    """Return whether two measurements can both be right, given their scopes and windows."""
    if own.value_j is None or other.value_j is None:
        unknown = own if own.value_j is None else other
        return MeterAgreement("unknown", None, None, (f"{unknown.source}: {'; '.join(unknown.reasons)}",))
    ratio = other.value_j / own.value_j if own.value_j > 0 else None
    by_scope, scope_words = _scopes(own, other)
    by_window, window_words = _windows(own, other)
    words = tuple(word for word in (scope_words, window_words) if word)
    relations = {by_scope, by_window} - {"same"}
    length_s = (own.stop_s or 0.0) - (own.start_s or 0.0)
    difference_w = (other.value_j - own.value_j) / length_s if by_window == "same" and length_s > 0 else None
    if not relations <= {"more"} and not relations <= {"less"}:
        return MeterAgreement("unknown", ratio, difference_w, (*words, "neither must be larger than the other"))
    answer, why = _compared(own, other, next(iter(relations), "same"))
    return MeterAgreement(answer, ratio, difference_w, (why, *words))


def _compared(own: MeteredEnergy, other: MeteredEnergy, relation: str) -> tuple[Answer, str]:
    """`relation`: whether the other includes the same, more or less than ours."""
    own_j, other_j = _bounds(own), _bounds(other)
    figures = f"{other.value_j:,.6g} J compared with our {own.value_j:,.6g} J"
    apart = other_j[1] < own_j[0], own_j[1] < other_j[0]
    if relation == "same":
        if any(apart):
            return "disagree", f"{figures}: the intervals do not overlap"
        return "agree", f"{figures}: the intervals overlap"
    if apart[0] if relation == "more" else apart[1]:
        return "disagree", f"{figures}: the whole has less than its part"
    return "consistent", f"{figures}: the whole has at least as much as its part; this is only a bound"


def _bounds(one: MeteredEnergy) -> tuple[float, float]:
    assert one.value_j is not None
    return (
        one.value_j if one.low_j is None else one.low_j,
        one.value_j if one.high_j is None else one.high_j,
    )


def _scopes(own: MeteredEnergy, other: MeteredEnergy) -> tuple[str, str]:
    if own.scope is None or other.scope is None:
        return "unknown", f"it is not known what {(own if own.scope is None else other).source} measures"
    if own.scope == other.scope:
        return "same", ""
    if own.scope in HOLDS.get(other.scope, ()):
        return "more", f"the other measures a {other.scope}, which includes more than our {own.scope}"
    if other.scope in HOLDS.get(own.scope, ()):
        return "less", f"the other measures a {other.scope}, which is only part of our {own.scope}"
    return "unknown", f"the other measures a {other.scope}, ours is of a {own.scope}: neither includes the other"


def _windows(own: MeteredEnergy, other: MeteredEnergy) -> tuple[str, str]:
    if own.start_s is None or own.stop_s is None or other.start_s is None or other.stop_s is None:
        return "unknown", "the start or end of one of the two is not known"
    slack_s = SAME_WINDOW * (own.stop_s - own.start_s)
    early_s, late_s = own.start_s - other.start_s, other.stop_s - own.stop_s
    if abs(early_s) + abs(late_s) <= slack_s:
        return "same", ""
    theirs, ours = (short(length, 5) for length in (other.stop_s - other.start_s, own.stop_s - own.start_s))
    text = f"the other's window is {theirs} s, ours is {ours} s"
    if early_s >= -slack_s and late_s >= -slack_s:
        return "more", f"{text} and inside it"
    if early_s <= slack_s and late_s <= slack_s and other.start_s < own.stop_s and own.start_s < other.stop_s:
        return "less", f"{text} and contains it"
    return "unknown", f"{text}; they overlap only in part or not at all"


# -- untrusted text -----------------------------------------------------------------------------------------------


def _decoded(path: Path) -> str:
    try:
        return read_bounded(path, MAX_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path.name} is not text in UTF-8 (byte {error.start:,})") from None


def _rows(
    text: str, name: str, delimiter: str, wanted: tuple[str, ...], next_step: str
) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield line number and the wanted columns of each line that is not blank."""
    columns: dict[str, int] = {}
    count = 0
    for line, words in enumerate(io.StringIO(text), 1):
        if len(words) > MAX_LINE or "\0" in words:
            raise InputError(f"{name}: line {line} is not a line of such a file", next_step=next_step)
        if not words.strip():
            continue
        cells = words.rstrip("\r\n").split(delimiter)
        if not columns:
            columns = {cell.strip(): number for number, cell in enumerate(cells)}
            if missing := [column for column in wanted if column not in columns]:
                seen, valid = ", ".join(columns)[:200], ", ".join(wanted)
                problems = tuple(Problem("header", f"no column {each} in {seen}", valid) for each in missing)
                raise InputError(f"{name} has the wrong header", problems=problems, next_step=next_step)
            continue
        count += 1
        if count > MAX_ROWS:
            raise InputError(f"{name} has more than {MAX_ROWS:,} lines")
        yield line, {key: cells[columns[key]] if columns[key] < len(cells) else "" for key in wanted}
    if not count:
        raise InputError(f"{name} has no lines of data", next_step=next_step)


def _note(problems: list[Problem], line: int, problem: str, valid: str) -> None:
    # One more than are shown: the message then says that there are more.
    if len(problems) <= SHOWN_PROBLEMS:
        problems.append(Problem(f"line {line}", problem, valid))


def _refuse(what: str, problems: list[Problem], next_step: str) -> None:
    if problems:
        raise InputError(what, problems=tuple(problems), next_step=next_step)
