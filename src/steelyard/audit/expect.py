"""Is a figure normal? The band in which it lies on comparable machines, from the catalogue, imported and own results.

Rows are comparable if they agree in every setting that may change the figure (`MUST`); only the machine, its node, its
software and its surroundings may differ. Rows that disagree are never in one band. What a row does not state is
unknown: it is equal only to what is unknown in the other rows of its band, and is listed. The band is over machines:
several figures of one machine count as one, their geometric mean.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Literal

from steelyard import nofollow
from steelyard.analysis.rows import row_of
from steelyard.analysis.summary import summarise
from steelyard.audit import documents
from steelyard.audit.foreign import kept_tables
from steelyard.contracts.observe import MEASURED
from steelyard.contracts.record import RunRecord
from steelyard.errors import LEFT_OUT, SteelyardError, leave_out
from steelyard.inputs.validate import MAX_RECORD_BYTES, parse_json, read_inside
from steelyard.results.store import RECORD_FILE
from steelyard.rules.table.relations import SAMPLES
from steelyard.rules.table.settings import (
    SETTINGS,
    about_quality,
    about_training,
    alike,
    normal,
    of_steps,
    shown,
    stated,
)
from steelyard.rules.table.units import counted, unit_of
from steelyard.stats.prediction import geometric_mean, prediction_band

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from steelyard.analysis.summary import CellSummary
    from steelyard.results.store import ResultFolder
    from steelyard.rules.table.row import Amount, Row, Setting
    from steelyard.stats.prediction import PredictionBand

Answer = Literal["inside", "below", "above", "band", "too few machines"]

# What the machine, its host and its state decide, or what does not change the work.
FREE = ("software", "environment", "evidence")
FREE_KEYS = ("system", "threads", "filesystem", "task")
# Without these a figure says nothing about another one.
CORE = ("model", "accelerator", "devices", "precision", "batch", "mode", "model_options", "system")
# A message has neither a batch nor a phase.
NO_CORE = {"bus_bandwidth": ("batch", "mode"), "algorithm_bandwidth": ("batch", "mode")}
# Here the name of the system says what computes: the model of the CPU, or the truth of a simulated device.
IN_SYSTEM = ("cpu", "simulated")
MOST_RUNS = 20_000
"""Own runs that are looked at; more belong into a query."""
AFTER_A_RUN = 500
DIGEST = re.compile(r"sha256 [0-9a-f]{12}")
BUS, RATE = "bus_bandwidth", "throughput"


@dataclass(frozen=True)
class Machine:
    """A machine with its figure."""

    name: str
    value: float
    figures: int
    source: str


@dataclass(frozen=True)
class Expected:
    """The figures of comparable machines, and where a figure lies among them."""

    metric: str
    unit: str
    settings: Mapping[str, Setting]
    """Settings that all of them share, by name."""
    unknown: tuple[str, ...]
    """Settings that the question states and the machines do not."""
    machines: tuple[Machine, ...]
    band: PredictionBand | None
    """None: fewer than three machines."""
    value: float | None
    answer: Answer

    @property
    def sources(self) -> tuple[str, ...]:
        """Where the figures come from."""
        return tuple(dict.fromkeys(machine.source for machine in self.machines))


# -- where rows come from


def known_rows(folder: ResultFolder, model: str, most: int = MOST_RUNS) -> list[Row]:
    """Return the rows of a model: of the catalogue, of imported results, and of every node of our own."""
    wanted = normal("model", model)
    tables = [*(documents.load(name) for name in documents.names()), *kept_tables(folder)]
    distinct: dict[object, Row] = {}
    for table in tables:
        for number, row in enumerate(table.rows):
            name = row.get("model")
            if name is not None and normal("model", name) == wanted:
                # The same file may have been imported twice, under other names.
                digest = DIGEST.search(row.note)
                key = (digest[0], _printed(row)) if digest else (table.name, number)
                distinct.setdefault(key, replace(row, source=row.source or table.name))
    return [*distinct.values(), *own_rows(folder, model, most)]


def _printed(row: Row) -> tuple[object, ...]:
    """Return what a row says, without the machine, which may have been named at the import."""
    figures = sorted((metric, amount.text) for metric, amount in row.figures.items())
    settings = sorted((key, shown(value)) for key, value in row.settings.items() if SETTINGS[key] != "system")
    return (*figures, *settings)


def own_rows(folder: ResultFolder, model: str, most: int = MOST_RUNS) -> Iterator[Row]:
    """Yield the configurations of our own runs of a workload, each node apart."""
    by_node: dict[tuple[str, str], list[RunRecord]] = {}
    for record in _records(folder, model, most):
        if record.status.code in MEASURED and record.environment is not None:
            by_node.setdefault((record.spec.study, record.environment.node), []).append(record)
    for records in by_node.values():
        for cell in summarise(records):
            row = row_of(cell)
            if row.get("findings") is None:
                # A figure with errors is not what a machine does.
                yield replace(row, source=str(folder.path))


def _records(folder: ResultFolder, model: str, most: int) -> Iterator[RunRecord]:
    """Yield the records of a workload. Others are not parsed, which takes ten times as long as reading."""
    mark = f'"workload": {json.dumps(model)}'.encode()
    left = most
    for study in folder.studies():
        for run in sorted(folder.run_ids(study)):
            if left == 0:
                return
            left -= 1
            path = folder.root / "runs" / study / run / RECORD_FILE
            try:
                if not nofollow.is_file(path):
                    continue
                content = read_inside(path, MAX_RECORD_BYTES)
                if mark in content:
                    yield parse_json(RunRecord, content, str(path))
            except SteelyardError as error:
                leave_out(error)


def expect_of(folder: ResultFolder, cell: CellSummary) -> Expected | None:
    """Return where the figure of a configuration that was just measured lies; None: there is no comparable data."""
    own = row_of(cell)
    metric = next((name for name in (BUS, RATE) if name in own.figures), None)
    if metric is None:
        return None
    # A file of others that cannot be read must not make a run fail.
    before = LEFT_OUT.set({})
    try:
        rows = known_rows(folder, str(own.get("model")), AFTER_A_RUN)
    finally:
        LEFT_OUT.reset(before)
    return next(iter(expect(rows, {}, metric, value=own.figures[metric].value, own=own)), None)


# -- which belong together


def must(metric: str, row: Row) -> tuple[str, ...]:
    """Return the settings in which rows must agree before their figures may be in one band."""
    by_step = of_steps(metric, row.figures.get(metric)) and not about_training(metric)
    return _must(by_step, about_quality(metric), row.get("accelerator") in IN_SYSTEM)


@cache
def _must(by_step: bool, learnt: bool, in_system: bool) -> tuple[str, ...]:
    return tuple(
        key
        for key, role in SETTINGS.items()
        if (key == "serving" or role not in FREE)
        and (key not in FREE_KEYS or (key == "system" and in_system))
        and not (role == "amount" and by_step)
        and not (role == "training" and not learnt)
    )


def group_key(metric: str, row: Row) -> tuple[tuple[str, str], ...]:
    """Return what rows of one band have in common; what a row does not state is not in it."""
    pairs = [(key, normal(key, value)) for key in must(metric, row) if (value := stated(row, key)) is not None]
    return (*pairs, ("unit", _counts(row.figures[metric])))


def _counts(amount: Amount) -> str:
    """Return what a rate counts, or the kind of another unit. An image, a sequence and a request are each a sample."""
    item = counted(amount.unit)
    return "samples" if item in SAMPLES else item or (unit_of(amount.unit) or (amount.unit, 1.0))[0]


def machine_of(row: Row) -> str:
    """Return the name of a row's machine: its node, else its system, else the file: it may be one machine."""
    node, system = row.get("node"), row.get("system")
    if node is not None:
        return f"{system or row.source}, {node}" if system != row.get("accelerator") else str(node)
    return str(system) if system is not None else row.source


