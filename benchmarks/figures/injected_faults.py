"""[injected_faults] How many consistent tables get an arithmetic finding, and how many injected faults are found.

A generator makes random tables as in papers: several systems, device counts and models; times in s, min or h, energies
in Wh, kJ or kWh, rates with and without a prefix; values per job, node or device; missing values; two to five digits;
sublinear scaling with noise between runs; an epoch that may drop its last batch. All values of a row come from one set
of true amounts, with the generator's own arithmetic and units; it shares no code with the rules.

Then each of eight faults is put into one row of a table. A fault is visible if a relation between printed values is off
by more than twice its rounding interval. Invisible faults are counted separately, and their share is printed. A visible
fault is found if a finding with a fitting code names its row.

The wide form (`wide_tables.py`) has several batches, precisions and sequence lengths in one table, ratios in all
directions, and faults in half of the rows or in whole columns. There every visible wrong cell counts, and a row that is
right must not be named.
"""

from __future__ import annotations

import math
import random
import re
import sys
from collections import Counter
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING

import wide_tables
from figure import Figure, arguments, at_least, at_most, finish, slack_percent
from steelyard.audit.check import check_table
from steelyard.audit.table import parse_table

if TYPE_CHECKING:
    from collections.abc import Callable

    from steelyard.contracts.finding import Finding

# The rules were developed on tables of other seeds.
FIRST_SEED = 31_000_000
UNIT = {
    "time": {"s": 1.0, "min": 60.0, "h": 3600.0},
    "energy": {"Wh": 3600.0, "kJ": 1000.0, "kWh": 3.6e6},
    "power": {"W": 1.0, "kW": 1000.0},
    "rate": {"images/s": 1.0, "kimages/s": 1000.0},
    "per_energy": {"images/Wh": 1 / 3600.0, "images/kJ": 1 / 1000.0},
    "ratio": {"x": 1.0},
    "share": {"%": 0.01, "fraction": 1.0},
}
KIND = {
    "throughput": "rate",
    "throughput_per_device": "rate",
    "throughput_per_node": "rate",
    "epoch_time": "time",
    "energy_per_epoch": "energy",
    "energy_per_epoch_per_device": "energy",
    "power": "power",
    "power_per_device": "power",
    "images_per_energy": "per_energy",
    "speedup": "ratio",
    "efficiency": "share",
}
SETTINGS = (
    *("system", "devices", "nodes", "model", "precision", "parallel", "batch", "global_batch"),
    *("loader.workers", "epoch_samples", "power_limit_w"),
)
MODELS = ("ResNet50", "ResNet152", "ViT-L", "ViT-H", "Swin-T", "Swin-B", "DINO", "SegFormer")
ARITHMETIC = frozenset({"SY503", "SY504", "SY505", "SY506", "SY507", "SY508", "SY509"})
Bounds = tuple[float, float]


@dataclass
class Line:
    """One row: its settings, its true amounts in base units, and its printed values."""

    settings: dict[str, object]
    truth: dict[str, float] = field(default_factory=dict)
    cells: dict[str, str] = field(default_factory=dict)
    """Empty: the value is missing."""


@dataclass
class Style:
    """Format of a table: metrics with their units and digits."""

    units: dict[str, str]
    digits: dict[str, int]
    fixed: bool
    stated: tuple[str, ...]
    """Settings that have a column."""


@dataclass
class Sheet:
    """A table, and the fault put into it."""

    style: Style
    lines: list[Line]
    fault: str = ""
    row: int = -1
    shown: bool = False


# --- consistent tables ------------------------------------------------------------------------------------------------


