"""Each printed figure of a document, and the figure of our own runs for it."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, get_args

from steelyard.analysis.compare import compare
from steelyard.analysis.ratios import inverse
from steelyard.analysis.rows import row_of
from steelyard.analysis.summary import summarise
from steelyard.audit import documents
from steelyard.audit.check import check_table, rows_meant
from steelyard.audit.reading import read_table
from steelyard.audit.subject import audit_reference
from steelyard.contracts.spec import Mode, Precision
from steelyard.errors import Problem, nearest, refusal
from steelyard.inputs.suite import Choice, counterpart, differences, plan_part, setting_of, study_name
from steelyard.inputs.synonyms import setting_for
from steelyard.report.audit.published import BETWEEN
from steelyard.report.suite.figures import OurRun, our_figure
from steelyard.report.suite.tiny import RUNS
from steelyard.rules.table.settings import SETTINGS, about_training, shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from steelyard.analysis.compare import Comparison
    from steelyard.analysis.ratios import Ratio
    from steelyard.analysis.summary import CellSummary
    from steelyard.audit.judge import Judgement
    from steelyard.contracts.finding import Finding
    from steelyard.contracts.spec import RunSpec
    from steelyard.inputs.suite import Deviation, Part, Planned, PrintedTable, Size, Suite, SuiteFolder
    from steelyard.results.store import ResultFolder
    from steelyard.rules.table.row import Amount, Row, RowTable

AUTOMATIC = ("devices", "batch", "global_batch", "precision", "loader.workers", "accumulation")
"""Settings of a document that are those of a run, if the suite does not say otherwise."""
BESIDE = (
    "data",
    "epoch_samples",
    "epoch_steps",
    "epochs",
    "budget",
    "energy",
    "quality",
    "sim",
    "device",
    "crosscheck_steps",
    "last_batch",
)
"""Settings that do not tell configurations apart: data and length of a run, and how it is measured."""
EXPECTED = "expected_"
"""Before the name of a figure that a document expected, and did not measure."""
METRIC = "metric"
FIGURE = "figure"
SAME_SIZE = 0.01
# Sizes whose runs do the document's own work.
COMPARED = ("full", "small")


@dataclass(frozen=True)
class Beside:
    """A printed figure and ours."""

    table: PrintedTable
    published: Row
    metric: str
    planned: Planned
    """The configuration of the size full."""
    there: Planned | None
    """The configuration of this size that stands for it; None: left out."""
    figure: str
    """Name of our figure; at the size tiny only whether it runs."""
    marks: tuple[Finding, ...]
    """What the audit finds wrong with the printed row."""
    cell: CellSummary | None
    """Our runs; None: not measured."""
    ours: Amount | None
    comparison: Comparison | None
    differences: tuple[Deviation, ...]
    """What is known to differ from the document."""
    even: BreakEven | None = None
    """If the document does not state how long it trained."""

    @property
    def printed(self) -> Amount:
        """The figure as printed."""
        return self.published.figures[self.metric]

    @property
    def epochs(self) -> int | None:
        """The length of training that our figure is of."""
        return (self.there or self.planned).epochs

    @property
    def other_work(self) -> bool:
        """Whether our runs do other work than the document's."""
        return any(one.other_work for one in self.differences)

    @property
    def doubted(self) -> bool:
        """Whether the printed figure is wrong by itself, by the audit or by what is known, or was never measured."""
        wrong = bool(_own_errors(self.marks)) or any(one.implausible for one in self.differences)
        return wrong or self.metric.startswith(EXPECTED)

    @property
    def same_work(self) -> Ratio | None:
        """Our figure over the printed one, if the rules allow it."""
        made = self.comparison.ratios if self.comparison is not None else ()
        return next((ratio for ratio in made if ratio.scope == "job" and ratio.answer != "none"), None)

    @property
    def same_data(self) -> bool:
        """Whether our runs read the document's data set: files of its format, with as many samples."""
        assert self.cell is not None
        read = {record.data.samples if record.data is not None else None for record in self.cell.records}
        wanted = self.planned.get("epoch_samples")
        return all(one is not None and (wanted is None or abs(one / wanted - 1) < SAME_SIZE) for one in read)


@dataclass(frozen=True)
class BreakEven:
    """The length of training with which a printed time is as fast as ours."""

    epochs: float
    low: float | None
    high: float | None
    usual: tuple[int, ...]
    """The fewest and the most epochs that are usual for this training."""


