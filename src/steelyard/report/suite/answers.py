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
from steelyard.report.suite.conditions import conditions_of, listed
from steelyard.report.suite.inside import WITH_DEVICES
from steelyard.rules.table.settings import FOLLOWS
from steelyard.terminal.findings import rule_name
from steelyard.terminal.ratios import bounded
from steelyard.terminal.text import many, number

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from steelyard.analysis.ratios import Ratio
    from steelyard.inputs.suite import PrintedTable
    from steelyard.report.suite.beside import Beside
    from steelyard.report.suite.inside import Relation

SAME_WORK, INSIDE, IF = "same work", "inside", "if"
COARSE = 0.02
"""Width of the bounds of a printed ratio that readers should see."""
SPEEDS = ("throughput", "later_epochs_throughput", "train_time")
"""Figures of ours that the first sentence may be about; those of a first epoch include compilation."""
MACHINE_KEYS = ("accelerator", "system", "devices")
KIND, CONDITIONS = Column("kind", align="left"), Column("conditions", align="left")


@dataclass(frozen=True)
class Answers:
    """The answers to the printed figures of a table, or of all tables."""

    table: PrintedTable | None
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

    def told(self) -> str:
        """Return the answer in a sentence: the ratios to each machine, else that there are none."""
        # The speed, if there is one: a ratio of energies must not be taken for it.
        speeds = [entry for entry in self.same_work if entry.figure in SPEEDS] or self.same_work
        ratios = [entry for entry in speeds if entry.metric == speeds[0].metric]
        if not ratios:
            seen = "; what one setting changes there is beside what it changes here" if self.relations else ""
            if self.even:
                return f"the document does not say how long it trained, so that no time has a ratio{seen}"
            return f"no printed figure has a ratio with one of ours{seen}"
        return (
            f"where the work is the same, {word(ratios[0].metric)} here is {', '.join(spans_of(ratios))}, "
            "under the conditions named below"
        )


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


def answer_blocks(found: Answers, name: str) -> list[Table | Prose]:
    """Return a table for each kind of answer that there is; then their conditions, and why figures have no answer."""
    letters = Letters()
    made: list[Table | Prose] = []
    if found.same_work:
        made.append(_same_work_table(found.same_work, f"{name}-same-work", letters))
    if found.relations:
        made.append(_inside_table(found.relations, f"{name}-inside", letters))
    if found.even:
        made.append(_if_table(found.even, f"{name}-if", letters))
    notes = (*letters.notes(), *_silence(found.silent))
    return [*made, Prose(paragraphs=notes)] if notes else made


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


class Letters:
    """Conditions as letters in the rows of a table, explained below it."""

    def __init__(self) -> None:
        self._letters: dict[str, str] = {}

    def cell(self, texts: Iterable[str]) -> Cell:
        """Return the letters of some conditions; the texts themselves are for machines."""
        texts = list(texts)
        for text in texts:
            place = len(self._letters)
            self._letters.setdefault(text, chr(ord("a") + place) if place < 26 else str(place + 1))
        return Cell(", ".join(sorted(self._letters[text] for text in texts)) or "-", "; ".join(texts) or None)

    def notes(self) -> list[str]:
        """Return what each letter means."""
        return [f"({letter}) {text}" for text, letter in self._letters.items()]


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
            _ratio_cell(entry.same_work),
            letters.cell(_conditions(entry)),
        )
        for entry in entries
    )
    return Table(name, "Same work: our figure over the printed one", columns, rows, ("Base: the printed figure.",))


def _figure_cell(entry: Beside) -> Cell:
    return Cell(f"{word(entry.metric)}, {entry.printed.unit}", entry.metric)


def _ratio_cell(ratio: Ratio | None) -> Cell:
    assert ratio is not None
    if ratio.bound is not None:
        return Cell(bounded(ratio.bound), ratio.bound)
    return interval_cell(ratio.value, ratio.low, ratio.high, 4)