def consistent(rng: random.Random) -> Sheet:
    """A table whose values all follow from the same true amounts."""
    precisions = rng.choice([["fp16"], ["bf16"], ["fp32", "bf16"]])
    style = a_style(rng, ("system", "devices", "model", *(["precision"] if len(precisions) > 1 else [])))
    lines: list[Line] = []
    counts = sorted(rng.sample([1, 2, 4, 8, 16, 32, 64], rng.randint(2, 5)))
    samples = rng.choice([50_000, 60_000, 101_000, 118_287, 1_281_167])
    strong, batch = rng.random() < 0.3, rng.choice([16, 20, 32, 64, 128])
    # If the batch is not printed, the missing last batch of an epoch could not be explained.
    drops = rng.random() < 0.5 and ("global_batch" in style.stated or "batch" in style.stated)
    by_rate = any(metric.startswith("throughput") for metric in style.units)
    machines = [
        Machine(rng, system, counts, samples, drops=drops, strong=strong, batch=batch)
        for system in rng.sample(["A", "B", "C"], rng.randint(1, 3))
    ]
    for model in rng.sample(MODELS, rng.choice([1, 1, 2, 3, 8])):
        work = math.exp(rng.uniform(math.log(0.02), math.log(2.0)))
        for machine in machines:
            # The speed of a machine depends on the model.
            suits = math.exp(rng.gauss(0, 0.2))
            for precision in precisions:
                factor = work * suits * (1.0 if precision == "fp32" else 1.9)
                lines += machine.series(rng, model, precision, factor, by_rate=by_rate)
    sheet = Sheet(style, lines)
    for line in lines:
        print_line(style, line)
    for line in lines:
        for metric in line.cells:
            if rng.random() < 0.08:
                line.cells[metric] = ""
    return sheet


class Machine:
    """A system: its speed, power and scaling."""

    def __init__(
        self, rng: random.Random, name: str, counts: list[int], samples: int, *, drops: bool, strong: bool, batch: int
    ) -> None:
        self.name, self.counts, self.samples = name, counts, samples
        self.drops, self.strong, self.batch = drops, strong, batch
        self.rate = math.exp(rng.uniform(math.log(300), math.log(4000)))
        self.per_node = rng.choice([4, 8])
        self.limit_w = rng.choice([300, 350, 400, 560, 700])
        self.load, self.loss = rng.uniform(0.4, 0.9), rng.uniform(0.005, 0.10)

    def series(self, rng: random.Random, model: str, precision: str, factor: float, *, by_rate: bool) -> list[Line]:
        """One row per number of devices; speed-ups are relative to the first, by rate if the table has rates."""
        made: list[Line] = []
        for devices in self.counts:
            doublings = math.log2(devices / self.counts[0])
            noise = rng.gauss(0, 0.006)
            rate = self.rate * factor * devices / (1 + self.loss * doublings) * math.exp(noise)
            made.append(self.line(rng, model, precision, devices, rate))
        by = "throughput" if by_rate else "epoch_time"
        for line in made:
            ratio = line.truth[by] / made[0].truth[by]
            line.truth["speedup"] = ratio if by_rate else 1 / ratio
            line.truth["efficiency"] = line.truth["speedup"] * self.counts[0] / int(str(line.settings["devices"]))
        return made

    def line(self, rng: random.Random, model: str, precision: str, devices: int, rate: float) -> Line:
        """All amounts of one row."""
        whole = self.batch * max(self.counts) if self.strong else self.batch * devices
        work = self.samples // whole * whole if self.drops and self.samples > 20 * whole else self.samples
        nodes = math.ceil(devices / self.per_node)
        power = self.limit_w * self.load * devices * math.exp(rng.gauss(0, 0.03))
        settings = {
            "system": self.name, "devices": devices, "nodes": nodes, "model": model, "precision": precision,
            "parallel": "DDP" if devices > 1 else "", "batch": whole // devices, "global_batch": whole,
            "loader.workers": 8, "epoch_samples": self.samples, "power_limit_w": self.limit_w,
        }  # fmt: skip
        return Line(settings, amounts(rate, work, power, devices, nodes))


def amounts(rate: float, work: float, power: float, devices: int, nodes: int) -> dict[str, float]:
    """Every amount of a row from rate, work and power."""
    time_s = work / rate
    return {
        "throughput": rate,
        "throughput_per_device": rate / devices,
        "throughput_per_node": rate / nodes,
        "epoch_time": time_s,
        "energy_per_epoch": power * time_s,
        "energy_per_epoch_per_device": power * time_s / devices,
        "power": power,
        "power_per_device": power / devices,
        "images_per_energy": rate / power,
    }


def a_style(rng: random.Random, varied: tuple[str, ...]) -> Style:
    """Choose metrics and columns of a table; settings that vary always have a column."""
    some = ["throughput", "epoch_time"]
    some += [name for name in KIND if name not in some and rng.random() < 0.45]
    if rng.random() < 0.3:
        some.remove(rng.choice(["throughput", "epoch_time"]))
    units = {metric: rng.choice(list(UNIT[KIND[metric]])) for metric in some}
    least = rng.choice([2, 3, 3, 4])
    stated = tuple(key for key in SETTINGS if key in varied or rng.random() < 0.7)
    return Style(units, {metric: rng.randint(least, 5) for metric in some}, rng.random() < 0.4, stated)