class SuiteResults:
    """A suite at one size: its document, its configurations and the results of its runs."""

    def __init__(self, folder: ResultFolder, suite_folder: SuiteFolder, size: Size) -> None:
        self.suite_folder, self.suite, self.size = suite_folder, suite_folder.suite, size
        self.folder = folder
        _require_settings(self.suite)
        self._cells: dict[str, list[CellSummary]] = {}
        self._plans: dict[str, list[Planned]] = {}

    @cached_property
    def document(self) -> RowTable | None:
        """The rows of the document; None if the suite has none."""
        name = self.suite.document
        if not name:
            return None
        if name in documents.names():
            return documents.load(name)
        path = (self.suite_folder.path / name).resolve()
        if not path.is_relative_to(self.suite_folder.path.resolve()):
            raise refusal(Problem("document", "is outside the folder of the suite", "a file in this folder"))
        return read_table(path)

    @cached_property
    def judgements(self) -> tuple[Judgement, ...]:
        """The judged claims of the document."""
        if self.suite.document not in documents.names():
            return ()
        return audit_reference(self.suite.document).judgements

    @cached_property
    def _marks(self) -> dict[str, list[Finding]]:
        """Findings of the audit by place of a row."""
        by_place: defaultdict[str, list[Finding]] = defaultdict(list)
        if self.document is not None:
            for entry in check_table(self.document):
                for place in rows_meant(entry, self.document):
                    by_place[place].append(entry)
        return by_place

    def cells(self, part: Part) -> list[CellSummary]:
        """Return the measured configurations of a part."""
        if part.name not in self._cells:
            self._cells[part.name] = summarise(self.folder.records(study_name(self.suite, part, self.size)))
        return self._cells[part.name]

    def plan(self, part: Part) -> list[Planned]:
        """Return the configurations of a part at this size, with the numbers of devices that were measured."""
        if part.name not in self._plans:
            measured = tuple(sorted({cell.spec.devices for cell in self.cells(part)}))
            devices = measured if "devices" in part.sweep else ()
            self._plans[part.name] = plan_part(self.suite, part, Choice(self.size, devices))
        return self._plans[part.name]

    def cell_of(self, planned: Planned) -> CellSummary | None:
        """Return the runs of a configuration: completed ones, with real data rather than synthetic, and the most."""
        matching = [cell for cell in self.cells(planned.part) if _is_of(cell.spec, planned)]
        return max(
            matching,
            key=lambda cell: ("completed" in cell.statuses, cell.spec.data is not None, len(cell.records)),
            default=None,
        )

    def ours(self, planned: Planned) -> tuple[CellSummary, OurRun] | None:
        """Return the runs of a configuration, with what its figures need."""
        cell = self.cell_of(planned)
        return None if cell is None else (cell, OurRun(row_of(cell), cell.spec, planned.epochs))

    # -- beside the document

    def beside(self, table: PrintedTable) -> list[Beside]:
        """Return the printed figures of a table that are runs of its part, in the order of print."""
        return [self._put(table, *printed) for printed in self._printed(table)]

    def count_figures(self, plan: Sequence[Planned]) -> list[int]:
        """Return how many printed figures each configuration of a part stands for, in the order of its plan."""
        counts = dict.fromkeys(map(id, plan), 0)
        for table in self.suite.table:
            for _, _, planned, _ in self._printed(table) if table.part in {entry.part.name for entry in plan} else ():
                there = counterpart(self.suite, planned, self.size, plan)
                if there is not None:
                    counts[id(there)] += 1
        return list(counts.values())

    def _printed(self, table: PrintedTable) -> Iterator[tuple[Row, str, Planned, str]]:
        """Yield row and metric of each printed figure, its configuration of the size full, and our figure's name."""
        part = self.suite_folder.part(table.part)
        plan = plan_part(self.suite, part, Choice())
        names = table.tables or (table.name,)
        for row in self.document.rows if self.document is not None else ():
            if row.table not in names:
                continue
            for metric in table.figures:
                wanted = _wanted(table, row, metric) if metric in row.figures else None
                planned = next((entry for entry in plan if entry.has(wanted[0])), None) if wanted else None
                if wanted is not None and planned is not None:
                    yield row, metric, planned, wanted[1]

    def _put(self, table: PrintedTable, row: Row, metric: str, planned: Planned, figure: str) -> Beside:
        there = counterpart(self.suite, planned, self.size, self.plan(planned.part))
        measured = self.ours(there) if there is not None else None
        marks = tuple(self._marks.get(row.place, ()))
        figure = figure if self.size in COMPARED else RUNS
        known = tuple(differences(self.suite, planned))
        entry = Beside(table, row, metric, planned, there, figure, marks, None, None, None, known)
        if measured is None:
            return entry
        cell, run = measured
        if self.size not in COMPARED:
            return replace(entry, cell=cell)
        amount = our_figure(run, figure, row.figures[metric].unit)
        entry = replace(entry, cell=cell, ours=amount)
        if amount is None:
            return entry
        ours = _named_alike(run.row, entry)
        described = replace(row, source=row.source or self.suite.document)
        if planned.data is not None and row.get("dataset") is None and not entry.same_data:
            # An unstated data set may be any, but generated data is none.
            described = replace(described, settings={**described.settings, "dataset": planned.data})
        made = compare([described], [ours], metric=metric).comparisons[0]
        if entry.other_work or entry.doubted:
            made = replace(made, verdict="not comparable", findings=(*_own_errors(marks), *made.findings), ratios=())
        return replace(entry, comparison=made, even=_break_even(entry, made, described, ours))


