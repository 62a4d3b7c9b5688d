"""[suite_answers] How many printed figures of the suites have an answer, and whether the answers are true.

Machines with 1, 4 and 8 devices are simulated: each configuration of each suite at the size small has a step time and
a power that are known. The rules judge the runs once per machine; draws redraw only what differs between jobs (1 %
between jobs, three jobs of each configuration).

- Share: of the printed figures for as many devices as there are, with the document's data sets, those with a ratio of
  the same work or in a relation. Lengths of training (if) count apart. Without data sets the share is told, without a
  bar.
- Coverage: how often the interval of a ratio contains the ratio of the true figures; of all answers together, and of
  the worst.
- Conditions: two rows are printed with every setting of their runs except one, which may then differ between them. The
  relation must name it among its conditions.
- Unlike pairs: a second setting that differs, another unit, other data. They must have no relation.

Not simulated: accuracies.
"""

from __future__ import annotations

import random
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from figure import Figure, arguments, at_least, at_most, finish
from gallery_suites import JOBS, make_machine
from printed_machines import NOT_SIMULATED
from steelyard.analysis.ratios import ratios
from steelyard.analysis.rows import row_of
from steelyard.inputs.suite import find_suite
from steelyard.report.suite.beside import SuiteResults
from steelyard.report.suite.figures import OurRun, our_figure
from steelyard.report.suite.inside import relations
from steelyard.results.store import ResultFolder
from steelyard.rules.table.row import Pair
from steelyard.rules.table.settings import SETTINGS, implied, meant_to_differ

if TYPE_CHECKING:
    from collections.abc import Iterator

    from steelyard.contracts.record import Quantity, RunRecord
    from steelyard.inputs.suite import SuiteFolder
    from steelyard.report.suite.beside import Beside
    from steelyard.report.suite.inside import Relation
    from steelyard.rules.table.row import Row, Setting

SUITES = ("nrp", "aces", "olivia", "caraml")
MACHINES = (1, 4, 8)
BETWEEN_JOBS = 0.01
DRAWS, QUICK_DRAWS = 400, 40
OPEN_DRAWS, UNLIKE_PAIRS = 200, 60
# Ours alone, or given by the batch of a device and the number of devices.
DERIVED = ("preset", "global_batch")
# Settings that a document can print, and that change what is computed or how fast.
PRINTABLE = ("work", "data", "arithmetic", "weights", "batches", "input", "implementation", "threads", "tuning")


@dataclass
class Machine:
    """A simulated machine with the results of a suite, and what its report answers."""

    found: SuiteFolder
    folder: ResultFolder
    devices: int
    entries: list[Beside] = field(default_factory=list)
    made: list[Relation] = field(default_factory=list)

    def read(self) -> None:
        """Let the rules judge, once."""
        results = SuiteResults(self.folder, self.found, "small")
        for table in self.found.suite.table:
            entries = [entry for entry in results.beside(table) if entry.metric not in NOT_SIMULATED]
            # Other batch sizes may be left out at the size small; the figure is one that a reader asks about.
            self.entries += [entry for entry in entries if entry.planned.get("devices") <= self.devices]
            self.made += relations(entries)

    @property
    def answered(self) -> int:
        """Printed figures with a ratio of the same work or in a relation."""
        related = {id(entry) for one in self.made for entry in (one.base, one.entry)}
        return sum(entry.same_work is not None or id(entry) in related for entry in self.entries)


def measure(found: SuiteFolder, folder: ResultFolder, devices: int, *, data: bool) -> Machine:
    """Run a suite on a simulated machine."""
    make_machine(folder, found, devices, data=data)
    machine = Machine(found, folder, devices)
    machine.read()
    return machine


# -- coverage