def expect(
    rows: Iterable[Row],
    asked: Mapping[str, Setting],
    metric: str,
    *,
    value: float | None = None,
    own: Row | None = None,
) -> list[Expected]:
    """Return one answer for each kind of comparable rows, those with the most machines first.

    `asked`: settings that rows must state and share. `own`: the row that the value is from; its machine is left out,
    and the only answer is of the rows that agree with it in all they state.
    """
    groups: dict[tuple[tuple[str, str], ...], list[Row]] = {}
    for row in rows:
        amount = row.figures.get(metric)
        if amount is None or not 0 < amount.value < math.inf or not _states(row, asked):
            continue
        if own is not None and (machine_of(row) == machine_of(own) or not _agrees(row, own, metric)):
            continue
        groups.setdefault(group_key(metric, row), []).append(row)
    made = [_expected(metric, group, value, own) for group in groups.values()]
    # For one figure the nearest rows are those that state the most of what it states.
    made.sort(key=lambda entry: (len(entry.unknown) if own is not None else 0, -len(entry.machines)))
    return made[:1] if own is not None else made


def _states(row: Row, asked: Mapping[str, Setting]) -> bool:
    """Return whether a row states what was asked for; the name of a device may be a part of its whole name."""
    for key, value in asked.items():
        own = stated(row, key)
        near = ("same", "unclear") if key == "accelerator" else ("same",)
        if own is None or alike(key, own, value, one_source=False) not in near:
            return False
    return True


def _agrees(row: Row, own: Row, metric: str) -> bool:
    """Return whether a row contradicts nothing that our own states, and says what matters most."""
    if metric in own.figures and _counts(row.figures[metric]) != _counts(own.figures[metric]):
        return False
    for key in must(metric, own):
        mine, other = stated(own, key), stated(row, key)
        if mine is None or (other is None and mine == "none"):
            continue
        if other is None and key in CORE and key not in NO_CORE.get(metric, ()):
            return False
        if other is not None and normal(key, mine) != normal(key, other):
            return False
    return True


def _expected(metric: str, rows: Sequence[Row], value: float | None, own: Row | None) -> Expected:
    by_machine: dict[str, list[Row]] = {}
    for row in rows:
        by_machine.setdefault(machine_of(row), []).append(row)
    machines = tuple(
        Machine(name, geometric_mean([_figure(row, metric) for row in its]), len(its), its[0].source)
        for name, its in by_machine.items()
    )
    printed = [amount for row in rows if (amount := row.figures[metric]).text and amount.low > 0]
    rounding = max((amount.value / amount.low - 1 for amount in printed), default=0.0)
    band = prediction_band([machine.value for machine in machines], rounding)
    first = rows[0]
    shared = {key: setting for key in must(metric, first) if (setting := stated(first, key)) is not None}
    unknown = [key for key in must(metric, own) if stated(own, key) is not None and key not in shared] if own else []
    answer: Answer = "too few machines"
    if band is not None:
        answer = "band" if value is None else _place(band, value)
    return Expected(metric, first.figures[metric].unit, shared, tuple(unknown), machines, band, value, answer)


def _figure(row: Row, metric: str) -> float:
    return row.figures[metric].value


def _place(band: PredictionBand, value: float) -> Answer:
    return "inside" if band.holds(value) else "below" if value < band.low else "above"
