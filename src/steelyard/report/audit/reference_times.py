"""Training times of several machines, as a document prints them: which percentages follow. Knows columns, no sums."""

from __future__ import annotations

from typing import TYPE_CHECKING

from steelyard.audit.claims import Percent
from steelyard.audit.percentages import percent_readings
from steelyard.audit.recompute import kind_of, middle
from steelyard.report.audit.claims import claims_table
from steelyard.report.audit.published import (
    NO_REPEATS,
    metric_unit,
    printed_cell,
    ratio_cell,
    selection,
    verdict_cell,
    verdict_words,
)
from steelyard.report.charts.published import ChartText, Dot, dots_chart
from steelyard.report.page import Cell, Column, Prose, Section, Table
from steelyard.report.study.subject import merged
from steelyard.terminal.text import capital, number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from steelyard.audit.judge import Judgement
    from steelyard.report.audit.published import Held, JudgedDocument
    from steelyard.report.page import Chart
    from steelyard.rules.claim import Reading
    from steelyard.rules.table.row import Row

    Work = tuple[str, str]
    """Model and dataset."""
    Machine = tuple[int, str]
    """Devices and accelerator."""
    Works = dict[Work, dict[Machine, Row]]

TIME = "train_time"
# Percentages of any two rows, the faster one first.
_ANY = Percent(id="pair", kind="percent", relation="faster", a={}, b={})


def times_section(document: JudgedDocument, judgements: Sequence[Judgement], table: str, of: str) -> Section:
    """One table of training times: as printed, and the newest machine against each other one, worked out again."""
    name = f"{document.name}-table-{table.lower()}"
    rows = document.select(f"table={table}")
    works = _works(rows)
    machines = list(dict.fromkeys(map(_machine, rows)))
    # The first row is of the machine that the others are read against.
    newest = next(machine for machine in machines if machine[1] != machines[0][1])
    against = [machine for machine in machines if machine != newest]
    held = {
        (work, other): document.hold(by[other], by[newest], "system", TIME)
        for work, by in works.items()
        for other in against
    }
    blocks: tuple[Table | Chart | Prose, ...] = (
        _times_table(document, works, machines, name),
        _times_chart(document, works, machines, name),
        *(
            _shares_table(document, {work: entry for (work, to), entry in held.items() if to == other}, other, name)
            for other in against
        ),
        claims_table(judgements, f"{name}-claims"),
        Prose(("The same in a terminal:",), code="\n".join(_commands(document.name, table, newest, against))),
    )
    findings = merged((*document.findings_on(rows), *(found for entry in held.values() for found in entry.findings)))
    return Section(
        name,
        f"{document.name}, table {table}: {of}",
        f"Do the training times of table {table} give the percentages that {document.name} prints?",
        f"{verdict_words(judgements)}. {_range_words(held, newest, against)}",
        blocks,
        findings,
    )


def shares(held: Held, metric: str = TIME) -> tuple[Reading, Reading]:
    """The difference of two times as a share of the longer and of the shorter one."""
    quick, slow = sorted((row.figures[metric] for row in (held.a, held.b)), key=lambda amount: amount.value)
    assert kind_of(quick) == "time"
    found = percent_readings(_ANY, quick, slow)
    return found["b"], found["a"]


def _works(rows: Sequence[Row]) -> Works:
    found: Works = {}
    for row in rows:
        found.setdefault((str(row.get("model")), str(row.get("dataset"))), {})[_machine(row)] = row
    return found


def _machine(row: Row) -> Machine:
    return int(row.number("devices") or 1), str(row.get("accelerator"))


def _named(machine: Machine) -> str:
    return f"{machine[0]}x {machine[1]}"


# -- tables


def _times_table(document: JudgedDocument, works: Works, machines: Sequence[Machine], name: str) -> Table:
    unit = metric_unit([row for by in works.values() for row in by.values()], TIME)
    named = (Column(_named(entry), unit) for entry in machines)
    columns = (Column("model", align="left"), Column("dataset", align="left"), *named)
    rows = []
    for work, by in works.items():
        cells = [printed_cell(by[machine], TIME, document.codes_on(by[machine])) for machine in machines]
        rows.append((*(Cell(text, text) for text in work), *cells))
    return Table(f"{name}-times", "Training times, as printed", columns, tuple(rows), (NO_REPEATS,))