def print_line(style: Style, line: Line) -> None:
    """Print the amounts of a row."""
    for metric, unit in style.units.items():
        line.cells[metric] = shown(
            line.truth[metric] / UNIT[KIND[metric]][unit], style.digits[metric], fixed=style.fixed
        )


def shown(value: float, digits: int, *, fixed: bool) -> str:
    """Round a number as papers do: to this many significant digits, or to a whole number if it is large."""
    magnitude = math.floor(math.log10(value))
    places = digits - 1 - magnitude
    if fixed:
        places = max(places, 0)
    if places > 0:
        return f"{value:.{places}f}"
    return str(int(Decimal(value).quantize(Decimal(1).scaleb(-places))))


def as_csv(sheet: Sheet) -> str:
    """Write the table in the form that the tool reads, one line per value."""
    lines = [",".join([*sheet.style.stated, "metric", "value", "unit"])]
    for row in sheet.lines:
        head = [str(row.settings[key]) for key in sheet.style.stated]
        for metric, unit in sheet.style.units.items():
            lines.append(",".join([*head, metric, row.cells[metric], unit]))
    return "\n".join(lines) + "\n"


# --- what a reader can compute ----------------------------------------------------------------------------------------


def bounds(sheet: Sheet, row: int, metric: str) -> Bounds | None:
    """Return the range of a printed value as logarithms; zeros after the second digit may be padding."""
    text = sheet.lines[row].cells.get(metric, "")
    if not text:
        return None
    number = Decimal(text)
    sign, digits, exponent = number.as_tuple()
    del sign
    last = int(exponent)
    if "." not in text:
        last += min(len(text) - len(text.rstrip("0")), max(0, len(text) - 2))
    half = 0.5 * 10.0**last
    factor = UNIT[KIND[metric]][sheet.style.units[metric]]
    low, high = (float(number) - half) * factor, (float(number) + half) * factor
    return (math.log(low), math.log(high)) if low > 0 and any(digits) else None


Part = tuple[str, int]
RELATIONS: tuple[tuple[tuple[Part, ...], str], ...] = (
    ((("throughput", 1), ("throughput_per_device", -1)), "devices"),
    ((("energy_per_epoch", 1), ("energy_per_epoch_per_device", -1)), "devices"),
    ((("power", 1), ("power_per_device", -1)), "devices"),
    ((("throughput", 1), ("throughput_per_node", -1)), "nodes"),
    ((("power", 1), ("epoch_time", 1), ("energy_per_epoch", -1)), ""),
    ((("throughput", 1), ("images_per_energy", -1), ("power", -1)), ""),
    ((("throughput", 1), ("epoch_time", 1), ("images_per_energy", -1), ("energy_per_epoch", -1)), ""),
)
WORKS: tuple[tuple[Part, ...], ...] = (
    (("throughput", 1), ("epoch_time", 1)),
    (("images_per_energy", 1), ("energy_per_epoch", 1)),
)


def product(sheet: Sheet, row: int, parts: tuple[Part, ...]) -> Bounds | None:
    """Return the product of printed values of a row."""
    low = high = 0.0
    for metric, sign in parts:
        entry = bounds(sheet, row, metric)
        if entry is None:
            return None
        low, high = (low + entry[0], high + entry[1]) if sign > 0 else (low - entry[1], high - entry[0])
    return low, high


def off(one: Bounds, other: Bounds) -> bool:
    """Whether two intervals for the same amount differ by more than twice the sum of their lengths."""
    length = one[1] - one[0] + other[1] - other[0]
    middle = (one[0] + one[1] - other[0] - other[1]) / 2
    return abs(middle) > 2 * length + 1e-9


def exact(value: float) -> Bounds:
    return math.log(value), math.log(value)


def shown_in_row(sheet: Sheet, row: int) -> bool:
    """Whether values of one row contradict each other."""
    for parts, count in RELATIONS:
        entry = product(sheet, row, parts)
        if entry is None or (count and count not in sheet.style.stated):
            continue
        if off(entry, exact(float(str(sheet.lines[row].settings[count]))) if count else (0.0, 0.0)):
            return True
    return False