class Redrawn:
    """The figures of a configuration in draws of its jobs; the first draw has the truth."""

    def __init__(self, draws: int) -> None:
        self._draws = draws
        self._rows: dict[tuple[str, str, str], list[Row]] = {}

    def rows(self, entry: Beside) -> list[Row]:
        """Return our row beside a printed figure: without noise, then in each draw."""
        assert entry.cell is not None
        assert entry.there is not None
        key = (entry.cell.study, entry.cell.name, f"{entry.figure} {entry.printed.unit}")
        if key not in self._rows:
            # One stream for each configuration, whatever is asked first.
            chance = random.Random(f"{key[0]} {key[1]}")
            drawn = [[chance.gauss(1.0, BETWEEN_JOBS) for _ in range(JOBS)] for _ in range(self._draws)]
            self._rows[key] = [self._row(entry, slower) for slower in ([1.0] * JOBS, *drawn)]
        return [replace(row, figures={entry.metric: row.figures[entry.figure]}) for row in self._rows[key]]

    def _row(self, entry: Beside, slower: list[float]) -> Row:
        assert entry.cell is not None
        assert entry.there is not None
        records = [_slowed(record, times) for record, times in zip(entry.cell.records, slower, strict=True)]
        row = row_of(replace(entry.cell, records=tuple(records)))
        amount = our_figure(OurRun(row, entry.cell.spec, entry.there.epochs), entry.figure, entry.printed.unit)
        assert amount is not None
        return replace(row, figures={entry.figure: amount})


def _slowed(record: RunRecord, times: float) -> RunRecord:
    return replace(record, quantities={name: _scaled(one, times) for name, one in record.quantities.items()})


def _scaled(quantity: Quantity, times: float) -> Quantity:
    """Return what a slower job shows: longer times and more energy, lower rates, the same power."""
    if quantity.value is None or quantity.unit not in POWERS:
        return quantity
    return replace(quantity, value=quantity.value * times ** POWERS[quantity.unit])


POWERS = {"s": 1, "J": 1, "J/sample": 1, "J/token": 1, "samples/s": -1, "tokens/s": -1, "samples/J": -1, "tokens/J": -1}
"""How a quantity changes with the time of a step, by its unit."""


def coverages(machine: Machine, draws: int) -> Iterator[float]:
    """Yield how often the interval of each answer contains the truth."""
    redrawn = Redrawn(draws)
    for entry in machine.entries:
        if entry.same_work is not None:
            truth, *drawn = redrawn.rows(entry)
            yield _covered(
                truth.figures[entry.metric].value / entry.printed.value, [entry.published] * draws, drawn, entry
            )
    for one in machine.made:
        (base, *bases), (truth, *drawn) = redrawn.rows(one.base), redrawn.rows(one.entry)
        yield _covered(
            truth.figures[one.entry.metric].value / base.figures[one.entry.metric].value, bases, drawn, one.entry
        )


def _covered(truth: float, bases: list[Row], drawn: list[Row], entry: Beside) -> float:
    inside = 0
    for base, row in zip(bases, drawn, strict=True):
        ratio = ratios(base, row, entry.metric, only_job=True)[0]
        assert ratio.low is not None
        assert ratio.high is not None
        inside += ratio.low <= truth <= ratio.high
    return inside / len(drawn)


# -- conditions and unlike pairs


def printed_alike(entry: Beside) -> Beside:
    """Return a printed figure whose row states every setting of our runs that a document can print."""
    assert entry.cell is not None
    row = row_of(entry.cell)
    stated = {key: value for key, value in row.settings.items() if SETTINGS[key] in PRINTABLE}
    machine = {key: value for key, value in entry.published.settings.items() if SETTINGS[key] in ("system", "size")}
    return replace(entry, published=replace(entry.published, settings=stated | machine), marks=(), differences=())


def named_conditions(pairs: list[Relation], draws: int) -> tuple[int, int]:
    """Leave out one setting of two printed rows, which differs between them: how often is it among the conditions?"""
    chance, named, tried = random.Random(1), 0, 0
    while tried < draws:
        one = chance.choice(pairs)
        base, entry = printed_alike(one.base), printed_alike(one.entry)
        pair = Pair(base.published, entry.published, one.factor, entry.metric)
        meant = meant_to_differ(pair)
        keys = [
            key
            for key in entry.published.settings
            if SETTINGS[key] in PRINTABLE
            and key not in meant
            and key not in DERIVED
            and not implied(_without(pair, key), key)
        ]
        if not keys:
            continue
        key = chance.choice(keys)
        left = relations([_silent(base, key), _silent(entry, key)])
        # Without the batch of a device, that of the job may refuse the pair.
        if left:
            tried += 1
            named += all(key in made.conditions for made in left)
    return named, tried


