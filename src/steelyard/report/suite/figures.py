"""The figures that documents print, from the figures of our own runs."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from steelyard.analysis.reached import in_table_unit, rates_of
from steelyard.analysis.rows import scaled
from steelyard.rules.table.row import Amount
from steelyard.rules.table.units import counted, unit_of
from steelyard.stats.jobs import across_jobs

if TYPE_CHECKING:
    from collections.abc import Callable

    from steelyard.contracts.spec import RunSpec
    from steelyard.rules.table.row import Row

WH = 3600.0
UNITS = {
    "train_time": "h",
    "epoch_time": "s",
    "total_time": "s",
    "later_epochs_time": "s",
    "first_epoch_time": "s",
    "energy_per_epoch": "Wh",
    "energy_per_epoch_per_device": "Wh",
    "energy_per_hour_per_device": "Wh",
    "images_per_energy": "images/Wh",
    "tokens_per_energy": "tokens/Wh",
    "tokens_per_second_per_device": "tokens/s",
}
"""Units of figures that no document prints."""


@dataclass(frozen=True)
class OurRun:
    """A measured configuration, and what is needed for figures of a whole training."""

    row: Row
    spec: RunSpec
    epochs: int | None

    @property
    def epoch(self) -> float | None:
        """Samples that an epoch trains on: without those of a dropped last batch."""
        samples = self.row.number("epoch_samples")
        if self.spec.last_batch == "drop" and samples is not None:
            return samples // self.spec.step_samples * self.spec.step_samples
        return samples


def our_figure(run: OurRun, name: str, unit: str = "") -> Amount | None:
    """Return a figure under the name that a document or a suite gives it, in this unit; None if it is unknown."""
    if name == "throughput" and counted(unit) == "tokens":
        name = "token_throughput"
    if name == "throughput" and not unit:
        name = next((one for one in rates_of(run.spec.workload) if one in run.row.figures), name)
    made = _FORMULAS.get(name, _plain(name))(run)
    if made is None:
        return None
    if not unit and name not in UNITS:
        return in_table_unit(made, run.spec.workload)
    unit = unit or UNITS[name]
    kinds = [known[0] if (known := unit_of(text)) is not None else text for text in (unit, made.unit)]
    # Documents count images, sequences or items where we count samples.
    return replace(made, unit=unit) if kinds[0] == kinds[1] else made


def _scaled(amount: Amount | None, factor: float, unit: str) -> Amount | None:
    """Multiply a figure by a factor."""
    return None if amount is None else replace(scaled(amount, factor), unit=unit)


def _inverse(amount: Amount | None, factor: float, unit: str) -> Amount | None:
    """Divide a factor by a figure; a bound of zero becomes infinite."""
    if amount is None or min(amount.value, *amount.jobs) <= 0:
        return None
    low, high = (factor / end if end > 0 else math.inf for end in (amount.high, amount.low))
    jobs = tuple(factor / value for value in amount.jobs)
    return Amount(factor / amount.value, low, high, unit, jobs=jobs, common=amount.common)


def _plain(name: str) -> Callable[[OurRun], Amount | None]:
    return lambda run: run.row.figures.get(name)


def _time_of(run: OurRun, epochs: float | None) -> Amount | None:
    """Return the time of some epochs: as measured if the run made as many, else from its throughput."""
    samples = run.epoch
    if epochs is None or samples is None:
        return None
    first, later = (run.row.figures.get(name) for name in ("first_epoch_time", "later_epochs_time"))
    if run.spec.budget.epochs == epochs and first is not None and (later is not None or epochs == 1):
        rest = later.jobs if later is not None else (0.0,) * len(first.jobs)
        return _over([one + (epochs - 1) * other for one, other in zip(first.jobs, rest, strict=True)], "s")
    return _inverse(run.row.figures.get("throughput"), epochs * samples, "s")


def _over(values: list[float], unit: str) -> Amount:
    interval = across_jobs(values)
    low = interval.low if interval.low is not None else min(values)
    high = interval.high if interval.high is not None else max(values)
    return Amount(interval.value, low, high, unit, jobs=tuple(values))


def _epoch_time(run: OurRun) -> Amount | None:
    return run.row.figures.get("later_epochs_time") or _time_of(run, 1)


def _first_epoch(run: OurRun) -> Amount | None:
    """Return the throughput of the first epoch with the time of compilation before it.

    The time of an epoch that the run did not finish is calculated from its throughput.
    """
    first, compiled, samples = run.row.figures.get("first_epoch_time"), run.row.figures.get("compile_time"), run.epoch
    first = first or _time_of(run, 1)
    if first is None or samples is None:
        return None
    before = compiled.jobs if compiled is not None else (0.0,) * len(first.jobs)
    times = _over([one + other for one, other in zip(first.jobs, before, strict=True)], "s")
    return _inverse(times, samples, "samples/s")


def _energy(run: OurRun, per: float = 1.0) -> Amount | None:
    samples = run.epoch
    each = run.row.figures.get("energy_per_sample")
    return None if samples is None else _scaled(each, samples / per, "J")


def _per_energy(run: OurRun) -> Amount | None:
    return _inverse(run.row.figures.get("energy_per_sample"), 1.0, "samples/J")


def _tokens_per_energy(run: OurRun) -> Amount | None:
    return _inverse(run.row.figures.get("energy_per_token"), 1.0, "tokens/J")


def _hourly(run: OurRun) -> Amount | None:
    return _scaled(run.row.figures.get("power_job"), WH / run.spec.devices, "J")


def _tokens_each(run: OurRun) -> Amount | None:
    return _scaled(run.row.figures.get("token_throughput"), 1 / run.spec.devices, "tokens/s")


_FORMULAS: dict[str, Callable[[OurRun], Amount | None]] = {
    "train_time": lambda run: _time_of(run, run.epochs),
    "total_time": lambda run: _time_of(run, 1),
    "epoch_time": _epoch_time,
    "later_epochs_time": _epoch_time,
    "first_epoch_throughput_with_compile": _first_epoch,
    "later_epochs_throughput": lambda run: (
        run.row.figures.get("later_epochs_throughput") or run.row.figures.get("throughput")
    ),
    "energy_per_epoch": _energy,
    "energy_per_epoch_per_device": lambda run: _energy(run, run.spec.devices),
    "energy_per_hour_per_device": _hourly,
    "images_per_energy": _per_energy,
    "tokens_per_energy": _tokens_per_energy,
    "tokens_per_second_per_device": _tokens_each,
}
