"""Ratios of two machines that a document states without their figures, and those of two machines of the user.

The document has no figures of these machines, so nothing else can be compared with it. Nothing is concluded from how
near a stated ratio and one of ours are.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from steelyard.analysis.compare import compare
from steelyard.errors import InputError
from steelyard.inputs.suite import differences
from steelyard.report.page import Cell, Column, Section, Table
from steelyard.report.suite.answers import CONDITIONS, KIND
from steelyard.report.suite.beside import COMPARED, SuiteResults
from steelyard.report.suite.cells import OTHER_NETWORK, interval_cell, word
from steelyard.report.suite.conditions import Condition, Letters, warned
from steelyard.report.suite.figures import our_figure
from steelyard.report.suite.inside import GENERATED
from steelyard.terminal.findings import rule_name
from steelyard.terminal.ratios import bounded
from steelyard.terminal.text import many, number

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from steelyard.analysis.compare import Comparison
    from steelyard.analysis.ratios import Ratio
    from steelyard.analysis.summary import CellSummary
    from steelyard.inputs.suite import Planned, PrintedRatio
    from steelyard.report.suite.figures import OurRun
    from steelyard.rules.table.row import Row

BETWEEN = "between"
NAME = "against"
"""Of the table with the ratios."""
CONDITIONS_OF_TWO = "against-conditions"
"""Of the table that says what its letters mean."""


@dataclass(frozen=True)
class _Direction:
    """A stated ratio in one direction: the first machine's settings are those of the results here."""

    printed: PrintedRatio
    other_way: bool

    @property
    def machines(self) -> str:
        names = (self.printed.over, self.printed.base)
        return " over ".join(reversed(names) if self.other_way else names)

    @property
    def value(self) -> float:
        return 1 / self.printed.value if self.other_way else self.printed.value

    @property
    def sides(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Settings here and there."""
        here, there = ({**self.printed.at, **own} for own in (self.printed.over_at, self.printed.base_at))
        return (there, here) if self.other_way else (here, there)

    @property
    def texts(self) -> tuple[str, str]:
        """The ratio, and its inverse where both machines have the same settings: else that has a row of its own."""
        limits = ("at least ", "at most ") if self.other_way else ("at most ", "at least ")
        here, back = limits if self.printed.at_most else ("", "")
        inverse = "-" if self.printed.over_at else f"{back}{number(1 / self.value, 3)}"
        return f"{here}{number(self.value, 3)}", inverse


@dataclass(frozen=True)
class _Side:
    """A measured configuration of a machine."""

    results: SuiteResults
    planned: Planned
    cell: CellSummary
    run: OurRun


@dataclass(frozen=True)
class _Answer:
    """A stated ratio and one of ours, or the reason why there is none."""

    asked: _Direction
    where: str
    """The settings of our two configurations."""
    ratio: Ratio | None
    conditions: tuple[Condition, ...]
    reason: str = ""


def against_section(here: SuiteResults, there: SuiteResults) -> Section:
    """Return what the document states about two machines, and the same of these two; InputError if it cannot be."""
    suite = here.suite
    if not suite.ratio:
        what = f"--against: {suite.document or suite.name} states no ratio of two machines without their figures"
        raise InputError(what, next_step="steelyard compare A B")
    if here.size not in COMPARED:
        what = f"--against: results of the size {here.size} are never compared"
        raise InputError(what, next_step=f"steelyard suite run {here.suite_folder.asked} --size small")
    answers = [answer for printed in suite.ratio for answer in _answers(printed, here, there)]
    made = [answer for answer in answers if answer.ratio is not None]
    answered = {id(answer.asked.printed) for answer in made}
    # Of those without any, the first reason.
    silent = {id(answer.asked.printed): answer for answer in reversed(answers)}
    without = [answer for key, answer in reversed(silent.items()) if key not in answered]
    text = (
        f"{len(answered)} of {many(len(suite.ratio), 'stated ratio')} of two machines beside those of these two. "
        "Nothing is concluded from how near they are."
    )
    letters = Letters(())
    blocks = (_table(made, without, here, there, letters), letters.table(CONDITIONS_OF_TWO))
    return Section("two-machines", "Ratios of two machines", "", text, tuple(filter(None, blocks)))


def _answers(printed: PrintedRatio, here: SuiteResults, there: SuiteResults) -> list[_Answer]:
    """Return the answers to a stated ratio; in both directions if its machines have different settings."""
    ways = (False, True) if printed.over_at else (False,)
    return [answer for other_way in ways for answer in _one_way(_Direction(printed, other_way), here, there)]


def _one_way(asked: _Direction, here: SuiteResults, there: SuiteResults) -> list[_Answer]:
    pairs = _pairs(asked, here, there)
    if not pairs:
        wanted = " and ".join(_told(side) + where for side, where in zip(asked.sides, (" here", " there"), strict=True))
        return [_Answer(asked, "", None, (), f"not measured on both machines: {wanted}")]
    # The document states no batch: the smallest and the largest that both machines have.
    return [_judge(asked, *pair) for pair in (pairs if len(pairs) < 2 else (pairs[0], pairs[-1]))]


def _pairs(asked: _Direction, here: SuiteResults, there: SuiteResults) -> list[tuple[_Side, _Side]]:
    """Return the measured configurations of both machines that differ in nothing but the settings asked for."""
    mine, theirs = asked.sides
    pairs = _matching(here, there, asked.printed.part, mine, theirs)
    if pairs or asked.printed.over_at or "devices" not in asked.printed.at:
        return pairs
    free = {key: value for key, value in mine.items() if key != "devices"}
    pairs = _matching(here, there, asked.printed.part, free, free)
    most = max((one.planned.get("devices") for one, _ in pairs), default=0)
    return [pair for pair in pairs if pair[0].planned.get("devices") == most]


def _matching(
    here: SuiteResults, there: SuiteResults, part: str, mine: dict[str, Any], theirs: dict[str, Any]
) -> list[tuple[_Side, _Side]]:
    found = []
    others = [*_sides(there, part, theirs)]
    for one in _sides(here, part, mine):
        for other in others:
            rest = [{k: v for k, v in side.planned.settings.items() if k not in mine} for side in (one, other)]
            if rest[0] == rest[1]:
                found.append((one, other))
    return sorted(found, key=lambda pair: pair[0].planned.get("global_batch"))


def _sides(results: SuiteResults, part: str, settings: dict[str, Any]) -> Iterator[_Side]:
    """Yield the measured configurations with these settings."""
    for planned in results.plan(results.suite_folder.part(part)):
        measured = results.ours(planned)
        if measured is not None and all(planned.get(key) == value for key, value in settings.items()):
            yield _Side(results, planned, *measured)


def _judge(asked: _Direction, here: _Side, there: _Side) -> _Answer:
    """Compare two configurations by the rules; the machine is what differs."""
    figure = asked.printed.figure
    where = _where(here, there)
    rows = [_row(side, figure, name) for side, name in ((there, "there"), (here, "here"))]
    lacking = [name for row, name in zip(rows, ("there", "here"), strict=True) if figure not in row.figures]
    if lacking:
        return _Answer(asked, where, None, (), f"no {word(figure)} {' and '.join(lacking)}")
    # Two jobs on machines of one kind differ in their number of devices only.
    alike = asked.printed.over_at and len({row.get("system") for row in rows}) == 1
    factor = "devices" if alike else "system"
    (made,) = compare(rows[:1], rows[1:], factor=factor, metric=figure).comparisons
    ratio = next((one for one in made.ratios if one.scope == "job" and one.answer != "none"), None)
    if ratio is None:
        return _Answer(asked, where, None, (), _reason(made))
    return _Answer(asked, where, ratio, tuple(dict.fromkeys(_conditions(asked, here, there, made))))


def _row(side: _Side, figure: str, name: str) -> Row:
    amount = our_figure(side.run, figure)
    row = side.run.row
    figures = row.figures if amount is None else {**row.figures, figure: amount}
    # Both folders have the same studies.
    return replace(row, place=f"{name}/{row.place}", figures=figures)


def _reason(made: Comparison) -> str:
    """Return the first error of the rules."""
    for finding in made.findings:
        if finding.severity == "error":
            return f"{finding.code} ({rule_name(finding.code)}): {finding.message}"
    return "no interval, as one of the machines has too few jobs or drifted"


def _conditions(asked: _Direction, here: _Side, there: _Side, made: Comparison) -> Iterator[Condition]:
    """Yield what must hold, and what is different from the document on both machines."""
    yield from (Condition(f"if {text}") for text in asked.printed.unclear)
    stated = asked.printed.at.get("devices")
    if stated is not None and here.planned.get("devices") != stated:
        devices = many(here.planned.get("devices"), "device")
        yield Condition(f"{devices} on each machine here, {stated} in the document")
    known = differences(here.results.suite, here.planned)
    if any(one.other_work for one in known):
        yield Condition(f"{OTHER_NETWORK} here")
    yield from (Condition(one.text) for one in known)
    if here.planned.data is not None:
        generated = [all(record.data is None for record in side.cell.records) for side in (here, there)]
        if all(generated):
            yield Condition(GENERATED)
    yield from warned(made)


def _where(here: _Side, there: _Side) -> str:
    """Return the settings of two configurations in a few words."""
    told = [_setting(key, value) for key, value in here.planned.settings.items() if key != "devices"]
    devices = [side.planned.get("devices") for side in (here, there)]
    return ", ".join(
        [*told, many(devices[0], "device") if len({*devices}) == 1 else "devices {} / {}".format(*devices)]
    )


def _figure(printed: PrintedRatio) -> str:
    return word(printed.figure).replace(" per second", "/s").replace(" per hour", "/h")


def _told(settings: dict[str, Any]) -> str:
    """Return settings in a few words."""
    return ", ".join(_setting(key, value) for key, value in settings.items())


def _setting(key: str, value: Any) -> str:
    if key == "devices" and isinstance(value, int):
        return many(value, "device")
    return str(value) if key == "workload" else f"{word(key)} {value}"


def _table(
    made: Sequence[_Answer], without: Sequence[_Answer], here: SuiteResults, there: SuiteResults, letters: Letters
) -> Table:
    """Return the ratios; below them why some stated ratios have none beside them."""
    words = {id(printed): f'"{printed.words}" ({printed.place})' for printed in here.suite.ratio}
    numbers = {text: str(place) for place, text in enumerate(dict.fromkeys(words.values()), 1)}
    columns = (
        KIND,
        Column("machines", align="left"),
        Column("figure", align="left"),
        Column("stated"),
        Column("other way"),
        Column("here / there"),
        Column("configuration", align="left"),
        Column("words", align="left"),
        CONDITIONS,
    )
    rows = []
    for answer in made:
        printed, (stated, inverse) = answer.asked.printed, answer.asked.texts
        rows.append(
            (
                Cell(BETWEEN),
                Cell(answer.asked.machines),
                Cell(_figure(printed), printed.figure),
                Cell(stated, answer.asked.value),
                Cell(inverse, None if printed.over_at else 1 / answer.asked.value),
                _ratio_cell(answer.ratio),
                Cell(answer.where),
                Cell(numbers[words[id(printed)]], words[id(printed)]),
                letters.cell(answer.conditions),
            )
        )
    told = {words[id(answer.asked.printed)] for answer in made}
    notes = [f"here / there: {_devices(here)} / {_devices(there)} (--against). [ ] = 95 % CI over jobs."]
    notes += [f"({place}) {text}" for text, place in numbers.items() if text in told]
    by_reason: dict[str, list[str]] = {}
    for answer in without:
        what = f"{answer.asked.machines}, {_figure(answer.asked.printed)}"
        by_reason.setdefault(answer.reason, []).append(what)
    notes += [f"No ratio for {'; '.join(whose)}: {reason}." for reason, whose in by_reason.items()]
    return Table(NAME, "Stated ratios of two machines, and those of these two", columns, tuple(rows), tuple(notes))


def _ratio_cell(ratio: Ratio | None) -> Cell:
    assert ratio is not None
    if ratio.bound is not None:
        return Cell(bounded(ratio.bound), ratio.bound)
    return interval_cell(ratio.value, ratio.low, ratio.high)


def _devices(results: SuiteResults) -> str:
    """Return the names of the devices of a machine."""
    records = [record for part in results.suite.part for cell in results.cells(part) for record in cell.records]
    names = {record.device.name if record.device is not None else record.spec.device_family for record in records}
    return ", ".join(sorted(names))