def _shares_table(document: JudgedDocument, held: dict[Work, Held], other: Machine, name: str) -> Table:
    newest = _named(_machine(next(iter(held.values())).b))
    columns = (
        Column("model", align="left"), Column("dataset", align="left"), Column("comparable", align="left"),
        Column(f"{newest} is", align="left"), Column("of the longer time", "%"), Column("of the shorter time", "%"),
        Column("printed, and its verdict", align="left"),
    )  # fmt: skip
    rows = []
    for work, entry in held.items():
        said = "faster" if entry.b.figures[TIME].value < entry.a.figures[TIME].value else "slower"
        start = (*(Cell(text, text) for text in work), verdict_cell(entry), Cell(said, said))
        rows.append((*start, *_share_cells(entry), _printed_claim(document, entry)))
    notes = ("Both shares are given: neither `faster` nor `slower` says what it is a share of.",)
    title = f"{newest} against {_named(other)}: percentages, worked out again"
    return Table(f"{name}-shares-{other[0]}", title, columns, tuple(rows), notes)


def _share_cells(held: Held) -> tuple[Cell, ...]:
    if held.blocked:
        return (ratio_cell(held, "job"),) * 2
    return tuple(Cell(reading.result.removesuffix(" %"), 100 * middle(reading.values[0])) for reading in shares(held))


def _printed_claim(document: JudgedDocument, held: Held) -> Cell:
    """What the document prints of a pair of rows, and the verdict on that."""
    told = document.judged(held.a, held.b)
    if not told:
        return Cell("not printed")
    words = "; ".join(f"{entry.claim.published or 'no figure'} ({entry.claim.id}): {entry.verdict}" for entry in told)
    return Cell(words, words, codes=tuple(dict.fromkeys(found.code for entry in told for found in entry.findings)))


# -- every machine against the first


def _times_chart(document: JudgedDocument, works: Works, machines: Sequence[Machine], name: str) -> Chart:
    base, *others = machines
    dots: list[Dot] = []
    codes: set[str] = set()
    verdicts: dict[str, None] = {}
    for work, by in works.items():
        for other in others:
            entry = document.hold(by[base], by[other], "devices" if other[1] == base[1] else "system", TIME)
            codes |= {*entry.codes, *document.codes_on(by[other])}
            verdicts[entry.verdict] = None
            if "job" in entry.ratios:
                dots.append(Dot(", ".join(work), _named(other), entry.ratios["job"].value))
    most = max(machine[0] for machine in machines)
    marks = [(1.0, f"1: as long as {_named(base)}"), (1 / most, f"1/{most}: {most} devices and nothing lost")]
    alt = "; ".join(f"{_named(other)} {_ends([d.value for d in dots if d.kind == _named(other)])}" for other in others)
    told = ChartText(
        f"{name}-ratios",
        f"Training time over that of {_named(base)}",
        f"{capital(' and '.join(verdicts))} ({', '.join(sorted(codes))}). Time over that of {_named(base)}: {alt}.",
        (
            "Less is faster.",
            "No intervals, because no repeats are told of; what the printed digits leave open is smaller than a mark.",
        ),
    )
    return dots_chart(told, f"training time over that of {_named(base)}", "", dots, marks[: 2 if most > 1 else 1])


def _ends(values: Sequence[float]) -> str:
    return f"{number(min(values), 3)} to {number(max(values), 3)}" if values else "no ratio"


def _range_words(held: dict[tuple[Work, Machine], Held], newest: Machine, against: Sequence[Machine]) -> str:
    """What the newest machine takes of the time of the others; the verdict comes first."""
    verdicts = ", ".join(dict.fromkeys(entry.verdict for entry in held.values()))
    parts = []
    for other in against:
        values = [e.ratios["job"].value for (_, to), e in held.items() if to == other and "job" in e.ratios]
        parts.append(f"{_ends(values)} times as long as {_named(other)}")
    return f"{capital(verdicts)}: {_named(newest)} takes {' and '.join(parts)}."


def _commands(name: str, table: str, newest: Machine, against: Sequence[Machine]) -> list[str]:
    def side(machine: Machine) -> str:
        return selection(name, f"table={table},accelerator={machine[1]},devices={machine[0]}")

    return [f"steelyard compare '{side(other)}' '{side(newest)}' --metric {TIME}" for other in against]
