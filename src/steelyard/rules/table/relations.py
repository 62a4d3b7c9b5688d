"""Relations between the figures of a row, and a solver for the intervals that the printed digits allow.

Every relation is a product, so it is a sum of logarithms. Rounding gives each figure an interval of logarithms.
"""

from __future__ import annotations

import math
import re
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from steelyard.rules.table.devices import peak_of
from steelyard.rules.table.units import ITEMS, Kind, counted, unit_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from steelyard.rules.table.row import Amount, Row

EXTENSIVE = ("throughput", "power", "energy", "energy_per_epoch")
"""Figures of the whole job that also exist per device and per node."""
KINDS: dict[str, Kind] = {
    "throughput": "rate",
    "power": "power",
    "energy": "energy",
    "energy_per_epoch": "energy",
    "epoch_time": "time",
    "train_time": "time",
    "step_time": "time",
    "speedup": "ratio",
    "efficiency": "ratio",
    "speedup_over_precision": "ratio",
    "speedup_over_system": "ratio",
    "time_speedup": "ratio",
    "time_speedup_over_precision": "ratio",
    "time_speedup_over_system": "ratio",
    "mfu": "ratio",
    "hfu": "ratio",
    "flops_per_second": "rate",
    "flops_per_second_per_device": "rate",
    "flops_per_token": "count",
    "flops_per_sample": "count",
    "parameters": "count",
    "memory": "memory",
    "memory_per_device": "memory",
    "cost": "money",
    "cost_per_hour": "money_rate",
    "cost_per_item": "money_per_item",
    "latency": "time",
    "ttft": "time",
    "time_per_token": "time",
    **dict.fromkeys(("tokens", "sequences", "samples", "images"), "count"),
}
KINDS |= {f"{item}_per_second": "rate" for item in ITEMS if item not in ("B", "FLOP", "parameters")}
KINDS |= {f"{name}_per_{scope}": KINDS[name] for name in EXTENSIVE for scope in ("device", "node")}
"""Metrics that occur in relations, and the kind of unit each must have. Other metrics are ignored."""
ALIASES = {
    "time": "train_time",
    "training_time": "train_time",
    "time_per_epoch": "epoch_time",
    "scaling_efficiency": "efficiency",
}
QUANTILE = re.compile(r"(latency|ttft|time_per_token|step_time)_(mean|median|min|max|std|p[0-9]{1,2}(?:_[0-9]{1,3})?)")
"""Times of many requests or steps: `latency_mean`, `latency_p50`, `latency_p99`, `latency_p99_9`."""
PER_ENERGY = re.compile(rf"({'|'.join(ITEMS)})_per_energy")
# An image, a sequence and a request each count as one sample; a token does not.
SAMPLES = frozenset({"images", "samples", "sequences", "items", "requests"})

OVER = ("speedup_over_precision", "speedup_over_system")
SPANS = ("epoch_time", "train_time", "step_time")
RATIOS = ("speedup", "efficiency", *OVER)
"""Figures relative to another row."""
OVERHEAD = 1.3
"""The time of a training may include evaluation and checkpoints, which its rate does not: up to this factor."""

