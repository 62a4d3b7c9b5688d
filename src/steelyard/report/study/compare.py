"""Comparisons in a report: the values of each varied setting, and several selections. The verdict comes first."""

from __future__ import annotations

import dataclasses
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from steelyard.analysis.best import fastest_first
from steelyard.analysis.compare import compare, require_factor
from steelyard.analysis.sweep import factor_of, written
from steelyard.errors import SteelyardError
from steelyard.numbers import short
from steelyard.report.charts.ratios import ratio_chart
from steelyard.report.charts.style import error_codes, interval_of
from steelyard.report.page import Cell, Column, KeyFigure, Prose, Section, Table
from steelyard.report.study.differs import differing_answer, differing_table
from steelyard.report.study.subject import default, key_figure
from steelyard.rules.table.settings import shown
from steelyard.terminal.findings import merged
from steelyard.terminal.ratios import bounded, level_percent
from steelyard.terminal.ratios import sentence as says
from steelyard.terminal.text import capital, sentence, shortened

if TYPE_CHECKING:
    from collections.abc import Sequence

    from steelyard.analysis.compare import Compared, Comparison
    from steelyard.contracts.finding import Finding
    from steelyard.report.study.subject import Subject
    from steelyard.rules.table.row import Row

MAX_PAIRS = 6
"""Values of one setting that are compared with its base."""
MAX_GROUPS = 24
"""Cells of each value that are compared: without pairs, each is compared with each."""
DRAWN = 2
SHOWN_PAIRS = 3
SHOWN_LEFT_OUT = 6
DIFFERS = "What differs between the selections, and does it explain the result?"
VERDICTS = {"too few jobs": "not ranked"}
# These have their own sections.
CURVES = ("devices", "batch")


@dataclass(frozen=True)
class _Pair:
    """Two sides with their labels."""

    a: str
    b: str
    compared: Compared


def factor_sections(entry: Subject, prefix: str = "compare", of: str = "") -> list[Section]:
    """Return one section for each varied setting that the rules know."""
    sections = []
    for key in entry.swept:
        factor = None if key in CURVES else factor_of(key)
        if factor is not None:
            sections.append(
                _factor_section(entry, key, factor, f"{prefix}-{key.replace('.', '-').replace('_', '-')}", of)
            )
    return sections


def _factor_section(entry: Subject, key: str, factor: str, name: str, of: str) -> Section:
    # The default is the base if it is among the values.
    usual = default(key)
    values = sorted(entry.swept[key], key=lambda value: value != usual)
    groups = entry.groups(key)
    kept = {cell.name for _, cells in groups[:MAX_GROUPS] for cell in cells}
    sides: dict[str, list[Row]] = {repr(value): [] for value in values}
    for cell in entry.cells:
        if cell.name in kept:
            sides[repr(entry.value(cell, key))].append(entry.rows[cell.name])
    base = values[0]
    pairs, refused = [], []
    for value in values[1 : MAX_PAIRS + 1]:
        a, b = (f"{key} {written(side)}" for side in (base, value))
        try:
            made = compare(sides[repr(base)], sides[repr(value)], factor=factor)
            equal = tuple(one for one in made.comparisons if one.how != "best against best")
            if len(groups) > MAX_GROUPS and equal:
                # The best of some configurations is not the best of all.
                made = dataclasses.replace(made, comparisons=equal)
            pairs.append(_Pair(a, b, made))
        except SteelyardError as error:
            refused.append(f"{b} not compared with {a}: {error.what}.")
    refused += _not_compared(entry, key, factor, len(groups), len(values))
    title = f"{capital(key.replace('_', ' '))}{of}"
    question = f"What does {key} change, compared with {written(base)}?"
    return _section(name, title, question, pairs, refused, entry.runs)


def _not_compared(entry: Subject, key: str, factor: str, groups: int, values: int) -> list[str]:
    texts = []
    if values - 1 > MAX_PAIRS:
        texts.append(f"{values - 1 - MAX_PAIRS:,} more values of {key} are not compared here.")
    if groups > MAX_GROUPS:
        which = f"{MAX_GROUPS} of {groups:,} groups that differ only in {key}"
        texts.append(f"Only {which} are compared: those with the highest reliable throughput.")
    study = entry.cells[0].study
    command = f"Run steelyard compare {study}:{key}=A {study}:{key}=B --factor {factor} to compare all."
    return [*texts, command] if texts else []