def _require_settings(suite: Suite) -> None:
    """Refuse a name that no printed row can have: its values would never be compared."""
    known = (METRIC, *SETTINGS)
    for table in suite.table:
        for key in table.same:
            if key not in known:
                near = setting_for(key, known) or nearest(key, known)
                where, listed = f"table {table.name}: same.{key}", "steelyard explain settings"
                raise refusal(Problem(where, "no such setting", ", ".join(SETTINGS), near=near, listed=listed))


def _own_errors(marks: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """Return why a printed row is wrong by itself, not in what it is compared with in its document."""
    return tuple(mark for mark in marks if mark.severity == "error" and not mark.code.startswith(BETWEEN))


def _wanted(table: PrintedTable, row: Row, metric: str) -> tuple[dict[str, Any], str] | None:
    """Return our settings and the name of our figure for a printed figure; None if it is not one of this table."""
    settings: dict[str, Any] = {}
    figure = metric
    for key, values in table.same.items():
        value = metric if key == METRIC else row.get(key)
        text = "" if value is None else shown(value)
        if text in values:
            settings |= {name: entry for name, entry in values[text].items() if name != FIGURE}
            figure = values[text].get(FIGURE, figure)
        elif value is not None and key != METRIC:
            return None
    for key in AUTOMATIC:
        value = row.get(key)
        if key in table.same or value is None or (key == "precision" and value not in get_args(Precision)):
            continue
        settings.setdefault(key, value)
    return settings, figure


def _is_of(spec: RunSpec, planned: Planned) -> bool:
    """Return whether a run has the settings of a configuration. What data it used does not matter here."""
    settings = {**dict(_leaves(planned.run)), **planned.settings}
    telling = {key: value for key, value in settings.items() if key.partition(".")[0] not in BESIDE}
    return all(setting_of(spec, key) == value for key, value in telling.items())


def _leaves(settings: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in settings.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _named_alike(row: Row, entry: Beside) -> Row:
    """Return our row with the document's names for what is the same, so that the rules can compare."""
    settings = dict(row.settings)
    for key in entry.table.same:
        value = entry.published.get(key)
        # Other work keeps its own name, and synthetic or other data is not the data set that it is read instead of.
        keeps = (key == "model" and entry.other_work) or (key == "dataset" and not entry.same_data)
        if key != METRIC and value is not None and not keeps:
            settings[key] = value
    if "model" in entry.table.same and not entry.other_work:
        settings["model_options"] = "none"
    mode = entry.published.get("mode")
    if mode is not None and mode not in get_args(Mode):
        # A window of the run, such as its second epoch, which our figure has too.
        settings["mode"] = mode
    if entry.epochs is not None:
        settings["epochs"] = entry.epochs
    assert entry.ours is not None
    return replace(row, settings=settings, figures={**row.figures, entry.metric: entry.ours})


def _break_even(entry: Beside, made: Comparison, published: Row, ours: Row) -> BreakEven | None:
    """Return how long the printed training was if it was as fast as ours; None if more than its length is in doubt."""
    epochs, usual = entry.epochs, entry.planned.part.usual_epochs
    if made.ratios or entry.other_work or entry.doubted or epochs is None or not usual:
        return None
    if not about_training(entry.metric) or published.get("epochs") is not None:
        return None
    as_long = replace(published, settings={**published.settings, "epochs": epochs})
    (made,) = compare([as_long], [ours], metric=entry.metric).comparisons
    ratio = next((one for one in made.ratios if one.scope == "job" and one.answer == "ratio"), None)
    if ratio is None:
        return None
    # The printed time is that of more epochs if ours takes less time for as many.
    value, low, high = inverse(ratio.value, ratio.low, ratio.high)
    low, high = (None if end is None else end * epochs for end in (low, high))
    return BreakEven(value * epochs, low, high, usual)