def shown_by_work(sheet: Sheet, row: int) -> bool:
    """Whether rate x time contradicts all other rows of the model (at least two), or a statement."""
    own, line = work_of(sheet, row), sheet.lines[row]
    if own is None:
        return False
    if "epoch_samples" in sheet.style.stated:
        return off(own, exact(float(str(line.settings["epoch_samples"]))))
    peers = [index for index, other in enumerate(sheet.lines) if other.settings["model"] == line.settings["model"]]
    others = [entry for index in peers if index != row and (entry := work_of(sheet, index))]
    return len(others) >= 2 and all(off(own, other) for other in others)


def work_of(sheet: Sheet, row: int) -> Bounds | None:
    return next((found for parts in WORKS if (found := product(sheet, row, parts))), None)


def shown_by_base(sheet: Sheet, row: int) -> bool:
    """Whether a speed-up or an efficiency contradicts the first row of its series."""
    base = series_of(sheet, row)[0]
    metric = "speedup" if bounds(sheet, row, "speedup") else "efficiency"
    rate = next((m for m in ("throughput", "epoch_time") if bounds(sheet, row, m) and bounds(sheet, base, m)), None)
    stated, own, other = bounds(sheet, row, metric), bounds(sheet, row, rate or ""), bounds(sheet, base, rate or "")
    if base == row or stated is None or own is None or other is None:
        return False
    ratio = (own[0] - other[1], own[1] - other[0])
    if rate == "epoch_time":
        ratio = (-ratio[1], -ratio[0])
    if metric == "efficiency":
        if "devices" not in sheet.style.stated:
            return False
        growth = math.log(devices_of(sheet, row) / devices_of(sheet, base))
        ratio = (ratio[0] - growth, ratio[1] - growth)
    return off(ratio, stated)


def devices_of(sheet: Sheet, row: int) -> int:
    return int(str(sheet.lines[row].settings["devices"]))


def series_of(sheet: Sheet, row: int) -> list[int]:
    """Rows of the same system, model and precision."""
    keys = ("system", "model", "precision")
    own = [sheet.lines[row].settings[key] for key in keys]
    return [i for i, line in enumerate(sheet.lines) if [line.settings[key] for key in keys] == own]


def shown_anyhow(sheet: Sheet, row: int) -> bool:
    return shown_in_row(sheet, row) or shown_by_work(sheet, row) or shown_by_base(sheet, row)


# --- faults -----------------------------------------------------------------------------------------------------------


def reprint(sheet: Sheet, row: int, factors: dict[str, float]) -> None:
    """Change values of a row by a factor, as if measured."""
    style, line = sheet.style, sheet.lines[row]
    for metric, factor in factors.items():
        if line.cells.get(metric):
            value = line.truth[metric] * factor / UNIT[KIND[metric]][style.units[metric]]
            line.cells[metric] = shown(value, style.digits[metric], fixed=style.fixed)


def printed_metrics(sheet: Sheet, row: int) -> list[str]:
    return [metric for metric, text in sheet.lines[row].cells.items() if text]


def wrong_base(rng: random.Random, sheet: Sheet, row: int) -> bool:
    """A speed-up or efficiency relative to the wrong row."""
    ratios = [metric for metric in printed_metrics(sheet, row) if metric in ("speedup", "efficiency")]
    series = series_of(sheet, row)
    others = [index for index in range(len(sheet.lines)) if index not in (row, series[0])]
    if not ratios or not others or row == series[0]:
        return False
    other = rng.choice(others)
    right, wrong = sheet.lines[series[0]].truth, sheet.lines[other].truth
    for metric in ratios:
        by = "throughput" if metric == "speedup" else "throughput_per_device"
        reprint(sheet, row, {metric: right[by] / wrong[by]})
    return shown_by_base(sheet, row)


def swapped_unit(rng: random.Random, sheet: Sheet, row: int) -> bool:
    """A value in another unit than its column."""
    metric = rng.choice([m for m in printed_metrics(sheet, row) if m != "speedup"] or ["throughput"])
    units = UNIT[KIND[metric]]
    unit = sheet.style.units.get(metric, "")
    other = rng.choice([name for name in units if name != unit])
    reprint(sheet, row, {metric: units.get(unit, 1.0) / units[other]})
    return shown_anyhow(sheet, row)