def _conditions(entry: Beside) -> Iterator[str]:
    """Yield what is different here, and what must hold because the document does not say it."""
    yield from (one.text for one in entry.differences)
    if entry.comparison is not None:
        yield from conditions_of(entry.comparison, without="epochs" if entry.even is not None else "")


# -- inside


def _inside_table(relations: Sequence[Relation], name: str, letters: Letters) -> Table:
    """Return what one setting changes: a row for each pair of ours, with the machines of the document beside it."""
    pairs = list(dict.fromkeys((one.entry.metric, _machine(one)) for one in relations))
    metrics = list(dict.fromkeys(metric for metric, _ in pairs))
    rows: dict[tuple[str, ...], list[Relation]] = {}
    for one in relations:
        rows.setdefault(pair_key(one), []).append(one)
    # Where all rows differ in nothing else, there is nothing to name.
    with_kept = any(kept != "-" for _, kept, *_ in rows)
    columns = [KIND, Column("what changes", align="left")]
    columns += [Column("the same in both", align="left")] if with_kept else []
    for metric in metrics:
        columns += [Column(f"{word(metric)}, {machine}") for of, machine in pairs if of == metric]
        columns.append(Column(f"{word(metric)}, here"))
    lines = []
    for (changes, kept, *_), group in rows.items():
        line = [Cell(INSIDE), Cell(changes), *([Cell(kept)] if with_kept else [])]
        for metric in metrics:
            line += _inside_cells([one for one in group if one.entry.metric == metric], metric, pairs)
        lines.append((*line, letters.cell(_relation_conditions(group))))
    meaning = "The figure with the second value over that with the first, on one machine."
    notes = (f"{meaning} [ ] = 95 % CI over jobs; at a printed ratio its bounds, where its digits are few.",)
    title = "Inside: what one setting changes, as printed and here"
    return Table(name, title, (*columns, CONDITIONS), tuple(lines), notes)


def _inside_cells(group: Sequence[Relation], metric: str, pairs: Sequence[tuple[str, str]]) -> Iterator[Cell]:
    """Yield the printed ratios of a figure, and ours."""
    printed = {_machine(one): one for one in group}
    for of, machine in pairs:
        if of == metric:
            yield _printed_ratio(printed[machine]) if machine in printed else Cell("-")
    yield interval_cell(group[0].ours.value, group[0].ours.low, group[0].ours.high) if group else Cell("-")


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
    """Return what differs, what is the same, and our two configurations: the machines of the document share a row."""
    table = one.entry.table
    free = {one.factor, *MACHINE_KEYS, *FOLLOWS.get(one.factor, ())}
    free |= {"batch", "global_batch"} if one.factor in ("batch", "global_batch") else set()
    free |= {*WITH_DEVICES} if one.factor == "devices" else set()
    keys = [key for key in (*table.rows, table.split, *table.columns) if key not in free]
    ours = [entry.cell.name for entry in (one.base, one.entry) if entry.cell is not None]
    return change_of(one), named(one.entry.published, keys) or "-", *ours


def _machine(one: Relation) -> str:
    return machine_of(one.entry, without=one.factor)


def _relation_conditions(group: Sequence[Relation]) -> Iterator[str]:
    """Yield what is different here, and what must hold because the document does not say it."""
    rows = [entry for one in group for entry in (one.base, one.entry)]
    yield from dict.fromkeys(mark for one in group for mark in one.marks)
    yield from dict.fromkeys(known.text for entry in rows for known in entry.differences)
    if keys := list(dict.fromkeys(key for one in group for key in one.conditions)):
        yield f"if both printed rows had the same, which the document does not say: {listed(keys)}"


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
        conditions = dict.fromkeys(text for entry in by_machine.values() for text in _conditions(entry))
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
    return Table(name, "If: the length of training at which both are as fast", columns, tuple(lines), (meaning,))


def _even_cell(entry: Beside | None) -> Cell:
    if entry is None or entry.even is None:
        return Cell("-")
    cell = interval_cell(entry.even.epochs, entry.even.low, entry.even.high)
    return replace(cell, codes=tuple(dict.fromkeys(mark.code for mark in entry.marks)))
