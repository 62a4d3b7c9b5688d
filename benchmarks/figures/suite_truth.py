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
from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from figure import Figure, arguments, at_least, at_most, finish
from printed_machines import RATES, Printed, batches, joined, printed_rows, simulated
from simjob import run_spec
from steelyard.analysis.probe import forecast, run_s, short_runs
from steelyard.contracts.sim import Noise
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

SUITES = ("nrp", "aces", "olivia", "caraml")
SIZE: Size = "full"
CONTRADICTION = "SY5"
OTHER_EPOCH = 0.02
QUICK_ROWS = 12


def epoch_of(row: Printed, spec: RunSpec, sizes: dict[str, float]) -> RunSpec:
    """Return the run with the document's own epoch, where its rows give another one than the suite's."""
    size = sizes.get(row.row.table)
    if size is None or spec.epoch_samples is None or abs(size / spec.epoch_samples - 1) < OTHER_EPOCH:
        return spec
    return replace(spec, epoch_samples=round(size), last_batch="keep")


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
        there = counterpart(found.suite, planned, SIZE, plan_part(found.suite, part, Choice(SIZE)))
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
            planned = row.entries[0].planned
            plan = plan_part(found.suite, planned.part, Choice("small"))
            there = counterpart(found.suite, planned, "small", plan)
            if there is None:
                continue
            expansion = expand_part(found, there.part, Choice("small"))
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
            taken += run_s(run_spec(folder, run)) * run.devices / 3600
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