Term = tuple[str, int]
RELATIONS: tuple[tuple[Term, ...], ...] = (
    *((((name, 1), ("devices", -1), (f"{name}_per_device", -1))) for name in EXTENSIVE),
    *((((name, 1), ("nodes", -1), (f"{name}_per_node", -1))) for name in EXTENSIVE),
    (("throughput", 1), ("epoch_time", 1), ("epoch_work", -1)),
    (("throughput", 1), ("train_time", 1), ("train_work", -1)),
    (("throughput", 1), ("step_time", 1), ("step_work", -1)),
    (("power", 1), ("epoch_time", 1), ("energy_per_epoch", -1)),
    (("power", 1), ("train_time", 1), ("energy", -1)),
    (("items_per_energy", 1), ("power", 1), ("throughput", -1)),
    # These follow from the relations above, but use each figure once, which keeps the intervals narrow.
    (("items_per_energy", 1), ("energy_per_epoch", 1), ("epoch_work", -1)),
    (("items_per_energy", 1), ("energy", 1), ("train_work", -1)),
    (("speedup", 1), ("base_throughput", 1), ("throughput", -1)),
    (("speedup", 1), ("epoch_time", 1), ("base_epoch_time", -1)),
    (("speedup", 1), ("train_time", 1), ("base_train_time", -1)),
    (("efficiency", 1), ("base_throughput_per_device", 1), ("throughput_per_device", -1)),
    (("efficiency", 1), ("devices", 1), ("epoch_time", 1), ("base_epoch_device_time", -1)),
    (("efficiency", 1), ("devices", 1), ("train_time", 1), ("base_train_device_time", -1)),
    (("efficiency", 1), ("devices", 1), ("speedup", -1), ("base_devices", -1)),
    *(
        relation
        for over in OVER
        for relation in (
            ((over, 1), (f"{over}_base_throughput", 1), ("throughput", -1)),
            *(((over, 1), (time, 1), (f"{over}_base_{time}", -1)) for time in SPANS),
        )
    ),
    (("throughput", 1), ("other_rate", -1), ("length_ratio", -1)),
    (("train_work", 1), ("work_done", -1), ("overhead", -1)),
    (("flops_per_second", 1), ("devices", -1), ("flops_per_second_per_device", -1)),
    (("flops_per_second", 1), ("throughput", -1), ("flops_per_item", -1)),
    (("mfu", 1), ("peak", 1), ("flops_per_second_per_device", -1)),
    (("cost", 1), ("cost_per_hour", -1), ("train_time", -1), ("billed", -1)),
)
"""The product of the figures with +1, divided by those with -1, is one."""
ROUNDS = 12
TINY = 1e-9
"""Tolerance for logarithms: far below any printed digit, far above floating-point error."""


class Bounds(NamedTuple):
    """Bounds of the logarithm of a figure, and the figures they were computed from."""

    low: float
    high: float
    low_from: frozenset[str] = frozenset()
    high_from: frozenset[str] = frozenset()

    @property
    def sources(self) -> frozenset[str]:
        """Return the figures that the bounds were computed from."""
        return self.low_from | self.high_from

    @property
    def middle(self) -> float:
        """Return the figure itself, at the middle of the logarithmic interval."""
        return math.exp((self.low + self.high) / 2)


class Solved(NamedTuple):
    """All figures that can be computed, or the figures that contradict each other."""

    known: dict[str, Bounds]
    clash: frozenset[str] | None = None
    gap: float = 0.0
    """How far apart two of the contradicting intervals are."""


@lru_cache(maxsize=4096)
def metric_kind(name: str) -> Kind | None:
    """Return the kind of unit a metric must have, or None if it is in no relation."""
    if PER_ENERGY.fullmatch(name):
        return "per_energy"
    return "time" if QUANTILE.fullmatch(name) else KINDS.get(ALIASES.get(name, name))


def variable(row: Row, metric: str) -> str | None:
    """Return the name of a row's metric in the relations, or None if it is in no relation."""
    kind, amount = metric_kind(metric), row.figures[metric]
    unit = unit_of(amount.unit)
    if kind is None or unit is None or unit[0] != kind or amount.low <= 0:
        return None
    own, items = counted(amount.unit), item_of(row)
    alike = own == items or {own, items} <= SAMPLES
    if metric.startswith("flops_per"):
        return _name_flops(row, metric, items)
    if kind in ("rate", "per_energy") and metric == f"{own}_per_second":
        if metric == _main_rate(row):
            return "throughput"
        return "other_rate" if not alike and "tokens" in (own, items) and {own, items} & SAMPLES else None
    if kind in ("rate", "per_energy") and not alike:
        return None
    if kind == "count":
        return "work_done" if metric == items or {metric, items} <= SAMPLES else None
    return "items_per_energy" if kind == "per_energy" else ALIASES.get(metric, metric)


