"""Tables, curves and comparisons of the rows of a built-in document."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from steelyard.audit.recompute import kind_of
from steelyard.report.audit.claims import claims_table
from steelyard.report.audit.published import (
    BLOCKED,
    WORKED_UNITS,
    RowGroup,
    codes_of,
    ratio_cell,
    row_cell,
    selection,
    verdict_cell,
)
from steelyard.report.charts.published import PublishedCurves, Spot, curve_chart
from steelyard.report.charts.ratios import ratio_chart
from steelyard.report.page import Cell, Chart, Column, Prose, Section, Table
from steelyard.rules.table.settings import shown
from steelyard.stats.knee import BatchTimes, knee
from steelyard.terminal.findings import merged
from steelyard.terminal.text import capital, number

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from steelyard.analysis.compare import Comparison
    from steelyard.audit.judge import Judgement
    from steelyard.report.audit.layout import BlockLayout, RowsLayout, SectionLayout
    from steelyard.report.audit.published import JudgedDocument

    Made = tuple[list[Table | Chart | Prose], str]
    """Blocks, and a sentence that summarises them."""

NO_REPEATS = "One value per row, as printed. No repeats are reported, so there is no CI."
KNEE = "Knee: the smallest batch with 90 % of the maximum throughput. CI: 95 %, of the fit."


class SectionBlocks:
    """Makes the blocks of one section."""

    def __init__(self, document: JudgedDocument, layout: SectionLayout) -> None:
        self.document, self.layout = document, layout
        self.name = f"{document.name}-{layout.name}"
        self.groups = {entry.label: self._group(entry) for entry in layout.rows}
        self.compared = [entry for group in self.groups.values() for entry in group.compared.values()]

    def _group(self, entry: RowsLayout) -> RowGroup:
        rows, layout = self.document.select(entry.select), self.layout
        if layout.over:
            rows.sort(key=lambda row: row.number(layout.over) or 0.0)
        compared: dict[str, Comparison] = {}
        for row in rows[1:] if layout.factor else ():
            (compared[row.place],) = self.document.compare(rows[:1], [row], layout.factor, layout.figure).comparisons
        return RowGroup(entry.label, tuple(rows), compared)

    def section(self, judgements: Sequence[Judgement]) -> Section:
        """Return the whole section, with its claims."""
        make = {"table": self._table, "curve": self._curve, "knees": self._knees, "pairs": self._pairs}
        blocks: list[Table | Chart | Prose] = []
        answers = []
        for block in self.layout.block:
            groups = [self.groups[label] for label in block.of or self.groups]
            made, words = make[block.kind](block, groups, f"{self.name}-{block.name}")
            blocks += made
            answers += [f"{words}."] if block.answers else []
        if judgements:
            held = sum(entry.verdict == "holds" for entry in judgements)
            others = [f"{entry.claim.id} {entry.verdict}" for entry in judgements if entry.verdict != "holds"]
            tally = f"{held} of {len(judgements)} claim{'s' * (len(judgements) != 1)} hold{'s' * (held == 1)}"
            answers.append(f"{'; '.join([tally, *others])}.")
            blocks.append(claims_table(judgements, f"{self.name}-claims"))
        rows = [row for group in self.groups.values() for row in group.rows]
        rows += [row for entry in self.compared for row in (entry.a, entry.b)]
        findings = (*self.document.findings_on(rows), *(each for entry in self.compared for each in entry.findings))
        title = f"{self.document.name}: {self.layout.title}"
        return Section(self.name, title, self.layout.question, " ".join(answers), tuple(blocks), merged(findings))

    def _cells(self, groups: Iterable[RowGroup], column: str) -> tuple[list[Cell], str]:
        """Return one column of some groups and its unit; with several units, each text has its own."""
        rows = [(group, row) for group in groups for row in group.rows]
        cells = [row_cell(self.document, group, row, column, self.layout.figure) for group, row in rows]
        units = [row.figures[column].unit if column in row.figures else "" for _, row in rows]
        if len(set(filter(None, units))) < 2:
            return cells, WORKED_UNITS.get(column) or next(filter(None, units), "")
        return [replace(cell, text=f"{cell.text} {unit}".strip()) for cell, unit in zip(cells, units, strict=True)], ""

    def _table(self, block: BlockLayout, groups: Sequence[RowGroup], name: str) -> Made:
        made = [self._cells(groups, column) for column in block.columns]
        columns = []
        for column, (cells, unit) in zip(block.columns, made, strict=True):
            numbers = any(isinstance(cell.value, int | float) for cell in cells)
            columns.append(Column(column.replace("_", " "), unit, "right" if numbers else "left"))
        rows = tuple(zip(*(cells for cells, _ in made), strict=True))
        compared = [entry for group in groups for entry in group.compared.values()]
        blocked = sum(entry.verdict == BLOCKED for entry in compared)
        words = f"{len(rows)} rows, without comparison"
        if compared:
            words = f"{blocked} of {len(compared)} rows are not comparable with their base"
        unprinted = any(cell.text == "-" for row in rows for cell in row)
        notes = (NO_REPEATS, "- = not printed.") if unprinted else (NO_REPEATS,)
        return [Table(name, block.title, tuple(columns), rows, notes)], words

    def _curve(self, block: BlockLayout, groups: Sequence[RowGroup], name: str) -> Made:
        (column,), over = block.columns, self.layout.over
        along, up, unit = over.replace("_", " "), column.replace("_", " "), ""
        series, words, notes, level = {}, [], [NO_REPEATS], block.level
        for group in groups:
            cells, unit = self._cells([group], column)
            known = [
                (Spot(row.number(over) or 0.0, float(cell.value), bool(self.document.blocking(row))), cell.text)
                for row, cell in zip(group.rows, cells, strict=True)
                if isinstance(cell.value, int | float)
            ]
            series[group.label] = tuple(spot for spot, _ in known)
            (first, start), (last, end) = known[0], max(known, key=lambda entry: (entry[0].x, entry[0].y))
            texts = [self._status(group), f"{up} {start} {unit} at {along} {first.x:,g}, {end} at {last.x:,g}"]
            texts += [f"none at {group.rows[-1].number(over):,g}"] if cells[-1].value is None else []
            words.append(f"{group.label}: {'; '.join(filter(None, texts))}")
        if column == "power per device":
            level = self.document.power_limit_w(groups[0].rows)
            notes.append("Power is derived, not measured; the line is the power limit of the device.")
            words += [f"the power limit of the device is {level:g} W"] if level else []
        text = ". ".join(map(capital, words))
        curves = PublishedCurves(
            name=name,
            title=block.title,
            alt=f"{text}.",
            notes=tuple(notes),
            along=along,
            up=up,
            unit=unit,
            series=series,
            ideal=block.ideal,
            level=level,
            logarithmic=block.logarithmic,
        )
        return [curve_chart(curves)], text

    def _status(self, group: RowGroup) -> str:
        """Return the verdicts on the ratios of a group with their codes; without ratios, the errors of its rows."""
        entries = group.compared.values()
        verdicts = " and ".join(dict.fromkeys(entry.verdict for entry in entries))
        codes = dict.fromkeys(code for entry in entries for code in codes_of(entry))
        if not entries:
            verdicts = "not reliable"
            codes = dict.fromkeys(finding.code for row in group.rows for finding in self.document.blocking(row))
        return f"{verdicts} ({', '.join(codes)})" if codes else ""

    def _knees(self, block: BlockLayout, groups: Sequence[RowGroup], name: str) -> Made:
        """Find the knee of each curve, as for measured runs; none if there is an error."""
        rows: list[tuple[Cell, ...]] = []
        words = []
        for group in groups:
            worst = max(group.compared.values(), key=lambda entry: entry.verdict == BLOCKED)
            start = (Cell(group.label, group.label), verdict_cell(worst))
            if worst.verdict == BLOCKED:
                why = "not comparable"
                rows.append((*start, Cell("none"), Cell("-"), Cell("-"), Cell(why, why)))
                words.append(f"{group.label}: no knee, {self._status(group)}")
                continue
            batches = [(row.number(self.layout.over) or math.nan, row) for row in group.rows]
            its_knee = knee([BatchTimes(b, (b / row.figures[self.layout.figure].value,)) for b, row in batches])
            value = its_knee.answer if its_knee.value is None else number(its_knee.value, 3)
            ends = [
                Cell("-") if end is None else Cell(number(end, 3), end) if math.isfinite(end) else Cell("none")
                for end in (its_knee.low, its_knee.high)
            ]
            how = f"{its_knee.method}: {its_knee.reason}"
            rows.append((*start, Cell(value, its_knee.value), *ends, Cell(how, how)))
            words.append(f"{group.label}: {self._status(group)}; knee {value}: {its_knee.reason}")
        columns = (
            Column("curve", align="left"),
            Column("comparable", align="left"),
            Column("knee", "samples", align="left"),
            Column("CI low"),
            Column("CI high"),
            Column("method or reason", align="left"),
        )
        return [Table(name, block.title, columns, tuple(rows), (KNEE,))], ". ".join(map(capital, words))

    def _pairs(self, block: BlockLayout, _: Sequence[RowGroup], name: str) -> Made:
        """Compare pairs of rows, with the printed claims about them and the commands to repeat the comparison."""
        figure, document = self.layout.figure, self.document
        made = [
            (pair, document.compare(document.select(pair.a), document.select(pair.b), pair.factor, figure))
            for pair in block.pairs
        ]
        entries = [(_name_pair(entry), entry) for _, compared in made for entry in compared.comparisons]
        self.compared += [entry for _, entry in entries]
        amount = entries[0][1].a.figures[figure]
        is_time = kind_of(amount) == "time"
        ratio = "times as long" if is_time else "times as fast"
        shares = ("of the longer time", "of the shorter time") if is_time else ("efficiency",)
        columns = (
            Column("pair", align="left"),
            Column("comparable", align="left"),
            Column("A, the base", amount.unit),
            Column("B", amount.unit),
            Column(ratio),
            *(Column(share, "%") for share in shares),
            Column("printed claim and verdict", align="left"),
        )
        rows = tuple(
            (
                Cell(label, label),
                verdict_cell(entry),
                *(row_cell(document, RowGroup("", (), {}), row, figure, figure) for row in (entry.a, entry.b)),
                ratio_cell(entry, "job"),
                *_share_cells(entry, is_time=is_time),
                _printed_claims(document, entry),
            )
            for label, entry in entries
        )
        notes = [NO_REPEATS]
        notes += ["Both shares are shown, because `faster` and `slower` do not name their base."] * is_time
        commands = [
            f"steelyard compare '{selection(document.name, pair.a)}' '{selection(document.name, pair.b)}' "
            f"--factor {pair.factor} --metric {figure}"
            for pair, _ in made
        ]
        blocks: list[Table | Chart | Prose] = []
        if len(made) == 1 and len(entries) > 1:
            pair, compared = made[0]
            chart = ratio_chart(compared, f"{name}-ratios", sides=(pair.a, pair.b))
            blocks.append(replace(chart, title=f"{block.title}: {ratio}"))
        blocks.append(Table(name, block.title, columns, rows, tuple(notes)))
        blocks.append(Prose(("In a terminal:",), code="\n".join(commands)))
        known = [(label, entry.ratios[0].value) for label, entry in entries if entry.ratios]
        verdicts = " and ".join(dict.fromkeys(entry.verdict for _, entry in entries))
        text = "; ".join(f"{label} {number(value, 3)}" for label, value in known) or "no ratio"
        if len(made) == 1 and len(known) > 1:
            text = " to ".join(number(end(value for _, value in known), 3) for end in (min, max))
        return blocks, f"{block.title} ({verdicts}), {ratio}: {text}"


def _name_pair(entry: Comparison) -> str:
    """Name a pair by the settings its rows share, or by the setting that changes."""
    if entry.shared:
        return ", ".join(entry.shared).replace("_", " ")
    before, after = (shown(row.get(entry.factor)) for row in (entry.a, entry.b))
    name = entry.factor.replace("_", " ")
    return f"a repeat ({name} {before})" if before == after else f"{name} {before} to {after}"


def _share_cells(entry: Comparison, *, is_time: bool) -> list[Cell]:
    """Return the difference of two times as a share of the longer and of the shorter; for rates, the efficiency."""
    whole = ratio_cell(entry, "job")
    if not is_time:
        grew = entry.a.number("devices") != entry.b.number("devices")
        return [ratio_cell(entry, "device", percent=True) if grew else Cell("-")]
    if not isinstance(whole.value, float):
        return [whole, whole]
    less = min(whole.value, 1 / whole.value)
    return [Cell(f"{share:.1f}", share) for share in (100 * (1 - less), 100 * (1 / less - 1))]


def _printed_claims(document: JudgedDocument, entry: Comparison) -> Cell:
    """Return what the document prints about a pair of rows, with the verdict."""
    judged = document.judged(entry.a, entry.b)
    if not judged:
        return Cell("not printed")
    words = "; ".join(f"{each.claim.published or 'no number'} ({each.claim.id}): {each.verdict}" for each in judged)
    return Cell(words, words, codes=tuple(dict.fromkeys(finding.code for each in judged for finding in each.findings)))