def other_work(rng: random.Random, sheet: Sheet, row: int) -> bool:
    """An epoch with more or fewer samples than in the other rows."""
    factor = math.exp(rng.choice([-1, 1]) * rng.uniform(math.log(1.08), math.log(3)))
    times = ("epoch_time", "energy_per_epoch", "energy_per_epoch_per_device")
    reprint(sheet, row, dict.fromkeys(times, factor))
    return shown_by_work(sheet, row)


def wrong_count(rng: random.Random, sheet: Sheet, row: int) -> bool:
    """A row with the number of devices of another row."""
    line = sheet.lines[row]
    devices = devices_of(sheet, row)
    line.settings["devices"] = rng.choice([n for n in (1, 2, 3, 4, 6, 8, 12, 16, 32, 64) if n != devices])
    by_efficiency = bounds(sheet, row, "efficiency") is not None and shown_by_base(sheet, row)
    return by_efficiency or shown_in_row(sheet, row)


def confounded(rng: random.Random, sheet: Sheet, row: int) -> bool:
    """A row with more devices and other settings, which also changed its rate."""
    line, base = sheet.lines[row], series_of(sheet, row)[0]
    keys = [key for key in ("precision", "batch", "loader.workers") if key in sheet.style.stated]
    if row == base or not keys or not {"throughput", "epoch_time"} & set(printed_metrics(sheet, row)):
        return False
    key = rng.choice(keys)
    share = int(str(line.settings["batch"]))
    line.settings[key] = {"precision": "fp8", "batch": share * 4, "loader.workers": 32}[key]
    if key == "batch":
        line.settings["global_batch"] = share * 4 * devices_of(sheet, row)
    faster = math.exp(rng.uniform(0.1, 1.0))
    rates = ("throughput", "throughput_per_device", "throughput_per_node", "speedup", "efficiency")
    reprint(sheet, row, dict.fromkeys(rates, faster) | {"epoch_time": 1 / faster, "images_per_energy": faster})
    reprint(sheet, row, dict.fromkeys(("energy_per_epoch", "energy_per_epoch_per_device"), 1 / faster))
    # Visible if the base has a value of the same kind; a batch alone could be either kind of scaling.
    return any(line.cells.get(m) and sheet.lines[base].cells.get(m) for m in ("throughput", "epoch_time"))


def other_scope(rng: random.Random, sheet: Sheet, row: int) -> bool:
    """A value per node labelled as per device, or per device labelled as per job."""
    line = sheet.lines[row]
    devices, nodes = devices_of(sheet, row), int(str(line.settings["nodes"]))
    slips = {
        "throughput_per_device": devices / nodes, "power_per_device": devices / nodes,
        "energy_per_epoch_per_device": devices / nodes, "throughput": 1 / devices, "power": 1 / devices,
        "energy_per_epoch": 1 / devices, "throughput_per_node": nodes / devices,
    }  # fmt: skip
    able = [metric for metric in printed_metrics(sheet, row) if not math.isclose(slips.get(metric, 1.0), 1.0)]
    if not able:
        return False
    metric = rng.choice(able)
    reprint(sheet, row, {metric: slips[metric]})
    return shown_anyhow(sheet, row)


def impossible_power(rng: random.Random, sheet: Sheet, row: int) -> bool:
    """All energies of the row imply more power than its devices can draw."""
    line = sheet.lines[row]
    limit_w = float(str(line.settings["power_limit_w"]))
    factor = limit_w * math.exp(rng.uniform(math.log(1.2), math.log(20))) / line.truth["power_per_device"]
    energies = ("power", "power_per_device", "energy_per_epoch", "energy_per_epoch_per_device")
    reprint(sheet, row, dict.fromkeys(energies, factor) | {"images_per_energy": 1 / factor})
    if "power_limit_w" not in sheet.style.stated:
        return False
    ways: tuple[tuple[tuple[Part, ...], int], ...] = (
        ((("power_per_device", 1),), 1),
        ((("power", 1),), devices_of(sheet, row)),
        ((("energy_per_epoch", 1), ("epoch_time", -1)), devices_of(sheet, row)),
        ((("energy_per_epoch_per_device", 1), ("epoch_time", -1)), 1),
        ((("throughput", 1), ("images_per_energy", -1)), devices_of(sheet, row)),
    )
    found = [(entry, count) for parts, count in ways if (entry := product(sheet, row, parts))]
    return any(entry[0] - math.log(count) > math.log(limit_w) + 2 * (entry[1] - entry[0]) for entry, count in found)