def _without(pair: Pair, key: str) -> Pair:
    a, b = (
        replace(row, settings={name: value for name, value in row.settings.items() if name != key})
        for row in (pair.a, pair.b)
    )
    return Pair(a, b, pair.factor, pair.metric)


def _silent(entry: Beside, key: str) -> Beside:
    kept = {name: value for name, value in entry.published.settings.items() if name != key}
    return replace(entry, published=replace(entry.published, settings=kept))


def unlike_relations(pairs: list[Relation], count: int) -> int:
    """Make two printed rows unlike in three ways, and return how many still have a relation."""
    chance, made = random.Random(2), 0
    for number in range(count):
        one = chance.choice(pairs)
        base, entry = one.base, one.entry
        if number % 3 == 0:
            # A second setting differs: one that follows from some factors, and one that follows from none.
            if number % 2:
                base, entry = _stating(base, mode="train"), _stating(entry, mode="infer")
            else:
                base, entry = _stating(base, sequence_length=128), _stating(entry, sequence_length=1024)
        elif number % 3 == 1:
            other = replace(base.printed, unit="requests/s")
            figures = {**base.published.figures, base.metric: other}
            base = replace(base, published=replace(base.published, figures=figures))
        else:
            base = _stating(base, dataset="another data set")
        made += len(relations([base, entry]))
    return made


def _stating(entry: Beside, **settings: Setting) -> Beside:
    return replace(entry, published=replace(entry.published, settings={**entry.published.settings, **settings}))


def main() -> None:
    options = arguments(__doc__)
    draws = QUICK_DRAWS if options.quick else DRAWS
    names, machines = (("nrp",), (1,)) if options.quick else (SUITES, MACHINES)
    there = answered = ifs = bare = bare_answered = 0
    covered: list[float] = []
    pairs: list[Relation] = []
    for name in names:
        found = find_suite(name)
        for devices in machines:
            with tempfile.TemporaryDirectory() as scratch:
                machine = measure(found, ResultFolder(Path(scratch) / "data"), devices, data=True)
                there, answered = there + len(machine.entries), answered + machine.answered
                ifs += sum(entry.even is not None for entry in machine.entries)
                one = list(coverages(machine, draws))
                covered += one
                pairs += machine.made
                print(f"{name}, {devices} devices: {machine.answered} of {len(machine.entries)}, {len(one)} answers")
                if not options.quick:
                    other = measure(found, ResultFolder(Path(scratch) / "none"), devices, data=False)
                    bare, bare_answered = bare + len(other.entries), bare_answered + other.answered
    named, tried = named_conditions(pairs, OPEN_DRAWS)
    unlike = unlike_relations(pairs, UNLIKE_PAIRS)
    if bare:
        print(
            f"without data sets: {bare_answered} of {bare} figures have an answer ({100 * bare_answered / bare:.0f} %)"
        )
    print(f"with a length of training (if): {ifs} of {there} figures")
    figures: list[Figure] = [
        at_least("suite_answers: figures with an answer", 100 * answered / there, f"% of {there}", 70.0),
        at_least("suite_answers: coverage of all answers", 100 * sum(covered) / len(covered), "%", 94.0),
        at_least(
            f"suite_answers: coverage of the worst of {len(covered)}",
            100 * min(covered),
            "%",
            90.0 if not options.quick else 80.0,
        ),
        at_least("suite_answers: settings left out that are named as conditions", named, f"of {tried}", tried),
        at_most("suite_answers: relations of unlike pairs", unlike, f"of {UNLIKE_PAIRS}", 0),
    ]
    finish(figures)


if __name__ == "__main__":
    main()
