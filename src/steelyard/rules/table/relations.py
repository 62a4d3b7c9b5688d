"""Relations between the figures of a row, and a solver for the intervals that the printed digits allow.

Every relation is a product, so it is a sum of logarithms. Rounding gives each figure an interval of logarithms.
"""

from __future__ import annotations

import math
import re
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

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
}
KINDS |= {f"{name}_per_{scope}": KINDS[name] for name in EXTENSIVE for scope in ("device", "node")}
"""Metrics that occur in relations, and the kind of unit each must have. Other metrics are ignored."""
ALIASES = {
    "time": "train_time",
    "training_time": "train_time",
    "time_per_epoch": "epoch_time",
    "scaling_efficiency": "efficiency",
}
PER_ENERGY = re.compile(rf"({'|'.join(ITEMS)})_per_energy")
# An image, a sequence and a request each count as one sample; a token does not.
SAMPLES = frozenset({"images", "samples", "sequences", "items", "requests"})

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
    (("efficiency", 1), ("devices", 1), ("speedup", -1), ("base_devices", -1)),
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


@lru_cache(maxsize=4096)
def metric_kind(name: str) -> Kind | None:
    """Return the kind of unit a metric must have, or None if it is in no relation."""
    return "per_energy" if PER_ENERGY.fullmatch(name) else KINDS.get(ALIASES.get(name, name))


def variable(row: Row, metric: str) -> str | None:
    """Return the name of a row's metric in the relations, or None if it is in no relation."""
    kind, amount = metric_kind(metric), row.figures[metric]
    unit = unit_of(amount.unit)
    if kind is None or unit is None or unit[0] != kind or amount.low <= 0:
        return None
    if kind in ("rate", "per_energy"):
        own, items = counted(amount.unit), item_of(row)
        if own != items and not {own, items} <= SAMPLES:
            return None
    return "items_per_energy" if kind == "per_energy" else ALIASES.get(metric, metric)


def item_of(row: Row) -> str:
    """Return what the rates of a row count, such as `images` or `tokens`; empty without a rate."""
    rates = [amount for metric, amount in row.figures.items() if metric_kind(metric) in ("rate", "per_energy")]
    whole = row.figures.get("throughput")
    return counted((whole or rates[0]).unit) if rates else ""


def observed(row: Row) -> dict[str, Bounds]:
    """Return the figures and counts that a row states, as bounds of their logarithms."""
    found: dict[str, Bounds] = {}
    for metric, amount in row.figures.items():
        name = variable(row, metric)
        if name is not None and name not in found:
            found[name] = bounds_of(amount)
    for key in ("devices", "nodes"):
        count = row.number(key)
        if count:
            found[key] = exactly(count)
    batch, samples = samples_of(row, row.number("global_batch")), samples_of(row, row.number("epoch_samples"))
    if samples:
        found["epoch_work"] = last_batch(exactly(samples), row)
    if batch and _is_one_batch_a_step(row):
        found["step_work"] = exactly(batch)
    return found


def bounds_of(amount: Amount) -> Bounds:
    """Return the bounds of a figure's logarithm from its printed digits."""
    return Bounds(*amount.log_bounds())


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
        share, devices = row.number("batch_per_device"), row.number("devices")
        batch = share * devices * (row.number("grad_accumulation") or 1) if share and devices else None
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
                    return Solved(known, tighter.sources)
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
    share, devices, batch = row.number("batch_per_device"), row.number("devices"), row.number("global_batch")
    return row.number("grad_accumulation") == 1 or (bool(share and devices) and share * devices == batch)  # type: ignore[operator]