def _name_flops(row: Row, metric: str, items: str) -> str | None:
    if metric in ("flops_per_token", "flops_per_sample"):
        return "flops_per_item" if items == "tokens" or (items in SAMPLES and metric == "flops_per_sample") else None
    share, peak, devices = row.figures.get("mfu"), peak_of(row), row.number("devices")
    if metric == "flops_per_second" and share and share.value > 0 and peak and devices:
        # Many tables print the FLOP/s of one device and do not say so.
        far = math.log(row.figures[metric].value / (share.value * math.sqrt(peak[0] * peak[1])))
        return "flops_per_second_per_device" if abs(far) < abs(far - math.log(devices)) else metric
    return metric


def _main_rate(row: Row) -> str | None:
    """Return the metric that holds the rate of the row: throughput, or the first one per second."""
    if "throughput" in row.figures:
        return "throughput"
    return next((metric for metric in row.figures if metric.endswith("_per_second") and metric in KINDS), None)


def item_of(row: Row) -> str:
    """Return what the rates of a row count, such as `images` or `tokens`; empty without a rate."""
    rates = [
        amount
        for metric, amount in row.figures.items()
        if metric_kind(metric) in ("rate", "per_energy") and not metric.startswith("flops_per_second")
    ]
    whole = row.figures.get("throughput")
    return counted((whole or rates[0]).unit) if rates else ""


def observed(row: Row, *, cuts: bool = False) -> dict[str, Bounds]:
    """Return the figures and counts that a row states, as bounds of their logarithms; `cuts`: digits may be cut."""
    given: dict[str, Bounds] = {}
    for metric, amount in row.figures.items():
        name = variable(row, metric)
        if name is not None and name not in given:
            given[name] = cut(bounds_of(amount)) if cuts else bounds_of(amount)
    for key in ("devices", "nodes"):
        count = row.number(key)
        if count:
            given[key] = exactly(count)
    batch, samples = samples_of(row, row.number("global_batch")), samples_of(row, row.number("epoch_samples"))
    if samples:
        given["epoch_work"] = last_batch(exactly(samples), row)
    if batch and _is_one_batch_a_step(row):
        given["step_work"] = exactly(batch)
    return given | _find_links(row, given, samples)


def _find_links(row: Row, given: Mapping[str, Bounds], samples: float | None) -> dict[str, Bounds]:
    """Return what links figures of a row and is not printed: total work, length of a sequence, peak, billing."""
    links: dict[str, Bounds] = {}
    epochs, length = row.number("epochs"), row.number("sequence_length")
    if samples and epochs and "work_done" not in given:
        links["work_done"] = last_batch(exactly(samples * epochs), row)
    if "work_done" in (*given, *links):
        links["overhead"] = Bounds(0.0, math.log(OVERHEAD))
    if "other_rate" in given and length:
        links["length_ratio"] = exactly(length if item_of(row) == "tokens" else 1 / length)
    peak = peak_of(row) if "mfu" in given else None
    if peak:
        links["peak"] = Bounds(math.log(peak[0]), math.log(peak[1]))
    return {**links, **_find_billed(row, given)} if "cost" in given else links


def _find_billed(row: Row, given: Mapping[str, Bounds]) -> dict[str, Bounds]:
    """Return how often a price per hour is paid: once, per node or per device, whichever fits; empty if unknown."""
    price, time = given.get("cost_per_hour"), given.get("train_time")
    currencies = {row.figures[metric].unit.partition("/")[0] for metric in ("cost", "cost_per_hour") if price}
    if price is None or time is None or len(currencies) > 1:
        return {}
    paid = math.log(given["cost"].middle / price.middle / time.middle)
    counts = {1.0, row.number("nodes") or 1.0, row.number("devices") or 1.0}
    return {"billed": exactly(min(counts, key=lambda count: abs(paid - math.log(count))))}


def bounds_of(amount: Amount) -> Bounds:
    """Return the bounds of a figure's logarithm from its printed digits."""
    return Bounds(*amount.log_bounds())


