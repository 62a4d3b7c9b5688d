"""[suite_truth] Whether the report of a suite reproduces its document, on simulated machines with its figures.

Each machine of a document is simulated: the step time, the time of compilation and the power of each configuration are
those that its printed rows give. The suite's own runs are made on it (worker, raw files, record), and `suite report`
prints its tables from the results.

- Every printed figure is reproduced within its printed digits, unless the audit marks its row as contradictory.
- The same rows are marked in the report as by the audit of the document, and no others.
- `suite show --probe` predicts the device-hours of the size small from short runs, within a factor of 1.5 of what the
  runs then take (with noise of 2 % per step and 1 % between jobs).

Where rate and time of a table give another epoch than the suite's, its size is the one that most rows agree on.
Not simulated: accuracies, and what a guide expected instead of what was measured.
"""

from __future__ import annotations

import re
import tempfile
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from figure import Figure, arguments, at_least, at_most, finish
from simjob import run_spec
from steelyard.analysis.probe import forecast, run_s, short_runs
from steelyard.contracts.sim import Noise, Power, Sensor, SimTruth
from steelyard.contracts.spec import Budget
from steelyard.inputs.study import Expansion
from steelyard.inputs.suite import Choice, counterpart, expand_part, find_suite, plan_part
from steelyard.report.audit.published import JudgedDocument
from steelyard.report.suite.beside import SuiteResults
from steelyard.report.suite.page import suite_page
from steelyard.results.store import ResultFolder

if TYPE_CHECKING:
    from steelyard.contracts.spec import RunSpec
    from steelyard.inputs.suite import Size, SuiteFolder
    from steelyard.report.suite.beside import Beside
    from steelyard.rules.table.row import Amount, Row

SUITES = ("nrp", "aces", "olivia", "caraml")
SIZE: Size = "full"
NOT_SIMULATED = ("val_accuracy@epoch10", "expected_throughput")
# Steps are alike on a simulated machine without noise.
STEPS = Budget(min_steps=60, min_seconds=0.0, max_steps=60, max_seconds=1e9, max_extension=1.0)
CONTRADICTION = "SY5"
OTHER_EPOCH = 0.02
QUICK_ROWS = 12
RATES = ("throughput", "throughput_job", "later_epochs_throughput", "token_throughput")
WH = 3600.0


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


def epoch_of(row: Printed, spec: RunSpec, sizes: dict[str, float]) -> RunSpec:
    """Return the run with the document's own epoch, where its rows give another one than the suite's."""
    size = sizes.get(row.row.table)
    if size is None or spec.epoch_samples is None or abs(size / spec.epoch_samples - 1) < OTHER_EPOCH:
        return spec
    return replace(spec, epoch_samples=round(size), last_batch="keep")


def simulated(row: Printed, spec: RunSpec) -> RunSpec | None:
    """Return the run on a machine with the figures of the row; None if the row has no rate and no time."""
    planned = row.entries[0].planned
    samples = float((spec.steps_per_epoch or 0) * spec.step_samples)
    if spec.last_batch != "drop" and spec.epoch_samples is not None:
        samples = float(spec.epoch_samples)
    rate = row.value(*RATES)
    each, time = row.value("throughput_device"), row.value("train_time", "total_time")
    epoch = row.value("epoch_time", "later_epochs_time")
    if rate is None and each is not None:
        rate = each * spec.ranks
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
    truth: dict[str, Any] = {"step_time_s": spec.batch * spec.ranks / rate}
    first = row.value("first_epoch_throughput_with_compile")
    if first is not None:
        truth["compile_s"] = samples / first - samples / rate
    per_energy = energy_of(row, spec, samples)
    if per_energy is not None:
        watts = rate / per_energy / spec.ranks
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
    energy = whole if whole is not None else each * spec.ranks if each is not None else None
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
        settings = tuple(sorted((key, str(value)) for key, value in row.row.settings.items() if key != "phase"))
        found[row.entries[0].table.part, row.entries[0].table.title, settings, row.row.note].extend(row.entries)
    return [Printed(entries[0].published, tuple(entries)) for entries in found.values()]


