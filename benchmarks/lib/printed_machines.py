"""Simulated machines with the figures of a document: each printed row as the run of its suite that reproduces it."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from steelyard.contracts.sim import Power, Sensor, SimTruth
from steelyard.contracts.spec import Budget

if TYPE_CHECKING:
    from steelyard.contracts.spec import RunSpec
    from steelyard.report.suite.beside import Beside, SuiteResults
    from steelyard.rules.table.row import Amount, Row

NOT_SIMULATED = ("val_accuracy@epoch10", "expected_throughput")
# Steps are alike on a simulated machine without noise.
STEPS = Budget(min_steps=60, min_seconds=0.0, max_steps=60, max_seconds=1e9, max_extension=1.0)
RATES = ("throughput", "later_epochs_throughput", "token_throughput")


@dataclass(frozen=True)
class Printed:
    """A printed row and its figures as our report names them."""

    row: Row
    entries: tuple[Beside, ...]

    def amount(self, *names: str) -> Amount | None:
        """Return a printed figure."""
        return next((entry.printed for entry in self.entries if entry.figure in names), None)

    def value(self, *names: str) -> float | None:
        """Return a figure in its base unit."""
        found = self.amount(*names)
        return found.value if found is not None else None


def simulated(row: Printed, spec: RunSpec) -> RunSpec | None:
    """Return the run on a machine with the figures of the row; None if the row has no rate and no time."""
    planned = row.entries[0].planned
    samples = float((spec.steps_per_epoch or 0) * spec.step_samples)
    if spec.last_batch != "drop" and spec.epoch_samples is not None:
        samples = float(spec.epoch_samples)
    rate = row.value(*RATES)
    each, time = row.value("throughput_per_device"), row.value("train_time", "total_time")
    epoch = row.value("epoch_time", "later_epochs_time")
    if rate is None and each is not None:
        rate = each * spec.devices
    if rate is None and time is not None and planned.epochs is not None:
        rate = planned.epochs * samples / time
    if rate is None and epoch is not None:
        rate = samples / epoch
    if rate is None:
        return None
    total = planned.epochs if time is not None else 1
    printed = row.amount(*RATES)
    if printed is not None and (time or epoch) and total is not None:
        # Both figures are rounded: a rate that fits both, if there is one.
        fitting = total * samples / (time or epoch or 1.0)
        rate = min(max(fitting, printed.low * (1 + 1e-12)), printed.high * (1 - 1e-12))
    # The stages of a pipeline wait for the first micro-batch and for the last one.
    waiting = 1 + (spec.devices / spec.replicas - 1) / spec.accumulation
    truth: dict[str, Any] = {"step_time_s": spec.batch * spec.devices / rate / waiting}
    first = row.value("first_epoch_throughput_with_compile")
    if first is not None:
        truth["compile_s"] = samples / first - samples / rate
    per_energy = energy_of(row, spec, samples)
    if per_energy is not None:
        watts = rate / per_energy / spec.devices
        truth["power"] = Power(idle_w=watts, compute_w=watts, compile_w=watts)
        truth["sensors"] = (Sensor(kind="gauge", resolution=1e-9, gain=0.0),)
    # A whole training needs no more steps than tell its speed; a first epoch is told apart by running it.
    budget = spec.budget if first is not None else STEPS
    return replace(spec, device="sim", sim=SimTruth(**truth), budget=budget, crosscheck_steps=0, quality=None)


def energy_of(row: Printed, spec: RunSpec, samples: float) -> float | None:
    """Return samples per joule that fit both printed energies, if there is one; None if the row has no energy."""
    printed = row.amount("images_per_energy", "tokens_per_energy")
    if printed is None:
        return None
    whole, each = row.value("energy_per_epoch"), row.value("energy_per_epoch_per_device")
    energy = whole if whole is not None else each * spec.devices if each is not None else None
    return printed.value if energy is None else min(max(samples / energy, printed.low), printed.high)


def printed_rows(results: SuiteResults) -> list[Printed]:
    """Return the printed rows that have configurations, each once per configuration."""
    found: defaultdict[tuple[str, str, str], list[Beside]] = defaultdict(list)
    for table in results.suite.table:
        for entry in results.beside(table):
            if entry.metric not in NOT_SIMULATED:
                found[table.part, table.title, entry.published.place].append(entry)
    return [Printed(entries[0].published, tuple(entries)) for entries in found.values()]


def joined(rows: list[Printed]) -> list[Printed]:
    """Return rows with those of the same run together: the first and the second epoch of one line of a table."""
    found: defaultdict[tuple[Any, ...], list[Beside]] = defaultdict(list)
    for row in rows:
        settings = tuple(sorted((key, str(value)) for key, value in row.row.settings.items() if key != "mode"))
        found[row.entries[0].table.part, row.entries[0].table.title, settings, row.row.note].extend(row.entries)
    return [Printed(entries[0].published, tuple(entries)) for entries in found.values()]


def batches(rows: list[Printed]) -> list[list[Printed]]:
    """Return rows in groups: one machine, and each configuration once."""
    groups: list[tuple[str, set[str], list[Printed]]] = []
    for row in rows:
        machine = f"{row.row.get('system')} {row.row.get('accelerator')}"
        settings = f"{row.entries[0].planned.part.name} {row.entries[0].planned.settings}"
        for name, taken, there in groups:
            if name == machine and settings not in taken:
                taken.add(settings)
                there.append(row)
                break
        else:
            groups.append((machine, {settings}, [row]))
    return [there for _, _, there in groups]
