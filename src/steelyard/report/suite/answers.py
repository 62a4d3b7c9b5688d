"""What the printed figures of a document say about ours: three kinds of answers, never in one table.

- same work: our figure over the printed one, where the rules of `compare` allow a ratio.
- inside: what one setting changes on a machine of the document, and on ours.
- if: how long the document must have trained for its figure to be ours. It is no ratio: an assumption that makes a
  figure plausible cannot confirm it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from steelyard.report.page import Cell, Column, Prose, Table
from steelyard.report.suite.beside import EXPECTED
from steelyard.report.suite.cells import (
    NUMBERED,
    OTHER_NETWORK,
    interval_cell,
    named,
    our_cell,
    printed_cell,
    printed_setting,
    what,
    word,
)
from steelyard.report.suite.conditions import Condition, conditions_of, listed
from steelyard.report.suite.inside import WITH_DEVICES
from steelyard.rules.table.settings import FOLLOWS
from steelyard.terminal.findings import rule_name
from steelyard.terminal.ratios import bounded
from steelyard.terminal.text import many, number

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from steelyard.analysis.ratios import Ratio
    from steelyard.inputs.suite import PrintedTable
    from steelyard.report.suite.beside import Beside
    from steelyard.report.suite.conditions import Letters
    from steelyard.report.suite.inside import Relation

SAME_WORK, INSIDE, IF = "same work", "inside", "if"
SENTENCES = 3
"""Tables that the first sentence names."""
COARSE = 0.02
"""Width of the bounds of a printed ratio that readers should see."""
SPEEDS = ("throughput", "later_epochs_throughput", "train_time")
"""Figures of ours that the first sentence may be about; those of a first epoch include compilation."""
MACHINE_KEYS = ("accelerator", "system", "devices")
KIND = Column("kind", align="left", aside=True)
"""On the page the title of a table says it."""
CONDITIONS = Column("conditions", align="left")


@dataclass(frozen=True)
class Answers:
    """The answers to the printed figures of a table."""

    table: PrintedTable
    entries: tuple[Beside, ...]
    """Every printed figure that has a configuration."""
    relations: tuple[Relation, ...]

    @property
    def same_work(self) -> list[Beside]:
        """The figures with a ratio."""
        return [entry for entry in self.entries if entry.same_work is not None]

    @property
    def inside(self) -> list[Beside]:
        """The figures of a relation."""
        related = {id(entry) for one in self.relations for entry in (one.base, one.entry)}
        return [entry for entry in self.entries if id(entry) in related]

    @property
    def even(self) -> list[Beside]:
        """The figures that are as fast as ours if their training had a certain length."""
        return [entry for entry in self.entries if entry.even is not None]

    @property
    def silent(self) -> list[Beside]:
        """The measured figures without any answer."""
        told = {id(entry) for entry in (*self.same_work, *self.inside, *self.even)}
        return [entry for entry in self.entries if entry.ours is not None and id(entry) not in told]

    @property
    def most_often(self) -> str:
        """The reason that most figures without an answer have."""
        reasons = [_reason(entry)[0] for entry in self.silent]
        return max(dict.fromkeys(reasons), key=reasons.count, default="")

    def short_name(self, others: Sequence[Answers]) -> str:
        """Return how the title of the table begins, if no other begins so."""
        names = [found.table.title.partition(":")[0] for found in others]
        own = self.table.title
        return own.partition(":")[0] if names.count(own.partition(":")[0]) == 1 else own

    def counted(self) -> str:
        """Return how many figures have which kind of answer, and why the others have none."""
        why = f", most often {self.most_often}" if self.most_often else ""
        kinds = (
            (f"with a ratio ({SAME_WORK})", self.same_work),
            (f"in relations ({INSIDE})", self.inside),
            (f"with a length of training ({IF})", self.even),
            (f"without an answer{why}", self.silent),
        )
        return ", ".join(f"{len(entries)} {what}" for what, entries in kinds if entries)

    @property
    def first(self) -> list[Beside]:
        """The ratios that the first sentence may be about, of one figure."""
        # The speed, if there is one: a ratio of energies must not be taken for it.
        speeds = [entry for entry in self.same_work if entry.figure in SPEEDS] or self.same_work
        return [entry for entry in speeds if entry.metric == speeds[0].metric]


def told(answers: Sequence[Answers]) -> str:
    """Return the answer in a sentence: the ratios of each of the first tables to each machine, else why there are none.

    Ratios of several tables are of different work, so that none is pooled with another.
    """
    with_ratios = [found for found in answers if found.first]
    if not with_ratios:
        related = any(found.relations for found in answers)
        seen = "; what one setting changes there is beside what it changes here" if related else ""
        if any(found.even for found in answers):
            return f"the document does not say how long it trained, so that no time has a ratio{seen}"
        return f"no printed figure has a ratio with one of ours{seen}"
    shown = with_ratios if len(with_ratios) <= SENTENCES + 1 else with_ratios[:SENTENCES]
    parts, metric = [], ""
    for found in shown:
        of = word(found.first[0].metric)
        spans = ", ".join(spans_of(found.first))
        parts.append(spans if of == metric else f"{of} here is {spans}")
        parts[-1] += f" ({found.short_name(answers)})" if len(with_ratios) > 1 else ""
        metric = of
    more = len(with_ratios) - len(shown)
    parts += [f"and in {many(more, 'more table')}"] if more else []
    return f"where the work is the same, {'; '.join(parts)}, under the conditions named below"


def spans_of(entries: Sequence[Beside]) -> list[str]:
    """Return the smallest and the largest ratio to each kind of device: on as many of them as here."""
    kinds = dict.fromkeys(machine_of(entry, without="devices") for entry in entries)
    return [
        f"{span_of([entry for entry in entries if machine_of(entry, without='devices') == kind])} times that of {kind}"
        for kind in kinds
    ]


def span_of(entries: Sequence[Beside]) -> str:
    """Return the smallest and the largest ratio of some figures."""
    ratios = [ratio for entry in entries if (ratio := entry.same_work) is not None]
    values = [ratio.value if ratio.bound is None else ratio.bound for ratio in ratios]
    return " to ".join(dict.fromkeys(number(end, 3) for end in (min(values), max(values)))) if values else ""


def answer_blocks(found: Answers, name: str, letters: Letters) -> list[Table | Prose]:
    """Return the tables of answers, what their letters mean, and each reason against an answer once.

    The ratios are beside the printed figures too, so that their list is folded.
    """
    made: list[Table | Prose] = []
    if found.relations:
        made.append(_inside_table(found.relations, f"{name}-inside", letters))
    if found.even:
        made.append(_if_table(found.even, f"{name}-if", letters))
    if silence := _silence(found.silent):
        made.append(Prose(paragraphs=(*silence,)))
    if found.same_work:
        made.append(_same_work_table(found.same_work, f"{name}-same-work", letters))
    explained = letters.table(f"{name}-conditions")
    return [*made, explained] if explained is not None else made


def conditions_of_every(every: Sequence[Answers]) -> tuple[str, ...]:
    """Return the unstated settings that every answer has among its conditions."""
    conditions = [[*conditions_beside(entry)] for one in every for entry in (*one.same_work, *one.even)]
    conditions += [[*_relation_conditions([one])] for found in every for one in found.relations]
    keys = [[key for condition in one for key in condition.keys] for one in conditions]
    return tuple(key for key in (keys[0] if len(keys) > 1 else ()) if all(key in one for one in keys))


def _said_once(columns: Sequence[Column], rows: Sequence[tuple[Cell, ...]], notes: Sequence[str]) -> Table:
    """Return a table that says in a note what all of its rows have; the kind is in its title."""
    shown, alike = [], []
    for place, column in enumerate(columns):
        texts = {row[place].text for row in rows}
        # The first column after the kind names the row.
        once = place > 1 and column.align == "left" and len(texts) == 1 and (len(rows) > 1 or column is CONDITIONS)
        shown.append(replace(column, aside=once or column is KIND))
        if once and column is not KIND and (text := texts.pop()) != "-":
            alike.append(f"{column.name}: {text}{f' {column.unit}' if column.unit else ''}")
    told = [f"In {'all rows' if len(rows) > 1 else 'this row'}: {'; '.join(alike)}."] if alike else []
    return Table("", "", tuple(shown), tuple(rows), (" ".join([*notes, *told]),))


def _silence(silent: Sequence[Beside]) -> list[str]:
    """Return each reason against an answer once, with one example."""
    by_reason: dict[str, list[str]] = {}
    for entry in silent:
        reason, example = _reason(entry)
        by_reason.setdefault(reason, []).append(example)
    return [
        f"No answer for {many(len(texts), 'figure')}: {reason}{f', such as: {texts[0]}' if texts[0] else ''}"
        for reason, texts in by_reason.items()
    ]


def _reason(entry: Beside) -> tuple[str, str]:
    """Return the first reason why a figure has no answer, with the message of the finding."""
    if entry.metric.startswith(EXPECTED):
        return "it was expected, not measured", ""
    if any(one.implausible for one in entry.differences):
        return "the printed figure is implausible", ""
    if entry.other_work:
        return f"{OTHER_NETWORK} here", ""
    for finding in entry.comparison.findings if entry.comparison is not None else ():
        if finding.severity == "error":
            return f"{finding.code} ({rule_name(finding.code)})", finding.message
    return "", ""


# -- same work


def _same_work_table(entries: Sequence[Beside], name: str, letters: Letters) -> Table:
    """Return the ratios of our figures to the printed ones."""
    left = (KIND, Column("printed", align="left"), Column("figure", align="left"))
    columns = (*left, Column("published"), Column("here"), Column("here / published"), CONDITIONS)
    rows = tuple(
        (
            Cell(SAME_WORK),
            Cell(what(entry)),
            _figure_cell(entry),
            printed_cell(entry),
            replace(our_cell(entry), runs=()),
            ratio_cell(entry.same_work),
            letters.cell(conditions_beside(entry)),
        )
        for entry in entries
    )
    made = _said_once(columns, rows, ["Base: the printed figure."])
    title = f"Same work: list of {many(len(rows), 'ratio')}"
    return replace(made, name=name, title=title, folded=True)


def _figure_cell(entry: Beside) -> Cell:
    return Cell(f"{word(entry.metric)}, {entry.printed.unit}", entry.metric)


def ratio_cell(ratio: Ratio | None, figures: int = 4) -> Cell:
    """Return a ratio of our figure to the printed one."""
    if ratio is None:
        return Cell("-")
    if ratio.bound is not None:
        return Cell(bounded(ratio.bound), ratio.bound)
    return interval_cell(ratio.value, ratio.low, ratio.high, figures)


def conditions_beside(entry: Beside) -> Iterator[Condition]:
    """Yield what is different here, and what must hold because the document does not say it."""
    yield from (Condition(one.text) for one in entry.differences)
    if entry.comparison is not None:
        yield from conditions_of(entry.comparison, without="epochs" if entry.even is not None else "")


# -- inside


def _inside_table(relations: Sequence[Relation], name: str, letters: Letters) -> Table:
    """Return what one setting changes: a row for each figure of a pair of ours, beside the machines of the document."""
    machines = list(dict.fromkeys(map(_machine, relations)))
    rows: dict[tuple[str, ...], list[Relation]] = {}
    for one in relations:
        rows.setdefault((one.entry.metric, *pair_key(one)), []).append(one)
    left = ("what changes", "figure", "the same in both")
    columns = (KIND, *(Column(text, align="left") for text in left), *map(Column, machines), Column("here"), CONDITIONS)
    lines = []
    metrics = list(dict.fromkeys(metric for metric, *_ in rows))
    for (metric, changes, kept, devices, *_), group in sorted(rows.items(), key=lambda row: metrics.index(row[0][0])):
        printed = {_machine(one): _printed_ratio(one) for one in group}
        ours = group[0].ours
        lines.append(
            (
                Cell(INSIDE),
                Cell(changes),
                Cell(word(metric), metric),
                Cell(", ".join(text for text in (devices, kept) if text != "-") or "-"),
                *(printed.get(machine, Cell("-")) for machine in machines),
                interval_cell(ours.value, ours.low, ours.high),
                letters.cell(_relation_conditions(group)),
            )
        )
    meaning = "The figure with the second value over that with the first."
    notes = [f"{meaning} [ ] = 95 % CI over jobs; at a printed ratio: bounds, where its digits are few."]
    return replace(_said_once(columns, lines, notes), name=name, title="Inside: what one setting changes")


def _printed_ratio(one: Relation) -> Cell:
    """Return the ratio of two printed figures, with its bounds where the digits are few, and what the audit finds."""
    ratio = one.printed
    codes = tuple(dict.fromkeys(mark.code for entry in (one.base, one.entry) for mark in entry.marks))
    coarse = ratio.low is not None and ratio.high is not None and ratio.high - ratio.low > COARSE * ratio.value
    cell = interval_cell(ratio.value, ratio.low, ratio.high) if coarse else interval_cell(ratio.value, None, None)
    return replace(cell, codes=codes)


def change_of(one: Relation) -> str:
    """Return what differs between the two rows of a relation."""
    values = [printed_setting(entry.published, one.factor) for entry in (one.base, one.entry)]
    named_too = one.factor in NUMBERED or one.factor == "numa"
    name = "batch" if one.factor == "batch" else listed([one.factor])
    return f"{name} {' to '.join(values)}" if named_too else " to ".join(values)


def machine_of(entry: Beside, *, without: str = "") -> str:
    """Return the machine of a printed row."""
    row = entry.published
    if row.get("accelerator") is None:
        return str(row.get("system") or "the document's machine")
    return named(row, [key for key in ("devices", "accelerator") if key != without and row.get(key) is not None])


def pair_key(one: Relation) -> tuple[str, ...]:
    """Return what differs, what is the same, on how many devices, and our two configurations.

    The machines of the document share a row.
    """
    table = one.entry.table
    free = {one.factor, *MACHINE_KEYS, *FOLLOWS.get(one.factor, ())}
    free |= {"batch", "global_batch"} if one.factor in ("batch", "global_batch") else set()
    free |= {*WITH_DEVICES} if one.factor == "devices" else set()
    keys = [key for key in (*table.rows, table.split, *table.columns) if key not in free]
    ours = [entry.cell.name for entry in (one.base, one.entry) if entry.cell is not None]
    row = one.entry.published
    devices = "-" if one.factor == "devices" or row.get("devices") is None else named(row, ["devices"])
    return change_of(one), named(row, keys) or "-", devices, *ours


def _machine(one: Relation) -> str:
    return machine_of(one.entry, without="devices")


def _relation_conditions(group: Sequence[Relation]) -> Iterator[Condition]:
    """Yield what is different here, and what must hold because the document does not say it."""
    rows = [entry for one in group for entry in (one.base, one.entry)]
    yield from (Condition(mark) for one in group for mark in one.marks)
    yield from (warning for one in group for warning in one.warnings)
    yield from (Condition(known.text) for entry in rows for known in entry.differences)
    if keys := tuple(dict.fromkeys(key for one in group for key in one.conditions)):
        yield Condition("if both printed rows had the same, which the document does not say", keys)


# -- if


def _if_table(entries: Sequence[Beside], name: str, letters: Letters) -> Table:
    """Return the lengths of training with which printed times would be as fast as ours, a column for each machine."""
    machines = list(dict.fromkeys(map(machine_of, entries)))
    rows: dict[tuple[str, str], dict[str, Beside]] = {}
    for entry in entries:
        table = entry.table
        keys = [key for key in (*table.rows, table.split, *table.columns) if key not in MACHINE_KEYS]
        rows.setdefault((named(entry.published, keys) or "-", entry.metric), {})[machine_of(entry)] = entry
    columns = (
        KIND,
        Column("printed", align="left"),
        Column("figure", align="left"),
        *(Column(f"as fast as here if {machine} trained", "epochs") for machine in machines),
        Column("usual", "epochs", align="left"),
        CONDITIONS,
    )
    lines = []
    for (printed, metric), by_machine in rows.items():
        some = next(iter(by_machine.values()))
        usual = some.even.usual if some.even is not None else ()
        conditions = [one for entry in by_machine.values() for one in conditions_beside(entry)]
        lines.append(
            (
                Cell(IF),
                Cell(printed),
                Cell(word(metric), metric),
                *(_even_cell(by_machine.get(machine)) for machine in machines),
                Cell(" to ".join(map(str, dict.fromkeys(usual)))),
                letters.cell(conditions),
            )
        )
    meaning = (
        "The document does not say how long it trained. If it trained for more epochs than these, its machine is "
        "faster than this one; if for fewer, slower. This is no ratio: nobody can tell which it was."
    )
    title = "If: the length of training at which both are as fast"
    return replace(_said_once(columns, lines, [meaning]), name=name, title=title)


def _even_cell(entry: Beside | None) -> Cell:
    if entry is None or entry.even is None:
        return Cell("-")
    cell = interval_cell(entry.even.epochs, entry.even.low, entry.even.high)
    return replace(cell, codes=tuple(dict.fromkeys(mark.code for mark in entry.marks)))
