"""Random wide tables and faults in them: several batches, precisions and sequence lengths, ratios in all directions.

One table has one rate per device count, batch, length and precision; weak scaling, or strong scaling by gradient
accumulation; speed-ups over the fewest devices and over the other precision; tokens, latencies, FLOP/s, energy, cost.
The arithmetic is this module's own. It shares no code with the rules.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

UNITS = {
    "throughput": "sequences/s", "speedup": "x", "efficiency": "%", "speedup_over_precision": "x",
    "tokens_per_second": "tokens/s", "flops_per_second_per_device": "TFLOP/s", "mfu": "%", "power": "W",
    "train_time": "h", "energy": "kWh", "cost": "$", "cost_per_hour": "$/h", "throughput_per_device": "sequences/s",
    "latency_mean": "ms", "latency_p50": "ms", "latency_p90": "ms", "latency_p99": "ms",
}  # fmt: skip
PEAK = {"A100": {"tf32": 156e12, "bf16": 312e12}, "H100 SXM": {"tf32": 494.7e12, "bf16": 989.4e12}}
LIMIT_W = {"A100": 400, "H100 SXM": 700}
PRECISIONS = ("tf32", "bf16")
RATIOS = ("speedup", "efficiency", "speedup_over_precision")
VISIBLE = 2.0
"""A wrong figure is visible if it is off by more than this many times the length of all rounding intervals."""


@dataclass
class Line:
    """One row: settings, true amounts and printed values."""

    settings: dict[str, object]
    truth: dict[str, float]
    cells: dict[str, str] = field(default_factory=dict)
    base: int = 0
    """The first row of its curve."""
    other: int = 0
    """The row with the other precision."""


@dataclass
class Table:
    """A table and the cells that a fault made wrong."""

    lines: list[Line]
    decimals: dict[str, int]
    wrong: dict[int, str] = field(default_factory=dict)
    """Rows with a visible wrong figure, and its metric or setting."""

    def text(self) -> tuple[str, dict[int, int]]:
        """Return the table with one line per value, and the line where each row begins."""
        keys = list(self.lines[0].settings)
        made, begins = [",".join([*keys, "metric", "value", "unit"])], {}
        for index, line in enumerate(self.lines):
            begins[index] = len(made) + 1
            head = [str(line.settings[key]) for key in keys]
            made += [",".join([*head, metric, text, UNITS[metric]]) for metric, text in line.cells.items()]
        return "\n".join(made) + "\n", begins


def consistent(rng: random.Random) -> Table:
    """Return a table whose values all follow from the same true amounts."""
    counts = sorted(rng.sample([1, 2, 4, 8, 16, 32], rng.randint(3, 5)))
    strong = rng.random() < 0.4
    device = rng.choice(list(PEAK))
    extras = [name for name in ("efficiency", "tokens", "flops", "energy", "latency", "device") if rng.random() < 0.4]
    loss = {precision: rng.uniform(0.01, 0.15) for precision in PRECISIONS}
    faster = {"tf32": 1.0, "bf16": rng.uniform(1.4, 3.2)}
    unit_rate = math.exp(rng.uniform(math.log(5), math.log(3000)))
    lines: list[Line] = []
    flops = 0.35 * PEAK[device]["bf16"] / (unit_rate * faster["bf16"])
    for length in rng.choice([[128], [512], [128, 512]]):
        for batch in rng.choice([[8], [32], [8, 32], [16, 64]]):
            for precision in PRECISIONS:
                first = len(lines)
                for devices in counts:
                    rate = unit_rate * faster[precision] * (128 / length) ** 0.9 * batch**0.1
                    rate *= devices / (1 + loss[precision] * math.log2(devices / counts[0]))
                    rate *= math.exp(rng.gauss(0, 0.006))
                    steps = max(counts) * 4 // devices if strong else 2
                    settings = {
                        "accelerator": device, "model": "BERT-large", "sequence_length": length, "devices": devices,
                        "precision": precision, "parallel": "DDP", "batch": batch,
                        "accumulation": steps, "global_batch": batch * steps * devices,
                    }  # fmt: skip
                    truth = _amounts(rng, rate, settings, flops * length / 128, device)
                    lines.append(Line(settings, truth, base=first))
    by_key = {tuple(line.settings[key] for key in _ALL): index for index, line in enumerate(lines)}
    for line in lines:
        other = {**line.settings, "precision": PRECISIONS[line.settings["precision"] == PRECISIONS[0]]}
        line.other = by_key[tuple(other[key] for key in _ALL)]
    return _print_all(rng, lines, extras)


_ALL = ("sequence_length", "batch", "precision", "devices")


def _amounts(
    rng: random.Random, rate: float, settings: dict[str, object], flops: float, device: str
) -> dict[str, float]:
    devices, precision = int(str(settings["devices"])), str(settings["precision"])
    hours = 3e7 / rate / 3600
    power = devices * LIMIT_W[device] * rng.uniform(0.5, 0.9)
    price = rng.choice([1.5, 2.25, 3.1])
    usual = rng.uniform(20, 90)
    per_device = rate * flops / devices
    return {
        "throughput": rate, "throughput_per_device": rate / devices,
        "tokens_per_second": rate * int(str(settings["sequence_length"])),
        "flops_per_second_per_device": per_device / 1e12, "mfu": 100 * per_device / PEAK[device][precision],
        "power": power, "train_time": hours, "energy": power * hours / 1000,
        "cost_per_hour": price, "cost": price * hours * devices,
        "latency_p50": usual, "latency_mean": usual * 1.1, "latency_p90": usual * 1.5, "latency_p99": usual * 2.2,
    }  # fmt: skip


def _print_all(rng: random.Random, lines: list[Line], extras: list[str]) -> Table:
    shown = ["throughput", "speedup"]
    shown += ["efficiency"] if "efficiency" in extras else []
    shown += ["speedup_over_precision"] if rng.random() < 0.6 else []
    shown += ["tokens_per_second"] if "tokens" in extras else []
    shown += ["flops_per_second_per_device", "mfu"] if "flops" in extras else []
    shown += ["power", "train_time", "energy", "cost", "cost_per_hour"] if "energy" in extras else []
    shown += [f"latency_{name}" for name in ("mean", "p50", "p90", "p99")] if "latency" in extras else []
    shown += ["throughput_per_device"] if "device" in extras else []
    decimals = {metric: rng.choice([1, 2, 3]) for metric in shown}
    decimals |= dict.fromkeys(RATIOS, rng.choice([2, 2, 3]))
    if "cost_per_hour" in shown:
        decimals["cost_per_hour"] = 2
    table = Table(lines, decimals)
    style, cuts = rng.choice(["1", "1.00", "exact", ""]), rng.random() < 0.15
    from_printed = rng.random() < 0.5
    for line in lines:
        line.cells = {m: show(line.truth[m], decimals[m], cuts=cuts) for m in shown if m in line.truth}
    for index, line in enumerate(lines):
        rates = [
            float(lines[at].cells["throughput"]) if from_printed else lines[at].truth["throughput"]
            for at in (index, line.base, line.other)
        ]
        growth = int(str(line.settings["devices"])) / int(str(lines[line.base].settings["devices"]))
        line.truth |= {"speedup": rates[0] / rates[1], "efficiency": 100 * rates[0] / rates[1] / growth}
        line.truth["speedup_over_precision"] = rates[0] / rates[2]
        for metric in ("speedup", "efficiency", "speedup_over_precision"):
            if metric in shown and not (metric == "speedup_over_precision" and line.settings["precision"] == "tf32"):
                line.cells[metric] = show(line.truth[metric], decimals[metric], cuts=cuts)
        if index == line.base:
            line.cells["speedup"] = style if style != "exact" else show(1.0, decimals["speedup"])
    return table


def show(value: float, decimals: int, *, cuts: bool = False) -> str:
    """Print a number with this many decimals, cut or rounded."""
    scaled = value * 10**decimals
    whole = math.floor(scaled) if cuts else round(scaled)
    return f"{max(whole, 1) / 10**decimals:.{decimals}f}"


def interval(text: str) -> tuple[float, float]:
    """Return the logarithms of the range that rounding or cutting allows for a printed number."""
    value, places = float(text), len(text.partition(".")[2])
    unit = 10.0**-places
    return math.log(max(value - unit / 2, unit / 10)), math.log(value + unit)


def off(one: tuple[float, float], two: tuple[float, float]) -> bool:
    """Return whether two ranges for the same amount are clearly apart."""
    length = one[1] - one[0] + two[1] - two[0]
    return abs(one[0] + one[1] - two[0] - two[1]) / 2 > VISIBLE * length + 1e-9


def is_visible(table: Table, index: int, metric: str) -> bool:
    """Return whether the printed rates contradict the ratio of a row."""
    line = table.lines[index]
    if not line.cells.get(metric) or (index == line.base and metric == "speedup"):
        return False
    at = line.other if metric == "speedup_over_precision" else line.base
    own, base = interval(line.cells["throughput"]), interval(table.lines[at].cells["throughput"])
    growth = int(str(line.settings["devices"])) / int(str(table.lines[at].settings["devices"]))
    shift = math.log(100 / growth) if metric == "efficiency" else 0.0
    return off((own[0] - base[1] + shift, own[1] - base[0] + shift), interval(line.cells[metric]))


# --- faults -----------------------------------------------------------------------------------------------------------


def half_wrong(rng: random.Random, table: Table) -> None:
    """Make half of the speed-ups wrong by 3 to 50 %, each by another factor."""
    able = [index for index, line in enumerate(table.lines) if index != line.base]
    for index in rng.sample(able, (len(able) + 1) // 2):
        factor = math.exp(rng.choice([-1, 1]) * rng.uniform(math.log(1.03), math.log(1.5)))
        _set(table, index, "speedup", table.lines[index].truth["speedup"] * factor)


def swapped_columns(rng: random.Random, table: Table) -> None:
    """Swap the speed-ups of the two precisions in every line of a length and batch."""
    keys = [(line.settings["sequence_length"], line.settings["batch"]) for line in table.lines]
    key = rng.choice(keys)
    for index, line in enumerate(table.lines):
        if keys[index] == key and index < line.other:
            other = table.lines[line.other]
            line.cells["speedup"], other.cells["speedup"] = other.cells["speedup"], line.cells["speedup"]
    table.wrong |= {at: "speedup" for at in range(len(keys)) if keys[at] == key and is_visible(table, at, "speedup")}


def swapped_rows(rng: random.Random, table: Table) -> None:
    """Swap the speed-ups of two rows of a curve."""
    base = rng.choice([line.base for line in table.lines])
    able = [at for at, line in enumerate(table.lines) if line.base == base and at != base]
    one, two = rng.sample(able, 2)
    cells = table.lines[one].cells, table.lines[two].cells
    cells[0]["speedup"], cells[1]["speedup"] = cells[1]["speedup"], cells[0]["speedup"]
    table.wrong |= {at: "speedup" for at in (one, two) if is_visible(table, at, "speedup")}


def other_base(rng: random.Random, table: Table) -> None:
    """Print a speed-up relative to the base of another curve."""
    index = rng.choice([at for at, line in enumerate(table.lines) if at != line.base])
    others = sorted({line.base for line in table.lines} - {table.lines[index].base})
    rates = [table.lines[at].truth["throughput"] for at in (index, rng.choice(others))]
    _set(table, index, "speedup", rates[0] / rates[1])


def transposed(rng: random.Random, table: Table) -> None:
    """Swap two digits of a ratio."""
    able = [
        (at, m) for at, line in enumerate(table.lines) for m in RATIOS if m in line.cells and is_plain(table, at, m)
    ]
    index, metric = rng.choice(able)
    text = table.lines[index].cells[metric]
    places = [at for at in range(len(text) - 1) if text[at : at + 2].isdigit() and text[at] != text[at + 1]]
    if places:
        at = rng.choice(places)
        table.lines[index].cells[metric] = text[:at] + text[at + 1] + text[at] + text[at + 2 :]
        _judge(table, index, metric)


def precision_ratio(rng: random.Random, table: Table) -> None:
    """Make one speed-up between precisions wrong by 2 to 60 %."""
    able = [at for at, line in enumerate(table.lines) if "speedup_over_precision" in line.cells]
    if able:
        index = rng.choice(able)
        factor = math.exp(rng.choice([-1, 1]) * rng.uniform(math.log(1.02), math.log(1.6)))
        metric = "speedup_over_precision"
        _set(table, index, metric, table.lines[index].truth[metric] * factor)


def batch_product(rng: random.Random, table: Table) -> None:
    """Print another number of accumulation steps or another batch per device, in one row or a whole curve."""
    base = rng.choice([line.base for line in table.lines])
    rows = [at for at, line in enumerate(table.lines) if line.base == base]
    key = rng.choice(["accumulation", "batch"])
    for index in rows if rng.random() < 0.5 else [rng.choice(rows)]:
        value = int(str(table.lines[index].settings[key]))
        table.lines[index].settings[key] = value + 10 if key == "accumulation" else value - 2
        table.wrong[index] = key


def other_length(rng: random.Random, table: Table) -> None:
    """Compute the tokens of a row with another sequence length."""
    index = rng.randrange(len(table.lines))
    _scale(table, index, "tokens_per_second", rng.choice([0.25, 0.5, 2.0, 4.0]))


def wrong_mfu(rng: random.Random, table: Table) -> None:
    """Print an MFU that does not follow from the FLOP/s of the row."""
    index = rng.randrange(len(table.lines))
    _scale(table, index, "mfu", math.exp(rng.choice([-1, 1]) * rng.uniform(math.log(1.1), math.log(2))))


def wrong_total(rng: random.Random, table: Table) -> None:
    """Print an energy or a cost that does not follow from power or price and time."""
    index = rng.randrange(len(table.lines))
    metric = rng.choice(["energy", "cost"])
    _scale(table, index, metric, math.exp(rng.choice([-1, 1]) * rng.uniform(math.log(1.1), math.log(1.9))))


def percentiles(rng: random.Random, table: Table) -> None:
    """Swap two percentiles of a row."""
    index = rng.randrange(len(table.lines))
    cells = table.lines[index].cells
    one, two = rng.sample(["latency_p50", "latency_p90", "latency_p99"], 2)
    if one in cells:
        cells[one], cells[two] = cells[two], cells[one]
        table.wrong[index] = one


def watts(rng: random.Random, table: Table) -> None:
    """Print power, and the energy from it, that the devices of the row cannot draw."""
    index = rng.randrange(len(table.lines))
    line = table.lines[index]
    factor = LIMIT_W[str(line.settings["accelerator"])] * int(str(line.settings["devices"])) / line.truth["power"]
    for metric in ("power", "energy"):
        _scale(table, index, metric, factor * 4)


FAULTS: dict[str, tuple[Callable[[random.Random, Table], None], frozenset[str]]] = {
    "half of the speed-ups": (half_wrong, frozenset({"SY504", "SY508", "SY512", "SY505"})),
    "swapped columns": (swapped_columns, frozenset({"SY504", "SY508", "SY512"})),
    "swapped rows": (swapped_rows, frozenset({"SY504", "SY508", "SY512"})),
    "base of another curve": (other_base, frozenset({"SY504", "SY508"})),
    "transposed digits": (transposed, frozenset({"SY504", "SY508"})),
    "speed-up between precisions": (precision_ratio, frozenset({"SY504", "SY508"})),
    "batch product": (batch_product, frozenset({"SY509"})),
    "tokens of another length": (other_length, frozenset({"SY504"})),
    "MFU against FLOP/s": (wrong_mfu, frozenset({"SY504", "SY505"})),
    "energy and cost": (wrong_total, frozenset({"SY504", "SY505", "SY506", "SY507"})),
    "percentiles": (percentiles, frozenset({"SY513"})),
    "watts above the limit": (watts, frozenset({"SY401"})),
}
"""By fault: how it is made, and the codes that fit."""


def is_plain(table: Table, index: int, metric: str) -> bool:
    return not (metric == "speedup" and index == table.lines[index].base) and bool(table.lines[index].cells[metric])


def _set(table: Table, index: int, metric: str, value: float) -> None:
    table.lines[index].cells[metric] = show(value, table.decimals[metric])
    _judge(table, index, metric)


def _judge(table: Table, index: int, metric: str) -> None:
    if is_visible(table, index, metric):
        table.wrong[index] = metric


def _scale(table: Table, index: int, metric: str, factor: float) -> None:
    """Change a figure that follows from others of its row; visible unless its digits are few."""
    line = table.lines[index]
    if metric in line.cells:
        line.cells[metric] = show(line.truth[metric] * factor, table.decimals[metric])
        if off(interval(line.cells[metric]), interval(show(line.truth[metric], table.decimals[metric]))):
            table.wrong[index] = metric