def stale_row(rng: random.Random, sheet: Sheet, row: int) -> bool:
    """Some values are left from an earlier run, or all are copied from another row."""
    line = sheet.lines[row]
    if rng.random() < 0.5:
        old = math.exp(rng.choice([-1, 1]) * rng.uniform(math.log(1.08), math.log(2)))
        metrics = printed_metrics(sheet, row)
        left = rng.sample(metrics, rng.randint(1, max(1, len(metrics) // 2)))
        rises = {"rate", "per_energy", "ratio", "share"}
        reprint(sheet, row, {m: old if KIND[m] in rises else 1 / old for m in left if KIND[m] != "power"})
        return shown_anyhow(sheet, row)
    others = [index for index in series_of(sheet, row) if index != row]
    if not others:
        return False
    line.cells = dict(sheet.lines[rng.choice(others)].cells)
    return shown_in_row(sheet, row)


FAULTS: dict[str, tuple[Callable[[random.Random, Sheet, int], bool], frozenset[str], frozenset[str]]] = {
    "wrong base": (wrong_base, frozenset({"SY508"}), frozenset({"SY504", "SY505", "SY506", "SY507"})),
    "swapped unit": (swapped_unit, frozenset({"SY505"}), frozenset({"SY503", "SY504", "SY506", "SY507", "SY508"})),
    "other work": (other_work, frozenset({"SY503"}), frozenset({"SY504", "SY505", "SY506", "SY507"})),
    "wrong device count": (wrong_count, frozenset({"SY507"}), frozenset({"SY504", "SY506", "SY508", "SY509"})),
    "confounded factor": (confounded, frozenset({"SY303"}), frozenset()),
    "per node against per device": (other_scope, frozenset({"SY506"}), frozenset({"SY503", "SY504", "SY505", "SY507"})),
    "impossible power": (impossible_power, frozenset({"SY401"}), frozenset()),
    "stale row": (stale_row, frozenset({"SY503", "SY504", "SY704"}), ARITHMETIC),
}
"""By fault: how it is made, the codes that name it, and codes that also fit because the values are ambiguous."""


def faulty(kind: str, rng: random.Random) -> Sheet:
    """A table with one fault in one row."""
    sheet = consistent(rng)
    row = rng.randrange(len(sheet.lines))
    sheet.shown = FAULTS[kind][0](rng, sheet, row)
    sheet.fault, sheet.row = kind, row
    return sheet


# --- counting ---------------------------------------------------------------------------------------------------------


def findings(sheet: Sheet) -> tuple[tuple[Finding, ...], dict[int, int]]:
    """Return the findings, and the line of the CSV text where each row begins."""
    metrics = len(sheet.style.units)
    begins = {row: 2 + row * metrics for row in range(len(sheet.lines))}
    return check_table(parse_table(as_csv(sheet), "table.csv")), begins


def names_row(finding: Finding, line: int) -> bool:
    return str(line) in re.findall(r"line (\d+)", finding.place)


def clean_tables(count: int) -> tuple[float, Counter[str]]:
    """Return the share of consistent tables with an arithmetic finding, and counts by code."""
    codes: Counter[str] = Counter()
    arithmetic = 0
    for number in range(count):
        sheet = consistent(random.Random(FIRST_SEED + number))
        found = {finding.code for finding in findings(sheet)[0]}
        codes.update(found)
        arithmetic += bool(found & ARITHMETIC)
    return 100 * arithmetic / count, codes


@dataclass
class Tally:
    """Counts for faults of one kind."""

    made: int = 0
    shown: int = 0
    found: int = 0
    named: int = 0
    found_though_not_shown: int = 0


def count_faults(kind: str, wanted: int, first: int) -> Tally:
    """Make faults of one kind until enough of them are visible."""
    tally = Tally()
    _, named, fitting = FAULTS[kind]
    while tally.shown < wanted:
        sheet = faulty(kind, random.Random(first + tally.made))
        tally.made += 1
        found, begins = findings(sheet)
        codes = {finding.code for finding in found if names_row(finding, begins[sheet.row])}
        if not sheet.shown:
            tally.found_though_not_shown += bool(codes & (named | fitting))
            continue
        tally.shown += 1
        tally.found += bool(codes & (named | fitting))
        tally.named += bool(codes & named)
    return tally


def main() -> None:
    options = arguments(__doc__)
    clean, wanted = (120, 15) if options.quick else (2000, 250)
    share, codes = clean_tables(clean)
    print(f"consistent tables: {clean}; with a finding of each code: {dict(sorted(codes.items()))}", file=sys.stderr)
    most = 1 + slack_percent(1, clean, quick=options.quick)
    figures: list[Figure] = [at_most("injected_faults: consistent tables with an arithmetic finding", share, "%", most)]
    for number, kind in enumerate(FAULTS):
        tally = count_faults(kind, wanted, FIRST_SEED + 1_000_000 * (number + 1))
        missing = tally.made - tally.shown
        print(
            f"{kind}: {tally.made} made, {100 * missing / tally.made:.0f} % not shown by any relation "
            f"(of these {tally.found_though_not_shown} found all the same); of {tally.shown} shown, "
            f"{tally.found} found, {tally.named} named exactly",
            file=sys.stderr,
        )
        least = 95 - slack_percent(95, wanted, quick=options.quick)
        figures.append(at_least(f"injected_faults: {kind}, found", 100 * tally.found / tally.shown, "%", least))
    finish([*figures, *wide_figures(quick=options.quick)])


# --- wide tables ------------------------------------------------------------------------------------------------------

WIDE_SEED = 71_000_000
"""The rules were developed on the seeds 1000 to 13,000,000."""
BLAMING = ARITHMETIC | {"SY303", "SY312", "SY401", "SY512", "SY513"}
WIDE_LEAST = {"half of the speed-ups": 90.0, "swapped columns": 90.0}


def rows_named(table: wide_tables.Table) -> dict[str, set[int]]:
    """Return the rows that findings above a note name, by code."""
    text, begins = table.text()
    rows = {line: row for row, line in begins.items()}
    named: dict[str, set[int]] = {}
    for found in check_table(parse_table(text, "table.csv")):
        if found.severity != "note":
            places = " ".join((found.place, *(wrong.place for wrong in found.wrong)))
            named.setdefault(found.code, set()).update(rows[int(line)] for line in re.findall(r"line (\d+)", places))
    return named


def union(named: dict[str, set[int]], codes: frozenset[str]) -> set[int]:
    return {row for code in codes & named.keys() for row in named[code]}


def wide_figures(*, quick: bool) -> list[Figure]:
    """Return the share of consistent wide tables that are blamed, of wrong cells found, and of right rows blamed."""
    clean, wanted = (40, 4) if quick else (1000, 100)
    tables_of = (wide_tables.consistent(random.Random(WIDE_SEED + number)) for number in range(clean))
    blamed = sum(bool(rows_named(table).keys() & BLAMING) for table in tables_of)
    name = "injected_faults: consistent wide tables with a finding above a note"
    figures = [at_most(name, 100 * blamed / clean, "%", 1 + slack_percent(1, clean, quick=quick))]
    innocent = right = 0
    for kind, (make, codes) in wide_tables.FAULTS.items():
        rng = random.Random(f"{WIDE_SEED} {kind}")
        made = shown = found = tables = 0
        while tables < wanted:
            table = wide_tables.consistent(rng)
            make(rng, table)
            made += 1
            if not table.wrong:
                continue
            tables += 1
            shown += len(table.wrong)
            named = rows_named(table)
            found += len(union(named, codes) & set(table.wrong))
            innocent += len(union(named, BLAMING) - set(table.wrong))
            right += len(table.lines) - len(table.wrong)
        print(f"wide, {kind}: {made} made, {tables} visible; {found} of {shown} wrong cells found", file=sys.stderr)
        bar = WIDE_LEAST.get(kind, 95.0)
        least = bar - slack_percent(bar, shown, quick=quick)
        figures.append(at_least(f"injected_faults: wide, {kind}, found", 100 * found / shown, "%", least))
    figures.append(
        at_most(
            "injected_faults: wide, right rows blamed in faulty tables", 100 * innocent / right, "%",
            1 + slack_percent(1, right, quick=quick),
        )
    )  # fmt: skip
    return figures


if __name__ == "__main__":
    main()