def selections_sections(subjects: Sequence[Subject], factor: str) -> tuple[str, list[Section]]:
    """Return the verdict on every selection compared with the first; then what differs, and the comparison."""
    first, pairs, refused = subjects[0], [], []
    for other in subjects[1:]:
        try:
            made = compare(list(first.rows.values()), list(other.rows.values()), factor=factor)
            pairs.append(_Pair(first.text, other.text, made))
        except SteelyardError as error:
            refused.append(f"{other.text} not compared with {first.text}: {error.what}.")
    runs = {place: ids for entry in subjects for place, ids in entry.runs.items() if "/" in place}
    question = f"How do the selections compare? (Factor: {factor})"
    section = _section("selections", "Comparison", question, pairs, refused, runs)
    comparisons = [entry for pair in pairs for entry in pair.compared.comparisons]
    table = differing_table(subjects, comparisons, require_factor(factor))
    differs = Section(
        "differs", "What differs", DIFFERS, differing_answer(table, factor), (table,) if table is not None else ()
    )
    # The verdict is on the first screen.
    rest = dataclasses.replace(section, answer="", figures=(*_ratios(pairs), *_each_best(subjects)))
    return section.answer, [differs, rest]


def _section(
    name: str, title: str, question: str, pairs: Sequence[_Pair], refused: Sequence[str], runs: dict[str, Any]
) -> Section:
    if not pairs:
        return Section(name, title, question, refused[0] if refused else "Nothing to compare.")
    blocks: list[Any] = [_summary(pairs, name)] if len(pairs) > 1 else []
    for place, pair in enumerate(pairs[:DRAWN], 1):
        chart = f"{name}-ratios-{place}"
        blocks.append(ratio_chart(pair.compared, chart, runs=runs, sides=(pair.a, pair.b)))
    parts = [sentence(text) for text in refused]
    for pair in pairs:
        texts = shortened(list(pair.compared.left_out), SHOWN_LEFT_OUT)
        parts += [f"Left out of the comparison of {pair.b} with {pair.a}: {texts}."] if texts else []
    blocks += [Prose(tuple(parts))] if parts else []
    if len(pairs) == 1:
        answer = pair_answer(pairs[0].compared, pairs[0].a, pairs[0].b)
    else:
        verdicts = dict.fromkeys(entry.verdict for pair in pairs for entry in pair.compared.comparisons)
        said = "; ".join(f"{pair.b}: {_short(pair)}" for pair in pairs[:SHOWN_PAIRS])
        more = f"; {len(pairs) - SHOWN_PAIRS} more in the table" if len(pairs) > SHOWN_PAIRS else ""
        answer = f"{sentence(' and '.join(verdicts))} Compared with {pairs[0].a}: {said}{more}."
    return Section(
        name,
        title,
        question,
        answer,
        tuple(blocks),
        _findings(pairs),
    )


def _ratios(pairs: Sequence[_Pair]) -> list[KeyFigure]:
    """Return the ratio of each pair: the only one, or that of the best of both sides on the most devices."""
    figures = []
    for pair in pairs:
        made = [entry for entry in pair.compared.comparisons if entry.ratios]
        best = [entry for entry in made if entry.how == "best against best"]
        if len(made) != 1 and not best:
            continue
        # The best of each side are compared by number of devices.
        chosen = made[0] if len(made) == 1 else max(best, key=lambda entry: entry.a.number("devices") or 0)
        ratio = chosen.ratios[0]
        how = "" if len(made) == 1 else ", best"
        how += f" on {shown(chosen.a.get('devices'))} devices" if len(best) > 1 else ""
        label = f"{pair.b} / {pair.a}{how}"
        if ratio.bound is not None:
            figures.append(KeyFigure(label, bounded(ratio.bound), "times", ratio.verdict))
            continue
        figure = key_figure(label, ratio.value, ratio.low, ratio.high, "times")
        if ratio.low is not None and ratio.level is not None:
            # The best of several have a wider interval.
            detail = figure.detail.replace("95 % CI", f"{level_percent(ratio.level)} CI")
            figure = dataclasses.replace(figure, detail=detail)
        figures.append(figure)
    return figures