def cut(entry: Bounds) -> Bounds:
    """Widen an interval from rounding upwards, as if the digits after the last printed one may have been cut off."""
    low, high = math.exp(entry.low), math.exp(entry.high)
    return entry._replace(high=math.log(high + (high - low) / 2) + TINY)


def exactly(value: float) -> Bounds:
    """Return the bounds of an exact number."""
    return Bounds(math.log(value), math.log(value))


def samples_of(row: Row, samples: float | None) -> float | None:
    """Convert samples to the unit of the row's rate; None if that is tokens and the sequence length is unknown."""
    item, length = item_of(row), row.number("sequence_length")
    if not samples or item in SAMPLES or (not item and not length):
        return samples or None
    return samples * length if item == "tokens" and length else None


def last_batch(work: Bounds, row: Row) -> Bounds:
    """Widen the work of an epoch by one batch either way: the incomplete last batch may be dropped or padded."""
    batch = row.number("global_batch")
    if batch is None:
        share, devices = row.number("batch"), row.number("devices")
        batch = share * devices * (row.number("accumulation") or 1) if share and devices else None
    batch = samples_of(row, batch)
    if not batch:
        return work
    low = math.exp(work.low) - batch
    return work._replace(low=math.log(low) if low > 0 else work.low - 1, high=math.log(math.exp(work.high) + batch))


def solve(given: Mapping[str, Bounds]) -> Solved:
    """Compute all figures that the relations determine, or find figures that contradict each other."""
    known = {
        name: Bounds(entry.low, entry.high, frozenset((name,)), frozenset((name,))) for name, entry in given.items()
    }
    for _ in range(ROUNDS):
        changed = False
        for relation in RELATIONS:
            missing = [name for name, _ in relation if name not in known]
            if len(missing) > 1:
                continue
            for target, sign in relation:
                if missing and target != missing[0]:
                    continue
                reached = _compute_reached(relation, target, sign, known)
                tighter = _tighten(known.get(target), reached)
                if tighter is None:
                    continue
                if tighter.low > tighter.high + TINY:
                    return Solved(known, tighter.sources, tighter.low - tighter.high)
                known[target] = tighter
                changed = True
        if not changed:
            break
    return Solved(known)


def without(given: Mapping[str, Bounds], names: Iterable[str]) -> dict[str, Bounds]:
    """Return the figures without those in `names`."""
    left_out = set(names)
    return {name: entry for name, entry in given.items() if name not in left_out}


def _compute_reached(relation: tuple[Term, ...], target: str, sign: int, known: Mapping[str, Bounds]) -> Bounds:
    """Return the bounds of one figure of a relation, computed from the others."""
    low = high = 0.0
    low_from: frozenset[str] = frozenset()
    high_from: frozenset[str] = frozenset()
    for name, own in relation:
        if name == target:
            continue
        entry = known[name]
        if own == sign:
            low, high = low - entry.high, high - entry.low
            low_from, high_from = low_from | entry.high_from, high_from | entry.low_from
        else:
            low, high = low + entry.low, high + entry.high
            low_from, high_from = low_from | entry.low_from, high_from | entry.high_from
    return Bounds(low, high, low_from, high_from)


def _tighten(entry: Bounds | None, reached: Bounds) -> Bounds | None:
    """Return the intersection of two intervals, or None if the new one adds nothing."""
    if entry is None:
        return reached
    low, low_from = entry.low, entry.low_from
    high, high_from = entry.high, entry.high_from
    if reached.low > low + TINY:
        low, low_from = reached.low, reached.low_from
    if reached.high < high - TINY:
        high, high_from = reached.high, reached.high_from
    if low == entry.low and high == entry.high:
        return None
    return Bounds(low, high, low_from, high_from)


def _is_one_batch_a_step(row: Row) -> bool:
    """Return whether a step processes the whole global batch; with accumulation, a table may print micro-steps."""
    share, devices, batch = row.number("batch"), row.number("devices"), row.number("global_batch")
    return row.number("accumulation") == 1 or (bool(share and devices) and share * devices == batch)  # type: ignore[operator]