@dataclass
class Tally:
    """What became of the printed figures of a suite."""

    good: int = 0
    contradictory: int = 0
    wrong: list[str] = field(default_factory=list)
    marked: int = 0
    """Rows that are marked otherwise than by the audit."""


def check_suite(found: SuiteFolder, *, quick: bool) -> Tally:
    """Run a suite on the machines of its document, and compare its report with the document."""
    with tempfile.TemporaryDirectory() as scratch:
        rows = joined(printed_rows(SuiteResults(ResultFolder(Path(scratch)), found, SIZE)))
    sizes = {table: size for table in {row.row.table for row in rows} if (size := epoch_size(rows, table)) is not None}
    if quick:
        rows = rows[:: max(1, len(rows) // QUICK_ROWS)]
    unnamed = unnamed_rows(found)
    tally = Tally()
    for batch in batches(rows):
        with tempfile.TemporaryDirectory() as scratch:
            folder = ResultFolder(Path(scratch))
            made = run_rows(found, folder, batch, sizes)
            results = SuiteResults(folder, found, SIZE)
            shown = [entry for table in found.suite.table for entry in results.beside(table)]
            beside = {(entry.table.title, entry.published.place, entry.metric): entry for entry in shown}
            for row in made:
                for one in row.entries:
                    count(tally, beside[one.table.title, one.published.place, one.metric], unnamed)
            tally.marked = max(tally.marked, marked_wrongly(found, folder))
    return tally


def count(tally: Tally, entry: Beside, unnamed: Counter[str]) -> None:
    """Count a figure as reproduced, contradictory in the document itself, or wrong."""
    printed, ours, table = entry.printed, entry.ours, entry.published.table
    if ours is not None and printed.low * (1 - 1e-9) <= ours.value <= printed.high * (1 + 1e-9):
        tally.good += 1
    elif any(mark.severity == "error" or mark.code.startswith(CONTRADICTION) for mark in entry.marks):
        tally.contradictory += 1
    elif unnamed[table]:
        unnamed[table] -= 1
        tally.contradictory += 1
    else:
        text = f"{entry.published.place} {entry.metric}: {printed.text} {printed.unit}, ours {ours and ours.value}"
        tally.wrong.append(text)


def unnamed_rows(found: SuiteFolder) -> Counter[str]:
    """Return how many rows of each table the audit counts as contradictory without naming them."""
    counted: Counter[str] = Counter()
    for finding in JudgedDocument(found.suite.document).audit.findings:
        more = re.search(r"(\d+) more rows? differ", finding.message)
        if finding.code.startswith(CONTRADICTION) and more is not None:
            counted[finding.place.split(",")[0].removeprefix("table ")] += int(more[1])
    return counted


def epoch_size(rows: list[Printed], table: str) -> float | None:
    """Return the samples of an epoch that most rows of a table give as rate times time, within their digits."""
    spans = []
    for row in rows:
        rate, time = row.amount(*RATES), row.amount("train_time", "epoch_time", "later_epochs_time")
        if row.row.table == table and rate is not None and time is not None:
            epochs = (row.entries[0].planned.epochs or 1) if row.amount("train_time") is not None else 1
            spans.append((rate.low * time.low / epochs, rate.high * time.high / epochs))
    ends = sorted(end for span in spans for end in span)
    middles = [(one + other) / 2 for one, other in pairwise(ends)]
    return max(middles, key=lambda size: sum(low <= size <= high for low, high in spans), default=None)


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


def run_rows(found: SuiteFolder, folder: ResultFolder, rows: list[Printed], sizes: dict[str, float]) -> list[Printed]:
    """Make the runs of rows on their simulated machine; return the rows that were run."""
    made = []
    specs: dict[str, list[tuple[dict[str, Any], RunSpec]]] = {}
    for row in rows:
        planned = row.entries[0].planned
        part = planned.part
        if part.name not in specs:
            plan = plan_part(found.suite, part, Choice(SIZE))
            cells = expand_part(found, part, Choice(SIZE)).cells
            specs[part.name] = [(one.settings, cell.spec) for one, cell in zip(plan, cells, strict=True)]
        there = counterpart(found.suite, planned, Choice(SIZE))
        assert there is not None, planned.settings
        spec = next(spec for settings, spec in specs[part.name] if settings == there.settings)
        run = simulated(row, epoch_of(row, spec, sizes))
        if run is not None:
            run_spec(folder, run)
            made.append(row)
    return made


def marked_wrongly(found: SuiteFolder, folder: ResultFolder) -> int:
    """Return the rows of the report's tables that are marked and not by the audit of the document, or the reverse."""
    judged = JudgedDocument(found.suite.document)
    page = suite_page(folder, found, SIZE)
    results = SuiteResults(folder, found, SIZE)
    shown = {code for table in page.tables if table.name.startswith("table-") and not table.name.endswith("pairs")
             for row in table.rows for cell in row if not cell.runs for code in cell.codes}  # fmt: skip
    wrong = 0
    expected: set[str] = set()
    for table in found.suite.table:
        for entry in results.beside(table):
            row = replace(entry.published, place=f"{found.suite.document}, {entry.published.place}")
            codes = {finding.code for finding in judged.findings_on([row])}
            wrong += codes != {mark.code for mark in entry.marks}
            expected |= codes
    return wrong + len(expected ^ (shown & expected)) + len({code for code in shown if code not in expected})


def forecast_factor(found: SuiteFolder, *, quick: bool) -> float:
    """Return by which factor the predicted device-hours of a suite differ from those that its runs take, at least 1."""
    with tempfile.TemporaryDirectory() as scratch:
        rows = joined(printed_rows(SuiteResults(ResultFolder(Path(scratch)), found, SIZE)))
        predicted = taken = 0.0
        noise = Noise(kind="normal", cv=0.02, between_jobs_cv=0.01)
        for number, row in enumerate(rows[:: max(1, len(rows) // (6 if quick else 40))]):
            there = counterpart(found.suite, row.entries[0].planned, Choice("small"))
            if there is None:
                continue
            expansion = expand_part(found, there.part, Choice("small"))
            plan = plan_part(found.suite, there.part, Choice("small"))
            at = next(place for place, one in enumerate(plan) if one.settings == there.settings)
            spec = expansion.cells[at].spec
            run = simulated(row, spec)
            if run is None:
                continue
            truth = replace(run.sim, noise=noise, setup_s=20.0)
            run = replace(run, budget=spec.budget, sim=truth, seed=number, run_id=f"run-{number}")
            one = Expansion(expansion.study, (replace(expansion.cells[at], spec=run),), (run,))
            (short,) = short_runs(one).runs
            folder = ResultFolder(Path(scratch) / str(number))
            record = run_spec(folder, replace(short, seed=number + 1000))
            predicted += forecast(one, [record]).device_hours
            taken += run_s(run_spec(folder, run)) * run.ranks / 3600
    return max(predicted / taken, taken / predicted)


def main() -> NoReturn:
    options = arguments(__doc__)
    figures: list[Figure] = []
    for name in SUITES:
        tally = check_suite(find_suite(name), quick=options.quick)
        for text in tally.wrong[:20]:
            print(f"{name}: {text}")
        whole = tally.good + len(tally.wrong)
        factor = forecast_factor(find_suite(name), quick=options.quick)
        unit = f"% of {whole}; {tally.contradictory} more in contradictory rows"
        figures += [
            at_least(f"{name}: printed figures reproduced", 100 * tally.good / max(1, whole), unit, 100.0),
            at_most(f"{name}: rows marked otherwise than by the audit", tally.marked, "rows", 0),
            at_most(f"{name}: device-hours, predicted and taken", factor, "times", 1.5),
        ]
    finish(figures)


if __name__ == "__main__":
    main()