def _each_best(subjects: Sequence[Subject]) -> list[KeyFigure]:
    """Return the highest reliable throughput of each selection."""
    figures = []
    for entry in subjects:
        for cell in fastest_first(entry.cells)[:1]:
            low, high = interval_of(cell.throughput)
            if cell.throughput.value is None or error_codes(cell.findings):
                continue
            label = f"Highest of {entry.text}" if len(entry.cells) > 1 else entry.text
            doubt = bool(cell.unreliable)
            figures.append(key_figure(label, cell.throughput.value, low, high, cell.throughput.unit, unreliable=doubt))
    return figures


# -- texts


def _short(pair: _Pair) -> str:
    """Summarise the ratios of a pair in a few words."""
    made = [entry for entry in pair.compared.comparisons if entry.ratios]
    if not made:
        return f"no ratio ({_blocking(pair.compared.comparisons)})"
    best = [entry for entry in made if entry.how == "best against best"]
    if len(made) > 1 and len(best) != 1:
        equal = [entry for entry in made if entry not in best]
        return _counted(equal)
    first = (best or made)[0].ratios[0]
    how = ", best against best" if best else ""
    if first.bound is not None:
        return f"{bounded(first.bound)} times the {first.metric}{how} ({first.verdict})"
    bounds = "" if first.low is None or first.high is None else f" [{short(first.low)}, {short(first.high)}]"
    return f"{short(first.value)}{bounds} times the {first.metric}{how} ({first.verdict})"


def _counted(entries: Sequence[Comparison]) -> str:
    counts = Counter(entry.ratios[0].verdict for entry in entries)
    verdicts = ", ".join(f"{VERDICTS.get(word, word)} in {count}" for word, count in counts.most_common())
    return f"{verdicts} of {sum(counts.values())} pairs"


def pair_answer(compared: Compared, a: str, b: str) -> str:
    """State the verdict, then the ratios, in two sentences."""
    entries = compared.comparisons
    verdict = sentence(" and ".join(dict.fromkeys(entry.verdict for entry in entries)))
    made = [entry for entry in entries if entry.ratios]
    if not made:
        return f"{verdict} No ratio: {_blocking(entries)}."
    if len(made) == 1:
        return f"{verdict} {sentence(says(made[0].ratios[0], a, b))}"
    pairs = [entry for entry in made if entry.how != "best against best"]
    text = f"{verdict} With equal settings, {b} compared with {a}: {_counted(pairs)}." if pairs else verdict
    best = [entry for entry in made if entry.how == "best against best"]
    if len(best) == 1:
        text += f" Best against best: {says(best[0].ratios[0], a, b)}."
    return text


def _blocking(entries: Sequence[Comparison]) -> str:
    """Return the first error, and how many others there are."""
    errors = {finding.code: finding for entry in entries for finding in entry.findings if finding.severity == "error"}
    if not errors:
        return "the value is zero on one side"
    code, first = next(iter(errors.items()))
    more = f"; also {', '.join(list(errors)[1:])}" if len(errors) > 1 else ""
    return f"{first.message} ({code}{more})"


def _summary(pairs: Sequence[_Pair], name: str) -> Table:
    """One row per pair of values. A mean over their ratios would hide what the ratios depend on."""
    columns = (Column("compared with the base", align="left"), Column("verdict and ratio", align="left"))
    rows = []
    for pair in pairs:
        codes = tuple(dict.fromkeys(finding.code for finding in _findings([pair]) if finding.severity != "note"))
        words = pair_answer(pair.compared, pair.a, pair.b)
        rows.append((Cell(pair.b, pair.b), Cell(words, words, codes=codes)))
    return Table(f"{name}-pairs", f"Each compared with {pairs[0].a}", columns, tuple(rows))


def _findings(pairs: Sequence[_Pair]) -> tuple[Finding, ...]:
    findings = []
    for pair in pairs:
        for entry in pair.compared.comparisons:
            sides: dict[str, Row] = {pair.a: entry.a, pair.b: entry.b}
            for one in entry.findings:
                # The side that the finding is about, or the pair.
                side = next((name for name, row in sides.items() if one.place and row.place == one.place), pair.b)
                place = ", ".join(filter(None, (side, ", ".join(entry.shared))))
                findings.append(dataclasses.replace(one, place=place))
    return merged(findings)
